//! Rules of firewalls: pairs of interfaces between which they affect nothing.

use super::{common::frame::Frame, out, up, world::*};
use crate::common::in_new_namespace;
use logic::{
    firewall::prove::{AddressPart, Exception},
    plan::{Interface, Op, PairTable},
    reason::Reason,
};
use router::plane::Step;
use std::{net::IpAddr, sync::Arc};

const LINUX: u64 = 0;
const FREE: u64 = 1;
const FREE_EXCEPT: u64 = 2;

/// From group 1 to group 2; nothing is known of other pairs.
fn table(pair: u64, exceptions: Vec<Exception>) -> Option<Arc<PairTable>> {
    let mut table = PairTable { exceptions, ..PairTable::default() };
    table.pairs[1] = pair << 8;
    Some(Arc::new(table))
}

fn exception(part: AddressPart, low: &str, high: &str) -> Exception {
    let bytes = |text: &str| match text.parse().unwrap() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    Exception { part, low: bytes(low), high: bytes(high) }
}

/// Interface 1 is in group 1, interface 2 in group 2, and the others in group 3.
fn grouped() -> World {
    let mut w = World::new();
    let group = |group, interface| Interface { group, ..interface };
    w.apply([
        Op::Interface(1, group(1, interface(0, 0, A, &[]))),
        Op::Interface(2, group(2, interface(0, 1, B, &[]))),
        Op::Interface(3, group(3, interface(0, 1, B, &[Q100]))),
    ]);
    w
}

fn set(w: &mut World, v4: Option<Arc<PairTable>>, v6: Option<Arc<PairTable>>) {
    w.apply([Op::Rules { router: 0, tables: [v4, v6], generation: 0 }]);
}

#[test]
#[ignore = "needs root"]
fn only_free_pairs_are_forwarded() {
    in_new_namespace(|| {
        let mut w = grouped();
        let there = Frame::udp4(A, "10.0.1.5", "10.0.2.9");
        let elsewhere = Frame::udp4(A, "10.0.1.5", "10.0.3.9");
        let there6 = Frame::udp6(A, "2001:db8:1::5", "2001:db8:2::9");
        let forwarded = out(2, there.routed(FRIEND, B, &[]));
        let forwarded6 = out(2, there6.routed(FRIEND, B, &[]));
        w.expect("no rules", &there, forwarded.clone());

        set(&mut w, table(LINUX, vec![]), None);
        w.expect("rules may matter", &there, up(Reason::Rules));
        w.expect("there are none for IPv6", &there6, forwarded6.clone());
        set(&mut w, table(FREE, vec![]), table(LINUX, vec![]));
        w.expect("a free pair", &there, forwarded.clone());
        w.expect("its IPv6", &there6, up(Reason::Rules));
        w.expect("another pair", &elsewhere, up(Reason::Rules));
        set(&mut w, table(LINUX, vec![]), table(FREE, vec![]));
        w.expect("a free pair of IPv6", &there6, forwarded6.clone());
        let back = Frame { destination: B, ..Frame::udp4(A, "10.0.2.9", "10.0.1.9") };
        w.expect_from("the opposite direction", 1, &back.bytes(), up(Reason::Rules));
        w.expect("nothing else changes", &Frame::udp4(A, "10.0.1.5", "10.0.2.1"), up(Reason::Local));

        let (_, steps) = w.plane.explain(w.port[0], &there6.bytes()).unwrap();
        assert!(steps.contains(&Step::Rules { from: 1, to: 2, pair: FREE }), "{steps:?}");

        set(&mut w, None, None);
        w.expect("rules are gone", &there, forwarded);
        w.expect("and those of IPv6", &there6, forwarded6);
        w.expect("also to the other interface", &elsewhere, out(3, elsewhere.routed(FRIEND, B, &[Q100])));
    });
}

#[test]
#[ignore = "needs root"]
fn packets_with_excepted_addresses_go_up() {
    in_new_namespace(|| {
        let mut w = grouped();
        let many =
            (0..6).map(|n| exception(AddressPart::Source, &format!("10.7.{n}.0"), &format!("10.7.{n}.255")));
        let mut all: Vec<_> = many.collect();
        all.push(exception(AddressPart::Destination, "10.0.2.9", "10.0.2.9"));
        all.push(exception(AddressPart::Source, "10.0.1.16", "10.0.1.20"));
        let six = vec![
            exception(AddressPart::Source, "2001:db8:1::ffff:0:0:0", "2001:db8:1:0:ffff::ff"),
            exception(AddressPart::Destination, "2001:db8:2::9", "2001:db8:2::9"),
        ];
        set(&mut w, table(FREE_EXCEPT, all.clone()), table(FREE_EXCEPT, six));
        w.apply([neighbour(2, "10.0.2.10", FRIEND), neighbour(2, "2001:db8:2::a", FRIEND)]);
        for (source, destination, excepted) in [
            ("10.0.1.5", "10.0.2.10", false),
            ("10.0.1.5", "10.0.2.9", true),
            ("10.0.1.15", "10.0.2.10", false),
            ("10.0.1.16", "10.0.2.10", true),
            ("10.0.1.20", "10.0.2.10", true),
            ("10.0.1.21", "10.0.2.10", false),
            ("10.7.3.9", "10.0.2.10", true),
            ("10.7.6.0", "10.0.2.10", false),
            // Of answers, too
            ("10.0.2.9", "10.0.2.10", true),
            ("10.7.6.1", "10.0.2.10", false),
        ] {
            let frame = Frame::udp4(A, source, destination);
            let forwarded = out(2, frame.routed(FRIEND, B, &[]));
            let expected = if excepted { up(Reason::Rules) } else { forwarded };
            w.expect(&format!("{source} to {destination}"), &frame, expected);
        }
        for (source, destination, excepted) in [
            ("2001:db8:1::5", "2001:db8:2::a", false),
            ("2001:db8:1::5", "2001:db8:2::9", true),
            ("2001:db8:1::fffe:ffff:ffff:ffff", "2001:db8:2::a", false),
            ("2001:db8:1::ffff:0:0:0", "2001:db8:2::a", true),
            ("2001:db8:1::ffff:0:0:ff", "2001:db8:2::a", true),
            ("2001:db8:1::ffff:0:1:0", "2001:db8:2::a", false),
        ] {
            let frame = Frame::udp6(A, source, destination);
            let forwarded = out(2, frame.routed(FRIEND, B, &[]));
            let expected = if excepted { up(Reason::Rules) } else { forwarded };
            w.expect(&format!("{source} to {destination}"), &frame, expected);
        }
        set(&mut w, table(FREE, all), None);
        let frame = Frame::udp4(A, "10.0.1.16", "10.0.2.10");
        w.expect("exceptions concern other pairs", &frame, out(2, frame.routed(FRIEND, B, &[])));
    });
}

/// Proofs are not about these: conntrack puts fragments together, NAT translates what is inside an ICMP error, and some
/// matches drop a packet whose header is cut short.
#[test]
#[ignore = "needs root"]
fn packets_that_rules_may_treat_in_a_special_way_go_up() {
    in_new_namespace(|| {
        let mut w = grouped();
        let udp = |change: &dyn Fn(&mut Vec<u8>)| {
            Frame::udp4(A, "10.0.1.5", "10.0.2.9").ip4(|ip| {
                change(ip);
                let length = ip.len() as u16;
                ip[2..4].copy_from_slice(&length.to_be_bytes());
            })
        };
        // Payload of so many bytes, of this protocol, which begins so.
        let of = |protocol: u8, bytes: usize, first: &[u8]| {
            udp(&|ip: &mut Vec<u8>| {
                ip.truncate(20);
                ip.resize(20 + bytes, 0);
                ip[9] = protocol;
                let some = first.len().min(bytes);
                ip[20..20 + some].copy_from_slice(&first[..some]);
            })
        };
        let tcp = |words: u8| [&[0; 12][..], &[words << 4, 0x10]].concat();
        let cases = [
            ("UDP", udp(&|_| ()), false),
            ("first fragment", udp(&|ip| ip[6] = 0x20), true),
            ("last fragment", udp(&|ip| ip[7] = 2), true),
            ("UDP, whole", of(17, 8, &[]), false),
            ("UDP, cut", of(17, 7, &[]), true),
            ("TCP", of(6, 20, &tcp(5)), false),
            ("TCP, cut", of(6, 19, &tcp(5)), true),
            ("TCP, with options", of(6, 24, &tcp(6)), false),
            ("TCP, options cut", of(6, 23, &tcp(6)), true),
            ("TCP, header too short", of(6, 24, &tcp(4)), true),
            ("ICMP echo", of(1, 8, &[8]), false),
            ("ICMP echo, cut", of(1, 7, &[8]), true),
            ("ICMP unreachable", of(1, 40, &[3]), true),
            ("ICMP time exceeded", of(1, 40, &[11]), true),
            ("ICMP of an unknown type", of(1, 40, &[77]), true),
            ("GRE", of(47, 8, &[]), false),
            ("ESP", of(50, 8, &[]), false),
            ("SCTP", of(132, 40, &[]), true),
            ("DCCP", of(33, 40, &[]), true),
            ("AH", of(51, 40, &[]), true),
        ];
        for (name, frame, _) in &cases {
            w.expect(&format!("{name}, no rules"), frame, out(2, frame.routed(FRIEND, B, &[])));
        }
        set(&mut w, table(FREE, vec![]), table(FREE, vec![]));
        for (name, frame, special) in cases {
            let forwarded = out(2, frame.routed(FRIEND, B, &[]));
            w.expect(name, &frame, if special { up(Reason::Rules) } else { forwarded });
        }

        let of6 = |protocol: u8, bytes: u16, first: u8| {
            Frame::udp6(A, "2001:db8:1::5", "2001:db8:2::9").with(|ip| {
                ip[4..6].copy_from_slice(&bytes.to_be_bytes());
                ip[6] = protocol;
                ip.resize(40 + usize::from(bytes), 0);
                ip[40] = first;
            })
        };
        for (name, frame, special) in [
            ("ICMPv6 echo", of6(58, 8, 128), false),
            ("ICMPv6 too big", of6(58, 48, 2), true),
            ("fragment header", of6(44, 40, 17), true),
            ("destination options", of6(60, 40, 17), true),
            ("routing header", of6(43, 40, 17), true),
            ("UDP", of6(17, 8, 0), false),
            ("UDP, cut", of6(17, 7, 0), true),
        ] {
            let forwarded = out(2, frame.routed(FRIEND, B, &[]));
            w.expect(name, &frame, if special { up(Reason::Rules) } else { forwarded });
        }
    });
}
