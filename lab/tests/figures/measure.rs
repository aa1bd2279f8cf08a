//! Do the statements of paper P's figures hold here? These are measurements: they are judged on a quiet machine in a
//! release build (`make bench-goals`), and `make test` leaves them out. The ways of a figure take turns. Medians of the
//! turns' ratios count, and rates are per time that threads had a core.
//!
//! Figures that take minutes to draw are drawn here, too: have they every series, record and picture?

use super::*;
use lab::{figures, measure::median};

/// How far shares may differ from their targets, as a part of these. An interruption is charged to the path that it
/// interrupts; if it comes at the end, the others have no time to make up for it.
const FEW_PERCENT: f64 = 0.04;
/// Shares are measured for longer: seconds, and turns.
const SHARES: (f64, u32) = (1.5, 3);
const RATES: (f64, u32) = (0.2, 7);

/// All samples of a figure.
struct Measured(Vec<Value>);

impl Measured {
    /// One value for each turn of a subject, with these parameters.
    fn each(&self, subject: &str, parameters: &Value, value: impl Fn(&Value) -> f64) -> Vec<f64> {
        let is_it = |line: &&Value| line["subject"] == subject && line["parameters"] == *parameters;
        let found: Vec<f64> = self.0.iter().filter(is_it).map(|line| value(&line["sample"])).collect();
        assert!(!found.is_empty(), "no samples of {subject}, {parameters}");
        found
    }

    /// How many times as many packets this subject forwards as the other one.
    fn beats(&self, subject: &str, other: &str, parameters: &Value) -> f64 {
        let [one, other] = [subject, other].map(|subject| self.each(subject, parameters, per_core));
        let ratios: Vec<f64> = one.iter().zip(&other).map(|(one, other)| one / other).collect();
        median(&ratios)
    }

    /// Median of a value of a path.
    fn of_path(&self, subject: &str, path: &str, what: &str) -> f64 {
        median(&self.each(subject, &json!({"path": path}), |sample| sample[what].as_f64().unwrap()))
    }

    /// Medians of a value, by path.
    fn of_paths<const N: usize>(&self, subject: &str, paths: [&str; N], what: &str) -> [f64; N] {
        paths.map(|path| self.of_path(subject, path, what))
    }
}

/// Packets a second of the time in which its threads had a core.
fn per_core(sample: &Value) -> f64 {
    let cpu: Vec<f64> = sample["cpu"].as_array().unwrap().iter().map(|cpu| cpu.as_f64().unwrap()).collect();
    sample["pps"].as_f64().unwrap() * cpu.len() as f64 / cpu.iter().sum::<f64>()
}

/// `Err`: the statement that does not hold.
type Holds = Result<(), String>;

fn at_least(what: &str, value: f64, least: f64) -> Holds {
    if value >= least { Ok(()) } else { Err(format!("{what}: {value:.3}, not {least} or more")) }
}

/// Are these the shares of these weights?
fn are_shares<const N: usize>(what: &str, shares: [f64; N], weights: [f64; N]) -> Holds {
    let sum: f64 = weights.iter().sum();
    let far = |(share, weight): (&f64, &f64)| (share / (weight / sum) - 1.0).abs() > FEW_PERCENT;
    if shares.iter().zip(&weights).any(far) {
        Err(format!("{what}: {shares:.3?} by {weights:?}"))
    } else {
        Ok(())
    }
}

/// Are the rates equal, except for the last runs?
fn are_equal(what: &str, rates: [f64; 3]) -> Holds {
    let most = rates.iter().copied().fold(0.0, f64::max);
    let far = |rate: &f64| rate / most < 0.99;
    if rates.iter().any(far) { Err(format!("{what}: {rates:.0?}")) } else { Ok(()) }
}

/// Measures the figure, and asserts that its statement holds.
fn says(id: &str, (seconds, turns): (f64, u32), statement: impl Fn(&Measured) -> Holds) {
    let directory = tempfile::tempdir().unwrap();
    lab(&format!("figures --only {id} --seconds {seconds} --repeat {turns} --out"), directory.path());
    let lines = lines(&directory.path().join(format!("{id}.jsonl")));
    let measured = Measured(samples(&lines).into_iter().cloned().collect());
    statement(&measured).unwrap_or_else(|why| panic!("{id} does not hold: {why}"));
}

/// For figures of two cores: does this process have two?
fn two_cores() -> bool {
    let cores = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    if !cores {
        eprintln!("NOT TESTED: needs two cores");
    }
    cores
}

#[test]
#[ignore = "a measurement"]
fn one_phase_beats_two() {
    says("P7", RATES, |found| {
        at_least("one phase", found.beats("one phase", "two phases", &json!({})), 1.25)
    });
}

#[test]
#[ignore = "a measurement"]
fn transmit_queues_of_their_own_beat_a_lock_for_each_packet() {
    if two_cores() {
        says("P8", RATES, |found| {
            let (own, locked) = ("a TX queue for each core", "one TX queue, locked for each packet");
            at_least("own queues", found.beats(own, locked, &json!({})), 1.5)
        });
    }
}

#[test]
#[ignore = "a measurement"]
fn receive_queues_of_their_own_beat_handing_on() {
    if two_cores() {
        says("P9", RATES, |found| {
            for other in ["one RX queue, handed on", "one RX queue, a half handed on"] {
                at_least(other, found.beats("an RX queue for each core", other, &json!({})), 1.5)?;
            }
            Ok(())
        });
    }
}

#[test]
#[ignore = "a measurement"]
fn shares_are_equal_by_cost_and_follow_weights() {
    const PATHS: [&str; 3] = ["FP1 (dear)", "FP2", "FP3"];
    says("P11", SHARES, |found| {
        let shares = |subject| found.of_paths(subject, PATHS, "cpu_share");
        let rates = |subject| found.of_paths(subject, PATHS, "pps");
        are_equal("rates by default", rates("default"))?;
        let [dear, second, third] = shares("default");
        at_least("the dear path's share by default", dear / second.max(third), 1.1)?;
        for subject in ["by cost", "by cost, runs of R"] {
            are_shares(subject, shares(subject), [1.0; 3])?;
            let [dear, second, third] = rates(subject);
            at_least(subject, second.min(third) / dear, 1.05)?;
        }
        let weighted = "by cost, weights 33/22/44";
        are_shares(weighted, shares(weighted), [3.0, 2.0, 4.0])
    });
}

const WORKLOADS: [&str; 3] = ["FWD", "RTR", "IPsec"];

#[test]
#[ignore = "a measurement"]
fn equal_rates_are_unequal_shares() {
    says("P12", RATES, |found| {
        are_equal("rates", found.of_paths("default", WORKLOADS, "pps"))?;
        let [fwd, rtr, ipsec] = found.of_paths("default", WORKLOADS, "cpu_share");
        at_least("the dearer ones' shares", rtr.min(ipsec) / fwd, 1.15)
    });
}

#[test]
#[ignore = "a measurement"]
fn equal_shares_are_unequal_rates() {
    says("P13", SHARES, |found| {
        are_shares("equal CPU", found.of_paths("equal CPU", WORKLOADS, "cpu_share"), [1.0; 3])?;
        let [fwd, rtr, ipsec] = found.of_paths("equal CPU", WORKLOADS, "pps");
        at_least("the cheap one's rate", fwd / rtr.max(ipsec), 1.15)
    });
}

/// Each batch takes less a packet than one half as large.
#[test]
#[ignore = "a measurement"]
fn the_cost_of_a_packet_falls_with_the_batch() {
    says("P15", RATES, |found| {
        let cost = |batch: u32| {
            let each = found.each("millrace", &json!({"batch": batch}), |sample| {
                sample["cycles_per_packet"].as_f64().unwrap()
            });
            median(&each)
        };
        for (batch, factor) in [(2, 1.2), (4, 1.15), (8, 1.1), (16, 1.05), (32, 1.0), (64, 1.0)] {
            at_least(&format!("{} to {batch} packets", batch / 2), cost(batch / 2) / cost(batch), factor)?;
        }
        let switch = found.each("millrace", &json!({"regression": "all batches"}), |sample| {
            sample["switch_cycles"].as_f64().unwrap_or(0.0)
        });
        at_least("a switch, of what a packet costs alone", median(&switch) / cost(1), 0.3)
    });
}

#[test]
#[ignore = "a measurement"]
fn one_input_beats_four_in_small_batches() {
    says("P17", RATES, |found| {
        for (batch, least) in [(1, 1.3), (2, 1.2), (4, 1.1)] {
            let more = found.beats("one path for all", "a path for each port", &json!({"batch": batch}));
            at_least(&format!("batches of {batch}"), more, least)?;
        }
        Ok(())
    });
}

/// Values at this place in all samples of a case.
fn distinct(samples: &[&Value], case: &str, at: &str) -> BTreeSet<String> {
    let of_case = samples.iter().filter(|line| line["case"] == case);
    of_case.map(|line| line.pointer(at).unwrap_or(&Value::Null).to_string()).collect()
}

#[test]
#[ignore = "needs root"]
fn figures_have_all_their_series_and_a_picture_each() {
    let directory = tempfile::tempdir().unwrap();
    let mt1 = figure(directory.path(), "MT1");
    let mt1 = samples(&mt1);
    let subjects = ["linux", "millrace", "millrace-unshared"].map(|name| format!("\"{name}\""));
    assert_eq!(distinct(&mt1, "MT1", "/subject"), subjects.into());
    assert_eq!(distinct(&mt1, "MT1", "/parameters/ports").len(), 2);
    let routers = ["VR1", "VR2", "total", "VR1 of 300", "VR2 of 300", "total of 600"];
    let routers: BTreeSet<String> = routers.map(|name| format!("\"{name}\"")).into();
    assert_eq!(distinct(&mt1, "MT1", "/parameters/router"), routers);
    let m5 = figure(directory.path(), "M5");
    let m5 = samples(&m5);
    let subjects =
        ["linux", "linux-macvlan", "millrace", "millrace-macvlan"].map(|name| format!("\"{name}\""));
    assert_eq!(distinct(&m5, "M5", "/subject"), subjects.into());
    assert_eq!(distinct(&m5, "M5", "/parameters/case").len(), 2);
    for line in m5 {
        let streams = if line["parameters"]["case"] == "two into one" { 2 } else { 3 };
        assert_eq!(line["sample"]["streams"].as_array().unwrap().len(), streams, "{line}");
        assert!(line["sample"]["received"].as_u64().unwrap() > 0, "{line}");
    }
    let report = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(report.matches("<svg class=\"chart\"").count() >= 2);
    has_pictures(directory.path(), &["M, table 1: Isolation", "M, fig. 5: Load and throughput"]);
}

#[test]
#[ignore = "needs root"]
fn tables_of_flows_have_all_they_show() {
    let directory = tempfile::tempdir().unwrap();
    let vt4 = figure(directory.path(), "VT4");
    let cases: BTreeSet<String> =
        drawn(&vt4, "VT4", "/parameters/case").into_iter().map(|(_, x)| x).collect();
    assert_eq!(cases.len(), 4, "{cases:?}");
    for line in samples(&vt4).into_iter().filter(|line| line["case"] == "VT4") {
        let machines = line["sample"]["mbps_of_machines"].as_array().unwrap();
        let vm = line["parameters"]["case"].as_str().unwrap().contains("VM");
        let flows = if vm { 1 } else { 2 };
        assert!(machines.len() == flows && machines.iter().all(|mbps| mbps.as_f64() > Some(0.0)), "{line}");
        assert_eq!(line["sample"]["index"].is_number(), vm, "{line}");
    }
    let vt7 = figure(directory.path(), "VT7");
    assert_eq!(drawn(&vt7, "VT7", "/parameters/machine").len(), 3 * 6);
    has_pictures(directory.path(), &["V, table IV: Two flows", "V, table VII: A flow"]);
}

/// One core forwards, runs the application and stands for both cores of the figure. So the values mean nothing here,
/// but every record, curve and picture must be there.
#[test]
#[ignore = "needs root"]
fn the_figure_of_two_cores_has_every_record_and_picture_whatever_the_cores() {
    let directory = tempfile::tempdir().unwrap();
    let options = figures::FiguresOptions {
        paper: None,
        only: Some("Q7".into()),
        out: directory.path().into(),
        seconds: 0.3,
        repeat: 1,
        cores: vec![1],
    };
    figures::run(&options, vec!["test".into()]).unwrap();
    let lines = lines(&directory.path().join("Q7.jsonl"));
    let skipped = lines.iter().find(|line| line["record"] == "skipped");
    assert!(skipped.is_none(), "`make setup` installs what the figure runs: {skipped:?}");
    let all = samples(&lines);
    let (simulated, samples): (Vec<&Value>, Vec<&Value>) =
        all.into_iter().partition(|line| line["subject"] == "millrace, simulated");
    assert_eq!(simulated.len(), 2 * 6);
    let mut seen = BTreeMap::new();
    for line in &samples {
        let (parameters, sample) = (&line["parameters"], &line["sample"]);
        assert_eq!((&parameters["router_cores"], &parameters["cores"]), (&json!([1]), &json!([1])));
        assert!(sample["application"]["index"].is_number(), "{line}");
        let both = parameters["forwarding"] == "both cores";
        assert_eq!(line["targets"], if both { 200 } else { 100 }, "as many through each port");
        let load_pps = parameters["load_pps"].as_u64().unwrap();
        assert_eq!(load_pps > 0, sample["received_pps"].as_f64().unwrap() > 0.0, "{line}");
        let words = ["/subject", "/parameters/forwarding", "/parameters/workload"]
            .map(|at| line.pointer(at).unwrap().as_str().unwrap());
        let loads: &mut Vec<u64> = seen.entry(words).or_default();
        loads.push(load_pps);
    }
    let of = |name| {
        let cores = ["both cores", "one core"];
        cores.map(|who| ["integer", "nginx"].map(|workload| [name, who, workload])).concat()
    };
    let series = ["linux", "millrace"].map(of).concat();
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), series);
    for (series, loads) in seen {
        assert!(loads.len() == 6 && loads.is_sorted() && loads[0] == 0, "{series:?}: {loads:?}");
    }
    let report = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    let titles =
        ["Q, fig. 7: Applications on two cores", "Q, fig. 7: what is forwarded", "Q, fig. 7: a web server"];
    has_pictures(directory.path(), &titles);
    let simulated = "millrace, simulated, one core";
    for series in ["millrace, one core", "millrace, both cores", simulated, "case 1: one core forwards"] {
        assert!(report.contains(series), "no curve of {series}");
    }
}
