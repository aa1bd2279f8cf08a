//! Which rows of the table are taken, and which free ones may be empty.

use super::{PairId, Place, row};

pub struct Places {
    /// By row.
    owners: Box<[Option<PairId>]>,
    /// By row: the number of keys that lie behind it, and look at it before they are found.
    passed: Box<[u8]>,
    taken: usize,
}

impl Places {
    /// `rows`: a power of two of blocks.
    pub fn new(rows: usize) -> Places {
        Places { owners: vec![None; rows].into(), passed: vec![0; rows].into(), taken: 0 }
    }

    /// How many more rows may be taken. Half of all rows stay free, so that most keys find one.
    pub fn room(&self) -> usize {
        (self.owners.len() / 2).saturating_sub(self.taken)
    }

    /// Takes rows for two keys, each with its hash and whether it is of IPv6. `None`: there is no room.
    pub fn take(&mut self, keys: [(u64, bool); 2], owner: PairId) -> Option<[Place; 2]> {
        let needed: usize = keys.iter().map(|(_, is_ipv6)| 1 + usize::from(*is_ipv6)).sum();
        if self.room() < needed {
            return None;
        }
        let there = self.take_one(keys[0], owner)?;
        let Some(back) = self.take_one(keys[1], owner) else {
            self.give_back(&there);
            return None;
        };
        for place in [&there, &back] {
            self.before(place).for_each(|row| self.passed[row as usize] += 1);
        }
        Some([there, back])
    }

    fn take_one(&mut self, (hash, is_ipv6): (u64, bool), owner: PairId) -> Option<Place> {
        let row = self.take_row(hash, owner)?;
        let rest = is_ipv6.then(|| self.take_row(hash, owner));
        let place = Place { row, rest: rest.flatten(), hash };
        if rest == Some(None) {
            self.give_back(&place);
            return None;
        }
        Some(place)
    }

    fn take_row(&mut self, hash: u64, owner: PairId) -> Option<u32> {
        let row = row::probe(hash, self.owners.len()).find(|row| self.owner(*row).is_none())?;
        *self.owners.get_mut(row as usize)? = Some(owner);
        self.taken += 1;
        Some(row)
    }

    /// Nothing was written there.
    fn give_back(&mut self, place: &Place) {
        [Some(place.row), place.rest].into_iter().flatten().for_each(|row| _ = self.free(row));
    }

    /// The rows that the key looks at before its own.
    fn before(&self, place: &Place) -> impl Iterator<Item = u32> + use<> {
        let own = place.row;
        row::probe(place.hash, self.owners.len()).take_while(move |row| *row != own)
    }

    /// The connection that has the row, or had it until it was removed.
    pub fn owner(&self, row: u32) -> Option<PairId> {
        self.owners.get(row as usize).copied().flatten()
    }

    /// A key is removed; its rows are not free yet. Returns rows that may be empty now.
    pub fn forget(&mut self, place: &Place) -> impl Iterator<Item = u32> {
        self.before(place).filter(|row| {
            self.passed[*row as usize] -= 1;
            self.may_be_empty(*row)
        })
    }

    /// Frees a row. May it be empty?
    pub fn free(&mut self, row: u32) -> bool {
        self.owners[row as usize] = None;
        self.taken -= 1;
        self.may_be_empty(row)
    }

    fn may_be_empty(&self, row: u32) -> bool {
        self.owner(row).is_none() && self.passed[row as usize] == 0
    }
}
