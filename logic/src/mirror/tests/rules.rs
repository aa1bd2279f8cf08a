//! Rules of firewalls: packets that they may affect stay with the kernel.

use super::*;
use crate::{
    firewall::{
        pairs::{FREE, FREE_EXCEPT, LINUX},
        prove::{AddressPart, Exception, Obstacle, Why},
        ruleset::{
            Base, Chain, Comparison, Devices, Expression, Family, Firewall, Header, Hook, Register, Rule,
            Ruleset, Table, Verdict,
        },
    },
    mirror::{Established, RouterView},
};
use std::{collections::BTreeMap, sync::Arc};

/// A table with this chain of the forward hook.
fn forward(family: Family, accepts: bool, rules: Vec<Vec<Expression>>) -> Arc<Firewall> {
    let base = Base { hook: Hook::Forward, priority: 0, nat: false, accepts, devices: Devices::All };
    let rules = (1..).zip(rules).map(|(handle, expressions)| Rule { handle, expressions }).collect();
    let chains = BTreeMap::from([("f".into(), Chain { base: Some(base), rules })]);
    let table = Table { family, name: "t".into(), dormant: false, chains, sets: BTreeMap::new() };
    Arc::new(Firewall { rules: Ruleset { tables: vec![Arc::new(table)] }, ..Firewall::default() })
}

/// Drops packets that come in by this device (key 6), or leave by it (key 7).
fn drops(key: u32, device: u32) -> Vec<Expression> {
    let mut value = format!("if{device}").into_bytes();
    value.resize(16, 0);
    vec![
        Expression::Meta { key, into: Register(0) },
        Expression::Compare { from: Register(0), by: Comparison::Equal, value },
        Expression::Verdict(Verdict::Drop),
    ]
}

/// Drops packets from 10.9.0.0/16.
fn drops_source() -> Vec<Expression> {
    vec![
        Expression::Payload { header: Header::Network, offset: 12, bytes: 2, into: Register(0) },
        Expression::Compare { from: Register(0), by: Comparison::Equal, value: vec![10, 9] },
        Expression::Verdict(Verdict::Drop),
    ]
}

/// Some firewall.
pub fn any(which: usize) -> Arc<Firewall> {
    match which {
        0 => Arc::default(),
        1 => forward(Family::Inet, true, vec![]),
        2 => forward(Family::Inet, false, vec![]),
        3 => forward(Family::Ipv4, true, vec![drops(6, 1)]),
        4 => forward(Family::Inet, true, vec![drops(7, 20)]),
        5 => forward(Family::Ipv4, true, vec![drops_source()]),
        _ => stateful(),
    }
}

/// Compares the state of the connection.
fn tests_state() -> Vec<Expression> {
    vec![
        Expression::Ct { key: 0, direction: None, into: Register(0) },
        Expression::Compare { from: Register(0), by: Comparison::Equal, value: vec![8, 0, 0, 0] },
    ]
}

/// Drops new IPv4 connections.
fn stateful() -> Arc<Firewall> {
    let drops = vec![Expression::Verdict(Verdict::Drop)];
    forward(Family::Ipv4, true, vec![[tests_state(), drops].concat()])
}

fn settings(firewall: Arc<Firewall>) -> Event {
    Event::Settings(HOST, Settings { firewall, ..choosing() })
}

fn rules(ops: &[Op]) -> usize {
    ops.iter().filter(|op| matches!(op, Op::Rules { .. })).count()
}

fn is_on(bench: &Bench) -> Vec<(bool, bool)> {
    bench.model.interfaces.values().map(|i| (i.ipv4, i.ipv6)).collect()
}

fn view(bench: &Bench) -> RouterView {
    bench.mirror.routers().find(|router| router.namespace == HOST).unwrap()
}

#[test]
fn chains_that_accept_all_change_nothing() {
    let mut bench = Bench::host(vec![], vec![]);
    bench.after([settings(forward(Family::Inet, true, vec![]))]);
    assert_eq!(bench.model.routers[&0].rules, [None, None]);
    assert_eq!(is_on(&bench), [(true, true); 2]);
    assert_eq!((view(&bench).ruled, bench.mirror.rules(HOST)[0].is_some()), ([false; 2], true));
}

#[test]
fn rules_that_affect_all_packets_keep_a_version_with_the_kernel() {
    let mut bench = Bench::host(vec![], vec![]);
    bench.after([settings(forward(Family::Ipv4, false, vec![]))]);
    assert_eq!(is_on(&bench), [(false, true); 2]);
    let sentence = Code::FirewallRule.cause("nftables chain ip t f drops packets that no rule accepts");
    assert_eq!((view(&bench).ipv4, view(&bench).ipv6), (vec![sentence], vec![]));
    bench.after([settings(Arc::default())]);
    assert_eq!((is_on(&bench), view(&bench).ipv4), (vec![(true, true); 2], vec![]));
}

/// Codes never change, so each must be right from the beginning.
#[test]
fn an_obstacle_has_the_code_of_its_kind() {
    for (why, code) in [
        (Why::Translates("masquerade".into()), Code::Nat),
        (Why::TooMuch, Code::FirewallTooLarge),
        (Why::Drops, Code::FirewallRule),
        (Why::Hidden, Code::FirewallRule),
    ] {
        let (table, chain) = ("t".to_owned(), "f".to_owned());
        let obstacle = Obstacle { family: Family::Ipv4, table, chain, handle: None, why };
        assert_eq!(obstacle.code(), code, "{obstacle}");
    }
}

#[test]
fn rules_for_one_device_leave_others_alone() {
    let mut bench = Bench::host(vec![], vec![]);
    // The third device, if9, is on no port.
    bench.after([settings(forward(Family::Ipv4, true, vec![drops(7, 9)]))]);
    assert_eq!((is_on(&bench), view(&bench).ruled), (vec![(true, true); 2], [true, false]));
    let table = bench.model.routers[&0].rules[0].clone().unwrap();
    assert_eq!([(1, 1), (1, 2), (2, 1)].map(|(from, to)| table.pair(from, to)), [FREE, LINUX, FREE]);
    let groups: Vec<_> = bench.model.interfaces.values().map(|i| i.group).collect();
    assert_eq!(groups, [1, 1]);
    let views = bench.mirror.rules(HOST);
    let [Some(v4), None] = &views else { panic!("{views:?}") };
    assert_eq!(v4.groups[&1], ["if1", "if2"]);
    let why = |from, to| v4.pairs.iter().find(|p| (p.from, p.to) == (from, to)).unwrap().why_not.clone();
    assert_eq!(why(1, 1), None);
    assert_eq!(why(1, 2).unwrap(), "rule with handle 1 of nftables chain ip t f may drop packets");
    assert_eq!(why(2, 1), None);
}

#[test]
fn rules_that_test_states_affect_replies() {
    let mut bench = Bench::host(vec![], vec![]);
    let drops_new = |key, device| [tests_state(), drops(key, device)].concat();
    bench.after([settings(forward(Family::Ipv4, true, vec![drops_new(7, 9)]))]);
    let why = |bench: &Bench, from, to| {
        let [v4, _] = bench.mirror.rules(HOST);
        v4.unwrap().pairs.into_iter().find(|p| (p.from, p.to) == (from, to)).unwrap().why_not
    };
    assert_eq!(why(&bench, 1, 1), None);
    assert!(why(&bench, 2, 1).unwrap().starts_with("rules may affect replies"));
    // Any packet may have replies that come in by if9.
    bench.after([settings(forward(Family::Ipv4, true, vec![drops_new(6, 9)]))]);
    assert_eq!((is_on(&bench), view(&bench).ruled), (vec![(false, true); 2], [false; 2]));
    assert!(
        view(&bench).ipv4[0].contains("rule with handle 1 of nftables chain ip t f"),
        "{:?}",
        view(&bench).ipv4
    );
}

#[test]
fn excepted_addresses_stay_with_the_kernel() {
    let mut bench = Bench::host(vec![], vec![]);
    bench.after([settings(forward(Family::Ipv4, true, vec![drops_source()]))]);
    let table = bench.model.routers[&0].rules[0].clone().unwrap();
    assert_eq!(table.pair(1, 1), FREE_EXCEPT);
    let (low, high) = (vec![10, 9, 0, 0], vec![10, 9, 255, 255]);
    assert_eq!(table.exceptions, [Exception { part: AddressPart::Source, low, high }]);
    assert_eq!(bench.mirror.rules(HOST)[0].as_ref().unwrap().exceptions, ["10.9.0.0-10.9.255.255"]);
}

#[test]
fn another_name_of_a_device_is_another_group() {
    let mut bench = Bench::host(vec![], vec![]);
    bench.after([settings(forward(Family::Ipv4, true, vec![drops(7, 1)]))]);
    let pair = |bench: &Bench, from: u16, to: u16| {
        let group = |id: u16| bench.model.interfaces[&id].group;
        bench.model.routers[&0].rules[0].as_ref().map(|table| table.pair(group(from), group(to)))
    };
    assert_eq!([pair(&bench, 2, 1), pair(&bench, 2, 2)], [Some(LINUX), Some(FREE)]);
    let ops = bench.after([
        Event::Link(HOST, Link { name: "other".into(), ..physical(1) }),
        Event::Link(HOST, Link { name: "if1".into(), ..physical(9) }),
    ]);
    assert_eq!([pair(&bench, 2, 1), pair(&bench, 1, 2)], [Some(FREE); 2]);
    assert_eq!(rules(&ops), 2, "closed while groups change, then open");
    bench.after([Event::Link(HOST, physical(9))]);
    assert_eq!([pair(&bench, 2, 1), pair(&bench, 1, 2)], [Some(FREE); 2], "no device has that name");
    assert_eq!(view(&bench).ruled, [false; 2]);
}

#[test]
fn rules_are_looked_at_little_by_little() {
    // Each pair takes many steps, because each rule asks for something unknown.
    let long = (0..4000).map(|_| {
        vec![
            Expression::Payload { header: Header::Network, offset: 1, bytes: 1, into: Register(0) },
            Expression::Compare { from: Register(0), by: Comparison::Equal, value: vec![1] },
            Expression::Verdict(Verdict::Accept),
        ]
    });
    let rules = (1..=4).map(|n| drops(7, 20 + n)).chain(long).collect();
    let mut bench = Bench::host(vec![], vec![]);
    let more = (21..=24).map(|ifindex| Event::Link(HOST, Link { up: false, ..physical(ifindex) }));
    more.for_each(|event| bench.see(event));
    bench.see(settings(forward(Family::Ipv4, true, rules)));
    let mut plans = 0;
    loop {
        bench.model.is_behind = true;
        let ops = bench.mirror.plan();
        bench.model.apply(&ops);
        plans += 1;
        let unsure = view(&bench).ipv4 == ["Millrace is still checking the rules of its firewall"];
        assert!(unsure || !view(&bench).ipv4.is_empty() || is_on(&bench)[0].0);
        if !bench.mirror.is_judging() {
            break;
        }
    }
    assert!(plans > 2, "{plans}");
    bench.model.is_behind = false;
    assert_eq!(view(&bench).ruled, [true, false]);
}

#[test]
fn a_change_of_rules_or_devices_voids_connections() {
    let mut bench = Bench::host(vec![], vec![]);
    let generation = |bench: &Bench| bench.model.routers[&0].generation;
    bench.after([settings(stateful())]);
    assert_eq!((is_on(&bench), generation(&bench)), (vec![(false, true); 2], 0), "nobody admits connections");
    bench.after([settings(Arc::default())]);
    bench.mirror.admit_connections();
    bench.after([settings(stateful())]);
    let first = generation(&bench);
    assert_ne!(first, 0);
    assert_eq!((is_on(&bench), view(&bench).ruled), (vec![(true, true); 2], [true, false]));
    assert_eq!(view(&bench).ipv4, [""; 0]);
    let [v4, _] = bench.mirror.rules(HOST);
    let pair = &v4.unwrap().pairs[0];
    let dropped = "rule with handle 1 of nftables chain ip t f may drop packets";
    assert_eq!((pair.why_not.as_deref(), &pair.established), (Some(dropped), &Some(Established::Accepted)));
    let rules: Vec<_> = bench.mirror.connection_rules().collect();
    assert_eq!((rules[0].router, rules[0].generation, rules.len()), (0, first, 1));
    assert_eq!(rules[0].firewall, stateful());
    let names: Vec<_> = rules[0].devices.iter().map(|(id, device)| (*id, device.name.as_str())).collect();
    assert_eq!(names, [(1, "if1"), (2, "if2")]);

    let mut last = first;
    let mut renewed = |bench: &Bench| generation(bench) != std::mem::replace(&mut last, generation(bench));
    bench.after([Event::Link(HOST, physical(7))]);
    assert!(!renewed(&bench), "a new device");
    bench.after([Event::Link(HOST, Link { mtu: 1400, ..physical(2) })]);
    assert!(!renewed(&bench), "rules cannot ask for the MTU");
    bench.after([Event::Link(HOST, Link { name: "other".into(), ..physical(2) })]);
    assert!(renewed(&bench), "another name");
    bench.after([Event::LinkGone(HOST, 7)]);
    assert!(renewed(&bench), "a device that is gone");
    bench.after([Event::Link(HOST, Link { mac: mac(77), ..physical(2) })]);
    assert!(renewed(&bench), "another MAC, so the interface has another number");
    bench.after([settings(forward(Family::Ipv4, false, vec![tests_state()]))]);
    assert!(renewed(&bench), "other rules");
    bench.after([settings(any(5))]);
    assert_eq!(generation(&bench), 0, "rules that look at no connection");
    bench.after([settings(stateful())]);
    assert!(renewed(&bench) && generation(&bench) > first, "the same rules again");
    bench.after([settings(Arc::default())]);
    assert_eq!((generation(&bench), bench.mirror.connection_rules().count()), (0, 0));
}
