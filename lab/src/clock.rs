//! The most by which the clocks of two cores can differ. This is the error of every one-way latency between them.
//!
//! A thread on one core notes the time and calls. A thread on the other core notes the time and answers. If the clocks
//! agree, the time of the answer lies between call and return. So each round gives a lower and an upper bound of the
//! difference, and the narrowest bounds of many rounds count. An interrupted thread only makes a round useless.

use std::{
    hint,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::sys;

const ROUNDS: u64 = 10_000;
/// Time limit. Two threads that do not get their cores at the same time measure nothing.
const LIMIT: Duration = Duration::from_secs(2);
const OVER: u64 = u64::MAX;

/// Maximum difference in nanoseconds between the CLOCK_MONOTONIC of these cores.
pub fn error_ns(core: usize, other: usize) -> Result<u64> {
    ensure!(core != other, "the clock of core {core} cannot be compared with itself");
    let (call, answer) = (AtomicU64::new(0), AtomicU64::new(0));
    let (low, high) = thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let pinned = sys::set_affinity(0, &[other]);
            let mut last = 0;
            while pinned.is_ok() && last != OVER {
                let round = call.load(Ordering::Acquire);
                if round == last {
                    hint::spin_loop();
                } else {
                    answer.store(sys::monotonic_ns(), Ordering::Release);
                    last = round;
                }
            }
            pinned
        });
        let calling = scope.spawn(|| {
            let pinned = sys::set_affinity(0, &[core]);
            let seen = pinned.map(|()| calls(&call, &answer));
            call.store(OVER, Ordering::Release);
            seen
        });
        let seen = calling.join().expect("the calling thread does not panic")?;
        answering.join().expect("the answering thread does not panic")?;
        Ok::<_, std::io::Error>(seen)
    })
    .with_context(|| format!("pinning to cores {core} and {other}"))?;
    ensure!(low <= high, "the clocks of cores {core} and {other} move against each other");
    ensure!(high < i64::MAX, "the threads that compare clocks did not get cores {core} and {other}");
    Ok(low.unsigned_abs().max(high.unsigned_abs()))
}

/// Lower and upper bound of how far the other clock is ahead.
fn calls(call: &AtomicU64, answer: &AtomicU64) -> (i64, i64) {
    let (mut low, mut high) = (i64::MIN, i64::MAX);
    let end = Instant::now() + LIMIT;
    for round in 1..=ROUNDS {
        answer.store(0, Ordering::Relaxed);
        let called_ns = sys::monotonic_ns() as i64;
        call.store(round, Ordering::Release);
        let answered_ns = loop {
            match answer.load(Ordering::Acquire) as i64 {
                0 if Instant::now() > end => return (low, high),
                0 => hint::spin_loop(),
                answered_ns => break answered_ns,
            }
        };
        let returned_ns = sys::monotonic_ns() as i64;
        low = low.max(answered_ns - returned_ns);
        high = high.min(answered_ns - called_ns);
    }
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_of_one_machine_agree() {
        // The error is half the time that a cache line takes to another core and back. One core has nothing to compare
        // with.
        if thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
            let error_ns = error_ns(0, 1).unwrap();
            assert!(error_ns > 0 && error_ns < 100_000, "{error_ns}");
        }
        assert!(super::error_ns(1, 1).is_err());
    }
}
