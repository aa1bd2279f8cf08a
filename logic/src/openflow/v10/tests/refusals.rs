//! Messages that cannot be read, with the error; messages that cannot be written.

use super::{
    super::super::{
        message::*,
        wire::{Split, split},
    },
    *,
};
use crate::flow::{Refused, Removed, field::ether_type};

const ANY: &str =
    "003820ff 0000 000000000000 000000000000 0000 00 00 0000 00 00 0000 00000000 00000000 0000 0000";

/// A flow-mod with this command and these actions, in hexadecimal.
fn flow_mod(command: u16, actions: &str) -> Result<Message, BadMessage> {
    decoded(&message(
        14,
        &format!("{ANY} 0000000000000000 {command:04x} 0000 0000 0064 ffffffff ffff 0000 {actions}"),
    ))
}

#[test]
fn lengths_and_types() {
    use BadMessage as B;
    assert_eq!(decoded(&[1, 5, 0, 8, 0, 0, 0]), Err(B::Length));
    assert_eq!(decoded(&[1, 5, 0, 9, 0, 0, 0, 7]), Err(B::Length));
    assert_eq!(decoded(&[4, 5, 0, 8, 0, 0, 0, 7]), Err(B::Version));
    for (kind, body, bad) in [
        (22, "", B::Type),
        (5, "00", B::Length),
        (18, "00000000", B::Length),
        (9, "0000", B::Length),
        (9, "0003 0080", B::SwitchConfig),
        (4, "00002320", B::Experimenter),
        (4, "0000", B::Length),
        (16, "0006 0000", B::StatsType),
        (16, "ffff 0000 00002320", B::Experimenter),
        (16, "0001 0000 00", B::Length),
        (16, "0003 0000 00", B::Length),
        (17, "0001 0000 0001 00", B::Length),
        (17, "0001 0000 0057 00", B::Length),
        (13, "ffffffff ffff 0008", B::Length),
        (13, "ffffffff ff01 0000", B::Port),
        (13, "ffffffff fffb 0000", B::Port),
        (15, "0001 020000000001 00000000 00000000 00000000", B::Length),
        (20, "0001", B::Length),
        (21, "0001 000000000000 00000001 0007 0000", B::Length),
        (21, "0001 000000000000 00000001 0014 0000 0001 000c 00000000 0001 0000", B::Length),
        (12, "03", B::Type),
        (10, "00000000 0000 0001 02 00", B::Type),
    ] {
        assert_eq!(decoded(&message(kind, body)), Err(bad), "type {kind}, body {body}");
    }
    assert_eq!(flow_mod(5, ""), Err(Refused::BadCommand.into()));
    assert_eq!(decoded(&message(14, ANY)), Err(B::Length));
    let unknown_flag = format!("{ANY} 0000000000000000 0000 0000 0000 0064 ffffffff ffff 0008");
    assert_eq!(decoded(&message(14, &unknown_flag)), Err(B::Flags));
}

#[test]
fn malformed_actions_are_refused() {
    use BadMessage as B;
    for (actions, bad) in [
        ("00", B::ActionLength),
        ("0000 0000", B::ActionLength),
        ("0000 000c 0001 0000 00000000", B::ActionLength),
        ("0000 0010 0001 0000", B::ActionLength),
        ("0000 0010 0001 0000 0000000000000000", B::ActionLength),
        ("0004 0008 00000000", B::ActionLength),
        ("000c 0008 00000000", B::Refused(Refused::BadAction)),
        ("ffff 0008 00002320", B::ActionExperimenter),
        ("0000 0008 ff01 0000", B::Refused(Refused::BadPort)),
        ("0000 0008 ffff 0000", B::Refused(Refused::BadPort)),
        ("000b 0010 fffd 000000000000 00000001", B::Refused(Refused::BadPort)),
        ("0001 0008 1000 0000", B::Refused(Refused::BadArgument)),
        ("0002 0008 08 000000", B::Refused(Refused::BadArgument)),
        ("0008 0008 01 000000", B::Refused(Refused::BadArgument)),
    ] {
        assert_eq!(flow_mod(0, actions), Err(bad), "{actions}");
    }
    assert!(flow_mod(0, "0000 0008 ff00 0000  0000 0008 fff8 0000  0000 0008 fffe 0000").is_ok());
}

/// The part of a message that 1.0 cannot express. Also checks that `out` stays unchanged.
fn refusal(message: &Message) -> &'static str {
    let mut out = vec![1, 2, 3];
    let error = encode(message, XID, &mut out).unwrap_err();
    assert_eq!((out, error.version), (vec![1, 2, 3], "1.0"));
    error.what
}

#[test]
fn matches_that_1_0_does_not_have() {
    let of = |matching| refusal(&Message::FlowMod(FlowMod { matching, ..add(vec![]) }));
    let masked = |mut m: Match, field, value, mask| {
        m.set(field, value, mask);
        m
    };
    let typed = |kind: u16| only(Field::EthType, kind.into());
    assert_eq!(of(only(Field::Metadata, 1)), "metadata");
    assert_eq!(of(typed(ether_type::IPV6).with(Field::Ipv6Dst, 1_u8)), "ipv6_dst");
    assert_eq!(of(typed(ether_type::IPV4).with(Field::IpEcn, 1_u8)), "ip_ecn");
    assert_eq!(
        of(typed(ether_type::IPV4).with(Field::IpProto, 132_u8).with(Field::SctpDst, 1_u8)),
        "sctp_dst"
    );
    let mixed = "these fields with these masks in one match";
    for matching in [
        masked(Match::ANY, Field::EthDst, 1, 1),
        masked(typed(ether_type::IPV4), Field::Ipv4Dst, 1, 0xff00_00ff),
        masked(Match::ANY, Field::VlanVid, 0x1000, 0x1000),
        masked(Match::ANY, Field::VlanVid, 1, 0xfff),
        masked(typed(ether_type::ARP), Field::ArpOp, 1, 0xff),
        typed(ether_type::ARP).with(Field::ArpOp, 0x101_u16),
        only(Field::IpProto, 6),
    ] {
        assert_eq!(of(matching), mixed, "{matching:?}");
    }
}

#[test]
fn flow_mods_that_1_0_does_not_have() {
    let of = |change: FlowMod| refusal(&Message::FlowMod(change));
    let plain = || add(vec![]);
    assert_eq!(of(FlowMod { table: Some(1), ..plain() }), "this table to change");
    assert_eq!(of(FlowMod { cookie_mask: 1, ..plain() }), "a selection by cookie");
    assert_eq!(of(FlowMod { out_group: Some(1), ..plain() }), "groups");
    assert_eq!(
        of(FlowMod { out_port: Some(RulePort(1)), ..plain() }),
        "a selection by output, except in a delete"
    );
    assert_eq!(of(FlowMod { buffer: Some(u32::MAX), ..plain() }), "a buffer of this number");
    assert_eq!(of(FlowMod { flags: FlowFlags::default(), ..plain() }), "this flag to reset counters");
    let silent = FlowFlags { no_byte_counts: true, ..plain().flags };
    assert_eq!(of(FlowMod { flags: silent, ..plain() }), "a rule without counters");
    let delete =
        FlowMod { command: FlowCommand::Delete { strict: false }, table: None, buffer: Some(1), ..plain() };
    assert_eq!(of(delete), "a buffered packet with a delete");
    let goto = Instructions { goto_table: Some(1), ..Instructions::default() };
    assert_eq!(of(FlowMod { instructions: goto, ..plain() }), "instructions other than to apply actions");
    let (lengthy, list) = (vec![Action::PopVlan; 8190], "a message of this length");
    assert_eq!(of(add(lengthy)), list);
}

#[test]
fn actions_that_1_0_does_not_have() {
    for (action, what) in [
        (Action::Group(1), "groups"),
        (Action::DecTtl, "an action on the TTL"),
        (Action::PushVlan(0x8100), "an action that pushes a VLAN tag"),
        (Action::SetQueue(1), "a queue for later outputs"),
        (Action::output(RulePort::NONE), "an output to this port"),
        (Action::SetVlanVid(0x1000), "this VLAN id or priority"),
        (Action::set(Field::Ipv6Src, 1_u8), "ipv6_src"),
        (Action::SetField { field: Field::EthDst, value: 1, mask: 1 }, "some bits of a field"),
    ] {
        assert_eq!(refusal(&Message::FlowMod(add(vec![action]))), what);
    }
}

#[test]
fn other_messages_that_1_0_does_not_have() {
    assert_eq!(refusal(&Message::Hello { versions: Some(vec![1, 4]) }), "a bitmap of versions");
    assert_eq!(refusal(&Message::RoleRequest { role: Role::Equal, generation: 1 }), "roles");
    assert_eq!(refusal(&Message::GetAsyncRequest), "which messages a controller wants");
    assert_eq!(refusal(&Message::StatsRequest(StatsRequest::Group(None))), "groups");
    assert_eq!(
        refusal(&Message::StatsReply { reply: StatsReply::PortDescription(vec![]), more: false }),
        "port descriptions as statistics"
    );
    let mut out = vec![9];
    assert!(encode_stats(&StatsReply::PortDescription(vec![]), false, XID, &mut out).is_err());
    assert_eq!(out, [9]);
    let packet = PacketIn {
        buffer: None,
        total_len: 0,
        reason: PacketInReason::InvalidTtl,
        table: 0,
        cookie: 0,
        matching: only(Field::InPort, 1),
        data: vec![],
    };
    let by_action = PacketIn { reason: PacketInReason::Action, ..packet.clone() };
    assert_eq!(encoded(&Message::PacketIn(packet.clone())), encoded(&Message::PacketIn(by_action)));
    assert_eq!(
        refusal(&Message::PacketIn(PacketIn { matching: Match::ANY, ..packet })),
        "a packet from no port"
    );
    let removed = FlowRemoved {
        matching: Match::ANY,
        cookie: 0,
        priority: 0,
        reason: Removed::GroupDelete,
        table: 0,
        duration_sec: 0,
        duration_nsec: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        packets: 0,
        bytes: 0,
    };
    let deleted = FlowRemoved { reason: Removed::Delete, ..removed.clone() };
    assert_eq!(encoded(&Message::FlowRemoved(removed)), encoded(&Message::FlowRemoved(deleted)));
    assert_eq!(refusal(&Message::EchoReply(vec![0; 65_528])), "a message of this length");
}

#[test]
fn errors_have_the_numbers_of_the_specification() {
    use BadMessage as B;
    let [hello, vendor, packet_out, flow_mod, port_mod, stats, queues] = [0, 4, 13, 14, 15, 16, 20];
    for (bad, about, numbers) in [
        (B::Version, stats, (1, 0)),
        (B::Type, 99, (1, 1)),
        (B::StatsType, stats, (1, 2)),
        (B::Experimenter, vendor, (1, 3)),
        (B::ExperimenterType, vendor, (1, 4)),
        (B::IsSlave, flow_mod, (1, 5)),
        (B::Length, stats, (1, 6)),
        (B::BufferEmpty, packet_out, (1, 7)),
        (B::BufferUnknown, packet_out, (1, 8)),
        (Refused::BadAction.into(), flow_mod, (2, 0)),
        (B::ActionLength, flow_mod, (2, 1)),
        (B::ActionExperimenter, flow_mod, (2, 2)),
        (Refused::BadPort.into(), flow_mod, (2, 4)),
        (Refused::BadArgument.into(), flow_mod, (2, 5)),
        (Refused::TooManyActions.into(), flow_mod, (2, 7)),
        (Refused::BadQueue.into(), flow_mod, (2, 8)),
        (Refused::TableFull.into(), flow_mod, (3, 0)),
        (Refused::Overlap.into(), flow_mod, (3, 1)),
        (Refused::BadMask.into(), flow_mod, (3, 2)),
        (Refused::Emergency.into(), flow_mod, (3, 3)),
        (Refused::BadCommand.into(), flow_mod, (3, 4)),
        (Refused::UnsupportedOrder.into(), flow_mod, (3, 5)),
        (B::Port, port_mod, (4, 0)),
        (B::PortAddress, port_mod, (4, 1)),
        (B::Port, queues, (5, 0)),
        (B::Port, stats, (1, 5)),
        (Refused::BadQueue.into(), queues, (5, 1)),
    ] {
        let offending = message(about, &"ab".repeat(100));
        let ErrorMessage { kind, code, data } = error(bad, &offending);
        assert_eq!((kind, code), numbers, "{bad:?}");
        assert_eq!(data, offending[..64]);
    }
    let of_queues = error(B::Port, &message(stats, "0005 0000"));
    assert_eq!((of_queues.kind, of_queues.code), (5, 0));
    let ErrorMessage { kind, code, data } = error(B::Version, &message(hello, ""));
    assert_eq!((kind, code, data), (0, 0, b"a version that is not supported".to_vec()));
    assert_eq!(error(B::Length, &[1, 2, 3]).data, [1, 2, 3]);
}

#[test]
fn a_long_reply_is_divided() {
    let port = PortStats {
        port: RulePort(1),
        rx_packets: 0,
        tx_packets: 0,
        rx_bytes: 0,
        tx_bytes: 0,
        rx_dropped: 0,
        tx_dropped: 0,
        rx_errors: 0,
        tx_errors: 0,
        rx_frame_errors: 0,
        rx_over_errors: 0,
        rx_crc_errors: 0,
        collisions: 0,
        duration_sec: 0,
        duration_nsec: 0,
    };
    // 12 bytes and 630 ports of 104 bytes are 65,532 bytes.
    let ports: Vec<_> = (0..1261).map(|n| PortStats { port: RulePort(n), ..port }).collect();
    let mut out = vec![0xff];
    assert_eq!(encode_stats(&StatsReply::Port(ports.clone()), true, XID, &mut out), Ok(0));
    let (mut rest, mut lengths, mut read) = (&out[1..], Vec::new(), Vec::new());
    while let Split::Message(header, bytes) = split(rest) {
        let Ok(Message::StatsReply { reply: StatsReply::Port(part), more }) = decoded(bytes) else {
            panic!()
        };
        lengths.push((header.length, more));
        read.extend(part);
        rest = &rest[bytes.len()..];
    }
    assert_eq!((rest, read), (&[][..], ports.clone()));
    assert_eq!(lengths, [(65_532, true), (65_532, true), (116, true)]);

    let whole = Message::StatsReply { reply: StatsReply::Port(ports), more: false };
    assert_eq!(refusal(&whole), "a message of this length");
    let long = Experimenter { id: 1, subtype: 2, body: vec![0; 65_536] };
    let mut out = vec![9];
    assert!(encode_stats(&StatsReply::Experimenter(long), false, XID, &mut out).is_err());
    assert_eq!(out, [9]);
    encode_stats(&StatsReply::Queue(vec![]), false, XID, &mut out).unwrap();
    assert_eq!(out[1..], message(17, "0005 0000"));
}
