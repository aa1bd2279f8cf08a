use super::{
    samples::{DESTINATION, Recipe, SOURCE, Transport, any_recipe, arp, neighbour_discovery, sctp},
    *,
};
use crate::flow::{Action, Vxlan, execute};
use etherparse::{LinkExtSlice, LinkSlice, NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

const PORT: RulePort = RulePort(3);

fn key(frame: &[u8]) -> Key {
    Key::of(frame, PORT, VXLAN_PORT)
}

/// A key with these fields, received by [`PORT`].
fn with(fields: &[(Field, u128)]) -> Key {
    let mut key = Key::ZERO;
    key.set(InPort, 3);
    fields.iter().for_each(|&(field, value)| key.set(field, value));
    key
}

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |n, &b| n << 8 | u128::from(b))
}

fn macs() -> [(Field, u128); 2] {
    [(EthDst, number(&DESTINATION)), (EthSrc, number(&SOURCE))]
}

fn fields(more: &[(Field, u128)]) -> Key {
    with(&[&macs()[..], more].concat())
}

/// The key as etherparse reads it, for a frame without fragments or tunnels.
fn as_etherparse_reads(frame: &[u8]) -> Key {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else { panic!("{packet:?}") };
    let mut k = with(&[(EthDst, number(&ethernet.destination())), (EthSrc, number(&ethernet.source()))]);
    if let Some(LinkExtSlice::Vlan(tag)) = packet.link_exts.first() {
        k.set(VlanVid, u128::from(tag.vlan_identifier().value()) | 0x1000);
        k.set(VlanPcp, tag.priority_code_point().value().into());
    }
    let behind = match packet.link_exts.last() {
        Some(LinkExtSlice::Vlan(tag)) => tag.ether_type(),
        _ => ethernet.ether_type(),
    };
    k.set(EthType, behind.0.into());
    match &packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            k.set(IpDscp, ip.header().dcp().value().into());
            k.set(IpEcn, ip.header().ecn().value().into());
            k.set(IpProto, ip.payload_ip_number().0.into());
            k.set(Ipv4Src, number(&ip.header().source()));
            k.set(Ipv4Dst, number(&ip.header().destination()));
        }
        Some(NetSlice::Ipv6(ip)) => {
            k.set(IpDscp, ip.header().dscp().value().into());
            k.set(IpEcn, ip.header().ecn().value().into());
            k.set(IpProto, ip.payload().ip_number.0.into());
            k.set(Ipv6Flabel, ip.header().flow_label().value().into());
            k.set(Ipv6Src, number(&ip.header().source()));
            k.set(Ipv6Dst, number(&ip.header().destination()));
        }
        _ => {}
    }
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            k.set(TcpSrc, tcp.source_port().into());
            k.set(TcpDst, tcp.destination_port().into());
        }
        Some(TransportSlice::Udp(udp)) => {
            k.set(UdpSrc, udp.source_port().into());
            k.set(UdpDst, udp.destination_port().into());
        }
        Some(TransportSlice::Icmpv4(icmp)) => {
            k.set(Icmpv4Type, icmp.type_u8().into());
            k.set(Icmpv4Code, icmp.code_u8().into());
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            k.set(Icmpv6Type, icmp.type_u8().into());
            k.set(Icmpv6Code, icmp.code_u8().into());
        }
        _ => {}
    }
    k
}

#[test]
fn arp_has_its_own_fields() {
    let expected = with(&[
        (EthDst, 0xffff_ffff_ffff),
        (EthSrc, number(&SOURCE)),
        (EthType, 0x0806),
        (ArpOp, 1),
        (ArpSha, number(&SOURCE)),
        (ArpSpa, 0x0a00_0001),
        (ArpTpa, 0x0a00_0002),
    ]);
    assert_eq!(key(&arp()), expected);
    let mut of_another_hardware = arp();
    of_another_hardware[15] = 6;
    assert_eq!(key(&of_another_hardware).get(ArpOp), 0);
}

#[test]
fn neighbour_discovery_has_the_target_and_the_option_of_its_kind() {
    let target = 0xfe80_u128 << 112 | 2;
    for (kind, option) in [(135, Ipv6NdSll), (136, Ipv6NdTll)] {
        let k = key(&neighbour_discovery(kind));
        assert_eq!((k.get(Icmpv6Type), k.get(Ipv6NdTarget)), (kind.into(), target));
        assert_eq!(k.get(option), 0x0200_0000_0009);
        assert_eq!(k.get(Ipv6NdSll) + k.get(Ipv6NdTll), 0x0200_0000_0009, "only that option");
    }
    let mut endless = neighbour_discovery(135);
    endless[79] = 0;
    assert_eq!(key(&endless).get(Ipv6NdSll), 0);
}

#[test]
fn an_802_3_frame_has_the_type_of_snap_or_none() {
    let frame = |llc: &[u8]| [&DESTINATION[..], &SOURCE, &[0, 40], llc, &arp()[14..]].concat();
    assert_eq!(key(&frame(&[0x42, 0x42, 3])), fields(&[(EthType, 0x05ff)]));
    let snap = key(&frame(&[0xaa, 0xaa, 3, 0, 0, 0, 8, 6]));
    assert_eq!((snap.get(EthType), snap.get(ArpTpa)), (0x0806, 0x0a00_0002));
    let other_organisation = key(&frame(&[0xaa, 0xaa, 3, 0, 0, 0xc, 8, 6]));
    assert_eq!(other_organisation, fields(&[(EthType, 0x05ff)]));
}

#[test]
fn the_outermost_of_two_tags_is_matched_and_a_third_is_an_ether_type() {
    let tags = |tags: &[(u8, u16)]| key(&Recipe { tags: tags.to_vec(), ..Recipe::default() }.frame());
    let two = tags(&[(5, 100), (0, 7)]);
    assert_eq!((two.get(VlanVid), two.get(VlanPcp), two.get(EthType)), (0x1064, 5, 0x0800));
    assert_eq!(two.get(UdpDst), 2000);
    let three = tags(&[(5, 100), (0, 7), (0, 8)]);
    assert_eq!(three, fields(&[(VlanVid, 0x1064), (VlanPcp, 5), (EthType, 0x8100)]));
    let cut = &Recipe { tags: vec![(0, 7)], ..Recipe::default() }.frame()[..17];
    assert_eq!(key(cut), fields(&[(EthType, 0x8100)]), "a tag without an EtherType is none");
}

#[test]
fn every_fragment_of_ipv4_shows_the_protocol_and_no_ports() {
    let mut frame = Recipe::default().frame();
    let whole = key(&frame);
    assert_eq!((whole.get(UdpSrc), whole.get(UdpDst)), (1000, 2000));
    for offset in [[0x20, 0], [0x20, 1], [0, 185]] {
        frame[20..22].copy_from_slice(&offset);
        let mut expected = whole;
        expected.set(UdpSrc, 0);
        expected.set(UdpDst, 0);
        assert_eq!(key(&frame), expected, "{offset:?}");
    }
    frame[20..22].copy_from_slice(&[0x40, 0]);
    assert_eq!(key(&frame), whole, "don't fragment does not make a fragment");
}

/// `Recipe::default` over IPv6 with these bytes in front of its UDP header. `next` is the number of the first
/// header in them.
fn with_extensions(next: u8, extensions: &[u8]) -> Vec<u8> {
    let mut frame = Recipe { v6: true, ..Recipe::default() }.frame();
    frame.splice(54..54, extensions.iter().copied());
    frame[19] += extensions.len() as u8;
    frame[20] = next;
    frame
}

#[test]
fn ipv6_extension_headers_are_read_within_bounds() {
    let of = |next, extensions: &[u8]| {
        let k = key(&with_extensions(next, extensions));
        (k.get(IpProto), k.get(UdpSrc), k.get(UdpDst))
    };
    let all = [
        [43, 0, 1, 4, 0, 0, 0, 0],   // hop-by-hop options
        [60, 0, 0, 0, 0, 0, 0, 0],   // routing
        [44, 0, 1, 4, 0, 0, 0, 0],   // destination options
        [17, 0, 0, 0, 0, 0, 0, 0x9], // fragment header of a whole packet
    ];
    assert_eq!(of(0, &all.concat()), (17, 1000, 2000));
    assert_eq!(of(44, &[17, 0, 0, 1, 0, 0, 0, 9]), (17, 0, 0), "first fragment");
    assert_eq!(of(44, &[17, 0, 0, 8, 0, 0, 0, 9]), (17, 0, 0), "last fragment");
    assert_eq!(of(44, &[60, 0, 0, 8, 0, 0, 0, 9]), (60, 0, 0), "headers in a later fragment are not read");
    assert_eq!(of(51, &[17, 4, 0, 0, 0, 0, 0, 0]), (51, 0, 0), "other headers are protocols");
    assert_eq!(of(60, &[17, 200, 1, 4, 0, 0, 0, 0]), (60, 0, 0), "longer than the packet");
    let chain = |n: usize| {
        [vec![[60, 0, 1, 4, 0, 0, 0, 0]; n - 1], vec![[17, 0, 1, 4, 0, 0, 0, 0]]].concat().concat()
    };
    assert_eq!(of(60, &chain(MOST_EXTENSIONS)), (17, 1000, 2000));
    assert_eq!(of(60, &chain(MOST_EXTENSIONS + 1)), (60, 0, 0));
}

#[test]
fn padding_is_not_read_as_a_header() {
    let mut frame = Recipe::default().frame();
    // The IPv4 packet ends before its UDP header ends.
    frame[16..18].copy_from_slice(&[0, 27]);
    let k = key(&frame);
    assert_eq!((k.get(IpProto), k.get(UdpSrc)), (17, 0));
    let mut frame = Recipe { v6: true, ..Recipe::default() }.frame();
    frame[18..20].copy_from_slice(&[0, 7]);
    assert_eq!(key(&frame).get(UdpSrc), 0);
}

#[test]
fn sctp_has_ports() {
    let k = key(&sctp(0));
    assert_eq!((k.get(IpProto), k.get(SctpSrc), k.get(SctpDst)), (132, 1000, 2000));
}

#[test]
fn the_frame_inside_vxlan_shows_its_fields() {
    let inner = Recipe { tags: vec![(3, 42)], transport: Transport::Tcp, ..Recipe::default() }.frame();
    let outer = Vxlan {
        vni: 0x12_3456,
        source: [192, 0, 2, 1].into(),
        destination: [192, 0, 2, 2].into(),
        eth_source: [2; 6],
        eth_destination: [4; 6],
        udp_port: VXLAN_PORT,
    };
    let mut packet = execute::Packet::new(inner, PORT);
    let encap = [Action::EncapVxlan(outer)];
    execute::execute(&mut packet, &encap, &execute::Context::PLAIN, &mut Vec::new()).unwrap();
    let port = number(&packet.frame[34..36]);
    let outside = [
        (EthDst, 0x0404_0404_0404),
        (EthSrc, 0x0202_0202_0202),
        (EthType, 0x0800),
        (IpProto, 17),
        (Ipv4Src, 0xc000_0201),
        (Ipv4Dst, 0xc000_0202),
        (UdpSrc, port),
        (UdpDst, 4789),
    ];
    let inside = [
        (VxlanVni, 0x12_3456),
        (InnerEthDst, number(&DESTINATION)),
        (InnerEthSrc, number(&SOURCE)),
        (InnerEthType, 0x0800),
        (InnerVlanVid, 0x102a),
        (InnerVlanPcp, 3),
        (InnerIpDscp, 46),
        (InnerIpEcn, 1),
        (InnerIpProto, 6),
        (InnerIpv4Src, 0x0a00_0001),
        (InnerIpv4Dst, 0x0a00_0002),
        (InnerTpSrc, 1000),
        (InnerTpDst, 2000),
    ];
    assert_eq!(key(&packet.frame), with(&[&outside[..], &inside].concat()));
    assert_eq!(Key::of(&packet.frame, PORT, 8472), with(&outside), "another port than that of VXLAN");
    packet.frame[42] = 0;
    assert_eq!(key(&packet.frame), with(&outside), "without the I flag there is no VNI");
}

proptest! {
    #[test]
    fn keys_are_what_etherparse_reads(recipe in any_recipe()) {
        // Neighbour discovery and VXLAN have fields that etherparse does not read.
        let (kind, port) = recipe.ports;
        prop_assume!(!(recipe.transport == Transport::Icmp && [135, 136].contains(&(kind as u8))) && port != VXLAN_PORT);
        let frame = recipe.frame();
        prop_assert_eq!(key(&frame), as_etherparse_reads(&frame));
    }

    #[test]
    fn a_frame_cut_anywhere_has_only_whole_headers(recipe in any_recipe(), at: prop::sample::Index) {
        let frame = recipe.frame();
        let (whole, cut) = (key(&frame), key(&frame[..at.index(frame.len())]));
        for field in FIELDS.iter().map(|s| s.field).filter(|f| ![EthType, IpProto].contains(f)) {
            prop_assert!([0, whole.get(field)].contains(&cut.get(field)), "{}", field);
        }
    }

    #[test]
    fn no_frame_causes_a_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        kind in prop::sample::select(vec![0x0800_u16, 0x0806, 0x86dd, 0x8100]),
        version in prop::sample::select(vec![0x45_u8, 0x46, 0x60]),
        proto in prop::sample::select(vec![0_u8, 6, 17, 43, 44, 58, 60, 132]),
    ) {
        key(&bytes);
        if bytes.len() > 24 {
            bytes[12..14].copy_from_slice(&kind.to_be_bytes());
            (bytes[14], bytes[20], bytes[23]) = (version, proto, proto);
            key(&bytes);
        }
    }
}
