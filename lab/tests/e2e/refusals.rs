//! What Millrace leaves alone, with which reason, and what it removes when it stops.

use std::{collections::BTreeSet, fs};

use lab::{namespace::Namespace, subject};
use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};

use crate::{
    bed::{Bed, output, ping, run},
    daemon::Daemon,
    load::testbed,
};

#[test]
#[ignore = "needs root"]
fn a_second_daemon_is_refused_and_the_first_does_not_notice() {
    let bed = Bed::new();
    let daemon = bed.start(2, &[]);
    let ports = ["--port", "p1", "--port", "p2"];
    let words = Daemon::launch(&bed.the_box, &bed.name, &ports).refused();
    assert!(words.contains(&daemon.pid().to_string()), "does not name the process: {words}");
    // A daemon of another name, on one of the same ports.
    let other = format!("{}-other", bed.name);
    let words = Daemon::launch(&bed.the_box, &other, &["--port", "p2"]).refused();
    assert!(words.contains("p2"), "does not name the port: {words}");
    let (pins, run) = (format!("/sys/fs/bpf/millrace-{other}"), "/run");
    assert!(!fs::exists(&pins).unwrap(), "{pins} is left");
    let files = fs::read_dir(run).unwrap().flatten().map(|file| file.file_name().into_string().unwrap());
    assert_eq!(files.filter(|file| file.contains(&other)).collect::<Vec<_>>(), [""; 0]);
    ping(&bed.client, "10.7.2.2", 5);
    assert_eq!(daemon.ask(&["status"])["ready"], true);
}

#[test]
#[ignore = "needs root"]
fn another_xdp_program_on_a_port_is_respected_and_named() {
    let testbed = testbed(0);
    let _redirect = subject::start("redirect", &testbed).unwrap();
    let ports = ["--port", "eth2", "--port", "eth1"];
    let words = Daemon::launch(&testbed.box_namespace, &testbed.name, &ports).refused();
    assert!(words.contains("eth1") && words.contains("redirect"), "{words}");
    let links = run(&testbed.box_namespace, "ip -d link show eth2");
    assert!(!links.contains("xdp"), "the free port was taken all the same: {links}");
}

#[test]
#[ignore = "needs root"]
fn a_router_with_a_firewall_is_the_kernels_until_that_is_gone() {
    let bed = Bed::new();
    let mut daemon = bed.start(2, &[]);
    let name = bed.red_name().to_owned();
    ping(&bed.client, "10.7.2.2", 5);
    // One rule that shows whether packets are filtered.
    let nft = "nft add table ip t; nft add chain ip t f { type filter hook forward priority 0 \\; }; \
               nft add rule ip t f udp dport 9 counter drop";
    lab::command::run(bed.red.command("sh").args(["-ec", nft])).unwrap();
    let status = daemon.until("the router to be left to the kernel", |status| {
        crate::daemon::router(status, &name)["accelerated"]["ipv4"] == false
    });
    let reasons = crate::daemon::router(&status, &name)["why_not"]["ipv4"].to_string();
    assert!(reasons.contains("rule with handle 2 of nftables chain ip t f may drop packets"), "{reasons}");
    assert_eq!(crate::daemon::router(&status, "host")["accelerated"]["ipv4"], true);
    let forwarded = |daemon: &Daemon| daemon.router(&name)["packets"]["forwarded"].as_u64().unwrap();
    let before = forwarded(&daemon);
    ping(&bed.client, "10.7.2.2", 20);
    assert_eq!(forwarded(&daemon), before, "by the fast path, past the firewall");
    let traceroute = "traceroute -n -U -p 9 -f 2 -m 2 -q 3 -w 1 10.7.2.2";
    assert!(!output(&bed.client, traceroute).contains(" ms"), "the rule does not drop");
    run(&bed.red, "nft delete table ip t");
    daemon.until_accelerated(2);
    ping(&bed.client, "10.7.2.2", 5);
    assert!(forwarded(&daemon) > before);
    daemon.assert_verified();
}

#[test]
#[ignore = "needs root"]
fn a_port_that_the_kernel_does_not_redirect_to_is_named_and_loses_nothing() {
    let bed = Bed::new();
    for step in
        ["ethtool -K eth0 gro off", "ip link set eth0 down", "ethtool -K eth0 gro on", "ip link set eth0 up"]
    {
        run(&bed.server, step);
    }
    bed.server
        .ip_batch("route replace 10.7.1.0/24 via 10.7.2.1\nroute replace 10.8.1.0/24 via 10.8.2.1\n")
        .unwrap();
    let mut daemon = Daemon::start(&bed.the_box, &bed.name, &["--port", "p1", "--port", "p2"]);
    let status = daemon.until("the problem to be named", |status| {
        status["ports"][1]["problems"].as_array().is_some_and(|problems| !problems.is_empty())
    });
    let problem = status["ports"][1]["problems"][0]["text"].as_str().unwrap().to_owned();
    assert!(problem.contains("gro off") && problem.contains(bed.server.name()), "{problem}");
    // Nothing is lost there: the first packets resolve the neighbours, and all others could be redirected.
    ping(&bed.client, "10.7.2.2", 5);
    ping(&bed.client, "10.7.2.2", 20);
    // The command that the problem names works.
    let command = problem.rsplit_once("run: ").unwrap().1;
    lab::command::run(std::process::Command::new("sh").args(["-ec", command])).unwrap();
    daemon.until_accelerated(2);
    ping(&bed.client, "10.7.2.2", 20);
    let before = daemon.forwarded();
    ping(&bed.client, "10.7.2.2", 20);
    assert!(daemon.forwarded() >= before + 40);
}

#[test]
#[ignore = "needs root"]
fn stop_leaves_plain_linux() {
    let bed = Bed::new();
    let places = [&bed.the_box, &bed.red, &bed.client, &bed.server];
    let settings = || places.map(settings);
    ping(&bed.client, "10.7.2.2", 5);
    let before = settings();
    let daemon = bed.start(2, &[]);
    ping(&bed.client, "10.7.2.2", 20);
    let owned = bpf_objects_of(daemon.pid());
    assert!(owned.len() > 10, "{owned:?}");
    assert!(owned.is_subset(&bpf_objects()));
    daemon.stop();
    // The kernel frees programs and maps a moment later.
    crate::daemon::eventually("programs, maps and links to be gone", || {
        let left: Vec<_> = owned.intersection(&bpf_objects()).cloned().collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    for (before, after) in before.iter().zip(settings()) {
        let changed: Vec<_> = before.symmetric_difference(&after).collect();
        assert!(changed.is_empty(), "{changed:#?}");
    }
    for directory in ["/run", "/sys/fs/bpf"] {
        let files =
            fs::read_dir(directory).unwrap().flatten().map(|file| file.file_name().into_string().unwrap());
        let left: Vec<_> =
            files.filter(|file| file.contains("millrace") && file.contains(&bed.name)).collect();
        assert_eq!(left, [""; 0], "in {directory}");
    }
    ping(&bed.client, "10.7.2.2", 5);
}

/// The settings of a namespace, as lines.
fn settings(namespace: &Namespace) -> BTreeSet<String> {
    let mut text = namespace
        .enter(|| {
            let text =
                std::process::Command::new("sh").args(["-c", "cd /proc/sys/net && grep -rs . ."]).output()?;
            Ok(String::from_utf8_lossy(&text.stdout).into_owned())
        })
        .unwrap();
    text += &run(namespace, "ip -d link show");
    text += &run(namespace, "ip rule show");
    text += &run(namespace, "ip route show table all");
    let devices = run(namespace, "ip -br link show");
    for device in devices.lines().filter_map(|line| line.split(['@', ' ']).next()) {
        let features = output(namespace, &format!("ethtool -k {device}"));
        text.extend(features.lines().map(|line| format!("{device} {line}\n")));
    }
    text.lines().map(String::from).collect()
}

/// "prog_id 5", "map_id 7", "link_id 2": BPF objects that a process has open.
fn bpf_objects_of(pid: u32) -> BTreeSet<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
    let texts: Vec<String> = files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    let ids = lines.filter(|line| ["prog_id:", "map_id:", "link_id:"].iter().any(|id| line.starts_with(id)));
    ids.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The same for the whole machine.
fn bpf_objects() -> BTreeSet<String> {
    let programs = ProgInfoIter::default().map(|p| format!("prog_id: {}", p.id));
    let maps = MapInfoIter::default().map(|m| format!("map_id: {}", m.id));
    let links = LinkInfoIter::default().map(|l| format!("link_id: {}", l.id));
    programs.chain(maps).chain(links).collect()
}
