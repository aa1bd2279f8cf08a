//! Somebody else moves a queue that we place: who wins is nobody, as each move costs both. So it is moved back a few times, in
//! case somebody tried something, and then left alone for a time that grows.

use std::time::Duration;

/// So often a queue must be found elsewhere until it is left alone.
const PATIENCE: u32 = 3;
/// After so long without, it begins anew.
const FORGET: Duration = Duration::from_secs(600);
/// How long it is left alone, at first and at most; each time twice as long.
const PAUSES: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(3600)];

/// Of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contest {
    /// How often it was found elsewhere.
    pub times: u32,
    last: Duration,
    /// Zero: it was not left alone yet.
    pub pause: Duration,
}

impl Contest {
    /// It was found elsewhere than we put it.
    pub fn strayed(&mut self, now: Duration) {
        if !self.goes_on(now) {
            *self = Contest::default();
        }
        (self.times, self.last) = (self.times.saturating_add(1), now);
        if self.times >= PATIENCE {
            self.pause = if self.pause.is_zero() { PAUSES[0] } else { (self.pause * 2).min(PAUSES[1]) };
        }
    }

    /// It is not moved now.
    pub fn is_left_alone(&self, now: Duration) -> bool {
        now < self.last + self.pause
    }

    /// People should know.
    pub fn goes_on(&self, now: Duration) -> bool {
        self.times > 0 && now.saturating_sub(self.last) < self.pause + FORGET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_queue_is_left_alone_for_longer_and_longer() {
        let (mut contest, mut now, mut pauses) = (Contest::default(), second(1000), Vec::new());
        assert!(!contest.goes_on(now));
        for _ in 0..12 {
            contest.strayed(now);
            pauses.push(contest.pause.as_secs());
            assert!(contest.goes_on(now));
            assert_eq!(contest.is_left_alone(now), !contest.pause.is_zero());
            // It is moved back, and strays again a little later.
            now += contest.pause;
            assert!(!contest.is_left_alone(now));
            now += second(9);
        }
        assert_eq!(pauses, [0, 0, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]);
    }

    #[test]
    fn who_tries_something_now_and_then_is_not_fought() {
        let mut contest = Contest::default();
        for hour in 0..10 {
            contest.strayed(second(hour * 3600));
            assert_eq!((contest.times, contest.pause), (1, Duration::ZERO));
        }
        assert!(!contest.goes_on(second(10 * 3600)));
    }
}
