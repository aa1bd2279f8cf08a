//! The state that people see, as of the last plan.

use super::{Held, Mirror, reconcile::Standing};
use crate::{
    cause::{Cause, Code},
    firewall::{ruleset::Firewall, traffic::Device},
    net::{Mac, Vlan},
    observe::{Link, NamespaceId},
    plan::{InterfaceId, PortId, RouterId},
};
use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

/// A namespace and its router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterView {
    pub namespace: NamespaceId,
    /// Like [`Namespace::name`](crate::observe::Namespace::name).
    pub name: String,
    /// It holds the ports themselves.
    pub host: bool,
    /// The configuration names it.
    pub configured: bool,
    /// `None`: it is not a router, or no number was free.
    pub router: Option<RouterId>,
    /// Why its IPv4 stays with the kernel, as sentences. Empty: it is accelerated.
    pub ipv4: Vec<Cause>,
    /// The same for IPv6.
    pub ipv6: Vec<Cause>,
    /// Rules of its firewall may affect some packets of IPv4 and IPv6, but not all.
    pub ruled: [bool; 2],
}

/// What decides about the connections of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRules {
    pub namespace: NamespaceId,
    pub name: String,
    pub router: RouterId,
    /// It changes with the rules, and with devices that existed before.
    pub generation: u32,
    pub firewall: Arc<Firewall>,
    pub devices: BTreeMap<InterfaceId, Device>,
}

/// What is known about the rules of a router's firewall, for one IP version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesView {
    /// The names of the devices of each group. Rules treat the devices of a group alike.
    pub groups: BTreeMap<u8, Vec<String>>,
    pub pairs: Vec<PairView>,
    /// Addresses about whose packets Linux decides in any case.
    pub exceptions: Vec<String>,
}

/// What holds for packets from one group of devices to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairView {
    pub from: u8,
    pub to: u8,
    /// Why they go to Linux; `None`: they are fast.
    pub why_not: Option<Cause>,
    /// `None`: all packets are fast, or connections are not.
    pub established: Option<Established>,
}

/// What rules mean for packets of established connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Established {
    /// All rules accept them.
    Accepted,
    /// This rule may affect some of them, so each connection is checked with its addresses.
    Checked(String),
}

/// A link that is, or could be, an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceView {
    pub namespace: NamespaceId,
    pub name: String,
    pub ifindex: u32,
    /// `None`: left to the kernel altogether. The reasons explain it.
    pub interface: Option<InterfaceId>,
    pub port: PortId,
    pub vlan: Vlan,
    pub mac: Mac,
    /// IPv4 packets that arrive here are accelerated: neither the interface nor its router has a reason
    /// against it.
    pub ipv4: bool,
    /// The same for IPv6.
    pub ipv6: bool,
    /// Packets may leave here on the fast path.
    pub transmit: bool,
    /// Its own reasons against IPv4, as sentences; its router may have others.
    pub reasons4: Vec<Cause>,
    /// The same for IPv6.
    pub reasons6: Vec<Cause>,
}

/// A neighbour whose MAC address is known, and where it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourView {
    pub namespace: NamespaceId,
    pub ifindex: u32,
    pub address: IpAddr,
    pub mac: Mac,
    /// `NUD_STALE`.
    pub stale: bool,
}

/// A neighbour in the state `NUD_STALE`, and where it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaleNeighbour {
    pub namespace: NamespaceId,
    pub ifindex: u32,
    pub interface: InterfaceId,
    pub address: IpAddr,
}

impl Mirror {
    /// Changes whenever [`Mirror::routers`] or [`Mirror::interfaces`] may have changed.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether a link is up. `None`: there is no such link.
    pub fn is_up(&self, namespace: NamespaceId, ifindex: u32) -> Option<bool> {
        Some(self.link(namespace, ifindex)?.up)
    }

    /// A link as observed.
    pub fn link(&self, namespace: NamespaceId, ifindex: u32) -> Option<&Link> {
        self.spaces.get(&namespace)?.links.get(&ifindex)
    }

    /// All known namespaces, as of the last plan.
    pub fn routers(&self) -> impl Iterator<Item = RouterView> {
        self.spaces.iter().map(|(namespace, space)| {
            let [mut ipv4, mut ipv6] = space.reasons();
            let wants = self.standings.iter().any(|s| s.shape.link.0 == *namespace);
            let missing = match &space.router {
                Some(_) => None,
                None if !space.dumped => Some(Code::NotReadYet.cause("the namespace has not been read yet")),
                None if wants => Some(space.shortage.of("routers")),
                None => Some(Code::NoInterface.cause("it has no interface on a port")),
            };
            ipv4.extend(missing.clone());
            ipv6.extend(missing);
            RouterView {
                namespace: *namespace,
                name: space.about.name.clone(),
                host: space.about.host,
                configured: space.about.configured,
                router: space.router.as_ref().map(|router| router.id),
                ipv4,
                ipv6,
                ruled: space.rules.affect_some(),
            }
        })
    }

    /// May a chain of a namespace be bound to a device? Such a chain sees the packets of all routers.
    pub fn may_have_device_chains(&self, namespace: NamespaceId) -> bool {
        self.spaces.get(&namespace).is_none_or(|space| {
            let firewall = &space.settings.firewall;
            firewall.translated.is_none() || firewall.rules.has_device_chains()
        })
    }

    /// The rules of a namespace's firewall, for IPv4 and IPv6. `None`: there are none.
    pub fn rules(&self, namespace: NamespaceId) -> [Option<RulesView>; 2] {
        self.spaces.get(&namespace).map(|space| space.rules.views()).unwrap_or_default()
    }

    /// What decides about connections, for each router of which some may be fast.
    pub fn connection_rules(&self) -> impl Iterator<Item = ConnectionRules> {
        self.spaces.iter().filter_map(|(namespace, space)| {
            let router = space.router.as_ref().filter(|router| router.generation != 0)?;
            let held = self.held.range((*namespace, 0)..=(*namespace, u32::MAX));
            let device = |((_, ifindex), held): (&(_, u32), &Held)| {
                Some((held.id, space.rules.device(*ifindex)?.clone()))
            };
            Some(ConnectionRules {
                namespace: *namespace,
                name: space.about.name.clone(),
                router: router.id,
                generation: router.generation,
                firewall: space.settings.firewall.clone(),
                devices: held.filter_map(device).collect(),
            })
        })
    }

    /// All links that are or could be interfaces, as of the last plan, by namespace and index.
    pub fn interfaces(&self) -> impl Iterator<Item = InterfaceView> {
        self.standings.iter().map(|standing| self.interface_view(standing))
    }

    /// The routers that have interfaces on each port, as of the last plan.
    pub fn routers_on_ports(&self) -> impl Iterator<Item = (PortId, RouterId)> {
        self.standings.iter().filter_map(|standing| {
            let router = self.spaces.get(&standing.shape.link.0)?.router.as_ref()?;
            Some((standing.shape.address.0, router.id))
        })
    }

    fn interface_view(&self, standing: &Standing) -> InterfaceView {
        let shape = &standing.shape;
        let planned = self.held.get(&shape.link).map(|held| &held.interface);
        let beginning = self.beginning.get(&shape.link).map(|beginning| &beginning.wanted);
        let reasons = |own: &[Cause], begins: bool| {
            let waits = begins.then(|| {
                Code::RoutesPending.cause("the fast path does not have all routes of its router yet")
            });
            shape.common.iter().chain(&standing.trouble).chain(own).cloned().chain(waits).collect::<Vec<_>>()
        };
        let (on4, on6) = (planned.is_some_and(|i| i.ipv4), planned.is_some_and(|i| i.ipv6));
        InterfaceView {
            namespace: shape.link.0,
            name: shape.name.clone(),
            ifindex: shape.link.1,
            interface: standing.id,
            port: shape.address.0,
            vlan: shape.address.1,
            mac: shape.address.2,
            ipv4: on4,
            ipv6: on6,
            transmit: planned.is_some_and(|i| i.transmit),
            reasons4: reasons(&shape.ipv4, !on4 && beginning.is_some_and(|i| i.ipv4)),
            reasons6: reasons(&shape.ipv6, !on6 && beginning.is_some_and(|i| i.ipv6)),
        }
    }
}
