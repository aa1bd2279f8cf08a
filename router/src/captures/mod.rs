//! Captures: the files that `mirror` elements copy packets to (`logic/src/elements/mirror.rs`).
//!
//! ```text
//!  Mirror ── Copies (logic): a ring ──► Writer ──► Sink: a file of the daemon, or of a run over captures
//!  in a worker's turn                   a thread of low priority each (the daemon), or between two turns (`millrace paths run`)
//! ```
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

use crate::{config::MirrorSettings, priority::Urgency, workers::Clock};
use anyhow::{Context, Result};
use logic::elements::{Copies, MOST_PACKETS};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};
use writer::{Fault, Writer};

/// Memory of a capture of the daemon.
const RING_BYTES: usize = 4 << 20;
/// So often a thread looks whether there are copies. What comes meanwhile has to fit into the ring.
const LOOKS: Duration = Duration::from_millis(10);
/// The end of the daemon waits so long for all of them: a file system may never answer.
const ENDS: Duration = Duration::from_secs(2);
/// Clocks are compared so often at most, until so little time is between two readings.
const COMPARES: usize = 5;
const BETWEEN_NS: u64 = 100_000;
/// Of threads that write.
const NICE: i32 = 19;

/// By the file's name: where copies for it are put.
#[derive(Clone, Default)]
pub struct Captures(Arc<BTreeMap<PathBuf, Arc<Copies>>>);

impl Captures {
    /// Of a file that is not among them every copy is lost.
    pub fn copies(&self, file: &Path) -> Arc<Copies> {
        self.0.get(file).cloned().unwrap_or_else(Copies::nowhere)
    }
}

/// Of the daemon. Nothing, by default.
#[derive(Default)]
pub struct CaptureThreads {
    captures: Captures,
    threads: Vec<Running>,
}

struct Running {
    file: PathBuf,
    ends: Arc<AtomicBool>,
    ended: Receiver<()>,
    thread: JoinHandle<()>,
    fault: Fault,
}

impl CaptureThreads {
    /// A thread for each; files are opened by them, and tried again where that fails.
    ///
    /// # Errors
    /// There are no threads.
    pub fn start<'m>(mirrors: impl IntoIterator<Item = &'m MirrorSettings>) -> Result<CaptureThreads> {
        let (mut by_file, mut threads) = (BTreeMap::new(), Vec::new());
        for mirror in mirrors {
            let (copies, taker) = Copies::new(RING_BYTES);
            let writer = Writer::new(taker, OfDaemon::new(&mirror.file), mirror);
            let (fault, ends) = (writer.fault(), Arc::<AtomicBool>::default());
            let (tell, ended) = channel();
            let until = ends.clone();
            let thread = thread::Builder::new().name("mirror".into());
            let thread = thread.spawn(move || run(writer, &until, tell)).context("starting a thread")?;
            threads.push(Running { file: mirror.file.clone(), ends, ended, thread, fault });
            by_file.insert(mirror.file.clone(), copies);
        }
        Ok(CaptureThreads { captures: Captures(Arc::new(by_file)), threads })
    }

    /// For elements.
    pub fn captures(&self) -> Captures {
        self.captures.clone()
    }

    /// What is wrong now.
    pub fn troubles(&self) -> Vec<String> {
        let trouble = |running: &Running| {
            let failed = || format!("mirror {}: its thread has failed", running.file.display());
            running.thread.is_finished().then(failed).or_else(|| writer::read(&running.fault))
        };
        self.threads.iter().filter_map(trouble).collect()
    }

    /// Writes what was put before; which files did not get it in time.
    pub fn finish(mut self) -> Vec<String> {
        self.end()
    }

    fn end(&mut self) -> Vec<String> {
        for running in &self.threads {
            running.ends.store(true, Ordering::Release);
            running.thread.thread().unpark();
        }
        let deadline = Instant::now() + ENDS;
        let end = |running: Running| {
            let left = deadline.saturating_duration_since(Instant::now());
            // An error as well: it is gone.
            let is_late = running.ended.recv_timeout(left) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            is_late.then(|| {
                format!("mirror {}: it takes too long to write, and is left", running.file.display())
            })
        };
        self.threads.drain(..).filter_map(end).collect()
    }
}

impl Drop for CaptureThreads {
    fn drop(&mut self) {
        self.end();
    }
}

/// A thread.
fn run(mut writer: Writer<OfDaemon>, ends: &AtomicBool, ended: Sender<()>) {
    // If the kernel does not allow it, copies are written as urgently as all else.
    let _ = Urgency::usual(NICE).set(0);
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
        thread::park_timeout(LOOKS);
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
        CaptureWriters { captures: Captures(Arc::new(by_file)), writers }
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
