//! Epochs: they show when workers no longer read old entries of the shared tables.
//!
//! A worker keeps nothing of the tables from one run to the next. Once each worker has begun another run, or sleeps, none of
//! them can still read what was unpublished before. Only then may its blocks be used again. A worker's counter is odd while
//! it is awake, and even while it sleeps. It goes up by 2 between any two runs. Only the worker writes it. A full fence
//! follows each write, so that the worker's next reads come after others can see the write.

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
    /// The worker calls this between two runs.
    #[inline]
    pub fn pass(&self) {
        self.add(2);
    }

    /// The worker calls this when it falls asleep and when it wakes.
    pub fn turn_over(&self) {
        self.add(1);
    }

    #[inline]
    fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Release);
        fence(SeqCst);
    }

    /// Whether the counter is odd.
    pub fn is_awake(&self) -> bool {
        self.now() % 2 == 1
    }

    /// The present counter. It changes when the worker makes progress.
    pub fn now(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

/// The counters of all workers. They are waited for before blocks of the tables are used again.
#[derive(Clone, Debug, Default)]
pub struct Epochs(Arc<Mutex<Vec<Arc<Epoch>>>>);

impl Epochs {
    pub(super) fn add(&self, epoch: Arc<Epoch>) {
        locked(&self.0).push(epoch);
    }

    pub(super) fn remove(&self, epoch: &Arc<Epoch>) {
        locked(&self.0).retain(|other| !Arc::ptr_eq(other, epoch));
    }

    /// Returns when every worker has finished the run that it was in at the call. This usually takes microseconds, and no
    /// time for workers that sleep.
    ///
    /// # Errors
    /// A worker has not finished after `longest`; then nothing may be used again.
    pub fn wait(&self, longest: Duration) -> Result<()> {
        fence(SeqCst);
        let all = locked(&self.0).clone();
        let begun = Instant::now();
        for epoch in all {
            let first = epoch.now();
            while first % 2 == 1 && epoch.now() == first {
                if begun.elapsed() > longest {
                    bail!("a worker has been in the same run for {longest:?}");
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
    fn workers_that_sleep_or_begin_another_run_have_finished() {
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
        assert!(epochs.wait(short).is_err(), "it is in the next run");
        epoch.turn_over();
        epochs.wait(short).unwrap();
        epoch.turn_over();
        epochs.remove(&epoch);
        epochs.wait(short).expect("it is gone");
    }
}
