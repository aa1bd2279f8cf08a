//! Cost of a packet against the size of the table, 1 to 1,000,000 IPv4 routes, with 1, 4,096 and 100,000 destinations.

use anyhow::Result;
use serde_json::json;

use super::{Options, print_head, print_row, show, testbed};
use crate::{
    compare::{Plan, compare, figures, ns, pps},
    generator::Pace,
    measure::{ratios, spread},
    prefixes::Prefixes,
    record::Recorder,
    workload::{Family, Workload},
};

const DESTINATIONS: [usize; 3] = [1, 4096, 100_000];

pub(super) fn run(options: &Options, recorder: &mut Recorder) -> Result<()> {
    let full = options.full_table()?;
    let subjects = options.subjects(Some(&["linux", "millrace"]));
    let mut testbed = testbed(0)?;
    let title = "Cost against table size, IPv4 (ratios: to the smallest table, same destinations)";
    print_head(title, &["routes", "destinations", "subject", "Mpps", "ns/packet", "ns, ratio"]);
    let mut smallest = vec![None; DESTINATIONS.len()];
    for routes in sizes(full.v4.len()) {
        let loaded = Prefixes { v4: full.v4[..routes].to_vec(), v6: Vec::new(), source: full.source.clone() };
        testbed.load_routes(&loaded)?;
        for (destinations, smallest) in DESTINATIONS.into_iter().zip(&mut smallest) {
            // The one route of the smallest table is a benchmarking prefix, wide enough for any number of destinations.
            let workload = match routes {
                0 => Workload::benchmark(Family::V4, destinations as u32, 0..=0),
                _ => Workload::inside(&loaded, Family::V4, destinations, testbed.spec.nexthops),
            };
            let plan = Plan {
                case: "tables",
                parameters: json!({"routes": routes.max(1), "destinations": destinations, "prefixes": full.source}),
                subjects: &subjects,
                paces: &[Pace::Saturate],
                repeats: options.repeats,
                window: options.window(),
            };
            let results = compare(&mut testbed, &workload, &plan, recorder)?;
            let first = smallest.get_or_insert_with(|| results.clone());
            for name in results.keys() {
                let cost = figures(&results, name, 0, ns);
                print_row(&[
                    routes.max(1).to_string(),
                    workload.targets.len().to_string(),
                    name.clone(),
                    show(spread(&figures(&results, name, 0, pps)), 1e-6, 3),
                    show(spread(&cost), 1.0, 0),
                    show(ratios(&cost, &figures(first, name, 0, ns)), 1.0, 2),
                ]);
            }
        }
    }
    Ok(())
}

/// 0 stands for the one route (per family) that every router has.
fn sizes(full: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = [0, 1000, 100_000].into_iter().filter(|&size| size < full).collect();
    sizes.push(full);
    sizes
}
