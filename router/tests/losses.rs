//! What is lost after the redirect has a name, is charged to the egress port, and is nobody else's.

mod common;
#[allow(dead_code)]
#[path = "differential/wire.rs"]
mod wire;

use common::{
    SMALL,
    frame::{Frame, vlan},
    ifindex, in_new_namespace, run,
};
use logic::{
    net::Mac,
    plan::{Hop, Interface, Op, ReversePath, Target},
    reason::{Class, Reason},
    tables::Tables,
};
use router::plane::{Charge, MappedMemory, Mode, Plane, PortLink, Settings};
use std::{path::Path, sync::Arc, time::Duration};
use wire::Wire;

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);
const NEIGHBOUR: Mac = Mac([2, 0, 0, 0, 7, 1]);
/// Nothing is pinned.
const NOWHERE: &str = "/sys/fs/bpf/nowhere";

/// Port 0 is p0, whose wire's end is q0; port 1 is p1, and 10.0.2.9 is behind it.
struct World {
    plane: Plane,
    wire: Wire,
    _tables: Tables<Arc<MappedMemory>>,
    _link: PortLink,
}

fn interface(port: u8, mac: Mac) -> Interface {
    Interface {
        router: 0,
        port,
        vlan: vlan(&[]),
        mac,
        ipv4: true,
        ipv6: true,
        transmit: true,
        reverse_path: ReversePath::Off,
        redirects: false,
    }
}

impl World {
    fn new() -> World {
        for pair in ["p0 type veth peer name q0", "p1 type veth peer name q1"] {
            run(&format!("ip link add {pair}"));
        }
        ["p0", "q0", "p1", "q1"].iter().for_each(|device| drop(run(&format!("ip link set {device} up"))));
        let plane = Plane::load(Settings {
            capacity: SMALL,
            interface_rows: 8,
            sample_interval: 128,
            exception_pps: 0,
            control_pps: 0,
            queue_rows: false,
        })
        .unwrap_or_else(|e| panic!("{e:#}"));
        assert_eq!(plane.troubles(), [""; 0]);
        plane.confirm_until(Duration::from_secs(1 << 32)).unwrap();
        for (id, device) in (0..).zip(["p0", "p1"]) {
            plane.set_port(id, ifindex(device), true, true).unwrap();
        }
        let mut tables = Tables::new(plane.memory());
        // The table believes in a larger MTU than the device is given below.
        let hop = Target::Hop(Hop { interface: 2, gateway: None, mtu: 1500 });
        for op in [
            Op::Port { port: 0, frags: false },
            Op::Port { port: 1, frags: false },
            Op::Router { router: 0, multipath_l4: [false, false] },
            Op::Interface(1, interface(0, A)),
            Op::Interface(2, interface(1, B)),
            Op::Route4(0, "10.0.2.0/24".parse().unwrap(), Some(hop)),
            Op::Neighbour(2, "10.0.2.9".parse().unwrap(), Some(NEIGHBOUR)),
        ] {
            tables.apply(&op).unwrap();
        }
        let link = PortLink::attach(plane.program(), ifindex("p0"), Mode::Native).unwrap();
        World { plane, wire: Wire::open("q0"), _tables: tables, _link: link }
    }

    fn count(&self) {
        self.plane.count_losses(Path::new(NOWHERE));
    }

    /// Sends a packet for the neighbour; it must be redirected.
    fn send(&self, payload_bytes: usize) {
        let forwarded =
            || self.plane.counters().unwrap().interfaces.get(&1).map_or(0, |c| c.forwarded_packets);
        let before = forwarded();
        let frame = Frame::udp4(A, "10.0.1.5", "10.0.2.9").ip4(|ip| {
            ip.resize(payload_bytes, 0);
            ip[2..4].copy_from_slice(&(payload_bytes as u16).to_be_bytes());
        });
        self.wire.send(&frame.bytes());
        for _ in 0..500 {
            if forwarded() > before {
                // The tracepoint comes after the verdict.
                std::thread::sleep(Duration::from_millis(10));
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("not forwarded: {:?}", self.plane.counters().unwrap());
    }

    fn lost(&self) -> Vec<((Charge, Reason), u64)> {
        let counters = self.plane.counters().unwrap();
        counters.charges.into_iter().filter(|((_, reason), _)| reason.class() == Class::Lost).collect()
    }
}

#[test]
#[ignore = "needs root"]
fn losses_have_names() {
    in_new_namespace(|| {
        let world = World::new();
        world.send(100);
        assert_eq!(world.lost(), [], "not in charge yet");
        world.count();
        // A veth takes a redirected packet only if its peer has NAPI, which GRO brings.
        world.send(100);
        let mut expected = vec![((Charge::Port(1), Reason::TxRefused), 1)];
        assert_eq!(world.lost(), expected);
        run("ethtool -K q1 gro on");
        world.send(100);
        assert_eq!(world.lost(), expected, "this one arrived");
        run("ip link set p1 mtu 1000");
        world.send(1200);
        world.send(1000);
        run("ip link set p1 down");
        world.send(100);
        world.send(100);
        expected
            .extend([((Charge::Port(1), Reason::PortDown), 2), ((Charge::Port(1), Reason::OverPortMtu), 1)]);
        assert_eq!(world.lost(), expected);
    });
}

#[test]
#[ignore = "needs root"]
fn losses_of_another_namespace_are_not_counted() {
    let (to_other, in_other) = std::sync::mpsc::channel::<()>();
    let (ready, is_ready) = std::sync::mpsc::channel();
    // The same devices with the same indexes, and another Millrace in charge of them.
    let other = std::thread::spawn(move || {
        in_new_namespace(move || {
            let world = World::new();
            world.count();
            ready.send(ifindex("p1")).unwrap();
            let _ = in_other.recv();
            assert_eq!(world.lost(), []);
        });
    });
    in_new_namespace(move || {
        let world = World::new();
        world.count();
        assert_eq!(is_ready.recv().unwrap(), ifindex("p1"), "indexes repeat");
        world.send(100);
        run("ethtool -K q1 gro on");
        run("ip link set p1 down");
        world.send(100);
        let expected = [((Charge::Port(1), Reason::TxRefused), 1), ((Charge::Port(1), Reason::PortDown), 1)];
        assert_eq!(world.lost(), expected);
        drop(to_other);
    });
    other.join().unwrap();
}
