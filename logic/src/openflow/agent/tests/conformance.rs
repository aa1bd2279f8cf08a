//! Every field, action, instruction, kind of group and meter band that OpenFlow 1.3.5 knows is either accepted and done, or
//! refused with the error of the specification. Nothing is accepted and then ignored.

use super::*;
use crate::{
    flow::{
        Field, Key, Match,
        kernel::{Notice, NoticeReason},
        packet::{
            VXLAN_PORT,
            samples::{Recipe, Transport, arp, neighbour_discovery, sctp},
        },
    },
    openflow::message::PacketIn,
};

/// Bytes of a field's value by its number in class 0x8000 (1.3.5 section 7.2.3.7), and of four unassigned numbers.
const LENGTHS: [usize; 44] = [
    4, 4, 8, 6, 6, 2, 2, 1, 1, 1, 1, 4, 4, 2, 2, 2, 2, 2, 2, 1, 1, 2, 4, 4, 6, 6, 16, 16, 4, 1, 1, 16, 6, 6,
    4, 1, 1, 3, 8, 2, 1, 2, 4, 8,
];
/// IN_PHY_PORT, the fields of MPLS, PBB_ISID, IPV6_EXTHDR, and unassigned numbers.
const UNMATCHED: [u8; 10] = [1, 34, 35, 36, 37, 39, 40, 41, 42, 43];
/// Also not settable: the port and the metadata, which 1.3.5 section 7.2.5 excludes, and fields that decide which headers a
/// packet has.
const UNSET: [u8; 4] = [0, 2, 5, 10];

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = raw(OpenFlow13, kind, 7, "");
    bytes.extend(body);
    let length = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Adds a rule of priority 1 to a table.
fn rule(table: u8, fields: &[u8], instructions: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 40];
    (body[16], body[23]) = (table, 1);
    body[24..36].fill(0xff);
    let length = 4 + fields.len();
    body.extend([0, 1, 0, length as u8]);
    body.extend(fields);
    body.resize(40 + length.next_multiple_of(8), 0);
    body.extend(instructions);
    message(14, &body)
}

fn tlv(number: u8, value: u128) -> Vec<u8> {
    let length = LENGTHS[usize::from(number)];
    [&[0x80, 0, number << 1, length as u8], &value.to_be_bytes()[16 - length..]].concat()
}

/// A structure that begins with its type and length, padded to eight bytes.
fn typed(kind: u16, body: &[u8]) -> Vec<u8> {
    let length = (4 + body.len()).next_multiple_of(8);
    let mut bytes = [kind, length as u16].map(u16::to_be_bytes).concat();
    bytes.extend(body);
    bytes.resize(length, 0);
    bytes
}

fn output(port: u32) -> Vec<u8> {
    typed(0, &[&port.to_be_bytes()[..], &[0xff, 0xff], &[0; 6]].concat())
}

fn apply(actions: &[u8]) -> Vec<u8> {
    typed(4, &[&[0; 4], actions].concat())
}

/// The switch's answer to a message: type and code of its error.
fn answer(b: &mut Bench, bytes: &[u8]) -> Option<(u16, u16)> {
    b.bytes(1, bytes);
    match &b.done()[..] {
        [] => None,
        [Said(1, 7, Message::Error(error))] => Some((error.kind, error.code)),
        other => panic!("{other:?}"),
    }
}

/// What the switch does with a packet that comes in by port 1.
fn sent(b: &mut Bench, frame: &[u8]) -> Vec<Did> {
    let frame_bytes = frame.len() as u32;
    let reason = NoticeReason::Slow;
    let notice = Notice { rule: 0, port: RulePort(1), reason, frame_bytes, metadata: 0, tunnel_id: 0 };
    b.agent.notice(notice, frame, 1_000_000 * b.now_ms);
    b.done()
}

/// A switch whose table 0 writes a tunnel id and metadata, 5 each, and goes on to table 1.
fn started() -> Bench {
    let mut b = bench(settings());
    b.open(1, OpenFlow13);
    let metadata = [&[0; 4][..], &5_u64.to_be_bytes(), &u64::MAX.to_be_bytes()].concat();
    let first = [apply(&typed(25, &tlv(38, 5))), typed(2, &metadata), typed(1, &[1, 0, 0, 0])].concat();
    assert_eq!(answer(&mut b, &rule(0, &[], &first)), None);
    b
}

/// A frame that has the field; the TLVs that must be matched with the field, with the values of the frame; and the value of
/// the field.
fn sample(number: u8) -> (Vec<u8>, Vec<u8>, u128) {
    let field = Field::from_oxm(number).expect("a field that is matched");
    let tagged = Recipe { tags: vec![(3, 42)], ..Recipe::default() };
    let tcp = |v6| Recipe { v6, transport: Transport::Tcp, ..Recipe::default() }.frame();
    let icmp = |v6| Recipe { v6, transport: Transport::Icmp, ports: (9, 4), ..Recipe::default() }.frame();
    let udp = Recipe::default().frame();
    let mut asked = arp();
    asked[32..38].copy_from_slice(&[2, 0, 0, 0, 0, 7]);
    let others =
        [sctp(0), asked, icmp(false), icmp(true), neighbour_discovery(135), neighbour_discovery(136)];
    let frames = [tagged.frame(), udp, tcp(false), tcp(true)].into_iter().chain(others);
    let mut found = frames.filter_map(|frame| {
        let mut key = Key::of(&frame, RulePort(1), VXLAN_PORT);
        key.set(Field::Metadata, 5);
        key.set(Field::TunnelId, 5);
        let (mut matching, mut tlvs) = (Match::ANY, Vec::new());
        for needed in [Field::VlanVid, Field::EthType, Field::IpProto, Field::Icmpv6Type] {
            let fits = needed != field && matching.permits(needed) && key.get(needed) != 0;
            if !matching.permits(field) && fits {
                matching = matching.with(needed, key.get(needed));
                tlvs.extend(tlv(needed.spec().oxm?, key.get(needed)));
            }
        }
        (matching.permits(field) && key.get(field) != 0).then(|| (frame, tlvs, key.get(field)))
    });
    found.next().unwrap_or_else(|| panic!("no frame has {field}"))
}

#[test]
fn every_field_is_matched_or_refused() {
    for number in (0..LENGTHS.len() as u8).filter(|number| UNMATCHED.contains(number)) {
        let mut b = started();
        assert_eq!(
            answer(&mut b, &rule(1, &tlv(number, 1), &[])),
            Some((4, 6)),
            "OFPBMC_BAD_FIELD of {number}"
        );
    }
    for number in (0..LENGTHS.len() as u8).filter(|number| !UNMATCHED.contains(number)) {
        let (frame, needed, value) = sample(number);
        // The same value, and another one.
        for (matched, goes) in [(value, 1), (value ^ 2, 0)] {
            let mut b = started();
            let fields = [needed.clone(), tlv(number, matched)].concat();
            assert_eq!(answer(&mut b, &rule(1, &fields, &apply(&output(2)))), None, "field {number}");
            assert_eq!(sent(&mut b, &frame).len(), goes, "field {number} with {matched:#x} of {value:#x}");
        }
    }
    // Open vSwitch's class, the class of other registers, and experimenters: tcp_flags of the ONF (EXT-109), and an unknown
    // one.
    for fields in [
        &[0, 0, 0, 2, 0, 1][..],
        &[0, 1, 0, 4, 0, 0, 0, 1],
        &[0x80, 1, 0, 4, 0, 0, 0, 1],
        &[0xff, 0xff, 42 << 1, 6, 0x4f, 0x4e, 0x46, 0, 0, 2],
        &[0xff, 0xff, 0, 6, 1, 2, 3, 4, 0, 2],
    ] {
        assert_eq!(answer(&mut started(), &rule(1, fields, &[])), Some((4, 6)), "{fields:x?}");
    }
}

#[test]
fn every_field_is_set_or_refused() {
    for number in (0..LENGTHS.len() as u8).filter(|n| UNMATCHED.contains(n) || UNSET.contains(n)) {
        let does = apply(&typed(25, &tlv(number, 1)));
        let told = answer(&mut started(), &rule(1, &[], &does));
        assert_eq!(told, Some((2, 13)), "OFPBAC_BAD_SET_TYPE of {number}");
    }
    for number in (0..LENGTHS.len() as u8).filter(|n| !UNMATCHED.contains(n) && !UNSET.contains(n)) {
        let (frame, needed, value) = sample(number);
        let (field, new) = (Field::from_oxm(number).unwrap(), value ^ 2);
        let does = [typed(25, &tlv(number, new)), output(2), output(0xffff_fffd)].concat();
        let mut b = started();
        assert_eq!(answer(&mut b, &rule(1, &needed, &apply(&does))), None, "field {number}");
        let sent = sent(&mut b, &frame);
        let [Other(Effect::Transmit { frame: after, .. }), Said(1, 0, Message::PacketIn(told))] = &sent[..]
        else {
            panic!("{sent:?}")
        };
        let mut key = Key::of(after, RulePort(1), VXLAN_PORT);
        key.set(Field::TunnelId, told.matching.exact(Field::TunnelId).unwrap_or(0));
        assert_eq!(key.get(field), new, "field {number}");
    }
    // A field that the packet lacks, a wrong length for the field, and a value that the field cannot have.
    let needed = [tlv(5, 0x800), tlv(10, 6)].concat();
    for (fields, set, told) in [
        (&[][..], tlv(13, 1), (2, 10)),
        (&needed, tlv(15, 1), (2, 10)),
        (&needed, vec![0x80, 0, 13 << 1, 1, 1], (2, 14)),
        (&[], tlv(6, 1), (2, 15)),
        (&needed, tlv(8, 0x40), (2, 15)),
    ] {
        assert_eq!(
            answer(&mut started(), &rule(1, fields, &apply(&typed(25, &set)))),
            Some(told),
            "{set:x?}"
        );
    }
}

#[test]
fn every_action_is_done_or_refused() {
    // OFPBAC_BAD_TYPE: copying TTLs, MPLS and PBB, and unassigned numbers.
    let unknown = (1..=10).chain([11, 12, 13, 14, 15, 16, 19, 20, 26, 27]).chain(28..40);
    for kind in unknown {
        let told = answer(&mut started(), &rule(1, &[], &apply(&typed(kind, &[0; 4]))));
        assert_eq!(told, Some((2, 0)), "action {kind}");
    }
    for (action, told) in [
        (typed(0xffff, &[1, 2, 3, 4]), (2, 2)),
        (typed(17, &[0x81, 1, 0, 0]), (2, 5)),
        (typed(21, &[0, 0, 0, 1]), (2, 8)),
        (typed(22, &[0, 0, 0, 9]), (2, 9)),
        (output(9), (2, 4)),
        (output(0xffff_fff9), (2, 4)),
        (output(0xffff_ffff), (2, 4)),
        (output(0x1_0000), (2, 4)),
    ] {
        assert_eq!(answer(&mut started(), &rule(1, &[], &apply(&action))), Some(told), "{action:x?}");
    }
    let frame = Recipe { tags: vec![(3, 42)], ..Recipe::default() }.frame();
    let with =
        |at: usize, cut: usize, put: &[u8]| -> Vec<u8> { [&frame[..at], put, &frame[at + cut..]].concat() };
    let tags = [0x81, 0, 0x60, 42];
    let ip = [tlv(5, 0x800)].concat();
    for (fields, action, after, queue) in [
        (&[][..], vec![], frame.clone(), None),
        (&[], typed(17, &[0x88, 0xa8, 0, 0]), with(12, 0, &[0x88, 0xa8, 0x60, 42]), None),
        (&[], typed(18, &[0; 4]), with(12, 4, &[]), None),
        (
            &[],
            [typed(18, &[0; 4]), typed(17, &[0x81, 0, 0, 0])].concat(),
            with(12, 4, &[0x81, 0, 0, 0]),
            None,
        ),
        (&[], typed(17, &[0x81, 0, 0, 0]), with(12, 0, &tags), None),
        (&[], typed(21, &[0; 4]), frame.clone(), Some(0)),
        (&ip, typed(23, &[65, 0, 0, 0]), with(26, 1, &[65]), None),
        (&ip, typed(24, &[0; 4]), with(26, 1, &[63]), None),
    ] {
        let mut b = started();
        let does = apply(&[action.clone(), output(2)].concat());
        assert_eq!(answer(&mut b, &rule(1, fields, &does)), None, "{action:x?}");
        let sent = sent(&mut b, &frame);
        let [Other(Effect::Transmit { port: RulePort(2), queue: by, frame: seen })] = &sent[..] else {
            panic!("{action:x?}: {sent:?}")
        };
        // The checksum changes with the TTL; the tests of `execute` check how.
        let mut seen = seen.clone();
        if !fields.is_empty() {
            seen[28..30].copy_from_slice(&frame[28..30]);
        }
        assert_eq!((&seen, *by), (&after, queue), "{action:x?}");
    }
}

#[test]
fn every_instruction_is_done_or_refused() {
    let set = typed(3, &[&[0; 4], &output(2)[..]].concat());
    let metadata = typed(2, &[&[0; 4][..], &6_u64.to_be_bytes(), &u64::MAX.to_be_bytes()].concat());
    for (instructions, told) in [
        (typed(0, &[0; 4]), Some((3, 0))),
        (typed(7, &[0; 4]), Some((3, 0))),
        (typed(8, &[0; 4]), Some((3, 0))),
        (typed(0xffff, &[1, 2, 3, 4]), Some((3, 5))),
        (typed(1, &[1, 0, 0, 0]), Some((3, 2))),
        (typed(1, &[16, 0, 0, 0]), Some((3, 2))),
        (typed(6, &[0, 0, 0, 9]), Some((12, 3))),
        ([apply(&[]), apply(&[])].concat(), Some((3, 1))),
        (typed(4, &[0; 4])[..8].to_vec(), None),
    ] {
        assert_eq!(answer(&mut started(), &rule(1, &[], &instructions)), told, "{instructions:x?}");
    }
    // An action written; the same written and cleared by a later table; metadata for a later table.
    for (later, goes) in [
        (rule(2, &[], &[]), 1),
        (rule(2, &[], &typed(5, &[0; 4])), 0),
        (rule(2, &tlv(2, 6), &typed(5, &[0; 4])), 0),
    ] {
        let mut b = started();
        let goes_on = [set.clone(), metadata.clone(), typed(1, &[2, 0, 0, 0])].concat();
        assert_eq!(answer(&mut b, &rule(1, &[], &goes_on)), None);
        assert_eq!(answer(&mut b, &later), None);
        assert_eq!(sent(&mut b, &Recipe::default().frame()).len(), goes, "{later:x?}");
    }
}

#[test]
fn every_kind_of_group_and_band_is_done_or_refused() {
    let bucket = |weight: u8, port: u32| {
        let output = output(port);
        let watch = if weight == 0 { [0, 0, 0, port as u8] } else { [0xff; 4] };
        [&[0, 16 + output.len() as u8, 0, weight][..], &watch, &[0xff; 4], &[0; 4], &output].concat()
    };
    let group = |kind: u8, buckets: &[Vec<u8>]| {
        message(15, &[&[0, 0, kind, 0, 0, 0, 0, 5][..], &buckets.concat()].concat())
    };
    for (kind, buckets, told, sends) in [
        (0, vec![bucket(0, 2), bucket(0, 3)], None, 2),
        (1, vec![bucket(1, 2), bucket(1, 3)], None, 1),
        (2, vec![bucket(0, 2)], None, 1),
        (3, vec![bucket(0, 2), bucket(0, 3)], None, 1),
        (2, vec![bucket(0, 2), bucket(0, 3)], Some((6, 1)), 0),
        (4, vec![], Some((6, 10)), 0),
        (0xff, vec![], Some((6, 10)), 0),
    ] {
        let mut b = started();
        assert_eq!(answer(&mut b, &group(kind, &buckets)), told, "type {kind}");
        if told.is_none() {
            assert_eq!(answer(&mut b, &rule(1, &[], &apply(&typed(22, &[0, 0, 0, 5])))), None);
            assert_eq!(sent(&mut b, &Recipe::default().frame()).len(), sends, "type {kind}");
        }
    }
    let meter = |flags: u8, kind: u16| {
        let band = typed(kind, &[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]);
        message(29, &[&[0, 0, 0, flags, 0, 0, 0, 5][..], &band].concat())
    };
    // OFPMBT, and OFPMF: kbit/s, packets/s, bursts, counters.
    for (flags, kind, told) in [
        (0b0110, 1, None),
        (0b1101, 1, None),
        (0b0010, 2, Some((12, 8))),
        (0b0010, 3, Some((12, 8))),
        (0b0010, 0xffff, Some((12, 8))),
        (0b0011, 1, Some((12, 5))),
        (0b1_0010, 1, Some((12, 5))),
    ] {
        let mut b = started();
        assert_eq!(answer(&mut b, &meter(flags, kind)), told, "flags {flags:b}, band {kind}");
        if flags == 0b0110 {
            let does = [typed(6, &[0, 0, 0, 5]), apply(&output(2))].concat();
            assert_eq!(answer(&mut b, &rule(1, &[], &does)), None);
            let passed = [0; 3].map(|_| sent(&mut b, &Recipe::default().frame()).len());
            assert_eq!(passed, [1, 0, 0], "one packet per second, in bursts of one");
        }
    }
}

/// 1.3.5 section 7.3.2: all settings, and bits that neither version defines.
#[test]
fn fragments_are_dropped_on_request_and_never_reassembled() {
    for (version, refused, unknown) in [(OpenFlow10, (1, 5), (1, 5)), (OpenFlow13, (10, 0), (10, 0))] {
        let mut b = bench(settings());
        b.open(1, version);
        b.open(2, OpenFlow13);
        b.say(1, 0, &add("actions=output:2"));
        let mut fragment = Recipe::default().frame();
        fragment[20] |= 0x20;
        let set = |flags| raw(version, 9, 7, &format!("000{flags} 0009"));
        let told = |b: &mut Bench| {
            b.bytes(1, &raw(version, 7, 7, ""));
            b.bytes(2, &raw(OpenFlow13, 7, 7, ""));
            let config = |did: &Did| match did {
                Said(_, _, Message::GetConfigReply(config)) => (config.fragments as u8, config.miss_send_len),
                other => panic!("{other:?}"),
            };
            b.done().iter().map(config).collect::<Vec<_>>()
        };
        assert_eq!((sent(&mut b, &fragment).len(), told(&mut b)), (1, vec![(0, 128), (0, 128)]));
        b.settle();
        b.bytes(1, &set(1));
        b.bytes(1, &raw(version, if version == OpenFlow10 { 18 } else { 20 }, 7, ""));
        assert_eq!(b.done(), [], "a barrier waits until all cores follow the change");
        assert!(b.settle());
        assert_eq!(b.done(), [Said(1, 7, Message::BarrierReply)]);
        // The switch drops them, whichever connection asked. `miss_send_len` belongs to each connection.
        assert_eq!((sent(&mut b, &fragment).len(), told(&mut b)), (0, vec![(1, 9), (1, 128)]));
        assert_eq!(sent(&mut b, &Recipe::default().frame()).len(), 1);
        assert_eq!(answer(&mut b, &set(2)), Some(refused));
        assert_eq!(answer(&mut b, &set(3)), Some(unknown));
        assert_eq!(told(&mut b), [(1, 9), (1, 128)], "a refused change does nothing");
        b.say(2, 0, &Message::RoleRequest { role: Role::Slave, generation: 1 });
        b.done();
        b.bytes(2, &raw(OpenFlow13, 9, 7, "0001 0005"));
        assert_eq!(told(&mut b), [(1, 9), (1, 5)]);
        b.bytes(2, &raw(OpenFlow13, 9, 7, "0000 0006"));
        assert_eq!(b.done(), [Said(2, 7, error(1, 10, &raw(OpenFlow13, 9, 7, "0000 0006")))]);
        assert_eq!(told(&mut b), [(1, 9), (1, 5)]);
        b.bytes(1, &set(0));
        assert_eq!((sent(&mut b, &fragment).len(), told(&mut b)), (1, vec![(0, 9), (0, 5)]));
    }
}

/// For 1.0 it is an ordinary rule: only 1.3 has table-miss rules (section 5.4).
#[test]
fn a_wildcard_rule_of_priority_0_is_a_table_miss_rule_only_in_1_3() {
    for (rule, of_10, of_13) in [
        ("priority=0,actions=output:2,mod_dl_src:02:00:00:00:00:09,controller", 1, 0),
        ("priority=1,actions=output:2,mod_dl_src:02:00:00:00:00:09,controller", 1, 1),
        ("", 0, 0),
    ] {
        let miss = Instructions::apply([Action::output(RulePort::CONTROLLER)]);
        let mut b = bench(Settings { miss, ..settings() });
        b.open(1, OpenFlow10);
        b.open(2, OpenFlow13);
        if !rule.is_empty() {
            b.say(1, 0, &add(rule));
        }
        let reason = |did: &Did| match did {
            Said(_, 0, Message::PacketIn(PacketIn { reason, .. })) => Some(*reason as u8),
            _ => None,
        };
        let reasons: Vec<_> = sent(&mut b, &Recipe::default().frame()).iter().filter_map(reason).collect();
        assert_eq!(reasons, [of_10, of_13], "{rule}");
    }
}

#[test]
fn statistics_of_a_rule_have_the_flags_that_it_was_sent_with() {
    for flags in 0..32_u8 {
        let mut b = started();
        let mut bytes = rule(1, &[], &[]);
        // The header is followed by 40 bytes. The flags are in front of the last two.
        bytes[8 + 37] = flags;
        assert_eq!(answer(&mut b, &bytes), None, "{flags:#b}");
        let request = raw(OpenFlow13, 18, 7, "0001 0000 00000000 01000000 ffffffff ffffffff 00000000");
        let filter = "0000000000000000 0000000000000000 0001 0004 00000000";
        b.bytes(1, &message(18, &[&request[8..], &raw(OpenFlow13, 0, 0, filter)[8..]].concat()));
        let reply = b.sent(1);
        // Header, multipart header, length, table, duration, priority, timeouts.
        assert_eq!(reply[16 + 18..16 + 20], [0, flags], "{flags:#b}: {reply:x?}");
    }
    let unknown = {
        let mut bytes = rule(1, &[], &[]);
        bytes[8 + 37] = 32;
        bytes
    };
    assert_eq!(answer(&mut started(), &unknown), Some((5, 7)));
}
