//! Rows of RX queues: the real program on real veth queues. A veth has no classifier, so the test sets rows
//! by hand, and sends each frame into the queue that it would be steered to.

#[path = "../common/mod.rs"]
mod common;
mod measure;
#[path = "../xdp_table/world.rs"]
#[allow(dead_code)]
mod world;

use common::{frame::Frame, in_new_namespace};
use logic::{
    flow::RulePort,
    memory::{Memory, words},
    plan::{Interface, Op, ReversePath},
    reason::Reason,
    tables::Steered,
};
use router::plane::{FlowPlane, Settings};
use std::{net::IpAddr, sync::atomic::Ordering::Relaxed};
use world::*;

const QUEUES: u32 = 4;

fn with_rows() -> World {
    World::with_queues(Settings { queue_rows: true, ..settings() }, QUEUES)
}

fn steered(port: u8, queue: u8, interface: u16, to: &str) -> Steered {
    Steered { port, queue, interface, destination: to.parse().unwrap() }
}

/// Changes the next hop id in the row of a steered flow to that of another destination. The next hop then
/// shows which packets take the row.
fn mislead(w: &World, steered: &Steered, to: &str) {
    let other = w.tables.lookup(0, to.parse().unwrap())[0].nexthop;
    let memory = w.plane.memory();
    let row = &memory.queues()[steered.row().unwrap() * words::QUEUE_ROW..][..words::QUEUE_ROW];
    assert_ne!(row[0].load(Relaxed), 0, "{steered:?} has no row");
    row[5].store(u64::from(other) | 0xffff_ffff << 32, Relaxed);
}

#[test]
#[ignore = "needs root"]
fn packets_of_the_queue_take_the_row_and_strays_do_not() {
    in_new_namespace(|| {
        let mut w = with_rows();
        let rows = [
            steered(0, 2, 1, "10.11.0.1"),
            steered(0, 2, 1, "2001:db8:ffff::1"),
            steered(0, 3, 4, "10.11.0.1"),
            steered(0, 1, 5, "10.11.0.1"),
        ];
        w.tables.set_steered(&rows.into());
        assert_eq!(w.tables.steered().count(), rows.len());
        mislead(&w, &rows[0], "10.0.2.9");
        mislead(&w, &rows[1], "2001:db8:2::9");
        mislead(&w, &rows[2], "10.0.2.9");
        let udp = |to: &str| Frame::udp4(A, "10.0.1.5", to);
        let (row, table) = (FRIEND, GATEWAY);
        let cases: Vec<(&str, u32, Frame, logic::net::Mac)> = vec![
            ("IPv4, in its queue", 2, udp("10.11.0.1"), row),
            ("another queue", 1, udp("10.11.0.1"), table),
            ("the queue of the other VLAN's row", 3, udp("10.11.0.1"), table),
            ("another destination of the same row", 2, udp("10.11.0.5"), table),
            ("IPv6, in its queue", 2, Frame::udp6(A, "2001:db8:1::5", "2001:db8:ffff::1"), row),
            ("another IPv6 destination", 2, Frame::udp6(A, "2001:db8:1::5", "2001:db8:ffff::5"), table),
            ("a VLAN without a row", 2, udp("10.11.0.1").tagged(&[AD200, Q7]), table),
            ("a VLAN in its queue", 3, udp("10.11.0.1").tagged(&[AD200, Q7]), row),
        ];
        for (name, queue, frame, to) in cases {
            w.expect_by(name, 0, queue, &frame.bytes(), out(2, frame.routed(to, B, &[])));
        }
        let f = Frame::udp4(V, "10.1.1.5", "10.11.0.1");
        w.expect_by("the other router has its own row", 0, 1, &f.bytes(), out(6, f.routed(OTHER, W, &[])));
        w.expect_by("which is not that of its neighbour", 0, 2, &f.bytes(), out(6, f.routed(OTHER, W, &[])));
    });
}

/// Frames to each kind of destination, in every form that a table of cases has.
fn frames() -> Vec<Frame> {
    let mut frames = Vec::new();
    for to in [
        "10.0.2.9",
        "10.0.2.254",
        "10.0.3.9",
        "10.11.0.1",
        "192.0.2.1",
        "10.8.0.1",
        "10.9.0.1",
        "10.0.2.1",
        "10.0.2.77",
    ] {
        let f = Frame::udp4(A, "10.0.1.5", to);
        frames.extend([
            f.clone(),
            f.clone().padded(9),
            f.clone().tagged(&[AD200, Q7]),
            f.clone().ip4(|ip| ip[8] = 1),
            f.clone().with(|ip| ip[10] ^= 1),
            f.clone().ip4(|ip| ip[12..16].copy_from_slice(&[127, 0, 0, 1])),
            f.clone().ip4(|ip| ip[12..16].copy_from_slice(&[10, 0, 2, 1])),
            f.clone().ip4(|ip| ip[12..16].copy_from_slice(&[10, 9, 0, 1])),
            f.clone().with(|ip| ip[0] = 0x46),
            f.clone().with(|ip| ip.truncate(19)),
            f.clone().ip4(|ip| {
                ip.resize(1501, 0);
                ip[2..4].copy_from_slice(&1501_u16.to_be_bytes());
            }),
            f.ip4(|ip| {
                ip.resize(101, 0);
                ip[2..4].copy_from_slice(&101_u16.to_be_bytes());
            }),
        ]);
    }
    for to in ["2001:db8:2::9", "2001:db8:3::9", "2001:db8:ffff::1", "2001:db8:2::1"] {
        let f = Frame::udp6(A, "2001:db8:1::5", to);
        frames.extend([
            f.clone(),
            f.clone().padded(3),
            f.clone().with(|ip| ip[7] = 1),
            f.clone().with(|ip| ip[6] = 0),
            f.clone().with(|ip| ip[8..24].fill(0)),
            f.clone().with(|ip| ip[0] = 0x45),
        ]);
    }
    frames
}

fn destination(frame: &Frame) -> Option<IpAddr> {
    let ip = &frame.payload;
    let v4 = || Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(16..20)?).ok()?));
    let v6 = || Some(IpAddr::from(<[u8; 16]>::try_from(ip.get(24..40)?).ok()?));
    if frame.ether_type == 0x0800 { v4() } else { v6() }
}

/// A frame has the same outcome with its row and without, including the reason counted, with each way to
/// check sources.
#[test]
#[ignore = "needs root"]
fn the_same_bytes_leave_with_rows_and_without() {
    in_new_namespace(|| {
        let mut w = with_rows();
        let mut forwarded = 0;
        for check in [ReversePath::Off, ReversePath::Loose, ReversePath::Strict] {
            for (id, tags) in [(1, &[][..]), (4, &[AD200, Q7])] {
                w.apply([Op::Interface(id, Interface { reverse_path: check, ..interface(0, 0, A, tags) })]);
            }
            for frame in frames() {
                let interface = if frame.tags.is_empty() { 1 } else { 4 };
                let bytes = frame.bytes();
                w.tables.set_steered(&Default::default());
                let without = w.outcome(0, 2, &bytes);
                let wanted = destination(&frame).map(|destination| Steered {
                    port: 0,
                    queue: 2,
                    interface,
                    destination,
                });
                w.tables.set_steered(&wanted.into_iter().collect());
                let with = w.outcome(0, 2, &bytes);
                assert_eq!(with, without, "with a row, and without: {check:?} {}", hex(&bytes));
                let used = w.tables.steered().count();
                assert!(
                    without.action != XDP_REDIRECT || used == 1,
                    "forwarded, but without a row: {}",
                    hex(&bytes)
                );
                forwarded += used * usize::from(without.action == XDP_REDIRECT);
            }
        }
        assert!(forwarded > 50, "only {forwarded} frames took a row");
    });
}

#[test]
#[ignore = "needs root"]
fn a_changed_route_is_followed_at_once() {
    in_new_namespace(|| {
        let mut w = with_rows();
        let wanted = [steered(0, 2, 1, "10.11.0.1"), steered(0, 3, 1, "10.0.2.9")];
        w.tables.set_steered(&wanted.into());
        assert_eq!(w.tables.steered().count(), 2);
        let f = Frame::udp4(A, "10.0.1.5", "10.11.0.1");
        let expect = |w: &mut World, name: &str, expected| w.expect_by(name, 0, 2, &f.bytes(), expected);
        expect(&mut w, "before", out(2, f.routed(GATEWAY, B, &[])));
        w.apply([route4(0, "10.11.0.0/24", via(3, "10.0.3.9"))]);
        expect(&mut w, "a longer route", out(3, f.routed(FRIEND, B, &[Q100])));
        w.apply([neighbour(3, "10.0.3.9", OTHER)]);
        expect(&mut w, "the gateway's new address", out(3, f.routed(OTHER, B, &[Q100])));
        w.apply([route4(0, "10.11.0.1/32", pass(Reason::SpecialRoute, false))]);
        expect(&mut w, "left to the kernel", up(Reason::SpecialRoute));
        w.apply([Op::Route4(0, "10.11.0.1/32".parse().unwrap(), None), Op::InterfaceGone(3)]);
        expect(&mut w, "its interface is gone", up(Reason::EgressNotAPort));
        let f = Frame::udp4(A, "10.0.1.5", "10.0.2.9");
        w.expect_by("a neighbour", 0, 3, &f.bytes(), out(2, f.routed(FRIEND, B, &[])));
        w.apply([Op::Neighbour(2, "10.0.2.9".parse().unwrap(), None)]);
        w.expect_by("a neighbour that is gone", 0, 3, &f.bytes(), up(Reason::Unresolved));
        w.apply([neighbour(2, "10.0.2.9", OTHER)]);
        w.expect_by("and back", 0, 3, &f.bytes(), out(2, f.routed(OTHER, B, &[])));
        assert_eq!(w.tables.steered().count(), 1);
    });
}

#[test]
#[ignore = "needs root"]
fn forwarded_packets_are_sampled_whole() {
    in_new_namespace(|| {
        let mut w = with_rows();
        let udp = Frame::udp4(A, "10.0.1.5", "10.0.3.9").tagged(&[AD200, Q7]).padded(2);
        let other = Frame::udp6(A, "2001:db8:1::5", "2001:db8:2::9");
        let fragment = Frame::udp4(A, "10.0.1.5", "10.0.2.9").ip4(|ip| ip[7] = 1);
        let local = Frame::udp4(A, "10.0.1.5", "10.0.2.1");
        for frame in [&udp, &other, &fragment, &local] {
            w.plane.run_from(w.port[0], 1, &frame.bytes()).unwrap();
        }
        let text = |a: &str| a.parse::<IpAddr>().unwrap();
        let flow = logic::steer::Flow {
            port: 0,
            interface: 4,
            source: text("10.0.1.5"),
            destination: text("10.0.3.9"),
            protocol: 17,
            ports: [1000, 2000],
        };
        let v6 = logic::steer::Flow {
            interface: 1,
            source: text("2001:db8:1::5"),
            destination: text("2001:db8:2::9"),
            ..flow
        };
        let portless =
            logic::steer::Flow { interface: 1, destination: text("10.0.2.9"), ports: [0, 0], ..flow };
        let sampled: Vec<_> = w.plane.take_samples().into_iter().map(|s| (s.flow, s.bytes)).collect();
        assert_eq!(sampled, [(flow, 70), (v6, 80), (portless, 60)]);
        assert_eq!(w.plane.take_samples(), []);
    });
}

/// After flow rules, a packet for NORMAL takes its row and is sampled. A packet that a rule sends is neither.
#[test]
#[ignore = "needs root"]
fn rows_serve_the_packets_that_flow_rules_leave_to_routing() {
    in_new_namespace(|| {
        let mut w = with_rows();
        let row = steered(0, 0, 1, "10.11.0.1");
        let frame = Frame::udp4(A, "10.0.1.5", "10.11.0.1");
        let list = [("10.11.0.1".to_owned(), frame.bytes())];
        let mut normal = measure::flows(&w, &list, RulePort::NORMAL);
        let mut output = measure::flows(&w, &list, RulePort(2));
        let run = |w: &mut World, plane: &mut FlowPlane, name: &str, expected: Vec<u8>| {
            let got = plane.run(w.port[0], &frame.bytes()).unwrap();
            assert_eq!((got.action, hex(&got.frame)), (XDP_REDIRECT, hex(&expected)), "{name}");
            w.plane.take_samples().len()
        };
        assert_eq!(run(&mut w, &mut normal, "without a row", frame.routed(GATEWAY, B, &[])), 1);
        w.tables.set_steered(&[row].into());
        mislead(&w, &row, "10.0.2.9");
        assert_eq!(run(&mut w, &mut normal, "by the row", frame.routed(FRIEND, B, &[])), 1);
        assert_eq!(run(&mut w, &mut output, "by a rule", frame.bytes()), 0);
    });
}
