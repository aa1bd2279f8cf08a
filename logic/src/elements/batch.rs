//! The packets of one run.

use super::{
    Counters,
    packet::{Ingress, NotAFrame, Packet, Verdict},
};

/// The most packets in a batch.
pub const MOST_PACKETS: usize = 256;

/// Packets in the order of arrival, lent by their worker: the n-th that was pushed is the n-th of [`Batch::packets`].
pub struct Batch<'a> {
    packets: Vec<Packet<'a>>,
    /// How many have no verdict.
    going: usize,
}

impl Default for Batch<'_> {
    fn default() -> Self {
        Batch { packets: Vec::with_capacity(MOST_PACKETS), going: 0 }
    }
}

impl<'a> Batch<'a> {
    /// An empty one for other frames, in the same memory.
    #[inline]
    pub fn emptied<'b>(self) -> Batch<'b> {
        // Collected in place: the memory of a vector is kept by one of things of the same size.
        let packets = self.packets.into_iter().filter_map(|_| None).collect();
        Batch { packets, going: 0 }
    }

    /// Lends a frame whose data is `length` bytes from `start` on.
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
        self.going += 1;
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
        self.going
    }

    /// Shows each packet that has no verdict, in order; a verdict it is given is its last, and counted.
    #[inline]
    pub fn each(
        &mut self,
        counters: &mut Counters,
        mut step: impl FnMut(&mut Packet<'a>) -> Option<Verdict>,
    ) {
        for packet in self.packets.iter_mut().filter(|packet| packet.verdict.is_none()) {
            if let Some(verdict) = step(packet) {
                packet.verdict = Some(verdict);
                self.going -= 1;
                counters.count(verdict);
            }
        }
    }
}
