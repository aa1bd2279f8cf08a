//! Readings that a namespace needs, and their times. A short delay combines changes that come in bursts.

use std::time::{Duration, Instant};

/// The delay from the first sign of a change to its reading.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// The delay after a failure.
const RETRY: Duration = Duration::from_millis(200);
/// Routes that end are read again after half of their remaining time, but within these bounds.
const ENDING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Such readings take at most one part in this many of the time.
const ENDING_SHARE: u32 = 100;
/// Reading all routes again takes at most one part in this many of the time.
const ROUTES_SHARE: u32 = 4;

/// Times of the next readings; `None`: not needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Due {
    /// Everything.
    pub dump: Option<Instant>,
    pub routes: Option<Instant>,
    /// Routes, because some end: the kernel does not report that an end moves.
    pub ending: Option<Instant>,
    /// Rules, netfilter, XFRM.
    pub hazards: Option<Instant>,
    /// Qdiscs and filters.
    pub traffic: Option<Instant>,
    /// The numbers by which the namespace knows others.
    pub numbers: Option<Instant>,
    routes_not_before: Option<Instant>,
    ending_not_before: Option<Instant>,
}

impl Due {
    /// The earliest time.
    #[cfg(test)]
    fn earliest(&self) -> Option<Instant> {
        let due = [self.dump, self.routes, self.ending, self.hazards, self.traffic, self.numbers];
        due.into_iter().flatten().min()
    }

    /// Is nothing due, except readings without urgency?
    pub fn is_current(&self) -> bool {
        [self.dump, self.routes, self.hazards, self.traffic].into_iter().flatten().next().is_none()
    }

    /// Is this reading due now? If so, it is removed.
    pub fn take(due: &mut Option<Instant>, now: Instant) -> bool {
        due.take_if(|at| *at <= now).is_some()
    }

    pub fn routes_soon(&mut self, now: Instant) {
        let at = (now + DEBOUNCE).max(self.routes_not_before.unwrap_or(now));
        self.routes.get_or_insert(at);
    }

    /// A route ends in `left`, or may have changed in a way that only a reading shows.
    pub fn routes_end(&mut self, now: Instant, left: Duration) {
        let at = now + (left / 2).clamp(ENDING.0, ENDING.1);
        let at = at.max(self.ending_not_before.unwrap_or(at));
        self.ending = Some(self.ending.map_or(at, |earlier| earlier.min(at)));
    }

    /// Routes were read from `started` until now.
    pub fn routes_took(&mut self, started: Instant) {
        let took = started.elapsed();
        self.routes_not_before = Some(Instant::now() + took * (ROUTES_SHARE - 1));
        self.ending_not_before = Some(Instant::now() + took * (ENDING_SHARE - 1));
    }

    pub fn hazards_soon(&mut self, now: Instant) {
        self.hazards.get_or_insert(now + DEBOUNCE);
    }

    pub fn traffic_soon(&mut self, now: Instant) {
        self.traffic.get_or_insert(now + DEBOUNCE);
    }

    pub fn hazards_later(&mut self, now: Instant) {
        self.hazards.get_or_insert(now + RETRY);
    }

    pub fn traffic_later(&mut self, now: Instant) {
        self.traffic.get_or_insert(now + RETRY);
    }

    pub fn numbers_later(&mut self, now: Instant) {
        self.numbers.get_or_insert(now + RETRY);
    }

    pub fn dump_later(&mut self, now: Instant) {
        self.dump.get_or_insert(now + RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_causes_one_reading_without_a_further_delay() {
        let now = Instant::now();
        let mut due = Due::default();
        due.routes_soon(now);
        due.routes_soon(now + DEBOUNCE / 2);
        assert_eq!(due.earliest(), Some(now + DEBOUNCE));
        assert!(!Due::take(&mut due.routes, now));
        assert!(Due::take(&mut due.routes, now + DEBOUNCE));
        assert_eq!(due.earliest(), None);
    }

    #[test]
    fn routes_that_end_are_read_again_in_time_but_not_too_often() {
        let (now, seconds) = (Instant::now(), Duration::from_secs);
        for (left, wait) in [(0, 1), (12, 6), (1800, 10)] {
            let mut due = Due::default();
            due.routes_end(now, seconds(left));
            due.routes_end(now, seconds(1_000_000));
            assert_eq!(due.earliest(), Some(now + seconds(wait)));
        }
        let mut due = Due::default();
        due.routes_took(now - seconds(4));
        due.routes_end(now, seconds(0));
        assert!(due.earliest() >= Some(now + seconds(390)), "reading takes four seconds");
    }
}
