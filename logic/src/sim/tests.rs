//! Whole runs.

use super::{
    run::{Decider, Run},
    *,
};
use crate::{
    cores::{CoreId, Counted, Decision, Plan, Policy, QueueId, Settings},
    fib::synthetic::Random,
};

/// Each core without a sibling, one port with this many queues. A packet takes 1 us and needs no wake-up.
pub(super) fn scenario(cores: u16, queues: u16) -> Scenario {
    Scenario {
        machine: Machine { cores, nodes: 1, siblings: 1, sibling_speed: 1000 },
        cost: Cost { ns_per_packet: 1000, wake_ns: 0, hand_on_ns: 500, take_ns: 0, rouse_ns: 0, start_ns: 0 },
        ports: vec![SimPort { queues, node: None, ring: 50 }],
        sources: Vec::new(),
        applications: Vec::new(),
        settings: Settings::default(),
        settle: Duration::ZERO,
        duration: Duration::from_millis(20),
        seed: 1,
    }
}

fn constant(pps: u64) -> Rate {
    Rate::Line(vec![Point { at: Duration::ZERO, pps }])
}

fn source(rate: Rate) -> Source {
    Source { port: 0, flows: None, rate, arrivals: Arrivals::Even }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

const SPREAD: Placement = Placement::Allocator(Policy::Spread);
const PACK: Placement = Placement::Allocator(Policy::Pack);

fn is_conserved(results: &Results) -> bool {
    let after = results.forwarded + results.dropped + results.waiting;
    results.dropped_of.values().sum::<u64>() == results.dropped && results.carried + results.sent == after
}

#[test]
fn a_core_with_too_much_to_do_forwards_what_it_can_and_drops_the_rest() {
    // 200 packets arrive in each of 200 slices, 100 are forwarded, 50 wait in the ring. An application is on the other
    // core.
    let application = Application { cores: None, wants: 600, sharing: Sharing::Rest, pinned: false };
    let scenario = Scenario {
        sources: vec![source(constant(2_000_000))],
        applications: vec![application],
        ..scenario(2, 1)
    };
    let results = scenario.run(&SPREAD).unwrap();
    assert_eq!((results.sent, results.forwarded, results.waiting), (40_000, 20_000, 50));
    assert_eq!((results.dropped, results.carried), (19_950, 0));
    assert_eq!(results.dropped_of, [(QueueId { port: 0, index: 0 }, 19_950)].into());
    assert_eq!(results.cores, Cores { periods: vec![0, 2] });
    assert_eq!(results.forwarding, Duration::from_millis(20));
    // The core waits 499 ns for its first packet.
    assert_eq!(results.applications, Duration::from_nanos(12_000_499));
    assert_eq!(results.applications_alone, Duration::from_millis(24));
    assert!(results.application_share().is_some_and(|share| (share - 0.5).abs() < 1e-4));
    assert_eq!(results.ns_per_packet(), Some(1000.0));
    // A packet that takes the last place waits for the other 49 and for the rest of the current one.
    assert_eq!((results.latency.packets, results.latency.max_ns), (20_000, 50_500));
    assert!(is_conserved(&results) && results.moves.is_empty() && results.reaction.is_none());
}

#[test]
fn at_low_load_packets_wait_for_the_wake_up_and_cost_more() {
    // A packet arrives every 100 us and wakes the core: 314 + 643 ns.
    let scenario = Scenario {
        sources: vec![source(constant(10_000))],
        cost: Cost::MILLRACE,
        settle: Duration::from_millis(30),
        ..scenario(1, 1)
    };
    let results = scenario.run(&SPREAD).unwrap();
    assert_eq!((results.sent, results.forwarded, results.dropped), (200, 200, 0));
    assert_eq!(results.ns_per_packet(), Some(957.0));
    assert_eq!((results.latency.quantile_ns(0.5), results.latency.max_ns), (Some(957), 957));
}

/// The formula of [`Cost`], at rates from a tenth of the saturating one on. It is for independent packets.
#[test]
fn costs_follow_the_formula() {
    let ns = |cost: Cost, pps: u64| {
        let sources = vec![Source { arrivals: Arrivals::Poisson, ..source(constant(pps)) }];
        let scenario = Scenario { sources, cost, duration: seconds(1.0), ..scenario(1, 1) };
        let ports = vec![SimPort { ring: 4096, ..scenario.ports[0].clone() }];
        Scenario { ports, ..scenario }.run(&SPREAD).unwrap().ns_per_packet().unwrap()
    };
    let expected = [
        (Cost::MILLRACE, 318_000, 794.0),
        (Cost::MILLRACE, 400_000, 761.0),
        (Cost::MILLRACE, 500_000, 724.0),
        (Cost::LINUX, 440_000, 1039.0),
        (Cost::LINUX, 1_449_000, 690.0),
    ];
    for (cost, pps, expected) in expected {
        let ns = ns(cost, pps);
        assert!((ns / expected - 1.0).abs() < 0.01, "{pps}: {ns}, not {expected}");
    }
}

#[test]
fn siblings_slow_each_other_down() {
    let both = Application { cores: None, wants: 1000, sharing: Sharing::Rest, pinned: false };
    let machine = Machine { cores: 4, nodes: 2, siblings: 2, sibling_speed: 600 };
    assert_eq!([0, 1, 2, 3].map(|core| machine.node(core)), [0, 1, 0, 1]);
    assert_eq!(machine.sibling(1), Some(3));
    let on_one = Application { cores: Some(vec![0]), ..both.clone() };
    let got = |application: Application| {
        let applications = vec![application];
        let results =
            Scenario { machine: machine.clone(), applications, ..scenario(4, 1) }.run(&SPREAD).unwrap();
        (results.applications, results.applications_alone)
    };
    assert_eq!(got(on_one), (Duration::from_millis(20), Duration::from_millis(20)));
    // In the first slice, nobody knows yet that the other works.
    let (applications, alone) = got(both);
    assert_eq!(alone, Duration::from_millis(4 * 12));
    assert_eq!(applications, alone + Duration::from_micros(4 * 40));
}

#[test]
fn a_queue_that_is_split_hands_packets_on_until_it_is_joined() {
    let scenario = scenario(3, 1);
    let mut run = Run::new(&scenario, None, &[1]);
    let queue = QueueId { port: 0, index: 0 };
    let decision = |home: CoreId, split: &[CoreId]| Decision {
        plan: Plan {
            home: [(queue, home)].into(),
            split: if split.is_empty() { [].into() } else { [(queue, split.to_vec())].into() },
        },
        ..Decision::default()
    };
    let far = Duration::from_millis(10);
    // 60 packets in each slice, at equal distances. Returns the packets of each task, and how long it ran.
    let mut now = 0;
    let mut slices = |run: &mut Run| {
        for _ in 0..100 {
            let times: Vec<u64> = (0..60).map(|packet| now * SLICE_NS + packet * SLICE_NS / 60).collect();
            run.arrive(0, &times);
            run.slice(now);
            now += 1;
        }
        let ran: Vec<(u64, u64)> = run.tasks.iter().map(|task| (task.done, task.ran_ns)).collect();
        run.end_period(far, &mut Decider::Nobody);
        ran
    };
    run.apply(far, &decision(0, &[0, 2]));
    let [home, other] = slices(&mut run)[..] else { panic!("two tasks") };
    assert_eq!(home.0, 6000);
    // A packet that is handed on costs its home half of a packet's time.
    assert!(other.0.abs_diff(3000) < 150 && other.1 == other.0 * 1000, "{other:?}");
    let handed = other.0 + run.held();
    assert_eq!(home.1, (6000 - handed) * 1000 + handed * 500);
    assert_eq!(run.results.forwarded, 6000 - run.held());
    // The home forwards no packets itself. Waiting packets are forwarded where they are.
    run.apply(far, &decision(0, &[1, 2]));
    let [home, second, third] = slices(&mut run)[..] else { panic!("three tasks") };
    assert!(home == (6000, 3_000_000) || home == (5999, 2_999_500), "{home:?}");
    assert!(second.0.abs_diff(3000) < 150 && third.0.abs_diff(3000) < 150, "{second:?} {third:?}");
    assert_eq!((run.results.splits, run.results.moves.len(), run.results.dropped), (2, 0, 0));
    // Joined elsewhere: the others finish their packets and are removed.
    run.apply(far, &decision(1, &[]));
    assert_eq!((run.tasks[0].core, run.results.splits), (1, 3));
    slices(&mut run);
    run.apply(far, &decision(1, &[]));
    assert_eq!((run.tasks.len(), run.results.splits), (1, 3));
    assert_eq!(run.results.sent, 3 * 6000);
    assert!(is_conserved(&run.finish()));
}

#[test]
fn the_allocator_sees_what_cores_queues_and_applications_did() {
    let pinned = Application { cores: Some(vec![1]), wants: 250, sharing: Sharing::Rest, pinned: true };
    let mut scenario = Scenario { applications: vec![pinned], ..scenario(2, 2) };
    scenario.ports[0].node = Some(0);
    let slices = |run: &mut Run, came: [u64; 2]| {
        for now in 0..100 {
            for (queue, packets) in came.into_iter().enumerate() {
                let times = (0..packets).map(|packet| now * SLICE_NS + packet * SLICE_NS / packets);
                run.arrive(queue, &times.collect::<Vec<_>>());
            }
            run.slice(now);
        }
    };
    let mut run = Run::new(&scenario, None, &[2]);
    slices(&mut run, [10, 120]);
    let view = run.view();
    let other = |core: usize| (view.cores[core].workloads, view.cores[core].other);
    assert_eq!((other(0), other(1)), ((0, 0.0), (1, 0.0)));
    let seen: Vec<_> = view.queues.iter().map(|q| (q.id.index, q.core, q.ran, q.waited, q.node)).collect();
    assert_eq!(seen, [(0, 0, 0.1, 0.0, Some(0)), (1, 1, 1.0, 0.0, Some(0))]);
    let counted = |packets_per_s| Some(Counted { packets_per_s, wakeups_per_s: 100_000.0 });
    assert_eq!(view.queues[0].counted, counted(100_000.0));
    let counted = Some(Counted { packets_per_s: 1_000_000.0, wakeups_per_s: 100.0 });
    assert_eq!(view.queues[1].counted, counted, "arrived packets are not finished packets");
}

/// A small scenario with random values.
fn random(seed: u64) -> Scenario {
    let mut random = Random(seed);
    let mut below = |limit: u32| random.below(limit);
    let siblings = 1 + below(2) as u16;
    let cores = siblings * (1 + below(6) as u16);
    let ports: Vec<_> = (0..1 + below(2))
        .map(|_| SimPort { queues: 1 + below(8) as u16, node: None, ring: 1 + below(600) })
        .collect();
    let ms = Duration::from_millis;
    let rate = |below: &mut dyn FnMut(u32) -> u32| {
        let pps = u64::from(below(5_000_000));
        match below(4) {
            0 => Rate::Line(vec![Point { at: ms(10), pps }, Point { at: ms(300), pps: pps / 3 }]),
            1 => Rate::Wave { low_pps: pps / 2, high_pps: pps, period: ms(150) },
            2 => Rate::OnOff { pps, on: ms(5), off: ms(20) },
            _ => Rate::Elephants {
                flows_per_second: 3000,
                lasting: ms(40),
                least_pps: 5000,
                most_pps: 900_000,
            },
        }
    };
    let sources = (0..1 + below(4))
        .map(|_| Source {
            port: below(ports.len() as u32) as u8,
            flows: Some(below(20)).filter(|flows| *flows > 0),
            rate: rate(&mut below),
            arrivals: if below(2) == 0 { Arrivals::Even } else { Arrivals::Poisson },
        })
        .collect();
    let sharing = if below(2) == 0 { Sharing::Rest } else { Sharing::Fair };
    let applications =
        vec![Application { cores: None, wants: below(1001) as u16, sharing, pinned: below(2) == 0 }];
    Scenario {
        machine: Machine { cores, nodes: 1, siblings, sibling_speed: 620 },
        cost: Cost { ns_per_packet: [314, 1000, 5000][below(3) as usize], ..Cost::MILLRACE },
        ports,
        sources,
        applications,
        // Much is moved, split and joined.
        settings: Settings { hold: ms(50), low: 0.84, ..Settings::default() },
        settle: ms(100),
        duration: ms(600),
        seed,
    }
}

#[test]
fn every_packet_is_forwarded_dropped_or_waits_and_runs_are_repeatable() {
    for seed in 0..12 {
        let scenario = random(seed);
        for placement in [PACK, SPREAD, Placement::RssHash, Placement::Oracle] {
            let results = scenario.run(&placement).unwrap();
            assert!(is_conserved(&results), "{seed}, {placement:?}: {results:?}");
            assert_eq!(results.latency.packets, results.forwarded, "{seed}, {placement:?}");
            assert!(results.sent > 0 && results.applications <= results.applications_alone + seconds(0.01));
            assert_eq!(scenario.run(&placement).unwrap(), results, "{seed}, {placement:?}");
        }
    }
}

#[test]
fn seeds_differ() {
    let run = |seed| Scenario { seed, ..random(3) }.run(&SPREAD).unwrap().sent;
    assert_ne!(run(1), run(2));
}

#[test]
fn more_cores_never_drop_more_when_spread() {
    let dropped = |cores: u16| {
        let sources = vec![Source { arrivals: Arrivals::Poisson, ..source(constant(3_000_000)) }];
        let scenario = Scenario { sources, duration: seconds(0.1), ..scenario(cores, 8) };
        scenario.run(&SPREAD).unwrap().dropped
    };
    let dropped: Vec<u64> = (1..=8).map(dropped).collect();
    assert!(dropped.is_sorted_by(|fewer, more| fewer >= more), "{dropped:?}");
    assert!(dropped[0] > 190_000 && dropped[7] == 0, "{dropped:?}");
}

#[test]
fn scenarios_that_cannot_be_simulated_are_refused() {
    let bad = |change: fn(&mut Scenario)| {
        let mut scenario = random(1);
        change(&mut scenario);
        scenario.run(&PACK).unwrap_err().to_string()
    };
    assert_eq!(bad(|s| s.machine.cores = 129), "cores: 1 to 128");
    assert_eq!(bad(|s| s.machine.cores = 0), "cores: 1 to 128");
    assert_eq!(bad(|s| s.machine.siblings = 0), "siblings: 1 or 2, dividing the cores");
    assert_eq!(bad(|s| s.settings.allowed = Some([128].into())), "allowed cores: at least one that exists");
    assert_eq!(bad(|s| s.ports.clear()), "ports: 1 to 64");
    assert_eq!(bad(|s| s.sources[0].port = 9), "source: a port that exists");
    assert_eq!(bad(|s| s.duration = Duration::MAX), "time: above 0, at most an hour with settling");
    assert_eq!(bad(|s| s.sources[0].rate = Rate::Line(vec![])), "line: 1 to 10000 points");
    assert_eq!(bad(|s| s.cost.ns_per_packet = 0), "ns per packet: 1 to 100000");
}

/// Four queues that take 36 % of a core each. For some time before they have twice as much, so that the cost of waking
/// up is known.
#[test]
fn queues_that_fit_a_core_together_share_one_and_lose_nothing() {
    let quarters = growing(4, 4, &[(0.0, 4_000_000), (2.0, 4_000_000), (2.0, 1_985_000)]);
    let [packed, spread] = [PACK, SPREAD].map(|placement| quarters.run(&placement).unwrap());
    assert_eq!((packed.dropped, packed.cores.mean(), packed.moves.len()), (0, 2.0, 0));
    let of_core = |results: &Results, cores: f64| results.forwarding.as_secs_f64() / 10.0 / cores;
    assert!((0.355..0.365).contains(&of_core(&spread, 4.0)), "{}", of_core(&spread, 4.0));
    assert!((0.575..0.585).contains(&of_core(&packed, 2.0)), "{}", of_core(&packed, 2.0));
}

/// A load that one core can carry, and later another one, with the measured cost of packets.
fn growing(cores: u16, queues: u16, points: &[(f64, u64)]) -> Scenario {
    let line = points.iter().map(|&(at, pps)| Point { at: seconds(at), pps }).collect();
    Scenario {
        cost: Cost::MILLRACE,
        ports: vec![SimPort { queues, node: None, ring: 1024 }],
        sources: vec![Source { arrivals: Arrivals::Poisson, ..source(Rate::Line(line)) }],
        // After that, everything is on one core.
        settle: seconds(5.0),
        duration: seconds(10.0),
        ..scenario(cores, queues)
    }
}

#[test]
fn a_step_gets_its_second_core_at_once_and_loses_nothing() {
    let step = growing(4, 4, &[(6.003, 700_000), (6.003, 2_600_000)]);
    let results = step.run(&PACK).unwrap();
    assert_eq!((results.dropped, results.cores.most()), (0, 2));
    assert!(results.reaction.is_some_and(|time| time < Duration::from_millis(50)), "{:?}", results.reaction);
    // One core in the first second, then two.
    assert!((1.85..1.95).contains(&results.cores.mean()), "{:?}", results.cores);
    let spread = step.run(&SPREAD).unwrap();
    assert_eq!((spread.dropped, spread.cores.most(), spread.moves.len()), (0, 4, 0));
    assert!(spread.ns_per_packet() > results.ns_per_packet());
}

#[test]
fn a_gentle_ramp_loses_nothing_while_cores_are_added() {
    let results = growing(8, 16, &[(5.0, 500_000), (15.0, 12_000_000)]).run(&PACK).unwrap();
    assert_eq!(results.dropped, 0);
    assert!(results.cores.most() > 4 && results.cores.mean() < 6.5, "{:?}", results.cores);
}

#[test]
fn a_load_that_fluctuates_around_the_mark_moves_no_queue_twice_in_a_hold_time() {
    let mut wobble = growing(4, 4, &[(5.0, 200_000), (5.0, 1_800_000)]);
    let wave = Rate::Wave { low_pps: 0, high_pps: 500_000, period: seconds(0.5) };
    wobble.sources.push(Source { arrivals: Arrivals::Poisson, ..source(wave) });
    for seed in 0..5 {
        let results = Scenario { seed, ..wobble.clone() }.run(&PACK).unwrap();
        assert_eq!(results.most_moves_within(wobble.settings.hold), 1, "{:?}", results.moves);
        assert_eq!((results.dropped, results.cores.most()), (0, 2), "{seed}");
    }
}

#[test]
fn a_queue_hotter_than_a_core_is_split() {
    let hot = growing(4, 1, &[(6.0, 1_000_000), (6.0, 5_000_000)]);
    let [packed, spread] = [PACK, SPREAD].map(|placement| hot.run(&placement).unwrap());
    assert!(packed.splits > 0 && packed.moves.is_empty(), "{packed:?}");
    assert!(packed.dropped * 10 < spread.dropped, "{} {}", packed.dropped, spread.dropped);
    assert!(is_conserved(&packed) && is_conserved(&spread));
}

/// The same, but cores share no queue.
fn whole(scenario: &Scenario) -> Scenario {
    Scenario { settings: Settings { splits: false, ..Settings::default() }, ..scenario.clone() }
}

/// A step at 6 s, from a part of what a core carries to several times that.
fn step(queues: u16, ns_per_packet: u64, from: f64, to: f64) -> Scenario {
    let pps = |load: f64| (load * 1e9 / ns_per_packet as f64) as u64;
    let scenario = growing(4, queues, &[(6.0, pps(from)), (6.0, pps(to))]);
    Scenario {
        cost: Cost { ns_per_packet, ..Cost::MILLRACE },
        ports: vec![SimPort { queues, node: None, ring: 256 }],
        duration: seconds(1.2),
        ..scenario
    }
}

#[test]
fn a_step_beyond_a_core_loses_nothing_because_others_help_at_once() {
    // Queues, ns per packet, load before and after, and the limit in us for the first help: one or two full polls.
    let table = [
        (1, 5000, 0.5, 1.6, 410),
        (1, 1000, 0.5, 1.6, 165),
        (4, 1000, 0.5, 1.6, 300),
        (16, 2000, 0.2, 2.4, 900),
    ];
    for (queues, ns, from, to, us) in table {
        let scenario = step(queues, ns, from, to);
        let packed = scenario.run(&PACK).unwrap();
        assert!(whole(&scenario).run(&PACK).unwrap().dropped > 1000, "without help");
        assert_eq!(packed.dropped, 0, "{queues} {ns}: {:?}", packed.dropped_of);
        assert!(
            packed.spills > 0 && packed.helped.iter().all(|time| time.as_micros() < us),
            "{:?}",
            packed.helped
        );
        assert!(is_conserved(&packed));
        if queues > 1 {
            assert!(
                !packed.moves.is_empty(),
                "the allocator places whole queues when it knows what they want"
            );
            assert_eq!(scenario.run(&SPREAD).unwrap().dropped, 0);
        }
    }
}

#[test]
fn help_comes_wherever_in_a_control_period_and_beside_light_queues() {
    for ms in [1, 3, 5, 7, 9] {
        let mut scenario = step(1, 1000, 0.4, 1.5);
        let at = seconds(6.0) + Duration::from_millis(ms);
        let Rate::Line(points) = &mut scenario.sources[0].rate else { panic!("a line") };
        points.iter_mut().for_each(|point| point.at = at);
        // A queue with few packets is polled between those of the other one.
        scenario.ports.push(scenario.ports[0].clone());
        scenario.sources.push(Source { port: 1, ..source(constant(100_000)) });
        let packed = scenario.run(&PACK).unwrap();
        assert_eq!(packed.dropped, 0, "{ms} ms: {:?}", packed.dropped_of);
        assert!(packed.helped.iter().all(|time| time.as_micros() < 500), "{ms} ms: {:?}", packed.helped);
    }
}

#[test]
fn bursts_that_fit_their_core_get_little_help() {
    for (queues, ns, load, burst) in [(1, 1000, 0.5, 32), (4, 1000, 0.5, 32), (1, 5000, 0.6, 32)] {
        let mut bursts = step(queues, ns, load, load);
        bursts.sources[0].arrivals = Arrivals::Bursts(burst);
        let packed = bursts.run(&PACK).unwrap();
        let alone = whole(&bursts).run(&PACK).unwrap();
        assert!(packed.dropped <= alone.dropped, "{} {}", packed.dropped, alone.dropped);
        assert!(packed.spills < 10, "{}", packed.spills);
        let more = packed.forwarding.as_secs_f64() / alone.forwarding.as_secs_f64();
        assert!(more < 1.01, "{queues} {ns}: {more}");
    }
}
