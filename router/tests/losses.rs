//! A packet lost after the redirect has a reason, and is charged to the egress port of this Millrace only.

mod common;

use common::{frame::Frame, ifindex, in_new_namespace, run, wire::Wire, world};
use logic::reason::{Class, Reason};
use router::plane::Charge;
use std::time::Duration;

struct World {
    inner: world::World,
    wire: Wire,
}

impl World {
    fn new() -> World {
        World { inner: world::World::new(1), wire: Wire::open("q0") }
    }

    fn count(&self) {
        self.inner.count_losses();
    }

    /// Sends a packet for the neighbour, which must be redirected.
    fn send(&self, payload_bytes: usize) {
        let before = self.inner.forwarded();
        let frame = Frame::udp4(world::A, "10.0.1.5", "10.0.2.9").ip4(|ip| {
            ip.resize(payload_bytes, 0);
            ip[2..4].copy_from_slice(&(payload_bytes as u16).to_be_bytes());
        });
        self.wire.send(&frame.bytes());
        for _ in 0..500 {
            if self.inner.forwarded() > before {
                // The tracepoint comes after the verdict.
                std::thread::sleep(Duration::from_millis(10));
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the packet was not forwarded: {:?}", self.inner.plane.counters().unwrap());
    }

    fn lost(&self) -> Vec<((Charge, Reason), u64)> {
        let counters = self.inner.plane.counters().unwrap();
        counters.charges.into_iter().filter(|((_, reason), _)| reason.class() == Class::Lost).collect()
    }
}

#[test]
#[ignore = "needs root"]
fn losses_have_names() {
    in_new_namespace(|| {
        let world = World::new();
        world.send(100);
        assert_eq!(world.lost(), [], "losses before this Millrace is in charge of counting");
        world.count();
        // A veth takes redirected packets only if its peer has NAPI, which GRO turns on.
        world.send(100);
        let mut expected = vec![((Charge::Port(1), Reason::TxRefused), 1)];
        assert_eq!(world.lost(), expected);
        run("ethtool -K q1 gro on");
        world.send(100);
        assert_eq!(world.lost(), expected, "a packet that arrived is not lost");
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
        assert_eq!(
            is_ready.recv().unwrap(),
            ifindex("p1"),
            "the devices have different indexes, and the test shows nothing"
        );
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
