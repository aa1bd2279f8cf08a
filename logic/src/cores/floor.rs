//! The part of a core that is left to applications under any traffic (O fig. 2).
//!
//! A NAPI thread is a normal thread. If several threads want a core, Linux divides it by their weights, 1.25 times as
//! much for each step of `nice` down (`sched_prio_to_weight`, kernel/sched/core.c). Time that one does not want goes to
//! the others, so weights cost nothing while there is room. Packets for which forwarding has no time stay in the NIC's
//! ring, or are dropped there before any work is spent on them.
//!
//! At first, all NAPI threads of a core together have the weight that leaves the floor to one application of the usual
//! weight. Applications with more threads would get more than that, and those in a control group with many cores less.
//! So the weight follows the part that forwarding got while it lacked time, one [`WINDOW`] at a time. If forwarding got
//! more than its part, the applications may also not want theirs. Then less weight changes nothing, and forwarding gets
//! its weight back until the next attempt after [`REST`]. Otherwise it would be starved for a moment when applications
//! do want time. `nice` ends at 19, a seventieth of the usual weight. Applications whose group weighs less than that on
//! a core get less than their floor. An example is a group of usual weight that is busy on a hundred cores.

use super::{CoreId, Queue, QueueId, View, measure};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

/// The parts of a core are measured over this time, because a thread runs for some milliseconds before the next has its
/// turn.
const WINDOW: Duration = Duration::from_millis(100);
/// After applications did not want more, the next attempt is not made before this time.
const REST: Duration = Duration::from_secs(1);
/// The range of `nice`, from the highest weight to the lowest.
const NICE: Range<i8> = -20..20;
/// `nice` changes by at most this at a time.
const MOST: f64 = 7.0;
/// The ratio of weights between steps of `nice`.
const STEP: f64 = 1.25;
/// A step is taken if it is nearer by this part of a step, so that noise changes nothing.
const CLEARLY: f64 = 0.7;

/// Decides the `nice` of NAPI threads, and keeps the history that it needs.
#[derive(Debug)]
pub struct Floor {
    /// The fraction of a core for applications, above 0 and below 1.
    floor: f64,
    cores: BTreeMap<CoreId, CoreState>,
}

/// The state of a core.
#[derive(Debug)]
struct CoreState {
    /// The `nice` of a thread with the weight that its NAPI threads should have together.
    nice: f64,
    window: Window,
    /// The last attempt to give applications more, to see whether they take it.
    tried: Option<Tried>,
    rest_until: Duration,
}

/// The part that forwarding got while it lacked time.
#[derive(Debug)]
struct Window {
    since: Duration,
    /// The number of periods from the first one in which it lacked time, and the sum of what it got in them. A wait is
    /// counted when it ends. In a period without either, a thread waits or sleeps.
    periods: u32,
    got: f64,
    /// The same up to the last period in which it lacked time.
    lacking: (u32, f64),
}

#[derive(Debug)]
struct Tried {
    /// The part that forwarding got, as a [`CoreState::nice`] beside applications of the usual weight.
    before: f64,
    step: f64,
}

impl Floor {
    /// `floor`: the fraction of a core for applications, above 0 and below 1.
    pub fn new(floor: f64) -> Floor {
        Floor { floor: floor.clamp(0.01, 0.99), cores: BTreeMap::new() }
    }

    /// The `nice` of each of these queues' threads, after the control period that ends at `now`.
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
            let state = self.cores.entry(core).or_insert_with(|| CoreState::new(now, suits_one));
            state.observe(now, &queues, suits_one);
            let each = nice_of(weight_of(state.nice) / queues.len() as f64);
            all.extend(queues.iter().map(|queue| (queue.id, whole(each))));
        }
        all
    }
}

impl CoreState {
    fn new(now: Duration, nice: f64) -> CoreState {
        CoreState { nice, window: Window::new(now), tried: None, rest_until: Duration::ZERO }
    }

    fn observe(&mut self, now: Duration, queues: &[&Queue], suits_one: f64) {
        self.window.observe(queues);
        if now.saturating_sub(self.window.since) < WINDOW {
            return;
        }
        if let Some(got) = std::mem::replace(&mut self.window, Window::new(now)).got() {
            self.follow(now, nice_of(got / (1.0 - got)), suits_one);
        }
    }

    /// `got`: what forwarding got, as a `nice`. Twice the weight gets twice as much beside the same competitors.
    fn follow(&mut self, now: Duration, got: f64, suits_one: f64) {
        if let Some(tried) = self.tried.take()
            && got - tried.before < tried.step / 2.0
        {
            self.nice -= tried.step;
            self.rest_until = now.saturating_add(REST);
            return;
        }
        let wrong = (suits_one - got).clamp(-MOST, MOST);
        let before = self.nice;
        if wrong <= -CLEARLY || wrong >= CLEARLY && now >= self.rest_until {
            self.nice = (self.nice + wrong).clamp(f64::from(NICE.start), f64::from(NICE.end - 1));
        }
        if self.nice > before {
            self.tried = Some(Tried { before: got, step: self.nice - before });
        }
    }
}

impl Window {
    fn new(since: Duration) -> Window {
        Window { since, periods: 0, got: 0.0, lacking: (0, 0.0) }
    }

    fn observe(&mut self, queues: &[&Queue]) {
        let lacks = queues.iter().any(|queue| measure::lacks_time(queue.ran, queue.waited));
        if lacks || self.periods > 0 {
            self.periods += 1;
            self.got += queues.iter().map(|queue| measure::fraction(queue.ran)).sum::<f64>().min(1.0);
        }
        if lacks {
            self.lacking = (self.periods, self.got);
        }
    }

    /// The part as a fraction of the core. `None`: it lacked no time.
    fn got(self) -> Option<f64> {
        let (periods, got) = self.lacking;
        (periods > 0).then(|| (got / f64::from(periods)).clamp(0.01, 0.99))
    }
}

/// The nearest possible value.
fn whole(nice: f64) -> i8 {
    nice.round().clamp(f64::from(NICE.start), f64::from(NICE.end - 1)) as i8
}

/// The `nice` of this many times the usual weight.
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

    /// A core that Linux divides by weight among NAPI threads that want `wants` of it each, and applications of this
    /// weight that want `apps` of it. Returns what the threads and the applications get.
    fn divided(wants: &[(i8, f64)], weight: f64, apps: f64) -> (Vec<f64>, f64) {
        let mut all: Vec<(f64, f64)> =
            wants.iter().map(|(nice, want)| (weight_of((*nice).into()), *want)).collect();
        all.push((weight, apps));
        let mut got = vec![0.0; all.len()];
        // The others share the time that some do not want.
        for _ in 0..all.len() {
            let left = 1.0 - got.iter().sum::<f64>();
            let hungry: Vec<usize> = (0..all.len()).filter(|&i| got[i] < all[i].1 - 1e-9).collect();
            let weights: f64 = hungry.iter().map(|&i| all[i].0).sum();
            hungry.into_iter().for_each(|i| got[i] = (got[i] + left * all[i].0 / weights).min(all[i].1));
        }
        let apps = got.pop().unwrap();
        (got, apps)
    }

    /// For a core: what all threads and the applications get, and the `nice` of the first thread after that.
    type Got = (f64, f64, i8);

    /// The results period by period, with a floor of 40 %.
    fn run(wants: &[f64], periods: u32, mut apps: impl FnMut(u32) -> (f64, f64)) -> Vec<Got> {
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
            story.push((got.iter().sum(), apps, *nice.values().next().unwrap()));
        }
        story
    }

    #[test]
    fn one_application_has_its_floor_from_the_second_period_on() {
        for threads in [1, 2, 8] {
            let story = run(&vec![3.0; threads], 100, |_| (1.0, 1.0));
            assert!(
                story[1..].iter().all(|(_, apps, _)| (0.38..0.46).contains(apps)),
                "{threads}: {story:?}"
            );
        }
    }

    /// Many threads would take more than the floor, and a group with many cores less.
    #[test]
    fn weights_follow_those_of_applications() {
        for weight in [1.0 / 32.0, 0.125, 0.5, 3.0, 30.0] {
            let story = run(&[3.0, 3.0], 150, |_| (weight, 1.0));
            assert!(
                story[100..].iter().all(|(_, apps, _)| (0.36..0.44).contains(apps)),
                "{weight}: {story:?}"
            );
        }
    }

    #[test]
    fn applications_that_do_not_want_their_floor_are_asked_now_and_then() {
        let story = run(&[3.0], 600, |period| (1.0, if period < 500 { 0.1 } else { 1.0 }));
        let suits_one = story[0].2;
        let asked = story[..500].iter().filter(|(.., nice)| *nice != suits_one).count();
        assert!((10..100).contains(&asked), "{asked} of 500 periods");
        assert!(story.iter().all(|(.., nice)| (suits_one..=suits_one + 7).contains(nice)), "{story:?}");
        // When they want it, forwarding is not starved, and all is well after a window or two.
        assert!(story[500..].iter().all(|(forwarding, ..)| *forwarding > 0.2), "{story:?}");
        assert!(story[530..].iter().all(|(_, apps, _)| (0.36..0.44).contains(apps)), "{story:?}");
    }

    #[test]
    fn weights_stay_while_nothing_lacks_time() {
        let story = run(&[0.3, 0.2], 100, |_| (1.0, 0.4));
        assert!(story.iter().all(|(.., nice)| *nice == story[0].2), "{story:?}");
    }

    /// A thread that has its turn for 3 ms, and then waits for applications of the usual weight. The wait is reported
    /// when it ends.
    #[test]
    fn periods_in_which_it_only_waits_count() {
        let mut floor = Floor::new(0.9);
        let threads = BTreeSet::from([queue(0, 0).id]);
        let (mut nice, mut ms, mut left, mut waited_ms) = (0, 0u32, 3.0, 0.0);
        let mut got = Vec::new();
        for period in 0..1000 {
            let (mut ran, mut waited) = (0.0, 0.0);
            for _ in 0..10 {
                (ms, left) = (ms + 1, left - 1.0);
                if left > -1e-9 {
                    (ran, waited, waited_ms) = (ran + 0.1, waited + waited_ms / 10.0, 0.0);
                } else {
                    waited_ms += 1.0;
                }
                // The applications' turn is as long as their weight demands.
                if left <= -3.0 / weight_of(nice.into()) {
                    left = 3.0;
                }
            }
            got.push(ran);
            let view = View { cores: vec![core(0)], queues: vec![Queue { ran, waited, ..queue(0, 0) }] };
            nice = floor.decide(PERIOD * period, &view, &threads)[&queue(0, 0).id];
        }
        let forwarding = got[200..].iter().sum::<f64>() / got[200..].len() as f64;
        assert!((0.07..0.14).contains(&forwarding), "{forwarding}, after {ms} ms");
    }
}
