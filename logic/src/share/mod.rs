//! Divides a full core among its routers (M4, P12).
//!
//! Routers that share a port, a queue and a core share the port's ring. A router that gets more packets than the core
//! can do fills the ring, and its neighbours lose the packets that find no room. So on a full core, packets of routers
//! that want more than their share are cut right after they were classified. Enough are cut that the core keeps up with
//! the ring.
//!
//! **Shares.** [`TARGET`] of the core's time is divided, max-min fair by weight (`fill`). A router that wants less than
//! its part gets all that it wants, and the part of an idle router goes to the others. All work for a router's packets
//! is charged to it, including cutting. Of `n` packets that cost `c` each, or `d` when cut, `x` are carried out so that
//! `x c + (n - x) d` is the router's share. So the overloaded router pays for its overload.
//!
//! **Costs** are measured from the time that the core's queues ran in a period, and their work in it (`cost`).
//! Remaining errors show in how busy the core then is, and are corrected (`Sharer::aim`).
//!
//! **When.** A core on which no queue lacks time cuts nothing and counts nothing. After it was full for a period,
//! packets are counted by router. After another such period, shares are decided, again in each period. Cutting ends
//! when the sum of all wants is less than the available time, and counting ends when the core was not full for
//! [`HOLD`]. Nothing is cut if routers want alike ([`ALIKE`]), because cutting would then only take time from all. So a
//! single router is never cut, whatever it gets: packets without room in the ring cost nothing.
//!
//! Nothing is cut either if each router has its share because of rings that others do not fill (`turns`). The threads
//! that poll these rings take turns on the core, and cutting would only take some of its time. Occasional packets for
//! the host are ignored in this decision: all ports belong to the host, too, and the port where its packets arrived is
//! unknown.
//!
//! **How much arrives** cannot be seen while the core is full, because the ring is full, too. The estimate is
//! [`HIDDEN`] times what was seen. If more arrives, the core is still full in the next period, having seen more. If
//! less arrives, too much was cut for 10 ms. Fluctuating rates count with their highest value in the last [`RECENT`]
//! periods. So an overload that comes and goes is cut when it comes, and one that ends is cut for a tenth of a second
//! more.
//!
//! **Limits.** A core that only cuts is full at `1 / d` packets a second. Cutting a router may take more than its
//! share, and a small part of its packets is always carried out (`cut`). If the sum of this is too much, all routers
//! lose packets in the ring ([`Decision::beyond`]). Nobody gets less than its share for that reason. Queues of their
//! own help further.
//!
//! **Packets that the box must answer itself** (its applications, routing protocols) come first in a router's share.
//! They are cut only if they alone are more than the share. ARP and neighbour discovery are never cut.
//!
//! One alternative was tried and rejected: a budget in packets that each tick of the kernel renews. All packets of a
//! router over its share are carried out until the budget is spent, perhaps for half of a tick. During that time the
//! core cannot keep up with a ring that is full after 60 us. A finer clock costs 25 ns a packet. So packets are cut
//! evenly, as a fraction.

mod cost;
mod cut;
mod fill;
mod turns;

use crate::plan::RouterId;
use cost::Costs;
use cut::Sent;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use turns::Due;

pub use fill::{Want, fill};

/// The part of a full core's time that is divided. The rest absorbs bursts.
pub const TARGET: f64 = 0.92;
/// A core is full if its queues ran for this fraction of a period, or if one of them never slept.
const FULL: f64 = 0.97;
/// The cost of a packet that goes up to the kernel, relative to one that is forwarded. This is an assumption. If it is
/// wrong, a router is charged more or less for the kernel's work, but the core is as busy as it should be.
pub const UP: f64 = 3.0;
/// While a ring is full, packets sent to it are estimated as this many times those that came out.
const HIDDEN: f64 = 1.5;
/// Routers want alike if none of them wants this many times what another does, by weight.
const ALIKE: f64 = 1.25;
/// The divided part is this much less after a period in which the core was full, and this much more after any other.
const LOWER: f64 = 0.01;
const RAISE: f64 = 0.0001;
/// The divided part is never less than this.
const LEAST_AIM: f64 = 0.6;
/// Of 2^32 packets: at most a tenth more may be carried out than in the period before.
const EASE: u32 = u32::MAX / 10;
/// How long a router is protected after its last packet, and routers are counted after the core was full.
pub const HOLD: Duration = Duration::from_secs(1);
/// The highest rate of this many periods counts.
const RECENT: usize = 10;
/// After this many full periods in a row, more packets arrive than the core can cut. Before that, the estimate may
/// still be too low.
const SURE: u32 = 10;

/// The fate of a router's packets on a core, in one control period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub router: RouterId,
    /// 1 or more.
    pub weight: u16,
    pub forwarded: u64,
    /// Packets for the router itself that were carried out.
    pub own: u64,
    /// Packets that were passed up or dropped for other reasons, such as those that the kernel forwards.
    pub other: u64,
    /// Packets to be forwarded, over the router's share.
    pub cut: u64,
    /// Packets for the router itself, over its share.
    pub own_cut: u64,
}

/// The part that is carried out, of 2^32 packets; 0: all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The part of packets to be forwarded.
    pub admit: u32,
    /// The part of packets for the router itself.
    pub own_admit: u32,
}

impl Grant {
    /// Nothing is cut.
    pub const ALL: Grant = Grant { admit: 0, own_admit: 0 };

    /// This grant, but with at most [`EASE`] more of each kind than before. Reductions apply at once, increases
    /// gradually.
    fn eased(self, before: Grant) -> Grant {
        let eased = |now: u32, before: u32| match before {
            0 => now,
            _ if now == 0 => before.checked_add(EASE).unwrap_or(0),
            _ => now.min(before.saturating_add(EASE)),
        };
        Grant { admit: eased(self.admit, before.admit), own_admit: eased(self.own_admit, before.own_admit) }
    }
}

/// One control period of a core.
#[derive(Clone, Copy, Debug)]
pub struct Period<'a> {
    /// The time since the last one.
    pub length: Duration,
    /// See [`busy`].
    pub busy: f64,
    /// All routers that had packets, if they were counted.
    pub counted: &'a [Counted],
    /// The rings before the core, whose threads take turns, each with the routers whose packets it may hold. Empty:
    /// unknown, or the threads take no turns.
    pub rings: &'a [BTreeSet<RouterId>],
    /// The router to which all ports belong.
    pub host: Option<RouterId>,
}

/// The decision for a core.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Packets must be counted by router, and shares are in force.
    pub counting: bool,
    /// The grants of all routers seen in the last [`HOLD`].
    pub grants: BTreeMap<RouterId, Grant>,
    /// The fraction of the core's time that each router took, including cut packets.
    pub taken: BTreeMap<RouterId, f64>,
    /// More packets arrive than the core can cut, so routers lose packets in the ring whatever their share.
    pub beyond: bool,
}

/// How busy queues keep their core, from the time that they ran and waited (see `cores::Queue`). A queue that never
/// slept lacked time, whatever it waited for.
pub fn busy(queues: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (ran, longest) =
        queues.fold((0.0_f64, 0.0_f64), |(sum, most), (ran, waited)| (sum + ran, most.max(ran + waited)));
    ran.max(longest).clamp(0.0, 1.0)
}

/// The shares of one core, from period to period.
#[derive(Clone, Debug, Default)]
pub struct Sharer {
    /// The number of full periods in a row up to now.
    full_periods: u32,
    /// When the core was last full. `None`: not recently, and nothing is counted.
    full_at: Option<Duration>,
    is_sharing: bool,
    /// The part that is divided: [`TARGET`] or less.
    aim: f64,
    costs: Costs,
    /// The grants as last decided.
    grants: BTreeMap<RouterId, Grant>,
    routers: BTreeMap<RouterId, RouterDemand>,
}

/// The packets that a router was sent recently. Rates are packets per second.
#[derive(Clone, Debug, Default)]
struct RouterDemand {
    at: Duration,
    weight: f64,
    rate: Highest,
    own_rate: Highest,
    /// The cost of carrying out a packet, relative to forwarding one.
    cost: f64,
}

impl RouterDemand {
    /// Whether packets arrived in at least a quarter of the last periods.
    fn is_steady(&self) -> bool {
        let both = self.rate.last.iter().zip(&self.own_rate.last);
        4 * both.filter(|(rate, own)| **rate + **own > 0.0).count() >= self.rate.periods
    }
}

/// The highest of the last [`RECENT`] rates.
#[derive(Clone, Copy, Debug, Default)]
struct Highest {
    last: [f64; RECENT],
    next: usize,
    /// The number of periods, at most [`RECENT`].
    periods: usize,
}

impl Highest {
    fn add(&mut self, rate: f64) {
        self.last[self.next] = rate;
        self.next = (self.next + 1) % RECENT;
        self.periods = (self.periods + 1).min(RECENT);
    }

    fn get(&self) -> f64 {
        self.last.into_iter().fold(0.0, f64::max)
    }
}

impl Sharer {
    /// Updates the state with a period, and returns the decision for the next one.
    pub fn decide(&mut self, now: Duration, period: &Period<'_>) -> Decision {
        let is_full = period.busy >= FULL;
        self.full_periods = if is_full { self.full_periods + 1 } else { 0 };
        let was_counting = self.full_at.is_some();
        if is_full || self.is_sharing {
            self.full_at = Some(now);
        }
        if self.full_at.is_none_or(|at| now.saturating_sub(at) >= HOLD) {
            *self = Sharer::default();
            return Decision::default();
        }
        if !was_counting {
            return Decision { counting: true, ..Decision::default() };
        }
        let taken = self.take_in(now, period);
        let mut decision = Decision { counting: true, taken, ..Decision::default() };
        self.correct(is_full);
        self.divide(is_full, period, &mut decision);
        decision
    }

    /// Updates rates and costs. Returns the fractions of the core that routers took.
    fn take_in(&mut self, now: Duration, period: &Period<'_>) -> BTreeMap<RouterId, f64> {
        let length_s = period.length.as_secs_f64().max(1e-6);
        for counted in period.counted.iter().filter(|counted| offered(counted) > 0) {
            let seen = self
                .routers
                .entry(counted.router)
                .or_insert(RouterDemand { cost: 1.0, ..RouterDemand::default() });
            (seen.at, seen.weight) = (now, f64::from(counted.weight.max(1)));
        }
        for (router, seen) in &mut self.routers {
            let counted = period.counted.iter().find(|counted| counted.router == *router);
            let counted = counted.copied().unwrap_or_default();
            let carried = counted.forwarded + counted.other;
            seen.rate.add((carried + counted.cut) as f64 / length_s);
            seen.own_rate.add((counted.own + counted.own_cut) as f64 / length_s);
            if carried > 0 {
                seen.cost = (counted.forwarded as f64 + counted.other as f64 * UP) / carried as f64;
            }
        }
        self.routers.retain(|_, seen| now.saturating_sub(seen.at) < HOLD);
        let ran_s = period.busy * length_s;
        let sums = |of: fn(&Counted) -> f64| period.counted.iter().map(of).sum::<f64>();
        self.costs.take_in(ran_s, sums(carried_units), sums(cut_packets));
        let price = self.costs.price();
        let spent = |counted: &Counted| carried_units(counted) + cut_packets(counted) * price.cut;
        let all: f64 = period.counted.iter().map(spent).sum();
        let part = |counted: &Counted| (counted.router, period.busy * spent(counted) / all.max(1.0));
        period.counted.iter().map(part).collect()
    }

    /// Corrects errors of the costs: if a core should have time left but is full, it must do less.
    fn correct(&mut self, is_full: bool) {
        self.aim = match self.is_sharing {
            false => TARGET,
            true if is_full => (self.aim - LOWER).max(LEAST_AIM),
            true => (self.aim + RAISE).min(TARGET),
        };
    }

    /// Decides which routers are cut.
    fn divide(&mut self, is_full: bool, period: &Period<'_>, decision: &mut Decision) {
        let price = self.costs.price();
        let hidden = if is_full { HIDDEN } else { 1.0 };
        let sent = |seen: &RouterDemand| Sent {
            rate: seen.rate.get() * hidden,
            own_rate: seen.own_rate.get() * hidden,
            cost: seen.cost,
            cut: price.cut,
        };
        let sent: Vec<Sent> = self.routers.values().map(sent).collect();
        let want = |(seen, sent): (&RouterDemand, &Sent)| Want {
            weight: seen.weight,
            amount: sent.units() * price.packet_s,
        };
        let wants: Vec<Want> = self.routers.values().zip(&sent).map(want).collect();
        let shares = fill(self.aim, &wants);
        // Hidden packets do not count against routers within their share.
        let is_within = |share: f64, want: &Want| share >= want.amount / hidden;
        let due = |((&router, seen), (share, want)): ((&RouterId, &RouterDemand), (&f64, &Want))| {
            let due = Due {
                wants: want.amount,
                least: share.min(want.amount / hidden),
                is_steady: seen.is_steady(),
            };
            (period.host != Some(router) || due.is_steady).then_some((router, due))
        };
        let due = self.routers.iter().zip(shares.iter().zip(&wants)).filter_map(due).collect();
        self.is_sharing = (self.is_sharing || self.full_periods >= 2)
            && !alike(&wants)
            && wants.iter().map(|want| want.amount).sum::<f64>() > self.aim
            && !turns::serve(&due, period.rings, self.aim, hidden);
        decision.grants = self.routers.keys().map(|router| (*router, Grant::ALL)).collect();
        let before = std::mem::take(&mut self.grants);
        if !self.is_sharing {
            return;
        }
        let mut all = 0.0;
        for (((router, grant), sent), (share, want)) in
            decision.grants.iter_mut().zip(&sent).zip(shares.iter().zip(&wants))
        {
            if !is_within(*share, want) {
                let units = share / price.packet_s;
                let eased = sent.grant(units).eased(before.get(router).copied().unwrap_or_default());
                all += share.max(sent.least(units) * price.packet_s);
                *grant = eased;
            } else {
                all += want.amount / hidden;
            }
        }
        decision.beyond = all > 1.0 && self.full_periods >= SURE;
        self.grants = decision.grants.clone();
    }
}

fn offered(counted: &Counted) -> u64 {
    counted.forwarded + counted.own + counted.other + counted.cut + counted.own_cut
}

/// The work that was carried out, relative to forwarding a packet.
fn carried_units(counted: &Counted) -> f64 {
    counted.forwarded as f64 + (counted.own + counted.other) as f64 * UP
}

fn cut_packets(counted: &Counted) -> f64 {
    (counted.cut + counted.own_cut) as f64
}

fn alike(wants: &[Want]) -> bool {
    let each = || wants.iter().map(|want| want.amount / want.weight);
    each().fold(0.0, f64::max) <= ALIKE * each().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests;
