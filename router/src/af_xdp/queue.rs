//! The rings of one RX queue of a port that one thread owns: fill, completion, and an RX ring for each path.

use super::{
    Fault, MOST_PATHS, OpenError, Statistics, Wanted,
    buffer::{Buffer, Pool},
    descriptor::{self, Received},
    open::Polling,
    ring::{Consumer, Producer},
    sender::Slot,
    socket::{self, Socket, Which},
    umem::{BATCH, Promise},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

/// What a queue's owner counts; what the kernel does is in [`Statistics`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    pub received_packets: u64,
    /// Packets in several frames, which are not asked for.
    pub multi_buffer: u64,
    /// Entries of RX and completion ring that were no frame which the kernel had from this queue.
    pub refused: u64,
    /// Times that the fill ring was not filled for want of frames. With frames promised this does not happen.
    pub starved: u64,
}

/// An RX queue of a port, owned by one worker.
pub struct Queue {
    /// By number.
    paths: Vec<Option<Path>>,
    fill: Producer<1>,
    /// `None` while it is dropped.
    completion: Option<Consumer<1>>,
    /// Frames that the kernel has to receive into, and that it may have.
    given: u32,
    allowed: u32,
    counts: QueueCounts,
    wanted: Wanted,
    copies_because: Option<io::Error>,
    slot: Arc<Slot>,
}

/// A path's RX ring.
struct Path {
    ring: Consumer<2>,
    socket: Socket,
    /// The last entry was part of a packet that goes on.
    within: bool,
    promise: Promise,
}

impl Queue {
    pub(super) fn new(
        slot: Arc<Slot>,
        wanted: Wanted,
        fill: Producer<1>,
        completion: Consumer<1>,
        copies_because: Option<io::Error>,
    ) -> Queue {
        let allowed = wanted.rings.fill;
        let (paths, counts, completion) = (Vec::new(), QueueCounts::default(), Some(completion));
        Queue { paths, fill, completion, given: 0, allowed, counts, wanted, copies_because, slot }
    }

    /// Gives a path an RX ring. Packets come into it once the XDP program redirects them to [`Queue::path_fd`]. To be called in the
    /// port's namespace.
    ///
    /// # Errors
    /// It has one; no path has that number; too few frames; or the kernel refuses.
    pub fn add_path(&mut self, path: usize) -> Result<(), OpenError> {
        let (queue, entries) = (self.wanted.queue, self.wanted.rings.receive);
        if path >= MOST_PATHS {
            return Err(OpenError::PathNumber(path));
        }
        if self.paths.get(path).is_some_and(Option::is_some) {
            return Err(OpenError::PathTaken { path, queue });
        }
        let promise = self.slot.umem().promise("a path's RX ring", entries)?;
        let (socket, ring) = self.shared(Which::Receive, entries)?;
        self.paths.resize_with(self.paths.len().max(path + 1), || None);
        self.paths[path] = Some(Path { ring: Consumer::new(ring), socket, within: false, promise });
        self.allowed += entries;
        Ok(())
    }

    /// A path whose ring is filled by a test.
    #[cfg(test)]
    pub(super) fn fake_path(&mut self, path: usize, ring: Consumer<2>, socket: Socket) {
        let entries = self.wanted.rings.receive;
        let promise = self.slot.umem().promise("a path's RX ring", entries).unwrap();
        self.paths.resize_with(self.paths.len().max(path + 1), || None);
        self.paths[path] = Some(Path { ring, socket, within: false, promise });
        self.allowed += entries;
    }

    /// The socket to redirect a path's packets to, by an XSKMAP.
    pub fn path_fd(&self, path: usize) -> Option<BorrowedFd<'_>> {
        self.paths.get(path)?.as_ref().map(|path| path.socket.as_fd())
    }

    /// What it was opened as.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// The driver puts packets into our memory, and takes them from there.
    pub fn is_zero_copy(&self) -> bool {
        self.slot.is_zero_copy()
    }

    /// Why it is not, although that was wanted.
    pub fn copies_because(&self) -> Option<&io::Error> {
        self.copies_because.as_ref()
    }

    pub fn counts(&self) -> QueueCounts {
        self.counts
    }

    /// Frames that the kernel has to receive into now.
    pub fn given_frames(&self) -> u32 {
        self.given
    }

    /// What the kernel counts of a path's RX ring.
    pub fn statistics(&self, path: usize) -> Option<io::Result<Statistics>> {
        self.paths.get(path)?.as_ref().map(|path| path.socket.statistics())
    }

    /// Is the port there, up, and has it a carrier?
    ///
    /// # Errors
    /// What of that is missing.
    pub fn check(&self) -> Result<(), Fault> {
        self.slot.check()
    }

    pub(super) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Takes up to `most` packets of a path, in order.
    pub(super) fn receive(&mut self, path: usize, pool: &Pool, most: usize, to: &mut Vec<Buffer>) -> usize {
        let before = to.len();
        if let Some(Some(path)) = self.paths.get_mut(path) {
            let umem = pool.umem();
            let count = path.ring.available(u32::try_from(most.min(pool.left())).unwrap_or(u32::MAX));
            for _ in 0..count {
                let Some(entry) = path.ring.pop() else { break };
                let received = descriptor::read(entry, umem.frame_bytes(), umem.frames(), path.within);
                path.within = matches!(received, Received::Part { more: true, .. });
                match received {
                    Received::Whole { frame, start, length } if umem.take_received(frame, self.slot.id()) => {
                        self.given -= 1;
                        to.push(pool.buffer(frame, start, length));
                    }
                    Received::Part { frame, more } if umem.take_received(frame, self.slot.id()) => {
                        self.given -= 1;
                        pool.put(frame);
                        self.counts.multi_buffer += u64::from(!more);
                    }
                    _ => self.counts.refused += 1,
                }
            }
            if count > 0 {
                path.ring.release();
            }
        }
        let received = to.len() - before;
        self.counts.received_packets += received as u64;
        received
    }

    /// Gives the kernel frames to receive into, several at a time.
    pub(super) fn refill(&mut self, pool: &Pool) {
        let entries = self.wanted.rings.fill;
        let room = self.fill.room((self.allowed - self.given).min(entries));
        if room >= (entries / 4).min(BATCH as u32) {
            let (umem, frame_bytes) = (self.slot.umem(), u64::from(self.slot.umem().frame_bytes()));
            for _ in 0..room {
                let Some(frame) = pool.take() else {
                    self.counts.starved += 1;
                    break;
                };
                umem.give_to_receive(frame, self.slot.id());
                let fitted = self.fill.push([u64::from(frame) * frame_bytes]);
                debug_assert!(fitted);
                self.given += 1;
            }
            self.fill.publish();
        }
        if self.fill.needs_wakeup() {
            self.ask();
        }
    }

    /// Has the driver look at the fill ring, which any socket can ask for, or be polled. The kernel polls by a socket whose NAPI instance it
    /// knows: of all from when they are bound on, or, on older ones, of those that had a packet (`sk_mark_napi_id_once_xdp`). So all ask.
    pub(super) fn ask(&self) {
        let mut sockets = self.paths.iter().flatten().map(|path| &path.socket);
        let Some(first) = sockets.next() else {
            // A socket without an RX ring cannot be asked for packets, but looked at.
            let _ = socket::wait([self.slot.socket().as_fd()].into_iter(), Duration::ZERO);
            return;
        };
        // A port that is gone is told of by `check`.
        let _ = first.receive();
        if self.wanted.polling != Polling::Interrupts {
            sockets.for_each(|socket| _ = socket.receive());
        }
    }

    /// Takes back frames that were sent.
    pub(super) fn collect(&mut self, pool: &Pool) {
        if self.slot.in_flight() > 0
            && let Some(ring) = &mut self.completion
        {
            self.counts.refused += self.slot.take_completed(ring, |frame| pool.put(frame));
        }
    }

    /// Sockets to sleep on.
    pub(super) fn sockets(&self, paths: &[usize]) -> impl Iterator<Item = BorrowedFd<'_>> {
        paths.iter().filter_map(|path| self.path_fd(*path))
    }
}

/// What was sent is the slot's from now on: it waits for it, or senders that stay take it back. So is what may be held: the kernel has
/// frames to receive into until the last socket is closed.
impl Drop for Queue {
    fn drop(&mut self) {
        let promises = self.paths.drain(..).flatten().map(|path| path.promise).collect();
        self.slot.leave(self.completion.take(), promises);
    }
}
