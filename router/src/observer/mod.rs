//! The observer: turns what Linux reports, in every namespace involved, into [`Event`]s.
//!
//! ```text
//! discovery ── which namespaces hold a router ──► spaces ── one per namespace: sockets, what is known of it ──► events
//! ```
//!
//! | file | what |
//! |---|---|
//! | [`discovery`] | which namespaces to watch |
//! | [`ports`] | ports, and what is wrong with them |
//! | [`space`] | one namespace: dumps, messages, lost messages |
//! | [`reader`] | Linux asked by another thread |
//! | [`settings`], [`sysctl`] | effective per-device settings |
//! | [`due`] | what is read again, and when |
//! | [`troubles`] | what could not be read, and since when |
//! | [`poller`] | epoll, inotify |
//!
//! Two things the kernel does not report are looked at now and then: settings without a message (once a second) and
//! namespaces that come and go (every two to thirty, as that takes the longer the more processes there are). A watched namespace is kept alive by our sockets in it, so one whose name
//! and processes are gone is let go of at once.

mod discovery;
mod due;
pub mod poller;
mod ports;
mod reader;
mod settings;
mod space;
pub mod sysctl;
mod troubles;

use crate::{
    config::PortName,
    hazards::bpf,
    multipath::MultipathKeys,
    netlink::neighbour,
    netns::{self, Found, Key, OpenNamespace, Source},
};
use logic::observe::{Event, Namespace, NamespaceId, Port};
pub use poller::Waker;
use poller::{DirectoryWatch, Poller};
pub use reader::{Hardware, Known, Question, Reader, Sent};
use space::{Peers, Space};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    net::IpAddr,
    os::fd::{AsRawFd, RawFd},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use troubles::What;
pub use troubles::{Trouble, clock};

/// The namespace of the ports.
pub const HOST: NamespaceId = 0;

const TICK: Duration = Duration::from_secs(1);
/// Every how many ticks namespaces are listed, and devices' settings and programs read.
const SLOW_TICKS: u64 = 2;
/// Looking through the namespaces costs more the more processes there are (`netns::list`). Without a sign of change it takes one
/// part in so many of the time, but is done every so often at least.
const DISCOVERY_SHARE: u32 = 400;
const DISCOVERY_PAUSE: Duration = Duration::from_secs(30);
/// How long after a sign of change namespaces are looked through.
const DISCOVERY_DEBOUNCE: Duration = Duration::from_millis(10);
/// Events handed out at once, about; more stay in the kernel's buffers.
const EVENTS_PER_POLL: usize = 1 << 16;
/// Descriptors a namespace needs: sockets, its file, settings.
const DESCRIPTORS: u64 = 24;
const DIRECTORY_TOKEN: u64 = u64::MAX;
const WAKER_TOKEN: u64 = u64::MAX - 1;
/// What of a namespace is readable.
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
    /// A port that is not there at the start.
    #[error("there is no network device {0} in this network namespace (see: ip link)")]
    NoPort(String),
    /// A configured router whose namespace cannot be opened.
    #[error("router {0}: no such network namespace: {1}; {there}", there = named_namespaces())]
    NoNamespace(String, io::Error),
    /// The system refused.
    #[error("{0}: {1}")]
    System(&'static str, #[source] io::Error),
}

fn named_namespaces() -> String {
    let names: Vec<_> = netns::list().into_values().filter(|f| f.pid.is_none()).map(|f| f.name).collect();
    if names.is_empty() {
        return "none has a name: give pid:NUMBER of a process in it".into();
    }
    format!("by name there are: {}", names.join(", "))
}

/// What to observe.
#[derive(Clone, Debug)]
pub struct ObserverConfig {
    /// Names of devices in the current namespace; their place here is their [port number](logic::plan::PortId).
    pub ports: Vec<PortName>,
    /// Namespaces that are watched whatever they hold.
    pub routers: Vec<Source>,
    /// How much the kernel may hold back for us per namespace, in bytes; unused, it costs nothing.
    pub receive_buffer_bytes: usize,
    /// By which Linux hashes packets of multipath routes.
    pub multipath_keys: MultipathKeys,
}

impl Default for ObserverConfig {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            routers: Vec::new(),
            receive_buffer_bytes: 64 << 20,
            multipath_keys: MultipathKeys::default(),
        }
    }
}

struct PortState {
    wanted: PortName,
    /// As last reported.
    port: Option<Port>,
}

/// Watches Linux. Everything happens in the calls of its owner; nothing runs in the background.
pub struct Observer {
    config: ObserverConfig,
    poller: Poller,
    waker: Waker,
    woken: bool,
    directory: Option<DirectoryWatch>,
    spaces: BTreeMap<NamespaceId, Space>,
    peers: Peers,
    ports: Vec<PortState>,
    /// Where veth peers of ports are, by the number by which the host knows the namespace.
    peer_places: BTreeMap<i32, Option<(Key, Found)>>,
    next_id: NamespaceId,
    /// Namespaces looked into and found to be of no interest.
    dull: BTreeSet<Key>,
    /// Namespaces that should be observed, and cannot be.
    unobserved: BTreeMap<Key, Trouble>,
    /// A process by which a namespace is known had ended when it was to be waited for.
    unwatched: bool,
    own: Key,
    out: Vec<Event>,
    discover_at: Option<Instant>,
    discover_not_before: Instant,
    /// When they are to be looked through without a sign of change.
    discover_idly_at: Instant,
    tick_at: Instant,
    ticks: u64,
}

impl AsRawFd for Observer {
    /// Readable when [`Observer::poll`] has something to do (beside its timers: see [`Observer::next_timer`]).
    fn as_raw_fd(&self) -> RawFd {
        self.poller.as_raw_fd()
    }
}

impl Observer {
    /// Reads everything there is; the first [`Observer::poll`] hands it out.
    ///
    /// # Errors
    /// A port or a configured namespace that is not there, or a system that refuses (root is needed).
    pub fn new(config: ObserverConfig) -> Result<Observer, Error> {
        raise_descriptor_limit();
        let path = Path::new("/proc/thread-self/ns/net");
        let own = Key::at(path).map_err(|e| Error::System("cannot see the current namespace", e))?;
        let mut observer = Observer {
            poller: Poller::new().map_err(|e| Error::System("epoll", e))?,
            waker: Waker::new().map_err(|e| Error::System("eventfd", e))?,
            woken: false,
            directory: None,
            spaces: BTreeMap::new(),
            peers: Vec::new(),
            ports: config
                .ports
                .iter()
                .map(|wanted| PortState { wanted: wanted.clone(), port: None })
                .collect(),
            peer_places: BTreeMap::new(),
            next_id: HOST,
            dull: BTreeSet::new(),
            unobserved: BTreeMap::new(),
            unwatched: false,
            own,
            out: Vec::new(),
            discover_at: None,
            discover_not_before: Instant::now(),
            discover_idly_at: Instant::now(),
            tick_at: Instant::now() + TICK,
            ticks: 0,
            config,
        };
        let namespace = Namespace { name: "host".into(), host: true, configured: false };
        observer
            .watch(own, path, namespace)
            .map_err(|e| Error::System("cannot observe the current namespace", e))?;
        observer.refresh_ports();
        if let Some(missing) = observer.ports.iter().find(|p| p.port.is_none()) {
            return Err(Error::NoPort(missing.wanted.to_string()));
        }
        for router in &observer.config.routers {
            router.key().map_err(|e| Error::NoNamespace(router.to_string(), e))?;
        }
        observer.poller.add(&observer.waker, WAKER_TOKEN).map_err(|e| Error::System("epoll", e))?;
        observer.watch_directory();
        observer.discover(true);
        observer.poll_programs();
        Ok(observer)
    }

    /// When [`Observer::poll`] wants to be called even if nothing is readable.
    pub fn next_timer(&self) -> Instant {
        if !self.out.is_empty() {
            return Instant::now();
        }
        let due = self.spaces.values().filter_map(|s| s.due.earliest());
        due.chain(self.discover_at).chain([self.tick_at]).min().unwrap_or(self.tick_at)
    }

    /// Ends a [`Observer::poll`] at once, now or when it next begins.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Events, in order, as soon as there are some; none when `timeout` has passed or the waker was used.
    ///
    /// # Errors
    /// Only when the system no longer lets us wait at all.
    pub fn poll(&mut self, timeout: Duration) -> io::Result<Vec<Event>> {
        let deadline = Instant::now() + timeout;
        loop {
            let now = Instant::now();
            let until = deadline.min(self.next_timer());
            for token in self.poller.wait(until.saturating_duration_since(now))? {
                self.take_ready(token);
                if self.out.len() >= EVENTS_PER_POLL {
                    break;
                }
            }
            self.run_timers();
            if !self.out.is_empty() || std::mem::take(&mut self.woken) || Instant::now() >= deadline {
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
        let Some(space) = self.spaces.get_mut(&((token >> 2) as NamespaceId)) else { return };
        match token & 3 {
            ROUTE => {
                if let Err(error) = space.take_events(&self.peers, &mut self.out, now) {
                    tracing::warn!(namespace = space.namespace.name, %error, "netlink events");
                    space.distrust(What::State, error.to_string(), &mut self.out);
                    space.due.dump_later(now);
                }
                if std::mem::take(&mut space.topology_changed) {
                    self.discover_soon(now);
                }
            }
            NETFILTER => {
                space.hazards.netfilter.iter_mut().for_each(|side| side.discard());
                space.due.hazards_soon(now);
            }
            XFRM => {
                space.hazards.xfrm.iter_mut().for_each(|side| side.discard());
                space.due.hazards_soon(now);
            }
            _ => {
                space.process = None;
                self.discover_at = Some(now);
            }
        }
    }

    fn run_timers(&mut self) {
        let now = Instant::now();
        for space in self.spaces.values_mut() {
            if space.due.earliest().is_some_and(|at| at <= now) {
                space.run_due(&self.peers, &mut self.out, now);
            }
        }
        if self.discover_at.take_if(|at| *at <= now).is_some() {
            self.discover(true);
            // A thousand devices made one by one must not keep us busy looking: one part in four at most.
            self.discover_not_before = Instant::now() + now.elapsed() * 3;
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
            self.poll_programs();
        }
        for space in self.spaces.values_mut() {
            space.tick(slow, &self.peers, &mut self.out);
        }
    }

    fn discover_idly(&mut self) {
        let began = Instant::now();
        // What could not be watched is tried again soon.
        if began >= self.discover_idly_at || self.unwatched || !self.unobserved.is_empty() {
            self.discover(false);
            self.discover_idly_at = began + pause_after(began.elapsed());
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

    /// Begin to observe a namespace; its [`Event::Namespace`] and [`Event::Dump`] are queued.
    fn watch(&mut self, key: Key, path: &Path, namespace: Namespace) -> io::Result<NamespaceId> {
        let id = self.next_id;
        let file = Arc::new(File::open(path)?);
        if Key::of(&file)? != key {
            return Err(io::ErrorKind::NotFound.into());
        }
        let bytes = self.config.receive_buffer_bytes;
        let mut space =
            Space::open(id, key, file.clone(), namespace.clone(), bytes, self.config.multipath_keys)?;
        self.poller.add(&space.events, token(id, ROUTE))?;
        for (side, what) in [(&space.hazards.netfilter, NETFILTER), (&space.hazards.xfrm, XFRM)] {
            if let Some(side) = side {
                self.poller.add(&side.events, token(id, what))?;
            }
        }
        self.peers.push((id, file));
        let dump = match space.dump(&self.peers) {
            Ok(dump) => dump,
            Err(error) => {
                self.peers.pop();
                return Err(error);
            }
        };
        self.next_id += 1;
        self.out.push(Event::Namespace(id, namespace));
        self.out.push(Event::Dump(id, Box::new(dump)));
        let caught_up = space.catch_up(&self.peers, &mut self.out, Instant::now());
        self.spaces.insert(id, space);
        caught_up?;
        Ok(id)
    }

    /// No longer observe a namespace. Closing what we hold of it lets it die.
    fn forget(&mut self, id: NamespaceId) {
        self.spaces.remove(&id);
        self.peers.retain(|peer| peer.0 != id);
        self.out.push(Event::NamespaceGone(id));
    }

    /// Count BPF programs nobody tells us of.
    fn poll_programs(&mut self) {
        let programs = bpf::netfilter_programs();
        let places = self.spaces.values().map(|s| (&*s.file, &s.chain)).collect();
        let counted = netns::inside_each(places, bpf::tcx_programs).unwrap_or_else(|error| {
            let same = || Err(io::Error::new(error.kind(), error.to_string()));
            self.spaces.values().map(|_| same()).collect()
        });
        for (space, counted) in self.spaces.values_mut().zip(counted) {
            space.hazards.set_programs(&programs);
            match counted.and_then(|counted| counted) {
                Ok(counted) => {
                    space.troubles.settle(What::Programs);
                    if space.hazards.set_tcx(counted) {
                        space.refresh_all(&self.peers, &mut self.out);
                    }
                }
                Err(error) => space.troubles.add(What::Programs, error.to_string()),
            }
            space.refresh_settings(&mut self.out);
        }
    }

    /// Have the kernel revalidate a neighbour that the fast path uses, as if it had itself just sent to it. Only for
    /// entries that are [`stale`](logic::observe::Neighbour::stale): a permanent one would lose its permanence.
    ///
    /// # Errors
    /// `ENOENT`: no such entry; `ENODEV`: no such device.
    pub fn probe_neighbour(&mut self, id: NamespaceId, ifindex: u32, address: IpAddr) -> io::Result<()> {
        let space = self.spaces.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        space.requests.ask(neighbour::touch(ifindex, address), |_| None::<()>).map(|_| ())
    }

    /// Have the routes of a namespace read again soon.
    pub fn read_routes_again(&mut self, id: NamespaceId) {
        if let Some(space) = self.spaces.get_mut(&id) {
            space.due.routes_end(Instant::now(), Duration::ZERO);
        }
    }

    /// Reads a namespace's policies and settings now. One that is gone has none.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn read_policy(&mut self, id: NamespaceId) -> io::Result<()> {
        if id == HOST {
            self.poll_programs();
        }
        let Some(space) = self.spaces.get_mut(&id) else { return Ok(()) };
        space.read_policy(&self.peers, &mut self.out, Instant::now())
    }

    /// A namespace under observation. Whoever keeps it keeps the namespace, deleted or not.
    pub fn place(&self, id: NamespaceId) -> Option<OpenNamespace> {
        self.spaces.get(&id).map(|space| OpenNamespace::new(space.key, space.file.clone()))
    }

    /// Namespaces that are not observed as they should be. Nothing is accelerated there until they are.
    pub fn troubles(&self) -> Vec<Trouble> {
        let known = self.spaces.values().flat_map(|s| s.troubles.list(&s.namespace.name));
        known.chain(self.unobserved.values().cloned()).collect()
    }

    /// For another thread: asks Linux with sockets of its own, for comparison (`millrace routes --verify`).
    ///
    /// # Errors
    /// A namespace in which no socket can be opened.
    pub fn reader(&self) -> io::Result<Reader> {
        Reader::open(&self.peers)
    }

    /// Is nothing about to be read again?
    pub fn is_current(&self) -> bool {
        self.spaces.values().all(|space| space.due.is_current())
    }

    /// Messages to the sockets of all namespaces that did not come from the kernel, and were dropped.
    pub fn forged(&self) -> u64 {
        self.spaces.values().map(Space::forged).sum()
    }

    /// Set how many bytes of events the kernel may hold back in a namespace, for tests of what happens beyond.
    ///
    /// # Errors
    /// `NotFound` if it is not observed; what the kernel says.
    pub fn set_receive_buffer(&self, id: NamespaceId, bytes: usize) -> io::Result<()> {
        self.spaces.get(&id).ok_or(io::ErrorKind::NotFound)?.events.set_receive_buffer(bytes)
    }
}

/// A watched namespace takes [`DESCRIPTORS`]; the usual soft limit of 1024 ends at forty.
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

/// From the beginning of one look through the namespaces, which took so long, to the next.
fn pause_after(took: Duration) -> Duration {
    (took * DISCOVERY_SHARE).min(DISCOVERY_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::socket::Socket;
    use logic::observe::Settings;

    #[test]
    fn the_more_looking_takes_the_rarer_it_is_but_not_for_ever() {
        let ms = Duration::from_millis;
        assert_eq!([ms(0), ms(5), ms(20), ms(900)].map(pause_after), [0, 2000, 8000, 30_000].map(ms));
    }

    #[test]
    fn it_can_be_handed_to_the_control_thread() {
        fn sendable<T: Send>() {}
        sendable::<Observer>();
    }

    #[test]
    fn a_router_that_is_not_there_is_told_with_those_that_are() {
        let error = Error::NoNamespace("nope".into(), io::ErrorKind::NotFound.into()).to_string();
        assert!(error.contains("by name there are: ") || error.contains("give pid:NUMBER"), "{error}");
    }

    fn incomplete(settings: &Settings) -> bool {
        let told = |list: &[String]| list.iter().any(|h| h.starts_with("mirror incomplete: "));
        assert_eq!(told(&settings.hazards4), told(&settings.hazards6));
        told(&settings.hazards4)
    }

    fn until<T>(observer: &mut Observer, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            let events = observer.poll(Duration::from_millis(50)).unwrap();
            if let Some(found) = events.iter().find_map(&mut wanted) {
                return found;
            }
        }
        panic!("waited in vain");
    }

    fn settings(event: &Event) -> Option<bool> {
        match event {
            Event::Settings(HOST, settings) => Some(incomplete(settings)),
            Event::Dump(HOST, dump) => Some(incomplete(&dump.settings)),
            _ => None,
        }
    }

    /// An observer without ports, in a namespace of its own.
    fn alone(test: impl FnOnce(Observer) + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: moves only this thread, which ends here.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
                let mut observer = Observer::new(ObserverConfig::default()).unwrap();
                assert!(!until(&mut observer, settings), "the first dump");
                assert_eq!(observer.troubles(), []);
                test(observer);
            });
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn a_namespace_whose_dump_fails_is_not_trusted_until_one_succeeds() {
        alone(|mut observer| {
            let space = observer.spaces.get_mut(&HOST).unwrap();
            // One that knows nothing of routes.
            let other = Socket::requests(libc::NETLINK_GENERIC).unwrap();
            let working = std::mem::replace(&mut space.requests, other);
            space.due.dump = Some(Instant::now());
            assert!(until(&mut observer, settings), "told at once");
            let since = observer.troubles()[0].since;
            for _ in 0..10 {
                let again = observer.poll(Duration::from_millis(100)).unwrap();
                assert_eq!(again.iter().find_map(settings).filter(|incomplete| !incomplete), None);
            }
            let trouble = &observer.troubles()[0];
            assert_eq!((trouble.namespace.as_str(), trouble.since), ("host", since));
            observer.spaces.get_mut(&HOST).unwrap().requests = working;
            assert!(!until(&mut observer, |e| settings(e).filter(|incomplete| !incomplete)));
            assert_eq!(observer.troubles(), []);
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn where_programs_cannot_be_counted_nothing_is_trusted() {
        alone(|mut observer| {
            let not_a_namespace = Arc::new(File::open("/dev/null").unwrap());
            let space = observer.spaces.get_mut(&HOST).unwrap();
            let namespace = std::mem::replace(&mut space.file, not_a_namespace);
            assert!(until(&mut observer, settings));
            assert!(observer.troubles()[0].what.starts_with("BPF programs on devices: "));
            let space = observer.spaces.get_mut(&HOST).unwrap();
            space.due.dump = Some(Instant::now());
            let dumped = |e: &Event| matches!(e, Event::Dump(..)).then_some(settings(e)).flatten();
            assert!(until(&mut observer, dumped), "a dump does not count programs");
            observer.spaces.get_mut(&HOST).unwrap().file = namespace;
            assert!(!until(&mut observer, settings));
            assert_eq!(observer.troubles(), []);
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn between_lost_events_and_the_new_dump_the_mirror_is_not_trusted() {
        alone(|mut observer| {
            observer.set_receive_buffer(HOST, 4096).unwrap();
            let many = "for i in $(seq 2000); do echo route add blackhole 10.0.$((i / 250)).$((i % 250))/32; done | ip -batch -";
            let done = std::process::Command::new("sh").args(["-c", many]).status().unwrap();
            assert!(done.success());
            let mut told = Vec::new();
            until(&mut observer, |e| {
                told.extend(settings(e));
                matches!(e, Event::Dump(..)).then_some(())
            });
            assert_eq!(told, [true, false]);
        });
    }
}
