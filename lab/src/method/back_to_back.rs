//! RFC 2544 26.4, back-to-back frames, by the procedure of RFC 9004 6: the longest burst at the highest rate that comes
//! through without loss, and the buffer size that follows from it.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{Outcome, attempt, bisect, spread_of};
use crate::measure::Spread;

/// Something that a burst can be sent through.
pub trait Burst {
    /// Sends this many frames with nothing between them. Waits until all that will come have come and the buffers are
    /// empty: 2 s or more after the burst (RFC 9004 6.2).
    fn burst(&mut self, frames: u64) -> Result<Outcome>;

    /// See [`super::Trial::again`].
    fn again(&mut self) -> Result<()> {
        Ok(())
    }
}

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Search {
    /// Burst lengths to search between, frames.
    pub between: (u64, u64),
    /// The search ends when the bounds are this close, frames (RFC 9004 6.2: the step size is reported).
    pub step: u64,
    /// How many times a burst must lose something before the loss counts: 1 is a plain binary search, more is a search
    /// with loss verification (ETSI GS NFV-TST 009 12.3.3). Losses that are not the router's do not mislead such a
    /// search.
    pub losses_to_believe: u32,
    /// Number of searches (RFC 2544 26.4: 50 or more; RFC 9004 6.3: a number that is reported).
    pub repeats: usize,
    /// Rate of the frames of a burst, packets per second.
    pub back_to_back_pps: f64,
    /// The router's throughput (26.1) for these frames, packets per second.
    pub throughput_pps: f64,
}

/// Result of a search (RFC 9004 6.4).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackToBack {
    /// The parameters of the search.
    pub search: Search,
    /// Longest burst without loss, frames: the benchmark is the mean over the searches; 0 where the shortest burst
    /// loses.
    pub frames_mean: f64,
    /// Its standard deviation over the searches.
    pub frames_deviation: f64,
    /// Its median and range.
    pub frames: Spread,
    /// Seconds that the mean burst takes.
    pub implied_buffer_seconds: f64,
    /// The same, less what the router forwards meanwhile: what it holds, in seconds at the back-to-back rate.
    pub corrected_buffer_seconds: f64,
    /// The longest burst that was tried came through: the buffer holds more, or the router is as fast as the generator and
    /// needs none (RFC 9004 6.1, 6.2). The figures are then lower bounds.
    pub at_limit: bool,
    /// The trials of each search: frames sent, and their outcome.
    pub trials: Vec<Vec<Outcome>>,
    /// The machine disturbed some trial three times in a row, and the trial counted nevertheless.
    pub noisy: bool,
}

/// Searches `repeats` times.
///
/// # Errors
/// Lengths or numbers that allow no search; a trial that fails.
pub fn search(trial: &mut impl Burst, search: &Search) -> Result<BackToBack> {
    let (low, high) = search.between;
    ensure!(0 < low && low < high, "bursts of {low} to {high} frames: two different lengths, above 0");
    ensure!(search.repeats > 0 && search.losses_to_believe > 0, "0 repeats or trials: 1 or more");
    ensure!(search.back_to_back_pps > 0.0, "frames back to back at {} pps: above 0", search.back_to_back_pps);
    let (mut longest, mut trials, mut noisy) = (Vec::new(), Vec::new(), false);
    for _ in 0..search.repeats {
        let mut of_search = Vec::new();
        let found = bisect(
            search.between,
            |_| search.step,
            |frames| {
                for _ in 0..search.losses_to_believe {
                    let (outcome, valid) = attempt(Outcome::is_valid, |again| {
                        if again {
                            trial.again()?;
                        }
                        trial.burst(frames)
                    })?;
                    noisy |= !valid;
                    of_search.push(outcome);
                    if outcome.received == outcome.sent {
                        return Ok(true);
                    }
                }
                Ok(false)
            },
        )?;
        longest.push(found.unwrap_or(0) as f64);
        trials.push(of_search);
    }
    let mean = longest.iter().sum::<f64>() / longest.len() as f64;
    let variance = longest.iter().map(|frames| (frames - mean).powi(2)).sum::<f64>() / longest.len() as f64;
    // RFC 9004 6.4.
    let implied = mean / search.back_to_back_pps;
    Ok(BackToBack {
        search: *search,
        frames_mean: mean,
        frames_deviation: variance.sqrt(),
        frames: spread_of(&longest, |frames| *frames),
        implied_buffer_seconds: implied,
        corrected_buffer_seconds: implied - implied * search.throughput_pps / search.back_to_back_pps,
        at_limit: longest.contains(&(high as f64)),
        trials,
        noisy,
    })
}

#[cfg(test)]
mod tests {
    use super::{super::simulated::Forwarder, *};

    const SEARCH: Search = Search {
        between: (100, 10_000),
        step: 1,
        losses_to_believe: 1,
        repeats: 1,
        back_to_back_pps: 10_000.0,
        throughput_pps: 7500.0,
    };

    fn forwarder() -> Forwarder {
        // A quarter of each burst has to wait, so 400 frames of buffer take bursts of 1600.
        Forwarder { buffer: 400, line_pps: 10_000, ..Forwarder::new(7500) }
    }

    #[test]
    fn the_burst_that_fills_the_buffer_is_found() {
        let found = search(&mut forwarder(), &SEARCH).unwrap();
        assert_eq!(found.frames_mean, 1600.0);
        assert_eq!(found.implied_buffer_seconds, 0.16);
        // 400 frames at the back-to-back rate.
        assert!((found.corrected_buffer_seconds - 0.04).abs() < 1e-12);
        assert_eq!((found.at_limit, found.noisy, found.frames_deviation), (false, false, 0.0));
    }

    #[test]
    fn lengths_are_halved_until_the_bounds_are_a_step_apart() {
        let mut forwarder = forwarder();
        let found = search(&mut forwarder, &Search { step: 500, ..SEARCH }).unwrap();
        assert_eq!(forwarder.asked, [10_000, 5050, 2575, 1337, 1956, 1646]);
        assert_eq!(found.frames_mean, 1337.0);
        assert_eq!(found.trials[0].len(), 6);
    }

    #[test]
    fn a_loss_is_believed_when_it_comes_again() {
        let one_loss = || Forwarder { noise: [0, 0, 0, 7].into(), ..forwarder() };
        let coarse = Search { step: 500, ..SEARCH };
        assert_eq!(search(&mut one_loss(), &coarse).unwrap().frames_mean, 1027.0);
        let mut forwarder = Forwarder { noise: [0, 0, 0, 0, 0, 0, 7].into(), ..forwarder() };
        let found = search(&mut forwarder, &Search { losses_to_believe: 2, ..coarse }).unwrap();
        let asked = [10_000, 10_000, 5050, 5050, 2575, 2575, 1337, 1337, 1956, 1956, 1646, 1646];
        assert_eq!((&forwarder.asked[..], found.frames_mean), (&asked[..], 1337.0));
    }

    #[test]
    fn searches_are_repeated_and_their_spread_is_reported() {
        let repeats = Search { step: 500, repeats: 2, ..SEARCH };
        let mut forwarder = Forwarder { noise: [0, 0, 0, 7].into(), ..forwarder() };
        let found = search(&mut forwarder, &repeats).unwrap();
        assert_eq!(found.frames, Spread { median: 1182.0, min: 1027.0, max: 1337.0 });
        assert_eq!((found.frames_mean, found.frames_deviation), (1182.0, 155.0));
    }

    #[test]
    fn a_search_that_ends_at_a_limit_is_marked() {
        let mut fast = Forwarder { line_pps: 10_000, ..Forwarder::new(10_000) };
        let found = search(&mut fast, &SEARCH).unwrap();
        assert_eq!((found.at_limit, found.frames_mean, fast.asked), (true, 10_000.0, vec![10_000]));
        let mut without_buffer = Forwarder { line_pps: 10_000, ..Forwarder::new(1000) };
        assert_eq!(search(&mut without_buffer, &SEARCH).unwrap().frames_mean, 0.0);
    }
}
