//! Decides over how many RX queues the packets of a port are spread. Fewer queues have longer bursts (Q7).
//!
//! A NIC spreads packets over queues by their hash (RSS). Each queue with packets wakes its own thread or fires its own
//! interrupt. So 64 queues on one core cost more than four that carry the same. But queues are the unit that moves
//! between cores. With [`EACH`] queues for each core that forwards, a core that has too much can give something away,
//! and cores are even to a quarter.
//!
//! **Halves.** Of a port's queues, either all, the first half, or half of that and so on ([`sizes`]) are in use. The
//! queues of the second half give their packets to those of the first, one to one, and get them back from these
//! ([`owner`]). So with each step half of the flows stay where they are, and a quarter with two steps at once. An
//! unused queue stays on the core of the queue that has its packets. When it is used again, no flow changes its core at
//! that moment, and then there are more queues to move.
//!
//! **Order.** A flow that goes to another queue may overtake its packets in the old one. So a step is made after a
//! period in which no queue of the port lacked time. Then only packets since the last poll wait. If there is no such
//! period for [`WAIT`], a step to more queues is made anyway, because packets are lost meanwhile.
//!
//! **More** queues at once, when a queue of the port went to one more core. All queues are used if one queue alone had
//! more than `high` for [`WAIT`]. This may be a single flow, which no table can divide, but that would be known only
//! after each step, and each step would move other flows.
//!
//! **Fewer** queues late, because it only saves cost. Fewer must have been enough in each period for [`HOLDS`] hold
//! times, with no core above `low`. If they were missed within as long a time, the next step takes twice as long, up to
//! [`MOST_DOUBT`] times.

use super::{CoreId, Plan, Queue, QueueId, Settings, View, measure};
use crate::plan::PortId;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

/// The least number of queues in use for each core that forwards for the port.
const EACH: u16 = 4;
/// A step to more queues waits at most this long for a period in which no queue lacks time.
const WAIT: Duration = Duration::from_millis(50);
/// The number of hold times until fewer queues are in use.
const HOLDS: u32 = 5;
const MOST_DOUBT: u32 = 64;
/// A change that has not happened is requested again after this time.
const AGAIN: Duration = Duration::from_secs(2);

/// The queues that a port spreads packets over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The number of queues for that.
    pub all: u16,
    /// The number in use. These are the first ones.
    pub used: u16,
}

impl Spread {
    /// The queue that has the packets of an unused one. `None`: it is used, or it is not one of these queues.
    pub fn owner(&self, queue: u16) -> Option<u16> {
        (self.used..self.all).contains(&queue).then(|| owner(queue, self.all, self.used))
    }
}

/// The numbers of queues that can be in use: all, half of them, half of that and so on. The largest is first.
pub fn sizes(all: u16) -> impl Iterator<Item = u16> {
    let half = |&size: &u16| Some(size.div_ceil(2)).filter(|half| *half >= EACH && *half < size);
    std::iter::successors(Some(all), half)
}

/// The queue that has the packets of this one while only the first `used` of `all` are in use, one of the [`sizes`].
pub fn owner(queue: u16, all: u16, used: u16) -> u16 {
    let halves = sizes(all).take_while(|size| *size >= used);
    halves.fold(queue, |queue, size| if queue < size { queue } else { queue - size })
}

/// The number of queues over which an indirection table spreads evenly, if these are the first ones. Other tables were
/// made by somebody.
pub fn evenly_over(table: &[u32]) -> Option<u16> {
    let all = u16::try_from(table.iter().max()?.checked_add(1)?).ok()?;
    let mut counts = vec![0_usize; all.into()];
    table.iter().for_each(|queue| counts[*queue as usize] += 1);
    let (least, most) = (counts.iter().min()?, counts.iter().max()?);
    (*least > 0 && most - least <= 1).then_some(all)
}

/// The table of a port that uses fewer queues, made from the one for all.
pub fn folded(table: &[u32], spread: Spread) -> Vec<u32> {
    let fold = |&queue: &u32| match u16::try_from(queue).ok().and_then(|queue| spread.owner(queue)) {
        Some(owner) => owner.into(),
        None => queue,
    };
    table.iter().map(fold).collect()
}

/// Removes unused queues from a view. Their time counts for the queue that each goes with.
pub fn merge(view: &mut View, goes_with: &BTreeMap<QueueId, QueueId>) {
    let mut taken: BTreeMap<QueueId, f64> = BTreeMap::new();
    view.queues.retain(|queue| {
        let with = goes_with.get(&queue.id);
        with.into_iter().for_each(|with| *taken.entry(*with).or_default() += measure::fraction(queue.ran));
        with.is_none()
    });
    for queue in &mut view.queues {
        queue.ran += taken.get(&queue.id).copied().unwrap_or(0.0);
    }
}

/// Puts unused queues on the core of the queue that each goes with.
pub fn go_along(plan: &mut Plan, goes_with: &BTreeMap<QueueId, QueueId>) {
    for (queue, with) in goes_with {
        if let Some(&home) = plan.home.get(with) {
            plan.home.insert(*queue, home);
        }
    }
}

/// A change of the number of queues in use, and the reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resize {
    pub port: PortId,
    pub from: u16,
    pub to: u16,
    pub why: WhyResize,
}

/// Why more or fewer queues are in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WhyResize {
    /// This many cores forward for the port.
    Cores(usize),
    /// One queue has more than this fraction of a core.
    Hot { queue: u16, high: f64 },
    /// Fewer queues would have been enough for this long.
    Fewer(Duration),
}

impl fmt::Display for WhyResize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyResize::Cores(cores) => write!(f, "{cores} cores forward its packets"),
            WhyResize::Hot { queue, high } => {
                write!(f, "queue {queue} alone has more than {:.0} % of a core", high * 100.0)
            }
            WhyResize::Fewer(time) => {
                write!(f, "for {:.0} s these would have been enough", time.as_secs_f64())
            }
        }
    }
}

/// Decides the queues in use, and keeps the history that it needs.
#[derive(Debug, Default)]
pub struct InUse {
    ports: BTreeMap<PortId, PortDecision>,
}

#[derive(Debug)]
struct PortDecision {
    /// The last decision, and its time.
    asked: Option<(u16, Duration)>,
    /// Since when more are wanted.
    more: Option<Duration>,
    /// The queue that alone has too much, and since when.
    hot: Option<(u16, Duration)>,
    /// A smaller number that would have been enough, and since when.
    fewer: Option<(u16, Duration)>,
    /// When the number was last reduced.
    shrunk: Option<Duration>,
    /// The next reduction takes this many times longer than usual.
    doubt: u32,
}

impl InUse {
    /// The changes after the control period that ends at `now`. `ports`: those whose queues can be changed, in their
    /// present state. Unused queues of the view count where their packets are.
    pub fn decide(
        &mut self,
        now: Duration,
        view: &View,
        plan: &Plan,
        ports: &BTreeMap<PortId, Spread>,
        settings: &Settings,
    ) -> Vec<Resize> {
        self.ports.retain(|port, _| ports.contains_key(port));
        let decide = |(&id, &spread): (&PortId, &Spread)| {
            let state = self.ports.entry(id).or_default();
            if state.asked.is_some_and(|(to, at)| to != spread.used && now.saturating_sub(at) < AGAIN) {
                return None;
            }
            let (to, why) = state.decide(now, &PortPeriod { id, spread, view, plan, settings })?;
            state.asked = Some((to, now));
            Some(Resize { port: id, from: spread.used, to, why })
        };
        ports.iter().filter_map(decide).collect()
    }
}

impl Default for PortDecision {
    fn default() -> PortDecision {
        PortDecision { asked: None, more: None, hot: None, fewer: None, shrunk: None, doubt: 1 }
    }
}

impl PortDecision {
    fn decide(&mut self, now: Duration, port: &PortPeriod<'_>) -> Option<(u16, WhyResize)> {
        let PortPeriod { spread: Spread { all, used }, settings, .. } = *port;
        let lasted = |since: Duration| now.saturating_sub(since);
        let cores = port.cores();
        let least = usize::from(EACH) * cores.max(1);
        let needed = sizes(all).filter(|size| usize::from(*size) >= least).last().unwrap_or(all);
        self.hot = port.hot().map(|queue| match self.hot {
            Some((before, since)) if before == queue => (queue, since),
            _ => (queue, now),
        });
        let hot = self.hot.filter(|(_, since)| lasted(*since) >= WAIT).map(|(queue, _)| queue);
        let more = match hot {
            Some(queue) if all > used => Some((all, WhyResize::Hot { queue, high: settings.high })),
            _ if needed > used => Some((needed, WhyResize::Cores(cores))),
            _ => None,
        };
        if let Some(more) = more {
            self.fewer = None;
            let since = *self.more.get_or_insert(now);
            return (port.is_calm() || lasted(since) >= WAIT).then(|| {
                self.grown(now, settings);
                more
            });
        }
        self.more = None;
        let carries = |size: &u16| *size >= needed && *size < used && port.carries(*size);
        let Some(fewer) = sizes(all).filter(carries).last().filter(|_| hot.is_none()) else {
            self.fewer = None;
            return None;
        };
        let (most, since) = self.fewer.unwrap_or((fewer, now));
        let most = most.max(fewer);
        self.fewer = Some((most, since));
        (port.is_calm() && lasted(since) >= self.patience(settings)).then(|| {
            (self.fewer, self.shrunk) = (None, Some(now));
            (most, WhyResize::Fewer(lasted(since)))
        })
    }

    fn patience(&self, settings: &Settings) -> Duration {
        settings.hold.saturating_mul(HOLDS * self.doubt)
    }

    fn grown(&mut self, now: Duration, settings: &Settings) {
        let patience = self.patience(settings);
        // Further steps of one growth do not count again.
        self.doubt = match self.shrunk.take() {
            Some(at) if now.saturating_sub(at) < patience => (self.doubt * 2).min(MOST_DOUBT),
            Some(_) => 1,
            None => self.doubt,
        };
        (self.more, self.hot) = (None, None);
    }
}

/// A port in one control period.
struct PortPeriod<'a> {
    id: PortId,
    spread: Spread,
    view: &'a View,
    plan: &'a Plan,
    settings: &'a Settings,
}

impl PortPeriod<'_> {
    fn is_used(&self, id: QueueId) -> bool {
        id.port == self.id && id.index < self.spread.used
    }

    fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.view.queues.iter().filter(|queue| self.is_used(queue.id))
    }

    /// The number of cores that forward for the queues in use.
    fn cores(&self) -> usize {
        let homes = self.plan.home.iter().filter(|(id, _)| self.is_used(**id)).map(|(_, core)| core);
        let shares = self.plan.split.iter().filter(|(id, _)| self.is_used(**id));
        homes.chain(shares.flat_map(|(_, cores)| cores)).collect::<BTreeSet<_>>().len()
    }

    fn is_calm(&self) -> bool {
        !self.queues().any(|queue| measure::lacks_time(queue.ran, queue.waited))
    }

    /// A queue that alone has more than a core should give, and is not split.
    fn hot(&self) -> Option<u16> {
        let is_hot =
            |queue: &&Queue| queue.parts.is_empty() && measure::fraction(queue.ran) > self.settings.high;
        self.queues().find(is_hot).map(|queue| queue.id.index)
    }

    /// Whether, with this number of queues, each core whose queue gets another one's packets would be at most at the
    /// low mark.
    fn carries(&self, size: u16) -> bool {
        let home = |queue: &Queue| self.plan.home.get(&queue.id).copied().unwrap_or(queue.core);
        let homes: BTreeMap<u16, CoreId> = self.queues().map(|queue| (queue.id.index, home(queue))).collect();
        let mut loads: BTreeMap<CoreId, f64> = BTreeMap::new();
        let mut getting = BTreeSet::new();
        for queue in &self.view.queues {
            let mut core = home(queue);
            if self.is_used(queue.id) && queue.id.index >= size {
                let to = homes.get(&owner(queue.id.index, self.spread.all, size));
                let Some(&to) = to else { return false };
                getting.insert(to);
                core = to;
            }
            *loads.entry(core).or_default() += measure::fraction(queue.ran);
            for part in &queue.parts {
                *loads.entry(part.core).or_default() += measure::fraction(part.ran);
            }
        }
        getting.iter().all(|core| loads[core] <= self.settings.low)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Part,
            tests::{Machine, PERIOD, queue},
        },
        *,
    };

    const ALL: u16 = 64;

    /// A port with 64 queues, of which some are in use, on the given cores.
    struct World {
        in_use: InUse,
        now: Duration,
        spread: Spread,
        homes: Vec<CoreId>,
    }

    impl World {
        fn new(used: u16, homes: &[CoreId]) -> World {
            let spread = Spread { all: ALL, used };
            World { in_use: InUse::default(), now: Duration::ZERO, spread, homes: homes.to_vec() }
        }

        /// The decisions in `periods`, in which each queue in use ran for this fraction, and the first one may have
        /// waited. They are applied at once.
        fn after(&mut self, periods: u32, ran: f64, first: (f64, f64)) -> Vec<(u16, WhyResize)> {
            let mut told = Vec::new();
            for _ in 0..periods {
                self.now += PERIOD;
                let home = |index: u16| self.homes[usize::from(index) % self.homes.len()];
                let mut queues: Vec<Queue> =
                    (0..self.spread.used).map(|index| Queue { ran, ..queue(index, home(index)) }).collect();
                (queues[0].ran, queues[0].waited) = (first.0, first.1);
                // Unused queues are anywhere, and have no packets.
                let idle = (self.spread.used..ALL).map(|index| queue(index, 9));
                let all = queues.iter().cloned().chain(idle);
                let plan = Plan { home: all.map(|q| (q.id, q.core)).collect(), ..Plan::default() };
                let view = View { cores: Vec::new(), queues };
                let ports = [(0, self.spread)].into();
                let resizes = self.in_use.decide(self.now, &view, &plan, &ports, &Settings::default());
                for Resize { from, to, why, .. } in resizes {
                    assert_eq!(from, self.spread.used);
                    self.spread.used = to;
                    told.push((to, why));
                }
            }
            told
        }

        fn calm(&mut self, seconds: u32) -> Vec<u16> {
            self.after(seconds * 100, 0.01, (0.01, 0.0)).into_iter().map(|(to, _)| to).collect()
        }
    }

    #[test]
    fn halves_give_to_halves_and_get_back() {
        assert_eq!(sizes(64).collect::<Vec<_>>(), [64, 32, 16, 8, 4]);
        assert_eq!(sizes(48).collect::<Vec<_>>(), [48, 24, 12, 6]);
        assert_eq!(sizes(9).collect::<Vec<_>>(), [9, 5]);
        for few in 0..8 {
            assert_eq!(sizes(few).collect::<Vec<_>>(), if few == 7 { vec![7, 4] } else { vec![few] });
        }
        assert_eq!([0, 3, 4, 7, 8, 63].map(|queue| owner(queue, 64, 4)), [0, 3, 0, 3, 0, 3]);
        for all in 1..200 {
            for used in sizes(all) {
                let owners: Vec<u16> = (0..all).map(|queue| owner(queue, all, used)).collect();
                assert!(owners.iter().all(|owner| *owner < used));
                assert!((0..used).all(|queue| owners[usize::from(queue)] == queue));
                // A step down moves each queue's packets as a whole to one queue, and none gets those of two others.
                let Some(next) = sizes(all).find(|size| *size < used) else { continue };
                let after: BTreeSet<u16> = (next..used).map(|queue| owner(queue, all, next)).collect();
                assert_eq!(after.len(), usize::from(used - next), "{used} of {all}");
                for queue in 0..all {
                    assert_eq!(owner(queue, all, next), owner(owner(queue, all, used), all, next));
                }
            }
        }
    }

    #[test]
    fn tables_are_folded_if_they_are_even() {
        let even: Vec<u32> = (0..16).map(|i| i % 8).collect();
        assert_eq!(evenly_over(&even), Some(8));
        let folded = folded(&even, Spread { all: 8, used: 4 });
        assert_eq!(folded, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(evenly_over(&[0, 1, 2, 0, 1]), Some(3), "as even as possible");
        for made in [&[][..], &[1, 1], &[0, 2], &[0, 0, 0, 1], &[u32::MAX - 1], &[u32::MAX]] {
            assert_eq!(evenly_over(made), None, "{made:?}");
        }
        assert_eq!(super::folded(&[9, 7], Spread { all: 8, used: 4 }), [9, 3], "9 is for something else");
    }

    #[test]
    fn four_for_each_core_after_five_hold_times() {
        let mut world = World::new(64, &[0]);
        assert_eq!(world.calm(10), []);
        assert_eq!(world.after(1, 0.01, (0.01, 0.0)), [(4, WhyResize::Fewer(Duration::from_secs(10)))]);
        assert_eq!(world.calm(60), []);
        // One more core, at once. An unused queue elsewhere does not count.
        world.homes = vec![0, 1];
        assert_eq!(world.after(1, 0.2, (0.2, 0.0)), [(8, WhyResize::Cores(2))]);
        world.homes = vec![0, 1, 2];
        assert_eq!(world.after(1, 0.2, (0.2, 0.0)), [(16, WhyResize::Cores(3))]);
    }

    #[test]
    fn one_core_more_and_less_does_not_change_queues_each_time() {
        let mut world = World::new(4, &[0]);
        let mut resizes = 0;
        // A second core for one second in eleven, for ten minutes.
        for _ in 0..60 {
            world.homes = vec![0, 1];
            resizes += world.calm(1).len();
            world.homes = vec![0];
            resizes += world.calm(10).len() + world.after(1, 0.01, (0.01, 0.0)).len();
        }
        assert!((1..=3).contains(&resizes), "{resizes}");
        let (mut world, mut resizes) = (World::new(4, &[0]), 0);
        // For one second in fifteen. Each time twice as long passes until the number is reduced.
        for _ in 0..40 {
            world.homes = vec![0, 1];
            resizes += world.calm(1).len();
            world.homes = vec![0];
            resizes += world.calm(15).len();
        }
        assert!((3..8).contains(&resizes), "{resizes}");
    }

    #[test]
    fn a_growth_of_two_steps_is_one_wrong_guess() {
        let mut world = World::new(64, &[0]);
        world.calm(11);
        assert_eq!(world.spread.used, 4);
        for cores in [vec![0, 1], vec![0, 1, 2]] {
            world.homes = cores;
            assert_eq!(world.after(1, 0.2, (0.2, 0.0)).len(), 1);
        }
        world.homes = vec![0];
        assert_eq!(
            world.calm(20),
            [],
            "twice as long as before, for the first step; not forgotten with the second"
        );
        assert_eq!(world.calm(1), [4]);
    }

    #[test]
    fn a_change_waits_until_no_queue_lacks_time_and_more_not_for_long() {
        let mut world = World::new(64, &[0]);
        assert_eq!(world.after(2000, 0.0, (0.5, 0.5)), [], "a step to fewer waits as long as necessary");
        assert_eq!(world.after(1, 0.0, (0.5, 0.0)).len(), 1);
        world.homes = vec![0, 1];
        assert_eq!(world.after(5, 0.5, (0.5, 0.5)), []);
        assert_eq!(world.after(1, 0.5, (0.5, 0.5)), [(8, WhyResize::Cores(2))], "after 50 ms");
    }

    #[test]
    fn one_queue_with_too_much_takes_all() {
        let mut world = World::new(4, &[0, 1, 2, 3]);
        world.spread = Spread { all: 64, used: 16 };
        let told = world.after(5, 0.0, (0.9, 0.0));
        assert_eq!(told, [], "a moment is not enough");
        let told = world.after(3, 0.0, (0.9, 0.0));
        assert_eq!(told, [(64, WhyResize::Hot { queue: 0, high: 0.85 })]);
        assert_eq!(world.after(100, 0.0, (0.9, 0.0)), [], "also if that does not help");
    }

    #[test]
    fn fewer_must_be_carried() {
        // Two cores with 0.6 each. Together they are above the mark.
        let mut world = World::new(16, &[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(world.after(2000, 0.075, (0.075, 0.0)), [], "all would come to one core");
        assert_eq!(world.after(1001, 0.04, (0.04, 0.0)).len(), 1);
        assert_eq!(world.spread.used, 8);
    }

    #[test]
    fn cores_that_share_a_queue_count() {
        let (view, id) = (View { cores: Vec::new(), queues: vec![queue(0, 0)] }, queue(0, 0).id);
        let plan = Plan { home: [(id, 0)].into(), split: [(id, vec![0, 1, 2])].into() };
        let ports = [(0, Spread { all: 64, used: 4 })].into();
        let decide = |view: &View, plan: &Plan| -> Vec<Resize> {
            let mut in_use = InUse::default();
            let mut after = |period| in_use.decide(period * PERIOD, view, plan, &ports, &Settings::default());
            (1..20).flat_map(&mut after).collect()
        };
        assert_eq!(decide(&view, &plan)[0].to, 16);
        let alone = Plan { split: BTreeMap::new(), ..plan };
        assert_eq!(decide(&view, &alone), []);
        let hot = View { queues: vec![Queue { ran: 0.9, ..queue(0, 0) }], ..view.clone() };
        assert_eq!(decide(&hot, &alone)[0].to, 64);
        let part = Part { core: 1, ran: 0.9, waited: 0.1 };
        let split = Queue { ran: 0.9, parts: vec![part], ..queue(0, 0) };
        assert_eq!(decide(&View { queues: vec![split], ..view }, &alone), [], "a split queue is not hot");
    }

    #[test]
    fn a_change_that_does_not_happen_is_requested_again() {
        let (view, id) = (View { cores: Vec::new(), queues: vec![queue(0, 0)] }, queue(0, 0).id);
        let plan = Plan { home: [(id, 0), (queue(1, 1).id, 1)].into(), split: BTreeMap::new() };
        let ports = [(0, Spread { all: 64, used: 4 })].into();
        let mut in_use = InUse::default();
        let mut decided = 0;
        for period in 1..=1000 {
            decided += in_use.decide(period * PERIOD, &view, &plan, &ports, &Settings::default()).len();
        }
        assert_eq!(decided, 5, "every two seconds");
        assert_eq!(
            in_use.decide(Duration::from_secs(11), &view, &plan, &BTreeMap::new(), &Settings::default()),
            []
        );
        assert!(in_use.ports.is_empty());
    }

    /// The allocator with 4,000 flows on 64 queues of a machine with eight cores. Loads are in cores, each for five
    /// seconds.
    #[test]
    fn queues_in_use_follow_the_load_with_the_allocator() {
        let mut random = crate::fib::synthetic::Random(7);
        let mut flows = [0.0; ALL as usize];
        (0..4000).for_each(|_| flows[random.below(u32::from(ALL)) as usize] += 1.0 / 4000.0);
        let mut machine = Machine::new(8, &(0..ALL).map(|index| index % 8).collect::<Vec<_>>());
        let (mut in_use, mut spread) = (InUse::default(), Spread { all: ALL, used: ALL });
        let mut story = Vec::new();
        for (load, seconds) in [(0.2, 25), (1.0, 5), (3.5, 5), (5.5, 5), (0.2, 60)] {
            let (mut lacked, mut changes) = (0, 0);
            for period in 0..seconds * 100 {
                machine.wants = vec![0.0; usize::from(ALL)];
                for (queue, part) in (0..ALL).zip(flows) {
                    machine.wants[usize::from(owner(queue, ALL, spread.used))] += part * load;
                }
                let mut view = machine.view();
                let lacks = view.queues.iter().any(|q| measure::lacks_time(q.ran, q.waited));
                lacked += u32::from(lacks && period >= 50);
                let id = |index| QueueId { port: 0, index };
                let with = |index| Some((id(index), id(spread.owner(index)?)));
                let goes_with: BTreeMap<QueueId, QueueId> = (0..ALL).filter_map(with).collect();
                merge(&mut view, &goes_with);
                machine.now += PERIOD;
                let mut plan = machine.allocator.decide(machine.now, &view, &machine.settings).plan;
                go_along(&mut plan, &goes_with);
                machine.plan = plan.clone();
                let ports = [(0, spread)].into();
                for Resize { to, .. } in in_use.decide(machine.now, &view, &plan, &ports, &machine.settings) {
                    spread.used = to;
                    changes += 1;
                }
            }
            let cores = machine.plan.cores().len();
            story.push((load, cores, spread.used, changes));
            assert_eq!(lacked, 0, "half a second after the step: {story:?}");
            assert!(usize::from(spread.used) >= (usize::from(EACH) * cores).min(ALL.into()), "{story:?}");
        }
        // Cores, queues in use, and how often these changed. At first eight cores forward, so it takes two steps.
        let expected = [(0.2, 1, 4, 2), (1.0, 2, 8, 1), (3.5, 6, 32, 2), (5.5, 8, 32, 0), (0.2, 1, 4, 1)];
        assert_eq!(story, expected);
    }
}
