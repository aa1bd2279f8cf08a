//! Benchmarking methods of RFC 2544 and its successors, as procedures over trials. They are pure, so they are tested
//! with a simulated forwarder and know nothing of namespaces. By default trials are shorter than the RFC's 60 s (24);
//! results record their length. Where the RFC reports an average, we also report median and range, and keep every
//! trial.
//!
//! | file | what | source |
//! |---|---|---|
//! | [`throughput`] | the fastest rate at which no more than a stated share is lost | RFC 2544 26.1 |
//! | [`latency`] | how long packets take at stated rates | RFC 2544 26.2 |
//! | [`frame_loss`] | the share that is lost, from the highest rate downwards | RFC 2544 26.3 |
//! | [`back_to_back`] | the longest burst without loss, and the buffer size that follows from it | RFC 2544 26.4, RFC 9004 |
//! | [`recovery`] | how long losses continue after an overload | RFC 2544 26.5 |
//! | [`reset`] | how long nothing is forwarded after a restart or a kill | RFC 2544 26.6, RFC 6201 |
//! | [`overload`] | what comes out when more and more comes in | after Mogul and Ramakrishnan, Eliminating receive livelock (1997) |
//! | [`isolation`] | losses of one stream while its neighbour grows | |

pub mod back_to_back;
pub mod frame_loss;
pub mod isolation;
pub mod latency;
pub mod overload;
pub mod recovery;
pub mod reset;
#[cfg(test)]
mod simulated;
pub mod throughput;

use anyhow::Result;
use serde::Serialize;

pub use crate::histogram::Latency;
use crate::measure::{Spread, spread};

/// One trial: packets sent, and those that came through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Packets offered.
    pub sent: u64,
    /// Packets that were due but not sent. The machine was busy with something else, and the trial means little.
    pub skipped: u64,
    /// Packets that arrived.
    pub received: u64,
    /// Packets per second offered, once buffers have filled. The beginning and the end of the trial are not included.
    pub offered_pps: f64,
    /// Packets per second that arrived in the same time.
    pub received_pps: f64,
    /// Share of the trial in which something else had a core that the router wanted; 0 where the trial does not measure
    /// it.
    pub stolen: f64,
    /// How long packets took, if the trial measures it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

impl Outcome {
    /// Share of the packets offered that did not arrive.
    pub fn loss(&self) -> f64 {
        if self.sent == 0 { 0.0 } else { 1.0 - self.received as f64 / self.sent as f64 }
    }

    /// Did the machine let the generator send what was due, except one in a thousand, and let the router work?
    pub fn is_valid(&self) -> bool {
        self.skipped.saturating_mul(1000) <= self.sent && self.stolen < 0.02
    }

    /// Was this rate really offered? A generator that is delayed until the end does not know what it skipped.
    pub fn is_offered(&self, pps: u64) -> bool {
        self.offered_pps >= 0.98 * pps as f64
    }
}

/// Something that packets can be sent through.
pub trait Trial {
    /// Sends at this rate for the length of a trial.
    fn run(&mut self, pps: u64) -> Result<Outcome>;

    /// Called when the machine disturbed the last trial: the next trial repeats it.
    fn again(&mut self) -> Result<()> {
        Ok(())
    }
}

/// How often an invalid trial is repeated before its outcome counts nevertheless.
const ATTEMPTS: usize = 3;

/// Runs a trial, and repeats it while it is not valid; `run` gets whether it is a repeat. Returns `false` if none was
/// valid.
fn attempt<T>(is_valid: impl Fn(&T) -> bool, mut run: impl FnMut(bool) -> Result<T>) -> Result<(T, bool)> {
    let mut outcome = run(false)?;
    for _ in 1..ATTEMPTS {
        if is_valid(&outcome) {
            break;
        }
        outcome = run(true)?;
    }
    let valid = is_valid(&outcome);
    Ok((outcome, valid))
}

fn valid(trial: &mut impl Trial, pps: u64) -> Result<(Outcome, bool)> {
    let is_valid = |outcome: &Outcome| outcome.is_valid() && outcome.is_offered(pps);
    attempt(is_valid, |again| {
        if again {
            trial.again()?;
        }
        trial.run(pps)
    })
}

/// Binary search for the largest value that passes. It tries the upper bound first, then halves the interval until the
/// bounds are as close as `near` returns for the upper one. It tries the lower bound only if nothing else passed.
/// `None`: nothing passed.
fn bisect(
    (lowest, highest): (u64, u64),
    near: impl Fn(u64) -> u64,
    mut passes: impl FnMut(u64) -> Result<bool>,
) -> Result<Option<u64>> {
    if passes(highest)? {
        return Ok(Some(highest));
    }
    let (mut low, mut high) = (lowest, highest);
    while high - low > near(high).max(1) {
        let middle = low + (high - low) / 2;
        if passes(middle)? { low = middle } else { high = middle }
    }
    Ok((low > lowest || passes(lowest)?).then_some(low))
}

/// Median and range of a figure of trials.
fn spread_of<T>(trials: &[T], figure: impl Fn(&T) -> f64) -> Spread {
    spread(&trials.iter().map(figure).collect::<Vec<_>>())
}
