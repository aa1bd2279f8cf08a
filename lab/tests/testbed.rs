//! Tests of the lab itself: does it clean up, is every packet accounted for, is a wrong forwarder caught? These need
//! root, and run in their own namespaces (`make test-root`).

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use lab::{
    check::check_forwarding,
    command,
    generator::{Load, Pace},
    measure::{Window, measure},
    namespace,
    prefixes::prefixes,
    subject::{self, Rewrite, Subject},
    testbed::Testbed,
    topology::Topology,
    workload::{Family, Way, Workload},
};

const SHORT: Window = Window::new(Duration::from_millis(50), Duration::from_millis(200));

fn namespaces(name: &str) -> Vec<String> {
    let list = command::ip("netns list").unwrap();
    list.split_whitespace().filter(|word| word.starts_with(name)).map(String::from).collect()
}

fn check(testbed: &mut Testbed, subject: &dyn Subject, workload: &Workload) -> anyhow::Result<()> {
    let next_hop = |address| workload.next_hop(address);
    check_forwarding(testbed, subject, &workload.targets, workload.frame_bytes, next_hop)
}

#[test]
#[ignore = "needs root"]
fn a_testbed_leaves_nothing_behind() {
    let testbed = Testbed::new(&Topology::rfc2544().with_routers(3)).unwrap();
    let name = testbed.name.clone();
    assert_eq!(namespaces(&format!("{name}-")).len(), 6);
    drop(testbed);
    assert_eq!(namespaces(&format!("{name}-")), [""; 0]);
}

#[test]
#[ignore = "needs root"]
fn leftovers_of_a_crashed_run_are_removed_and_nothing_else() {
    // The id of a process that has ended.
    let mut child = Command::new("true").spawn().unwrap();
    let dead = child.id();
    child.wait().unwrap();
    let (stale, living) = (format!("mlr-{dead}-gen"), format!("mlr-{}-keep", std::process::id()));
    for name in [&stale, &living] {
        command::ip(&format!("netns add {name}")).unwrap();
    }
    let memory = [&stale, &living].map(|name| PathBuf::from(format!("/dev/shm/millrace-{name}")));
    memory.iter().for_each(|file| std::fs::write(file, "").unwrap());
    namespace::clean_stale();
    let left = (namespaces(&stale).len(), namespaces(&living).len());
    let memory_left = memory.each_ref().map(|file| file.exists());
    command::ip(&format!("netns del {living}")).unwrap();
    std::fs::remove_file(&memory[1]).unwrap();
    assert_eq!((left, memory_left), ((0, 1), [false, true]));
}

#[test]
#[ignore = "needs root"]
fn baselines_forward_what_they_should_and_every_packet_is_accounted_for() {
    let mut testbed = Testbed::new(&Topology::rfc2544().with_routers(2)).unwrap();
    for name in ["linux", "redirect", "touch", "linux"] {
        for family in [Family::V4, Family::V6] {
            let routers = if name == "linux" { 0..=2 } else { 0..=0 };
            let workload = Workload::benchmark(family, 300, routers);
            let subject = subject::start(name, &testbed).unwrap();
            check(&mut testbed, &*subject, &workload).unwrap();
            testbed.generator.set_targets(workload.targets.clone(), workload.frame_bytes).unwrap();
            for pace in [Pace::Saturate, Pace::FlatOut, Pace::Rate(100_000)] {
                let load = Load { frame_bytes: workload.frame_bytes, pace };
                let sample = measure(&mut testbed, load, SHORT).unwrap();
                // Other work on the machine may leave the sender only a few milliseconds.
                assert!(sample.received > 100, "{name} {family:?} {sample:?}");
                assert_eq!(sample.unexplained, 0, "{name} {family:?} {sample:?}");
            }
        }
    }
}

#[test]
#[ignore = "needs root"]
fn a_full_table_is_loaded_and_linux_routes_by_the_longest_prefix() {
    let full = prefixes(None, 100_000, 20_000).unwrap();
    let mut testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    let started = Instant::now();
    testbed.load_routes(&full).unwrap();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    for family in [Family::V4, Family::V6] {
        let workload = Workload::inside(&full, family, 100, testbed.next_hops().unwrap());
        let linux = subject::start("linux", &testbed).unwrap();
        check(&mut testbed, &*linux, &workload).unwrap();
    }
}

/// Ports that share a core must take turns packet by packet, or nearly so. Real-time threads do not.
#[test]
#[ignore = "needs root"]
fn napi_threads_go_first_where_packets_come_to_one_port_only() {
    const NORMAL: &str = "0";
    const ROUND_ROBIN: &str = "2";
    let mut testbed = Testbed::for_rates(&Topology::named("pairs").unwrap()).unwrap();
    let ways = [(1, 0), (2, 2)].map(|(router, from)| Way { router, from, to: from + 1, weight: 1 });
    for (ways, policy) in [(&ways[..1], ROUND_ROBIN), (&ways[..], NORMAL), (&ways[1..], ROUND_ROBIN)] {
        let workload = Workload::across(&testbed.topology, ways, 16).unwrap();
        testbed.generator.set_targets(workload.targets, workload.frame_bytes).unwrap();
        let mut napi = 0;
        for thread in testbed.router_threads().unwrap().0 {
            let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap();
            let (name, fields) = stat.split_once(") ").unwrap();
            if name.contains("(napi/") {
                // proc_pid_stat(5): field 41. These fields start with the third.
                assert_eq!(fields.split(' ').nth(41 - 3), Some(policy), "{stat}");
                napi += 1;
            }
        }
        assert_eq!(napi, 4);
    }
}

/// Claims to be a router, but is a bare redirect.
struct Liar(Box<dyn Subject>);

impl Subject for Liar {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn rewrites(&self) -> Rewrite {
        Rewrite::Full
    }
}

#[test]
#[ignore = "needs root"]
fn a_forwarder_that_forgets_the_ttl_is_caught() {
    let mut testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    let liar = Liar(subject::start("redirect", &testbed).unwrap());
    let workload = Workload::benchmark(Family::V4, 10, 0..=0);
    let error = check(&mut testbed, &liar, &workload).unwrap_err().to_string();
    assert!(error.contains("did not arrive as it should"), "{error}");
}
