//! A queue is moved to and fro between two cores, which send on two transmit queues with slow receivers. Moves that do
//! not wait let packets overtake those in the other queue. Moves that wait must not do so, and must not lose any
//! packet.
//!
//! The daemon forwards and moves nothing. Its own code moves the queue, called here by a thread as urgent as the
//! daemon's.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use router::{
    cores::{
        CoreId,
        affinity::{Affinity, Kernel},
        drain::{Drained, Drains, Exit, Leaving, MOST},
    },
    plane::TransmitRings,
};
use serde_json::{Value, json};

use crate::{
    check::check_forwarding,
    generator::Pace,
    losses::Losses,
    namespace::Namespace,
    progress::Progress,
    sink::Watch,
    subject::{Millrace, Subject},
    sys,
    testbed::{Priority, Testbed},
    topology::Topology,
    workload::{Family, Workload},
};

pub(super) const CASE: &str = "drain";
/// How the queue is moved.
pub(super) const WAYS: [&str; 2] = ["at once", "waiting"];
/// The core that receives what a core sent: the same one, or the other one, to which the queue moves.
pub(super) const PLACES: [&str; 2] = ["on the sender's core", "on the other one"];
/// Few flows, so that the next packet of a flow comes soon after a move.
const FLOWS: u32 = 4;
/// A packet comes every 10 us, so a ring of 256 takes them for 2.5 ms.
const PPS: u64 = 100_000;
/// How long others have a receiver's core at a time; in all, a quarter of the time.
const AWAY: Duration = Duration::from_micros(500);
const PARTS: u32 = 4;
const BATCH: u32 = 4;
const MOVES: u32 = 100;
const BETWEEN: Duration = Duration::from_millis(20);
const SETTLE: Duration = Duration::from_millis(300);
/// Real-time priorities, rising: receivers, which go before the generator; others; the queue, which others do not keep
/// from sending; the thread that moves it.
const RECEIVER: i32 = 1;
const OTHERS: i32 = 2;
const QUEUE: i32 = 3;
const MOVER: i32 = 4;

/// Runs both ways in turn, this many times. Adds the measurements to `lines`.
pub(super) fn trials(repeats: usize, lines: &mut Vec<Value>, progress: &mut Progress) -> Result<()> {
    let mut topology = Topology::named("rfc2544")?;
    let (generator, router) = (topology.cores.generator, topology.cores.router[0]);
    topology.cores.sink = vec![router];
    topology.ports[1].queues = 2;
    let mut testbed = Testbed::new(&topology)?;
    testbed.set_priority(Priority::Reaction)?;
    testbed.placing = "policy = \"off\"".into();
    let daemon = Millrace::start(&testbed)?;
    let workload = Workload::benchmark(Family::V4, FLOWS, 0..=0);
    let next_hop = |address| workload.next_hop(address);
    check_forwarding(&mut testbed, &daemon, &workload.targets, workload.frame_bytes, next_hop)?;
    testbed.router_threads()?;
    let (sink, end) = testbed.host_ends().pop().context("no host receives")?;
    let receivers = napi_threads(sink, &end)?;
    let streams = workload.streams(&workload.targets, Pace::Rate(PPS));
    testbed.generator.set_streams(streams)?;
    for id in napi_threads(&testbed.box_namespace, &testbed.topology.ports[0].name)? {
        sys::set_realtime(id, Some(QUEUE)).context("priority of a NAPI thread")?;
    }
    let mut bed = Bed { testbed, cores: [router as CoreId, generator as CoreId] };
    for repeat in 0..repeats {
        for (place, cores) in PLACES.iter().zip([[generator, router], [router, generator]]) {
            for (id, core) in receivers.iter().zip(cores) {
                sys::set_affinity(*id, &[core]).context("pinning a receiver")?;
                sys::set_realtime(*id, Some(RECEIVER)).context("priority of a receiver")?;
            }
            for way in WAYS {
                let (sample, words) = bed.trial(way == WAYS[1])?;
                daemon.programs().iter().try_for_each(|program| program.check())?;
                progress.step(&format!("drain #{}, {way}, receivers {place}: {words}", repeat + 1));
                lines.push(json!({"record": "sample", "case": CASE, "subject": way, "parameters": {"receivers": place},
                    "repeat": repeat, "sample": sample}));
            }
        }
    }
    Ok(())
}

struct Bed {
    testbed: Testbed,
    /// Cores between which the queue moves.
    cores: [CoreId; 2],
}

impl Bed {
    fn trial(&mut self, waiting: bool) -> Result<(Value, String)> {
        let testbed = &mut self.testbed;
        testbed.sink.watch(Watch::NOTHING)?;
        let flows: Vec<usize> =
            testbed.generator.streams().iter().map(|stream| stream.targets.len()).collect();
        testbed.sink.set_flows(&flows)?;
        testbed.sink.watch(Watch { order: true, ..Watch::NOTHING })?;
        let (before, received) = (Losses::now(testbed)?, testbed.sink.arrived_in_all()?);
        testbed.generator.start_held_up(BATCH, BATCH)?;
        sys::sleep(SETTLE)?;
        let drained = self.moves(waiting);
        self.testbed.generator.stop()?;
        sys::sleep(SETTLE)?;
        let testbed = &self.testbed;
        let Drained { left, longest, remained } = drained?;
        let lost = Losses::now(testbed)?.since(&before);
        let sent = testbed.generator.packets()?;
        let received = testbed.sink.arrived_in_all()? - received;
        let reordered = testbed.sink.reordered()?;
        let longest_us = longest.as_micros() as u64;
        let words = format!(
            "{reordered} reordered by {MOVES} moves, {} of {sent} lost, {left} waited {longest_us} us at most, {remained} too long",
            sent.saturating_sub(received)
        );
        let sample = json!({"moves": MOVES, "reordered": reordered, "sent": sent, "received": received, "lost": lost.0,
            "left": left, "remained": remained, "longest_us": longest_us});
        Ok((sample, words))
    }

    fn moves(&self, waiting: bool) -> Result<Drained> {
        let (box_namespace, cores) = (&self.testbed.box_namespace, self.cores);
        let [came, leaves] = [0, 1].map(|at| &self.testbed.topology.ports[at].name);
        let leaves = box_namespace.interface_index(leaves)?;
        let napi = *napi_threads(box_namespace, came)?.first().context("the port has no NAPI thread")? as u32;
        let work = || {
            box_namespace.enter_for_good()?;
            let mut drains = Drains::new(Some(Box::new(TransmitRings::open()?)));
            sys::set_realtime(0, Some(MOVER)).context("a real-time priority")?;
            drains.begin().context("beginning to move queues")?;
            drains.leave_by(if waiting { vec![Exit { ifindex: leaves, several: true }] } else { Vec::new() });
            to_and_fro(&mut drains, napi, cores)?;
            Ok(drains.told)
        };
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let over = &over;
            // They take turns.
            let others = [(cores[0], Duration::ZERO), (cores[1], PARTS / 2 * AWAY)];
            let others = others.map(|(core, after)| scope.spawn(move || have_core(core, after, over)));
            let moved = scope.spawn(work).join();
            over.store(true, Relaxed);
            for other in others {
                other.join().unwrap_or_else(|_| bail!("the thread that takes a core has failed"))?;
            }
            moved.unwrap_or_else(|_| bail!("the thread that moves a queue has failed"))
        })
    }
}

/// NAPI threads of a device, in the order of its queues.
fn napi_threads(namespace: &Namespace, device: &str) -> Result<Vec<i32>> {
    namespace.enter(|| crate::netlink::napi_threads(sys::interface_index(device)?))
}

/// Takes a core for a part of the time, beginning `after` some time.
fn have_core(core: CoreId, after: Duration, over: &AtomicBool) -> Result<()> {
    thread::sleep(after);
    sys::set_affinity(0, &[core.into()]).context("a core for others")?;
    sys::set_realtime(0, Some(OTHERS)).context("a real-time priority")?;
    while !over.load(Relaxed) {
        let began = Instant::now();
        while began.elapsed() < AWAY {
            std::hint::spin_loop();
        }
        thread::sleep((PARTS * AWAY).saturating_sub(began.elapsed()));
    }
    Ok(())
}

fn to_and_fro(drains: &mut Drains, napi: u32, [home, away]: [CoreId; 2]) -> Result<()> {
    Kernel.allow(napi, &BTreeSet::from([home])).context("moving a queue")?;
    let began = Instant::now();
    for number in 0..MOVES {
        let (from, to) = if number % 2 == 0 { (home, away) } else { (away, home) };
        // Keep out of step with everything else.
        thread::sleep(
            (BETWEEN * number + Duration::from_micros(137 * u64::from(number)))
                .saturating_sub(began.elapsed()),
        );
        sys::check_interrupted()?;
        drains.begin_round();
        let leaving = Leaving { threads: vec![napi], from: [from].into(), to, confined: true };
        let go = || Kernel.allow(napi, &BTreeSet::from([to]));
        drains.around(&Kernel, &leaving, |_| MOST, go).0.context("moving a queue")?;
    }
    Ok(())
}
