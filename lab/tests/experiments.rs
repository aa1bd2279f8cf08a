//! The experiments as commands: what they write, also after an interruption or when a router dies, and what they
//! refuse. Those that need root build their own namespaces.

use std::{
    io::{BufRead, BufReader, Lines},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use lab::{command, sys, testbed::PORT_IN};
use serde_json::Value;

fn lab(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
    command.args(arguments.split(' ')).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A run of the lab. Killed if the test fails.
struct Run {
    child: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Run {
    fn start(arguments: &str, json: &Path) -> Self {
        let mut child = lab(arguments).arg("--json").arg(json).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, lines }
    }

    fn name(&self) -> String {
        format!("mlr-{}", self.child.id())
    }

    /// The first line with these words.
    fn line_with(&mut self, words: &str) -> String {
        self.lines.find(|line| line.as_ref().unwrap().contains(words)).expect(words).unwrap()
    }

    /// A process with this name in the box, once it runs.
    fn process(&self, name: &str) -> i32 {
        let end = Instant::now() + Duration::from_secs(30);
        let named = |pid: &&str| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
        };
        loop {
            let pids = command::ip(&format!("netns pids {}-box", self.name())).unwrap_or_default();
            if let Some(pid) = pids.split_whitespace().find(named) {
                return pid.parse().unwrap();
            }
            assert!(Instant::now() < end, "no {name}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the box has received this many packets.
    fn until_received(&self, packets: u64) {
        let end = Instant::now() + Duration::from_secs(30);
        let received = || -> Option<u64> {
            let shown = command::ip(&format!("-n {}-box -s -j link show {PORT_IN}", self.name())).ok()?;
            let shown: Value = serde_json::from_str(&shown).ok()?;
            shown.pointer("/0/stats64/rx/packets")?.as_u64()
        };
        while received().is_none_or(|received| received < packets) {
            assert!(Instant::now() < end, "{:?} of {packets} packets received", received());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its exit code and the rest of its messages. Asserts that it left nothing.
    fn end(mut self) -> (Option<i32>, String) {
        let said: Vec<String> = self.lines.by_ref().map(Result::unwrap).collect();
        let code = self.child.wait().unwrap().code();
        let left = |directory: &str, prefix: &str| {
            let names = std::fs::read_dir(directory).into_iter().flatten().flatten();
            let names = names.filter_map(|entry| entry.file_name().into_string().ok());
            names.filter(|name| name.starts_with(prefix)).collect::<Vec<_>>()
        };
        let name = self.name();
        for (directory, prefix) in [
            ("/run/netns", format!("{name}-")),
            ("/sys/fs/bpf/millrace", name.clone()),
            ("/run/millrace", name.clone()),
            ("/run", format!("millrace-{name}-")),
            ("/tmp", format!("millrace-{name}")),
        ] {
            assert_eq!(left(directory, &prefix), [""; 0], "{directory}: {said:?}");
        }
        (code, said.join("\n"))
    }
}

fn document(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
#[ignore = "needs root"]
fn an_interrupted_rfc2544_keeps_what_it_measured_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rfc2544.json");
    let mut run = Run::start("rfc2544 --subject redirect --frames 64 --seconds 0.2", &path);
    let third = run.line_with("[3/");
    assert!(third.contains(" left] 64 bytes, "), "{third}");
    sys::terminate(run.child.id() as i32);
    assert_eq!(run.end().0, Some(130));
    let document = document(&path);
    assert_eq!((&document["interrupted"], &document["results"][0]["frame"]), (&true.into(), &64.into()));
    let is_trial = |line: &&Value| line["case"] == "trial" && line["sample"]["sent"].as_u64() > Some(0);
    assert!(document["lines"].as_array().unwrap().iter().filter(is_trial).count() >= 3);
}

#[test]
#[ignore = "needs root"]
fn an_interrupted_comparison_keeps_every_sample_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("compare.json");
    let arguments = "compare --subjects linux,redirect --pps 10k --seconds 0.2 --repeat 50";
    let mut run = Run::start(arguments, &path);
    let third = run.line_with("[3/100, ");
    assert!(
        third.contains(" left] compare (") && third.contains("): linux #2, 0.01 Mpps offered: "),
        "{third}"
    );
    command::run(Command::new("kill").args(["-INT", &run.child.id().to_string()])).unwrap();
    let (code, said) = run.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains(&format!("the measurements made so far are in {}", path.display())), "{said}");
    let document = document(&path);
    assert_eq!(document["interrupted"], true);
    let of: Vec<_> =
        document["samples"].as_array().unwrap().iter().map(|row| (&row["subject"], &row["repeat"])).collect();
    let [linux, redirect] = ["linux", "redirect"].map(Value::from);
    let [zero, one] = [0, 1].map(Value::from);
    assert_eq!(of, [(&linux, &zero), (&linux, &one), (&redirect, &zero)]);
}

/// The messages when a program of a router is killed while packets go through it.
fn killed(subject: &str, program: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("compare.json");
    let run = Run::start(&format!("compare --subjects {subject} --pps 5k --seconds 3 --repeat 1"), &path);
    let router = run.process(program);
    // The check of the bytes before the run sends fewer.
    run.until_received(1500);
    sys::kill(router);
    let (code, said) = run.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(!sys::process_exists(router));
    let expected = format!("{program} (process {router}) has ended in the middle of the run");
    let document = document(&path);
    assert_eq!(
        (&document["error"], &document["samples"]),
        (&expected.clone().into(), &Value::Array(Vec::new()))
    );
    assert!(said.contains(&expected), "{said}");
    said
}

#[test]
#[ignore = "needs root"]
fn a_daemon_that_dies_is_an_error_and_leaves_nothing_behind() {
    killed("millrace", "millrace");
}

#[test]
#[ignore = "needs root"]
fn a_switch_that_dies_is_an_error_and_leaves_nothing_behind() {
    if Command::new("ovs-vswitchd").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("NOT TESTED: there is no ovs-vswitchd here");
        return;
    }
    killed("ovs-packet", "ovs-vswitchd");
}

#[test]
#[ignore = "needs root"]
fn results_that_cannot_be_written_are_reported_before_anything_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    for command in [
        "compare",
        "rfc2544",
        "capacity",
        "program",
        "tables",
        "scale",
        "overload",
        "latency",
        "route-latency",
        "apps",
        "load",
    ] {
        let path = directory.path().join("none/results");
        let (code, said) = Run::start(command, &path).end();
        let expected = format!(
            "millrace-lab: raw results cannot be written to {}: there is no directory",
            path.display()
        );
        assert_eq!(code, Some(1), "{command}: {said}");
        assert!(said.starts_with(&expected) && said.lines().count() == 1, "{command}: {said}");
    }
}

#[test]
#[ignore = "needs root"]
fn a_table_of_one_family_is_measured_with_that_family() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("capacity.jsonl");
    let options = "--subjects redirect --seconds 0.2 --repeat 1";
    let (code, said) = Run::start(&format!("capacity --routes4 0 --routes6 100 {options}"), &path).end();
    assert_eq!(code, Some(0), "{said}");
    let lines = std::fs::read_to_string(&path).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let samples: Vec<_> = lines.filter(|line| line["record"] == "sample").collect();
    let families: Vec<_> = samples.iter().map(|line| &line["parameters"]["family"]).collect();
    assert_eq!(families, ["IPv6", "IPv6"], "saturated and at a low rate");

    let (code, said) = Run::start(&format!("capacity --routes4 0 --routes6 0 {options}"), &path).end();
    let expected = "millrace-lab: a table without routes: --routes4 or --routes6 above 0";
    assert_eq!((code, said.lines().last()), (Some(1), Some(expected)), "{said}");
}

#[test]
fn bad_input_is_refused_with_the_valid_values() {
    let refused = |arguments: &str| {
        let output = lab(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (arguments, expected) in [
        ("compare --subjects linx", "[possible values: linux, linux-macvlan, "),
        ("rfc2544 --subject linx", "[possible values: linux, linux-macvlan, "),
        ("latency --subjects linux,linx", "[possible values: linux, linux-macvlan, "),
        ("latency --rates 0", "invalid value '0' for '--rates <LIST>': 1 to 20M"),
        ("replay a.pcap --pace 0.5", "neither `recorded` nor a rate: 1 to 20M"),
        ("latency --rates 1G", "not a number, which may end in k or M"),
        ("compare --frame 63", "63 is not in 64..=9018"),
        ("compare --seconds 0", "invalid value '0' for '--seconds <SECONDS>': 0.1 to 600"),
        ("scale --routers 257", "257 is not in 1..=256"),
        ("bench --out /tmp --only nothing", "[possible values: capacity, program, "),
    ] {
        let (code, said) = refused(arguments);
        assert_eq!(code, Some(2), "{arguments}: {said}");
        assert!(said.contains(expected), "{arguments}: {said}");
    }
}

#[test]
#[ignore = "needs root"]
fn a_reset_is_measured_with_and_without_a_process_to_kill() {
    let directory = tempfile::tempdir().unwrap();
    for (subject, events) in
        [("millrace", &["orderly", "killed", "nothing"][..]), ("linux", &["orderly", "nothing"])]
    {
        let path = directory.path().join("reset.json");
        let arguments = format!(
            "rfc2544 --subject {subject} --frames 64 --flows 16 --seconds 0.1 --repeat 1 --only reset --reset-pps 1k"
        );
        let mut run = Run::start(&arguments, &path);
        if subject == "linux" {
            run.line_with("linux: no process to kill");
        }
        let (code, said) = run.end();
        assert_eq!(code, Some(0), "{said}");
        let document = document(&path);
        let found = document["results"][0]["reset"].as_array().unwrap();
        assert_eq!(found.iter().map(|found| found["event"].as_str().unwrap()).collect::<Vec<_>>(), events);
        let lost_without_reset = found.last().unwrap()["lost"]["max"].as_f64().unwrap() as u64;
        for found in found {
            let (trial, event) = (&found["trials"][0], &found["event"]);
            let number = |at: &str| trial.pointer(at).unwrap().as_u64().unwrap();
            // The stream lasts a second and the time of the reset, at 1,000 packets a second.
            assert!(number("/outcome/sent") > 800, "{event}: {trial}");
            let lost = number("/outcome/sent") - number("/outcome/received");
            // A ring holds the packets of a quarter of a second. A busy machine loses as much without a reset.
            assert!(lost <= lost_without_reset, "{event}: {lost} lost: {trial}\n{said}");
            assert!((500_000..1_000_000_000).contains(&number("/gap_ns")), "{event}: {trial}");
        }
    }
}

/// Complete lines of a case.
fn samples(path: &Path, case: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["record"] == "sample" && line["case"] == case).collect()
}

#[test]
#[ignore = "needs root"]
fn four_thousand_interfaces_are_built_and_accelerated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scale.jsonl");
    let run = Run::start("scale --interfaces 2,4096 --subjects millrace --seconds 0.1 --repeat 1", &path);
    let (code, said) = run.end();
    assert_eq!(code, Some(0), "{said}");
    let samples = samples(&path, "interfaces");
    assert_eq!(samples.iter().map(|line| &line["parameters"]["interfaces"]).collect::<Vec<_>>(), [2, 4096]);
    for line in samples {
        assert!(line["targets"] == 4096 && line["sample"]["received"].as_u64() > Some(4096), "{line}");
    }
}

#[test]
#[ignore = "needs root"]
fn an_idle_daemon_is_measured_with_few_routes_and_with_many() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("idle.jsonl");
    let run = Run::start("idle --routes4 20000 --routes6 1000 --seconds 1 --repeat 2", &path);
    let (code, said) = run.end();
    assert_eq!(code, Some(0), "{said}");
    let samples = samples(&path, "idle");
    let routes = |line: &Value| line["parameters"]["routes"].as_u64().unwrap();
    assert_eq!(samples.iter().map(routes).collect::<Vec<_>>(), [0, 0, 21_000, 21_000]);
    for line in &samples {
        let number = |name: &str| line["sample"][name].as_f64().unwrap();
        // It looks at its cores fifty times a second.
        assert!(number("wakeups_per_s") > 0.0 && number("wakeups_per_s") < 100.0, "{line}");
        assert!(number("cpu") > 0.0 && number("cpu") < 0.2, "{line}");
        assert!(number("anonymous_mb") > 0.5 && number("map_mb") > 1.0, "{line}");
    }
    let memory = |line: &Value| line["sample"]["anonymous_mb"].as_f64().unwrap();
    assert!(memory(&samples[3]) > memory(&samples[0]) + 1.0, "{samples:?}");
}

/// Changes of other rules leave the packets' own flows in the cache.
#[test]
#[ignore = "needs root"]
fn rule_changes_leave_the_hit_rate_of_other_flows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("changes.jsonl");
    let (code, said) = Run::start("flow-changes --rates 0,1000000 --seconds 1 --repeat 1", &path).end();
    assert_eq!(code, Some(0), "{said}");
    let samples = samples(&path, "flow-changes");
    let [quiet, busy] = &samples[..] else { panic!("{said}") };
    let figure = |sample: &Value, name: &str| sample[name].as_f64().unwrap();
    assert!(figure(busy, "changes_per_s") > 0.0 && figure(busy, "barriers") > 0.0, "{busy}");
    let (before, now) = (figure(quiet, "cache_hit_rate"), figure(busy, "cache_hit_rate"));
    assert!(before > 0.9 && now > before - 0.05, "{before}, {now}");
}

/// Connections behind a masquerade are fast, and the packets arrive translated (the experiment checks this).
#[test]
#[ignore = "needs root"]
fn connections_behind_a_firewall_become_fast() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("firewall.jsonl");
    let (code, said) = Run::start("firewall --connections 200 --seconds 1 --repeat 1", &path).end();
    assert_eq!(code, Some(0), "{said}");
    let subjects: Vec<_> = samples(&path, "firewall")
        .iter()
        .map(|sample| (sample["subject"].clone(), sample["parameters"]["rules"].clone()))
        .collect();
    let wanted = [("linux", "masquerade"), ("millrace", "masquerade"), ("millrace", "none")];
    assert_eq!(subjects, wanted.map(|(subject, rules)| (subject.into(), rules.into())));
    let delays = samples(&path, "firewall-delay");
    assert!(
        delays.len() == 2 && delays.iter().all(|delay| delay["seconds"].as_f64().unwrap() < 30.0),
        "{delays:?}"
    );
}
