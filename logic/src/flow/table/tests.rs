//! The cases of the specifications, one by one.

use super::{Dialect::*, *};
use crate::flow::{Action, Field, FlowFlags, FlowStats, Group, GroupKind, GroupMod, field::ether_type};

pub(super) fn out(port: u16) -> Action {
    Action::output(RulePort(port))
}

pub(super) fn add(priority: u16, matching: Match, actions: impl Into<Vec<Action>>) -> FlowMod {
    FlowMod::new(FlowCommand::Add, priority, matching, Instructions::apply(actions))
}

pub(super) fn everything() -> FlowFilter {
    FlowFilter { table: None, ..filter(&add(0, Match::ANY, [])) }
}

/// Ports 1 to 3, all up.
pub(super) fn tables() -> Tables {
    let mut tables = Tables::new();
    tables.set_ports((1..=3).map(|port| (RulePort(port), true)));
    tables
}

pub(super) fn ip(net: u32, length: u32) -> Match {
    let mut m = Match::ANY.with(Field::EthType, ether_type::IPV4);
    m.set(Field::Ipv4Dst, net.into(), u128::from(u32::MAX << (32 - length)));
    m
}

/// The key of a packet to this address.
fn to(address: u32) -> Key {
    let mut key = Key::ZERO;
    key.set(Field::EthType, ether_type::IPV4.into());
    key.set(Field::Ipv4Dst, address.into());
    key
}

fn added(tables: &mut Tables, request: &FlowMod) -> RuleId {
    match tables.apply(request, OpenFlow13, 0).as_deref() {
        Ok(&[Change::Added(id)]) => id,
        other => panic!("{other:?}"),
    }
}

fn removed(changes: &[Change]) -> Vec<u32> {
    let id = |change: &Change| match change {
        Change::Removed { id, .. } => id.0,
        other => panic!("{other:?}"),
    };
    changes.iter().map(id).collect()
}

#[test]
fn adding_again_replaces_and_counters_follow_the_version() {
    let seven = Count { packets: 7, bytes: 700 };
    for (dialect, reset_counts, packets) in
        [(OpenFlow10, false, 0), (OpenFlow10, true, 0), (OpenFlow13, false, 7), (OpenFlow13, true, 0)]
    {
        let mut t = tables();
        let mut request = add(5, ip(0x0a00_0000, 8), [out(1)]);
        request.flags.send_removed = true;
        let id = added(&mut t, &request);
        t.count(id, seven, 1_500);
        request.flags = FlowFlags { reset_counts, ..request.flags };
        (request.cookie, request.idle_timeout) = (9, 4);
        assert_eq!(t.apply(&request, dialect, 2_000), Ok(vec![]), "the same instructions");
        request.instructions = Instructions::apply([out(2)]);
        assert_eq!(t.apply(&request, dialect, 2_500), Ok(vec![Change::Instructions(id)]));
        let stats: Vec<_> = t.flows(&everything(), 4_000).collect();
        let [s] = &stats[..] else { panic!("{stats:?}") };
        assert_eq!((s.packets, s.bytes), (packets, 100 * packets), "{dialect:?} {reset_counts}");
        assert_eq!((s.duration_sec, s.duration_nsec), (1, 500_000_000));
        assert_eq!((s.cookie, s.idle_timeout), (9, 4));
        assert_eq!(t.next_expiry_ms(), Some(6_500));
        t.count(id, Count { packets: 10, bytes: 1000 }, 3_000);
        assert_eq!(t.aggregate(&everything()).packets, 3 + packets);
    }
}

#[test]
fn overlaps_are_refused_on_request() {
    let rule = add(5, ip(0x0a00_0000, 8), [out(1)]);
    for (name, request, expected) in [
        ("inside, same priority", add(5, ip(0x0a01_0000, 16), []), Err(Refused::Overlap)),
        ("outside, same priority", add(5, Match::ANY, []), Err(Refused::Overlap)),
        ("crossing", add(5, Match::ANY.with(Field::InPort, 1_u16), []), Err(Refused::Overlap)),
        ("the same rule", rule.clone(), Err(Refused::Overlap)),
        ("another priority", add(6, ip(0x0a01_0000, 16), []), Ok(())),
        ("disjoint", add(5, ip(0x0b00_0000, 8), []), Ok(())),
        ("another type", add(5, Match::ANY.with(Field::EthType, ether_type::ARP), []), Ok(())),
        ("another table", FlowMod { table: Some(1), ..rule.clone() }, Ok(())),
    ] {
        let mut t = tables();
        added(&mut t, &rule);
        let request = FlowMod { flags: FlowFlags { check_overlap: true, ..request.flags }, ..request };
        assert_eq!(t.apply(&request, OpenFlow13, 0).map(|_| ()), expected, "{name}");
        let unchecked = FlowMod { flags: FlowFlags::default(), ..request };
        assert!(t.apply(&unchecked, OpenFlow13, 0).is_ok(), "{name}");
    }
}

#[test]
fn modify_changes_instructions_and_little_else() {
    let (net, host) = (ip(0x0a00_0000, 8), ip(0x0a01_0203, 32));
    // Strictness, priority and match of the request; which of the rules (net at 5, host at 5, host at 6) get out(2).
    for (strict, priority, matching, hit) in [
        (false, 1, Match::ANY, vec![0, 1, 2]),
        (false, 5, net, vec![0, 1, 2]),
        (false, 5, host, vec![1, 2]),
        (true, 5, host, vec![1]),
        (true, 6, host, vec![2]),
        (true, 7, host, vec![]),
        (true, 5, Match::ANY, vec![]),
        (false, 5, ip(0x0a01_0000, 16), vec![1, 2]),
        (false, 5, ip(0x0b00_0000, 8), vec![]),
    ] {
        for dialect in [OpenFlow10, OpenFlow13] {
            let mut t = tables();
            for (priority, matching) in [(5, net), (5, host), (6, host)] {
                let request = FlowMod { cookie: 1, hard_timeout: 9, ..add(priority, matching, [out(1)]) };
                let id = added(&mut t, &request);
                t.count(id, Count { packets: 3, bytes: 180 }, 0);
            }
            let command = FlowCommand::Modify { strict };
            // Only delete considers the output port.
            let request = FlowMod {
                command,
                cookie: 2,
                hard_timeout: 1,
                out_port: Some(RulePort(3)),
                ..add(priority, matching, [out(2)])
            };
            let changes = t.apply(&request, dialect, 1_000).expect("good");
            let mut expected: Vec<_> = hit.iter().map(|&id| Change::Instructions(RuleId(id))).collect();
            if hit.is_empty() && dialect == OpenFlow10 {
                expected.push(Change::Added(RuleId(3)));
            }
            let sorted = |mut changes: Vec<Change>| {
                changes.sort_by_key(|change| format!("{change:?}"));
                changes
            };
            assert_eq!(sorted(changes), expected, "{strict} {priority} {matching:?} {dialect:?}");
            for id in 0..3 {
                let row = &t.rows[RuleId(id)];
                let cookie = if hit.contains(&id) && dialect == OpenFlow10 { 2 } else { 1 };
                assert_eq!((row.cookie, row.hard_timeout, row.count().packets), (cookie, 9, 3));
                assert_eq!(row.created_ms, 0);
            }
        }
    }
}

#[test]
fn modify_follows_cookies_and_resets_counters_only_in_openflow_13() {
    for (dialect, reset_counts, cookie_mask, packets) in [
        (OpenFlow13, true, 0, 0),
        (OpenFlow13, false, 0, 3),
        (OpenFlow13, true, 0xff, 3),
        (OpenFlow10, true, 0, 3),
    ] {
        let mut t = tables();
        let id = added(&mut t, &FlowMod { cookie: 1, ..add(5, Match::ANY, [out(1)]) });
        t.count(id, Count { packets: 3, bytes: 180 }, 0);
        let flags = FlowFlags { reset_counts, ..FlowFlags::default() };
        let command = FlowCommand::Modify { strict: true };
        let request = FlowMod { command, cookie: 2, cookie_mask, flags, ..add(5, Match::ANY, [out(1)]) };
        assert_eq!(t.apply(&request, dialect, 0), Ok(vec![]));
        assert_eq!(t.rows[id].count().packets, packets, "{dialect:?} {reset_counts} {cookie_mask}");
    }
}

#[test]
fn delete_removes_the_rules_that_all_its_filters_select() {
    let any = add(0, Match::ANY, []);
    let strict = FlowCommand::Delete { strict: true };
    let delete = FlowMod { command: FlowCommand::Delete { strict: false }, table: None, ..any };
    let host = ip(0x0a01_0203, 32);
    // Rules: 0 net at 5 to port 1, cookie 0x11; 1 host at 6 to port 2, cookie 0x12; 2 any at 0 in table 1 to group 4, cookie 0x21.
    for (name, request, gone) in [
        ("all", delete.clone(), vec![0, 1, 2]),
        ("a table", FlowMod { table: Some(1), ..delete.clone() }, vec![2]),
        ("what a net covers", FlowMod { matching: ip(0x0a00_0000, 8), ..delete.clone() }, vec![0, 1]),
        ("what a host covers", FlowMod { matching: host, ..delete.clone() }, vec![1]),
        ("strict", FlowMod { command: strict, priority: 6, matching: host, ..delete.clone() }, vec![1]),
        (
            "strict, priority",
            FlowMod { command: strict, priority: 5, matching: host, ..delete.clone() },
            vec![],
        ),
        ("strict, match", FlowMod { command: strict, priority: 6, ..delete.clone() }, vec![]),
        ("port", FlowMod { out_port: Some(RulePort(1)), ..delete.clone() }, vec![0]),
        ("strict, port", FlowMod { command: strict, out_port: Some(RulePort(1)), ..delete.clone() }, vec![]),
        ("group", FlowMod { out_group: Some(4), ..delete.clone() }, vec![2]),
        (
            "port and group",
            FlowMod { out_port: Some(RulePort(1)), out_group: Some(4), ..delete.clone() },
            vec![],
        ),
        ("cookie", FlowMod { cookie: 0x11, cookie_mask: 0xff, ..delete.clone() }, vec![0]),
        ("cookie bits", FlowMod { cookie: 0x1f, cookie_mask: 0xf0, ..delete.clone() }, vec![0, 1]),
    ] {
        let mut t = tables();
        let group = Group { id: 4, kind: GroupKind::All, buckets: vec![] };
        t.apply_group(&GroupMod::Add(group), 0).expect("a group");
        added(&mut t, &FlowMod { cookie: 0x11, ..add(5, ip(0x0a00_0000, 8), [out(1)]) });
        added(&mut t, &FlowMod { cookie: 0x12, ..add(6, host, [out(2)]) });
        added(&mut t, &FlowMod { cookie: 0x21, table: Some(1), ..add(0, Match::ANY, [Action::Group(4)]) });
        let changes = t.apply(&request, OpenFlow13, 0).expect("good");
        let mut ids = removed(&changes);
        ids.sort_unstable();
        assert_eq!(ids, gone, "{name}");
        assert_eq!(t.aggregate(&everything()).rules as usize, 3 - gone.len());
    }
    let mut t = tables();
    assert_eq!(t.apply(&FlowMod { table: Some(TABLES), ..delete }, OpenFlow13, 0), Err(Refused::BadTable));
}

#[test]
fn a_removed_rule_names_the_rule_that_it_hid() {
    let mut t = tables();
    let ids = [5, 7, 6].map(|priority| added(&mut t, &add(priority, Match::ANY, [])));
    assert_eq!(ids.map(|id| t.first_of_match(id)), [Some(ids[1]); 3]);
    let strict = FlowCommand::Delete { strict: true };
    let mut gone = |priority| {
        t.apply(&FlowMod { command: strict, ..add(priority, Match::ANY, []) }, OpenFlow13, 0).expect("good")
    };
    let change = |id, next| vec![Change::Removed { id, next, notice: None }];
    assert_eq!(gone(6), change(ids[2], Some(ids[0])));
    assert_eq!(gone(7), change(ids[1], Some(ids[0])));
    assert_eq!(gone(5), change(ids[0], None));
}

#[test]
fn ids_are_dense_and_held_until_released() {
    let mut t = tables();
    let request = |port: u16| add(1, Match::ANY.with(Field::InPort, port), []);
    assert_eq!([1, 2, 3].map(|port| added(&mut t, &request(port)).0), [0, 1, 2]);
    let delete = FlowMod { command: FlowCommand::Delete { strict: false }, ..request(2) };
    t.apply(&delete, OpenFlow13, 0).expect("good");
    assert_eq!(t.rule(RuleId(1)), None);
    assert_eq!(added(&mut t, &request(4)).0, 3);
    t.release(RuleId(1));
    t.release(RuleId(1));
    t.release(RuleId(0));
    t.release(RuleId(99));
    assert_eq!([5, 6].map(|port| added(&mut t, &request(port)).0), [1, 4]);
}

#[test]
fn invalid_requests_are_refused_and_change_nothing() {
    let emergency = FlowFlags { emergency: true, ..FlowFlags::default() };
    let modify = FlowCommand::Modify { strict: false };
    let good = add(1, Match::ANY, []);
    for (request, expected) in [
        (FlowMod { flags: emergency, ..good.clone() }, Refused::TableFull),
        (FlowMod { flags: emergency, idle_timeout: 1, ..good.clone() }, Refused::Emergency),
        (FlowMod { flags: emergency, hard_timeout: 1, ..good.clone() }, Refused::Emergency),
        (FlowMod { table: Some(TABLES), ..good.clone() }, Refused::BadTable),
        (FlowMod { table: None, ..good.clone() }, Refused::BadTable),
        (FlowMod { table: None, command: modify, ..good.clone() }, Refused::BadTable),
        (FlowMod { command: modify, ..add(1, Match::ANY, [out(9)]) }, Refused::BadPort),
    ] {
        let mut t = tables();
        added(&mut t, &add(1, Match::ANY, [out(1)]));
        let before: Vec<_> = t.flows(&everything(), 0).collect();
        assert_eq!(t.apply(&request, OpenFlow10, 0), Err(expected), "{request:?}");
        assert_eq!(t.flows(&everything(), 0).collect::<Vec<_>>(), before);
    }
}

#[test]
fn masks_are_counted_over_all_tables_and_can_be_used_again() {
    let mut t = tables();
    let mask = |bits: u64| {
        let mut m = Match::ANY;
        m.set(Field::Metadata, 0, bits.into());
        m
    };
    for bits in 1..MASKS as u64 {
        added(&mut t, &add(1, mask(bits), []));
    }
    // A mask counts in each table.
    added(&mut t, &FlowMod { table: Some(3), ..add(1, mask(9), []) });
    let more = add(1, mask(MASKS as u64 + 1), []);
    assert_eq!(t.apply(&more, OpenFlow13, 0), Err(Refused::TooManyMasks));
    let modify = FlowMod { command: FlowCommand::Modify { strict: true }, ..more.clone() };
    assert_eq!(t.apply(&modify, OpenFlow10, 0), Err(Refused::TooManyMasks));
    added(&mut t, &FlowMod { table: Some(3), ..add(2, mask(9), []) });
    let delete =
        FlowMod { command: FlowCommand::Delete { strict: false }, table: Some(3), ..add(1, mask(9), []) };
    t.apply(&delete, OpenFlow13, 0).expect("good");
    added(&mut t, &more);
}

#[test]
fn the_tables_hold_a_million_rules_and_no_more() {
    let mut t = tables();
    let mut request = add(1, Match::ANY, []);
    let mut rule = |i: usize| {
        request.matching = Match::ANY.with(Field::Metadata, i as u64);
        request.clone()
    };
    for i in 0..RULES {
        added(&mut t, &rule(i));
    }
    assert_eq!(t.apply(&rule(RULES), OpenFlow13, 0), Err(Refused::TableFull));
    assert_eq!(t.apply(&rule(7), OpenFlow13, 0), Ok(vec![]), "replacing a rule needs no room");
    let mut delete = |i| {
        let request = FlowMod { command: FlowCommand::Delete { strict: true }, ..rule(i) };
        removed(&t.apply(&request, OpenFlow13, 0).expect("good"))
    };
    assert_eq!(delete(7), [7]);
    assert_eq!(added(&mut t, &rule(7)), RuleId(RULES as u32));
    // Ids that are not released run out too.
    for i in 0..RuleId::LIMIT as usize - RULES - 1 {
        let request = FlowMod { command: FlowCommand::Delete { strict: true }, ..rule(i) };
        t.apply(&request, OpenFlow13, 0).expect("good");
        added(&mut t, &rule(i));
    }
    let request = FlowMod { command: FlowCommand::Delete { strict: true }, ..rule(8) };
    let gone = removed(&t.apply(&request, OpenFlow13, 0).expect("good"));
    assert_eq!(t.apply(&rule(8), OpenFlow13, 0), Err(Refused::TableFull));
    t.release(RuleId(gone[0]));
    assert_eq!(added(&mut t, &rule(8)).0, gone[0]);
}

#[test]
fn the_highest_priority_wins_then_the_longer_mask() {
    let mut t = tables();
    let [net, host, miss] = [(5, ip(0x0a00_0000, 8)), (4, ip(0x0a01_0203, 32)), (0, Match::ANY)]
        .map(|(p, m)| added(&mut t, &add(p, m, [])));
    assert_eq!(t.lookup(0, &to(0x0a01_0203)), Some(net));
    assert_eq!(t.lookup(0, &to(0x0b01_0203)), Some(miss));
    assert_eq!((t.lookup(1, &Key::ZERO), t.lookup(TABLES, &Key::ZERO)), (None, None));
    let longer = added(&mut t, &add(5, ip(0x0a01_0000, 16), []));
    assert_eq!(t.lookup(0, &to(0x0a01_0203)), Some(longer));
    let again = added(&mut t, &add(6, ip(0x0a01_0203, 32), []));
    assert_eq!(t.lookup(0, &to(0x0a01_0203)), Some(again));
    let order: Vec<_> = t.masks(0).map(|(mask, highest)| (mask.get(Field::Ipv4Dst), highest)).collect();
    assert_eq!(order, [(0xffff_ffff, 6), (0xffff_0000, 5), (0xff00_0000, 5), (0, 0)]);
    let below = |id| {
        let mut ids: Vec<RuleId> = t.overlapped_by(id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(below(again), [net, host, miss, longer]);
    assert_eq!(below(longer), [net, host, miss]);
    assert_eq!((below(miss), below(RuleId(99))), (vec![], vec![]));
}

#[test]
fn the_effort_of_finding_overlaps_is_known_in_advance() {
    let mut t = tables();
    for i in 0..50 {
        added(&mut t, &add(5, ip(i << 8, 24).with(Field::InPort, 1_u16), []));
        added(&mut t, &add(5, ip(i << 16, 16), []));
        added(&mut t, &add(5, Match::ANY.with(Field::EthType, ether_type::ARP).with(Field::ArpSha, i), []));
    }
    for (what, priority, matching, effort) in [
        ("a lookup for each mask inside, and for its own", 5, ip(7, 32).with(Field::InPort, 1_u16), 3),
        ("the rules of one mask are compared", 5, ip(7, 32), 52),
        ("all others have a higher priority", 4, ip(7, 32), 1),
        ("its own mask, and the rules of one are compared", 6, ip(0, 16), 51),
        ("all rules are compared", 6, Match::ANY, 151),
        ("all others differ in a bit", 6, ip(99 << 16, 16), 1),
    ] {
        let request = add(priority, matching, []);
        let id = added(&mut t, &request);
        assert_eq!(t.overlap_effort(id), effort, "{what}");
        let request = FlowMod { command: FlowCommand::Delete { strict: true }, ..request };
        t.apply(&request, OpenFlow13, 0).expect("good");
    }
    assert_eq!(t.overlap_effort(RuleId(9999)), 0);
}

#[test]
fn statistics_are_ordered_and_filtered() {
    let mut t = tables();
    for (table, priority, matching) in [
        (1, 1, Match::ANY),
        (0, 3, ip(0x0a02_0100, 24)),
        (0, 3, ip(0x0a01_0300, 24)),
        (0, 3, ip(0x0a00_0000, 8)),
        (0, 9, ip(0x0a00_0000, 8)),
    ] {
        let id = added(&mut t, &FlowMod { table: Some(table), ..add(priority, matching, [out(1)]) });
        t.count(id, Count { packets: 1, bytes: u64::MAX / 2 }, 0);
    }
    let dst = |s: FlowStats| (s.table, s.priority, s.matching.key().get(Field::Ipv4Dst));
    let seen: Vec<_> = t.flows(&everything(), 0).map(dst).collect();
    let nets =
        [(0, 9, 0x0a00_0000), (0, 3, 0x0a00_0000), (0, 3, 0x0a01_0300), (0, 3, 0x0a02_0100), (1, 1, 0)];
    assert_eq!(seen, nets);
    let inside = FlowFilter { matching: ip(0x0a01_0300, 24), ..everything() };
    assert_eq!(t.flows(&inside, 0).map(dst).collect::<Vec<_>>(), [(0, 3, 0x0a01_0300)]);
    let all = t.aggregate(&everything());
    assert_eq!(all, Aggregate { packets: 5, bytes: u64::MAX, rules: 5 });
    assert_eq!(t.aggregate(&FlowFilter { table: Some(1), ..everything() }).rules, 1);
    assert_eq!(t.aggregate(&FlowFilter { table: Some(200), ..everything() }).rules, 0);
    assert_eq!(t.tables().take(3).collect::<Vec<_>>(), [(0, 4), (1, 1), (2, 0)]);
}
