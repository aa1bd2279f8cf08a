//! The words of a row, and the search for it: `struct connection` and `struct connection6_rest` of `bpf/abi.h`.

use super::{Connection, ConnectionKey, ConnectionMemory, OneWay};
use crate::{firewall::traffic::Tuple, hash, memory::words};
use std::{
    net::IpAddr,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed},
    },
};

/// Words of a row.
pub mod word {
    /// Ports, protocol, router, version, state.
    pub const KEY: usize = 0;
    /// Ingress, egress, the row of the other direction.
    pub const WAY: usize = 1;
    /// Generation, until.
    pub const VALID: usize = 2;
    /// `ended`; in its upper half the new ports (IPv4), or the row of `struct connection6_rest` (IPv6).
    pub const ENDED: usize = 3;
    /// IPv4: source and destination.
    pub const ADDRESSES: usize = 4;
    /// IPv4: the new source and destination.
    pub const NEW_ADDRESSES: usize = 5;
    /// IPv6: two words.
    pub const SOURCE: usize = 4;
    /// IPv6: two words.
    pub const DESTINATION: usize = 6;
    /// Of `struct connection6_rest`.
    pub const NEW_PORTS: usize = 1;
    /// Of `struct connection6_rest`: two words.
    pub const NEW_SOURCE: usize = 2;
    /// Of `struct connection6_rest`: two words.
    pub const NEW_DESTINATION: usize = 4;
    /// Of an IPv4 row, and of `struct connection6_rest`.
    pub const PACKETS: usize = 6;
    /// Of an IPv4 row, and of `struct connection6_rest`.
    pub const BYTES: usize = 7;
}

pub type Row = [u64; words::CONNECTION];

/// `enum connection_state`
pub mod state {
    pub const NEW_SOURCE: u64 = 1;
    pub const NEW_DESTINATION: u64 = 2;
    pub const GONE: u64 = 128;
}

/// Where the state begins in a first word.
const STATE_SHIFT: u32 = 56;
/// The first word of a removed row has this bit.
pub const GONE: u64 = state::GONE << STATE_SHIFT;
/// `CONNECTION_REST`, a protocol.
pub const REST: u64 = 255;
/// The bits of a first word that must be those of the key.
const KEY_BITS: u64 = GONE | ((1 << STATE_SHIFT) - 1);
/// `CONNECTION_UNTIL_SHIFT`
pub const UNTIL_SHIFT: u32 = 6;

/// The words of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyWords {
    source: [u64; 2],
    destination: [u64; 2],
    /// [`word::KEY`] without the state.
    first: u64,
}

impl KeyWords {
    /// `None`: the addresses are of different versions.
    pub fn new(key: &ConnectionKey) -> Option<KeyWords> {
        let tuple = &key.tuple;
        let version = match (tuple.source, tuple.destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => 0,
            (IpAddr::V6(_), IpAddr::V6(_)) => 1,
            _ => return None,
        };
        let first = u64::from(ports(tuple))
            | u64::from(key.protocol) << 32
            | u64::from(key.router) << 40
            | version << 48;
        Some(KeyWords { source: address(tuple.source), destination: address(tuple.destination), first })
    }

    pub fn is_ipv6(&self) -> bool {
        self.first >> 48 & 1 == 1
    }

    pub fn hash(&self, seed: u64) -> u64 {
        hash::connection(seed, self.source, self.destination, self.first as u32, (self.first >> 32) as u32)
    }

    /// The words of the addresses, and the number of words that are used.
    fn addresses(&self) -> ([u64; 4], usize) {
        let ([a, b], [c, d]) = (self.source, self.destination);
        if self.is_ipv6() { ([a, b, c, d], 4) } else { ([a | c << 32, 0, 0, 0], 1) }
    }

    fn is_in(&self, row: &[AtomicU64]) -> bool {
        let (addresses, used) = self.addresses();
        let is = |(at, word): (usize, &u64)| row[word::ADDRESSES + at].load(Relaxed) == *word;
        row[word::KEY].load(Acquire) & KEY_BITS == self.first && addresses[..used].iter().enumerate().all(is)
    }
}

/// As the program loads it.
fn address(address: IpAddr) -> [u64; 2] {
    match address {
        IpAddr::V4(address) => [u32::from_le_bytes(address.octets()).into(), 0],
        IpAddr::V6(address) => {
            let number = u128::from_le_bytes(address.octets());
            [number as u64, (number >> 64) as u64]
        }
    }
}

/// As the program loads them: the source port comes first.
fn ports(tuple: &Tuple) -> u32 {
    u32::from(tuple.source_port.swap_bytes()) | u32::from(tuple.destination_port.swap_bytes()) << 16
}

/// The part of the state that says what NAT changes.
fn change(old: &Tuple, new: &Tuple) -> u64 {
    if (old.destination, old.destination_port) != (new.destination, new.destination_port) {
        state::NEW_DESTINATION
    } else if old != new {
        state::NEW_SOURCE
    } else {
        0
    }
}

/// The word [`word::VALID`]. `until`: jiffies.
pub fn valid(generation: u32, until: u64) -> u64 {
    let until = u32::try_from(until >> UNTIL_SHIFT).unwrap_or(u32::MAX);
    u64::from(generation) | u64::from(until) << 32
}

/// The generation in a word [`word::VALID`], and `until`, rounded down.
pub fn validity(word: u64) -> (u32, u64) {
    (word as u32, word >> 32 << UNTIL_SHIFT)
}

/// The words of the row of a direction. `other`: the number of the other direction's row. `rest`: the number of the row
/// of the second part, for IPv6.
pub fn row(connection: &Connection, way: usize, key: &KeyWords, other: u32, rest: Option<u32>) -> Row {
    let OneWay { arrives, leaves, ingress, egress } = &connection.ways[way];
    let new_addresses = address(leaves.source)[0] | address(leaves.destination)[0] << 32;
    let upper = rest.unwrap_or(ports(leaves));
    let mut row = [0; words::CONNECTION];
    row[word::KEY] = key.first | change(arrives, leaves) << STATE_SHIFT;
    row[word::WAY] = u64::from(*ingress) | u64::from(*egress) << 16 | u64::from(other) << 32;
    row[word::VALID] = valid(connection.generation, connection.until);
    row[word::ENDED] = u64::from(upper) << 32;
    let (addresses, used) = key.addresses();
    row[word::ADDRESSES..][..used].copy_from_slice(&addresses[..used]);
    if rest.is_none() {
        row[word::NEW_ADDRESSES] = new_addresses;
    }
    row
}

/// The words of the second part of a direction of IPv6.
pub fn rest_row(way: &OneWay) -> Row {
    let mut row = [0; words::CONNECTION];
    row[word::KEY] = REST << 32;
    row[word::NEW_PORTS] = ports(&way.leaves).into();
    row[word::NEW_SOURCE..][..2].copy_from_slice(&address(way.leaves.source));
    row[word::NEW_DESTINATION..][..2].copy_from_slice(&address(way.leaves.destination));
    row
}

/// The rows that the search for a key looks at, in this order. The search ends at an empty row. `rows`: those of all
/// blocks, whose number is a power of two.
pub fn probe(hash: u64, rows: usize) -> impl Iterator<Item = u32> {
    let ways = words::CONNECTION_WAYS as u32;
    let mask = (rows as u32 / ways).wrapping_sub(1);
    let home = (hash >> 32) as u32 & mask;
    [home, (home ^ 1) & mask].into_iter().flat_map(move |block| {
        (0..ways).map(move |i| block * ways + ((hash as u32).wrapping_add(i) & (ways - 1)))
    })
}

/// The row that the program finds for a packet with this key, even if the row is void.
pub fn find_row(memory: &impl ConnectionMemory, seed: u64, key: &ConnectionKey) -> Option<u32> {
    let key = KeyWords::new(key)?;
    let rows = memory.rows();
    for row in probe(key.hash(seed), rows.len() / words::CONNECTION) {
        let at = row as usize * words::CONNECTION;
        let words = rows.get(at..at + words::CONNECTION)?;
        if words[word::KEY].load(Relaxed) == 0 {
            return None;
        }
        if key.is_in(words) {
            return Some(row);
        }
    }
    None
}
