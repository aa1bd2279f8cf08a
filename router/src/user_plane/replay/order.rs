//! Restores the order in which packets came. Paths take turns by their cost, which differs from run to run, but the output must not.

use super::packet::Packet;
use logic::plan::PortId;
use std::collections::VecDeque;

/// The packets from the oldest one without a fate on.
#[derive(Default)]
pub struct Order {
    first: u64,
    fates: VecDeque<Fate>,
}

enum Fate {
    Open,
    /// It does not leave.
    Gone,
    Leaves(PortId, Packet),
}

impl Order {
    /// A packet comes; returns its number.
    pub fn expect(&mut self) -> u64 {
        self.fates.push_back(Fate::Open);
        self.first + self.fates.len() as u64 - 1
    }

    /// The number of packets from the oldest one without a fate on.
    pub fn length(&self) -> usize {
        self.fates.len()
    }

    /// The packet with this number does not leave.
    pub fn gone(&mut self, number: u64) {
        self.set(number, Fate::Gone);
    }

    /// The packet leaves by this port.
    pub fn leaves(&mut self, port: PortId, packet: Packet) {
        self.set(packet.number, Fate::Leaves(port, packet));
    }

    fn set(&mut self, number: u64, fate: Fate) {
        let place = number.checked_sub(self.first).and_then(|at| self.fates.get_mut(at as usize));
        debug_assert!(matches!(place, Some(Fate::Open)), "packet {number} has a fate already");
        if let Some(place) = place {
            *place = fate;
        }
    }

    /// The next packet that leaves, if all packets before it have their fates.
    pub fn next(&mut self) -> Option<(PortId, Packet)> {
        loop {
            match self.fates.front()? {
                Fate::Open => return None,
                Fate::Gone | Fate::Leaves(..) => self.first += 1,
            }
            if let Fate::Leaves(port, packet) = self.fates.pop_front()? {
                return Some((port, packet));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn packets_leave_as_they_came() {
        let mut order = Order::default();
        let packet = |order: &mut Order| {
            let mut packet = Packet::new(Vec::new(), &[1], Default::default(), Duration::ZERO);
            packet.number = order.expect();
            packet
        };
        let [a, b, c, d] = [(); 4].map(|()| packet(&mut order));
        assert_eq!([a.number, b.number, c.number, d.number], [0, 1, 2, 3]);
        order.leaves(1, d);
        order.gone(b.number);
        assert!(order.next().is_none());
        order.leaves(2, a);
        assert_eq!(order.next().map(|(port, packet)| (port, packet.number)), Some((2, 0)));
        assert!(order.next().is_none());
        let e = packet(&mut order);
        assert_eq!(order.length(), 3);
        order.gone(c.number);
        assert_eq!(order.next().map(|(port, packet)| (port, packet.number)), Some((1, 3)));
        order.leaves(3, e);
        assert_eq!(order.next().map(|(port, packet)| (port, packet.number)), Some((3, 4)));
        assert!(order.next().is_none());
    }
}
