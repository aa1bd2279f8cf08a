//! Figures 6 to 9: the cost of packets that change cores or wait in a queue, and of cores that share a port's queue.
//! All only forward.

use std::{
    collections::VecDeque,
    hint::spin_loop,
    iter,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use logic::{
    elements::Verdict,
    paths::PathId,
    worker::{Exchange, Frame, Worker},
};
use router::user_plane::workers::Clock;
use serde_json::json;

use super::{
    bars,
    bed::{self, Memory, Packet, Rate, Sent, Source, on_core, on_cores, rate, settings, worker},
    cores, sample, skipped,
};
use crate::{
    figure::{Axis, Figure, Reference},
    figures::{FiguresOptions, published::PaperFigure},
    paths::forwarding::{Trace, forward},
    record::Recorder,
};

/// Most packets of a run.
const BURST: u32 = 32;
/// Larger than the number of all frames of a path.
const RING: usize = 1024;
/// Descriptors of a TX ring.
const TX_RING: usize = 1024;
/// Spins before a thread lets others run: the thread that holds the lock may have lost its core.
const SPINS: u32 = 10_000;

/// Figures of packets a second, and of their ratio to one of the ways.
fn figures(figure: &PaperFigure, ours: &str, to: &str, recorder: &mut Recorder) -> Result<()> {
    let y = Axis::new("/sample/pps", "throughput", "Mpps").times(1e-6);
    let bars = bars(figure, y, ours);
    let absolute = Figure {
        name: format!("{} in Mpps", figure.id),
        title: format!("{}, in Mpps", bars.title),
        ..bars.clone()
    };
    recorder.figure(&bars.relative_to(Reference::Series(to.into())))?;
    recorder.figure(&absolute)
}

type Way<'a> = (&'a str, &'a dyn Fn() -> Result<Vec<Rate>>);

/// Measures the ways in turn.
fn compare(
    figure: &PaperFigure,
    ways: &[Way<'_>],
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    for repeat in 0..options.repeat.into() {
        for (subject, way) in ways {
            let rates = way()?;
            let pps: f64 = rates.iter().map(|rate| rate.pps).sum();
            let cpu: Vec<f64> = rates.iter().map(|rate| rate.cpu).collect();
            sample(figure, subject, json!({}), repeat, json!({"pps": pps, "cpu": cpu}), recorder)?;
        }
    }
    Ok(())
}

fn time(options: &FiguresOptions) -> Duration {
    Duration::from_secs_f64(options.seconds)
}

/// A worker whose paths forward.
fn forwarder(paths: usize, clock: Clock) -> Result<Worker<Packet>> {
    worker(settings(clock, BURST), iter::repeat_with(|| (1, vec![forward()])).take(paths))
}

/// An exchange that knows whether a path has packets now.
trait Ends: Exchange<Frame = Packet> {
    fn has_packets(&self, path: PathId) -> bool;
}

/// There are always packets.
impl Ends for Memory {
    fn has_packets(&self, _: PathId) -> bool {
        true
    }
}

/// One turn, as in a worker's loop (`router::user_plane::workers`): paths with packets are awake afterwards, others
/// asleep. Returns the number of packets of the turn.
fn turn(worker: &mut Worker<Packet>, ends: &mut impl Ends, paths: PathId, clock: Clock) -> u64 {
    let turn = worker.turn(ends, || clock.cycles());
    for path in 0..paths {
        if ends.has_packets(path) { worker.wake(path) } else { worker.sleep(path) }
    }
    if turn.is_none() {
        spin_loop();
    }
    turn.map_or(0, |turn| turn.packets as u64)
}

/// Each core receives and sends its own packets.
fn apart(pair: [usize; 2], trace: &Arc<Trace>, time: Duration) -> Result<Vec<Rate>> {
    on_cores(pair.map(|core| (core, move || alone(trace, time))))
}

/// Receives and sends in one go, on this core.
fn alone(trace: &Arc<Trace>, time: Duration) -> Result<Rate> {
    let clock = Clock::of_process();
    let (mut worker, mut memory) = (forwarder(1, clock)?, Memory::new([Source::new(trace, None)]));
    let rate = rate(time, || turn(&mut worker, &mut memory, 1, clock));
    whole(&memory.paths.iter().map(|(_, sent)| *sent).collect::<Vec<_>>())?;
    Ok(rate)
}

fn whole(sent: &[Sent]) -> Result<()> {
    ensure!(sent.iter().all(|sent| sent.packets > 0 && sent.lost == 0), "packets were lost: {sent:?}");
    Ok(())
}

/// Receives packets and hands them on. Sends those that it keeps itself.
struct Front {
    sources: Vec<Source>,
    to: Vec<super::crossing::Sender>,
    back: Vec<super::crossing::Receiver>,
    /// Does it keep every second packet?
    keeps_half: bool,
    odd: bool,
    kept: u64,
}

impl Exchange for Front {
    type Frame = Packet;

    fn ports(&self) -> u64 {
        u64::MAX
    }

    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Packet>) {
        let path = usize::from(path);
        if let (Some(source), Some(back)) = (self.sources.get_mut(path), self.back.get_mut(path)) {
            iter::from_fn(|| back.receive()).for_each(|frame| source.give_back(frame));
            source.receive(most, to);
        }
    }

    fn settle(&mut self, path: PathId, frame: Packet, _: Verdict) {
        let path = usize::from(path);
        self.odd = !self.odd;
        if self.keeps_half && self.odd {
            self.kept += 1;
            if let Some(source) = self.sources.get_mut(path) {
                source.give_back(frame);
            }
        } else if let Some(to) = self.to.get_mut(path) {
            // There are fewer frames than slots.
            drop(to.send(frame));
        }
    }
}

impl Ends for Front {
    fn has_packets(&self, path: PathId) -> bool {
        let path = usize::from(path);
        self.sources.get(path).is_some_and(Source::has_frames)
            || self.back.get(path).is_some_and(|back| !back.is_empty())
    }
}

/// Takes packets that were handed on, and sends them.
struct Back {
    from: Vec<super::crossing::Receiver>,
    back: Vec<super::crossing::Sender>,
}

impl Exchange for Back {
    type Frame = Packet;

    fn ports(&self) -> u64 {
        u64::MAX
    }

    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Packet>) {
        if let Some(from) = self.from.get_mut(usize::from(path)) {
            to.extend(iter::from_fn(|| from.receive()).take(most));
        }
    }

    fn settle(&mut self, path: PathId, frame: Packet, _: Verdict) {
        if let Some(back) = self.back.get_mut(usize::from(path)) {
            drop(back.send(frame));
        }
    }
}

impl Ends for Back {
    fn has_packets(&self, path: PathId) -> bool {
        self.from.get(usize::from(path)).is_some_and(|from| !from.is_empty())
    }
}

/// The first core receives from this many queues. The second one sends what it is handed.
fn handed_on(
    pair: [usize; 2],
    queues: PathId,
    keeps_half: bool,
    trace: &Arc<Trace>,
    time: Duration,
) -> Result<Vec<Rate>> {
    let many = || (0..queues).map(|_| super::crossing::crossing(RING)).unzip::<_, _, Vec<_>, Vec<_>>();
    let ((forth, from), (home, back)) = (many(), many());
    let sources = (0..queues).map(|_| Source::new(trace, None)).collect();
    let mut front = Front { sources, to: forth, back, keeps_half, odd: false, kept: 0 };
    let mut behind = Back { from, back: home };
    let over = AtomicBool::new(false);
    let receives = || {
        let clock = Clock::of_process();
        let mut worker = forwarder(queues.into(), clock)?;
        let rate = rate(time, || {
            let before = front.kept;
            turn(&mut worker, &mut front, queues, clock);
            front.kept - before
        });
        over.store(true, Relaxed);
        Ok(rate)
    };
    let sends = || {
        let clock = Clock::of_process();
        let mut worker = forwarder(queues.into(), clock)?;
        let rate = rate(time, || turn(&mut worker, &mut behind, queues, clock));
        // While the other core counts, this one must keep it company.
        while !over.load(Relaxed) {
            turn(&mut worker, &mut behind, queues, clock);
        }
        Ok(rate)
    };
    let both: [(usize, OnCore<'_>); 2] = [(pair[0], Box::new(receives)), (pair[1], Box::new(sends))];
    on_cores(both)
}

/// Work of one core.
type OnCore<'a> = Box<dyn FnOnce() -> Result<Rate> + Send + 'a>;

/// Two cores of one socket.
fn two() -> Result<[usize; 2]> {
    cores::within_a_package(&cores::all()?).context("needs two cores, and there is one")
}

/// P6.
pub(in super::super) fn crossing_cores(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    const CROSSING: &str = "packets cross, one L3";
    let ours = "memory to memory, two cores of one socket; a ring of pointers in one direction and one back for the frames, which is the least that a crossing takes";
    figures(figure, ours, CROSSING, recorder)?;
    let (trace, pair, time) = (bed::plain()?, two()?, time(options));
    let crossing = || handed_on(pair, 2, false, &trace, time);
    let apart = || apart(pair, &trace, time);
    let mut ways: Vec<Way<'_>> = vec![(CROSSING, &crossing), ("a path on each core", &apart)];
    let across = cores::across_packages(&cores::all()?);
    let sockets = || handed_on(across.unwrap_or(pair), 2, false, &trace, time);
    match across {
        Some(_) => ways.insert(0, ("packets cross sockets", &sockets)),
        None => skipped(figure, "packets cross sockets", "this machine has one socket", recorder)?,
    }
    compare(figure, &ways, options, recorder)
}

/// Two stages on one core, the first of which ends in a queue.
struct Stages {
    source: Source,
    queue: VecDeque<Packet>,
    sent: Sent,
}

impl Exchange for Stages {
    type Frame = Packet;

    fn ports(&self) -> u64 {
        u64::MAX
    }

    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Packet>) {
        match path {
            0 => self.source.receive(most, to),
            _ => to.extend(self.queue.drain(..most.min(self.queue.len()))),
        }
    }

    fn settle(&mut self, path: PathId, frame: Packet, verdict: Verdict) {
        if path == 0 {
            self.queue.push_back(frame);
        } else {
            self.sent.count(frame.data().len(), &frame, verdict);
            self.source.give_back(frame);
        }
    }
}

impl Ends for Stages {
    fn has_packets(&self, path: PathId) -> bool {
        if path == 0 { self.source.has_frames() } else { !self.queue.is_empty() }
    }
}

fn in_two_stages(trace: &Arc<Trace>, time: Duration) -> Result<Rate> {
    let clock = Clock::of_process();
    let mut stages = Stages {
        source: Source::new(trace, None),
        queue: VecDeque::with_capacity(RING),
        sent: Sent::default(),
    };
    let mut worker = forwarder(2, clock)?;
    let rate = rate(time, || {
        let before = stages.sent.packets;
        turn(&mut worker, &mut stages, 2, clock);
        stages.sent.packets - before
    });
    whole(&[stages.sent])?;
    Ok(rate)
}

/// P7.
pub(in super::super) fn one_phase(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    const STAGES: &str = "two phases";
    figures(
        figure,
        "memory to memory, one core; the second stage is a path of its own, so it is scheduled and charged as one",
        STAGES,
        recorder,
    )?;
    let (trace, time) = (bed::plain()?, time(options));
    let core = cores::all()?.first().map_or(0, |core| core.number);
    let stages = || Ok(vec![on_core(core, || in_two_stages(&trace, time))?]);
    let one = || Ok(vec![on_core(core, || alone(&trace, time))?]);
    compare(figure, &[(STAGES, &stages), ("one phase", &one)], options, recorder)
}

/// Descriptors of packets to send: address and length. The device is finished at once.
struct Transmit {
    ring: Vec<(usize, usize)>,
    at: usize,
}

impl Transmit {
    fn new() -> Self {
        Self { ring: vec![(0, 0); TX_RING], at: 0 }
    }

    fn put(&mut self, frame: &Packet) {
        let data = frame.data();
        self.ring[self.at] = (data.as_ptr() as usize, data.len());
        self.at = (self.at + 1) % TX_RING;
    }
}

/// How cores share the TX queue of a port.
#[derive(Clone, Copy)]
enum Lock {
    Packet,
    Run,
    None,
}

/// Sends by a TX queue that another core may use, too.
struct PhasePort<'a> {
    source: Source,
    queue: &'a Mutex<Transmit>,
    own: Transmit,
    lock: Lock,
    run: Vec<Packet>,
}

/// Locks as a driver does: without sleeping, unless the thread that holds the lock has lost its core.
fn spin(queue: &Mutex<Transmit>) -> MutexGuard<'_, Transmit> {
    for _ in 0..SPINS {
        match queue.try_lock() {
            Ok(locked) => return locked,
            Err(TryLockError::Poisoned(locked)) => return locked.into_inner(),
            Err(TryLockError::WouldBlock) => spin_loop(),
        }
    }
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exchange for PhasePort<'_> {
    type Frame = Packet;

    fn ports(&self) -> u64 {
        u64::MAX
    }

    fn receive(&mut self, _: PathId, most: usize, to: &mut Vec<Packet>) {
        self.source.receive(most, to);
    }

    fn settle(&mut self, _: PathId, frame: Packet, _: Verdict) {
        match self.lock {
            Lock::Packet => spin(self.queue).put(&frame),
            Lock::None => self.own.put(&frame),
            Lock::Run => return self.run.push(frame),
        }
        self.source.give_back(frame);
    }

    fn leave(&mut self) {
        if let Lock::Run = self.lock {
            let mut queue = spin(self.queue);
            self.run.iter().for_each(|frame| queue.put(frame));
            drop(queue);
            for frame in self.run.drain(..) {
                self.source.give_back(frame);
            }
        }
    }
}

fn by_one_port(pair: [usize; 2], lock: Lock, trace: &Arc<Trace>, time: Duration) -> Result<Vec<Rate>> {
    let queue = Mutex::new(Transmit::new());
    let queue = &queue;
    on_cores(pair.map(|core| {
        (core, move || {
            let clock = Clock::of_process();
            let (source, own) = (Source::new(trace, None), Transmit::new());
            let mut port = PhasePort { source, queue, own, lock, run: Vec::with_capacity(BURST as usize) };
            let mut worker = forwarder(1, clock)?;
            Ok(rate(time, || worker.turn(&mut port, || clock.cycles()).map_or(0, |turn| turn.packets as u64)))
        })
    }))
}

/// P8.
pub(in super::super) fn transmit_queues(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    const SHARED: &str = "one TX queue, locked for each packet";
    let ours = "memory to memory, two cores of one socket; a TX queue is an array of descriptors, with a device behind it that is finished at once";
    figures(figure, ours, SHARED, recorder)?;
    let (trace, pair, time) = (bed::plain()?, two()?, time(options));
    let by = |lock| by_one_port(pair, lock, &trace, time);
    let (packet, run, own) = (|| by(Lock::Packet), || by(Lock::Run), || by(Lock::None));
    let ways: [Way<'_>; 3] =
        [(SHARED, &packet), ("one TX queue, locked for each run", &run), ("a TX queue for each core", &own)];
    compare(figure, &ways, options, recorder)
}

/// P9.
pub(in super::super) fn receive_queues(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    const SHARED: &str = "one RX queue, handed on";
    let ours = "memory to memory, two cores of one socket; from one queue all packets are handed on, as in the paper, or every second one, which leaves the first core some work";
    figures(figure, ours, SHARED, recorder)?;
    let (trace, pair, time) = (bed::plain()?, two()?, time(options));
    let all = || handed_on(pair, 1, false, &trace, time);
    let half = || handed_on(pair, 1, true, &trace, time);
    let apart = || apart(pair, &trace, time);
    let ways: [Way<'_>; 3] =
        [(SHARED, &all), ("one RX queue, a half handed on", &half), ("an RX queue for each core", &apart)];
    compare(figure, &ways, options, recorder)
}
