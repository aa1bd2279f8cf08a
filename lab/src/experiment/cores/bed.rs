//! A daemon that places the queues of three ports, all packed on one core, and a generator that leaves it the other one.
//!
//! The generator never sleeps, but it goes last on its core: NAPI threads that are placed there run first, and it sends
//! with the time that is left. Packets that are then too late to send are counted (`skipped`).

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    check::check_forwarding,
    cpu::{self, Threads},
    generator::Pace,
    sink::Watch,
    subject::{Millrace, Subject},
    sys,
    testbed::{NAPI_LEVEL, Priority, Testbed},
    topology::Topology,
    work::Work,
    workload::{Way, Workload},
};

pub(super) const TOPOLOGY: &str = "three-in";
/// The daemon's default high mark, as a share of a core.
pub(super) const HIGH: f64 = 0.85;
/// Flows of each port.
const FLOWS: u32 = 256;
/// Extra time of its core for each packet, as encryption would take. Without it, the generator would need half of its
/// core for the packets that fill another one. The 256 packets of a veth's ring would come in a quarter of a
/// millisecond; on a shared machine a core is sometimes away for longer. With it they take 5 ms, like 4096 packets of a
/// NIC's ring at 0.8 Mpps.
const WORK_NS: u32 = 5000;
/// Most packets that leave the generator together.
const BATCH: u32 = 16;
/// Most packets of a port sent at once after a delay of the generator: a quarter of the port's ring.
const BACKLOG: u32 = 64;
/// The lowest rate. A stream needs a rate.
const LOWEST_PPS: u64 = 1000;
/// Rate of ports beside a hot one. It is too low for their queues to be moved instead.
const NEXT_TO_NOTHING_PPS: u64 = 10;
/// Time over which core loads are measured.
const LOOK: Duration = Duration::from_millis(250);
/// Rates to try, until a core exceeds its mark: the first one, and the factor from each to the next.
const FIRST_PPS: f64 = 60_000.0;
const STEP: f64 = 1.12;
const MOST_PPS: f64 = 5e6;

/// A running daemon, and traffic that has not begun.
pub(super) struct Bed {
    // Dropped in this order.
    pub daemon: Millrace,
    pub testbed: Testbed,
    /// NAPI threads of the ports that packets come to, in the order of streams.
    pub queues: Threads,
    /// How long a lower load must have lasted before a core is given back.
    pub hold: Duration,
    /// Does nearly all traffic come by the first port?
    pub is_hot: bool,
    /// Threads of CPU maps that belong to somebody else.
    strangers: Vec<i32>,
    events_seen: u64,
    _work: Work,
}

/// A queue that was moved.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub unix_s: f64,
    pub port: String,
    pub from: Value,
    pub to: Value,
    pub why: String,
}

impl Bed {
    /// Starts the daemon with `policy = "pack"`; `settings` follow in `[cores]` and may begin other tables. The sink's
    /// cable has `egress_queues` queues.
    pub fn start(egress_queues: u16, settings: &str) -> Result<Self> {
        Self::with_generator(egress_queues, settings, true)
    }

    /// The same, but the generator is not pinned to its core, so the daemon does not treat it as a workload. The core of a
    /// workload never helps with a queue that falls behind.
    pub fn with_free_generator(settings: &str) -> Result<Self> {
        let bed = Self::with_generator(1, settings, false)?;
        bed.testbed.generator.allow(&[])?;
        Ok(bed)
    }

    fn with_generator(egress_queues: u16, settings: &str, is_pinned: bool) -> Result<Self> {
        let mut topology = Topology::named(TOPOLOGY)?;
        let ports_in = topology.ports.len() - 1;
        topology.ports[ports_in].queues = egress_queues;
        let mut testbed = Testbed::new(&topology)?;
        let mut generator = String::new();
        if is_pinned {
            let core = topology.cores.generator;
            sys::set_affinity(0, &[core])?;
            // Millrace would discover this workload, because this process is pinned there, but only within some seconds.
            generator = format!("workloads = [{{ name = \"generator\", cores = \"{core}\" }}]");
        }
        testbed.set_priority(Priority::Placing)?;
        testbed.placing = format!("policy = \"pack\"\n{generator}\n{settings}");
        let daemon = Millrace::start(&testbed)?;
        // Attaching programs may have made new threads.
        testbed.router_threads()?;
        let ways: Vec<Way> =
            (0..ports_in as u8).map(|from| Way { router: 0, from, to: ports_in as u8, weight: 1 }).collect();
        let mut workload = Workload::across(&topology, &ways, FLOWS)?;
        let stamped = workload.targets.iter().map(|target| target.min_stamped()).max();
        workload.frame_bytes = workload.frame_bytes.max(stamped.unwrap_or_default());
        let next_hop = |address| workload.next_hop(address);
        check_forwarding(&mut testbed, &daemon, &workload.targets, workload.frame_bytes, next_hop)?;
        let work = Work::for_packets_by(&testbed.box_namespace, &topology.ports[ports_in].name, WORK_NS)?;
        let pace = Pace::Rate(LOWEST_PPS * ports_in as u64);
        testbed.generator.set_streams(workload.streams(&workload.targets, pace))?;
        let queues = queue_threads(&testbed, ports_in)?;
        let seconds = daemon.ask(&["cores"])?["hold_s"].as_f64().context("millrace cores has no hold_s")?;
        let hold = Duration::from_secs_f64(seconds);
        Ok(Self {
            daemon,
            testbed,
            queues,
            hold,
            is_hot: false,
            strangers: Vec::new(),
            events_seen: 0,
            _work: work,
        })
    }

    /// From now on nearly all traffic comes by the first port.
    pub fn be_hot(&mut self) -> Result<()> {
        self.is_hot = true;
        self.strangers = cpu::cpu_map_threads()?;
        Ok(())
    }

    /// Gives threads of CPU maps, which take shares of a hot port's queue, the priority of NAPI threads here. Returns
    /// whether there are any. This takes a while.
    pub fn urge_parts(&self) -> Result<bool> {
        let mut parts = cpu::cpu_map_threads()?;
        parts.retain(|id| !self.strangers.contains(id));
        Ok(!cpu::urge_cpu_map_threads(parts, Some(NAPI_LEVEL))?.is_empty())
    }

    /// The core of each queue; `None` for a queue that may still run on several.
    pub fn places(&self) -> Result<Vec<Option<usize>>> {
        let place = |id: &i32| match sys::affinity(*id).context("affinity of a NAPI thread")?[..] {
            [core] => Ok(Some(core)),
            _ => Ok(None),
        };
        self.queues.0.iter().map(place).collect()
    }

    /// The core that all queues are on and that does all their work, if there is one.
    pub fn packed_on(&self) -> Result<Option<usize>> {
        let places = self.places()?;
        let core = places[0].filter(|_| places.iter().all(|place| *place == places[0]));
        Ok(core.filter(|_| !self.is_hot || self.is_whole().unwrap_or(false)))
    }

    /// A list of `millrace cores`. Asking the daemon takes a while.
    pub fn reported(&self, list: &str) -> Result<Vec<Value>> {
        let cores = self.daemon.ask(&["cores"])?;
        cores[list].as_array().cloned().with_context(|| format!("millrace cores has no {list}"))
    }

    /// The names of workloads that the daemon has found. Asking it takes a while.
    pub fn workloads(&self) -> Result<Vec<String>> {
        let all = self.reported("workloads")?;
        Ok(all.iter().filter_map(|workload| Some(workload["name"].as_str()?.to_owned())).collect())
    }

    /// Is no queue split? Asking the daemon takes a while.
    fn is_whole(&self) -> Result<bool> {
        let queues = self.reported("queues")?;
        Ok(queues.iter().all(|queue| queue["shared"].as_array().is_none_or(Vec::is_empty)))
    }

    /// Waits until all queues are packed on one core, and returns it.
    pub fn packed(&self) -> Result<usize> {
        let end = Instant::now() + 4 * self.hold + Duration::from_secs(5);
        loop {
            if let Some(core) = self.packed_on()? {
                return Ok(core);
            }
            ensure!(Instant::now() < end, "queues are not packed on one core: {:?}", self.places()?);
            sys::sleep(Duration::from_millis(10))?;
        }
    }

    /// Sets the rate of all streams together, in packets a second.
    pub fn set_rate(&mut self, pps: f64) -> Result<()> {
        let streams = self.queues.0.len();
        let even = (pps as u64 / streams as u64).max(LOWEST_PPS);
        (0..streams).try_for_each(|stream| {
            let pps = match stream {
                _ if !self.is_hot => even,
                0 => (pps as u64).max(LOWEST_PPS),
                _ => NEXT_TO_NOTHING_PPS,
            };
            self.testbed.generator.set_rate(stream, pps)
        })
    }

    /// Starts to send at this rate. The order of what arrives is watched from the beginning.
    pub fn begin(&mut self, pps: f64) -> Result<()> {
        self.testbed.sink.watch(Watch::NOTHING)?;
        let flows: Vec<usize> =
            self.testbed.generator.streams().iter().map(|stream| stream.targets.len()).collect();
        self.testbed.sink.set_flows(&flows)?;
        self.testbed.sink.watch(Watch { order: true, ..Watch::NOTHING })?;
        self.set_rate(pps)?;
        self.testbed.generator.start_held_up(BATCH, BACKLOG)
    }

    /// Finds the rate that takes the high mark of the core that all queues are on, which must be the only one that may
    /// forward. Returns rates and the share of the core that they take, up to the first above the mark.
    pub fn loads(&mut self) -> Result<Vec<(f64, f64)>> {
        let high = self.daemon.ask(&["cores"])?["high"].as_f64();
        ensure!(high == Some(HIGH * 100.0), "the high mark is {high:?} %, not {HIGH}");
        self.packed()?;
        self.begin(FIRST_PPS)?;
        let found = self.until_above();
        self.testbed.generator.stop()?;
        found
    }

    fn until_above(&mut self) -> Result<Vec<(f64, f64)>> {
        let (mut pps, mut seen) = (FIRST_PPS, Vec::new());
        while pps < MOST_PPS {
            self.set_rate(pps)?;
            sys::sleep(Duration::from_millis(50))?;
            let measured = self.load()?;
            seen.push(measured);
            if measured.1 > HIGH {
                return Ok(seen);
            }
            pps *= STEP;
        }
        bail!("{MOST_PPS} packets a second do not take {HIGH} of a core: {seen:?}")
    }

    /// Packets a second that arrive, and the share of a core that all queues take together.
    fn load(&self) -> Result<(f64, f64)> {
        let ran = || -> Result<u64> { Ok(self.queues.times()?.iter().map(|time| time.busy_ns).sum()) };
        let (started, ran_before, before) = (Instant::now(), ran()?, self.testbed.sink.arrived_in_all()?);
        sys::sleep(LOOK)?;
        let (ran_after, after, seconds) =
            (ran()?, self.testbed.sink.arrived_in_all()?, started.elapsed().as_secs_f64());
        Ok(((after - before) as f64 / seconds, (ran_after - ran_before) as f64 / 1e9 / seconds))
    }

    /// Moves since the last call.
    pub fn moves(&mut self) -> Result<Vec<Move>> {
        let events = self.daemon.ask(&["events"])?;
        let events = events.as_array().context("millrace events: not a list")?;
        let new = events.iter().filter(|event| event["number"].as_u64().unwrap_or(0) > self.events_seen);
        let moves: Vec<Move> = new
            .filter(|event| event["from"] != event["to"])
            .map(|event| Move {
                unix_s: event["unix_s"].as_f64().unwrap_or_default(),
                port: event["port"].as_str().unwrap_or_default().into(),
                from: event["from"].clone(),
                to: event["to"].clone(),
                why: event["why"].as_str().unwrap_or_default().into(),
            })
            .collect();
        self.events_seen = events.iter().filter_map(|event| event["number"].as_u64()).max().unwrap_or(0);
        Ok(moves)
    }

    /// Fails if the daemon has ended.
    pub fn check(&self) -> Result<()> {
        self.daemon.programs().iter().try_for_each(|program| program.check())
    }
}

/// NAPI threads of the ports that packets come to. Each port has one queue.
fn queue_threads(testbed: &Testbed, ports_in: usize) -> Result<Threads> {
    let thread = |port: &crate::topology::PortSpec| {
        let found = testbed
            .box_namespace
            .enter(|| crate::netlink::napi_threads(sys::interface_index(&port.name)?))?;
        found.first().copied().with_context(|| format!("{} has no NAPI thread", port.name))
    };
    testbed.topology.ports[..ports_in].iter().map(thread).collect::<Result<_>>().map(Threads)
}
