//! One-way latencies in buckets of 256 ns up to 4.2 ms. Larger latencies are known only by their sum and maximum.

use serde::Serialize;

/// Width of a bucket: the resolution.
pub const BUCKET_NS: u64 = 256;

/// Counted latencies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Number of latencies.
    pub packets: u64,
    /// Their sum.
    pub sum_ns: u64,
    /// The largest, exactly.
    pub max_ns: u64,
    /// Counts by multiples of [`BUCKET_NS`]. Latencies beyond all buckets are in none of them.
    pub buckets: Vec<u64>,
}

/// Summary of a [`Histogram`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Smallest. Like the quantiles, this is the middle of its bucket. It is the time that a packet takes when the
    /// machine adds no delay.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// Exceeded by one packet in a hundred.
    pub p99_ns: u64,
    /// Exceeded by one packet in a thousand.
    pub p999_ns: u64,
    /// Largest.
    pub max_ns: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Packets that were measured.
    pub packets: u64,
}

impl Histogram {
    /// Adds the latencies of another histogram.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(into, more)| *into += more);
    }

    /// A latency that this share of the packets does not exceed. The maximum, if it lies above all buckets.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let rank = ((self.packets as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        let bucket = self.buckets.iter().position(|count| {
            below += count;
            below >= rank
        });
        bucket.map_or(self.max_ns, |bucket| (bucket as u64 * BUCKET_NS + BUCKET_NS / 2).min(self.max_ns))
    }

    /// `None` if nothing was counted.
    pub fn latency(&self) -> Option<Latency> {
        (self.packets > 0).then(|| Latency {
            min_ns: self.quantile_ns(0.0),
            p50_ns: self.quantile_ns(0.5),
            p99_ns: self.quantile_ns(0.99),
            p999_ns: self.quantile_ns(0.999),
            max_ns: self.max_ns,
            mean_ns: self.sum_ns as f64 / self.packets as f64,
            packets: self.packets,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(latencies: &[u64]) -> Histogram {
        let mut histogram = Histogram { buckets: vec![0; 16], ..Histogram::default() };
        for &ns in latencies {
            histogram.packets += 1;
            histogram.sum_ns += ns;
            histogram.max_ns = histogram.max_ns.max(ns);
            if let Some(count) = histogram.buckets.get_mut((ns / BUCKET_NS) as usize) {
                *count += 1;
            }
        }
        histogram
    }

    #[test]
    fn quantiles_are_those_of_sorted_values() {
        let mut histogram = of(&(1..=1000).collect::<Vec<_>>());
        let latency = histogram.latency().unwrap();
        assert_eq!((latency.min_ns, latency.p50_ns), (128, 384));
        assert_eq!((latency.p99_ns, latency.p999_ns), (896, 896));
        assert_eq!((latency.max_ns, latency.mean_ns, latency.packets), (1000, 500.5, 1000));
        // One packet in a hundred above the buckets: the 99th percentile is still inside.
        histogram.add(&of(&[1_000_000; 10]));
        let latency = histogram.latency().unwrap();
        assert_eq!((latency.p99_ns, latency.p999_ns, latency.max_ns), (896, 1_000_000, 1_000_000));
        assert_eq!(of(&[]).latency(), None);
        // No quantile is above the maximum.
        assert_eq!(of(&[10]).latency().unwrap().p50_ns, 10);
    }
}
