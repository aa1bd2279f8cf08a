//! Into VXLAN and out of it. The bytes are those of RFC 7348, checked with etherparse. Each fault has its counter.
//! Linux is the other end in `router/tests/vxlan.rs`.

use super::*;
use crate::{
    elements::{Discard, Forward, Known, Loss, Vxlan, VxlanDecap, VxlanEncap},
    esp::Ends,
};
use proptest::prelude::*;

const LOCAL: [&str; 2] = ["198.51.100.1", "2001:db8:7::1"];
/// Destinations to which the world has routes.
const REMOTE: [&str; 2] = ["10.1.0.1", "2001:db8:1::1"];

fn ends(is_v6: bool) -> Ends {
    let [local, remote] = [LOCAL, REMOTE].map(|ends| ends[usize::from(is_v6)].parse().unwrap());
    Ends::new(local, remote).unwrap()
}

fn tunnel(is_v6: bool) -> Vxlan {
    Vxlan { vni: 0xabcdef, ends: ends(is_v6), port: 4789, mtu: 1500, hops: 64, is_whole: false }
}

fn encap(vxlan: Vxlan) -> Chain {
    Chain::new(vec![Box::new(VxlanEncap::new(vxlan)), Box::new(Forward::new(2))]).unwrap()
}

fn decap(is_v6: bool, remote: bool) -> Chain {
    let Vxlan { vni, ends, port, .. } = tunnel(is_v6);
    let decap = VxlanDecap::new(vni, ends.remote(), remote.then_some(ends.local()), port);
    Chain::new(vec![Box::new(Check), Box::new(decap), Box::new(Forward::new(1))]).unwrap()
}

fn fix(packet: &mut [u8]) {
    packet[24..26].fill(0);
    let sum = !crate::flow::checksum::sum(&packet[14..34]);
    packet[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Checks every byte in front of the frame.
fn check_outer(vxlan: &Vxlan, sent: &[u8], frame: &[u8], id: u16, ecn: u8) {
    let is_v6 = matches!(vxlan.ends, Ends::V6 { .. });
    let (ip, mac) = (&sent[14..], &frame[..12]);
    assert_eq!((&sent[..12], &sent[12..14]), (mac, if is_v6 { &[0x86, 0xdd][..] } else { &[8, 0] }));
    let udp = if is_v6 {
        let (header, rest) = etherparse::Ipv6Header::from_slice(ip).unwrap();
        let [local, remote] = [header.source, header.destination].map(IpAddr::from);
        assert_eq!((local, remote), (vxlan.ends.local(), vxlan.ends.remote()));
        assert_eq!((header.next_header.0, header.hop_limit, header.traffic_class), (17, vxlan.hops, ecn));
        assert_eq!((usize::from(header.payload_length), header.flow_label.value()), (rest.len(), 0));
        let (udp, payload) = etherparse::UdpHeader::from_slice(rest).unwrap();
        assert_eq!(udp.checksum, udp.calc_checksum_ipv6(&header, payload).unwrap());
        rest
    } else {
        let (header, rest) = etherparse::Ipv4Header::from_slice(ip).unwrap();
        let [local, remote] = [header.source, header.destination].map(IpAddr::from);
        assert_eq!((local, remote), (vxlan.ends.local(), vxlan.ends.remote()));
        assert_eq!((header.protocol.0, header.time_to_live, ip[1]), (17, vxlan.hops, ecn));
        assert_eq!((header.identification, header.dont_fragment), (id, vxlan.is_whole));
        assert_eq!(
            (usize::from(header.total_len), header.header_checksum),
            (ip.len(), header.calc_header_checksum())
        );
        assert_eq!(rest[6..8], [0, 0]);
        rest
    };
    assert!(u16::from_be_bytes([udp[0], udp[1]]) >= 49152);
    assert_eq!(udp[2..4], vxlan.port.to_be_bytes());
    assert_eq!(usize::from(u16::from_be_bytes([udp[4], udp[5]])), udp.len());
    let vni = vxlan.vni.to_be_bytes();
    assert_eq!(udp[8..16], [0x08, 0, 0, 0, vni[1], vni[2], vni[3], 0]);
    assert_eq!(&udp[16..], frame);
}

proptest! {
    #![proptest_config(crate::cases(200))]

    #[test]
    fn frames_come_out_as_they_went_in(
        is_v6 in any::<bool>(),
        is_whole in any::<bool>(),
        hops in 1..=255u8,
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 14..300), 1..20),
        remote in any::<bool>(),
    ) {
        let vxlan = Vxlan { is_whole, hops, ..tunnel(is_v6) };
        let sent = esp::run(&mut encap(vxlan), &frames);
        for (n, ((verdict, sent), frame)) in sent.iter().zip(&frames).enumerate() {
            prop_assert_eq!(*verdict, Verdict::To(2));
            let ecn = etherparse::SlicedPacket::from_ethernet(frame).ok().and_then(|packet| packet.net);
            // Of random bytes hardly any are IP.
            if ecn.is_none() && !matches!(frame[12..14], [8, 0] | [0x86, 0xdd] | [0x81, 0] | [0x88, 0xa8]) {
                check_outer(&vxlan, sent, frame, n as u16, 0);
            }
        }
        let sent: Vec<_> = sent.into_iter().map(|(_, data)| data).collect();
        for ((verdict, data), frame) in esp::run(&mut decap(is_v6, remote), &sent).into_iter().zip(&frames) {
            prop_assert_eq!((verdict, &data), (Verdict::To(1), frame));
        }
    }

    #[test]
    fn any_bytes_get_a_verdict(
        is_v6 in any::<bool>(),
        packets in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..120), 0..4u8, 0..3u8), 1..30),
    ) {
        let make = |(bytes, port, zero): &(Vec<u8>, u8, u8)| {
            let mut packet = match is_v6 {
                false => udp4([198, 51, 100, 1], [10, 1, 0, 1], 64, bytes.len()),
                true => udp6(LOCAL[1], REMOTE[1], 64, bytes.len()),
            };
            let udp = packet.len() - bytes.len() - 8;
            packet[udp + 8..].copy_from_slice(bytes);
            if *port > 0 {
                packet[udp + 2..udp + 4].copy_from_slice(&4789u16.to_be_bytes());
            }
            if *zero > 0 {
                packet[udp + 6..udp + 8].fill(0);
            }
            if *port > 1 && bytes.len() >= 8 {
                packet[udp + 8..udp + 16].copy_from_slice(&[8, 1, 2, 3, 0xab, 0xcd, 0xef, 4]);
            }
            if *port == 3 {
                packet[udp + 5] = packet[udp + 5].wrapping_sub(*zero);
            }
            packet
        };
        let packets: Vec<_> = packets.iter().map(make).collect();
        for ((verdict, data), came) in esp::run(&mut decap(is_v6, false), &packets).into_iter().zip(&packets) {
            match verdict {
                Verdict::Up(_) => prop_assert_eq!(&data, came),
                // The inner frame, except for congestion marks.
                Verdict::To(1) => prop_assert!(data.len() < came.len() && data.len() >= 14),
                Verdict::Drop(_) => {}
                Verdict::To(_) | Verdict::Own(_) => prop_assert!(false),
            }
        }
        esp::run(&mut encap(tunnel(is_v6)), &packets);
    }
}

#[test]
fn flows_have_source_ports_of_their_own() {
    let port = |frame: &[u8]| {
        let sent = esp::run(&mut encap(tunnel(false)), &[frame.to_vec()]).remove(0).1;
        u16::from_be_bytes([sent[34], sent[35]])
    };
    let base = udp4([10, 0, 0, 1], [10, 1, 0, 1], 64, 20);
    let mut ports = std::collections::BTreeSet::from([port(&base)]);
    // TTL, identification, payload and MAC addresses do not belong to a flow's key. Addresses, protocol and ports do.
    for at in [0, 8, 19, 22, 50] {
        let mut same = base.clone();
        same[at] ^= 1;
        assert_eq!(port(&same), port(&base), "{at}");
    }
    for at in [23, 26, 29, 30, 33, 34, 35, 36, 37] {
        let mut other = base.clone();
        other[at] ^= 1;
        assert!(ports.insert(port(&other)), "{at}");
    }
    // A fragment has no ports, so all fragments of a packet have the same source port.
    let fragment = |byte: u8| {
        let mut fragment = base.clone();
        (fragment[21], fragment[35]) = (1, byte);
        fragment
    };
    assert_eq!(port(&fragment(1)), port(&fragment(2)));
    let base = udp6("2001:db8::1", "2001:db8::2", 64, 20);
    for at in [22, 29, 30, 37, 38, 45, 46, 53, 54, 57] {
        let mut other = base.clone();
        other[at] ^= 1;
        assert_ne!(port(&other), port(&base), "{at}");
    }
    let arp = [vec![0xff; 6], vec![2; 6], vec![8, 6], vec![0; 46]].concat();
    let mut other = arp.clone();
    other[11] ^= 1;
    assert_ne!(port(&arp), port(&other));
}

#[test]
fn frames_that_do_not_fit_are_dropped_unchanged() {
    // The outer headers have 20 + 8 + 8 bytes over IPv4, and 40 + 8 + 8 over IPv6.
    for (is_v6, most) in [(false, 1464), (true, 1444)] {
        let frames = [vec![9; most], vec![9; most + 1], vec![9; 13]];
        let seen = esp::run(&mut encap(tunnel(is_v6)), &frames);
        assert_eq!(seen[0].0, Verdict::To(2));
        assert_eq!(seen[0].1.len(), 1514);
        assert_eq!(seen[1], (Verdict::Drop(Loss::OverMtu), frames[1].clone()));
        assert_eq!(seen[2], (Verdict::Drop(Loss::Truncated), frames[2].clone()));
    }
    for (head, fits) in [(50, true), (49, false)] {
        let mut frame = [vec![0; head], vec![9; 60]].concat();
        let mut batch = Batch::default();
        batch.push(&mut frame, head, 60, ingress(1, 0)).unwrap();
        encap(tunnel(false)).run(&READY, &mut batch);
        let expected = if fits { Verdict::To(2) } else { Verdict::Drop(Loss::NoRoom) };
        assert_eq!(batch.packets()[0].verdict(), expected, "{head}");
    }
}

#[test]
fn each_fault_is_counted_by_its_name() {
    let frame = udp4([10, 7, 0, 1], [10, 7, 0, 2], 64, 30);
    let sent = esp::run(&mut encap(tunnel(false)), std::slice::from_ref(&frame)).remove(0).1;
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut packet = sent.clone();
        change(&mut packet);
        fix(&mut packet);
        packet
    };
    let set = |at: usize, byte: u8| with(&move |packet| packet[at] = byte);
    let up = Verdict::Up(Reason::Local);
    let cases = [
        ("right", sent.clone(), Verdict::To(1)),
        ("reserved bits", with(&|p| (p[42], p[43], p[49]) = (0xff, 0xff, 0xff)), Verdict::To(1)),
        ("no I flag", set(42, 0xf7), Verdict::Drop(Loss::BadVxlan)),
        ("another VNI", set(48, 0xee), up),
        ("another port", set(37, 0xb6), up),
        ("for others", set(33, 2), up),
        ("TCP", set(23, 6), up),
        ("a fragment", set(20, 0x20), up),
        ("from others", set(29, 9), Verdict::Drop(Loss::Policy)),
        ("a wrong checksum", set(41, 1), Verdict::Drop(Loss::BadChecksum)),
        ("UDP longer than IP", set(38, 1), Verdict::Drop(Loss::Truncated)),
        (
            "UDP shorter than an Ethernet header inside",
            with(&|p| (p[38], p[39]) = (0, 29)),
            Verdict::Drop(Loss::Truncated),
        ),
        ("just an Ethernet header", with(&|p| (p[38], p[39]) = (0, 30)), Verdict::To(1)),
    ];
    let mut chain = decap(false, true);
    for (name, packet, expected) in &cases {
        let (verdict, data) = esp::run(&mut chain, std::slice::from_ref(packet)).remove(0);
        assert_eq!(verdict, *expected, "{name}");
        match verdict {
            Verdict::To(_) if *name == "just an Ethernet header" => assert_eq!(data, frame[..14]),
            Verdict::To(_) => assert_eq!(data, frame, "{name}"),
            _ => assert_eq!(data, *packet, "{name}"),
        }
    }
    let counted = chain.counters().nth(1).unwrap().2;
    assert_eq!(counted, [("not_vxlan", 3), ("fragments", 1), ("other_vni", 1)]);
    // If there is a checksum, it must be right.
    let mut summed = sent.clone();
    let (ip, _) = etherparse::Ipv4Header::from_slice(&sent[14..]).unwrap();
    let (udp, payload) = etherparse::UdpHeader::from_slice(&sent[34..]).unwrap();
    summed[40..42].copy_from_slice(&udp.calc_checksum_ipv4(&ip, payload).unwrap().to_be_bytes());
    assert_eq!(esp::run(&mut chain, &[summed]).remove(0), (Verdict::To(1), frame));
}

#[test]
fn congestion_marks_go_in_and_come_out() {
    for is_v6 in [false, true] {
        for inner in 0..4 {
            let frame = esp::packet(is_v6, b"x", 0xb8 | inner);
            let mut sent = esp::run(&mut encap(tunnel(false)), std::slice::from_ref(&frame)).remove(0).1;
            check_outer(&tunnel(false), &sent, &frame, 0, inner);
            sent[15] |= 3;
            fix(&mut sent);
            let (verdict, data) = esp::run(&mut decap(false, true), &[sent]).remove(0);
            let marked = esp::packet(is_v6, b"x", 0xbb);
            let expected = if inner == 0 {
                (Verdict::Drop(Loss::Congested), None)
            } else {
                (Verdict::To(1), Some(&marked))
            };
            assert_eq!((verdict, expected.1.map(|_| &data)), expected, "{inner}");
        }
    }
}

#[test]
fn packets_made_here_are_routed_and_inner_frames_never_go_up() {
    let mut world = World::new();
    // Our own end is an address of the router.
    world.tables.apply(&Op::LocalAddresses { router: 0, addresses: [0xc633_6401].into() }).unwrap();
    let pass = Target::Pass { reason: Reason::Local, unicast: false };
    world.tables.apply(&Op::Route4(0, "198.51.100.1/32".parse().unwrap(), Some(pass))).unwrap();
    for is_v6 in [false, true] {
        let route = Box::new(Route::new(world.memory()));
        let elements: Vec<Box<dyn Element>> =
            vec![Box::new(VxlanEncap::new(tunnel(is_v6))), route, Box::new(Rewrite)];
        let mut chain = Chain::new(elements).unwrap();
        let (verdict, data) = esp::run(&mut chain, &[vec![9; 60]]).remove(0);
        assert_eq!((verdict, &data[..6]), (Verdict::To(2), &[2, 9, 9, 9, 2, 1][..]));
        assert_eq!(data[if is_v6 { 21 } else { 22 }], 64);
    }
    let Vxlan { vni, ends, port, .. } = tunnel(false);
    let decap = || Box::new(VxlanDecap::new(vni, ends.remote(), None, port));
    let list = |last: Box<dyn Element>| {
        let elements: Vec<Box<dyn Element>> = vec![Box::new(Check), decap(), last, Box::new(Discard)];
        Chain::new(elements).map(|_| ())
    };
    assert!(matches!(list(Box::new(Check)), Err(crate::elements::BadChain::TooLate { at: 3, .. })));
    assert_eq!(
        list(Box::new(Ttl)).unwrap_err(),
        crate::elements::BadChain::Needs { at: 3, name: "ttl", missing: Known::HEADERS }
    );
    assert_eq!(list(Box::<crate::elements::Count>::default()), Ok(()));
}

#[test]
fn a_chain_in_place_of_another_goes_on() {
    let (mut before, mut after) = (encap(tunnel(false)), encap(tunnel(false)));
    let frame = vec![9; 60];
    esp::run(&mut before, &[frame.clone(), frame.clone()]);
    after.go_on_from(&before);
    check_outer(
        &tunnel(false),
        &esp::run(&mut after, std::slice::from_ref(&frame)).remove(0).1,
        &frame,
        2,
        0,
    );
    let (mut before, mut after) = (decap(false, true), decap(false, true));
    esp::run(&mut before, &[udp4([10, 0, 0, 1], [10, 1, 0, 1], 64, 20)]);
    after.go_on_from(&before);
    assert_eq!(after.counters().nth(1).unwrap().2[0], ("not_vxlan", 1));
}
