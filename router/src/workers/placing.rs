//! Which core each path goes to, by what was measured between two reports (P10).

use super::{
    clock::Clock,
    plan::{PathPlan, WorkersPlan},
    report::PathStand,
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
/// Counts of two reports say something of the time between them if that is so long.
const LEAST: u64 = 10_000_000;

/// What is known of paths.
#[derive(Default)]
pub(super) struct Placing {
    known: BTreeMap<PathId, Known>,
}

#[derive(Clone, Copy)]
struct Known {
    /// At the report before, by the clock in ns.
    at_ns: u64,
    packets: u64,
    cycles: u64,
    share: f64,
    pps: Option<u64>,
    cost: Cost,
}

impl Placing {
    /// A report: its paths are told their share.
    pub fn take_in(&mut self, paths: &mut [PathStand], clock: Clock) {
        let at_ns = clock.ns(clock.cycles());
        self.known.retain(|id, _| paths.iter().any(|path| path.id == *id));
        for path in paths {
            let PathStand { id, packets, cycles, cost, .. } = *path;
            let before =
                self.known.entry(id).or_insert(Known { at_ns, packets, cycles, share: 0.0, pps: None, cost });
            let passed = at_ns.saturating_sub(before.at_ns);
            if passed >= LEAST {
                let came = packets.saturating_sub(before.packets);
                let used = cycles.saturating_sub(before.cycles);
                let share = used as f64 / (passed as f64 * clock.hz() as f64 / 1e9);
                let pps = Some((u128::from(came) * 1_000_000_000 / u128::from(passed)) as u64);
                *before = Known { at_ns, packets, cycles, share, pps, cost };
            }
            path.share = before.share;
        }
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
            let known = self.known.get(id).and_then(|known| Some((known.pps?, known.cost)));
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
