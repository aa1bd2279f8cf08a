//! The two hash functions both planes compute (`bpf/tables.h` has the same lines in C).
//!
//! Multiplicative mixing (Knuth, TAOCP 6.4): one or two multiplications per packet. A bad spread costs speed, never
//! correctness: the full key is always compared. Little-endian machines only, as the loads are of packet bytes.

const K1: u64 = 0x9e37_79b9_7f4a_7c15;
const K2: u64 = 0xff51_afd7_ed55_8ccd;

/// Bucket of an interface: MAC bytes 0..6 and port as one little-endian word, and the VLAN key.
pub fn interface_bucket(mac: [u8; 6], port: u16, vlan: u32, mask: u32) -> u32 {
    let [a, b, c, d, e, f] = mac;
    let word = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) | u64::from(port) << 48;
    let h = (word ^ u64::from(vlan).wrapping_mul(K1)).wrapping_mul(K2);
    (h >> 32) as u32 & mask
}

/// Bucket and tag of a neighbour: address in network byte order (IPv4 in the first four bytes, the rest zero).
pub fn neighbour_bucket(interface: u16, address: [u8; 16], mask: u32) -> (u32, u32) {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| address[at + i]));
    let mut h = word(0).wrapping_add(u64::from(interface).wrapping_mul(K1)).wrapping_mul(K2);
    h ^= h >> 32;
    h = (h ^ word(8)).wrapping_mul(K2);
    ((h >> 32) as u32 & mask, h as u32)
}
