//! Turns the state of Linux into the work of the fast path: [`Event`]s in, [`Op`]s out.
//!
//! Linux is the judge. If the mirror is not sure about a packet, the packet goes to the kernel.
//!
//! | file | decides |
//! |---|---|
//! | `shape` | which links are interfaces, and what keeps the fast path from them |
//! | `reconcile` | numbers, beginning and end of routers and interfaces, and the order of these operations |
//! | `rib`, `alias` | which of a prefix's routes Linux would use |
//! | `path`, `paths`, `intern` | where that route leads, computed once for all routes that share it |
//! | `neighbours` | which MAC addresses are known on our interfaces |
//! | `batch` | the order of a plan |
//! | `view` | nothing: it returns the state that `millrace status` shows |
//!
//! Some devices must not send: down, without carrier, with a queueing discipline or with a master. Such a device keeps
//! its routes, and its [`Interface::transmit`] is off. A device below with the same state has the same effect. One
//! operation, ahead of all others, sends all its traffic to the kernel. Routes through devices that are no interface
//! lead to [`Reason::EgressNotAPort`](crate::reason::Reason::EgressNotAPort).
//!
//! Measurements (two virtual cores, release build, 1,000,000 IPv4 routes in the length mix of the Internet, 128 next
//! hops): first load 0.30 s and its plan 0.18 s; the same load again 0.14 s, and nothing to do; 100,000 changes in 100
//! plans 0.05 s; another MTU for half of the routes 0.11 s; link down one operation; 69 bytes per route. A link event
//! among 3,827 interfaces: 4 ms. Command:
//! `cargo test --release -p millrace-logic mirror::tests::load -- --ignored --nocapture`.

mod alias;
mod batch;
mod ids;
mod intern;
mod neighbours;
mod parties;
mod path;
mod paths;
mod reconcile;
mod rib;
mod rules;
mod shape;
mod space;
#[cfg(test)]
mod tests;
mod view;

pub use view::{
    ConnectionRules, Established, InterfaceView, NeighbourView, PairView, RouterView, RulesView,
    StaleNeighbour,
};

use crate::{
    net::{Prefix4, Prefix6},
    observe::{AttachedPort, Event, NamespaceId},
    plan::{Interface, InterfaceId, Op, PortId, RouterId, Target},
};
use batch::Batch;
use ids::Ids;
use parties::{Parties, Party, party};
use reconcile::{Beginning, Standing};
use shape::LinkKey;
use space::{Space, Spaces};
use std::{
    collections::{BTreeMap, btree_map},
    sync::Arc,
    time::Duration,
};

/// The limits on numbers (`bpf/abi.h`: rows of `routers` and of the interface counters).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Routers, at most 256; their numbers begin at 0.
    pub routers: u16,
    /// Interfaces, at most 65,535; their numbers begin at 1.
    pub interfaces: u16,
    /// The approximate number of routes that one plan changes, in all namespaces except the host's together. More wait
    /// for the next plan, so a namespace with a large table delays no other.
    pub routes_per_plan: usize,
}

/// Interfaces that have numbers: 4,096 of virtual routers, and those of the host on each of 64 ports.
pub const MAX_INTERFACES: u16 = 4096 + 64;

impl Default for Limits {
    fn default() -> Self {
        Self { routers: 256, interfaces: MAX_INTERFACES, routes_per_plan: 2048 }
    }
}

/// About the number of steps of proofs about rules that one plan takes.
const STEPS_PER_PLAN: u32 = 10_000;

/// The state of all namespaces involved, and the plan made from it.
pub struct Mirror {
    spaces: Spaces,
    ports: BTreeMap<PortId, AttachedPort>,
    planned_ports: BTreeMap<PortId, bool>,
    held: BTreeMap<LinkKey, Held>,
    by_id: BTreeMap<InterfaceId, LinkKey>,
    beginning: BTreeMap<LinkKey, Beginning>,
    standings: Vec<Standing>,
    /// Addresses of interfaces without a number, as planned.
    others: Arc<[shape::Address]>,
    router_ids: Ids,
    interface_ids: Ids,
    retired_interfaces: Vec<InterfaceId>,
    retired_routers: Vec<(RouterId, Party)>,
    /// Ports, links or settings have changed since the last plan.
    unsettled: bool,
    /// An interface waits for a number, or for the number of its router.
    waiting: bool,
    routes_per_plan: usize,
    /// The last generation of rules of any router; `None`: connections stay with Linux.
    generations: Option<u32>,
    /// The namespace whose rules were looked at last.
    judged: NamespaceId,
    /// Namespaces with routes that may lead to interfaces that were gone at the last turn of numbers. After the given
    /// numbers of batches they no longer do.
    behind: BTreeMap<NamespaceId, [u64; 2]>,
    revision: u64,
}

/// An interface as planned.
struct Held {
    id: InterfaceId,
    interface: Interface,
}

impl Held {
    fn address(&self) -> shape::Address {
        (self.interface.port, self.interface.vlan, self.interface.mac)
    }
}

impl Mirror {
    /// A mirror without any state.
    pub fn new(limits: Limits) -> Self {
        Self {
            spaces: Spaces::new(),
            ports: BTreeMap::new(),
            planned_ports: BTreeMap::new(),
            held: BTreeMap::new(),
            by_id: BTreeMap::new(),
            beginning: BTreeMap::new(),
            standings: Vec::new(),
            others: Arc::default(),
            router_ids: Ids::new(0, u32::from(limits.routers.min(256))),
            interface_ids: Ids::new(1, u32::from(limits.interfaces) + 1),
            retired_interfaces: Vec::new(),
            retired_routers: Vec::new(),
            unsettled: false,
            waiting: false,
            routes_per_plan: limits.routes_per_plan,
            generations: None,
            judged: 0,
            behind: BTreeMap::new(),
            revision: 0,
        }
    }

    /// Handles one event. Events of a namespace that was not announced or dumped yet are ignored, because its dump will
    /// contain them.
    pub fn observe(&mut self, event: Event) {
        match event {
            Event::Port(id, port) => {
                self.unsettled |= self.ports.insert(id, port.clone()) != Some(port);
            }
            Event::PortGone(id) => {
                self.unsettled |= self.ports.remove(&id).is_some();
                self.planned_ports.remove(&id);
            }
            Event::Namespace(id, about) => match self.spaces.entry(id) {
                btree_map::Entry::Occupied(mut space) => {
                    // Weights and paths refer to routers by their names, so they follow a change of the name.
                    self.unsettled |= space.get().about != about;
                    space.get_mut().about = about;
                }
                btree_map::Entry::Vacant(slot) => {
                    slot.insert(Space::new(about));
                }
            },
            Event::NamespaceGone(id) => self.forget(id),
            Event::Dump(id, dump) => {
                if let Some(space) = self.spaces.get_mut(&id) {
                    space.load(*dump);
                    self.unsettled = true;
                }
            }
            other => self.observe_in_space(other),
        }
    }

    fn observe_in_space(&mut self, event: Event) {
        let (id, unsettled) = match &event {
            Event::Link(id, _) | Event::LinkGone(id, _) | Event::Settings(id, _) => (*id, true),
            Event::Route4(id, ..) | Event::Route6(id, ..) | Event::Routes(id, ..) => (*id, false),
            Event::Neighbour(id, _) | Event::Nexthop(id, _) | Event::NexthopGone(id, _) => (*id, false),
            Event::Learned(id, _) => (*id, false),
            Event::Port(..) | Event::PortGone(_) => return,
            Event::Namespace(..) | Event::NamespaceGone(_) | Event::Dump(..) => return,
        };
        let Some(space) = self.spaces.get_mut(&id).filter(|space| space.dumped) else { return };
        self.unsettled |= unsettled && !says_nothing_new(space, &event);
        match event {
            Event::Link(_, link) => {
                space.links.insert(link.ifindex, link);
            }
            Event::LinkGone(_, ifindex) => {
                space.links.remove(&ifindex);
                space.neighbours.link_gone(ifindex);
            }
            Event::Settings(_, settings) => {
                space.refresh |= settings.multipath_policy != space.settings.multipath_policy
                    || settings.multipath_key != space.settings.multipath_key;
                space.settings = settings;
            }
            Event::Route4(_, change, route) => space.rib4.change(change, route),
            Event::Route6(_, change, route) => space.rib6.change(change, route),
            Event::Routes(_, routes4, routes6) => {
                space.rib4.load(routes4);
                space.rib6.load(routes6);
            }
            Event::Neighbour(_, neighbour) => space.neighbours.observe(&neighbour),
            Event::Nexthop(_, object) => {
                let kind = object.kind.clone();
                space.refresh |= space.objects.insert(object.id, object.kind) != Some(kind);
            }
            Event::NexthopGone(_, object) => space.refresh |= space.objects.remove(&object).is_some(),
            Event::Learned(_, destinations) => space.leave_to_kernel(&destinations),
            _ => {}
        }
    }

    fn forget(&mut self, namespace: NamespaceId) {
        let links: Vec<LinkKey> =
            self.held.range((namespace, 0)..=(namespace, u32::MAX)).map(|(link, _)| *link).collect();
        for link in links {
            self.retire(link);
        }
        if let Some(space) = self.spaces.remove(&namespace) {
            let party = party(namespace, &space.about);
            self.retired_routers.extend(space.router.map(|router| (router.id, party)));
            self.unsettled = true;
        }
    }

    /// Sets the time (CLOCK_MONOTONIC). Routes that end leave the fast path with the next plan.
    pub fn pass_time(&mut self, now: Duration) {
        self.spaces.values_mut().for_each(|space| space.pass_time(now));
    }

    /// The time at which [`Mirror::pass_time`] next takes a route off the fast path.
    pub fn next_end(&self) -> Option<Duration> {
        self.spaces.values().filter_map(Space::next_end).min()
    }

    /// Namespaces with routes whose existence only the kernel knows. [`Event::Routes`] settles them.
    pub fn unsure(&self) -> impl Iterator<Item = NamespaceId> {
        self.spaces.iter().filter(|(_, s)| s.rib4.is_unsure() || s.rib6.is_unsure()).map(|(id, _)| *id)
    }

    /// Connections can be fast, even if rules may affect their packets. Call this before the first plan.
    pub fn admit_connections(&mut self) {
        self.generations = Some(0);
    }

    /// The changes since the last call, in an order that is safe at every step. Routes of namespaces with large tables
    /// may wait for the next call ([`Mirror::is_behind`]).
    pub fn plan(&mut self) -> Vec<Op> {
        let mut batch = Batch::default();
        for space in self.spaces.values_mut() {
            self.unsettled |= space.rib4.take_doubts_changed() | space.rib6.take_doubts_changed();
        }
        if self.unsettled {
            for (namespace, space) in &mut self.spaces {
                let generations = self.generations.as_mut();
                space.rules.settle(*namespace, &space.settings.firewall, &space.links, generations);
            }
        }
        self.unsettled |= self.judge_rules();
        if std::mem::take(&mut self.unsettled) {
            self.reconcile(&mut batch);
            self.revision += 1;
        }
        let waiting = self.waiting_for_routes();
        for (namespace, space) in &mut self.spaces {
            let refresh = std::mem::take(&mut space.refresh);
            let held = &self.held;
            let interface = |ifindex| held.get(&(*namespace, ifindex)).map(|held| held.id);
            batch.neighbours.extend(space.neighbours.plan(interface));
            let Some(router) = space.router.as_ref().map(|router| router.id) else {
                space.withdraw();
                continue;
            };
            let most = match party(*namespace, &space.about) {
                None => usize::MAX,
                party => (self.routes_per_plan / waiting.count().max(1) / waiting.of(party).max(1)).max(1),
            };
            space.plan_tables(router, refresh, most, &mut batch);
        }
        self.begin_interfaces(&mut batch);
        for router in self.spaces.values_mut().filter_map(|space| space.router.as_mut()) {
            router.is_new = false;
        }
        self.unsettled = self.turn_numbers() && self.waiting;
        batch.ops()
    }

    /// Decides about more packets that rules may matter to. The time is limited, and namespaces take turns. Returns whether
    /// anything was decided.
    fn judge_rules(&mut self) -> bool {
        let (before, after): (Vec<_>, Vec<_>) = self
            .spaces
            .iter_mut()
            .filter(|(_, space)| !space.rules.is_done())
            .partition(|(namespace, _)| **namespace <= self.judged);
        let (mut steps, mut decided) = (STEPS_PER_PLAN, false);
        for (namespace, space) in after.into_iter().chain(before) {
            if steps == 0 {
                break;
            }
            decided |= space.rules.advance(&mut steps);
            self.judged = *namespace;
        }
        decided
    }

    /// The number of namespaces with routes to plan, by party. Parties have equal shares of a plan, and so have the
    /// namespaces of one party.
    fn waiting_for_routes(&self) -> Parties {
        let mut waiting = Parties::default();
        for (namespace, space) in self.spaces.iter().filter(|(_, space)| space.refresh || space.is_behind()) {
            waiting.add(party(*namespace, &space.about), 1);
        }
        waiting
    }

    /// Lets numbers rest until no planned route can lead to their last owner. Returns false while such routes remain.
    /// After that, returns true if numbers have become free or will become free.
    fn turn_numbers(&mut self) -> bool {
        let spaces = &self.spaces;
        self.behind.retain(|id, until| {
            let router = spaces.get(id).filter(|space| space.router.is_some());
            router.is_some_and(|space| !space.has_planned(until))
        });
        if !self.behind.is_empty() {
            return false;
        }
        self.behind =
            spaces.iter().filter(|(_, s)| s.is_behind()).map(|(id, s)| (*id, s.planned_after())).collect();
        self.router_ids.turn() | self.interface_ids.turn()
    }

    /// Whether routes wait for the next plan.
    pub fn is_behind(&self) -> bool {
        self.spaces.values().any(Space::is_behind)
    }

    /// Whether rules wait to be looked at. Plans for them need not follow each other closely.
    pub fn is_judging(&self) -> bool {
        self.spaces.values().any(|space| !space.rules.is_done())
    }

    /// Whether routes of this namespace wait for the next plan.
    pub fn is_behind_of(&self, namespace: NamespaceId) -> bool {
        self.spaces.get(&namespace).is_some_and(Space::is_behind)
    }

    /// The IPv4 routes that the tables of this namespace's router should hold after the last plan, in no particular
    /// order.
    pub fn routes4(&self, namespace: NamespaceId) -> impl Iterator<Item = (Prefix4, &Target)> {
        self.spaces.get(&namespace).into_iter().flat_map(|space| space.rib4.expected())
    }

    /// The same for IPv6.
    pub fn routes6(&self, namespace: NamespaceId) -> impl Iterator<Item = (Prefix6, &Target)> {
        self.spaces.get(&namespace).into_iter().flat_map(|space| space.rib6.expected())
    }

    /// The IPv4 route of the last plan that packets to `address` take.
    pub fn route4_to(&self, namespace: NamespaceId, address: u32) -> Option<(Prefix4, &Target)> {
        self.spaces.get(&namespace)?.rib4.longest(address)
    }

    /// The same for IPv6.
    pub fn route6_to(&self, namespace: NamespaceId, address: u128) -> Option<(Prefix6, &Target)> {
        self.spaces.get(&namespace)?.rib6.longest(address)
    }

    /// The IPv4 route of exactly this prefix, of the last plan.
    pub fn route4(&self, namespace: NamespaceId, prefix: Prefix4) -> Option<&Target> {
        self.spaces.get(&namespace)?.rib4.exact(prefix)
    }

    /// The same for IPv6.
    pub fn route6(&self, namespace: NamespaceId, prefix: Prefix6) -> Option<&Target> {
        self.spaces.get(&namespace)?.rib6.exact(prefix)
    }

    /// The neighbours with known MAC addresses, by namespace, link and address.
    pub fn neighbours(&self) -> impl Iterator<Item = NeighbourView> {
        self.spaces.iter().flat_map(|(namespace, space)| {
            space.neighbours.all().into_iter().map(|(ifindex, address, mac, stale)| NeighbourView {
                namespace: *namespace,
                ifindex,
                address,
                mac,
                stale,
            })
        })
    }

    /// The link of an interface: its namespace and index.
    pub fn link_of(&self, interface: InterfaceId) -> Option<(NamespaceId, u32)> {
        self.by_id.get(&interface).copied()
    }

    /// The stale neighbours on interfaces. The kernel forgets them unless someone uses them.
    pub fn stale_neighbours(&self) -> impl Iterator<Item = StaleNeighbour> {
        self.spaces.iter().flat_map(move |(namespace, space)| {
            space.neighbours.stale().iter().filter_map(move |(ifindex, address)| {
                let interface = self.held.get(&(*namespace, *ifindex))?.id;
                Some(StaleNeighbour {
                    namespace: *namespace,
                    ifindex: *ifindex,
                    interface,
                    address: *address,
                })
            })
        })
    }
}

#[cfg(test)]
impl Mirror {
    /// Nothing is held that no link, route or neighbour needs.
    pub(crate) fn check(&self) {
        for space in self.spaces.values() {
            space.rib4.check();
            space.rib6.check();
            space.neighbours.check();
        }
        let numbers: BTreeMap<InterfaceId, LinkKey> =
            self.held.iter().map(|(link, held)| (held.id, *link)).collect();
        assert_eq!(self.by_id, numbers);
        assert!(self.beginning.keys().all(|link| self.held.contains_key(link)));
    }
}

fn says_nothing_new(space: &Space, event: &Event) -> bool {
    match event {
        Event::Link(_, link) => space.links.get(&link.ifindex) == Some(link),
        Event::LinkGone(_, ifindex) => !space.links.contains_key(ifindex),
        Event::Settings(_, settings) => space.settings == *settings,
        _ => false,
    }
}
