//! Rules in rows of `flow_rules`, and in the buckets of their masks.

use super::{
    FRONT, FlowMemory, Writer, index::Index, pool::Got, ranges::Range, row, rule_word, store, words,
};
use crate::flow::{
    Key, Refused,
    program::Program,
    rule::{CORE_TABLE, TableId},
    table::{Rule, RuleId, Tables},
};
use std::sync::atomic::Ordering::{Acquire, Release};

impl<M: FlowMemory> Writer<M> {
    pub(super) fn add(&mut self, tables: &Tables, id: RuleId) -> Result<(), Refused> {
        let Some(rule) = tables.rule(id) else { return Ok(()) };
        let (row, mask, key) = (row(id), *rule.matching.mask(), rule.matching.key().words());
        if row as usize >= self.memory.rules().len() / words::RULE {
            return Err(Refused::TableFull);
        }
        let mask_row = self.masks.get(&self.memory, rule.table, &mask)?;
        let hash = self.seed.key(&key, &mask.words());
        let hides = tables.next_of_match(id);
        let first = tables.first_of_match(id) == Some(id);
        let takes_a_slot = first && hides.is_none();
        let room = !takes_a_slot || self.make_room(mask_row, hash);
        let Some(rest) = room.then(|| self.write_rest(&key)).flatten() else {
            self.masks.put(&self.memory, mask_row).then(|| self.masks.free(mask_row));
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
        let passed_by = rule.table == CORE_TABLE && self.entries(CORE_TABLE) == 0;
        let grown = self.masks.state(&self.memory, mask_row, rule.priority, &mut self.batch.twice);
        self.batch.flush |= grown || passed_by;
        if first {
            match hides {
                Some(old) => self.index(mask_row).replace(hash, self::row(old), row),
                None => self.index(mask_row).insert(hash, row).map_err(|_| Refused::TableFull)?,
            }
            self.void_overlapped(tables, id, rule.table, &mask, &key);
        }
        Ok(())
    }

    /// How many entries the order of a table has. If the core table has none, packets skip it.
    fn entries(&self, table: TableId) -> u64 {
        self.memory.tables()[usize::from(table) * words::TABLE].load(Acquire)
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
        let (mask_row, key) = self.placed(row);
        let mask = self.masks.mask(mask_row);
        let hash = self.seed.key(&key, &mask.words());
        let last = self.latest(row);
        match next {
            Some(next) => self.index(mask_row).replace(hash, row, self::row(next)),
            None => self.index(mask_row).remove(hash, row, |other| self.hash_of(other)),
        }
        self.let_go(&last);
        self.note_groups(row, None);
        self.batch.rest.extend(self.rest.put(last[rule_word::REST] as u32));
        if self.masks.put(&self.memory, mask_row) {
            self.batch.masks.push(mask_row);
        }
        self.batch.void.push(row);
        self.batch.release.push(id);
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

    fn index(&self, mask_row: u16) -> Index<'_> {
        Index::new(self.memory.index(), self.masks.range(mask_row))
    }

    /// Makes room for one more rule under a mask. If three quarters of the slots are taken, the mask gets at least
    /// twice as many buckets.
    fn make_room(&mut self, mask_row: u16, hash: u64) -> bool {
        loop {
            let slots = self.masks.range(mask_row).count as usize * words::BUCKET;
            let full = self.masks.rules(mask_row) as usize > slots / 4 * 3;
            if !full && self.index(mask_row).has_room(hash) {
                return true;
            }
            let Some(range) = self.bigger(mask_row) else { return self.index(mask_row).has_room(hash) };
            self.batch.ranges.extend(self.masks.moved(&self.memory, mask_row, range));
        }
    }

    /// Takes more buckets for a mask and fills them with its rules. It takes twice as many, or more if a pair of
    /// buckets would overflow.
    fn bigger(&mut self, mask_row: u16) -> Option<Range> {
        for times in [2, 4, 8] {
            let range = self.masks.bigger(mask_row, times)?;
            let (old, new) = (self.index(mask_row), Index::new(self.memory.index(), range));
            new.clear();
            if old.rules().all(|row| new.insert(self.hash_of(row), row).is_ok()) {
                return Some(range);
            }
            self.masks.give_back(range);
        }
        None
    }

    /// The row of a rule's mask and the rule's key, read from the memory.
    fn placed(&self, row: u32) -> (u16, [u64; Key::WORDS]) {
        let words = self.rule(row);
        let rest = words[rule_word::REST].load(Acquire) as u32 as usize * words::REST;
        let key = std::array::from_fn(|i| match i.checked_sub(FRONT) {
            None => words[rule_word::KEY + i].load(Acquire),
            Some(at) => self.memory.rest()[rest + at].load(Acquire),
        });
        ((words[rule_word::HEAD].load(Acquire) >> 32) as u16, key)
    }

    fn hash_of(&self, row: u32) -> u64 {
        let (mask_row, key) = self.placed(row);
        self.seed.key(&key, &self.masks.mask(mask_row).words())
    }
}
