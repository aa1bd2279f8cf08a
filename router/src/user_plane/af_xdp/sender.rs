//! A TX ring, and the state that all sockets of a queue share.

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
/// How long packets on their way out are waited for when the last socket of a queue is closed.
const DRAIN: Duration = Duration::from_millis(100);

/// A queue in the memory, with its first socket. It is dropped with the last of its sockets, and gives back the frames that the kernel
/// had.
pub(super) struct Slot {
    umem: Arc<Umem>,
    id: QueueId,
    /// `None` while the slot is dropped.
    socket: Option<Socket>,
    device: Device,
    zero_copy: bool,
    /// Frames that all senders gave to the kernel since the queue was opened.
    sent: AtomicU64,
    /// Frames that were completed since then.
    completed: AtomicU64,
    pub(super) fill: Fill,
    pub(super) polls: QueuePolls,
    left: Mutex<Left>,
    /// Its owner is gone.
    ownerless: AtomicBool,
    completion: Mutex<Consumer<1>>,
    /// Half of the entries of the completion ring.
    half: u32,
    _promise: Promise,
}

/// What is left of the owner and the senders of a queue that are gone.
#[derive(Default)]
struct Left {
    /// Frames that were in TX rings, as far as the kernel showed. It may have taken them all the same, and complete them, or take them
    /// later.
    frames: Vec<u32>,
    /// Promises of TX rings and RX rings: the kernel has their frames until the last socket is closed.
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
        // If the mode is not known, the more expensive one is assumed for cleaning up.
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

    #[allow(clippy::too_many_arguments, reason = "all parts of a slot, in one place")]
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
        self.socket.as_ref().expect("a slot has its socket until it is dropped")
    }

    /// Checks that the port exists, is up and has a carrier. Nothing else shows that a port vanished while no packets pass.
    pub(super) fn check(&self) -> Result<(), Fault> {
        self.socket().receive()?;
        self.device.check()
    }

    pub(super) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Frames that were sent and not completed.
    pub(super) fn in_flight(&self) -> u32 {
        // Read in this order, because every completed frame was sent before.
        let completed = self.completed.load(Acquire);
        self.sent.load(Acquire).saturating_sub(completed).try_into().unwrap_or(u32::MAX)
    }

    /// The number of the queue on its port.
    pub(super) fn queue(&self) -> u32 {
        self.device.queue()
    }

    /// The namespace of its port; `None`: it could not be found out.
    pub(super) fn namespace(&self) -> Option<netns::Key> {
        self.device.namespace()
    }

    /// Whether all frames are back that can come back, as far as is known.
    fn is_quiet(&self) -> bool {
        self.in_flight() as usize <= self.left().frames.len()
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        locked(&self.left)
    }

    pub(super) fn sent(&self, frames: u32) {
        self.sent.fetch_add(frames.into(), Release);
    }

    /// Takes sent frames out of the queue's completion ring; returns how many entries were not such frames.
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

    /// Takes back sent frames, unless another thread is doing so; returns how many entries were not such frames.
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

    /// The owner of the queue goes; from now on, its senders take back sent frames.
    pub(super) fn leave(&self) {
        self.ownerless.store(true, Release);
    }

    /// The queue has an owner.
    pub(super) fn is_owned(&self) {
        self.ownerless.store(false, Release);
    }

    /// Keeps a promise until the last socket of the queue is closed.
    pub(super) fn keep(&self, promise: Promise) {
        self.left().promises.push(promise);
    }

    /// Called by a sender that does not own the queue. If the owner is gone, or makes no progress so that half of the completion ring is
    /// in flight or waits there, sent frames go to the depot.
    fn take_back(&self) {
        if self.in_flight() >= self.half || self.ownerless.load(Acquire) {
            self.take_all_back();
        }
    }

    fn take_all_back(&self) {
        let mut free = Vec::new();
        // Refused entries are not counted here.
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
        // No other socket may share the memory of this one after it is closed.
        self.umem.anchors().retain(|anchor| anchor.queue != self.id);
        // Other rings are already unmapped and other sockets closed, because they hold references to this slot. After this, the kernel
        // copies no more packets (`xsk_unbind_dev` waits for those in progress).
        drop(self.socket.take());
        if !self.zero_copy {
            let mut free = mem::take(&mut self.left().frames);
            free.retain(|frame| self.umem.take_sent(*frame, self.id));
            self.umem.put(&mut free, 0);
        }
        self.umem.end_queue(self.id, self.zero_copy);
    }
}

/// A TX ring of one worker on one queue of a port. Sent frames complete with the queue's owner, or go to the depot if there is none.
pub struct Sender {
    ring: Producer<2>,
    /// `None`: it uses the first socket of the queue.
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

    /// The kernel's counters of it.
    pub fn statistics(&self) -> io::Result<Statistics> {
        self.socket().statistics()
    }

    /// Frames that all senders of the queue gave to the kernel, and that were not taken back yet.
    pub fn in_flight(&self) -> u32 {
        self.slot.in_flight()
    }

    fn socket(&self) -> &Socket {
        self.socket.as_ref().unwrap_or_else(|| self.slot.socket())
    }

    /// The number of the queue that it sends by.
    pub fn queue(&self) -> u32 {
        self.slot.queue()
    }

    /// Frames that all senders of the queue gave to the kernel, since it was opened.
    pub(super) fn sent(&self) -> u64 {
        self.slot.sent.load(Acquire)
    }

    /// Frames among them that were completed.
    pub(super) fn completed(&self) -> u64 {
        self.slot.completed.load(Acquire)
    }

    /// Checks that packets can leave: the TX queue exists, and the port exists, is up and has a carrier.
    ///
    /// # Errors
    /// The fault.
    pub fn check(&self) -> Result<(), Fault> {
        self.has_queue()?;
        self.slot.check()
    }

    #[inline]
    pub(super) fn has_queue(&self) -> Result<(), Fault> {
        if self.slot.device.transmits() { Ok(()) } else { Err(Fault::NoTransmitQueue) }
    }

    /// The number of packets that there is room for, up to `wanted`.
    #[inline]
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        self.ring.room(wanted)
    }

    /// Puts packets of this memory into the ring while there is room; returns how many. [`Sender::kick`] makes the kernel send them.
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

    /// Takes back sent frames, if no owner of the queue does it any more.
    #[inline]
    pub(super) fn collect(&self) {
        self.slot.take_back();
    }

    /// Takes back sent frames, also if another worker owns the queue.
    pub(super) fn collect_all(&self) {
        self.slot.take_all_back();
    }

    /// Makes the kernel send the packets in the ring. Packets that it does not take now stay there.
    ///
    /// # Errors
    /// The port is down or gone.
    pub(super) fn kick(&self) -> Result<(), Fault> {
        // Older kernels update the ring late (`__xskq_cons_release`), so the loop is bounded by the number of calls.
        let mut calls = self.ring.waiting() / PER_CALL + 1;
        // In zero-copy mode the ring does not show whether a call is needed (`open::flags`).
        let wakes = self.slot.is_zero_copy() || self.ring.needs_wakeup();
        while calls > 0 && self.ring.waiting() > 0 && wakes {
            if self.socket().send()? {
                break;
            }
            calls -= 1;
        }
        Ok(())
    }

    /// Packets in the ring that the kernel has not taken, as far as it shows.
    pub fn waiting(&self) -> u32 {
        self.ring.waiting()
    }
}

/// Packets that the kernel does not take even now are left to the slot, until no socket of the queue is left. A kernel that updates the
/// ring late may have taken them, and a completion must not come for a frame that is in use again.
impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.kick();
        let frame_bytes = self.slot.umem().frame_bytes();
        let waits = self.ring.waiting() > 0;
        let mut left = self.slot.left();
        left.frames
            .extend(self.ring.unconsumed().map(|[address, _]| descriptor::frame_of(address, frame_bytes)));
        // Frames that the kernel took are covered by the promise of the completion ring.
        left.promises.extend(self.promise.take().filter(|_| waits));
    }
}
