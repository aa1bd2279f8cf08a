//! How long packets waited.

/// Buckets per power of two. Quantiles are up to 1/16 too high.
const PARTS: u64 = 16;

/// Times in ns, counted in buckets. Buckets for short times are finer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    buckets: Vec<u64>,
    pub packets: u64,
    pub max_ns: u64,
}

impl Latency {
    pub(super) fn count(&mut self, ns: u64, packets: u64) {
        if packets == 0 {
            return;
        }
        let bucket = bucket(ns);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += packets;
        self.packets += packets;
        self.max_ns = self.max_ns.max(ns);
    }

    /// The time that this share of the packets did not exceed. `None` if there were none.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let rank = ((self.packets as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        let bucket = self.buckets.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        Some(last_of(bucket).min(self.max_ns))
    }
}

fn bucket(ns: u64) -> usize {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(PARTS.ilog2() + 1);
    (u64::from(shift) * PARTS + (ns >> shift)) as usize
}

/// The longest time of a bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / PARTS).saturating_sub(1);
    let start = bucket - shift * PARTS;
    ((start + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_sorted_values_within_a_sixteenth() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile_ns(0.5), None);
        (1..=10_000).for_each(|ns| latency.count(ns, 1));
        let quantiles = [0.0, 0.001, 0.5, 0.99, 1.0].map(|share| latency.quantile_ns(share).unwrap());
        assert_eq!(quantiles, [1, 10, 5119, 10_000, 10_000]);
        assert_eq!((latency.packets, latency.max_ns), (10_000, 10_000));
        latency.count(5_000_000_000, 1_000_000);
        assert_eq!(latency.quantile_ns(0.5), Some(5_000_000_000));
    }

    #[test]
    fn every_time_is_in_the_bucket_that_ends_at_or_after_it() {
        for ns in (0..5000).chain([u64::from(u32::MAX), 1 << 40, u64::MAX >> 8]) {
            let end = last_of(bucket(ns));
            assert!(end >= ns && end - ns <= ns / PARTS, "{ns}: {end}");
            assert!(bucket(end + 1) == bucket(ns) + 1, "{ns}");
        }
    }
}
