//! Virtual routers: the same traffic through more and more of them, each a namespace with two macvlan interfaces. 255 and
//! the host's are Millrace's limit.

use anyhow::Result;
use clap::{Args, value_parser};
use serde_json::json;

use super::{Sampling, names, print_head, print_row, show, testbed};
use crate::{
    compare::{Plan, compare, figures, ns, pps},
    generator::Pace,
    measure::{ratios, spread},
    record::Output,
    workload::{Family, Workload},
};

const DESTINATIONS: u32 = 4096;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How many, in this order; ratios are to the first
    #[arg(long, value_delimiter = ',', value_parser = value_parser!(u16).range(1..=256), default_values_t = [1, 8, 32, 255])]
    routers: Vec<u16>,
    /// What to measure
    #[arg(long, value_delimiter = ',', value_parser = ["linux", "millrace"], default_values = ["linux", "millrace"])]
    subjects: Vec<String>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

pub(super) fn run(options: &Options, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    let subjects = names(&options.subjects);
    let title = format!("Virtual routers, IPv4, {DESTINATIONS} destinations (ratio: to the first)");
    print_head(&title, &["routers", "subject", "Mpps", "ns/packet", "ns, ratio"]);
    let mut first = None;
    for &routers in &options.routers {
        let mut testbed = testbed(routers)?;
        let workload = Workload::benchmark(Family::V4, DESTINATIONS, 1..=routers);
        let plan = Plan {
            case: "routers",
            parameters: json!({"routers": routers}),
            subjects: &subjects,
            paces: &[Pace::Saturate],
            repeats: options.sampling.repeat.into(),
            window: options.sampling.window(),
        };
        let results = compare(&mut testbed, &workload, &plan, &mut recorder)?;
        let first = first.get_or_insert_with(|| results.clone());
        for name in results.keys() {
            let cost = figures(&results, name, 0, ns);
            print_row(&[
                routers.to_string(),
                name.clone(),
                show(spread(&figures(&results, name, 0, pps)), 1e-6, 3),
                show(spread(&cost), 1.0, 0),
                show(ratios(&cost, &figures(first, name, 0, ns)), 1.0, 2),
            ]);
        }
    }
    Ok(())
}
