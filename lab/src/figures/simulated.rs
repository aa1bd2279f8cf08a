//! Cores that this machine does not have: the parts of figures that need more cores, in virtual time. [`logic::sim`]
//! describes what is modelled, and how wrong that is. Values from here are marked "simulated" wherever they are shown.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Result;
use logic::{
    cores::{Policy, Settings},
    sim::{
        Application, Arrivals, Cost, Machine, Placement, Point, Rate, Results, Scenario, Sharing, SimPort,
        Source,
    },
};

/// The load grows from nothing for this long, as in the paper (Q, IV.D). Packing begins on one core.
const GROWS: Duration = Duration::from_secs(10);
/// Time until the allocator has found places for the queues.
const SETTLE: Duration = Duration::from_secs(16);
/// Time counted after that. The load is constant, so a longer time makes no difference.
const COUNTED: Duration = Duration::from_secs(4);
/// The default of drivers of fast NICs.
const RING: u32 = 1024;
/// The same as in `sim` and `plan`.
const SIBLING_SPEED: u16 = 600;

/// Appended to the name of a simulated subject.
pub(super) const MARK: &str = ", simulated";

/// The part of the usual times that is simulated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Length(f64);

impl Length {
    /// Beside measurements of this many seconds. Those of less than a second only try the commands.
    pub fn beside(seconds: f64) -> Self {
        Self(seconds.min(1.0))
    }

    fn of(self, whole: Duration) -> Duration {
        whole.mul_f64(self.0)
    }
}

/// A machine that forwards.
pub(super) struct Simulated {
    /// Cores of the machine; the upper half are siblings of the lower one with hyper-threads.
    pub cores: u16,
    pub hyper_threads: bool,
    /// The first cores, this many of them, forward.
    pub forwarding: u16,
    pub queues: u16,
    pub cost: Cost,
    pub placement: Placement,
    /// Does an application want all that is left of each core?
    pub applications: bool,
}

impl Simulated {
    /// Simulates this many packets a second, independent of each other.
    pub fn run(&self, pps: u64, length: Length) -> Result<Results> {
        let line = [(Duration::ZERO, 0), (length.of(GROWS), pps)].map(|(at, pps)| Point { at, pps });
        let application = Application { cores: None, wants: 1000, sharing: Sharing::Rest, pinned: false };
        let scenario = Scenario {
            machine: Machine {
                cores: self.cores,
                nodes: 1,
                siblings: if self.hyper_threads { 2 } else { 1 },
                sibling_speed: SIBLING_SPEED,
            },
            cost: self.cost,
            ports: vec![SimPort { queues: self.queues, node: None, ring: RING }],
            sources: vec![Source {
                port: 0,
                flows: None,
                rate: Rate::Line(line.to_vec()),
                arrivals: Arrivals::Poisson,
            }],
            applications: self.applications.then_some(application).into_iter().collect(),
            settings: Settings {
                allowed: Some((0..self.forwarding).collect::<BTreeSet<_>>()),
                ..Settings::default()
            },
            settle: length.of(SETTLE),
            duration: length.of(COUNTED),
            seed: 1,
        };
        Ok(scenario.run(&self.placement)?)
    }
}

/// Packets a second that this many cores forward when too many come. From the fifth on, cores are siblings of the first
/// four. Nothing has to settle, so a twentieth of the usual time is enough.
pub(super) fn throughput(cores: u16, cost: Cost, length: Length) -> Result<f64> {
    let length = Length(length.0 / 20.0);
    let machine = Simulated {
        cores: 8,
        hyper_threads: true,
        forwarding: cores,
        queues: cores,
        cost,
        placement: Placement::Allocator(Policy::Spread),
        applications: false,
    };
    let too_much = 2 * u64::from(cores) * 1_000_000_000 / cost.ns_per_packet;
    Ok(machine.run(too_much, length)?.forwarded as f64 / length.of(COUNTED).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_forward_as_much_each_until_they_are_siblings() {
        let of = |cores| {
            let cost = Cost { ns_per_packet: 1000, ..Cost::MILLRACE };
            throughput(cores, cost, Length::beside(1.0)).unwrap() / 1e6
        };
        assert!((of(1) - 1.0).abs() < 0.01 && (of(4) - 4.0).abs() < 0.04, "{} {}", of(1), of(4));
        // Two siblings do 1.2 times the work of one alone.
        assert!((of(5) - 4.2).abs() < 0.05 && (of(8) - 4.8).abs() < 0.05, "{} {}", of(5), of(8));
    }
}
