//! Computes the member of a multipath route that Linux chooses: the keys, the hash and the thresholds.
//! `bpf/multipath.h` holds the same code in C.
//!
//! Linux hashes `struct flow_keys` from its member `basic` on with SipHash-2-4 (`__flow_hash_from_keys()`,
//! `net/core/flow_dissector.c`). It sorts both addresses, and both ports, so the two directions of a flow hash alike.
//! From Linux 6.11 on the key is the seed of `fib_multipath_hash_seed`, twice (`fib_multipath_hash_construct_key()`,
//! `include/net/ip_fib.h`). Before, the key is 16 random bytes. Linux chooses the first member whose upper bound is not
//! below the hash (`fib_select_multipath()`, `fib6_select_path()`, `nexthop_select_path_hthr()`).
//!
//! The code runs only on little-endian machines: the hash takes words as they lie in memory.

use crate::flow::field::ip_proto;

/// Lengths of headers in bytes.
const IPV4: usize = 20;
const IPV6: usize = 40;
const ICMP: usize = 8;

/// Bits of the fragment field: more fragments or an offset; and the offset alone.
const FRAGMENT: u16 = 0x3fff;
const OFFSET: u16 = 0x1fff;

/// The hash settings of a router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MultipathHash {
    /// True if `fib_multipath_hash_policy` is 1 (the 5-tuple), false if it is 0 (addresses), for IPv4 and IPv6.
    pub l4: [bool; 2],
    /// The key of SipHash.
    pub key: [u64; 2],
}

/// The key that Linux makes from a seed.
pub fn key_of_seed(seed: u32) -> [u64; 2] {
    [u64::from(seed) << 32 | u64::from(seed); 2]
}

/// The highest hash of each member, in order (`fib_rebalance()`).
pub fn upper_bounds(weights: &[u32]) -> Vec<u32> {
    let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum::<u64>().max(1);
    let mut sum = 0;
    let bound = |weight: &u32| {
        sum += u64::from(*weight);
        // DIV_ROUND_CLOSEST_ULL(sum << 31, total) - 1
        (((sum << 31) + total / 2) / total).saturating_sub(1) as u32
    };
    weights.iter().map(bound).collect()
}

/// The hash of an IPv4 packet without options. `ip` begins with its header and ends with its total length. `None`: only
/// the kernel can compute the hash.
pub fn hash4(ip: &[u8], l4: bool, key: [u64; 2]) -> Option<u32> {
    if l4 {
        let whole = half(ip, 6)? & FRAGMENT == 0;
        let protocol = *ip.get(9)?;
        let ports = if whole { ports(protocol, ip.get(IPV4..)?) } else { [0; 2] };
        return Some(of_keys4(ip, protocol, ports, key));
    }
    Some(of_keys4(followed4(ip), 0, [0; 2], key))
}

/// The hash of an IPv6 packet. `None`: only the kernel looks behind extension headers.
pub fn hash6(ip: &[u8], l4: bool, key: [u64; 2]) -> Option<u32> {
    if !l4 {
        let ip = followed6(ip);
        let label = u32::from_le_bytes(*ip.first_chunk()?) & u32::from_be(0x000f_ffff);
        return Some(of_keys6(ip, *ip.get(6)?, label, [0; 2], key));
    }
    let behind = ip.get(IPV6..)?;
    match *ip.get(6)? {
        EXT_HOP | EXT_ROUTING | EXT_DESTINATION => None,
        // A fragment has no ports, not even the first.
        EXT_FRAGMENT if behind.len() >= 8 => Some(of_keys6(ip, behind[0], 0, [0; 2], key)),
        EXT_FRAGMENT => None,
        protocol => Some(of_keys6(ip, protocol, 0, ports(protocol, behind), key)),
    }
}

const EXT_HOP: u8 = 0;
const EXT_ROUTING: u8 = 43;
const EXT_FRAGMENT: u8 = 44;
const EXT_DESTINATION: u8 = 60;

/// The header that policy 0 hashes. For an ICMP error this is the header that it quotes (`ip_multipath_l3_keys()`).
fn followed4(ip: &[u8]) -> &[u8] {
    let inner = ip.get(IPV4 + ICMP..).filter(|inner| inner.len() >= IPV4);
    let is_first = half(ip, 6).is_some_and(|fragment| fragment & OFFSET == 0);
    let is_error = |kind: u8| matches!(kind, 3 | 4 | 5 | 11 | 12);
    match inner {
        Some(inner) if ip[9] == ip_proto::ICMP && is_first && is_error(ip[IPV4]) => inner,
        _ => ip,
    }
}

/// The same for IPv6 (`ip6_multipath_l3_keys()`).
fn followed6(ip: &[u8]) -> &[u8] {
    match ip.get(IPV6 + ICMP..).filter(|inner| inner.len() >= IPV6) {
        Some(inner) if ip[6] == ip_proto::ICMPV6 && matches!(ip[IPV6], 1..=4) => inner,
        _ => ip,
    }
}

/// The ports, as they lie in memory, for protocols whose ports Linux reads (`proto_ports_offset()`). ESP and AH use the
/// SPI.
fn ports(protocol: u8, behind: &[u8]) -> [u16; 2] {
    let at = match protocol {
        6 | 17 | 33 | 50 | 132 | 136 => 0,
        51 => 4,
        _ => return [0; 2],
    };
    match behind.get(at..).and_then(<[u8]>::first_chunk) {
        Some([a, b, c, d]) => [u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d])],
        None => [0; 2],
    }
}

fn half(ip: &[u8], at: usize) -> Option<u16> {
    ip.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn word(ip: &[u8], at: usize) -> u32 {
    ip.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Both ports in one word, the lower one first.
fn sorted([a, b]: [u16; 2]) -> u64 {
    u64::from(a.min(b)) | u64::from(a.max(b)) << 16
}

fn of_keys4(ip: &[u8], protocol: u8, ports: [u16; 2], key: [u64; 2]) -> u32 {
    let (a, b) = (word(ip, 12), word(ip, 16));
    let (low, high) = (u64::from(a.min(b)), u64::from(a.max(b)));
    fold(sip(key, [u64::from(protocol) << 16, 0, 0, sorted(ports) << 32, low << 32, high]))
}

fn of_keys6(ip: &[u8], protocol: u8, label: u32, ports: [u16; 2], key: [u64; 2]) -> u32 {
    let address = |at: usize| -> [u8; 16] { std::array::from_fn(|i| ip.get(at + i).copied().unwrap_or(0)) };
    let (a, b) = (address(8), address(24));
    let (low, high) = (a.min(b), a.max(b));
    let [l0, l1, l2, l3] = [0, 4, 8, 12].map(|at| u64::from(word(&low, at)));
    let [h0, h1, h2, h3] = [0, 4, 8, 12].map(|at| u64::from(word(&high, at)));
    let first = u64::from(protocol) << 16 | u64::from(label) << 32;
    let ports = sorted(ports) << 32;
    fold(sip(key, [first, 0, 0, ports, l0 << 32, l1 | l2 << 32, l3 | h0 << 32, h1 | h2 << 32, h3]))
}

/// The 31-bit result. A hash of 0 counts as 1.
fn fold(hash: u64) -> u32 {
    (hash as u32).max(1) >> 1
}

/// SipHash-2-4 (Aumasson, Bernstein, INDOCRYPT 2012) over whole words.
fn sip<const N: usize>(key: [u64; 2], words: [u64; N]) -> u64 {
    let mut state = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for word in words.into_iter().chain([(N as u64 * 8) << 56]) {
        state[3] ^= word;
        round(&mut state);
        round(&mut state);
        state[0] ^= word;
    }
    state[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut state));
    state.into_iter().fold(0, |all, word| all ^ word)
}

fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests;
