//! Frames that differ from each other, each sent at a time of its own, through a packet socket.
//!
//! No frame is left out. When the machine delays the generator, all later frames are late by as much. So gaps are kept,
//! and there are no unwanted bursts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

use super::{
    sender::{BATCH, wait_until},
    socket::PacketSocket,
};
use crate::{
    mark::{self, Room},
    sys,
};

/// A shorter delay does not move later frames.
const LATE_NS: u64 = 100_000;
/// Time until frames are offered again to a port that had no room.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// A frame to send.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Nanoseconds after the first frame of a round.
    pub at_ns: u64,
    /// The frame, without the mark.
    pub frame: Arc<[u8]>,
    /// Where its number in the run and the time are written. `None`: the frame is not marked.
    pub mark: Option<Room>,
}

/// A run: all frames, repeated for each round.
#[derive(Debug)]
pub struct Timetable {
    frames: Arc<Vec<Timed>>,
    rounds: u32,
    /// Time from the start of a round to the start of the next.
    round_ns: u64,
    /// Is a frame that the port has no room for offered again, until it has? Otherwise it is lost.
    insist: bool,
    sent: AtomicU64,
    held_up_ns: AtomicU64,
    took_ns: AtomicU64,
}

impl Timetable {
    /// Frames in the order of their times. At most 2^32 in all rounds.
    pub fn new(frames: Arc<Vec<Timed>>, rounds: u32, round_ns: u64, insist: bool) -> Self {
        let zero = AtomicU64::default;
        Self { frames, rounds, round_ns, insist, sent: zero(), held_up_ns: zero(), took_ns: zero() }
    }

    /// Number of frames to send.
    pub fn packets(&self) -> u64 {
        self.frames.len() as u64 * u64::from(self.rounds)
    }

    /// Number of bytes to send.
    pub fn bytes(&self) -> u64 {
        let of_round: u64 = self.frames.iter().map(|timed| timed.frame.len() as u64).sum();
        of_round * u64::from(self.rounds)
    }

    /// Frames handed to the port so far; it may have had no room for some ([`super::Generator::refused`]).
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Total time by which the machine delayed it.
    pub fn held_up_ns(&self) -> u64 {
        self.held_up_ns.load(Ordering::Relaxed)
    }

    /// Time from the first to the last frame.
    pub fn took_ns(&self) -> u64 {
        self.took_ns.load(Ordering::Relaxed)
    }

    /// The frame with this number, and when it is due.
    fn at(&self, number: u64) -> (&Timed, u64) {
        let count = self.frames.len() as u64;
        let timed = &self.frames[(number % count) as usize];
        (timed, (number / count).saturating_mul(self.round_ns).saturating_add(timed.at_ns))
    }
}

/// Sends everything, or until it must stop.
pub(super) fn send(
    table: &Timetable,
    socket: &PacketSocket,
    stop: &AtomicBool,
    refused: &AtomicU64,
) -> Result<()> {
    let (mut begin_ns, mut number, mut batch) = (sys::monotonic_ns(), 0, Vec::with_capacity(BATCH));
    let started_ns = begin_ns;
    while number < table.packets() && !stop.load(Ordering::Relaxed) {
        sys::check_interrupted()?;
        let (now_ns, (_, due_ns)) = (sys::monotonic_ns(), table.at(number));
        let due_ns = begin_ns.saturating_add(due_ns);
        let Some(late_ns) = now_ns.checked_sub(due_ns) else {
            wait_until(due_ns);
            continue;
        };
        if late_ns > LATE_NS {
            begin_ns += late_ns;
            table.held_up_ns.fetch_add(late_ns, Ordering::Relaxed);
        }
        batch.clear();
        let is_due = |number| begin_ns.saturating_add(table.at(number).1) <= now_ns;
        while batch.len() < BATCH && number < table.packets() && is_due(number) {
            batch.push(prepared(table.at(number).0, number));
            number += 1;
        }
        offer(socket, &batch, table.insist, stop, refused)?;
        table.sent.store(number, Ordering::Relaxed);
        table.took_ns.store(sys::monotonic_ns() - started_ns, Ordering::Relaxed);
    }
    Ok(())
}

fn prepared(timed: &Timed, number: u64) -> Vec<u8> {
    let mut frame = timed.frame.to_vec();
    if let Some(room) = timed.mark {
        mark::write(&mut frame, room, number as u32, sys::monotonic_ns() as u32);
    }
    frame
}

fn offer(
    socket: &PacketSocket,
    frames: &[Vec<u8>],
    insist: bool,
    stop: &AtomicBool,
    refused: &AtomicU64,
) -> Result<()> {
    let mut left = frames;
    while !left.is_empty() && !stop.load(Ordering::Relaxed) {
        let taken = socket.offer(left).context("replaying a frame")?;
        left = &left[taken..];
        if taken == 0 && insist {
            sys::check_interrupted()?;
            thread::sleep(ASK_AGAIN);
        } else if taken == 0 {
            refused.fetch_add(1, Ordering::Relaxed);
            left = &left[1..];
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_too_late() {
        let timed = |at_ns| Timed { at_ns, frame: [0; 60].into(), mark: None };
        let at = |round_ns, number| {
            let frames = Arc::new(vec![timed(0), timed(10)]);
            Timetable::new(frames, 4, round_ns, false).at(number).1
        };
        assert_eq!([at(30, 0), at(30, 3), at(30, 6)], [0, 40, 90]);
        assert_eq!([at(u64::MAX, 3), at(u64::MAX, 6)], [u64::MAX; 2]);
    }
}
