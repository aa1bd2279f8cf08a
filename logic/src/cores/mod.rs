//! Which core each RX queue is placed on (Q1, Q6, Q7, Q10).
//!
//! `router` reports in every control period what cores and queues did ([`View`]), an [`Allocator`] says where queues shall be
//! ([`Plan`]) and why anything changed ([`Event`]), `router` moves them.

mod event;

pub use event::{Event, Why};

use crate::plan::PortId;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A core, as Linux numbers CPUs.
pub type CoreId = u16;

/// One RX queue with its NAPI instance: what is placed on a core (Q1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId {
    pub port: PortId,
    /// Of the queue within its port, 0..
    pub index: u16,
}

/// An online core, in one control period.
#[derive(Clone, Debug, PartialEq)]
pub struct Core {
    pub id: CoreId,
    /// NUMA node.
    pub node: u16,
    /// Hyper-thread siblings share this number.
    pub physical: u16,
    /// Workloads that are pinned to it (V2).
    pub workloads: u16,
    /// Fraction of its time that other work took: all but forwarding and idling.
    pub other: f64,
}

/// A queue, in one control period.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    pub id: QueueId,
    /// NUMA node of its port, if the machine has told.
    pub node: Option<u16>,
    /// The core it is on.
    pub core: CoreId,
    /// Can it be moved? One that cannot counts where it is.
    pub movable: bool,
    /// Fraction of one core's time that its own core spent on it.
    pub ran: f64,
    /// Fraction of the period that it could have run on its own core and did not, because something else ran.
    pub waited: f64,
    /// What other cores did for it, while it is split.
    pub parts: Vec<Part>,
}

/// Another core that does a share of a queue's work, in one control period.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub core: CoreId,
    /// As [`Queue::ran`], of this core.
    pub ran: f64,
    /// As [`Queue::waited`], on this core.
    pub waited: f64,
}

/// What the machine did in one control period. Fractions that are no numbers count as 0, others as the nearest in 0..=1; what
/// comes twice counts once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// All that are online, by ascending id.
    pub cores: Vec<Core>,
    /// By ascending id.
    pub queues: Vec<Queue>,
}

/// How queues are placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// On the fewest cores that can carry them (Q7).
    #[default]
    Pack,
    /// Over all allowed cores, round robin, whatever the load: what receive-side scaling does, the baseline.
    Spread,
    /// Where it says; other queues stay where they are.
    Fixed(BTreeMap<QueueId, CoreId>),
}

/// What people set.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub policy: Policy,
    /// Cores that may forward; `None`: all.
    pub allowed: Option<BTreeSet<CoreId>>,
    /// A core whose forwarding load is above this fraction gives queues away.
    pub high: f64,
    /// A core is given back when the others' load then is at most this fraction; below `high`.
    pub low: f64,
    /// The hold time: for so long a lower load must have lasted before a core is given back.
    pub hold: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { policy: Policy::Pack, allowed: None, high: 0.85, low: 0.70, hold: Duration::from_secs(2) }
    }
}

impl Settings {
    /// May this core forward?
    pub fn allows(&self, core: CoreId) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&core))
    }
}

/// Where queues shall be. It is absolute: applying it twice is harmless.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Of every queue of the view: the core that polls it.
    pub home: BTreeMap<QueueId, CoreId>,
    /// Of each queue that is split: the cores that share its flows evenly, ascending, at least one other than its home. If the
    /// home is among them it keeps that share; else it hands all flows on.
    pub split: BTreeMap<QueueId, Vec<CoreId>>,
}

/// What follows from a view.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    pub plan: Plan,
    /// What changed, in the order in which it was decided.
    pub events: Vec<Event>,
}

/// Decides, period by period, and keeps what it needs of the past.
#[derive(Debug, Default)]
pub struct Allocator {}

impl Allocator {
    /// Where queues shall be after the control period that ends `now`, a time that does not go back.
    pub fn decide(&mut self, _now: Duration, view: &View, settings: &Settings) -> Decision {
        let mut decision = Decision::default();
        let online: BTreeSet<CoreId> = view.cores.iter().map(|core| core.id).collect();
        let first = online.iter().find(|&&core| settings.allows(core));
        for queue in &view.queues {
            let why = match queue.core {
                core if !online.contains(&core) => Some(Why::Offline),
                core if !settings.allows(core) => Some(Why::Forbidden),
                _ => None,
            };
            let home = match (why, first) {
                (Some(why), Some(&to)) if queue.movable => {
                    decision.events.push(Event {
                        queue: queue.id,
                        from: vec![queue.core],
                        to: vec![to],
                        why,
                    });
                    to
                }
                _ => queue.core,
            };
            decision.plan.home.insert(queue.id, home);
        }
        decision
    }
}

#[cfg(test)]
mod tests;
