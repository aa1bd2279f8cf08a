//! From how it stands to how it shall be, while packets run: one step after another, so that no packet is lost and none overtakes another.
//!
//! * **A ring that ends**: its slot is emptied; after a grace period nothing comes any more; the path takes what is in it; it is closed.
//! * **A path that moves** is given up between two runs, with its RX rings, in which its packets wait meanwhile. When what it sent has left
//!   (completions tell), the other worker takes it in.
//! * **A queue whose owner ends** goes to another, as it is.
//! * **A new ring** is put into its slot when its worker has it.
//!
//! What cannot be done is told, and tried again with the next plan; the rest is done.

use super::{
    WorkersSettings,
    clock::Clock,
    epochs::Epochs,
    exchange::{Desk, Fates, PORTS, PortNames},
    inner::{Inner, Moving},
    placing::Placing,
    plan::{PathPlan, PortPlan, Slots, Tables, WorkersPlan, frames_needed},
    report::{OutputStand, WorkerStand, WorkersReport, port_name, told},
    thread::Thread,
    up::{Device, Ups},
};
use crate::{
    af_xdp::{Closed, Io, MOST_PATHS, OpenError, Opener, Queue, Umem, Wanted},
    config::ElementSettings,
    netns,
};
use anyhow::{Context, Result, anyhow, ensure};
use logic::{
    cores::CoreId,
    paths::{
        Bursts, Cost, Counters, PathId, Settings,
        layout::{Layout, Parts, PortQueue, lay_out},
    },
    plan::{PortId, RouterId},
    worker::Worker,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::fd::AsFd,
    sync::{Arc, mpsc::Sender},
    thread,
    time::{Duration, Instant},
};

/// What a path has in a ring that ends it takes within this time, if it ever does.
const DRAINS: Duration = Duration::from_secs(1);
/// What was sent leaves within this time, if the port does not hold it.
const LEAVES: Duration = Duration::from_millis(100);
/// While something is waited for, workers are asked so often.
const ASKS: Duration = Duration::from_micros(200);

/// A port whose queues are open.
struct Port {
    plan: PortPlan,
    key: netns::Key,
    queues: BTreeMap<u32, Opener>,
}

/// See the head of this file.
pub(super) struct Control {
    pub settings: WorkersSettings,
    pub umem: Arc<Umem>,
    pub slots: Box<dyn Slots>,
    pub tables: Arc<dyn Tables>,
    pub clock: Clock,
    pub epochs: Epochs,
    pub ups: Ups,
    /// Paths that workers stopped.
    pub tell: Sender<PathId>,
    state: State,
}

/// How it stands.
#[derive(Default)]
struct State {
    threads: BTreeMap<CoreId, Thread>,
    ports: BTreeMap<PortId, Port>,
    paths: BTreeMap<PathId, PathPlan>,
    /// The worker of each path.
    at: BTreeMap<PathId, CoreId>,
    /// Who has what, of what is open.
    layout: Layout,
    stopped: BTreeMap<PathId, String>,
    /// Of TX rings that were closed, all of a port together.
    closed: BTreeMap<PortId, OutputStand>,
    names: PortNames,
    weights: BTreeMap<RouterId, u16>,
    placing: Placing,
}

/// What went wrong, for people.
type Troubles = Vec<String>;

fn note<T>(troubles: &mut Troubles, result: Result<T>) -> Option<T> {
    result.map_err(|error| troubles.push(format!("{error:#}"))).ok()
}

/// In a port's namespace.
fn inside<T: Send>(namespace: &File, task: impl FnOnce() -> T + Send) -> Result<T> {
    netns::inside(namespace, task).context("entering the port's namespace, which takes CAP_SYS_ADMIN")
}

impl Control {
    #[expect(clippy::too_many_arguments, reason = "each is a part of its own")]
    pub fn new(
        settings: WorkersSettings,
        umem: Arc<Umem>,
        slots: Box<dyn Slots>,
        tables: Arc<dyn Tables>,
        clock: Clock,
        epochs: Epochs,
        ups: Ups,
        tell: Sender<PathId>,
    ) -> Control {
        Control { settings, umem, slots, tables, clock, epochs, ups, tell, state: State::default() }
    }

    /// See the head of this file; what could not be done.
    pub fn apply(&mut self, plan: &WorkersPlan) -> Troubles {
        let mut troubles = self.refuse(plan);
        let at = self.place(plan, &mut troubles);
        self.end(plan, &at, &mut troubles);
        let names: BTreeMap<_, _> = plan.ports.iter().map(|(id, port)| (port.name.clone(), *id)).collect();
        let changed = |name: &str| self.state.names.get(name) != names.get(name);
        let renamed: BTreeSet<String> =
            names.keys().chain(self.state.names.keys()).filter(|name| changed(name)).cloned().collect();
        self.state.names = Arc::new(names);
        self.tell_ports(plan);
        for core in plan.cores.iter().map(|core| core.id) {
            if !self.state.threads.contains_key(&core)
                && let Some(thread) = note(&mut troubles, self.start(core))
            {
                self.state.threads.insert(core, thread);
            }
        }
        self.weigh(plan, &mut troubles);
        let want = self.wanted(plan, &at);
        self.open_ways_out(plan, &want, &mut troubles);
        self.change_paths(plan, &at, &renamed, &mut troubles);
        self.move_queues(&want, &mut troubles);
        self.open_rings(plan, &want, &mut troubles);
        let State { threads, at, .. } = &mut self.state;
        // One whose path could not be moved stays for it.
        threads.retain(|core, _| {
            plan.cores.iter().any(|wanted| wanted.id == *core) || at.values().any(|has| has == core)
        });
        troubles
    }

    /// What no worker could run.
    fn refuse(&self, plan: &WorkersPlan) -> Troubles {
        let ports = plan.ports.keys().filter(|port| usize::from(**port) >= PORTS);
        let paths = plan.paths.keys().filter(|path| usize::from(**path) >= MOST_PATHS);
        let ports = ports.map(|port| format!("port {port}: they are numbered from 0 to {}", PORTS - 1));
        let paths = paths.map(|path| format!("path {path}: they are numbered from 0 to {}", MOST_PATHS - 1));
        let (needed, frames, retired) =
            (frames_needed(plan, &self.settings), self.umem.frames(), self.umem.retired_frames());
        let lacks = (needed > frames.saturating_sub(retired)).then(|| {
            format!(
                "memory for packets: the plan may need {needed} frames of {} bytes; there are {frames}, {retired} of them \
                 retired: what finds none is not opened",
                self.umem.frame_bytes()
            )
        });
        ports.chain(paths).chain(lacks).collect()
    }

    fn place(&mut self, plan: &WorkersPlan, troubles: &mut Troubles) -> BTreeMap<PathId, CoreId> {
        if self.state.at.len() > 1 || plan.cores.len() > 1 {
            self.report();
        }
        let paths = plan.paths.iter().filter(|(path, _)| usize::from(**path) < MOST_PATHS);
        let paths: BTreeMap<_, _> = paths.map(|(id, path)| (*id, path)).collect();
        let placement = self.state.placing.place(&paths, plan, self.clock.hz(), &self.state.at);
        for path in placement.nowhere {
            let name = paths.get(&path).map(|path| path.name.as_str()).unwrap_or_default();
            troubles.push(format!("path {name}: none of its cores has a worker"));
        }
        placement.core
    }

    fn thread(&self, core: CoreId) -> Result<&Thread> {
        self.state.threads.get(&core).with_context(|| format!("core {core} has no worker"))
    }

    fn ask<T: Send + 'static>(
        &self,
        core: CoreId,
        what: impl FnOnce(&mut Inner) -> T + Send + 'static,
    ) -> Result<T> {
        self.thread(core)?.ask(what)
    }

    /// Asks until it is so, or the time is over.
    fn until(
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

    fn start(&self, core: CoreId) -> Result<Thread> {
        let (settings, umem, clock) = (self.settings.clone(), self.umem.clone(), self.clock);
        let (tables, gate, tell) = (self.tables.clone(), self.ups.gate(), self.tell.clone());
        let (names, weights) = (self.state.names.clone(), self.state.weights.clone());
        Thread::start(core, &self.epochs, move |bell| {
            let longest = clock.cycles_of(settings.longest_run).try_into().unwrap_or(u32::MAX);
            let most = logic::elements::MOST_PACKETS as u32;
            let bursts = Bursts { longest_cycles: longest, switch_cycles: settings.switch_cycles, most };
            let scheduling =
                Settings { bursts, sample_every: settings.sample_every, counted: Counters::CYCLES };
            let mut worker = Worker::new(scheduling)?;
            weights.into_iter().for_each(|(router, weight)| worker.weigh(router, weight));
            let io = Io::with_bell(&umem, settings.in_hand, bell)?;
            let desk = Desk::new(tables, clock, gate);
            let tell = Box::new(move |path| _ = tell.send(path));
            let mut inner = Inner::new(worker, desk, io, settings.spin, settings.auxiliary, tell);
            inner.names = names;
            Ok(inner)
        })
    }

    /// What is not in the plan, and ports that are others now, or gone.
    fn end(&mut self, plan: &WorkersPlan, at: &BTreeMap<PathId, CoreId>, troubles: &mut Troubles) {
        let gone = self.gone();
        let stays = |id: &PortId, port: &Port| {
            let same = |new: &PortPlan| {
                let PortPlan { ifindex, queues, rings, polling, zero_copy, .. } = &port.plan;
                (*ifindex, *queues, *rings, *polling, *zero_copy)
                    == (new.ifindex, new.queues, new.rings, new.polling, new.zero_copy)
                    && netns::Key::of(&new.namespace).is_ok_and(|key| key == port.key)
            };
            plan.ports.get(id).is_some_and(same) && !gone.contains(id)
        };
        let ports: BTreeSet<PortId> =
            self.state.ports.iter().filter(|(id, port)| !stays(id, port)).map(|(id, _)| *id).collect();
        let paths: BTreeSet<PathId> =
            self.state.paths.keys().filter(|path| !at.contains_key(path)).copied().collect();
        let ends = |(queue, path): &(PortQueue, PathId)| {
            ports.contains(&queue.0)
                || plan.paths.get(path).is_none_or(|path| !path.ports.contains(&queue.0))
                || plan.paths.get(path).map(|path| path.ring)
                    != self.state.paths.get(path).map(|path| path.ring)
                || paths.contains(path)
        };
        let rings: Vec<_> = self.state.layout.rings.keys().filter(|ring| ends(ring)).copied().collect();
        self.end_rings(&rings, troubles);
        for path in paths {
            if let Some(core) = self.state.at.remove(&path) {
                note(troubles, self.ask(core, move |inner| drop(inner.give_up(path))));
            }
            self.state.paths.remove(&path);
            self.state.stopped.remove(&path);
        }
        for port in ports {
            self.end_port(port, troubles);
        }
    }

    /// Ports whose device is gone, as their sockets tell.
    fn gone(&self) -> BTreeSet<PortId> {
        let is_gone =
            |port: &Port| port.queues.values().any(|queue| queue.check() == Err(crate::af_xdp::Fault::Gone));
        self.state.ports.iter().filter(|(_, port)| is_gone(port)).map(|(id, _)| *id).collect()
    }

    fn end_rings(&mut self, rings: &[(PortQueue, PathId)], troubles: &mut Troubles) {
        if rings.is_empty() {
            return;
        }
        for ((port, queue), path) in rings {
            note(troubles, self.slots.take(*port, *queue, *path));
        }
        note(troubles, self.slots.settle());
        for ring @ ((port, queue), path) in rings.iter().copied() {
            let Some(core) = self.state.layout.rings.remove(&ring) else { continue };
            let is_empty =
                move |inner: &mut Inner| inner.is_stopped(path) || !inner.has_packets_of(path, port);
            note(troubles, self.until(core, DRAINS, is_empty));
            note(troubles, self.ask(core, move |inner| inner.close_receiver(path, port, queue)));
        }
    }

    /// No path has a ring there any more.
    fn end_port(&mut self, port: PortId, troubles: &mut Troubles) {
        let outputs: Vec<_> = self.state.layout.outputs.keys().filter(|(_, p)| *p == port).copied().collect();
        // Senders go before queues, which wait for what those sent.
        for (core, port) in outputs {
            self.end_output(core, port, troubles);
        }
        self.state.ports.remove(&port);
        let queues: Vec<_> = self.state.layout.owner.keys().filter(|(p, _)| *p == port).copied().collect();
        for (port, queue) in queues {
            if let Some(owner) = self.state.layout.owner.remove(&(port, queue)) {
                drop(note(troubles, self.ask(owner, move |inner| inner.take_queue(port, queue))));
            }
        }
    }

    fn end_output(&mut self, core: CoreId, port: PortId, troubles: &mut Troubles) {
        self.state.layout.outputs.remove(&(core, port));
        note(troubles, self.wait_for_sent(core));
        let taken = note(troubles, self.ask(core, move |inner| inner.take_output(port))).flatten();
        let Some(Closed { sender, counts, left }) = taken else { return };
        let closed = OutputStand::of(port, port_name(&self.state.names, port), counts);
        let all = self.state.closed.entry(port).or_default();
        (all.port, all.name) = (port, closed.name.clone());
        all.add(&OutputStand { dropped_closed: left as u64, ..closed });
        let held = left + sender.waiting() as usize;
        if held > 0 && !self.gone().contains(&port) {
            troubles.push(format!("port {port}: it held {held} packets of core {core}, which are lost"));
        }
    }

    /// Until all that the worker sent has left, or is held.
    fn wait_for_sent(&self, core: CoreId) -> Result<bool> {
        // What the kernel has taken leaves in that order, also by a queue that others send by.
        let is_taken = |inner: &mut Inner| {
            inner.io.flush();
            !inner.io.has_waiting()
        };
        if !self.until(core, LEAVES, is_taken)? {
            return Ok(false);
        }
        let marks: Arc<[_]> = self.ask(core, |inner| inner.io.marks())?.into();
        self.until(core, LEAVES, move |inner| inner.has_left(&marks))
    }

    fn tell_ports(&self, plan: &WorkersPlan) {
        let device = |port: &PortPlan| Device { ifindex: port.ifindex, namespace: port.namespace.clone() };
        self.ups.set_ports(plan.ports.iter().map(|(id, port)| (*id, device(port))).collect());
    }

    fn weigh(&mut self, plan: &WorkersPlan, troubles: &mut Troubles) {
        let mut weights = plan.routers.clone();
        // Those that are not in it any more.
        self.state.weights.keys().for_each(|router| _ = weights.entry(*router).or_insert(1));
        self.state.weights = weights;
        for core in self.state.threads.keys() {
            let (names, weights) = (self.state.names.clone(), self.state.weights.clone());
            let tell = move |inner: &mut Inner| {
                inner.names = names;
                weights.into_iter().for_each(|(router, weight)| inner.worker.weigh(router, weight));
            };
            note(troubles, self.ask(*core, tell));
        }
    }

    fn wanted(&self, plan: &WorkersPlan, at: &BTreeMap<PathId, CoreId>) -> Layout {
        let has_worker = |core: &CoreId| plan.cores.iter().any(|wanted| wanted.id == *core);
        let ports = plan.ports.iter().filter(|(port, _)| usize::from(**port) < PORTS);
        let queues = ports.flat_map(|(port, of)| (0..of.queues).map(|queue| (*port, queue))).collect();
        let ports_of =
            |path: &PathId| plan.paths.get(path).map(|path| path.ports.clone()).unwrap_or_default();
        let parts = Parts {
            workers: self.state.threads.keys().copied().filter(has_worker).collect(),
            queues,
            paths: at.iter().map(|(path, core)| (*path, (*core, ports_of(path)))).collect(),
        };
        lay_out(&parts, &self.state.layout)
    }

    fn change_paths(
        &mut self,
        plan: &WorkersPlan,
        at: &BTreeMap<PathId, CoreId>,
        renamed: &BTreeSet<String>,
        troubles: &mut Troubles,
    ) {
        for (path, core) in at {
            let Some(new) = plan.paths.get(path) else { continue };
            let done = match self.state.paths.get(path).cloned() {
                None => self.begin_path(*path, *core, new),
                Some(old) => self.change_path(*path, *core, &old, new, renamed),
            };
            if note(troubles, done).is_some() {
                self.state.paths.insert(*path, new.clone());
            }
        }
    }

    fn begin_path(&mut self, path: PathId, core: CoreId, plan: &PathPlan) -> Result<()> {
        let chain = self.tables.chain(plan, &self.state.names)?;
        let (plan, cost, fates) = (plan.clone(), Cost::default(), Fates::default());
        let moving = Moving { path, plan, chain, cost, receivers: Vec::new(), fates, stopped: false };
        self.ask(core, move |inner| inner.take_in(moving))??;
        self.state.at.insert(path, core);
        Ok(())
    }

    fn change_path(
        &mut self,
        path: PathId,
        core: CoreId,
        old: &PathPlan,
        new: &PathPlan,
        renamed: &BTreeSet<String>,
    ) -> Result<()> {
        let names_other = |element: &ElementSettings| matches!(element, ElementSettings::Forward(port) if renamed.contains(port.as_str()));
        let changes = old.chain != new.chain || new.chain.iter().any(names_other);
        // What cannot be made leaves all as it is.
        let chain = changes.then(|| self.tables.chain(new, &self.state.names)).transpose()?;
        if self.state.at.get(&path) != Some(&core) || old.router != new.router {
            self.move_path(path, core, new)?;
        }
        let goes_on = chain.is_some() && self.state.stopped.remove(&path).is_some();
        let plan = new.clone();
        self.ask(core, move |inner| inner.change(path, plan, chain))?;
        if goes_on {
            self.put_again(path)?;
        }
        Ok(())
    }

    /// Takes the path to this worker. Its packets wait in its rings meanwhile.
    fn move_path(&mut self, path: PathId, to: CoreId, plan: &PathPlan) -> Result<()> {
        ensure!(self.state.threads.contains_key(&to), "path {}: core {to} has no worker", plan.name);
        let from = *self.state.at.get(&path).context("a path without a worker")?;
        let moving = self.ask(from, move |inner| inner.give_up(path))?;
        let mut moving = moving.with_context(|| format!("path {}: its worker lacks it", plan.name))?;
        self.wait_for_sent(from)?;
        moving.plan = plan.clone();
        let receivers = moving.receivers.len();
        self.ask(to, move |inner| inner.take_in(moving))??;
        self.state.at.insert(path, to);
        let rings = self.state.layout.rings.iter_mut().filter(|((_, of), _)| *of == path);
        let moved = rings.map(|(_, core)| *core = to).count();
        ensure!(moved == receivers, "path {}: {receivers} of {moved} rings moved", plan.name);
        Ok(())
    }

    /// Queues whose owner ends, and outputs on others.
    fn move_queues(&mut self, want: &Layout, troubles: &mut Troubles) {
        let outputs = self.state.layout.outputs.clone();
        for ((core, port), queue) in outputs {
            let has_paths = self.state.at.values().any(|has| *has == core);
            if want.outputs.get(&(core, port)) != Some(&queue) && !has_paths {
                self.end_output(core, port, troubles);
            }
        }
        let owners = self.state.layout.owner.clone();
        for ((port, queue), from) in owners {
            let Some(to) = want.owner.get(&(port, queue)).copied().filter(|to| *to != from) else { continue };
            let moved = self.ask(from, move |inner| inner.take_queue(port, queue)).and_then(|taken| {
                let taken: Queue = taken.context("a queue that its owner lacks")?;
                self.ask(to, move |inner| inner.io.add_queue(taken))
            });
            if note(troubles, moved).is_some() {
                self.state.layout.owner.insert((port, queue), to);
            }
        }
    }

    /// Queues and TX rings that are wanted and not there: before a path comes to a worker, or its packets would find no port.
    fn open_ways_out(&mut self, plan: &WorkersPlan, want: &Layout, troubles: &mut Troubles) {
        for ((port, queue), owner) in &want.owner {
            if !self.state.layout.owner.contains_key(&(*port, *queue))
                && let Some(of) = plan.ports.get(port)
            {
                let opened = self.open_queue(*port, *queue, of, *owner, want);
                note(troubles, opened.with_context(|| format!("port {}, queue {queue}", of.name)));
            }
        }
        for ((core, port), queue) in &want.outputs {
            if !self.state.layout.outputs.contains_key(&(*core, *port)) {
                let opened = self.open_output(*core, *port, *queue);
                note(troubles, opened.with_context(|| format!("port {port}: a TX ring for core {core}")));
            }
        }
    }

    /// RX rings that are wanted and not there.
    fn open_rings(&mut self, plan: &WorkersPlan, want: &Layout, troubles: &mut Troubles) {
        for ((queue, path), core) in &want.rings {
            if !self.state.layout.rings.contains_key(&(*queue, *path))
                && self.state.at.get(path) == Some(core)
                && let Some(of) = plan.paths.get(path)
            {
                let opened = self.open_ring(*queue, *path, *core, of.ring);
                note(
                    troubles,
                    opened.with_context(|| format!("path {}: port {}, queue {}", of.name, queue.0, queue.1)),
                );
            }
        }
    }

    fn open_queue(
        &mut self,
        port: PortId,
        queue: u32,
        plan: &PortPlan,
        owner: CoreId,
        want: &Layout,
    ) -> Result<()> {
        let PortPlan { ifindex, zero_copy, polling, rings, ref namespace, .. } = *plan;
        let wanted = Wanted { port, ifindex, queue, zero_copy, polling, rings };
        let (opened, sender) = inside(namespace, || Queue::open(&self.umem, wanted))??;
        let (opener, key) = (opened.opener(), netns::Key::of(namespace)?);
        self.ask(owner, move |inner| inner.io.add_queue(opened))?;
        self.state.layout.owner.insert((port, queue), owner);
        let entry = || Port { plan: plan.clone(), key, queues: BTreeMap::new() };
        self.state.ports.entry(port).or_insert_with(entry).queues.insert(queue, opener);
        if want.outputs.get(&(owner, port)) == Some(&queue) {
            self.ask(owner, move |inner| inner.add_output(port, sender))??;
            self.state.layout.outputs.insert((owner, port), queue);
        }
        Ok(())
    }

    fn opener(&self, (port, queue): PortQueue) -> Result<(&Port, Opener)> {
        let of = self.state.ports.get(&port).context("the port has no queue")?;
        Ok((of, of.queues.get(&queue).context("the queue is not open")?.clone()))
    }

    fn open_output(&mut self, core: CoreId, port: PortId, queue: u32) -> Result<()> {
        let (of, opener) = self.opener((port, queue))?;
        let sender = inside(&of.plan.namespace, || opener.sender())??;
        self.ask(core, move |inner| inner.add_output(port, sender))??;
        self.state.layout.outputs.insert((core, port), queue);
        Ok(())
    }

    fn open_ring(&mut self, queue: PortQueue, path: PathId, core: CoreId, entries: u32) -> Result<()> {
        let (of, opener) = self.opener(queue)?;
        ensure!(entries.is_power_of_two() && entries >= 64, OpenError::RingSize(entries));
        let fill = of.plan.rings.fill;
        ensure!(
            entries <= fill / 2,
            "a ring of {entries} packets wants a fill ring of twice as many; the port's has {fill}"
        );
        let opener = opener.with_ring(entries);
        let receiver = inside(&of.plan.namespace, || opener.receiver(path.into()))??;
        let fd = receiver.as_fd().try_clone_to_owned()?;
        self.ask(core, move |inner| inner.io.add_receiver(receiver))?;
        self.state.layout.rings.insert((queue, path), core);
        if self.state.stopped.contains_key(&path) {
            return Ok(());
        }
        self.slots.put(queue.0, queue.1, path, fd.as_fd())
    }

    /// A worker stopped the path: its packets are the XDP program's, as with an empty slot.
    pub fn path_stopped(&mut self, path: PathId) {
        let rings = self.state.layout.rings.iter().filter(|((_, of), _)| *of == path);
        for ((port, queue), _) in rings.map(|(ring, _)| *ring) {
            if let Err(error) = self.slots.take(port, queue, path) {
                tracing::warn!("path {path} is stopped and may get packets still: {error:#}");
            }
        }
        let why = "its chain panicked again and again; another chain starts it";
        self.state.stopped.insert(path, why.into());
    }

    fn put_again(&mut self, path: PathId) -> Result<()> {
        let rings: Vec<_> = self
            .state
            .layout
            .rings
            .iter()
            .filter(|((_, of), _)| *of == path)
            .map(|(ring, core)| (*ring, *core))
            .collect();
        for (((port, queue), path), core) in rings {
            let fd = self.ask(core, move |inner| {
                let mut rings = inner.io.receivers(path.into());
                let ring = rings.find(|ring| (ring.wanted().port, ring.wanted().queue) == (port, queue));
                ring.and_then(|ring| ring.as_fd().try_clone_to_owned().ok())
            })?;
            self.slots.put(port, queue, path, fd.ok_or_else(|| anyhow!("its ring is gone"))?.as_fd())?;
        }
        Ok(())
    }

    /// All chains over these from the next run on.
    pub fn set_tables(&mut self, tables: Arc<dyn Tables>) -> Result<()> {
        let chain = |(path, plan): (&PathId, &PathPlan)| {
            Ok((*path, plan.clone(), tables.chain(plan, &self.state.names)?))
        };
        let chains = self.state.paths.iter().map(chain).collect::<Result<Vec<_>>>()?;
        self.tables = tables;
        for core in self.state.threads.keys() {
            let tables = self.tables.clone();
            self.ask(*core, move |inner| inner.desk.tables = tables)?;
        }
        for (path, plan, chain) in chains {
            let core = *self.state.at.get(&path).context("a path without a worker")?;
            self.ask(core, move |inner| {
                if !inner.is_stopped(path) {
                    inner.change(path, plan, Some(chain));
                }
            })?;
        }
        Ok(())
    }

    pub fn report(&mut self) -> WorkersReport {
        let mut report = WorkersReport {
            clock: self.clock.name().into(),
            hz: self.clock.hz(),
            up: self.ups.report(),
            frames: self.umem.frames(),
            free_frames: self.umem.free_frames(),
            promised_frames: self.umem.promised_frames(),
            retired_frames: self.umem.retired_frames(),
            closed_outputs: self.state.closed.values().cloned().collect(),
            ..WorkersReport::default()
        };
        for thread in self.state.threads.values() {
            let core = thread.core;
            match thread.ask(move |inner| told(core, inner)) {
                Ok(told) => {
                    report.workers.push(told.worker);
                    report.paths.extend(told.paths);
                    report.queues.extend(told.queues);
                }
                Err(error) => {
                    let silent = Some(format!("{error:#}"));
                    report.workers.push(WorkerStand { core, silent, ..WorkerStand::default() });
                }
            }
        }
        for path in &mut report.paths {
            path.path = self.state.paths.get(&path.id).map(|plan| plan.name.clone()).unwrap_or_default();
            path.stopped = self.state.stopped.get(&path.id).cloned();
        }
        self.state.placing.take_in(&mut report.paths, self.clock);
        report.paths.sort_by_key(|path| path.id);
        report
    }
}
