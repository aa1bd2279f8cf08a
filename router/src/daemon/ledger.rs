//! The planned state, except routes. With the mirror's routes, it is enough to fill another generation.

use logic::{
    mirror::Mirror,
    net::{Mac, Vlan},
    plan::{Interface, InterfaceId, MultipathHash, Op, PairTable, PortId, RouterId},
};
use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

/// The tables of a router's rules, and their generation.
type RulesOf = ([Option<Arc<PairTable>>; 2], u32);

/// The last planned state of everything that plans name, except routes.
#[derive(Default)]
pub struct Ledger {
    ports: BTreeMap<PortId, bool>,
    routers: BTreeMap<RouterId, MultipathHash>,
    locals: BTreeMap<RouterId, Arc<[u32]>>,
    rules: BTreeMap<RouterId, RulesOf>,
    interfaces: BTreeMap<InterfaceId, Interface>,
    others: Arc<[(PortId, Vlan, Mac)]>,
    neighbours: BTreeMap<(InterfaceId, IpAddr), Mac>,
}

impl Ledger {
    /// Notes a plan.
    pub fn note(&mut self, plan: &[Op]) {
        plan.iter().for_each(|op| self.note_one(op));
    }

    fn note_one(&mut self, op: &Op) {
        match op {
            Op::Port { port, frags } => drop(self.ports.insert(*port, *frags)),
            Op::Router { router, multipath } => drop(self.routers.insert(*router, *multipath)),
            Op::LocalAddresses { router, addresses } => drop(self.locals.insert(*router, addresses.clone())),
            Op::Rules { router, tables, generation } => {
                drop(self.rules.insert(*router, (tables.clone(), *generation)));
            }
            Op::Interface(id, interface) => drop(self.interfaces.insert(*id, interface.clone())),
            Op::Neighbour(id, address, Some(mac)) => drop(self.neighbours.insert((*id, *address), *mac)),
            Op::Neighbour(id, address, None) => drop(self.neighbours.remove(&(*id, *address))),
            Op::OtherAddresses(addresses) => self.others = addresses.clone(),
            Op::InterfaceGone(id) => {
                self.interfaces.remove(id);
                self.neighbours.retain(|(interface, _), _| interface != id);
            }
            Op::RouterGone(id) => {
                self.routers.remove(id);
                self.locals.remove(id);
                self.rules.remove(id);
                let interfaces = &mut self.interfaces;
                interfaces.retain(|_, i| i.router != *id);
                self.neighbours.retain(|(interface, _), _| interfaces.contains_key(interface));
            }
            Op::Route4(..) | Op::Route6(..) => {}
        }
    }

    /// The number of known neighbours on an interface.
    pub fn neighbours_on(&self, interface: InterfaceId) -> usize {
        self.neighbours
            .range((interface, IpAddr::from([0; 4]))..)
            .take_while(|((i, _), _)| *i == interface)
            .count()
    }

    /// All known neighbours.
    pub fn neighbours(&self) -> impl Iterator<Item = ((InterfaceId, IpAddr), Mac)> + '_ {
        self.neighbours.iter().map(|(key, mac)| (*key, *mac))
    }

    /// A plan from nothing to the present state. `mirror` must be the mirror whose plans were noted. Neighbours come
    /// last, because the tables take them, and report that they are full, only if their connected route exists.
    pub fn everything<'a>(&'a self, mirror: &'a Mirror) -> impl Iterator<Item = Op> + 'a {
        let ports = self.ports.iter().map(|(port, frags)| Op::Port { port: *port, frags: *frags });
        let routers = self.routers.iter().map(|(id, hash)| Op::Router { router: *id, multipath: *hash });
        let locals =
            self.locals.iter().map(|(id, a)| Op::LocalAddresses { router: *id, addresses: a.clone() });
        let rules = self.rules.iter().map(|(id, (tables, generation))| Op::Rules {
            router: *id,
            tables: tables.clone(),
            generation: *generation,
        });
        let interfaces = self.interfaces.iter().map(|(id, i)| Op::Interface(*id, i.clone()));
        let others = (!self.others.is_empty()).then(|| Op::OtherAddresses(self.others.clone()));
        let neighbours = self.neighbours.iter().map(|((id, a), mac)| Op::Neighbour(*id, *a, Some(*mac)));
        let routes =
            mirror.routers().filter_map(|r| Some((r.router?, r.namespace))).flat_map(|(id, namespace)| {
                let v4 = mirror.routes4(namespace).map(move |(p, t)| Op::Route4(id, p, Some(t.clone())));
                v4.chain(mirror.routes6(namespace).map(move |(p, t)| Op::Route6(id, p, Some(t.clone()))))
            });
        let links = rules.chain(interfaces).chain(others);
        ports.chain(routers).chain(locals).chain(links).chain(routes).chain(neighbours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logic::{mirror::Limits, plan::ReversePath};

    fn interface(router: RouterId) -> Interface {
        Interface {
            router,
            port: 0,
            vlan: Vlan::NONE,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            ipv4: true,
            ipv6: true,
            transmit: true,
            reverse_path: ReversePath::Off,
            redirects: false,
            accept_local: false,
            priority_tags: false,
            look_at_sources: false,
            group: 0,
        }
    }

    #[test]
    fn the_last_state_counts_and_a_router_that_ends_takes_its_interfaces_along() {
        let mac = |n| Mac([2, 0, 0, 0, 0, n]);
        let a: IpAddr = "10.0.0.1".parse().unwrap();
        let b: IpAddr = "10.0.0.2".parse().unwrap();
        let router =
            |router, l4| Op::Router { router, multipath: MultipathHash { l4: [l4; 2], key: [0; 2] } };
        let mut ledger = Ledger::default();
        ledger.note(&[
            Op::Port { port: 0, frags: true },
            router(0, false),
            router(1, false),
            Op::Interface(1, interface(0)),
            Op::Interface(2, interface(0)),
            Op::Interface(3, interface(1)),
            Op::OtherAddresses([(0, Vlan::NONE, mac(7))].into()),
            Op::Neighbour(1, a, Some(mac(1))),
            Op::Neighbour(1, a, Some(mac(9))),
            Op::Neighbour(1, b, Some(mac(2))),
            Op::Neighbour(2, a, Some(mac(3))),
            Op::Neighbour(3, a, Some(mac(4))),
            Op::Neighbour(1, b, None),
            Op::InterfaceGone(2),
            Op::RouterGone(1),
            router(0, true),
        ]);
        assert_eq!(ledger.neighbours_on(1), 1);
        let everything: Vec<_> = ledger.everything(&Mirror::new(Limits::default())).collect();
        assert_eq!(
            everything,
            [
                Op::Port { port: 0, frags: true },
                router(0, true),
                Op::Interface(1, interface(0)),
                Op::OtherAddresses([(0, Vlan::NONE, mac(7))].into()),
                Op::Neighbour(1, a, Some(mac(9))),
            ]
        );
    }
}
