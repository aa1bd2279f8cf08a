//! A core that falls behind shares its queue by itself, if that was prepared. Packets gather while this thread keeps the
//! core from the queue's thread, which then takes full polls.

use super::{FLOWS, QUEUE, frame, polling_threads, world};
use crate::common::{
    be_urgent, ifindex, in_new_namespace, run, watch_polls,
    wire::Wire,
    world::{World, loaded},
};
use logic::cores::{CoreId, Help, QueueId};
use router::{
    base::clock::monotonic,
    cores::{
        Roots,
        affinity::{Affinity, Kernel},
        queues::{NetdevQueues, PortQueues},
    },
    plane::{Helped, SplitSeat, Splits},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(5);

/// The ends of the router's wires, and the number of the next packet.
struct Ends {
    from: Wire,
    to: Wire,
    next: u32,
    /// The thread that polls the queue.
    thread: u32,
}

impl Ends {
    /// Sends packets of all flows, which gather in the ring. Waits until all have arrived, each flow in order.
    fn gather(&mut self, packets: u32) {
        let first = self.next;
        (0..packets).for_each(|n| self.from.send(&frame(first + n)));
        self.next += packets;
        let mut last = BTreeMap::new();
        let (began, mut came) = (Instant::now(), 0);
        while came < packets {
            assert!(began.elapsed() < PATIENCE, "only {came} of {packets} packets have come");
            let Some(bytes) = self.to.receive().filter(|bytes| bytes[12..14] == [8, 0]) else {
                thread::sleep(Duration::from_micros(200));
                continue;
            };
            let number = u32::from_be_bytes(*bytes.last_chunk().unwrap());
            if number < first {
                continue;
            }
            came += 1;
            let before = last.insert(number % u32::from(FLOWS), number);
            assert!(before < Some(number), "packet {number} came after {before:?}");
        }
        // After a full poll there is one more, which finds nothing.
        while !self.sleeps() {
            assert!(began.elapsed() < PATIENCE, "the queue is polled without end");
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn sleeps(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.thread)).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
    }
}

/// A world where this thread occupies the core of the first queue's thread. Returns the world, both cores, the queue's
/// NAPI instance and the ends of the wires. All packets come in on that queue.
fn busy_world(queues: u16) -> Option<(World, CoreId, CoreId, u32, Ends)> {
    let (world, here, other) = world(queues)?;
    run("ethtool -L q0 tx 1");
    let thread = polling_threads()[0];
    Kernel.allow(thread, &[here].into()).unwrap();
    let told = NetdevQueues::ask(ifindex("p0"), "p0").unwrap();
    let found = PortQueues::observe(&Roots::here().unwrap(), &Kernel, 0, "p0", &told).unwrap();
    let napi = found.queues[0].napi.expect("the NAPI instance of p0's first queue");
    watch_polls(&[napi].into());
    be_urgent();
    take_charge(world.plane.splits());
    Some((world, here, other, napi, Ends { from: Wire::open("q0"), to: Wire::open("q1"), next: 0, thread }))
}

fn take_charge(splits: &Arc<Splits>) {
    SplitSeat::default().set(splits.clone());
}

fn helped(home: CoreId, by: &[CoreId], napi: u32, full_polls: u32) -> BTreeMap<QueueId, Helped> {
    [(QUEUE, Helped { home, napi, help: Help { cores: by.to_vec(), full_polls } })].into()
}

/// The cores that have helped each spilled queue.
fn spilled(splits: &Splits) -> BTreeMap<QueueId, Vec<CoreId>> {
    splits.spilled().unwrap().into_iter().map(|(queue, spilled)| (queue, spilled.cores)).collect()
}

/// Sends packets as [`Ends::gather`]. The queue must stay whole, and the other core must get none of them.
#[track_caller]
fn gather_whole(ends: &mut Ends, splits: &Splits, other: CoreId, packets: u32) {
    let before = splits.handed(other).packets;
    ends.gather(packets);
    assert_eq!((spilled(splits).len(), splits.handed(other).packets), (0, before), "packet {}", ends.next);
}

fn join(splits: &Splits) {
    splits.adopt_spilled(None);
    splits.join(QUEUE);
    tidy(splits);
}

fn tidy(splits: &Splits) {
    let start = Instant::now();
    while !splits.queues().is_empty() || splits.is_tidying() {
        splits.tidy(monotonic());
        assert!(start.elapsed() < PATIENCE, "the queue is not tidied");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "needs root"]
fn a_core_that_falls_behind_shares_its_queue_and_flows_keep_their_order() {
    in_new_namespace(|| {
        let Some((world, here, other, napi, mut ends)) = busy_world(1) else { return };
        let splits = world.plane.splits();
        for turn in 0..20 {
            splits.prepare(&helped(here, &[other], napi, 1), monotonic(), true).unwrap();
            gather_whole(&mut ends, splits, other, 60);
            let before = splits.handed(other).packets;
            ends.gather(200);
            assert_eq!(spilled(splits), [(QUEUE, vec![other])].into(), "turn {turn}");
            let handed = splits.handed(other).packets - before;
            // Half of the flows, from the second poll on.
            assert!((30..=110).contains(&handed), "turn {turn}: {handed}");
            ends.gather(200);
            join(splits);
            gather_whole(&mut ends, splits, other, 200);
        }
        assert_eq!(world.forwarded(), u64::from(ends.next));
    });
}

/// The core may fall behind again before all flows have come home.
#[test]
#[ignore = "needs root"]
fn a_queue_that_is_being_joined_gets_help_again_and_flows_keep_their_order() {
    in_new_namespace(|| {
        let Some((world, here, other, napi, mut ends)) = busy_world(1) else { return };
        let splits = world.plane.splits();
        // While flows come home, this takes some milliseconds.
        let prepare = || {
            let start = Instant::now();
            while splits.helped().unwrap().is_empty() {
                splits.prepare(&helped(here, &[other], napi, 1), monotonic(), true).unwrap();
                assert!(start.elapsed() < PATIENCE, "no help is prepared");
                thread::sleep(Duration::from_millis(1));
            }
        };
        for turn in 0..20 {
            prepare();
            ends.gather(200);
            assert_eq!(spilled(splits), [(QUEUE, vec![other])].into(), "turn {turn}");
            splits.adopt_spilled(None);
            splits.join(QUEUE);
            prepare();
            assert_eq!((spilled(splits).len(), splits.is_tidying()), (0, true), "turn {turn}");
            let before = splits.handed(other).packets;
            ends.gather(200);
            assert_eq!(spilled(splits), [(QUEUE, vec![other])].into(), "turn {turn}");
            splits.tidy(monotonic() + Duration::from_secs(1));
            splits.adopt_spilled(None);
            assert_eq!((splits.queues(), splits.is_tidying()), (vec![QUEUE], false), "turn {turn}");
            ends.gather(200);
            assert!(splits.handed(other).packets - before >= 60, "turn {turn}");
            // This time, all flows are home first.
            splits.join(QUEUE);
            prepare();
            tidy(splits);
            gather_whole(&mut ends, splits, other, 60);
            ends.gather(200);
            assert_eq!(spilled(splits), [(QUEUE, vec![other])].into(), "turn {turn}");
            // Help that ends while flows come home leaves nothing behind.
            splits.adopt_spilled(None);
            splits.join(QUEUE);
            prepare();
            splits.prepare(&BTreeMap::new(), monotonic(), true).unwrap();
            tidy(splits);
            gather_whole(&mut ends, splits, other, 200);
        }
        assert_eq!(world.forwarded(), u64::from(ends.next));
    });
}

#[test]
#[ignore = "needs root"]
fn help_comes_after_the_set_number_of_full_polls_and_not_once_it_is_ended() {
    in_new_namespace(|| {
        let Some((world, here, other, napi, mut ends)) = busy_world(1) else { return };
        let splits = world.plane.splits();
        splits.prepare(&helped(here, &[other], napi, 3), monotonic(), true).unwrap();
        // Two full polls, and one that is not, again and again.
        (0..5).for_each(|_| ends.gather(140));
        assert_eq!(spilled(splits), BTreeMap::new());
        ends.gather(200);
        assert_eq!(spilled(splits), [(QUEUE, vec![other])].into());
        join(splits);
        splits.prepare(&helped(here, &[other], napi, 1), monotonic(), true).unwrap();
        splits.prepare(&BTreeMap::new(), monotonic(), true).unwrap();
        ends.gather(200);
        assert_eq!(spilled(splits), BTreeMap::new());
        // The row is free again later, and can be prepared again.
        splits.tidy(monotonic() + Duration::from_secs(1));
        splits.prepare(&helped(here, &[other], napi, 1), monotonic(), true).unwrap();
        ends.gather(200);
        assert_eq!(spilled(splits), [(QUEUE, vec![other])].into());
    });
}

/// Each step shares more flows. After three of them the core keeps none. All helpers are the same core here.
#[test]
#[ignore = "needs root"]
fn more_cores_help_while_the_core_is_behind() {
    in_new_namespace(|| {
        let Some((world, here, other, napi, mut ends)) = busy_world(1) else { return };
        let splits = world.plane.splits();
        splits.prepare(&helped(here, &[other; 3], napi, 1), monotonic(), true).unwrap();
        for helpers in 1..=3 {
            // One full poll, and one that is not.
            ends.gather(100);
            assert_eq!(spilled(splits), [(QUEUE, vec![other; helpers])].into());
        }
        let mut handed = || {
            let before = splits.handed(other).packets;
            ends.gather(192);
            splits.handed(other).packets - before
        };
        assert_eq!(handed(), 192);
        join(splits);
        assert_eq!(handed(), 0);
        // Two full polls before the first step. The third one is too soon for the next step.
        splits.prepare(&helped(here, &[other; 3], napi, 2), monotonic(), true).unwrap();
        for (packets, helpers) in [(100, 0), (200, 1), (80, 1), (150, 2), (100, 2), (200, 3)] {
            ends.gather(packets);
            let cores = spilled(splits).remove(&QUEUE).map_or(0, |cores| cores.len());
            assert_eq!(cores, helpers, "after {packets} packets");
        }
    });
}

#[test]
#[ignore = "needs root"]
fn a_queue_stays_spilled_when_its_port_is_set_again_and_another_queue_is_whole_again() {
    in_new_namespace(|| {
        let Some((world, here, other, napi, mut ends)) = busy_world(2) else { return };
        let splits = world.plane.splits();
        splits.prepare(&helped(here, &[other; 3], napi, 1), monotonic(), true).unwrap();
        (0..3).for_each(|_| ends.gather(100));
        let mut all_are_handed = || {
            let before = splits.handed(other).packets;
            ends.gather(50);
            assert_eq!(splits.handed(other).packets, before + 50);
        };
        all_are_handed();
        world.plane.set_port(0, ifindex("p0"), true, true).unwrap();
        all_are_handed();
        let second = QueueId { port: 0, index: 1 };
        splits.share(second, here, &[other]).unwrap();
        all_are_handed();
        splits.join(second);
        tidy(splits);
        all_are_handed();
    });
}

#[test]
#[ignore = "needs root"]
fn queues_that_nobody_watches_get_no_help() {
    in_new_namespace(|| {
        let Some((world, here, other, napi, mut ends)) = busy_world(1) else { return };
        let splits = world.plane.splits();
        splits.prepare(&helped(here, &[other], napi, 1), monotonic(), true).unwrap();
        watch_polls(&BTreeSet::new());
        ends.gather(200);
        assert_eq!(spilled(splits), BTreeMap::new());
        watch_polls(&[napi].into());
        ends.gather(200);
        assert_eq!(spilled(splits), [(QUEUE, vec![other])].into());
    });
}

/// Larger tables take over prepared help, and cores that already help. During the change, no core begins to help.
#[test]
#[ignore = "needs root"]
fn larger_tables_take_over_help() {
    in_new_namespace(|| {
        let Some((world, here, other, napi, mut ends)) = busy_world(1) else { return };
        let splits = world.plane.splits();
        let expected: BTreeMap<_, _> = [(QUEUE, vec![other])].into();
        splits.prepare(&helped(here, &[other], napi, 1), monotonic(), true).unwrap();
        let (next, _tables) = loaded();
        next.splits().take_over(splits).unwrap();
        ends.gather(200);
        assert_eq!([splits, next.splits()].map(|splits| spilled(splits).len()), [0, 0]);
        // The programs could not be replaced.
        let seat = SplitSeat::default();
        seat.set(splits.clone());
        next.splits().take_over(splits).unwrap();
        seat.keep();
        ends.gather(200);
        assert_eq!(spilled(splits), expected);
        join(splits);

        splits.prepare(&helped(here, &[other], napi, 1), monotonic(), true).unwrap();
        let (next, _tables) = loaded();
        next.splits().take_over(splits).unwrap();
        world.link.replace(next.program()).unwrap();
        take_charge(next.splits());
        ends.gather(200);
        assert_eq!((spilled(splits).len(), spilled(next.splits())), (0, expected.clone()));
        let (third, _more_tables) = loaded();
        third.splits().take_over(next.splits()).unwrap();
        world.link.replace(third.program()).unwrap();
        take_charge(third.splits());
        assert_eq!(spilled(third.splits()), expected);
        ends.gather(200);
        let handed = third.splits().handed(other).packets;
        // Half of the flows, from the first packet on.
        assert!((80..=120).contains(&handed), "{handed} of 200 packets were handed over");
        join(third.splits());
        let before = third.splits().handed(other).packets;
        ends.gather(200);
        assert_eq!(third.splits().handed(other).packets, before);
    });
}
