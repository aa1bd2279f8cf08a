//! Overload: what comes out when more and more comes in, up to what the generator can do. A router that sheds before it
//! works stays at its peak.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::{Sampling, names, print_head, print_row, testbed};
use crate::{
    compare::{Plan, compare, figures, pps},
    generator::Pace,
    measure::median,
    record::Output,
    subject,
    workload::{Family, Workload},
};

const DESTINATIONS: u32 = 4096;
const MPPS: [f64; 12] = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0];

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to measure
    #[arg(long, value_delimiter = ',', value_parser = subject::NAMES, default_values = subject::NAMES)]
    subjects: Vec<String>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

pub(super) fn run(options: &Options, output: &Output) -> Result<()> {
    let mut testbed = testbed(0)?;
    let workload = Workload::benchmark(Family::V4, DESTINATIONS, 0..=0);
    let subjects = names(&options.subjects);
    let rates = MPPS.iter().map(|mpps| Pace::Rate((mpps * 1e6) as u64));
    let paces: Vec<Pace> = rates.chain([Pace::FlatOut]).collect();
    let plan = Plan {
        case: "overload",
        parameters: json!({}),
        subjects: &subjects,
        paces: &paces,
        repeats: options.sampling.repeat.into(),
        window: options.sampling.window(),
    };
    let results = compare(&mut testbed, &workload, &plan, &mut output.recorder()?)?;
    let names: Vec<&str> = results.keys().map(String::as_str).collect();
    let title = "Overload, IPv4: Mpps out (Mpps really offered)";
    print_head(title, &[&["asked for"][..], &names].concat());
    for (at, pace) in paces.iter().enumerate() {
        let cell = |name: &&str| {
            let out = median(&figures(&results, name, at, pps));
            let offered = median(&figures(&results, name, at, |sample| sample.offered_pps));
            format!("{:.3} ({:.3})", out / 1e6, offered / 1e6)
        };
        let asked = match pace {
            Pace::Rate(pps) => format!("{:.2}", *pps as f64 / 1e6),
            _ => "flat out".into(),
        };
        print_row(&[vec![asked], names.iter().map(cell).collect()].concat());
    }
    for name in names {
        let by_rate: Vec<f64> =
            (0..paces.len()).map(|at| median(&figures(&results, name, at, pps))).collect();
        let peak = by_rate.iter().copied().fold(0.0, f64::max);
        let last = by_rate.last().copied().unwrap_or(0.0);
        println!("\n{name}: flat out {:.1} % of its peak", 100.0 * last / peak);
    }
    Ok(())
}
