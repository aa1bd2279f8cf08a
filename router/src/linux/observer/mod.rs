//! The observer turns the reports of Linux, in every namespace involved, into [`Event`]s.
//!
//! ```text
//! discovery ── namespaces that hold a router ──► spaces ── one per namespace: ear, known state ──► events
//!                                                  ▲
//!                 survey ── one reading of a namespace, by a thread of its own
//! ```
//!
//! | file | task |
//! |---|---|
//! | [`discovery`] | choosing the namespaces to watch |
//! | [`ports`] | ports and their problems |
//! | [`space`] | one namespace: its state, visits, messages, limits |
//! | [`ear`] | listening to a namespace without keeping it alive |
//! | [`visits`] | other threads that visit namespaces: how many at a time, and their results |
//! | [`survey`] | what one visit reads |
//! | [`siblings`] | metrics of IPv6 next hops that no dump shows |
//! | [`quota`] | limits of a namespace |
//! | [`reader`] | queries to Linux from another thread |
//! | [`settings`], [`sysctl`] | effective per-device settings |
//! | [`due`] | readings that are due, and their times |
//! | [`unread`] | parts that could not be read |
//! | [`poller`] | epoll, inotify |
//!
//! The kernel does not report everything, so the observer checks two things at intervals. Once a second, it reads
//! settings whose changes no message reports. Every two to thirty seconds, it looks for new and vanished namespaces.
//! More processes make such a look slower, so it then happens less often.
//!
//! Nothing here keeps a namespace alive or waits for one: other threads do the reading, and namespaces take turns with
//! their messages. A namespace over its [`Quota`] is left to the kernel.

mod discovery;
mod due;
mod ear;
pub mod poller;
mod ports;
mod quota;
mod reader;
mod settings;
mod siblings;
mod space;
mod survey;
pub mod sysctl;
#[cfg(test)]
mod tests;
mod unread;
mod visits;

use crate::{
    base::{PortName, clock::monotonic, conditions::Condition},
    linux::{
        hazards::bpf,
        multipath::MultipathKeys,
        netns::{self, FoundNamespace, Key, NamespaceRef, Source},
    },
};
use discovery::Left;
use ear::Ear;
use logic::{
    observe::{AttachedPort, Event, Namespace, NamespaceId, Owner},
    plan::PortId,
};
pub use poller::Waker;
use poller::{DirectoryWatch, Poller};
pub use quota::Quota;
pub use reader::{Hardware, Known, Question, Reader, Sent, Standing};
use space::{Peers, Space};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    os::fd::{AsRawFd, RawFd},
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};
use sysctl::Sysctls;
use unread::{Part, unread};
use visits::Done;

/// The namespace of the ports.
pub const HOST: NamespaceId = 0;

const TICK: Duration = Duration::from_secs(1);
/// The observer lists namespaces, and reads settings and programs of devices, every this many ticks.
const SLOW_TICKS: u64 = 2;
/// A look through the namespaces takes longer with more processes (`netns::list`). Without a sign of change, looks take
/// at most one part in this many of the time. They still happen at least once in [`DISCOVERY_PAUSE`].
const DISCOVERY_SHARE: u32 = 400;
const DISCOVERY_PAUSE: Duration = Duration::from_secs(30);
/// The delay from a sign of change to the look through the namespaces.
const DISCOVERY_DEBOUNCE: Duration = Duration::from_millis(10);
/// The approximate number of events returned at once; more stay in the kernel's buffers. Applying one takes 2 to 3 us,
/// and later work waits for that.
pub const EVENTS_PER_POLL: usize = 4096;
/// Descriptors that a namespace needs: sockets, settings.
const DESCRIPTORS: u64 = 24;
/// After results with this many routes, other messages have their turn. The control thread takes in a route in 0.7 us.
const ROUTES_AT_ONCE: usize = 1 << 13;
/// Neighbours that can wait for revalidation in one namespace.
const PROBES: usize = 4096;
/// The longest time for the first reading of everything.
const START: Duration = Duration::from_secs(60);
/// The same for other namespaces than the host. Their events come later.
const START_OF_OTHERS: Duration = Duration::from_secs(2);
const DIRECTORY_TOKEN: u64 = u64::MAX;
const WAKER_TOKEN: u64 = u64::MAX - 1;
const DONE_TOKEN: u64 = u64::MAX - 2;
/// The descriptors of a namespace, as parts of tokens.
const ROUTE: u64 = 0;
const NETFILTER: u64 = 1;
const XFRM: u64 = 2;
const PROCESS: u64 = 3;

fn token(id: NamespaceId, what: u64) -> u64 {
    u64::from(id) << 2 | what
}

/// Why observing failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespace of a configured router cannot be opened.
    #[error("router {0}: no such network namespace: {1}; {there}", there = named_namespaces())]
    NoNamespace(String, io::Error),
    /// The system refused a call.
    #[error("{0}: {1}")]
    System(&'static str, #[source] io::Error),
}

fn named_namespaces() -> String {
    let names: Vec<_> = netns::list().into_values().filter(|f| f.pid.is_none()).map(|f| f.name).collect();
    if names.is_empty() {
        return "no namespace has a name; give pid:NUMBER of a process in it".into();
    }
    format!("those with a name are: {}", names.join(", "))
}

/// The ports and namespaces to observe.
#[derive(Clone, Debug)]
pub struct ObserverConfig {
    /// Names of devices in the current namespace. The position here is the [port number](logic::plan::PortId).
    pub ports: Vec<PortName>,
    /// Namespaces that are watched regardless of their devices.
    pub routers: Vec<Source>,
    /// The bytes of host events that the kernel may buffer for us. Unused, the buffer costs nothing.
    pub receive_buffer_bytes: usize,
    /// The same for another namespace, which can fill its buffer at any time.
    pub tenant_receive_buffer_bytes: usize,
    /// The limits of a namespace other than the host's.
    pub quota: Quota,
    /// The keys with which Linux hashes packets of multipath routes.
    pub multipath_keys: MultipathKeys,
}

impl Default for ObserverConfig {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            routers: Vec::new(),
            receive_buffer_bytes: 64 << 20,
            tenant_receive_buffer_bytes: 8 << 20,
            quota: Quota::default(),
            multipath_keys: MultipathKeys::default(),
        }
    }
}

struct PortState {
    wanted: PortName,
    /// The port as last reported.
    port: Option<AttachedPort>,
}

/// A completed reading of the policies and settings of a namespace: [`Observer::read_policy`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRead {
    pub namespace: NamespaceId,
    pub took: Duration,
    /// Why they could not be read.
    pub error: Option<String>,
}

/// Watches Linux. All decisions happen in calls of the owner; other threads only read.
pub struct Observer {
    config: ObserverConfig,
    poller: Poller,
    waker: Waker,
    woken: bool,
    directory: Option<DirectoryWatch>,
    spaces: BTreeMap<NamespaceId, Space>,
    peers: Arc<Peers>,
    /// The results of other threads, and the waker that announces them.
    done: (Sender<Done>, Receiver<Done>),
    done_waker: Waker,
    /// The numbers of namespaces being visited, besides the host, by owner.
    visits: BTreeMap<Owner, usize>,
    /// The namespace that was visited last: others come first.
    visited: NamespaceId,
    /// A look through the namespaces is under way.
    looking: bool,
    ports: BTreeMap<PortId, PortState>,
    /// The namespaces of veth peers of ports, by the number under which the host knows them.
    peer_places: BTreeMap<i32, Option<(Key, FoundNamespace)>>,
    next_id: NamespaceId,
    /// Namespaces that were looked into and hold nothing of interest.
    dull: BTreeSet<Key>,
    /// Namespaces that should be observed but cannot be.
    unobserved: BTreeMap<Key, Condition>,
    /// Owners with more namespaces than are watched.
    crowds: BTreeMap<Owner, Left>,
    /// A process through which a namespace was found ended before the observer could wait for its end.
    unwatched: bool,
    own: Key,
    out: Vec<Event>,
    /// Completed policy readings, returned once `out` has been returned.
    policies: Vec<PolicyRead>,
    discover_at: Option<Instant>,
    discover_not_before: Instant,
    /// When to look through the namespaces without a sign of change.
    discover_idly_at: Instant,
    /// When the last look began.
    look_began: Instant,
    tick_at: Instant,
    ticks: u64,
    /// The count of forged messages at the last log line.
    forged_told: u64,
}

impl AsRawFd for Observer {
    /// Readable when [`Observer::poll`] has work to do, timers aside ([`Observer::next_timer`]).
    fn as_raw_fd(&self) -> RawFd {
        self.poller.as_raw_fd()
    }
}

impl Observer {
    /// Reads everything; the first [`Observer::poll`] returns the result.
    ///
    /// # Errors
    /// A configured namespace does not exist, or the system refuses (root is needed).
    pub fn new(config: ObserverConfig) -> Result<Observer, Error> {
        raise_descriptor_limit();
        let own = NamespaceRef::own().map_err(|e| Error::System("cannot see the current namespace", e))?;
        let mut observer = Observer::unread(config, own.key())?;
        observer.watch_host(own).map_err(|e| Error::System("cannot observe the current namespace", e))?;
        observer.refresh_ports();
        for router in &observer.config.routers {
            router.key().map_err(|e| Error::NoNamespace(router.to_string(), e))?;
        }
        let tokens = [(&observer.waker, WAKER_TOKEN), (&observer.done_waker, DONE_TOKEN)];
        for (waker, token) in tokens {
            observer.poller.add(waker, token).map_err(|e| Error::System("epoll", e))?;
        }
        observer.watch_directory();
        observer.discover(true);
        observer.settle();
        observer.list_programs();
        Ok(observer)
    }

    /// Follows other settings: these ports, by number, these configured `routers`, and these limits. Routers that are gone
    /// from the list are watched as long as they have a device on a port.
    ///
    /// A new port may have had programs and other devices on it for a long time. They are reported together with the port.
    /// So this waits as [`Observer::new`] does: usually about 10 ms, and 2 s if a namespace is slow.
    pub fn configure(&mut self, ports: &BTreeMap<PortId, PortName>, routers: Vec<Source>, quota: Quota) {
        let stays = |id: &PortId, state: &PortState| ports.get(id) == Some(&state.wanted);
        for (id, _) in self.ports.iter().filter(|(id, state)| !stays(id, state) && state.port.is_some()) {
            self.out.push(Event::PortGone(*id));
        }
        self.ports.retain(|id, state| stays(id, state));
        let is_new = ports.keys().any(|id| !self.ports.contains_key(id));
        for (id, wanted) in ports {
            self.ports.entry(*id).or_insert_with(|| PortState { wanted: wanted.clone(), port: None });
        }
        (self.config.routers, self.config.quota) = (routers, quota);
        for (id, space) in &mut self.spaces {
            space.set_quota(quota.of(*id));
        }
        self.discover(true);
        if is_new {
            self.settle();
        }
    }

    fn unread(config: ObserverConfig, own: Key) -> Result<Observer, Error> {
        let port = |wanted: &PortName| PortState { wanted: wanted.clone(), port: None };
        let waker = || Waker::new().map_err(|e| Error::System("eventfd", e));
        Ok(Observer {
            poller: Poller::new().map_err(|e| Error::System("epoll", e))?,
            waker: waker()?,
            woken: false,
            directory: None,
            spaces: BTreeMap::new(),
            peers: Arc::default(),
            done: channel(),
            done_waker: waker()?,
            visits: BTreeMap::new(),
            visited: HOST,
            looking: false,
            ports: (0..).zip(config.ports.iter().map(port)).collect(),
            peer_places: BTreeMap::new(),
            next_id: HOST,
            dull: BTreeSet::new(),
            unobserved: BTreeMap::new(),
            crowds: BTreeMap::new(),
            unwatched: false,
            own,
            out: Vec::new(),
            policies: Vec::new(),
            discover_at: None,
            discover_not_before: Instant::now(),
            discover_idly_at: Instant::now(),
            look_began: Instant::now(),
            tick_at: Instant::now() + TICK,
            ticks: 0,
            forged_told: 0,
            config,
        })
    }

    fn watch_host(&mut self, own: NamespaceRef) -> io::Result<()> {
        let namespace =
            Namespace { name: "host".into(), host: true, configured: false, owner: Owner::Machine };
        let ear = Ear::here(self.config.receive_buffer_bytes)?;
        let id = self.watch(own, namespace, ear, Sysctls::open()?)?;
        self.settle();
        let space = self.spaces.get(&id).ok_or(io::ErrorKind::NotFound)?;
        if space.announced {
            return Ok(());
        }
        let why = space.unread.sentences().next();
        Err(io::Error::other(why.unwrap_or_else(|| "it could not be read".into())))
    }

    /// Waits until everything due has been read, at the start and after new ports. The wait is shorter for other namespaces
    /// than the host's, because they may be slow on purpose.
    fn settle(&mut self) {
        let began = Instant::now();
        loop {
            let now = Instant::now();
            self.begin_visits(now);
            let reads_host = self.spaces.get(&HOST).is_some_and(Space::is_visited);
            let end = began + if reads_host { START } else { START_OF_OTHERS };
            if reads_host || self.looking || !self.visits.is_empty() {
                let Ok(done) = self.done.1.recv_timeout(end.saturating_duration_since(now)) else { return };
                self.take_done(done, now);
            } else if self.discover_at.take().is_some() {
                self.discover(true);
            } else {
                return;
            }
        }
    }

    /// When [`Observer::poll`] must be called even if nothing is readable.
    pub fn next_timer(&self) -> Instant {
        if !self.out.is_empty() {
            return Instant::now();
        }
        let due = self.spaces.values().filter_map(|s| s.wakes_at(self.may_visit(s.id)));
        let discover_at = self.discover_at.filter(|_| !self.looking);
        due.chain(discover_at).chain([self.tick_at]).min().unwrap_or(self.tick_at)
    }

    /// The waker ends an [`Observer::poll`] at once, either the current one or the next.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns events, in order, as soon as there are some. Returns none after `timeout` or after a use of the waker.
    ///
    /// # Errors
    /// Only when the system no longer lets us wait.
    pub fn poll(&mut self, timeout: Duration) -> io::Result<Vec<Event>> {
        let deadline = Instant::now() + timeout;
        loop {
            let now = Instant::now();
            let until = deadline.min(self.next_timer());
            let ready = self.poller.wait(until.saturating_duration_since(now))?;
            // However many others are ready, the host's messages and the results of other threads are read.
            if !ready.is_empty() {
                self.take_ready(token(HOST, ROUTE));
                self.take_ready(DONE_TOKEN);
            }
            for token in ready {
                self.take_ready(token);
                if self.out.len() >= EVENTS_PER_POLL {
                    break;
                }
            }
            self.run_timers();
            let told = !self.out.is_empty() || !self.policies.is_empty();
            if told || std::mem::take(&mut self.woken) || Instant::now() >= deadline {
                return Ok(std::mem::take(&mut self.out));
            }
        }
    }

    fn take_ready(&mut self, token: u64) {
        let now = Instant::now();
        if token == WAKER_TOKEN {
            self.waker.clear();
            self.woken = true;
            return;
        }
        if token == DIRECTORY_TOKEN {
            self.directory.iter().for_each(DirectoryWatch::clear);
            self.discover_soon(now);
            return;
        }
        if token == DONE_TOKEN {
            self.done_waker.clear();
            let mut routes = 0;
            while let Ok(done) = self.done.1.try_recv() {
                routes += done.routes();
                self.take_done(done, now);
                if routes > ROUTES_AT_ONCE {
                    self.done_waker.wake();
                    break;
                }
            }
            return;
        }
        let id = (token >> 2) as NamespaceId;
        let Some(space) = self.spaces.get_mut(&id) else { return };
        match token & 3 {
            ROUTE if space.listens() => self.hear(id, now),
            ROUTE => (),
            side @ (NETFILTER | XFRM) => {
                if let Some(ear) = &mut space.ear {
                    let socket = if side == NETFILTER { &mut ear.netfilter } else { &mut ear.xfrm };
                    // If one call cannot read everything, the socket stays readable.
                    socket.as_mut().map(|socket| socket.discard());
                }
                space.due.hazards_soon(now);
            }
            _ => {
                space.process = None;
                self.discover_at = Some(now);
            }
        }
    }

    /// Reads the messages of a namespace, up to its turn.
    fn hear(&mut self, id: NamespaceId, now: Instant) {
        let Some(space) = self.spaces.get_mut(&id) else { return };
        if let Err(error) = space.take_events(&mut self.out, now) {
            tracing::warn!(namespace = space.namespace.name, %error, "cannot read events; reading everything again");
            space.distrust(Part::State, error.to_string(), &mut self.out);
            space.due.dump_later(now);
        }
        self.policies.extend(space.take_policy());
        self.follow(id, now);
    }

    /// Acts on the reports of a namespace.
    fn follow(&mut self, id: NamespaceId, now: Instant) {
        let Some(space) = self.spaces.get_mut(&id) else { return };
        if !space.listens() {
            self.listen(id, false);
        }
        let Some(space) = self.spaces.get_mut(&id) else { return };
        if space.ended {
            tracing::info!(id, namespace = space.namespace.name, "the namespace is gone");
            self.forget(id);
            self.discover_at = Some(now);
        } else if std::mem::take(&mut space.topology_changed) {
            self.discover_soon(now);
        }
    }

    /// Sets whether the messages of a namespace wake us. While they do not, only its own buffer fills.
    fn listen(&mut self, id: NamespaceId, on: bool) {
        let Some(ear) = self.spaces.get(&id).and_then(|space| space.ear.as_ref()) else { return };
        let result = match on {
            true => self.poller.add(&ear.route, token(id, ROUTE)),
            false => self.poller.remove(&ear.route),
        };
        // An error means that the poller already has this state.
        let _ = result;
    }

    fn run_timers(&mut self) {
        let now = Instant::now();
        self.begin_visits(now);
        if !self.looking && self.discover_at.take_if(|at| *at <= now).is_some() {
            self.discover(true);
        }
        if self.tick_at <= now {
            self.tick_at = now + TICK;
            self.tick();
        }
    }

    fn tick(&mut self) {
        self.ticks += 1;
        let slow = self.ticks.is_multiple_of(SLOW_TICKS);
        if slow {
            self.watch_directory();
            self.discover_idly();
            self.list_programs();
        }
        for space in self.spaces.values_mut() {
            space.tick(slow, &mut self.out);
        }
        let waiting = self.spaces.values().filter(|space| space.must_be_heard()).map(|space| space.id);
        for id in waiting.collect::<Vec<_>>() {
            self.hear(id, Instant::now());
        }
        let forged = self.forged();
        // Each line needs twice as many forged messages as the one before.
        if forged > self.forged_told.saturating_mul(2) {
            self.forged_told = forged;
            tracing::warn!(count = forged, "dropped netlink messages that pretend to come from the kernel");
        }
    }

    fn discover_idly(&mut self) {
        // A failed watch is tried again soon.
        if Instant::now() >= self.discover_idly_at || self.unwatched || !self.unobserved.is_empty() {
            self.discover(false);
        }
    }

    fn discover_soon(&mut self, now: Instant) {
        self.discover_at.get_or_insert((now + DISCOVERY_DEBOUNCE).max(self.discover_not_before));
    }

    fn watch_directory(&mut self) {
        if self.directory.is_none()
            && let Ok(watch) = DirectoryWatch::new(Path::new(netns::NAMED))
            && self.poller.add(&watch, DIRECTORY_TOKEN).is_ok()
        {
            self.directory = Some(watch);
        }
    }

    /// Begins to observe a namespace. Its [`Event::Namespace`] and [`Event::Dump`] follow when it has been read.
    fn watch(
        &mut self,
        place: NamespaceRef,
        namespace: Namespace,
        ear: Ear,
        sysctls: Sysctls,
    ) -> io::Result<NamespaceId> {
        let id = self.next_id;
        self.poller.add(&ear.route, token(id, ROUTE))?;
        for (side, what) in [(&ear.netfilter, NETFILTER), (&ear.xfrm, XFRM)] {
            if let Some(side) = side {
                self.poller.add(side, token(id, what))?;
            }
        }
        let quota = self.config.quota.of(id);
        self.next_id += 1;
        let keys = self.config.multipath_keys;
        self.spaces.insert(id, Space::new(id, place, namespace, (Some(ear), sysctls), keys, quota));
        self.renew_peers();
        Ok(id)
    }

    /// Stops observing a namespace.
    fn forget(&mut self, id: NamespaceId) {
        let Some(space) = self.spaces.remove(&id) else { return };
        if space.announced {
            self.out.push(Event::NamespaceGone(id));
        }
        if space.owes_policy() {
            self.policies.push(PolicyRead { namespace: id, took: Duration::ZERO, error: None });
        }
        self.renew_peers();
        for space in self.spaces.values_mut() {
            space.forget_peer(id, &mut self.out);
        }
    }

    fn renew_peers(&mut self) {
        self.peers = Arc::new(self.spaces.values().map(|s| (s.id, s.place.clone())).collect());
    }

    /// Lists BPF netfilter programs, which the kernel does not report.
    fn list_programs(&mut self) {
        let programs = bpf::netfilter_programs();
        for space in self.spaces.values_mut() {
            space.hazards.set_programs(&programs);
            space.refresh_settings(&mut self.out);
        }
    }

    /// Makes the kernel revalidate a neighbour that the fast path uses, as if the kernel had just sent to it. Use this
    /// only for [`stale`](logic::observe::Neighbour::stale) entries: a permanent one would lose its permanence.
    ///
    /// The revalidation starts soon. If there is no such entry, nothing happens.
    ///
    /// # Errors
    /// The namespace is not observed, or too many neighbours wait for revalidation there.
    pub fn probe_neighbour(&mut self, id: NamespaceId, ifindex: u32, address: IpAddr) -> io::Result<()> {
        let space = self.spaces.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        if space.asked.probes.len() >= PROBES {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        space.asked.probes.push((ifindex, address));
        Ok(())
    }

    /// Requests that the routes of a namespace are read again soon.
    pub fn read_routes_again(&mut self, id: NamespaceId) {
        if let Some(space) = self.spaces.get_mut(&id) {
            space.due.routes_end(Instant::now(), Duration::ZERO);
        }
    }

    /// Takes in ICMP errors that came to the router of a namespace: their destinations, and the number of further
    /// errors over a limit (`lost`). The observer soon asks Linux about the destinations, and [`Event::Learned`]
    /// reports what Linux has learned.
    pub fn look_at_destinations(&mut self, id: NamespaceId, destinations: &BTreeSet<IpAddr>, lost: u64) {
        if let Some(space) = self.spaces.get_mut(&id) {
            destinations.iter().for_each(|destination| space.learned.note(*destination, monotonic()));
            space.learned.lose(lost);
        }
    }

    /// Requests a reading of a namespace's policies and settings, by a visit that begins after the call.
    /// [`Observer::policies_read`] reports its end. A namespace that is gone has no policies.
    pub fn read_policy(&mut self, id: NamespaceId) {
        self.policies.retain(|read| read.namespace != id);
        match self.spaces.get_mut(&id) {
            Some(space) => space.ask_policy(),
            None => self.policies.push(PolicyRead { namespace: id, took: Duration::ZERO, error: None }),
        }
        if id == HOST {
            self.list_programs();
        }
        self.begin_visits(Instant::now());
    }

    /// Returns the policy readings completed by the last [`Observer::poll`], which has returned all their events.
    pub fn policies_read(&mut self) -> Vec<PolicyRead> {
        if self.out.is_empty() { std::mem::take(&mut self.policies) } else { Vec::new() }
    }

    /// The place of a namespace under observation.
    pub fn place(&self, id: NamespaceId) -> Option<NamespaceRef> {
        self.spaces.get(&id).map(|space| space.place.clone())
    }

    /// Namespaces that are not fully observed. Nothing is accelerated there until they are.
    pub fn conditions(&self) -> Vec<Condition> {
        let of = |space: &Space| {
            space.unread.sentences().map(|text| unread(&space.namespace.name, text)).collect::<Vec<_>>()
        };
        let known = self.spaces.values().flat_map(of);
        let crowd = |(owner, left): (&Owner, &Left)| {
            let Left { refused, unseen } = *left;
            let over = format!(
                "{refused} may have devices on ports, but the limit of one owner or of all owners is reached; raise \
                 limits.namespaces_per_owner, or name them in routers"
            );
            let late = format!("there was no time to check {unseen}");
            let parts = [(refused, over), (unseen, late)].into_iter().filter(|(number, _)| *number > 0);
            let mut texts: Vec<String> = parts.map(|(_, text)| text).collect();
            texts.push("they are left to the kernel".into());
            unread(&format!("namespaces of {owner}"), texts.join("; "))
        };
        known.chain(self.unobserved.values().cloned()).chain(self.crowds.iter().map(crowd)).collect()
    }

    /// The number of messages to the sockets of all namespaces that did not come from the kernel and were dropped.
    pub fn forged(&self) -> u64 {
        self.spaces.values().map(Space::forged).sum()
    }

    /// Sets how many bytes of events the kernel may buffer for a namespace, to test an overrun.
    ///
    /// # Errors
    /// `NotFound` if it is not observed; any error of the kernel.
    pub fn set_receive_buffer(&self, id: NamespaceId, bytes: usize) -> io::Result<()> {
        let ear = self.spaces.get(&id).and_then(|space| space.ear.as_ref());
        ear.ok_or(io::ErrorKind::NotFound)?.route.set_receive_buffer(bytes)
    }
}

/// A watched namespace takes [`DESCRIPTORS`], so the usual soft limit of 1024 suffices for forty.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives across both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max.min((1024 * DESCRIPTORS).max(limit.rlim_cur));
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// A copy of an error, so that it can be reported twice.
fn same(error: &io::Error) -> io::Error {
    error
        .raw_os_error()
        .map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error)
}
