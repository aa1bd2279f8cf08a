//! RFC 2544 26.3, frame loss rate: the share of frames lost at the highest rate, and at lower rates in equal steps,
//! until two successive rates lose nothing.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{Outcome, Trial, spread_of, valid};
use crate::measure::Spread;

/// One point of the curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Rate asked for, packets per second.
    pub pps: u64,
    /// Share lost.
    pub loss: Spread,
    /// The trials that it is computed from.
    pub trials: Vec<Outcome>,
    /// The machine disturbed some trial three times in a row.
    pub noisy: bool,
}

/// Measures from `highest_pps` downwards in `steps` steps (the RFC: ten or more), with `repeats` trials each.
///
/// # Errors
/// No rate, no steps, no repeats; a trial that fails.
pub fn curve(trial: &mut impl Trial, highest_pps: u64, steps: u64, repeats: usize) -> Result<Vec<Point>> {
    ensure!((1..=highest_pps).contains(&steps), "{steps} steps below {highest_pps} packets per second");
    ensure!(repeats > 0, "0 repeats: 1 or more");
    let mut points: Vec<Point> = Vec::new();
    for step in (1..=steps).rev() {
        let pps = highest_pps * step / steps;
        let mut trials = Vec::new();
        let mut noisy = false;
        for _ in 0..repeats {
            let (outcome, valid) = valid(trial, pps)?;
            noisy |= !valid;
            trials.push(outcome);
        }
        points.push(Point { pps, loss: spread_of(&trials, Outcome::loss), trials, noisy });
        if let [.., a, b] = &points[..]
            && [a, b].iter().all(|point| point.trials.iter().all(|trial| trial.sent == trial.received))
        {
            break;
        }
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::{super::simulated::Forwarder, *};

    #[test]
    fn it_ends_when_two_steps_lose_nothing() {
        let mut forwarder = Forwarder::new(700);
        let points = curve(&mut forwarder, 1000, 10, 1).unwrap();
        assert_eq!(forwarder.asked, [1000, 900, 800, 700, 600]);
        let losses: Vec<f64> = points.iter().map(|p| (p.loss.median * 1000.0).round()).collect();
        assert_eq!(losses, [300.0, 222.0, 125.0, 0.0, 0.0]);
    }

    #[test]
    fn one_that_always_loses_is_followed_to_the_end() {
        let mut forwarder = Forwarder { loss_ppm: 500_000, ..Forwarder::new(10) };
        assert_eq!(curve(&mut forwarder, 100, 4, 1).unwrap().len(), 4);
        assert_eq!(forwarder.asked, [100, 75, 50, 25]);
    }

    #[test]
    fn noise_shows_in_the_range_and_not_in_the_median() {
        let noise = [0, 0, 0, 0, 40, 0].into();
        let mut forwarder = Forwarder { noise, ..Forwarder::new(100) };
        let points = curve(&mut forwarder, 200, 4, 3).unwrap();
        assert_eq!(forwarder.asked, [200, 200, 200, 150, 150, 150, 100, 100, 100, 50, 50, 50]);
        let Spread { median, min, max } = points[1].loss;
        assert_eq!([median, min, max].map(|loss| (loss * 150.0).round()), [50.0, 50.0, 90.0]);
    }
}
