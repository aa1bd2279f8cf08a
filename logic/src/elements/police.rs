//! `police`: limits packets or bytes to a rate and a burst (RFC 2697 section 1 with one bucket).
//!
//! - **Input**: any frame.
//! - **Output**: frames for which the bucket has enough tokens. These are taken out.
//! - **Dropped**: `over_rate`. No tokens are taken.
//!
//! The bucket is full at first, and fills at the rate. Tokens are packets, or bytes of data from the Ethernet header
//! on. Each worker that runs the path has a bucket of its own.
//!
//! | parameter | meaning |
//! |---|---|
//! | `packets_per_second` or `bits_per_second` | the rate, 1 to 2^40 |
//! | `burst_packets` or `burst_bytes` | the size of the bucket, 1 to 2^31; a longer frame never passes |

use super::{
    Batch, Contract, Counters, Element, Now,
    packet::{Loss, Verdict},
};
use std::any::Any;

/// The unit of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Packets.
    Packets {
        /// The rate.
        per_second: u64,
        /// The size of the bucket.
        burst: u64,
    },
    /// Bytes.
    Bytes {
        /// The rate in bits.
        bits_per_second: u64,
        /// The size of the bucket in bytes.
        burst: u64,
    },
}

/// The highest rate and the largest bucket.
const MOST_PER_SECOND: u64 = 1 << 40;
const MOST_BURST: u64 = 1 << 31;

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Police {
    rate: Rate,
    /// A packet or a byte is `token` units, and a nanosecond adds `per_ns` units. Both are whole numbers, so nothing is
    /// rounded.
    token: u64,
    per_ns: u64,
    full: u64,
    units: u64,
    /// When units were last added.
    last_ns: Option<u64>,
}

impl Police {
    /// Rates and bursts over the limits above are reduced to the limits.
    pub fn new(rate: Rate) -> Self {
        let (token, per_ns, burst) = match rate {
            Rate::Packets { per_second, burst } => (1_000_000_000, per_second, burst),
            // A byte has eight bits, so it is eight times as many units.
            Rate::Bytes { bits_per_second, burst } => (8_000_000_000, bits_per_second, burst),
        };
        let full = burst.clamp(1, MOST_BURST) * token;
        Police { rate, token, per_ns: per_ns.clamp(1, MOST_PER_SECOND), full, units: full, last_ns: None }
    }

    fn fill(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.last_ns.unwrap_or(now_ns));
        let more = u128::from(passed) * u128::from(self.per_ns) + u128::from(self.units);
        self.units = more.min(self.full.into()) as u64;
        self.last_ns = Some(self.last_ns.unwrap_or(now_ns).max(now_ns));
    }
}

impl Element for Police {
    fn name(&self) -> &'static str {
        "police"
    }

    fn kept(&self) -> Option<&dyn Any> {
        Some(self)
    }

    /// Continues with the same bucket.
    fn go_on_from(&mut self, kept: &dyn Any) {
        if let Some(before) = kept.downcast_ref::<Police>().filter(|before| before.rate == self.rate) {
            *self = before.clone();
        }
    }

    fn contract(&self) -> Contract {
        Contract { asks_when: true, ..Contract::default() }
    }

    fn run(&mut self, now: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        self.fill(now.ns);
        let (token, by_bytes) = (self.token, matches!(self.rate, Rate::Bytes { .. }));
        batch.each(counters, |packet| {
            let cost = if by_bytes { packet.length() as u64 * token } else { token };
            match self.units.checked_sub(cost) {
                Some(rest) => {
                    self.units = rest;
                    None
                }
                None => Some(Verdict::Drop(Loss::OverRate)),
            }
        });
    }
}
