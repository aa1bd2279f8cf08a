//! RFC 2544 26.5, system recovery: an overload at 110 % of the throughput, then half of that rate. Measures how long
//! losses continue after the change.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{Outcome, attempt, spread_of};
use crate::measure::Spread;

/// Outcome of a stream whose rate changed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Changed {
    /// Before the change.
    pub before: Outcome,
    /// After it.
    pub after: Outcome,
    /// How long it was watched after the change, nanoseconds.
    pub watched_ns: u64,
    /// From the change to the last packet that was lost, nanoseconds. `None`: none was.
    pub last_loss_ns: Option<u64>,
}

/// Something that a stream can be sent through, whose rate changes without a pause.
pub trait Change {
    /// Sends at one rate (the RFC: for 60 s or more), then at the other until no more losses are expected.
    fn change(&mut self, from_pps: u64, to_pps: u64) -> Result<Changed>;

    /// See [`super::Trial::again`].
    fn again(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Result of the test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recovery {
    /// Rate of the overload, packets per second.
    pub overload_pps: u64,
    /// Rate after it.
    pub relief_pps: u64,
    /// From the change to the last loss, nanoseconds; 0 if nothing was lost after the change.
    pub recovery_ns: Spread,
    /// Losses ended in the first nine tenths of the time watched, in every trial. So they ended before the watching
    /// did.
    pub recovered: bool,
    /// Something was lost by the overload in every trial, so it was an overload.
    pub overloaded: bool,
    /// The trials that it is computed from.
    pub trials: Vec<Changed>,
    /// The machine disturbed some trial three times in a row.
    pub noisy: bool,
}

/// Overloads a router with this throughput `repeats` times, by a tenth, but no further than the generator's limit.
///
/// # Errors
/// No throughput, no repeats; a trial that fails.
pub fn recovery(
    trial: &mut impl Change,
    throughput_pps: u64,
    highest_pps: u64,
    repeats: usize,
) -> Result<Recovery> {
    ensure!(throughput_pps > 1, "a throughput of {throughput_pps} packets per second: above 1");
    ensure!(repeats > 0, "0 repeats: 1 or more");
    let overload_pps = (throughput_pps * 11 / 10).min(highest_pps);
    let relief_pps = overload_pps / 2;
    let (mut trials, mut noisy) = (Vec::new(), false);
    for _ in 0..repeats {
        let both_valid = |changed: &Changed| changed.before.is_valid() && changed.after.is_valid();
        let (changed, valid) = attempt(both_valid, |again| {
            if again {
                trial.again()?;
            }
            trial.change(overload_pps, relief_pps)
        })?;
        noisy |= !valid;
        trials.push(changed);
    }
    let ended = |trial: &Changed| trial.last_loss_ns.unwrap_or(0) < trial.watched_ns / 10 * 9;
    Ok(Recovery {
        overload_pps,
        relief_pps,
        recovery_ns: spread_of(&trials, |trial| trial.last_loss_ns.unwrap_or(0) as f64),
        recovered: trials.iter().all(ended),
        overloaded: trials.iter().all(|trial| trial.before.received < trial.before.sent),
        trials,
        noisy,
    })
}

#[cfg(test)]
mod tests {
    use super::{super::simulated::Forwarder, *};

    fn forwarder() -> Forwarder {
        Forwarder { recovery_ns: Some(3_000_000), ..Forwarder::new(1000) }
    }

    #[test]
    fn a_tenth_too_much_then_half_of_that() {
        let mut forwarder = forwarder();
        let found = recovery(&mut forwarder, 1000, 8000, 2).unwrap();
        assert_eq!(forwarder.asked, [1100, 550, 1100, 550]);
        assert_eq!((found.overload_pps, found.relief_pps), (1100, 550));
        assert_eq!((found.recovery_ns.median, found.recovered, found.overloaded), (3e6, true, true));
        assert_eq!((found.trials[0].before.received, found.trials[0].after.received), (1000, 550));
    }

    #[test]
    fn losses_that_do_not_end_and_overloads_without_loss_are_reported() {
        let mut endless = Forwarder { recovery_ns: Some(950_000_000), ..forwarder() };
        assert!(!recovery(&mut endless, 1000, 8000, 1).unwrap().recovered);
        let mut faster = Forwarder { recovery_ns: None, ..Forwarder::new(2000) };
        let found = recovery(&mut faster, 1000, 8000, 1).unwrap();
        assert_eq!((found.recovery_ns.max, found.recovered, found.overloaded), (0.0, true, false));
    }

    #[test]
    fn the_generator_bounds_the_overload_and_disturbed_trials_are_repeated() {
        let mut forwarder = Forwarder { disturbed: 1, ..forwarder() };
        let found = recovery(&mut forwarder, 1000, 1050, 1).unwrap();
        assert_eq!((&forwarder.asked[..], found.noisy), (&[1050, 525, 1050, 525][..], false));
    }
}
