//! The packets of one run.
//!
//! # How those without a verdict are found
//! By looking at each packet, or by a list of their numbers that is compacted as it is walked. Measured on one core of an AMD EPYC (3.9 GHz),
//! a router's chain, batches of 64, the copy into the frame included, medians of two rounds in turn, nanoseconds a packet
//! (`lab/runs/2026-11-23-elements.txt`):
//!
//! | | looked at | list | list from the first verdict on |
//! |---|---|---|---|
//! | all go on, 1,024 flows | **27.2 to 28.8** | 30.6 to 31.0 | 31.6 to 32.2 |
//! | all go on, 1,000,000 destinations in a full table | **52.8 to 60.2** | 57.7 to 61.7 | 57.0 to 57.4 |
//! | every second, at random, goes up at the first element | 41.8 to 43.6 | **22.3 to 22.4** | 27.0 to 28.4 |
//!
//! A list saves the branches that cannot be foretold, one for each element, where verdicts are mixed; where packets go on, as nearly
//! all of a path do, it costs a tenth. So they are looked at.

use super::{
    Counters, clear,
    packet::{Loss, NotAFrame, Packet, Verdict},
};
use crate::tables::Ingress;

/// The most packets in a batch.
pub const MOST_PACKETS: usize = 256;

/// How many packets before it is read what is needed of a packet is asked for.
const AHEAD: usize = 2;

/// Packets in the order of arrival, lent by their worker: the n-th that was pushed is the n-th of [`Batch::packets`].
pub struct Batch<'a> {
    packets: Vec<Packet<'a>>,
    /// How many have a verdict.
    ended: usize,
    /// The element that runs is in front of one that encrypts.
    is_guarded: bool,
}

impl Default for Batch<'_> {
    fn default() -> Self {
        Batch { packets: Vec::with_capacity(MOST_PACKETS), ended: 0, is_guarded: false }
    }
}

impl<'a> Batch<'a> {
    /// An empty one for other frames, in the same memory.
    #[inline]
    pub fn emptied<'b>(mut self) -> Batch<'b> {
        self.packets.clear();
        // Collected in place: the memory of a vector is kept by one of things of the same size.
        let packets = self.packets.into_iter().map_while(|_| None).collect();
        Batch { packets, ended: 0, is_guarded: false }
    }

    /// Lends a frame whose data is `length` bytes from `start` on, to a batch that no chain has run.
    #[inline]
    pub fn push(
        &mut self,
        frame: &'a mut [u8],
        start: usize,
        length: usize,
        ingress: Ingress,
    ) -> Result<(), NotAFrame> {
        if self.packets.len() >= MOST_PACKETS {
            return Err(NotAFrame::Full);
        }
        if !Packet::fits(frame, start, length) {
            return Err(NotAFrame::Bounds);
        }
        self.packets.push(Packet::new(frame, start, length, ingress));
        Ok(())
    }

    /// All, in the order in which they were pushed.
    #[inline]
    pub fn packets(&self) -> &[Packet<'a>] {
        &self.packets
    }

    /// How many have no verdict.
    #[inline]
    pub fn going(&self) -> usize {
        self.packets.len().saturating_sub(self.ended)
    }

    /// From here on elements in front of one that encrypts run, or no longer.
    #[inline]
    pub(super) fn guard(&mut self, is_guarded: bool) {
        self.is_guarded = is_guarded;
    }

    /// Is the element that runs in front of one that encrypts?
    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// The chain has ended: the rest leave by their exits. How many.
    #[inline]
    pub(super) fn leave(&mut self) -> usize {
        let left = self.going();
        self.ended = self.packets.len();
        left
    }

    /// Shows each packet that has no verdict, in order; a verdict it is given is its last, and counted.
    #[inline]
    pub fn each(
        &mut self,
        counters: &mut Counters,
        mut step: impl FnMut(&mut Packet<'a>) -> Option<Verdict>,
    ) {
        self.each_of([counters], |packet| step(packet).map(|verdict| (0, verdict)));
    }

    /// As [`Batch::each`], for several elements at once: a verdict comes with the number of the one that gives it. How many each gave.
    #[inline]
    pub(super) fn each_of<const ELEMENTS: usize>(
        &mut self,
        counters: [&mut Counters; ELEMENTS],
        mut step: impl FnMut(&mut Packet<'a>) -> Option<(usize, Verdict)>,
    ) -> [usize; ELEMENTS] {
        let mut given = [0; ELEMENTS];
        for packet in self.packets.iter_mut().filter(|packet| packet.verdict.is_none()) {
            if let Some((element, verdict)) = step(packet) {
                end(packet, verdict, self.is_guarded, counters[element]);
                given[element] += 1;
                self.ended += 1;
            }
        }
        given
    }

    /// As [`Batch::each`], for work that reads whole packets: what is shown is in the cache, or on its way there, as the lines of the packet
    /// [`AHEAD`] places behind it are asked for before each step.
    #[inline]
    pub(super) fn each_ahead(
        &mut self,
        counters: &mut Counters,
        mut step: impl FnMut(&mut Packet<'a>) -> Option<Verdict>,
    ) {
        self.packets.iter().take(AHEAD).for_each(Packet::ask_for);
        for at in 0..self.packets.len() {
            if let Some(next) = self.packets.get(at + AHEAD) {
                next.ask_for();
            }
            if let Some(packet) = self.packets.get_mut(at).filter(|packet| packet.verdict.is_none())
                && let Some(verdict) = step(packet)
            {
                end(packet, verdict, self.is_guarded, counters);
                self.ended += 1;
            }
        }
    }

    /// As [`Batch::each`], for work on many packets at once: what the step makes of a packet may hold on to it, which is then given back
    /// only with a verdict. Before each step the packet [`AHEAD`] places behind it is shown to `ask`, which has the cache fetch what its step will need.
    #[inline]
    pub(super) fn gather<'b>(
        &'b mut self,
        counters: &mut Counters,
        ask: impl Fn(&Packet<'a>),
        mut step: impl FnMut(&'b mut Packet<'a>) -> Option<(&'b mut Packet<'a>, Verdict)>,
    ) {
        let mut rest = &mut self.packets[..];
        while let Some((packet, behind)) = rest.split_first_mut() {
            if let Some(next) = behind.get(AHEAD - 1) {
                ask(next);
            }
            rest = behind;
            if packet.verdict.is_none()
                && let Some((packet, verdict)) = step(packet)
            {
                end(packet, verdict, self.is_guarded, counters);
                self.ended += 1;
            }
        }
    }
}

/// A packet's last verdict, counted; what may not go up is dropped.
fn end(packet: &mut Packet<'_>, verdict: Verdict, is_guarded: bool, counters: &mut Counters) {
    let verdict = match verdict {
        // What was made here the kernel would send, whatever it is.
        Verdict::Up(reason)
            if is_guarded && (packet.headers.is_ours || !clear::may_go_up(reason, packet)) =>
        {
            counters.count_in_clear(reason);
            Verdict::Drop(Loss::InClear)
        }
        Verdict::Up(reason) => packet.go_up(reason),
        verdict => verdict,
    };
    packet.verdict = Some(verdict);
    counters.count(verdict);
}
