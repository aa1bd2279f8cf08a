//! The description of a simulation, as data.

use super::cost::Cost;
use crate::{
    cores::{CoreId, Policy, Settings},
    plan::PortId,
};
use std::time::Duration;
use thiserror::Error;

/// A machine, the traffic that it forwards, and its other work.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    pub machine: Machine,
    pub cost: Cost,
    /// Numbered in this order, from 0.
    pub ports: Vec<SimPort>,
    pub sources: Vec<Source>,
    pub applications: Vec<Application>,
    /// Settings of the allocator. The [`Placement`] gives the policy.
    pub settings: Settings,
    /// Nothing is counted for this long at first. Queues begin round robin on the allowed cores, and packing has to
    /// find its places.
    pub settle: Duration,
    /// Counted after that.
    pub duration: Duration,
    pub seed: u64,
}

/// The cores of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The number of logical cores, 1 to 128.
    pub cores: u16,
    /// The number of NUMA nodes, each with equally many physical cores.
    pub nodes: u16,
    /// Logical cores per physical core, 1 or 2. Core c and core c + cores / 2 are siblings, as Linux numbers them.
    pub siblings: u16,
    /// The speed of a core while its sibling also works, in thousandths.
    pub sibling_speed: u16,
}

impl Machine {
    pub fn physical(&self, core: CoreId) -> u16 {
        core % (self.cores / self.siblings)
    }

    pub fn node(&self, core: CoreId) -> u16 {
        (u32::from(self.physical(core)) * u32::from(self.nodes) / u32::from(self.cores / self.siblings))
            as u16
    }

    /// The other logical core of its physical one.
    pub fn sibling(&self, core: CoreId) -> Option<CoreId> {
        (self.siblings == 2).then(|| (core + self.cores / 2) % self.cores)
    }
}

/// A port and its RX queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimPort {
    pub queues: u16,
    /// NUMA node.
    pub node: Option<u16>,
    /// Packets that a queue's ring holds. Packets that find it full are dropped.
    pub ring: u32,
}

/// Packets that arrive at a port.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    pub port: PortId,
    /// The number of equal flows, hashed to the port's queues. `None`: every queue gets the same. Elephants are flows
    /// of their own, always hashed.
    pub flows: Option<u32>,
    pub rate: Rate,
    pub arrivals: Arrivals,
}

/// Packets per second over time, counted from the start of the run.
#[derive(Clone, Debug, PartialEq)]
pub enum Rate {
    /// Straight lines between points, level before the first and after the last. Two points at one time are a step.
    Line(Vec<Point>),
    /// Up from `low_pps` to `high_pps` and back in every period, smoothly. It begins low.
    Wave { low_pps: u64, high_pps: u64, period: Duration },
    /// All flows at once: `pps`, then silence. Each time takes between a half and one and a half of `on` or `off`, at
    /// random.
    OnOff { pps: u64, on: Duration, off: Duration },
    /// Flows begin at random and last equally long. Their rates, and so their sizes, are Pareto distributed with shape
    /// 4/3, limited to `most_pps`: few flows carry most packets.
    Elephants { flows_per_second: u32, lasting: Duration, least_pps: u32, most_pps: u32 },
}

/// A rate at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub at: Duration,
    pub pps: u64,
}

/// How packets of a queue follow each other at a given rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Even,
    /// Independent of each other.
    Poisson,
    /// In bursts of this many packets. Bursts are independent of each other.
    Bursts(u32),
}

/// A program with an instance on each of some cores. Instances stay where they are (as in Q fig. 7).
#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    /// The cores; `None`: all.
    pub cores: Option<Vec<CoreId>>,
    /// The part of its core's time that it wants, in thousandths.
    pub wants: u16,
    pub sharing: Sharing,
    /// The allocator sees it as a pinned workload (V2).
    pub pinned: bool,
}

/// What an application gets of a core that also forwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// The rest: forwarding runs in softirqs, or in threads of a higher priority.
    #[default]
    Rest,
    /// As much as each queue that wants more: threads of one priority under the fair scheduler.
    Fair,
}

/// How queues are placed on cores.
#[derive(Clone, Debug, PartialEq)]
pub enum Placement {
    /// The allocator, with this policy.
    Allocator(Policy),
    /// The fewest cores for the packets of the next control period. It is a yardstick, because nobody knows those.
    Oracle,
    /// The default of NICs: every port has a queue on each allowed core, flows are hashed over them, and nothing ever
    /// moves.
    RssHash,
}

/// A scenario that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}: {expected}")]
pub struct BadScenario {
    pub what: &'static str,
    pub expected: &'static str,
}

fn ensure(holds: bool, what: &'static str, expected: &'static str) -> Result<(), BadScenario> {
    if holds { Ok(()) } else { Err(BadScenario { what, expected }) }
}

const MOST_PPS: u64 = 1_000_000_000;
const HOUR: Duration = Duration::from_secs(3600);

impl Scenario {
    /// Checks that it is within the limits of the simulation.
    pub fn check(&self) -> Result<(), BadScenario> {
        self.check_machine()?;
        let total = self.settle.saturating_add(self.duration);
        ensure(!self.duration.is_zero() && total <= HOUR, "time", "above 0, at most an hour with settling")?;
        ensure((1..=64).contains(&self.ports.len()), "ports", "1 to 64")?;
        for port in &self.ports {
            ensure((1..=128).contains(&port.queues), "queues of a port", "1 to 128")?;
            ensure((1..=65_536).contains(&port.ring), "ring", "1 to 65536 packets")?;
        }
        for application in &self.applications {
            let cores = application.cores.iter().flatten();
            ensure(
                cores.into_iter().all(|&core| core < self.machine.cores),
                "application",
                "cores that exist",
            )?;
            ensure(application.wants <= 1000, "application", "wants at most a core")?;
        }
        self.sources.iter().try_for_each(|source| {
            ensure(usize::from(source.port) < self.ports.len(), "source", "a port that exists")?;
            ensure(source.flows.is_none_or(|n| (1..=1_000_000).contains(&n)), "flows", "1 to 1000000")?;
            let is_burst = |packets: u32| (1..=4096).contains(&packets);
            let Source { arrivals, .. } = source;
            ensure(!matches!(arrivals, Arrivals::Bursts(n) if !is_burst(*n)), "burst", "1 to 4096 packets")?;
            source.rate.check()
        })
    }

    fn check_machine(&self) -> Result<(), BadScenario> {
        let Machine { cores, nodes, siblings, sibling_speed } = self.machine;
        ensure((1..=128).contains(&cores), "cores", "1 to 128")?;
        ensure(
            (1..=2).contains(&siblings) && cores % siblings == 0,
            "siblings",
            "1 or 2, dividing the cores",
        )?;
        ensure((1..=cores / siblings).contains(&nodes), "nodes", "1 to the number of physical cores")?;
        ensure((1..=1000).contains(&sibling_speed), "sibling speed", "1 to 1000 thousandths")?;
        let allowed = (0..cores).any(|core| self.settings.allows(core));
        ensure(allowed, "allowed cores", "at least one that exists")?;
        let Cost { ns_per_packet, wake_ns, hand_on_ns, take_ns, rouse_ns, start_ns } = self.cost;
        ensure((1..=100_000).contains(&ns_per_packet), "ns per packet", "1 to 100000")?;
        let others = [wake_ns, hand_on_ns, take_ns, rouse_ns, start_ns];
        ensure(others.iter().all(|ns| *ns <= 100_000), "wake-up and handing on", "at most 100000 ns")
    }
}

impl Rate {
    fn check(&self) -> Result<(), BadScenario> {
        let is_period = |time: Duration| (Duration::from_millis(1)..=HOUR).contains(&time);
        match self {
            Self::Line(points) => {
                ensure((1..=10_000).contains(&points.len()), "line", "1 to 10000 points")?;
                ensure(points.is_sorted_by_key(|point| point.at), "line", "points in the order of time")?;
                let fits = |point: &Point| point.pps <= MOST_PPS && point.at <= HOUR;
                ensure(points.iter().all(fits), "line", "at most 1000000000 packets a second within an hour")
            }
            Self::Wave { low_pps, high_pps, period } => {
                ensure(low_pps <= high_pps && *high_pps <= MOST_PPS, "wave", "low <= high <= 1000000000")?;
                ensure(is_period(*period), "wave", "a period of 1 ms to an hour")
            }
            Self::OnOff { pps, on, off } => {
                ensure(*pps <= MOST_PPS, "on and off", "at most 1000000000 packets a second")?;
                ensure(is_period(*on) && is_period(*off), "on and off", "times of 1 ms to an hour")
            }
            Self::Elephants { flows_per_second, lasting, least_pps, most_pps } => {
                let rates = 1 <= *least_pps && least_pps <= most_pps && *most_pps <= 10_000_000;
                ensure(rates, "elephants", "1 <= least <= most <= 10000000")?;
                ensure(is_period(*lasting), "elephants", "lasting 1 ms to an hour")?;
                let at_once = f64::from(*flows_per_second) * lasting.as_secs_f64();
                ensure(at_once <= 1e5, "elephants", "at most 100000 flows at once")
            }
        }
    }
}
