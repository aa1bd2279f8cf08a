//! The real program reads while the tables change. A packet that leaves is consistent, even if the program
//! read during a change.

mod common;

use common::{
    SMALL,
    frame::{Frame, vlan},
    ifindex, in_new_namespace, run,
};
use logic::{
    memory::Capacity,
    net::Mac,
    plan::{Hop, Interface, InterfaceId, MultipathHash, Op, ReversePath, Target},
    tables::Tables,
};
use router::plane::{MappedMemory, Plane, Settings};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
const LENGTH: Duration = Duration::from_secs(2);
/// Each outcome must occur at least this often, or nothing raced.
const ENOUGH: u32 = 1000;

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

/// Router r has interface 2r+1 on port 0 and 2r+2 on port 1, and sends all packets to next hop 100+r. All
/// interfaces share the only bucket of the index.
fn interface(id: InterfaceId) -> Op {
    let number = id as u8 - 1;
    let interface = Interface {
        router: number / 2,
        port: number % 2,
        vlan: vlan(&[]),
        mac: mac(id as u8),
        ipv4: true,
        ipv6: true,
        transmit: true,
        reverse_path: ReversePath::Off,
        redirects: true,
        accept_local: false,
        priority_tags: false,
        look_at_sources: false,
        group: 0,
    };
    Op::Interface(id, interface)
}

fn neighbour(router: u8, resolved: bool) -> Op {
    Op::Neighbour(egress(router), [10, 0, 0, 1].into(), resolved.then_some(mac(100 + router)))
}

fn egress(router: u8) -> InterfaceId {
    InterfaceId::from(router) * 2 + 2
}

fn world() -> (Plane, Tables<Arc<MappedMemory>>, u32) {
    for (port, peer) in [("p0", "q0"), ("p1", "q1")] {
        run(&format!("ip link add {port} type veth peer name {peer}"));
    }
    let plane = Plane::load(Settings {
        capacity: Capacity { neighbour_buckets: 4, interface_buckets: 1, ..SMALL },
        interface_rows: 64,
        sample_interval: 1,
        exception_pps: 0,
        control_pps: 0,
        queue_rows: false,
        help: false,
    })
    .unwrap();
    plane.confirm_until(Duration::from_secs(1 << 32)).unwrap();
    for (id, name) in [(0, "p0"), (1, "p1")] {
        plane.set_port(id, ifindex(name), true, true).unwrap();
    }
    let mut tables = Tables::new(plane.memory());
    for port in [0, 1] {
        tables.apply(&Op::Port { port, frags: true }).unwrap();
    }
    for router in [0, 1] {
        let gateway = Some([10, 0, 0, 1].into());
        let target = Target::Hop(Hop { interface: egress(router), gateway, mtu: 1500 });
        tables.apply(&Op::Router { router, multipath: MultipathHash::default() }).unwrap();
        tables.apply(&interface(egress(router))).unwrap();
        tables.apply(&neighbour(router, true)).unwrap();
        tables.apply(&Op::Route4(router, "0.0.0.0/0".parse().unwrap(), Some(target))).unwrap();
    }
    (plane, tables, ifindex("p0"))
}

/// Ends the writer, also when the reader panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Runs packets for interfaces 1 and 3 in turn while another thread applies `changes` again and again. A packet is
/// forwarded by the router of its MAC address or goes up as it came.
fn race(changes: fn(u32) -> Vec<Op>) {
    in_new_namespace(move || {
        let (mut plane, mut tables, port) = world();
        tables.apply(&interface(1)).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let stop = Stop(&done);
            scope.spawn(|| {
                for round in 0.. {
                    changes(round).iter().for_each(|op| tables.apply(op).unwrap());
                    if done.load(Relaxed) {
                        break;
                    }
                }
            });
            let (started, mut outcomes) = (Instant::now(), [0; 2]);
            while started.elapsed() < LENGTH {
                for router in [0, 1] {
                    let sent = Frame::udp4(mac(router * 2 + 1), "10.9.0.5", "10.8.0.1");
                    let got = plane.run(port, &sent.bytes()).unwrap();
                    match got.action {
                        XDP_REDIRECT => {
                            let routed = sent.routed(mac(100 + router), mac(egress(router) as u8), &[]);
                            assert_eq!(got.frame, routed, "router {router}");
                            outcomes[0] += 1;
                        }
                        XDP_PASS => {
                            assert_eq!(got.frame, sent.bytes());
                            outcomes[1] += 1;
                        }
                        other => panic!("unexpected action {other}"),
                    }
                }
            }
            drop(stop);
            assert!(
                outcomes.iter().all(|count| *count >= ENOUGH),
                "too few forwarded or passed up: {outcomes:?}"
            );
        });
    });
}

#[test]
#[ignore = "needs root"]
fn an_interface_takes_the_place_of_another() {
    race(|round| {
        let (gone, new) = if round.is_multiple_of(2) { (1, 3) } else { (3, 1) };
        vec![Op::InterfaceGone(gone), interface(new)]
    });
}

#[test]
#[ignore = "needs root"]
fn a_neighbour_is_lost_and_found() {
    race(|round| vec![neighbour(0, round.is_multiple_of(2))]);
}
