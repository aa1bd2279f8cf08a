//! Shares of a worker over one second, and the examples of the paper.

use super::*;
use crate::{
    paths::{printed, stride::Stride},
    sim::worker::{Arrivals, Price},
};

/// The parts of the core of two paths whose packets cost 1 and 10, with these numbers of packets in a run and these
/// tickets. `charged` gets the packets and cycles of a run and returns the charge.
fn two(bursts: [u64; 2], tickets: [u32; 2], switch: u64, charged: impl Fn(u64, u64) -> u64) -> [f64; 2] {
    let mut stride = Stride::default();
    let tasks = tickets.map(|tickets| stride.add(tickets).unwrap());
    let mut took = [0; 2];
    for _ in 0..200_000 {
        let task = stride.pick().unwrap();
        let i = usize::from(task == tasks[1]);
        let cycles = switch + bursts[i] * [100, 1000][i];
        took[i] += cycles;
        stride.charge(task, charged(bursts[i], cycles));
    }
    took.map(|cycles| cycles as f64 / took.iter().sum::<u64>() as f64)
}

/// P6 with P8: both use 1 / C, which is once too often.
#[test]
fn the_printed_formula_compensates_twice_with_bursts_by_cost() {
    let printed = printed::tickets(&[(100, 1), (1000, 1)]);
    let printed = [printed[0], printed[1]];
    let half = [0.5, 0.5];
    // Each run counts alike. With equal bursts this is right, except for the switch, which is not in C here.
    for burst in [1, 64] {
        assert!(are_near(&two([burst; 2], printed, 0, |_, _| 1), &half, 0.002), "bursts of {burst}");
    }
    // P8: 64 packets, or 6 of those that cost 10 times as much.
    let [_, dear] = two([64, 6], printed, 0, |_, _| 1);
    assert!((dear - 1.0 / 11.0).abs() < 0.01, "{dear}");
    // The reverse is as wrong.
    let [_, dear] = two([1, 64], printed, 0, |_, _| 1);
    assert!((dear - 64.0 / 65.0).abs() < 0.01, "{dear}");
    // The exact form: the use is charged, by the weights, whatever the bursts and the switch.
    for bursts in [[1, 1], [64, 64], [64, 6], [1, 64], [64, 1]] {
        for switch in [0, 6100] {
            let parts = two(bursts, [1, 1], switch, |_, cycles| cycles);
            assert!(are_near(&parts, &half, 0.002), "{bursts:?} {switch}: {parts:?}");
        }
    }
    // If a switch is not charged, small runs are cheap. So it must be charged.
    let [_, dear] = two([1, 64], [1, 1], 6100, |_, cycles| cycles - 6100);
    assert!(dear < 0.1, "{dear}");
}

#[test]
fn shares_hold_for_any_bursts_and_costs() {
    for burst in [Some(1), Some(64), None] {
        for clocked in [false, true] {
            let worker = Worker { burst, clocked, ..SAMPLED };
            let sources = [Source::new(path(1, 1), 300), Source::new(path(2, 1), 3000)];
            let found = parts(&outcomes(&worker, &sources, HZ));
            assert!(are_near(&found, &[0.5, 0.5], 0.005), "{burst:?} {clocked}: {found:?}");
        }
    }
}

#[test]
fn shares_hold_when_a_cost_changes_tenfold_in_the_middle() {
    for (cycles, burst) in
        [(100, None), (100, Some(1)), (1000, None), (1000, Some(1)), (30_000, None), (30_000, Some(1))]
    {
        for (from, to) in [(cycles, 10 * cycles), (10 * cycles, cycles)] {
            let prices = vec![Price::even(from), Price { from: HZ / 2, ..Price::even(to) }];
            let sources = [
                Source { prices, ..Source::new(path(1, 1), 0) },
                Source::new(path(2, 1), 500),
                Source::new(path(3, 8), 2000),
            ];
            let found = parts(&outcomes(&Worker { burst, ..SAMPLED }, &sources, HZ));
            assert!(are_near(&found, &[0.1, 0.1, 0.8], 0.02), "{from} to {to} cycles, {burst:?}: {found:?}");
        }
    }
}

/// Fig. 11: the first path costs 1.4 times as much.
#[test]
fn unequal_paths_of_figure_11() {
    let rates = |weights: [u16; 3]| {
        let sources: Vec<Source> = (0..)
            .zip(weights)
            .map(|(id, w)| Source::new(path(id, w), if id == 0 { 2800 } else { 2000 }))
            .collect();
        let outcomes = outcomes(&Worker { switch_cycles: 0, ..SAMPLED }, &sources, HZ);
        outcomes.iter().map(|outcome| outcome.packets as f64).collect::<Vec<f64>>()
    };
    let equal = rates([1, 1, 1]);
    let third = HZ as f64 / 3.0;
    assert!(are_near(&equal, &[third / 2800.0, third / 2000.0, third / 2000.0], 0.005), "{equal:?}");
    // A third, two ninths, four ninths: 33, 22 and 44 %.
    let weighed = rates([3, 2, 4]);
    assert!(
        are_near(&weighed, &[equal[0], equal[1] * 2.0 / 3.0, equal[2] * 4.0 / 3.0], 0.005),
        "{weighed:?}"
    );
}

#[test]
fn a_router_keeps_its_half_with_one_busy_path() {
    let idle =
        |id| Source { arrivals: Arrivals::Even(HZ), ..Source::new(Path { id, router: 2, weight: 1 }, 500) };
    let busy = |id, router| Source::new(Path { id, router, weight: 1 }, 500);
    let mut sources: Vec<Source> = (0..10).map(|id| busy(id, 1)).collect();
    sources.push(busy(10, 2));
    sources.extend((11..20).map(idle));
    for sleeps in [false, true] {
        let found = parts(&outcomes(&Worker { sleeps, ..SAMPLED }, &sources, HZ));
        let halves = [found[..10].iter().sum::<f64>(), found[10..].iter().sum()];
        assert!(are_near(&halves, &[0.5, 0.5], 0.005), "{sleeps}: {halves:?}");
        assert!(are_near(&found[..10], &[0.05; 10], 0.01), "{found:?}");
        assert!(found[10] > 0.48, "{found:?}");
    }
}

#[test]
fn spare_capacity_goes_to_paths_that_can_use_it() {
    // Router 1 wants a tenth of the core. 2 and 3 share the rest by their weights.
    let source =
        |id, router, arrivals| Source { arrivals, ..Source::new(Path { id, router, weight: 1 }, 800) };
    let sources = [
        source(1, 1, Arrivals::Random(10_000)),
        source(2, 2, Arrivals::Always),
        source(3, 3, Arrivals::Always),
    ];
    let mut scheduler = scheduler();
    [(1, 8), (2, 1), (3, 2)].into_iter().for_each(|(router, weight)| scheduler.weigh(router, weight));
    let (outcomes, scheduler) = SAMPLED.run(scheduler, &sources, HZ).unwrap();
    let found = parts(&outcomes);
    assert_eq!((outcomes[0].dropped, outcomes[0].came.abs_diff(outcomes[0].packets) < 100), (0, true));
    assert!(found[0] < 0.12, "{found:?}");
    assert!(are_near(&[found[2] / found[1]], &[2.0], 0.005), "{found:?}");
    assert_eq!(scheduler.shared(), Resource::Cycles);
}

#[test]
fn asking_idle_paths_costs_little_and_finds_work_soon() {
    let mut sources = vec![Source::new(path(0, 1), 500)];
    // It has a packet every 10 ms. Its ring is looked at within two of the longest runs, like that of a path with work.
    sources.extend((1..16).map(|id| Source {
        arrivals: Arrivals::Even(HZ / 100 + u64::from(id)),
        ..Source::new(path(id, 1), 500)
    }));
    let outcomes = outcomes(&SAMPLED, &sources, HZ);
    let idle: u64 = outcomes.iter().map(|outcome| outcome.idle_cycles).sum();
    assert!((idle as f64 / HZ as f64) < 0.025, "{idle}");
    for outcome in &outcomes[1..] {
        assert!(outcome.packets >= 98 && outcome.longest_wait < u64::from(2 * LONGEST), "{outcome:?}");
    }
}

#[test]
fn tickets_of_paths_without_work_go_down_and_come_back() {
    let mut scheduler = scheduler();
    let handle = scheduler.add(path(1, 1), Cost::default()).unwrap();
    let tickets = |scheduler: &Scheduler| scheduler.accounts().next().unwrap().tickets;
    let run = |scheduler: &mut Scheduler, packets| {
        scheduler.charge(handle, &Run { packets, used: Some(Used::cycles(1000)) })
    };
    assert_eq!(tickets(&scheduler), 1024);
    for expected in [512, 256, 128] {
        run(&mut scheduler, 0);
        assert_eq!(tickets(&scheduler), expected);
    }
    run(&mut scheduler, 1);
    assert_eq!(tickets(&scheduler), 256);
    (0..20).for_each(|_| run(&mut scheduler, 0));
    assert_eq!(tickets(&scheduler), 1);
    scheduler.sleep(handle);
    assert_eq!(scheduler.pick(), None);
    scheduler.wake(handle);
    assert_eq!(tickets(&scheduler), 1024);
    let account = scheduler.accounts().next().unwrap();
    assert_eq!((account.runs, account.empty_runs, account.packets, account.cycles), (24, 23, 1, 24_000));
    // A thousand less a switch of 200.
    assert_eq!((account.cost.of(Resource::Cycles), account.burst), (Some(800), 187));
}

/// IPsec takes 20 cycles for each byte of memory, FWD 2.
#[test]
fn memory_is_shared_where_memory_is_scarce() {
    let source = |id, cycles, memory| {
        let price = Price { memory: Some(memory), ..Price::even(cycles) };
        Source { prices: vec![price], ..Source::new(path(id, 1), 0) }
    };
    let sources = [source(1, 6000, 300), source(2, 600, 300), source(3, 1000, 900)];
    let shares = Shares::Always { resource: Resource::Memory, period: HZ / 1000 };
    let worker = Worker { shares, ..SAMPLED };
    let (outcomes, scheduler) = worker.run(scheduler(), &sources, HZ).unwrap();
    let all: u64 = outcomes.iter().map(|outcome| outcome.memory).sum();
    let found: Vec<f64> = outcomes.iter().map(|outcome| outcome.memory as f64 / all as f64).collect();
    assert!(are_near(&found, &[1.0 / 3.0; 3], 0.02), "{found:?}");
    assert_eq!(scheduler.shared(), Resource::Memory);
    // A path that uses no memory is charged a 16th of its cycles, so it does not get the core for nothing: 1/16 to 2.
    let sources = [source(1, 1000, 0), source(2, 1000, 1000)];
    let (outcomes, _) = worker.run(super::scheduler(), &sources, HZ).unwrap();
    let found = parts(&outcomes);
    assert!(are_near(&found, &[32.0 / 33.0, 1.0 / 33.0], 0.05), "{found:?}");
}

/// In the second of three phases, packets of all paths take so much memory that it is saturated, both while cycles are
/// shared and while memory is.
#[test]
fn memory_is_shared_from_when_it_is_saturated_until_it_is_not() {
    const PERIOD: u64 = HZ / 100;
    const TIME: u64 = 40;
    let weights = [1, 2, 1];
    let source = |(id, memory): (PathId, u64)| {
        let price = |from, memory| Price { from, memory: Some(memory), ..Price::even(1000) };
        let prices = vec![price(0, 100), price(TIME * PERIOD, memory), price(2 * TIME * PERIOD, 100)];
        Source { prices, ..Source::new(path(id, weights[usize::from(id)]), 0) }
    };
    let sources: Vec<Source> = (0..).zip([900, 500, 700]).map(source).collect();
    // By cycles they take 650 bytes per 1,000 cycles, and by memory 612.
    let memory = PERIOD * 680 / 1000;
    let worker = Worker { shares: Shares::Scarce { memory, period: PERIOD }, ..SAMPLED };
    let at = |period: u64| worker.run(scheduler(), &sources, period * PERIOD).unwrap();
    let shared: Vec<Resource> = (1..=3 * TIME).map(|period| at(period).1.shared()).collect();
    let changes: Vec<usize> = (1..shared.len()).filter(|&at| shared[at] != shared[at - 1]).collect();
    // After two periods, and no more often.
    let at_end = |period: u64, change: usize| (period..period + 5).contains(&(change as u64));
    assert!(
        changes.len() == 2 && at_end(TIME, changes[0]) && at_end(2 * TIME, changes[1]),
        "{changes:?} {shared:?}"
    );
    assert_eq!((shared[0], shared[changes[0]]), (Resource::Cycles, Resource::Memory));
    let parts = |from, to, of: fn(&Outcome) -> u64| {
        let [before, after] = [at(from).0, at(to).0];
        let taken: Vec<u64> =
            after.iter().zip(&before).map(|(after, before)| of(after) - of(before)).collect();
        taken.iter().map(|part| *part as f64 / taken.iter().sum::<u64>() as f64).collect::<Vec<f64>>()
    };
    let by_weight = [0.25, 0.5, 0.25];
    for from in [5, TIME + 5, 2 * TIME + 5] {
        let of: fn(&Outcome) -> u64 = if from == TIME + 5 { |o| o.memory } else { |o| o.cycles };
        let found = parts(from, from + 30, of);
        assert!(are_near(&found, &by_weight, 0.02), "from period {from}: {found:?}");
    }
    // The use of the other resource is not by weight then.
    assert!(!are_near(&parts(TIME + 5, TIME + 35, |o| o.cycles), &by_weight, 0.02));
}

#[test]
fn a_resource_that_is_no_longer_counted_is_not_shared() {
    let mut scheduler = scheduler();
    let handle = scheduler.add(path(1, 1), Cost::default()).unwrap();
    let run = |packets, used| Run { packets, used: Some(used) };
    scheduler.charge(handle, &run(10, Used::cycles(10_200).with(Resource::Memory, 5000)));
    scheduler.share(Resource::Memory).unwrap();
    // Not measured: estimated from the cost of packets.
    scheduler.charge(handle, &run(3, Used::cycles(3000)));
    let taken = scheduler.accounts().next().unwrap().taken;
    assert_eq!((taken, scheduler.shared()), (Used::default().with(Resource::Memory, 6500), Resource::Memory));
    scheduler.count(Counters::default());
    assert_eq!((scheduler.shared(), scheduler.share(Resource::Cycles)), (Resource::Cycles, Ok(())));
    scheduler.charge(handle, &run(10, Used::cycles(10_200)));
    assert_eq!(scheduler.accounts().next().unwrap().taken, taken);
    assert!(scheduler.share(Resource::Memory).is_err());
}

#[test]
fn a_resource_that_is_not_counted_is_not_shared() {
    let mut scheduler = Scheduler::new(Settings { counted: Counters::CYCLES, ..settings() }).unwrap();
    let refused = scheduler.share(Resource::Memory).unwrap_err();
    assert_eq!((refused.resource, scheduler.shared()), (Resource::Memory, Resource::Cycles));
    let none = Settings { counted: Counters::default(), ..settings() };
    assert!(Scheduler::new(none).is_err_and(|e| e == NotCounted { resource: Resource::Cycles }));
    // Counted, but nothing was measured yet, so cycles are charged.
    let mut scheduler = super::scheduler();
    assert_eq!((scheduler.share(Resource::Memory), scheduler.shared()), (Ok(()), Resource::Cycles));
}

#[test]
fn paths_come_and_go_and_take_their_known_cost_along() {
    let mut scheduler = scheduler();
    let handle = scheduler.add(path(7, 1), Cost::default()).unwrap();
    assert_eq!(scheduler.add(path(7, 2), Cost::default()), Err(Refused::Twice(7)));
    let next = scheduler.pick().unwrap();
    assert_eq!((next.handle, handle.id, next.burst, next.measure), (handle, 7, Bursts::UNKNOWN, true));
    scheduler.charge(handle, &Run { packets: 8, used: Some(Used::cycles(8200)) });
    let cost = scheduler.remove(handle).unwrap();
    assert_eq!(scheduler.remove(handle), None);
    assert_eq!(
        (scheduler.pick(), scheduler.accounts().count(), cost.of(Resource::Cycles)),
        (None, 0, Some(1000))
    );
    let mut other = super::scheduler();
    other.add(path(7, 1), cost).unwrap();
    assert_eq!(other.pick().unwrap().burst, 149);
    for id in 100..163 {
        other.add(path(id, 1), cost).unwrap();
    }
    assert!(matches!(other.add(path(200, 1), cost), Err(Refused::Full(_))));
    assert!(other.add(Path { id: 200, router: 9, weight: 1 }, cost).is_ok());
}

#[test]
fn arrivals_and_departures_get_their_part_at_once() {
    // The third exists only in the second quarter. The first ends after three quarters.
    let sources = [
        Source { there: [0, 3 * HZ / 4], ..Source::new(path(1, 1), 700) },
        Source::new(path(2, 1), 700),
        Source { there: [HZ / 4, HZ / 2], ..Source::new(path(3, 2), 700) },
    ];
    let found = parts(&outcomes(&SAMPLED, &sources, HZ));
    // 1/8 + 1/16 + 1/8; the same and 1/4; 1/8.
    assert!(are_near(&found, &[0.3125, 0.5625, 0.125], 0.01), "{found:?}");
}
