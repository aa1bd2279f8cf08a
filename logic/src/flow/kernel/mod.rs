//! How flow rules become words of memory, and when what was cached before them dies.
//!
//! One writer, any number of readers. A packet goes key -> cache -> rules, or key -> masks of a table -> index -> rule ->
//! next table; everything it can reach is complete, and reused only after a grace period.
//!
//! # It never lies
//!
//! A cached flow names the rules that decided and their generations; it is void when one of them has another generation.
//! What is decided anew is found like this, in a [`Batch`] of changes:
//!
//! 1. [`Writer::apply`] publishes new rules and takes old ones out of the index.
//! 2. A grace period: no program is left that looked before and has yet to write what it found into the cache.
//! 3. [`Writer::void`]: the generation of each removed rule goes up, and of each rule of no higher priority that a new one
//!    overlaps, the table's miss among them. A new rule that looks at every bit any rule looks at can be the answer to one
//!    key only: just that key is taken out of each CPU's cache, so that a million exact rules come and go without others
//!    losing theirs.
//! 4. Another grace period: no program is left that took a flow from the cache before. A barrier is answered now.
//! 5. [`Writer::reclaim`]: rows may be used again, and rules whose decision takes several words, which user space has decided
//!    since step 1, get it.
//!
//! | file | holds |
//! |---|---|
//! | `memory`, `hash` | the layout, and the hash both sides compute |
//! | `masks`, `index`, `ranges`, `pool` | masks and their order; where rules sit; which buckets are whose; rows that rules share |
//! | `decision`, `steps` | what a rule does, as words |
//! | `groups`, `meters` | those, and which rules use a group |
//! | `notice` | what comes to user space with a packet |
//! | `answer` | reading it all back as the program does |

pub mod answer;
mod decision;
mod groups;
mod hash;
mod index;
mod masks;
mod memory;
mod meters;
mod notice;
mod pool;
mod ranges;
mod steps;
#[cfg(test)]
pub(super) mod tests;

/// What words are composed of; `router::abi` compares it with the program's header.
pub mod encoding {
    pub use super::{
        CORE_SHIFT, FLAG_BROADCASTS, FLAG_CLEAR, FLAG_CORE_OF_SET, FLAG_SENDS,
        memory::ORDER_RANK_SHIFT,
        meters::{COST_SHIFT, TICKS, band_word, meter_word},
        rule_word,
        steps::OPS,
        verdict,
    };
}

pub use hash::Seed;
pub(super) use hash::spread;
pub use memory::{
    CACHE_WAYS, FRONT, FlowCapacity, FlowMemory, HeapFlows, MASKS, ORDER, TABLE_MASKS, TABLE_ROWS, words,
};
pub use notice::{Notice, NoticeReason};
pub use steps::verdict;

use super::{
    Action, Instructions, Key, Port, Refused,
    program::{Ports, Program},
    rule::{CORE_TABLE, TABLES, TableId},
    table::{Change, Count, Rule, RuleId, Tables},
};
use groups::Groups;
use index::Index;
use masks::Masks;
use meters::Meters;
use pool::{Got, Pool};
use ranges::Range;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::atomic::Ordering::{Acquire, Release},
};

/// Words of `struct flow_rule`.
pub mod rule_word {
    /// Generation, row of the mask, priority.
    pub const HEAD: usize = 0;
    /// Kind, next table, port, steps.
    pub const DECISION: usize = 1;
    pub const KEY: usize = 2;
    /// Row of the other words, row of the patch.
    pub const REST: usize = 6;
    /// Steps of the action set, its ranks, flags.
    pub const SET: usize = 7;
}

/// `enum flow_rule_flags`.
pub const FLAG_CLEAR: u64 = 1;
pub const FLAG_SENDS: u64 = 2;
pub const FLAG_BROADCASTS: u64 = 4;
pub const FLAG_CORE_OF_SET: u64 = 8;
/// Flags from here on: the core that the rule names + 1, or 0.
pub const CORE_SHIFT: u32 = 4;
/// The highest number of a core that a rule can name, and one more.
pub const CORES: u16 = (1 << (16 - CORE_SHIFT)) - 1;

/// Rules that a new one may overlap are looked at one by one up to this many; beyond, all caches are emptied.
const VOID_ONE_BY_ONE: usize = 4096;
/// So many in one batch: the whole cache is emptied instead.
const MOST_VOID: usize = 1 << 16;

/// Rows below this one are no rule, and what tables do without a matching rule.
pub const FIRST_ROW: usize = 1 + TABLE_ROWS;

/// The row of a rule.
pub fn row(id: RuleId) -> u32 {
    id.0 + FIRST_ROW as u32
}

/// The rule of a row; `None`: a table's miss, or nothing.
pub fn rule_of(row: u32) -> Option<RuleId> {
    row.checked_sub(FIRST_ROW as u32).map(RuleId)
}

/// The row of what a table does without a matching rule.
pub fn miss(table: TableId) -> u32 {
    1 + u32::from(table)
}

/// What is left to do for changes that were applied.
#[derive(Debug, Default)]
pub struct Batch {
    /// Rows whose generation goes up.
    void: Vec<u32>,
    /// Keys, under the union, that are taken out of the caches.
    forget: Vec<[u64; Key::WORDS]>,
    /// All caches are emptied.
    flush: bool,
    /// Rules that user space decides until the end.
    rewrite: Vec<u32>,
    /// Something was changed.
    changed: bool,
    release: Vec<RuleId>,
    steps: Vec<(u32, u32)>,
    rest: Vec<(u32, u32)>,
    patches: Vec<(u32, u32)>,
    sets: Vec<(u32, u32)>,
    masks: Vec<u16>,
    ranges: Vec<Range>,
    twice: Vec<(TableId, u16)>,
    groups: Vec<u32>,
    meters: Vec<u32>,
}

impl Batch {
    /// Nothing to wait for.
    pub fn is_empty(&self) -> bool {
        !self.changed
    }
}

/// Writes the memory of flow rules.
pub struct Writer<M> {
    memory: M,
    seed: Seed,
    masks: Masks,
    steps: Pool<Vec<u64>>,
    rest: Pool<Vec<u64>>,
    patches: Pool<Vec<u64>>,
    sets: Pool<Ports>,
    groups: Groups,
    meters: Meters,
    /// What tables do with packets that no rule matches, where that was said.
    misses: BTreeMap<TableId, Instructions>,
    /// The ports that nothing can be redirected to.
    deaf: BTreeSet<Port>,
    batch: Batch,
    /// The words of rules that user space decides meanwhile.
    rewrite: HashMap<u32, [u64; words::RULE]>,
}

impl<M: FlowMemory> Writer<M> {
    /// Takes over `memory`, which nobody reads yet: no rules, and what misses is dropped.
    pub fn new(memory: M, seed: Seed) -> Self {
        let rows = |words: &[_], row: usize| words.len() / row;
        let regions = [
            memory.masks(),
            memory.tables(),
            memory.index(),
            memory.rules(),
            memory.cache(),
            memory.counters(),
        ];
        regions.into_iter().flatten().for_each(|word| word.store(0, Release));
        Self {
            steps: Pool::new(rows(memory.steps(), words::STEP)),
            rest: Pool::new(rows(memory.rest(), words::REST)),
            patches: Pool::new(rows(memory.patches(), words::PATCH)),
            sets: Pool::new(memory.sets()),
            masks: Masks::new(memory.index().len() / words::BUCKET),
            groups: Groups::default(),
            meters: Meters::default(),
            misses: BTreeMap::new(),
            deaf: BTreeSet::new(),
            batch: Batch::default(),
            rewrite: HashMap::new(),
            memory,
            seed,
        }
    }

    /// What the program finds.
    pub fn reader(&self) -> answer::Reader<'_, M> {
        answer::Reader { memory: &self.memory, seed: self.seed }
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Does user space decide for this rule, for ever or until the end of a batch?
    pub fn is_slow(&self, id: RuleId) -> bool {
        self.rule(row(id))[rule_word::DECISION].load(Acquire) as u8 == verdict::SLOW
    }

    /// What a table does with a packet that no rule of it matches: published as a change of a rule is.
    pub fn set_miss(&mut self, table: TableId, instructions: &Instructions) {
        self.batch.changed = true;
        let row = miss(table);
        self.note_groups(row, Some(instructions));
        let program = self.program(instructions);
        self.decide(row, &program);
        self.misses.insert(table, instructions.clone());
    }

    /// The ports that nothing can be redirected to: user space does what sends there.
    pub fn set_deaf(&mut self, tables: &Tables, deaf: BTreeSet<Port>) {
        let changed: BTreeSet<Port> = self.deaf.symmetric_difference(&deaf).copied().collect();
        if changed.is_empty() {
            return;
        }
        self.batch.changed = true;
        self.deaf = deaf;
        let sends = |action: &Action| match action {
            Action::Output { port, .. } => {
                [Port::ALL, Port::FLOOD, Port::IN_PORT].contains(port) || changed.contains(port)
            }
            _ => false,
        };
        let buckets = |id: u32| tables.group(id).into_iter().flat_map(|group| &group.buckets);
        let groups: Vec<u32> = tables.groups().map(|group| group.id).collect();
        for id in groups.into_iter().filter(|&id| buckets(id).any(|bucket| bucket.actions.iter().any(sends)))
        {
            self.set_group(tables, id);
        }
        let rows = tables.ids().map(row).chain((0..TABLES).map(miss));
        let sending = |row: &u32| self.said(tables, *row).is_some_and(|does| does.actions().any(sends));
        let rows: Vec<u32> = rows.filter(sending).collect();
        rows.into_iter().for_each(|row| self.decide_again(tables, row));
    }

    /// See [`set_deaf`](Writer::set_deaf).
    pub fn deaf(&self) -> &BTreeSet<Port> {
        &self.deaf
    }

    /// What the rule of a row says, or a table of what misses.
    pub(super) fn said<'a>(&'a self, tables: &'a Tables, row: u32) -> Option<&'a Instructions> {
        match rule_of(row) {
            Some(id) => tables.rule(id).map(|rule| rule.instructions),
            None => self.misses.get(&(row.checked_sub(miss(0))? as TableId)),
        }
    }

    /// The kernel plane can do more or less than it could.
    fn decide_again(&mut self, tables: &Tables, row: u32) {
        if let Some(program) = self.said(tables, row).map(|instructions| self.program(instructions)) {
            self.decide(row, &program);
        }
    }

    /// Publishes a change. `tables` has it already.
    ///
    /// # Errors
    /// There is no room for a new rule: nothing was published, and the tables are to take it back.
    pub fn apply(&mut self, tables: &Tables, change: &Change) -> Result<(), Refused> {
        self.batch.changed = true;
        match change {
            Change::Added(id) => return self.add(tables, *id),
            Change::Instructions(id) => {
                if let Some(rule) = tables.rule(*id) {
                    self.note_groups(row(*id), Some(rule.instructions));
                    let program = self.program_of(&rule);
                    self.decide(row(*id), &program);
                }
            }
            Change::Removed { id, next, .. } => self.remove(*id, *next),
            Change::Group(id) => self.set_group(tables, *id),
            Change::GroupRemoved(id) => self.remove_group(tables, *id),
            Change::Meter(id) => self.set_meter(tables, *id),
            Change::MeterRemoved(id) => self.remove_meter(*id),
        }
        Ok(())
    }

    /// Was anything applied since the last [`seal`](Writer::seal)?
    pub fn has_changes(&self) -> bool {
        self.batch.changed
    }

    /// What was applied so far, to be waited for.
    pub fn seal(&mut self) -> Batch {
        std::mem::take(&mut self.batch)
    }

    /// After a grace period since [`seal`](Writer::seal): what was cached before the changes dies.
    pub fn void(&mut self, batch: &mut Batch) {
        for &row in &batch.void {
            self.bump(row);
        }
        if batch.flush {
            let flows = self.memory.cache().chunks_exact(words::CACHED);
            flows.for_each(|flow| flow[FRONT].store(0, Release));
        } else {
            batch.forget.iter().for_each(|key| self.forget(key));
        }
        for &(table, row) in &batch.twice {
            masks::tidy(&self.memory, table, row);
        }
    }

    /// After another grace period since [`void`](Writer::void): packets obey. Rules whose ids may be given out again.
    pub fn reclaim(&mut self, batch: Batch) -> Vec<RuleId> {
        batch.rewrite.iter().for_each(|&row| self.rewrite(row));
        batch.steps.into_iter().for_each(|(row, length)| self.steps.free(row, length));
        batch.rest.into_iter().for_each(|(row, length)| self.rest.free(row, length));
        batch.patches.into_iter().for_each(|(row, length)| self.patches.free(row, length));
        batch.sets.into_iter().for_each(|set| self.free_set(set));
        batch.groups.into_iter().for_each(|row| self.groups.free(row));
        batch.meters.into_iter().for_each(|row| self.meters.free(row));
        let masks_gone = !batch.masks.is_empty();
        batch.masks.into_iter().for_each(|row| self.masks.free(row));
        batch.ranges.into_iter().for_each(|range| self.masks.give_back(range));
        if masks_gone {
            self.masks.shrink(&self.memory);
        }
        batch.release
    }

    fn rule(&self, row: u32) -> &[std::sync::atomic::AtomicU64] {
        &self.memory.rules()[row as usize * words::RULE..][..words::RULE]
    }

    fn bump(&self, row: u32) {
        let head = &self.rule(row)[rule_word::HEAD];
        let word = head.load(Acquire);
        let generation = (word as u32).wrapping_add(1);
        head.store(word & !0xffff_ffff | u64::from(generation), Release);
    }

    fn add(&mut self, tables: &Tables, id: RuleId) -> Result<(), Refused> {
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
        // What was cached while packets did not come to the core table knows nothing of its miss.
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

    /// Masks of a table that packets look under; of the core table 0: they do not come there.
    fn entries(&self, table: TableId) -> u64 {
        self.memory.tables()[usize::from(table) * words::TABLE].load(Acquire)
    }

    /// What the kernel plane does for a rule.
    fn program_of(&self, rule: &Rule<'_>) -> Program {
        match rule.table {
            CORE_TABLE => Program::core(rule.instructions),
            _ => self.program(rule.instructions),
        }
    }

    /// What was decided by rules of no higher priority for packets of a new one.
    fn void_overlapped(
        &mut self,
        tables: &Tables,
        id: RuleId,
        table: TableId,
        mask: &Key,
        key: &[u64; Key::WORDS],
    ) {
        if self.batch.flush {
            return;
        }
        if matches!(table, 0 | CORE_TABLE) && self.masks.union().within(mask) {
            self.batch.forget.push(*key);
            return;
        }
        if tables.overlap_effort(id) > VOID_ONE_BY_ONE || self.batch.void.len() > MOST_VOID {
            self.batch.flush = true;
            return;
        }
        self.batch.void.push(miss(table));
        self.batch.void.extend(tables.overlapped_by(id).map(row));
    }

    fn remove(&mut self, id: RuleId, next: Option<RuleId>) {
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

    /// The words of a key behind the front; row 0 if they are all zero. `None`: no room.
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

    /// Room for one more rule under a mask: in twice as many buckets if three quarters of the slots are taken.
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

    /// More buckets for a mask, with its rules in them: twice as many, or more where a pair of them would be too full.
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

    /// The mask's row and the key of a rule, read back.
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

    /// Takes a key out of every CPU's cache.
    fn forget(&self, key: &[u64; Key::WORDS]) {
        let union = self.masks.union().words();
        let cache = self.memory.cache();
        let sets = cache.len() / (words::CACHED * CACHE_WAYS * self.memory.cpus());
        let hash = self.seed.key(key, &union);
        for own in cache.chunks_exact(sets * CACHE_WAYS * words::CACHED) {
            for way in 0..CACHE_WAYS {
                let flow = &own[Seed::place(hash, way, sets)..][..words::CACHED];
                if (0..FRONT).all(|i| flow[i].load(Acquire) == key[i] & union[i]) {
                    flow[FRONT].store(0, Release);
                }
            }
        }
    }

    /// Packets and bytes of a row, all CPUs and user space together; rows below [`FIRST_ROW`] are the tables' misses.
    pub fn counted(&self, row: u32) -> Count {
        let counters = self.memory.counters();
        let sum =
            |word: usize| self.memory.counters_of(row).map(|at| counters[at + word].load(Acquire)).sum();
        Count { packets: sum(0), bytes: sum(1) }
    }

    fn clear_counters(&self, row: u32) {
        let counters = self.memory.counters();
        for at in self.memory.counters_of(row) {
            counters[at..at + words::COUNT].iter().for_each(|word| word.store(0, Release));
        }
    }
}

fn store(region: &[std::sync::atomic::AtomicU64], at: usize, list: &[u64]) {
    region[at..at + list.len()].iter().zip(list).for_each(|(to, word)| to.store(*word, Release));
}
