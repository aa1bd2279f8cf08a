//! Finds the conditions that hold, except those of cores, which another thread sets.
//!
//! Those of ports, routers and interfaces are why the kernel serves them. They are looked for only after a change.

use super::{
    Control,
    listening::Pending,
    seam::{FastPath, Kernel, Observe},
    world::PortState,
};
use crate::{
    api::status::{ConditionReport, Families},
    base::{
        conditions::{
            Condition,
            ConditionKind::{
                self, Configuration, Counters, Export, Interface, Linux, Path, Policy, Port, Privileges,
                Router, Tables,
            },
            Conditions,
        },
        guard::locked,
        privileges,
    },
    user_plane::seam::UserPlane,
};
use logic::cause::Cause;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How long to wait for further changes. Creating a device and setting it up takes several.
const SETTLE: Duration = Duration::from_millis(200);
/// The shortest time between two looks. A condition that ends before the next look is not noticed.
const LOOK: Duration = Duration::from_secs(1);

/// Where conditions go, and when to look for them again.
#[derive(Default)]
pub(super) struct Finding {
    conditions: Conditions,
    pending: Pending,
    /// The mirror's revision and the ports' obstacles at the last change.
    seen: (u64, Vec<Vec<Cause>>),
    due: Option<Duration>,
    looked: Duration,
    /// When all others than those of ports, routers and interfaces were last looked for.
    looked_for_others: Duration,
}

impl Finding {
    pub fn new(conditions: Conditions) -> Self {
        Self { conditions, ..Self::default() }
    }

    /// The time of the next look at ports, routers and interfaces; `None`: nothing has changed since the last one.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Reports the addresses that cannot be listened on.
    pub(super) fn with_pending(mut self, pending: Pending) -> Self {
        self.finding.pending = pending;
        self
    }

    /// Sets the conditions that hold now, except those of ports, routers and interfaces
    /// ([`Control::follow_fast_path`]).
    pub(super) fn follow_conditions(&mut self, now: Duration) {
        if now.saturating_sub(self.finding.looked_for_others) >= LOOK {
            self.finding.looked_for_others = now;
            self.find_conditions();
        }
    }

    fn find_conditions(&self) {
        let conditions = &self.finding.conditions;
        let of = |kind: ConditionKind, texts: Vec<String>| {
            conditions.set(&[kind], texts.into_iter().map(|text| Condition::new(kind, text)));
        };
        let paths = self.paths.iter().flat_map(|paths| {
            paths.condition.clone().into_iter().chain(paths.plane.stand().conditions.clone())
        });
        let ended = self.connections.condition().map(|text| Condition::new(Linux, text));
        conditions.set(&[Linux], self.observer.conditions().into_iter().chain(ended));
        of(Counters, self.generation.plane.conditions());
        of(Tables, self.generation.stuck.iter().map(|stuck| stuck.why.clone()).collect());
        of(Path, paths.chain(self.past_paths()).collect());
        let late = |what| format!("policy changes are seen late: {what}");
        of(Policy, self.windows.unseen().into_iter().map(late).collect());
        let not_listening = locked(&self.flows.end.gauge.not_listening).clone();
        let pending = self.finding.pending.texts().into_iter().chain(not_listening);
        of(Configuration, self.unknown_weights().chain(pending).collect());
        of(Export, self.exports.conditions());
        of(Privileges, privileges::condition().into_iter().collect());
    }

    /// All conditions that hold, except those of interfaces.
    pub(super) fn condition_reports(&self) -> Vec<ConditionReport> {
        self.find_conditions();
        let shown = self.finding.conditions.of(|kind| kind != Interface).into_iter();
        shown.map(|(condition, since)| ConditionReport::new(condition, since)).collect()
    }

    /// Names in `shares.weights` that no router has. They may be misspelt.
    fn unknown_weights(&self) -> impl Iterator<Item = String> {
        let mut names: BTreeSet<&String> = self.config.shares.weights.keys().collect();
        if !names.is_empty() {
            self.world.mirror.routers().for_each(|router| _ = names.remove(&router.name));
        }
        names
            .into_iter()
            .map(|name| format!("shares.weights: there is no router {name} (see `millrace routers`)"))
    }

    /// Sets the conditions of ports, routers and interfaces if something has changed and it is time.
    pub(super) fn follow_fast_path(&mut self, now: Duration) {
        let ports = self.world.ports.values().map(PortState::obstacles).collect();
        let seen = (self.world.mirror.revision(), ports);
        if self.finding.seen != seen {
            self.finding.seen = seen;
            self.finding.due.get_or_insert((now + SETTLE).max(self.finding.looked + LOOK));
        }
        if self.finding.due.take_if(|due| *due <= now).is_none() {
            return;
        }
        self.finding.looked = now;
        let all = self.left_to_kernel();
        let left = all.iter().filter(|(_, why)| !why.is_empty()).map(|((kind, subject), why)| Condition {
            kind: *kind,
            subject: subject.clone(),
            text: why.sentences().join("; "),
            codes: why.ipv4.iter().chain(&why.ipv6).map(|cause| cause.code).collect(),
        });
        let there: BTreeSet<&str> = all.keys().map(|(_, subject)| subject.as_str()).collect();
        self.finding
            .conditions
            .set_among(&[Port, Router, Interface], left, |subject| there.contains(subject));
    }

    /// Why each port, router and interface itself is left to the kernel; empty: it is not.
    fn left_to_kernel(&self) -> BTreeMap<(ConditionKind, String), Families<Vec<Cause>>> {
        let ports = self.world.ports.values().map(|p| {
            let why = p.obstacles();
            ((Port, format!("port {}", p.name)), Families { ipv4: why.clone(), ipv6: why })
        });
        let routers: Vec<_> = self.routers_and_obstacles().collect();
        let names: BTreeMap<_, _> = routers.iter().map(|r| (r.namespace, r.name.clone())).collect();
        let routers = routers.into_iter().map(|router| {
            let why = Families { ipv4: router.ipv4, ipv6: router.ipv6 };
            ((Router, format!("router {}", router.name)), why)
        });
        let interfaces = self.world.mirror.interfaces().map(|interface| {
            let router = names.get(&interface.namespace).map_or("", String::as_str);
            let why = Families { ipv4: interface.reasons4, ipv6: interface.reasons6 };
            ((Interface, format!("router {router}, interface {}", interface.name)), why)
        });
        ports.chain(routers).chain(interfaces).collect()
    }
}
