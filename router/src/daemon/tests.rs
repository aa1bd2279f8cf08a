//! The loop with the real mirror and the real tables over heap memory, and a fake Linux around it.

use super::{
    Control, Ended,
    api::{Query, Request, RouteQuery},
    instance::Instance,
    report::{RouteReport, Status, VerifyReport},
    seam::{Device, FastPath, Kernel, Observe, Reread},
};
use crate::{
    config::{Config, MemoryMib},
    ethtool::{Problem, ProblemKind},
    plane::{Charge, Counters, InterfaceCount, Mode, Settings, Step, TestRun},
};
use anyhow::{Result, anyhow, bail};
use logic::{
    memory::{HeapMemory, Memory, words},
    net::Mac,
    observe::{
        Change, Dump, Event, Link, LinkConf4, LinkConf6, LinkKind, Namespace, NamespaceId, Neighbour, Next,
        NextHop, Port, Route, RouteKind,
    },
    plan::PortId,
    reason::Reason,
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv4Addr},
    rc::Rc,
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};
use tokio::sync::oneshot;

type Shared = Arc<HeapMemory>;

/// What the fake Linux holds, seen by the test.
#[derive(Default)]
struct World {
    now: Cell<Duration>,
    /// Results of the next polls; then nothing happens.
    polls: RefCell<VecDeque<Result<Vec<Event>>>>,
    dump: RefCell<Dump>,
    /// What the next reading waits for.
    hold: RefCell<Option<Receiver<()>>>,
    probed: RefCell<Vec<IpAddr>>,
    problems: RefCell<BTreeMap<PortId, Vec<String>>>,
    refused: RefCell<Option<String>>,
    /// Of each attachment: devices, and the state of the generation at that moment.
    attached: RefCell<Vec<(Vec<String>, Duration, bool)>>,
    previous: RefCell<Option<Counters>>,
    counters: RefCell<Counters>,
    removed: Cell<bool>,
    memory: RefCell<Option<Shared>>,
    deadline: Rc<Cell<Duration>>,
}

#[derive(Clone)]
struct Linux(Rc<World>);

struct Generation {
    world: Rc<World>,
    memory: Shared,
    deadline: Cell<Duration>,
    ports: RefCell<BTreeMap<PortId, (u32, bool)>>,
}

impl FastPath for Generation {
    type Memory = Shared;
    fn memory(&self) -> Shared {
        self.memory.clone()
    }
    fn set_port(&self, port: PortId, ifindex: u32, ready: bool, _: bool) -> Result<()> {
        self.ports.borrow_mut().insert(port, (ifindex, ready));
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
    fn explain(&self, _: u32, frame: &[u8]) -> Result<(TestRun, Vec<Step>)> {
        let verdict = Step::Verdict { reason: Some(Reason::NoRoute), action: 2 };
        Ok((TestRun { action: 2, frame: frame.to_vec() }, vec![Step::Port { id: 0, ready: true }, verdict]))
    }
}

impl Kernel for Linux {
    type Plane = Generation;
    fn load(&mut self, settings: Settings) -> Result<Generation> {
        let memory = Arc::new(HeapMemory::new(settings.capacity));
        *self.0.memory.borrow_mut() = Some(memory.clone());
        let (deadline, ports) = (Cell::default(), RefCell::default());
        Ok(Generation { world: self.0.clone(), memory, deadline, ports })
    }
    fn attach(
        &mut self,
        plane: &Generation,
        devices: &[Device],
    ) -> Result<Vec<Mode>, (usize, anyhow::Error)> {
        let refused = self.0.refused.borrow().clone();
        if let Some(i) = devices.iter().position(|d| Some(&d.name) == refused.as_ref()) {
            return Err((i, anyhow!("another program is there")));
        }
        let filled = plane.memory.routers().iter().any(|w| w.load(Relaxed) != 0);
        let names = devices.iter().map(|d| d.name.clone()).collect();
        self.0.attached.borrow_mut().push((names, plane.deadline.get(), filled));
        Ok(vec![Mode::Native; devices.len()])
    }
    fn note(&self, _: &str) -> Option<String> {
        None
    }
    fn publish(&mut self, _: &mut Generation) -> Result<()> {
        Ok(())
    }
    fn previous(&mut self) -> Option<Counters> {
        self.0.previous.borrow().clone()
    }
    fn remove(&mut self) -> Result<Vec<String>> {
        self.0.removed.set(true);
        Ok(vec!["gone".into()])
    }
    fn grace(&mut self) -> Result<Box<dyn FnMut() -> Result<()> + Send>> {
        Ok(Box::new(|| Ok(())))
    }
    fn now(&self) -> Duration {
        self.0.now.get()
    }
}

impl Observe for Linux {
    fn poll(&mut self, _: Duration) -> Result<Vec<Event>> {
        self.0.polls.borrow_mut().pop_front().unwrap_or(Ok(Vec::new()))
    }
    fn probe_neighbour(&mut self, _: NamespaceId, _: u32, address: IpAddr) -> Result<()> {
        self.0.probed.borrow_mut().push(address);
        Ok(())
    }
    fn port_problems(&mut self, port: PortId) -> Vec<Problem> {
        let texts = self.0.problems.borrow().get(&port).cloned().unwrap_or_default();
        texts.into_iter().map(|text| Problem { kind: ProblemKind::Unknown, text }).collect()
    }
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }
    fn reread(&mut self) -> Reread {
        let (dump, hold) = (self.0.dump.borrow().clone(), self.0.hold.borrow_mut().take());
        Box::new(move || {
            // Until the test lets go.
            hold.map(|hold| hold.recv());
            Ok(vec![(0, dump)])
        })
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
        kind: LinkKind::Physical,
        below: None,
        master: None,
        ipv4,
        ipv6,
        hazards: Vec::new(),
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

fn port(ifindex: u32) -> Port {
    Port { namespace: 0, ifindex, frags: false }
}

fn linux() -> Linux {
    let world = World::default();
    world.now.set(Duration::from_secs(1000));
    *world.dump.borrow_mut() = dump();
    let host = Namespace { name: "host".into(), host: true, configured: false };
    world.polls.borrow_mut().push_back(Ok(vec![
        Event::Port(0, port(1)),
        Event::Port(1, port(2)),
        Event::Namespace(0, host),
        Event::Dump(0, Box::new(dump())),
    ]));
    Linux(Rc::new(world))
}

struct Case {
    linux: Linux,
    control: Control<Linux, Linux>,
    _directory: tempfile::TempDir,
}

fn config() -> Config {
    Config { ports: vec!["eth1".parse().unwrap(), "eth2".parse().unwrap()], ..Config::default() }
}

fn start_with(config: Config, linux: Linux) -> Result<Case> {
    let directory = tempfile::tempdir()?;
    let instance = Instance::under(directory.path(), None);
    let control = Control::start(config, instance, linux.clone(), linux.clone())?;
    Ok(Case { linux, control, _directory: directory })
}

fn start() -> Case {
    start_with(config(), linux()).unwrap()
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

    /// Rounds of the loop until a comparison is done.
    fn verified(&mut self, mut answer: oneshot::Receiver<super::api::Answer>) -> VerifyReport {
        for _ in 0..10_000 {
            if let Ok(answer) = answer.try_recv() {
                return serde_json::from_value(answer.unwrap()).unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
            self.control.round().unwrap();
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
}

#[test]
fn nothing_is_attached_before_the_tables_are_full_and_confirmed() {
    let case = start();
    let attached = case.linux.0.attached.borrow();
    let until = Duration::from_secs(1030);
    assert_eq!(*attached, [(vec!["eth1".to_string(), "eth2".into()], until, true)]);
}

#[test]
fn a_port_with_a_foreign_program_is_refused_at_the_start() {
    let linux = linux();
    *linux.0.refused.borrow_mut() = Some("eth2".into());
    let error = start_with(config(), linux.clone()).err().unwrap();
    assert_eq!(error.to_string(), "another program is there");
    assert!(linux.0.attached.borrow().is_empty());
}

#[test]
fn the_table_follows_events() {
    let mut case = start();
    let hop = &case.route("10.9.1.1").hops[0];
    assert_eq!((hop.action.as_str(), hop.interface.as_deref()), ("forward", Some("eth2")));
    assert_eq!((hop.next_hop.as_deref(), hop.mac.as_deref()), (Some("10.0.2.9"), Some("02:01:00:00:00:09")));
    assert_eq!(case.route("10.9.1.1").prefix.as_deref(), Some("10.9.0.0/16"));
    assert_eq!(case.route("10.8.1.1").hops[0].reason.as_deref(), Some(Reason::NoRoute.text()));
    let new = route("10.8.0.0/16", 1, Some("10.0.1.5"));
    case.round(Ok(vec![Event::Route4(0, Change::Add, new)]), 0.001);
    assert_eq!(case.route("10.8.1.1").hops[0].mac.as_deref(), Some("02:01:00:00:00:05"));
}

#[test]
fn the_heartbeat_stops_while_the_kernel_cannot_be_read() {
    let mut case = start();
    let deadline = |case: &Case| case.linux.0.deadline.get().as_secs();
    case.round(Ok(vec![]), 1.0);
    assert_eq!(deadline(&case), 1031);
    for _ in 0..3 {
        case.round(Err(anyhow!("no buffer")), 10.0);
    }
    assert_eq!(deadline(&case), 1031, "not confirmed");
    let status = case.status();
    assert!(!status.ready && status.problem.as_ref().is_some_and(|p| p.contains("no buffer")), "{status:?}");
    case.round(Ok(vec![]), 1.0);
    assert_eq!(deadline(&case), 1062);
    assert!(case.status().ready);
}

#[test]
fn a_full_table_moves_everything_to_larger_ones() {
    let mut case = start();
    let address = |i: u32| Ipv4Addr::from_bits(0x0a00_0200 + i).to_string();
    let wide = Event::Route4(0, Change::Add, route("10.0.0.0/8", 2, None));
    let many = (256..20_256).map(|i| Event::Neighbour(0, neighbour(2, &address(i), i as u8, false)));
    case.round(Ok([wide].into_iter().chain(many).collect()), 0.1);
    let status = case.status();
    assert_eq!(status.generation, 2);
    let nexthops = status.tables.iter().find(|t| t.table == "nexthops").unwrap();
    assert!(nexthops.capacity > 1 << 14 && nexthops.used > 20_000, "{nexthops:?}");
    assert_eq!(case.linux.0.attached.borrow().len(), 2, "swapped once");
    for i in [256, 9000, 20_255] {
        assert_eq!(case.route(&address(i)).hops[0].action, "forward", "{i}");
    }
    assert_eq!(case.route("10.9.1.1").hops[0].action, "forward", "what was there before is there still");
}

#[test]
fn at_the_limit_the_rest_is_left_to_the_kernel() {
    let config = Config { limits: crate::config::Limits { memory_mib: MemoryMib(16) }, ..config() };
    let mut case = start_with(config, linux()).unwrap();
    let many = (0..20_000u32).map(|i| {
        let address = Ipv4Addr::from_bits(0x0a00_0300 + i).to_string();
        Event::Neighbour(0, neighbour(2, &address, i as u8, false))
    });
    case.round(Ok(many.collect()), 0.1);
    case.round(Ok(vec![]), 0.1);
    assert_eq!(case.status().generation, 1);
    assert!(case.status().ready);
}

#[test]
fn a_port_that_goes_and_comes_back_is_attached_again() {
    let mut case = start();
    case.round(Ok(vec![Event::PortGone(1)]), 0.1);
    let names = |case: &Case| case.linux.0.attached.borrow().last().unwrap().0.clone();
    assert_eq!(names(&case), ["eth1"]);
    let status = case.status();
    assert_eq!((status.ports[1].mode.as_str(), status.ports[1].problems.len()), ("detached", 1));
    case.round(Ok(vec![Event::Port(1, port(7))]), 0.1);
    assert_eq!(names(&case), ["eth1", "eth2"]);
    case.round(Ok(vec![]), 0.1);
    assert_eq!(case.linux.0.attached.borrow().len(), 3, "not attached again without a reason");
}

#[test]
fn a_port_that_is_refused_later_is_reported_and_the_others_go_on() {
    let mut case = start();
    *case.linux.0.refused.borrow_mut() = Some("eth2".into());
    case.round(Ok(vec![Event::PortGone(1)]), 0.1);
    case.round(Ok(vec![Event::Port(1, port(7))]), 0.1);
    case.round(Ok(vec![]), 0.1);
    let status = case.status();
    assert!(status.ports[1].problems[0].contains("another program is there"), "{:?}", status.ports[1]);
    assert_eq!(status.ports[0].mode, "native");
}

#[test]
fn a_port_is_trusted_only_without_problems() {
    let mut case = start();
    let ready = |case: &Case| case.control.generation.plane.ports.borrow()[&1].1;
    assert!(ready(&case));
    case.linux.0.problems.borrow_mut().insert(1, vec!["partial checksums".into()]);
    (0..2).for_each(|_| case.round(Ok(vec![]), 1.1));
    assert!(!ready(&case));
    assert_eq!(case.status().ports[1].problems, ["partial checksums"]);
    case.linux.0.problems.borrow_mut().clear();
    (0..2).for_each(|_| case.round(Ok(vec![]), 1.1));
    assert!(ready(&case));
}

#[test]
fn a_router_is_accelerated_only_by_a_port_that_is_trusted() {
    let linux = linux();
    let problem = |text: &str| vec![text.to_string()];
    *linux.0.problems.borrow_mut() = [(0, problem("hides tags")), (1, problem("LRO"))].into();
    let mut case = start_with(config(), linux).unwrap();
    assert_eq!(
        case.control.summary(),
        "0 of 1 routers accelerated, ports eth1 (native, NOT TRUSTED: hides tags), eth2 (native, NOT TRUSTED: LRO)"
    );
    let status = case.status();
    assert!(!status.ready && status.problem.is_some_and(|p| p.starts_with("no port is trusted")));
    assert!(!status.routers[0].accelerated.ipv4);
    let why = ["port eth1 is not trusted: hides tags", "port eth2 is not trusted: LRO"];
    assert_eq!(status.routers[0].why_not.ipv4, why);
    case.linux.0.problems.borrow_mut().remove(&1);
    (0..2).for_each(|_| case.round(Ok(vec![]), 1.1));
    let status = case.status();
    assert!(status.ready && status.routers[0].accelerated.ipv4, "one trusted port is enough: {status:?}");
    assert!(case.control.summary().starts_with("1 of 1 routers accelerated"));
    case.linux.0.problems.borrow_mut().insert(1, problem("LRO"));
    (0..2).for_each(|_| case.round(Ok(vec![]), 1.1));
    let (ended, ..) = run(case, vec![Query::Leave]);
    assert_eq!(ended, Ended::Left { forwarding: false });
}

#[test]
fn neighbours_in_use_are_probed_when_stale() {
    let mut case = start();
    case.round(Ok(vec![]), 6.0);
    assert!(case.linux.0.probed.borrow().is_empty(), "not in use");
    // struct nexthop: `used` is the low half of word 6.
    let memory = case.linux.0.memory.borrow().clone().unwrap();
    memory.nexthops().iter().skip(6).step_by(words::NEXTHOP).for_each(|w| w.store(1, Relaxed));
    case.round(Ok(vec![]), 6.0);
    assert_eq!(*case.linux.0.probed.borrow(), ["10.0.2.9".parse::<IpAddr>().unwrap()], "only the stale one");
}

#[test]
fn verify_finds_what_differs() {
    let mut case = start();
    let report = case.verify();
    assert_eq!((report.differences, report.routers[0].compared.ipv4), (0, 3), "{report:?}");
    // A change the observer missed.
    case.linux.0.dump.borrow_mut().routes4.push(route("10.7.0.0/16", 1, Some("10.0.1.5")));
    let report = case.verify();
    assert_eq!(report.differences, 2, "both ends of the route");
    let first = &report.routers[0].differences[0];
    assert_eq!((first.prefix.as_str(), first.fast.as_str()), ("10.7.0.0/16 at 10.7.0.0", "no_route"));
    assert!(first.kernel.starts_with("10.0.1.5 (02:01:00:00:00:05)"), "{first:?}");
}

#[test]
fn verify_reads_the_memory_itself() {
    let mut case = start();
    let memory = case.linux.0.memory.borrow().clone().unwrap();
    // Another MAC address in the next hops that are resolved.
    memory.nexthops().iter().step_by(words::NEXTHOP).filter(|w| w.load(Relaxed) != 0).for_each(|w| {
        w.fetch_xor(0xff, Relaxed);
    });
    let report = case.verify();
    assert!(report.differences > 0);
}

#[test]
fn the_loop_goes_on_while_a_comparison_runs_and_there_is_one_at_a_time() {
    let mut case = start();
    let (let_go, hold) = sync_channel(0);
    *case.linux.0.hold.borrow_mut() = Some(hold);
    let answer = case.begin_verify();
    let new = route("10.8.0.0/16", 1, Some("10.0.1.5"));
    case.round(Ok(vec![Event::Route4(0, Change::Add, new)]), 5.0);
    assert_eq!(case.linux.0.deadline.get().as_secs(), 1035, "confirmed meanwhile");
    assert_eq!(case.route("10.8.1.1").hops[0].action, "forward", "changed meanwhile");
    let error = case.begin_verify().try_recv().unwrap().unwrap_err();
    assert!(error.status == 503 && error.text.contains("already running"), "{error:?}");
    // Linux has it too, by the time it is read again.
    case.linux.0.dump.borrow_mut().routes4.push(route("10.8.0.0/16", 1, Some("10.0.1.5")));
    let_go.send(()).unwrap();
    assert_eq!(case.verified(answer).differences, 0);
}

#[test]
fn changes_under_way_are_no_differences() {
    let mut case = start();
    let new = |prefix| route(prefix, 1, Some("10.0.1.5"));
    case.linux.0.dump.borrow_mut().routes4.extend([new("10.7.0.0/16"), new("10.6.0.0/16")]);
    let answer = case.begin_verify();
    std::thread::sleep(Duration::from_millis(100));
    // One of them comes late, the other never.
    case.round(Ok(vec![]), 0.01);
    case.round(Ok(vec![Event::Route4(0, Change::Add, new("10.7.0.0/16"))]), 0.01);
    let report = case.verified(answer);
    assert_eq!(report.differences, 2, "{report:?}");
    assert!(report.routers[0].differences.iter().all(|d| d.prefix.starts_with("10.6.0.0/16")));
}

#[test]
fn counters_go_on_after_a_restart_and_a_growth() {
    let count = InterfaceCount { forwarded_packets: 5, ..InterfaceCount::default() };
    let counted = Counters {
        packets: 9,
        interfaces: [(1, count)].into(),
        charges: [((Charge::Router(0), Reason::TtlExceeded), 4)].into(),
    };
    let mut case = start();
    *case.linux.0.counters.borrow_mut() = counted.clone();
    case.round(Ok(vec![]), 2.0);
    assert_eq!(case.status().packets.forwarded, 5);
    let again = linux();
    *again.0.previous.borrow_mut() = Some(counted.clone());
    *again.0.counters.borrow_mut() = counted;
    let instance = case.control.instance.clone();
    drop(case.control);
    let mut second = Case {
        control: Control::start(config(), instance, again.clone(), again.clone()).unwrap(),
        linux: again,
        _directory: case._directory,
    };
    let status = second.status();
    assert_eq!((status.packets.forwarded, status.packets.passed, status.generation), (10, 8, 2));
    assert_eq!(status.reasons[0].reason, "ttl_exceeded");
    assert_eq!(status.routers[0].packets.forwarded, 10);
}

/// Runs the whole loop in this thread; the requests are there before it starts.
fn run(case: Case, queries: Vec<Query>) -> (Ended, Vec<super::api::Answer>, Linux) {
    let (to, requests) = sync_channel(16);
    let send = |to: &SyncSender<Request>, query| {
        let (reply, answer) = oneshot::channel();
        to.send(Request { query, reply }).unwrap();
        answer
    };
    let answers: Vec<_> = queries.into_iter().map(|query| send(&to, query)).collect();
    let ended = case.control.run(&requests).unwrap();
    (ended, answers.into_iter().map(|a| a.blocking_recv().unwrap()).collect(), case.linux)
}

#[test]
fn stop_removes_everything_and_leave_nothing() {
    let (ended, answers, linux) = run(start(), vec![Query::Ports, Query::Stop]);
    assert_eq!((ended, answers.len(), linux.0.removed.get()), (Ended::Stopped, 2, true));
    assert_eq!(answers[1], Ok(serde_json::json!({"done": ["gone"]})));
    let (ended, _, linux) = run(start(), vec![Query::Leave]);
    assert_eq!((ended, linux.0.removed.get()), (Ended::Left { forwarding: true }, false));
}

#[test]
fn what_is_not_there_is_an_error_that_says_what_is() {
    let mut case = start();
    let explain = |packet: Option<&str>, frame: Option<&str>, port: Option<&str>, router: Option<&str>| {
        let text = |s: Option<&str>| s.map(String::from);
        let (packet, frame, port, router) = (text(packet), text(frame), text(port), text(router));
        Query::Explain(super::report::ExplainRequest { packet, frame, port, router })
    };
    let packet = Some("udp 10.0.1.5 -> 10.9.0.1");
    let table = [
        (
            Query::Route(RouteQuery { address: [1, 1, 1, 1].into(), router: Some("red".into()) }),
            404,
            "there are: host",
        ),
        (explain(None, None, None, None), 400, "either a packet or a frame"),
        (explain(Some("x"), None, None, None), 400, "unknown protocol"),
        (explain(packet, None, Some("eth9"), None), 404, "there are: eth1, eth2"),
        (explain(packet, None, None, Some("red")), 404, "there are: host"),
        (explain(None, Some("00"), None, None), 400, "needs the port"),
        (explain(None, Some("zz"), Some("eth1"), None), 400, "not hexadecimal"),
        (explain(None, Some("00"), Some("eth1"), None), 400, "14 to 9100 bytes, not 1"),
        (explain(Some("udp 1.1.1.1 -> 2.2.2.2 vlan=5"), None, None, None), 404, "no interface has this"),
    ];
    for (query, status, part) in table {
        let error = case.control.answer(&query).unwrap_err();
        assert!(error.status == status && error.text.contains(part), "{query:?}: {error:?}");
    }
    let report: super::report::ExplainReport = case.ask(explain(packet, None, None, None));
    assert_eq!(
        (report.port.as_str(), report.verdict.as_str()),
        ("eth1", "pass"),
        "the port leads back to the source"
    );
    assert_eq!(report.before.unwrap().destination_mac, "02:00:00:00:00:01");
}

#[test]
fn a_start_without_a_readable_kernel_fails() {
    let linux = linux();
    linux.0.polls.borrow_mut().clear();
    linux.0.polls.borrow_mut().push_back((|| bail!("denied"))());
    let error = format!("{:#}", start_with(config(), linux).err().unwrap());
    assert_eq!(error, "reading the kernel's state: denied");
}
