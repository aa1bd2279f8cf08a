use super::*;
use crate::{
    flow::{FlowCommand, FlowFlags, FlowMod, Instructions, Refused},
    openflow::message::PacketOut,
};

/// The result of reading a match with these TLVs.
fn matched(tlvs: &str) -> Result<Match, BadMessage> {
    let tlvs = bytes(tlvs);
    let mut wire = vec![0, 1];
    wire.u16(4 + tlvs.len() as u16);
    wire.extend_from_slice(&tlvs);
    wire.zeros(padding(wire.len()));
    oxm::MATCH.read(&mut Reader::new(&wire, BadMessage::Length))
}

/// The result of reading this action.
fn acted(action: &str) -> Result<Vec<Action>, BadMessage> {
    actions::ACTIONS.read(&mut Reader::new(&bytes(action), BadMessage::ActionLength))
}

/// The actions of a rule, as they are written.
fn written(matching: Match, list: &[Action]) -> Result<String, &'static str> {
    let mut out = Vec::new();
    let known = actions::Known::of(&matching);
    actions::write_list(list, known, &mut out).map(|()| hex(&out)).map_err(|e| e.what)
}

/// A match of IPv6 neighbour discovery. The ICMPv6 type follows it: 135 for a solicitation, 136 for an
/// advertisement.
const ND: &str = "80000a02 86dd 80001401 3a 80003a01";

#[test]
#[rustfmt::skip]
fn every_field_has_its_number_and_width() {
    let with = |fields: &[(Field, u128)]| {
        let mut m = Match::ANY;
        fields.iter().for_each(|&(field, value)| m = m.with(field, value));
        m
    };
    use Field::*;
    let v4 = "80000a02 0800";
    let ip = |proto: &str| format!("{v4} 80001401 {proto}");
    let arp = "80000a02 0806";
    let v6 = "80000a02 86dd";
    let icmp6 = format!("{v6} 80001401 3a");
    let a6 = "20010db8000000000000000000000001";
    let n6 = 0x2001_0db8_0000_0000_0000_0000_0000_0001_u128;
    for (m, tlvs) in [
        (with(&[(InPort, 3)]), "80000004 00000003".to_string()),
        (with(&[(InPort, 0xfffe)]), "80000004 fffffffe".to_string()),
        (with(&[(Metadata, 5)]), "80000408 0000000000000005".to_string()),
        (with(&[(TunnelId, 5)]), "80004c08 0000000000000005".to_string()),
        (with(&[(EthDst, 7)]), "80000606 000000000007".to_string()),
        (with(&[(EthSrc, 7)]), "80000806 000000000007".to_string()),
        (with(&[(EthType, 0x88cc)]), "80000a02 88cc".to_string()),
        (with(&[(VlanVid, 0)]), "80000c02 0000".to_string()),
        (with(&[(VlanVid, 0x1064), (VlanPcp, 5)]), "80000c02 1064 80000e01 05".to_string()),
        (with(&[(EthType, 0x800), (IpDscp, 46)]), format!("{v4} 80001001 2e")),
        (with(&[(EthType, 0x800), (IpEcn, 3)]), format!("{v4} 80001201 03")),
        (with(&[(EthType, 0x800), (IpProto, 47)]), ip("2f")),
        (with(&[(EthType, 0x800), (Ipv4Src, 9)]), format!("{v4} 80001604 00000009")),
        (with(&[(EthType, 0x800), (Ipv4Dst, 9)]), format!("{v4} 80001804 00000009")),
        (with(&[(EthType, 0x800), (IpProto, 6), (TcpSrc, 80)]), ip("06") + "80001a02 0050"),
        (with(&[(EthType, 0x800), (IpProto, 6), (TcpDst, 80)]), ip("06") + "80001c02 0050"),
        (with(&[(EthType, 0x800), (IpProto, 17), (UdpSrc, 53)]), ip("11") + "80001e02 0035"),
        (with(&[(EthType, 0x800), (IpProto, 17), (UdpDst, 53)]), ip("11") + "80002002 0035"),
        (with(&[(EthType, 0x800), (IpProto, 132), (SctpSrc, 1)]), ip("84") + "80002202 0001"),
        (with(&[(EthType, 0x800), (IpProto, 132), (SctpDst, 1)]), ip("84") + "80002402 0001"),
        (with(&[(EthType, 0x800), (IpProto, 1), (Icmpv4Type, 8)]), ip("01") + "80002601 08"),
        (with(&[(EthType, 0x800), (IpProto, 1), (Icmpv4Code, 1)]), ip("01") + "80002801 01"),
        (with(&[(EthType, 0x806), (ArpOp, 2)]), format!("{arp} 80002a02 0002")),
        (with(&[(EthType, 0x806), (ArpSpa, 9)]), format!("{arp} 80002c04 00000009")),
        (with(&[(EthType, 0x806), (ArpTpa, 9)]), format!("{arp} 80002e04 00000009")),
        (with(&[(EthType, 0x806), (ArpSha, 7)]), format!("{arp} 80003006 000000000007")),
        (with(&[(EthType, 0x806), (ArpTha, 7)]), format!("{arp} 80003206 000000000007")),
        (with(&[(EthType, 0x86dd), (Ipv6Src, n6)]), format!("{v6} 80003410 {a6}")),
        (with(&[(EthType, 0x86dd), (Ipv6Dst, n6)]), format!("{v6} 80003610 {a6}")),
        (with(&[(EthType, 0x86dd), (Ipv6Flabel, 0xabcde)]), format!("{v6} 80003804 000abcde")),
        (with(&[(EthType, 0x86dd), (IpProto, 58), (Icmpv6Type, 1)]), format!("{icmp6} 80003a01 01")),
        (with(&[(EthType, 0x86dd), (IpProto, 58), (Icmpv6Code, 4)]), format!("{icmp6} 80003c01 04")),
        (with(&[(EthType, 0x86dd), (IpProto, 58), (Icmpv6Type, 135), (Ipv6NdTarget, n6)]), format!("{ND} 87 80003e10 {a6}")),
        (with(&[(EthType, 0x86dd), (IpProto, 58), (Icmpv6Type, 135), (Ipv6NdSll, 7)]), format!("{ND} 87 80004006 000000000007")),
        (with(&[(EthType, 0x86dd), (IpProto, 58), (Icmpv6Type, 136), (Ipv6NdTll, 7)]), format!("{ND} 88 80004206 000000000007")),
        (with(&[(InnerEthDst, 7)]), "ffff000a 4d4c5243 000000000007".to_string()),
        (with(&[(InnerEthType, 0x800), (InnerIpProto, 17), (InnerTpDst, 53)]),
         "ffff0406 4d4c5243 0800 ffff0e05 4d4c5243 11 ffff1606 4d4c5243 0035".to_string()),
    ] {
        assert_eq!(matched(&tlvs), Ok(m), "{tlvs}");
        let mut out = Vec::new();
        oxm::MATCH.write(&m, &mut out).unwrap();
        let mut expected = vec![0, 1];
        expected.u16(4 + bytes(&tlvs).len() as u16);
        expected.extend(bytes(&tlvs));
        expected.zeros(padding(expected.len()));
        assert_eq!(hex(&out), hex(&expected), "{tlvs}");
    }
}

#[test]
fn masks() {
    let mut m = Match::ANY.with(Field::EthType, 0x0800_u16);
    m.set(Field::Ipv4Dst, 0x0a00_0000, 0xff00_0000);
    let mut out = Vec::new();
    oxm::MATCH.write(&m, &mut out).unwrap();
    assert_eq!(hex(&out), hex(&bytes("0001 0016 80000a02 0800 80001908 0a000000 ff000000 0000")));
    assert_eq!(matched("80000a02 0800 80001908 0a000000 ff000000"), Ok(m));
    let mut any_tag = Match::ANY;
    any_tag.set(Field::VlanVid, 0x1000, 0x1000);
    assert_eq!(matched("80000d04 1000 1000"), Ok(any_tag));
    // A mask of all ones is no mask, and one of all zeros is no field. Mask bits beyond the field's width are
    // ignored.
    assert_eq!(matched("8000070c 000000000007 ffffffffffff"), Ok(Match::ANY.with(Field::EthDst, 7_u8)));
    assert_eq!(matched("8000070c 000000000000 000000000000"), Ok(Match::ANY));
    let tunnel = Match::ANY.with(Field::TunnelId, 5_u8);
    assert_eq!(matched("80004d10 0000000000000005 ffffffffffffffff"), Ok(tunnel));
    let mut inner = Match::ANY;
    inner.set(Field::InnerEthSrc, 0x0200_0000_0000, 0x0300_0000_0000);
    assert_eq!(matched("ffff0310 4d4c5243 020000000000 030000000000"), Ok(inner));
}

#[test]
fn a_match_that_makes_no_sense_is_refused() {
    use BadMessage::{MatchLength, Wildcards};
    let refused = |refused: Refused| Err(BadMessage::Refused(refused));
    for (tlvs, why) in [
        ("00000002 0001", refused(Refused::BadField)), // NXM_OF_IN_PORT
        ("80000204 00000001", refused(Refused::BadField)), // IN_PHY_PORT
        ("80000a02 8847 80004404 00000001", refused(Refused::BadField)), // MPLS_LABEL
        ("80000a02 88e7 80004a03 000001", refused(Refused::BadField)), // PBB_ISID
        ("80000a02 86dd 80004e02 0001", refused(Refused::BadField)), // IPV6_EXTHDR
        ("ffff000a 00002320 000000000007", refused(Refused::BadField)),
        ("ffff1a06 4d4c5243 0000", refused(Refused::BadField)), // after the last of ours
        ("ffff0003 4d4c52", Err(MatchLength)),
        ("80000003 000001", Err(MatchLength)),
        ("80000004 000001", Err(MatchLength)),
        ("8000", Err(MatchLength)),
        ("80000a02 0800 80001904 0a000000", Err(MatchLength)),
        ("80000b04 0800 ffff", refused(Refused::BadMask)),
        ("80000a02 0800 80001908 0a010000 ff000000", Err(Wildcards)),
        ("80000a02 0800 80001001 40", refused(Refused::BadValue)),
        ("80000c02 2000", refused(Refused::BadValue)),
        ("80000c02 0064", refused(Refused::BadValue)), // an id without OFPVID_PRESENT
        ("80000d04 0064 1fff", refused(Refused::BadValue)),
        ("80000a02 86dd 80003804 00100000", refused(Refused::BadValue)),
        ("80000004 00010000", refused(Refused::BadValue)),
        ("80000004 0000ff01", refused(Refused::BadValue)),
        ("80000a02 0800 80000a02 0800", refused(Refused::DuplicateField)),
        ("8000070c 000000000000 000000000000 80000606 000000000007", refused(Refused::DuplicateField)),
        ("80001604 0a000001", refused(Refused::Prerequisite)),
        ("80001604 0a000001 80000a02 0800", refused(Refused::Prerequisite)), // after it
        ("80000a02 0800 80001401 11 80001c02 0050", refused(Refused::Prerequisite)),
        ("80000e01 05", refused(Refused::Prerequisite)),
        ("80000c02 0000 80000e01 05", refused(Refused::Prerequisite)),
        ("80000a02 86dd 80001401 3a 80003a01 88 80004006 000000000007", refused(Refused::Prerequisite)),
    ] {
        assert_eq!(matched(tlvs), why, "{tlvs}");
    }
    let raw = |wire: &str| oxm::MATCH.read(&mut Reader::new(&bytes(wire), BadMessage::Length));
    assert_eq!(raw("0000 0058 00000000"), Err(BadMessage::MatchType));
    assert_eq!(raw("0001 0003 00000000"), Err(MatchLength));
    assert_eq!(raw("0001 000c 80000004 0000"), Err(MatchLength));
    assert_eq!(raw("0001 0004 0000"), Err(MatchLength));
}

#[test]
fn a_match_that_1_3_cannot_express_is_not_written() {
    let cannot =
        |m: Match, what: &str| assert_eq!(oxm::MATCH.write(&m, &mut Vec::new()).unwrap_err().what, what);
    let icmp = Match::ANY.with(Field::EthType, 0x0800_u16).with(Field::IpProto, 1_u8);
    cannot(icmp.with(Field::Icmpv4Type, 256_u16), "this value of a field");
    cannot(Match::ANY.with(Field::VlanVid, 100_u16), "this value of a field");
    cannot(Match::ANY.with(Field::InPort, 0xff01_u16), "this port number");
    cannot(Match::ANY.with(Field::TcpDst, 80_u16), "a field that is matched without what it needs");
    let mut half = web();
    half.set(Field::TcpDst, 0x40, 0xc0);
    cannot(half, "a mask on this field");
}

#[test]
fn actions_have_their_bytes() {
    for (action, wire) in [
        (Action::Output { port: RulePort(3), max_len: 0 }, "0000 0010 00000003 0000 000000000000"),
        (to_controller(), TO_CONTROLLER),
        (Action::PushVlan(0x8100), "0011 0008 8100 0000"),
        (Action::PushVlan(0x88a8), "0011 0008 88a8 0000"),
        (Action::PopVlan, "0012 0008 00000000"),
        (Action::SetQueue(5), "0015 0008 00000005"),
        (Action::Group(6), "0016 0008 00000006"),
        (Action::SetTtl(7), "0017 0008 07 000000"),
        (Action::DecTtl, "0018 0008 00000000"),
        (Action::set(Field::EthDst, 7_u8), "0019 0010 80000606 000000000007 0000"),
        (Action::set(Field::VlanVid, 0x1064_u16), "0019 0010 80000c02 1064 000000000000"),
        (Action::set(Field::Ipv4Src, 9_u8), "0019 0010 80001604 00000009 00000000"),
        (Action::set(Field::TunnelId, 9_u8), "0019 0010 80004c08 0000000000000009"),
        (Action::set(Field::IpEcn, 1_u8), "0019 0010 80001201 01 00000000000000"),
        (Action::set(Field::InnerIpDscp, 9_u8), "0019 0010 ffff0a05 4d4c5243 09 000000"),
    ] {
        assert_eq!(acted(wire), Ok(vec![action.clone()]), "{wire}");
        assert_eq!(written(Match::ANY, &[action]), Ok(hex(&bytes(wire))), "{wire}");
    }
}

#[test]
fn actions_that_make_no_sense_are_refused() {
    use BadMessage::{ActionExperimenter, ActionLength, SetFieldLength, SetFieldValue};
    let refused = |refused: Refused| Err(BadMessage::Refused(refused));
    for (action, why) in [
        ("0000 0008 00000001", Err(ActionLength)),
        ("0000 0010 00000001", Err(ActionLength)),
        ("0012 0010 00000000 0000000000000000", Err(ActionLength)),
        ("0012 0000 00000000", Err(ActionLength)),
        ("0015 000c 00000005 00000000", Err(ActionLength)),
        ("0000 0010 00010000 0000 000000000000", refused(Refused::BadPort)),
        ("000b 0008 00000000", refused(Refused::BadAction)), // COPY_TTL_OUT
        ("000c 0008 00000000", refused(Refused::BadAction)), // COPY_TTL_IN
        ("000f 0008 01 000000", refused(Refused::BadAction)), // SET_MPLS_TTL
        ("0010 0008 00000000", refused(Refused::BadAction)), // DEC_MPLS_TTL
        ("0013 0008 8847 0000", refused(Refused::BadAction)), // PUSH_MPLS
        ("0014 0008 0800 0000", refused(Refused::BadAction)), // POP_MPLS
        ("001a 0008 88e7 0000", refused(Refused::BadAction)), // PUSH_PBB
        ("001b 0008 00000000", refused(Refused::BadAction)), // POP_PBB
        ("0011 0008 0800 0000", refused(Refused::BadArgument)),
        ("0019 0010 80000004 00000001 00000000", refused(Refused::BadSetField)),
        ("0019 0010 80000408 0000000000000001", refused(Refused::BadSetField)),
        ("0019 0010 80004404 00000001 00000000", refused(Refused::BadSetField)),
        ("0019 0018 8000070c 000000000000 ffffffffffff 00000000", refused(Refused::BadSetField)),
        ("0019 0010 80000605 0000000007 000000", Err(SetFieldLength)),
        ("0019 0018 80001604 00000009 00000000 0000000000000000", Err(ActionLength)),
        ("0019 0010 80001001 40 00000000000000", Err(SetFieldValue)),
        ("0019 0010 80000c02 0064 000000000000", Err(SetFieldValue)),
        ("0019 0010 80000c02 0000 000000000000", Err(SetFieldValue)), // OFPVID_NONE
        ("ffff 0010 00002320 0001 000000000000", Err(ActionExperimenter)),
    ] {
        assert_eq!(acted(action), why, "{action}");
    }
}

#[test]
fn actions_of_1_0_are_written_if_the_match_tells_what_they_do() {
    let vid = [Action::SetVlanVid(100), Action::SetVlanPcp(5)];
    let (set_vid, set_pcp) = ("0019 0010 80000c02 1064 000000000000", "0019 0010 80000e01 05 00000000000000");
    let bytes = |wire: String| Ok(hex(&super::bytes(&wire)));
    let tagged = Match::ANY.with(Field::VlanVid, 0x1001_u16);
    assert_eq!(written(tagged, &vid), bytes(format!("{set_vid} {set_pcp}")));
    let untagged = Match::ANY.with(Field::VlanVid, 0_u16);
    assert_eq!(written(untagged, &vid), bytes(format!("0011 0008 8100 0000 {set_vid} {set_pcp}")));
    let unknown = Err("a VLAN id or priority for packets with and without a tag");
    assert_eq!(written(Match::ANY, &vid), unknown);
    let popped = [Action::PopVlan, Action::SetVlanVid(100)];
    assert_eq!(written(tagged, &popped), unknown);

    let ports = [Action::SetTpSrc(53), Action::SetTpDst(80)];
    let udp = Match::ANY.with(Field::EthType, 0x86dd_u16).with(Field::IpProto, 17_u8);
    let (src, dst) = ("0019 0010 80001a02 0035 000000000000", "0019 0010 80001c02 0050 000000000000");
    assert_eq!(written(web(), &ports), bytes(format!("{src} {dst}")));
    let (src, dst) = ("0019 0010 80001e02 0035 000000000000", "0019 0010 80002002 0050 000000000000");
    assert_eq!(written(udp, &ports), bytes(format!("{src} {dst}")));
    assert_eq!(written(Match::ANY, &ports), Err("a port of TCP or UDP, whichever it is"));

    let queued = |port, queue| Action::Enqueue { port: RulePort(port), queue };
    let wire = "0015 0008 00000007 0000 0010 00000002 0000 000000000000";
    assert_eq!(written(Match::ANY, &[queued(2, 7)]), bytes(wire.into()));
    let again = "0015 0008 00000008 0000 0010 00000003 0000 000000000000";
    assert_eq!(written(Match::ANY, &[queued(2, 7), queued(3, 8)]), bytes(format!("{wire} {again}")));
    let then = [queued(2, 7), Action::output(RulePort(3))];
    assert_eq!(written(Match::ANY, &then), Err("a queue for one output of several"));
}

#[test]
fn actions_that_1_3_cannot_express_are_not_written() {
    let some_bits = Action::SetField { field: Field::Ipv4Src, value: 0, mask: 0xff };
    for (action, what) in [
        (some_bits, "to set some bits of a field"),
        (Action::set(Field::InPort, 1_u8), "to set this field to this value"),
        (Action::set(Field::VlanVid, 100_u8), "to set this field to this value"),
        (Action::output(RulePort(0xff01)), "this port number"),
    ] {
        let actions = vec![Action::PopVlan, action];
        let packet =
            PacketOut { buffer: None, in_port: RulePort(1), actions: actions.clone(), data: vec![1] };
        unsaid(Message::PacketOut(packet), what);
        let rule = FlowMod {
            command: FlowCommand::Add,
            table: Some(0),
            cookie: 0,
            cookie_mask: 0,
            priority: 0,
            matching: Match::ANY,
            instructions: Instructions { write: actions, ..Instructions::default() },
            idle_timeout: 0,
            hard_timeout: 0,
            out_port: None,
            out_group: None,
            flags: FlowFlags::default(),
            buffer: None,
        };
        unsaid(Message::FlowMod(rule), what);
    }
}
