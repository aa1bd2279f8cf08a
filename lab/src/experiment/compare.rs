//! `millrace-lab compare`: subjects on the same packets in the same run, alternately, with what each leaves of the router's
//! core to applications.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::{Args, builder::PossibleValuesParser, value_parser};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Sampling, names};
use crate::{
    compare::{Plan, Results, compare},
    cpu::Spinners,
    generator::Pace,
    measure::{Sample, Spread, ratios, spread},
    packet::FCS_BYTES,
    record::{Output, Recorder},
    subject,
    testbed::Testbed,
    topology::Topology,
    workload::{Family, Workload},
};

/// What to compare.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to measure; `all`: every one there is
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(subject::choices()), default_values = subject::DEFAULT)]
    subjects: Vec<String>,
    /// Frame length in bytes, FCS included: 64 to 3404
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u16).range(64..=3404))]
    frame: u16,
    /// Destinations, one flow each: 1 to 131072
    #[arg(long, default_value_t = 4096, value_parser = value_parser!(u32).range(1..=131_072))]
    flows: u32,
    /// Packets per second offered, to see what each leaves of the core at the same work [default: as many as it can carry]
    #[arg(long, value_parser = value_parser!(u64).range(1..=20_000_000))]
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

pub(super) fn run(options: &Options, output: &Output) -> Result<()> {
    let topology = Topology::rfc2544();
    let mut testbed = Testbed::for_rates(&topology)?;
    testbed.spinners = Spinners::start(&topology.cores.router)?;
    let mut workload = Workload::benchmark(Family::V4, options.flows, 0..=0);
    workload.frame_bytes = options.frame - FCS_BYTES;
    let asked = names(&options.subjects);
    let parameters = json!({"frame": options.frame, "flows": options.flows, "pps": options.pps});
    let mut results = Results::new();
    let mut able = asked.clone();
    for _ in 0..options.sampling.repeat {
        let plan = Plan {
            case: "compare",
            parameters: parameters.clone(),
            subjects: &able,
            paces: &[options.pps.map_or(Pace::Saturate, Pace::Rate)],
            repeats: 1,
            window: options.sampling.window(),
        };
        let round = compare(&mut testbed, &workload, &plan, &mut Recorder::none())?;
        able.retain(|name| round.contains_key(*name));
        for (name, samples) in round {
            results.entry(name).or_insert_with(|| vec![Vec::new()])[0].extend(samples.into_iter().flatten());
        }
        // After each round, so that an interruption loses at most one.
        output.document(json!({"parameters": parameters, "samples": rows(&asked, &results),
            "ratios": all_ratios(&asked, &results)}))?;
    }
    print(&asked, &rows(&asked, &results));
    Ok(())
}

fn rows(subjects: &[&str], results: &Results) -> Vec<Row> {
    let of_subject = |name: &&str| {
        let samples = results.get(*name).and_then(|paces| paces.first()).into_iter().flatten();
        let row = |(repeat, sample): (usize, &Sample)| Row {
            subject: name.to_string(),
            repeat,
            mpps: sample.received_pps / 1e6,
            ns_per_packet: sample.ns_per_packet,
            loss: sample.loss,
            cpu_left: sample.cpu_left,
        };
        samples.enumerate().map(row).collect::<Vec<_>>()
    };
    subjects.iter().flat_map(of_subject).collect()
}

/// `A/B` for every two subjects, A after B in the order asked for: packets per second, pair by pair.
fn all_ratios(subjects: &[&str], results: &Results) -> BTreeMap<String, Value> {
    let mpps = |name: &str| -> Vec<f64> {
        let samples = results.get(name).and_then(|paces| paces.first()).into_iter().flatten();
        samples.map(|sample| sample.received_pps / 1e6).collect()
    };
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

fn print(subjects: &[&str], rows: &[Row]) {
    println!("{:12} {:>22} {:>22} {:>9} {:>9}", "subject", "Mpps", "ns per packet", "lost %", "CPU left");
    for name in subjects {
        let of = |figure: fn(&Row) -> f64| -> Vec<f64> {
            rows.iter().filter(|row| row.subject == *name).map(figure).collect()
        };
        let (mpps, ns) = (of(|row| row.mpps), of(|row| row.ns_per_packet.unwrap_or(f64::NAN)));
        if mpps.is_empty() {
            println!("{name:12} {:>22}", "could not run");
            continue;
        }
        let show = |Spread { median, min, max }: Spread, digits: usize| {
            format!("{median:.digits$} ({min:.digits$}..{max:.digits$})")
        };
        println!(
            "{name:12} {:>22} {:>22} {:>9.3} {:>8.0}%",
            show(spread(&mpps), 3),
            show(spread(&ns), 0),
            spread(&of(|row| row.loss)).median * 100.0,
            spread(&of(|row| row.cpu_left.unwrap_or(f64::NAN))).median * 100.0,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Rates;

    fn sample(received_pps: f64) -> Sample {
        Sample {
            seconds: 1.0,
            offered_pps: received_pps,
            received_pps,
            ns_per_packet: Some(100.0),
            busy: 0.9,
            cpu_left: Some(0.1),
            cpu_left_by_core: BTreeMap::new(),
            activity: Rates::default(),
            sent: 1000,
            received: 1000,
            ..Sample::default()
        }
    }

    #[test]
    fn rows_and_ratios_are_by_subject_and_pair() {
        let results: Results = [
            ("linux".to_string(), vec![vec![sample(1e6), sample(2e6)]]),
            ("millrace".to_string(), vec![vec![sample(3e6), sample(4e6)]]),
        ]
        .into();
        // One that could not run is in no result.
        let subjects = ["linux", "ovs", "millrace"];
        let rows = rows(&subjects, &results);
        let seen: Vec<_> = rows.iter().map(|row| (row.subject.as_str(), row.repeat, row.mpps)).collect();
        assert_eq!(seen, [("linux", 0, 1.0), ("linux", 1, 2.0), ("millrace", 0, 3.0), ("millrace", 1, 4.0)]);
        let ratios = all_ratios(&subjects, &results);
        assert_eq!(ratios.keys().collect::<Vec<_>>(), ["millrace/linux"]);
        assert_eq!(ratios["millrace/linux"]["pairs"], json!([3.0, 2.0]));
        assert_eq!(ratios["millrace/linux"]["spread"]["median"], json!(2.5));
    }
}
