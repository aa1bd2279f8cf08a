//! Several streams at once through every kind of topology, isolation, and the experiments behind the papers' figures,
//! with tiny durations. These tests check structure and plausibility, not speed; `figures/measure.rs` judges what paper
//! P's figures state, and draws those that take minutes. They need root, except for figures in memory, and run in their
//! own namespaces, one at a time.

#[path = "figures/measure.rs"]
mod measure;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
    time::Duration,
};

use lab::{
    compare::{Plan, compare},
    generator::Pace,
    measure::Window,
    record::Recorder,
    subject,
    testbed::{Priority, Testbed},
    topology::Topology,
    workload::{Way, Workload},
};
use serde_json::{Value, json};

/// Slow enough for every subject on a machine with much other work.
const GENTLE_PPS: u64 = 20_000;

fn way(router: u16, from: u8, to: u8) -> Way {
    Way { router, from, to, weight: 1 }
}

/// Every stream arrives completely, through the right router. The bytes are checked before.
fn all_arrives(topology: &Topology, ways: &[Way], subjects: &[&str]) {
    let mut testbed = Testbed::new(topology).unwrap();
    testbed.set_priority(Priority::Rates).unwrap();
    let workload = Workload::across(topology, ways, 16).unwrap();
    for name in subjects {
        let plan = Plan {
            case: "gentle",
            parameters: json!({}),
            subjects: &[name],
            paces: &[Pace::Rate(GENTLE_PPS)],
            repeats: 0..1,
            window: Window::new(Duration::from_millis(100), Duration::from_millis(300)),
        };
        let results = compare(&mut testbed, &workload, &plan, &mut Recorder::none()).unwrap();
        let sample = results[*name][0][0].clone();
        // The router's thread may have to wait for its core so long that a wire is full.
        let full: u64 =
            sample.lost.iter().filter(|(place, _)| place.starts_with("gen.")).map(|(_, lost)| lost).sum();
        assert!(full < sample.sent / 2, "{name} {sample:?}");
        assert_eq!((sample.received + full, sample.unexplained), (sample.sent, 0), "{name} {sample:?}");
        let mut routers: BTreeMap<u16, u64> = BTreeMap::new();
        for (way, stream) in ways.iter().zip(&sample.streams) {
            assert!(stream.sent > 100 && stream.received > 0, "{name} {sample:?}");
            assert!(stream.received == stream.sent || full > 0, "{name} {sample:?}");
            // The sink distinguishes the topology's routers. A subject's own router shows in the bytes that were
            // checked.
            if !name.ends_with("-macvlan") {
                *routers.entry(way.router).or_default() += stream.received;
            }
        }
        assert_eq!((sample.streams.len(), sample.routers), (ways.len(), routers), "{name}");
    }
}

#[test]
#[ignore = "needs root"]
fn streams_of_several_ports_and_routers_arrive_by_the_right_way() {
    const ALL: [&str; 4] = ["linux", "linux-macvlan", "millrace", "millrace-macvlan"];
    let named = |name| Topology::named(name).unwrap();
    all_arrives(&named("three-in"), &[way(0, 0, 3), way(0, 1, 3), way(0, 2, 3)], &ALL);
    all_arrives(&named("pairs"), &[way(1, 0, 1), way(2, 2, 3)], &ALL[..1]);
    all_arrives(&named("pairs"), &[way(1, 0, 1), way(2, 2, 3)], &ALL[2..3]);
    let both_ways = [way(1, 0, 1), way(1, 1, 0)];
    all_arrives(&named("interfaces").with_interfaces(4), &both_ways, &[ALL[0], ALL[2]]);
}

#[test]
#[ignore = "needs root"]
fn baselines_for_two_ports_refuse_other_topologies() {
    let testbed = Testbed::new(&Topology::named("two-in").unwrap()).unwrap();
    for name in ["redirect", "touch"] {
        let error = subject::start(name, &testbed).err().expect("two ports only").to_string();
        assert_eq!(error, format!("{name} forwards between two ports; topology two-in has 3"));
    }
}

fn lab(arguments: &str, last: &Path) -> std::process::Output {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
    let output = lab.args(arguments.split(' ')).arg(last).output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Lines of record `sample`. Asserts that all their packets are explained.
fn samples(lines: &[Value]) -> Vec<&Value> {
    let samples: Vec<&Value> = lines.iter().filter(|line| line["record"] == "sample").collect();
    for line in &samples {
        let unexplained = &line["sample"]["unexplained"];
        assert!(unexplained.is_null() || unexplained == 0, "{line}");
    }
    samples
}

/// Needs no root. Each subject of a figure has its values, once for each repeat, or the reason why not is reported.
#[test]
fn figures_in_memory_are_measured_or_say_why_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut counts_memory = false;
    for (id, subjects, of_each, is) in [
        ("P6", 2, 1, "pps"),
        ("P7", 2, 1, "pps"),
        ("P8", 3, 1, "pps"),
        ("P9", 3, 1, "pps"),
        ("P12", 1, 3, "cpu_share"),
        ("P14", 1, 3, "io_share"),
        ("P15", 1, 13, ""),
        ("P17", 3, 6, "pps"),
    ] {
        lab(&format!("figures --only {id} --seconds 0.1 --repeat 2 --out"), directory.path());
        let lines = lines(&directory.path().join(format!("{id}.jsonl")));
        assert!(lines.iter().any(|line| line["record"] == "figure") && lines[0]["record"] == "run");
        assert!(lines.iter().any(|line| line["record"] == "published" && line["figure"] == id));
        let mut found: BTreeMap<String, usize> = BTreeMap::new();
        for line in samples(&lines) {
            *found.entry(line["subject"].to_string()).or_default() += 1;
            assert!(is.is_empty() || line["sample"][is].as_f64().unwrap() > 0.0, "{line}");
        }
        // Figure 6 has one more where there are two sockets, and figure 14 where the CPU counts memory.
        let may_have_more = ["P6", "P14"].contains(&id) && found.len() == subjects + 1;
        assert!(found.len() == subjects || may_have_more, "{id}: {found:?}");
        assert!(found.values().all(|count| *count == of_each * 2), "{id}: {found:?}");
        let shares = samples(&lines).into_iter().filter_map(|line| line["sample"]["cpu_share"].as_f64());
        let sum: f64 = shares.sum();
        assert!(of_each != 3 || (sum - 2.0 * found.len() as f64).abs() < 1e-9, "{id}: {sum}");
        counts_memory |= id == "P14" && found.len() == 2;
    }
    lab("figures --only P20 --seconds 0.1 --repeat 1 --out", directory.path());
    let lines = lines(&directory.path().join("P20.jsonl"));
    let why = lines.iter().find(|line| line["record"] == "skipped").map(|line| line["why"].as_str().unwrap());
    assert!(why.is_some_and(|why| why.contains("hyper-threads")) || samples(&lines).len() == 4);
    let report = std::fs::read_to_string(directory.path().join("report.md")).unwrap();
    assert!(report.contains("P, fig. 15"));
    assert_eq!(report.contains("was skipped: paths cannot share memory bandwidth"), !counts_memory);
}

#[test]
#[ignore = "needs root"]
fn isolation_reports_the_victims_loss_and_leaves_a_silent_neighbour_out() {
    let directory = tempfile::tempdir().unwrap();
    for topology in ["shared", "pairs"] {
        let path = directory.path().join(topology);
        let arguments = format!(
            "isolation --topology {topology} --victim 5k --rates 0,20k,8M --seconds 0.3 --repeat 1 --json"
        );
        let printed = String::from_utf8(lab(&arguments, &path).stdout).unwrap();
        let lines = lines(&path);
        let samples = samples(&lines);
        for subject in ["linux", "millrace"] {
            let of_subject = samples.iter().filter(|line| line["subject"] == subject);
            let rates: Vec<u64> =
                of_subject.filter_map(|line| line["parameters"]["neighbour_pps"].as_u64()).collect();
            // A measurement that the machine disturbs is repeated.
            assert!(
                rates.is_sorted() && rates.iter().collect::<BTreeSet<_>>().len() == 3,
                "{subject}: {rates:?}"
            );
        }
        for line in &samples {
            let sample = &line["sample"];
            let streams = sample["streams"].as_array().unwrap();
            let of = |what: &str| streams[0][what].as_f64().unwrap();
            // Loss in the window, by rates that are rounded to whole packets: the window has a thousand.
            let loss = (1.0 - of("received_pps") / of("offered_pps")).max(0.0);
            assert!((sample["victim"]["loss"].as_f64().unwrap() - loss).abs() < 2e-3, "{line}");
            let in_all = of("sent") - of("received");
            assert!(sample["victim"]["lost_at_step"].as_f64().unwrap() <= in_all, "{line}");
            let silent = line["parameters"]["neighbour_pps"] == 0;
            assert_eq!(streams.len(), if silent { 1 } else { 2 }, "{line}");
            assert!(sample["lost"].as_object().unwrap().keys().all(|place| !place.is_empty()));
            // The amount depends on the machine; `millrace-lab isolation` measures it.
            let loss = sample["neighbour"]["loss"].as_f64();
            assert!(silent || loss.is_some_and(|loss| (0.0..=1.0).contains(&loss)), "{line}");
        }
        if topology == "shared" {
            // Only shares drop the neighbour's packets, and only while the core is full.
            let cut = |line: &Value| line.pointer("/sample/lost/box.eth1.xdp_dropped").is_some();
            let of = |subject| samples.iter().filter(move |line| line["subject"] == subject);
            assert!(of("millrace-unshared").count() > 0 && !of("millrace-unshared").any(|line| cut(line)));
            // At lower rates, and while other programs have the core, the neighbour loses packets only because of pauses.
            let is_fastest = |line: &Value| line["parameters"]["neighbour_pps"] == 8_000_000;
            let value = |line: &Value, what: &str| line["sample"][what].as_f64().unwrap();
            let is_full = |line: &Value| value(line, "busy") > 0.8;
            let loses = |line: &Value| line["sample"]["neighbour"]["loss"].as_f64() > Some(0.5);
            let overloaded = |line: &Value| is_fastest(line) && is_full(line) && loses(line);
            assert!(of("millrace").all(|line| cut(line) || !overloaded(line)), "{samples:?}");
        }
        assert!(lines.iter().any(|line| line["record"] == "figure" && line["name"] == "isolation"));
        for name in ["linux", "millrace"] {
            let begin = format!("{name}: isolation ");
            assert!(printed.lines().any(|line| line.starts_with(&begin)), "{printed}");
        }
        assert!(printed.contains("lost in all, by place") && !printed.contains("hides losses"), "{printed}");
    }
}

fn figure(directory: &Path, id: &str) -> Vec<Value> {
    lab(&format!("figures --only {id} --seconds 0.1 --repeat 1 --out"), directory);
    let lines = lines(&directory.join(format!("{id}.jsonl")));
    let count = |record: &str| lines.iter().filter(|line| line["record"] == record).count();
    assert!(count("figure") > 0 && count("published") > 0, "{id}");
    let described = lines.iter().find(|line| line["record"] == "figure").unwrap();
    assert!(described["note"].as_str().unwrap().contains("Ours: "), "{id}: what differs from the paper");
    lines
}

/// The points of a figure: subject and place on the x axis.
fn drawn(lines: &[Value], id: &str, x: &str) -> BTreeSet<(String, String)> {
    let of_case = samples(lines).into_iter().filter(|line| line["case"] == id);
    let word = |line: &Value, at: &str| line.pointer(at).map(|value| value.to_string()).unwrap_or_default();
    of_case.map(|line| (word(line, "/subject"), word(line, x))).collect()
}

#[test]
#[ignore = "needs root"]
fn figures_of_more_cores_say_what_is_simulated() {
    let directory = tempfile::tempdir().unwrap();
    let q3 = figure(directory.path(), "Q3");
    let of = |subject: &str| {
        let ours = drawn(&q3, "Q3", "/parameters/cores").into_iter().filter(|(name, _)| name == subject);
        ours.count()
    };
    assert_eq!(["\"linux\"", "\"millrace\"", "\"millrace, simulated\""].map(of), [1, 1, 8]);
    let q8 = figure(directory.path(), "Q8");
    assert!(samples(&q8).iter().all(|line| line["subject"] == "millrace, simulated"), "{q8:?}");
    has_pictures(directory.path(), &["Q, fig. 3: Throughput", "Q, fig. 8: "]);
}

fn has_pictures(directory: &Path, titles: &[&str]) {
    let report = std::fs::read_to_string(directory.join("report.html")).unwrap();
    for title in titles {
        assert!(report.contains(&format!("aria-label=\"{title}")), "no picture of {title}");
    }
}
