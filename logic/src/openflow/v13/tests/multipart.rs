use super::*;
use crate::{
    flow::{
        FlowFlags, Group, GroupKind, Instructions, Meter,
        rule::{Bucket, MeterUnit},
    },
    net::Mac,
    openflow::message::{
        Description, Experimenter, FlowFilter, FlowStats, GroupFeatures, GroupStats, MeterFeatures,
        MeterStats, PortConfig, PortDescription, PortFeatures, PortState, PortStats, QueueStats, StatsReply,
        StatsRequest, TableFeatures, TableStats,
    },
};

#[track_caller]
fn request(request: StatsRequest, body: &str) {
    both(Message::StatsRequest(request), 18, body);
}

#[track_caller]
fn reply(reply: StatsReply, body: &str) {
    both(Message::StatsReply { reply: reply.clone(), more: false }, 19, body);
    let (mut one, mut several) = (Vec::new(), Vec::new());
    encode(&Message::StatsReply { reply: reply.clone(), more: false }, XID, &mut one).unwrap();
    encode_stats(&reply, false, XID, &mut several).unwrap();
    assert_eq!(hex(&several), hex(&one));
    one[11] = 1;
    assert_eq!(decode(&one).unwrap().1, Message::StatsReply { reply, more: true });
}

#[test]
fn requests() {
    request(StatsRequest::Description, "0000 0000 00000000");
    request(StatsRequest::Table, "0003 0000 00000000");
    request(StatsRequest::Port(RulePort::NONE), "0004 0000 00000000 ffffffff 00000000");
    let queue = StatsRequest::Queue { port: RulePort(2), queue: Some(7) };
    request(queue, "0005 0000 00000000 00000002 00000007");
    let queue = StatsRequest::Queue { port: RulePort::NONE, queue: None };
    request(queue, "0005 0000 00000000 ffffffff ffffffff");
    request(StatsRequest::Group(Some(3)), "0006 0000 00000000 00000003 00000000");
    request(StatsRequest::Group(None), "0006 0000 00000000 fffffffc 00000000");
    request(StatsRequest::GroupDescription, "0007 0000 00000000");
    request(StatsRequest::GroupFeatures, "0008 0000 00000000");
    request(StatsRequest::Meter(Some(3)), "0009 0000 00000000 00000003 00000000");
    request(StatsRequest::MeterConfig(None), "000a 0000 00000000 ffffffff 00000000");
    request(StatsRequest::MeterFeatures, "000b 0000 00000000");
    request(StatsRequest::TableFeatures { sets: false }, "000c 0000 00000000");
    request(StatsRequest::PortDescription, "000d 0000 00000000");
    let experimenter = Experimenter { id: 0x2320, subtype: 1, body: vec![9] };
    request(StatsRequest::Experimenter(experimenter), "ffff 0000 00000000 00002320 00000001 09");
}

#[test]
fn which_rules() {
    let filter = FlowFilter {
        table: Some(1),
        matching: web(),
        out_port: Some(RulePort(7)),
        out_group: Some(8),
        cookie: 0x11,
        cookie_mask: 0x22,
    };
    let body = "01 000000 00000007 00000008 00000000 0000000000000011 0000000000000022";
    request(StatsRequest::Flow(filter), &format!("0001 0000 00000000 {body} {WEB}"));
    let all = FlowFilter {
        table: None,
        matching: Match::ANY,
        out_port: None,
        out_group: None,
        cookie: 0,
        cookie_mask: 0,
    };
    let body = "ff 000000 ffffffff ffffffff 00000000 0000000000000000 0000000000000000";
    request(StatsRequest::Aggregate(all), &format!("0002 0000 00000000 {body} {ANY}"));
}

#[test]
fn a_request_to_set_features_is_recognised() {
    let sets = StatsRequest::TableFeatures { sets: true };
    read_as(18, "000c 0000 00000000 00", Message::StatsRequest(sets.clone()));
    read_as(18, "000c 0001 00000000", Message::StatsRequest(sets.clone()));
    unsaid(Message::StatsRequest(sets), "to set features of tables");
}

#[test]
fn description() {
    let text = |text: &str, bytes: usize| {
        let mut out = text.as_bytes().to_vec();
        out.resize(bytes, 0);
        hex(&out)
    };
    let description = Description {
        manufacturer: b"a".to_vec(),
        hardware: b"bc".to_vec(),
        software: b"def".to_vec(),
        serial: b"None".to_vec(),
        datapath: Vec::new(),
    };
    let body = [text("a", 256), text("bc", 256), text("def", 256), text("None", 32), text("", 256)];
    reply(StatsReply::Description(description), &format!("0000 0000 00000000 {}", body.join(" ")));
}

fn flow() -> FlowStats {
    FlowStats {
        table: 1,
        matching: web(),
        duration_sec: 3,
        duration_nsec: 4,
        priority: 5,
        idle_timeout: 6,
        hard_timeout: 7,
        flags: FlowFlags { send_removed: true, no_byte_counts: true, ..FlowFlags::default() },
        cookie: 8,
        packets: 9,
        bytes: 10,
        instructions: Instructions::apply([to_controller()]),
    }
}

const FLOW: &str = "01 00 00000003 00000004 0005 0006 0007 0011 00000000
    0000000000000008 0000000000000009 000000000000000a";

#[test]
fn rules() {
    let drop = FlowStats { matching: Match::ANY, instructions: Instructions::default(), ..flow() };
    let body = format!(
        "0001 0000 00000000
        0060 {FLOW} {WEB} 0004 0018 00000000 {TO_CONTROLLER}
        0038 {FLOW} {ANY}"
    );
    reply(StatsReply::Flow(vec![flow(), drop]), &body);
    reply(StatsReply::Flow(Vec::new()), "0001 0000 00000000");
    let aggregate = StatsReply::Aggregate { packets: 1, bytes: 2, flows: 3 };
    reply(aggregate, "0002 0000 00000000 0000000000000001 0000000000000002 00000003 00000000");
}

#[test]
fn tables() {
    let table = |table, name: &[u8]| TableStats {
        table,
        name: name.to_vec(),
        wildcards: 0,
        max_entries: 0,
        active: 1,
        lookups: 2,
        matched: 3,
    };
    let body = "0003 0000 00000000
        00 000000 00000001 0000000000000002 0000000000000003
        01 000000 00000001 0000000000000002 0000000000000003";
    reply(StatsReply::Table(vec![table(0, b""), table(1, b"")]), body);
    // The name is among the features of the table.
    let mut out = Vec::new();
    encode_stats(&StatsReply::Table(vec![table(0, b"x"), table(1, b"y")]), false, XID, &mut out).unwrap();
    assert_eq!(hex(&out[8..]), hex(&bytes(body)));
}

#[test]
fn ports() {
    let stats = PortStats {
        port: RulePort(2),
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
        rx_crc_errors: u64::MAX,
        collisions: 12,
        duration_sec: 13,
        duration_nsec: 14,
    };
    let counters: String = (1..=10_u64).map(|n| format!("{n:016x}")).collect();
    let body = format!(
        "0004 0000 00000000 00000002 00000000 {counters} ffffffffffffffff 000000000000000c 0000000d 0000000e"
    );
    reply(StatsReply::Port(vec![stats]), &body);
    let stats = QueueStats {
        port: RulePort(2),
        queue: 3,
        tx_bytes: 4,
        tx_packets: 5,
        tx_errors: 6,
        duration_sec: 7,
        duration_nsec: 8,
    };
    let body = "0005 0000 00000000 00000002 00000003
        0000000000000004 0000000000000005 0000000000000006 00000007 00000008";
    reply(StatsReply::Queue(vec![stats]), body);
    let port = PortDescription {
        port: RulePort::LOCAL,
        mac: Mac([2, 0, 0, 0, 0, 7]),
        name: b"br0".to_vec(),
        config: PortConfig(0),
        state: PortState { blocked: true, ..PortState::default() },
        current: PortFeatures(1),
        advertised: PortFeatures(2),
        supported: PortFeatures(3),
        peer: PortFeatures(4),
        current_speed: 5,
        max_speed: 6,
    };
    let body = "000d 0000 00000000 fffffffe 00000000 020000000007 0000
        62723000 00000000 00000000 00000000 00000000 00000002
        00000001 00000002 00000003 00000004 00000005 00000006";
    reply(StatsReply::PortDescription(vec![port]), body);
}

#[test]
fn groups() {
    let stats = GroupStats {
        id: 1,
        references: 2,
        packets: 3,
        bytes: 4,
        duration_sec: 5,
        duration_nsec: 6,
        buckets: vec![(7, 8), (9, 10)],
    };
    let head = "00000001 00000002 00000000 0000000000000003 0000000000000004 00000005 00000006";
    let body = format!(
        "0006 0000 00000000
        0048 0000 {head} 0000000000000007 0000000000000008 0000000000000009 000000000000000a
        0028 0000 {head}"
    );
    let empty = GroupStats { buckets: Vec::new(), ..stats.clone() };
    reply(StatsReply::Group(vec![stats, empty]), &body);
    let bucket = Bucket { weight: 1, actions: vec![to_controller()], ..Bucket::default() };
    let group = Group { id: 9, kind: GroupKind::Select, buckets: vec![bucket] };
    let empty = Group { id: 10, kind: GroupKind::All, buckets: Vec::new() };
    let body = format!(
        "0007 0000 00000000
        0028 01 00 00000009 0020 0001 ffffffff ffffffff 00000000 {TO_CONTROLLER}
        0008 00 00 0000000a"
    );
    reply(StatsReply::GroupDescription(vec![group, empty]), &body);
    let features =
        GroupFeatures { types: 15, capabilities: 9, max_groups: [1, 2, 3, 4], actions: [5, 6, 7, 8] };
    let body = "0008 0000 00000000 0000000f 00000009
        00000001 00000002 00000003 00000004 00000005 00000006 00000007 00000008";
    reply(StatsReply::GroupFeatures(features), body);
}

#[test]
fn meters() {
    let stats = MeterStats {
        id: 1,
        flows: 2,
        packets: 3,
        bytes: 4,
        duration_sec: 5,
        duration_nsec: 6,
        bands: vec![(7, 8)],
    };
    let body = "0009 0000 00000000 00000001 0038 000000000000 00000002
        0000000000000003 0000000000000004 00000005 00000006 0000000000000007 0000000000000008";
    reply(StatsReply::Meter(vec![stats]), body);
    let meter = Meter { id: 1, unit: MeterUnit::Pps, burst: false, stats: true, bands: Vec::new() };
    let body = "000a 0000 00000000 0008 000a 00000001";
    reply(StatsReply::MeterConfig(vec![meter]), body);
    let features =
        MeterFeatures { max_meters: 1, band_types: 2, capabilities: 15, max_bands: 3, max_color: 4 };
    let body = "000b 0000 00000000 00000001 00000002 0000000f 03 04 0000";
    reply(StatsReply::MeterFeatures(features), body);
    let experimenter = Experimenter { id: 0x2320, subtype: 1, body: vec![9] };
    reply(StatsReply::Experimenter(experimenter), "ffff 0000 00000000 00002320 00000001 09");
}

#[test]
fn table_features() {
    let features = TableFeatures {
        table: 1,
        name: b"t".to_vec(),
        metadata_match: 2,
        metadata_write: 3,
        max_entries: 4,
        instructions: 1 << 1 | 1 << 4,
        next_tables: vec![2, 3],
        actions: 1 | 1 << 22,
        matches: vec![Field::InPort, Field::EthDst, Field::InnerEthDst],
        set_fields: vec![Field::EthDst],
    };
    let fixed = "01 0000000000 7400000000000000 000000000000000000000000000000000000000000000000
        0000000000000002 0000000000000003 00000000 00000004";
    let lists = "0000 000c 0001 0004 0004 0004 00000000
        0001 000c 0001 0004 0004 0004 00000000
        0002 0006 02 03 0000
        0003 0006 02 03 0000
        0004 000c 0000 0004 0016 0004 00000000
        0005 000c 0000 0004 0016 0004 00000000
        0006 000c 0000 0004 0016 0004 00000000
        0007 000c 0000 0004 0016 0004 00000000
        0008 0014 80000004 8000070c ffff0110 4d4c5243 00000000
        000a 0014 80000004 80000606 ffff000a 4d4c5243 00000000
        000c 0008 80000606
        000d 0008 80000606
        000e 0008 80000606
        000f 0008 80000606";
    // 64 bytes, then lists of 6 * 16 + 2 * 8 + 2 * 24 + 4 * 8 bytes.
    reply(
        StatsReply::TableFeatures(vec![features.clone()]),
        &format!("000c 0000 00000000 0100 {fixed} {lists}"),
    );
    // Unknown parts are skipped, duplicates count once, and the lengths of fields are not checked.
    let lists = "0000 0018 0001 0004 0004 0004 ffff 000c 00002320 00000000
        0001 0008 0002 0004
        0002 0006 02 03 0000
        0004 0008 0000 0004
        0006 000c 0000 0004 0016 0004 00000000
        0008 001c 80000000 80000700 80004404 80000606 ffff0100 4d4c5243 00000000
        000e 0008 80000606
        fffe 0010 00002320 00000001 00000000";
    let length = 64 + bytes(lists).len();
    let body = format!("000c 0000 00000000 {length:04x} {fixed} {lists}");
    let reply = StatsReply::TableFeatures(vec![features]);
    read_as(19, &body, Message::StatsReply { reply, more: false });
}

#[test]
fn a_long_reply_is_cut_between_its_rules() {
    let flows: Vec<FlowStats> =
        (0..2000).map(|n| FlowStats { cookie: n, instructions: Instructions::default(), ..flow() }).collect();
    let mut out = vec![0xee];
    assert_eq!(encode_stats(&StatsReply::Flow(flows.clone()), true, XID, &mut out), Ok(0));
    let (mut stream, mut lengths, mut got) = (&out[1..], Vec::new(), Vec::new());
    while let crate::openflow::wire::Split::Message(header, message) = crate::openflow::wire::split(stream) {
        let (_, Message::StatsReply { reply: StatsReply::Flow(part), more }) = decode(message).unwrap()
        else {
            panic!("{message:?}")
        };
        lengths.push((header.length, header.xid, more));
        got.extend(part);
        stream = &stream[message.len()..];
    }
    // 72 bytes per rule. Each message except the last has 909 rules.
    let full = 16 + 909 * 72;
    assert_eq!(lengths, [(full, XID, true), (full, XID, true), (16 + 182 * 72, XID, true)]);
    assert!(stream.is_empty() && got == flows);
    unsaid(
        Message::StatsReply { reply: StatsReply::Flow(flows), more: false },
        "a message of more than 65,535 bytes",
    );
}

#[test]
fn a_part_that_fits_into_no_message_is_not_written() {
    let long = FlowStats { instructions: Instructions::apply(vec![Action::PopVlan; 8190]), ..flow() };
    let some_bits = Action::SetField { field: Field::Ipv4Dst, value: 1, mask: 1 };
    let partly = FlowStats { instructions: Instructions::apply([some_bits]), ..flow() };
    for (flows, said) in [
        (vec![long.clone()], vec![]),
        (vec![flow(), long.clone(), partly.clone()], vec![flow()]),
        (vec![partly, flow(), long, flow()], vec![flow(), flow()]),
    ] {
        let (mut out, mut short) = (Vec::new(), Vec::new());
        let left_out = flows.len() - said.len();
        assert_eq!(encode_stats(&StatsReply::Flow(flows), false, XID, &mut out), Ok(left_out));
        encode_stats(&StatsReply::Flow(said), false, XID, &mut short).unwrap();
        assert_eq!(hex(&out), hex(&short));
    }
    let mut out = vec![0xee];
    let whole = Experimenter { id: 1, subtype: 2, body: vec![0; 65_536] };
    assert!(encode_stats(&StatsReply::Experimenter(whole), false, XID, &mut out).is_err());
    assert_eq!(out, [0xee]);
}
