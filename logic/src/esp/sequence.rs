//! Sequence numbers of sent packets, which are also their IVs. Each is used at most once.
//!
//! ```text
//! 0 ....... taken ....... reserved ....... last
//!   used           may be used     not yet        2^32 - 1, or 2^64 - 1 with 64-bit numbers (RFC 4303 section 2.2.1)
//! ```
//! `taken <= reserved <= last` always holds, with one exception: an SA that used 64-bit numbers and has only 32-bit
//! ones now may have taken more than `last`. Then there are no numbers. The maker of an SA reserves numbers before they
//! are used, and stores that where a restart finds it. After a restart, numbers continue after the reserved ones, not
//! after the used ones. Workers share one `Sequence`. They take as many numbers at once as a batch has packets.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// See the head of this file.
#[derive(Debug)]
pub struct Sequence {
    taken: AtomicU64,
    reserved: AtomicU64,
    last: u64,
}

/// Why there is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoNumber {
    /// All are used. The SA stops and must be replaced.
    Exhausted,
    /// None is reserved now.
    Unreserved,
}

impl Sequence {
    /// Continues after the numbers up to `used`. None is reserved.
    pub fn new(is_extended: bool, used: u64) -> Self {
        let last = if is_extended { u64::MAX } else { u32::MAX.into() };
        Sequence { taken: used.into(), reserved: used.into(), last }
    }

    /// Allows numbers up to this. Numbers that were reserved before stay reserved.
    pub fn reserve(&self, up_to: u64) {
        self.reserved.fetch_max(up_to.min(self.last), Relaxed);
    }

    /// The last number that was taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// The last number that may be taken now.
    pub fn reserved(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// The last number that exists.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Takes up to `most` numbers, which nobody else gets. (Relaxed: it orders nothing but the counter itself.)
    pub fn take(&self, most: u64) -> Range<u64> {
        let reserved = self.reserved();
        let more = |taken: u64| Some(taken.saturating_add(most).min(reserved).max(taken));
        let taken = self.taken.fetch_update(Relaxed, Relaxed, more).unwrap_or_else(|taken| taken);
        // The last one is below 2^64 - 1, because its successor must exist.
        let end = taken.saturating_add(most).min(reserved).max(taken);
        taken.saturating_add(1)..end.saturating_add(1)
    }

    /// Gives back numbers of [`Sequence::take`] that were not used: from the first unused one up to the end of what was
    /// taken. They are used later, unless others took numbers in between.
    pub fn give_back(&self, unused: Range<u64>) {
        if let (Some(before), false) = (unused.start.checked_sub(1), unused.is_empty()) {
            let _ = self.taken.compare_exchange(unused.end - 1, before, Relaxed, Relaxed);
        }
    }

    /// Why [`Sequence::take`] returned none.
    pub fn why(&self) -> NoNumber {
        if self.taken() >= self.last - u64::from(self.last == u64::MAX) {
            NoNumber::Exhausted
        } else {
            NoNumber::Unreserved
        }
    }
}
