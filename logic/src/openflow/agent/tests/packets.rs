use super::*;
use crate::{
    flow::{
        Field, Match,
        kernel::{Notice, NoticeReason, row},
        table::PathPort,
        text::parse_actions,
    },
    openflow::message::{AsyncConfig, PacketIn, PacketInReason, PacketOut, PortFeatures, PortMod},
};

/// A UDP packet over IPv4 with this TTL.
fn frame(ttl: u8) -> Vec<u8> {
    let mut frame = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0].to_vec();
    frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, ttl, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 1, 0, 2, 0, 8, 0, 0]);
    frame
}

fn notice(b: &mut Bench, rule: u32, reason: NoticeReason, frame: &[u8]) {
    let notice = Notice { rule, port: RulePort(1), reason, frame_bytes: 100, metadata: 0, tunnel_id: 0 };
    b.agent.notice(notice, frame, 1_000_000 * b.now_ms);
}

fn packet_in(reason: PacketInReason, table: u8, cookie: u64, data: &[u8]) -> Message {
    let matching = Match::ANY.with(Field::InPort, 1_u16);
    let data = data.to_vec();
    Message::PacketIn(PacketIn { buffer: None, total_len: 100, reason, table, cookie, matching, data })
}

#[test]
fn a_notice_becomes_a_packet_in_with_table_and_cookie_of_its_rule() {
    use PacketInReason::*;
    let mut b = bench(settings());
    b.open(1, OpenFlow10);
    b.open(2, OpenFlow13);
    b.say(2, 0, &add("table=3,in_port=1,cookie=7,actions=controller"));
    b.say(2, 0, &add("table=4,priority=0,cookie=8,actions=controller"));
    b.say(2, 0, &add("table=5,cookie=9,actions=controller"));
    notice(&mut b, 1, NoticeReason::Ttl, b"some bytes");
    assert_eq!(b.done(), [], "only controllers that ask get packets with an invalid TTL");
    let wants = AsyncConfig { packet_in: [0b111, 0], port_status: [0b111; 2], flow_removed: [0b1_1111, 0] };
    b.say(2, 0, &Message::SetAsync(wants));
    let rows: Vec<u32> = b.agent.flows().tables().ids().map(row).collect();
    let nobody = u64::MAX;
    for (rule, reason, expected) in [
        (rows[0], NoticeReason::Action, (Action, 3, 7)),
        (rows[0], NoticeReason::Ttl, (InvalidTtl, 3, 7)),
        (rows[1], NoticeReason::Action, (NoMatch, 4, 8)),
        (rows[2], NoticeReason::Action, (Action, 5, 9)),
        (1, NoticeReason::Action, (NoMatch, 0, nobody)),
        (3, NoticeReason::Action, (NoMatch, 2, nobody)),
        (200, NoticeReason::Action, (Action, 0, nobody)),
        (u32::MAX, NoticeReason::Ttl, (InvalidTtl, 0, nobody)),
    ] {
        notice(&mut b, rule, reason, b"some bytes");
        let (reason, table, cookie) = expected;
        // 1.0 has no reason for the TTL, no table and cookie, and no table-miss rules.
        let of_10 = if cookie == nobody { reason } else { Action };
        let of_10 = (reason != InvalidTtl).then(|| Said(1, 0, packet_in(of_10, 0, 0, b"some bytes")));
        let of_13 = Said(2, 0, packet_in(reason, table, cookie, b"some bytes"));
        assert_eq!(b.done(), of_10.into_iter().chain([of_13]).collect::<Vec<_>>());
    }
    assert_eq!((b.report(1).packet_ins, b.report(2).packet_ins), (6, 8));
    assert_eq!((b.report(1).packet_ins_dropped, b.report(2).packet_ins_dropped), (0, 0));
}

#[test]
fn controllers_get_no_packets_that_they_do_not_want() {
    let mut b = bench(Settings { packet_in_pps: 8, ..settings() });
    let lost = |b: &Bench| {
        let PacketInsLost { no_controller, over_rate, not_read } = b.agent.packet_ins_lost();
        [no_controller, over_rate, not_read]
    };
    notice(&mut b, 1, NoticeReason::Action, &[0; 100]);
    b.connect(1, true);
    notice(&mut b, 1, NoticeReason::Action, &[0; 100]);
    assert_eq!((lost(&b), b.agent.has_peer()), ([2, 0, 0], false));
    b.agent.closed(ConnectionId(1));
    b.open(1, OpenFlow10);
    let offer = |b: &mut Bench| {
        notice(b, 1, NoticeReason::Action, &[0; 100]);
        b.done().len()
    };
    b.now_ms += 10_000;
    assert_eq!([offer(&mut b), offer(&mut b), offer(&mut b)], [1, 1, 0], "bursts of two");
    assert_eq!((lost(&b), b.agent.has_peer()), ([2, 1, 0], true));
    b.now_ms += 125;
    assert_eq!([offer(&mut b), offer(&mut b)], [1, 0]);
    b.now_ms += 10_000;
    for (flag, taken) in [(PortConfig::NO_PACKET_IN, 0), (PortConfig::NO_RECV, 0), (PortConfig::NO_FWD, 1)] {
        let all = PortConfig::NO_PACKET_IN | PortConfig::NO_RECV | PortConfig::NO_FWD;
        let change = PortMod {
            port: RulePort(1),
            mac: port(1).mac,
            config: PortConfig(flag),
            mask: PortConfig(all),
            advertise: PortFeatures(0),
        };
        b.say(1, 0, &Message::PortMod(change));
        assert_eq!(offer(&mut b), taken, "{flag:#x}");
    }
}

#[test]
fn a_peer_that_does_not_read_gets_no_more_packets() {
    let mut b = bench(Settings { packet_in_pps: u32::MAX, ..settings() });
    b.open(1, OpenFlow10);
    b.open(2, OpenFlow13);
    b.reads = false;
    let frame = vec![0; 60_000];
    (0..30).for_each(|_| notice(&mut b, 1, NoticeReason::Action, &frame));
    let report = b.report(1);
    assert_eq!((report.packet_ins, report.packet_ins_dropped), (18, 12));
    let not_read = PacketInsLost { not_read: 12, ..PacketInsLost::default() };
    assert_eq!(b.agent.packet_ins_lost(), not_read, "each is counted once, not once per peer");
    assert!(report.unsent_bytes < UNSENT + 60_100);
    b.agent.take_effects();
    b.agent.written(ConnectionId(1), 100_000, b.now_ms, &Counters);
    notice(&mut b, 1, NoticeReason::Action, &frame);
    assert_eq!((b.report(1).packet_ins, b.report(2).packet_ins), (19, 18));
}

#[test]
fn the_agent_does_packets_that_the_kernel_plane_leaves() {
    let mut b = bench(settings());
    b.open(1, OpenFlow13);
    b.say(
        1,
        0,
        &add("in_port=1,cookie=7,actions=output:2,mod_dl_dst:02:00:00:00:00:09,output:3,controller:20"),
    );
    let slow = |b: &mut Bench, ttl, frame_bytes| {
        let notice = Notice {
            rule: 0,
            port: RulePort(1),
            reason: NoticeReason::Slow,
            frame_bytes,
            metadata: 0,
            tunnel_id: 0,
        };
        b.agent.notice(notice, &frame(ttl), 1_000_000 * b.now_ms);
        b.done()
    };
    let mut changed = frame(9);
    changed[5] = 9;
    let sent = |port, frame: &[u8]| {
        Other(Effect::Transmit { port: RulePort(port), queue: None, frame: frame.to_vec() })
    };
    let told = PacketIn {
        buffer: None,
        total_len: 42,
        reason: PacketInReason::Action,
        table: 0,
        cookie: 7,
        matching: Match::ANY.with(Field::InPort, 1_u16),
        // The whole packet, because nothing is buffered.
        data: changed.clone(),
    };
    let all = [sent(2, &frame(9)), sent(3, &changed), Said(1, 0, Message::PacketIn(told))];
    assert_eq!(slow(&mut b, 9, 42), all);
    assert_eq!(slow(&mut b, 9, 43), [], "a byte is missing");
    assert_eq!(b.agent.packets_cut(), 1);
    let stats = b.agent.flows().stats(&crate::flow::FlowFilter::EVERYTHING, 0);
    assert_eq!(stats[0].packets, 1);
}

/// User space cannot give a packet to a worker. It does what the path defines for packets that no worker can
/// take.
#[test]
fn packets_left_by_a_path_are_dropped_or_routed_as_it_defines() {
    let mut b = bench(settings());
    let path = |name: &str, drops| PathInfo { path: PathPort { name: name.into(), drops }, has_worker: true };
    b.agent.set_paths(super::paths::numbered([path("up", false), path("drop", true)]));
    b.open(1, OpenFlow13);
    let left = |b: &mut Bench| {
        let notice = Notice {
            rule: 0,
            port: RulePort(1),
            reason: NoticeReason::Slow,
            frame_bytes: 42,
            metadata: 0,
            tunnel_id: 0,
        };
        b.agent.notice(notice, &frame(9), 1_000_000 * b.now_ms);
        b.done()
    };
    for (rule, expected) in [
        (
            "in_port=1,actions=output:65024",
            vec![Other(Effect::Normal { in_port: RulePort(1), frame: frame(9) })],
        ),
        ("in_port=1,actions=output:65025", vec![]),
    ] {
        b.say(1, 0, &add(rule));
        assert_eq!(left(&mut b), expected, "{rule}");
    }
    // The path does not exist any more, so the packet is dropped.
    b.agent.set_paths(super::paths::numbered([path("up", false)]));
    b.done();
    assert_eq!(left(&mut b), []);
}

fn packet_out(in_port: RulePort, actions: &str, data: &[u8]) -> Message {
    let actions = parse_actions(actions).unwrap();
    Message::PacketOut(PacketOut { buffer: None, in_port, actions, data: data.to_vec() })
}

#[test]
fn packets_of_a_controller_go_where_it_says() {
    let mut b = bench(settings());
    b.open(1, OpenFlow13);
    b.say(1, 0, &add("in_port=2,actions=output:3"));
    let data = frame(9);
    let sent = |port| Other(Effect::Transmit { port: RulePort(port), queue: None, frame: data.clone() });
    let frame = data.clone();
    let normal = |in_port| Other(Effect::Normal { in_port, frame: frame.clone() });
    for (in_port, actions, expected) in [
        (RulePort::CONTROLLER, "output:2", vec![sent(2)]),
        (RulePort::NONE, "output:2,output:1", vec![sent(2), sent(1)]),
        (RulePort(2), "output:2", vec![]),
        (RulePort(2), "in_port", vec![sent(2)]),
        (RulePort(2), "flood", vec![sent(1), sent(3)]),
        (RulePort::CONTROLLER, "all", vec![sent(1), sent(2), sent(3)]),
        (RulePort(2), "output:TABLE", vec![sent(3)]),
        (RulePort(3), "output:TABLE", vec![normal(RulePort(3))]),
        (RulePort(3), "normal", vec![normal(RulePort(3))]),
        (RulePort(3), "local", vec![Other(Effect::Local { in_port: RulePort(3), frame: frame.clone() })]),
        (RulePort(3), "drop", vec![]),
    ] {
        b.say(1, 0, &packet_out(in_port, actions, &data));
        assert_eq!(b.done(), expected, "{in_port} {actions}");
    }
    b.say(1, 0, &packet_out(RulePort::CONTROLLER, "controller", &data));
    let did = b.done();
    assert!(
        matches!(&did[..], [Said(1, 0, Message::PacketIn(p))]
            if p.data == data && p.cookie == u64::MAX && p.reason == PacketInReason::Action),
        "{did:?}"
    );
    let no_fwd = PortMod {
        port: RulePort(2),
        mac: port(2).mac,
        config: PortConfig(PortConfig::NO_FWD),
        mask: PortConfig(PortConfig::NO_FWD),
        advertise: PortFeatures(0),
    };
    b.say(1, 0, &Message::PortMod(no_fwd));
    b.say(1, 0, &packet_out(RulePort::CONTROLLER, "output:2,output:3", &data));
    assert_eq!(b.done(), [sent(3)]);
}

#[test]
fn packets_that_cannot_be_sent_are_refused() {
    let buffered = |buffer| {
        Message::PacketOut(PacketOut {
            buffer: Some(buffer),
            in_port: RulePort::NONE,
            actions: vec![],
            data: vec![],
        })
    };
    for (version, message, kind, code) in [
        (OpenFlow10, buffered(5), 1, 8),
        (OpenFlow13, buffered(5), 1, 8),
        (OpenFlow10, packet_out(RulePort(4), "output:2", &frame(9)), 1, 5),
        (OpenFlow13, packet_out(RulePort(4), "output:2", &frame(9)), 1, 11),
        (OpenFlow13, packet_out(RulePort::FLOOD, "output:2", &frame(9)), 1, 11),
        (OpenFlow13, packet_out(RulePort(65024), "output:2", &frame(9)), 1, 11),
        (OpenFlow10, packet_out(RulePort::NONE, "output:4", &frame(9)), 2, 4),
        (OpenFlow13, packet_out(RulePort::NONE, "output:4", &frame(9)), 2, 4),
        (OpenFlow13, packet_out(RulePort::NONE, "group:4", &frame(9)), 2, 9),
        (OpenFlow10, packet_out(RulePort::NONE, "output:2", &frame(9)[..13]), 1, 6),
        (OpenFlow13, packet_out(RulePort::NONE, "output:2", &[]), 1, 6),
    ] {
        let mut b = bench(settings());
        b.open(1, version);
        b.say(1, 3, &message);
        let answer = error(kind, code, &encoded(version, 3, &message));
        assert_eq!(b.done(), [Said(1, 3, answer)], "{message:?}");
    }
}
