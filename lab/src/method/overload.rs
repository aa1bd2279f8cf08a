//! Overload: what comes out when more and more comes in. A router that drops packets before it works on them stays at
//! its peak. One that works on packets and then drops them falls, in the end to nothing (Mogul and Ramakrishnan,
//! Eliminating receive livelock, 1997).

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{Outcome, Trial, valid};

/// What to offer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sweep {
    /// The load that saturates the router, packets per second.
    pub saturating_pps: u64,
    /// The highest load, as a multiple of that.
    pub times: u64,
    /// Steps for each multiple.
    pub steps_per_time: u64,
    /// The generator's limit. The curve ends there.
    pub highest_pps: u64,
}

/// One point of the curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Rate asked for, packets per second.
    pub pps: u64,
    /// The offered load, in saturating loads.
    pub times: f64,
    /// What came out, as a share of the highest rate that came out anywhere.
    pub of_peak: f64,
    /// The trial that it is computed from.
    pub outcome: Outcome,
    /// The machine disturbed the trial three times in a row.
    pub noisy: bool,
}

/// What comes out by what comes in.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// The saturating load, in packets per second.
    pub saturating_pps: u64,
    /// Points by rate, rising.
    pub points: Vec<Point>,
    /// The highest rate that came out.
    pub peak_pps: f64,
    /// The highest load that was really offered, in saturating loads. The generator may have been too slow for more.
    pub reached_times: f64,
    /// What came out at this load, as a share of the peak.
    pub last_of_peak: f64,
}

impl Sweep {
    /// Rates to offer, rising. If the generator's limit is lower than what was asked for, the last rate is that limit.
    ///
    /// # Errors
    /// No load, or no steps.
    pub fn rates(&self) -> Result<Vec<u64>> {
        let Self { saturating_pps, times, steps_per_time, highest_pps } = *self;
        ensure!(saturating_pps > 0 && highest_pps > 0, "a load is 0 packets per second: it must be above 0");
        ensure!(
            times > 0 && steps_per_time > 0,
            "{times} times in {steps_per_time} steps: both must be above 0"
        );
        let wanted = (1..=times * steps_per_time).map(|step| saturating_pps * step / steps_per_time);
        let mut rates: Vec<u64> =
            wanted.take_while(|&pps| pps <= highest_pps).filter(|&pps| pps > 0).collect();
        if rates.last().is_none_or(|&last| last < (saturating_pps * times).min(highest_pps)) {
            rates.push(highest_pps);
        }
        Ok(rates)
    }
}

/// Offers every rate of the sweep once.
///
/// # Errors
/// A sweep without rates; a trial that fails.
pub fn curve(trial: &mut impl Trial, sweep: &Sweep) -> Result<Curve> {
    let mut trials = Vec::new();
    for pps in sweep.rates()? {
        let (outcome, valid) = valid(trial, pps)?;
        trials.push((pps, outcome, !valid));
    }
    let peak_pps = trials.iter().map(|(_, outcome, _)| outcome.received_pps).fold(0.0, f64::max);
    let point = |(pps, outcome, noisy): (u64, Outcome, bool)| Point {
        pps,
        times: outcome.offered_pps / sweep.saturating_pps as f64,
        of_peak: if peak_pps > 0.0 { outcome.received_pps / peak_pps } else { 0.0 },
        outcome,
        noisy,
    };
    let points: Vec<Point> = trials.into_iter().map(point).collect();
    let most = points.iter().max_by(|a, b| a.times.total_cmp(&b.times));
    let (reached_times, last_of_peak) = most.map_or((0.0, 0.0), |point| (point.times, point.of_peak));
    Ok(Curve { saturating_pps: sweep.saturating_pps, points, peak_pps, reached_times, last_of_peak })
}

#[cfg(test)]
mod tests {
    use super::{super::simulated::Forwarder, *};

    const SWEEP: Sweep = Sweep { saturating_pps: 1000, times: 10, steps_per_time: 1, highest_pps: 1_000_000 };

    #[test]
    fn one_that_drops_for_free_stays_at_its_peak() {
        let mut forwarder = Forwarder::new(1000);
        let found = curve(&mut forwarder, &Sweep { steps_per_time: 2, times: 2, ..SWEEP }).unwrap();
        assert_eq!(forwarder.asked, [500, 1000, 1500, 2000]);
        let points: Vec<_> = found.points.iter().map(|point| (point.times, point.of_peak)).collect();
        assert_eq!(points, [(0.5, 0.5), (1.0, 1.0), (1.5, 1.0), (2.0, 1.0)]);
        assert_eq!((found.peak_pps, found.reached_times, found.last_of_peak), (1000.0, 2.0, 1.0));
    }

    #[test]
    fn one_whose_drops_cost_time_falls() {
        // Every packet too many takes a twentieth of a forwarded one.
        let mut forwarder = Forwarder { shed_ppm: 50_000, ..Forwarder::new(1000) };
        let found = curve(&mut forwarder, &SWEEP).unwrap();
        assert_eq!((found.peak_pps, found.reached_times, found.last_of_peak), (1000.0, 10.0, 0.55));
    }

    #[test]
    fn the_generator_ends_the_curve_and_it_shows() {
        let rates = |highest_pps| Sweep { highest_pps, times: 4, ..SWEEP }.rates().unwrap();
        assert_eq!(rates(5000), [1000, 2000, 3000, 4000]);
        assert_eq!(rates(4000), [1000, 2000, 3000, 4000]);
        assert_eq!(rates(3500), [1000, 2000, 3000, 3500]);
        assert_eq!(rates(800), [800]);
        // The generator is slower than was assumed.
        let mut forwarder = Forwarder { generator_pps: Some(2500), ..Forwarder::new(1000) };
        let found = curve(&mut forwarder, &Sweep { times: 4, ..SWEEP }).unwrap();
        assert_eq!(found.reached_times, 2.5);
    }

    #[test]
    fn disturbed_trials_are_marked() {
        let mut forwarder = Forwarder { disturbed: 4, ..Forwarder::new(1000) };
        let found = curve(&mut forwarder, &Sweep { times: 2, ..SWEEP }).unwrap();
        assert_eq!(forwarder.asked, [1000, 1000, 1000, 2000, 2000]);
        assert_eq!(found.points.iter().map(|point| point.noisy).collect::<Vec<_>>(), [true, false]);
    }
}
