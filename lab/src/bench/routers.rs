//! Virtual routers: the same traffic through 1 to 255 of them, each a namespace with two macvlan interfaces. With the
//! host's that makes 256 routers, Millrace's limit.

use anyhow::Result;
use serde_json::json;

use super::{Options, print_head, print_row, show, testbed};
use crate::{
    compare::{Plan, compare, figures, ns, pps},
    generator::Pace,
    measure::{ratios, spread},
    record::Recorder,
    workload::{Family, Workload},
};

const DESTINATIONS: u32 = 4096;

pub(super) fn run(options: &Options, recorder: &mut Recorder) -> Result<()> {
    let subjects = options.subjects(Some(&["linux", "millrace"]));
    let title = format!("Virtual routers, IPv4, {DESTINATIONS} destinations (ratio: to one router)");
    print_head(&title, &["routers", "subject", "Mpps", "ns/packet", "ns, ratio"]);
    let mut one = None;
    for routers in [1, 8, 32, 255] {
        let mut testbed = testbed(routers)?;
        let workload = Workload::benchmark(Family::V4, DESTINATIONS, 1..=routers);
        let plan = Plan {
            case: "routers",
            parameters: json!({"routers": routers}),
            subjects: &subjects,
            paces: &[Pace::Saturate],
            repeats: options.repeats,
            window: options.window(),
        };
        let results = compare(&mut testbed, &workload, &plan, recorder)?;
        let first = one.get_or_insert_with(|| results.clone());
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
