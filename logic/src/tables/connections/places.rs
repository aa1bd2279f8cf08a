//! Records the rows that are taken, and the free rows that may be empty.

use super::{PairId, Place, row};

pub struct Places {
    /// By row: the connection that has it.
    owners: Box<[Option<PairId>]>,
    /// By row: the number of keys whose search passes it.
    passed: Box<[u8]>,
    taken: usize,
}

impl Places {
    /// `rows`: those of all blocks, whose number is a power of two.
    pub fn new(rows: usize) -> Places {
        Places { owners: vec![None; rows].into(), passed: vec![0; rows].into(), taken: 0 }
    }

    /// How many more rows may be taken. Half of all rows stay free, so that most keys find one.
    pub fn room(&self) -> usize {
        (self.owners.len() / 2).saturating_sub(self.taken)
    }

    /// Takes rows for two keys. `keys`: the hash of each, and whether it is of IPv6. `None`: there is no room.
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

    /// Frees rows in which nothing was written.
    fn give_back(&mut self, place: &Place) {
        [Some(place.row), place.rest].into_iter().flatten().for_each(|row| _ = self.free(row));
    }

    /// The rows that the search for the key passes before it finds the key's own.
    fn before(&self, place: &Place) -> impl Iterator<Item = u32> + use<> {
        let own = place.row;
        row::probe(place.hash, self.owners.len()).take_while(move |row| *row != own)
    }

    /// The connection that has the row, or had it until it was removed.
    pub fn owner(&self, row: u32) -> Option<PairId> {
        self.owners.get(row as usize).copied().flatten()
    }

    /// The key was removed, but its rows are not free yet. Returns the rows before them that may be empty now.
    pub fn forget(&mut self, place: &Place) -> impl Iterator<Item = u32> {
        self.before(place).filter(|row| {
            self.passed[*row as usize] -= 1;
            self.may_be_empty(*row)
        })
    }

    /// Frees a row. Returns whether it may be empty now.
    pub fn free(&mut self, row: u32) -> bool {
        self.owners[row as usize] = None;
        self.taken -= 1;
        self.may_be_empty(row)
    }

    fn may_be_empty(&self, row: u32) -> bool {
        self.owner(row).is_none() && self.passed[row as usize] == 0
    }
}
