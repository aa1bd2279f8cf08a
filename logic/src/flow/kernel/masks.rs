//! Masks: their rows, the order in which a table's are searched, and the union of all, under which packets are cached.
//!
//! The order saves time and decides nothing: a reader skips what cannot win and misses nothing that can, as long as each
//! mask stands somewhere, stated at least as high as its best rule. Readers go upwards, so entries move up only by being
//! written twice, and the second one is taken out after a grace period.

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
    /// By row; row 0 is the union.
    rows: Vec<Option<Row>>,
    free: Vec<u16>,
    by_mask: HashMap<(TableId, Key), u16>,
    union: Key,
    ranges: Ranges,
}

/// Buckets of a mask with few rules: one cache line.
const FEWEST_BUCKETS: u32 = 1;
/// Of the row's words, the one that says where its rules are.
const INDEX_WORD: usize = Key::WORDS + 2;
/// In the row of the union: are fragments dropped?
pub(super) const FRAGMENTS_WORD: usize = INDEX_WORD + 1;

/// An entry of the order: priority, rank of the mask, its row.
fn entry(priority: u16, mask: &Key, row: u16) -> u64 {
    u64::from(priority) << 48 | mask.rank() << ORDER_RANK_SHIFT | u64::from(row)
}

/// The row of an entry; 0: a hole.
pub(super) fn row_of(entry: u64) -> u16 {
    (entry & ((1 << ORDER_RANK_SHIFT) - 1)) as u16
}

/// A mask as `struct flow_mask` has it: the words, then which of the rest it uses.
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
    /// `buckets` of the index, a power of two.
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

    /// Where the rules of a mask are.
    pub fn range(&self, row: u16) -> Range {
        self.rows[usize::from(row)].as_ref().map_or(Range { first: 0, count: 1 }, |row| row.range)
    }

    /// Rules of a mask.
    pub fn rules(&self, row: u16) -> u32 {
        self.rows[usize::from(row)].as_ref().map_or(0, |row| row.rules)
    }

    /// Buckets for a mask that needs so many times as many; to be filled, and then shown by [`moved`](Masks::moved).
    pub fn bigger(&mut self, row: u16, times: u32) -> Option<Range> {
        self.ranges.take(self.range(row).count.checked_mul(times)?)
    }

    /// From now on a mask's rules are there. The range where they were, to be given back when no reader is left.
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

    /// The row for a rule with this mask; written, but in no table's order yet. Refused: a table has too many, or there is no
    /// room for their rules.
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

    /// States the mask at least this high, before a rule of this priority can be found. True: the union has grown, and what
    /// is cached must go.
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

    /// One rule less. True: it was the mask's last. The mask is out of the order; the row is given to
    /// [`free`](Masks::free) when no reader is left.
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

    /// The union made smaller, where masks have been [freed](Masks::free). Those that rules have left and that are not free
    /// yet stay in it: what their rules decided may be cached, and must not be found by packets that differ in their bits.
    pub fn shrink(&mut self, memory: &impl FlowMemory) {
        let union = self.rows.iter().flatten().fold(Key::ZERO, |union, row| union.union(&row.mask));
        if union != self.union {
            self.union = union;
            write_row(memory, 0, &union, NOWHERE);
        }
    }
}

/// The union has no rules of its own.
const NOWHERE: Range = Range { first: 0, count: 1 };

fn write_row(memory: &impl FlowMemory, row: u16, mask: &Key, range: Range) {
    let at = usize::from(row) * words::MASK;
    let mut words = row_words(mask);
    words[INDEX_WORD] = range.word();
    // The list of rest words before their number, which is in the first word after the mask's.
    for (i, word) in words.into_iter().enumerate().take(INDEX_WORD + 1).rev() {
        memory.masks()[at + i].store(word, Release);
    }
}

/// The count of a table's entries, and the entries.
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

    /// Room is the caller's to check.
    fn set(&self, at: usize, entry: u64) {
        self.entries[at].store(entry, Release);
        if at >= self.length() {
            self.count.store(at as u64 + 1, Release);
        }
    }

    /// Makes holes, and the order shorter where they are at its end.
    fn clear(&self, gone: impl IntoIterator<Item = usize>) {
        gone.into_iter().for_each(|at| self.entries[at].store(0, Release));
        let length = (0..self.length()).rev().find(|&at| self.get(at) != 0).map_or(0, |last| last + 1);
        self.count.store(length as u64, Release);
    }

    /// Where the entries of this row stand.
    fn places(&self, row: u16) -> impl Iterator<Item = usize> + '_ {
        (0..self.length()).filter(move |&at| row_of(self.get(at)) == row)
    }

    /// States a mask at least as high as `entry`. One that stands lower already is raised, and written a second time where it
    /// belongs: true, the last one is to go when no reader is left. Without room it stays where it is, or stands anywhere.
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
        // What stands twice leaves room for every mask that there may be.
        if before.is_some_and(|at| at < target || self.twice() == ORDER - TABLE_MASKS) {
            return false;
        }
        let hole = |at: &usize| self.get(*at) == 0;
        if target > 0 && hole(&(target - 1)) {
            self.set(target - 1, entry);
        } else if let Some(to) = (target..length).find(hole).or((length < ORDER).then_some(length)) {
            // From the last one on, so that a reader, who goes upwards, sees each at least once.
            (target..to).rev().for_each(|at| self.set(at + 1, self.get(at)));
            self.set(target, entry);
        } else if before.is_some() {
            return false;
        } else if let Some(at) = (0..length).find(hole) {
            self.set(at, entry);
        }
        before.is_some()
    }

    /// How many entries are another one's double.
    fn twice(&self) -> usize {
        let mut rows: Vec<u16> =
            (0..self.length()).map(|at| row_of(self.get(at))).filter(|row| *row != 0).collect();
        rows.sort_unstable();
        rows.windows(2).filter(|pair| pair[0] == pair[1]).count()
    }
}

/// Takes out what stands twice, all but the first.
pub(super) fn tidy(memory: &impl FlowMemory, table: TableId, row: u16) {
    let order = Order::of(memory, table);
    let twice: Vec<usize> = order.places(row).skip(1).collect();
    order.clear(twice);
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
    fn masks_stand_by_priority_and_twice_only_until_tidied() {
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

    /// Holes are used again, wherever they are: a mask without a place would hide its rules.
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

    #[test]
    fn a_row_lists_the_rest_words_that_it_uses() {
        let mask = *Match::ANY.with(Field::Metadata, 0_u8).with(Field::Ipv6Dst, 0_u8).mask();
        let row = row_words(&mask);
        assert_eq!(row[Key::WORDS].to_le_bytes(), [3, 0, 4, 5, 0, 0, 0, 0]);
        assert_eq!(row[4], u64::MAX);
    }
}
