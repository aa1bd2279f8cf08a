//! Captures: the files that `mirror` elements copy packets to (`logic/src/elements/mirror.rs`).
//!
//! ```text
//!  Mirror ── Copies (logic): a ring ──► Writer ──► Sink: a file of the daemon, or of a run over captures
//!  in a worker's turn                   in a thread of low priority per file (the daemon), or between two turns (`millrace paths run`)
//! ```
//!
//! Each file of the daemon has a thread of its own, so that a disk that hangs does not delay other files. These threads sleep. One
//! more thread looks at all rings and wakes the threads whose rings have copies. Workers do not wake them, because that may take a
//! system call. All of these threads give up their rights, and avoid the cores of workers if there are other cores.
//!
//! A ring belongs to a file, not to a chain. A new chain, over other tables or after a panic, finds it by the file's name and goes on.
//! A path does not notice what happens to the file: copies are lost and counted by name, and [`CaptureThreads::conditions`] says why.
//!
//! | file | holds |
//! |---|---|
//! | this one | [`Captures`]; writers of the daemon, [`CaptureThreads`], and of a run, [`CaptureWriters`] |
//! | `writer.rs` | writes records from a ring, up to the limit of the file, and tries again after an error |
//! | `sink.rs` | files: creates, continues and truncates them |

mod sink;
#[cfg(test)]
mod tests;
mod writer;

pub use sink::{OfDaemon, OfRun, Sink};

use crate::{
    base::{guard::locked, priority::Urgency, privileges},
    config::{Captures, MirrorSettings},
    cores::CoreId,
    user_plane::workers::Clock,
};
use anyhow::{Context, Result, bail, ensure};
use logic::elements::{Copies, MOST_PACKETS, NoCopy};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant, SystemTime},
};
use writer::{Fault, Writer};

/// Memory of a ring of the daemon.
const RING_BYTES: usize = 4 << 20;
/// How often a thread looks for copies. Copies that come meanwhile must fit into the ring.
const LOOKS: Duration = Duration::from_millis(10);
/// How long a full ring is reported.
const TELLS: Duration = Duration::from_secs(10);
/// How long the end of the daemon waits for all threads, because a file system may never answer.
const ENDS: Duration = Duration::from_secs(2);
/// The most tries to compare the clocks.
const COMPARES: usize = 5;
/// The most time between two readings of a comparison.
const BETWEEN_NS: u64 = 100_000;
/// The nice value of threads that write.
const NICE: i32 = 19;
const STARTING: &str = "starting a thread of a mirror";

/// The captures of the daemon, and their threads.
pub struct CaptureThreads {
    captures: Captures,
    /// By file.
    threads: BTreeMap<PathBuf, Running>,
    /// Captures that were removed, while their last copies are written.
    leaving: Vec<Running>,
    /// Why a capture did not start.
    refused: Option<String>,
    /// The cores of the threads; `None`: any.
    cores: Option<CpuSet>,
    looker: Looker,
}

struct Running {
    file: PathBuf,
    ends: Arc<AtomicBool>,
    ended: Receiver<()>,
    thread: JoinHandle<()>,
    fault: Fault,
    full: Full,
}

impl CaptureThreads {
    /// Starts a thread for each capture, which opens the file, and tries again if that fails. The threads avoid the cores `workers`, if
    /// there are others.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start<'m>(
        mirrors: impl IntoIterator<Item = &'m MirrorSettings>,
        workers: &BTreeSet<CoreId>,
    ) -> Result<CaptureThreads> {
        let mut all = CaptureThreads {
            captures: Captures::default(),
            threads: BTreeMap::new(),
            leaving: Vec::new(),
            refused: None,
            cores: cores_but(workers),
            looker: Looker::default(),
        };
        all.add(mirrors);
        match all.refused.take() {
            None => Ok(all),
            Some(why) => bail!("{why}"),
        }
    }

    /// Starts captures that are new. Returns whether it started any; then elements need [`CaptureThreads::captures`] again. If one
    /// cannot start, this is a condition until a later call starts it.
    pub fn add<'m>(&mut self, mirrors: impl IntoIterator<Item = &'m MirrorSettings>) -> bool {
        let before = self.threads.len();
        self.tidy();
        self.refused = None;
        for mirror in mirrors {
            if !self.threads.contains_key(&mirror.file)
                && let Err(error) = self.begin(mirror)
            {
                self.refused = Some(format!("mirror {}: {error:#}", mirror.file.display()));
            }
        }
        self.threads.len() > before && self.publish()
    }

    /// Ends all captures except these. No element may still copy to the ended ones.
    pub fn keep(&mut self, mirrors: &[MirrorSettings]) {
        let goes = |file: &&PathBuf| !mirrors.iter().any(|mirror| mirror.file == **file);
        let gone: Vec<_> = self.threads.keys().filter(goes).cloned().collect();
        for running in gone.iter().filter_map(|file| self.threads.remove(file)) {
            running.ends();
            self.leaving.push(running);
        }
        self.tidy();
    }

    fn begin(&mut self, mirror: &MirrorSettings) -> Result<()> {
        ensure!(
            !self.leaving.iter().any(|running| running.file == mirror.file),
            "an earlier capture still writes its last copies to the file"
        );
        let (copies, taker) = Copies::new(RING_BYTES);
        let ends = Arc::<AtomicBool>::default();
        let writer = Writer::new(taker, OfDaemon::new(&mirror.file, ends.clone()), mirror);
        let fault = writer.fault();
        let (tell, ended) = channel();
        let (until, cores) = (ends.clone(), self.cores);
        let thread = thread::Builder::new().name("mirror".into());
        let thread = thread.spawn(move || {
            let ready = in_the_background(cores);
            if let Err(error) = ready {
                return writer.fails(&format!("{error:#}"));
            }
            run(writer, &until, tell);
        });
        let thread = thread.context(STARTING)?;
        let full = Full { copies, lost: 0, at: None };
        let running = Running { file: mirror.file.clone(), ends, ended, thread, fault, full };
        self.threads.insert(mirror.file.clone(), running);
        Ok(())
    }

    /// Makes the rings known to elements, and to the thread that looks at them.
    fn publish(&mut self) -> bool {
        let by_file = self.threads.iter().map(|(file, running)| (file.clone(), running.full.copies.clone()));
        self.captures = Captures::new(by_file.collect());
        let ring = |running: &Running| (running.full.copies.clone(), running.thread.thread().clone());
        if let Err(error) = self.looker.look_at(self.threads.values().map(ring).collect(), self.cores) {
            self.refused = Some(format!("{error:#}"));
        }
        true
    }

    /// Forgets removed captures whose threads have ended.
    fn tidy(&mut self) {
        let has_ended = |running: &mut Running| running.thread.is_finished();
        for running in self.leaving.extract_if(.., has_ended) {
            if let Some(fault) = writer::read(&running.fault) {
                tracing::warn!("{fault}");
            }
        }
    }

    /// The rings, for elements.
    pub fn captures(&self) -> Captures {
        self.captures.clone()
    }

    /// The present conditions, and those of a moment ago.
    pub fn conditions(&mut self, now: Instant) -> Vec<String> {
        let condition = |running: &mut Running| {
            let file = running.file.display();
            let is_full = running.full.is_lately(now);
            let lost = || {
                format!("mirror {file}: copies are lost, because more come than are written (mirror_full)")
            };
            let failed = || format!("mirror {file}: its thread has failed");
            let fault = writer::read(&running.fault);
            let fault = fault.or_else(|| running.thread.is_finished().then(failed));
            fault.into_iter().chain(is_full.then(lost))
        };
        self.threads.values_mut().flat_map(condition).chain(self.refused.clone()).collect()
    }

    /// Writes all copies, and ends. Returns the files that lack copies, or were not written in time.
    pub fn finish(mut self) -> Vec<String> {
        self.end()
    }

    fn end(&mut self) -> Vec<String> {
        let all: Vec<_> = mem::take(&mut self.threads).into_values().chain(self.leaving.drain(..)).collect();
        all.iter().for_each(Running::ends);
        let deadline = Instant::now() + ENDS;
        let end = |running: Running| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Another error means that the thread is gone.
            let is_late = running.ended.recv_timeout(left) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            let late = || {
                format!("mirror {}: writing takes too long, so the file lacks copies", running.file.display())
            };
            is_late.then(late).or_else(|| writer::read(&running.fault))
        };
        all.into_iter().filter_map(end).collect()
    }
}

impl Running {
    /// Makes the thread write all copies, and end.
    fn ends(&self) {
        self.ends.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }
}

impl Drop for CaptureThreads {
    fn drop(&mut self) {
        self.end();
    }
}

/// Watches whether a ring was full.
struct Full {
    copies: Arc<Copies>,
    /// Copies lost for that, at the last look.
    lost: u64,
    /// When this number last grew.
    at: Option<Instant>,
}

impl Full {
    fn is_lately(&mut self, now: Instant) -> bool {
        let lost = self.copies.lost(NoCopy::Full);
        if lost > mem::replace(&mut self.lost, lost) {
            self.at = Some(now);
        }
        self.at.is_some_and(|at| now.saturating_duration_since(at) < TELLS)
    }
}

/// The cores that this thread may use, without those of workers; `None`: no other is left.
fn cores_but(workers: &BTreeSet<CoreId>) -> Option<CpuSet> {
    let mut cores = sched_getaffinity(None).ok()?;
    workers
        .iter()
        .map(|core| usize::from(*core))
        .filter(|core| *core < CpuSet::MAX_CPU)
        .for_each(|core| cores.unset(core));
    (cores.count() > 0).then_some(cores)
}

/// Gives a thread of a mirror low priority and no rights: it writes files of the daemon's user, when nothing else runs.
fn in_the_background(cores: Option<CpuSet>) -> Result<()> {
    // If the kernel does not allow this, copies are written with normal priority, or on any core.
    let _ = Urgency::usual(NICE).set(0);
    let _ = cores.map(|cores| sched_setaffinity(None, &cores));
    privileges::give_up_all()
}

type Rings = Vec<(Arc<Copies>, Thread)>;

/// The thread that wakes writers whose rings hold copies. It starts with the first ring.
#[derive(Default)]
struct Looker {
    rings: Arc<Mutex<Rings>>,
    has_begun: bool,
    ends: Arc<AtomicBool>,
}

impl Looker {
    fn look_at(&mut self, rings: Rings, cores: Option<CpuSet>) -> Result<()> {
        *locked(&self.rings) = rings;
        if !self.has_begun {
            let (rings, ends) = (self.rings.clone(), self.ends.clone());
            let looks = move || {
                // After a failure it looks all the same, because it does nothing else.
                let _ = in_the_background(cores);
                look(&rings, &ends);
            };
            thread::Builder::new().name("mirrors".into()).spawn(looks).context(STARTING)?;
            self.has_begun = true;
        }
        Ok(())
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
    }
}

fn look(rings: &Mutex<Rings>, ends: &AtomicBool) {
    while !ends.load(Ordering::Acquire) {
        let waiting = |(copies, _): &&(Arc<Copies>, Thread)| copies.are_waiting();
        locked(rings).iter().filter(waiting).for_each(|(_, thread)| thread.unpark());
        thread::sleep(LOOKS);
    }
}

/// The thread of a file.
fn run(mut writer: Writer<OfDaemon>, ends: &AtomicBool, ended: Sender<()>) {
    let clock = Clock::of_process();
    let worker_ns = || clock.ns(clock.cycles());
    let mut to_unix_ns = unix_ns().wrapping_sub(worker_ns());
    loop {
        let is_last = ends.load(Ordering::Acquire);
        loop {
            // Compared each time, because the clock of workers is exact only to some hundred millionths.
            to_unix_ns = apart(worker_ns, unix_ns).unwrap_or(to_unix_ns);
            if !writer.drain(Instant::now(), to_unix_ns) {
                break;
            }
        }
        if is_last {
            break;
        }
        thread::park_timeout(writer.rests(Instant::now()));
    }
    drop(writer);
    // The receiver may be gone.
    let _ = ended.send(());
}

/// How far the second clock is ahead. `None`: in each try, too much time passed between the readings, as easily happens to a thread of
/// low priority.
fn apart(mut first: impl FnMut() -> u64, mut second: impl FnMut() -> u64) -> Option<u64> {
    (0..COMPARES).find_map(|_| {
        let (before, between, after) = (first(), second(), first());
        let took = after.checked_sub(before).filter(|took| *took <= BETWEEN_NS)?;
        Some(between.wrapping_sub(before + took / 2))
    })
}

fn unix_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// The captures of a run over captures, in the order of its paths. None, by default.
#[derive(Default)]
pub struct CaptureWriters<'s> {
    captures: Captures,
    writers: Vec<Writer<Box<dyn Sink + 's>>>,
}

impl<'s> CaptureWriters<'s> {
    /// Each ring has room for all copies between two calls of [`CaptureWriters::drain`], so none is lost in a full ring.
    pub fn new<'m>(mirrors: impl IntoIterator<Item = (&'m MirrorSettings, Box<dyn Sink + 's>)>) -> Self {
        let (mut by_file, mut writers) = (BTreeMap::new(), Vec::new());
        for (mirror, sink) in mirrors {
            let (copies, taker) = Copies::new(Copies::bytes_for(MOST_PACKETS, mirror.snap_bytes));
            writers.push(Writer::new(taker, sink, mirror));
            by_file.insert(mirror.file.clone(), copies);
        }
        CaptureWriters { captures: Captures::new(by_file), writers }
    }

    /// The rings, for elements.
    pub fn captures(&self) -> Captures {
        self.captures.clone()
    }

    /// Writes the copies of a turn. The clock of elements is that of the records.
    pub fn drain(&mut self) {
        for writer in &mut self.writers {
            while writer.drain(Instant::now(), 0) {}
        }
    }

    /// Returns why files lack copies, for each that does.
    pub fn finish(mut self) -> Vec<String> {
        self.drain();
        self.writers.iter().filter_map(Writer::failed).map(Into::into).collect()
    }
}
