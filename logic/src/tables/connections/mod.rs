//! Connections that the kernel plane forwards past the rules, NAT included: a hash table of `struct connection` of
//! `bpf/abi.h`. A packet of IPv4 reads one cache line of it.
//!
//! There is one writer and any number of readers. The first word of a row is written last, so a row that can be found is
//! complete. A removed row gets a bit that hides it, and is used again only after a grace period
//! ([`ConnectionTable::seal`], [`ConnectionTable::reuse`]).
//!
//! ```text
//!  hash ──► the 8 rows of a block ──► those of the block beside it
//! ```
//!
//! A search ends at an empty row. So a free row does not become empty while the search for any key must pass it.

mod places;
mod row;
#[cfg(test)]
mod tests;

use crate::{
    fib::{Epoch, Limbo},
    firewall::traffic::Tuple,
    memory::words,
    plan::{InterfaceId, RouterId},
};
use places::Places;
use row::{GONE, KeyWords, Row};
pub use row::{REST, UNTIL_SHIFT, find_row, state, validity, word};
use std::sync::{
    Arc,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Flags of TCP that end a connection.
const FIN: u64 = 1;
const SYN: u64 = 2;
const RST: u64 = 4;
/// Rows for each connection of IPv4, which uses two of them.
const ROWS_FOR_EACH: usize = 4;

/// The memory that the kernel plane reads.
pub trait ConnectionMemory {
    /// The `connections` map. The number of its blocks is a power of two, and at least 2.
    fn rows(&self) -> &[AtomicU64];
}

impl<M: ConnectionMemory + ?Sized> ConnectionMemory for Arc<M> {
    fn rows(&self) -> &[AtomicU64] {
        M::rows(self)
    }
}

/// The number of rows for so many connections of IPv4, or half as many of IPv6. If all of these come, a few in a thousand
/// find no room.
pub fn rows_for(connections: usize) -> usize {
    (ROWS_FOR_EACH * connections).next_power_of_two().max(2 * words::CONNECTION_WAYS)
}

/// [`ConnectionMemory`] on the heap.
pub struct HeapConnections(Box<[AtomicU64]>);

impl HeapConnections {
    /// All zero.
    pub fn new(rows: usize) -> Self {
        Self((0..rows * words::CONNECTION).map(|_| AtomicU64::new(0)).collect())
    }
}

impl ConnectionMemory for HeapConnections {
    fn rows(&self) -> &[AtomicU64] {
        &self.0
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
    /// Jiffies: the kernel does not forget the connection before this.
    pub until: u64,
    pub ways: [OneWay; 2],
}

impl Connection {
    fn key(&self, way: usize) -> ConnectionKey {
        let tuple = self.ways[way].arrives;
        ConnectionKey { router: self.router, protocol: self.protocol, tuple }
    }

    /// Are all addresses of the same version?
    fn is_of_one_version(&self) -> bool {
        let of_way = |way: &OneWay| {
            let ends = [&way.arrives, &way.leaves].map(|tuple| [tuple.source, tuple.destination]);
            ends.as_flattened().iter().all(|address| address.is_ipv4() == way.arrives.source.is_ipv4())
        };
        let [a, b] = &self.ways;
        of_way(a) && of_way(b) && a.arrives.source.is_ipv4() == b.arrives.source.is_ipv4()
    }
}

/// A connection in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairId(pub u32);

/// The rows of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    row: u32,
    /// The row of the second part, for IPv6.
    rest: Option<u32>,
    /// The hash of the key.
    hash: u64,
}

/// The writer of the rows.
pub struct ConnectionTable<M> {
    memory: M,
    seed: u64,
    places: Places,
    /// By pair; `None`: the table does not hold this pair.
    pairs: Box<[Option<[Place; 2]>]>,
    free: Vec<PairId>,
    limbo: Limbo<(PairId, [Place; 2])>,
}

impl<M: ConnectionMemory> ConnectionTable<M> {
    /// Takes over `memory`, and empties it. `seed`: that of the program.
    pub fn new(memory: M, seed: u64) -> Self {
        memory.rows().iter().step_by(words::CONNECTION).for_each(|first| first.store(0, Release));
        let rows = memory.rows().len() / words::CONNECTION;
        let pairs = u32::try_from(rows / ROWS_FOR_EACH).unwrap_or(u32::MAX / 8);
        Self {
            places: Places::new(rows),
            pairs: vec![None; pairs as usize].into(),
            free: (0..pairs).rev().map(PairId).collect(),
            limbo: Limbo::default(),
            memory,
            seed,
        }
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The number of connections in the table. One of IPv6 counts as two.
    pub fn len(&self) -> usize {
        self.pairs.iter().flatten().flat_map(rows).count() / 2
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most connections that the table can hold. One of IPv6 counts as two.
    pub fn capacity(&self) -> usize {
        self.pairs.len()
    }

    /// How many more connections there is room for. Removed ones take room until their rows are free.
    pub fn room(&self) -> usize {
        self.places.room() / 2
    }

    /// Puts a connection in. Returns `None` and changes nothing if there is no room, a direction is there already, both
    /// directions have the same key, or the versions of addresses differ.
    pub fn insert(&mut self, connection: &Connection) -> Option<PairId> {
        let keys = [KeyWords::new(&connection.key(0))?, KeyWords::new(&connection.key(1))?];
        let is_there = |way| find_row(&self.memory, self.seed, &connection.key(way)).is_some();
        if !connection.is_of_one_version() || keys[0] == keys[1] || is_there(0) || is_there(1) {
            return None;
        }
        let id = *self.free.last()?;
        let places = self.places.take(keys.each_ref().map(|key| (key.hash(self.seed), key.is_ipv6())), id)?;
        self.free.pop();
        self.pairs[id.0 as usize] = Some(places);
        let [there, back] = places;
        for (way, place, other) in [(0, there, back.row), (1, back, there.row)] {
            if let Some(rest) = place.rest {
                self.write(rest, &row::rest_row(&connection.ways[way]));
            }
            self.write(place.row, &row::row(connection, way, &keys[way], other, place.rest));
        }
        Some(id)
    }

    fn row(&self, row: u32) -> &[AtomicU64] {
        let at = row as usize * words::CONNECTION;
        &self.memory.rows()[at..at + words::CONNECTION]
    }

    /// The first word comes last: packets may find the row from then on.
    fn write(&self, row: u32, values: &Row) {
        for (word, value) in self.row(row).iter().zip(values).rev() {
            word.store(*value, Release);
        }
    }

    fn pair(&self, id: PairId) -> Option<&[Place; 2]> {
        self.pairs.get(id.0 as usize)?.as_ref()
    }

    /// The rows of both directions of a connection that is in the table.
    fn rows(&self, id: PairId) -> Option<[&[AtomicU64]; 2]> {
        self.pair(id).map(|places| places.map(|place| self.row(place.row)))
    }

    /// Takes a connection out. Packets that have found it already may still use its rows, so these are not free yet.
    /// Returns whether the connection was there.
    pub fn remove(&mut self, id: PairId) -> bool {
        let Some(places) = self.pairs.get_mut(id.0 as usize).and_then(Option::take) else { return false };
        for place in &places {
            self.row(place.row)[word::KEY].fetch_or(GONE, Release);
        }
        for place in &places {
            self.places.forget(place).for_each(|row| empty(&self.memory, row));
        }
        self.limbo.retire((id, places));
        true
    }

    /// Ends the current epoch. Call [`ConnectionTable::reuse`] with it after a grace period from now.
    pub fn seal(&mut self) -> Epoch {
        self.limbo.seal()
    }

    /// No packet is left from before `epoch` was sealed, so the rows of all that was removed until then are free.
    pub fn reuse(&mut self, epoch: Epoch) {
        while let Some((id, places)) = self.limbo.next(epoch) {
            for row in rows(&places) {
                if self.places.free(row) {
                    empty(&self.memory, row);
                }
            }
            self.free.push(id);
        }
    }

    /// Sets the time at which the kernel may forget the connection.
    pub fn set_until(&self, id: PairId, jiffies: u64) {
        self.change_validity(id, |(generation, _)| (generation, jiffies));
    }

    /// Records that the rules of this generation accept the connection.
    pub fn set_generation(&self, id: PairId, generation: u32) {
        self.change_validity(id, |(_, until)| (generation, until));
    }

    fn change_validity(&self, id: PairId, change: impl Fn((u32, u64)) -> (u32, u64)) {
        for row in self.rows(id).into_iter().flatten() {
            let (generation, until) = change(row::validity(row[word::VALID].load(Relaxed)));
            row[word::VALID].store(row::valid(generation, until), Release);
        }
    }

    /// Has the program seen its end? Its packets go to the kernel.
    pub fn ended(&self, id: PairId) -> bool {
        self.seen(id) != 0
    }

    /// Has the program seen FIN or RST? Then only Linux sets the timeout.
    pub fn is_closing(&self, id: PairId) -> bool {
        self.seen(id) & (FIN | RST) != 0
    }

    /// Has the program seen an RST, and no SYN since? Whoever sends a SYN may begin another connection.
    pub fn was_reset(&self, id: PairId) -> bool {
        self.seen(id) & (SYN | RST) == RST
    }

    /// The flags that end a connection.
    fn seen(&self, id: PairId) -> u64 {
        let flags = |row: &[AtomicU64]| row[word::ENDED].load(Acquire) & u64::from(u32::MAX);
        self.rows(id).into_iter().flatten().fold(0, |seen, row| seen | flags(row))
    }

    /// Packets and bytes that the program has forwarded in each direction.
    pub fn counts(&self, id: PairId) -> [(u64, u64); 2] {
        let count = |place: Place| {
            let row = self.row(place.rest.unwrap_or(place.row));
            (row[word::PACKETS].load(Relaxed), row[word::BYTES].load(Relaxed))
        };
        self.pair(id).map(|places| places.map(count)).unwrap_or_default()
    }

    /// The connection that has packets with this key, and their direction.
    pub fn find(&self, key: &ConnectionKey) -> Option<(PairId, usize)> {
        let row = find_row(&self.memory, self.seed, key)?;
        let id = self.places.owner(row)?;
        Some((id, self.pair(id)?.iter().position(|place| place.row == row)?))
    }
}

/// All rows of a connection.
fn rows(places: &[Place; 2]) -> impl Iterator<Item = u32> {
    places.iter().flat_map(|place| [Some(place.row), place.rest]).flatten()
}

/// Searches end at this row from now on.
fn empty(memory: &impl ConnectionMemory, row: u32) {
    memory.rows()[row as usize * words::CONNECTION + word::KEY].store(0, Release);
}
