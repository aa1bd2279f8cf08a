//! Connections that the kernel plane forwards past the rules, NAT included: `struct connection` of `bpf/abi.h`, and the
//! index that leads to its rows.
//!
//! There is one writer and any number of readers. A row is complete before the index leads to it. It is used again only
//! after a grace period ([`ConnectionTable::seal`], [`ConnectionTable::reuse`]). Readers find a placed row at any time,
//! except for a moment in which its slot moves to the other bucket. Their packet then goes to the kernel.
//!
//! A connection has two rows, one for each direction, which are neighbours.

use super::buckets::{Buckets, Write};
use crate::{
    fib::{Epoch, Limbo},
    firewall::traffic::Tuple,
    hash,
    memory::words,
    plan::{InterfaceId, RouterId},
};
use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

/// Words of `struct connection`.
pub mod word {
    pub const SOURCE: usize = 0;
    pub const DESTINATION: usize = 2;
    /// Ports, protocol, router, version, `translated`.
    pub const KEY: usize = 4;
    /// Ingress, egress, generation.
    pub const WAY: usize = 5;
    pub const UNTIL: usize = 6;
    pub const ENDED: usize = 7;
    pub const NEW_SOURCE: usize = 8;
    pub const NEW_DESTINATION: usize = 10;
    /// Ports, `header_sum`, `sum`.
    pub const CHANGE: usize = 12;
    pub const PACKETS: usize = 13;
    pub const BYTES: usize = 14;
}

/// The bits of [`word::KEY`] that are part of the key.
/// Flags of TCP that end a connection.
const FIN: u64 = 1;
const SYN: u64 = 2;
const RST: u64 = 4;
const KEY_BITS: u64 = (1 << 56) - 1;

/// The memory that the kernel plane reads.
pub trait ConnectionMemory {
    /// The `connections` map.
    fn rows(&self) -> &[AtomicU64];
    /// The `connection_index` map; a power of two of buckets.
    fn index(&self) -> &[AtomicU64];
}

impl<M: ConnectionMemory + ?Sized> ConnectionMemory for Arc<M> {
    fn rows(&self) -> &[AtomicU64] {
        M::rows(self)
    }
    fn index(&self) -> &[AtomicU64] {
        M::index(self)
    }
}

/// The number of buckets for so many connections: at most half of the slots are used. Of a full table, about one
/// connection in a thousand finds no room.
pub fn buckets_for(pairs: usize) -> usize {
    (4 * pairs).div_ceil(words::CONNECTION_BUCKET).next_power_of_two().max(2)
}

/// [`ConnectionMemory`] on the heap.
pub struct HeapConnections {
    rows: Box<[AtomicU64]>,
    index: Box<[AtomicU64]>,
}

impl HeapConnections {
    /// All zero.
    pub fn new(pairs: usize, buckets: usize) -> Self {
        let zeroed = |words: usize| (0..words).map(|_| AtomicU64::new(0)).collect();
        Self {
            rows: zeroed(2 * pairs * words::CONNECTION),
            index: zeroed(buckets * words::CONNECTION_BUCKET),
        }
    }
}

impl ConnectionMemory for HeapConnections {
    fn rows(&self) -> &[AtomicU64] {
        &self.rows
    }
    fn index(&self) -> &[AtomicU64] {
        &self.index
    }
}

/// The packets of one direction, as they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionKey {
    pub router: RouterId,
    pub protocol: u8,
    pub tuple: Tuple,
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneWay {
    pub arrives: Tuple,
    /// The same packets after NAT.
    pub leaves: Tuple,
    pub ingress: InterfaceId,
    pub egress: InterfaceId,
}

/// A connection that all rules accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    pub router: RouterId,
    /// TCP or UDP.
    pub protocol: u8,
    /// That of the router's rules ([`crate::plan::Op::Rules`]).
    pub generation: u32,
    /// Jiffies: the kernel does not forget the connection before.
    pub until: u64,
    pub ways: [OneWay; 2],
}

impl Connection {
    fn key(&self, way: usize) -> ConnectionKey {
        let tuple = self.ways[way].arrives;
        ConnectionKey { router: self.router, protocol: self.protocol, tuple }
    }
}

/// A connection in the table. Its rows are `2 * id` and `2 * id + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairId(pub u32);

/// The words of a key, and its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyWords {
    source: [u64; 2],
    destination: [u64; 2],
    /// Of [`word::KEY`].
    rest: u64,
}

impl KeyWords {
    /// `None`: the addresses are of different versions.
    fn new(key: &ConnectionKey) -> Option<KeyWords> {
        let tuple = &key.tuple;
        let version = match (tuple.source, tuple.destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => 0,
            (IpAddr::V6(_), IpAddr::V6(_)) => 1,
            _ => return None,
        };
        let rest = u64::from(ports(tuple))
            | u64::from(key.protocol) << 32
            | u64::from(key.router) << 40
            | version << 48;
        Some(KeyWords { source: address(tuple.source), destination: address(tuple.destination), rest })
    }

    fn hash(&self, seed: u64) -> u64 {
        hash::connection(seed, self.source, self.destination, self.rest as u32, (self.rest >> 32) as u32)
    }

    fn is_in(&self, row: &[AtomicU64]) -> bool {
        let load = |at: usize| row[at].load(Relaxed);
        load(word::KEY) & KEY_BITS == self.rest
            && [load(word::SOURCE), load(word::SOURCE + 1)] == self.source
            && [load(word::DESTINATION), load(word::DESTINATION + 1)] == self.destination
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

/// The ones' complement sum of ~old and new words (RFC 1624).
fn change(old: &[u16], new: &[u16]) -> u16 {
    let mut sum: u32 = old.iter().map(|word| u32::from(!word)).chain(new.iter().map(|w| u32::from(*w))).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// The words of the addresses of a tuple, as loaded.
fn address_words(tuple: &Tuple) -> Vec<u16> {
    let bytes = |address| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let both = [bytes(tuple.source), bytes(tuple.destination)].concat();
    both.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
}

/// What NAT does to packets: `translated`, `header_sum` and `sum` of `struct connection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Translation {
    translated: u8,
    header_sum: u16,
    sum: u16,
}

impl Translation {
    fn new(old: &Tuple, new: &Tuple) -> Translation {
        let translated = if (old.destination, old.destination_port) != (new.destination, new.destination_port)
        {
            2
        } else if old != new {
            1
        } else {
            return Translation::default();
        };
        let (mut before, mut after) = (address_words(old), address_words(new));
        let header_sum = if old.source.is_ipv4() { change(&before, &after) } else { 0 };
        for (words, tuple) in [(&mut before, old), (&mut after, new)] {
            words.extend([tuple.source_port, tuple.destination_port].map(u16::swap_bytes));
        }
        Translation { translated, header_sum, sum: change(&before, &after) }
    }

    /// A checksum after NAT, as the program computes it (`bpf/connection.h`).
    #[cfg(test)]
    fn replaced(checksum: u16, change: u16) -> u16 {
        let mut sum = 0xffff + u32::from(!checksum) + u32::from(change);
        sum = (sum >> 16) + (sum & 0xffff);
        sum = (sum >> 16) + (sum & 0xffff);
        !(sum as u16)
    }

    /// The same for the checksum of TCP or UDP.
    #[cfg(test)]
    fn of_transport(&self, protocol: u8, checksum: u16) -> u16 {
        use crate::firewall::traffic::UDP;
        match (protocol, Self::replaced(checksum, self.sum)) {
            (UDP, _) if checksum == 0 => 0,
            (UDP, 0) => 0xffff,
            (_, new) => new,
        }
    }
}

/// The row that a packet with this key finds, whatever it says; as the program looks for it.
pub fn find_row(memory: &impl ConnectionMemory, seed: u64, key: &ConnectionKey) -> Option<u32> {
    let key = KeyWords::new(key)?;
    let (index, rows) = (memory.index(), memory.rows());
    let mask = (index.len() / words::CONNECTION_BUCKET).checked_sub(1)?;
    let hash = key.hash(seed);
    let home = (hash >> 32) as usize & mask;
    for bucket in [home, (home ^ 1) & mask] {
        let at = bucket * words::CONNECTION_BUCKET;
        let mut is_full = true;
        for slot in index.get(at..at + words::CONNECTION_BUCKET)? {
            let slot = slot.load(Acquire);
            is_full &= slot != 0;
            if slot == 0 || slot >> 32 != hash & u64::from(u32::MAX) {
                continue;
            }
            let row = (slot as u32).wrapping_sub(1);
            let at = row as usize * words::CONNECTION;
            if rows.get(at..at + words::CONNECTION).is_some_and(|row| key.is_in(row)) {
                return Some(row);
            }
        }
        if !is_full {
            return None;
        }
    }
    None
}

/// The writer of the rows and of the index.
pub struct ConnectionTable<M> {
    memory: M,
    seed: u64,
    /// By row.
    index: Buckets<u32>,
    /// By pair.
    live: Box<[bool]>,
    free: Vec<PairId>,
    limbo: Limbo<PairId>,
}

impl<M: ConnectionMemory> ConnectionTable<M> {
    /// Takes over `memory`, and empties it. The index must have a power of two of buckets. `seed`: that of the program.
    pub fn new(memory: M, seed: u64) -> Self {
        memory.index().iter().for_each(|slot| slot.store(0, Release));
        let buckets = memory.index().len() / words::CONNECTION_BUCKET;
        let pairs = memory.rows().len() / (2 * words::CONNECTION);
        let pairs = u32::try_from(pairs).unwrap_or(u32::MAX / 2).min(u32::MAX / 2);
        Self {
            index: Buckets::new(buckets, words::CONNECTION_BUCKET),
            live: vec![false; pairs as usize].into(),
            free: (0..pairs).rev().map(PairId).collect(),
            limbo: Limbo::default(),
            memory,
            seed,
        }
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The number of connections in it.
    pub fn len(&self) -> usize {
        self.index.counts().0 / 2
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most connections that it can hold.
    pub fn capacity(&self) -> usize {
        self.live.len()
    }

    /// Puts a connection in. `None`: there is no row left or no room in the index, a direction is there already, or
    /// the versions of addresses differ. Nothing has then changed.
    pub fn insert(&mut self, connection: &Connection) -> Option<PairId> {
        let keys = [KeyWords::new(&connection.key(0))?, KeyWords::new(&connection.key(1))?];
        let version = |way: &OneWay| {
            [way.arrives.source, way.leaves.source, way.leaves.destination].map(|a| a.is_ipv4())
        };
        let [a, b] = connection.ways.each_ref().map(version);
        let is_there = |way| find_row(&self.memory, self.seed, &connection.key(way)).is_some();
        if a != b || a[0] != a[1] || a[0] != a[2] || keys[0] == keys[1] || is_there(0) || is_there(1) {
            return None;
        }
        let id = *self.free.last()?;
        let rows = [2 * id.0, 2 * id.0 + 1];
        let hashes = keys.map(|key| key.hash(self.seed));
        let mut slots = [0; 2];
        for way in 0..2 {
            match self.index.insert(rows[way], (hashes[way] >> 32) as u32 & self.index.mask()) {
                Some(slot) => slots[way] = slot,
                None => {
                    rows[..=way].iter().rev().for_each(|row| self.unindex(*row));
                    return None;
                }
            }
        }
        self.free.pop();
        self.live[id.0 as usize] = true;
        for way in 0..2 {
            self.write(rows[way], &keys[way], connection, &connection.ways[way]);
        }
        for way in 0..2 {
            self.memory.index()[slots[way]].store(slot(hashes[way], rows[way]), Release);
        }
        Some(id)
    }

    fn row(&self, row: u32) -> &[AtomicU64] {
        let at = row as usize * words::CONNECTION;
        &self.memory.rows()[at..at + words::CONNECTION]
    }

    /// The rows of a connection that is in the table.
    fn rows(&self, id: PairId) -> Option<[&[AtomicU64]; 2]> {
        let is_live = self.live.get(id.0 as usize).copied().unwrap_or_default();
        is_live.then(|| [self.row(2 * id.0), self.row(2 * id.0 + 1)])
    }

    fn write(&self, row: u32, key: &KeyWords, connection: &Connection, way: &OneWay) {
        let nat = Translation::new(&way.arrives, &way.leaves);
        let [new_source, new_destination] = [way.leaves.source, way.leaves.destination].map(address);
        let kept =
            u64::from(way.ingress) | u64::from(way.egress) << 16 | u64::from(connection.generation) << 32;
        let change =
            u64::from(ports(&way.leaves)) | u64::from(nat.header_sum) << 32 | u64::from(nat.sum) << 48;
        let values: [u64; words::CONNECTION] = [
            key.source[0],
            key.source[1],
            key.destination[0],
            key.destination[1],
            key.rest | u64::from(nat.translated) << 56,
            kept,
            connection.until,
            0,
            new_source[0],
            new_source[1],
            new_destination[0],
            new_destination[1],
            change,
            0,
            0,
            0,
        ];
        for (word, value) in self.row(row).iter().zip(values) {
            word.store(value, Relaxed);
        }
    }

    /// Takes a row out of the index.
    fn unindex(&mut self, row: u32) {
        for write in self.index.remove(row) {
            match write {
                Write::Clear(at) => self.memory.index()[at].store(0, Release),
                Write::Set(at, row) => {
                    let hash = self.key_in(row).hash(self.seed);
                    self.memory.index()[at].store(slot(hash, row), Release);
                }
            }
        }
    }

    /// The key of a row that is in the index.
    fn key_in(&self, row: u32) -> KeyWords {
        let load = |at: usize| self.row(row)[at].load(Relaxed);
        KeyWords {
            source: [load(word::SOURCE), load(word::SOURCE + 1)],
            destination: [load(word::DESTINATION), load(word::DESTINATION + 1)],
            rest: load(word::KEY) & KEY_BITS,
        }
    }

    /// Takes a connection out. Packets that have found it already still use its rows, so these are not free yet. `false`:
    /// it was not there.
    pub fn remove(&mut self, id: PairId) -> bool {
        let Some(live) = self.live.get_mut(id.0 as usize).filter(|live| **live) else { return false };
        *live = false;
        self.unindex(2 * id.0);
        self.unindex(2 * id.0 + 1);
        self.limbo.retire(id);
        true
    }

    /// Ends the current epoch. Call [`ConnectionTable::reuse`] with it after a grace period from now.
    pub fn seal(&mut self) -> Epoch {
        self.limbo.seal()
    }

    /// No packet is left from before `epoch` was sealed, so the rows of all that was removed until then are free.
    pub fn reuse(&mut self, epoch: Epoch) {
        while let Some(id) = self.limbo.next(epoch) {
            self.free.push(id);
        }
    }

    /// Sets the time at which the kernel may forget the connection.
    pub fn set_until(&self, id: PairId, jiffies: u64) {
        for row in self.rows(id).into_iter().flatten() {
            row[word::UNTIL].store(jiffies, Release);
        }
    }

    /// Says that the rules of this generation accept the connection.
    pub fn set_generation(&self, id: PairId, generation: u32) {
        for row in self.rows(id).into_iter().flatten() {
            let interfaces = row[word::WAY].load(Relaxed) & u64::from(u32::MAX);
            row[word::WAY].store(interfaces | u64::from(generation) << 32, Release);
        }
    }

    /// Has the program seen its end? Its packets go to the kernel.
    pub fn ended(&self, id: PairId) -> bool {
        self.seen(id) != 0
    }

    /// Has the program seen FIN or RST? Then Linux sets the timeout, and nobody else.
    pub fn is_closing(&self, id: PairId) -> bool {
        self.seen(id) & (FIN | RST) != 0
    }

    /// Has the program seen an RST, and no SYN since? Whoever sends a SYN may begin another connection.
    pub fn was_reset(&self, id: PairId) -> bool {
        self.seen(id) & (SYN | RST) == RST
    }

    /// The flags that end a connection.
    fn seen(&self, id: PairId) -> u64 {
        self.rows(id).into_iter().flatten().fold(0, |seen, row| seen | row[word::ENDED].load(Acquire))
    }

    /// Packets and bytes that the program has forwarded in each direction.
    pub fn counts(&self, id: PairId) -> [(u64, u64); 2] {
        let rows = self.rows(id);
        let count = |row: &[AtomicU64]| (row[word::PACKETS].load(Relaxed), row[word::BYTES].load(Relaxed));
        rows.map(|rows| rows.map(count)).unwrap_or_default()
    }

    /// The connection that has packets with this key, and their direction.
    pub fn find(&self, key: &ConnectionKey) -> Option<(PairId, usize)> {
        let row = find_row(&self.memory, self.seed, key)?;
        Some((PairId(row / 2), row as usize % 2))
    }
}

fn slot(hash: u64, row: u32) -> u64 {
    hash << 32 | u64::from(row + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firewall::traffic::{TCP, UDP};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn tuple(source: &str, source_port: u16, destination: &str, destination_port: u16) -> Tuple {
        Tuple {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            source_port,
            destination_port,
        }
    }

    fn back(tuple: &Tuple) -> Tuple {
        Tuple {
            source: tuple.destination,
            destination: tuple.source,
            source_port: tuple.destination_port,
            destination_port: tuple.source_port,
        }
    }

    /// A connection whose packets arrive as `arrives` and leave as `leaves`, and its answers.
    fn connection(protocol: u8, arrives: Tuple, leaves: Tuple) -> Connection {
        let way = OneWay { arrives, leaves, ingress: 1, egress: 2 };
        let answer = OneWay { arrives: back(&leaves), leaves: back(&arrives), ingress: 2, egress: 1 };
        Connection { router: 3, protocol, generation: 7, until: 99, ways: [way, answer] }
    }

    fn nth(n: u16) -> Connection {
        let arrives = tuple("10.0.1.5", n, "192.0.2.9", 443);
        connection(TCP, arrives, Tuple { source: "198.51.100.1".parse().unwrap(), ..arrives })
    }

    fn table(pairs: usize, buckets: usize) -> ConnectionTable<HeapConnections> {
        ConnectionTable::new(HeapConnections::new(pairs, buckets), 0x1234_5678_9abc_def0)
    }

    #[test]
    fn a_row_holds_what_the_header_says() {
        let mut table = table(4, 4);
        let arrives = tuple("10.0.1.5", 1000, "192.0.2.9", 443);
        let leaves = Tuple { source: "198.51.100.1".parse().unwrap(), source_port: 2000, ..arrives };
        let id = table.insert(&connection(UDP, arrives, leaves)).unwrap();
        let row = |way: usize| -> Vec<u8> {
            let words = table.rows(id).unwrap()[way].iter().map(|word| word.load(Relaxed));
            words.flat_map(u64::to_le_bytes).collect()
        };
        let there = row(0);
        assert_eq!(there[..5], [10, 0, 1, 5, 0]);
        assert_eq!(there[16..20], [192, 0, 2, 9]);
        assert_eq!(there[32..40], [3, 232, 1, 187, UDP, 3, 0, 1]);
        assert_eq!(there[40..48], [1, 0, 2, 0, 7, 0, 0, 0]);
        assert_eq!(there[48..56], 99_u64.to_le_bytes());
        assert_eq!(there[64..68], [198, 51, 100, 1]);
        assert_eq!(there[80..84], [192, 0, 2, 9]);
        assert_eq!(there[96..100], [7, 208, 1, 187]);
        let answer = row(1);
        assert_eq!(answer[..4], [192, 0, 2, 9]);
        assert_eq!(answer[36..44], [UDP, 3, 0, 2, 2, 0, 1, 0]);
        assert_eq!(answer[80..84], [10, 0, 1, 5]);
    }

    #[test]
    fn kinds_of_translation() {
        let arrives = tuple("10.0.1.5", 1000, "192.0.2.9", 443);
        let kind = |leaves: Tuple| Translation::new(&arrives, &leaves).translated;
        assert_eq!(kind(arrives), 0);
        assert_eq!(kind(Tuple { source: "10.0.1.6".parse().unwrap(), ..arrives }), 1);
        assert_eq!(kind(Tuple { source_port: 1, ..arrives }), 1);
        assert_eq!(kind(Tuple { destination: "10.0.1.6".parse().unwrap(), ..arrives }), 2);
        assert_eq!(kind(Tuple { destination_port: 1, ..arrives }), 2);
        assert_eq!(kind(back(&arrives)), 2);
        let six = tuple("2001:db8::1", 1, "2001:db8::2", 2);
        let new = Tuple { source: "2001:db8::3".parse().unwrap(), ..six };
        assert_eq!(Translation::new(&six, &new).header_sum, 0);
    }

    #[test]
    fn rows_are_used_again_only_after_a_grace_period() {
        let mut table = table(2, 4);
        let first = table.insert(&nth(1)).unwrap();
        table.insert(&nth(2)).unwrap();
        assert_eq!(table.insert(&nth(3)), None);
        let too_early = table.seal();
        assert!(table.remove(first));
        assert!(!table.remove(first));
        assert_eq!((table.find(&nth(1).key(0)), table.find(&nth(1).key(1))), (None, None));
        assert_eq!(table.insert(&nth(3)), None);
        table.reuse(too_early);
        assert_eq!(table.insert(&nth(3)), None);
        let epoch = table.seal();
        assert_eq!(table.insert(&nth(3)), None);
        table.reuse(epoch);
        assert_eq!(table.insert(&nth(3)), Some(first));
        assert_eq!(table.find(&nth(3).key(1)), Some((first, 1)));
    }

    #[test]
    fn a_connection_without_room_in_the_index_leaves_nothing() {
        let mut table = table(64, 2);
        let all: Vec<_> = (0..64).map(|n| table.insert(&nth(n)).map(|id| (n, id))).collect();
        let placed: Vec<_> = all.into_iter().flatten().collect();
        assert_eq!((placed.len(), table.len()), (8, 8));
        let used = |table: &ConnectionTable<HeapConnections>| {
            table.memory.index().iter().filter(|slot| slot.load(Relaxed) != 0).count()
        };
        assert_eq!(used(&table), 16);
        table.remove(placed[0].1);
        assert_eq!(used(&table), 14);
        assert_eq!(table.index.counts(), (14, 0));
    }

    #[test]
    fn impossible_connections_are_refused() {
        let mut table = table(4, 4);
        let arrives = tuple("10.0.1.5", 1, "192.0.2.9", 2);
        let six = tuple("2001:db8::1", 1, "2001:db8::2", 2);
        let mixed = Tuple { source: six.source, ..arrives };
        let same = tuple("10.0.1.5", 1, "10.0.1.5", 1);
        for (arrives, leaves) in [(mixed, mixed), (arrives, six), (six, mixed), (same, same)] {
            assert_eq!(table.insert(&connection(UDP, arrives, leaves)), None);
        }
        assert!(table.insert(&connection(UDP, arrives, arrives)).is_some());
        assert_eq!(table.insert(&connection(UDP, arrives, arrives)), None);
        assert_eq!(table.insert(&connection(UDP, back(&arrives), back(&arrives))), None);
        assert!(table.insert(&connection(TCP, arrives, arrives)).is_some());
        assert!(table.insert(&Connection { router: 4, ..connection(UDP, arrives, arrives) }).is_some());
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn words_that_change_while_packets_run() {
        let mut table = table(2, 2);
        let id = table.insert(&nth(1)).unwrap();
        table.set_until(id, 1234);
        let [there, answer] = table.rows(id).unwrap();
        assert_eq!([there, answer].map(|row| row[word::UNTIL].load(Relaxed)), [1234; 2]);
        assert!(!table.ended(id));
        for (flags, expected) in
            [(FIN, [true, false]), (SYN, [false, false]), (RST, [true, true]), (RST | SYN, [true, false])]
        {
            answer[word::ENDED].store(flags, Relaxed);
            assert!(table.ended(id));
            assert_eq!([table.is_closing(id), table.was_reset(id)], expected);
        }
        there[word::PACKETS].store(5, Relaxed);
        there[word::BYTES].store(700, Relaxed);
        assert_eq!(table.counts(id), [(5, 700), (0, 0)]);
        table.remove(id);
        assert!(!table.ended(id) && table.counts(id) == [(0, 0); 2]);
        table.set_until(id, 1);
        assert_eq!(table.counts(PairId(77)), [(0, 0); 2]);
    }

    #[test]
    fn nearly_all_find_room_in_the_index() {
        assert_eq!((buckets_for(65_536), buckets_for(1), buckets_for(0)), (32_768, 2, 2));
        let mut table = table(4096, buckets_for(4096));
        let placed = (0..4096).filter(|n| table.insert(&nth(*n)).is_some()).count();
        assert!(placed > 4080, "{placed}");
    }

    /// Sums up from scratch, in network byte order.
    fn checksum(bytes: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    /// Pseudo header, ports and payload: all that the checksum of TCP and UDP covers.
    fn covered(tuple: &Tuple, payload: &[u8]) -> Vec<u8> {
        let words = address_words(tuple).into_iter().flat_map(u16::to_le_bytes);
        let ports = [tuple.source_port, tuple.destination_port].map(u16::to_be_bytes).concat();
        words.chain(ports).chain(payload.iter().copied()).collect()
    }

    fn any_tuple(v6: bool) -> impl Strategy<Value = Tuple> {
        let part = prop_oneof![Just(0_u16), Just(0xffff_u16), any::<u16>()];
        prop::collection::vec(part, 18).prop_map(move |w| {
            let address = |words: &[u16]| {
                let bytes = words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>();
                match <[u8; 4]>::try_from(&bytes[..4]) {
                    Ok(four) if !v6 => IpAddr::from(four),
                    _ => <[u8; 16]>::try_from(&bytes[..]).map(IpAddr::from).unwrap(),
                }
            };
            Tuple {
                source: address(&w[..8]),
                destination: address(&w[8..16]),
                source_port: w[16].max(1),
                destination_port: w[17].max(1),
            }
        })
    }

    proptest! {
        /// The incremental checksum is that of the new packet. Only forms of 0 need care.
        #[test]
        fn checksums_are_those_of_a_full_recomputation(
            (old, new) in any::<bool>().prop_flat_map(|v6| (any_tuple(v6), any_tuple(v6))),
            payload in prop::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 1..20),
        ) {
            prop_assume!(old != new);
            let nat = Translation::new(&old, &new);
            let (before, after) = (checksum(&covered(&old, &payload)), checksum(&covered(&new, &payload)));
            prop_assert_eq!(nat.of_transport(TCP, before.swap_bytes()).swap_bytes(), after);
            let sent = |sum: u16| if sum == 0 { 0xffff } else { sum };
            prop_assert_eq!(nat.of_transport(UDP, sent(before).swap_bytes()).swap_bytes(), sent(after));
            prop_assert_eq!(nat.of_transport(UDP, 0), 0);
            if old.source.is_ipv4() {
                // A header is never all 0, because of its version. Only a sum of 0s has the checksum 0xffff.
                let header = |tuple: &Tuple| {
                    let addresses = address_words(tuple).into_iter().flat_map(u16::to_le_bytes);
                    [0x45, 0].into_iter().chain(addresses).chain(payload.iter().copied()).collect::<Vec<u8>>()
                };
                let (before, after) = (checksum(&header(&old)), checksum(&header(&new)));
                let replaced = Translation::replaced(before.swap_bytes(), nat.header_sum);
                prop_assert_eq!(replaced.swap_bytes(), after);
            }
        }

        /// The table agrees with a map, and no slot is left over.
        #[test]
        fn agrees_with_a_map(steps in prop::collection::vec((0_u16..40, 0..4_u8), 1..200)) {
            let mut table = table(16, 4);
            let mut model = BTreeMap::new();
            let mut removed = BTreeSet::new();
            for (n, step) in steps {
                match step {
                    0 | 1 => match table.insert(&nth(n)) {
                        Some(id) => {
                            prop_assert!(!removed.contains(&id));
                            prop_assert!(model.values().all(|other| *other != id));
                            prop_assert_eq!(model.insert(n, id), None);
                        }
                        None => prop_assert!(
                            model.contains_key(&n) || model.len() + removed.len() == 16 || model.len() >= 8
                        ),
                    },
                    2 => if let Some(id) = model.remove(&n) {
                        prop_assert!(table.remove(id));
                        removed.insert(id);
                    },
                    _ => {
                        let epoch = table.seal();
                        table.reuse(epoch);
                        removed.clear();
                    }
                }
                for n in 0..40 {
                    for way in 0..2 {
                        let found = table.find(&nth(n).key(way));
                        prop_assert_eq!(found, model.get(&n).map(|id| (*id, way)));
                    }
                }
                let slots = table.memory.index().iter().filter(|slot| slot.load(Relaxed) != 0);
                prop_assert_eq!(slots.count(), 2 * model.len());
                prop_assert_eq!(table.len(), model.len());
            }
        }
    }
}
