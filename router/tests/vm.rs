//! Forwarding on Debian 12's kernel, in the virtual machine of `make test-vm`: virtio-net with interrupts and
//! several queues, VLAN devices, VRF and bonding. The development kernel has none of these.
//!
//! Two wires of the machine join its four NICs: eth0 <-> eth1 and eth2 <-> eth3. eth0 is put into namespace `gen` and
//! eth3 into `sink`; eth1 and eth2 are the ports.

mod common;

use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::UdpSocket,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const MILLRACE: &str = "/millrace/millrace";
const PORTS: [&str; 2] = ["eth1", "eth2"];

fn in_the_machine() -> bool {
    let inside = std::env::var_os("MILLRACE_VM_NIC").is_some();
    if !inside {
        eprintln!("SKIPPED: only in the virtual machine of `make test-vm`");
    }
    inside
}

/// Runs a shell script. If it fails, panics with its output.
#[track_caller]
fn sh(script: &str) -> String {
    let output = Command::new("timeout").args(["30", "sh", "-ec", script]).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{script}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Subnets 1 and 2 untagged, 3 with a tag (802.1Q) on the first wire, 4 with two (802.1ad, 802.1Q) on the second; IPv4
/// and IPv6. The hosts have .2 in each, the box .1.
const SET_UP: &str = "
    ip netns add gen; ip link set eth0 netns gen
    ip netns add sink; ip link set eth3 netns sink
    echo 1 >/proc/sys/net/ipv4/ip_forward
    echo 1 >/proc/sys/net/ipv6/conf/all/forwarding

    host() { # namespace device subnet
        ip -n $1 addr add 10.$3.0.2/24 dev $2
        ip -n $1 addr add 2001:db8:$3::2/64 dev $2 nodad
        ip -n $1 link set $2 up
    }
    box() { # device subnet
        ip addr add 10.$2.0.1/24 dev $1
        ip addr add 2001:db8:$2::1/64 dev $1 nodad
        ip link set $1 up
    }
    two_tags() { # device, options of ip
        ip $2 link add link $1 name $1.200 type vlan proto 802.1ad id 200
        ip $2 link set $1.200 up
        ip $2 link add link $1.200 name $1.200.7 type vlan id 7
    }
    route() { # namespace, to subnet, by way of subnet
        ip -n $1 route add 10.$2.0.0/24 via 10.$3.0.1
        ip -n $1 route add 2001:db8:$2::/64 via 2001:db8:$3::1
    }

    host gen eth0 1; box eth1 1
    host sink eth3 2; box eth2 2
    ip -n gen link add link eth0 name eth0.100 type vlan id 100
    ip link add link eth1 name eth1.100 type vlan id 100
    host gen eth0.100 3; box eth1.100 3
    two_tags eth3 '-n sink'; two_tags eth2
    host sink eth3.200.7 4; box eth2.200.7 4
    route gen 2 1; route sink 1 2; route gen 4 3; route sink 3 4";

/// Hosts, addresses and VLANs. A test itself removes what it adds to the box.
struct Bed {
    daemon: Option<Child>,
}

impl Bed {
    fn new() -> Bed {
        sh(SET_UP);
        Bed { daemon: None }
    }

    /// Starts the daemon on both ports, and waits until it is ready.
    fn run(&mut self) {
        self.run_with(&PORTS.map(|port| ["--port", port]).concat());
    }

    fn run_with(&mut self, options: &[&str]) {
        let log = fs::File::create("/tmp/millrace.log").unwrap();
        let daemon = Command::new(MILLRACE)
            .arg("run")
            .args(options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.daemon = Some(daemon);
        wait_for("the daemon to be ready", || {
            let status = Command::new(MILLRACE).args(["status", "--json"]).output().unwrap();
            serde_json::from_slice::<Value>(&status.stdout).is_ok_and(|s| s["ready"] == true)
        });
    }

    fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            sh(&format!("{MILLRACE} stop"));
            assert!(daemon.wait().unwrap().success(), "the daemon's exit after stop");
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", fs::read_to_string("/tmp/millrace.log").unwrap_or_default());
        }
        if let Some(mut daemon) = self.daemon.take() {
            let _ = Command::new(MILLRACE).arg("stop").output();
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = Command::new("sh")
            .args([
                "-c",
                "for d in bond0 blue eth1.100 eth2.200.7 eth2.200; do ip link del $d; done
                ip netns del gen; ip netns del sink
                for d in eth1 eth2; do ip addr flush dev $d; ip link set $d down; done",
            ])
            .output();
        // A physical device returns a moment after its namespace is gone. No assertion here: this also runs on a panic.
        let home =
            || ["eth0", "eth3"].iter().all(|d| fs::exists(format!("/sys/class/net/{d}")).unwrap_or(false));
        (0..100).take_while(|_| !home()).for_each(|_| thread::sleep(Duration::from_millis(50)));
    }
}

#[track_caller]
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_secs(60) {
            let log = fs::read_to_string("/tmp/millrace.log").unwrap_or_default();
            panic!("timed out waiting for {what}; the daemon's log:\n{log}");
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn ask(command: &str) -> Value {
    serde_json::from_str(&sh(&format!("{MILLRACE} {command} --json"))).unwrap()
}

fn interface(name: &str) -> Value {
    let all = ask("interfaces");
    all.as_array()
        .unwrap()
        .iter()
        .find(|i| i["interface"] == name)
        .cloned()
        .unwrap_or_else(|| panic!("no {name} in {all}"))
}

fn host_router() -> Value {
    let all = ask("routers");
    all.as_array()
        .unwrap()
        .iter()
        .find(|r| r["router"] == "host")
        .cloned()
        .unwrap_or_else(|| panic!("no host in {all}"))
}

fn forwarded() -> u64 {
    ask("status")["packets"]["forwarded"].as_u64().unwrap()
}

/// Sends echo requests from `gen`, and asserts that every one is answered. A first request goes out alone, as
/// it may only resolve neighbours.
#[track_caller]
fn ping(address: &str, count: u32) {
    let answer = sh(&format!(
        "ip netns exec gen ping -q -c 1 -w 20 {address} || true
         ip netns exec gen ping -q -c {count} -i 0.05 -w 20 {address} || true
         ip netns exec gen ip neigh; ip neigh"
    ));
    let received = format!("{count} packets transmitted, {count} received");
    assert!(answer.matches(&received).count() >= 1, "not all of {count} requests were answered: {answer}");
}

/// Asserts that pings take the fast path both ways: requests in by `near` and out by `far`, replies the other
/// way.
#[track_caller]
fn accelerated(address: &str, near: &str, far: &str) {
    const COUNT: u32 = 20;
    ping(address, 1);
    // A neighbour that the kernel has just learned reaches the fast table in milliseconds.
    thread::sleep(Duration::from_millis(500));
    let before = (interface(near), interface(far), forwarded());
    ping(address, COUNT);
    let after = (interface(near), interface(far), forwarded());
    let more = |before: &Value, after: &Value| {
        after["tx_packets"].as_u64().unwrap() - before["tx_packets"].as_u64().unwrap()
    };
    let counts = (more(&before.0, &after.0), more(&before.1, &after.1), after.2 - before.2);
    assert!(
        counts.0 >= COUNT.into() && counts.1 >= COUNT.into() && counts.2 >= (2 * COUNT).into(),
        "{address}: sent by {near}, by {far}, forwarded: {counts:?}; {}",
        ask("status")
    );
}

#[test]
#[ignore = "needs the virtual machine"]
fn forwards_between_virtio_nics() {
    if !in_the_machine() {
        return;
    }
    let mut bed = Bed::new();
    bed.run();
    for port in ask("ports").as_array().unwrap() {
        assert_eq!(port["mode"], "native", "{port}");
    }
    accelerated("10.2.0.2", "eth1", "eth2");
    accelerated("2001:db8:2::2", "eth1", "eth2");
    bed.stop();
}

/// 802.1Q on one port, and 802.1ad with 802.1Q inside on the other. The hosts' VLAN devices accept no wrong
/// tags.
#[test]
#[ignore = "needs the virtual machine"]
fn forwards_between_vlan_and_qinq() {
    if !in_the_machine() {
        return;
    }
    let mut bed = Bed::new();
    bed.run();
    accelerated("10.4.0.2", "eth1.100", "eth2.200.7");
    accelerated("2001:db8:4::2", "eth1.100", "eth2.200.7");
    assert_eq!(
        (&interface("eth1.100")["vlan"], &interface("eth2.200.7")["vlan"]),
        (&"100".into(), &"200.7".into())
    );
    bed.stop();
}

/// RX queues with interrupts of their own: each one gets packets of some of many flows, and redirects all of
/// them.
#[test]
#[ignore = "needs the virtual machine"]
fn every_virtio_queue_delivers() {
    if !in_the_machine() {
        return;
    }
    const FLOWS: u16 = 256;
    const PACKETS: u64 = 4;
    let mut bed = Bed::new();
    bed.run();
    accelerated("10.2.0.2", "eth1", "eth2");

    let before = queues("eth1");
    assert!(before.len() >= 2, "RX queues in use: {before:?}");
    let arrived = send_flows(FLOWS, PACKETS);
    let gained: Vec<_> = before.iter().zip(queues("eth1")).map(|(b, a)| (a.0 - b.0, a.1 - b.1)).collect();
    assert!(
        gained.iter().all(|(redirected, interrupts)| *redirected > 0 && *interrupts > 0),
        "a queue is idle; (redirected, interrupts): {gained:?}"
    );
    assert!(
        gained.iter().map(|g| g.0).sum::<u64>() >= arrived,
        "fewer than {arrived} packets redirected, by the driver's count: {gained:?}"
    );
    bed.stop();
}

/// Sends `packets` packets of each of `flows` flows from `gen` to `sink`, and asserts that all arrive.
/// Returns how many.
#[track_caller]
fn send_flows(flows: u16, packets: u64) -> u64 {
    let sink = in_namespace("sink", || UdpSocket::bind("10.2.0.2:9000").unwrap());
    common::give_room(&sink);
    let senders: Vec<_> = in_namespace("gen", || {
        (0..flows).map(|flow| UdpSocket::bind(("10.1.0.2", 20_000 + flow)).unwrap()).collect()
    });
    sink.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut arrived = 0;
    for _ in 0..packets {
        // More would not fit into the rings.
        for senders in senders.chunks(64) {
            senders.iter().for_each(|s| assert_eq!(s.send_to(b"millrace", "10.2.0.2:9000").unwrap(), 8));
            arrived += senders.iter().take_while(|_| sink.recv(&mut [0; 16]).is_ok()).count() as u64;
        }
    }
    assert_eq!(arrived, u64::from(flows) * packets, "packets that arrived; queues: {:?}", queues("eth1"));
    arrived
}

/// Packets are spread over as few queues as the forwarding cores need, by the indirection table of this
/// kernel's driver. Afterwards the table is as it was.
#[test]
#[ignore = "needs the virtual machine"]
fn an_indirection_table_follows_and_is_put_back() {
    if !in_the_machine() {
        return;
    }
    if spread_over("eth1").len() < 8 {
        eprintln!("SKIPPED: only where the machine has eight processors");
        return;
    }
    let mut bed = Bed::new();
    let (few, all) = (BTreeSet::from_iter(0..4), BTreeSet::from_iter(0..8));
    fs::write("/tmp/rss.toml", "ports = [\"eth1\", \"eth2\"]\n[experimental]\nrss = true\n").unwrap();
    bed.run_with(&["--config", "/tmp/rss.toml"]);
    wait_for("fewer queues", || spread_over("eth1") == few);
    wait_for("the report of the spread", || ask("cores")["spreads"][0]["used"] == 4);
    assert_eq!(ask("cores")["spreads"].to_string(), r#"[{"of":8,"port":"eth1","used":4,"why_not":null}]"#);
    // Queues that are not in use moved too, as the kernel's own files show.
    wait_for("all queues to be on one core", || {
        interrupts_of("eth1").values().collect::<BTreeSet<_>>().len() == 1
    });
    let told = ask("cores");
    for queue in told["queues"].as_array().unwrap().iter().filter(|queue| queue["port"] == "eth1") {
        let irq = queue["moved_by"].as_str().unwrap().strip_prefix("interrupt ").unwrap();
        assert_eq!(queue["core"].to_string(), interrupts_of("eth1")[irq], "{queue}");
    }
    accelerated("10.2.0.2", "eth1", "eth2");
    let before = queues("eth1");
    send_flows(64, 10);
    let gained: Vec<u64> = before.iter().zip(queues("eth1")).map(|(b, a)| a.0 - b.0).collect();
    let (used, unused) = gained.split_at(4);
    assert!(used.iter().all(|redirected| *redirected > 0), "a used queue got no packet: {gained:?}");
    assert!(
        unused.len() >= 4 && unused.iter().all(|redirected| *redirected == 0),
        "an unused queue got packets: {gained:?}"
    );

    // After a kill, the next command puts it back.
    let mut daemon = bed.daemon.take().unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert_eq!(spread_over("eth1"), few);
    let told = sh(&format!("{MILLRACE} stop"));
    assert!(
        told.contains("port eth1: packets are spread over all queues again"),
        "`stop` does not report it: {told}"
    );
    assert_eq!(spread_over("eth1"), all);

    // A table that somebody else set stays.
    bed.run_with(&["--config", "/tmp/rss.toml"]);
    wait_for("fewer queues", || spread_over("eth1") == few);
    sh("ethtool -X eth1 equal 3");
    wait_for("the report of somebody else's change", || {
        ask("cores")["spreads"].to_string().contains("somebody else has changed the table")
    });
    bed.stop();
    assert_eq!(spread_over("eth1"), BTreeSet::from_iter(0..3));
    sh("ethtool -X eth1 default");
}

/// Packets wait for others by NAPI's timer, as this kernel's driver refuses to hold interrupts back itself.
/// Afterwards the timers are as they were.
#[test]
#[ignore = "needs the virtual machine"]
fn wake_ups_are_held_back_and_put_back() {
    if !in_the_machine() {
        return;
    }
    let mut bed = Bed::new();
    let as_it_was = ["0".to_owned(), "0".to_owned()];
    assert_eq!(timers("eth1"), as_it_was);
    bed.run();
    accelerated("10.2.0.2", "eth1", "eth2");
    let before = interrupts_of_a_stream();
    bed.stop();

    fs::write("/tmp/held.toml", "ports = [\"eth1\", \"eth2\"]\n[experimental]\nmoderation = \"1000us\"\n")
        .unwrap();
    bed.run_with(&["--config", "/tmp/held.toml"]);
    wait_for("the report of the moderation", || ask("cores")["moderations"][1]["us"] == 1000.0);
    assert_eq!(
        ask("cores")["moderations"][0].to_string(),
        r#"{"by":"NAPI","port":"eth1","us":1000.0,"why_not":null}"#
    );
    for port in PORTS {
        assert_eq!(timers(port), ["1000000", "1"], "timers of {port}");
    }
    accelerated("10.2.0.2", "eth1", "eth2");
    let after = interrupts_of_a_stream();
    println!("interrupts of 2,000 packets: {before}, and {after} where they wait up to 1 ms");
    assert!(after * 2 < before, "interrupts did not become half as many: {before} before, {after} after");

    // After a kill, the next command puts it back, except a setting that somebody else changed.
    let mut daemon = bed.daemon.take().unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    fs::write("/sys/class/net/eth2/napi_defer_hard_irqs", "3").unwrap();
    sh(&format!("{MILLRACE} stop"));
    assert_eq!((timers("eth1"), timers("eth2")), (as_it_was, ["1000000".into(), "3".into()]));
    sh("for f in napi_defer_hard_irqs gro_flush_timeout; do echo 0 > /sys/class/net/eth2/$f; done");
}

/// How long NAPI waits, in nanoseconds, and how often.
fn timers(device: &str) -> [String; 2] {
    ["gro_flush_timeout", "napi_defer_hard_irqs"].map(|name| {
        let text = fs::read_to_string(format!("/sys/class/net/{device}/{name}")).unwrap();
        text.trim().to_owned()
    })
}

/// Interrupts of the port that receives 2,000 packets, one each 0.2 ms, or as soon as this machine can.
/// Asserts that all arrive.
fn interrupts_of_a_stream() -> u64 {
    let sink = in_namespace("sink", || UdpSocket::bind("10.2.0.2:9000").unwrap());
    common::give_room(&sink);
    let sender = in_namespace("gen", || UdpSocket::bind("10.1.0.2:20000").unwrap());
    sink.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let interrupts = || queues("eth1").iter().map(|(_, interrupts)| interrupts).sum::<u64>();
    let before = interrupts();
    thread::scope(|scope| {
        let all = scope.spawn(|| (0..2000).take_while(|_| sink.recv(&mut [0; 16]).is_ok()).count());
        let mut next = Instant::now();
        for _ in 0..2000 {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            next += Duration::from_micros(200);
            assert_eq!(sender.send_to(b"millrace", "10.2.0.2:9000").unwrap(), 8);
        }
        assert_eq!(all.join().unwrap(), 2000, "packets that arrived");
    });
    interrupts() - before
}

/// The cores that interrupts of RX queues may go to, by interrupt number. On this kernel, the core in use is
/// known only after the next interrupt.
fn interrupts_of(device: &str) -> BTreeMap<String, String> {
    let virtio = fs::read_link(format!("/sys/class/net/{device}/device")).unwrap();
    let of_queues = format!(" {}-input.", virtio.file_name().unwrap().to_string_lossy());
    let interrupts = fs::read_to_string("/proc/interrupts").unwrap();
    let of_queues = interrupts.lines().filter(|line| line.contains(&of_queues));
    let number = |line: &str| line.trim().split(':').next().unwrap().to_owned();
    let place = |irq: &String| {
        let place = fs::read_to_string(format!("/proc/irq/{irq}/smp_affinity_list")).unwrap();
        place.trim().to_owned()
    };
    of_queues.map(number).map(|irq| (irq.clone(), place(&irq))).collect()
}

/// The queues in the device's indirection table.
fn spread_over(device: &str) -> BTreeSet<u32> {
    let told = sh(&format!("ethtool -x {device}"));
    let entries = told.lines().skip(1).map_while(|line| line.trim().split_once(':'));
    let entries = entries.take_while(|(at, _)| at.parse::<u32>().is_ok());
    entries.flat_map(|(_, queues)| queues.split_whitespace().map(|queue| queue.parse().unwrap())).collect()
}

/// For each RX queue, packets redirected by XDP, and interrupts, by the counts of driver and kernel.
fn queues(device: &str) -> Vec<(u64, u64)> {
    let statistics = sh(&format!("ethtool -S {device}"));
    let virtio = fs::read_link(format!("/sys/class/net/{device}/device")).unwrap();
    let virtio = virtio.file_name().unwrap().to_string_lossy().into_owned();
    let interrupts = fs::read_to_string("/proc/interrupts").unwrap();
    let redirected = |queue: usize| {
        let key = format!("rx_queue_{queue}_xdp_redirects: ");
        statistics.lines().find_map(|l| l.trim().strip_prefix(&key)?.parse::<u64>().ok())
    };
    let interrupts = |queue: usize| {
        let line = interrupts.lines().find(|l| l.ends_with(&format!(" {virtio}-input.{queue}")))?;
        Some(line.split_whitespace().skip(1).map_while(|n| n.parse::<u64>().ok()).sum())
    };
    (0..).map_while(|queue| Some((redirected(queue)?, interrupts(queue)?))).collect()
}

fn in_namespace<T: Send>(name: &str, body: impl FnOnce() -> T + Send) -> T {
    let file = fs::File::open(format!("/run/netns/{name}")).unwrap();
    router::linux::netns::inside(&file, body).unwrap()
}

/// An ipvlan shares its port's MAC address and takes packets by their destination, before the port's router
/// sees them. Here it takes one that the router would forward.
#[test]
#[ignore = "needs the virtual machine"]
fn an_ipvlan_gets_its_packets() {
    if !in_the_machine() {
        return;
    }
    const TO: &str = "10.2.0.77:9000";
    const PACKETS: u64 = 50;
    let mut bed = Bed::new();
    sh("ip -n sink addr add 10.2.0.77/32 dev eth3");
    bed.run();
    let generator = in_namespace("gen", || UdpSocket::bind("10.1.0.2:0").unwrap());
    let open = |space: &str| {
        let socket = in_namespace(space, || UdpSocket::bind(TO).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket
    };
    let sink = open("sink");
    // Sends packets with a number each, and returns the numbers that come out of the socket.
    let come_out = |socket: &UdpSocket, numbers: std::ops::Range<u64>| -> Vec<u64> {
        let arrived = numbers.map_while(|number| {
            generator.send_to(&number.to_be_bytes(), TO).unwrap();
            let mut payload = [0; 16];
            let bytes = socket.recv(&mut payload).ok()?;
            Some(u64::from_be_bytes(payload[..bytes].try_into().unwrap()))
        });
        arrived.collect()
    };
    wait_for("the sink", || !come_out(&sink, 0..1).is_empty());
    thread::sleep(Duration::from_millis(500));
    let before = forwarded();
    assert_eq!(come_out(&sink, 0..PACKETS), Vec::from_iter(0..PACKETS));
    assert!(
        forwarded() >= before + PACKETS,
        "the fast path forwarded only {} of {PACKETS}",
        forwarded() - before
    );

    sh("ip netns add con; ip link add link eth1 name iv0 netns con type ipvlan mode l2
        ip -n con addr add 10.2.0.77/32 dev iv0; ip -n con link set iv0 up; ip -n con route add default dev iv0");
    let container = open("con");
    wait_for("the ipvlan's first packet", || !come_out(&container, 1000..1001).is_empty());
    let before = forwarded();
    assert_eq!(come_out(&container, 2000..2000 + PACKETS), Vec::from_iter(2000..2000 + PACKETS));
    assert_eq!(forwarded(), before);
    let why = interface("eth1").to_string();
    assert!(why.contains("ipvlan"), "the reason does not name the ipvlan: {why}");
    // The sink got none of these.
    sink.set_nonblocking(true).unwrap();
    let late = std::iter::from_fn(|| {
        let mut number = [0; 8];
        sink.recv(&mut number).ok().map(|_| u64::from_be_bytes(number))
    });
    assert_eq!(late.filter(|number| *number >= 2000).count(), 0);
    sink.set_nonblocking(false).unwrap();

    drop(container);
    sh("ip netns del con");
    wait_for("the sink again", || !come_out(&sink, 3000..3001).is_empty());
    wait_for("the fast path again", || {
        let before = forwarded();
        come_out(&sink, 4000..4000 + PACKETS).len() as u64 == PACKETS && forwarded() >= before + PACKETS
    });
    bed.stop();
}

/// Debian's default is fq_codel, with handle 0 and below an mq on these NICs. Many users choose fq instead.
#[test]
#[ignore = "needs the virtual machine"]
fn default_qdiscs_do_not_shape_and_a_limited_one_does() {
    if !in_the_machine() {
        return;
    }
    let mut bed = Bed::new();
    bed.run();
    for (kind, limited) in [("fq", "fq maxrate 100mbit"), ("fq_codel", "fq_codel limit 1000")] {
        sh(&format!(
            "sysctl -qw net.core.default_qdisc={kind}
            tc qdisc replace dev eth2 root pfifo; tc qdisc del dev eth2 root"
        ));
        let shown = sh("tc qdisc show dev eth2");
        assert!(
            shown.contains("qdisc mq 0: root") && shown.contains(&format!("qdisc {kind} 0: parent")),
            "{shown}"
        );
        wait_for("a default qdisc", || interface("eth2")["transmit"] == true);
        accelerated("10.2.0.2", "eth1", "eth2");

        sh(&format!("tc qdisc replace dev eth2 root {limited}"));
        let reason = format!("the qdisc {kind} with options");
        wait_for("a limited qdisc", || interface("eth2").to_string().contains(&reason));
        let before = forwarded();
        ping("10.2.0.2", 20);
        assert_eq!(forwarded(), before);
    }
    sh("sysctl -qw net.core.default_qdisc=fq_codel; tc qdisc del dev eth2 root");
    bed.stop();
}

/// Devices of a VRF are left to the kernel: the fast path does not have their table.
#[test]
#[ignore = "needs the virtual machine"]
fn leaves_a_vrf_to_the_kernel() {
    if !in_the_machine() {
        return;
    }
    let mut bed = Bed::new();
    bed.run();
    sh("ip link add blue type vrf table 10; ip link set blue up
        ip link set eth1.100 master blue; ip link set eth2.200.7 master blue
        ip addr replace 2001:db8:3::1/64 dev eth1.100 nodad; ip addr replace 2001:db8:4::1/64 dev eth2.200.7 nodad");
    wait_for("the VRF to be given as the reason", || {
        let why = interface("eth1.100")["why_not"].to_string();
        why.contains("enslaved to the vrf blue")
    });
    let before = forwarded();
    ping("10.4.0.2", 5);
    ping("2001:db8:4::2", 5);
    assert_eq!(forwarded(), before, "packets of a VRF must be left to the kernel");

    // A VRF adds a policy rule, which changes lookups of the host's own packets too.
    let host = host_router();
    assert!(
        host["accelerated"]["ipv4"] == true || host["why_not"]["ipv4"].to_string().contains("rule"),
        "{host}"
    );
    ping("10.2.0.2", 5);

    sh("ip link del blue; ip rule del pref 1000; ip -6 rule del pref 1000");
    sh(
        "ip addr replace 2001:db8:3::1/64 dev eth1.100 nodad; ip addr replace 2001:db8:4::1/64 dev eth2.200.7 nodad",
    );
    wait_for("the host to be accelerated again", || host_router()["accelerated"]["ipv4"] == true);
    accelerated("10.4.0.2", "eth1.100", "eth2.200.7");
    bed.stop();
}

/// A port that belongs to a bond is left to the kernel.
#[test]
#[ignore = "needs the virtual machine"]
fn leaves_a_bond_to_the_kernel() {
    if !in_the_machine() {
        return;
    }
    let mut bed = Bed::new();
    sh("ip link add bond0 type bond mode active-backup miimon 100
        ip addr flush dev eth2; ip link set eth2 down; ip link set eth2 master bond0
        ip link set bond0 up
        ip addr add 10.2.0.1/24 dev bond0; ip addr add 2001:db8:2::1/64 dev bond0 nodad");
    bed.run();
    let told = ask("status").to_string() + &ask("interfaces").to_string();
    assert!(told.contains("enslaved to the bond bond0"), "the bond is not given as the reason: {told}");
    let before = forwarded();
    ping("10.2.0.2", 5);
    ping("2001:db8:2::2", 5);
    assert_eq!(forwarded(), before, "packets of a bond must be left to the kernel");
    bed.stop();
}

#[test]
#[ignore = "needs the virtual machine"]
fn stop_leaves_plain_linux() {
    if !in_the_machine() {
        return;
    }
    let mut bed = Bed::new();
    let before = traces();
    bed.run();
    accelerated("10.2.0.2", "eth1", "eth2");
    bed.stop();
    assert_eq!(traces(), before);
    ping("10.2.0.2", 5);
}

/// Everything that a router could leave behind: programs, maps, pins, sockets, settings.
fn traces() -> String {
    sh("ip -d link show eth1; ip -d link show eth2; ls -R /sys/fs/bpf /run; ethtool -k eth1; ethtool -k eth2
        find /proc/sys/net -type f ! -name '*_stable_secret' ! -name flush ! -name '*slab*' -exec grep -H '' {} + 2>/dev/null || true")
    .lines()
    .chain(programs().iter().map(String::as_str))
    .map(|line| format!("{line}\n"))
    .collect()
}

fn programs() -> Vec<String> {
    use libbpf_rs::query::{MapInfoIter, ProgInfoIter};
    let programs = ProgInfoIter::default().map(|p| format!("program {}", p.name.to_string_lossy()));
    let maps = MapInfoIter::default().map(|m| format!("map {}", m.name.to_string_lossy()));
    programs.chain(maps).collect()
}
