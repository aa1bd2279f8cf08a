//! What else runs on the cores of workers: queues of the kernel plane, and applications. Paths are placed by it, and queues are
//! placed by what workers leave of a core. So neither plan fills a core that the other one has filled.

use crate::{
    api::workers::WorkersReport,
    cores::{
        CoreId, Roots,
        load::{CoreTimes, Others},
    },
};
use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

/// Weight of the newest value in the average.
const NEW: f64 = 0.5;

/// The other work of all cores.
pub struct OtherWork {
    begun: Instant,
    times: CoreTimes,
    others: Others,
    of_late: BTreeMap<CoreId, f64>,
}

impl OtherWork {
    /// Begins to measure.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn open(roots: &Roots) -> io::Result<OtherWork> {
        Ok(OtherWork {
            begun: Instant::now(),
            times: CoreTimes::open(roots)?,
            others: Others::default(),
            of_late: BTreeMap::new(),
        })
    }

    /// Measures again; `report` says how long workers ran. A worker that does not answer counts as other work, so that no path
    /// comes to its core.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn take_in(&mut self, report: &WorkersReport) -> io::Result<()> {
        self.take_in_at(self.begun.elapsed(), report)
    }

    fn take_in_at(&mut self, now: Duration, report: &WorkersReport) -> io::Result<()> {
        if !self.others.is_due(now) {
            return Ok(());
        }
        let ran_ns = report.workers.iter().map(|worker| (worker.core, worker.ran_ns)).collect();
        let cores = self.times.read()?;
        self.others.update(now, cores, &ran_ns);
        for (core, new) in cores.iter().filter_map(|core| Some((core.id, self.others.of(core.id)?))) {
            let of_late = self.of_late.entry(core).or_insert(new);
            *of_late = NEW * new + (1.0 - NEW) * *of_late;
        }
        Ok(())
    }

    /// Other threads are the workers from now on.
    pub fn workers_begin_anew(&mut self) {
        self.others = Others::default();
    }

    /// Fraction of the core's time; `None`: not known yet.
    pub fn of(&self, core: CoreId) -> Option<f64> {
        self.of_late.get(&core).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::workers::WorkerStand, cores::tree::Tree};

    #[test]
    fn time_that_was_neither_idle_nor_a_workers_is_other_work() {
        let tree = Tree::new();
        tree.write("proc/softirqs", " CPU0 CPU1\n");
        // In hundredths of a second.
        let idle = |of: [u64; 2]| {
            tree.write("proc/stat", &format!("cpu0 0 0 0 {} 0 0 0\ncpu1 0 0 0 {} 0 0 0\n", of[0], of[1]));
        };
        idle([0, 0]);
        let mut work = OtherWork::open(&tree.roots()).unwrap();
        let worker = |core, ran_ns| WorkerStand { core, ran_ns, ..WorkerStand::default() };
        let mut after = |seconds, workers: [Option<WorkerStand>; 2]| {
            let workers = workers.into_iter().flatten().collect();
            let report = WorkersReport { workers, ..WorkersReport::default() };
            work.take_in_at(Duration::from_secs(seconds), &report).unwrap();
            [0, 1].map(|core| work.of(core).map(|of| (of * 100.0).round()))
        };
        const SECOND: u64 = 1_000_000_000;
        assert_eq!(after(10, [Some(worker(0, 0)), Some(worker(1, 0))]), [None, None]);
        idle([50, 10]);
        let busy = after(11, [Some(worker(0, SECOND / 2)), Some(worker(1, SECOND / 10))]);
        assert_eq!(busy, [Some(0.0), Some(80.0)], "only its worker runs on core 0");
        idle([150, 110]);
        let half = after(12, [Some(worker(0, SECOND / 2)), Some(worker(1, SECOND / 10))]);
        assert_eq!(half, [Some(0.0), Some(40.0)], "a quiet second halves it");
        // The worker on core 0 no longer answers.
        idle([150, 210]);
        assert_eq!(after(13, [None, Some(worker(1, SECOND / 10))]), [Some(50.0), Some(20.0)]);
        // Other threads are the workers now: their times are not compared with earlier ones.
        work.workers_begin_anew();
        let mut again = |seconds, ran_ns| {
            let report = WorkersReport { workers: vec![worker(0, ran_ns)], ..WorkersReport::default() };
            work.take_in_at(Duration::from_secs(seconds), &report).unwrap();
            work.of(0).map(|of| (of * 100.0).round())
        };
        assert_eq!(again(14, SECOND / 4), Some(50.0));
        idle([200, 210]);
        assert_eq!(again(15, SECOND / 4 * 3), Some(25.0));
    }
}
