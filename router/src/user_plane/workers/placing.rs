//! Decides which core each path goes to, by recent measurements (P10).
//!
//! Other work on a core may follow a path, for example kernel threads that receive what the path sends. Then the path is no
//! better off elsewhere, and would move back and forth. So a path stays on the core that it came to, for longer each time
//! that it leaves soon after.

use super::{
    clock::Clock,
    held::HeldPath,
    plan::{PathPlan, WorkersPlan},
};
use logic::{
    cores::CoreId,
    paths::{
        Cost, PathId, Used,
        place::{Load, Placement, place},
    },
};
use std::collections::BTreeMap;

/// Assumed for paths that were not measured: the cycles of a packet, and the part of all cores that they want together (one
/// in this many).
const UNKNOWN_CYCLES: u64 = 1000;
const UNKNOWN_PART: u64 = 2;
/// Rates are measured over at least this time.
const LEAST_NS: u64 = 1_000_000_000;
/// The weight of a new rate; that of all earlier ones is the rest.
const NEW: f64 = 0.5;

/// A path that was moved stays this long at least. The time doubles, up to the second value, if it moves again soon.
const SHORTEST_STAY_NS: u64 = 4_000_000_000;
const LONGEST_STAY_NS: u64 = 300_000_000_000;

/// What is known of paths.
#[derive(Default)]
pub(super) struct Placing {
    known: BTreeMap<PathId, Known>,
    /// Stays of paths that were moved.
    stays: BTreeMap<PathId, Stay>,
}

/// The time that a path stays on the core that it came to.
#[derive(Clone, Copy)]
struct Stay {
    until_ns: u64,
    long_ns: u64,
}

impl Stay {
    /// The stay of a path that is moved now, after the stay `before`.
    fn next(before: Option<&Stay>, at_ns: u64) -> Stay {
        let soon = before.filter(|before| at_ns < before.until_ns.saturating_add(before.long_ns));
        let long_ns = soon.map_or(SHORTEST_STAY_NS, |before| (2 * before.long_ns).min(LONGEST_STAY_NS));
        Stay { until_ns: at_ns.saturating_add(long_ns), long_ns }
    }
}

#[derive(Clone, Copy)]
struct Known {
    /// When the counts below were read, by the clock.
    at_ns: u64,
    packets: u64,
    cycles: u64,
    /// In a second, smoothed.
    rates: Option<Rates>,
    cost: Cost,
}

#[derive(Clone, Copy)]
struct Rates {
    pps: f64,
    /// The fraction of a core.
    share: f64,
}

impl Rates {
    fn smoothed(self, before: Option<Rates>) -> Rates {
        let Some(before) = before else { return self };
        let mix = |new: f64, old: f64| NEW * new + (1.0 - NEW) * old;
        Rates { pps: mix(self.pps, before.pps), share: mix(self.share, before.share) }
    }
}

impl Placing {
    /// Takes in the present counts of paths.
    pub fn take_in(&mut self, paths: &BTreeMap<PathId, HeldPath>, clock: Clock) {
        self.take_in_at(clock.ns(clock.cycles()), clock.hz(), paths.iter().map(|(id, path)| (*id, path)));
    }

    fn take_in_at<'a>(
        &mut self,
        at_ns: u64,
        hz: u64,
        paths: impl Iterator<Item = (PathId, &'a HeldPath)> + Clone,
    ) {
        self.known.retain(|id, _| paths.clone().any(|(path, _)| path == *id));
        for (id, path) in paths {
            let HeldPath { packets, cycles, cost, .. } = *path;
            let now = Known { at_ns, packets, cycles, rates: None, cost };
            let before = self.known.entry(id).or_insert(now);
            let passed_ns = at_ns.saturating_sub(before.at_ns);
            if passed_ns < LEAST_NS {
                continue;
            }
            let seconds = passed_ns as f64 / 1e9;
            let rates = Rates {
                pps: packets.saturating_sub(before.packets) as f64 / seconds,
                share: cycles.saturating_sub(before.cycles) as f64 / (seconds * hz as f64),
            };
            *before = Known { rates: Some(rates.smoothed(before.rates)), ..now };
        }
    }

    /// The path's recent fraction of a core's cycles.
    pub fn share(&self, path: PathId) -> f64 {
        self.known.get(&path).and_then(|known| known.rates).map_or(0.0, |rates| rates.share)
    }

    /// Decides where paths will be that are on these cores `now`.
    pub fn place(
        &mut self,
        paths: &BTreeMap<PathId, &PathPlan>,
        plan: &WorkersPlan,
        clock: Clock,
        now: &BTreeMap<PathId, CoreId>,
    ) -> Placement {
        self.place_at(clock.ns(clock.cycles()), clock.hz(), paths, plan, now)
    }

    fn place_at(
        &mut self,
        at_ns: u64,
        hz: u64,
        paths: &BTreeMap<PathId, &PathPlan>,
        plan: &WorkersPlan,
        now: &BTreeMap<PathId, CoreId>,
    ) -> Placement {
        self.stays.retain(|id, _| paths.contains_key(id));
        // A path whose worker ends has no core now.
        let now: BTreeMap<PathId, CoreId> = now
            .iter()
            .filter(|(path, core)| {
                paths.contains_key(path) && plan.cores.iter().any(|wanted| wanted.id == **core)
            })
            .map(|(path, core)| (*path, *core))
            .collect();
        let mut unknown = Cost::default();
        unknown.take_in(&Used::cycles(UNKNOWN_CYCLES), 1, 0);
        let part = hz / UNKNOWN_CYCLES * plan.cores.len() as u64 / UNKNOWN_PART / paths.len().max(1) as u64;
        let load = |(id, path): (&PathId, &&PathPlan)| {
            let known = self.known.get(id).and_then(|known| Some((known.rates?.pps as u64, known.cost)));
            let (pps, cost) = known.filter(|(_, cost)| *cost != Cost::default()).unwrap_or((part, unknown));
            let of_router: u32 = paths
                .values()
                .filter(|other| other.router == path.router)
                .map(|other| u32::from(other.weight))
                .sum();
            let router = plan.routers.get(&path.router).copied().unwrap_or(1);
            let weight =
                f64::from(path.weight.max(1)) * f64::from(router.max(1)) / f64::from(of_router.max(1));
            let stays = self.stays.get(id).is_some_and(|stay| at_ns < stay.until_ns);
            let here = now.get(id).filter(|core| stays && path.may_be_on(**core));
            let allowed = here.map_or_else(|| path.cores.clone(), |core| Some([*core].into()));
            Load { id: *id, pps, cost, weight, node: None, allowed }
        };
        let loads: Vec<Load> = paths.iter().map(load).collect();
        let placement = place(&loads, &plan.cores, hz, &now);
        for (id, core) in &placement.core {
            // A path that may no longer be on its core leaves for another reason.
            if now.get(id).is_some_and(|before| before != core && paths[id].may_be_on(*before)) {
                self.stays.insert(*id, Stay::next(self.stays.get(id), at_ns));
            }
        }
        placement
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user_plane::workers::{exchange::PortNames, held::Made, plan::Shared};
    use logic::{
        cores::Core,
        memory::{Capacity, HeapMemory},
    };
    use std::sync::Arc;

    const NOTHING: Capacity = Capacity {
        fib_blocks: 1,
        fib_tails: 1,
        nexthops: 1,
        neighbour_buckets: 1,
        interface_buckets: 1,
        routers: 1,
    };

    fn held(packets: u64, cycles: u64) -> HeldPath {
        let plan = PathPlan {
            name: "a".into(),
            router: 0,
            weight: 1,
            chain: Vec::new(),
            ports: Default::default(),
            ring: 64,
            cores: None,
        };
        let memory = Arc::new(HeapMemory::new(NOTHING));
        let made = Made {
            names: PortNames::default(),
            tables: Arc::new(Shared { memory, sas: Arc::default(), captures: Default::default() }),
        };
        HeldPath {
            core: 1,
            plan,
            made,
            is_stopped: false,
            packets,
            cycles,
            taken: Used::default(),
            cost: Cost::default(),
        }
    }

    #[test]
    fn rates_are_per_second_and_smoothed() {
        const SECOND: u64 = 1_000_000_000;
        let mut placing = Placing::default();
        let mut told = |at_ns, packets, cycles| {
            let paths = BTreeMap::from([(3, held(packets, cycles))]);
            placing.take_in_at(at_ns, 1_000_000, paths.iter().map(|(id, path)| (*id, path)));
            placing.known.get(&3).and_then(|known| known.rates).map(|rates| (rates.pps, rates.share))
        };
        assert_eq!(told(0, 0, 0), None);
        assert_eq!(told(SECOND / 2, 500_000, 500_000), None, "after less than a second, nothing is known");
        assert_eq!(told(2 * SECOND, 2000, 1_000_000), Some((1000.0, 0.5)));
        assert_eq!(told(2 * SECOND + 1, 9000, 9_000_000), Some((1000.0, 0.5)), "too soon, nothing changes");
        assert_eq!(told(4 * SECOND, 2000, 1_000_000), Some((500.0, 0.25)), "a quiet time halves the rates");
    }

    const SECOND: u64 = 1_000_000_000;

    /// Places two paths that are on these cores `now`. Other work takes these parts of cores 0 and 1; path 1 takes half of a
    /// core, path 2 a tenth.
    fn placed(
        placing: &mut Placing,
        second: u64,
        others: [f64; 2],
        now: &BTreeMap<PathId, CoreId>,
    ) -> BTreeMap<PathId, CoreId> {
        let mut paths = BTreeMap::from([(1, held(0, 0)), (2, held(0, 0))]);
        for (path, packets) in [(1, second * 500), (2, second * 100)] {
            let path = paths.get_mut(&path).unwrap();
            (path.packets, path.cycles) = (packets, packets * 1000);
            path.cost.take_in(&Used::cycles(1000), 1, 0);
        }
        placing.take_in_at(second * SECOND, 1_000_000, paths.iter().map(|(id, path)| (*id, path)));
        let plans: BTreeMap<PathId, &PathPlan> = paths.iter().map(|(id, path)| (*id, &path.plan)).collect();
        let core =
            |id: CoreId| Core { id, node: 0, physical: id, workloads: 0, other: others[usize::from(id)] };
        let plan = WorkersPlan { cores: vec![core(0), core(1)], ..WorkersPlan::default() };
        placing.place_at(second * SECOND, 1_000_000, &plans, &plan, now).core
    }

    #[test]
    fn a_path_leaves_a_core_that_others_fill_and_does_not_move_back_and_forth() {
        let mut placing = Placing::default();
        let mut now = BTreeMap::from([(1, 0), (2, 1)]);
        for second in 1..10 {
            now = placed(&mut placing, second, [0.2, 0.2], &now);
            assert_eq!(now, [(1, 0), (2, 1)].into(), "there is room");
        }
        now = placed(&mut placing, 10, [0.8, 0.2], &now);
        assert_eq!(now[&1], 1);
        // The other work follows the path each time, so its core is always the worse one.
        let mut moves = Vec::new();
        for second in 11..=3600 {
            let others = if now[&1] == 0 { [0.8, 0.0] } else { [0.0, 0.8] };
            let next = placed(&mut placing, second, others, &now);
            moves.extend((next[&1] != now[&1]).then_some(second));
            now = next;
        }
        let after: Vec<u64> = moves.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(after[..5], [8, 16, 32, 64, 128], "{moves:?}");
        assert!(after[6..].iter().all(|seconds| *seconds == 300), "{moves:?}");
        // After a long time without a move, the path may leave at once.
        let (here, there) = (now[&1], 1 - now[&1]);
        let room = placed(&mut placing, 5000, [0.2, 0.2], &now);
        assert_eq!(room[&1], here);
        let fills = if here == 0 { [0.8, 0.0] } else { [0.0, 0.8] };
        now = placed(&mut placing, 5001, fills, &now);
        assert_eq!(now[&1], there);
        let back = if there == 0 { [0.8, 0.0] } else { [0.0, 0.8] };
        assert_eq!(placed(&mut placing, 5004, back, &now)[&1], there);
        assert_eq!(placed(&mut placing, 5005, back, &now)[&1], here);
    }

    #[test]
    fn a_path_that_was_moved_leaves_a_core_that_it_may_not_have_at_once() {
        let mut placing = Placing::default();
        let now = placed(&mut placing, 1, [0.8, 0.0], &[(1, 0), (2, 1)].into());
        let now = placed(&mut placing, 2, [0.8, 0.0], &now);
        assert_eq!(now[&1], 1);
        let mut path = held(0, 0);
        path.plan.cores = Some([0].into());
        let core = |id: CoreId| Core { id, node: 0, physical: id, workloads: 0, other: 0.0 };
        let plan = WorkersPlan { cores: vec![core(0), core(1)], ..WorkersPlan::default() };
        let placement = placing.place_at(3 * SECOND, 1_000_000, &[(1, &path.plan)].into(), &plan, &now);
        assert_eq!(placement.core, [(1, 0)].into());
        // The core of the path is gone.
        let plan = WorkersPlan { cores: vec![core(1)], ..WorkersPlan::default() };
        path.plan.cores = None;
        let placement =
            placing.place_at(4 * SECOND, 1_000_000, &[(1, &path.plan)].into(), &plan, &[(1, 0)].into());
        assert_eq!(placement.core, [(1, 1)].into());
    }
}
