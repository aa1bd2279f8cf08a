//! Programs and maps in charge of the ports: the first, a larger one when a table is full, and the ports themselves.
//!
//! Starting, restarting, upgrading and growing are one operation: load a generation, fill it from the mirror, and only
//! then put it in charge of the ports, one atomic swap each. Until then whatever ran before goes on.

use super::{
    Control, Times,
    instance::Instance,
    reclaim::Reclaimer,
    seam::{Device, FastPath, Kernel, Observe},
    totals::{State, Totals},
    world::World,
};
use crate::{
    config::Config,
    ethtool::ProblemKind,
    plane::{Counters, Settings},
};
use anyhow::{Context, Result};
use logic::{
    memory::{Capacity, words},
    plan::{InterfaceId, Op, PortId},
    tables::{Epoch, Full, Region, Tables},
};
use std::{net::IpAddr, time::Duration};

/// How long it takes to look at all ports for reasons not to trust them.
const LOOK_AT_PORTS: Duration = Duration::from_secs(2);

/// Least sizes: a few MiB, enough for a router without a full table.
const FIRST: Capacity = Capacity {
    fib_blocks: 1 << 14,
    fib_tails: 1 << 16,
    nexthops: 1 << 14,
    neighbour_buckets: 1 << 12,
    interface_buckets: 1 << 11,
    routers: 256,
};
/// Interfaces a generation has counters for.
const INTERFACE_ROWS: u32 = 4096 + 1;

/// One generation, its tables, and what is not yet reused of them.
pub(super) struct Generation<P: FastPath> {
    pub plane: P,
    pub tables: Tables<P::Memory>,
    pub capacity: Capacity,
    /// Counts up from 1.
    pub number: u64,
    reclaimer: Reclaimer<Epoch>,
    /// Something was unpublished since the last epoch.
    dirty: bool,
    /// It cannot grow any more; said once.
    at_limit: bool,
}

impl<P: FastPath> Generation<P> {
    /// Applies what fits; returns the first table that was full.
    pub fn apply(&mut self, plan: impl Iterator<Item = Op>) -> Option<Full> {
        let mut full = None;
        for op in plan {
            self.dirty = true;
            if let Err(error) = self.tables.apply(&op) {
                full.get_or_insert(error);
            }
        }
        full
    }

    /// Lets the tables reuse what no running program can see any more; returns a table that is still full.
    pub fn reclaim(&mut self, now: Duration) -> Option<Full> {
        let full = self.reclaimer.passed().and_then(|epoch| self.tables.reclaim(epoch).err());
        if self.dirty && self.reclaimer.is_free(now) {
            self.dirty = false;
            self.reclaimer.begin(self.tables.seal(), now);
        }
        full
    }

    /// Is there space to be reused that is not yet?
    pub fn is_reclaiming(&self) -> bool {
        self.dirty || self.reclaimer.is_waiting()
    }

    pub fn confirm_until(&self, deadline: Duration) {
        self.plane.confirm_until(deadline);
    }

    pub fn counters(&self) -> Result<Counters> {
        self.plane.counters()
    }

    pub fn take_used(&mut self) -> Vec<(InterfaceId, IpAddr)> {
        self.tables.take_used()
    }
}

/// Sizes that what is there now will probably fit in; if not, [`build`] finds larger ones.
///
/// Measured: 200,000 random prefixes of /16 to /24 take 48,000 blocks and 7,000 tails; a big table's root takes 65,536
/// more (`logic::fib`).
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
    // Half full at most, so that few find both their buckets full.
    c.neighbour_buckets =
        c.neighbour_buckets.max((neighbours * 2 / words::NEIGHBOUR_BUCKET).next_power_of_two());
    c
}

/// Bytes all tables of these sizes take.
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
    // What did not fit is only the first of what is missing.
    *rows = (*rows * 2).max((*rows + full.rows).next_power_of_two());
    c
}

/// Loads a generation and fills it from the mirror, in larger and larger sizes until everything fits or the limit is
/// reached.
fn build<K: Kernel>(
    kernel: &mut K,
    config: &Config,
    world: &World,
    mut capacity: Capacity,
    number: u64,
) -> Result<Generation<K::Plane>> {
    let limit = config.limits.memory_mib.0 as usize * (1 << 20);
    loop {
        let settings = Settings {
            capacity,
            interface_rows: INTERFACE_ROWS,
            sample_interval: config.sampling.every_packets.0,
            exception_pps: config.policing.exception_pps.0,
            control_pps: config.policing.control_pps.0,
        };
        let plane = kernel.load(settings)?;
        let mut generation = Generation {
            tables: Tables::new(plane.memory()),
            plane,
            capacity,
            number,
            reclaimer: Reclaimer::start(kernel.grace()?)?,
            dirty: false,
            at_limit: false,
        };
        let Some(full) = generation.apply(world.everything()) else { return Ok(generation) };
        let next = larger(capacity, &full);
        if bytes(&next) > limit {
            tracing::warn!(
                "{full} at limits.memory_mib = {}: what does not fit is left to the kernel",
                config.limits.memory_mib.0
            );
            generation.at_limit = true;
            return Ok(generation);
        }
        capacity = next;
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Observes everything, fills a generation and puts it in charge; on an error everything is as it was.
    pub fn start(config: Config, instance: Instance, mut kernel: K, mut observer: O) -> Result<Self> {
        let started = kernel.now();
        let mut world = World::new(&config);
        for event in observer.poll(Duration::ZERO).context("reading the kernel's state")? {
            world.observe(event);
        }
        // A generation is filled with everything there is, so the plan towards it is carried out by building one.
        world.plan();
        let before = State::read(&instance);
        let number = before.as_ref().map_or(0, |state| state.generation) + 1;
        let generation = build(&mut kernel, &config, &world, fitting(&world), number)?;
        let mut control = Control {
            config,
            kernel,
            observer,
            world,
            generation,
            totals: Totals::default(),
            trouble: None,
            quiet: false,
            verifying: None,
            unremembered: true,
            times: Times { started, ..Times::default() },
            instance,
            next_port: 0,
        };
        control.attach().map_err(|(_, error)| error)?;
        control.inherit(before);
        control.kernel.publish(&mut control.generation.plane)?;
        Ok(control)
    }

    /// A table is full: puts a generation with a larger one in charge. What did not fit is meanwhile left to the kernel.
    pub(super) fn grow(&mut self, full: &Full) -> Result<()> {
        if self.generation.at_limit {
            return Ok(());
        }
        let capacity = larger(self.generation.capacity, full);
        if bytes(&capacity) > self.config.limits.memory_mib.0 as usize * (1 << 20) {
            tracing::warn!(
                "{full} and limits.memory_mib is {}: what does not fit is left to the kernel",
                self.config.limits.memory_mib.0
            );
            self.generation.at_limit = true;
            return Ok(());
        }
        tracing::info!("{full}: moving to larger tables");
        let number = self.generation.number + 1;
        let new = match build(&mut self.kernel, &self.config, &self.world, capacity, number) {
            Ok(new) => new,
            Err(error) => {
                tracing::error!(
                    "cannot load larger tables, what does not fit is left to the kernel: {error:#}"
                );
                self.generation.at_limit = true;
                return Ok(());
            }
        };
        let old = std::mem::replace(&mut self.generation, new);
        self.world.ports.values_mut().for_each(|p| p.attached = None);
        self.attach_what_goes();
        self.kernel.publish(&mut self.generation.plane)?;
        self.totals.absorb(&old.counters()?);
        self.unremembered = true;
        Ok(())
    }

    /// Follows devices that came or went, and what is known of them.
    pub(super) fn settle_ports(&mut self, now: Duration) -> Result<()> {
        let moved = self.world.ports.values().any(|p| p.wanted() != p.attached);
        if moved {
            for (id, port) in &self.world.ports {
                if let Some(old) = port.attached.filter(|old| port.wanted() != Some(*old)) {
                    self.generation.plane.clear_port(*id, old)?;
                }
            }
            self.attach_what_goes();
        } else {
            self.trust_next_port(now);
        }
        Ok(())
    }

    /// Attaches to every device that lets us; one that does not is reported, and its traffic is the kernel's.
    fn attach_what_goes(&mut self) {
        while let Err((id, error)) = self.attach() {
            let Some(port) = self.world.ports.get_mut(&id).filter(|p| p.refused.is_none()) else { return };
            tracing::error!("port {}: {error:#}", port.name);
            port.refused = Some(format!("not attached: {error:#}"));
        }
    }

    /// Puts the generation in charge of the devices that are there. Confirmed before, so that it forwards at once.
    fn attach(&mut self) -> Result<(), (PortId, anyhow::Error)> {
        let now = self.kernel.now();
        self.trust_ports(now);
        if self.trouble.is_none() {
            self.generation.confirm_until(now + self.config.heartbeat.0);
            self.times.confirmed = Some(now);
        }
        let present = self.world.ports.iter().filter_map(|(id, p)| Some((*id, p.name.clone(), p.wanted()?)));
        let (ids, devices): (Vec<_>, Vec<_>) =
            present.map(|(id, name, ifindex)| (id, Device { name, ifindex })).unzip();
        let modes =
            self.kernel.attach(&self.generation.plane, &devices).map_err(|(i, error)| (ids[i], error))?;
        for port in self.world.ports.values_mut() {
            (port.attached, port.mode, port.note) = (None, None, None);
        }
        for ((id, device), mode) in ids.iter().zip(devices).zip(modes) {
            if let Some(port) = self.world.ports.get_mut(id) {
                (port.attached, port.mode) = (Some(device.ifindex), Some(mode));
                port.note = self.kernel.note(&device.name);
            }
        }
        Ok(())
    }

    /// Tells the program which devices are ports, and which of those may be trusted.
    fn trust_ports(&mut self, now: Duration) {
        let ids: Vec<_> = self.world.ports.keys().copied().collect();
        ids.into_iter().for_each(|id| self.trust_port(id));
        self.times.looked_at_port = now;
    }

    pub(super) fn next_look_at_ports(&self) -> Duration {
        self.times.looked_at_port + LOOK_AT_PORTS / self.world.ports.len().max(1) as u32
    }

    /// Looks at one port after the other: a look takes milliseconds, and routes should not wait for all of them.
    fn trust_next_port(&mut self, now: Duration) {
        let ports = self.world.ports.len().max(1);
        if now < self.next_look_at_ports() {
            return;
        }
        self.times.looked_at_port = now;
        self.next_port = (self.next_port + 1) % ports;
        if let Some(id) = self.world.ports.keys().nth(self.next_port).copied() {
            self.trust_port(id);
        }
    }

    fn trust_port(&mut self, id: PortId) {
        let Some(port) = self.world.ports.get_mut(&id) else { return };
        let Some(ifindex) = port.wanted() else { return };
        let found = self.observer.port_problems(id);
        let ready = found.is_empty();
        // Without a transmit slot packets go to the kernel, which knows other ways out than a redirect.
        let transmit = !found.iter().any(|p| p.kind == ProblemKind::CannotTransmit);
        let mut problems: Vec<String> = found.into_iter().map(|p| p.text).collect();
        if let Err(error) = self.generation.plane.set_port(id, ifindex, ready, transmit) {
            problems.push(format!("{error:#}"));
        }
        if problems != port.problems {
            problems.iter().for_each(|p| tracing::warn!("port {}: {p}", port.name));
            if problems.is_empty() {
                tracing::info!("port {}: no more problems", port.name);
            }
            port.problems = problems;
        }
    }

    /// Continues the counters of the daemon before this one, if it left any.
    fn inherit(&mut self, state: Option<State>) {
        if let (Some(state), Some(counted)) = (state, self.kernel.previous()) {
            let names = self.world.names();
            self.totals.inherit(&state, &counted, &names);
        }
    }
}
