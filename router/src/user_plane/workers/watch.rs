//! Watches whether workers make progress, and on which cores they run.
//!
//! A worker makes no progress if its epoch stays the same while the worker is awake, was called, or waits for its core. The
//! watch looks at the epoch 15 times in the patience of the settings (1.5 s, so every 100 ms). A worker without packets
//! sleeps, which is fine. A look that comes late counts for no worker: the machine, or what it runs in, stood still.
//!
//! * **After 5 looks** in a row without progress, the worker may run on the cores of all workers. If something has its own
//!   core that it cannot run beside, such as a real-time task, it continues elsewhere with everything it has, and nothing is
//!   lost. By default, real-time tasks leave others 50 ms of a second; the 5 looks (0.5 s) fit into the rest of it.
//! * **After 15 looks**, the worker is left alone ([`super::crew`]): its elements do not end, or it is in a system call.
//!   A run normally takes 100 us, or one packet. A run of 256 packets that need 1 us each would have to be 4,000 times as slow, and an emulated machine is 20
//!   to 50 times as slow.
//!
//! A worker that is away comes home after a probe has finished in time 10 times in a row. A probe is a thread on the
//! worker's core that sleeps and computes in turn. A probe that only sleeps proves nothing: Linux 6.18 may run it in time
//! even beside a real-time task.

use super::thread::Desk;
use crate::base::{guard::locked, priority::Urgency};
use logic::cores::CoreId;
use rustix::{
    thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
};
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, Weak,
        atomic::{
            AtomicBool, AtomicU32, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
    thread,
    time::{Duration, Instant},
};

/// After this many looks in a row without progress, the worker is not waited for any longer.
const LOOKS: u32 = 15;
/// After this many, it may run elsewhere.
const ELSEWHERE: u32 = 5;
/// Naps of a probe, each as long as the time between two looks. A quarter of each is spent computing. The computing of all
/// naps takes more CPU time than real-time tasks leave to others (50 ms of a second).
const NAPS: u32 = 10;
/// After more than this many looks without a probe that slept well, the core is reported as not free.
const TOLD: u32 = 2 * LOOKS;

/// What the watch knows of a worker.
#[derive(Default)]
pub(super) struct Standing {
    seen: AtomicU64,
    still: AtomicU32,
    /// It may run on other cores.
    away: AtomicBool,
    /// Looks since then at which it had made progress.
    away_for: AtomicU32,
}

impl Standing {
    /// Whether it makes no progress.
    pub fn is_still(&self) -> bool {
        self.still.load(Acquire) >= LOOKS
    }

    /// Whether its epoch is the one that the last look saw.
    pub fn has_seen(&self, epoch: u64) -> bool {
        self.seen.load(Acquire) == epoch
    }

    /// Whether its core has had no time for it for long.
    pub fn has_no_core(&self) -> bool {
        self.away.load(Acquire) && self.away_for.load(Relaxed) > TOLD
    }

    /// Takes in a look; returns how many in a row have seen no progress.
    fn look(&self, epoch: u64, is_to_move: bool) -> u32 {
        let stands = self.seen.swap(epoch, AcqRel) == epoch && is_to_move;
        let still = if stands { self.still.load(Relaxed).saturating_add(1) } else { 0 };
        self.still.store(still, Release);
        still
    }
}

/// Workers that are watched.
#[derive(Clone, Default)]
pub(super) struct Watch(Arc<Mutex<Vec<Arc<Desk>>>>);

impl Watch {
    pub fn add(&self, desk: Arc<Desk>) {
        locked(&self.0).push(desk);
    }

    pub fn remove(&self, desk: &Arc<Desk>) {
        locked(&self.0).retain(|other| !Arc::ptr_eq(other, desk));
    }

    /// The cores where a worker of this core may run if its own has no time: those of all workers, or any core if there are
    /// no other workers.
    ///
    /// # Errors
    /// The kernel does not report the cores.
    pub fn elsewhere(&self, home: CoreId) -> io::Result<CpuSet> {
        let cores: Vec<CoreId> =
            locked(&self.0).iter().map(|desk| desk.core).filter(|core| *core != home).collect();
        let mut all = if cores.is_empty() { sched_getaffinity(None)? } else { CpuSet::new() };
        cores.into_iter().chain([home]).for_each(|core| all.set(core.into()));
        Ok(all)
    }

    /// Looks while `goes_on` holds; `sleep` passes the time between two looks. Calls `is_still` at each look while a worker
    /// has made no progress for 15 looks or more.
    pub fn run(
        &self,
        patience: Duration,
        sleep: impl Fn(Duration),
        goes_on: impl Fn() -> bool,
        is_still: impl Fn(),
    ) {
        let (look, mut probes) = (patience / LOOKS, BTreeMap::new());
        while goes_on() {
            let begun = Instant::now();
            sleep(look);
            if begun.elapsed() > 2 * look {
                continue;
            }
            let desks = locked(&self.0).clone();
            let still = desks.iter().map(|desk| self.look_at(desk, look, &mut probes)).max();
            probes.retain(|thread, _| {
                desks.iter().any(|desk| desk.thread().is_some_and(|of| number(of) == *thread))
            });
            if still.is_some_and(|still| still >= LOOKS) {
                is_still();
            }
        }
    }

    fn look_at(&self, desk: &Arc<Desk>, look: Duration, probes: &mut BTreeMap<i32, Probe>) -> u32 {
        let still = desk.standing.look(desk.epoch.now(), desk.is_to_move());
        let (Some(thread), standing) = (desk.thread(), &desk.standing) else { return still };
        if still == ELSEWHERE && !standing.away.load(Acquire) {
            let moved =
                self.elsewhere(desk.core).and_then(|cores| Ok(sched_setaffinity(Some(thread), &cores)?));
            match moved {
                Ok(()) => standing.goes_away(),
                Err(error) => tracing::warn!(
                    "the worker on core {} makes no progress and cannot run on other cores: {error}",
                    desk.core
                ),
            }
        } else if standing.away.load(Acquire) && still == 0 {
            standing.away_for.fetch_add(1, Relaxed);
            let probe = probes.entry(number(thread)).or_insert_with(|| Probe::start(desk, look));
            if probe.slept_well() && sched_setaffinity(Some(thread), &only(desk.core)).is_ok() {
                standing.away.store(false, Release);
                probes.remove(&number(thread));
            }
        }
        still
    }
}

impl Standing {
    fn goes_away(&self) {
        self.away_for.store(0, Relaxed);
        self.away.store(true, Release);
    }
}

pub(super) fn only(core: CoreId) -> CpuSet {
    let mut only = CpuSet::new();
    only.set(core.into());
    only
}

fn number(of: Pid) -> i32 {
    of.as_raw_nonzero().get()
}

/// A thread that finds out whether a core has time.
struct Probe(Arc<AtomicBool>);

impl Probe {
    /// The thread ends when it knows, or when the worker has ended.
    fn start(desk: &Arc<Desk>, nap: Duration) -> Probe {
        let (core, of, known) = (desk.core, Arc::downgrade(desk), Arc::new(AtomicBool::new(false)));
        let its = known.clone();
        let probes = move || {
            // It competes as the worker does.
            if let Some(worker) = of.upgrade().and_then(|desk| desk.thread()) {
                let _ = Urgency::of(number(worker)).and_then(|urgency| urgency.set(0));
            }
            if sched_setaffinity(None, &only(core)).is_ok() {
                its.store(sleeps_well(&of, nap, sleep_and_compute), Release);
            }
        };
        if let Err(error) = thread::Builder::new().name(format!("probe/{core}")).spawn(probes) {
            tracing::warn!(
                "the worker of core {core} stays on other cores, because no probe can be started: {error}"
            );
        }
        Probe(known)
    }

    fn slept_well(&self) -> bool {
        self.0.load(Acquire)
    }
}

fn sleep_and_compute(nap: Duration) {
    let part = nap / 4;
    thread::sleep(nap - part);
    let used = || clock_gettime(ClockId::ThreadCPUTime);
    let until = used() + part.try_into().unwrap_or_default();
    while used() < until {}
}

/// Returns true after enough naps in a row that ended in time; false if the worker has ended.
fn sleeps_well(of: &Weak<Desk>, nap: Duration, sleep: impl Fn(Duration)) -> bool {
    let mut well = 0;
    while well < NAPS {
        let begun = Instant::now();
        sleep(nap);
        well = if begun.elapsed() < 2 * nap { well + 1 } else { 0 };
        if of.strong_count() == 0 {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, sync::mpsc::channel};

    fn desk(core: CoreId) -> Arc<Desk> {
        Arc::new(Desk::new(core).unwrap())
    }

    fn cores(set: &CpuSet) -> Vec<CoreId> {
        (0..CpuSet::MAX_CPU as CoreId).filter(|core| set.is_set((*core).into())).collect()
    }

    /// Where this thread may run, or a desk's thread.
    fn allowed(desk: Option<&Desk>) -> Vec<CoreId> {
        cores(&sched_getaffinity(desk.and_then(Desk::thread)).unwrap())
    }

    #[test]
    fn a_worker_that_should_move_and_does_not_is_still() {
        let standing = Standing::default();
        let looks = |epoch, is_to_move| standing.look(epoch, is_to_move);
        assert_eq!([looks(3, true), looks(3, true), looks(3, true)], [0, 1, 2]);
        assert_eq!(looks(5, true), 0, "it moved");
        assert_eq!([looks(6, false), looks(6, false)], [0, 0], "it sleeps");
        assert_eq!([looks(6, true), looks(6, true)], [1, 2], "it was called");
        (0..LOOKS - 3).for_each(|_| _ = looks(6, true));
        assert!(!standing.is_still());
        assert!(looks(6, true) == LOOKS && standing.is_still());
        assert!(looks(7, true) == 0 && !standing.is_still());
    }

    #[test]
    fn elsewhere_means_the_cores_of_all_workers_or_any_core() {
        let (watch, desks) = (Watch::default(), [5, 7].map(desk));
        let elsewhere = |home| cores(&watch.elsewhere(home).unwrap());
        watch.add(desks[0].clone());
        let mut anywhere = allowed(None);
        anywhere.extend((!anywhere.contains(&5)).then_some(5));
        anywhere.sort_unstable();
        assert_eq!(elsewhere(5), anywhere, "there are no others");
        watch.add(desks[1].clone());
        assert_eq!([elsewhere(5), elsewhere(7)], [[5, 7]; 2]);
        assert_eq!(elsewhere(9), [5, 7, 9]);
        watch.remove(&desks[0]);
        assert_eq!(elsewhere(9), [7, 9]);
    }

    #[test]
    fn a_worker_without_progress_runs_elsewhere_until_its_core_is_free() {
        const NAP: Duration = Duration::from_millis(50);
        let (watch, anywhere) = (Watch::default(), allowed(None));
        let home = anywhere[0];
        let desk = desk(home);
        watch.add(desk.clone());
        thread::scope(|scope| {
            let ((to, begun), (_ends, end)) = (channel(), channel::<()>());
            let its = desk.clone();
            scope.spawn(move || {
                its.begin();
                to.send(sched_setaffinity(None, &only(home))).unwrap();
                let _ = end.recv();
            });
            begun.recv().unwrap().unwrap();
            desk.epoch.turn_over();
            let mut probes = BTreeMap::new();
            // The probe of the first time does not count the second time.
            (0..2).for_each(|_| away_and_home(&watch, &desk, NAP, &mut probes, &anywhere));
        });
    }

    fn away_and_home(
        watch: &Watch,
        desk: &Arc<Desk>,
        nap: Duration,
        probes: &mut BTreeMap<i32, Probe>,
        anywhere: &[CoreId],
    ) {
        let here = || allowed(Some(desk));
        let mut look = |moves: bool| {
            if moves {
                desk.epoch.pass();
            }
            (watch.look_at(desk, nap, probes), probes.len())
        };
        assert_eq!(look(true), (0, 0));
        (1..ELSEWHERE).for_each(|n| assert_eq!(look(false), (n, 0)));
        assert_eq!(here(), [desk.core]);
        assert_eq!(look(false), (ELSEWHERE, 0));
        assert_eq!(here(), anywhere);
        assert_eq!(look(false), (ELSEWHERE + 1, 0), "it makes no progress there either");
        let begun = Instant::now();
        (0..TOLD).for_each(|_| assert_eq!(look(true), (0, 1)));
        assert!(!desk.standing.has_no_core());
        look(true);
        assert!(desk.standing.has_no_core());
        (1..=ELSEWHERE).for_each(|n| assert_eq!(look(false), (n, 1)));
        assert!(desk.standing.has_no_core(), "whether it makes progress there or not");
        assert_eq!(here(), anywhere);
        while desk.standing.away.load(Acquire) {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(nap / 10);
            look(true);
        }
        assert!(begun.elapsed() >= nap * NAPS);
        assert_eq!(here(), [desk.core]);
        assert!(!desk.standing.has_no_core() && probes.is_empty());
    }

    #[test]
    fn a_worker_without_progress_is_reported_unless_the_machine_stood_still() {
        const LOOK: Duration = Duration::from_millis(2);
        let (watch, awake) = (Watch::default(), desk(1));
        watch.add(awake.clone());
        watch.add(desk(2));
        awake.epoch.turn_over();
        let still = || awake.standing.still.load(Acquire);
        let count = |counter: &Cell<u32>| counter.replace(counter.get() + 1);
        let looks = Cell::new(0);
        watch.run(
            LOOK * LOOKS,
            |look| thread::sleep(3 * look),
            || count(&looks) < 2 * LOOKS,
            || panic!("the looks came late"),
        );
        assert_eq!(still(), 0);
        let told = Cell::new(0);
        // The first look only reads the epoch.
        watch.run(
            LOOK * LOOKS,
            thread::sleep,
            || told.get() < 2,
            || assert_eq!(still(), LOOKS + count(&told)),
        );
        assert_eq!((still(), told.get()), (LOOKS + 1, 2));
    }

    #[test]
    fn a_core_is_free_where_all_naps_in_a_row_end_in_time() {
        const NAP: Duration = Duration::from_millis(5);
        let (desk, naps) = (desk(1), Cell::new(0));
        let sleep = |nap| {
            naps.set(naps.get() + 1);
            thread::sleep(if naps.get() == NAPS / 2 { 3 * nap } else { nap });
        };
        assert!(sleeps_well(&Arc::downgrade(&desk), NAP, sleep));
        assert!(naps.get() >= NAPS / 2 + NAPS, "{naps:?}");
        assert!(!sleeps_well(&Weak::new(), NAP, thread::sleep), "the worker has ended");
    }
}
