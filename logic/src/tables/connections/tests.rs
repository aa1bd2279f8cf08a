//! Tests of the table of connections.

use super::*;
use crate::firewall::traffic::{TCP, UDP};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::AtomicBool,
};

const SEED: u64 = 0x1234_5678_9abc_def0;

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
    Connection { router: 3, protocol, generation: 7, until: 999, ways: [way, answer] }
}

fn nth(n: u16) -> Connection {
    let arrives = tuple("10.0.1.5", n, "192.0.2.9", 443);
    connection(TCP, arrives, Tuple { source: "198.51.100.1".parse().unwrap(), ..arrives })
}

fn nth6(n: u16) -> Connection {
    let arrives = tuple("2001:db8:1::5", n, "2001:db8:9::9", 443);
    connection(TCP, arrives, Tuple { source: "2001:db8:2::1".parse().unwrap(), ..arrives })
}

/// `rows`: those of all blocks, whose number is a power of two.
fn table(rows: usize) -> ConnectionTable<HeapConnections> {
    ConnectionTable::new(HeapConnections::new(rows), SEED)
}

fn bytes(row: &[AtomicU64]) -> Vec<u8> {
    row.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect()
}

#[test]
fn a_row_holds_what_the_header_says() {
    let mut table = table(16);
    let arrives = tuple("10.0.1.5", 1000, "192.0.2.9", 443);
    let leaves = Tuple { source: "198.51.100.1".parse().unwrap(), source_port: 2000, ..arrives };
    let id = table.insert(&connection(UDP, arrives, leaves)).unwrap();
    let [there, answer] = table.rows(id).unwrap().map(bytes);
    let rows = table.pair(id).unwrap().map(|place| place.row as u8);
    assert_eq!(there[..8], [3, 232, 1, 187, UDP, 3, 0, 1]);
    assert_eq!(there[8..16], [1, 0, 2, 0, rows[1], 0, 0, 0]);
    assert_eq!(there[16..24], [7, 0, 0, 0, 15, 0, 0, 0], "999 jiffies are 15 times 64");
    assert_eq!(there[24..32], [0, 0, 0, 0, 7, 208, 1, 187]);
    assert_eq!(there[32..48], [10, 0, 1, 5, 192, 0, 2, 9, 198, 51, 100, 1, 192, 0, 2, 9]);
    assert_eq!(there[48..], [0; 16]);
    assert_eq!(answer[..12], [1, 187, 7, 208, UDP, 3, 0, 2, 2, 0, 1, 0]);
    assert_eq!(answer[12], rows[0]);
    assert_eq!(answer[28..48], [1, 187, 3, 232, 192, 0, 2, 9, 198, 51, 100, 1, 192, 0, 2, 9, 10, 0, 1, 5]);
}

#[test]
fn rows_of_ipv6_hold_what_the_header_says() {
    let mut table = table(16);
    let id = table.insert(&nth6(1000)).unwrap();
    let [there, _] = table.rows(id).unwrap().map(bytes);
    let rest = table.pair(id).unwrap()[0].rest.unwrap();
    assert_eq!(there[..8], [3, 232, 1, 187, TCP, 3, 1, 1]);
    assert_eq!(there[24..32], [0, 0, 0, 0, rest as u8, 0, 0, 0]);
    assert_eq!(there[32..48], [0x20, 1, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
    assert_eq!(there[48..64], [0x20, 1, 0x0d, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    let rest = bytes(table.row(rest));
    assert_eq!(rest[..16], [0, 0, 0, 0, 255, 0, 0, 0, 3, 232, 1, 187, 0, 0, 0, 0]);
    assert_eq!(rest[16..32], [0x20, 1, 0x0d, 0xb8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(rest[32..48], there[48..64]);
    assert_eq!(rest[48..], [0; 16]);
}

#[test]
fn kinds_of_translation() {
    let arrives = tuple("10.0.1.5", 1000, "192.0.2.9", 443);
    let kind = |leaves: Tuple| {
        let mut table = table(16);
        let id = table.insert(&connection(UDP, arrives, leaves)).unwrap();
        bytes(table.rows(id).unwrap()[0])[7]
    };
    assert_eq!(kind(arrives), 0);
    assert_eq!(kind(Tuple { source: "10.0.1.6".parse().unwrap(), ..arrives }), 1);
    assert_eq!(kind(Tuple { source_port: 1, ..arrives }), 1);
    assert_eq!(kind(Tuple { destination: "10.0.1.6".parse().unwrap(), ..arrives }), 2);
    assert_eq!(kind(Tuple { destination_port: 1, ..arrives }), 2);
}

#[test]
fn rows_are_used_again_only_after_a_grace_period() {
    let mut table = table(16);
    let all = [1, 2, 3, 4].map(|n| table.insert(&nth(n)).unwrap());
    let first = all[0];
    assert_eq!(table.insert(&nth(5)), None, "half of the rows");
    let before = table.rows(first).unwrap().map(bytes);
    let places = *table.pair(first).unwrap();
    let too_early = table.seal();
    assert!(table.remove(first));
    assert!(!table.remove(first));
    assert_eq!((table.find(&nth(1).key(0)), table.find(&nth(1).key(1))), (None, None));
    // Packets may still use the rows.
    for (place, before) in places.iter().zip(before) {
        let mut row = bytes(table.row(place.row));
        row[7] &= 0x7f;
        assert_eq!(row, before);
    }
    assert_eq!(table.insert(&nth(5)), None);
    table.reuse(too_early);
    assert_eq!(table.insert(&nth(5)), None);
    let epoch = table.seal();
    assert_eq!(table.insert(&nth(5)), None);
    table.reuse(epoch);
    assert_eq!(table.insert(&nth(5)), Some(first));
    assert_eq!(table.find(&nth(5).key(1)), Some((first, 1)));
}

/// Rows that readers see empty.
fn empty_rows(table: &ConnectionTable<HeapConnections>) -> usize {
    table.memory.rows().iter().step_by(words::CONNECTION).filter(|first| first.load(Relaxed) == 0).count()
}

#[test]
fn connections_of_ipv6_need_twice_the_room() {
    let mut table = table(32);
    let ids: Vec<_> = (1..=4).map(|n| table.insert(&nth6(n)).unwrap()).collect();
    assert_eq!((table.insert(&nth6(5)), table.insert(&nth(5))), (None, None));
    assert_eq!((table.len(), table.capacity(), empty_rows(&table)), (8, 8, 16));
    table.row(table.pair(ids[2]).unwrap()[1].rest.unwrap())[word::PACKETS].store(5, Relaxed);
    assert_eq!(table.counts(ids[2]), [(0, 0), (5, 0)]);
    ids.into_iter().for_each(|id| assert!(table.remove(id)));
    let epoch = table.seal();
    table.reuse(epoch);
    assert_eq!((table.len(), empty_rows(&table)), (0, 32));
}

/// A key whose search passes other rows is found even after the keys of those rows are removed.
#[test]
fn no_row_is_empty_while_a_key_lies_behind_it() {
    let mut table = table(4096);
    let ids: Vec<_> = (0..1000).filter_map(|n| Some((n, table.insert(&nth(n))?))).collect();
    // Its row is in the other block.
    let is_away = |place: &Place| row::probe(place.hash, 4096).take(8).all(|row| row != place.row);
    let has_away = |table: &ConnectionTable<_>, id| table.pair(id).unwrap().iter().any(is_away);
    let (away, others): (Vec<_>, Vec<_>) = ids.into_iter().partition(|(_, id)| has_away(&table, *id));
    assert!(away.len() > 5 && others.len() > 900, "{} {}", away.len(), others.len());
    others.iter().for_each(|(_, id)| assert!(table.remove(*id)));
    let epoch = table.seal();
    table.reuse(epoch);
    for (n, id) in &away {
        assert_eq!([0, 1].map(|way| table.find(&nth(*n).key(way))), [Some((*id, 0)), Some((*id, 1))]);
    }
    assert!(empty_rows(&table) < 4096 - 2 * away.len());
    away.iter().for_each(|(_, id)| assert!(table.remove(*id)));
    let epoch = table.seal();
    table.reuse(epoch);
    assert_eq!(empty_rows(&table), 4096, "all rows become empty in the end");
}

#[test]
fn impossible_connections_are_refused() {
    let mut table = table(16);
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
    let mut table = table(16);
    let id = table.insert(&nth(1)).unwrap();
    table.set_until(id, 1234);
    let [there, answer] = table.rows(id).unwrap();
    assert_eq!([there, answer].map(|row| row[word::VALID].load(Relaxed)), [(1234 / 64) << 32 | 7; 2]);
    table.set_generation(id, 9);
    assert_eq!([there, answer].map(|row| row[word::VALID].load(Relaxed)), [(1234 / 64) << 32 | 9; 2]);
    table.set_until(id, u64::MAX);
    assert_eq!(there[word::VALID].load(Relaxed), u64::from(u32::MAX) << 32 | 9, "not 0");
    assert!(!table.ended(id));
    for (flags, expected) in
        [(FIN, [true, false]), (SYN, [false, false]), (RST, [true, true]), (RST | SYN, [true, false])]
    {
        // The upper half of the word holds the new ports.
        answer[word::ENDED].store(0x1234_5678 << 32 | flags, Relaxed);
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
fn nearly_all_find_room() {
    assert_eq!((rows_for(65_536), rows_for(1), rows_for(0)), (262_144, 16, 16));
    let mut table = table(rows_for(4096));
    let placed = (0..4096).filter(|n| table.insert(&nth(*n)).is_some()).count();
    assert!(placed > 4080, "{placed}");
}

/// Packets find a connection at any time while others come and go.
#[test]
fn readers_find_what_stays() {
    let memory = Arc::new(HeapConnections::new(64));
    let mut table = ConnectionTable::new(memory.clone(), SEED);
    let stays: Vec<_> = (0..6).filter(|n| table.insert(&nth(*n)).is_some()).collect();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut lost = 0;
            while !ended.load(Relaxed) {
                let is_found = |n: &u16| find_row(&memory, SEED, &nth(*n).key(0)).is_some();
                lost += stays.iter().filter(|n| !is_found(n)).count();
            }
            lost
        });
        for round in 0..2000_u16 {
            let ids: Vec<_> = (0..20).filter_map(|n| table.insert(&nth(100 + round % 50 * 20 + n))).collect();
            ids.into_iter().for_each(|id| assert!(table.remove(id)));
            let epoch = table.seal();
            table.reuse(epoch);
        }
        ended.store(true, Relaxed);
        assert_eq!(reader.join().unwrap(), 0);
    });
}

/// Are there free rows for both directions? Half of the table must stay free.
fn finds_room(table: &ConnectionTable<HeapConnections>, connection: &Connection) -> bool {
    let needed = if connection.ways[0].arrives.source.is_ipv4() { 1 } else { 2 };
    let mut taken = Vec::new();
    let mut finds = |way| {
        let hash = KeyWords::new(&connection.key(way)).unwrap().hash(SEED);
        let is_free = |row: &u32| table.places.owner(*row).is_none() && !taken.contains(row);
        let rows: Vec<_> = row::probe(hash, 64).filter(is_free).take(needed).collect();
        taken.extend(&rows);
        rows.len() == needed
    };
    finds(0) && finds(1) && table.places.room() >= 2 * needed
}

proptest! {
    /// The table agrees with a map, and no row is left over.
    #[test]
    fn agrees_with_a_map(steps in prop::collection::vec((0_u16..60, 0..4_u8), 1..200)) {
        let mut table = table(64);
        let mut model = BTreeMap::new();
        let mut removed = BTreeSet::new();
        let connection = |n: u16| if n.is_multiple_of(3) { nth6(n) } else { nth(n) };
        for (n, step) in steps {
            match step {
                0 | 1 => {
                    let expected = !model.contains_key(&n) && finds_room(&table, &connection(n));
                    let id = table.insert(&connection(n));
                    prop_assert_eq!(id.is_some(), expected);
                    if let Some(id) = id {
                        prop_assert!(!removed.contains(&id));
                        prop_assert!(model.values().all(|other| *other != id));
                        model.insert(n, id);
                    }
                }
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
            for n in 0..60 {
                for way in 0..2 {
                    let found = table.find(&connection(n).key(way));
                    prop_assert_eq!(found, model.get(&n).map(|id| (*id, way)));
                }
            }
            let rows: usize = model.keys().map(|n| if n.is_multiple_of(3) { 4 } else { 2 }).sum();
            prop_assert_eq!(table.len(), rows / 2);
        }
        model.into_values().for_each(|id| assert!(table.remove(id)));
        let epoch = table.seal();
        table.reuse(epoch);
        prop_assert_eq!(empty_rows(&table), 64);
    }
}
