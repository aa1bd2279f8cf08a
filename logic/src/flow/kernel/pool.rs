//! Rows that rules share: steps, patches, the rest words of long keys. A row is used again only after a grace period.

use std::{collections::BTreeMap, collections::HashMap, hash::Hash};

/// Runs of rows. Equal content is stored once. Row 0 is never given out: it means nothing.
pub(super) struct Pool<T> {
    rows: u32,
    /// The first row that was never used.
    fresh: u32,
    /// Free runs, by length.
    free: BTreeMap<u32, Vec<u32>>,
    shared: HashMap<T, Shared>,
    by_row: HashMap<u32, T>,
}

struct Shared {
    row: u32,
    length: u32,
    users: u32,
}

/// The result of [`Pool::get`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// The caller writes the content to this row.
    New(u32),
    /// The content is already in this row.
    Old(u32),
}

impl Got {
    pub fn row(self) -> u32 {
        match self {
            Got::New(row) | Got::Old(row) => row,
        }
    }
}

impl<T: Clone + Eq + Hash> Pool<T> {
    pub fn new(rows: usize) -> Self {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        Self { rows, fresh: 1, free: BTreeMap::new(), shared: HashMap::new(), by_row: HashMap::new() }
    }

    /// Takes `length` rows for this content, or shares those that have it. `None` if there is no room.
    pub fn get(&mut self, content: &T, length: u32) -> Option<Got> {
        if let Some(shared) = self.shared.get_mut(content) {
            shared.users += 1;
            return Some(Got::Old(shared.row));
        }
        let row = match self.free.get_mut(&length).and_then(Vec::pop) {
            Some(row) => row,
            None if self.rows - self.fresh.min(self.rows) >= length => {
                self.fresh += length;
                self.fresh - length
            }
            None => return None,
        };
        self.shared.insert(content.clone(), Shared { row, length, users: 1 });
        self.by_row.insert(row, content.clone());
        Some(Got::New(row))
    }

    /// Counts one user less. If it was the last, returns the first row and the length. The caller gives them to
    /// [`free`](Pool::free) when no reader is left.
    pub fn put(&mut self, row: u32) -> Option<(u32, u32)> {
        let content = self.by_row.get(&row)?;
        let shared = self.shared.get_mut(content)?;
        shared.users -= 1;
        if shared.users > 0 {
            return None;
        }
        let length = shared.length;
        self.shared.remove(content);
        self.by_row.remove(&row);
        Some((row, length))
    }

    pub fn free(&mut self, row: u32, length: u32) {
        self.free.entry(length).or_default().push(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_content_has_one_row_until_its_last_user_goes() {
        let mut pool = Pool::new(6);
        assert_eq!(pool.get(&"a", 2), Some(Got::New(1)));
        assert_eq!(pool.get(&"a", 2), Some(Got::Old(1)));
        assert_eq!(pool.get(&"b", 3), Some(Got::New(3)));
        assert_eq!(pool.get(&"c", 1), None);
        assert_eq!(pool.put(1), None);
        assert_eq!(pool.put(1), Some((1, 2)));
        // Not free yet: a reader may still use it.
        assert_eq!(pool.get(&"d", 2), None);
        pool.free(1, 2);
        assert_eq!(pool.get(&"d", 2), Some(Got::New(1)));
    }
}
