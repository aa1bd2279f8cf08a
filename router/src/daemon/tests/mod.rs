//! Tests of the loop with the real mirror and real tables over heap memory, and with a fake Linux.

mod answers;
mod changes;
mod lifetime;
mod paths;
mod ports;
mod reload;
mod rules;
mod steering;
mod verify;

use super::{
    Control, Ended,
    api::{Query, Request},
    seam::{Ask, FastPath, Hardware, Kernel, Known, Observe, PolicyRead, Question, Sent, Standing},
    totals::SavedTotals,
};
use crate::{
    api::{
        RouteQuery,
        status::{ExplainReport, InterfaceReport, RouteReport, Status, VerifyReport},
        workers::{PathStand, WorkersReport},
    },
    base::conditions::{Condition, Conditions},
    base::instance::Instance,
    config::{Changes, Config, MemoryMib, Weight, ports::NumberedPorts},
    linux::{
        classifier::{Classifier, Ntuple, fake::Nic},
        ethtool::{Problem, ProblemKind},
        spreading::Spreading,
    },
    plane::{Charge, Counters, InterfaceCount, Mode, PathCounts, Settings, Step, TestRun},
    switch::seam::{SwitchEnd, SwitchMessage},
    user_plane::seam::{Device, Stand, UserPlane, Wanted},
};
use anyhow::{Result, anyhow, bail};
use logic::{
    cause::Code,
    memory::{HeapMemory, Memory, words},
    net::Mac,
    observe::{
        AttachedPort, Change, Dump, Event, Link, LinkConf4, LinkConf6, LinkKind, MacvlanMode, Namespace,
        NamespaceId, Neighbour, Next, NextHop, Route, RouteKind, Settings as NamespaceSettings,
    },
    paths::{PathId, rows::PathClass},
    plan::PortId,
    reason::Reason,
    steer::Sample,
    tables::queue_rows,
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::{IpAddr, Ipv4Addr},
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::Ordering::Relaxed,
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

type Shared = Arc<HeapMemory>;

/// Classes, and the router of each port for packets that are for no interface.
type SetClasses = (Vec<PathClass>, BTreeMap<PortId, u8>);

/// The state of the fake Linux, which the test sees and changes.
#[derive(Default)]
struct World {
    now: Cell<Duration>,
    /// Results of the next polls. Later polls return no events.
    polls: RefCell<VecDeque<Result<Vec<Event>>>>,
    /// Readings of policies that are done and not yet reported.
    policies: RefCell<Vec<PolicyRead>>,
    dump: Held,
    /// Other namespaces than the host.
    tenants: Tenants,
    /// Namespaces whose standing is not [`Standing::Current`].
    standings: RefCell<BTreeMap<NamespaceId, Standing>>,
    /// The next reading waits for this.
    hold: RefCell<Option<Receiver<()>>>,
    probed: RefCell<Vec<IpAddr>>,
    problems: RefCell<BTreeMap<PortId, Vec<String>>>,
    /// Ports whose driver transmits nothing that is redirected to it.
    cannot_transmit: RefCell<BTreeSet<PortId>>,
    refused: RefCell<Option<String>>,
    /// Devices that have no native mode.
    generic: RefCell<BTreeSet<String>>,
    /// Devices that run a program, with index and mode.
    running: RefCell<BTreeMap<String, (u32, Mode)>>,
    attached: RefCell<Vec<Attachment>>,
    /// [`Settings::exception_pps`] of each generation that was loaded.
    loaded: RefCell<Vec<u32>>,
    unloadable: Cell<bool>,
    unpublishable: Cell<bool>,
    /// The counters that dead daemons left, by generation.
    previous: RefCell<BTreeMap<u64, Counters>>,
    /// Generations that were published and not retired.
    published: RefCell<BTreeSet<u64>>,
    counters: RefCell<Counters>,
    uncounted: RefCell<Vec<String>>,
    removed: Cell<bool>,
    /// The NIC that the classifier's code sees as the ports' devices.
    nic: RefCell<Option<Nic>>,
    samples: RefCell<Vec<Sample>>,
    memory: RefCell<Option<Shared>>,
    /// Why flow rules cannot be loaded.
    unruly: RefCell<Option<String>>,
    /// The messages that the switch thread got.
    messages: Arc<Mutex<Vec<SwitchMessage>>>,
    deadline: Rc<Cell<Duration>>,
    /// The classes that were set in the program, in order.
    classes: RefCell<Vec<SetClasses>>,
    /// The paths that drop, in order.
    drops: RefCell<Vec<BTreeSet<PathId>>>,
    /// For each swap, whether the program was the one with paths.
    swapped: RefCell<Vec<Option<bool>>>,
    /// Why classes cannot be set.
    unclassed: RefCell<Option<String>>,
    /// The work that was set for workers, in order; the tables that they read; their conditions.
    wanted: RefCell<Vec<Wanted>>,
    tables_of_workers: RefCell<Option<Shared>>,
    stands: RefCell<Vec<String>>,
    /// Paths that workers run.
    run_by_workers: RefCell<Vec<PathStand>>,
}

#[derive(Clone)]
struct FakePaths(Rc<World>);

impl UserPlane<Shared> for FakePaths {
    fn set_classes(&self, classes: &[PathClass], own: &BTreeMap<PortId, u8>) -> Result<()> {
        if let Some(why) = self.0.unclassed.borrow().as_ref() {
            bail!("{why}");
        }
        self.0.classes.borrow_mut().push((classes.to_vec(), own.clone()));
        Ok(())
    }
    fn set_drops(&self, paths: &BTreeSet<PathId>) {
        self.0.drops.borrow_mut().push(paths.clone());
    }
    fn counts(&self) -> Vec<PathCounts> {
        let one = PathCounts {
            packets: 5,
            ring_full: 2,
            up: [0, 0, 7, 0],
            dropped: [1, 0, 0, 0],
            ..PathCounts::default()
        };
        vec![one; 64]
    }
    fn set_tables(&self, tables: Shared) {
        *self.0.tables_of_workers.borrow_mut() = Some(tables);
    }
    fn want(&self, wanted: Wanted) {
        self.0.wanted.borrow_mut().push(wanted);
    }
    fn stand(&self) -> Arc<Stand> {
        let workers =
            WorkersReport { paths: self.0.run_by_workers.borrow().clone(), ..WorkersReport::default() };
        Arc::new(Stand { workers, conditions: self.0.stands.borrow().clone() })
    }
}

/// One attachment, and the state of the generation at that moment.
#[derive(Debug, PartialEq)]
struct Attachment {
    devices: Vec<String>,
    deadline: Duration,
    filled: bool,
    slots: Vec<PortId>,
    rules: Option<u32>,
    paths: Option<bool>,
}

#[derive(Clone)]
struct Linux(Rc<World>);

struct Generation {
    world: Rc<World>,
    memory: Shared,
    deadline: Cell<Duration>,
    ports: RefCell<BTreeMap<PortId, PortRow>>,
    rules: Option<u32>,
    /// Whether the program with paths is chosen; `None`: it is not loaded.
    paths: Option<bool>,
}

struct PortRow {
    ready: bool,
    transmit: bool,
}

impl Generation {
    /// Ports with a transmit slot.
    fn slots(&self) -> Vec<PortId> {
        self.ports.borrow().iter().filter(|(_, row)| row.transmit).map(|(id, _)| *id).collect()
    }
}

impl FastPath for Generation {
    type Memory = Shared;
    type Rules = u32;
    type UserPlane = FakePaths;
    fn set_rules(&mut self, rules: Option<&u32>) -> Result<()> {
        if let (Some(why), Some(_)) = (self.world.unruly.borrow().as_ref(), rules) {
            bail!("{why}");
        }
        self.rules = rules.copied();
        Ok(())
    }
    fn memory(&self) -> Shared {
        self.memory.clone()
    }
    fn set_port(&self, port: PortId, _: u32, ready: bool, transmit: bool) -> Result<()> {
        self.ports.borrow_mut().insert(port, PortRow { ready, transmit });
        Ok(())
    }
    fn clear_port(&self, port: PortId, _: u32) -> Result<()> {
        self.ports.borrow_mut().remove(&port);
        Ok(())
    }
    fn confirm_until(&self, deadline: Duration) {
        self.deadline.set(deadline);
        self.world.deadline.set(deadline);
    }
    fn counters(&self) -> Result<Counters> {
        Ok(self.world.counters.borrow().clone())
    }
    fn conditions(&self) -> Vec<String> {
        self.world.uncounted.borrow().clone()
    }
    fn set_paths(&mut self, _: &FakePaths) -> Result<()> {
        self.paths = Some(false);
        Ok(())
    }
    fn follow_paths(&mut self, some: bool) -> bool {
        let changes = self.paths.is_some_and(|before| before != some);
        self.paths = self.paths.map(|_| some);
        changes
    }
    fn take_samples(&mut self) -> Vec<Sample> {
        self.world.samples.take()
    }
    fn explain(&self, _: u32, frame: &[u8]) -> Result<(TestRun, Vec<Step>)> {
        let address =
            |at: usize| frame.get(at..at + 4).map_or(0, |a| u32::from_be_bytes(a.try_into().unwrap()));
        let steps = vec![
            Step::Port { id: 0, ready: true },
            Step::Interface { interface: 1, router: 0 },
            Step::Ipv4 { source: address(26), destination: address(30) },
            Step::FibBlock { block: 1, slot: 5 },
            Step::Nexthop { id: 5, kind: 2 },
            Step::SourceCheck { slot: 6, accepted: true },
            Step::Verdict { reason: Some(Reason::NoRoute), action: 2 },
        ];
        Ok((TestRun { action: 2, frame: frame.to_vec() }, steps))
    }
}

impl Kernel for Linux {
    type Plane = Generation;
    fn load(&mut self, settings: Settings) -> Result<Generation> {
        if self.0.unloadable.get() {
            bail!("out of memory");
        }
        self.0.loaded.borrow_mut().push(settings.exception_pps);
        let rows = if settings.queue_rows { queue_rows(2) } else { 0 };
        let memory = Arc::new(HeapMemory::with_queue_rows(settings.capacity, rows));
        *self.0.memory.borrow_mut() = Some(memory.clone());
        let (deadline, ports) = (Cell::default(), RefCell::default());
        Ok(Generation { world: self.0.clone(), memory, deadline, ports, rules: None, paths: None })
    }
    fn attach(&mut self, plane: &Generation, devices: &[Device]) -> Result<(), (usize, anyhow::Error)> {
        let refused = self.0.refused.borrow().clone();
        if let Some(i) = devices.iter().position(|d| Some(&d.name) == refused.as_ref()) {
            return Err((i, anyhow!("another program is there")));
        }
        let generic = self.0.generic.borrow();
        let mode = |name: &str| if generic.contains(name) { Mode::Generic } else { Mode::Native };
        *self.0.running.borrow_mut() =
            devices.iter().map(|d| (d.name.clone(), (d.ifindex, mode(&d.name)))).collect();
        self.0.attached.borrow_mut().push(Attachment {
            devices: devices.iter().map(|d| d.name.clone()).collect(),
            deadline: plane.deadline.get(),
            filled: plane.memory.routers().iter().any(|w| w.load(Relaxed) != 0),
            slots: plane.slots(),
            rules: plane.rules,
            paths: plane.paths,
        });
        Ok(())
    }
    fn swap(&mut self, plane: &Generation, _: &[Device]) -> Result<()> {
        self.0.swapped.borrow_mut().push(plane.paths);
        Ok(())
    }
    fn user_plane(&mut self, _: &Config) -> Result<FakePaths> {
        Ok(FakePaths(self.0.clone()))
    }
    fn mode(&self, device: &Device) -> Option<Mode> {
        let running = self.0.running.borrow();
        running.get(&device.name).filter(|(ifindex, _)| *ifindex == device.ifindex).map(|(_, mode)| *mode)
    }
    fn note(&self, port: &str) -> Option<String> {
        self.0.generic.borrow().contains(port).then(|| "generic mode".into())
    }
    fn publish(&mut self, _: &mut Generation, generation: u64) -> Result<()> {
        if self.0.unpublishable.get() {
            bail!("no room");
        }
        self.0.published.borrow_mut().insert(generation);
        Ok(())
    }
    fn previous(&mut self, generation: u64) -> Option<Counters> {
        self.0.previous.borrow().get(&generation).cloned()
    }
    fn retire(&mut self, generation: u64) -> Result<()> {
        self.0.published.borrow_mut().retain(|other| *other == generation);
        Ok(())
    }
    fn remove(&mut self) -> Result<Vec<String>> {
        self.0.removed.set(true);
        Ok(vec!["gone".into()])
    }
    fn grace(&mut self) -> Result<Box<dyn FnMut() -> Result<()> + Send>> {
        Ok(Box::new(|| Ok(())))
    }
    fn classifier(&self) -> Option<Box<dyn Classifier>> {
        self.0.nic.borrow().clone().map(|nic| Box::new(Ntuple(nic)) as Box<dyn Classifier>)
    }
    fn now(&self) -> Duration {
        self.0.now.get()
    }
}

impl Observe for Linux {
    fn follow(&mut self, _: &Config, _: &NumberedPorts) {}
    fn poll(&mut self, _: Duration) -> Result<Vec<Event>> {
        self.0.polls.borrow_mut().pop_front().unwrap_or(Ok(Vec::new()))
    }
    fn probe_neighbour(&mut self, _: NamespaceId, _: u32, address: IpAddr) -> Result<()> {
        self.0.probed.borrow_mut().push(address);
        Ok(())
    }
    fn port_problems(&mut self, port: PortId) -> Vec<Problem> {
        let texts = self.0.problems.borrow().get(&port).cloned().unwrap_or_default();
        let unknown = texts.into_iter().map(|text| Problem { kind: ProblemKind::Unknown, text });
        let deaf = self.0.cannot_transmit.borrow().contains(&port).then(|| "takes no redirects".into());
        unknown.chain(deaf.map(|text| Problem { kind: ProblemKind::CannotTransmit, text })).collect()
    }
    fn read_policy(&mut self, namespace: NamespaceId) {
        let read = PolicyRead { namespace, took: Duration::ZERO, error: None };
        self.0.policies.borrow_mut().push(read);
    }
    fn policies_read(&mut self) -> Vec<PolicyRead> {
        self.0.policies.take()
    }
    fn conditions(&self) -> Vec<Condition> {
        Vec::new()
    }
    fn standing(&self, namespace: NamespaceId) -> Standing {
        self.0.standings.borrow().get(&namespace).cloned().unwrap_or(Standing::Current)
    }
    fn questions(&mut self) -> Box<dyn Ask> {
        let (dump, tenants) = (self.0.dump.clone(), self.0.tenants.clone());
        Box::new(Asked { dump, tenants, hold: self.0.hold.borrow_mut().take() })
    }
}

/// The state of the host, also for the thread that compares.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<Dump>>);

impl Held {
    fn borrow_mut(&self) -> std::sync::MutexGuard<'_, Dump> {
        self.0.lock().unwrap()
    }
}

/// A namespace of a tenant, for the thread that compares.
#[derive(Clone, Default)]
struct Tenant {
    dump: Dump,
    /// Its routes cannot be read.
    broken: Option<std::io::ErrorKind>,
}

type Tenants = Arc<Mutex<BTreeMap<NamespaceId, Tenant>>>;

/// Answers as Linux would in this state, in which each route has one next hop.
struct Asked {
    dump: Held,
    tenants: Tenants,
    hold: Option<Receiver<()>>,
}

impl Asked {
    fn dump(&self, namespace: NamespaceId) -> Dump {
        match namespace {
            0 => self.dump.borrow_mut().clone(),
            tenant => self.tenants.lock().unwrap()[&tenant].dump.clone(),
        }
    }
}

impl Ask for Asked {
    fn end_at(&mut self, _: NamespaceId, _: Instant) {}
    fn routes(&mut self, namespace: NamespaceId) -> Result<Vec<Known>> {
        // Wait until the test releases this reading.
        self.hold.take().map(|hold| hold.recv());
        if let Some(kind) = self.tenants.lock().unwrap().get(&namespace).and_then(|tenant| tenant.broken) {
            return Err(std::io::Error::from(kind).into());
        }
        let known = |route: &Route<u32>| {
            let Next::One(hop) = &route.next else { panic!("one next hop each") };
            let connected = Some(hop.ifindex).filter(|_| hop.gateway.is_none());
            let (address, length) = (Ipv4Addr::from(route.prefix.address()).into(), route.prefix.length());
            Known { address, length, connected, local: false, object: false }
        };
        Ok(self.dump(namespace).routes4.iter().map(known).collect())
    }
    fn way(&mut self, namespace: NamespaceId, question: &Question) -> Result<Option<Sent>> {
        let IpAddr::V4(address) = question.address else { return Ok(None) };
        let dump = self.dump(namespace);
        let routes = dump.routes4.iter().filter(|route| route.prefix.contains(address.to_bits()));
        let longest = routes.max_by_key(|route| route.prefix.length());
        Ok(longest.map(|route| {
            let Next::One(hop) = &route.next else { panic!("one next hop each") };
            Sent { oif: hop.ifindex, gateway: hop.gateway, mtu: route.mtu }
        }))
    }
    fn neighbours(&mut self, namespace: NamespaceId) -> Result<BTreeMap<(u32, IpAddr), Mac>> {
        let dump = self.dump(namespace);
        Ok(dump.neighbours.iter().filter_map(|n| Some(((n.ifindex, n.address), n.mac?))).collect())
    }
    fn devices(&mut self, namespace: NamespaceId) -> Result<BTreeMap<u32, Hardware>> {
        let dump = self.dump(namespace);
        Ok(dump.links.iter().map(|l| (l.ifindex, Hardware { mac: l.mac, mtu: l.mtu })).collect())
    }
}

fn link(ifindex: u32, name: &str) -> Link {
    let ipv4 = LinkConf4 { forwarding: true, has_address: true, ..LinkConf4::default() };
    let ipv6 = LinkConf6 { forwarding: true, ..LinkConf6::default() };
    Link {
        ifindex,
        name: name.into(),
        mac: Mac([2, 0, 0, 0, 0, ifindex as u8]),
        mtu: 1500,
        up: true,
        carrier: true,
        running: true,
        kind: LinkKind::Physical,
        below: None,
        master: None,
        ipv4,
        ipv6,
        hazards: Vec::new(),
        xdp: None,
    }
}

fn route(prefix: &str, ifindex: u32, gateway: Option<&str>) -> Route<u32> {
    let gateway = gateway.map(|g| g.parse().unwrap());
    let hop = NextHop { ifindex, gateway, weight: 1, dead: false, linkdown: false, complex: false };
    Route {
        prefix: prefix.parse().unwrap(),
        table: 254,
        metric: 0,
        tos: 0,
        kind: RouteKind::Unicast,
        next: Next::One(hop),
        mtu: None,
        for_sources: false,
        expires: None,
        rest: 0,
        complex: None,
    }
}

fn neighbour(ifindex: u32, address: &str, last: u8, stale: bool) -> Neighbour {
    Neighbour { ifindex, address: address.parse().unwrap(), mac: Some(Mac([2, 1, 0, 0, 0, last])), stale }
}

/// A host with eth1 (10.0.1.0/24) and eth2 (10.0.2.0/24), and a route to 10.9.0.0/16 via 10.0.2.9.
fn dump() -> Dump {
    Dump {
        links: vec![link(1, "eth1"), link(2, "eth2")],
        routes4: vec![
            route("10.0.1.0/24", 1, None),
            route("10.0.2.0/24", 2, None),
            route("10.9.0.0/16", 2, Some("10.0.2.9")),
        ],
        neighbours: vec![neighbour(2, "10.0.2.9", 9, true), neighbour(1, "10.0.1.5", 5, false)],
        ..Dump::default()
    }
}

fn port(ifindex: u32) -> AttachedPort {
    AttachedPort { namespace: 0, ifindex, frags: false, hashes: false }
}

fn linux() -> Linux {
    let world = World::default();
    world.now.set(Duration::from_secs(1000));
    *world.dump.borrow_mut() = dump();
    let host = Namespace {
        name: "host".into(),
        host: true,
        configured: false,
        owner: logic::observe::Owner::Machine,
    };
    world.polls.borrow_mut().push_back(Ok(vec![
        Event::Port(0, port(1)),
        Event::Port(1, port(2)),
        Event::Namespace(0, host),
        Event::Dump(0, Box::new(dump())),
    ]));
    Linux(Rc::new(world))
}

/// A reason against the IPv4 of the host.
fn a_rule() -> Event {
    Event::Settings(
        0,
        NamespaceSettings {
            hazards4: vec![Code::PolicyRule.cause("a rule")],
            ..NamespaceSettings::default()
        },
    )
}

/// A reason against an interface.
fn shaped(ifindex: u32, name: &str) -> Event {
    Event::Link(0, Link { hazards: vec![Code::Qdisc.cause("a tbf qdisc")], ..link(ifindex, name) })
}

/// So many neighbours on eth2, and a route that makes its network large enough.
fn many_neighbours(n: u32) -> Vec<Event> {
    let wide = Event::Route4(0, Change::Add, route("10.0.0.0/8", 2, None));
    let one = |i: u32| {
        let address = Ipv4Addr::from_bits(0x0a00_0300 + i).to_string();
        Event::Neighbour(0, neighbour(2, &address, i as u8, false))
    };
    [wide].into_iter().chain((0..n).map(one)).collect()
}

struct Case {
    linux: Linux,
    control: Control<Linux, Linux>,
    orders: Sender<Option<u32>>,
    _directory: tempfile::TempDir,
}

fn config() -> Config {
    Config { ports: vec!["eth1".parse().unwrap(), "eth2".parse().unwrap()], ..Config::default() }
}

/// A switch thread that remembers its messages.
fn switch(linux: &Linux) -> (Sender<Option<u32>>, SwitchEnd<u32>) {
    let (orders_to, orders) = channel();
    let messages = linux.0.messages.clone();
    let tell = Box::new(move |what| messages.lock().unwrap().push(what));
    (orders_to, SwitchEnd { orders, tell, gauge: Arc::default(), loaded: None })
}

/// Spreading of packets by the classifier's NIC, without placing of queues.
fn spreading(linux: &Linux, instance: &Instance) -> Option<Spreading> {
    Some(crate::daemon::steering::take_over(linux.classifier()?, instance, |_| false))
}

fn start_with(config: Config, linux: Linux) -> Result<Case> {
    let directory = tempfile::tempdir()?;
    let instance = Instance::under(directory.path(), None);
    let (orders, switch) = switch(&linux);
    let spreading = spreading(&linux, &instance);
    let (own, conditions) = (linux.clone(), Conditions::default());
    let control = Control::start(config, instance, own.clone(), own, switch, spreading, conditions)?;
    Ok(Case { linux, control, orders, _directory: directory })
}

fn start() -> Case {
    start_with(config(), linux()).unwrap()
}

fn conditions(status: &Status) -> Vec<String> {
    let others = status.conditions.iter().filter(|c| !["port", "router"].contains(&&*c.kind));
    others.map(|condition| condition.sentence.clone()).collect()
}

impl Case {
    /// One round of the loop in which `events` happen, `seconds` later.
    fn round(&mut self, events: Result<Vec<Event>>, seconds: f64) {
        self.linux.0.polls.borrow_mut().push_back(events);
        self.linux.0.now.set(self.linux.0.now.get() + Duration::from_secs_f64(seconds));
        self.control.round().unwrap();
    }

    fn ask<T: serde::de::DeserializeOwned>(&mut self, query: Query) -> T {
        serde_json::from_value(self.control.answer(&query).unwrap()).unwrap()
    }

    fn route(&mut self, address: &str) -> RouteReport {
        self.ask(Query::Route(RouteQuery { address: address.parse().unwrap(), router: None }))
    }

    fn begin_verify(&mut self) -> oneshot::Receiver<super::api::Answer> {
        let (reply, answer) = oneshot::channel();
        self.control.begin_verify(reply);
        answer
    }

    /// Runs the loop until a comparison is done.
    fn verified(&mut self, answer: oneshot::Receiver<super::api::Answer>) -> VerifyReport {
        self.verified_while(answer, |case| {
            case.linux.0.now.set(case.linux.0.now.get() + Duration::from_millis(10));
            case.control.round().unwrap();
        })
    }

    /// Repeats `round` until the answer arrives.
    fn verified_while(
        &mut self,
        mut answer: oneshot::Receiver<super::api::Answer>,
        mut round: impl FnMut(&mut Case),
    ) -> VerifyReport {
        for _ in 0..10_000 {
            if let Ok(answer) = answer.try_recv() {
                return serde_json::from_value(answer.unwrap()).unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
            round(self);
        }
        panic!("no answer");
    }

    fn verify(&mut self) -> VerifyReport {
        let answer = self.begin_verify();
        self.verified(answer)
    }

    fn status(&mut self) -> Status {
        self.ask(Query::Status)
    }

    /// Conditions, except those of ports and routers.
    fn conditions(&mut self) -> Vec<String> {
        conditions(&self.status())
    }

    fn interfaces(&mut self) -> Vec<InterfaceReport> {
        self.ask(Query::Interfaces)
    }

    fn explain(&mut self, packet: &str) -> ExplainReport {
        let packet = Some(packet.into());
        self.ask(Query::Explain(crate::api::status::ExplainRequest { packet, ..Default::default() }))
    }

    fn slots(&self) -> Vec<PortId> {
        self.control.generation.plane.slots()
    }

    /// Starts another daemon of the same instance, after this one was killed.
    fn killed_and_restarted(self, linux: Linux) -> Case {
        let instance = self.control.instance.clone();
        drop(self.control);
        let (orders, switch) = switch(&linux);
        let spreading = spreading(&linux, &instance);
        let (own, conditions) = (linux.clone(), Conditions::default());
        let control =
            Control::start(config(), instance, own.clone(), own, switch, spreading, conditions).unwrap();
        Case { linux, control, orders, _directory: self._directory }
    }
}

/// Runs the whole loop in this thread. The requests are queued before it starts.
fn run(case: Case, queries: Vec<Query>) -> (Ended, Vec<super::api::Answer>, Linux) {
    let (to, requests) = sync_channel(16);
    let send = |to: &SyncSender<Request>, query| {
        let (reply, answer) = oneshot::channel();
        to.send(Request { query, reply }).unwrap();
        answer
    };
    let answers: Vec<_> = queries.into_iter().map(|query| send(&to, query)).collect();
    let ended = case.control.run(&requests, &mut Alone).unwrap();
    (ended, answers.into_iter().map(|a| a.blocking_recv().unwrap()).collect(), case.linux)
}

/// No threads beside the loop.
struct Alone;

impl super::seam::Beside for Alone {
    fn reload(&mut self, _: &Changes, _: &Config, _: &NumberedPorts) -> Result<()> {
        Ok(())
    }
}
