//! Changes of a plan, as texts for people.

use super::{CoreId, QueueId};
use std::fmt;

/// A change of a queue's placement, or the fact that it stays although it should not.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub queue: QueueId,
    /// The core where it was. While it is split, the cores that shared its flows.
    pub from: Vec<CoreId>,
    /// The same from now on. If it is equal, the queue stays.
    pub to: Vec<CoreId>,
    pub why: Why,
}

/// Why a queue moves, is split, is joined or stays. Loads are fractions of a core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// Its core is not online.
    Offline { core: CoreId },
    /// Its core may not forward.
    Forbidden { core: CoreId },
    /// A workload is pinned to its core, and others have room.
    Workload { core: CoreId },
    /// Its core had more to forward than it should.
    Overload { core: CoreId, load: f64, high: f64 },
    /// It is alone on its core and wants more than one core should give.
    Hot { load: f64, high: f64 },
    /// Its core fell behind and shared its flows with other cores at once.
    Spilled { core: CoreId },
    /// It is whole again on its core, which keeps up, or has given other queues away.
    TakenBack,
    /// It was split and fits fewer cores.
    Calm { low: f64 },
    /// Its core is given back.
    Release { core: CoreId, low: f64 },
    /// All queues together fit fewer cores in another order.
    Repack { low: f64 },
    /// The policy puts it there.
    Policy,
    /// It stays: its core has too much to forward, and no other has room.
    NoRoom { core: CoreId, load: f64 },
    /// It stays: alone on its core it wants more than a core should give, and its flows cannot be shared among cores.
    Whole { load: f64 },
    /// It stays: a workload is pinned to its core, and no other has room.
    WorkloadStays { core: CoreId },
    /// It stays: no core that may forward is online.
    NoCore,
    /// It stays: the core that the policy names is not online or may not forward.
    Refused { core: CoreId },
}

impl Event {
    /// The change and its reason, without the queue's name: "core 1 -> core 2: core 1 is offline".
    pub fn change(&self) -> impl fmt::Display {
        Change(self)
    }
}

struct Change<'a>(&'a Event);

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { from, to, why, .. } = self.0;
        write!(f, "{}", Cores(from))?;
        if from != to {
            write!(f, " -> {}", Cores(to))?;
        }
        write!(f, ": {why}")
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QueueId { port, index } = self.queue;
        write!(f, "port {port} queue {index}: {}", self.change())
    }
}

struct Cores<'a>(&'a [CoreId]);

impl fmt::Display for Cores<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "core " } else { "cores " })?;
        for (i, core) in self.0.iter().enumerate() {
            write!(f, "{}{core}", if i == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |load: f64| (load * 100.0).round();
        match *self {
            Why::Offline { core } => write!(f, "core {core} is offline"),
            Why::Forbidden { core } => write!(f, "core {core} may not forward"),
            Why::Workload { core } => write!(f, "a workload is pinned to core {core}"),
            Why::Overload { core, load, high } => {
                write!(f, "core {core} had {} % to forward, above {} %", percent(load), percent(high))
            }
            Why::Hot { load, high } => {
                write!(f, "it alone wants {} % of a core, above {} %", percent(load), percent(high))
            }
            Why::Spilled { core } => {
                write!(f, "core {core} fell behind within a control period and shared the queue at once")
            }
            Why::TakenBack => f.write_str("it is whole again on its core"),
            Why::Calm { low } => {
                write!(f, "for a hold time fewer cores would have been below {} %", percent(low))
            }
            Why::Release { core, low } => {
                let low = percent(low);
                write!(
                    f,
                    "core {core} is given back: for a hold time the others would have been below {low} %"
                )
            }
            Why::Repack { low } => {
                let low = percent(low);
                write!(f, "in another order fewer cores would have been below {low} % for a hold time")
            }
            Why::Policy => f.write_str("the policy places it there"),
            Why::NoRoom { core, load } => {
                write!(f, "stays, core {core} has {} % to forward, and no other has room", percent(load))
            }
            Why::Whole { load } => {
                write!(f, "stays, it alone wants {} % of a core, and its flows are not shared", percent(load))
            }
            Why::WorkloadStays { core } => {
                write!(f, "stays, a workload is pinned to core {core}, and no other has room")
            }
            Why::NoCore => f.write_str("stays, no core that may forward is online"),
            Why::Refused { core } => {
                write!(f, "stays, core {core}, which the policy names, is offline or may not forward")
            }
        }
    }
}
