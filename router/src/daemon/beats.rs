//! The heartbeat, in a thread of its own, so that beats do not wait for the loop's work, such as reading a million
//! routes. A loop that makes no progress loses the heartbeat after [`STALLED`]: its mirror may be wrong by then. Then the thread
//! no longer reports to systemd either, which restarts the daemon after the time of its unit (`WatchdogSec=`).

use crate::{base::systemd, plane::Heart};
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

/// Decides whether there is a beat, and a report to systemd.
#[derive(Debug)]
struct Watchdog {
    heartbeat: Duration,
    /// The last seen progress, and the time since when it has not changed.
    seen: u64,
    since: Duration,
    /// The time between two reports to systemd; `None`: there are none.
    report_every: Option<Duration>,
    reported: Duration,
}

impl Watchdog {
    /// `now`: CLOCK_MONOTONIC. `limit`: systemd restarts the daemon if it has no report for so long.
    fn new(heartbeat: Duration, now: Duration, limit: Option<Duration>) -> Watchdog {
        // Half of the limit is what sd_watchdog_enabled(3) recommends. A look comes up to `LONGEST_PAUSE` late.
        let report_every = limit.map(|limit| (limit / 2).saturating_sub(LONGEST_PAUSE));
        Watchdog { heartbeat, seen: 0, since: now, report_every, reported: Duration::ZERO }
    }

    /// Looks at the progress. Returns whether the loop does nothing.
    fn stalls(&mut self, now: Duration, progress: u64) -> bool {
        if self.seen != progress {
            (self.seen, self.since) = (progress, now);
        }
        now.saturating_sub(self.since) >= STALLED
    }

    /// Is it time for a report that the loop works?
    fn reports(&mut self, now: Duration) -> bool {
        let due = self.report_every.is_some_and(|every| now.saturating_sub(self.reported) >= every);
        if due {
            self.reported = now;
        }
        due
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
        let watchdog = Watchdog::new(heartbeat, now(), systemd::watchdog());
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
        let time = now();
        let stalls = watchdog.stalls(time, progress.0.load(Relaxed));
        if let Some(heart) = heart.filter(|_| vouched && !stalls)
            && let Err(error) = heart.beat_until(time + watchdog.heartbeat)
        {
            tracing::error!("cannot set the heartbeat; the daemon tries again: {error:#}");
        }
        systemd::repeat();
        if !stalls && watchdog.reports(time) {
            systemd::report_work();
        }
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

    /// A loop that is busy for long, or with many things in a row.
    #[test]
    fn only_a_loop_without_progress_stalls() {
        let mut watchdog = Watchdog::new(3 * S, Duration::ZERO, None);
        assert!(!watchdog.stalls(S, 1));
        assert!(!watchdog.stalls(STALLED, 1), "reading a million routes");
        assert!(watchdog.stalls(STALLED + S, 1));
        assert!(!watchdog.stalls(2 * STALLED, 2), "it goes on");
        for second in 0..1000 {
            assert!(!watchdog.stalls(2 * STALLED + second * S, u64::from(second / 30) + 2));
        }
        assert!(!watchdog.reports(3 * STALLED), "nobody asked for reports");
    }

    #[test]
    fn systemd_gets_a_report_before_half_of_its_limit_is_over() {
        let mut watchdog = Watchdog::new(3 * S, Duration::ZERO, Some(10 * S));
        let reported = (1..=20).filter(|second| watchdog.reports(*second * S));
        assert_eq!(reported.collect::<Vec<_>>(), [4, 8, 12, 16, 20]);
        let mut short = Watchdog::new(3 * S, Duration::ZERO, Some(S));
        assert!(short.reports(S) && short.reports(S), "at each look");
    }

    #[test]
    fn the_thread_ends_with_the_loop() {
        let beats = Beats::start(3600 * S, || S).unwrap();
        beats.vouch(true);
        beats.follow(None);
        drop(beats);
    }
}
