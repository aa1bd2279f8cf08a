//! The kernel plane's flow rules against the references in `logic`: the real program, by BPF_PROG_TEST_RUN, on random
//! frames, rules and actions.

#[path = "../common/mod.rs"]
mod common;
mod frames;
mod world;

use common::in_new_namespace;
use fastrand::Rng;
use logic::flow::{
    Action, Field, FlowCommand, Instructions, Key, Match, Port,
    execute::{Context, Packet, Sent, execute},
    field::{FIELDS, ether_type},
    kernel,
    packet::VXLAN_PORT,
    program::{Verdict, compile},
};
use std::collections::BTreeMap;
use world::{FlowWorld, XDP_DROP, XDP_PASS, XDP_REDIRECT};

/// One seed for all machines, so that what fails can be repeated.
fn rng(test: u64) -> Rng {
    Rng::with_seed(0x6d69_6c6c + test)
}

/// An emulated machine (`make test-vm`) does a twentieth: it is there for what another kernel makes of the program.
fn rounds(whole: usize) -> usize {
    if std::env::var_os("MILLRACE_VM_NIC").is_some() { whole / 20 } else { whole }
}

/// A rule that looks at every bit there is: the program reads all fields.
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
            let ours = Key::of(&frame, Port(1), VXLAN_PORT);
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
        assert_eq!(rare, ["metadata"], "fields that the frames hardly have");
    });
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Any action that needs no other port than the four there are.
fn action(rng: &mut Rng) -> Action {
    let address = |rng: &mut Rng| u128::from(0x0a00_0000 | u32::from(rng.u8(0..4)));
    match rng.u8(0..20) {
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
        18 => Action::SetField { field: Field::VlanVid, value: 0x1005, mask: Field::VlanVid.all_bits() },
        _ => Action::SetField { field: Field::VlanPcp, value: 6, mask: 7 },
    }
}

fn output(rng: &mut Rng) -> Action {
    let ports = [Port(1), Port(2), Port(3), Port::IN_PORT, Port::LOCAL, Port::FLOOD, Port::CONTROLLER];
    Action::output(ports[rng.usize(0..ports.len())])
}

/// Where the packet went, in the words of the program.
fn place(sent: &Sent, in_port: Port) -> (Verdict, u32) {
    match sent.port {
        Port::IN_PORT => (Verdict::InPort, XDP_REDIRECT),
        Port::LOCAL => (Verdict::Local, XDP_PASS),
        Port::FLOOD => (Verdict::Broadcast(logic::flow::program::Ports::Flood), XDP_REDIRECT),
        port if port == in_port => (Verdict::Drop, XDP_DROP),
        port => (Verdict::Output(port), XDP_REDIRECT),
    }
}

#[test]
#[ignore = "needs root"]
fn the_program_does_to_a_packet_what_the_reference_does() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let mut rng = rng(2);
        let (mut fast, mut slow) = (0, 0);
        for round in 0..rounds(1500) {
            let mut actions: Vec<Action> = (0..rng.usize(0..5)).map(|_| action(&mut rng)).collect();
            actions.push(output(&mut rng));
            if rng.u8(0..4) == 0 {
                actions.push(if rng.bool() { action(&mut rng) } else { output(&mut rng) });
            }
            let does = Instructions::apply(actions.clone());
            let program = compile(&does, &|_| false);
            w.change(FlowCommand::Add, 0, 1, Match::ANY, does);
            w.finish();
            for _ in 0..20 {
                let frame = frames::frame(&mut rng);
                let at = format!("round {round}: {actions:?} on {}", hex(&frame));
                let before = w.slow();
                let result = w.run(0, &frame);
                if program.is_slow() {
                    slow += 1;
                    assert_eq!((result.action, w.slow() - before), (XDP_DROP, 1), "{at}");
                    assert_eq!(hex(&result.frame), hex(&frame), "{at}");
                    continue;
                }
                fast += 1;
                let mut packet = Packet::new(frame.clone(), Port(1));
                let mut sent = Vec::new();
                let _ = execute(&mut packet, &actions, &Context::PLAIN, &mut sent);
                sent.retain(|s| s.port != Port::CONTROLLER);
                if sent.len() > 1 {
                    assert_eq!(
                        (result.action, w.last().verdict),
                        (XDP_REDIRECT, kernel::verdict::BROADCAST.into()),
                        "{at}"
                    );
                    assert!(sent.iter().all(|s| hex(&s.packet.frame) == hex(&result.frame)), "{at}");
                    continue;
                }
                let Some(sent) = sent.first() else {
                    assert_eq!(result.action, XDP_DROP, "{at}");
                    continue;
                };
                let (verdict, action) = place(sent, Port(1));
                assert_eq!(result.action, action, "{at}");
                assert_eq!(hex(&result.frame), hex(&sent.packet.frame), "{at}");
                let last = w.last();
                let several = last.verdict == u16::from(kernel::verdict::BROADCAST);
                match verdict {
                    Verdict::InPort => assert_eq!(last.verdict, u16::from(kernel::verdict::IN_PORT), "{at}"),
                    Verdict::Broadcast(_) => assert!(several, "{at}"),
                    _ => {}
                }
                if let Verdict::Output(port) = verdict
                    && !several
                {
                    assert_eq!(
                        (last.verdict, last.port + 1),
                        (kernel::verdict::OUTPUT.into(), port.0),
                        "{at}"
                    );
                }
            }
        }
        assert!(fast > rounds(10_000) && slow > rounds(1_000), "{fast} fast, {slow} slow");
    });
}

/// A match that some of the frames have.
fn matching(rng: &mut Rng) -> Match {
    let key = Key::of(&frames::frame(rng), Port(1 + rng.u16(0..2)), VXLAN_PORT);
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

#[test]
#[ignore = "needs root"]
fn packets_take_the_rules_that_the_tables_say_cached_or_not() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let mut rng = rng(3);
        let mut masks: Vec<Match> = (0..24).map(|_| matching(&mut rng)).collect();
        masks.push(Match::ANY);
        let (mut matched, mut second) = (0, 0);
        for round in 0..rounds(400) {
            for _ in 0..rng.usize(1..8) {
                let shape = masks[rng.usize(0..masks.len())];
                let key = Key::of(&frames::frame(&mut rng), Port(1 + rng.u16(0..2)), VXLAN_PORT);
                let (table, priority) = (rng.u8(0..2), rng.u16(1..5));
                let m = Match::new(&key, shape.mask());
                if rng.u8(0..3) == 0 {
                    w.change(
                        FlowCommand::Delete { strict: false },
                        table,
                        priority,
                        m,
                        Instructions::default(),
                    );
                    continue;
                }
                let mut does = Instructions::apply([Action::output(Port(2 + rng.u16(0..2)))]);
                if table == 0 && rng.bool() {
                    does = Instructions::apply([Action::set(Field::EthSrc, u128::from(rng.u8(0..3)))]);
                    (does.goto_table, does.metadata) = (Some(1), Some((rng.u8(0..4).into(), 7)));
                }
                w.change(FlowCommand::Add, table, priority, m, does);
            }
            w.finish();
            for _ in 0..40 {
                let (port, frame) = (rng.u16(0..2), frames::frame(&mut rng));
                let truth = w.truth(&Key::of(&frame, Port(port + 1), VXLAN_PORT));
                matched += usize::from(truth.iter().any(|row| kernel::rule_of(*row).is_some()));
                second += usize::from(truth.len() > 1);
                // Looked up, looked up and cached, cached.
                for time in 0..3 {
                    let before: Vec<u64> = truth.iter().map(|row| w.packets(*row)).collect();
                    let total = w.total();
                    let (hits, _) = w.flows.cache_use();
                    w.run(port.into(), &frame);
                    let after: Vec<u64> = truth.iter().map(|row| w.packets(*row)).collect();
                    let at = format!("round {round}, time {time}: {truth:?}, {}", hex(&frame));
                    assert_eq!(after, before.iter().map(|n| n + 1).collect::<Vec<_>>(), "{at}");
                    assert_eq!(w.total() - total, truth.len() as u64, "other rules counted: {at}");
                    assert!(time < 2 || w.flows.cache_use().0 == hits + 1, "{at}");
                }
            }
        }
        assert!(matched > rounds(3_000) && second > rounds(500), "{matched} matched, {second} in two tables");
    });
}
