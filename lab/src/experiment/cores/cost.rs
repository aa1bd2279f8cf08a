//! What a packet costs by load, beside Linux: on one core, the generator on the other.

use std::{cell::RefCell, rc::Rc, time::Duration};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::super::testbed;
use crate::{
    compare::{Plan, compare_in, figures, ns, pps},
    generator::Pace,
    measure::{Window, median},
    progress::Progress,
    record::Recorder,
    workload::{Family, Workload},
};

const DESTINATIONS: u32 = 4096;
/// Threads know their work at once: there is no table to read.
const WARM_UP: Duration = Duration::from_millis(200);
/// Percent of what Millrace carries.
pub(super) const LOADS: [u64; 6] = [2, 5, 10, 20, 40, 80];

/// Medians, ns of CPU time a packet.
pub(super) struct Cost {
    pub saturation_pps: f64,
    pub millrace_saturated: f64,
    pub millrace_at_10: Vec<f64>,
    pub linux_at_10: Vec<f64>,
    /// Of the daemon itself, for each packet.
    pub daemon_at_10: Vec<f64>,
}

pub(super) const SUBJECTS: [&str; 2] = ["linux", "millrace"];

/// Both at each load in turn, so many times. What was measured is added to `lines`.
pub(super) fn curve(
    seconds: f64,
    repeats: usize,
    lines: &mut Vec<Value>,
    progress: &mut Progress,
) -> Result<Cost> {
    let mut testbed = testbed(0)?;
    // As it is by itself, but on the core that Linux has too.
    testbed.placing = format!("policy = \"pack\"\nallowed = \"{}\"", testbed.topology.cores.router[0]);
    let workload = Workload::benchmark(Family::V4, DESTINATIONS, 0..=0);
    let kept = Rc::new(RefCell::new(Vec::new()));
    let mut recorder = {
        let kept = kept.clone();
        Recorder::each(move |line| {
            kept.borrow_mut().push(line.clone());
            Ok(())
        })
    };
    let window = Window::new(WARM_UP, Duration::from_secs_f64(seconds));
    let plan = |subjects, paces, repeats| Plan {
        case: "cost",
        parameters: json!({}),
        subjects,
        paces,
        repeats,
        window,
    };
    let saturated = compare_in(
        &mut testbed,
        &workload,
        &plan(&["millrace"], &[Pace::Saturate], 0..1),
        &mut Recorder::none(),
        progress,
    )?;
    let saturation_pps = median(&figures(&saturated, "millrace", 0, pps));
    let mut paces: Vec<Pace> =
        LOADS.iter().map(|percent| Pace::Rate((saturation_pps * *percent as f64 / 100.0) as u64)).collect();
    paces.push(Pace::Saturate);
    let results =
        compare_in(&mut testbed, &workload, &plan(&SUBJECTS, &paces, 0..repeats), &mut recorder, progress)?;
    drop(recorder);
    let at_10 = LOADS.iter().position(|percent| *percent == 10).context("no load of 10 %")?;
    let percent = |line: &Value| {
        let rate = line["pace"]["rate"].as_u64();
        rate.and_then(|rate| paces.iter().position(|pace| *pace == Pace::Rate(rate))).map(|at| LOADS[at])
    };
    for mut line in kept.take() {
        if let Some(percent) = percent(&line) {
            line["parameters"]["load_percent"] = percent.into();
        }
        lines.push(line);
    }
    Ok(Cost {
        saturation_pps,
        millrace_saturated: median(&figures(&results, "millrace", paces.len() - 1, ns)),
        millrace_at_10: figures(&results, "millrace", at_10, ns),
        linux_at_10: figures(&results, "linux", at_10, ns),
        daemon_at_10: figures(&results, "millrace", at_10, |sample| {
            sample.programs_busy * 1e9 / sample.received_pps
        }),
    })
}
