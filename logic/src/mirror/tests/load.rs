//! Measures a full table: `cargo test --release -p millrace-logic mirror::tests::load -- --ignored --nocapture`.

use super::*;
use std::time::Instant;

const ROUTES: u32 = 1_000_000;

/// Prefix lengths in about the mix of the Internet's table, with next hops of 64 gateways on two ports.
fn table() -> Vec<Route<u32>> {
    let mut state = 1u64;
    let mut routes = Vec::with_capacity(ROUTES as usize);
    let mut seen = std::collections::BTreeSet::new();
    while routes.len() < ROUTES as usize {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let length = match state >> 58 {
            0..36 => 24,
            36..43 => 22,
            43..49 => 23,
            49..55 => 20 + (state >> 50 & 1) as u8,
            _ => 16 + (state >> 50 & 3) as u8,
        };
        let address = 0x0100_0000 + ((state >> 16) as u32 % 0xde00_0000);
        let prefix = Prefix4::new(address, length).unwrap();
        if seen.insert(prefix) {
            let gateway = format!("192.0.2.{}", 1 + (state >> 40) % 64);
            let next = via(1 + (state >> 47 & 1) as u32, &gateway);
            routes.push(Route { prefix, ..route4("0.0.0.0/0", next) });
        }
    }
    routes.sort_unstable_by_key(|r| r.prefix);
    routes
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    println!("{what}: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    result
}

#[test]
#[ignore = "a measurement; wants --release"]
fn a_million_routes() {
    let routes = table();
    let (again, changes) =
        (routes.clone(), routes.iter().step_by(10).take(100_000).cloned().collect::<Vec<_>>());
    let mut bench = Bench::host(vec![], vec![]);
    timed("load", || bench.see(Event::Routes(HOST, routes, vec![])));
    let ops = timed("plan of the load", || bench.mirror.plan());
    assert_eq!(ops.len(), ROUTES as usize);
    drop(ops);

    timed("equal load", || bench.see(Event::Routes(HOST, again, vec![])));
    assert_eq!(timed("plan of the equal load", || bench.mirror.plan()), []);

    let (gone, back) = (changes.clone(), changes);
    println!("{} bytes per route", bench.mirror.spaces[&HOST].rib4.bytes() / ROUTES as usize);

    timed("100,000 deletions, 1,000 a plan", || churn(&mut bench, Change::Delete, gone));
    timed("100,000 additions, 1,000 a plan", || churn(&mut bench, Change::Add, back));

    let shrunk = Link { mtu: 1400, ..physical(1) };
    bench.see(Event::Link(HOST, shrunk));
    let ops = timed("half of the routes to another MTU", || bench.mirror.plan());
    assert!(ops.len() > 400_000);
    bench.see(Event::Link(HOST, Link { up: false, mtu: 1400, ..physical(1) }));
    assert_eq!(timed("link down", || bench.mirror.plan()).len(), 1);
}

fn churn(bench: &mut Bench, change: Change, routes: Vec<Route<u32>>) {
    let mut ops = 0;
    for (i, route) in routes.into_iter().enumerate() {
        bench.see(Event::Route4(HOST, change, route));
        if i % 1000 == 999 {
            ops += bench.mirror.plan().len();
        }
    }
    assert_eq!(ops, 100_000);
}

/// 256 routers with 15 interfaces each: the cost of one link event.
#[test]
#[ignore = "a measurement; wants --release"]
fn four_thousand_interfaces() {
    let mut bench = Bench::host(vec![], vec![]);
    for namespace in 1..256 {
        let link =
            |i: u32| Link { mac: Mac([2, 1, 0, namespace as u8, 0, i as u8]), ..macvlan(i, (HOST, 1)) };
        let links = (1..=15).map(link).collect();
        bench.see(Event::Namespace(namespace, super::namespace("red")));
        bench.see(Event::Dump(namespace, Box::new(Dump { links, ..Dump::default() })));
    }
    let ops = timed("all interfaces", || bench.mirror.plan());
    assert_eq!(ops.len(), 255 * (1 + 2 * 15));
    let mut link = Link { mac: Mac([2, 1, 0, 7, 0, 3]), ..macvlan(3, (HOST, 1)) };
    timed("100 link changes, each its own plan", || {
        for _ in 0..100 {
            link.up = !link.up;
            bench.see(Event::Link(7, link.clone()));
            assert_eq!(bench.mirror.plan().len(), 1);
        }
    });
}

/// The longest time that a tenant at its limit can make one round of the control loop take. Each route is a path of its
/// own, so each is resolved again when a link changes.
#[test]
#[ignore = "a measurement; wants --release"]
fn a_tenant_at_its_limit() {
    let mut bench = Bench::host(vec![], vec![]);
    let link = |mtu| Link { mtu, mac: mac(99), ..macvlan(1, (HOST, 1)) };
    let routes: Vec<_> = (0..24_576u32)
        .map(|i| Route {
            prefix: Prefix4::new(0x0a00_0000 + (i << 8), 24).unwrap(),
            rest: u64::from(i),
            ..route4("0.0.0.0/0", dev(1))
        })
        .collect();
    bench.see(Event::Namespace(RED, namespace("red")));
    bench.see(Event::Dump(RED, Box::new(Dump { links: vec![link(1500)], ..Dump::default() })));
    bench.plan();
    let again = routes.clone();
    timed("load", || bench.see(Event::Routes(RED, routes, vec![])));
    let slices = |bench: &mut Bench| {
        for part in ["first", "second"] {
            timed(&format!("{part} plan"), || bench.mirror.plan());
        }
        while bench.mirror.is_behind() {
            bench.mirror.plan();
        }
    };
    slices(&mut bench);
    timed("equal load", || bench.see(Event::Routes(RED, again, vec![])));
    slices(&mut bench);
    bench.see(Event::Link(RED, link(1400)));
    println!("link changed");
    slices(&mut bench);
}
