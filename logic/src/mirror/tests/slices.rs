//! A plan changes a limited number of routes in namespaces other than the host's.

use super::*;

const ROUTES_PER_PLAN: usize = 4;

/// Namespaces 0 (the host) to `last`, each with a macvlan or port and without routes.
fn bench(last: NamespaceId) -> Bench {
    limited(last, Limits::default().interfaces)
}

fn limited(last: NamespaceId, interfaces: u16) -> Bench {
    let limits = Limits { routes_per_plan: ROUTES_PER_PLAN, interfaces, ..Limits::default() };
    let mut bench = Bench { mirror: Mirror::new(limits), model: Model::default() };
    bench.see(Event::Port(0, port(HOST, 1)));
    for id in HOST..=last {
        bench.see(Event::Namespace(id, namespace(if id == HOST { "host" } else { "red" })));
        let link =
            if id == HOST { physical(1) } else { Link { mac: mac(9 + id as u8), ..macvlan(1, (HOST, 1)) } };
        bench.see(Event::Dump(id, Box::new(Dump { links: vec![link], ..Dump::default() })));
    }
    bench.plan();
    bench
}

fn long(count: usize) -> Vec<Route<u32>> {
    (0..count).map(|i| route4(&format!("10.1.{i}.0/24"), dev(1))).collect()
}

fn routes(ops: &[Op]) -> Vec<(crate::plan::RouterId, String, bool)> {
    let one = |op: &Op| match op {
        Op::Route4(router, prefix, target) => Some((*router, prefix.to_string(), target.is_some())),
        _ => None,
    };
    ops.iter().filter_map(one).collect()
}

#[test]
fn the_hosts_routes_are_planned_at_once() {
    let mut bench = bench(HOST);
    bench.see(Event::Routes(HOST, long(50), vec![]));
    assert_eq!((routes(&bench.mirror.plan()).len(), bench.mirror.is_behind()), (50, false));
}

#[test]
fn routes_of_other_namespaces_are_planned_in_turns_with_equal_shares() {
    let mut bench = bench(2);
    bench.see(Event::Routes(1, long(5), vec![]));
    bench.see(Event::Routes(2, long(3), vec![]));
    bench.see(Event::Routes(HOST, long(9), vec![]));
    let count = |ops: &[Op]| {
        let of = |router| routes(ops).iter().filter(|(r, ..)| *r == router).count();
        [of(0), of(1), of(2)]
    };
    assert_eq!(count(&bench.mirror.plan()), [9, 2, 2]);
    assert_eq!(count(&bench.mirror.plan()), [0, 2, 1]);
    assert!(bench.mirror.is_behind());
    assert_eq!([0, 1, 2].map(|id| bench.mirror.is_behind_of(id)), [false, true, false]);
    assert_eq!(count(&bench.mirror.plan()), [0, 1, 0]);
    assert!(!bench.mirror.is_behind());
}

/// Parties have equal shares, and so have the namespaces of one party. Those without routes to plan have none.
#[test]
fn the_namespaces_of_an_owner_share_its_part() {
    let mut bench = bench(4);
    for id in [2, 3] {
        let about = Namespace { owner: Owner::User(1000), ..namespace("red") };
        bench.see(Event::Namespace(id, about));
    }
    bench.plan();
    (1..=3).for_each(|id| bench.see(Event::Routes(id, long(5), vec![])));
    let ops = routes(&bench.mirror.plan());
    assert_eq!([1, 2, 3].map(|id| ops.iter().filter(|(router, ..)| *router == id).count()), [2, 1, 1]);
}

/// Old routes lead to a number until they are planned again. Nobody else may have it before that.
#[test]
fn a_number_rests_while_routes_to_it_wait() {
    let mut bench = limited(RED, 2);
    bench.see(Event::Routes(RED, long(20), vec![]));
    while bench.mirror.is_behind() {
        plan(&mut bench);
    }
    bench.see(Event::LinkGone(RED, 1));
    bench.see(Event::Link(RED, Link { mac: mac(77), ..macvlan(5, (HOST, 1)) }));
    let number = |bench: &Bench| bench.mirror.interfaces().find(|i| i.ifindex == 5)?.interface;
    let mut plans = 0;
    while number(&bench).is_none() {
        assert!(plans < 20, "the number rests for ever");
        plan(&mut bench);
        plans += 1;
    }
    assert_eq!(number(&bench), Some(2));
    assert!(plans > 20 / ROUTES_PER_PLAN, "{plans} plans");
}

#[test]
fn a_router_that_goes_while_its_routes_wait_comes_back_with_all() {
    let mut bench = bench(RED);
    bench.see(Event::Routes(RED, long(9), vec![]));
    plan(&mut bench);
    bench.see(Event::Route4(RED, Change::Delete, route4("10.1.8.0/24", dev(1))));
    bench.see(Event::LinkGone(RED, 1));
    plan(&mut bench);
    assert!(!bench.mirror.is_behind() && bench.model.routers.len() == 1);
    bench.see(Event::Link(RED, red_link()));
    plan(&mut bench);
    while bench.mirror.is_behind() {
        plan(&mut bench);
    }
    assert_eq!(bench.model.routers.last_key_value().unwrap().1.routes4.len(), 8);
}

/// A shorter prefix replaces longer ones, which are removed only after it is there.
#[test]
fn an_address_has_a_route_at_each_step() {
    let mut bench = bench(RED);
    bench.see(Event::Routes(RED, long(3), vec![]));
    assert_eq!(routes(&bench.mirror.plan()).len(), 3);
    let shorter = (0..6).map(|i| route4(&format!("10.{i}.0.0/16"), dev(1))).collect();
    bench.see(Event::Routes(RED, shorter, vec![]));
    // Three prefixes are looked at and stay. Then the new ones are added.
    let counts = |ops: Vec<Op>| {
        let routes = routes(&ops);
        [true, false].map(|wanted| routes.iter().filter(|(.., set)| *set == wanted).count())
    };
    let plans: Vec<_> = (0..4).map(|_| counts(bench.mirror.plan())).collect();
    assert_eq!(plans, [[1, 0], [4, 0], [1, 3], [0, 0]]);
}

/// A route that goes and comes back while others are planned passes to the kernel until the next batch. At no step do
/// its packets take a shorter prefix.
#[test]
fn a_route_that_comes_back_in_between_passes() {
    let mut bench = bench(RED);
    bench.see(Event::Routes(RED, long(1), vec![]));
    bench.plan();
    bench.see(Event::Route4(RED, Change::Delete, route4("10.1.0.0/24", dev(1))));
    let shorter: Vec<_> = (0..8).map(|i| route4(&format!("10.{i}.0.0/16"), dev(1))).collect();
    for route in &shorter {
        bench.see(Event::Route4(RED, Change::Add, route.clone()));
    }
    assert_eq!(routes(&bench.mirror.plan()).len(), 3);
    bench.see(Event::Route4(RED, Change::Add, route4("10.1.0.0/24", dev(1))));
    let mut seen = Vec::new();
    while bench.mirror.is_behind() {
        bench.mirror.plan();
        let (prefix, target) = bench.mirror.route4_to(RED, 0x0a01_0001).unwrap();
        seen.push((prefix.to_string(), matches!(target, Target::Pass { .. })));
    }
    let step = |passes| ("10.1.0.0/24".to_owned(), passes);
    assert_eq!(seen, [step(false), step(true), step(false)]);
    assert_eq!(bench.mirror.routes4(RED).count(), 9);
    assert_eq!(bench.mirror.plan(), []);
}

/// Eight long prefixes come before 0.0.0.0/0 in a batch that has begun. Then an exception is added. After that,
/// `change` moves 0.0.0.0/0 to the gateway 10.9.9.2. No address of the exception may ever go there.
fn no_route_without_its_exception(default: Next, change: Event) {
    let mut bench = bench(RED);
    bench.see(Event::Nexthop(RED, object("10.9.9.1")));
    let old = long(8).into_iter().chain([route4("0.0.0.0/0", via(1, "10.9.9.0"))]).collect();
    bench.see(Event::Routes(RED, old, vec![]));
    while bench.mirror.is_behind() {
        bench.mirror.plan();
    }
    let moved = |route: Route<u32>| Route { next: via(1, "10.9.9.1"), ..route };
    let new = long(8).into_iter().map(moved).chain([route4("0.0.0.0/0", default)]).collect();
    bench.see(Event::Routes(RED, new, vec![]));
    bench.mirror.plan();
    assert!(bench.mirror.is_behind_of(RED) && !bench.mirror.is_behind_of(HOST));
    let exception = Route { kind: RouteKind::Blackhole, ..route4("10.1.0.0/16", Next::None) };
    bench.see(Event::Route4(RED, Change::Add, exception));
    bench.see(change);
    let leads_to = |bench: &Bench, address, gateway| {
        let target = bench.mirror.route4_to(RED, address).map(|(_, target)| target);
        matches!(target, Some(Target::Hop(hop)) if hop.gateway == Some(ip(gateway)))
    };
    let mut plans = 0;
    while bench.mirror.is_behind() {
        bench.mirror.plan();
        assert!(!leads_to(&bench, 0x0a01_6301, "10.9.9.2"), "after plan {plans}");
        plans += 1;
    }
    assert!(plans > 2 && leads_to(&bench, 0x0808_0808, "10.9.9.2"));
    assert_eq!(bench.mirror.plan(), []);
}

fn object(gateway: &str) -> NexthopObject {
    NexthopObject { id: 1, kind: NexthopObjectKind::Single(hop(1, Some(gateway))) }
}

#[test]
fn a_route_that_changes_while_it_waits_comes_after_its_exceptions() {
    let change = Event::Route4(RED, Change::Replace, route4("0.0.0.0/0", via(1, "10.9.9.2")));
    no_route_without_its_exception(via(1, "10.9.9.1"), change);
}

#[test]
fn a_route_whose_nexthop_object_changes_comes_after_its_exceptions() {
    no_route_without_its_exception(Next::Object(1), Event::Nexthop(RED, object("10.9.9.2")));
}

fn through(gateway: &str, count: usize) -> Vec<Route<u32>> {
    long(count).into_iter().map(|route| Route { next: via(1, gateway), ..route }).collect()
}

fn red_link() -> Link {
    Link { mac: mac(10), ..macvlan(1, (HOST, 1)) }
}

/// The namespace RED with nine routes, all planned. Its interface is on.
fn settled() -> Bench {
    let mut bench = bench(RED);
    bench.see(Event::Routes(RED, through("10.9.9.0", 9), vec![]));
    while bench.mirror.is_behind() {
        plan(&mut bench);
    }
    assert_eq!(state(&bench), [true; 3]);
    bench
}

fn plan(bench: &mut Bench) -> Vec<Op> {
    let ops = bench.mirror.plan();
    bench.mirror.check();
    bench.model.is_behind = bench.mirror.is_behind();
    bench.model.apply(&ops);
    ops
}

/// The state of RED's interface: IPv4, IPv6, transmission.
fn state(bench: &Bench) -> [bool; 3] {
    let interface = bench.model.interfaces.values().find(|i| i.router == 1).unwrap();
    [interface.ipv4, interface.ipv6, interface.transmit]
}

/// Plans until the interface of RED is on, while routes of other prefixes change all the time. Returns the number of
/// plans.
fn plans_until_on(bench: &mut Bench) -> usize {
    for plans in 1..20 {
        let revision = bench.mirror.revision();
        plan(bench);
        if state(bench) == [true; 3] {
            assert!(plans == 1 || bench.mirror.revision() != revision);
            return plans;
        }
        let why = bench.mirror.interfaces().find(|i| i.namespace == RED).unwrap().reasons4;
        assert_eq!(why, ["the fast path does not have all routes of its router yet"]);
        for i in 0..ROUTES_PER_PLAN {
            let route = route4(&format!("10.{plans}.{i}.0/24"), dev(1));
            bench.see(Event::Route4(RED, Change::Replace, Route { metric: 1, ..route }));
        }
    }
    panic!("the interface stays off");
}

fn assert_no_old_route(bench: &Bench) {
    for (prefix, target) in &bench.model.routers[&1].routes4 {
        let old = matches!(target, Target::Hop(hop) if hop.gateway == Some(ip("10.9.9.0")));
        assert!(!old, "{prefix}");
    }
}

/// Events were lost, and the dump that replaces them changes more than one plan can.
#[test]
fn an_interface_is_on_again_after_its_routes() {
    let mut bench = settled();
    let lost = Settings {
        hazards4: vec![Code::Unreadable.cause("events were lost")],
        hazards6: vec![Code::Unreadable.cause("events were lost")],
        ..Settings::default()
    };
    bench.see(Event::Settings(RED, lost));
    plan(&mut bench);
    assert_eq!(state(&bench), [false, false, true]);
    let routes4 = through("10.9.9.1", 9);
    bench.see(Event::Dump(RED, Box::new(Dump { links: vec![red_link()], routes4, ..Dump::default() })));
    plan(&mut bench);
    let view = bench.mirror.interfaces().find(|i| i.namespace == RED).unwrap();
    let waits = ["the fast path does not have all routes of its router yet"];
    assert_eq!((texts(&view.reasons4), texts(&view.reasons6)), (waits.to_vec(), waits.to_vec()));
    assert_eq!(plans_until_on(&mut bench), 2);
    assert_no_old_route(&bench);
    let view = bench.mirror.interfaces().find(|i| i.namespace == RED).unwrap();
    assert_eq!((view.ipv4, view.ipv6, view.reasons6), (true, true, vec![]));
    let why = bench.mirror.interfaces().find(|i| i.namespace == RED).unwrap().reasons4;
    assert_eq!(why, [""; 0]);
}

/// Linux removes routes without a message when a link goes down.
#[test]
fn a_link_that_comes_up_waits_for_the_routes_too() {
    let mut bench = settled();
    bench.see(Event::Link(RED, Link { up: false, ..red_link() }));
    plan(&mut bench);
    assert_eq!(state(&bench), [false; 3]);
    while bench.mirror.is_behind() {
        plan(&mut bench);
    }
    bench.see(Event::Link(RED, red_link()));
    bench.see(Event::Routes(RED, through("10.9.9.1", 9), vec![]));
    assert_eq!(plans_until_on(&mut bench), 3);
    assert_no_old_route(&bench);
}

/// Nine new routes wait when IPv4 may be on again. Before they are planned come `events`, and a dump that moves the old
/// routes and allows everything. The interface must then wait for the old routes, too.
fn assert_the_wait_starts_again(hazards6: &[&str], events: Vec<Event>) {
    let mut bench = settled();
    let hazards6: Vec<_> = hazards6.iter().map(|hazard| Code::PolicyRule.cause(*hazard)).collect();
    let settings =
        |hazards4: Vec<Cause>| Settings { hazards4, hazards6: hazards6.clone(), ..Settings::default() };
    bench.see(Event::Settings(RED, settings(vec![Code::Unreadable.cause("events were lost")])));
    plan(&mut bench);
    let others = (0..9).map(|i| route4(&format!("10.99.{i}.0/24"), dev(1)));
    let routes4: Vec<_> = through("10.9.9.0", 9).into_iter().chain(others.clone()).collect();
    let dump = Dump { links: vec![red_link()], settings: settings(Vec::new()), routes4, ..Dump::default() };
    bench.see(Event::Dump(RED, Box::new(dump)));
    plan(&mut bench);
    for event in events {
        bench.see(event);
        plan(&mut bench);
    }
    assert!(!state(&bench)[0]);
    let routes4 = through("10.9.9.1", 9).into_iter().chain(others).collect();
    bench.see(Event::Dump(RED, Box::new(Dump { links: vec![red_link()], routes4, ..Dump::default() })));
    plans_until_on(&mut bench);
    assert_no_old_route(&bench);
}

#[test]
fn an_interface_that_goes_off_while_it_waits_waits_again() {
    let lost = Settings { hazards4: vec![Code::Unreadable.cause("events were lost")], ..Settings::default() };
    assert_the_wait_starts_again(&[], vec![Event::Settings(RED, lost)]);
}

#[test]
fn an_interface_with_more_to_turn_on_waits_again() {
    assert_the_wait_starts_again(&["a hook"], vec![]);
}

/// The tables of a new router are empty, so its interface need not wait. It stays on while routes change.
#[test]
fn a_new_router_is_on_at_once_and_stays_on() {
    let mut bench = bench(HOST);
    bench.see(Event::Namespace(RED, namespace("red")));
    let routes4 = through("10.9.9.0", 9);
    bench.see(Event::Dump(RED, Box::new(Dump { links: vec![red_link()], routes4, ..Dump::default() })));
    plan(&mut bench);
    assert!(bench.mirror.is_behind_of(RED));
    assert_eq!(state(&bench), [true; 3]);
    bench.see(Event::Routes(RED, through("10.9.9.1", 9), vec![]));
    while bench.mirror.is_behind() {
        let ops = plan(&mut bench);
        assert!(!ops.iter().any(|op| matches!(op, Op::Interface(..))), "{ops:?}");
    }
}
