//! A ring that is shared with the kernel, as atomic words.
//!
//! The kernel reads and writes the same memory at the same time, so every word is atomic. `unsafe` is needed to turn a mapping into
//! references. Bounds and alignment are checked once, here.

use memmap2::MmapRaw;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64},
    },
};

/// Offsets in bytes from the beginning of a mapping (XDP_MMAP_OFFSETS).
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    pub producer: usize,
    pub consumer: usize,
    pub flags: usize,
    pub entries: usize,
}

#[derive(Clone)]
pub(super) struct RingMemory {
    map: Arc<MmapRaw>,
    at: Offsets,
    words: usize,
}

impl RingMemory {
    /// A ring with this many 64-bit words of entries.
    ///
    /// # Errors
    /// An offset is outside of the mapping, or not aligned.
    pub(super) fn new(map: Arc<MmapRaw>, at: Offsets, words: usize) -> io::Result<RingMemory> {
        let index_fits =
            |at: usize| at.is_multiple_of(4) && at.checked_add(4).is_some_and(|end| end <= map.len());
        let entries_fit = at.entries.is_multiple_of(8)
            && words
                .checked_mul(8)
                .and_then(|bytes| bytes.checked_add(at.entries))
                .is_some_and(|end| end <= map.len());
        if ![at.producer, at.consumer, at.flags].into_iter().all(index_fits) || !entries_fit {
            return Err(io::Error::other("the kernel's offsets are outside of the ring"));
        }
        Ok(RingMemory { map, at, words })
    }

    #[inline]
    pub(super) fn producer(&self) -> &AtomicU32 {
        self.index(self.at.producer)
    }

    #[inline]
    pub(super) fn consumer(&self) -> &AtomicU32 {
        self.index(self.at.consumer)
    }

    #[inline]
    pub(super) fn flags(&self) -> &AtomicU32 {
        self.index(self.at.flags)
    }

    #[inline]
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, and readable and writable as long as `self` lives; `new` checked length and alignment.
        // An AtomicU64 is valid for any bits and for concurrent writers.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().add(self.at.entries).cast(), self.words) }
    }

    #[inline]
    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: as above, and `at` is one of the offsets that `new` checked.
        unsafe { &*self.map.as_mut_ptr().add(at).cast() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use memmap2::MmapOptions;

    const AT: Offsets = Offsets { producer: 0, consumer: 64, flags: 68, entries: 128 };

    /// Both sides of a ring in plain memory, with indexes that start at `begin`.
    pub fn two_sides(words: usize, begin: u32) -> [RingMemory; 2] {
        let map: Arc<MmapRaw> = Arc::new(MmapOptions::new().len(128 + words * 8).map_anon().unwrap().into());
        let sides = [(); 2].map(|()| RingMemory::new(map.clone(), AT, words).unwrap());
        sides[0].producer().store(begin, std::sync::atomic::Ordering::Relaxed);
        sides[0].consumer().store(begin, std::sync::atomic::Ordering::Relaxed);
        sides
    }

    #[test]
    fn offsets_outside_are_refused() {
        let map: Arc<MmapRaw> = Arc::new(MmapOptions::new().len(256).map_anon().unwrap().into());
        let new = |at, words| RingMemory::new(map.clone(), at, words);
        assert!(new(AT, 16).is_ok());
        assert!(new(AT, 17).is_err() && new(AT, usize::MAX / 4).is_err());
        assert!(new(Offsets { producer: 253, ..AT }, 1).is_err());
        assert!(new(Offsets { consumer: 256, ..AT }, 1).is_err());
        assert!(new(Offsets { flags: usize::MAX - 3, ..AT }, 1).is_err());
        assert!(new(Offsets { entries: 132, ..AT }, 1).is_err());
    }
}
