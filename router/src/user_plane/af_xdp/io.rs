//! Everything that a worker owns: its frames, its queues of all ports, the RX rings of its paths, and its outputs (P1).
//!
//! Rings belong to no thread ([`RingSet`]): another thread may go on with all of them as they are, or with some
//! ([`RingSet::take_path`] and others). Free frames and packets belong to one thread ([`Pool`]), so methods that take or free frames get
//! the pool as an argument.

use super::{
    Bell, Fault, MOST_PATHS, Mark, OpenError, Output, OutputCounts, Queue, Receiver, Sender, Umem,
    buffer::{Buffer, Pool},
    sender::Slot,
    socket,
};
use logic::plan::PortId;
use std::{
    collections::BTreeSet,
    io,
    ops::{Deref, DerefMut},
    os::fd::AsFd,
    sync::Arc,
    time::Duration,
};

/// Queues, RX rings and outputs, with the packets that wait in them. It is `Send`.
pub struct RingSet {
    // Fields are dropped in this order: waiting packets, TX rings, RX rings, queues.
    outputs: Vec<Output>,
    /// For each path, an RX ring of each queue.
    paths: Vec<Lane>,
    queues: Vec<Queue>,
    bell: Option<Arc<Bell>>,
    /// Some rings poll a device.
    polls: bool,
    /// The kernel may learn that others can.
    may_learn: bool,
    umem: Arc<Umem>,
}

/// A worker's rings with a pool of its own.
pub struct Io {
    rings: RingSet,
    pool: Pool,
}

/// A path's RX rings.
#[derive(Default)]
struct Lane {
    rings: Vec<Ring>,
    /// The ring that comes first next time.
    turn: usize,
}

struct Ring {
    receiver: Receiver,
    /// Another worker owns the queue.
    foreign: bool,
    /// This ring polls its device.
    polls: bool,
}

/// The rest of an output that was closed.
pub struct Closed {
    pub sender: Sender,
    pub counts: OutputCounts,
    /// Packets that waited for room, and were dropped.
    pub left: usize,
}

impl RingSet {
    /// A set without rings. [`RingSet::sleep`] ends when the bell is rung.
    pub fn new(umem: &Arc<Umem>, bell: Option<Arc<Bell>>) -> RingSet {
        let paths = (0..MOST_PATHS).map(|_| Lane::default()).collect();
        let (outputs, queues, umem) = (Vec::new(), Vec::new(), umem.clone());
        RingSet { outputs, paths, queues, bell, polls: false, may_learn: false, umem }
    }

    /// Adds a queue that this worker owns from now on. Returns its number among the queues.
    ///
    /// # Panics
    /// It belongs to another memory.
    pub fn add_queue(&mut self, pool: &Pool, queue: Queue) -> usize {
        assert!(Arc::ptr_eq(queue.slot().umem(), &self.umem), "a queue of another memory");
        queue.slot().is_owned();
        self.queues.push(queue);
        self.know_own();
        self.look(pool);
        self.queues.len() - 1
    }

    /// Removes a queue, which another worker will own. The numbers of the queues after it change.
    pub fn take_queue(&mut self, pool: &Pool, queue: usize) -> Queue {
        let mut queue = self.queues.remove(queue);
        queue.collect(pool);
        queue.slot().leave();
        self.know_own();
        queue
    }

    /// Adds an RX ring to receive from.
    ///
    /// # Panics
    /// It belongs to another memory.
    pub fn add_receiver(&mut self, receiver: Receiver) {
        assert!(Arc::ptr_eq(receiver.slot().umem(), &self.umem), "an RX ring of another memory");
        self.paths[receiver.path()].rings.push(Ring { receiver, foreign: true, polls: false });
        self.know_own();
        self.know_polled();
    }

    /// Removes a path, which another worker will have, or none. Returns its RX rings with the packets in them.
    pub fn take_path(&mut self, path: usize) -> Vec<Receiver> {
        let Some(lane) = self.paths.get_mut(path) else { return Vec::new() };
        let taken = std::mem::take(lane).rings.into_iter().map(|ring| ring.receiver).collect();
        self.know_polled();
        taken
    }

    /// Removes a path's RX ring on this queue of a port; see [`RingSet::take_path`].
    pub fn take_receiver(&mut self, path: usize, port: PortId, queue: u32) -> Option<Receiver> {
        let lane = self.paths.get_mut(path)?;
        let is_it =
            |ring: &Ring| (ring.receiver.wanted().port, ring.receiver.wanted().queue) == (port, queue);
        let at = lane.rings.iter().position(is_it)?;
        let taken = lane.rings.remove(at).receiver;
        self.know_polled();
        Some(taken)
    }

    /// Adds a TX ring, with an auxiliary queue of this many packets. Returns the number of the output.
    ///
    /// # Errors
    /// There are too few frames for the auxiliary queue.
    ///
    /// # Panics
    /// It belongs to another memory.
    pub fn add_output(&mut self, sender: Sender, auxiliary: usize) -> Result<usize, OpenError> {
        assert!(Arc::ptr_eq(sender.umem(), &self.umem), "a TX ring of another memory");
        self.outputs.push(Output::new(sender, auxiliary)?);
        Ok(self.outputs.len() - 1)
    }

    /// Removes an output. Packets that wait for room are dropped. The numbers of the outputs after it change.
    pub fn take_output(&mut self, output: usize) -> Closed {
        let output = self.outputs.remove(output);
        let (counts, left) = (output.counts(), output.waiting());
        Closed { sender: output.into_sender(), counts, left }
    }

    /// Updates which RX rings are on queues of other workers.
    fn know_own(&mut self) {
        let RingSet { paths, queues, .. } = self;
        let foreign = |slot: &Arc<Slot>| !queues.iter().any(|queue| Arc::ptr_eq(queue.slot(), slot));
        for ring in paths.iter_mut().flat_map(|lane| &mut lane.rings) {
            ring.foreign = foreign(ring.receiver.slot());
        }
    }

    /// Updates which rings poll devices: one for each NAPI instance.
    fn know_polled(&mut self) {
        let mut polled = BTreeSet::new();
        self.may_learn = false;
        for Ring { receiver, polls, .. } in self.paths.iter_mut().flat_map(|lane| &mut lane.rings) {
            *polls = receiver.napi().is_some_and(|napi| polled.insert(napi));
            self.may_learn |= receiver.may_learn();
        }
        self.polls = !polled.is_empty();
    }

    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// The RX rings of a path.
    pub fn receivers(&self, path: usize) -> impl Iterator<Item = &Receiver> {
        self.paths.get(path).into_iter().flat_map(|lane| lane.rings.iter().map(|ring| &ring.receiver))
    }

    /// Whether a packet of the path waits.
    #[inline]
    pub fn has_packets(&self, path: usize) -> bool {
        self.receivers(path).any(Receiver::has_packets)
    }

    /// Takes up to `most` packets of a path from all queues, each with the port by which it came. Returns how many (P9). Each queue may
    /// give an equal part. What some do not use the others may give, in equal parts again. A rest that cannot be divided is given in
    /// turns, which continue with the next call. Packets of a queue are in order.
    #[inline]
    pub fn receive_from(
        &mut self,
        pool: &Pool,
        path: usize,
        most: usize,
        mut to: impl FnMut(PortId, Buffer),
    ) -> usize {
        self.queues.iter_mut().for_each(|queue| queue.collect(pool));
        let Some(Lane { rings, turn }) = self.paths.get_mut(path) else { return 0 };
        let count = rings.len();
        let most = most.min(pool.left());
        let first = turn.checked_rem(count).unwrap_or(0);
        // `full`: rings that gave their whole part, and may have more packets.
        let (mut received, mut full) = (0, count);
        while full > 0 && received < most {
            let part = ((most - received) / full).max(1);
            full = 0;
            for n in (first..first + count).map(|n| n % count) {
                let receiver = &mut rings[n].receiver;
                let port = receiver.port();
                let took = receiver.receive(pool, part.min(most - received), &mut |packet| to(port, packet));
                received += took;
                full += usize::from(took == part);
                if received == most {
                    *turn = n + 1;
                    break;
                }
            }
        }
        rings.iter().filter(|ring| ring.foreign).for_each(|ring| ring.receiver.help(pool));
        self.refill(pool);
        received
    }

    /// Sends packets by an output, after all packets that it was given before. `packets` is empty then.
    ///
    /// # Errors
    /// The port is down; then packets wait as far as there is room. Or it is gone or has no such TX queue; then they are dropped and
    /// counted.
    pub fn send(&mut self, output: usize, packets: &mut Vec<Buffer>) -> Result<(), Fault> {
        self.outputs[output].send(packets)
    }

    /// Takes back sent frames, and fills fill rings, as [`RingSet::receive_from`] does too.
    pub fn look(&mut self, pool: &Pool) {
        self.queues.iter_mut().for_each(|queue| queue.collect(pool));
        self.refill(pool);
    }

    fn refill(&mut self, pool: &Pool) {
        for queue in &mut self.queues {
            if queue.refill(pool) {
                queue.ask(self.paths.iter().flat_map(|lane| &lane.rings).map(|ring| &ring.receiver));
            }
        }
    }

    /// Sends packets that wait for room, and takes back sent frames. It must be called by timer, and before sleep.
    pub fn flush(&mut self, pool: &Pool) {
        self.queues.iter_mut().for_each(|queue| queue.collect(pool));
        for output in &mut self.outputs {
            // A port that is down keeps its packets; the next `send` returns the fault.
            let _ = output.flush();
        }
    }

    /// Packets wait for room in a TX ring, or the kernel has not looked at some, so they must be flushed soon. Packets of a port that is
    /// gone do not count.
    pub fn has_waiting(&self) -> bool {
        self.outputs.iter().any(Output::has_waiting)
    }

    /// Whether all packets up to a mark of an output have left, or cannot leave ([`Output::mark`]).
    pub fn has_left(&self, output: usize, mark: &mut Mark) -> bool {
        self.outputs.get(output).is_none_or(|output| output.has_left(mark))
    }

    /// Sleeps until a packet comes or the bell rings, but at most `longest`.
    pub fn sleep(&self, longest: Option<Duration>) -> io::Result<bool> {
        let bell = self.bell.iter().map(|bell| bell.as_fd());
        let sockets = (0..MOST_PATHS).flat_map(|path| self.receivers(path)).map(AsFd::as_fd);
        socket::wait(sockets.chain(bell), longest)
    }

    /// Silences the bell until it is rung again. Returns whether it rang.
    pub fn hear(&self) -> bool {
        self.bell.as_ref().is_some_and(|bell| bell.hear())
    }

    /// Polls each device once for which that is configured. Returns whether there are any. These are the devices of all queues that this
    /// worker's paths receive from, also of queues that other workers own.
    #[inline]
    pub fn poll(&mut self) -> bool {
        if self.may_learn && self.rings_mut().fold(false, |any, ring| ring.receiver.learn() | any) {
            self.know_polled();
        }
        if self.polls {
            self.rings_mut().filter(|ring| ring.polls).for_each(|ring| ring.receiver.poll());
        }
        self.polls
    }

    fn rings_mut(&mut self) -> impl Iterator<Item = &mut Ring> {
        self.paths.iter_mut().flat_map(|lane| &mut lane.rings)
    }

    /// The faults of ports, by number of the queue. It must be called by timer, because sending does not notice a missing carrier. The
    /// queue of a port that is gone can only be dropped.
    pub fn faults(&self) -> impl Iterator<Item = (usize, Fault)> + '_ {
        self.queues.iter().enumerate().filter_map(|(n, queue)| Some((n, queue.check().err()?)))
    }

    /// The faults of ports, by number of the output. The output may be on a queue of another worker.
    pub fn output_faults(&self) -> impl Iterator<Item = (usize, Fault)> + '_ {
        self.outputs.iter().enumerate().filter_map(|(n, output)| Some((n, output.sender().check().err()?)))
    }
}

impl Io {
    /// An `Io` for the calling thread, which has at most `in_hand` packets at a time, not counting those that wait for TX rings.
    ///
    /// # Errors
    /// There are too few frames.
    pub fn new(umem: &Arc<Umem>, in_hand: usize) -> Result<Io, OpenError> {
        Ok(Io { pool: Pool::new(umem, in_hand)?, rings: RingSet::new(umem, None) })
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// See [`RingSet::add_queue`].
    pub fn add_queue(&mut self, queue: Queue) -> usize {
        self.rings.add_queue(&self.pool, queue)
    }

    /// See [`RingSet::take_queue`].
    pub fn take_queue(&mut self, queue: usize) -> Queue {
        self.rings.take_queue(&self.pool, queue)
    }

    /// See [`RingSet::receive_from`].
    pub fn receive(&mut self, path: usize, most: usize, to: &mut Vec<Buffer>) -> usize {
        self.rings.receive_from(&self.pool, path, most, |_, packet| to.push(packet))
    }

    /// See [`RingSet::look`].
    pub fn look(&mut self) {
        self.rings.look(&self.pool);
    }

    /// See [`RingSet::flush`].
    pub fn flush(&mut self) {
        self.rings.flush(&self.pool);
    }
}

impl Deref for Io {
    type Target = RingSet;

    fn deref(&self) -> &RingSet {
        &self.rings
    }
}

impl DerefMut for Io {
    fn deref_mut(&mut self) -> &mut RingSet {
        &mut self.rings
    }
}
