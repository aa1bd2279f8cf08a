//! The rings of an RX queue of a port that one worker owns: fill (`fill.rs`) and completion. RX rings are in `receiver.rs`.

use super::{
    Fault, Statistics, Wanted,
    buffer::Pool,
    open::{Opener, Polling},
    polls::NotPolled,
    receiver::Receiver,
    sender::Slot,
    socket,
    umem::BATCH,
};
use std::{io, os::fd::AsFd, sync::Arc, time::Duration};

/// Counters of a queue's owner and its receivers. [`super::Statistics`] has those of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    pub received_packets: u64,
    /// Packets in several frames, which we do not ask for.
    pub multi_buffer: u64,
    /// Entries of the RX and completion ring with a frame that this queue had not given to the kernel.
    pub refused: u64,
    /// Times that the fill ring was not filled because no frame was free. Promises prevent this.
    pub starved: u64,
}

/// An RX queue of a port, owned by one worker.
pub struct Queue {
    counts: QueueCounts,
    wanted: Wanted,
    copies_because: Option<io::Error>,
    slot: Arc<Slot>,
}

impl Queue {
    pub(super) fn new(slot: Arc<Slot>, wanted: Wanted, copies_because: Option<io::Error>) -> Queue {
        Queue { counts: QueueCounts::default(), wanted, copies_because, slot }
    }

    /// Opens more rings of the queue, for any worker.
    pub fn opener(&self) -> Opener {
        Opener { slot: self.slot.clone(), wanted: self.wanted }
    }

    /// The settings that it was opened with.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// The driver reads and writes packets in our memory, without copies.
    pub fn is_zero_copy(&self) -> bool {
        self.slot.is_zero_copy()
    }

    /// Why packets are copied, although zero-copy mode was wanted.
    pub fn copies_because(&self) -> Option<&io::Error> {
        self.copies_because.as_ref()
    }

    /// Whether workers poll the device. `None`: polling is not wanted.
    ///
    /// # Errors
    /// Why they do not, although polling is wanted.
    pub fn polled(&self) -> Option<Result<(), NotPolled>> {
        let stand = || self.slot.polls.stand().unwrap_or(Err(NotPolled::NotYet));
        (self.wanted.polling != Polling::Interrupts).then(stand)
    }

    /// The owner's counters; received packets are counted by the receivers.
    pub fn counts(&self) -> QueueCounts {
        QueueCounts { starved: self.slot.fill.starved(), ..self.counts }
    }

    /// The kernel's counters of its first socket. `fill_ring_empty` is the same for all sockets of the queue.
    pub fn statistics(&self) -> io::Result<Statistics> {
        self.slot.socket().statistics()
    }

    /// Frames that the kernel has to receive into now.
    pub fn given_frames(&self) -> u32 {
        self.slot.fill.given()
    }

    /// Checks that the port exists, is up and has a carrier.
    ///
    /// # Errors
    /// The fault.
    pub fn check(&self) -> Result<(), Fault> {
        self.slot.check()
    }

    pub(super) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Gives the kernel frames to receive into, several at a time. True: the kernel must be asked to look at them ([`Queue::ask`]).
    #[must_use]
    pub(super) fn refill(&mut self, pool: &Pool) -> bool {
        let least = (self.wanted.rings.fill / 4).min(BATCH as u32);
        self.slot.fill.fill(self.slot.umem(), self.slot.id(), pool, least);
        self.slot.fill.needs_wakeup()
    }

    /// Makes the driver look at the fill ring. Any socket of the queue can do this.
    pub(super) fn ask<'a>(&'a self, mut receivers: impl Iterator<Item = &'a Receiver>) {
        let Some(own) = receivers.find(|receiver| Arc::ptr_eq(receiver.slot(), &self.slot)) else {
            // A socket without an RX ring cannot be asked for packets, but it can be polled.
            let _ = socket::wait([self.slot.socket().as_fd()].into_iter(), Some(Duration::ZERO));
            return;
        };
        // `check` reports a port that is gone.
        let _ = own.socket.receive();
    }

    /// Takes back sent frames.
    pub(super) fn collect(&mut self, pool: &Pool) {
        self.counts.refused += self.slot.collect(|frame| pool.put(frame));
    }
}

/// Sent frames are left to the slot: it waits for them, or the remaining senders take them back.
impl Drop for Queue {
    fn drop(&mut self) {
        self.slot.leave();
    }
}
