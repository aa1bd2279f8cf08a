//! Capacity of one core: 64-byte packets to 4,096 destinations, full table, the core saturated
//! and no packet lost; and the cost of a packet when the
//! load is one that Linux carries too.

use anyhow::Result;
use clap::{Args, builder::PossibleValuesParser};
use serde_json::json;

use super::{FullTable, Sampling, names, print_head, print_row, show, testbed};
use crate::{
    compare::{Plan, compare, figures, ns, pps},
    generator::Pace,
    measure::{ratios, spread},
    record::Output,
    subject,
    workload::{Family, Workload},
};

const DESTINATIONS: usize = 4096;
const LOW_RATE_PPS: u64 = 400_000;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to measure; `all`: every one there is
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(subject::choices()), default_values = subject::DEFAULT)]
    subjects: Vec<String>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
    #[command(flatten)]
    table: FullTable,
}

pub(super) fn run(options: &Options, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    let prefixes = options.table.read()?;
    let mut testbed = testbed(0)?;
    testbed.load_routes(&prefixes)?;
    for family in [Family::V4, Family::V6] {
        let workload = Workload::inside(&prefixes, family, DESTINATIONS, testbed.next_hops()?);
        let subjects = names(&options.subjects);
        let plan = Plan {
            case: "capacity",
            parameters: json!({"family": family.name(), "routes4": prefixes.v4.len(), "routes6": prefixes.v6.len(),
                "prefixes": prefixes.source}),
            subjects: &subjects,
            paces: &[Pace::Saturate, Pace::Rate(LOW_RATE_PPS)],
            repeats: options.sampling.repeat.into(),
            window: options.sampling.window(),
        };
        let results = compare(&mut testbed, &workload, &plan, &mut recorder)?;
        let title = format!(
            "Capacity of one core, {}, {} + {} routes, {DESTINATIONS} destinations",
            family.name(),
            prefixes.v4.len(),
            prefixes.v6.len()
        );
        let low = format!("ns/packet at {:.1} Mpps", LOW_RATE_PPS as f64 / 1e6);
        print_head(&title, &["subject", "Mpps", "ns/packet", &low, "Mpps / touch", "Mpps / linux"]);
        for name in results.keys() {
            let rates = figures(&results, name, 0, pps);
            print_row(&[
                name.clone(),
                show(spread(&rates), 1e-6, 3),
                show(spread(&figures(&results, name, 0, ns)), 1.0, 0),
                show(spread(&figures(&results, name, 1, ns)), 1.0, 0),
                show(ratios(&rates, &figures(&results, "touch", 0, pps)), 1.0, 2),
                show(ratios(&rates, &figures(&results, "linux", 0, pps)), 1.0, 2),
            ]);
        }
    }
    Ok(())
}
