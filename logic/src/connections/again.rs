//! Decides which connections can be fast again after rules have changed or a proof has ended.
//!
//! The kernel plane does not use their rows, so Linux sees the packets meanwhile. Nothing that Linux knows of a
//! connection changes with the rules. But it may end, and TCP's flags change with its packets. So Linux is asked again, and
//! the new rules are checked. The rows stay where they are.

use super::{
    admission::Refusal,
    kept::{Clock, Kept, One, Router},
    note::ConnectionNote,
    tracked::{Refresh, Tracked},
};
use crate::{
    firewall::traffic::Version,
    mirror::ConnectionRules,
    plan::RouterId,
    tables::connections::{ConnectionMemory, PairId},
};
use std::{collections::BTreeMap, time::Duration};

/// The kernel plane sees FIN again after this time: the new rules have been read.
const RULES_READ: Duration = Duration::from_secs(1);

/// What was decided about a connection that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Again {
    Fast,
    /// Proofs have taken too long in the last second. It still waits.
    Waits,
    /// It is out of the table. Linux has not seen its last packets, if there is a timeout for it here.
    Out(Option<Refresh>),
}

type Connections = BTreeMap<PairId, One>;

impl Router {
    /// Its connections: those whose devices are the same under the new rules, and the others.
    pub(super) fn split(self, rules: &ConnectionRules) -> (Connections, Connections) {
        let old = &self.rules;
        let is_same = |id: &_| old.devices.contains_key(id) && old.devices.get(id) == rules.devices.get(id);
        let stays = |one: &One| old.namespace == rules.namespace && one.interfaces.iter().all(is_same);
        self.all.into_iter().partition(|(_, one)| stays(one))
    }
}

impl<M: ConnectionMemory> Kept<M> {
    /// Do connections wait?
    pub fn has_waiting(&self) -> bool {
        self.routers.values().any(|router| !router.waiting.is_empty())
    }

    /// The routers that have connections that wait.
    pub fn waiting_routers(&self) -> Vec<RouterId> {
        self.routers.iter().filter(|(_, router)| !router.waiting.is_empty()).map(|(id, _)| *id).collect()
    }

    /// A connection about which Linux must be asked again, then [`Kept::decide_again`] called. `None`: no connection waits, or
    /// proofs have taken too long in the last second.
    pub fn next_waiting(&mut self, router: RouterId) -> Option<(PairId, ConnectionNote)> {
        let of = self.routers.get_mut(&router).filter(|of| !of.admission.is_busy())?;
        while let Some(id) = of.waiting.pop() {
            if let Some(one) = of.all.get(&id).filter(|one| one.generation != of.rules.generation) {
                return Some((id, one.note(router)));
            }
        }
        None
    }

    /// Decides about a connection that waits. `answer`: what Linux says about it. `clock`: a moment before.
    pub fn decide_again(
        &mut self,
        id: PairId,
        note: &ConnectionNote,
        answer: Result<Tracked, Refusal>,
        clock: Clock,
    ) -> Again {
        let counts = self.table.counts(id);
        let router = self.routers.get_mut(&note.router);
        let Some(one) = router.and_then(|router| router.all.get_mut(&id)) else { return Again::Out(None) };
        let ways = one.ways;
        let is_same =
            |tracked: &&Tracked| tracked.ways(&note.tuple) == Some(ways) && tracked.is_ready().is_ok();
        let owed = answer.as_ref().ok().filter(is_same).and_then(|tracked| {
            let timeout_s = one.owed(counts, tracked.expires_s, clock.now)?;
            Some(Refresh { protocol: note.protocol, tuple: note.tuple, timeout_s })
        });
        let decided = answer.and_then(|tracked| match self.admit(note, &tracked, clock.now)? {
            admitted if admitted.ways == ways => {
                self.hold(note.router, id, admitted.holds_until);
                self.begin(note, id, &tracked, clock)
            }
            _ => Err(Refusal::Unknown),
        });
        match decided {
            Ok(()) => {
                self.accept(note.router, id, clock.now);
                Again::Fast
            }
            Err(Refusal::Busy) => {
                self.wait_on(note.router, id);
                Again::Waits
            }
            Err(why) => {
                self.remove(note.router, id);
                self.refuse(note, why, clock.now);
                Again::Out(owed)
            }
        }
    }

    /// Lets a connection of [`Kept::next_waiting`] wait for longer.
    pub fn wait_on(&mut self, router: RouterId, id: PairId) {
        if let Some(router) = self.routers.get_mut(&router) {
            router.waiting.push(id);
        }
    }

    fn hold(&mut self, router: RouterId, id: PairId, until: Option<Duration>) {
        let one = self.routers.get_mut(&router).and_then(|router| router.all.get_mut(&id));
        one.into_iter().for_each(|one| one.holds_until = until);
    }

    /// The rules accept it, so the kernel plane may use its rows.
    fn accept(&mut self, router: RouterId, id: PairId, now: Duration) {
        let Some(router) = self.routers.get_mut(&router) else { return };
        let generation = router.rules.generation;
        if let Some(one) = router.all.get_mut(&id) {
            one.generation = generation;
            one.ask_at = Some(now + RULES_READ);
            self.table.set_generation(id, generation);
        }
    }
}

impl One {
    /// The note that made it fast.
    fn note(&self, router: RouterId) -> ConnectionNote {
        let tuple = self.ways.0[0].arrives;
        let version = if self.is_ipv6() { Version::V6 } else { Version::V4 };
        let [ingress, egress] = self.interfaces;
        ConnectionNote { router, version, protocol: self.protocol, tuple, ingress, egress }
    }
}
