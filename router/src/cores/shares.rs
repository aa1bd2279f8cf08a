//! The shares of full cores: counts each router's packets, lets `logic::share` decide, and applies the decision.

use super::CoreId;
use crate::plane::{Shares, SharesInCharge, Taken};
use logic::{
    cores::{QueueId, View},
    plan::RouterId,
    share::{Counted, Decision, Grant, Period, Sharer, busy},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// How long a decision holds without another round. That is several rounds, so a late round changes nothing. And soon
/// after a daemon has ended, nothing is cut.
const IN_FORCE: Duration = Duration::from_millis(100);

/// The shares of all cores.
#[derive(Default)]
pub struct Sharing {
    /// `None`: shares are not enforced.
    in_charge: Option<SharesInCharge>,
    /// The shares that were in charge in the last round.
    shares: Option<Arc<Shares>>,
    cores: BTreeMap<CoreId, Sharer>,
    /// Cores on which packets are counted.
    counting: BTreeMap<CoreId, Counting>,
    /// Cores on which routers are cut.
    cutting: BTreeSet<CoreId>,
    last: Option<Duration>,
    /// Cores that receive more packets than they can even drop.
    pub(super) beyond: BTreeSet<CoreId>,
}

/// The counts of a core at the last round.
struct Counting {
    /// By router.
    before: Vec<Taken>,
    /// Whether the program has counted something. It is attached some time after the decision to count.
    has_begun: bool,
}

impl Sharing {
    pub fn new(in_charge: SharesInCharge) -> Sharing {
        Sharing { in_charge: Some(in_charge), ..Sharing::default() }
    }

    pub fn is_enforced(&self) -> bool {
        self.in_charge.is_some()
    }

    /// Whether packets are counted, because a core is full or was full a moment ago.
    pub fn is_counting(&self) -> bool {
        !self.counting.is_empty()
    }

    /// Whether routers are cut on this core. Then it counts as full, even if cutting leaves some of its time.
    pub fn is_cutting(&self, core: CoreId) -> bool {
        self.cutting.contains(&core)
    }

    /// Decides and applies the shares of the next period. `view` is of the period that ends now. Cores with queues whose
    /// time is an estimate (`is_estimate`) are not shared, because an estimate covers a longer time. `takes_turns`: whether
    /// a queue is polled by a thread with the usual scheduling.
    ///
    /// # Errors
    /// The time that decisions hold could not be set, so the last one ends on its own.
    pub fn round(
        &mut self,
        now: Duration,
        view: &View,
        is_estimate: impl Fn(QueueId) -> bool,
        takes_turns: impl Fn(QueueId) -> bool,
    ) -> anyhow::Result<()> {
        let Some(in_charge) = &self.in_charge else { return Ok(()) };
        let shares = in_charge.get().unwrap_or_else(|| self.shares.clone());
        if !self.shares.as_ref().zip(shares.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b)) {
            self.forget();
        }
        let length = self.last.replace(now).map_or(Duration::ZERO, |last| now.saturating_sub(last));
        let Some(shares) = shares else { return Ok(()) };
        self.shares = Some(shares.clone());
        let was_counting = self.is_counting();
        let mut taken: BTreeMap<RouterId, f64> = BTreeMap::new();
        self.beyond.clear();
        let mut ran: BTreeMap<CoreId, Vec<(f64, f64)>> = BTreeMap::new();
        let queues: &[_] = if shares.are_divided() { &view.queues } else { &[] };
        for queue in queues {
            ran.entry(queue.core).or_default().push((queue.ran, queue.waited));
        }
        for queue in queues.iter().filter(|queue| is_estimate(queue.id)) {
            ran.remove(&queue.core);
        }
        self.cores.retain(|core, _| ran.contains_key(core));
        for (core, queues) in ran {
            let counted = self.count(&shares, core);
            let rings =
                if counted.is_empty() { Vec::new() } else { rings(&shares, view, core, &takes_turns) };
            let period = Period {
                length,
                busy: busy(queues.into_iter()),
                counted: &counted,
                rings: &rings,
                host: shares.host(),
            };
            let decision = self.cores.entry(core).or_default().decide(now, &period);
            decision.taken.iter().for_each(|(router, part)| *taken.entry(*router).or_default() += part);
            self.apply(&shares, core, &decision);
        }
        let left: Vec<CoreId> =
            self.counting.keys().filter(|core| !self.cores.contains_key(core)).copied().collect();
        left.into_iter().for_each(|core| self.apply(&shares, core, &Decision::default()));
        if !self.is_counting() && !was_counting {
            return Ok(());
        }
        for router in 0..=RouterId::MAX {
            let part = taken.get(&router).map(|part| (part * 1000.0).round() as u32);
            shares.set_taken_of_cores(router, part.filter(|_| self.is_counting()));
        }
        let in_force = shares.in_force(if self.is_counting() { IN_FORCE } else { Duration::ZERO });
        if let Some(in_charge) = self.in_charge.as_ref().filter(|_| was_counting != self.is_counting()) {
            in_charge.wake();
        }
        in_force
    }

    /// Forgets everything, because another generation is in charge, or none.
    fn forget(&mut self) {
        let in_charge = self.in_charge.clone();
        if let Some(shares) = &self.shares {
            let _ = shares.in_force(Duration::ZERO);
        }
        *self = Sharing { in_charge, last: self.last, ..Sharing::default() };
    }

    /// The packets of each router since the last round.
    fn count(&mut self, shares: &Shares, core: CoreId) -> Vec<Counted> {
        let Some(Counting { before, has_begun }) = self.counting.get_mut(&core) else { return Vec::new() };
        if !*has_begun {
            *has_begun = (0..)
                .zip(before.iter())
                .any(|(router, before)| shares.packets(core, router) != before.packets);
            *before = all(shares, core);
            return Vec::new();
        }
        let mut counted = Vec::new();
        for (router, before) in (0..=RouterId::MAX).zip(before) {
            if shares.packets(core, router) == before.packets {
                continue;
            }
            let now = shares.taken(core, router);
            let since = |field: fn(&Taken) -> u64| field(&now).saturating_sub(field(before));
            let (own, other) = (since(|t| t.own), since(|t| t.other));
            let (cut, own_cut) = (since(|t| t.cut), since(|t| t.own_cut));
            let forwarded = since(|t| t.packets).saturating_sub(own + other + cut + own_cut);
            let weight = shares.weight(router);
            counted.push(Counted { router, weight, forwarded, own, other, cut, own_cut });
            *before = now;
        }
        counted
    }

    fn apply(&mut self, shares: &Shares, core: CoreId, decision: &Decision) {
        if decision.beyond {
            self.beyond.insert(core);
        }
        if decision.grants.values().any(|grant| *grant != Grant::ALL) {
            self.cutting.insert(core);
        } else {
            self.cutting.remove(&core);
        }
        if !decision.counting {
            if self.counting.remove(&core).is_some() {
                (0..=RouterId::MAX).for_each(|router| shares.set(core, router, Grant::ALL));
            }
            return;
        }
        self.counting.entry(core).or_insert_with(|| Counting { before: all(shares, core), has_begun: false });
        for router in 0..=RouterId::MAX {
            shares.set(core, router, decision.grants.get(&router).copied().unwrap_or(Grant::ALL));
        }
    }
}

/// For each queue of a core, the routers whose packets its ring may hold. Empty if the core also does parts of split
/// queues, or if one of its queues is not polled by a thread with the usual scheduling.
fn rings(
    shares: &Shares,
    view: &View,
    core: CoreId,
    takes_turns: impl Fn(QueueId) -> bool,
) -> Vec<BTreeSet<RouterId>> {
    let does_part = view.queues.iter().flat_map(|queue| &queue.parts).any(|part| part.core == core);
    let on_core = || view.queues.iter().filter(|queue| queue.core == core);
    if does_part || !on_core().all(|queue| takes_turns(queue.id)) {
        return Vec::new();
    }
    on_core().map(|queue| shares.routers_on(queue.id.port)).collect()
}

/// The counts of all routers.
fn all(shares: &Shares, core: CoreId) -> Vec<Taken> {
    (0..=RouterId::MAX).map(|router| shares.taken(core, router)).collect()
}
