//! Decides which sleeping paths are looked at. A path is looked at each time at first, then every second time, every fourth
//! and so on, as long as it has no packets. So many quiet paths cost a busy one little, and new packets of a path that had
//! some recently are found at once.

use super::inner::{bit, bits};
use logic::paths::PathId;

/// Paths of the last level are looked at every 32nd time.
const LEVELS: usize = 6;

/// Bit p of level n: path p sleeps, and is looked at every 2^n times.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    levels: [u64; LEVELS],
    looks: u32,
}

impl Sleepers {
    pub fn add(&mut self, path: PathId) {
        self.remove(path);
        self.levels[0] |= bit(path);
    }

    pub fn remove(&mut self, path: PathId) {
        self.levels.iter_mut().for_each(|level| *level &= !bit(path));
    }

    pub fn all(&self) -> u64 {
        self.levels.iter().fold(0, |all, level| all | level)
    }

    /// The paths whose turn it is this time. They are looked at half as often from now on, unless they are removed.
    pub fn next(&mut self) -> impl Iterator<Item = PathId> + use<> {
        self.looks = self.looks.wrapping_add(1);
        let deepest = (self.looks.trailing_zeros() as usize).min(LEVELS - 1);
        let mut due = 0;
        for level in (0..=deepest).rev() {
            let these = std::mem::take(&mut self.levels[level]);
            due |= these;
            self.levels[(level + 1).min(LEVELS - 1)] |= these;
        }
        bits(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_packets_is_looked_at_less_and_less_often() {
        let mut sleepers = Sleepers::default();
        sleepers.add(5);
        let looked = |sleepers: &mut Sleepers, path| {
            (1..=200).filter(|_| sleepers.next().any(|due| due == path)).collect::<Vec<u32>>()
        };
        let of_5 = looked(&mut sleepers, 5);
        assert_eq!(of_5[..6], [1, 2, 4, 8, 16, 32]);
        assert!(of_5[6..].windows(2).all(|two| two[1] - two[0] == 32), "{of_5:?}");
        assert_eq!(sleepers.all(), 1 << 5);
        sleepers.add(63);
        assert_eq!(sleepers.next().collect::<Vec<_>>(), [63], "the path that fell asleep now");
        sleepers.add(5);
        assert_eq!(sleepers.next().collect::<Vec<_>>(), [5, 63]);
        sleepers.remove(5);
        sleepers.remove(63);
        assert_eq!((sleepers.all(), looked(&mut sleepers, 5).len()), (0, 0));
    }
}
