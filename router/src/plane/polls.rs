//! Counting what NAPI instances poll (`bpf/polls.bpf.c`): packets and polls of each queue, for as long as this is kept.

use super::{Mapping, Words64};
use anyhow::{Context, Result};
use libbpf_rs::{Link, MapCore, ObjectBuilder};
use std::{collections::BTreeSet, os::fd::AsFd};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/polls.bpf.o"));
/// `ROWS` of the program.
const ROWS: usize = 4096;
/// Words of `struct polled`.
const WORDS: usize = 4;

/// Of one NAPI instance, since it is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    pub polls: u64,
    pub packets: u64,
}

/// Counts.
pub struct Polls {
    rows: Words64,
    watched: BTreeSet<u32>,
    /// Ends the counting when dropped.
    _link: Option<Link>,
}

impl Polls {
    /// # Errors
    /// The kernel has no such tracepoint, or does not let us.
    pub fn start() -> Result<Polls> {
        let mut builder = ObjectBuilder::default();
        let object = builder.open_memory(OBJECT)?.load().context("loading the program that counts polls")?;
        let program = object.progs_mut().next().context("no program counts polls")?;
        let link = program.attach_trace().context("attaching to the tracepoint napi_poll")?;
        let map = object.maps().find(|map| map.name() == "polled").context("no map counts polls")?;
        let rows = Mapping::new(map.as_fd(), WORDS * 8, ROWS)?.into();
        Ok(Polls { rows, watched: BTreeSet::new(), _link: Some(link) })
    }

    /// Watches these instances, and no others; those that were watched go on counting. Two of which the ids are alike in their
    /// last bits cannot both be watched: the lower is.
    pub fn watch(&mut self, napis: &BTreeSet<u32>) {
        for gone in self.watched.difference(napis) {
            self.rows.store(row(*gone), 0);
        }
        self.watched.retain(|napi| napis.contains(napi));
        for &napi in napis {
            let row = row(napi);
            if napi != 0 && self.rows.load(row) == 0 {
                (1..WORDS).for_each(|word| self.rows.store(row + word, 0));
                self.rows.store(row, napi.into());
                self.watched.insert(napi);
            }
        }
    }

    /// What an instance has polled; `None`: it is not watched.
    pub fn of(&self, napi: u32) -> Option<Polled> {
        let row = row(napi);
        self.watched
            .contains(&napi)
            .then(|| Polled { polls: self.rows.load(row + 1), packets: self.rows.load(row + 2) })
    }
}

/// The first word of an instance's row.
fn row(napi: u32) -> usize {
    napi as usize % ROWS * WORDS
}

#[cfg(test)]
impl Polls {
    /// Of a program that is not there.
    pub fn fake() -> Polls {
        let file = tempfile::tempfile().unwrap();
        file.set_len((ROWS * WORDS * 8) as u64).unwrap();
        let rows = Mapping::new(file.as_fd(), WORDS * 8, ROWS).unwrap().into();
        Polls { rows, watched: BTreeSet::new(), _link: None }
    }

    /// As the program does.
    pub fn count(&self, napi: u32, packets: u64) {
        let row = row(napi);
        if self.rows.load(row) == u64::from(napi) {
            self.rows.store(row + 1, self.rows.load(row + 1) + 1);
            self.rows.store(row + 2, self.rows.load(row + 2) + packets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_counted_while_they_are_watched() {
        let mut polls = Polls::fake();
        polls.watch(&[8193, 8194].into());
        [8193, 8193, 8195].into_iter().for_each(|napi| polls.count(napi, 7));
        let polled = |polls, packets| Some(Polled { polls, packets });
        assert_eq!([8193, 8194, 8195].map(|napi| polls.of(napi)), [polled(2, 14), polled(0, 0), None]);
        // One more, whose row is taken; one less.
        polls.watch(&[8193, 8193 + ROWS as u32].into());
        polls.count(8193, 1);
        assert_eq!([8193, 8194].map(|napi| polls.of(napi)), [polled(3, 15), None]);
        assert_eq!(polls.of(8193 + ROWS as u32), None);
        polls.watch(&[8193 + ROWS as u32].into());
        assert_eq!(polls.of(8193 + ROWS as u32), polled(0, 0), "a beginning");
    }
}
