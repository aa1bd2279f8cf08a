//! The user plane of the daemon: what the program knows of paths ([`PathMaps`]), and workers that run them ([`crate::workers`]).
//!
//! The control loop says what is wanted and goes on. A thread of its own brings workers there, which takes as long as packets take to leave a
//! path that ends; looks every second whether paths are better placed on other cores; and writes down how workers stand, for whoever asks.
//!
//! What the loop does not know is found here: the cores of the machine, the queues of a port, and how much memory packets need. If later ports
//! want more than there is, workers begin anew with more: what comes meanwhile takes its path's word ([`crate::config::DaemonPath::otherwise`]).

use super::seam::{self, Device, Stand, Wanted};
use crate::{
    af_xdp::{HEAD_ROOM, Polling, Rings},
    config::Config,
    cores::{
        CoreId, Roots,
        machine::{CoreSite, Machine},
    },
    plane::{MappedMemory, PathCounts, PathMaps},
    workers::{
        Budgets, Epochs, PassUp, PortPlan, Shared, Tables, Workers, WorkersPlan, WorkersSettings,
        frames_needed,
    },
};
use anyhow::{Context, Result};
use logic::{
    cores::Core,
    esp::SaTable,
    paths::rows::PathClass,
    plan::{PortId, RouterId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// So often paths are placed, and what workers say is written down.
const LOOKS: Duration = Duration::from_secs(1);
/// As long as the loop waits for workers to read other tables. Longer: they read the old ones until they are through.
const READS: Duration = Duration::from_secs(1);
/// The least memory for packets, frames.
const LEAST_FRAMES: u32 = 1 << 13;

/// See the head of this file. It ends with its last clone.
#[derive(Clone)]
pub struct UserPlane(Arc<Running>);

struct Running {
    maps: Arc<PathMaps>,
    epochs: Epochs,
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

/// Between the loop and the thread.
#[derive(Default)]
struct Desk {
    orders: Mutex<Orders>,
    /// Something about the orders is new.
    news: Condvar,
    stand: Mutex<Arc<Stand>>,
}

#[derive(Default)]
struct Orders {
    tables: Option<Arc<MappedMemory>>,
    wanted: Option<Wanted>,
    /// Tables that were handed over, and those of them that workers read.
    given: u64,
    read: u64,
    ends: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UserPlane {
    /// Without workers yet.
    ///
    /// # Errors
    /// The kernel has not got the memory, or /sys cannot be read.
    pub fn start(config: &Config) -> Result<UserPlane> {
        let settings = WorkersSettings {
            frame_bytes: config.workers.frame_bytes.0,
            budgets: Budgets {
                exception_pps: config.policing.exception_pps.0.into(),
                control_pps: config.policing.control_pps.0.into(),
            },
            ..WorkersSettings::default()
        };
        let longest = settings.frame_bytes - HEAD_ROOM as u32;
        let maps = Arc::new(PathMaps::new(longest).context("for the paths of the configuration")?);
        let (epochs, desk) = (Epochs::default(), Arc::<Desk>::default());
        let keeper = Keeper {
            maps: maps.clone(),
            epochs: epochs.clone(),
            settings,
            wants_zero_copy: config.workers.zero_copy,
            cores: config.workers.cores.clone().map(|cores| cores.0).unwrap_or_default(),
            roots: Roots::here().context("opening /sys of this network namespace (CAP_SYS_ADMIN, fsopen)")?,
            namespace: Arc::new(
                File::open("/proc/thread-self/ns/net").context("opening this network namespace")?,
            ),
            workers: None,
            tables: None,
            wanted: Wanted::default(),
        };
        let at = desk.clone();
        let thread = thread::Builder::new().name("user plane".into()).spawn(move || keeper.run(&at));
        let thread = Some(thread.context("starting the thread that keeps workers")?);
        Ok(UserPlane(Arc::new(Running { maps, epochs, desk, thread })))
    }

    /// What the program goes by.
    pub fn maps(&self) -> &Arc<PathMaps> {
        &self.0.maps
    }

    /// To wait for workers with.
    pub fn epochs(&self) -> Epochs {
        self.0.epochs.clone()
    }

    fn order<T>(&self, what: impl FnOnce(&mut Orders) -> T) -> T {
        let done = what(&mut locked(&self.0.desk.orders));
        self.0.desk.news.notify_all();
        done
    }
}

impl seam::UserPlane<Arc<MappedMemory>> for UserPlane {
    fn set_classes(&self, classes: &[PathClass], own: &BTreeMap<PortId, RouterId>) -> Result<()> {
        self.0.maps.set_classes(classes, own)
    }

    fn counts(&self) -> Vec<PathCounts> {
        self.0.maps.counts()
    }

    fn set_tables(&self, tables: Arc<MappedMemory>) {
        let given = self.order(|orders| {
            orders.tables = Some(tables);
            orders.given += 1;
            orders.given
        });
        let desk = &self.0.desk;
        let until = |orders: &mut Orders| orders.read < given;
        let (_orders, waited) = desk
            .news
            .wait_timeout_while(locked(&desk.orders), READS, until)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            tracing::warn!("workers are busy changing, and route by older tables until they are through");
        }
    }

    fn want(&self, wanted: Wanted) {
        self.order(|orders| orders.wanted = Some(wanted));
    }

    fn stand(&self) -> Arc<Stand> {
        locked(&self.0.desk.stand).clone()
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

/// What the thread has.
struct Keeper {
    maps: Arc<PathMaps>,
    epochs: Epochs,
    settings: WorkersSettings,
    wants_zero_copy: bool,
    cores: BTreeSet<CoreId>,
    roots: Roots,
    /// Of all ports.
    namespace: Arc<File>,
    workers: Option<Workers>,
    tables: Option<Arc<dyn Tables>>,
    wanted: Wanted,
}

impl Keeper {
    fn run(mut self, desk: &Desk) {
        loop {
            let mut orders = locked(&desk.orders);
            let nothing = |o: &mut Orders| !(o.ends || o.tables.is_some() || o.wanted.is_some());
            orders = if self.workers.is_some() {
                let waited = desk.news.wait_timeout_while(orders, LOOKS, nothing);
                waited.unwrap_or_else(PoisonError::into_inner).0
            } else {
                desk.news.wait_while(orders, nothing).unwrap_or_else(PoisonError::into_inner)
            };
            let (tables, wanted, given, ends) =
                (orders.tables.take(), orders.wanted.take(), orders.given, orders.ends);
            drop(orders);
            if ends {
                return self.end();
            }
            let mut troubles = Vec::new();
            if let Some(memory) = tables {
                troubles.extend(self.read(memory));
                locked(&desk.orders).read = given;
                desk.news.notify_all();
            }
            if let Some(wanted) = wanted {
                self.wanted = wanted;
            }
            troubles.extend(self.round());
            let workers = self.workers.as_ref().map(Workers::report).unwrap_or_default();
            troubles.extend(self.maps.trouble().map(str::to_owned));
            *locked(&desk.stand) = Arc::new(Stand { workers, troubles });
        }
    }

    fn read(&mut self, memory: Arc<MappedMemory>) -> Option<String> {
        let tables: Arc<dyn Tables> = Arc::new(Shared { memory, sas: Arc::<SaTable>::default() });
        self.tables = Some(tables.clone());
        let read = self.workers.as_ref().map_or(Ok(()), |workers| workers.set_tables(tables));
        read.err().map(|error| format!("workers route by older tables: {error:#}"))
    }

    /// Brings workers to what is wanted; what could not be done.
    fn round(&mut self) -> Vec<String> {
        let Some(tables) = &self.tables else { return Vec::new() };
        let mut troubles = Vec::new();
        let plan = match self.plan(&mut troubles) {
            Ok(plan) => plan,
            Err(error) => return vec![format!("paths are as they were: {error:#}")],
        };
        if plan.paths.is_empty() && self.workers.is_none() {
            return troubles;
        }
        let needed = frames_needed(&plan, &self.settings).max(LEAST_FRAMES);
        if self.workers.is_none() || needed > self.settings.frames {
            if let Some(workers) = self.workers.take() {
                tracing::info!("paths need more memory: workers begin anew with {needed} frames");
                troubles.extend(workers.stop());
            }
            let settings = WorkersSettings { frames: needed, ..self.settings.clone() };
            let started = PassUp::new().and_then(|up| {
                let slots = Box::new(self.maps.clone());
                Workers::start(settings, self.epochs.clone(), tables.clone(), slots, Box::new(up))
            });
            match started {
                Ok(workers) => (self.workers, self.settings.frames) = (Some(workers), needed),
                Err(error) => {
                    troubles.push(format!("there are no workers for paths: {error:#}"));
                    return troubles;
                }
            }
        }
        if let Some(workers) = &self.workers {
            troubles.extend(workers.apply(&plan));
        }
        troubles
    }

    fn plan(&self, troubles: &mut Vec<String>) -> Result<WorkersPlan> {
        let Wanted { ports, routers, paths } = &self.wanted;
        let longest = paths.values().map(|path| path.ring).max().unwrap_or(0);
        let ports = ports.iter().map(|(id, device)| (*id, self.port(device, longest))).collect();
        Ok(WorkersPlan {
            cores: self.cores(troubles)?,
            routers: routers.clone(),
            ports,
            paths: paths.clone(),
        })
    }

    fn port(&self, device: &Device, longest_ring: u32) -> PortPlan {
        let usual = Rings::default();
        PortPlan {
            name: device.name.clone(),
            ifindex: device.ifindex,
            namespace: self.namespace.clone(),
            queues: self.roots.rx_queues(&device.name).len() as u32,
            zero_copy: self.wants_zero_copy,
            polling: Polling::Interrupts,
            // As much again as its longest path may have (`PortPlan::rings`).
            rings: Rings { fill: usual.fill.max(2 * longest_ring), ..usual },
        }
    }

    /// Those of the configuration that are online.
    fn cores(&self, troubles: &mut Vec<String>) -> Result<Vec<Core>> {
        let machine = Machine::observe(&self.roots).context("reading which cores there are")?;
        let missing: Vec<CoreId> = self.cores.difference(&machine.online()).copied().collect();
        if !missing.is_empty() {
            let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
            troubles.push(format!("workers.cores: core {} is not online", missing.join(", ")));
        }
        let wanted = machine.cores.iter().filter(|core| self.cores.contains(&core.id));
        let core = |site: &CoreSite| Core {
            id: site.id,
            node: site.node,
            physical: site.physical,
            workloads: 0,
            other: 0.0,
        };
        Ok(wanted.map(core).collect())
    }

    fn end(self) {
        for trouble in self.workers.map(Workers::stop).unwrap_or_default() {
            tracing::warn!("{trouble}");
        }
    }
}
