//! The conditions of ports, routers and interfaces: why the kernel serves them.

use super::{
    Control,
    seam::{Kernel, Observe},
    world::PortState,
};
use crate::{
    api::status::Families,
    base::conditions::{
        Condition,
        ConditionKind::{self, Interface, Port, Router},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How long to wait for further changes. Creating a device and setting it up takes several.
const SETTLE: Duration = Duration::from_millis(200);
/// The shortest time between two looks at everything. A condition that ends before the next look is not noticed.
const LOOK: Duration = Duration::from_secs(1);

/// Decides when to look at everything again.
#[derive(Default)]
pub(super) struct Changes {
    /// The mirror's revision and the ports' obstacles at the last change.
    seen: (u64, Vec<Vec<String>>),
    due: Option<Duration>,
    looked: Duration,
}

impl Changes {
    /// The time of the next look; `None`: nothing has changed since the last one.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Sets the conditions of ports, routers and interfaces if something has changed and it is time.
    pub(super) fn follow_fast_path(&mut self, now: Duration) {
        let ports = self.world.ports.values().map(PortState::obstacles).collect();
        let seen = (self.world.mirror.revision(), ports);
        if self.changes.seen != seen {
            self.changes.seen = seen;
            self.changes.due.get_or_insert((now + SETTLE).max(self.changes.looked + LOOK));
        }
        if self.changes.due.take_if(|due| *due <= now).is_none() {
            return;
        }
        self.changes.looked = now;
        let all = self.left_to_kernel();
        let left = all.iter().filter(|(_, why)| !why.is_empty()).map(|((kind, subject), why)| Condition {
            kind: *kind,
            subject: subject.clone(),
            text: why.join("; "),
        });
        let there: BTreeSet<&str> = all.keys().map(|(_, subject)| subject.as_str()).collect();
        self.conditions.set_among(&[Port, Router, Interface], left, |subject| there.contains(subject));
    }

    /// Why each port, router and interface itself is left to the kernel; empty: it is not.
    fn left_to_kernel(&self) -> BTreeMap<(ConditionKind, String), Vec<String>> {
        let ports = self.world.ports.values().map(|p| ((Port, format!("port {}", p.name)), p.obstacles()));
        let routers: Vec<_> = self.routers_and_obstacles().collect();
        let names: BTreeMap<_, _> = routers.iter().map(|r| (r.namespace, r.name.clone())).collect();
        let routers = routers.into_iter().map(|router| {
            let why = Families { ipv4: router.ipv4, ipv6: router.ipv6 };
            ((Router, format!("router {}", router.name)), why.sentences())
        });
        let interfaces = self.world.mirror.interfaces().map(|interface| {
            let router = names.get(&interface.namespace).map_or("", String::as_str);
            let why = Families { ipv4: interface.reasons4, ipv6: interface.reasons6 };
            ((Interface, format!("router {router}, interface {}", interface.name)), why.sentences())
        });
        ports.chain(routers).chain(interfaces).collect()
    }
}
