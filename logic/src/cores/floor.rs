//! The part of a core that applications are left, whatever comes in (O fig. 2).
//!
//! A NAPI thread is a thread like others: Linux divides a core that several want by their weights, 1.25 times as much for each
//! step of `nice` down (`sched_prio_to_weight`, kernel/sched/core.c). What one does not want the others get, so weights cost
//! nothing while there is room, and what forwarding does not get stays in the NIC's ring, or is dropped there, before any work is
//! spent on it.
//!
//! All NAPI threads of a core together begin with the weight that leaves one application of the usual weight its floor. Applications with
//! more threads would get more than that, those in a control group of several cores less: so the weight follows what forwarding got
//! while it lacked time, a window at a time, and within [`RANGE`]. Applications that do not want their floor make it fall to the lower end: once they do,
//! forwarding gets too little for a window or two.

use super::{CoreId, Queue, QueueId, View, measure};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

/// Shares of a core are looked at over so long: a thread runs for some milliseconds before the next has its turn.
const WINDOW: Duration = Duration::from_millis(100);
/// Of `nice`, from the highest weight to the lowest.
const NICE: Range<i8> = -20..20;
/// `nice` may be so far from what suits one application of the usual weight.
const RANGE: f64 = 7.0;
/// Between steps of `nice`.
const STEP: f64 = 1.25;
/// A step is taken if it is nearer by so much of one, so that noise changes nothing.
const CLEARLY: f64 = 0.7;

/// Decides on the `nice` of NAPI threads, and keeps what it needs of the past.
#[derive(Debug)]
pub struct Floor {
    /// The fraction of a core for applications, above 0 and below 1.
    floor: f64,
    cores: BTreeMap<CoreId, State>,
}

/// A core.
#[derive(Debug, Default)]
struct State {
    /// What its NAPI threads should have together, as the `nice` of one that has as much weight.
    nice: f64,
    since: Duration,
    /// Periods of the window in which forwarding lacked time, and what it got in them, as a sum.
    lacking: u32,
    got: f64,
}

impl Floor {
    /// `floor`: the fraction of a core for applications, above 0 and below 1.
    pub fn new(floor: f64) -> Floor {
        Floor { floor: floor.clamp(0.01, 0.99), cores: BTreeMap::new() }
    }

    /// The `nice` of each of these queues' threads, after the control period that ends `now`.
    pub fn decide(
        &mut self,
        now: Duration,
        view: &View,
        threads: &BTreeSet<QueueId>,
    ) -> BTreeMap<QueueId, i8> {
        let mut on: BTreeMap<CoreId, Vec<&Queue>> = BTreeMap::new();
        for queue in view.queues.iter().filter(|queue| threads.contains(&queue.id)) {
            on.entry(queue.core).or_default().push(queue);
        }
        self.cores.retain(|core, _| on.contains_key(core));
        let suits_one = nice_of((1.0 - self.floor) / self.floor);
        let mut all = BTreeMap::new();
        for (core, queues) in on {
            let first = || State { nice: suits_one, since: now, ..State::default() };
            let state = self.cores.entry(core).or_insert_with(first);
            state.observe(now, &queues, suits_one);
            let each = nice_of(weight_of(state.nice) / queues.len() as f64);
            all.extend(queues.iter().map(|queue| (queue.id, whole(each))));
        }
        all
    }
}

impl State {
    fn observe(&mut self, now: Duration, queues: &[&Queue], suits_one: f64) {
        if queues.iter().any(|queue| measure::lacks_time(queue.ran, queue.waited)) {
            self.lacking += 1;
            self.got += queues.iter().map(|queue| measure::fraction(queue.ran)).sum::<f64>().min(1.0);
        }
        if now.saturating_sub(self.since) < WINDOW {
            return;
        }
        if self.lacking > 0 {
            let got = (self.got / f64::from(self.lacking)).clamp(0.01, 0.99);
            // Twice the weight gets twice as much, beside the same others.
            let wrong = suits_one - nice_of(got / (1.0 - got));
            if wrong.abs() >= CLEARLY {
                self.nice = (self.nice + wrong).clamp(suits_one - RANGE, suits_one + RANGE);
            }
        }
        *self = State { nice: self.nice, since: now, ..State::default() };
    }
}

/// The nearest that there is.
fn whole(nice: f64) -> i8 {
    nice.round().clamp(f64::from(NICE.start), f64::from(NICE.end - 1)) as i8
}

/// Of so many times the usual weight.
fn nice_of(weight: f64) -> f64 {
    -weight.ln() / STEP.ln()
}

fn weight_of(nice: f64) -> f64 {
    STEP.powf(-nice)
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{core, queue},
        *,
    };

    const PERIOD: Duration = Duration::from_millis(10);

    /// A core that Linux divides by weight among NAPI threads that want `wants` of it each, and applications of this weight that
    /// want `apps` of it: what the threads and the applications get.
    fn divided(wants: &[(i8, f64)], weight: f64, apps: f64) -> (Vec<f64>, f64) {
        let mut all: Vec<(f64, f64)> =
            wants.iter().map(|(nice, want)| (weight_of((*nice).into()), *want)).collect();
        all.push((weight, apps));
        let mut got = vec![0.0; all.len()];
        // What some do not want the others share.
        for _ in 0..all.len() {
            let left = 1.0 - got.iter().sum::<f64>();
            let hungry: Vec<usize> = (0..all.len()).filter(|&i| got[i] < all[i].1 - 1e-9).collect();
            let weights: f64 = hungry.iter().map(|&i| all[i].0).sum();
            hungry.into_iter().for_each(|i| got[i] = (got[i] + left * all[i].0 / weights).min(all[i].1));
        }
        let apps = got.pop().unwrap();
        (got, apps)
    }

    /// What all threads and the applications get of a core, period by period.
    fn run(wants: &[f64], periods: u32, mut apps: impl FnMut(u32) -> (f64, f64)) -> Vec<(f64, f64)> {
        let mut floor = Floor::new(0.4);
        let threads: BTreeSet<QueueId> = (0..).zip(wants).map(|(index, _)| queue(index, 0).id).collect();
        let mut nice: BTreeMap<QueueId, i8> = BTreeMap::new();
        let mut story = Vec::new();
        for period in 0..periods {
            let (weight, want) = apps(period);
            let of = |(id, want): (&QueueId, &f64)| (nice.get(id).copied().unwrap_or(0), *want);
            let (got, apps) = divided(&threads.iter().zip(wants).map(of).collect::<Vec<_>>(), weight, want);
            let queues = (0..).zip(got.iter().zip(wants)).map(|(index, (&ran, &want))| Queue {
                ran,
                waited: if ran < want - 1e-9 { 1.0 - ran } else { 0.0 },
                ..queue(index, 0)
            });
            let view = View { cores: vec![core(0)], queues: queues.collect() };
            nice = floor.decide(PERIOD * period, &view, &threads);
            story.push((got.iter().sum(), apps));
        }
        story
    }

    #[test]
    fn one_application_has_its_floor_from_the_second_period_on() {
        for threads in [1, 2, 8] {
            let story = run(&vec![3.0; threads], 100, |_| (1.0, 1.0));
            assert!(story[1..].iter().all(|(_, apps)| (0.38..0.46).contains(apps)), "{threads}: {story:?}");
        }
    }

    /// Many threads would take more than the floor, a group of several cores less.
    #[test]
    fn weights_follow_what_applications_weigh() {
        for weight in [0.25, 0.5, 3.0, 4.5] {
            let story = run(&[3.0, 3.0], 100, |_| (weight, 1.0));
            assert!(story[40..].iter().all(|(_, apps)| (0.36..0.44).contains(apps)), "{weight}: {story:?}");
        }
    }

    #[test]
    fn what_applications_do_not_want_is_forwarded() {
        let story = run(&[3.0], 100, |period| (1.0, if period < 50 { 0.1 } else { 1.0 }));
        assert!(story[..50].iter().all(|(forwarding, _)| (forwarding - 0.9).abs() < 0.01), "{story:?}");
        // Not nothing, either, until weights are right again.
        assert!(story[50..].iter().all(|(forwarding, _)| *forwarding > 0.2), "{story:?}");
        assert!(story[75..].iter().all(|(_, apps)| (0.36..0.44).contains(apps)), "{story:?}");
    }

    #[test]
    fn a_core_with_room_is_left_alone() {
        let story = run(&[0.3, 0.2], 100, |_| (1.0, 0.4));
        assert!(story.iter().all(|&(forwarding, apps)| (forwarding, apps) == (0.5, 0.4)), "{story:?}");
    }
}
