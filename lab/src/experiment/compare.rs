//! `millrace-lab compare`: subjects on the same packets in the same run, alternately, and what each leaves of the
//! router's core to applications.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use anyhow::{Result, bail, ensure};
use clap::{Args, value_parser};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Sampling, Subjects, fit_mtu, print_head, print_row, show, some_packets_per_second, traffic::Traffic,
};
use crate::{
    compare::{Plan, compare},
    cpu::Spinners,
    generator::{MAX_FRAME, Pace},
    measure::{ratios, spread},
    packet::{ETHERNET_BYTES, FCS_BYTES, STANDARD_MTU, Target},
    record::{self, Output, Recorder},
    testbed::Testbed,
    topology::Topology,
    workload::Workload,
};

/// What to compare.
#[derive(Args, Clone, Debug)]
pub struct CompareOptions {
    #[command(flatten)]
    pub(super) subjects: Subjects,
    /// Frame length in bytes, FCS included: 64 to 9018. Above 3404 it needs --pps; above 1518 not all subjects can run
    /// [default: the shortest, 64 over IPv4]
    #[arg(long, value_name = "BYTES", value_parser = value_parser!(u16).range(64..=9018), conflicts_with = "imix")]
    frame: Option<u16>,
    #[command(flatten)]
    traffic: Traffic,
    /// Packets per second offered, up to 20M; k and M are thousands and millions. It shows what each subject leaves of
    /// the core at the same work [default: as many as it can carry]
    #[arg(long, value_parser = some_packets_per_second)]
    pps: Option<u64>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

/// One measurement, as in the JSON file.
#[derive(Clone, Debug, Serialize)]
struct Row {
    subject: String,
    repeat: usize,
    mpps: f64,
    ns_per_packet: Option<f64>,
    loss: f64,
    cpu_left: Option<f64>,
}

/// Subjects that forward frames of more than 1518 bytes.
const LARGE: [&str; 6] = ["linux", "linux-macvlan", "redirect", "touch", "millrace", "millrace-macvlan"];

impl CompareOptions {
    fn workload(&self) -> Workload {
        let mut workload = self.traffic.workload();
        workload.frame_bytes = self.frame.map_or(workload.frame_bytes, |frame| frame - FCS_BYTES);
        workload
    }

    /// Fails if this cannot be measured.
    fn check(&self, workload: &Workload) -> Result<()> {
        let (frame_bytes, frame) = (workload.frame_bytes, workload.frame_bytes + FCS_BYTES);
        let shortest = workload.targets.iter().map(Target::min_frame).max().unwrap_or_default();
        ensure!(
            frame_bytes >= shortest,
            "frames of {frame} bytes are too short for what they carry: at least {}",
            shortest + FCS_BYTES
        );
        ensure!(
            frame_bytes <= MAX_FRAME || self.pps.is_some(),
            "frames of {frame} bytes can only be sent at a rate: add --pps"
        );
        let unable = self.subjects.names().into_iter().find(|name| !LARGE.contains(name));
        match unable {
            Some(name) if frame_bytes > ETHERNET_BYTES + STANDARD_MTU => bail!(
                "{name} does not forward frames of {frame} bytes; these do: --subjects {}",
                LARGE.join(",")
            ),
            _ => Ok(()),
        }
    }
}

pub(super) fn run(options: &CompareOptions, output: &Output) -> Result<()> {
    let workload = options.workload();
    options.check(&workload)?;
    let topology = Topology::rfc2544();
    let mut testbed = Testbed::for_rates(&topology)?;
    fit_mtu(&testbed, workload.frame_bytes)?;
    testbed.spinners = Spinners::start(&topology.cores.router)?;
    let subjects = options.subjects.names();
    let mut parameters = options.traffic.parameters(&workload);
    parameters["pps"] = json!(options.pps);
    let plan = Plan {
        case: "compare",
        parameters: parameters.clone(),
        subjects: &subjects,
        paces: &[options.pps.map_or(Pace::Saturate, Pace::Rate)],
        repeats: 0..options.sampling.repeat.into(),
        window: options.sampling.window(),
    };
    let lines = Rc::new(RefCell::new(Vec::new()));
    let write = {
        let (lines, output, options) = (lines.clone(), output.clone(), options.clone());
        move |compared: &Result<()>| {
            let subjects = options.subjects.names();
            output.document(document(&parameters, &subjects, &lines.borrow(), compared))
        }
    };
    let mut recorder = {
        let (lines, write) = (lines.clone(), write.clone());
        Recorder::each(move |line| {
            lines.borrow_mut().push(line.clone());
            write(&Ok(()))
        })
    };
    let compared = compare(&mut testbed, &workload, &plan, &mut recorder).map(drop);
    write(&compared)?;
    print(options, &subjects, &rows(&subjects, &lines.borrow()));
    compared
}

fn document(parameters: &Value, subjects: &[&str], lines: &[Value], compared: &Result<()>) -> Value {
    let rows = rows(subjects, lines);
    let skipped: Vec<&Value> = lines.iter().filter(|line| line["record"] == "skipped").collect();
    let ratios = all_ratios(subjects, &rows);
    let document = json!({"parameters": parameters, "samples": rows, "ratios": ratios, "skipped": skipped});
    super::with_end(document, compared)
}

/// Rows by subject, and for each in the order of the samples among the lines.
fn rows(subjects: &[&str], lines: &[Value]) -> Vec<Row> {
    let of_subject = |name: &&str| {
        let samples = lines.iter().filter(|line| line["record"] == "sample" && line["subject"] == **name);
        let row = |(repeat, line): (usize, &Value)| {
            let value = |of: &str| line["sample"][of].as_f64();
            Row {
                subject: name.to_string(),
                repeat,
                mpps: value("received_pps").unwrap_or(f64::NAN) / 1e6,
                ns_per_packet: value("ns_per_packet"),
                loss: value("loss").unwrap_or(f64::NAN),
                cpu_left: value("cpu_left"),
            }
        };
        samples.enumerate().map(row).collect::<Vec<_>>()
    };
    subjects.iter().flat_map(of_subject).collect()
}

fn column(rows: &[Row], subject: &str, of: impl Fn(&Row) -> Option<f64>) -> Vec<f64> {
    let rows = rows.iter().filter(|row| row.subject == subject);
    rows.map(|row| of(row).unwrap_or(f64::NAN)).collect()
}

/// `A/B` for every two subjects, A after B in the order asked for: ratios of packets per second, pair by pair.
fn all_ratios(subjects: &[&str], rows: &[Row]) -> BTreeMap<String, Value> {
    let mpps = |name: &str| column(rows, name, |row| Some(row.mpps));
    let mut all = BTreeMap::new();
    for (i, of) in subjects.iter().enumerate() {
        for to in &subjects[..i] {
            let (a, b) = (mpps(of), mpps(to));
            let pairs: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a / b).collect();
            if !pairs.is_empty() {
                all.insert(format!("{of}/{to}"), json!({"spread": ratios(&a, &b), "pairs": pairs}));
            }
        }
    }
    all
}

fn print(options: &CompareOptions, subjects: &[&str], rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    let offered = options.pps.map_or("saturated".into(), |pps| format!("{} Mpps offered", pps as f64 / 1e6));
    let traffic = record::in_words(&options.traffic.parameters(&options.workload()));
    let title = format!("{offered}{traffic}: median (range)");
    let ratio = format!("Mpps / {}", first.subject);
    print_head(&title, &["subject", "Mpps", "ns/packet", "lost, %", "CPU left, %", &ratio]);
    for name in subjects {
        let cell =
            |of: fn(&Row) -> Option<f64>, scale, digits| show(spread(&column(rows, name, of)), scale, digits);
        let mpps = |name: &str| column(rows, name, |row| Some(row.mpps));
        if mpps(name).is_empty() {
            print_row(&[*name, "not measured", "-", "-", "-", "-"].map(String::from));
            continue;
        }
        print_row(&[
            name.to_string(),
            cell(|row| Some(row.mpps), 1.0, 3),
            cell(|row| row.ns_per_packet, 1.0, 0),
            cell(|row| Some(row.loss), 100.0, 3),
            cell(|row| row.cpu_left, 100.0, 0),
            show(ratios(&mpps(name), &mpps(&first.subject)), 1.0, 2),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_ratios_are_by_subject_and_pair() {
        let sample = |subject: &str, pps: f64| {
            json!({"record": "sample", "subject": subject, "repeat": 0,
                "sample": {"received_pps": pps, "ns_per_packet": 100.0, "loss": 0.0, "cpu_left": null}})
        };
        // One subject could not run, and the second round of another was interrupted.
        let lines = [
            sample("linux", 1e6),
            json!({"record": "skipped", "subject": "ovs", "why": "not installed"}),
            sample("millrace", 3e6),
            sample("linux", 2e6),
        ];
        let subjects = ["linux", "ovs", "millrace"];
        let interrupted = Err(crate::sys::Interrupted.into());
        let document = document(&json!({"frame": 64}), &subjects, &lines, &interrupted);
        let samples = document["samples"].as_array().unwrap();
        let seen: Vec<Value> =
            samples.iter().map(|row| json!([row["subject"], row["repeat"], row["mpps"]])).collect();
        assert_eq!(seen, [json!(["linux", 0, 1.0]), json!(["linux", 1, 2.0]), json!(["millrace", 0, 3.0])]);
        assert_eq!(samples[0]["cpu_left"], Value::Null);
        let ratios = document["ratios"].as_object().unwrap();
        assert_eq!(ratios.keys().collect::<Vec<_>>(), ["millrace/linux"]);
        assert_eq!(ratios["millrace/linux"]["pairs"], json!([3.0]));
        assert_eq!(document["skipped"][0]["why"], "not installed");
        assert_eq!((&document["interrupted"], &document["error"]), (&true.into(), &Value::Null));
    }
}
