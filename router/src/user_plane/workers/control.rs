//! Brings workers from their present state to the plan while packets run. One step follows another, so that no packet is
//! lost and none overtakes another.
//!
//! The present state is what workers report at the beginning (`held.rs`), and each step that succeeded since. It is read
//! again for each plan. Only what no worker knows is kept: which slots are filled. A step that fails is reported and tried
//! again with the next plan. The other steps are done.
//!
//! Rings, queues, chains and tables that are no longer used are closed here and not by workers, because closing a socket
//! waits for RCU.

use super::{
    WorkersSettings,
    clock::Clock,
    counters::{counter, counts_misses, stand},
    epochs::Epochs,
    exchange::{Bound, Desk, PORTS, PortNames, PortsByNumber},
    held::{Held, Made, Ring},
    inner::Inner,
    placing::Placing,
    plan::{PathPlan, PortPlan, Slots, Tables, WorkersPlan, frames_needed},
    report::told,
    scarce::{Reading, Scarce},
    thread::{NotTaken, Thread},
    up::{Device, Ups},
    watch::Watch,
};
use crate::{
    api::workers::{Capacity, OutputStand, PathStand, ResourceStand, WorkerStand, WorkersReport},
    config::ElementSettings,
    user_plane::{
        af_xdp::{MOST_PATHS, Pool, RingSet, Umem},
        calibrate::Calibrated,
    },
};
use anyhow::{Context, Result};
use logic::{
    cores::CoreId,
    elements::Chain,
    paths::{
        Bursts, PathId, RESOURCES, Resource, Settings, Share, Used, Utilisation,
        layout::{Layout, Parts, lay_out},
    },
    plan::{PortId, RouterId},
    worker::Turns,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, mpsc::Sender},
    thread,
    time::{Duration, Instant},
};

/// How often workers are asked while the control waits for something.
const ASKS: Duration = Duration::from_micros(200);

/// See the head of this file. Its steps are in `rings.rs` and `moving.rs`.
pub(super) struct Control {
    calibrated: Calibrated,
    /// Workers read the CPU's counter of cache misses; `Err`: why they do not.
    misses: Result<(), String>,
    /// The I/O capacity of the last plan.
    io: Capacity,
    scarce: Scarce,
    pub settings: WorkersSettings,
    pub umem: Arc<Umem>,
    pub slots: Box<dyn Slots>,
    pub tables: Arc<dyn Tables>,
    pub clock: Clock,
    pub epochs: Epochs,
    pub ups: Ups,
    /// Where workers report paths that they stopped.
    pub tell: Sender<PathId>,
    pub threads: BTreeMap<CoreId, Thread>,
    pub watch: Watch,
    /// Workers that make no progress (`silent.rs`), and the paths whose elements do not end.
    pub silent: BTreeMap<CoreId, Option<PathId>>,
    /// Runs of each path that took longer than the patience of the settings, counted when they ended.
    pub hangs: BTreeMap<PathId, u64>,
    pub held: Held,
    /// Slots that hold their ring's socket.
    pub filled: BTreeSet<Ring>,
    /// Counters of TX rings that were closed, summed by port.
    pub closed: BTreeMap<PortId, OutputStand>,
    pub names: PortNames,
    pub known_ports: PortsByNumber,
    weights: BTreeMap<RouterId, u16>,
    placing: Placing,
    /// What went wrong with this plan, for people.
    pub troubles: Vec<String>,
}

impl Control {
    #[expect(clippy::too_many_arguments, reason = "each is a part of its own")]
    pub fn new(
        settings: WorkersSettings,
        calibrated: Calibrated,
        umem: Arc<Umem>,
        slots: Box<dyn Slots>,
        tables: Arc<dyn Tables>,
        clock: Clock,
        epochs: Epochs,
        ups: Ups,
        tell: Sender<PathId>,
    ) -> Control {
        Control {
            misses: counts_misses(settings.share, calibrated.memory.per_second.is_some()),
            io: Capacity::default(),
            scarce: Scarce::new(settings.share),
            settings,
            calibrated,
            umem,
            slots,
            tables,
            clock,
            epochs,
            ups,
            tell,
            threads: BTreeMap::new(),
            watch: Watch::default(),
            silent: BTreeMap::new(),
            hangs: BTreeMap::new(),
            held: Held::default(),
            filled: BTreeSet::new(),
            closed: BTreeMap::new(),
            names: PortNames::default(),
            known_ports: PortsByNumber::default(),
            weights: BTreeMap::new(),
            placing: Placing::default(),
            troubles: Vec::new(),
        }
    }

    /// Applies the plan; returns what could not be done, and what is wrong with workers.
    pub fn apply(&mut self, plan: &WorkersPlan) -> Vec<String> {
        self.look_at_silent();
        self.bring_to(plan);
        let mut all = mem::take(&mut self.troubles);
        let problems = self.problems().into_iter().filter(|problem| !all.contains(problem));
        all.extend(problems.collect::<Vec<_>>());
        all
    }

    fn bring_to(&mut self, plan: &WorkersPlan) {
        self.troubles = self.refuse(plan);
        self.look();
        self.placing.take_in(&self.held.paths, self.clock);
        self.io.clone_from(&plan.io);
        self.scarce.take_in(self.reading(), self.clock.hz(), &self.capacities());
        let at = self.place(plan);
        self.names = Arc::new(plan.ports.iter().map(|(id, port)| (port.name.clone(), *id)).collect());
        let names = plan.ports.iter().map(|(id, port)| (*id, port.name.clone()));
        Arc::make_mut(&mut self.known_ports).extend(names);
        self.tell_ports(plan);
        self.start_workers(plan);
        self.tell_workers(plan);
        self.end(plan, &at);
        let want = self.wanted(plan, &at);
        // Before paths come to a worker; otherwise, their packets would find no port.
        self.open_ways_out(plan, &want);
        self.change_paths(plan, &at);
        self.move_queues(&want);
        self.open_otherwise(plan, &want);
        self.open_rings(plan, &want, |_| true);
        self.end_workers(plan);
    }

    /// What workers cannot run, or not as planned.
    fn refuse(&self, plan: &WorkersPlan) -> Vec<String> {
        let ports = plan.ports.keys().filter(|port| usize::from(**port) >= PORTS);
        let paths = plan.paths.keys().filter(|path| usize::from(**path) >= MOST_PATHS);
        let ports = ports.map(|port| format!("port {port}: ports are numbered from 0 to {}", PORTS - 1));
        let paths = paths.map(|path| format!("path {path}: paths are numbered from 0 to {}", MOST_PATHS - 1));
        let lacks = self.lacks(plan).map(|needed| {
            let (frames, retired) = (self.umem.frames(), self.umem.retired_frames());
            format!(
                "memory for packets: the plan may need {needed} frames of {} bytes; there are {frames}, of which {retired} are \
                 retired; open queues stay as they are, and new queues and rings that find no memory are not opened",
                self.umem.frame_bytes()
            )
        });
        let known = |name: &str| plan.ports.values().any(|port| port.name == name);
        let nowhere = plan.paths.values().flat_map(|path| {
            let missing =
                path.chain.iter().filter_map(ElementSettings::port).filter(|port| !known(port.as_str()));
            missing.map(|port| {
                format!("path {}: there is no port {port}, so packets sent there are dropped", path.name)
            })
        });
        ports.chain(paths).chain(lacks).chain(nowhere).collect()
    }

    /// The frames that the plan may need, if there are fewer.
    pub fn lacks(&self, plan: &WorkersPlan) -> Option<u32> {
        let there_are = self.umem.frames().saturating_sub(self.umem.retired_frames());
        Some(frames_needed(plan, &self.settings)).filter(|needed| *needed > there_are)
    }

    /// What paths and workers have used until now.
    fn reading(&self) -> Reading {
        let paths = self.held.paths.iter().map(|(path, held)| (*path, (held.core, held.taken)));
        Reading { at: self.clock.cycles(), busy: self.held.busy.clone(), paths: paths.collect() }
    }

    /// The capacity of each resource in a second, if it is known; of cycles, that of a core.
    fn capacities(&self) -> Used {
        let known = RESOURCES.into_iter().filter_map(|r| Some((r, self.capacity(r).per_second?)));
        known.fold(Used::default(), |all, (resource, amount)| all.with(resource, amount))
    }

    fn capacity(&self, resource: Resource) -> Capacity {
        match resource {
            Resource::Cycles => Capacity { per_second: Some(self.clock.hz()), basis: "of a core".into() },
            Resource::Memory => self.calibrated.memory.clone(),
            Resource::Io => self.io.clone(),
            // Memory bandwidth bounds them, too.
            Resource::CacheMisses => Capacity { per_second: None, basis: "as of memory bandwidth".into() },
        }
    }

    fn counts_io(&self) -> bool {
        self.scarce.counts_io(self.io.per_second.is_some())
    }

    /// Asks workers what they have.
    fn look(&mut self) {
        for core in self.answering() {
            let told = self.ask(core, move |inner| inner.holds(core));
            if let Some(holds) = self.note(told) {
                self.held.is_told(core, holds);
            }
        }
        self.filled.retain(|ring| self.held.rings.contains_key(ring));
    }

    /// The workers that make progress.
    fn answering(&self) -> Vec<CoreId> {
        self.threads.keys().copied().filter(|core| !self.silent.contains_key(core)).collect()
    }

    fn place(&mut self, plan: &WorkersPlan) -> BTreeMap<PathId, CoreId> {
        let paths = plan.paths.iter().filter(|(path, _)| usize::from(**path) < MOST_PATHS);
        let paths: BTreeMap<_, _> = paths.map(|(id, path)| (*id, path)).collect();
        let now = self.held.paths.iter().map(|(path, held)| (*path, held.core)).collect();
        let placement = self.placing.place(&paths, plan, self.clock, &now);
        for path in placement.nowhere {
            let name = paths.get(&path).map(|path| path.name.as_str()).unwrap_or_default();
            self.troubles.push(format!("path {name}: none of its cores has a worker"));
        }
        placement.core
    }

    /// Notes an error once: if a worker does not answer, every step fails with the same error.
    pub fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        let error = match result {
            Ok(done) => return Some(done),
            Err(error) => format!("{error:#}"),
        };
        if !self.troubles.contains(&error) {
            self.troubles.push(error);
        }
        None
    }

    fn thread(&self, core: CoreId) -> Result<&Thread> {
        self.is_not_silent(core)?;
        self.threads.get(&core).with_context(|| format!("core {core} has no worker"))
    }

    pub fn ask<T: Send + 'static>(
        &self,
        core: CoreId,
        what: impl FnOnce(&mut Inner) -> T + Send + 'static,
    ) -> Result<T> {
        self.thread(core)?.ask(what)
    }

    /// Gives a worker a thing. An error returns the thing if the worker did not take it.
    pub fn give<A: Send + 'static, T: Send + 'static>(
        &self,
        core: CoreId,
        thing: A,
        take: impl FnOnce(&mut Inner, A) -> T + Send + 'static,
    ) -> Result<T, NotTaken<A>> {
        match self.thread(core) {
            Ok(thread) => thread.give(thing, take),
            Err(error) => Err(NotTaken { error, thing: Some(thing) }),
        }
    }

    /// Asks until the answer is yes (true) or this time has passed (false).
    pub fn until(
        &self,
        core: CoreId,
        longest: Duration,
        is: impl Fn(&mut Inner) -> bool + Send + Clone + 'static,
    ) -> Result<bool> {
        let begun = Instant::now();
        loop {
            if self.ask(core, is.clone())? {
                return Ok(true);
            }
            if begun.elapsed() > longest {
                return Ok(false);
            }
            thread::sleep(ASKS);
        }
    }

    fn start_workers(&mut self, plan: &WorkersPlan) {
        for core in plan.cores.iter().map(|core| core.id) {
            if !self.threads.contains_key(&core) {
                let started = self.start(core);
                let started = self.note(started);
                self.threads.extend(started.map(|thread| (core, thread)));
            }
        }
    }

    fn start(&self, core: CoreId) -> Result<Thread> {
        let (settings, umem, clock) = (self.settings.clone(), self.umem.clone(), self.clock);
        let switch_cycles = self.calibrated.switch.cycles;
        let knows_memory = self.calibrated.memory.per_second.is_some();
        let (tables, gate, tell) = (self.tables.clone(), self.ups.gate(), self.tell.clone());
        Thread::start(core, settings.nice, &self.epochs, &self.watch, move |bell, running| {
            let longest = clock.cycles_of(settings.longest_run).try_into().unwrap_or(u32::MAX);
            let most = logic::elements::MOST_PACKETS as u32;
            let bursts = Bursts { longest_cycles: longest, switch_cycles, most };
            let pool = Pool::new(&umem, settings.in_hand)?;
            let bound = Bound::new(pool, counter(settings.share, knows_memory)?);
            let sample_every = settings.sample_every;
            let turns = Turns::new(Settings { bursts, sample_every, counted: bound.counted() })?;
            let (desk, io) = (Desk::new(tables, clock, gate), RingSet::new(&umem, Some(bell)));
            let tell = Box::new(move |path| _ = tell.send(path));
            Ok(Inner::new(turns, desk, io, bound, settings.spin, settings.auxiliary, running, tell))
        })
    }

    /// Ends workers that the plan lacks. A worker whose paths or queues could not be moved stays.
    fn end_workers(&mut self, plan: &WorkersPlan) {
        let stays =
            |core: &CoreId| plan.cores.iter().any(|wanted| wanted.id == *core) || self.held.needs(*core);
        for core in self.threads.keys().copied().filter(|core| !stays(core)).collect::<Vec<_>>() {
            self.threads.remove(&core);
            self.held.forget(core);
        }
    }

    fn tell_ports(&self, plan: &WorkersPlan) {
        let device = |port: &PortPlan| Device { ifindex: port.ifindex, namespace: port.namespace.clone() };
        self.ups.set_ports(plan.ports.iter().map(|(id, port)| (*id, device(port))).collect());
    }

    /// Sends workers the weights of routers, and the names and routers of ports.
    fn tell_workers(&mut self, plan: &WorkersPlan) {
        let mut weights = plan.routers.clone();
        // Routers that the plan no longer has.
        self.weights.keys().for_each(|router| _ = weights.entry(*router).or_insert(1));
        self.weights = weights;
        for core in self.threads.keys().copied().collect::<Vec<_>>() {
            let (names, weights, tables) = (self.names.clone(), self.weights.clone(), self.tables.clone());
            let known_ports = self.known_ports.clone();
            let owners: Vec<_> = plan.ports.iter().map(|(id, port)| (*id, port.router)).collect();
            let (share, counts_io) = (self.scarce.shared(), self.counts_io());
            let told = self.ask(core, move |inner| {
                // Repeated with each plan, because the value of a unit of the resource follows the cost of packets.
                inner.share(share, counts_io);
                inner.names = names;
                inner.known_ports = known_ports;
                inner.desk.set_owners(owners);
                inner.turns.refresh();
                weights.into_iter().for_each(|(router, weight)| inner.turns.weigh(router, weight));
                // The worker has older ones if it did not answer when they were changed.
                std::mem::replace(&mut inner.desk.tables, tables)
            });
            self.note(told);
        }
    }

    fn wanted(&self, plan: &WorkersPlan, at: &BTreeMap<PathId, CoreId>) -> Layout {
        let has_worker = |core: &CoreId| plan.cores.iter().any(|wanted| wanted.id == *core);
        let ports = plan.ports.iter().filter(|(port, _)| usize::from(**port) < PORTS);
        let queues = ports.flat_map(|(port, of)| (0..of.queues).map(|queue| (*port, queue))).collect();
        let ports_of =
            |path: &PathId| plan.paths.get(path).map(|path| path.ports.clone()).unwrap_or_default();
        let parts = Parts {
            workers: self.threads.keys().copied().filter(has_worker).collect(),
            queues,
            paths: at.iter().map(|(path, core)| (*path, (*core, ports_of(path)))).collect(),
        };
        lay_out(&parts, &self.held.layout())
    }

    /// Empties the slots of a path that a worker stopped, so the XDP program treats its packets as without a worker. The
    /// path may already run again.
    pub fn path_stopped(&mut self, path: PathId) {
        let stopped = |thread: &Thread| thread.ask(move |inner| inner.is_stopped(path)).unwrap_or(false);
        if !self.threads.values().any(stopped) {
            return;
        }
        if let Some(held) = self.held.paths.get_mut(&path) {
            held.is_stopped = true;
        }
        for ring in self.held.rings_of(path) {
            if let Err(error) = self.empty_slot(ring) {
                tracing::warn!("path {path} is stopped, but may still get packets: {error:#}");
            }
        }
    }

    /// What chains are made of at present.
    pub fn made(&self) -> Made {
        Made { names: self.names.clone(), tables: self.tables.clone() }
    }

    /// Makes all chains with these tables; they are used from the next run on.
    pub fn set_tables(&mut self, tables: Arc<dyn Tables>) -> Result<()> {
        self.troubles.clear();
        self.look();
        let chain = |plan: &PathPlan| tables.chain(plan, &self.names);
        let mut chains = BTreeMap::<CoreId, Vec<(PathId, Chain)>>::new();
        for (path, held) in &self.held.paths {
            chains.entry(held.core).or_default().push((*path, chain(&held.plan)?));
        }
        self.tables = tables;
        let made = self.made();
        // A silent worker takes them before its next run, and gets no packets until then.
        for core in self.silent.keys() {
            let (made, chains) = (made.clone(), chains.remove(core).unwrap_or_default());
            if let Some(thread) = self.threads.get(core) {
                thread.leave(move |inner| drop(inner.set_tables(made, chains)));
            }
        }
        for core in self.answering() {
            let new = (made.clone(), chains.remove(&core).unwrap_or_default());
            let done = self.give(core, new, |inner, (made, chains)| inner.set_tables(made, chains));
            if self.note(done.map_err(|not| not.error)).is_some() {
                let of_core = self.held.paths.values_mut().filter(|path| path.core == core);
                of_core.for_each(|path| path.made = made.clone());
            }
        }
        anyhow::ensure!(self.troubles.is_empty(), "{}", mem::take(&mut self.troubles).join("; "));
        Ok(())
    }

    pub fn report(&self) -> WorkersReport {
        let mut report = WorkersReport {
            clock: self.clock.name().into(),
            hz: self.clock.hz(),
            switch: self.calibrated.switch.clone(),
            share: self.scarce.shared().to_string(),
            follows: self.settings.share == Share::Scarce,
            sample_every: self.settings.sample_every,
            longest_run_us: self.settings.longest_run.as_micros() as u64,
            resources: RESOURCES.map(|resource| self.resource(resource)).to_vec(),
            up: self.ups.report(),
            frames: self.umem.frames(),
            free_frames: self.umem.free_frames(),
            promised_frames: self.umem.promised_frames(),
            retired_frames: self.umem.retired_frames(),
            closed_outputs: self.closed.values().cloned().collect(),
            ..WorkersReport::default()
        };
        for (core, thread) in &self.threads {
            let core = *core;
            match self.is_not_silent(core).and_then(|()| thread.ask(move |inner| told(core, inner))) {
                Ok(told) => {
                    let share = |path: PathStand| PathStand {
                        share: self.share(path.id, told.shared),
                        hangs: self.hangs.get(&path.id).copied().unwrap_or_default(),
                        ..path
                    };
                    report.workers.push(WorkerStand { used: self.used_by(core), ..told.worker });
                    report.paths.extend(told.paths.into_iter().map(share));
                    report.queues.extend(told.queues);
                }
                Err(error) => {
                    let silent = Some(format!("{error:#}"));
                    report.workers.push(WorkerStand { core, silent, ..WorkerStand::default() });
                }
            }
        }
        report.paths.sort_by_key(|path| path.id);
        report
    }

    /// The path's part of the resource that its worker shares: of a core's cycles, or of what all paths of the worker used.
    fn share(&self, path: PathId, shared: Resource) -> f64 {
        match shared {
            Resource::Cycles => self.placing.share(path),
            other => self.scarce.part(path, other),
        }
    }

    fn used_by(&self, core: CoreId) -> BTreeMap<String, f64> {
        let used = Utilisation::new(&self.scarce.used_by(core), &self.capacities());
        let known = RESOURCES.into_iter().filter_map(|r| Some((r.to_string(), used.get(r)?)));
        known.map(|(resource, of_1000)| (resource, f64::from(of_1000) / 1000.0)).collect()
    }

    fn resource(&self, resource: Resource) -> ResourceStand {
        let why = || format!("its capacity is not known: {}", self.io.basis);
        let io = match self.settings.share {
            _ if self.counts_io() => Ok(()),
            Share::Scarce => Err(why()),
            Share::Always(_) => Err("it is not shared".into()),
        };
        let used = Utilisation::new(&self.scarce.used(), &self.capacities());
        ResourceStand {
            capacity: self.capacity(resource),
            used: used.get(resource).map(|of_1000| f64::from(of_1000) / 1000.0),
            ..stand(resource, &self.misses, &io)
        }
    }
}
