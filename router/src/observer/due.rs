//! What a namespace has to read again, and when: changes that come in bursts are waited out a little.

use std::time::{Duration, Instant};

/// How long after the first sign of a change it is read.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// After a failure.
const RETRY: Duration = Duration::from_millis(200);
/// Reading all routes again takes at most one part in this many of the time.
const ROUTES_SHARE: u32 = 4;

/// Times at which things are read again; `None`: not at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Due {
    /// Everything.
    pub dump: Option<Instant>,
    pub routes: Option<Instant>,
    /// Rules, netfilter, XFRM.
    pub hazards: Option<Instant>,
    /// Qdiscs and filters.
    pub traffic: Option<Instant>,
    /// By which numbers it knows others.
    pub numbers: Option<Instant>,
    routes_not_before: Option<Instant>,
}

impl Due {
    /// The earliest.
    #[cfg(test)]
    fn earliest(&self) -> Option<Instant> {
        [self.dump, self.routes, self.hazards, self.traffic, self.numbers].into_iter().flatten().min()
    }

    /// Has this one's time come? Then it is no longer due.
    pub fn take(due: &mut Option<Instant>, now: Instant) -> bool {
        due.take_if(|at| *at <= now).is_some()
    }

    pub fn routes_soon(&mut self, now: Instant) {
        let at = (now + DEBOUNCE).max(self.routes_not_before.unwrap_or(now));
        self.routes.get_or_insert(at);
    }

    /// Routes were read, which began at `started` and ends now.
    pub fn routes_took(&mut self, started: Instant) {
        self.routes_not_before = Some(Instant::now() + started.elapsed() * (ROUTES_SHARE - 1));
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
}
