use super::*;
use crate::{flow::Refused, openflow::message::ErrorMessage};

/// A flow-mod with this command and table, and with these instructions after its match.
fn flow_mod(command: u8, table: u8, instructions: &str) -> String {
    let out = "ffffffff ffffffff ffffffff 0000 0000";
    format!("{:032x} {table:02x} {command:02x} 0000 0000 0000 {out} {ANY} {instructions}", 0)
}

#[test]
fn wrong_headers() {
    let echo = whole(2, &[1, 2]);
    assert_eq!(decode(&echo[..7]), Err(BadMessage::Length));
    assert_eq!(decode(&echo[..9]), Err(BadMessage::Length));
    let mut wrong = echo.clone();
    wrong.push(0);
    assert_eq!(decode(&wrong), Err(BadMessage::Length));
    let mut wrong = echo.clone();
    wrong[0] = 1;
    assert_eq!(decode(&wrong), Err(BadMessage::Version));
    let mut wrong = echo;
    wrong[1] = 30;
    assert_eq!(decode(&wrong), Err(BadMessage::Type));
}

#[test]
#[rustfmt::skip]
fn malformed_messages_are_refused_with_their_error() {
    let refused = BadMessage::Refused;
    let pop = "0012 0008 00000000";
    for (kind, body, why) in [
        (1, "0001 00".into(), BadMessage::Length),
        (4, "00002320 000000".into(), BadMessage::Length),
        (5, "00".into(), BadMessage::Length),
        (9, "0003 0080".into(), BadMessage::SwitchConfig),
        (9, "0000".into(), BadMessage::Length),
        (13, "ffffffff 00010000 0000 000000000000".into(), BadMessage::Port),
        (13, "ffffffff 00000001 0010 000000000000 00000000".into(), BadMessage::Length),
        (13, format!("ffffffff 00000001 000c 000000000000 {pop} {pop}"), BadMessage::ActionLength),
        (14, flow_mod(5, 0, ""), refused(Refused::BadCommand)),
        (14, flow_mod(0, 0xff, ""), refused(Refused::BadTable)),
        (14, flow_mod(2, 0xff, ""), refused(Refused::BadTable)),
        (14, flow_mod(3, 0, "").replace("ffffffff 0000 0000", "ffffffff 0020 0000"), BadMessage::Flags),
        (14, flow_mod(3, 0, "").replacen("ffffffff ffffffff", "ffffffff 00010000", 1), BadMessage::Port),
        (14, flow_mod(0, 0, "0007 0008 00000000"), BadMessage::InstructionType),
        (14, flow_mod(0, 0, "ffff 0010 00002320 00000000 00000000"), BadMessage::InstructionExperimenter),
        (14, flow_mod(0, 0, "0001 0004"), BadMessage::InstructionLength),
        (14, flow_mod(0, 0, "0001 0010 01000000"), BadMessage::InstructionLength),
        (14, flow_mod(0, 0, "0001 0000 01000000"), BadMessage::InstructionLength),
        (14, flow_mod(0, 0, "0001 0010 01000000 00000000 00000000"), BadMessage::InstructionLength),
        (14, flow_mod(0, 0, &format!("0005 0010 00000000 {pop}")), BadMessage::InstructionLength),
        (14, flow_mod(0, 0, "0004 000c 00000000 00000000"), BadMessage::InstructionLength),
        (14, flow_mod(0, 0, "0004 0010 00000000 0012 0010 00000000"), BadMessage::ActionLength),
        (14, flow_mod(0, 0, "0001 0008 01000000 0001 0008 01000000"), refused(Refused::BadInstruction)),
        (14, flow_mod(0, 0, "0003 0010 00000000 000b 0008 00000000"), refused(Refused::BadAction)),
        (15, "0003 00 00 00000001".into(), refused(Refused::BadCommand)),
        (15, "0000 04 00 00000001".into(), BadMessage::GroupType),
        (15, "0000 00 00 ffffff01".into(), refused(Refused::InvalidGroup)),
        (15, "0000 00 00 fffffffc".into(), refused(Refused::InvalidGroup)),
        (15, "0002 00 00 ffffffff".into(), refused(Refused::InvalidGroup)),
        (15, "0000 00 00 00000001 0008 0000 00000000".into(), BadMessage::Bucket),
        (15, "0000 00 00 00000001 0020 0000 ffffffff ffffffff 00000000".into(), BadMessage::Bucket),
        (15, "0000 00 00 00000001 0010 0000 00010000 ffffffff 00000000".into(), refused(Refused::BadWatch)),
        (15, "0000 00 00 00000001 0018 0000 ffffffff ffffffff 00000000 00000000 00000000".into(), BadMessage::ActionLength),
        (16, "00010000 00000000 000000000000 0000 00000000 00000000 00000000 00000000".into(), BadMessage::Port),
        (16, "00000001 00000000 000000000000 0000 00000010 00000010 00000000 00000000".into(), BadMessage::PortConfig),
        (18, "000e 0000 00000000".into(), BadMessage::StatsType),
        (18, "0000 0001 00000000".into(), BadMessage::TooBig),
        (18, "0000 0000 00000000 00".into(), BadMessage::Length),
        (18, "0004 0000 00000000 00010000 00000000".into(), BadMessage::Port),
        (19, "000e 0000 00000000".into(), BadMessage::StatsType),
        (19, "0006 0000 00000000 0000 0000".into(), BadMessage::Length),
        (22, "00010000 00000000".into(), BadMessage::Port),
        (24, "00000004 00000000 0000000000000000".into(), BadMessage::Role),
        (29, "0003 0000 00000001".into(), refused(Refused::BadCommand)),
        (29, "0000 0003 00000001".into(), BadMessage::Flags),
        (29, "0000 0010 00000001".into(), BadMessage::Flags),
        (29, "0000 0001 00000000".into(), refused(Refused::InvalidMeter)),
        (29, "0000 0001 ffff0001".into(), refused(Refused::InvalidMeter)),
        (29, "0002 0001 fffffffe".into(), refused(Refused::InvalidMeter)),
        (29, "0000 0001 00000001 0003 0010 00000000 00000000 00000000".into(), refused(Refused::BadBand)),
        (29, "0000 0001 00000001 0001 000c 00000000 00000000".into(), BadMessage::Length),
        (29, "0000 0001 00000001 0001 0014 00000000 00000000 00000000 00000000".into(), BadMessage::Length),
    ] {
        let body: String = body;
        assert_eq!(read(kind, &body), Err(why), "{kind} {body}");
    }
}

#[test]
fn an_error_has_the_numbers_for_the_kind_of_its_message() {
    let numbers = |bad: BadMessage, kind: u8| {
        let ErrorMessage { kind, code, .. } = error(bad, &whole(kind, &[]));
        (kind, code)
    };
    let queues = whole(kind::MULTIPART_REQUEST, &bytes("0005 0000 00000000"));
    for (bad, kind, expected) in [
        (BadMessage::Port, kind::PACKET_OUT, (1, 11)),
        (BadMessage::Port, kind::FLOW_MOD, (2, 4)),
        (BadMessage::Port, kind::PORT_MOD, (7, 0)),
        (BadMessage::Port, kind::QUEUE_GET_CONFIG_REQUEST, (9, 0)),
        (BadMessage::Port, kind::MULTIPART_REQUEST, (1, 11)),
        (BadMessage::Table, kind::MULTIPART_REQUEST, (1, 9)),
        (BadMessage::Table, kind::TABLE_MOD, (8, 0)),
        (Refused::BadTable.into(), kind::FLOW_MOD, (5, 2)),
        (BadMessage::Flags, kind::FLOW_MOD, (5, 7)),
        (BadMessage::Flags, kind::METER_MOD, (12, 5)),
        (Refused::BadCommand.into(), kind::FLOW_MOD, (5, 6)),
        (Refused::BadCommand.into(), kind::GROUP_MOD, (6, 11)),
        (Refused::BadCommand.into(), kind::METER_MOD, (12, 4)),
        (Refused::UnknownGroup.into(), kind::MULTIPART_REQUEST, (6, 8)),
        (Refused::UnknownGroup.into(), kind::GROUP_MOD, (6, 8)),
        (Refused::BadQueue.into(), kind::FLOW_MOD, (2, 8)),
        (Refused::BadQueue.into(), kind::QUEUE_GET_CONFIG_REQUEST, (9, 1)),
        (Refused::UnknownMeter.into(), kind::FLOW_MOD, (12, 3)),
        (BadMessage::SetFieldLength, kind::FLOW_MOD, (2, 14)),
        (BadMessage::SetFieldValue, kind::FLOW_MOD, (2, 15)),
        (BadMessage::Wildcards, kind::FLOW_MOD, (4, 5)),
        (Refused::DuplicateField.into(), kind::FLOW_MOD, (4, 10)),
        (BadMessage::TableFeatures, kind::MULTIPART_REQUEST, (13, 5)),
    ] {
        assert_eq!(numbers(bad, kind), expected, "{bad:?} {kind}");
    }
    let ErrorMessage { kind, code, .. } = error(BadMessage::Port, &queues);
    assert_eq!((kind, code), (9, 0));
}

#[test]
fn an_error_has_the_first_64_bytes_or_a_text_about_the_version() {
    let long: Vec<u8> = whole(2, &[7; 100]);
    assert_eq!(error(BadMessage::Type, &long), ErrorMessage { kind: 1, code: 1, data: long[..64].to_vec() });
    let short = whole(2, &[7]);
    assert_eq!(error(BadMessage::Length, &short), ErrorMessage { kind: 1, code: 6, data: short });
    assert!(error(BadMessage::Length, &[]).data.is_empty());
    let hello = error(BadMessage::Version, &whole(kind::HELLO, &[]));
    let text = b"a version that is not supported".to_vec();
    assert_eq!(hello, ErrorMessage { kind: 0, code: 0, data: text });
}
