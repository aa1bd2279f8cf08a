//! What the generator sends: up to eight streams at once, each with its own targets, sizes, order and pace.

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::{
    bpf::MAX_STREAMS,
    packet::{FCS_BYTES, Target},
    prefixes::Random,
    topology::MAX_PORTS,
};

/// Most targets of all streams, and most entries of their schedules: size of the maps.
pub const MAX_TARGETS: usize = 1 << 20;
/// Longest frame without FCS that the program in the kernel makes: one page less headroom and the tail the kernel keeps.
pub const MAX_FRAME: u16 = 3400;
/// Longest frame without FCS, for an MTU of 9000. The thread itself sends all streams with such frames.
pub const MAX_JUMBO: u16 = 9014;
/// Most sizes of one stream: `MAX_SIZES` in generator.bpf.c.
const MAX_SIZES: usize = 16;

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// As fast as the sink receives. Enough packets are always on the way to keep a router busy, and never more than
    /// its rings hold. The output is the capacity without loss (RFC 2544 26.1). Sending more would cost the router
    /// time, unlike with a NIC's full ring: the kernel frees frames that find the ring full under a lock that the
    /// router's core needs to free its own.
    Saturate,
    /// As fast as the generator can; the ring of the first port overflows.
    FlatOut,
    /// Packets per second.
    Rate(u64),
}

/// Which of a stream's targets is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One after the other.
    #[default]
    InTurn,
    /// Any target, all equally likely.
    Uniform {
        /// The same seed makes the same order.
        seed: u64,
    },
    /// Target n (from 1) with probability proportional to 1 / n^exponent.
    Zipf {
        /// 0: uniform; traffic in the Internet is about 1.
        exponent: f64,
        /// The same seed makes the same order.
        seed: u64,
    },
}

impl Order {
    /// Draws this many targets, to be repeated. Empty if targets are used in turn.
    fn schedule(self, targets: usize, draws: usize) -> Vec<u32> {
        match self {
            Self::InTurn => Vec::new(),
            Self::Uniform { seed } => {
                let mut random = Random(seed);
                (0..draws).map(|_| random.below(targets) as u32).collect()
            }
            Self::Zipf { exponent, seed } => {
                let mut total = 0.0;
                let cumulated: Vec<f64> = (1..=targets)
                    .map(|n| {
                        total += (n as f64).powf(-exponent);
                        total
                    })
                    .collect();
                let mut random = Random(seed);
                let draw = |_| {
                    // 53 bits, as many as the mantissa has: 0 <= u < 1.
                    let u = (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
                    cumulated.partition_point(|&sum| sum <= u * total).min(targets - 1) as u32
                };
                (0..draws).map(draw).collect()
            }
        }
    }
}

/// Frame lengths without FCS, used in turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes(pub Vec<u16>);

impl Sizes {
    /// Frames of one length.
    pub fn fixed(frame_bytes: u16) -> Self {
        Self(vec![frame_bytes])
    }

    /// The simple IMIX: 7 frames of 64, 4 of 594 and 1 of 1518 bytes, FCS included. The shortest has length `shortest`.
    pub fn imix(shortest: u16) -> Self {
        let (s, m, l) = (shortest, 594 - FCS_BYTES, 1518 - FCS_BYTES);
        Self(vec![s, m, s, s, m, s, s, m, s, s, m, l])
    }

    /// The shortest.
    pub fn min(&self) -> u16 {
        self.0.iter().copied().min().unwrap_or_default()
    }

    /// The longest.
    pub fn max(&self) -> u16 {
        self.0.iter().copied().max().unwrap_or_default()
    }
}

/// Packets with common targets, sizes, order and pace.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// Where to send; each is one flow.
    pub targets: Vec<Target>,
    /// Which target is next.
    pub order: Order,
    /// How long the frames are.
    pub sizes: Sizes,
    /// How fast.
    pub pace: Pace,
}

impl Stream {
    /// Frames of one length to these targets in turn.
    pub fn new(targets: Vec<Target>, frame_bytes: u16, pace: Pace) -> Self {
        Self { targets, order: Order::InTurn, sizes: Sizes::fixed(frame_bytes), pace }
    }

    /// Do all its packets carry a stamp?
    pub fn is_stamped(&self) -> bool {
        self.targets.iter().all(|target| self.sizes.min() >= target.min_stamped())
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.targets.is_empty(), "a stream has no targets");
        ensure!((1..=MAX_SIZES).contains(&self.sizes.0.len()), "a stream has 1 to {MAX_SIZES} frame sizes");
        let port = self.targets.iter().map(|target| target.port).max().unwrap_or_default();
        ensure!(usize::from(port) < MAX_PORTS, "port {port}: 0 to {}", MAX_PORTS - 1);
        let shortest = self.targets.iter().map(Target::min_frame).max().unwrap_or_default();
        for bytes in [self.sizes.min(), self.sizes.max()] {
            ensure!(
                (shortest..=MAX_JUMBO).contains(&bytes),
                "{bytes}-byte frames: {shortest} to {MAX_JUMBO}"
            );
        }
        ensure!(self.pace != Pace::Rate(0), "a rate of 0 packets a second");
        if let Order::Zipf { exponent, .. } = self.order {
            ensure!((0.0..=10.0).contains(&exponent), "Zipf exponent {exponent}: 0 to 10");
        }
        Ok(())
    }
}

/// Can the generator send these at once?
pub fn check(streams: &[Stream]) -> Result<()> {
    ensure!((1..=MAX_STREAMS).contains(&streams.len()), "{} streams: 1 to {MAX_STREAMS}", streams.len());
    streams.iter().try_for_each(Stream::check)?;
    let targets: usize = streams.iter().map(|stream| stream.targets.len()).sum();
    ensure!(targets <= MAX_TARGETS, "{targets} targets: 1 to {MAX_TARGETS}");
    let paced = streams.iter().all(|stream| matches!(stream.pace, Pace::Rate(_)));
    ensure!(paced || streams.len() == 1, "a stream that is not paced must be alone");
    Ok(())
}

/// The schedules of all streams, which share the room there is.
pub fn schedules(streams: &[Stream]) -> Vec<Vec<u32>> {
    let drawn = streams.iter().filter(|stream| stream.order != Order::InTurn).count();
    let draws = MAX_TARGETS / drawn.max(1).next_power_of_two();
    streams.iter().map(|stream| stream.order.schedule(stream.targets.len(), draws)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(order: Order, targets: usize) -> Vec<f64> {
        let schedule = order.schedule(targets, 1 << 18);
        let mut counts = vec![0.0; targets];
        schedule.iter().for_each(|&target| counts[target as usize] += 1.0);
        counts.iter().map(|count| count / schedule.len() as f64).collect()
    }

    #[test]
    fn orders_have_the_shares_they_should() {
        // 5 standard deviations of a binomial share.
        let right = |seen: f64, p: f64| (seen - p).abs() < 5.0 * (p / f64::from(1 << 18)).sqrt();
        let uniform = shares(Order::Uniform { seed: 1 }, 100);
        assert!(uniform.iter().all(|&share| right(share, 0.01)), "{uniform:?}");
        for exponent in [0.8, 1.0, 1.2] {
            let total: f64 = (1..=1000).map(|n| f64::from(n).powf(-exponent)).sum();
            let zipf = shares(Order::Zipf { exponent, seed: 2 }, 1000);
            for n in 1..=1000usize {
                let p = (n as f64).powf(-exponent) / total;
                assert!(right(zipf[n - 1], p), "{exponent}: target {n} has {}, not {p}", zipf[n - 1]);
            }
        }
        let zipf = Order::Zipf { exponent: 1.0, seed: 3 };
        assert_eq!(zipf.schedule(50, 100), zipf.schedule(50, 100));
        assert_eq!(zipf.schedule(1, 3), [0, 0, 0]);
    }

    #[test]
    fn imix_is_7_to_4_to_1() {
        let sizes = Sizes::imix(60);
        let count = |bytes| sizes.0.iter().filter(|&&size| size == bytes).count();
        assert_eq!((count(60), count(590), count(1514), sizes.0.len()), (7, 4, 1, 12));
    }

    #[test]
    fn impossible_streams_are_refused() {
        let target = Target::udp("198.18.0.1".parse().unwrap(), [2; 6], 1);
        let good = Stream::new(vec![target], 60, Pace::Rate(1000));
        let why = |streams: &[Stream]| check(streams).unwrap_err().to_string();
        check(&vec![good.clone(); 8]).unwrap();
        assert!(why(&vec![good.clone(); 9]).contains("9 streams"));
        let saturating = Stream { pace: Pace::Saturate, ..good.clone() };
        check(std::slice::from_ref(&saturating)).unwrap();
        assert!(why(&[good.clone(), saturating]).contains("must be alone"));
        let short = Target::udp("2001:2::1".parse().unwrap(), [2; 6], 1);
        let mixed = Stream { targets: vec![target, short], ..good.clone() };
        assert!(why(&[mixed]).contains("60-byte frames: 62 to 9014"));
        assert!(why(&[Stream { sizes: Sizes(vec![60; 17]), ..good }]).contains("1 to 16 frame sizes"));
    }
}
