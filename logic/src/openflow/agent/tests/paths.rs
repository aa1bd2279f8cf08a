//! Paths of the user plane as logical ports (OpenFlow 1.3.5 section 4.4).

use super::*;
use crate::{
    flow::table::PathPort,
    openflow::message::{Features, PacketOut, PortDescription, PortFeatures, PortMod, PortReason, PortState},
};

const FIRST: RulePort = RulePort(65024);
const SECOND: RulePort = RulePort(65025);

fn path(name: &str, has_worker: bool) -> PathInfo {
    PathInfo { path: PathPort { name: name.into(), drops: false }, has_worker }
}

/// Paths with the numbers 0, 1 and so on.
pub(super) fn numbered<const N: usize>(paths: [PathInfo; N]) -> BTreeMap<u16, PathInfo> {
    (0..).zip(paths).collect()
}

/// The description on the wire. 1.0 has no state "live", and 1.3 no setting NO_FLOOD.
fn described(version: Version, port: RulePort, name: &str, has_worker: bool) -> PortDescription {
    let is_10 = version == OpenFlow10;
    let none = PortFeatures(0);
    PortDescription {
        port,
        mac: Mac([0; 6]),
        name: name.into(),
        config: PortConfig(if is_10 { PortConfig::NO_FLOOD } else { 0 }),
        state: PortState { link_down: !has_worker, live: has_worker && !is_10, ..PortState::default() },
        current: none,
        advertised: none,
        supported: none,
        peer: none,
        current_speed: 0,
        max_speed: 0,
    }
}

/// The ports that a controller can list.
fn ports_of(b: &mut Bench, version: Version) -> Vec<PortDescription> {
    let ask = Message::StatsRequest(StatsRequest::PortDescription);
    b.say(1, 3, if version == OpenFlow10 { &Message::FeaturesRequest } else { &ask });
    match &b.done()[..] {
        [Said(1, 3, Message::FeaturesReply(Features { ports: Some(ports), .. }))] => ports.clone(),
        [Said(1, 3, Message::StatsReply { reply: StatsReply::PortDescription(ports), .. })] => ports.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn paths_are_listed_as_ports_and_controllers_get_their_changes() {
    for version in [OpenFlow10, OpenFlow13] {
        let mut b = bench(settings());
        b.open(1, version);
        let real = ports_of(&mut b, version);
        assert_eq!(real.len(), 3);
        let status =
            |reason, port: &PortDescription| Said(1, 0, Message::PortStatus { reason, port: port.clone() });
        // Names have room for 15 bytes.
        let a = |has_worker| described(version, FIRST, "path:a", has_worker);
        let long = |has_worker| described(version, SECOND, "path:0123456789", has_worker);
        b.agent.set_paths(numbered([path("a", false), path("0123456789abc", true)]));
        assert_eq!(b.done(), [status(PortReason::Add, &a(false)), status(PortReason::Add, &long(true))]);
        let all = [&real[..], &[a(false), long(true)]].concat();
        assert_eq!(ports_of(&mut b, version), all);
        // Nothing changed. What happens to packets that a path leaves does not change its port either.
        for drops in [false, true] {
            let (mut a, other) = (path("a", false), path("0123456789abc", true));
            a.path.drops = drops;
            b.agent.set_paths(numbered([a, other]));
            assert_eq!(b.done(), []);
        }
        b.agent.set_paths(numbered([path("a", true), path("0123456789abc", false)]));
        let told = [status(PortReason::Modify, &a(true)), status(PortReason::Modify, &long(false))];
        assert_eq!(b.done(), told);
        // Changes of real ports do not affect paths.
        b.agent.set_ports((1..=2).map(port).collect());
        assert_eq!(b.done(), [status(PortReason::Delete, &real[2])]);
        b.agent.set_paths(numbered([path("b", true)]));
        let other = described(version, FIRST, "path:b", true);
        assert_eq!(b.done(), [status(PortReason::Add, &other), status(PortReason::Delete, &long(false))]);
        assert_eq!(ports_of(&mut b, version), [&real[..2], std::slice::from_ref(&other)].concat());
        // A path keeps its number when one before it goes.
        let second = described(version, SECOND, "path:c", true);
        b.agent.set_paths(numbered([path("b", true), path("c", true)]));
        assert_eq!(b.done(), [status(PortReason::Add, &second)]);
        b.agent.set_paths([(1, path("c", true))].into());
        assert_eq!(b.done(), [status(PortReason::Delete, &other)]);
        assert_eq!(ports_of(&mut b, version), [&real[..2], &[second]].concat());
    }
}

#[test]
fn a_path_has_no_settings_and_no_packet_out_goes_to_it() {
    let port_mod = |mac: [u8; 6], config, mask, advertise| {
        let (config, mask, advertise) = (PortConfig(config), PortConfig(mask), PortFeatures(advertise));
        Message::PortMod(PortMod { port: FIRST, mac: Mac(mac), config, mask, advertise })
    };
    let packet_out = |in_port, to: RulePort| {
        let (actions, data) = (vec![Action::output(to)], vec![7; 60]);
        Message::PacketOut(PacketOut { buffer: None, in_port, actions, data })
    };
    let answers = |version, message: &Message, expected: Option<(u16, u16)>| {
        let mut b = bench(settings());
        b.agent.set_paths(numbered([path("a", true)]));
        b.open(1, version);
        b.say(1, 3, message);
        let encoded = encoded(version, 3, message);
        let answer = expected.map(|(kind, code)| Said(1, 3, error(kind, code, &encoded)));
        assert_eq!(b.done(), Vec::from_iter(answer), "{version:?} {message:?}");
    };
    let (down, no_flood) = (PortConfig::DOWN, PortConfig::NO_FLOOD);
    for (message, of_10, of_13) in [
        (port_mod([0; 6], 0, 0, 0), None, None),
        (port_mod([0; 6], 0, down, 0), None, None),
        (port_mod([0; 6], down, down, 0), Some((1, 5)), Some((7, 2))),
        (port_mod([2; 6], 0, 0, 0), Some((4, 1)), Some((7, 1))),
        (port_mod([0; 6], 0, 0, 1 << 6), Some((1, 5)), Some((7, 3))),
        (packet_out(RulePort::NONE, FIRST), Some((2, 4)), Some((2, 4))),
        (packet_out(FIRST, RulePort(2)), Some((1, 5)), Some((1, 11))),
    ] {
        for (version, expected) in [(OpenFlow10, of_10), (OpenFlow13, of_13)] {
            answers(version, &message, expected);
        }
    }
    // In 1.0 the setting NO_FLOOD is fixed for paths, because ALL and FLOOD leave them out.
    answers(OpenFlow10, &port_mod([0; 6], no_flood, no_flood, 0), None);
    answers(OpenFlow10, &port_mod([0; 6], 0, no_flood, 0), Some((1, 5)));
    // No packet-out by ALL or FLOOD goes there either.
    let mut b = bench(settings());
    b.agent.set_paths(numbered([path("a", true)]));
    b.open(1, OpenFlow13);
    for to in [RulePort::ALL, RulePort::FLOOD] {
        b.say(1, 3, &packet_out(RulePort(1), to));
        let sent = b.done().into_iter().map(|did| match did {
            Other(Effect::Transmit { port, .. }) => port.0,
            other => panic!("{other:?}"),
        });
        assert_eq!(Vec::from_iter(sent), [2, 3]);
    }
}

#[test]
fn port_statistics_include_the_packets_of_paths() {
    for version in [OpenFlow10, OpenFlow13] {
        let mut b = bench(settings());
        b.agent.set_paths(numbered([path("a", true)]));
        b.open(1, version);
        for (port, wanted) in [(FIRST, vec![65024]), (RulePort::NONE, vec![1, 2, 3, 65024])] {
            b.say(1, 3, &Message::StatsRequest(StatsRequest::Port(port)));
            let reply = StatsReply::Port(wanted.into_iter().map(port_stats).collect());
            assert_eq!(b.done(), [Said(1, 3, Message::StatsReply { reply, more: false })]);
        }
        b.say(1, 3, &Message::StatsRequest(StatsRequest::Queue { port: FIRST, queue: None }));
        let reply = StatsReply::Queue(vec![]);
        assert_eq!(b.done(), [Said(1, 3, Message::StatsReply { reply, more: false })]);
        // There is no second path.
        for of_second in [StatsRequest::Port(SECOND), StatsRequest::Queue { port: SECOND, queue: None }] {
            b.say(1, 3, &Message::StatsRequest(of_second));
            assert!(matches!(&b.done()[..], [Said(1, 3, Message::Error(_))]));
        }
        b.say(1, 3, &Message::QueueConfigRequest { port: FIRST });
        let none = Message::QueueConfigReply { port: FIRST, queues: vec![] };
        assert_eq!(b.done(), [Said(1, 3, none)]);
    }
}
