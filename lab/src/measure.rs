//! One measurement: start the load, warm up, count between two moments, stop the load, and account for every packet.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::{
    clock,
    cpu::{self, Activity, Rates, Threads},
    generator::{Load, Pace, Sent},
    histogram::Latency,
    losses::Losses,
    packet::{FCS_BYTES, Target},
    sink::{FlowSeen, Watch},
    sys,
    testbed::Testbed,
};

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Time of load before counting begins.
    pub warm_up: Duration,
    /// Time of counting. It must be at least a second; otherwise the scheduler's tick shows in the CPU time.
    pub length: Duration,
    /// Notes of the sink besides counters: latency while counting, order in the whole run. They cost time of the
    /// router's core.
    pub watch: Watch,
}

impl Window {
    /// Nothing watched.
    pub const fn new(warm_up: Duration, length: Duration) -> Self {
        Self { warm_up, length, watch: Watch::NOTHING }
    }

    /// Half a second of warm-up, then this many seconds.
    pub fn seconds(seconds: f64) -> Self {
        Self::new(Duration::from_millis(500), Duration::from_secs_f64(seconds))
    }

    /// The same, and the sink also notes this.
    pub fn watching(self, watch: Watch) -> Self {
        Self { watch, ..self }
    }
}

/// Order of packets within their flows, over a whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Disorder {
    /// Sent and not received.
    pub lost: u64,
    /// Received after a later one (RFC 4737).
    pub reordered: u64,
    /// Received again.
    pub duplicates: u64,
    /// Flows with any of these.
    pub flows: u64,
}

/// One of several streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StreamSample {
    /// Packets per second that the generator offered while counting.
    pub offered_pps: f64,
    /// Packets per second at the sink while counting.
    pub received_pps: f64,
    /// Packets offered in the whole run.
    pub sent: u64,
    /// Packets due but not sent in the whole run.
    pub skipped: u64,
    /// Packets at the sink in the whole run.
    pub received: u64,
}

/// Result of a measurement.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    /// Length of the window in which the rates were counted.
    pub seconds: f64,
    /// Packets per second that the generator offered (handed to its port, whose ring may have been full).
    pub offered_pps: f64,
    /// Packets per second at the sink.
    pub received_pps: f64,
    /// On-CPU nanoseconds of the router's threads per packet received, including the sink's part. `None`: no packets.
    pub ns_per_packet: Option<f64>,
    /// Share of the window in which the router's threads ran.
    pub busy: f64,
    /// Share of the window in which the subject's programs ran, on any core. A daemon that does not forward packets
    /// itself is not in `busy`.
    pub programs_busy: f64,
    /// Share of the window in which something else had a core that the router wanted: a noisy machine.
    pub stolen: f64,
    /// What is left for applications: the share of the window that a process of the lowest priority had of the router's
    /// cores (the mean). `None` unless such processes run on all of them ([`Testbed::spinners`]).
    pub cpu_left: Option<f64>,
    /// The same share for every core that has such a process.
    pub cpu_left_by_core: BTreeMap<usize, f64>,
    /// How often threads and interrupts took the router's cores.
    #[serde(flatten)]
    pub activity: Rates,
    /// Packets offered in the whole run.
    pub sent: u64,
    /// Packets of the whole run that were due at the requested rate but not sent, because the machine gave the
    /// generator's core to something else. Many of them mean a noisy machine.
    pub skipped: u64,
    /// Packets at the sink in the whole run.
    pub received: u64,
    /// 1 - received / sent, over the whole run.
    pub loss: f64,
    /// Packets lost in the whole run, by place.
    pub lost: BTreeMap<String, u64>,
    /// Packets of the whole run that no counter explains: sent - received - lost. 0 unless a subject hides losses.
    pub unexplained: i64,
    /// Loss, reordering and duplicates within flows, if watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Disorder>,
    /// One-way latency of packets that came while counting, if watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// The most by which the clocks of the generator's and the sink's cores can differ: the error of each latency. Only
    /// with `latency`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
    /// Each stream, if there are several or streams are watched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamSample>,
    /// Packets at the sink in the whole run, by the router they came through (0: the host), if the router wrote its MAC
    /// into them. Only with `streams`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub routers: BTreeMap<u16, u64>,
}

struct Moment {
    at: Instant,
    sent: Vec<Sent>,
    received: Received,
    times: Vec<cpu::Time>,
    programs: Duration,
    left_ns: BTreeMap<usize, u64>,
    activity: Activity,
}

/// Measures the running subject with the targets that are set. The testbed is idle before and after.
pub fn measure(testbed: &mut Testbed, load: Load, window: Window) -> Result<Sample> {
    testbed.generator.set_load(load)?;
    measure_streams(testbed, window)
}

/// As [`measure`], while `work` runs.
pub fn measure_during<T>(
    testbed: &mut Testbed,
    load: Load,
    warm_up: Duration,
    work: impl FnOnce() -> Result<T>,
) -> Result<(Sample, T)> {
    testbed.generator.set_load(load)?;
    watched(testbed, warm_up, Watch::NOTHING, work)
}

/// Measures the running subject with the streams that are set. The testbed is idle before and after.
pub fn measure_streams(testbed: &mut Testbed, window: Window) -> Result<Sample> {
    let length = || Ok(sys::sleep(window.length)?);
    watched(testbed, window.warm_up, window.watch, length).map(|(sample, ())| sample)
}

fn watched<T>(
    testbed: &mut Testbed,
    warm_up: Duration,
    mut watch: Watch,
    work: impl FnOnce() -> Result<T>,
) -> Result<(Sample, T)> {
    watch.streams |= testbed.generator.streams().len() > 1;
    prepare(testbed, watch)?;
    // A core that sleeps whenever its ring is empty is not saturated: in a virtual machine it takes long to wake.
    let saturated = testbed.generator.streams().iter().any(|stream| stream.pace == Pace::Saturate);
    let keep_awake = saturated && testbed.spinners.is_empty();
    if keep_awake {
        testbed.spinners = cpu::Spinners::start(&testbed.topology.cores.router)?;
    }
    let sample = run(testbed, warm_up, watch, work);
    if keep_awake {
        testbed.spinners = cpu::Spinners::default();
    }
    // A program that has ended explains all later errors, so report it first.
    testbed.check_subject()?;
    testbed.sink.watch(Watch::NOTHING)?;
    sample
}

fn prepare(testbed: &mut Testbed, watch: Watch) -> Result<()> {
    let streams = testbed.generator.streams();
    if watch.order || watch.latency || watch.streams {
        for stream in streams {
            let shortest = stream.targets.iter().map(Target::min_stamped).max().unwrap_or_default();
            let bytes = stream.sizes.min();
            ensure!(
                stream.is_stamped(),
                "frames of {bytes} bytes are too short to be told apart: at least {shortest} (with FCS {})",
                shortest + FCS_BYTES
            );
        }
    }
    if watch.order {
        let flows: Vec<usize> = streams.iter().map(|stream| stream.targets.len()).collect();
        testbed.sink.set_flows(&flows)?;
    }
    testbed.generator.keep_time(watch.latency);
    Ok(())
}

fn run<T>(
    testbed: &mut Testbed,
    warm_up: Duration,
    watch: Watch,
    work: impl FnOnce() -> Result<T>,
) -> Result<(Sample, T)> {
    let unknown = |error: &anyhow::Error| eprintln!("cannot measure how much clocks differ: {error:#}");
    let clock_error_ns = watch.latency.then(|| clock_error_ns(testbed).inspect_err(unknown).ok()).flatten();
    let without_latency = Watch { latency: false, ..watch };
    testbed.sink.watch(without_latency)?;
    let threads = testbed.router_threads()?;
    let losses = Losses::now(testbed)?;
    let before = Received::now(testbed, watch)?;
    testbed.generator.start_streams()?;
    let moments = (|| {
        sys::sleep(warm_up)?;
        testbed.sink.watch(watch)?;
        let first = moment(testbed, &threads, watch)?;
        let made = work()?;
        let last = moment(testbed, &threads, watch)?;
        testbed.sink.watch(without_latency)?;
        Ok::<_, anyhow::Error>((first, last, made))
    })();
    testbed.generator.stop()?;
    let (first, last, made) = moments?;
    let sent = testbed.generator.packets()?;
    let (received, lost) = settle(testbed, sent, before.all, &losses)?;
    let seconds = (last.at - first.at).as_secs_f64();
    let packets = last.received.all - first.received.all;
    let times: Vec<cpu::Time> =
        last.times.iter().zip(&first.times).map(|(last, first)| last.since(*first)).collect();
    let busy_ns = times.iter().map(|time| time.busy_ns).sum::<u64>() as f64;
    let share = |(core, ns): (&usize, &u64)| (*core, (ns - first.left_ns[core]) as f64 / 1e9 / seconds);
    let left: BTreeMap<usize, f64> = last.left_ns.iter().map(share).collect();
    let after = Received::now(testbed, watch)?;
    let sample = Sample {
        seconds,
        offered_pps: (last.packets_sent() - first.packets_sent()) as f64 / seconds,
        received_pps: packets as f64 / seconds,
        ns_per_packet: (packets > 0).then(|| busy_ns / packets as f64),
        busy: busy_ns / 1e9 / seconds,
        programs_busy: (last.programs.saturating_sub(first.programs)).as_secs_f64() / seconds,
        stolen: cpu::stolen_ns(&times) as f64 / 1e9 / seconds,
        cpu_left: mean(&left, &testbed.topology.cores.router),
        cpu_left_by_core: left,
        activity: last.activity.rates(first.activity, seconds),
        sent,
        skipped: testbed.generator.skipped()?,
        received,
        loss: if sent == 0 { 0.0 } else { 1.0 - received as f64 / sent as f64 },
        unexplained: sent as i64 - received as i64 - lost.total() as i64,
        lost: lost.0,
        order: watch.order.then(|| disorder(testbed)).transpose()?,
        latency: if watch.latency { testbed.sink.latency_of_all()?.latency() } else { None },
        clock_error_ns,
        streams: streams(&testbed.generator.sent()?, &first, &last, &before, &after),
        routers: after.routers_since(&before),
    };
    Ok((sample, made))
}

/// Clock error between the generator's core and the cores that the sink runs on.
fn clock_error_ns(testbed: &Testbed) -> Result<u64> {
    let cores = &testbed.topology.cores;
    let sink = if cores.sink.is_empty() { &cores.router } else { &cores.sink };
    let others = sink.iter().filter(|core| **core != cores.generator);
    let errors = others.map(|core| clock::error_ns(cores.generator, *core)).collect::<Result<Vec<_>>>()?;
    Ok(errors.into_iter().max().unwrap_or(0))
}

/// Counters of the sink.
struct Received {
    all: u64,
    /// Empty unless streams are watched.
    by_stream: Vec<u64>,
    /// Empty unless streams are watched.
    by_router: Vec<u64>,
}

impl Received {
    fn now(testbed: &Testbed, watch: Watch) -> Result<Self> {
        let (mut by_stream, mut by_router) = (Vec::new(), Vec::new());
        if watch.streams {
            for stream in 0..testbed.generator.streams().len() {
                by_stream.push(testbed.sink.arrived_of_stream(stream)?.packets);
            }
            for router in 0..=testbed.routers.len() as u16 {
                by_router.push(testbed.sink.arrived(router)?.packets);
            }
        }
        Ok(Self { all: testbed.sink.arrived_in_all()?, by_stream, by_router })
    }

    fn routers_since(&self, before: &Self) -> BTreeMap<u16, u64> {
        let packets = self.by_router.iter().zip(&before.by_router).map(|(now, before)| now - before);
        (0..).zip(packets).filter(|(_, packets)| *packets > 0).collect()
    }
}

impl Moment {
    fn packets_sent(&self) -> u64 {
        self.sent.iter().map(|sent| sent.packets).sum()
    }
}

fn streams(
    sent: &[Sent],
    first: &Moment,
    last: &Moment,
    before: &Received,
    after: &Received,
) -> Vec<StreamSample> {
    let seconds = (last.at - first.at).as_secs_f64();
    let rate = |last: u64, first: u64| (last - first) as f64 / seconds;
    let sample = |stream: usize| StreamSample {
        offered_pps: rate(last.sent[stream].packets, first.sent[stream].packets),
        received_pps: rate(last.received.by_stream[stream], first.received.by_stream[stream]),
        sent: sent[stream].packets,
        skipped: sent[stream].skipped,
        received: after.by_stream[stream] - before.by_stream[stream],
    };
    (0..after.by_stream.len()).map(sample).collect()
}

/// Compares what the sink saw of each flow with what the generator sent.
fn disorder(testbed: &Testbed) -> Result<Disorder> {
    let (sent, seen) = (testbed.generator.sent_by_flow()?, testbed.sink.flows()?);
    let mut sum = Disorder::default();
    for (sent, FlowSeen { received, reordered, duplicates }) in sent.iter().zip(&seen) {
        let lost = u64::from(sent.saturating_sub(received - duplicates));
        sum.lost += lost;
        sum.reordered += u64::from(*reordered);
        sum.duplicates += u64::from(*duplicates);
        sum.flows += u64::from(lost > 0 || *reordered > 0 || *duplicates > 0);
    }
    Ok(sum)
}

fn moment(testbed: &Testbed, threads: &Threads, watch: Watch) -> Result<Moment> {
    Ok(Moment {
        at: Instant::now(),
        sent: testbed.generator.sent()?,
        received: Received::now(testbed, watch)?,
        times: threads.times()?,
        programs: testbed.subject_cpu()?,
        left_ns: testbed.spinners.on_cpu_ns()?,
        activity: Activity::now(threads, &testbed.topology.cores.router)?,
    })
}

/// Mean share of these cores, if all are in `shares`.
fn mean(shares: &BTreeMap<usize, f64>, cores: &[usize]) -> Option<f64> {
    let sum: Option<f64> = cores.iter().map(|core| shares.get(core)).sum();
    sum.map(|sum| sum / cores.len() as f64)
}

/// Returns packets received and lost since the counters were `before`, as soon as every sent packet is accounted for,
/// or after two seconds. A router's thread that waits for its core may hold a full ring for a while.
fn settle(testbed: &Testbed, sent: u64, received_before: u64, before: &Losses) -> Result<(u64, Losses)> {
    let end = Instant::now() + Duration::from_secs(2);
    loop {
        sys::sleep(Duration::from_millis(20))?;
        let received = testbed.sink.arrived_in_all()? - received_before;
        let lost = Losses::now(testbed)?.since(before);
        if received + lost.total() == sent || Instant::now() > end {
            return Ok((received, lost));
        }
    }
}

/// Median. For an even number of values, the mean of the middle two; NaN for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Median and range of repeated values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// See [`Spread`]; NaN for no values.
pub fn spread(values: &[f64]) -> Spread {
    let (min, max) = values.iter().fold((f64::NAN, f64::NAN), |(min, max), &v| (v.min(min), v.max(max)));
    Spread { median: median(values), min, max }
}

/// Ratios of values measured alternately (A B A B), pair by pair, so that the noise of a machine cancels.
pub fn ratios(of: &[f64], to: &[f64]) -> Spread {
    spread(&of.iter().zip(to).map(|(a, b)| a / b).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        let ratios = ratios(&[2.0, 6.0, 3.0], &[1.0, 2.0, 3.0]);
        assert_eq!(ratios, Spread { median: 2.0, min: 1.0, max: 3.0 });
    }

    #[test]
    fn cpu_left_is_a_mean_only_if_every_core_has_a_spinner() {
        let shares = BTreeMap::from([(1, 0.5), (2, 0.25)]);
        assert_eq!(mean(&shares, &[1, 2]), Some(0.375));
        assert_eq!(mean(&shares, &[2]), Some(0.25));
        assert_eq!(mean(&shares, &[1, 3]), None);
    }
}
