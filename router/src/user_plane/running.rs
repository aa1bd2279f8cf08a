//! The user plane of the daemon: the classes of paths in the program ([`PathMaps`]), and workers that run paths
//! ([`crate::user_plane::workers`]).
//!
//! The control loop says what it wants and goes on. A thread brings workers there, which takes as long as packets need to leave
//! a path that ends. Every second, the thread also places paths again, and publishes the state of workers.
//!
//! The thread finds out what the loop does not know ([`super::planner`]), and how much memory packets need. If later ports need
//! more memory than there is, workers start again with more. Packets meanwhile follow `otherwise` of their path
//! ([`crate::config::DaemonPath::otherwise`]).
//!
//! When the tables move to larger memory, the old memory is not updated any more. Workers read the new memory before the loop
//! goes on. If they cannot in time, no worker gets packets until they do ([`PathMaps::hold`]).

use super::{
    other_work::OtherWork,
    planner::Planner,
    seam::{self, Stand, Wanted},
    tally::Tally,
};
use crate::{
    api::workers::WorkersReport,
    base::guard::locked,
    config::{Config, DaemonPath},
    cores::{Roots, polled::PolledPorts},
    plane::{MOST_INJECTED, MappedMemory, PathCounts, PathMaps},
    user_plane::{
        af_xdp::HEAD_ROOM,
        captures::CaptureThreads,
        sas::RunningSas,
        workers::{
            Budgets, Epochs, Namespaces, PassUp, Shared, Tables, Workers, WorkersSettings, check_counted,
            frames_needed,
        },
    },
};
use anyhow::{Context, Result};
use logic::{
    paths::{PathId, rows::PathClass},
    plan::{PortId, RouterId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How often paths are placed, failed steps are tried again, and the state of workers is published.
const LOOKS: Duration = Duration::from_secs(1);
/// How long the loop waits for workers to read other tables.
const READS: Duration = Duration::from_secs(1);
/// The least memory for packets, in frames.
const LEAST_FRAMES: u32 = 1 << 13;
/// The user plane of the daemon; see the head of this file. It ends when its last clone is dropped.
#[derive(Clone)]
pub struct UserPlane(Arc<Running>);

struct Running {
    maps: Arc<PathMaps>,
    epochs: Epochs,
    desk: Arc<Desk>,
    namespaces: Namespaces,
    thread: Option<JoinHandle<()>>,
}

/// What the loop and the thread share.
#[derive(Default)]
struct Desk {
    orders: Mutex<Orders>,
    /// Notified when `orders` changes.
    news: Condvar,
    stand: Mutex<Arc<Stand>>,
}

/// Orders, which the thread takes from here, and its progress.
#[derive(Default)]
struct Orders {
    tables: Option<Arc<MappedMemory>>,
    wanted: Option<Wanted>,
    ends: bool,
    /// Orders that were given so far.
    given: u64,
    /// Orders up to this one have their tables read by workers.
    read: u64,
    /// Orders up to this one were carried out, as far as possible.
    done: u64,
}

impl UserPlane {
    /// Starts the thread, without workers yet. These SAs can send from now on. `polled` gets the ports that workers poll.
    ///
    /// # Errors
    /// The kernel lacks memory, /sys cannot be read, or sequence numbers cannot be noted.
    pub fn start(config: &Config, sas: RunningSas, polled: PolledPorts) -> Result<UserPlane> {
        let namespaces = Namespaces::default();
        let settings = WorkersSettings {
            namespaces: namespaces.clone(),
            frame_bytes: config.workers.frame_bytes.0,
            budgets: Budgets {
                exception_pps: config.policing.exception_pps.0.into(),
                control_pps: config.policing.control_pps.0.into(),
            },
            share: config.experimental.share.0,
            sample_every: config.experimental.sample_every.packets(),
            longest_run: config.experimental.longest_run.duration(),
            nice: config.workers.nice.0,
            calibration: Some(config.workers.calibration.clone()),
            ..WorkersSettings::default()
        };
        check_counted(settings.share).context("experimental.share")?;
        let longest = (settings.frame_bytes - HEAD_ROOM as u32).min(MOST_INJECTED);
        let maps = Arc::new(PathMaps::new(longest).context("for the paths of the configuration")?);
        let (epochs, desk) = (Epochs::default(), Arc::<Desk>::default());
        let cores = config.workers.cores.clone().map(|cores| cores.0).unwrap_or_default();
        let roots =
            Roots::here().context("opening /sys of this network namespace (CAP_SYS_ADMIN, fsopen)")?;
        let mirrors: Vec<_> = config.paths.iter().flat_map(DaemonPath::mirrors).cloned().collect();
        let keeper = Keeper {
            maps: maps.clone(),
            epochs: epochs.clone(),
            settings,
            polled,
            other_work: OtherWork::open(&roots).context("reading what runs on cores")?,
            sas: sas.clone(),
            captures: CaptureThreads::start(&mirrors, &cores)?,
            planner: Planner::new(config, cores, roots)?,
            workers: None,
            memory: None,
            tables: None,
            is_read: true,
            wanted: Wanted { mirrors, ..Wanted::default() },
            tally: Tally::default(),
        };
        let at = desk.clone();
        // This comes after all steps that may fail, because it uses up sequence numbers.
        sas.begin()?;
        let thread = thread::Builder::new().name("user plane".into()).spawn(move || keeper.run(&at));
        let thread = Some(thread.context("starting the thread that keeps workers")?);
        Ok(UserPlane(Arc::new(Running { maps, epochs, desk, namespaces, thread })))
    }

    /// The maps of paths that the program reads.
    pub fn maps(&self) -> &Arc<PathMaps> {
        &self.0.maps
    }

    /// The epochs of workers, to wait for them ([`Epochs::wait`]).
    pub fn epochs(&self) -> Epochs {
        self.0.epochs.clone()
    }

    /// Gives an order; returns its number.
    fn order(&self, what: impl FnOnce(&mut Orders)) -> u64 {
        let mut orders = locked(&self.0.desk.orders);
        what(&mut orders);
        orders.given += 1;
        self.0.desk.news.notify_all();
        orders.given
    }

    /// Waits until `is` holds, but at most this long, or until the thread is gone.
    fn until(&self, longest: Duration, is: impl Fn(&Orders) -> bool) -> MutexGuard<'_, Orders> {
        let desk = &self.0.desk;
        let not_yet = |orders: &mut Orders| !is(orders) && !self.0.has_failed();
        let waited = desk.news.wait_timeout_while(locked(&desk.orders), longest, not_yet);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl seam::UserPlane<Arc<MappedMemory>> for UserPlane {
    fn set_classes(&self, classes: &[PathClass], own: &BTreeMap<PortId, RouterId>) -> Result<()> {
        self.0.maps.set_classes(classes, own)
    }

    fn set_drops(&self, paths: &BTreeSet<PathId>) {
        self.0.maps.set_drops(paths.iter().copied());
    }

    fn counts(&self) -> Vec<PathCounts> {
        self.0.maps.counts()
    }

    fn set_tables(&self, tables: Arc<MappedMemory>) {
        let given = self.order(|orders| orders.tables = Some(tables));
        let orders = self.until(READS, |orders| orders.read >= given);
        if orders.read < given {
            tracing::warn!(
                "workers are busy with changes, and get no packets until they read the present tables"
            );
            self.0.maps.hold(true);
        }
    }

    fn want(&self, mut wanted: Wanted) {
        // At once, because the next router may get the number of one that is gone.
        self.0.namespaces.set(mem::take(&mut wanted.namespaces));
        self.order(|orders| orders.wanted = Some(wanted));
    }

    fn wait(&self, longest: Duration) -> bool {
        let orders = self.until(longest, |orders| orders.done >= orders.given);
        orders.done >= orders.given
    }

    fn stand(&self) -> Arc<Stand> {
        let stand = locked(&self.0.desk.stand).clone();
        if !self.0.has_failed() {
            return stand;
        }
        let mut stand = Stand::clone(&stand);
        stand
            .conditions
            .push("the user plane has failed, so no path has a worker: restart the daemon".into());
        Arc::new(stand)
    }
}

impl Running {
    /// The thread panicked.
    fn has_failed(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        locked(&self.desk.orders).ends = true;
        self.desk.news.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Keeper {
    maps: Arc<PathMaps>,
    epochs: Epochs,
    settings: WorkersSettings,
    polled: PolledPorts,
    planner: Planner,
    other_work: OtherWork,
    sas: RunningSas,
    captures: CaptureThreads,
    workers: Option<Workers>,
    memory: Option<Arc<MappedMemory>>,
    tables: Option<Arc<dyn Tables>>,
    /// All workers read `tables`.
    is_read: bool,
    wanted: Wanted,
    tally: Tally,
}

impl Keeper {
    fn run(mut self, desk: &Desk) {
        loop {
            let mut orders = locked(&desk.orders);
            let nothing = |o: &mut Orders| !(o.ends || o.tables.is_some() || o.wanted.is_some());
            orders = if self.workers.is_some() || !self.wanted.paths.is_empty() {
                let waited = desk.news.wait_timeout_while(orders, LOOKS, nothing);
                waited.unwrap_or_else(PoisonError::into_inner).0
            } else {
                desk.news.wait_while(orders, nothing).unwrap_or_else(PoisonError::into_inner)
            };
            let (memory, wanted, given, ends) =
                (orders.tables.take(), orders.wanted.take(), orders.given, orders.ends);
            drop(orders);
            if ends {
                return self.end();
            }
            if let Some(wanted) = wanted {
                self.wanted = wanted;
            }
            if self.captures.add(&self.wanted.mirrors) || memory.is_some() {
                self.make_tables(memory);
            }
            let mut conditions = Vec::from_iter(self.read());
            if self.is_read {
                let mut orders = locked(&desk.orders);
                orders.read = given;
                // Tables that came meanwhile must be read first.
                self.maps.hold(orders.tables.is_some());
                desk.news.notify_all();
            }
            conditions.extend(self.round());
            // No path copies to the others any more.
            self.captures.keep(&self.wanted.mirrors);
            conditions
                .extend(self.maps.condition().map(str::to_owned).into_iter().chain(self.sas.condition()));
            conditions.extend(self.captures.conditions(Instant::now()));
            let (workers, condition) = self.report();
            self.tell_polled(&workers);
            conditions.extend(condition);
            *locked(&desk.stand) = Arc::new(Stand { workers, conditions });
            locked(&desk.orders).done = given;
            desk.news.notify_all();
        }
    }

    /// Makes tables with this memory, or the last one, and with the present captures.
    fn make_tables(&mut self, memory: Option<Arc<MappedMemory>>) {
        self.memory = memory.or(self.memory.take());
        let Some(memory) = self.memory.clone() else { return };
        let (sas, captures) = (self.sas.table(), self.captures.captures());
        self.tables = Some(Arc::new(Shared { memory, sas, captures }));
        self.is_read = false;
    }

    /// The state of workers and the other work on their cores; also why the other work is not known.
    fn report(&mut self) -> (WorkersReport, Option<String>) {
        let Some(workers) = &self.workers else { return (WorkersReport::default(), None) };
        let mut report = workers.report();
        let known = self.other_work.take_in(&report);
        for worker in &mut report.workers {
            worker.other = self.other_work.of(worker.core);
        }
        let why_not = |error| {
            format!(
                "paths are placed as if nothing else ran, because other work on cores is not known: {error}"
            )
        };
        (self.tally.of(report), known.err().map(why_not))
    }

    /// Sets the ports that workers poll, so that their interrupts stay off.
    fn tell_polled(&self, report: &WorkersReport) {
        let polled = report.queues.iter().filter(|queue| queue.polled);
        let ports = polled.filter_map(|queue| Some(self.wanted.ports.get(&queue.port)?.ifindex));
        self.polled.set(ports.collect());
    }

    /// Makes workers read the tables, if they do not yet; returns why they do not.
    fn read(&mut self) -> Option<String> {
        let tables = self.tables.as_ref().filter(|_| !self.is_read)?;
        let read = self.workers.as_ref().map_or(Ok(()), |workers| workers.set_tables(tables.clone()));
        self.is_read = read.is_ok();
        let error = read.err()?;
        self.maps.hold(true);
        Some(format!("workers get no packets until they read the present tables: {error:#}"))
    }

    /// Brings workers to what is wanted; returns what failed.
    fn round(&mut self) -> Vec<String> {
        let Some(tables) = &self.tables else { return Vec::new() };
        let (plan, mut conditions) = match self.planner.plan(&self.wanted, &self.other_work) {
            Ok(planned) => planned,
            Err(error) => return vec![format!("paths stay as they were: {error:#}")],
        };
        if plan.paths.is_empty() && self.workers.is_none() {
            return conditions;
        }
        let needed = frames_needed(&plan, &self.settings).max(LEAST_FRAMES);
        if self.workers.is_none() || needed > self.settings.frames {
            // With room for some more paths: starting again costs the packets that are under way.
            let frames = needed + needed / 4;
            let settings = WorkersSettings { frames, ..self.settings.clone() };
            let started = PassUp::new().and_then(|up| {
                let slots = Box::new(self.maps.clone());
                Workers::start(settings, self.epochs.clone(), tables.clone(), slots, Box::new(up))
            });
            match started {
                Ok(workers) => {
                    if let Some(before) = self.workers.replace(workers) {
                        tracing::info!("paths need more memory: workers start again with {frames} frames");
                        self.tally.end(before.report());
                        self.other_work.workers_begin_anew();
                        before.stop().iter().for_each(|failed| tracing::warn!("{failed}"));
                    }
                    self.settings.frames = frames;
                }
                Err(error) if self.workers.is_some() => {
                    conditions.push(format!("some paths do not get the memory that they need: {error:#}"));
                }
                Err(error) => {
                    conditions.push(format!("paths have no workers: {error:#}"));
                    return conditions;
                }
            }
        }
        if let Some(workers) = &self.workers {
            conditions.extend(workers.apply(&plan));
        }
        conditions
    }

    fn end(self) {
        self.polled.set(BTreeSet::new());
        let stopped = self.workers.map(Workers::stop).unwrap_or_default();
        // No worker copies packets any more.
        let failed = stopped.into_iter().chain(self.captures.finish());
        failed.for_each(|failed| tracing::warn!("{failed}"));
    }
}
