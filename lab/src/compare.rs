//! Measures subjects on the same work in the same run, alternately: A B A B. Ratios are taken pair by pair.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::{
    check::check_forwarding,
    generator::Pace,
    measure::{Sample, Window, measure_streams},
    progress::Progress,
    record::{Recorder, in_words},
    subject::{self, Subject},
    sys::{self, Interrupted},
    testbed::Testbed,
    workload::Workload,
};

/// Time between the start of a subject and its first packet.
pub(crate) const SETTLE: Duration = Duration::from_millis(200);
/// The same with a large table. A daemon that has just read a million routes frees memory. If the memory goes back to a
/// hypervisor, the machine stalls repeatedly for some seconds.
const SETTLE_LARGE: Duration = Duration::from_secs(5);

/// What to compare.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Name of the case, for the record.
    pub case: &'a str,
    /// Parameters of the case, for the record.
    pub parameters: Value,
    /// Names of subjects.
    pub subjects: &'a [&'a str],
    /// Paces of sending, measured one after another.
    pub paces: &'a [Pace],
    /// Rounds through the subjects, by their numbers in the record.
    pub repeats: Range<usize>,
    /// Length of each measurement.
    pub window: Window,
}

impl Plan<'_> {
    /// Number of measurements if all subjects can run.
    pub fn steps(&self) -> u64 {
        (self.repeats.len() * self.subjects.len() * self.paces.len()) as u64
    }
}

/// Samples by subject, then by pace, then in order of repeats. A subject that cannot run has no entry.
pub type Results = BTreeMap<String, Vec<Vec<Sample>>>;

/// As [`compare_in`], as a run of its own.
pub fn compare(
    testbed: &mut Testbed,
    workload: &Workload,
    plan: &Plan<'_>,
    recorder: &mut Recorder,
) -> Result<Results> {
    compare_in(testbed, workload, plan, recorder, &mut Progress::new(0))
}

/// Runs the plan as a part of a longer run. Every forwarder is checked byte by byte before it is measured. A subject
/// that cannot run is reported and left out, and the others go on. A subject that forwards wrongly is an error.
pub fn compare_in(
    testbed: &mut Testbed,
    workload: &Workload,
    plan: &Plan<'_>,
    recorder: &mut Recorder,
    progress: &mut Progress,
) -> Result<Results> {
    let mut results: Results =
        plan.subjects.iter().map(|name| (name.to_string(), vec![Vec::new(); plan.paces.len()])).collect();
    progress.expect(plan.steps());
    for repeat in plan.repeats.clone() {
        for (at, name) in plan.subjects.iter().enumerate() {
            let Some(samples) = results.get_mut(*name) else { continue };
            let Some(subject) = prepare(testbed, workload, plan.case, name, recorder)? else {
                results.remove(*name);
                let later =
                    plan.subjects[at + 1..].iter().filter(|name| results.contains_key(**name)).count();
                let subjects_left = later + (plan.repeats.end - repeat - 1) * results.len();
                progress.expect((subjects_left * plan.paces.len()) as u64);
                continue;
            };
            for (&pace, samples) in plan.paces.iter().zip(samples) {
                let targets = subject.addressed(&workload.targets);
                testbed.generator.set_streams(workload.streams(&targets, pace))?;
                let sample = measure_streams(testbed, plan.window)?;
                progress.step(&describe(plan, name, repeat, pace, &sample));
                recorder.line(
                    &json!({"record": "sample", "case": plan.case, "parameters": plan.parameters,
                    "subject": name, "repeat": repeat, "frame_bytes": workload.frame_bytes,
                    "targets": workload.targets.len(), "pace": pace, "sample": sample}),
                )?;
                samples.push(sample);
            }
        }
    }
    if results.is_empty() {
        bail!("no subject could run");
    }
    Ok(results)
}

/// Starts a subject, checks it byte by byte and leaves the generator with the targets of `workload`. If the subject
/// cannot run here, reports this and returns `None`.
pub fn prepare(
    testbed: &mut Testbed,
    workload: &Workload,
    case: &str,
    name: &str,
    recorder: &mut Recorder,
) -> Result<Option<Box<dyn Subject>>> {
    let subject = match subject::start(name, testbed) {
        Ok(subject) => subject,
        Err(error) if error.is::<Interrupted>() => return Err(error),
        Err(error) => {
            eprintln!("{name} cannot run here: {error:#}");
            recorder.line(&json!({"record": "skipped", "case": case, "subject": name,
                "why": format!("{error:#}")}))?;
            return Ok(None);
        }
    };
    sys::sleep(if workload.has_large_table() { SETTLE_LARGE } else { SETTLE })?;
    let next_hop = |address| workload.next_hop(address);
    let targets = subject.addressed(&workload.targets);
    check_forwarding(testbed, &*subject, &targets, workload.frame_bytes, next_hop)?;
    testbed.generator.set_targets(targets, workload.frame_bytes)?;
    Ok(Some(subject))
}

fn describe(plan: &Plan<'_>, name: &str, repeat: usize, pace: Pace, sample: &Sample) -> String {
    let pace = match pace {
        Pace::Saturate => "saturated".into(),
        Pace::FlatOut => "flat out".into(),
        Pace::Rate(pps) => format!("{:.2} Mpps offered", pps as f64 / 1e6),
    };
    let hidden = match sample.unexplained {
        0 => String::new(),
        packets => format!(", {packets} packets not accounted for"),
    };
    format!(
        "{}{}: {name} #{}, {pace}: {:.3} Mpps, {:.0} ns/packet, loss {:.2} %{hidden}",
        plan.case,
        in_words(&plan.parameters),
        repeat + 1,
        sample.received_pps / 1e6,
        sample.ns_per_packet.unwrap_or(f64::NAN),
        sample.loss * 100.0
    )
}

/// One figure of all samples of a subject at the pace with this index; empty if the subject did not run.
pub fn figures(results: &Results, subject: &str, pace: usize, figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
    results.get(subject).and_then(|paces| paces.get(pace)).into_iter().flatten().map(figure).collect()
}

/// Packets per second at the sink.
pub fn pps(sample: &Sample) -> f64 {
    sample.received_pps
}

/// CPU time per packet; NaN if none arrived.
pub fn ns(sample: &Sample) -> f64 {
    sample.ns_per_packet.unwrap_or(f64::NAN)
}
