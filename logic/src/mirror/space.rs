//! The known state of one namespace.

use super::{
    batch::Batch,
    ids::Shortage,
    neighbours::Neighbours,
    path::{Egress, Surroundings},
    rib::Rib,
    rules::{PairTables, Rules},
};
use crate::{
    cause::Cause,
    multipath::MultipathHash,
    observe::{Dump, Link, Namespace, NamespaceId, NexthopObjectKind, Settings},
    plan::{Op, RouterId},
};
use rustc_hash::FxHashMap;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

pub(super) type Spaces = BTreeMap<NamespaceId, Space>;

pub(super) struct Space {
    pub about: Namespace,
    /// The first dump has arrived. Before that, nothing is known, so nothing is safe.
    pub dumped: bool,
    pub links: BTreeMap<u32, Link>,
    pub settings: Settings,
    pub rules: Rules,
    pub objects: FxHashMap<u32, NexthopObjectKind>,
    pub rib4: Rib<u32>,
    pub rib6: Rib<u128>,
    pub neighbours: Neighbours,
    /// The properties of links that routes need, as of the last plan.
    pub egresses: FxHashMap<u32, Egress>,
    /// Packets may arrive of which Linux already has a hash.
    pub hashed: bool,
    /// Links, objects or settings that routes depend on have changed since the last plan.
    pub refresh: bool,
    pub router: Option<Router>,
    /// Why it has no router, if it wants one.
    pub shortage: Shortage,
    /// The last time received, CLOCK_MONOTONIC.
    pub now: Duration,
}

/// The router of a namespace, as planned.
#[derive(Clone)]
pub(super) struct Router {
    pub id: RouterId,
    /// `None`: not planned yet.
    pub multipath: Option<MultipathHash>,
    pub tables: PairTables,
    /// Of the rules; see [`Op::Rules`].
    pub generation: u32,
    /// The running plan adds it.
    pub is_new: bool,
}

impl Space {
    pub fn new(about: Namespace) -> Self {
        Self {
            about,
            dumped: false,
            links: BTreeMap::new(),
            settings: Settings::default(),
            rules: Rules::default(),
            objects: FxHashMap::default(),
            rib4: Rib::default(),
            rib6: Rib::default(),
            neighbours: Neighbours::default(),
            egresses: FxHashMap::default(),
            hashed: false,
            refresh: false,
            router: None,
            shortage: Shortage::OfAll,
            now: Duration::ZERO,
        }
    }

    pub fn load(&mut self, dump: Dump) {
        self.dumped = true;
        self.refresh = true;
        self.links = dump.links.into_iter().map(|link| (link.ifindex, link)).collect();
        self.settings = dump.settings;
        self.objects = dump.nexthops.into_iter().map(|object| (object.id, object.kind)).collect();
        self.rib4.load(dump.routes4);
        self.rib6.load(dump.routes6);
        self.neighbours.load(&dump.neighbours);
    }

    /// Makes packets to exactly these destinations go to the kernel.
    pub fn leave_to_kernel(&mut self, destinations: &BTreeSet<IpAddr>) {
        let v4 = |address: &IpAddr| if let IpAddr::V4(a) = address { Some(a.to_bits()) } else { None };
        let v6 = |address: &IpAddr| if let IpAddr::V6(a) = address { Some(a.to_bits()) } else { None };
        self.rib4.leave_to_kernel(destinations.iter().filter_map(v4).collect());
        self.rib6.leave_to_kernel(destinations.iter().filter_map(v6).collect());
    }

    /// Sets the time.
    pub fn pass_time(&mut self, now: Duration) {
        self.refresh |= self.rib4.any_ends(self.now, now) | self.rib6.any_ends(self.now, now);
        self.now = now;
    }

    /// The time at which the next route leaves the fast path because it ends.
    pub fn next_end(&self) -> Option<Duration> {
        self.rib4.next_end(self.now).into_iter().chain(self.rib6.next_end(self.now)).min()
    }

    /// The reasons why the router's IPv4 and IPv6 stay with the kernel. A list is empty if its family is accelerated, at
    /// least for some packets.
    pub fn reasons(&self) -> [Vec<Cause>; 2] {
        let mut ipv4 = self.settings.hazards4.clone();
        ipv4.extend(self.rib4.doubt());
        let [rules4, rules6] = self.rules.reasons();
        ipv4.extend(rules4);
        let mut ipv6 = self.settings.hazards6.clone();
        ipv6.extend(rules6);
        [ipv4, ipv6]
    }

    /// The tables, and the state in which their routes are resolved.
    pub fn tables(&mut self) -> (&mut Rib<u32>, &mut Rib<u128>, Surroundings<'_>) {
        let around = Surroundings {
            links: &self.egresses,
            objects: &self.objects,
            multipath_policy: self.settings.multipath_policy,
            multipath_key: self.settings.multipath_key,
            hashed: self.hashed,
            now: self.now,
        };
        (&mut self.rib4, &mut self.rib6, around)
    }
}

impl Space {
    /// Adds the differences of everything that belongs to the router, for at most `most` routes of each family.
    pub fn plan_tables(&mut self, router: RouterId, refresh: bool, most: usize, batch: &mut Batch) {
        if self.rib4.take_addresses_changed() {
            let addresses = self.rib4.addresses().iter().copied().collect();
            batch.addresses.push(Op::LocalAddresses { router, addresses });
        }
        let (rib4, rib6, around) = self.tables();
        let (ipv4, ipv6) = (rib4.plan(&around, refresh, most), rib6.plan(&around, refresh, most));
        batch.routes.reserve(ipv4.set.len() + ipv6.set.len());
        batch.routes.extend(ipv4.set.into_iter().map(|(p, target)| Op::Route4(router, p, Some(target))));
        batch.routes.extend(ipv6.set.into_iter().map(|(p, target)| Op::Route6(router, p, Some(target))));
        batch.routes_gone.extend(ipv4.gone.into_iter().map(|p| Op::Route4(router, p, None)));
        batch.routes_gone.extend(ipv6.gone.into_iter().map(|p| Op::Route6(router, p, None)));
    }

    /// Whether routes wait to be planned.
    pub fn is_behind(&self) -> bool {
        self.rib4.batches_left() + self.rib6.batches_left() > 0
    }

    /// The number of IPv4 and IPv6 batches after whose end all waiting prefixes are planned.
    pub fn planned_after(&self) -> [u64; 2] {
        let [ended4, ended6] = self.batches_ended();
        [ended4 + self.rib4.batches_left(), ended6 + self.rib6.batches_left()]
    }

    /// The number of batches that have ended.
    pub fn batches_ended(&self) -> [u64; 2] {
        [self.rib4.batches_ended(), self.rib6.batches_ended()]
    }

    /// Whether these numbers of IPv4 and IPv6 batches have ended.
    pub fn has_planned(&self, after: &[u64; 2]) -> bool {
        self.batches_ended().iter().zip(after).all(|(ended, after)| ended >= after)
    }

    /// The namespace is no router. Its tables are not planned, and earlier plans ended with the router.
    pub fn withdraw(&mut self) {
        self.rib4.settle();
        self.rib6.settle();
        self.refresh = true;
    }
}
