//! One measurement: load on, warm up, count between two moments, load off, and see that every packet is accounted for.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde::Serialize;

use crate::{
    cpu::{Activity, Rates, Threads},
    generator::Load,
    losses::Losses,
    sys,
    testbed::Testbed,
};

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Load before counting begins.
    pub warm_up: Duration,
    /// Counting. At least a second, or the scheduler's tick shows in the CPU time.
    pub length: Duration,
}

impl Window {
    /// Half a second of warm-up, then so many seconds.
    pub fn seconds(seconds: f64) -> Self {
        Self { warm_up: Duration::from_millis(500), length: Duration::from_secs_f64(seconds) }
    }
}

/// What was seen.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Length of the window in which the rates were counted.
    pub seconds: f64,
    /// Packets per second the generator offered (handed to its port, whose ring may have been full).
    pub offered_pps: f64,
    /// Packets per second at the sink.
    pub received_pps: f64,
    /// On-CPU nanoseconds of the router's threads per packet received; the sink's part is in it. `None`: no packets.
    pub ns_per_packet: Option<f64>,
    /// Share of the window the router's threads were running.
    pub busy: f64,
    /// Share of the window that a process of the lowest priority had of the router's cores (the mean), where it
    /// runs on all of them ([`Testbed::spinners`]): what is left for applications.
    pub cpu_left: Option<f64>,
    /// The same of every core that has such a process.
    pub cpu_left_by_core: BTreeMap<usize, f64>,
    /// How often the router's cores were taken.
    #[serde(flatten)]
    pub activity: Rates,
    /// Of the whole run: packets offered.
    pub sent: u64,
    /// Of the whole run: packets due at the rate asked for but not sent, because the machine gave the generator's core to
    /// somebody else. Many: a noisy machine.
    pub skipped: u64,
    /// Of the whole run: packets at the sink.
    pub received: u64,
    /// 1 - received / sent, of the whole run.
    pub loss: f64,
    /// Of the whole run: packets lost, by where they were lost.
    pub lost: BTreeMap<String, u64>,
    /// Of the whole run: sent - received - lost: what no counter explains. 0 unless a subject hides losses.
    pub unexplained: i64,
}

struct Moment {
    at: Instant,
    sent: u64,
    received: u64,
    busy_ns: u64,
    left_ns: BTreeMap<usize, u64>,
    activity: Activity,
}

/// Measures whatever subject runs, with the targets that are set. The testbed is idle before and after.
pub fn measure(testbed: &mut Testbed, load: Load, window: Window) -> Result<Sample> {
    let length = || Ok(sys::sleep(window.length)?);
    measure_during(testbed, load, window.warm_up, length).map(|(sample, ())| sample)
}

/// As [`measure`], for as long as `work` takes.
pub fn measure_during<T>(
    testbed: &mut Testbed,
    load: Load,
    warm_up: Duration,
    work: impl FnOnce() -> Result<T>,
) -> Result<(Sample, T)> {
    let threads = testbed.router_threads()?;
    let losses = Losses::now(testbed)?;
    let received = received(testbed)?;
    testbed.generator.start(load)?;
    let moments = (|| {
        sys::sleep(warm_up)?;
        let first = moment(testbed, &threads)?;
        let made = work()?;
        Ok::<_, anyhow::Error>((first, moment(testbed, &threads)?, made))
    })();
    testbed.generator.stop()?;
    let (first, last, made) = moments?;
    let sent = testbed.generator.packets()?;
    let (received, lost) = settle(testbed, sent, received, &losses)?;
    let seconds = (last.at - first.at).as_secs_f64();
    let packets = last.received - first.received;
    let busy_ns = (last.busy_ns - first.busy_ns) as f64;
    let share = |(core, ns): (&usize, &u64)| (*core, (ns - first.left_ns[core]) as f64 / 1e9 / seconds);
    let left: BTreeMap<usize, f64> = last.left_ns.iter().map(share).collect();
    let sample = Sample {
        seconds,
        offered_pps: (last.sent - first.sent) as f64 / seconds,
        received_pps: packets as f64 / seconds,
        ns_per_packet: (packets > 0).then(|| busy_ns / packets as f64),
        busy: busy_ns / 1e9 / seconds,
        cpu_left: mean(&left, &testbed.topology.cores.router),
        cpu_left_by_core: left,
        activity: last.activity.rates(first.activity, seconds),
        sent,
        skipped: testbed.generator.skipped()?,
        received,
        loss: if sent == 0 { 0.0 } else { 1.0 - received as f64 / sent as f64 },
        unexplained: sent as i64 - received as i64 - lost.total() as i64,
        lost: lost.0,
    };
    Ok((sample, made))
}

fn received(testbed: &Testbed) -> Result<u64> {
    testbed.sink.arrived_in_all()
}

fn moment(testbed: &Testbed, threads: &Threads) -> Result<Moment> {
    Ok(Moment {
        at: Instant::now(),
        sent: testbed.generator.packets()?,
        received: received(testbed)?,
        busy_ns: threads.on_cpu_ns()?,
        left_ns: testbed.spinners.on_cpu_ns()?,
        activity: Activity::now(threads, &testbed.topology.cores.router)?,
    })
}

/// Mean share of these cores, if all are in `shares`.
fn mean(shares: &BTreeMap<usize, f64>, cores: &[usize]) -> Option<f64> {
    let sum: Option<f64> = cores.iter().map(|core| shares.get(core)).sum();
    sum.map(|sum| sum / cores.len() as f64)
}

/// Packets received and lost since the counters were `before`, once every packet sent is accounted for; or what can be said
/// after two seconds. A router's thread that does not get its core may sit on a full ring for a while.
fn settle(testbed: &Testbed, sent: u64, received_before: u64, before: &Losses) -> Result<(u64, Losses)> {
    let end = Instant::now() + Duration::from_secs(2);
    loop {
        sys::sleep(Duration::from_millis(20))?;
        let received = received(testbed)? - received_before;
        let lost = Losses::now(testbed)?.since(before);
        if received + lost.total() == sent || Instant::now() > end {
            return Ok((received, lost));
        }
    }
}

/// Median; of an even number the mean of the middle two; NaN of nothing.
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

/// See [`Spread`]; NaN of nothing.
pub fn spread(values: &[f64]) -> Spread {
    let (min, max) = values.iter().fold((f64::NAN, f64::NAN), |(min, max), &v| (v.min(min), v.max(max)));
    Spread { median: median(values), min, max }
}

/// Ratios of values measured alternately (A B A B), pair by pair: what a noisy machine does to both cancels.
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
    fn what_is_left_is_a_mean_of_cores_that_all_have_a_spinner() {
        let shares = BTreeMap::from([(1, 0.5), (2, 0.25)]);
        assert_eq!(mean(&shares, &[1, 2]), Some(0.375));
        assert_eq!(mean(&shares, &[2]), Some(0.25));
        assert_eq!(mean(&shares, &[1, 3]), None);
    }
}
