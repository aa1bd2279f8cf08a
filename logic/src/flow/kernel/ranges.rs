//! Which buckets of the index belong to which mask. Runs have a power of two of buckets, and are halved and joined again
//! (Knowlton's buddies, TAOCP 2.5).

use std::collections::BTreeSet;

/// `count` buckets, beginning with `first`. `count` is a power of two and divides `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub first: u32,
    pub count: u32,
}

impl Range {
    /// The range as a word of a mask's row.
    pub fn word(self) -> u64 {
        u64::from(self.first) | u64::from(self.count - 1) << 32
    }
}

pub(super) struct Ranges {
    /// Free runs, by the logarithm of their length.
    free: Vec<BTreeSet<u32>>,
}

impl Ranges {
    /// `buckets` must be a power of two.
    pub fn new(buckets: usize) -> Self {
        let order = buckets.checked_ilog2().unwrap_or(0) as usize;
        let mut free = vec![BTreeSet::new(); order + 1];
        free[order].insert(0);
        Self { free }
    }

    /// Takes a run of `count` buckets, a power of two. `None` if there is none left.
    pub fn take(&mut self, count: u32) -> Option<Range> {
        let order = count.ilog2() as usize;
        let from = (order..self.free.len()).find(|&order| !self.free[order].is_empty())?;
        let first = self.free[from].pop_first()?;
        for order in order..from {
            self.free[order].insert(first + (1 << order));
        }
        Some(Range { first, count })
    }

    /// Whether nothing is taken.
    #[cfg(test)]
    pub fn is_whole(&self) -> bool {
        self.free.last().is_some_and(|whole| !whole.is_empty())
    }

    pub fn put(&mut self, range: Range) {
        let (mut first, mut order) = (range.first, range.count.ilog2() as usize);
        while order + 1 < self.free.len() && self.free[order].remove(&(first ^ 1 << order)) {
            first &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_were_given_back_can_be_taken_as_a_whole() {
        let mut ranges = Ranges::new(16);
        let taken = [4, 1, 8, 2].map(|count| ranges.take(count).unwrap());
        assert_eq!(taken.map(|r| (r.first, r.count)), [(0, 4), (4, 1), (8, 8), (6, 2)]);
        assert_eq!(ranges.take(2), None);
        assert_eq!(ranges.take(1).map(|r| r.first), Some(5));
        taken.into_iter().chain([Range { first: 5, count: 1 }]).for_each(|range| ranges.put(range));
        assert_eq!(ranges.take(16), Some(Range { first: 0, count: 16 }));
    }
}
