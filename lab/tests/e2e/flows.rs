//! Flow rules in a file: they apply from the first packet of the daemon on, and survive it.

use crate::{
    bed::{Bed, ping, run},
    connections::udp,
    daemon::{Daemon, Leftovers, binary, eventually_true},
};
use std::{
    fs,
    net::UdpSocket,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// A configuration, and the file of flow rules beside it.
struct Files(PathBuf);

impl Files {
    fn new(bed: &Bed, rules: &str) -> Files {
        let files = Files(std::env::temp_dir().join(format!("{}-flows", bed.name)));
        fs::create_dir_all(&files.0).unwrap();
        fs::write(files.0.join("rules"), rules).unwrap();
        files.configure("\"p1\", \"p2\"");
        files
    }

    fn configure(&self, ports: &str) {
        let text = format!("ports = [{ports}]\nheartbeat = \"60s\"\n[flows]\nfile = \"rules\"\n");
        fs::write(self.config(), text).unwrap();
    }

    fn config(&self) -> PathBuf {
        self.0.join("millrace.toml")
    }

    fn rules(&self) -> String {
        fs::read_to_string(self.0.join("rules")).unwrap()
    }

    fn launch(&self, bed: &Bed) -> Daemon {
        Daemon::launch(&bed.the_box, &bed.name, &["--config", self.config().to_str().unwrap()])
    }

    fn start(&self, bed: &Bed) -> Daemon {
        Daemon::start(&bed.the_box, &bed.name, &["--config", self.config().to_str().unwrap()])
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Sends numbered packets from the client to the server, a thousand a second, and counts what arrives.
pub struct Stream {
    ends: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    arrived: Arc<AtomicU64>,
    /// Packets before the last that arrived that did not arrive.
    missing: Arc<AtomicU64>,
}

impl Stream {
    pub fn start(bed: &Bed, port: u16) -> Stream {
        let from = udp(&bed.client, "10.8.1.2:0");
        let to: UdpSocket = udp(&bed.server, &format!("10.8.2.2:{port}"));
        to.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let ends = Arc::<AtomicBool>::default();
        let [sent, arrived, missing] = [(); 3].map(|()| Arc::<AtomicU64>::default());
        let (end, count) = (ends.clone(), sent.clone());
        let sender = thread::spawn(move || {
            while !end.load(Relaxed) {
                let number = count.fetch_add(1, Relaxed);
                let _ = from.send_to(&number.to_be_bytes(), format!("10.8.2.2:{port}"));
                thread::sleep(Duration::from_millis(1));
            }
        });
        let (end, count, gaps) = (ends.clone(), arrived.clone(), missing.clone());
        let receiver = thread::spawn(move || {
            let mut number = [0; 8];
            while !end.load(Relaxed) {
                if to.recv(&mut number).is_ok() {
                    let arrived = count.fetch_add(1, Relaxed) + 1;
                    gaps.store((u64::from_be_bytes(number) + 1).saturating_sub(arrived), Relaxed);
                }
            }
        });
        Stream { ends, sent, threads: vec![sender, receiver], arrived, missing }
    }

    pub fn arrived(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    /// Of those sent until now, how many did not arrive?
    pub fn missing(&self) -> u64 {
        let sent = self.sent.load(Relaxed);
        eventually_true("later packets to arrive", || self.arrived() + self.missing.load(Relaxed) > sent);
        self.missing.load(Relaxed)
    }

    /// Waits until this many more are sent.
    pub fn go_on(&self, packets: u64) {
        let end = self.sent.load(Relaxed) + packets;
        eventually_true("packets to be sent", || self.sent.load(Relaxed) >= end);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// What a rule drops never passes again: not when a daemon starts, is killed, leaves, or takes over.
#[test]
#[ignore = "needs root"]
fn a_drop_rule_of_a_file_holds_across_restarts_and_kills() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let files = Files::new(&bed, "# no discard service\nudp,tp_dst=9,actions=drop\n");
    let (dropped, other) = (Stream::start(&bed, 9), Stream::start(&bed, 10));
    eventually_true("Linux to forward", || dropped.arrived() > 20 && other.arrived() > 20);
    let mut daemon = files.start(&bed);
    daemon.until("the rule to be in charge", |status| status["flows"]["in_charge"] == true);
    // Those that were on their way.
    dropped.go_on(100);
    let passed = dropped.arrived();
    daemon.kill();
    dropped.go_on(300);
    let daemon = files.start(&bed);
    dropped.go_on(300);
    daemon.leave();
    dropped.go_on(300);
    let daemon = files.start(&bed);
    daemon.kill();
    let daemon = files.start(&bed);
    dropped.go_on(300);
    assert_eq!(daemon.ask(&["flows", "list"]).as_array().unwrap().len(), 1);
    assert_eq!(dropped.arrived(), passed, "a packet passed the rule");
    let before = other.arrived();
    eventually_true("other packets to pass", || other.arrived() > before + 100);
    daemon.stop();
    eventually_true("Linux to forward again", || dropped.arrived() > passed + 20);
}

/// The rule is in force when the program is attached: the first packet of the daemon obeys it.
#[test]
#[ignore = "needs root"]
fn a_rule_that_sends_to_a_port_loses_nothing_when_daemons_take_over() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    // eth0@if3 UP 02:00:00:00:00:01 <...>
    let link = run(&bed.server, "ip -br link show dev eth0");
    let server = link.split_whitespace().nth(2).unwrap().to_owned();
    let rules = format!("in_port=p1,udp,tp_dst=11,actions=mod_dl_dst:{server},output:p2\n");
    let files = Files::new(&bed, &rules);
    let stream = Stream::start(&bed, 11);
    eventually_true("Linux to forward", || stream.arrived() > 20);
    let mut daemon = files.start(&bed);
    daemon.until("the rule to be in charge", |status| status["flows"]["in_charge"] == true);
    let before = stream.missing();
    for _ in 0..3 {
        daemon.leave();
        stream.go_on(100);
        daemon = files.start(&bed);
        stream.go_on(100);
    }
    let flows = daemon.ask(&["flows", "list"]);
    assert!(flows[0]["packets"].as_u64().unwrap() > 50, "{flows:#}");
    assert_eq!(stream.missing(), before);
}

#[test]
#[ignore = "needs root"]
fn rules_are_saved_and_a_file_that_cannot_be_used_is_refused() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let files = Files::new(&bed, "");
    let daemon = files.start(&bed);
    let flows = [
        "table=1,priority=7,cookie=0x2a,idle_timeout=600,send_flow_rem,udp,tp_dst=9,actions=drop",
        "in_port=p2,ip,nw_src=10.9.0.0/16,actions=mod_nw_dst:10.8.2.2,normal",
        "priority=1,ipv6,actions=output:p1",
        "actions=normal",
    ];
    daemon.millrace(&[&["flows", "add"], &flows[..]].concat());
    let saved = daemon.ask(&["flows", "save"]);
    assert_eq!((&saved["rules"], &saved["left_out"]), (&4.into(), &0.into()), "{saved}");
    assert!(files.rules().contains("\n# ports: 1=p1 2=p2\n"), "{}", files.rules());
    let listed = |daemon: &Daemon| {
        let mut list = daemon.ask(&["flows", "list"]);
        for flow in list.as_array_mut().unwrap() {
            for counted in ["packets", "bytes", "age_s", "idle_s"] {
                flow.as_object_mut().unwrap().remove(counted);
            }
        }
        list
    };
    let before = listed(&daemon);
    assert_eq!(before.as_array().unwrap().len(), 4);
    daemon.leave();
    let daemon = files.start(&bed);
    assert_eq!(listed(&daemon), before);
    assert_eq!(daemon.ask(&["status"])["flows"]["in_charge"], true);

    // A rule is wrong, the file is cut off, is gone: each time the program of the old daemon goes on.
    daemon.leave();
    let rules = files.rules();
    let refused = |part: &str| {
        let words = files.launch(&bed).refused();
        assert!(words.contains(part), "{part}: {words}");
        let links = run(&bed.the_box, "ip -d link show p1");
        assert!(links.contains("xdp"), "{links}");
    };
    for (text, part) in [
        ("udp,actions=output:7\n", "rules:1: \"udp,actions=output:7\": "),
        (&rules[..rules.len() / 2], "rules: the file is cut off"),
    ] {
        fs::write(files.0.join("rules"), text).unwrap();
        refused(part);
        let check =
            bed.the_box.command(binary()).args(["check", "--config"]).arg(files.config()).output().unwrap();
        let said = String::from_utf8_lossy(&check.stdout).into_owned();
        assert!(!check.status.success() && said.contains(part), "{said}");
    }
    fs::remove_file(files.0.join("rules")).unwrap();
    refused("cannot read the flow rules of flows.file");
    fs::write(files.0.join("rules"), rules).unwrap();
    let daemon = files.start(&bed);
    assert_eq!(listed(&daemon), before);
    ping(&bed.client, "10.8.2.2", 5);
}

/// Ports and paths change their places, or go: rules mean the same ones, or none.
#[test]
#[ignore = "needs root"]
fn saved_rules_keep_their_ports_and_paths() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let files = Files::new(&bed, "");
    let configure = |ports: &str, paths: &[&str]| {
        files.configure(ports);
        let path = |(n, name): (usize, &&str)| {
            let port = 4000 + n;
            format!(
                "[[path]]\nname = \"{name}\"\nclass = {{ protocol = \"udp\", destination_port = {port} }}\n\
                 chain = [\"discard\"]\n"
            )
        };
        let paths: String = paths.iter().enumerate().map(path).collect();
        let text = fs::read_to_string(files.config()).unwrap() + "[workers]\ncores = \"0\"\n" + &paths;
        fs::write(files.config(), text).unwrap();
    };
    configure("\"p1\", \"p2\"", &["x", "y"]);
    let daemon = files.start(&bed);
    let flows = [
        "priority=3,in_port=p2,udp,tp_dst=9,actions=output:path:y",
        "priority=2,in_port=p1,udp,tp_dst=9,actions=drop",
        "priority=1,in_port=p2,actions=output:p1",
    ];
    daemon.millrace(&[&["flows", "add"], &flows[..]].concat());
    let of_listed = |daemon: &Daemon| -> Vec<String> {
        let list = daemon.ask(&["flows", "list"]);
        let text = |flow: &serde_json::Value| {
            format!("{} {}", flow["match"].as_str().unwrap(), flow["actions"].as_str().unwrap())
        };
        list.as_array().unwrap().iter().map(text).collect()
    };
    let udp = "udp,in_port=";
    assert_eq!(of_listed(&daemon)[0], format!("{udp}2,tp_dst=9 output:65025"));
    daemon.ask(&["flows", "save"]);
    configure("\"p2\", \"p1\"", &["y"]);
    daemon.leave();
    let daemon = files.start(&bed);
    assert_eq!(of_listed(&daemon)[0], format!("{udp}1,tp_dst=9 output:65024"));
    assert_eq!(of_listed(&daemon)[2], "in_port=1 output:2");
    // A port and the path go while the daemon runs, and rules that name them are saved.
    configure("\"p1\"", &[]);
    assert_eq!(daemon.ask(&["reload"])["changed"], serde_json::json!(["ports", "path"]));
    daemon.ask(&["flows", "save"]);
    daemon.leave();
    let daemon = files.start(&bed);
    assert_eq!(of_listed(&daemon).len(), 3);
    assert!(of_listed(&daemon)[1].starts_with(&format!("{udp}1,")), "p1: {:?}", of_listed(&daemon));
    assert!(of_listed(&daemon)[0].starts_with(&format!("{udp}652")), "no port: {:?}", of_listed(&daemon));
    // They come back.
    configure("\"p1\", \"p2\"", &["y"]);
    daemon.leave();
    let daemon = files.start(&bed);
    assert_eq!(of_listed(&daemon)[0], format!("{udp}2,tp_dst=9 output:65024"));
}
