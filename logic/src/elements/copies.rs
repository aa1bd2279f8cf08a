//! Copies of packets on their way from an element ([`super::Mirror`]) to who writes them: a ring of fixed memory between one thread that puts
//! and one that takes.
//!
//! Two shapes were written down: a trait, behind which whoever writes has a queue of his own, and this ring. The trait leaves to others what matters, that
//! nothing waits and nothing is allocated for a packet; the ring is memory like [`crate::memory`], and what it promises is tested here.
//!
//! # Who may write what
//! `words` from `taken` up to one turn of the ring further, and `put`: who puts, of whom `is_putting` lets there be one at a time. A second one, as of a worker that
//! hangs and was replaced, does not wait: his copies are lost. `taken`: the one [`Taker`]. `put` is stored (release) behind the words of all copies of a run,
//! `taken` behind those that were read; each is loaded (acquire) before the other's words are touched.
//!
//! A copy is two words, the time and both lengths, and its data in words. Copies are in order, and are never cut by the end of the ring.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::*},
};

/// Words in front of the data: when; original length above the captured one.
const HEADER: usize = 2;
const WORD: usize = size_of::<u64>();
/// Who ends lets others go on so often while a run puts.
const WAITS: u32 = 1000;
/// Of a packet.
const MOST_BYTES: usize = u16::MAX as usize;

/// Why a copy is in no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NoCopy {
    /// Who writes did not keep up.
    Full,
    /// The file cannot be written, or the disk is full.
    Disk,
    /// The file has the most bytes that it may have.
    Limit,
}

impl NoCopy {
    /// All, in order.
    pub const ALL: [NoCopy; 3] = [NoCopy::Full, NoCopy::Disk, NoCopy::Limit];

    /// As counters call it.
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
    /// Why no copy is taken now: its number in [`NoCopy::ALL`], or none of them.
    refuses: AtomicU8,
    written: AtomicU64,
    lost: [AtomicU64; NoCopy::ALL.len()],
}

/// Words since the start, in a line of the cache that is one thread's to write.
#[repr(align(64))]
#[derive(Default)]
struct Line(AtomicU64);

const TAKES: u8 = u8::MAX;

/// What a copy is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// When the packet came, of the clock of elements.
    pub at_ns: u64,
    /// Bytes of the packet.
    pub original: u32,
    /// Of those, so many were copied.
    pub captured: u32,
}

impl Copies {
    /// Room for so many bytes, what goes with each packet included; at least for one packet.
    pub fn new(bytes: usize) -> (Arc<Copies>, Taker) {
        let words = bytes.div_ceil(WORD).max(Copies::words(MOST_BYTES));
        let copies = Arc::new(Copies::of(words, TAKES));
        (copies.clone(), Taker { copies, at: 0, until: 0 })
    }

    /// That nobody takes: each is lost, as [`NoCopy::Disk`].
    pub fn nowhere() -> Arc<Copies> {
        Arc::new(Copies::of(0, NoCopy::Disk as u8))
    }

    /// The room that so many packets of so many bytes take.
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

    /// To put copies of a run.
    ///
    /// # Errors
    /// None is taken now, for this reason.
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

    /// The words of the ring from there on, and those that follow where it begins again.
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

    /// So many are lost.
    pub(super) fn lose(&self, why: NoCopy, copies: u64) {
        if copies > 0 {
            self.lost[why as usize].fetch_add(copies, Relaxed);
        }
    }

    /// Was any put that nobody took?
    pub fn are_waiting(&self) -> bool {
        self.put.0.load(Relaxed) != self.taken.0.load(Relaxed)
    }

    /// Copies that are in the file.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Copies that are lost.
    pub fn lost(&self, why: NoCopy) -> u64 {
        self.lost[why as usize].load(Relaxed)
    }
}

/// One run puts; what it put is seen when this is dropped.
pub(super) struct Putting<'c> {
    copies: &'c Copies,
    at: u64,
    /// Of `at`, in the ring.
    place: usize,
    until: u64,
    full: u64,
}

impl Putting<'_> {
    /// A copy of a packet that came then, of `most` bytes at most; counted as lost if there is no room.
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

/// Who writes; there is one. When it is gone every copy is lost, as [`NoCopy::Disk`].
pub struct Taker {
    copies: Arc<Copies>,
    at: u64,
    until: u64,
}

impl Taker {
    /// Takes the oldest copy; its data is behind what `to` has.
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

    /// From now on none is taken, for this reason, or all are again.
    pub fn refuse(&self, why: Option<NoCopy>) {
        self.copies.refuses.store(why.map_or(TAKES, |why| why as u8), Relaxed);
    }

    /// So many are in the file.
    pub fn count_written(&self, copies: u64) {
        self.copies.written.fetch_add(copies, Relaxed);
    }

    /// So many are lost.
    pub fn lose(&self, why: NoCopy, copies: u64) {
        self.copies.lose(why, copies);
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.refuse(Some(NoCopy::Disk));
        // A run that puts now ends soon, and then nobody begins another. One that hangs is not waited for: what it still puts is not counted.
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
