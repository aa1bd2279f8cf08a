//! Which rows of the table are taken, and which free ones may be empty.

use super::{PairId, Place, row};
use crate::memory::words;

pub struct Places {
    /// By row.
    owners: Box<[Option<PairId>]>,
    /// By block: the number of keys whose first block it is and that lie in the other one.
    away: Box<[u32]>,
    taken: usize,
}

impl Places {
    /// `rows`: a power of two of blocks.
    pub fn new(rows: usize) -> Places {
        let blocks = rows / words::CONNECTION_WAYS;
        Places { owners: vec![None; rows].into(), away: vec![0; blocks].into(), taken: 0 }
    }

    /// Takes rows for two keys, each with its hash and whether it is of IPv6. `None`: there is no room. Half of the rows stay
    /// free, so that most keys find room.
    pub fn take(&mut self, keys: [(u64, bool); 2], owner: PairId) -> Option<[Place; 2]> {
        let needed: usize = keys.iter().map(|(_, is_ipv6)| 1 + usize::from(*is_ipv6)).sum();
        if self.taken + needed > self.owners.len() / 2 {
            return None;
        }
        let there = self.take_one(keys[0], owner)?;
        let Some(back) = self.take_one(keys[1], owner) else {
            self.give_back(&there);
            return None;
        };
        for place in [&there, &back] {
            self.away[place.home as usize] += u32::from(is_away(place));
        }
        Some([there, back])
    }

    fn take_one(&mut self, (hash, is_ipv6): (u64, bool), owner: PairId) -> Option<Place> {
        let blocks = row::blocks_of(hash, (self.away.len() as u32).wrapping_sub(1));
        let row = self.take_row(hash, blocks, owner)?;
        let rest = is_ipv6.then(|| self.take_row(hash, blocks, owner));
        let place = Place { row, rest: rest.flatten(), home: blocks[0] };
        if rest == Some(None) {
            self.give_back(&place);
            return None;
        }
        Some(place)
    }

    fn take_row(&mut self, hash: u64, blocks: [u32; 2], owner: PairId) -> Option<u32> {
        let mut rows = blocks.into_iter().flat_map(|block| row::rows_of(block, hash));
        let row = rows.find(|row| self.owner(*row).is_none())?;
        *self.owners.get_mut(row as usize)? = Some(owner);
        self.taken += 1;
        Some(row)
    }

    /// Nothing was written there.
    fn give_back(&mut self, place: &Place) {
        [Some(place.row), place.rest].into_iter().flatten().for_each(|row| _ = self.free(row));
    }

    /// The connection that has the row, or had it until it was removed.
    pub fn owner(&self, row: u32) -> Option<PairId> {
        self.owners.get(row as usize).copied().flatten()
    }

    /// A key is removed. Returns rows of its first block that readers may see empty now.
    pub fn came_home(&mut self, place: &Place) -> impl Iterator<Item = u32> {
        let away = &mut self.away[place.home as usize];
        let was_last = is_away(place) && *away == 1;
        *away -= u32::from(is_away(place));
        let rows = was_last.then(|| row::rows_of(place.home, 0)).into_iter().flatten();
        rows.filter(|row| self.owner(*row).is_none())
    }

    /// Frees a row. May readers see it empty?
    pub fn free(&mut self, row: u32) -> bool {
        self.owners[row as usize] = None;
        self.taken -= 1;
        self.away[row as usize / words::CONNECTION_WAYS] == 0
    }
}

fn is_away(place: &Place) -> bool {
    place.row as usize / words::CONNECTION_WAYS != place.home as usize
}
