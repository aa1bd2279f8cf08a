//! The daemon on devices that vanish, come back, are moved away, or refuse native XDP. Veth pairs connect
//! three namespaces: `gen`, the box, and `sink`.

use serde_json::Value;
use std::{
    fs,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");
const PATIENCE: Duration = Duration::from_secs(30);

fn shell(script: &str) -> Output {
    Command::new("timeout").args(["30", "sh", "-ec", script]).output().unwrap()
}

/// Runs a shell script. If it fails, panics with its output.
#[track_caller]
fn sh(script: &str) -> String {
    let output = shell(script);
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{script}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Namespaces and a daemon, which end with it.
struct Bed {
    name: String,
    ports: [&'static str; 2],
    /// The mount namespace of the daemon, as an option of nsenter.
    mounts: String,
    daemon: Option<Child>,
}

impl Bed {
    fn new(name: &str) -> Bed {
        let bed = Bed {
            name: format!("mrhp{name}{}", std::process::id()),
            ports: ["port0", "port1"],
            mounts: "--mount=/proc/self/ns/mnt".into(),
            daemon: None,
        };
        for part in ["box", "gen", "sink", "away"] {
            sh(&format!("ip netns add {0}-{part}; ip -n {0}-{part} link set lo up", bed.name));
        }
        sh(&format!("nsenter --net=/run/netns/{}-box sysctl -qw net.ipv4.ip_forward=1", bed.name));
        bed
    }

    fn log(&self) -> String {
        format!("/tmp/{}.log", self.name)
    }

    /// Makes port `n` of the box and the host at its other end, with these options of `ip link add` for
    /// either.
    #[track_caller]
    fn wire(&self, n: u8, port_options: &str, far_options: &str) {
        let far = format!("{}-{}", self.name, ["gen", "sink"][usize::from(n)]);
        sh(&format!(
            "ip -n {0}-box link add port{n} {port_options} type veth peer name far{n} {far_options} netns {far}
             nsenter --net=/run/netns/{far} ethtool -K far{n} tx off txvlan off tx-vlan-stag-hw-insert off gro on >/dev/null
             ip -n {far} addr add 10.{n}.0.2/24 dev far{n}; ip -n {far} link set far{n} up
             ip -n {far} route add default via 10.{n}.0.1",
            self.name
        ));
        self.address(n);
    }

    #[track_caller]
    fn address(&self, n: u8) {
        sh(&format!(
            "ip -n {0}-box addr add 10.{n}.0.1/24 dev port{n}; ip -n {0}-box link set port{n} up",
            self.name
        ));
    }

    fn start(&mut self, options: &[&str]) {
        let log = fs::File::create(self.log()).unwrap();
        let child = Command::new("nsenter")
            .args([&format!("--net=/run/netns/{}-box", self.name), &self.mounts])
            .args([
                MILLRACE,
                "run",
                "--instance",
                &self.name,
                "--port",
                self.ports[0],
                "--port",
                self.ports[1],
            ])
            .args(options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.daemon = Some(child.unwrap());
    }

    fn kill(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    fn status(&self) -> Option<Value> {
        let output = shell(&format!("{MILLRACE} status --json --instance {}", self.name));
        serde_json::from_slice(&output.stdout).ok()
    }

    #[track_caller]
    fn wait_for(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.status().filter(&condition) {
                return status;
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!(
            "timed out waiting for {what}: {:?}\n{}",
            self.status(),
            fs::read_to_string(self.log()).unwrap_or_default()
        );
    }

    /// Asserts that echo requests and their answers take the fast path. The first ones may only resolve
    /// neighbours.
    #[track_caller]
    fn forwards(&self) {
        self.forwards_of_ten_pings(20);
    }

    /// Asserts that at least `packets` packets, of ten echo requests and ten answers, take the fast path, and
    /// that all arrive.
    #[track_caller]
    fn forwards_of_ten_pings(&self, packets: u64) {
        let forwarded = |status: &Value| status["packets"]["forwarded"].as_u64().unwrap();
        let start = Instant::now();
        let mut seen = Vec::new();
        while start.elapsed() < PATIENCE {
            let before = self.wait_for("an answer", |_| true);
            let pings = shell(&format!(
                "nsenter --net=/run/netns/{}-gen ping -q -c 10 -i 0.02 -w 3 10.1.0.2",
                self.name
            ));
            let more = forwarded(&self.wait_for("an answer", |_| true)) - forwarded(&before);
            if pings.status.success()
                && String::from_utf8_lossy(&pings.stdout).contains(" 0% packet loss")
                && more >= packets
            {
                return;
            }
            seen.push(more);
        }
        panic!("fewer than {packets} packets took the fast path: {seen:?}: {:?}", self.status());
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = shell(&format!("{MILLRACE} stop --instance {}", self.name));
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let names = ["box", "gen", "sink", "away"].map(|part| format!("ip netns del {}-{part};", self.name));
        let _ = shell(&format!("{} rm -f {}", names.concat(), self.log()));
    }
}

fn port(status: &Value, n: usize) -> (&str, String) {
    let port = &status["ports"][n];
    (port["mode"].as_str().unwrap_or_default(), port["problems"].to_string())
}

fn both_attached(status: &Value) -> bool {
    status["ready"] == true && (0..2).all(|n| port(status, n) == ("native", "[]".into()))
}

#[test]
#[ignore = "needs root"]
fn a_port_that_is_made_again_or_comes_back_is_used_again() {
    let mut bed = Bed::new("a");
    bed.wire(0, "", "");
    bed.wire(1, "", "");
    bed.start(&[]);
    bed.wait_for("both ports", both_attached);
    bed.forwards();

    sh(&format!("ip -n {}-box link del port0", bed.name));
    bed.wait_for("the port to vanish", |s| port(s, 0).1.contains("the device is not there"));
    bed.wire(0, "", "");
    bed.wait_for("the new device", both_attached);
    bed.forwards();

    sh(&format!("ip -n {0}-box link set port1 netns {0}-away", bed.name));
    let status = bed.wait_for("the port to leave", |s| port(s, 1).1.contains("the device is not there"));
    assert_eq!(port(&status, 1).0, "detached");
    let device = sh(&format!("ip -n {}-away link show port1", bed.name));
    assert!(!device.contains("xdp"), "the program left with the device: {device}");
    sh(&format!("ip -n {0}-away link set port1 netns {0}-box", bed.name));
    bed.address(1);
    bed.wait_for("the port to return", both_attached);
    bed.forwards();
}

/// A veth has native XDP only if it has at least as many RX queues as its other end has TX queues.
#[test]
#[ignore = "needs root"]
fn a_port_without_native_xdp_is_refused_unless_generic_mode_is_allowed() {
    let mut bed = Bed::new("g");
    bed.wire(0, "numrxqueues 1", "numtxqueues 2");
    bed.wire(1, "", "");
    sh(&format!("nsenter --net=/run/netns/{}-gen ethtool -L far0 tx 2", bed.name));
    bed.start(&[]);
    let start = Instant::now();
    let ended = loop {
        match bed.daemon.as_mut().unwrap().try_wait().unwrap() {
            Some(ended) => break ended,
            None => assert!(start.elapsed() < PATIENCE, "native mode was not refused"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    let log = fs::read_to_string(bed.log()).unwrap();
    assert!(!ended.success());
    for part in ["port port0: native XDP was refused (driver veth, MTU 1500)", "too few queues", "--generic"]
    {
        assert!(log.contains(part), "the log lacks {part:?}: {log}");
    }
    bed.start(&["--generic"]);
    let status = bed.wait_for("both ports", |s| s["ready"] == true && port(s, 1).0 == "native");
    let (mode, problems) = port(&status, 0);
    assert_eq!(mode, "generic");
    // Native ports cannot redirect to this port, so those packets go to the kernel. Its own packets are
    // redirected.
    assert_eq!(problems, "[]");
    let note = status["ports"][0]["note"].to_string();
    for part in ["generic mode", "native XDP was refused", "sent by the kernel"] {
        assert!(note.contains(part), "the note lacks {part:?}: {note}");
    }
    bed.forwards_of_ten_pings(10);
    let reasons = bed.status().unwrap()["reasons"].to_string();
    assert!(reasons.contains("tx_not_ready"), "no packet has the reason tx_not_ready: {reasons}");
}

#[test]
#[ignore = "needs root"]
fn generic_ports_redirect_to_each_other() {
    let mut bed = Bed::new("gg");
    for n in 0..2 {
        bed.wire(n, "numrxqueues 1", "numtxqueues 2");
        sh(&format!(
            "nsenter --net=/run/netns/{}-{} ethtool -L far{n} tx 2",
            bed.name,
            ["gen", "sink"][usize::from(n)]
        ));
    }
    bed.start(&["--generic"]);
    bed.wait_for("both ports", |s| {
        s["ready"] == true && (0..2).all(|n| port(s, n) == ("generic", "[]".into()))
    });
    bed.forwards();
}

/// bpffs takes no names with a dot, and VLAN devices have one.
#[test]
#[ignore = "needs root"]
fn a_port_with_a_dot_in_its_name_is_used_restarted_and_given_back() {
    let mut bed = Bed::new("d");
    bed.wire(0, "", "");
    bed.wire(1, "", "");
    sh(&format!("ip -n {0}-box link set port0 name port0.5", bed.name));
    bed.ports = ["port0.5", "port1"];
    bed.start(&[]);
    bed.wait_for("both ports", both_attached);
    bed.forwards();
    bed.kill();
    let left = shell(&format!("{MILLRACE} status --instance {}", bed.name));
    assert!(String::from_utf8_lossy(&left.stderr).contains("port0.5"), "the port is not named: {left:?}");
    bed.start(&[]);
    bed.wait_for("both ports", both_attached);
    bed.forwards();
    sh(&format!("{MILLRACE} stop --instance {}", bed.name));
    let links = sh(&format!("ip -n {}-box link", bed.name));
    assert!(!links.contains("xdp"), "a program is left: {links}");
}

/// The file system for pins is mounted where it is missing, and unmounted when its last user ends.
#[test]
#[ignore = "needs root"]
fn a_mount_that_the_daemon_made_is_removed_at_the_end() {
    let mut bed = Bed::new("m");
    bed.wire(0, "", "");
    bed.wire(1, "", "");
    let mounted =
        |of: u32| fs::read_to_string(format!("/proc/{of}/mounts")).unwrap().contains(" /sys/fs/bpf bpf ");
    let mut place = Command::new("unshare")
        .args(["-m", "sh", "-c", "while umount /sys/fs/bpf; do :; done; exec sleep 600"])
        .spawn()
        .unwrap();
    let start = Instant::now();
    while fs::read_link(format!("/proc/{}/ns/mnt", place.id())).unwrap()
        == fs::read_link("/proc/self/ns/mnt").unwrap()
        || mounted(place.id())
    {
        assert!(start.elapsed() < PATIENCE, "unshare made no namespace without the mount");
        thread::sleep(Duration::from_millis(20));
    }
    bed.mounts = format!("--mount=/proc/{}/ns/mnt", place.id());
    bed.start(&[]);
    bed.wait_for("both ports", both_attached);
    assert!(mounted(place.id()));
    sh(&format!("{MILLRACE} stop --instance {}", bed.name));
    bed.daemon.as_mut().unwrap().wait().unwrap();
    let left = mounted(place.id());
    place.kill().unwrap();
    place.wait().unwrap();
    assert!(!left, "the mount is still there");
}
