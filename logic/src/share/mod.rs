//! What each router may take of a core that is full (M4, P12).
//!
//! Routers that share a port, a queue and a core share the port's ring: one that is sent more than the core can do fills it, and
//! its neighbours lose what does not find room. So on a full core the packets of routers that want more than their share are cut
//! right after they were classified, and so many that the core stays ahead of the ring.
//!
//! **Shares.** What is divided is [`TARGET`] of the core's time, max-min fair by weight (`fill`): a router that wants less than
//! its part gets all that it wants, an idle one's part goes to the others. All that is done for a router's packets is charged to
//! it, cutting them included: of `n` packets that cost `c` each, or `d` when cut, so many are carried out that
//! `x c + (n - x) d` is its share. So what an overload costs, the one who is overloaded pays.
//!
//! **Costs** are measured: the time that the core's queues ran in a period, by what they did in it (`cost`). What is still wrong with
//! them shows in how busy the core then is, and is made up for (`Sharer::aim`).
//!
//! **When.** A core on which no queue lacks time cuts nothing, and counts nothing. When it was full for a period, what comes is
//! counted by router; when it was for another one, shares are decided, each period anew. Cutting ends when all want less than there is,
//! counting when the core was not full for [`HOLD`]. Nothing is cut where routers want alike ([`ALIKE`]): then cutting would only
//! take time from all. So one router alone is never cut, whatever it is sent: what the ring has no room for costs nothing.
//!
//! Nor where each router has its share by rings that others do not fill (`turns`): the threads that poll them take turns on the core,
//! and cutting would only take some of its time. Where something comes for the host now and then only, that is not counted: all ports
//! are the host's, too, and nobody knows by which of them it came.
//!
//! **How much comes** cannot be seen while the core is full, as the ring is: it is then thought to be [`HIDDEN`] times what was
//! seen. If it is more, the core is still full in the next period, having seen more; if less, too much was cut for 10 ms.
//! What wobbles is taken at its height of the last [`RECENT`] periods: an overload that comes and goes is cut when it comes, and
//! one that ends is cut for a tenth of a second more.
//!
//! **Where it ends.** A core that does nothing but cut is full at `1 / d` packets a second. Cutting a router may take more than its
//! share, and a little of what it is sent is always carried out (`cut`); when all that is too much, all lose in the ring
//! ([`Decision::beyond`]). Nobody gets less than its share for that. Queues of their own go further.
//!
//! **What the box itself has to answer** (its applications, routing protocols) comes first in a router's share, and is cut only where
//! it alone is more. ARP and neighbour discovery are not cut at all.
//!
//! Tried, and left: a budget in packets that each tick of the kernel renews. A router over its share has all its
//! packets carried out until the budget is spent, half of a tick perhaps, and for so long the core cannot keep up with a ring that is full
//! after 60 us. A clock that is finer costs 25 ns a packet. So packets are cut evenly, as a fraction.

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

/// Of a full core's time, how much is divided. The rest carries bursts.
pub const TARGET: f64 = 0.92;
/// A core whose queues ran for this fraction of a period, or of which one never slept, is full.
const FULL: f64 = 0.97;
/// Cost of a packet that goes up to the kernel, in relation to one that is forwarded. A guess: where it is wrong, a router is charged
/// more or less for what it has the kernel do, but the core is as busy as it shall be.
pub const UP: f64 = 3.0;
/// While a ring is full, so many times what came out of it is thought to be sent to it.
const HIDDEN: f64 = 1.5;
/// Routers of which none wants this many times what another does, by weight, want alike.
const ALIKE: f64 = 1.25;
/// How much less is divided after a period in which the core was full, and how much more after another.
const LOWER: f64 = 0.01;
const RAISE: f64 = 0.0001;
/// However often it is full, so much is divided.
const LEAST_AIM: f64 = 0.6;
/// Of 2^32 packets: a tenth more may be carried out than in the period before.
const EASE: u32 = u32::MAX / 10;
/// How long a router is protected after its last packet, and routers are counted after the core was full.
pub const HOLD: Duration = Duration::from_secs(1);
/// Of so many periods the highest rate counts.
const RECENT: usize = 10;
/// The core was full for so many periods: more comes than it can cut, rather than more than is known yet.
const SURE: u32 = 10;

/// What became of a router's packets on a core, in one control period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub router: RouterId,
    /// 1 or more.
    pub weight: u16,
    pub forwarded: u64,
    /// For the router itself.
    pub own: u64,
    /// Passed up or dropped for other reasons, as what the kernel forwards is.
    pub other: u64,
    /// Over the router's share, and to be forwarded.
    pub cut: u64,
    /// The same of those for the router itself.
    pub own_cut: u64,
}

/// What is carried out of what comes, of 2^32 packets; 0: all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Of packets to be forwarded.
    pub admit: u32,
    /// Of packets for the router itself.
    pub own_admit: u32,
}

impl Grant {
    /// Nothing is cut.
    pub const ALL: Grant = Grant { admit: 0, own_admit: 0 };

    /// This, but at most [`EASE`] more of each kind than before: less is carried out at once, more by and by.
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
    /// Since the last one.
    pub length: Duration,
    /// See [`busy`].
    pub busy: f64,
    /// All that had packets, if they were counted.
    pub counted: &'a [Counted],
    /// The rings before it, whose threads take turns: whose packets each may hold. None: it is not known, or they take none.
    pub rings: &'a [BTreeSet<RouterId>],
    /// The router that all ports belong to.
    pub host: Option<RouterId>,
}

/// What follows for a core.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Packets are to be counted by router, and shares are in force.
    pub counting: bool,
    /// Of all routers seen in the last [`HOLD`].
    pub grants: BTreeMap<RouterId, Grant>,
    /// Fraction of the core's time that routers took, cut packets included.
    pub taken: BTreeMap<RouterId, f64>,
    /// More comes than the core can cut: routers lose in the ring whatever their share.
    pub beyond: bool,
}

/// How busy queues keep their core, of what they ran and waited (see `cores::Queue`): one that never slept lacked time,
/// whatever it waited for.
pub fn busy(queues: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (ran, longest) =
        queues.fold((0.0_f64, 0.0_f64), |(sum, most), (ran, waited)| (sum + ran, most.max(ran + waited)));
    ran.max(longest).clamp(0.0, 1.0)
}

/// The shares of one core, from period to period.
#[derive(Clone, Debug, Default)]
pub struct Sharer {
    /// The periods up to now in which the core was full, without a break.
    full_periods: u32,
    /// When it was full last; `None`: not lately, nothing is counted.
    full_at: Option<Duration>,
    is_sharing: bool,
    /// What is divided: [`TARGET`], or less.
    aim: f64,
    costs: Costs,
    /// As decided last.
    grants: BTreeMap<RouterId, Grant>,
    routers: BTreeMap<RouterId, RouterDemand>,
}

/// What a router was sent lately. Rates are packets per second.
#[derive(Clone, Debug, Default)]
struct RouterDemand {
    at: Duration,
    weight: f64,
    rate: Highest,
    own_rate: Highest,
    /// Of a packet that is carried out, in relation to one that is forwarded.
    cost: f64,
}

impl RouterDemand {
    /// Packets came in a quarter of the last periods, or more.
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
    /// As many as there were, at most [`RECENT`].
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
    /// Takes in a period, and says what holds in the next.
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

    /// What came, and what it cost; fractions of the core that routers took.
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

    /// Makes up for costs that are not what they are thought to be: a core that should have time left and is full is to do less.
    fn correct(&mut self, is_full: bool) {
        self.aim = match self.is_sharing {
            false => TARGET,
            true if is_full => (self.aim - LOWER).max(LEAST_AIM),
            true => (self.aim + RAISE).min(TARGET),
        };
    }

    /// Who is cut.
    fn divide(&mut self, is_full: bool, period: &Period<'_>, decision: &mut Decision) {
        let price = self.costs.price();
        if price.packet_s <= 0.0 {
            return;
        }
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
        // What is hidden is not held against those within their share.
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

/// What was carried out, in relation to forwarding a packet.
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
