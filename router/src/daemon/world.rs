//! The observed state, and the decisions that follow from it.

use super::{ledger::Ledger, totals::Names};
use crate::{
    base::{PortName, foreign::Quoted},
    config::{
        Config,
        ports::{self, NumberedPorts, UsedNumbers},
    },
    plane::Mode,
    user_plane::seam::Device,
};
use logic::{
    cause::{Cause, Code},
    mirror::{InterfaceView, Limits, Mirror},
    observe::{AttachedPort, Event, Namespace, NamespaceId},
    plan::{Op, PortId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// The mirror, and what else is needed to fill another generation.
pub struct World {
    pub mirror: Mirror,
    pub ledger: Ledger,
    pub ports: BTreeMap<PortId, PortState>,
    used: UsedNumbers,
    /// When ports were last checked, and the place of the last one among them.
    pub checked: (Duration, usize),
    /// Namespaces, as the observer has announced them.
    pub namespaces: BTreeMap<NamespaceId, Namespace>,
}

/// The time in which each port is checked once for reasons not to trust it.
const CHECK_PORTS: Duration = Duration::from_secs(2);

/// A configured port.
#[derive(Clone, Debug, Default)]
pub struct PortState {
    pub name: String,
    /// `None`: the device is not there.
    pub device: Option<AttachedPort>,
    /// Whether its link is up; `None`: the link is gone, and `device` will soon be `None`.
    pub up: Option<bool>,
    /// The index of the device to which the program in charge is attached.
    pub attached: Option<u32>,
    pub mode: Option<Mode>,
    /// Why it is in generic mode.
    pub note: Option<String>,
    /// Why it is not attached.
    pub refused: Option<Cause>,
    /// Why its packets are not trusted.
    pub problems: Vec<Cause>,
    /// Packets may be redirected to it.
    pub transmits: bool,
    /// The port is no longer configured. It is forgotten once its device is detached.
    pub ends: bool,
}

impl PortState {
    fn new(name: &PortName) -> PortState {
        PortState { name: name.to_string(), ..PortState::default() }
    }

    /// Why no packet that arrives here is accelerated; empty: the port is trusted.
    pub fn obstacles(&self) -> Vec<Cause> {
        let down = match (&self.device, self.up) {
            (None, _) => return vec![Code::DeviceMissing.cause("the device is not there")],
            (Some(_), None) => return vec![Code::DeviceMissing.cause("the device is gone")],
            (Some(_), Some(up)) => {
                let text = || format!("the port is down (ip link set dev {} up)", Quoted(&self.name));
                (!up).then(|| Code::PortDown.cause(text()))
            }
        };
        let all = down.into_iter().chain(self.refused.clone()).chain(self.problems.iter().cloned());
        let all: Vec<_> = all.collect();
        if all.is_empty() && self.attached.is_none() {
            vec![Code::NotAttached.cause("not attached yet")]
        } else {
            all
        }
    }

    /// That the port is not trusted; `None`: it is trusted.
    fn distrust(&self) -> Option<Cause> {
        let trusted = self.obstacles().is_empty();
        let text = || format!("port {} is not trusted, see `millrace ports`", self.name);
        (!trusted).then(|| Code::PortNotTrusted.cause(text()))
    }

    /// The index of the device to attach to.
    pub fn wanted(&self) -> Option<u32> {
        self.device.as_ref().map(|d| d.ifindex).filter(|_| self.refused.is_none())
    }
}

impl World {
    /// A state with the configured ports, in which nothing is observed yet.
    pub fn new(config: &Config) -> Self {
        let ports = ports::first(&config.ports);
        let mut used = UsedNumbers::default();
        used.add(&ports);
        let port = |(id, name): (PortId, PortName)| (id, PortState::new(&name));
        let ports = ports.into_iter().map(port);
        Self {
            mirror: Mirror::new(Limits::default()),
            ledger: Ledger::default(),
            ports: ports.collect(),
            used,
            checked: Default::default(),
            namespaces: BTreeMap::new(),
        }
    }

    /// Each port that there has been since the start, with its number.
    pub fn used_numbers(&self) -> impl Iterator<Item = (PortId, &PortName)> {
        self.used.iter()
    }

    /// The configured ports, by number.
    fn numbered_ports(&self) -> NumberedPorts {
        let configured = self.ports.iter().filter(|(_, port)| !port.ends);
        configured.filter_map(|(id, port)| Some((*id, port.name.parse().ok()?))).collect()
    }

    /// Numbers another list of ports.
    ///
    /// # Errors
    /// No number is free for this port until the device of a port that is gone is detached.
    pub fn number(&self, ports: &[PortName]) -> Result<NumberedPorts, PortName> {
        self.used.number(ports, &self.numbered_ports(), &self.ports.keys().copied().collect())
    }

    /// Follows another list of ports. A port that is not in it is forgotten once its device is detached.
    pub fn set_ports(&mut self, ports: &NumberedPorts) {
        for (id, port) in &mut self.ports {
            port.ends |= ports.get(id).is_none_or(|name| name.as_str() != port.name);
        }
        for (id, name) in ports {
            self.ports.entry(*id).or_insert_with(|| PortState::new(name));
        }
        self.used.add(ports);
    }

    /// Forgets ports that end and have no device any more. Returns their numbers.
    pub fn forget_ended(&mut self) -> Vec<PortId> {
        let is_over = |port: &PortState| port.ends && port.device.is_none() && port.attached.is_none();
        let over = self.ports.iter().filter(|(_, port)| is_over(port)).map(|(id, _)| *id).collect();
        self.ports.retain(|_, port| !is_over(port));
        over
    }

    /// Takes one event in.
    pub fn observe(&mut self, event: Event) {
        match &event {
            Event::Port(id, port) => self.set_device(*id, Some(port.clone())),
            Event::PortGone(id) => self.set_device(*id, None),
            Event::Namespace(id, namespace) => drop(self.namespaces.insert(*id, namespace.clone())),
            Event::NamespaceGone(id) => drop(self.namespaces.remove(id)),
            _ => {}
        }
        let links = matches!(
            &event,
            Event::Link(..) | Event::LinkGone(..) | Event::Dump(..) | Event::Port(..) | Event::PortGone(..)
        );
        self.mirror.observe(event);
        if links {
            self.look_at_links();
        }
    }

    fn look_at_links(&mut self) {
        for port in self.ports.values_mut() {
            port.up = port.device.as_ref().and_then(|d| self.mirror.is_up(d.namespace, d.ifindex));
        }
    }

    fn set_device(&mut self, id: PortId, device: Option<AttachedPort>) {
        if let Some(port) = self.ports.get_mut(&id) {
            (port.device, port.refused) = (device, None);
        }
    }

    /// When to check the next port.
    pub fn check_due(&self) -> Duration {
        self.checked.0 + CHECK_PORTS / self.ports.len().max(1) as u32
    }

    /// The port to check now; `None`: it is too early. A check takes milliseconds, and routes should not wait for all
    /// ports.
    pub fn next_check(&mut self, now: Duration) -> Option<PortId> {
        if now < self.check_due() {
            return None;
        }
        self.checked = (now, (self.checked.1 + 1) % self.ports.len().max(1));
        self.ports.keys().nth(self.checked.1).copied()
    }

    /// The devices to attach to, by port.
    pub fn devices(&self) -> impl Iterator<Item = (PortId, Device)> {
        self.ports
            .iter()
            .filter_map(|(id, p)| Some((*id, Device { name: p.name.clone(), ifindex: p.wanted()? })))
    }

    /// Ports by the routers that have an interface on them.
    pub fn ports_of_routers(&self) -> BTreeMap<NamespaceId, BTreeSet<PortId>> {
        let mut used: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for interface in self.mirror.interfaces() {
            used.entry(interface.namespace).or_default().insert(interface.port);
        }
        used
    }

    /// Why no trusted port serves a router with interfaces on these ports. Empty: at least one is trusted.
    pub fn port_obstacles(&self, used: Option<&BTreeSet<PortId>>) -> Vec<Cause> {
        let Some(used) = used else { return vec![Code::NoInterface.cause("it has no device on a port")] };
        let ports: Vec<_> =
            used.iter().filter_map(|id| self.ports.get(id)).map(PortState::distrust).collect();
        if ports.contains(&None) { Vec::new() } else { ports.into_iter().flatten().collect() }
    }

    /// The links that are or could be interfaces, as the mirror sees them. Those on a port that is not trusted have
    /// this as a further reason.
    pub fn interfaces(&self) -> impl Iterator<Item = InterfaceView> {
        let distrust: BTreeMap<PortId, Cause> =
            self.ports.iter().filter_map(|(id, port)| Some((*id, port.distrust()?))).collect();
        self.mirror.interfaces().map(move |mut interface| {
            if let Some(why) = distrust.get(&interface.port) {
                (interface.ipv4, interface.ipv6) = (false, false);
                interface.reasons4.push(why.clone());
                interface.reasons6.push(why.clone());
            }
            interface
        })
    }

    /// Plans everything that waits, before tables are built from it. `now`: CLOCK_MONOTONIC.
    pub fn plan_all(&mut self, now: Duration) {
        self.plan(now);
        while self.mirror.is_behind() {
            self.plan(now);
        }
    }

    /// The changes since the last call. Routes may wait for the next call ([`Mirror::is_behind`]). `now`:
    /// CLOCK_MONOTONIC.
    pub fn plan(&mut self, now: Duration) -> Vec<Op> {
        self.mirror.pass_time(now);
        let plan = self.mirror.plan();
        self.ledger.note(&plan);
        plan
    }

    /// A plan from nothing to the present state.
    pub fn everything(&self) -> impl Iterator<Item = Op> + '_ {
        self.ledger.everything(&self.mirror)
    }

    /// The names of ports, routers and interfaces, by number.
    pub fn names(&self) -> Names {
        let routers: BTreeMap<_, _> = self.mirror.routers().map(|r| (r.namespace, r)).collect();
        let interface =
            |i: InterfaceView| Some((i.interface?, (routers.get(&i.namespace)?.name.clone(), i.name)));
        Names {
            ports: self.ports.iter().map(|(id, p)| (*id, p.name.clone())).collect(),
            interfaces: self.mirror.interfaces().filter_map(interface).collect(),
            routers: routers.into_values().filter_map(|r| Some((r.router?, r.name))).collect(),
        }
    }
}
