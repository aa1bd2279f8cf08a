//! A worker's thread, on its core, without any rights, and what it is asked to do between two runs.
//!
//! A panic unwinds to here, and the same thread goes on at once with all its rings as they are: nothing has to be handed to another, so
//! nothing but the packets in its hands is lost.
//!
//! What it is asked it does, or never: who waits for it in vain takes it back, whoever comes first. A worker that did not answer is not asked
//! again before its epoch has moved. A thread whose goods another has taken (`takeover.rs`) ends when it finds that.

use super::{
    epochs::{Epoch, Epochs},
    inner::{Goods, Inner},
    locker::Locker,
    rounds::Fault,
    watch::{Standing, Watch},
};
use crate::{
    base::{guard::locked, priority::Urgency, privileges},
    user_plane::af_xdp::Bell,
};
use anyhow::{Context, Error, Result, anyhow};
use logic::cores::CoreId;
use rustix::thread::{CpuSet, Pid, gettid, sched_setaffinity};
use std::{
    cell::Cell,
    collections::VecDeque,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// A worker answers between two runs, which take 100 us or one packet. One that does not get on is not waited for so long, where it is watched.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Who waits looks so often whether it does.
const LOOKS: Duration = Duration::from_millis(20);
/// The least urgent: a thread that was left and may run for ever.
const LEAST_URGENT: i32 = 19;

type Command = Box<dyn FnOnce(&mut Inner) + Send>;

/// It was not done, and will not be.
pub(super) struct NotTaken<A> {
    pub error: Error,
    /// What it was to be done with; `None`: it is lost, as the worker panicked at it, or is at it still.
    pub thing: Option<A>,
}

/// What the thread and others share.
pub(super) struct Desk {
    pub core: CoreId,
    bell: Arc<Bell>,
    pub epoch: Arc<Epoch>,
    /// There are commands, or it is to end.
    called: AtomicBool,
    ends: AtomicBool,
    commands: Mutex<VecDeque<Command>>,
    thread: OnceLock<Pid>,
    pub standing: Standing,
    pub locker: Arc<Locker<Goods>>,
}

/// A worker, for those who tell it what to do.
pub(super) struct Thread {
    core: CoreId,
    desk: Arc<Desk>,
    epochs: Epochs,
    watch: Watch,
    thread: Option<JoinHandle<()>>,
    /// Where its epoch was when it did not answer, last.
    silent: Cell<Option<u64>>,
}

impl Thread {
    /// Starts it, this nice; `away`: on whichever core of workers, until its own is known to be free. `make` is called on the thread, which may have rights until then.
    ///
    /// # Errors
    /// The core is not there, it may not be as urgent, or what `make` says.
    pub fn start(
        core: CoreId,
        away: bool,
        nice: i8,
        epochs: &Epochs,
        watch: &Watch,
        make: impl FnOnce(Arc<Bell>, Arc<Locker<Goods>>) -> Result<Inner> + Send + 'static,
    ) -> Result<Thread> {
        let desk = Arc::new(Desk::new(core, away)?);
        let cores = away.then(|| watch.elsewhere(core)).transpose()?;
        let (started, starts) = sync_channel(1);
        let its = desk.clone();
        let thread = thread::Builder::new().name(format!("worker/{core}")).spawn(move || {
            its.begin();
            match cores
                .map_or_else(|| pin(core), |cores| Ok(sched_setaffinity(None, &cores)?))
                .and_then(|()| be_nice(core, nice))
                .and_then(|()| make(its.bell.clone(), its.locker.clone()))
                // Its sockets are open, and using them takes no rights; so what a packet might make of it, if elements had faults, is bounded.
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
        starts.recv().map_err(|_| anyhow!("the thread of core {core} ended"))??;
        epochs.add(desk.epoch.clone());
        watch.add(desk.clone());
        let (epochs, watch) = (epochs.clone(), watch.clone());
        Ok(Thread { core, desk, epochs, watch, thread: Some(thread), silent: Cell::new(None) })
    }

    /// Others take what is there while elements run.
    pub fn locker(&self) -> &Locker<Goods> {
        &self.desk.locker
    }

    pub fn bell(&self) -> Arc<Bell> {
        self.desk.bell.clone()
    }

    pub fn standing(&self) -> &Standing {
        &self.desk.standing
    }

    /// Another has what it had: it ends when it finds that, is not waited for, and is not in the way of others on its core.
    pub fn is_left(&self) {
        self.desk.ends.store(true, Relaxed);
        self.silent.set(Some(self.desk.epoch.now()));
        self.watch.remove(&self.desk);
        if let Some(thread) = self.desk.thread() {
            let _ = sched_setaffinity(Some(thread), &super::watch::only(self.core));
            let _ = Urgency::usual(LEAST_URGENT).set(thread.as_raw_nonzero().get());
        }
    }

    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Has it do this between two runs; returns what that returns.
    ///
    /// # Errors
    /// It panicked at it, or is in the same run for seconds.
    pub fn ask<T: Send + 'static>(&self, what: impl FnOnce(&mut Inner) -> T + Send + 'static) -> Result<T> {
        self.give((), |inner, ()| what(inner)).map_err(|not| not.error)
    }

    /// Has it take this.
    pub fn give<A: Send + 'static, T: Send + 'static>(
        &self,
        thing: A,
        take: impl FnOnce(&mut Inner, A) -> T + Send + 'static,
    ) -> Result<T, NotTaken<A>> {
        if self.is_silent() {
            return Err(NotTaken { error: self.silence(), thing: Some(thing) });
        }
        // Whoever takes what is in it, the worker or who waited in vain, has it alone.
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
        // For one that has not begun, no longer than it gets on.
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
            // It is at it.
            answered = wait(&|| false);
        }
        answered.map_err(|why| {
            let error = match why {
                RecvTimeoutError::Timeout => self.is_silent_from_now_on(),
                RecvTimeoutError::Disconnected => {
                    anyhow!("the worker on core {} panicked at a command", self.core)
                }
            };
            NotTaken { error, thing: None }
        })
    }

    /// It did not answer, and nothing has moved since.
    fn is_silent(&self) -> bool {
        self.silent.get() == Some(self.desk.epoch.now())
    }

    fn is_silent_from_now_on(&self) -> Error {
        self.silent.set(Some(self.desk.epoch.now()));
        self.silence()
    }

    fn silence(&self) -> Error {
        anyhow!("the worker on core {} does not answer, and keeps what it has", self.core)
    }
}

impl Desk {
    /// Of a worker that sleeps; `away` as in [`Thread::start`].
    pub fn new(core: CoreId, away: bool) -> Result<Desk> {
        Ok(Desk {
            core,
            bell: Arc::new(Bell::new().context("a worker's bell")?),
            epoch: Arc::default(),
            called: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            commands: Mutex::default(),
            thread: OnceLock::new(),
            standing: if away { Standing::begins_away() } else { Standing::default() },
            locker: Arc::default(),
        })
    }

    /// The calling thread is the worker's.
    pub fn begin(&self) {
        let _ = self.thread.set(gettid());
    }

    /// Its own.
    pub fn thread(&self) -> Option<Pid> {
        self.thread.get().copied()
    }

    /// It is awake, or was called.
    pub fn is_to_move(&self) -> bool {
        self.epoch.is_awake() || self.called.load(Relaxed)
    }

    fn call(&self) {
        self.called.store(true, Release);
        self.bell.ring();
    }
}

/// It ends when it is through with its run. What it has goes with it: rings are to be taken from it before.
impl Drop for Thread {
    fn drop(&mut self) {
        self.watch.remove(&self.desk);
        self.desk.ends.store(true, Relaxed);
        self.desk.call();
        let Some(thread) = self.thread.take() else { return };
        let begun = Instant::now();
        while !thread.is_finished() {
            if begun.elapsed() > ANSWERS_WITHIN || self.is_silent() {
                // What it reads may not be used again: its epoch stays.
                return tracing::error!(
                    "the worker on core {} does not end, and keeps what it has",
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
    // Awake.
    desk.epoch.turn_over();
    while !desk.ends.load(Relaxed) && !inner.has_nothing {
        if !survives(|| rounds(desk, inner)) && !survives(|| inner.recover(Fault::Panicked)) {
            inner.give_up_on_it();
        }
    }
    desk.epoch.turn_over();
}

/// Does it not panic? What it panicked with is left: to drop it might panic, too.
fn survives(run: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(run)).map_err(mem::forget).is_ok()
}

fn rounds(desk: &Desk, inner: &mut Inner) {
    while !inner.has_nothing {
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
