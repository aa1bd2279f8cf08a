//! RFC 2544 26.1, throughput: the fastest rate at which the frames that arrive are those that were sent; with a stated loss
//! instead of none where a router is software on a shared machine (as RFC 9411 and the field do).

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{Outcome, Trial, valid};

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// Rates to search between, packets per second. The lower one is tried only if all else fails.
    pub between: (u64, u64),
    /// Share that may be lost, 0..1.
    pub loss: f64,
    /// The search ends when the bounds are this close, as a share of the upper one.
    pub resolution: f64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Throughput {
    /// Packets per second; `None`: too much is lost at the lowest rate too.
    pub pps: Option<u64>,
    /// Every trial, in order: the rate asked for, and what became of it.
    pub trials: Vec<(u64, Outcome)>,
    /// Some trials were disturbed by the machine three times over, and counted all the same.
    pub noisy: bool,
}

/// Binary search, the highest rate first.
///
/// # Errors
/// Rates or shares that make no search; a trial that fails.
pub fn search(trial: &mut impl Trial, search: &Search) -> Result<Throughput> {
    let (mut low, mut high) = search.between;
    ensure!(0 < low && low < high, "rates {low} to {high}: two different ones, above 0");
    ensure!((0.0..1.0).contains(&search.loss), "a loss of {}: 0 to 1", search.loss);
    ensure!(search.resolution > 0.0, "a resolution of {}: above 0", search.resolution);
    let mut found = Throughput { pps: None, trials: Vec::new(), noisy: false };
    let mut passes = |pps: u64, found: &mut Throughput| -> Result<bool> {
        let (outcome, valid) = valid(trial, pps)?;
        found.noisy |= !valid;
        found.trials.push((pps, outcome));
        let passed = outcome.loss() <= search.loss;
        if passed {
            found.pps = found.pps.max(Some(pps));
        }
        Ok(passed)
    };
    if passes(high, &mut found)? {
        return Ok(found);
    }
    while high - low > ((high as f64 * search.resolution) as u64).max(1) {
        let middle = low + (high - low) / 2;
        if passes(middle, &mut found)? { low = middle } else { high = middle }
    }
    if found.pps.is_none() {
        passes(search.between.0, &mut found)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{super::simulated::Forwarder, *};

    const SEARCH: Search = Search { between: (10_000, 8_000_000), loss: 0.0, resolution: 0.01 };

    #[test]
    fn rates_are_halved_until_the_bounds_meet() {
        let mut forwarder = Forwarder::new(3_000_000);
        let search_ = Search { resolution: 0.1, ..SEARCH };
        let found = search(&mut forwarder, &search_).unwrap();
        assert_eq!(forwarder.asked, [8_000_000, 4_005_000, 2_007_500, 3_006_250, 2_506_875, 2_756_562]);
        assert_eq!((found.pps, found.noisy), (Some(2_756_562), false));
    }

    #[test]
    fn the_capacity_is_found_to_the_resolution() {
        for capacity in [10_001, 123_456, 1_000_000, 5_432_100, 7_999_999] {
            let found = search(&mut Forwarder::new(capacity), &SEARCH).unwrap().pps.unwrap();
            let least = (capacity as f64 * 0.98) as u64;
            assert!((least.max(10_000)..=capacity).contains(&found), "{capacity}: {found}");
        }
    }

    #[test]
    fn the_highest_rate_ends_the_search_and_the_lowest_is_the_last_resort() {
        let mut fast = Forwarder::new(u64::MAX);
        assert_eq!(search(&mut fast, &SEARCH).unwrap().pps, Some(8_000_000));
        assert_eq!(fast.asked, [8_000_000]);
        let mut slow = Forwarder::new(10_000);
        assert_eq!(search(&mut slow, &SEARCH).unwrap().pps, Some(10_000));
        assert_eq!(search(&mut Forwarder::new(9_999), &SEARCH).unwrap().pps, None);
    }

    #[test]
    fn a_stated_loss_is_allowed() {
        let lossy = || Forwarder { loss_ppm: 900, ..Forwarder::new(2_000_000) };
        assert_eq!(search(&mut lossy(), &SEARCH).unwrap().pps, None);
        let found = search(&mut lossy(), &Search { loss: 0.001, ..SEARCH }).unwrap().pps.unwrap();
        assert!((1_960_000..=2_000_200).contains(&found), "{found}");
    }

    #[test]
    fn disturbed_trials_are_repeated_and_told_of() {
        let mut twice = Forwarder { disturbed: 2, ..Forwarder::new(u64::MAX) };
        let found = search(&mut twice, &SEARCH).unwrap();
        assert_eq!((found.pps, found.noisy, twice.asked.len()), (Some(8_000_000), false, 3));
        let mut always = Forwarder { disturbed: usize::MAX, ..Forwarder::new(u64::MAX) };
        let found = search(&mut always, &SEARCH).unwrap();
        assert!(found.noisy && found.pps.is_none());
    }
}
