//! What forwarding leaves to applications: spinners, wake-ups, benchmarks and servers on the router's core. These need
//! root, and run in their own namespaces (`make test-root`).

use std::{
    fs,
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use lab::{
    application::{self, Deployment, index},
    command,
    cpu::{Spinners, Threads},
    generator::{Load, Pace},
    measure::{Sample, Window, measure, measure_during},
    namespace, sys,
    testbed::Testbed,
    topology::Topology,
    workload::{Family, Workload},
};

const CORE: usize = 1;

fn testbed() -> (Testbed, u16) {
    let mut testbed = Testbed::for_rates(&Topology::rfc2544()).unwrap();
    let workload = Workload::benchmark(Family::V4, 64, 0..=0);
    testbed.generator.set_targets(workload.targets, workload.frame_bytes).unwrap();
    (testbed, workload.frame_bytes)
}

/// Shares of the core that a spinner and a thread had in half a second, by schedstat. The thread wants `busy` of every
/// 10 ms.
fn shares(spinners: &Spinners, busy: Duration) -> (f64, f64) {
    let period = Duration::from_millis(10);
    let (stop, id) = (AtomicBool::new(false), std::sync::OnceLock::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            sys::set_affinity(0, &[CORE]).unwrap();
            id.set(sys::thread_id()).unwrap();
            let mut next = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                next += period;
                let end = Instant::now() + busy;
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        let thread = Threads(vec![*id.wait()]);
        thread::sleep(Duration::from_millis(50));
        let now =
            || (spinners.on_cpu_ns().unwrap()[&CORE], thread.times().unwrap()[0].busy_ns, Instant::now());
        let before = now();
        thread::sleep(Duration::from_millis(500));
        let after = now();
        stop.store(true, Ordering::Relaxed);
        let ns = (after.2 - before.2).as_nanos() as f64;
        ((after.0 - before.0) as f64 / ns, (after.1 - before.1) as f64 / ns)
    })
}

#[test]
#[ignore = "needs root"]
fn a_spinner_has_what_a_thread_leaves() {
    let spinners = Spinners::start(&[0, CORE]).unwrap();
    assert_eq!(spinners.on_cpu_ns().unwrap().keys().copied().collect::<Vec<_>>(), [0, CORE]);
    let (left, _) = shares(&spinners, Duration::from_millis(20));
    assert!(left < 0.03, "{left:.3} left by a thread that never sleeps");
    // Other work of the machine leaves less, so look for a window without it.
    for _ in 0..20 {
        let (left, busy) = shares(&spinners, Duration::from_millis(5));
        assert!(left + busy < 1.01, "{left:.3} left beside {busy:.3}");
        if left + busy > 0.97 && (busy - 0.5).abs() < 0.03 {
            assert!((left - 0.5).abs() < 0.06, "{left:.3} left beside {busy:.3}");
            return;
        }
        eprintln!("not a quiet window: {left:.3} left beside {busy:.3}");
    }
    eprintln!("NOT TESTED: a thread that sleeps half of the time; the machine has too much else to do");
}

#[test]
#[ignore = "needs root"]
fn a_saturated_router_is_woken_for_fewer_packets() {
    let (mut testbed, frame_bytes) = testbed();
    let mut per_packet = |pace| {
        let sample: Sample = measure(&mut testbed, Load { frame_bytes, pace }, Window::seconds(0.5)).unwrap();
        let activity = sample.activity;
        eprintln!("{pace:?}: {:.0} pps, {activity:?}", sample.received_pps);
        assert!(activity.context_switches_per_s >= activity.wakeups_per_s);
        assert!(activity.net_rx_softirqs_per_s > 0.0, "the sink runs in softirqs");
        activity.wakeups_per_s / sample.received_pps
    };
    let (slow, saturated) = (per_packet(Pace::Rate(10_000)), per_packet(Pace::Saturate));
    assert!((0.1..10.0).contains(&slow), "{slow:.3} wake-ups a packet at 10 kpps");
    assert!(saturated < slow / 3.0, "wake-ups a packet: {slow:.3} at 10 kpps, {saturated:.5} saturated");
}

/// A benchmark on the router's core. Where its programs are not installed, reports that and returns `None`.
fn deploy(name: &str, testbed: &Testbed) -> Option<Deployment> {
    let benchmark = application::by_name(name).unwrap();
    match Deployment::start(benchmark, testbed) {
        Ok(deployment) => Some(deployment),
        Err(error) if format!("{error:#}").contains("not on the PATH") => {
            eprintln!("NOT TESTED: {name}: {error:#}");
            None
        }
        Err(error) => panic!("{name}: {error:#}"),
    }
}

#[test]
#[ignore = "needs root"]
fn every_benchmark_has_a_score() {
    let (testbed, _) = testbed();
    for name in application::NAMES {
        let Some(deployment) = deploy(name, &testbed) else { continue };
        let scores = deployment.run(1).unwrap();
        eprintln!("{name}: {scores:?}");
        assert_eq!(scores.len(), 1);
        assert!(scores[0].per_s > 10.0 && scores[0].errors == 0, "{name}: {scores:?}");
        let latencies = (scores[0].p50_us, scores[0].p99_us);
        if name == "nginx" {
            assert!(latencies.0.unwrap() > 0.0 && latencies.1 >= latencies.0, "{latencies:?}");
        } else {
            assert_eq!(latencies, (None, None), "{name}");
        }
    }
}

#[test]
#[ignore = "needs root"]
fn the_index_is_one_without_traffic_and_small_beside_a_saturated_router() {
    let (mut testbed, frame_bytes) = testbed();
    for name in ["integer", "nginx"] {
        let Some(deployment) = deploy(name, &testbed) else { continue };
        // Other work of the machine moves single measurements.
        let alone = (0..10).find_map(|_| {
            let (first, second) = (deployment.run(1).unwrap(), deployment.run(1).unwrap());
            let index = index(&second, &first).unwrap();
            eprintln!("{name}: {index:.3} without traffic");
            (0.8..1.2).contains(&index).then_some(first)
        });
        let alone = alone.expect("two runs without traffic have about the same score");
        let load = Load { frame_bytes, pace: Pace::Saturate };
        let warm_up = Duration::from_millis(200);
        let (sample, beside) = measure_during(&mut testbed, load, warm_up, || deployment.run(1)).unwrap();
        let index = index(&beside, &alone).unwrap();
        eprintln!("{name}: {index:.3} beside {:.0} pps", sample.received_pps);
        assert!(sample.seconds >= 1.0, "counted while the benchmark ran");
        assert!(index < 0.5, "{name}: {index:.3}");
    }
}

/// `millrace-lab apps` with one server, once its client runs. Killed if the test fails.
struct Apps(Child);

impl Drop for Apps {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        namespace::clean_stale();
    }
}

impl Apps {
    /// Returns it with the ids of both processes. Where nginx or wrk is not installed, reports that and returns `None`.
    fn start() -> Option<(Self, i32, i32)> {
        let arguments = "apps --subjects linux --workloads nginx --rates 100k --seconds 20 --repeat 1";
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
        command.args(arguments.split(' ')).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut apps = Self(command.spawn().unwrap());
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            if let (Some(server), Some(client)) = (apps.process("nginx"), apps.process("wrk")) {
                let cores = |pid| {
                    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
                    status
                        .lines()
                        .find_map(|line| Some(line.strip_prefix("Cpus_allowed_list:\t")?.to_owned()))
                };
                assert_eq!((cores(server).as_deref(), cores(client).as_deref()), (Some("1"), Some("0")));
                return Some((apps, server, client));
            }
            if apps.0.try_wait().unwrap().is_some() {
                let message = std::io::read_to_string(apps.0.stderr.take().unwrap()).unwrap();
                assert!(message.contains("not on the PATH"), "{message}");
                eprintln!("NOT TESTED: {message}");
                return None;
            }
            assert!(Instant::now() < end, "no client after 30 s");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn name(&self) -> String {
        format!("mlr-{}", self.0.id())
    }

    /// A process with this name in the box.
    fn process(&self, name: &str) -> Option<i32> {
        let pids = command::ip(&format!("netns pids {}-box", self.name())).ok()?;
        let named = |pid: &&str| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
        };
        pids.split_whitespace().find(named)?.parse().ok()
    }

    /// How it ended, and its messages.
    fn end(&mut self) -> (ExitStatus, String) {
        let status = command::wait(&mut self.0, Duration::from_secs(30)).unwrap().expect("it ends");
        (status, std::io::read_to_string(self.0.stderr.take().unwrap()).unwrap())
    }

    fn assert_no_process_is_left(&self, processes: &[i32]) {
        let end = Instant::now() + Duration::from_secs(5);
        while processes.iter().any(|&pid| sys::process_exists(pid)) {
            assert!(Instant::now() < end, "still running: {processes:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn assert_no_files_are_left(&self) {
        let left = |directory: &str, prefix: String| {
            let names = fs::read_dir(directory).unwrap().flatten();
            names.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
        };
        assert_eq!(left("/run/netns", format!("{}-", self.name())), 0, "namespaces");
        let prefix = format!("millrace-apps-{}", self.name());
        assert_eq!(left(std::env::temp_dir().to_str().unwrap(), prefix), 0, "temporary files");
    }
}

#[test]
#[ignore = "needs root"]
fn an_interrupted_run_leaves_nothing() {
    let Some((mut apps, server, client)) = Apps::start() else { return };
    command::run(Command::new("kill").args(["-INT", &apps.0.id().to_string()])).unwrap();
    let (status, message) = apps.end();
    assert_eq!(status.code(), Some(130), "{message}");
    apps.assert_no_process_is_left(&[server, client]);
    apps.assert_no_files_are_left();
}

#[test]
#[ignore = "needs root"]
fn a_client_that_dies_is_an_error_and_leaves_nothing() {
    let Some((mut apps, server, client)) = Apps::start() else { return };
    command::run(Command::new("kill").args(["-KILL", &client.to_string()])).unwrap();
    let (status, message) = apps.end();
    assert_eq!(status.code(), Some(1), "{message}");
    assert!(message.contains("wrk") && message.contains("signal: 9"), "{message}");
    apps.assert_no_process_is_left(&[server, client]);
    apps.assert_no_files_are_left();
}

#[test]
#[ignore = "needs root"]
fn programs_end_with_a_lab_that_is_killed() {
    let Some((mut apps, server, client)) = Apps::start() else { return };
    apps.0.kill().unwrap();
    apps.end();
    apps.assert_no_process_is_left(&[server, client]);
    // The next run removes the rest.
    namespace::clean_stale();
    apps.assert_no_files_are_left();
}
