//! Sudden steps of a queue's rate to more than one core can carry. Another core may share the flows of the queue. The part
//! measures how soon that core forwards packets, and how many packets are lost. The kernel plane shares the queue within a
//! control period.
//!
//! Millrace never lets the core of a workload help, and it treats a pinned process as a workload. So the generator is
//! pinned only while a step is sent. If the daemon notices this, the step is repeated.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{bed::Bed, parts::Parts, watch::lacked_time};
use crate::{losses::Losses, sys};

/// Steps of a trial.
pub(super) const STEPS: usize = 100;
/// Loads before and after the step, as parts of the rate that takes the high mark of one core.
const LITTLE: f64 = 0.3;
const HOT: f64 = 1.6;
/// Time at the low load. Before a step the daemon learns what a packet costs, and prepares help.
const CALM: Duration = Duration::from_millis(400);
/// Time from pinning the generator to the step.
const PINNED: Duration = Duration::from_millis(10);
/// Length of a step.
const LENGTH: Duration = Duration::from_millis(20);
/// Time after a step. The packets of the step have then arrived, or are lost.
const AFTER: Duration = Duration::from_millis(50);
const ATTEMPTS: usize = 10;
/// The largest share of the packets due that may be skipped. The generator's core is also the core that helps, and
/// the generator cannot send meanwhile.
const MOST_SKIPPED: f64 = 0.15;

/// Counters of the whole trial at one moment.
struct Counts {
    losses: Losses,
    sent: u64,
    skipped: u64,
    reordered: u64,
}

/// What a step did.
struct StepOutcome {
    /// Time from the step to the first packet by another core.
    spilled_us: Option<f64>,
    sent: u64,
    skipped: u64,
    lost: Losses,
    reordered: u64,
    /// The queues, and how many of them had helpers shortly before the step.
    queues: usize,
    helped: usize,
    /// Queues that were moved or shared since the step began, with the milliseconds since then.
    moves: Vec<Value>,
}

impl StepOutcome {
    fn sample(&self) -> Value {
        json!({"spilled_us": self.spilled_us, "sent": self.sent, "skipped": self.skipped,
            "queues": self.queues, "helped": self.helped, "moves": self.moves, "lost": self.lost.total(),
            "lost_by_name": self.lost.0, "reordered": self.reordered})
    }
}

impl Parts<'_> {
    /// Makes [`STEPS`] steps. `part` says whether flows may be shared.
    pub fn spills(&mut self, part: &str, repeat: usize) -> Result<()> {
        let [little, hot] = [LITTLE, HOT].map(|load| load * self.mark_pps);
        let before = self.bed.testbed.sink.arrived_in_all()?;
        let losses = Losses::now(&self.bed.testbed)?;
        self.bed.begin(little)?;
        let steps: Result<Vec<StepOutcome>> =
            (0..STEPS).map(|number| self.one_spill((part, repeat, number), [little, hot])).collect();
        self.bed.testbed.generator.stop()?;
        let steps = steps?;
        sys::sleep(AFTER)?;
        self.bed.check()?;
        let sent = self.bed.testbed.generator.packets()?;
        let received = self.bed.testbed.sink.arrived_in_all()? - before;
        let lost = Losses::now(&self.bed.testbed)?.since(&losses).total();
        let mut helped: Vec<f64> = steps.iter().filter_map(|step| step.spilled_us).collect();
        helped.sort_by(f64::total_cmp);
        let words = match quantile(&helped, 0.5).zip(quantile(&helped, 0.99)) {
            Some((half, most)) => format!("another core after {half:.0} us (99 %: {most:.0} us)"),
            None => "no other core carried anything".to_owned(),
        };
        let lost_in_steps: u64 = steps.iter().map(|step| step.lost.total()).sum();
        self.lines.push(json!({"record": "sample", "case": format!("{part}, in all"), "subject": "millrace",
            "repeat": repeat, "sample": {"steps": steps.len(), "sent": sent, "received": received, "lost": lost,
            "unexplained": sent as i64 - received as i64 - lost as i64}}));
        self.progress
            .step(&format!("{part} #{}: {words}; {lost_in_steps} packets lost in steps", repeat + 1));
        Ok(())
    }

    /// Makes a step, again if it was not what it should be.
    fn one_spill(
        &mut self,
        (part, repeat, number): (&str, usize, usize),
        [little, hot]: [f64; 2],
    ) -> Result<StepOutcome> {
        let mut attempt = 1;
        loop {
            sys::check_interrupted()?;
            let step = self.bed.spill(little, hot)?;
            let workloads = self.bed.workloads()?;
            let again = if !workloads.is_empty() {
                Some(format!("the daemon found workloads: {}", workloads.join(", ")))
            } else {
                lacked_time(step.sent, step.skipped, MOST_SKIPPED)
                    .then(|| "not sent as it should be".to_owned())
            };
            let sample = step.sample();
            let Some(why) = again.filter(|_| attempt < ATTEMPTS) else {
                self.lines
                    .push(json!({"record": "sample", "case": part, "subject": "millrace", "repeat": repeat,
                    "parameters": {"step": number}, "sample": sample}));
                return Ok(step);
            };
            self.lines.push(
                json!({"record": "again", "case": part, "repeat": repeat, "why": why, "sample": sample}),
            );
            attempt += 1;
        }
    }
}

impl Bed {
    /// Makes one step, and returns to the low load. The generator must be sending.
    fn spill(&mut self, little: f64, hot: f64) -> Result<StepOutcome> {
        self.testbed.generator.allow(&[])?;
        sys::sleep(CALM)?;
        let home = self.packed()?;
        self.urge_parts()?;
        let cores = &self.testbed.topology.cores;
        let all = [cores.generator, cores.router[0]];
        let other = all.into_iter().find(|core| *core != home).context("the generator has no core")?;
        let queues = self.reported("queues")?;
        let helped = queues.iter().filter(|queue| queue["helpers"][0].is_u64()).count();
        self.testbed.generator.allow(&[other])?;
        sys::sleep(PINNED)?;
        let before = self.counts()?;
        self.moves()?;
        self.testbed.sink.mark()?;
        let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let began_ns = sys::monotonic_ns();
        self.set_rate(hot)?;
        sys::sleep(LENGTH)?;
        let first = self.testbed.sink.first_by_core()?;
        self.set_rate(little)?;
        sys::sleep(AFTER)?;
        let after = self.counts()?;
        let moves = self.moves()?.into_iter().map(|it| {
            json!({"ms": (it.unix_s - unix_s) * 1e3, "port": it.port, "from": it.from, "to": it.to, "why": it.why})
        });
        let moves = moves.collect();
        let spilled_ns = first.get(other).copied().flatten();
        Ok(StepOutcome {
            spilled_us: spilled_ns.map(|ns| ns.saturating_sub(began_ns) as f64 / 1e3),
            sent: after.sent - before.sent,
            skipped: after.skipped - before.skipped,
            lost: after.losses.since(&before.losses),
            reordered: after.reordered - before.reordered,
            queues: queues.len(),
            helped,
            moves,
        })
    }

    fn counts(&self) -> Result<Counts> {
        let Bed { testbed, .. } = self;
        Ok(Counts {
            losses: Losses::now(testbed)?,
            sent: testbed.generator.packets()?,
            skipped: testbed.generator.skipped()?,
            reordered: testbed.sink.reordered()?,
        })
    }
}

/// The least of the sorted values that this share of them does not exceed.
pub(super) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(place.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_of_the_list() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            [0.0, 0.5, 0.99, 1.0].map(|share| quantile(&hundred, share)),
            [1.0, 50.0, 99.0, 100.0].map(Some)
        );
        assert_eq!(quantile(&[7.0], 0.5), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
