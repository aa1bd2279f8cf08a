//! Linux is the judge: the same random topologies, routes and packets through plain Linux and through Millrace. What
//! comes out of every port must be byte-equal.
//!
//! Seeded; the seed of a failing round is printed, `MILLRACE_SEED=n` repeats it, `MILLRACE_ROUNDS` sets how many.
//!
//! Left out of the comparison, each for a reason: the IP identification of packets the box itself makes (a kernel
//! counter), IPv4 redirects and "unreachable" for want of a route (`ip_error` limits them by the kernel's clock), ARP and
//! neighbour discovery (caches).

mod changes;
#[path = "../common/mod.rs"]
mod common;
mod packets;
mod topology;

use changes::Change;
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use topology::Topology;

const ROUNDS: u64 = 8;
const PACKETS: usize = 600;
/// Changes in the middle of the traffic of a round, one after another.
const CHANGES: usize = 2;

#[test]
#[ignore = "needs root"]
fn same_packets_with_and_without() {
    let first: u64 =
        env::var("MILLRACE_SEED").ok().map_or_else(|| 20_261_120, |s| s.parse().expect("MILLRACE_SEED"));
    let rounds = env::var("MILLRACE_ROUNDS").ok().map_or(ROUNDS, |s| s.parse().expect("MILLRACE_ROUNDS"));
    for seed in first..first + rounds {
        common::in_new_namespace(move || round(seed));
    }
}

fn round(seed: u64) {
    eprintln!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut topology = Topology::build(&mut rng);
    let frames = packets::generate(&mut rng, &topology, PACKETS);
    let changes: Vec<Change> = (0..CHANGES).map(|_| changes::random(&mut rng)).collect();
    // Some leave a mark on the namespace: rules part tables local and main, routes of kind local have sources looked at.
    for change in &changes {
        topology.change(change.tenant, &change.make);
        topology.change(change.tenant, &change.undo);
    }

    // Twice each: Linux does not always agree with itself (it limits its own ICMP errors by the clock). A difference
    // counts when no run of Linux is like any run of Millrace.
    let twice = |topology: &Topology| [observe(topology, &frames), observe(topology, &frames)];
    let linux = twice(&topology);
    let mut changed = Vec::new();
    for change in &changes {
        topology.change(change.tenant, &change.make);
        changed.push(twice(&topology));
        topology.change(change.tenant, &change.undo);
    }
    let millrace = Daemon::start(&topology);
    compare(seed, "at the start", &topology, &frames, &linux);
    for (change, linux) in changes.iter().zip(&changed) {
        eprintln!(
            "seed {seed}: {}: {}",
            if change.tenant { "tenant" } else { "host" },
            change.make.join("; ")
        );
        topology.in_the_middle_of(&frames, change.tenant, &change.make);
        millrace.settle(change.said, true);
        compare(seed, &format!("after {:?}", change.make), &topology, &frames, linux);
        topology.in_the_middle_of(&frames, change.tenant, &change.undo);
        millrace.settle(change.said, false);
    }
    compare(seed, "after all changes", &topology, &frames, &linux);
    let taken = millrace.stop();
    let total: usize = linux[0].values().sum();
    assert!(total > PACKETS / 8, "seed {seed}: only {total} frames came out at all: the test tests nothing");
    assert!(taken > PACKETS as u64 / 10, "seed {seed}: the fast path took only {taken} of {PACKETS} packets");
    eprintln!("seed {seed}: {total} frames out, {taken} by the fast path");
}

/// Millrace's frames beside Linux's. What differs is looked at twice.
fn compare(seed: u64, when: &str, topology: &Topology, frames: &[(usize, Vec<u8>)], linux: &[Seen; 2]) {
    let mut wrong = differences(linux, &observe(topology, frames));
    if !wrong.is_empty() {
        thread::sleep(Duration::from_millis(1500));
        let again = differences(linux, &observe(topology, frames));
        wrong.retain(|difference| again.contains(difference));
    }
    let (count, wrong) = (wrong.len(), wrong.join("\n"));
    assert!(count == 0, "seed {seed}, {when}: {count} differences\n{wrong}\n{}", topology.describe());
}

/// Sends everything and counts what comes out: (port, normalised frame) -> times.
fn observe(topology: &Topology, frames: &[(usize, Vec<u8>)]) -> Seen {
    let wires: Vec<_> = topology.outside().map(|device| common::wire::Wire::open(&device)).collect();
    let mut seen = BTreeMap::new();
    let mut collect = |for_how_long: Duration| {
        let until = Instant::now() + for_how_long;
        loop {
            let mut quiet = true;
            for (port, wire) in wires.iter().enumerate() {
                while let Some(frame) = wire.receive() {
                    quiet = false;
                    if let Some(key) = topology.normalise(port, frame) {
                        *seen.entry(key).or_insert(0) += 1;
                    }
                }
            }
            if quiet && Instant::now() >= until {
                return;
            }
            if quiet {
                thread::sleep(Duration::from_millis(1));
            }
        }
    };
    for burst in frames.chunks(32) {
        for (port, frame) in burst {
            wires[*port].send(frame);
        }
        collect(Duration::from_millis(2));
    }
    collect(Duration::from_millis(200));
    seen
}

type Seen = BTreeMap<(String, Vec<u8>), usize>;

/// What came out another number of times than in either run of Linux.
fn differences(linux: &[Seen; 2], fast: &Seen) -> Vec<String> {
    let keys: BTreeSet<_> = linux.iter().flat_map(|l| l.keys()).chain(fast.keys()).collect();
    let times = |seen: &Seen, key: &(String, Vec<u8>)| seen.get(key).copied().unwrap_or(0);
    let different = |key: &&(String, Vec<u8>)| linux.iter().all(|l| times(l, key) != times(fast, key));
    let words = |key: &(String, Vec<u8>)| {
        let hex: String = key.1.iter().map(|b| format!("{b:02x}")).collect();
        let [first, second] = [&linux[0], &linux[1]].map(|l| times(l, key));
        format!("{}: Linux {first} and {second} times, Millrace {} times: {hex}", key.0, times(fast, key))
    };
    keys.into_iter().filter(different).map(words).collect()
}

/// The real daemon, in this thread's namespace.
struct Daemon {
    child: Child,
    instance: String,
}

impl Daemon {
    fn start(topology: &Topology) -> Daemon {
        let instance = format!("diff-{}-{}", std::process::id(), topology.ports[0].ifindex);
        let config = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&config, "[policing]\nexception_pps = 0\ncontrol_pps = 0\n").unwrap();
        let mut run = Command::new(env!("CARGO_BIN_EXE_millrace"));
        run.args(["run", "--instance", &instance, "--config", config.path().to_str().unwrap()]);
        for port in &topology.ports {
            run.args(["--port", &port.name]);
        }
        run.args(["--router", &format!("pid:{}", topology.tenant.pid())]);
        let child = run.stderr(Stdio::piped()).spawn().expect("starting millrace");
        let mut daemon = Daemon { child, instance };
        daemon.wait_until_ready();
        daemon
    }

    fn wait_until_ready(&mut self) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let status = self.status().unwrap_or_default();
            if status["ready"] == true
                && status["ports"].as_array().is_some_and(|p| p.iter().all(port_in_use))
            {
                return;
            }
            if self.child.try_wait().unwrap().is_some() || Instant::now() > until {
                let _ = self.child.kill();
                let mut words = String::new();
                let _ = self.child.stderr.take().map(|mut e| e.read_to_string(&mut words));
                panic!("millrace did not become ready:\n{words}\n{status:#}");
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn status(&self) -> Option<serde_json::Value> {
        let output = self.cli(&["status", "--json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    fn cli(&self, words: &[&str]) -> std::process::Output {
        Command::new(env!("CARGO_BIN_EXE_millrace"))
            .args(words)
            .args(["--instance", &self.instance])
            .output()
            .unwrap()
    }

    /// Waits until a change shows: in what is said of routers and interfaces, and in the tables.
    fn settle(&self, said: Option<&str>, expected: bool) {
        let until = Instant::now() + Duration::from_secs(20);
        let told = || {
            let all = [["routers", "--json"], ["interfaces", "--json"]].map(|words| self.cli(&words).stdout);
            String::from_utf8_lossy(&all.concat()).into_owned()
        };
        loop {
            let shows = said.is_none_or(|said| told().contains(said) == expected);
            if shows && self.cli(&["routes", "--verify"]).status.success() {
                return;
            }
            assert!(Instant::now() < until, "{said:?} is not {expected} in {}", told());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Verifies the mirror, stops, and returns how many packets the fast path took.
    fn stop(mut self) -> u64 {
        let status = self.status().expect("status");
        let verify = self.cli(&["routes", "--verify"]);
        assert!(verify.status.success(), "routes --verify: {}", String::from_utf8_lossy(&verify.stdout));
        let stop = self.cli(&["stop"]);
        assert!(stop.status.success(), "stop: {}", String::from_utf8_lossy(&stop.stderr));
        self.child.wait().unwrap();
        let pins = format!("/sys/fs/bpf/millrace-{}", self.instance);
        assert!(!Path::new(&pins).exists(), "{pins} left behind");
        eprintln!("why not by the fast path: {}", reasons(&status));
        status["packets"]["forwarded"].as_u64().expect("packets.forwarded")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.try_wait().ok().flatten().is_none() {
            let _ = self.cli(&["stop"]);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Attached, trusted, and nothing said against it.
fn port_in_use(port: &serde_json::Value) -> bool {
    port["problems"].as_array().is_some_and(Vec::is_empty)
}

fn reasons(status: &serde_json::Value) -> String {
    let list = status["reasons"].as_array().cloned().unwrap_or_default();
    list.iter().map(|r| format!("{} {}", r["reason"], r["packets"])).collect::<Vec<_>>().join(", ")
}
