//! Packets in frames, and the frames that a worker has free.
//!
//! `unsafe` is needed to reach a frame's bytes: the memory is shared with the kernel, and which frame is whose is known at run
//! time only. Here alone a frame number becomes bytes.

use super::{
    OpenError,
    umem::{BATCH, Promise, Umem},
};
use std::{cell::RefCell, ops::Range, rc::Rc, sync::Arc};

/// Bytes before a packet that was made here, as the kernel leaves before one that it received (XDP_PACKET_HEADROOM).
pub const HEAD_ROOM: usize = 256;
/// Free frames that a pool keeps at most: several batches, so that one who sends as much as he receives never asks the depot.
const KEPT: usize = 4 * BATCH;
const NONE: u32 = u32::MAX;

/// A worker's free frames.
pub struct Pool {
    inner: Rc<Inner>,
    /// Buffers there may be at a time.
    in_hand: usize,
}

struct Inner {
    umem: Arc<Umem>,
    free: RefCell<Vec<u32>>,
    /// Until the last buffer is gone.
    promises: RefCell<Vec<Promise>>,
}

/// A packet: bytes in a frame that is nobody else's, with room before and behind.
pub struct Buffer {
    pool: Rc<Inner>,
    frame: u32,
    start: u16,
    length: u16,
}

/// Where a packet lies that leaves its [`Buffer`], for a TX ring.
pub(super) struct Packet {
    pub frame: u32,
    pub start: u16,
    pub length: u16,
}

impl Pool {
    /// For a worker that has at most `in_hand` buffers at a time.
    ///
    /// # Errors
    /// There are too few frames.
    pub fn new(umem: &Arc<Umem>, in_hand: usize) -> Result<Pool, OpenError> {
        let needed = u32::try_from(in_hand.saturating_add(KEPT)).unwrap_or(u32::MAX);
        let promises = RefCell::new(vec![umem.promise("a worker's pool", needed)?]);
        let free = RefCell::new(Vec::with_capacity(KEPT + 1));
        Ok(Pool { inner: Rc::new(Inner { umem: umem.clone(), free, promises }), in_hand })
    }

    /// So many more buffers may be in hand.
    pub(super) fn allow(&mut self, more: usize) -> Result<(), OpenError> {
        let needed = u32::try_from(more).unwrap_or(u32::MAX);
        let promise = self.umem().promise("packets that wait for a TX ring", needed)?;
        self.inner.promises.borrow_mut().push(promise);
        self.in_hand += more;
        Ok(())
    }

    pub fn umem(&self) -> &Arc<Umem> {
        &self.inner.umem
    }

    /// Buffers that are somewhere now.
    pub fn buffers(&self) -> usize {
        // Each has a reference, and the pool itself.
        Rc::strong_count(&self.inner) - 1
    }

    /// Buffers that may be made now.
    pub(super) fn left(&self) -> usize {
        self.in_hand.saturating_sub(self.buffers())
    }

    /// An empty packet with [`HEAD_ROOM`]. `None`: as many as were promised are in hand.
    pub fn allocate(&self) -> Option<Buffer> {
        if self.left() == 0 {
            return None;
        }
        Some(self.buffer(self.take()?, HEAD_ROOM as u16, 0))
    }

    /// A packet in a frame that is the caller's, wholly within it.
    #[inline]
    pub(super) fn buffer(&self, frame: u32, start: u16, length: u16) -> Buffer {
        let umem = self.umem();
        debug_assert!(u32::from(start) + u32::from(length) <= umem.frame_bytes() && frame < umem.frames());
        Buffer { pool: self.inner.clone(), frame, start, length }
    }

    /// A free frame, the caller's from now on.
    #[inline]
    pub(super) fn take(&self) -> Option<u32> {
        let mut free = self.inner.free.borrow_mut();
        if free.is_empty() {
            self.inner.umem.take(BATCH, &mut free);
        }
        free.pop()
    }

    /// The caller's frame is free.
    #[inline]
    pub(super) fn put(&self, frame: u32) {
        self.inner.put(frame);
    }
}

impl Inner {
    #[inline]
    fn put(&self, frame: u32) {
        let mut free = self.free.borrow_mut();
        free.push(frame);
        if free.len() > KEPT {
            self.umem.put(&mut free, KEPT - BATCH);
        }
    }
}

/// With the last buffer, if the pool went before it.
impl Drop for Inner {
    fn drop(&mut self) {
        self.umem.put(&mut self.free.borrow_mut(), 0);
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if self.frame != NONE {
            self.pool.put(self.frame);
        }
    }
}

impl Buffer {
    /// The packet.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.frame()[self.range()]
    }

    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let range = self.range();
        &mut self.frame_mut()[range]
    }

    /// The whole frame, and where in it the packet lies: for who moves both ends, and says so by [`Buffer::set_range`].
    #[inline]
    pub fn parts_mut(&mut self) -> (&mut [u8], Range<usize>) {
        let range = self.range();
        (self.frame_mut(), range)
    }

    /// The packet is these bytes of the frame from now on. False, and nothing changes: they are not all in it.
    #[inline]
    #[must_use]
    pub fn set_range(&mut self, range: Range<usize>) -> bool {
        let right = range.start <= range.end && range.end <= self.pool.umem.frame_bytes() as usize;
        if right {
            self.start = range.start as u16;
            self.length = (range.end - range.start) as u16;
        }
        right
    }

    /// Bytes of the packet.
    #[inline]
    pub fn len(&self) -> usize {
        self.length.into()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes the packet can grow by at its beginning.
    #[inline]
    pub fn head_room(&self) -> usize {
        self.start.into()
    }

    /// Bytes it can grow by at its end.
    #[inline]
    pub fn tail_room(&self) -> usize {
        self.pool.umem.frame_bytes() as usize - self.range().end
    }

    /// As long as these bytes, which are copied; false, and nothing changes, if there is no room.
    #[must_use]
    pub fn fill(&mut self, bytes: &[u8]) -> bool {
        let start = self.head_room();
        let right = self.set_range(start..start + bytes.len());
        if right {
            self.data_mut().copy_from_slice(bytes);
        }
        right
    }

    /// Its frame is of this memory.
    #[inline]
    pub(super) fn is_of(&self, umem: &Arc<Umem>) -> bool {
        Arc::ptr_eq(&self.pool.umem, umem)
    }

    /// The frame leaves with what it holds, to be given to a ring.
    #[inline]
    pub(super) fn into_packet(mut self) -> Packet {
        let packet = Packet { frame: self.frame, start: self.start, length: self.length };
        self.frame = NONE;
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
        // SAFETY: within the mapping, which is initialised and lives as long as `umem` (`place`). The frame is this buffer's
        // alone: frames come from the depot, where each is once, or from the kernel, which had it from us (`Umem::take_received`)
        // and does not touch it any more; and a buffer is not cloned. So nobody writes while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(at, bytes) }
    }

    #[inline]
    fn frame_mut(&mut self) -> &mut [u8] {
        let (at, bytes) = self.place();
        // SAFETY: as above; and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(at, bytes) }
    }

    #[inline]
    fn place(&self) -> (*mut u8, usize) {
        let umem = &self.pool.umem;
        let bytes = umem.frame_bytes() as usize;
        debug_assert!(self.frame < umem.frames());
        // SAFETY: the mapping has `frames` of `frame_bytes`, and every frame number of a buffer is below `frames`: the depot was
        // made of those, and `take_received` refuses others.
        (unsafe { umem.memory().as_mut_ptr().add(self.frame as usize * bytes) }, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_gives_its_frame_back() {
        let umem = Umem::new(600, 2048).unwrap();
        let pool = Pool::new(&umem, 300).unwrap();
        let mut all: Vec<Buffer> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!((all.len(), pool.buffers()), (300, 300), "as many as promised");
        for (n, buffer) in all.iter_mut().enumerate() {
            assert!(buffer.fill(&(n as u32).to_ne_bytes()));
        }
        for (n, buffer) in all.iter().enumerate() {
            assert_eq!(buffer.data(), (n as u32).to_ne_bytes(), "frames are distinct");
        }
        all.clear();
        assert_eq!(pool.buffers(), 0);
        assert!(umem.free_frames() >= 600 - KEPT as u32);
        drop(pool);
        assert_eq!(umem.free_frames(), 600);
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let umem = Umem::new(300, 2048).unwrap();
        let pool = Pool::new(&umem, 4).unwrap();
        let mut buffer = pool.allocate().unwrap();
        drop(pool);
        assert!(buffer.fill(b"still here"));
        assert_eq!(umem.free_frames(), 300 - BATCH as u32);
        drop(buffer);
        assert_eq!(umem.free_frames(), 300);
    }

    #[test]
    fn a_packet_grows_and_shrinks_within_its_frame() {
        let umem = Umem::new(300, 2048).unwrap();
        let pool = Pool::new(&umem, 4).unwrap();
        let mut buffer = pool.allocate().unwrap();
        assert_eq!((buffer.head_room(), buffer.tail_room(), buffer.is_empty()), (256, 2048 - 256, true));
        assert!(buffer.fill(&[7; 100]));
        assert!(buffer.set_range(200..400));
        assert_eq!((buffer.len(), buffer.head_room(), buffer.tail_room()), (200, 200, 2048 - 400));
        assert_eq!(buffer.data()[56..156], [7; 100]);
        let (frame, range) = buffer.parts_mut();
        assert_eq!((frame.len(), range), (2048, 200..400));
        assert!(!buffer.set_range(2000..2049) && !buffer.set_range(8..7) && !buffer.fill(&[0; 1849]));
        assert_eq!(buffer.len(), 200, "refused, and unchanged");
        assert!(buffer.set_range(0..2048));
    }
}
