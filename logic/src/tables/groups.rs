//! ECMP groups: a block of the forwarding table that holds the members' thresholds, followed by their next hops.

use super::nexthops::{Key, MAP_FULL};
use crate::{fib::Slot, memory::words::FIB_BLOCK, multipath::upper_bounds};
use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicU32, Ordering::Acquire},
};

/// The most members of a group: half a block.
pub(crate) const GROUP_MEMBERS: usize = FIB_BLOCK / 2;

/// Members as next hop keys with weights, in the order of Linux. Groups with equal members are the same group.
pub(super) type Members = Vec<(Key, u32)>;

#[derive(Debug)]
pub(super) struct Group {
    /// Next hop ids and weights.
    pub members: Vec<(u32, u32)>,
    /// The number of routes that lead here.
    pub refs: u32,
    pub key: Members,
}

impl Group {
    /// Whether these changes of next hop ids leave a member without one.
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

/// The block of a group: thresholds in order, then next hops. Unused places repeat the last member, so each hash finds
/// one.
pub(super) fn layout(members: &[(u32, u32)]) -> [Slot; FIB_BLOCK] {
    let weights: Vec<u32> = members.iter().map(|(_, weight)| *weight).collect();
    let bounds = upper_bounds(&weights);
    let last = members.last().map_or(MAP_FULL, |(id, _)| *id);
    std::array::from_fn(|at| match at.checked_sub(GROUP_MEMBERS) {
        None => Slot(bounds.get(at).copied().unwrap_or(u32::MAX >> 1)),
        Some(at) => Slot::nexthop(members.get(at).map_or(last, |(id, _)| *id)),
    })
}

/// The next hop that a group chooses for a hash of 31 bits.
pub(crate) fn choose(block: &[AtomicU32], hash: u32) -> Slot {
    let Some((bounds, members)) = block.get(..FIB_BLOCK).map(|b| b.split_at(GROUP_MEMBERS)) else {
        return Slot::NO_ROUTE;
    };
    let at = bounds.partition_point(|bound| bound.load(Acquire) < hash);
    members.get(at).map_or(Slot::NO_ROUTE, |slot| Slot(slot.load(Acquire)))
}

/// All next hops of a group, and the share of hashes that each gets, in parts of 256.
pub(super) fn members(block: &[AtomicU32]) -> Vec<(Slot, f64)> {
    let Some((bounds, members)) = block.get(..FIB_BLOCK).map(|b| b.split_at(GROUP_MEMBERS)) else {
        return Vec::new();
    };
    let mut before = 0;
    let share = |(bound, slot): (&AtomicU32, &AtomicU32)| {
        let end = bound.load(Acquire).saturating_add(1);
        let width = end.saturating_sub(std::mem::replace(&mut before, end));
        (width > 0).then(|| (Slot(slot.load(Acquire)), f64::from(width) / f64::from(1 << 23)))
    };
    bounds.iter().zip(members).filter_map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stored(members: &[(u32, u32)]) -> Vec<AtomicU32> {
        layout(members).iter().map(|slot| AtomicU32::new(slot.0)).collect()
    }

    proptest! {
        #[test]
        fn the_first_member_whose_bound_is_not_below_the_hash_is_chosen(
            weights in prop::collection::vec(1u32..=65535, 1..=GROUP_MEMBERS),
            hashes in prop::collection::vec(0u32..=u32::MAX >> 1, 64),
        ) {
            let members: Vec<(u32, u32)> = (1..).zip(weights.iter().copied()).collect();
            let (bounds, stored) = (upper_bounds(&weights), stored(&members));
            let edges = bounds.iter().flat_map(|bound| [*bound, bound.saturating_sub(1), (bound + 1).min(u32::MAX >> 1)]);
            for hash in edges.chain(hashes) {
                let first = bounds.iter().position(|bound| hash <= *bound).unwrap();
                prop_assert_eq!(choose(&stored, hash), Slot::nexthop(members[first].0));
            }
        }

        #[test]
        fn shares_are_those_of_the_weights(weights in prop::collection::vec(1u32..=65535, 1..=GROUP_MEMBERS)) {
            let stored: Vec<(u32, u32)> = (1..).zip(weights.iter().copied()).collect();
            let shares = members(&self::stored(&stored));
            let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
            for (slot, share) in &shares {
                let exact = f64::from(weights[slot.index() as usize - 1]) * 256.0 / total;
                prop_assert!((share - exact).abs() < 0.000_001, "{exact} {share}");
            }
            prop_assert_eq!(shares.iter().map(|(_, share)| share).sum::<f64>(), 256.0);
        }
    }
}
