//! Workers and their paths: state and counters.

use logic::{
    cores::CoreId,
    paths::PathId,
    plan::{PortId, RouterId},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Packets by port, or by reason.
pub type Counts = BTreeMap<String, u64>;

/// The report of all workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkersReport {
    /// The clock that counts cycles.
    pub clock: String,
    /// Cycles per second of that clock.
    pub hz: u64,
    /// The cost of a switch between paths that workers assume.
    #[serde(default)]
    pub switch: Switch,
    /// The resource that paths share by weight now. A worker reports its own: cycles, until it
    /// knows how much of this resource its packets use.
    #[serde(default)]
    pub share: String,
    /// True: `share` is the scarce resource now; false: it is configured.
    #[serde(default)]
    pub follows: bool,
    /// One packet in this many is measured.
    #[serde(default)]
    pub sample_every: u16,
    /// The longest run of a path.
    #[serde(default)]
    pub longest_run_us: u64,
    /// Each resource of this machine.
    #[serde(default)]
    pub resources: Vec<ResourceStand>,
    /// Empty in the status: there, `run` of each path has it.
    pub paths: Vec<PathStand>,
    /// The workers.
    pub workers: Vec<WorkerStand>,
    /// The queues of ports that workers receive from.
    pub queues: Vec<QueueStand>,
    /// Outputs that were closed since the start; one for each port, for all workers together.
    pub closed_outputs: Vec<OutputStand>,
    /// Packets for the kernel.
    pub up: UpReport,
    /// All frames of the memory for packets.
    pub frames: u32,
    /// Frames that are free now.
    pub free_frames: u32,
    /// Frames that all rings and pools together may use.
    pub promised_frames: u32,
    /// Frames that are not used again, because a NIC had them when its queue was closed.
    pub retired_frames: u32,
}

/// A path. Each of its packets is in exactly one of `out`, `up`, `dropped`, `worker_panicked` and `stopped_packets`,
/// or still with its worker. Counts begin when the path was first planned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PathStand {
    /// Its number.
    pub id: PathId,
    /// Its name.
    pub path: String,
    /// The number of the router that owns it.
    pub router: RouterId,
    /// The core of its worker.
    pub worker: CoreId,
    /// Why it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Packets taken from its RX rings.
    pub packets: u64,
    /// Packets given to the worker's output, by the name of the port; `outputs` count what happened to them there.
    pub out: Counts,
    /// Packets for the kernel, by reason; `up` of the workers counts how many arrived.
    pub up: Counts,
    /// Packets that its chain dropped, by reason.
    pub dropped: Counts,
    /// Packets lost because its chain panicked.
    pub worker_panicked: u64,
    /// Packets dropped because the path is stopped.
    pub stopped_packets: u64,
    /// Panics of its chain since it came to this worker.
    pub panics: u64,
    /// Runs of more than 1.5 s, counted when they end.
    #[serde(default)]
    pub hangs: u64,
    /// Packets that found their RX ring full; not in `packets`.
    pub ring_full: u64,
    /// Packets lost in RX rings that were closed; not in `packets`.
    pub ring_closed: u64,
    /// Turns that had packets.
    pub runs: u64,
    /// Cycles of `runs`.
    pub cycles: u64,
    /// Cycles for a packet, sampled; null: nothing was measured.
    pub cycles_per_packet: Option<u64>,
    /// Bytes that ports receive and send for a packet, sampled.
    #[serde(default)]
    pub io_bytes_per_packet: Option<u64>,
    /// Bytes of memory bandwidth for a packet: counted, or estimated as the workers' `resources` say.
    #[serde(default)]
    pub memory_bytes_per_packet: Option<u64>,
    /// Its recent part of the resource that its worker shares. For cycles this is the fraction of a core,
    /// for another resource the fraction of what all paths of the worker used.
    pub share: f64,
    /// The elements of its present chain.
    pub elements: Vec<ElementReport>,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerStand {
    /// Its core.
    pub core: CoreId,
    /// Why it does not answer: it makes no progress, and keeps its packets. Its paths, queues and outputs are missing here; the
    /// daemon reports their last known values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
    /// The resource that its paths share now.
    #[serde(default)]
    pub share: String,
    /// The fraction of each resource that it used recently: of cycles those of its core, of others those of the machine.
    /// Resources whose use or capacity is not known are missing.
    #[serde(default)]
    pub used: BTreeMap<String, f64>,
    /// Fraction of its core's time that other work took recently; the daemon reports it once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<f64>,
    /// Time that its thread ran; 0 while it does not answer.
    #[serde(default)]
    pub ran_ns: u64,
    /// Fraction of the time since its start that it had packets. In the rest, except `slept`, it looked for packets.
    pub busy: f64,
    /// Fraction of the time since its start that it slept.
    pub slept: f64,
    /// Times that it fell asleep.
    pub sleeps: u64,
    /// Panics outside of chains.
    pub panics: u64,
    /// Its outputs, one for each port that it sends to.
    pub outputs: Vec<OutputStand>,
}

/// A worker's output to a port. Every packet given to it is in exactly one of `sent_packets`, the `dropped` ones and `waiting`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OutputStand {
    /// The port's number.
    pub port: PortId,
    /// The port's name.
    pub name: String,
    /// Packets put into its TX ring.
    pub sent_packets: u64,
    /// Packets that found the TX ring full and waited, whatever happened to them then.
    pub delayed_packets: u64,
    /// Dropped because too many waited.
    pub dropped_full: u64,
    /// Dropped because they lack a whole Ethernet header.
    pub dropped_unfit: u64,
    /// Dropped because the port is gone. Packets that were in its TX ring by then count as sent.
    pub dropped_gone: u64,
    /// Dropped because the port has no TX queue of that number.
    pub dropped_no_queue: u64,
    /// Dropped because they waited when the output was closed.
    pub dropped_closed: u64,
    /// Packets that wait for room now.
    pub waiting: usize,
}

impl OutputStand {
    /// All dropped packets.
    pub fn dropped(&self) -> u64 {
        let OutputStand {
            dropped_full, dropped_unfit, dropped_gone, dropped_no_queue, dropped_closed, ..
        } = self;
        dropped_full + dropped_unfit + dropped_gone + dropped_no_queue + dropped_closed
    }

    /// All fields that only grow.
    pub(crate) fn counts_mut(&mut self) -> [&mut u64; 7] {
        let OutputStand {
            sent_packets,
            delayed_packets,
            dropped_full,
            dropped_unfit,
            dropped_gone,
            dropped_no_queue,
            dropped_closed,
            ..
        } = self;
        [
            sent_packets,
            delayed_packets,
            dropped_full,
            dropped_unfit,
            dropped_gone,
            dropped_no_queue,
            dropped_closed,
        ]
    }

    /// Adds another output of the same port.
    pub(crate) fn add(&mut self, more: &OutputStand) {
        self.counts_mut().into_iter().zip(more.clone().counts_mut()).for_each(|(n, more)| *n += *more);
    }
}

/// A queue of a port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueStand {
    /// The port's number.
    pub port: PortId,
    /// The port's name.
    pub name: String,
    /// The queue's number.
    pub queue: u32,
    /// The core of its worker.
    pub owner: CoreId,
    /// Packets are not copied between the driver and the workers.
    pub zero_copy: bool,
    /// Why they are copied, although zero copy is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies_because: Option<String>,
    /// Workers poll its device themselves while there is load.
    #[serde(default)]
    pub polled: bool,
    /// Why they do not, although polling is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_polled_because: Option<String>,
    /// What is wrong with it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Times that no frame was free for the fill ring. This never happens unless frames were retired
    /// (`retired_frames`).
    pub starved: u64,
    /// Entries of its rings that named a frame which the kernel did not have: a fault of the driver.
    pub refused: u64,
    /// Times that the kernel found the fill ring empty; then packets of some of its paths were lost.
    pub fill_empty: u64,
}

/// An element of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ElementReport {
    /// Its name.
    pub element: String,
    /// Packets that reached it.
    pub packets: u64,
    /// Packets that it passed up, by reason.
    pub up: Counts,
    /// Packets that it dropped, by reason.
    pub dropped: Counts,
    /// Its other counters.
    pub counted: Counts,
}

/// A resource of this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceStand {
    /// Its name.
    pub resource: String,
    /// Its use is counted, so paths can share it fairly.
    pub counted: bool,
    /// How it is counted; or why it is not, and what is estimated instead.
    pub basis: String,
    /// How much of it there is; for cycles, in each core.
    #[serde(default)]
    pub capacity: Capacity,
    /// The fraction of the capacity that all workers used recently. For cycles see `used` of each worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<f64>,
}

/// The capacity of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Capacity {
    /// How much there is in a second; null: not known, so the resource is never scarce.
    pub per_second: Option<u64>,
    /// Where the number comes from, or why it is not known.
    pub basis: String,
}

/// Packets for the kernel since the start. Packets that are in none of these wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpCounts {
    /// Given to the kernel.
    pub packets: u64,
    /// Dropped: exceptions over the payer's limit.
    pub policed: u64,
    /// Dropped: ARP and neighbour discovery over the payer's limit.
    pub control_policed: u64,
    /// Dropped because too many waited.
    pub queue_full: u64,
    /// Dropped because the kernel refused them, or the port is gone.
    pub failed: u64,
}

/// Packets for the kernel: all, and those of each payer that had some. The payer is the router, or the port for packets of no
/// interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpReport {
    /// All of them.
    pub all: UpCounts,
    /// By the number of the router.
    pub routers: BTreeMap<RouterId, UpCounts>,
    /// By the number of the port.
    pub ports: BTreeMap<PortId, UpCounts>,
}

/// The cost of a switch between paths that workers assume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Switch {
    /// 0: it is not known, and is part of the cost of packets.
    pub cycles: u32,
    /// The file that it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<String>,
    /// Why it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_calibrated: Option<String>,
}
