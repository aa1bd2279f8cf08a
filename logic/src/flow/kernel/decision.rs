//! A rule's decision as words of its row, and how it changes while packets run.

use super::{
    CORE_SHIFT, FLAG_BROADCASTS, FLAG_CLEAR, FLAG_CORE_OF_SET, FLAG_SENDS, FlowMemory, Writer, core_word,
    groups::Groups,
    memory::words,
    meters::Meters,
    pool::{Got, Pool},
    rule_word, steps,
    steps::{Rows, verdict},
    store,
};
use crate::flow::{
    RulePort,
    program::{Patch, Ports, Program, Step},
};
use std::{
    collections::BTreeSet,
    sync::atomic::Ordering::{Acquire, Release},
};

/// Finds the rows that steps name in the writer.
struct Naming<'a, M> {
    memory: &'a M,
    sets: &'a mut Pool<Ports>,
    /// The rows of `sets` that were named, once for each time.
    taken: &'a mut Vec<u32>,
    meters: &'a Meters,
    groups: &'a Groups,
    deaf: &'a BTreeSet<RulePort>,
}

impl<M: FlowMemory> Rows for Naming<'_, M> {
    fn set(&mut self, ports: &Ports) -> Option<u16> {
        let got = self.sets.get(ports, 1)?;
        if let Got::New(row) = got
            && !self.memory.write_set(row, ports)
        {
            // No rule names it, so it can be used again at once.
            self.sets.put(row).into_iter().for_each(|(row, length)| self.sets.free(row, length));
            return None;
        }
        self.taken.push(got.row());
        u16::try_from(got.row()).ok()
    }
    fn meter(&mut self, id: u32) -> Option<u32> {
        self.meters.row(id)
    }
    fn group(&mut self, id: u32) -> Option<u32> {
        self.groups.row(id)
    }
    fn deaf(&self) -> &BTreeSet<RulePort> {
        self.deaf
    }
}

/// The words of a rule's decision. They contain the rows that the decision names.
pub(super) struct Decision {
    pub decision: u64,
    pub patch: u32,
    pub set: u64,
}

impl<M: FlowMemory> Writer<M> {
    /// The words of a rule as they will be when all batches are finished. The pending rewrite is removed.
    pub(super) fn latest(&mut self, row: u32) -> [u64; words::RULE] {
        let words = self.rule(row);
        let now = std::array::from_fn(|i| words[i].load(Acquire));
        self.rewrite.remove(&row).unwrap_or(now)
    }

    /// Changes the decision of a row. If only one word differs, it is stored at once. Otherwise user space decides until
    /// the batch is finished. Decisions of user space are never cached, so no packet meets half of the old decision and
    /// half of the new.
    pub(super) fn decide(&mut self, row: u32, program: &Program) {
        let new = self.decision(program);
        let pending = self.rewrite.contains_key(&row);
        let old = self.latest(row);
        let mut latest = old;
        latest[rule_word::DECISION] = new.decision;
        latest[rule_word::REST] = old[rule_word::REST] & 0xffff_ffff | u64::from(new.patch) << 32;
        latest[rule_word::SET] = new.set;
        let next_table = |words: &[u64; words::RULE]| words[rule_word::DECISION] >> 8 & 0xff;
        let same = |word: usize| latest[word] == old[word];
        let one_word = !pending
            && same(rule_word::REST)
            && same(rule_word::SET)
            && next_table(&old) == next_table(&latest);
        if one_word {
            self.rule(row)[rule_word::DECISION].store(new.decision, Release);
        } else {
            self.rule(row)[rule_word::DECISION].store(verdict::SLOW.into(), Release);
            self.rewrite.insert(row, latest);
            self.batch.rewrite.push(row);
            self.batch.void.push(row);
        }
        self.let_go(&old);
    }

    /// From now on the rule in a row decides, no longer user space.
    pub(super) fn rewrite(&mut self, row: u32) {
        let Some(new) = self.rewrite.remove(&row) else { return };
        let words = self.rule(row);
        for word in [rule_word::REST, rule_word::SET, rule_word::DECISION] {
            words[word].store(new[word], Release);
        }
    }

    /// The words of a program. Its steps are written to the memory.
    pub(super) fn decision(&mut self, program: &Program) -> Decision {
        let mut sets = Vec::new();
        self.try_decision(program, &mut sets).unwrap_or_else(|| {
            // No rule names these sets.
            let unused: Vec<_> = sets.into_iter().filter_map(|row| self.sets.put(row)).collect();
            unused.into_iter().for_each(|set| self.free_set(set));
            Decision { decision: u64::from(verdict::SLOW), patch: 0, set: 0 }
        })
    }

    /// Frees a set of ports that no rule names any more.
    pub(super) fn free_set(&mut self, (row, length): (u32, u32)) {
        self.memory.forget_set(row);
        self.sets.free(row, length);
    }

    /// `None` if a row is missing. No rows are then taken, except those of sets of ports, which are in `taken`.
    fn try_decision(&mut self, program: &Program, taken: &mut Vec<u32>) -> Option<Decision> {
        let Self { memory, sets, meters, groups, deaf, .. } = self;
        let core = match program.core {
            None => 0,
            Some(choice) => u64::from(core_word(choice)?),
        };
        let mut naming = Naming { memory, sets, taken, meters, groups, deaf };
        let next = u64::from(program.next_table.unwrap_or(0)) << 8;
        let (decision, list) = match program.steps.as_slice() {
            [] => (u64::from(verdict::DROP), None),
            [Step::Verdict(v)] => {
                let (kind, argument) = steps::encode_verdict(v, &mut naming)?;
                (u64::from(kind) | u64::from(argument) << 16, None)
            }
            list => (u64::from(verdict::STEPS), Some(steps::encode(list, &mut naming)?)),
        };
        let set = match program.set.as_slice() {
            [] => None,
            list => Some(steps::encode(list, &mut naming)?),
        };
        let lists = [self.write_steps(list)?, self.write_steps(set).unwrap_or(u32::MAX)];
        let patch = program.patch.as_ref().map_or(Some(0), |patch| self.write_patch(patch));
        if lists[1] == u32::MAX || patch.is_none() {
            let taken = lists.into_iter().filter(|&row| row != u32::MAX);
            taken.filter_map(|row| self.steps.put(row)).collect::<Vec<_>>().into_iter().for_each(
                |(row, length)| {
                    // No packet has seen these steps.
                    self.steps.free(row, length);
                },
            );
            return None;
        }
        let flag = |is: bool, flag: u64| if is { flag } else { 0 };
        let flags = flag(program.clear, FLAG_CLEAR)
            | flag(program.sends, FLAG_SENDS)
            | flag(program.broadcasts(), FLAG_BROADCASTS)
            | flag(program.core_of_set, FLAG_CORE_OF_SET)
            | core << CORE_SHIFT;
        Some(Decision {
            decision: decision | next | u64::from(lists[0]) << 32,
            patch: patch?,
            set: u64::from(lists[1]) | u64::from(program.set_ranks) << 32 | flags << 48,
        })
    }

    /// Releases the rows that a rule's decision names. A row is freed with its last user.
    pub(super) fn let_go(&mut self, rule: &[u64; words::RULE]) {
        let decision = rule[rule_word::DECISION];
        let steps = if decision as u8 == verdict::STEPS { (decision >> 32) as u32 } else { 0 };
        let mut sets = match decision as u8 {
            verdict::BROADCAST => vec![(decision >> 16) as u16],
            _ => Vec::new(),
        };
        for list in [steps, rule[rule_word::SET] as u32].into_iter().filter(|&row| row != 0) {
            sets.extend(steps::sets(&self.memory.steps()[list as usize * words::STEP..]));
            self.batch.steps.extend(self.steps.put(list));
        }
        self.batch.sets.extend(sets.into_iter().filter_map(|row| self.sets.put(row.into())));
        self.batch.patches.extend(self.patches.put((rule[rule_word::REST] >> 32) as u32));
    }

    /// Writes steps and returns their row; without a list, row 0.
    pub(super) fn write_steps(&mut self, list: Option<Vec<u64>>) -> Option<u32> {
        let Some(list) = list else { return Some(0) };
        let rows = (list.len() / words::STEP) as u32;
        // Round lengths up, so that there are few lengths and freed rows fit again.
        let got = self.steps.get(&list, rows.next_power_of_two())?;
        if let Got::New(row) = got {
            store(self.memory.steps(), row as usize * words::STEP, &list);
        }
        Some(got.row())
    }

    fn write_patch(&mut self, patch: &Patch) -> Option<u32> {
        let keys = patch.value.words().into_iter().chain(patch.mask.words());
        let list: Vec<u64> = keys.chain([patch.needs, 0]).collect();
        let got = self.patches.get(&list, 1)?;
        if let Got::New(row) = got {
            store(self.memory.patches(), row as usize * words::PATCH, &list);
        }
        Some(got.row())
    }
}
