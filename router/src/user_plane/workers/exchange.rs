//! Connects [`logic::worker`] to AF_XDP: where packets come from, and where they go.
//!
//! Packets that leave are collected by port during a turn, and sent together. The fates of a path's packets are counted here
//! and not in its chain, which may be replaced.

use super::{
    behind::{Behind, Flow, may_be_forwarded_soon},
    clock::Clock,
    counters::Counter,
    plan::Tables,
    up::Gate,
};
use crate::user_plane::af_xdp::{Buffer, MOST_PATHS, Pool, RingSet};
use logic::{
    elements::{Loss, Verdict},
    paths::{Counters, PathId, Resource, Used},
    plan::{PortId, RouterId},
    reason::Reason,
    tables::{Arrivals, Ingress},
    worker::{Exchange, Frame},
};
use std::{ops::Range, sync::Arc};

/// The most ports.
pub(super) const PORTS: usize = 64;

/// A router without routes. It has the last number, which only the 256th router would have.
const NOBODY: RouterId = RouterId::MAX;

/// A packet, and where and when it came in.
pub(super) struct Arrived {
    buffer: Buffer,
    ingress: Ingress,
    came_ns: u64,
}

impl Frame for Arrived {
    #[inline]
    fn data(&self) -> &[u8] {
        self.buffer.data()
    }
    #[inline]
    fn parts_mut(&mut self) -> (&mut [u8], Range<usize>) {
        self.buffer.parts_mut()
    }
    #[inline]
    fn set_range(&mut self, data: Range<usize>) {
        // Elements cannot leave the frame; if one did, the packet would stay as it was.
        let fits = self.buffer.set_range(data);
        debug_assert!(fits);
    }
    #[inline]
    fn ingress(&self) -> Ingress {
        self.ingress
    }
    #[inline]
    fn came_ns(&self) -> u64 {
        self.came_ns
    }
}

/// What happened to a path's packets since it was first planned.
#[derive(Clone)]
pub(super) struct Fates {
    pub packets: u64,
    pub out: [u64; PORTS],
    pub up: [u64; Reason::COUNT],
    pub dropped: [u64; Loss::ALL.len()],
    /// In hand when the chain panicked.
    pub worker_panicked: u64,
    /// Came while the path was stopped, and were dropped.
    pub stopped: u64,
    /// Left in RX rings that were closed.
    pub left: u64,
    /// Packets that found an RX ring full, of rings that are closed now.
    pub ring_full_before: u64,
    /// Use and runs on earlier workers.
    pub cycles_before: u64,
    pub taken_before: Used,
    pub runs_before: u64,
}

impl Default for Fates {
    fn default() -> Fates {
        Fates {
            packets: 0,
            out: [0; PORTS],
            up: [0; Reason::COUNT],
            dropped: [0; Loss::ALL.len()],
            worker_panicked: 0,
            stopped: 0,
            left: 0,
            ring_full_before: 0,
            cycles_before: 0,
            taken_before: Used::default(),
            runs_before: 0,
        }
    }
}

/// What a worker has besides its rings. It belongs to the thread that has the rings.
pub(super) struct Desk {
    pub tables: Arc<dyn Tables>,
    pub clock: Clock,
    pub gate: Gate,
    /// By port: the number of the output.
    outputs: [Option<usize>; PORTS],
    /// Bit p: `outputs[p]` is there.
    ports: u64,
    /// By port: the router of packets that are for no interface.
    owners: [RouterId; PORTS],
    /// By path.
    pub fates: Vec<Fates>,
    /// Packets that were received and have no fate yet.
    pub in_hand: u64,
    now_ns: u64,
}

/// What belongs to one thread for good.
pub(super) struct Bound {
    pub pool: Pool,
    /// By port: packets that leave after this turn.
    out: Vec<Vec<Buffer>>,
    /// Bit p: `out[p]` has some.
    leaves: u64,
    /// Packets that wait for earlier ones, with their paths and ports.
    behind: Behind<(PathId, PortId, Buffer)>,
    /// The CPU's counter, if a resource that it measures is shared or may be.
    counter: Option<Counter>,
}

impl Bound {
    pub fn new(pool: Pool, counter: Option<Counter>) -> Bound {
        Bound {
            pool,
            out: (0..PORTS).map(|_| Vec::new()).collect(),
            leaves: 0,
            behind: Behind::default(),
            counter,
        }
    }

    /// The resources that the counter and the clock measure.
    pub fn counted(&self) -> Counters {
        let misses = Counters::CYCLES.with(Resource::CacheMisses).with(Resource::Memory);
        if self.counter.is_some() { misses } else { Counters::CYCLES }
    }

    /// Whether packets wait for earlier ones.
    pub fn has_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Lets packets leave after this turn if they need not wait for earlier ones any more.
    pub fn release(&mut self, desk: &mut Desk) {
        let (done, now_ns) = (desk.gate.done(), desk.clock.ns(desk.clock.cycles()));
        while let Some((path, port, buffer)) = self.behind.take(done, now_ns) {
            self.leave_by(desk, path, port, buffer);
        }
    }

    /// Lets the path's packets leave after this turn, or those of all paths.
    pub fn release_all(&mut self, desk: &mut Desk, path: Option<PathId>) {
        let next = |behind: &mut Behind<_>| match path {
            Some(path) => behind.take_of(path),
            None => behind.take_any(),
        };
        while let Some((path, port, buffer)) = next(&mut self.behind) {
            self.leave_by(desk, path, port, buffer);
        }
    }

    /// Lets a packet leave after this turn.
    #[inline]
    fn leave_by(&mut self, desk: &mut Desk, path: PathId, port: PortId, buffer: Buffer) {
        let Some(fates) = desk.fates.get_mut(usize::from(path)) else { return };
        match (desk.outputs.get(usize::from(port)), self.out.get_mut(usize::from(port))) {
            (Some(Some(_)), Some(out)) => {
                fates.out[usize::from(port)] += 1;
                out.push(buffer);
                self.leaves |= 1 << port;
            }
            _ => fates.dropped[Loss::NoPort as usize] += 1,
        }
    }

    /// Lets a packet leave after this turn, or later if it would overtake one that the kernel has not got yet.
    #[cold]
    fn leave_in_order(&mut self, desk: &mut Desk, path: PathId, port: PortId, buffer: Buffer) {
        let (done, now_ns) = (desk.gate.done(), desk.now_ns);
        self.behind.forget(done);
        if !self.behind.concerns(path) {
            return self.leave_by(desk, path, port, buffer);
        }
        if self.behind.is_full(path) {
            self.release(desk);
        }
        if self.behind.is_full(path) {
            self.release_all(desk, Some(path));
        }
        let flow = Flow::of_frame(path, buffer.data());
        if let Some((path, port, buffer)) = self.behind.hold(flow, done, now_ns, (path, port, buffer)) {
            self.leave_by(desk, path, port, buffer);
        }
    }

    /// Gives a packet to the kernel. Packets of its flow that wait are released first. Later packets of the
    /// flow wait for it only if the worker may soon forward them itself.
    #[cold]
    fn go_up(&mut self, desk: &mut Desk, path: PathId, frame: &Arrived, reason: Reason, is_own: bool) {
        let data = frame.data();
        let flow = if is_own { Flow::of_packet(path, data) } else { Flow::of_frame(path, data) };
        while let Some((path, port, buffer)) = self.behind.take_flow(flow) {
            self.leave_by(desk, path, port, buffer);
        }
        let is_queued = desk.gate.give(reason, is_own, frame.ingress, desk.now_ns, data);
        if is_queued && may_be_forwarded_soon(reason) {
            self.behind.note(flow, desk.gate.queued(), desk.gate.done());
        }
    }

    /// Sends the packets that leave after a turn.
    #[inline]
    pub fn send(&mut self, desk: &Desk, io: &mut RingSet) {
        while self.leaves != 0 {
            let port = self.leaves.trailing_zeros() as usize;
            self.leaves &= self.leaves - 1;
            if let (Some(Some(output)), Some(packets)) = (desk.outputs.get(port), self.out.get_mut(port)) {
                // The output's counters show what is lost; `RingSet::output_faults` reports what is wrong with its port.
                let _ = io.send(*output, packets);
            }
        }
    }
}

impl Desk {
    pub fn new(tables: Arc<dyn Tables>, clock: Clock, gate: Gate) -> Desk {
        Desk {
            tables,
            clock,
            gate,
            outputs: [None; PORTS],
            ports: 0,
            owners: [NOBODY; PORTS],
            fates: (0..MOST_PATHS).map(|_| Fates::default()).collect(),
            in_hand: 0,
            now_ns: 0,
        }
    }

    pub fn add_output(&mut self, port: PortId, output: usize) {
        if let Some(place) = self.outputs.get_mut(usize::from(port)) {
            *place = Some(output);
            self.ports |= 1 << port;
        }
    }

    /// Sets the router of packets that are for no interface, by port; other ports have none.
    pub fn set_owners(&mut self, owners: impl IntoIterator<Item = (PortId, Option<RouterId>)>) {
        self.owners = [NOBODY; PORTS];
        for (port, router) in owners {
            if let Some(owner) = self.owners.get_mut(usize::from(port)) {
                *owner = router.unwrap_or(NOBODY);
            }
        }
    }

    /// Bit p: port p can transmit.
    #[inline]
    pub fn ports(&self) -> u64 {
        self.ports
    }

    /// Removes a port's output and returns its number. All later numbers decrease by 1.
    pub fn take_output(&mut self, port: PortId) -> Option<usize> {
        let at = self.outputs.get_mut(usize::from(port))?.take()?;
        self.ports &= !(1 << port);
        self.outputs.iter_mut().flatten().filter(|other| **other > at).for_each(|other| *other -= 1);
        Some(at)
    }

    /// The number of the port's output.
    pub fn output(&self, port: PortId) -> Option<usize> {
        self.outputs.get(usize::from(port)).copied().flatten()
    }

    pub fn outputs(&self) -> impl Iterator<Item = (PortId, usize)> {
        (0..).zip(&self.outputs).filter_map(|(port, output)| Some((port, (*output)?)))
    }
}

/// Everything that a turn needs.
pub(super) struct Hands<'a> {
    pub io: &'a mut RingSet,
    pub desk: &'a mut Desk,
    pub bound: &'a mut Bound,
}

impl Exchange for Hands<'_> {
    type Frame = Arrived;

    #[inline]
    fn ports(&self) -> u64 {
        self.desk.ports
    }

    fn read_counters(&mut self) -> Used {
        self.bound.counter.as_ref().map(Counter::used).unwrap_or_default()
    }

    #[inline]
    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Arrived>) {
        let Desk { tables, clock, in_hand, now_ns, fates, owners, .. } = &mut *self.desk;
        let (memory, mut arrivals) = (tables.memory(), Arrivals::default());
        *now_ns = clock.ns(clock.cycles());
        let came_ns = *now_ns;
        let count = self.io.receive_from(&self.bound.pool, usize::from(path), most, |port, buffer| {
            let mut ingress = arrivals.ingress(memory, port, buffer.data());
            if ingress.interface == 0 {
                ingress.router = owners.get(usize::from(port)).copied().unwrap_or(NOBODY);
            }
            to.push(Arrived { buffer, ingress, came_ns });
        });
        *in_hand += count as u64;
        if let Some(fates) = fates.get_mut(usize::from(path)) {
            fates.packets += count as u64;
        }
    }

    #[inline]
    fn settle(&mut self, path: PathId, frame: Arrived, verdict: Verdict) {
        let Hands { desk, bound, .. } = self;
        desk.in_hand -= 1;
        let (reason, is_own) = match verdict {
            Verdict::To(port) if desk.gate.has_waiting() || bound.has_behind() => {
                return bound.leave_in_order(desk, path, port, frame.buffer);
            }
            Verdict::To(port) => return bound.leave_by(desk, path, port, frame.buffer),
            Verdict::Up(reason) => (reason, false),
            Verdict::Own(reason) => (reason, true),
            Verdict::Drop(loss) => {
                return if let Some(fates) = desk.fates.get_mut(usize::from(path)) {
                    fates.dropped[loss as usize] += 1;
                };
            }
        };
        if let Some(fates) = desk.fates.get_mut(usize::from(path)) {
            fates.up[reason as usize] += 1;
        }
        bound.go_up(desk, path, &frame, reason, is_own);
    }

    #[inline]
    fn leave(&mut self) {
        if self.bound.has_behind() {
            self.bound.release(self.desk);
        }
        self.bound.send(self.desk, self.io);
    }
}

/// Ports by name, as chains name them.
pub(super) type PortNames = Arc<std::collections::BTreeMap<String, PortId>>;
/// Names of ports, also of those that are no longer planned, because counters outlive plans.
pub(super) type PortsByNumber = Arc<std::collections::BTreeMap<PortId, String>>;
