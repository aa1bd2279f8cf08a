//! A TX ring, and what all sockets of a queue share.

use super::{
    Fault, Statistics,
    buffer::Packet,
    descriptor,
    device::Device,
    fill::Fill,
    polls::QueuePolls,
    ring::{Consumer, Producer},
    socket::Socket,
    umem::{Promise, QueueId, Umem},
};
use crate::{base::guard::locked, linux::netns};
use std::{
    io, mem,
    sync::{
        Arc, Mutex, MutexGuard, TryLockError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
    thread,
    time::{Duration, Instant},
};

/// Packets that the kernel sends in one call in copy mode (TX_BATCH_SIZE).
const PER_CALL: u32 = 32;
/// What is on its way out when the last socket of a queue is closed has so long to arrive.
const DRAIN: Duration = Duration::from_millis(100);

/// A queue's place in the memory, and its first socket. With the last of its sockets it goes, and gives back what the kernel had.
pub(super) struct Slot {
    umem: Arc<Umem>,
    id: QueueId,
    /// `None` while it is dropped.
    socket: Option<Socket>,
    device: Device,
    zero_copy: bool,
    /// Frames given to the kernel to be sent, by all senders, and frames that were completed, since the queue was opened.
    sent: AtomicU64,
    completed: AtomicU64,
    /// Of the fill ring.
    pub(super) fill: Fill,
    pub(super) polls: QueuePolls,
    left: Mutex<Left>,
    /// Its owner is gone.
    ownerless: AtomicBool,
    completion: Mutex<Consumer<1>>,
    /// Half of what it has room for.
    half: u32,
    _promise: Promise,
}

/// Of a queue's owner and its senders that are gone.
#[derive(Default)]
struct Left {
    /// In TX rings, as far as the kernel told then: it may have taken them all the same, and complete them, or take them yet.
    frames: Vec<u32>,
    /// Of TX rings and RX rings: the kernel has their frames until the last socket is closed.
    promises: Vec<Promise>,
}

impl Slot {
    pub(super) fn new(
        umem: &Arc<Umem>,
        id: QueueId,
        socket: Socket,
        device: Device,
        fill: Fill,
        completion: (Consumer<1>, u32),
        promise: Promise,
    ) -> io::Result<Slot> {
        let mode = socket.is_zero_copy();
        // If the kernel does not say, it goes as if it were the dearer one.
        let zero_copy = *mode.as_ref().unwrap_or(&true);
        let slot = Slot::in_mode(umem, id, socket, device, zero_copy, fill, completion, promise);
        mode.map(|_| slot)
    }

    #[cfg(test)]
    pub(super) fn fake(
        umem: &Arc<Umem>,
        socket: Socket,
        zero_copy: bool,
        fill: Fill,
        completion: (Consumer<1>, u32),
        promise: Promise,
    ) -> Slot {
        let (id, device) = (umem.new_queue().unwrap(), Device::open(0, 0).unwrap());
        Slot::in_mode(umem, id, socket, device, zero_copy, fill, completion, promise)
    }

    #[allow(clippy::too_many_arguments, reason = "all that a slot is made of, in one place")]
    fn in_mode(
        umem: &Arc<Umem>,
        id: QueueId,
        socket: Socket,
        device: Device,
        zero_copy: bool,
        fill: Fill,
        (completion, entries): (Consumer<1>, u32),
        promise: Promise,
    ) -> Slot {
        Slot {
            umem: umem.clone(),
            id,
            socket: Some(socket),
            device,
            zero_copy,
            sent: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            fill,
            polls: QueuePolls::default(),
            left: Mutex::default(),
            ownerless: AtomicBool::new(false),
            completion: Mutex::new(completion),
            half: entries / 2,
            _promise: promise,
        }
    }

    pub(super) fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    pub(super) fn id(&self) -> QueueId {
        self.id
    }

    pub(super) fn socket(&self) -> &Socket {
        self.socket.as_ref().expect("it is there until the slot is dropped")
    }

    /// Is the port there, up, and has it a carrier? One that vanishes is told by nothing else while it is quiet.
    pub(super) fn check(&self) -> Result<(), Fault> {
        self.socket().receive()?;
        self.device.check()
    }

    pub(super) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Frames that are not completed.
    pub(super) fn in_flight(&self) -> u32 {
        // In this order: none is completed that was not sent before.
        let completed = self.completed.load(Acquire);
        self.sent.load(Acquire).saturating_sub(completed).try_into().unwrap_or(u32::MAX)
    }

    /// Its number on its port.
    pub(super) fn queue(&self) -> u32 {
        self.device.queue()
    }

    /// Where its port is; `None`: that could not be told.
    pub(super) fn namespace(&self) -> Option<netns::Key> {
        self.device.namespace()
    }

    /// Is all back that may still come back, as far as is known?
    fn is_quiet(&self) -> bool {
        self.in_flight() as usize <= self.left().frames.len()
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        locked(&self.left)
    }

    pub(super) fn sent(&self, frames: u32) {
        self.sent.fetch_add(frames.into(), Release);
    }

    /// Takes frames that were sent out of the queue's completion ring; says how many entries were no such frames.
    pub(super) fn take_completed(&self, ring: &mut Consumer<1>, mut take: impl FnMut(u32)) -> u64 {
        let (mut completed, mut refused) = (0, 0_u64);
        while let Some([address]) = ring.pop() {
            let frame = descriptor::frame_of(address, self.umem.frame_bytes());
            if self.umem.take_sent(frame, self.id) {
                take(frame);
                completed += 1;
            } else {
                refused += 1;
            }
        }
        if completed + refused > 0 {
            ring.release();
            self.completed.fetch_add(completed, Release);
        }
        refused
    }

    /// Takes back what was sent, if nobody else does just now; says how many entries were no such frames.
    #[inline]
    pub(super) fn collect(&self, take: impl FnMut(u32)) -> u64 {
        if self.in_flight() == 0 {
            return 0;
        }
        match self.completion.try_lock() {
            Ok(mut ring) => self.take_completed(&mut ring, take),
            Err(TryLockError::Poisoned(ring)) => self.take_completed(&mut ring.into_inner(), take),
            Err(TryLockError::WouldBlock) => 0,
        }
    }

    /// The queue's owner goes: from now on its senders take back what they sent.
    pub(super) fn leave(&self) {
        self.ownerless.store(true, Release);
    }

    /// Somebody owns it.
    pub(super) fn is_owned(&self) {
        self.ownerless.store(false, Release);
    }

    /// May be held until the last socket of the queue is closed.
    pub(super) fn keep(&self, promise: Promise) {
        self.left().promises.push(promise);
    }

    /// By a sender that does not own the queue: where the owner is gone, or does not get on, so that half of what the completion ring has
    /// room for is on its way or waits there, what was sent goes to the depot.
    fn take_back(&self) {
        if self.in_flight() >= self.half || self.ownerless.load(Acquire) {
            self.take_all_back();
        }
    }

    fn take_all_back(&self) {
        let mut free = Vec::new();
        // Of what is no frame nobody is told.
        self.collect(|frame| free.push(frame));
        self.umem.put(&mut free, 0);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let begun = Instant::now();
        loop {
            self.take_all_back();
            if self.is_quiet() || begun.elapsed() > DRAIN {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        // Nobody shares the memory by this socket after it is closed.
        self.umem.anchors().retain(|anchor| anchor.queue != self.id);
        // Other rings are unmapped and other sockets closed already: they hold references to this. Now the kernel copies no more
        // packets (`xsk_unbind_dev` waits for those in progress).
        drop(self.socket.take());
        if !self.zero_copy {
            let mut free = mem::take(&mut self.left().frames);
            free.retain(|frame| self.umem.take_sent(*frame, self.id));
            self.umem.put(&mut free, 0);
        }
        self.umem.end_queue(self.id, self.zero_copy);
    }
}

/// A TX ring of one worker on one queue of a port. Frames that were sent complete with the queue's owner, or go to the depot if there
/// is none.
pub struct Sender {
    ring: Producer<2>,
    /// `None`: the queue's first.
    socket: Option<Socket>,
    promise: Option<Promise>,
    slot: Arc<Slot>,
}

impl Sender {
    pub(super) fn new(
        slot: Arc<Slot>,
        socket: Option<Socket>,
        ring: Producer<2>,
        promise: Option<Promise>,
    ) -> Sender {
        Sender { ring, socket, promise, slot }
    }

    pub(super) fn umem(&self) -> &Arc<Umem> {
        self.slot.umem()
    }

    /// What the kernel counts of it.
    pub fn statistics(&self) -> io::Result<Statistics> {
        self.socket().statistics()
    }

    /// Frames that all senders of the queue gave to the kernel, and that are not taken back yet.
    pub fn in_flight(&self) -> u32 {
        self.slot.in_flight()
    }

    fn socket(&self) -> &Socket {
        self.socket.as_ref().unwrap_or_else(|| self.slot.socket())
    }

    /// The queue of its port that it sends by.
    pub fn queue(&self) -> u32 {
        self.slot.queue()
    }

    /// Frames that all senders of the queue gave to the kernel, since it was opened.
    pub(super) fn sent(&self) -> u64 {
        self.slot.sent.load(Acquire)
    }

    /// Those of them that were completed.
    pub(super) fn completed(&self) -> u64 {
        self.slot.completed.load(Acquire)
    }

    /// Does what is sent here leave? By a TX queue, of a port that is there, up, and has a carrier.
    ///
    /// # Errors
    /// What of that is missing.
    pub fn check(&self) -> Result<(), Fault> {
        self.has_queue()?;
        self.slot.check()
    }

    #[inline]
    pub(super) fn has_queue(&self) -> Result<(), Fault> {
        if self.slot.device.transmits() { Ok(()) } else { Err(Fault::NoTransmitQueue) }
    }

    /// Packets there is room for, up to `wanted`.
    #[inline]
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        self.ring.room(wanted)
    }

    /// Puts packets, of this memory, into the ring while there is room for them; says how many. They are sent when the kernel is
    /// told to ([`Sender::kick`]).
    pub(super) fn push(&mut self, packets: &mut impl Iterator<Item = Packet>, most: u32) -> u32 {
        let umem = self.slot.umem();
        let count = self.ring.room(most);
        let mut pushed = 0;
        while pushed < count
            && let Some(packet) = packets.next()
        {
            umem.give_to_send(packet.frame, self.slot.id());
            let fitted = self.ring.push(descriptor::write(&packet, umem.frame_bytes()));
            debug_assert!(fitted);
            pushed += 1;
        }
        if pushed > 0 {
            // Before the kernel can complete them.
            self.slot.sent(pushed);
            self.ring.publish();
        }
        pushed
    }

    /// Takes back what was sent, where no owner of the queue does any more.
    #[inline]
    pub(super) fn collect(&self) {
        self.slot.take_back();
    }

    /// Takes back what was sent, for whoever owns the queue.
    pub(super) fn collect_all(&self) {
        self.slot.take_all_back();
    }

    /// Has the kernel send what is in the ring. What it does not take now stays there.
    ///
    /// # Errors
    /// The port is down or gone.
    pub(super) fn kick(&self) -> Result<(), Fault> {
        // Older kernels tell late what they took (`__xskq_cons_release`), so its answers count the calls, and not the ring.
        let mut calls = self.ring.waiting() / PER_CALL + 1;
        // In zero-copy mode the ring does not say (`open::flags`).
        let wakes = self.slot.is_zero_copy() || self.ring.needs_wakeup();
        while calls > 0 && self.ring.waiting() > 0 && wakes {
            if self.socket().send()? {
                break;
            }
            calls -= 1;
        }
        Ok(())
    }

    /// Packets in the ring that the kernel has not taken, as far as it tells.
    pub fn waiting(&self) -> u32 {
        self.ring.waiting()
    }
}

/// What the kernel does not take even now is the slot's, until no socket of the queue is left: a kernel that tells late may have taken
/// it, and a completion must not come for a frame that is in use again.
impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.kick();
        let frame_bytes = self.slot.umem().frame_bytes();
        let waits = self.ring.waiting() > 0;
        let mut left = self.slot.left();
        left.frames
            .extend(self.ring.unconsumed().map(|[address, _]| descriptor::frame_of(address, frame_bytes)));
        // What it took the completion ring was promised.
        left.promises.extend(self.promise.take().filter(|_| waits));
    }
}
