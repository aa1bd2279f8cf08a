//! This placement knows how many packets come in the next control period. It places all queues again in each period.
//!
//! It does not know bursts within a period, the cost of waking up and of handing on, or packets that still wait. So it is
//! a yardstick for the allocator, and not a bound.

use super::{
    NS_PER_SECOND, PERIOD, SLICE_NS,
    scenario::{Machine, Scenario},
    traffic::Traffic,
};
use crate::cores::{CoreId, Decision, Plan, QueueId};

/// The future of a run.
pub(super) struct Oracle {
    traffic: Traffic,
    /// The first slice that it has not seen.
    slice: u64,
    came: Vec<u64>,
}

impl Oracle {
    /// `traffic`: a copy of the run's traffic, from its start.
    pub fn new(traffic: Traffic, queues: usize) -> Self {
        Self { traffic, slice: 0, came: vec![0; queues] }
    }

    /// The best places for the queues in the next control period.
    pub fn decide(&mut self, scenario: &Scenario, queues: impl Iterator<Item = QueueId>) -> Decision {
        self.came.fill(0);
        let slices = PERIOD.as_nanos() as u64 / SLICE_NS;
        for _ in 0..slices {
            let came = &mut self.came;
            self.traffic.slice(self.slice, |queue, times| came[queue] += times.len() as u64);
            self.slice += 1;
        }
        let period_ns = PERIOD.as_secs_f64() * NS_PER_SECOND as f64;
        // Siblings are assumed to work all the time.
        let Machine { siblings, sibling_speed, .. } = scenario.machine;
        let speed = if siblings == 2 { f64::from(sibling_speed) / 1000.0 } else { 1.0 };
        let each = scenario.cost.ns_per_packet as f64 / period_ns / speed;
        let loads = queues.zip(&self.came).map(|(queue, came)| (queue, *came as f64 * each)).collect();
        let mut cores: Vec<CoreId> =
            (0..scenario.machine.cores).filter(|&core| scenario.settings.allows(core)).collect();
        let is_burdened = |core: &CoreId| {
            scenario.applications.iter().any(|application| application.pinned && application.runs_on(*core))
        };
        cores.sort_by_key(is_burdened);
        Decision { plan: place(loads, cores, scenario.settings.high), ..Decision::default() }
    }
}

/// Places queues, the largest first, each on the first core where it fits. A queue that is too large for one core is
/// shared by as few cores as possible. A queue that fits nowhere goes to the least loaded core.
fn place(mut loads: Vec<(QueueId, f64)>, cores: Vec<CoreId>, goal: f64) -> Plan {
    loads.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut used: Vec<(CoreId, f64)> = cores.into_iter().map(|core| (core, 0.0)).collect();
    let mut plan = Plan::default();
    for (queue, load) in loads {
        let sharers = (load / goal).ceil().max(1.0) as usize;
        let share = load / sharers as f64;
        let mut homes: Vec<usize> =
            (0..used.len()).filter(|&at| used[at].1 + share <= goal).take(sharers).collect();
        if homes.len() < sharers {
            homes = (0..used.len()).min_by(|&a, &b| used[a].1.total_cmp(&used[b].1)).into_iter().collect();
        }
        let each = load / homes.len() as f64;
        homes.iter().for_each(|&at| used[at].1 += each);
        let shares: Vec<CoreId> = homes.iter().map(|&at| used[at].0).collect();
        plan.home.extend(shares.first().map(|home| (queue, *home)));
        if shares.len() > 1 {
            plan.split.insert(queue, shares);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_take_the_fewest_cores_that_carry_them() {
        let queue = |index| QueueId { port: 0, index };
        let plan = |loads: &[f64]| {
            let loads = (0..).zip(loads).map(|(index, load)| (queue(index), *load)).collect();
            let Plan { home, split } = place(loads, vec![0, 1, 2, 3], 0.8);
            (home.into_values().collect::<Vec<_>>(), split.into_values().collect::<Vec<_>>())
        };
        assert_eq!(plan(&[0.2, 0.5, 0.3, 0.6]), (vec![0, 1, 1, 0], vec![]));
        assert_eq!(plan(&[0.1, 1.5]), (vec![2, 0], vec![vec![0, 1]]));
        assert_eq!(plan(&[0.7, 0.7, 0.7, 0.7, 0.6]), (vec![0, 1, 2, 3, 0], vec![]), "too much for all");
    }
}
