//! A router's chain: named cases with exact verdicts, and random packets against the reference.

use super::{reference, *};
use crate::elements::{Forward, Whole};
use proptest::prelude::*;

fn tagged(packet: &[u8], tags: &[[u8; 4]]) -> Vec<u8> {
    [&packet[..12], &tags.concat(), &packet[12..]].concat()
}

fn padded(packet: Vec<u8>) -> Vec<u8> {
    [packet, vec![0xee; 11]].concat()
}

/// The router's verdict on a packet that arrived at interface 1, or with its own ingress.
fn verdict(packet: Vec<u8>, ingress: Ingress) -> Verdict {
    let world = World::new();
    let mut chain = Chain::new(world.router()).unwrap();
    let seen = run(&mut chain, &READY, &[(packet.clone(), ingress)]).remove(0);
    let expected = reference::route(&world, &READY, &packet, ingress);
    assert!(expected.contains(&seen), "{seen:02x?} is none of {expected:02x?}");
    assert_eq!(chain.whole().packets, 1);
    let lost: Vec<_> =
        chain.counters().flat_map(|(_, counters, _)| counters.lost().collect::<Vec<_>>()).collect();
    match seen.0 {
        Verdict::To(_) => assert_eq!((chain.whole().to, lost), (1, vec![])),
        other => assert_eq!((chain.whole().to, lost), (0, vec![(other, 1)])),
    }
    seen.0
}

/// The ingress of a packet for no interface.
fn nobody() -> Ingress {
    Ingress { flags: 0, interface: 0, ..ingress(1, 0) }
}

#[test]
fn packets_leave_or_go_up_as_named() {
    use Reason::*;
    let from = [198, 51, 100, 1];
    let to = |a, b, c| udp4(from, [10, a, b, c], 64, 20);
    let mut options = to(1, 0, 1);
    options[14] = 0x46;
    let mut sum = to(1, 0, 1);
    sum[24] ^= 1;
    let cases = [
        ("gateway", to(1, 0, 1), Verdict::To(2)),
        ("padding is cut", padded(to(1, 0, 1)), Verdict::To(2)),
        ("one tag", to(1, 7, 1), Verdict::To(3)),
        ("two tags, by a tail", to(1, 7, 65), Verdict::To(3)),
        ("tags are removed", tagged(&to(1, 0, 1), &[[0x81, 0, 0, 9]]), Verdict::To(2)),
        (
            "arrives with two tags, leaves with one",
            tagged(&to(1, 7, 1), &[[0x88, 0xa8, 0, 9], [0x81, 0, 0, 9]]),
            Verdict::To(3),
        ),
        ("three tags", tagged(&to(1, 0, 1), &[[0x81, 0, 0, 9]; 3]), Verdict::Up(NotIp)),
        ("connected", udp4(from, [192, 0, 2, 50], 64, 20), Verdict::To(2)),
        ("connected, over its MTU", udp4(from, [192, 0, 2, 50], 64, 40), Verdict::Up(OverMtu)),
        ("connected, not resolved", udp4(from, [192, 0, 2, 51], 64, 20), Verdict::Up(Unresolved)),
        ("over MTU", udp4(from, [10, 2, 0, 1], 64, 40), Verdict::Up(OverMtu)),
        (
            "over MTU, may be fragmented",
            fragmentable(udp4(from, [10, 2, 0, 1], 64, 40)),
            Verdict::Up(Fragmented),
        ),
        (
            "connected, may be fragmented",
            fragmentable(udp4(from, [192, 0, 2, 50], 64, 40)),
            Verdict::Up(Fragmented),
        ),
        ("just the MTU", udp4(from, [10, 2, 0, 1], 64, 32), Verdict::To(2)),
        ("TTL 1", udp4(from, [10, 1, 0, 1], 1, 0), Verdict::Up(TtlExceeded)),
        ("TTL 0", udp4(from, [10, 1, 0, 1], 0, 0), Verdict::Up(TtlExceeded)),
        ("TTL 2", udp4(from, [10, 1, 0, 1], 2, 0), Verdict::To(2)),
        ("TTL 1, for the router itself", udp4(from, [10, 9, 0, 1], 1, 0), Verdict::Up(Local)),
        ("no route", to(200, 0, 1), Verdict::Up(NoRoute)),
        ("blackhole", to(5, 0, 1), Verdict::Up(SpecialRoute)),
        ("no neighbour", to(3, 0, 1), Verdict::Up(Unresolved)),
        ("port not ready", to(4, 0, 1), Verdict::Up(TxNotReady)),
        ("leaves where it arrived", to(0, 0, 1), Verdict::Up(SameInterface)),
        ("multicast", udp4(from, [224, 0, 0, 5], 64, 0), Verdict::Up(Broadcast)),
        ("options", options, Verdict::Up(Ipv4Options)),
        ("checksum", sum, Verdict::Up(Ipv4BadHeader)),
        ("martian source", udp4([127, 0, 0, 1], [10, 1, 0, 1], 64, 0), Verdict::Up(BadSource)),
        ("our own source", udp4([10, 9, 0, 1], [10, 1, 0, 1], 64, 0), Verdict::Up(BadSource)),
        ("IPv6", udp6("2001:db8:7::1", "2001:db8:1::1", 64, 20), Verdict::To(2)),
        // As IPv4, these bytes would be a source and a TTL without any fault.
        ("IPv6, no IPv4", udp6("2001:db8:c633:6401::1", "2001:db8:1::1", 64, 20), Verdict::To(2)),
        ("IPv6, two tags", udp6("2001:db8:7::1", "2001:db8:1:7::1", 64, 20), Verdict::To(3)),
        ("IPv6, over MTU", udp6("2001:db8:7::1", "2001:db8:1:7:1::1", 64, 40), Verdict::Up(OverMtu)),
        ("IPv6 connected", udp6("2001:db8:7::1", "2001:db8::32", 64, 0), Verdict::To(2)),
        ("IPv6 hop limit", udp6("2001:db8:7::1", "2001:db8:1::1", 1, 0), Verdict::Up(TtlExceeded)),
        (
            "IPv6 leaves where it arrived",
            udp6("2001:db8:7::1", "2001:db8:2::1", 9, 0),
            Verdict::Up(SameInterface),
        ),
        ("link-local source", udp6("fe80::1", "2001:db8:1::1", 64, 0), Verdict::Up(BadSource)),
        ("IPv6 local", udp6("2001:db8:7::1", "2001:db8:9::1", 64, 0), Verdict::Up(Local)),
    ];
    for (name, packet, expected) in cases {
        assert_eq!(verdict(packet, ingress(1, 0)), expected, "{name}");
    }
}

#[test]
fn frames_that_are_no_ip_packets_go_up() {
    let packet = udp4([198, 51, 100, 1], [10, 1, 0, 1], 64, 20);
    for length in 0..packet.len() {
        let expected = if length < 14 { Reason::Malformed } else { Reason::Ipv4BadHeader };
        assert_eq!(verdict(packet[..length].to_vec(), ingress(1, 0)), Verdict::Up(expected));
    }
    let mut arp = packet.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(verdict(arp, ingress(1, 0)), Verdict::Up(Reason::Arp));
    let off = Ingress { flags: 0, ..ingress(1, 0) };
    assert_eq!(verdict(packet.clone(), off), Verdict::Up(Reason::RouterNotAccelerated));
    let mut discovery = udp6("2001:db8:7::1", "2001:db8:9::1", 255, 20);
    (discovery[20], discovery[54]) = (58, 135);
    assert_eq!(verdict(discovery, ingress(1, 0)), Verdict::Up(Reason::NeighbourDiscovery));
}

#[test]
fn packets_for_no_interface_have_the_most_specific_reason() {
    use Reason::*;
    let ip = udp4([198, 51, 100, 1], [10, 1, 0, 1], 64, 20);
    let mut discovery = udp6("2001:db8:7::1", "2001:db8:9::1", 255, 20);
    (discovery[20], discovery[54]) = (58, 135);
    let of_type = |kind: [u8; 2], frame: &[u8]| [&frame[..12], &kind, &frame[14..]].concat();
    let mut error = discovery.clone();
    error[54] = 132;
    let tag = [0x81, 0, 0, 9];
    // Unchanged, and to a group address.
    let cases = [
        ("IPv4", ip.clone(), [NotOurMac, Broadcast]),
        ("IPv4, its header broken", ip[..20].to_vec(), [NotOurMac, Broadcast]),
        ("no IP", of_type([0x88, 0xcc], &ip), [NotOurMac, Broadcast]),
        ("three tags", tagged(&ip, &[tag; 3]), [NotOurMac, Broadcast]),
        ("ARP", of_type([8, 6], &ip), [Arp, Arp]),
        ("neighbour discovery", discovery.clone(), [NeighbourDiscovery; 2]),
        ("neighbour discovery, tagged", tagged(&discovery, &[tag]), [NeighbourDiscovery; 2]),
        ("neighbour discovery, cut off", discovery[..54].to_vec(), [NotOurMac, Broadcast]),
        ("another ICMPv6", error, [NotOurMac, Broadcast]),
        ("less than a header", ip[..13].to_vec(), [Malformed, Malformed]),
        ("less than two tags", tagged(&ip, &[tag])[..21].to_vec(), [Malformed, Malformed]),
    ];
    for (name, mut packet, [to_one, to_group]) in cases {
        assert_eq!(verdict(packet.clone(), nobody()), Verdict::Up(to_one), "{name}");
        packet[0] |= 1;
        assert_eq!(verdict(packet, nobody()), Verdict::Up(to_group), "{name}, to a group");
    }
}

#[test]
fn sources_are_validated() {
    let from = |source| udp4(source, [10, 1, 0, 1], 64, 0);
    let cases = [
        ([10, 0, 0, 5], IF_RPF_STRICT, Verdict::To(2)),
        ([10, 1, 7, 1], IF_RPF_STRICT, Verdict::Up(Reason::ReversePath)),
        ([10, 1, 7, 1], IF_RPF_LOOSE, Verdict::To(2)),
        ([10, 200, 0, 1], IF_RPF_LOOSE, Verdict::Up(Reason::ReversePath)),
        ([10, 200, 0, 1], 0, Verdict::To(2)),
        ([10, 5, 0, 1], IF_RPF_LOOSE, Verdict::Up(Reason::ReversePath)),
        ([10, 7, 0, 1], IF_RPF_LOOSE, Verdict::To(2)),
        ([10, 7, 0, 1], IF_RPF_STRICT, Verdict::Up(Reason::SourceUnsure)),
        ([10, 8, 0, 1], IF_RPF_LOOSE, Verdict::Up(Reason::SourceUnsure)),
        ([10, 8, 0, 2], IF_RPF_STRICT, Verdict::Up(Reason::SourceUnsure)),
        ([10, 9, 0, 255], 0, Verdict::Up(Reason::SourceUnsure)),
        ([10, 9, 0, 255], IF_RPF_LOOSE, Verdict::Up(Reason::BadSource)),
        ([10, 9, 0, 255], IF_RPF_LOOSE | IF_ACCEPT_LOCAL, Verdict::Up(Reason::SourceUnsure)),
        ([10, 9, 0, 1], 0, Verdict::Up(Reason::BadSource)),
        ([10, 9, 0, 1], IF_ACCEPT_LOCAL, Verdict::Up(Reason::SourceUnsure)),
        ([10, 9, 0, 1], IF_ACCEPT_LOCAL | IF_RPF_STRICT, Verdict::Up(Reason::SourceUnsure)),
        ([10, 0, 0, 5], IF_ACCEPT_LOCAL, Verdict::To(2)),
        ([198, 18, 0, 1], 0, Verdict::To(2)),
        ([198, 18, 0, 1], IF_LOOK_AT_SOURCES, Verdict::Up(Reason::SourceUnsure)),
        ([198, 18, 0, 1], IF_RPF_LOOSE, Verdict::Up(Reason::SourceUnsure)),
        ([10, 0, 0, 5], IF_LOOK_AT_SOURCES, Verdict::To(2)),
    ];
    for (source, flags, expected) in cases {
        assert_eq!(verdict(from(source), ingress(1, flags)), expected, "{source:?} {flags}");
    }
}

/// Flows are distributed by the weights 1 and 3, and packets of one flow stay together.
#[test]
fn flows_spread_over_a_group_by_weight() {
    let world = World::new();
    let mut chain = Chain::new(world.router()).unwrap();
    let mut to_vlan = 0;
    for flow in 0..2000u16 {
        let mut packet = udp4([198, 51, 100, 1], [10, 7, 0, 1], 64, 0);
        packet[34..36].copy_from_slice(&flow.to_be_bytes());
        let seen = run(&mut chain, &READY, &[(packet.clone(), ingress(1, 0)), (packet, ingress(1, 0))]);
        assert_eq!(seen[0], seen[1]);
        to_vlan += usize::from(seen[0].0 == Verdict::To(3));
    }
    assert!((1400..1600).contains(&to_vlan), "{to_vlan} of 2000, expected three quarters");
}

#[test]
fn next_hops_in_use_are_kept_alive() {
    let mut world = World::new();
    let mut chain = Chain::new(world.router()).unwrap();
    assert_eq!(world.tables.take_used(), []);
    let to = |ttl, a| (udp4([198, 51, 100, 1], [10, a, 0, 1], ttl, 0), ingress(1, 0));
    // Packets that go up use no next hop.
    run(&mut chain, &READY, &[to(64, 1), to(1, 0)]);
    assert_eq!(world.tables.take_used(), [(2, IpAddr::from([192, 0, 2, 1]))]);
}

/// There is no room in front for the tags, so the packet goes up whole.
#[test]
fn tags_need_head_room() {
    let world = World::new();
    let mut chain = Chain::new(world.router()).unwrap();
    let packet = udp4([198, 51, 100, 1], [10, 1, 7, 65], 64, 20);
    for (room, expected) in [(7, Verdict::Up(Reason::NoHeadroom)), (8, Verdict::To(3))] {
        let mut frame = [vec![0; room], packet.clone()].concat();
        let mut batch = Batch::default();
        batch.push(&mut frame, room, packet.len(), ingress(1, 0)).unwrap();
        chain.run(&READY, &mut batch);
        assert_eq!(batch.packets()[0].verdict(), expected);
        assert_eq!(batch.packets()[0].head_room(), if room == 8 { 0 } else { room });
    }
}

/// The counters of each element of a chain, and those of the chain.
pub fn of_each(chain: &Chain) -> (Whole, Vec<(&'static str, Counters)>) {
    (chain.whole(), chain.counters().map(|(name, counters, _)| (name, counters.clone())).collect())
}

/// An exit that was set stays. A later `route`, used to pass up packets without a route, does not change it.
#[test]
fn the_exit_of_forward_stays_after_route() {
    let world = World::new();
    let route = Box::new(Route::new(world.memory()));
    let mut chain = Chain::new(vec![Box::new(Check), Box::new(Forward::new(1)), route]).unwrap();
    let packet = |a| udp4([198, 51, 100, 1], [10, a, 0, 1], 64, 20);
    let sent = [packet(1), packet(200)].map(|packet| (packet, ingress(1, 0)));
    let seen = run(&mut chain, &READY, &sent);
    assert_eq!(seen[0], (Verdict::To(1), packet(1)));
    assert_eq!(seen[1].0, Verdict::Up(Reason::NoRoute));
}

/// A packet to a destination with a special case. Some are damaged somewhere.
pub fn packets() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![0u8..10, Just(7), Just(50), Just(255), any::<u8>()];
    let source4 = prop_oneof![
        Just([198, 51, 100, 1]),
        (0u8..11, byte.clone(), byte.clone()).prop_map(|(a, b, c)| [10, a, b, c]),
        any::<[u8; 4]>()
    ];
    let to4 = prop_oneof![
        4 => (0u8..11, byte.clone(), byte.clone()).prop_map(|(a, b, c)| [10, a, b, c]),
        1 => byte.clone().prop_map(|last| [192, 0, 2, last]),
        1 => any::<[u8; 4]>(),
    ];
    let hops = prop_oneof![Just(64u8), 0u8..4];
    let four = (source4, to4, hops.clone(), 0usize..60).prop_map(|(s, d, ttl, n)| udp4(s, d, ttl, n));
    let net = prop_oneof![
        Just("2001:db8:1:"),
        Just("2001:db8:1:7:"),
        Just("2001:db8:1:7:1:"),
        Just("2001:db8:2:"),
        Just("2001:db8:9:"),
        Just("2001:db8:"),
        Just("fe80:"),
        Just("ff02:"),
        Just(":")
    ];
    let six = (net.clone(), net, any::<u8>(), hops, 0usize..60).prop_map(|(s, d, n, hops, payload)| {
        udp6(
            &format!("{s}:{n:x}").replace(":::", "::"),
            &format!("{d}:{:x}", n & 0x33).replace(":::", "::"),
            hops,
            payload,
        )
    });
    let tags = prop::collection::vec(prop_oneof![Just([0x81, 0, 0, 9]), Just([0x88, 0xa8, 0, 9])], 0..3);
    let broken = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let cut = prop_oneof![6 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)];
    let whole = (prop_oneof![four, six], tags, any::<bool>(), broken, cut);
    let valid = whole.prop_map(|(packet, tags, pad, broken, cut)| {
        let mut packet = tagged(&packet, &tags);
        if pad {
            packet = padded(packet);
        }
        let length = packet.len();
        broken.into_iter().for_each(|(at, value)| packet[at.index(length)] = value);
        packet.truncate(cut.map_or(length, |cut| cut.index(length)));
        packet
    });
    prop_oneof![9 => valid, 1 => prop::collection::vec(any::<u8>(), 0..100)]
}

proptest! {
    #![proptest_config(crate::cases(400))]
    #[test]
    fn a_batch_is_routed_like_the_reference_joined_or_not(
        data in prop::collection::vec((packets(), 0u16..4, 0u8..4), 0..40),
        ports in any::<u64>(),
    ) {
        let world = World::new();
        let now = Now { ns: 0, ports };
        let mut chain = Chain::new(world.router()).unwrap();
        let flags =
            [0, IF_RPF_LOOSE, IF_RPF_STRICT | IF_ACCEPT_LOCAL, IF_ACCEPT_LOCAL | IF_LOOK_AT_SOURCES];
        let data: Vec<_> = data.into_iter().map(|(packet, id, kind)| {
            (packet, if id == 0 { nobody() } else { ingress(id, flags[usize::from(kind)]) })
        }).collect();
        let seen = run(&mut chain, &now, &data);
        for (seen, (packet, ingress)) in seen.iter().zip(&data) {
            let expected = reference::route(&world, &now, packet, *ingress);
            prop_assert!(expected.contains(seen), "{packet:02x?}: {seen:02x?} is none of {expected:02x?}");
        }
        let apart = world.router().into_iter().map(|element| Box::new(Apart(element)) as _).collect();
        let mut apart = Chain::new(apart).unwrap();
        prop_assert_eq!(run(&mut apart, &now, &data), seen);
        prop_assert_eq!(of_each(&apart), of_each(&chain));
        let up: u64 = chain.counters().flat_map(|(_, counters, _)| counters.lost().collect::<Vec<_>>()).map(|(_, n)| n).sum();
        prop_assert_eq!((chain.whole().packets, chain.whole().to + up), (data.len() as u64, data.len() as u64));
    }
}
