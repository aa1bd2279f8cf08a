//! The results of a run.

use super::latency::Latency;
use crate::cores::{CoreId, QueueId};
use std::{collections::BTreeMap, time::Duration};

/// For the time that is counted. `carried + sent == forwarded + dropped + waiting` holds exactly.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// Packets that waited when counting began.
    pub carried: u64,
    pub sent: u64,
    pub forwarded: u64,
    pub dropped: u64,
    /// Packets that wait at the end.
    pub waiting: u64,
    /// Drops of each queue that dropped any.
    pub dropped_of: BTreeMap<QueueId, u64>,
    /// From arrival to being forwarded.
    pub latency: Latency,
    /// Cores that forwarded anything in a control period.
    pub cores: Cores,
    /// Time that cores spent on forwarding, including waking up.
    pub forwarding: Duration,
    /// The work that applications got done, and the work without traffic, in time of a core at full speed.
    pub applications: Duration,
    pub applications_alone: Duration,
    /// In the order of time.
    pub moves: Vec<Move>,
    /// How often a queue was split, joined, or split differently.
    pub splits: u64,
    /// How often a core that fell behind began to share a queue with one more core, before the allocator decided.
    pub spills: u64,
    /// For each queue that got its first helper, the time from when its core last kept up until the helper forwarded
    /// a packet.
    pub helped: Vec<Duration>,
    /// The longest reaction. It starts with the first control period in which a core wanted more than the high mark. It
    /// ends when a queue of that core is moved to, or shared with, a core that did not forward before.
    pub reaction: Option<Duration>,
}

/// Numbers of cores, by control period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores {
    /// Control periods, by number of cores.
    pub periods: Vec<u64>,
}

impl Cores {
    pub(super) fn count(&mut self, cores: u16) {
        let cores = usize::from(cores);
        self.periods.resize(self.periods.len().max(cores + 1), 0);
        self.periods[cores] += 1;
    }

    pub fn mean(&self) -> f64 {
        let sum: u64 = (0..).zip(&self.periods).map(|(cores, periods)| cores * periods).sum();
        sum as f64 / self.periods.iter().sum::<u64>().max(1) as f64
    }

    /// The number that this share of the periods did not exceed; 0 if there were none.
    pub fn quantile(&self, share: f64) -> u16 {
        let all: u64 = self.periods.iter().sum();
        let mut below = 0;
        let reached = self.periods.iter().position(|periods| {
            below += periods;
            below as f64 >= all as f64 * share
        });
        reached.unwrap_or(0) as u16
    }

    pub fn most(&self) -> u16 {
        self.periods.len().saturating_sub(1) as u16
    }
}

/// A queue that changed its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub at: Duration,
    pub queue: QueueId,
    pub from: CoreId,
    pub to: CoreId,
}

impl Results {
    /// The lost fraction of the packets that were sent.
    pub fn loss(&self) -> f64 {
        self.dropped as f64 / (self.carried + self.sent).max(1) as f64
    }

    /// The part that applications get of what they would get without traffic (Q9). `None` without applications.
    pub fn application_share(&self) -> Option<f64> {
        let alone = self.applications_alone.as_secs_f64();
        (alone > 0.0).then(|| self.applications.as_secs_f64() / alone)
    }

    /// The time of cores for each forwarded packet.
    pub fn ns_per_packet(&self) -> Option<f64> {
        (self.forwarded > 0).then(|| self.forwarding.as_nanos() as f64 / self.forwarded as f64)
    }

    /// The most moves of one queue within this time.
    pub fn most_moves_within(&self, time: Duration) -> usize {
        let mut of: BTreeMap<QueueId, Vec<Duration>> = BTreeMap::new();
        for moved in &self.moves {
            of.entry(moved.queue).or_default().push(moved.at);
        }
        let within = |times: &[Duration]| {
            let from = |i: usize| times[i..].partition_point(|at| *at < times[i].saturating_add(time));
            (0..times.len()).map(from).max().unwrap_or(0)
        };
        of.values().map(|times| within(times)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted_by_period() {
        let mut cores = Cores::default();
        assert_eq!((cores.mean(), cores.quantile(0.5), cores.most()), (0.0, 0, 0));
        [1, 3, 1, 2].into_iter().for_each(|n| cores.count(n));
        assert_eq!((cores.mean(), cores.most()), (1.75, 3));
        assert_eq!([0.0, 0.5, 0.51, 0.75, 1.0].map(|share| cores.quantile(share)), [0, 1, 2, 2, 3]);
    }

    #[test]
    fn moves_within_a_time_are_those_of_one_queue() {
        let moved = |ms: u64, index: u16| Move {
            at: Duration::from_millis(ms),
            queue: QueueId { port: 0, index },
            from: 0,
            to: 1,
        };
        let moves = vec![moved(0, 0), moved(500, 1), moved(900, 0), moved(1000, 0), moved(1899, 0)];
        let results = Results { moves, ..Results::default() };
        assert_eq!(results.most_moves_within(Duration::from_millis(1000)), 3);
        assert_eq!(results.most_moves_within(Duration::from_millis(999)), 2);
        assert_eq!(results.most_moves_within(Duration::from_millis(99)), 1);
        assert_eq!(Results::default().most_moves_within(Duration::from_secs(1)), 0);
    }
}
