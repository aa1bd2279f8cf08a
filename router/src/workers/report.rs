//! How workers stand.

use super::{
    counters::ResourceStand,
    exchange::{Fates, PortsByNumber},
    inner::{Inner, Times},
    up::UpReport,
};
use crate::{
    af_xdp::{OutputCounts, Receiver},
    calibrate::Switch,
    paths::{Counts, ElementReport, elements},
};
use logic::{
    cores::CoreId,
    elements::Loss,
    paths::{PathId, Resource},
    plan::{PortId, RouterId},
    reason::Reason,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

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
    /// those that rings and pools may have, all together ([`super::frames_needed`]),
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
    pub(super) fn of(port: PortId, name: String, counts: OutputCounts) -> OutputStand {
        let OutputCounts {
            sent_packets,
            delayed_packets,
            dropped_full,
            dropped_unfit,
            dropped_gone,
            dropped_no_queue,
        } = counts;
        OutputStand {
            port,
            name,
            sent_packets,
            delayed_packets,
            dropped_full,
            dropped_unfit,
            dropped_gone,
            dropped_no_queue,
            dropped_closed: 0,
            waiting: 0,
        }
    }

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
    pub(super) fn add(&mut self, more: &OutputStand) {
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

/// Why a path is.
const STOPPED: &str = "its chain panicked, or did not get on, again and again; another chain starts it";

/// What one worker tells.
pub(super) struct Told {
    pub worker: WorkerStand,
    pub shared: Resource,
    pub paths: Vec<PathStand>,
    pub queues: Vec<QueueStand>,
}

pub(super) fn told(core: CoreId, inner: &mut Inner) -> Told {
    let now = inner.desk.clock.cycles();
    let Times { begun, busy, slept, sleeps, panics } = inner.times;
    let part = |of: u64| of as f64 / now.saturating_sub(begun).max(1) as f64;
    let name = |port| port_name(&inner.known_ports, port);
    let output = |(port, at): (PortId, usize)| {
        let output = inner.io.outputs().get(at)?;
        let stand = OutputStand::of(port, name(port), output.counts());
        Some(OutputStand { waiting: output.waiting(), ..stand })
    };
    let outputs = inner.desk.outputs().filter_map(output).collect();
    let shared = inner.turns.shared();
    let worker = WorkerStand {
        core,
        share: shared.to_string(),
        ran_ns: ran_ns(),
        busy: part(busy),
        slept: part(slept),
        sleeps,
        panics,
        outputs,
        ..WorkerStand::default()
    };
    let faults: BTreeMap<usize, String> =
        inner.io.faults().map(|(queue, fault)| (queue, fault.to_string())).collect();
    let queue = |(n, queue): (usize, &crate::af_xdp::Queue)| QueueStand {
        port: queue.wanted().port,
        name: name(queue.wanted().port),
        queue: queue.wanted().queue,
        owner: core,
        zero_copy: queue.is_zero_copy(),
        copies_because: queue.copies_because().map(ToString::to_string),
        polled: queue.polled() == Some(Ok(())),
        not_polled_because: queue.polled().and_then(|polled| Some(polled.err()?.to_string())),
        fault: faults.get(&n).cloned(),
        starved: queue.counts().starved,
        refused: queue.counts().refused,
        fill_empty: queue.statistics().map_or(0, |statistics| statistics.fill_ring_empty),
    };
    let queues = inner.io.queues().iter().enumerate().map(queue).collect();
    Told { worker, shared, paths: paths(core, inner), queues }
}

/// This thread.
fn ran_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).map_or(0, |time| time.as_nanos() as u64)
}

fn paths(core: CoreId, inner: &Inner) -> Vec<PathStand> {
    let path = |account: logic::paths::Account| {
        let id = account.path.id;
        let (fates, (panics, hangs)) = (inner.desk.fates.get(usize::from(id))?, inner.faults(id));
        let ring_full =
            |ring: &Receiver| ring.statistics().map_or(0, |statistics| statistics.receive_ring_full);
        let ring_full = inner.io.receivers(id.into()).map(ring_full).sum::<u64>() + fates.ring_full_before;
        Some(PathStand {
            id,
            path: inner.name(id),
            router: account.path.router,
            worker: core,
            stopped: inner.is_stopped(id).then(|| STOPPED.into()),
            panics,
            hangs,
            ring_full,
            runs: fates.runs_before + account.runs - account.empty_runs,
            cycles: fates.cycles_before + account.cycles,
            cycles_per_packet: account.cost.of(Resource::Cycles),
            io_bytes_per_packet: account.cost.of(Resource::Io),
            memory_bytes_per_packet: account.cost.of(Resource::Memory).or(account.cost.of(Resource::Io)),
            elements: elements(&inner.turns, id),
            ..counted(fates, &inner.known_ports)
        })
    };
    inner.turns.accounts().filter_map(path).collect()
}

/// Of a port that was never planned only the number is known.
pub(super) fn port_name(names: &PortsByNumber, port: PortId) -> String {
    names.get(&port).cloned().unwrap_or_else(|| format!("port {port}"))
}

/// What a path's packets became.
fn counted(fates: &Fates, names: &PortsByNumber) -> PathStand {
    let some = |counts: &[u64]| -> Vec<(usize, u64)> {
        counts.iter().copied().enumerate().filter(|(_, packets)| *packets > 0).collect()
    };
    let reasons = Reason::all().zip(fates.up).filter(|(_, packets)| *packets > 0);
    let losses = Loss::ALL.into_iter().zip(fates.dropped).filter(|(_, packets)| *packets > 0);
    PathStand {
        packets: fates.packets,
        out: some(&fates.out)
            .into_iter()
            .map(|(port, packets)| (port_name(names, port as PortId), packets))
            .collect(),
        up: reasons.map(|(reason, packets)| (reason.name().into(), packets)).collect(),
        dropped: losses.map(|(loss, packets)| (loss.name().into(), packets)).collect(),
        worker_panicked: fates.worker_panicked,
        worker_silent: fates.worker_silent,
        stopped_packets: fates.stopped,
        ring_closed: fates.left,
        ..PathStand::default()
    }
}
