//! The packets of one run.
//!
//! # How packets without a verdict are found
//! Either by looking at each packet, or with a list of their numbers that is compacted as it is walked. Measured on one
//! core of an AMD EPYC (3.9 GHz), with a router's chain, batches of 64, including the copy into the frame. The values
//! are medians of two alternating rounds, in nanoseconds per packet (`lab/runs/2026-11-23-elements.txt`):
//!
//! | | each packet | list | list from the first verdict on |
//! |---|---|---|---|
//! | all go on, 1,024 flows | **27.2 to 28.8** | 30.6 to 31.0 | 31.6 to 32.2 |
//! | all go on, 1,000,000 destinations in a full table | **52.8 to 60.2** | 57.7 to 61.7 | 57.0 to 57.4 |
//! | every second, at random, goes up at the first element | 41.8 to 43.6 | **22.3 to 22.4** | 27.0 to 28.4 |
//!
//! A list saves one unpredictable branch per element if verdicts are mixed. If packets go on, like nearly all packets
//! of a path, it costs a tenth. So each packet is looked at.

use super::{
    Counters, clear,
    packet::{Loss, NotAFrame, Packet, Verdict},
};
use crate::tables::Ingress;

/// The most packets in a batch.
pub const MOST_PACKETS: usize = 256;

/// Data of a packet is prefetched this many packets before it is read.
const AHEAD: usize = 2;

/// Packets in the order of arrival, lent by their worker. The n-th packet pushed is the n-th of [`Batch::packets`].
pub struct Batch<'a> {
    packets: Vec<Packet<'a>>,
    /// The number of packets with a verdict.
    ended: usize,
    /// The running element comes before one that encrypts.
    is_guarded: bool,
}

impl Default for Batch<'_> {
    fn default() -> Self {
        Batch { packets: Vec::with_capacity(MOST_PACKETS), ended: 0, is_guarded: false }
    }
}

impl<'a> Batch<'a> {
    /// An empty batch for other frames, in the same memory.
    #[inline]
    pub fn emptied<'b>(mut self) -> Batch<'b> {
        self.packets.clear();
        // Collected in place: a vector keeps its memory if the elements have the same size.
        let packets = self.packets.into_iter().map_while(|_| None).collect();
        Batch { packets, ended: 0, is_guarded: false }
    }

    /// Lends a frame whose data is `length` bytes from `start` on. The batch must not have run yet.
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

    /// All packets, in the order in which they were pushed.
    #[inline]
    pub fn packets(&self) -> &[Packet<'a>] {
        &self.packets
    }

    /// The number of packets without a verdict.
    #[inline]
    pub fn going(&self) -> usize {
        self.packets.len().saturating_sub(self.ended)
    }

    /// Sets whether the elements that run next come before one that encrypts.
    #[inline]
    pub(super) fn guard(&mut self, is_guarded: bool) {
        self.is_guarded = is_guarded;
    }

    /// Whether the running element comes before one that encrypts.
    #[inline]
    pub(super) fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// Ends the chain: the remaining packets leave by their exits. Returns their number.
    #[inline]
    pub(super) fn leave(&mut self) -> usize {
        let left = self.going();
        self.ended = self.packets.len();
        left
    }

    /// Shows each packet without a verdict, in order. A verdict that `step` returns is final, and is counted.
    #[inline]
    pub fn each(
        &mut self,
        counters: &mut Counters,
        mut step: impl FnMut(&mut Packet<'a>) -> Option<Verdict>,
    ) {
        self.each_of([counters], |packet| step(packet).map(|verdict| (0, verdict)));
    }

    /// Like [`Batch::each`], for several elements at once. A verdict comes with the number of the element that gives
    /// it. Returns the number of verdicts of each.
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

    /// Like [`Batch::each`], for work that reads whole packets. The packet shown is in the cache or on its way there,
    /// because the lines of the packet [`AHEAD`] places later are prefetched before each step.
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

    /// Like [`Batch::each`], for work on many packets at once. The result of a step may keep the packet, which then
    /// gets no verdict here. Before each step, `ask` gets the packet [`AHEAD`] places later and prefetches what its
    /// step needs.
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

/// Stores and counts a packet's final verdict. A packet that may not go up is dropped instead.
fn end(packet: &mut Packet<'_>, verdict: Verdict, is_guarded: bool, counters: &mut Counters) {
    let verdict = match verdict {
        // The kernel would send a packet that was made here, whatever the reason.
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
