//! RFC 2544 26.3, frame loss rate: the share of frames lost at the highest rate, and at lower ones in equal steps, until two
//! successive trials lose nothing.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{Outcome, Trial, valid};

/// One point of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Rate asked for, packets per second.
    pub pps: u64,
    /// Share lost.
    pub loss: f64,
    /// What it is computed from.
    pub outcome: Outcome,
    /// The machine disturbed the trial three times over.
    pub noisy: bool,
}

/// From `highest_pps` downwards in `steps` steps (the RFC: ten or more).
///
/// # Errors
/// No rate or no steps; a trial that fails.
pub fn curve(trial: &mut impl Trial, highest_pps: u64, steps: u64) -> Result<Vec<Point>> {
    ensure!((1..=highest_pps).contains(&steps), "{steps} steps below {highest_pps} packets per second");
    let mut points: Vec<Point> = Vec::new();
    for step in (1..=steps).rev() {
        let pps = highest_pps * step / steps;
        let (outcome, valid) = valid(trial, pps)?;
        points.push(Point { pps, loss: outcome.loss(), outcome, noisy: !valid });
        if let [.., a, b] = &points[..]
            && a.outcome.sent == a.outcome.received
            && b.outcome.sent == b.outcome.received
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
    fn it_ends_when_two_trials_lose_nothing() {
        let mut forwarder = Forwarder::new(700);
        let points = curve(&mut forwarder, 1000, 10).unwrap();
        assert_eq!(forwarder.asked, [1000, 900, 800, 700, 600]);
        let losses: Vec<f64> = points.iter().map(|p| (p.loss * 1000.0).round()).collect();
        assert_eq!(losses, [300.0, 222.0, 125.0, 0.0, 0.0]);
    }

    #[test]
    fn one_that_always_loses_is_followed_to_the_end() {
        let mut forwarder = Forwarder { loss_ppm: 500_000, ..Forwarder::new(10) };
        assert_eq!(curve(&mut forwarder, 100, 4).unwrap().len(), 4);
        assert_eq!(forwarder.asked, [100, 75, 50, 25]);
    }
}
