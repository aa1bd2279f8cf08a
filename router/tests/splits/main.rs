//! A queue whose flows are shared among cores. Every packet is forwarded once, in the order of its flow,
//! however often cores join and leave. Packets that a core has no room for are counted by name, and packets
//! for the router itself stay. Nothing is left of a split afterwards.

#[path = "../common/mod.rs"]
mod common;
mod polls;
mod spilled;

use common::{
    frame::Frame,
    hogged, ifindex, in_new_namespace, only_on,
    order::{numbered, send_while, split_and_join, until_handed},
    run,
    wire::Wire,
    world::{A, SETTINGS, World, loaded},
};
use logic::{
    cores::{CoreId, QueueId},
    reason::Reason,
};
use router::{
    base::clock::monotonic,
    cores::{
        Roots,
        affinity::{Affinity, Kernel},
        queues::{Control, NetdevQueues, PortQueues, QueueSource},
    },
    plane::{Plane, Splits, online_cpus},
};
use rustix::thread::sched_getcpu;
use std::{
    fs, thread,
    time::{Duration, Instant},
};

const QUEUE: QueueId = QueueId { port: 0, index: 0 };
const FLOWS: u16 = 64;
/// How often the split changes under traffic.
const TURNS: usize = 100;

/// A world whose p0 has this many queues, the core that this thread stays on, and another core.
fn world(queues: u16) -> Option<(World, CoreId, CoreId)> {
    let here = sched_getcpu();
    only_on([here]);
    let other = online_cpus().unwrap().into_iter().find(|cpu| *cpu != here)?;
    let world = World::new(queues);
    world.count_losses();
    run("ethtool -K q1 gro on");
    Some((world, here as CoreId, other as CoreId))
}

fn frame(number: u32) -> Vec<u8> {
    numbered(Frame::udp4(A, "10.0.1.5", "10.0.2.9"), number as u16 % FLOWS, number)
}

#[test]
#[ignore = "needs root"]
fn flows_of_a_queue_that_is_split_and_joined_keep_their_order() {
    in_new_namespace(|| {
        let Some((world, here, other)) = world(1) else { return };
        let splits = world.plane.splits().clone();
        assert!(
            splits.may_split(0) && !splits.may_split(1),
            "p0 runs the program and may split, p1 does not"
        );
        splits.share(QueueId { port: 1, index: 0 }, here, &[here, other]).unwrap_err();
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        let came = send_while(
            (&from, &to),
            FLOWS,
            frame,
            |_, _| (),
            || split_and_join(&splits, QUEUE, [here, other], TURNS, |core| splits.handed(core).packets),
        );
        let handed = splits.handed(other);
        eprintln!("{TURNS} changes, {} of {} packets handed over", handed.packets, came.sent);
        assert_eq!((came.overtaken, came.received), (0, came.sent));
        assert!(handed.packets > came.sent / 10, "too few packets handed over: {came:?} {handed:?}");
        assert_eq!((handed.dropped, world.forwarded()), (0, came.sent));

        // Nothing is left of the split.
        splits.join(QUEUE);
        let start = Instant::now();
        while !splits.queues().is_empty() || splits.is_tidying() {
            splits.tidy(monotonic());
            assert!(start.elapsed() < Duration::from_secs(5), "the queue is not tidied after 5 s");
        }
        let before = all_handed(&splits, &[here, other]);
        (0..100).for_each(|n| from.send(&frame(n)));
        thread::sleep(Duration::from_millis(100));
        assert_eq!(all_handed(&splits, &[here, other]), before);

        // The program of other cores, and the map of cores that has it, do not keep each other alive.
        let map = splits.map().unwrap();
        assert_eq!(threads(map), 2);
        drop((splits, world));
        let start = Instant::now();
        while threads(map) != 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "{} threads are left", threads(map));
            thread::sleep(Duration::from_millis(20));
        }
    });
}

/// The threads that poll p0's queues.
fn polling_threads() -> Vec<u32> {
    let roots = Roots::here().unwrap();
    fs::write(roots.device("p0").join("threaded"), "1").unwrap();
    let thread = |queue: &QueueSource| match queue.control {
        Control::Thread { pid } => Some(pid),
        _ => None,
    };
    let start = Instant::now();
    loop {
        let told = NetdevQueues::ask(ifindex("p0"), "p0").unwrap();
        let queues = PortQueues::observe(&roots, &Kernel, 0, "p0", &told).unwrap().queues;
        if let Some(threads) = queues.iter().map(thread).collect() {
            return threads;
        }
        // Before Linux 6.8, threads are found by name, and those of an earlier namespace may still exist.
        assert!(start.elapsed() < Duration::from_secs(10), "a queue without a thread: {queues:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The queue's home is moved first. The split is changed at once, as after a daemon's move, or a little
/// later, as after a move by somebody else. The cores that share the queue before and after are the same, or
/// others.
#[test]
#[ignore = "needs root"]
fn the_home_of_a_queue_that_is_split_moves_and_flows_keep_their_order() {
    in_new_namespace(|| {
        let Some((world, here, other)) = world(1) else { return };
        let splits = world.plane.splits();
        let thread = polling_threads()[0];
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        let both = [here, other];
        let homes: [(CoreId, &[CoreId]); 7] = [
            (here, &both),
            (other, &both),
            (here, &[other]),
            (other, &[other]),
            (here, &[here]),
            (other, &[here]),
            (here, &[]),
        ];
        let came = send_while(
            (&from, &to),
            FLOWS,
            frame,
            |_, _| (),
            || {
                for (turn, (home, cores)) in homes.into_iter().cycle().take(TURNS).enumerate() {
                    Kernel.allow(thread, &[home].into()).unwrap();
                    thread::sleep(Duration::from_millis(turn as u64 % 2 * 5));
                    match cores {
                        [] => splits.join(QUEUE),
                        cores => splits.share(QUEUE, home, cores).unwrap(),
                    }
                    until_handed(|core| splits.handed(core).packets, home, cores);
                    thread::sleep(Duration::from_millis(10));
                    splits.tidy(monotonic());
                }
            },
        );
        let handed = [here, other].map(|core| splits.handed(core));
        eprintln!("{TURNS} moves, {came:?}, {handed:?}");
        assert_eq!((came.overtaken, came.received, world.forwarded()), (0, came.sent, came.sent));
        assert!(
            handed.iter().all(|handed| handed.packets > came.sent / 20 && handed.dropped == 0),
            "a core got too few packets, or dropped some: {handed:?}"
        );
    });
}

fn all_handed(splits: &Splits, cores: &[CoreId]) -> u64 {
    cores.iter().map(|&core| splits.handed(core).packets).sum()
}

/// Packets for local delivery, routing protocols, ARP and neighbour discovery are handled as if the queue
/// were whole.
#[test]
#[ignore = "needs root"]
fn only_packets_to_be_forwarded_go_to_another_core() {
    in_new_namespace(|| {
        let Some((world, here, other)) = world(1) else { return };
        let splits = world.plane.splits();
        splits.share(QUEUE, here, &[other]).unwrap();
        let wire = Wire::open("q0");
        let solicitation = Frame::udp6(A, "fd00:1::5", "fd00:1::1").with(|ip| (ip[6], ip[40]) = (58, 135));
        let stays = [
            (Some(Reason::Local), Frame::udp4(A, "10.0.1.5", "10.0.1.1")),
            (Some(Reason::Local), Frame::udp6(A, "fd00:1::5", "fd00:1::1")),
            (Some(Reason::NeighbourDiscovery), solicitation),
            (Some(Reason::Arp), Frame::new(A, 0x806, vec![0; 46])),
            // The tables of this test know no groups.
            (None, Frame::udp4(A, "10.0.1.5", "224.0.0.5")),
        ];
        const EACH: u64 = 200;
        for (reason, frame) in &stays {
            let charged = || reason.map_or(0, |reason| world.charged(reason));
            let before = charged();
            (0..EACH).for_each(|_| wire.send(&frame.bytes()));
            thread::sleep(Duration::from_millis(50));
            assert_eq!(all_handed(splits, &[here, other]), 0, "packets handed over: {reason:?}");
            assert!(
                reason.is_none() || charged() >= before + EACH,
                "{reason:?}: {} packets were charged, not {EACH} more than {before}",
                charged()
            );
        }
        for frame in [Frame::udp4(A, "10.0.1.5", "10.0.2.9"), Frame::udp6(A, "fd00:1::5", "fd00:2::9")] {
            let before = splits.handed(other).packets;
            let start = Instant::now();
            while splits.handed(other).packets < before + EACH {
                wire.send(&frame.bytes());
                assert!(start.elapsed() < Duration::from_secs(5), "too few packets are handed over");
            }
        }
    });
}

#[test]
#[ignore = "needs root"]
fn larger_tables_share_a_queue_from_their_first_packet_on() {
    in_new_namespace(|| {
        let Some((world, here, other)) = world(1) else { return };
        world.plane.splits().share(QUEUE, here, &[other]).unwrap();
        let wire = Wire::open("q0");
        while world.plane.splits().handed(other).packets < 1000 {
            (0..64).for_each(|n| wire.send(&frame(n)));
        }
        thread::sleep(Duration::from_millis(50));
        let (next, _tables) = loaded();
        let splits = next.splits();
        splits.take_over(world.plane.splits()).unwrap();
        world.link.replace(next.program()).unwrap();
        assert_eq!(splits.queues(), [QUEUE]);
        (0..100).for_each(|n| wire.send(&frame(n)));
        thread::sleep(Duration::from_millis(50));
        assert_eq!((splits.handed(other).packets, splits.handed(here).packets), (100, 0));
        // A queue that was joined is not split again by the next plane.
        splits.join(QUEUE);
        let (third, _more_tables) = loaded();
        third.splits().take_over(splits).unwrap();
        assert_eq!(third.splits().queues(), []);
    });
}

/// While a place may decide for packets of the same tick, its row is kept.
#[test]
#[ignore = "needs root"]
fn a_row_is_given_up_when_its_places_are_old() {
    in_new_namespace(|| {
        let Some((world, here, other)) = world(1) else { return };
        let splits = world.plane.splits();
        splits.share(QUEUE, here, &[other]).unwrap();
        let wire = Wire::open("q0");
        while splits.handed(other).packets < 1000 {
            (0..64).for_each(|n| wire.send(&frame(n)));
        }
        thread::sleep(Duration::from_millis(100));
        splits.join(QUEUE);
        let now = monotonic();
        for ms in [0, 20, 40] {
            splits.tidy(now + Duration::from_millis(ms));
            assert!(splits.is_tidying(), "after {ms} ms");
        }
        splits.tidy(now + Duration::from_millis(60));
        assert!(!splits.is_tidying(), "the row is kept after 60 ms");
    });
}

#[test]
#[ignore = "needs root"]
fn no_queue_is_split_if_the_work_of_other_cores_is_not_known() {
    in_new_namespace(|| {
        let Some((_world, here, other)) = world(1) else { return };
        let plane = Plane::load_changed(SETTINGS, |open| {
            open.progs.done_on_core.set_autoload(false);
            Ok(())
        })
        .unwrap();
        plane.set_port(0, ifindex("p0"), true, true).unwrap();
        assert!(!plane.splits().may_split(0));
        let error = plane.splits().share(QUEUE, here, &[other]).unwrap_err();
        assert!(error.to_string().contains("does not report"), "another error: {error:#}");
    });
}

/// The number of threads of this map of cores.
fn threads(map: u32) -> usize {
    let name = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).ok();
    let names = fs::read_dir("/proc").unwrap().filter_map(|entry| name(entry.unwrap()));
    let end = format!("/map:{map}");
    names.filter(|name| name.starts_with("cpumap/") && name.trim_end().ends_with(&end)).count()
}

#[test]
#[ignore = "needs root"]
fn packets_that_a_sharing_core_has_no_room_for_are_counted_by_name() {
    in_new_namespace(|| {
        let Some((world, here, other)) = world(1) else { return };
        let splits = world.plane.splits();
        splits.share(QUEUE, here, &[other]).unwrap();
        let wire = Wire::open("q0");
        // Waits until the first packet of each flow has gone over.
        while splits.handed(other).packets < 1000 {
            (0..64).for_each(|n| wire.send(&frame(n)));
        }
        thread::sleep(Duration::from_millis(200));
        let (before, forwarded) = (splits.handed(other), world.forwarded());
        assert_eq!(before.dropped, 0);
        const SENT: u64 = 4000;
        hogged(other.into(), || (0..SENT).for_each(|n| wire.send(&frame(n as u32))));
        let start = Instant::now();
        let lost = || splits.handed(other).dropped;
        while world.forwarded() + lost() < forwarded + SENT && start.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(splits.handed(other).packets - before.packets, SENT);
        assert_eq!(world.forwarded() - forwarded, SENT - lost());
        // The core's thread takes packets by sixteens, and frees their places then.
        assert!((1000..SENT - 2048 + 16).contains(&lost()), "{} of {SENT} packets were lost", lost());
        assert_eq!(world.charged(Reason::SplitCoreFull), lost());
    });
}

/// The queue of such a core would never be empty, so its flows could never leave it in order.
#[test]
#[ignore = "needs root"]
fn flows_leave_a_core_that_cannot_keep_up() {
    in_new_namespace(|| {
        let Some((world, here, other)) = world(1) else { return };
        let splits = world.plane.splits();
        splits.share(QUEUE, here, &[other]).unwrap();
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        let mut number = 0;
        let mut send = |packets: u32| {
            for _ in 0..packets {
                from.send(&frame(number));
                number += 1;
            }
        };
        while splits.handed(other).packets < 1000 {
            send(64);
        }
        thread::sleep(Duration::from_millis(100));
        let leaves = || world.charged(Reason::SplitLeaves);
        assert_eq!(leaves(), 0);
        hogged(other.into(), || {
            send(3000);
            splits.share(QUEUE, here, &[here]).unwrap();
            let before = splits.handed(other).packets;
            thread::sleep(Duration::from_millis(20));
            send(1000);
            assert_eq!((splits.handed(other).packets, leaves()), (before, 1000));
        });
        // The packets that waited are done.
        thread::sleep(Duration::from_millis(200));
        let before = (splits.handed(other).packets, leaves(), world.forwarded());
        while to.receive().is_some() {}
        send(100);
        thread::sleep(Duration::from_millis(100));
        assert_eq!(splits.handed(other).packets, before.0);
        assert_eq!((leaves(), world.forwarded()), (before.1, before.2 + 100));
    });
}

/// The core's thread continues on another core, and reports the work of its own queue. This runs only where
/// nobody else needs the core.
#[test]
#[ignore = "needs root, and a virtual machine of its own"]
fn flows_leave_a_core_that_goes_offline() {
    if !common::is_emulated() {
        return;
    }
    in_new_namespace(|| {
        // The first core cannot go offline.
        only_on([0]);
        let (world, here, other) = world(1).unwrap();
        let splits = world.plane.splits();
        splits.share(QUEUE, here, &[other]).unwrap();
        let wire = Wire::open("q0");
        let mut number = 0;
        let mut send = |packets: u32| {
            for _ in 0..packets {
                wire.send(&frame(number));
                number += 1;
            }
            thread::sleep(Duration::from_millis(300));
        };
        while splits.handed(other).packets < 1000 {
            send(64);
        }
        let online = format!("/sys/devices/system/cpu/cpu{other}/online");
        fs::write(&online, "0").unwrap();
        let (before, forwarded) = (splits.handed(other).packets, world.forwarded());
        send(200);
        assert_eq!((splits.handed(other).packets, world.forwarded()), (before + 200, forwarded + 200));
        splits.share(QUEUE, here, &[here]).unwrap();
        send(200);
        let before = splits.handed(other).packets;
        send(200);
        assert_eq!((splits.handed(other).packets, world.forwarded()), (before, forwarded + 600));
        fs::write(&online, "1").unwrap();
    });
}
