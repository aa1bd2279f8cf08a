mod of_connections;
mod of_pairs;

use super::{
    prove::{AddressPart, Exception, Obstacle, Proof, Why, prove},
    ruleset::{
        Base, Chain, Comparison, Devices, Element, Expression, Family, Header, Hook, Into, Register, Rule,
        Ruleset, Set, Table, Value, Verdict,
    },
    traffic::{
        ASSURED, CONFIRMED, DST_NAT, Device, Direction, SEEN_REPLY, SRC_NAT, Scope, TCP, Traffic, Tuple, UDP,
        Version,
    },
};
use Expression::{Compare, Count, Ct, Lookup, Meta, Other, Payload, Verdict as Ends};
use std::{sync::Arc, time::Duration};

/// The steps of a few rules.
type List = Vec<Vec<Expression>>;

const R: Register = Register(0);

fn device(ifindex: u32, name: &str) -> Device {
    Device { ifindex, name: name.into(), below: Vec::new() }
}

fn traffic(scope: Scope) -> Traffic {
    Traffic { version: Version::V4, input: device(2, "lan"), output: device(3, "wan"), scope }
}

pub fn any_traffic() -> Traffic {
    traffic(Scope::Established { protocol: TCP })
}

fn tuple(source: &str, destination: &str) -> Tuple {
    let (source, destination): (std::net::SocketAddr, std::net::SocketAddr) =
        (source.parse().unwrap(), destination.parse().unwrap());
    Tuple {
        source: source.ip(),
        destination: destination.ip(),
        source_port: source.port(),
        destination_port: destination.port(),
    }
}

/// A connection behind a masquerade, seen in one direction.
fn masqueraded(reply: bool) -> Scope {
    Scope::Connection(Box::new(Direction {
        protocol: TCP,
        reply,
        tuples: [tuple("10.0.0.2:5000", "192.0.2.1:80"), tuple("192.0.2.1:80", "198.51.100.1:6000")],
        status: SEEN_REPLY | ASSURED | CONFIRMED | SRC_NAT,
    }))
}

fn rules(rules: List) -> Vec<Rule> {
    let rules = rules.into_iter().enumerate();
    rules.map(|(i, expressions)| Rule { handle: i as u64 + 1, expressions }).collect()
}

fn base(hook: Hook, priority: i32, accepts: bool, list: List) -> Chain {
    let base = Base { hook, priority, nat: false, accepts, devices: Devices::All };
    Chain { base: Some(base), rules: rules(list) }
}

fn table(chains: Vec<(&str, Chain)>) -> Ruleset {
    Ruleset {
        tables: vec![Arc::new(Table {
            family: Family::Inet,
            name: "t".into(),
            dormant: false,
            chains: chains.into_iter().map(|(name, chain)| (name.into(), chain)).collect(),
            sets: Default::default(),
        })],
    }
}

/// A chain on forward, with policy drop.
fn forward(list: List) -> Ruleset {
    table(vec![("f", base(Hook::Forward, 0, false, list))])
}

fn is(value: &[u8]) -> Expression {
    Compare { from: R, by: Comparison::Equal, value: value.into() }
}

fn is_not(value: &[u8]) -> Expression {
    Compare { from: R, by: Comparison::Unequal, value: value.into() }
}

/// `ct state` with any of these bits.
fn state(bits: u32) -> Vec<Expression> {
    let (mask, xor) = (bits.to_ne_bytes().to_vec(), vec![0; 4]);
    vec![
        Ct { key: 0, direction: None, into: R },
        Expression::Mask { from: R, into: R, mask, xor },
        is_not(&[0; 4]),
    ]
}

fn name(key: u32, name: &str) -> Vec<Expression> {
    vec![Meta { key, into: R }, is(&[name.as_bytes(), &[0]].concat())]
}

fn source(bytes: &[u8]) -> Vec<Expression> {
    vec![Payload { header: Header::Network, offset: 12, bytes: bytes.len() as u32, into: R }, is(bytes)]
}

fn destination(bytes: &[u8]) -> Vec<Expression> {
    vec![Payload { header: Header::Network, offset: 16, bytes: bytes.len() as u32, into: R }, is(bytes)]
}

fn and(mut first: Vec<Expression>, then: Vec<Expression>) -> Vec<Expression> {
    first.extend(then);
    first
}

fn accept() -> Vec<Expression> {
    vec![Count, Ends(Verdict::Accept)]
}

fn drop() -> Vec<Expression> {
    vec![Ends(Verdict::Drop)]
}

fn jump(name: &str) -> Vec<Expression> {
    vec![Ends(Verdict::Jump(name.into()))]
}

const ESTABLISHED: u32 = 2 | 4;
const INVALID: u32 = 1;
const NEW: u32 = 8;

fn obstacle(ruleset: &Ruleset, scope: Scope) -> (String, Option<u64>, Why) {
    let Obstacle { chain, handle, why, .. } = prove(ruleset, &traffic(scope)).unwrap_err();
    (chain, handle, why)
}

fn proof(ruleset: &Ruleset, scope: Scope) -> Proof {
    prove(ruleset, &traffic(scope)).unwrap_or_else(|obstacle| panic!("{obstacle:?}"))
}

fn tcp() -> Scope {
    Scope::Established { protocol: TCP }
}

#[test]
fn a_stateful_filter_accepts_established_connections_only() {
    let ruleset = forward(vec![
        and(state(INVALID), drop()),
        and(state(ESTABLISHED), accept()),
        and(name(6, "lan"), accept()),
        vec![Other("log".into())],
    ]);
    assert_eq!(proof(&ruleset, tcp()), Proof::default());
    assert_eq!(proof(&ruleset, masqueraded(true)), Proof::default());
    // Any packet may be invalid.
    assert_eq!(obstacle(&ruleset, Scope::All), ("f".into(), Some(1), Why::Drops));
    // A connection that is not accepted where it is established meets the rest of the rules.
    let without = forward(vec![and(name(6, "wan"), accept()), vec![Other("log".into())]]);
    assert_eq!(obstacle(&without, tcp()), ("f".into(), Some(2), Why::Does("log".into())));
    let nothing = forward(vec![]);
    assert_eq!(obstacle(&nothing, tcp()), ("f".into(), None, Why::Policy));
}

#[test]
fn rules_for_other_devices_and_versions_do_not_matter() {
    let mut ruleset = table(vec![("f", base(Hook::Forward, 0, true, vec![and(name(7, "dmz"), drop())]))]);
    assert_eq!(proof(&ruleset, Scope::All), Proof::default());
    Arc::make_mut(&mut ruleset.tables[0]).chains.get_mut("f").unwrap().rules =
        rules(vec![and(name(7, "wan"), drop())]);
    assert_eq!(obstacle(&ruleset, Scope::All), ("f".into(), Some(1), Why::Drops));
    Arc::make_mut(&mut ruleset.tables[0]).family = Family::Ipv6;
    assert_eq!(proof(&ruleset, Scope::All), Proof::default());
    Arc::make_mut(&mut ruleset.tables[0]).family = Family::Ipv4;
    assert!(prove(&ruleset, &traffic(Scope::All)).is_err());
    Arc::make_mut(&mut ruleset.tables[0]).dormant = true;
    assert_eq!(proof(&ruleset, Scope::All), Proof::default());
    // On the way out, it has no input device any more.
    let out = table(vec![(
        "e",
        base(
            Hook::Egress,
            0,
            true,
            vec![vec![Meta { key: 6, into: R }, is_not(b"lan\0"), Ends(Verdict::Drop)]],
        ),
    )]);
    assert_eq!(obstacle(&out, tcp()), ("e".into(), Some(1), Why::Drops));
    // Before the packet is routed, it has no output device.
    let early = table(vec![("p", base(Hook::Prerouting, -150, true, vec![and(name(7, "dmz"), drop())]))]);
    assert_eq!(obstacle(&early, tcp()), ("p".into(), Some(1), Why::Drops));
}

#[test]
fn nat_concerns_the_first_packet_of_a_connection() {
    let mut chain = base(Hook::Postrouting, 100, true, vec![and(name(7, "wan"), vec![Other("masq".into())])]);
    chain.base.as_mut().unwrap().nat = true;
    let ruleset = table(vec![("n", chain)]);
    assert_eq!(proof(&ruleset, tcp()), Proof::default());
    assert_eq!(obstacle(&ruleset, Scope::All), ("n".into(), Some(1), Why::Does("masq".into())));
}

#[test]
fn addresses_are_those_at_the_hook() {
    let on = |hook, priority, step: Vec<Expression>| {
        table(vec![("c", base(hook, priority, false, vec![and(step, accept())]))])
    };
    let (client, router, server) = ([10, 0, 0, 2], [198, 51, 100, 1], [192, 0, 2, 1]);
    let rows = [
        // The client's packets have its address until their source is translated.
        (false, Hook::Forward, 0, source(&client), true),
        (false, Hook::Postrouting, 99, source(&client), true),
        (false, Hook::Postrouting, 101, source(&client), false),
        (false, Hook::Postrouting, 101, source(&router), true),
        (false, Hook::Prerouting, -300, destination(&server), true),
        // Replies have the router's address until their destination is translated.
        (true, Hook::Prerouting, -101, destination(&router), true),
        (true, Hook::Prerouting, -99, destination(&router), false),
        (true, Hook::Prerouting, -99, destination(&client), true),
        (true, Hook::Forward, 0, destination(&client), true),
        (true, Hook::Postrouting, 200, source(&server), true),
        // At the priority of NAT itself, either address is possible.
        (true, Hook::Prerouting, -100, destination(&client), false),
        (true, Hook::Prerouting, -100, destination(&router), false),
    ];
    for (reply, hook, priority, step, accepted) in rows {
        let ruleset = on(hook, priority, step);
        assert_eq!(
            prove(&ruleset, &traffic(masqueraded(reply))).is_ok(),
            accepted,
            "{reply} {hook:?} {priority} {ruleset:?}"
        );
    }
    // The addresses of a whole class are not known.
    assert!(prove(&on(Hook::Forward, 0, source(&client)), &traffic(tcp())).is_err());
}

#[test]
fn connections_are_known_from_conntrack_on() {
    let on = |priority| {
        let list = vec![and(state(INVALID), drop()), and(state(ESTABLISHED), accept()), drop()];
        table(vec![("p", base(Hook::Prerouting, priority, true, list))])
    };
    assert_eq!(obstacle(&on(-300), tcp()), ("p".into(), Some(1), Why::Drops));
    assert!(prove(&on(-200), &traffic(tcp())).is_err());
    assert_eq!(proof(&on(-199), tcp()), Proof::default());
    // Its direction, status and translation are those of the connection. Its mark and other bits of its status may change.
    let status = SEEN_REPLY | ASSURED | CONFIRMED | SRC_NAT;
    let of_status = |mask: u32, wanted: u32| {
        let (mask, xor) = (mask.to_ne_bytes().to_vec(), vec![0; 4]);
        let load = Ct { key: 2, direction: None, into: R };
        vec![load, Expression::Mask { from: R, into: R, mask, xor }, is(&wanted.to_ne_bytes())]
    };
    let rows = [
        (vec![Ct { key: 3, direction: None, into: R }, is(&0u32.to_ne_bytes())], false),
        (of_status(status | DST_NAT, status), true),
        (of_status(status | DST_NAT, status | DST_NAT), false),
        (of_status(1, 0), false),
        (vec![Ct { key: 1, direction: None, into: R }, is(&[1])], true),
        (vec![Ct { key: 8, direction: Some(0), into: R }, is(&[10, 0, 0, 2])], true),
        (vec![Ct { key: 12, direction: Some(1), into: R }, is(&6000u16.to_be_bytes())], true),
        (vec![Ct { key: 12, direction: Some(1), into: R }, is(&6000u16.to_le_bytes())], false),
        (vec![Ct { key: 10, direction: None, into: R }, is(&[TCP])], true),
        (vec![Ct { key: 10, direction: None, into: R }, is(&[UDP])], false),
        (vec![Ct { key: 15, direction: None, into: R }, is(&[0; 8])], false),
    ];
    for (step, accepted) in rows {
        let ruleset = forward(vec![and(step.clone(), accept())]);
        assert_eq!(prove(&ruleset, &traffic(masqueraded(true))).is_ok(), accepted, "{step:?}");
    }
}

#[test]
fn only_packets_that_the_kernel_plane_forwards_count() {
    let flags = |mask: u8, wanted: u8| {
        vec![
            Payload { header: Header::Transport, offset: 13, bytes: 1, into: R },
            Expression::Mask { from: R, into: R, mask: vec![mask], xor: vec![0] },
            is(&[wanted]),
        ]
    };
    // A clamp of the segment size looks at SYN.
    let clamp = forward(vec![and(flags(0x02, 0x02), vec![Other("exthdr".into())]), accept()]);
    assert_eq!(proof(&clamp, tcp()), Proof::default());
    assert!(prove(&clamp, &traffic(Scope::All)).is_err());
    let push = forward(vec![and(flags(0x08, 0x08), drop()), accept()]);
    assert_eq!(obstacle(&push, tcp()), ("f".into(), Some(1), Why::Drops));
    // UDP has no such byte: the rule ends there or matches.
    assert!(prove(&push, &traffic(Scope::Established { protocol: UDP })).is_err());
    let fragments = vec![
        Payload { header: Header::Network, offset: 6, bytes: 2, into: R },
        Expression::Mask { from: R, into: R, mask: vec![0x3f, 0xff], xor: vec![0, 0] },
        is_not(&[0, 0]),
    ];
    assert_eq!(proof(&forward(vec![and(fragments, drop()), accept()]), tcp()), Proof::default());
}

#[test]
fn chains_jump_return_and_end() {
    let inner = |list| Chain { base: None, rules: rules(list) };
    let rows: [(List, List, bool); 7] = [
        (vec![jump("c")], vec![accept()], true),
        (vec![jump("c"), accept()], vec![], true),
        (vec![jump("c")], vec![], false),
        (vec![jump("c"), accept()], vec![vec![Ends(Verdict::Return)], drop()], true),
        (vec![jump("c"), accept()], vec![and(source(&[10]), vec![Ends(Verdict::Return)]), accept()], true),
        // After a goto, the end of the chain leads to the policy, not to the next rule.
        (vec![vec![Ends(Verdict::Goto("c".into()))], accept()], vec![], false),
        (vec![jump("nowhere"), accept()], vec![], false),
    ];
    for (list, called, accepted) in rows {
        let mut ruleset = forward(list.clone());
        Arc::make_mut(&mut ruleset.tables[0]).chains.insert("c".into(), inner(called.clone()));
        assert_eq!(prove(&ruleset, &traffic(tcp())).is_ok(), accepted, "{list:?} {called:?}");
    }
    let mut endless = forward(vec![jump("c")]);
    Arc::make_mut(&mut endless.tables[0]).chains.insert("c".into(), inner(vec![jump("c")]));
    assert_eq!(obstacle(&endless, tcp()).2, Why::Malformed);
    // A verdict of one base chain does not end the others.
    let two = table(vec![
        ("a", base(Hook::Forward, -5, true, vec![accept()])),
        ("b", base(Hook::Forward, 5, false, vec![])),
    ]);
    assert_eq!(obstacle(&two, tcp()), ("b".into(), None, Why::Policy));
}

#[test]
fn chains_that_call_others_twice_are_followed_once() {
    let mut ruleset = forward(vec![jump("c0"), accept()]);
    for i in 0..15 {
        let next = format!("c{}", i + 1);
        let list = vec![jump(&next); 8];
        Arc::make_mut(&mut ruleset.tables[0])
            .chains
            .insert(format!("c{i}"), Chain { base: None, rules: rules(list) });
    }
    Arc::make_mut(&mut ruleset.tables[0]).chains.insert("c15".into(), Chain { base: None, rules: vec![] });
    assert_eq!(proof(&ruleset, tcp()), Proof::default());
    let many = (0..1_000_001).map(|_| vec![Count]).collect();
    assert_eq!(obstacle(&forward(many), tcp()).2, Why::TooMuch);
}

fn element(low: &[u8], high: &[u8], value: Value) -> Element {
    Element { low: low.into(), high: high.into(), value, expires_at: None }
}

fn with_set(mut ruleset: Ruleset, set: Set) -> Ruleset {
    Arc::make_mut(&mut ruleset.tables[0]).sets.insert("s".into(), set);
    ruleset
}

fn lookup(into: Into) -> Expression {
    Lookup { from: R, set: "s".into(), absent: false, into }
}

fn addresses(list: &[([u8; 4], [u8; 4])]) -> Set {
    let elements = list.iter().map(|(low, high)| element(low, high, Value::None)).collect();
    Set { parts: vec![4], elements, ..Set::default() }
}

#[test]
fn sets_are_looked_up() {
    let load = Payload { header: Header::Network, offset: 12, bytes: 4, into: R };
    let blocked = |set| {
        with_set(forward(vec![vec![load.clone(), lookup(Into::Nowhere), Ends(Verdict::Drop)], accept()]), set)
    };
    let far = addresses(&[([9, 0, 0, 0], [9, 255, 255, 255]), ([10, 0, 0, 3], [10, 0, 0, 9])]);
    let near = addresses(&[([9, 0, 0, 0], [9, 255, 255, 255]), ([10, 0, 0, 2], [10, 0, 0, 2])]);
    assert_eq!(proof(&blocked(far.clone()), masqueraded(false)), Proof::default());
    assert_eq!(obstacle(&blocked(near.clone()), masqueraded(false)).2, Why::Drops);
    assert_eq!(obstacle(&blocked(far.clone()), tcp()).2, Why::Drops);
    // Packets add to it: it may have any address.
    assert_eq!(obstacle(&blocked(Set { changing: true, ..far }), masqueraded(false)).2, Why::Drops);

    // An element that allows the connection holds until it expires.
    let allowed =
        |set| with_set(forward(vec![vec![load.clone(), lookup(Into::Nowhere), Ends(Verdict::Accept)]]), set);
    let mut expiring = near.clone();
    expiring.elements[0].expires_at = Some(Duration::from_secs(10));
    assert_eq!(proof(&allowed(expiring.clone()), masqueraded(false)).holds_until, None);
    expiring.elements[1].expires_at = Some(Duration::from_secs(20));
    assert_eq!(proof(&allowed(expiring), masqueraded(false)).holds_until, Some(Duration::from_secs(20)));
    let absent = Lookup { from: R, set: "s".into(), absent: true, into: Into::Nowhere };
    let ruleset =
        with_set(forward(vec![vec![load.clone(), absent, Ends(Verdict::Drop)], accept()]), near.clone());
    assert_eq!(proof(&ruleset, masqueraded(false)), Proof::default());
    assert_eq!(
        obstacle(&blocked(Set { effects: true, ..near }), masqueraded(false)).2,
        Why::Does("statements of @s".into())
    );
}

#[test]
fn maps_give_verdicts_and_values() {
    let verdicts = |list: &[(u8, Verdict)], otherwise| Set {
        parts: vec![1],
        elements: list.iter().map(|(key, v)| element(&[*key], &[*key], Value::Verdict(v.clone()))).collect(),
        otherwise,
        ..Set::default()
    };
    let by_protocol =
        |set| with_set(forward(vec![vec![Meta { key: 16, into: R }, lookup(Into::Verdict)], drop()]), set);
    let both = verdicts(&[(TCP, Verdict::Accept), (UDP, Verdict::Drop)], None);
    assert_eq!(proof(&by_protocol(both.clone()), tcp()), Proof::default());
    assert_eq!(obstacle(&by_protocol(both.clone()), Scope::Established { protocol: UDP }).2, Why::Drops);
    assert_eq!(obstacle(&by_protocol(both.clone()), Scope::All).2, Why::Drops);
    let changing = Set { changing: true, ..both };
    assert_eq!(obstacle(&by_protocol(changing), tcp()).2, Why::AsksChangingMap("s".into()));
    let otherwise = verdicts(&[(UDP, Verdict::Drop)], Some(Value::Verdict(Verdict::Accept)));
    assert_eq!(proof(&by_protocol(otherwise), tcp()), Proof::default());
    let missing = verdicts(&[(UDP, Verdict::Accept)], None);
    assert_eq!(obstacle(&by_protocol(missing), tcp()), ("f".into(), Some(2), Why::Drops));

    // A value is known if all elements that the key may match have the same value.
    let marks = |values: [u32; 2]| Set {
        parts: vec![1],
        elements: [TCP, UDP]
            .into_iter()
            .zip(values)
            .map(|(key, value)| element(&[key], &[key], Value::Bytes(value.to_ne_bytes().into())))
            .collect(),
        ..Set::default()
    };
    let by_value = |set| {
        let list = vec![
            vec![
                Meta { key: 16, into: R },
                lookup(Into::Register(Register(8))),
                Compare { from: Register(8), by: Comparison::Equal, value: 5u32.to_ne_bytes().into() },
                Ends(Verdict::Drop),
            ],
            accept(),
        ];
        with_set(forward(list), set)
    };
    assert_eq!(proof(&by_value(marks([4, 5])), tcp()), Proof::default());
    assert_eq!(obstacle(&by_value(marks([5, 4])), tcp()).2, Why::Drops);
    assert_eq!(proof(&by_value(marks([4, 4])), Scope::All), Proof::default());
    assert_eq!(obstacle(&by_value(marks([4, 5])), Scope::All).2, Why::Drops);
}

#[test]
fn elements_with_several_parts_may_overlap() {
    let verdict = |low: [u8; 8], high: [u8; 8], verdict| element(&low, &high, Value::Verdict(verdict));
    let key = [
        Payload { header: Header::Network, offset: 12, bytes: 4, into: R },
        Payload { header: Header::Transport, offset: 0, bytes: 2, into: Register(4) },
        lookup(Into::Verdict),
    ];
    let elements = vec![
        verdict([10, 0, 0, 0, 0, 0, 0, 0], [10, 0, 0, 255, 255, 255, 0, 0], Verdict::Accept),
        verdict([10, 0, 0, 1, 0, 0, 0, 0], [10, 0, 0, 9, 255, 255, 0, 0], Verdict::Drop),
    ];
    let ruleset = |elements| {
        with_set(forward(vec![key.to_vec()]), Set { parts: vec![4, 2], elements, ..Set::default() })
    };
    assert_eq!(obstacle(&ruleset(elements.clone()), masqueraded(false)).2, Why::Drops);
    assert_eq!(proof(&ruleset(elements[..1].to_vec()), masqueraded(false)), Proof::default());
}

#[test]
fn chains_of_nat_mark_the_first_packet_only() {
    let mark = vec![
        Expression::Constant { value: 5u32.to_ne_bytes().into(), into: R },
        Expression::SetMeta { key: 3, from: R },
    ];
    let mut nat = base(Hook::Prerouting, -150, true, vec![mark]);
    nat.base.as_mut().unwrap().nat = true;
    let unmarked = vec![Meta { key: 3, into: R }, is_not(&5u32.to_ne_bytes()), Ends(Verdict::Drop)];
    let ruleset = table(vec![("n", nat), ("f", base(Hook::Forward, 0, true, vec![unmarked]))]);
    assert_eq!(obstacle(&ruleset, Scope::All), ("f".into(), Some(1), Why::Drops));
}

#[test]
fn keys_have_parts() {
    let set = |port: u16| Set {
        parts: vec![4, 2],
        elements: vec![element(
            &[&[10, 0, 0, 0][..], &80u16.to_be_bytes(), &[0; 2]].concat(),
            &[&[10, 0, 0, 255][..], &port.to_be_bytes(), &[0; 2]].concat(),
            Value::None,
        )],
        ..Set::default()
    };
    let ruleset = |port| {
        let key = [
            Payload { header: Header::Network, offset: 12, bytes: 4, into: R },
            Payload { header: Header::Transport, offset: 0, bytes: 2, into: Register(4) },
            lookup(Into::Nowhere),
            Ends(Verdict::Accept),
        ];
        with_set(forward(vec![key.to_vec()]), set(port))
    };
    assert_eq!(proof(&ruleset(5000), masqueraded(false)), Proof::default());
    assert_eq!(obstacle(&ruleset(4999), masqueraded(false)).2, Why::Policy);
}

#[test]
fn addresses_that_rules_name_can_be_left_out() {
    // As Docker's: its own addresses are masqueraded, except towards its bridge.
    let masquerade = |step: Vec<Expression>| {
        let rule =
            and(step, and(vec![Meta { key: 7, into: R }, is_not(b"docker0\0")], vec![Other("masq".into())]));
        let mut chain = base(Hook::Postrouting, 100, true, vec![rule]);
        chain.base.as_mut().unwrap().nat = true;
        table(vec![("n", chain)])
    };
    let except = |part, low: [u8; 4], high: [u8; 4]| Exception { part, low: low.into(), high: high.into() };
    let docker = except(AddressPart::Source, [172, 17, 0, 0], [172, 17, 255, 255]);
    assert_eq!(proof(&masquerade(source(&[172, 17])), Scope::All).except, std::slice::from_ref(&docker));
    let masked = |mask: [u8; 4]| {
        vec![
            Payload { header: Header::Network, offset: 16, bytes: 4, into: R },
            Expression::Mask { from: R, into: R, mask: mask.into(), xor: vec![0; 4] },
            is(&[172, 16, 0, 0]),
        ]
    };
    let range = except(AddressPart::Destination, [172, 16, 0, 0], [172, 31, 255, 255]);
    assert_eq!(proof(&masquerade(masked([255, 240, 0, 0])), Scope::All).except, [range]);
    // These cannot be left out: a mask that is no prefix, an inverted match, and more than 16 ranges.
    assert!(prove(&masquerade(masked([255, 240, 0, 255])), &traffic(Scope::All)).is_err());
    let mut other = source(&[172, 17]);
    other[1] = is_not(&[172, 17]);
    assert!(prove(&masquerade(other), &traffic(Scope::All)).is_err());
    let list = |count: u8| {
        let list: Vec<_> = (0..count).map(|i| ([10, i, 0, 0], [10, i, 0, 255])).collect();
        let step =
            vec![Payload { header: Header::Network, offset: 12, bytes: 4, into: R }, lookup(Into::Nowhere)];
        with_set(masquerade(step), addresses(&list))
    };
    assert_eq!(proof(&list(16), Scope::All).except.len(), 16);
    assert!(prove(&list(17), &traffic(Scope::All)).is_err());
    // A rule that does nothing to these addresses excepts none.
    let harmless = forward(vec![and(source(&[172, 17]), vec![Count]), accept()]);
    assert_eq!(proof(&harmless, Scope::All), Proof::default());
}

#[test]
fn a_flow_table_is_reported_if_every_packet_reaches_it() {
    let add = || vec![Expression::AddFlow("ft".into())];
    let tables = |list| proof(&forward(list), tcp()).flow_tables.into_iter().collect::<Vec<_>>();
    assert_eq!(tables(vec![and(vec![Meta { key: 16, into: R }, is(&[TCP])], add()), accept()]), ["ft"]);
    assert_eq!(tables(vec![and(add(), accept()), accept()]), ["ft"]);
    assert_eq!(tables(vec![and(source(&[10]), add()), accept()]), [""; 0]);
    assert_eq!(tables(vec![and(source(&[10]), accept()), add(), accept()]), [""; 0]);
    assert_eq!(tables(vec![and(source(&[10]), vec![Count]), add(), accept()]), ["ft"]);
}

#[test]
fn devices_below_and_unknown_hooks_are_obstacles() {
    let ingress = |names: &[&str], list| {
        let mut chain = base(Hook::Ingress, 0, true, list);
        chain.base.as_mut().unwrap().devices = Devices::Named(names.iter().map(|n| (*n).into()).collect());
        table(vec![("i", chain)])
    };
    let mut on_vlan = traffic(tcp());
    on_vlan.input = Device { ifindex: 2, name: "lan.7".into(), below: vec!["lan".into()] };
    assert!(prove(&ingress(&["wan"], vec![drop()]), &on_vlan).is_ok());
    assert!(prove(&ingress(&["lan"], vec![]), &on_vlan).is_ok());
    assert_eq!(prove(&ingress(&["lan"], vec![vec![Count]]), &on_vlan).unwrap_err().why, Why::BelowVlan);
    assert_eq!(prove(&ingress(&["lan.7"], vec![drop()]), &on_vlan).unwrap_err().why, Why::Drops);
    let unknown = table(vec![("u", base(Hook::Unknown, 0, true, vec![]))]);
    assert_eq!(obstacle(&unknown, tcp()).2, Why::UnknownHook);
}

#[test]
fn marks_that_rules_set_are_followed() {
    let set = |mark: u32| {
        vec![
            Expression::Constant { value: mark.to_ne_bytes().into(), into: R },
            Expression::SetMeta { key: 3, from: R },
        ]
    };
    let unknown = || vec![Expression::SetMeta { key: 3, from: R }];
    let change = |keep, flip| vec![Expression::ChangeMark { keep, flip }];
    let some = |then| and(source(&[10]), then);
    let is_five = || and(vec![Meta { key: 3, into: R }, is(&5u32.to_ne_bytes())], drop());
    // Rules, and whether packets can have mark 5 then.
    let rows = [
        (vec![], false),
        (vec![set(4)], false),
        (vec![set(5)], true),
        (vec![unknown()], true),
        (vec![set(1), change(!0, 4)], true),
        (vec![set(7), change(!2, 0)], true),
        (vec![unknown(), change(!1, 0)], false),
        (vec![unknown(), change(!0, 1)], true),
        (vec![some(set(5))], true),
        (vec![some(set(5)), set(4)], false),
        (vec![some(set(3))], false),
        // The packets with the mark have gone.
        (vec![some(and(set(5), accept()))], false),
        (vec![some(and(set(5), vec![Ends(Verdict::Return)]))], false),
        (vec![jump("set")], true),
        (vec![jump("set"), jump("look")], true),
        (vec![jump("look"), set(4)], false),
    ];
    for (list, can_be_five) in rows {
        let mut ruleset =
            table(vec![("f", base(Hook::Forward, 0, true, [list.clone(), vec![is_five()]].concat()))]);
        for (name, list) in [("set", vec![set(5)]), ("look", vec![is_five()])] {
            Arc::make_mut(&mut ruleset.tables[0])
                .chains
                .insert(name.into(), Chain { base: None, rules: rules(list) });
        }
        assert_eq!(prove(&ruleset, &traffic(tcp())).is_err(), can_be_five, "{list:?}");
    }
    // A chain gets the marks of all chains before it, and Linux runs chains of equal priority in any order.
    for (priority, can_be_five) in [(-1, true), (0, true), (1, false)] {
        let ruleset = table(vec![
            ("looks", base(Hook::Forward, 0, true, vec![is_five()])),
            ("sets", base(Hook::Forward, priority, true, vec![and(set(5), accept())])),
        ]);
        assert_eq!(prove(&ruleset, &traffic(tcp())).is_err(), can_be_five, "{priority}");
    }
    let trace = forward(vec![vec![Expression::SetMeta { key: 12, from: R }], accept()]);
    assert_eq!(obstacle(&trace, tcp()).2, Why::Does("meta set".into()));
}

#[test]
fn the_longest_rules_and_the_deepest_jumps_fit_a_stack() {
    // A map whose verdict is to go on with the next step.
    let goes_on =
        Set { parts: vec![1], otherwise: Some(Value::Verdict(Verdict::Continue)), ..Set::default() };
    for (step, fits) in [(Expression::Maybe("m".into()), true), (lookup(Into::Verdict), false)] {
        let name = |n: usize| format!("c{n:02}");
        let mut ruleset = with_set(forward(vec![jump(&name(0)), accept()]), goes_on.clone());
        for n in 0..16 {
            let mut steps = vec![step.clone(); 127];
            steps.extend(if n == 15 { accept() } else { jump(&name(n + 1)) });
            let chain = Chain { base: None, rules: rules(vec![steps]) };
            Arc::make_mut(&mut ruleset.tables[0]).chains.insert(name(n), chain);
        }
        assert_eq!(prove(&ruleset, &traffic(Scope::All)).is_ok(), fits, "{step:?}");
    }
}

#[test]
fn only_new_connections_get_helpers() {
    let on = |priority| {
        table(vec![("p", base(Hook::Prerouting, priority, true, vec![vec![Expression::SetHelper]]))])
    };
    let why = || Why::Does("ct helper set".into());
    assert_eq!(proof(&on(0), tcp()), Proof::default());
    assert_eq!(obstacle(&on(0), Scope::All).2, why());
    // Here conntrack has not found the connection yet.
    assert_eq!(obstacle(&on(-300), tcp()).2, why());
}

#[test]
fn destinations_are_unicast_once_they_are_translated() {
    let local = |hook, priority| {
        let step = vec![Expression::DestinationType { into: R }, is(&2u32.to_ne_bytes())];
        table(vec![("c", base(hook, priority, true, vec![and(step, drop())]))])
    };
    let dnat = |reply| {
        let Scope::Connection(mut one) = masqueraded(reply) else { unreachable!() };
        one.status |= DST_NAT;
        Scope::Connection(one)
    };
    assert_eq!(proof(&local(Hook::Prerouting, -150), Scope::All), Proof::default());
    assert!(prove(&local(Hook::Prerouting, -150), &traffic(dnat(false))).is_err());
    assert!(prove(&local(Hook::Prerouting, -150), &traffic(tcp())).is_err());
    assert_eq!(proof(&local(Hook::Forward, 0), tcp()), Proof::default());
}

#[test]
fn rules_may_drop_before_conntrack() {
    let list = || vec![accept()];
    let rows = [
        (Hook::Prerouting, -300, true, list(), true),
        (Hook::Prerouting, -200, true, list(), true),
        (Hook::Prerouting, -300, false, vec![], true),
        (Hook::Ingress, 0, true, list(), true),
        (Hook::Prerouting, -300, true, vec![], false),
        (Hook::Prerouting, -199, false, list(), false),
        (Hook::Forward, -300, false, list(), false),
    ];
    for (hook, priority, accepts, list, expected) in rows {
        let ruleset = table(vec![("c", base(hook, priority, accepts, list))]);
        for version in [Version::V4, Version::V6] {
            let found = ruleset.may_drop_before_conntrack(version);
            assert_eq!(found, expected, "{hook:?} {priority} {accepts}");
        }
    }
}
