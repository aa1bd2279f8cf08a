//! Benchmarking methods of RFC 2544 as procedures over trials: pure, so that they are tested against a simulated forwarder
//! and know nothing of namespaces. Trials are shorter than the RFC's 60 s (24) unless asked for; results say how long.
//!
//! | file | RFC 2544 |
//! |---|---|
//! | [`throughput`] | 26.1: the fastest rate at which no more than a stated share is lost |
//! | [`frame_loss`] | 26.3: the share that is lost, from the highest rate downwards |

pub mod frame_loss;
pub mod throughput;

use anyhow::Result;
use serde::Serialize;

/// One trial: packets sent at a rate for a while, and those that came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Packets offered.
    pub sent: u64,
    /// Packets that were due but not sent: the machine was busy with something else, and the trial says little.
    pub skipped: u64,
    /// Packets that arrived.
    pub received: u64,
}

impl Outcome {
    /// Share of the packets offered that did not arrive.
    pub fn loss(&self) -> f64 {
        if self.sent == 0 { 0.0 } else { 1.0 - self.received as f64 / self.sent as f64 }
    }

    /// Was what should be sent sent, but for one in a thousand?
    pub fn is_valid(&self) -> bool {
        self.skipped * 1000 <= self.sent
    }
}

/// Something that packets can be sent through.
pub trait Trial {
    /// Sends at this rate for the length of a trial.
    fn run(&mut self, pps: u64) -> Result<Outcome>;
}

/// How often an invalid trial is repeated before its outcome is taken as it is.
const ATTEMPTS: usize = 3;

/// A trial; repeated while it is not [valid](Outcome::is_valid). `false`: it never was.
fn valid(trial: &mut impl Trial, pps: u64) -> Result<(Outcome, bool)> {
    let mut outcome = trial.run(pps)?;
    for _ in 1..ATTEMPTS {
        if outcome.is_valid() {
            break;
        }
        outcome = trial.run(pps)?;
    }
    Ok((outcome, outcome.is_valid()))
}

#[cfg(test)]
pub(crate) mod simulated {
    use super::*;

    /// Forwards what it can and drops the rest. Time is in trials of one second.
    pub struct Forwarder {
        pub capacity_pps: u64,
        /// Share lost at any rate, in parts per million.
        pub loss_ppm: u64,
        /// Trials, from the first one, in which the generator is held up.
        pub disturbed: usize,
        /// Rates that were asked for.
        pub asked: Vec<u64>,
    }

    impl Forwarder {
        pub fn new(capacity_pps: u64) -> Self {
            Self { capacity_pps, loss_ppm: 0, disturbed: 0, asked: Vec::new() }
        }
    }

    impl Trial for Forwarder {
        fn run(&mut self, pps: u64) -> Result<Outcome> {
            self.asked.push(pps);
            if self.disturbed > 0 {
                self.disturbed -= 1;
                return Ok(Outcome { sent: pps / 2, skipped: pps / 2, received: 0 });
            }
            let through = pps.min(self.capacity_pps);
            Ok(Outcome { sent: pps, skipped: 0, received: through - through * self.loss_ppm / 1_000_000 })
        }
    }
}
