//! A worker of the user plane. It picks a path, runs the path's packets through its chain, and sends each packet where
//! its verdict says.
//!
//! ```text
//!   Exchange::receive ──► up to a burst of the path's frames, which the worker owns now
//!        ▲                       │ lent for the run
//!  Scheduler::pick           Chain::run
//!        ▲                       │ a verdict each
//!  Scheduler::charge ◄── Exchange::settle: to a port, up, or gone
//! ```
//!
//! [`Worker::turn`] is one round of this, without I/O and without a clock. Packets come from and go to an [`Exchange`],
//! and the caller gives the meter that measures runs. [`Rings`] is the ingress if no device does this: it classifies
//! frames ([`crate::paths::class`]) into a bounded ring for each path. So a path over its share fills only its own ring
//! (P2, P4).
//!
//! # A run that panics
//! The schedule and the chains ([`Turns`]) are separate from the things that the worker holds during a run
//! ([`InHand`]): packets, and their chain. So a run has a beginning, a middle and an end ([`Turns::begin`],
//! [`InHand::run`], [`Turns::end`]). Only the middle calls elements, and it does not use the state of all paths. If it
//! panics, the worker goes on with that state, and one path gets another chain.
//!
//! # When
//! An element gets the time at which the packets of its run arrived ([`Frame::came_ns`]). Packets that arrived together
//! run together. All packets of a burst do if no element of the chain uses the time ([`Chain::asks_when`]). So the fate
//! of a packet depends on the earlier packets of its path and their times, not on how they were divided into runs.
//!
//! # What a run is charged
//! The charge is the meter's value from the end of the previous run to the end of this one. It includes the pick, and
//! everything that the caller did in between, unless that is not for paths ([`Turns::pause`]). A reading takes about
//! ten nanoseconds per run. Without it, small runs would be charged less than they take. The cost of a path's packets
//! is learnt from some of them (P6).
//!
//! If I/O is counted ([`Settings::counted`]), it is the bytes that were received and those that left by ports, for
//! every run. The exchange's counters are read around the runs that the scheduler wants measured (P7). Counting bytes
//! takes about 0.7 ns a packet. So if nobody shares them, it is done in one of 16 measured runs of each path, because
//! placing paths needs their profiles (P10).

mod rings;
#[cfg(test)]
mod tests;

pub use rings::{NotTaken, Rings};

use crate::{
    elements::{Batch, Chain, Loss, MOST_PACKETS, Now, Verdict},
    paths::{
        Account, Cost, Counters, Handle, NotCounted, Path, PathId, Refused, Resource, Run, Scheduler,
        Settings, Used,
    },
    plan::RouterId,
    tables::Ingress,
};
use std::ops::{Deref, DerefMut, Range};

/// A packet in memory of its own, up to 65,535 bytes including the room before and after it.
pub trait Frame {
    /// The data.
    fn data(&self) -> &[u8];
    /// All of the memory, and the position of the data in it.
    fn parts_mut(&mut self) -> (&mut [u8], Range<usize>);
    /// Sets the position of the data within the memory.
    fn set_range(&mut self, data: Range<usize>);
    /// Where it arrived.
    fn ingress(&self) -> Ingress;
    /// When it arrived, by the clock of elements.
    fn came_ns(&self) -> u64;
}

impl<F: Frame> Frame for Box<F> {
    #[inline]
    fn data(&self) -> &[u8] {
        (**self).data()
    }
    #[inline]
    fn parts_mut(&mut self) -> (&mut [u8], Range<usize>) {
        (**self).parts_mut()
    }
    #[inline]
    fn set_range(&mut self, data: Range<usize>) {
        (**self).set_range(data);
    }
    #[inline]
    fn ingress(&self) -> Ingress {
        (**self).ingress()
    }
    #[inline]
    fn came_ns(&self) -> u64 {
        (**self).came_ns()
    }
}

/// The source and the destination of packets.
pub trait Exchange {
    /// The type of a packet.
    type Frame: Frame;
    /// If bit p is set, port p can transmit.
    fn ports(&self) -> u64;
    /// Receives up to `most` packets of the path, in the order of arrival.
    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Self::Frame>);
    /// Takes a packet that its chain has finished.
    fn settle(&mut self, path: PathId, frame: Self::Frame, verdict: Verdict);
    /// The run has finished all of its packets. Packets that are sent together are sent now, at the path's cost.
    fn leave(&mut self) {}
    /// The present values of CPU counters, for resources other than cycles and I/O. Called around measured runs.
    fn read_counters(&mut self) -> Used {
        Used::default()
    }
}

/// The path that had a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The path.
    pub path: PathId,
    /// The number of its packets.
    pub packets: usize,
}

/// If bytes are not counted in all runs, they are counted in one of this many measured runs of a path.
const PROFILED: u8 = 16;

/// One path of a worker.
struct Lane {
    handle: Handle,
    /// `None`: a run holds it, or it was lost there.
    chain: Option<Chain>,
    /// The number of measured runs until bytes are counted.
    until_profile: u8,
}

/// The verdict on a packet and the position of its data. `None`: the packet is in the batch.
struct Fate {
    verdict: Option<Verdict>,
    data: Range<usize>,
}

/// A run that has begun.
#[derive(Debug)]
pub struct Begun {
    handle: Handle,
    /// Whether it is measured.
    measure: bool,
    /// The values of the meter, and of the CPU counters if they are read.
    at: u64,
    counters: Option<Used>,
}

/// The things that a worker holds in a run, and memory that each run uses again.
pub struct InHand<F> {
    /// The chain of the path that runs.
    chain: Option<Chain>,
    batch: Option<Batch<'static>>,
    frames: Vec<F>,
    fates: Vec<Fate>,
}

/// The schedule, the chains, and the accounts of paths.
pub struct Turns {
    scheduler: Scheduler,
    /// By path.
    lanes: Vec<Option<Lane>>,
    /// The meter's value at the end of the last run. `None`: something else was done since then.
    ended: Option<u64>,
    counted: Counters,
}

/// See the head of this file.
pub struct Worker<F> {
    turns: Turns,
    hand: InHand<F>,
}

impl<F: Frame> Worker<F> {
    /// A worker without paths.
    pub fn new(settings: Settings) -> Result<Self, NotCounted> {
        Ok(Worker { turns: Turns::new(settings)?, hand: InHand::default() })
    }

    /// Lets the next path process up to a burst of its packets. `meter` counts cycles, or anything else that advances
    /// evenly. `None`: all paths sleep.
    pub fn turn(
        &mut self,
        exchange: &mut impl Exchange<Frame = F>,
        mut meter: impl FnMut() -> u64,
    ) -> Option<Turn> {
        let Worker { turns, hand } = self;
        let begun = turns.begin(hand, exchange, &mut meter, |_| {})?;
        hand.run(exchange.ports());
        Some(turns.end(hand, begun, exchange, meter))
    }

    /// A turn of this path ended with a panic: see [`Turns::recover`].
    pub fn recover(&mut self, path: PathId) {
        self.turns.recover(path, &mut self.hand);
    }
}

impl<F> Deref for Worker<F> {
    type Target = Turns;

    fn deref(&self) -> &Turns {
        &self.turns
    }
}

impl<F> DerefMut for Worker<F> {
    fn deref_mut(&mut self) -> &mut Turns {
        &mut self.turns
    }
}

impl Turns {
    /// Turns without paths.
    pub fn new(settings: Settings) -> Result<Self, NotCounted> {
        let (scheduler, counted) = (Scheduler::new(settings)?, settings.counted);
        Ok(Turns { scheduler, lanes: Vec::new(), ended: None, counted })
    }

    /// The time from the last run until the next one is charged to no path.
    #[inline]
    pub fn pause(&mut self) {
        self.ended = None;
    }

    /// Sets a router's weight among all with paths here. The default is 1.
    pub fn weigh(&mut self, router: RouterId, weight: u16) {
        self.scheduler.weigh(router, weight);
    }

    /// Sets the scarce resource, see [`Scheduler::share`].
    pub fn share(&mut self, resource: Resource) -> Result<(), NotCounted> {
        self.scheduler.share(resource)
    }

    /// Sets the counted resources from the next run on, see [`Scheduler::count`].
    pub fn count(&mut self, counted: Counters) {
        self.counted = counted;
        self.scheduler.count(counted);
    }

    /// The resource that is shared now.
    pub fn shared(&self) -> Resource {
        self.scheduler.shared()
    }

    /// Adds a path, awake, after all that are here. Paths are numbered from 0.
    pub fn add(&mut self, router: RouterId, weight: u16, chain: Chain) -> Result<PathId, Refused> {
        let id = self.lanes.len() as PathId;
        self.insert(Path { id, router, weight }, Some(chain), Cost::default()).map(|()| id)
    }

    /// Adds a path, awake. `cost` is its known cost if another worker had it. A path without a chain should sleep.
    pub fn insert(&mut self, path: Path, chain: Option<Chain>, cost: Cost) -> Result<(), Refused> {
        let handle = self.scheduler.add(path, cost)?;
        let at = usize::from(path.id);
        self.lanes.resize_with(self.lanes.len().max(at + 1), || None);
        if let Some(lane) = self.lanes.get_mut(at) {
            *lane = Some(Lane { handle, chain, until_profile: 0 });
        }
        Ok(())
    }

    /// Removes a path that moves to another worker or ends. Returns its chain, if it has one, and its cost.
    pub fn remove(&mut self, path: PathId) -> Option<(Option<Chain>, Cost)> {
        let lane = self.lanes.get_mut(usize::from(path))?.take()?;
        let cost = self.scheduler.remove(lane.handle).unwrap_or_default();
        Some((lane.chain, cost))
    }

    /// Replaces the chain of a path from the next run on. Returns the old chain.
    pub fn replace(&mut self, path: PathId, chain: Chain) -> Option<Chain> {
        let lane = self.lanes.get_mut(usize::from(path))?.as_mut()?;
        lane.chain.replace(chain)
    }

    /// Like [`Turns::replace`], with a chain of the same elements, which continues from the old one
    /// ([`Chain::go_on_from`]).
    pub fn renew(&mut self, path: PathId, mut chain: Chain) -> Option<Chain> {
        let lane = self.lanes.get_mut(usize::from(path))?.as_mut()?;
        if let Some(before) = &lane.chain {
            chain.go_on_from(before);
        }
        lane.chain.replace(chain)
    }

    /// Calls [`Chain::refresh`] of all chains.
    pub fn refresh(&mut self) {
        self.lanes.iter_mut().flatten().filter_map(|lane| lane.chain.as_mut()).for_each(Chain::refresh);
    }

    /// Sets the weight of a path.
    pub fn set_weight(&mut self, path: PathId, weight: u16) {
        if let Some(handle) = self.handle(path) {
            self.scheduler.set_weight(handle, weight);
        }
    }

    /// Makes a path without packets sleep: it is not asked until it wakes.
    pub fn sleep(&mut self, path: PathId) {
        if let Some(handle) = self.handle(path) {
            self.scheduler.sleep(handle);
        }
    }

    /// Wakes a path that has packets again.
    #[inline]
    pub fn wake(&mut self, path: PathId) {
        if let Some(handle) = self.handle(path) {
            self.scheduler.wake(handle);
        }
    }

    #[inline]
    fn handle(&self, path: PathId) -> Option<Handle> {
        self.lanes.get(usize::from(path))?.as_ref().map(|lane| lane.handle)
    }

    /// A turn of this path ended with a panic. Its packets in hand are freed, and it is charged for an empty run. Its
    /// chain may be in any state. Other paths are unchanged.
    pub fn recover<F>(&mut self, path: PathId, hand: &mut InHand<F>) {
        let chain = hand.empty();
        self.is_lost(path);
        if let Some(Some(lane)) = self.lanes.get_mut(usize::from(path)) {
            lane.chain = lane.chain.take().or(chain);
        }
    }

    /// The run of this path does not end, and another thread continues. The path is charged for an empty run, and has
    /// no chain.
    pub fn is_lost(&mut self, path: PathId) {
        self.pause();
        if let Some(handle) = self.handle(path) {
            self.scheduler.charge(handle, &Run::default());
        }
    }

    /// Begins a run of the next path: moves its chain and up to a burst of its packets into empty hands. `None`: all
    /// paths sleep. `begins` is called with the path before the run begins, because a panic leaves no other trace of
    /// it.
    pub fn begin<F: Frame>(
        &mut self,
        hand: &mut InHand<F>,
        exchange: &mut impl Exchange<Frame = F>,
        meter: impl FnMut() -> u64,
        begins: impl FnOnce(PathId),
    ) -> Option<Begun> {
        let at = self.ended.take().unwrap_or_else(meter);
        let next = self.scheduler.pick()?;
        let path = next.handle.id;
        begins(path);
        let reads = next.measure && self.counted.has_others();
        let counters = reads.then(|| exchange.read_counters());
        let lane = self.lanes.get_mut(usize::from(path)).and_then(Option::as_mut);
        hand.chain = lane.and_then(|lane| lane.chain.take());
        if hand.chain.is_some() {
            exchange.receive(path, MOST_PACKETS.min(next.burst as usize), &mut hand.frames);
        }
        Some(Begun { handle: next.handle, measure: next.measure, at, counters })
    }

    /// Ends a run: each packet goes where its verdict says, and the path is charged.
    pub fn end<F: Frame>(
        &mut self,
        hand: &mut InHand<F>,
        begun: Begun,
        exchange: &mut impl Exchange<Frame = F>,
        mut meter: impl FnMut() -> u64,
    ) -> Turn {
        let path = begun.handle.id;
        if let Some(Some(lane)) = self.lanes.get_mut(usize::from(path)) {
            lane.chain = hand.chain.take();
        }
        let packets = hand.frames.len();
        let counts_io =
            self.counted.has(Resource::Io) || begun.measure && packets > 0 && self.is_profiled(path);
        let io = counts_io.then(|| hand.bytes());
        for (mut frame, fate) in hand.frames.drain(..).zip(hand.fates.drain(..)) {
            frame.set_range(fate.data);
            exchange.settle(path, frame, fate.verdict.unwrap_or(Verdict::Drop(Loss::NoExit)));
        }
        exchange.leave();
        let ended = meter();
        let mut used = Used::cycles(ended.saturating_sub(begun.at));
        if let Some(bytes) = io {
            used = used.with(Resource::Io, bytes);
        }
        if let Some(before) = begun.counters {
            used = used.and(&exchange.read_counters().since(&before));
        }
        self.scheduler.charge(begun.handle, &Run { packets: packets as u32, used: Some(used) });
        self.ended = Some(ended);
        Turn { path, packets }
    }

    /// Whether bytes are counted in this measured run.
    #[inline]
    fn is_profiled(&mut self, path: PathId) -> bool {
        let Some(Some(lane)) = self.lanes.get_mut(usize::from(path)) else { return false };
        let is_it = lane.until_profile == 0;
        lane.until_profile = if is_it { PROFILED - 1 } else { lane.until_profile - 1 };
        is_it
    }

    /// A path's chain, with the counters of its elements.
    pub fn chain(&self, path: PathId) -> Option<&Chain> {
        self.lanes.get(usize::from(path))?.as_ref()?.chain.as_ref()
    }

    /// The accounts of paths.
    pub fn accounts(&self) -> impl Iterator<Item = Account> {
        self.scheduler.accounts()
    }
}

impl<F> Default for InHand<F> {
    fn default() -> Self {
        InHand { chain: None, batch: None, frames: Vec::new(), fates: Vec::new() }
    }
}

impl<F> InHand<F> {
    /// The number of packets.
    #[inline]
    pub fn packets(&self) -> usize {
        self.frames.len()
    }

    /// Drops the packets. Returns the chain.
    pub fn empty(&mut self) -> Option<Chain> {
        self.frames.clear();
        self.fates.clear();
        self.chain.take()
    }
}

impl<F: Frame> InHand<F> {
    /// Gives each frame its fate, in order. If bit p of `ports` is set, port p can transmit.
    pub fn run(&mut self, ports: u64) {
        let Some(chain) = &mut self.chain else { return };
        let asks_when = chain.asks_when();
        let together = |one: &F, other: &F| !asks_when || one.came_ns() == other.came_ns();
        for part in self.frames.chunk_by_mut(together).flat_map(|part| part.chunks_mut(MOST_PACKETS)) {
            let now = Now { ns: part.first().map_or(0, F::came_ns), ports };
            let first = self.fates.len();
            let mut batch = self.batch.take().unwrap_or_default().emptied();
            for frame in part {
                let ingress = frame.ingress();
                let (memory, data) = frame.parts_mut();
                let lent = batch.push(memory, data.start, data.len(), ingress);
                // The frame cannot be lent because it is too long.
                let verdict = lent.err().map(|_| Verdict::Drop(Loss::NoRoom));
                self.fates.push(Fate { verdict, data });
            }
            chain.run(&now, &mut batch);
            let open = self.fates.iter_mut().skip(first).filter(|fate| fate.verdict.is_none());
            for (fate, packet) in open.zip(batch.packets()) {
                let start = packet.head_room();
                *fate = Fate { verdict: Some(packet.verdict()), data: start..start + packet.length() };
            }
            self.batch = Some(batch.emptied());
        }
    }

    /// The bytes of the run's packets as they arrived, and of those that leave by a port.
    fn bytes(&self) -> u64 {
        let of = |(frame, fate): (&F, &Fate)| {
            let left = matches!(fate.verdict, Some(Verdict::To(_))).then_some(fate.data.len());
            (frame.data().len() + left.unwrap_or(0)) as u64
        };
        self.frames.iter().zip(&self.fates).map(of).sum()
    }
}
