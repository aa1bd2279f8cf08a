//! Rules in rows of `flow_rules`, and in the buckets of their masks.

use super::{
    FRONT, FlowMemory, Writer, index::Index, masks::COLLISIONS, order::Order, pool::Got, ranges::Range, row,
    rule_word, store, words,
};
use crate::flow::{
    Key, Refused,
    program::Program,
    rule::{CORE_TABLE, TableId},
    table::{Rule, RuleId, Tables},
};
use std::sync::atomic::Ordering::{Acquire, Release};

/// A mask gets no more buckets for its own rules while less than one slot in this many is taken.
const SPARSE: usize = 16;
/// The same for a rule of another mask, which may go elsewhere.
const SPARSE_FOR_OTHERS: usize = 8;
/// A mask gives buckets back when less than one slot in this many is taken.
const EMPTY: usize = 32;

impl<M: FlowMemory> Writer<M> {
    pub(super) fn add(&mut self, tables: &Tables, id: RuleId) -> Result<(), Refused> {
        let Some(rule) = tables.rule(id) else { return Ok(()) };
        let (row, mask, key) = (row(id), *rule.matching.mask(), rule.matching.key().words());
        if row as usize >= self.memory.rules().len() / words::RULE {
            return Err(Refused::TableFull);
        }
        let mask_row = self.masks.get(&self.memory, rule.table, &mask)?;
        let hides = tables.next_of_match(id);
        let first = tables.first_of_match(id) == Some(id);
        let place = match hides {
            _ if !first => Some(0),
            Some(old) => Some(self.places[self::row(old) as usize]),
            None => self.choose_place(rule.table, mask_row, &key),
        };
        let rest = place.and_then(|_| self.write_rest(&key));
        let (Some(place), Some(rest)) = (place, rest) else {
            place.into_iter().for_each(|place| self.masks.drop_unused(place));
            self.masks.put(mask_row).then(|| self.masks.free(mask_row));
            return Err(Refused::TableFull);
        };
        let words = self.rule(row);
        let generation = words[rule_word::HEAD].load(Acquire) as u32;
        words[rule_word::HEAD].store(
            u64::from(generation) | u64::from(mask_row) << 32 | u64::from(rule.priority) << 48,
            Release,
        );
        (0..FRONT).for_each(|i| words[rule_word::KEY + i].store(key[i], Release));
        let program = self.program_of(&rule);
        let d = self.decision(&program);
        let words = self.rule(row);
        words[rule_word::REST].store(u64::from(rest) | u64::from(d.patch) << 32, Release);
        words[rule_word::SET].store(d.set, Release);
        words[rule_word::DECISION].store(d.decision, Release);
        self.clear_counters(row);
        self.note_groups(row, Some(rule.instructions));
        // Flows that were cached while packets skipped the core table do not contain its miss.
        let passed_by = rule.table == CORE_TABLE && Order::of(&self.memory, CORE_TABLE).length() == 0;
        self.batch.flush |= passed_by;
        if first {
            self.publish(row, place, hides, (rule.priority, &mask))?;
            self.void_overlapped(tables, id, rule.table, &mask, &key);
        }
        Ok(())
    }

    /// Lets packets find a rule in the buckets of a mask. The rule replaces the one that it hides, if any.
    fn publish(
        &mut self,
        row: u32,
        place: u16,
        hides: Option<RuleId>,
        best: (u16, &Key),
    ) -> Result<(), Refused> {
        if hides.is_none() {
            self.masks.hold(place);
        }
        let grown = self.masks.state(&self.memory, place, best, &mut self.batch.twice);
        self.batch.flush |= grown;
        let hash = self.hash_of(row, place);
        match hides {
            Some(old) => {
                self.index(place).replace(hash, self::row(old), row);
                self.places[self::row(old) as usize] = 0;
            }
            None => self.index(place).insert(hash, row).map_err(|_| Refused::TableFull)?,
        }
        self.places[row as usize] = place;
        Ok(())
    }

    /// Chooses the mask in whose buckets a rule will lie, and makes room there. `own`: the rule's mask. `None` if there is
    /// no room.
    fn choose_place(&mut self, table: TableId, own: u16, key: &[u64; Key::WORDS]) -> Option<u16> {
        if self.masks.held(own) == 0
            && let Some(host) =
                self.host(table, own, key, COLLISIONS).or_else(|| self.new_host(table, own, key))
        {
            self.masks.hosted(own, host);
            return Some(host);
        }
        let hash = self.hash_in(own, key);
        if self.masks.open(&self.memory, own) && self.make_room(own, hash, true) {
            return Some(own);
        }
        // The mask's own buckets have no room. Any suitable mask may take the rule, however many rules have its hash.
        self.host(table, own, key, usize::MAX)
    }

    /// A mask that can take a rule into its buckets, where fewer than `most` rules have the rule's hash.
    fn host(&mut self, table: TableId, own: u16, key: &[u64; Key::WORDS], most: usize) -> Option<u16> {
        self.masks.hosts(table, own).into_iter().find(|&host| {
            let hash = self.hash_in(host, key);
            self.index(host).find(hash).count() < most && self.make_room(host, hash, false)
        })
    }

    /// A new mask that takes a rule into its buckets, and that rules of other masks can share later.
    fn new_host(&mut self, table: TableId, own: u16, key: &[u64; Key::WORDS]) -> Option<u16> {
        let common = self.masks.common(&self.memory, table, &self.masks.mask(own))?;
        let hash = self.hash_in(common, key);
        let has_room = self.masks.open(&self.memory, common) && self.make_room(common, hash, true);
        if !has_room {
            self.masks.drop_unused(common);
        }
        has_room.then_some(common)
    }

    /// The program of a rule for the kernel plane.
    pub(super) fn program_of(&self, rule: &Rule<'_>) -> Program {
        match rule.table {
            CORE_TABLE => Program::core(rule.instructions),
            _ => self.program(rule.instructions),
        }
    }

    pub(super) fn remove(&mut self, id: RuleId, next: Option<RuleId>) {
        let row = row(id);
        let mask_row = self.mask_of(row);
        let last = self.latest(row);
        self.hide(row, next.map(self::row));
        self.let_go(&last);
        self.note_groups(row, None);
        self.batch.rest.extend(self.rest.put(last[rule_word::REST] as u32));
        if self.masks.put(mask_row) {
            self.batch.masks.push(mask_row);
        }
        self.batch.void.push(row);
        self.batch.release.push(id);
    }

    /// Hides a rule from packets. They find the next rule with the same match instead, if there is one.
    fn hide(&mut self, row: u32, next: Option<u32>) {
        let place = std::mem::take(&mut self.places[row as usize]);
        if place == 0 {
            return;
        }
        let hash = self.hash_of(row, place);
        match next {
            Some(next) => {
                self.index(place).replace(hash, row, next);
                self.places[next as usize] = place;
            }
            None => {
                self.index(place).remove(hash, row, |other| self.hash_of(other, place));
                let (unused, range) = self.masks.let_go(&self.memory, place);
                self.batch.masks.extend(unused.then_some(place));
                self.batch.ranges.extend(range);
                self.shrink(place);
            }
        }
    }

    /// Writes the words of a key after the front, and returns their row; 0 if they are all zero. `None` if there is no
    /// room.
    fn write_rest(&mut self, key: &[u64; Key::WORDS]) -> Option<u32> {
        let list = key[FRONT..].to_vec();
        if list.iter().all(|word| *word == 0) {
            return Some(0);
        }
        let got = self.rest.get(&list, 1)?;
        if let Got::New(row) = got {
            store(self.memory.rest(), row as usize * words::REST, &list);
        }
        Some(got.row())
    }

    /// The buckets of a mask.
    fn index(&self, place: u16) -> Index<'_> {
        let range = self.masks.range(place).unwrap_or(Range { first: 0, count: 1 });
        Index::new(self.memory.index(), range)
    }

    /// Makes room for one more rule in the buckets of a mask. If three quarters of the slots are taken, the mask gets
    /// at least twice as many buckets. The same happens if only the two buckets of this hash are full, unless few slots
    /// are taken. Rules with the same hash may then fill these two, and more buckets would not help. `own`: the mask is
    /// the rule's own, or a new one. Returns whether there is room.
    fn make_room(&mut self, place: u16, hash: u64, own: bool) -> bool {
        let (sparse, most_times) = if own { (SPARSE, 8) } else { (SPARSE_FOR_OTHERS, 2) };
        loop {
            let slots = self.masks.range(place).map_or(0, |range| range.count as usize * words::BUCKET);
            let held = self.masks.held(place) as usize;
            let (is_full, has_room) = (held >= slots / 4 * 3, self.index(place).has_room(hash));
            if !is_full && has_room {
                return true;
            }
            let more = (held >= slots / sparse).then(|| self.bigger(place, most_times)).flatten();
            let Some(range) = more else { return has_room };
            self.batch.ranges.extend(self.masks.moved(&self.memory, place, range));
        }
    }

    /// Takes more buckets for a mask and fills them with its rules. It takes twice as many, or more if a pair of
    /// buckets would overflow, but at most `most_times` as many.
    fn bigger(&mut self, place: u16, most_times: u32) -> Option<Range> {
        let count = self.masks.range(place)?.count;
        let mut times = [2, 4, 8].into_iter().filter(|times| *times <= most_times);
        times.find_map(|times| self.filled(place, count.checked_mul(times)?))
    }

    /// Gives most buckets of a mask back if few rules are left in them. These may be rules of other masks. Rules with the same
    /// hash may need more room than fewer buckets have. So this is tried at few numbers of rules, not at each removal.
    fn shrink(&mut self, place: u16) {
        let count = self.masks.range(place).map_or(0, |range| range.count);
        let held = self.masks.held(place);
        if held.is_power_of_two()
            && (held as usize) < count as usize * words::BUCKET / EMPTY
            && let Some(range) = self.filled(place, count / 4)
        {
            self.batch.ranges.extend(self.masks.moved(&self.memory, place, range));
        }
    }

    /// Takes `count` buckets and fills them with the rules of a mask. `None` if too few are left, or if a pair of
    /// them would overflow.
    fn filled(&mut self, place: u16, count: u32) -> Option<Range> {
        let range = self.masks.take(count)?;
        let (old, new) = (self.index(place), Index::new(self.memory.index(), range));
        new.clear();
        let fits = old.rules().all(|row| new.insert(self.hash_of(row, place), row).is_ok());
        if !fits {
            self.masks.give_back(range);
        }
        fits.then_some(range)
    }

    /// The row of a rule's mask.
    pub(super) fn mask_of(&self, row: u32) -> u16 {
        (self.rule(row)[rule_word::HEAD].load(Acquire) >> 32) as u16
    }

    /// The key of a rule, read from the memory.
    fn key_of(&self, row: u32) -> [u64; Key::WORDS] {
        let words = self.rule(row);
        let rest = words[rule_word::REST].load(Acquire) as u32 as usize * words::REST;
        std::array::from_fn(|i| match i.checked_sub(FRONT) {
            None => words[rule_word::KEY + i].load(Acquire),
            Some(at) => self.memory.rest()[rest + at].load(Acquire),
        })
    }

    /// The hash of a rule in the buckets of a mask.
    fn hash_of(&self, row: u32, place: u16) -> u64 {
        self.hash_in(place, &self.key_of(row))
    }

    fn hash_in(&self, place: u16, key: &[u64; Key::WORDS]) -> u64 {
        self.seed.key(key, &self.masks.mask(place).words())
    }
}
