//! Synthetic Internet tables for tests and benchmarks, with the prefix lengths and the clustering of a real table.

use crate::net::{Prefix, Prefix4, Prefix6};
use std::collections::HashSet;

/// Each prefix length, and how often it occurs among 901,899 IPv4 prefixes of a real table.
const MIX4: [(u8, u32); 25] = [
    (8, 16),
    (9, 13),
    (10, 38),
    (11, 103),
    (12, 299),
    (13, 581),
    (14, 1203),
    (15, 2100),
    (16, 13490),
    (17, 8235),
    (18, 13798),
    (19, 24870),
    (20, 42611),
    (21, 50750),
    (22, 108_623),
    (23, 96510),
    (24, 537_698),
    (25, 20),
    (26, 3),
    (27, 11),
    (28, 18),
    (29, 17),
    (30, 3),
    (31, 3),
    (32, 886),
];

/// The same for 160,147 IPv6 prefixes. Rare lengths are left out.
const MIX6: [(u8, u32); 24] = [
    (20, 16),
    (24, 30),
    (28, 193),
    (29, 4371),
    (30, 650),
    (31, 284),
    (32, 22548),
    (33, 2926),
    (34, 2603),
    (35, 1043),
    (36, 5996),
    (37, 880),
    (38, 1617),
    (39, 1377),
    (40, 13418),
    (42, 2301),
    (44, 14365),
    (45, 1553),
    (46, 3039),
    (47, 3153),
    (48, 75488),
    (56, 44),
    (64, 184),
    (127, 60),
];

/// First 16 bits of IPv6 addresses and how often they occur.
const HEADS6: [(u16, u32); 12] = [
    (0x2001, 20151),
    (0x2804, 18064),
    (0x2409, 10038),
    (0x2a02, 7663),
    (0x2402, 7519),
    (0x2408, 7256),
    (0x2600, 5894),
    (0x2401, 5270),
    (0x240a, 4494),
    (0x2400, 3646),
    (0x2806, 3301),
    (0x2a00, 3247),
];

/// SplitMix64 (Steele, Lea, Flood 2014): a small seeded generator. The same seed always gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `limit` (0 if that is 0).
    pub fn below(&mut self, limit: u32) -> u32 {
        (((self.next_u64() >> 32) * u64::from(limit)) >> 32) as u32
    }

    fn pick<T: Copy>(&mut self, mix: &[(T, u32)]) -> Option<T> {
        let mut at = self.below(mix.iter().map(|(_, n)| n).sum());
        mix.iter().find(|(_, n)| at.checked_sub(*n).map(|rest| at = rest).is_none()).map(|(v, _)| *v)
    }
}

/// `count` different IPv4 prefixes between 1.0.0.0 and 223.255.255.255, sorted; at most two million.
pub fn prefixes4(count: usize, seed: u64) -> Vec<Prefix4> {
    let mut random = Random(seed);
    let first = 0x0100_0000;
    distinct(count.min(2_000_000), || {
        Prefix::new(first + random.below(0xe000_0000 - first), random.pick(&MIX4).unwrap_or(24))
    })
}

/// `count` different IPv6 prefixes below 2000::/3, clustered like real ones, sorted; at most one million.
pub fn prefixes6(count: usize, seed: u64) -> Vec<Prefix6> {
    let mut random = Random(seed);
    distinct(count.min(1_000_000), || {
        let head = random.pick(&HEADS6).unwrap_or(0x2001);
        // About 34,000 allocations of 32 bits for 160,000 prefixes, and customers at the low end of each.
        let allocation = random.below(2_800) * 8;
        let site = random.next_u64() >> random.below(16);
        let bits = u128::from(head) << 112 | u128::from(allocation) << 96 | u128::from(site) << 32;
        Prefix::new(bits, random.pick(&MIX6).unwrap_or(48))
    })
}

fn distinct<A: crate::net::Address>(
    count: usize,
    mut draw: impl FnMut() -> Option<Prefix<A>>,
) -> Vec<Prefix<A>> {
    let mut seen = HashSet::with_capacity(count);
    while seen.len() < count {
        seen.extend(draw());
    }
    let mut all: Vec<_> = seen.into_iter().collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_repeatable_and_have_the_mix() {
        let table = prefixes4(20_000, 7);
        assert_eq!(table, prefixes4(20_000, 7));
        assert_ne!(table, prefixes4(20_000, 8));
        let of_24 = table.iter().filter(|p| p.length() == 24).count();
        assert!((11_000..13_000).contains(&of_24), "{of_24} of 20,000 are /24, about 60 % should be");
        let table = prefixes6(20_000, 7);
        let of_48 = table.iter().filter(|p| p.length() == 48).count();
        assert!((8_500..10_500).contains(&of_48), "{of_48} of 20,000 are /48");
    }
}
