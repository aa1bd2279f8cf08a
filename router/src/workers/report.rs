//! How workers stand.

use super::{
    exchange::Fates,
    inner::{Inner, Times},
    up::UpReport,
};
use crate::{
    af_xdp::{OutputCounts, Receiver},
    paths::{Counts, ElementReport, elements},
};
use logic::{
    cores::CoreId,
    elements::Loss,
    paths::{Cost, PathId, Resource},
    plan::{PortId, RouterId},
    reason::Reason,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// All of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WorkersReport {
    /// What cycles are counted by, and how many a second has.
    pub clock: &'static str,
    pub hz: u64,
    pub paths: Vec<PathStand>,
    pub workers: Vec<WorkerStand>,
    pub queues: Vec<QueueStand>,
    /// Of ways out that were closed since the start, all workers' of a port together.
    pub closed_outputs: Vec<OutputStand>,
    pub up: UpReport,
    /// Of the memory for packets: all, free now and not in a worker's pool, promised, and not used again.
    pub frames: u32,
    pub free_frames: u32,
    pub promised_frames: u32,
    pub retired_frames: u32,
}

/// A path. Every packet of it is in `out`, `up`, `dropped`, `worker_panicked`, `stopped_packets`, or in its worker's hands.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PathStand {
    pub id: PathId,
    pub path: String,
    pub router: RouterId,
    pub worker: CoreId,
    /// Why it does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Taken from its RX rings.
    pub packets: u64,
    /// By port.
    pub out: Counts,
    /// By reason.
    pub up: Counts,
    /// By reason.
    pub dropped: Counts,
    /// Lost in the hands of its worker, when its chain panicked.
    pub worker_panicked: u64,
    /// Dropped because the path is stopped.
    pub stopped_packets: u64,
    /// Panics of its chain on this worker.
    pub panics: u64,
    /// That found their RX ring full, in the kernel.
    pub ring_full: u64,
    /// In RX rings that were closed; not in `packets`.
    pub left: u64,
    pub runs: u64,
    pub cycles: u64,
    /// Sampled; absent: nothing was measured.
    pub cycles_per_packet: Option<u64>,
    /// Of its worker's cycles, since the report before.
    pub share: f64,
    /// Of the chain it has now.
    pub elements: Vec<ElementReport>,
    #[serde(skip)]
    pub(super) cost: Cost,
}

/// A worker.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WorkerStand {
    pub core: CoreId,
    /// Why it tells nothing: it is in the same run for seconds. Its paths and queues are missing too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
    /// Fractions of the time since it was started: with packets, and asleep. What is missing it looked for packets.
    pub busy: f64,
    pub slept: f64,
    pub sleeps: u64,
    /// Of no path's chain.
    pub panics: u64,
    pub outputs: Vec<OutputStand>,
}

/// A worker's way out by a port.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OutputStand {
    pub port: PortId,
    pub sent_packets: u64,
    pub delayed_packets: u64,
    pub dropped_full: u64,
    pub dropped_unfit: u64,
    pub dropped_gone: u64,
    pub dropped_no_queue: u64,
    /// Wait for room now.
    pub waiting: usize,
    /// Waited for room when it was closed, and are lost.
    pub left: u64,
}

impl OutputStand {
    pub(super) fn of(port: PortId, counts: OutputCounts) -> OutputStand {
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
            sent_packets,
            delayed_packets,
            dropped_full,
            dropped_unfit,
            dropped_gone,
            dropped_no_queue,
            waiting: 0,
            left: 0,
        }
    }

    /// One more of the same port.
    pub(super) fn add(&mut self, more: &OutputStand) {
        self.sent_packets += more.sent_packets;
        self.delayed_packets += more.delayed_packets;
        self.dropped_full += more.dropped_full;
        self.dropped_unfit += more.dropped_unfit;
        self.dropped_gone += more.dropped_gone;
        self.dropped_no_queue += more.dropped_no_queue;
        self.left += more.left;
    }
}

/// A queue of a port.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QueueStand {
    pub port: PortId,
    pub queue: u32,
    /// Its worker.
    pub owner: CoreId,
    pub zero_copy: bool,
    /// Why not, although it was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies_because: Option<String>,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Times that no frame was there for the fill ring, and entries of the kernel's that are none.
    pub starved: u64,
    pub refused: u64,
    /// Times that the kernel found the fill ring empty: packets of any of its paths were lost.
    pub fill_empty: u64,
}

/// What one worker tells.
pub(super) struct Told {
    pub worker: WorkerStand,
    pub paths: Vec<PathStand>,
    pub queues: Vec<QueueStand>,
}

pub(super) fn told(core: CoreId, inner: &mut Inner) -> Told {
    let now = inner.desk.clock.cycles();
    let Times { begun, busy, slept, sleeps, panics } = inner.times;
    let part = |of: u64| of as f64 / now.saturating_sub(begun).max(1) as f64;
    let output = |(port, at): (PortId, usize)| {
        let output = inner.io.outputs().get(at)?;
        Some(OutputStand { waiting: output.waiting(), ..OutputStand::of(port, output.counts()) })
    };
    let outputs = inner.desk.outputs().filter_map(output).collect();
    let silent = None;
    let worker = WorkerStand { core, silent, busy: part(busy), slept: part(slept), sleeps, panics, outputs };
    let faults: BTreeMap<usize, String> =
        inner.io.faults().map(|(queue, fault)| (queue, fault.to_string())).collect();
    let queue = |(n, queue): (usize, &crate::af_xdp::Queue)| QueueStand {
        port: queue.wanted().port,
        queue: queue.wanted().queue,
        owner: core,
        zero_copy: queue.is_zero_copy(),
        copies_because: queue.copies_because().map(ToString::to_string),
        fault: faults.get(&n).cloned(),
        starved: queue.counts().starved,
        refused: queue.counts().refused,
        fill_empty: queue.statistics().map_or(0, |statistics| statistics.fill_ring_empty),
    };
    let queues = inner.io.queues().iter().enumerate().map(queue).collect();
    Told { worker, paths: paths(core, inner), queues }
}

fn paths(core: CoreId, inner: &Inner) -> Vec<PathStand> {
    let path = |account: logic::paths::Account| {
        let id = account.path.id;
        let fates = inner.desk.fates.get(usize::from(id))?;
        let ring_full =
            |ring: &Receiver| ring.statistics().map_or(0, |statistics| statistics.receive_ring_full);
        let ring_full = inner.io.receivers(id.into()).map(ring_full).sum::<u64>() + fates.ring_full_before;
        Some(PathStand {
            id,
            router: account.path.router,
            worker: core,
            panics: inner.panicked(id),
            ring_full,
            runs: fates.runs_before + account.runs - account.empty_runs,
            cycles: fates.cycles_before + account.cycles,
            cycles_per_packet: account.cost.of(Resource::Cycles),
            elements: elements(&inner.worker, id),
            cost: account.cost,
            ..counted(fates, &inner.names)
        })
    };
    inner.worker.accounts().filter_map(path).collect()
}

/// What a path's packets became.
fn counted(fates: &Fates, names: &BTreeMap<String, PortId>) -> PathStand {
    let name = |port: usize| {
        let known = names.iter().find(|(_, id)| usize::from(**id) == port);
        known.map_or_else(|| format!("port {port}"), |(name, _)| name.clone())
    };
    let some = |counts: &[u64]| -> Vec<(usize, u64)> {
        counts.iter().copied().enumerate().filter(|(_, packets)| *packets > 0).collect()
    };
    let reasons = Reason::all().zip(fates.up).filter(|(_, packets)| *packets > 0);
    let losses = Loss::ALL.into_iter().zip(fates.dropped).filter(|(_, packets)| *packets > 0);
    PathStand {
        packets: fates.packets,
        out: some(&fates.out).into_iter().map(|(port, packets)| (name(port), packets)).collect(),
        up: reasons.map(|(reason, packets)| (reason.name().into(), packets)).collect(),
        dropped: losses.map(|(loss, packets)| (loss.name().into(), packets)).collect(),
        worker_panicked: fates.worker_panicked,
        stopped_packets: fates.stopped,
        left: fates.left,
        ..PathStand::default()
    }
}
