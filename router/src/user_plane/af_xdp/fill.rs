//! A queue's fill ring. Its owner fills it, between any two runs; whoever takes packets of the queue on another core fills it too when a
//! quarter is missing, so that nobody waits for an owner that sleeps, or does not get on.
//!
//! `pushed` is written by who has the ring's lock, `taken` by whoever takes packets, `allowed` by who opens and closes RX rings. The lock is taken
//! for 64 frames and more, and waited for by nobody: who finds it taken knows that somebody fills.

use super::{
    Rings,
    buffer::Pool,
    ring::Producer,
    ring_memory::RingMemory,
    umem::{QueueId, Umem},
};
use std::sync::{
    Mutex, TryLockError,
    atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed},
    },
};

pub(super) struct Fill {
    ring: Mutex<Producer<1>>,
    /// The same, to look at.
    memory: RingMemory,
    entries: u32,
    /// Frames given to the kernel to be received into, and taken back, since the queue was opened; they wrap.
    pushed: AtomicU32,
    taken: AtomicU32,
    /// That the kernel may have at a time.
    allowed: AtomicU32,
    starved: AtomicU64,
}

impl Fill {
    pub fn new(memory: RingMemory, rings: Rings) -> Fill {
        Fill {
            ring: Mutex::new(Producer::new(memory.clone())),
            memory,
            entries: rings.fill,
            pushed: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            allowed: AtomicU32::new(rings.fill),
            starved: AtomicU64::new(0),
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

    /// Times that no frame was there.
    pub fn starved(&self) -> u64 {
        self.starved.load(Relaxed)
    }

    /// Frames that it may get.
    #[inline]
    fn wanted(&self) -> u32 {
        self.allowed.load(Relaxed).saturating_sub(self.given()).min(self.entries)
    }

    /// Frames of it are the caller's.
    #[inline]
    pub fn take(&self, frames: u32) {
        self.taken.fetch_add(frames, Relaxed);
    }

    /// The kernel looks at the ring only when it is asked to.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.memory.flags().load(Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// By the owner: gives what is missing, if it is so much.
    #[inline]
    pub fn fill(&self, umem: &Umem, queue: QueueId, pool: &Pool, least: u32) {
        if self.wanted() >= least {
            self.give(umem, queue, pool, least);
        }
    }

    /// By others: if a quarter of the ring is missing, and may be given. True: it was low.
    #[inline]
    pub fn help(&self, umem: &Umem, queue: QueueId, pool: &Pool) -> bool {
        let (producer, consumer) =
            (self.memory.producer().load(Acquire), self.memory.consumer().load(Acquire));
        let quarter = self.entries / 4;
        let is_low = producer.wrapping_sub(consumer) < self.entries - quarter && self.wanted() >= quarter;
        if is_low {
            self.give(umem, queue, pool, quarter);
        }
        is_low
    }

    fn give(&self, umem: &Umem, queue: QueueId, pool: &Pool, least: u32) {
        let mut ring = match self.ring.try_lock() {
            Ok(ring) => ring,
            Err(TryLockError::Poisoned(ring)) => ring.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let room = ring.room(self.wanted());
        if room < least {
            return;
        }
        let mut given = 0;
        for _ in 0..room {
            let Some(frame) = pool.take() else {
                self.starved.fetch_add(1, Relaxed);
                break;
            };
            umem.give_to_receive(frame, queue);
            let fitted = ring.push([u64::from(frame) * u64::from(umem.frame_bytes())]);
            debug_assert!(fitted);
            given += 1;
        }
        // Before one of them can be taken.
        self.pushed.store(self.pushed.load(Relaxed).wrapping_add(given), Relaxed);
        ring.publish();
    }
}
