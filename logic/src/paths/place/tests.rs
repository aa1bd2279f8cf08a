//! Placements by hand, and compared with all possible ones.

use super::*;
use crate::{fib::synthetic::Random, paths::Used};
use proptest::prelude::*;

const HZ: u64 = 1_000_000_000;

/// A path that takes this many millionths of a core, and this much memory for each 1000 cycles.
fn path(id: PathId, load: u64, memory: u64) -> Load {
    let mut cost = Cost::default();
    cost.take_in(&Used::cycles(1000).with(Resource::Memory, memory), 1, 0);
    Load { id, pps: load, cost, weight: 1.0, node: None, allowed: None }
}

fn core(id: CoreId, physical: u16) -> Core {
    Core { id, node: 0, physical, workloads: 0, other: 0.0 }
}

fn placed(paths: &[Load], cores: &[Core]) -> Vec<CoreId> {
    let placement = place(paths, cores, HZ, &BTreeMap::new());
    assert_eq!(placement.nowhere, []);
    paths.iter().map(|path| placement.core[&path.id]).collect()
}

#[test]
fn alike_paths_share_a_core() {
    // Fig. 19: two of IPsec, two of CRC, each half of a core.
    let paths =
        [path(1, 420_000, 100), path(2, 420_000, 2000), path(3, 420_000, 110), path(4, 420_000, 1900)];
    let cores = placed(&paths, &[core(0, 0), core(1, 1)]);
    assert_eq!((cores[0], cores[1]), (cores[2], cores[3]));
    assert_ne!(cores[0], cores[1]);
}

#[test]
fn siblings_get_different_paths() {
    // Fig. 20: two of IPsec, two of RTR, four threads of two cores. The siblings are 0, 2 and 1, 3, as Linux numbers
    // them.
    let paths = [path(1, 800_000, 100), path(2, 800_000, 100), path(3, 800_000, 900), path(4, 800_000, 900)];
    let cores = placed(&paths, &[core(0, 0), core(1, 1), core(2, 0), core(3, 1)]);
    assert_eq!(cores.iter().collect::<BTreeSet<_>>().len(), 4);
    assert_ne!(cores[0] % 2, cores[1] % 2);
    assert_ne!(cores[2] % 2, cores[3] % 2);
    // Eight paths of three kinds: similar ones together, siblings as different as possible.
    let eight: Vec<Load> =
        (0..8).map(|id| path(id, 400_000, [100, 900, 105, 890][usize::from(id) % 4])).collect();
    let cores = placed(&eight, &[core(0, 0), core(1, 1), core(2, 0), core(3, 1)]);
    for thread in 0..4 {
        let kinds: BTreeSet<usize> = (0..8).filter(|&id| cores[id] == thread).map(|id| id % 2).collect();
        let beside: BTreeSet<usize> =
            (0..8).filter(|&id| cores[id] == (thread + 2) % 4).map(|id| id % 2).collect();
        assert!(kinds.len() == 1 && beside.len() == 1 && kinds != beside, "{cores:?}");
    }
}

#[test]
fn load_comes_before_likeness_and_nodes_before_it_too() {
    // 1 and 2 are alike, but too much for one core.
    let paths = [path(1, 600_000, 100), path(2, 600_000, 100), path(3, 200_000, 900)];
    let cores = placed(&paths, &[core(0, 0), core(1, 1)]);
    assert_ne!(cores[0], cores[1]);
    // A core with other work has less room.
    let busy = Core { other: 0.7, ..core(0, 0) };
    assert_eq!(placed(&[path(1, 300_000, 100)], &[busy, core(1, 1)]), [1]);
    let far = Core { node: 1, ..core(1, 1) };
    let near = |id| Load { node: Some(0), ..path(id, 400_000, 100 * u64::from(id)) };
    assert_eq!(placed(&[near(1), near(9)], &[core(0, 0), far]), [0, 0]);
}

#[test]
fn without_counters_load_is_spread() {
    let cost = |path: Load| {
        let mut cost = Cost::default();
        cost.take_in(&Used::cycles(1000), 1, 0);
        Load { cost, ..path }
    };
    let paths: Vec<Load> = (0..4).map(|id| cost(path(id, 100_000 * u64::from(id + 1), 0))).collect();
    let cores = placed(&paths, &[core(4, 0), core(7, 1)]);
    assert_eq!((cores[0], cores[1]), (cores[3], cores[2]));
    assert_ne!(cores[0], cores[1]);
}

#[test]
fn a_path_stays_unless_a_move_is_worth_it() {
    let cores = [core(0, 0), core(1, 1)];
    let now = |places: &[(PathId, CoreId)]| places.iter().copied().collect::<BTreeMap<_, _>>();
    let paths = [path(1, 300_000, 100), path(2, 300_000, 100), path(3, 300_000, 100)];
    let all_on_one = now(&[(1, 0), (2, 1), (3, 1)]);
    assert_eq!(place(&paths, &cores, HZ, &all_on_one).core, all_on_one);
    // Too much for a core.
    let overloaded = now(&[(1, 1), (2, 1), (3, 1)]);
    assert_ne!(place(&paths, &cores, HZ, &overloaded).core, overloaded);
    // Different ones together, although that is not necessary.
    let paths = [path(1, 400_000, 100), path(2, 400_000, 900), path(3, 400_000, 100), path(4, 400_000, 900)];
    let mixed = now(&[(1, 0), (2, 0), (3, 1), (4, 1)]);
    let better = place(&paths, &cores, HZ, &mixed).core;
    assert_eq!((better[&1], better[&2]), (better[&3], better[&4]));
    // A new path, a path that is gone, and a core that is gone.
    let known = now(&[(1, 0), (2, 1), (3, 0), (9, 1)]);
    assert_eq!(place(&paths, &cores, HZ, &known).core, now(&[(1, 0), (2, 1), (3, 0), (4, 1)]));
    let gone = now(&[(1, 5), (2, 1), (3, 5), (4, 1)]);
    assert_eq!(place(&paths, &cores, HZ, &gone).core, now(&[(1, 0), (2, 1), (3, 0), (4, 1)]));
}

#[test]
fn paths_leave_cores_that_other_work_fills_if_that_is_worth_a_move() {
    let others =
        |zero: f64, one: f64| [Core { other: zero, ..core(0, 0) }, Core { other: one, ..core(1, 1) }];
    let paths = [path(1, 400_000, 100)];
    let on = |core: CoreId| BTreeMap::from([(1, core)]);
    let next = |cores: &[Core], now: CoreId| place(&paths, cores, HZ, &on(now)).core[&1];
    assert_eq!(next(&others(0.4, 0.0), 0), 0, "there is room");
    assert_eq!(next(&others(0.7, 0.0), 0), 1);
    assert_eq!(next(&others(0.7, 0.7), 0), 0, "nor elsewhere");
    // Both are too full, alternately one a little more.
    assert_eq!([next(&others(0.71, 0.7), 0), next(&others(0.7, 0.71), 1)], [0, 1]);
    assert_eq!([next(&others(0.73, 0.7), 0), next(&others(0.7, 0.73), 1)], [1, 0]);
}

#[test]
fn paths_without_an_allowed_core_are_reported() {
    let bound = Load { allowed: Some([7].into()), ..path(1, 100_000, 100) };
    let paths = [bound.clone(), path(2, 100_000, 100)];
    let placement = place(&paths, &[core(0, 0)], HZ, &BTreeMap::new());
    assert_eq!((placement.nowhere, placement.core), (vec![1], [(2, 0)].into()));
    assert_eq!(place(&paths, &[], HZ, &BTreeMap::new()).nowhere, [1, 2]);
    assert_eq!(placed(&[bound], &[core(0, 0), core(7, 1)]), [7]);
}

#[test]
fn a_full_machine_counts_paths_by_what_weights_leave_them() {
    // All want a core. Those with weight 3 get half of one, the others a sixth.
    let heavy = |id| Load { weight: 3.0, ..path(id, 9_000_000, 100) };
    let light = |id| path(id, 9_000_000, 100);
    let paths = [heavy(1), light(2), light(3), light(4), heavy(5), light(6), light(7), light(8)];
    let loads: Vec<f64> = items(&paths, &[core(0, 0), core(1, 1)], HZ).iter().map(|item| item.load).collect();
    for (load, expected) in loads.iter().zip([3.0, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0]) {
        assert!((load - expected / 6.0).abs() < 1e-9, "{loads:?}");
    }
    let cores = placed(&paths, &[core(0, 0), core(1, 1)]);
    let load: f64 = cores.iter().zip(&loads).filter(|(core, _)| **core == 0).map(|(_, load)| load).sum();
    assert!((load - 1.0).abs() < 1e-9, "{cores:?}");
}

/// The best score of all placements.
fn best(board: &Board<'_>, items: &[Item]) -> Score {
    let allowed: Vec<&[usize]> = items.iter().map(|item| item.allowed.as_slice()).collect();
    let combinations: usize = allowed.iter().map(|cores| cores.len()).product();
    let score = |mut number: usize| {
        let mut board = board.emptied();
        for (item, cores) in allowed.iter().enumerate() {
            board.place_at(item, cores[number % cores.len()]);
            number /= cores.len();
        }
        board.score()
    };
    (0..combinations).map(score).min().unwrap_or_default()
}

/// Up to 5 paths on up to 4 cores.
fn machine() -> impl Strategy<Value = (Vec<Load>, Vec<Core>)> {
    let load = (0u64..900_000, 0u64..1000, prop::option::of(0u16..2))
        .prop_map(|(load, memory, node)| Load { node, ..path(0, load, memory) });
    let core = (0u16..2, 0.0..0.4, 0u16..2).prop_map(|(physical, other, node)| Core {
        other,
        node,
        ..core(0, physical)
    });
    (prop::collection::vec(load, 1..6), prop::collection::vec(core, 1..5)).prop_map(|(loads, cores)| {
        let loads = (0..).zip(loads).map(|(id, load)| Load { id, ..load }).collect();
        let cores = (0..).zip(cores).map(|(id, core)| Core { id, ..core }).collect();
        (loads, cores)
    })
}

/// Counts over 1000 random machines how often the best placement is found, and how often one with as little load above
/// the mark.
#[test]
fn the_best_placement_is_found_nearly_always() {
    let mut random = Random(5);
    let mut below = |limit: u32| u64::from(random.below(limit));
    let (mut best_found, mut as_little) = (0, 0);
    for _ in 0..1000 {
        let cores: Vec<Core> = (0..=below(4) as u16)
            .map(|id| Core { other: below(40) as f64 / 100.0, ..core(id, id % 2) })
            .collect();
        let paths: Vec<Load> =
            (0..=below(5) as PathId).map(|id| path(id, below(900_000), below(1000))).collect();
        let items = items(&paths, &cores, HZ);
        let board = super::found(&cores, &items);
        let (found, best) = (board.score(), best(&board, &items));
        best_found += u32::from(found == best);
        as_little += u32::from(found.over == best.over);
    }
    assert_eq!((best_found, as_little), (929, 988));
}

proptest! {
    #![proptest_config(crate::cases(200))]

    #[test]
    fn a_placement_is_whole_allowed_and_kept((paths, cores) in machine(), only in prop::collection::btree_set(0u16..5, 0..4)) {
        let paths: Vec<Load> = paths.into_iter()
            .map(|path| Load { allowed: path.id.is_multiple_of(2).then(|| only.clone()), ..path })
            .collect();
        let placement = place(&paths, &cores, HZ, &BTreeMap::new());
        for path in &paths {
            let core = placement.core.get(&path.id);
            prop_assert_eq!(core.is_none(), placement.nowhere.contains(&path.id));
            prop_assert_eq!(core.is_none(), !cores.iter().any(|core| may(path, core)));
            prop_assert!(core.is_none_or(|core| path.allowed.as_ref().is_none_or(|allowed| allowed.contains(core))));
        }
        prop_assert_eq!(&place(&paths, &cores, HZ, &placement.core), &placement);
    }
}
