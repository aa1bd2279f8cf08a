//! The packet generator: a thread on its own core, in the generator's namespace, that keeps generator.bpf.c running in
//! the kernel. Maps hold what to send; counters can be read while it runs. The same thread itself sends frames that do
//! not fit into a page, and frames of a capture (sender.rs, timetable.rs), paced but slower.
//!
//! A stamp is the time when a packet was written. The packet leaves with its batch some microseconds later: see
//! [`Generator::keep_time`].

mod sender;
mod socket;
mod stream;
mod timetable;

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    io::ErrorKind,
    os::fd::AsFd,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    skel::{OpenSkel, SkelBuilder},
};

pub(crate) use socket::PacketSocket;
pub use stream::{MAX_FRAME, MAX_JUMBO, MAX_TARGETS, Order, Pace, Sizes, Stream};
pub use timetable::{Timed, Timetable};

use crate::{
    bpf::{self, Value, generator as skeleton},
    namespace::Namespace,
    packet::{Headers, Target},
    sink::Sink,
    sys,
    topology::Cores,
};

const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Size of the map `templates`.
const MAX_TEMPLATES: usize = 4096;

/// Packets between generator and sink under [`Pace::Saturate`]; a veth ring holds 256.
const WINDOW: u32 = 240;

/// Most packets of all streams sent at once after a delay (the core was taken away); fewer than a veth ring holds.
const BACKLOG: u32 = 128;

/// Packets that may wait for each other before they are sent: those of 20 us, and never so many that the ring runs dry.
/// A larger batch wakes a router less often, but its packets leave late.
fn batch(pps: u64) -> u32 {
    (pps / 50_000).clamp(1, 64) as u32
}

/// The same where times are measured: packets of 2 us.
fn prompt_batch(pps: u64) -> u32 {
    (pps / 500_000).clamp(1, 64) as u32
}

/// One stream's frame length and pace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Frame length without FCS.
    pub frame_bytes: u16,
    /// How fast.
    pub pace: Pace,
}

enum Task {
    Run { frame_bytes: u16, packets: Option<u32>, batch: u32 },
    Send(Arc<sender::Run>),
    Replay(Arc<Timetable>),
    End,
}

/// Counts of a stream's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Handed to the port, whose ring may have been full.
    pub packets: u64,
    /// Due but not sent, because something else had the core.
    pub skipped: u64,
}

/// A generator, idle or running. Dropping it stops it.
pub struct Generator {
    shared: Arc<Shared>,
    running: bool,
    thread: Option<JoinHandle<()>>,
    maps: Maps,
    streams: Vec<Stream>,
    /// The last run, if the sender did it.
    by_sender: Option<Arc<sender::Run>>,
    /// Contents of the maps `targets` and `schedule` before a run.
    targets: Vec<u8>,
    schedules: Vec<Vec<u32>>,
    written_bytes: u16,
    epoch: u32,
    prompt: bool,
    thread_id: i32,
    sink_cores: Vec<usize>,
    session: Option<sys::Weighty>,
}

/// When the generator's thread gets its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Before all normal threads, but after the caller.
    First,
    /// After threads with a real-time priority, such as the caller, and before nearly all others.
    FirstOfNormal,
    /// After all others.
    Last,
}

/// State that the owner and the thread share. It is not a channel: channels of the standard library spin and yield for
/// a moment, and then an owner of higher real-time priority on the same core would wait for ever.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Packets that a port had no room for, in all runs of the sender.
    refused: AtomicU64,
    slots: Mutex<Slots>,
    changed: Condvar,
}

#[derive(Default)]
struct Slots {
    started: Option<Result<(Maps, i32)>>,
    task: Option<Task>,
    done: Option<Result<()>>,
}

impl Shared {
    fn put(&self, change: impl FnOnce(&mut Slots)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `take` returns something, or for `limit`.
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
    run: MapHandle,
    streams: MapHandle,
    sent: MapHandle,
    generated: MapHandle,
    templates: MapHandle,
    targets: MapHandle,
    schedule: MapHandle,
    out: MapHandle,
}

impl Generator {
    /// Starts the idle thread on a core. It will send to `sink`, out of `devices`; their order gives the port numbers.
    pub fn start_thread(devices: &[(&Namespace, String)], sink: &Sink, cores: &Cores) -> Result<Self> {
        sys::handle_wake();
        let arrived = sink.arrived_map()?;
        let shared = Arc::new(Shared::default());
        let open = |(namespace, device): &(&Namespace, String)| {
            let open = || PacketSocket::open(device).with_context(|| format!("packet socket of {device}"));
            namespace.enter(open)
        };
        let sockets = devices.iter().map(open).collect::<Result<Vec<_>>>()?;
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
                serve(&skeleton, &sockets, &inside);
            }
        })?;
        let Some(started) = shared.take(START_LIMIT, |slots| slots.started.take()) else {
            shared.put(|slots| slots.task = Some(Task::End));
            bail!("the generator does not start");
        };
        let (maps, thread_id) = started?;
        let generator = Self {
            shared,
            running: false,
            thread: Some(thread),
            maps,
            streams: Vec::new(),
            by_sender: None,
            targets: Vec::new(),
            schedules: Vec::new(),
            written_bytes: 0,
            epoch: 0,
            prompt: false,
            thread_id,
            session: None,
            sink_cores: if cores.sink.is_empty() { cores.router.clone() } else { cores.sink.clone() },
        };
        for (place, (namespace, device)) in devices.iter().enumerate() {
            // A devmap looks up its devices in the namespace of the thread that writes it.
            let mut value = namespace.interface_index(device)?.to_ne_bytes().to_vec();
            value.extend([0; 4]);
            let update =
                || Ok(generator.maps.out.update(&(place as u32).to_ne_bytes(), &value, MapFlags::ANY)?);
            namespace.enter(update).with_context(|| format!("generator's port {device}"))?;
        }
        Ok(generator)
    }

    /// Sets the targets of a single stream, which sends to them in this order, repeatedly.
    pub fn set_targets(&mut self, targets: Vec<Target>, frame_bytes: u16) -> Result<()> {
        self.set_streams(vec![Stream::new(targets, frame_bytes, Pace::Saturate)])
    }

    /// Sets the streams to send.
    pub fn set_streams(&mut self, streams: Vec<Stream>) -> Result<()> {
        ensure!(!self.running, "the generator is running");
        stream::check(&streams)?;
        let (templates, numbers) = templates(&streams);
        ensure!(
            templates.len() <= MAX_TEMPLATES,
            "targets with {} kinds of headers: at most {MAX_TEMPLATES}",
            templates.len()
        );
        self.written_bytes = written_bytes(&templates);
        let encoded =
            templates.iter().flat_map(|(headers, stamped)| headers.template(*stamped).bytes().to_vec());
        bpf::write_all(&self.maps.templates, &encoded.collect::<Vec<u8>>(), templates.len())?;
        let targets = streams.iter().flat_map(|stream| &stream.targets);
        self.targets = targets.zip(&numbers).flat_map(|(t, &n)| t.value(n).bytes().to_vec()).collect();
        self.schedules = stream::schedules(&streams);
        let places = self.schedules.concat();
        bpf::write_all(
            &self.maps.schedule,
            &places.iter().flat_map(|place| place.to_ne_bytes()).collect::<Vec<u8>>(),
            places.len(),
        )?;
        self.streams = streams;
        Ok(())
    }

    /// Changes the rate of one of the streams, from now on.
    pub fn set_rate(&mut self, stream: usize, pps: u64) -> Result<()> {
        let paced = self.streams.get(stream).is_some_and(|stream| matches!(stream.pace, Pace::Rate(_)));
        ensure!(paced && pps > 0, "stream {stream} cannot be sent at {pps} packets a second");
        self.streams[stream].pace = Pace::Rate(pps);
        if let Some(run) = &self.by_sender {
            run.set_rate(stream, pps);
        }
        self.epoch += 1;
        bpf::write(&self.maps.streams, stream as u32, &self.stream_value(stream))
    }

    /// Should packets of the next run leave within 2 us of their stamp (more above 32 Mpps)? Otherwise they leave in
    /// batches of up to 20 us, as is best to measure rates. A stream without a rate always leaves in batches of 16 or
    /// 64 packets. The clock is then read for every 16th packet, so stamps are up to about 2 us old.
    pub fn keep_time(&mut self, prompt: bool) {
        self.prompt = prompt;
    }

    /// Lets the generator's thread run on these cores only; on all if there are none.
    pub fn allow(&self, cores: &[usize]) -> Result<()> {
        sys::set_affinity(self.thread_id, cores).context("cores of the generator")
    }

    /// Sets which goes first: the generator, or the caller, which must measure on time.
    pub fn set_order(&mut self, turn: Turn) -> Result<()> {
        let (generator, caller, nice) = match turn {
            Turn::First => (Some(1), Some(2), 0),
            Turn::FirstOfNormal => (None, Some(2), -20),
            Turn::Last => (None, None, 19),
        };
        sys::set_realtime(self.thread_id, generator).context("priority of the generator")?;
        sys::set_realtime(0, caller).context("priority of the measuring thread")?;
        sys::set_nice(self.thread_id, nice).context("priority of the generator")?;
        self.session = None;
        if turn == Turn::FirstOfNormal {
            self.session = Some(sys::Weighty::own_session().context("weight of the generator's session")?);
        }
        Ok(())
    }

    /// Ports that the streams leave by.
    pub fn ports(&self) -> BTreeSet<u8> {
        self.streams.iter().flat_map(|stream| &stream.targets).map(|target| target.port).collect()
    }

    /// The streams that are set.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Sends one stream's targets with this frame length and pace until [`Generator::stop`].
    pub fn start(&mut self, load: Load) -> Result<()> {
        self.set_load(load)?;
        self.start_streams()
    }

    /// Sends all streams, each at its pace, until [`Generator::stop`].
    pub fn start_streams(&mut self) -> Result<()> {
        let pps = |stream: &Stream| if let Pace::Rate(pps) = stream.pace { pps } else { 0 };
        let pps = self.streams.iter().map(pps).sum();
        let batch = match self.streams.first().map(|stream| stream.pace) {
            Some(Pace::Saturate) => 16,
            Some(Pace::FlatOut) => 64,
            _ if self.prompt => prompt_batch(pps),
            _ => batch(pps),
        };
        self.order(None, batch, BACKLOG / self.streams.len().max(1) as u32, false)
    }

    /// The same for a generator that runs after a router on its core, at rates that will change. It gives its core away
    /// at once. `batch` is the most packets that leave together, and `backlog` the most of each stream after a delay.
    pub fn start_held_up(&mut self, batch: u32, backlog: u32) -> Result<()> {
        self.order(None, batch, backlog, true)
    }

    /// Sends exactly this many packets, as fast as it can, and returns when they are on the wire.
    pub fn send(&mut self, frame_bytes: u16, packets: u32) -> Result<()> {
        self.set_load(Load { frame_bytes, pace: Pace::FlatOut })?;
        self.send_stream(packets)
    }

    /// The same for the single stream that is set, which must not have a rate.
    pub fn send_stream(&mut self, packets: u32) -> Result<()> {
        let flat_out = self.streams.iter().all(|stream| stream.pace == Pace::FlatOut);
        ensure!(flat_out, "a fixed number of packets can only be sent flat out, not at another pace");
        self.order(Some(packets), 64, BACKLOG, false)?;
        self.wait()
    }

    /// Starts to send frames out of the first port. [`Generator::is_done`] returns true when all are on the wire.
    pub fn replay(&mut self, table: Arc<Timetable>) -> Result<()> {
        ensure!(!self.running, "the generator is running");
        self.begin(Task::Replay(table));
        Ok(())
    }

    /// Has it sent everything, or was there nothing to send?
    pub fn is_done(&mut self) -> Result<bool> {
        if let Some(result) = self.shared.lock().done.take() {
            self.running = false;
            result?;
        }
        Ok(!self.running)
    }

    /// Sets frame length and pace of the single stream.
    pub fn set_load(&mut self, load: Load) -> Result<()> {
        let sizes = Sizes::fixed(load.frame_bytes);
        let [stream] = &mut self.streams[..] else {
            bail!("the generator has {} streams: one is needed", self.streams.len());
        };
        stream.pace = load.pace;
        if stream.sizes != sizes {
            let stream = Stream { sizes, ..stream.clone() };
            self.set_streams(vec![stream])?;
        }
        Ok(())
    }

    fn order(&mut self, packets: Option<u32>, batch: u32, backlog: u32, yields: bool) -> Result<()> {
        ensure!(!self.running, "the generator is running");
        ensure!(!self.streams.is_empty(), "the generator has no targets");
        stream::check(&self.streams)?;
        let saturate = self.streams[0].pace == Pace::Saturate;
        let sink_core = if saturate { only_core(&self.sink_cores)? } else { 0 };
        self.by_sender = None;
        if self.streams.iter().any(|stream| stream.sizes.max() > MAX_FRAME) {
            ensure!(
                !saturate,
                "frames of more than {MAX_FRAME} bytes are sent at a rate or flat out: the sender does not see what arrives"
            );
            let run = Arc::new(sender::Run::new(&self.streams, &self.schedules, packets));
            self.by_sender = Some(run.clone());
            self.begin(Task::Send(run));
            return Ok(());
        }
        let frame_bytes = self.streams.iter().map(|stream| stream.sizes.max()).max().unwrap_or_default();
        let count = self.streams.len() as u32;
        let run = skeleton::types::run {
            limit: packets.map_or(0, u64::from),
            stream_count: count,
            frame_bytes: frame_bytes.into(),
            written_bytes: self.written_bytes.into(),
            backlog,
            window: if saturate { WINDOW } else { 0 },
            sink_cpu: sink_core as u32,
            stamped: self.streams.iter().all(Stream::is_stamped).into(),
            yields: yields.into(),
        };
        bpf::write(&self.maps.run, 0, &run)?;
        bpf::write(&self.maps.generated, 0, &skeleton::types::generated::default())?;
        for stream in 0..self.streams.len() {
            bpf::write(&self.maps.streams, stream as u32, &self.stream_value(stream))?;
            bpf::write(&self.maps.sent, stream as u32, &skeleton::types::sent::default())?;
        }
        // Sequence numbers start again.
        bpf::write_all(
            &self.maps.targets,
            &self.targets,
            self.targets.len() / size_of::<skeleton::types::target>(),
        )?;
        self.begin(Task::Run { frame_bytes, packets, batch });
        Ok(())
    }

    fn begin(&mut self, task: Task) {
        self.shared.stop.store(false, Ordering::Relaxed);
        self.shared.put(|slots| slots.task = Some(task));
        self.running = true;
    }

    fn stream_value(&self, index: usize) -> skeleton::types::stream {
        let stream = &self.streams[index];
        let mut sizes = [0; 16];
        sizes[..stream.sizes.0.len()].copy_from_slice(&stream.sizes.0);
        skeleton::types::stream {
            first_target: self.streams[..index].iter().map(|stream| stream.targets.len() as u32).sum(),
            target_count: stream.targets.len() as u32,
            first_scheduled: self.schedules[..index].iter().map(|schedule| schedule.len() as u32).sum(),
            scheduled_count: self.schedules[index].len() as u32,
            rate: if let Pace::Rate(pps) = stream.pace { per_2_30_ns(pps) } else { 0 },
            epoch: self.epoch,
            size_count: stream.sizes.0.len() as u32,
            sizes,
        }
    }

    /// Stops. Packets counted as sent are then on the wire. Does nothing when idle.
    pub fn stop(&mut self) -> Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        let end = Instant::now() + STOP_LIMIT;
        while self.running {
            // Wake it repeatedly: a wake-up just before the system call begins is lost.
            if let (true, Some(thread)) = (self.shared.stop.load(Ordering::Relaxed), &self.thread) {
                sys::wake(thread);
            }
            if let Some(result) = self.shared.take(Duration::from_millis(2), |slots| slots.done.take()) {
                self.running = false;
                let failed = self.generated()?.failed;
                ensure!(failed == 0, "the generator could not send {failed} packets that were due");
                return result;
            }
            ensure!(Instant::now() < end, "the generator does not stop");
        }
        Ok(())
    }

    /// Packets handed to the port since the start of this run. Its ring may have been full: see [`crate::losses`].
    pub fn packets(&self) -> Result<u64> {
        match &self.by_sender {
            Some(run) => Ok(run.sent().iter().map(|sent| sent.packets).sum()),
            None => Ok(self.generated()?.packets),
        }
    }

    /// Packets of all runs that were counted as sent, but that a port had no room for, as far as the generator knows.
    /// It knows this of frames that do not fit into a page. For others see [`crate::losses`].
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Packets since the start of this run that were due but not sent, because something else had the core.
    pub fn skipped(&self) -> Result<u64> {
        Ok(self.sent()?.iter().map(|sent| sent.skipped).sum())
    }

    /// Packets of each stream since the start of this run.
    pub fn sent(&self) -> Result<Vec<Sent>> {
        if let Some(run) = &self.by_sender {
            return Ok(run.sent());
        }
        let sent = |stream| -> Result<Sent> {
            let row: skeleton::types::sent = bpf::read(&self.maps.sent, stream as u32)?;
            Ok(Sent { packets: row.packets, skipped: row.skipped })
        };
        (0..self.streams.len()).map(sent).collect()
    }

    /// Packets of each flow in this run, in the order of streams and their targets.
    pub fn sent_by_flow(&self) -> Result<Vec<u32>> {
        if let Some(run) = &self.by_sender {
            return Ok(run.sent_by_flow());
        }
        let count = self.targets.len() / size_of::<skeleton::types::target>();
        let rows: Vec<skeleton::types::target> = bpf::read_all(&self.maps.targets, count)?;
        Ok(rows.iter().map(|target| target.sequence).collect())
    }

    fn generated(&self) -> Result<skeleton::types::generated> {
        bpf::read(&self.maps.generated, 0)
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        let _ = self.stop();
        self.shared.put(|slots| slots.task = Some(Task::End));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Reset the thread that measured: its core is no longer the generator's.
        let _ = sys::set_realtime(0, None);
        let _ = sys::set_affinity(0, &[]);
    }
}

/// Prepares the generator's thread: its namespace, its core, its program.
fn prepare(
    namespace: &File,
    arrived: &MapHandle,
    core: usize,
) -> Result<(skeleton::GeneratorSkel<'static>, Maps)> {
    sys::enter_network_namespace(namespace.as_fd()).context("generator's namespace")?;
    sys::set_affinity(0, &[core]).context("pinning the generator")?;
    let skeleton = load_program(arrived)?;
    let maps = Maps {
        run: MapHandle::try_from(&skeleton.maps.run)?,
        streams: MapHandle::try_from(&skeleton.maps.streams)?,
        sent: MapHandle::try_from(&skeleton.maps.sent)?,
        generated: MapHandle::try_from(&skeleton.maps.generated)?,
        templates: MapHandle::try_from(&skeleton.maps.templates)?,
        targets: MapHandle::try_from(&skeleton.maps.targets)?,
        schedule: MapHandle::try_from(&skeleton.maps.schedule)?,
        out: MapHandle::try_from(&skeleton.maps.out)?,
    };
    Ok((skeleton, maps))
}

/// Work of the generator's thread: runs tasks until the last one.
fn serve(skeleton: &skeleton::GeneratorSkel<'_>, sockets: &[PacketSocket], shared: &Shared) {
    loop {
        match shared.take(Duration::from_secs(3600), |slots| slots.task.take()) {
            Some(Task::Run { frame_bytes, packets, batch }) => {
                let result = run(skeleton, frame_bytes, packets, batch, &shared.stop);
                shared.put(|slots| slots.done = Some(result));
            }
            Some(Task::Send(run)) => {
                let result = sender::send(&run, sockets, &shared.stop, &shared.refused);
                shared.put(|slots| slots.done = Some(result));
            }
            Some(Task::Replay(table)) => {
                let result = timetable::send(&table, &sockets[0], &shared.stop, &shared.refused);
                shared.put(|slots| slots.done = Some(result));
            }
            Some(Task::End) => return,
            None => {}
        }
    }
}

/// The only core of the sink. The window counts what this core has not received yet; packets on other cores would be
/// missed.
fn only_core(sink_cores: &[usize]) -> Result<usize> {
    let [core] = sink_cores else {
        bail!(
            "nothing can be saturated with a sink on cores {sink_cores:?}: the generator follows one of them; give the \
             topology's sink one core, as in sink = [{}], or send at a rate",
            sink_cores.first().copied().unwrap_or_default()
        );
    };
    Ok(*core)
}

fn per_2_30_ns(pps: u64) -> u64 {
    (((u128::from(pps) << 30) + 500_000_000) / 1_000_000_000).max(1) as u64
}

/// Headers, and whether a stamp follows.
type Kind = (Headers, bool);

/// The kinds of packets, and the number of each target's kind.
fn templates(streams: &[Stream]) -> (Vec<Kind>, Vec<u16>) {
    let (mut kinds, mut numbers, mut known) = (Vec::new(), Vec::new(), HashMap::new());
    for stream in streams {
        for target in &stream.targets {
            let kind = (target.headers(), stream.sizes.min() >= target.min_stamped());
            let number = *known.entry(kind).or_insert_with(|| {
                kinds.push(kind);
                kinds.len() - 1
            });
            numbers.push(number as u16);
        }
    }
    (kinds, numbers)
}

/// Bytes that must be written into each frame, so that nothing of another kind is left in it.
fn written_bytes(kinds: &[Kind]) -> u16 {
    let bytes = kinds
        .iter()
        .map(|(headers, stamped)| if *stamped { headers.stamped_bytes() } else { headers.bytes() });
    bytes.max().unwrap_or_default()
}

fn load_program(arrived: &MapHandle) -> Result<skeleton::GeneratorSkel<'static>> {
    let mut open = skeleton::GeneratorSkelBuilder::default().open(bpf::storage())?;
    open.maps.arrived_in_all.reuse_fd(arrived.as_fd()).context("the sink's counter")?;
    open.load().context("generator program")
}

/// Runs the program until it must stop, or once for each of `packets`.
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
    fn a_sink_on_several_cores_cannot_be_saturated() {
        assert_eq!(only_core(&[2]).unwrap(), 2);
        let error = only_core(&[1, 2]).unwrap_err().to_string();
        let expected = "nothing can be saturated with a sink on cores [1, 2]: the generator follows one of them; give the \
                        topology's sink one core, as in sink = [1], or send at a rate";
        assert_eq!(error, expected);
    }

    #[test]
    fn pacing_is_exact_enough() {
        for pps in [1000u64, 10_000, 100_000, 2_000_000] {
            let sent_in_a_second = (1_000_000_000 * per_2_30_ns(pps)) >> 30;
            assert!(sent_in_a_second.abs_diff(pps) * 1000 <= pps, "{pps}: {sent_in_a_second}");
        }
    }
}
