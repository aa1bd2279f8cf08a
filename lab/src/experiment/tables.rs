//! Cost of a packet against the size of the IPv4 table, with 1, 4,096 and 100,000 destinations.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::json;

use super::{Sampling, cost_rows, head, testbed};
use crate::{
    compare::{Plan, compare_in},
    figure::{Axis, Figure, Reference},
    generator::Pace,
    prefixes::{self, Prefixes},
    progress::Progress,
    record::Output,
    subject,
    workload::{Family, Workload},
};

const DESTINATIONS: [usize; 3] = [1, 4096, 100_000];

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct TablesOptions {
    /// Numbers of IPv4 routes, in growing order; ratios are to the first
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 1000, 100_000, 1_000_000])]
    routes: Vec<usize>,
    /// Subjects, alternately
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["linux", "millrace"], default_values = ["linux", "millrace"])]
    pub(super) subjects: Vec<String>,
    /// File with one prefix per line, may be gzipped [default: the developers' list if present, else generated
    /// prefixes]
    #[arg(long, value_name = "FILE")]
    prefixes: Option<PathBuf>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

impl TablesOptions {
    pub(super) fn file(&self) -> Option<PathBuf> {
        self.prefixes.clone().or_else(prefixes::default_file)
    }
}

pub(super) fn run(options: &TablesOptions, output: &Output) -> Result<()> {
    let most = options.routes.iter().copied().max().unwrap_or_default();
    ensure!(
        options.routes.is_sorted() && options.routes[0] > 0,
        "--routes must be growing numbers above 0, because routes are only added"
    );
    let mut recorder = output.recorder()?;
    let mut progress = Progress::new(0);
    let full = prefixes::prefixes(options.file().as_deref(), most, 0)?;
    let subjects = subject::named(&options.subjects);
    let mut later = options.routes.len() * DESTINATIONS.len();
    figure_records().iter().try_for_each(|figure| recorder.figure(figure))?;
    let mut testbed = testbed(0)?;
    let title = "Cost against table size, IPv4 (ratios: to the smallest table, same destinations)";
    progress.print(&head(title, &["routes", "destinations", "subject", "Mpps", "ns/packet", "ns, ratio"]));
    let mut smallest = vec![None; DESTINATIONS.len()];
    for &routes in &options.routes {
        // The first route is that of the benchmarking prefixes, which every router has.
        let loaded =
            Prefixes { v4: full.v4[..routes - 1].to_vec(), v6: Vec::new(), source: full.source.clone() };
        testbed.load_routes(&loaded)?;
        for (destinations, smallest) in DESTINATIONS.into_iter().zip(&mut smallest) {
            let workload = match routes {
                1 => Workload::benchmark(Family::V4, destinations as u32, 0..=0),
                _ => Workload::inside(&loaded, Family::V4, destinations, testbed.next_hops()?),
            };
            let plan = Plan {
                case: "tables",
                parameters: json!({"routes": routes, "destinations": destinations, "prefixes": full.source}),
                subjects: &subjects,
                paces: &[Pace::Saturate],
                repeats: 0..options.sampling.repeat.into(),
                window: options.sampling.window(),
            };
            later -= 1;
            progress.then(later as u64 * plan.steps());
            let results = compare_in(&mut testbed, &workload, &plan, &mut recorder, &mut progress)?;
            let first = smallest.get_or_insert_with(|| results.clone());
            for row in cost_rows(&[routes.to_string(), workload.targets.len().to_string()], &results, first) {
                progress.print(&row);
            }
        }
    }
    Ok(())
}

fn figure_records() -> [Figure; 2] {
    let routes = Axis::new("/parameters/routes", "routes", "").log();
    let ns = Axis::new("/sample/ns_per_packet", "CPU per packet", "ns");
    let cost = Figure::new("tables", "Cost against the size of the table", Some(routes), ns)
        .only("/case", "tables")
        .series("/subject")
        .series("/parameters/destinations")
        .note("By subject and number of destinations.");
    let relative =
        Figure { name: "tables-relative".into(), title: format!("{}, relative", cost.title), ..cost.clone() };
    [cost, relative.relative_to(Reference::First)]
}
