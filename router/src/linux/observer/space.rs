//! One namespace under observation: its sockets and its known state. Its visits, messages and devices have files of their
//! own.
//!
//! The subscription is opened before the first visit, so no change is lost between the two. Messages that arrive while
//! routes are read are applied after them. This is harmless, because each message holds the whole new state of its
//! subject. Other threads make the visits (`survey`), and the code here waits for nothing.
//!
//! A namespace over its [`Quota`] is distrusted, which its settings report. The observer stops listening to it for a
//! while and then reads it again.

mod devices;
mod messages;
mod visits;

use super::{
    HOST, PolicyRead, Quota,
    due::Due,
    ear::Ear,
    poller::ProcessWatch,
    survey::{Numbers, Wanted},
    sysctl::{Sysctls, Values},
    unread::{Part, Unread},
};
use crate::{
    base::clock::monotonic,
    linux::{hazards::Hazards, multipath::MultipathKeys, netlink::link::RawLink, netns::NamespaceRef},
};
use logic::{
    learned::Learned,
    observe::{Event, Link, Namespace, NamespaceId, NexthopObject, Settings},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

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
    pub(super) unread: Unread,
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
            unread: Unread::default(),
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
        let waits = waits || self.due.numbers.is_some() || self.unread.has(Part::Quota);
        !waits && self.visit.is_none()
    }

    /// Sets other limits. The whole namespace is read again and compared with them, even if it was over a limit before.
    pub fn set_quota(&mut self, quota: Quota) {
        if quota != self.quota {
            self.quota = quota;
            self.asked.state = true;
            self.quiet = self.quiet.map(|_| Instant::now());
        }
    }

    /// Marks a part as unknown until it is read again. Until then nothing is accelerated here.
    pub fn distrust(&mut self, part: Part, why: String, out: &mut Vec<Event>) {
        self.unread.add(part, why);
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
