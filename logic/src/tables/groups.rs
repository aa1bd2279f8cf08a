//! ECMP groups: 256 slots shared out by weight.

use super::nexthops::{Key, MAP_FULL};
use std::collections::{BTreeMap, HashMap};

/// Members as next hop keys with weights; what makes two groups the same.
pub(super) type Members = Vec<(Key, u32)>;

#[derive(Debug)]
pub(super) struct Group {
    /// Next hop ids and weights.
    pub members: Vec<(u32, u32)>,
    /// Routes that lead here.
    pub refs: u32,
    pub key: Members,
}

impl Group {
    /// Would these changes of next hop ids leave a member without one?
    pub(super) fn loses(&self, changes: &BTreeMap<u32, u32>) -> bool {
        self.members.iter().any(|(id, _)| changes.get(id) == Some(&MAP_FULL))
    }
}

/// All groups, by block.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub by_block: HashMap<u32, Group>,
    pub by_key: HashMap<Members, u32>,
}

/// How many of 256 slots each of at most 256 members gets: by largest remainder, at least one each.
pub(super) fn shares(weights: &[u32]) -> Vec<usize> {
    let total: u64 = weights.iter().map(|w| u64::from(*w)).sum::<u64>().max(1);
    let exact = |i: usize| u64::from(weights[i]) * 256;
    let mut shares: Vec<usize> = (0..weights.len()).map(|i| ((exact(i) / total) as usize).max(1)).collect();
    // Over (positive) or under its exact share, in units of 1 / total.
    let excess = |i: usize, share: usize| share as i64 * total as i64 - exact(i) as i64;
    loop {
        let sum: usize = shares.iter().sum();
        let change = match sum.cmp(&256) {
            std::cmp::Ordering::Equal => return shares,
            std::cmp::Ordering::Less => {
                (0..shares.len()).min_by_key(|i| excess(*i, shares[*i])).map(|i| (i, shares[i] + 1))
            }
            std::cmp::Ordering::Greater => (0..shares.len())
                .filter(|i| shares[*i] > 1)
                .max_by_key(|i| excess(*i, shares[*i]))
                .map(|i| (i, shares[i] - 1)),
        };
        match change {
            Some((i, share)) => shares[i] = share,
            None => return shares,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_shares() {
        assert_eq!(shares(&[1, 1]), [128, 128]);
        assert_eq!(shares(&[1, 2]), [85, 171]);
        assert_eq!(shares(&[256, 1]), [255, 1]);
        assert_eq!(shares(&[256; 256]), [1; 256]);
    }

    proptest! {
        #[test]
        fn all_slots_are_shared_out(weights in prop::collection::vec(1u32..=256, 1..=256)) {
            let shares = shares(&weights);
            prop_assert_eq!(shares.iter().sum::<usize>(), 256);
            prop_assert!(shares.iter().all(|s| *s > 0));
            let total: u32 = weights.iter().sum();
            if weights.iter().all(|w| w * 256 >= total) {
                for (w, s) in weights.iter().zip(&shares) {
                    let exact = f64::from(*w) * 256.0 / f64::from(total);
                    prop_assert!((*s as f64 - exact).abs() < 1.0, "{w} of {total} got {s}");
                }
            }
        }
    }
}
