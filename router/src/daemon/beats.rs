//! The heartbeat, in a thread of its own: beats do not wait behind the loop's work, such as a million routes that are read. A
//! loop that makes no progress any more loses the heartbeat, [`STALLED`] later: what it mirrors may be wrong by then.

use crate::plane::Heart;
use anyhow::Result;
use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

/// How long the loop may be busy with one thing. Reading a million routes takes four seconds here, and ten times that on an
/// emulated machine; filling tables reports progress meanwhile.
pub(super) const STALLED: Duration = Duration::from_secs(60);
/// Beats for each heartbeat.
const BEATS: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Counts what the loop has done.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<AtomicU64>);

impl Progress {
    pub fn made(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Decides whether there is a beat.
#[derive(Debug)]
struct Watchdog {
    heartbeat: Duration,
    /// Progress as last seen, and since when it is that.
    seen: u64,
    since: Duration,
}

impl Watchdog {
    /// Until when the mirror is confirmed; `None`: no longer than it was.
    fn beat(&mut self, now: Duration, progress: u64, vouched: bool) -> Option<Duration> {
        if self.seen != progress {
            (self.seen, self.since) = (progress, now);
        }
        let stalled = now.saturating_sub(self.since) >= STALLED;
        (vouched && !stalled).then(|| now + self.heartbeat)
    }
}

/// What the thread goes by.
#[derive(Default)]
struct Orders {
    /// Of the generation in charge; `None`: none is.
    heart: Option<Arc<Heart>>,
    /// The loop says that the mirror is what Linux is.
    vouched: bool,
    ended: bool,
}

/// The loop's end; the thread ends with it.
pub(super) struct Beats {
    progress: Progress,
    orders: Arc<(Mutex<Orders>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Beats {
    /// # Errors
    /// There is no thread.
    pub fn start(heartbeat: Duration, now: fn() -> Duration) -> Result<Beats> {
        let (progress, orders) = (Progress::default(), Arc::<(Mutex<Orders>, Condvar)>::default());
        let watchdog = Watchdog { heartbeat, seen: 0, since: now() };
        let (counted, theirs) = (progress.clone(), orders.clone());
        let pause = (heartbeat / BEATS).min(LONGEST_PAUSE);
        let thread = Builder::new().name("heartbeat".into());
        let thread = thread.spawn(move || beat(watchdog, &counted, &theirs, pause, now))?;
        Ok(Beats { progress, orders, thread: Some(thread) })
    }

    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// This generation is in charge from now on.
    pub fn follow(&self, heart: Option<Arc<Heart>>) {
        self.change(|orders| orders.heart = heart);
    }

    /// Is the mirror what Linux is?
    pub fn vouch(&self, vouched: bool) {
        self.progress.made();
        self.change(|orders| orders.vouched = vouched);
    }

    fn change(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.orders.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Beats {
    fn drop(&mut self) {
        self.change(|orders| orders.ended = true);
        self.orders.1.notify_all();
        self.thread.take().map(JoinHandle::join);
    }
}

fn beat(
    mut watchdog: Watchdog,
    progress: &Progress,
    orders: &(Mutex<Orders>, Condvar),
    pause: Duration,
    now: fn() -> Duration,
) {
    let mut stalled = false;
    let ordered = || orders.0.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ours = ordered();
    while !ours.ended {
        let (heart, vouched) = (ours.heart.clone(), ours.vouched);
        // The loop never waits for a beat.
        drop(ours);
        let deadline = watchdog.beat(now(), progress.0.load(Relaxed), vouched);
        if let (Some(deadline), Some(heart)) = (deadline, heart)
            && let Err(error) = heart.beat_until(deadline)
        {
            tracing::error!("the heartbeat could not be set, and is tried again: {error:#}");
        }
        let stalls = deadline.is_none() && vouched;
        if stalls && !stalled {
            tracing::error!(
                "the control loop has done nothing for {} s: the kernel forwards until it does",
                STALLED.as_secs()
            );
        }
        stalled = stalls;
        ours = ordered();
        if !ours.ended {
            (ours, _) = orders.1.wait_timeout(ours, pause).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn watchdog() -> Watchdog {
        Watchdog { heartbeat: 3 * S, seen: 0, since: Duration::ZERO }
    }

    /// A loop that is busy for long, or with many things one after another.
    #[test]
    fn beats_go_on_while_the_loop_is_busy_and_end_when_it_does_nothing() {
        let mut watchdog = watchdog();
        assert_eq!(watchdog.beat(S, 1, true), Some(4 * S));
        assert_eq!(watchdog.beat(STALLED, 1, true), Some(STALLED + 3 * S), "reading a million routes");
        assert_eq!(watchdog.beat(STALLED + S, 1, true), None);
        assert_eq!(watchdog.beat(2 * STALLED, 2, true), Some(2 * STALLED + 3 * S), "it goes on");
        for second in 0..1000 {
            assert!(watchdog.beat(2 * STALLED + second * S, u64::from(second / 30), true).is_some());
        }
    }

    #[test]
    fn a_mirror_that_is_not_vouched_for_has_no_beat() {
        let mut watchdog = watchdog();
        assert_eq!(watchdog.beat(S, 1, false), None);
        assert_eq!(watchdog.beat(2 * S, 2, true), Some(5 * S));
    }

    #[test]
    fn the_thread_ends_with_the_loop() {
        let beats = Beats::start(3600 * S, || S).unwrap();
        beats.vouch(true);
        beats.follow(None);
        drop(beats);
    }
}
