//! A running daemon places the queues of its ports on cores, tells of it, and puts back what it changed.

mod common;

use common::{ifindex, in_new_namespace, run};
use router::cores::{
    Roots,
    affinity::{Affinity, Kernel},
    queues::{Control, PortQueues, Told},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");
const PATIENCE: Duration = Duration::from_secs(15);

/// p0 and p1, two queues each, polled by threads; and a daemon on both.
struct Bed {
    name: String,
    roots: Roots,
    daemon: Option<Child>,
}

impl Bed {
    fn new(name: &str) -> Bed {
        run("sysctl -qw net.ipv4.ip_forward=1");
        let roots = Roots::here().unwrap();
        for n in 0..2 {
            let queues = "numrxqueues 2 numtxqueues 2";
            run(&format!("ip link add p{n} {queues} type veth peer name q{n} {queues}"));
            run(&format!("ethtool -K p{n} gro on"));
            run(&format!("ethtool -K q{n} gro on tx off txvlan off tx-vlan-stag-hw-insert off"));
            run(&format!("ip addr add 10.0.{n}.1/24 dev p{n}"));
            run(&format!("ip link set p{n} up"));
            run(&format!("ip link set q{n} up"));
            fs::write(roots.device(&format!("p{n}")).join("threaded"), "1").unwrap();
        }
        Bed { name: format!("mrpl{name}{}", std::process::id()), roots, daemon: None }
    }

    fn start(&mut self, cores: &str) {
        let (config, log) = (self.file("toml"), fs::File::create(self.file("log")).unwrap());
        fs::write(&config, format!("[cores]\n{cores}")).unwrap();
        let child = Command::new(MILLRACE)
            .args(["run", "--instance", &self.name, "--config", &config, "--port", "p0", "--port", "p1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.daemon = Some(child.unwrap());
    }

    fn file(&self, end: &str) -> String {
        format!("/tmp/{}.{end}", self.name)
    }

    fn millrace(&self, words: &[&str]) -> String {
        let output = Command::new("timeout")
            .args(["60", MILLRACE, "--instance", &self.name])
            .args(words)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn json(&self, words: &[&str]) -> Option<Value> {
        serde_json::from_str(&self.millrace(&[words, &["--json"]].concat())).ok()
    }

    #[track_caller]
    fn wait_for(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            // Until it is there errors are told.
            let cores = self.json(&["cores"]).filter(|cores| cores["queues"].is_array());
            if let Some(cores) = cores.filter(&condition) {
                return cores;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(self.file("log")).unwrap_or_default();
        panic!(
            "waited in vain for {what}: {:?}\n{log}",
            self.json(&["cores"]).map(|c| c["queues"].to_string())
        );
    }

    fn end(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.wait().unwrap();
    }

    /// The threads of the queues, by port and queue.
    fn threads(&self) -> Vec<u32> {
        let queues = ["p0", "p1"].map(|device| {
            let told = Told::ask(ifindex(device), device).unwrap();
            PortQueues::observe(&self.roots, 0, device, &told).unwrap().queues
        });
        let pids = queues.iter().flatten().map(|queue| match queue.control {
            Control::Thread { pid } => pid,
            ref other => panic!("{other:?}"),
        });
        pids.collect()
    }

    /// Where they may run.
    fn allowed(&self) -> Vec<BTreeSet<u16>> {
        self.threads().into_iter().map(|pid| Kernel.allowed(pid).unwrap().cores().collect()).collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = (daemon.kill(), daemon.wait());
        }
        self.millrace(&["stop"]);
        for end in ["toml", "log"] {
            let _ = fs::remove_file(self.file(end));
        }
    }
}

fn places(report: &Value) -> Vec<Option<u64>> {
    report["queues"].as_array().unwrap().iter().map(|queue| queue["core"].as_u64()).collect()
}

#[test]
#[ignore = "needs root"]
fn queues_are_packed_and_put_back() {
    in_new_namespace(|| {
        let mut bed = Bed::new("p");
        for (pid, core) in bed.threads().into_iter().zip([0, 1, 0, 1]) {
            Kernel.allow(pid, &[core].into()).unwrap();
        }
        let before = bed.allowed();
        bed.start("");
        let packed = bed.wait_for("all on one core", |report| {
            let places: BTreeSet<_> = places(report).into_iter().collect();
            report["queues"].as_array().unwrap().len() == 4 && places.len() == 1
        });
        assert_eq!((&packed["policy"], &packed["period_ms"]), (&"pack".into(), &20.into()));
        assert!(packed["queues"][0]["moved_by"].as_str().unwrap().starts_with("thread "));
        assert_eq!(packed["troubles"], serde_json::json!([]));
        let core = places(&packed)[0].unwrap();
        let only: BTreeSet<u16> = [core as u16].into();
        // What the daemon believes is so.
        let start = Instant::now();
        while bed.allowed() != vec![only.clone(); 4] && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(bed.allowed(), vec![only; 4]);
        let top = bed.millrace(&["top", "--once", "--interval", "300ms"]);
        assert!(top.contains(", policy pack\n") && top.contains("0 flow rules, packets are routed"), "{top}");
        let row =
            |start: &str| top.lines().find(|line| line.trim_start().starts_with(start)).unwrap_or_default();
        assert!(row(&format!("{core}  [")).contains("p0/0 p0/1 p1/0 p1/1"), "{top}");
        // It ran, if only for microseconds.
        assert!(row("p0        0").contains("  0%  ") && row("p0        0").contains("  thread "), "{top}");
        assert!(row("host").starts_with("host    fast  kernel            0"), "{top}");
        assert!(row("DECISIONS").len() == 9 && top.contains("is given back"), "{top}");
        // Every queue that was elsewhere has its event.
        let events = bed.json(&["events"]).unwrap();
        assert_eq!(events.as_array().unwrap().len(), 2, "{events}");
        for event in events.as_array().unwrap() {
            assert_eq!(event["to"], serde_json::json!([core]), "{event}");
            assert!(event["why"].as_str().unwrap().contains("is given back"), "{event}");
        }
        bed.millrace(&["stop"]);
        bed.end();
        assert_eq!(bed.allowed(), before);
    });
}

#[test]
#[ignore = "needs root"]
fn after_a_kill_the_next_one_knows_what_was() {
    in_new_namespace(|| {
        let mut bed = Bed::new("k");
        let before = bed.allowed();
        let fixed = "policy = \"fixed\"\nfixed = { p0 = [0, 1], p1 = [1, 0] }";
        let placed = [Some(0), Some(1), Some(1), Some(0)];
        bed.start(fixed);
        bed.wait_for("the places of the configuration", |report| places(report) == placed);
        bed.daemon.as_mut().unwrap().kill().unwrap();
        bed.end();
        let stayed: Vec<BTreeSet<u16>> = [0, 1, 1, 0].map(|core| [core].into()).into();
        assert_eq!(bed.allowed(), stayed);
        // Another daemon that moves queues, and a command without one.
        bed.start("policy = \"fixed\"\nfixed = { p0 = [1, 0], p1 = [0, 1] }");
        bed.wait_for("other places", |report| places(report) == [Some(1), Some(0), Some(0), Some(1)]);
        bed.daemon.as_mut().unwrap().kill().unwrap();
        bed.end();
        bed.millrace(&["stop"]);
        assert_eq!(bed.allowed(), before);
        // One that shall leave queues alone puts them back.
        bed.start(fixed);
        bed.wait_for("the places of the configuration", |report| places(report) == placed);
        bed.daemon.as_mut().unwrap().kill().unwrap();
        bed.end();
        bed.start("policy = \"off\"");
        bed.wait_for("an answer", |report| report["policy"] == "off");
        assert_eq!(bed.allowed(), before);
    });
}

#[test]
#[ignore = "needs root"]
fn the_other_core_when_one_is_not_allowed() {
    in_new_namespace(|| {
        let mut bed = Bed::new("a");
        bed.start("allowed = \"1\"");
        let report = bed.wait_for("core 1", |report| places(report) == [Some(1); 4]);
        let may: Vec<&Value> =
            report["cores"].as_array().unwrap().iter().map(|c| &c["may_forward"]).collect();
        assert_eq!((may[0], may[1]), (&false.into(), &true.into()));
        bed.wait_for("roles", |report| {
            report["cores"][1]["role"] == "forward" || report["cores"][1]["role"] == "both"
        });
    });
}

/// A control group of the cpuset controller with a process in it.
struct Group {
    directory: PathBuf,
    sleeper: Child,
}

impl Group {
    /// With both cores; none where the controller is not to be had.
    fn new(name: &str) -> Option<Group> {
        let above = ["/sys/fs/cgroup/cpuset", "/sys/fs/cgroup"].map(PathBuf::from);
        let above = above.into_iter().find(|above| {
            let effective = ["cpuset.cpus.effective", "cpuset.effective_cpus"];
            effective.iter().any(|file| above.join(file).exists())
        })?;
        let directory = above.join(name);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("cpuset.cpus"), "0-1").unwrap();
        fs::write(directory.join("cpuset.mems"), "0").unwrap();
        let sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        fs::write(directory.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
        Some(Group { directory, sleeper })
    }

    fn cores(&self) -> String {
        fs::read_to_string(self.directory.join("cpuset.cpus")).unwrap().trim().to_owned()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = (self.sleeper.kill(), self.sleeper.wait());
        let gone = Instant::now() + PATIENCE;
        while fs::remove_dir(&self.directory).is_err() && Instant::now() < gone {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
#[ignore = "needs root"]
fn applications_have_the_cores_that_do_not_forward() {
    in_new_namespace(|| {
        let mut bed = Bed::new("s");
        let Some(group) = Group::new(&bed.name) else {
            println!("SKIPPED: no cpuset controller");
            return;
        };
        let serve = format!("serve = {:?}\n", group.directory);
        let sleeper = |cores: &[u16]| {
            let allowed: Vec<u16> = Kernel.allowed(group.sleeper.id()).unwrap().cores().collect();
            allowed == cores
        };
        bed.start(&format!("{serve}policy = \"fixed\"\nfixed = {{ p0 = [1, 1], p1 = [1, 1] }}"));
        let report = bed.wait_for("core 0 for applications", |report| {
            report["serve"]["cores"] == serde_json::json!([0]) && sleeper(&[0])
        });
        assert_eq!(report["workloads"], serde_json::json!([]), "those whose cores follow are none");
        bed.daemon.as_mut().unwrap().kill().unwrap();
        bed.end();
        assert_eq!(group.cores(), "0");
        // Another one, which forwards on both: applications have both.
        bed.start(&format!("{serve}policy = \"spread\""));
        bed.wait_for("both for applications", |report| {
            report["serve"]["cores"] == serde_json::json!([0, 1]) && sleeper(&[0, 1])
        });
        bed.daemon.as_mut().unwrap().kill().unwrap();
        bed.end();
        // And one that packs, and ends as it should.
        bed.start(&format!("{serve}allowed = \"0\""));
        bed.wait_for("core 1 for applications", |report| {
            report["serve"]["cores"] == serde_json::json!([1]) && sleeper(&[1])
        });
        bed.millrace(&["stop"]);
        bed.end();
        assert_eq!(group.cores(), "0-1");
        assert!(sleeper(&[0, 1]));
    });
}
