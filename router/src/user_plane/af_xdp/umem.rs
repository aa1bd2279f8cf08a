//! Memory for packets: frames, who holds each, and those that nobody uses.

use super::OpenError;
use crate::base::guard::locked;
use memmap2::{MmapOptions, MmapRaw};
use std::{
    io,
    os::fd::RawFd,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU16, AtomicU32, Ordering::Relaxed},
    },
};

/// Frames that go between a pool and the depot at a time.
pub(super) const BATCH: usize = 64;
const HUGE_PAGE_BITS: u8 = 21;
/// Ids of holders: 0 is user space; a queue has two, one for frames to receive into and one for those to be sent.
const QUEUES: usize = (u16::MAX as usize - 2) / 2;
const RETIRED: u16 = u16::MAX;

/// One memory for all packets of the user plane. Its frames are numbered; it lives as long as anybody may use one.
pub struct Umem {
    memory: MmapRaw,
    frame_bytes: u32,
    frames: u32,
    huge_pages: bool,
    holders: Box<[AtomicU16]>,
    books: Mutex<Books>,
    anchors: Mutex<Vec<Anchor>>,
}

/// What is free, and what may be asked for.
struct Books {
    free: Vec<u32>,
    promised: u32,
    retired: u32,
    /// By id.
    queues: Vec<bool>,
}

/// A bound socket, which others can share the memory with. Its descriptor is open as long as it is listed.
pub(super) struct Anchor {
    pub queue: QueueId,
    pub zero_copy: bool,
    pub fd: RawFd,
}

/// Distinct among the queues of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueId(u16);

impl QueueId {
    /// Holder of frames that were given to be filled.
    fn receiving(self) -> u16 {
        self.0 * 2 + 1
    }
    /// Holder of frames that were given to be sent.
    fn sending(self) -> u16 {
        self.0 * 2 + 2
    }
}

/// So many frames may be held by its owner.
pub(crate) struct Promise {
    umem: Arc<Umem>,
    /// Written by who has the lock of the books.
    frames: AtomicU32,
}

impl Promise {
    /// Its owner holds so many at most, if that is less, and will not hold more.
    pub(crate) fn shrink(&self, frames: u32) {
        let mut books = self.umem.books();
        let before = self.frames.load(Relaxed);
        let now = before.min(frames);
        self.frames.store(now, Relaxed);
        books.promised -= before - now;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.umem.books().promised -= *self.frames.get_mut();
    }
}

impl Umem {
    /// `frames` of 2048 or 4096 bytes, in huge pages if the system has some free.
    ///
    /// # Errors
    /// No memory; or sizes that the kernel does not take.
    pub fn new(frames: u32, frame_bytes: u32) -> Result<Arc<Umem>, OpenError> {
        if ![2048, 4096].contains(&frame_bytes) || frames == 0 || frames > 1 << 24 {
            return Err(OpenError::Frames(frames, frame_bytes));
        }
        let (memory, huge_pages) = map(frames as usize * frame_bytes as usize).map_err(OpenError::Memory)?;
        Ok(Arc::new(Umem {
            memory,
            frame_bytes,
            frames,
            huge_pages,
            holders: (0..frames).map(|_| AtomicU16::new(0)).collect(),
            // The lowest first.
            books: Mutex::new(Books {
                free: (0..frames).rev().collect(),
                promised: 0,
                retired: 0,
                queues: Vec::new(),
            }),
            anchors: Mutex::default(),
        }))
    }

    pub fn frames(&self) -> u32 {
        self.frames
    }

    pub fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }

    /// It is in huge pages.
    pub fn has_huge_pages(&self) -> bool {
        self.huge_pages
    }

    /// Free frames that no pool has. Without pools and queues: all, but for those that were retired.
    pub fn free_frames(&self) -> u32 {
        self.books().free.len() as u32
    }

    /// Frames that queues and pools may hold, all together.
    pub fn promised_frames(&self) -> u32 {
        self.books().promised
    }

    /// Frames that are not used again: a NIC had them when their queue was closed, and may write to them at any time.
    pub fn retired_frames(&self) -> u32 {
        self.books().retired
    }

    pub(super) fn memory(&self) -> &MmapRaw {
        &self.memory
    }

    /// Sockets that share the memory, for as long as one is used.
    pub(super) fn anchors(&self) -> MutexGuard<'_, Vec<Anchor>> {
        locked(&self.anchors)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        locked(&self.books)
    }

    pub(super) fn promise(self: &Arc<Self>, what: &'static str, needed: u32) -> Result<Promise, OpenError> {
        let mut books = self.books();
        let (promised, retired, frames) = (books.promised, books.retired, self.frames);
        if u64::from(promised) + u64::from(retired) + u64::from(needed) > u64::from(frames) {
            return Err(OpenError::TooFewFrames { what, needed, promised, retired, frames });
        }
        books.promised += needed;
        Ok(Promise { umem: self.clone(), frames: needed.into() })
    }

    /// Moves up to `most` free frames to a pool.
    pub(super) fn take(&self, most: usize, to: &mut Vec<u32>) {
        let free = &mut self.books().free;
        let from = free.len().saturating_sub(most);
        to.extend(free.drain(from..));
    }

    /// Takes free frames back from a pool: those from index `from` on.
    pub(super) fn put(&self, frames: &mut Vec<u32>, from: usize) {
        self.books().free.extend(frames.drain(from..));
    }

    pub(super) fn new_queue(&self) -> Result<QueueId, OpenError> {
        let queues = &mut self.books().queues;
        let id = queues.iter().position(|used| !used).unwrap_or(queues.len());
        if id >= QUEUES {
            return Err(OpenError::TooManyQueues(QUEUES));
        }
        queues.resize(queues.len().max(id + 1), false);
        queues[id] = true;
        Ok(QueueId(id as u16))
    }

    /// The frame is given to the kernel, to be filled by a packet of this queue.
    #[inline]
    pub(super) fn give_to_receive(&self, frame: u32, queue: QueueId) {
        self.holders[frame as usize].store(queue.receiving(), Relaxed);
    }

    /// The frame is given to the kernel, to be sent by this queue.
    #[inline]
    pub(super) fn give_to_send(&self, frame: u32, queue: QueueId) {
        self.holders[frame as usize].store(queue.sending(), Relaxed);
    }

    /// The kernel says the frame has a packet of this queue. False: it never had it for that.
    #[inline]
    #[must_use]
    pub(super) fn take_received(&self, frame: u32, queue: QueueId) -> bool {
        self.take_from(frame, queue.receiving())
    }

    /// The kernel says the frame was sent by this queue. False: it never had it for that.
    #[inline]
    #[must_use]
    pub(super) fn take_sent(&self, frame: u32, queue: QueueId) -> bool {
        self.take_from(frame, queue.sending())
    }

    /// Load and store suffice: who is told of a frame by a ring is alone with it, and a second telling finds it taken.
    #[inline]
    fn take_from(&self, frame: u32, holder: u16) -> bool {
        let Some(held) = self.holders.get(frame as usize) else { return false };
        let right = held.load(Relaxed) == holder;
        if right {
            held.store(0, Relaxed);
        }
        right
    }

    /// The sockets of a queue are closed: what the kernel held is free, but for frames that a device may still use: all of a
    /// NIC's own (zero-copy), and those of packets on their way out.
    pub(super) fn end_queue(&self, queue: QueueId, zero_copy: bool) {
        let mut books = self.books();
        for (frame, held) in (0..).zip(&self.holders) {
            let holder = held.load(Relaxed);
            if holder == queue.receiving() && !zero_copy {
                held.store(0, Relaxed);
                books.free.push(frame);
            } else if holder == queue.receiving() || holder == queue.sending() {
                held.store(RETIRED, Relaxed);
                books.retired += 1;
            }
        }
        // Nobody may have what is not there any more.
        books.queues[usize::from(queue.0)] = false;
    }
}

fn map(bytes: usize) -> io::Result<(MmapRaw, bool)> {
    let whole = bytes.next_multiple_of(1 << HUGE_PAGE_BITS);
    match MmapOptions::new().len(whole).huge(Some(HUGE_PAGE_BITS)).map_anon() {
        Ok(huge) => Ok((huge.into(), true)),
        Err(_) => Ok((MmapOptions::new().len(bytes).populate().map_anon()?.into(), false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_end_at_the_frames_there_are() {
        let umem = Umem::new(100, 2048).unwrap();
        let first = umem.promise("one", 60).unwrap();
        let error = umem.promise("another", 41).err().unwrap();
        let text = "another may hold 41 frames; of 100, 60 are promised to others, 0 retired";
        assert_eq!(error.to_string(), text);
        let second = umem.promise("another", 40).unwrap();
        first.shrink(10);
        first.shrink(20);
        assert_eq!(umem.promised_frames(), 50);
        drop((first, second));
        assert!(umem.promise("all", 100).is_ok());
        assert!(umem.promise("too many", u32::MAX).is_err());
        assert!(Umem::new(100, 1024).is_err() && Umem::new(0, 2048).is_err());
    }

    #[test]
    fn a_frame_is_taken_once_and_from_its_holder() {
        let umem = Umem::new(4, 2048).unwrap();
        let [a, b] = [(); 2].map(|()| umem.new_queue().unwrap());
        umem.give_to_receive(1, a);
        umem.give_to_send(2, b);
        assert!(!umem.take_received(1, b), "another queue's");
        assert!(!umem.take_sent(1, a), "not to be sent");
        assert!(umem.take_received(1, a));
        assert!(!umem.take_received(1, a), "twice");
        assert!(!umem.take_received(4, a), "there is none");
        assert!(umem.take_sent(2, b) && !umem.take_sent(2, b));
    }

    #[test]
    fn a_closed_queue_leaves_only_what_a_device_may_use() {
        let umem = Umem::new(6, 2048).unwrap();
        let mut frames = Vec::new();
        umem.take(6, &mut frames);
        let [a, b] = [(); 2].map(|()| umem.new_queue().unwrap());
        for (frame, queue) in [(0, a), (1, a), (2, b), (3, b)] {
            umem.give_to_receive(frame, queue);
        }
        umem.give_to_send(4, b);
        umem.end_queue(a, false);
        assert_eq!((umem.free_frames(), umem.retired_frames()), (2, 0));
        umem.end_queue(b, true);
        assert_eq!((umem.free_frames(), umem.retired_frames()), (2, 3));
        assert_eq!(umem.new_queue().unwrap(), a, "ids are used again");
        assert!(!umem.take_sent(4, b), "for good");
        // Nor promised: whoever may hold three finds them.
        assert!(umem.promise("too many", 4).is_err() && umem.promise("what is there", 3).is_ok());
    }
}
