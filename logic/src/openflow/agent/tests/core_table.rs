use super::*;
use crate::{
    flow::{CoreChoice, Field, FlowFilter, Match, execute::Packet, table::CORE_RULES},
    openflow::{
        extension::{Core, Cores, Extension, Features},
        message::PacketOut,
    },
};

/// Packets can be handed to cores 0 and 3.
fn machine() -> Cores {
    let core = |number| Core { number, load: None, workloads: 0 };
    let features = Features { core_redirect: true, ..Features::default() };
    Cores { features, cores: vec![core(0), core(3)] }
}

fn with_cores(settings: Settings) -> Bench {
    let mut b = bench(settings);
    b.agent.set_cores(machine(), b.now_ms);
    b
}

/// A CORE_FLOW_MOD that contains these bytes.
fn wrapped(version: Version, xid: u32, inner: &[u8]) -> Vec<u8> {
    encoded(version, xid, &Message::Experimenter(Extension::CoreFlowMod(inner.to_vec()).encode()))
}

/// Sends a CORE_FLOW_MOD with this flow-mod. Returns what the switch did.
fn change(b: &mut Bench, n: u32, command: FlowCommand, text: &str) -> Vec<Did> {
    let inner = encoded(b.version[&n], 9, &Message::FlowMod(flow_mod(command, text)));
    let bytes = wrapped(b.version[&n], 8, &inner);
    b.bytes(n, &bytes);
    b.done()
}

/// Priority, choice, cookie, timeouts.
fn rules(b: &Bench) -> Vec<(u16, CoreChoice, u64, u16, u16)> {
    let rule = |r: CoreRule| (r.priority, r.choice, r.cookie, r.idle_timeout, r.hard_timeout);
    b.agent.core_rules().into_iter().map(rule).collect()
}

const ADD: FlowCommand = FlowCommand::Add;
const MODIFY: FlowCommand = FlowCommand::Modify { strict: false };
const MODIFY_STRICT: FlowCommand = FlowCommand::Modify { strict: true };
const DELETE: FlowCommand = FlowCommand::Delete { strict: false };
const DELETE_STRICT: FlowCommand = FlowCommand::Delete { strict: true };
use CoreChoice::{Choose, ChooseFirst, This};

/// A flow-mod that adds a rule (1.0, 1.3): in_port=1, priority 5, idle 6, hard 7, cookie 2, SET_CORE 3.
const ADD_10: &str =
    "003ffffe 0001 000000000000 000000000000 0000 00 00 0000 00 00 0000 00000000 00000000 0000 0000
    0000000000000002 0000 0006 0007 0005 ffffffff ffff 0000  ffff 0010 4d4c5243 0004 0003 00000000";
const ADD_13: &str =
    "0000000000000002 0000000000000000 00 00 0006 0007 0005 ffffffff ffffffff ffffffff 0000 0000
    0001 000c 80000004 00000001 00000000  0004 0018 00000000 ffff 0010 4d4c5243 0004 0003 00000000";

#[test]
fn a_core_flow_mod_is_a_whole_flow_mod_for_another_table() {
    for (version, body) in [(OpenFlow10, ADD_10), (OpenFlow13, ADD_13)] {
        let mut b = with_cores(settings());
        b.open(1, version);
        let inner = raw(version, 14, 9, body);
        let hex: String = inner.iter().map(|byte| format!("{byte:02x}")).collect();
        b.bytes(1, &raw(version, 4, 8, &format!("4d4c5243 00000005 {hex}")));
        b.bytes(1, &raw(version, 2, 3, ""));
        assert_eq!(b.sent(1), raw(version, 3, 3, ""), "only the message after it is answered");
        let rule = CoreRule {
            priority: 5,
            matching: Match::ANY.with(Field::InPort, 1_u16),
            choice: This(3),
            cookie: 2,
            idle_timeout: 6,
            hard_timeout: 7,
        };
        assert_eq!(b.agent.core_rules(), [rule]);
        // It is in no flow table, and rules are wanted.
        let stats = b.agent.flows().stats(&FlowFilter::EVERYTHING, 0);
        assert_eq!((stats.len(), b.agent.wants_rules(), b.settle()), (0, true, true));
    }
}

#[test]
fn without_core_redirect_rules_can_be_deleted_but_not_added() {
    // Type and code of the error for an unsupported instruction. For an action they are the same in both
    // versions.
    for (version, body, kind, code) in [(OpenFlow10, ADD_10, 3, 5), (OpenFlow13, ADD_13, 3, 1)] {
        let mut b = with_cores(settings());
        b.open(1, version);
        assert_eq!((change(&mut b, 1, ADD, "in_port=2,actions=set_core:3"), rules(&b).len()), (vec![], 1));
        b.agent.set_cores(Cores { features: Features::default(), ..machine() }, 0);
        let inner = raw(version, 14, 9, body);
        b.bytes(1, &wrapped(version, 8, &inner));
        assert_eq!(b.done(), [Said(1, 9, error(kind, code, &inner))]);
        assert_eq!(rules(&b).len(), 1);
        let delete = FlowCommand::Delete { strict: false };
        assert_eq!((change(&mut b, 1, delete, "in_port=2"), rules(&b)), (vec![], vec![]));
        let flow = raw(version, 14, 9, body);
        let data = vec![0; 60];
        let actions = vec![Action::SetCore(Choose)];
        let out = Message::PacketOut(PacketOut { buffer: None, in_port: RulePort::NONE, actions, data });
        for bytes in [flow, encoded(version, 9, &out)] {
            b.bytes(1, &bytes);
            assert_eq!(b.done(), [Said(1, 9, error(2, 0, &bytes))]);
        }
    }
}

#[test]
fn with_core_redirect_rules_and_packets_may_name_existing_cores() {
    for version in [OpenFlow10, OpenFlow13] {
        let mut b = with_cores(settings());
        b.open(1, version);
        for (core, refused) in [("3", false), ("4", true)] {
            let bytes = encoded(version, 9, &add(&format!("in_port=1,actions=set_core:{core},output:2")));
            b.bytes(1, &bytes);
            let expected = if refused { vec![Said(1, 9, error(2, 5, &bytes))] } else { vec![] };
            assert_eq!(b.done(), expected);
        }
        assert_eq!(b.rules(), 1);
        b.agent.set_cores(Cores { cores: vec![], ..machine() }, b.now_ms);
        assert_eq!((change(&mut b, 1, ADD, "actions=set_core:3").len(), rules(&b)), (1, vec![]));
        for (text, choice) in [("choose", Choose), ("choose_first", ChooseFirst)] {
            assert_eq!(change(&mut b, 1, ADD, &format!("actions=set_core:{text}")), []);
            assert_eq!(rules(&b).iter().map(|rule| rule.1).collect::<Vec<_>>(), [choice]);
        }
    }
}

#[test]
fn rules_are_changed_like_those_of_a_flow_table() {
    // Rules as (priority, cookie, core). In 1.3, a modify adds no missing rule, and cookies stay.
    for version in [OpenFlow10, OpenFlow13] {
        let mut b = with_cores(settings());
        b.open(1, version);
        let old = version == OpenFlow10;
        for (command, text, expected) in [
            (ADD, "priority=5,in_port=1,cookie=1,actions=set_core:0", vec![(5, 1, This(0))]),
            (ADD, "priority=5,in_port=1,cookie=2,actions=set_core:3", vec![(5, 2, This(3))]),
            (ADD, "priority=9,in_port=1,cookie=3,actions=set_core:3", vec![(9, 3, This(3)), (5, 2, This(3))]),
            (
                MODIFY_STRICT,
                "priority=9,in_port=1,cookie=4,actions=set_core:0",
                vec![(9, if old { 4 } else { 3 }, This(0)), (5, 2, This(3))],
            ),
            (
                MODIFY,
                "cookie=4,actions=set_core:0",
                vec![(9, if old { 4 } else { 3 }, This(0)), (5, if old { 4 } else { 2 }, This(0))],
            ),
            (
                DELETE_STRICT,
                "priority=9",
                vec![(9, if old { 4 } else { 3 }, This(0)), (5, if old { 4 } else { 2 }, This(0))],
            ),
            (DELETE_STRICT, "priority=9,in_port=1", vec![(5, if old { 4 } else { 2 }, This(0))]),
            (DELETE, "out_port=2", vec![(5, if old { 4 } else { 2 }, This(0))]),
            (DELETE, "", vec![]),
            (
                MODIFY,
                "priority=1,in_port=2,cookie=7,actions=set_core:0",
                if old { vec![(1, 7, This(0))] } else { vec![] },
            ),
        ] {
            assert_eq!(change(&mut b, 1, command, text), [], "{version:?} {text}");
            let found: Vec<_> = rules(&b).into_iter().map(|r| (r.0, r.2, r.1)).collect();
            assert_eq!(found, expected, "{version:?} {text}");
        }
        // The two kinds of rules are independent.
        b.say(1, 0, &add("in_port=3,actions=output:2"));
        assert_eq!(change(&mut b, 1, DELETE, ""), []);
        assert_eq!((b.rules(), rules(&b)), (1, vec![]));
    }
}

#[test]
fn errors_are_those_of_the_flow_mod_inside() {
    let both = |text: &str, ten, thirteen| {
        let message = add(text);
        [
            (OpenFlow10, encoded(OpenFlow10, 9, &message), ten),
            (OpenFlow13, encoded(OpenFlow13, 9, &message), thirteen),
        ]
    };
    let thirteen = |flow: FlowMod, kind, code| {
        (OpenFlow13, encoded(OpenFlow13, 9, &Message::FlowMod(flow)), (kind, code))
    };
    let core = || flow_mod(ADD, "actions=set_core:3");
    let with = |change: fn(&mut FlowMod)| {
        let mut flow = core();
        change(&mut flow);
        flow
    };
    let mut cases = vec![];
    cases.extend(both("actions=output:2", (2, 0), (2, 0)));
    cases.extend(both("actions=set_core:3,output:2", (2, 0), (2, 0)));
    cases.extend(both("actions=drop", (3, 5), (3, 1)));
    cases.extend(both("actions=set_core:3,set_core:0", (2, 7), (2, 7)));
    cases.extend(both("actions=set_core:4", (2, 5), (2, 5)));
    cases.extend(both("send_flow_rem,actions=set_core:3", (3, 2), (5, 7)));
    cases.extend([
        thirteen(with(|f| f.table = Some(1)), 5, 2),
        thirteen(with(|f| (f.table, f.command) = (Some(16), DELETE)), 5, 2),
        thirteen(with(|f| f.buffer = Some(1)), 1, 8),
        thirteen(with(|f| f.instructions.goto_table = Some(1)), 3, 1),
        thirteen(with(|f| f.instructions.clear = true), 3, 1),
        thirteen(with(|f| std::mem::swap(&mut f.instructions.apply, &mut f.instructions.write)), 3, 1),
        thirteen(with(|f| f.flags.check_overlap = true), 5, 3),
    ]);
    // OFPTT_ALL in an add.
    let mut all = encoded(OpenFlow13, 9, &Message::FlowMod(core()));
    all[24] = 0xff;
    cases.push((OpenFlow13, all, (5, 2)));
    for version in [OpenFlow10, OpenFlow13] {
        let whole = encoded(version, 9, &Message::FlowMod(core()));
        let other = if version == OpenFlow10 { OpenFlow13 } else { OpenFlow10 };
        cases.extend([
            (version, encoded(other, 9, &Message::FlowMod(core())), (1, 0)),
            (version, whole[..whole.len() - 1].to_vec(), (1, 6)),
            (version, [&whole[..], &[0]].concat(), (1, 6)),
            (version, raw(version, 14, 9, "00"), (1, 6)),
            // Hello, error, a cut flow-removed, packet-out.
            (version, raw(version, 0, 9, ""), (1, 1)),
            (version, raw(version, 1, 9, "0000 0000"), (1, 1)),
            (version, raw(version, 11, 9, ""), (1, 1)),
            (version, raw(version, 13, 9, "ff"), (1, 1)),
            (version, wrapped(version, 9, &whole), (1, 1)),
        ]);
    }
    for (version, inner, (kind, code)) in cases {
        let mut b = with_cores(settings());
        b.open(1, version);
        assert_eq!(change(&mut b, 1, ADD, "actions=set_core:0"), []);
        let before = rules(&b);
        b.bytes(1, &wrapped(version, 8, &inner));
        assert_eq!(b.done(), [Said(1, 9, error(kind, code, &inner))], "{version:?} {inner:x?}");
        assert_eq!(rules(&b), before);
    }
}

#[test]
fn a_slave_cannot_change_the_core_table() {
    let mut b = with_cores(settings());
    b.open(1, OpenFlow13);
    b.say(1, 0, &Message::RoleRequest { role: Role::Slave, generation: 1 });
    b.done();
    let inner = encoded(OpenFlow13, 9, &add("actions=set_core:3"));
    assert_eq!(change(&mut b, 1, ADD, "actions=set_core:3"), [Said(1, 9, error(1, 10, &inner))]);
    assert_eq!(rules(&b), []);
}

#[test]
fn rules_end_when_their_time_is_up() {
    let mut b = with_cores(settings());
    b.open(1, OpenFlow13);
    change(&mut b, 1, ADD, "priority=1,in_port=1,hard_timeout=2,actions=set_core:0");
    change(&mut b, 1, ADD, "priority=2,in_port=2,idle_timeout=2,actions=set_core:0");
    change(&mut b, 1, ADD, "priority=3,in_port=3,idle_timeout=2,actions=set_core:0");
    let mut left = Vec::new();
    for second in 1..=4 {
        b.now_ms += 1000;
        if second <= 2 {
            let done = b.agent.flows().run(Packet::new([0; 60], RulePort(2)), 0);
            assert_eq!(
                done.outputs.iter().map(|o| (o.port, o.core)).collect::<Vec<_>>(),
                [(RulePort::NORMAL, Some(This(0)))]
            );
        }
        b.agent.tick(b.now_ms);
        left.push(rules(&b).into_iter().map(|rule| rule.0).collect::<Vec<_>>());
    }
    assert_eq!(left, [vec![3, 2, 1], vec![2], vec![2], vec![]]);
    assert_eq!(b.done(), []);
}

#[test]
fn the_core_table_is_bounded_and_has_room_after_a_delete() {
    // Room for all rules of the core table, and for one rule of a flow table.
    let rows = (CORE_RULES + 64).next_power_of_two();
    let capacity = FlowCapacity { rules: rows, buckets: rows / 2, rest: 1, ..CAPACITY };
    let mut b = sized(settings(), capacity);
    b.agent.set_cores(machine(), b.now_ms);
    b.open(1, OpenFlow13);
    let mut flow = flow_mod(ADD, "actions=set_core:0");
    let mut add = |b: &mut Bench, n: u32| {
        flow.matching = Match::ANY.with(Field::EthType, 0x0800_u16).with(Field::Ipv4Dst, n);
        let inner = encoded(OpenFlow13, n, &Message::FlowMod(flow.clone()));
        b.bytes(1, &wrapped(OpenFlow13, 0, &inner));
        b.done().is_empty()
    };
    let last = CORE_RULES as u32 - 1;
    assert!((0..=last).all(|n| add(&mut b, n)));
    assert!(!add(&mut b, last + 1) && add(&mut b, last));
    assert_eq!(b.agent.core_rules().len(), CORE_RULES);
    assert_eq!(change(&mut b, 1, DELETE, "ip,nw_dst=0.0.0.7"), []);
    assert!(add(&mut b, last + 1) && !add(&mut b, 7));
}

#[test]
fn a_frame_through_another_switch_changes_the_core_table_on_trusted_ports() {
    let frame =
        |mac: u8, message: &[u8]| [&[2, 0, 0, 0, 0, mac, 6, 6, 6, 6, 6, 6, 0x88, 0xb5], message].concat();
    let trusts = Settings { proxy_ports: [RulePort(1)].into(), ..settings() };
    let refused = |refused| ProxiedCount { applied: 0, refused };
    for (version, body) in [(OpenFlow10, ADD_10), (OpenFlow13, ADD_13)] {
        let whole = wrapped(version, 8, &raw(version, 14, 9, body));
        let padded = [&whole[..], &[0xee; 30]].concat();
        let broken = wrapped(version, 8, &raw(version, 14, 9, ""));
        let subscribe = Extension::Subscribe { cores: true, workloads: true }.encode();
        let subscribe = encoded(version, 8, &Message::Experimenter(subscribe));
        let not_ours = [&frame(1, &whole)[..12], &[0x08, 0x00], &whole].concat();
        let applied = ProxiedCount { applied: 1, refused: 0 };
        let other = if version == OpenFlow10 { OpenFlow13 } else { OpenFlow10 };
        let only = |version| Settings { versions: vec![version], ..trusts.clone() };
        for (settings, port, frame, is_ours, count) in [
            (trusts.clone(), 1, frame(1, &whole), true, applied),
            (only(version), 1, frame(3, &padded), true, applied),
            (only(other), 1, frame(3, &whole), true, refused(1)),
            (trusts.clone(), 2, frame(1, &whole), true, refused(1)),
            (settings(), 1, frame(1, &whole), true, refused(1)),
            (trusts.clone(), 1, frame(9, &whole), false, refused(0)),
            (trusts.clone(), 1, not_ours, false, refused(0)),
            (trusts.clone(), 1, frame(1, &[])[..13].to_vec(), false, refused(0)),
            (trusts.clone(), 1, frame(1, &[]), true, refused(1)),
            (trusts.clone(), 1, frame(1, &whole[..whole.len() - 1]), true, refused(1)),
            (trusts.clone(), 1, frame(1, &raw(version, 14, 9, body)), true, refused(1)),
            (trusts.clone(), 1, frame(1, &broken), true, refused(1)),
            (trusts.clone(), 1, frame(1, &subscribe), true, refused(1)),
        ] {
            let mut b = with_cores(settings);
            assert_eq!(b.agent.proxied(RulePort(port), &frame, b.now_ms), is_ours, "{port} {frame:x?}");
            assert_eq!(b.agent.proxied_count(), count, "{port} {frame:x?}");
            assert_eq!(b.agent.core_rules().len() as u64, count.applied);
            assert_eq!(b.done(), [], "there is no answer");
        }
        let mut b = bench(trusts.clone());
        assert!(b.agent.proxied(RulePort(1), &frame(1, &whole), b.now_ms));
        assert_eq!(b.agent.proxied_count(), refused(1), "packets cannot be handed over");
    }
}
