//! Places of keys in an index of buckets: a key is in bucket `home`, or in `home ^ 1` if that is full.
//!
//! Readers look at the second bucket only if the first is full. So a hole in a bucket is filled at once with a key that
//! had to go to the other bucket.

use std::collections::{BTreeMap, BTreeSet};

/// A change of one slot. Changes are written in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write<K> {
    Set(usize, K),
    Clear(usize),
}

#[derive(Clone, Copy, Debug)]
struct BucketPlace {
    home: usize,
    /// Slot number; `None` while both buckets are full.
    at: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Buckets<K> {
    ways: usize,
    slots: Vec<Option<K>>,
    places: BTreeMap<K, BucketPlace>,
    unplaced: BTreeSet<K>,
}

impl<K: Copy + Ord> Buckets<K> {
    /// `buckets` must be a power of two.
    pub(super) fn new(buckets: usize, ways: usize) -> Self {
        let (places, unplaced) = (BTreeMap::new(), BTreeSet::new());
        Self { ways, slots: vec![None; buckets * ways], places, unplaced }
    }

    /// The mask for hashes.
    pub(super) fn mask(&self) -> u32 {
        (self.slots.len() / self.ways).saturating_sub(1) as u32
    }

    /// The numbers of keys with a slot and of keys without one.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.places.len() - self.unplaced.len(), self.unplaced.len())
    }

    fn pair(&self, home: usize) -> usize {
        (home ^ 1) & self.mask() as usize
    }

    fn hole(&self, home: usize) -> Option<usize> {
        [home, self.pair(home)]
            .into_iter()
            .flat_map(|bucket| bucket * self.ways..(bucket + 1) * self.ways)
            .find(|at| self.slots.get(*at).is_some_and(Option::is_none))
    }

    /// Takes a slot for a key. Returns `None` if there is no room. The key then gets the next slot that becomes free.
    pub(super) fn insert(&mut self, key: K, home: u32) -> Option<usize> {
        if let Some(place) = self.places.get(&key) {
            return place.at;
        }
        let home = home as usize;
        let at = self.hole(home);
        match at {
            Some(at) => self.slots[at] = Some(key),
            None => _ = self.unplaced.insert(key),
        }
        self.places.insert(key, BucketPlace { home, at });
        at
    }

    /// Frees the key's slot. Fills the hole with a key from the other bucket, or with one that has been waiting.
    pub(super) fn remove(&mut self, key: K) -> Vec<Write<K>> {
        let mut writes = Vec::new();
        self.unplaced.remove(&key);
        let Some(BucketPlace { at: Some(mut at), .. }) = self.places.remove(&key) else { return writes };
        // Each round moves a key to its home, and no key leaves its home, so this ends.
        while let Some((guest, from)) = self.guest_of(at / self.ways) {
            self.put(at, guest, &mut writes);
            at = from;
        }
        let homes = [at / self.ways, self.pair(at / self.ways)];
        match self.unplaced.iter().copied().find(|k| homes.contains(&self.places[k].home)) {
            Some(waiting) => {
                self.unplaced.remove(&waiting);
                self.put(at, waiting, &mut writes);
            }
            None => {
                self.slots[at] = None;
                writes.push(Write::Clear(at));
            }
        }
        writes
    }

    fn put(&mut self, at: usize, key: K, writes: &mut Vec<Write<K>>) {
        self.slots[at] = Some(key);
        if let Some(place) = self.places.get_mut(&key) {
            place.at = Some(at);
        }
        writes.push(Write::Set(at, key));
    }

    /// A key that belongs to `bucket` and is in the other one.
    fn guest_of(&self, bucket: usize) -> Option<(K, usize)> {
        let next = self.pair(bucket);
        (next * self.ways..(next + 1) * self.ways).filter(|_| next != bucket).find_map(|at| {
            let key = self.slots[at]?;
            (self.places.get(&key)?.home == bucket).then_some((key, at))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A reader that looks in the other bucket only if home is full finds every placed key. No key waits while
        /// there is a hole.
        #[test]
        fn every_key_is_found(steps in prop::collection::vec((0u32..40, any::<bool>()), 1..200)) {
            let mut buckets = Buckets::new(4, 4);
            let mut memory = [None; 16];
            for (key, insert) in steps {
                let home = key * 7 % 4;
                if insert {
                    if let Some(at) = buckets.insert(key, home) {
                        memory[at] = Some(key);
                    }
                } else {
                    for write in buckets.remove(key) {
                        match write {
                            Write::Set(at, key) => memory[at] = Some(key),
                            Write::Clear(at) => memory[at] = None,
                        }
                    }
                }
                let ways = |b: usize| &memory[b * 4..b * 4 + 4];
                let full = |b: usize| ways(b).iter().all(Option::is_some);
                for (key, place) in &buckets.places {
                    let next_door = full(place.home) && ways(place.home ^ 1).contains(&Some(*key));
                    let found = ways(place.home).contains(&Some(*key)) || next_door;
                    prop_assert_eq!(found, place.at.is_some());
                    prop_assert!(place.at.is_some() || full(place.home) && full(place.home ^ 1));
                }
                prop_assert_eq!(memory.iter().flatten().count(), buckets.counts().0);
            }
        }
    }
}
