//! Groups that the kernel plane handles itself.

use crate::{
    action,
    common::in_new_namespace,
    frames, hex, is_tunnel, leave_this_cpu,
    notices::udp_frame,
    rng, rounds,
    world::{FlowWorld, XDP_DROP, XDP_REDIRECT},
};
use logic::flow::{
    Action, Field, FlowCommand, Group, GroupKind, GroupMod, Instructions, Match, RulePort,
    execute::{Context, Packet, execute},
    group::{SLOTS, spread},
    packet::VXLAN_PORT,
    program::compile_bucket,
    rule::Bucket,
};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

fn group(kind: GroupKind, buckets: Vec<Bucket>) -> Group {
    Group { id: 1, kind, buckets }
}

/// Any bucket that the kernel plane can do.
fn bucket(rng: &mut fastrand::Rng, kind: GroupKind) -> Bucket {
    loop {
        let mut actions: Vec<Action> = (0..rng.usize(0..3)).map(|_| action(rng)).collect();
        actions.push(Action::output(RulePort(2 + rng.u16(0..2))));
        let weight = if kind == GroupKind::Select { rng.u16(0..4) } else { 0 };
        let watch_port = (kind != GroupKind::Indirect).then(|| RulePort(1 + rng.u16(0..4)));
        if compile_bucket(&actions).is_some() && !actions.iter().any(is_tunnel) {
            return Bucket { weight, watch_port, watch_group: None, actions };
        }
    }
}

#[test]
#[ignore = "needs root"]
fn the_program_gives_a_packet_the_bucket_that_the_reference_gives_it() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let mut rng = rng(5);
        w.control.group(&GroupMod::Add(group(GroupKind::Indirect, vec![Bucket::default()])));
        let (mut dropped, mut sent_on, mut slots) = (0, 0, BTreeSet::new());
        for round in 0..rounds(300) {
            let kind = [GroupKind::Select, GroupKind::Indirect, GroupKind::FastFailover][rng.usize(0..3)];
            let count = if kind == GroupKind::Indirect { 1 } else { rng.usize(0..6) };
            let buckets = (0..count).map(|_| bucket(&mut rng, kind)).collect();
            w.control.group(&GroupMod::Modify(group(kind, buckets)));
            if rng.bool() {
                w.control.set_up([true, rng.bool(), rng.bool(), rng.bool()]);
            }
            let before = if rng.bool() { vec![action(&mut rng)] } else { vec![] };
            let list = [before, vec![Action::Group(1)]].concat();
            let mut does = Instructions::apply(list.clone());
            if rng.bool() && !list.iter().any(is_tunnel) {
                (does.write, does.apply) = (does.apply, Vec::new());
            }
            w.change(FlowCommand::Add, 0, 1, Match::ANY, does);
            w.finish();
            for _ in 0..30 {
                let mut frame = frames::frame(&mut rng);
                if rng.bool() {
                    frame = udp_frame(9, 60 + rng.usize(0..20));
                    frame[34..38].copy_from_slice(&rng.u32(..).to_ne_bytes());
                }
                let tables = w.control.rules.tables();
                let group = tables.group(1).unwrap();
                let taken = |id: u32, packet: &Packet| {
                    let buckets = tables.buckets_taken(id, &packet.frame).into_iter();
                    buckets.map(|i| group.buckets[i].actions.clone()).collect()
                };
                let context = Context { vxlan_port: VXLAN_PORT, buckets: &taken };
                let (mut packet, mut sent) = (Packet::new(frame.clone(), RulePort(1)), Vec::new());
                let _ = execute(&mut packet, &list, &context, &mut sent);
                sent.retain(|s| s.port != RulePort::CONTROLLER);
                let at = format!("round {round}: {list:?}, {group:?} on {}", hex(&frame));
                slots.insert(spread(&frame) >> 24);
                let slow = w.slow();
                let result = w.run(0, &frame);
                assert_eq!(w.slow(), slow, "{at}");
                let [one] = &sent[..] else {
                    assert!(sent.is_empty(), "{at}");
                    assert_eq!(result.action, XDP_DROP, "{at}");
                    dropped += 1;
                    continue;
                };
                assert_eq!((result.action, w.last().port + 1), (XDP_REDIRECT, one.port.0), "{at}");
                assert_eq!(hex(&result.frame), hex(&one.packet.frame), "{at}");
                sent_on += 1;
            }
        }
        assert!(
            dropped > rounds(1000) && sent_on > rounds(4000),
            "too few: {dropped} dropped, {sent_on} sent"
        );
        assert!(slots.len() == SLOTS || rounds(300) < 300, "only {} of {SLOTS} slots were used", slots.len());
    });
}

/// A bucket that marks the packets it sends.
fn marked(mark: u8) -> Bucket {
    let mac = u128::from(mark) * 0x0101_0101_0101;
    let actions = [
        Action::set(Field::EthSrc, mac),
        Action::set(Field::EthDst, mac),
        Action::output(RulePort(mark.into())),
    ];
    Bucket { actions: actions.into(), ..Bucket::default() }
}

#[test]
#[ignore = "needs root"]
fn a_packet_takes_the_old_or_the_new_bucket_while_a_group_changes() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        w.control.group(&GroupMod::Add(group(GroupKind::Indirect, vec![marked(2)])));
        w.change(FlowCommand::Add, 0, 1, Match::ANY, Instructions::apply([Action::Group(1)]));
        w.finish();
        let frame = udp_frame(9, 60);
        let (over, ifindex) = (AtomicBool::new(false), w.ports[0]);
        let FlowWorld { flows, control, .. } = &mut w;
        let seen = thread::scope(|scope| {
            let packets = scope.spawn(|| {
                leave_this_cpu();
                let mut seen = [0; 4];
                while !over.load(Relaxed) {
                    let result = flows.run(ifindex, &frame).unwrap();
                    let mark = result.frame[0];
                    assert_eq!(result.action, XDP_REDIRECT);
                    assert_eq!(result.frame[..12], [mark; 12]);
                    seen[usize::from(mark)] += 1;
                }
                seen
            });
            let end = Instant::now() + Duration::from_secs(2);
            let mut changes = 0_u8;
            while Instant::now() < end {
                changes = changes.wrapping_add(1);
                control.group(&GroupMod::Modify(group(GroupKind::Indirect, vec![marked(2 + changes % 2)])));
                control.finish();
            }
            over.store(true, Relaxed);
            packets.join().unwrap()
        });
        assert!(seen[2] > 100 && seen[3] > 100, "too few packets with mark 2 or 3: {seen:?}");
    });
}
