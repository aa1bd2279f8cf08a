//! Classes in the form in which the kernel plane compares them: rows of masked words (`bpf/path_abi.h`), in the order
//! of the paths.
//!
//! A packet is turned into a key once. A row is a class: the bits of the key that it compares, and their values. The
//! first row that matches gets the packet. To avoid comparing all rows, up to [`TABLES`] tables each use one byte to
//! select the rows that may match, and only those are compared. These are the bit vectors of Lakshman and Stiliadis
//! (SIGCOMM 1998), but with bytes that are chosen for the given classes instead of fields. A table only excludes rows,
//! so the choice of bytes changes nothing but the time. A few classes get no table, because comparing a row costs less.

use super::{
    PathId,
    class::{Class, Impossible, TwoBytes},
};
use crate::{
    net::Addresses,
    plan::{PortId, RouterId},
};
use std::ops::Range;

/// `MAX_PATHS` and others of `bpf/path_abi.h`.
pub const MOST_PATHS: usize = 64;
pub const WORDS: usize = 7;
pub const KEY: usize = 8 * WORDS;
pub const DEPTH: usize = super::class::DEPTH as usize;
pub const TABLES: usize = 4;
pub const TABLE: usize = 256;
pub const NOWHERE: u8 = 0xff;
const MOST_PORTS: usize = 64;

/// Bytes of a key on a little-endian machine: `enum path_word`.
const PORT: usize = 0;
const ROUTER: Range<usize> = 2..4;
const ETHER_TYPE: Range<usize> = 4..6;
const PROTOCOL: usize = 6;
const FLAGS: usize = 7;
const SOURCE_PORT: Range<usize> = 8..10;
const DESTINATION_PORT: Range<usize> = 10..12;
const MAC: Range<usize> = 16..22;
const SOURCE: usize = 24;
const DESTINATION: usize = 40;

/// `enum path_flags`.
pub mod flags {
    pub const IPV4: u8 = 1;
    pub const IPV6: u8 = 2;
    pub const IP: u8 = 4;
    pub const PORTS: u8 = 8;
    pub const SYN: u8 = 16;
}

/// 64-bit words of `struct path_row` and `struct path_classes`.
pub mod words {
    use super::{MOST_PATHS, TABLE, TABLES, WORDS};
    pub const ROW: usize = 2 * WORDS + 2;
    /// rows, drops, `asks_router` and `place`, `own_router`.
    pub const HEAD: usize = 3 + super::MOST_PORTS / 4;
    pub const CLASSES: usize = HEAD + MOST_PATHS * ROW + TABLES * TABLE;
}

/// A table is worth its load if it separates more pairs of classes than this for each class (measured,
/// docs/inside/af-xdp.md).
const WORTH: usize = 1;

/// What happens to a path's packets that no worker can get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Otherwise {
    /// They go on as if there was no path.
    #[default]
    Up,
    /// They are dropped, because packets that a path encrypts must not leave unencrypted.
    Drop,
}

/// A path in the form that the kernel plane knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathClass {
    /// Its number, below [`MOST_PATHS`].
    pub path: PathId,
    pub class: Class,
    pub otherwise: Otherwise,
}

/// Why the kernel plane does not accept classes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("{0} paths, {MOST_PATHS} are possible")]
    TooMany(usize),
    #[error("a path has number {0}, the highest possible is {last}", last = MOST_PATHS - 1)]
    TooHigh(PathId),
    #[error("path {0}: {1}")]
    Impossible(PathId, Impossible),
}

/// All classes, as they are written to the map.
pub struct Rows {
    rows: Vec<Row>,
    tables: Vec<Table>,
}

struct Row {
    mask: [u8; KEY],
    value: [u8; KEY],
    bytes: Option<TwoBytes>,
    path: PathId,
    otherwise: Otherwise,
}

/// The rows that may match, by one byte.
struct Table {
    place: usize,
    may: [u64; TABLE],
}

impl Rows {
    /// Makes rows in the order of the paths, with as many tables as are useful.
    ///
    /// # Errors
    /// There are too many paths, or a class is impossible ([`Class::check`]).
    pub fn new(classes: &[PathClass]) -> Result<Rows, Refused> {
        Self::with_tables(classes, TABLES)
    }

    /// Makes rows with at most `most` tables, for measurements.
    pub fn with_tables(classes: &[PathClass], most: usize) -> Result<Rows, Refused> {
        if classes.len() > MOST_PATHS {
            return Err(Refused::TooMany(classes.len()));
        }
        let row = |path: &PathClass| Ok(Row::new(path)?).map(|row| (!path.class.flow_rules).then_some(row));
        let rows = classes.iter().filter_map(|path| row(path).transpose()).collect::<Result<Vec<_>, _>>()?;
        let tables = tables(&rows, most);
        Ok(Rows { rows, tables })
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The words of `struct path_classes`. `own`: the router of a port's packets that are for no interface.
    pub fn words(&self, own: impl Fn(PortId) -> Option<RouterId>) -> Vec<u64> {
        let bits = |is: fn(&Row) -> bool| {
            (0..).zip(&self.rows).filter(|(_, row)| is(row)).fold(0, |bits, (i, _)| bits | 1_u64 << i)
        };
        let asks = self.rows.iter().any(|row| row.mask[ROUTER] != [0; 2]);
        let mut places = [NOWHERE; TABLES];
        self.tables.iter().zip(&mut places).for_each(|(table, place)| *place = table.place as u8);
        let mut words = vec![bits(|_| true), bits(|row| row.otherwise == Otherwise::Drop)];
        words.push(u64::from(asks) | u64::from(u32::from_le_bytes(places)) << 32);
        let own = |port: usize| own(port as PortId).map_or(0, |router| u64::from(router) + 1);
        let four = |first: usize| (0..4).fold(0, |word, i| word | own(first + i) << (16 * i));
        words.extend((0..MOST_PORTS).step_by(4).map(four));
        self.rows.iter().for_each(|row| words.extend(row.words()));
        words.resize(words::HEAD + MOST_PATHS * words::ROW, 0);
        self.tables.iter().for_each(|table| words.extend(table.may));
        words.resize(words::CLASSES, 0);
        words
    }
}

impl Row {
    fn new(path: &PathClass) -> Result<Row, Refused> {
        let PathClass { path: number, class, otherwise } = path;
        if usize::from(*number) >= MOST_PATHS {
            return Err(Refused::TooHigh(*number));
        }
        class.check().map_err(|why| Refused::Impossible(*number, why))?;
        let mut row =
            Row { mask: [0; KEY], value: [0; KEY], bytes: class.bytes, path: *number, otherwise: *otherwise };
        let asked = [class.source_port.is_some(), class.destination_port.is_some()].contains(&true);
        let mut flags = 0;
        flags |= if class.protocol.is_some() { flags::IP } else { 0 };
        flags |= if asked { flags::PORTS } else { 0 };
        flags |= if class.tcp_syn { flags::PORTS | flags::SYN } else { 0 };
        let sides = [(SOURCE, class.source), (DESTINATION, class.destination)];
        for (at, addresses) in sides {
            match addresses {
                Some(Addresses::V4(prefix)) => {
                    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.length())).unwrap_or(0);
                    row.ask(at..at + 4, &prefix.address().to_be_bytes(), &mask.to_be_bytes());
                    flags |= flags::IPV4;
                }
                Some(Addresses::V6(prefix)) => {
                    let mask = u128::MAX.checked_shl(128 - u32::from(prefix.length())).unwrap_or(0);
                    row.ask(at..at + 16, &prefix.address().to_be_bytes(), &mask.to_be_bytes());
                    flags |= flags::IPV6;
                }
                None => {}
            }
        }
        row.ask_all(PORT..PORT + 1, class.port.map(|port| [port]));
        row.ask_all(ROUTER, class.router.map(|router| (u16::from(router) + 1).to_le_bytes()));
        row.ask_all(ETHER_TYPE, class.ether_type.map(u16::to_le_bytes));
        row.ask_all(PROTOCOL..PROTOCOL + 1, class.protocol.map(|protocol| [protocol]));
        row.ask_all(SOURCE_PORT, class.source_port.map(u16::to_be_bytes));
        row.ask_all(DESTINATION_PORT, class.destination_port.map(u16::to_be_bytes));
        row.ask_all(MAC, class.destination_mac.map(|mac| mac.0));
        row.ask(FLAGS..FLAGS + 1, &[flags], &[flags]);
        Ok(row)
    }

    fn ask(&mut self, at: Range<usize>, value: &[u8], mask: &[u8]) {
        let places = self.mask[at.clone()].iter_mut().zip(&mut self.value[at]);
        for ((mine, my_value), (mask, value)) in places.zip(mask.iter().zip(value)) {
            (*mine, *my_value) = (*mask, value & mask);
        }
    }

    fn ask_all<const N: usize>(&mut self, at: Range<usize>, value: Option<[u8; N]>) {
        value.iter().for_each(|value| self.ask(at.clone(), value, &[0xff; N]));
    }

    /// The mask and value for a byte. From [`KEY`] on, bytes are those of the frame.
    fn at(&self, place: usize) -> (u8, u8) {
        if let Some(mask) = self.mask.get(place) {
            return (*mask, self.value[place]);
        }
        let second = |bytes: &TwoBytes| (place - KEY).checked_sub(bytes.offset.into());
        match self.bytes.as_ref().and_then(|bytes| Some((bytes, second(bytes)?))) {
            Some((bytes, at @ (0 | 1))) => (bytes.mask.to_be_bytes()[at], bytes.value.to_be_bytes()[at]),
            _ => (0, 0),
        }
    }

    /// Whether no packet can match both because of this byte.
    fn excludes(&self, other: &Row, place: usize) -> bool {
        let ((mask, value), (others, other_value)) = (self.at(place), other.at(place));
        (value ^ other_value) & mask & others != 0
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        let of = |bytes: &[u8; KEY]| {
            let (words, _) = bytes.as_chunks::<8>();
            words.iter().copied().map(u64::from_le_bytes).collect::<Vec<_>>()
        };
        let two = |word: u16| u64::from(u16::from_le_bytes(word.to_be_bytes()));
        let bytes = self.bytes.map_or((0, 0, NOWHERE), |b| (two(b.mask), two(b.value), b.offset));
        let otherwise = match self.otherwise {
            Otherwise::Up => 0,
            Otherwise::Drop => 1,
        };
        let last = bytes.0
            | bytes.1 << 16
            | u64::from(bytes.2) << 32
            | u64::from(self.path as u8) << 40
            | otherwise << 48;
        of(&self.mask).into_iter().chain(of(&self.value)).chain([last, 0])
    }
}

/// Repeatedly chooses the byte that separates the most pairs of rows that no earlier byte separates.
fn tables(rows: &[Row], most: usize) -> Vec<Table> {
    let mut together: Vec<(&Row, &Row)> = rows
        .iter()
        .enumerate()
        .flat_map(|(i, row)| rows[..i].iter().map(move |other| (row, other)))
        .collect();
    let mut tables = Vec::new();
    while tables.len() < most {
        let separated = |place: usize| together.iter().filter(|(a, b)| a.excludes(b, place)).count();
        // Among equals the first one.
        let best = (0..KEY + DEPTH).rev().max_by_key(|place| separated(*place)).unwrap_or_default();
        if separated(best) <= WORTH * rows.len() {
            break;
        }
        together.retain(|(a, b)| !a.excludes(b, best));
        tables.push(Table::new(best, rows));
    }
    tables
}

impl Table {
    fn new(place: usize, rows: &[Row]) -> Table {
        let may = |byte: usize| {
            let fits = |row: &Row| {
                let (mask, value) = row.at(place);
                byte as u8 & mask == value
            };
            (0..).zip(rows).filter(|(_, row)| fits(row)).fold(0, |bits, (i, _)| bits | 1_u64 << i)
        };
        Table { place, may: std::array::from_fn(may) }
    }
}

#[cfg(test)]
mod tests;
