//! Copies of packets on their way from an element ([`super::Mirror`]) to the thread that writes them: a ring of fixed
//! memory between one thread that puts and one that takes.
//!
//! The alternative was a trait behind which the writer has a queue of its own. It would leave the important properties
//! to others: nothing waits, and nothing is allocated per packet. The ring is memory like [`crate::memory`], and these
//! properties are tested here.
//!
//! # Who may write which field
//! The thread that puts writes `put`, and the words from `taken` up to one turn of the ring further. `is_putting`
//! allows one such thread at a time. A second one does not wait; its copies are lost. The one [`Taker`] writes
//! `taken`. `put` is stored (release) after the words of all copies of a run, and `taken` after those that were read.
//! Each is loaded (acquire) before the other side's words are touched.
//!
//! A copy consists of two words (the time and both lengths) and its data in words. Copies are in order. The end of the
//! ring never cuts one.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::*},
};

/// Words before the data: the time, and the original length above the captured one.
const HEADER: usize = 2;
const WORD: usize = size_of::<u64>();
/// The number of times that [`Taker`] yields while a run still puts, before it ends.
const WAITS: u32 = 1000;
/// The longest packet.
const MOST_BYTES: usize = u16::MAX as usize;

/// Why a copy is in no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NoCopy {
    /// The writer did not keep up.
    Full,
    /// The file cannot be written, or the disk is full.
    Disk,
    /// The file has reached its maximum size.
    Limit,
}

impl NoCopy {
    /// All reasons, in order.
    pub const ALL: [NoCopy; 3] = [NoCopy::Full, NoCopy::Disk, NoCopy::Limit];

    /// The name in counters.
    pub fn name(self) -> &'static str {
        match self {
            NoCopy::Full => "mirror_full",
            NoCopy::Disk => "mirror_disk",
            NoCopy::Limit => "mirror_limit",
        }
    }
}

/// See the head of this file.
pub struct Copies {
    words: Box<[AtomicU64]>,
    put: Line,
    taken: Line,
    is_putting: AtomicBool,
    /// Why no copy is accepted now: the number in [`NoCopy::ALL`], or [`TAKES`].
    refuses: AtomicU8,
    written: AtomicU64,
    lost: [AtomicU64; NoCopy::ALL.len()],
}

/// A count of words since the start, in a cache line that only one thread writes.
#[repr(align(64))]
#[derive(Default)]
struct Line(AtomicU64);

const TAKES: u8 = u8::MAX;

/// The packet of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// When the packet arrived, by the clock of elements.
    pub at_ns: u64,
    /// Length of the packet in bytes.
    pub original: u32,
    /// The number of these bytes that were copied.
    pub captured: u32,
}

impl Copies {
    /// A ring for this many bytes, including the header of each copy. There is room for at least one packet.
    pub fn new(bytes: usize) -> (Arc<Copies>, Taker) {
        let words = bytes.div_ceil(WORD).max(Copies::words(MOST_BYTES));
        let copies = Arc::new(Copies::of(words, TAKES));
        (copies.clone(), Taker { copies, at: 0, until: 0 })
    }

    /// A ring without a taker. Each copy is lost, as [`NoCopy::Disk`].
    pub fn nowhere() -> Arc<Copies> {
        Arc::new(Copies::of(0, NoCopy::Disk as u8))
    }

    /// The size of a ring for this many packets of this many bytes.
    pub fn bytes_for(packets: usize, bytes: usize) -> usize {
        packets.saturating_mul(Copies::words(bytes)).saturating_mul(WORD)
    }

    fn of(words: usize, refuses: u8) -> Copies {
        Copies {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            put: Line::default(),
            taken: Line::default(),
            is_putting: AtomicBool::new(false),
            refuses: AtomicU8::new(refuses),
            written: AtomicU64::new(0),
            lost: Default::default(),
        }
    }

    fn words(bytes: usize) -> usize {
        HEADER + bytes.div_ceil(WORD)
    }

    /// Begins to put copies of a run.
    ///
    /// # Errors
    /// No copy is accepted now, for this reason.
    #[inline]
    pub(super) fn begin(&self) -> Result<Putting<'_>, NoCopy> {
        if let Some(why) = NoCopy::ALL.get(usize::from(self.refuses.load(Relaxed))) {
            return Err(*why);
        }
        if self.is_putting.swap(true, Acquire) {
            return Err(NoCopy::Full);
        }
        let at = self.put.0.load(Relaxed);
        Ok(Putting { copies: self, at, place: self.place(at), until: self.end(), full: 0 })
    }

    fn place(&self, at: u64) -> usize {
        at.checked_rem(self.words.len() as u64).unwrap_or(0) as usize
    }

    /// The words of the ring from `place` on, and then those from the beginning of the ring.
    #[inline]
    fn from(&self, place: usize) -> impl Iterator<Item = &[AtomicU64]> {
        let (front, back) = self.words.split_at_checked(place).unwrap_or_default();
        [back, front].into_iter()
    }

    /// Words up to here may be written.
    #[inline]
    fn end(&self) -> u64 {
        self.taken.0.load(Acquire) + self.words.len() as u64
    }

    /// Counts lost copies.
    pub(super) fn lose(&self, why: NoCopy, copies: u64) {
        if copies > 0 {
            self.lost[why as usize].fetch_add(copies, Relaxed);
        }
    }

    /// Whether there are copies that were put and not taken.
    pub fn are_waiting(&self) -> bool {
        self.put.0.load(Relaxed) != self.taken.0.load(Relaxed)
    }

    /// The number of copies in the file.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// The number of copies that were lost for this reason.
    pub fn lost(&self, why: NoCopy) -> u64 {
        self.lost[why as usize].load(Relaxed)
    }
}

/// One run that puts. Its copies become visible when this is dropped.
pub(super) struct Putting<'c> {
    copies: &'c Copies,
    at: u64,
    /// The position of `at` in the ring.
    place: usize,
    until: u64,
    full: u64,
}

impl Putting<'_> {
    /// Puts a copy of a packet that arrived at `at_ns`, with at most `most` bytes. If there is no room, the copy is
    /// counted as lost.
    #[inline]
    pub fn put(&mut self, at_ns: u64, data: &[u8], most: usize) {
        let captured = data.get(..most).unwrap_or(data);
        let words = Copies::words(captured.len()) as u64;
        if self.until.wrapping_sub(self.at) < words {
            self.until = self.copies.end();
            if self.until.wrapping_sub(self.at) < words {
                self.full += 1;
                return;
            }
        }
        let (whole, rest) = captured.as_chunks::<WORD>();
        self.store([at_ns, (data.len() as u64) << 32 | captured.len() as u64].into_iter());
        self.store(whole.iter().map(|word| u64::from_ne_bytes(*word)));
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            self.store([u64::from_ne_bytes(last)].into_iter());
        }
    }

    #[inline]
    fn store(&mut self, mut words: impl ExactSizeIterator<Item = u64>) {
        let count = words.len();
        for slots in self.copies.from(self.place) {
            slots.iter().zip(&mut words).for_each(|(slot, word)| slot.store(word, Relaxed));
        }
        self.at += count as u64;
        self.place += count;
        self.place -= if self.place >= self.copies.words.len() { self.copies.words.len() } else { 0 };
    }
}

impl Drop for Putting<'_> {
    #[inline]
    fn drop(&mut self) {
        self.copies.put.0.store(self.at, Release);
        self.copies.lose(NoCopy::Full, self.full);
        self.copies.is_putting.store(false, Release);
    }
}

/// The only thread that takes. After it is dropped, every copy is lost, as [`NoCopy::Disk`].
pub struct Taker {
    copies: Arc<Copies>,
    at: u64,
    until: u64,
}

impl Taker {
    /// Takes the oldest copy. Its data is appended to `to`.
    pub fn take(&mut self, to: &mut Vec<u8>) -> Option<Copied> {
        if self.at == self.until {
            self.until = self.copies.put.0.load(Acquire);
            if self.at == self.until {
                return None;
            }
        }
        let place = self.copies.place(self.at);
        let mut words = self.copies.from(place).flatten().map(|word| word.load(Relaxed));
        let (at_ns, lengths) = (words.next()?, words.next()?);
        let captured = (lengths as u32).min(MOST_BYTES as u32);
        let (count, end) = ((captured as usize).div_ceil(WORD), to.len() + captured as usize);
        words.take(count).for_each(|word| to.extend_from_slice(&word.to_ne_bytes()));
        to.truncate(end);
        self.at += (HEADER + count) as u64;
        self.copies.taken.0.store(self.at, Release);
        Some(Copied { at_ns, original: (lengths >> 32) as u32, captured })
    }

    /// Makes the ring refuse copies for this reason, or accept them again.
    pub fn refuse(&self, why: Option<NoCopy>) {
        self.copies.refuses.store(why.map_or(TAKES, |why| why as u8), Relaxed);
    }

    /// Counts copies that are in the file.
    pub fn count_written(&self, copies: u64) {
        self.copies.written.fetch_add(copies, Relaxed);
    }

    /// Counts lost copies.
    pub fn lose(&self, why: NoCopy, copies: u64) {
        self.copies.lose(why, copies);
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.refuse(Some(NoCopy::Disk));
        // A run that puts now ends soon, and no other can begin after that. A run that hangs is not waited for; the
        // copies that it still puts are not counted.
        let is_putting = |_: &u32| self.copies.is_putting.swap(true, Acquire);
        (0..WAITS).take_while(is_putting).for_each(|_| std::thread::yield_now());
        let (mut copy, mut lost) = (Vec::new(), 0);
        while self.take(&mut copy).is_some() {
            copy.clear();
            lost += 1;
        }
        self.lose(NoCopy::Disk, lost);
    }
}
