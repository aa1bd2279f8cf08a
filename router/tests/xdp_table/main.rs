//! The kernel plane as a table: packet in; verdict, packet out, counters. The real program, by BPF_PROG_TEST_RUN.

mod captures;
#[path = "../common/mod.rs"]
mod common;
mod connections;
mod elements;
mod features;
mod handed;
mod instructions;
mod random;
mod rules;
mod shares;
mod world;

use common::{frame::Frame, ifindex, in_new_namespace, only_on, run};
use logic::{
    net::{Mac, Tag},
    plan::{Hop, Interface, MultipathHash, Op, ReversePath, Target},
    reason::Reason,
};
use router::plane::{Backlogs, Charge, Settings, Step};
use std::time::{Duration, Instant};
use world::*;

#[test]
#[ignore = "needs root"]
fn forwards_ipv4() {
    in_new_namespace(|| {
        let mut w = World::new();
        let udp = |to: &str| Frame::udp4(A, "10.0.1.5", to);

        let f = udp("10.0.2.9");
        w.expect("to a neighbour", &f, out(2, f.routed(FRIEND, B, &[])));
        let f = udp("192.0.2.1");
        w.expect("by the default route", &f, out(2, f.routed(GATEWAY, B, &[])));
        let f = udp("10.0.2.9").padded(7);
        w.expect("padding is cut", &f, out(2, f.routed(FRIEND, B, &[])));
        let f = udp("10.0.3.9");
        w.expect("a tag is pushed", &f, out(3, f.routed(FRIEND, B, &[Q100])));
        let f = udp("10.0.3.9").padded(3);
        w.expect("a tag is pushed and padding cut", &f, out(3, f.routed(FRIEND, B, &[Q100])));
        let f = udp("10.0.2.9").tagged(&[AD200, Q7]);
        w.expect("two tags are popped", &f, out(2, f.routed(FRIEND, B, &[])));
        let f = udp("10.0.3.9").tagged(&[AD200, Q7]);
        w.expect("two tags become one", &f, out(3, f.routed(FRIEND, B, &[Q100])));
        let f = Frame::udp4(B, "10.0.3.5", "10.0.4.9").tagged(&[Q100]);
        w.expect_from("one tag becomes two", 1, &f.bytes(), out(4, f.routed(FRIEND, A, &[AD200, Q7])));
        let f = Frame::udp4(B, "10.0.2.5", "10.0.3.9");
        w.expect_from(
            "out by the port it came in, on a VLAN",
            1,
            &f.bytes(),
            out(3, f.routed(FRIEND, B, &[Q100])),
        );
        let f = Frame::udp4(V, "10.1.1.5", "10.0.2.9");
        w.expect("the other router by its MAC", &f, out(6, f.routed(OTHER, W, &[])));
        let f = udp("10.0.2.9").ip4(|ip| ip[6..8].copy_from_slice(&[0x20, 0x10]));
        w.expect("a fragment", &f, out(2, f.routed(FRIEND, B, &[])));
        let f = udp("10.0.2.9").ip4(|ip| ip[9] = 200);
        w.expect("an unknown protocol", &f, out(2, f.routed(FRIEND, B, &[])));
        let f = udp("240.0.0.1");
        w.expect("class E is unicast to Linux", &f, out(2, f.routed(GATEWAY, B, &[])));
    });
}

#[test]
#[ignore = "needs root"]
fn forwards_ipv6() {
    in_new_namespace(|| {
        let mut w = World::new();
        let udp = |to: &str| Frame::udp6(A, "2001:db8:1::5", to);

        let f = udp("2001:db8:2::9");
        w.expect("to a neighbour", &f, out(2, f.routed(FRIEND, B, &[])));
        let f = udp("2001:db8:ffff::1");
        w.expect("by a link-local gateway", &f, out(2, f.routed(GATEWAY, B, &[])));
        let f = udp("2001:db8:3::9").padded(5);
        w.expect("a tag is pushed and padding cut", &f, out(3, f.routed(FRIEND, B, &[Q100])));
        let f = udp("2001:db8:2::9").with(|ip| ip[6] = 44);
        w.expect("a fragment header does not matter to a router", &f, out(2, f.routed(FRIEND, B, &[])));
        let f = udp("2001:db8:2::9").with(|ip| ip[6] = 60);
        w.expect("destination options do not matter either", &f, out(2, f.routed(FRIEND, B, &[])));

        for (name, frame, reason) in [
            ("hop limit 1", udp("2001:db8:2::9").with(|ip| ip[7] = 1), Reason::TtlExceeded),
            ("hop limit 0", udp("2001:db8:2::9").with(|ip| ip[7] = 0), Reason::TtlExceeded),
            ("hop-by-hop options", udp("2001:db8:2::9").with(|ip| ip[6] = 0), Reason::Ipv6Extension),
            ("payload beyond the frame", udp("2001:db8:2::9").with(|ip| ip[5] += 1), Reason::Ipv6BadHeader),
            ("version 4", udp("2001:db8:2::9").with(|ip| ip[0] = 0x45), Reason::Ipv6BadHeader),
            ("to the router", udp("2001:db8:2::1"), Reason::Local),
            ("multicast destination", udp("ff02::5"), Reason::Broadcast),
            ("link-local destination", udp("fe80::9"), Reason::Local),
            ("unknown neighbour", udp("2001:db8:2::77"), Reason::Unresolved),
            ("back where it came from", udp("2001:db8:1::9"), Reason::Unresolved),
            ("link-local source", Frame::udp6(A, "fe80::5", "2001:db8:2::9"), Reason::BadSource),
            ("multicast source", Frame::udp6(A, "ff02::1", "2001:db8:2::9"), Reason::BadSource),
            ("unspecified source", Frame::udp6(A, "::", "2001:db8:2::9"), Reason::BadSource),
            ("loopback source", Frame::udp6(A, "::1", "2001:db8:2::9"), Reason::BadSource),
        ] {
            w.expect(name, &frame, up(reason));
        }
        w.apply([neighbour(1, "2001:db8:1::9", FRIEND)]);
        w.expect("back where it came from, resolved", &udp("2001:db8:1::9"), up(Reason::SameInterface));
        let f = udp("2001:db8:2::9").with(|ip| {
            ip[4..6].fill(0);
            ip[6] = 59;
            ip.truncate(40);
        });
        w.expect("no payload", &f, out(2, f.routed(FRIEND, B, &[])));
        for (from, to) in
            [("2001:db8:2::9", "2001:db8:2::1"), ("fe80::9", "2001:db8:2::1"), ("fe80::9", "fe80::1")]
        {
            let solicitation = Frame::udp6(A, from, to).with(|ip| (ip[6], ip[40]) = (58, 135));
            let name = format!("neighbour solicitation from {from} to {to}");
            w.expect(&name, &solicitation, up(Reason::NeighbourDiscovery));
        }
        let f = Frame::udp6(A, "fe80::9", "2001:db8:2::1");
        w.expect("link-local source to the router itself", &f, up(Reason::Local));
        let group = Mac([0x33, 0x33, 0xff, 0, 0, 1]);
        let solicitation =
            Frame::udp6(group, "2001:db8:2::9", "ff02::1:ff00:1").with(|ip| (ip[6], ip[40]) = (58, 135));
        let by_port = Expect::Up(Charge::Port(0), Reason::NeighbourDiscovery);
        w.expect("neighbour solicitation to a group", &solicitation, by_port);
    });
}

/// Frames to the interface of router 0 that it must not forward, and the reasons.
fn for_the_kernel() -> Vec<(&'static str, Frame, Reason)> {
    let udp = |to: &str| Frame::udp4(A, "10.0.1.5", to);
    let from = |source: &str| Frame::udp4(A, source, "10.0.2.9");
    vec![
        ("TTL 1", udp("10.0.2.9").ip4(|ip| ip[8] = 1), Reason::TtlExceeded),
        ("TTL 0", udp("10.0.2.9").ip4(|ip| ip[8] = 0), Reason::TtlExceeded),
        ("checksum", udp("10.0.2.9").with(|ip| ip[10] ^= 1), Reason::Ipv4BadHeader),
        ("version 6 in an IPv4 frame", udp("10.0.2.9").with(|ip| ip[0] = 0x65), Reason::Ipv4BadHeader),
        ("header length 4", udp("10.0.2.9").with(|ip| ip[0] = 0x44), Reason::Ipv4BadHeader),
        (
            "total length 19",
            udp("10.0.2.9").ip4(|ip| ip[2..4].copy_from_slice(&[0, 19])),
            Reason::Ipv4BadHeader,
        ),
        ("total length beyond the frame", udp("10.0.2.9").ip4(|ip| ip[3] += 1), Reason::Ipv4BadHeader),
        ("options", options(udp("10.0.2.9")), Reason::Ipv4Options),
        ("to the router", udp("10.0.2.1"), Reason::Local),
        ("to the router, TTL 1", udp("10.0.2.1").ip4(|ip| ip[8] = 1), Reason::Local),
        ("subnet broadcast", udp("10.0.2.255"), Reason::Broadcast),
        ("limited broadcast", udp("255.255.255.255"), Reason::Broadcast),
        ("multicast", udp("224.0.0.5"), Reason::Broadcast),
        ("destination 0/8", udp("0.1.2.3"), Reason::Broadcast),
        ("destination 127/8", udp("127.0.0.1"), Reason::Broadcast),
        ("unknown neighbour", udp("10.0.2.50"), Reason::Unresolved),
        ("unresolved gateway", udp("10.8.0.1"), Reason::Unresolved),
        ("blackhole", udp("10.9.0.1"), Reason::SpecialRoute),
        ("not a port", udp("10.10.0.1"), Reason::EgressNotAPort),
        ("back where it came from", udp("10.0.1.9"), Reason::SameInterface),
        ("source 0/8", from("0.0.0.0"), Reason::BadSource),
        ("source 127/8", from("127.0.0.1"), Reason::BadSource),
        ("source multicast", from("239.1.1.1"), Reason::BadSource),
        ("source broadcast", from("255.255.255.255"), Reason::BadSource),
        ("source is the router", from("10.0.2.1"), Reason::BadSource),
        ("ARP to the interface", Frame::new(A, 0x0806, vec![0; 28]), Reason::Arp),
        ("unknown EtherType", Frame::new(A, 0x88cc, vec![0; 46]), Reason::NotIp),
        ("a third tag", third_tag(udp("10.0.2.9").tagged(&[AD200, Q7])), Reason::NotIp),
    ]
}

#[test]
#[ignore = "needs root"]
fn passes_up_packets_that_it_is_not_sure_of() {
    in_new_namespace(|| {
        let mut w = World::new();
        for (name, frame, reason) in for_the_kernel() {
            w.expect(name, &frame, up(reason));
        }
    });
}

#[test]
#[ignore = "needs root"]
fn charges_the_port_where_no_interface_matches() {
    in_new_namespace(|| {
        let mut w = World::new();
        let udp = |to: &str| Frame::udp4(A, "10.0.1.5", to);
        let by_port = |reason| Expect::Up(Charge::Port(0), reason);
        w.expect(
            "someone else's MAC",
            &Frame::udp4(OTHER, "10.0.1.5", "10.0.2.9"),
            by_port(Reason::NotOurMac),
        );
        w.expect("a VLAN nobody has", &udp("10.0.2.9").tagged(&[Q100]), by_port(Reason::NotOurMac));
        w.expect(
            "VID 0",
            &udp("10.0.2.9").tagged(&[Tag { vid: 0, service: false }]),
            by_port(Reason::NotOurMac),
        );
        w.expect(
            "Ethernet broadcast",
            &Frame::udp4(Mac([255; 6]), "10.0.1.5", "10.0.2.9"),
            by_port(Reason::Broadcast),
        );
        w.expect("ARP broadcast", &Frame::new(Mac([255; 6]), 0x0806, vec![0; 28]), by_port(Reason::Arp));
    });
}

/// Adds VLAN 5 inside the tags that the frame has.
fn third_tag(frame: Frame) -> Frame {
    let [high, low] = frame.ether_type.to_be_bytes();
    Frame { ether_type: 0x8100, ..frame }.with(|p| p.splice(0..0, [0, 5, high, low]).for_each(drop))
}

/// Adds four bytes of options (end of list). The checksum is right.
fn options(frame: Frame) -> Frame {
    frame.ip4(|ip| {
        ip.splice(20..20, [0, 0, 0, 0]).for_each(drop);
        ip[0] = 0x46;
        let length = ip.len() as u16;
        ip[2..4].copy_from_slice(&length.to_be_bytes());
    })
}

#[test]
#[ignore = "needs root"]
fn truncated_frames_go_up_whole() {
    in_new_namespace(|| {
        let mut w = World::new();
        for frame in [
            Frame::udp4(A, "10.0.1.5", "10.0.2.9"),
            Frame::udp6(A, "2001:db8:1::5", "2001:db8:2::9"),
            Frame::udp4(A, "10.0.1.5", "10.0.2.9").tagged(&[AD200, Q7]),
        ] {
            let whole = frame.bytes();
            for length in 14..whole.len() {
                let got = w.plane.run(w.port[0], &whole[..length]).unwrap();
                assert_eq!(got.action, XDP_PASS, "{length} of {} bytes", whole.len());
                assert_eq!(got.frame, &whole[..length]);
            }
        }
    });
}

#[test]
#[ignore = "needs root"]
fn checksum_update_agrees_with_recomputation() {
    in_new_namespace(|| {
        let mut w = World::new();
        for id in (0..=u16::MAX).step_by(7).chain([0xfffe, 0xffff]) {
            for ttl in [2, 64, 255] {
                let f = Frame::udp4(A, "10.0.1.5", "10.0.2.9").ip4(|ip| {
                    ip[4..6].copy_from_slice(&id.to_be_bytes());
                    ip[8] = ttl;
                });
                let got = w.plane.run(w.port[0], &f.bytes()).unwrap();
                assert_eq!(got.frame, f.routed(FRIEND, B, &[]), "id {id} ttl {ttl}");
            }
        }
    });
}

#[test]
#[ignore = "needs root"]
fn respects_mtu_and_multi_buffer() {
    in_new_namespace(|| {
        let mut w = World::new();
        let sized = |to: &str, bytes: usize| {
            Frame::udp4(A, "10.0.1.5", to).ip4(|ip| {
                ip.resize(bytes, 0);
                ip[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
            })
        };
        let f = sized("10.0.2.9", 1500);
        w.expect("exactly the MTU", &f, out(2, f.routed(FRIEND, B, &[])));
        let may_fragment = |f: Frame| f.ip4(|ip| ip[6] = 0);
        w.expect("one byte more", &sized("10.0.2.9", 1501), up(Reason::OverMtu));
        w.expect(
            "one byte more, which Linux fragments",
            &may_fragment(sized("10.0.2.9", 1501)),
            up(Reason::Fragmented),
        );
        let f = sized("10.11.0.1", 100);
        w.expect("the route's own MTU", &f, out(2, f.routed(GATEWAY, B, &[])));
        w.expect("above the route's own MTU", &sized("10.11.0.1", 101), up(Reason::OverMtu));
        w.expect("the same, fragmented", &may_fragment(sized("10.11.0.1", 101)), up(Reason::Fragmented));

        let jumbo =
            |interface, to: &str| route4(0, to, Target::Hop(Hop { interface, gateway: None, mtu: 9000 }));
        w.apply([jumbo(2, "10.0.2.0/24"), jumbo(1, "10.0.1.0/24"), neighbour(2, "10.0.2.9", FRIEND)]);
        let f = sized("10.0.2.9", 9000);
        w.expect("jumbo", &f, out(2, f.routed(FRIEND, B, &[])));
        let back = Frame { destination: B, ..sized("10.0.1.9", 9000) };
        w.expect_from("to a port without fragments", 1, &back.bytes(), up(Reason::MultiBuffer));
        w.expect("multi-buffer with padding", &sized("10.0.2.9", 9000).padded(10), up(Reason::NoHeadroom));
    });
}

#[test]
#[ignore = "needs root"]
fn reverse_path_filter() {
    in_new_namespace(|| {
        let mut w = World::new();
        let mode = |m| Op::Interface(1, Interface { reverse_path: m, ..interface(0, 0, A, &[]) });
        let from = |source: &str| Frame::udp4(A, source, "10.0.2.9");
        let ok = |f: &Frame| out(2, f.routed(FRIEND, B, &[]));

        w.apply([mode(ReversePath::Loose)]);
        for source in ["10.0.1.5", "10.0.2.5", "192.0.2.7", "10.10.0.1"] {
            w.expect(&format!("loose {source}"), &from(source), ok(&from(source)));
        }
        w.expect("loose, blackholed source", &from("10.9.0.1"), up(Reason::ReversePath));
        w.expect("loose, broadcast source", &from("10.0.2.255"), up(Reason::BadSource));
        w.expect("loose, own source", &from("10.0.3.1"), up(Reason::BadSource));

        w.apply([mode(ReversePath::Strict)]);
        w.expect("strict, right way", &from("10.0.1.5"), ok(&from("10.0.1.5")));
        for source in ["10.0.2.5", "192.0.2.7", "10.10.0.1"] {
            w.expect(&format!("strict {source}"), &from(source), up(Reason::ReversePath));
        }
        let f = Frame::udp4(A, "10.0.2.5", "10.0.2.1");
        w.expect("strict, to the router itself", &f, up(Reason::Local));
        let members = [(via(1, "10.0.1.254"), 1), (via(2, "10.0.2.254"), 1)];
        w.apply([route4(0, "10.21.0.0/16", Target::Multi(members.into()))]);
        w.expect("strict, two ways back", &from("10.21.0.1"), up(Reason::SourceUnsure));
        w.apply([route4(0, "10.22.0.1/32", pass(Reason::LearnedPath, true))]);
        w.expect("strict, learned", &from("10.22.0.1"), up(Reason::SourceUnsure));
        w.apply([mode(ReversePath::Off)]);
        w.expect("off", &from("10.9.0.1"), ok(&from("10.9.0.1")));
    });
}

/// Priority tags (802.1p): Linux ignores the tag of VLAN 0 if no device has that VLAN.
#[test]
#[ignore = "needs root"]
fn frames_of_vlan_0_are_untagged_unless_a_device_has_that_vlan() {
    in_new_namespace(|| {
        let mut w = World::new();
        let by_port = |reason| Expect::Up(Charge::Port(0), reason);
        let zero = |service| Tag { vid: 0, service };
        let priority = |frame: Frame| {
            let mut bytes = frame.bytes();
            bytes[14] |= 0xe0;
            bytes
        };
        let udp = Frame::udp4(A, "10.0.1.5", "10.0.2.9");
        let udp6 = Frame::udp6(A, "2001:db8:1::5", "2001:db8:2::9");
        let to_vlan = Frame::udp4(A, "10.0.1.5", "10.0.3.9");
        let tagged = |frame: &Frame, tags: &[Tag]| frame.clone().tagged(tags);
        w.expect("not allowed", &tagged(&udp, &[zero(false)]), by_port(Reason::NotOurMac));
        let leave = |on| Op::Interface(1, Interface { priority_tags: on, ..interface(0, 0, A, &[]) });
        w.apply([leave(true)]);
        for service in [false, true] {
            let f = |frame: &Frame| priority(tagged(frame, &[zero(service)]));
            w.expect_from("IPv4", 0, &f(&udp), out(2, udp.routed(FRIEND, B, &[])));
            w.expect_from("IPv6", 0, &f(&udp6), out(2, udp6.routed(FRIEND, B, &[])));
            w.expect_from("into a VLAN", 0, &f(&to_vlan), out(3, to_vlan.routed(FRIEND, B, &[Q100])));
            let padded = f(&udp.clone().padded(6));
            w.expect_from("with padding", 0, &padded, out(2, udp.routed(FRIEND, B, &[])));
        }
        let own = Frame::udp4(A, "10.0.1.5", "10.0.1.1").tagged(&[zero(false)]);
        w.expect("to the router, as it came", &own, up(Reason::Local));
        let last = udp.clone().ip4(|ip| ip[8] = 1).tagged(&[zero(false)]);
        w.expect("TTL 1, as it came", &last, up(Reason::TtlExceeded));
        for tags in [[zero(false), zero(false)], [zero(false), Q100], [Q100, zero(false)]] {
            w.expect("a second tag", &tagged(&udp, &tags), by_port(Reason::NotOurMac));
        }
        let stranger = Frame { destination: OTHER, ..tagged(&udp, &[zero(false)]) };
        w.expect("another MAC address", &stranger, by_port(Reason::NotOurMac));
        // A device of VLAN 0 takes these frames.
        w.apply([leave(false), Op::Interface(9, interface(0, 0, A, &[zero(false)]))]);
        let of_vlan = tagged(&udp, &[zero(false)]);
        w.expect("a device of VLAN 0", &of_vlan, out(2, udp.routed(FRIEND, B, &[])));
        w.expect("VLAN 0 of 802.1ad", &tagged(&udp, &[zero(true)]), by_port(Reason::NotOurMac));
    });
}

/// `fib_validate_source()` with `accept_local`, and for a router that has a local prefix.
#[test]
#[ignore = "needs root"]
fn packets_from_the_routers_own_addresses_that_may_pass_go_to_the_kernel() {
    in_new_namespace(|| {
        let mut w = World::new();
        let from = |source: &str| Frame::udp4(A, source, "10.0.2.9");
        let ok = |f: &Frame| out(2, f.routed(FRIEND, B, &[]));
        let set = |w: &mut World, change: fn(&mut Interface)| {
            let mut new = interface(0, 0, A, &[]);
            change(&mut new);
            w.apply([Op::Interface(1, new)]);
        };
        type Change = fn(&mut Interface);
        let rows: [(Change, Reason); 3] = [
            (|i| i.accept_local = true, Reason::SourceUnsure),
            (|i| (i.accept_local, i.reverse_path) = (true, ReversePath::Loose), Reason::SourceUnsure),
            (|_| {}, Reason::BadSource),
        ];
        for (change, reason) in rows {
            set(&mut w, change);
            w.expect("own source", &from("10.0.3.1"), up(reason));
            w.expect("source of another host", &from("10.0.1.5"), ok(&from("10.0.1.5")));
            w.expect("127/8", &from("127.0.0.1"), up(Reason::BadSource));
        }
        w.apply([route4(0, "198.18.0.0/15", pass(Reason::LocalPrefix, false))]);
        let anycast = Frame::udp4(A, "10.0.1.5", "198.18.0.1");
        w.expect("to the prefix", &anycast, up(Reason::LocalPrefix));
        set(&mut w, |i| i.look_at_sources = true);
        w.expect("from the prefix", &from("198.18.7.7"), up(Reason::SourceUnsure));
        w.expect("from elsewhere", &from("10.0.1.5"), ok(&from("10.0.1.5")));
        w.expect("without a route back", &from("10.9.0.1"), ok(&from("10.9.0.1")));
        w.expect("own source", &from("10.0.3.1"), up(Reason::BadSource));
    });
}

#[test]
#[ignore = "needs root"]
fn multipath_keeps_weights_and_flows() {
    in_new_namespace(|| {
        let mut w = World::new();
        let members: Vec<_> = vec![(via(2, "10.0.2.254"), 3), (via(3, "10.0.3.254"), 1)];
        w.apply([
            route4(0, "10.20.0.0/16", Target::Multi(members.clone().into())),
            route6(
                0,
                "2001:db8:20::/48",
                Target::Multi([(via(2, "fe80::254"), 1), (via(3, "2001:db8:3::9"), 1)].into()),
            ),
        ]);
        let count = |w: &mut World, frames: &mut dyn Iterator<Item = Frame>| {
            let mut tagged = 0;
            for f in frames {
                let got = w.plane.run(w.port[0], &f.bytes()).unwrap();
                assert_eq!(got.action, XDP_REDIRECT);
                tagged += usize::from(got.frame[12..14] == [0x81, 0]);
            }
            tagged
        };
        let ports = |to: &'static str| {
            (0..4000_u16).map(move |p| {
                Frame::udp4(A, "10.0.1.5", to).with(|ip| ip[20..22].copy_from_slice(&p.to_be_bytes()))
            })
        };
        let tagged = count(&mut w, &mut ports("10.20.0.1"));
        assert!(
            (850..1150).contains(&tagged),
            "weights 3:1 over 4000 flows, layer 4: {tagged} by the lighter member"
        );
        let fragments = count(&mut w, &mut ports("10.20.0.1").map(|f| f.ip4(|ip| ip[6] = 0x20)));
        assert!(
            fragments == 0 || fragments == 4000,
            "fragments have no ports, but {fragments} of 4000 went by the lighter member"
        );

        w.apply([Op::Router { router: 0, multipath: MultipathHash::default() }]);
        let same = count(&mut w, &mut ports("10.20.0.1"));
        assert!(
            same == 0 || same == 4000,
            "layer 3: {same} of 4000 packets of one pair of addresses went by the lighter member"
        );
        let hosts =
            &mut (0..4000_u16).map(|h| Frame::udp4(A, "10.0.1.5", &format!("10.20.{}.{}", h >> 8, h & 255)));
        let tagged = count(&mut w, hosts);
        assert!(
            (850..1150).contains(&tagged),
            "weights 3:1 over 4000 addresses, layer 3: {tagged} by the lighter member"
        );
        let hosts =
            &mut (0..4000_u16).map(|h| Frame::udp6(A, "2001:db8:1::5", &format!("2001:db8:20::{h:x}")));
        let tagged = count(&mut w, hosts);
        assert!(
            (1800..2200).contains(&tagged),
            "IPv6, 1:1 over 4000 addresses: {tagged} by the second member"
        );
    });
}

#[test]
#[ignore = "needs root"]
fn gates_close() {
    in_new_namespace(|| {
        let mut w = World::new();
        let f = Frame::udp4(A, "10.0.1.5", "10.0.2.9");
        w.plane.confirm_until(Duration::from_nanos(1)).unwrap();
        w.expect("no daemon", &f, Expect::Up(Charge::Port(0), Reason::Fallback));
        w.plane.confirm_until(Duration::from_secs(1 << 32)).unwrap();
        w.plane.set_port(0, w.port[0], false, true).unwrap();
        w.expect("port not trusted", &f, Expect::Up(Charge::Port(0), Reason::PortNotReady));
        w.plane.set_port(0, w.port[0], true, true).unwrap();
        w.plane.clear_port(1, w.port[1]).unwrap();
        w.expect("no transmit slot", &f, up(Reason::TxNotReady));
        w.expect("no transmit slot, padding", &f.clone().padded(4), up(Reason::TxNotReady));
        w.plane.set_port(1, w.port[1], true, true).unwrap();
        w.apply([Op::Interface(1, Interface { ipv4: false, ..interface(0, 0, A, &[]) })]);
        w.expect("router not accelerated", &f, up(Reason::RouterNotAccelerated));
        w.apply([
            Op::Interface(1, interface(0, 0, A, &[])),
            Op::Interface(2, Interface { transmit: false, ..interface(0, 1, B, &[]) }),
        ]);
        w.expect("egress down", &f, up(Reason::TxNotReady));
        w.apply([Op::Interface(2, interface(0, 1, B, &[]))]);
        w.expect("all open again", &f, out(2, f.routed(FRIEND, B, &[])));
        w.apply([neighbour(2, "10.0.2.9", W)]);
        w.expect("the neighbour is another router here", &f, up(Reason::SameBox));
        let lo = w.plane.run(ifindex("lo"), &f.bytes()).unwrap();
        assert_eq!(lo.action, XDP_PASS);
        assert_eq!(w.plane.counters().unwrap().charges.get(&(Charge::Other, Reason::NotAPort)), Some(&1));
    });
}

#[test]
#[ignore = "needs root"]
fn polices_exceptions_not_forwarding() {
    in_new_namespace(|| {
        // One packet, then nothing for a second. Each core has a limit of its own.
        let mut w = World::with(Settings { exception_pps: 1, control_pps: 1, ..settings() });
        only_on([rustix::thread::sched_getcpu()]);
        let expired = Frame::udp4(A, "10.0.1.5", "10.0.2.9").ip4(|ip| ip[8] = 1);
        let local = Frame::udp4(A, "10.0.1.5", "10.0.2.1");
        let plain = Frame::udp4(A, "10.0.1.5", "10.0.2.9");
        let arp = Frame::new(A, 0x0806, vec![0; 28]);
        w.expect("first", &expired, up(Reason::TtlExceeded));
        w.expect("second", &expired, Expect::Drop(Charge::Router(0), Reason::Policed));
        w.expect("ARP has its own budget", &arp, up(Reason::Arp));
        w.expect("and its own limit", &arp, Expect::Drop(Charge::Router(0), Reason::ControlPoliced));
        w.expect("local traffic is not policed", &local, up(Reason::Local));
        w.expect("forwarding is not policed", &plain, out(2, plain.routed(FRIEND, B, &[])));
        let theirs = Frame::udp4(V, "10.1.1.5", "10.0.2.9").ip4(|ip| ip[8] = 1);
        w.expect("the other router has its own", &theirs, Expect::Up(Charge::Router(1), Reason::TtlExceeded));
        std::thread::sleep(Duration::from_millis(1100));
        w.expect("later", &expired, up(Reason::TtlExceeded));
    });
}

/// Packets that Linux forwards at a higher cost are dropped only if other packets would be lost for them.
#[test]
#[ignore = "needs root"]
fn slow_packets_are_policed_only_while_the_cpu_is_behind() {
    in_new_namespace(|| {
        let mut w = World::with(Settings { exception_pps: 1, control_pps: 0, ..settings() });
        let backlogs = Backlogs::open().unwrap();
        // Each core has a limit of its own, and counts what comes in on it.
        only_on([rustix::thread::sched_getcpu()]);
        // No poll ends in a test run, so these rows stay. A time in the future is never too old.
        let (recent, old) = (u64::MAX / 2, 0);
        let big = |destination: &str| {
            Frame::udp4(A, "10.0.1.5", destination).ip4(|ip| {
                ip.resize(1501, 0);
                ip[2..4].copy_from_slice(&1501_u16.to_be_bytes());
                ip[6] = 0;
            })
        };
        let options = Frame::udp4(A, "10.0.1.5", "10.0.2.9").ip4(|ip| {
            ip.splice(20..20, [1, 1, 1, 0]);
            ip[0] = 0x46;
            let length = ip.len() as u16;
            ip[2..4].copy_from_slice(&length.to_be_bytes());
        });
        let slow = [(big("10.0.2.9"), Reason::Fragmented), (options, Reason::Ipv4Options)];
        let plain = Frame::udp4(A, "10.0.1.5", "10.0.2.9");
        let expired = Frame::udp4(A, "10.0.1.5", "10.0.2.9").ip4(|ip| ip[8] = 1);
        let policed = Expect::Drop(Charge::Router(0), Reason::Policed);
        w.expect("within the limit", &slow[0].0, up(slow[0].1));
        for (full_polls, at, others, dropped) in [
            (0, recent, true, false),
            (3, recent, true, false),
            (4, recent, false, false),
            (4, recent, true, true),
            (1000, recent, true, true),
            // Nobody counts polls, so the state of the core is not known.
            (0, old, false, true),
        ] {
            backlogs.set(full_polls, at);
            for (frame, reason) in &slow {
                // Spends the limit. It is back only after another second, which is longer than this takes on
                // a slow machine.
                let (port, bytes) = (w.port[0], frame.bytes());
                while w.plane.run(port, &expired.bytes()).unwrap().action != XDP_PASS {
                    std::thread::sleep(Duration::from_millis(20));
                }
                // Packets before this one no longer count after the pause.
                w.plane.run(port, &bytes).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                if others {
                    assert_eq!(w.plane.run(port, &plain.bytes()).unwrap().action, XDP_REDIRECT);
                }
                let name = format!("{full_polls} full polls at {at}, others {others}, {reason:?}");
                let expected = if dropped { policed.clone() } else { up(*reason) };
                w.expect(&name, frame, expected);
            }
        }
        backlogs.set(0, recent);
        w.expect("a packet that causes an ICMP error stays within the limit", &expired, policed);
        backlogs.set(0, 0);
    });
}

#[test]
#[ignore = "needs root"]
fn the_slowest_rate_lets_packets_pass() {
    in_new_namespace(|| {
        let mut w = World::with(Settings { exception_pps: 1, control_pps: 9, ..settings() });
        only_on([rustix::thread::sched_getcpu()]);
        let expired = Frame::udp4(A, "10.0.1.5", "10.0.2.9").ip4(|ip| ip[8] = 1);
        let arp = Frame::new(A, 0x0806, vec![0; 28]);
        w.expect("first", &expired, up(Reason::TtlExceeded));
        w.expect("second", &expired, Expect::Drop(Charge::Router(0), Reason::Policed));
        w.expect("ARP", &arp, up(Reason::Arp));
    });
}

#[test]
#[ignore = "needs root"]
fn explain_changes_nothing_and_returns_the_steps() {
    in_new_namespace(|| {
        let mut w = World::new();
        w.tables.take_used();
        let f = Frame::udp4(A, "10.0.1.5", "10.0.3.9");
        let before = w.plane.counters().unwrap();
        let (result, steps) = w.plane.explain(w.port[0], &f.bytes()).unwrap();
        assert_eq!(w.plane.counters().unwrap(), before);
        assert_eq!(w.tables.take_used(), [], "explain must not mark a neighbour as used");
        assert_eq!(result.frame, f.routed(FRIEND, B, &[Q100]));
        assert_eq!(steps[0], Step::Port { id: 0, ready: true });
        assert_eq!(steps[2], Step::Interface { interface: 1, router: 0 });
        assert!(
            steps.iter().any(|s| matches!(s, Step::Neighbour { interface: 3, id } if *id != 0)),
            "no step of a neighbour: {steps:?}"
        );
        assert_eq!(steps.last(), Some(&Step::Verdict { reason: None, action: XDP_REDIRECT }));

        w.expect("for real", &f, out(3, f.routed(FRIEND, B, &[Q100])));
        assert_eq!(w.tables.take_used(), [(3, "10.0.3.9".parse().unwrap())]);
        let (_, steps) = w.plane.explain(w.port[0], &f.clone().ip4(|ip| ip[8] = 1).bytes()).unwrap();
        assert_eq!(
            steps.last(),
            Some(&Step::Verdict { reason: Some(Reason::TtlExceeded), action: XDP_PASS })
        );
        assert_eq!(
            steps[0],
            Step::Port { id: 0, ready: true },
            "the first step, without steps of the packet before"
        );
    });
}

/// Loading the program takes tens of milliseconds, running it microseconds.
#[test]
#[ignore = "needs root"]
fn many_packets_are_explained_by_one_copy() {
    in_new_namespace(|| {
        let w = World::new();
        let frame = Frame::udp4(A, "10.0.1.5", "10.0.3.9").bytes();
        let explain = |times: u32| {
            let started = Instant::now();
            (0..times).for_each(|_| drop(w.plane.explain(w.port[0], &frame).unwrap()));
            started.elapsed()
        };
        let (first, hundred) = (explain(1), explain(100));
        assert!(hundred < first * 10, "the first packet took {first:?}, a hundred more {hundred:?}");
    });
}

#[test]
#[ignore = "needs root"]
fn counts_packets_bytes_and_time() {
    in_new_namespace(|| {
        let mut w = World::new();
        let f = Frame::udp4(A, "10.0.1.5", "10.0.3.9");
        let expired = f.clone().ip4(|ip| ip[8] = 1);
        for _ in 0..10 {
            w.plane.run(w.port[0], &f.bytes()).unwrap();
            w.plane.run(w.port[0], &expired.bytes()).unwrap();
        }
        let c = w.plane.counters().unwrap();
        assert_eq!(c.packets, 20);
        let (i, o) = (c.interfaces[&1], c.interfaces[&3]);
        assert_eq!((i.rx_packets(), i.rx_bytes()), (20, 1200));
        assert_eq!((i.forwarded_packets, i.forwarded_bytes), (10, 600));
        assert_eq!(
            (o.tx_packets, o.tx_bytes, o.rx_packets()),
            (10, 640, 0),
            "(packets sent, their bytes with the tag, packets received)"
        );
        assert!(i.samples == 10 && i.sample_ns > 0, "not ten samples, or no time: {i:?}");
    });
}

#[test]
#[ignore = "needs root"]
fn a_sample_interval_of_zero_times_nothing() {
    in_new_namespace(|| {
        // Samples are counted per CPU, and one packet in 2^32 is the first. Here the first is a packet that
        // is not forwarded.
        only_on([rustix::thread::sched_getcpu()]);
        let mut w = World::with(Settings { sample_interval: 0, ..settings() });
        let f = Frame::udp4(A, "10.0.1.5", "10.0.3.9");
        w.expect("first", &f.clone().ip4(|ip| ip[8] = 1), up(Reason::TtlExceeded));
        for _ in 0..10 {
            w.plane.run(w.port[0], &f.bytes()).unwrap();
        }
        let count = w.plane.counters().unwrap().interfaces[&1];
        assert_eq!((count.forwarded_packets, count.samples), (10, 0));
    });
}
