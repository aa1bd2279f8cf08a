//! The heartbeat, in a thread of its own, so that beats do not wait for the loop's work, such as reading a million
//! routes. A loop that makes no progress loses the heartbeat after [`STALLED`]: its mirror may be wrong by then.

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

/// The longest time that the loop may be busy with one thing. Reading a million routes takes four seconds here, and ten
/// times that on an emulated machine. Meanwhile the filling of tables reports progress.
pub(super) const STALLED: Duration = Duration::from_secs(60);
/// Beats in each heartbeat period.
const BEATS: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Counts the steps of the loop.
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
    /// The last seen progress, and the time since when it has not changed.
    seen: u64,
    since: Duration,
}

impl Watchdog {
    /// The time until which the mirror is confirmed; `None`: the confirmation is not extended.
    fn beat(&mut self, now: Duration, progress: u64, vouched: bool) -> Option<Duration> {
        if self.seen != progress {
            (self.seen, self.since) = (progress, now);
        }
        let stalled = now.saturating_sub(self.since) >= STALLED;
        (vouched && !stalled).then(|| now + self.heartbeat)
    }
}

/// The orders for the thread.
#[derive(Default)]
struct Orders {
    /// The heart of the generation in charge; `None`: no generation is in charge.
    heart: Option<Arc<Heart>>,
    /// The loop vouches that the mirror matches Linux.
    vouched: bool,
    ended: bool,
}

/// The loop's handle; the thread ends with it.
pub(super) struct Beats {
    progress: Progress,
    orders: Arc<(Mutex<Orders>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Beats {
    /// # Errors
    /// The thread cannot be started.
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

    /// Puts this generation in charge.
    pub fn follow(&self, heart: Option<Arc<Heart>>) {
        self.change(|orders| orders.heart = heart);
    }

    /// Sets whether the mirror matches Linux.
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
            tracing::error!("cannot set the heartbeat; the daemon tries again: {error:#}");
        }
        let stalls = deadline.is_none() && vouched;
        if stalls && !stalled {
            tracing::error!(
                "the control loop has made no progress for {} s: the kernel forwards until it goes on",
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

    /// A loop that is busy for long, or with many things in a row.
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
    fn there_is_no_beat_while_the_loop_does_not_vouch_for_the_mirror() {
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
