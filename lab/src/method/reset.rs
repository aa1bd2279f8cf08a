//! RFC 2544 26.6, reset, in the form of RFC 6201: how long nothing is forwarded when a router is reset under load. For
//! a software router, this is a reset of its process (RFC 6201 4.2.2): stopped in order, or killed. An equal stream
//! without a reset takes turns with the others, and shows what the machine loses on its own.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{Outcome, attempt, spread_of};
use crate::measure::Spread;

/// What happens to a router in the middle of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// It is stopped in order and started again.
    Orderly,
    /// Its process is killed without warning and started again.
    Killed,
    /// Nothing.
    Nothing,
}

impl Event {
    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Orderly => "orderly",
            Self::Killed => "killed",
            Self::Nothing => "nothing",
        }
    }
}

/// Outcome of a stream during which something happened.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outage {
    /// The outcome of the whole stream.
    pub outcome: Outcome,
    /// From the last packet before the longest interruption to the first one after it, nanoseconds: the time-stamp method of
    /// RFC 6201 1.3.
    pub gap_ns: u64,
}

impl Outage {
    /// Packets lost.
    pub fn lost(&self) -> u64 {
        self.outcome.sent.saturating_sub(self.outcome.received)
    }
}

/// Something that can be reset while a stream goes through it.
pub trait Reset {
    /// Sends at a rate, lets the event happen once, and continues to send until packets come through as before.
    fn reset(&mut self, pps: u64, event: Event) -> Result<Outage>;

    /// See [`super::Trial::again`].
    fn again(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Result for one event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResetTime {
    /// What happened.
    pub event: Event,
    /// Rate offered, packets per second.
    pub pps: u64,
    /// Packets lost over the rate offered: the frame-loss method of RFC 6201 1.3, nanoseconds.
    pub reset_ns: Spread,
    /// By the time-stamp method.
    pub gap_ns: Spread,
    /// Packets lost.
    pub lost: Spread,
    /// The trials that it is computed from.
    pub trials: Vec<Outage>,
    /// The machine disturbed some trial three times in a row.
    pub noisy: bool,
}

/// Lets each of `events` happen `repeats` times, in turn, at a rate that loses nothing without an event.
///
/// # Errors
/// No rate, no repeats; a trial that fails.
pub fn reset(trial: &mut impl Reset, pps: u64, events: &[Event], repeats: usize) -> Result<Vec<ResetTime>> {
    ensure!(pps > 0, "a rate is 0 packets per second: it must be above 0");
    ensure!(repeats > 0, "0 repeats: 1 or more");
    let mut found: Vec<_> = events.iter().map(|&event| (event, Vec::new(), false)).collect();
    for _ in 0..repeats {
        for (event, trials, noisy) in &mut found {
            let is_valid = |outage: &Outage| outage.outcome.is_valid() && outage.outcome.is_offered(pps);
            let (outage, valid) = attempt(is_valid, |again| {
                if again {
                    trial.again()?;
                }
                trial.reset(pps, *event)
            })?;
            *noisy |= !valid;
            trials.push(outage);
        }
    }
    let of_event = |(event, trials, noisy): (Event, Vec<Outage>, bool)| ResetTime {
        event,
        pps,
        reset_ns: spread_of(&trials, |trial| trial.lost() as f64 / pps as f64 * 1e9),
        gap_ns: spread_of(&trials, |trial| trial.gap_ns as f64),
        lost: spread_of(&trials, |trial| trial.lost() as f64),
        trials,
        noisy,
    };
    Ok(found.into_iter().map(of_event).collect())
}

#[cfg(test)]
mod tests {
    use super::{super::simulated::Forwarder, *};

    #[test]
    fn losses_over_the_rate_are_the_time_and_events_take_turns() {
        let mut forwarder = Forwarder { outage_ns: 20_000_000, ..Forwarder::new(1_000_000) };
        let found = reset(&mut forwarder, 500_000, &[Event::Killed, Event::Nothing], 3).unwrap();
        assert_eq!(forwarder.events, [Event::Killed, Event::Nothing].repeat(3));
        assert_eq!(forwarder.asked, [500_000; 6]);
        let seen = |found: &ResetTime| {
            (found.event, found.lost.median, found.reset_ns.median, found.gap_ns.median, found.noisy)
        };
        assert_eq!(seen(&found[0]), (Event::Killed, 10_000.0, 20e6, 20_002_000.0, false));
        assert_eq!(seen(&found[1]), (Event::Nothing, 0.0, 0.0, 2000.0, false));
    }

    #[test]
    fn one_that_keeps_forwarding_takes_no_time_and_noise_shows_in_the_range() {
        let mut forwarder = Forwarder { noise: [0, 500, 0].into(), ..Forwarder::new(1_000_000) };
        let found = reset(&mut forwarder, 500_000, &[Event::Orderly], 3).unwrap();
        assert_eq!(found[0].reset_ns, Spread { median: 0.0, min: 0.0, max: 1e6 });
    }

    #[test]
    fn disturbed_trials_are_repeated_and_reported() {
        let mut forwarder = Forwarder { disturbed: 3, ..Forwarder::new(1000) };
        let found = reset(&mut forwarder, 500, &[Event::Orderly], 1).unwrap();
        assert!(found[0].noisy && (forwarder.asked.len(), forwarder.repeated) == (3, 2));
    }
}
