//! The daemon dies, comes back, or falls silent, and forwarding continues.

use std::{thread, time::Duration};

use lab::{sink::Watch, testbed::Testbed, workload::Family};

use crate::{
    daemon::{Daemon, Leftovers, eventually_true},
    load::{assert_forwards_right, benchmark, testbed, while_sending},
};

const PORTS: [&str; 4] = ["--port", "eth1", "--port", "eth2"];

fn start(testbed: &Testbed, more: &[&str]) -> Daemon {
    let mut daemon = Daemon::start(&testbed.box_namespace, &testbed.name, &[&PORTS, more].concat());
    daemon.until_accelerated(testbed.routers.len() + 1);
    daemon
}

#[test]
#[ignore = "needs root"]
fn killed_and_restarted_under_load_without_a_lost_packet() {
    let mut testbed = testbed(2);
    let _leftovers = Leftovers(testbed.name.clone());
    for family in [Family::V4, Family::V6] {
        let workload = benchmark(family, 0..=2);
        // Longer than a restart takes on a slow machine, because this test is about the fast path.
        let more = ["--heartbeat", "30s"];
        let mut running = Some(start(&testbed, &more));
        let first = running.as_ref().map(|daemon| daemon.ask(&["status"])).unwrap();
        let account = while_sending(&mut testbed, &workload, |testbed| {
            running.take().unwrap().kill();
            thread::sleep(Duration::from_secs(1));
            running = Some(start(testbed, &more));
        });
        account.assert_no_loss("kill -9 and restart");
        let daemon = running.unwrap();
        let status = daemon.ask(&["status"]);
        // A restart fills a new set of programs and maps before they take over. Counters continue.
        assert!(status["generation"].as_u64() > first["generation"].as_u64(), "{status:#}");
        let forwarded = daemon.forwarded();
        assert!(forwarded >= account.received.iter().sum::<u64>() * 9 / 10, "{forwarded} of {account:?}");
        assert_forwards_right(&mut testbed, &workload);
        daemon.assert_verified();
        daemon.stop();
    }
}

#[test]
#[ignore = "needs root"]
fn changes_made_while_no_daemon_ran_are_found_by_the_next() {
    let mut testbed = testbed(1);
    let _leftovers = Leftovers(testbed.name.clone());
    start(&testbed, &[]).kill();
    for namespace in [&testbed.box_namespace, &testbed.routers[0]] {
        namespace.ip_batch("route replace 198.18.0.0/15 via 10.2.255.2 dev eth2\n").unwrap();
    }
    let daemon = start(&testbed, &[]);
    testbed.sink.watch(Watch { next_hops: true, ..Watch::NOTHING }).unwrap();
    let account = while_sending(&mut testbed, &benchmark(Family::V4, 0..=1), |_| {});
    account.assert_no_loss("after a change");
    assert_eq!(testbed.sink.watched(1).unwrap().packets, 0);
    assert!(testbed.sink.watched(2).unwrap().packets > 1000);
    daemon.assert_verified();
}

#[test]
#[ignore = "needs root"]
fn without_a_heartbeat_the_kernel_forwards_until_a_daemon_is_back() {
    let mut testbed = testbed(1);
    let _leftovers = Leftovers(testbed.name.clone());
    let workload = benchmark(Family::V4, 0..=1);
    let mut running = Some(start(&testbed, &["--heartbeat", "2s"]));
    let account = while_sending(&mut testbed, &workload, |testbed| {
        let daemon = running.take().unwrap();
        let stack = |testbed: &Testbed| forwarded_by_linux(testbed);
        thread::sleep(Duration::from_secs(3));
        let (before, idle) = (daemon.forwarded(), stack(testbed));
        assert!(before > 0);
        daemon.kill();
        eventually_true("the kernel forwards", || stack(testbed) > idle + 1000);
        let restarted = start(testbed, &["--heartbeat", "2s"]);
        let (fast, slow) = (restarted.forwarded(), stack(testbed));
        eventually_true("the fast path forwards again", || restarted.forwarded() > fast + 1000);
        let passed = stack(testbed) - slow;
        assert!(passed < 500, "{passed} packets still went through the kernel");
        running = Some(restarted);
    });
    account.assert_no_loss("heartbeat expired and came back");
    running.unwrap().stop();
}

#[test]
#[ignore = "needs root"]
fn with_a_heartbeat_of_0_the_kernel_forwards_as_soon_as_the_daemon_is_gone() {
    let mut testbed = testbed(1);
    let _leftovers = Leftovers(testbed.name.clone());
    let workload = benchmark(Family::V4, 0..=1);
    let daemon = start(&testbed, &["--heartbeat", "0"]);
    let before = forwarded_by_linux(&testbed);
    while_sending(&mut testbed, &workload, |_| {}).assert_no_loss("with a daemon");
    assert!(forwarded_by_linux(&testbed) - before < 100, "the fast path forwards");
    daemon.kill();
    let before = forwarded_by_linux(&testbed);
    let account = while_sending(&mut testbed, &workload, |_| {});
    account.assert_no_loss("without a daemon");
    let (by_linux, arrived) = (forwarded_by_linux(&testbed) - before, account.received.iter().sum::<u64>());
    assert!(by_linux >= arrived, "{by_linux} of {arrived} by the kernel");
}

/// Packets that the stacks of the box and its routers forwarded (/proc/net/snmp, ForwDatagrams).
pub fn forwarded_by_linux(testbed: &Testbed) -> u64 {
    let namespaces = testbed.routers.iter().chain([&testbed.box_namespace]);
    namespaces
        .map(|namespace| {
            let text = namespace.read("/proc/net/snmp").unwrap();
            let mut ip = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
            let (names, values) = (ip.next().unwrap(), ip.next().unwrap());
            let mut columns = names.split_whitespace().zip(values.split_whitespace());
            columns.find(|(name, _)| *name == "ForwDatagrams").unwrap().1.parse::<u64>().unwrap()
        })
        .sum()
}
