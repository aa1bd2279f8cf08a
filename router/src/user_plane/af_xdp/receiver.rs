//! An RX ring of one path on a queue of a port (P4). The worker of the path reads it, which need not be the queue's owner.
//!
//! The owner fills the queue's one fill ring. Another worker that takes packets fills it too when it is low ([`super::fill`]), so a path
//! does not wait for another worker.

use super::{
    MOST_PATHS, OpenError, QueueCounts, Statistics, Wanted,
    buffer::{Buffer, Pool},
    descriptor::{self, Received},
    open::{Opener, Polling},
    polls::Polls,
    ring::Consumer,
    sender::Slot,
    socket::{Socket, Which},
    umem::Promise,
};
use logic::plan::PortId;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// An RX ring of a path; see the head of this file. It is `Send`: a path that moves takes it along, with the packets in it.
pub struct Receiver {
    path: usize,
    ring: Consumer<2>,
    pub(super) socket: Socket,
    /// The last entry was a part of a packet that continues.
    within: bool,
    counts: QueueCounts,
    pub(super) polls: Polls,
    wanted: Wanted,
    promise: Option<Promise>,
    slot: Arc<Slot>,
}

impl Opener {
    /// Opens an RX ring for a path. Packets come into it once the XDP program redirects them to its socket ([`AsFd`]). It must be called
    /// in the port's namespace.
    ///
    /// # Errors
    /// No path can have that number, there are too few frames, or the kernel refuses.
    pub fn receiver(&self, path: usize) -> Result<Receiver, OpenError> {
        if path >= MOST_PATHS {
            return Err(OpenError::PathNumber(path));
        }
        let entries = self.wanted.rings.receive;
        let promise = self.slot.umem().promise("a path's RX ring", entries)?;
        let (socket, ring) = self.shared(Which::Receive, entries)?;
        Ok(Receiver::new(self, path, Consumer::new(ring), socket, promise))
    }
}

impl Receiver {
    pub(super) fn new(
        opener: &Opener,
        path: usize,
        ring: Consumer<2>,
        socket: Socket,
        promise: Promise,
    ) -> Receiver {
        let Opener { slot, wanted } = opener.clone();
        slot.fill.allow(wanted.rings.receive);
        let (counts, promise) = (QueueCounts::default(), Some(promise));
        let polls = match wanted.polling {
            Polling::Busy { .. } if socket.polls_busily() => Polls::of(&slot.polls, socket.napi(), false),
            _ => Polls::Not,
        };
        Receiver { path, ring, socket, within: false, counts, polls, wanted, promise, slot }
    }

    /// The path whose packets come here.
    pub fn path(&self) -> usize {
        self.path
    }

    /// The settings that the queue was opened with, such as its port and number.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    pub(super) fn port(&self) -> PortId {
        self.wanted.port
    }

    pub(super) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// The counters of packets that were taken from it.
    pub fn counts(&self) -> QueueCounts {
        self.counts
    }

    /// The kernel's counters of it.
    pub fn statistics(&self) -> io::Result<Statistics> {
        self.socket.statistics()
    }

    /// The NAPI instance that the kernel polls when this ring is asked for packets.
    pub(super) fn napi(&self) -> Option<u32> {
        self.polls.napi()
    }

    /// Whether the kernel may learn the NAPI instance from a packet.
    pub(super) fn may_learn(&self) -> bool {
        self.polls == Polls::Unknown { had_packets: false }
    }

    /// Asks the kernel again, if packets have come since. Returns whether it asked.
    pub(super) fn learn(&mut self) -> bool {
        if !self.may_learn() || self.counts.received_packets == 0 {
            return false;
        }
        self.polls = Polls::of(&self.slot.polls, self.socket.napi(), true);
        true
    }

    /// Makes the kernel poll the device.
    pub(super) fn poll(&self) {
        // `check` reports a port that is gone.
        let _ = self.socket.receive();
    }

    /// Whether a packet waits.
    #[inline]
    pub fn has_packets(&self) -> bool {
        self.ring.has_more()
    }

    /// Takes up to `most` packets, in order; returns how many.
    pub(super) fn receive(&mut self, pool: &Pool, most: usize, to: &mut impl FnMut(Buffer)) -> usize {
        let (umem, mut received, mut frames) = (pool.umem(), 0, 0);
        let count = self.ring.available(u32::try_from(most.min(pool.left())).unwrap_or(u32::MAX));
        for _ in 0..count {
            let Some(entry) = self.ring.pop() else { break };
            let found = descriptor::read(entry, umem.frame_bytes(), umem.frames(), self.within);
            self.within = matches!(found, Received::Part { more: true, .. });
            match found {
                Received::Whole { frame, start, length } if umem.take_received(frame, self.slot.id()) => {
                    (received, frames) = (received + 1, frames + 1);
                    to(pool.buffer(frame, start, length));
                }
                Received::Part { frame, more } if umem.take_received(frame, self.slot.id()) => {
                    frames += 1;
                    pool.put(frame);
                    self.counts.multi_buffer += u64::from(!more);
                }
                _ => self.counts.refused += 1,
            }
        }
        if count > 0 {
            self.ring.release();
            self.slot.fill.take(frames);
        }
        self.counts.received_packets += received as u64;
        received
    }

    /// Fills the fill ring if it is low. Called by a worker that does not own the queue, after it took packets.
    #[inline]
    pub(super) fn help(&self, pool: &Pool) {
        let fill = &self.slot.fill;
        if fill.help(pool.umem(), self.slot.id(), pool) && fill.needs_wakeup() {
            // `check` reports a port that is gone.
            let _ = self.socket.receive();
        }
    }

    /// Closes a ring to which the XDP program does not redirect any more. Packets in it are dropped; their number is returned. Its
    /// promise ends, while that of a ring that is only dropped stays.
    pub fn retire(mut self) -> u64 {
        let left = self.empty();
        let entries = self.wanted.rings.receive;
        self.slot.fill.disallow(entries);
        drop(self.promise.take());
        left
    }

    /// Moves the frames in the ring to the depot; returns how many.
    fn empty(&mut self) -> u64 {
        let (umem, mut free) = (self.slot.umem().clone(), Vec::new());
        let count = self.ring.available(u32::MAX);
        for _ in 0..count {
            let Some(entry) = self.ring.pop() else { break };
            let found = descriptor::read(entry, umem.frame_bytes(), umem.frames(), false);
            if let Received::Whole { frame, .. } | Received::Part { frame, .. } = found
                && umem.take_received(frame, self.slot.id())
            {
                free.push(frame);
            }
        }
        self.ring.release();
        let left = free.len() as u32;
        self.slot.fill.take(left);
        umem.put(&mut free, 0);
        left.into()
    }
}

impl AsFd for Receiver {
    /// For an XSKMAP, which redirects packets to it, and to sleep on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The kernel may still put packets into the ring until the socket is closed. So its promise stays until the last socket of the queue is
/// closed.
impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(promise) = self.promise.take() {
            self.slot.keep(promise);
        }
    }
}
