//! A worker of the user plane: whose turn it is, that path's packets through its chain, and each where it goes.
//!
//! ```text
//!   Exchange::receive ──► up to a burst of the path's frames, which the worker owns now
//!        ▲                       │ lent for the run
//!  Scheduler::pick           Chain::run
//!        ▲                       │ a verdict each
//!  Scheduler::charge ◄── Exchange::settle: to a port, up, or gone
//! ```
//!
//! [`Worker::turn`] is one round of that, without I/O and without a clock: packets come from and go to an [`Exchange`], and what a run
//! takes is read from a meter that the caller gives. [`Rings`] is the ingress where no device has one: it classifies frames
//! ([`crate::paths::class`]) into a bounded ring for each path, so a path over its share fills its own ring and nobody else's (P2, P4).
//!
//! # What another may go on with
//! Whose turn it is, and chains ([`Turns`]) are apart from what is in the worker's hands during a run ([`InHand`]): packets, and the chain that they
//! go through. So a run has a beginning, a middle and an end ([`Turns::begin`], [`InHand::run`], [`Turns::end`]), and in the middle, which is the only part in which elements are
//! called, nothing of all paths is needed: if it does not end, another goes on with that, and one path has another chain.
//!
//! # When
//! An element is told the time at which the packets of its run came ([`Frame::came_ns`]). Those that came together are run together; so are
//! all of a burst where no element of the chain asks for the time ([`Chain::asks_when`]). So what becomes of a packet depends on the packets
//! of its path before it and their times, not on how they were divided into runs.
//!
//! # What a run is charged
//! What the meter says from the end of the run before it to its own: the pick is in it, and whatever the caller did between the two, if that
//! is not the paths' ([`Turns::pause`]). A reading is some ten nanoseconds for a run; what it saves is that runs of little are charged
//! less than they take. What packets of a path cost is learnt from some of them (P6).
//!
//! Where they are counted ([`Settings::counted`]), I/O is the bytes that were received and that left by ports, of every run, and what the
//! exchange has counters of is read around the runs that the scheduler wants measured (P7). To count bytes takes some 0.7 ns a packet, so where
//! nobody shares them that is done in one of 16 measured runs of each path: who places paths wants to know what they are like (P10).

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

/// A packet in memory of its own, up to 65,535 bytes with the room in front of it and behind it.
pub trait Frame {
    /// The data.
    fn data(&self) -> &[u8];
    /// All of the memory, and where in it the data is.
    fn parts_mut(&mut self) -> (&mut [u8], Range<usize>);
    /// The data is there now: within the memory.
    fn set_range(&mut self, data: Range<usize>);
    /// Where it came in.
    fn ingress(&self) -> Ingress;
    /// When it came, of the clock that elements are told.
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

/// Where packets come from and go to.
pub trait Exchange {
    /// What is exchanged.
    type Frame: Frame;
    /// Bit p: port p can transmit.
    fn ports(&self) -> u64;
    /// Up to so many packets of the path, in the order in which they came.
    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Self::Frame>);
    /// The path is done with a packet, which is as its chain left it.
    fn settle(&mut self, path: PathId, frame: Self::Frame, verdict: Verdict);
    /// The run is through with all of its packets: what is sent together is sent now, at the path's cost.
    fn leave(&mut self) {}
    /// What counters of the CPU read now, of resources other than cycles and I/O; asked around runs that are measured.
    fn read_counters(&mut self) -> Used {
        Used::default()
    }
}

/// Whose turn it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The path.
    pub path: PathId,
    /// How many packets it had.
    pub packets: usize,
}

/// Bytes are counted in one of so many measured runs of a path, where they are not counted in all.
const PROFILED: u8 = 16;

/// One path of a worker.
struct Lane {
    handle: Handle,
    /// `None`: it is in somebody's hands, or was lost there.
    chain: Option<Chain>,
    /// Measured runs until bytes are counted.
    until_profile: u8,
}

/// What became of a packet; nothing yet: it is in the batch.
struct Fate {
    verdict: Option<Verdict>,
    data: Range<usize>,
}

/// A run that was begun.
#[derive(Debug)]
pub struct Begun {
    handle: Handle,
    /// It is to be measured.
    measure: bool,
    /// By the meter, and by counters of the CPU if they are read.
    at: u64,
    counters: Option<Used>,
}

/// What a worker has in its hands in a run, and memory that each uses anew.
pub struct InHand<F> {
    /// Of the path whose run it is.
    chain: Option<Chain>,
    batch: Option<Batch<'static>>,
    frames: Vec<F>,
    fates: Vec<Fate>,
}

/// Whose turn it is, chains, and what paths got and cost.
pub struct Turns {
    scheduler: Scheduler,
    /// By path.
    lanes: Vec<Option<Lane>>,
    /// By the meter, when the last run ended; `None`: something else was done since.
    ended: Option<u64>,
    counted: Counters,
}

/// See the head of this file.
pub struct Worker<F> {
    turns: Turns,
    hand: InHand<F>,
}

impl<F: Frame> Worker<F> {
    /// Without paths.
    pub fn new(settings: Settings) -> Result<Self, NotCounted> {
        Ok(Worker { turns: Turns::new(settings)?, hand: InHand::default() })
    }

    /// Lets the path whose turn it is deal with up to a burst of its packets. `meter` counts cycles, or whatever else goes on evenly. `None`:
    /// all paths sleep.
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

    /// A turn of this path ended by a panic: see [`Turns::recover`].
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
    /// Without paths.
    pub fn new(settings: Settings) -> Result<Self, NotCounted> {
        let (scheduler, counted) = (Scheduler::new(settings)?, settings.counted);
        Ok(Turns { scheduler, lanes: Vec::new(), ended: None, counted })
    }

    /// What is done from the last run on until the next is no path's.
    #[inline]
    pub fn pause(&mut self) {
        self.ended = None;
    }

    /// A router's weight among all with paths here; 1 where it was not set.
    pub fn weigh(&mut self, router: RouterId, weight: u16) {
        self.scheduler.weigh(router, weight);
    }

    /// This resource is the scarce one, see [`Scheduler::share`].
    pub fn share(&mut self, resource: Resource) -> Result<(), NotCounted> {
        self.scheduler.share(resource)
    }

    /// What is counted from the next run on, see [`Scheduler::count`].
    pub fn count(&mut self, counted: Counters) {
        self.counted = counted;
        self.scheduler.count(counted);
    }

    /// What is shared now.
    pub fn shared(&self) -> Resource {
        self.scheduler.shared()
    }

    /// One more path, awake, behind all that are here; paths are numbered from 0.
    pub fn add(&mut self, router: RouterId, weight: u16, chain: Chain) -> Result<PathId, Refused> {
        let id = self.lanes.len() as PathId;
        self.insert(Path { id, router, weight }, Some(chain), Cost::default()).map(|()| id)
    }

    /// One more path, awake. What is known of its cost is that of another worker that had it. Without a chain it is to sleep.
    pub fn insert(&mut self, path: Path, chain: Option<Chain>, cost: Cost) -> Result<(), Refused> {
        let handle = self.scheduler.add(path, cost)?;
        let at = usize::from(path.id);
        self.lanes.resize_with(self.lanes.len().max(at + 1), || None);
        if let Some(lane) = self.lanes.get_mut(at) {
            *lane = Some(Lane { handle, chain, until_profile: 0 });
        }
        Ok(())
    }

    /// The path is another's, or ends: its chain, if it has one, and what it cost.
    pub fn remove(&mut self, path: PathId) -> Option<(Option<Chain>, Cost)> {
        let lane = self.lanes.get_mut(usize::from(path))?.take()?;
        let cost = self.scheduler.remove(lane.handle).unwrap_or_default();
        Some((lane.chain, cost))
    }

    /// The path's packets go through this chain from the next run on; the one until now.
    pub fn replace(&mut self, path: PathId, chain: Chain) -> Option<Chain> {
        let lane = self.lanes.get_mut(usize::from(path))?.as_mut()?;
        lane.chain.replace(chain)
    }

    /// As [`Turns::replace`] by a chain of the same elements, which goes on from the one until now ([`Chain::go_on_from`]).
    pub fn renew(&mut self, path: PathId, mut chain: Chain) -> Option<Chain> {
        let lane = self.lanes.get_mut(usize::from(path))?.as_mut()?;
        if let Some(before) = &lane.chain {
            chain.go_on_from(before);
        }
        lane.chain.replace(chain)
    }

    /// As [`Chain::refresh`], of all.
    pub fn refresh(&mut self) {
        self.lanes.iter_mut().flatten().filter_map(|lane| lane.chain.as_mut()).for_each(Chain::refresh);
    }

    /// Another weight of a path.
    pub fn set_weight(&mut self, path: PathId, weight: u16) {
        if let Some(handle) = self.handle(path) {
            self.scheduler.set_weight(handle, weight);
        }
    }

    /// The path is not asked until it is woken: it has no packets.
    pub fn sleep(&mut self, path: PathId) {
        if let Some(handle) = self.handle(path) {
            self.scheduler.sleep(handle);
        }
    }

    /// The path has packets again.
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

    /// A turn of this path ended by a panic: the packets it had in its hands are freed, and it is charged for having been asked. Its
    /// chain may be in any state; other paths are as they were.
    pub fn recover<F>(&mut self, path: PathId, hand: &mut InHand<F>) {
        let chain = hand.empty();
        self.is_lost(path);
        if let Some(Some(lane)) = self.lanes.get_mut(usize::from(path)) {
            lane.chain = lane.chain.take().or(chain);
        }
    }

    /// The run of this path does not end, and somebody else goes on: it is charged for having been asked, and has no chain.
    pub fn is_lost(&mut self, path: PathId) {
        self.pause();
        if let Some(handle) = self.handle(path) {
            self.scheduler.charge(handle, &Run::default());
        }
    }

    /// Takes up to a burst of the packets of the path whose turn it is into empty hands, and its chain. `None`: all paths sleep. Whose turn it is is told
    /// before it begins: a panic leaves no other trace of that.
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

    /// The end of a run: each packet goes where it is to go, and the path is charged.
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

    /// One of so many that are measured.
    #[inline]
    fn is_profiled(&mut self, path: PathId) -> bool {
        let Some(Some(lane)) = self.lanes.get_mut(usize::from(path)) else { return false };
        let is_it = lane.until_profile == 0;
        lane.until_profile = if is_it { PROFILED - 1 } else { lane.until_profile - 1 };
        is_it
    }

    /// What a path's elements counted.
    pub fn chain(&self, path: PathId) -> Option<&Chain> {
        self.lanes.get(usize::from(path))?.as_ref()?.chain.as_ref()
    }

    /// What paths got and cost.
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
    /// Packets.
    #[inline]
    pub fn packets(&self) -> usize {
        self.frames.len()
    }

    /// Drops the packets; the chain.
    pub fn empty(&mut self) -> Option<Chain> {
        self.frames.clear();
        self.fates.clear();
        self.chain.take()
    }
}

impl<F: Frame> InHand<F> {
    /// Gives each frame its fate, in order. Bit p of `ports`: port p can transmit.
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
                // A frame that cannot be lent, as it is too long.
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

    /// What the run's packets had when they came, and have as they leave by a port.
    fn bytes(&self) -> u64 {
        let of = |(frame, fate): (&F, &Fate)| {
            let left = matches!(fate.verdict, Some(Verdict::To(_))).then_some(fate.data.len());
            (frame.data().len() + left.unwrap_or(0)) as u64
        };
        self.frames.iter().zip(&self.fates).map(of).sum()
    }
}
