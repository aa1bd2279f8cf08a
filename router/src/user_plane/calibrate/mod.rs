//! `millrace calibrate`: measures the cost of a switch between paths (P8) and the memory bandwidth (P7) of this machine.
//!
//! | file | holds |
//! |---|---|
//! | `memory.rs` | a worker over packets in memory, with runs of a given size |
//! | `bandwidth.rs` | the memory bandwidth that all cores get together |
//! | `file.rs` | [`Calibration`], the content of the file, and [`Calibrated`], what workers take from it |
//! | this one | measures runs of every size, and fits the line through them ([`logic::paths::calibrate`]) |
//!
//! Four paths take turns on one worker, with runs of 1 to 64 packets. Their chain only chooses a port. So a run costs what every
//! run costs, whatever its chain does: choosing the path, rings, the batch, the meter, and caches that other paths have used.
//! The system call of each run (`sendto`, where AF_XDP copies) is not included.
//!
//! Sizes take turns, round by round, 100 us each. The median of its rounds counts for a size, so a machine that is sometimes busy
//! is measured correctly. On a machine that is always busy the result may be too uncertain ([`BadFit`]); then nothing is written.

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

/// Packets of a run. Small runs show the cost of the switch, large ones that of a packet.
pub const SIZES: [u32; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
/// How long a size is measured in a round.
const WINDOW: Duration = Duration::from_micros(100);
/// Time before that, after which caches and branch predictors fit this size.
const WARM_UP: Duration = Duration::from_micros(20);

/// Runs of every size, and the line through them.
#[derive(Clone, Debug)]
pub struct Measured {
    /// In the order of [`SIZES`].
    pub points: Vec<Point>,
    pub fit: Result<Fit, BadFit>,
}

/// Measures this many rounds, at least 1, on the core where the thread runs.
pub fn measure(clock: Clock, rounds: u32) -> anyhow::Result<Measured> {
    measure_with(clock, rounds, 0)
}

/// Measures as if a switch took `more` additional cycles.
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
