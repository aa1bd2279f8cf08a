//! Generations of programs and maps: the first one, larger ones when a table is full, and attaching them to the
//! ports.
//!
//! Starting, restarting, upgrading and growing are one operation: load a generation, fill it from the mirror, and
//! then put it in charge of the ports, with one atomic swap for each. Until then, the previous generation goes on.

use super::{
    Control,
    beats::Progress,
    confirming::Confirming,
    connections,
    finding::Finding,
    paths::Following,
    policy::Windows,
    reclaim::Reclaimer,
    rules::Flows,
    seam::{FastPath, Kernel, Observe},
    steering::Steerer,
    totals::{SavedTotals, Totals},
    world::World,
};
use crate::{
    base::{conditions::Conditions, instance::Instance},
    capture::Captures,
    config::{Config, PathNumbers},
    linux::{
        ethtool::{Problem, ProblemKind},
        spreading::Spreading,
    },
    plane::{Mode, Settings},
    switch::seam::SwitchEnd,
    user_plane::seam::UserPlane,
};
use anyhow::{Context, Result, anyhow, bail};
use logic::{
    cause::{Cause, Code},
    memory::{Capacity, words},
    mirror::MAX_INTERFACES,
    plan::{Op, PortId},
    tables::{Epoch, Full, Region, Tables},
};
use std::time::Duration;

/// The pause after larger tables could not be loaded.
const GROW_AGAIN: Duration = Duration::from_secs(30);

/// The smallest sizes: a few MiB, enough for a router without a full table.
const FIRST: Capacity = Capacity {
    fib_blocks: 1 << 14,
    fib_tails: 1 << 16,
    nexthops: 1 << 14,
    neighbour_buckets: 1 << 12,
    interface_buckets: 1 << 11,
    routers: 256,
};
/// Rows of counters for interfaces: enough for all numbers that the mirror gives, which begin at 1.
const INTERFACE_ROWS: u32 = MAX_INTERFACES as u32 + 1;

/// One generation, its tables, and the reclaiming of their space.
pub(super) struct Generation<P: FastPath> {
    pub plane: P,
    pub tables: Tables<P::Memory>,
    pub capacity: Capacity,
    /// Counts up from 1.
    pub number: u64,
    reclaimer: Reclaimer<Epoch>,
    /// Something was unpublished since the last epoch.
    dirty: bool,
    /// A table that had no room for something.
    full: Option<Full>,
    /// Why it is not replaced by a larger one.
    pub stuck: Option<Stuck>,
    /// The revision of the mirror from which the weights of routers were last set.
    pub weighed: Option<u64>,
}

/// Why a full table is not replaced by a larger one.
pub(super) struct Stuck {
    pub why: String,
    /// When to try again, CLOCK_MONOTONIC.
    again: Duration,
}

impl<P: FastPath> Generation<P> {
    /// Applies a plan, as far as there is room.
    pub fn apply(&mut self, plan: impl Iterator<Item = Op>) {
        for op in plan {
            self.dirty = true;
            if let Err(full) = self.tables.apply(&op) {
                self.full.get_or_insert(full);
            }
        }
    }

    /// Lets the tables reuse space that no running program can see any more. What had no room is tried again.
    pub fn reclaim(&mut self, now: Duration) {
        if let Some(epoch) = self.reclaimer.passed() {
            let full = self.tables.reclaim(epoch).err().or_else(|| self.unplaced());
            // Routes that wait for room are tried in portions. Only after the last one is it known that all fit.
            let untried = self.tables.has_untried();
            if full.is_some() || !untried {
                self.full = full;
            }
            self.dirty |= untried;
        }
        if self.dirty && self.reclaimer.is_free(now) {
            self.dirty = false;
            self.reclaimer.begin(self.tables.seal(), now);
        }
    }

    fn unplaced(&self) -> Option<Full> {
        let region = match self.tables.unplaced() {
            (0, 0) => return None,
            (0, _) => Region::InterfaceIndex,
            _ => Region::NeighbourIndex,
        };
        Some(Full { region, rows: 1 })
    }

    /// Does any space still wait for its reuse?
    pub fn is_reclaiming(&self) -> bool {
        self.dirty || self.reclaimer.is_waiting()
    }
}

/// Sizes that are probably enough for the present state. If they are not, [`build`] finds larger ones.
///
/// Measured: 200,000 random prefixes of /16 to /24 take 48,000 blocks and 7,000 tails; the root of a big table takes
/// 65,536 blocks more (`logic::fib`).
fn fitting(world: &World) -> Capacity {
    const BIG_ROOT_BLOCKS: usize = 1 << 16;
    const BIG_TABLE_ROUTES: usize = 100_000;
    let mut c = FIRST;
    for router in world.mirror.routers() {
        let ipv4 = world.mirror.routes4(router.namespace).count();
        let routes = ipv4 + world.mirror.routes6(router.namespace).count();
        c.fib_blocks += routes / 3 + if ipv4 > BIG_TABLE_ROUTES { BIG_ROOT_BLOCKS } else { 0 };
        c.fib_tails += routes / 8;
    }
    let neighbours = world.ledger.neighbours().count();
    c.nexthops += neighbours;
    // At most half full, so that both buckets of a neighbour are rarely full.
    c.neighbour_buckets =
        c.neighbour_buckets.max((neighbours * 2 / words::NEIGHBOUR_BUCKET).next_power_of_two());
    c
}

/// Memory of all tables with these sizes, bytes.
fn bytes(c: &Capacity) -> usize {
    c.fib_blocks * words::FIB_BLOCK * 4
        + 8 * (c.fib_tails * words::FIB_TAIL
            + c.nexthops * words::NEXTHOP
            + c.neighbour_buckets * words::NEIGHBOUR_BUCKET
            + c.interface_buckets * words::INTERFACE_BUCKET
            + c.routers * words::ROUTER)
}

fn larger(mut c: Capacity, full: &Full) -> Capacity {
    let rows = match full.region {
        Region::FibBlocks => &mut c.fib_blocks,
        Region::FibTails => &mut c.fib_tails,
        Region::Nexthops => &mut c.nexthops,
        Region::NeighbourIndex => &mut c.neighbour_buckets,
        Region::InterfaceIndex => &mut c.interface_buckets,
        Region::Routers => &mut c.routers,
    };
    // `full.rows` counts only the first rows that had no room.
    *rows = (*rows * 2).max((*rows + full.rows).next_power_of_two());
    c
}

fn limit(config: &Config) -> usize {
    config.limits.memory_mib.0 as usize * (1 << 20)
}

/// Paths and flow rules, which are looked up before routing. Both outlive a generation.
struct Before<'a, P: FastPath> {
    paths: Option<&'a P::UserPlane>,
    rules: Option<&'a P::Rules>,
    progress: &'a Progress,
}

/// The kernel plane times one packet in so many, for costs and for steering. Two clock reads take 50 ns, so this
/// costs 0.4 ns a packet.
const SAMPLE_INTERVAL: u32 = 128;

/// Loads a generation and fills it from the mirror, in larger and larger sizes until everything fits or the limit is
/// reached. Paths and flow rules, if any, are set before.
fn build<K: Kernel>(
    kernel: &mut K,
    config: &Config,
    world: &World,
    mut capacity: Capacity,
    number: u64,
    before: Before<'_, K::Plane>,
    queue_rows: bool,
) -> Result<Generation<K::Plane>> {
    loop {
        let settings = Settings {
            capacity,
            interface_rows: INTERFACE_ROWS,
            sample_interval: SAMPLE_INTERVAL,
            exception_pps: config.policing.exception_pps.0,
            control_pps: config.policing.control_pps.0,
            queue_rows,
            help: config.experimental.split,
        };
        let mut plane = kernel.load(settings)?;
        if let Some(paths) = before.paths {
            plane.set_paths(paths)?;
        }
        plane.set_rules(before.rules)?;
        let mut generation = Generation {
            tables: Tables::new(plane.memory()),
            plane,
            capacity,
            number,
            reclaimer: Reclaimer::start(kernel.grace()?)?,
            dirty: false,
            full: None,
            stuck: None,
            weighed: None,
        };
        generation.apply(world.everything().inspect(|_| before.progress.made()));
        let Some(full) = &generation.full else { return Ok(generation) };
        let next = larger(capacity, full);
        if bytes(&next) > limit(config) {
            return Ok(generation);
        }
        capacity = next;
    }
}

/// Returns a steerer if the configuration asks for one and a port has a classifier.
fn steerer<K: Kernel>(
    config: &Config,
    instance: &Instance,
    kernel: &K,
    spreading: Option<Spreading>,
    world: &World,
) -> Option<Steerer> {
    let (classifier, spreading) = (kernel.classifier()?, spreading?);
    let steerer = Steerer::new(classifier, spreading.clone(), instance.steering_file());
    let wanted = config.experimental.steering
        && steerer.finds_any(world.ports.values().map(|port| port.name.as_str()));
    if !wanted {
        spreading.release_all();
    }
    wanted.then_some(steerer)
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Observes everything, fills a generation and puts it in charge.
    ///
    /// # Errors
    /// Everything is as before. If an earlier daemon's program had already been replaced, the new one forwards in its
    /// place.
    pub fn start(
        mut config: Config,
        instance: Instance,
        mut kernel: K,
        mut observer: O,
        switch: SwitchEnd<<K::Plane as FastPath>::Rules>,
        spreading: Option<Spreading>,
        conditions: Conditions,
    ) -> Result<Self> {
        let started = kernel.now();
        let windows = Windows::new(kernel.policy()?);
        let connections = connections::Following::new(kernel.connections(&config)?);
        let mut world = World::new(&config);
        if connections.is_running() || kernel.admits_connections(&config) {
            world.mirror.admit_connections();
        }
        for event in observer.poll(Duration::ZERO).context("reading the kernel's state")? {
            world.observe(event);
        }
        // Building a generation fills it with everything, so this plan need not be applied.
        world.plan_all(started);
        let before = SavedTotals::read(&instance);
        let number = before.as_ref().map_or(0, |state| state.generation) + 1;
        let steerer = steerer(&config, &instance, &kernel, spreading, &world);
        let rows = steerer.is_some();
        let paths = match config.paths.is_empty() {
            true => None,
            false => Some(kernel.user_plane(&config)?),
        };
        let capacity = fitting(&world);
        let confirming = Confirming::start(&config)?;
        let asked = Before { paths: paths.as_ref(), rules: None, progress: confirming.beats.progress() };
        let generation = build(&mut kernel, &config, &world, capacity, number, asked, rows)?;
        let mut path_numbers = PathNumbers::default();
        path_numbers.number(&mut config.paths).map_err(|path| anyhow!("path {path} has no number"))?;
        let mut control = Control {
            config,
            totals: Totals::new(instance.state_file()),
            instance,
            started,
            kernel,
            observer,
            world,
            generation,
            confirming,
            windows,
            uses: super::neighbours::Uses::default(),
            finding: Finding::new(conditions),
            flows: Flows::new(switch),
            connections,
            paths: paths.map(Following::new),
            path_numbers,
            steerer,
            verifying: None,
            captures: Captures::default(),
            capturing: false,
            exports: Default::default(),
        };
        if let Some(paths) = &mut control.paths {
            paths.follow(&[], &control.config.paths);
        }
        control.follow_policy();
        control.read_policy_first();
        control.apply()?;
        control.settle_policy();
        // Classes are set before the program is attached, so that no packet slips past a path that must drop it.
        control.tell_paths();
        if let Some(why) = control.paths.as_ref().and_then(|paths| paths.condition.as_ref()) {
            bail!("{why}");
        }
        control.trust_ports(started);
        control.take_rules_of_file()?;
        control.follow_paths_unattached();
        let adopted = control.world.devices().any(|(_, device)| control.kernel.mode(&device).is_some());
        control.attach().map_err(|(_, error)| error)?;
        control.report_rules_of_file();
        control.follow_tables();
        control.want_paths();
        control.wait_for_paths();
        control.inherit(before);
        if let Err(error) = control.publish() {
            if !adopted {
                control.kernel.remove()?;
            }
            return Err(error);
        }
        control.steer_ports();
        Ok(control)
    }

    /// Makes the steerer follow the devices that are attached now.
    fn steer_ports(&mut self) {
        let Some(steerer) = &mut self.steerer else { return };
        let attached =
            self.world.ports.iter().filter_map(|(id, p)| Some((*id, p.name.as_str(), p.attached?)));
        steerer.follow(attached);
        self.generation.tables.set_steered(&steerer.steered());
    }

    /// Puts a generation with larger tables in charge if a table is full. Meanwhile the kernel serves what did not
    /// fit.
    pub(super) fn grow(&mut self, now: Duration) -> Result<()> {
        let Some(full) = self.generation.full else {
            self.generation.stuck = None;
            return Ok(());
        };
        if self.generation.stuck.as_ref().is_some_and(|stuck| now < stuck.again) {
            return Ok(());
        }
        let capacity = larger(self.generation.capacity, &full);
        let built = if bytes(&capacity) > limit(&self.config) {
            Err(format!("limits.memory_mib is {}", self.config.limits.memory_mib.0))
        } else {
            tracing::info!("{full}: moving to larger tables");
            let config = self.config.clone();
            let paths = self.paths.as_ref().map(|paths| paths.plane.clone());
            let built = self.next_generation(&config, paths.as_ref(), capacity);
            built.map_err(|error| format!("larger tables cannot be loaded: {error:#}"))
        };
        match built {
            Ok(new) => self.replace(new),
            Err(error) => {
                let why = format!("{full}; what does not fit is left to the kernel: {error}");
                self.generation.stuck = Some(Stuck { why, again: now + GROW_AGAIN });
                Ok(())
            }
        }
    }

    /// The generation after the one in charge, filled from the mirror.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub(super) fn next_generation(
        &mut self,
        config: &Config,
        paths: Option<&<K::Plane as FastPath>::UserPlane>,
        capacity: Capacity,
    ) -> Result<Generation<K::Plane>> {
        let number = self.generation.number + 1;
        let (rules, rows) = (self.flows.rules.as_ref(), self.steerer.is_some());
        let before = Before { paths, rules, progress: self.confirming.beats.progress() };
        build(&mut self.kernel, config, &self.world, capacity, number, before, rows)
    }

    /// Puts another generation in charge.
    pub(super) fn replace(&mut self, mut new: Generation<K::Plane>) -> Result<()> {
        if let Some(steerer) = &self.steerer {
            new.tables.set_steered(&steerer.steered());
        }
        let old = std::mem::replace(&mut self.generation, new);
        self.follow_paths_unattached();
        self.follow_tables();
        self.world.ports.values_mut().for_each(|p| p.attached = None);
        self.attach_what_goes()?;
        self.totals.absorb(&old.plane.counters()?);
        self.publish()
    }

    /// Chooses the program with or without paths in a generation that is about to be attached.
    pub(super) fn follow_paths_unattached(&mut self) {
        let rules = self.flows.rules.is_some();
        let some = self.paths.as_ref().is_some_and(|paths| paths.are_some(rules));
        self.generation.plane.follow_paths(some);
    }

    /// Makes workers read the tables of the generation in charge.
    fn follow_tables(&self) {
        if let Some(paths) = &self.paths {
            paths.plane.set_tables(self.generation.plane.memory());
        }
    }

    /// Leaves what the next daemon needs. The pins and the state file both have the generation's number. So whenever
    /// this process dies, the next one finds the counters that the state file is about.
    fn publish(&mut self) -> Result<()> {
        self.kernel.publish(&mut self.generation.plane, self.generation.number)?;
        self.remember_now();
        Ok(())
    }

    /// Attaches devices that came, detaches those that went, and otherwise checks the next port.
    pub(super) fn settle_ports(&mut self, now: Duration) -> Result<()> {
        let moved = self.world.ports.values().any(|p| p.wanted() != p.attached);
        if moved {
            for (id, port) in &self.world.ports {
                if let Some(old) = port.attached.filter(|old| port.wanted() != Some(*old)) {
                    self.generation.plane.clear_port(*id, old)?;
                }
            }
            self.attach_what_goes()?;
            self.steer_ports();
        } else if let Some(id) = self.world.next_check(now) {
            self.trust_port(id);
        }
        self.forget_ended()
    }

    /// Forgets ports that are not configured any more. The next owner of a number must not inherit its counters.
    fn forget_ended(&mut self) -> Result<()> {
        let ended = self.world.forget_ended();
        if !ended.is_empty() {
            self.totals.unsaved = true;
            self.totals.forget_ports(&ended, &self.generation.plane.counters()?);
        }
        Ok(())
    }

    /// Attaches to every device that does not refuse. One that refuses is reported, and the kernel serves its
    /// traffic.
    pub(super) fn attach_what_goes(&mut self) -> Result<()> {
        while let Err((id, error)) = self.attach() {
            let Some(port) = self.world.ports.get_mut(&id) else { break };
            let Some(ifindex) = port.wanted() else { break };
            port.refused = Some(Code::NotAttached.cause(format!("not attached: {error:#}")));
            self.generation.plane.clear_port(id, ifindex)?;
        }
        Ok(())
    }

    /// Puts the generation in charge of the existing devices. It is confirmed first, so that it forwards at once.
    pub(super) fn attach(&mut self) -> Result<(), (PortId, anyhow::Error)> {
        // It may take long. Until the new generation is confirmed below, the old one is.
        self.load_capture();
        let now = self.kernel.now();
        // Attached ports come first: after the swap, packets must find these ports as before.
        self.trust_ports(now);
        self.weigh();
        self.confirming.confirm(now, &self.generation.plane);
        self.confirming.beats.follow(self.generation.plane.heart());
        let (ids, devices): (Vec<_>, Vec<_>) = self.world.devices().unzip();
        self.kernel.attach(&self.generation.plane, &devices).map_err(|(i, error)| (ids[i], error))?;
        for port in self.world.ports.values_mut() {
            (port.attached, port.mode, port.note, port.transmits) = (None, None, None, false);
        }
        let mixed = !self.all_generic();
        for (id, device) in ids.iter().zip(devices) {
            if let Some(port) = self.world.ports.get_mut(id) {
                (port.attached, port.mode) = (Some(device.ifindex), self.kernel.mode(&device));
                port.note = self.kernel.note(&device.name);
                if let Some(note) = port.note.as_mut().filter(|_| mixed) {
                    note.push_str("; packets to it are sent by the kernel, as ports in native mode cannot redirect to it");
                }
            }
        }
        self.trust_ports(now);
        Ok(())
    }

    /// Sets in the program which devices are ports, and which of them are trusted.
    fn trust_ports(&mut self, now: Duration) {
        let ids: Vec<_> = self.world.ports.keys().copied().collect();
        ids.into_iter().for_each(|id| self.trust_port(id));
        self.world.checked.0 = now;
    }

    /// Is every port in generic mode? Then every driver sends redirected packets like any packet of the kernel.
    fn all_generic(&self) -> bool {
        self.world.devices().all(|(_, device)| self.kernel.mode(&device) == Some(Mode::Generic))
    }

    /// Checks a port. It gets its transmit slot only when it is attached and can transmit: a packet whose redirect
    /// fails is lost, while a packet for a port without a slot goes to the kernel, which has other ways to send it.
    fn trust_port(&mut self, id: PortId) {
        let all_generic = self.all_generic();
        let Some((_, device)) = self.world.devices().find(|(i, _)| *i == id) else { return };
        let Some(mode) = self.kernel.mode(&device) else { return };
        let mut found = self.observer.port_problems(id);
        let transmit = match mode {
            Mode::Native => !found.iter().any(|p| p.kind == ProblemKind::CannotTransmit),
            Mode::Generic => {
                // This problem is one of native mode.
                found.retain(|p| p.kind != ProblemKind::CannotTransmit);
                all_generic
            }
        };
        let ready = found.is_empty();
        let mut problems: Vec<Cause> = found.into_iter().map(Problem::cause).collect();
        let set = self.generation.plane.set_port(id, device.ifindex, ready, transmit);
        let transmits = transmit && set.is_ok();
        problems.extend(set.err().map(|error| Code::PortUnchecked.cause(format!("{error:#}"))));
        if let Some(port) = self.world.ports.get_mut(&id) {
            (port.problems, port.transmits) = (problems, transmits);
        }
    }

    /// Continues the counters of the daemon before this one, if it left any.
    fn inherit(&mut self, state: Option<SavedTotals>) {
        let Some(state) = state else { return };
        if let Some(counted) = self.kernel.previous(state.generation) {
            let names = self.world.names();
            self.totals.inherit(&state, &counted, &names);
        }
    }
}
