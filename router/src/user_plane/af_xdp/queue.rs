//! The rings of one RX queue of a port that one worker owns: fill (`fill.rs`) and completion. RX rings are in `receiver.rs`.

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

/// What a queue's owner and its receivers count; what the kernel does is in [`super::Statistics`].
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
    counts: QueueCounts,
    wanted: Wanted,
    copies_because: Option<io::Error>,
    slot: Arc<Slot>,
}

impl Queue {
    pub(super) fn new(slot: Arc<Slot>, wanted: Wanted, copies_because: Option<io::Error>) -> Queue {
        Queue { counts: QueueCounts::default(), wanted, copies_because, slot }
    }

    /// What opens more rings of it, for whichever worker.
    pub fn opener(&self) -> Opener {
        Opener { slot: self.slot.clone(), wanted: self.wanted }
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

    /// Is the device polled by who asks for packets? `None`: it is not to be.
    ///
    /// # Errors
    /// Why it is not, although it is to be.
    pub fn polled(&self) -> Option<Result<(), NotPolled>> {
        let stand = || self.slot.polls.stand().unwrap_or(Err(NotPolled::NotYet));
        (self.wanted.polling != Polling::Interrupts).then(stand)
    }

    /// Of its owner; what was received its receivers count.
    pub fn counts(&self) -> QueueCounts {
        QueueCounts { starved: self.slot.fill.starved(), ..self.counts }
    }

    /// What the kernel counts of its first socket. How often the fill ring was empty is the same for all.
    pub fn statistics(&self) -> io::Result<Statistics> {
        self.slot.socket().statistics()
    }

    /// Frames that the kernel has to receive into now.
    pub fn given_frames(&self) -> u32 {
        self.slot.fill.given()
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

    /// Gives the kernel frames to receive into, several at a time. True: it is to be asked to look at them ([`Queue::ask`]).
    #[must_use]
    pub(super) fn refill(&mut self, pool: &Pool) -> bool {
        let least = (self.wanted.rings.fill / 4).min(BATCH as u32);
        self.slot.fill.fill(self.slot.umem(), self.slot.id(), pool, least);
        self.slot.fill.needs_wakeup()
    }

    /// Has the driver look at the fill ring, which any socket can ask for.
    pub(super) fn ask<'a>(&'a self, mut receivers: impl Iterator<Item = &'a Receiver>) {
        let Some(own) = receivers.find(|receiver| Arc::ptr_eq(receiver.slot(), &self.slot)) else {
            // A socket without an RX ring cannot be asked for packets, but looked at.
            let _ = socket::wait([self.slot.socket().as_fd()].into_iter(), Some(Duration::ZERO));
            return;
        };
        // A port that is gone is told of by `check`.
        let _ = own.socket.receive();
    }

    /// Takes back frames that were sent.
    pub(super) fn collect(&mut self, pool: &Pool) {
        self.counts.refused += self.slot.collect(|frame| pool.put(frame));
    }
}

/// What was sent is the slot's from now on: it waits for it, or senders that stay take it back.
impl Drop for Queue {
    fn drop(&mut self) {
        self.slot.leave();
    }
}
