//! What Linux has learned about destinations from ICMP errors, and when it is asked about them.
//!
//! An ICMP error can make Linux forward to one destination by a shorter MTU or by another gateway, for some minutes
//! (`struct fib_nh_exception`, net/ipv4/route.c; `struct rt6_exception`, net/ipv6/route.c). Linux sends no message about this.
//! IPv4 shows it in a dump only once Linux has sent a packet there, and always answers a question about the destination.
//! IPv6 shows it in a dump, where next hops have their own entries; a question is about one of them.
//!
//! ```text
//! an ICMP error ── note ──► waits ── question ──► answer: it binds packets ──► bound: packets are the kernel's
//!                                           a dump ── answer ─────────────────►   │ asked again, until it has ended
//! ```
//!
//! Anybody who can send to the router can forge such errors, so everything has a limit. Destinations over a limit are not looked
//! at: a forged error then changes nothing, and the kernel plane forwards as before.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

/// Destinations whose packets are the kernel's, at most, in one namespace.
pub const MOST_BOUND: usize = 1024;
/// Destinations that wait for an answer, at most.
pub const MOST_WAITING: usize = 256;
/// Questions asked at once, at most.
pub const MOST_QUESTIONS: usize = 64;
/// The least pause between questions.
const PAUSE: Duration = Duration::from_millis(50);
/// Questions take at most one part in this many of the time.
const SHARE: u32 = 100;
/// An error is noted before Linux reads it, so questions wait this long.
const SETTLED: Duration = Duration::from_millis(20);
/// The delay of the second question about an error, in case Linux took longer.
const AGAIN: Duration = Duration::from_millis(500);
/// Linux is asked this often about bound destinations: what it has learned may be flushed.
const LOOK: Duration = Duration::from_secs(10);

/// The destinations of one namespace. All times are CLOCK_MONOTONIC.
#[derive(Debug, Default)]
pub struct Learned {
    entries: BTreeMap<IpAddr, Entry>,
    /// When to ask about which destination.
    schedule: BTreeSet<(Duration, IpAddr)>,
    bound: usize,
    /// No question before this time, about IPv4 and about IPv6: a dump of IPv6 takes longer than a question.
    not_before: [Duration; 2],
    changed: bool,
    refused: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ask_at: Duration,
    /// `None`: packets are the kernel's. Else the number of questions until the destination is forgotten.
    questions: Option<u8>,
}

impl Learned {
    /// An ICMP error about a packet to this destination has come.
    pub fn note(&mut self, destination: IpAddr, now: Duration) {
        let waiting = self.entries.len() - self.bound;
        match self.entries.get(&destination) {
            // Repeated errors must not hold the places of others.
            Some(_) => (),
            None if waiting < MOST_WAITING => {
                self.put(destination, Entry { ask_at: now + SETTLED, questions: Some(2) });
            }
            None => self.refused += 1,
        }
    }

    /// So many errors more were over a limit before they came here.
    pub fn lose(&mut self, errors: u64) {
        self.refused += errors;
    }

    /// The destinations to ask Linux about now.
    pub fn questions(&mut self, now: Duration) -> Vec<IpAddr> {
        let due = self.schedule.iter().take_while(|(at, _)| *at <= now).map(|(_, destination)| *destination);
        let due = due.filter(|destination| self.not_before[family(*destination)] <= now);
        let due: Vec<IpAddr> = due.take(MOST_QUESTIONS).collect();
        for destination in &due {
            self.not_before[family(*destination)] = now + PAUSE;
            let Some(entry) = self.entries.get(destination).copied() else { continue };
            // A question without an answer is asked again.
            let entry =
                Entry { ask_at: now + AGAIN, questions: entry.questions.map(|left| left.saturating_sub(1)) };
            self.put(*destination, entry);
        }
        due
    }

    /// The last questions took so long, about IPv4 and about IPv6.
    pub fn took(&mut self, took: [Duration; 2], now: Duration) {
        for (not_before, took) in self.not_before.iter_mut().zip(took) {
            *not_before = (*not_before).max(now + took * (SHARE - 1));
        }
    }

    /// When [`Learned::questions`] returns the next ones.
    pub fn due(&self) -> Option<Duration> {
        let first = |of: usize| {
            let (at, _) = self.schedule.iter().find(|(_, destination)| family(*destination) == of)?;
            Some(self.not_before[of].max(*at))
        };
        [0, 1].into_iter().filter_map(first).min()
    }

    /// Takes in an answer of Linux: packets to the destination are bound until `end`, or not at all. It may come without a
    /// question.
    pub fn answer(&mut self, destination: IpAddr, end: Option<Duration>, now: Duration) {
        if let Some(end) = end {
            self.bind(destination, end, now);
        } else if self
            .entries
            .get(&destination)
            .is_some_and(|entry| entry.questions.is_none_or(|left| left == 0))
        {
            self.forget(destination);
        }
    }

    fn bind(&mut self, destination: IpAddr, end: Duration, now: Duration) {
        let is_bound = self.entries.get(&destination).is_some_and(|entry| entry.questions.is_none());
        if !is_bound {
            if self.bound == MOST_BOUND {
                self.refused += 1;
                return self.forget(destination);
            }
            self.bound += 1;
            self.changed = true;
        }
        self.put(destination, Entry { ask_at: (end + SETTLED).min(now + LOOK), questions: None });
    }

    fn put(&mut self, destination: IpAddr, entry: Entry) {
        if let Some(old) = self.entries.insert(destination, entry) {
            self.schedule.remove(&(old.ask_at, destination));
        }
        self.schedule.insert((entry.ask_at, destination));
    }

    fn forget(&mut self, destination: IpAddr) {
        let Some(entry) = self.entries.remove(&destination) else { return };
        self.schedule.remove(&(entry.ask_at, destination));
        if entry.questions.is_none() {
            self.bound -= 1;
            self.changed = true;
        }
    }

    /// The destinations whose packets are the kernel's, if they have changed since the last call.
    pub fn take_changed(&mut self) -> Option<BTreeSet<IpAddr>> {
        std::mem::take(&mut self.changed).then(|| self.bound())
    }

    /// The destinations whose packets are the kernel's.
    pub fn bound(&self) -> BTreeSet<IpAddr> {
        self.entries
            .iter()
            .filter(|(_, entry)| entry.questions.is_none())
            .map(|(address, _)| *address)
            .collect()
    }

    /// The number of notes and answers that were over a limit.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

fn family(destination: IpAddr) -> usize {
    usize::from(destination.is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const MS: Duration = Duration::from_millis(1);
    const D: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
    const NOTHING: [IpAddr; 0] = [];

    /// Bound at 20 ms, until `end`.
    fn bound_until(end: Duration) -> Learned {
        let mut learned = Learned::default();
        learned.note(D, Duration::ZERO);
        assert_eq!(learned.due(), Some(SETTLED));
        assert_eq!(learned.questions(SETTLED), [D]);
        learned.answer(D, Some(end), SETTLED);
        assert_eq!(learned.take_changed(), Some([D].into()));
        learned
    }

    #[test]
    fn a_destination_is_bound_until_linux_says_otherwise() {
        let end = Duration::from_secs(25);
        let mut learned = bound_until(end);
        // A second error changes nothing.
        learned.note(D, 5000 * MS);
        for (at, ends) in
            [(SETTLED + LOOK, Some(end)), (SETTLED + 2 * LOOK, Some(end)), (end + SETTLED, None)]
        {
            assert_eq!(learned.due(), Some(at));
            assert_eq!(learned.questions(at - MS), NOTHING);
            assert_eq!(learned.questions(at), [D]);
            learned.answer(D, ends, at);
            assert_eq!(learned.take_changed(), ends.is_none().then(BTreeSet::new));
        }
        assert_eq!((learned.due(), learned.bound()), (None, BTreeSet::new()));
    }

    #[test]
    fn an_error_that_teaches_nothing_is_asked_about_twice() {
        let mut learned = Learned::default();
        learned.note(D, Duration::ZERO);
        for at in [SETTLED, SETTLED + AGAIN] {
            assert_eq!(learned.due(), Some(at));
            assert_eq!(learned.questions(at), [D]);
            learned.answer(D, None, at);
        }
        assert_eq!((learned.due(), learned.take_changed()), (None, None));
        // A further error before the second question brings no third one.
        learned.note(D, 1000 * MS);
        assert_eq!(learned.questions(1020 * MS), [D]);
        learned.answer(D, None, 1020 * MS);
        learned.note(D, 1100 * MS);
        assert_eq!(learned.questions(1519 * MS), NOTHING);
        assert_eq!(learned.questions(1520 * MS), [D]);
        learned.answer(D, None, 1520 * MS);
        assert_eq!(learned.due(), None);
    }

    #[test]
    fn a_question_without_an_answer_is_asked_again() {
        let mut learned = bound_until(Duration::from_secs(600));
        let at = SETTLED + LOOK;
        assert_eq!(learned.questions(at), [D]);
        assert_eq!(learned.questions(at + AGAIN), [D]);
        assert_eq!(learned.bound(), [D].into());
        let mut learned = Learned::default();
        learned.note(D, Duration::ZERO);
        for at in [20, 520, 1020] {
            assert_eq!(learned.questions(at * MS), [D]);
        }
        learned.answer(D, None, 1021 * MS);
        assert_eq!(learned.due(), None);
    }

    #[test]
    fn a_flood_of_errors_has_limits() {
        let mut learned = Learned::default();
        let mut asked = 0;
        for now in (0..10_000).map(|ms| ms * MS) {
            (0..100).for_each(|n| {
                learned.note(Ipv4Addr::from_bits(now.as_millis() as u32 * 100 + n).into(), now)
            });
            let questions = learned.questions(now);
            assert!(questions.len() <= MOST_QUESTIONS);
            assert!(learned.entries.len() <= MOST_WAITING + MOST_BOUND);
            assert_eq!(learned.schedule.len(), learned.entries.len());
            asked += questions.len();
            questions.iter().for_each(|to| learned.answer(*to, Some(Duration::from_secs(600)), now));
        }
        assert_eq!(asked, 200 * MOST_QUESTIONS);
        assert_eq!(learned.bound().len(), MOST_BOUND);
        assert!(learned.refused() > 900_000);
        // Room comes back when entries end.
        let end = Duration::from_secs(601);
        for now in (0..20_000).map(|ms| end + ms * MS) {
            learned.questions(now).iter().for_each(|to| learned.answer(*to, None, now));
        }
        assert_eq!((learned.due(), learned.bound().len()), (None, 0));
        learned.took([MS; 2], end);
        learned.took([200 * MS, MS], end + 20_000 * MS);
        learned.note(D, end + 20_000 * MS);
        assert_eq!(learned.due(), Some(end + 20_000 * MS + 19_800 * MS), "a hundredth of the time");
        learned.answer(D, Some(2 * end), end);
        assert_eq!(learned.take_changed(), Some([D].into()));
    }

    #[test]
    fn questions_of_ipv6_do_not_delay_those_of_ipv4() {
        let mut learned = Learned::default();
        let six = IpAddr::from([0xfd; 16]);
        learned.took([MS, 1000 * MS], Duration::ZERO);
        learned.note(six, Duration::ZERO);
        learned.note(D, 100 * MS);
        assert_eq!(learned.due(), Some(120 * MS));
        assert_eq!(learned.questions(120 * MS), [D]);
        learned.answer(D, Some(Duration::from_secs(600)), 120 * MS);
        assert_eq!(learned.take_changed(), Some([D].into()));
        assert_eq!(learned.questions(10_000 * MS), NOTHING);
        assert_eq!(learned.due(), Some(10_120 * MS), "Linux is asked about D again");
        assert_eq!(learned.questions(99_000 * MS), [six, D]);
    }
}
