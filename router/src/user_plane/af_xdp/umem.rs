//! Memory for packets: frames, the holder of each, and the free ones.

use super::OpenError;
use crate::base::guard::locked;
use memmap2::{MmapOptions, MmapRaw};
use std::{
    io,
    os::fd::RawFd,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

/// Frames that move between a pool and the depot at a time.
pub(super) const BATCH: usize = 64;
const HUGE_PAGE_BITS: u8 = 21;
/// The most queues. The id 0 of a holder is user space; a queue has two ids, one for frames to receive into and one for frames to send.
const QUEUES: usize = (u16::MAX as usize - 2) / 2;
const RETIRED: u16 = u16::MAX;

/// The memory for all packets of the user plane. Its frames are numbered. It lives as long as anything may use one.
pub struct Umem {
    memory: MmapRaw,
    frame_bytes: u32,
    frames: u32,
    huge_pages: bool,
    holders: Box<[AtomicU16]>,
    books: Mutex<Books>,
    anchors: Mutex<Vec<Anchor>>,
}

/// The free frames, and the numbers of promised and retired ones.
struct Books {
    free: Vec<u32>,
    promised: u32,
    retired: u32,
    /// Whether an id is in use.
    queues: Vec<bool>,
}

/// A bound socket whose memory other sockets can share. Its descriptor is open as long as it is listed.
pub(super) struct Anchor {
    pub queue: QueueId,
    pub zero_copy: bool,
    pub fd: RawFd,
}

/// Identifies a queue among those of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueId(u16);

impl QueueId {
    /// The holder of frames that were given to receive into.
    fn receiving(self) -> u16 {
        self.0 * 2 + 1
    }
    /// The holder of frames that were given to be sent.
    fn sending(self) -> u16 {
        self.0 * 2 + 2
    }
}

/// Its owner may hold this many frames.
pub(super) struct Promise {
    umem: Arc<Umem>,
    frames: u32,
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.umem.books().promised -= self.frames;
    }
}

impl Umem {
    /// Memory for `frames` of 2048 or 4096 bytes, in huge pages if the system has free ones.
    ///
    /// # Errors
    /// There is no memory, or the kernel does not accept these sizes.
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

    /// Free frames that no pool has. Without pools and queues, these are all frames except the retired ones.
    pub fn free_frames(&self) -> u32 {
        self.books().free.len() as u32
    }

    /// Frames that all queues and pools together may hold.
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

    /// The sockets that share the memory. The lock is held while one of them is used.
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
        Ok(Promise { umem: self.clone(), frames: needed })
    }

    /// Moves up to `most` free frames to a pool.
    pub(super) fn take(&self, most: usize, to: &mut Vec<u32>) {
        let free = &mut self.books().free;
        let from = free.len().saturating_sub(most);
        to.extend(free.drain(from..));
    }

    /// Takes free frames back from a pool, from index `from` on.
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

    /// The frame is given to the kernel, to receive a packet of this queue.
    #[inline]
    pub(super) fn give_to_receive(&self, frame: u32, queue: QueueId) {
        self.holders[frame as usize].store(queue.receiving(), Relaxed);
    }

    /// The frame is given to the kernel, to be sent by this queue.
    #[inline]
    pub(super) fn give_to_send(&self, frame: u32, queue: QueueId) {
        self.holders[frame as usize].store(queue.sending(), Relaxed);
    }

    /// The kernel reports that the frame has a packet of this queue. False: the frame was not given to it for that.
    #[inline]
    #[must_use]
    pub(super) fn take_received(&self, frame: u32, queue: QueueId) -> bool {
        self.take_from(frame, queue.receiving())
    }

    /// The kernel reports that this queue sent the frame. False: the frame was not given to it for that.
    #[inline]
    #[must_use]
    pub(super) fn take_sent(&self, frame: u32, queue: QueueId) -> bool {
        self.take_from(frame, queue.sending())
    }

    /// A load and a store suffice: a frame is in the ring of one thread, and a second entry for it finds it taken.
    #[inline]
    fn take_from(&self, frame: u32, holder: u16) -> bool {
        let Some(held) = self.holders.get(frame as usize) else { return false };
        let right = held.load(Relaxed) == holder;
        if right {
            held.store(0, Relaxed);
        }
        right
    }

    /// The sockets of a queue are closed, so the frames that the kernel held are free. Frames that a device may still use are retired:
    /// all frames of a NIC in zero-copy mode, and those of packets on their way out.
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
        // The id may be used again.
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
    fn promises_do_not_exceed_the_memory() {
        let umem = Umem::new(100, 2048).unwrap();
        let first = umem.promise("one", 60).unwrap();
        let error = umem.promise("another", 41).err().unwrap();
        let text = "another needs 41 frames; of 100, 60 are promised to others and 0 retired";
        assert_eq!(error.to_string(), text);
        let second = umem.promise("another", 40).unwrap();
        assert_eq!(umem.promised_frames(), 100);
        drop(first);
        assert_eq!(umem.promised_frames(), 40);
        drop(second);
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
        assert!(!umem.take_received(1, b), "it belongs to another queue");
        assert!(!umem.take_sent(1, a), "it was not given to be sent");
        assert!(umem.take_received(1, a));
        assert!(!umem.take_received(1, a), "twice");
        assert!(!umem.take_received(4, a), "there is no such frame");
        assert!(umem.take_sent(2, b) && !umem.take_sent(2, b));
    }

    #[test]
    fn a_closed_queue_retires_only_frames_that_a_device_may_use() {
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
        assert!(!umem.take_sent(4, b), "it is retired for good");
        // Retired frames are not promised either: a promise of three can be kept.
        assert!(umem.promise("too many", 4).is_err() && umem.promise("the rest", 3).is_ok());
    }
}
