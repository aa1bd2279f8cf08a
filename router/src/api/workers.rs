//! Workers and their paths: how they stand, and what they counted.

use logic::{
    cores::CoreId,
    paths::PathId,
    plan::{PortId, RouterId},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Packets by port, or by reason.
pub type Counts = BTreeMap<String, u64>;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkersReport {
    /// What cycles are counted by, and how many a second has.
    pub clock: String,
    pub hz: u64,
    /// What a switch from path to path is taken to cost (P8).
    #[serde(default)]
    pub switch: Switch,
    /// What paths share by their weights now (P7); a worker says what it does, which is cycles as long as it does not know what packets take of that.
    #[serde(default)]
    pub share: String,
    /// It is what is scarce ([`logic::paths::Saturation`]), else what the configuration says.
    #[serde(default)]
    pub follows: bool,
    /// One packet in so many is measured (P6).
    #[serde(default)]
    pub sample_every: u16,
    /// The longest run of a path (P8).
    #[serde(default)]
    pub longest_run_us: u64,
    /// What is known of each resource on this machine.
    #[serde(default)]
    pub resources: Vec<ResourceStand>,
    pub paths: Vec<PathStand>,
    pub workers: Vec<WorkerStand>,
    pub queues: Vec<QueueStand>,
    /// Of ways out that were closed since the start, all workers' of a port together.
    pub closed_outputs: Vec<OutputStand>,
    pub up: UpReport,
    /// Of the memory for packets: all frames,
    pub frames: u32,
    /// those that nobody has now,
    pub free_frames: u32,
    /// those that rings and pools may have, all together ([`crate::user_plane::workers::frames_needed`]),
    pub promised_frames: u32,
    /// and those that are not used again, as a NIC had them when its queue was closed.
    pub retired_frames: u32,
}

/// A path. Every packet of it is in exactly one of `out`, `up`, `dropped`, `worker_panicked`, `worker_silent` and
/// `stopped_packets`, or in its worker's hands.
/// Counts are from when the path was first planned on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathStand {
    pub id: PathId,
    pub path: String,
    pub router: RouterId,
    /// The core it runs on.
    pub worker: CoreId,
    /// Why it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Taken from its RX rings.
    pub packets: u64,
    /// Given to the worker's way out by a port, by the port's name; what became of them there is in [`OutputStand`].
    pub out: Counts,
    /// For the kernel, by reason; how many got there is in [`UpReport`].
    pub up: Counts,
    /// Dropped by its chain, by reason.
    pub dropped: Counts,
    /// Lost in the hands of its worker, when its chain panicked,
    pub worker_panicked: u64,
    /// or when it did not get on, and another took over.
    #[serde(default)]
    pub worker_silent: u64,
    /// Dropped because the path is stopped.
    pub stopped_packets: u64,
    /// Panics of its chain since it came to this worker.
    pub panics: u64,
    /// Runs that did not end, so that another thread took over, since it came to this worker.
    #[serde(default)]
    pub hangs: u64,
    /// Not in `packets`: lost as they found their RX ring full, in the kernel,
    pub ring_full: u64,
    /// and in RX rings that were closed.
    pub ring_closed: u64,
    /// Turns that had packets.
    pub runs: u64,
    /// That its turns took.
    pub cycles: u64,
    /// Sampled; absent: nothing was measured.
    pub cycles_per_packet: Option<u64>,
    /// Sampled: as it came, and as it left by a port.
    #[serde(default)]
    pub io_bytes_per_packet: Option<u64>,
    /// Of memory bandwidth: counted, or estimated as [`WorkersReport::resources`] says.
    #[serde(default)]
    pub memory_bytes_per_packet: Option<u64>,
    /// Of late, of what its worker shares ([`WorkerStand::share`]): of a core's cycles; of another resource, of what all paths of the worker used.
    pub share: f64,
    /// Of the chain it has now.
    pub elements: Vec<ElementReport>,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStand {
    pub core: CoreId,
    /// Why it tells nothing: it does not get on, with what it has in its hands. Its paths, queues and outputs are missing; in the daemon they are as it told them last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
    /// Times that its thread did not get on, and another took over what it had.
    #[serde(default)]
    pub taken_over: u64,
    /// What its paths share now.
    #[serde(default)]
    pub share: String,
    /// What it used of late, of what there is: of cycles in its core, of other resources in the machine; of those of which both is known.
    #[serde(default)]
    pub used: BTreeMap<String, f64>,
    /// Fraction of its core's time that other work took of late; in the daemon, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<f64>,
    /// Nanoseconds that its thread ran; 0 while it tells nothing.
    #[serde(default)]
    pub ran_ns: u64,
    /// Fractions of the time since it was started: with packets, and asleep. What is missing it looked for packets.
    pub busy: f64,
    pub slept: f64,
    /// Times that it fell asleep.
    pub sleeps: u64,
    /// Of no path's chain.
    pub panics: u64,
    pub outputs: Vec<OutputStand>,
}

/// A worker's way out by a port: every packet given to it is in exactly one of `sent_packets`, the `dropped` ones and `waiting`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputStand {
    pub port: PortId,
    pub name: String,
    /// Put into its TX ring.
    pub sent_packets: u64,
    /// Of all, those that found the TX ring full, and waited.
    pub delayed_packets: u64,
    /// Dropped as more waited than may,
    pub dropped_full: u64,
    /// as they had no whole Ethernet header,
    pub dropped_unfit: u64,
    /// as the port is gone; what its TX ring had then is sent, as far as is known here,
    pub dropped_gone: u64,
    /// as the port has no TX queue of that number,
    pub dropped_no_queue: u64,
    /// as they waited when the way out was closed.
    pub dropped_closed: u64,
    /// Wait for room now.
    pub waiting: usize,
}

impl OutputStand {
    /// All that was.
    pub fn dropped(&self) -> u64 {
        let OutputStand {
            dropped_full, dropped_unfit, dropped_gone, dropped_no_queue, dropped_closed, ..
        } = self;
        dropped_full + dropped_unfit + dropped_gone + dropped_no_queue + dropped_closed
    }

    /// All that only grow.
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

    /// One more of the same port.
    pub(crate) fn add(&mut self, more: &OutputStand) {
        self.counts_mut().into_iter().zip(more.clone().counts_mut()).for_each(|(n, more)| *n += *more);
    }
}

/// A queue of a port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueStand {
    pub port: PortId,
    pub name: String,
    pub queue: u32,
    /// The core of its worker.
    pub owner: CoreId,
    /// Packets are not copied between the driver and the workers.
    pub zero_copy: bool,
    /// Why they are, although it was wanted otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies_because: Option<String>,
    /// Its device is polled by workers themselves, while there is load.
    #[serde(default)]
    pub polled: bool,
    /// Why it is not, although it was wanted otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_polled_because: Option<String>,
    /// What is wrong with it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Times that no frame was there for the fill ring: never, unless memory was retired ([`WorkersReport::retired_frames`]).
    pub starved: u64,
    /// Entries of its rings that were none of the frames which the kernel had: a driver's fault.
    pub refused: u64,
    /// Times that the kernel found the fill ring empty: packets of any of its paths were lost.
    pub fill_empty: u64,
}

/// An element of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElementReport {
    pub element: String,
    /// That came to it.
    pub packets: u64,
    /// That it passed up, by reason.
    pub up: Counts,
    /// That it dropped, by reason.
    pub dropped: Counts,
    /// What it counts besides.
    pub counted: Counts,
}

/// A resource, and what is known of it here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResourceStand {
    pub resource: String,
    /// Can paths share it fairly?
    pub counted: bool,
    /// How it is counted; or why it is not, and what is estimated in its place.
    pub basis: String,
    /// What there is of it: of cycles in each core. Where that is not known it is never found scarce.
    #[serde(default)]
    pub capacity: Capacity,
    /// Of that, what all workers used of late; cycles each worker says ([`WorkerStand::used`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<f64>,
}

/// Of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// What there is of it; `None`: that is not known, and it is never found scarce.
    pub per_second: Option<u64>,
    /// Where that is from; why it is not known.
    pub basis: String,
}

/// What became of packets for the kernel, since the start. Those that are in none of these wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpCounts {
    /// The kernel has them.
    pub packets: u64,
    /// Dropped: exceptions over the payer's limit,
    pub policed: u64,
    /// ARP and neighbour discovery over theirs,
    pub control_policed: u64,
    /// as too many waited,
    pub queue_full: u64,
    /// or as the kernel did not take them, or the port is gone.
    pub failed: u64,
}

/// Of all, and of each payer that had some: by router, and by port those for no interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpReport {
    pub all: UpCounts,
    pub routers: BTreeMap<RouterId, UpCounts>,
    pub ports: BTreeMap<PortId, UpCounts>,
}

/// What workers take a switch to cost (P8), and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switch {
    /// 0: it is not known, and part of what packets cost.
    pub cycles: u32,
    /// Where that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<String>,
    /// Why it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_calibrated: Option<String>,
}
