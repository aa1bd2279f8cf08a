//! Changes that packets do not follow yet: which cached decisions die, and what may be reused afterwards.

use super::{CACHE_WAYS, FRONT, FlowMemory, Seed, Writer, miss, order, ranges::Range, row, rule_word, words};
use crate::flow::{
    Key,
    rule::{CORE_TABLE, TableId},
    table::{RuleId, Tables},
};
use std::{
    collections::BTreeSet,
    sync::atomic::Ordering::{Acquire, Release},
};

/// The most rules that are compared with a new one to find overlaps. If there are more, all caches are emptied.
const VOID_ONE_BY_ONE: usize = 4096;
/// The most generations to raise in one batch. If there are more, all caches are emptied.
const MOST_VOID: usize = 1 << 16;

/// The remaining work for changes that were applied.
#[derive(Debug, Default)]
pub struct Batch {
    /// Rows whose generation is to be raised.
    pub(super) void: Vec<u32>,
    /// Keys, under the union, to be removed from the caches.
    pub(super) forget: Vec<[u64; Key::WORDS]>,
    /// All caches are to be emptied.
    pub(super) flush: bool,
    /// Rules that user space decides until the batch is over.
    pub(super) rewrite: Vec<u32>,
    /// Something was changed.
    pub(super) changed: bool,
    pub(super) release: Vec<RuleId>,
    pub(super) steps: Vec<(u32, u32)>,
    pub(super) rest: Vec<(u32, u32)>,
    pub(super) patches: Vec<(u32, u32)>,
    pub(super) sets: Vec<(u32, u32)>,
    pub(super) masks: Vec<u16>,
    pub(super) ranges: Vec<Range>,
    pub(super) twice: Vec<(TableId, u16)>,
    pub(super) groups: Vec<u32>,
    pub(super) meters: Vec<u32>,
}

impl Batch {
    /// Is there nothing to wait for?
    pub fn is_empty(&self) -> bool {
        !self.changed
    }
}

impl<M: FlowMemory> Writer<M> {
    /// Was anything applied since the last [`seal`](Writer::seal)?
    pub fn has_changes(&self) -> bool {
        self.batch.changed
    }

    /// Ends the batch: returns all changes so far.
    pub fn seal(&mut self) -> Batch {
        std::mem::take(&mut self.batch)
    }

    /// Call this after a grace period since [`seal`](Writer::seal). Decisions cached before the changes die.
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
        // The open batch may have given a mask a new second entry, which readers may have passed. It removes the others later.
        let open: BTreeSet<(TableId, u16)> = self.batch.twice.iter().copied().collect();
        let sealed: BTreeSet<(TableId, u16)> = batch.twice.iter().copied().collect();
        for &(table, row) in sealed.difference(&open) {
            order::tidy(&self.memory, table, row);
        }
        for table in 0..=CORE_TABLE {
            let moved = order::close_holes(&self.memory, table, |row| !open.contains(&(table, row)));
            self.batch.changed |= !moved.is_empty();
            self.batch.twice.extend(moved.into_iter().map(|row| (table, row)));
        }
    }

    /// Call this after another grace period since [`void`](Writer::void): from now on packets follow the changes.
    /// Returns the rules whose ids may be used again.
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

    fn bump(&self, row: u32) {
        let head = &self.rule(row)[rule_word::HEAD];
        let word = head.load(Acquire);
        let generation = (word as u32).wrapping_add(1);
        head.store(word & !0xffff_ffff | u64::from(generation), Release);
    }

    /// Voids decisions by rules of no higher priority about packets of a new rule.
    pub(super) fn void_overlapped(
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

    /// Removes a key from every CPU's cache.
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
}
