//! Workers: threads pinned to cores that run forwarding paths over AF_XDP (P1-P4, P9, P10).
//!
//! ```text
//!  WorkersPlan ──► Control ── steps ──► Thread (core 2): Inner ── Turns (logic): whose turn it is, chains
//!  ports, paths,    opens sockets,      Thread (core 3)     ├──── RingSet (af_xdp): queues, RX rings, TX rings
//!  cores, weights   fills Slots                             └──── Desk: tables, fates, the way Up
//! ```
//!
//! What the daemon does with it:
//!
//! * [`Workers::start`]`(settings, epochs, tables, slots, up)`: no threads yet. `frames` of the settings: at least [`frames_needed`] of the plans to
//!   come. `slots`: an `Arc` of [`crate::plane::PathMaps`]; `up`: a [`PassUp`].
//! * [`Workers::apply`]`(plan)`: as it shall be, while packets run; returns what could not be done, which the next call tries again. To be
//!   called when ports come, go or are others, when the configuration changes, and every few seconds, so that paths are placed by what they cost.
//! * [`Workers::set_tables`]: when the shared tables are in other memory; the old memory is read by nobody when it returns without an error, but for a thread that
//!   hangs and was taken over: it has a hold on it, and nothing of what it makes of it goes anywhere.
//! * [`Epochs`], which outlive them: for who waits before blocks of the tables are used again ([`Epochs::wait`] beside [`crate::plane::Grace::wait`]).
//! * [`Workers::report`]: all that is counted. [`Workers::stop`], or drop: paths end as when they are not in the plan any more.
//!
//! Rights, of the threads that call these: CAP_NET_RAW opens sockets, CAP_SYS_ADMIN does so in other namespaces, CAP_IPC_LOCK or a limit
//! (`ulimit -l`) locks the memory of packets, CAP_SYS_NICE puts workers before other threads, CAP_BPF and CAP_NET_ADMIN fill slots and give packets to the kernel; what lacks one says which.
//! Workers' own threads have no rights at all.
//!
//! Who may write what: a worker's rings, chains and counts only its thread, between two runs also by command (`thread.rs`). While elements run, rings and all
//! but the chain that runs are nobody's, in a locker: the thread takes them out again, or, if it does not get on, `control.rs` does, for another thread (`takeover.rs`). What it does
//! not use any more it hands to `control.rs`, which decides who has what, behind a lock that workers never take.
//!
//! | file | holds |
//! |---|---|
//! | `plan.rs` | [`WorkersPlan`], and what is asked of others: [`Slots`], [`Tables`] |
//! | `control.rs` | from how it stands to how it shall be |
//! | `held.rs` | how it stands: what workers say that they have |
//! | `rings.rs`, `moving.rs` | the steps: queues, rings and slots; paths |
//! | `placing.rs` | which core a path goes to, by what was measured |
//! | `thread.rs` | a thread, its commands, panics |
//! | `watch.rs`, `takeover.rs`, `locker.rs` | who does not get on, and how another goes on |
//! | `inner.rs` | what it has, and what it is told |
//! | `rounds.rs`, `sleepers.rs` | its loop: paths that run, sleep and panic |
//! | `exchange.rs` | packets from rings, and where they go |
//! | `up.rs` | packets for the kernel |
//! | `clock.rs`, `counters.rs` | cycles; what else is counted |
//! | `capacity.rs`, `scarce.rs` | what there is of I/O; which resource is shared now |
//! | `epochs.rs` | when tables are not read any more |
//! | `report.rs` | how they stand, in the words of [`crate::api::workers`] |

mod capacity;
mod clock;
mod control;
mod counters;
mod epochs;
mod exchange;
mod held;
mod inner;
mod locker;
mod moving;
mod own;
mod placing;
mod plan;
mod report;
mod rings;
mod rounds;
mod scarce;
mod sleepers;
mod takeover;
mod thread;
mod up;
mod watch;

pub use clock::Clock;
pub use counters::{Counter, check as check_counted, counters, resources};
pub use epochs::Epochs;
pub use own::Namespaces;
pub use plan::{PathPlan, PortPlan, Shared, Slots, Tables, WorkersPlan, frames_needed};
pub(crate) use thread::pin;
pub use up::{Budgets, PassUp, Up};

use crate::{
    api::workers::WorkersReport,
    base::guard::locked,
    user_plane::{af_xdp::Umem, calibrate::Calibrated},
};
use anyhow::{Context, Result};
use control::Control;
use logic::paths::Share;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, mpsc::channel},
    time::Duration,
};
use up::Ups;

/// What stays as it is while they run.
#[derive(Clone, Debug)]
pub struct WorkersSettings {
    /// The memory for packets: [`frames_needed`].
    pub frames: u32,
    /// 2048 or 4096.
    pub frame_bytes: u32,
    /// Packets that a worker has in its hands at most.
    pub in_hand: usize,
    /// Packets of a worker that wait for each TX ring (P3).
    pub auxiliary: usize,
    /// How long a worker looks for packets after it had some, before it sleeps.
    pub spin: Duration,
    /// A worker that is in the same run for so long is not waited for any longer: another thread takes over what it has. `watch.rs` says why it is a second and a half.
    pub patience: Duration,
    /// R: the longest run of a path (P8).
    pub longest_run: Duration,
    /// Where it stands what a switch from path to path takes, and what there is of memory bandwidth ([`crate::user_plane::calibrate`]); `None`: that is part of
    /// what packets cost, and not known.
    pub calibration: Option<PathBuf>,
    /// One packet in so many is measured (P6).
    pub sample_every: u16,
    /// What paths share by their weights (P7): what is scarce, or one that this machine counts.
    pub share: Share,
    /// How its threads stand to others of their cores (sched(7)): -20, before nearly all, to 19.
    pub nice: i8,
    /// For packets that go up.
    pub budgets: Budgets,
    /// Where routers are: what elements make for one, and cannot route, the kernel sends there.
    pub namespaces: Namespaces,
    /// What they measure by; `None`: the clock of the process.
    pub clock: Option<Clock>,
}

impl Default for WorkersSettings {
    fn default() -> WorkersSettings {
        WorkersSettings {
            frames: 1 << 16,
            frame_bytes: 2048,
            in_hand: 1024,
            auxiliary: 1024,
            spin: Duration::from_micros(50),
            patience: Duration::from_millis(1500),
            longest_run: Duration::from_micros(100),
            calibration: None,
            sample_every: 20,
            share: Share::Scarce,
            nice: -20,
            budgets: Budgets { exception_pps: 100_000, control_pps: 10_000 },
            namespaces: Namespaces::default(),
            clock: None,
        }
    }
}

/// See the head of this file.
pub struct Workers {
    control: Arc<Mutex<Control>>,
}

impl Workers {
    /// Without threads, ports and paths.
    ///
    /// # Errors
    /// There is no memory for packets, or the kernel cannot wait for programs that run.
    pub fn start(
        settings: WorkersSettings,
        epochs: Epochs,
        tables: Arc<dyn Tables>,
        slots: Box<dyn Slots>,
        up: Box<dyn Up>,
    ) -> Result<Workers> {
        let umem = Umem::new(settings.frames, settings.frame_bytes)?;
        let (tell, stopped) = channel();
        let ups = Ups::start(up, settings.namespaces.clone(), settings.budgets)?;
        let clock = settings.clock.unwrap_or_else(Clock::of_process);
        let calibrated = |file: &PathBuf| Calibrated::read(file, clock, settings.longest_run);
        let calibrated = settings.calibration.as_ref().map(calibrated).unwrap_or_default();
        let patience = settings.patience;
        let control = Control::new(settings, calibrated, umem, slots, tables, clock, epochs, ups, tell);
        let watch = control.watch.clone();
        let control = Arc::new(Mutex::new(control));
        let of = Arc::downgrade(&control);
        // Ends with the last who could tell: the control, and workers.
        let told = move || {
            for path in stopped {
                let Some(control) = of.upgrade() else { return };
                locked(&control).path_stopped(path);
            }
        };
        std::thread::Builder::new().name("stopped paths".into()).spawn(told).context("starting a thread")?;
        let of = Arc::downgrade(&control);
        let take_over = {
            let of = of.clone();
            move || {
                let Some(control) = of.upgrade() else { return };
                locked(&control).take_over_silent();
            }
        };
        let watches = move || watch.run(patience, std::thread::sleep, || of.strong_count() > 0, take_over);
        std::thread::Builder::new().name("watch".into()).spawn(watches).context("starting a thread")?;
        Ok(Workers { control })
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        locked(&self.control)
    }

    /// As it shall be; what could not be done. It takes milliseconds, more where packets have to leave before.
    pub fn apply(&self, plan: &WorkersPlan) -> Vec<String> {
        self.control().apply(plan)
    }

    /// What paths and workers read from now on.
    ///
    /// # Errors
    /// A chain cannot be made over them: nothing has changed. Or a worker does not answer: it reads the older ones still.
    pub fn set_tables(&self, tables: Arc<dyn Tables>) -> Result<()> {
        self.control().set_tables(tables)
    }

    pub fn report(&self) -> WorkersReport {
        self.control().report()
    }

    /// The memory of packets, which is whole again when they are stopped.
    pub fn umem(&self) -> Arc<Umem> {
        self.control().umem.clone()
    }

    /// Paths take what is in their rings, and all is closed; what could not be done.
    pub fn stop(self) -> Vec<String> {
        self.control().apply(&WorkersPlan::default())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for trouble in self.control().apply(&WorkersPlan::default()) {
            tracing::warn!("{trouble}");
        }
    }
}
