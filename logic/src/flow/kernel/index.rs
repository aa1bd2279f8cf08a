//! Places of rules in the buckets of their mask: bucket `h`, or `h ^ 1` if that one is full. No list of places exists: a
//! slot names a rule, the rule's row has its key, and the key gives the hash.
//!
//! A reader looks into the second bucket only if the first has no empty slot. So while a rule is in its second bucket, the
//! slots of rules that leave the first one are marked ([`GONE`]). Such a slot is free for another rule, but not empty. Rules
//! never move, so a reader cannot miss one that stays.

use super::{memory::words, ranges::Range};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

/// The word of a slot whose rule is gone, but which readers must not take for empty. No rule has row `u32::MAX`, so no
/// rule's slot has this value.
const GONE: u64 = u64::MAX;

/// Both buckets are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

pub(super) struct Index<'a> {
    slots: &'a [AtomicU64],
}

/// The bucket of a hash in an index of so many slots.
fn home(hash: u64, slots: usize) -> usize {
    (hash >> 32) as usize & (slots / words::BUCKET - 1)
}

fn slot(hash: u64, id: u32) -> u64 {
    hash << 32 | u64::from(id)
}

/// The rule of a slot.
fn rule(word: u64) -> Option<u32> {
    (word != 0 && word != GONE).then_some(word as u32)
}

impl<'a> Index<'a> {
    /// The index in the buckets of one mask.
    pub fn new(all: &'a [AtomicU64], range: Range) -> Self {
        let slot = |bucket: u32| bucket as usize * words::BUCKET;
        Self { slots: &all[slot(range.first)..slot(range.first + range.count)] }
    }

    /// Empties the buckets. No packet reads them yet.
    pub fn clear(&self) {
        self.slots.iter().for_each(|slot| slot.store(0, Release));
    }

    /// All rules in the index.
    pub fn rules(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().filter_map(|slot| rule(slot.load(Acquire)))
    }

    fn bucket(&self, bucket: usize) -> std::ops::Range<usize> {
        bucket * words::BUCKET..(bucket + 1) * words::BUCKET
    }

    /// The bucket for rules that have no room in this one; `None` if there is only one bucket.
    fn other(&self, bucket: usize) -> Option<usize> {
        (self.slots.len() > words::BUCKET).then_some(bucket ^ 1)
    }

    /// The slots that a hash may be in, those of the preferred bucket first.
    fn places(&self, hash: u64) -> impl Iterator<Item = usize> {
        let first = home(hash, self.slots.len());
        self.bucket(first).chain(self.other(first).into_iter().flat_map(|bucket| self.bucket(bucket)))
    }

    fn rule(&self, at: usize) -> Option<u32> {
        rule(self.slots[at].load(Acquire))
    }

    fn at(&self, hash: u64, id: u32) -> Option<usize> {
        self.places(hash).find(|&at| self.rule(at) == Some(id))
    }

    /// Is there room for a rule with this hash?
    pub fn has_room(&self, hash: u64) -> bool {
        self.hole(hash).is_some()
    }

    fn hole(&self, hash: u64) -> Option<usize> {
        self.places(hash).find(|&at| self.rule(at).is_none())
    }

    pub fn insert(&self, hash: u64, id: u32) -> Result<(), Full> {
        let at = self.hole(hash).ok_or(Full)?;
        self.slots[at].store(slot(hash, id), Release);
        Ok(())
    }

    /// Replaces a rule by another one with the same key.
    pub fn replace(&self, hash: u64, old: u32, new: u32) {
        if let Some(at) = self.at(hash, old) {
            self.slots[at].store(slot(hash, new), Release);
        }
    }

    /// Removes a rule. `hash_of` returns the hash of any other rule in the index.
    pub fn remove(&self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        let Some(at) = self.at(hash, id) else { return };
        let (bucket, own) = (at / words::BUCKET, home(hash, self.slots.len()));
        // Does a rule of this bucket lie in the other one?
        let overflows = |bucket| {
            let others = self.other(bucket).into_iter().flat_map(|other| self.bucket(other));
            let mut guests = others.filter_map(|at| self.rule(at)).filter(|other| *other != id);
            guests.any(|other| home(hash_of(other), self.slots.len()) == bucket)
        };
        self.slots[at].store(if overflows(bucket) { GONE } else { 0 }, Release);
        if bucket != own && !overflows(own) {
            let gone = self.bucket(own).filter(|&at| self.rule(at).is_none());
            gone.for_each(|at| self.slots[at].store(0, Release));
        }
    }

    /// The rules that a reader finds under this hash and tag.
    pub fn find(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let first = self.bucket(home(hash, self.slots.len()));
        let is_full = first.clone().all(|at| self.slots[at].load(Acquire) != 0);
        let count = if is_full { 2 * words::BUCKET } else { words::BUCKET };
        self.places(hash).take(count).filter_map(move |at| {
            let word = self.slots[at].load(Acquire);
            rule(word).filter(|_| word >> 32 == hash & 0xffff_ffff)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn hash(id: u32) -> u64 {
        // Four buckets. All rules of a bucket have the same tag.
        u64::from(id % 4) << 32 | 7
    }

    struct World {
        slots: Vec<AtomicU64>,
        inside: BTreeSet<u32>,
    }

    impl World {
        fn index(&self) -> Index<'_> {
            Index::new(&self.slots, Range { first: 0, count: 4 })
        }

        fn insert(&mut self, id: u32) {
            if !self.inside.contains(&id) && self.index().insert(hash(id), id).is_ok() {
                self.inside.insert(id);
            }
        }

        fn remove(&mut self, id: u32) {
            if self.inside.remove(&id) {
                self.index().remove(hash(id), id, hash);
            }
        }

        /// What the program finds, slot by slot. `between` is called before it reads each slot.
        fn read(&mut self, hash: u64, mut between: impl FnMut(&mut World)) -> BTreeSet<u32> {
            let mut found = BTreeSet::new();
            let first = home(hash, self.slots.len());
            for bucket in [first, first ^ 1] {
                let mut is_full = true;
                for at in bucket * words::BUCKET..(bucket + 1) * words::BUCKET {
                    between(self);
                    let word = self.slots[at].load(Acquire);
                    is_full &= word != 0;
                    found.extend(rule(word).filter(|_| word >> 32 == hash & 0xffff_ffff));
                }
                if !is_full {
                    break;
                }
            }
            found
        }
    }

    proptest! {
        #![proptest_config(crate::cases(1024))]
        #[test]
        fn a_reader_finds_every_inserted_rule(steps in prop::collection::vec((1_u32..60, any::<bool>()), 1..200)) {
            let slots = (0..4 * words::BUCKET).map(|_| AtomicU64::new(0)).collect();
            let mut world = World { slots, inside: BTreeSet::new() };
            for (id, insert) in steps {
                if insert {
                    let expected = world.inside.contains(&id) || world.index().has_room(hash(id));
                    world.insert(id);
                    prop_assert_eq!(world.inside.contains(&id), expected);
                } else {
                    world.remove(id);
                }
                let index = world.index();
                for &id in &world.inside {
                    prop_assert!(index.find(hash(id)).any(|found| found == id), "{id} of {:?}", world.inside);
                }
                prop_assert_eq!(index.rules().collect::<BTreeSet<_>>(), world.inside.clone());
            }
            let last: Vec<u32> = world.inside.iter().copied().collect();
            last.into_iter().for_each(|id| world.remove(id));
            prop_assert!(world.slots.iter().all(|slot| slot.load(Acquire) == 0));
        }

        /// Rules come and go while a packet looks for one. It finds all rules that are there from its beginning to its end.
        #[test]
        fn a_reader_misses_no_rule_that_stays(
            before in prop::collection::vec(1_u32..60, 8..40),
            meanwhile in prop::collection::vec((0_u8..3, 1_u32..60), 2 * words::BUCKET),
            bucket in 0_u32..4,
        ) {
            let slots = (0..4 * words::BUCKET).map(|_| AtomicU64::new(0)).collect();
            let mut world = World { slots, inside: BTreeSet::new() };
            before.into_iter().for_each(|id| world.insert(id));
            let mut stay = world.inside.clone();
            let mut steps = meanwhile.into_iter();
            let found = world.read(hash(bucket), |world| match steps.next() {
                Some((0, id)) => world.insert(id),
                Some((1, id)) => {
                    stay.remove(&id);
                    world.remove(id);
                }
                _ => (),
            });
            stay.retain(|id| hash(*id) == hash(bucket));
            prop_assert!(stay.is_subset(&found), "{stay:?} of which {found:?} were found");
        }
    }
}
