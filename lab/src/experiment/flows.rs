//! Cost of a packet by flow rules (Q fig. 2): against the number of rules, of active flows, and of masks that a flow is
//! compared under. Also for a scan, in which every packet is of a new flow, and when packets are handed to another core
//! (V1).

use std::{ops::Range, sync::Arc};

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::{Sampling, cost_rows, head, row, show, testbed};
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

/// Number of active flows where this is not measured.
const ACTIVE: u32 = 4096;
/// So many flows in turn that each is forgotten before its next packet comes: all packets are of new flows.
const SCAN: u32 = 1 << 20;

/// Packets a second where two cores share the work with the generator.
const OFFERED_PPS: u64 = 500_000;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct FlowsOptions {
    /// Numbers of rules, each for one flow's addresses and ports, in growing order; ratios are to the first
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 100, 1000, 10_000, 100_000, 1_000_000],
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    entries: Vec<u32>,
    /// Numbers of masks that every flow is compared under
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [2, 4, 16, 64],
        value_parser = clap::value_parser!(u16).range(2..=256))]
    masks: Vec<u16>,
    /// Subjects, alternately; Open vSwitch only up to 10,000 rules, which take it seconds
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["millrace", "ovs-afxdp", "ovs-packet"],
        default_values = ["millrace", "ovs-afxdp"])]
    pub(super) subjects: Vec<String>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

/// Most rules that Open vSwitch is given.
const MOST_FOR_OTHERS: usize = 10_000;

pub(super) fn run(options: &FlowsOptions, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    figure_records().iter().try_for_each(|figure| recorder.figure(figure))?;
    let mut run = Run {
        options,
        subjects: subject::named(&options.subjects),
        testbed: testbed(0)?,
        recorder: &mut recorder,
        progress: Progress::new(0),
    };
    run.by_entries()?;
    run.by_flows()?;
    run.by_masks()?;
    run.by_core()
}

/// A number of rules, and traffic through them.
struct Block {
    /// First cells of its row.
    cells: Vec<String>,
    parameters: Value,
    workload: Workload,
    rules: Arc<Rules>,
    pace: Pace,
}

struct Run<'a> {
    options: &'a FlowsOptions,
    subjects: Vec<&'a str>,
    testbed: Testbed,
    recorder: &'a mut Recorder,
    progress: Progress,
}

impl Run<'_> {
    /// The same flows among more and more rules. Flows without a rule of their own match one rule for all.
    fn by_entries(&mut self) -> Result<()> {
        let block = |&entries: &u32| {
            let mut active = Workload::benchmark(Family::V4, entries.max(ACTIVE), 0..=0);
            let rules = match entries {
                ..=ACTIVE => Rules::exact_and_rest(&active.targets[..entries as usize - 1]),
                _ => Rules::exact(&active.targets),
            };
            // Take flows from all over the table.
            let step = (active.targets.len() as u32 / ACTIVE) as usize;
            active.targets = active.targets.iter().step_by(step).take(ACTIVE as usize).copied().collect();
            Block {
                cells: vec![entries.to_string()],
                parameters: json!({"rules": entries, "flows": ACTIVE}),
                workload: active,
                rules: Arc::new(rules),
                pace: Pace::Saturate,
            }
        };
        let blocks: Vec<Block> = self.options.entries.iter().map(block).collect();
        let title = "Cost against the number of rules, 4,096 active flows (ratios: to the fewest rules)";
        self.alternate("flows-entries", title, &["rules"], &blocks)
    }

    /// More and more of the flows of the largest table.
    fn by_flows(&mut self) -> Result<()> {
        let entries = self.options.entries.last().copied().unwrap_or(ACTIVE);
        let all = Workload::benchmark(Family::V4, entries, 0..=0);
        let rules = Arc::new(Rules::exact(&all.targets));
        let block = |flows: u32| {
            let mut active = all.clone();
            active.targets.truncate(flows as usize);
            Block {
                cells: vec![entries.to_string(), flows.to_string()],
                parameters: json!({"rules": entries, "flows": flows}),
                workload: active,
                rules: rules.clone(),
                pace: Pace::Saturate,
            }
        };
        let flows = [ACTIVE, 1, 65_536, 1_000_000].into_iter().filter(|flows| *flows <= entries);
        let blocks: Vec<Block> = flows.map(block).collect();
        let title = format!("Cost against active flows, {entries} rules (ratios: to 4,096)");
        self.alternate("flows-active", &title, &["rules", "flows"], &blocks)
    }

    /// On the core where packets come in, and handed to another core, the generator's. Forwarding threads go before the
    /// generator.
    fn by_core(&mut self) -> Result<()> {
        self.subjects = vec!["millrace"];
        let active = Workload::benchmark(Family::V4, ACTIVE, 0..=0);
        let block = |handed_to: Option<usize>| {
            let rules = Rules::exact(&active.targets);
            Block {
                cells: vec![handed_to.map_or("-".into(), |core| core.to_string())],
                parameters: json!({"rules": ACTIVE, "flows": ACTIVE, "handed_to": handed_to}),
                workload: active.clone(),
                rules: Arc::new(match handed_to {
                    Some(core) => rules.handed_to(core),
                    None => rules,
                }),
                pace: Pace::Rate(OFFERED_PPS),
            }
        };
        let blocks = [None, Some(self.testbed.topology.cores.generator)].map(block);
        let title = "Cost of handing packets to another core, 0.5 Mpps offered (ratio: to the core where they come in)";
        self.alternate("flows-cores", title, &["handed to core"], &blocks)
    }

    /// Measures all blocks in turn, repeatedly, so that slow changes of the machine affect all of them.
    fn alternate(&mut self, case: &str, title: &str, columns: &[&str], blocks: &[Block]) -> Result<()> {
        let mut all = vec![Results::new(); blocks.len()];
        let rounds: usize = self.options.sampling.repeat.into();
        let mut later = rounds * blocks.len();
        for round in 0..rounds {
            for (block, all) in blocks.iter().zip(&mut all) {
                later -= 1;
                self.progress.then((later * self.subjects.len()) as u64);
                self.testbed.rules = Some(block.rules.clone());
                let results =
                    self.compare(case, &block.parameters, &block.workload, block.pace, round..round + 1)?;
                for (name, mut samples) in results {
                    let so_far = all.entry(name).or_insert_with(|| vec![Vec::new()]);
                    so_far[0].append(&mut samples[0]);
                }
            }
        }
        self.progress
            .print(&head(title, &[columns, &["subject", "Mpps", "ns/packet", "ns, ratio"]].concat()));
        let Some(first) = all.first() else { return Ok(()) };
        let rows =
            blocks.iter().zip(&all).flat_map(|(block, results)| cost_rows(&block.cells, results, first));
        rows.for_each(|row| self.progress.print(&row));
        Ok(())
    }

    /// Known flows, and a scan, under more and more masks.
    fn by_masks(&mut self) -> Result<()> {
        let title = "Known flows and a scan (every packet of a new flow) by masks; ratios: throughput of the scan to that of known flows";
        self.progress
            .print(&head(title, &["masks", "subject", "known Mpps", "scan Mpps", "scan ns/packet", "ratio"]));
        for &masks in &self.options.masks {
            let rules = Arc::new(Rules::masks(masks.into()));
            let count = rules.count;
            self.testbed.rules = Some(rules);
            let mut of = |flows: u32, kind: &str| {
                let workload = Workload::benchmark(Family::V4, flows, 0..=0);
                let parameters = json!({"masks": masks, "rules": count, "traffic": kind});
                self.compare(
                    "flows-masks",
                    &parameters,
                    &workload,
                    Pace::Saturate,
                    0..self.options.sampling.repeat.into(),
                )
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

    /// Compares subjects with the rules that the testbed has.
    fn compare(
        &mut self,
        case: &str,
        parameters: &Value,
        workload: &Workload,
        pace: Pace,
        repeats: Range<usize>,
    ) -> Result<Results> {
        let rules = self.testbed.rules.as_ref().map_or(0, |rules| rules.count);
        let can = |name: &&str| *name == "millrace" || rules <= MOST_FOR_OTHERS;
        let subjects: Vec<&str> = self.subjects.iter().copied().filter(can).collect();
        let plan = Plan {
            case,
            parameters: parameters.clone(),
            subjects: &subjects,
            paces: &[pace],
            repeats,
            window: self.options.sampling.window(),
        };
        compare_in(&mut self.testbed, workload, &plan, self.recorder, &mut self.progress)
    }
}

fn figure_records() -> [Figure; 4] {
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
        Figure::new("flows-cores", "Cost of handing packets to another core", None, ns())
            .only("/case", "flows-cores")
            .series("/parameters/handed_to")
            .note("0.5 Mpps, of 4,096 flows. null: on the core where they come in."),
    ]
}
