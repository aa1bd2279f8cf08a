//! Cores, queues, workloads and events, as JSON of the API.

use super::status::{ConditionReport, Why};
use logic::cores::CoreId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Cores, queues and pinned workloads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CoresReport {
    /// `pack`, `spread`, `fixed`, or `off` (queues are left alone).
    pub policy: String,
    /// Cores that may forward; null: all.
    pub allowed: Option<Vec<CoreId>>,
    /// Percent of a core: a core with more to forward gives queues away.
    pub high: u32,
    /// Percent of a core: a core is given back when the others would then have no more than this.
    pub low: u32,
    /// How long the load must be low before a core is given back, as configured.
    pub hold_s: f64,
    /// Percent of a forwarding core that applications keep; null: what Linux gives them.
    pub floor: Option<u32>,
    /// The control group of applications that gets the cores that do not forward.
    pub serve: Option<ServeReport>,
    /// Local delivery that follows the application; null: it stays on the core that receives.
    #[serde(default)]
    pub local: Option<LocalReport>,
    /// When cores and queues were measured, in seconds since boot (CLOCK_MONOTONIC).
    #[serde(default)]
    pub at_s: f64,
    /// Time between two decisions.
    pub period_ms: u64,
    /// Moves that waited until earlier packets had left; null: moves do not wait.
    #[serde(default)]
    pub drains: Option<DrainsReport>,
    /// The online cores, by ascending number.
    pub cores: Vec<CoreReport>,
    /// The RX queues of the ports.
    pub queues: Vec<QueueReport>,
    /// Ports that spread packets over their queues.
    #[serde(default)]
    pub spreads: Vec<SpreadReport>,
    /// Ports whose wake-ups are moderated.
    #[serde(default)]
    pub moderations: Vec<ModerationReport>,
    /// Workloads that are pinned to cores.
    pub workloads: Vec<WorkloadReport>,
    /// Conditions of kind `core`: what cannot be read or done.
    #[serde(default)]
    pub conditions: Vec<ConditionReport>,
}

/// Moves of queues since the daemon's start, except those where no packet could overtake another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DrainsReport {
    /// Moves before which all earlier packets had left the old TX queue.
    pub left: u64,
    /// The longest wait for that.
    pub longest_us: u64,
    /// Moves before which some earlier packets had not left: flows may have been reordered.
    pub remained: u64,
}

/// The control group of applications.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServeReport {
    /// Its directory, as configured.
    pub directory: String,
    /// The cores that it was given; null: none yet.
    pub cores: Option<Vec<CoreId>>,
}

/// Local delivery that follows the application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalReport {
    /// RX queues of the ports that exist.
    pub queues: u32,
    /// The queues among `queues` whose packets follow.
    pub follow: u32,
    /// Entries of the kernel's table of sockets; 0: none, or not known.
    pub sockets: u32,
}

/// A core. Fractions are parts of its time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CoreReport {
    /// Its number.
    pub core: CoreId,
    /// NUMA node.
    pub node: u16,
    /// Its socket.
    pub socket: u16,
    /// The lowest of its hyper-thread siblings.
    pub physical: CoreId,
    /// `forward`, `serve`, `both` or `idle`.
    pub role: String,
    /// It is among the allowed cores, and no control group keeps it for itself.
    pub may_forward: bool,
    /// The control group that keeps it for itself; null: none does.
    #[serde(default)]
    pub kept_by: Option<String>,
    /// Fraction of the last control period that it forwarded.
    pub forwarding: f64,
    /// Time that it has forwarded since the daemon's start.
    #[serde(default)]
    pub forwarding_ns: u64,
    /// Fraction of the last 200 ms that was neither forwarding nor idle; null: not known yet.
    pub other: Option<f64>,
    /// Names of workloads that are pinned to it.
    pub workloads: Vec<String>,
    /// The longest time that it may take to wake up, because it forwards; null: the machine's own setting.
    #[serde(default)]
    pub resume_us: Option<u32>,
    /// The deepest idle state that it may sleep in, because it forwards; null: the machine's own setting.
    #[serde(default)]
    pub deepest_idle: Option<String>,
    /// Packets that other cores handed to it because of rules.
    #[serde(default)]
    pub handed_packets: u64,
    /// Packets among `handed_packets` that it had no room for.
    #[serde(default)]
    pub handed_dropped: u64,
    /// Flows that were placed on it.
    #[serde(default)]
    pub flows: u32,
    /// The priority flows among `flows`.
    #[serde(default)]
    pub priority_flows: u32,
}

/// An RX queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueReport {
    /// The port's name.
    pub port: String,
    /// Its number on the port.
    pub queue: u16,
    /// The core that polls it; null: the core that sends to it, or not known.
    pub core: Option<CoreId>,
    /// `thread PID` or `interrupt N`; null: nothing moves it.
    pub moved_by: Option<String>,
    /// Why nothing moves it.
    pub why_not: Option<Why>,
    /// `PORT/QUEUE`: the queue whose thread or interrupt it shares. That queue's numbers count for both.
    pub moved_with: Option<String>,
    /// Fraction of its core's time that it ran in the last control period.
    pub ran: f64,
    /// Fraction of that period in which it could run but something else ran.
    pub waited: f64,
    /// How often it began to run, in the last control period.
    pub wakeups_per_s: f64,
    /// Time that it ran, since an arbitrary moment.
    #[serde(default)]
    pub ran_ns: u64,
    /// How often it began to run, since the moment from which `ran_ns` counts.
    #[serde(default)]
    pub wakeups: u64,
    /// Packets that it received, in the last control period; null: not counted.
    #[serde(default)]
    pub packets_per_s: Option<f64>,
    /// How often it was polled, in the last control period; null: not counted.
    #[serde(default)]
    pub polls_per_s: Option<f64>,
    /// Packets since the count began.
    #[serde(default)]
    pub packets: u64,
    /// Polls since the count began.
    #[serde(default)]
    pub polls: u64,
    /// The cores that share its flows, if it is split.
    #[serde(default)]
    pub shared: Vec<CoreId>,
    /// The cores that would share its flows at once if its core fell behind.
    #[serde(default)]
    pub helpers: Vec<CoreId>,
    /// Its time is known only to about 200 ms, and includes other softirqs of the core.
    pub is_estimate: bool,
    /// Fraction of a core that it would need where others keep the core busy. Cores are given back by this number. Absent: it is
    /// not placed.
    #[serde(default)]
    pub beside_others: Option<f64>,
    /// Cost of a packet without wake-ups, for queues of this port; null: it cannot be estimated.
    #[serde(default)]
    pub packet_ns: Option<f64>,
    /// The least cost of a wake-up, for queues of this port; null: it cannot be estimated.
    #[serde(default)]
    pub wake_ns: Option<f64>,
}

/// The queues over which a port spreads packets by their hash (RSS).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SpreadReport {
    /// The port's name.
    pub port: String,
    /// Queues in use: the first ones.
    pub used: u16,
    /// Queues that could be in use.
    pub of: u16,
    /// Why they do not follow the cores that forward; null: they do.
    pub why_not: Option<String>,
}

/// How long packets of a port may wait for others, to save wake-ups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModerationReport {
    /// The port's name.
    pub port: String,
    /// What makes them wait: `the device` or `NAPI`; null: nothing.
    pub by: Option<String>,
    /// The longest wait in microseconds; null: nothing makes them wait.
    pub us: Option<f64>,
    /// Why nothing makes them wait.
    pub why_not: Option<String>,
}

/// An application, a container or a virtual machine that is pinned to cores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkloadReport {
    /// The lowest of its process ids; for a declared workload, a number that no process has.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// `virtual machine`, `container`, `process` or `declared`.
    pub kind: String,
    /// The cores that it is pinned to.
    pub cores: Vec<CoreId>,
}

/// A decision about a queue, or a change of a queue, a core or a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventReport {
    /// Counts up from 1.
    pub number: u64,
    /// Seconds since 1970.
    pub unix_s: f64,
    /// The port of the queue; empty, with `queue` 0: the event is not about one queue.
    pub port: String,
    /// The number of the queue on that port.
    pub queue: u16,
    /// The cores that handled its packets before, or that the workload was pinned to.
    pub from: Vec<CoreId>,
    /// The cores from now on; equal to `from`: it stays.
    pub to: Vec<CoreId>,
    /// The cause, as a sentence.
    pub why: String,
}
