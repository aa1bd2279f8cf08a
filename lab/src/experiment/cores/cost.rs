//! Cost of a packet by load, beside Linux: on one core, with the generator on the other.

use std::{cell::RefCell, rc::Rc, time::Duration};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::super::testbed;
use crate::{
    compare::{Plan, Results, compare_in, figures, ns, pps},
    generator::Pace,
    measure::{Sample, Window, median},
    progress::Progress,
    record::Recorder,
    workload::{Family, Workload},
};

const DESTINATIONS: u32 = 4096;
/// Short, because the threads have no table to read.
const WARM_UP: Duration = Duration::from_millis(200);
/// Percent of what Millrace carries.
pub(super) const LOADS: [u64; 6] = [2, 5, 10, 20, 40, 80];

/// Cases, and the additional configuration of Millrace in each: the default, and cores that sleep between packets.
pub(super) const CASES: [(&str, &str); 2] = [("cost", ""), ("cost, asleep", "resume_latency = \"any\"")];

/// Results of each case.
pub(super) struct Cost {
    pub saturation_pps: f64,
    pub usual: Curve,
    pub asleep: Curve,
}

/// CPU nanoseconds a packet, for each repeat.
#[derive(Default)]
pub(super) struct Curve {
    pub saturated: Vec<f64>,
    pub millrace_at_10: Vec<f64>,
    pub linux_at_10: Vec<f64>,
    /// CPU time of the daemon itself, for each packet.
    pub daemon_at_10: Vec<f64>,
}

pub(super) const SUBJECTS: [&str; 2] = ["linux", "millrace"];

/// Measures both at each load, in each case, in turn, this many times. Adds the measurements to `lines`. `later` steps
/// come after these.
pub(super) fn curve(
    seconds: f64,
    repeats: usize,
    lines: &mut Vec<Value>,
    progress: &mut Progress,
    later: u64,
) -> Result<Cost> {
    let mut testbed = testbed(0)?;
    // Default settings, except that Millrace uses the core that Linux has too.
    let placing = format!("policy = \"pack\"\nallowed = \"{}\"", testbed.topology.cores.router[0]);
    let workload = Workload::benchmark(Family::V4, DESTINATIONS, 0..=0);
    let window = Window::new(WARM_UP, Duration::from_secs_f64(seconds));
    let plan = |case, subjects, paces, repeats| Plan {
        case,
        parameters: json!({}),
        subjects,
        paces,
        repeats,
        window,
    };
    testbed.placing = placing.clone();
    let first = plan(CASES[0].0, &["millrace"], &[Pace::Saturate], 0..3);
    let round = (SUBJECTS.len() * (LOADS.len() + 1)) as u64;
    let mut left = round * (CASES.len() * repeats) as u64;
    progress.then(left + later);
    let saturated = compare_in(&mut testbed, &workload, &first, &mut Recorder::none(), progress)?;
    let saturation_pps = median(&figures(&saturated, "millrace", 0, pps));
    let rate = |percent: u64| (saturation_pps * percent as f64 / 100.0) as u64;
    let mut paces: Vec<Pace> = LOADS.iter().map(|percent| Pace::Rate(rate(*percent))).collect();
    paces.push(Pace::Saturate);
    let kept = Rc::new(RefCell::new(Vec::new()));
    let mut recorder = {
        let kept = kept.clone();
        Recorder::each(move |line| {
            kept.borrow_mut().push(line.clone());
            Ok(())
        })
    };
    let mut curves = [Curve::default(), Curve::default()];
    for repeat in 0..repeats {
        for ((case, besides), curve) in CASES.iter().zip(&mut curves) {
            testbed.placing = format!("{placing}\n{besides}");
            left -= round;
            progress.then(left + later);
            let plan = plan(*case, &SUBJECTS, &paces, repeat..repeat + 1);
            curve.add(&compare_in(&mut testbed, &workload, &plan, &mut recorder, progress)?)?;
        }
    }
    drop(recorder);
    for mut line in kept.take() {
        let percent = LOADS.into_iter().find(|percent| line["pace"]["rate"] == rate(*percent));
        if let Some(percent) = percent {
            line["parameters"]["load_percent"] = percent.into();
        }
        lines.push(line);
    }
    let [usual, asleep] = curves;
    Ok(Cost { saturation_pps, usual, asleep })
}

impl Curve {
    fn add(&mut self, results: &Results) -> Result<()> {
        let at_10 = LOADS.iter().position(|percent| *percent == 10).context("no load of 10 %")?;
        self.saturated.extend(figures(results, "millrace", LOADS.len(), ns));
        self.millrace_at_10.extend(figures(results, "millrace", at_10, ns));
        self.linux_at_10.extend(figures(results, "linux", at_10, ns));
        let of_daemon = |sample: &Sample| sample.programs_busy * 1e9 / sample.received_pps;
        self.daemon_at_10.extend(figures(results, "millrace", at_10, of_daemon));
        Ok(())
    }
}
