//! A worker's thread: it runs on its core without privileges, and executes commands between two runs.
//!
//! A panic unwinds to here, and the same thread continues at once with all its rings unchanged. Nothing is handed to another
//! thread, so only the packets in hand are lost.
//!
//! A command runs at most once. A caller that times out withdraws it, unless the worker has already started it. A worker
//! that did not answer gets no command until its epoch has moved.

use super::{
    epochs::{Epoch, Epochs},
    inner::{Inner, NO_PATH},
    watch::{Standing, Watch},
};
use crate::{
    base::{guard::locked, priority::Urgency, privileges},
    cores::threads::Stat,
    user_plane::af_xdp::Bell,
};
use anyhow::{Context, Error, Result, anyhow};
use logic::{cores::CoreId, paths::PathId};
use rustix::thread::{CapabilitySet, CpuSet, Pid, capabilities, gettid, sched_setaffinity};
use std::{
    cell::Cell,
    collections::VecDeque,
    fs::File,
    mem,
    os::unix::fs::FileExt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The longest time that a caller waits for an answer. A worker answers between two runs, and a run takes 100 us or one
/// packet. If the watch finds that a worker makes no progress, its caller waits less.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// How often a caller looks whether the worker makes progress.
const LOOKS: Duration = Duration::from_millis(20);
/// More than the length of /proc/PID/stat.
const STAT_BYTES: usize = 1024;
/// The nice value of a thread that makes no progress and may run for ever: the least urgent.
const LEAST_URGENT: i8 = 19;

type Command = Box<dyn FnOnce(&mut Inner) + Send>;

/// A command that failed, and will not run later.
pub(super) struct NotTaken<A> {
    pub error: Error,
    /// The thing that the worker did not take. `None`: it is lost, because the worker panicked in the command or is still in
    /// it.
    pub thing: Option<A>,
}

/// What the thread shares with others.
pub(super) struct Desk {
    pub core: CoreId,
    bell: Arc<Bell>,
    pub epoch: Arc<Epoch>,
    /// There are commands, or the thread must end.
    called: AtomicBool,
    ends: AtomicBool,
    commands: Mutex<VecDeque<Command>>,
    thread: OnceLock<Pid>,
    /// The /proc/thread-self/stat of the worker's thread.
    stat: OnceLock<File>,
    pub standing: Standing,
    /// The path whose elements run now, or [`NO_PATH`].
    running: Arc<AtomicU32>,
}

/// A worker, as its callers see it.
pub(super) struct Thread {
    core: CoreId,
    nice: i8,
    desk: Arc<Desk>,
    epochs: Epochs,
    watch: Watch,
    thread: Option<JoinHandle<()>>,
    /// Its epoch when it last failed to answer.
    silent: Cell<Option<u64>>,
}

impl Thread {
    /// Starts a worker with this nice value. `make` is called on the new thread, which has privileges until then.
    ///
    /// # Errors
    /// The core does not exist, the nice value is not permitted, or `make` fails.
    pub fn start(
        core: CoreId,
        nice: i8,
        epochs: &Epochs,
        watch: &Watch,
        make: impl FnOnce(Arc<Bell>, Arc<AtomicU32>) -> Result<Inner> + Send + 'static,
    ) -> Result<Thread> {
        let desk = Arc::new(Desk::new(core)?);
        let (started, starts) = sync_channel(1);
        let its = desk.clone();
        let thread = thread::Builder::new().name(format!("worker/{core}")).spawn(move || {
            its.begin();
            match pin(core)
                .and_then(|()| be_nice(core, nice))
                .and_then(|()| make(its.bell.clone(), its.running.clone()))
                // Its sockets are open, and using them needs no privileges. This bounds the harm that a packet can do if
                // elements have faults.
                .and_then(|inner| privileges::give_up_all().map(|()| inner))
            {
                Ok(mut inner) => {
                    let _ = started.send(Ok(()));
                    work(&its, &mut inner);
                }
                Err(error) => drop(started.send(Err(error))),
            }
        });
        let thread = thread.context("starting a worker's thread")?;
        starts.recv().map_err(|_| anyhow!("the new thread for core {core} ended"))??;
        epochs.add(desk.epoch.clone());
        watch.add(desk.clone());
        let (epochs, watch) = (epochs.clone(), watch.clone());
        Ok(Thread { core, nice, desk, epochs, watch, thread: Some(thread), silent: Cell::new(None) })
    }

    pub fn standing(&self) -> &Standing {
        &self.desk.standing
    }

    /// Whether it makes no progress, not even since the watch looked last.
    pub fn is_still(&self) -> bool {
        self.desk.standing.is_still() && self.desk.standing.has_seen(self.desk.epoch.now())
    }

    /// The path whose elements run now, if any do.
    pub fn running(&self) -> Option<PathId> {
        let path = self.desk.running.load(Relaxed);
        (path != NO_PATH).then_some(path as PathId)
    }

    /// Sets the least urgent nice value, so that a hanging thread hardly disturbs its core, or restores the thread's own.
    pub fn yields(&self, yields: bool) {
        let may_restore =
            || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
        if yields && !may_restore() {
            return;
        }
        let nice = if yields { LEAST_URGENT } else { self.nice };
        if let Some(thread) = self.desk.thread() {
            let _ = Urgency::usual(nice.into()).set(thread.as_raw_nonzero().get());
        }
    }

    /// Makes the worker run this after its present run, however long that lasts.
    pub fn leave(&self, what: impl FnOnce(&mut Inner) + Send + 'static) {
        locked(&self.desk.commands).push_back(Box::new(what));
        self.desk.call();
    }

    /// Makes the worker run this between two runs; returns the result.
    ///
    /// # Errors
    /// The worker panicked in it, or has been in the same run for seconds.
    pub fn ask<T: Send + 'static>(&self, what: impl FnOnce(&mut Inner) -> T + Send + 'static) -> Result<T> {
        self.give((), |inner, ()| what(inner)).map_err(|not| not.error)
    }

    /// Makes the worker take this thing.
    pub fn give<A: Send + 'static, T: Send + 'static>(
        &self,
        thing: A,
        take: impl FnOnce(&mut Inner, A) -> T + Send + 'static,
    ) -> Result<T, NotTaken<A>> {
        if self.is_silent() {
            return Err(NotTaken { error: self.silence(), thing: Some(thing) });
        }
        // The worker takes the request, or the caller takes it back after a timeout. The first of them owns it alone.
        let offer = Arc::new(Mutex::new(Some((thing, take))));
        let claim = |offer: &Mutex<Option<_>>| locked(offer).take();
        let (to, answer) = sync_channel(1);
        let theirs = offer.clone();
        let command: Command = Box::new(move |inner| {
            if let Some((thing, take)) = claim(&theirs) {
                let _ = to.send(take(inner, thing));
            }
        });
        locked(&self.desk.commands).push_back(command);
        self.desk.call();
        // A command that has not begun is waited for only while the worker makes progress.
        let wait = |gives_up: &dyn Fn() -> bool| {
            let begun = Instant::now();
            loop {
                let answered = answer.recv_timeout(LOOKS);
                let is_late = || begun.elapsed() > ANSWERS_WITHIN || gives_up();
                if !matches!(answered, Err(RecvTimeoutError::Timeout)) || is_late() {
                    return answered;
                }
            }
        };
        let mut answered = wait(&|| self.desk.standing.is_still());
        if matches!(answered, Err(RecvTimeoutError::Timeout)) {
            if let Some((thing, _)) = claim(&offer) {
                return Err(NotTaken { error: self.is_silent_from_now_on(), thing: Some(thing) });
            }
            // The worker has begun with it.
            answered = wait(&|| false);
        }
        answered.map_err(|why| {
            let error = match why {
                RecvTimeoutError::Timeout => self.is_silent_from_now_on(),
                RecvTimeoutError::Disconnected => {
                    anyhow!("the worker on core {} panicked in a command", self.core)
                }
            };
            NotTaken { error, thing: None }
        })
    }

    /// Whether it did not answer, and its epoch has not moved since.
    fn is_silent(&self) -> bool {
        self.silent.get() == Some(self.desk.epoch.now())
    }

    fn is_silent_from_now_on(&self) -> Error {
        self.silent.set(Some(self.desk.epoch.now()));
        self.silence()
    }

    fn silence(&self) -> Error {
        anyhow!("the worker on core {} does not answer; it keeps its paths and their packets", self.core)
    }
}

impl Desk {
    /// The desk of a worker that sleeps.
    pub fn new(core: CoreId) -> Result<Desk> {
        Ok(Desk {
            core,
            bell: Arc::new(Bell::new().context("making the bell of a worker")?),
            epoch: Arc::default(),
            called: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            commands: Mutex::default(),
            thread: OnceLock::new(),
            stat: OnceLock::new(),
            standing: Standing::default(),
            running: Arc::new(AtomicU32::new(NO_PATH)),
        })
    }

    /// Makes the calling thread the worker's thread.
    pub fn begin(&self) {
        let _ = self.thread.set(gettid());
        // Opened once: reading it then needs one system call.
        if let Ok(file) = File::open("/proc/thread-self/stat") {
            let _ = self.stat.set(file);
        }
    }

    /// The worker's thread, once it has begun.
    pub fn thread(&self) -> Option<Pid> {
        self.thread.get().copied()
    }

    /// Whether it should make progress, because it is awake, was called, or was woken by packets and waits for its core.
    pub fn is_to_move(&self) -> bool {
        self.epoch.is_awake() || self.called.load(Relaxed) || self.is_runnable()
    }

    fn is_runnable(&self) -> bool {
        let Some(file) = self.stat.get() else { return false };
        let mut text = [0; STAT_BYTES];
        let read = file.read_at(&mut text, 0).unwrap_or(0);
        str::from_utf8(&text[..read]).ok().and_then(Stat::parse).is_some_and(|stat| stat.runnable)
    }

    fn call(&self) {
        self.called.store(true, Release);
        self.bell.ring();
    }
}

/// The thread ends after its run. Everything that it has is dropped with it, so its rings must be taken from it before.
impl Drop for Thread {
    fn drop(&mut self) {
        self.watch.remove(&self.desk);
        self.desk.ends.store(true, Relaxed);
        self.desk.call();
        let Some(thread) = self.thread.take() else { return };
        let begun = Instant::now();
        while !thread.is_finished() {
            if begun.elapsed() > ANSWERS_WITHIN || self.is_silent() || self.is_still() {
                // Its epoch stays, so that the blocks that it reads are not used again.
                return tracing::error!(
                    "the worker on core {} does not end; it keeps its paths and their packets",
                    self.core
                );
            }
            thread::sleep(Duration::from_micros(100));
        }
        let _ = thread.join();
        self.epochs.remove(&self.desk.epoch);
    }
}

pub(crate) fn pin(core: CoreId) -> Result<()> {
    let mut only = CpuSet::new();
    anyhow::ensure!(usize::from(core) < CpuSet::MAX_CPU, "core {core} is beyond {}", CpuSet::MAX_CPU);
    only.set(core.into());
    sched_setaffinity(None, &only).with_context(|| format!("putting a worker on core {core}"))
}

fn be_nice(core: CoreId, nice: i8) -> Result<()> {
    Urgency::usual(nice.into()).set(0).with_context(|| {
        format!("worker on core {core}: nice = {nice} needs CAP_SYS_NICE; nice = 0 does not")
    })
}

fn work(desk: &Desk, inner: &mut Inner) {
    // The worker is awake from now on.
    desk.epoch.turn_over();
    while !desk.ends.load(Relaxed) {
        if !survives(|| rounds(desk, inner)) && !survives(|| inner.recover()) {
            inner.give_up_on_it();
        }
    }
    desk.epoch.turn_over();
}

/// Returns whether it did not panic. The payload of a panic is leaked, because dropping it might panic, too.
fn survives(run: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(run)).map_err(mem::forget).is_ok()
}

fn rounds(desk: &Desk, inner: &mut Inner) {
    loop {
        desk.epoch.pass();
        if desk.called.load(Relaxed) {
            desk.called.swap(false, Acquire);
            if desk.ends.load(Relaxed) {
                return;
            }
            let next = || locked(&desk.commands).pop_front();
            while let Some(command) = next() {
                command(inner);
            }
            inner.is_told();
        }
        inner.round(&desk.epoch);
    }
}
