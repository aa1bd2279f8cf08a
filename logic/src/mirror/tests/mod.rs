//! Tests of the mirror as a whole. `model` holds the tables that follow from a plan. `world` is a small Linux that
//! changes at random. `routes` and `links` test single decisions.

#![allow(clippy::type_complexity, reason = "rows of a table")]

mod links;
mod load;
mod model;
mod property;
mod routes;
mod rules;
mod slices;
mod world;

use super::{Limits, MAX_INTERFACES, Mirror, StaleNeighbour};
use crate::{
    cause::{Cause, Code},
    net::{Address, Mac, Prefix, Prefix4, Prefix6, Tag},
    observe::*,
    plan::{Op, PortId, ReversePath, Target},
};
use model::Model;
use std::net::IpAddr;

pub const HOST: NamespaceId = 0;
pub const RED: NamespaceId = 1;

pub fn p4(text: &str) -> Prefix4 {
    text.parse().unwrap()
}

pub fn p6(text: &str) -> Prefix6 {
    text.parse().unwrap()
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

pub fn link(ifindex: u32, kind: LinkKind, below: Option<(NamespaceId, u32)>) -> Link {
    Link {
        ifindex,
        name: format!("if{ifindex}"),
        mac: mac(ifindex as u8),
        mtu: 1500,
        up: true,
        carrier: true,
        running: true,
        kind,
        below,
        master: None,
        ipv4: LinkConf4 { forwarding: true, send_redirects: true, has_address: true, ..LinkConf4::default() },
        ipv6: LinkConf6 { forwarding: true, ..LinkConf6::default() },
        hazards: Vec::new(),
        xdp: None,
    }
}

pub fn physical(ifindex: u32) -> Link {
    link(ifindex, LinkKind::Physical, None)
}

pub fn vlan(ifindex: u32, vid: u16, below: (NamespaceId, u32)) -> Link {
    link(ifindex, LinkKind::Vlan(Tag { vid, service: false }), Some(below))
}

pub fn macvlan(ifindex: u32, below: (NamespaceId, u32)) -> Link {
    link(ifindex, LinkKind::Macvlan(MacvlanMode::Bridge), Some(below))
}

pub fn hop(ifindex: u32, gateway: Option<&str>) -> NextHop {
    let gateway = gateway.map(ip);
    NextHop { ifindex, gateway, weight: 1, dead: false, linkdown: false, complex: false }
}

pub fn via(ifindex: u32, gateway: &str) -> Next {
    Next::One(hop(ifindex, Some(gateway)))
}

pub fn dev(ifindex: u32) -> Next {
    Next::One(hop(ifindex, None))
}

pub fn route4(prefix: &str, next: Next) -> Route<u32> {
    plain(p4(prefix), 0, next)
}

pub fn route6(prefix: &str, next: Next) -> Route<u128> {
    plain(p6(prefix), 1024, next)
}

fn plain<A: Address>(prefix: Prefix<A>, metric: u32, next: Next) -> Route<A> {
    Route {
        prefix,
        table: 254,
        metric,
        tos: 0,
        kind: RouteKind::Unicast,
        next,
        mtu: None,
        for_sources: false,
        expires: None,
        rest: 0,
        complex: None,
    }
}

pub fn local4(prefix: &str) -> Route<u32> {
    Route { table: 255, kind: RouteKind::Local, ..route4(prefix, dev(1)) }
}

pub fn port(namespace: NamespaceId, ifindex: u32) -> AttachedPort {
    AttachedPort { namespace, ifindex, frags: true, hashes: false }
}

pub fn namespace(name: &str) -> Namespace {
    Namespace { name: name.into(), host: name == "host", configured: false, owner: Owner::Machine }
}

pub fn neighbour(ifindex: u32, address: &str, mac: Option<Mac>) -> Neighbour {
    Neighbour { ifindex, address: ip(address), mac, stale: false }
}

/// Settings in which Linux's key for multipath routes is known.
pub fn choosing() -> Settings {
    Settings { multipath_key: MultipathKey::Linux([1, 2]), ..Settings::default() }
}

/// A mirror, and the tables that follow from its plans.
pub struct Bench {
    pub mirror: Mirror,
    pub model: Model,
}

impl Bench {
    /// Ports 0 and 1 are links 1 and 2 of the host, which has these routes.
    pub fn host(routes4: Vec<Route<u32>>, routes6: Vec<Route<u128>>) -> Bench {
        let links = vec![physical(1), physical(2), physical(9)];
        let dump = Dump { links, settings: choosing(), routes4, routes6, ..Dump::default() };
        Bench::with(Limits::default(), dump)
    }

    pub fn with(limits: Limits, dump: Dump) -> Bench {
        let mut bench = Bench { mirror: Mirror::new(limits), model: Model::default() };
        bench.see(Event::Port(0, port(HOST, 1)));
        bench.see(Event::Port(1, port(HOST, 2)));
        bench.see(Event::Namespace(HOST, namespace("host")));
        bench.see(Event::Dump(HOST, Box::new(dump)));
        bench.plan();
        bench
    }

    /// The namespace `red`, router 1.
    pub fn add(&mut self, id: NamespaceId, about: Namespace, dump: Dump) {
        self.see(Event::Namespace(id, about));
        self.see(Event::Dump(id, Box::new(dump)));
        self.plan();
    }

    pub fn add_red(&mut self, dump: Dump) {
        self.add(RED, namespace("red"), dump);
    }

    pub fn see(&mut self, event: Event) {
        self.mirror.observe(event);
    }

    pub fn plan(&mut self) -> Vec<Op> {
        let ops = self.mirror.plan();
        self.mirror.check();
        self.model.apply(&ops);
        assert_eq!(self.mirror.plan(), [], "a plan is complete");
        ops
    }

    /// Handles these events and returns the plan.
    pub fn after(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Op> {
        events.into_iter().for_each(|event| self.see(event));
        self.plan()
    }

    /// Where the tables of router 0 lead.
    pub fn target4(&self, prefix: &str) -> Option<&Target> {
        self.model.routers[&0].routes4.get(&p4(prefix))
    }

    pub fn target6(&self, prefix: &str) -> Option<&Target> {
        self.model.routers[&0].routes6.get(&p6(prefix))
    }
}

/// A link with this reverse path filter.
pub fn filtering(mut link: Link, rp_filter: ReversePath, has_address: bool) -> Link {
    link.ipv4.rp_filter = rp_filter;
    link.ipv4.has_address = has_address;
    link
}

/// The sentences of causes.
fn texts(causes: &[Cause]) -> Vec<&str> {
    causes.iter().map(|cause| cause.text.as_str()).collect()
}
