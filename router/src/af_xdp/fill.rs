//! What a queue's owner and those who take its packets know together: how full its fill ring is, and whom to tell.
//!
//! `pushed` is written by the owner, `taken` by whoever takes packets, `allowed` by who opens and closes RX rings. `rung` is set by who rings
//! the owner's bell, and cleared by the owner before it looks: so it is rung once for a look.

use super::{Rings, bell::Bell, ring_memory::RingMemory};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{
        AtomicBool, AtomicU32,
        Ordering::{Acquire, Relaxed, SeqCst},
    },
};

pub(super) struct Fill {
    ring: RingMemory,
    entries: u32,
    completion: u32,
    /// Frames given to the kernel to be received into, and taken back, since the queue was opened; they wrap.
    pushed: AtomicU32,
    taken: AtomicU32,
    /// That the kernel may have at a time.
    allowed: AtomicU32,
    rung: AtomicBool,
    /// Of the owner, if it may sleep.
    bell: Mutex<Option<Arc<Bell>>>,
}

impl Fill {
    /// The ring's memory, seen by others than its producer.
    pub fn new(ring: RingMemory, rings: Rings) -> Fill {
        let (entries, completion) = (rings.fill, rings.completion);
        Fill {
            ring,
            entries,
            completion,
            pushed: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            allowed: AtomicU32::new(entries),
            rung: AtomicBool::new(false),
            bell: Mutex::new(None),
        }
    }

    /// So many more may be given.
    pub fn allow(&self, frames: u32) {
        self.allowed.fetch_add(frames, Relaxed);
    }

    pub fn disallow(&self, frames: u32) {
        self.allowed.fetch_sub(frames, Relaxed);
    }

    /// Frames that the kernel has.
    #[inline]
    pub fn given(&self) -> u32 {
        self.pushed.load(Relaxed).wrapping_sub(self.taken.load(Relaxed))
    }

    /// Frames that it may get.
    #[inline]
    pub fn wanted(&self) -> u32 {
        self.allowed.load(Relaxed).saturating_sub(self.given()).min(self.entries)
    }

    #[inline]
    pub fn push(&self, frames: u32) {
        self.pushed.store(self.pushed.load(Relaxed).wrapping_add(frames), Relaxed);
    }

    #[inline]
    pub fn take(&self, frames: u32) {
        self.taken.fetch_add(frames, Relaxed);
    }

    /// Whose bell is rung; `None`: nobody's.
    pub fn is_owned_by(&self, bell: Option<Arc<Bell>>) {
        *self.bell.lock().unwrap_or_else(PoisonError::into_inner) = bell;
    }

    /// The owner looks at its rings.
    #[inline]
    pub fn looks(&self) {
        if self.rung.load(Relaxed) {
            self.rung.swap(false, SeqCst);
        }
    }

    /// By who is not the owner: a quarter of the ring is missing, and could be filled.
    #[inline]
    pub fn ring_if_low(&self) {
        let (producer, consumer) = (self.ring.producer().load(Acquire), self.ring.consumer().load(Acquire));
        let quarter = self.entries / 4;
        if producer.wrapping_sub(consumer) < self.entries - quarter && self.wanted() >= quarter {
            self.ring();
        }
    }

    /// By who is not the owner: of what the completion ring has room for, half is on its way, or waits there to be taken back.
    #[inline]
    pub fn ring_if_many(&self, in_flight: u32) {
        if in_flight >= self.completion / 2 {
            self.ring();
        }
    }

    /// Has the owner look, if nobody did already.
    #[cold]
    fn ring(&self) {
        if !self.rung.swap(true, SeqCst)
            && let Some(bell) = &*self.bell.lock().unwrap_or_else(PoisonError::into_inner)
        {
            bell.ring();
        }
    }
}
