//! The tables that follow from a plan, as maps, and the rules that a plan must follow at every
//! step.

use crate::{
    net::{Address, Prefix, Prefix4, Prefix6},
    plan::*,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub ports: BTreeMap<PortId, bool>,
    pub routers: BTreeMap<RouterId, RouterModel>,
    pub interfaces: BTreeMap<InterfaceId, Interface>,
    pub neighbours: BTreeMap<(InterfaceId, IpAddr), crate::net::Mac>,
    /// Routes that wait for a later plan may lead to interfaces that are gone.
    pub is_behind: bool,
    pub others: Vec<(PortId, crate::net::Vlan, crate::net::Mac)>,
}

#[derive(Clone, Debug, Default)]
pub struct RouterModel {
    pub multipath: MultipathHash,
    pub addresses: BTreeSet<u32>,
    pub routes4: BTreeMap<Prefix4, Target>,
    pub routes6: BTreeMap<Prefix6, Target>,
    pub rules: [Option<Arc<PairTable>>; 2],
}

fn is_closed(table: &Arc<PairTable>) -> bool {
    table.pairs == PairTable::default().pairs
}

impl RouterModel {
    fn targets(&self) -> impl Iterator<Item = &Target> {
        self.routes4.values().chain(self.routes6.values())
    }
}

/// The interfaces that a target leads to.
fn interfaces(target: &Target) -> Vec<InterfaceId> {
    match target {
        Target::Hop(hop) => vec![hop.interface],
        Target::Multi(members) => members.iter().flat_map(|(target, _)| interfaces(target)).collect(),
        Target::Pass { .. } => Vec::new(),
    }
}

/// The phase of a plan: turning off, changing, turning on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Off,
    Change,
    On,
}

impl Model {
    pub fn apply(&mut self, ops: &[Op]) {
        let mut phase = Phase::Off;
        for op in ops {
            let now = self.phase(op);
            if let Op::Interface(id, i) = op {
                let known = self.interfaces.contains_key(id);
                assert!(
                    known || !i.ipv4 && !i.ipv6,
                    "a new interface is on before its router is ready: {op:?}"
                );
            }
            let neutral = now.is_none();
            let now = now.unwrap_or(phase);
            assert!(now >= phase || neutral, "{op:?} in phase {phase:?}");
            phase = now;
            self.step(op);
        }
        self.check();
    }

    /// The phase of an operation; `None`: any.
    fn phase(&self, op: &Op) -> Option<Phase> {
        let Op::Interface(id, new) = op else {
            return (!matches!(op, Op::Rules { .. })).then_some(Phase::Change);
        };
        let Some(old) = self.interfaces.get(id) else { return Some(Phase::Change) };
        let ends = old.ipv4 && !new.ipv4 || old.ipv6 && !new.ipv6 || old.transmit && !new.transmit;
        let begins = !old.ipv4 && new.ipv4 || !old.ipv6 && new.ipv6 || !old.transmit && new.transmit;
        assert!(!(ends && begins), "{op:?} both ends and begins something: {old:?}");
        (ends || begins).then_some(if ends { Phase::Off } else { Phase::On })
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Port { port, frags } => {
                self.ports.insert(*port, *frags);
            }
            Op::Router { router, multipath } => {
                self.routers.entry(*router).or_default().multipath = *multipath;
            }
            Op::RouterGone(router) => {
                self.routers.remove(router).expect("only an existing router can go");
                assert!(self.interfaces.values().all(|i| i.router != *router), "its interfaces went first");
            }
            Op::LocalAddresses { router, addresses } => {
                self.routers.get_mut(router).unwrap().addresses = addresses.iter().copied().collect();
            }
            Op::Interface(id, interface) => {
                assert!(
                    self.ports.contains_key(&interface.port) && self.routers.contains_key(&interface.router)
                );
                let key = |i: &Interface| (i.port, i.vlan, i.mac);
                let rival =
                    self.interfaces.iter().find(|(other, i)| *other != id && key(i) == key(interface));
                assert_eq!(rival, None, "two interfaces with one address");
                let mut led_to = self.routers.values().flat_map(RouterModel::targets).flat_map(interfaces);
                let known = self.interfaces.contains_key(id);
                assert!(
                    known || !led_to.any(|other| other == *id),
                    "a route leads to the last owner of {id}"
                );
                if let Some(old) = self.interfaces.insert(*id, interface.clone()) {
                    let router = &self.routers[&interface.router];
                    assert!(
                        old.group == interface.group || router.rules.iter().flatten().all(is_closed),
                        "another group, while pairs are open"
                    );
                    assert_eq!(
                        (key(&old), old.router),
                        (key(interface), interface.router),
                        "a number is used again"
                    );
                }
            }
            Op::Rules { router, tables, .. } => {
                let old = std::mem::replace(&mut self.routers.get_mut(router).unwrap().rules, tables.clone());
                for (old, new) in old.iter().zip(tables) {
                    if let (Some(old), Some(new)) = (old, new) {
                        assert!(
                            old.exceptions == new.exceptions || is_closed(old) || is_closed(new),
                            "other exceptions, while pairs are open"
                        );
                    }
                }
            }
            Op::OtherAddresses(addresses) => self.others = addresses.to_vec(),
            Op::InterfaceGone(id) => {
                self.interfaces.remove(id).expect("only an existing interface can go");
                self.neighbours.retain(|(interface, _), _| interface != id);
            }
            Op::Route4(router, prefix, target) => {
                self.check_target(*router, target.as_ref());
                set(&mut self.routers.get_mut(router).unwrap().routes4, *prefix, target);
            }
            Op::Route6(router, prefix, target) => {
                self.check_target(*router, target.as_ref());
                set(&mut self.routers.get_mut(router).unwrap().routes6, *prefix, target);
            }
            Op::Neighbour(id, address, mac) => {
                assert!(self.interfaces.contains_key(id));
                let old = match mac {
                    Some(mac) => self.neighbours.insert((*id, *address), *mac),
                    None => self.neighbours.remove(&(*id, *address)),
                };
                assert_ne!(old, *mac, "{op:?} changes nothing");
            }
        }
    }

    fn check_target(&self, router: RouterId, target: Option<&Target>) {
        for id in target.into_iter().flat_map(interfaces) {
            let interface = self.interfaces.get(&id).expect("the interface comes before its routes");
            assert_eq!(interface.router, router);
        }
    }

    fn check(&self) {
        for (id, router) in self.routers.iter().filter(|_| !self.is_behind) {
            router.targets().for_each(|target| self.check_target(*id, Some(target)));
        }
    }

    /// Whether the router has a route for each of these addresses.
    pub fn covered(&self, router: RouterId, addresses: &[u32]) -> Vec<bool> {
        let routes = self.routers.get(&router).map(|r| &r.routes4);
        addresses.iter().map(|a| routes.is_some_and(|r| r.keys().any(|p| p.contains(*a)))).collect()
    }

    /// Applies one operation without checking the order.
    pub fn apply_one(&mut self, op: &Op) {
        self.step(op);
    }
}

fn set<A: Address>(routes: &mut BTreeMap<Prefix<A>, Target>, prefix: Prefix<A>, target: &Option<Target>) {
    let old = match target {
        Some(target) => routes.insert(prefix, target.clone()),
        None => routes.remove(&prefix),
    };
    assert_ne!(old, *target, "{prefix} does not change");
}
