//! The kernel plane's flow rules against the references in `logic`: the real program, by BPF_PROG_TEST_RUN, on random
//! frames, rules and actions.

mod choices;
#[path = "../common/mod.rs"]
mod common;
mod cores;
mod frames;
mod groups;
mod instructions;
mod meters;
mod notices;
mod patches;
mod ports;
mod splits;
mod world;

use common::in_new_namespace;
use fastrand::Rng;
use logic::flow::{
    Action, FcfPlace, Field, FlowCommand, Instructions, Key, Match, PacketInReason, RulePort, Vxlan,
    execute::{Context, Packet, execute},
    field::{FIELDS, ether_type},
    kernel,
    packet::{Fragment, Headers, VXLAN_PORT},
};
use logic::reason::Reason;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use world::{FlowWorld, XDP_DROP, XDP_REDIRECT};

/// One seed for all machines, so that a failure can be repeated.
fn rng(test: u64) -> Rng {
    Rng::with_seed(0x6d69_6c6c + test)
}

/// How many times slower an emulated machine (`make test-vm`) is than a real one.
fn slower() -> u32 {
    if common::is_emulated() { 20 } else { 1 }
}

/// As many rounds as take the same time everywhere. The emulated machine shows whether another kernel runs
/// the program.
fn rounds(whole: usize) -> usize {
    whole / slower() as usize
}

/// The least count that a test demands. Counts vary more in fewer rounds, so the emulated machine needs a hundredth.
fn enough(whole: usize) -> usize {
    if common::is_emulated() { whole / 100 } else { whole }
}

/// Moves this thread to another CPU, if there is one.
fn leave_this_cpu() {
    let here = rustix::thread::sched_getcpu();
    let mut others = rustix::thread::CpuSet::new();
    (0..64).filter(|cpu| *cpu != here).for_each(|cpu| others.set(cpu));
    let _ = rustix::thread::sched_setaffinity(None, &others);
}

/// A match on every bit, so that the program reads all fields.
fn everything() -> Match {
    Match::new(&Key([0xff; Key::BYTES]), &Key([0xff; Key::BYTES]))
}

#[test]
#[ignore = "needs root"]
fn the_program_sees_the_fields_that_the_reference_sees() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        w.change(FlowCommand::Add, 0, 1, everything(), Instructions::default());
        w.finish();
        let mut rng = rng(1);
        let mut seen = BTreeMap::new();
        let rounds = rounds(40_000);
        for round in 0..rounds {
            let frame = frames::frame(&mut rng);
            let ours = Key::of(&frame, RulePort(1), VXLAN_PORT);
            w.run(0, &frame);
            assert_eq!(w.last().key, ours, "frame {round}: {}", hex(&frame));
            for s in FIELDS.iter().filter(|s| ours.get(s.field) != 0) {
                *seen.entry(s.name).or_insert(0) += 1;
            }
        }
        let rare: Vec<_> = FIELDS
            .iter()
            .filter(|s| seen.get(s.name).is_none_or(|n| *n * 2000 < rounds))
            .map(|s| s.name)
            .collect();
        assert_eq!(
            rare,
            ["metadata", "tunnel_id"],
            "fields that few frames have; those expected belong to the pipeline"
        );
    });
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Any action that needs no port besides the four.
fn action(rng: &mut Rng) -> Action {
    let address = |rng: &mut Rng| u128::from(0x0a00_0000 | u32::from(rng.u8(0..4)));
    match rng.u8(0..25) {
        0 => Action::set(Field::EthDst, u128::from(rng.u64(..)) & 0xffff_ffff_ffff),
        1 => Action::set(Field::EthSrc, u128::from(rng.u64(..)) & 0xffff_ffff_ffff),
        2 => Action::set(Field::Ipv4Src, address(rng)),
        3 => Action::set(Field::Ipv4Dst, address(rng)),
        4 => Action::set(Field::Ipv6Src, rng.u128(..)),
        5 => Action::set(Field::Ipv6Dst, rng.u128(..)),
        6 => Action::set(Field::IpDscp, rng.u8(0..64)),
        7 => {
            let mask = rng.u8(1..4).into();
            Action::SetField { field: Field::IpEcn, value: mask, mask }
        }
        8 => Action::set(Field::TcpSrc, rng.u16(..)),
        9 => Action::set(Field::UdpDst, rng.u16(..)),
        10 => Action::SetTpSrc(rng.u16(..)),
        11 => Action::SetTpDst(rng.u16(..)),
        12 => Action::SetVlanVid(rng.u16(0..4096)),
        13 => Action::SetVlanPcp(rng.u8(0..8)),
        14 => Action::PushVlan(if rng.bool() { ether_type::VLAN } else { ether_type::SERVICE_VLAN }),
        15 => Action::PopVlan,
        16 => Action::DecTtl,
        17 => Action::SetTtl(rng.u8(..)),
        24 => Action::set(Field::TunnelId, rng.u64(0..4)),
        20 => Action::DecapVxlan,
        21 => Action::EncapVxlan(tunnel(rng)),
        22 => Action::SetFcf { place: FcfPlace::Tos, workload: rng.u16(0..32), priority: rng.bool() },
        23 => Action::SetFcf { place: FcfPlace::Vlan, workload: rng.u16(0..4096), priority: rng.bool() },
        18 => Action::SetField { field: Field::VlanVid, value: 0x1005, mask: Field::VlanVid.all_bits() },
        _ => Action::SetField { field: Field::VlanPcp, value: 6, mask: 7 },
    }
}

/// The tables refuse tunnels in an action set.
fn is_tunnel(action: &Action) -> bool {
    matches!(action, Action::EncapVxlan(_) | Action::DecapVxlan)
}

fn tunnel(rng: &mut Rng) -> Vxlan {
    Vxlan {
        vni: rng.u32(0..1 << 24),
        source: rng.u32(..).into(),
        destination: rng.u32(..).into(),
        eth_source: rng.u64(..).to_le_bytes()[..6].try_into().unwrap(),
        eth_destination: rng.u64(..).to_le_bytes()[..6].try_into().unwrap(),
        udp_port: if rng.bool() { VXLAN_PORT } else { rng.u16(..) },
    }
}

fn output(rng: &mut Rng) -> Action {
    let ports = [
        RulePort(1),
        RulePort(2),
        RulePort(3),
        RulePort(4),
        RulePort::IN_PORT,
        RulePort::LOCAL,
        RulePort::FLOOD,
        RulePort::ALL,
        RulePort::CONTROLLER,
        RulePort::NORMAL,
    ];
    Action::output(ports[rng.usize(0..ports.len())])
}

/// Counts of packets, to check that enough of each kind were tried.
#[derive(Debug, Default)]
struct Tried {
    fast: usize,
    slow: usize,
    matched: usize,
    /// Packets that rules of several tables decided; `fast_chains` are those of them that the kernel plane
    /// handled.
    chains: usize,
    fast_chains: usize,
    several_ports: usize,
    ended_early: usize,
}

/// Sends a packet `times` times: the first is looked up, the second looked up and cached, the third cached.
/// Asserts that its way, its bytes and the rules that count it are as the pipeline says. For a packet that
/// goes to user space, asserts that nothing was counted or changed.
fn compare(w: &mut FlowWorld, in_port: RulePort, frame: &[u8], times: u64, tried: &mut Tried, at: &str) {
    let done = w.reference(in_port, frame);
    let outputs: Vec<_> = done.outputs.iter().filter(|output| output.port != RulePort::CONTROLLER).collect();
    let ports: BTreeSet<RulePort> = outputs.iter().map(|output| output.port).collect();
    let at = || format!("{at}: {:?} {ports:?} {}", done.rows, hex(frame));
    tried.matched += usize::from(done.rows.iter().any(|row| kernel::rule_of(*row).is_some()));
    tried.chains += usize::from(done.rows.len() > 1);
    let (before, total, slow, mut fast) = (w.counted(&done.rows), w.total(), w.slow(), 0);
    for time in 0..times {
        let (hits, _) = w.flows.maps().cache_use();
        let result = w.run(usize::from(in_port.0 - 1), frame);
        if w.last().verdict == u16::from(kernel::verdict::SLOW) {
            assert!(
                result.action == XDP_DROP && result.frame == frame,
                "changed for user space, time {time}, {}",
                at()
            );
            continue;
        }
        fast += 1;
        let (sent_to, action) = w.sent_to(in_port);
        assert!(
            action.is_none_or(|action| action == result.action),
            "action {}, not {action:?}: {}",
            result.action,
            at()
        );
        assert_eq!(sent_to.len(), outputs.len(), "{}", at());
        assert_eq!(sent_to.into_iter().collect::<BTreeSet<_>>(), ports, "{}", at());
        for output in outputs.iter().filter(|output| output.port != RulePort::NORMAL) {
            assert!(output.frame == result.frame, "{}: it left as {}", at(), hex(&result.frame));
        }
        let cached = done.rows.len() <= kernel::FRONT && time == 2;
        assert!(!cached || w.flows.maps().cache_use().0 == hits + 1, "the cache was not used: {}", at());
    }
    for (before, after) in before.iter().zip(w.counted(&done.rows)) {
        let since = after.since(*before);
        assert_eq!((since.packets, since.bytes), (fast, fast * frame.len() as u64), "{}", at());
    }
    assert_eq!(w.total() - total, fast * done.rows.len() as u64, "other rules counted the packet: {}", at());
    assert_eq!(w.slow() - slow, times - fast, "{}", at());
    tried.slow += (times - fast) as usize;
    tried.fast += fast as usize;
    if fast > 0 {
        tried.fast_chains += usize::from(done.rows.len() > 1);
        tried.several_ports += usize::from(outputs.len() > 1);
        tried.ended_early += usize::from(done.outputs.iter().any(|o| o.reason == PacketInReason::InvalidTtl));
    }
}

#[test]
#[ignore = "needs root"]
fn the_program_does_to_a_packet_what_the_reference_does() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let mut rng = rng(2);
        let mut tried = Tried::default();
        for round in 0..rounds(1500) {
            let mut actions: Vec<Action> = (0..rng.usize(0..5)).map(|_| action(&mut rng)).collect();
            actions.push(output(&mut rng));
            if rng.u8(0..4) == 0 {
                actions.push(if rng.bool() { action(&mut rng) } else { output(&mut rng) });
            }
            let at = format!("round {round}: {actions:?}");
            w.change(FlowCommand::Add, 0, 1, Match::ANY, Instructions::apply(actions));
            w.finish();
            for _ in 0..20 {
                compare(&mut w, RulePort(1 + rng.u16(0..2)), &frames::frame(&mut rng), 1, &mut tried, &at);
            }
        }
        assert!(tried.fast > rounds(10_000) && tried.slow > rounds(1_000), "too few of a kind: {tried:?}");
        assert!(
            tried.several_ports > rounds(1_000) && tried.ended_early > rounds(200),
            "too few of a kind: {tried:?}"
        );
    });
}

/// A match that some of the frames meet.
fn matching(rng: &mut Rng) -> Match {
    let key = Key::of(&frames::frame(rng), RulePort(1 + rng.u16(0..2)), VXLAN_PORT);
    let mut m = Match::ANY;
    for s in FIELDS.iter().filter(|s| key.get(s.field) != 0) {
        if rng.u8(0..4) == 0 {
            let mask = if s.maskable && rng.bool() {
                s.field.all_bits() << 2 & s.field.all_bits()
            } else {
                s.field.all_bits()
            };
            m.set(s.field, key.get(s.field), mask);
        }
    }
    m
}

/// The instructions of a rule of this table. Most can be handled by the kernel plane; some are of any kind.
fn instructions(rng: &mut Rng, table: u8) -> Instructions {
    // Actions whose effect later tables see without looking at the packet again.
    let seen = |rng: &mut Rng| match rng.u8(0..9) {
        7 => Action::set(Field::TunnelId, rng.u64(0..4)),
        0 => Action::set(Field::EthSrc, 0x0200_0000_0100 | u128::from(rng.u8(0..3))),
        1 => Action::set(Field::EthDst, 0x0200_0000_0000 | u128::from(rng.u8(0..3))),
        2 => Action::set(Field::Ipv4Dst, u128::from(0x0a00_0100 | u32::from(rng.u8(0..3)))),
        3 => Action::set(Field::UdpDst, [1, 2, VXLAN_PORT][rng.usize(0..3)]),
        4 => Action::set(Field::TcpSrc, rng.u16(0..3)),
        5 => Action::DecTtl,
        6 => Action::PushVlan(ether_type::VLAN),
        _ => action(rng),
    };
    let mut does = Instructions::default();
    let goes_on = table < LAST_TABLE && rng.u8(0..3) != 0;
    does.apply = (0..rng.usize(0..3)).map(|_| if goes_on { seen(rng) } else { action(rng) }).collect();
    if !goes_on && rng.bool() || rng.u8(0..10) == 0 {
        does.apply.push(output(rng));
    }
    if rng.u8(0..3) == 0 {
        does.write = (0..rng.usize(0..3)).map(|_| action(rng)).filter(|a| !is_tunnel(a)).collect();
        does.write.extend((rng.u8(0..3) != 0).then(|| output(rng)));
    }
    does.clear = rng.u8(0..6) == 0;
    if goes_on {
        does.goto_table = Some(rng.u8(table + 1..=LAST_TABLE));
        does.metadata = rng.bool().then(|| (rng.u64(0..4), 7));
    }
    does
}

const LAST_TABLE: u8 = 4;

#[test]
#[ignore = "needs root"]
fn packets_take_the_rules_that_the_tables_say_cached_or_not() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let mut rng = rng(3);
        let mut masks: Vec<Match> = (0..24).map(|_| matching(&mut rng)).collect();
        masks.push(Match::ANY);
        masks.push(Match::ANY.with(Field::Metadata, 0_u8));
        masks.push(Match::ANY.with(Field::TunnelId, 0_u8));
        let mut tried = Tried::default();
        for round in 0..rounds(400) {
            for _ in 0..rng.usize(1..8) {
                let shape = masks[rng.usize(0..masks.len())];
                let mut key = Key::of(&frames::frame(&mut rng), RulePort(1 + rng.u16(0..2)), VXLAN_PORT);
                key.set(Field::Metadata, rng.u8(0..4).into());
                key.set(Field::TunnelId, rng.u8(0..4).into());
                let (table, priority) = (rng.u8(0..=LAST_TABLE), rng.u16(1..5));
                let m = Match::new(&key, shape.mask());
                if rng.u8(0..3) == 0 {
                    let delete = FlowCommand::Delete { strict: false };
                    w.change(delete, table, priority, m, Instructions::default());
                    continue;
                }
                w.change(FlowCommand::Add, table, priority, m, instructions(&mut rng, table));
            }
            w.finish();
            for _ in 0..24 {
                let (port, frame) = (RulePort(1 + rng.u16(0..2)), frames::frame(&mut rng));
                compare(&mut w, port, &frame, 3, &mut tried, &format!("round {round}"));
            }
        }
        assert!(
            tried.matched > enough(2_000) && tried.chains > enough(1_000),
            "too few of a kind: {tried:?}"
        );
        assert!(
            tried.fast_chains > enough(1_000) && tried.fast > enough(10_000),
            "too few of a kind: {tried:?}"
        );
    });
}

#[test]
#[ignore = "needs root"]
fn later_tables_see_a_frame_inside_that_comes_or_goes_with_the_port() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let mut rng = rng(4);
        let mut tried = Tried::default();
        let udp = Match::ANY.with(Field::EthType, ether_type::IPV4).with(Field::IpProto, 17_u8);
        for (port, rewritten) in [(VXLAN_PORT, 1), (1, VXLAN_PORT), (VXLAN_PORT, VXLAN_PORT), (1, 2)] {
            let mut does = Instructions::apply([Action::set(Field::UdpDst, rewritten)]);
            does.goto_table = Some(1);
            w.change(FlowCommand::Add, 0, 1, udp, does);
            for (priority, matching, to) in [(1, Match::ANY, 2), (2, udp.with(Field::VxlanVni, 1_u32), 3)] {
                let does = Instructions::apply([Action::output(RulePort(to))]);
                w.change(FlowCommand::Add, 1, priority, matching, does);
            }
            w.finish();
            let before = tried.slow;
            let mut frames = std::iter::repeat_with(|| frames::frame(&mut rng));
            let tunnel = |frame: &Vec<u8>| Key::of(frame, RulePort(1), VXLAN_PORT).get(Field::VxlanVni) == 1;
            for _ in 0..10 {
                let mut frame = frames.find(tunnel).unwrap();
                let headers = Headers::of(&frame, 0, None).unwrap();
                let at = headers.transport.unwrap() + 2;
                frame[at..at + 2].copy_from_slice(&port.to_be_bytes());
                compare(&mut w, RulePort(1), &frame, 3, &mut tried, &format!("{port} to {rewritten}"));
            }
            let changes = (port == VXLAN_PORT) != (rewritten == VXLAN_PORT);
            assert_eq!(tried.slow - before, if changes { 30 } else { 0 }, "{port} to {rewritten}");
        }
    });
}

#[test]
#[ignore = "needs root"]
fn past_the_deadline_rules_still_drop_and_other_packets_go_to_the_kernel() {
    const XDP_PASS: u32 = 2;
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let kind = |kind: u16| Match::ANY.with(Field::EthType, kind);
        w.change(FlowCommand::Add, 0, 1, Match::ANY, Instructions::apply([Action::output(RulePort(3))]));
        w.change(FlowCommand::Add, 0, 2, kind(0x88b5), Instructions::default());
        w.finish();
        let frame =
            |kind: u16| [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8], &kind.to_be_bytes()[..], &[0; 46]].concat();
        let (dropped, sent) = (frame(0x88b5), frame(0x88b6));
        // The rule is found by search, and then from the cache.
        for _ in 0..3 {
            w.plane.confirm_until(Duration::from_secs(1 << 32)).unwrap();
            assert_eq!(w.run(0, &dropped).action, XDP_DROP);
            assert_eq!(w.run(0, &sent).action, XDP_REDIRECT);
            w.plane.confirm_until(Duration::from_nanos(1)).unwrap();
            let (before, up) = (w.charged(Reason::RuleDrop), w.charged(Reason::Fallback));
            assert_eq!(w.run(0, &dropped).action, XDP_DROP);
            let passed = w.run(0, &sent);
            assert_eq!((passed.action, &passed.frame), (XDP_PASS, &sent));
            let after = (w.charged(Reason::RuleDrop), w.charged(Reason::Fallback));
            assert_eq!(after, (before + 1, up + 1));
        }
    });
}

#[test]
#[ignore = "needs root"]
fn fragments_are_dropped_while_a_controller_says_so() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let mut rng = rng(9);
        w.change(FlowCommand::Add, 0, 1, Match::ANY, Instructions::apply([Action::output(RulePort(3))]));
        let mut fragments = 0;
        for drop in [false, true, false] {
            w.control.rules.set_drop_fragments(drop);
            w.finish();
            for _ in 0..rounds(2000) {
                let frame = frames::frame(&mut rng);
                let is_fragment = |headers: Headers| headers.fragment != Fragment::Whole;
                let fragment = Headers::of(&frame, 0, None).is_some_and(is_fragment);
                let (told, slow) = (w.charged(Reason::RuleFragment), w.slow());
                let result = w.run(0, &frame);
                let dropped = w.charged(Reason::RuleFragment) - told;
                if w.slow() > slow {
                    continue;
                }
                let expected = if drop && fragment { (XDP_DROP, 1) } else { (XDP_REDIRECT, 0) };
                assert_eq!(
                    (result.action, dropped),
                    expected,
                    "(action, dropped) with drop_fragments {drop}: {}",
                    hex(&frame)
                );
                fragments += dropped as usize;
            }
        }
        assert!(fragments > rounds(50), "only {fragments} fragments were dropped");
    });
}

#[test]
#[ignore = "needs root"]
fn four_tunnels_fit_and_a_packet_without_room_is_dropped_and_counted() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let mut rng = rng(8);
        let outer = Action::EncapVxlan(Vxlan { udp_port: VXLAN_PORT, ..tunnel(&mut rng) });
        let push = Action::PushVlan(ether_type::VLAN);
        let frame = notices::udp_frame(64, 60);
        // 216 bytes are free before a frame.
        for (tags, fits) in [(0, true), (4, true), (5, false)] {
            let actions =
                [vec![outer.clone(); 4], vec![push.clone(); tags], vec![Action::output(RulePort(2))]]
                    .concat();
            w.change(FlowCommand::Add, 0, 1, Match::ANY, Instructions::apply(actions.clone()));
            w.finish();
            let told = w.charged(Reason::RuleNoRoom);
            let result = w.run(0, &frame);
            assert_eq!(result.action, if fits { XDP_REDIRECT } else { XDP_DROP }, "{tags} tags");
            assert_eq!(w.charged(Reason::RuleNoRoom) - told, u64::from(!fits), "{tags} tags");
            if fits {
                let sent = &w.reference(RulePort(1), &frame).outputs[0];
                assert_eq!(hex(&result.frame), hex(&sent.frame), "{tags} tags");
            }
        }
    });
}

#[test]
#[ignore = "needs root"]
fn a_frame_comes_out_of_a_tunnel_as_it_went_in() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let mut rng = rng(6);
        let outer = Vxlan { udp_port: VXLAN_PORT, ..tunnel(&mut rng) };
        let rule = |action| Instructions::apply([action, Action::output(RulePort(3))]);
        let port = |port: u32| Match::ANY.with(Field::InPort, port);
        w.change(FlowCommand::Add, 0, 1, port(1), rule(Action::EncapVxlan(outer)));
        w.change(FlowCommand::Add, 0, 1, port(2), rule(Action::DecapVxlan));
        w.finish();
        for round in 0..rounds(2000) {
            let frame = frames::frame(&mut rng);
            let inside = w.run(0, &frame);
            let mut packet = Packet::new(frame.clone(), RulePort(1));
            execute(&mut packet, &[Action::EncapVxlan(outer)], &Context::PLAIN, &mut Vec::new()).unwrap();
            assert_eq!(hex(&inside.frame), hex(&packet.frame), "round {round}: {}", hex(&frame));
            let padding = rng.usize(0..9);
            let out = w.run(1, &[inside.frame, vec![0; padding]].concat());
            assert_eq!((out.action, hex(&out.frame)), (XDP_REDIRECT, hex(&frame)), "round {round}");
        }
    });
}
