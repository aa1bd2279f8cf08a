//! Packets that wait for a core, oldest first.

use std::collections::VecDeque;

/// A packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// When it reaches the ring.
    pub at_ns: u64,
    /// When it arrived at the machine.
    pub came_ns: u64,
}

impl Packet {
    /// A packet that arrives at the machine.
    pub fn new(at_ns: u64) -> Self {
        Self { at_ns, came_ns: at_ns }
    }
}

/// A ring for a limited number of packets, and the packets that will reach it.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring {
    limit: usize,
    waiting: VecDeque<Packet>,
    coming: VecDeque<Packet>,
    /// Packets that found it full, since [`Ring::take_dropped`].
    dropped: u64,
}

impl Ring {
    pub fn new(limit: u32) -> Self {
        Self { limit: limit as usize, ..Self::default() }
    }

    /// Adds packets that will reach it, in the order of time and after all earlier ones.
    pub fn expect(&mut self, packets: impl IntoIterator<Item = Packet>) {
        self.coming.extend(packets);
    }

    /// Adds a packet. It reaches the ring no earlier than the packet added before it.
    pub fn expect_late(&mut self, packet: Packet) {
        let last_ns = self.coming.back().map_or(0, |last| last.at_ns);
        self.coming.push_back(Packet { at_ns: packet.at_ns.max(last_ns), ..packet });
    }

    /// Lets packets come in until `now`. Those that find it full are dropped.
    #[inline]
    pub fn admit(&mut self, now_ns: u64) {
        while let Some(packet) = self.coming.front()
            && packet.at_ns <= now_ns
        {
            if self.waiting.len() < self.limit {
                self.waiting.push_back(*packet);
            } else {
                self.dropped += 1;
            }
            self.coming.pop_front();
        }
    }

    /// Takes the oldest packet.
    #[inline]
    pub fn take(&mut self) -> Option<Packet> {
        self.waiting.pop_front()
    }

    /// Since when a packet waits, or when the next one comes.
    pub fn ready_ns(&self) -> Option<u64> {
        self.waiting.front().or(self.coming.front()).map(|packet| packet.at_ns)
    }

    /// The packets in it, and those that have not reached it yet.
    pub fn held(&self) -> u64 {
        (self.waiting.len() + self.coming.len()) as u64
    }

    /// The number of packets dropped since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leave_first_and_the_newest_are_dropped() {
        let mut ring = Ring::new(2);
        ring.expect([10, 20, 30, 40, 50].map(Packet::new));
        assert_eq!((ring.ready_ns(), ring.held()), (Some(10), 5));
        ring.admit(35);
        assert_eq!((ring.take_dropped(), ring.held()), (1, 4));
        assert_eq!(ring.take(), Some(Packet::new(10)));
        // There is room for the packet at 40, and none for that at 50.
        ring.admit(50);
        assert_eq!((ring.take_dropped(), ring.ready_ns()), (1, Some(20)));
        assert_eq!(
            [ring.take(), ring.take(), ring.take()].map(|p| p.map(|p| p.at_ns)),
            [Some(20), Some(40), None]
        );
        assert_eq!((ring.ready_ns(), ring.held(), ring.take_dropped()), (None, 0, 0));
    }
}
