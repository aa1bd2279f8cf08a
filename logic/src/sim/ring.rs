//! Packets that wait for a core, oldest first.

use super::SLICE_NS;
use std::collections::VecDeque;

/// A ring for a limited number of packets, stored by the slices in which they arrived.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    limit: u64,
    waiting: u64,
    lots: VecDeque<Lot>,
}

/// Packets that arrived in one slice, evenly over it.
#[derive(Clone, Debug)]
struct Lot {
    slice: u64,
    came: u64,
    /// How many of them are gone, and how many are left.
    gone: u64,
    left: u64,
}

/// Packets that leave a ring together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    /// The slice in which they arrived.
    pub slice: u64,
    pub packets: u64,
    /// The average time from arrival to leaving.
    pub waited_ns: u64,
}

impl Ring {
    pub fn new(limit: u32) -> Self {
        Self { limit: limit.into(), waiting: 0, lots: VecDeque::new() }
    }

    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Adds packets that arrived in a slice, after all earlier ones.
    pub fn push(&mut self, slice: u64, packets: u64) {
        if packets > 0 {
            self.lots.push_back(Lot { slice, came: packets, gone: 0, left: packets });
            self.waiting += packets;
        }
    }

    /// The first `packets` leave evenly over slice `now`.
    pub fn pop(&mut self, now: u64, packets: u64, mut each: impl FnMut(Leaving)) {
        let total = packets.min(self.waiting);
        let mut gone = 0;
        while gone < total {
            let Some(lot) = self.lots.front_mut() else { break };
            let part = lot.left.min(total - gone);
            let came = lot.slice * SLICE_NS + middle(lot.gone, part, lot.came);
            let leave = now * SLICE_NS + middle(gone, part, total);
            each(Leaving { slice: lot.slice, packets: part, waited_ns: leave.saturating_sub(came) });
            lot.gone += part;
            lot.left -= part;
            gone += part;
            if lot.left == 0 {
                self.lots.pop_front();
            }
        }
        self.waiting -= gone;
    }

    /// Drops the newest packets that it cannot hold. Returns their number.
    pub fn drop_excess(&mut self) -> u64 {
        let excess = self.waiting.saturating_sub(self.limit);
        let mut left = excess;
        while left > 0
            && let Some(lot) = self.lots.back_mut()
        {
            let part = lot.left.min(left);
            lot.left -= part;
            left -= part;
            if lot.left == 0 {
                self.lots.pop_back();
            }
        }
        self.waiting -= excess;
        excess
    }
}

/// The time within a slice of the middle one of `part` packets that come after `first` ones, of `all` that are spread
/// over it.
fn middle(first: u64, part: u64, all: u64) -> u64 {
    SLICE_NS * (2 * first + part) / (2 * all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leave_first_and_the_newest_are_dropped() {
        let mut ring = Ring::new(25);
        ring.push(0, 20);
        ring.push(1, 0);
        ring.push(1, 10);
        // The last 5 of 30 find no place.
        assert_eq!((ring.drop_excess(), ring.waiting()), (5, 25));
        let mut left = Vec::new();
        let mut pop = |ring: &mut Ring, now, packets| {
            ring.pop(now, packets, |it| left.push((it.slice, it.packets, it.waited_ns)));
        };
        // 10 of 20 arrived at 25 us on average and leave at 150.
        pop(&mut ring, 1, 10);
        // 10 arrived at 75 us and leave in the first two thirds of slice 2, at 233. 5 of 10 arrived at 125 us and leave
        // at 283 (the dropped ones arrived last).
        pop(&mut ring, 2, 100);
        assert_eq!(left, [(0, 10, 125_000), (0, 10, 158_333), (1, 5, 158_333)]);
        assert_eq!((ring.waiting(), ring.drop_excess()), (0, 0));
    }
}
