//! What Linux has learned about destinations from ICMP errors, and when Millrace asks Linux about it.
//!
//! An ICMP error can make Linux forward to one destination with a smaller MTU or through another gateway, for some
//! minutes (`struct fib_nh_exception`, net/ipv4/route.c; `struct rt6_exception`, net/ipv6/route.c). Linux sends no
//! message about this. For IPv4, a dump shows it only after Linux has sent a packet there, but Linux always answers a
//! question about the destination. For IPv6, a dump shows it. There each next hop has its own entries, and a question
//! is about one next hop.
//!
//! ```text
//! an ICMP error ── note ──► waits ── question ──► answer: it binds packets ──► bound: packets go to the kernel
//!                                           a dump ── answer ─────────────────►   │ asked again, until it has ended
//! ```
//!
//! Anybody who can send to the router can forge such errors, so everything has a limit. Destinations over a limit are
//! ignored. A forged error then changes nothing, and the kernel plane forwards as before.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

/// The most destinations per family and namespace whose packets go to the kernel.
pub const MOST_BOUND: usize = 1024;
/// The most destinations per family that wait for an answer.
pub const MOST_WAITING: usize = 256;
/// The most IPv4 questions at once. One dump answers all questions about IPv6.
pub const MOST_QUESTIONS: usize = 64;
/// The least pause between questions.
const PAUSE: Duration = Duration::from_millis(50);
/// Questions about a family take at most one part in this many of the time.
const SHARE: u32 = 200;
/// Questions wait this long, because an error is noted before Linux reads it.
const SETTLED: Duration = Duration::from_millis(20);
/// The delay before the second question about an error, in case Linux took longer.
const AGAIN: Duration = Duration::from_millis(500);
/// The number of questions about an error from which Linux has learned nothing.
const ASKED: u8 = 2;
/// The number of questions about an error if Linux does not answer them.
const MOST_ASKED: u8 = 5;
/// Linux is asked this often about bound destinations, because it may forget what it has learned.
const LOOK: Duration = Duration::from_secs(10);

/// The destinations of one namespace. All times are CLOCK_MONOTONIC. IPv4 and IPv6 share no limit and no schedule, because
/// questions about IPv6 take longer.
#[derive(Debug, Default)]
pub struct Learned {
    families: [Family; 2],
}

#[derive(Debug, Default)]
struct Family {
    entries: BTreeMap<IpAddr, Entry>,
    /// When to ask about each destination, for [`WAITING`] and for [`BOUND`] ones.
    schedules: [BTreeSet<(Duration, IpAddr)>; 2],
    not_before: Duration,
    changed: bool,
    refused: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ask_at: Duration,
    state: DestinationState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DestinationState {
    Waiting {
        asked: u8,
    },
    /// Its packets go to the kernel.
    Bound,
}

const WAITING: usize = 0;
const BOUND: usize = 1;

impl DestinationState {
    fn schedule(self) -> usize {
        if self == DestinationState::Bound { BOUND } else { WAITING }
    }
}

impl Learned {
    /// Notes that an ICMP error about a packet to this destination has arrived.
    pub fn note(&mut self, destination: IpAddr, now: Duration) {
        self.of(destination).note(destination, now);
    }

    /// Counts errors that were over a limit before they reached this type.
    pub fn lose(&mut self, errors: u64) {
        self.families[0].refused += errors;
    }

    /// The destinations to ask Linux about now.
    pub fn questions(&mut self, now: Duration) -> Vec<IpAddr> {
        let [v4, v6] = &mut self.families;
        let mut due = v4.questions(now, MOST_QUESTIONS);
        due.extend(v6.questions(now, usize::MAX));
        due
    }

    /// Notes how long the last questions took, about IPv4 and about IPv6.
    pub fn took(&mut self, took: [Duration; 2], now: Duration) {
        for (family, took) in self.families.iter_mut().zip(took) {
            family.not_before = family.not_before.max(now + took * (SHARE - 1));
        }
    }

    /// The time of the next question.
    pub fn due(&self) -> Option<Duration> {
        self.families.iter().filter_map(Family::due).min()
    }

    /// Notes an answer of Linux: packets to the destination are bound until `end`, or not at all. An answer may come
    /// without a question.
    pub fn answer(&mut self, destination: IpAddr, end: Option<Duration>, now: Duration) {
        self.of(destination).answer(destination, end, now);
    }

    /// The destinations whose packets go to the kernel, if they have changed since the last call.
    pub fn take_changed(&mut self) -> Option<BTreeSet<IpAddr>> {
        let [v4, v6] = self.families.each_mut().map(|family| std::mem::take(&mut family.changed));
        (v4 || v6).then(|| self.bound())
    }

    /// The destinations whose packets go to the kernel.
    pub fn bound(&self) -> BTreeSet<IpAddr> {
        let bound = self.families.iter().flat_map(|family| &family.schedules[BOUND]);
        bound.map(|(_, destination)| *destination).collect()
    }

    /// The number of errors and answers over a limit, and of errors about which Linux gave no answer.
    pub fn refused(&self) -> u64 {
        self.families.iter().map(|family| family.refused).sum()
    }

    fn of(&mut self, destination: IpAddr) -> &mut Family {
        &mut self.families[usize::from(destination.is_ipv6())]
    }
}

impl Family {
    fn note(&mut self, destination: IpAddr, now: Duration) {
        // Repeated errors must not use up the room of others.
        if self.entries.contains_key(&destination) {
            return;
        }
        if self.schedules[WAITING].len() == MOST_WAITING {
            self.refused += 1;
            return;
        }
        self.put(destination, Entry { ask_at: now + SETTLED, state: DestinationState::Waiting { asked: 0 } });
    }

    fn questions(&mut self, now: Duration, most: usize) -> Vec<IpAddr> {
        if now < self.not_before {
            return Vec::new();
        }
        let due = |at: usize| self.schedules[at].iter().take_while(|(at, _)| *at <= now);
        // New errors come first. A quarter is kept for bound destinations, because a flood would otherwise keep them
        // bound.
        let bound = due(BOUND).count().min(most / 4);
        let asked: Vec<_> = due(WAITING).take(most - bound).chain(due(BOUND)).take(most).copied().collect();
        let mut questions = Vec::new();
        for (_, destination) in asked {
            let Some(entry) = self.entries.get(&destination) else { continue };
            let state = match entry.state {
                DestinationState::Waiting { asked: MOST_ASKED } => {
                    self.refused += 1;
                    self.forget(destination);
                    continue;
                }
                DestinationState::Waiting { asked } => DestinationState::Waiting { asked: asked + 1 },
                DestinationState::Bound => DestinationState::Bound,
            };
            // A question without an answer is asked again.
            self.put(destination, Entry { ask_at: now + AGAIN, state });
            self.not_before = now + PAUSE;
            questions.push(destination);
        }
        questions
    }

    fn due(&self) -> Option<Duration> {
        let firsts = self.schedules.iter().filter_map(|schedule| schedule.first());
        firsts.map(|(at, _)| self.not_before.max(*at)).min()
    }

    fn answer(&mut self, destination: IpAddr, end: Option<Duration>, now: Duration) {
        let state = self.entries.get(&destination).map(|entry| entry.state);
        match end {
            Some(end) => self.bind(destination, end, now),
            None if matches!(state, Some(DestinationState::Waiting { asked }) if asked < ASKED) => (),
            None => self.forget(destination),
        }
    }

    fn bind(&mut self, destination: IpAddr, end: Duration, now: Duration) {
        let is_bound =
            self.entries.get(&destination).is_some_and(|entry| entry.state == DestinationState::Bound);
        if !is_bound && self.schedules[BOUND].len() == MOST_BOUND {
            self.refused += 1;
            return self.forget(destination);
        }
        self.changed |= !is_bound;
        self.put(
            destination,
            Entry { ask_at: (end + SETTLED).min(now + LOOK), state: DestinationState::Bound },
        );
    }

    fn put(&mut self, destination: IpAddr, entry: Entry) {
        if let Some(old) = self.entries.insert(destination, entry) {
            self.schedules[old.state.schedule()].remove(&(old.ask_at, destination));
        }
        self.schedules[entry.state.schedule()].insert((entry.ask_at, destination));
    }

    fn forget(&mut self, destination: IpAddr) {
        let Some(entry) = self.entries.remove(&destination) else { return };
        self.schedules[entry.state.schedule()].remove(&(entry.ask_at, destination));
        self.changed |= entry.state == DestinationState::Bound;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const MS: Duration = Duration::from_millis(1);
    const D: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
    const NOTHING: [IpAddr; 0] = [];

    /// A destination that is bound at 20 ms, until `end`.
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
        // Another error before the second question causes no third one.
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
            let [v4, _] = &learned.families;
            assert!(v4.entries.len() <= MOST_WAITING + MOST_BOUND);
            assert_eq!(v4.schedules.iter().map(BTreeSet::len).sum::<usize>(), v4.entries.len());
            asked += questions.len();
            questions.iter().for_each(|to| learned.answer(*to, Some(Duration::from_secs(600)), now));
        }
        assert_eq!(asked, 200 * MOST_QUESTIONS);
        assert_eq!(learned.bound().len(), MOST_BOUND);
        assert!(learned.refused() > 900_000);
        // There is room again when entries end.
        let end = Duration::from_secs(601);
        for now in (0..20_000).map(|ms| end + ms * MS) {
            learned.questions(now).iter().for_each(|to| learned.answer(*to, None, now));
        }
        assert_eq!((learned.due(), learned.bound().len()), (None, 0));
        learned.took([MS; 2], end);
        learned.took([200 * MS, MS], end + 20_000 * MS);
        learned.note(D, end + 20_000 * MS);
        assert_eq!(
            learned.due(),
            Some(end + 20_000 * MS + 39_800 * MS),
            "questions take only a part of the time"
        );
        learned.answer(D, Some(2 * end), end);
        assert_eq!(learned.take_changed(), Some([D].into()));
    }

    /// The errors are forged, and a dump of IPv6 takes 100 ms.
    #[test]
    fn errors_of_ipv6_delay_no_question_about_ipv4() {
        let mut learned = Learned::default();
        let six = |n: u16| IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, n]);
        (0..1000).for_each(|n| learned.note(six(n), Duration::ZERO));
        assert_eq!(learned.questions(SETTLED).len(), MOST_WAITING, "a dump answers all of them");
        learned.took([Duration::ZERO, 100 * MS], SETTLED);
        learned.note(D, 100 * MS);
        assert_eq!(learned.due(), Some(120 * MS));
        assert_eq!(learned.questions(120 * MS), [D]);
        learned.answer(D, Some(Duration::from_secs(600)), 120 * MS);
        assert_eq!(learned.take_changed(), Some([D].into()));
        assert_eq!(learned.due(), Some(10_120 * MS), "Linux is asked about D again");
    }

    #[test]
    fn new_errors_come_before_bound_destinations_which_have_their_part() {
        let mut learned = Learned::default();
        let address = |n: u32| IpAddr::from(Ipv4Addr::from_bits(n));
        (0..MOST_BOUND as u32).for_each(|n| {
            learned.answer(address(n), Some(Duration::from_secs(600)), Duration::ZERO);
        });
        let now = LOOK;
        (0..100).for_each(|n| learned.note(address(10_000 + n), now - SETTLED));
        let questions = learned.questions(now);
        let new = questions.iter().filter(|to| **to >= address(10_000)).count();
        assert_eq!((questions.len(), new), (MOST_QUESTIONS, MOST_QUESTIONS / 4 * 3));
    }

    #[test]
    fn a_destination_about_which_linux_never_answers_is_forgotten() {
        let mut learned = Learned::default();
        learned.note(D, Duration::ZERO);
        for n in 0..u32::from(MOST_ASKED) {
            assert_eq!(learned.questions(SETTLED + n * AGAIN), [D]);
        }
        assert_eq!(learned.questions(SETTLED + 5 * AGAIN), NOTHING);
        assert_eq!((learned.due(), learned.refused()), (None, 1));
    }
}
