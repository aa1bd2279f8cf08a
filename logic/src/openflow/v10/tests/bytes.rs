//! The bytes of each message, as section 5 of the specification defines them.

use super::{super::super::message::*, *};
use crate::{
    flow::{
        Removed,
        field::{ether_type, ip_proto},
    },
    net::Mac,
};

/// `struct ofp_match` that matches everything.
const ANY: &str =
    "003820ff 0000 000000000000 000000000000 0000 00 00 0000 00 00 0000 00000000 00000000 0000 0000";

/// Checks that the message encodes to these bytes and that these bytes decode to the message.
#[track_caller]
fn same(neutral: Message, kind: u8, body: &str) {
    let bytes = message(kind, body);
    assert_eq!(encoded(&neutral), bytes);
    let header = Header { version: 1, kind, length: bytes.len() as u16, xid: XID };
    assert_eq!(decode(&bytes), Ok((header, neutral)));
}

/// The match that is `TCP` on the wire.
fn tcp() -> Match {
    let mut m = only(Field::InPort, 3)
        .with(Field::EthSrc, 0x0200_0000_0001_u64)
        .with(Field::EthDst, 0x0200_0000_0002_u64)
        .with(Field::EthType, ether_type::IPV4)
        .with(Field::VlanVid, 0x1064_u16)
        .with(Field::VlanPcp, 5_u8)
        .with(Field::IpDscp, 46_u8)
        .with(Field::IpProto, ip_proto::TCP)
        .with(Field::Ipv4Dst, 0x0a00_0001_u32)
        .with(Field::TcpSrc, 1024_u16)
        .with(Field::TcpDst, 80_u16);
    m.set(Field::Ipv4Src, 0x0a01_0200, 0xffff_ff00);
    m
}

const TCP: &str =
    "00000800 0003 020000000001 020000000002 0064 05 00 0800 b8 06 0000 0a010200 0a000001 0400 0050";

#[test]
fn messages_of_a_few_bytes() {
    same(Message::Hello { versions: None }, 0, "");
    same(Message::Error(ErrorMessage { kind: 1, code: 6, data: vec![1, 2] }), 1, "0001 0006 0102");
    same(Message::EchoRequest(vec![0xab, 0xcd]), 2, "abcd");
    same(Message::EchoReply(vec![0xab]), 3, "ab");
    let vendor = Experimenter { id: 0x2320, subtype: 10, body: vec![0, 1] };
    same(Message::Experimenter(vendor), 4, "00002320 0000000a 0001");
    same(Message::FeaturesRequest, 5, "");
    same(Message::GetConfigRequest, 7, "");
    same(Message::GetConfigReply(Config { fragments: Fragments::Drop, miss_send_len: 128 }), 8, "0001 0080");
    same(
        Message::SetConfig(Config { fragments: Fragments::Reassemble, miss_send_len: 0xffff }),
        9,
        "0002 ffff",
    );
    same(Message::BarrierRequest, 18, "");
    same(Message::BarrierReply, 19, "");
    same(Message::QueueConfigRequest { port: RulePort(2) }, 20, "0002 0000");
}

#[test]
fn a_hello_of_any_version_and_with_any_body() {
    for bytes in [&[4, 0, 0, 16, 0, 0, 0, 7, 0, 1, 0, 8, 0, 0, 0, 0x12][..], &[6, 0, 0, 8, 0, 0, 0, 7]] {
        assert_eq!(decoded(bytes), Ok(Message::Hello { versions: None }));
    }
}

/// A port whose features have every bit from 10 Mbit/s half duplex to asymmetric pause. Some of them are other
/// bits in 1.3.
fn port() -> PortDescription {
    PortDescription {
        port: RulePort(2),
        mac: Mac([2, 0, 0, 0, 0, 9]),
        name: b"eth2".to_vec(),
        config: PortConfig(PortConfig::DOWN | PortConfig::NO_FLOOD),
        state: PortState { link_down: true, stp: 2 << 8, ..PortState::default() },
        current: PortFeatures(1 << 11 | 1 << 6),
        advertised: PortFeatures(0xf87f),
        supported: PortFeatures(1 << 15),
        peer: PortFeatures(0),
        current_speed: 0,
        max_speed: 0,
    }
}

const PORT: &str = "0002 020000000009 65746832000000000000000000000000 00000011 00000201
    000000c0 00000fff 00000800 00000000";

#[test]
fn ports() {
    let features = Features {
        datapath_id: 0x0102,
        buffers: 256,
        tables: 8,
        auxiliary_id: 0,
        capabilities: 0xc7,
        actions: Some(0xfff),
        ports: Some(vec![port(), port()]),
    };
    same(
        Message::FeaturesReply(features),
        6,
        &format!("0000000000000102 00000100 08 000000 000000c7 00000fff {PORT} {PORT}"),
    );
    let body = format!("02 00000000000000 {PORT}");
    same(Message::PortStatus { reason: PortReason::Modify, port: port() }, 12, &body);
    let change = PortMod {
        port: RulePort(2),
        mac: Mac([2, 0, 0, 0, 0, 9]),
        config: PortConfig(PortConfig::DOWN),
        mask: PortConfig(PortConfig::DOWN | PortConfig::NO_PACKET_IN),
        advertise: PortFeatures(1 << 13),
    };
    same(Message::PortMod(change), 15, "0002 020000000009 00000001 00000041 00000200 00000000");
    // Two queues: one with a rate, one without.
    let queue = |queue, min_rate| QueueDescription { queue, port: RulePort(2), min_rate, max_rate: None };
    same(
        Message::QueueConfigReply { port: RulePort(2), queues: vec![queue(1, Some(500)), queue(2, None)] },
        21,
        "0002 000000000000
         00000001 0018 0000  0001 0010 00000000 01f4 000000000000
         00000002 0008 0000",
    );
}

#[test]
fn a_port_is_written_without_what_1_0_has_no_place_for() {
    let mut fast = port();
    fast.state.live = true;
    fast.current_speed = 100_000_000;
    fast.current.0 |= 1 << 8;
    let bytes = encoded(&Message::PortStatus { reason: PortReason::Modify, port: fast });
    assert_eq!(bytes, message(12, &format!("02 00000000000000 {PORT}")));
}

#[test]
fn packets() {
    let packet_in = PacketIn {
        buffer: Some(5),
        total_len: 60,
        reason: PacketInReason::Action,
        table: 0,
        cookie: 0,
        matching: only(Field::InPort, 3),
        data: vec![0xde, 0xad],
    };
    same(Message::PacketIn(packet_in), 10, "00000005 003c 0003 01 00 dead");
    let packet_out = PacketOut {
        buffer: None,
        in_port: RulePort::NONE,
        actions: vec![Action::output(RulePort::FLOOD)],
        data: vec![0xbe, 0xef],
    };
    same(Message::PacketOut(packet_out), 13, "ffffffff ffff 0008  0000 0008 fffb ffff  beef");
    let buffered = PacketOut { buffer: Some(5), in_port: RulePort(1), actions: vec![], data: vec![] };
    same(Message::PacketOut(buffered.clone()), 13, "00000005 0001 0000");
    assert_eq!(decoded(&message(13, "00000005 0001 0000 beef")), Ok(Message::PacketOut(buffered)));
}

#[test]
fn a_flow_mod() {
    let change = FlowMod {
        cookie: 0x1122_3344_5566_7788,
        matching: tcp(),
        idle_timeout: 10,
        hard_timeout: 20,
        flags: FlowFlags {
            send_removed: true,
            check_overlap: true,
            reset_counts: true,
            ..Default::default()
        },
        buffer: Some(9),
        ..add(vec![Action::output(RulePort(2))])
    };
    same(
        Message::FlowMod(change.clone()),
        14,
        &format!("{TCP} 1122334455667788 0000 000a 0014 0064 00000009 ffff 0003  0000 0008 0002 ffff"),
    );
    let delete = FlowMod {
        command: FlowCommand::Delete { strict: true },
        table: None,
        flags: FlowFlags { emergency: true, ..Default::default() },
        buffer: None,
        out_port: Some(RulePort(4)),
        instructions: Instructions::default(),
        ..change
    };
    let body = format!("{TCP} 1122334455667788 0004 000a 0014 0064 ffffffff 0004 0004");
    same(Message::FlowMod(delete), 14, &body);
}

#[test]
fn parts_that_a_command_ignores_are_left_out() {
    let flow_mod = |bytes: &[u8]| match decoded(bytes) {
        Ok(Message::FlowMod(change)) => change,
        other => panic!("{other:?}"),
    };
    let add =
        flow_mod(&message(14, &format!("{ANY} 0000000000000000 0000 0000 0000 0064 00000009 0004 0000")));
    assert_eq!((add.out_port, add.buffer), (None, Some(9)));
    let delete =
        flow_mod(&message(14, &format!("{ANY} 0000000000000000 0003 0000 0000 0064 00000009 ffff 0000")));
    assert_eq!((delete.out_port, delete.buffer, delete.table), (None, None, None));
    assert_eq!(delete.command, FlowCommand::Delete { strict: false });
}

#[test]
fn an_exact_match_has_the_highest_priority() {
    let exact = format!("00000000 {}", &TCP[9..]);
    let bytes = message(14, &format!("{exact} 0000000000000000 0000 0000 0000 0064 ffffffff ffff 0000"));
    let Ok(Message::FlowMod(change)) = decoded(&bytes) else { panic!() };
    assert_eq!(change.priority, u16::MAX);
}

#[test]
fn a_flow_removed() {
    let removed = FlowRemoved {
        matching: tcp(),
        cookie: 1,
        priority: 100,
        reason: Removed::HardTimeout,
        table: 0,
        duration_sec: 5,
        duration_nsec: 6,
        idle_timeout: 10,
        hard_timeout: 0,
        packets: 7,
        bytes: 8,
    };
    same(
        Message::FlowRemoved(removed),
        11,
        &format!(
            "{TCP} 0000000000000001 0064 01 00 00000005 00000006 000a 0000 0000000000000007 0000000000000008"
        ),
    );
}

#[test]
fn each_action() {
    for (action, bytes) in [
        (Action::Output { port: RulePort::CONTROLLER, max_len: 128 }, "0000 0008 fffd 0080"),
        (Action::SetVlanVid(0x123), "0001 0008 0123 0000"),
        (Action::SetVlanPcp(6), "0002 0008 06 000000"),
        (Action::PopVlan, "0003 0008 00000000"),
        (Action::set(Field::EthSrc, 0x0200_0000_0001_u64), "0004 0010 020000000001 000000000000"),
        (Action::set(Field::EthDst, 0x0200_0000_0002_u64), "0005 0010 020000000002 000000000000"),
        (Action::set(Field::Ipv4Src, 0x0a00_0001_u32), "0006 0008 0a000001"),
        (Action::set(Field::Ipv4Dst, 0x0a00_0002_u32), "0007 0008 0a000002"),
        (Action::set(Field::IpDscp, 46_u8), "0008 0008 b8 000000"),
        (Action::SetTpSrc(1024), "0009 0008 0400 0000"),
        (Action::SetTpDst(80), "000a 0008 0050 0000"),
        (Action::Enqueue { port: RulePort(3), queue: 9 }, "000b 0010 0003 000000000000 00000009"),
    ] {
        let body = format!("{ANY} 0000000000000000 0000 0000 0000 0064 ffffffff ffff 0000 {bytes}");
        same(Message::FlowMod(add(vec![action])), 14, &body);
    }
}

#[test]
fn statistics_asked() {
    let asked = |request, body: &str| same(Message::StatsRequest(request), 16, body);
    let filter = |table, out_port| FlowFilter {
        table,
        matching: tcp(),
        out_port,
        out_group: None,
        cookie: 0,
        cookie_mask: 0,
    };
    asked(StatsRequest::Description, "0000 0000");
    asked(StatsRequest::Flow(filter(None, None)), &format!("0001 0000 {TCP} ff 00 ffff"));
    asked(
        StatsRequest::Aggregate(filter(Some(1), Some(RulePort(2)))),
        &format!("0002 0000 {TCP} 01 00 0002"),
    );
    asked(StatsRequest::Table, "0003 0000");
    asked(StatsRequest::Port(RulePort::NONE), "0004 0000 ffff 000000000000");
    asked(StatsRequest::Queue { port: RulePort::ALL, queue: None }, "0005 0000 fffc 0000 ffffffff");
    asked(StatsRequest::Queue { port: RulePort(1), queue: Some(2) }, "0005 0000 0001 0000 00000002");
    let vendor = Experimenter { id: 0x2320, subtype: 1, body: vec![9] };
    asked(StatsRequest::Experimenter(vendor), "ffff 0000 00002320 00000001 09");
}

#[test]
fn statistics_answered() {
    let told = |reply, more, body: &str| same(Message::StatsReply { reply, more }, 17, body);
    let description =
        Description { manufacturer: b"M".to_vec(), serial: b"12".to_vec(), ..Default::default() };
    let zeros = |bytes: usize| "00".repeat(bytes);
    let body =
        format!("0000 0000 4d{} {} {} 3132{} {}", zeros(255), zeros(256), zeros(256), zeros(30), zeros(256));
    told(StatsReply::Description(description), false, &body);
    let flow = FlowStats {
        table: 0,
        matching: tcp(),
        duration_sec: 1,
        duration_nsec: 2,
        priority: 3,
        idle_timeout: 4,
        hard_timeout: 5,
        flags: FlowFlags::default(),
        cookie: 6,
        packets: 7,
        bytes: 8,
        instructions: Instructions::apply([Action::output(RulePort(2))]),
    };
    let entry = format!(
        "0060 00 00 {TCP} 00000001 00000002 0003 0004 0005 000000000000
         0000000000000006 0000000000000007 0000000000000008  0000 0008 0002 ffff"
    );
    told(StatsReply::Flow(vec![flow.clone(), flow]), true, &format!("0001 0001 {entry} {entry}"));
    told(StatsReply::Flow(vec![]), false, "0001 0000");
    told(
        StatsReply::Aggregate { packets: 1, bytes: 2, flows: 3 },
        false,
        "0002 0000 0000000000000001 0000000000000002 00000003 00000000",
    );
    let table = TableStats {
        table: 0,
        name: b"t".to_vec(),
        wildcards: 0x3f_ffff,
        max_entries: 16,
        active: 2,
        lookups: 3,
        matched: 4,
    };
    let body =
        format!("0003 0000 00 000000 74{} 003fffff 00000010 00000002 {:016x} {:016x}", zeros(31), 3, 4);
    told(StatsReply::Table(vec![table]), false, &body);
    let port = PortStats {
        port: RulePort(1),
        rx_packets: 1,
        tx_packets: 2,
        rx_bytes: 3,
        tx_bytes: 4,
        rx_dropped: 5,
        tx_dropped: 6,
        rx_errors: 7,
        tx_errors: 8,
        rx_frame_errors: 9,
        rx_over_errors: 10,
        rx_crc_errors: 11,
        collisions: u64::MAX,
        duration_sec: 0,
        duration_nsec: 0,
    };
    let counters: String = (1..=11).map(|n| format!("{n:016x}")).collect();
    let body = format!("0004 0000 0001 000000000000 {counters} ffffffffffffffff");
    told(StatsReply::Port(vec![port]), false, &body);
    let queue = QueueStats {
        port: RulePort(1),
        queue: 2,
        tx_bytes: 3,
        tx_packets: 4,
        tx_errors: 5,
        duration_sec: 0,
        duration_nsec: 0,
    };
    let body = format!("0005 0000 0001 0000 00000002 {:016x} {:016x} {:016x}", 3, 4, 5);
    told(StatsReply::Queue(vec![queue]), false, &body);
    let vendor = Experimenter { id: 0x2320, subtype: 1, body: vec![9] };
    told(StatsReply::Experimenter(vendor), true, "ffff 0001 00002320 00000001 09");
}

#[test]
fn each_match() {
    let ipv4 = || only(Field::EthType, ether_type::IPV4.into());
    let arp = || only(Field::EthType, ether_type::ARP.into());
    let with = |mut m: Match, field, value, mask| {
        m.set(field, value, mask);
        m
    };
    let tag = with(Match::ANY, Field::VlanVid, 0x1000, 0x1000).with(Field::VlanPcp, 5_u8);
    for (neutral, wire) in [
        (Match::ANY, ANY),
        // No tag; VLAN 0; any VLAN with a priority.
        (only(Field::VlanVid, 0), "003820fd 0000 000000000000 000000000000 ffff"),
        (only(Field::VlanVid, 0x1000), "003820fd 0000 000000000000 000000000000 0000"),
        (tag, "002820ff 0000 000000000000 000000000000 0000 05"),
        // An 802.3 frame without a type.
        (only(Field::EthType, 0x05ff), "003820ef 0000 000000000000 000000000000 0000 00 00 05ff"),
        (
            arp().with(Field::ArpSpa, 0x0a00_0001_u32),
            "003800ef 0000 000000000000 000000000000 0000 00 00 0806 00 00 0000 0a000001",
        ),
        (
            with(with(arp(), Field::ArpOp, 2, 0xffff), Field::ArpTpa, 0x0a00_0000, 0xff00_0000),
            "003620cf 0000 000000000000 000000000000 0000 00 00 0806 00 02 0000 00000000 0a000000",
        ),
        (
            ipv4().with(Field::IpProto, 1_u8).with(Field::Icmpv4Type, 8_u8).with(Field::Icmpv4Code, 0_u8),
            "0038200f 0000 000000000000 000000000000 0000 00 00 0800 00 01 0000 00000000 00000000 0008 0000",
        ),
        (
            ipv4().with(Field::IpProto, 17_u8).with(Field::UdpDst, 53_u8),
            "0038204f 0000 000000000000 000000000000 0000 00 00 0800 00 11 0000 00000000 00000000 0000 0035",
        ),
        (
            with(ipv4(), Field::Ipv4Src, 0x8000_0000, 0x8000_0000),
            "00381fef 0000 000000000000 000000000000 0000 00 00 0800 00 00 0000 80000000",
        ),
    ] {
        let mut bytes = unhex(wire);
        bytes.resize(40, 0);
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let change = FlowMod { matching: neutral, ..add(vec![]) };
        let body = format!("{hex} 0000000000000000 0000 0000 0000 0064 ffffffff ffff 0000");
        same(Message::FlowMod(change), 14, &body);
    }
}

#[test]
fn fields_that_mean_nothing_are_ignored() {
    let read = |wire: &str| matching::MATCH.read(&mut Reader::new(&unhex(wire), BadMessage::Length)).unwrap();
    let rest = "b8 06 0000 0a010200 0a000001 0400 0050";
    let typed = |kind: u16| only(Field::EthType, kind.into());
    // Only ports, addresses and VLAN have wildcards. The type has no such fields.
    let of = |kind: &str| read(&format!("0010000f 0003 020000000001 020000000002 0064 05 00 {kind} {rest}"));
    assert_eq!(of("88cc"), typed(0x88cc));
    // IPv6 has all fields except addresses, as in Open vSwitch.
    let tcp6 = typed(0x86dd).with(Field::IpDscp, 46_u8).with(Field::IpProto, 6_u8);
    assert_eq!(of("86dd"), tcp6.with(Field::TcpSrc, 0x400_u16).with(Field::TcpDst, 0x50_u16));
    assert_eq!(read(&format!("0010001f 0003 020000000001 020000000002 0064 05 00 0800 {rest}")), Match::ANY);
    // SCTP has no ports in 1.0. Without a protocol there are no ports at all.
    let sctp =
        read(&format!("0038200f {} 84 {}", "0003 020000000001 020000000002 0064 05 00 0800 b8", &rest[6..]));
    assert_eq!(sctp, typed(0x0800).with(Field::IpProto, 132_u8));
    assert_eq!(
        read(&format!("0038202f 0003 020000000001 020000000002 0064 05 00 0800 {rest}")),
        typed(0x0800)
    );
    // A priority without a tag; more than 32 wildcarded bits; bits beyond the last wildcard.
    assert_eq!(
        read(&format!("ffefffed 0000 000000000000 000000000000 ffff 05 00 0800 {rest}")),
        typed(0x0800).with(Field::VlanVid, 0_u8)
    );
}
