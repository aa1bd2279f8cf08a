//! What part of a router's packets is carried out, for a share of the core's time. Costs and times are in relation to forwarding a
//! packet, rates are packets per second.

use super::{Grant, UP};

/// Of what its share would carry, so much is always carried out, however much more comes.
const LEAST: f64 = 1.0 / 16.0;

/// What a router is sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// To be forwarded.
    pub rate: f64,
    /// For itself.
    pub own_rate: f64,
    /// Of the first, carried out.
    pub cost: f64,
    /// Of any, cut.
    pub cut: f64,
}

impl Sent {
    /// What all of it takes.
    pub fn units(&self) -> f64 {
        self.rate * self.cost + self.own_rate * UP
    }

    /// What it takes at the least, with this share.
    pub fn least(&self, share: f64) -> f64 {
        let kept = |rate: f64, cost: f64| rate.min(share * LEAST / cost) * self.more(cost);
        (self.rate + self.own_rate) * self.cut + kept(self.rate, self.cost) + kept(self.own_rate, UP)
    }

    /// What is carried out for a share: first what is for the router itself.
    pub fn grant(&self, share: f64) -> Grant {
        // First all is cut; what is left carries packets out after all.
        let left = share - (self.rate + self.own_rate) * self.cut;
        let (own_admit, left) = self.carried(self.own_rate, UP, left, share);
        let (admit, _) = self.carried(self.rate, self.cost, left, share);
        Grant { admit, own_admit }
    }

    /// What carrying a packet out costs more than cutting it.
    fn more(&self, cost: f64) -> f64 {
        (cost - self.cut).max(f64::MIN_POSITIVE)
    }

    /// Which part of `rate` packets at so much each `left` can carry out instead of cutting it, as in [`Grant`], and what remains.
    fn carried(&self, rate: f64, cost: f64, left: f64, share: f64) -> (u32, f64) {
        let can = (left / self.more(cost)).max(share * LEAST / cost);
        if rate <= can {
            return (0, left - rate * self.more(cost));
        }
        let admit = (can / rate * f64::from(u32::MAX)) as u32;
        (admit.max(1), 0.0)
    }
}
