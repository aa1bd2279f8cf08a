//! Sequence numbers of what is sent, and so its IVs: each at most once.
//!
//! ```text
//! 0 ....... taken ....... reserved ....... last
//!   used           may be used     not yet        2^32 - 1, or 2^64 - 1 with 64-bit numbers (RFC 4303 section 2.2.1)
//! ```
//! `taken <= reserved <= last`; behind more than 32 bits, of an SA that has no more than those any longer, `last` is less, and there is none. Who makes an SA reserves numbers before they are used, and notes that somewhere a restart finds it:
//! it goes on behind what was reserved, never behind what was used. Workers share one `Sequence`; they take as many numbers as a batch has
//! packets at once.

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

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoNumber {
    /// All are used: the SA must be replaced, and stops.
    Exhausted,
    /// None is reserved now.
    Unreserved,
}

impl Sequence {
    /// Behind the numbers up to `used`; none is reserved.
    pub fn new(is_extended: bool, used: u64) -> Self {
        let last = if is_extended { u64::MAX } else { u32::MAX.into() };
        Sequence { taken: used.into(), reserved: used.into(), last }
    }

    /// Numbers up to this may be used; those that were reserved before may too.
    pub fn reserve(&self, up_to: u64) {
        self.reserved.fetch_max(up_to.min(self.last), Relaxed);
    }

    /// The last that was taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// The last that may be taken now.
    pub fn reserved(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// The last there is.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Up to so many numbers, none of which anybody else gets. (Relaxed: nothing but the counter itself is ordered by it.)
    pub fn take(&self, most: u64) -> Range<u64> {
        let reserved = self.reserved();
        let more = |taken: u64| Some(taken.saturating_add(most).min(reserved).max(taken));
        let taken = self.taken.fetch_update(Relaxed, Relaxed, more).unwrap_or_else(|taken| taken);
        // One less than 2^64 is the last, so that its successor has to be left out.
        let end = taken.saturating_add(most).min(reserved).max(taken);
        taken.saturating_add(1)..end.saturating_add(1)
    }

    /// Numbers of [`Sequence::take`] that were not used, from `first` on, up to the end of what was taken: they are used later, unless somebody took others since.
    pub fn give_back(&self, unused: Range<u64>) {
        if let (Some(before), false) = (unused.start.checked_sub(1), unused.is_empty()) {
            let _ = self.taken.compare_exchange(unused.end - 1, before, Relaxed, Relaxed);
        }
    }

    /// Why [`Sequence::take`] had none.
    pub fn why(&self) -> NoNumber {
        if self.taken() >= self.last - u64::from(self.last == u64::MAX) {
            NoNumber::Exhausted
        } else {
            NoNumber::Unreserved
        }
    }
}
