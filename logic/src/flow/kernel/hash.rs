//! The hash of a key under a mask. Both planes compute it (`bpf/flow_rules.h` has the same lines in C).

use super::memory::{CACHE_WAYS, FRONT, words};
use crate::flow::{Field, Key, field::ether_type};

const K1: u64 = 0x9e37_79b9_7f4a_7c15;
const K2: u64 = 0xff51_afd7_ed55_8ccd;
const K3: u64 = 0xbf58_476d_1ce4_e5b9;
const K4: u64 = 0x94d0_49bb_1331_11eb;

/// Odd numbers by which the words of a key are multiplied. They are chosen at random when the program is loaded, so that
/// nobody outside can create flows that all fall into one set of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub [u64; FRONT + 1]);

impl Default for Seed {
    fn default() -> Self {
        Self::new([K1, K2, K3, K4, K1])
    }
}

impl Seed {
    /// Makes a seed from random numbers.
    pub fn new(random: [u64; FRONT + 1]) -> Seed {
        Seed(random.map(|word| word | 1))
    }

    fn sum(&self, key: &[u64; Key::WORDS], mask: &[u64; Key::WORDS]) -> u64 {
        let front = (0..FRONT).map(|i| fold(key[i] & mask[i]).wrapping_mul(self.0[i]));
        let sum = front.fold(0, u64::wrapping_add);
        let rest = (FRONT..Key::WORDS).filter(|&at| mask[at] != 0);
        rest.fold(sum, |h, at| (h ^ fold(key[at] & mask[at])).wrapping_mul(self.0[FRONT]) ^ h >> 29)
    }

    /// Index of the first word of a flow in a CPU's cache. `way` selects one of the flow's two places.
    pub(super) fn place(hash: u64, way: usize, sets: usize) -> usize {
        let set = if way == 0 { hash >> 32 } else { hash } as usize & (sets - 1);
        (set * CACHE_WAYS + way) * words::CACHED
    }

    /// The hash of a rule's key under its mask gives its bucket and its tag. The hash of a packet's key under the
    /// union of all masks selects the set of the cache.
    pub fn key(&self, key: &[u64; Key::WORDS], mask: &[u64; Key::WORDS]) -> u64 {
        mix(self.sum(key, mask))
    }
}

/// The last bytes of addresses and ports are the highest bits of a word, and a multiplication carries nothing down from
/// them.
fn fold(word: u64) -> u64 {
    word ^ word >> 32
}

fn mix(h: u64) -> u64 {
    fold(fold(h).wrapping_mul(K1))
}

/// The hash of a packet's addresses, protocol and ports, and also of its MAC addresses if it is not IP: `spread` of
/// `bpf/flow.h`.
pub fn spread(key: &Key) -> u32 {
    let w = key.words();
    let ports = w[1] >> 48 | w[2] >> 48 << 16 | (key.get(Field::IpProto) as u64) << 32;
    let is_ip = [ether_type::IPV4, ether_type::IPV6].map(u128::from).contains(&key.get(Field::EthType));
    let mac = |word: u64| if is_ip { 0 } else { word & 0xffff_ffff_ffff };
    let macs = [(mac(w[1]), K3), (mac(w[2]), K4)];
    let parts = [(w[3], K1), (ports, K2), (w[6], K1), (w[7], K2), (w[8], K3), (w[9], K4)];
    let sum = parts
        .into_iter()
        .chain(macs)
        .fold(0_u64, |h, (word, by)| h.wrapping_add(fold(word).wrapping_mul(by)));
    (mix(sum) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_in_one_field_spread_as_random_ones_do() {
        const N: u32 = 16_384;
        for field in
            [Field::Ipv4Dst, Field::Ipv4Src, Field::TcpSrc, Field::TcpDst, Field::EthDst, Field::EthSrc]
        {
            for part in [|h: u64| h >> 32 & 0x3fff, |h: u64| h >> 20 & 0x3fff, |h: u64| h & 0x3fff] {
                let mut seen = vec![0_u32; N as usize];
                for i in 0..N {
                    let mut key = Key::ZERO;
                    key.set(field, i.into());
                    seen[part(Seed::default().key(&key.words(), &[u64::MAX; Key::WORDS])) as usize] += 1;
                }
                let fullest = seen.iter().max().unwrap();
                assert!(*fullest <= 12, "{field}: {fullest} of {N} keys in one of {N} places");
            }
        }
    }

    /// Generated rules often count up in several fields at once.
    #[test]
    fn keys_that_differ_in_two_fields_have_different_hashes() {
        use Field::{EthDst, EthSrc, Ipv4Dst, Ipv4Src, TcpDst, TcpSrc};
        let fields = [EthDst, EthSrc, Ipv4Dst, Ipv4Src, TcpDst, TcpSrc];
        let pairs = fields.iter().flat_map(|a| fields.iter().map(move |b| (*a, *b))).filter(|(a, b)| a < b);
        let random = |n: u64| Seed::new(std::array::from_fn(|i| mix(n * 5 + i as u64 + 1)));
        for seed in (0..2).map(random) {
            for (a, b) in pairs.clone() {
                for (rows, columns) in [(256, 256), (1 << 14, 4)] {
                    let mut hashes = Vec::with_capacity(1 << 16);
                    for i in 0..rows {
                        for j in 0..columns {
                            let mut key = Key::ZERO;
                            key.set(a, i);
                            key.set(b, j);
                            hashes.push(seed.key(&key.words(), &[u64::MAX; Key::WORDS]));
                        }
                    }
                    hashes.sort_unstable();
                    hashes.dedup();
                    assert!(
                        hashes.len() > (1 << 16) - 2,
                        "{seed:?}, {a}, {b}, {rows} by {columns}: {}",
                        hashes.len()
                    );
                }
            }
        }
    }
}
