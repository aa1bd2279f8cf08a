//! With sockets of workers: packets that come in by a wire end up in the ring of their port, queue and path.

use super::{rules::Rules, *};
use crate::{
    bed::{self, Generator, SMALL, receive, until, whole},
    common::{
        Ends, only_on,
        wire::Wire,
        world::{self, World},
    },
};
use logic::{cores::QueueId, reason::Reason};
use router::{
    plane::Charge,
    user_plane::af_xdp::{Buffer, Io, Queue, Umem},
};
use std::{
    os::fd::AsFd,
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    thread,
};

/// A packet for UDP port `to`, with a number, of `bytes` bytes.
fn packet(to: u16, number: u32, bytes: usize) -> Vec<u8> {
    let frame = Frame::udp4(world::A, "10.0.1.5", "10.0.2.9").ip4(|ip| {
        ip.resize(bytes - 14, 0x77);
        let length = ip.len() as u16;
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        ip[22..24].copy_from_slice(&to.to_be_bytes());
        ip[28..32].copy_from_slice(&number.to_be_bytes());
    });
    frame.bytes()
}

fn numbers(buffers: &[Buffer]) -> Vec<u32> {
    buffers.iter().map(|buffer| u32::from_be_bytes(*buffer.data()[42..].first_chunk().unwrap())).collect()
}

fn udp_to(port: u16) -> Class {
    Class { protocol: Some(17), destination_port: Some(port), ..Class::default() }
}

/// The rings of workers, on one queue of p0.
struct Bed {
    world: World,
    maps: Arc<PathMaps>,
    umem: Arc<Umem>,
    io: Io,
}

impl Bed {
    /// Opens sockets for these paths.
    fn new(paths: &[usize]) -> Bed {
        let mut world = World::new(1);
        let maps = Arc::new(PathMaps::new(MOST_BYTES).unwrap());
        give_paths(&mut world.plane, &maps);
        world.link.replace(world.plane.program()).unwrap();
        world.count_losses();
        run("ethtool -K q1 gro on");
        let umem = Umem::new(4096, 2048).unwrap();
        let (queue, _) = Queue::open(&umem, bed::wanted("p0", 0, SMALL)).unwrap();
        let (opener, mut io) = (queue.opener(), Io::new(&umem, 1024).unwrap());
        io.add_queue(queue);
        for path in paths {
            let ring = opener.receiver(*path).unwrap();
            maps.put(0, 0, *path as u16, ring.as_fd()).unwrap();
            io.add_receiver(ring);
        }
        Bed { world, maps, umem, io }
    }

    fn ring_full(&self, path: usize) -> u64 {
        let mut rings = self.io.receivers(path);
        rings.next().unwrap().statistics().unwrap().receive_ring_full
    }

    fn end(self) {
        let Bed { umem, io, .. } = self;
        drop(io);
        whole(&umem);
    }
}

#[test]
#[ignore = "needs root"]
fn packets_reach_their_paths_as_they_came_and_others_are_routed() {
    in_new_namespace(|| {
        let mut b = Bed::new(&[3, 60]);
        let classes = [path(60, Otherwise::Drop, udp_to(2060)), path(3, Otherwise::Up, udp_to(2003))];
        b.maps.set_classes(&classes, &own()).unwrap();
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        for n in 0..50 {
            let bytes = 60 + 29 * n as usize;
            for (to, number) in [(2060, n), (2003, 100 + n), (2000, 200 + n)] {
                from.send(&packet(to, number, bytes));
            }
            for (path, to, number) in [(60, 2060, n), (3, 2003, 100 + n)] {
                let packets = receive(&mut b.io, path, 1);
                assert_eq!(hex(packets[0].data()), hex(&packet(to, number, bytes)));
            }
        }
        until("50 routed packets", || b.world.forwarded() == 50);
        let mut routed = 0;
        until("50 packets at the other end", || {
            routed += std::iter::from_fn(|| to.receive()).filter(|f| f[12..14] == [8, 0]).count();
            routed == 50
        });
        let counts = b.maps.counts();
        let bytes = (0..50).map(|n| 60 + 29 * n).sum();
        for path in [3, 60] {
            assert_eq!(counts[path], PathCounts { packets: 50, bytes, ..PathCounts::default() });
        }
        // Without a socket, a packet is handled as its path says.
        [3, 60].iter().for_each(|path| b.maps.take(0, 0, *path).unwrap());
        b.maps.take(0, 0, 60).unwrap();
        from.send(&packet(2003, 1, 60));
        from.send(&packet(2060, 1, 60));
        until("the packet that is routed", || b.world.forwarded() == 51);
        until("the packet that is dropped", || b.world.charged(Reason::PathNoWorker) == 1);
        let counts = b.maps.counts();
        assert_eq!((counts[3].up, counts[60].dropped), ([0, 0, 1, 0], [0, 0, 1, 0]));
        assert!(b.maps.put(0, 64, 3, b.io.receivers(3).next().unwrap().as_fd()).is_err());
        b.end();
    });
}

#[test]
#[ignore = "needs root"]
fn packets_that_a_full_ring_drops_are_counted_for_its_path() {
    in_new_namespace(|| {
        let mut b = Bed::new(&[0, 1]);
        let classes = [path(0, Otherwise::Drop, udp_to(2000)), path(1, Otherwise::Drop, udp_to(2001))];
        b.maps.set_classes(&classes, &own()).unwrap();
        let mut generator = Generator::new("q0", 1);
        let mut received = Vec::new();
        // Nobody reads path 1, whose ring holds 64.
        for n in 0..20 {
            let both = |n| [packet(2000, n, 60), packet(2001, n, 60)];
            generator.send(0, (n * 32..(n + 1) * 32).flat_map(both));
            received.extend(numbers(&receive(&mut b.io, 0, 32)));
        }
        assert_eq!(received, Vec::from_iter(0..20 * 32), "packets of the path that is read");
        let full = 20 * 32 - 64;
        assert_eq!((b.ring_full(0), b.ring_full(1)), (0, full));
        until("the tracepoint to count", || b.maps.counts()[1].ring_full == full);
        let counts = b.maps.counts();
        assert_eq!((counts[0].ring_full, counts[0].packets, counts[1].packets), (0, 640, 640));
        assert_eq!((counts[1].refused, counts[1].dropped), (0, [0; 4]));
        let charges = b.world.plane.counters().unwrap().charges;
        let given: Vec<_> = charges.iter().filter(|((_, why), _)| *why == Reason::PathGiven).collect();
        assert_eq!(
            given,
            [(&(Charge::Router(0), Reason::PathGiven), &1280)],
            "packets given to paths, charged to their router"
        );
        let paths = [Reason::PathRingFull, Reason::PathRefused];
        let lost: Vec<_> = charges.into_iter().filter(|((_, why), _)| paths.contains(why)).collect();
        assert_eq!(lost, [((Charge::Port(0), Reason::PathRingFull), full)]);
        assert_eq!(numbers(&receive(&mut b.io, 1, 64)), Vec::from_iter(0..64));
        generator.end();
        b.end();
    });
}

/// A worker that hangs gives the queue no frames, and these run out before the rings of its paths are full. A
/// socket takes no packets of another port.
#[test]
#[ignore = "needs root"]
fn packets_that_a_socket_refuses_for_another_reason_are_counted_apart() {
    in_new_namespace(|| {
        let mut b = Bed::new(&[0, 1, 2]);
        let to = |n: u16| path(n, Otherwise::Drop, udp_to(2000 + n));
        b.maps.set_classes(&[to(0), to(1), to(2), to(6)], &own()).unwrap();
        let (other, _) = Queue::open(&b.umem, bed::wanted("p1", 0, SMALL)).unwrap();
        let of_other = other.opener().receiver(6).unwrap();
        b.maps.put(0, 0, 6, of_other.as_fd()).unwrap();
        let mut generator = Generator::new("q0", 1);
        // The queue has 128 frames, and each ring room for 64.
        generator.send(0, (0..150).map(|n| packet(2000 + (n / 50) as u16, n, 60)));
        generator.send(0, (0..9).map(|n| packet(2006, n, 60)));
        until("the tracepoint to count", || b.maps.counts()[6].refused == 9);
        let counts = b.maps.counts();
        let lost = [0, 1, 2, 6].map(|n| (counts[n].packets, counts[n].ring_full, counts[n].refused));
        assert_eq!(lost, [(50, 0, 0), (50, 0, 0), (50, 0, 22), (9, 0, 9)]);
        assert!(
            [0, 1, 2, 6].iter().all(|n| counts[*n].dropped == [0; 4]),
            "packets that were given to a socket count as dropped by the path"
        );
        let charges = b.world.plane.counters().unwrap().charges;
        let paths = [Reason::PathRingFull, Reason::PathRefused];
        let lost: Vec<_> = charges.into_iter().filter(|((_, why), _)| paths.contains(why)).collect();
        assert_eq!(lost, [((Charge::Port(0), Reason::PathRefused), 31)]);
        // The worker continues.
        for (path, packets) in [(0, 50), (1, 50), (2, 28)] {
            let first = path as u32 * 50;
            assert_eq!(
                numbers(&receive(&mut b.io, path, packets)),
                Vec::from_iter(first..first + packets as u32)
            );
        }
        generator.send(0, (0..20).map(|n| packet(2002, n, 60)));
        assert_eq!(numbers(&receive(&mut b.io, 2, 20)), Vec::from_iter(0..20));
        assert_eq!(b.maps.counts()[2].refused, 22);
        generator.end();
        drop((of_other, other));
        b.end();
    });
}

/// Two orders of 64 classes. A packet of path `n` in one order is of path `n` in the other. With half of
/// each, it would belong to another path.
fn order(turned: bool) -> Vec<PathClass> {
    let named = (0..63).map(|n| path(n, Otherwise::Drop, udp_to(2000 + n)));
    let rest = path(63, Otherwise::Drop, Class { protocol: Some(17), ..Class::default() });
    let mut all: Vec<_> = named.chain([rest]).collect();
    if turned {
        all[..63].reverse();
    }
    all
}

#[test]
#[ignore = "needs root"]
fn classes_that_change_under_load_lose_and_misdirect_no_packet() {
    in_new_namespace(|| {
        let paths = [0, 5, 31, 57, 62];
        let mut b = Bed::new(&paths);
        b.maps.set_classes(&order(false), &own()).unwrap();
        let (done, changes, maps) = (AtomicBool::new(false), AtomicU32::new(0), b.maps.clone());
        let mut next = [0_u32; 5];
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    maps.set_classes(&order(changes.load(Relaxed) % 2 == 0), &own()).unwrap();
                    changes.fetch_add(1, Relaxed);
                }
            });
            let _ends = Ends(&done);
            let mut generator = Generator::new("q0", 1);
            let mut rounds = 0..;
            while next[0] < 20_000 || changes.load(Relaxed) <= 100 {
                let round: u32 = rounds.next().unwrap();
                let frames =
                    (0..50).map(|i| packet(2000 + paths[i % 5] as u16, round * 10 + i as u32 / 5, 60));
                generator.send(0, frames);
                for (path, next) in paths.iter().zip(&mut next) {
                    let packets = receive(&mut b.io, *path, 10);
                    assert_eq!(numbers(&packets), Vec::from_iter(*next..*next + 10), "path {path}");
                    *next += 10;
                }
            }
            generator.end();
        });
        let counts = b.maps.counts();
        for (path, count) in counts.iter().enumerate() {
            let packets = if paths.contains(&path) { next[0].into() } else { 0 };
            assert_eq!((count.packets, count.dropped), (packets, [0; 4]), "path {path}");
        }
        b.end();
    });
}

/// All flows of the queue continue on another core, except those of paths: a CPU map would lose their queue
/// number.
#[test]
#[ignore = "needs root"]
fn a_queue_that_is_split_gives_paths_their_packets_first() {
    in_new_namespace(|| {
        only_on([0]);
        let mut b = Bed::new(&[7]);
        b.maps.set_classes(&[path(7, Otherwise::Drop, udp_to(2007))], &own()).unwrap();
        let splits = b.world.plane.splits().clone();
        splits.share(QueueId { port: 0, index: 0 }, 0, &[1]).unwrap();
        let from = Wire::open("q0");
        let mut received = Vec::new();
        for n in 0..10 {
            for n in n * 20..(n + 1) * 20 {
                from.send(&packet(2007, n, 60));
                from.send(&packet(2000 + n as u16 % 7, n, 60));
            }
            received.extend(numbers(&receive(&mut b.io, 7, 20)));
        }
        assert_eq!(received, Vec::from_iter(0..200));
        until("all other packets on the other core", || b.world.forwarded() == 200);
        assert!(splits.handed(1).packets >= 190, "too few packets handed over: {:?}", splits.handed(1));
        assert_eq!(b.maps.counts()[7].packets, 200);
        b.end();
    });
}

/// A rule that names a core does not take a path's packets there, and a split does not take packets that
/// rules give to a path.
#[test]
#[ignore = "needs root"]
fn packets_that_rules_give_a_path_reach_it_whatever_core_others_go_to() {
    in_new_namespace(|| {
        only_on([0]);
        let mut b = Bed::new(&[7]);
        let mut rules = Rules::new(&b.world.plane, &b.maps);
        rules.give(2007, 7);
        rules.give_from_core(2008, 7, 1);
        b.world.link.replace(rules.plane.program()).unwrap();
        let splits = b.world.plane.splits().clone();
        splits.share(QueueId { port: 0, index: 0 }, 0, &[1]).unwrap();
        let from = Wire::open("q0");
        let mut received = Vec::new();
        for n in 0..10 {
            for n in n * 20..(n + 1) * 20 {
                from.send(&packet(2007 + n as u16 % 2, n, 60));
                from.send(&packet(2000 + n as u16 % 7, n, 60));
            }
            let packets = receive(&mut b.io, 7, 20);
            let sources =
                packets.iter().map(|packet| u16::from_be_bytes([packet.data()[34], packet.data()[35]]));
            assert_eq!(sources.filter(|source| *source == 77).count(), 10);
            received.extend(numbers(&packets));
        }
        assert_eq!(received, Vec::from_iter(0..200));
        until("all other packets", || b.world.forwarded() == 200);
        let counts = b.maps.counts();
        assert_eq!(counts[7], PathCounts { packets: 200, bytes: 200 * 60, ..PathCounts::default() });
        b.end();
    });
}
