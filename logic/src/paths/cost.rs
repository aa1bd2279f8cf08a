//! Estimates what a packet of a path takes of each resource, from samples (P6, P7).
//!
//! By default one packet in twenty is measured. Only whole runs can be measured, because a path gives the core back
//! after its packets. So the run after every 20th packet is measured, and every run if runs have 20 or more packets.
//!
//! * The gap between samples is random, 20 on average. Otherwise traffic that repeats every 20 packets would show only
//!   one of them.
//! * A packet that takes more than [`DEAR_CYCLES`] counts as several. Reading counters costs little beside it, and an
//!   unknown cost matters much.
//! * An estimate moves a quarter of the way to each sample. It may fluctuate: what a path is charged is right in sum,
//!   because each sample counts for all packets up to the next. After a jump, the charge is wrong once, by the
//!   difference times four gaps. If the cost grows tenfold, that is 4 x 20 x 2,048 x 9 = 1.5 million cycles at most,
//!   0.5 ms at 3 GHz.
//! * If costs vary at random, the error of a charge is their deviation over the root of the number of samples. It is 1
//!   % for 10,000 samples (200,000 packets) whose deviation is as large as their mean.
//! * A sample that was interrupted counts for its whole gap. A caller that reads a clock with every run avoids this:
//!   everything measured is charged directly.

use super::resource::{RESOURCES, Resource, Used};

/// The cost of an expensive packet. A packet counts as one for each of these that it takes.
pub const DEAR_CYCLES: u64 = 2048;
/// Amounts are kept in 1/256 of their unit.
const FRACTION_BITS: u32 = 8;
/// The most that one run counts.
const MOST: u64 = 1 << 48;
/// The part of the difference by which an estimate moves, as a power of two.
const SMOOTHING_BITS: u32 = 2;

/// What a packet of a path takes, without context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost([Option<u64>; RESOURCES.len()]);

impl Cost {
    /// The cost in this resource, in 1/256 of its unit. `None`: not measured yet, or not counted.
    #[inline]
    pub fn in_256ths(&self, resource: Resource) -> Option<u64> {
        self.0[resource as usize]
    }

    /// The cost in this resource, rounded.
    pub fn of(&self, resource: Resource) -> Option<u64> {
        self.in_256ths(resource).map(|amount| (amount + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS)
    }

    /// The cost of this many packets.
    #[inline]
    pub fn for_packets(&self, resource: Resource, packets: u32) -> Option<u64> {
        Some(self.in_256ths(resource)?.saturating_mul(packets.into()) >> FRACTION_BITS)
    }

    /// Updates the estimate with a measured run, in which a context switch took `switch_cycles`. Runs without packets
    /// are ignored.
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

/// Moves towards the sample. The result stays up to 3/256 of a unit below a higher one.
fn smoothed(before: u64, sample: u64) -> u64 {
    if sample >= before {
        before + ((sample - before) >> SMOOTHING_BITS)
    } else {
        before - ((before - sample) >> SMOOTHING_BITS)
    }
}

/// Selects the runs that are measured.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    /// The number of packets until the next sample.
    left: i64,
    random: u32,
    every: u16,
}

impl Sampler {
    /// Measures one packet in `every` (1 or more), on average. The first run is measured.
    pub fn new(every: u16, seed: u32) -> Self {
        Sampler { left: 0, random: seed | 1, every: every.max(1) }
    }

    /// Whether the next run should be measured.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.left <= 0
    }

    /// Counts a run that took about `cycles`, and whether it was measured.
    #[inline]
    pub fn count(&mut self, packets: u32, cycles: u64, measured: bool) {
        if measured {
            self.left = self.gap();
        }
        self.left -= i64::from(packets).max((cycles / DEAR_CYCLES) as i64);
    }

    /// A uniform random number in 1..=2 every - 1.
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

    /// The average number of packets per measured run is returned.
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
        // A requested measurement that was not done is requested again.
        let mut sampler = Sampler::new(20, 7);
        sampler.count(1, 100, false);
        assert!(sampler.is_due());
    }

    #[test]
    fn all_packets_of_repeating_traffic_are_sampled() {
        let (mut sampler, mut sum, mut samples) = (Sampler::new(20, 1), 0.0, 0.0);
        for i in 0..1_000_000 {
            // Every 20th packet is expensive: 195 on average.
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
