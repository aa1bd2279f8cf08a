//! Estimates the cost of a packet and of a wake-up, and what a queue would want of a core that others keep busy.
//!
//! At low load nearly every packet wakes a NAPI thread, and costs several times as much as on a core that never sleeps.
//! Queues that share a core take less of it than of a core each, because packets of the others gather while one runs.
//! So the decision to give cores back uses less than the sum of the measurements. Growing never does, because the
//! measurements are true then.
//!
//! # Model
//! A queue runs for `packets * packet_ns + wakeups * wake_ns`. A packet causes a wake-up if it arrives while the core
//! sleeps. So a core that is busy for the fraction `u` has `1 - u` times as many wake-ups as if it hardly worked. A
//! queue that had `wakeups` on a core busy for `u` would have `wakeups * (1 - low) / (1 - u)` on one that is busy for
//! `low`. Queues that want `low` together under this assumption make such a core. If they want less, they do not fill
//! it, because the want falls while load grows. So the wants of queues are added up as they would be at `low`, without
//! knowing which queues share the core.
//!
//! # Estimate
//! There is an estimate for each port, whose queues use the same driver and program. It is the line `ns per packet =
//! packet_ns + wake_ns * wake-ups per packet` through the measurements of the last minutes. These are kept by wake-ups
//! per packet, as a mean for each half octave, so that hours of one load do not hide the minutes of another. The value
//! of `wake_ns` is two standard errors below the best line. If the load was always the same, the line is uncertain, and
//! nothing is subtracted.
//!
//! # Bounds
//! The estimated want is never less than packets cost without wake-ups, or with three quarters of the measured wake-ups
//! ([`LEAST`]). If a core has too much soon after one was given back for this reason, the measured wants count for a
//! while, each time twice as long ([`Doubt`]).

use super::{
    CoreId, Counted, Queue, QueueId, Settings, View,
    measure::{Want, fraction},
};
use crate::plan::PortId;
use std::{array, collections::BTreeMap, time::Duration};

/// At least this part of the time for wake-ups remains. Threads also wake each other, and packets do not gather while a
/// core wakes up. For two queues on veth, 0.6 remained at 25,000 to 100,000 packets a second each, all at 200,000, 0.9
/// at 300,000, and 0.6 at 450,000. For three queues 0.7 and less remained (lab/runs/2026-11-22-queues-together.jsonl,
/// with 600 ns a packet). If everything remains, the estimate is too low: 60 % of a core at 200,000, where it was 76 %.
/// The room up to `high` absorbs that, and otherwise [`Doubt`] reacts.
const LEAST: f64 = 0.75;
/// A queue that ran for less than this fraction of a period is ignored, because cores that sleep long have cold caches.
const SAMPLE: f64 = 0.02;
/// Half octaves of wake-ups per packet, from one per packet to one in 2^12 or fewer.
const BINS: usize = 24;
/// The approximate number of periods in a bin's mean, and the least number for a usable mean.
const MOST: f64 = 256.0;
const ENOUGH: f64 = 32.0;
/// Older measurements are ignored, because traffic or rules may have changed.
const MEMORY: Duration = Duration::from_secs(300);
/// Means are assumed to be no more exact than this, because their spread does not show the effect of caches and
/// neighbours.
const EXACT: f64 = 0.02;
/// The number of standard errors below the best line.
const SURE: f64 = 2.0;
/// Measured wants count for this many hold times after a core was missed, at first and at most.
const PAUSES: [u32; 2] = [8, 512];

/// The costs of one port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The cost of a packet without waking up.
    pub packet_ns: f64,
    /// The least cost of a wake-up.
    pub wake_ns: f64,
}

/// The measurements of each port.
#[derive(Debug, Default)]
pub(super) struct Costs {
    ports: BTreeMap<PortId, CostSamples>,
}

#[derive(Debug)]
struct CostSamples {
    bins: [Bin; BINS],
    cost: Option<Cost>,
}

/// Periods with about as many wake-ups per packet.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    /// The number of periods that count, at most [`MOST`].
    periods: f64,
    wakeups: f64,
    /// The mean and variance for a packet.
    ns: f64,
    variance: f64,
    last: Duration,
}

impl Costs {
    /// Adds measurements of whole queues.
    pub fn note<'a>(&mut self, now: Duration, queues: impl IntoIterator<Item = &'a Queue>) {
        for queue in queues {
            let Some((wakeups, ns)) = sample(queue) else { continue };
            let seen = self.ports.entry(queue.id.port).or_insert_with(CostSamples::new);
            seen.note(now, wakeups, ns);
        }
    }

    /// Sets the wants that queues would have beside others.
    pub fn apply(&self, wants: &mut BTreeMap<QueueId, Want>, view: &View, settings: &Settings) {
        if self.ports.values().all(|seen| seen.cost.is_none()) {
            return;
        }
        let mut busy: BTreeMap<CoreId, f64> = BTreeMap::new();
        for queue in &view.queues {
            *busy.entry(queue.core).or_default() += fraction(queue.ran);
        }
        for queue in &view.queues {
            if let Some((cost, want)) = self.of(queue.id.port).zip(wants.get_mut(&queue.id)) {
                let low = fraction(settings.low);
                want.beside_others = cost.beside_others(queue, want.work, busy[&queue.core], low);
            }
        }
    }

    /// The costs of a port. `None`: the measurements do not show them.
    pub fn of(&self, port: PortId) -> Option<Cost> {
        self.ports.get(&port)?.cost
    }
}

/// Wake-ups and nanoseconds per packet. `None` if the measurement is not usable.
fn sample(queue: &Queue) -> Option<(f64, f64)> {
    let is_whole = queue.parts.is_empty() && !queue.is_partial && queue.spilled.is_empty();
    let Counted { packets_per_s, wakeups_per_s } = queue.counted.filter(|_| is_whole)?;
    let ran = Some(fraction(queue.ran)).filter(|ran| *ran >= SAMPLE)?;
    let (wakeups, ns) = (wakeups_per_s / packets_per_s, ran * 1e9 / packets_per_s);
    let is_sound = packets_per_s >= 1.0 && wakeups_per_s >= 0.0 && wakeups.is_finite() && ns > 0.0;
    is_sound.then_some((wakeups, ns))
}

impl CostSamples {
    fn new() -> Self {
        Self { bins: array::from_fn(|_| Bin::default()), cost: None }
    }

    fn note(&mut self, now: Duration, wakeups: f64, ns: f64) {
        // The last bin is for packets that caused no wake-ups.
        let bin = &mut self.bins[((-2.0 * wakeups.log2()).max(0.0) as usize).min(BINS - 1)];
        if now.saturating_sub(bin.last) >= MEMORY {
            *bin = Bin::default();
        }
        bin.last = now;
        bin.periods = (bin.periods + 1.0).min(MOST);
        let (part, above) = (1.0 / bin.periods, ns - bin.ns);
        bin.wakeups += part * (wakeups - bin.wakeups);
        bin.ns += part * above;
        bin.variance = (1.0 - part) * (bin.variance + part * above * above);
        let is_known = |bin: &&Bin| bin.periods >= ENOUGH && now.saturating_sub(bin.last) < MEMORY;
        self.cost = line(self.bins.iter().filter(is_known));
    }
}

/// Weighted least squares. The weight of a mean is one over the square of its error. If means are further off the line
/// than their errors, the error of the result is larger by that ratio.
fn line<'a>(bins: impl Iterator<Item = &'a Bin> + Clone) -> Option<Cost> {
    let weight = |bin: &Bin| 1.0 / ((EXACT * bin.ns).powi(2) + bin.variance / bin.periods);
    let sum = |of: &dyn Fn(&Bin) -> f64| bins.clone().map(|bin| weight(bin) * of(bin)).sum::<f64>();
    let (one, x, y) = (sum(&|_| 1.0), sum(&|bin| bin.wakeups), sum(&|bin| bin.ns));
    let (xx, xy) = (sum(&|bin| bin.wakeups * bin.wakeups), sum(&|bin| bin.wakeups * bin.ns));
    let determinant = one * xx - x * x;
    let (packet_ns, wake_ns) = ((xx * y - x * xy) / determinant, (one * xy - x * y) / determinant);
    let off = sum(&|bin| (bin.ns - packet_ns - wake_ns * bin.wakeups).powi(2));
    let free = bins.clone().count().checked_sub(2)?.max(1) as f64;
    let wrong_ns = (one / determinant * (off / free).max(1.0)).sqrt();
    let cost = Cost { packet_ns, wake_ns: wake_ns - SURE * wrong_ns };
    // A line with other values is not usable.
    (cost.packet_ns > 0.0 && cost.wake_ns > 0.0 && cost.wake_ns.is_finite()).then_some(cost)
}

impl Cost {
    /// What a queue would want of a core that is busy for the fraction `low`. It is at most `work`, which it wanted of
    /// its own core, busy for the fraction `busy`.
    pub fn beside_others(&self, queue: &Queue, work: f64, busy: f64, low: f64) -> f64 {
        let Some(counted) = queue.counted.filter(|_| sample(queue).is_some() && busy < low) else {
            return work;
        };
        let stay = ((1.0 - low) / (1.0 - busy)).max(LEAST);
        let waking = (counted.wakeups_per_s * self.wake_ns / 1e9).min(fraction(queue.ran));
        let least = counted.packets_per_s * self.packet_ns / 1e9;
        (work - (1.0 - stay) * waking).max(least.min(work))
    }
}

/// Whether a core that was given back because of costs was missed.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    relied: Option<Duration>,
    until: Duration,
    pause: Duration,
}

impl Doubt {
    /// Whether costs count now.
    pub fn trusts(&self, now: Duration) -> bool {
        now >= self.until
    }

    /// Notes that a core was given back that would have stayed by the measured wants.
    pub fn relies(&mut self, now: Duration) {
        self.relied = Some(now);
    }

    /// Notes that a core has too much.
    pub fn misses(&mut self, now: Duration, hold: Duration) {
        let [first, most] = PAUSES.map(|holds| hold.saturating_mul(holds));
        let Some(relied) = self.relied.take() else { return };
        let lasted = now.saturating_sub(relied);
        if lasted < first.max(self.pause) {
            self.pause = self.pause.saturating_mul(2).clamp(first, most);
            self.until = now.saturating_add(self.pause);
        } else {
            self.pause = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cores::tests::queue, fib::synthetic::Random};
    use proptest::prelude::*;

    /// As measured on veth: thousands of packets and wake-ups a second, if a packet takes 330 ns and a wake-up 7.5 us.
    const LOADS: [(f64, f64); 5] =
        [(50.0, 33.0), (250.0, 34.7), (500.0, 25.7), (1000.0, 17.6), (2000.0, 6.1)];
    const TRUE: Cost = Cost { packet_ns: 330.0, wake_ns: 7500.0 };

    fn loaded((packets, wakeups): (f64, f64), cost: Cost) -> Queue {
        let counted = Counted { packets_per_s: packets * 1e3, wakeups_per_s: wakeups * 1e3 };
        let ran = (packets * cost.packet_ns + wakeups * cost.wake_ns) / 1e6;
        Queue { ran, counted: Some(counted), ..queue(0, 0) }
    }

    /// The state after `periods` of each load, one load after the other. Times and counts are each wrong by up to
    /// `noise`.
    fn seen(periods: u64, loads: &[(f64, f64)], noise: f64) -> Costs {
        let (mut costs, mut random) = (Costs::default(), Random(1));
        let mut wrong = || 1.0 + noise * (f64::from(random.below(2001)) / 1000.0 - 1.0);
        for period in 0..periods * loads.len() as u64 {
            let (packets, wakeups) = loads[(period / periods) as usize];
            let mut queue = loaded((packets * wrong(), wakeups * wrong()), TRUE);
            queue.ran *= wrong();
            costs.note(Duration::from_millis(10 * period), [&queue]);
        }
        costs
    }

    #[test]
    fn both_costs_are_found_in_noise() {
        for noise in [0.0, 0.05, 0.2] {
            let cost = seen(100, &LOADS, noise).of(0).unwrap();
            assert!((cost.packet_ns - 330.0).abs() < 0.1 * 330.0, "{noise}: {cost:?}");
            assert!((0.75 * 7500.0..7500.0).contains(&cost.wake_ns), "{noise}: {cost:?}");
        }
    }

    /// A load that was always the same shows no costs, or hardly any if noise makes two loads of it. The same holds for
    /// one that was seen only for a moment.
    #[test]
    fn without_different_loads_wants_are_as_measured() {
        type Case = (u64, &'static [(f64, f64)], f64);
        const TABLE: [Case; 4] = [
            (1000, &[LOADS[2]], 0.0),
            (1000, &[LOADS[2]], 0.1),
            // Between two bins.
            (1000, &[(500.0, 22.1)], 0.1),
            (20, &LOADS, 0.0),
        ];
        for (periods, loads, noise) in TABLE {
            let cost = seen(periods, loads, noise).of(0);
            let queue = loaded(loads[loads.len() / 2], TRUE);
            let wants = cost.map_or(queue.ran, |cost| cost.beside_others(&queue, queue.ran, queue.ran, 0.7));
            assert!(wants >= 0.96 * queue.ran, "{periods} {loads:?} {noise}: {cost:?}");
        }
        assert_eq!(seen(100, &LOADS, 0.0).of(1), None, "another port");
    }

    /// Packets of one load cost more than any wake-ups explain.
    #[test]
    fn measurements_off_the_line_make_it_uncertain() {
        let mut costs = seen(100, &LOADS, 0.0);
        let sure = costs.of(0).unwrap();
        for _ in 0..300 {
            let other = loaded((800.0, 22.0), Cost { packet_ns: 2000.0, wake_ns: 7500.0 });
            costs.note(Duration::from_secs(5), [&other]);
        }
        let unsure = costs.of(0).map_or(0.0, |cost| cost.wake_ns);
        assert!(unsure < 0.6 * sure.wake_ns, "{unsure} {sure:?}");
    }

    #[test]
    fn old_measurements_are_forgotten() {
        let mut costs = seen(100, &LOADS, 0.0);
        let note = |costs: &mut Costs, at: Duration| {
            costs.note(at, [&loaded(LOADS[2], TRUE)]);
            costs.of(0).is_some()
        };
        assert!(note(&mut costs, MEMORY));
        assert!(!note(&mut costs, MEMORY + Duration::from_secs(5)));
    }

    #[test]
    fn queues_want_less_of_a_core_that_others_keep_busy() {
        let queue = loaded(LOADS[2], TRUE);
        let wants = |busy, low| (1000.0 * TRUE.beside_others(&queue, queue.ran, busy, low)).round();
        assert_eq!((1000.0 * queue.ran).round(), 358.0);
        // 165 for packets, and three quarters of 193 for wake-ups, because 0.3 / 0.642 would be less; 0.5 / 0.642.
        assert_eq!((wants(0.358, 0.7), wants(0.358, 0.5)), (310.0, 315.0));
        // It is beside others already.
        assert_eq!((wants(0.65, 0.7), wants(0.7, 0.7), wants(0.9, 0.7)), (330.0, 358.0, 358.0));
        let uncounted = Queue { counted: None, ..queue.clone() };
        assert_eq!(TRUE.beside_others(&uncounted, 0.358, 0.358, 0.7), 0.358);
    }

    proptest! {
        /// For any costs and measurements: no more than was wanted, no less than packets take, and at most a quarter of
        /// the time less than it ran.
        #[test]
        fn at_most_a_quarter_of_the_running_time_is_subtracted(
            packet_ns in prop::num::f64::POSITIVE, wake_ns in prop::num::f64::POSITIVE,
            packets_per_s in prop::num::f64::ANY, wakeups_per_s in prop::num::f64::ANY,
            (ran, more, busy, low) in (0.0f64..1.0, 0.0f64..1.0, 0.0f64..1.5, 0.0f64..1.0),
        ) {
            let counted = Some(Counted { packets_per_s, wakeups_per_s });
            let (queue, work) = (Queue { ran, counted, ..queue(0, 0) }, ran + more);
            let wants = Cost { packet_ns, wake_ns }.beside_others(&queue, work, busy, low);
            prop_assert!(wants <= work && wants >= work - ran / 4.0 - 1e-9, "{}", wants);
            let packets = packets_per_s * packet_ns / 1e9;
            prop_assert!(packets.is_nan() || packets_per_s < 1.0 || wants >= packets.min(work));
        }
    }

    #[test]
    fn a_wrong_estimate_is_ignored_ever_longer() {
        let (hold, mut doubt, mut now) = (Duration::from_secs(2), Doubt::default(), Duration::from_secs(9));
        let mut pauses = Vec::new();
        doubt.misses(now, hold);
        assert!(doubt.trusts(now), "no decision relied on costs");
        for _ in 0..9 {
            doubt.relies(now);
            doubt.misses(now + hold, hold);
            doubt.misses(now + hold, hold);
            pauses.push((doubt.until - now - hold).as_secs());
            assert!(!doubt.trusts(doubt.until - Duration::from_nanos(1)));
            now = doubt.until;
            assert!(doubt.trusts(now));
        }
        assert_eq!(pauses, [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
        // This one was right for long, and then there was more traffic.
        doubt.relies(now);
        now += Duration::from_secs(1024);
        doubt.misses(now, hold);
        assert!(doubt.trusts(now));
        doubt.relies(now);
        doubt.misses(now, hold);
        assert_eq!(doubt.until, now + 8 * hold);
    }
}
