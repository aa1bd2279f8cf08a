//! `millrace calibrate`: what a switch from path to path takes on this machine (P8), and what there is of memory bandwidth (P7), measured and kept.
//!
//! | file | holds |
//! |---|---|
//! | `memory.rs` | a worker over packets in memory, whose runs have as many packets as is wanted |
//! | `bandwidth.rs` | what all cores together get of memory |
//! | `file.rs` | [`Calibration`], what is kept of it, and [`Calibrated`], what workers make of that |
//! | this one | runs of every size measured, and the line through them ([`logic::paths::calibrate`]) |
//!
//! Four paths with a chain that does nothing but choose a port take turns on one worker, with runs of 1 to 64 packets. So a run costs what
//! any costs whatever its chain is: whose turn it is, rings, the batch, the meter, what the other paths left of the caches. What a system call for
//! each run takes (`sendto`, where AF_XDP copies) is not in it.
//!
//! Sizes take turns, round by round, 100 us each; what counts of a size is the median of its rounds, so a machine that is now and then busy
//! with something else is measured right. One that always is may be told as too uncertain ([`BadFit`]): nothing is kept then.

mod bandwidth;
mod file;
mod memory;
#[cfg(test)]
mod tests;

pub use bandwidth::{Bandwidth, bandwidth};
pub use file::{Calibrated, Calibration, Runs};
pub use memory::Buffer;

use crate::user_plane::workers::Clock;
use logic::paths::{
    Counters,
    calibrate::{BadFit, Fit, Point, fit},
};
use memory::Bench;
use std::time::Duration;

/// Packets of a run. Small ones tell the switch, large ones the packet.
pub const SIZES: [u32; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
/// How long a size is measured in a round.
const WINDOW: Duration = Duration::from_micros(100);
/// Before it counts: caches and branches are those of this size then.
const WARM_UP: Duration = Duration::from_micros(20);

/// Runs of every size, and what they tell.
#[derive(Clone, Debug)]
pub struct Measured {
    /// By [`SIZES`].
    pub points: Vec<Point>,
    pub fit: Result<Fit, BadFit>,
}

/// Measures so many rounds, 1 or more, on the core where the thread is.
pub fn measure(clock: Clock, rounds: u32) -> anyhow::Result<Measured> {
    measure_with(clock, rounds, 0)
}

/// As if a switch took so many cycles more.
fn measure_with(clock: Clock, rounds: u32, more: u64) -> anyhow::Result<Measured> {
    let mut benches = SIZES
        .map(|size| Bench::new(size, clock, Counters::CYCLES, more))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let mut found = vec![Vec::new(); SIZES.len()];
    for _ in 0..rounds.max(1) {
        for (bench, found) in benches.iter_mut().zip(&mut found) {
            bench.run(WARM_UP);
            found.push(bench.run(WINDOW));
        }
    }
    let points = SIZES.into_iter().zip(found).map(|(batch, found)| Point { batch, cycles: median(found) });
    let points: Vec<Point> = points.collect();
    let fit = fit(&points);
    Ok(Measured { points, fit })
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}
