//! Trials of [`crate::method`] on a testbed: the generator and the sink do what its procedures ask for.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::{
    generator::{Load, Pace},
    measure::{Sample, Window, measure},
    method::{
        Outcome, Trial,
        back_to_back::Burst,
        recovery::{Change, Changed},
        reset::{Event, Outage, Reset},
    },
    sink::Watch,
    subject::{self, Subject},
    sys,
    testbed::Testbed,
};

/// Highest rate that the generator can pace. Above it, the generator sends as fast as it can.
pub(super) const HIGHEST_PPS: u64 = 8_000_000;

/// Time of the stream before and after a reset.
const AROUND_RESET: Duration = Duration::from_millis(500);
/// A packet that has not arrived after this time is lost. A router's thread may have to wait for its core.
const LOST_AFTER: Duration = Duration::from_millis(300);

/// How many packets had not arrived, and how many of them are certainly lost, by the time since a change.
type Missing = Vec<(Duration, u64, u64)>;
/// Packets that may be on their way: two full rings of a veth, and a batch.
const ON_THE_WAY: u64 = 600;

/// See [`OnTestbed::seen`].
pub(super) type TrialObserver<'a> = dyn FnMut(TrialEvent<'_>) -> Result<()> + 'a;

/// An event of trials.
pub(super) enum TrialEvent<'a> {
    /// One has ended: a line for people, and what was measured at which pace.
    Found(&'a str, Option<(Pace, &'a Sample)>),
    /// The last one was noisy and is repeated.
    Again,
}

/// A subject on a testbed whose targets are set.
pub(super) struct OnTestbed<'a> {
    pub(super) testbed: &'a mut Testbed,
    /// Gets the events of all trials.
    pub(super) seen: &'a mut TrialObserver<'a>,
    pub(super) frame_bytes: u16,
    /// Length of a trial.
    pub(super) window: Window,
}

impl OnTestbed<'_> {
    /// Keeps the router just busy enough that nothing is lost, and measures what comes through.
    pub(super) fn saturate(&mut self) -> Result<Sample> {
        self.sample(Pace::Saturate)
    }

    /// Sends as fast as the generator can.
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
        (self.seen)(TrialEvent::Found(&found, Some((pace, &sample))))?;
        Ok(sample)
    }

    /// Waits until as many packets as were sent have arrived after the first `before`, or no more come. Returns how
    /// many did.
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

    /// Counts of all packets since the generator was started, when the sink had seen `before`.
    fn outcome(&self, before: u64, seconds: f64) -> Result<Outcome> {
        let sent = self.testbed.generator.packets()?;
        let received = self.drained(before, sent)?;
        self.testbed.check_subject()?;
        Ok(Outcome {
            sent,
            skipped: self.testbed.generator.skipped()?,
            received,
            offered_pps: sent as f64 / seconds,
            received_pps: received as f64 / seconds,
            ..Outcome::default()
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
            stolen: sample.stolen,
            latency: sample.latency,
        })
    }

    fn again(&mut self) -> Result<()> {
        (self.seen)(TrialEvent::Again)
    }
}

impl Burst for OnTestbed<'_> {
    fn burst(&mut self, frames: u64) -> Result<Outcome> {
        sys::check_interrupted()?;
        let before = self.testbed.sink.arrived_in_all()?;
        let started = Instant::now();
        self.testbed.generator.send(self.frame_bytes, u32::try_from(frames).context("length of a burst")?)?;
        let outcome = self.outcome(before, started.elapsed().as_secs_f64())?;
        (self.seen)(TrialEvent::Found(&format!("burst of {frames}: {} arrived", outcome.received), None))?;
        Ok(outcome)
    }

    fn again(&mut self) -> Result<()> {
        (self.seen)(TrialEvent::Again)
    }
}

/// How long an overload lasts, and how long the lab watches after it (RFC 2544 26.5: 60 s or more).
const OVERLOAD: Duration = Duration::from_secs(2);
const WATCHED: Duration = Duration::from_secs(1);

impl Change for OnTestbed<'_> {
    /// The time of the last loss is known to about a millisecond: from the counters of redirects where these lose
    /// packets, and elsewhere from the counters of both ends.
    fn change(&mut self, from_pps: u64, to_pps: u64) -> Result<Changed> {
        let before = self.testbed.sink.arrived_in_all()?;
        self.testbed.generator.start(Load { frame_bytes: self.frame_bytes, pace: Pace::Rate(from_pps) })?;
        let watched = self.watch_change(before, to_pps);
        self.testbed.generator.stop()?;
        let (at_change, missing) = watched?;
        let all = self.outcome(before, (OVERLOAD + WATCHED).as_secs_f64())?;
        let lost = all.sent.saturating_sub(all.received);
        let last_loss_ns = last_loss(&missing, lost).map(|at| at.as_nanos() as u64);
        let found = format!(
            "{from_pps} pps, then {to_pps}: {lost} lost, the last {:.1} ms after the change",
            last_loss_ns.unwrap_or(0) as f64 / 1e6
        );
        (self.seen)(TrialEvent::Found(&found, None))?;
        let part = |sent: u64, skipped: u64, received: u64, over: Duration| Outcome {
            sent,
            skipped,
            received,
            offered_pps: sent as f64 / over.as_secs_f64(),
            received_pps: received as f64 / over.as_secs_f64(),
            ..Outcome::default()
        };
        let [sent, skipped, received] = at_change;
        Ok(Changed {
            before: part(sent, skipped, received, OVERLOAD),
            after: part(
                all.sent - sent,
                all.skipped - skipped,
                all.received.saturating_sub(received),
                WATCHED,
            ),
            watched_ns: WATCHED.as_nanos() as u64,
            last_loss_ns,
        })
    }

    fn again(&mut self) -> Result<()> {
        (self.seen)(TrialEvent::Again)
    }
}

impl OnTestbed<'_> {
    /// Changes the rate. Returns the packets sent, skipped and not lost until then, and a series: how many packets were
    /// missing at which time after it.
    fn watch_change(&mut self, before: u64, to_pps: u64) -> Result<([u64; 3], Missing)> {
        let testbed = &mut *self.testbed;
        let certain = |testbed: &Testbed| testbed.redirects.lost_in(testbed.namespaces());
        let lost_before = certain(testbed)?;
        sys::sleep(OVERLOAD)?;
        let mut missing = Vec::new();
        // Arrivals are read first, so that packets on their way count as missing, never as too many.
        let mut look = |testbed: &Testbed, at: Duration| -> Result<(u64, u64)> {
            let received = testbed.sink.arrived_in_all()? - before;
            let (sent, lost) = (testbed.generator.packets()?, certain(testbed)? - lost_before);
            missing.push((at, sent.saturating_sub(received), lost));
            Ok((sent, lost.max(sent.saturating_sub(received + ON_THE_WAY))))
        };
        let (sent, lost) = look(testbed, Duration::ZERO)?;
        let at_change = [sent, testbed.generator.skipped()?, sent - lost.min(sent)];
        testbed.generator.set_rate(0, to_pps)?;
        let changed = Instant::now();
        while changed.elapsed() < WATCHED {
            look(testbed, changed.elapsed())?;
            sys::sleep(Duration::from_millis(1))?;
        }
        Ok((at_change, missing))
    }
}

/// Resets a subject, by its name.
pub(super) struct Restart<'a, 'b> {
    pub(super) trial: OnTestbed<'a>,
    /// `None` while it does not run.
    pub(super) subject: &'b mut Option<Box<dyn Subject>>,
    pub(super) name: &'b str,
    /// Duration of the last reset. The stream without a reset lasts as long.
    pub(super) took: Duration,
}

impl Reset for Restart<'_, '_> {
    fn reset(&mut self, pps: u64, event: Event) -> Result<Outage> {
        let before = self.trial.testbed.sink.arrived_in_all()?;
        let load = Load { frame_bytes: self.trial.frame_bytes, pace: Pace::Rate(pps) };
        let started = Instant::now();
        self.trial.testbed.sink.watch(Watch { interruption: true, ..Watch::NOTHING })?;
        self.trial.testbed.generator.start(load)?;
        let happened = self.happen(event);
        let trial = &mut self.trial;
        trial.testbed.generator.stop()?;
        happened?;
        let outcome = trial.outcome(before, started.elapsed().as_secs_f64())?;
        let gap_ns = trial.testbed.sink.longest_interruption_ns()?;
        trial.testbed.sink.watch(Watch::NOTHING)?;
        let outage = Outage { outcome, gap_ns };
        let what = match event {
            Event::Orderly => "restarted",
            Event::Killed => "killed and started",
            Event::Nothing => "nothing happened",
        };
        let found = format!(
            "{what} in {:.2} s under {pps} pps: {} sent, {} lost, none for {:.2} ms",
            self.took.as_secs_f64(),
            outcome.sent,
            outage.lost(),
            gap_ns as f64 / 1e6
        );
        (trial.seen)(TrialEvent::Found(&found, None))?;
        Ok(outage)
    }

    fn again(&mut self) -> Result<()> {
        (self.trial.seen)(TrialEvent::Again)
    }
}

impl Restart<'_, '_> {
    fn happen(&mut self, event: Event) -> Result<()> {
        sys::sleep(AROUND_RESET)?;
        let began = Instant::now();
        match event {
            Event::Nothing => sys::sleep(self.took)?,
            Event::Orderly => self.start_anew()?,
            Event::Killed => self.kill()?,
        }
        self.took = began.elapsed();
        self.trial.testbed.router_threads()?;
        Ok(sys::sleep(AROUND_RESET)?)
    }

    fn start_anew(&mut self) -> Result<()> {
        *self.subject = None;
        *self.subject = Some(subject::start(self.name, self.trial.testbed)?);
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        let subject = self.subject.as_mut().context("the subject does not run")?;
        subject.programs().iter().for_each(|program| sys::kill(program.pid));
        if !subject.take_over(self.trial.testbed)? {
            return self.start_anew();
        }
        self.trial.testbed.forwarded_by(subject.threads(), subject.programs());
        Ok(())
    }
}

/// Time of the last loss: the last moment when fewer packets were missing than at the end, or fewer were certainly
/// lost, so that some were still to be lost. Packets on their way are missing, too, and hide as many losses, except
/// certain ones.
fn last_loss(missing: &[(Duration, u64, u64)], lost: u64) -> Option<Duration> {
    let certain = missing.last().map_or(0, |(.., certain)| *certain);
    let still_to_come = |(_, missing, sure): &&(Duration, u64, u64)| *missing < lost || *sure < certain;
    missing.iter().rev().find(still_to_come).map(|(at, ..)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_loss_is_after_the_last_moment_when_fewer_were_missing() {
        let at = |ms| Duration::from_millis(ms);
        // 100 had been lost before the change, 40 after it; between 5 and 9 packets are on their way.
        let missing = [(at(0), 107, 0), (at(1), 129, 0), (at(2), 134, 0), (at(3), 146, 0), (at(4), 149, 0)];
        assert_eq!(last_loss(&missing, 140), Some(at(2)));
        assert_eq!(last_loss(&missing, 100), None);
        assert_eq!(last_loss(&missing, 1000), Some(at(4)));
        // Five are lost while a hundred are on their way. Only the count of certain losses shows that.
        let hidden = [(at(0), 100, 0), (at(1), 100, 3), (at(2), 100, 5), (at(3), 100, 5)];
        assert_eq!(last_loss(&hidden, 5), Some(at(1)));
    }
}
