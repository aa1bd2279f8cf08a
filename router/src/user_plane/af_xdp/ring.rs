//! Rings with one producer and one consumer: user space is one of them, and the kernel is the other.
//!
//! Indexes count up and wrap at 2^32. The place of an entry is its index modulo the size, which is a power of two. The memory ordering
//! is that of the kernel's `net/xdp/xsk_queue.h`:
//!
//! ```text
//! producer                               consumer
//! load consumer (acquire)          A     load producer (acquire)          C
//! store entries                          load entries
//! store producer (release)         B     store consumer (release)         D
//! ```
//!
//! B pairs with C: a consumer that sees the index sees the entries. D pairs with A: an entry is overwritten only after it was read.

use super::ring_memory::RingMemory;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The flag in a ring that asks for a wakeup.
const NEED_WAKEUP: u32 = libc::XDP_RING_NEED_WAKEUP;

/// A ring with entries of `WORDS` 64-bit words.
struct Ring<const WORDS: usize> {
    memory: RingMemory,
    entries: u32,
}

impl<const WORDS: usize> Ring<WORDS> {
    fn new(memory: RingMemory) -> Ring<WORDS> {
        let entries = (memory.words().len() / WORDS) as u32;
        assert!(entries.is_power_of_two(), "sizes are checked where rings are asked for");
        Ring { memory, entries }
    }

    #[inline]
    fn place(&self, index: u32) -> usize {
        (index & (self.entries - 1)) as usize * WORDS
    }

    #[inline]
    fn read(&self, index: u32) -> [u64; WORDS] {
        let (words, at) = (self.memory.words(), self.place(index));
        std::array::from_fn(|n| words[at + n].load(Relaxed))
    }

    #[inline]
    fn write(&self, index: u32, entry: [u64; WORDS]) {
        let (words, at) = (self.memory.words(), self.place(index));
        for (n, word) in entry.into_iter().enumerate() {
            words[at + n].store(word, Relaxed);
        }
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        self.memory.flags().load(Relaxed) & NEED_WAKEUP != 0
    }
}

/// A ring that user space writes: a fill or TX ring.
pub(super) struct Producer<const WORDS: usize> {
    ring: Ring<WORDS>,
    /// The next entry to write.
    next: u32,
    /// The consumer's index, as last seen.
    consumed: u32,
}

impl<const WORDS: usize> Producer<WORDS> {
    pub(super) fn new(memory: RingMemory) -> Producer<WORDS> {
        let (next, consumed) = (memory.producer().load(Relaxed), memory.consumer().load(Acquire));
        Producer { ring: Ring::new(memory), next, consumed }
    }

    /// Entries that can be written, up to `wanted`.
    #[inline]
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        if self.free() < wanted {
            self.consumed = self.ring.memory.consumer().load(Acquire);
        }
        self.free().min(wanted)
    }

    /// A consumer's index that is ahead or too far behind is broken; then there is no room.
    #[inline]
    fn free(&self) -> u32 {
        self.ring.entries.saturating_sub(self.next.wrapping_sub(self.consumed))
    }

    /// Writes an entry; false: there is no room. The consumer sees it after [`Producer::publish`].
    #[inline]
    #[must_use]
    pub(super) fn push(&mut self, entry: [u64; WORDS]) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        self.ring.write(self.next, entry);
        self.next = self.next.wrapping_add(1);
        true
    }

    #[inline]
    pub(super) fn publish(&self) {
        self.ring.memory.producer().store(self.next, Release);
    }

    /// The number of entries that the kernel has not taken, as far as it shows.
    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        let consumed = self.ring.memory.consumer().load(Acquire);
        self.next.wrapping_sub(consumed).min(self.ring.entries)
    }

    /// The entries that the kernel has not taken, as far as it shows. The caller must know that it takes none meanwhile.
    pub(super) fn unconsumed(&self) -> impl Iterator<Item = [u64; WORDS]> + '_ {
        let waiting = self.waiting();
        (0..waiting).map(move |n| self.ring.read(self.next.wrapping_sub(waiting).wrapping_add(n)))
    }

    /// The kernel continues only after a system call.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// A ring that user space reads: an RX or completion ring.
pub(super) struct Consumer<const WORDS: usize> {
    ring: Ring<WORDS>,
    /// The next entry to read.
    next: u32,
    /// The producer's index, as last seen.
    produced: u32,
}

impl<const WORDS: usize> Consumer<WORDS> {
    pub(super) fn new(memory: RingMemory) -> Consumer<WORDS> {
        let (next, produced) = (memory.consumer().load(Relaxed), memory.producer().load(Acquire));
        Consumer { ring: Ring::new(memory), next, produced }
    }

    /// Entries that can be read, up to `wanted`.
    #[inline]
    pub(super) fn available(&mut self, wanted: u32) -> u32 {
        if self.seen() < wanted {
            self.produced = self.ring.memory.producer().load(Acquire);
        }
        self.seen().min(wanted)
    }

    /// A producer's index beyond the size of the ring is broken; then there are no entries.
    #[inline]
    fn seen(&self) -> u32 {
        let seen = self.produced.wrapping_sub(self.next);
        if seen <= self.ring.entries { seen } else { 0 }
    }

    /// The next entry. Its place is free again after [`Consumer::release`].
    #[inline]
    pub(super) fn pop(&mut self) -> Option<[u64; WORDS]> {
        if self.available(1) == 0 {
            return None;
        }
        let entry = self.ring.read(self.next);
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Whether there is an entry that was not read.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.produced != self.next || self.ring.memory.producer().load(Acquire) != self.next
    }

    #[inline]
    pub(super) fn release(&self) {
        self.ring.memory.consumer().store(self.next, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::ring_memory::tests::two_sides, *};
    use std::thread;

    /// Just before indexes wrap.
    const LATE: u32 = u32::MAX - 5;

    #[test]
    fn entries_are_read_as_they_were_written() {
        for begin in [0, LATE] {
            let [ours, kernels] = two_sides(8 * 2, begin);
            let (mut producer, mut consumer) = (Producer::<2>::new(ours), Consumer::<2>::new(kernels));
            for n in 0..8 {
                assert!(producer.push([n, n * n]));
            }
            assert!(!producer.push([9, 9]), "full");
            assert_eq!(consumer.pop(), None, "not published");
            producer.publish();
            assert_eq!((consumer.available(100), producer.waiting()), (8, 8));
            for n in 0..5 {
                assert_eq!(consumer.pop(), Some([n, n * n]));
            }
            assert_eq!(producer.room(8), 0, "not released");
            consumer.release();
            assert_eq!((producer.room(8), producer.waiting()), (5, 3));
            assert_eq!(producer.unconsumed().map(|e| e[0]).collect::<Vec<_>>(), [5, 6, 7]);
        }
    }

    #[test]
    fn broken_indexes_are_an_empty_and_a_full_ring() {
        let [ours, kernels] = two_sides(8, 0);
        let (mut producer, mut consumer) = (Producer::<1>::new(ours), Consumer::<1>::new(kernels));
        consumer.ring.memory.producer().store(1000, Relaxed);
        assert_eq!((consumer.available(8), consumer.pop()), (0, None));
        producer.ring.memory.consumer().store(77, Relaxed);
        assert!(producer.push([0]), "as last seen");
        assert_eq!(producer.room(8), 0);
    }

    /// A million entries through eight places, to another thread and back, as frames go through the kernel.
    #[test]
    fn two_threads_see_every_entry_once_and_whole() {
        const COUNT: u64 = 200_000;
        let [ours, theirs] = two_sides(8 * 2, LATE);
        let [back, their_back] = two_sides(8, LATE);
        let kernel = thread::spawn(move || {
            let (mut tx, mut completion) = (Consumer::<2>::new(theirs), Producer::<1>::new(their_back));
            let mut done = 0;
            while done < COUNT {
                let n = tx.available(8).min(completion.room(8));
                for _ in 0..n {
                    let [a, b] = tx.pop().unwrap();
                    assert_eq!(b, !a, "whole");
                    assert!(completion.push([a]));
                }
                tx.release();
                completion.publish();
                done += u64::from(n);
                if n == 0 {
                    thread::yield_now();
                }
            }
        });
        let (mut tx, mut completion) = (Producer::<2>::new(ours), Consumer::<1>::new(back));
        let (mut sent, mut completed) = (0, 0);
        while completed < COUNT {
            while sent < COUNT && tx.push([sent, !sent]) {
                sent += 1;
            }
            tx.publish();
            if completion.available(8) == 0 {
                thread::yield_now();
            }
            while let Some([n]) = completion.pop() {
                assert_eq!(n, completed, "in order, once");
                completed += 1;
            }
            completion.release();
        }
        kernel.join().unwrap();
    }
}
