//! The hash functions that both planes compute. `bpf/tables.h` has the same code in C.
//!
//! The functions mix by multiplication (Knuth, TAOCP 6.4). A multiplication carries only upwards. The bytes that differ
//! between neighbours come last, so they are in the high bits of a little-endian word. Therefore each word is folded
//! down once before the last multiplication. A bad spread costs speed, never correctness, because the full key is
//! always compared. The code is for little-endian machines only, because it loads words of packet bytes.

const K1: u64 = 0x9e37_79b9_7f4a_7c15;
const K2: u64 = 0xff51_afd7_ed55_8ccd;

/// Multiply, fold the high half onto the low, multiply.
fn mix(word: u64) -> u64 {
    let h = word.wrapping_mul(K2);
    (h ^ h >> 32).wrapping_mul(K2)
}

/// The bucket of an interface: MAC bytes 0..6 and the port as one little-endian word, and the VLAN key.
pub fn interface_bucket(mac: [u8; 6], port: u16, vlan: u32, mask: u32) -> u32 {
    let [a, b, c, d, e, f] = mac;
    let word = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) | u64::from(port) << 48;
    (mix(word ^ u64::from(vlan).wrapping_mul(K1)) >> 32) as u32 & mask
}

/// The bucket and tag of a neighbour. The address is in network byte order (IPv4 in the first four bytes, the rest
/// zero).
pub fn neighbour_bucket(interface: u16, address: [u8; 16], mask: u32) -> (u32, u32) {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| address[at + i]));
    let first = mix(word(0).wrapping_add(u64::from(interface).wrapping_mul(K1)));
    let h = mix(first ^ word(8));
    ((h >> 32) as u32 & mask, h as u32)
}

/// Hash of a direction of a connection; the bucket and the tag are its halves. Addresses and ports are as loaded: IPv4 in
/// the first four bytes, the rest zero. `rest`: protocol, router and version, from the lowest byte.
pub fn connection(seed: u64, source: [u64; 2], destination: [u64; 2], ports: u32, rest: u32) -> u64 {
    let next = |h: u64, word: u64| mix(h ^ word);
    let h = match rest >> 16 {
        0 => next(seed, source[0] | destination[0] << 32),
        _ => source.into_iter().chain(destination).fold(seed, next),
    };
    next(h, u64::from(ports) | u64::from(rest) << 32)
}

/// Hash of a flow, from words of its key. VXLAN's UDP source ports and the choice among buckets use it.
pub fn flow(words: impl IntoIterator<Item = u64>) -> u32 {
    (words.into_iter().fold(0, |h, word| mix(h ^ word).wrapping_add(K1)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fullest of 1024 buckets with 1024 keys; a random function gives 5 to 7.
    fn fullest(keys: impl Iterator<Item = u32>) -> usize {
        let mut load = [0; 1024];
        keys.for_each(|bucket| load[bucket as usize] += 1);
        load.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn keys_that_differ_in_their_last_bytes_spread() {
        let n = |i: u16| i.to_be_bytes();
        let mac = |i| [2, 0, 0, 0, n(i)[0], n(i)[1]];
        let v4 = |i| [10, 0, n(i)[0], n(i)[1], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let v6 = |i| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n(i)[0], n(i)[1]];
        for (name, load) in [
            ("MACs", fullest((0..1024).map(|i| interface_bucket(mac(i), 1, 0, 1023)))),
            ("ports", fullest((0..1024).map(|i| interface_bucket(mac(0), i, 0, 1023)))),
            (
                "VLANs",
                fullest((0..1024_u16).map(|i| interface_bucket(mac(0), 1, 0x2000 | u32::from(i), 1023))),
            ),
            ("IPv4", fullest((0..1024).map(|i| neighbour_bucket(1, v4(i), 1023).0))),
            ("IPv6", fullest((0..1024).map(|i| neighbour_bucket(1, v6(i), 1023).0))),
            ("interfaces", fullest((0..1024).map(|i| neighbour_bucket(i, v6(1), 1023).0))),
        ] {
            assert!(load <= 8, "{name}: {load} of 1024 keys in one of 1024 buckets");
        }
    }
}
