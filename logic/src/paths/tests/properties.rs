//! Properties that hold for any paths.

use super::*;
use crate::sim::worker::{Arrivals, Price};
use proptest::prelude::*;

/// Weights of one to three routers.
fn weights() -> impl Strategy<Value = Vec<u16>> {
    prop::collection::vec(1u16..10, 1..4)
}

/// One to seven paths by router with these weights, their costs, and one packet in ten that costs more.
fn sources(extra: bool) -> impl Strategy<Value = Vec<Source>> {
    let cycles = prop_oneof![40u64..400, 200u64..8000];
    let one = (0u8..3, 1u16..10, cycles, 0u64..3).prop_map(move |(router, weight, cycles, dear)| {
        let price = Price { one_in: 10, extra: if extra { dear * cycles } else { 0 }, ..Price::even(cycles) };
        Source { prices: vec![price], ..Source::new(Path { id: 0, router, weight }, 0) }
    });
    prop::collection::vec(one, 1..8).prop_map(|sources| {
        let numbered = |(id, mut source): (PathId, Source)| {
            source.path.id = id;
            source
        };
        (0..).zip(sources).map(numbered).collect()
    })
}

fn weighed(weights: &[u16]) -> Scheduler {
    let mut scheduler = scheduler();
    (0..).zip(weights).for_each(|(router, weight)| scheduler.weigh(router, *weight));
    scheduler
}

fn weight_of(weights: &[u16], router: u8) -> f64 {
    f64::from(weights.get(usize::from(router)).copied().unwrap_or(1))
}

/// The part of the core that each is promised.
fn promised(weights: &[u16], sources: &[Source]) -> Vec<f64> {
    let in_router = |router: u8| sources.iter().filter(move |source| source.path.router == router);
    let routers: f64 = (0..3)
        .filter(|&router| in_router(router).next().is_some())
        .map(|router| weight_of(weights, router))
        .sum();
    let share = |source: &Source| {
        let paths: f64 = in_router(source.path.router).map(|other| f64::from(other.path.weight)).sum();
        weight_of(weights, source.path.router) / routers * f64::from(source.path.weight) / paths
    };
    sources.iter().map(share).collect()
}

/// Whether each is within 2 %, and two runs, of its promise.
fn hold(outcomes: &[Outcome], promised: &[f64]) -> bool {
    let longest = outcomes.iter().map(|outcome| outcome.longest_run).max().unwrap_or(0) as f64;
    let two_runs = 2.0 * longest / HZ as f64;
    let mut both = parts(outcomes).into_iter().zip(promised);
    both.all(|(found, promised)| (found - promised).abs() <= 0.02 * promised + two_runs)
}

/// The longest time that a path with a full ring waits between two runs, if no run is longer than `longest`. Until it
/// runs again, each path of its router uses at most its run's worth and one more run. The same holds for routers, with
/// all of that.
fn longest_wait(weights: &[u16], sources: &[Source], of: &Source, longest: f64) -> f64 {
    let paths =
        sources.iter().filter(|other| other.path.router == of.path.router && other.path.id != of.path.id);
    let router: f64 = longest
        + paths
            .map(|other| longest * (1.0 + f64::from(other.path.weight) / f64::from(of.path.weight)))
            .sum::<f64>();
    let mine = weight_of(weights, of.path.router);
    let routers = (0..3)
        .filter(|&other| other != of.path.router && sources.iter().any(|source| source.path.router == other));
    router + routers.map(|other| longest + router * weight_of(weights, other) / mine).sum::<f64>()
}

#[derive(Clone, Debug)]
enum Do {
    Add(u8, u16),
    Remove(usize),
    Sleep(usize),
    Wake(usize),
    Weigh(u8, u16),
    Share(Resource),
    Run,
}

/// An operation and a run after it, measured or not, of any size.
fn what() -> impl Strategy<Value = (Do, Run)> {
    let what = prop_oneof![
        2 => (0u8..3, 0u16..9).prop_map(|(router, weight)| Do::Add(router, weight)),
        1 => (0usize..8).prop_map(Do::Remove),
        2 => (0usize..8).prop_map(Do::Sleep),
        2 => (0usize..8).prop_map(Do::Wake),
        1 => (0u8..3, any::<u16>()).prop_map(|(router, weight)| Do::Weigh(router, weight)),
        1 => prop_oneof![Just(Resource::Cycles), Just(Resource::Memory), Just(Resource::Io)].prop_map(Do::Share),
        9 => Just(Do::Run),
    ];
    let amount = || prop_oneof![Just(0), Just(u64::MAX), 0u64..1_000_000];
    let used =
        (amount(), amount()).prop_map(|(cycles, memory)| Used::cycles(cycles).with(Resource::Memory, memory));
    let packets = prop_oneof![Just(0), Just(u32::MAX), 1u32..300];
    (what, (packets, prop::option::of(used)).prop_map(|(packets, used)| Run { packets, used }))
}

proptest! {
    #![proptest_config(crate::cases(6))]

    /// Shares hold within 2 % (and two runs) over one second, for any weights, costs and bursts. One packet in twenty
    /// is measured.
    #[test]
    fn shares_hold(
        weights in weights(), sources in sources(false), burst in prop::option::weighted(0.5, 1u32..65), seed: u64
    ) {
        let worker = Worker { burst, seed, ..SAMPLED };
        let (outcomes, _) = worker.run(weighed(&weights), &sources, HZ).unwrap();
        let (found, promised) = (parts(&outcomes), promised(&weights, &sources));
        prop_assert!(hold(&outcomes, &promised), "{found:?} {promised:?}");
    }

    /// The same if one packet in ten takes up to three times as long, and a clock is read with every run. No path
    /// starves.
    #[test]
    fn shares_hold_and_nobody_starves(
        weights in weights(), sources in sources(true), burst in prop::option::weighted(0.5, 1u32..65), seed: u64
    ) {
        let worker = Worker { burst, seed, clocked: true, ..SAMPLED };
        let (outcomes, _) = worker.run(weighed(&weights), &sources, HZ).unwrap();
        let (found, promised) = (parts(&outcomes), promised(&weights, &sources));
        prop_assert!(hold(&outcomes, &promised), "{found:?} {promised:?}");
        let longest = outcomes.iter().map(|outcome| outcome.longest_run).max().unwrap_or(0) as f64;
        for (source, outcome) in sources.iter().zip(&outcomes) {
            let bound = longest_wait(&weights, &sources, source, longest);
            prop_assert!(outcome.longest_wait as f64 <= bound, "{source:?} {outcome:?} {bound}");
        }
    }

    /// A tenth of a second. If somebody wants more of the core, less than a tenth of it is spent asking without result,
    /// or a fifth if paths without packets do not sleep. A path that wants less than its share gets all that it wants.
    #[test]
    fn no_time_is_wasted_and_small_wants_are_met(
        weights in weights(), sources in sources(false), wants in prop::collection::vec(0.01..3.0, 8), sleeps: bool, seed: u64
    ) {
        let promised = promised(&weights, &sources);
        let arriving = |((mut source, promised), want): ((Source, &f64), f64)| {
            // With a switch for each packet in the worst case.
            let cycles = source.prices[0].cycles + u64::from(SWITCH);
            source.arrivals = Arrivals::Random(((cycles as f64) / (want * promised)) as u64 + 1);
            source.ring = if want < 0.9 { 1 << 16 } else { 1024 };
            source
        };
        let sources: Vec<Source> = sources.into_iter().zip(&promised).zip(wants.iter().copied()).map(arriving).collect();
        let worker = Worker { sleeps, seed, ..SAMPLED };
        let (outcomes, _) = worker.run(weighed(&weights), &sources, HZ / 10).unwrap();
        for ((outcome, want), source) in outcomes.iter().zip(&wants).zip(&sources) {
            if *want < 0.9 {
                prop_assert_eq!(outcome.dropped, 0, "{:?} {}", source, want);
                // The rest waits for its next run.
                let left = outcome.came - outcome.packets;
                prop_assert!(left as f64 <= 0.02 * outcome.came as f64 + 1024.0, "{outcome:?} {want} {source:?}");
            }
        }
        if outcomes.iter().any(|outcome| outcome.dropped > outcome.came / 50) {
            let working: u64 = outcomes.iter().map(|outcome| outcome.cycles - outcome.idle_cycles).sum();
            let least = if sleeps { 0.09 } else { 0.08 };
            prop_assert!(working as f64 >= least * HZ as f64, "{outcomes:?}");
        }
    }

    /// After any operations, a path is picked whenever one is awake, and never a sleeping one. Handles of removed paths
    /// do no harm.
    #[test]
    fn only_paths_that_are_awake_are_picked(todo in prop::collection::vec(what(), 1..300)) {
        let mut scheduler = scheduler();
        let mut paths: Vec<(Handle, PathId, bool)> = Vec::new();
        for (id, (what, run)) in (0..).zip(todo) {
            match what {
                Do::Add(router, weight) => {
                    let handle = scheduler.add(Path { id, router, weight }, Cost::default()).unwrap();
                    paths.push((handle, id, true));
                }
                Do::Weigh(router, weight) => scheduler.weigh(router, weight),
                Do::Share(resource) => prop_assert_eq!(scheduler.share(resource).is_ok(), resource != Resource::Io),
                Do::Remove(i) | Do::Sleep(i) | Do::Wake(i) => {
                    let Some(path) = paths.get_mut(i) else { continue };
                    let is_there = scheduler.find(path.1).is_some();
                    match what {
                        Do::Sleep(_) => scheduler.sleep(path.0),
                        Do::Wake(_) => scheduler.wake(path.0),
                        _ => prop_assert_eq!(scheduler.remove(path.0).is_some(), is_there),
                    }
                    path.2 = is_there && (matches!(what, Do::Wake(_)));
                }
                Do::Run => {}
            }
            let next = scheduler.pick();
            let awake = paths.iter().filter(|path| path.2).count();
            prop_assert_eq!(next.is_some(), awake > 0);
            if let Some(next) = next {
                prop_assert!(paths.contains(&(next.handle, next.handle.id, true)) && (1..=256).contains(&next.burst));
                scheduler.charge(next.handle, &run);
            }
            if let Some((handle, ..)) = paths.first() {
                scheduler.charge(*handle, &run);
            }
        }
    }
}
