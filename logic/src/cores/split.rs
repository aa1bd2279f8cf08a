//! The flows of a split queue, divided by their hash into buckets, each on one core.

use super::CoreId;

/// Buckets of a queue. With up to 16 cores, none has a quarter more than another.
pub const BUCKETS: usize = 64;

/// The cores of a queue's buckets, as evenly as possible on these cores, with as few changes as possible, because flows
/// that change their core are late for a moment. `before`: their cores until now, or any others. Without cores, nothing
/// changes.
pub fn buckets(before: &[CoreId; BUCKETS], cores: &[CoreId]) -> [CoreId; BUCKETS] {
    let count = |core: CoreId| before.iter().filter(|it| **it == core).count();
    // The cores with the most buckets now get the extra ones.
    let mut order: Vec<CoreId> = cores.to_vec();
    order.sort_by_key(|core| std::cmp::Reverse(count(*core)));
    let Some(least) = BUCKETS.checked_div(cores.len()) else { return *before };
    let extra = BUCKETS % cores.len();
    let quotas: Vec<(CoreId, usize)> =
        order.into_iter().enumerate().map(|(at, core)| (core, least + usize::from(at < extra))).collect();
    by_quota(before, &quotas)
}

/// The same, with a given number of buckets for each core. The numbers add up to 64.
pub(super) fn by_quota(before: &[CoreId; BUCKETS], quotas: &[(CoreId, usize)]) -> [CoreId; BUCKETS] {
    let mut left: Vec<(CoreId, usize)> = quotas.to_vec();
    let mut after = *before;
    let mut loose = Vec::new();
    for (bucket, core) in before.iter().enumerate() {
        match left.iter_mut().find(|(one, left)| one == core && *left > 0) {
            Some((_, left)) => *left -= 1,
            None => loose.push(bucket),
        }
    }
    for bucket in loose {
        let Some((core, left)) = left.iter_mut().max_by_key(|(_, left)| *left).filter(|(_, left)| *left > 0)
        else {
            break;
        };
        (after[bucket], *left) = (*core, *left - 1);
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn half_of_the_buckets_go_to_a_second_core_and_come_back() {
        let all = buckets(&[7; BUCKETS], &[3]);
        assert_eq!(all, [3; BUCKETS]);
        let two = buckets(&all, &[3, 5]);
        let changed = |a: &[CoreId], b: &[CoreId]| a.iter().zip(b).filter(|(a, b)| a != b).count();
        assert_eq!(changed(&all, &two), 32);
        let three = buckets(&two, &[3, 5, 9]);
        assert_eq!(changed(&two, &three), 21);
        assert_eq!(changed(&three, &buckets(&three, &[3])), 64 - three.iter().filter(|c| **c == 3).count());
        assert_eq!(buckets(&three, &[]), three);
    }

    proptest! {
        #[test]
        fn shares_are_even_and_no_more_moves_than_needs(
            lists in prop::collection::vec(prop::collection::btree_set(0..100_u16, 1..80), 1..6),
        ) {
            let mut before = [200; BUCKETS];
            for cores in lists {
                let list: Vec<CoreId> = cores.iter().copied().collect();
                let after = buckets(&before, &list);
                let count = |core: CoreId, all: &[CoreId]| all.iter().filter(|&&c| c == core).count();
                let used: BTreeSet<CoreId> = after.iter().copied().collect();
                prop_assert!(used.is_subset(&cores));
                let counts: Vec<usize> = list.iter().map(|&core| count(core, &after)).collect();
                prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
                let stayed = before.iter().zip(&after).filter(|(a, b)| a == b).count();
                // The buckets that each core had and may keep.
                let least: usize = list.iter().map(|&core| count(core, &before).min(BUCKETS / list.len())).sum();
                prop_assert!(stayed >= least);
                prop_assert_eq!(buckets(&after, &list), after);
                before = after;
            }
        }
    }
}
