//! Forwarders with a known fault: does the lab find it, and measure it correctly? These need root, and run in their own
//! namespaces (`make test-root`).

use std::time::{Duration, Instant};

use lab::{
    generator::{Load, Pace, Stream},
    measure::{Disorder, Sample, Window, measure, measure_streams},
    packet::Target,
    sink::Watch,
    subject,
    testbed::{Priority, Testbed},
    topology::Topology,
    workload::{Family, Workload},
};

mod faulty;
use faulty::Faulty;

/// As in faulty.bpf.c.
const EVERY: u64 = 100;
const FLOWS: u32 = 10;
const FRAME: u16 = 60;
/// At this rate 256 packets, a veth's ring, take 13 ms.
const PPS: u64 = 20_000;
const TRIES: usize = 10;
const WATCH: Watch = Watch { order: true, ..Watch::NOTHING };

fn testbed() -> Testbed {
    let mut testbed = Testbed::new(&Topology::rfc2544()).unwrap();
    testbed.set_priority(Priority::Rates).unwrap();
    testbed
}

fn targets() -> Vec<Target> {
    Workload::benchmark(Family::V4, FLOWS, 0..=0).targets
}

fn sample(testbed: &mut Testbed, program: &str, pps: u64, watch: Watch) -> Sample {
    let _faulty = Faulty::start(testbed, program);
    testbed.generator.set_targets(targets(), FRAME).unwrap();
    let window = Window::new(Duration::from_millis(100), Duration::from_millis(1000)).watching(watch);
    measure(testbed, Load { frame_bytes: FRAME, pace: Pace::Rate(pps) }, window).unwrap()
}

/// How many of the packets that the flows sent in turn have a number with this remainder.
fn with_remainder(sent: u64, remainder: u64) -> u64 {
    let flows = u64::from(FLOWS);
    let of_flow = |flow| (sent + flows - 1 - flow) / flows;
    (0..flows).map(|flow| (of_flow(flow) + EVERY - 1 - remainder) / EVERY).sum()
}

/// A sample in which the machine itself lost nothing. The router's thread may have to wait for its core so long that
/// the generator's wire is full, and then no count is exact. All other losses stay.
fn undisturbed(mut sample: impl FnMut() -> Sample) -> Sample {
    for _ in 0..TRIES {
        let sample = sample();
        if !sample.lost.contains_key("gen.eth0.ring_full") {
            return sample;
        }
        eprintln!("the machine is busy, trying again: {:?}", sample.lost);
    }
    panic!("inconclusive: the machine is too busy for this test");
}

#[test]
#[ignore = "needs root"]
fn one_packet_in_a_hundred_dropped_is_a_loss_of_one_per_cent() {
    let mut testbed = testbed();
    let seen = undisturbed(|| sample(&mut testbed, "drop", PPS, WATCH));
    assert!((seen.loss - 0.01).abs() < 0.001, "{seen:?}");
    let lost = with_remainder(seen.sent, 0);
    assert_eq!(seen.sent - seen.received, lost, "{seen:?}");
    assert_eq!(seen.order, Some(Disorder { lost, flows: FLOWS.into(), ..Disorder::default() }), "{seen:?}");
    assert_eq!((seen.lost["box.eth1.xdp_dropped"], seen.unexplained), (lost, 0), "{seen:?}");

    let seen = undisturbed(|| sample(&mut testbed, "none", PPS, WATCH));
    assert_eq!((seen.received, seen.order), (seen.sent, Some(Disorder::default())), "{seen:?}");
}

#[test]
#[ignore = "needs root"]
fn neighbours_swapped_are_reordered_packets() {
    let mut testbed = testbed();
    let seen = undisturbed(|| sample(&mut testbed, "swap", PPS, WATCH));
    let reordered = with_remainder(seen.sent, 51);
    assert!(reordered > 100, "nothing was tested: {seen:?}");
    assert_eq!(
        seen.order,
        Some(Disorder { reordered, flows: FLOWS.into(), ..Disorder::default() }),
        "{seen:?}"
    );
    assert_eq!((seen.received, seen.loss), (seen.sent, 0.0), "{seen:?}");
}

#[test]
#[ignore = "needs root"]
fn packets_that_come_twice_are_duplicates() {
    let mut testbed = testbed();
    let seen = undisturbed(|| sample(&mut testbed, "duplicate", PPS, WATCH));
    let duplicates = with_remainder(seen.sent, 0);
    assert_eq!(
        seen.order,
        Some(Disorder { duplicates, flows: FLOWS.into(), ..Disorder::default() }),
        "{seen:?}"
    );
    assert_eq!(seen.received, seen.sent + duplicates, "{seen:?}");
}

#[test]
#[ignore = "needs root"]
fn a_delay_of_100_us_is_seen_as_that() {
    const SLOW_PPS: u64 = 5000;
    let mut testbed = testbed();
    let watch = Watch { latency: true, ..Watch::NOTHING };
    // A busy machine delays every packet, and some more than others. The fastest packets are those that it does not
    // delay.
    let (mut fastest_without, mut fastest_with) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let without = sample(&mut testbed, "none", SLOW_PPS, watch).latency.unwrap();
        let with = sample(&mut testbed, "delay", SLOW_PPS, watch);
        assert!(with.clock_error_ns.is_some_and(|ns| ns < 10_000), "{with:?}");
        let with = with.latency.unwrap();
        assert!(with.packets > 4000 && with.max_ns >= 100_000, "{with:?}");
        assert!(
            with.min_ns <= with.p50_ns && with.p50_ns <= with.p99_ns && with.p99_ns <= with.p999_ns,
            "{with:?}"
        );
        fastest_without.push(without.min_ns);
        fastest_with.push(with.min_ns);
    }
    let least = |times: &[u64]| *times.iter().min().unwrap();
    let difference = least(&fastest_with).abs_diff(least(&fastest_without));
    assert!(difference.abs_diff(100_000) < 10_000, "without {fastest_without:?}, with {fastest_with:?}");
}

#[test]
#[ignore = "needs root"]
fn streams_are_distinguished_and_lose_packets_separately() {
    let mut testbed = Testbed::new(&Topology::rfc2544().with_routers(2)).unwrap();
    testbed.set_priority(Priority::Rates).unwrap();
    let _linux = subject::start("linux", &testbed).unwrap();
    let targets = |router| Workload::benchmark(Family::V4, FLOWS, router..=router).targets;
    // No neighbour is known for the slow stream's second target.
    let (fast, mut slow) = (targets(1), targets(2));
    slow.truncate(2);
    slow[1].destination = "203.0.113.1".parse().unwrap();
    let streams = [Stream::new(fast, FRAME, Pace::Rate(PPS)), Stream::new(slow, FRAME, Pace::Rate(PPS / 10))];
    testbed.generator.set_streams(streams.to_vec()).unwrap();
    let window = Window::new(Duration::from_millis(100), Duration::from_millis(1000)).watching(WATCH);
    let seen = undisturbed(|| measure_streams(&mut testbed, window).unwrap());
    let [fast, slow] = &seen.streams[..] else { panic!("{seen:?}") };
    assert_eq!((fast.sent + slow.sent, fast.received), (seen.sent, fast.sent), "{seen:?}");
    assert_eq!(slow.received, slow.sent.div_ceil(2), "{seen:?}");
    assert_eq!(seen.routers, [(1, fast.received), (2, slow.received)].into(), "{seen:?}");
    let order = Disorder { lost: slow.sent / 2, flows: 1, ..Disorder::default() };
    assert_eq!((seen.order, seen.unexplained), (Some(order), 0), "{seen:?}");
    assert_eq!(seen.lost, [("r2.ip4.InNoRoutes".to_string(), slow.sent / 2)].into());
    let ratio = (fast.sent + fast.skipped) as f64 / (slow.sent + slow.skipped) as f64;
    // Up to 128 packets may have been due when the run ended.
    assert!((ratio - 10.0).abs() < 0.5, "{seen:?}");
}

/// The generator must not wait for packets that are lost: later arrivals show that they are no longer on their way.
#[test]
#[ignore = "needs root"]
fn a_subject_that_loses_packets_is_saturated_nevertheless() {
    let mut testbed = testbed();
    let mut saturated = |program| {
        let _faulty = Faulty::start(&testbed, program);
        testbed.generator.set_targets(targets(), FRAME).unwrap();
        let window = Window::new(Duration::from_millis(100), Duration::from_millis(500));
        measure(&mut testbed, Load { frame_bytes: FRAME, pace: Pace::Saturate }, window).unwrap()
    };
    // Alternately, so that a busy machine takes as much from both.
    let mut ratios = Vec::new();
    for _ in 0..5 {
        let (without, with) = (saturated("none"), saturated("drop"));
        assert!((with.loss - 0.01).abs() < 0.002, "{with:?}");
        assert!(without.loss < 0.001, "{without:?}");
        ratios.push(with.received_pps / without.received_pps);
    }
    assert!(lab::measure::median(&ratios) > 0.8, "{ratios:?}");
}

#[test]
#[ignore = "needs root"]
fn the_longest_time_without_a_packet_is_measured() {
    const PAUSES_MS: [u64; 3] = [20, 120, 50];
    let mut testbed = testbed();
    let _faultless = Faulty::start(&testbed, "faultless");
    testbed.generator.set_targets(targets(), FRAME).unwrap();
    testbed.sink.watch(Watch { interruption: true, ..Watch::NOTHING }).unwrap();
    testbed.generator.send(FRAME, 1).unwrap();
    let started = Instant::now();
    let mut longest = Duration::ZERO;
    for pause in PAUSES_MS {
        let paused = Instant::now();
        std::thread::sleep(Duration::from_millis(pause));
        testbed.generator.send(FRAME, 10).unwrap();
        longest = longest.max(paused.elapsed());
    }
    std::thread::sleep(Duration::from_millis(20));
    let seen = Duration::from_nanos(testbed.sink.longest_interruption_ns().unwrap());
    // The generator takes 20 ms to set up, and the machine may delay either end.
    assert!(seen >= Duration::from_millis(119) && seen < started.elapsed(), "{seen:?}");
    assert!(seen < longest + Duration::from_millis(20), "{seen:?}, of {longest:?}");
    testbed.sink.watch(Watch::NOTHING).unwrap();
    testbed.sink.watch(Watch { interruption: true, ..Watch::NOTHING }).unwrap();
    assert_eq!(testbed.sink.longest_interruption_ns().unwrap(), 0, "it starts again");
}
