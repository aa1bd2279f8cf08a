use super::{
    super::pairs::{FREE, FREE_EXCEPT, GROUPS, LINUX, Pair, PairTable, Pairs, UNPROVEN},
    *,
};
use crate::firewall::ruleset::{Addresses, Firewall, Operand};
use proptest::prelude::*;
use std::{collections::BTreeSet, sync::Arc};

fn undecided(ruleset: Ruleset) -> Pairs {
    Pairs::new(Arc::new(Firewall { rules: ruleset, ..Firewall::default() }), Version::V4)
}

/// The decisions about all pairs of these devices, and the group of each.
fn decided(ruleset: Ruleset, devices: &[Device]) -> (Pairs, Vec<u8>) {
    let mut pairs = undecided(ruleset);
    let groups = devices.iter().map(|device| pairs.group(device)).collect();
    pairs.advance(&mut u32::MAX.clone());
    assert!(pairs.is_done());
    (pairs, groups)
}

fn is_accepted(pairs: &Pairs, from: u8, to: u8) -> bool {
    let pair = pairs.all().find(|(f, t, _)| (*f, *t) == (from, to)).unwrap().2;
    matches!(pair, Pair::Accepted(_))
}

fn devices(count: u32) -> Vec<Device> {
    (1..=count).map(|i| device(i, &format!("eth{i}"))).collect()
}

#[test]
fn devices_that_no_rule_tells_apart_form_a_group() {
    let ruleset = forward(vec![
        and(name(6, "eth2"), and(name(7, "eth3"), accept())),
        // By a prefix, and by number.
        vec![Meta { key: 7, into: R }, is(b"eth4"), Ends(Verdict::Accept)],
        vec![Meta { key: 4, into: R }, is(&6u32.to_ne_bytes()), Ends(Verdict::Accept)],
        drop(),
    ]);
    let (pairs, groups) = decided(ruleset, &devices(50));
    // eth4 and eth40 to eth49 share a prefix.
    assert_eq!(groups[..8], [1, 2, 3, 4, 1, 5, 1, 1]);
    assert!(groups[39..49].iter().all(|group| *group == 4));
    assert_eq!((groups[49], pairs.members().count()), (1, 5));
    assert!(is_accepted(&pairs, 2, 3) && !is_accepted(&pairs, 3, 2));
    assert!(is_accepted(&pairs, 1, 4) && is_accepted(&pairs, 5, 1));
}

#[test]
fn the_number_of_groups_and_steps_is_bounded() {
    let names =
        |count: u32| forward((1..=count).map(|i| and(name(6, &format!("eth{i}")), accept())).collect());
    let groups = |ruleset: Ruleset| {
        let (pairs, groups) = decided(ruleset, &devices(40));
        assert_eq!(pairs.are_too_many(), groups.contains(&UNPROVEN));
        (pairs.members().count(), pairs.are_too_many())
    };
    assert_eq!(groups(names(14)), (GROUPS - 1, false));
    assert_eq!(groups(names(15)), (GROUPS - 1, true));
    assert_eq!(groups(names(1025)), (0, true), "too many constants");
    let (pairs, _) = decided(names(1000), &devices(20));
    assert!(pairs.are_too_many(), "too many comparisons");
    // Elements behind the limit tell devices apart, too.
    let key = |device: &str, n: u16| {
        let mut key = device.as_bytes().to_vec();
        key.resize(16, 0);
        key.extend([10, 0, (n >> 8) as u8, n as u8]);
        element(&key, &key, Value::None)
    };
    let elements = (0..3000).map(|n| key("eth1", n)).chain([key("eth2", 0)]).collect();
    let load = Payload { header: Header::Network, offset: 12, bytes: 4, into: Register(16) };
    let rule = vec![Meta { key: 6, into: R }, load, lookup(Into::Nowhere), Ends(Verdict::Drop)];
    let long = with_set(forward(vec![rule]), Set { parts: vec![16, 4], elements, ..Set::default() });
    assert_eq!(decided(long, &devices(3)).1, [1, 2, 3]);
    // A rule that computes with a name makes each device a group.
    let masked = vec![
        Meta { key: 6, into: R },
        Expression::Mask { from: R, into: R, mask: vec![0xf0; 16], xor: vec![0; 16] },
        is(&[0x60; 16]),
        Ends(Verdict::Drop),
    ];
    assert_eq!(groups(forward(vec![masked.clone()])), (GROUPS - 1, true));
    assert_eq!(decided(forward(vec![masked]), &devices(3)).1, [1, 2, 3]);
    // A device whose name is not known may be any.
    assert_eq!(decided(names(1), &[device(1, "eth\u{fffd}ff")]).1, [UNPROVEN]);

    // Few steps at a time end with the same decisions.
    let (all, _) = decided(names(3), &devices(4));
    let mut slowly = undecided(names(3));
    devices(4).iter().for_each(|device| _ = slowly.group(device));
    let mut rounds = 0;
    while !slowly.is_done() {
        assert!(slowly.advance(&mut 1));
        rounds += 1;
    }
    assert!(!slowly.advance(&mut 1));
    assert_eq!(rounds, 16);
    assert!(all.all().eq(slowly.all()));
}

#[test]
fn chains_bound_to_devices_tell_them_apart() {
    let mut chain = base(Hook::Ingress, 0, true, vec![drop()]);
    chain.base.as_mut().unwrap().devices = Devices::Named(vec!["eth2".into()]);
    let mut all = devices(4);
    all[3].below = vec!["eth2".into()];
    let (pairs, groups) = decided(table(vec![("i", chain)]), &all);
    assert_eq!(groups, [1, 2, 1, 3]);
    assert_eq!([1, 2, 3].map(|from| is_accepted(&pairs, from, 1)), [true, false, false]);
}

fn rows(table: &PairTable, groups: u8) -> Vec<Vec<u64>> {
    (1..=groups).map(|from| (1..=groups).map(|to| table.pair(from, to)).collect()).collect()
}

#[test]
fn empty_chains_affect_nothing() {
    let empty = || table(vec![("f", base(Hook::Forward, 0, true, vec![]))]);
    assert_eq!(decided(empty(), &devices(3)).0.table(), None);
    assert_ne!(decided(forward(vec![]), &devices(3)).0.table(), None, "its policy drops packets");
    // A rule that accepts all may still drop fragments and truncated packets.
    let (accepts, _) = decided(forward(vec![accept()]), &devices(3));
    assert_eq!(rows(&accepts.table().unwrap(), 1), [[FREE]]);
    // Nothing is known before a decision.
    let mut pairs = undecided(forward(vec![accept()]));
    pairs.group(&device(1, "eth1"));
    assert_eq!(pairs.table(), Some(PairTable::default()));
}

/// Drops packets of new connections.
fn drops_new() -> Vec<Expression> {
    let state = vec![Ct { key: 0, direction: None, into: R }, is(&8u32.to_ne_bytes())];
    [state, drop()].concat()
}

#[test]
fn replies_need_free_pairs_where_rules_track_connections() {
    let from_to = |from: &str, to: &str, rule| and(name(6, from), and(name(7, to), rule));
    let tables = |rule: Vec<Expression>| {
        let (pairs, groups) = decided(forward(vec![rule, accept()]), &devices(3));
        assert_eq!(groups, [1, 2, 3]);
        let table = pairs.table().unwrap();
        assert!(table.exceptions.is_empty());
        assert_eq!([table.pair(0, 1), table.pair(1, 0)], [LINUX; 2]);
        rows(&table, 3)
    };
    // Packets from eth2 to eth1. Without states, this concerns no others.
    assert_eq!(tables(from_to("eth2", "eth1", drop())), [[FREE; 3], [LINUX, FREE, FREE], [FREE; 3]]);
    // With states, a connection that uses eth1 may have replies there.
    let tracked = tables(from_to("eth2", "eth1", drops_new()));
    assert_eq!(tracked, [[LINUX; 3], [LINUX, FREE, FREE], [LINUX, FREE, FREE]]);
    // Replies to packets of a free pair are free.
    let opposite: Vec<Vec<_>> = (0..3).map(|from| tracked.iter().map(|row| row[from]).collect()).collect();
    assert_eq!(tracked, opposite);
}

/// A NAT chain with this rule, in front of routing or behind it.
fn translating(hook: Hook, rule: Vec<Expression>) -> Ruleset {
    let mut chain = base(hook, 0, true, vec![rule]);
    chain.base.as_mut().unwrap().nat = true;
    table(vec![("n", chain)])
}

#[test]
fn packets_of_translated_connections_are_left_out() {
    let constant = |at: u8, bytes: &[u8]| Expression::Constant { value: bytes.to_vec(), into: Register(at) };
    let of_version = |version, kind: fn(Operand, Operand) -> Addresses, low, high| Expression::Translate {
        name: "nat",
        version,
        into: kind(Operand::Register(Register(low)), Operand::Register(Register(high))),
    };
    let into = |kind, low, high| of_version(None, kind, low, high);
    let exception =
        |part, low: [u8; 4], high: [u8; 4]| Exception { part, low: low.into(), high: high.into() };
    let near = [192, 0, 2, 1];

    // The rule translates packets that come in by eth2, so no connection there, or with replies there, is free.
    let one = and(name(6, "eth2"), vec![constant(0, &[10, 0, 0, 5]), into(Addresses::Destination, 0, 0)]);
    let (pairs, _) = decided(translating(Hook::Prerouting, one), &devices(3));
    let table = pairs.table().unwrap();
    assert_eq!(table.exceptions, [exception(AddressPart::Source, [10, 0, 0, 5], [10, 0, 0, 5])]);
    assert_eq!(rows(&table, 2), [[LINUX; 2]; 2]);

    let low_high = vec![constant(4, &near), constant(8, &[192, 0, 2, 9]), into(Addresses::Source, 4, 8)];
    let (pairs, _) = decided(translating(Hook::Postrouting, and(name(7, "eth9"), low_high)), &devices(3));
    let table = pairs.table().unwrap();
    assert_eq!(table.exceptions, [exception(AddressPart::Destination, near, [192, 0, 2, 9])]);
    assert_eq!(rows(&table, 1), [[FREE_EXCEPT]]);

    // Of a map, and with a port behind it.
    let map = Set {
        parts: vec![2],
        elements: vec![
            element(&[0, 80], &[0, 80], Value::Bytes([&[10, 0, 0, 5][..], &[0, 80, 0, 0]].concat())),
            element(&[0, 81], &[0, 81], Value::Bytes([&[10, 0, 0, 6][..], &[0, 80, 0, 0]].concat())),
        ],
        ..Set::default()
    };
    let by_map = || and(name(6, "eth9"), vec![lookup(Into::Register(R)), into(Addresses::Destination, 0, 0)]);
    let (pairs, _) = decided(with_set(translating(Hook::Prerouting, by_map()), map.clone()), &devices(3));
    assert_eq!(
        pairs.table().unwrap().exceptions,
        [5, 6].map(|n| exception(AddressPart::Source, [10, 0, 0, n], [10, 0, 0, n]))
    );

    // Nobody knows the new address.
    let unknown = [
        (by_map(), Set { changing: true, ..map }),
        (vec![constant(0, &near), Meta { key: 3, into: R }, into(Addresses::Source, 0, 0)], Set::default()),
        (vec![into(Addresses::Source, 0, 0)], Set::default()),
        (vec![Expression::Translate { name: "dnat", version: None, into: Addresses::Any }], Set::default()),
        (vec![Other("-j NETMAP".into())], Set::default()),
    ];
    for (rule, set) in unknown {
        let rule = and(name(6, "eth9"), rule);
        let (pairs, _) = decided(with_set(translating(Hook::Prerouting, rule), set), &devices(3));
        assert_eq!(pairs.table(), Some(PairTable::default()));
        assert!(matches!(&pairs.hindrance().unwrap().why, Why::Translates(_)));
    }
    // Neither an address of the router nor one of the other version is an exception, and a log translates nothing.
    let own = Expression::Translate { name: "masquerade", version: None, into: Addresses::Own };
    let six = vec![constant(0, &[0x20; 16]), of_version(Some(Version::V6), Addresses::Source, 0, 0)];
    for rule in [vec![own], six, vec![Other("log".into())]] {
        let rule = and(name(7, "eth9"), rule);
        let table = decided(translating(Hook::Postrouting, rule), &devices(3)).0.table().unwrap();
        assert_eq!((table.exceptions.len(), table.pair(1, 1)), (0, FREE));
    }
}

/// Linux continues to translate a connection whose route moves to a device that the rule does not name.
#[test]
fn a_translated_connection_can_change_its_route() {
    let masquerade = Expression::Translate { name: "masquerade", version: None, into: Addresses::Own };
    let by_device = and(name(7, "eth2"), vec![masquerade.clone()]);
    let (pairs, groups) = decided(translating(Hook::Postrouting, by_device), &devices(3));
    assert_eq!(groups, [1, 2, 1]);
    assert_eq!(rows(&pairs.table().unwrap(), 2), [[LINUX; 2]; 2]);
    // With its address, the connection can be told from others.
    let source = Payload { header: Header::Network, offset: 12, bytes: 4, into: R };
    let by_source = |step| [vec![source.clone(), is(&[10, 0, 0, 5])], step].concat();
    let dropped = base(Hook::Forward, 0, true, vec![and(name(7, "eth2"), drop())]);
    let mut chain = base(Hook::Postrouting, 0, true, vec![and(name(7, "eth2"), by_source(vec![masquerade]))]);
    chain.base.as_mut().unwrap().nat = true;
    let (pairs, _) = decided(table(vec![("f", dropped), ("n", chain)]), &devices(3));
    let found = pairs.table().unwrap();
    let bytes = vec![10, 0, 0, 5];
    let exception = Exception { part: AddressPart::Source, low: bytes.clone(), high: bytes };
    assert_eq!(found.exceptions, [exception], "also of a pair that rules drop");
    assert_eq!(rows(&found, 2), [[FREE_EXCEPT, LINUX], [LINUX; 2]]);
}

#[test]
fn connections_translated_by_rules_that_are_gone_are_left_out() {
    let table = |rules: Ruleset, translated: Option<BTreeSet<_>>| {
        let mut pairs = Pairs::new(Arc::new(Firewall { rules, translated }), Version::V4);
        pairs.group(&device(1, "eth1"));
        pairs.advance(&mut u32::MAX.clone());
        pairs.table().unwrap()
    };
    let empty = || translating(Hook::Postrouting, vec![]);
    let addresses = |count: u8| {
        let other = "2001:db8::1".parse().unwrap();
        Some((0..count).map(|n| [10, 0, 0, n].into()).chain([other]).collect())
    };
    assert_eq!(table(empty(), addresses(0)).pair(1, 1), FREE);
    let few = table(empty(), addresses(16));
    assert_eq!((few.exceptions.len(), few.pair(1, 1)), (16, FREE_EXCEPT));
    assert_eq!(table(empty(), addresses(17)), PairTable::default());
    assert_eq!(table(empty(), None), PairTable::default());
    // A range that contains them is enough.
    let low_high = vec![
        Expression::Constant { value: vec![10, 0, 0, 0], into: R },
        Expression::Constant { value: vec![10, 0, 0, 255], into: Register(4) },
        Expression::Translate {
            name: "snat",
            version: Some(Version::V4),
            into: Addresses::Source(Operand::Register(R), Operand::Register(Register(4))),
        },
    ];
    let pool = table(translating(Hook::Postrouting, and(name(7, "eth9"), low_high)), addresses(200));
    assert_eq!((pool.exceptions.len(), pool.pair(1, 1)), (1, FREE_EXCEPT));
    // Without conntrack, nothing is translated.
    let (pairs, _) = decided(forward(vec![accept()]), &devices(1));
    assert_eq!(pairs.table().unwrap().pair(1, 1), FREE);
}

#[test]
fn keys_longer_than_a_name_tell_devices_apart() {
    // Older versions of nft do not say of which parts a key consists.
    let key = |device: &str| {
        let mut key = device.as_bytes().to_vec();
        key.resize(16, 0);
        [&key[..], &[10, 9, 0, 1]].concat()
    };
    let elements = vec![element(&key("eth1"), &key("eth1"), Value::None)];
    let load = Payload { header: Header::Network, offset: 12, bytes: 4, into: Register(16) };
    let rule = vec![Meta { key: 6, into: R }, load, lookup(Into::Nowhere), Ends(Verdict::Drop)];
    let set = Set { parts: vec![20], elements, ..Set::default() };
    let (pairs, groups) = decided(with_set(forward(vec![rule, accept()]), set), &devices(3));
    assert_eq!(groups, [1, 2, 3]);
    assert!(!is_accepted(&pairs, 1, 2) && is_accepted(&pairs, 2, 3));
}

/// A rule with up to two questions about devices.
fn rule() -> impl Strategy<Value = Vec<Expression>> {
    let question = (4_u32..8, 1_u32..8, 0_usize..6, 1_usize..6).prop_map(|(key, number, by, length)| {
        let by = Comparison::ALL[by];
        let value = match key {
            4 | 5 => number.to_ne_bytes().to_vec(),
            _ => [format!("eth{number}").as_bytes(), &[0]].concat()[..length.min(5)].to_vec(),
        };
        vec![Meta { key, into: R }, Compare { from: R, by, value }]
    });
    let in_set = (6_u32..8).prop_map(|key| {
        let other = if key == 6 { 7 } else { 6 };
        vec![Meta { key, into: R }, Meta { key: other, into: Register(16) }, lookup(Into::Nowhere)]
    });
    let questions = prop::collection::vec(prop_oneof![3 => question, 1 => in_set], 0..3);
    (questions, any::<bool>()).prop_map(|(questions, accepts)| {
        let verdict = if accepts { Verdict::Accept } else { Verdict::Drop };
        questions.concat().into_iter().chain([Ends(verdict)]).collect()
    })
}

proptest! {
    #![proptest_config(crate::cases(60))]

    /// Groups give the answer that each pair of devices would have had.
    #[test]
    fn groups_agree_with_single_devices(rules in prop::collection::vec(rule(), 1..5), named in prop::collection::vec((1_u32..8, 1_u32..8), 1..4)) {
        let key = |number: u32| {
            let mut bytes = format!("eth{number}").into_bytes();
            bytes.resize(16, 0);
            bytes
        };
        let mut elements: Vec<_> = named
            .into_iter()
            .map(|(a, b)| { let both = [key(a), key(b)].concat(); element(&both, &both, Value::None) })
            .collect();
        elements.sort_by(|a, b| a.low.cmp(&b.low));
        let ruleset = with_set(forward(rules), Set { parts: vec![16, 16], elements, ..Set::default() });
        let all = devices(8);
        let (pairs, groups) = decided(ruleset.clone(), &all);
        for (i, input) in all.iter().enumerate() {
            for (j, output) in all.iter().enumerate() {
                let one = Traffic { version: Version::V4, input: input.clone(), output: output.clone(), scope: Scope::All };
                let by_group = pairs.all().find(|(from, to, _)| (*from, *to) == (groups[i], groups[j])).unwrap().2;
                let alone = prove(&ruleset, &one).map(|proof| proof.except);
                let by_group = match by_group {
                    Pair::Accepted(except) => Ok(except.clone()),
                    Pair::Ruled { obstacle, .. } => Err(obstacle.clone()),
                    other => panic!("{other:?}"),
                };
                prop_assert_eq!(alone, by_group, "{} {}", i, j);
            }
        }
    }
}
