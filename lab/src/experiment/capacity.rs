//! Capacity of one core: 64-byte packets to 4,096 destinations with a full table, the core saturated and no packet
//! lost. Also the cost of a packet at a load that Linux carries, too.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::{FullTable, Sampling, Subjects, head, row, show, testbed};
use crate::{
    compare::{Plan, compare_in, figures, ns, pps},
    figure::{Axis, Figure, Reference},
    generator::Pace,
    measure::{ratios, spread},
    progress::Progress,
    record::Output,
    workload::Workload,
};

const DESTINATIONS: usize = 4096;
const LOW_RATE_PPS: u64 = 400_000;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct CapacityOptions {
    #[command(flatten)]
    pub(super) subjects: Subjects,
    #[command(flatten)]
    pub(super) sampling: Sampling,
    #[command(flatten)]
    pub(super) table: FullTable,
}

pub(super) fn run(options: &CapacityOptions, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    let families = options.table.families()?;
    let prefixes = options.table.read()?;
    let mut testbed = testbed(0)?;
    testbed.load_routes(&prefixes)?;
    figure_records().iter().try_for_each(|figure| recorder.figure(figure))?;
    let mut progress = Progress::new(0);
    for (later, &family) in (0..families.len() as u64).rev().zip(&families) {
        let workload = Workload::inside(&prefixes, family, DESTINATIONS, testbed.next_hops()?);
        let subjects = options.subjects.names();
        let plan = Plan {
            case: "capacity",
            parameters: json!({"family": family.name(), "routes4": prefixes.v4.len(), "routes6": prefixes.v6.len(),
                "prefixes": prefixes.source}),
            subjects: &subjects,
            paces: &[Pace::Saturate, Pace::Rate(LOW_RATE_PPS)],
            repeats: 0..options.sampling.repeat.into(),
            window: options.sampling.window(),
        };
        progress.then(later * plan.steps());
        let results = compare_in(&mut testbed, &workload, &plan, &mut recorder, &mut progress)?;
        let title = format!(
            "Capacity of one core, {}, {} + {} routes, {DESTINATIONS} destinations",
            family.name(),
            prefixes.v4.len(),
            prefixes.v6.len()
        );
        let low = format!("ns/packet at {:.1} Mpps", LOW_RATE_PPS as f64 / 1e6);
        progress
            .print(&head(&title, &["subject", "Mpps", "ns/packet", &low, "Mpps / touch", "Mpps / linux"]));
        for name in results.keys() {
            let rates = figures(&results, name, 0, pps);
            progress.print(&row(&[
                name.clone(),
                show(spread(&rates), 1e-6, 3),
                show(spread(&figures(&results, name, 0, ns)), 1.0, 0),
                show(spread(&figures(&results, name, 1, ns)), 1.0, 0),
                show(ratios(&rates, &figures(&results, "touch", 0, pps)), 1.0, 2),
                show(ratios(&rates, &figures(&results, "linux", 0, pps)), 1.0, 2),
            ]));
        }
    }
    Ok(())
}

fn figure_records() -> [Figure; 4] {
    let figure = |name: &str, title: &str, y: Axis| {
        let figure = Figure::new(name, title, None, y).only("/case", "capacity");
        figure.series("/subject").series("/parameters/family")
    };
    let mpps = Axis::new("/sample/received_pps", "throughput", "Mpps").times(1e-6);
    let ns = Axis::new("/sample/ns_per_packet", "CPU per packet", "ns");
    let capacity = |name, title| figure(name, title, mpps.clone()).only("/pace", "saturate");
    let to = |name: &str| Reference::Series(name.into());
    [
        capacity("capacity", "Capacity of one core"),
        capacity("capacity-touch", "Capacity against the least a router must do").relative_to(to("touch")),
        capacity("capacity-linux", "Capacity against Linux").relative_to(to("linux")),
        figure("cost-low", "CPU per packet at 0.4 Mpps", ns).only("/pace", json!({"rate": LOW_RATE_PPS})),
    ]
}
