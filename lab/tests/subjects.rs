//! Every subject that can run here forwards correctly, is accounted for, and leaves nothing behind, also when its start
//! fails half way. A subject whose program is missing reports so. These tests need root, and run in their own
//! namespaces. A subject whose program is not installed is skipped, and the test reports that.

use std::{collections::BTreeSet, io::Write, net::Ipv4Addr, process::Command, time::Duration};

use lab::{
    addresses::ingress_mac,
    check::check_forwarding,
    command,
    generator::{Load, Pace},
    measure::{Sample, Window, measure},
    packet::Target,
    prefixes::{self, Prefixes},
    subject::{self, Millrace, Rewrite, Subject},
    sys,
    testbed::{PORT_OUT, Priority, Testbed},
    topology::Topology,
    workload::{Family, Workload},
};
use logic::net::Prefix4;

/// Slow enough for every subject on a machine with much other work.
const GENTLE: Pace = Pace::Rate(5_000);

/// Programs that the machine may lack: subject, program, environment variable with its path.
const FOREIGN: [(&str, &str, &str); 7] = [
    ("ovs-packet", "ovs-vswitchd", ""),
    ("ovs-afxdp", "ovs-vswitchd", ""),
    ("testpmd-packet", "dpdk-testpmd", ""),
    ("testpmd-afxdp", "dpdk-testpmd", ""),
    ("vpp-packet", "vpp", "MILLRACE_LAB_VPP"),
    ("vpp-afxdp", "vpp", "MILLRACE_LAB_VPP"),
    ("xdp-forward", "xdp-forward", "MILLRACE_LAB_XDP_FORWARD"),
];

fn installed(name: &str) -> bool {
    let Some((_, program, variable)) = FOREIGN.iter().find(|(subject, ..)| *subject == name) else {
        return true;
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
        || std::env::var_os(variable).is_some();
    if !there {
        // Not eprintln, whose output only failing tests show.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {name} is not tested, as there is no {program} here");
    }
    there
}

/// What a subject could leave behind: devices of the box and what is attached to them, namespaces, processes in the box,
/// tables of netfilter, files.
fn traces(testbed: &Testbed) -> BTreeSet<String> {
    let name = testbed.box_namespace.name();
    let inside = |program: &str, arguments: &str| {
        let mut command = testbed.box_namespace.command(program);
        command::run(command.args(arguments.split(' '))).unwrap()
    };
    let mut traces: BTreeSet<String> =
        inside("ip", "-o link").lines().map(|line| fixed(line, "link")).collect();
    traces.extend(inside("bridge", "fdb").lines().map(String::from));
    for table in ["-4 route show table all", "-6 route show table all", "neigh show nud permanent"] {
        traces.extend(inside("ip", table).lines().map(|line| format!("{table}: {line}")));
    }
    traces.extend(inside("nft", "list tables").lines().map(String::from));
    traces.extend(
        command::ip(&format!("netns pids {name}")).unwrap().lines().map(|pid| format!("process {pid}")),
    );
    traces.extend(
        command::ip("netns list").unwrap().lines().filter(|line| line.contains(&testbed.name)).map(namespace),
    );
    for directory in ["/run", "/run/dpdk", "/dev/shm", "/sys/fs/bpf", "/sys/fs/bpf/xdp", "/tmp"] {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        traces.extend(
            names.filter(|file| file.contains(&testbed.name)).map(|file| format!("{directory}/{file}")),
        );
    }
    for setting in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "vm/nr_hugepages"] {
        let path = format!("/proc/sys/{setting}");
        traces.insert(format!("{setting} {}", testbed.box_namespace.read(&path).unwrap().trim()));
    }
    traces
}

/// The traces of a new testbed, once Linux has assigned its IPv6 addresses.
fn settled(testbed: &Testbed) -> BTreeSet<String> {
    let mut seen = traces(testbed);
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = traces(testbed);
        if now == seen {
            return now;
        }
        seen = now;
    }
}

/// A device's line, up to the part that counts on its own.
fn fixed(line: &str, what: &str) -> String {
    let words = line.split_whitespace().filter(|word| !word.starts_with("0x"));
    format!("{what} {}", words.collect::<Vec<_>>().join(" "))
}

fn namespace(line: &str) -> String {
    format!("namespace {}", line.split(' ').next().unwrap_or_default())
}

fn leaves_nothing(testbed: &Testbed, before: &BTreeSet<String>, name: &str) {
    let after = traces(testbed);
    let difference: Vec<_> = after.symmetric_difference(before).collect();
    assert!(difference.is_empty(), "{name}: {difference:#?}");
}

fn forwards(testbed: &mut Testbed, subject: &dyn Subject, family: Family) -> Sample {
    let workload = Workload::benchmark(family, 300, 0..=0);
    let targets = subject.addressed(&workload.targets);
    // The host would also forward packets sent to it.
    let router = ingress_mac(subject.router());
    assert!(targets.iter().all(|target| target.router_mac == router));
    let next_hop = |address| workload.next_hop(address);
    check_forwarding(testbed, subject, &targets, workload.frame_bytes, next_hop).unwrap();
    testbed.generator.set_targets(targets, workload.frame_bytes).unwrap();
    let load = Load { frame_bytes: workload.frame_bytes, pace: GENTLE };
    measure(testbed, load, Window::new(Duration::from_millis(100), Duration::from_millis(200))).unwrap()
}

fn forwards_and_leaves_nothing(name: &str) {
    let mut testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    // The generator must get its core; otherwise it sends nothing.
    testbed.set_priority(Priority::Rates).unwrap();
    let before = settled(&testbed);
    // Twice, because leftovers of the first would disturb the second.
    for _ in 0..2 {
        let subject = subject::start(name, &testbed).unwrap();
        assert_eq!(subject.name(), name);
        for family in [Family::V4, Family::V6] {
            let sample = forwards(&mut testbed, &*subject, family);
            assert!(sample.received > 100, "{name} {family:?} {sample:?}");
            // A packet socket holds some 50 ms of packets, and no counter of the testbed shows what it lost while its process
            // waited for a core.
            let hidden = if name.ends_with("-packet") { sample.sent as i64 } else { 0 };
            assert!((0..=hidden).contains(&sample.unexplained), "{name} {family:?} {sample:?}");
            assert!(sample.busy > 0.0, "{name} {family:?} {sample:?}");
        }
        drop(subject);
        leaves_nothing(&testbed, &before, name);
    }
    // Afterwards the testbed is as it was.
    let linux = subject::start("linux", &testbed).unwrap();
    forwards(&mut testbed, &*linux, Family::V4);
}

/// One test for each subject.
macro_rules! subjects {
    ($($test:ident $name:literal;)*) => {$(
        #[test]
        #[ignore = "needs root"]
        fn $test() {
            if installed($name) {
                forwards_and_leaves_nothing($name);
                half_a_start_leaves_nothing($name);
            }
        }
    )*};
}

subjects! {
    linux_macvlan "linux-macvlan";
    linux_bridge_veth "linux-bridge-veth";
    millrace_macvlan "millrace-macvlan";
    ovs_packet "ovs-packet";
    ovs_afxdp "ovs-afxdp";
    testpmd_packet "testpmd-packet";
    testpmd_afxdp "testpmd-afxdp";
    vpp_packet "vpp-packet";
    vpp_afxdp "vpp-afxdp";
    xdp_forward "xdp-forward";
}

/// The port towards the sink has another name, so a start fails when the other port is already taken.
fn half_a_start_leaves_nothing(name: &str) {
    let testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    testbed
        .box_namespace
        .ip_batch(&format!("link set {PORT_OUT} down\nlink set {PORT_OUT} name hidden\n"))
        .unwrap();
    let before = settled(&testbed);
    let error = subject::start(name, &testbed).err().expect("one port is missing");
    assert!(format!("{error:#}").contains(PORT_OUT), "{error:#}");
    leaves_nothing(&testbed, &before, name);
}

#[test]
#[ignore = "needs root"]
fn subjects_with_their_own_router_leave_those_of_the_testbed_alone() {
    let mut testbed = Testbed::new(&Topology::rfc2544().with_routers(2)).unwrap();
    for name in ["linux-macvlan", "millrace-macvlan"] {
        let subject = subject::start(name, &testbed).unwrap();
        assert_eq!(subject.router(), 3);
        forwards(&mut testbed, &*subject, Family::V4);
    }
    let workload = Workload::benchmark(Family::V4, 300, 0..=2);
    let linux = subject::start("linux", &testbed).unwrap();
    let next_hop = |address| workload.next_hop(address);
    check_forwarding(&mut testbed, &*linux, &workload.targets, workload.frame_bytes, next_hop).unwrap();
}

/// Claims to write only MACs, and is a router.
struct Liar(Box<dyn Subject>);

impl Subject for Liar {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn rewrites(&self) -> Rewrite {
        Rewrite::Macs { to: lab::addresses::nexthop_mac(1), from: lab::addresses::egress_mac(0) }
    }
}

#[test]
#[ignore = "needs root"]
fn a_subject_that_writes_more_than_macs_is_caught() {
    let mut testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    let liar = Liar(subject::start("linux", &testbed).unwrap());
    let workload = Workload::benchmark(Family::V4, 10, 0..=0);
    let error =
        check_forwarding(&mut testbed, &liar, &workload.targets, 60, |address| workload.next_hop(address));
    assert!(error.unwrap_err().to_string().contains("did not arrive as it should"));
}

#[test]
#[ignore = "needs root"]
fn a_missing_program_is_named_and_the_others_go_on() {
    let path = tempfile::tempdir().unwrap();
    for tool in ["ip", "ethtool", "sh", "bridge"] {
        let places = std::env::var_os("PATH").unwrap();
        let found = std::env::split_paths(&places).map(|place| place.join(tool)).find(|file| file.is_file());
        std::os::unix::fs::symlink(found.unwrap(), path.path().join(tool)).unwrap();
    }
    let names = FOREIGN.map(|(name, ..)| name).join(",");
    let output = Command::new(env!("CARGO_BIN_EXE_millrace-lab"))
        .args(["compare", "--subjects", &format!("{names},linux"), "--seconds", "0.2", "--repeat", "1"])
        .env("PATH", path.path())
        .env_remove("MILLRACE_LAB_XDP_FORWARD")
        .env_remove("MILLRACE_LAB_VPP")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    for (name, why) in [
        ("ovs-packet", "there is no ovsdb-tool on PATH: install the package openvswitch-switch"),
        ("ovs-afxdp", "there is no ovsdb-tool on PATH: install the package openvswitch-switch"),
        ("testpmd-packet", "there is no dpdk-testpmd on PATH: install the packages dpdk-dev"),
        ("testpmd-afxdp", "there is no dpdk-testpmd on PATH: install the packages dpdk-dev"),
        ("vpp-packet", "there is no vpp on PATH: install it, or say where it is with MILLRACE_LAB_VPP="),
        ("vpp-afxdp", "there is no vpp on PATH: install it, or say where it is with MILLRACE_LAB_VPP="),
        (
            "xdp-forward",
            "there is no xdp-forward on PATH: install it, or say where it is with MILLRACE_LAB_XDP_FORWARD=",
        ),
    ] {
        assert!(err.contains(&format!("{name} cannot run here: {why}")), "{name}: {err}");
    }
    assert!(out.contains("| xdp-forward | not measured |"), "{out}");
    assert!(out.lines().any(|line| line.starts_with("| linux |") && !line.contains("not measured")), "{out}");
}

/// A table with prefixes inside others that have another next hop, and the inner prefixes.
fn nested_table(testbed: &Testbed) -> (Prefixes, Vec<Prefix4>) {
    let mut table = prefixes::prefixes(None, 4000, 1000).unwrap();
    let outer = table.v4.iter().filter(|prefix| prefix.length() < 24);
    let inner: Vec<_> = outer.take(30).map(|prefix| Prefix4::new(prefix.address(), 30).unwrap()).collect();
    table.v4.extend(&inner);
    testbed.load_routes(&table).unwrap();
    (table, inner)
}

#[test]
#[ignore = "needs root"]
fn open_vswitch_has_a_rule_for_each_route_and_the_longest_prefix_wins() {
    for name in ["ovs-packet", "ovs-afxdp"].into_iter().filter(|name| installed(name)) {
        let mut testbed = Testbed::new(&Topology::rfc2544()).unwrap();
        testbed.set_priority(Priority::Rates).unwrap();
        let (table, inner) = nested_table(&testbed);
        let before = settled(&testbed);
        let subject = subject::start(name, &testbed).unwrap();
        let nexthops = testbed.next_hops().unwrap();
        let [v4, v6] = [Family::V4, Family::V6].map(|family| Workload::inside(&table, family, 128, nexthops));
        let to = |address| Target::udp(Ipv4Addr::from_bits(address).into(), ingress_mac(0), 1024);
        let inside: Vec<Target> = inner.iter().map(|prefix| to(prefix.address() + 1)).collect();
        let another = |target: &&Target| {
            let outer = table.v4.iter().filter(|prefix| prefix.length() < 30);
            let outer = Prefixes { v4: outer.copied().collect(), ..Prefixes::default() };
            let without = Workload::inside(&outer, Family::V4, 1, nexthops);
            without.next_hop(target.destination) != v4.next_hop(target.destination)
        };
        assert!(inside.iter().filter(another).count() > 10, "the inner prefix decides");
        for (workload, targets) in [(&v4, &v4.targets), (&v6, &v6.targets), (&v4, &inside)] {
            let next_hop = |address| workload.next_hop(address);
            check_forwarding(&mut testbed, &*subject, targets, workload.frame_bytes, next_hop).unwrap();
        }
        drop(subject);
        leaves_nothing(&testbed, &before, name);
    }
}

#[test]
#[ignore = "needs root"]
fn open_vswitch_refuses_a_table_beyond_its_limit() {
    if !installed("ovs-packet") {
        return;
    }
    let testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    testbed.load_routes(&prefixes::prefixes(None, 5_000, 5_000).unwrap()).unwrap();
    let error = subject::start("ovs-packet", &testbed).err().expect("too many routes").to_string();
    // The routes of the benchmarking networks are rules, too.
    let expected = "it gets an OpenFlow rule for each route, at most 10000, and the box has 10002 routes: compare it with a \
                    smaller table";
    assert_eq!(error, expected);
}

#[test]
#[ignore = "needs root"]
fn a_killed_millrace_is_taken_over_from_and_the_others_are_not() {
    let mut testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    let mut linux = subject::start("linux", &testbed).unwrap();
    assert!(linux.programs().is_empty() && !linux.take_over(&testbed).unwrap());
    let before = settled(&testbed);
    let mut millrace = Millrace::start(&testbed).unwrap();
    assert_eq!(millrace.ask(&["status"]).unwrap()["generation"], 1);
    let killed = millrace.programs()[0].pid;
    sys::kill(killed);
    assert!(millrace.take_over(&testbed).unwrap());
    assert_ne!(millrace.programs()[0].pid, killed);
    // It would start with generation 1 if nothing had been left.
    assert_eq!(millrace.ask(&["status"]).unwrap()["generation"], 2);
    forwards(&mut testbed, &millrace, Family::V4);
    drop(millrace);
    leaves_nothing(&testbed, &before, "millrace");
}

#[test]
#[ignore = "needs root"]
fn a_killed_vpp_is_noticed_and_leaves_nothing() {
    if !installed("vpp-afxdp") {
        return;
    }
    let testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    let before = settled(&testbed);
    let subject = subject::start("vpp-afxdp", &testbed).unwrap();
    testbed.check_subject().unwrap();
    sys::kill(subject.programs()[0].pid);
    let killed = std::time::Instant::now();
    while testbed.check_subject().is_ok() {
        assert!(killed.elapsed() < Duration::from_secs(10), "nothing notices that it has ended");
    }
    drop(subject);
    leaves_nothing(&testbed, &before, "vpp-afxdp");
}

#[test]
#[ignore = "needs root"]
fn vpp_has_the_table_of_the_box() {
    if !installed("vpp-afxdp") {
        return;
    }
    let mut testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    let prefixes = prefixes::prefixes(None, 5000, 1000).unwrap();
    testbed.load_routes(&prefixes).unwrap();
    let subject = subject::start("vpp-afxdp", &testbed).unwrap();
    for family in [Family::V4, Family::V6] {
        let workload = Workload::inside(&prefixes, family, 1024, testbed.next_hops().unwrap());
        for targets in workload.targets.chunks(128) {
            let next_hop = |address| workload.next_hop(address);
            check_forwarding(&mut testbed, &*subject, targets, workload.frame_bytes, next_hop).unwrap();
        }
    }
}
