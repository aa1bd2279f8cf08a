//! The packet generator: a thread on its own core, in the generator's namespace, that keeps the kernel running
//! generator.bpf.c. What to send is in maps; counters are read while it runs.

use std::{
    fs::File,
    io::ErrorKind,
    os::fd::AsFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    skel::{OpenSkel, SkelBuilder},
};
use serde::Serialize;

use crate::{
    addresses::{GENERATOR_MAC, GENERATOR4, GENERATOR6},
    bpf::{self, Value, generator as skeleton},
    namespace::Namespace,
    packet::Target,
    sink::Sink,
    sys,
    topology::Cores,
};

/// Most targets at once: size of the map `targets`.
pub const MAX_TARGETS: usize = 1 << 20;
/// Longest frame without FCS: one page less headroom and the tail the kernel keeps.
pub const MAX_FRAME: u16 = 3400;

const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Packets between generator and sink under [`Pace::Saturate`]: a veth ring holds 256.
const WINDOW: u32 = 240;

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// As fast as the sink receives: always enough on the way to keep a router busy, never more than its rings hold. What
    /// comes out is the capacity without loss (RFC 2544 26.1). Sending more would cost the router time that a NIC's
    /// full ring would not: the kernel frees the frames that find the ring full under a lock that the router's core
    /// needs to free its own.
    Saturate,
    /// As fast as the generator can; the ring of the first port overflows.
    FlatOut,
    /// Packets per second.
    Rate(u64),
}

impl Pace {
    /// Packets that may wait for each other before they are sent: those of 20 us, and never so many that the ring runs dry.
    fn batch(self) -> u32 {
        match self {
            Self::Saturate => 16,
            Self::FlatOut => 64,
            Self::Rate(pps) => (pps / 50_000).clamp(1, 64) as u32,
        }
    }
}

/// What to send, and how fast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Frame length without FCS.
    pub frame_bytes: u16,
    /// How fast.
    pub pace: Pace,
}

#[derive(Clone, Copy)]
enum Order {
    Run { frame_bytes: u16, packets: Option<u32>, batch: u32 },
    End,
}

/// A generator, idle or running. Dropped, it stops.
pub struct Generator {
    shared: Arc<Shared>,
    running: bool,
    thread: Option<JoinHandle<()>>,
    maps: Maps,
    targets: Vec<Target>,
    thread_id: i32,
    sink_core: usize,
}

/// Between the owner and the thread. Not a channel: those of the standard library spin and yield for a moment, and an owner
/// of higher real-time priority on the same core would then wait for ever.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    slots: Mutex<Slots>,
    changed: Condvar,
}

#[derive(Default)]
struct Slots {
    started: Option<Result<(Maps, i32)>>,
    order: Option<Order>,
    done: Option<Result<()>>,
}

impl Shared {
    fn put(&self, change: impl FnOnce(&mut Slots)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until there is something to take, or for `limit`.
    fn take<T>(&self, limit: Duration, mut take: impl FnMut(&mut Slots) -> Option<T>) -> Option<T> {
        let mut slots = self.lock();
        let end = Instant::now() + limit;
        loop {
            if let Some(taken) = take(&mut slots) {
                return Some(taken);
            }
            let left = end.checked_duration_since(Instant::now())?;
            slots = self.changed.wait_timeout(slots, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Maps {
    load: MapHandle,
    generated: MapHandle,
    targets: MapHandle,
    out: MapHandle,
}

impl Generator {
    /// Starts the idle thread on a core; it will send out of `devices`, told apart by their place here, to `sink`.
    pub fn start_thread(devices: &[(&Namespace, String)], sink: &Sink, cores: &Cores) -> Result<Self> {
        sys::handle_wake();
        let arrived = sink.arrived_map()?;
        let shared = Arc::new(Shared::default());
        let (first, _) = devices.first().context("the generator has no devices")?;
        let (file, core, inside) = (first.handle()?, cores.generator, shared.clone());
        let thread = thread::Builder::new().name("generator".into()).spawn(move || {
            let started = prepare(&file, &arrived, core);
            let (skeleton, started) = match started {
                Ok((skeleton, maps)) => (Some(skeleton), Ok((maps, sys::thread_id()))),
                Err(error) => (None, Err(error)),
            };
            inside.put(|slots| slots.started = Some(started));
            if let Some(skeleton) = skeleton {
                serve(&skeleton, &inside);
            }
        })?;
        let started = shared.take(START_LIMIT, |slots| slots.started.take());
        let (maps, thread_id) = started.context("the generator does not start")??;
        for (place, (namespace, device)) in devices.iter().enumerate() {
            // A devmap looks its devices up in the namespace of whoever writes it.
            let mut value = namespace.interface_index(device)?.to_ne_bytes().to_vec();
            value.extend([0; 4]);
            let update = || Ok(maps.out.update(&(place as u32).to_ne_bytes(), &value, MapFlags::ANY)?);
            namespace.enter(update).with_context(|| format!("generator's port {device}"))?;
        }
        Ok(Self {
            shared,
            running: false,
            thread: Some(thread),
            maps,
            targets: Vec::new(),
            thread_id,
            sink_core: cores
                .sink
                .first()
                .or(cores.router.first())
                .copied()
                .context("the sink has no core")?,
        })
    }

    /// What to send to, in this order, again and again.
    pub fn set_targets(&mut self, targets: Vec<Target>, frame_bytes: u16) -> Result<()> {
        ensure!(!self.running, "the generator is running");
        ensure!((1..=MAX_TARGETS).contains(&targets.len()), "{} targets: 1 to {MAX_TARGETS}", targets.len());
        let shortest = targets.iter().map(Target::min_frame).max().unwrap_or_default();
        ensure!(
            (shortest..=MAX_FRAME).contains(&frame_bytes),
            "{frame_bytes}-byte frames: {shortest} to {MAX_FRAME}"
        );
        let keys: Vec<u8> = (0..targets.len() as u32).flat_map(u32::to_ne_bytes).collect();
        let values: Vec<u8> = targets.iter().flat_map(|t| t.value(frame_bytes).bytes().to_vec()).collect();
        self.maps.targets.update_batch(&keys, &values, targets.len() as u32, MapFlags::ANY, MapFlags::ANY)?;
        self.targets = targets;
        Ok(())
    }

    /// Before all normal threads (but after the caller, who is to measure on time), or after them.
    pub fn go_first(&self, first: bool) -> Result<()> {
        const NICE: i32 = 19;
        let level = |level| first.then_some(level);
        sys::set_realtime(self.thread_id, level(1)).context("priority of the generator")?;
        sys::set_realtime(0, level(2)).context("priority of the measuring thread")?;
        sys::set_nice(self.thread_id, if first { 0 } else { NICE }).context("priority of the generator")
    }

    /// As set.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Sends until [`Generator::stop`].
    pub fn start(&mut self, load: Load) -> Result<()> {
        self.order(load, None)
    }

    /// Sends exactly so many packets, as fast as it can, and returns when they are on the wire.
    pub fn send(&mut self, frame_bytes: u16, packets: u32) -> Result<()> {
        self.order(Load { frame_bytes, pace: Pace::FlatOut }, Some(packets))?;
        self.wait()
    }

    fn order(&mut self, load: Load, packets: Option<u32>) -> Result<()> {
        ensure!(!self.running, "the generator is running");
        ensure!(!self.targets.is_empty(), "the generator has no targets");
        let value = skeleton::types::load {
            smac: GENERATOR_MAC,
            frame_bytes: load.frame_bytes,
            source4: u32::from_ne_bytes(GENERATOR4.octets()),
            target_count: self.targets.len() as u32,
            source6: GENERATOR6.octets(),
            rate: if let Pace::Rate(pps) = load.pace { per_2_30_ns(pps) } else { 0 },
            limit: packets.map_or(0, u64::from),
            window: if load.pace == Pace::Saturate { WINDOW } else { 0 },
            sink_cpu: self.sink_core as u32,
        };
        bpf::write(&self.maps.load, 0, &value)?;
        bpf::write(&self.maps.generated, 0, &skeleton::types::generated::default())?;
        self.shared.stop.store(false, Ordering::Relaxed);
        let order = Order::Run { frame_bytes: load.frame_bytes, packets, batch: load.pace.batch() };
        self.shared.put(|slots| slots.order = Some(order));
        self.running = true;
        Ok(())
    }

    /// Stops; what was sent is on the wire. Does nothing when idle.
    pub fn stop(&mut self) -> Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        let end = Instant::now() + STOP_LIMIT;
        while self.running {
            // Woken again and again: a wake-up just before the system call begins is lost.
            if let (true, Some(thread)) = (self.shared.stop.load(Ordering::Relaxed), &self.thread) {
                sys::wake(thread);
            }
            if let Some(result) = self.shared.take(Duration::from_millis(2), |slots| slots.done.take()) {
                self.running = false;
                return result;
            }
            ensure!(Instant::now() < end, "the generator does not stop");
        }
        Ok(())
    }

    /// Packets handed to the port since the start of this run. Its ring may have been full: see [`crate::losses`].
    pub fn packets(&self) -> Result<u64> {
        Ok(self.generated()?.packets)
    }

    /// Packets since the start of this run that were due but not sent, because somebody else had the core.
    pub fn skipped(&self) -> Result<u64> {
        Ok(self.generated()?.skipped)
    }

    fn generated(&self) -> Result<skeleton::types::generated> {
        bpf::read(&self.maps.generated, 0)
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        let _ = self.stop();
        self.shared.put(|slots| slots.order = Some(Order::End));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = sys::set_realtime(0, None);
    }
}

/// In the generator's thread: its place, its core, its program.
fn prepare(
    namespace: &File,
    arrived: &MapHandle,
    core: usize,
) -> Result<(skeleton::GeneratorSkel<'static>, Maps)> {
    sys::enter_network_namespace(namespace.as_fd()).context("generator's namespace")?;
    sys::set_affinity(0, &[core]).context("pinning the generator")?;
    let skeleton = load_program(arrived)?;
    let maps = Maps {
        load: MapHandle::try_from(&skeleton.maps.load)?,
        generated: MapHandle::try_from(&skeleton.maps.generated)?,
        targets: MapHandle::try_from(&skeleton.maps.targets)?,
        out: MapHandle::try_from(&skeleton.maps.out)?,
    };
    Ok((skeleton, maps))
}

/// In the generator's thread: orders, until the last.
fn serve(skeleton: &skeleton::GeneratorSkel<'_>, shared: &Shared) {
    loop {
        match shared.take(Duration::from_secs(3600), |slots| slots.order.take()) {
            Some(Order::Run { frame_bytes, packets, batch }) => {
                let result = run(skeleton, frame_bytes, packets, batch, &shared.stop);
                shared.put(|slots| slots.done = Some(result));
            }
            Some(Order::End) => return,
            None => {}
        }
    }
}

fn per_2_30_ns(pps: u64) -> u64 {
    ((u128::from(pps) << 30) / 1_000_000_000).max(1) as u64
}

fn load_program(arrived: &MapHandle) -> Result<skeleton::GeneratorSkel<'static>> {
    let mut open = skeleton::GeneratorSkelBuilder::default().open(bpf::storage())?;
    open.maps.arrived_in_all.reuse_fd(arrived.as_fd()).context("the sink's counter")?;
    open.load().context("generator program")
}

/// Runs the program until told to stop, or once for each of `packets`.
fn run(
    skeleton: &skeleton::GeneratorSkel<'_>,
    frame_bytes: u16,
    packets: Option<u32>,
    batch: u32,
    stop: &AtomicBool,
) -> Result<()> {
    let frame = vec![0; frame_bytes.into()];
    while !stop.load(Ordering::Relaxed) {
        // Setting up and tearing down takes about 20 ms, so it is one call, ended by a signal (EINTR).
        let repeat = packets.unwrap_or(i32::MAX as u32);
        match bpf::run_live(skeleton.progs.generate.as_fd(), &frame, repeat, batch) {
            Ok(()) if packets.is_some() => return Ok(()),
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(error).context("generator (BPF_F_TEST_XDP_LIVE_FRAMES needs Linux 5.18)");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pacing_is_exact_enough() {
        for pps in [10_000u64, 100_000, 2_000_000] {
            let sent_in_a_second = (1_000_000_000 * per_2_30_ns(pps)) >> 30;
            assert!(sent_in_a_second.abs_diff(pps) * 1000 <= pps, "{pps}: {sent_in_a_second}");
        }
    }
}
