//! Numbers of routers and interfaces. The lowest free number comes first. A number is reused only after a whole plan
//! cycle without an owner.
//!
//! During the pause, readers of tables and counters by number can see that the old owner is gone.
//!
//! The last quarter of the numbers is for parties that have at most an eighth of all. So one party that takes as many as it
//! can leaves some for others.

use std::collections::BTreeSet;

/// Why there is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// All are taken or cooling.
    OfAll,
    /// The few that are left are for others.
    OfItsShare,
}

impl Shortage {
    /// As a sentence. `what`: routers, interfaces.
    pub fn of(self, what: &str) -> String {
        match self {
            Shortage::OfAll => format!("there are too many {what}: no number is free"),
            Shortage::OfItsShare => {
                format!("its owner has too many {what}: the last free numbers are for others")
            }
        }
    }
}

pub(super) struct Ids {
    next: u32,
    end: u32,
    all: usize,
    free: BTreeSet<u32>,
    /// Numbers released in this cycle, and in the one before.
    cooling: [Vec<u32>; 2],
}

impl Ids {
    /// Manages the numbers `first..end`.
    pub fn new(first: u32, end: u32) -> Self {
        let all = (end - first) as usize;
        Self { next: first, end, all, free: BTreeSet::new(), cooling: [Vec::new(), Vec::new()] }
    }

    /// A number for a party that has `taken` so far.
    pub fn take(&mut self, taken: usize) -> Result<u32, Shortage> {
        let left = self.free.len() + (self.end - self.next) as usize;
        if left == 0 {
            return Err(Shortage::OfAll);
        }
        if taken > self.all / 8 && left <= self.all / 4 {
            return Err(Shortage::OfItsShare);
        }
        Ok(self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        }))
    }

    /// Releases the number of an owner that is gone.
    pub fn release(&mut self, id: u32) {
        self.cooling[0].push(id);
    }

    /// Ends a cycle, after a plan was returned. Returns true if numbers have become free, or will.
    pub fn turn(&mut self) -> bool {
        let any = self.cooling.iter().any(|c| !c.is_empty());
        self.free.extend(self.cooling[1].drain(..));
        self.cooling.swap(0, 1);
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_rests_for_a_whole_cycle() {
        let mut ids = Ids::new(1, 3);
        let take = |ids: &mut Ids| ids.take(0);
        assert_eq!([take(&mut ids), take(&mut ids)], [Ok(1), Ok(2)]);
        assert_eq!(take(&mut ids), Err(Shortage::OfAll));
        ids.release(1);
        assert!(ids.turn());
        assert_eq!(take(&mut ids), Err(Shortage::OfAll), "the plan that says it is gone is out; the next is not");
        assert!(ids.turn());
        assert_eq!(take(&mut ids), Ok(1));
        assert!(!ids.turn());
    }

    #[test]
    fn a_party_with_many_leaves_the_last_quarter_to_others() {
        let mut ids = Ids::new(0, 16);
        let greedy: Vec<_> = (0..16).map_while(|taken| ids.take(taken).ok()).collect();
        assert_eq!(greedy.len(), 12);
        assert_eq!(ids.take(12), Err(Shortage::OfItsShare));
        assert_eq!(ids.take(3), Err(Shortage::OfItsShare));
        assert_eq!([ids.take(0), ids.take(2), ids.take(1), ids.take(1)], [Ok(12), Ok(13), Ok(14), Ok(15)]);
        assert_eq!(ids.take(0), Err(Shortage::OfAll));
        // One that was given back counts as left.
        (0..5).for_each(|id| ids.release(id));
        ids.turn();
        ids.turn();
        assert_eq!(ids.take(7), Ok(0));
        assert_eq!(ids.take(8), Err(Shortage::OfItsShare));
    }
}
