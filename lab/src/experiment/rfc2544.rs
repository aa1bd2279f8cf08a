//! `millrace-lab rfc2544`: throughput and frame loss rate of a subject by frame size (RFC 2544 9.1, 26.1, 26.3).

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::{Args, value_parser};
use serde::Serialize;
use serde_json::json;

use crate::{
    check::check_forwarding,
    generator::{Load, Pace},
    measure::{Window, measure},
    method::{
        Outcome, Trial,
        frame_loss::{self, Point},
        throughput::{self, Search, Throughput},
    },
    packet::FCS_BYTES,
    record::Output,
    subject::{self, Subject},
    testbed::Testbed,
    topology::Topology,
    workload::{Family, Workload},
};

/// What the generator can do.
const HIGHEST_PPS: u64 = 8_000_000;
const LOWEST_PPS: u64 = 10_000;
/// Share that may be lost: none, and one in a thousand.
const LOSSES: [f64; 2] = [0.0, 0.001];
const RESOLUTION: f64 = 0.01;
const STEPS: u64 = 10;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to measure
    #[arg(long, value_parser = subject::NAMES, default_value = "millrace")]
    subject: String,
    /// Frame lengths in bytes, FCS included, each 64 to 3404
    #[arg(long, value_delimiter = ',', value_parser = value_parser!(u16).range(64..=3404),
        default_values_t = [64, 128, 256, 512, 1024, 1280, 1518])]
    frames: Vec<u16>,
    /// Destinations, one flow each: 1 to 131072
    #[arg(long, default_value_t = 4096, value_parser = value_parser!(u32).range(1..=131_072))]
    flows: u32,
    /// Length of each trial (the RFC: 60)
    #[arg(long, default_value_t = 2.0, value_parser = super::seconds)]
    seconds: f64,
    /// Where the results go, as one document
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Result2544 {
    frame: u16,
    /// By the share that may be lost.
    throughput: Vec<(f64, Throughput)>,
    frame_loss: Vec<Point>,
}

struct OnTestbed<'a> {
    testbed: &'a mut Testbed,
    frame_bytes: u16,
    window: Window,
}

impl Trial for OnTestbed<'_> {
    fn run(&mut self, pps: u64) -> Result<Outcome> {
        let load = Load { frame_bytes: self.frame_bytes, pace: Pace::Rate(pps) };
        let sample = measure(self.testbed, load, self.window)?;
        eprintln!("  {pps} pps offered: {} sent, {} arrived", sample.sent, sample.received);
        Ok(Outcome {
            sent: sample.sent,
            skipped: sample.skipped,
            received: sample.received,
            offered_pps: sample.offered_pps,
            received_pps: sample.received_pps,
            latency: None,
        })
    }
}

pub(super) fn run(options: &Options, output: &Output) -> Result<()> {
    let mut testbed = Testbed::for_rates(&Topology::rfc2544())?;
    let subject = subject::start(&options.subject, &testbed)?;
    println!("{}, {} flows, trials of {} s", options.subject, options.flows, options.seconds);
    println!("{:>6} {:>20} {:>20}", "frame", "Mpps, no loss", "Mpps, 0.1 % lost");
    let mut results = Vec::new();
    for &frame in &options.frames {
        let result = of_frame(&mut testbed, &*subject, frame, options)?;
        let show = |(_, throughput): &(f64, Throughput)| {
            let pps = throughput.pps.map_or("-".into(), |pps| format!("{:.3}", pps as f64 / 1e6));
            if throughput.noisy { format!("{pps} (noisy)") } else { pps }
        };
        println!("{frame:>6} {:>20} {:>20}", show(&result.throughput[0]), show(&result.throughput[1]));
        results.push(result);
        output.document(json!({"subject": options.subject, "flows": options.flows,
            "trial_seconds": options.seconds, "resolution": RESOLUTION, "results": results}))?;
    }
    Ok(())
}

fn of_frame(
    testbed: &mut Testbed,
    subject: &dyn Subject,
    frame: u16,
    options: &Options,
) -> Result<Result2544> {
    let workload = Workload::benchmark(Family::V4, options.flows, 0..=0);
    let frame_bytes = frame - FCS_BYTES;
    check_forwarding(testbed, subject, &workload.targets, frame_bytes, |address| workload.next_hop(address))?;
    testbed.generator.set_targets(workload.targets.clone(), frame_bytes)?;
    let window = Window { warm_up: Duration::ZERO, length: Duration::from_secs_f64(options.seconds) };
    let mut trial = OnTestbed { testbed, frame_bytes, window };
    let mut found = Vec::new();
    for loss in LOSSES {
        let search = Search { between: (LOWEST_PPS, HIGHEST_PPS), loss, resolution: RESOLUTION };
        found.push((loss, throughput::search(&mut trial, &search)?));
    }
    // The curve begins where everything but a little still comes through, and a half more is offered.
    let most = found.iter().filter_map(|(_, throughput)| throughput.pps).max().unwrap_or(LOWEST_PPS);
    let curve = frame_loss::curve(&mut trial, (most + most / 2).min(HIGHEST_PPS), STEPS, 1)?;
    Ok(Result2544 { frame, throughput: found, frame_loss: curve })
}
