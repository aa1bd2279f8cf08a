//! Workers: threads pinned to cores that run forwarding paths over AF_XDP (P1-P4, P9, P10).
//!
//! ```text
//!  WorkersPlan ──► Control ── steps ──► Thread (core 2): Inner ── Turns (logic): whose turn it is, chains
//!  ports, paths,    opens sockets,      Thread (core 3)     ├──── RingSet (af_xdp): queues, RX rings, TX rings
//!  cores, weights   fills Slots                             └──── Desk: tables, fates, the way Up
//! ```
//!
//! How the daemon uses them:
//!
//! * [`Workers::start`]`(settings, epochs, tables, slots, up)` makes no workers yet. `frames` of the settings must be at
//!   least [`frames_needed`] of all plans to come. `slots` is an `Arc` of [`crate::plane::PathMaps`]; `up` is a [`PassUp`].
//! * [`Workers::apply`]`(plan)` brings the workers to the plan while packets run. It returns what could not be done, and the
//!   next call tries that again. It must be called when ports appear, disappear or change, when the configuration changes,
//!   and every few seconds, so that paths are placed by what they cost.
//! * [`Workers::set_tables`] must be called when the shared tables are in other memory. If it returns without an error, no
//!   worker reads the old memory, except one that makes no progress: it takes the new tables when it goes on, before it
//!   gets packets again.
//! * [`Epochs`] outlive the workers. Before blocks of the tables are used again, [`Epochs::wait`] must return, and
//!   [`crate::plane::Grace::wait`] too.
//! * [`Workers::report`] returns all counters. [`Workers::stop`], or drop, ends all paths as an empty plan does.
//!
//! The threads that call these need privileges. CAP_NET_RAW opens sockets, and CAP_SYS_ADMIN does so in other namespaces.
//! CAP_IPC_LOCK, or a limit (`ulimit -l`), locks the memory of packets. CAP_SYS_NICE puts workers before other threads.
//! CAP_BPF and CAP_NET_ADMIN fill slots and give packets to the kernel. An error names the privilege that is missing. The
//! workers' own threads have no privileges.
//!
//! Only a worker's thread writes the worker's rings, chains and counters: in its loop, and in commands between two runs
//! (`thread.rs`). A worker hands what it no longer uses to `control.rs`, which decides who has what, behind a lock that
//! workers never take. Nothing is taken from a worker that hangs: it gets no more packets until it goes on (`crew.rs`).
//!
//! | file | holds |
//! |---|---|
//! | `plan.rs` | [`WorkersPlan`], and the traits that others implement: [`Slots`], [`Tables`] |
//! | `control.rs` | the steps from the present state to the plan |
//! | `held.rs` | the present state, as workers report it; what all workers get |
//! | `rings.rs`, `moving.rs` | the steps: for queues, rings and slots; for paths |
//! | `placing.rs` | which core a path goes to, by measurements |
//! | `thread.rs` | a thread, its commands, panics |
//! | `crew.rs`, `watch.rs` | all threads; whether they make progress |
//! | `inner.rs` | what a worker's thread has, and its commands |
//! | `rounds.rs`, `sleepers.rs` | its loop: paths that run, sleep and fail |
//! | `exchange.rs` | packets from rings, and where they go |
//! | `up.rs`, `own.rs` | packets for the kernel: as they came in; made by elements |
//! | `behind.rs` | packets that would overtake those |
//! | `clock.rs`, `counters.rs` | cycles; counters of other resources |
//! | `resources.rs`, `capacity.rs`, `scarce.rs` | all resources; the capacity of I/O; which one is shared now |
//! | `epochs.rs` | when old tables are no longer read |
//! | `report.rs` | the report, in the types of [`crate::api::workers`] |

mod behind;
mod capacity;
mod clock;
mod control;
mod counters;
mod crew;
mod epochs;
mod exchange;
mod held;
mod inner;
mod moving;
mod own;
mod placing;
mod plan;
mod report;
mod resources;
mod rings;
mod rounds;
mod scarce;
mod sleepers;
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

use crate::{api::workers::WorkersReport, base::guard::locked, user_plane::af_xdp::Umem};
use anyhow::{Context, Result};
use control::Control;
use logic::paths::Share;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, mpsc::channel},
    time::Duration,
};

/// Settings that do not change while workers run.
#[derive(Clone, Debug)]
pub struct WorkersSettings {
    /// Frames of the memory for packets, see [`frames_needed`].
    pub frames: u32,
    /// Bytes of a frame: 2048 or 4096.
    pub frame_bytes: u32,
    /// The most packets that a worker has in hand.
    pub in_hand: usize,
    /// The most packets of a worker that wait for each TX ring (P3).
    pub auxiliary: usize,
    /// How long a worker that had packets looks for more before it sleeps.
    pub spin: Duration,
    /// A worker that stays in the same run for this long gets no packets until it goes on. `watch.rs` explains the default
    /// of 1.5 s.
    pub patience: Duration,
    /// R: the longest run of a path (P8).
    pub longest_run: Duration,
    /// The file with the cost of a switch between paths and the memory bandwidth ([`crate::user_plane::calibrate`]). `None`:
    /// both are unknown, and switches are part of the cost of packets.
    pub calibration: Option<PathBuf>,
    /// One packet in this many is measured (P6).
    pub sample_every: u16,
    /// The resource that paths share by their weights (P7): the scarce one, or always the same one, which this machine must
    /// count.
    pub share: Share,
    /// The nice value of the workers' threads (sched(7)): from -20, before nearly all others, to 19.
    pub nice: i8,
    /// Limits of packets that go up.
    pub budgets: Budgets,
    /// The namespaces of routers. If elements make a packet for a router and cannot route it, the kernel sends it from
    /// there.
    pub namespaces: Namespaces,
    /// The clock for all measurements; `None`: the clock of the process.
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

/// The workers; see the head of this file.
pub struct Workers {
    control: Arc<Mutex<Control>>,
}

impl Workers {
    /// Starts without workers, ports and paths.
    ///
    /// # Errors
    /// There is no memory for packets, or a thread cannot be started.
    pub fn start(
        settings: WorkersSettings,
        epochs: Epochs,
        tables: Arc<dyn Tables>,
        slots: Box<dyn Slots>,
        up: Box<dyn Up>,
    ) -> Result<Workers> {
        let (tell, stopped) = channel();
        let patience = settings.patience;
        let control = Control::start(settings, epochs, tables, slots, up, tell)?;
        let watch = control.crew.watch.clone();
        let control = Arc::new(Mutex::new(control));
        let of = Arc::downgrade(&control);
        // Ends when all senders are gone: the control and each worker have one.
        let empty_slots = move || {
            for path in stopped {
                let Some(control) = of.upgrade() else { return };
                locked(&control).path_stopped(path);
            }
        };
        std::thread::Builder::new()
            .name("stopped paths".into())
            .spawn(empty_slots)
            .context("starting a thread")?;
        let of = Arc::downgrade(&control);
        let look = {
            let of = of.clone();
            move || {
                let Some(control) = of.upgrade() else { return };
                locked(&control).look_at_silent();
            }
        };
        let watches = move || watch.run(patience, std::thread::sleep, || of.strong_count() > 0, look);
        std::thread::Builder::new().name("watch".into()).spawn(watches).context("starting a thread")?;
        Ok(Workers { control })
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        locked(&self.control)
    }

    /// Brings the workers to the plan; returns what could not be done. This takes milliseconds, or longer if packets must
    /// leave first.
    pub fn apply(&self, plan: &WorkersPlan) -> Vec<String> {
        self.control().apply(plan)
    }

    /// Makes paths and workers read these tables from now on.
    ///
    /// # Errors
    /// A chain cannot be made with these tables; then nothing has changed. Or a worker does not answer; it still reads the
    /// old tables.
    pub fn set_tables(&self, tables: Arc<dyn Tables>) -> Result<()> {
        self.control().set_tables(tables)
    }

    pub fn report(&self) -> WorkersReport {
        let mut control = self.control();
        control.look_at_silent();
        control.report()
    }

    /// The memory of packets. Its frames are free again when the workers have stopped, except retired ones.
    pub fn umem(&self) -> Arc<Umem> {
        self.control().umem.clone()
    }

    /// Lets paths take what is in their rings, and closes everything; returns what could not be done.
    pub fn stop(self) -> Vec<String> {
        self.control().apply(&WorkersPlan::default())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for failed in self.control().apply(&WorkersPlan::default()) {
            tracing::warn!("{failed}");
        }
    }
}
