//! Sources that never run dry, frames, and the paper's workloads (P11) as chains of the product's elements.

use std::{
    collections::VecDeque,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use logic::{
    elements::{Chain, CrcAppend, Element, Verdict},
    memory::HeapMemory,
    paths::{Bursts, Counters, PathId, Resource, Settings, Used},
    worker::{Exchange, Frame, Worker},
};
use router::user_plane::{
    calibrate::Buffer,
    workers::{Clock, Counter},
};

use crate::{
    paths::{
        esp,
        forwarding::{self, FRAME, HEAD_ROOM, INGRESS, SMALLER_TABLE, Trace, copy, forward},
    },
    prefixes, sys,
};

/// Number of random destinations: more of a table than caches hold.
const DESTINATIONS: usize = 1 << 18;
/// Frames of a source.
const FRAMES: usize = 512;
/// R, as workers have it by default.
const LONGEST_RUN: Duration = Duration::from_micros(100);
/// The clock is read after this many turns.
const TURNS: u32 = 16;

pub(super) type Packet = Box<Buffer>;

/// An RX queue that always has packets, and the frames that they come in.
pub(super) struct Source {
    trace: Arc<Trace>,
    next: usize,
    free: VecDeque<Packet>,
}

impl Source {
    /// Packets of the trace, repeated. `port` is where they come in, if it matters.
    pub fn new(trace: &Arc<Trace>, port: Option<u8>) -> Self {
        Self::from(trace, 0.0, port)
    }

    /// The same, starting at this part of the trace. Two paths at the same place would look up the same at the same
    /// time.
    pub fn from(trace: &Arc<Trace>, part: f64, port: Option<u8>) -> Self {
        let frame = |_| {
            let mut frame = Buffer::new(FRAME);
            frame.ingress = INGRESS;
            frame.ingress.port = port.unwrap_or(INGRESS.port);
            Box::new(frame)
        };
        let next = (trace.flows() as f64 * part) as usize % trace.flows();
        Self { trace: trace.clone(), next, free: (0..FRAMES).map(frame).collect() }
    }

    /// Receives up to this many packets.
    pub fn receive(&mut self, most: usize, to: &mut Vec<Packet>) {
        let Self { trace, next, free } = self;
        for mut frame in free.drain(..most.min(free.len())) {
            copy(frame.parts_mut().0, trace.packet(*next));
            *next = if *next + 1 < trace.flows() { *next + 1 } else { 0 };
            frame.set_range(HEAD_ROOM..HEAD_ROOM + trace.bytes);
            to.push(frame);
        }
    }

    /// Returns a frame for another packet.
    pub fn give_back(&mut self, frame: Packet) {
        self.free.push_back(frame);
    }

    /// Does it have frames to receive into?
    pub fn has_frames(&self) -> bool {
        !self.free.is_empty()
    }
}

/// Packets that left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub packets: u64,
    /// Bytes into the core and out of it.
    pub io_bytes: u64,
    /// Packets that went elsewhere, which is not part of the experiment.
    pub lost: u64,
}

impl Sent {
    pub fn count(&mut self, came: usize, frame: &Packet, verdict: Verdict) {
        if let Verdict::To(_) = verdict {
            self.packets += 1;
            self.io_bytes += (came + frame.data().len()) as u64;
        } else {
            self.lost += 1;
        }
    }
}

/// A source for each path, and counts of its packets.
pub(super) struct Memory {
    pub paths: Vec<(Source, Sent)>,
    /// A counter of the CPU, where one is needed.
    pub counter: Option<Counter>,
}

impl Memory {
    pub fn new(sources: impl IntoIterator<Item = Source>) -> Self {
        Self { paths: sources.into_iter().map(|source| (source, Sent::default())).collect(), counter: None }
    }
}

impl Exchange for Memory {
    type Frame = Packet;

    fn ports(&self) -> u64 {
        u64::MAX
    }

    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Packet>) {
        if let Some((source, _)) = self.paths.get_mut(usize::from(path)) {
            source.receive(most, to);
        }
    }

    fn settle(&mut self, path: PathId, frame: Packet, verdict: Verdict) {
        if let Some((source, sent)) = self.paths.get_mut(usize::from(path)) {
            sent.count(source.trace.bytes, &frame, verdict);
            source.give_back(frame);
        }
    }

    fn read_counters(&mut self) -> Used {
        self.counter.as_ref().map(Counter::used).unwrap_or_default()
    }
}

/// The workloads of P11, and their packets.
pub(super) struct World {
    routes: Arc<HeapMemory>,
    /// 64 bytes, including the checksum that follows each on Ethernet, to random destinations.
    pub small: Arc<Trace>,
    /// The same to 1,024 destinations.
    pub few: Arc<Trace>,
    /// Packets of 1,024 bytes.
    pub large: Arc<Trace>,
}

impl World {
    pub fn new() -> Result<Self> {
        let full = prefixes::prefixes(prefixes::default_file().as_deref(), SMALLER_TABLE, 0)?;
        let prefixes = full.v4.get(..SMALLER_TABLE).unwrap_or(&full.v4);
        Ok(Self {
            routes: forwarding::tables(prefixes),
            small: Arc::new(Trace::new(DESTINATIONS, 60, prefixes)),
            few: Arc::new(Trace::new(1024, 60, prefixes)),
            large: Arc::new(Trace::new(1 << 12, 1020, prefixes)),
        })
    }

    pub fn fwd(&self) -> Vec<Box<dyn Element>> {
        vec![forward()]
    }

    pub fn rtr(&self) -> Vec<Box<dyn Element>> {
        forwarding::router(&self.routes)
    }

    /// RTR, with a CRC appended: about 30 % more where routes are in caches.
    pub fn dearer(&self) -> Vec<Box<dyn Element>> {
        self.rtr().into_iter().chain([Box::new(CrcAppend) as Box<dyn Element>]).collect()
    }

    pub fn ipsec(&self) -> Result<Vec<Box<dyn Element>>> {
        Ok(esp::encrypting()?.1)
    }

    pub fn crc(&self) -> Vec<Box<dyn Element>> {
        vec![Box::new(CrcAppend), forward()]
    }
}

/// Packets of a few flows, which are only forwarded. Their destinations do not matter.
pub(super) fn plain() -> Result<Arc<Trace>> {
    let made_up = prefixes::prefixes(None, 1024, 0)?;
    Ok(Arc::new(Trace::new(1024, 60, &made_up.v4)))
}

/// The product's settings, with at most this many packets in a run.
pub(super) fn settings(clock: Clock, most: u32) -> Settings {
    let longest_cycles = clock.cycles_of(LONGEST_RUN).try_into().unwrap_or(u32::MAX);
    Settings {
        bursts: Bursts { longest_cycles, switch_cycles: 0, most },
        sample_every: 20,
        counted: Counters::CYCLES.with(Resource::Io),
    }
}

/// A worker with these paths, all of one router: weight and chain of each.
pub(super) fn worker(
    settings: Settings,
    paths: impl IntoIterator<Item = (u16, Vec<Box<dyn Element>>)>,
) -> Result<Worker<Packet>> {
    let mut worker = Worker::new(settings)?;
    for (weight, chain) in paths {
        worker.add(0, weight, Chain::new(chain)?)?;
    }
    Ok(worker)
}

/// What a path had of its core, as counted here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Got {
    pub packets: u64,
    pub cycles: u64,
    pub io_bytes: u64,
}

/// Runs paths that always have packets for this long. Returns results by path.
pub(super) fn run(
    worker: &mut Worker<Packet>,
    memory: &mut Memory,
    clock: Clock,
    time: Duration,
    mut meter: impl FnMut() -> u64,
) -> Result<Vec<Got>> {
    let mut got = vec![Got::default(); memory.paths.len()];
    let before: Vec<Sent> = memory.paths.iter().map(|(_, sent)| *sent).collect();
    let ends = clock.cycles() + clock.cycles_of(time);
    let mut last = clock.cycles();
    worker.pause();
    while last < ends {
        let turn = worker.turn(memory, &mut meter).context("all paths sleep")?;
        let now = clock.cycles();
        if let Some(got) = got.get_mut(usize::from(turn.path)) {
            got.packets += turn.packets as u64;
            got.cycles += now - last;
        }
        last = now;
    }
    for (got, ((_, sent), before)) in got.iter_mut().zip(memory.paths.iter().zip(before)) {
        ensure!(sent.lost == 0, "{} packets did not leave by a port", sent.lost);
        got.io_bytes = sent.io_bytes - before.io_bytes;
    }
    Ok(got)
}

/// Results of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub pps: f64,
    /// Share of the time. Something else had its core for the rest.
    pub cpu: f64,
}

/// Takes turns for this long, after a twentieth of it that does not count. A turn returns the packets that left.
pub(super) fn rate(time: Duration, mut turn: impl FnMut() -> u64) -> Rate {
    let mut for_so_long = |time: Duration| {
        let (begun, mut packets) = (Instant::now(), 0);
        while begun.elapsed() < time {
            packets += (0..TURNS).map(|_| turn()).sum::<u64>();
        }
        packets as f64 / begun.elapsed().as_secs_f64()
    };
    for_so_long(time / 20);
    let (begun, before) = (Instant::now(), thread_ns());
    let pps = for_so_long(time);
    let cpu = (thread_ns() - before) as f64 / begun.elapsed().as_nanos() as f64;
    Rate { pps, cpu }
}

/// CPU time of this thread.
fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs `what` on a core, in a thread of its own.
pub(super) fn on_core<T: Send>(core: usize, what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let mut all = on_cores([(core, what)])?;
    all.pop().context("a thread returned nothing")
}

/// Runs each on its core, at the same time.
pub(super) fn on_cores<T: Send, F: FnOnce() -> Result<T> + Send>(
    each: impl IntoIterator<Item = (usize, F)>,
) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let start = |(core, what): (usize, F)| {
            scope.spawn(move || {
                sys::set_affinity(sys::thread_id(), &[core]).with_context(|| format!("core {core}"))?;
                what()
            })
        };
        let threads: Vec<_> = each.into_iter().map(start).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a worker panicked"))?);
        joined.collect()
    })
}
