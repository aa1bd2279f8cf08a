//! Masks: their rows, the order in which those of a table are searched, and the union of all, under which flows are cached.
//!
//! The order saves time and decides nothing. A reader skips masks that cannot win. It misses none that can, as long as each
//! mask has an entry that is at least as high as its best rule. Readers go upwards through the entries. A mask that moves
//! towards the front is therefore written a second time, and the other entry is removed after a grace period.

use super::{
    index::Index,
    memory::{FRONT, FlowMemory, MASKS, ORDER, ORDER_RANK_SHIFT, TABLE_MASKS, words},
    ranges::{Range, Ranges},
};
use crate::flow::{
    Key, Refused,
    rule::{CORE_TABLE, TableId},
};
use std::{
    collections::HashMap,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
};

struct Row {
    table: TableId,
    mask: Key,
    rules: u32,
    range: Range,
}

pub(super) struct Masks {
    /// By row. Row 0 is the union.
    rows: Vec<Option<Row>>,
    free: Vec<u16>,
    by_mask: HashMap<(TableId, Key), u16>,
    union: Key,
    ranges: Ranges,
}

/// The buckets of a mask with few rules: one cache line.
const FEWEST_BUCKETS: u32 = 1;
/// The word of a mask's row that says where its rules are.
const INDEX_WORD: usize = Key::WORDS + 2;
/// In the row of the union, the word that says whether fragments are dropped.
pub(super) const FRAGMENTS_WORD: usize = INDEX_WORD + 1;

/// An entry of the order: priority, rank of the mask, and its row.
fn entry(priority: u16, mask: &Key, row: u16) -> u64 {
    u64::from(priority) << 48 | mask.rank() << ORDER_RANK_SHIFT | u64::from(row)
}

/// The row of an entry; 0: a hole.
pub(super) fn row_of(entry: u64) -> u16 {
    (entry & ((1 << ORDER_RANK_SHIFT) - 1)) as u16
}

/// A mask as `struct flow_mask`: the words of the mask, then a list of the rest words that it uses.
fn row_words(mask: &Key) -> [u64; words::MASK] {
    let mut row = [0; words::MASK];
    row[..Key::WORDS].copy_from_slice(&mask.words());
    let used = (FRONT..Key::WORDS).filter(|&at| row[at] != 0).map(|at| (at - FRONT) as u8);
    let mut list = [0_u8; 16];
    let mut count = 0;
    for at in used {
        count += 1;
        list[count] = at;
    }
    list[0] = count as u8;
    for (word, bytes) in row[Key::WORDS..].iter_mut().zip(list.chunks_exact(8)) {
        *word = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
    }
    row
}

impl Masks {
    /// `buckets`: how many the index has, a power of two.
    pub fn new(buckets: usize) -> Self {
        Self {
            rows: (0..MASKS).map(|_| None).collect(),
            free: (1..MASKS as u16).rev().collect(),
            by_mask: HashMap::new(),
            union: Key::ZERO,
            ranges: Ranges::new(buckets),
        }
    }

    pub fn union(&self) -> &Key {
        &self.union
    }

    pub fn table(&self, row: u16) -> TableId {
        self.rows[usize::from(row)].as_ref().map_or(0, |row| row.table)
    }

    /// The buckets that hold the rules of a mask.
    pub fn range(&self, row: u16) -> Range {
        self.rows[usize::from(row)].as_ref().map_or(Range { first: 0, count: 1 }, |row| row.range)
    }

    /// How many rules a mask has.
    pub fn rules(&self, row: u16) -> u32 {
        self.rows[usize::from(row)].as_ref().map_or(0, |row| row.rules)
    }

    /// Takes `times` as many buckets for a mask. The caller fills them and then calls [`moved`](Masks::moved).
    pub fn bigger(&mut self, row: u16, times: u32) -> Option<Range> {
        self.ranges.take(self.range(row).count.checked_mul(times)?)
    }

    /// Shows readers the new buckets of a mask. Returns the old ones, which are given back when no reader is left.
    pub fn moved(&mut self, memory: &impl FlowMemory, row: u16, range: Range) -> Option<Range> {
        let r = self.rows[usize::from(row)].as_mut()?;
        memory.masks()[usize::from(row) * words::MASK + INDEX_WORD].store(range.word(), Release);
        Some(std::mem::replace(&mut r.range, range))
    }

    pub fn give_back(&mut self, range: Range) {
        self.ranges.put(range);
    }

    pub fn mask(&self, row: u16) -> Key {
        self.rows[usize::from(row)].as_ref().map_or(Key::ZERO, |row| row.mask)
    }

    /// The row for a rule with this mask. It is written, but not yet in the order of its table. Refused if the table has too
    /// many masks, or if there is no room for their rules.
    pub fn get(&mut self, memory: &impl FlowMemory, table: TableId, mask: &Key) -> Result<u16, Refused> {
        if let Some(&row) = self.by_mask.get(&(table, *mask)) {
            self.rows[usize::from(row)].as_mut().into_iter().for_each(|row| row.rules += 1);
            return Ok(row);
        }
        if self.by_mask.keys().filter(|(t, _)| *t == table).count() >= TABLE_MASKS {
            return Err(Refused::TooManyMasks);
        }
        let range = self.ranges.take(FEWEST_BUCKETS).ok_or(Refused::TableFull)?;
        let Some(row) = self.free.pop() else {
            self.ranges.put(range);
            return Err(Refused::TooManyMasks);
        };
        Index::new(memory.index(), range).clear();
        write_row(memory, row, mask, range);
        self.rows[usize::from(row)] = Some(Row { table, mask: *mask, rules: 1, range });
        self.by_mask.insert((table, *mask), row);
        Ok(row)
    }

    /// Gives the mask an entry at least this high, before a rule of this priority can be found. Returns true if the union
    /// has grown; cached flows must then go.
    pub fn state(
        &mut self,
        memory: &impl FlowMemory,
        row: u16,
        priority: u16,
        twice: &mut Vec<(TableId, u16)>,
    ) -> bool {
        let (table, mask) = (self.table(row), self.mask(row));
        if Order::of(memory, table).state(entry(priority, &mask, row)) {
            twice.push((table, row));
        }
        if mask.within(&self.union) {
            return false;
        }
        self.union = self.union.union(&mask);
        write_row(memory, 0, &self.union, NOWHERE);
        true
    }

    /// Counts one rule less. Returns true if it was the mask's last rule. The mask then leaves the order, and the caller
    /// gives its row to [`free`](Masks::free) when no reader is left.
    pub fn put(&mut self, memory: &impl FlowMemory, row: u16) -> bool {
        let Some(r) = self.rows[usize::from(row)].as_mut() else { return false };
        r.rules -= 1;
        if r.rules > 0 {
            return false;
        }
        let key = (r.table, r.mask);
        self.by_mask.remove(&key);
        let order = Order::of(memory, key.0);
        let places: Vec<usize> = order.places(row).collect();
        order.clear(places);
        true
    }

    pub fn free(&mut self, row: u16) {
        if let Some(gone) = self.rows[usize::from(row)].take() {
            self.ranges.put(gone.range);
            self.free.push(row);
        }
    }

    /// Makes the union smaller after masks were [freed](Masks::free). Masks without rules that are not free yet stay in it.
    /// Decisions of their rules may be cached, and packets that differ in their bits must not find these.
    pub fn shrink(&mut self, memory: &impl FlowMemory) {
        let union = self.rows.iter().flatten().fold(Key::ZERO, |union, row| union.union(&row.mask));
        if union != self.union {
            self.union = union;
            write_row(memory, 0, &union, NOWHERE);
        }
    }
}

/// Placeholder for the union, which has no rules of its own.
const NOWHERE: Range = Range { first: 0, count: 1 };

fn write_row(memory: &impl FlowMemory, row: u16, mask: &Key, range: Range) {
    let at = usize::from(row) * words::MASK;
    let mut words = row_words(mask);
    words[INDEX_WORD] = range.word();
    // Store backwards: the list of rest words before their number, which is in the first word after the mask's.
    for (i, word) in words.into_iter().enumerate().take(INDEX_WORD + 1).rev() {
        memory.masks()[at + i].store(word, Release);
    }
}

/// The entries of a table, and their count.
struct Order<'a> {
    count: &'a AtomicU64,
    entries: &'a [AtomicU64],
}

impl Order<'_> {
    fn of(memory: &impl FlowMemory, table: TableId) -> Order<'_> {
        let row = &memory.tables()[usize::from(table.min(CORE_TABLE)) * words::TABLE..][..words::TABLE];
        Order { count: &row[0], entries: &row[1..] }
    }

    fn length(&self) -> usize {
        (self.count.load(Acquire) as usize).min(ORDER)
    }

    fn get(&self, at: usize) -> u64 {
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
    fn clear(&self, gone: impl IntoIterator<Item = usize>) {
        gone.into_iter().for_each(|at| self.entries[at].store(0, Release));
        let length = (0..self.length()).rev().find(|&at| self.get(at) != 0).map_or(0, |last| last + 1);
        self.count.store(length as u64, Release);
    }

    /// The positions of this row's entries.
    fn places(&self, row: u16) -> impl Iterator<Item = usize> + '_ {
        (0..self.length()).filter(move |&at| row_of(self.get(at)) == row)
    }

    /// Gives a mask an entry at least as high as `entry`. A lower entry is raised where it is, and the mask is written a
    /// second time at the right position. Returns true if the mask now has two entries; the last one is removed when no
    /// reader is left. Without room the mask stays where it is, or is written anywhere.
    fn state(&self, entry: u64) -> bool {
        let before = self.places(row_of(entry)).max_by_key(|&at| self.get(at));
        if let Some(at) = before {
            if self.get(at) >= entry {
                return false;
            }
            self.set(at, entry);
        }
        let length = self.length();
        let target = (0..length).find(|&at| self.get(at) != 0 && self.get(at) < entry).unwrap_or(length);
        // Limit the second entries, so that there is always room for every mask.
        if before.is_some_and(|at| at < target || self.twice() == ORDER - TABLE_MASKS) {
            return false;
        }
        let hole = |at: &usize| self.get(*at) == 0;
        if target > 0 && hole(&(target - 1)) {
            self.set(target - 1, entry);
        } else if let Some(to) = (target..length).find(hole).or((length < ORDER).then_some(length)) {
            // Move entries from the last one on. Readers go upwards, so they see each of them at least once.
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
        let mut rows: Vec<u16> =
            (0..self.length()).map(|at| row_of(self.get(at))).filter(|row| *row != 0).collect();
        rows.sort_unstable();
        rows.windows(2).filter(|pair| pair[0] == pair[1]).count()
    }
}

/// Removes all entries of a mask except the highest. If several are equal, the first of them stays. The first entry may be
/// lower than a later one. With too many second entries, the later one was raised where it was.
pub(super) fn tidy(memory: &impl FlowMemory, table: TableId, row: u16) {
    let order = Order::of(memory, table);
    let places: Vec<usize> = order.places(row).collect();
    let highest = places.iter().rev().copied().max_by_key(|&at| order.get(at));
    order.clear(places.into_iter().filter(|&at| Some(at) != highest));
}

#[cfg(test)]
mod tests {
    use super::{super::memory::HeapFlows, *};
    use crate::flow::{Field, Match, kernel::tests::SMALL};

    fn masks_of(memory: &HeapFlows) -> Vec<(u16, u16)> {
        let order = Order::of(memory, 0);
        let entries = (0..order.length()).map(|at| order.get(at));
        entries.map(|entry| (row_of(entry), (entry >> 48) as u16)).collect()
    }

    #[test]
    fn masks_are_ordered_by_priority_and_have_two_entries_only_until_tidied() {
        let memory = HeapFlows::new(SMALL, 1);
        let (mut masks, mut twice) = (Masks::new(SMALL.buckets), Vec::new());
        let mask = |field| *Match::ANY.with(field, 0_u8).mask();
        let mut add = |masks: &mut Masks, field, priority| {
            let row = masks.get(&memory, 0, &mask(field)).unwrap();
            masks.state(&memory, row, priority, &mut twice);
            row
        };
        let (a, b, c) = (
            add(&mut masks, Field::EthDst, 10),
            add(&mut masks, Field::EthSrc, 30),
            add(&mut masks, Field::EthType, 20),
        );
        assert_eq!(masks_of(&memory), [(b, 30), (c, 20), (a, 10)]);
        add(&mut masks, Field::EthDst, 25);
        assert_eq!(masks_of(&memory), [(b, 30), (a, 25), (c, 20), (a, 25)]);
        add(&mut masks, Field::EthDst, 5);
        assert_eq!(twice, [(0, a)]);
        tidy(&memory, 0, a);
        assert_eq!(masks_of(&memory), [(b, 30), (a, 25), (c, 20)]);
        assert!(masks.put(&memory, c) && !masks.put(&memory, a));
        assert_eq!(masks_of(&memory), [(b, 30), (a, 25)]);
    }

    /// Holes are used again, wherever they are. A mask without an entry would hide its rules.
    #[test]
    fn masks_may_come_and_go_without_end() {
        let memory = HeapFlows::new(SMALL, 1);
        let mut masks = Masks::new(SMALL.buckets);
        let fields = [Field::EthDst, Field::EthSrc, Field::EthType, Field::InPort, Field::Metadata];
        for i in 0..1000_usize {
            let priority = [7, 1, 9, 3, 5, 8, 2][i % 7];
            let mask = *Match::ANY.with(fields[i % 5], 0_u8).mask();
            let row = masks.get(&memory, 0, &mask).unwrap();
            masks.state(&memory, row, priority, &mut Vec::new());
            tidy(&memory, 0, row);
            assert!(
                masks_of(&memory).iter().any(|(r, stated)| *r == row && *stated >= priority),
                "round {i}"
            );
            if i % 3 != 0 && masks.put(&memory, row) {
                masks.free(row);
            }
        }
    }

    /// A mask whose entry could only be raised where it was keeps the raised one.
    #[test]
    fn the_highest_entry_of_a_mask_stays() {
        let memory = HeapFlows::new(SMALL, 1);
        let (mut masks, mut twice) = (Masks::new(SMALL.buckets), Vec::new());
        let mask = |bits: u64| {
            let mut m = Match::ANY;
            m.set(Field::Metadata, 0, bits.into());
            *m.mask()
        };
        let rows: Vec<u16> = (1..=40).map(|bits| masks.get(&memory, 0, &mask(bits)).unwrap()).collect();
        for priority in [1, 50, 60, 70] {
            for row in &rows {
                masks.state(&memory, *row, priority, &mut twice);
            }
        }
        twice.drain(..).for_each(|(table, row)| tidy(&memory, table, row));
        let mut found: Vec<(u16, u16)> = masks_of(&memory).into_iter().filter(|(row, _)| *row != 0).collect();
        found.sort_unstable();
        let mut expected: Vec<(u16, u16)> = rows.into_iter().map(|row| (row, 70)).collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_row_lists_the_rest_words_that_it_uses() {
        let mask = *Match::ANY.with(Field::Metadata, 0_u8).with(Field::Ipv6Dst, 0_u8).mask();
        let row = row_words(&mask);
        assert_eq!(row[Key::WORDS].to_le_bytes(), [3, 0, 4, 5, 0, 0, 0, 0]);
        assert_eq!(row[4], u64::MAX);
    }
}
