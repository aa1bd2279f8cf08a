//! Counts what NAPI instances poll (`bpf/polls.bpf.c`): packets and polls of each queue, for as long as [`Polls`]
//! exists.

use super::{Mapping, Words64};
use crate::linux::observer::Waker;
use anyhow::{Context, Result};
use libbpf_rs::{Link, MapCore, ObjectBuilder, RingBuffer, RingBufferBuilder};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    time::Timespec,
};
use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{
        AtomicUsize,
        Ordering::{AcqRel, Acquire},
    },
    time::Duration,
};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/polls.bpf.o"));
/// `ROWS` of the program.
const ROWS: usize = 4096;
/// Words of `struct polled`.
const WORDS: usize = 6;
/// The word that says whether a thread waits for a poll.
const AWAITED: usize = 3;

/// The counts of one NAPI instance, since it is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    pub polls: u64,
    pub packets: u64,
}

/// The result of [`Polls::sleep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// It did not sleep.
    No,
    /// It slept for the whole time, or until a signal.
    Long,
    /// It slept until a poll, or until the waker.
    Woken,
}

/// The counts of all watched instances.
pub struct Polls {
    rows: Words64,
    watched: BTreeSet<u32>,
    /// Has a record for each poll that a thread waited for.
    began: Option<RingBuffer<'static>>,
    /// Ends the counting when dropped.
    link: Option<Link>,
}

/// How many [`Polls`] of this process count.
static COUNTING: AtomicUsize = AtomicUsize::new(0);

impl Drop for Polls {
    fn drop(&mut self) {
        if self.link.take().is_some() {
            COUNTING.fetch_sub(1, AcqRel);
        }
    }
}

impl Polls {
    /// # Errors
    /// The kernel has no such tracepoint, or does not allow this.
    pub fn start() -> Result<Polls> {
        let mut builder = ObjectBuilder::default();
        let mut open = builder.open_memory(OBJECT)?;
        for (name, shared) in [("backlogs", super::backlog::map()?), ("helpers", super::backlog::helpers()?)]
        {
            let mut map = open.maps_mut().find(|map| map.name() == name);
            let map = map.as_mut().with_context(|| format!("no map is called {name}"))?;
            map.reuse_fd(shared).with_context(|| format!("sharing the map {name}"))?;
        }
        let object = open.load().context("loading the program that counts polls")?;
        let program = object.progs_mut().next().context("no program counts polls")?;
        let link = program.attach_trace().context("attaching to the tracepoint napi_poll")?;
        let map = object.maps().find(|map| map.name() == "polled").context("no map counts polls")?;
        let rows = Mapping::new(map.as_fd(), WORDS * 8, ROWS)?.into();
        let map = object.maps().find(|map| map.name() == "began").context("no map reports polls")?;
        let mut began = RingBufferBuilder::new();
        began.add(&map, |_| 0).context("reading the ring that reports polls")?;
        let began = began.build().context("reading the ring that reports polls")?;
        COUNTING.fetch_add(1, AcqRel);
        Ok(Polls { rows, watched: BTreeSet::new(), began: Some(began), link: Some(link) })
    }

    /// Does any thread of this process count polls?
    pub(super) fn are_counted() -> bool {
        COUNTING.load(Acquire) > 0
    }

    /// Sleeps until a watched instance polls, or the waker is used, but at most for `longest`. It sleeps only if
    /// `is_still` returns true. It calls `is_still` after it has asked for reports of polls. A poll that ends
    /// during that call may go unseen; the next one is seen.
    ///
    /// # Errors
    /// Waiting failed, so it is not known whether an instance has polled.
    pub fn sleep(
        &self,
        longest: Duration,
        waker: Option<&Waker>,
        is_still: impl FnOnce(&Polls) -> bool,
    ) -> Result<Slept> {
        let Some(began) = &self.began else { return Ok(Slept::No) };
        self.await_polls(true);
        let slept = if is_still(self) { wait(began, longest, waker) } else { Ok(Slept::No) };
        self.await_polls(false);
        slept.context("waiting until a queue is polled")
    }

    fn await_polls(&self, awaited: bool) {
        self.watched.iter().for_each(|&napi| self.rows.store(row(napi) + AWAITED, awaited.into()));
    }

    /// Watches these instances, and no others. Instances that were watched before keep their counts. Two instances
    /// whose ids have equal low bits share a row: the one that is watched already is counted, or else the lower
    /// one.
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

    /// The counts of an instance; `None`: it is not watched.
    pub fn of(&self, napi: u32) -> Option<Polled> {
        let row = row(napi);
        self.watched
            .contains(&napi)
            .then(|| Polled { polls: self.rows.load(row + 1), packets: self.rows.load(row + 2) })
    }
}

fn wait(began: &RingBuffer<'_>, longest: Duration, waker: Option<&Waker>) -> io::Result<Slept> {
    // SAFETY: the ring has its descriptor for as long as it is borrowed.
    let ring = unsafe { BorrowedFd::borrow_raw(began.epoll_fd()) };
    let waking = waker.map(|waker| PollFd::new(waker, PollFlags::IN));
    let mut ready: Vec<PollFd<'_>> =
        waking.into_iter().chain([PollFd::from_borrowed_fd(ring, PollFlags::IN)]).collect();
    let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
    let polled = poll(&mut ready, Some(&longest));
    waker.into_iter().for_each(Waker::clear);
    match polled {
        Ok(0) | Err(Errno::INTR) => Ok(Slept::Long),
        Ok(_) => {
            began.consume_raw();
            Ok(Slept::Woken)
        }
        Err(error) => Err(error.into()),
    }
}

/// The first word of an instance's row.
fn row(napi: u32) -> usize {
    napi as usize % ROWS * WORDS
}

#[cfg(test)]
impl Polls {
    /// Counts without a program.
    pub fn fake() -> Polls {
        let file = tempfile::tempfile().unwrap();
        file.set_len((ROWS * WORDS * 8) as u64).unwrap();
        let rows = Mapping::new(file.as_fd(), WORDS * 8, ROWS).unwrap().into();
        Polls { rows, watched: BTreeSet::new(), began: None, link: None }
    }

    /// Counts as the program does.
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
        // One more, whose row is taken, and one fewer.
        polls.watch(&[8193, 8193 + ROWS as u32].into());
        polls.count(8193, 1);
        assert_eq!([8193, 8194].map(|napi| polls.of(napi)), [polled(3, 15), None]);
        assert_eq!(polls.of(8193 + ROWS as u32), None);
        polls.watch(&[8193 + ROWS as u32].into());
        assert_eq!(polls.of(8193 + ROWS as u32), polled(0, 0), "a beginning");
    }
}
