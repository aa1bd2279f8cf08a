//! What a rule does, as words of its row, and how that changes while packets run.

use super::{
    FLAG_CLEAR, FLAG_SENDS, FlowMemory, Writer,
    memory::words,
    pool::{Got, Pool},
    rule_word, steps,
    steps::{Rows, verdict},
    store,
};
use crate::flow::{
    Key,
    program::{Ports, Program, Step},
};
use std::sync::atomic::Ordering::{Acquire, Release};

/// The rows that steps name, found in the writer.
struct Naming<'a, M> {
    memory: &'a M,
    sets: &'a mut Pool<Ports>,
}

impl<M: FlowMemory> Rows for Naming<'_, M> {
    fn set(&mut self, ports: &Ports) -> Option<u16> {
        let got = self.sets.get(ports, 1)?;
        if let Got::New(row) = got
            && !self.memory.write_set(row, ports)
        {
            return None;
        }
        u16::try_from(got.row()).ok()
    }
    fn meter(&mut self, _: u32) -> Option<u32> {
        None
    }
    fn group(&mut self, _: u32) -> Option<u32> {
        None
    }
}

/// What a rule's words say of its decision, and the rows they name.
pub(super) struct Decision {
    pub decision: u64,
    pub patch: u32,
    pub set: u64,
}

impl<M: FlowMemory> Writer<M> {
    /// The words of a rule, as they will be when the batch is done.
    pub(super) fn latest(&mut self, row: u32) -> [u64; words::RULE] {
        let words = self.rule(row);
        let now = std::array::from_fn(|i| words[i].load(Acquire));
        let pending = self.batch.rewrite.iter().position(|(other, _)| *other == row);
        pending.map_or(now, |at| self.batch.rewrite.swap_remove(at).1)
    }

    /// Gives a row another decision. One word if that is enough; else user space decides until the batch is void.
    pub(super) fn decide(&mut self, row: u32, program: &Program) {
        let new = self.decision(row, program);
        let mid_way = self.rule(row)[rule_word::DECISION].load(Acquire);
        let old = self.latest(row);
        let mut latest = old;
        latest[rule_word::DECISION] = new.decision;
        latest[rule_word::REST] = old[rule_word::REST] & 0xffff_ffff | u64::from(new.patch) << 32;
        latest[rule_word::SET] = new.set;
        let same = |word: usize| latest[word] == old[word];
        let one_word = mid_way == old[rule_word::DECISION] && same(rule_word::REST) && same(rule_word::SET);
        let now = if one_word { new.decision } else { u64::from(verdict::SLOW) };
        self.rule(row)[rule_word::DECISION].store(now, Release);
        if !one_word {
            self.batch.rewrite.push((row, latest));
        }
        self.let_go(&old);
        let next_table = |words: &[u64; words::RULE]| words[rule_word::DECISION] >> 8 & 0xff;
        if next_table(&old) != next_table(&latest) || !same(rule_word::REST) {
            self.batch.void.push(row);
        }
    }

    /// The words of a program; its steps are written.
    pub(super) fn decision(&mut self, row: u32, program: &Program) -> Decision {
        self.try_decision(row, program).unwrap_or(Decision {
            decision: u64::from(verdict::SLOW),
            patch: 0,
            set: 0,
        })
    }

    fn try_decision(&mut self, row: u32, program: &Program) -> Option<Decision> {
        let mut naming = Naming { memory: &self.memory, sets: &mut self.sets };
        let next = u64::from(program.next_table.unwrap_or(0)) << 8;
        let decision = match program.steps.as_slice() {
            [] => u64::from(verdict::DROP) | next,
            [Step::Verdict(v)] => {
                let (kind, argument) = steps::encode_verdict(v, &mut naming)?;
                u64::from(kind) | next | u64::from(argument) << 16
            }
            list => {
                let words = steps::encode(list, row, &mut naming)?;
                u64::from(verdict::STEPS) | next | u64::from(self.write_steps(words)?) << 32
            }
        };
        let set_steps = if program.set.is_empty() {
            0
        } else {
            let mut naming = Naming { memory: &self.memory, sets: &mut self.sets };
            let words = steps::encode(&program.set, row, &mut naming)?;
            self.write_steps(words)?
        };
        let flags = if program.clear { FLAG_CLEAR } else { 0 } | if program.sends { FLAG_SENDS } else { 0 };
        let set = u64::from(set_steps) | u64::from(program.set_ranks) << 32 | flags << 48;
        let patch = match &program.patch {
            None => 0,
            Some((value, mask)) => self.write_patch(value, mask)?,
        };
        Some(Decision { decision, patch, set })
    }

    /// The rows that a rule's decision named have one user less.
    pub(super) fn let_go(&mut self, rule: &[u64; words::RULE]) {
        let decision = rule[rule_word::DECISION];
        if decision as u8 == verdict::STEPS {
            self.batch.steps.extend(self.steps.put((decision >> 32) as u32));
        }
        self.batch.steps.extend(self.steps.put(rule[rule_word::SET] as u32));
        self.batch.patches.extend(self.patches.put((rule[rule_word::REST] >> 32) as u32));
    }

    fn write_steps(&mut self, list: Vec<u64>) -> Option<u32> {
        let rows = (list.len() / words::STEP) as u32;
        let got = self.steps.get(&list, rows)?;
        if let Got::New(row) = got {
            store(self.memory.steps(), row as usize * words::STEP, &list);
        }
        Some(got.row())
    }

    fn write_patch(&mut self, value: &Key, mask: &Key) -> Option<u32> {
        let list: Vec<u64> = value.words().into_iter().chain(mask.words()).collect();
        let got = self.patches.get(&list, 1)?;
        if let Got::New(row) = got {
            store(self.memory.patches(), row as usize * words::PATCH, &list);
        }
        Some(got.row())
    }
}
