//! Tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999). The rules of a table with the same mask form a tuple. Each
//! tuple has a hash table that leads from the bits under the mask to the rules.
//!
//! If two rules of the same priority match a packet, OpenFlow lets the switch choose. Here the rule whose mask has the
//! higher [`Key::rank`] wins, so the answer depends on the rules alone.

use super::rules::{Rows, RuleId};
use crate::flow::{
    Key, Match, Refused,
    rule::{CORE_TABLE, TABLES, TableId},
};
use hashbrown::HashTable;
use rustc_hash::FxHashMap;
use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    ops::RangeInclusive,
};

/// The most masks that all tables together may have. A mask that two tables use counts twice. The kernel plane has a
/// row for each. It has more rows for masks just removed, and for masks made only for sharing
/// (`flow::kernel::MASKS`).
pub const MASKS: usize = 1536;

pub(super) type Words = [u64; Key::WORDS];

/// One word of the key that a mask tests.
struct Word {
    at: usize,
    mask: u64,
    /// The bits that are known to be the same in all rules of the tuple; `value` has their values.
    same: u64,
    value: u64,
}

/// The rules of one table with one mask. A slot is one key under the mask.
pub(super) struct Tuple {
    pub table: TableId,
    pub mask: Key,
    rank: u64,
    words: Vec<Word>,
    /// The words of each slot's key, as many as `words`, slot by slot.
    keys: Vec<u64>,
    /// The rule of the highest priority in each slot. `None`: the slot is free.
    heads: Vec<Option<RuleId>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    seed: u64,
    /// How many rules each priority has.
    priorities: BTreeMap<u16, u32>,
}

/// A folded multiplication. Keys in network byte order differ in the high bytes of a word, and a plain product carries only
/// upwards. Each process has its own `seed`, so that a controller cannot know which rules collide.
fn hash(seed: u64, key: &[u64]) -> u64 {
    key.iter().fold(seed, |h, word| {
        let product = u128::from(h ^ word) * u128::from(seed | 1);
        (product as u64 ^ (product >> 64) as u64).wrapping_add(seed)
    })
}

impl Tuple {
    fn new(table: TableId, mask: &Key, seed: u64) -> Self {
        let masks = mask.words().into_iter().enumerate().filter(|(_, mask)| *mask != 0);
        let words: Vec<Word> = masks.map(|(at, mask)| Word { at, mask, same: 0, value: 0 }).collect();
        Self {
            table,
            mask: *mask,
            rank: mask.rank(),
            words,
            keys: Vec::new(),
            heads: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            seed,
            priorities: BTreeMap::new(),
        }
    }

    /// How many rules the tuple has.
    pub fn rules(&self) -> u32 {
        self.priorities.values().sum()
    }

    /// The rule of the highest priority in a slot.
    pub fn head(&self, slot: u32) -> Option<RuleId> {
        self.heads[slot as usize]
    }

    pub fn highest(&self) -> u16 {
        self.priorities.last_key_value().map_or(0, |(&priority, _)| priority)
    }

    fn lowest(&self) -> u16 {
        self.priorities.first_key_value().map_or(0, |(&priority, _)| priority)
    }

    /// The words of `key` that the mask tests.
    fn pack<'a>(&self, key: &Words, room: &'a mut Words) -> &'a [u64] {
        room.iter_mut().zip(&self.words).for_each(|(to, w)| *to = key[w.at] & w.mask);
        &room[..self.words.len()]
    }

    /// The key of a slot, as words in memory order.
    pub fn key(&self, slot: u32) -> &[u64] {
        let at = slot as usize * self.words.len();
        &self.keys[at..at + self.words.len()]
    }

    pub fn matching(&self, slot: u32) -> Match {
        let mut words = [0; Key::WORDS];
        self.words.iter().zip(self.key(slot)).for_each(|(w, &key)| words[w.at] = key);
        Match::new(&Key::from_words(words), &self.mask)
    }

    fn find(&self, packed: &[u64]) -> Option<u32> {
        self.index.find(hash(self.seed, packed), |&slot| self.key(slot) == packed).copied()
    }

    fn find_key(&self, key: &Words) -> Option<RuleId> {
        let slot = self.find(self.pack(key, &mut [0; Key::WORDS]))?;
        self.heads[slot as usize]
    }

    /// The slot of this key. If it has none, it gets a new one.
    fn slot(&mut self, key: &Words) -> u32 {
        let mut room = [0; Key::WORDS];
        let packed = self.pack(key, &mut room);
        if let Some(slot) = self.find(packed) {
            return slot;
        }
        let first = self.index.is_empty();
        for (w, &new) in self.words.iter_mut().zip(packed) {
            (w.same, w.value) = if first { (w.mask, new) } else { (w.same & !(w.value ^ new), w.value) };
        }
        let slot = match self.free.pop() {
            Some(slot) => {
                let at = slot as usize * packed.len();
                self.keys[at..at + packed.len()].copy_from_slice(packed);
                slot
            }
            None => {
                self.keys.extend_from_slice(packed);
                self.heads.push(None);
                self.heads.len() as u32 - 1
            }
        };
        let (keys, stride, seed) = (&self.keys, packed.len(), self.seed);
        let rehash = |&slot: &u32| hash(seed, &keys[slot as usize * stride..][..stride]);
        self.index.insert_unique(hash(seed, packed), slot, rehash);
        slot
    }

    fn free_slot(&mut self, slot: u32) {
        let hash = hash(self.seed, self.key(slot));
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == slot) {
            entry.remove();
        }
        self.free.push(slot);
    }

    /// Can a rule of the tuple overlap this match? It cannot if all rules differ from the match in a bit that both test.
    fn may_overlap(&self, key: &Words, mask: &Words) -> bool {
        self.words.iter().all(|w| (w.value ^ key[w.at]) & w.same & mask[w.at] == 0)
    }

    /// Does a match with this mask test all bits that the tuple tests?
    fn is_inside(&self, mask: &Words) -> bool {
        self.words.iter().all(|w| w.mask & !mask[w.at] == 0)
    }

    /// The first rules of the slots that overlap this match. It takes one hash lookup if the match tests all bits that the
    /// tuple tests, otherwise a walk over all slots.
    fn overlapping(&self, key: Words, mask: Words) -> impl Iterator<Item = RuleId> + '_ {
        let inside = self.is_inside(&mask);
        let one = if inside { self.find_key(&key) } else { None };
        let slots = if inside { 0 } else { self.heads.len() };
        let all = (0..slots).filter(move |&slot| {
            let key_here = self.key(slot as u32);
            self.words.iter().zip(key_here).all(|(w, here)| (here ^ key[w.at]) & w.mask & mask[w.at] == 0)
        });
        one.into_iter().chain(all.filter_map(|slot| self.heads[slot]))
    }
}

/// The tuples of all tables.
pub(super) struct Tuples {
    tuples: Vec<Option<Tuple>>,
    by_mask: FxHashMap<(TableId, Key), u16>,
    /// The tuples of each table in the order of the search: highest priority first, then by rank.
    order: [Vec<u16>; CORE_TABLE as usize + 1],
    seed: u64,
}

impl Default for Tuples {
    fn default() -> Self {
        let seed = RandomState::new().hash_one(TABLES);
        Self { tuples: Vec::new(), by_mask: FxHashMap::default(), order: Default::default(), seed }
    }
}

impl Tuples {
    pub fn get(&self, tuple: u16) -> &Tuple {
        self.tuples[usize::from(tuple)].as_ref().expect("a tuple with rules is there")
    }

    fn get_mut(&mut self, tuple: u16) -> &mut Tuple {
        self.tuples[usize::from(tuple)].as_mut().expect("a tuple with rules is there")
    }

    /// A table's tuples in the order of the search.
    pub fn of(&self, table: TableId) -> impl Iterator<Item = &Tuple> {
        self.order[usize::from(table)].iter().map(|&tuple| self.get(tuple))
    }

    /// The rule with this match and priority.
    pub fn same(&self, rows: &Rows, table: TableId, matching: &Match, priority: u16) -> Option<RuleId> {
        let tuple = self.get(*self.by_mask.get(&(table, *matching.mask()))?);
        let head = tuple.find_key(&matching.key().words())?;
        rows.chain(head).find(|&id| rows[id].priority <= priority).filter(|&id| rows[id].priority == priority)
    }

    /// The tuple of a mask. If there is none, it is created.
    pub fn tuple(&mut self, table: TableId, mask: &Key) -> Result<u16, Refused> {
        if let Some(&tuple) = self.by_mask.get(&(table, *mask)) {
            return Ok(tuple);
        }
        if self.by_mask.len() >= MASKS {
            return Err(Refused::TooManyMasks);
        }
        let at = self.tuples.iter().position(Option::is_none).unwrap_or(self.tuples.len());
        if at == self.tuples.len() {
            self.tuples.push(None);
        }
        self.tuples[at] = Some(Tuple::new(table, mask, self.seed));
        self.by_mask.insert((table, *mask), at as u16);
        self.order[usize::from(table)].push(at as u16);
        Ok(at as u16)
    }

    /// Inserts a rule into its tuple, which its row names.
    pub fn link(&mut self, rows: &mut Rows, id: RuleId, matching: &Match) {
        let (tuple, priority) = (rows[id].tuple, rows[id].priority);
        let t = self.get_mut(tuple);
        let slot = t.slot(&matching.key().words());
        let (mut before, mut next) = (None, t.heads[slot as usize]);
        while let Some(other) = next.filter(|&other| rows[other].priority > priority) {
            (before, next) = (next, rows[other].next);
        }
        match before {
            Some(before) => rows[before].next = Some(id),
            None => t.heads[slot as usize] = Some(id),
        }
        (rows[id].slot, rows[id].next) = (slot, next);
        let highest = (!t.priorities.is_empty()).then(|| t.highest());
        *t.priorities.entry(priority).or_default() += 1;
        if highest.is_none_or(|highest| highest < priority) {
            self.sort(tuple);
        }
    }

    /// Removes a rule from its tuple.
    pub fn unlink(&mut self, rows: &mut Rows, id: RuleId) {
        let (tuple, slot, next, priority) = (rows[id].tuple, rows[id].slot, rows[id].next, rows[id].priority);
        let t = self.get_mut(tuple);
        let head = t.heads[slot as usize];
        if head == Some(id) {
            t.heads[slot as usize] = next;
            if next.is_none() {
                t.free_slot(slot);
            }
        } else if let Some(before) = head.and_then(|h| rows.chain(h).find(|&b| rows[b].next == Some(id))) {
            rows[before].next = next;
        }
        let highest = t.highest();
        if let Some(count) = t.priorities.get_mut(&priority) {
            *count -= 1;
            if *count == 0 {
                t.priorities.remove(&priority);
            }
        }
        if t.priorities.is_empty() {
            self.remove(tuple);
        } else if t.highest() != highest {
            self.sort(tuple);
        }
    }

    fn remove(&mut self, tuple: u16) {
        if let Some(t) = self.tuples[usize::from(tuple)].take() {
            self.by_mask.remove(&(t.table, t.mask));
            self.order[usize::from(t.table)].retain(|&other| other != tuple);
        }
    }

    /// Puts a tuple whose highest priority has changed where it belongs in the order of its table.
    fn sort(&mut self, tuple: u16) {
        let table = usize::from(self.get(tuple).table);
        let mut order = std::mem::take(&mut self.order[table]);
        order.retain(|&other| other != tuple);
        let place = |tuple| {
            let t = self.get(tuple);
            (t.highest(), t.rank)
        };
        let before = |&other: &u16| place(other) > place(tuple);
        order.insert(order.partition_point(before), tuple);
        self.order[table] = order;
    }

    /// The rule that a packet gets.
    pub fn lookup(&self, rows: &Rows, table: TableId, key: &Words) -> Option<RuleId> {
        let mut best: Option<(u16, &Tuple, RuleId)> = None;
        for tuple in self.of(table) {
            if best.is_some_and(|(priority, ..)| priority > tuple.highest()) {
                break;
            }
            let Some(id) = tuple.find_key(key) else { continue };
            let priority = rows[id].priority;
            if best.is_none_or(|(p, t, _)| (priority, tuple.rank) > (p, t.rank)) {
                best = Some((priority, tuple, id));
            }
        }
        best.map(|(.., id)| id)
    }

    /// The tuples where rules of these priorities may overlap this match.
    fn candidates(
        &self,
        table: TableId,
        matching: &Match,
        priorities: &RangeInclusive<u16>,
    ) -> impl Iterator<Item = &Tuple> + use<'_> {
        let (key, mask) = (matching.key().words(), matching.mask().words());
        let (low, high) = (*priorities.start(), *priorities.end());
        self.of(table).filter(move |t| t.lowest() <= high && t.highest() >= low && t.may_overlap(&key, &mask))
    }

    /// How many slots [`overlapping`](Tuples::overlapping) has to compare.
    pub fn effort(&self, table: TableId, matching: &Match, priorities: RangeInclusive<u16>) -> usize {
        let mask = matching.mask().words();
        let slots = |t: &Tuple| if t.is_inside(&mask) { 1 } else { t.heads.len() };
        self.candidates(table, matching, &priorities).map(slots).sum()
    }

    /// The rules with these priorities that overlap `matching`.
    pub fn overlapping<'a>(
        &'a self,
        rows: &'a Rows,
        table: TableId,
        matching: &Match,
        priorities: RangeInclusive<u16>,
    ) -> impl Iterator<Item = RuleId> + use<'a> {
        let (key, mask) = (matching.key().words(), matching.mask().words());
        self.candidates(table, matching, &priorities)
            .flat_map(move |t| t.overlapping(key, mask))
            .flat_map(|head| rows.chain(head))
            .filter(move |&id| priorities.contains(&rows[id].priority))
    }

    /// The rules that match only packets of `filter` (not strict: OpenFlow 1.0 section 4.6, 1.3 section 6.4).
    pub fn covered<'a>(
        &'a self,
        rows: &'a Rows,
        table: TableId,
        filter: &Match,
    ) -> impl Iterator<Item = RuleId> + use<'a> {
        let (wanted, key, mask) = (*filter.mask(), filter.key().words(), filter.mask().words());
        // If a mask contains all bits of the filter's mask, a rule that overlaps the filter is inside it.
        self.of(table)
            .filter(move |t| wanted.within(&t.mask) && t.may_overlap(&key, &mask))
            .flat_map(move |t| t.overlapping(key, mask))
            .flat_map(|head| rows.chain(head))
    }
}
