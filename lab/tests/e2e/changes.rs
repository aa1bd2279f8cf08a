//! Routers, links and routes come, go and change under load. Other routers lose nothing.

use std::{fmt::Write, thread, time::Duration};

use lab::{
    addresses::{
        GENERATOR_MAC, GENERATOR4, egress_mac, egress4, ingress_mac, ingress4, mac_text, nexthop_mac,
    },
    namespace::Namespace,
    testbed::Testbed,
    workload::Family,
};

use crate::{
    daemon::{Daemon, eventually_true, router},
    load::{assert_forwards_right, benchmark, testbed, while_sending},
};

fn start(testbed: &Testbed) -> Daemon {
    let ports = ["--port", "eth1", "--port", "eth2"];
    let mut daemon = Daemon::start(&testbed.box_namespace, &testbed.name, &ports);
    daemon.until_accelerated(testbed.routers.len() + 1);
    daemon
}

#[test]
#[ignore = "needs root"]
fn a_namespace_deleted_under_load_and_made_again() {
    let mut testbed = testbed(2);
    let mut daemon = start(&testbed);
    let name = testbed.routers[1].name().to_owned();
    // Router 2 gets packets too. Whatever happens to them, router 1 and the host lose none.
    let (kept, gone) = (benchmark(Family::V4, 0..=1), benchmark(Family::V4, 2..=2));
    let mut both = kept.clone();
    both.targets.extend(gone.targets.iter().copied());
    let mut deleted = testbed.routers.pop();
    let account = while_sending(&mut testbed, &both, |_| {
        drop(deleted.take());
        daemon.until("the router to be gone", |status| router(status, &name).is_null());
        thread::sleep(Duration::from_millis(500));
    });
    let share = account.sent / 2;
    let [host, r1, ..] = account.received[..] else { panic!("{account:?}") };
    // Targets are used round and round; the last round may be cut short.
    assert!(host + r1 + 500 + account.wire_full() >= share, "others lost packets: {account:?}");
    let account = while_sending(&mut testbed, &kept, |_| {});
    account.assert_no_loss("after the deletion");

    testbed.routers.push(router_like_the_testbeds(&testbed, &name, 2));
    daemon.until_accelerated(3);
    let forwarded = |daemon: &Daemon| daemon.router(&name)["packets"]["forwarded"].as_u64().unwrap();
    let before = forwarded(&daemon);
    while_sending(&mut testbed, &gone, |_| {}).assert_no_loss("the new namespace");
    assert!(forwarded(&daemon) > before + 1000);
    daemon.assert_verified();
}

/// Makes a router as `lab::testbed` does, for IPv4 only.
fn router_like_the_testbeds(testbed: &Testbed, name: &str, r: u16) -> Namespace {
    let namespace = Namespace::create(name.into()).unwrap();
    for (port, mac) in [("eth1", ingress_mac(r)), ("eth2", egress_mac(r))] {
        let mac = mac_text(mac);
        let link =
            format!("link add {port} link {port} address {mac} netns {name} type macvlan mode bridge\n");
        testbed.box_namespace.ip_batch(&link).unwrap();
    }
    namespace
        .sysctl(&[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/eth1/rp_filter", "0"),
            ("net/ipv4/conf/eth2/rp_filter", "0"),
        ])
        .unwrap();
    let addresses = format!(
        "addr add {}/16 dev eth1\naddr add {}/16 dev eth2\nlink set eth1 up\nlink set eth2 up\n",
        ingress4(r),
        egress4(r)
    );
    namespace.ip_batch(&addresses).unwrap();
    namespace.ip_batch(&neighbours_and_route()).unwrap();
    namespace
}

/// Neighbours and a route that disappear with a link that goes down.
fn neighbours_and_route() -> String {
    format!(
        "neigh replace {GENERATOR4} lladdr {} nud permanent dev eth1\n\
         neigh replace 10.2.255.1 lladdr {} nud permanent dev eth2\n\
         route replace 198.18.0.0/15 via 10.2.255.1 dev eth2\n",
        mac_text(GENERATOR_MAC),
        mac_text(nexthop_mac(1))
    )
}

#[test]
#[ignore = "needs root"]
fn ports_and_macvlans_flap_under_load() {
    let mut testbed = testbed(2);
    let mut daemon = start(&testbed);
    let (all, bystanders) = (benchmark(Family::V4, 0..=2), benchmark(Family::V4, 0..=1));
    // One router's way out goes down; the others do not notice.
    let namespace = testbed.routers[1].name().to_owned();
    let ip = |name: &str, lines: &str| lab::command::ip_batch(name, lines).unwrap();
    let account = while_sending(&mut testbed, &bystanders, |_| {
        for _ in 0..5 {
            ip(&namespace, "link set eth2 down\n");
            thread::sleep(Duration::from_millis(100));
            ip(&namespace, &format!("link set eth2 up\n{}", neighbours_and_route()));
            thread::sleep(Duration::from_millis(100));
        }
    });
    account.assert_no_loss("beside a flapping macvlan");
    daemon.until_accelerated(3);
    while_sending(&mut testbed, &all, |_| {}).assert_no_loss("after a macvlan flapped");

    // A whole port goes down, at each of two places: the box's end and the far end.
    let (near, far) =
        (testbed.box_namespace.name().to_owned(), testbed.host("sink").unwrap().name().to_owned());
    while_sending(&mut testbed, &all, |_| {
        for (name, device) in [(&near, "eth2"), (&far, "eth0"), (&near, "eth1")] {
            ip(name, &format!("link set {device} down\n"));
            thread::sleep(Duration::from_millis(200));
            ip(name, &format!("link set {device} up\n"));
            thread::sleep(Duration::from_millis(200));
        }
    });
    ip(&near, &neighbours_and_route());
    for router in &testbed.routers {
        ip(router.name(), &neighbours_and_route());
    }
    eventually_true("all carriers", || {
        let devices = lab::command::ip(&format!("-netns {near} link show")).unwrap();
        !devices.contains("NO-CARRIER")
    });
    daemon.until_accelerated(3);
    testbed.router_threads().unwrap();
    let forwarded = daemon.forwarded();
    let account = while_sending(&mut testbed, &all, |_| {});
    account.assert_no_loss("after the ports flapped");
    assert!(daemon.forwarded() - forwarded >= account.received.iter().sum::<u64>() * 9 / 10, "by the kernel");
    assert_forwards_right(&mut testbed, &all);
    daemon.assert_verified();
}

#[test]
#[ignore = "needs root"]
fn ten_thousand_route_changes_under_load() {
    const CHANGES: usize = 10_000;
    let mut testbed = testbed(1);
    let daemon = start(&testbed);
    let workload = benchmark(Family::V4, 0..=1);
    // More and less specific prefixes around the addresses in use, which stay covered by 198.18.0.0/15 at least.
    let mut random = 0x2545_f491_u32;
    let mut lines = [String::new(), String::new()];
    for i in 0..CHANGES {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (length, next_hop) = (16 + (random >> 28) % 17, 1 + (random >> 8) % 8);
        let address = (0xc612_0000 | (random >> 12) & 0x1ff) & (u32::MAX << (32 - length));
        let prefix = format!("{}/{length}", std::net::Ipv4Addr::from(address));
        let line = match (random >> 24) % 3 {
            0 => format!("route del {prefix}"),
            _ => format!("route replace {prefix} via 10.2.255.{next_hop} dev eth2"),
        };
        writeln!(lines[i % 2], "{line}").unwrap();
    }
    let account = while_sending(&mut testbed, &workload, |testbed| {
        for (namespace, lines) in [&testbed.box_namespace, &testbed.routers[0]].iter().zip(&lines) {
            // Many of the routes to delete do not exist; -force continues.
            let mut ip = std::process::Command::new("ip");
            ip.args(["-force", "-netns", namespace.name(), "-batch", "-"]);
            let done = lab::command::run_with_input(&mut ip, lines);
            drop(done);
        }
        daemon.assert_verified();
    });
    account.assert_no_loss("10,000 route changes");
    daemon.assert_verified();
    let routes = daemon.router("host")["routes"]["ipv4"].as_u64().unwrap();
    assert!(routes > 100, "only {routes} routes: the changes did not happen");
}
