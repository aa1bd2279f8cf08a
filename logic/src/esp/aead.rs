//! AES-GCM for ESP (RFC 4106): keys, and the interface of a library.

use std::fmt;
use zeroize::Zeroize;

/// The length of the authentication tag in bytes.
pub const TAG: usize = 16;
/// The length of the salt after the AES key (RFC 4106 section 8.1).
const SALT: usize = 4;

/// An AES key of 128 or 256 bits, and the salt. No output shows it, and its memory is zeroed.
#[derive(Clone)]
pub struct Key {
    /// Boxed, because a move would leave a copy behind.
    bytes: Box<[u8; 32]>,
    length: usize,
    salt: Box<[u8; SALT]>,
}

impl Key {
    /// Makes a key of 16 or 32 bytes of AES key, followed by 4 bytes of salt.
    pub fn new(bytes: &[u8]) -> Option<Key> {
        let (aes, salt) = bytes.split_last_chunk::<SALT>()?;
        let mut key = Key { bytes: Box::new([0; 32]), length: aes.len(), salt: Box::new(*salt) };
        match aes.len() {
            16 | 32 => key.bytes.get_mut(..aes.len())?.copy_from_slice(aes),
            _ => return None,
        }
        Some(key)
    }

    /// The AES key, for the library.
    pub fn aes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// The salt, for nonces.
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

/// Compares in a time that does not depend on where they differ.
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

/// One packet to seal or open.
pub struct Job<'t> {
    /// The salt and the IV.
    pub nonce: [u8; 12],
    /// The additional authenticated data, in the first [`Job::aad_bytes`].
    pub aad: [u8; 12],
    /// 8, or 12 with 64-bit sequence numbers.
    pub aad_bytes: u8,
    /// [`Aead::seal`] sets it if it encrypted the text, and [`Aead::open`] if the tag was right.
    pub is_right: bool,
    /// The text, followed by the tag.
    pub text: &'t mut [u8],
}

/// The part that jobs of one SA share (RFC 4106 sections 4 and 5). It is zeroed at the end.
pub(crate) struct Jobs(OfBatch);

/// The same, for the packets of one batch. It is a local value that need not be read again for each packet, whatever is
/// written in between. This copy of the salt is not zeroed, and neither are those in the nonces of jobs.
#[derive(Clone, Copy)]
pub(crate) struct OfBatch {
    salt: [u8; SALT],
    spi: [u8; 4],
    aad_bytes: u8,
    /// Shifts the 8 bytes of additional data after the SPI: they are the whole sequence number, or its low half in
    /// front of zeros.
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

    /// A single job.
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

/// Shows neither the nonce, which has the salt, nor the text.
impl fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("is_right", &self.is_right).finish_non_exhaustive()
    }
}

/// A key in the form of some library. If a tag is wrong, the contents of the text are undefined and must not be used.
pub trait Aead: Send + Sync {
    /// Encrypts the texts and writes their tags. Sets [`Job::is_right`] for each text that it encrypted, and returns
    /// true if these are all. A text that was not encrypted never leaves the worker.
    #[must_use]
    fn seal(&self, jobs: &mut [Job<'_>]) -> bool;
    /// Decrypts the texts, and sets [`Job::is_right`] if their tags were right.
    fn open(&self, jobs: &mut [Job<'_>]);
}
