//! The box that the cases run on, and what a case expects.

use crate::common::{
    frame::{Frame, vlan},
    ifindex, run,
};
use logic::{
    memory::Capacity,
    net::{Mac, Tag},
    plan::{Hop, Interface, MultipathHash, Op, ReversePath, Target},
    reason::Reason,
    tables::Tables,
};
use router::plane::{Charge, MappedMemory, Plane, Settings, TestRun, connections::ConnectionMaps};
use std::{net::IpAddr, sync::Arc, time::Duration};

pub const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const B: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub const V: Mac = Mac([2, 0, 0, 0, 1, 1]);
pub const W: Mac = Mac([2, 0, 0, 0, 1, 2]);
pub const FRIEND: Mac = Mac([2, 0, 0, 0, 7, 1]);
pub const GATEWAY: Mac = Mac([2, 0, 0, 0, 7, 254]);
pub const OTHER: Mac = Mac([2, 0, 0, 0, 7, 9]);
pub const Q100: Tag = Tag { vid: 100, service: false };
pub const Q7: Tag = Tag { vid: 7, service: false };
pub const AD200: Tag = Tag { vid: 200, service: true };

pub const XDP_DROP: u32 = 1;
pub const XDP_PASS: u32 = 2;
pub const XDP_REDIRECT: u32 = 4;

/// Two ports and two routers. Router 0 has an interface on each port, VLAN 100 on port 1 and 200.7 on port 0.
/// Router 1 has a macvlan on each port.
pub struct World {
    pub plane: Plane,
    pub tables: Tables<Arc<MappedMemory>>,
    pub port: [u32; 2],
}

/// Small tables, every packet timed, nothing policed.
pub fn settings() -> Settings {
    Settings {
        capacity: Capacity {
            fib_blocks: 4096,
            fib_tails: 4096,
            nexthops: 1024,
            neighbour_buckets: 64,
            interface_buckets: 64,
            routers: 256,
        },
        interface_rows: 64,
        sample_interval: 1,
        exception_pps: 0,
        control_pps: 0,
        queue_rows: false,
        help: false,
    }
}

pub fn interface(router: u8, port: u8, mac: Mac, tags: &[Tag]) -> Interface {
    Interface {
        router,
        port,
        vlan: vlan(tags),
        mac,
        ipv4: true,
        ipv6: true,
        transmit: true,
        reverse_path: ReversePath::Off,
        redirects: true,
        accept_local: false,
        priority_tags: false,
        look_at_sources: false,
        group: 0,
    }
}

pub fn onlink(interface: u16) -> Target {
    Target::Hop(Hop { interface, gateway: None, mtu: 1500 })
}

pub fn via(interface: u16, gateway: &str) -> Target {
    Target::Hop(Hop { interface, gateway: Some(gateway.parse().unwrap()), mtu: 1500 })
}

pub fn pass(reason: Reason, unicast: bool) -> Target {
    Target::Pass { reason, unicast }
}

pub fn route4(router: u8, prefix: &str, target: Target) -> Op {
    Op::Route4(router, prefix.parse().unwrap(), Some(target))
}

pub fn route6(router: u8, prefix: &str, target: Target) -> Op {
    Op::Route6(router, prefix.parse().unwrap(), Some(target))
}

pub fn neighbour(interface: u16, address: &str, mac: Mac) -> Op {
    Op::Neighbour(interface, address.parse::<IpAddr>().unwrap(), Some(mac))
}

pub fn addresses(list: &[&str]) -> Arc<[u32]> {
    list.iter().map(|a| a.parse::<std::net::Ipv4Addr>().unwrap().to_bits()).collect()
}

impl World {
    pub fn new() -> World {
        World::with(settings())
    }

    pub fn with(settings: Settings) -> World {
        World::with_queues(settings, 1)
    }

    /// Each port has this many RX queues.
    pub fn with_queues(settings: Settings, queues: u32) -> World {
        World::around(queues, || Plane::load(settings).unwrap())
    }

    /// With the maps of connections.
    pub fn with_connections(settings: Settings, maps: &ConnectionMaps) -> World {
        World::around(1, || {
            Plane::load_changed(settings, |open| maps.share(open)).unwrap_or_else(|e| panic!("{e:#}"))
        })
    }

    fn around(queues: u32, load: impl FnOnce() -> Plane) -> World {
        for (port, peer) in [("p0", "q0"), ("p1", "q1")] {
            run(&format!(
                "ip link add {port} numrxqueues {queues} numtxqueues {queues} type veth peer name {peer} \
                 numrxqueues {queues} numtxqueues {queues}"
            ));
        }
        let port = [ifindex("p0"), ifindex("p1")];
        let plane = load();
        plane.confirm_until(Duration::from_secs(1 << 32)).unwrap();
        for (id, ifindex) in (0..).zip(port) {
            plane.set_port(id, ifindex, true, true).unwrap();
        }
        let tables = Tables::new(plane.memory());
        let mut world = World { plane, tables, port };
        world.apply(base());
        world
    }

    pub fn apply(&mut self, ops: impl IntoIterator<Item = Op>) {
        for op in ops {
            self.tables.apply(&op).unwrap_or_else(|full| panic!("{op:?}: {full:?}"));
        }
    }

    /// Runs a frame in by port 0. Asserts what becomes of it, and that exactly this was counted.
    #[track_caller]
    pub fn expect(&mut self, name: &str, frame: &Frame, expected: Expect) {
        self.expect_from(name, 0, &frame.bytes(), expected);
    }

    #[track_caller]
    pub fn expect_from(&mut self, name: &str, port: usize, frame: &[u8], expected: Expect) {
        self.expect_by(name, port, 0, frame, expected);
    }

    /// Runs a frame in by an RX queue of a port. Returns what became of it, and what was counted.
    pub fn outcome(&mut self, port: usize, queue: u32, frame: &[u8]) -> Outcome {
        let ifindex = self.port[port];
        self.outcome_of(|plane| plane.run_from(ifindex, queue, frame).unwrap())
    }

    /// The same, for a frame that `run` runs through any program of the plane.
    pub fn outcome_of(&mut self, run: impl FnOnce(&mut Plane) -> TestRun) -> Outcome {
        let before = self.plane.counters().unwrap();
        let got = run(&mut self.plane);
        let after = self.plane.counters().unwrap();
        let charges = after.charges.iter();
        let charged = charges.map(|(k, n)| (*k, n - before.charges.get(k).copied().unwrap_or(0)));
        let sent = after.interfaces.iter().map(|(id, count)| {
            let before = before.interfaces.get(id).copied().unwrap_or_default();
            (*id, count.tx_packets - before.tx_packets)
        });
        Outcome {
            action: got.action,
            frame: hex(&got.frame),
            charged: charged.filter(|(_, n)| *n != 0).collect(),
            sent: sent.filter(|(_, n)| *n != 0).collect(),
        }
    }

    #[track_caller]
    pub fn expect_by(&mut self, name: &str, port: usize, queue: u32, frame: &[u8], expected: Expect) {
        self.outcome(port, queue, frame).assert(name, frame, expected);
    }
}

/// What became of a frame.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub action: u32,
    /// In hex, as the program left it.
    pub frame: String,
    pub charged: Vec<((Charge, Reason), u64)>,
    /// Packets sent, by interface.
    pub sent: Vec<(u16, u64)>,
}

impl Outcome {
    #[track_caller]
    pub fn assert(self, name: &str, frame: &[u8], expected: Expect) {
        let Outcome { action, frame: got, charged, sent } = self;
        match expected {
            Expect::Out { interface, frame: out } => {
                assert_eq!(charged, [], "{name}: charged");
                assert_eq!(action, XDP_REDIRECT, "{name}: action");
                assert_eq!(got, hex(&out), "{name}: frame");
                assert_eq!(sent, [(interface, 1)], "{name}: packets sent by interface");
            }
            Expect::Up(payer, reason) => {
                assert_eq!(charged, [((payer, reason), 1)], "{name}: charged");
                assert_eq!(action, XDP_PASS, "{name}: action");
                assert_eq!(got, hex(frame), "{name}: a packet that goes up must be as it came in");
            }
            Expect::Drop(payer, reason) => {
                assert_eq!(charged, [((payer, reason), 1)], "{name}: charged");
                assert_eq!(action, XDP_DROP, "{name}: action");
            }
        }
    }
}

#[derive(Clone)]
pub enum Expect {
    Out { interface: u16, frame: Vec<u8> },
    Up(Charge, Reason),
    Drop(Charge, Reason),
}

pub fn up(reason: Reason) -> Expect {
    Expect::Up(Charge::Router(0), reason)
}

pub fn out(interface: u16, frame: Vec<u8>) -> Expect {
    Expect::Out { interface, frame }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub fn base() -> Vec<Op> {
    let mut ops = vec![
        Op::Port { port: 0, frags: false },
        Op::Port { port: 1, frags: true },
        Op::Router { router: 0, multipath: MultipathHash { l4: [true, true], key: [1, 2] } },
        Op::Router { router: 1, multipath: MultipathHash::default() },
        Op::Interface(1, interface(0, 0, A, &[])),
        Op::Interface(2, interface(0, 1, B, &[])),
        Op::Interface(3, interface(0, 1, B, &[Q100])),
        Op::Interface(4, interface(0, 0, A, &[AD200, Q7])),
        Op::Interface(5, interface(1, 0, V, &[])),
        Op::Interface(6, interface(1, 1, W, &[])),
        Op::LocalAddresses {
            router: 0,
            addresses: addresses(&["10.0.1.1", "10.0.2.1", "10.0.3.1", "10.0.4.1"]),
        },
    ];
    for (prefix, n) in [("10.0.1", 1), ("10.0.2", 2), ("10.0.3", 3), ("10.0.4", 4)] {
        ops.push(route4(0, &format!("{prefix}.0/24"), onlink(n)));
        ops.push(route4(0, &format!("{prefix}.1/32"), pass(Reason::Local, false)));
        ops.push(route4(0, &format!("{prefix}.255/32"), pass(Reason::Broadcast, false)));
        ops.push(neighbour(n, &format!("{prefix}.9"), FRIEND));
        ops.push(neighbour(n, &format!("{prefix}.254"), GATEWAY));
    }
    ops.extend([
        route4(0, "0.0.0.0/0", via(2, "10.0.2.254")),
        route4(0, "10.8.0.0/16", via(2, "10.0.2.77")),
        route4(0, "10.9.0.0/16", pass(Reason::SpecialRoute, false)),
        route4(0, "10.10.0.0/16", pass(Reason::EgressNotAPort, true)),
        route4(
            0,
            "10.11.0.0/16",
            Target::Hop(Hop { interface: 2, gateway: Some("10.0.2.254".parse().unwrap()), mtu: 100 }),
        ),
        route4(1, "0.0.0.0/0", via(6, "10.1.2.254")),
        neighbour(6, "10.1.2.254", OTHER),
        route6(0, "2001:db8:1::/64", onlink(1)),
        route6(0, "2001:db8:2::/64", onlink(2)),
        route6(0, "2001:db8:2::1/128", pass(Reason::Local, false)),
        route6(0, "2001:db8:3::/64", onlink(3)),
        route6(0, "::/0", via(2, "fe80::254")),
        neighbour(2, "2001:db8:2::9", FRIEND),
        neighbour(3, "2001:db8:3::9", FRIEND),
        neighbour(2, "fe80::254", GATEWAY),
    ]);
    ops
}
