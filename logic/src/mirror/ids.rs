//! Numbers of routers and interfaces. The lowest free number comes first. A number is reused only after a whole plan
//! cycle without an owner.
//!
//! During the pause, readers of tables and counters by number can see that the old owner is gone.

use std::collections::BTreeSet;

pub(super) struct Ids {
    next: u32,
    end: u32,
    free: BTreeSet<u32>,
    /// Numbers released in this cycle, and in the one before.
    cooling: [Vec<u32>; 2],
}

impl Ids {
    /// Manages the numbers `first..end`.
    pub fn new(first: u32, end: u32) -> Self {
        Self { next: first, end, free: BTreeSet::new(), cooling: [Vec::new(), Vec::new()] }
    }

    /// A number, or `None` if all are taken or cooling.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop_first().or_else(|| {
            let id = self.next;
            (id < self.end).then(|| {
                self.next += 1;
                id
            })
        })
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
        assert_eq!((ids.take(), ids.take(), ids.take()), (Some(1), Some(2), None));
        ids.release(1);
        assert!(ids.turn());
        assert_eq!(ids.take(), None, "the plan that says it is gone is out; the next has not been");
        assert!(ids.turn());
        assert_eq!(ids.take(), Some(1));
        assert!(!ids.turn());
    }
}
