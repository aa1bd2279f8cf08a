//! Cost of a packet by flow rules (Q fig. 2): against how many rules there are, how many flows are active, how many masks a flow
//! is compared under; and a scan, in which every packet is of a new flow.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::{Sampling, head, row, show, testbed};
use crate::{
    compare::{Plan, Results, compare_in, figures, ns, pps},
    figure::{Axis, Figure, Reference},
    generator::Pace,
    measure::{ratios, spread},
    progress::Progress,
    record::{Output, Recorder},
    rules::Rules,
    subject,
    testbed::Testbed,
    workload::{Family, Workload},
};

/// Flows that are active when their number is not what is measured.
const ACTIVE: u32 = 4096;
/// In turn, so many that a flow is forgotten before its next packet comes: all packets are of new flows.
const SCAN: u32 = 1 << 20;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Numbers of rules, each of one flow's addresses and ports, in growing order; ratios are to the first
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 100, 1000, 10_000, 100_000, 1_000_000],
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    entries: Vec<u32>,
    /// Numbers of masks that every flow is compared under
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [2, 4, 16, 64],
        value_parser = clap::value_parser!(u16).range(2..=64))]
    masks: Vec<u16>,
    /// What to measure, alternately; Open vSwitch only up to 10,000 rules, which take it seconds
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["millrace", "ovs-afxdp", "ovs-packet"],
        default_values = ["millrace", "ovs-afxdp"])]
    pub(super) subjects: Vec<String>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

/// More rules than Open vSwitch is given.
const MOST_FOR_OTHERS: u32 = 10_000;

pub(super) fn run(options: &Options, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    figure_records().iter().try_for_each(|figure| recorder.figure(figure))?;
    let mut run = Run { options, testbed: testbed(0)?, recorder: &mut recorder, progress: Progress::new(0) };
    run.by_entries()?;
    run.by_flows()?;
    run.by_masks()
}

struct Run<'a> {
    options: &'a Options,
    testbed: Testbed,
    recorder: &'a mut Recorder,
    progress: Progress,
}

impl Run<'_> {
    /// The same flows among more and more rules. Those that have no rule of their own go by one for all.
    fn by_entries(&mut self) -> Result<()> {
        let title = "Cost against the number of rules, 4,096 active flows (ratios: to the fewest rules)";
        self.progress.print(&head(title, &["rules", "subject", "Mpps", "ns/packet", "ns, ratio"]));
        let mut first = None;
        for &entries in &self.options.entries {
            let mut active = Workload::benchmark(Family::V4, entries.max(ACTIVE), 0..=0);
            let rules = match entries {
                ..=ACTIVE => Rules::exact_and_rest(&active.targets[..entries as usize - 1]),
                _ => Rules::exact(&active.targets),
            };
            // From all over the table.
            let step = (active.targets.len() as u32 / ACTIVE) as usize;
            active.targets = active.targets.iter().step_by(step).take(ACTIVE as usize).copied().collect();
            self.testbed.rules = Some(rules);
            let parameters = json!({"rules": entries, "flows": ACTIVE});
            let results = self.compare("flows-entries", parameters, &active, entries)?;
            let first = first.get_or_insert_with(|| results.clone());
            self.rows(&[entries.to_string()], &results, first);
        }
        Ok(())
    }

    /// More and more of the flows of the largest table.
    fn by_flows(&mut self) -> Result<()> {
        let entries = self.options.entries.last().copied().unwrap_or(ACTIVE);
        let title = format!("Cost against active flows, {entries} rules (ratios: to 4,096)");
        self.progress.print(&head(&title, &["rules", "flows", "subject", "Mpps", "ns/packet", "ns, ratio"]));
        let all = Workload::benchmark(Family::V4, entries, 0..=0);
        self.testbed.rules = Some(Rules::exact(&all.targets));
        let mut first = None;
        for flows in [ACTIVE, 1, 65_536, 1_000_000].into_iter().filter(|flows| *flows <= entries) {
            let mut active = all.clone();
            active.targets.truncate(flows as usize);
            let parameters = json!({"rules": entries, "flows": flows});
            let results = self.compare("flows-active", parameters, &active, entries)?;
            let first = first.get_or_insert_with(|| results.clone());
            self.rows(&[entries.to_string(), flows.to_string()], &results, first);
        }
        Ok(())
    }

    /// Known flows, and a scan, under more and more masks.
    fn by_masks(&mut self) -> Result<()> {
        let title = "Known flows and a scan (every packet of a new flow) by masks; ratios: throughput of the scan to that of known flows";
        self.progress
            .print(&head(title, &["masks", "subject", "known Mpps", "scan Mpps", "scan ns/packet", "ratio"]));
        for &masks in &self.options.masks {
            let rules = Rules::masks(masks.into());
            let count = rules.count as u32;
            self.testbed.rules = Some(rules);
            let mut of = |flows: u32, kind: &str| {
                let workload = Workload::benchmark(Family::V4, flows, 0..=0);
                let parameters = json!({"masks": masks, "rules": count, "traffic": kind});
                self.compare("flows-masks", parameters, &workload, count)
            };
            let (known, scan) = (of(ACTIVE, "known")?, of(SCAN, "scan")?);
            for name in known.keys().filter(|name| scan.contains_key(*name)) {
                let [a, b] = [&known, &scan].map(|results| figures(results, name, 0, pps));
                self.progress.print(&row(&[
                    masks.to_string(),
                    name.clone(),
                    show(spread(&a), 1e-6, 3),
                    show(spread(&b), 1e-6, 3),
                    show(spread(&figures(&scan, name, 0, ns)), 1.0, 0),
                    show(ratios(&b, &a), 1.0, 2),
                ]));
            }
        }
        Ok(())
    }

    fn compare(&mut self, case: &str, parameters: Value, workload: &Workload, rules: u32) -> Result<Results> {
        let all = subject::named(&self.options.subjects);
        let subjects: Vec<&str> =
            all.into_iter().filter(|name| *name == "millrace" || rules <= MOST_FOR_OTHERS).collect();
        let plan = Plan {
            case,
            parameters,
            subjects: &subjects,
            paces: &[Pace::Saturate],
            repeats: self.options.sampling.repeat.into(),
            window: self.options.sampling.window(),
        };
        compare_in(&mut self.testbed, workload, &plan, self.recorder, &mut self.progress)
    }

    fn rows(&self, cells: &[String], results: &Results, first: &Results) {
        super::cost_rows(cells, results, first).iter().for_each(|row| self.progress.print(row));
    }
}

fn figure_records() -> [Figure; 3] {
    let ns = || Axis::new("/sample/ns_per_packet", "CPU per packet", "ns");
    let by = |name: &str, title: &str, x: &str, label: &str| {
        let x = Axis::new(x, label, "").log();
        Figure::new(name, title, Some(x), ns()).only("/case", name).series("/subject")
    };
    [
        by("flows-entries", "Cost against the number of rules", "/parameters/rules", "rules")
            .relative_to(Reference::First),
        by("flows-active", "Cost against active flows", "/parameters/flows", "flows"),
        by("flows-masks", "Cost against masks", "/parameters/masks", "masks")
            .series("/parameters/traffic")
            .note("known: 4,096 flows; scan: every packet of a new flow."),
    ]
}
