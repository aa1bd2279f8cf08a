//! A running daemon places the queues of its ports on cores, reports it, and puts back what it changed.

#[path = "../common/mod.rs"]
mod common;
mod cpusets;
mod polled;
mod splits;

use common::{ifindex, in_new_namespace, run};
use router::cores::{
    Roots,
    affinity::{Affinity, Kernel},
    queues::{Control, NetdevQueues, PortQueues},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    net::UdpSocket,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");
const PATIENCE: Duration = Duration::from_secs(45);

/// Ports p0 and p1, with two queues each, polled by threads, and a daemon on both.
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
        let text = self.millrace(&[words, &["--json"]].concat());
        match words {
            // A line each.
            ["events"] => text.lines().map(serde_json::from_str::<Value>).collect::<Result<_, _>>().ok(),
            _ => serde_json::from_str(&text).ok(),
        }
    }

    #[track_caller]
    fn wait_for(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            // Until the daemon is there, the answer is an error.
            let cores = self.json(&["cores"]).filter(|cores| cores["queues"].is_array());
            if let Some(cores) = cores.filter(&condition) {
                return cores;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(self.file("log")).unwrap_or_default();
        panic!("timed out waiting for {what}: {:?}\n{log}", self.json(&["cores"]).map(|c| c.to_string()));
    }

    fn end(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.wait().unwrap();
    }

    /// The threads of the queues, by port and queue.
    fn threads(&self) -> Vec<u32> {
        let queues = ["p0", "p1"].map(|device| {
            let told = NetdevQueues::ask(ifindex(device), device).unwrap();
            PortQueues::observe(&self.roots, &Kernel, 0, device, &told).unwrap().queues
        });
        let pids = queues.iter().flatten().map(|queue| match queue.control {
            Control::Thread { pid } => pid,
            ref other => panic!("a queue without a thread: {other:?}"),
        });
        pids.collect()
    }

    /// The cores that these threads may run on.
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
        assert_eq!(packed["conditions"], serde_json::json!([]));
        let core = places(&packed)[0].unwrap();
        let only: BTreeSet<u16> = [core as u16].into();
        // The threads are where the daemon reports them.
        let start = Instant::now();
        while bed.allowed() != vec![only.clone(); 4] && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(bed.allowed(), vec![only; 4]);
        let top = bed.millrace(&["top", "--once", "--interval", "300ms"]);
        assert!(
            top.contains(", policy pack\n") && top.contains("0 flow rules, packets are routed"),
            "the head of top: {top}"
        );
        let row =
            |start: &str| top.lines().find(|line| line.trim_start().starts_with(start)).unwrap_or_default();
        assert!(
            row(&format!("{core}  [")).contains("p0/0 p0/1 p1/0 p1/1"),
            "core {core} does not have all queues: {top}"
        );
        // The queue ran, if only for microseconds.
        assert!(
            row("p0        0").contains("  0%  ") && row("p0        0").contains("  thread "),
            "the row of p0/0: {top}"
        );
        assert!(row("host").starts_with("host    fast  kernel            0"), "the row of host: {top}");
        assert!(row("DECISIONS").len() == 9 && top.contains("is given back"), "no decision is shown: {top}");
        // Every queue that was on the other core has an event.
        let events = bed.json(&["events"]).unwrap();
        // If the machine paused, a queue may have looked busy for a moment. That it stays is then an event
        // too.
        let stays = |event: &&Value| event["why"].as_str().is_some_and(|why| why.starts_with("stays"));
        let (stayed, moves): (Vec<&Value>, Vec<&Value>) = events.as_array().unwrap().iter().partition(stays);
        assert!(
            stayed.iter().all(|event| event["from"] == event["to"]),
            "a queue that stays was moved: {events}"
        );
        assert_eq!(moves.len(), 2, "number of moves: {events}");
        for event in moves {
            assert_eq!(event["to"], serde_json::json!([core]), "where a queue was moved to: {event}");
            assert!(
                event["why"].as_str().unwrap().contains("is given back"),
                "another reason for a move: {event}"
            );
        }
        bed.millrace(&["stop"]);
        bed.end();
        assert_eq!(bed.allowed(), before);
    });
}

#[test]
#[ignore = "needs root"]
fn after_a_kill_the_next_daemon_knows_the_original_settings() {
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
        // Another daemon that moves queues is killed too, and then a command puts them back.
        bed.start("policy = \"fixed\"\nfixed = { p0 = [1, 0], p1 = [0, 1] }");
        bed.wait_for("other places", |report| places(report) == [Some(1), Some(0), Some(0), Some(1)]);
        bed.daemon.as_mut().unwrap().kill().unwrap();
        bed.end();
        bed.millrace(&["stop"]);
        assert_eq!(bed.allowed(), before);
        // A daemon that must leave queues alone puts them back.
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
fn queues_go_to_the_other_core_when_one_is_not_allowed() {
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
    /// A group with both cores; `None` if there is no cpuset controller.
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
        assert_eq!(
            report["workloads"],
            serde_json::json!([]),
            "processes whose cores Millrace sets are no workloads"
        );
        bed.daemon.as_mut().unwrap().kill().unwrap();
        bed.end();
        assert_eq!(group.cores(), "0");
        // Another daemon forwards on both cores: applications have both.
        bed.start(&format!("{serve}policy = \"spread\""));
        bed.wait_for("both for applications", |report| {
            report["serve"]["cores"] == serde_json::json!([0, 1]) && sleeper(&[0, 1])
        });
        bed.daemon.as_mut().unwrap().kill().unwrap();
        bed.end();
        // The third daemon packs queues, and is stopped.
        bed.start(&format!("{serve}allowed = \"0\""));
        bed.wait_for("core 1 for applications", |report| {
            report["serve"]["cores"] == serde_json::json!([1]) && sleeper(&[1])
        });
        bed.millrace(&["stop"]);
        bed.end();
        assert_eq!(group.cores(), "0-1");
        assert!(sleeper(&[0, 1]), "the process does not have both cores again");
    });
}

/// Sends as much as it can out of q0, so that p0 receives, until it is dropped or q0 is gone.
struct Traffic(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Traffic {
    fn new() -> Traffic {
        run("ip addr replace 192.0.2.1/24 dev q0");
        run("ip neigh replace 192.0.2.2 lladdr 02:00:00:00:00:02 dev q0");
        let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
        Traffic::of(move |stopped| {
            while !stopped.load(Relaxed) {
                let _ = socket.send_to(&[0; 20], "192.0.2.2:9");
            }
        })
    }

    fn of(send: impl FnOnce(&AtomicBool) + Send + 'static) -> Traffic {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        Traffic(stop, Some(thread::spawn(move || send(&stopped))))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        let _ = self.1.take().map(JoinHandle::join);
    }
}

fn whys(events: &Value) -> Vec<String> {
    let why = |event: &Value| {
        format!("{}/{} {}", event["port"].as_str().unwrap(), event["queue"], event["why"].as_str().unwrap())
    };
    events.as_array().unwrap().iter().map(why).collect()
}

#[test]
#[ignore = "needs root"]
fn a_port_vanishes_under_traffic_with_its_threads_and_comes_back() {
    in_new_namespace(|| {
        let mut bed = Bed::new("g");
        bed.start("");
        // Cores are reported before anything is attached, and a port that vanishes then ends the start.
        bed.wait_for("the daemon to be ready", |_| {
            bed.json(&["status"]).is_some_and(|status| status["ready"] == true)
        });
        let traffic = Traffic::new();
        bed.wait_for("traffic", |report| {
            report["queues"][0]["ran"].as_f64().unwrap() > 0.02
                || report["queues"][1]["ran"].as_f64().unwrap() > 0.02
        });
        run("ip link del p0");
        let began = Instant::now();
        let left = bed.wait_for("two queues left", |report| report["queues"].as_array().unwrap().len() == 2);
        assert!(began.elapsed() < Duration::from_secs(3), "the port was noticed after {:?}", began.elapsed());
        assert!(
            left["queues"].as_array().unwrap().iter().all(|queue| queue["port"] == "p1"),
            "a queue of p0 is left: {left}"
        );
        assert_eq!(left["conditions"], serde_json::json!([]));
        drop(traffic);
        let told = whys(&bed.json(&["events"]).unwrap());
        assert!(
            told.contains(&"p0/0 the queue is gone".to_owned())
                && told.contains(&"p0/1 the queue is gone".into()),
            "the events do not say that both queues are gone: {told:?}"
        );
        // A new device of that name is a different one.
        let queues = "numrxqueues 2 numtxqueues 2";
        run(&format!("ip link add p0 {queues} type veth peer name q0 {queues}"));
        run("ethtool -K p0 gro on");
        run("ip link set p0 up");
        run("ip link set q0 up");
        fs::write(bed.roots.device("p0").join("threaded"), "1").unwrap();
        bed.wait_for("four queues again, on one core", |report| {
            let places: BTreeSet<_> = places(report).into_iter().collect();
            let queues = report["queues"].as_array().unwrap();
            queues.len() == 4 && queues.iter().all(|queue| queue["moved_by"].is_string()) && places.len() == 1
        });
        let told = whys(&bed.json(&["events"]).unwrap());
        assert!(told.contains(&"p0/0 the queue is new".to_owned()), "no event for the new queue: {told:?}");
        bed.millrace(&["stop"]);
        bed.end();
        assert!(
            bed.allowed().iter().all(|cores| cores.len() > 1),
            "a thread is still pinned: {:?}",
            bed.allowed()
        );
    });
}

#[test]
#[ignore = "needs root"]
fn a_queue_that_somebody_moves_is_reported_and_in_the_end_left_alone() {
    in_new_namespace(|| {
        let mut bed = Bed::new("w");
        bed.start("policy = \"fixed\"\nfixed = { p0 = [0, 0], p1 = [0, 0] }");
        bed.wait_for("core 0", |report| places(report) == [Some(0); 4]);
        let thread = bed.threads()[0];
        for times in 1..=3 {
            // A look that begins after the placing confirms it. Only then does a move count as somebody
            // else's.
            thread::sleep(Duration::from_millis(1100));
            Kernel.allow(thread, &[1].into()).unwrap();
            bed.wait_for("the move to be noticed", |report| {
                let conditions = report["conditions"].as_array().unwrap();
                conditions.iter().any(|c| {
                    c["sentence"].as_str().unwrap().contains(&format!("by somebody else, {times} times"))
                })
            });
        }
        let status = bed.json(&["status"]).unwrap();
        assert!(
            status["conditions"].to_string().contains("is left alone for 30 s at a time"),
            "not left alone: {status}"
        );
        thread::sleep(Duration::from_millis(1500));
        assert_eq!(Vec::from_iter(Kernel.allowed(thread).unwrap().cores()), [1]);
        let told = whys(&bed.json(&["events"]).unwrap());
        assert!(
            told.iter().any(|why| why.starts_with("p0/0 moved by somebody else, 3 times so far; it is left")),
            "no such event: {told:?}"
        );
        let log = fs::read_to_string(bed.file("log")).unwrap();
        assert!(
            log.contains("queue 0 of p0 is moved by somebody else"),
            "the log does not report the moves: {log}"
        );
    });
}

#[test]
#[ignore = "needs root"]
fn a_pinned_workload_that_ends_is_reported_and_gives_its_core_back() {
    in_new_namespace(|| {
        let mut bed = Bed::new("e");
        let mut child = Command::new("taskset").args(["-c", "0", "sleep", "60"]).spawn().unwrap();
        bed.start("");
        let id = u64::from(child.id());
        let is_pinned = move |report: &Value| {
            report["workloads"].as_array().unwrap().iter().any(|workload| workload["id"] == id)
        };
        bed.wait_for("the workload", is_pinned);
        // A process that ends sooner has no event of its own.
        thread::sleep(Duration::from_secs(5));
        child.kill().unwrap();
        child.wait().unwrap();
        bed.wait_for("the workload to end", move |report| !is_pinned(report));
        let told = whys(&bed.json(&["events"]).unwrap());
        assert!(
            told.contains(&format!("/0 process sleep ({id}) has ended or is no longer pinned")),
            "no event for the end: {told:?}"
        );
    });
}

#[test]
#[ignore = "needs root"]
fn queues_of_former_ports_are_put_back() {
    in_new_namespace(|| {
        let mut bed = Bed::new("r");
        bed.start("policy = \"fixed\"\nfixed = { p0 = [1, 1], p1 = [1, 1] }");
        bed.wait_for("core 1", |report| places(report) == [Some(1); 4]);
        bed.daemon.as_mut().unwrap().kill().unwrap();
        bed.end();
        let config = bed.file("toml");
        fs::write(&config, "[cores]\npolicy = \"fixed\"\nfixed = { p0 = [1, 1] }").unwrap();
        let child = Command::new(MILLRACE)
            .args(["run", "--instance", &bed.name, "--config", &config, "--port", "p0"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        bed.daemon = Some(child.unwrap());
        bed.wait_for("an answer", |report| places(report) == [Some(1); 2]);
        let widths: Vec<usize> = bed.allowed().iter().map(BTreeSet::len).collect();
        assert!(
            widths[0] == 1 && widths[1] == 1 && widths[2] > 1 && widths[3] > 1,
            "cores that threads may run on: {widths:?}"
        );
    });
}

/// The limit of the wake-up latency of each core.
fn limits() -> Vec<String> {
    let cores = (0..).map(|core| format!("/sys/devices/system/cpu/cpu{core}/power/pm_qos_resume_latency_us"));
    cores.map_while(|file| fs::read_to_string(file).ok()).map(|limit| limit.trim().to_owned()).collect()
}

#[test]
#[ignore = "needs root"]
fn a_core_that_forwards_polls_until_it_forwards_no_more() {
    in_new_namespace(|| {
        let before = limits();
        let driver = fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_default();
        let mut bed = Bed::new("q");
        let settings = "policy = \"fixed\"\nfixed = { p0 = [1, 1], p1 = [1, 1] }\nresume_latency = \"0us\"";
        bed.start(settings);
        bed.wait_for("core 1", |report| places(report) == [Some(1); 4]);
        assert_eq!(limits(), before, "limits while nothing is forwarded");
        let traffic = Traffic::new();
        if ["", "none"].contains(&driver.trim()) {
            let told =
                |report: &Value| report["conditions"].to_string().contains("resume_latency changes nothing");
            bed.wait_for("the trouble that the setting changes nothing", told);
            return;
        }
        let polls = |report: &Value| report["cores"][1]["resume_us"] == 0;
        bed.wait_for("a core that polls", polls);
        let polling = [before[0].clone(), "n/a".into()];
        assert_eq!(limits()[..2], polling, "limits while core 1 alone polls");
        assert!(
            bed.millrace(&["cores"]).contains("awake       core 1 wakes up within 0 us while it forwards")
        );
        drop(traffic);
        let began = Instant::now();
        bed.wait_for("the core to sleep again", |report| !polls(report));
        assert!(
            began.elapsed() > Duration::from_millis(1500),
            "the core sleeps before a hold time has passed: {:?}",
            began.elapsed()
        );
        assert_eq!(limits(), before);
        // A daemon that is killed leaves its setting, until `stop` restores it.
        let traffic = Traffic::new();
        bed.wait_for("a core that polls", polls);
        bed.daemon.as_mut().unwrap().kill().unwrap();
        bed.end();
        assert_eq!(limits()[..2], polling);
        bed.millrace(&["stop"]);
        assert_eq!(limits(), before);
        // A daemon that is asked to end restores it itself.
        bed.start(settings);
        bed.wait_for("a core that polls", polls);
        run(&format!("kill {}", bed.daemon.as_ref().unwrap().id()));
        bed.end();
        assert_eq!(limits(), before);
        drop(traffic);
    });
}

/// Without the right to place threads, a daemon that leaves queues alone starts. Any other fails, and its
/// error names the missing right and how to do without.
#[test]
#[ignore = "needs root"]
fn a_daemon_that_leaves_queues_alone_needs_no_right_to_move_them() {
    in_new_namespace(|| {
        let mut bed = Bed::new("n");
        let (config, log) = (bed.file("toml"), bed.file("log"));
        let start = |cores: &str| {
            fs::write(&config, format!("[cores]\n{cores}")).unwrap();
            Command::new("setpriv")
                .args(["--bounding-set=-sys_nice", "--inh-caps=-sys_nice", "--", MILLRACE])
                .args(["run", "--instance", &bed.name, "--config", &config, "--port", "p0", "--port", "p1"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(fs::File::create(&log).unwrap())
                .spawn()
                .unwrap()
        };
        assert!(!start("policy = \"pack\"").wait().unwrap().success());
        let why = fs::read_to_string(&log).unwrap();
        assert!(why.contains("CAP_SYS_NICE") && why.contains("policy = \"off\""), "the error is: {why}");
        bed.daemon = Some(start("policy = \"off\""));
        let report = bed.wait_for("an answer", |report| report["queues"].as_array().unwrap().len() == 4);
        assert_eq!(report["conditions"], serde_json::json!([]));
    });
}

#[test]
#[ignore = "needs root"]
fn packets_and_polls_of_queues_are_counted() {
    in_new_namespace(|| {
        let mut bed = Bed::new("c");
        bed.start("policy = \"off\"");
        bed.wait_for("all queues", |report| report["queues"][3]["packets_per_s"].is_number());
        run("ip addr add 192.0.2.1/24 dev q0");
        run("ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev q0");
        let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
        let received = || -> u64 {
            let counter = bed.roots.device("p0").join("statistics/rx_packets");
            fs::read_to_string(counter).unwrap().trim().parse().unwrap()
        };
        let (sent, begun) = (10_000, Instant::now());
        for n in 0..sent {
            socket.send_to(&[0; 20], "192.0.2.2:9").unwrap();
            // The ring of a veth has room for 256 packets.
            while n >= received() + 100 {
                assert!(begun.elapsed() < PATIENCE, "{n} packets sent, {} received", received());
                thread::sleep(Duration::from_millis(1));
            }
        }
        let total = |report: &Value, what: &str| -> u64 {
            report["queues"].as_array().unwrap().iter().map(|queue| queue[what].as_u64().unwrap()).sum()
        };
        let report = bed.wait_for("the packets", |report| total(report, "packets") >= sent);
        // Some packets of the kernel come too.
        let (packets, polls) = (total(&report, "packets"), total(&report, "polls"));
        assert!(
            packets < sent + 100 && (1..=packets).contains(&polls),
            "{sent} sent, {packets} counted in {polls} polls"
        );
        assert_eq!(report["conditions"], serde_json::json!([]));
    });
}
