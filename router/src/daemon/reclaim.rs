//! Waits for grace periods in a helper thread, so that the control loop does not wait.
//!
//! A program that is running may still read what the tables unpublish. The helper thread waits until no such program
//! runs, and the loop then lets the tables reuse the space. At most one wait is under way, and one begins at most
//! every [`PAUSE`], so a burst of changes shares one.

use anyhow::Result;
use std::{
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

/// The shortest time between the beginnings of two waits.
pub const PAUSE: Duration = Duration::from_millis(50);

/// The helper thread and its present wait.
pub struct Reclaimer<E> {
    to: SyncSender<E>,
    done: Receiver<Option<E>>,
    waiting: bool,
    last: Option<Duration>,
}

impl<E: Send + 'static> Reclaimer<E> {
    /// Starts the thread, which ends when this is dropped. `grace` returns when a grace period has passed.
    pub fn start(mut grace: Box<dyn FnMut() -> Result<()> + Send>) -> Result<Self> {
        let (to, epochs) = sync_channel::<E>(1);
        let (done_to, done) = sync_channel(1);
        thread::Builder::new().name("grace".into()).spawn(move || {
            for epoch in epochs {
                let passed = match grace() {
                    Ok(()) => Some(epoch),
                    Err(e) => {
                        tracing::warn!("cannot wait for running programs, so space is not reused: {e:#}");
                        None
                    }
                };
                if done_to.send(passed).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { to, done, waiting: false, last: None })
    }

    /// The epoch whose grace period has passed. It is returned once.
    pub fn passed(&mut self) -> Option<E> {
        let passed = self.done.try_recv().ok()?;
        self.waiting = false;
        passed
    }

    /// May another epoch be sealed now?
    pub fn is_free(&self, now: Duration) -> bool {
        !self.waiting && self.last.is_none_or(|last| now.saturating_sub(last) >= PAUSE)
    }

    /// Is the thread waiting?
    pub fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Begins to wait for `epoch`. Call it only if [`Reclaimer::is_free`].
    pub fn begin(&mut self, epoch: E, now: Duration) {
        self.waiting = self.to.try_send(epoch).is_ok();
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_passes_only_after_its_grace_period() {
        let (release, wait) = sync_channel::<()>(0);
        let mut reclaimer = Reclaimer::start(Box::new(move || Ok(wait.recv()?))).unwrap();
        let at = Duration::from_millis;
        assert!(reclaimer.is_free(at(0)));
        reclaimer.begin(7, at(0));
        assert!(!reclaimer.is_free(at(1000)) && reclaimer.passed().is_none());
        release.send(()).unwrap();
        let passed = (0..1000).find_map(|_| {
            thread::sleep(at(1));
            reclaimer.passed()
        });
        assert_eq!(passed, Some(7));
        assert!(!reclaimer.is_free(at(49)) && reclaimer.is_free(at(50)));
    }

    #[test]
    fn a_failed_wait_frees_nothing_and_can_be_repeated() {
        let mut reclaimer = Reclaimer::start(Box::new(|| anyhow::bail!("no"))).unwrap();
        reclaimer.begin(1, Duration::ZERO);
        let free = (0..1000).any(|_| {
            thread::sleep(Duration::from_millis(1));
            assert_eq!(reclaimer.passed(), None);
            reclaimer.is_free(PAUSE)
        });
        assert!(free);
    }
}
