//! Which core each path goes to, by what was measured of late (P10).

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

/// Of a path that was not measured: what a packet takes, and which part of all cores paths want together.
const UNKNOWN_CYCLES: u64 = 1000;
const UNKNOWN_PART: u64 = 2;
/// Counts are compared with those of so long ago at least.
const LEAST_NS: u64 = 1_000_000_000;
/// What is new counts so much beside all that was before.
const NEW: f64 = 0.5;

/// What is known of paths.
#[derive(Default)]
pub(super) struct Placing {
    known: BTreeMap<PathId, Known>,
}

#[derive(Clone, Copy)]
struct Known {
    /// Then, by the clock,
    at_ns: u64,
    /// it had these.
    packets: u64,
    cycles: u64,
    /// Since: a second's, smoothed.
    rates: Option<Rates>,
    cost: Cost,
}

#[derive(Clone, Copy)]
struct Rates {
    pps: f64,
    /// Of a core.
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
    /// How paths stand now.
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

    /// Of a core's cycles.
    pub fn share(&self, path: PathId) -> f64 {
        self.known.get(&path).and_then(|known| known.rates).map_or(0.0, |rates| rates.share)
    }

    pub fn place(
        &self,
        paths: &BTreeMap<PathId, &PathPlan>,
        plan: &WorkersPlan,
        hz: u64,
        now: &BTreeMap<PathId, CoreId>,
    ) -> Placement {
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
            Load { id: *id, pps, cost, weight, node: None, allowed: path.cores.clone() }
        };
        let loads: Vec<Load> = paths.iter().map(load).collect();
        // Of workers that end nothing is kept.
        let now = now.iter().filter(|(path, core)| {
            paths.contains_key(path) && plan.cores.iter().any(|wanted| wanted.id == **core)
        });
        let now = now.map(|(path, core)| (*path, *core)).collect();
        place(&loads, &plan.cores, hz, &now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::{exchange::PortNames, held::Made, plan::Shared};
    use logic::memory::{Capacity, HeapMemory};
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
    fn rates_are_of_a_second_and_smoothed() {
        const SECOND: u64 = 1_000_000_000;
        let mut placing = Placing::default();
        let mut told = |at_ns, packets, cycles| {
            let paths = BTreeMap::from([(3, held(packets, cycles))]);
            placing.take_in_at(at_ns, 1_000_000, paths.iter().map(|(id, path)| (*id, path)));
            placing.known.get(&3).and_then(|known| known.rates).map(|rates| (rates.pps, rates.share))
        };
        assert_eq!(told(0, 0, 0), None);
        assert_eq!(told(SECOND / 2, 500_000, 500_000), None, "asked again too soon, nothing is known");
        assert_eq!(told(2 * SECOND, 2000, 1_000_000), Some((1000.0, 0.5)));
        assert_eq!(told(2 * SECOND + 1, 9000, 9_000_000), Some((1000.0, 0.5)), "nor changed");
        assert_eq!(told(4 * SECOND, 2000, 1_000_000), Some((500.0, 0.25)), "a quiet time halves it");
    }
}
