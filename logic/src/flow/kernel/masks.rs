//! Masks: their rows, the rules in their buckets, and the union of all, under which flows are cached.
//!
//! A lookup searches the buckets of every mask that has any (tuple space search). So masks of a table with many masks share
//! buckets (Daly and others: TupleMerge, IEEE/ACM ToN 2019). A rule may be in the buckets of another mask that tests only
//! some of the bits of the rule's own mask. The hash of these bits decides its place there. At most [`COLLISIONS`]
//! rules have the same hash in shared buckets, unless there is no other room. So a lookup searches fewer buckets, and
//! compares few rules in each.

use super::{
    index::Index,
    memory::{FRONT, FlowMemory, MASKS, TABLE_ROWS, words},
    order::{Order, entry},
    ranges::{Range, Ranges},
};
use crate::flow::{Key, Refused, rule::TableId};
use std::{collections::HashMap, sync::atomic::Ordering::Release};

struct Row {
    table: TableId,
    mask: Key,
    /// How many rules have this mask.
    rules: u32,
    /// How many rules lie in its buckets.
    held: u32,
    /// Its buckets, if it holds rules.
    range: Option<Range>,
    /// The other mask whose buckets last took a rule with this mask; 0: none did.
    host: u16,
}

impl Row {
    fn is_unused(&self) -> bool {
        self.rules == 0 && self.held == 0
    }
}

pub(super) struct Masks {
    /// By row. Row 0 is the union.
    rows: Vec<Option<Row>>,
    free: Vec<u16>,
    by_mask: HashMap<(TableId, Key), u16>,
    /// The rows of each table that hold rules. Those whose mask tests most bits come first.
    holders: Vec<Vec<u16>>,
    union: Key,
    ranges: Ranges,
}

/// The buckets of a mask with few rules: one cache line.
const FEWEST_BUCKETS: u32 = 1;
/// Masks of a table share buckets if at least this many of them hold rules.
const FEW: usize = 8;
/// The most rules with the same hash in the buckets of another mask.
pub(super) const COLLISIONS: usize = 4;
/// The most masks that are tried for a rule, besides the one that took the last rule.
const HOSTS: usize = 16;
/// The fewest bits that a mask must test if it is made only for sharing.
const LEAST_BITS: u32 = 8;
/// Masks share buckets only while more rows than this are left. A mask without rules of its own keeps its row while it
/// holds rules of other masks. So this many rows are reserved for the masks of rules.
const LEFT: usize = crate::flow::table::MASKS;
/// The word of a mask's row that says where its buckets are.
const INDEX_WORD: usize = Key::WORDS + 2;
/// In the row of the union, the word that says whether fragments are dropped.
pub(super) const FRAGMENTS_WORD: usize = INDEX_WORD + 1;
/// The word of a mask's row that has its rank.
pub(super) const RANK_WORD: usize = FRAGMENTS_WORD + 1;
const _: () = assert!(RANK_WORD + 1 == words::MASK);

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
            holders: vec![Vec::new(); TABLE_ROWS],
            union: Key::ZERO,
            ranges: Ranges::new(buckets),
        }
    }

    pub fn union(&self) -> &Key {
        &self.union
    }

    fn row(&self, row: u16) -> Option<&Row> {
        self.rows[usize::from(row)].as_ref()
    }

    pub fn table(&self, row: u16) -> TableId {
        self.row(row).map_or(0, |row| row.table)
    }

    pub fn mask(&self, row: u16) -> Key {
        self.row(row).map_or(Key::ZERO, |row| row.mask)
    }

    /// The masks of a table that hold rules.
    #[cfg(test)]
    pub fn holders(&self, table: TableId) -> &[u16] {
        &self.holders[usize::from(table)]
    }

    /// Whether no mask has a row, and all buckets are free.
    #[cfg(test)]
    pub fn are_all_free(&self) -> bool {
        self.by_mask.is_empty() && self.free.len() == MASKS - 1 && self.ranges.is_whole()
    }

    /// The buckets of a mask; `None` if it has none. It gives them back when its last rule leaves.
    pub fn range(&self, row: u16) -> Option<Range> {
        self.row(row)?.range
    }

    /// How many rules lie in the buckets of a mask.
    pub fn held(&self, row: u16) -> u32 {
        self.row(row).map_or(0, |row| row.held)
    }

    /// Gives a mask its first buckets. Returns false if there are none left.
    pub fn open(&mut self, memory: &impl FlowMemory, row: u16) -> bool {
        if self.range(row).is_some() {
            return true;
        }
        let Some(range) = self.ranges.take(FEWEST_BUCKETS) else { return false };
        Index::new(memory.index(), range).clear();
        self.moved(memory, row, range);
        true
    }

    /// Takes buckets for a mask. The caller fills them and then calls [`moved`](Masks::moved).
    pub fn take(&mut self, count: u32) -> Option<Range> {
        self.ranges.take(count)
    }

    /// Shows readers the new buckets of a mask. Returns the old ones, which are given back when no reader is left.
    pub fn moved(&mut self, memory: &impl FlowMemory, row: u16, range: Range) -> Option<Range> {
        let r = self.rows[usize::from(row)].as_mut()?;
        memory.masks()[usize::from(row) * words::MASK + INDEX_WORD].store(range.word(), Release);
        r.range.replace(range)
    }

    pub fn give_back(&mut self, range: Range) {
        self.ranges.put(range);
    }

    /// Returns the row of a rule's mask, and counts the rule. The row is written, but the rule is in no buckets yet.
    /// Refused if there are too many masks.
    pub fn get(&mut self, memory: &impl FlowMemory, table: TableId, mask: &Key) -> Result<u16, Refused> {
        let row = self.write(memory, table, mask).ok_or(Refused::TooManyMasks)?;
        self.rows[usize::from(row)].as_mut().into_iter().for_each(|row| row.rules += 1);
        Ok(row)
    }

    /// Returns the row of this mask, or writes a new one. `None` if no row is left. The caller must use a new row, or
    /// [drop](Masks::drop_unused) it.
    fn write(&mut self, memory: &impl FlowMemory, table: TableId, mask: &Key) -> Option<u16> {
        if let Some(&row) = self.by_mask.get(&(table, *mask)) {
            return Some(row);
        }
        let row = self.free.pop()?;
        write_row(memory, row, mask);
        self.rows[usize::from(row)] =
            Some(Row { table, mask: *mask, rules: 0, held: 0, range: None, host: 0 });
        self.by_mask.insert((table, *mask), row);
        Some(row)
    }

    /// Returns masks of a table whose buckets hold rules, and may also hold a rule with the mask of row `own`. The
    /// first is the mask that took the last such rule, if there is one. At most [`HOSTS`] more follow. Of these, masks
    /// that test the most bits come first. Returns no mask if fewer than [`FEW`] masks of the table hold rules, or if few
    /// rows are left.
    pub fn hosts(&self, table: TableId, own: u16) -> Vec<u16> {
        let (holders, mask) = (&self.holders[usize::from(table)], self.mask(own));
        // Rows that will soon be free count as left: sharing needs no new row.
        if holders.len() < FEW || MASKS - 1 - self.by_mask.len() <= LEFT {
            return Vec::new();
        }
        let last = self.row(own).map(|row| row.host);
        let is_good = |row: &u16| {
            self.row(*row).is_some_and(|host| host.held > 0 && host.table == table && host.mask.within(&mask))
        };
        let last = last.filter(is_good);
        let others = holders.iter().copied().filter(|row| Some(*row) != last && is_good(row));
        last.into_iter().chain(others.take(HOSTS)).collect()
    }

    /// Records that a rule with the mask of row `own` went to the buckets of `host`.
    pub fn hosted(&mut self, own: u16, host: u16) {
        self.rows[usize::from(own)].as_mut().into_iter().for_each(|row| row.host = host);
    }

    /// Makes a mask whose buckets later rules may share. It tests the bits that are common to `mask` and a mask that
    /// holds rules. `None` if few masks hold rules, if too few bits are common, or if the new mask exists already.
    /// Also `None` if few rows are left.
    pub fn common(&mut self, memory: &impl FlowMemory, table: TableId, mask: &Key) -> Option<u16> {
        let holders = &self.holders[usize::from(table)];
        if holders.len() < FEW || self.free.len() <= LEFT {
            return None;
        }
        let common = |&row: &u16| mask.intersection(&self.mask(row));
        let (bits, common) =
            holders.iter().map(common).map(|common| (common.bits(), common)).max_by_key(|(bits, _)| *bits)?;
        if bits < LEAST_BITS || self.by_mask.contains_key(&(table, common)) {
            return None;
        }
        self.write(memory, table, &common)
    }

    /// Frees a row at once, if no rule has its mask or is in its buckets. The caller ensures that no reader knows the row.
    pub fn drop_unused(&mut self, row: u16) {
        if self.row(row).is_some_and(Row::is_unused) {
            self.forget(row);
            self.free(row);
        }
    }

    /// Counts one rule more in the buckets of a mask.
    pub fn hold(&mut self, row: u16) {
        let Some(r) = self.rows[usize::from(row)].as_mut() else { return };
        r.held += 1;
        if r.held == 1 {
            let (table, place) = (usize::from(r.table), (r.mask.bits(), row));
            let before = |&other: &u16| (self.mask(other).bits(), other) > place;
            let at = self.holders[table].partition_point(before);
            self.holders[table].insert(at, row);
        }
    }

    /// Makes a mask's entry high enough for a rule in its buckets, before packets can find the rule. `own`: the rule's mask.
    /// Returns true if the union has grown. Cached flows must then be removed.
    pub fn state(
        &mut self,
        memory: &impl FlowMemory,
        row: u16,
        (priority, own): (u16, &Key),
        twice: &mut Vec<(TableId, u16)>,
    ) -> bool {
        let table = self.table(row);
        if Order::of(memory, table).state(entry(priority, own, row)) {
            twice.push((table, row));
        }
        if own.within(&self.union) {
            return false;
        }
        self.union = self.union.union(own);
        write_row(memory, 0, &self.union);
        true
    }

    /// Counts one rule fewer in the buckets of a mask. If no rule is left there, the mask leaves the order. Returns
    /// whether the mask is now unused, and its buckets if it no longer needs them. When no reader is left, the caller
    /// gives the row to [`free`](Masks::free), and the buckets to [`give_back`](Masks::give_back).
    pub fn let_go(&mut self, memory: &impl FlowMemory, row: u16) -> (bool, Option<Range>) {
        let Some(r) = self.rows[usize::from(row)].as_mut() else { return (false, None) };
        r.held -= 1;
        if r.held > 0 {
            return (false, None);
        }
        let (table, range) = (r.table, r.range.take());
        self.holders[usize::from(table)].retain(|holder| *holder != row);
        let order = Order::of(memory, table);
        let places: Vec<usize> = order.places(row).collect();
        order.clear(places);
        (self.forget(row), range)
    }

    /// Counts one rule fewer with this mask. Returns true if the mask is now unused. The caller gives its row to
    /// [`free`](Masks::free) when no reader is left.
    pub fn put(&mut self, row: u16) -> bool {
        let Some(r) = self.rows[usize::from(row)].as_mut() else { return false };
        r.rules -= 1;
        self.forget(row)
    }

    /// Removes a mask from `by_mask` if it is not used any more. Returns true if it was removed.
    fn forget(&mut self, row: u16) -> bool {
        let Some(r) = self.row(row).filter(|row| row.is_unused()) else { return false };
        self.by_mask.remove(&(r.table, r.mask)).is_some()
    }

    pub fn free(&mut self, row: u16) {
        if let Some(gone) = self.rows[usize::from(row)].take() {
            gone.range.into_iter().for_each(|range| self.ranges.put(range));
            self.free.push(row);
        }
    }

    /// Makes the union smaller after masks were [freed](Masks::free). Masks without rules that are not free yet stay in it.
    /// Decisions of their rules may be cached, and packets that differ in their bits must not find these.
    pub fn shrink(&mut self, memory: &impl FlowMemory) {
        let union = self.rows.iter().flatten().fold(Key::ZERO, |union, row| union.union(&row.mask));
        if union != self.union {
            self.union = union;
            write_row(memory, 0, &union);
        }
    }
}

/// Writes a mask without buckets.
fn write_row(memory: &impl FlowMemory, row: u16, mask: &Key) {
    let at = usize::from(row) * words::MASK;
    let words = row_words(mask);
    memory.masks()[at + RANK_WORD].store(mask.rank(), Release);
    memory.masks()[at + INDEX_WORD].store(0, Release);
    // Store backwards: the list of rest words before their number, which is in the first word after the mask's.
    for (i, word) in words.into_iter().enumerate().take(INDEX_WORD).rev() {
        memory.masks()[at + i].store(word, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            memory::{HeapFlows, SPARE},
            order::{row_of, tidy},
        },
        *,
    };
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
            masks.hold(row);
            masks.state(&memory, row, (priority, &mask(field)), &mut twice);
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
        assert!(!masks.let_go(&memory, c).0 && masks.put(c));
        assert!(!masks.let_go(&memory, a).0 && !masks.put(a));
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
            masks.hold(row);
            masks.state(&memory, row, (priority, &mask), &mut Vec::new());
            tidy(&memory, 0, row);
            assert!(
                masks_of(&memory).iter().any(|(r, stated)| *r == row && *stated >= priority),
                "round {i}"
            );
            if i % 3 != 0 && (masks.put(row) || masks.let_go(&memory, row).0) {
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
        let rows: Vec<u16> =
            (1..=SPARE as u64 + 8).map(|bits| masks.get(&memory, 0, &mask(bits)).unwrap()).collect();
        rows.iter().for_each(|&row| masks.hold(row));
        for priority in [1, 50, 60, 70] {
            for (row, bits) in rows.iter().zip(1..) {
                masks.state(&memory, *row, (priority, &mask(bits)), &mut twice);
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
