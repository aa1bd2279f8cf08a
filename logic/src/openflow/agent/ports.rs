//! Ports: their messages to controllers, and what controllers may set. Paths of the user plane are logical ports.

use super::{Agent, ConnectionId, Effect, Outside};
use crate::{
    flow::{RulePort, kernel::FlowMemory, table::PathPort},
    net::Mac,
    openflow::{
        BadMessage, Message,
        message::{PortConfig, PortDescription, PortFeatures, PortMod, PortReason, PortState, PortStats},
    },
};
use std::collections::{BTreeMap, BTreeSet};

/// A port, as the caller knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// A real port.
    pub port: RulePort,
    pub name: String,
    pub mac: Mac,
    pub link_up: bool,
    pub admin_up: bool,
    /// Frames can be redirected to it. Otherwise user space sends them.
    pub transmits: bool,
    /// `None`: unknown.
    pub speed_mbps: Option<u32>,
}

/// The settings of a port that a controller made, except OFPPC_PORT_DOWN, which is [`PortInfo::admin_up`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortFlags {
    /// Received packets are dropped.
    pub no_recv: bool,
    /// Packets sent to this port are dropped.
    pub no_fwd: bool,
    /// FLOOD leaves this port out (1.0).
    pub no_flood: bool,
    /// Received packets cause no packet-ins.
    pub no_packet_in: bool,
}

/// OFPPC bits that can be set. 1.3 has no NO_FLOOD; its codec ensures that.
const SETTABLE: u32 = PortConfig::DOWN
    | PortConfig::NO_RECV
    | PortConfig::NO_FLOOD
    | PortConfig::NO_FWD
    | PortConfig::NO_PACKET_IN;

impl PortFlags {
    fn config(self) -> u32 {
        let bits = [
            (self.no_recv, PortConfig::NO_RECV),
            (self.no_fwd, PortConfig::NO_FWD),
            (self.no_flood, PortConfig::NO_FLOOD),
            (self.no_packet_in, PortConfig::NO_PACKET_IN),
        ];
        bits.iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum()
    }

    fn of(config: u32) -> PortFlags {
        let has = |bit| config & bit != 0;
        PortFlags {
            no_recv: has(PortConfig::NO_RECV),
            no_fwd: has(PortConfig::NO_FWD),
            no_flood: has(PortConfig::NO_FLOOD),
            no_packet_in: has(PortConfig::NO_PACKET_IN),
        }
    }
}

#[derive(Debug)]
struct Entry {
    info: PortInfo,
    flags: PortFlags,
}

impl Entry {
    fn config(&self) -> u32 {
        self.flags.config() | if self.info.admin_up { 0 } else { PortConfig::DOWN }
    }

    fn is_live(&self) -> bool {
        self.info.link_up && self.info.admin_up
    }

    fn description(&self) -> PortDescription {
        let speed = features(self.info.speed_mbps);
        let kbps = self.info.speed_mbps.map_or(0, |mbps| mbps.saturating_mul(1000));
        PortDescription {
            port: self.info.port,
            mac: self.info.mac,
            name: self.info.name.clone().into_bytes(),
            config: PortConfig(self.config()),
            state: PortState { link_down: !self.info.link_up, live: self.is_live(), ..PortState::default() },
            current: speed,
            advertised: PortFeatures(0),
            supported: speed,
            peer: PortFeatures(0),
            current_speed: kbps,
            max_speed: kbps,
        }
    }
}

/// OFPPF, full duplex.
fn features(speed_mbps: Option<u32>) -> PortFeatures {
    PortFeatures(match speed_mbps {
        None => 0,
        Some(10) => 1 << 1,
        Some(100) => 1 << 3,
        Some(1_000) => 1 << 5,
        Some(10_000) => 1 << 6,
        Some(40_000) => 1 << 7,
        Some(100_000) => 1 << 8,
        Some(1_000_000) => 1 << 9,
        // OFPPF_OTHER.
        Some(_) => 1 << 10,
    })
}

/// A path of the user plane: a logical port (OpenFlow 1.3.5 section 4.4), [`RulePort::of_path`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathInfo {
    pub path: PathPort,
    /// A worker takes its packets.
    pub has_worker: bool,
}

impl PathInfo {
    /// A path has no device: no MAC address and no settings. Its link is up while it has a worker. ALL and FLOOD leave it
    /// out, and 1.0 has a bit for that.
    fn description(&self, port: RulePort) -> PortDescription {
        let none = PortFeatures(0);
        PortDescription {
            port,
            mac: Mac::default(),
            name: format!("path:{}", self.path.name).into_bytes(),
            config: PortConfig(PortConfig::NO_FLOOD),
            state: PortState { link_down: !self.has_worker, live: self.has_worker, ..PortState::default() },
            current: none,
            advertised: none,
            supported: none,
            peer: none,
            current_speed: 0,
            max_speed: 0,
        }
    }
}

/// The existing ports.
#[derive(Debug, Default)]
pub(super) struct Ports {
    real: BTreeMap<RulePort, Entry>,
    /// Logical ports.
    paths: BTreeMap<u16, PathInfo>,
}

impl Ports {
    /// Is there a real port with this number?
    pub fn has(&self, port: RulePort) -> bool {
        self.real.contains_key(&port)
    }

    /// Do controllers know this port?
    pub fn are_told(&self, port: RulePort) -> bool {
        self.has(port) || self.logical(port).is_some()
    }

    fn logical(&self, port: RulePort) -> Option<&PathInfo> {
        self.paths.get(&port.path()?)
    }

    /// Does a port have this MAC address?
    pub fn has_mac(&self, mac: &[u8]) -> bool {
        self.real.values().any(|entry| entry.info.mac.0 == mac)
    }

    pub fn flags(&self, port: RulePort) -> PortFlags {
        self.real.get(&port).map_or(PortFlags::default(), |entry| entry.flags)
    }

    pub fn descriptions(&self) -> impl Iterator<Item = PortDescription> + '_ {
        let logical =
            self.paths.iter().filter_map(|(&id, path)| Some(path.description(RulePort::of_path(id)?)));
        self.real.values().map(Entry::description).chain(logical)
    }

    fn without_flood(&self) -> BTreeSet<RulePort> {
        self.real.iter().filter(|(_, entry)| entry.flags.no_flood).map(|(&port, _)| port).collect()
    }

    fn deaf(&self) -> BTreeSet<RulePort> {
        self.real.iter().filter(|(_, entry)| !entry.info.transmits).map(|(&port, _)| port).collect()
    }

    fn live(&self) -> impl Iterator<Item = (RulePort, bool)> + '_ {
        self.real.iter().map(|(&port, entry)| (port, entry.is_live()))
    }
}

impl<M: FlowMemory> Agent<M> {
    /// Sets the existing ports. The settings of a controller stay while the port exists under the same name.
    pub fn set_ports(&mut self, ports: Vec<PortInfo>) {
        let mut old = std::mem::take(&mut self.ports.real);
        let mut told = Vec::new();
        for info in ports {
            let before = old.remove(&info.port).filter(|entry| entry.info.name == info.name);
            let flags = before.as_ref().map_or(PortFlags::default(), |entry| entry.flags);
            let entry = Entry { info, flags };
            match before.map(|entry| entry.description()) {
                None => told.push((PortReason::Add, entry.description())),
                Some(was) if was != entry.description() => {
                    told.push((PortReason::Modify, entry.description()));
                }
                Some(_) => {}
            }
            self.ports.real.insert(entry.info.port, entry);
        }
        let gone = old.into_values().map(|entry| (PortReason::Delete, entry.description()));
        let gone: Vec<_> = gone.filter(|(_, port)| !self.ports.has(port.port)).collect();
        self.publish_ports();
        for (reason, port) in gone.into_iter().chain(told) {
            self.tell_port(None, reason, &port);
        }
    }

    /// Sets the existing paths. Rules may send packets to them, and controllers get the changes of their ports.
    pub fn set_paths(&mut self, paths: BTreeMap<u16, PathInfo>) {
        self.flows.set_paths(paths.iter().map(|(id, of)| (*id, of.path.clone())).collect());
        let old = std::mem::replace(&mut self.ports.paths, paths);
        let now = &self.ports.paths;
        let mut told = Vec::new();
        let ids: BTreeSet<u16> = old.keys().chain(now.keys()).copied().collect();
        for (id, port) in ids.into_iter().filter_map(|id| Some((id, RulePort::of_path(id)?))) {
            match (old.get(&id), now.get(&id)) {
                (Some(before), None) => told.push((PortReason::Delete, before.description(port))),
                (Some(before), Some(path)) if before.path.name == path.path.name => {
                    if before.has_worker != path.has_worker {
                        told.push((PortReason::Modify, path.description(port)));
                    }
                }
                (_, Some(path)) => told.push((PortReason::Add, path.description(port))),
                (None, None) => {}
            }
        }
        told.iter().for_each(|(reason, port)| self.tell_port(None, *reason, port));
    }

    /// Publishes which ports exist, are live and flood, for groups and for packets that user space handles.
    fn publish_ports(&mut self) {
        self.flows.set_ports(self.ports.live());
        self.flows.set_no_flood(&self.ports.without_flood());
        self.flows.set_deaf(self.ports.deaf());
    }

    /// Sends the change of a port to every connection that wants it, except the one that made it: before 1.5, a port-mod
    /// gets no such reply.
    fn tell_port(&mut self, by: Option<ConnectionId>, reason: PortReason, port: &PortDescription) {
        let wants = self.connections.iter().filter(|(_, c)| c.wants(c.wants.port_status, reason as u32));
        let ids: Vec<ConnectionId> = wants.map(|(&id, _)| id).filter(|&id| Some(id) != by).collect();
        let message = Message::PortStatus { reason, port: port.clone() };
        ids.into_iter().for_each(|id| self.tell(id, 0, &message));
    }

    /// Changes the settings of a port. The caller takes the port up or down; the agent assumes that it succeeds.
    pub(super) fn port_mod(&mut self, id: ConnectionId, change: &PortMod) -> Result<(), BadMessage> {
        if let Some(path) = self.ports.logical(change.port) {
            return unchanged(&path.description(change.port), change);
        }
        let entry = self.ports.real.get_mut(&change.port).ok_or(BadMessage::Port)?;
        if entry.info.mac != change.mac {
            return Err(BadMessage::PortAddress);
        }
        if change.config.0 & change.mask.0 & !SETTABLE != 0 {
            return Err(BadMessage::PortConfig);
        }
        // The agent cannot change what a port advertises. No bits mean no change.
        if change.advertise != PortFeatures(0) {
            return Err(BadMessage::PortAdvertise);
        }
        let before = entry.config();
        let config = before & !change.mask.0 | change.config.0 & change.mask.0;
        if config == before {
            return Ok(());
        }
        entry.flags = PortFlags::of(config);
        let up = config & PortConfig::DOWN == 0;
        if up != entry.info.admin_up {
            entry.info.admin_up = up;
            self.effects.push(Effect::ConfigurePort { port: change.port, up });
        }
        let description = entry.description();
        self.publish_ports();
        self.tell_port(Some(id), PortReason::Modify, &description);
        Ok(())
    }

    /// Counters of one port; [`RulePort::NONE`] means all ports.
    pub(super) fn port_stats(
        &self,
        port: RulePort,
        outside: &dyn Outside,
    ) -> Result<Vec<PortStats>, BadMessage> {
        if port != RulePort::NONE && !self.ports.are_told(port) {
            return Err(BadMessage::Port);
        }
        let mut stats = outside.port_stats();
        stats
            .retain(|of| if port == RulePort::NONE { self.ports.are_told(of.port) } else { of.port == port });
        Ok(stats)
    }
}

/// Accepts a change only if it changes nothing: a logical port has no settings.
fn unchanged(port: &PortDescription, change: &PortMod) -> Result<(), BadMessage> {
    if port.mac != change.mac {
        return Err(BadMessage::PortAddress);
    }
    if (port.config.0 ^ change.config.0) & change.mask.0 != 0 {
        return Err(BadMessage::PortConfig);
    }
    if change.advertise != PortFeatures(0) { Err(BadMessage::PortAdvertise) } else { Ok(()) }
}
