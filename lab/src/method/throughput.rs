//! RFC 2544 26.1, throughput: the fastest rate at which all frames that were sent arrive. For a software router on a
//! shared machine, a stated loss is allowed instead (as in RFC 9411 and in practice).

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{Outcome, Trial, bisect, spread_of, valid};
use crate::measure::Spread;

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

impl Search {
    /// Number of trials of a search in which every rate loses too much. No search takes more.
    pub fn most_trials(&self) -> u64 {
        let mut trials = 0;
        let all_lose = |_| {
            trials += 1;
            Ok(false)
        };
        // No trial fails.
        let _ = bisect(self.between, |high| self.near(high), all_lose);
        trials
    }

    /// How close bounds must be, packets per second.
    fn near(&self, high: u64) -> u64 {
        (high as f64 * self.resolution) as u64
    }
}

/// What one search found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Throughput {
    /// Packets per second; `None`: too much is lost even at the lowest rate.
    pub pps: Option<u64>,
    /// Every trial, in order: the rate asked for, and its outcome.
    pub trials: Vec<(u64, Outcome)>,
    /// The machine disturbed some trial three times in a row, and the trial counted nevertheless.
    pub noisy: bool,
}

/// Results of repeated searches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Repeated {
    /// Share that may be lost.
    pub loss: f64,
    /// Packets per second; 0 where too much is lost even at the lowest rate.
    pub pps: Spread,
    /// Every search.
    pub searches: Vec<Throughput>,
}

/// Searches for each of the losses in turn (A B A B), `repeats` times.
///
/// # Errors
/// The errors of [`search`]; no repeats.
pub fn repeated(trial: &mut impl Trial, searches: &[Search], repeats: usize) -> Result<Vec<Repeated>> {
    ensure!(repeats > 0, "0 repeats: 1 or more");
    let mut found: Vec<Vec<Throughput>> = vec![Vec::new(); searches.len()];
    for _ in 0..repeats {
        for (search_, found) in searches.iter().zip(&mut found) {
            found.push(search(trial, search_)?);
        }
    }
    let repeated = |(search, found): (&Search, Vec<Throughput>)| Repeated {
        loss: search.loss,
        pps: spread_of(&found, |throughput| throughput.pps.unwrap_or(0) as f64),
        searches: found,
    };
    Ok(searches.iter().zip(found).map(repeated).collect())
}

/// Binary search, the highest rate first.
///
/// # Errors
/// Rates or shares that allow no search; a trial that fails.
pub fn search(trial: &mut impl Trial, search: &Search) -> Result<Throughput> {
    let (low, high) = search.between;
    ensure!(0 < low && low < high, "rates {low} to {high}: two different ones, above 0");
    ensure!((0.0..1.0).contains(&search.loss), "a loss of {}: 0 to 1", search.loss);
    ensure!(search.resolution > 0.0, "a resolution of {}: above 0", search.resolution);
    let mut found = Throughput { pps: None, trials: Vec::new(), noisy: false };
    found.pps = bisect(
        search.between,
        |high| search.near(high),
        |pps| {
            let (outcome, valid) = valid(trial, pps)?;
            found.noisy |= !valid;
            found.trials.push((pps, outcome));
            // A rate that was not offered was not carried, whatever happened to the packets.
            Ok(outcome.is_offered(pps) && outcome.loss() <= search.loss)
        },
    )?;
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
    fn a_rate_that_was_not_offered_was_not_carried() {
        let mut forwarder = Forwarder { starved: usize::MAX, ..Forwarder::new(u64::MAX) };
        let found = search(&mut forwarder, &SEARCH).unwrap();
        assert_eq!((found.pps, found.noisy), (None, true));
        // Nor is a rate carried that the generator cannot send.
        let mut forwarder = Forwarder { generator_pps: Some(3_000_000), ..Forwarder::new(u64::MAX) };
        let found = search(&mut forwarder, &SEARCH).unwrap().pps.unwrap();
        assert!((2_950_000..=3_065_000).contains(&found), "{found}");
    }

    #[test]
    fn a_trial_whose_losses_the_machine_caused_is_repeated() {
        let mut forwarder = Forwarder { stolen: 2, ..Forwarder::new(u64::MAX) };
        let found = search(&mut forwarder, &SEARCH).unwrap();
        assert_eq!((found.pps, found.noisy), (Some(8_000_000), false));
        assert_eq!(forwarder.asked.len(), 3);
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
    fn disturbed_trials_are_repeated_and_reported() {
        let mut twice = Forwarder { disturbed: 2, ..Forwarder::new(u64::MAX) };
        let found = search(&mut twice, &SEARCH).unwrap();
        assert_eq!((found.pps, found.noisy, twice.asked.len()), (Some(8_000_000), false, 3));
        assert_eq!(twice.repeated, 2);
        let mut always = Forwarder { disturbed: usize::MAX, ..Forwarder::new(u64::MAX) };
        let found = search(&mut always, &SEARCH).unwrap();
        assert!(found.noisy && found.pps.is_none());
    }

    #[test]
    fn no_search_takes_more_trials_than_its_maximum() {
        let most = SEARCH.most_trials();
        let trials = |capacity| search(&mut Forwarder::new(capacity), &SEARCH).unwrap().trials.len() as u64;
        assert_eq!(trials(0), most);
        assert!(
            [9_999, 10_000, 77_777, 4_000_000, 9_000_000].iter().all(|&capacity| trials(capacity) <= most)
        );
    }

    #[test]
    fn searches_take_turns() {
        let search = |loss| Search { between: (1, 1000), loss, resolution: 0.5 };
        // A loss by the machine in the first trial of the second repeat sends its search downwards.
        let noise = [0, 0, 1, 0, 0].into();
        let mut forwarder = Forwarder { loss_ppm: 0, noise, ..Forwarder::new(1000) };
        let found = repeated(&mut forwarder, &[search(0.0), search(0.001)], 2).unwrap();
        assert_eq!(forwarder.asked, [1000, 1000, 1000, 500, 1000]);
        assert_eq!(found[0].pps, Spread { median: 750.0, min: 500.0, max: 1000.0 });
        assert_eq!(found[1].pps, Spread { median: 1000.0, min: 1000.0, max: 1000.0 });
        assert_eq!((found[0].loss, found[1].loss, found[1].searches.len()), (0.0, 0.001, 2));
    }
}
