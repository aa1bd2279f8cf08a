use super::*;
use crate::{
    flow::{
        Group, GroupKind, GroupMod, Meter, MeterMod,
        rule::{MeterUnit, TABLES},
    },
    openflow::{
        EXPERIMENTER,
        message::{
            AsyncConfig, Config, Experimenter, FlowFilter, Fragments, PortFeatures, PortMod, PortReason,
        },
    },
};

/// The answer to a request.
#[allow(clippy::large_enum_variant, reason = "there are few of them")]
enum Answer {
    Nothing,
    Error(u16, u16),
    Is(Message),
}
use Answer::*;

fn stats(reply: StatsReply) -> Answer {
    Is(Message::StatsReply { reply, more: false })
}

fn ask(request: StatsRequest) -> Message {
    Message::StatsRequest(request)
}

/// Sends all requests at once. The answers come in the same order, each with the request's transaction id.
#[track_caller]
fn converse(b: &mut Bench, version: Version, requests: Vec<(Vec<u8>, Answer)>) {
    let (mut bytes, mut expected) = (Vec::new(), Vec::new());
    for (xid, (mut request, answer)) in (100..).zip(requests) {
        request[4..8].copy_from_slice(&u32::to_be_bytes(xid));
        match answer {
            Nothing => {}
            Error(kind, code) => expected.push((xid, error(kind, code, &request))),
            Is(message) => expected.push((xid, message)),
        }
        bytes.extend(request);
    }
    b.open(1, version);
    // In two pieces, cut inside a message.
    let (first, second) = bytes.split_at(bytes.len() / 2 - 3);
    b.bytes(1, first);
    let mut did = b.done();
    b.bytes(1, second);
    did.extend(b.done());
    let mut did = did.into_iter();
    for (xid, message) in expected {
        assert_eq!(did.next(), Some(Said(1, xid, message)));
    }
    assert_eq!(did.collect::<Vec<_>>(), []);
}

fn port_mod(port: u16, mac: u8, config: u32, advertise: u32) -> Message {
    Message::PortMod(PortMod {
        port: RulePort(port),
        mac: Mac([2, 0, 0, 0, 0, mac]),
        config: PortConfig(config),
        mask: PortConfig(config),
        advertise: PortFeatures(advertise),
    })
}

fn vendor(id: u32) -> Message {
    Message::Experimenter(Experimenter { id, subtype: 10, body: vec![0; 4] })
}

/// Requests that both versions have, with the errors of one version.
fn common(version: Version) -> Vec<(Message, Answer)> {
    let of_10 = version == OpenFlow10;
    let pick = |v10, v13| {
        let (kind, code) = if of_10 { v10 } else { v13 };
        Error(kind, code)
    };
    let config = |fragments, miss_send_len| Config { fragments, miss_send_len };
    let queue = |port, queue| ask(StatsRequest::Queue { port, queue });
    let queues = |port| Message::QueueConfigRequest { port };
    let buffered = FlowMod { buffer: Some(7), ..flow_mod(FlowCommand::Add, "in_port=1,actions=drop") };
    let removal = delete("in_port=3");
    vec![
        (Message::EchoRequest(vec![1, 2]), Is(Message::EchoReply(vec![1, 2]))),
        (vendor(0x2320), Error(1, 3)),
        (vendor(EXPERIMENTER), Error(1, 4)),
        (Message::BarrierRequest, Is(Message::BarrierReply)),
        (Message::BarrierReply, Error(1, 1)),
        (Message::Error(ErrorMessage { kind: 1, code: 1, data: vec![] }), Nothing),
        (Message::Hello { versions: None }, Nothing),
        (Message::GetConfigRequest, Is(Message::GetConfigReply(config(Fragments::Normal, 128)))),
        (Message::SetConfig(config(Fragments::Normal, 0xffff)), Nothing),
        (Message::SetConfig(config(Fragments::Reassemble, 1)), pick((1, 5), (10, 0))),
        (Message::GetConfigRequest, Is(Message::GetConfigReply(config(Fragments::Normal, 0xffff)))),
        (ask(StatsRequest::Description), stats(StatsReply::Description(settings().description))),
        (ask(StatsRequest::Port(RulePort(2))), stats(StatsReply::Port(vec![port_stats(2)]))),
        (ask(StatsRequest::Port(RulePort::NONE)), stats(StatsReply::Port((1..=3).map(port_stats).collect()))),
        (ask(StatsRequest::Port(RulePort(4))), pick((1, 5), (1, 11))),
        (queue(RulePort(2), None), stats(StatsReply::Queue(vec![]))),
        (queue(RulePort::ALL, None), stats(StatsReply::Queue(vec![]))),
        (queue(RulePort(2), Some(7)), pick((5, 1), (9, 1))),
        (queue(RulePort(4), None), pick((5, 0), (9, 0))),
        (queues(RulePort(2)), Is(Message::QueueConfigReply { port: RulePort(2), queues: vec![] })),
        (queues(RulePort(4)), pick((5, 0), (9, 0))),
        (Message::FlowMod(buffered), Error(1, 8)),
        (add("in_port=1,actions=output:4"), Error(2, 4)),
        (add("in_port=1,actions=output:2"), Nothing),
        (add("in_port=1,check_overlap,actions=output:2"), pick((3, 1), (5, 3))),
        (removal, Nothing),
        (
            ask(StatsRequest::Aggregate(FlowFilter::EVERYTHING)),
            stats(StatsReply::Aggregate { packets: 0, bytes: 0, flows: 1 }),
        ),
        (port_mod(4, 4, 0, 0), pick((4, 0), (7, 0))),
        (port_mod(2, 4, 0, 0), pick((4, 1), (7, 1))),
        (port_mod(2, 2, 0, 1 << 6), pick((1, 5), (7, 3))),
    ]
}

fn encode_all(version: Version, list: Vec<(Message, Answer)>) -> Vec<(Vec<u8>, Answer)> {
    list.into_iter().map(|(message, answer)| (encoded(version, 0, &message), answer)).collect()
}

#[test]
fn requests_of_1_0_are_answered_in_order() {
    let mut requests = encode_all(OpenFlow10, common(OpenFlow10));
    let queues = Message::QueueConfigRequest { port: RulePort::NONE };
    let filter = FlowFilter { table: Some(0xfe), ..FlowFilter::EVERYTHING };
    requests.extend(encode_all(
        OpenFlow10,
        vec![
            (port_mod(2, 2, PortConfig::NO_STP, 0), Error(1, 5)),
            (queues, Error(5, 0)),
            (ask(StatsRequest::Flow(filter)), stats(StatsReply::Flow(vec![]))),
        ],
    ));
    requests.extend([
        (raw(OpenFlow10, 22, 0, ""), Error(1, 1)),
        (raw(OpenFlow10, 16, 0, "0063 0000"), Error(1, 2)),
        (raw(OpenFlow10, 5, 0, "00"), Error(1, 6)),
        (raw(OpenFlow13, 5, 0, ""), Error(1, 0)),
        (raw(OpenFlow13, 1, 0, "0000 0000"), Nothing),
    ]);
    converse(&mut bench(settings()), OpenFlow10, requests);
}

#[test]
fn requests_of_1_3_are_answered_in_order() {
    let mut requests = encode_all(OpenFlow13, common(OpenFlow13));
    let group = Group { id: 5, kind: GroupKind::All, buckets: vec![] };
    let meter = Meter { id: 6, unit: MeterUnit::Pps, burst: false, stats: true, bands: vec![] };
    let all = |table| FlowFilter { table: Some(table), ..FlowFilter::EVERYTHING };
    let wants = AsyncConfig { packet_in: [3, 0], port_status: [7, 7], flow_removed: [31, 0] };
    let fewer = AsyncConfig { packet_in: [1, 2], ..wants };
    let queues = |port| Message::QueueConfigReply { port, queues: vec![] };
    requests.extend(encode_all(
        OpenFlow13,
        vec![
            (Message::QueueConfigRequest { port: RulePort::NONE }, Is(queues(RulePort::NONE))),
            (ask(StatsRequest::Flow(all(TABLES))), Error(1, 9)),
            (ask(StatsRequest::Aggregate(all(TABLES))), Error(1, 9)),
            (ask(StatsRequest::Flow(all(3))), stats(StatsReply::Flow(vec![]))),
            (Message::TableMod { table: Some(TABLES), config: 0 }, Error(8, 0)),
            (Message::TableMod { table: None, config: 3 }, Nothing),
            (Message::TableMod { table: Some(0), config: 4 }, Error(8, 1)),
            (ask(StatsRequest::Group(Some(5))), stats(StatsReply::Group(vec![]))),
            (Message::GroupMod(GroupMod::Add(group.clone())), Nothing),
            (Message::GroupMod(GroupMod::Add(group.clone())), Error(6, 0)),
            (ask(StatsRequest::GroupDescription), stats(StatsReply::GroupDescription(vec![group]))),
            (ask(StatsRequest::MeterConfig(Some(6))), Error(12, 3)),
            (Message::MeterMod(MeterMod::Add(meter.clone())), Nothing),
            (Message::MeterMod(MeterMod::Add(meter.clone())), Error(12, 1)),
            (ask(StatsRequest::MeterConfig(None)), stats(StatsReply::MeterConfig(vec![meter]))),
            (Message::GetAsyncRequest, Is(Message::GetAsyncReply(wants))),
            (Message::SetAsync(fewer), Nothing),
            (Message::GetAsyncRequest, Is(Message::GetAsyncReply(fewer))),
        ],
    ));
    let no_flood = "00000002 00000000 020000000002 0000 00000010 00000010 00000000 00000000";
    requests.extend([
        (raw(OpenFlow13, 30, 0, ""), Error(1, 1)),
        (raw(OpenFlow13, 18, 0, "0063 0000 00000000"), Error(1, 2)),
        (raw(OpenFlow13, 18, 0, "000c 0000 00000000 00"), Error(13, 5)),
        (raw(OpenFlow13, 16, 0, no_flood), Error(7, 2)),
        (raw(OpenFlow13, 5, 0, "00"), Error(1, 6)),
        (raw(OpenFlow10, 5, 0, ""), Error(1, 0)),
        (raw(OpenFlow10, 1, 0, "0000 0000"), Nothing),
    ]);
    let mut b = bench(settings());
    converse(&mut b, OpenFlow13, requests);
}

#[test]
fn features_are_those_of_the_version() {
    let mut b = bench(settings());
    b.open(1, OpenFlow10);
    b.open(2, OpenFlow13);
    b.say(1, 1, &Message::FeaturesRequest);
    b.say(2, 2, &Message::FeaturesRequest);
    let did = b.done();
    let [Said(1, 1, Message::FeaturesReply(old)), Said(2, 2, Message::FeaturesReply(new))] = &did[..] else {
        panic!("{did:?}")
    };
    assert_eq!((old.datapath_id, old.buffers, old.tables, old.capabilities), (0x42, 0, TABLES, 0x87));
    assert_eq!(old.actions, Some(0xfff));
    let ports: Vec<_> = old.ports.iter().flatten().map(|p| (p.port, p.name.clone(), p.current.0)).collect();
    assert_eq!(ports, [1, 2, 3].map(|n| (RulePort(n), format!("p{n}").into_bytes(), 1 << 6)));
    assert_eq!((new.datapath_id, new.buffers, new.tables, new.capabilities), (0x42, 0, TABLES, 0xf));
    b.say(2, 3, &ask(StatsRequest::PortDescription));
    let did = b.done();
    let Said(2, 3, Message::StatsReply { reply: StatsReply::PortDescription(ports), .. }) = &did[0] else {
        panic!("{did:?}")
    };
    assert_eq!(ports.len(), 3);
    assert!(ports.iter().all(|p| p.state.live && p.current_speed == 10_000_000));
}

#[test]
fn table_features_list_what_tables_can_do() {
    let mut b = bench(settings());
    b.open(1, OpenFlow10);
    b.open(2, OpenFlow13);
    b.say(2, 0, &add("table=3,actions=drop"));
    for (n, request) in [
        (1, StatsRequest::Table),
        (2, StatsRequest::Table),
        (2, StatsRequest::TableFeatures { sets: false }),
        (2, StatsRequest::GroupFeatures),
        (2, StatsRequest::MeterFeatures),
    ] {
        b.say(n, n, &ask(request));
    }
    let mut tables = 0;
    for did in b.done() {
        let Said(_, _, Message::StatsReply { reply, more: false }) = did else { panic!("{did:?}") };
        match reply {
            StatsReply::Table(list) => {
                let active: Vec<_> = list.iter().map(|table| (table.table, table.active)).collect();
                assert_eq!(active, (0..TABLES).map(|t| (t, u32::from(t == 3))).collect::<Vec<_>>());
                tables += 1;
            }
            StatsReply::TableFeatures(list) => {
                let (first, last) = (&list[0], &list[usize::from(TABLES) - 1]);
                assert_eq!((first.instructions, last.instructions), (0x7e, 0x7c));
                assert_eq!(first.next_tables, (1..TABLES).collect::<Vec<_>>());
                assert_eq!((first.actions, &last.next_tables[..]), (0x3e6_0001, &[][..]));
            }
            StatsReply::GroupFeatures(f) => assert_eq!((f.types, f.max_groups), (0xf, [4096; 4])),
            StatsReply::MeterFeatures(f) => {
                assert_eq!((f.max_meters, f.band_types, f.max_bands), (4096, 2, 8))
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(tables, 2);
}

#[test]
fn statistics_leave_out_what_the_version_cannot_express() {
    let mut b = bench(settings());
    b.open(1, OpenFlow10);
    b.open(2, OpenFlow13);
    b.say(2, 0, &add("in_port=1,cookie=1,actions=output:2"));
    b.say(2, 0, &add("in_port=2,cookie=2,actions=goto_table:1"));
    b.say(2, 0, &add("table=1,in_port=3,cookie=3,actions=output:1"));
    for (n, seen, unsaid) in [(1, vec![1, 3], 1), (2, vec![1, 2, 3], 0)] {
        b.say(n, 9, &ask(StatsRequest::Flow(FlowFilter::EVERYTHING)));
        let did = b.done();
        let [Said(_, 9, Message::StatsReply { reply: StatsReply::Flow(flows), more: false })] = &did[..]
        else {
            panic!("{did:?}")
        };
        let mut cookies: Vec<u64> = flows.iter().map(|flow| flow.cookie).collect();
        cookies.sort_unstable();
        assert_eq!((cookies, b.report(n).unsaid), (seen, unsaid));
    }
}

#[test]
fn port_settings_are_kept_and_other_controllers_get_the_change() {
    let mut b = bench(settings());
    b.open(1, OpenFlow10);
    b.open(2, OpenFlow13);
    let quiet = PortConfig::NO_FLOOD | PortConfig::NO_PACKET_IN;
    b.say(1, 1, &port_mod(2, 2, quiet, 0));
    let told = |did: Vec<Did>| -> Vec<(u32, PortReason, RulePort, u32, bool)> {
        let of = |did| match did {
            Said(n, 0, Message::PortStatus { reason, port: p }) => {
                (n, reason, p.port, p.config.0, p.state.live)
            }
            other => panic!("{other:?}"),
        };
        did.into_iter().map(of).collect()
    };
    assert_eq!(told(b.done()), [(2, PortReason::Modify, RulePort(2), PortConfig::NO_PACKET_IN, true)]);
    let flags = PortFlags { no_flood: true, no_packet_in: true, ..PortFlags::default() };
    assert_eq!(
        (b.agent.port_flags(RulePort(2)), b.agent.port_flags(RulePort(1))),
        (flags, PortFlags::default())
    );
    b.say(1, 2, &port_mod(2, 2, quiet, 0));
    assert_eq!(b.done(), [], "nothing new");
    b.say(2, 3, &port_mod(2, 2, PortConfig::DOWN, 0));
    let mut did = b.done();
    assert_eq!(did.remove(0), Other(Effect::ConfigurePort { port: RulePort(2), up: false }));
    assert_eq!(told(did), [(1, PortReason::Modify, RulePort(2), quiet | PortConfig::DOWN, false)]);
    // The port as it is after that.
    let down = PortInfo { admin_up: false, ..port(2) };
    b.agent.set_ports(vec![port(1), down.clone(), port(3)]);
    assert_eq!(b.done(), []);
    // Another port takes the place of one that was removed.
    let other = PortInfo { name: "eth9".into(), ..down };
    b.agent.set_ports(vec![port(1), other]);
    let went: Vec<_> = told(b.done()).into_iter().filter(|told| told.0 == 2).collect();
    assert_eq!(
        went,
        [
            (2, PortReason::Delete, RulePort(3), 0, true),
            (2, PortReason::Add, RulePort(2), PortConfig::DOWN, false)
        ]
    );
    assert_eq!(b.agent.port_flags(RulePort(2)), PortFlags::default());
}
