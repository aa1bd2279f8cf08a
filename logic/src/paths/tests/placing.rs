//! Placements (P10) from the measurements of workers, and the work that workers then do with them: figures 19 and 20.

use super::*;
use crate::{
    cores::{Core, CoreId},
    paths::place::{Load, place},
    sim::worker::{Arrivals, Price},
};
use std::collections::BTreeMap;

/// Cycles and bytes of memory of a packet.
const IPSEC: [u64; 2] = [12_000, 1024];
const CRC: [u64; 2] = [2500, 2048];
/// Two of each.
const PATHS: [[u64; 2]; 4] = [IPSEC, CRC, IPSEC, CRC];
const CYCLES: u64 = HZ / 10;

/// The source of one of those paths. It has packets for this part of a core, or always.
fn source(id: usize, [cycles, memory]: [u64; 2], part: Option<f64>) -> Source {
    let arrivals = part.map_or(Arrivals::Always, |part| Arrivals::Even((cycles as f64 / part) as u64));
    let prices = vec![Price { memory: Some(memory), ..Price::even(cycles) }];
    Source { prices, arrivals, ..Source::new(path(id as PathId, 1), 0) }
}

/// Measures each path on a worker of its own. Returns where each is placed if it wants this part of a core.
fn placed(part: f64, cores: &[Core]) -> [CoreId; 4] {
    let load = |id: usize| {
        let (outcomes, scheduler) =
            SAMPLED.run(scheduler(), &[source(id, PATHS[id], Some(part))], CYCLES).unwrap();
        let cost = scheduler.accounts().next().unwrap().cost;
        let pps = outcomes[0].packets * (HZ / CYCLES);
        Load { id: id as PathId, pps, cost, weight: 1.0, node: None, allowed: None }
    };
    let placement = place(&[load(0), load(1), load(2), load(3)], cores, HZ, &BTreeMap::new());
    [0, 1, 2, 3].map(|id| placement.core[&id])
}

fn core(id: CoreId, physical: u16) -> Core {
    Core { id, node: 0, physical, workloads: 0, other: 0.0 }
}

/// Bytes of memory that both cores take. The first two paths have packets for this part of a core, or always.
fn memory(placed: [CoreId; 4], parts: [Option<f64>; 4]) -> f64 {
    let of_core = |core| {
        let there = (0..4).filter(|id| placed[*id] == core);
        let sources: Vec<Source> = there.map(|id| source(id, PATHS[id], parts[id])).collect();
        outcomes(&SAMPLED, &sources, CYCLES).iter().map(|outcome| outcome.memory).sum::<u64>()
    };
    (of_core(0) + of_core(1)) as f64
}

/// Fig. 19: if similar paths share a core, it takes the same memory whichever of them has work (principle 1).
#[test]
fn a_placement_keeps_the_memory_use_of_cores() {
    let alike = placed(0.42, &[core(0, 0), core(1, 1)]);
    assert_eq!((alike[0], alike[1]), (alike[2], alike[3]));
    assert_ne!(alike[0], alike[1]);
    let unlike = [0, 0, 1, 1];
    let all = [None; 4];
    // One of each kind has work for only a fifth of a core, and the others take the rest.
    let few = [Some(0.2), None, None, Some(0.2)];
    let change = |placed| memory(placed, few) / memory(placed, all);
    assert!((change(alike) - 1.0).abs() < 0.03, "{}", change(alike));
    let few = [Some(0.2), None, Some(0.2), None];
    let change = memory(unlike, few) / memory(unlike, all);
    assert!(change > 1.3, "{change}");
}

/// Fig. 20 (principle 2): siblings get different paths, so that one computes while the other waits for memory.
#[test]
fn a_placement_gives_siblings_unlike_paths() {
    // The siblings are 0, 2 and 1, 3.
    let placed = placed(0.8, &[core(0, 0), core(1, 1), core(2, 0), core(3, 1)]);
    for id in 0..4 {
        let sibling = (0..4).find(|other| placed[*other] == (placed[id] + 2) % 4);
        let sibling = sibling.unwrap_or_else(|| panic!("each has a core of its own: {placed:?}"));
        assert_ne!(PATHS[id], PATHS[sibling], "{placed:?}");
    }
}
