//! How flow rules become words of memory, and when cached decisions about them die.
//!
//! There is one writer and any number of readers. A packet goes key -> cache -> rules, or key -> masks of a table -> index
//! -> rule -> next table. Everything it can reach is complete, and is reused only after a grace period.
//!
//! # A cached decision is never old
//!
//! A cached flow names the rules that decided, with their generations. It is void when one of them has another generation.
//! The writer finds the flows to void in a [`Batch`] of changes:
//!
//! 1. [`Writer::apply`] publishes new rules and takes old ones out of the index.
//! 2. A grace period. After it, no program is running that looked before the changes and still has to cache its result.
//! 3. [`Writer::void`] raises the generation of each removed rule, and of each rule of no higher priority that a new rule
//!    overlaps. The table's miss is one of these. A new rule that tests every bit that any rule tests can be the answer to
//!    only one key. Then just that key is removed from each CPU's cache, so that a million exact rules come and go without
//!    voiding other flows.
//! 4. Another grace period. After it, no program is running that took a flow from the cache before. Barriers are now
//!    answered.
//! 5. [`Writer::reclaim`] frees rows for reuse. Rules whose decision takes several words, which user space has decided since
//!    step 1, now get it.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`Writer`]: publishes rules; the rows of rules |
//! | `memory`, `hash` | the layout, and the hash that both sides compute |
//! | `batch` | [`Batch`]: what dies after the grace periods, and what may be reused |
//! | `rules` | a rule is put into its row and its bucket, and removed |
//! | `masks`, `order` | masks, and which of them hold the rules of others; the order in which they are searched |
//! | `index`, `ranges`, `pool` | places of rules; which buckets belong to which mask; rows that rules share |
//! | `decision`, `steps` | what a rule does, as words |
//! | `groups`, `meters` | groups and the rules that use them; meters |
//! | `notice` | the data that comes to user space with a packet |
//! | `answer` | reads the memory as the program does |

pub mod answer;
mod batch;
mod decision;
mod groups;
mod hash;
mod index;
mod masks;
mod memory;
mod meters;
mod notice;
mod order;
mod pool;
mod ranges;
mod rules;
mod steps;
#[cfg(test)]
pub(super) mod tests;

/// The encoding of words; `router::abi` compares it with the program's header.
pub mod encoding {
    pub use super::{
        CHOOSE, CHOOSE_FIRST, CORE_SHIFT, FLAG_BROADCASTS, FLAG_CLEAR, FLAG_CORE_OF_SET, FLAG_SENDS,
        memory::ORDER_RANK_SHIFT,
        meters::{COST_SHIFT, TICKS, band_word, meter_word},
        rule_word,
        steps::OPS,
        verdict,
    };
}

pub use batch::Batch;
pub use hash::Seed;
pub(super) use hash::spread;
pub use memory::{
    CACHE_WAYS, FRONT, FlowCapacity, FlowMemory, HeapFlows, MASKS, ORDER, SPARE, TABLE_ROWS, words,
};
pub use notice::{Notice, NoticeReason};
pub use steps::verdict;

use super::{
    Action, CoreChoice, Instructions, Refused, RulePort,
    program::Ports,
    rule::{TABLES, TableId},
    table::{Change, Count, RuleId, Tables},
};
use groups::Groups;
use masks::Masks;
use meters::Meters;
use pool::Pool;
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
/// Flags from this bit on: the core that the rule names, as [`core_word`] encodes it, or 0.
pub const CORE_SHIFT: u32 = 4;
/// In place of a core's number + 1: the switch chooses the core. The first is for priority flows, the second for other
/// flows.
pub const CHOOSE_FIRST: u16 = (1 << (16 - CORE_SHIFT)) - 2;
pub const CHOOSE: u16 = CHOOSE_FIRST + 1;
/// The highest core number that a rule can name, plus one.
pub const CORES: u16 = CHOOSE_FIRST - 1;

/// How a rule names a core, never 0; `None` if the number is too high.
fn core_word(choice: CoreChoice) -> Option<u16> {
    match choice {
        CoreChoice::This(core) => (core < CORES).then_some(core + 1),
        CoreChoice::Choose => Some(CHOOSE),
        CoreChoice::ChooseFirst => Some(CHOOSE_FIRST),
    }
}

/// Rows below this one are no rules: 0 is nothing, and the others are the misses of tables.
pub const FIRST_ROW: usize = 1 + TABLE_ROWS;

/// The row of a rule.
pub fn row(id: RuleId) -> u32 {
    id.0 + FIRST_ROW as u32
}

/// The rule in a row; `None` for a table's miss, or nothing.
pub fn rule_of(row: u32) -> Option<RuleId> {
    row.checked_sub(FIRST_ROW as u32).map(RuleId)
}

/// The row of a table's miss: what it does without a matching rule.
pub fn miss(table: TableId) -> u32 {
    1 + u32::from(table)
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
    /// What tables do with packets that no rule matches, where it was set.
    misses: BTreeMap<TableId, Instructions>,
    /// The ports to which nothing can be redirected.
    deaf: BTreeSet<RulePort>,
    batch: Batch,
    /// For each row of a rule, the row of the mask whose buckets hold the rule. 0: none do, because another rule with the
    /// same match hides it.
    places: Vec<u16>,
    /// The words of rules that user space decides until the batch is over.
    rewrite: HashMap<u32, [u64; words::RULE]>,
}

impl<M: FlowMemory> Writer<M> {
    /// Takes over `memory`, which nobody reads yet. There are no rules, and packets without a match are dropped.
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
            places: vec![0; rows(memory.rules(), words::RULE)],
            rewrite: HashMap::new(),
            memory,
            seed,
        }
    }

    /// Reads the memory as the program does.
    pub fn reader(&self) -> answer::Reader<'_, M> {
        answer::Reader { memory: &self.memory, seed: self.seed }
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Does user space decide for this rule, permanently or until the end of a batch?
    pub fn is_slow(&self, id: RuleId) -> bool {
        self.rule(row(id))[rule_word::DECISION].load(Acquire) as u8 == verdict::SLOW
    }

    /// Sets what a table does with a packet that none of its rules matches. It is published like a change of a rule.
    pub fn set_miss(&mut self, table: TableId, instructions: &Instructions) {
        self.batch.changed = true;
        let row = miss(table);
        self.note_groups(row, Some(instructions));
        let program = self.program(instructions);
        self.decide(row, &program);
        self.misses.insert(table, instructions.clone());
    }

    /// Sets the ports to which nothing can be redirected. User space does the rules that send there.
    pub fn set_deaf(&mut self, tables: &Tables, deaf: BTreeSet<RulePort>) {
        let changed: BTreeSet<RulePort> = self.deaf.symmetric_difference(&deaf).copied().collect();
        if changed.is_empty() {
            return;
        }
        self.batch.changed = true;
        self.deaf = deaf;
        let sends = |action: &Action| match action {
            Action::Output { port, .. } => {
                [RulePort::ALL, RulePort::FLOOD, RulePort::IN_PORT].contains(port) || changed.contains(port)
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

    /// Sets whether IP fragments are dropped before they reach a table.
    pub fn set_drop_fragments(&mut self, drop: bool) {
        self.batch.changed = true;
        self.memory.masks()[masks::FRAGMENTS_WORD].store(drop.into(), Release);
    }

    /// See [`set_drop_fragments`](Writer::set_drop_fragments).
    pub fn drops_fragments(&self) -> bool {
        self.memory.masks()[masks::FRAGMENTS_WORD].load(Acquire) != 0
    }

    /// See [`set_deaf`](Writer::set_deaf).
    pub fn deaf(&self) -> &BTreeSet<RulePort> {
        &self.deaf
    }

    /// The instructions of the rule in a row, or of the table's miss.
    pub(super) fn said<'a>(&'a self, tables: &'a Tables, row: u32) -> Option<&'a Instructions> {
        match rule_of(row) {
            Some(id) => tables.rule(id).map(|rule| rule.instructions),
            None => self.misses.get(&(row.checked_sub(miss(0))? as TableId)),
        }
    }

    /// Compiles a row again, because the kernel plane can do more or less than before.
    fn decide_again(&mut self, tables: &Tables, row: u32) {
        if let Some(program) = self.said(tables, row).map(|instructions| self.program(instructions)) {
            self.decide(row, &program);
        }
    }

    /// Publishes a change. `tables` already contains it.
    ///
    /// # Errors
    /// If there is no room for a new rule, nothing is published, and the caller takes the rule back out of the tables.
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

    fn rule(&self, row: u32) -> &[std::sync::atomic::AtomicU64] {
        &self.memory.rules()[row as usize * words::RULE..][..words::RULE]
    }

    /// Packets and bytes of a row, of all CPUs and user space together. Rows below [`FIRST_ROW`] are the tables' misses.
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
