//! Loads that make cores come and go, each a few times.

use std::{f64::consts::TAU, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    bed::{Bed, HIGH},
    watch::{Course, CourseOutcome, second_core},
};
use crate::progress::Progress;

/// Loads are parts of the rate that takes the high mark of one core. Two cores carry this one, and one core does not.
const MUCH: f64 = 1.2;
/// Load of one queue. A full core carries three quarters of it. For more, the generator has no time beside another
/// core.
const HOT: f64 = 1.6;
const LITTLE: f64 = 0.3;
/// A flash crowd starts from this load.
const NEXT_TO_NOTHING: f64 = 0.05;
/// A load that did not reach the high mark is raised by this factor and tried again: the machine has become faster
/// since the mark was measured. A trial is repeated, unchanged, if it could not be sent as it should, or if the machine
/// stood still and the second core forwarded before it had to.
const RAISE: f64 = 1.15;
const ATTEMPTS: usize = 4;
/// Time between notes where nothing is sudden.
const CALM: Duration = Duration::from_millis(50);
const SUDDEN: Duration = Duration::from_millis(20);

/// A bed, the rate that a core carries, and the destinations of results.
pub(super) struct Parts<'a> {
    pub bed: &'a mut Bed,
    /// Packets a second that take the high mark of one core.
    pub mark_pps: f64,
    pub lines: &'a mut Vec<Value>,
    pub progress: &'a mut Progress,
}

impl Parts<'_> {
    /// From a low load to a high one at once. `reaction_ms` is the time from passing the high mark to the first packet
    /// on the second core.
    pub fn steps(&mut self, part: &str, repeats: usize) -> Result<()> {
        const BEFORE_S: f64 = 0.5;
        let rate = |at_s: f64| if at_s < BEFORE_S { LITTLE } else { MUCH };
        self.trials(part, repeats, 1.5, &rate, SUDDEN, |seen, first| {
            let passed_s = seen.passed(first, HIGH, BEFORE_S);
            let reaction_ms = (second_core(seen, first)? - passed_s) * 1e3;
            ensure!(reaction_ms > 0.0, "a second core forwarded before the step");
            let late_ms = (passed_s - BEFORE_S) * 1e3;
            Ok((
                json!({"reaction_ms": reaction_ms, "passed_after_ms": late_ms}),
                format!("second core after {reaction_ms:.0} ms"),
            ))
        })
    }

    /// From well below the mark to well above it, in four seconds.
    pub fn ramps(&mut self, repeats: usize) -> Result<()> {
        const SECONDS: f64 = 4.0;
        const FROM: f64 = 0.6;
        // The rate rises in steps, because each change of it starts pacing again.
        let rate = |at_s: f64| {
            let risen = ((at_s / SECONDS).min(1.0) * 200.0).floor() / 200.0;
            FROM + (MUCH - FROM) * risen
        };
        self.trials("ramp", repeats, SECONDS + 0.5, &rate, CALM, |seen, first| {
            let second_core_s = second_core(seen, first)?;
            Ok((json!({"second_core_s": second_core_s}), format!("second core after {second_core_s:.2} s")))
        })
    }

    /// Around the mark, a sixth to each side of it, twice a second, for five hold times.
    pub fn wobbles(&mut self, repeats: usize) -> Result<()> {
        const PER_SECOND: f64 = 2.0;
        const SWING: f64 = 0.16;
        const HOLDS: f64 = 5.0;
        let hold = self.bed.hold;
        let rate = |at_s: f64| 1.0 + SWING * ((at_s * PER_SECOND * 40.0).floor() / 40.0 * TAU).sin();
        self.trials("wobble", repeats, HOLDS * hold.as_secs_f64(), &rate, CALM, |seen, _| {
            ensure!(
                !seen.moves.is_empty(),
                "a load that wobbled around the mark moved nothing: it did not reach it"
            );
            let most = seen.moves_within(hold);
            Ok((
                json!({"moves_per_hold": most, "holds": HOLDS}),
                format!("at most {most} moves of a queue in a hold time"),
            ))
        })
    }

    /// From next to nothing to much, for two seconds, and back.
    pub fn crowds(&mut self, repeats: usize) -> Result<()> {
        let rate = |at_s: f64| if (1.0..3.0).contains(&at_s) { MUCH } else { NEXT_TO_NOTHING };
        self.trials("crowd", repeats, 3.5, &rate, SUDDEN, |seen, first| {
            let second_core_s = second_core(seen, first)?;
            Ok((json!({"second_core_s": second_core_s}), format!("second core after {second_core_s:.2} s")))
        })
    }

    /// A queue that alone needs more than a core, for three seconds. `part` says whether its flows may be shared.
    pub fn hot(&mut self, part: &str, repeat: usize) -> Result<()> {
        const BEFORE_S: f64 = 0.5;
        const AFTER_S: f64 = 4.0;
        /// By then the queue is shared, if it ever is.
        const SETTLED_S: f64 = 1.5;
        let rate = |at_s: f64| if at_s < BEFORE_S { LITTLE } else { HOT };
        self.trial(part, repeat, AFTER_S, &rate, SUDDEN, |seen, first| {
            let (carried_pps, asked_pps) = seen.carried_pps(SETTLED_S, AFTER_S).context("nothing was noted")?;
            let other_s = seen.first_s.iter().find(|(core, _)| **core != first).map(|(_, at_s)| *at_s);
            let shared_after_ms = other_s.map(|at_s| (at_s - BEFORE_S) * 1e3);
            Ok((
                json!({"carried_pps": carried_pps, "asked_pps": asked_pps, "shared_after_ms": shared_after_ms}),
                format!("{carried_pps:.0} of {asked_pps:.0} packets a second"),
            ))
        })
    }

    /// Runs the trials of one part, each until the second core has been given back at a low rate. `rate` is a part of
    /// the mark's rate. `tell` gets what was seen and the core on which queues were packed; it returns more for the
    /// record and for people.
    fn trials(
        &mut self,
        part: &str,
        repeats: usize,
        seconds: f64,
        rate: &dyn Fn(f64) -> f64,
        every: Duration,
        tell: impl Fn(&CourseOutcome, usize) -> Result<(Value, String)>,
    ) -> Result<()> {
        (0..repeats).try_for_each(|repeat| self.trial(part, repeat, seconds, rate, every, &tell))
    }

    fn trial(
        &mut self,
        part: &str,
        repeat: usize,
        seconds: f64,
        rate: &dyn Fn(f64) -> f64,
        every: Duration,
        tell: impl Fn(&CourseOutcome, usize) -> Result<(Value, String)>,
    ) -> Result<()> {
        for attempt in 1.. {
            let first = self.bed.packed()?;
            let mark_pps = self.mark_pps;
            let rate = |at_s: f64| rate(at_s) * mark_pps;
            let little_pps = LITTLE * mark_pps;
            let course = Course { part, repeat, seconds, rate: &rate, little_pps, every };
            let seen = self.bed.follow(&course)?;
            let is_low = seen.moves.is_empty() && seen.highest_load() < HIGH;
            let told = tell(&seen, first);
            let again = match &told {
                _ if seen.is_noisy() => Some("not sent as it should be".to_owned()),
                _ if is_low => Some("the mark was not reached".to_owned()),
                told => told.as_ref().err().map(|error| format!("{error:#}")),
            };
            if let Some(why) = again.filter(|_| attempt < ATTEMPTS) {
                self.lines.push(json!({"record": "again", "case": part, "repeat": repeat, "why": why}));
                self.mark_pps *= if is_low && !seen.is_noisy() { RAISE } else { 1.0 };
                continue;
            }
            self.lines.extend(seen.time_line(&course));
            let (more, words) = told.map_err(|error| error.context(format!("{part} #{}", repeat + 1)))?;
            self.lines.push(seen.sample(&course, more));
            self.progress.step(&format!("{part} #{}: {words}; {}", repeat + 1, seen.in_words()));
            break;
        }
        Ok(())
    }
}
