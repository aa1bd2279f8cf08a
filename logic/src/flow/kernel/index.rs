//! Places of rules in the buckets of their mask: bucket `h`, or `h ^ 1` if that one is full. No list of places exists: a
//! slot names a rule, the rule's row has its key, and the key gives the hash.
//!
//! A reader looks into the second bucket only if the first is full. When a rule leaves a hole, a rule that had to go to the
//! second bucket therefore moves into it at once. For a moment this rule is in both places rather than in none.

use super::{memory::words, ranges::Range};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

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
        self.slots.iter().map(|slot| slot.load(Acquire) as u32).filter(|id| *id != 0)
    }

    fn bucket(&self, bucket: usize) -> std::ops::Range<usize> {
        bucket * words::BUCKET..(bucket + 1) * words::BUCKET
    }

    /// The two buckets that a hash may be in, the preferred one first. If there is only one bucket, it is returned twice.
    fn homes(&self, hash: u64) -> [usize; 2] {
        let first = home(hash, self.slots.len());
        [first, (first ^ 1) & (self.slots.len() / words::BUCKET - 1)]
    }

    fn at(&self, hash: u64, id: u32) -> Option<usize> {
        self.homes(hash)
            .into_iter()
            .flat_map(|bucket| self.bucket(bucket))
            .find(|&at| self.slots[at].load(Acquire) as u32 == id)
    }

    /// Is there room for a rule with this hash?
    pub fn has_room(&self, hash: u64) -> bool {
        self.hole(hash).is_some()
    }

    fn hole(&self, hash: u64) -> Option<usize> {
        self.homes(hash)
            .into_iter()
            .flat_map(|bucket| self.bucket(bucket))
            .find(|&at| self.slots[at].load(Acquire) == 0)
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
        let Some(mut at) = self.at(hash, id) else { return };
        // Each round moves a rule to its first bucket, and none leaves its first bucket, so the loop ends.
        loop {
            let bucket = at / words::BUCKET;
            let next = (bucket ^ 1) & (self.slots.len() / words::BUCKET - 1);
            let guest = self.bucket(next).filter(|_| next != bucket).find(|&from| {
                let id = self.slots[from].load(Acquire) as u32;
                id != 0 && home(hash_of(id), self.slots.len()) == bucket
            });
            let Some(from) = guest else { break };
            self.slots[at].store(self.slots[from].load(Acquire), Release);
            at = from;
        }
        self.slots[at].store(0, Release);
    }

    /// The rules that a reader finds under this hash and tag.
    pub fn find(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let [first, second] = self.homes(hash);
        let full = self.bucket(first).all(|at| self.slots[at].load(Acquire) != 0);
        let second = self.bucket(second).filter(move |_| full);
        self.bucket(first).chain(second).filter_map(move |at| {
            let word = self.slots[at].load(Acquire);
            (word != 0 && word >> 32 == hash & 0xffff_ffff).then_some(word as u32)
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

    proptest! {
        #[test]
        fn a_reader_finds_every_inserted_rule(steps in prop::collection::vec((1_u32..60, any::<bool>()), 1..200)) {
            let slots: Vec<AtomicU64> = (0..4 * words::BUCKET).map(|_| AtomicU64::new(0)).collect();
            let index = Index::new(&slots, Range { first: 0, count: 4 });
            let mut inside = BTreeSet::new();
            for (id, insert) in steps {
                if insert && !inside.contains(&id) {
                    let room = index.has_room(hash(id));
                    prop_assert_eq!(index.insert(hash(id), id).is_ok(), room);
                    if room {
                        inside.insert(id);
                    }
                } else if !insert && inside.remove(&id) {
                    index.remove(hash(id), id, hash);
                }
                for &id in &inside {
                    prop_assert!(index.find(hash(id)).any(|found| found == id), "{id} of {inside:?}");
                }
                prop_assert_eq!(slots.iter().filter(|s| s.load(Acquire) != 0).count(), inside.len());
            }
        }
    }
}
