//! Paths of the user plane in the daemon's configuration. Workers run them; packets that no worker can have follow
//! `otherwise`.

use std::{
    net::UdpSocket,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use lab::namespace::Namespace;
use logic::paths::{Resource, Share};
use serde_json::Value;

use crate::{
    bed::{Bed, be_router, output, ping},
    daemon::{Daemon, Leftovers, eventually, eventually_true, problems, router},
};

/// Sends a datagram to the server through red. Did it arrive?
fn udp_arrives(bed: &Bed, port: u16) -> bool {
    let to = format!("10.7.2.2:{port}");
    let server = bed.server.enter(|| Ok(UdpSocket::bind(&to)?)).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let client = bed.client.enter(|| Ok(UdpSocket::bind("10.7.1.2:0")?)).unwrap();
    client.send_to(&port.to_be_bytes(), &to).unwrap();
    let mut bytes = [0; 8];
    server.recv(&mut bytes).is_ok_and(|n| bytes[..n] == port.to_be_bytes())
}

pub fn path(daemon: &Daemon, name: &str) -> Value {
    let status = daemon.ask(&["status"]);
    let mut paths = status["paths"].as_array().unwrap().iter();
    paths.find(|path| path["path"] == name).cloned().unwrap_or_else(|| panic!("{status:#}"))
}

fn no_worker(counts: &Value) -> u64 {
    let found = counts.as_array().unwrap().iter().find(|count| count["reason"] == "path_no_worker");
    found.map_or(0, |count| count["packets"].as_u64().unwrap())
}

/// A file that is removed when this is dropped.
pub struct ConfigFile(pub PathBuf);

impl Drop for ConfigFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn start(bed: &Bed, config: &str) -> (Daemon, ConfigFile) {
    let file = ConfigFile(std::env::temp_dir().join(format!("{}.toml", bed.name)));
    std::fs::write(&file.0, config).unwrap();
    let mut daemon = Daemon::start(&bed.the_box, &bed.name, &["--config", file.0.to_str().unwrap()]);
    daemon.until_accelerated(2);
    (daemon, file)
}

/// A configuration without paths yet.
pub fn workers(cores: &str) -> String {
    format!("ports = [\"p1\", \"p2\"]\n[workers]\ncores = \"{cores}\"\n")
}

/// A path for red's packets of a class, which are routed or dropped.
fn routed(bed: &Bed, name: &str, class: &str) -> String {
    format!(
        "[[path]]\nname = \"{name}\"\nrouter = \"{}\"\nclass = {{ {class} }}\n\
         chain = [\"check\", \"route\", \"ttl\", \"rewrite\"]\notherwise = \"drop\"\n",
        bed.red_name()
    )
}

/// Sends numbered datagrams from the client to the server through red. Returns those that arrived, in order.
pub fn numbered(bed: &Bed, from: &str, to: &str, count: u32) -> Vec<u32> {
    let server = bed.server.enter(|| Ok(UdpSocket::bind(to)?)).unwrap();
    server.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let client = bed.client.enter(|| Ok(UdpSocket::bind(from)?)).unwrap();
    client.connect(to).unwrap();
    send_numbered(|number| _ = client.send(number).unwrap(), &server, count)
}

/// How far a sender is ahead of its receiver at most. Otherwise queues lose packets whenever another program takes the
/// core.
const AHEAD: u32 = 64;

/// Room for all packets that are on their way. A packet that went through XDP takes a page or more, so a socket usually has
/// room for only 50 of them.
const ROOM_BYTES: usize = 1 << 20;

/// Sends numbers in datagrams; returns those that the receiver got, in order.
pub fn send_numbered(send: impl Fn(&[u8; 4]) + Sync, receiver: &UdpSocket, count: u32) -> Vec<u32> {
    rustix::net::sockopt::set_socket_recv_buffer_size_force(receiver, ROOM_BYTES).unwrap();
    let (next, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..count {
                let since = Instant::now();
                // If all these packets were lost, the sender continues.
                while number >= next.load(Relaxed) + AHEAD && since.elapsed() < Duration::from_millis(300) {
                    thread::sleep(Duration::from_micros(100));
                }
                if is_over.load(Relaxed) {
                    return;
                }
                send(&number.to_be_bytes());
                thread::sleep(Duration::from_micros(200));
            }
        });
        let _end = Ends(&is_over);
        let (mut bytes, mut came) = ([0; 4], Vec::new());
        while came.len() < count as usize && receiver.recv(&mut bytes).is_ok() {
            let number = u32::from_be_bytes(bytes);
            came.push(number);
            next.fetch_max(number + 1, Relaxed);
        }
        came
    })
}

pub fn sum(counts: &Value) -> u64 {
    counts.as_object().map_or(0, |counts| counts.values().filter_map(Value::as_u64).sum())
}

/// All of red's IP packets go through workers. Its neighbours are found, its errors are answered, and hop limits are
/// decremented once. Packets that are too large are reported, and the host forwards its packets as before.
#[test]
#[ignore = "needs root"]
fn workers_route_as_linux_does() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let path_of = |family| routed(&bed, family, &format!("ether_type = \"{family}\""));
    let text = workers("0-1") + &path_of("ipv4") + &path_of("ipv6");
    let (daemon, _file) = start(&bed, &text);
    ping(&bed.client, "10.7.2.2", 50);
    ping(&bed.client, "fd07:2::2", 50);
    ping(&bed.client, "10.8.2.2", 5);
    assert_eq!(numbered(&bed, "10.7.1.2:4000", "10.7.2.2:4000", 2000), Vec::from_iter(0..2000));
    assert_eq!(numbered(&bed, "[fd07:1::2]:4000", "[fd07:2::2]:4000", 500), Vec::from_iter(0..500));
    for (to, hop) in [("10.7.2.2", "10.7.1.1"), ("fd07:2::2", "fd07:1::1")] {
        let text = output(&bed.client, &format!("traceroute -n -q 1 -w 5 -N 1 {to}"));
        let hops: Vec<&str> =
            text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(hops, [hop, to], "{text}");
    }
    bed.red.ip_batch("link set out mtu 1300\n").unwrap();
    eventually_true("too large for the way out", || {
        let text = output(&bed.client, "ping -n -c 1 -W 1 -M do -s 1372 10.7.2.2");
        text.contains("mtu = 1300") || text.contains("mtu=1300")
    });
    ping(&bed.client, "10.7.1.1", 5);
    eventually_true("what became of all packets", || {
        let path = path(&daemon, "ipv4");
        let run = &path["run"];
        let told = |part: &str| sum(&run[part]);
        run["packets"] == path["packets"]
            && run["packets"].as_u64().unwrap() == told("out") + told("up") + told("dropped")
    });
    let path = path(&daemon, "ipv4");
    let out = |port: &str| path["run"]["out"][port].as_u64().unwrap_or(0);
    assert!(out("p2") >= 2050 && out("p1") >= 50, "{path:#}");
    assert!(path["run"]["up"]["ttl_exceeded"].as_u64().unwrap() >= 1, "{path:#}");
    assert_eq!(
        (&path["lost"], &path["run"]["dropped"]),
        (&Value::Array(Vec::new()), &serde_json::json!({})),
        "{path:#}"
    );
    let status = daemon.ask(&["status"]);
    assert_eq!(problems(&status), [""; 0], "{status:#}");
    let given: u64 = status["paths"].as_array().unwrap().iter().map(|p| p["packets"].as_u64().unwrap()).sum();
    let red = router(&status, bed.red_name());
    assert_eq!(red["packets"]["taken"], given, "each is counted where it came in: {status:#}");
    let explained = daemon.ask(&["explain", "udp 10.7.1.2:9 -> 10.7.2.2:5000", "--router", bed.red_name()]);
    assert_eq!((&explained[0]["path"], &explained[0]["verdict"]), (&"ipv4".into(), &"path".into()));
    assert_eq!(status["workers"]["workers"].as_array().unwrap().len(), 2, "{status:#}");
    daemon.stop();
    ping(&bed.client, "10.7.2.2", 5);
}

/// The cost of a switch is the calibrated one, and `status` reports if there is none. It also reports a resource that
/// nothing counts; paths cannot share it.
#[test]
#[ignore = "needs root"]
fn workers_use_calibrated_costs_and_share_counted_resources() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let kept = tempfile::tempdir().unwrap();
    let kept = kept.path().join("calibration.json");
    let text = |share: &str| {
        let more = format!("calibration = \"{}\"\n[experimental]\nshare = \"{share}\"\n", kept.display());
        workers("0-1") + &more + &routed(&bed, "ipv4", "ether_type = \"ipv4\"")
    };
    let workers_stand = |share: &str| {
        let (mut daemon, _file) = start(&bed, &text(share));
        let status =
            daemon.until("workers", |status| !status["workers"]["clock"].as_str().unwrap().is_empty());
        ping(&bed.client, "10.7.2.2", 20);
        eventually_true("a packet's bytes", || {
            !path(&daemon, "ipv4")["run"]["io_bytes_per_packet"].is_null()
        });
        let words = daemon.millrace(&["status"]);
        let words = String::from_utf8(words.stdout).unwrap();
        daemon.stop();
        (status["workers"].clone(), words)
    };
    let (stand, words) = workers_stand("io");
    assert_eq!((&stand["switch"]["cycles"], &stand["share"]), (&0.into(), &"I/O bandwidth".into()));
    let told = format!("{} is not there (`millrace calibrate` measures them)", kept.display());
    assert!(words.contains(&told) && words.contains("paths share I/O bandwidth"), "{words}");
    let calibrate = std::process::Command::new(crate::daemon::binary())
        .args(["calibrate", "--json", "--file"])
        .arg(&kept)
        .output()
        .unwrap();
    // A machine that is too busy says so, and nothing is written.
    if calibrate.status.success() {
        let found: Value = serde_json::from_slice(&calibrate.stdout).unwrap();
        let (stand, words) = workers_stand("cycles");
        let cycles = found["switch_cycles"].as_f64().unwrap().round() as u64;
        assert_eq!((&stand["switch"]["cycles"], &stand["share"]), (&cycles.into(), &"CPU cycles".into()));
        assert_eq!(stand["switch"]["calibrated"], kept.to_str().unwrap());
        assert!(!words.contains("millrace calibrate"), "{words}");
    } else {
        let words = String::from_utf8_lossy(&calibrate.stderr).into_owned();
        assert!(words.contains("nothing was written") && !kept.exists(), "{words}");
    }
    std::fs::write(&kept, "{").unwrap();
    let (stand, words) = workers_stand("cycles");
    assert_eq!(stand["switch"]["cycles"], 0);
    assert!(words.contains(&format!("{} cannot be used: ", kept.display())), "{words}");
    if let Err(why) = ::router::user_plane::workers::check_counted(Share::Always(Resource::Memory))
        .map_err(|error| error.to_string())
    {
        let memory =
            |line: &&str| line.starts_with("  memory bandwidth of paths: estimated by the bytes of I/O");
        assert_eq!(words.lines().filter(memory).count(), 1, "{words}");
        let file = ConfigFile(std::env::temp_dir().join(format!("{}.toml", bed.name)));
        std::fs::write(&file.0, text("memory")).unwrap();
        let refused =
            Daemon::launch(&bed.the_box, &bed.name, &["--config", file.0.to_str().unwrap()]).refused();
        assert!(
            refused.contains("experimental.share: paths cannot share memory bandwidth fairly")
                && refused.contains(&why)
        );
    }
}

/// A busy process. It is killed and waited for, however the test ends.
struct Busy(std::process::Child);

impl Busy {
    fn on(core: u64) -> Busy {
        let mut shell = std::process::Command::new("taskset");
        // It is a single process, which ends on its own if the test is killed.
        let shell = shell.args(["-c", &core.to_string(), "sh", "-c", "ulimit -t 60; while :; do :; done"]);
        Busy(shell.spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A path with packets leaves a core that an application fills.
#[test]
#[ignore = "needs root"]
fn paths_leave_a_core_that_something_else_fills() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let (daemon, _file) = start(&bed, &(workers("0-1") + &routed(&bed, "udp", "protocol = \"udp\"")));
    let client = bed.client.enter(|| Ok(UdpSocket::bind("10.7.1.2:0")?)).unwrap();
    client.connect("10.7.2.2:9").unwrap();
    let (ends, pause_ms) = (AtomicBool::new(false), AtomicU64::new(1));
    thread::scope(|scope| {
        // About 100,000 a second at first.
        scope.spawn(|| {
            while !ends.load(Relaxed) {
                (0..192).for_each(|_| drop(client.send(&[0; 64])));
                thread::sleep(Duration::from_millis(pause_ms.load(Relaxed)));
            }
        });
        let _end = Ends(&ends);
        // The path must take so little of a core that there is room for it beside the generator. The cost of a packet,
        // and of waking another core, differs by machine.
        eventually_true("the path takes a little of its core", || {
            thread::sleep(Duration::from_secs(2));
            let takes = path(&daemon, "udp")["run"]["share"].as_f64().unwrap_or(0.0);
            if takes > 0.2 {
                pause_ms.store(pause_ms.load(Relaxed) * 2, Relaxed);
            }
            (0.03..=0.2).contains(&takes)
        });
        let core = path(&daemon, "udp")["run"]["worker"].as_u64().unwrap();
        let _busy = Busy::on(core);
        let other = |status: &Value, is_it: &dyn Fn(&Value) -> bool| {
            let workers = status["workers"]["workers"].as_array().unwrap();
            workers.iter().find(|worker| is_it(&worker["core"])).unwrap()["other"].as_f64().unwrap_or(0.0)
        };
        // If the other core is as busy, there is no reason to leave.
        eventually_true("the path leaves", || {
            let status = daemon.ask(&["status"]);
            let [here, there] =
                [true, false].map(|is_it| other(&status, &|worker| (*worker == core) == is_it));
            here > 0.4 && (path(&daemon, "udp")["run"]["worker"] != core || there > 0.8)
        });
    });
    daemon.stop();
}

/// Sets it, however a scope ends.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A port that is renamed stays the same port, and so does one that was down. When workers are gone, `otherwise` of
/// their paths applies.
#[test]
#[ignore = "needs root"]
fn workers_keep_their_ports() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let straight = "[[path]]\nname = \"straight\"\nclass = { port = \"p1\", ether_type = 0x88b5 }\n\
                    chain = [{ element = \"forward\", port = \"p2\" }]\n";
    let text = workers("0") + &routed(&bed, "udp", "protocol = \"udp\"") + straight;
    let (daemon, _file) = start(&bed, &text);
    let sends = |count| {
        assert_eq!(numbered(&bed, "10.7.1.2:4000", "10.7.2.2:4000", count), Vec::from_iter(0..count));
    };
    // While Linux resolves a neighbour, packets that come later overtake those that wait for it.
    ping(&bed.client, "10.7.2.2", 5);
    sends(100);
    bed.the_box.ip_batch("link set p1 name wan\n").unwrap();
    // Wait longer than the interval at which workers are checked.
    thread::sleep(Duration::from_millis(2500));
    sends(100);
    bed.the_box.ip_batch("link set wan name p1\nlink set p1 down\n").unwrap();
    thread::sleep(Duration::from_millis(1500));
    bed.the_box.ip_batch("link set p1 up\n").unwrap();
    eventually_true("packets of the port that is up again", || {
        numbered(&bed, "10.7.1.2:4001", "10.7.2.2:4001", 10).len() == 10
    });
    sends(100);
    let run = path(&daemon, "udp")["packets"].as_u64().unwrap();
    assert!(run >= 300, "by the worker: {run}");
    daemon.kill();
    assert_eq!(numbered(&bed, "10.7.1.2:4000", "10.7.2.2:4000", 3), [0; 0]);
    ping(&bed.client, "10.7.2.2", 5);
}

/// A table grows while workers read it. From then on they read the larger one, with the routes of Linux.
#[test]
#[ignore = "needs root"]
fn workers_follow_routes_into_larger_tables() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let limits = "[limits]\nroutes_per_namespace = 262144\n";
    let text = workers("0") + limits + &routed(&bed, "udp", "protocol = \"udp\"");
    let (daemon, _file) = start(&bed, &text);
    bed.server.ip_batch("route add local 198.51.100.0/24 dev lo\n").unwrap();
    bed.client.ip_batch("route add 198.51.100.0/24 via 10.7.1.1\n").unwrap();
    // A packet that waits for a next hop goes up, and packets that come when it is there overtake it.
    ping(&bed.client, "10.7.2.2", 5);
    let first = daemon.ask(&["status"])["generation"].as_u64().unwrap();
    thread::scope(|scope| {
        let came = scope.spawn(|| numbered(&bed, "10.7.1.2:4000", "10.7.2.2:4000", 20_000));
        let route = |n: u32| {
            format!("route add {}.{}.{}.128/25 via 10.7.2.2\n", 11 + (n >> 16), (n >> 8) & 255, n & 255)
        };
        bed.red.ip_batch(&(0..100_000).map(route).collect::<String>()).unwrap();
        eventually_true("a larger generation", || {
            daemon.ask(&["status"])["generation"].as_u64().unwrap() > first
        });
        bed.red.ip_batch("route add 198.51.100.0/24 via 10.7.2.2\n").unwrap();
        assert_eq!(came.join().unwrap(), Vec::from_iter(0..20_000));
    });
    let to_new = || numbered(&bed, "10.7.1.2:4001", "198.51.100.7:4001", 100);
    // Packets that come when workers know the route overtake those that went up before.
    let mut first = to_new();
    first.sort_unstable();
    assert_eq!(first, Vec::from_iter(0..100));
    let run = || path(&daemon, "udp")["run"].clone();
    let out = |run: &Value| run["out"]["p2"].as_u64().unwrap();
    let settled = || {
        thread::sleep(Duration::from_millis(1500));
        run()
    };
    // A worker that reads the tables of before has no such route, and Linux would forward.
    let before = settled();
    assert_eq!(to_new(), Vec::from_iter(0..100));
    let after = settled();
    assert_eq!(out(&after) - out(&before), 100, "by the worker: {after:#}");
    assert_eq!(after["up"], before["up"]);
    // A route that is removed.
    bed.red.ip_batch("route replace blackhole 198.51.100.0/24\n").unwrap();
    eventually_true("the route is gone", || {
        numbered(&bed, "10.7.1.2:4001", "198.51.100.7:4001", 3).is_empty()
    });
    daemon.stop();
}

/// A path gets what flow rules give it, and nothing else. All of it arrives, as long as the rule exists.
#[test]
#[ignore = "needs root"]
fn a_flow_rule_gives_packets_to_a_path() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let (daemon, _file) = start(&bed, &(workers("0-1") + &routed(&bed, "ruled", "flow_rules = true")));
    ping(&bed.client, "10.7.2.2", 5);
    let flows = |words: &[&str]| {
        let output = daemon.millrace(&[&["flows"], words].concat());
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let rule = "udp,tp_dst=4000,actions=output:path:ruled";
    assert_eq!(flows(&["add", rule]), (true, String::new()));
    assert_eq!(numbered(&bed, "10.7.1.2:4000", "10.7.2.2:4000", 2000), Vec::from_iter(0..2000));
    assert!(udp_arrives(&bed, 6000), "of no path");
    eventually("the counts of all packets", || {
        let path = path(&daemon, "ruled");
        let all =
            path["packets"] == 2000 && path["run"]["packets"] == 2000 && path["run"]["out"]["p2"] == 2000;
        if all { Ok(()) } else { Err(format!("{path:#}")) }
    });
    let explained = daemon.ask(&["explain", "udp 10.7.1.2:9 -> 10.7.2.2:4000", "--router", bed.red_name()]);
    assert_eq!(explained[0]["rules"]["outputs"][0]["to"], "path ruled", "{explained:#}");
    for (rule, why) in [
        ("udp,tp_dst=4000,actions=output:path:other", "path:ruled"),
        ("udp,tp_dst=4000,actions=dec_ttl,output:path:ruled", "can do nothing else"),
    ] {
        let (done, text) = flows(&["add", rule]);
        assert!(!done && text.contains(why), "{rule}: {text}");
    }
    assert_eq!(flows(&["del", "udp,tp_dst=4000"]), (true, String::new()));
    assert_eq!(numbered(&bed, "10.7.1.2:4000", "10.7.2.2:4000", 50), Vec::from_iter(0..50));
    assert_eq!(path(&daemon, "ruled")["packets"], 2000);
    daemon.stop();
}

#[test]
#[ignore = "needs root"]
fn without_workers_packets_of_paths_follow_otherwise() {
    let bed = Bed::new();
    let blue_name = format!("{}-blue", bed.name);
    let red = bed.red_name();
    let text = format!(
        r#"
ports = ["p1", "p2"]
[workers]
cores = "1000"
[[path]]
name = "later"
router = "{blue_name}"
chain = ["count", "discard"]
[[path]]
name = "open"
router = "{red}"
class = {{ protocol = "udp", destination_port = 4000 }}
chain = ["check", "route", "ttl", "rewrite"]
[[path]]
name = "sealed"
router = "{red}"
class = {{ protocol = "udp", destination_port = 5000 }}
chain = ["check", "route", "ttl", "rewrite"]
otherwise = "drop"
"#
    );
    let _leftovers = Leftovers(bed.name.clone());
    let (daemon, _file) = start(&bed, &text);
    let status = daemon.ask(&["status"]);
    assert!(problems(&status).contains(&"workers.cores: core 1000 is not online".into()), "{status:#}");
    ping(&bed.client, "10.7.2.2", 5);
    let before = daemon.forwarded();
    assert!(udp_arrives(&bed, 4000), "the path's packets are routed as without it");
    assert!(!udp_arrives(&bed, 5000), "dropped");
    assert!(udp_arrives(&bed, 6000), "of no path");
    assert_eq!(
        (no_worker(&path(&daemon, "open")["up"]), no_worker(&path(&daemon, "sealed")["dropped"])),
        (1, 1)
    );
    assert!(daemon.forwarded() - before >= 2, "what goes on is forwarded by the fast path");
    let why = path(&daemon, "later")["why_not"]["text"].clone();
    assert_eq!(why, format!("its router {blue_name} is not there (see `millrace routers`)"));
    let explained = daemon.ask(&["explain", "udp 10.7.1.2:9 -> 10.7.2.2:5000", "--router", red]);
    assert_eq!(
        (&explained[0]["path"], &explained[0]["verdict"]),
        (&"sealed".into(), &"drop".into()),
        "{explained:#}"
    );
    // A router that appears later.
    let blue = Namespace::create(blue_name.clone()).unwrap();
    be_router(&blue);
    bed.macvlan(&blue, "x", "p2");
    blue.ip_batch("link set x up\naddr add 10.9.0.2/24 dev x\n").unwrap();
    eventually_true("the router is there", || path(&daemon, "later")["why_not"].is_null());
    drop(blue);
    eventually_true("the router is gone", || !path(&daemon, "later")["why_not"].is_null());
    // Without a daemon forwarding continues, and a path still drops.
    daemon.kill();
    ping(&bed.client, "10.7.2.2", 5);
    assert!(!udp_arrives(&bed, 5000), "nothing gets past a path that drops");
    assert!(udp_arrives(&bed, 4000));
    // The next daemon has no paths.
    let mut next = Daemon::start(&bed.the_box, &bed.name, &["--port", "p1", "--port", "p2"]);
    next.until_accelerated(2);
    assert!(udp_arrives(&bed, 5000));
    assert_eq!(next.ask(&["status"])["paths"], Value::Array(Vec::new()));
    next.stop();
}
