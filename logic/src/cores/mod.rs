//! Decides which core polls each RX queue (Q1, Q6, Q7, Q10).
//!
//! In every control period (10 ms) `router` reports what cores and queues did ([`View`]). An [`Allocator`] decides
//! where queues should be ([`Plan`]) and gives the reasons for changes ([`Event`]). Then `router` moves the queues.
//!
//! | file | holds |
//! |---|---|
//! | `measure` | how much a queue wants, from measurements |
//! | `cost` | the part that waking up takes, and what queues would want of a core that others keep busy |
//! | `history` | what queues wanted over the last hold time |
//! | `board` | a possible placement of queues on cores, and which core is tried first |
//! | `allocator` | the state from period to period; cores that must be left; the policies `spread` and `fixed` |
//! | `grow` | a core that has too much gives queues away, or shares one |
//! | `release` | unneeded cores are given back, and split queues joined |
//! | `drain` | how long a move may wait for packets that were sent before it |
//! | `floor` | the part of a forwarding core that is left to applications |
//! | `serve` | the cores of applications that give way to forwarding |
//! | `awake` | cores that should not sleep deeply, because they forward |
//! | `choice` | which core a flow gets if its rule lets the switch choose |
//! | `split` | a split queue's flows in buckets, each on one core |
//! | `spill` | which core helps a queue that falls behind, before the next decision |
//! | `in_use` | over how many queues the packets of a port are spread |
//! | `event`, `role` | the reports for people |
//!
//! # Packing
//! The policy `pack` keeps forwarding on few cores (Q7). The others belong to applications, and a busy core takes fewer
//! interrupts per packet.
//!
//! **Wants.** A queue wants as much of a core as the time that it ran. Its waiting time counts only if it never slept
//! (ran or waited for 95 % of the period). A queue that slept had all that it wanted, and waited before that for its
//! turn behind other queues or applications. A queue that never slept may want a quarter more than it got, and its part
//! of the time that other work took. The missing amount cannot be seen. So a full core becomes two, and if these are
//! full, too, four, 20 ms later.
//!
//! **Grow** at once. A core gives queues away if its queues wanted more than `high` in *both* of the last two periods.
//! (`high` is 85 %; the rest absorbs bursts in the 10 ms between decisions.) So one noisy period moves nothing, and a
//! step is answered after 20 ms. The smallest queue that suffices moves, or else the largest and so on. It goes to a
//! core that already forwards, or else to one more. Both cores are then below `low` (70 %), so a load that fluctuates
//! by a fifth moves nothing again. Only if no more core can be added are cores filled to `high`. If that is not enough,
//! all queues are placed again, first-fit decreasing. These two steps do not move a queue, or all queues, twice in a
//! hold time. If the load is too much for all cores, it is evened out if that wins `high - low` of a core.
//!
//! **Split.** A queue that alone wants more than `high` is shared by flow, evenly, over the fewest cores with room. Its
//! home shares, too, unless handing packets on fills it.
//!
//! **Spill** within a fraction of a period. A core that takes too many full polls shares its queues with
//! another core. The allocator chose that core before ([`Help`]). If this does not suffice, one more core helps. The
//! allocator sees that in the next period. It then knows what each queue wants, and grows as if the queues were
//! whole. Flows return to their home as soon as they fit there. If the help was needless, the next help comes later.
//!
//! **Release** slowly. The remaining cores must have room, each below `low`, for what all queues wanted together in the
//! worst moment of each seventh of the last hold time (2 s). The wants on these cores count. A busy core is woken less
//! often, so queues want less together than of a core each. This counts if it is known how much it saves (`cost`). Then
//! as many cores as possible are emptied in one step, and split queues are joined. If none can be emptied, all queues
//! are placed again by the measured wants, if that takes fewer cores. Nothing is given back within a hold time after
//! any move, and not within two if the last core was missed within one. So on average there is at most one step per
//! hold time, although growing never waits.
//!
//! **First sight.** Queues stay where they are, and are packed after they have been seen for a hold time.
//!
//! **Which core.** The order of preference is a core without pinned workloads (V3), that already forwards, none of
//! whose hyper-thread siblings forwards, of the port's NUMA node, with the least other work (in tenths), with the
//! lowest number. Forbidden and offline cores are left at once. Cores that get a workload are left if others have room.

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
mod spill;
pub mod split;

pub use allocator::Allocator;
pub use awake::Awake;
pub use cost::Cost;
pub use drain::Ring;
pub use event::{Event, Why};
pub use floor::Floor;
pub use role::{Role, roles};
pub use serve::serving;
pub use spill::{HELPERS, Help};

use crate::plan::PortId;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A core, as Linux numbers CPUs.
pub type CoreId = u16;

/// One RX queue with its NAPI instance, which is placed on a core (Q1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId {
    pub port: PortId,
    /// The number of the queue within its port, 0..
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
    /// The fraction of its time that other work took: everything except forwarding and idling.
    pub other: f64,
}

/// A queue, in one control period.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    pub id: QueueId,
    /// The NUMA node of its port, if known.
    pub node: Option<u16>,
    /// The core it is on.
    pub core: CoreId,
    /// Whether it can be moved. A queue that cannot counts where it is.
    pub movable: bool,
    /// The fraction of its own core's time that the core spent on it.
    pub ran: f64,
    /// The fraction of the period in which it could have run on its own core but something else ran.
    pub waited: f64,
    /// `None`: unknown.
    pub counted: Option<Counted>,
    /// The work of other cores for it, while it is split.
    pub parts: Vec<Part>,
    /// Other cores share the queue, but their work is not known yet, so `parts` is empty.
    pub is_partial: bool,
    /// The cores that began to help the queue in this period, because it fell behind ([`Help`]).
    pub spilled: Vec<CoreId>,
}

/// The work of a queue's own core for it, in one control period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counted {
    pub packets_per_s: f64,
    /// How often it began to run.
    pub wakeups_per_s: f64,
}

/// Another core that does a share of a queue's work, in one control period.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub core: CoreId,
    /// Like [`Queue::ran`], of this core.
    pub ran: f64,
    /// Like [`Queue::waited`], on this core.
    pub waited: f64,
}

/// The work of the machine in one control period. Fractions that are NaN count as 0, and others are clamped to 0..=1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// All cores that are online, by ascending id.
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
    /// Round robin over all allowed cores, whatever the load. Receive-side scaling does this; it is the baseline.
    Spread,
    /// On the given cores. Other queues stay where they are.
    Fixed(BTreeMap<QueueId, CoreId>),
}

/// Values from the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub policy: Policy,
    /// Cores that may forward; `None`: all.
    pub allowed: Option<BTreeSet<CoreId>>,
    /// A core whose forwarding load is above this fraction gives queues away.
    pub high: f64,
    /// A core is given back if the load of the others is then at most this fraction. It is below `high`.
    pub low: f64,
    /// The hold time: a lower load must have lasted this long before a core is given back.
    pub hold: Duration,
    /// Whether flows of one queue can be shared among cores.
    pub splits: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let (high, low, hold) = (0.85, 0.70, Duration::from_secs(2));
        Self { policy: Policy::Pack, allowed: None, high, low, hold, splits: true }
    }
}

impl Settings {
    /// Whether this core may forward.
    pub fn allows(&self, core: CoreId) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&core))
    }
}

/// Where queues should be. It is absolute, so applying it twice is harmless.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The core that polls each queue of the view.
    pub home: BTreeMap<QueueId, CoreId>,
    /// For each split queue, the cores that share its flows evenly, ascending. At least one is not its home. If the
    /// home is among them, it keeps its share and hands the rest on. Otherwise it hands everything on.
    pub split: BTreeMap<QueueId, Vec<CoreId>>,
}

impl Plan {
    /// The cores that forward.
    pub fn cores(&self) -> BTreeSet<CoreId> {
        self.home.values().chain(self.split.values().flatten()).copied().collect()
    }
}

/// The result of a control period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    pub plan: Plan,
    /// The changes, in the order in which they were decided.
    pub events: Vec<Event>,
    /// The help for each queue that falls behind before the next decision.
    pub help: BTreeMap<QueueId, Help>,
}

#[cfg(test)]
mod tests;
