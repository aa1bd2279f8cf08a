//! Which route of a prefix wins, and where it leads. Each decision has a row.

use super::*;
use crate::{plan::Hop, reason::Reason};
use std::time::Duration;

const UNICAST_COMPLEX: Target = Target::Pass { reason: Reason::ComplexRoute, unicast: true };
/// Only the kernel knows whether there is a route, so a source behind it may not be reachable.
const UNDECIDED: Target = Target::Pass { reason: Reason::ComplexRoute, unicast: false };
const NOT_A_PORT: Target = Target::Pass { reason: Reason::EgressNotAPort, unicast: true };

fn pass(reason: Reason) -> Target {
    Target::Pass { reason, unicast: false }
}

/// Interfaces 1 and 2 of the host are its links 1 and 2.
fn out(interface: u16, gateway: Option<&str>) -> Target {
    Target::Hop(Hop { interface, gateway: gateway.map(ip), mtu: 1500 })
}

fn alias(metric: u32, next: Next) -> Route<u32> {
    Route { metric, ..route4("10.0.0.0/8", next) }
}

fn kind(kind: RouteKind, next: Next) -> Route<u32> {
    Route { kind, ..alias(0, next) }
}

fn dead(ifindex: u32, gateway: &str) -> NextHop {
    NextHop { dead: true, ..hop(ifindex, Some(gateway)) }
}

fn linkdown(ifindex: u32, gateway: &str) -> NextHop {
    NextHop { linkdown: true, ..hop(ifindex, Some(gateway)) }
}

fn weighted(hops: &[(u32, &str, u16)]) -> Next {
    Next::Many(hops.iter().map(|(i, g, weight)| NextHop { weight: *weight, ..hop(*i, Some(g)) }).collect())
}

#[test]
fn a_dump_leads_where_linux_would() {
    let multi = Target::Multi([(out(1, Some("10.9.9.1")), 3), (out(2, Some("10.9.9.2")), 1)].into());
    let mixed = Target::Multi([(out(1, Some("10.9.9.1")), 1), (NOT_A_PORT, 1)].into());
    let both = weighted(&[(1, "10.9.9.1", 3), (2, "10.9.9.2", 1)]);
    let (one, two) = (via(1, "10.9.9.1"), via(2, "10.9.9.2"));
    let via1 = || Some(out(1, Some("10.9.9.1")));
    let rows: Vec<(&str, Vec<Route<u32>>, Option<Target>)> = vec![
        ("gateway", vec![alias(0, one.clone())], via1()),
        ("on-link", vec![alias(0, dev(2))], Some(out(2, None))),
        ("IPv6 gateway", vec![alias(0, via(1, "fe80::1"))], Some(out(1, Some("fe80::1")))),
        ("another device", vec![alias(0, via(9, "10.9.9.1"))], Some(NOT_A_PORT)),
        ("unknown device", vec![alias(0, via(77, "10.9.9.1"))], Some(NOT_A_PORT)),
        ("lower metric", vec![alias(5, two.clone()), alias(1, one.clone())], via1()),
        ("the first of equals", vec![alias(1, one.clone()), alias(1, two.clone())], via1()),
        ("dead", vec![alias(0, Next::One(dead(2, "10.9.9.1")))], None),
        ("dead, next metric", vec![alias(0, Next::One(dead(2, "10.9.9.2"))), alias(9, one.clone())], via1()),
        ("linkdown, which only link 2 ignores", vec![alias(0, Next::One(linkdown(1, "10.9.9.1")))], via1()),
        ("linkdown, heeded", vec![alias(0, Next::One(linkdown(2, "10.9.9.1")))], None),
        ("dead, on a device that runs", vec![alias(0, Next::One(dead(1, "10.9.9.1")))], Some(UNDECIDED)),
        ("multipath", vec![alias(0, both)], Some(multi)),
        (
            "one of two is dead",
            vec![alias(0, Next::Many([dead(2, "10.9.9.2"), hop(1, Some("10.9.9.1"))].into()))],
            via1(),
        ),
        (
            "both are dead",
            vec![alias(0, Next::Many([dead(2, "10.9.9.2"), dead(2, "10.9.9.1")].into()))],
            None,
        ),
        (
            "a member elsewhere",
            vec![alias(0, weighted(&[(1, "10.9.9.1", 1), (9, "10.9.9.9", 1)]))],
            Some(mixed),
        ),
        ("TOS", vec![Route { tos: 16, ..alias(0, two.clone()) }, alias(0, one.clone())], Some(UNDECIDED)),
        ("complex", vec![Route { complex: Some("encap"), ..alias(0, one.clone()) }], Some(UNICAST_COMPLEX)),
        (
            "complex hop",
            vec![alias(0, Next::One(NextHop { complex: true, ..hop(1, None) }))],
            Some(UNICAST_COMPLEX),
        ),
        ("no next hop", vec![alias(0, Next::None)], Some(UNICAST_COMPLEX)),
        ("object that is not there", vec![alias(0, Next::Object(7))], Some(UNDECIDED)),
        ("a local prefix", vec![kind(RouteKind::Local, dev(1))], Some(pass(Reason::LocalPrefix))),
        ("anycast", vec![kind(RouteKind::Anycast, dev(1))], Some(pass(Reason::Local))),
        ("broadcast", vec![kind(RouteKind::Broadcast, dev(1))], Some(pass(Reason::Broadcast))),
        ("multicast", vec![kind(RouteKind::Multicast, dev(1))], Some(pass(Reason::Broadcast))),
        ("blackhole", vec![kind(RouteKind::Blackhole, Next::None)], Some(pass(Reason::SpecialRoute))),
        ("unreachable", vec![kind(RouteKind::Unreachable, Next::None)], Some(pass(Reason::SpecialRoute))),
        ("prohibit", vec![kind(RouteKind::Prohibit, Next::None)], Some(pass(Reason::SpecialRoute))),
        ("throw", vec![kind(RouteKind::Throw, Next::None)], Some(pass(Reason::SpecialRoute))),
        ("unknown kind", vec![kind(RouteKind::Other(99), dev(1))], Some(pass(Reason::ComplexRoute))),
        ("another table", vec![Route { table: 100, ..alias(0, one.clone()) }], None),
        (
            "local table before main, whatever the metric",
            vec![
                alias(0, one.clone()),
                Route { table: 255, metric: 9, ..kind(RouteKind::Broadcast, dev(1)) },
            ],
            Some(pass(Reason::Broadcast)),
        ),
    ];
    for (name, routes, expected) in rows {
        let mut heeding = Link { carrier: false, running: false, ..physical(2) };
        heeding.ipv4.ignore_routes_with_linkdown = true;
        let links = vec![physical(1), heeding, physical(9)];
        let bench = Bench::with(
            Limits::default(),
            Dump { links, settings: choosing(), routes4: routes, ..Dump::default() },
        );
        assert_eq!(bench.target4("10.0.0.0/8"), expected.as_ref(), "{name}");
    }
}

#[test]
fn mtu_is_the_lowest_on_the_way() {
    for (route, link, expected) in
        [(None, 1400, 1400), (Some(1300), 1400, 1300), (Some(9000), 1400, 1400), (Some(0), 1500, 1500)]
    {
        let links = vec![Link { mtu: link, ..physical(1) }];
        let routes4 = vec![Route { mtu: route, ..alias(0, dev(1)) }];
        let bench = Bench::with(Limits::default(), Dump { links, routes4, ..Dump::default() });
        let Some(Target::Hop(hop)) = bench.target4("10.0.0.0/8") else { panic!("no next hop") };
        assert_eq!(hop.mtu, expected, "{route:?} {link}");
    }
}

#[test]
fn ipv6_has_an_mtu_of_its_own() {
    for (conf, expected) in [(0, 1500), (1280, 1280), (1500, 1500), (9000, 1500)] {
        let mut link = physical(1);
        link.ipv6.mtu = conf;
        let (routes4, routes6) = (vec![alias(0, dev(1))], vec![route6("2001:db8::/32", dev(1))]);
        let bench =
            Bench::with(Limits::default(), Dump { links: vec![link], routes4, routes6, ..Dump::default() });
        let mtu = |target: Option<&Target>| match target {
            Some(Target::Hop(hop)) => hop.mtu,
            other => panic!("no next hop: {other:?}"),
        };
        assert_eq!(mtu(bench.target4("10.0.0.0/8")), 1500, "IPv4 is not affected");
        assert_eq!(mtu(bench.target6("2001:db8::/32")), expected, "{conf}");
    }
}

#[test]
fn a_second_tag_comes_out_of_the_mtu() {
    for (port, inner, expected) in
        [(1500, 1500, 1496), (1500, 1496, 1496), (1504, 1500, 1500), (1500, 1400, 1400)]
    {
        let links = vec![
            Link { mtu: port, ..physical(1) },
            Link { mtu: port, ..vlan(3, 100, (HOST, 1)) },
            Link { mtu: inner, ..vlan(4, 7, (HOST, 3)) },
        ];
        let routes4 = vec![route4("10.0.0.0/8", dev(4)), route4("11.0.0.0/8", dev(3))];
        let bench = Bench::with(Limits::default(), Dump { links, routes4, ..Dump::default() });
        let mtu = |prefix| match bench.target4(prefix) {
            Some(Target::Hop(hop)) => hop.mtu,
            other => panic!("no next hop: {other:?}"),
        };
        assert_eq!((mtu("10.0.0.0/8"), mtu("11.0.0.0/8")), (expected, port), "two tags and one");
    }
}

/// The effect of a message on the order of equals. The test removes the winner again and again, and looks at the next
/// one.
#[test]
fn messages_keep_the_kernels_order() {
    use Change::*;
    let gateways = ["10.9.9.1", "10.9.9.2", "10.9.9.3"];
    let rows: [(&str, Vec<(Change, usize)>, Vec<usize>); 6] = [
        ("added before equals", vec![(Add, 0), (Add, 1)], vec![1, 0]),
        ("appended after equals", vec![(Append, 0), (Append, 1), (Append, 2)], vec![0, 1, 2]),
        ("replaced in the first one's place", vec![(Append, 0), (Append, 1), (Replace, 2)], vec![2, 1]),
        ("nothing to replace", vec![(Replace, 2)], vec![2]),
        ("deleted by name", vec![(Append, 0), (Append, 1), (Append, 2), (Delete, 1)], vec![0, 2]),
        ("deletion of what is not there", vec![(Add, 0), (Delete, 1)], vec![0]),
    ];
    for (name, messages, order) in rows {
        let mut bench = Bench::host(vec![], vec![]);
        bench.after(messages.into_iter().map(|(c, g)| Event::Route4(HOST, c, alias(7, via(1, gateways[g])))));
        for at in order {
            assert_eq!(bench.target4("10.0.0.0/8"), Some(&out(1, Some(gateways[at]))), "{name}");
            bench.after([Event::Route4(HOST, Delete, alias(7, via(1, gateways[at])))]);
        }
        assert_eq!(bench.target4("10.0.0.0/8"), None, "{name}");
    }
}

/// fib_find_info(): routes that differ only in protocol, scope or preferred source are different routes.
#[test]
fn routes_that_differ_only_in_protocol_scope_or_source_are_different() {
    use Change::*;
    let route = |rest| Route { rest, ..alias(7, via(1, "10.9.9.1")) };
    let out = out(1, Some("10.9.9.1"));
    let mut bench = Bench::host(vec![route4("0.0.0.0/0", dev(2))], vec![]);
    let rows = [
        ("one", Add, 1, Some(&out)),
        ("its like", Append, 2, Some(&out)),
        ("a message that a dump has overtaken", Add, 1, Some(&out)),
        ("one goes", Delete, 1, Some(&out)),
        ("a third one, which does not exist, is deleted", Delete, 3, Some(&out)),
        ("the other one is deleted", Delete, 2, None),
    ];
    for (name, change, rest, expected) in rows {
        bench.after([Event::Route4(HOST, change, route(rest))]);
        assert_eq!(bench.target4("10.0.0.0/8"), expected, "{name}");
    }
}

/// `ip nexthop replace` announces every route of the object with `NLM_F_REPLACE`, in its place.
#[test]
fn an_announcement_takes_no_other_routes_place() {
    use Change::*;
    let (first, second) = (alias(7, via(1, "10.9.9.1")), alias(7, Next::Object(5)));
    let object = NexthopObject { id: 5, kind: NexthopObjectKind::Single(hop(2, Some("10.9.9.2"))) };
    let mut bench = Bench::host(vec![first.clone(), second.clone()], vec![]);
    bench.after([Event::Nexthop(HOST, object), Event::Route4(HOST, Replace, second.clone())]);
    assert_eq!(bench.target4("10.0.0.0/8"), Some(&out(1, Some("10.9.9.1"))));
    bench.after([Event::Route4(HOST, Delete, first)]);
    assert_eq!(bench.target4("10.0.0.0/8"), Some(&out(2, Some("10.9.9.2"))));
    bench.after([Event::Route4(HOST, Delete, second)]);
    assert_eq!(bench.target4("10.0.0.0/8"), None, "there was only one");
}

/// Linux announces the routes of an object as routes of another kind when the object becomes a blackhole or stops being
/// one.
#[test]
fn the_kind_of_a_route_follows_its_object() {
    use Change::*;
    let (first, second) = (alias(7, via(1, "10.9.9.1")), alias(7, Next::Object(5)));
    let hole = || Route { kind: RouteKind::Blackhole, ..second.clone() };
    let object = |kind| Event::Nexthop(HOST, NexthopObject { id: 5, kind });
    let single = || object(NexthopObjectKind::Single(hop(2, Some("10.9.9.2"))));
    let mut bench = Bench::host(vec![first.clone(), second.clone()], vec![]);
    bench.after([object(NexthopObjectKind::Blackhole), Event::Route4(HOST, Replace, hole())]);
    assert_eq!(bench.target4("10.0.0.0/8"), Some(&out(1, Some("10.9.9.1"))), "it comes after another route");
    bench.after([Event::Route4(HOST, Delete, first.clone())]);
    assert_eq!(bench.target4("10.0.0.0/8"), Some(&pass(Reason::SpecialRoute)));
    bench.after([single()]);
    assert_eq!(
        bench.target4("10.0.0.0/8"),
        Some(&pass(Reason::SpecialRoute)),
        "the message has not arrived yet"
    );
    bench.after([Event::Route4(HOST, Replace, second.clone())]);
    assert_eq!(bench.target4("10.0.0.0/8"), Some(&out(2, Some("10.9.9.2"))));
    bench.after([Event::Route4(HOST, Append, hole())]);
    assert_eq!(bench.mirror.unsure().count(), 1, "it may be a separate blackhole or the same route");
    bench.after([Event::Route4(HOST, Delete, hole())]);
    bench.after([Event::Routes(HOST, vec![], vec![])]);
    assert_eq!(bench.target4("10.0.0.0/8"), None);
}

/// IPv6 uses the same message for a replacement of the first equal and for an announcement.
#[test]
fn ipv6_announcements_that_could_be_replacements_are_the_kernels_until_read_again() {
    use Change::*;
    let first = || route6("2001:db8::/32", dev(1));
    let second = || route6("2001:db8::/32", Next::Object(5));
    let object = || NexthopObject { id: 5, kind: NexthopObjectKind::Single(hop(1, None)) };
    let mut bench = Bench::host(vec![], vec![first(), second()]);
    bench.after([Event::Nexthop(HOST, object()), Event::Route6(HOST, Replace, first())]);
    assert_eq!(
        bench.target6("2001:db8::/32"),
        Some(&out(1, None)),
        "the first one: both have the same result"
    );
    bench.after([Event::Route6(HOST, Replace, second())]);
    assert_eq!(bench.target6("2001:db8::/32"), Some(&UNDECIDED));
    assert_eq!(bench.mirror.unsure().collect::<Vec<_>>(), [HOST]);
    bench.after([Event::Route6(HOST, Delete, second())]);
    assert_eq!(bench.target6("2001:db8::/32"), Some(&UNDECIDED), "the first may still exist");
    bench.after([Event::Routes(HOST, vec![], vec![first()])]);
    assert_eq!(bench.target6("2001:db8::/32"), Some(&out(1, None)));
    assert_eq!(bench.mirror.unsure().count(), 0);
}

/// The kernel had [A, B], replaced A by C and deleted C. The dump between the messages holds B.
#[test]
fn a_replacement_that_a_dump_may_have_overtaken_is_the_kernels_until_read_again() {
    use Change::*;
    let route = |gateway| alias(7, via(1, gateway));
    let mut bench = Bench::host(vec![route("10.9.9.2")], vec![]);
    bench.after([Event::Route4(HOST, ReplaceLate, route("10.9.9.2"))]);
    assert_eq!(bench.target4("10.0.0.0/8"), Some(&out(1, Some("10.9.9.2"))), "the dump has it");
    let late = [(ReplaceLate, "10.9.9.3"), (Delete, "10.9.9.3")];
    bench.after(late.map(|(change, gateway)| Event::Route4(HOST, change, route(gateway))));
    assert_eq!(bench.target4("10.0.0.0/8"), Some(&UNDECIDED));
    assert_eq!(bench.mirror.unsure().collect::<Vec<_>>(), [HOST]);
    bench.after([Event::Routes(HOST, vec![route("10.9.9.2")], vec![])]);
    assert_eq!(bench.target4("10.0.0.0/8"), Some(&out(1, Some("10.9.9.2"))));
    bench.after([Event::Route4(HOST, ReplaceLate, route("10.9.9.3")), Event::Routes(HOST, vec![], vec![])]);
    assert_eq!(bench.target4("10.0.0.0/8"), None);
}

/// fib6_node_lookup_1(): a subtree of sources is searched before any metric is compared.
#[test]
fn a_prefix_with_a_route_for_some_sources_is_the_kernels() {
    let sourced = || Route { metric: 1024, for_sources: true, rest: 1, ..route6("::/0", via(1, "fe80::1")) };
    let plain = || Route { metric: 100, ..route6("::/0", via(2, "fe80::2")) };
    let longer = || route6("2001:db8::/32", via(2, "fe80::2"));
    let mut bench = Bench::host(vec![], vec![plain(), longer()]);
    assert_eq!(bench.target6("::/0"), Some(&out(2, Some("fe80::2"))));
    bench.after([Event::Route6(HOST, Change::Add, sourced())]);
    assert_eq!(bench.target6("::/0"), Some(&UNDECIDED), "the metrics do not matter");
    assert_eq!(bench.target6("2001:db8::/32"), Some(&out(2, Some("fe80::2"))), "a longer destination wins");
    bench.after([Event::Route6(HOST, Change::Delete, Route { rest: 2, ..sourced() })]);
    assert_eq!(bench.target6("::/0"), Some(&UNDECIDED), "that one was for other sources");
    bench.after([Event::Route6(HOST, Change::Delete, sourced())]);
    assert_eq!(bench.target6("::/0"), Some(&out(2, Some("fe80::2"))));
}

#[test]
fn a_route_that_ends_leaves_the_fast_path_before() {
    let seconds = std::time::Duration::from_secs;
    let ending = |end| Route { expires: Some(seconds(end)), ..route6("::/0", via(1, "fe80::1")) };
    let gateway = out(1, Some("fe80::1"));
    let mut bench = Bench::host(vec![], vec![ending(100)]);
    bench.mirror.pass_time(seconds(50));
    assert_eq!(bench.mirror.next_end(), Some(seconds(98)));
    assert_eq!(bench.plan(), []);
    bench.mirror.pass_time(seconds(97));
    bench.after([Event::Routes(HOST, vec![], vec![ending(200)])]);
    bench.mirror.pass_time(seconds(100));
    bench.plan();
    assert_eq!(bench.target6("::/0"), Some(&gateway), "its end has changed");
    bench.mirror.pass_time(seconds(198));
    assert_eq!(bench.plan(), [Op::Route6(0, p6("::/0"), Some(UNICAST_COMPLEX))]);
    assert_eq!(bench.mirror.next_end(), None);
    bench.after([Event::Route6(HOST, Change::Replace, ending(1000))]);
    assert_eq!(bench.target6("::/0"), Some(&gateway));
    bench.after([Event::Route6(HOST, Change::Delete, ending(1000))]);
    assert_eq!(bench.mirror.next_end(), None, "it is gone");
    bench.after([Event::Route6(HOST, Change::Add, ending(198))]);
    assert_eq!(bench.target6("::/0"), Some(&UNICAST_COMPLEX), "it ended before it arrived");
}

/// How the flags of next hop 2 and the state of its device affect a choice between it and another next hop.
#[test]
fn flags_of_next_hops_are_believed_while_they_fit_the_device() {
    let both = Target::Multi([(out(1, Some("10.9.9.1")), 1), (out(2, Some("10.9.9.2")), 1)].into());
    let one = out(1, Some("10.9.9.1"));
    let unsure = Target::Pass { reason: Reason::MemberUnsure, unicast: true };
    // (IPv6, dead, linkdown, the device: up, carrier, running; linkdown ignored), the result
    let rows = [
        ((false, 0, 0, 1, 1, 1, 0), &both, "runs"),
        ((false, 0, 0, 1, 1, 0, 0), &both, "dormant: Linux still sends"),
        ((false, 0, 0, 1, 1, 0, 1), &UNDECIDED, "dormant since a moment ago"),
        ((true, 0, 1, 1, 1, 0, 1), &unsure, "dormant, and read again: ignored since when?"),
        ((true, 0, 1, 1, 1, 1, 1), &UNDECIDED, "no longer dormant"),
        ((true, 0, 1, 1, 1, 1, 0), &unsure, "runs again, not read again"),
        ((false, 1, 1, 1, 0, 0, 1), &unsure, "no carrier, ignored: since when?"),
        ((false, 1, 1, 1, 0, 0, 0), &unsure, "no carrier, ignored before"),
        ((true, 1, 1, 1, 0, 0, 0), &UNDECIDED, "IPv6, no carrier, ignored before"),
        ((true, 1, 1, 1, 0, 0, 1), &unsure, "IPv6, no carrier, ignored: since when?"),
        ((false, 1, 1, 0, 0, 0, 0), &one, "down"),
        ((false, 1, 1, 1, 1, 1, 1), &UNDECIDED, "up again, not read again"),
    ];
    for ((ipv6, dead, linkdown, up, carrier, running, ignored), expected, name) in rows {
        let set = |bit| bit == 1;
        let mut link = Link { up: set(up), carrier: set(carrier), running: set(running), ..physical(2) };
        link.ipv4.ignore_routes_with_linkdown = set(ignored);
        link.ipv6.ignore_routes_with_linkdown = set(ignored);
        let gateway = if ipv6 { "fe80::" } else { "10.9.9." };
        let flagged =
            NextHop { dead: set(dead), linkdown: set(linkdown), ..hop(2, Some(&format!("{gateway}2"))) };
        let next = Next::Many([hop(1, Some(&format!("{gateway}1"))), flagged].into());
        let mut dump = Dump { links: vec![physical(1), link], settings: choosing(), ..Dump::default() };
        if ipv6 {
            dump.routes6 = vec![route6("2001:db8::/32", next)];
        } else {
            dump.routes4 = vec![alias(0, next)];
        }
        let bench = Bench::with(Limits::default(), dump);
        let got = if ipv6 { bench.target6("2001:db8::/32") } else { bench.target4("10.0.0.0/8") };
        let members = |target: &Target| if let Target::Multi(m) = target { m.len() } else { 1 };
        match (got, expected) {
            (Some(got), expected) if [&UNDECIDED, &unsure].contains(&expected) => {
                assert_eq!(got, expected, "{name}")
            }
            (Some(got), expected) => {
                assert_ne!(got, &UNDECIDED, "{name}");
                assert_eq!(members(got), members(expected), "{name}: {got:?}");
            }
            (None, _) => panic!("{name}: no route"),
        }
    }
}

#[test]
fn ipv6_messages_hold_the_whole_set() {
    let set = |gateways: &[&str]| Next::Many(gateways.iter().map(|g| hop(1, Some(g))).collect());
    let multi = |gateways: &[&str]| {
        Target::Multi(gateways.iter().map(|g| (out(1, Some(g)), 1)).collect::<Vec<_>>().into())
    };
    let six = |next| route6("2001:db8::/32", next);
    let mut bench = Bench::host(vec![], vec![]);
    let mut rows = vec![
        ("one", Change::Add, six(via(1, "fe80::1")), Some(out(1, Some("fe80::1")))),
        (
            "a sibling",
            Change::Append,
            six(set(&["fe80::2", "fe80::1"])),
            Some(multi(&["fe80::1", "fe80::2"])),
        ),
        (
            "another",
            Change::Append,
            six(set(&["fe80::3", "fe80::1", "fe80::2"])),
            Some(multi(&["fe80::1", "fe80::2", "fe80::3"])),
        ),
        ("one leaves", Change::Delete, six(via(1, "fe80::2")), Some(multi(&["fe80::1", "fe80::3"]))),
        ("one is left", Change::Delete, six(via(1, "fe80::1")), Some(out(1, Some("fe80::3")))),
        ("replaced", Change::Replace, six(via(2, "fe80::9")), Some(out(2, Some("fe80::9")))),
        ("a separate route, not a sibling", Change::Add, six(dev(1)), Some(UNDECIDED)),
        ("the separate route goes", Change::Delete, six(dev(1)), Some(out(2, Some("fe80::9")))),
        ("worse metric", Change::Add, Route { metric: 2000, ..six(dev(1)) }, Some(out(2, Some("fe80::9")))),
        ("the better one goes", Change::Delete, six(via(2, "fe80::9")), Some(out(1, None))),
    ];
    let last = Route { metric: 2000, ..six(dev(1)) };
    rows.push(("all gone", Change::Delete, last, None));
    for (name, change, route, expected) in rows {
        bench.after([Event::Route6(HOST, change, route)]);
        assert_eq!(bench.target6("2001:db8::/32"), expected.as_ref(), "{name}");
    }
    bench.after([Event::Route6(HOST, Change::Add, six(set(&["fe80::1", "fe80::2"])))]);
    bench.after([Event::Route6(HOST, Change::Delete, six(set(&["fe80::2", "fe80::1"])))]);
    assert_eq!(bench.target6("2001:db8::/32"), None, "all siblings at once, in any order");
}

/// Each IPv6 next hop is a route of its own, and a message has the metrics of its first.
#[test]
fn ipv6_next_hops_of_one_route_have_metrics_of_their_own() {
    let set = |gateways: &[&str]| Next::Many(gateways.iter().map(|g| hop(1, Some(g))).collect());
    let six = |gateways: &[&str]| match gateways {
        [one] => route6("2001:db8::/32", via(1, one)),
        _ => route6("2001:db8::/32", set(gateways)),
    };
    let mtu = |gateways: &[&str]| Route { mtu: Some(1400), ..six(gateways) };
    let ends = |gateways: &[&str]| Route { expires: Some(Duration::from_secs(99)), ..six(gateways) };
    let odd = |gateways: &[&str]| Route { complex: Some("a metric"), ..six(gateways) };
    let [a, b, c] = ["fe80::1", "fe80::2", "fe80::3"];
    let (add, append, replace, delete) = (Change::Add, Change::Append, Change::Replace, Change::Delete);
    // The columns: name, changes, whether the route is fast, whether only the kernel knows it.
    let rows = [
        ("made at once", vec![(add, six(&[a, b]))], true, false),
        (
            "made at once, with an MTU, which Linux changes without a message",
            vec![(add, mtu(&[a, b]))],
            false,
            false,
        ),
        (
            "one by one",
            vec![(add, six(&[a])), (append, six(&[b, a])), (append, six(&[c, a, b]))],
            true,
            false,
        ),
        ("the first has an MTU", vec![(add, mtu(&[a])), (append, six(&[b, a]))], false, true),
        ("the second has", vec![(add, six(&[a])), (append, mtu(&[b, a]))], false, false),
        (
            "the second has, and another comes",
            vec![(add, six(&[a])), (append, mtu(&[b, a])), (append, six(&[c, a, b]))],
            false,
            true,
        ),
        ("the second ends", vec![(add, six(&[a])), (append, ends(&[b, a]))], false, false),
        ("the second has something else", vec![(add, six(&[a])), (append, odd(&[b, a]))], false, false),
        ("several at once behind another", vec![(add, six(&[a])), (append, six(&[a, b, c]))], false, true),
        ("one at once behind another", vec![(add, six(&[a])), (append, six(&[a, b]))], false, true),
        (
            "the one with an MTU goes",
            vec![(add, six(&[a])), (append, mtu(&[b, a])), (append, six(&[c, a, b])), (delete, mtu(&[b]))],
            false,
            true,
        ),
        ("one of two goes", vec![(add, six(&[a, b])), (delete, six(&[a]))], true, false),
        ("one of two goes that had an MTU", vec![(add, mtu(&[a, b])), (delete, mtu(&[a]))], false, true),
        (
            "all are replaced",
            vec![(add, mtu(&[a])), (append, six(&[b, a])), (replace, six(&[a, b]))],
            true,
            true,
        ),
        (
            "a group that may hide a route is replaced",
            vec![(add, odd(&[a, b])), (replace, six(&[c]))],
            true,
            true,
        ),
        ("announced again", vec![(add, six(&[a, b])), (append, six(&[b, a]))], true, false),
    ];
    for (name, changes, fast, unsure) in rows {
        let mut bench = Bench::host(vec![], vec![]);
        for (change, route) in changes {
            bench.after([Event::Route6(HOST, change, route)]);
        }
        let target = bench.target6("2001:db8::/32");
        let is_fast = matches!(target, Some(Target::Multi(_) | Target::Hop(_)));
        assert_eq!(is_fast, fast && !unsure, "{name}: {target:?}");
        assert_eq!(bench.mirror.unsure().next().is_some(), unsure, "{name}");
    }
    // The observer's knowledge about the other next hops.
    for (route, fast) in
        [(six(&[a, b]), true), (odd(&[a, b]), false), (mtu(&[a, b]), false), (mtu(&[a]), true)]
    {
        let bench = Bench::host(vec![], vec![route.clone()]);
        let target = bench.target6("2001:db8::/32");
        assert_eq!(matches!(target, Some(Target::Multi(_) | Target::Hop(_))), fast, "{route:?}");
    }
    // IPv4 next hops share their metrics (struct fib_info).
    let both = weighted(&[(1, "10.9.9.1", 1), (2, "10.9.9.2", 1)]);
    let bench = Bench::host(vec![Route { mtu: Some(1400), ..alias(0, both) }], vec![]);
    assert!(matches!(bench.target4("10.0.0.0/8"), Some(Target::Multi(members)) if members.len() == 2));
}

#[test]
fn ipv6_takes_no_ipv4_gateway_and_no_disabled_device() {
    let both = |dead| {
        let hops =
            [NextHop { dead, ..hop(1, Some("fe80::1")) }, hop(2, Some("fe80::2")), hop(2, Some("fe80::3"))];
        route6("2001:db8:1::/48", Next::Many(hops.into_iter().collect()))
    };
    let routes = vec![route6("::/0", via(1, "10.9.9.1")), route6("2001:db8::/32", dev(1)), both(false)];
    let mut bench = Bench::host(vec![], routes);
    assert_eq!(bench.target6("::/0"), Some(&UNICAST_COMPLEX));
    let mut disabled = physical(1);
    disabled.ipv6.disabled = true;
    bench.after([Event::Link(HOST, disabled)]);
    let kernel = Target::Pass { reason: Reason::ComplexRoute, unicast: false };
    assert_eq!(bench.target6("2001:db8::/32"), Some(&kernel));
    // Linux leaves out the next hop on that device, and distributes its share among the others. It sends no message.
    assert_eq!(bench.target6("2001:db8:1::/48"), Some(&kernel), "until the routes are read again");
    bench.after([Event::Route6(HOST, Change::Replace, both(true))]);
    let others = Target::Multi(vec![(out(2, Some("fe80::2")), 1), (out(2, Some("fe80::3")), 1)].into());
    assert_eq!(bench.target6("2001:db8:1::/48"), Some(&others));
    bench.after([Event::Link(HOST, physical(1))]);
    assert_eq!(bench.target6("2001:db8:1::/48"), Some(&kernel), "it comes back without a message, too");
}

#[test]
fn nexthop_objects_are_followed() {
    let single = |id, hop| Event::Nexthop(HOST, NexthopObject { id, kind: NexthopObjectKind::Single(hop) });
    let object = |id, kind| Event::Nexthop(HOST, NexthopObject { id, kind });
    let mut bench =
        Bench::host(vec![alias(0, Next::Object(5)), route4("10.1.0.0/16", Next::Object(1))], vec![]);
    let multi = Target::Multi([(out(1, Some("10.9.9.1")), 1), (out(2, Some("10.9.9.2")), 4)].into());
    let rows = [
        (single(1, hop(1, Some("10.9.9.1"))), UNDECIDED),
        (object(5, NexthopObjectKind::Group(vec![(1, 1), (2, 4)])), UNDECIDED),
        (single(2, hop(2, Some("10.9.9.2"))), multi),
        (single(2, dead(9, "10.9.9.2")), UNDECIDED),
        (Event::Link(HOST, Link { carrier: false, running: false, ..physical(9) }), out(1, Some("10.9.9.1"))),
        (object(2, NexthopObjectKind::Blackhole), UNDECIDED),
        (object(5, NexthopObjectKind::Group(vec![(2, 1)])), pass(Reason::SpecialRoute)),
        (object(5, NexthopObjectKind::Blackhole), pass(Reason::SpecialRoute)),
        (object(5, NexthopObjectKind::Unsupported("resilient")), UNICAST_COMPLEX),
        (single(5, hop(2, None)), out(2, None)),
        (Event::NexthopGone(HOST, 5), UNDECIDED),
    ];
    for (at, (event, expected)) in rows.into_iter().enumerate() {
        bench.after([event]);
        assert_eq!(bench.target4("10.0.0.0/8"), Some(&expected), "row {at}");
    }
    assert_eq!(bench.target4("10.1.0.0/16"), Some(&out(1, Some("10.9.9.1"))));
    let same = bench.after([single(1, hop(1, Some("10.9.9.1")))]);
    assert_eq!(same, [], "an object that is announced again unchanged");
}

/// Linux may forward packets of one route with state that it has kept in the object for another route.
#[test]
fn metrics_of_routes_of_objects_rub_off_on_each_other() {
    let single = |id| {
        Event::Nexthop(HOST, NexthopObject { id, kind: NexthopObjectKind::Single(hop(1, Some("10.9.9.1"))) })
    };
    let plain = alias(0, Next::Object(1));
    let gateway = out(1, Some("10.9.9.1"));
    let own = Route { mtu: Some(1400), ..route4("11.0.0.0/8", via(1, "10.9.9.1")) };
    let mut bench = Bench::host(vec![plain.clone(), own], vec![]);
    bench.after([single(1), single(2)]);
    assert_eq!(
        bench.target4("10.0.0.0/8"),
        Some(&gateway),
        "a route without an object keeps its MTU to itself"
    );
    for other in [
        Route { mtu: Some(1400), ..route4("12.0.0.0/8", Next::Object(1)) },
        Route { complex: Some("a metric"), ..route4("12.0.0.0/8", Next::Object(1)) },
    ] {
        bench.after([Event::Route4(HOST, Change::Add, other.clone())]);
        assert_eq!(bench.target4("10.0.0.0/8"), Some(&UNICAST_COMPLEX), "{other:?}");
        assert_eq!(bench.target4("12.0.0.0/8"), Some(&UNICAST_COMPLEX), "{other:?}");
        assert!(matches!(bench.target4("11.0.0.0/8"), Some(Target::Hop(_))));
        bench.after([Event::Route4(HOST, Change::Delete, other)]);
        assert_eq!(bench.target4("10.0.0.0/8"), Some(&gateway));
    }
}

#[test]
fn unknown_multipath_policies_are_the_kernels() {
    let both = weighted(&[(1, "10.9.9.1", 1), (2, "10.9.9.2", 1)]);
    let mut bench = Bench::host(vec![alias(0, both)], vec![]);
    for (policy, l4, taken) in [(1, true, true), (2, false, false), (3, false, false), (0, false, true)] {
        let settings = Settings { multipath_policy: [policy, 0], ..choosing() };
        bench.after([Event::Settings(HOST, settings)]);
        assert_eq!(bench.model.routers[&0].multipath.l4, [l4, false]);
        let target = bench.target4("10.0.0.0/8");
        assert_eq!(matches!(target, Some(Target::Multi(_))), taken, "policy {policy}: {target:?}");
    }
}

#[test]
fn who_chooses_a_member_depends_on_the_key() {
    let here = weighted(&[(1, "10.9.9.1", 1), (2, "10.9.9.2", 1)]);
    let elsewhere = weighted(&[(1, "10.9.9.1", 1), (9, "10.9.9.9", 1)]);
    let routes = vec![alias(0, here), Route { prefix: p4("11.0.0.0/8"), ..alias(0, elsewhere) }];
    let mut bench = Bench::host(routes, vec![]);
    let rows = [
        (MultipathKey::Linux([5, 6]), [true, true]),
        // The kernel would choose again for packets to the other member.
        (MultipathKey::Own([5, 6]), [true, false]),
        (MultipathKey::Unknown, [false, false]),
        (MultipathKey::Linux([7, 8]), [true, true]),
    ];
    for (multipath_key, taken) in rows {
        bench.after([Event::Settings(HOST, Settings { multipath_key, ..Settings::default() })]);
        assert_eq!(bench.model.routers[&0].multipath.key, multipath_key.words());
        let found = ["10.0.0.0/8", "11.0.0.0/8"].map(|p| match bench.target4(p) {
            Some(Target::Multi(_)) => true,
            other => {
                assert_eq!(other, Some(&UNICAST_COMPLEX), "{p} with {multipath_key:?}");
                false
            }
        });
        assert_eq!(found, taken, "{multipath_key:?}");
    }
}

#[test]
fn policy_1_stays_with_the_kernel_where_packets_come_with_a_hash() {
    let both = weighted(&[(1, "10.9.9.1", 1), (2, "10.9.9.2", 1)]);
    let mut bench = Bench::host(vec![alias(0, both)], vec![]);
    let policy = |policy| Event::Settings(HOST, Settings { multipath_policy: [policy, 0], ..choosing() });
    let hashing = |hashes| Event::Port(1, AttachedPort { hashes, ..port(HOST, 2) });
    let rows = [
        (policy(0), true),
        (hashing(true), true),
        (policy(1), false),
        (hashing(false), true),
        (hashing(true), false),
        (policy(0), true),
    ];
    for (at, (event, taken)) in rows.into_iter().enumerate() {
        bench.after([event]);
        let target = bench.target4("10.0.0.0/8");
        assert_eq!(matches!(target, Some(Target::Multi(_))), taken, "row {at}: {target:?}");
    }
}

/// Linux puts a new sibling last, but its message begins with it (`inet6_rt_notify()`). Observed on Linux 6.18.
#[test]
fn ipv6_members_stay_in_the_order_in_which_linux_tries_them() {
    let set = |gateways: &[&str]| {
        let hops = gateways.iter().map(|g| hop(1, Some(g))).collect();
        route6("2001:db8::/32", Next::Many(hops))
    };
    let mut bench = Bench::host(vec![], vec![]);
    let one = route6("2001:db8::/32", via(1, "fe80::1"));
    let rows: Vec<(Change, Route<u128>, &[&str])> = vec![
        (Change::Add, one, &[]),
        (Change::Add, set(&["fe80::2", "fe80::1"]), &["fe80::1", "fe80::2"]),
        (Change::Append, set(&["fe80::3", "fe80::1", "fe80::2"]), &["fe80::1", "fe80::2", "fe80::3"]),
        (Change::Delete, route6("2001:db8::/32", via(1, "fe80::1")), &["fe80::2", "fe80::3"]),
        (Change::Add, set(&["fe80::1", "fe80::2", "fe80::3"]), &["fe80::2", "fe80::3", "fe80::1"]),
        (Change::Replace, set(&["fe80::3", "fe80::2"]), &["fe80::3", "fe80::2"]),
    ];
    for (at, (change, route, order)) in rows.into_iter().enumerate() {
        bench.after([Event::Route6(HOST, change, route)]);
        let found = bench.target6("2001:db8::/32");
        let Some(Target::Multi(members)) = found else {
            assert!(order.is_empty(), "row {at}: {found:?}");
            continue;
        };
        let gateways = members.iter().map(|(member, _)| match member {
            Target::Hop(hop) => hop.gateway.unwrap().to_string(),
            other => panic!("row {at}: {other:?}"),
        });
        assert_eq!(gateways.collect::<Vec<_>>(), order, "row {at}");
    }
}

#[test]
fn an_equal_dump_changes_nothing_and_a_smaller_one_does() {
    let routes = || vec![alias(0, via(1, "10.9.9.1")), alias(1, dev(2)), route4("0.0.0.0/0", dev(2))];
    let six = || vec![route6("::/0", via(1, "fe80::1"))];
    let mut bench = Bench::host(routes(), six());
    assert_eq!(bench.after([Event::Routes(HOST, routes(), six())]), []);
    let ops = bench.after([Event::Routes(HOST, routes()[1..].to_vec(), vec![])]);
    assert_eq!(
        ops,
        [Op::Route4(0, p4("10.0.0.0/8"), Some(out(2, None))), Op::Route6(0, p6("::/0"), None)],
        "only what differs"
    );
}

#[test]
fn exceptions_come_before_the_rule_and_leave_after_it() {
    let mut bench = Bench::host(vec![], vec![]);
    let (rule, exception) = (route4("0.0.0.0/0", dev(1)), route4("10.0.0.0/8", via(9, "10.9.9.1")));
    let prefixes = |ops: Vec<Op>| -> Vec<Prefix4> {
        ops.iter().filter_map(|op| if let Op::Route4(_, p, _) = op { Some(*p) } else { None }).collect()
    };
    let events = |change| [rule.clone(), exception.clone()].map(|route| Event::Route4(HOST, change, route));
    assert_eq!(prefixes(bench.after(events(Change::Add))), [p4("10.0.0.0/8"), p4("0.0.0.0/0")]);
    assert_eq!(prefixes(bench.after(events(Change::Delete))), [p4("0.0.0.0/0"), p4("10.0.0.0/8")]);
}

#[test]
fn sources_to_look_at_are_local_and_broadcast_host_routes() {
    let broadcast = || Route { kind: RouteKind::Broadcast, ..local4("10.0.0.255/32") };
    let mut bench = Bench::host(vec![local4("10.0.0.1/32"), local4("127.0.0.0/8"), broadcast()], vec![]);
    assert_eq!(Vec::from_iter(bench.model.routers[&0].addresses.clone()), [0x0a00_0001, 0x0a00_00ff]);
    bench.after([Event::Route4(HOST, Change::Add, route4("10.0.0.3/32", dev(1)))]);
    bench.after([Event::Route4(HOST, Change::Delete, broadcast())]);
    assert_eq!(Vec::from_iter(bench.model.routers[&0].addresses.clone()), [0x0a00_0001]);
    assert_eq!(bench.mirror.routers().next().unwrap().ipv4, [""; 0], "127.0.0.0/8 is nothing special");
    bench.after([Event::Route4(HOST, Change::Add, local4("10.0.0.2/32"))]);
    bench.after([Event::Route4(HOST, Change::Delete, local4("10.0.0.1/32"))]);
    assert_eq!(Vec::from_iter(bench.model.routers[&0].addresses.clone()), [0x0a00_0002]);
}

#[test]
fn the_route_to_an_address_is_the_longest_that_leads_somewhere() {
    let dead_end =
        Route { prefix: p4("10.1.2.0/24"), ..kind(RouteKind::Unicast, Next::One(dead(77, "10.9.9.1"))) };
    let routes = vec![route4("0.0.0.0/0", via(2, "10.9.9.2")), route4("10.1.0.0/16", dev(1)), dead_end];
    let bench = Bench::host(routes, vec![route6("2001:db8::/32", dev(1))]);
    let to = |address: [u8; 4]| bench.mirror.route4_to(HOST, u32::from_be_bytes(address));
    assert_eq!(to([10, 1, 2, 3]), Some((p4("10.1.0.0/16"), &out(1, None))), "the /24 leads nowhere");
    assert_eq!(to([10, 2, 0, 1]), Some((p4("0.0.0.0/0"), &out(2, Some("10.9.9.2")))));
    assert_eq!(
        bench.mirror.route6_to(HOST, 0x2001_0db8 << 96 | 1).map(|(p, _)| p),
        Some(p6("2001:db8::/32"))
    );
    assert_eq!(bench.mirror.route6_to(HOST, 1), None);
    assert_eq!(bench.mirror.route4_to(RED, 0), None);
}

/// `ip addr add 192.0.2.0/24 dev lo`: IPv4 looks up tables local and main as one until the first rule is added. IPv6
/// searches table local first. The kernel decides about everything within the prefix. Other routes are not affected.
#[test]
fn a_local_prefix_affects_only_addresses_within_it() {
    let local6 = |prefix: &str| Route { table: 255, kind: RouteKind::Local, ..route6(prefix, dev(9)) };
    let routes4 = ["192.0.0.0/16", "192.0.2.128/25", "192.0.2.7/32"].map(|p| route4(p, dev(2)));
    let routes6 = ["2001:db8::/32", "2001:db8:1:2::/64"].map(|p| route6(p, dev(2)));
    let mut bench = Bench::host(routes4.into(), routes6.into());
    let mut check = |events: Vec<Event>, within4: &[&str], within6: &[&str]| {
        bench.after(events);
        for prefix in ["192.0.0.0/16", "192.0.2.128/25", "192.0.2.7/32"] {
            let hidden = within4.contains(&prefix);
            let expected = if hidden { pass(Reason::LocalPrefix) } else { out(2, None) };
            assert_eq!(bench.target4(prefix), Some(&expected), "{prefix}");
        }
        for prefix in ["2001:db8::/32", "2001:db8:1:2::/64"] {
            let hidden = within6.contains(&prefix);
            let expected = if hidden { pass(Reason::LocalPrefix) } else { out(2, None) };
            assert_eq!(bench.target6(prefix), Some(&expected), "{prefix}");
        }
        let router = bench.mirror.routers().next().unwrap();
        assert_eq!((router.ipv4, router.ipv6), (vec![], vec![]));
        let looks = bench.model.interfaces.values().map(|i| i.look_at_sources).collect::<Vec<_>>();
        (bench.target4("192.0.2.0/24").cloned(), bench.target6("2001:db8:1::/48").cloned(), looks)
    };
    let add = |route| Event::Route4(HOST, Change::Add, route);
    let delete = |route| Event::Route4(HOST, Change::Delete, route);
    let prefix = || local4("192.0.2.0/24");
    let local = Some(pass(Reason::LocalPrefix));

    let own = Route { kind: RouteKind::Local, table: 255, ..route4("192.0.2.7/32", dev(9)) };
    assert_eq!(check(vec![], &[], &[]), (None, None, vec![false, false]));
    let within = ["192.0.2.128/25", "192.0.2.7/32"];
    assert_eq!(check(vec![add(prefix())], &within, &[]), (local.clone(), None, vec![true, true]));
    let six = Event::Route6(HOST, Change::Add, local6("2001:db8:1::/48"));
    let within6 = ["2001:db8:1:2::/64"];
    assert_eq!(check(vec![six], &within, &within6), (local.clone(), local.clone(), vec![true, true]));
    // A unicast route of table local hides as much, but the fast path follows it.
    let unicast = || Route { table: 255, ..route4("192.0.2.0/24", dev(1)) };
    let two = vec![delete(prefix()), add(unicast())];
    assert_eq!(check(two, &within, &within6), (Some(out(1, None)), local.clone(), vec![true, true]));
    assert_eq!(check(vec![delete(unicast())], &[], &within6), (None, local, vec![false, false]));
    bench.after([add(prefix()), add(own)]);
    assert_eq!(
        bench.target4("192.0.2.7/32"),
        Some(&pass(Reason::Local)),
        "an address stays local within the prefix"
    );
}

#[test]
fn a_destination_that_linux_has_learned_about_is_the_kernels() {
    let own = || Route { kind: RouteKind::Local, table: 255, ..route4("10.2.0.1/32", dev(9)) };
    let routes = || vec![route4("10.0.0.0/8", dev(2)), route4("10.2.0.2/32", dev(2)), own()];
    let mut bench = Bench::host(routes(), vec![route6("2001:db8::/32", dev(1))]);
    let learned = |addresses: &[&str]| {
        let six = addresses.first().map(|_| ip("2001:db8::1"));
        Event::Learned(HOST, addresses.iter().map(|address| ip(address)).chain(six).collect())
    };
    let six = |bench: &Bench| bench.target6("2001:db8::1/128").cloned();
    let of = |bench: &Bench, address: &str| {
        let (prefix, target) = bench.mirror.route4_to(HOST, p4(&format!("{address}/32")).address()).unwrap();
        assert_eq!(bench.target4(&prefix.to_string()), Some(target));
        target.clone()
    };
    let kernel = Target::Pass { reason: Reason::LearnedPath, unicast: true };
    let all = ["10.1.1.1", "10.2.0.1", "10.2.0.2"];
    bench.after([learned(&all)]);
    let bound = |bench: &Bench| {
        assert_eq!(
            all.map(|address| of(bench, address)),
            [kernel.clone(), pass(Reason::Local), kernel.clone()]
        );
        assert_eq!(of(bench, "10.1.1.2"), out(2, None));
        assert_eq!(six(bench), Some(kernel.clone()));
    };
    bound(&bench);
    // The routes are read again, and change.
    bench.after([Event::Routes(HOST, routes(), vec![route6("2001:db8::/32", dev(1))])]);
    bound(&bench);
    bench.after([Event::Route4(HOST, Change::Add, route4("10.1.1.1/32", dev(1)))]);
    bench.after([Event::Route4(HOST, Change::Delete, route4("10.1.1.1/32", dev(1)))]);
    bound(&bench);
    // The router goes and comes back. In between, Linux learns more.
    let gone = |on| Event::Port(0, AttachedPort { ifindex: if on { 1 } else { 77 }, ..port(HOST, 1) });
    bench.after([gone(false), Event::Port(1, AttachedPort { ifindex: 78, ..port(HOST, 2) })]);
    bench.after([learned(&[]), learned(&all)]);
    bench.after([gone(true), Event::Port(1, port(HOST, 2))]);
    bound(&bench);
    assert_eq!(Vec::from_iter(bench.model.routers[&0].addresses.clone()), [0x0a02_0001]);
    bench.after([learned(&["10.0.0.0"])]);
    assert_eq!(bench.target4("10.0.0.0/8"), Some(&out(2, None)), "only one address is learned");
    bench.after([learned(&all[..2])]);
    assert_eq!(all.map(|a| of(&bench, a)), [kernel, pass(Reason::Local), out(2, None)]);
    bench.after([learned(&[])]);
    assert_eq!((bench.target4("10.1.1.1/32"), six(&bench)), (None, None));
    assert_eq!(all.map(|a| of(&bench, a)), [out(2, None), pass(Reason::Local), out(2, None)]);
}

/// The entry of a local prefix must stay. It keeps packets with a source in the prefix with the kernel.
#[test]
fn a_learned_destination_in_a_local_prefix_stays_local() {
    let local = Route { kind: RouteKind::Local, table: 255, ..route4("10.2.0.0/16", dev(9)) };
    let mut bench = Bench::host(vec![route4("10.0.0.0/8", dev(2)), local], vec![]);
    bench.after([Event::Learned(HOST, [ip("10.2.0.5")].into())]);
    let (prefix, target) = bench.mirror.route4_to(HOST, p4("10.2.0.5/32").address()).unwrap();
    assert!(matches!(target, Target::Pass { reason: Reason::LocalPrefix, .. }), "{prefix} {target:?}");
}

#[test]
fn the_next_end_is_the_first_of_all_tables() {
    let seconds = Duration::from_secs;
    let end = |at| Some(seconds(at));
    let four = |at| Route { expires: end(at), ..alias(0, dev(1)) };
    let six = |at| Route { expires: end(at), ..route6("2001:db8::/32", dev(1)) };
    for (host4, host6, red4, expected) in [(100, 80, 60, 58), (60, 80, 100, 58), (100, 60, 80, 58)] {
        let mut bench = Bench::host(vec![four(host4)], vec![six(host6)]);
        let routes4 = vec![Route { expires: end(red4), ..route4("10.0.0.0/8", dev(1)) }];
        bench.add_red(Dump { links: vec![macvlan(1, (HOST, 1))], routes4, ..Dump::default() });
        assert_eq!(bench.mirror.next_end(), end(expected));
    }
}

/// Every machine has these.
#[test]
fn loopback_and_multicast_are_no_local_prefixes() {
    let six = |prefix| Route { table: 255, kind: RouteKind::Local, ..route6(prefix, dev(1)) };
    for (prefix, reason) in [
        ("127.0.0.0/8", Reason::Local),
        ("127.128.0.0/9", Reason::Local),
        ("126.0.0.0/7", Reason::LocalPrefix),
        ("126.0.0.0/8", Reason::LocalPrefix),
        ("128.0.0.0/8", Reason::LocalPrefix),
        ("255.0.0.0/8", Reason::LocalPrefix),
    ] {
        let bench = Bench::host(vec![local4(prefix)], vec![]);
        assert_eq!(bench.target4(prefix), Some(&pass(reason)), "{prefix}");
        let looks = bench.model.interfaces.values().all(|i| i.look_at_sources);
        assert_eq!(looks, reason == Reason::LocalPrefix, "{prefix}");
    }
    for (prefix, reason) in [
        ("ff00::/8", Reason::Local),
        ("ff02::/16", Reason::Local),
        ("fe00::/7", Reason::LocalPrefix),
        ("fe00::/8", Reason::LocalPrefix),
        ("7f00::/8", Reason::LocalPrefix),
    ] {
        let bench = Bench::host(vec![], vec![six(prefix)]);
        assert_eq!(bench.target6(prefix), Some(&pass(reason)), "{prefix}");
    }
}

#[test]
fn groups_have_limits() {
    let members = |weights: &[u16]| {
        let hop = |(ifindex, weight): (u32, &u16)| NextHop { weight: *weight, ..hop(1 + ifindex % 2, None) };
        let routes = vec![alias(0, Next::Many((0..).zip(weights).map(hop).collect()))];
        match Bench::host(routes, vec![]).target4("10.0.0.0/8") {
            Some(Target::Multi(members)) => {
                Some(members.iter().map(|(_, weight)| *weight).collect::<Vec<_>>())
            }
            other => {
                assert_eq!(other, Some(&UNICAST_COMPLEX));
                None
            }
        }
    };
    assert_eq!(members(&[0, 1, 256, 257]), Some(vec![1, 1, 256, 256]));
    assert_eq!(members(&[1; 128]), Some(vec![1; 128]));
    assert_eq!(members(&[1; 129]), None);
}
