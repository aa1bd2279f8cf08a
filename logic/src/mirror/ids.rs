//! Numbers of routers and interfaces. The lowest free number is used first. A released number rests for a whole cycle
//! of plans before it is used again. A cycle ends with the first plan after which no planned route can lead to the
//! number's last owner ([`super::Mirror::plan`]).
//!
//! During this time, readers of tables and counters can see that the last owner is gone.
//!
//! A party may have sixteen times as many numbers as are left (dynamic thresholds, Choudhury and Hahne 1998). So a
//! party that takes all that it can leaves a seventeenth of the numbers that were free. The host has no such limit.

use super::parties::{Parties, Party};
use crate::cause::{Cause, Code};
use std::collections::BTreeSet;

/// A party may have this many times the numbers that are left.
const TIMES_WHAT_IS_LEFT: usize = 16;

/// Why there is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// All numbers are taken or rest.
    OfAll,
    /// The last free numbers are kept for other parties.
    OfItsShare,
}

impl Shortage {
    /// The shortage as a sentence. `what`: routers, interfaces.
    pub fn of(self, what: &str) -> Cause {
        Code::NoNumber.cause(match self {
            Shortage::OfAll => format!("there are too many {what}: no number is free"),
            Shortage::OfItsShare => {
                format!(
                    "the namespace or its owner has too many {what}: the last free numbers are kept for others"
                )
            }
        })
    }
}

pub(super) struct Ids {
    next: u32,
    end: u32,
    free: BTreeSet<u32>,
    /// Numbers that were released in this cycle and in the one before.
    cooling: [Vec<(u32, Party)>; 2],
}

impl Ids {
    /// Manages the numbers `first..end`.
    pub fn new(first: u32, end: u32) -> Self {
        Self { next: first, end, free: BTreeSet::new(), cooling: [Vec::new(), Vec::new()] }
    }

    /// Takes a number for a party that has `taken` numbers, including those that it gave back and that rest.
    pub fn take(&mut self, taken: usize) -> Result<u32, Shortage> {
        let left = self.free.len() + (self.end - self.next) as usize;
        if left == 0 {
            return Err(Shortage::OfAll);
        }
        if taken >= left.saturating_mul(TIMES_WHAT_IS_LEFT) {
            return Err(Shortage::OfItsShare);
        }
        Ok(self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        }))
    }

    /// Releases the number of an owner that is gone.
    pub fn release(&mut self, id: u32, party: Party) {
        self.cooling[0].push((id, party));
    }

    /// The count of numbers that rest, by the party that gave them back. They count as taken. Otherwise a party could
    /// use up all numbers by giving each back.
    pub fn resting(&self) -> Parties {
        let mut resting = Parties::default();
        self.cooling.iter().flatten().for_each(|(_, party)| resting.add(*party, 1));
        resting
    }

    /// Ends a cycle. Returns true if numbers have become free or will become free.
    pub fn turn(&mut self) -> bool {
        let any = self.cooling.iter().any(|c| !c.is_empty());
        self.free.extend(self.cooling[1].drain(..).map(|(id, _)| id));
        self.cooling.swap(0, 1);
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Owner;

    #[test]
    fn a_number_rests_for_a_whole_cycle() {
        let mut ids = Ids::new(1, 3);
        let take = |ids: &mut Ids| ids.take(0);
        assert_eq!([take(&mut ids), take(&mut ids)], [Ok(1), Ok(2)]);
        assert_eq!(take(&mut ids), Err(Shortage::OfAll));
        ids.release(1, None);
        assert!(ids.turn());
        assert_eq!(
            take(&mut ids),
            Err(Shortage::OfAll),
            "the plan that removes it was returned, the next one was not"
        );
        assert!(ids.turn());
        assert_eq!(take(&mut ids), Ok(1));
        assert!(!ids.turn());
    }

    #[test]
    fn a_party_that_takes_all_it_can_leaves_some_for_others() {
        let mut ids = Ids::new(0, 90);
        let greedy = |ids: &mut Ids| (0..).map_while(|taken| ids.take(taken).ok()).count();
        assert_eq!(greedy(&mut ids), 85);
        assert_eq!(ids.take(85), Err(Shortage::OfItsShare));
        assert_eq!([0, 1, 2, 3, 4].map(|taken| ids.take(taken).is_ok()), [true; 5]);
        assert_eq!(ids.take(0), Err(Shortage::OfAll));
        // A number that was given back counts as left.
        let party = Some((Owner::User(1), 0));
        ids.release(7, party);
        assert_eq!(ids.resting().of(party), 1);
        ids.turn();
        assert_eq!(ids.resting().of(party), 1);
        ids.turn();
        assert_eq!([ids.take(16), ids.take(15)], [Err(Shortage::OfItsShare), Ok(7)]);
    }
}
