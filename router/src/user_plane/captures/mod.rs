//! Captures: the files that `mirror` elements copy packets to (`logic/src/elements/mirror.rs`).
//!
//! ```text
//!  Mirror ── Copies (logic): a ring ──► Writer ──► Sink: a file of the daemon, or of a run over captures
//!  in a worker's turn                   a thread of low priority each (the daemon), or between two turns (`millrace paths run`)
//! ```
//!
//! Each file of the daemon has a thread, as one on a disk that hangs is not to keep others waiting. They sleep: one more thread looks at all rings, and wakes those whose
//! rings have copies. To wake them is not the workers' work, as it may take a system call. All of these threads give up their rights, and stay away from cores of workers where there are others.
//!
//! A ring belongs to a file, not to a chain: chains that are made anew, over other tables or after a panic, find it by the file's name and go on.
//! Whatever becomes of the file, the path does not notice: copies are lost, by name, and [`CaptureThreads::troubles`] says why.
//!
//! | file | holds |
//! |---|---|
//! | this one | [`Captures`]; those of the daemon, [`CaptureThreads`], and of a run, [`CaptureWriters`] |
//! | `writer.rs` | from a ring to records, the most bytes, what is tried again |
//! | `sink.rs` | files: made, gone on with, cut |

mod sink;
#[cfg(test)]
mod tests;
mod writer;

pub use sink::{OfDaemon, OfRun, Sink};

use crate::{
    base::{priority::Urgency, privileges},
    config::{Captures, MirrorSettings},
    cores::CoreId,
    user_plane::workers::Clock,
};
use anyhow::{Context, Result};
use logic::elements::{Copies, MOST_PACKETS, NoCopy};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant, SystemTime},
};
use writer::{Fault, Writer};

/// Memory of a capture of the daemon.
const RING_BYTES: usize = 4 << 20;
/// So often a thread looks whether there are copies. What comes meanwhile has to fit into the ring.
const LOOKS: Duration = Duration::from_millis(10);
/// So long it is told that a ring was full.
const TELLS: Duration = Duration::from_secs(10);
/// The end of the daemon waits so long for all of them: a file system may never answer.
const ENDS: Duration = Duration::from_secs(2);
/// Clocks are compared so often at most, until so little time is between two readings.
const COMPARES: usize = 5;
const BETWEEN_NS: u64 = 100_000;
/// Of threads that write.
const NICE: i32 = 19;

/// Of the daemon. Nothing, by default.
#[derive(Default)]
pub struct CaptureThreads {
    captures: Captures,
    threads: Vec<Running>,
    ends: Arc<AtomicBool>,
}

struct Running {
    file: PathBuf,
    ended: Receiver<()>,
    thread: JoinHandle<()>,
    fault: Fault,
    full: Full,
}

impl CaptureThreads {
    /// A thread for each; files are opened by them, and tried again where that fails. `workers`: cores that they leave alone, if there are others.
    ///
    /// # Errors
    /// There are no threads.
    pub fn start<'m>(
        mirrors: impl IntoIterator<Item = &'m MirrorSettings>,
        workers: &BTreeSet<CoreId>,
    ) -> Result<CaptureThreads> {
        let ends = Arc::<AtomicBool>::default();
        // Those that were started end if another cannot be.
        let mut all =
            CaptureThreads { captures: Captures::default(), threads: Vec::new(), ends: ends.clone() };
        let (mut by_file, mut rings) = (BTreeMap::new(), Vec::new());
        let cores = cores_but(workers);
        let starting = "starting a thread of a mirror";
        for mirror in mirrors {
            let (copies, taker) = Copies::new(RING_BYTES);
            let writer = Writer::new(taker, OfDaemon::new(&mirror.file, ends.clone()), mirror);
            let fault = writer.fault();
            let (tell, ended) = channel();
            let until = ends.clone();
            let thread = thread::Builder::new().name("mirror".into());
            let thread = thread.spawn(move || {
                let ready = in_the_background(cores);
                if let Err(error) = ready {
                    return writer.fails(&format!("{error:#}"));
                }
                run(writer, &until, tell);
            });
            let thread = thread.context(starting)?;
            rings.push((copies.clone(), thread.thread().clone()));
            let full = Full { copies: copies.clone(), lost: 0, at: None };
            all.threads.push(Running { file: mirror.file.clone(), ended, thread, fault, full });
            by_file.insert(mirror.file.clone(), copies);
        }
        if !rings.is_empty() {
            let until = ends.clone();
            let looks = move || {
                // If it cannot, it looks all the same: it does nothing else.
                let _ = in_the_background(cores);
                look(&rings, &until);
            };
            thread::Builder::new().name("mirrors".into()).spawn(looks).context(starting)?;
        }
        all.captures = Captures::new(by_file);
        Ok(all)
    }

    /// For elements.
    pub fn captures(&self) -> Captures {
        self.captures.clone()
    }

    /// What is wrong now, or was a moment ago.
    pub fn troubles(&mut self, now: Instant) -> Vec<String> {
        let trouble = |running: &mut Running| {
            let file = running.file.display();
            let is_full = running.full.is_lately(now);
            let lost =
                || format!("mirror {file}: copies are lost, as more come than are written (mirror_full)");
            let failed = || format!("mirror {file}: its thread has failed");
            let fault = writer::read(&running.fault);
            let fault = fault.or_else(|| running.thread.is_finished().then(failed));
            fault.into_iter().chain(is_full.then(lost))
        };
        self.threads.iter_mut().flat_map(trouble).collect()
    }

    /// Writes what was put before; which files did not get all of it, or not in time.
    pub fn finish(mut self) -> Vec<String> {
        self.end()
    }

    fn end(&mut self) -> Vec<String> {
        self.ends.store(true, Ordering::Release);
        self.threads.iter().for_each(|running| running.thread.thread().unpark());
        let deadline = Instant::now() + ENDS;
        let end = |running: Running| {
            let left = deadline.saturating_duration_since(Instant::now());
            // An error as well: it is gone.
            let is_late = running.ended.recv_timeout(left) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            let late =
                || format!("mirror {}: it takes too long to write, and is left", running.file.display());
            is_late.then(late).or_else(|| writer::read(&running.fault))
        };
        self.threads.drain(..).filter_map(end).collect()
    }
}

impl Drop for CaptureThreads {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a ring was full.
struct Full {
    copies: Arc<Copies>,
    /// For that, when it was last asked.
    lost: u64,
    /// When that was more than before.
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

/// Those that this thread may use, but for these, if any are left.
fn cores_but(workers: &BTreeSet<CoreId>) -> Option<CpuSet> {
    let mut cores = sched_getaffinity(None).ok()?;
    workers
        .iter()
        .map(|core| usize::from(*core))
        .filter(|core| *core < CpuSet::MAX_CPU)
        .for_each(|core| cores.unset(core));
    (cores.count() > 0).then_some(cores)
}

/// What a thread of a mirror is: it writes files of the daemon's user, which takes no rights, when there is nothing else to do.
fn in_the_background(cores: Option<CpuSet>) -> Result<()> {
    // If the kernel does not allow it, copies are written as urgently as all else, or anywhere.
    let _ = Urgency::usual(NICE).set(0);
    let _ = cores.map(|cores| sched_setaffinity(None, &cores));
    privileges::give_up_all()
}

/// Wakes who has copies to write.
fn look(rings: &[(Arc<Copies>, Thread)], ends: &AtomicBool) {
    while !ends.load(Ordering::Acquire) {
        rings.iter().filter(|(copies, _)| copies.are_waiting()).for_each(|(_, thread)| thread.unpark());
        thread::sleep(LOOKS);
    }
}

/// A thread.
fn run(mut writer: Writer<OfDaemon>, ends: &AtomicBool, ended: Sender<()>) {
    let clock = Clock::of_process();
    let worker_ns = || clock.ns(clock.cycles());
    let mut to_unix_ns = unix_ns().wrapping_sub(worker_ns());
    loop {
        let is_last = ends.load(Ordering::Acquire);
        loop {
            // Compared anew each time, as the clock of workers is right to some hundred millionths only.
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
    // Nobody may be there any more to hear it.
    let _ = ended.send(());
}

/// How far the second clock is ahead; `None`: each time too much came between their readings, as threads as urgent as this one easily wait there.
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

/// Of a run over captures, in the order of its paths. Nothing, by default.
#[derive(Default)]
pub struct CaptureWriters<'s> {
    captures: Captures,
    writers: Vec<Writer<Box<dyn Sink + 's>>>,
}

impl<'s> CaptureWriters<'s> {
    /// A ring has all that comes between two calls of [`CaptureWriters::drain`], so none is lost as it is full.
    pub fn new<'m>(mirrors: impl IntoIterator<Item = (&'m MirrorSettings, Box<dyn Sink + 's>)>) -> Self {
        let (mut by_file, mut writers) = (BTreeMap::new(), Vec::new());
        for (mirror, sink) in mirrors {
            let (copies, taker) = Copies::new(Copies::bytes_for(MOST_PACKETS, mirror.snap_bytes));
            writers.push(Writer::new(taker, sink, mirror));
            by_file.insert(mirror.file.clone(), copies);
        }
        CaptureWriters { captures: Captures::new(by_file), writers }
    }

    /// For elements.
    pub fn captures(&self) -> Captures {
        self.captures.clone()
    }

    /// After each turn. The clock of elements is that of the records.
    pub fn drain(&mut self) {
        for writer in &mut self.writers {
            while writer.drain(Instant::now(), 0) {}
        }
    }

    /// Which files do not have all that they should.
    pub fn finish(mut self) -> Vec<String> {
        self.drain();
        self.writers.iter().filter_map(Writer::failed).map(Into::into).collect()
    }
}
