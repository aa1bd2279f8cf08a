use super::{
    super::packet::samples::{
        DESTINATION, Recipe, SOURCE, Transport, any_recipe, arp, checksums, errors, neighbour_discovery,
        repair, sctp,
    },
    *,
};
use crate::flow::{field::FIELDS, table::settable};
use proptest::prelude::*;

const IN: RulePort = RulePort(1);

const OUTER: Vxlan = Vxlan {
    vni: 0x0a_0b0c,
    source: std::net::Ipv4Addr::new(192, 0, 2, 1),
    destination: std::net::Ipv4Addr::new(192, 0, 2, 2),
    eth_source: [2, 0, 0, 0, 0, 0xa],
    eth_destination: [2, 0, 0, 0, 0, 0xb],
    udp_port: VXLAN_PORT,
};

fn run(frame: &[u8], actions: &[Action]) -> (Result<(), Ended>, Vec<u8>) {
    let mut packet = Packet::new(frame, IN);
    let ended = execute(&mut packet, actions, &Context::PLAIN, &mut Vec::new());
    (ended, packet.frame)
}

fn after(frame: &[u8], action: Action) -> Vec<u8> {
    let (ended, frame) = run(frame, &[action]);
    assert_eq!(ended, Ok(()));
    frame
}

/// Port and bytes of every output.
fn outputs(frame: &[u8], actions: &[Action], context: &Context<'_>) -> Vec<(RulePort, Vec<u8>)> {
    let mut sent = Vec::new();
    let _ = execute(&mut Packet::new(frame, IN), actions, context, &mut sent);
    sent.into_iter().map(|sent| (sent.port, sent.packet.frame)).collect()
}

fn udp() -> Vec<u8> {
    Recipe::default().frame()
}

fn recipe(v6: bool, transport: Transport) -> Recipe {
    Recipe { v6, transport, ..Recipe::default() }
}

/// `frame` with these bytes changed and all checksums repaired.
fn changed(frame: &[u8], changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    changes.iter().for_each(|&(at, bytes)| frame[at..at + bytes.len()].copy_from_slice(bytes));
    repair(&mut frame);
    frame
}

#[test]
fn each_field_is_written_in_its_place_and_its_checksums_are_updated() {
    let (tcp4, udp4, icmp4) =
        (recipe(false, Transport::Tcp), recipe(false, Transport::Udp), recipe(false, Transport::Icmp));
    let (tcp6, udp6, icmp6) =
        (recipe(true, Transport::Tcp), recipe(true, Transport::Udp), recipe(true, Transport::Icmp));
    let tagged = Recipe { tags: vec![(5, 100)], ..Recipe::default() };
    let mac: &[u8] = &[0xa, 0xb, 0xc, 0xd, 0xe, 0xf];
    let v6 = &0x2001_0db8_u128.rotate_right(32).to_be_bytes();
    let (v4, port): (&[u8], &[u8]) = (&[203, 0, 113, 9], &[0x12, 0x34]);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, &b| n << 8 | u128::from(b));
    for (frame, field, value, at, bytes) in [
        (&udp4, Field::EthDst, number(mac), 0, mac),
        (&tcp6, Field::EthSrc, number(mac), 6, mac),
        (&tagged, Field::VlanVid, 0x17ab, 14, &[0xa7, 0xab]),
        (&tagged, Field::VlanPcp, 2, 14, &[0x40, 0x64]),
        (&tagged, Field::Ipv4Src, number(v4), 30, v4),
        (&udp4, Field::IpDscp, 0x15, 15, &[0x55]),
        (&udp4, Field::IpEcn, 2, 15, &[0xba]),
        (&udp6, Field::IpDscp, 0x15, 14, &[0x65, 0x51]),
        (&udp6, Field::IpEcn, 2, 14, &[0x6b, 0xa1]),
        (&udp6, Field::Ipv6Flabel, 0xfedcb, 14, &[0x6b, 0x9f, 0xed, 0xcb]),
        (&tcp4, Field::Ipv4Src, number(v4), 26, v4),
        (&udp4, Field::Ipv4Dst, number(v4), 30, v4),
        (&icmp4, Field::Ipv4Dst, number(v4), 30, v4),
        (&tcp6, Field::Ipv6Src, number(v6), 22, v6),
        (&udp6, Field::Ipv6Dst, number(v6), 38, v6),
        (&icmp6, Field::Ipv6Dst, number(v6), 38, v6),
        (&tcp4, Field::TcpSrc, 0x1234, 34, port),
        (&tcp6, Field::TcpDst, 0x1234, 56, port),
        (&udp4, Field::UdpSrc, 0x1234, 34, port),
        (&udp6, Field::UdpDst, 0x1234, 56, port),
        (&icmp4, Field::Icmpv4Type, 0x11, 34, &[0x11]),
        (&icmp4, Field::Icmpv4Code, 0x11, 35, &[0x11]),
        (&icmp6, Field::Icmpv6Type, 0x11, 54, &[0x11]),
        (&icmp6, Field::Icmpv6Code, 0x11, 55, &[0x11]),
    ] {
        let frame = frame.frame();
        let got = after(&frame, Action::set(field, value));
        assert_eq!(got, changed(&frame, &[(at, bytes)]), "{field}");
        assert_ne!(got, frame, "{field}");
    }
}

#[test]
fn arp_and_neighbour_discovery_fields_are_written() {
    for (field, value, at, bytes) in [
        (Field::ArpOp, 2_u128, 20, &[0, 2][..]),
        (Field::ArpSha, 0x0a0b_0c0d_0e0f, 22, &[0xa, 0xb, 0xc, 0xd, 0xe, 0xf]),
        (Field::ArpSpa, 0xcb00_7109, 28, &[203, 0, 113, 9]),
        (Field::ArpTha, 0x0a0b_0c0d_0e0f, 32, &[0xa, 0xb, 0xc, 0xd, 0xe, 0xf]),
        (Field::ArpTpa, 0xcb00_7109, 38, &[203, 0, 113, 9]),
    ] {
        assert_eq!(after(&arp(), Action::set(field, value)), changed(&arp(), &[(at, bytes)]), "{field}");
    }
    let mac = [0xa, 0xb, 0xc, 0xd, 0xe, 0xf];
    for (kind, field) in [(135, Field::Ipv6NdSll), (136, Field::Ipv6NdTll)] {
        let frame = neighbour_discovery(kind);
        assert_eq!(after(&frame, Action::set(field, 0x0a0b_0c0d_0e0f_u64)), changed(&frame, &[(88, &mac)]));
        let target = after(&frame, Action::set(Field::Ipv6NdTarget, 7_u8));
        assert_eq!(target, changed(&frame, &[(62, &7_u128.to_be_bytes())]));
    }
}

/// The one test whose checksums were computed by hand: 10.0.0.1:1000 to 10.0.0.2:2000 with "hello". The source
/// becomes 10.0.1.1.
#[test]
fn a_rewritten_source_address_in_full() {
    let head = [0x45, 0xb9, 0, 33, 0, 0, 0x40, 0, 64, 17];
    let ports = [3, 0xe8, 7, 0xd0, 0, 13];
    let frame = |host: u8, ip: [u8; 2], udp: [u8; 2]| {
        let addresses = [10, 0, host, 1, 10, 0, 0, 2];
        [&DESTINATION[..], &SOURCE, &[8, 0], &head, &ip, &addresses, &ports, &udp, b"hello"].concat()
    };
    let before = frame(0, [0x26, 0x11], [0x9c, 0x47]);
    let expected = frame(1, [0x25, 0x11], [0x9b, 0x47]);
    assert_eq!(udp(), before);
    assert_eq!(after(&before, Action::set(Field::Ipv4Src, 0x0a00_0101_u32)), expected);
}

#[test]
fn a_field_that_the_packet_lacks_or_that_cannot_be_written_changes_nothing() {
    let packets = [udp(), arp(), recipe(true, Transport::Tcp).frame(), neighbour_discovery(135)];
    for frame in packets {
        for field in FIELDS.iter().map(|s| s.field) {
            let place = Headers::of(&frame, 0, None).unwrap().place(&frame, field);
            let other = place.map_or(u128::MAX, |place| !place.read(&frame));
            let got = after(&frame, Action::set(field, other));
            assert_eq!(got != frame, place.is_some(), "{field}");
            assert!(place.is_none() || settable(field), "{field}");
        }
    }
    for action in [Action::DecTtl, Action::SetTtl(9), Action::SetTpDst(9), Action::PopVlan] {
        assert_eq!(after(&arp(), action), arp());
    }
}

#[test]
fn a_mask_leaves_the_other_bits() {
    let net = Action::SetField { field: Field::Ipv4Dst, value: 0xc0a8_ffff, mask: 0xffff_0000 };
    assert_eq!(after(&udp(), net), changed(&udp(), &[(30, &[192, 168, 0, 2])]));
}

#[test]
fn ports_of_openflow_1_0_are_those_of_tcp_or_udp() {
    for transport in [Transport::Tcp, Transport::Udp] {
        let frame = recipe(false, transport).frame();
        assert_eq!(after(&frame, Action::SetTpSrc(0x1234)), changed(&frame, &[(34, &[0x12, 0x34])]));
        assert_eq!(after(&frame, Action::SetTpDst(0x1234)), changed(&frame, &[(36, &[0x12, 0x34])]));
    }
    let icmp = recipe(false, Transport::Icmp).frame();
    assert_eq!(after(&icmp, Action::SetTpDst(0x1234)), icmp);
}

#[test]
fn udp_without_a_checksum_gets_none_and_a_zero_is_written_as_ones() {
    let mut none = udp();
    none[40..42].fill(0);
    let mut expected = changed(&none, &[(26, &[10, 9, 9, 9])]);
    expected[40..42].fill(0);
    assert_eq!(after(&none, Action::set(Field::Ipv4Src, 0x0a09_0909_u32)), expected);

    // With this port, the sum of everything else is 0xffff.
    let frame = udp();
    let port = 1000_u16.wrapping_add(u16::from_be_bytes([frame[40], frame[41]]));
    let frame = after(&frame, Action::SetTpSrc(port));
    assert_eq!(frame[40..42], [0xff, 0xff]);
    assert_eq!(errors(&frame), [0, 0]);
}

#[test]
fn a_first_fragment_has_its_ports_rewritten_and_a_later_one_has_none() {
    let mut first = udp();
    first[20] = 0x20;
    repair(&mut first);
    let got = after(&first, Action::set(Field::UdpDst, 0x1234_u16));
    assert_eq!(got[36..38], [0x12, 0x34]);
    let whole = after(&udp(), Action::set(Field::UdpDst, 0x1234_u16));
    assert_eq!(got[40..42], whole[40..42], "the checksum is that of the whole packet");

    let mut later = udp();
    later[21] = 3;
    repair(&mut later);
    assert_eq!(after(&later, Action::set(Field::UdpDst, 0x1234_u16)), later);
    let moved = after(&later, Action::set(Field::Ipv4Dst, 1_u8));
    assert_eq!(moved, changed(&later, &[(30, &[0, 0, 0, 1])]), "data is not changed like a checksum");
}

#[test]
fn a_routing_header_with_segments_left_keeps_the_destination_out_of_the_checksum() {
    let mut frame = recipe(true, Transport::Udp).frame();
    frame.splice(54..54, [17, 0, 0, 1, 0, 0, 0, 0]);
    frame[19] += 8;
    frame[20] = 43;
    let mut expected = frame.clone();
    expected[38..54].copy_from_slice(&9_u128.to_be_bytes());
    assert_eq!(after(&frame, Action::set(Field::Ipv6Dst, 9_u8)), expected);
    frame[57] = 0;
    assert_ne!(after(&frame, Action::set(Field::Ipv6Dst, 9_u8))[68..70], frame[68..70]);
}

#[test]
fn tags_are_pushed_removed_and_written() {
    let with = |tags: &[(u8, u16)]| Recipe { tags: tags.to_vec(), ..Recipe::default() }.frame();
    let plain = with(&[]);
    assert_eq!(after(&plain, Action::PushVlan(0x8100)), with(&[(0, 0)]));
    let mut service = with(&[(5, 100), (5, 100)]);
    service[12..14].copy_from_slice(&[0x88, 0xa8]);
    assert_eq!(after(&with(&[(5, 100)]), Action::PushVlan(0x88a8)), service);
    assert_eq!(after(&service, Action::PopVlan), with(&[(5, 100)]));
    assert_eq!(after(&plain, Action::PopVlan), plain);
    assert_eq!(after(&plain, Action::SetVlanVid(7)), with(&[(0, 7)]));
    assert_eq!(after(&with(&[(5, 100), (1, 2)]), Action::SetVlanVid(7)), with(&[(5, 7), (1, 2)]));
    assert_eq!(after(&plain, Action::SetVlanPcp(6)), with(&[(6, 0)]));
    assert_eq!(after(&with(&[(5, 100)]), Action::SetVlanPcp(6)), with(&[(6, 100)]));
}

#[test]
fn the_ttl_is_counted_down_and_a_used_up_packet_goes_to_the_controller() {
    let udp6 = recipe(true, Transport::Udp).frame();
    assert_eq!(after(&udp(), Action::DecTtl), changed(&udp(), &[(22, &[63])]));
    assert_eq!(after(&udp6, Action::DecTtl), changed(&udp6, &[(21, &[63])]));
    assert_eq!(after(&udp(), Action::SetTtl(9)), changed(&udp(), &[(22, &[9])]));
    for ttl in [0, 1] {
        let frame = Recipe { ttl, ..Recipe::default() }.frame();
        let mut packet = Packet::new(frame, IN);
        let unchanged = packet.clone();
        let mut sent = Vec::new();
        let actions = [Action::DecTtl, Action::output(RulePort(2))];
        assert_eq!(execute(&mut packet, &actions, &Context::PLAIN, &mut sent), Err(Ended::InvalidTtl));
        let to_controller = Sent { port: RulePort::CONTROLLER, invalid_ttl: true, packet: unchanged };
        assert_eq!(sent, [to_controller]);
    }
}

#[test]
fn an_output_has_the_bytes_of_its_moment_and_goes_back_only_through_in_port() {
    let actions = [
        Action::output(RulePort(2)),
        Action::set(Field::UdpDst, 53_u16),
        Action::output(IN),
        Action::output(RulePort::IN_PORT),
        Action::SetQueue(4),
        Action::Output { port: RulePort::CONTROLLER, max_len: 60 },
        Action::Enqueue { port: RulePort(3), queue: 9 },
        Action::SetCore(CoreChoice::This(2)),
        Action::output(RulePort::FLOOD),
    ];
    let mut sent = Vec::new();
    execute(&mut Packet::new(udp(), IN), &actions, &Context::PLAIN, &mut sent).unwrap();
    let dns = changed(&udp(), &[(36, &[0, 53])]);
    let seen: Vec<_> = sent.iter().map(|s| (s.port, s.packet.queue, s.packet.core)).collect();
    assert_eq!(
        seen,
        [
            (RulePort(2), None, None),
            (RulePort::IN_PORT, None, None),
            (RulePort::CONTROLLER, Some(4), None),
            (RulePort(3), Some(9), None),
            (RulePort::FLOOD, Some(4), Some(CoreChoice::This(2))),
        ]
    );
    assert_eq!(sent[0].packet.frame, udp());
    assert!(sent[1..].iter().all(|s| s.packet.frame == dns));
}

#[test]
fn each_bucket_of_a_group_has_a_packet_of_its_own() {
    let buckets = |id, _: &Packet| match id {
        // In a bucket the output is done last, wherever it is written.
        1 => vec![
            vec![Action::output(RulePort(2)), Action::set(Field::UdpDst, 53_u16)],
            vec![Action::PushVlan(0x8100), Action::output(RulePort(3))],
            vec![Action::Group(2)],
        ],
        2 => vec![vec![Action::output(RulePort(4))]],
        _ => vec![vec![Action::Group(id)]; 2],
    };
    let context = Context { vxlan_port: VXLAN_PORT, buckets: &buckets };
    let sent = outputs(&udp(), &[Action::Group(1), Action::output(RulePort(5))], &context);
    let tagged = after(&udp(), Action::PushVlan(0x8100));
    let dns = changed(&udp(), &[(36, &[0, 53])]);
    assert_eq!(sent, [(RulePort(2), dns), (RulePort(3), tagged), (RulePort(4), udp()), (RulePort(5), udp())]);
    let ring = execute(&mut Packet::new(udp(), IN), &[Action::Group(3)], &context, &mut Vec::new());
    assert_eq!(ring, Err(Ended::TooManyGroups));
}

#[test]
fn vxlan_headers_are_added_and_removed() {
    let inner = udp();
    let outer = after(&inner, Action::EncapVxlan(OUTER));
    let port = vxlan_source_port(&inner);
    assert!(port >= 49152);
    let [high, low] = port.to_be_bytes();
    #[rustfmt::skip]
    let expected = [
        2, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa, 8, 0,
        0x45, 0, 0, 83, 0, 0, 0x40, 0, 64, 17, 0xb6, 0x96, 192, 0, 2, 1, 192, 0, 2, 2,
        high, low, 0x12, 0xb5, 0, 63, 0, 0,
        8, 0, 0, 0, 0xa, 0xb, 0xc, 0,
    ];
    assert_eq!(outer[..VXLAN_BYTES], expected);
    assert_eq!(outer[VXLAN_BYTES..], inner);
    assert_eq!(errors(&outer), [0]);
    assert_eq!(after(&outer, Action::DecapVxlan), inner);

    let padded = [&outer[..], &[0; 9]].concat();
    assert_eq!(after(&padded, Action::DecapVxlan), inner, "padding is removed too");
    let outputs =
        outputs(&outer, &[Action::DecapVxlan, Action::DecTtl, Action::output(RulePort(2))], &Context::PLAIN);
    assert_eq!(outputs, [(RulePort(2), changed(&inner, &[(22, &[63])]))]);
    assert_eq!(run(&inner, &[Action::DecapVxlan]), (Err(Ended::NotVxlan), inner.clone()));
    assert_eq!(run(&vec![0; 65_500], &[Action::EncapVxlan(OUTER)]).0, Err(Ended::TooLong));

    let another = changed(&inner, &[(34, &[0, 1])]);
    let again = changed(&inner, &[(15, &[0]), (42, b"other")]);
    assert_ne!(vxlan_source_port(&another), port, "another flow");
    assert_eq!(vxlan_source_port(&again), port, "the same flow");
}

#[test]
fn a_vni_is_written_and_the_outer_checksum_follows() {
    let mut outer = after(&udp(), Action::EncapVxlan(OUTER));
    outer[40..42].copy_from_slice(&[1, 1]);
    repair(&mut outer);
    let got = after(&outer, Action::set(Field::VxlanVni, 0x77_8899_u32));
    assert_eq!(got, changed(&outer, &[(46, &[0x77, 0x88, 0x99])]));
}

#[test]
fn the_flow_control_field_is_in_the_tos_byte_or_the_tag() {
    let fcf = |place, workload, priority| Action::SetFcf { place, workload, priority };
    // Workload, priority, and the two ECN bits, which stay.
    assert_eq!(
        after(&udp(), fcf(FcfPlace::Tos, 0x15, true)),
        changed(&udp(), &[(15, &[0x15 << 3 | 1 << 2 | 1])])
    );
    let udp6 = recipe(true, Transport::Udp).frame();
    let expected = changed(&udp6, &[(14, &[0x6a, 0x11])]);
    assert_eq!(after(&udp6, fcf(FcfPlace::Tos, 0x14, false)), expected);
    let tagged = |pcp, vid| Recipe { tags: vec![(pcp, vid)], ..Recipe::default() }.frame();
    assert_eq!(after(&udp(), fcf(FcfPlace::Vlan, 0xabc, true)), tagged(4, 0xabc));
    assert_eq!(after(&tagged(3, 5), fcf(FcfPlace::Vlan, 0xabc, true)), tagged(7, 0xabc));
    assert_eq!(after(&tagged(7, 5), fcf(FcfPlace::Vlan, 0xabc, false)), tagged(3, 0xabc));
}

#[test]
fn a_wrong_sctp_checksum_stays_wrong_by_the_same_bits() {
    for wrong in [0, 0x1234_5678] {
        let got = after(&sctp(wrong), Action::set(Field::SctpSrc, 7_u8));
        assert_eq!(got[34..36], [0, 7]);
        let crc = crc32c(&[&got[34..42], &[0; 4], &got[46..]].concat()) ^ wrong;
        assert_eq!(got[42..46], crc.to_le_bytes());
    }
    let mut fragment = sctp(0);
    fragment[20] = 0x20;
    assert_eq!(
        after(&fragment, Action::set(Field::SctpSrc, 7_u8)),
        fragment,
        "its CRC covers bytes that are not in this fragment"
    );
}

#[test]
fn an_action_set_has_one_of_each_kind_in_the_order_of_the_standard() {
    let (dns, web) = (Action::set(Field::UdpDst, 53_u16), Action::set(Field::UdpDst, 80_u16));
    let written = [
        Action::output(RulePort(2)),
        Action::SetQueue(1),
        dns,
        Action::EncapVxlan(OUTER),
        Action::DecTtl,
        Action::PushVlan(0x8100),
        Action::set(Field::VlanVid, 0x1005_u16),
        Action::PopVlan,
        Action::DecapVxlan,
        web.clone(),
        Action::Enqueue { port: RulePort(3), queue: 1 },
    ];
    let mut expected = vec![
        Action::DecapVxlan,
        Action::PopVlan,
        Action::PushVlan(0x8100),
        Action::DecTtl,
        Action::set(Field::VlanVid, 0x1005_u16),
        web,
        Action::EncapVxlan(OUTER),
        Action::SetQueue(1),
        Action::Enqueue { port: RulePort(3), queue: 1 },
    ];
    assert_eq!(action_set(&written), expected);
    expected.pop();
    expected.push(Action::Group(7));
    assert_eq!(
        action_set(&[&[Action::Group(7)], &written[..]].concat()),
        expected,
        "a group instead of outputs"
    );
}

fn any_action() -> impl Strategy<Value = Action> {
    let field = (0..FIELDS.len(), any::<u128>(), prop_oneof![Just(u128::MAX), any::<u128>()])
        // etherparse requires the right length of ICMP timestamps.
        .prop_map(|(at, value, mask)| (FIELDS[at].field, value, mask))
        .prop_filter("ICMP types", |(field, ..)| *field != Field::Icmpv4Type)
        .prop_map(|(field, value, mask)| Action::SetField { field, value, mask });
    prop_oneof![
        8 => field,
        1 => (0..4096_u16).prop_map(Action::SetVlanVid),
        1 => (0..8_u8).prop_map(Action::SetVlanPcp),
        1 => any::<u16>().prop_map(Action::SetTpSrc),
        1 => any::<u16>().prop_map(Action::SetTpDst),
        1 => Just(Action::PushVlan(0x8100)),
        1 => Just(Action::PopVlan),
        1 => Just(Action::DecTtl),
        1 => any::<u8>().prop_map(Action::SetTtl),
        1 => (any::<bool>(), any::<u16>(), any::<bool>()).prop_map(|(tos, workload, priority)| {
            let place = if tos { FcfPlace::Tos } else { FcfPlace::Vlan };
            Action::SetFcf { place, workload, priority }
        }),
    ]
}

proptest! {
    #[test]
    fn right_checksums_stay_right_and_wrong_ones_stay_wrong(
        recipe in any_recipe(),
        actions in prop::collection::vec(any_action(), 1..8),
        wrong in prop::option::of((any::<u16>(), any::<u16>())),
    ) {
        let mut frame = recipe.frame();
        prop_assert!(errors(&frame).iter().all(|&error| error == 0));
        if let Some((a, b)) = wrong {
            for ((at, _), amount) in checksums(&frame).into_iter().zip([a, b]) {
                let is = u16::from_be_bytes([frame[at], frame[at + 1]]);
                frame[at..at + 2].copy_from_slice(&follow(is, &[0, 0], &amount.to_be_bytes()).to_be_bytes());
            }
        }
        let before = errors(&frame);
        // A wrong UDP checksum may have become 0, which is none.
        prop_assume!(before.len() == checksums(&recipe.frame()).len());
        let (_, frame) = run(&frame, &actions);
        prop_assert_eq!(errors(&frame), before);
    }

    #[test]
    fn a_set_field_changes_these_bits_of_the_key_and_no_others(
        recipe in any_recipe(), at in 0..FIELDS.len(), value: u128, mask: u128,
    ) {
        let field = FIELDS[at].field;
        // The values of these decide which other fields there are.
        prop_assume!(![Field::UdpDst, Field::Icmpv6Type].contains(&field));
        let frame = recipe.frame();
        let there = Headers::of(&frame, 0, None).unwrap().place(&frame, field).is_some();
        let mut expected = Key::of(&frame, IN, VXLAN_PORT);
        let bits = if there { mask } else { 0 };
        let bits = match field {
            Field::VlanVid => bits & 0xfff,
            Field::Icmpv4Type | Field::Icmpv4Code | Field::Icmpv6Code => bits & 0xff,
            _ => bits,
        };
        expected.set(field, expected.get(field) & !bits | value & bits);
        let got = after(&frame, Action::SetField { field, value, mask });
        prop_assert_eq!(Key::of(&got, IN, VXLAN_PORT), expected);
        prop_assert_eq!(got.len(), frame.len());
    }

    #[test]
    fn a_frame_put_into_vxlan_comes_out_unchanged(recipe in any_recipe(), vni in 0..1_u32 << 24) {
        let frame = recipe.frame();
        let (ended, outer) = run(&frame, &[Action::EncapVxlan(Vxlan { vni, ..OUTER })]);
        prop_assert_eq!(ended, Ok(()));
        prop_assert_eq!(errors(&outer), [0]);
        prop_assert_eq!(Key::of(&outer, IN, VXLAN_PORT).get(Field::VxlanVni), u128::from(vni));
        prop_assert_eq!(after(&outer, Action::DecapVxlan), frame);
    }

    #[test]
    fn no_frame_and_no_action_causes_a_panic(
        recipe in any_recipe(),
        cut: prop::sample::Index,
        noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        actions in prop::collection::vec(prop_oneof![8 => any_action(), 1 => Just(Action::EncapVxlan(OUTER)), 1 => Just(Action::DecapVxlan)], 0..12),
    ) {
        let mut frame = recipe.frame();
        noise.iter().for_each(|(at, byte)| *at.get_mut(&mut frame) = *byte);
        frame.truncate(cut.index(frame.len() + 1));
        let _ = run(&frame, &actions);
    }
}
