//! One namespace under observation: its sockets, its known state, and the events that follow from a message.
//!
//! The subscription is opened before the first visit, so no change is lost between the two. Messages that arrive while
//! routes are read are applied after them. This is harmless, because each message holds the whole new state of its
//! subject. Other threads make the visits (`survey`), and the code here waits for nothing.
//!
//! A namespace over its [`Quota`] is distrusted, which its settings report. The observer stops listening to it for a
//! while and then reads it again.

use super::{
    EVENTS_PER_POLL, HOST, PolicyRead, Quota,
    due::Due,
    ear::{About, Ear},
    poller::ProcessWatch,
    settings,
    survey::{NamespaceState, Numbers, Routes, SurveyResult, Tables, Wanted},
    sysctl::{Sysctls, Values},
    troubles::{Troubles, What},
};
use crate::{
    base::{
        clock::monotonic,
        foreign::{Quoted, Shown},
    },
    linux::{
        hazards::{Hazards, command},
        multipath::MultipathKeys,
        netlink::{
            learned::LearnedRoute,
            link::{self, LinkMessage, RawLink},
            neighbour, netconf, nexthop, route, rtm,
            wire::{self, Message},
        },
        netns::NamespaceRef,
    },
};
use logic::{
    learned::Learned,
    observe::{Change, Dump, Event, Link, LinkKind, Namespace, NamespaceId, NexthopObject, Settings},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io, mem,
    time::{Duration, Instant},
};

/// Buffers of events taken from one socket before others have their turn. They take about a millisecond.
const BUFFERS_PER_TURN: usize = 256;
/// A policy reading is reported after this many turns, even if there are always more messages.
const TURNS_TO_CATCH_UP: u8 = 8;
/// The same for the host, whose buffer no tenant can fill.
const HOST_BUFFERS_PER_TURN: usize = 4096;
/// Long visits to a namespace take at most one part in this many of the time. Other visits take at most half.
const LONG_VISITS_SHARE: u32 = 4;
/// The longest pause after a visit before urgent things may be read.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// The number of devices for which a message about all devices counts as one event.
const DEVICES_PER_EVENT: usize = 32;
/// More events than a tenant's receive buffer holds. If this many are discarded and more arrive, the storm is still
/// going on.
const THROWN_AWAY: usize = 1 << 16;
/// The pause for a namespace over its quota: the first one, and the longest.
const QUIET: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(64)];

/// The namespaces under observation, by handle. Lower devices may be in any of them.
pub type Peers = Vec<(NamespaceId, NamespaceRef)>;

/// A namespace under observation.
pub struct Space {
    pub id: NamespaceId,
    pub place: NamespaceRef,
    pub namespace: Namespace,
    /// Devices of this namespace that are ports or sit on ports.
    pub chain: BTreeSet<u32>,
    /// A device appeared, went, or moved: look for routers again.
    pub topology_changed: bool,
    /// The kernel has reported its end.
    pub ended: bool,
    /// The namespace was reported to the owner.
    pub announced: bool,
    pub due: Due,
    /// Further things to read as soon as possible.
    pub asked: Wanted,
    /// The process through which it was found, if it has no name.
    pub process: Option<ProcessWatch>,
    pub(super) ear: Option<Ear>,
    pub(super) links: BTreeMap<u32, RawLink>,
    pub(super) hazards: Hazards,
    pub(super) troubles: Troubles,
    /// The visit under way.
    visit: Option<Visit>,
    /// The earliest times of the next visit, and of the next long one.
    visit_not_before: Option<Instant>,
    long_not_before: Option<Instant>,
    /// Events were lost. Waiting events are discarded. Then everything is read again.
    lost: bool,
    /// The number of events discarded since then.
    thrown_away: usize,
    /// The namespace is over its quota, and is left alone until this time.
    quiet: Option<Instant>,
    /// The end and length of the last such pause.
    last_quiet: Option<(Instant, Duration)>,
    quota: Quota,
    /// The number of events it may still report, and the time of that number.
    credit: (f64, Instant),
    /// The place of some lower device is not known.
    unresolved: bool,
    sysctls: Sysctls,
    values: Values,
    multipath_keys: MultipathKeys,
    /// By device and address: are all attributes of the address known?
    addresses: HashMap<u32, HashMap<(u32, u8, u32), bool>>,
    nexthops: BTreeMap<u32, NexthopObject>,
    /// The approximate number that the routes count as: the last reading, corrected by messages.
    routes: usize,
    neighbours: usize,
    /// The numbers by which this namespace knows others.
    nsids: Numbers,
    emitted: BTreeMap<u32, Link>,
    /// Devices that may not be as last emitted. One message can concern all devices, so they wait for the end of a turn.
    stale: BTreeSet<u32>,
    /// The cost of the last message beyond its own event, in events.
    extra_cost: usize,
    /// Devices that accept redirects, for IPv4 and IPv6.
    redirected: [BTreeSet<u32>; 2],
    emitted_settings: Settings,
    /// Waiting messages may be older than the last reading.
    catching_up: bool,
    /// More messages waited than one turn allows.
    more: bool,
    /// A completed policy reading that is not reported yet.
    policy_read: Option<PolicyRead>,
    /// The reading is reported after this many more turns, if older messages wait.
    unheard_turns: u8,
    /// Routes that Linux has learned from ICMP errors, each to one destination.
    pub(super) learned: Learned,
    /// The value of [`Learned::refused`] at the last log line.
    refused_told: u64,
}

/// A reading under way.
struct Visit {
    began: Instant,
    precedes_events: bool,
    is_long: bool,
    /// The visit reads policies, and they were not requested again since it began.
    policy: bool,
    /// Devices about which messages arrived meanwhile.
    touched: BTreeSet<u32>,
}

impl Space {
    /// Nothing is read yet. `ear` is `None` if nothing listens to the namespace.
    pub fn new(
        id: NamespaceId,
        place: NamespaceRef,
        namespace: Namespace,
        (ear, sysctls): (Option<Ear>, Sysctls),
        multipath_keys: MultipathKeys,
        quota: Quota,
    ) -> Space {
        Space {
            id,
            place,
            namespace,
            chain: BTreeSet::new(),
            topology_changed: false,
            ended: false,
            announced: false,
            due: Due::default(),
            asked: Wanted { state: true, ..Wanted::default() },
            process: None,
            ear,
            links: BTreeMap::new(),
            hazards: Hazards::default(),
            troubles: Troubles::default(),
            visit: None,
            visit_not_before: None,
            long_not_before: None,
            lost: false,
            thrown_away: 0,
            quiet: None,
            last_quiet: None,
            credit: (quota.events_at_once as f64, Instant::now()),
            quota,
            unresolved: false,
            values: sysctls.read(),
            multipath_keys,
            sysctls,
            addresses: HashMap::new(),
            nexthops: BTreeMap::new(),
            routes: 0,
            neighbours: 0,
            nsids: HashMap::new(),
            emitted: BTreeMap::new(),
            stale: BTreeSet::new(),
            extra_cost: 0,
            redirected: [BTreeSet::new(), BTreeSet::new()],
            emitted_settings: Settings::default(),
            catching_up: false,
            more: false,
            policy_read: None,
            unheard_turns: 0,
            learned: Learned::default(),
            refused_told: 0,
        }
    }

    /// The number of messages that did not come from the kernel.
    pub fn forged(&self) -> u64 {
        self.ear.as_ref().map_or(0, Ear::forged)
    }

    /// The next time at which there is something to do, if the namespace may be visited.
    pub fn wakes_at(&self, may_visit: bool) -> Option<Instant> {
        if self.quiet.is_some() {
            return self.quiet;
        }
        if self.visit.is_some() || self.lost || !may_visit {
            return None;
        }
        let now = self.credit.1;
        let [any, long] = [self.visit_not_before, self.long_not_before].map(|at| at.unwrap_or(now));
        let (short, long) = (any, long.max(any));
        let asked = (!self.asked.is_empty()).then_some(if self.asked.is_only_long() { long } else { short });
        let Due { dump, routes, ending, hazards, traffic, numbers, .. } = self.due;
        let due = [(dump, long), (routes, long), (ending, long)].into_iter().chain([
            (hazards, short),
            (traffic, short),
            (numbers, short),
        ]);
        let due = due.filter_map(|(at, not_before)| at.map(|at| at.max(not_before)));
        let questions =
            self.learned.due().map(|at| short.max(Instant::now() + at.saturating_sub(monotonic())));
        due.chain(asked).chain(questions).min()
    }

    /// Should its events be read now?
    pub fn listens(&self) -> bool {
        self.quiet.is_none() && !self.visit.as_ref().is_some_and(|visit| visit.precedes_events)
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet.is_some()
    }

    /// Is it being read?
    pub fn is_visited(&self) -> bool {
        self.visit.is_some()
    }

    /// Have all its reports been applied, and is no second reading due? A namespace that is left alone is not waited
    /// for.
    pub fn is_current(&self) -> bool {
        let reads = self.visit.as_ref().is_some_and(|visit| visit.precedes_events);
        let waits = self.lost || self.more || self.asked.precedes_events();
        self.quiet.is_some() || !(reads || waits) && self.due.is_current()
    }

    /// Requests a reading of the policies, by a visit that has not begun. Policies decide whether packets may bypass
    /// the kernel.
    pub fn ask_policy(&mut self) {
        (self.asked.policy, self.policy_read) = (true, None);
        if let Some(visit) = &mut self.visit {
            visit.policy = false;
        }
    }

    /// Is a requested policy reading not reported yet?
    pub fn owes_policy(&self) -> bool {
        let visit = self.visit.as_ref().is_some_and(|visit| visit.policy);
        self.asked.policy || visit || self.policy_read.is_some()
    }

    /// The policy reading, once messages that are older than the visit have been read.
    pub fn take_policy(&mut self) -> Option<PolicyRead> {
        self.policy_read.take_if(|_| self.unheard_turns == 0)
    }

    /// Should its messages be read at once, because they may be older than the last reading?
    pub fn must_catch_up(&self) -> bool {
        self.listens() && (self.catching_up || self.policy_read.is_some())
    }

    /// Must its messages be read even if nothing is readable? A turn can end right on the last message, and messages
    /// can be discarded just before a pause.
    pub fn must_be_heard(&self) -> bool {
        self.listens() && (self.more || self.lost)
    }

    /// Are its devices, and their places, current?
    pub fn is_settled(&self) -> bool {
        let waits = self.lost || self.asked.state || self.asked.numbers || self.due.dump.is_some();
        let waits = waits || self.due.numbers.is_some() || self.troubles.has(What::Quota);
        !waits && self.visit.is_none()
    }

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
        self.end_of(What::Traffic, traffic, |space, found| space.hazards.set_traffic(found));
        if self.troubles.has(What::Traffic) && self.due.traffic.is_none() {
            self.due.traffic_later(now);
        }
        self.end_of(What::Programs, programs, |space, found| space.hazards.set_tcx(found));
        let mut unsure = false;
        self.end_of(What::DeviceSettings, devices, |space, fresh| {
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
                self.troubles.add(What::State, error.to_string());
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
    fn end_of<T>(&mut self, what: What, read: Option<io::Result<T>>, take: impl FnOnce(&mut Space, T)) {
        match read {
            Some(Ok(found)) => {
                self.troubles.settle(what);
                take(self, found);
            }
            Some(Err(error)) => self.troubles.add(what, error.to_string()),
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
        for read in [What::State, What::DeviceSettings, What::Quota] {
            self.troubles.settle(read);
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

    fn compose_all(&mut self) {
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

    /// The namespace is over its quota: nothing in it is accelerated, and it is left alone for a while. Its known state
    /// stays, because forgetting and reading a long table again would take even more time.
    fn exceed(&mut self, why: String, out: &mut Vec<Event>, now: Instant) {
        tracing::warn!(
            namespace = self.namespace.name,
            why,
            "the namespace is over its limits and left to the kernel"
        );
        let [first, last] = QUIET;
        let again = self.last_quiet.filter(|(ended, _)| now.saturating_duration_since(*ended) < last);
        let pause = again.map_or(first, |(_, pause)| (pause * 2).min(last));
        (self.quiet, self.last_quiet) = (Some(now + pause), Some((now + pause, pause)));
        (self.lost, self.thrown_away) = (true, 0);
        self.troubles.add(What::Quota, why);
        self.refresh_settings(out);
        if !mem::replace(&mut self.announced, true) {
            // Without its devices, packets for their addresses would leave the box.
            self.compose_all();
            self.emitted_settings = self.settings();
            let links = self.emitted.values().cloned().collect();
            let dump = Dump { links, settings: self.emitted_settings.clone(), ..Dump::default() };
            out.push(Event::Namespace(self.id, self.namespace.clone()));
            out.push(Event::Dump(self.id, Box::new(dump)));
        }
    }

    /// May it report this many more events? Discarded events have a limit of their own, so discarding ends.
    fn spend(&mut self, events: usize, now: Instant) -> bool {
        if self.lost {
            self.thrown_away += events;
            return self.id == HOST || self.thrown_away < THROWN_AWAY;
        }
        let (left, at) = self.credit;
        let earned = now.saturating_duration_since(at).as_secs_f64() * self.quota.events_per_second as f64;
        let left = (left + earned).min(self.quota.events_at_once as f64) - events as f64;
        self.credit = (left.max(0.0), now.max(at));
        self.id == HOST || left >= 0.0
    }

    /// Applies the kernel's reports, in order, up to this namespace's turn.
    pub fn take_events(&mut self, out: &mut Vec<Event>, now: Instant) -> io::Result<()> {
        let begin = out.len();
        let turn = if self.id == HOST { HOST_BUFFERS_PER_TURN } else { BUFFERS_PER_TURN };
        self.more = true;
        self.unheard_turns = self.unheard_turns.saturating_sub(1);
        let mut left = turn;
        while left > 0 {
            let Some(ear) = self.ear.as_mut().filter(|_| self.quiet.is_none()) else { break };
            // The buffer belongs to the socket. It is moved out so that messages can be applied to `self`.
            match ear.route.take_buffer() {
                Ok(None) => {
                    // All waiting events are discarded: later ones are newer.
                    if mem::take(&mut self.lost) {
                        self.due.dump = Some(now);
                    }
                    (self.catching_up, self.more, self.unheard_turns) = (false, false, 0);
                    break;
                }
                Ok(Some((buffer, length))) => {
                    let about = ear.about(&buffer[..length]);
                    if about == About::Namespace {
                        self.take_buffer(&buffer[..length], out, now);
                    }
                    self.ended |= about == About::End;
                    if let Some(ear) = &mut self.ear {
                        ear.route.return_buffer(buffer);
                    }
                    // Every buffer counts, whatever it contains, including forged messages.
                    let cost = 1 + mem::take(&mut self.extra_cost);
                    left = left.saturating_sub(cost);
                    if !self.spend(cost, now) {
                        let most = self.quota.events_per_second;
                        self.exceed(format!("it changes more than {most} times a second"), out, now);
                    }
                    if out.len() - begin >= EVENTS_PER_POLL {
                        break;
                    }
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    left -= 1;
                    tracing::warn!(
                        namespace = self.namespace.name,
                        "netlink events were lost; reading everything again"
                    );
                    (self.lost, self.thrown_away, self.topology_changed) = (true, 0, true);
                    self.distrust(What::State, "events were lost".into(), out);
                }
                Err(e) => return Err(e),
            }
        }
        self.check_quota(out, now);
        // Most turns concern no device, and composing the settings takes time.
        if !self.stale.is_empty() {
            self.refresh_stale(out);
        }
        Ok(())
    }

    fn take_buffer(&mut self, bytes: &[u8], out: &mut Vec<Event>, now: Instant) {
        for message in wire::messages(bytes) {
            if !self.lost {
                self.apply(message, out, now);
            }
        }
    }

    /// Checks the additions by messages since the last reading. Counts of routes and neighbours are approximate, so a
    /// new reading decides.
    fn check_quota(&mut self, out: &mut Vec<Event>, now: Instant) {
        // The host has no quota, and counting its addresses takes time.
        if self.id == HOST || self.troubles.has(What::Quota) {
            return;
        }
        if let Err(error) = self.quota.interfaces().check(self.links.len()) {
            self.exceed(error.to_string(), out, now);
        }
        let over = |most: crate::linux::netlink::socket::Most, count| most.check(count).is_err();
        let addresses = self.addresses.values().map(HashMap::len).sum();
        if over(self.quota.routes(), self.routes)
            || over(self.quota.routes(), self.nexthops.len())
            || over(self.quota.neighbours(), self.neighbours)
            || over(self.quota.addresses(), addresses)
        {
            self.due.dump = Some(now);
        }
    }

    fn apply(&mut self, message: Message<'_>, out: &mut Vec<Event>, now: Instant) {
        match message.kind {
            rtm::NEWROUTE | rtm::DELROUTE => out.extend(self.route(message, now)),
            rtm::NEWNEIGH | rtm::DELNEIGH => {
                self.neighbours += usize::from(message.kind == rtm::NEWNEIGH);
                out.extend(neighbour::parse(message).map(|n| Event::Neighbour(self.id, n)));
            }
            rtm::NEWLINK | rtm::DELLINK => match link::parse(message) {
                Some(LinkMessage::New(link)) => self.new_link(*link, now),
                Some(LinkMessage::Gone { ifindex }) => self.link_gone(ifindex, out, now),
                Some(LinkMessage::Settings6 { ifindex, conf6 }) => {
                    if let Some(link) = self.links.get_mut(&ifindex) {
                        link.conf6 = Some(conf6);
                        self.refresh(ifindex);
                    }
                }
                None => (),
            },
            rtm::NEWADDR | rtm::DELADDR => {
                if let Some(address) = link::parse_address4(message.payload) {
                    self.address(address, message.kind == rtm::NEWADDR, now);
                }
            }
            rtm::NEWNEXTHOP | rtm::DELNEXTHOP => {
                self.extra_cost += route::weight(&message) - 1;
                if let Some(object) = nexthop::parse(message) {
                    self.nexthop(object, message.kind == rtm::NEWNEXTHOP, out, now);
                }
            }
            rtm::NEWNETCONF => {
                if let Some(conf) = netconf::parse(message.payload) {
                    self.netconf(&conf);
                }
            }
            rtm::NEWNSID | rtm::DELNSID => {
                self.asked.numbers = true;
                self.topology_changed = true;
            }
            rtm::NEWRULE | rtm::DELRULE => self.due.hazards_soon(now),
            rtm::NEWQDISC..=rtm::DELTCLASS | rtm::NEWTFILTER..=46 | 100..=rtm::DELCHAIN => {
                self.due.traffic_soon(now)
            }
            _ => (),
        }
    }

    fn route(&mut self, message: Message<'_>, now: Instant) -> Option<Event> {
        let change = match route::change(message) {
            Change::Replace if self.catching_up => Change::ReplaceLate,
            change => change,
        };
        let weight = route::weight(&message);
        self.extra_cost += weight - 1;
        match change {
            Change::Add | Change::Append => self.routes += weight,
            Change::Delete => self.routes = self.routes.saturating_sub(weight),
            // The replaced route may have counted less.
            Change::Replace | Change::ReplaceLate => self.routes += weight - 1,
        }
        Some(match route::parse(message, monotonic())? {
            route::Parsed::V4(route) => Event::Route4(self.id, change, route),
            route::Parsed::V6(route) => {
                if let Some(end) = route.expires.filter(|_| change != Change::Delete) {
                    self.due.routes_end(now, end.saturating_sub(monotonic()));
                }
                Event::Route6(self.id, change, route)
            }
        })
    }

    fn new_link(&mut self, mut new: RawLink, now: Instant) {
        let index = new.ifindex;
        let old = self.links.remove(&index);
        if let Some(old) = &old {
            new.conf4 = new.conf4.or_else(|| old.conf4.clone());
            new.conf6 = new.conf6.or_else(|| old.conf6.clone());
            // IPv4 marks and drops routes of a device without a message when its state changes (fib_sync_down_dev), and IPv6
            // changes their MTUs with the device's (rt6_mtu_change_route).
            let state = |l: &RawLink| (l.up, l.carrier, l.running, l.master, l.mtu);
            // A dormant device may be reported twice alike, before and after IPv6 marks its routes (addrconf_notify).
            let dormant = new.up && new.carrier && !new.running;
            if state(old) != state(&new) || dormant {
                self.due.routes_soon(now);
            }
        }
        if old.as_ref().is_some_and(|old| old.name != new.name) {
            // Hazards of nftables chains refer to devices by name.
            self.due.hazards_soon(now);
        }
        let place = |l: &RawLink| (l.below, l.below_nsid, l.kind.clone(), l.name.clone());
        // A port's RTM_NEWLINK also reports that something was put on it, in any namespace (NETDEV_CHANGEUPPER).
        self.topology_changed |= self.chain.contains(&index) || old.as_ref().map(place) != Some(place(&new));
        if old.is_none_or(|old| old.qdisc != new.qdisc) {
            self.due.traffic_soon(now);
        }
        self.links.insert(index, new);
        self.refresh(index);
    }

    fn link_gone(&mut self, ifindex: u32, out: &mut Vec<Event>, now: Instant) {
        self.addresses.remove(&ifindex);
        self.hazards.forget_link(ifindex);
        self.emitted.remove(&ifindex);
        for devices in &mut self.redirected {
            devices.remove(&ifindex);
        }
        // The settings can contain its name.
        self.stale.insert(ifindex);
        self.topology_changed = true;
        if self.links.remove(&ifindex).is_some() {
            out.push(Event::LinkGone(self.id, ifindex));
        }
        self.due.routes_soon(now);
    }

    fn address(&mut self, a: link::Address4, new: bool, now: Instant) {
        let addresses = self.addresses.entry(a.ifindex).or_default();
        if new {
            addresses.insert(a.key, a.understood);
        } else {
            addresses.remove(&a.key);
            // Linux removes routes that name it as their source without a message (fib_sync_down_addr).
            self.due.routes_soon(now);
        }
        self.refresh(a.ifindex);
    }

    fn nexthop(&mut self, object: NexthopObject, new: bool, out: &mut Vec<Event>, now: Instant) {
        if new {
            self.nexthops.insert(object.id, object.clone());
            out.push(Event::Nexthop(self.id, object));
        } else {
            self.nexthops.remove(&object.id);
            out.push(Event::NexthopGone(self.id, object.id));
            // Linux removes IPv4 routes through it, and its place in groups, without a message.
            self.due.routes_soon(now);
        }
    }

    fn netconf(&mut self, conf: &netconf::Netconf) {
        if conf.ifindex == -1 {
            settings::apply_to_all(&mut self.values, conf);
            self.stale.extend(self.links.keys());
            self.extra_cost += self.links.len() / DEVICES_PER_EVENT;
        } else if let Ok(ifindex) = u32::try_from(conf.ifindex)
            && let Some(link) = self.links.get_mut(&ifindex)
        {
            let values = if conf.v6 { &mut link.conf6 } else { &mut link.conf4 };
            settings::apply_to_device(values.as_deref_mut().unwrap_or_default(), conf);
            self.refresh(ifindex);
        }
    }

    /// A message reported the device: emit it if it differs from the last event.
    fn refresh(&mut self, ifindex: u32) {
        if let Some(visit) = &mut self.visit {
            visit.touched.insert(ifindex);
        }
        self.stale.insert(ifindex);
    }

    fn emit(&mut self, ifindex: u32, out: &mut Vec<Event>) {
        if let Some(link) = self.compose(ifindex)
            && self.announced
            && self.emitted.get(&ifindex) != Some(&link)
        {
            let marks = |l: &Link| {
                (l.ipv4.ignore_routes_with_linkdown, l.ipv6.ignore_routes_with_linkdown, l.ipv6.disabled)
            };
            if self.emitted.get(&ifindex).is_some_and(|old| marks(old) != marks(&link)) {
                // The kernel also marks a next hop as dead if it is linkdown and ignored, or if IPv6 is off on its
                // device.
                self.due.routes_soon(Instant::now());
            }
            self.emitted.insert(ifindex, link.clone());
            out.push(Event::Link(self.id, link));
        }
    }

    /// Emits every device that differs from its last event.
    pub fn refresh_all(&mut self, out: &mut Vec<Event>) {
        self.stale.extend(self.links.keys());
        self.refresh_stale(out);
    }

    /// Emits stale devices, then the settings, if they differ from their last event.
    fn refresh_stale(&mut self, out: &mut Vec<Event>) {
        for ifindex in mem::take(&mut self.stale) {
            self.emit(ifindex, out);
        }
        self.refresh_settings(out);
    }

    fn compose(&mut self, ifindex: u32) -> Option<Link> {
        let raw = self.links.get(&ifindex)?.clone();
        self.note_redirects(&raw);
        let has_address = self.addresses.get(&ifindex).is_some_and(|a| !a.is_empty());
        let below = self.below(&raw);
        let mut hazards = self.hazards.of_link(ifindex, &raw.name, &self.namespace.name);
        if raw.egress_priority_map {
            hazards.push(format!(
                "{} maps priorities to VLAN priority bits; recreate it without egress-qos-map",
                Shown(&raw.name)
            ));
        }
        if self.addresses.get(&ifindex).is_some_and(|a| a.values().any(|understood| !understood)) {
            hazards.push(format!("{} has an IPv4 address with unknown attributes", Shown(&raw.name)));
        }
        hazards.extend(raw.oddities.iter().map(|what| format!("{} {what}", Shown(&raw.name))));
        let xdp = raw.xdp.then(|| {
            let off = format!("ip link set dev {} xdp off", Quoted(&raw.name));
            let off = command(&self.namespace.name, &off);
            format!("{} runs an XDP program; detach it with: {off}", Shown(&raw.name))
        });
        Some(Link {
            ifindex,
            xdp,
            mac: raw.mac,
            mtu: raw.mtu,
            up: raw.up,
            carrier: raw.carrier,
            running: raw.running,
            below,
            master: raw.master,
            ipv4: settings::fold4(raw.conf4.as_deref(), &self.values, has_address),
            ipv6: settings::fold6(raw.conf6.as_deref(), &self.values, raw.mtu),
            hazards,
            kind: raw.kind,
            name: raw.name,
        })
    }

    fn note_redirects(&mut self, raw: &RawLink) {
        let takes = settings::take_redirects(raw.conf4.as_deref(), raw.conf6.as_deref(), &self.values);
        for (takes, devices) in takes.into_iter().zip(&mut self.redirected) {
            if takes && raw.kind != LinkKind::Loopback {
                devices.insert(raw.ifindex);
            } else {
                devices.remove(&raw.ifindex);
            }
        }
    }

    /// The place of the lower device, resolved only for devices that can carry a router's interface.
    pub fn below(&mut self, raw: &RawLink) -> Option<(NamespaceId, u32)> {
        let below = raw.below?;
        let Some(number) = raw.below_nsid else { return Some((self.id, below)) };
        raw.kind.sits_on_another().then_some(())?;
        Some((self.resolve(number)?, below))
    }

    /// The namespace that this one knows by `number`.
    fn resolve(&mut self, number: i32) -> Option<NamespaceId> {
        let known = self.nsids.iter().find(|(_, known)| **known == Some(number)).map(|(id, _)| *id);
        self.unresolved |= known.is_none();
        known
    }

    fn settings(&self) -> Settings {
        let mut settings = self.hazards.of_namespace(&self.namespace.name);
        settings.multipath_policy =
            [self.values.multipath4, self.values.multipath6].map(|p| p.min(255) as u8);
        settings.multipath_key = self.multipath_keys.of(self.values.multipath_seed);
        if self.values.forward_use_pmtu != 0 {
            settings.hazards4.push(
                "net.ipv4.ip_forward_use_pmtu is on, so learned path MTUs apply to forwarded packets; set it to 0"
                    .into(),
            );
        }
        let [redirects4, redirects6] = [4, 6].map(|version| self.redirects(version));
        settings.hazards4.extend(redirects4);
        settings.hazards6.extend(redirects6);
        self.troubles.add_to(&mut settings);
        settings
    }

    /// Reports that devices accept redirects, if packets of the IP version are forwarded.
    fn redirects(&self, version: u8) -> Option<String> {
        let redirected = &self.redirected[usize::from(version == 6)];
        let name = &self.links.get(redirected.first()?)?.name;
        let forwards = |link: &Link| if version == 4 { link.ipv4.forwarding } else { link.ipv6.forwarding };
        if !self.emitted.values().any(forwards) {
            return None;
        }
        let more = redirected.len() - 1;
        let off = format!("net/ipv{version}/conf/{name}/accept_redirects=0");
        let off = command(&self.namespace.name, &format!("sysctl -w {}", Quoted(&off)));
        let flush = command(&self.namespace.name, "ip route flush cache");
        let others = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        Some(format!(
            "{}{others} accepts ICMP redirects, which change the gateways of forwarded packets; turn this off with: \
             {off}; then remove learned gateways with: {flush}",
            Shown(name)
        ))
    }

    /// Marks a part as unknown until it is read again. Until then nothing is accelerated here.
    pub fn distrust(&mut self, what: What, why: String, out: &mut Vec<Event>) {
        self.troubles.add(what, why);
        self.refresh_settings(out);
    }

    /// Emits settings and hazards if they differ from the last event.
    pub fn refresh_settings(&mut self, out: &mut Vec<Event>) {
        let settings = self.settings();
        if settings != self.emitted_settings && self.announced {
            self.emitted_settings = settings.clone();
            out.push(Event::Settings(self.id, settings));
        }
    }

    /// Reads things that change without a message: settings, legacy iptables, programs. With `slow`, every device's own
    /// settings are read again too.
    pub fn tick(&mut self, slow: bool, out: &mut Vec<Event>) {
        let values = self.sysctls.read();
        if values != self.values {
            self.values = values;
            self.stale.extend(self.links.keys());
        }
        self.refresh_stale(out);
        self.asked.polled |= slow || self.id == HOST;
        self.asked.devices |= slow;
        if slow {
            self.count_programs();
        }
    }

    /// Requests a count of the programs on devices of the chain.
    pub fn count_programs(&mut self) {
        self.asked.programs = Some(self.chain.clone());
    }

    /// Forgets a namespace that is no longer observed.
    pub fn forget_peer(&mut self, id: NamespaceId, out: &mut Vec<Event>) {
        if self.nsids.remove(&id).is_some() {
            self.refresh_all(out);
        }
    }
}
