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
    counters::counter,
    crew::Crew,
    epochs::Epochs,
    exchange::{Bound, Desk, PORTS},
    held::{Common, Held, Ring},
    inner::Inner,
    placing::Placing,
    plan::{PathPlan, PortPlan, Slots, Tables, WorkersPlan, frames_needed},
    report::answer,
    resources::Resources,
    thread::Thread,
    up::{Device, Up, Ups},
};
use crate::{
    api::workers::{OutputStand, PathStand, WorkerStand, WorkersReport},
    config::ElementSettings,
    user_plane::{
        af_xdp::{MOST_PATHS, Pool, RingSet, Umem},
        calibrate::Calibrated,
    },
};
use anyhow::Result;
use logic::{
    cores::CoreId,
    elements::Chain,
    paths::{
        Bursts, PathId, Resource, Settings, Share,
        layout::{Layout, Parts, lay_out},
    },
    plan::PortId,
    worker::Turns,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    path::PathBuf,
    sync::{Arc, mpsc::Sender},
};

/// See the head of this file. Its steps are in `rings.rs` and `moving.rs`.
pub(super) struct Control {
    settings: WorkersSettings,
    clock: Clock,
    pub umem: Arc<Umem>,
    ups: Ups,
    /// Where workers report paths that they stopped.
    tell: Sender<PathId>,
    pub crew: Crew,
    pub held: Held,
    pub slots: Box<dyn Slots>,
    /// Slots that hold their ring's socket.
    pub filled: BTreeSet<Ring>,
    pub common: Common,
    resources: Resources,
    placing: Placing,
    /// Counters of TX rings that were closed, summed by port.
    pub closed: BTreeMap<PortId, OutputStand>,
    /// What could not be done for this plan, as sentences.
    conditions: Vec<String>,
}

impl Control {
    /// Starts without workers. They report paths that they stop to `tell`.
    pub fn start(
        settings: WorkersSettings,
        epochs: Epochs,
        tables: Arc<dyn Tables>,
        slots: Box<dyn Slots>,
        up: Box<dyn Up>,
        tell: Sender<PathId>,
    ) -> Result<Control> {
        let clock = settings.clock.unwrap_or_else(Clock::of_process);
        let umem = Umem::new(settings.frames, settings.frame_bytes)?;
        let ups = Ups::start(up, settings.namespaces.clone(), settings.budgets)?;
        let calibrated = |file: &PathBuf| Calibrated::read(file, clock, settings.longest_run);
        let calibrated = settings.calibration.as_ref().map(calibrated).unwrap_or_default();
        Ok(Control {
            resources: Resources::new(settings.share, calibrated, clock),
            settings,
            clock,
            umem,
            ups,
            tell,
            crew: Crew::new(epochs),
            held: Held::default(),
            slots,
            filled: BTreeSet::new(),
            common: Common::new(tables),
            placing: Placing::default(),
            closed: BTreeMap::new(),
            conditions: Vec::new(),
        })
    }

    /// Applies the plan; returns what could not be done, and what is wrong with workers.
    pub fn apply(&mut self, plan: &WorkersPlan) -> Vec<String> {
        self.look_at_silent();
        self.bring_to(plan);
        let mut all = mem::take(&mut self.conditions);
        let others = self.crew.conditions().filter(|condition| !all.contains(condition));
        all.extend(others.collect::<Vec<_>>());
        all
    }

    /// Stops giving packets to workers that make no progress. The next plan gives packets to those that went on.
    pub fn look_at_silent(&mut self) {
        let name = |path| self.held.paths.get(&path).map_or("?", |path| &path.plan.name);
        for core in self.crew.look(name) {
            for ring in self.held.rings_on(core) {
                if let Err(error) = self.empty_slot(ring) {
                    tracing::warn!(
                        "the worker on core {core} is silent, but may still get packets: {error:#}"
                    );
                }
            }
        }
    }

    fn bring_to(&mut self, plan: &WorkersPlan) {
        self.conditions = self.refuse(plan);
        self.look();
        self.placing.take_in(&self.held.paths, self.clock);
        self.resources.take_in(&plan.io, &self.held);
        let at = self.place(plan);
        self.common.follow(plan);
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

    /// Asks workers what they have.
    fn look(&mut self) {
        for core in self.crew.answering() {
            let holds = self.crew.ask(core, move |inner| inner.holds(core));
            if let Some(holds) = self.note(holds) {
                self.held.take_in(core, holds);
            }
        }
        self.filled.retain(|ring| self.held.rings.contains_key(ring));
    }

    fn place(&mut self, plan: &WorkersPlan) -> BTreeMap<PathId, CoreId> {
        let paths = plan.paths.iter().filter(|(path, _)| usize::from(**path) < MOST_PATHS);
        let paths: BTreeMap<_, _> = paths.map(|(id, path)| (*id, path)).collect();
        let now = self.held.paths.iter().map(|(path, held)| (*path, held.core)).collect();
        let placement = self.placing.place(&paths, plan, self.clock, &now);
        for path in placement.nowhere {
            let name = paths.get(&path).map(|path| path.name.as_str()).unwrap_or_default();
            self.conditions.push(format!("path {name}: none of its cores has a worker"));
        }
        placement.core
    }

    /// Notes an error once: if a worker does not answer, every step fails with the same error.
    pub fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        let error = match result {
            Ok(done) => return Some(done),
            Err(error) => format!("{error:#}"),
        };
        if !self.conditions.contains(&error) {
            self.conditions.push(error);
        }
        None
    }

    fn start_workers(&mut self, plan: &WorkersPlan) {
        for core in plan.cores.iter().map(|core| core.id) {
            if !self.crew.threads.contains_key(&core) {
                let started = self.start_worker(core);
                self.note(started);
            }
        }
    }

    fn start_worker(&mut self, core: CoreId) -> Result<()> {
        let (settings, umem, clock) = (self.settings.clone(), self.umem.clone(), self.clock);
        let Calibrated { switch, memory } = &self.resources.calibrated;
        let (switch_cycles, knows_memory) = (switch.cycles, memory.per_second.is_some());
        let (tables, gate, tell) = (self.common.made.tables.clone(), self.ups.gate(), self.tell.clone());
        self.crew.start(core, settings.nice, move |bell, running| {
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
        for core in self.crew.threads.keys().copied().filter(|core| !stays(core)).collect::<Vec<_>>() {
            self.crew.threads.remove(&core);
            self.held.forget(core);
        }
    }

    fn tell_ports(&self, plan: &WorkersPlan) {
        let device = |port: &PortPlan| Device { ifindex: port.ifindex, namespace: port.namespace.clone() };
        self.ups.set_ports(plan.ports.iter().map(|(id, port)| (*id, device(port))).collect());
    }

    /// Sends workers the weights of routers, and the names and routers of ports.
    fn tell_workers(&mut self, plan: &WorkersPlan) {
        let (share, counts_io) = (self.resources.scarce.shared(), self.resources.counts_io());
        for core in self.crew.threads.keys().copied().collect::<Vec<_>>() {
            let common = self.common.clone();
            let owners: Vec<_> = plan.ports.iter().map(|(id, port)| (*id, port.router)).collect();
            let taken = self.crew.ask(core, move |inner| {
                // Repeated with each plan, because the value of a unit of the resource follows the cost of packets.
                inner.share(share, counts_io);
                inner.desk.set_owners(owners);
                common.give_to(inner)
            });
            self.note(taken);
        }
    }

    fn wanted(&self, plan: &WorkersPlan, at: &BTreeMap<PathId, CoreId>) -> Layout {
        let has_worker = |core: &CoreId| plan.cores.iter().any(|wanted| wanted.id == *core);
        let ports = plan.ports.iter().filter(|(port, _)| usize::from(**port) < PORTS);
        let queues = ports.flat_map(|(port, of)| (0..of.queues).map(|queue| (*port, queue))).collect();
        let ports_of =
            |path: &PathId| plan.paths.get(path).map(|path| path.ports.clone()).unwrap_or_default();
        let parts = Parts {
            workers: self.crew.threads.keys().copied().filter(has_worker).collect(),
            queues,
            paths: at.iter().map(|(path, core)| (*path, (*core, ports_of(path)))).collect(),
        };
        lay_out(&parts, &self.held.layout())
    }

    /// Empties the slots of a path that a worker stopped, so the XDP program treats its packets as without a worker. The
    /// path may already run again.
    pub fn path_stopped(&mut self, path: PathId) {
        let stopped = |thread: &Thread| thread.ask(move |inner| inner.is_stopped(path)).unwrap_or(false);
        if !self.crew.threads.values().any(stopped) {
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

    /// Makes all chains with these tables; they are used from the next run on.
    pub fn set_tables(&mut self, tables: Arc<dyn Tables>) -> Result<()> {
        self.conditions.clear();
        self.look();
        let chain = |plan: &PathPlan| tables.chain(plan, &self.common.made.names);
        let mut chains = BTreeMap::<CoreId, Vec<(PathId, Chain)>>::new();
        for (path, held) in &self.held.paths {
            chains.entry(held.core).or_default().push((*path, chain(&held.plan)?));
        }
        self.common.made.tables = tables;
        let made = self.common.made.clone();
        // A silent worker takes them before its next run, and gets no packets until then.
        for (core, thread) in self.crew.silent() {
            let (made, chains) = (made.clone(), chains.remove(&core).unwrap_or_default());
            thread.leave(move |inner| drop(inner.set_tables(made, chains)));
        }
        for core in self.crew.answering() {
            let new = (made.clone(), chains.remove(&core).unwrap_or_default());
            let done = self.crew.give(core, new, |inner, (made, chains)| inner.set_tables(made, chains));
            if self.note(done.map_err(|not| not.error)).is_some() {
                let of_core = self.held.paths.values_mut().filter(|path| path.core == core);
                of_core.for_each(|path| path.made = made.clone());
            }
        }
        anyhow::ensure!(self.conditions.is_empty(), "{}", mem::take(&mut self.conditions).join("; "));
        Ok(())
    }

    pub fn report(&self) -> WorkersReport {
        let mut report = WorkersReport {
            clock: self.clock.name().into(),
            hz: self.clock.hz(),
            switch: self.resources.calibrated.switch.clone(),
            share: self.resources.scarce.shared().to_string(),
            follows: self.settings.share == Share::Scarce,
            sample_every: self.settings.sample_every,
            longest_run_us: self.settings.longest_run.as_micros() as u64,
            resources: self.resources.report(),
            up: self.ups.report(),
            frames: self.umem.frames(),
            free_frames: self.umem.free_frames(),
            promised_frames: self.umem.promised_frames(),
            retired_frames: self.umem.retired_frames(),
            closed_outputs: self.closed.values().cloned().collect(),
            ..WorkersReport::default()
        };
        for core in self.crew.threads.keys().copied() {
            match self.crew.ask(core, move |inner| answer(core, inner)) {
                Ok(answer) => {
                    let share = |path: PathStand| PathStand {
                        share: self.share(path.id, answer.shared),
                        hangs: self.crew.hangs(path.id),
                        ..path
                    };
                    let used = self.resources.used_by(core);
                    report.workers.push(WorkerStand { used, ..answer.worker });
                    report.paths.extend(answer.paths.into_iter().map(share));
                    report.queues.extend(answer.queues);
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
            other => self.resources.scarce.part(path, other),
        }
    }
}
