//! AES-GCM as ESP has it (RFC 4106): keys, and what a library is asked for.

use std::fmt;
use zeroize::Zeroize;

/// Bytes of the tag that says that a packet is right.
pub const TAG: usize = 16;
/// Bytes of the salt behind the AES key (RFC 4106 section 8.1).
const SALT: usize = 4;

/// An AES key of 128 or 256 bits, and the salt. Nothing shows it, and its memory is zeroed.
#[derive(Clone)]
pub struct Key {
    /// In one place, as a move leaves a copy behind.
    bytes: Box<[u8; 32]>,
    length: usize,
    salt: Box<[u8; SALT]>,
}

impl Key {
    /// 16 or 32 bytes of key, and 4 of salt behind them.
    pub fn new(bytes: &[u8]) -> Option<Key> {
        let (aes, salt) = bytes.split_last_chunk::<SALT>()?;
        let mut key = Key { bytes: Box::new([0; 32]), length: aes.len(), salt: Box::new(*salt) };
        match aes.len() {
            16 | 32 => key.bytes.get_mut(..aes.len())?.copy_from_slice(aes),
            _ => return None,
        }
        Some(key)
    }

    /// For the library.
    pub fn aes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// For nonces.
    pub fn salt(&self) -> [u8; SALT] {
        *self.salt
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.bytes.zeroize();
        self.salt.zeroize();
    }
}

/// Whether they are equal, in a time that does not depend on where they differ.
impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        let mut differs = self.length ^ other.length;
        let mine = self.bytes.iter().chain(&*self.salt);
        for (a, b) in mine.zip(other.bytes.iter().chain(&*other.salt)) {
            differs |= usize::from(a ^ b);
        }
        differs == 0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// One packet to be sealed or opened.
pub struct Job<'t> {
    /// Salt and IV.
    pub nonce: [u8; 12],
    /// What is authenticated besides the text, in the first [`Job::aad_bytes`].
    pub aad: [u8; 12],
    /// 8, or 12 with 64-bit sequence numbers.
    pub aad_bytes: u8,
    /// Set by [`Aead::seal`]: it was encrypted; and by [`Aead::open`]: the tag was right.
    pub is_right: bool,
    /// The text, and behind it the tag.
    pub text: &'t mut [u8],
}

/// What jobs of one SA have in common (RFC 4106 sections 4 and 5), zeroed in the end.
pub(crate) struct Jobs(OfBatch);

/// The same, for the packets of one batch: it is a local value, which need not be read anew for each of them, whatever is written in between. This copy of
/// the salt is not zeroed, as those in the nonces of jobs are not.
#[derive(Clone, Copy)]
pub(crate) struct OfBatch {
    salt: [u8; SALT],
    spi: [u8; 4],
    aad_bytes: u8,
    /// Of the additional data behind the SPI, 8 bytes: the whole sequence number, or its low half in front of zeros.
    shift: u32,
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.0.salt.zeroize();
    }
}

impl Jobs {
    pub(crate) fn new(spi: u32, salt: [u8; SALT], is_extended: bool) -> Self {
        let (aad_bytes, shift) = if is_extended { (12, 0) } else { (8, 32) };
        Jobs(OfBatch { salt, spi: spi.to_be_bytes(), aad_bytes, shift })
    }

    /// One alone.
    #[inline]
    pub(crate) fn job<'t>(&self, iv: [u8; 8], number: u64, text: &'t mut [u8]) -> Job<'t> {
        self.0.job(iv, number, text)
    }

    #[inline]
    pub(crate) fn of_batch(&self) -> OfBatch {
        self.0
    }
}

impl OfBatch {
    #[inline]
    pub(crate) fn job<'t>(&self, iv: [u8; 8], number: u64, text: &'t mut [u8]) -> Job<'t> {
        let (mut nonce, mut aad) = ([0; 12], [0; 12]);
        nonce[..4].copy_from_slice(&self.salt);
        nonce[4..].copy_from_slice(&iv);
        aad[..4].copy_from_slice(&self.spi);
        aad[4..].copy_from_slice(&(number << self.shift).to_be_bytes());
        Job { nonce, aad, aad_bytes: self.aad_bytes, is_right: false, text }
    }
}

/// Without nonce, which has the salt, and text.
impl fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("is_right", &self.is_right).finish_non_exhaustive()
    }
}

/// A key of some library's. Where a tag is wrong, what is left of the text is nobody's business.
pub trait Aead: Send + Sync {
    /// Encrypts the texts, and writes their tags, and says which it did ([`Job::is_right`]). True exactly if it was all of them: what it was not leaves no
    /// worker.
    #[must_use]
    fn seal(&self, jobs: &mut [Job<'_>]) -> bool;
    /// Decrypts the texts, and says whether their tags were right.
    fn open(&self, jobs: &mut [Job<'_>]);
}
