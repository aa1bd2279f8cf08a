//! Compares elements with references: etherparse, `flow::checksum`, CRCs bit by bit, and the way of packets by the plan
//! alone. `router/tests/xdp_table/elements.rs` runs them beside the kernel plane's program, on the same tables.

mod chains;
mod clear;
mod esp;
mod esp_wrong;
mod exact;
mod mirror;
mod own;
mod race;
mod reference;
mod routing;
mod vxlan;
mod ways;

use super::{
    Batch, Chain, Check, Contract, Counters, Element, Known, Now, Packet, Rewrite, Route, Ttl, Verdict,
};
use crate::{
    memory::{Capacity, HeapMemory},
    net::{Mac, Tag, Vlan},
    plan::{Hop, Interface, InterfaceId, MultipathHash, Op, ReversePath, Target},
    reason::Reason,
    tables::{
        Ingress, Tables,
        encoding::{
            IF_ACCEPT_LOCAL, IF_IPV4, IF_IPV6, IF_LOOK_AT_SOURCES, IF_REDIRECTS, IF_RPF_LOOSE, IF_RPF_STRICT,
        },
    },
};
use std::{net::IpAddr, sync::Arc};

const READY: Now = Now { ns: 0, ports: 0b1111 };
/// Bytes before and after the data in a frame.
const HEAD: usize = 96;
const TAIL: usize = 64;

/// One router: interface 1 on port 1, 2 on port 2, 3 with VLAN 100 on port 3, 4 with two tags on port 3, 5 on port 9,
/// which cannot transmit.
pub(super) struct World {
    tables: Tables<Arc<HeapMemory>>,
    /// Every operation that the tables got.
    plan: Vec<Op>,
}

fn interface(id: InterfaceId) -> Interface {
    let tag = |vid, service| Tag { vid, service };
    let one = Vlan::NONE.push(tag(100, false)).unwrap();
    let two = Vlan::NONE.push(tag(200, true)).unwrap().push(tag(7, false)).unwrap();
    let (port, vlan) =
        [(1, Vlan::NONE), (2, Vlan::NONE), (3, one), (3, two), (9, Vlan::NONE)][usize::from(id) - 1];
    let mac = Mac([2, 0, 0, 0, 0, id as u8]);
    let redirects = id == 1;
    let reverse_path = ReversePath::Off;
    let (accept_local, priority_tags, look_at_sources) = (false, false, false);
    Interface {
        router: 0,
        port,
        vlan,
        mac,
        ipv4: true,
        ipv6: true,
        transmit: true,
        reverse_path,
        redirects,
        accept_local,
        priority_tags,
        look_at_sources,
        group: 0,
    }
}

/// The ingress at interface `id`, with these additional flags.
fn ingress(id: InterfaceId, flags: u8) -> Ingress {
    let redirects = if id == 1 { IF_REDIRECTS } else { 0 };
    Ingress {
        port: interface(id).port,
        router: 0,
        interface: id,
        flags: IF_IPV4 | IF_IPV6 | redirects | flags,
    }
}

fn target(interface: InterfaceId, gateway: Option<&str>, mtu: u32) -> Target {
    Target::Hop(Hop { interface, gateway: gateway.map(|g| g.parse().unwrap()), mtu })
}

const ROUTES: [(&str, InterfaceId, Option<&str>, u32); 13] = [
    ("10.0.0.0/16", 1, Some("192.0.2.9"), 1500),
    ("10.1.0.0/16", 2, Some("192.0.2.1"), 1500),
    ("10.1.7.0/24", 3, Some("192.0.2.2"), 1500),
    ("10.1.7.64/26", 4, Some("192.0.2.3"), 1500),
    ("10.2.0.0/16", 2, Some("192.0.2.1"), 60),
    ("10.3.0.0/16", 2, Some("192.0.2.77"), 1500),
    ("10.4.0.0/16", 5, Some("192.0.2.4"), 1500),
    ("192.0.2.0/24", 2, None, 60),
    ("2001:db8:1::/48", 2, Some("2001:db8::1"), 1500),
    ("2001:db8:1:7::/64", 4, Some("2001:db8::3"), 1500),
    ("2001:db8:1:7:1::/80", 3, Some("2001:db8::2"), 80),
    ("2001:db8:2::/48", 1, Some("2001:db8::9"), 1500),
    ("2001:db8::/64", 2, None, 1500),
];

impl World {
    pub(super) fn new() -> Self {
        let memory = Arc::new(HeapMemory::new(Capacity {
            fib_blocks: 600,
            fib_tails: 300,
            nexthops: 100,
            neighbour_buckets: 8,
            interface_buckets: 8,
            routers: 2,
        }));
        let mut tables = Tables::new(memory);
        let mut plan = Vec::new();
        let mut apply = |op| {
            tables.apply(&op).unwrap();
            plan.push(op);
        };
        apply(Op::Router { router: 0, multipath: MultipathHash { l4: [true, true], key: [1, 2] } });
        (1..=5).for_each(|id| apply(Op::Interface(id, interface(id))));
        let neighbours = [(1, 9), (2, 1), (3, 2), (4, 3), (5, 4), (2, 50)];
        for (id, last) in neighbours {
            let mac = Some(Mac([2, 9, 9, 9, id as u8, last]));
            apply(Op::Neighbour(id, IpAddr::from([192, 0, 2, last]), mac));
            apply(Op::Neighbour(id, format!("2001:db8::{last:x}").parse().unwrap(), mac));
        }
        let mut route = |prefix: &str, target: Target| match prefix.parse() {
            Ok(prefix) => apply(Op::Route4(0, prefix, Some(target))),
            Err(_) => apply(Op::Route6(0, prefix.parse().unwrap(), Some(target))),
        };
        for (prefix, id, gateway, mtu) in ROUTES {
            route(prefix, target(id, gateway, mtu));
        }
        let pass = |reason, unicast| Target::Pass { reason, unicast };
        route("10.9.0.1/32", pass(Reason::Local, false));
        route("10.9.0.255/32", pass(Reason::Broadcast, false));
        route("198.18.0.0/15", pass(Reason::LocalPrefix, false));
        route("10.5.0.0/16", pass(Reason::SpecialRoute, false));
        route("10.8.0.0/16", pass(Reason::ComplexRoute, true));
        route("10.8.0.2/32", pass(Reason::LearnedPath, true));
        route("2001:db8:9::1/128", pass(Reason::Local, false));
        let members = [(target(2, Some("192.0.2.1"), 1500), 1), (target(3, Some("192.0.2.2"), 1500), 3)];
        route("10.7.0.0/16", Target::Multi(members.into()));
        let local = [0x0a09_0001, 0x0a09_00ff].into();
        apply(Op::LocalAddresses { router: 0, addresses: local });
        World { tables, plan }
    }

    fn memory(&self) -> Arc<HeapMemory> {
        self.tables.memory().clone()
    }

    pub(super) fn router(&self) -> Vec<Box<dyn Element>> {
        vec![Box::new(Check), Box::new(Route::new(self.memory())), Box::new(Ttl), Box::new(Rewrite)]
    }
}

/// An element that always runs by itself, never as part of a router.
struct Apart(Box<dyn Element>);

impl Element for Apart {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn contract(&self) -> Contract {
        Contract { part: None, ..self.0.contract() }
    }
    fn run(&mut self, now: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        self.0.run(now, batch, counters);
    }
}

/// Lends frames with these data, and returns the results of `look` for each packet after the run.
fn with_batch<R>(
    data: &[(Vec<u8>, Ingress)],
    run: impl FnOnce(&mut Batch<'_>),
    look: impl Fn(&Packet<'_>) -> R,
) -> Vec<R> {
    let mut frames: Vec<Vec<u8>> =
        data.iter().map(|(data, _)| [vec![0xaa; HEAD], data.clone(), vec![0x55; TAIL]].concat()).collect();
    let mut batch = Batch::default();
    for (frame, (data, ingress)) in frames.iter_mut().zip(data) {
        batch.push(frame, HEAD, data.len(), *ingress).unwrap();
    }
    run(&mut batch);
    batch.packets().iter().map(look).collect()
}

/// Runs a chain over packets. Returns the verdict and the data of each.
fn run(chain: &mut Chain, now: &Now, data: &[(Vec<u8>, Ingress)]) -> Vec<(Verdict, Vec<u8>)> {
    let look = |packet: &Packet<'_>| (packet.verdict(), packet.data().to_vec());
    with_batch(data, |batch| chain.run(now, batch), look)
}

/// An IPv4 UDP packet with right checksums. No byte of its identification is 0.
fn udp4(source: [u8; 4], destination: [u8; 4], ttl: u8, payload: usize) -> Vec<u8> {
    let build =
        etherparse::PacketBuilder::ethernet2([9; 6], [2, 0, 0, 0, 0, 1]).ipv4(source, destination, ttl);
    let mut packet = Vec::new();
    build.udp(1000, 2000).write(&mut packet, &vec![7; payload]).unwrap();
    let (mut header, _) = etherparse::Ipv4Header::from_slice(&packet[14..]).unwrap();
    header.identification = 0x4a4b;
    header.header_checksum = header.calc_header_checksum();
    packet[14..34].copy_from_slice(&header.to_bytes());
    packet
}

/// An untagged IPv4 packet without "don't fragment".
fn fragmentable(mut packet: Vec<u8>) -> Vec<u8> {
    let (mut header, _) = etherparse::Ipv4Header::from_slice(&packet[14..]).unwrap();
    header.dont_fragment = false;
    header.header_checksum = header.calc_header_checksum();
    packet[14..34].copy_from_slice(&header.to_bytes());
    packet
}

fn udp6(source: &str, destination: &str, hops: u8, payload: usize) -> Vec<u8> {
    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let build = etherparse::PacketBuilder::ethernet2([9; 6], [2, 0, 0, 0, 0, 1]);
    let mut packet = Vec::new();
    let build = build.ipv6(address(source), address(destination), hops).udp(1000, 2000);
    build.write(&mut packet, &vec![7; payload]).unwrap();
    packet
}
