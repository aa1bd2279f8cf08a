//! RFC 2544 26.2, latency: how long packets take at the throughput rate, and at half of it, because at the throughput a
//! router's buffers are what is measured. The RFC tags one packet in a stream of two minutes. Here every packet carries
//! its time, so a trial gives a distribution.

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::{Latency, Outcome, Trial, spread_of, valid};
use crate::measure::Spread;

/// Latency at one rate, nanoseconds; each figure with its median and range over the trials.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AtRate {
    /// Rate asked for, packets per second.
    pub pps: u64,
    /// Medians of the trials.
    pub p50_ns: Spread,
    /// Their 99th percentiles.
    pub p99_ns: Spread,
    /// Their 99.9th percentiles.
    pub p999_ns: Spread,
    /// Their longest.
    pub max_ns: Spread,
    /// Their means (the RFC reports the average).
    pub mean_ns: Spread,
    /// Share lost: a packet that is lost has no latency.
    pub loss: Spread,
    /// The trials that it is computed from.
    pub trials: Vec<Outcome>,
    /// The machine disturbed some trial three times in a row.
    pub noisy: bool,
}

/// Latency at each of the rates, alternately (A B A B), `repeats` times (the RFC: 20 or more).
///
/// # Errors
/// No rate or no repeats; a trial that fails, or that does not measure latency.
pub fn at_rates(trial: &mut impl Trial, rates_pps: &[u64], repeats: usize) -> Result<Vec<AtRate>> {
    ensure!(!rates_pps.is_empty() && !rates_pps.contains(&0), "rates {rates_pps:?}: one or more, above 0");
    ensure!(repeats > 0, "0 repeats: 1 or more");
    let mut trials: Vec<Vec<(Outcome, Latency, bool)>> = vec![Vec::new(); rates_pps.len()];
    for _ in 0..repeats {
        for (&pps, trials) in rates_pps.iter().zip(&mut trials) {
            let (outcome, valid) = valid(trial, pps)?;
            let latency =
                outcome.latency.with_context(|| format!("no packet's latency is known at {pps} pps"))?;
            trials.push((outcome, latency, valid));
        }
    }
    Ok(rates_pps.iter().zip(&trials).map(|(&pps, trials)| at_rate(pps, trials)).collect())
}

fn at_rate(pps: u64, trials: &[(Outcome, Latency, bool)]) -> AtRate {
    let ns = |figure: fn(&Latency) -> u64| spread_of(trials, |(_, latency, _)| figure(latency) as f64);
    AtRate {
        pps,
        p50_ns: ns(|latency| latency.p50_ns),
        p99_ns: ns(|latency| latency.p99_ns),
        p999_ns: ns(|latency| latency.p999_ns),
        max_ns: ns(|latency| latency.max_ns),
        mean_ns: spread_of(trials, |(_, latency, _)| latency.mean_ns),
        loss: spread_of(trials, |(outcome, ..)| outcome.loss()),
        trials: trials.iter().map(|(outcome, ..)| *outcome).collect(),
        noisy: trials.iter().any(|(.., valid)| !valid),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::simulated::Forwarder, *};

    fn forwarder() -> Forwarder {
        Forwarder { idle_ns: Some(10_000), buffer: 50, ..Forwarder::new(1000) }
    }

    #[test]
    fn rates_take_turns_and_each_has_its_spread() {
        // The first repeat has the throughput rate 900 and its half, and so on.
        let jitter_ns = [0, 0, 300, 40, 100, 20].into();
        let mut forwarder = Forwarder { jitter_ns, ..forwarder() };
        let found = at_rates(&mut forwarder, &[900, 450], 3).unwrap();
        assert_eq!(forwarder.asked, [900, 450, 900, 450, 900, 450]);
        assert_eq!(found[0].p50_ns, Spread { median: 100_100.0, min: 100_000.0, max: 100_300.0 });
        assert_eq!(found[1].p50_ns, Spread { median: 18_201.0, min: 18_181.0, max: 18_221.0 });
        assert_eq!(found[1].p99_ns.median, 36_402.0);
        assert_eq!(found[1].p999_ns.median, 54_603.0);
        assert_eq!(found[1].max_ns.max, 72_884.0);
        assert_eq!(found[1].mean_ns.min, 18_181.0);
        assert_eq!((found[0].pps, found[0].trials.len(), found[0].noisy), (900, 3, false));
    }

    #[test]
    fn over_the_capacity_the_buffer_is_seen_and_the_loss() {
        let found = at_rates(&mut forwarder(), &[2000], 1).unwrap();
        assert_eq!((found[0].p50_ns.median, found[0].loss.median), (50e6, 0.5));
    }

    #[test]
    fn disturbed_trials_are_repeated_and_reported() {
        let mut twice = Forwarder { disturbed: 2, ..forwarder() };
        let found = at_rates(&mut twice, &[500], 2).unwrap();
        assert_eq!((found[0].noisy, twice.asked.len()), (false, 4));
    }

    #[test]
    fn a_trial_without_latency_is_an_error() {
        let error = at_rates(&mut Forwarder::new(1000), &[500], 1).unwrap_err();
        assert_eq!(error.to_string(), "no packet's latency is known at 500 pps");
    }
}
