//! Isolation: a victim sends at a fixed rate within its share, while its neighbour on the same router sends more and
//! more. The victim should not notice this. Where it does, isolation breaks.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{Outcome, attempt, spread_of};
use crate::measure::Spread;

/// Outcomes of two streams that were sent at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Streams {
    /// The stream that is watched.
    pub victim: Outcome,
    /// The stream that grows.
    pub neighbour: Outcome,
}

/// Something that two streams can be sent through at once.
pub trait TwoStreams {
    /// Sends both for the length of a trial. A rate of 0 means that nothing is sent.
    fn run(&mut self, victim_pps: u64, neighbour_pps: u64) -> Result<Streams>;
}

/// What to send.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The victim's rate, packets per second.
    pub victim_pps: u64,
    /// The neighbour's rates, rising.
    pub neighbour_pps: Vec<u64>,
    /// Share that the victim may lose.
    pub loss: f64,
    /// How often to go through the rates.
    pub repeats: usize,
}

/// One rate of the neighbour.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Rate asked of the neighbour, packets per second.
    pub neighbour_pps: u64,
    /// Packets per second that both really offered.
    pub total_pps: Spread,
    /// Share of its packets that the victim lost.
    pub victim_loss: Spread,
    /// The trials that it is computed from.
    pub trials: Vec<Streams>,
    /// The machine disturbed some trial three times in a row.
    pub noisy: bool,
}

/// Result of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Isolation {
    /// The victim's rate, packets per second.
    pub victim_pps: u64,
    /// Steps by the neighbour's rate, rising.
    pub steps: Vec<Step>,
    /// The first total rate, as really offered, at which the victim lost more than it may in the median of the repeats.
    /// `None`: at no rate that was tried.
    pub breaks_at_pps: Option<f64>,
}

/// Goes through the neighbour's rates repeatedly (A B A B).
///
/// # Errors
/// Rates that make no sweep; no repeats; a trial that fails.
pub fn sweep(trial: &mut impl TwoStreams, sweep: &Sweep) -> Result<Isolation> {
    let Sweep { victim_pps, ref neighbour_pps, loss, repeats } = *sweep;
    ensure!(victim_pps > 0, "the victim sends nothing: its rate must be above 0");
    ensure!(!neighbour_pps.is_empty() && neighbour_pps.is_sorted(), "rates {neighbour_pps:?}: upwards");
    ensure!((0.0..1.0).contains(&loss), "a loss of {loss}: 0 to 1");
    ensure!(repeats > 0, "0 repeats: 1 or more");
    let mut trials: Vec<Vec<(Streams, bool)>> = vec![Vec::new(); neighbour_pps.len()];
    // The neighbour may be asked for more than can be sent; only what was offered counts. Whatever takes the
    // generator's core away also disturbs the victim.
    let valid = |streams: &Streams| streams.victim.is_valid();
    for _ in 0..repeats {
        for (&neighbour_pps, trials) in neighbour_pps.iter().zip(&mut trials) {
            trials.push(attempt(valid, |_| trial.run(victim_pps, neighbour_pps))?);
        }
    }
    let steps = neighbour_pps.iter().zip(trials).map(|(&pps, trials)| step(pps, &trials)).collect();
    Ok(found(victim_pps, steps, loss))
}

/// Joins several runs of the same sweep, made with something else in between, into one. `None` if there is none.
pub fn join(sweeps: &[Isolation], loss: f64) -> Option<Isolation> {
    let first = sweeps.first()?;
    let joined = |(at, of_first): (usize, &Step)| {
        let same = sweeps.iter().filter_map(|sweep| sweep.steps.get(at));
        let trials = same.flat_map(|step| step.trials.iter().map(|trial| (*trial, !step.noisy)));
        step(of_first.neighbour_pps, &trials.collect::<Vec<_>>())
    };
    Some(found(first.victim_pps, first.steps.iter().enumerate().map(joined).collect(), loss))
}

fn found(victim_pps: u64, steps: Vec<Step>, loss: f64) -> Isolation {
    let breaks = steps.iter().find(|step| step.victim_loss.median > loss);
    let breaks_at_pps = breaks.map(|step| step.total_pps.median);
    Isolation { victim_pps, steps, breaks_at_pps }
}

fn step(neighbour_pps: u64, trials: &[(Streams, bool)]) -> Step {
    Step {
        neighbour_pps,
        total_pps: spread_of(trials, |(both, _)| both.victim.offered_pps + both.neighbour.offered_pps),
        victim_loss: spread_of(trials, |(both, _)| both.victim.loss()),
        trials: trials.iter().map(|(both, _)| *both).collect(),
        noisy: trials.iter().any(|(_, valid)| !valid),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::simulated::Forwarder, *};

    fn plan(repeats: usize) -> Sweep {
        Sweep { victim_pps: 100, neighbour_pps: vec![0, 900, 2900, 3900], loss: 0.001, repeats }
    }

    #[test]
    fn it_breaks_where_the_victim_first_loses() {
        let mut forwarder = Forwarder { isolates_until_pps: 3000, ..Forwarder::new(1000) };
        let found = sweep(&mut forwarder, &plan(2)).unwrap();
        let once = [100, 0, 100, 900, 100, 2900, 100, 3900];
        assert_eq!(forwarder.asked, [once, once].concat());
        assert_eq!(found.breaks_at_pps, Some(4000.0));
        let losses: Vec<f64> = found.steps.iter().map(|step| step.victim_loss.median).collect();
        assert_eq!(losses, [0.0, 0.0, 0.0, 0.75]);
        let neighbours: Vec<u64> = found.steps.iter().map(|step| step.trials[1].neighbour.received).collect();
        assert_eq!(neighbours, [0, 900, 900, 975]);
    }

    #[test]
    fn without_isolation_it_breaks_at_the_capacity_and_with_it_nowhere() {
        let found = sweep(&mut Forwarder::new(1000), &plan(1)).unwrap();
        assert_eq!(found.breaks_at_pps, Some(3000.0));
        let mut forwarder = Forwarder { isolates_until_pps: u64::MAX, ..Forwarder::new(1000) };
        assert_eq!(sweep(&mut forwarder, &plan(1)).unwrap().breaks_at_pps, None);
    }

    #[test]
    fn noise_in_one_repeat_breaks_nothing() {
        // Victim and neighbour in turn: the victim of the second step of the first repeat.
        let noise = [0, 0, 50].into();
        let mut forwarder = Forwarder { isolates_until_pps: 3000, noise, ..Forwarder::new(1000) };
        let found = sweep(&mut forwarder, &plan(3)).unwrap();
        assert_eq!(found.breaks_at_pps, Some(4000.0));
        assert_eq!(found.steps[1].victim_loss, Spread { median: 0.0, min: 0.0, max: 0.5 });

        let noise = [0, 0, 50].into();
        let mut forwarder = Forwarder { isolates_until_pps: 3000, noise, ..Forwarder::new(1000) };
        let one_by_one: Vec<_> = (0..3).map(|_| sweep(&mut forwarder, &plan(1)).unwrap()).collect();
        assert_eq!(one_by_one[0].breaks_at_pps, Some(1000.0));
        assert_eq!(join(&one_by_one, 0.001), Some(found));
        assert_eq!(join(&[], 0.001), None);
    }

    #[test]
    fn disturbed_trials_are_repeated() {
        let mut forwarder = Forwarder { disturbed: 1, ..Forwarder::new(1000) };
        let found = sweep(&mut forwarder, &plan(1)).unwrap();
        assert_eq!(forwarder.asked[..6], [100, 0, 100, 0, 100, 900]);
        assert!(found.steps.iter().all(|step| !step.noisy));
    }
}
