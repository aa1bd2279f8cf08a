//! Brings up every built-in topology, forwards through it with plain Linux, and checks that nothing is left, however it
//! ended. These tests need root, and run in their own namespaces, one at a time.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::process::CommandExt,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use lab::{
    addresses::{Mac, nexthop_mac_of, router_mac},
    command,
    namespace::unique_run_name,
    packet::Target,
    sys,
    testbed::Testbed,
    topology::{Interface, Network, Topology},
};

/// Packets sent at once; fewer than a veth's ring holds.
const BATCH: usize = 64;

fn namespaces(name: &str) -> Vec<String> {
    let list = command::ip("netns list").unwrap();
    list.split_whitespace().filter(|word| word.starts_with(name)).map(String::from).collect()
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is() {
        assert!(Instant::now() < end, "{what}: not within 10 s");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Name of a thread.
fn comm(id: i32) -> String {
    std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap().trim().to_owned()
}

/// Builds a testbed, runs `work`, drops the testbed, and asserts that everything is gone.
fn with_testbed(topology: &Topology, work: impl FnOnce(&mut Testbed)) {
    let mut testbed = Testbed::new(topology).unwrap();
    let name = format!("{}-", testbed.name);
    let mut threads = [testbed.router_threads().unwrap().0, testbed.sink_threads().unwrap().0].concat();
    threads.retain(|&id| comm(id).starts_with("napi/"));
    let expected = 1 + topology.hosts().len() + usize::from(topology.router_count());
    assert_eq!(namespaces(&name).len(), expected);
    work(&mut testbed);
    drop(testbed);
    assert_eq!(namespaces(&name), [""; 0]);
    // A device's threads end with the device.
    eventually("no device is left", || !threads.iter().any(|&id| sys::process_exists(id)));
}

/// A packet from a host through one interface of a router, and how it must come out.
#[derive(Clone, Debug)]
struct Probe {
    port: u8,
    router_mac: Mac,
    destination: IpAddr,
    expected: CapturedFrame,
}

/// The parts of a captured frame that are compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CapturedFrame {
    to: Mac,
    from: Mac,
    ttl: u8,
    destination: IpAddr,
}

/// Probes through every router, from each of its ports to every network behind another port. They enter by its n-th
/// interface on the one port, and leave by its n-th on the other.
fn probes(topology: &Topology) -> Vec<Probe> {
    let mut probes = Vec::new();
    for router in topology.all_routers().unwrap() {
        let pairs = router.interfaces.iter().flat_map(|ingress| {
            let other = |i: &&Interface| i.port != ingress.port && i.number == ingress.number;
            router.interfaces.iter().filter(other).map(move |egress| (ingress, egress))
        });
        for (ingress, egress) in pairs {
            for network in &topology.ports[usize::from(egress.port)].behind {
                let part = network.part(egress.number.into(), router.interfaces_on_port).unwrap();
                // Packets are distinguished by the destination.
                let offset = 1 + 16 * router.number + u16::from(ingress.port);
                assert!(offset < 250);
                let destination: IpAddr = match part {
                    Network::V4(prefix) => Ipv4Addr::from_bits(prefix.address() + u32::from(offset)).into(),
                    Network::V6(prefix) => Ipv6Addr::from_bits(prefix.address() + u128::from(offset)).into(),
                };
                let expected = CapturedFrame {
                    to: nexthop_mac_of(egress.port, 1),
                    from: router_mac(egress.port, egress.number, router.number),
                    ttl: 63,
                    destination,
                };
                let router_mac = router_mac(ingress.port, ingress.number, router.number);
                probes.push(Probe { port: ingress.port, router_mac, destination, expected });
            }
        }
    }
    probes
}

fn seen(frame: &[u8]) -> CapturedFrame {
    let bytes = |at: usize| -> [u8; 4] { frame[at..at + 4].try_into().unwrap() };
    let (ttl, destination) = match frame[12..14] {
        [8, 0] => (frame[22], IpAddr::from(bytes(30))),
        [0x86, 0xdd] => (frame[21], IpAddr::from(<[u8; 16]>::try_from(&frame[38..54]).unwrap())),
        _ => panic!("neither IPv4 nor IPv6: {frame:02x?}"),
    };
    CapturedFrame {
        to: frame[..6].try_into().unwrap(),
        from: frame[6..12].try_into().unwrap(),
        ttl,
        destination,
    }
}

/// The frames that arrive when one packet is sent for each probe.
fn arrived(testbed: &mut Testbed, probes: &[Probe]) -> Vec<CapturedFrame> {
    let target =
        |probe: &Probe| Target { port: probe.port, ..Target::udp(probe.destination, probe.router_mac, 1024) };
    let targets: Vec<Target> = probes.iter().map(target).collect();
    let frame_bytes = targets.iter().map(Target::min_frame).max().unwrap();
    testbed.generator.set_targets(targets, frame_bytes).unwrap();
    let generator = &mut testbed.generator;
    let frames = testbed.sink.capture(probes.len(), || generator.send(frame_bytes, probes.len() as u32));
    let mut arrived: Vec<CapturedFrame> = frames.unwrap().iter().map(|frame| seen(frame)).collect();
    arrived.sort();
    arrived
}

fn assert_forwards(testbed: &mut Testbed) {
    let name = testbed.topology.name.clone();
    let probes = probes(&testbed.topology);
    assert!(probes.len() >= 2, "{name}: nothing to send");
    for batch in probes.chunks(BATCH) {
        let mut expected: Vec<CapturedFrame> = batch.iter().map(|probe| probe.expected.clone()).collect();
        expected.sort();
        assert_eq!(arrived(testbed, batch), expected, "{name}");
    }
}

#[test]
#[ignore = "needs root"]
fn every_built_in_topology_forwards_between_all_ports_that_should_and_leaves_nothing() {
    let mut pairs = BTreeMap::new();
    for topology in Topology::built_in() {
        let topology = topology.unwrap();
        let started = Instant::now();
        with_testbed(&topology, |testbed| {
            assert!(started.elapsed() < Duration::from_secs(5), "{}: {:?}", topology.name, started.elapsed());
            assert_forwards(testbed);
        });
        pairs.insert(topology.name.clone(), probes(&topology).len());
    }
    // For each family: by the host alone; by three routers; from two and from three ports; by the host to both networks
    // from three ports each, and by two routers; by the host and 256 interfaces, both ways; by the host to both
    // networks.
    let expected = [
        ("rfc2544", 2),
        ("virtual-routers", 6),
        ("two-in", 4),
        ("three-in", 6),
        ("pairs", 16),
        ("shared", 6),
        ("interfaces", 4 + 4 * 256),
        ("queues", 2),
        ("two-ways", 12),
    ];
    assert_eq!(pairs, expected.map(|(name, count)| (name.to_owned(), count)).into());
}

#[test]
#[ignore = "needs root"]
fn a_virtual_router_beyond_the_topologys_forwards_too() {
    with_testbed(&Topology::rfc2544(), |testbed| {
        let router = testbed.virtual_router(1).unwrap();
        assert_eq!(router.name(), format!("{}-r1", testbed.name));
        let probe = probes(&Topology::rfc2544().with_routers(1)).swap_remove(2);
        assert_eq!((probe.port, probe.router_mac), (0, router_mac(0, 0, 1)));
        assert_eq!(arrived(testbed, std::slice::from_ref(&probe)), [probe.expected]);
    });
}

#[test]
#[ignore = "needs root"]
fn threads_are_pinned_by_role_queue_by_queue() {
    let cores = |id: i32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        line.trim().to_owned()
    };
    let mut topology = Topology::named("queues").unwrap();
    with_testbed(&topology, |testbed| {
        let threads = testbed.router_threads().unwrap().0;
        assert!(threads.iter().all(|&id| cores(id) == "1"), "{threads:?}");
        let napi = |id: &i32| {
            let name = comm(*id);
            let (device, number) = name.rsplit_once('-')?;
            Some((device.to_owned(), number.parse::<u32>().unwrap()))
        };
        // Threads of softirqs have no device.
        let names: Vec<(String, u32)> = threads.iter().filter_map(napi).collect();
        assert_eq!(
            names.iter().map(|n| &n.0[..]).collect::<Vec<_>>(),
            ["napi/eth1", "napi/eth1", "napi/eth2", "napi/eth2"]
        );
        assert!(names.is_sorted(), "{names:?}");
        assert_eq!(testbed.sink_threads().unwrap().0, [0; 0]);
    });
    topology.cores.sink = vec![1];
    with_testbed(&topology, |testbed| {
        let sink = testbed.sink_threads().unwrap().0;
        assert_eq!(sink.len(), 4);
        assert!(sink.iter().all(|&id| cores(id) == "1"), "{sink:?}");
        assert!(!sink.iter().any(|id| testbed.router_threads().unwrap().0.contains(id)));
        assert_forwards(testbed);
    });
}

#[test]
#[ignore = "needs root"]
fn a_testbed_that_fails_half_way_is_removed() {
    let run = unique_run_name();
    let (process, count) = run.rsplit_once('_').unwrap_or((&run, "0"));
    let next = format!("{process}_{}", count.parse::<u32>().unwrap() + 1);
    // The last router's name is taken, so everything before it is built when that is found.
    let taken = format!("{next}-r3");
    command::ip(&format!("netns add {taken}")).unwrap();
    let result = Testbed::new(&Topology::rfc2544().with_routers(3));
    let left = namespaces(&format!("{next}-"));
    command::ip(&format!("netns del {taken}")).unwrap();
    let error = format!("{:#}", result.err().expect("a name that is taken"));
    assert!(error.contains(&taken), "{error}");
    assert_eq!(left, [taken]);

    // A core that does not exist is found before anything is built.
    let mut topology = Topology::rfc2544();
    topology.cores.router = vec![4095];
    let error = format!("{:#}", Testbed::new(&topology).err().expect("a core that is not there"));
    assert!(error.contains("core 4095"), "{error}");
}

/// A running `millrace-lab shell`, whose shell has started a program in the background.
struct Shell {
    process: Child,
    output: BufReader<ChildStdout>,
    /// Start of the namespaces' names.
    name: String,
    /// The lab's process id.
    lab: u32,
    background: i32,
}

const LAB: &str = env!("CARGO_BIN_EXE_millrace-lab");

fn spawn(command: &mut Command) -> Child {
    command.env("SHELL", "/bin/sh").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn lab_shell(arguments: &[&str]) -> Child {
    spawn(Command::new(LAB).arg("shell").args(arguments))
}

fn name_of(lab: u32) -> String {
    format!("mlr-{lab}-")
}

/// The text before a line that begins with `begin`, and the rest of that line.
fn answer(output: &mut impl BufRead, begin: &str) -> (String, String) {
    let mut text = String::new();
    loop {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "ended early: {text}");
        // At a terminal, the line follows a prompt.
        if let Some(rest) = line.trim().trim_start_matches("# ").strip_prefix(begin) {
            return (text, rest.to_owned());
        }
        text += &line;
    }
}

impl Shell {
    fn start(mut process: Child) -> Self {
        // A program that survives the end of its terminal.
        let script = "trap '' HUP TERM; sleep 1000 & trap - HUP TERM; echo background $!\n";
        process.stdin.as_mut().unwrap().write_all(script.as_bytes()).unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let (text, background) = answer(&mut output, "background ");
        let background = background.parse().unwrap();
        let lab = text.split_once("namespace mlr-").unwrap().1.split_once('-').unwrap().0.parse().unwrap();
        let name = name_of(lab);
        assert!(text.contains(&format!("port eth1 to eth0 of {name}gen")), "{text}");
        Self { process, output, name, lab, background }
    }

    /// Its exit code.
    fn assert_leaves_nothing(mut self, how: &str) -> Option<i32> {
        let status = command::wait(&mut self.process, Duration::from_secs(20)).unwrap();
        let left = namespaces(&self.name);
        assert!(status.is_some(), "{how}: it does not end");
        assert_eq!(left, [""; 0], "{how}");
        eventually(how, || !sys::process_exists(self.background));
        status.and_then(|status| status.code())
    }
}

/// After a test that failed.
impl Drop for Shell {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            sys::terminate(self.lab as i32);
            let _ = command::wait(&mut self.process, Duration::from_secs(20));
        }
    }
}

fn signal(pid: u32, signal: &str) {
    command::run(Command::new("kill").args([&format!("-{signal}"), &pid.to_string()])).unwrap();
}

#[test]
#[ignore = "needs root"]
fn a_shell_leaves_nothing_however_it_ends() {
    for how in ["INT", "TERM", "HUP"] {
        let shell = Shell::start(lab_shell(&["shared"]));
        assert_eq!(namespaces(&shell.name).len(), 5);
        signal(shell.lab, how);
        assert_eq!(shell.assert_leaves_nothing(how), Some(130), "{how}");
    }
    let mut shell = Shell::start(lab_shell(&["shared"]));
    drop(shell.process.stdin.take());
    assert_eq!(shell.assert_leaves_nothing("end of input"), Some(0));
}

#[test]
#[ignore = "needs root"]
fn a_shell_runs_what_it_reads_and_passes_its_status_on() {
    for (script, code) in [("exit 7\n", 7), ("kill -KILL $$\n", 137)] {
        let mut shell = lab_shell(&[]);
        let input = format!("ip -br link show eth1\n{script}");
        shell.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let done = shell.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        assert_eq!(done.status.code(), Some(code), "{text}");
        assert!(text.lines().any(|line| line.starts_with("eth1@")), "{text}");
    }
}

#[test]
#[ignore = "needs root"]
fn at_a_terminal_ctrl_c_is_for_the_shells_programs() {
    let line = format!("{LAB} shell shared");
    let mut shell = Shell::start(spawn(Command::new("script").args(["-qfc", &line, "/dev/null"])));
    signal(shell.lab, "INT");
    // The lab checks every 50 ms.
    thread::sleep(Duration::from_millis(300));
    shell.process.stdin.as_mut().unwrap().write_all(b"echo still $((40 + 2))\n").unwrap();
    assert_eq!(answer(&mut shell.output, "still ").1, "42");
    signal(shell.lab, "TERM");
    shell.assert_leaves_nothing("TERM");
}

#[test]
#[ignore = "needs root"]
fn a_signal_while_it_is_built_leaves_nothing() {
    for how in ["INT", "TERM"] {
        let mut lab = lab_shell(&["virtual-routers", "--routers", "256"]);
        let name = name_of(lab.id());
        eventually("virtual routers are made", || namespaces(&name).len() > 10);
        signal(lab.id(), how);
        let status = command::wait(&mut lab, Duration::from_secs(60)).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(130), "{how}");
        assert_eq!(namespaces(&name), [""; 0], "{how}");
    }
}

#[test]
#[ignore = "needs root"]
fn a_shell_of_an_impossible_topology_is_refused_and_the_list_shows_valid_ones() {
    let run = |arguments: &[&str]| {
        let output = lab_shell(arguments).wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (fine, _, error) = run(&["ring"]);
    assert!(!fine && error.contains("no topology is called ring") && error.contains("rfc2544"), "{error}");
    let (fine, _, error) = run(&["--routers", "257"]);
    assert!(!fine && error.contains("257 virtual routers: at most 256"), "{error}");
    let (fine, list, _) = run(&["--list"]);
    let topologies: Vec<Topology> = Topology::built_in().map(Result::unwrap).collect();
    assert!(fine && list.lines().count() == topologies.len(), "{list}");
    for Topology { name, description, .. } in &topologies {
        assert!(list.contains(name) && list.contains(description), "{list}");
    }
}
