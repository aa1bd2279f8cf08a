//! Which packets go up before `esp_encrypt`, and which are dropped instead, for each reason. Also the source of packets
//! that are made here.

use super::{
    esp::{PLAIN, packet},
    fragmentable, *,
};
use crate::{
    elements::{Count, Counters, EspDecrypt, EspEncrypt, Forward, Loss, Police, Rate},
    esp::SaTable,
};

/// A chain that ends with encryption. `front` comes before it.
fn guarded(front: Vec<Box<dyn Element>>) -> Chain {
    let table = Arc::new(SaTable::default());
    table.set_outbound("a", PLAIN.outbound());
    let mut elements = front;
    elements.push(Box::new(EspEncrypt::new(table, "a")));
    elements.push(Box::new(Forward::new(2)));
    Chain::new(elements).unwrap()
}

fn tagged(packet: &[u8], tags: usize) -> Vec<u8> {
    [&packet[..12], &[0x81, 0, 0, 9].repeat(tags), &packet[12..]].concat()
}

fn to_mac(packet: &[u8], mac: [u8; 6]) -> Vec<u8> {
    [&mac[..], &packet[6..]].concat()
}

fn with(mut packet: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    packet[at] = byte;
    packet
}

/// Runs one packet. Returns its verdict, its data, and the reasons of packets that were dropped instead of going up.
fn fate(chain: &mut Chain, packet: &[u8], from: Ingress) -> (Verdict, Vec<u8>, Vec<Reason>) {
    let (verdict, data) = run(chain, &READY, &[(packet.to_vec(), from)]).remove(0);
    let why = chain.counters().flat_map(|(_, counters, _)| counters.in_clear().collect::<Vec<_>>());
    (verdict, data, why.map(|(reason, _)| reason).collect())
}

#[test]
fn only_what_linux_never_forwards_goes_up_in_front_of_encryption() {
    use Reason::*;
    const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 5];
    let from = [198, 51, 100, 1];
    let to = |address| udp4(from, address, 64, 20);
    let to6 = |address: &str| udp6("2001:db8:7::1", address, 64, 20);
    let here = ingress(1, 0);
    let nobody = Ingress { flags: 0, interface: 0, ..here };
    let slow = Ingress { flags: 0, ..here };
    let strict = ingress(1, IF_RPF_STRICT);
    let kind = |kind: [u8; 2]| [&to([10, 1, 0, 1])[..12], &kind, &[0; 46]].concat();
    let options = with(to([10, 1, 0, 1]), 14, 0x46);
    let hop_by_hop = with(to6("2001:db8:1::1"), 20, 0);
    let solicitation = with(with(to6("2001:db8:9::1"), 20, 58), 54, 135);
    // Name, packet, where it arrived, why it would go up, and whether it may.
    let cases = [
        ("ARP", kind([8, 6]), here, Arp, true),
        ("ARP to all", to_mac(&kind([8, 6]), [255; 6]), nobody, Arp, true),
        ("neighbour discovery for us", solicitation.clone(), here, NeighbourDiscovery, true),
        ("neighbour discovery to a group", to_mac(&solicitation, GROUP), nobody, NeighbourDiscovery, true),
        ("for us", to([10, 9, 0, 1]), here, Local, true),
        ("for us, IPv6", to6("2001:db8:9::1"), here, Local, true),
        ("OSPF", to_mac(&to([224, 0, 0, 5]), GROUP), nobody, Broadcast, true),
        ("OSPF to our MAC", to([224, 0, 0, 5]), here, Broadcast, true),
        ("OSPFv3", to_mac(&to6("ff02::5"), GROUP), nobody, Broadcast, true),
        ("OSPFv3, tagged", tagged(&to_mac(&to6("ff02::5"), GROUP), 2), nobody, Broadcast, true),
        ("of the interface", to_mac(&to6("ff01::1"), GROUP), nobody, Broadcast, true),
        ("DHCP", to_mac(&to([255; 4]), [255; 6]), nobody, Broadcast, true),
        ("of the subnet", to_mac(&to([10, 9, 0, 255]), [255; 6]), nobody, Broadcast, true),
        ("of the subnet, to our MAC", to([10, 9, 0, 255]), here, Broadcast, false),
        ("unicast to all", to_mac(&to([10, 1, 0, 1]), [255; 6]), nobody, Broadcast, true),
        ("IPv6 unicast to all", to_mac(&to6("2001:db8:1::1"), GROUP), nobody, Broadcast, true),
        ("IS-IS", to_mac(&kind([0, 46]), GROUP), nobody, Broadcast, true),
        (
            "more tags than are parsed",
            tagged(&to_mac(&to([10, 1, 0, 1]), GROUP), 3),
            nobody,
            Broadcast,
            false,
        ),
        ("multicast", to_mac(&to([239, 1, 0, 1]), GROUP), nobody, Broadcast, false),
        ("multicast to our MAC", to([239, 1, 0, 1]), here, Broadcast, false),
        ("multicast, IPv6", to_mac(&to6("ff05::1"), GROUP), nobody, Broadcast, false),
        ("all nodes, global scope", to_mac(&to6("ff0e::1"), GROUP), nobody, Broadcast, false),
        ("cut short", to_mac(&to([224, 0, 0, 5])[..33], GROUP), nobody, Broadcast, false),
        ("TTL 1", udp4(from, [10, 1, 0, 1], 1, 20), here, TtlExceeded, true),
        ("hop limit 1", udp6("2001:db8:7::1", "2001:db8:1::1", 1, 0), here, TtlExceeded, true),
        ("malformed", vec![9; 13], here, Malformed, false),
        ("not for us", to([10, 1, 0, 1]), nobody, NotOurMac, false),
        ("MPLS", kind([0x88, 0x47]), here, NotIp, false),
        ("three tags", tagged(&to([10, 1, 0, 1]), 3), here, NotIp, false),
        ("not accelerated", to([10, 1, 0, 1]), slow, RouterNotAccelerated, false),
        ("options", options, here, Ipv4Options, false),
        ("checksum", with(to([10, 1, 0, 1]), 24, 0), here, Ipv4BadHeader, false),
        ("hop-by-hop options", hop_by_hop, here, Ipv6Extension, false),
        ("IPv6 length", with(to6("2001:db8:1::1"), 18, 9), here, Ipv6BadHeader, false),
        ("no route", to([200, 0, 0, 1]), here, NoRoute, false),
        ("blackhole", to([10, 5, 0, 1]), here, SpecialRoute, false),
        ("left to Linux", to([10, 8, 0, 1]), here, ComplexRoute, false),
        ("learned by Linux", to([10, 8, 0, 2]), here, LearnedPath, false),
        ("no neighbour", to([10, 3, 0, 1]), here, Unresolved, false),
        ("over MTU", udp4(from, [10, 2, 0, 1], 64, 40), here, OverMtu, false),
        ("may be fragmented", fragmentable(udp4(from, [10, 2, 0, 1], 64, 40)), here, Fragmented, false),
        ("port not ready", to([10, 4, 0, 1]), here, TxNotReady, false),
        ("leaves where it arrived", to([10, 0, 0, 1]), here, SameInterface, false),
        ("our own source", udp4([10, 9, 0, 1], [10, 1, 0, 1], 64, 0), here, BadSource, false),
        ("a source that may be ours", udp4([10, 9, 0, 255], [10, 1, 0, 1], 64, 0), here, SourceUnsure, false),
        ("from elsewhere", udp4([10, 1, 7, 1], [10, 1, 0, 1], 64, 0), strict, ReversePath, false),
    ];
    let world = World::new();
    let front = || -> Vec<Box<dyn Element>> {
        let police = Police::new(Rate::Packets { per_second: 1000, burst: 100 });
        vec![
            Box::new(Count::default()),
            Box::new(Check),
            Box::new(police),
            Box::new(Route::new(world.memory())),
        ]
    };
    for (name, packet, from, reason, goes_up) in cases {
        let (verdict, data, why) = fate(&mut guarded(front()), &packet, from);
        assert_eq!(data, packet, "{name}");
        let expected = if goes_up {
            (Verdict::Up(reason), vec![])
        } else {
            (Verdict::Drop(Loss::InClear), vec![reason])
        };
        assert_eq!((verdict, why), expected, "{name}");
        // Without encryption, all go up.
        let mut open = front();
        open.push(Box::new(Forward::new(2)));
        let (verdict, ..) = fate(&mut Chain::new(open).unwrap(), &packet, from);
        assert_eq!(verdict, Verdict::Up(reason), "{name}");
    }
    let mut chain = guarded(front());
    assert_eq!(fate(&mut chain, &to([10, 1, 0, 1]), here).0, Verdict::To(2), "encrypted");
    chain = guarded(vec![Box::new(Check), Box::new(Ttl)]);
    assert_eq!(fate(&mut chain, &udp4(from, [10, 1, 0, 1], 1, 0), here).0, Verdict::Up(TtlExceeded));
    let all = [
        (to([10, 1, 0, 1]), nobody),
        (kind([0x88, 0x47]), here),
        (with(to([10, 1, 0, 1]), 14, 0x46), here),
        (to([10, 9, 0, 1]), nobody),
    ];
    run(&mut chain, &READY, &all);
    let (_, counters, counted) = chain.counters().next().unwrap();
    assert_eq!(counters.dropped(Loss::InClear), 4);
    assert_eq!(counted, [("not_ip", 1), ("not_our_mac", 2), ("ipv4_options", 1)]);
    assert_eq!(counters.went_on(), 1);
}

/// Passes all packets up. The field says whether it also encrypts.
struct AllUp(bool);

impl Element for AllUp {
    fn name(&self) -> &'static str {
        "all_up"
    }
    fn contract(&self) -> Contract {
        Contract { gives: Known::HEADERS, passes_up: true, encrypts: self.0, ..Contract::default() }
    }
    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        let mut reasons = Reason::all();
        batch.each(counters, |_| reasons.next().map(Verdict::Up));
    }
}

#[test]
fn every_reason_is_decided_and_only_before_the_last_element_that_encrypts() {
    let packets = vec![(udp4([1, 1, 1, 1], [10, 1, 0, 1], 64, 0), ingress(1, 0)); Reason::COUNT];
    let chain = |elements: &[AllUp]| {
        let elements = elements.iter().map(|element| Box::new(AllUp(element.0)) as Box<dyn Element>);
        Chain::new(elements.chain([Box::new(Forward::new(2)) as Box<dyn Element>]).collect()).unwrap()
    };
    let ups = |elements: &[AllUp]| {
        let seen = run(&mut chain(elements), &READY, &packets);
        let up = |verdict| if let Verdict::Up(reason) = verdict { Some(reason) } else { None };
        seen.into_iter().filter_map(|seen| up(seen.0)).collect::<Vec<_>>()
    };
    use Reason::*;
    let few = [Local, Arp, NeighbourDiscovery, TtlExceeded];
    assert_eq!(ups(&[AllUp(false), AllUp(true)]), few);
    assert_eq!(ups(&[AllUp(true), AllUp(true)]), few);
    assert_eq!(ups(&[AllUp(true), AllUp(false)]), Reason::all().collect::<Vec<_>>());
}

#[test]
fn packets_for_others_are_not_local_before_encryption() {
    let table = Arc::new(SaTable::default());
    assert!(table.add_inbound("a", PLAIN.inbound()));
    let decrypt = || Box::new(EspDecrypt::new(table.clone(), vec!["a".into()]));
    // The SA's end is 10.1.0.1. The packets are ESP with another SPI and UDP, and the same for others.
    let esp = |to: [u8; 4]| {
        let mut esp = udp4([10, 0, 0, 1], to, 64, 40);
        esp[23] = 50;
        esp[24..26].fill(0);
        let sum = !crate::flow::checksum::sum(&esp[14..34]);
        esp[24..26].copy_from_slice(&sum.to_be_bytes());
        esp
    };
    let cases = [
        (esp([10, 1, 0, 1]), true),
        (packet(false, b"for us", 0), true),
        (esp([10, 1, 0, 2]), false),
        (udp4([10, 0, 0, 1], [10, 1, 0, 2], 64, 5), false),
    ];
    for (packet, is_local) in cases {
        let mut chain = guarded(vec![Box::new(Check), decrypt(), Box::new(Check)]);
        let (verdict, data, _) = fate(&mut chain, &packet, ingress(1, 0));
        let expected = if is_local { Verdict::Up(Reason::Local) } else { Verdict::Drop(Loss::InClear) };
        assert_eq!((verdict, data), (expected, packet.clone()));
        let mut chain = Chain::new(vec![Box::new(Check), decrypt(), Box::new(Forward::new(1))]).unwrap();
        assert_eq!(fate(&mut chain, &packet, ingress(1, 0)).0, Verdict::Up(Reason::Local));
    }
}

/// Linux refuses packets that arrive from one of its own addresses, and sends its own packets from there.
#[test]
fn packets_made_here_may_have_our_source_and_decrypted_ones_may_not() {
    let mut world = World::new();
    let local = [0x0a09_0001, 0x0a00_0001].into();
    world.tables.apply(&Op::LocalAddresses { router: 0, addresses: local }).unwrap();
    let pass = Target::Pass { reason: Reason::Local, unicast: false };
    world.tables.apply(&Op::Route4(0, "10.0.0.1/32".parse().unwrap(), Some(pass))).unwrap();
    let table = Arc::new(SaTable::default());
    // From 10.0.0.1 to 10.1.0.1.
    table.set_outbound("a", PLAIN.outbound());
    let encrypt = || Box::new(EspEncrypt::new(table.clone(), "a"));
    let route = || Box::new(Route::new(world.memory()));
    let forth: Vec<Box<dyn Element>> =
        vec![Box::new(Check), Box::new(Ttl), encrypt(), route(), Box::new(Rewrite)];
    let mut forth = Chain::new(forth).unwrap();
    let inside = |source: [u8; 4]| udp4(source, [10, 1, 0, 9], 64, 30);
    let sent = esp::run(&mut forth, &[inside([10, 2, 0, 9]), inside([10, 0, 0, 1])]);
    assert_eq!([sent[0].0, sent[1].0], [Verdict::To(2); 2]);
    // The peer's side of the same SA.
    assert!(table.add_inbound("a", PLAIN.inbound()));
    let decrypt = Box::new(EspDecrypt::new(table.clone(), vec!["a".into()]));
    let back: Vec<Box<dyn Element>> =
        vec![Box::new(Check), decrypt, Box::new(Check), route(), Box::new(Ttl), Box::new(Rewrite)];
    let mut back = Chain::new(back).unwrap();
    let came: Vec<_> = sent.into_iter().map(|(_, data)| data).collect();
    let back = esp::run(&mut back, &came);
    assert_eq!([back[0].0, back[1].0], [Verdict::To(2), Verdict::Up(Reason::BadSource)]);
    // It leaves where it arrived, with redirects on. Linux sends no redirect for a packet of ours.
    let to_peer = Target::Hop(Hop { interface: 1, gateway: Some("192.0.2.9".parse().unwrap()), mtu: 1500 });
    world.tables.apply(&Op::Route4(0, "10.1.0.1/32".parse().unwrap(), Some(to_peer))).unwrap();
    let sent = esp::run(&mut forth, &[inside([10, 2, 0, 9])]);
    assert_eq!(sent[0].0, Verdict::To(1));
    let plain: Vec<Box<dyn Element>> = world.router();
    assert_eq!(
        esp::run(&mut Chain::new(plain).unwrap(), &[udp4([10, 2, 0, 9], [10, 1, 0, 1], 64, 0)])[0].0,
        Verdict::Up(Reason::SameInterface)
    );
}
