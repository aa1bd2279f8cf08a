//! `millrace-lab overload`: what comes out when more and more comes in, up to ten times the saturating load of a
//! subject, or up to the generator's limit. A router that sheds load before it works on packets stays at its peak.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use super::{
    Sampling, Subjects,
    on_testbed::{HIGHEST_PPS, OnTestbed, TrialEvent},
    print_head, print_row, show, testbed,
};
use crate::{
    compare::prepare,
    figure::{Axis, Figure},
    generator::Pace,
    measure::spread,
    method::overload::{Curve, Sweep, curve},
    progress::Progress,
    record::{Output, Recorder},
    testbed::Testbed,
    workload::{Family, Workload},
};

const DESTINATIONS: u32 = 4096;
const TIMES: u64 = 10;
/// More than the generator can send, so its maximum is the last point.
const FLAT_OUT_PPS: u64 = HIGHEST_PPS + 1;
/// Approximate number of points of a curve. The generator ends it early for a fast subject.
const ABOUT_POINTS: u64 = 12;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct OverloadOptions {
    #[command(flatten)]
    pub(super) subjects: Subjects,
    /// Points of the curve for each saturating load, 1 to 100; the curve goes up to ten such loads
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=100))]
    steps: u64,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

pub(super) fn run(options: &OverloadOptions, output: &Output) -> Result<()> {
    let mut testbed = testbed(0)?;
    let mut recorder = output.recorder()?;
    recorder.figure(&figure())?;
    let mut curves: BTreeMap<&str, Vec<Curve>> = BTreeMap::new();
    let mut subjects = options.subjects.names();
    let repeats = usize::from(options.sampling.repeat);
    let mut progress = Progress::new(0);
    for repeat in 0..repeats {
        for (at, name) in subjects.clone().into_iter().enumerate() {
            let runs_left = (repeats - repeat) * subjects.len() - at;
            progress.expect(ABOUT_POINTS * runs_left as u64);
            // Repeats offer the same rates.
            let saturating_pps = curves.get(name).map(|curves| curves[0].saturating_pps);
            let mut case =
                Case { name, repeat, saturating_pps, recorder: &mut recorder, progress: &mut progress };
            match case.curve(&mut testbed, options)? {
                Some(curve) => curves.entry(name).or_default().push(curve),
                None => subjects.retain(|subject| *subject != name),
            }
        }
    }
    drop(progress);
    if curves.is_empty() {
        bail!("no subject could run");
    }
    print(&curves);
    Ok(())
}

fn figure() -> Figure {
    let mpps = |at: &str, label: &str| Axis::new(at, label, "Mpps").times(1e-6);
    let offered = mpps("/sample/offered_pps", "offered").by("/pace");
    let forwarded = mpps("/sample/received_pps", "forwarded");
    Figure::new("overload", "What comes out when more comes in", Some(offered), forwarded)
        .only("/case", "overload")
        .series("/subject")
}

/// One curve of one subject.
struct Case<'a> {
    name: &'a str,
    repeat: usize,
    /// The saturating load, if it is known already.
    saturating_pps: Option<u64>,
    recorder: &'a mut Recorder,
    progress: &'a mut Progress,
}

impl Case<'_> {
    /// `None`: the subject cannot run here.
    fn curve(&mut self, testbed: &mut Testbed, options: &OverloadOptions) -> Result<Option<Curve>> {
        let Self { name, repeat, saturating_pps, .. } = *self;
        let workload = Workload::benchmark(Family::V4, DESTINATIONS, 0..=0);
        let subject = prepare(testbed, &workload, "overload", name, self.recorder)?;
        let Some(_subject) = subject else { return Ok(None) };
        let mut seen = |told: TrialEvent<'_>| {
            let TrialEvent::Found(found, sample) = told else {
                self.progress.again();
                return Ok(());
            };
            self.progress.step(&format!("{name} #{}, {found}", repeat + 1));
            let Some((pace, sample)) = sample else { return Ok(()) };
            let case = if pace == Pace::Saturate { "overload, saturated" } else { "overload" };
            self.recorder.line(&json!({"record": "sample", "case": case, "parameters": {}, "subject": name,
                "repeat": repeat, "frame_bytes": workload.frame_bytes, "targets": workload.targets.len(),
                "pace": pace, "sample": sample}))
        };
        let (frame_bytes, window) = (workload.frame_bytes, options.sampling.window());
        let mut trial = OnTestbed { testbed, seen: &mut seen, frame_bytes, window };
        let saturating_pps = match saturating_pps {
            Some(pps) => pps,
            None => (trial.saturate()?.received_pps as u64).max(1),
        };
        let steps_per_time = options.steps;
        let sweep = Sweep { saturating_pps, times: TIMES, steps_per_time, highest_pps: FLAT_OUT_PPS };
        curve(&mut trial, &sweep).map(Some)
    }
}

fn print(curves: &BTreeMap<&str, Vec<Curve>>) {
    print_head(
        "Overload, IPv4: median (range)",
        &["subject", "peak, Mpps", "offered at most, saturating loads", "then comes out, % of the peak"],
    );
    for (name, curves) in curves {
        let of = |figure: fn(&Curve) -> f64| spread(&curves.iter().map(figure).collect::<Vec<_>>());
        let noisy = curves.iter().flat_map(|curve| &curve.points).filter(|point| point.noisy).count();
        let noisy = if noisy > 0 { format!(" ({noisy} points noisy)") } else { String::new() };
        print_row(&[
            name.to_string(),
            show(of(|curve| curve.peak_pps), 1e-6, 3) + &noisy,
            show(of(|curve| curve.reached_times), 1.0, 1),
            show(of(|curve| curve.last_of_peak), 100.0, 1),
        ]);
    }
}
