//! Flows on cores in virtual time. Each takes the next core of a ring, and loads follow.

use super::*;
use crate::cores::choice::{Choices, Chooser, Flows, Leave, RING};
use proptest::prelude::*;

/// A flow on a core.
#[derive(Clone, Copy, Debug)]
struct Flow {
    core: CoreId,
    load: f64,
    first: bool,
}

struct Bench {
    cores: Vec<Core>,
    queues: Vec<Queue>,
    flows: Vec<Flow>,
    given: BTreeMap<CoreId, Flows>,
    chooser: Chooser,
    choices: Choices,
    turns: [usize; 2],
    settings: Settings,
    now: Duration,
    /// When how many flows left which core.
    left: Vec<(Duration, CoreId, u32)>,
}

impl Bench {
    fn new(cores: u16) -> Bench {
        let mut bench = Bench {
            cores: (0..cores).map(core).collect(),
            queues: Vec::new(),
            flows: Vec::new(),
            given: BTreeMap::new(),
            chooser: Chooser::default(),
            choices: Choices::default(),
            turns: [0; 2],
            settings: Settings::default(),
            now: Duration::ZERO,
            left: Vec::new(),
        };
        bench.period();
        bench
    }

    fn loads(&self) -> BTreeMap<CoreId, f64> {
        let mut loads: BTreeMap<CoreId, f64> = self.cores.iter().map(|c| (c.id, c.other)).collect();
        self.flows.iter().for_each(|flow| *loads.entry(flow.core).or_default() += flow.load);
        loads
    }

    fn take(&mut self, first: bool) -> Option<CoreId> {
        let ring = if first { &self.choices.ring_first } else { &self.choices.ring };
        let turn = &mut self.turns[usize::from(first)];
        let core = *ring.get(*turn % ring.len().max(1))?;
        *turn += 1;
        let given = self.given.entry(core).or_default();
        *(if first { &mut given.given_first } else { &mut given.given }) += 1;
        Some(core)
    }

    /// Begins a flow. Returns the core that it gets.
    fn begin(&mut self, load: f64, first: bool) -> Option<CoreId> {
        let core = self.take(first)?;
        self.flows.push(Flow { core, load, first });
        Some(core)
    }

    fn period(&mut self) {
        self.now += PERIOD;
        for (core, given) in &mut self.given {
            let on = |first| self.flows.iter().filter(|f| f.core == *core && f.first == first).count() as u32;
            (given.others, given.first) = (on(false), on(true));
        }
        let loads = self.loads();
        let cores = self.cores.iter().map(|c| Core { other: loads[&c.id], ..c.clone() }).collect();
        let view = View { cores, queues: self.queues.clone() };
        self.choices = self.chooser.decide(self.now, &view, &self.given, &self.settings);
        self.turns = [0; 2];
        for (core, leave) in self.choices.leave.clone() {
            for (first, count) in [(false, leave.others), (true, leave.first)] {
                let mut moved = 0;
                for at in 0..self.flows.len() {
                    let flow = self.flows[at];
                    if flow.core == core
                        && flow.first == first
                        && moved < count
                        && let Some(to) = self.take(first)
                    {
                        (self.flows[at].core, moved) = (to, moved + 1);
                    }
                }
                self.left.extend((moved > 0).then_some((self.now, core, moved)));
            }
        }
    }

    fn run(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while self.now < end {
            self.period();
        }
    }
}

#[test]
fn a_flow_gets_the_least_loaded_core_without_a_workload() {
    let mut b = Bench::new(4);
    // Table II of paper V: cores 0 and 1 run machines, and core 2 is less loaded than core 3.
    for (core, (other, workloads)) in b.cores.iter_mut().zip([(0.1, 1), (0.5, 1), (0.2, 0), (0.5, 0)]) {
        (core.other, core.workloads) = (other, workloads);
    }
    b.run(500);
    assert_eq!(b.begin(0.1, false), Some(2));
    b.cores[2].workloads = 1;
    b.period();
    assert_eq!(b.begin(0.1, false), Some(3));
    b.cores[3].other = 0.9;
    b.run(500);
    assert_eq!(b.begin(0.1, false), None, "all are highly loaded, or have workloads");
    b.cores[3].other = 0.5;
    b.settings.allowed = Some([0, 2].into());
    b.run(500);
    assert_eq!(b.begin(0.1, false), None, "it may not forward");
}

#[test]
fn flows_that_begin_at_once_are_spread_by_the_room_of_cores() {
    let mut b = Bench::new(3);
    b.cores[1].other = 0.4;
    b.cores[2].other = 0.8;
    b.run(500);
    let got: Vec<CoreId> = (0..40).filter_map(|_| b.begin(0.0, false)).collect();
    let count = |core| got.iter().filter(|&&c| c == core).count();
    // The first 20 fill the gap of 40 %.
    assert_eq!((&got[..20], [0, 1, 2].map(count)), (&[0; 20][..], [30, 10, 0]));
    // The next period continues where this one ended, although nothing is visible yet.
    b.period();
    assert_eq!([(); 2].map(|()| b.begin(0.0, false)), [Some(0), Some(1)]);
    // The flows took little, so the assumption is dropped after two windows.
    b.run(500);
    assert_eq!(b.begin(0.0, false), Some(0));
}

#[test]
fn priority_flows_come_first_and_others_avoid_their_cores() {
    let mut b = Bench::new(3);
    b.cores[0].other = 0.3;
    b.run(500);
    assert_eq!([(); 3].map(|()| b.begin(0.05, true)), [Some(1), Some(2), Some(1)]);
    b.period();
    assert_eq!([(); 3].map(|()| b.begin(0.05, false)), [Some(0); 3]);
    // Nothing else is left, and there is room beside them.
    b.cores[0].other = 0.9;
    b.run(500);
    assert_eq!(b.begin(0.05, false), Some(2));
    b.cores[1].other = 0.7;
    b.cores[2].other = 0.7;
    b.run(500);
    assert_eq!((b.begin(0.05, false), b.begin(0.05, true)), (None, Some(1)), "room for a priority flow only");
}

/// Table VII of paper V on two cores: if others have too much, they lose it, and not in the port's ring.
#[test]
fn priority_flows_get_the_core_of_the_ports_queue_if_it_is_about_as_free() {
    let first = |ran| {
        let mut b = Bench::new(3);
        b.cores[0].other = 0.2;
        b.queues = vec![Queue { ran, ..queue(0, 1) }];
        b.run(500);
        [true, true, false].map(|first| b.begin(0.0, first))
    };
    assert_eq!(first(0.09), [Some(1), Some(2), Some(2)], "one weighs more, so the next has another");
    assert_eq!(first(0.11), [Some(2), Some(1), Some(2)], "the other is freer");
    assert_eq!(first(0.0)[0], Some(1), "before its first packet nothing was polled");
}

#[test]
fn flows_leave_a_core_that_is_too_busy_for_long_and_no_more_than_necessary() {
    let mut b = Bench::new(2);
    b.cores[1].other = 0.8;
    b.run(500);
    assert!((0..8).all(|_| b.begin(0.05, false) == Some(0)));
    b.begin(0.1, true);
    b.cores[1].other = 0.0;
    b.cores[0].other = 0.4;
    let began = b.now;
    b.run(1900);
    assert_eq!(b.left, [], "a hold time has not passed");
    b.run(5000);
    // 90 %, nine flows: 10 % each.
    let [(at, 0, 2)] = b.left[..] else { panic!("{:?}", b.left) };
    assert!(at - began >= b.settings.hold && at - began < Duration::from_millis(2500), "{at:?}");
    assert!(b.flows.iter().all(|flow| !flow.first || flow.core == 0), "the priority flow stays");
}

#[test]
fn one_flow_that_is_too_much_for_any_core_stays() {
    let mut b = Bench::new(2);
    assert_eq!(b.begin(0.95, false), Some(0));
    b.run(20_000);
    assert_eq!(b.left, []);
}

#[test]
fn all_flows_leave_a_core_that_gets_a_workload_if_there_is_another() {
    let mut b = Bench::new(2);
    b.cores[1].other = 0.9;
    b.run(500);
    b.begin(0.1, false);
    b.begin(0.1, true);
    b.cores[0].workloads = 1;
    b.run(1000);
    assert_eq!(b.left, [], "the other is too busy");
    b.cores[1].other = 0.1;
    b.run(1000);
    assert_eq!(b.left.iter().map(|(_, core, count)| (*core, *count)).collect::<Vec<_>>(), [(0, 1), (0, 1)]);
    assert!(b.flows.iter().all(|flow| flow.core == 1));
}

#[test]
fn an_order_to_leave_that_is_no_longer_needed_is_taken_back() {
    let mut chooser = Chooser::default();
    let settings = Settings::default();
    let view = |other: f64| View { cores: vec![Core { other, ..core(0) }, core(1)], queues: vec![] };
    let flows = BTreeMap::from([(0, Flows { others: 10, ..Flows::default() })]);
    let mut orders = Vec::new();
    for ms in (0..6000).step_by(10) {
        let load = if ms < 2500 { 0.9 } else { 0.5 };
        let choices = chooser.decide(Duration::from_millis(ms), &view(load), &flows, &settings);
        orders.extend(choices.leave.get(&0).copied());
    }
    assert_eq!(orders, [Leave { others: 3, first: 0 }, Leave::default()]);
}

proptest! {
    #![proptest_config(crate::cases(64))]

    /// In every case, rings name only cores that may be chosen, with the least loaded first. Flows that do not change
    /// come to rest. No core sends flows away because of its load twice in a hold time.
    #[test]
    fn loads_settle(
        cores in 1..9_u16,
        busy in prop::collection::vec(0.0..1.0_f64, 8),
        burdened in prop::collection::vec(0..3_u16, 8),
        flows in prop::collection::vec((0.0..0.3_f64, any::<bool>(), 0..300_u64), 0..40),
    ) {
        let mut b = Bench::new(cores);
        for (i, (load, first, pause)) in flows.into_iter().enumerate() {
            if i == 5 {
                for (at, core) in b.cores.iter_mut().enumerate() {
                    (core.other, core.workloads) = (busy[at], u16::from(burdened[at] == 0));
                }
                b.period();
            }
            b.begin(load, first);
            b.run(pause);
            let choices = b.choices.clone();
            prop_assert!(choices.ring.len() <= RING);
            for core in choices.ring.iter().chain(&choices.ring_first) {
                prop_assert_eq!(b.cores[usize::from(*core)].workloads, 0);
            }
        }
        b.run(10_000);
        let settled = b.left.len();
        // A flow that left for the wrong core leaves again, ever more seldom: after 4, 8, 16 hold times.
        b.run(60_000);
        let loads = b.loads();
        for core in 0..cores {
            let at: Vec<Duration> = b.left.iter().filter(|(_, c, _)| *c == core).map(|(at, ..)| *at).collect();
            let burdened = b.cores[usize::from(core)].workloads > 0;
            prop_assert!(burdened || at.windows(2).all(|pair| pair[1] - pair[0] >= b.settings.hold), "{:?}", b.left);
        }
        let times: BTreeSet<Duration> = b.left[settled..].iter().map(|(at, ..)| *at).collect();
        prop_assert!(times.len() <= 4, "{:?}", b.left);
        if let Some(&first) = b.choices.ring_first.first() {
            let least = b.cores.iter().filter(|c| c.workloads == 0).map(|c| loads[&c.id]).fold(f64::MAX, f64::min);
            prop_assert!((loads[&first] - least).abs() < 1e-9);
        }
    }
}
