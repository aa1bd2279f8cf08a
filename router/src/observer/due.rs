//! What a namespace has to read again, and when: changes that come in bursts are waited out a little.

use std::time::{Duration, Instant};

/// How long after the first sign of a change it is read.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// After a failure.
const RETRY: Duration = Duration::from_millis(200);
/// Routes that end are read again when half of their time is over, but within these bounds.
const ENDING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// And that takes at most one part in this many of the time.
const ENDING_SHARE: u32 = 100;
/// Reading all routes again takes at most one part in this many of the time.
const ROUTES_SHARE: u32 = 4;

/// Times at which things are read again; `None`: not at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Due {
    /// Everything.
    pub dump: Option<Instant>,
    pub routes: Option<Instant>,
    /// Routes, because some end: nobody tells when their end moves.
    pub ending: Option<Instant>,
    /// Rules, netfilter, XFRM.
    pub hazards: Option<Instant>,
    /// Qdiscs and filters.
    pub traffic: Option<Instant>,
    /// By which numbers it knows others.
    pub numbers: Option<Instant>,
    routes_not_before: Option<Instant>,
    ending_not_before: Option<Instant>,
}

impl Due {
    /// The earliest.
    #[cfg(test)]
    fn earliest(&self) -> Option<Instant> {
        let due = [self.dump, self.routes, self.ending, self.hazards, self.traffic, self.numbers];
        due.into_iter().flatten().min()
    }

    /// Is nothing to be read but what may be read at any time?
    pub fn is_current(&self) -> bool {
        [self.dump, self.routes, self.hazards, self.traffic].into_iter().flatten().next().is_none()
    }

    /// Has this one's time come? Then it is no longer due.
    pub fn take(due: &mut Option<Instant>, now: Instant) -> bool {
        due.take_if(|at| *at <= now).is_some()
    }

    pub fn routes_soon(&mut self, now: Instant) {
        let at = (now + DEBOUNCE).max(self.routes_not_before.unwrap_or(now));
        self.routes.get_or_insert(at);
    }

    /// A route ends so soon, or may have changed in a way that only reading tells.
    pub fn routes_end(&mut self, now: Instant, left: Duration) {
        let at = now + (left / 2).clamp(ENDING.0, ENDING.1);
        let at = at.max(self.ending_not_before.unwrap_or(at));
        self.ending = Some(self.ending.map_or(at, |earlier| earlier.min(at)));
    }

    /// Routes were read, which began at `started` and ends now.
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
    fn a_burst_is_read_once_and_not_put_off() {
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
    fn routes_that_end_are_read_again_in_time_but_not_all_the_time() {
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
