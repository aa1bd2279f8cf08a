//! Reports the state and the counters of a worker.

use super::{
    exchange::{Fates, PortsByNumber},
    inner::{Inner, Times},
};
use crate::{
    api::workers::{OutputStand, PathStand, QueueStand, WorkerStand},
    user_plane::{
        af_xdp::{OutputCounts, Receiver},
        replay::elements,
    },
};
use logic::{cores::CoreId, elements::Loss, paths::Resource, plan::PortId, reason::Reason};
use std::{collections::BTreeMap, time::Duration};

/// Why a path is stopped.
const STOPPED: &str = "its chain panicked too often; another chain in the configuration starts it again";

/// The report of one worker.
pub(super) struct WorkerAnswer {
    pub worker: WorkerStand,
    pub shared: Resource,
    pub paths: Vec<PathStand>,
    pub queues: Vec<QueueStand>,
}

pub(super) fn answer(core: CoreId, inner: &mut Inner) -> WorkerAnswer {
    let now = inner.desk.clock.cycles();
    let Times { begun, busy, slept, sleeps, panics } = inner.times;
    let part = |of: u64| of as f64 / now.saturating_sub(begun).max(1) as f64;
    let name = |port| port_name(&inner.known_ports, port);
    let output = |(port, at): (PortId, usize)| {
        let output = inner.io.outputs().get(at)?;
        let stand = output_stand(port, name(port), output.counts());
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
    let queue = |(n, queue): (usize, &crate::user_plane::af_xdp::Queue)| QueueStand {
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
    WorkerAnswer { worker, shared, paths: paths(core, inner), queues }
}

pub(super) fn output_stand(port: PortId, name: String, counts: OutputCounts) -> OutputStand {
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

/// The time that this thread ran.
fn ran_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).map_or(0, |time| time.as_nanos() as u64)
}

fn paths(core: CoreId, inner: &Inner) -> Vec<PathStand> {
    let path = |account: logic::paths::Account| {
        let id = account.path.id;
        let (fates, panics) = (inner.desk.fates.get(usize::from(id))?, inner.panics(id));
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

/// The name of a port; its number if it was never planned.
pub(super) fn port_name(names: &PortsByNumber, port: PortId) -> String {
    names.get(&port).cloned().unwrap_or_else(|| format!("port {port}"))
}

/// What happened to a path's packets.
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
        stopped_packets: fates.stopped,
        ring_closed: fates.left,
        ..PathStand::default()
    }
}
