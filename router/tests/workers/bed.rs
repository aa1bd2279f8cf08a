//! Workers between two veths, p0 and p1, whose other ends belong to the test. A byte of each frame that comes
//! in by p0 names its path.

use super::af_xdp_bed::{XdpPort, make_port, number, until};
pub use super::af_xdp_bed::{load, program};
use crate::common::{SMALL as FEW, ifindex, wire::Wire};
use anyhow::Result;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use logic::{
    cores::{Core, CoreId},
    elements::{Batch, Chain, Contract, Counters, Discard, Element, Forward, Now},
    memory::{HeapMemory, Memory},
    net::{Mac, Vlan},
    paths::PathId,
    plan::{Hop, Interface, MultipathHash, Op, PortId, ReversePath, Target},
    tables::Tables as Writer,
};
use router::{
    api::workers::{Capacity, PathStand, WorkersReport},
    config::ElementSettings,
    linux::netns,
    plane::Grace,
    user_plane::{
        af_xdp::{Polling, Rings, Umem},
        workers::{
            Clock, Epochs, PassUp, PathPlan, PortPlan, Shared, Slots, Tables, Up, Workers, WorkersPlan,
            WorkersSettings,
        },
    },
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::fd::{AsRawFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// As in `bpf/paths.bpf.c`.
const PATHS: u32 = 4;
/// MAC addresses of p0 and p1, and of the host at the other end of p1.
pub const P0: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const P1: Mac = Mac([2, 0, 0, 0, 0, 2]);
pub const NEXT: Mac = Mac([2, 0, 0, 0, 9, 1]);

/// Orders for the chains and slots of the test. A path named `trap` panics at the packet numbered
/// `panics_at`, and with `panics_on` at all later ones too. A path named `stuck` waits while `waits` is set,
/// at each packet or at the one numbered `waits_at`. When the chain of a trap is made, it panics with
/// `chains_panic`, and waits while `chains_wait` is set. Slots cannot be filled with `put_fails`, and do not
/// settle while `settles_not` is set.
#[derive(Default)]
pub struct Orders {
    pub panics_at: AtomicU32,
    pub panics_on: AtomicBool,
    pub waits: AtomicBool,
    /// `u32::MAX`: at each packet.
    pub waits_at: AtomicU32,
    /// The number of brakes that wait now.
    pub waiting: AtomicU32,
    pub chains_panic: AtomicBool,
    pub chains_wait: AtomicBool,
    pub put_fails: AtomicBool,
    pub settles_not: AtomicBool,
    /// The thread that gives packets to the kernel waits before each packet.
    pub up_waits: AtomicBool,
    /// How many slots of path 0 were emptied.
    pub emptied: AtomicU32,
    /// The time in ns, which only [`Slow`] advances.
    pub ticks: Option<&'static AtomicU64>,
}

struct Trap(Arc<Orders>);
impl Element for Trap {
    fn name(&self) -> &'static str {
        "trap"
    }
    fn contract(&self) -> Contract {
        Contract::default()
    }
    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, _: &mut Counters) {
        let (at, on) = (self.0.panics_at.load(Relaxed), self.0.panics_on.load(Relaxed));
        let is_it = |number: u32| number == at || on && number > at;
        assert!(!batch.packets().iter().any(|packet| is_it(number(packet.data()))), "as the test asks");
    }
}

struct Brake(Arc<Orders>);
impl Element for Brake {
    fn name(&self) -> &'static str {
        "brake"
    }
    fn contract(&self) -> Contract {
        Contract::default()
    }
    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, _: &mut Counters) {
        let at = self.0.waits_at.load(Relaxed);
        if at != u32::MAX && !batch.packets().iter().any(|packet| number(packet.data()) == at) {
            return;
        }
        self.0.waiting.fetch_add(1, Relaxed);
        while self.0.waits.load(Relaxed) {
            thread::sleep(Duration::from_micros(50));
        }
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

/// Takes this long for each packet. If time is counted in ticks, it advances them by as much.
struct Slow(Duration, Arc<Orders>);
impl Element for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn contract(&self) -> Contract {
        Contract::default()
    }
    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, _: &mut Counters) {
        let takes = self.0 * batch.packets().len() as u32;
        if let Some(ticks) = self.1.ticks {
            ticks.fetch_add(takes.as_nanos() as u64, Relaxed);
        }
        let until = Instant::now() + takes;
        while Instant::now() < until {}
    }
}

/// Tables whose chains may have traps and brakes.
pub struct Rigged(pub Shared<Arc<HeapMemory>>, pub Arc<Orders>);
impl Tables for Rigged {
    fn memory(&self) -> &dyn Memory {
        self.0.memory()
    }
    fn chain(&self, path: &PathPlan, ports: &BTreeMap<String, PortId>) -> Result<Chain> {
        while path.name == "trap" && self.1.chains_wait.load(Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        let rigged: Box<dyn Element> = match path.name.as_str() {
            "trap" if self.1.chains_panic.load(Relaxed) => panic!("as the test asks"),
            "trap" => Box::new(Trap(self.1.clone())),
            "stuck" => Box::new(Brake(self.1.clone())),
            "in and out" => Box::new(Slow(Duration::from_micros(4), self.1.clone())),
            name @ ("in" | "slow") => {
                let takes = Duration::from_micros(if name == "in" { 4 } else { 40 });
                let slow = Slow(takes, self.1.clone());
                return Ok(Chain::new(vec![Box::new(slow), Box::new(Discard)])?);
            }
            _ => return self.0.chain(path, ports),
        };
        Ok(Chain::new(vec![rigged, Box::new(Forward::new(1))])?)
    }
}

/// Gives packets to the kernel, unless the test asks it to wait.
struct Paced(PassUp, Arc<Orders>);
impl Up for Paced {
    fn up(&mut self, ifindex: u32, frame: &[u8]) -> Result<()> {
        while self.1.up_waits.load(Relaxed) {
            thread::sleep(Duration::from_micros(50));
        }
        self.0.up(ifindex, frame)
    }
}

/// The slots of the test's programs.
struct Maps(BTreeMap<PortId, MapHandle>, Grace, Arc<Orders>);
impl Slots for Maps {
    fn put(&self, port: PortId, queue: u32, path: PathId, fd: BorrowedFd<'_>) -> Result<()> {
        anyhow::ensure!(!self.2.put_fails.load(Relaxed), "as the test asks");
        let slot = queue * PATHS + u32::from(path);
        Ok(self.0[&port].update(&slot.to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes(), MapFlags::ANY)?)
    }
    fn take(&self, port: PortId, queue: u32, path: PathId) -> Result<()> {
        let slot = queue * PATHS + u32::from(path);
        let emptied = self.0[&port].delete(&slot.to_ne_bytes());
        self.2.emptied.fetch_add(u32::from(path == 0), Relaxed);
        match emptied {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
    fn settle(&self) -> Result<()> {
        while self.2.settles_not.load(Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        self.1.wait()
    }
}

fn slots(port: &XdpPort) -> MapHandle {
    let map = port.object.maps().find(|map| map.name() == "paths").unwrap();
    MapHandle::try_from(&map).unwrap()
}

pub struct Bed {
    pub workers: Workers,
    pub umem: Arc<Umem>,
    pub epochs: Epochs,
    pub told: Arc<Orders>,
    pub tables: RefCell<Writer<Arc<HeapMemory>>>,
    _ports: Vec<XdpPort>,
}

pub const SMALL: Rings = Rings { fill: 128, completion: 64, receive: 64, transmit: 64 };

impl Bed {
    /// Workers between p0 and p1, with this many queues each.
    pub fn new(queues: usize, settings: WorkersSettings) -> Bed {
        Bed::with_time(queues, settings, None)
    }

    /// Like [`Bed::new`], with a time that other threads cannot use up: only [`Slow`] advances it.
    pub fn of_ticks(queues: usize, settings: WorkersSettings) -> Bed {
        let ticks = &*Box::leak(Box::default());
        Bed::with_time(
            queues,
            WorkersSettings { clock: Some(Clock::of_ticks(ticks)), ..settings },
            Some(ticks),
        )
    }

    fn with_time(queues: usize, settings: WorkersSettings, ticks: Option<&'static AtomicU64>) -> Bed {
        let ports: Vec<XdpPort> = [0, 1]
            .map(|n| {
                make_port(n, queues);
                XdpPort::with(&format!("p{n}"), "millrace_ip_to_path")
            })
            .into();
        let maps = (0..).zip(&ports).map(|(n, port)| (n, slots(port))).collect();
        let told = Arc::new(Orders {
            panics_at: AtomicU32::new(u32::MAX),
            waits_at: AtomicU32::new(u32::MAX),
            ticks,
            ..Orders::default()
        });
        let up = Box::new(Paced(PassUp::new().unwrap(), told.clone()));
        let writer = writer();
        let tables = Arc::new(Rigged(
            Shared { memory: writer.memory().clone(), sas: Arc::default(), captures: Default::default() },
            told.clone(),
        ));
        let (epochs, slots) = (Epochs::default(), Box::new(Maps(maps, Grace::new().unwrap(), told.clone())));
        // The workers' threads start in another namespace than the ports.
        let elsewhere = File::open("/proc/self/ns/net").unwrap();
        let start = || Workers::start(settings, epochs.clone(), tables, slots, up);
        let workers = netns::inside(&elsewhere, start).unwrap().unwrap();
        Bed { umem: workers.umem(), workers, epochs, told, tables: writer.into(), _ports: ports }
    }

    #[track_caller]
    pub fn apply(&self, plan: &WorkersPlan) {
        assert_eq!(self.workers.apply(plan), Vec::<String>::new());
    }

    pub fn report(&self) -> WorkersReport {
        self.workers.report()
    }

    #[track_caller]
    pub fn path(&self, id: PathId) -> PathStand {
        self.report().paths.into_iter().find(|path| path.id == id).expect("a path of that number")
    }

    /// Waits until the paths have handled all packets.
    pub fn quiet(&self) {
        until("the rest of the packets", || {
            let packets = || self.report().paths.iter().map(|path| path.packets).sum::<u64>();
            let before = packets();
            thread::sleep(Duration::from_millis(20));
            packets() == before
        });
    }

    /// Stops the workers, and asserts that no frame is missing.
    #[track_caller]
    pub fn end(self) {
        let report = self.report();
        for path in &report.paths {
            let fates: u64 = path.out.values().chain(path.up.values()).chain(path.dropped.values()).sum();
            assert_eq!(
                fates + path.worker_panicked + path.stopped_packets,
                path.packets,
                "packets of path {}, by their fates, and in all",
                path.path
            );
        }
        assert!(
            report.queues.iter().all(|queue| (queue.refused, queue.starved) == (0, 0)),
            "a queue refused packets or starved: {:?}",
            report.queues
        );
        assert!(
            report.workers.iter().all(|worker| worker.panics == 0),
            "a worker panicked: {:?}",
            report.workers
        );
        let Bed { workers, umem, .. } = self;
        assert_eq!(workers.stop(), Vec::<String>::new());
        until("all frames to be free", || umem.free_frames() == umem.frames());
        assert_eq!((umem.retired_frames(), umem.promised_frames()), (0, 0));
    }
}

/// Tables of a router with p0 and p1. 10.1.0.0/16 is behind p1.
pub fn tables() -> Arc<HeapMemory> {
    writer().memory().clone()
}

/// Makes p1's neighbour known or unknown. All packets go to this neighbour.
pub fn next_is(known: bool) -> Op {
    Op::Neighbour(2, GATEWAY.parse().unwrap(), known.then_some(NEXT))
}

const GATEWAY: &str = "10.9.0.1";

fn writer() -> Writer<Arc<HeapMemory>> {
    let mut tables = Writer::new(Arc::new(HeapMemory::new(FEW)));
    let interface = |port, mac| Interface {
        router: 0,
        port,
        vlan: Vlan::NONE,
        mac,
        ipv4: true,
        ipv6: true,
        transmit: true,
        reverse_path: ReversePath::Off,
        redirects: false,
        accept_local: false,
        priority_tags: false,
        look_at_sources: false,
        group: 0,
    };
    let hop = Target::Hop(Hop { interface: 2, gateway: Some(GATEWAY.parse().unwrap()), mtu: 1500 });
    for op in [
        Op::Router { router: 0, multipath: MultipathHash::default() },
        Op::Port { port: 0, frags: false },
        Op::Port { port: 1, frags: false },
        Op::Interface(1, interface(0, P0)),
        Op::Interface(2, interface(1, P1)),
        next_is(true),
        Op::Route4(0, "10.1.0.0/16".parse().unwrap(), Some(hop)),
    ] {
        tables.apply(&op).unwrap();
    }
    tables
}

pub fn core(id: CoreId) -> Core {
    Core { id, node: 0, physical: id, workloads: 0, other: 0.0 }
}

pub fn ports(queues: u32, rings: Rings) -> BTreeMap<PortId, PortPlan> {
    let namespace = Arc::new(File::open("/proc/thread-self/ns/net").unwrap());
    let port = |n: PortId| {
        let name = format!("p{n}");
        let (ifindex, namespace) = (ifindex(&name), namespace.clone());
        (
            n,
            PortPlan {
                name,
                ifindex,
                namespace,
                router: Some(0),
                queues,
                zero_copy: true,
                polling: Polling::Interrupts,
                rings,
            },
        )
    };
    BTreeMap::from([port(0), port(1)])
}

/// A path for packets from p0, on this core.
pub fn path(name: &str, chain: &[&str], core: CoreId) -> PathPlan {
    let chain = chain.iter().map(|element| match *element {
        "forward" => element_of("{ element = \"forward\", port = \"p1\" }"),
        name => element_of(&format!("\"{name}\"")),
    });
    PathPlan {
        name: name.into(),
        router: 0,
        weight: 1,
        chain: chain.collect(),
        ports: BTreeSet::from([0]),
        ring: 64,
        cores: Some(BTreeSet::from([core])),
    }
}

pub fn element_of(text: &str) -> ElementSettings {
    #[derive(serde::Deserialize)]
    struct One {
        element: ElementSettings,
    }
    toml::from_str::<One>(&format!("element = {text}")).unwrap().element
}

pub fn plan(
    cores: &[CoreId],
    ports: &BTreeMap<PortId, PortPlan>,
    paths: &[(PathId, PathPlan)],
) -> WorkersPlan {
    WorkersPlan {
        cores: cores.iter().map(|id| core(*id)).collect(),
        routers: BTreeMap::new(),
        ports: ports.clone(),
        paths: paths.iter().cloned().collect(),
        io: Capacity::default(),
    }
}

/// Collects the numbers of frames of a path that come out of a wire.
pub fn numbers_of(wire: &Wire, path: u8, to: &mut Vec<u32>) {
    while let Some(frame) = wire.receive() {
        if frame.len() > 18 && frame[12..15] == [0x88, 0xb5, path] {
            to.push(number(&frame));
        }
    }
}
