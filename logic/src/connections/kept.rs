//! The connections that are fast: which are asked about, and how long each stays.
//!
//! ```text
//! a note of the kernel plane ── wants ──► Linux is asked ── admit ──► keep ──► fast, until
//!                                                                              Linux or the program sees its end,
//!                                                                              rules or devices change,
//!                                                                              the proof no longer holds,
//!                                                                              it is idle
//! ```
//!
//! Linux forgets a connection that it sees no packets of. So the timeouts of connections that are in use are renewed here,
//! and the kernel plane stops before Linux forgets one. What is dropped here is not lost: its packets go to Linux, and
//! the kernel plane notes it again.

use super::{
    admission::{Admission, Admitted, Consent, Refusal, STEPS_PER_S},
    note::ConnectionNote,
    tracked::{Refresh, Tracked, Way, Ways},
};
use crate::{
    fib::Epoch,
    firewall::traffic::{TCP, Tuple, Version},
    mirror::ConnectionRules,
    plan::{InterfaceId, RouterId},
    tables::connections::{Connection, ConnectionKey, ConnectionMemory, ConnectionTable, OneWay, PairId},
};
use std::{collections::BTreeMap, time::Duration};

/// The table drops a connection that has had no packets for this long.
const IDLE: Duration = Duration::from_secs(60);
/// The kernel plane stops so long before Linux forgets a connection.
const BEFORE: Duration = Duration::from_secs(1);
/// When a connection has had no packets for this long, its timeout in Linux is renewed once more. So Linux forgets it
/// as late as it would without Millrace.
const QUIET: Duration = Duration::from_secs(3);
/// No rules have this generation.
const NO_GENERATION: u32 = 0;
/// Connections with shorter timeouts stay with Linux.
const SHORTEST_S: u32 = 4;
/// A router may have this many times the rows that are left (as `mirror::ids`).
const TIMES_WHAT_IS_LEFT: usize = 16;
/// Each router may take at least so many steps of proofs per second.
const LEAST_STEPS: u32 = 50_000;
/// The flags of TCP are set again after so many bytes of one direction: Linux compares sequence numbers, which wrap.
const SEQUENCE_BYTES: u64 = 1 << 30;
/// The most refused connections of a router that are remembered.
const MOST_REFUSED: usize = 1024;
/// The most connections of a router that are remembered because packets to addresses of the router were noted.
const MOST_LOCAL: usize = 1024;
/// After a refusal that may pass, Linux is asked again after this time, then after twice and three times as long. Linux
/// calls a UDP connection assured 2 s after its first packet at the earliest.
const SOON: Duration = Duration::from_millis(2500);
const MOST_ASKED: u32 = 3;
/// The most of them at once, for each router.
const MOST_AGAIN: usize = 64;
/// Linux is asked again about a refused connection after this time. The settings may have changed.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// The fast connections of all routers.
pub struct Kept<M> {
    pub(super) table: ConnectionTable<M>,
    consent: Consent,
    pub(super) routers: BTreeMap<RouterId, Router>,
    /// Something was removed in this epoch.
    dirty: bool,
}

pub(super) struct Router {
    pub(super) rules: ConnectionRules,
    pub(super) admission: Admission,
    pub(super) all: BTreeMap<PairId, One>,
    /// How many of these are of IPv6. Each takes the room of two.
    of_ipv6: usize,
    refused: BTreeMap<ConnectionKey, Refused>,
    local: BTreeMap<ConnectionKey, Local>,
    /// Connections of earlier rules, and some that are not there any more ([`super::again`]).
    pub(super) waiting: Vec<PairId>,
}

/// Packets to an address of the router, about which Linux was asked. They are for the router itself, or NAT translates their
/// destination. Then answers may arrive by an address of the router, too.
struct Local {
    ingress: InterfaceId,
    at: Duration,
}

impl Local {
    fn is_recent(&self, now: Duration) -> bool {
        now < self.at + ASK_AGAIN
    }
}

/// A connection that stays with Linux.
struct Refused {
    note: ConnectionNote,
    why: Refusal,
    at: Duration,
    /// How often Linux was asked when it was time.
    asked: u32,
}

impl Refused {
    /// When to ask Linux again without another note; `None`: never.
    fn ask_at(&self) -> Option<Duration> {
        let again = !self.why.is_lasting() && self.asked <= MOST_ASKED;
        again.then(|| self.at + SOON * self.asked)
    }
}

/// A fast connection. All times are CLOCK_MONOTONIC.
#[derive(Clone, Debug)]
pub(super) struct One {
    pub(super) protocol: u8,
    pub(super) ways: Ways,
    /// Where packets of the first direction come in and leave.
    pub(super) interfaces: [InterfaceId; 2],
    /// Of the rules that accept it. If these are not the present rules, its packets go to Linux.
    pub(super) generation: u32,
    timeouts: Timeouts,
    /// Linux does not forget it before this time, whatever packets it sees.
    expires_at: Duration,
    /// Linux has set its timeout at this time.
    renewed_at: Duration,
    /// The packets of each direction at that time.
    renewed_with: [u64; 2],
    since: Duration,
    /// The last time at which new packets were seen, and the number of packets then.
    pub(super) used_at: Duration,
    packets: u64,
    /// The bytes of each direction when TCP's flags were last set.
    liberal: [u64; 2],
    /// When Linux is asked whether it is still established: the program may have missed a FIN while rules were read.
    pub(super) ask_at: Option<Duration>,
    /// Until when rules are known to accept it; `None`: until they change.
    pub(super) holds_until: Option<Duration>,
}

/// What Linux sets the timeout of a connection to, in seconds, when it sees a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub usual_s: u32,
    /// The least that Linux may set it to while the connection is established. For TCP: data that was not acknowledged, or was
    /// sent again.
    pub least_s: u32,
    /// The least that Linux may set it to when a direction of TCP is closed. The program may not have seen the FIN, because of
    /// options of IP, or while a policy is being read.
    pub closing_s: u32,
}

impl Timeouts {
    fn least_s(self) -> u32 {
        self.usual_s.min(self.least_s).min(self.closing_s)
    }

    fn least(self) -> Duration {
        Duration::from_secs(self.least_s().into())
    }

    /// A timeout is renewed when it is so old. Then Linux also says whether a connection of TCP is still established.
    fn renewed_after(self) -> Duration {
        let quarter = Duration::from_secs(self.usual_s.min(self.least_s).into()) / 4;
        quarter.min(Duration::from_secs(self.closing_s.into()) / 2)
    }
}

/// The same moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// CLOCK_MONOTONIC
    pub now: Duration,
    pub jiffies: u64,
    /// Jiffies per second.
    pub hz: f64,
}

impl Clock {
    /// The jiffies at which the kernel plane stops forwarding a connection that is valid until `valid_until`.
    fn until(&self, valid_until: Duration) -> u64 {
        let left = valid_until.saturating_sub(self.now + BEFORE);
        self.jiffies.saturating_add((left.as_secs_f64() * self.hz) as u64)
    }
}

/// What Linux must be told about connections of one router.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Connections whose timeout is renewed.
    pub refresh: Vec<(PairId, Refresh)>,
    /// Connections of TCP whose flags are set again.
    pub liberal: Vec<(PairId, Tuple)>,
    pub reset: Vec<Reset>,
}

/// A TCP connection that an RST has ended. Linux may still call it established. It compares the number of the RST with
/// the last acknowledgement that it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    pub tuple: Tuple,
    /// Rules may have dropped the RST before conntrack saw it.
    pub may_be_dropped: bool,
}

/// A connection as people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub router: RouterId,
    pub protocol: u8,
    /// Of the first direction that was seen, as its packets arrive.
    pub arrives: Tuple,
    pub state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Fast {
        /// The packets of the first direction, as they leave.
        leaves: Tuple,
        since: Duration,
        expires_at: Duration,
        /// Packets and bytes of both directions that did not pass Linux.
        counts: [(u64, u64); 2],
    },
    Refused {
        why: Refusal,
        at: Duration,
    },
}

impl<M: ConnectionMemory> Kept<M> {
    pub fn new(table: ConnectionTable<M>, consent: Consent) -> Kept<M> {
        Kept { table, consent, routers: BTreeMap::new(), dirty: false }
    }

    /// Sets which connections may be fast. All fast connections go to Linux. Those that are allowed may become fast again.
    pub fn set_consent(&mut self, consent: Consent) {
        self.consent = consent;
        let ids: Vec<RouterId> = self.routers.keys().copied().collect();
        for id in ids {
            self.drop_connections(id);
            if let Some(router) = self.routers.get_mut(&id) {
                router.admission = Admission::new(router.rules.firewall.clone(), consent);
                router.refused.clear();
            }
        }
    }

    /// Follows the rules of all routers. Connections of earlier rules wait until Linux was asked again, if their devices are
    /// the same.
    pub fn follow(&mut self, rules: Vec<ConnectionRules>) {
        let mut before = std::mem::take(&mut self.routers);
        for rules in rules {
            let router = match before.remove(&rules.router) {
                Some(router) if router.rules.generation == rules.generation => Router { rules, ..router },
                old => {
                    let (all, gone) = old.map(|old| old.split(&rules)).unwrap_or_default();
                    self.take_out(gone);
                    let admission = Admission::new(rules.firewall.clone(), self.consent);
                    let waiting = all.keys().copied().collect();
                    let of_ipv6 = all.values().filter(|one| one.is_ipv6()).count();
                    Router {
                        rules,
                        admission,
                        all,
                        of_ipv6,
                        refused: BTreeMap::new(),
                        local: BTreeMap::new(),
                        waiting,
                    }
                }
            };
            self.routers.insert(router.rules.router, router);
        }
        before.into_values().for_each(|router| self.take_out(router.all));
    }

    fn take_out(&mut self, all: BTreeMap<PairId, One>) {
        all.into_keys().for_each(|id| self.dirty |= self.table.remove(id));
    }

    /// The routers whose connections may be fast.
    pub fn routers(&self) -> impl Iterator<Item = &ConnectionRules> {
        self.routers.values().map(|router| &router.rules)
    }

    /// Must Linux be asked about this connection?
    pub fn wants(&self, note: &ConnectionNote, now: Duration) -> bool {
        let Some(router) = self.routers.get(&note.router) else { return false };
        let key = key(note.router, note.protocol, note.tuple);
        // The other direction may have made it fast since this one was refused.
        if self.table.find(&key).is_some() {
            return false;
        }
        if note.is_local() && router.local.get(&key).is_some_and(|local| local.is_recent(now)) {
            return false;
        }
        let refused = router.refused.get(&key);
        refused.is_none_or(|Refused { why, at, .. }| !why.is_lasting() || now >= *at + ASK_AGAIN)
    }

    /// Drops a fast connection whose packets take other interfaces now: routes have changed, or the first note was of a
    /// packet whose destination NAT changes, and found the way to the old one.
    ///
    /// A note without an egress is of a packet that came before the row, or came in by another interface than answers leave
    /// by. The other direction stays fast.
    pub fn forget_moved(&mut self, note: &ConnectionNote) {
        if note.is_local() {
            return;
        }
        let Some(router) = self.routers.get(&note.router) else { return };
        let key = key(note.router, note.protocol, note.tuple);
        let Some((id, way)) = self.table.find(&key) else { return };
        let Some(one) = router.all.get(&id) else { return };
        let mut seen = [note.ingress, note.egress];
        if way == 1 {
            seen.reverse();
        }
        if one.interfaces != seen {
            self.remove(note.router, id);
        }
    }

    /// Finds the egress of a packet to an address of the router. Answers may arrive by such an address, too, so the program
    /// knows no egress of either direction. But each leaves where the other comes in, and the program checks this for every
    /// packet. `tracked`: what Linux says about the connection. `None`: the other direction was not noted lately. There is
    /// none if the connection is one of the router itself.
    pub fn pair(
        &mut self,
        note: &ConnectionNote,
        tracked: Option<&Tracked>,
        now: Duration,
    ) -> Option<ConnectionNote> {
        let local = &mut self.routers.get_mut(&note.router)?.local;
        let key = |tuple| key(note.router, note.protocol, tuple);
        let ways = tracked.and_then(|tracked| tracked.ways(&note.tuple));
        let other = ways.and_then(|Ways([_, back])| local.get(&key(back.arrives)));
        if let Some(other) = other.filter(|other| other.is_recent(now)) {
            return Some(ConnectionNote { egress: other.ingress, ..*note });
        }
        if local.len() >= MOST_LOCAL {
            local.retain(|_, local| local.is_recent(now));
        }
        if local.len() >= MOST_LOCAL {
            local.clear();
        }
        local.insert(key(note.tuple), Local { ingress: note.ingress, at: now });
        None
    }

    /// Decides about a connection that Linux tracks. Nothing changes yet.
    ///
    /// # Errors
    /// The reason why it stays with Linux.
    pub fn admit(
        &mut self,
        note: &ConnectionNote,
        tracked: &Tracked,
        now: Duration,
    ) -> Result<Admitted, Refusal> {
        let router = self.routers.get_mut(&note.router).ok_or(Refusal::Unknown)?;
        let devices = [note.ingress, note.egress].map(|id| router.rules.devices.get(&id));
        let [Some(from), Some(to)] = devices else { return Err(Refusal::Unknown) };
        router.admission.admit(note, tracked, [from, to], now + 2 * BEFORE)
    }

    /// Is there room for another connection of this router? One router cannot take all of it.
    pub fn has_room(&self, router: RouterId) -> bool {
        let taken = self.routers.get(&router).map_or(0, |router| router.all.len() + router.of_ipv6);
        taken < self.table.room().saturating_mul(TIMES_WHAT_IS_LEFT)
    }

    /// Writes an admitted connection into the table. It is not fast before [`Kept::begin`].
    ///
    /// # Errors
    /// There is no room, or Linux forgets such connections too soon.
    pub fn keep(
        &mut self,
        note: &ConnectionNote,
        admitted: Admitted,
        timeouts: Timeouts,
        now: Duration,
    ) -> Result<PairId, Refusal> {
        if timeouts.least_s() < SHORTEST_S {
            return Err(Refusal::ShortTimeout);
        }
        if !self.has_room(note.router) {
            return Err(Refusal::Full);
        }
        let router = self.routers.get_mut(&note.router).ok_or(Refusal::Unknown)?;
        let Admitted { ways, holds_until } = admitted;
        let [there, back] = ways.0;
        let one_way =
            |way: Way, ingress, egress| OneWay { arrives: way.arrives, leaves: way.leaves, ingress, egress };
        let connection = Connection {
            router: note.router,
            protocol: note.protocol,
            generation: router.rules.generation,
            until: 0,
            ways: [one_way(there, note.ingress, note.egress), one_way(back, note.egress, note.ingress)],
        };
        let id = self.table.insert(&connection).ok_or(Refusal::Full)?;
        let one = One {
            protocol: note.protocol,
            ways,
            interfaces: [note.ingress, note.egress],
            generation: router.rules.generation,
            timeouts,
            expires_at: now + 2 * BEFORE,
            renewed_at: now,
            renewed_with: [0; 2],
            since: now,
            used_at: now,
            packets: 0,
            liberal: [0; 2],
            ask_at: None,
            holds_until,
        };
        router.of_ipv6 += usize::from(one.is_ipv6());
        router.all.insert(id, one);
        Ok(id)
    }

    /// Makes a connection fast that was written. `tracked`: what Linux has said since. `clock`: a moment before.
    ///
    /// # Errors
    /// It has ended meanwhile, or Linux is about to forget it. Then it is out of the table.
    pub fn begin(
        &mut self,
        note: &ConnectionNote,
        id: PairId,
        tracked: &Tracked,
        clock: Clock,
    ) -> Result<(), Refusal> {
        let router = self.routers.get_mut(&note.router).ok_or(Refusal::Unknown)?;
        let one = router.all.get_mut(&id).ok_or(Refusal::Unknown)?;
        let least = one.timeouts.least();
        let left = Duration::from_secs(tracked.expires_s.into()).min(least);
        if self.table.ended(id) || left < 2 * BEFORE {
            self.remove(note.router, id);
            return Err(Refusal::NotEstablished);
        }
        one.expires_at = clock.now + left;
        // Linux may have set a shorter timeout than usual. Then it is renewed sooner.
        one.renewed_at = one.expires_at.saturating_sub(least);
        self.table.set_until(id, clock.until(one.valid_until()));
        for way in &one.ways.0 {
            router.refused.remove(&key(note.router, note.protocol, way.arrives));
            router.local.remove(&key(note.router, note.protocol, way.arrives));
        }
        Ok(())
    }

    /// Remembers why a connection stays with Linux.
    pub fn refuse(&mut self, note: &ConnectionNote, why: Refusal, now: Duration) {
        let Some(router) = self.routers.get_mut(&note.router) else { return };
        if router.refused.len() >= MOST_REFUSED {
            router.refused.retain(|_, refused| now < refused.at + ASK_AGAIN);
        }
        if router.refused.len() >= MOST_REFUSED {
            router.refused.clear();
        }
        let key = key(note.router, note.protocol, note.tuple);
        let (at, asked) = match router.refused.get(&key) {
            // It was noted again before its time.
            Some(old) if !why.is_lasting() && old.ask_at().is_some_and(|at| now < at) => (old.at, old.asked),
            Some(old) => (now, old.asked + 1),
            None => (now, 1),
        };
        router.refused.insert(key, Refused { note: *note, why, at, asked });
    }

    /// Connections about which Linux is asked again, because they were too new. Their packets need not be noted for this.
    pub fn ask_again(&self, now: Duration) -> Vec<ConnectionNote> {
        let due = |refused: &&Refused| refused.ask_at().is_some_and(|at| at <= now);
        let of_router = |router: &Router| {
            let due = router.refused.values().filter(due).take(MOST_AGAIN);
            due.map(|refused| refused.note).collect::<Vec<_>>()
        };
        self.routers.values().flat_map(of_router).collect()
    }

    /// Linux has forgotten a connection.
    pub fn destroyed(&mut self, router: RouterId, protocol: u8, tuples: &[Tuple; 2]) {
        let ids: Vec<_> = tuples
            .iter()
            .filter_map(|t| self.table.find(&key(router, protocol, *t)))
            .map(|(id, _)| id)
            .collect();
        ids.into_iter().for_each(|id| self.remove(router, id));
    }

    /// The timeouts that Linux would have set for packets of this router's connections that it has not seen. Closing
    /// connections have none.
    pub fn owed(&mut self, router: RouterId, now: Duration) -> Vec<Refresh> {
        let Some(router) = self.routers.get_mut(&router) else { return Vec::new() };
        let of = |(id, one): (&PairId, &mut One)| {
            let timeout_s = one.owed(self.table.counts(*id), 0, now)?;
            let (protocol, tuple) = (one.protocol, one.ways.0[0].arrives);
            (!self.table.is_closing(*id)).then_some(Refresh { protocol, tuple, timeout_s })
        };
        router.all.iter_mut().filter_map(of).collect()
    }

    /// Any connection of the router may have ended: reports were lost, or a setting has changed.
    pub fn drop_connections(&mut self, router: RouterId) {
        let Some(router) = self.routers.get_mut(&router) else { return };
        router.waiting.clear();
        router.of_ipv6 = 0;
        let all = std::mem::take(&mut router.all);
        self.take_out(all);
    }

    /// Takes a connection out. Its packets go to Linux.
    pub fn remove(&mut self, router: RouterId, id: PairId) {
        if let Some(router) = self.routers.get_mut(&router) {
            let removed = router.all.remove(&id);
            router.of_ipv6 -= usize::from(removed.is_some_and(|one| one.is_ipv6()));
        }
        self.dirty |= self.table.remove(id);
    }

    /// Looks at all connections: drops those that have ended or are idle. Returns what Linux must be told, by router.
    pub fn look(&mut self, clock: Clock) -> BTreeMap<RouterId, Due> {
        let mut due = BTreeMap::new();
        let mut over = Vec::new();
        for (id_of_router, router) in &mut self.routers {
            let mut of_router = Due::default();
            let generation = router.rules.generation;
            for (id, one) in &mut router.all {
                if one.holds_until.is_some_and(|until| until <= clock.now + BEFORE) {
                    // The proof must be made again.
                    (one.generation, one.holds_until) = (NO_GENERATION, None);
                    self.table.set_generation(*id, NO_GENERATION);
                    router.waiting.push(*id);
                }
                // Linux sees the packets of those that wait.
                let waits = one.generation != generation;
                let counts = self.table.counts(*id);
                one.count(counts, clock.now);
                if !waits && !self.table.is_closing(*id) {
                    one.look(*id, counts, clock.now, &mut of_router);
                }
                if self.table.was_reset(*id) {
                    let tuple = one.ways.0[0].arrives;
                    let version = if tuple.source.is_ipv4() { Version::V4 } else { Version::V6 };
                    // The rules may have been others when the RST came.
                    let may_be_dropped =
                        waits || router.rules.firewall.rules.may_drop_before_conntrack(version);
                    of_router.reset.push(Reset { tuple, may_be_dropped });
                }
                if self.table.ended(*id) || !one.stays(clock.now) {
                    over.push((*id_of_router, *id));
                }
            }
            if of_router != Due::default() {
                due.insert(*id_of_router, of_router);
            }
        }
        over.into_iter().for_each(|(router, id)| self.remove(router, id));
        due
    }

    /// A second has passed: each router may have its share of steps for proofs.
    pub fn renew_proofs(&mut self) {
        let steps = (STEPS_PER_S / self.routers.len().max(1) as u32).max(LEAST_STEPS);
        self.routers.values_mut().for_each(|router| router.admission.renew(steps));
    }

    /// Linux has set the timeout of a connection to so many seconds, or not. `clock`: a moment before it did.
    pub fn refreshed(&mut self, router: RouterId, id: PairId, timeout_s: u32, done: bool, clock: Clock) {
        let counts = self.table.counts(id);
        let one = self.routers.get_mut(&router).and_then(|router| router.all.get_mut(&id));
        match one {
            Some(one) if done => {
                let timeout = Duration::from_secs(timeout_s.into());
                (one.renewed_at, one.renewed_with) = (clock.now, counts.map(|(packets, _)| packets));
                one.expires_at = clock.now + timeout.min(one.timeouts.least());
                self.table.set_until(id, clock.until(one.valid_until()));
            }
            Some(_) => self.remove(router, id),
            None => (),
        }
    }

    /// The flags of TCP were set again, or not.
    pub fn made_liberal(&mut self, router: RouterId, id: PairId, done: bool) {
        let bytes = self.table.counts(id).map(|(_, bytes)| bytes);
        match self.routers.get_mut(&router).and_then(|router| router.all.get_mut(&id)) {
            Some(one) if done => (one.liberal, one.ask_at) = (bytes, None),
            Some(_) => self.remove(router, id),
            None => (),
        }
    }

    /// Ends the current epoch. After a grace period, [`Kept::reuse`] frees what was removed in it. `None`: nothing was.
    pub fn seal(&mut self) -> Option<Epoch> {
        std::mem::take(&mut self.dirty).then(|| self.table.seal())
    }

    pub fn reuse(&mut self, epoch: Epoch) {
        self.table.reuse(epoch);
    }

    /// Are there no connections to look at?
    pub fn is_idle(&self) -> bool {
        self.routers.values().all(|router| router.all.is_empty() && router.refused.is_empty())
    }

    /// The number of connections of a router, with those that wait.
    pub fn count(&self, router: RouterId) -> usize {
        self.routers.get(&router).map_or(0, |router| router.all.len())
    }

    /// The number of fast connections of a router.
    pub fn fast(&self, router: RouterId) -> usize {
        self.routers
            .get(&router)
            .map_or(0, |router| router.all.values().filter(|one| router.is_fast(one)).count())
    }

    /// Fast connections, and those that were refused lately.
    pub fn views(&self) -> impl Iterator<Item = View> + '_ {
        self.routers.iter().flat_map(|(id, router)| {
            let all = router.all.iter().map(|(pair, one)| View {
                router: *id,
                protocol: one.protocol,
                arrives: one.ways.0[0].arrives,
                state: match router.is_fast(one) {
                    true => one.fast(self.table.counts(*pair)),
                    false => State::Refused { why: Refusal::Waiting, at: one.used_at },
                },
            });
            let refused = router.refused.iter().map(|(key, Refused { why, at, .. })| View {
                router: *id,
                protocol: key.protocol,
                arrives: key.tuple,
                state: State::Refused { why: why.clone(), at: *at },
            });
            all.chain(refused)
        })
    }
}

fn key(router: RouterId, protocol: u8, tuple: Tuple) -> ConnectionKey {
    ConnectionKey { router, protocol, tuple }
}

impl One {
    /// Whether it is an IPv6 connection. Both directions always are.
    pub(super) fn is_ipv6(&self) -> bool {
        self.ways.0[0].arrives.source.is_ipv6()
    }

    /// What Linux would have set the timeout to at the last packet. Data of TCP without any answer has a shorter one.
    fn timeout_s(&self, counts: [(u64, u64); 2]) -> u32 {
        let has_none = |way: usize| counts[way].0 == self.renewed_with[way];
        if self.protocol == TCP && (has_none(0) || has_none(1)) {
            return self.timeouts.least_s.min(self.timeouts.usual_s);
        }
        self.timeouts.usual_s
    }

    fn count(&mut self, counts: [(u64, u64); 2], now: Duration) {
        let packets = counts[0].0 + counts[1].0;
        if packets != self.packets {
            (self.packets, self.used_at) = (packets, now);
        }
    }

    /// Looks at what was counted.
    fn look(&self, id: PairId, counts: [(u64, u64); 2], now: Duration, due: &mut Due) {
        let is_used = self.used_at > self.renewed_at && self.packets > self.renewed_with.iter().sum();
        let quiet = now.saturating_sub(self.used_at);
        let is_old = now.saturating_sub(self.renewed_at) >= self.timeouts.renewed_after();
        if is_used && (is_old || quiet >= QUIET) {
            let timeout_s = self.timeout_s(counts).saturating_sub(quiet.as_secs() as u32).max(1);
            let (protocol, tuple) = (self.protocol, self.ways.0[0].arrives);
            due.refresh.push((id, Refresh { protocol, tuple, timeout_s }));
        }
        let has_wrapped = |way: usize| counts[way].1.saturating_sub(self.liberal[way]) >= SEQUENCE_BYTES;
        let is_asked = self.ask_at.is_some_and(|at| at <= now);
        if self.protocol == TCP && (has_wrapped(0) || has_wrapped(1) || is_asked) {
            due.liberal.push((id, self.ways.0[0].arrives));
        }
    }

    /// The program must not forward it after this time.
    fn valid_until(&self) -> Duration {
        self.holds_until.map_or(self.expires_at, |until| until.min(self.expires_at))
    }

    /// Is it used, and does Linux still know it?
    fn stays(&self, now: Duration) -> bool {
        now < self.used_at + IDLE && now + BEFORE < self.expires_at
    }

    /// The timeout in seconds that Linux must be given because of packets that it has not seen; `None`: it has seen the last
    /// one. `left_s`: Linux's timeout at `now`.
    pub(super) fn owed(&mut self, counts: [(u64, u64); 2], left_s: u32, now: Duration) -> Option<u32> {
        self.count(counts, now);
        let has_any = self.packets > self.renewed_with.iter().sum();
        let quiet_s = now.saturating_sub(self.used_at).as_secs() as u32;
        let timeout_s = self.timeout_s(counts).saturating_sub(quiet_s);
        (has_any && timeout_s > left_s).then_some(timeout_s)
    }

    fn fast(&self, counts: [(u64, u64); 2]) -> State {
        State::Fast {
            leaves: self.ways.0[0].leaves,
            since: self.since,
            expires_at: self.renewed_at + Duration::from_secs(self.timeouts.usual_s.into()),
            counts,
        }
    }
}

impl Router {
    pub(super) fn is_fast(&self, one: &One) -> bool {
        one.generation == self.rules.generation
    }
}
