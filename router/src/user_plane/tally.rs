//! Counters of workers that never go down while the daemon lives, because readers would see a jump.
//!
//! Counts live in the thing that is counted, and are lost with it. This happens if a worker never answers again, a path goes with its
//! port, or a queue is closed. All counts are lost when workers start again with more memory. So each counter has a base that is
//! added to it. While a worker is silent, its last report stands for it.
//!
//! Counters are kept by name, except those of ports, which are kept by number. A closed output is counted by its port, no longer
//! by its worker. All outputs of a port have one sum, and its base is reported among the closed outputs.

use crate::api::workers::{Counts, OutputStand, PathStand, QueueStand, UpCounts, UpReport, WorkersReport};
use logic::plan::{PortId, RouterId};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

/// The element whose counts do not end with its worker.
const MIRROR: &str = "mirror";

/// All counters; see the head of this file.
#[derive(Default)]
pub(super) struct Tally {
    /// The last report of workers. Silent ones have the values from before they became silent.
    last: WorkersReport,
    paths: BTreeMap<String, OfPath>,
    outputs: BTreeMap<PortId, OfPort>,
    queues: BTreeMap<(PortId, u32), [Count; 3]>,
    up: [Count; 5],
    up_of_routers: BTreeMap<RouterId, [Count; 5]>,
    up_of_ports: BTreeMap<PortId, [Count; 5]>,
}

/// A counter.
#[derive(Clone, Copy, Default)]
struct Count {
    /// Added to the count.
    base: u64,
    /// The value reported last.
    told: u64,
}

impl Count {
    fn of(&mut self, counted: u64) -> u64 {
        self.told = self.told.max(self.base.saturating_add(counted));
        self.base = self.told.saturating_sub(counted);
        self.told
    }

    /// The count begins again from 0.
    fn ends(&mut self) {
        self.base = self.told;
    }
}

/// All outputs of a port together.
#[derive(Default)]
struct OfPort {
    name: String,
    counts: [Count; 7],
}

#[derive(Default)]
struct OfPath {
    all: [Count; 9],
    out: BTreeMap<String, Count>,
    up: BTreeMap<String, Count>,
    dropped: BTreeMap<String, Count>,
    /// By position in the chain.
    elements: Vec<OfElement>,
}

#[derive(Default)]
struct OfElement {
    name: String,
    counted: BTreeMap<String, Count>,
}

impl Tally {
    /// Returns the report with counters that continue from the earlier ones.
    pub fn of(&mut self, mut report: WorkersReport) -> WorkersReport {
        let paths: Vec<_> = self.last.paths.iter().map(|path| path.path.clone()).collect();
        let queues: Vec<_> = self.last.queues.iter().map(|queue| (queue.port, queue.queue)).collect();
        self.stand_in(&mut report);
        self.last.clone_from(&report);
        // A path or queue that is gone counts from 0 when it comes back.
        for path in paths.iter().filter(|path| report.paths.iter().all(|other| other.path != **path)) {
            self.paths.entry(path.clone()).or_default().ends();
        }
        for at in
            queues.iter().filter(|at| report.queues.iter().all(|other| (other.port, other.queue) != **at))
        {
            self.queues.entry(*at).or_default().iter_mut().for_each(Count::ends);
        }
        for path in &mut report.paths {
            self.paths.entry(path.path.clone()).or_default().count(path);
        }
        self.count_outputs(&mut report);
        for queue in &mut report.queues {
            let QueueStand { port, queue: number, starved, refused, fill_empty, .. } = queue;
            count(self.queues.entry((*port, *number)).or_default(), [starved, refused, fill_empty]);
        }
        self.count_up(&mut report.up);
        report
    }

    /// All workers end, with this last report, and others begin.
    pub fn end(&mut self, report: WorkersReport) {
        self.of(report);
        self.last = WorkersReport::default();
        self.paths.values_mut().for_each(OfPath::ends);
        self.outputs
            .values_mut()
            .flat_map(|port| &mut port.counts)
            .chain(self.queues.values_mut().flatten())
            .chain(&mut self.up)
            .chain(self.up_of_routers.values_mut().flatten())
            .chain(self.up_of_ports.values_mut().flatten())
            .for_each(Count::ends);
    }

    /// Adds the last known values of silent workers to the report.
    fn stand_in(&mut self, report: &mut WorkersReport) {
        let silent: BTreeSet<_> = report
            .workers
            .iter()
            .filter(|worker| worker.silent.is_some())
            .map(|worker| worker.core)
            .collect();
        if silent.is_empty() {
            return;
        }
        let last = mem::take(&mut self.last);
        for worker in report.workers.iter_mut().filter(|worker| silent.contains(&worker.core)) {
            let before = last.workers.iter().find(|before| before.core == worker.core);
            worker.outputs = before.map(|before| before.outputs.clone()).unwrap_or_default();
        }
        let is_told: BTreeSet<_> = report.paths.iter().map(|path| path.id).collect();
        let missing = |path: &PathStand| silent.contains(&path.worker) && !is_told.contains(&path.id);
        report.paths.extend(last.paths.into_iter().filter(missing));
        report.paths.sort_by_key(|path| path.id);
        let is_told: BTreeSet<_> = report.queues.iter().map(|queue| (queue.port, queue.queue)).collect();
        let missing = |queue: &QueueStand| {
            silent.contains(&queue.owner) && !is_told.contains(&(queue.port, queue.queue))
        };
        report.queues.extend(last.queues.into_iter().filter(missing));
    }

    fn count_outputs(&mut self, report: &mut WorkersReport) {
        let mut sums = BTreeMap::<PortId, [u64; 7]>::new();
        let outputs = report.workers.iter().flat_map(|worker| &worker.outputs).chain(&report.closed_outputs);
        for output in outputs {
            self.outputs.entry(output.port).or_default().name.clone_from(&output.name);
            let sum = sums.entry(output.port).or_default();
            sum.iter_mut().zip(output.clone().counts_mut()).for_each(|(sum, n)| *sum += *n);
        }
        // Also ports whose only outputs were those of a worker that is gone.
        for (port, OfPort { name, counts }) in &mut self.outputs {
            let sum = sums.get(port).copied().unwrap_or_default();
            let mut more = sum;
            count(counts, more.each_mut());
            more.iter_mut().zip(sum).for_each(|(all, sum)| *all -= sum);
            if more == [0; 7] {
                continue;
            }
            let mut closed = report.closed_outputs.extract_if(.., |closed| closed.port == *port).next();
            let closed = closed.get_or_insert_with(|| OutputStand {
                port: *port,
                name: name.clone(),
                ..OutputStand::default()
            });
            closed.counts_mut().into_iter().zip(more).for_each(|(n, more)| *n += more);
            report.closed_outputs.push(mem::take(closed));
        }
        report.closed_outputs.sort_by_key(|closed| closed.port);
    }

    fn count_up(&mut self, up: &mut UpReport) {
        count(&mut self.up, of_up(&mut up.all));
        let (routers, ports) = (&mut self.up_of_routers, &mut self.up_of_ports);
        up.routers.keys().for_each(|id| _ = routers.entry(*id).or_default());
        up.ports.keys().for_each(|id| _ = ports.entry(*id).or_default());
        for (id, counts) in routers {
            count(counts, of_up(up.routers.entry(*id).or_default()));
        }
        for (id, counts) in ports {
            count(counts, of_up(up.ports.entry(*id).or_default()));
        }
    }
}

impl OfPath {
    fn count(&mut self, path: &mut PathStand) {
        let PathStand {
            packets,
            worker_panicked,
            stopped_packets,
            panics,
            hangs,
            ring_full,
            ring_closed,
            runs,
            cycles,
            ..
        } = path;
        let lost = [packets, worker_panicked, stopped_packets, ring_full, ring_closed];
        let all = lost.into_iter().chain([panics, hangs, runs, cycles]);
        self.all.iter_mut().zip(all).for_each(|(count, value)| *value = count.of(*value));
        count_named(&mut self.out, &mut path.out);
        count_named(&mut self.up, &mut path.up);
        count_named(&mut self.dropped, &mut path.dropped);
        self.elements.resize_with(path.elements.len().max(self.elements.len()), OfElement::default);
        for (of, element) in self.elements.iter_mut().zip(&mut path.elements) {
            of.name.clone_from(&element.element);
            count_named(&mut of.counted, &mut element.counted);
        }
    }

    /// All counts begin again from 0, except those of mirrors, whose files and counts outlive workers.
    fn ends(&mut self) {
        let maps = [&mut self.out, &mut self.up, &mut self.dropped].into_iter();
        let elements = self.elements.iter_mut().filter(|element| element.name != MIRROR);
        let maps = maps.chain(elements.map(|element| &mut element.counted));
        self.all.iter_mut().chain(maps.flat_map(BTreeMap::values_mut)).for_each(Count::ends);
    }
}

fn of_up(up: &mut UpCounts) -> [&mut u64; 5] {
    let UpCounts { packets, policed, control_policed, queue_full, failed } = up;
    [packets, policed, control_policed, queue_full, failed]
}

fn count<const N: usize>(counts: &mut [Count; N], values: [&mut u64; N]) {
    for (count, value) in counts.iter_mut().zip(values) {
        *value = count.of(*value);
    }
}

/// Counts all names, including those that are missing in the values because they are 0.
fn count_named(counts: &mut BTreeMap<String, Count>, values: &mut Counts) {
    values.keys().for_each(|name| _ = counts.entry(name.clone()).or_default());
    for (name, count) in counts {
        let value = values.entry(name.clone()).or_default();
        *value = count.of(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::workers::{ElementReport, WorkerStand};

    const PORT: PortId = 1;

    /// A report of one path, one output of a worker on core 2, and all other counters; each has the value `n`.
    fn report(n: u64) -> WorkersReport {
        let named = |name: &str| Counts::from([(name.into(), n)]);
        let element =
            ElementReport { element: "count".into(), counted: named("bytes"), ..ElementReport::default() };
        let path = PathStand {
            path: "vpn".into(),
            worker: 2,
            packets: n,
            out: named("eth1"),
            up: named("local"),
            dropped: named("over_rate"),
            worker_panicked: n,
            stopped_packets: n,
            panics: n,
            hangs: n,
            ring_full: n,
            ring_closed: n,
            runs: n,
            cycles: n,
            elements: vec![ElementReport::default(), element],
            ..PathStand::default()
        };
        let queue = QueueStand {
            port: PORT,
            owner: 2,
            starved: n,
            refused: n,
            fill_empty: n,
            ..QueueStand::default()
        };
        let up = UpCounts { packets: n, policed: n, control_policed: n, queue_full: n, failed: n };
        WorkersReport {
            paths: vec![path],
            workers: vec![WorkerStand { core: 2, outputs: vec![output(n)], ..WorkerStand::default() }],
            queues: vec![queue],
            up: UpReport { all: up, routers: [(7, up)].into(), ports: [(PORT, up)].into() },
            ..WorkersReport::default()
        }
    }

    fn output(n: u64) -> OutputStand {
        OutputStand {
            port: PORT,
            name: "eth1".into(),
            sent_packets: n,
            delayed_packets: n,
            dropped_full: n,
            dropped_unfit: n,
            dropped_gone: n,
            dropped_no_queue: n,
            dropped_closed: n,
            waiting: 0,
        }
    }

    fn silent() -> WorkersReport {
        let worker = WorkerStand { core: 2, silent: Some("silent".into()), ..WorkerStand::default() };
        WorkersReport { workers: vec![worker], up: report(10).up, ..WorkersReport::default() }
    }

    /// The values of all reported counters.
    fn all(report: WorkersReport) -> Vec<u64> {
        let mut report = report;
        let mut all = Vec::new();
        for path in &mut report.paths {
            let PathStand { packets, worker_panicked, stopped_packets, panics, .. } = *path;
            let PathStand { hangs, ring_full, ring_closed, runs, cycles, .. } = *path;
            all.extend([
                packets,
                worker_panicked,
                stopped_packets,
                panics,
                hangs,
                ring_full,
                ring_closed,
                runs,
                cycles,
            ]);
            let counted = path.elements.iter().map(|element| &element.counted);
            all.extend(
                [&path.out, &path.up, &path.dropped].into_iter().chain(counted).flat_map(Counts::values),
            );
        }
        let mut sums = [0; 7];
        let outputs = report.workers.iter().flat_map(|worker| &worker.outputs).chain(&report.closed_outputs);
        for output in outputs {
            assert_eq!((output.port, &*output.name), (PORT, "eth1"));
            sums.iter_mut().zip(output.clone().counts_mut()).for_each(|(sum, n)| *sum += *n);
        }
        all.extend(sums);
        all.extend(report.queues.iter().flat_map(|queue| [queue.starved, queue.refused, queue.fill_empty]));
        for up in [&mut report.up.all]
            .into_iter()
            .chain(report.up.routers.values_mut())
            .chain(report.up.ports.values_mut())
        {
            all.extend(of_up(up).map(|n| *n));
        }
        all
    }

    const EACH: usize = 9 + 4 + 7 + 3 + 3 * 5;

    #[test]
    fn a_silent_worker_is_reported_with_its_last_values() {
        let mut tally = Tally::default();
        assert_eq!(all(tally.of(report(10))), [10; EACH]);
        for _ in 0..2 {
            let told = tally.of(silent());
            assert!(told.workers[0].silent.is_some());
            assert_eq!(all(told), [10; EACH]);
        }
        // When it answers again, nothing is counted twice.
        assert_eq!(all(tally.of(report(13))), [13; EACH]);
    }

    #[test]
    fn counts_of_a_worker_that_never_answers_again_stay() {
        let mut tally = Tally::default();
        tally.of(report(10));
        tally.of(silent());
        // Another worker has begun with the path, the queue, and an output of the port.
        let mut other = report(4);
        (other.workers[0].core, other.paths[0].worker, other.queues[0].owner) = (3, 3, 3);
        other.up = report(10).up;
        assert_eq!(all(tally.of(other.clone())), [10; EACH], "no counter goes down");
        other = report(5);
        (other.workers[0].core, other.paths[0].worker, other.queues[0].owner) = (3, 3, 3);
        other.up = report(11).up;
        assert_eq!(all(tally.of(other)), [11; EACH]);
    }

    #[test]
    fn the_port_keeps_the_counts_of_a_worker_that_ends() {
        let closed = |n| WorkersReport { closed_outputs: vec![output(n)], ..WorkersReport::default() };
        let mut tally = Tally::default();
        tally.of(report(10));
        assert_eq!(tally.of(closed(12)).closed_outputs, [output(12)]);
        // The worker is gone without a closed output.
        let mut tally = Tally::default();
        tally.of(report(10));
        assert_eq!(tally.of(WorkersReport::default()).closed_outputs, [output(10)]);
        assert_eq!(
            tally.of(report(3)).closed_outputs,
            [output(10)],
            "another worker's output counts besides"
        );
    }

    /// As with more memory; also if the new workers have already counted more.
    #[test]
    fn counters_go_on_when_workers_start_again() {
        let mut tally = Tally::default();
        tally.of(report(10));
        tally.end(report(11));
        assert_eq!(all(tally.of(report(0))), [11; EACH]);
        assert_eq!(all(tally.of(report(30))), [41; EACH]);
        tally.end(report(31));
        assert_eq!(all(tally.of(report(1))), [43; EACH]);
    }

    /// Their files, and so their counts, do not belong to workers.
    #[test]
    fn counts_of_mirrors_outlive_workers() {
        let mirror = |n| {
            let mut report = report(n);
            let counted = Counts::from([("written".into(), n)]);
            report.paths[0].elements =
                vec![ElementReport { element: MIRROR.into(), counted, ..ElementReport::default() }];
            report
        };
        let written = |report: WorkersReport| report.paths[0].elements[0].counted["written"];
        let mut tally = Tally::default();
        tally.end(mirror(10));
        assert_eq!(written(tally.of(mirror(10))), 10);
        tally.of(WorkersReport::default());
        assert_eq!(written(tally.of(mirror(12))), 12);
    }

    #[test]
    fn counters_of_a_path_and_a_queue_that_come_back_go_on() {
        let mut tally = Tally::default();
        tally.of(report(10));
        let gone =
            WorkersReport { closed_outputs: vec![output(10)], up: report(10).up, ..WorkersReport::default() };
        let told = tally.of(gone.clone());
        assert_eq!((told.paths.len(), told.queues.len()), (0, 0));
        let back = || WorkersReport { closed_outputs: vec![output(10)], ..report(0) };
        assert_eq!(all(tally.of(WorkersReport { up: report(10).up, ..back() })), [10; EACH]);
        // Also if it has counted more before the next report.
        let mut tally = Tally::default();
        tally.of(report(10));
        tally.of(gone.clone());
        let mut twelve = back();
        (twelve.paths[0].packets, twelve.queues[0].starved) = (12, 12);
        let told = tally.of(twelve);
        assert_eq!((told.paths[0].packets, told.queues[0].starved), (22, 22));
        let mut tally = Tally::default();
        tally.of(report(10));
        tally.of(gone);
        // Names with the value 0 are missing in a report.
        let mut sparse = back();
        sparse.paths[0].dropped.clear();
        sparse.paths[0].out.clear();
        sparse.up = UpReport::default();
        assert_eq!(all(tally.of(sparse)), [10; EACH]);
    }
}
