//! What a packet of a path takes of each resource, from samples (P6, P7).
//!
//! One packet in twenty is measured, tunable. What can be measured is a run, as a path gives the core back when it is through with its
//! packets, so the run after every 20th packet is; where runs have 20 and more, every run.
//!
//! * The gap between samples is random, 20 on average: traffic that repeats itself every 20 packets would show one of
//!   them only.
//! * A packet that takes more than [`DEAR_CYCLES`] counts as several: reading counters costs little beside it, and what is not
//!   known yet costs much.
//! * An estimate comes closer to each sample by a quarter of the difference. It may wobble: what a path is charged is
//!   right in sum, as each sample counts for the packets up to the next. After a jump what was
//!   charged too little, or too much, is four gaps of the difference, once: at 10 times the cost that is 4 x 20 x 2,048 x 9 = 1.5 million cycles at
//!   most, 0.5 ms at 3 GHz.
//! * Where packets cost what they like, what is charged in a time is off by their deviation, over the root of the number of samples: 1 % for
//!   10,000 samples, 200,000 packets, that differ by as much as they cost.
//! * A sample that was interrupted counts for its whole gap. Who reads a clock with every run avoids that: whatever is measured is charged as it is.

use super::resource::{RESOURCES, Resource, Used};

/// What is dear: a packet counts as one for each of these that it takes.
pub const DEAR_CYCLES: u64 = 2048;
/// Amounts are kept in 1/256 of their unit.
const FRACTION_BITS: u32 = 8;
/// A run counts with so much at most.
const MOST: u64 = 1 << 48;
/// The part of the difference by which an estimate moves, as a power of two.
const SMOOTHING_BITS: u32 = 2;

/// What a packet of a path takes, context switches apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost([Option<u64>; RESOURCES.len()]);

impl Cost {
    /// Of this resource, in 1/256 of its unit; `None`: not measured yet, or not counted.
    #[inline]
    pub fn in_256ths(&self, resource: Resource) -> Option<u64> {
        self.0[resource as usize]
    }

    /// Of this resource, rounded.
    pub fn of(&self, resource: Resource) -> Option<u64> {
        self.in_256ths(resource).map(|amount| (amount + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS)
    }

    /// For so many packets.
    #[inline]
    pub fn for_packets(&self, resource: Resource, packets: u32) -> Option<u64> {
        Some(self.in_256ths(resource)?.saturating_mul(packets.into()) >> FRACTION_BITS)
    }

    /// A run that was measured; a context switch in it took so many cycles. Runs without packets say nothing of what packets cost.
    pub fn take_in(&mut self, used: &Used, packets: u32, switch_cycles: u64) {
        if packets == 0 {
            return;
        }
        for resource in RESOURCES {
            let Some(amount) = used.get(resource) else { continue };
            let switch = if resource == Resource::Cycles { switch_cycles } else { 0 };
            let sample = (amount.saturating_sub(switch).min(MOST) << FRACTION_BITS) / u64::from(packets);
            let cost = &mut self.0[resource as usize];
            *cost = Some(cost.map_or(sample, |before| smoothed(before, sample)));
        }
    }
}

/// Closer to the sample; up to 3/256 of a unit below it in the end.
fn smoothed(before: u64, sample: u64) -> u64 {
    if sample >= before {
        before + ((sample - before) >> SMOOTHING_BITS)
    } else {
        before - ((before - sample) >> SMOOTHING_BITS)
    }
}

/// Which runs are measured.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    /// Packets until the next sample.
    left: i64,
    random: u32,
    every: u16,
}

impl Sampler {
    /// One packet in so many, 1 or more, on average. The first run is measured.
    pub fn new(every: u16, seed: u32) -> Self {
        Sampler { left: 0, random: seed | 1, every: every.max(1) }
    }

    /// Is the next run to be measured?
    #[inline]
    pub fn is_due(&self) -> bool {
        self.left <= 0
    }

    /// A run that took about so much, and if it was measured.
    #[inline]
    pub fn count(&mut self, packets: u32, cycles: u64, measured: bool) {
        if measured {
            self.left = self.gap();
        }
        self.left -= i64::from(packets).max((cycles / DEAR_CYCLES) as i64);
    }

    /// 1..=2 every - 1, each as often.
    fn gap(&mut self) -> i64 {
        // Marsaglia, Xorshift RNGs (2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        1 + i64::from(self.random % (2 * u32::from(self.every) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_follows_its_samples_and_leaves_out_the_switch() {
        let mut cost = Cost::default();
        assert_eq!(cost.of(Resource::Cycles), None);
        let used = |cycles| Used::cycles(cycles).with(Resource::Memory, 640);
        cost.take_in(&used(400), 0, 300);
        assert_eq!(cost, Cost::default());
        cost.take_in(&used(1300), 10, 300);
        assert_eq!((cost.of(Resource::Cycles), cost.of(Resource::Memory)), (Some(100), Some(64)));
        assert_eq!((cost.for_packets(Resource::Cycles, 7), cost.of(Resource::Io)), (Some(700), None));
        cost.take_in(&used(10_300), 10, 300);
        assert_eq!(cost.of(Resource::Cycles), Some(325));
        for _ in 0..40 {
            cost.take_in(&used(10_300), 10, 300);
        }
        assert_eq!(cost.of(Resource::Cycles), Some(1000));
        for _ in 0..40 {
            cost.take_in(&used(200), 10, 300);
        }
        assert_eq!(cost.of(Resource::Cycles), Some(0));
        cost.take_in(&Used::cycles(u64::MAX), 1, 0);
        cost.take_in(&Used::cycles(u64::MAX), 1, 0);
        assert!(cost.for_packets(Resource::Cycles, u32::MAX).is_some());
    }

    /// Runs of which every one in so many packets was measured.
    fn one_in(every: u16, packets: u32, cycles: u64) -> f64 {
        let mut sampler = Sampler::new(every, 7);
        let mut measured = 0;
        for _ in 0..100_000 {
            let due = sampler.is_due();
            measured += u32::from(due);
            sampler.count(packets, cycles, due);
        }
        100_000.0 / f64::from(measured)
    }

    #[test]
    fn one_packet_in_twenty_is_measured() {
        for (every, packets, cycles, expected) in [
            (20, 1, 100, 20.0),
            (20, 5, 500, 4.4),
            (1, 1, 100, 1.0),
            (20, 64, 6400, 1.0),
            (20, 1, 20_480, 2.5),
        ] {
            let runs = one_in(every, packets, cycles);
            assert!((runs / expected - 1.0).abs() < 0.03, "{every} {packets} {cycles}: one run in {runs}");
        }
        // Asked for and not done: it is asked for again.
        let mut sampler = Sampler::new(20, 7);
        sampler.count(1, 100, false);
        assert!(sampler.is_due());
    }

    #[test]
    fn traffic_that_repeats_itself_is_seen_as_a_whole() {
        let (mut sampler, mut sum, mut samples) = (Sampler::new(20, 1), 0.0, 0.0);
        for i in 0..1_000_000 {
            // Every 20th packet is dear: 195 on average.
            let cycles = if i % 20 == 0 { 2000 } else { 100 };
            let due = sampler.is_due();
            if due {
                (sum, samples) = (sum + f64::from(cycles), samples + 1.0);
            }
            sampler.count(1, 100, due);
        }
        assert!((sum / samples / 195.0 - 1.0_f64).abs() < 0.05, "{}", sum / samples);
    }
}
