//! Packets lost after a redirect are counted by name, whatever redirected them. These tests need root, and run in their
//! own namespaces (`make test-root`).

use std::time::Duration;

use lab::{
    bpf,
    generator::{Load, Pace},
    losses::Losses,
    measure::{Sample, Window, measure},
    subject,
    testbed::{PORT_IN, PORT_OUT, Testbed},
    topology::Topology,
    workload::{Family, Workload},
};
use libbpf_rs::{
    MapCore, MapFlags,
    skel::{OpenSkel, SkelBuilder},
};

#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/faulty.skel.rs"));
}

fn sample(testbed: &mut Testbed, frame_bytes: u16, pace: Pace) -> Sample {
    let workload = Workload::benchmark(Family::V4, 10, 0..=0);
    testbed.generator.set_targets(workload.targets, frame_bytes).unwrap();
    let window = Window::new(Duration::from_millis(50), Duration::from_millis(200));
    measure(testbed, Load { frame_bytes, pace }, window).unwrap()
}

/// Every packet that was sent is lost, under this name.
fn assert_lost(seen: &Sample, name: &str) {
    assert!(seen.sent > 500, "{seen:?}");
    let ring_full = seen.lost.get("gen.eth0.ring_full").copied().unwrap_or(0);
    let lost = seen.lost.get(name).copied().unwrap_or(0);
    assert!(lost.abs_diff(seen.sent - ring_full) < 10, "{name}: {seen:?}");
    assert_eq!(seen.received, 0, "{seen:?}");
    assert_explained(seen);
}

/// Neighbour discovery of the hosts may be lost, too.
fn assert_explained(seen: &Sample) {
    assert!(seen.unexplained.abs() < 10, "{seen:?}");
}

#[test]
#[ignore = "needs root"]
fn a_redirect_that_fails_has_a_name() {
    let mut testbed = Testbed::for_rates(&Topology::rfc2544()).unwrap();
    let pace = Pace::Rate(10_000);
    let _redirect = subject::start("redirect", &testbed).unwrap();
    let seen = sample(&mut testbed, 1000, pace);
    assert_eq!((seen.received, seen.lost.len()), (seen.sent, 0), "{seen:?}");

    testbed.box_namespace.ip_batch(&format!("link set {PORT_OUT} mtu 900\n")).unwrap();
    assert_lost(&sample(&mut testbed, 1000, pace), "box.eth1.over_mtu");
    // A veth takes no packets for a peer that is down, because that has no NAPI.
    testbed.box_namespace.ip_batch(&format!("link set {PORT_OUT} mtu 1500\n")).unwrap();
    testbed.host("sink").unwrap().ip_batch("link set eth0 down\n").unwrap();
    assert_lost(&sample(&mut testbed, 1000, pace), "box.eth2.refused");

    // Its NAPI threads end with the port, and measurements with them.
    testbed.box_namespace.ip_batch(&format!("link set {PORT_OUT} down\n")).unwrap();
    let before = Losses::now(&testbed).unwrap();
    testbed.generator.send(1000, 1000).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let lost = Losses::now(&testbed).unwrap().since(&before).0;
    let ring_full = lost.get("gen.eth0.ring_full").copied().unwrap_or(0);
    assert!(lost["box.eth1.down"].abs_diff(1000 - ring_full) < 10, "{lost:?}");
}

/// A queue of one packet in front of a core that the generator keeps busy.
#[test]
#[ignore = "needs root"]
fn a_full_cpumap_has_a_name() {
    let mut testbed = Testbed::for_rates(&Topology::rfc2544()).unwrap();
    let faulty = skeleton::FaultySkelBuilder::default().open(bpf::storage()).unwrap().load().unwrap();
    let core = testbed.topology.cores.generator;
    let queue = [1u32.to_ne_bytes(), [0; 4]].concat();
    assert_eq!(core, 0, "the map's one entry is that of core 0");
    faulty.maps.cpus.update(&0u32.to_ne_bytes(), &queue, MapFlags::ANY).unwrap();
    let port = testbed.box_namespace.interface_index(PORT_IN).unwrap();
    let link = testbed.box_namespace.enter(|| Ok(faulty.progs.faulty_cpumap.attach_xdp(port as i32)?));
    let seen = sample(&mut testbed, 60, Pace::FlatOut);
    drop(link);
    assert!(seen.lost["core0.cpumap_full"] > 1000, "{seen:?}");
    assert_explained(&seen);
}
