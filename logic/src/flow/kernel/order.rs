//! The order in which the masks of a table are searched.
//!
//! The order saves time and decides nothing. A reader skips masks that cannot win. It misses none that can, as long as each
//! mask has an entry that is at least as high as the best rule in its buckets. Readers go from the first entry to the
//! last. A mask that moves towards the front is therefore written a second time. Its later entry is removed after a
//! grace period.

use super::memory::{FlowMemory, MASKS, ORDER, ORDER_RANK_SHIFT, SPARE, words};
use crate::flow::{
    Key,
    rule::{CORE_TABLE, TableId},
};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

/// Holes are closed only in an order with more entries than these.
const SHORT: usize = 16;

/// An entry of the order: priority and rank of the best rule, and the row of the mask that has it in its buckets.
pub(super) fn entry(priority: u16, mask: &Key, row: u16) -> u64 {
    u64::from(priority) << 48 | mask.rank() << ORDER_RANK_SHIFT | u64::from(row)
}

/// The row of an entry; 0: a hole.
pub(super) fn row_of(entry: u64) -> u16 {
    (entry & ((1 << ORDER_RANK_SHIFT) - 1)) as u16
}

/// The entries of a table, and their count.
pub(super) struct Order<'a> {
    count: &'a AtomicU64,
    entries: &'a [AtomicU64],
}

impl Order<'_> {
    pub fn of(memory: &impl FlowMemory, table: TableId) -> Order<'_> {
        let row = &memory.tables()[usize::from(table.min(CORE_TABLE)) * words::TABLE..][..words::TABLE];
        Order { count: &row[0], entries: &row[1..] }
    }

    pub fn length(&self) -> usize {
        (self.count.load(Acquire) as usize).min(ORDER)
    }

    pub fn get(&self, at: usize) -> u64 {
        self.entries[at].load(Acquire)
    }

    /// The caller checks that there is room.
    fn set(&self, at: usize, entry: u64) {
        self.entries[at].store(entry, Release);
        if at >= self.length() {
            self.count.store(at as u64 + 1, Release);
        }
    }

    /// Clears entries, and shortens the order if they are at its end.
    pub fn clear(&self, gone: impl IntoIterator<Item = usize>) {
        gone.into_iter().for_each(|at| self.entries[at].store(0, Release));
        let length = (0..self.length()).rev().find(|&at| self.get(at) != 0).map_or(0, |last| last + 1);
        self.count.store(length as u64, Release);
    }

    /// The positions of this row's entries.
    pub fn places(&self, row: u16) -> impl Iterator<Item = usize> + '_ {
        (0..self.length()).filter(move |&at| row_of(self.get(at)) == row)
    }

    /// Gives a mask an entry at least as high as `entry`. A lower entry is raised where it is, and the mask is written a
    /// second time at the right position. Returns true if the mask now has two entries; the last one is removed when no
    /// reader is left. Without room the mask stays where it is, or is written anywhere.
    pub fn state(&self, entry: u64) -> bool {
        let places: Vec<usize> = self.places(row_of(entry)).collect();
        let before = places.last().copied();
        if let Some(at) = before {
            if self.get(at) >= entry {
                return false;
            }
            self.set(at, entry);
            // Readers may have passed the first entry, but none has passed only the last. So the last one stays.
            self.clear(places.into_iter().filter(|other| *other != at));
        }
        let length = self.length();
        let target = (0..length).find(|&at| self.get(at) != 0 && self.get(at) < entry).unwrap_or(length);
        // Limit the second entries, so that there is always room for every mask.
        if before.is_some_and(|at| at < target || self.twice() == SPARE) {
            return false;
        }
        let hole = |at: &usize| self.get(*at) == 0;
        if target > 0 && hole(&(target - 1)) {
            self.set(target - 1, entry);
        } else if let Some(to) = (target..length).find(hole).or((length < ORDER).then_some(length)) {
            // Move the entries towards the end, the last one first. Readers go from the first to the last, so they
            // see each of them at least once.
            (target..to).rev().for_each(|at| self.set(at + 1, self.get(at)));
            self.set(target, entry);
        } else if before.is_some() {
            return false;
        } else if let Some(at) = (0..length).find(hole) {
            self.set(at, entry);
        }
        before.is_some()
    }

    /// How many entries are the second one of a mask.
    fn twice(&self) -> usize {
        let mut seen = vec![false; MASKS];
        let rows = (0..self.length()).map(|at| usize::from(row_of(self.get(at))));
        rows.filter(|row| *row != 0 && std::mem::replace(&mut seen[*row], true)).count()
    }
}

/// Moves entries towards the front if at least half of the order is holes. A moved mask then has two entries, as after
/// [`Order::state`]. Returns the rows of the moved masks. `moves` must return false for a mask with two entries.
pub(super) fn close_holes(memory: &impl FlowMemory, table: TableId, moves: impl Fn(u16) -> bool) -> Vec<u16> {
    let order = Order::of(memory, table);
    let length = order.length();
    let mut moved = Vec::new();
    if length <= SHORT || (0..length).filter(|&at| order.get(at) != 0).count() * 2 > length {
        return moved;
    }
    let (room, mut from) = (SPARE.saturating_sub(order.twice()), 0);
    for at in 0..length {
        let entry = order.get(at);
        if entry == 0 {
            continue;
        }
        let hole = (from..at).find(|&at| order.get(at) == 0);
        match hole.filter(|_| moved.len() < room && moves(row_of(entry))) {
            Some(hole) => {
                order.set(hole, entry);
                moved.push(row_of(entry));
                from = hole + 1;
            }
            None => from = at + 1,
        }
    }
    moved
}

/// Removes the second entry of a mask.
pub(super) fn tidy(memory: &impl FlowMemory, table: TableId, row: u16) {
    let order = Order::of(memory, table);
    let second: Vec<usize> = order.places(row).skip(1).collect();
    order.clear(second);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::kernel::{memory::HeapFlows, tests::SMALL};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[derive(Clone, Debug)]
    enum Step {
        Raise(u16, u16),
        Leave(u16),
        Seal,
        Void,
        Begin,
        Read(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Some masks change often.
        let row = || prop_oneof![2 => 1..5_u16, 3 => 5..40_u16];
        prop_oneof![
            6 => (row(), 1..100_u16).prop_map(|(row, priority)| Step::Raise(row, priority)),
            4 => row().prop_map(Step::Leave),
            2 => Just(Step::Seal),
            2 => Just(Step::Void),
            2 => Just(Step::Begin),
            5 => (1..30_usize).prop_map(Step::Read),
        ]
    }

    /// A reader on its way through the order.
    struct Reader {
        at: usize,
        /// The masks that it must meet, each with at least this entry.
        must: BTreeMap<u16, u64>,
        began_before_seal: bool,
    }

    #[derive(Default)]
    struct World {
        stated: BTreeMap<u16, u64>,
        open: BTreeSet<u16>,
        sealed: Option<BTreeSet<u16>>,
        reader: Option<Reader>,
    }

    impl World {
        fn step(&mut self, memory: &HeapFlows, step: &Step) {
            let order = Order::of(memory, 0);
            match *step {
                Step::Raise(row, priority) => {
                    let new = entry(priority, &Key::ZERO, row);
                    if order.state(new) {
                        self.open.insert(row);
                    }
                    let stated = self.stated.entry(row).or_default();
                    *stated = new.max(*stated);
                }
                Step::Leave(row) => {
                    let places: Vec<usize> = order.places(row).collect();
                    order.clear(places);
                    self.stated.remove(&row);
                    self.reader.iter_mut().for_each(|reader| _ = reader.must.remove(&row));
                }
                Step::Seal if self.sealed.is_none() => {
                    self.sealed = Some(std::mem::take(&mut self.open));
                    self.reader.iter_mut().for_each(|reader| reader.began_before_seal = true);
                }
                Step::Void if !self.reader.as_ref().is_some_and(|reader| reader.began_before_seal) => {
                    let sealed = self.sealed.take().unwrap_or_default();
                    sealed.difference(&self.open).for_each(|row| tidy(memory, 0, *row));
                    self.open.extend(close_holes(memory, 0, |row| !self.open.contains(&row)));
                }
                Step::Begin if self.reader.is_none() => {
                    let must = self.stated.clone();
                    self.reader = Some(Reader { at: 0, must, began_before_seal: false });
                }
                Step::Read(count) => self.read(&order, count),
                Step::Seal | Step::Void | Step::Begin => {}
            }
        }

        fn read(&mut self, order: &Order<'_>, count: usize) {
            let Some(reader) = &mut self.reader else { return };
            for _ in 0..count {
                if reader.at >= order.length() {
                    assert_eq!(reader.must, BTreeMap::new(), "masks that the reader has not met");
                    self.reader = None;
                    return;
                }
                let met = order.get(reader.at);
                reader.must.retain(|row, least| *row != row_of(met) || met < *least);
                reader.at += 1;
            }
        }
    }

    proptest! {
        #![proptest_config(crate::cases(512))]
        #[test]
        fn a_reader_meets_every_mask(steps in prop::collection::vec(step(), 1..300)) {
            let (memory, mut world) = (HeapFlows::new(SMALL, 1), World::default());
            for step in &steps {
                world.step(&memory, step);
                let order = Order::of(&memory, 0);
                for (row, least) in &world.stated {
                    let entries: Vec<u64> = order.places(*row).map(|at| order.get(at)).collect();
                    prop_assert!((1..=2).contains(&entries.len()), "row {row}: {entries:x?}");
                    prop_assert!(entries.iter().all(|entry| entry == least), "row {row}: {entries:x?}");
                }
                prop_assert_eq!((0..order.length()).map(|at| row_of(order.get(at)))
                    .filter(|row| *row != 0).collect::<BTreeSet<_>>(), world.stated.keys().copied().collect());
            }
            world.step(&memory, &Step::Read(usize::MAX >> 1));
        }
    }

    /// Two of every three masks leave. The order is short again after a few batches.
    #[test]
    fn holes_are_closed() {
        let memory = HeapFlows::new(SMALL, 1);
        let order = Order::of(&memory, 0);
        let rows = 1..=1000_u16;
        rows.clone().for_each(|row| assert!(!order.state(entry(2000 - row, &Key::ZERO, row))));
        let stays = |row: &u16| row.is_multiple_of(3);
        rows.clone()
            .filter(|row| !stays(row))
            .for_each(|row| order.clear(order.places(row).collect::<Vec<_>>()));
        assert_eq!(order.length(), 999);
        loop {
            let moved = close_holes(&memory, 0, |_| true);
            assert!(moved.len() <= SPARE);
            if moved.is_empty() {
                break;
            }
            moved.into_iter().for_each(|row| tidy(&memory, 0, row));
        }
        let left = (0..order.length()).map(|at| row_of(order.get(at))).filter(|row| *row != 0);
        assert_eq!(left.collect::<Vec<_>>(), rows.filter(stays).collect::<Vec<_>>());
        assert!(order.length() < 2 * 333, "{}", order.length());
    }
}
