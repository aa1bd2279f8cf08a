//! One worker of the user plane in virtual time. It uses the real [`Scheduler`], without packets.
//!
//! Time advances by the cycles of runs. Packets of every path arrive at its ring, which drops those without room. The
//! worker picks a path, takes up to a burst from its ring, and charges the scheduler with the requested measurements.
//! The real use of paths is counted separately.
//!
//! Three things are not modelled: cold caches of a path (a switch always costs the same), transmit rings, and the
//! influence of workers on each other.

use super::random::{Poisson, stream};
use crate::{
    fib::synthetic::Random,
    paths::{Cost, Handle, Path, Refused, Resource, Run, Saturation, Scheduler, Used, Utilisation},
};

/// The packets that arrive for a path. Times are in cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// The ring is always full.
    Always,
    /// One packet in every this many cycles, 1 or more.
    Even(u64),
    /// The same on average, independent of each other.
    Random(u64),
    /// Evenly for a while, then nothing for a while.
    Bursts {
        /// Cycles between two packets, 1 or more.
        gap: u64,
        /// How long they arrive.
        on: u64,
        /// How long they do not.
        off: u64,
    },
}

/// The cost of packets from some time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// In cycles from the start.
    pub from: u64,
    /// The cycles of most packets.
    pub cycles: u64,
    /// One packet in this many, at random, is expensive; 0: none.
    pub one_in: u64,
    /// The additional cycles of such a packet.
    pub extra: u64,
    /// Bytes of memory bandwidth. `None`: not counted.
    pub memory: Option<u64>,
}

impl Price {
    /// The same number of cycles for every packet.
    pub const fn even(cycles: u64) -> Self {
        Price { from: 0, cycles, one_in: 0, extra: 0, memory: None }
    }
}

/// A path and its packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// The path.
    pub path: Path,
    /// The packets that arrive while it is there.
    pub arrivals: Arrivals,
    /// In the order of time, the first from 0.
    pub prices: Vec<Price>,
    /// The number of packets that its ring holds.
    pub ring: u64,
    /// When the path is there, in cycles: from, up to.
    pub there: [u64; 2],
}

impl Source {
    /// A path whose ring of 1,024 packets is always full, and whose packets all cost the same.
    pub fn new(path: Path, cycles: u64) -> Self {
        Source {
            path,
            arrivals: Arrivals::Always,
            prices: vec![Price::even(cycles)],
            ring: 1024,
            there: [0, u64::MAX],
        }
    }
}

/// The resource to share, set at the end of each control period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shares {
    /// Nothing is set.
    Cycles,
    /// Always this resource.
    Always {
        /// The resource.
        resource: Resource,
        /// A period, in cycles.
        period: u64,
    },
    /// The scarce resource ([`Saturation`]).
    Scarce {
        /// The available memory bandwidth, in bytes per period.
        memory: u64,
        /// A period, in cycles.
        period: u64,
    },
}

/// The behaviour of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// The real cost of a switch. The scheduler may assume another one.
    pub switch_cycles: u64,
    /// The burst, if it is not the scheduler's.
    pub burst: Option<u32>,
    /// Cycles are read with every run. Otherwise only if a run must be measured.
    pub clocked: bool,
    /// Paths with empty rings sleep. Otherwise they are asked.
    pub sleeps: bool,
    /// The resource that the scheduler shares.
    pub shares: Shares,
    /// The seed of everything random.
    pub seed: u64,
}

/// The results of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Cycles of its runs, with and without packets, including context switches.
    pub cycles: u64,
    /// Cycles of the runs without packets.
    pub idle_cycles: u64,
    /// Memory bandwidth, bytes.
    pub memory: u64,
    /// Packets that arrived. [`Arrivals::Always`] has none.
    pub came: u64,
    /// Packets that were processed.
    pub packets: u64,
    /// Packets that found the ring full.
    pub dropped: u64,
    /// All runs, including those without packets.
    pub runs: u64,
    /// The longest time for which packets waited while none of the path was taken.
    pub longest_wait: u64,
    /// The longest run.
    pub longest_run: u64,
}

/// One path in a run.
struct Lane<'a> {
    source: &'a Source,
    handle: Option<Handle>,
    random: Random,
    arrived_until: u64,
    waiting: u64,
    waits_since: u64,
    outcome: Outcome,
}

impl Worker {
    /// Lets the scheduler run these paths for `cycles` cycles. Returns the outcome of each, and the scheduler's state
    /// at the end.
    pub fn run(
        &self,
        mut scheduler: Scheduler,
        sources: &[Source],
        cycles: u64,
    ) -> Result<(Vec<Outcome>, Scheduler), Refused> {
        let lane = |(number, source)| Lane {
            source,
            handle: None,
            random: stream(self.seed, number),
            arrived_until: 0,
            waiting: 0,
            waits_since: 0,
            outcome: Outcome::default(),
        };
        let mut lanes: Vec<Lane<'_>> = (0..).zip(sources).map(lane).collect();
        let (mut now, mut told, mut saturation, mut before) = (0, 0, Saturation::default(), [0; 2]);
        while now < cycles {
            for lane in &mut lanes {
                lane.come_and_go(now, &mut scheduler)?;
                // A path that is asked sees its packets at that moment.
                if self.sleeps && lane.handle.is_some_and(|_| lane.arrive(now) > 0) {
                    lane.handle.into_iter().for_each(|handle| scheduler.wake(handle));
                }
            }
            let period = match self.shares {
                Shares::Cycles => u64::MAX,
                Shares::Always { period, .. } | Shares::Scarce { period, .. } => period,
            };
            if now - told >= period {
                told = now;
                let all = |of: fn(&Outcome) -> u64| lanes.iter().map(|lane| of(&lane.outcome)).sum::<u64>();
                let used =
                    [all(|outcome| outcome.cycles - outcome.idle_cycles), all(|outcome| outcome.memory)];
                let [cycles, bytes] = [used[0] - before[0], used[1] - before[1]];
                before = used;
                let resource = match self.shares {
                    Shares::Cycles => Resource::Cycles,
                    Shares::Always { resource, .. } => resource,
                    Shares::Scarce { memory, .. } => saturation.decide(&Utilisation::new(
                        &Used::cycles(cycles).with(Resource::Memory, bytes),
                        &Used::cycles(period).with(Resource::Memory, memory),
                    )),
                };
                scheduler.share(resource).unwrap_or_else(|e| panic!("{e}"));
            }
            let next = scheduler.pick();
            let picked = next.and_then(|next| {
                Some((next, lanes.iter_mut().find(|lane| lane.handle == Some(next.handle))?))
            });
            let Some((next, lane)) = picked else {
                now += self.switch_cycles.max(100);
                continue;
            };
            let used = lane.serve(now, self.burst.unwrap_or(next.burst), self.switch_cycles);
            now += used.cycles;
            let memory = used.memory.map_or(Used::cycles(used.cycles), |memory| {
                Used::cycles(used.cycles).with(Resource::Memory, memory)
            });
            let told = match (next.measure, self.clocked) {
                (true, _) => Some(memory),
                (false, true) => Some(Used::cycles(used.cycles)),
                (false, false) => None,
            };
            scheduler.charge(next.handle, &Run { packets: used.packets, used: told });
            if self.sleeps && lane.arrive(now) == 0 {
                scheduler.sleep(next.handle);
            }
        }
        Ok((lanes.into_iter().map(|lane| lane.outcome).collect(), scheduler))
    }
}

/// The cost of a run.
struct Took {
    packets: u32,
    cycles: u64,
    memory: Option<u64>,
}

impl Lane<'_> {
    fn come_and_go(&mut self, now: u64, scheduler: &mut Scheduler) -> Result<(), Refused> {
        let [from, to] = self.source.there;
        let is_there = (from..to).contains(&now);
        match self.handle {
            None if is_there => {
                self.handle = Some(scheduler.add(self.source.path, Cost::default())?);
                (self.arrived_until, self.waits_since) = (now, now);
            }
            Some(handle) if !is_there => {
                scheduler.remove(handle);
                (self.handle, self.waiting) = (None, 0);
            }
            _ => {}
        }
        Ok(())
    }

    /// Puts the packets that arrived up to now into the ring. Returns how many wait there.
    fn arrive(&mut self, now: u64) -> u64 {
        let (before, was_empty) = (self.arrived_until, self.waiting == 0);
        self.arrived_until = now;
        let came = match self.source.arrivals {
            Arrivals::Always => {
                self.waiting = self.source.ring;
                0
            }
            Arrivals::Even(gap) => now / gap - before / gap,
            Arrivals::Random(gap) => Poisson::new((now - before) as f64 / gap as f64).draw(&mut self.random),
            Arrivals::Bursts { gap, on, off } => {
                let until = |time: u64| time / (on + off) * (on / gap) + (time % (on + off)).min(on) / gap;
                until(now) - until(before)
            }
        };
        let kept = came.min(self.source.ring - self.waiting);
        self.waiting += kept;
        self.outcome.came += came;
        self.outcome.dropped += came - kept;
        if was_empty {
            // The first of them arrived after `before`.
            self.waits_since = before.max(self.waits_since);
        }
        self.waiting
    }

    /// A run of up to `burst` packets that begins now.
    fn serve(&mut self, now: u64, burst: u32, switch_cycles: u64) -> Took {
        let packets = self.arrive(now).min(burst.into());
        if packets > 0 {
            self.outcome.longest_wait = self.outcome.longest_wait.max(now - self.waits_since);
        }
        let price = self
            .source
            .prices
            .iter()
            .rev()
            .find(|price| price.from <= now)
            .copied()
            .unwrap_or(Price::even(0));
        let dear = match price.one_in {
            0 => 0,
            one_in => Poisson::new(packets as f64 / one_in as f64).draw(&mut self.random),
        };
        let cycles = (switch_cycles + packets * price.cycles + dear * price.extra).max(1);
        self.waiting -= packets;
        self.waits_since = now + cycles;
        let memory = price.memory.map(|memory| memory * packets);
        let outcome = &mut self.outcome;
        outcome.cycles += cycles;
        outcome.idle_cycles += if packets == 0 { cycles } else { 0 };
        outcome.memory += memory.unwrap_or(0);
        outcome.packets += packets;
        outcome.runs += 1;
        outcome.longest_run = outcome.longest_run.max(cycles);
        Took { packets: packets as u32, cycles, memory }
    }
}
