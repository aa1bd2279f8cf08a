//! What the scheduler does with whole workers, in virtual time.

mod order;
mod placing;
mod properties;
mod shares;

use super::*;
use crate::sim::worker::{Outcome, Shares, Source, Worker};

/// Cycles in a second.
const HZ: u64 = 3_000_000_000;
/// 50 us.
const LONGEST: u32 = 150_000;
const SWITCH: u32 = 200;

fn settings() -> Settings {
    Settings {
        bursts: Bursts { longest_cycles: LONGEST, switch_cycles: SWITCH, most: 256 },
        sample_every: 20,
        counted: Counters::CYCLES.with(Resource::Memory),
    }
}

fn scheduler() -> Scheduler {
    Scheduler::new(settings()).unwrap()
}

/// A worker that measures only the requested runs, asks paths for work, and uses the scheduler's
/// bursts.
const SAMPLED: Worker = Worker {
    switch_cycles: SWITCH as u64,
    burst: None,
    clocked: false,
    sleeps: false,
    shares: Shares::Cycles,
    seed: 1,
};

/// A path of router 0.
fn path(id: PathId, weight: u16) -> Path {
    Path { id, router: 0, weight }
}

/// The result of each path after this many cycles.
fn outcomes(worker: &Worker, sources: &[Source], cycles: u64) -> Vec<Outcome> {
    worker.run(scheduler(), sources, cycles).unwrap().0
}

/// The part of all cycles that each path took.
fn parts(outcomes: &[Outcome]) -> Vec<f64> {
    let all: u64 = outcomes.iter().map(|outcome| outcome.cycles).sum();
    outcomes.iter().map(|outcome| outcome.cycles as f64 / all as f64).collect()
}

/// Whether each is within this fraction of its expected value.
fn are_near(found: &[f64], expected: &[f64], off: f64) -> bool {
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| (found / expected - 1.0).abs() <= off)
}
