use super::*;
use crate::{
    flow::{
        FlowCommand, FlowFlags, FlowMod, Group, GroupKind, GroupMod, Instructions, Meter, MeterMod, Removed,
        rule::{Band, BandKind, Bucket, MeterUnit},
    },
    openflow::message::{FlowRemoved, PacketIn, PacketInReason, PacketOut},
};

fn add() -> FlowMod {
    FlowMod {
        command: FlowCommand::Add,
        table: Some(1),
        cookie: 0x11,
        cookie_mask: 0x22,
        priority: 0x8000,
        matching: web(),
        instructions: Instructions::apply([to_controller()]),
        idle_timeout: 5,
        hard_timeout: 6,
        out_port: None,
        out_group: None,
        flags: FlowFlags { send_removed: true, reset_counts: true, ..FlowFlags::default() },
        buffer: Some(9),
    }
}

#[test]
fn flow_mod() {
    let body = format!(
        "0000000000000011 0000000000000022 01 00 0005 0006 8000 00000009 ffffffff ffffffff 0005 0000
        {WEB} 0004 0018 00000000 {TO_CONTROLLER}"
    );
    both(Message::FlowMod(add()), 14, &body);
    let delete = FlowMod {
        command: FlowCommand::Delete { strict: false },
        table: None,
        matching: Match::ANY,
        instructions: Instructions::default(),
        out_port: Some(RulePort(7)),
        out_group: Some(8),
        flags: FlowFlags::default(),
        buffer: None,
        ..add()
    };
    let body = format!(
        "0000000000000011 0000000000000022 ff 03 0005 0006 8000 ffffffff 00000007 00000008 0000 0000 {ANY}"
    );
    both(Message::FlowMod(delete), 14, &body);
}

#[test]
fn commands_and_flags() {
    for (number, command) in [
        ("00", FlowCommand::Add),
        ("01", FlowCommand::Modify { strict: false }),
        ("02", FlowCommand::Modify { strict: true }),
        ("03", FlowCommand::Delete { strict: false }),
        ("04", FlowCommand::Delete { strict: true }),
    ] {
        let change =
            FlowMod { command, matching: Match::ANY, instructions: Instructions::default(), ..add() };
        let body = format!(
            "0000000000000011 0000000000000022 01 {number} 0005 0006 8000 00000009 ffffffff ffffffff 0005 0000
            {ANY}"
        );
        both(Message::FlowMod(change), 14, &body);
    }
    let flags = |number: u16, flags| {
        let (format, mut out) = (super::super::flows::FLAGS, Vec::new());
        format.write(&flags, &mut out).unwrap();
        assert_eq!(out, number.to_be_bytes());
        assert_eq!(format.read(&mut Reader::new(&out, BadMessage::Length)), Ok(flags));
    };
    flags(1, FlowFlags { send_removed: true, ..FlowFlags::default() });
    flags(2, FlowFlags { check_overlap: true, ..FlowFlags::default() });
    flags(4, FlowFlags { reset_counts: true, ..FlowFlags::default() });
    flags(8, FlowFlags { no_packet_counts: true, ..FlowFlags::default() });
    flags(16, FlowFlags { no_byte_counts: true, ..FlowFlags::default() });
    let emergency = FlowFlags { emergency: true, ..FlowFlags::default() };
    unsaid(Message::FlowMod(FlowMod { flags: emergency, ..add() }), "a rule of the emergency table");
}

#[test]
fn an_add_may_have_any_output_in_its_filter() {
    let change = FlowMod { matching: Match::ANY, instructions: Instructions::default(), ..add() };
    let body = format!(
        "0000000000000011 0000000000000022 01 00 0005 0006 8000 00000009 77777777 00000000 0005 0000 {ANY}"
    );
    read_as(14, &body, Message::FlowMod(change));
}

#[test]
fn instructions_are_written_in_the_order_in_which_they_are_done() {
    let instructions = Instructions {
        meter: Some(3),
        apply: vec![Action::PopVlan],
        clear: true,
        write: vec![Action::Group(4)],
        metadata: Some((0x0a, 0xff)),
        goto_table: Some(5),
    };
    let body = format!(
        "0000000000000011 0000000000000022 01 00 0005 0006 8000 00000009 ffffffff ffffffff 0005 0000 {ANY}
        0006 0008 00000003
        0004 0010 00000000 0012 0008 00000000
        0005 0008 00000000
        0003 0010 00000000 0016 0008 00000004
        0002 0018 00000000 000000000000000a 00000000000000ff
        0001 0008 05 000000"
    );
    both(Message::FlowMod(FlowMod { matching: Match::ANY, instructions, ..add() }), 14, &body);
}

#[test]
fn packet_in() {
    let packet = PacketIn {
        buffer: None,
        total_len: 1500,
        reason: PacketInReason::Action,
        table: 2,
        cookie: 0x33,
        matching: Match::ANY.with(Field::InPort, 4_u16).with(Field::Metadata, 0xab_u64),
        data: vec![1, 2, 3],
    };
    let body = "ffffffff 05dc 01 02 0000000000000033
        0001 0018 80000004 00000004 80000408 00000000000000ab 0000 010203";
    both(Message::PacketIn(packet.clone()), 10, body);
    let body = body.replace("05dc 01", "05dc 02");
    both(Message::PacketIn(PacketIn { reason: PacketInReason::InvalidTtl, ..packet.clone() }), 10, &body);
    let body = body.replace("ffffffff 05dc 02", "00000001 05dc 00");
    both(
        Message::PacketIn(PacketIn { reason: PacketInReason::NoMatch, buffer: Some(1), ..packet }),
        10,
        &body,
    );
}

#[test]
fn packet_out() {
    let actions = vec![Action::output(RulePort::TABLE)];
    let packet = PacketOut { buffer: None, in_port: RulePort::CONTROLLER, actions, data: vec![1, 2] };
    let body = "ffffffff fffffffd 0010 000000000000 0000 0010 fffffff9 ffff 000000000000 0102";
    both(Message::PacketOut(packet.clone()), 13, body);
    let buffered = PacketOut { buffer: Some(7), data: Vec::new(), ..packet.clone() };
    let body = body.replace("ffffffff fffffffd", "00000007 fffffffd");
    read_as(13, &body, Message::PacketOut(buffered));
    unsaid(
        Message::PacketOut(PacketOut { buffer: Some(7), ..packet }),
        "a packet with both a buffer and data",
    );
}

#[test]
fn flow_removed() {
    for (number, reason) in [
        ("00", Removed::IdleTimeout),
        ("01", Removed::HardTimeout),
        ("02", Removed::Delete),
        ("03", Removed::GroupDelete),
        ("04", Removed::MeterDelete),
    ] {
        let removed = FlowRemoved {
            matching: web(),
            cookie: 0x11,
            priority: 0x8000,
            reason,
            table: 2,
            duration_sec: 3,
            duration_nsec: 4,
            idle_timeout: 5,
            hard_timeout: 6,
            packets: 7,
            bytes: 8,
        };
        let body = format!(
            "0000000000000011 8000 {number} 02 00000003 00000004 0005 0006
            0000000000000007 0000000000000008 {WEB}"
        );
        both(Message::FlowRemoved(removed), 11, &body);
    }
}

#[test]
fn group_mod() {
    let group = |kind| Group {
        id: 0x51,
        kind,
        buckets: vec![
            Bucket {
                weight: 2,
                watch_port: Some(RulePort(1)),
                watch_group: Some(9),
                actions: vec![to_controller()],
            },
            Bucket::default(),
        ],
    };
    let buckets = format!(
        "0020 0002 00000001 00000009 00000000 {TO_CONTROLLER}
        0010 0000 ffffffff ffffffff 00000000"
    );
    for (number, kind) in [
        ("00", GroupKind::All),
        ("01", GroupKind::Select),
        ("02", GroupKind::Indirect),
        ("03", GroupKind::FastFailover),
    ] {
        let body = format!("0000 {number} 00 00000051 {buckets}");
        both(Message::GroupMod(GroupMod::Add(group(kind))), 15, &body);
    }
    let body = format!("0001 00 00 00000051 {buckets}");
    both(Message::GroupMod(GroupMod::Modify(group(GroupKind::All))), 15, &body);
    both(Message::GroupMod(GroupMod::Delete(Some(0x51))), 15, "0002 00 00 00000051");
    both(Message::GroupMod(GroupMod::Delete(None)), 15, "0002 00 00 fffffffc");
    // The type and buckets of a delete have no meaning.
    read_as(15, "0002 63 00 fffffffc 0001", Message::GroupMod(GroupMod::Delete(None)));
}

#[test]
fn meter_mod() {
    let band = |kind| Band { rate: 1000, burst: 100, kind };
    let meter = Meter {
        id: 0x61,
        unit: MeterUnit::Kbps,
        burst: true,
        stats: true,
        bands: vec![
            band(BandKind::Drop),
            band(BandKind::DscpRemark { levels: 2 }),
            band(BandKind::Experimenter(0x2320)),
        ],
    };
    let bands = "0001 0010 000003e8 00000064 00000000
        0002 0010 000003e8 00000064 02000000
        ffff 0010 000003e8 00000064 00002320";
    both(Message::MeterMod(MeterMod::Add(meter.clone())), 29, &format!("0000 000d 00000061 {bands}"));
    let pps = Meter { unit: MeterUnit::Pps, burst: false, stats: false, ..meter.clone() };
    both(Message::MeterMod(MeterMod::Modify(pps)), 29, &format!("0001 0002 00000061 {bands}"));
    both(Message::MeterMod(MeterMod::Delete(Some(0x61))), 29, "0002 0000 00000061");
    both(Message::MeterMod(MeterMod::Delete(None)), 29, "0002 0000 ffffffff");
    // Without a unit, the unit is kbit/s.
    let plain = Meter { burst: false, stats: false, bands: Vec::new(), ..meter };
    read_as(29, "0000 0000 00000061", Message::MeterMod(MeterMod::Add(plain)));
}
