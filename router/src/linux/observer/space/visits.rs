//! Visits to a namespace: when they begin, and what their readings change.

use super::{
    super::{
        HOST, PolicyRead,
        due::Due,
        survey::{NamespaceState, Routes, SurveyResult, Tables, Wanted},
        unread::Part,
    },
    Peers, Space, Visit,
};
use crate::{
    base::clock::monotonic,
    linux::{
        netlink::{learned::LearnedRoute, link::RawLink},
        netns::NamespaceRef,
    },
};
use logic::observe::{Dump, Event, NamespaceId, NexthopObject};
use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
    time::{Duration, Instant},
};

/// A policy reading is reported after this many turns, even if there are always more messages.
const TURNS_TO_CATCH_UP: u8 = 8;
/// Long visits to a namespace take at most one part in this many of the time. Other visits take at most half.
const LONG_VISITS_SHARE: u32 = 4;
/// The longest pause after a visit before urgent things may be read.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

impl Space {
    /// Returns the things to read now, and begins the visit.
    pub fn begin_visit(&mut self, peers: &Peers, now: Instant) -> Option<Wanted> {
        if self.quiet.is_some_and(|until| until <= now) {
            self.quiet = None;
        }
        let is_early = |at: Option<Instant>| at.is_some_and(|at| now < at);
        if self.quiet.is_some() || self.visit.is_some() || self.lost || is_early(self.visit_not_before) {
            return None;
        }
        let mut wanted = mem::take(&mut self.asked);
        let policy = wanted.policy;
        // Packets wait for policies, so the next visit reads the long tables.
        if policy || is_early(self.long_not_before) {
            self.asked = wanted.put_off();
        } else {
            wanted.state |= Due::take(&mut self.due.dump, now);
            wanted.routes |= Due::take(&mut self.due.routes, now);
            wanted.routes |= Due::take(&mut self.due.ending, now);
        }
        if policy {
            self.asked.devices = false;
            wanted.add_policy(&self.chain);
        }
        if wanted.state || wanted.routes {
            (self.due.routes, self.due.ending) = (None, None);
        }
        if wanted.state || policy {
            (self.due.hazards, self.due.traffic) = (None, None);
        }
        wanted.destinations = self.learned.questions(monotonic());
        wanted.hazards |= Due::take(&mut self.due.hazards, now);
        wanted.traffic |= Due::take(&mut self.due.traffic, now);
        let is_new = |(id, _): &(NamespaceId, NamespaceRef)| *id != self.id && !self.nsids.contains_key(id);
        wanted.numbers |= Due::take(&mut self.due.numbers, now);
        wanted.numbers |= self.unresolved && peers.iter().any(is_new);
        if wanted.is_empty() {
            return None;
        }
        let (precedes_events, is_long) = (wanted.precedes_events(), wanted.is_long() && !policy);
        self.visit = Some(Visit { began: now, precedes_events, is_long, policy, touched: BTreeSet::new() });
        Some(wanted)
    }

    /// Applies the result of a visit.
    pub fn end_visit(&mut self, found: SurveyResult, out: &mut Vec<Event>, now: Instant) {
        let Some(Visit { began, is_long, policy, touched, .. }) = self.visit.take() else { return };
        let error = found.why_no_policy();
        if self.id != HOST {
            let took = now.saturating_duration_since(began);
            self.visit_not_before = Some(now + took.min(LONGEST_PAUSE));
            if is_long {
                self.long_not_before = Some(now + took * (LONG_VISITS_SHARE - 1));
            }
        }
        if found.routes.is_some() {
            self.due.routes_took(began);
        }
        self.ended |= found.ended;
        // The namespace may have moved, or be of no interest. No decision was made while it was read.
        let is_dull = self.chain.is_empty() && !self.namespace.configured && self.id != HOST;
        self.topology_changed |= found.lost_the_way || is_dull;
        let SurveyResult {
            state, routes, hazards, traffic, devices, polled, numbers, programs, learned, ..
        } = found;
        let (learned, took) = learned;
        self.take_learned(&learned);
        self.learned.took(took, monotonic());
        if let Some(hazards) = hazards
            && !self.hazards.set_namespace(hazards)
        {
            self.due.hazards_later(now);
        }
        if let Some(polled) = polled {
            self.hazards.set_polled(polled);
        }
        self.end_of(Part::Traffic, traffic, |space, found| space.hazards.set_traffic(found));
        if self.unread.has(Part::Traffic) && self.due.traffic.is_none() {
            self.due.traffic_later(now);
        }
        self.end_of(Part::Programs, programs, |space, found| space.hazards.set_tcx(found));
        let mut unsure = false;
        self.end_of(Part::DeviceSettings, devices, |space, fresh| {
            unsure = space.take_device_settings(fresh, &touched);
        });
        if policy {
            self.values = self.sysctls.read();
            self.unheard_turns = TURNS_TO_CATCH_UP;
            let took = now.saturating_duration_since(began);
            self.policy_read = (!unsure).then_some(PolicyRead { namespace: self.id, took, error });
            self.asked.policy |= unsure;
        }
        match numbers {
            Some(Ok(numbers)) => {
                self.topology_changed |= self.nsids != numbers;
                (self.nsids, self.unresolved) = (numbers, false);
            }
            Some(Err(_)) => self.due.numbers_later(now),
            None => (),
        }
        if self.quiet.is_some() {
            return;
        }
        let taken = match (state, routes) {
            (Some(state), _) => state.and_then(|state| self.take_state(state, out)),
            (None, Some(routes)) => routes.map(|routes| self.take_routes(routes, out)),
            (None, None) => Ok(()),
        };
        match taken {
            Ok(()) => (),
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
                return self.exceed(error.to_string(), out, now);
            }
            Err(error) => {
                tracing::warn!(namespace = self.namespace.name, %error, "cannot read the namespace; trying again later");
                self.unread.add(Part::State, error.to_string());
                self.due.dump_later(now);
            }
        }
        self.refresh_all(out);
        self.emit_learned(out);
    }

    /// Takes in answers of Linux. Some of them come without a question.
    fn take_learned(&mut self, learned: &[LearnedRoute]) {
        let now = monotonic();
        for LearnedRoute { destination, binds_until } in learned {
            self.learned.answer(*destination, *binds_until, now);
        }
    }

    /// Emits the destinations about which Linux has learned, if they have changed.
    fn emit_learned(&mut self, out: &mut Vec<Event>) {
        let refused = self.learned.refused();
        // Each line needs twice as many as the one before.
        if refused > self.refused_told.saturating_mul(2) {
            self.refused_told = refused;
            let namespace = &self.namespace.name;
            tracing::warn!(
                namespace,
                refused,
                "too many ICMP errors: the fast path ignores path MTUs and gateways that Linux learned from the refused ones"
            );
        }
        if self.announced {
            out.extend(self.learned.take_changed().map(|destinations| Event::Learned(self.id, destinations)));
        }
    }

    /// Applies a reading, or notes why it failed.
    fn end_of<T>(&mut self, part: Part, read: Option<io::Result<T>>, take: impl FnOnce(&mut Space, T)) {
        match read {
            Some(Ok(found)) => {
                self.unread.settle(part);
                take(self, found);
            }
            Some(Err(error)) => self.unread.add(part, error.to_string()),
            None => (),
        }
    }

    /// Replaces the whole state with the reading, or only devices and addresses if that is all it has.
    fn take_state(&mut self, state: NamespaceState, out: &mut Vec<Event>) -> io::Result<()> {
        let NamespaceState { links, addresses, tables } = state;
        self.values = self.sysctls.read();
        self.links = links;
        self.addresses.clear();
        for address in addresses {
            self.addresses.entry(address.ifindex).or_default().insert(address.key, address.understood);
        }
        let Tables { neighbours, routes } = match tables {
            Ok(tables) => tables,
            Err(error) => {
                self.forget_missing_links(out);
                self.refresh_all(out);
                return Err(error);
            }
        };
        self.nexthops = routes.nexthops.iter().map(|n| (n.id, n.clone())).collect();
        self.neighbours = neighbours.len();
        self.note_routes(&routes);
        for read in [Part::State, Part::DeviceSettings, Part::Quota] {
            self.unread.settle(read);
        }
        self.compose_all();
        self.emitted_settings = self.settings();
        if !mem::replace(&mut self.announced, true) {
            out.push(Event::Namespace(self.id, self.namespace.clone()));
            self.topology_changed = true;
        }
        let dump = Dump {
            links: self.emitted.values().cloned().collect(),
            routes4: routes.v4,
            routes6: routes.v6,
            nexthops: routes.nexthops,
            neighbours,
            settings: self.emitted_settings.clone(),
        };
        out.push(Event::Dump(self.id, Box::new(dump)));
        Ok(())
    }

    /// Reports the end of devices that were emitted and are gone.
    fn forget_missing_links(&mut self, out: &mut Vec<Event>) {
        let missing: Vec<u32> =
            self.emitted.keys().filter(|i| !self.links.contains_key(i)).copied().collect();
        for ifindex in missing {
            self.emitted.remove(&ifindex);
            out.push(Event::LinkGone(self.id, ifindex));
        }
    }

    pub(super) fn compose_all(&mut self) {
        self.redirected.iter_mut().for_each(BTreeSet::clear);
        self.stale.clear();
        let indexes: Vec<u32> = self.links.keys().copied().collect();
        self.emitted = indexes.iter().filter_map(|i| Some((*i, self.compose(*i)?))).collect();
    }

    /// Replaces routes, and the nexthop objects under them. If a device goes down, Linux removes its nexthop objects
    /// without a message.
    fn take_routes(&mut self, routes: Routes, out: &mut Vec<Event>) {
        self.note_routes(&routes);
        let now: BTreeMap<u32, NexthopObject> = routes.nexthops.into_iter().map(|n| (n.id, n)).collect();
        let gone = self.nexthops.keys().filter(|id| !now.contains_key(id)).copied();
        out.extend(gone.map(|id| Event::NexthopGone(self.id, id)));
        let changed = now.values().filter(|n| self.nexthops.get(&n.id) != Some(n)).cloned();
        out.extend(changed.map(|n| Event::Nexthop(self.id, n)));
        out.push(Event::Routes(self.id, routes.v4, routes.v6));
        self.nexthops = now;
    }

    /// Notes the number of routes and their ends. Waiting messages may be older.
    fn note_routes(&mut self, routes: &Routes) {
        self.routes = routes.weight;
        self.take_learned(&routes.learned);
        self.catching_up = true;
        if let Some(end) = routes.v6.iter().filter_map(|route| route.expires).min() {
            self.due.routes_end(Instant::now(), end.saturating_sub(monotonic()));
        }
    }

    /// Applies only settings, and XDP programs attached by a BPF link, which no message reports. Other differences will
    /// arrive as events, in their order. A message that arrived meanwhile may be newer. Returns true if such a message
    /// differs.
    fn take_device_settings(&mut self, fresh: Vec<RawLink>, touched: &BTreeSet<u32>) -> bool {
        let mut unsure = false;
        for fresh in fresh {
            let Some(link) = self.links.get_mut(&fresh.ifindex) else { continue };
            if touched.contains(&fresh.ifindex) {
                unsure |= (&link.conf4, &link.conf6, link.xdp) != (&fresh.conf4, &fresh.conf6, fresh.xdp);
            } else {
                (link.conf4, link.conf6, link.xdp) = (fresh.conf4, fresh.conf6, fresh.xdp);
            }
        }
        unsure
    }
}
