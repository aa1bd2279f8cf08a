//! Decides what to do about a queue that somebody else moves again and again. Nobody can win, and each move costs time.
//! So Millrace moves the queue back twice, in case somebody only tried something. After that it leaves the queue alone
//! for a time that grows.

use std::time::Duration;

/// A queue is left alone once it has been found elsewhere this many times.
const PATIENCE: u32 = 3;
/// If nobody moves the queue for this long after a pause, all is forgotten.
const FORGET: Duration = Duration::from_secs(600);
/// The time that a queue is left alone: the first and the longest. It doubles each time.
const PAUSES: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(3600)];

/// The history of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contest {
    /// How many times it was found elsewhere.
    pub times: u32,
    last: Duration,
    /// Zero: it has not been left alone yet.
    pub pause: Duration,
}

impl Contest {
    /// Records that it was found on another core than Millrace had moved it to.
    pub fn strayed(&mut self, now: Duration) {
        if !self.goes_on(now) {
            *self = Contest::default();
        }
        (self.times, self.last) = (self.times.saturating_add(1), now);
        if self.times >= PATIENCE {
            self.pause = if self.pause.is_zero() { PAUSES[0] } else { (self.pause * 2).min(PAUSES[1]) };
        }
    }

    /// Whether Millrace must not move it now.
    pub fn is_left_alone(&self, now: Duration) -> bool {
        now < self.last + self.pause
    }

    /// Whether this goes on, so that people should know.
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
            // Millrace moves it back, and somebody moves it again a little later.
            now += contest.pause;
            assert!(!contest.is_left_alone(now));
            now += second(9);
        }
        assert_eq!(pauses, [0, 0, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]);
    }

    #[test]
    fn rare_moves_by_somebody_else_cause_no_pause() {
        let mut contest = Contest::default();
        for hour in 0..10 {
            contest.strayed(second(hour * 3600));
            assert_eq!((contest.times, contest.pause), (1, Duration::ZERO));
        }
        assert!(!contest.goes_on(second(10 * 3600)));
    }
}
