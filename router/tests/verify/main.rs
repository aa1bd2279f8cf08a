//! `millrace routes --verify` with tenants that storm or are over their limits, and with a full table. Needs
//! root: a namespace of its own, and tenants on macvlans.

#[path = "../common/mod.rs"]
mod common;
mod measure;

use common::{Ends, in_new_namespace, run};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use router::api::status::{VerifyReport, VerifyResult, VerifyRouter};
use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    process::{Child, Command, Stdio, id},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");
const PATIENCE: Duration = Duration::from_secs(30);
/// The MAC address of blue's neighbour, as the tables have it.
const OF_BLUE: [u8; 6] = [2, 0, 0, 0, 2, 9];

/// A host and two tenants on one port, and a daemon.
struct Bed {
    instance: String,
    daemon: Child,
    log: tempfile::NamedTempFile,
    tenants: [String; 2],
}

impl Bed {
    /// Makes the bed. The namespace of the calling thread is the host's.
    fn new(options: &str) -> Bed {
        let instance = format!("verify-{}", id());
        run("ip link add p0 type veth peer name q0");
        run("ethtool -K q0 tx off txvlan off tx-vlan-stag-hw-insert off gro on");
        run("ip link set q0 up");
        let tenants = ["red", "blue"].map(|name| format!("{instance}-{name}"));
        for name in &tenants {
            run(&format!("ip netns add {name}"));
            run(&format!("ip link add link p0 name m0 netns {name} type macvlan mode bridge"));
        }
        configure(None, "p0", 0);
        configure(Some(&tenants[0]), "m0", 1);
        configure(Some(&tenants[1]), "m0", 2);
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut config = tempfile::NamedTempFile::new().unwrap();
        write!(config, "ports = [\"p0\"]\n{options}").unwrap();
        let daemon = Command::new(MILLRACE)
            .args(["run", "--instance", &instance, "--config"])
            .arg(config.path())
            .stdout(Stdio::null())
            .stderr(log.reopen().unwrap())
            .spawn()
            .unwrap();
        let bed = Bed { instance, daemon, log, tenants };
        bed.until("all routers to be verified", || {
            let (code, report) = bed.verify()?;
            let verified = |router: &VerifyRouter| router.result == VerifyResult::Verified;
            Some(code == Some(0) && report.routers.len() == 3 && report.routers.iter().all(verified))
        });
        bed
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    fn until(&self, what: &str, holds: impl Fn() -> Option<bool>) {
        let began = Instant::now();
        while holds() != Some(true) {
            assert!(
                began.elapsed() < PATIENCE,
                "timed out waiting for {what}: {:?}\n{}",
                self.verify(),
                self.log()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The exit code, and the report if there is one.
    fn verify(&self) -> Option<(Option<i32>, VerifyReport)> {
        let words = ["routes", "--verify", "--json", "--instance", &self.instance];
        let output = Command::new(MILLRACE).args(words).output().unwrap();
        let report = serde_json::from_slice(&output.stdout).ok()?;
        Some((output.status.code(), report))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = (self.daemon.kill(), self.daemon.wait());
        let _ = Command::new(MILLRACE).args(["stop", "--instance", &self.instance]).output();
        for name in &self.tenants {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

/// Makes a namespace a router with a hundred routes by its only device.
fn configure(namespace: Option<&str>, device: &str, number: u8) {
    let line = format!(
        "sysctl -qw net.ipv4.ip_forward=1
         for d in all default {device}; do sysctl -qw net.ipv4.conf.$d.rp_filter=0; done
         ip addr add 10.{number}.0.1/24 dev {device}; ip link set {device} up
         for n in 8 9; do ip neigh replace 10.{number}.0.$n lladdr 02:00:00:00:0{number}:0$n dev {device}; done
         for n in $(seq 100); do echo route add 10.{number}.$n.0/24 via 10.{number}.0.9; done | ip -batch -"
    );
    let mut command = match namespace {
        Some(_) => Command::new("ip"),
        None => Command::new("sh"),
    };
    if let Some(name) = namespace {
        command.args(["netns", "exec", name, "sh"]);
    }
    let output = command.args(["-ec", &line]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn of<'a>(report: &'a VerifyReport, bed: &Bed, tenant: usize) -> &'a VerifyRouter {
    report.routers.iter().find(|router| router.router == bed.tenants[tenant]).unwrap()
}

fn host(report: &VerifyReport) -> &VerifyRouter {
    report.routers.iter().find(|router| router.router == "host").unwrap()
}

/// Moves the routes of a namespace from one neighbour to the other and back, until `stop` is set: `at_once`
/// routes, and then a pause.
fn storm(namespace: &str, at_once: usize, pause: Duration, stop: &AtomicBool) {
    let mut ip =
        Command::new("ip").args(["-n", namespace, "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = ip.stdin.take().unwrap();
    let mut turn = 0_usize;
    while !stop.load(Relaxed) {
        let mut lines = String::new();
        for _ in 0..at_once {
            let (route, neighbour) = (turn % 100 + 1, 8 + turn / 100 % 2);
            writeln!(lines, "route replace 10.1.{route}.0/24 via 10.1.0.{neighbour}").unwrap();
            turn += 1;
        }
        input.write_all(lines.as_bytes()).unwrap();
        thread::sleep(pause);
    }
    drop(input);
    ip.wait().unwrap();
}

/// Changes the MAC addresses of blue's next hops in the fast path's table, as an error in Millrace would.
fn plant() {
    let mut planted = 0;
    for info in
        libbpf_rs::query::MapInfoIter::default().filter(|map| map.name.as_encoded_bytes() == b"nexthops")
    {
        let map = MapHandle::from_map_id(info.id).unwrap();
        for key in (0..info.max_entries).map(u32::to_ne_bytes) {
            let Some(mut row) = map.lookup(&key, MapFlags::ANY).unwrap() else { continue };
            if let Some(at) = row.windows(6).position(|bytes| bytes == OF_BLUE) {
                row[at + 5] ^= 0x40;
                map.update(&key, &row, MapFlags::ANY).unwrap();
                planted += 1;
            }
        }
    }
    assert!(planted > 0, "no next hop of blue is in the table");
}

#[test]
#[ignore = "needs root"]
fn a_tenant_that_storms_takes_nothing_from_the_result_of_others() {
    in_new_namespace(|| {
        let bed = Bed::new("");
        // The second storm is over the limit of messages.
        for (at_once, pause) in [(20, 5), (100, 10), (1000, 1)] {
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                let _ends = Ends(&stop);
                let storm = || storm(&bed.tenants[0], at_once, Duration::from_millis(pause), &stop);
                scope.spawn(storm);
                thread::sleep(Duration::from_millis(300));
                for _ in 0..5 {
                    let began = Instant::now();
                    let (code, report) = bed.verify().unwrap_or_else(|| panic!("no report: {}", bed.log()));
                    let took = began.elapsed();
                    let red = of(&report, &bed, 0);
                    println!("{at_once} each {pause} ms: {took:?}, {:?}, {:?}", red.result, red.why);
                    assert!(took < Duration::from_secs(30), "the comparison took {took:?}");
                    assert_eq!(host(&report).result, VerifyResult::Verified, "{report:?}");
                    assert_eq!(of(&report, &bed, 1).result, VerifyResult::Verified, "{report:?}");
                    assert_eq!(report.differences, 0, "{report:?}");
                    let expected = if red.result.is_unverified() { 3 } else { 0 };
                    assert_eq!(code, Some(expected), "{report:?}");
                }
            });
        }
        plant();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _ends = Ends(&stop);
            scope.spawn(|| storm(&bed.tenants[0], 100, Duration::from_millis(10), &stop));
            thread::sleep(Duration::from_millis(300));
            let (code, report) = bed.verify().unwrap_or_else(|| panic!("no report: {}", bed.log()));
            assert_eq!(host(&report).result, VerifyResult::Verified, "{report:?}");
            assert_eq!(of(&report, &bed, 1).result, VerifyResult::Differs, "{report:?}");
            assert_eq!((of(&report, &bed, 0).found, code), (0, Some(1)), "{report:?}");
        });
    });
}

#[test]
#[ignore = "needs root"]
fn a_tenant_over_its_limits_is_named_and_takes_nothing_from_others() {
    in_new_namespace(|| {
        let bed = Bed::new("[limits]\nroutes_per_namespace = 1000\n");
        let red = &bed.tenants[0];
        let lines =
            "for n in $(seq 2000); do echo route add 10.9.$((n / 250)).$((n % 250))/32 via 10.1.0.9; done";
        run(&format!("ip netns exec {red} true"));
        let output = Command::new("sh").args(["-ec", &format!("({lines}) | ip -n {red} -batch -")]).output();
        assert!(output.unwrap().status.success());
        bed.until("red to be over its limits", || {
            Some(of(&bed.verify()?.1, &bed, 0).result == VerifyResult::OverLimits)
        });
        let (code, report) = bed.verify().unwrap();
        assert_eq!(code, Some(3), "{report:?}");
        let why = of(&report, &bed, 0).why.as_deref().unwrap_or_default();
        assert!(why.contains("more than 1000 routes"), "another reason: {why}");
        assert_eq!([host(&report), of(&report, &bed, 1)].map(|r| r.result), [VerifyResult::Verified; 2]);
        plant();
        let (code, report) = bed.verify().unwrap();
        assert_eq!((code, of(&report, &bed, 1).result), (Some(1), VerifyResult::Differs), "{report:?}");
    });
}
