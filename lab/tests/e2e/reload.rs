//! A running daemon follows another configuration.

use crate::{
    bed::{Bed, ping, run},
    connections::{FAST, HOME, connect, connections, exchange, transfer, udp, until_fast, until_ruled},
    daemon::{Daemon, Leftovers, eventually, eventually_true},
    firewall::{SERVER, nft},
    flows::Stream,
    lifetime::forwarded_by_linux,
    load::{benchmark, testbed, while_sending},
    user_plane,
};
use lab::{command, workload::Family};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    thread,
    time::Duration,
};

/// A configuration file.
pub struct File(PathBuf);

impl File {
    pub fn new(name: &str, text: &str) -> File {
        let file = File(std::env::temp_dir().join(format!("{name}.toml")));
        file.write(text);
        file
    }

    pub fn write(&self, text: &str) {
        fs::write(&self.0, text).unwrap();
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub fn start(&self, bed: &Bed) -> Daemon {
        Daemon::start(&bed.the_box, &bed.name, &["--config", self.path()])
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn reload(daemon: &Daemon) -> Value {
    daemon.ask(&["reload"])["changed"].clone()
}

fn refused(daemon: &Daemon) -> String {
    let output = daemon.millrace(&["reload"]);
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Changes keys of most tables, and changes them back. No packet is lost, and Linux forwards none.
#[test]
#[ignore = "needs root"]
fn a_daemon_follows_its_file_without_a_lost_packet() {
    let mut testbed = testbed(2);
    let _leftovers = Leftovers(testbed.name.clone());
    const FIRST: &str = "ports = [\"eth1\", \"eth2\"]\nheartbeat = \"30s\"\n";
    let file = File::new(&testbed.name, FIRST);
    let mut daemon =
        Daemon::start(&testbed.box_namespace, &testbed.name, &["--config", file.0.to_str().unwrap()]);
    daemon.until_accelerated(3);
    let account = while_sending(&mut testbed, &benchmark(Family::V4, 0..=2), |testbed| {
        let by_linux = forwarded_by_linux(testbed);
        for (key, text) in [
            ("routers", format!("routers = [\"{}-r1\"]", testbed.name)),
            ("heartbeat", "heartbeat = \"20s\"".into()),
            ("policing.exception_pps", "[policing]\nexception_pps = 77".into()),
            ("limits.memory_mib", "[limits]\nmemory_mib = 1024".into()),
            ("cores.high", "[cores]\nhigh = 80".into()),
            ("cores.policy", "[cores]\npolicy = \"off\"".into()),
            ("shares.weights", "[shares]\nweights = { host = 3 }".into()),
            ("openflow.controllers", "[openflow]\ncontrollers = [\"ptcp:0:127.0.0.1\"]".into()),
            ("openflow.packet_in_pps", "[openflow]\npacket_in_pps = 10".into()),
        ] {
            let rest = FIRST.replace(
                "heartbeat = \"30s\"\n",
                if key == "heartbeat" { "" } else { "heartbeat = \"30s\"\n" },
            );
            let (top, table) = if text.starts_with('[') { ("", &text[..]) } else { (&text[..], "") };
            file.write(&format!("{rest}{top}\n{table}\n"));
            assert_eq!(reload(&daemon), json!([key]));
            assert_eq!(reload(&daemon), json!([]));
            // The testbed moves the queues when it begins to send, and the daemon may notice.
            let moved = |condition: &&Value| {
                condition["text"].as_str().unwrap().contains("is moved by somebody else")
            };
            let status = daemon.ask(&["status"]);
            let conditions = status["conditions"].as_array().unwrap().iter();
            let others: Vec<_> = conditions.filter(|condition| !moved(condition)).collect();
            assert!(others.is_empty(), "{key}: {others:#?}");
            file.write(FIRST);
            assert_eq!(reload(&daemon), json!([key]));
        }
        assert_eq!(forwarded_by_linux(testbed), by_linux, "Linux forwarded meanwhile");
    });
    account.assert_no_loss("while the configuration changed");
    daemon.assert_verified();
}

#[test]
#[ignore = "needs root"]
fn a_reload_changes_what_the_daemon_reports() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let ports = "ports = [\"p1\", \"p2\"]\n";
    let file = File::new(&bed.name, ports);
    let mut daemon = file.start(&bed);
    daemon.until_accelerated(2);
    let events = daemon.ask(&["events"]).as_array().unwrap().len();
    file.write(&format!("{ports}heartbeat = \"9s\"\n[cores]\nhigh = 60\nlow = 40\npolicy = \"spread\"\n"));
    assert_eq!(reload(&daemon), json!(["heartbeat", "cores.policy", "cores.high", "cores.low"]));
    assert_eq!(daemon.ask(&["status"])["heartbeat"]["timeout_s"], 9.0);
    let cores = daemon.ask(&["cores"]);
    assert_eq!((&cores["policy"], &cores["high"], &cores["low"]), (&json!("spread"), &json!(60), &json!(40)));
    eventually_true("the cores are known again", || daemon.ask(&["cores"])["cores"] != json!([]));
    assert!(daemon.ask(&["events"]).as_array().unwrap().len() >= events, "events are kept");
    let weight = |daemon: &Daemon| daemon.router("host")["weight"].clone();
    assert_eq!(weight(&daemon), 1);
    file.write(&format!("{ports}[shares]\nweights = {{ host = 7 }}\n"));
    // SIGHUP does the same.
    daemon.signal(libc::SIGHUP);
    eventually_true("the weight", || weight(&daemon) == 7);
    assert_eq!(reload(&daemon), json!([]));
    // Flow rules stay, and a miss goes another way at once.
    file.write(&format!("{ports}[flows]\nmiss = \"drop\"\n"));
    let rule = "priority=5,in_port=1,ip,ip_dst=10.8.2.2,actions=normal";
    assert!(daemon.millrace(&["flows", "add", rule]).status.success());
    ping(&bed.client, "10.8.2.2", 3);
    reload(&daemon);
    eventually("a miss is dropped", || {
        let sent = command::run(bed.client.command("ping").args(["-c", "1", "-W", "1", "10.8.2.1"]));
        if sent.is_err() { Ok(()) } else { Err(daemon.log()) }
    });
    assert_eq!(daemon.ask(&["flows", "list"]).as_array().unwrap().len(), 1);
    file.write(ports);
    assert_eq!(reload(&daemon), json!(["flows.miss"]));
    eventually("a miss is routed", || {
        let sent = command::run(bed.client.command("ping").args(["-c", "1", "-W", "1", "10.8.2.1"]));
        sent.map(drop).map_err(|error| format!("{error:#}\n{}", daemon.log()))
    });
}

/// A controller whose target stays keeps its connection. One whose target goes does not.
#[test]
#[ignore = "needs root"]
fn controllers_that_stay_keep_their_connections() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let [stays, goes] =
        [(); 2].map(|()| bed.the_box.enter(|| Ok(TcpListener::bind("127.0.0.1:0")?)).unwrap());
    run(&bed.the_box, "ip link set lo up");
    let target = |listener: &TcpListener| format!("tcp:127.0.0.1:{}", listener.local_addr().unwrap().port());
    let config = |targets: &[String], fail: &str| {
        format!("ports = [\"p1\", \"p2\"]\n[openflow]\ncontrollers = {targets:?}\nfail = \"{fail}\"\n")
    };
    let file = File::new(&bed.name, "ports = [\"p1\", \"p2\"]\n");
    let daemon = file.start(&bed);
    // The first controllers come.
    file.write(&config(&[target(&goes), target(&stays)], "standalone"));
    assert_eq!(reload(&daemon), json!(["openflow.controllers"]));
    let accept = |listener: &TcpListener| -> TcpStream {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        stream
    };
    let (mut stays_peer, mut goes_peer) = (accept(&stays), accept(&goes));
    // OpenFlow 1.3 HELLO.
    for peer in [&mut stays_peer, &mut goes_peer] {
        std::io::Write::write_all(peer, &[4, 0, 0, 8, 0, 0, 0, 1]).unwrap();
    }
    let is_open = |peer: &mut TcpStream| loop {
        match std::io::Read::read(peer, &mut [0; 4096]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
            Err(_) => return false,
        }
    };
    let fail = |daemon: &Daemon| daemon.ask(&["controllers"])["fail"].clone();
    assert_eq!(fail(&daemon), "standalone");
    file.write(&config(&[target(&stays)], "secure"));
    assert_eq!(reload(&daemon), json!(["openflow.controllers", "openflow.fail"]));
    assert!(!is_open(&mut goes_peer) && is_open(&mut stays_peer));
    assert_eq!(fail(&daemon), "secure");
    let report = daemon.ask(&["controllers"]);
    let targets = report["controllers"].as_array().unwrap();
    assert_eq!((targets.len(), &targets[0]["attempts"]), (1, &json!(1)), "{report}");
}

#[test]
#[ignore = "needs root"]
fn an_unusable_configuration_changes_nothing() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let taken = bed.the_box.enter(|| Ok(TcpListener::bind("127.0.0.1:0")?)).unwrap();
    run(&bed.the_box, "ip link set lo up");
    let taken = format!("ptcp:{}:127.0.0.1", taken.local_addr().unwrap().port());
    let ports = "ports = [\"p1\", \"p2\"]\n";
    let file = File::new(&bed.name, ports);
    let mut daemon = file.start(&bed);
    daemon.until_accelerated(2);
    let before =
        [daemon.ask(&["ports"]), daemon.ask(&["cores"])["high"].clone(), daemon.ask(&["controllers"])];
    let generation = daemon.ask(&["status"])["generation"].clone();
    let path = file.0.to_str().unwrap();
    let more = "[cores]\nhigh = 80\n";
    for (text, part) in [
        (
            format!("{ports}{more}[policing]\ncontrol_pps = -1\n"),
            format!("{path}:5: policing.control_pps: -1 is not allowed"),
        ),
        (format!("{ports}{more}[cores]\n"), format!("{path}:4: ")),
        (
            format!("{ports}{more}[flows]\nrules = 9\n"),
            "cannot change flows.rules; restart the daemon".into(),
        ),
        (
            format!("{ports}generic = true\n{more}[workers]\ncores = \"0\"\n"),
            "cannot change generic; restart the daemon".into(),
        ),
        (format!("{ports}routers = [\"none\"]\n{more}"), "router none: no such network namespace".into()),
        (format!("ports = []\n{more}"), "no port is given".into()),
        (format!("ports = [\"p1\", \"p1\"]\n{more}"), "port p1 is given twice".into()),
        (
            format!("{ports}{more}[policing]\ncontrol_pps = 5\n[openflow]\ncontrollers = [\"{taken}\"]\n"),
            format!("cannot listen on {taken}"),
        ),
        (
            format!(
                "{ports}{more}[openflow]\ncontrollers = [\"ssl:192.0.2.1\"]\ntls = {{ key = \"/none\", certificate = \"/none\", ca = \"/none\" }}\n"
            ),
            "/none".into(),
        ),
    ] {
        file.write(&text);
        let said = refused(&daemon);
        assert!(said.contains("nothing was changed") && said.contains(&part), "{text}\n{said}\nlacks {part}");
        daemon.signal(libc::SIGHUP);
    }
    fs::remove_file(&file.0).unwrap();
    assert!(refused(&daemon).contains("cannot read the configuration"), "{}", refused(&daemon));
    // The daemon has handled the signals: reloads run one after another.
    file.write(ports);
    assert_eq!(reload(&daemon), json!([]));
    let after =
        [daemon.ask(&["ports"]), daemon.ask(&["cores"])["high"].clone(), daemon.ask(&["controllers"])];
    assert_eq!(before[1..], after[1..]);
    assert_eq!(before[0].as_array().unwrap().len(), after[0].as_array().unwrap().len());
    assert_eq!(daemon.ask(&["status"])["generation"], generation);
    assert!(daemon.log().contains("reload on SIGHUP: nothing was changed"));
    daemon.stop();
    // Without a file there is nothing to follow.
    let daemon = bed.start(2, &[]);
    assert!(refused(&daemon).contains("the daemon has no configuration file"));
}

/// Does the process catch SIGHUP?
fn catches_hang_up(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (libc::SIGHUP - 1) != 0
}

/// Reloads by command and by signal while the daemon starts, and many at once while the file changes. Each succeeds or changes
/// nothing, and the last one counts.
#[test]
#[ignore = "needs root"]
fn reloads_can_come_at_any_time_and_at_once() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let text = |high: u32| format!("ports = [\"p1\", \"p2\"]\nheartbeat = \"30s\"\n[cores]\nhigh = {high}\n");
    let file = File::new(&bed.name, &text(80));
    let mut daemon = Daemon::launch(&bed.the_box, &bed.name, &["--config", file.0.to_str().unwrap()]);
    // Before it catches the signal, it ends with it, as every process.
    eventually_true("a daemon that catches SIGHUP", || catches_hang_up(daemon.pid()));
    let (mut early, mut refused) = (0, BTreeSet::new());
    while daemon.ask_if_ready().is_none() {
        daemon.signal(libc::SIGHUP);
        let output = daemon.millrace(&["reload"]);
        early += u32::from(output.status.success());
        refused
            .extend((!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    assert!(early > 0 || !refused.is_empty(), "none came early");
    assert!(refused.iter().all(|why| why.contains("no daemon is running")), "{refused:?}");
    daemon.until_accelerated(2);

    let stream = Stream::start(&bed, 11);
    eventually_true("packets", || stream.arrived() > 50);
    let before = stream.missing();
    let results: Vec<_> = thread::scope(|scope| {
        let reloads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..5).map(|_| daemon.millrace(&["reload"])).collect::<Vec<_>>()))
            .collect();
        for n in 0..20 {
            file.write(&if n % 4 == 2 { "nonsense = 1\n".into() } else { text(75 + n) });
            thread::sleep(Duration::from_millis(40));
            daemon.signal(libc::SIGHUP);
        }
        reloads.into_iter().flat_map(|reloads| reloads.join().unwrap()).collect()
    });
    for output in &results {
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || why.contains("nothing was changed: "), "{why}");
    }
    assert!(results.iter().any(|output| output.status.success()));
    file.write(&text(77));
    daemon.ask(&["reload"]);
    assert_eq!(daemon.ask(&["cores"])["high"], 77);
    assert_eq!(reload(&daemon), json!([]));
    assert_eq!(stream.missing(), before);
}

/// The first paths, others, and none again. No packet is lost meanwhile.
#[test]
#[ignore = "needs root"]
fn paths_come_change_and_go() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let ports = "ports = [\"p1\", \"p2\"]\nheartbeat = \"30s\"\n";
    let file = File::new(&bed.name, ports);
    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("a.pcap");
    let mut daemon = file.start(&bed);
    daemon.until_accelerated(2);
    let stream = Stream::start(&bed, 11);
    eventually_true("packets", || stream.arrived() > 50);
    let before = stream.missing();
    let path = |name: &str, port: u16, chain: &str| {
        format!(
            "[[path]]\nname = \"{name}\"\nclass = {{ protocol = \"udp\", destination_port = {port} }}\n\
             chain = [{chain}\"check\", \"route\", \"ttl\", \"rewrite\"]\n"
        )
    };
    let with = |paths: &[String]| file.write(&format!("{ports}[workers]\ncores = \"0\"\n{}", paths.concat()));
    let by_worker = |name: &str| user_plane::path(&daemon, name)["run"]["packets"].as_u64().unwrap_or(0);

    with(&[path("a", 11, "")]);
    assert_eq!(reload(&daemon), json!(["workers.cores", "path"]));
    eventually_true("the worker", || by_worker("a") > 50);
    let mirror = format!("{{ element = \"mirror\", file = \"{}\" }}, ", capture.display());
    with(&[path("b", 12, ""), path("a", 11, &mirror)]);
    let packets = by_worker("a");
    assert_eq!(reload(&daemon), json!(["path"]));
    eventually_true("the same path goes on", || by_worker("a") > packets + 50);
    eventually_true("the capture", || fs::metadata(&capture).is_ok_and(|file| file.len() > 1000));
    // Its number does not depend on its place.
    let rule = "priority=7,udp,tp_dst=13,actions=output:path:a";
    assert!(daemon.millrace(&["flows", "add", rule]).status.success());
    assert_eq!(daemon.ask(&["flows", "list"])[0]["actions"], "output:65024");
    with(&[path("b", 12, ""), path("c", 11, "")]);
    assert_eq!(reload(&daemon), json!(["path"]));
    eventually_true("the other path", || by_worker("c") > 50);
    let written = fs::metadata(&capture).unwrap().len();
    stream.go_on(100);
    assert_eq!(fs::metadata(&capture).unwrap().len(), written, "the capture has ended");
    with(&[]);
    assert_eq!(reload(&daemon), json!(["path"]));
    let forwarded = || daemon.ask(&["status"])["packets"]["forwarded"].as_u64().unwrap();
    let by_kernel_plane = forwarded();
    stream.go_on(200);
    assert!(forwarded() >= by_kernel_plane + 100);
    assert_eq!(stream.missing(), before);
    assert_eq!(daemon.ask(&["status"])["paths"], json!([]));
    // There were workers.
    file.write(ports);
    let why = refused(&daemon);
    assert!(why.contains("cannot change workers.cores"), "{why}");
}

/// Whether p1 and p2 have an XDP program.
fn attached(bed: &Bed) -> Vec<bool> {
    ["p1", "p2"].map(|port| run(&bed.the_box, &format!("ip link show dev {port}")).contains(" xdp")).into()
}

/// A port that is not there yet is used when it comes. A port is taken out of the file, and comes back.
#[test]
#[ignore = "needs root"]
fn ports_come_and_go() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    run(&bed.the_box, "ip link set p2 down");
    run(&bed.the_box, "ip link set p2 name later");
    let file = File::new(&bed.name, "ports = [\"p1\", \"p2\"]\n");
    let mut daemon = file.start(&bed);
    assert!(daemon.log().contains("used once they appear: p2"), "{}", daemon.log());
    let numbers = |daemon: &Daemon| -> Vec<(String, Value)> {
        let report = daemon.ask(&["ports"]);
        report
            .as_array()
            .unwrap()
            .iter()
            .map(|p| (p["port"].as_str().unwrap().into(), p["number"].clone()))
            .collect()
    };
    run(&bed.the_box, "ip link set later name p2");
    run(&bed.the_box, "ip link set p2 up");
    daemon.until_accelerated(2);
    ping(&bed.client, "10.8.2.2", 20);
    let forwarded = daemon.forwarded();
    assert!(forwarded >= 30, "{forwarded}");
    let before = numbers(&daemon);
    // Linux forwards when a port is gone, and its program is off.
    file.write("ports = [\"p2\"]\n");
    assert_eq!(reload(&daemon), json!(["ports"]));
    eventually_true("the program to be off p1", || attached(&bed) == [false, true]);
    ping(&bed.client, "10.8.2.2", 20);
    assert_eq!(numbers(&daemon), before[1..]);
    // Another order changes no number, and the port that comes back forwards again.
    file.write("ports = [\"p2\", \"p1\"]\n");
    assert_eq!(reload(&daemon), json!(["ports"]));
    eventually_true("the program to be on p1", || attached(&bed) == [true, true]);
    daemon.until_accelerated(2);
    assert_eq!(numbers(&daemon), before);
    let forwarded = daemon.forwarded();
    ping(&bed.client, "10.8.2.2", 20);
    assert!(daemon.forwarded() >= forwarded + 30, "{} after {forwarded}", daemon.forwarded());
    daemon.assert_verified();
    // A device that is a port by another name now is attached.
    run(&bed.the_box, "ip link set p1 down");
    run(&bed.the_box, "ip link set p1 name renamed");
    run(&bed.the_box, "ip link set renamed up");
    file.write("ports = [\"p2\", \"renamed\"]\n");
    assert_eq!(reload(&daemon), json!(["ports"]));
    daemon.until_accelerated(2);
    daemon.until("the renamed port", |status| {
        let ports = status["ports"].as_array().unwrap();
        ports.len() == 2 && ports.iter().any(|p| p["port"] == "renamed" && p["mode"] == "native")
    });
    eventually_true("its carrier", || {
        let interfaces = daemon.ask(&["interfaces"]);
        interfaces.as_array().unwrap().iter().all(|interface| interface["transmit"] == true)
    });
    let forwarded = daemon.forwarded();
    ping(&bed.client, "10.8.2.2", 20);
    assert!(daemon.forwarded() >= forwarded + 30, "{} after {forwarded}", daemon.forwarded());
}

/// TCP needs consent. It can be given and taken back.
#[test]
#[ignore = "needs root"]
fn consent_to_fast_connections_can_be_given_and_taken_back() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(&bed, HOME);
    let ports = "ports = [\"p1\", \"p2\"]\n";
    let file = File::new(&bed.name, ports);
    let mut daemon = file.start(&bed);
    until_ruled(&mut daemon, &bed);
    let (client, server) = (udp(&bed.client, "10.7.1.2:4000"), udp(&bed.server, "0.0.0.0:5000"));
    let to = format!("{SERVER}:5000");
    let (mut from, mut at) = connect(&bed, &format!("{SERVER}:5001"));
    let fast = |daemon: &Daemon| -> Vec<String> {
        let all = connections(daemon, &["--state", "fast"]);
        all.iter().map(|c| c["protocol"].as_str().unwrap().into()).collect()
    };
    until_fast(&daemon, ":4000", || _ = exchange(&client, &to, &server));
    transfer(&mut from, &mut at, 1 << 18);
    assert_eq!(fast(&daemon), ["udp"]);
    file.write(&format!("{ports}{FAST}"));
    assert_eq!(reload(&daemon), json!(["firewall.established"]));
    eventually("TCP is fast", || {
        transfer(&mut from, &mut at, 1 << 18);
        let all = fast(&daemon);
        if all.contains(&"tcp".into()) { Ok(()) } else { Err(format!("{all:?}\n{}", daemon.log())) }
    });
    until_fast(&daemon, ":4000", || _ = exchange(&client, &to, &server));
    file.write(ports);
    assert_eq!(reload(&daemon), json!(["firewall.established"]));
    assert!(!fast(&daemon).contains(&"tcp".into()), "at once");
    transfer(&mut from, &mut at, 1 << 20);
    until_fast(&daemon, ":4000", || _ = exchange(&client, &to, &server));
    assert_eq!(fast(&daemon), ["udp"]);
}
