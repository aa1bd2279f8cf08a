//! The same traffic through more and more routers: the host's own, and virtual ones, each a namespace with two macvlan
//! interfaces. 256 are Millrace's limit.

use anyhow::Result;
use clap::{Args, value_parser};
use serde_json::json;

use super::{Sampling, cost_rows, head, testbed};
use crate::{
    compare::{Plan, compare_in},
    figure::{Axis, Figure, Reference},
    generator::Pace,
    progress::Progress,
    record::Output,
    subject,
    workload::{Family, Workload},
};

const DESTINATIONS: u32 = 4096;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// How many routers, the host's among them, 1 to 256, in this order; ratios are to the first
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = value_parser!(u16).range(1..=256), default_values_t = [1, 8, 32, 256])]
    routers: Vec<u16>,
    /// What to measure, alternately
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["linux", "millrace"], default_values = ["linux", "millrace"])]
    subjects: Vec<String>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

pub(super) fn run(options: &Options, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    let mut progress = Progress::new(0);
    let subjects = subject::named(&options.subjects);
    figure_records().iter().try_for_each(|figure| recorder.figure(figure))?;
    let title = format!("Routers, IPv4, {DESTINATIONS} destinations (ratio: to the first)");
    progress.print(&head(&title, &["routers", "subject", "Mpps", "ns/packet", "ns, ratio"]));
    let mut first = None;
    for (at, &routers) in options.routers.iter().enumerate() {
        let mut testbed = testbed(routers - 1)?;
        let workload = Workload::benchmark(Family::V4, DESTINATIONS, 0..=routers - 1);
        let plan = Plan {
            case: "routers",
            parameters: json!({"routers": routers}),
            subjects: &subjects,
            paces: &[Pace::Saturate],
            repeats: options.sampling.repeat.into(),
            window: options.sampling.window(),
        };
        progress.then((options.routers.len() - at - 1) as u64 * plan.steps());
        let results = compare_in(&mut testbed, &workload, &plan, &mut recorder, &mut progress)?;
        let first = first.get_or_insert_with(|| results.clone());
        for row in cost_rows(&[routers.to_string()], &results, first) {
            progress.print(&row);
        }
    }
    Ok(())
}

fn figure_records() -> [Figure; 2] {
    let routers = Axis::new("/parameters/routers", "routers", "").log();
    let ns = Axis::new("/sample/ns_per_packet", "CPU per packet", "ns");
    let title = "Cost against the number of routers";
    let cost = Figure::new("scale", title, Some(routers), ns).only("/case", "routers").series("/subject");
    let relative =
        Figure { name: "scale-relative".into(), title: format!("{title}, relative"), ..cost.clone() };
    [cost, relative.relative_to(Reference::First)]
}
