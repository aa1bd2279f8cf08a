//! The counters of an element.

use super::packet::{Loss, Verdict};
use crate::reason::Reason;

/// Packets that arrived at an element, and the verdicts that it gave. All others went on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    packets: u64,
    to: u64,
    up: [u64; Reason::COUNT],
    dropped: [u64; Loss::ALL.len()],
    /// The reasons of the packets that were dropped as [`Loss::InClear`] instead of going up.
    in_clear: [u64; Reason::COUNT],
}

impl Default for Counters {
    fn default() -> Self {
        let none = [0; Reason::COUNT];
        Counters { packets: 0, to: 0, up: none, dropped: [0; Loss::ALL.len()], in_clear: none }
    }
}

impl Counters {
    /// Counts packets that arrive.
    pub(super) fn come(&mut self, packets: usize) {
        self.packets += packets as u64;
    }

    pub(super) fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::To(_) => self.to += 1,
            Verdict::Up(reason) | Verdict::Own(reason) => self.up[reason as usize] += 1,
            Verdict::Drop(loss) => self.dropped[loss as usize] += 1,
        }
    }

    /// Counts a packet that was dropped instead of going up for this reason.
    pub(super) fn count_in_clear(&mut self, reason: Reason) {
        self.in_clear[reason as usize] += 1;
    }

    /// Packets that arrived.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Packets passed up for this reason.
    pub fn up(&self, reason: Reason) -> u64 {
        self.up[reason as usize]
    }

    /// Packets dropped for this reason.
    pub fn dropped(&self, loss: Loss) -> u64 {
        self.dropped[loss as usize]
    }

    /// Packets dropped as [`Loss::InClear`], by the reason for which they would have gone up.
    pub fn in_clear(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::all().zip(self.in_clear).filter(|(_, packets)| *packets > 0)
    }

    /// Packets that went on without a verdict.
    pub fn went_on(&self) -> u64 {
        self.packets - self.to - self.up.iter().chain(&self.dropped).sum::<u64>()
    }

    /// All packets that were passed up or dropped, by verdict.
    pub fn lost(&self) -> impl Iterator<Item = (Verdict, u64)> {
        let up = Reason::all().map(|reason| (Verdict::Up(reason), self.up(reason)));
        let dropped = Loss::ALL.into_iter().map(|loss| (Verdict::Drop(loss), self.dropped(loss)));
        up.chain(dropped).filter(|(_, packets)| *packets > 0)
    }
}
