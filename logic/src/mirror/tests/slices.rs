//! A plan changes only so many routes of namespaces other than the host's.

use super::*;

const ROUTES_PER_PLAN: usize = 4;

/// Namespaces 0 (the host) to `last`, each with a macvlan or port and no routes.
fn bench(last: NamespaceId) -> Bench {
    let limits = Limits { routes_per_plan: ROUTES_PER_PLAN, ..Limits::default() };
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
fn those_of_others_are_planned_in_turns_with_equal_shares() {
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

/// A shorter prefix takes the place of longer ones, which go only when it is there.
#[test]
fn an_address_has_a_route_at_each_step() {
    let mut bench = bench(RED);
    bench.see(Event::Routes(RED, long(3), vec![]));
    assert_eq!(routes(&bench.mirror.plan()).len(), 3);
    let shorter = (0..6).map(|i| route4(&format!("10.{i}.0.0/16"), dev(1))).collect();
    bench.see(Event::Routes(RED, shorter, vec![]));
    // Three prefixes are looked at and stay, then the new ones come.
    let counts = |ops: Vec<Op>| {
        let routes = routes(&ops);
        [true, false].map(|wanted| routes.iter().filter(|(.., set)| *set == wanted).count())
    };
    let plans: Vec<_> = (0..4).map(|_| counts(bench.mirror.plan())).collect();
    assert_eq!(plans, [[1, 0], [4, 0], [1, 3], [0, 0]]);
}

/// A route that goes and is back before the others are planned is not touched.
#[test]
fn a_route_that_comes_back_in_between_stays() {
    let mut bench = bench(RED);
    bench.see(Event::Routes(RED, long(1), vec![]));
    bench.plan();
    bench.see(Event::Route4(RED, Change::Delete, route4("10.1.0.0/24", dev(1))));
    let shorter: Vec<_> = (0..8).map(|i| route4(&format!("10.{i}.0.0/16"), dev(1))).collect();
    for route in &shorter {
        bench.see(Event::Route4(RED, Change::Add, route.clone()));
    }
    let first = routes(&bench.mirror.plan());
    assert_eq!(first.len(), 3);
    bench.see(Event::Route4(RED, Change::Add, route4("10.1.0.0/24", dev(1))));
    let mut all = first;
    while bench.mirror.is_behind() {
        all.extend(routes(&bench.mirror.plan()));
    }
    assert!(all.len() == 8 && all.iter().all(|(_, prefix, set)| prefix.ends_with("/16") && *set), "{all:?}");
    assert_eq!(bench.mirror.routes4(RED).count(), 9);
    assert_eq!(bench.mirror.plan(), []);
}
