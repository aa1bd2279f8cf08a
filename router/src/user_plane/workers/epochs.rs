//! When workers are through with what they read of the shared tables.
//!
//! A worker keeps nothing of the tables from one run to the next. So once each has begun another run, or sleeps, none of them can still read what
//! was unpublished before (DESIGN.md 3). Its counter is odd while it is awake, goes up by 2 between any two runs, and is even while it sleeps.
//! One writer, the worker; a full fence follows each write, so that what it reads next was read after others could see the write.

use crate::base::guard::locked;
use anyhow::{Result, bail};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, Release, SeqCst},
            fence,
        },
    },
    thread,
    time::{Duration, Instant},
};

/// A worker's counter.
#[derive(Debug, Default)]
pub(super) struct Epoch(AtomicU64);

impl Epoch {
    /// By the worker, between two runs.
    #[inline]
    pub fn pass(&self) {
        self.add(2);
    }

    /// By the worker, when it falls asleep and when it wakes.
    pub fn turn_over(&self) {
        self.add(1);
    }

    #[inline]
    fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Release);
        fence(SeqCst);
    }

    /// It is odd.
    pub fn is_awake(&self) -> bool {
        self.now() % 2 == 1
    }

    /// Another, once it went on.
    pub fn now(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

/// All workers' counters, for who frees blocks of the tables.
#[derive(Clone, Debug, Default)]
pub struct Epochs(Arc<Mutex<Vec<Arc<Epoch>>>>);

impl Epochs {
    pub(super) fn add(&self, epoch: Arc<Epoch>) {
        locked(&self.0).push(epoch);
    }

    pub(super) fn remove(&self, epoch: &Arc<Epoch>) {
        locked(&self.0).retain(|other| !Arc::ptr_eq(other, epoch));
    }

    /// Returns when every worker is through with the run it was in at the call: microseconds usually, and at once for those that sleep.
    ///
    /// # Errors
    /// One was not, after so long: nothing may be used again then.
    pub fn wait(&self, longest: Duration) -> Result<()> {
        fence(SeqCst);
        let all = locked(&self.0).clone();
        let begun = Instant::now();
        for epoch in all {
            let first = epoch.now();
            while first % 2 == 1 && epoch.now() == first {
                if begun.elapsed() > longest {
                    bail!("a worker is in the same run since {longest:?}");
                }
                thread::sleep(Duration::from_micros(20));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_sleep_or_go_on_are_through() {
        let (epochs, epoch) = (Epochs::default(), Arc::new(Epoch::default()));
        epochs.add(epoch.clone());
        let short = Duration::from_millis(5);
        epochs.wait(short).expect("it sleeps");
        epoch.turn_over();
        assert!(epochs.wait(short).is_err(), "it is in a run");
        thread::scope(|scope| {
            let waits = scope.spawn(|| epochs.wait(Duration::from_secs(10)));
            thread::sleep(short);
            assert!(!waits.is_finished());
            epoch.pass();
            waits.join().unwrap().unwrap();
        });
        assert!(epochs.wait(short).is_err(), "it is in the next");
        epoch.turn_over();
        epochs.wait(short).unwrap();
        epoch.turn_over();
        epochs.remove(&epoch);
        epochs.wait(short).expect("it is gone");
    }
}
