//! What clients are told of cores: the JSON of the API.

use super::status::ConditionReport;
use logic::cores::CoreId;
use serde::{Deserialize, Serialize};

/// `GET /cores`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoresReport {
    /// `pack`, `spread`, `fixed`, or `off`: queues are left alone.
    pub policy: String,
    /// Cores that may forward; absent: all.
    pub allowed: Option<Vec<CoreId>>,
    /// Above this, percent of a core, queues are given away.
    pub high: u32,
    /// A core is given back when the others then have no more than this, percent.
    pub low: u32,
    pub hold_s: f64,
    /// What applications are left of a core that forwards too, percent; absent: what Linux gives them.
    pub floor: Option<u32>,
    /// The control group of applications whose cores follow forwarding.
    pub serve: Option<ServeReport>,
    /// How far local delivery follows; absent: it stays where packets are received.
    #[serde(default)]
    pub local: Option<LocalReport>,
    /// When cores and queues were measured, seconds since boot (CLOCK_MONOTONIC).
    #[serde(default)]
    pub at_s: f64,
    /// Time between two decisions.
    pub period_ms: u64,
    /// Moves that waited until what was sent before had left; absent: they wait for nothing.
    #[serde(default)]
    pub drains: Option<DrainsReport>,
    /// Online, by ascending number.
    pub cores: Vec<CoreReport>,
    pub queues: Vec<QueueReport>,
    /// Of ports that spread packets over their queues.
    #[serde(default)]
    pub spreads: Vec<SpreadReport>,
    /// Of ports whose wake-ups are to be held back.
    #[serde(default)]
    pub moderations: Vec<ModerationReport>,
    pub workloads: Vec<WorkloadReport>,
    /// Conditions of kind `core`: what cannot be read or done.
    pub conditions: Vec<ConditionReport>,
}

/// Moves of queues to a core, since the daemon's start; not those where nothing could be passed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DrainsReport {
    /// What waited in the old TX queue had left before; how long that took at most.
    pub left: u64,
    pub longest_us: u64,
    /// Not all of it had: flows may have been reordered.
    pub remained: u64,
}

/// Applications' control group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServeReport {
    /// Its directory.
    pub directory: String,
    /// The cores that it was given; absent: none yet.
    pub cores: Option<Vec<CoreId>>,
}

/// Local delivery that follows the application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LocalReport {
    /// RX queues of the ports that are there, and those whose packets follow.
    pub queues: u32,
    pub follow: u32,
    /// Entries of the kernel's table of sockets; 0: it has none, or is not known.
    pub sockets: u32,
}

/// A core. Fractions of its time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreReport {
    pub core: CoreId,
    /// NUMA node.
    pub node: u16,
    pub socket: u16,
    /// The lowest of its hyper-thread siblings.
    pub physical: CoreId,
    /// `forward`, `serve`, `both` or `idle`.
    pub role: String,
    pub may_forward: bool,
    /// In the last control period.
    pub forwarding: f64,
    /// That it forwarded, nanoseconds since the daemon's start.
    #[serde(default)]
    pub forwarding_ns: u64,
    /// Neither forwarding nor idle, in the last 200 ms; absent: not known yet.
    pub other: Option<f64>,
    /// Names of workloads that are pinned to it.
    pub workloads: Vec<String>,
    /// It forwards, and so may take no longer to wake up, microseconds, nor sleep deeper than in this idle state; absent: as the
    /// machine has it.
    #[serde(default)]
    pub resume_us: Option<u32>,
    #[serde(default)]
    pub deepest_idle: Option<String>,
    /// Packets that other cores handed to it because rules say so, and those of them that it had no room for.
    #[serde(default)]
    pub handed_packets: u64,
    #[serde(default)]
    pub handed_dropped: u64,
    /// Flows that are on it by choice, and those of them that are priority flows.
    #[serde(default)]
    pub flows: u32,
    #[serde(default)]
    pub priority_flows: u32,
}

/// An RX queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueReport {
    pub port: String,
    pub queue: u16,
    /// Where it is polled; absent: on the core that sends to it, or not known.
    pub core: Option<CoreId>,
    /// `thread PID` or `interrupt N`; absent: nothing moves it.
    pub moved_by: Option<String>,
    /// Why nothing does.
    pub why_not: Option<String>,
    /// `PORT/QUEUE`: the queue with which it shares what polls or moves it; that one's numbers are theirs together.
    pub moved_with: Option<String>,
    /// Fraction of its core's time that it took in the last control period.
    pub ran: f64,
    /// Fraction of that period that it could have run and something else did.
    pub waited: f64,
    pub wakeups_per_s: f64,
    /// That it ran, nanoseconds, and how often it began to; both since some moment.
    #[serde(default)]
    pub ran_ns: u64,
    #[serde(default)]
    pub wakeups: u64,
    /// That it received, and how often it was polled for them, in the last control period; absent: not counted.
    #[serde(default)]
    pub packets_per_s: Option<f64>,
    #[serde(default)]
    pub polls_per_s: Option<f64>,
    /// The same, all since it is counted.
    #[serde(default)]
    pub packets: u64,
    #[serde(default)]
    pub polls: u64,
    /// The cores that share its flows, if it is split.
    #[serde(default)]
    pub shared: Vec<CoreId>,
    /// Time is known to some 200 ms only, and shared with other softirqs of the core.
    pub is_estimate: bool,
    /// Fraction of a core that it would want where others keep that busy, by which cores are given back; absent: it is not placed.
    #[serde(default)]
    pub beside_others: Option<f64>,
    /// What a packet costs queues of this port without waking up, and a wake-up at the least; absent: what was seen does not tell.
    #[serde(default)]
    pub packet_ns: Option<f64>,
    #[serde(default)]
    pub wake_ns: Option<f64>,
}

/// Over how many of its queues a port spreads packets, by their hash: the first ones (RSS).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpreadReport {
    pub port: String,
    /// Queues in use, of so many that could be.
    pub used: u16,
    pub of: u16,
    /// Why they do not follow the cores that forward; absent: they do.
    pub why_not: Option<String>,
}

/// How long packets of a port may wait for others, so that fewer wake-ups do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModerationReport {
    pub port: String,
    /// Who lets them wait: `the device` or `NAPI`, and how long, microseconds; absent: nobody.
    pub by: Option<String>,
    pub us: Option<f64>,
    /// Why nobody does; absent: somebody does.
    pub why_not: Option<String>,
}

/// Somebody with cores of his own (V2).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkloadReport {
    pub id: u32,
    pub name: String,
    /// `virtual machine`, `container`, `process` or `declared`.
    pub kind: String,
    pub cores: Vec<CoreId>,
}

/// A decision about a queue, or what has happened to it, to a core, or to a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventReport {
    /// Counts up from 1.
    pub number: u64,
    /// Seconds since 1970.
    pub unix_s: f64,
    /// Empty, and `queue` 0: it is about no single queue.
    pub port: String,
    pub queue: u16,
    /// Cores that did its packets, and do from then on; the same: it stays. Of a workload those it was, and is, pinned to.
    pub from: Vec<CoreId>,
    pub to: Vec<CoreId>,
    pub why: String,
}
