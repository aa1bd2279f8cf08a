//! Losses of an egress port after the redirect are counted: every packet forwarded arrives or is counted by name.

use std::{process::Command, thread, time::Duration};

use lab::{
    command,
    generator::{Load, Pace},
    losses::Losses,
    sys,
    testbed::{PORT_OUT, Testbed},
    workload::Family,
};
use libbpf_rs::{Link, query};
use serde_json::Value;

use crate::{
    daemon::{Daemon, Leftovers, eventually, eventually_true, problems},
    load::{benchmark, testbed},
};

const LAST_NICE: i32 = 19;

fn start(testbed: &Testbed) -> Daemon {
    // The fast path forwards until the next daemon has started, even on a slow machine.
    let arguments = ["--port", "eth1", "--port", PORT_OUT, "--heartbeat", "60s"];
    let mut daemon = Daemon::start(&testbed.box_namespace, &testbed.name, &arguments);
    daemon.until_accelerated(testbed.routers.len() + 1);
    daemon
}

/// Lets a thread empty the far end of the egress port that gets the router's core only when nothing else wants it.
fn starve_sink(testbed: &Testbed) {
    let script = "echo 1 > /sys/class/net/eth0/threaded";
    let mut threaded = Command::new("ip");
    threaded.args(["netns", "exec", testbed.host("sink").unwrap().name(), "sh", "-c", script]);
    command::run(&mut threaded).unwrap();
    let threads =
        testbed.host("sink").unwrap().enter(|| lab::netlink::napi_threads(sys::interface_index("eth0")?));
    for id in threads.unwrap() {
        sys::set_affinity(id, &[testbed.topology.cores.router[0]]).unwrap();
        sys::set_nice(id, LAST_NICE).unwrap();
    }
}

/// (forwarded, lost) by `status`. Asserts that this agrees with the one port that loses, and with the text.
fn told(daemon: &Daemon) -> (u64, u64) {
    let status = daemon.ask(&["status"]);
    let lost = |port: &Value| -> u64 {
        port["lost"].as_array().unwrap().iter().map(|r| r["packets"].as_u64().unwrap()).sum()
    };
    let ports = status["ports"].as_array().unwrap();
    assert_eq!((lost(&ports[0]), lost(&ports[1])), (0, status["lost"].as_u64().unwrap()));
    assert_eq!(problems(&status), [""; 0], "{status:#}");
    (status["packets"]["forwarded"].as_u64().unwrap(), lost(&ports[1]))
}

fn flood(testbed: &mut Testbed, work: impl FnOnce(&Testbed)) {
    let workload = benchmark(Family::V4, 0..=1);
    testbed.generator.set_targets(workload.targets.clone(), workload.frame_bytes).unwrap();
    testbed.generator.start(Load { frame_bytes: workload.frame_bytes, pace: Pace::FlatOut }).unwrap();
    eventually_true("the generator sends", || testbed.generator.packets().unwrap() > 100_000);
    work(testbed);
    testbed.generator.stop().unwrap();
}

/// Asserts that no packet is missing or counted twice: the daemon, the wire and the sink agree, once the queues are
/// empty.
fn assert_accounted(testbed: &Testbed, daemon: &Daemon, before: &Losses) -> u64 {
    eventually("all packets are accounted for", || {
        let arrived = testbed.sink.arrived_in_all().unwrap();
        let wire = Losses::now(testbed).unwrap().since(before).0.get("box.eth2.ring_full").copied();
        let (forwarded, lost) = told(daemon);
        let fine = forwarded == arrived + lost && lost == wire.unwrap_or(0);
        let text = format!("{forwarded} forwarded, {arrived} arrived, {lost} lost, on the wire {wire:?}");
        if fine { Ok(lost) } else { Err(text) }
    })
}

#[test]
#[ignore = "needs root"]
fn every_packet_forwarded_arrives_or_is_counted_as_lost() {
    let mut testbed = testbed(1);
    let _leftovers = Leftovers(testbed.name.clone());
    starve_sink(&testbed);
    let before = Losses::now(&testbed).unwrap();
    let mut running = Some(start(&testbed));
    flood(&mut testbed, |_| thread::sleep(Duration::from_millis(500)));
    let first = assert_accounted(&testbed, running.as_ref().unwrap(), &before);
    assert!(first > 0, "nothing was lost, so nothing was tested");

    // The same without a daemon, and across its restart.
    flood(&mut testbed, |testbed| {
        running.take().unwrap().kill();
        thread::sleep(Duration::from_secs(1));
        running = Some(start(testbed));
    });
    let daemon = running.unwrap();
    let second = assert_accounted(&testbed, &daemon, &before);
    assert!(second > first, "nothing was lost the second time");

    let text = daemon.millrace(&["ports"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains(&format!("{second} tx_ring_full")), "{text}");
    let listeners = listeners(&testbed.name);
    assert_eq!(listeners.len(), 5);
    daemon.stop();
    let left = || query::LinkInfoIter::default().filter(|link| listeners.contains(&link.id)).count();
    eventually_true("`stop` leaves nothing", || left() == 0);
}

/// Ids of the links that count losses.
fn listeners(instance: &str) -> Vec<u32> {
    let pins = std::fs::read_dir(format!("/sys/fs/bpf/millrace-{instance}")).unwrap();
    let links =
        pins.map(|pin| pin.unwrap().path()).filter(|path| path.to_string_lossy().contains("/losses-"));
    links.map(|path| Link::open(path).unwrap().info().unwrap().id).collect()
}
