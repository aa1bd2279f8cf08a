//! RFC 2544 26.6, reset, as RFC 6201 has it: for how long nothing is forwarded when a router is restarted under load. For one
//! that is software the reset is that of its process (RFC 6201 4.2.2).

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{Outcome, attempt, spread_of};
use crate::measure::Spread;

/// What became of a stream during which the router was reset.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outage {
    /// Of all the stream.
    pub outcome: Outcome,
    /// From the last packet before the longest interruption to the first one after it, nanoseconds, if the trial looks at it:
    /// the time-stamp method of RFC 6201 1.3.
    pub gap_ns: Option<u64>,
}

/// Something that can be reset while a stream goes through it.
pub trait Reset {
    /// Sends at a rate, resets once, and sends on until packets come through as before.
    fn reset(&mut self, pps: u64) -> Result<Outage>;
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResetTime {
    /// Rate offered, packets per second.
    pub pps: u64,
    /// Packets lost over the rate offered: the frame-loss method of RFC 6201 1.3, nanoseconds.
    pub reset_ns: Spread,
    /// By the time-stamp method, if the trials look at it.
    pub gap_ns: Option<Spread>,
    /// Packets lost.
    pub lost: Spread,
    /// What it is computed from.
    pub trials: Vec<Outage>,
    /// The machine disturbed some trials three times over.
    pub noisy: bool,
}

/// Resets `repeats` times, at a rate that loses nothing without.
///
/// # Errors
/// No rate, no repeats; a trial that fails.
pub fn reset(trial: &mut impl Reset, pps: u64, repeats: usize) -> Result<ResetTime> {
    ensure!(pps > 0, "a rate of 0 packets per second: above 0");
    ensure!(repeats > 0, "0 repeats: 1 or more");
    let (mut trials, mut noisy) = (Vec::new(), false);
    for _ in 0..repeats {
        let (outage, valid) = attempt(|outage: &Outage| outage.outcome.is_valid(), || trial.reset(pps))?;
        noisy |= !valid;
        trials.push(outage);
    }
    let lost = |trial: &Outage| trial.outcome.sent.saturating_sub(trial.outcome.received) as f64;
    let gaps: Option<Vec<u64>> = trials.iter().map(|trial| trial.gap_ns).collect();
    Ok(ResetTime {
        pps,
        reset_ns: spread_of(&trials, |trial| lost(trial) / pps as f64 * 1e9),
        gap_ns: gaps.map(|gaps| spread_of(&gaps, |gap| *gap as f64)),
        lost: spread_of(&trials, lost),
        trials,
        noisy,
    })
}

#[cfg(test)]
mod tests {
    use super::{super::simulated::Forwarder, *};

    #[test]
    fn losses_over_the_rate_are_the_time() {
        let mut forwarder = Forwarder { outage_ns: 20_000_000, ..Forwarder::new(1_000_000) };
        let found = reset(&mut forwarder, 500_000, 3).unwrap();
        assert_eq!(forwarder.asked, [500_000; 3]);
        assert_eq!((found.lost.median, found.reset_ns.median), (10_000.0, 20e6));
        assert_eq!((found.gap_ns, found.noisy), (None, false));
    }

    #[test]
    fn one_that_keeps_forwarding_takes_no_time_and_noise_shows_in_the_range() {
        let mut forwarder = Forwarder { noise: [0, 500, 0].into(), ..Forwarder::new(1_000_000) };
        let found = reset(&mut forwarder, 500_000, 3).unwrap();
        assert_eq!(found.reset_ns, Spread { median: 0.0, min: 0.0, max: 1e6 });
    }

    #[test]
    fn disturbed_trials_are_repeated_and_told_of() {
        let mut forwarder = Forwarder { disturbed: 3, ..Forwarder::new(1000) };
        let found = reset(&mut forwarder, 500, 1).unwrap();
        assert!(found.noisy && forwarder.asked.len() == 3);
    }
}
