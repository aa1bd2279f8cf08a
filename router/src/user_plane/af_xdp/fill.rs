//! A queue's fill ring. Its owner fills it between any two runs. A worker on another core that takes packets of the queue fills it
//! too, when a quarter is missing. So it does not wait for an owner that sleeps or hangs.
//!
//! `pushed` is written by the holder of the ring's lock, `taken` by all that take packets, `allowed` by the opener and closer of RX
//! rings. The lock is taken for 64 frames or more, and nothing waits for it: if it is taken, another thread fills the ring.

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
    /// The same ring, to read without the lock.
    memory: RingMemory,
    entries: u32,
    /// Frames given to the kernel to receive into, since the queue was opened; it wraps.
    pushed: AtomicU32,
    /// Frames taken back from the kernel since then; it wraps.
    taken: AtomicU32,
    /// The most frames that the kernel may have at a time.
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

    /// The kernel may have this many more frames.
    pub fn allow(&self, frames: u32) {
        self.allowed.fetch_add(frames, Relaxed);
    }

    /// The kernel may have this many frames less.
    pub fn disallow(&self, frames: u32) {
        self.allowed.fetch_sub(frames, Relaxed);
    }

    /// Frames that the kernel has.
    #[inline]
    pub fn given(&self) -> u32 {
        self.pushed.load(Relaxed).wrapping_sub(self.taken.load(Relaxed))
    }

    /// Times that no frame was free.
    pub fn starved(&self) -> u64 {
        self.starved.load(Relaxed)
    }

    /// Frames that the kernel may get now.
    #[inline]
    fn wanted(&self) -> u32 {
        self.allowed.load(Relaxed).saturating_sub(self.given()).min(self.entries)
    }

    /// The caller took frames that the kernel had received into.
    #[inline]
    pub fn take(&self, frames: u32) {
        self.taken.fetch_add(frames, Relaxed);
    }

    /// The kernel looks at the ring only when it is asked to.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.memory.flags().load(Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Called by the owner: gives the missing frames, if there are at least this many.
    #[inline]
    pub fn fill(&self, umem: &Umem, queue: QueueId, pool: &Pool, least: u32) {
        if self.wanted() >= least {
            self.give(umem, queue, pool, least);
        }
    }

    /// Called by others: gives frames if a quarter of the ring is missing and may be given. Returns whether it was.
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
        // Before any of them can be taken back.
        self.pushed.store(self.pushed.load(Relaxed).wrapping_add(given), Relaxed);
        ring.publish();
    }
}
