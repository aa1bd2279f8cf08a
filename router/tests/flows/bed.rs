//! A daemon with three ports, and raw sockets on the other ends of their wires.

use crate::common::{frame::Frame, run, wire::Wire};
use logic::net::Mac;
use serde_json::Value;
use std::{
    fs,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");
const PATIENCE: Duration = Duration::from_secs(10);

/// The MAC address of port n of the box; `host_mac` is that of the host behind it.
pub fn port_mac(n: usize) -> Mac {
    Mac([2, 0, 0, 0, 1, n as u8])
}
pub fn host_mac(n: usize) -> Mac {
    Mac([2, 0, 0, 0, 2, n as u8])
}

/// Ports p0 to p2 in the namespace of the calling thread, with hosts 10.0.N.9 behind q0 to q2.
pub struct Bed {
    name: String,
    pub wires: Vec<Wire>,
    daemon: Option<Child>,
    config: String,
}

impl Bed {
    pub fn new(name: &str, config: &str) -> Bed {
        run("sysctl -qw net.ipv4.ip_forward=1");
        let mut bed = Bed {
            name: format!("mrfl{name}{}", std::process::id()),
            wires: Vec::new(),
            daemon: None,
            config: config.into(),
        };
        for n in 0..3 {
            bed.plug(n);
            bed.wires.push(Wire::open(&format!("q{n}")));
        }
        bed.start();
        bed
    }

    /// Makes port n and its wire.
    pub fn plug(&self, n: usize) {
        // The wire's end has another address than the host, so this namespace ignores the packets that come
        // out.
        run(&format!("ip link add p{n} address {} type veth peer name q{n}", port_mac(n)));
        run(&format!("sysctl -qw net.ipv6.conf.p{n}.disable_ipv6=1 net.ipv6.conf.q{n}.disable_ipv6=1"));
        // A veth takes redirected packets only if its peer has NAPI, which GRO turns on.
        run(&format!("ethtool -K q{n} gro on tx off txvlan off tx-vlan-stag-hw-insert off"));
        run(&format!("ip addr add 10.0.{n}.1/24 dev p{n}"));
        run(&format!("ip link set p{n} up"));
        run(&format!("ip link set q{n} up"));
        run(&format!("ip neigh add 10.0.{n}.9 lladdr {} dev p{n} nud permanent", host_mac(n)));
    }

    fn file(&self, end: &str) -> String {
        format!("/tmp/{}.{end}", self.name)
    }

    pub fn start(&mut self) {
        fs::write(self.file("toml"), &self.config).unwrap();
        let log = fs::File::create(self.file("log")).unwrap();
        let child = Command::new(MILLRACE)
            .args(["run", "--instance", &self.name, "--config", &self.file("toml")])
            .args(["--port", "p0", "--port", "p1", "--port", "p2"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.daemon = Some(child.unwrap());
        self.wait_for("three ports", |s| {
            s["ready"] == true && (0..3).all(|n| s["ports"][n]["problems"] == serde_json::json!([]))
        });
    }

    pub fn kill(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// Runs `millrace` with these arguments for this instance.
    pub fn millrace(&self, words: &[&str]) -> Output {
        Command::new("timeout").args(["60", MILLRACE, "--instance", &self.name]).args(words).output().unwrap()
    }

    #[track_caller]
    pub fn flows(&self, words: &[&str]) -> String {
        let output = self.millrace(&[&["flows"], words].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}\n{}", self.log());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The error of a command that must fail.
    #[track_caller]
    pub fn refused(&self, words: &[&str]) -> String {
        let output = self.millrace(&[&["flows"], words].concat());
        assert!(!output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// The rules, as JSON.
    pub fn list(&self, matching: &str) -> Vec<Value> {
        serde_json::from_str(&self.flows(&["list", "--json", matching])).unwrap()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    pub fn status(&self) -> Option<Value> {
        serde_json::from_slice(&self.millrace(&["status", "--json"]).stdout).ok()
    }

    #[track_caller]
    pub fn wait_for(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.status().filter(&condition) {
                return status;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let status = self.status().map(|s| (s["ports"].to_string(), s["flows"].to_string()));
        panic!("timed out waiting for {what}: {status:?}\n{}", self.log());
    }

    /// The program that a port runs.
    pub fn program(&self, n: usize) -> String {
        let link = run(&format!("ip -d link show p{n}"));
        let id = link.split("prog/xdp id ").nth(1).and_then(|rest| rest.split(' ').next());
        let Some(id) = id else { return "none".into() };
        let id: u32 = id.parse().unwrap();
        let found = libbpf_rs::query::ProgInfoIter::default().find(|program| program.id == id);
        found.map(|program| program.name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Asserts that exactly this frame comes out of each of these ports, once, and nothing else.
    #[track_caller]
    pub fn comes_out(&self, at: &[usize], frame: &[u8]) {
        for &n in at {
            let got = self.next(n, Duration::from_secs(5));
            assert_eq!(got.as_deref(), Some(frame), "at q{n}");
        }
        self.nothing_more();
    }

    /// Asserts that nothing more comes out of any port.
    #[track_caller]
    pub fn nothing_more(&self) {
        self.nothing_more_of(&[0, 1, 2]);
    }

    #[track_caller]
    pub fn nothing_more_of(&self, ports: &[usize]) {
        thread::sleep(Duration::from_millis(5));
        for &n in ports {
            assert_eq!(self.wires[n].receive(), None, "a frame came out at q{n}");
        }
    }

    pub fn next(&self, n: usize, patience: Duration) -> Option<Vec<u8>> {
        let start = Instant::now();
        loop {
            if let Some(frame) = self.wires[n].receive() {
                return Some(frame);
            }
            if start.elapsed() > patience {
                return None;
            }
            thread::sleep(Duration::from_micros(200));
        }
    }

    pub fn reason(&self, name: &str) -> u64 {
        let status = self.status().unwrap();
        let reasons = status["reasons"].as_array().unwrap().clone();
        let found = reasons.iter().find(|r| r["reason"] == name);
        found.map_or(0, |r| r["packets"].as_u64().unwrap())
    }
}

/// A frame from the host behind port `from` to the one behind port `to`, through the box.
pub fn routable(from: usize, to: usize) -> Frame {
    let mut frame = Frame::udp4(port_mac(from), &format!("10.0.{from}.9"), &format!("10.0.{to}.9"));
    frame.source = host_mac(from);
    frame
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.millrace(&["stop"]);
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = fs::remove_file(self.file("log"));
        let _ = fs::remove_file(self.file("toml"));
    }
}
