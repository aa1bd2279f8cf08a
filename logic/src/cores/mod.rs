//! Which core each RX queue is placed on (Q1, Q6, Q7, Q10).
//!
//! `router` reports in every control period (10 ms) what cores and queues did ([`View`]), an [`Allocator`] says where queues
//! shall be ([`Plan`]) and why anything changed ([`Event`]), `router` moves them.
//!
//! | file | holds |
//! |---|---|
//! | `measure` | what a queue wants, from what was measured |
//! | `cost` | what of that waking up took, and what queues would want of a core that others keep busy |
//! | `history` | what queues wanted over the last hold time |
//! | `board` | queues on cores as they would be, and which core is tried first |
//! | `allocator` | what is remembered from period to period; cores that must be left; the policies `spread` and `fixed` |
//! | `grow` | a core that has too much gives queues away, or shares one |
//! | `release` | cores that are not needed are given back, split queues joined |
//! | `drain` | how long a move may wait for what was sent before it |
//! | `floor` | what applications are left of a core that forwards, too |
//! | `serve` | the cores of applications that follow forwarding |
//! | `awake` | cores that shall not sleep deep, as they forward |
//! | `choice` | which core a flow gets whose rule lets the switch choose |
//! | `split` | a split queue's flows in buckets, each on one core |
//! | `in_use` | how many queues of a port packets are spread over |
//! | `event`, `role` | what people are told |
//!
//! # Packing
//! The policy `pack` keeps forwarding on few cores (Q7): the others belong to applications, and a busy core takes fewer
//! interrupts for a packet.
//!
//! **Wants.** What a queue wants of a core is the time that it ran. What it waited counts only if it never slept (ran or waited for
//! 95 % of the period): what slept had all that it wanted, and waited for its turn before, behind other queues or applications.
//! One that never slept may want a quarter more than it got, and its part of what other work took: how much is missing cannot be
//! seen, so a full core becomes two, and if these are full, too, four, 20 ms later.
//!
//! **Grow** at once. A core whose queues wanted more than `high` (85 %: what is left carries bursts of the 10 ms between decisions)
//! in *both* of the last two periods gives queues away, so that one noisy period moves nothing and a step is answered after
//! 20 ms. The smallest queue that suffices moves, else the largest and so on, to a core that forwards already, else to one more.
//! Both cores are then below `low` (70 %), so a load that wobbles by a fifth moves nothing again. Only if no core is left to be
//! added are cores filled to `high`; if that is not enough, all queues are placed anew, first-fit decreasing. These two move no
//! queue, or not all, twice in a hold time. If all is too much, loads are evened out where that wins `high - low` of a core.
//!
//! **Split.** A queue that alone wants more than `high` is shared by flow over the fewest cores with room, evenly. Its home
//! shares, too, unless handing packets on fills it.
//!
//! **Release** slowly. What all wanted together in the worst moment of each seventh of the last hold time (2 s) must fit the cores
//! that remain, each below `low`. What counts is what they would want there: a busy core is woken less often, and where it is known
//! what that saves (`cost`), queues want less together than of a core each. Then as many cores as can be are emptied in one step, and split queues joined. If none can, all queues are
//! placed anew where that takes fewer cores, by what was measured. Nothing is given
//! back within a hold time after any move, and not within two if the last core was missed within one: on average there is one
//! step per hold time at most, although growing never waits.
//!
//! **First sight.** Queues stay where they are, and are packed when they were seen for a hold time.
//!
//! **Which core.** One without pinned workloads (V3), that forwards already, none of whose hyper-thread siblings forwards, of the
//! port's NUMA node, with the least other work (in tenths), with the lowest number: in this order. Forbidden and offline cores
//! are left at once, cores that get a workload if others have room.

mod allocator;
mod awake;
mod board;
pub mod choice;
mod cost;
pub mod drain;
mod event;
mod floor;
mod grow;
mod history;
pub mod in_use;
mod measure;
mod release;
mod role;
mod serve;
pub mod split;

pub use allocator::Allocator;
pub use awake::Awake;
pub use cost::Cost;
pub use drain::Ring;
pub use event::{Event, Why};
pub use floor::Floor;
pub use role::{Role, roles};
pub use serve::serving;

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
    /// `None`: not known.
    pub counted: Option<Counted>,
    /// What other cores did for it, while it is split.
    pub parts: Vec<Part>,
}

/// What a queue's own core did for it, in one control period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    pub packets_per_s: f64,
    /// It began to run.
    pub wakeups_per_s: f64,
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

/// What the machine did in one control period. Fractions that are no numbers count as 0, others as
/// the nearest in 0..=1.
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
    /// Can flows of one queue be shared among cores?
    pub splits: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let (high, low, hold) = (0.85, 0.70, Duration::from_secs(2));
        Self { policy: Policy::Pack, allowed: None, high, low, hold, splits: true }
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
    /// home is among them it keeps its share, and hands the rest on; else it hands on all.
    pub split: BTreeMap<QueueId, Vec<CoreId>>,
}

impl Plan {
    /// Those that forward.
    pub fn cores(&self) -> BTreeSet<CoreId> {
        self.home.values().chain(self.split.values().flatten()).copied().collect()
    }
}

/// What follows from a view.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    pub plan: Plan,
    /// What changed, in the order in which it was decided.
    pub events: Vec<Event>,
}

#[cfg(test)]
mod tests;
