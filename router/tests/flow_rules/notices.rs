//! The packets that the program hands to user space, and the rule that it names.

use crate::{
    common::in_new_namespace,
    frames,
    world::{FlowWorld, XDP_DROP, XDP_PASS, XDP_REDIRECT},
};
use logic::flow::{
    FlowCommand, Instructions, Match, RulePort,
    kernel::{Notice, NoticeReason},
    text::{parse_actions, parse_instructions, parse_match},
};
use std::{cell::RefCell, time::Duration};

/// An IPv4 UDP frame with this TTL, of `size` bytes.
pub fn udp_frame(ttl: u8, size: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(1);
    loop {
        let mut frame = frames::frame(&mut rng);
        let plain = frame[12..15] == [8, 0, 0x45] && frame[20..22] == [0, 0] && frame[23] == 17;
        if plain && frame.len() <= size {
            frame.resize(size, 0);
            frame[22] = ttl;
            return frame;
        }
    }
}

#[test]
#[ignore = "needs root"]
fn user_space_gets_the_whole_packet_and_the_rule_that_sent_it() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let told = RefCell::new(Vec::new());
        let notices = w
            .flows
            .maps()
            .notices(
                |notice, frame| told.borrow_mut().push((notice, frame.to_vec())),
                |lost| panic!("{lost} notices were lost"),
            )
            .unwrap();
        let next = |count: usize| {
            notices.wait(Duration::from_secs(5)).unwrap();
            let told = std::mem::take(&mut *told.borrow_mut());
            assert_eq!(told.len(), count, "number of notices: {told:?}");
            told
        };
        let frame = udp_frame(1, 61);
        let row = w.reference(RulePort(3), &frame).rows[0];
        let notice = |rule, reason, frame_bytes| Notice {
            rule,
            port: RulePort(3),
            reason,
            frame_bytes,
            metadata: 0,
            tunnel_id: 0,
        };
        // Two rules have the same steps, in two tables: each notice names its own row.
        let mut rows = vec![row];
        for (actions, action, expected) in [
            ("controller(max_len=20),output:2", XDP_REDIRECT, vec![(1, NoticeReason::Action, 61)]),
            ("controller,output:2", XDP_REDIRECT, vec![(1, NoticeReason::Action, 61)]),
            ("push_vlan:0x8100,controller(max_len=17)", XDP_DROP, vec![(1, NoticeReason::Action, 65)]),
            (
                "controller(max_len=0),dec_ttl,output:2",
                XDP_DROP,
                vec![(1, NoticeReason::Action, 61), (1, NoticeReason::Ttl, 61)],
            ),
            ("output:1,dec_ttl,output:2", XDP_DROP, vec![(0, NoticeReason::Slow, 61)]),
        ] {
            let does = Instructions::apply(parse_actions(actions).unwrap());
            w.change(FlowCommand::Add, 0, 1, Match::ANY, does);
            w.finish();
            rows = w.reference(RulePort(3), &frame).rows;
            let result = w.run(2, &frame);
            assert_eq!(result.action, action, "{actions}");
            let pushed = actions.contains("push");
            let seen =
                if pushed { [&frame[..12], &[0x81, 0, 0, 0], &frame[12..]].concat() } else { frame.clone() };
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(rule, reason, bytes)| {
                    let rule = if rule == 0 { 0 } else { rows[0] };
                    (notice(rule, reason, seen.len() as u32), seen[..bytes].to_vec())
                })
                .collect();
            assert_eq!(next(expected.len()), expected, "{actions}");
        }
        assert_ne!(rows[0], row);
        // Rules of two tables share their steps, and each notice names its own rule.
        let controller = || Instructions::apply(parse_actions("controller(max_len=9)").unwrap());
        let goto = Instructions { goto_table: Some(1), ..controller() };
        w.change(FlowCommand::Add, 0, 1, Match::ANY, goto);
        w.change(FlowCommand::Add, 1, 1, Match::ANY, controller());
        w.finish();
        w.run(2, &frame);
        let rows = w.reference(RulePort(3), &frame).rows;
        let of = |rule| (notice(rule, NoticeReason::Action, 61), frame.clone());
        assert_eq!((rows.len(), next(2)), (2, vec![of(rows[0]), of(rows[1])]));

        // A notice has the metadata written so far. The packet is looked up, looked up and cached, and
        // cached.
        let last = parse_instructions("controller,write_actions(controller)").unwrap();
        w.change(
            FlowCommand::Add,
            0,
            1,
            Match::ANY,
            parse_instructions("controller,write_metadata:0x1234,goto_table:1").unwrap(),
        );
        w.change(
            FlowCommand::Add,
            1,
            1,
            Match::ANY,
            parse_instructions("controller,write_metadata:0x5600/0xff00,goto_table:2").unwrap(),
        );
        w.change(FlowCommand::Add, 2, 1, Match::ANY, last);
        w.finish();
        for _ in 0..3 {
            w.run(2, &frame);
            let rows = w.reference(RulePort(3), &frame).rows;
            let told: Vec<_> =
                next(4).into_iter().map(|(notice, _)| (notice.rule, notice.metadata)).collect();
            assert_eq!(told, [(rows[0], 0), (rows[1], 0x1234), (rows[2], 0x5634), (rows[2], 0x5634)]);
        }

        // A notice has the tunnel id as it is at each output. A later table matches it, cached or not.
        for (table, matching, does) in [
            (0, "", "controller,set_tunnel:0x123456789ab,controller,goto_table:1"),
            (1, "tun_id=0x123456789ab", "set_tunnel:5,controller,write_actions(set_tunnel:6,controller)"),
            (1, "", "drop"),
        ] {
            let matching = parse_match(matching).unwrap();
            let priority = if matching == Match::ANY { 1 } else { 2 };
            w.change(FlowCommand::Add, table, priority, matching, parse_instructions(does).unwrap());
        }
        w.finish();
        for _ in 0..3 {
            assert_eq!(w.run(2, &frame).action, XDP_DROP);
            let told: Vec<_> = next(4).into_iter().map(|(notice, _)| notice.tunnel_id).collect();
            assert_eq!(told, [0, 0x0123_4567_89ab, 5, 6]);
        }
    });
}

#[test]
#[ignore = "needs root"]
fn the_action_of_a_table_miss_changes_while_packets_pass() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let told = RefCell::new(Vec::new());
        let tell =
            |notice: Notice, frame: &[u8]| told.borrow_mut().push((notice.rule, notice.reason, frame.len()));
        let notices = w.flows.maps().notices(tell, |lost| panic!("{lost} notices were lost")).unwrap();
        let frame = udp_frame(64, 61);
        for (actions, action, expected) in [
            ("controller(max_len=20)", XDP_DROP, vec![(1, NoticeReason::Action, 61)]),
            ("normal", XDP_PASS, vec![]),
            ("controller(max_len=30),output:2", XDP_REDIRECT, vec![(1, NoticeReason::Action, 61)]),
            ("drop", XDP_DROP, vec![]),
            ("write_actions(dec_ttl,output:2)", XDP_REDIRECT, vec![]),
            ("output:2,dec_ttl,output:3", XDP_DROP, vec![(0, NoticeReason::Slow, 61)]),
            ("output:4", XDP_REDIRECT, vec![]),
        ] {
            w.control.rules.set_miss(&parse_instructions(actions).unwrap());
            let at_once = w.run(2, &frame).action;
            w.finish();
            notices.wait(Duration::ZERO).unwrap();
            told.borrow_mut().clear();
            // The packet is looked up, looked up and cached, and cached.
            for _ in 0..3 {
                assert_eq!(
                    w.run(2, &frame).action,
                    action,
                    "{actions}; the action before the batch was over: {at_once}"
                );
                notices.wait(Duration::ZERO).unwrap();
                assert_eq!(std::mem::take(&mut *told.borrow_mut()), expected, "{actions}");
            }
        }
    });
}
