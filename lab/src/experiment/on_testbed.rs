//! Trials of [`crate::method`] on a testbed: what its procedures ask for, done by the generator and seen by the sink.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::{
    generator::{Load, Pace},
    measure::{Sample, Window, measure},
    method::{
        Outcome, Trial,
        back_to_back::Burst,
        reset::{Outage, Reset},
    },
    subject::{self, Subject},
    sys,
    testbed::Testbed,
};

/// What the generator can pace. Asked for more than that, it sends as fast as it can.
pub(super) const HIGHEST_PPS: u64 = 8_000_000;

/// Before and after a reset.
const AROUND_RESET: Duration = Duration::from_millis(500);
/// Packets that do not come for so long do not come any more: a router's thread may have to wait for its core.
const LOST_AFTER: Duration = Duration::from_millis(300);

/// See [`OnTestbed::seen`].
pub(super) type Seen<'a> = dyn FnMut(&str, Option<(Pace, &Sample)>) -> Result<()> + 'a;

/// A subject on a testbed whose targets are set.
pub(super) struct OnTestbed<'a> {
    pub(super) testbed: &'a mut Testbed,
    /// Is told of every trial: a line for people, and what was measured at which pace.
    pub(super) seen: &'a mut Seen<'a>,
    pub(super) frame_bytes: u16,
    /// Length of a trial.
    pub(super) window: Window,
}

impl OnTestbed<'_> {
    /// What comes through when the router is kept busy without losing anything, and by no more than that.
    pub(super) fn saturate(&mut self) -> Result<Sample> {
        self.sample(Pace::Saturate)
    }

    /// As fast as the generator can.
    pub(super) fn flat_out(&mut self) -> Result<Sample> {
        self.sample(Pace::FlatOut)
    }

    fn sample(&mut self, pace: Pace) -> Result<Sample> {
        let load = Load { frame_bytes: self.frame_bytes, pace };
        let sample = measure(self.testbed, load, self.window)?;
        let asked = match pace {
            Pace::Saturate => "saturated".into(),
            Pace::FlatOut => "flat out".into(),
            Pace::Rate(pps) => format!("{:.3} Mpps", pps as f64 / 1e6),
        };
        let found = format!(
            "{asked}: {} sent, {} arrived, {:.3} Mpps",
            sample.sent,
            sample.received,
            sample.received_pps / 1e6
        );
        (self.seen)(&found, Some((pace, &sample)))?;
        Ok(sample)
    }

    /// Waits until as many packets as were sent have arrived since there were `before`, or no more come; how many did.
    fn drained(&self, before: u64, sent: u64) -> Result<u64> {
        let (mut last, mut changed) = (0, Instant::now());
        loop {
            let received = self.testbed.sink.arrived_in_all()? - before;
            if received != last {
                (last, changed) = (received, Instant::now());
            }
            if received >= sent || changed.elapsed() > LOST_AFTER {
                return Ok(received);
            }
            sys::sleep(Duration::from_millis(5))?;
        }
    }

    /// What became of all packets since the generator was started and the sink had seen `before`.
    fn outcome(&self, before: u64, seconds: f64) -> Result<Outcome> {
        let sent = self.testbed.generator.packets()?;
        let received = self.drained(before, sent)?;
        Ok(Outcome {
            sent,
            skipped: self.testbed.generator.skipped()?,
            received,
            offered_pps: sent as f64 / seconds,
            received_pps: received as f64 / seconds,
            latency: None,
        })
    }
}

impl Trial for OnTestbed<'_> {
    fn run(&mut self, pps: u64) -> Result<Outcome> {
        let pace = if pps > HIGHEST_PPS { Pace::FlatOut } else { Pace::Rate(pps) };
        let sample = self.sample(pace)?;
        Ok(Outcome {
            sent: sample.sent,
            skipped: sample.skipped,
            received: sample.received,
            offered_pps: sample.offered_pps,
            received_pps: sample.received_pps,
            latency: None,
        })
    }
}

impl Burst for OnTestbed<'_> {
    fn burst(&mut self, frames: u64) -> Result<Outcome> {
        sys::check_interrupted()?;
        let before = self.testbed.sink.arrived_in_all()?;
        let started = Instant::now();
        self.testbed.generator.send(self.frame_bytes, u32::try_from(frames).context("length of a burst")?)?;
        let outcome = self.outcome(before, started.elapsed().as_secs_f64())?;
        (self.seen)(&format!("burst of {frames}: {} arrived", outcome.received), None)?;
        Ok(outcome)
    }
}

/// Resets a subject by its name: it is stopped, which leaves packets to Linux, and started again.
pub(super) struct Restart<'a, 'b> {
    pub(super) trial: OnTestbed<'a>,
    /// `None` while it does not run.
    pub(super) subject: &'b mut Option<Box<dyn Subject>>,
    pub(super) name: &'b str,
}

impl Reset for Restart<'_, '_> {
    fn reset(&mut self, pps: u64) -> Result<Outage> {
        let trial = &mut self.trial;
        let before = trial.testbed.sink.arrived_in_all()?;
        let load = Load { frame_bytes: trial.frame_bytes, pace: Pace::Rate(pps) };
        let started = Instant::now();
        trial.testbed.generator.start(load)?;
        let restarted = restart(trial.testbed, self.subject, self.name);
        trial.testbed.generator.stop()?;
        let took = restarted?;
        let outcome = trial.outcome(before, started.elapsed().as_secs_f64())?;
        let found = format!(
            "restarted in {:.2} s under {pps} pps: {} sent, {} arrived",
            took.as_secs_f64(),
            outcome.sent,
            outcome.received
        );
        (trial.seen)(&found, None)?;
        Ok(Outage { outcome, gap_ns: None })
    }
}

fn restart(testbed: &Testbed, subject: &mut Option<Box<dyn Subject>>, name: &str) -> Result<Duration> {
    sys::sleep(AROUND_RESET)?;
    let stopped = Instant::now();
    *subject = None;
    *subject = Some(subject::start(name, testbed)?);
    let took = stopped.elapsed();
    testbed.router_threads()?;
    sys::sleep(AROUND_RESET)?;
    Ok(took)
}
