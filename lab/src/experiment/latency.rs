//! `millrace-lab latency`: how long packets take, by load, with subjects in turn. Stamps cost time of sink and
//! generator, equal for all subjects.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::{Sampling, Subjects, print_head, print_row, show, some_packets_per_second, testbed};
use crate::{
    compare::{Plan, compare, figures},
    figure::{Axis, Figure},
    generator::Pace,
    histogram::Latency,
    measure::spread,
    record::Output,
    sink::Watch,
    workload::{Family, Workload},
};

const DESTINATIONS: u32 = 4096;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct LatencyOptions {
    #[command(flatten)]
    pub(super) subjects: Subjects,
    /// Packets per second offered, one load after another, up to 20M; k and M are thousands and millions
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = some_packets_per_second,
        default_values = ["10k", "100k", "250k", "500k", "1M", "1.5M", "2M", "3M"])]
    rates: Vec<u64>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

pub(super) fn run(options: &LatencyOptions, output: &Output) -> Result<()> {
    let mut testbed = testbed(0)?;
    let mut workload = Workload::benchmark(Family::V4, DESTINATIONS, 0..=0);
    // Frames need room for a stamp.
    let stamped = workload.targets.iter().map(|target| target.min_stamped()).max();
    workload.frame_bytes = workload.frame_bytes.max(stamped.unwrap_or_default());
    let subjects = options.subjects.names();
    let paces: Vec<Pace> = options.rates.iter().map(|&pps| Pace::Rate(pps)).collect();
    let plan = Plan {
        case: "latency",
        parameters: json!({}),
        subjects: &subjects,
        paces: &paces,
        repeats: 0..options.sampling.repeat.into(),
        window: options.sampling.window().watching(Watch { latency: true, ..Watch::NOTHING }),
    };
    let mut recorder = output.recorder()?;
    for (name, quantile) in [("latency-p50", "p50"), ("latency-p99", "p99"), ("latency-p999", "p999")] {
        recorder.figure(&figure(name, quantile))?;
    }
    let results = compare(&mut testbed, &workload, &plan, &mut recorder)?;
    let names: Vec<&str> = results.keys().map(String::as_str).collect();
    print_head(
        "One-way latency, us: p50, p99, p99.9 (median and range of each)",
        &[&["Mpps"][..], &names].concat(),
    );
    for (at, pps) in options.rates.iter().enumerate() {
        let cell = |name: &&str| {
            let of = |figure: fn(&Latency) -> u64| {
                let ns = |latency: &Option<Latency>| {
                    latency.as_ref().map_or(f64::NAN, |found| figure(found) as f64)
                };
                show(spread(&figures(&results, name, at, |sample| ns(&sample.latency))), 1e-3, 1)
            };
            [of(|found| found.p50_ns), of(|found| found.p99_ns), of(|found| found.p999_ns)].join(", ")
        };
        print_row(&[vec![format!("{:.2}", *pps as f64 / 1e6)], names.iter().map(cell).collect()].concat());
    }
    let samples = results.values().flatten().flatten();
    if let Some(ns) = samples.filter_map(|sample| sample.clock_error_ns).max() {
        println!("\nThe clocks of the cores can differ by {ns} ns.");
    }
    Ok(())
}

fn figure(name: &str, quantile: &str) -> Figure {
    let offered = Axis::new("/pace/rate", "offered", "Mpps").times(1e-6).log();
    let latency = Axis::new(&format!("/sample/latency/{quantile}_ns"), "latency", "µs").times(1e-3).log();
    Figure::new(name, &format!("One-way latency by load, {quantile}"), Some(offered), latency)
        .only("/case", "latency")
        .series("/subject")
}
