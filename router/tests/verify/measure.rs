//! How long a comparison takes with a full table in the host's namespace, and how long the control thread
//! stands still during it.
//!
//! ```text
//! MILLRACE_PREFIXES=internet-prefixes.txt.gz cargo test --release -p millrace --test verify -- --ignored --nocapture measure
//! ```

use super::{MILLRACE, PATIENCE};
use crate::common::{Ends, in_new_namespace, run};
use router::{base::instance::Instance, daemon::client};
use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Child, Command, Stdio, id},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Next hops that the routes share.
const GATEWAYS: usize = 64;
const ROUNDS: usize = 5;

struct Daemon {
    instance: String,
    child: Child,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
        let _ = Command::new(MILLRACE).args(["stop", "--instance", &self.instance]).output();
    }
}

impl Daemon {
    /// A value in kB of /proc/PID/status.
    fn kib(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_matches([':', ' ', '\t']).split(' ').next().unwrap().parse().unwrap()
    }

    fn socket(&self) -> PathBuf {
        Instance::new(Some(self.instance.parse().unwrap())).socket()
    }

    /// The times in ms that short requests to the control thread take, sent one after another until `stop` is
    /// set.
    fn answers(&self, stop: &AtomicBool) -> Vec<f64> {
        let socket = self.socket();
        let mut times = Vec::new();
        while !stop.load(Relaxed) {
            let began = Instant::now();
            client::call::<serde_json::Value>(&socket, "GET", "/route?address=10.0.0.9", None, PATIENCE)
                .unwrap();
            times.push(began.elapsed().as_secs_f64() * 1e3);
            thread::sleep(Duration::from_micros(200));
        }
        times
    }

    fn verify(&self) -> serde_json::Value {
        client::call(&self.socket(), "GET", "/verify", None, PATIENCE * 2).unwrap()
    }
}

fn line(what: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!(
        "{what}: {} answers, median {:.2} ms, 99 % {:.2} ms, longest three {:.2?} ms",
        times.len(),
        at(0.5),
        at(0.99),
        &times[times.len().saturating_sub(3)..]
    );
}

/// Loads the prefixes of MILLRACE_PREFIXES, and returns how many.
fn load() -> usize {
    let path = std::env::var("MILLRACE_PREFIXES").expect("MILLRACE_PREFIXES names a file of prefixes");
    let cat = if path.ends_with(".gz") { "zcat" } else { "cat" };
    let text = Command::new(cat).arg(path).output().unwrap().stdout;
    let mut lines = String::new();
    let mut count = 0;
    for prefix in String::from_utf8(text).unwrap().lines() {
        let gateway = 2 + count % GATEWAYS;
        match prefix.contains(':') {
            true => writeln!(lines, "route add {prefix} via fd00::{gateway:x}").unwrap(),
            false => writeln!(lines, "route add {prefix} via 10.255.0.{gateway}").unwrap(),
        }
        count += 1;
    }
    // A few of the real prefixes contain the next hops' own addresses.
    let ip = Command::new("ip").args(["-force", "-batch", "-"]).stdin(Stdio::piped()).spawn();
    let mut ip = ip.unwrap();
    ip.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    ip.wait().unwrap();
    count
}

#[test]
#[ignore = "measures; needs root and a file of prefixes"]
fn a_comparison_with_a_full_table() {
    in_new_namespace(|| {
        run("ip link add p0 type veth peer name q0");
        run("ethtool -K q0 tx off txvlan off tx-vlan-stag-hw-insert off gro on");
        run("ip link set q0 up");
        run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0");
        run(
            "sysctl -qw net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.p0.rp_filter=0 net.ipv6.route.max_size=2000000",
        );
        run("ip addr add 10.255.0.1/24 dev p0");
        run("ip addr add fd00::1/64 dev p0 nodad");
        run("ip link set p0 up");
        for n in 2..2 + GATEWAYS {
            run(&format!("ip neigh replace 10.255.0.{n} lladdr 02:00:00:00:00:{n:02x} dev p0"));
            run(&format!("ip neigh replace fd00::{n:x} lladdr 02:00:00:00:00:{n:02x} dev p0"));
        }
        let began = Instant::now();
        let count = load();
        println!("{count} prefixes in the kernel after {:.1?}", began.elapsed());
        let instance = format!("verify-{}", id());
        let words = ["run", "--port", "p0", "--instance", &instance];
        let child = Command::new(MILLRACE).args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let daemon = Daemon { instance, child: child.unwrap() };
        let began = Instant::now();
        while client::call::<serde_json::Value>(&daemon.socket(), "GET", "/status", None, PATIENCE).is_err() {
            assert!(began.elapsed() < PATIENCE, "the daemon did not answer");
            thread::sleep(Duration::from_millis(100));
        }
        thread::sleep(Duration::from_secs(3));
        let measured = |body: &dyn Fn()| {
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                let answers = scope.spawn(|| daemon.answers(&stop));
                {
                    let _ends = Ends(&stop);
                    body();
                }
                answers.join().unwrap()
            })
        };
        line("no comparison", measured(&|| thread::sleep(Duration::from_secs(5))));
        println!("resident before the first comparison: {} KiB", daemon.kib("VmRSS"));
        for _ in 0..ROUNDS {
            fs::write(format!("/proc/{}/clear_refs", daemon.child.id()), "5").unwrap();
            let before = daemon.kib("VmRSS");
            let began = Instant::now();
            let answers = measured(&|| {
                let report = daemon.verify();
                let router = &report["routers"][0];
                println!(
                    "verified in {:.2?}: {}, asked {}, compared {}, differences {}",
                    began.elapsed(),
                    router["result"],
                    router["asked"],
                    router["compared"],
                    report["differences"]
                );
            });
            let (most, after) = (daemon.kib("VmHWM"), daemon.kib("VmRSS"));
            line("meanwhile", answers);
            println!("resident: {before} KiB before, {most} KiB at most, {after} KiB after");
        }
    });
}
