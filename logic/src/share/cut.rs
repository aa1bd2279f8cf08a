//! The part of a router's packets that is carried out for a share of the core's time. Costs and times are relative to
//! forwarding a packet. Rates are packets per second.

use super::{Grant, UP};

/// This part of what its share can carry is always carried out, however many packets arrive.
const LEAST: f64 = 1.0 / 16.0;

/// The packets that are sent to a router.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The rate of packets to be forwarded.
    pub rate: f64,
    /// The rate of packets for the router itself.
    pub own_rate: f64,
    /// The cost of carrying out one of the former.
    pub cost: f64,
    /// The cost of cutting any packet.
    pub cut: f64,
}

impl Sent {
    /// The cost of all packets.
    pub fn units(&self) -> f64 {
        self.rate * self.cost + self.own_rate * UP
    }

    /// The least cost with this share.
    pub fn least(&self, share: f64) -> f64 {
        let kept = |rate: f64, cost: f64| rate.min(share * LEAST / cost) * self.more(cost);
        (self.rate + self.own_rate) * self.cut + kept(self.rate, self.cost) + kept(self.own_rate, UP)
    }

    /// The grant for a share. Packets for the router itself come first.
    pub fn grant(&self, share: f64) -> Grant {
        // The calculation begins with all packets cut. The rest of the share then carries some out.
        let left = share - (self.rate + self.own_rate) * self.cut;
        let (own_admit, left) = self.carried(self.own_rate, UP, left, share);
        let (admit, _) = self.carried(self.rate, self.cost, left, share);
        Grant { admit, own_admit }
    }

    /// The extra cost of carrying a packet out instead of cutting it.
    fn more(&self, cost: f64) -> f64 {
        (cost - self.cut).max(f64::MIN_POSITIVE)
    }

    /// The part of `rate` packets at `cost` each that `left` can carry out instead of cutting, as in [`Grant`], and the
    /// rest.
    fn carried(&self, rate: f64, cost: f64, left: f64, share: f64) -> (u32, f64) {
        let can = (left / self.more(cost)).max(share * LEAST / cost);
        if rate <= can {
            return (0, left - rate * self.more(cost));
        }
        let admit = (can / rate * f64::from(u32::MAX)) as u32;
        (admit.max(1), 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Sent = Sent { rate: 1e6, own_rate: 1e5, cost: 1.5, cut: 0.5 };

    fn part(of_all: f64) -> u32 {
        (of_all * f64::from(u32::MAX)) as u32
    }

    #[test]
    fn the_least_cost_is_that_of_cutting_all_but_a_small_part_of_the_share() {
        assert_eq!(SENT.units(), 1.5e6 + 3e5);
        let kept = 1e6 / 16.0 * (1.0 / 1.5 + 2.5 / 3.0);
        assert!((SENT.least(1e6) - (5.5e5 + kept)).abs() < 1e-3);
        assert!((SENT.least(1e9) - SENT.units()).abs() < 1e-3, "the share is enough for all");
    }

    #[test]
    fn a_share_is_spent_first_on_packets_for_the_router_itself() {
        let grant = |share| SENT.grant(share);
        assert_eq!(grant(1.8e6), Grant::ALL);
        assert_eq!(grant(1e6), Grant { admit: part(0.2), own_admit: 0 });
        assert_eq!(grant(7e5), Grant { admit: part(7e5 / 16.0 / 1.5 / 1e6), own_admit: part(0.6) });
        // Cutting takes nearly all of the share, or more.
        for share in [5.6e5, 3e5] {
            let least = |cost: f64, rate: f64| part(share / 16.0 / cost / rate);
            assert_eq!(grant(share), Grant { admit: least(1.5, 1e6), own_admit: least(UP, 1e5) });
        }
        let few = Sent { rate: 1.0, own_rate: 1.0, cost: 1.0, cut: 0.5 };
        assert_eq!(few.grant(0.8).admit, part(0.05), "nothing is left after those");
        // 0 would mean all.
        let flood = Sent { rate: 1e15, ..SENT };
        assert_eq!(flood.grant(1.0).admit, 1);
    }
}
