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
