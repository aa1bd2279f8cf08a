//! Packets in frames, and a worker's free frames.
//!
//! A buffer has a plain pointer to its pool, and the pool counts the frames that it owns, free or in buffers. Making a buffer and
//! dropping it only moves a number from a stack and back. This takes 1.7 ns per packet. With a reference count (`Rc`) and a checked
//! borrow of the stack it took 10 ns, and bare numbers without owners take 0.9 ns (batches of 16, `lab/runs/2026-11-23-af-xdp.txt`).
//! The pool's memory is freed when the pool *and* its last buffer are dropped.
//!
//! `unsafe` is needed for that, and to reach the bytes of a frame: the memory is shared with the kernel, and the owner of a frame is
//! known only at run time. This is the only file in which a frame number becomes bytes.

use super::{
    OpenError,
    umem::{BATCH, Promise, Umem},
};
use std::{cell::Cell, ops::Range, ptr::NonNull, sync::Arc};

/// Bytes before a packet that was made here; the kernel leaves as many before a packet that it received (XDP_PACKET_HEADROOM).
pub const HEAD_ROOM: usize = 256;
/// The most free frames that a pool keeps: several batches, so that a worker that sends as much as it receives never uses the depot.
const KEPT: usize = 4 * BATCH;
/// Frames that a pool may hold in addition to the packets in hand.
pub const POOL_FRAMES: usize = KEPT;
const NONE: u32 = u32::MAX;

/// A worker's free frames.
pub struct Pool {
    inner: NonNull<Inner>,
    /// The most buffers at a time.
    in_hand: usize,
}

struct Inner {
    /// A stack, of which the first `free` entries are used.
    frames: [Cell<u32>; KEPT],
    free: Cell<usize>,
    /// How many free frames are kept: [`KEPT`], or 0 once the pool is dropped.
    kept: Cell<usize>,
    /// Frames that are free or in a buffer.
    owned: Cell<usize>,
    memory: *mut u8,
    frame_bytes: u32,
    umem: Arc<Umem>,
    /// Held until the last buffer is gone.
    _promise: Promise,
}

/// A packet: bytes in a frame that only this buffer has, with room before and after them.
pub struct Buffer {
    pool: NonNull<Inner>,
    frame: u32,
    start: u16,
    length: u16,
}

/// The place of a packet that left its [`Buffer`] for a TX ring. Whoever holds this owns the frame.
pub(super) struct Packet {
    pub frame: u32,
    pub start: u16,
    pub length: u16,
}

impl Pool {
    /// A pool for a worker that has at most `in_hand` buffers at a time.
    ///
    /// # Errors
    /// There are too few frames.
    pub fn new(umem: &Arc<Umem>, in_hand: usize) -> Result<Pool, OpenError> {
        let needed = u32::try_from(in_hand.saturating_add(KEPT)).unwrap_or(u32::MAX);
        let inner = Inner {
            frames: [const { Cell::new(NONE) }; KEPT],
            free: Cell::new(0),
            kept: Cell::new(KEPT),
            owned: Cell::new(0),
            memory: umem.memory().as_mut_ptr(),
            frame_bytes: umem.frame_bytes(),
            umem: umem.clone(),
            _promise: umem.promise("a worker's pool", needed)?,
        };
        Ok(Pool { inner: NonNull::from(Box::leak(Box::new(inner))), in_hand })
    }

    pub fn umem(&self) -> &Arc<Umem> {
        &self.inner().umem
    }

    /// The number of buffers that exist now.
    #[inline]
    pub fn buffers(&self) -> usize {
        self.inner().owned.get() - self.inner().free.get()
    }

    /// Buffers that may be made now.
    #[inline]
    pub(super) fn left(&self) -> usize {
        self.in_hand.saturating_sub(self.buffers())
    }

    /// An empty packet with [`HEAD_ROOM`]. `None`: all promised buffers exist.
    #[inline]
    pub fn allocate(&self) -> Option<Buffer> {
        if self.left() == 0 {
            return None;
        }
        let frame = self.inner().pop()?;
        Some(Buffer { pool: self.inner, frame, start: HEAD_ROOM as u16, length: 0 })
    }

    /// A packet in a frame that the caller owns; it is wholly within the frame.
    #[inline]
    pub(super) fn buffer(&self, frame: u32, start: u16, length: u16) -> Buffer {
        let inner = self.inner();
        debug_assert!(
            u32::from(start) + u32::from(length) <= inner.frame_bytes && frame < inner.umem.frames()
        );
        inner.owned.set(inner.owned.get() + 1);
        Buffer { pool: self.inner, frame, start, length }
    }

    /// A free frame, which the caller owns from now on.
    #[inline]
    pub(super) fn take(&self) -> Option<u32> {
        let frame = self.inner().pop();
        self.inner().owned.set(self.inner().owned.get() - usize::from(frame.is_some()));
        frame
    }

    /// The caller gives back a frame, which is free then.
    #[inline]
    pub(super) fn put(&self, frame: u32) {
        let inner = self.inner();
        inner.owned.set(inner.owned.get() + 1);
        // It returns true only if the pool is dropped, and this one is not.
        let _ = inner.push(frame);
    }

    #[inline]
    fn inner(&self) -> &Inner {
        // SAFETY: it was made in `new`, and is not freed before this pool is dropped. Only `Cell`s change, on this thread: neither
        // pool nor buffers are `Send` or `Sync`.
        unsafe { self.inner.as_ref() }
    }
}

impl Inner {
    #[inline]
    fn pop(&self) -> Option<u32> {
        if self.free.get() == 0 {
            self.fetch();
        }
        let at = self.free.get().checked_sub(1)?;
        let frame = self.frames.get(at)?.get();
        self.free.set(at);
        Some(frame)
    }

    /// Gives back an owned frame. True: it was the last one and the pool is dropped, so nothing refers to `self` any more.
    #[inline]
    #[must_use]
    fn push(&self, frame: u32) -> bool {
        let at = self.free.get();
        if at >= self.kept.get() {
            return self.give_back(frame);
        }
        // `kept` does not exceed the length of `frames`.
        if let Some(place) = self.frames.get(at) {
            place.set(frame);
            self.free.set(at + 1);
        }
        false
    }

    #[cold]
    fn fetch(&self) {
        let mut fetched = Vec::with_capacity(BATCH);
        self.umem.take(BATCH, &mut fetched);
        self.owned.set(self.owned.get() + fetched.len());
        self.free.set(fetched.len());
        fetched.into_iter().zip(&self.frames).for_each(|(frame, place)| place.set(frame));
    }

    /// Moves this frame, and more, to the depot.
    #[cold]
    fn give_back(&self, frame: u32) -> bool {
        let (free, kept) = (self.free.get(), self.kept.get());
        let stay = if kept == 0 { 0 } else { kept - BATCH };
        let mut back: Vec<u32> = self.frames[stay.min(free)..free].iter().map(Cell::get).collect();
        back.extend((frame != NONE).then_some(frame));
        self.free.set(stay.min(free));
        self.owned.set(self.owned.get() - back.len());
        self.umem.put(&mut back, 0);
        kept == 0 && self.owned.get() == 0
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.inner().kept.set(0);
        if self.inner().give_back(NONE) {
            // SAFETY: it comes from `Box::leak`; no buffer refers to it, and this pool is gone.
            drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
        }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if self.frame != NONE && self.pool().push(self.frame) {
            // SAFETY: it comes from `Box::leak`; the pool is dropped, and this is its last buffer.
            drop(unsafe { Box::from_raw(self.pool.as_ptr()) });
        }
    }
}

impl Buffer {
    /// The bytes of the packet.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.frame()[self.range()]
    }

    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let range = self.range();
        &mut self.frame_mut()[range]
    }

    /// The whole frame, and the range of the packet in it. A caller that moves the ends then calls [`Buffer::set_range`].
    #[inline]
    pub fn parts_mut(&mut self) -> (&mut [u8], Range<usize>) {
        let range = self.range();
        (self.frame_mut(), range)
    }

    /// Makes these bytes of the frame the packet. False: they are not all within the frame, and nothing changes.
    #[inline]
    #[must_use]
    pub fn set_range(&mut self, range: Range<usize>) -> bool {
        let right = range.start <= range.end && range.end <= self.pool().frame_bytes as usize;
        if right {
            self.start = range.start as u16;
            self.length = (range.end - range.start) as u16;
        }
        right
    }

    /// The length of the packet in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length.into()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes that the packet can grow by at its beginning.
    #[inline]
    pub fn head_room(&self) -> usize {
        self.start.into()
    }

    /// Bytes that it can grow by at its end.
    #[inline]
    pub fn tail_room(&self) -> usize {
        self.pool().frame_bytes as usize - self.range().end
    }

    /// Copies these bytes into the packet, which gets their length. False: there is no room, and nothing changes.
    #[must_use]
    pub fn fill(&mut self, bytes: &[u8]) -> bool {
        let start = self.head_room();
        let right = self.set_range(start..start + bytes.len());
        if right {
            self.data_mut().copy_from_slice(bytes);
        }
        right
    }

    /// Whether its frame belongs to this memory.
    #[inline]
    pub(super) fn is_of(&self, umem: &Arc<Umem>) -> bool {
        Arc::ptr_eq(&self.pool().umem, umem)
    }

    /// Turns the buffer into a packet for a ring, which owns the frame.
    #[inline]
    pub(super) fn into_packet(mut self) -> Packet {
        let packet = Packet { frame: self.frame, start: self.start, length: self.length };
        let pool = self.pool();
        pool.owned.set(pool.owned.get() - 1);
        let last = pool.kept.get() == 0 && pool.owned.get() == 0;
        self.frame = NONE;
        if last {
            // SAFETY: as in `drop`, which does nothing to it any more.
            drop(unsafe { Box::from_raw(self.pool.as_ptr()) });
        }
        packet
    }

    #[inline]
    fn range(&self) -> Range<usize> {
        let start = usize::from(self.start);
        start..start + usize::from(self.length)
    }

    #[inline]
    fn frame(&self) -> &[u8] {
        let (at, bytes) = self.place();
        // SAFETY: it is within the mapping, which is initialised and lives as long as `umem` (`place`). Only this buffer has the
        // frame, and buffers are not cloned. The frame came from the depot, where each frame is once, or from the kernel, which
        // had it from us (`Umem::take_received`) and does not touch it any more. So nothing writes while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(at, bytes) }
    }

    #[inline]
    fn frame_mut(&mut self) -> &mut [u8] {
        let (at, bytes) = self.place();
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(at, bytes) }
    }

    #[inline]
    fn place(&self) -> (*mut u8, usize) {
        let pool = self.pool();
        let bytes = pool.frame_bytes as usize;
        debug_assert!(self.frame < pool.umem.frames());
        // SAFETY: the mapping has `frames` of `frame_bytes`, and every frame number of a buffer is below `frames`: the depot began
        // with those, and `take_received` refuses others.
        (unsafe { pool.memory.add(self.frame as usize * bytes) }, bytes)
    }

    #[inline]
    fn pool(&self) -> &Inner {
        // SAFETY: it is freed when the pool and all buffers are gone, and this buffer still exists: its frame counts as owned. Only
        // `Cell`s change, on this thread.
        unsafe { self.pool.as_ref() }
    }
}

#[cfg(test)]
mod tests;
