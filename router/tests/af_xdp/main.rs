//! AF_XDP between veths, in namespaces of their own: what comes out, what is counted, and that no frame is missing at the end.

mod bed;
#[path = "../common/mod.rs"]
mod common;
mod measure;

use bed::*;
use common::{ifindex, in_new_namespace, run, wire::Wire};
use router::af_xdp::{Fault, Io, OpenError, OutputCounts, Queue, Rings, Umem, Wanted};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

/// A worker with one queue of p0 with these paths, and one of p1 to send by.
struct World {
    umem: Arc<Umem>,
    port: Port,
    io: Io,
}

/// Its output to p1.
const OUT: usize = 0;

impl World {
    fn new(paths: &[usize], rings: Rings, auxiliary: usize) -> World {
        make_port(0, 1);
        make_port(1, 1);
        let (umem, port) = (Umem::new(4096, 2048).unwrap(), Port::attach("p0"));
        let mut io = Io::new(&umem, 512).unwrap();
        let (queue, _) = open(&umem, &port, wanted("p0", 0, rings), paths);
        io.add_queue(queue);
        let (queue, sender) = Queue::open(&umem, wanted("p1", 0, rings)).unwrap();
        io.add_queue(queue);
        io.add_output(sender, auxiliary).unwrap();
        World { umem, port, io }
    }

    /// All go, and nothing is missing.
    #[track_caller]
    fn end(self) {
        for queue in self.io.queues() {
            assert_eq!((queue.counts().refused, queue.counts().starved), (0, 0));
        }
        drop(self.io);
        whole(&self.umem);
    }
}

/// Next frames of ours that came out of a wire.
#[track_caller]
fn out_of(wire: &Wire, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    until(&format!("{count} frames"), || {
        while let Some(frame) = wire.receive() {
            if frame[12..14] == [0x88, 0xb5] {
                frames.push(frame);
            }
        }
        frames.len() >= count
    });
    assert_eq!(frames.len(), count);
    frames
}

#[test]
#[ignore = "needs root"]
fn bytes_that_come_in_go_out_in_order() {
    in_new_namespace(|| {
        let mut world = World::new(&[0], SMALL, 0);
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        let queue = &world.io.queues()[0];
        assert!(!queue.is_zero_copy() && queue.copies_because().is_some(), "a veth copies, and that is said");
        // Some of every length, and more than any ring has.
        let frames: Vec<_> = (0..750).map(|n| frame(0, n, 60 + n as usize * 97 % 1455)).collect();
        for some in frames.chunks(50) {
            some.iter().for_each(|frame| from.send(frame));
            let mut packets = receive(&mut world.io, 0, some.len());
            for packet in &packets {
                assert_eq!(packet.head_room(), 256);
            }
            world.io.send(OUT, &mut packets).unwrap();
            assert!(packets.is_empty());
            assert!(out_of(&to, some.len()) == some, "the same, in order");
            world.io.flush();
        }
        let counts = world.io.outputs()[OUT].counts();
        assert_eq!(counts, OutputCounts { sent_packets: 750, ..OutputCounts::default() });
        world.end();
    });
}

#[test]
#[ignore = "needs root"]
fn packets_grow_at_both_ends_and_unfit_ones_are_dropped() {
    in_new_namespace(|| {
        let mut world = World::new(&[0], SMALL, 0);
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        let sent = frame(0, 1, 60);
        for _ in 0..3 {
            from.send(&sent);
        }
        let mut packets = receive(&mut world.io, 0, 3);
        let (bytes, range) = packets[0].parts_mut();
        bytes[range.start - 50..range.start].fill(0xaa);
        bytes.copy_within(range.start..range.start + 14, range.start - 50);
        bytes[range.end..range.end + 16].fill(0xbb);
        assert!(packets[0].set_range(range.start - 50..range.end + 16));
        for (packet, length) in packets[1..].iter_mut().zip([0, 13]) {
            let at = packet.head_room();
            assert!(packet.set_range(at..at + length));
        }
        let other = Umem::new(300, 2048).unwrap();
        let mut stranger = Io::new(&other, 1).unwrap().pool().allocate().unwrap();
        assert!(stranger.fill(&sent));
        packets.push(stranger);
        world.io.send(OUT, &mut packets).unwrap();
        let out = out_of(&to, 1).remove(0);
        assert_eq!(out.len(), 50 + 60 + 16);
        assert_eq!((&out[..14], &out[14..50], &out[50..110]), (&sent[..14], &[0xaa; 36][..], &sent[..]));
        assert_eq!(out[110..], [0xbb; 16]);
        assert_eq!(world.io.outputs()[OUT].counts().dropped_unfit, 3);
        whole(&other);
        world.end();
    });
}

#[test]
#[ignore = "needs root"]
fn a_worker_takes_from_its_queues_in_turns() {
    in_new_namespace(|| {
        make_port(0, 4);
        make_port(1, 4);
        let umem = Umem::new(4096, 2048).unwrap();
        let ports = [Port::attach("p0"), Port::attach("p1")];
        let mut io = Io::new(&umem, 512).unwrap();
        for (device, port) in ["p0", "p1"].into_iter().zip(&ports) {
            for queue in 0..4 {
                io.add_queue(open(&umem, port, wanted(device, queue, SMALL), &[2]).0);
            }
        }
        let mut generators = [Generator::new("q0", 4), Generator::new("q1", 4)];
        // 40 wait in each ring of port and queue, but 20 in that of the last.
        for (port, generator) in (0..).zip(&mut generators) {
            for queue in 0..4 {
                let ring = port * 4 + queue;
                let count = if ring == 7 { 20 } else { 40 };
                generator.send(queue as usize, (0..count).map(|n| frame(2, ring * 1000 + n, 60)));
            }
        }
        let mut expected = [0; 8];
        let mut took = vec![];
        for _ in 0..3 {
            let mut packets = Vec::new();
            assert_eq!(io.receive(2, 80, &mut packets), 80);
            let mut of_ring = [0; 8];
            for number in numbers(&packets) {
                let ring = number as usize / 1000;
                assert_eq!(number as usize % 1000, expected[ring], "in order");
                expected[ring] += 1;
                of_ring[ring] += 1;
            }
            took.push(of_ring);
        }
        assert_eq!(
            took,
            [[10; 8]; 3]
                .map(|mut part| {
                    part[7] = part[7].min(10);
                    part
                })
                .into_iter()
                .enumerate()
                .map(|(n, mut part)| {
                    // The last has no more; what it leaves goes to the one whose turn it is.
                    if n == 2 {
                        part[7] = 0;
                        part[2] += 10;
                    }
                    part
                })
                .collect::<Vec<_>>()
        );
        assert_eq!(receive(&mut io, 2, 60).len(), 60, "what was left");
        assert_eq!(io.receive(2, 100, &mut Vec::new()), 0);
        generators.into_iter().for_each(Generator::end);
        drop(io);
        whole(&umem);
    });
}

#[test]
#[ignore = "needs root"]
fn a_stalled_path_costs_its_neighbour_nothing() {
    in_new_namespace(|| {
        let mut world = World::new(&[0, 1], SMALL, 0);
        let mut generator = Generator::new("q0", 1);
        let mut received = Vec::new();
        // Twenty times what a ring has, for each; nobody reads path 1.
        for n in 0..40 {
            generator.send(0, (n * 32..(n + 1) * 32).flat_map(|n| [frame(0, n, 60), frame(1, n, 60)]));
            received.extend(numbers(&receive(&mut world.io, 0, 32)));
        }
        assert_eq!(received, (0..40 * 32).collect::<Vec<_>>());
        let statistics = |path| world.io.queues()[0].statistics(path).unwrap().unwrap();
        let [reading, stalled] = [0, 1].map(statistics);
        assert_eq!((reading.receive_ring_full, reading.received_dropped), (0, 0));
        assert_eq!((stalled.receive_ring_full, stalled.received_dropped), (40 * 32 - 64, 0));
        assert_eq!((stalled.fill_ring_empty, reading.fill_ring_empty), (0, 0));
        // What the ring took is there, in order, and it goes on.
        assert_eq!(numbers(&receive(&mut world.io, 1, 64)), (0..64).collect::<Vec<_>>());
        generator.send(0, [frame(1, 5, 60)]);
        assert_eq!(numbers(&receive(&mut world.io, 1, 1)), [5]);
        generator.end();
        world.end();
    });
}

#[test]
#[ignore = "needs root"]
fn a_path_without_a_ring_is_the_kernels() {
    in_new_namespace(|| {
        let mut world = World::new(&[0], SMALL, 0);
        let (from, kernel) = (Wire::open("q0"), Wire::open("p0"));
        from.send(&frame(1, 7, 60));
        from.send(&frame(0, 8, 60));
        assert_eq!(numbers(&receive(&mut world.io, 0, 1)), [8]);
        assert_eq!(out_of(&kernel, 1), [frame(1, 7, 60)]);
        // A path that comes later.
        world.io.queues_mut()[0].add_path(1).unwrap();
        assert!(matches!(
            world.io.queues_mut()[0].add_path(1),
            Err(OpenError::PathTaken { path: 1, queue: 0 })
        ));
        world.port.redirect(&world.io.queues()[0], 1);
        from.send(&frame(1, 9, 60));
        assert_eq!(numbers(&receive(&mut world.io, 1, 1)), [9]);
        world.end();
    });
}

#[test]
#[ignore = "needs root"]
fn frames_that_do_not_fit_are_dropped_and_counted() {
    in_new_namespace(|| {
        let mut world = World::new(&[0], SMALL, 0);
        run("ip link set q0 mtu 3000");
        run("ip link set p0 mtu 3000");
        let from = Wire::open("q0");
        from.send(&frame(0, 1, 1792));
        from.send(&frame(0, 2, 1793));
        from.send(&frame(0, 3, 60));
        let packets = receive(&mut world.io, 0, 2);
        assert_eq!(numbers(&packets), [1, 3]);
        assert_eq!((packets[0].len(), packets[0].tail_room()), (1792, 0));
        assert_eq!(world.io.queues()[0].statistics(0).unwrap().unwrap().received_dropped, 1);
        drop(packets);
        world.end();
    });
}

/// What is sent while the port is down fills TX ring and auxiliary queue; what comes after is lost; what waits leaves first.
#[test]
#[ignore = "needs root"]
fn what_finds_the_ring_full_waits_in_order() {
    in_new_namespace(|| {
        let mut world = World::new(&[0], SMALL, 100);
        let to = Wire::open("q1");
        run("ip link set p1 down");
        let send = |io: &mut Io, numbers: std::ops::Range<u32>| {
            let mut packets: Vec<_> = numbers
                .map(|n| {
                    let mut packet = io.pool().allocate().unwrap();
                    assert!(packet.fill(&frame(0, n, 60)));
                    packet
                })
                .collect();
            io.send(OUT, &mut packets)
        };
        for n in 0..20 {
            assert_eq!(send(&mut world.io, n * 10..(n + 1) * 10), Err(Fault::Down));
        }
        assert_eq!(world.io.outputs()[OUT].waiting(), 100);
        let counts = world.io.outputs()[OUT].counts();
        assert_eq!((counts.sent_packets, counts.delayed_packets, counts.dropped_full), (64, 100, 36));
        run("ip link set p1 up");
        // A newer one goes last.
        until("the auxiliary queue to empty, or nearly", || {
            world.io.flush();
            world.io.outputs()[OUT].waiting() <= 36
        });
        send(&mut world.io, 200..201).unwrap();
        until("all to leave", || {
            world.io.flush();
            !world.io.has_waiting()
        });
        let out: Vec<u32> = out_of(&to, 165).iter().map(|frame| number(frame)).collect();
        assert_eq!(out, (0..164).chain([200]).collect::<Vec<_>>());
        assert_eq!(world.io.outputs()[OUT].counts().sent_packets, 165);
        world.end();
    });
}

/// Frames that were sent and are not taken back fill the completion ring, and the kernel sends no more.
#[test]
#[ignore = "needs root"]
fn nothing_is_lost_where_completions_wait() {
    in_new_namespace(|| {
        let mut world = World::new(&[0], SMALL, 400);
        let to = Wire::open("q1");
        for n in 0..10 {
            let mut packets: Vec<_> = (n * 30..(n + 1) * 30)
                .map(|n| {
                    let mut packet = world.io.pool().allocate().unwrap();
                    assert!(packet.fill(&frame(0, n, 60)));
                    packet
                })
                .collect();
            world.io.send(OUT, &mut packets).unwrap();
        }
        assert_eq!(world.io.outputs()[OUT].sender().in_flight(), 128, "completion and TX ring");
        assert_eq!(world.io.outputs()[OUT].waiting(), 300 - 128);
        until("all to leave", || {
            world.io.flush();
            !world.io.has_waiting()
        });
        let out: Vec<u32> = out_of(&to, 300).iter().map(|frame| number(frame)).collect();
        assert_eq!(out, (0..300).collect::<Vec<_>>());
        world.end();
    });
}

#[test]
#[ignore = "needs root"]
fn what_a_worker_had_goes_back_when_it_is_dropped() {
    in_new_namespace(|| {
        let World { umem, io, port } = World::new(&[0, 1], SMALL, 100);
        let mut io = io;
        let mut generator = Generator::new("q0", 1);
        run("ip link set p1 down");
        // In hand, in RX rings, in a TX ring, and in the auxiliary queue.
        generator.send(0, (0..60).map(|n| frame(1, n, 60)));
        for _ in 0..3 {
            generator.send(0, (0..32).map(|n| frame(0, n, 60)));
            let mut packets = receive(&mut io, 0, 32);
            assert_eq!(io.send(OUT, &mut packets), Err(Fault::Down));
        }
        generator.send(0, (0..40).map(|n| frame(0, n, 60)));
        let in_hand = receive(&mut io, 0, 20);
        assert_eq!((io.outputs()[OUT].waiting(), io.outputs()[OUT].sender().waiting()), (32, 64));
        assert!(umem.free_frames() < umem.frames());
        drop(io);
        assert_eq!(numbers(&in_hand), (0..20).collect::<Vec<_>>(), "a buffer outlives its worker");
        drop(in_hand);
        whole(&umem);
        // The queue is free again at once, for us.
        let (queue, _sender) = open(&umem, &port, wanted("p0", 0, SMALL), &[0]);
        let mut io = Io::new(&umem, 64).unwrap();
        io.add_queue(queue);
        generator.send(0, [frame(0, 77, 60)]);
        assert_eq!(numbers(&receive(&mut io, 0, 1)), [77]);
        generator.end();
        drop((io, _sender));
        whole(&umem);
    });
}

#[test]
#[ignore = "needs root"]
fn another_thread_goes_on_where_one_panicked() {
    in_new_namespace(|| {
        make_port(0, 1);
        let (umem, port) = (Umem::new(2048, 2048).unwrap(), Port::attach("p0"));
        let (queue, sender) = open(&umem, &port, wanted("p0", 0, SMALL), &[0]);
        // The first of its workers fills the fill ring, and has no time for more.
        let mut io = Io::new(&umem, 256).unwrap();
        io.add_queue(queue);
        io.add_output(sender, 10).unwrap();
        let parts = io.dismantle();
        let mut generator = Generator::new("q0", 1);
        generator.send(0, (0..30).map(|n| frame(0, n, 60)));
        let work = |umem: Arc<Umem>, (senders, queues): (Vec<_>, Vec<Queue>), panics: bool| {
            thread::spawn(move || {
                let mut io = Io::new(&umem, 256).unwrap();
                for queue in queues {
                    io.add_queue(queue);
                }
                for sender in senders {
                    io.add_output(sender, 10).unwrap();
                }
                let result = catch_unwind(AssertUnwindSafe(|| {
                    let packets = receive(&mut io, 0, 10);
                    assert!(!panics, "as it was told to, with {} packets", packets.len());
                    numbers(&packets)
                }));
                (io.dismantle(), result.ok())
            })
            .join()
            .unwrap()
        };
        let (parts, result) = work(umem.clone(), parts, true);
        assert_eq!(result, None);
        let (parts, result) = work(umem.clone(), parts, false);
        assert_eq!(
            result,
            Some((10..20).collect::<Vec<_>>()),
            "only what the other had in its hands is lost"
        );
        generator.send(0, (30..40).map(|n| frame(0, n, 60)));
        let (parts, result) = work(umem.clone(), parts, false);
        assert_eq!(result, Some((20..30).collect::<Vec<_>>()));
        generator.end();
        drop(parts);
        whole(&umem);
    });
}

/// Two workers, one queue: the second has a TX ring of its own, and the first takes back what both sent.
#[test]
#[ignore = "needs root"]
fn two_workers_send_by_one_queue() {
    in_new_namespace(|| {
        make_port(0, 1);
        let umem = Umem::new(4096, 2048).unwrap();
        let to = Wire::open("q0");
        let (queue, sender) = Queue::open(&umem, wanted("p0", 0, SMALL)).unwrap();
        let guest = queue.another_sender().unwrap();
        let send = |io: &mut Io, path: u8, n: u32| {
            let mut packet = io.pool().allocate().expect("frames come back by the depot");
            assert!(packet.fill(&frame(path, n, 60)));
            io.send(0, &mut vec![packet]).unwrap();
            until("room", || {
                io.flush();
                !io.has_waiting()
            });
        };
        let mut io = Io::new(&umem, 64).unwrap();
        io.add_queue(queue);
        io.add_output(sender, 10).unwrap();
        thread::scope(|scope| {
            let umem = umem.clone();
            let other = scope.spawn(move || {
                let mut io = Io::new(&umem, 64).unwrap();
                io.add_output(guest, 10).unwrap();
                // Far more than the memory has.
                (0..6000).for_each(|n| send(&mut io, 1, n));
            });
            (0..3000).for_each(|n| send(&mut io, 0, n));
            while !other.is_finished() {
                io.flush();
                thread::yield_now();
            }
        });
        let out = out_of(&to, 9000);
        for (path, count) in [(0, 3000), (1, 6000)] {
            let numbers = out.iter().filter(|f| f[14] == path).map(|f| number(f)).collect::<Vec<_>>();
            assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "each one's in order");
        }
        assert_eq!(io.queues()[0].counts().refused, 0);
        drop(io);
        whole(&umem);
    });
}

#[test]
#[ignore = "needs root"]
fn a_port_that_is_deleted_is_told_of() {
    in_new_namespace(|| {
        let World { umem, port: _port, mut io } = World::new(&[0], SMALL, 100);
        let (stop, stopped) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let wire = Wire::open("q0");
            scope.spawn(move || {
                // Until the other end is gone too.
                for n in 0.. {
                    if stopped.try_recv() != Err(mpsc::TryRecvError::Empty) {
                        break;
                    }
                    let _ = catch_unwind(AssertUnwindSafe(|| wire.send(&frame(0, n, 60))));
                }
            });
            let forward = |io: &mut Io| {
                let mut packets = Vec::new();
                io.wait(&[0], Duration::from_millis(20)).unwrap();
                io.receive(0, 32, &mut packets);
                let count = packets.len();
                (count, io.send(OUT, &mut packets))
            };
            assert_eq!(io.faults().next(), None);
            until("traffic", || matches!(forward(&mut io), (10.., Ok(()))));
            run("ip link del p1");
            until("an error of the output", || forward(&mut io).1 == Err(Fault::Gone));
            assert_eq!(io.faults().collect::<Vec<_>>(), [(1, Fault::Gone)]);
            until("packets that are dropped", || {
                let _ = forward(&mut io);
                io.outputs()[OUT].counts().dropped_gone > 0
            });
            drop(stop);
        });
        run("ip link set p0 down");
        assert_eq!(io.faults().collect::<Vec<_>>(), [(0, Fault::Down), (1, Fault::Gone)]);
        run("ip link del p0");
        assert_eq!(io.faults().collect::<Vec<_>>(), [(0, Fault::Gone), (1, Fault::Gone)]);
        let begun = Instant::now();
        assert_eq!(io.wait(&[0], Duration::from_millis(50)).ok(), Some(false));
        drop(io);
        assert!(begun.elapsed() < Duration::from_secs(1), "nothing hangs");
        whole(&umem);
        // The same memory, when all who had registered it are gone.
        make_port(0, 1);
        let port = Port::attach("p0");
        let (queue, _sender) = open(&umem, &port, wanted("p0", 0, SMALL), &[0]);
        let mut io = Io::new(&umem, 64).unwrap();
        io.add_queue(queue);
        let wire = Wire::open("q0");
        wire.send(&frame(0, 3, 60));
        assert_eq!(numbers(&receive(&mut io, 0, 1)), [3]);
    });
}

/// The memory was registered by a socket of a device that is gone; others go on, and new ones come.
#[test]
#[ignore = "needs root"]
fn the_memory_outlives_the_port_that_registered_it() {
    in_new_namespace(|| {
        let mut world = World::new(&[0], SMALL, 0);
        run("ip link del p0");
        make_port(2, 1);
        let port = Port::attach("p2");
        // By the socket of p1, as that of p0 cannot be shared any more.
        let (queue, _sender) = open(&world.umem, &port, wanted("p2", 0, SMALL), &[0]);
        world.io.add_queue(queue);
        let (from, to) = (Wire::open("q2"), Wire::open("q1"));
        from.send(&frame(0, 4, 60));
        let mut packets = receive(&mut world.io, 0, 1);
        world.io.send(OUT, &mut packets).unwrap();
        assert_eq!(out_of(&to, 1), [frame(0, 4, 60)]);
        drop(_sender);
        world.end();
    });
}

#[test]
#[ignore = "needs root"]
fn devices_of_equal_index_in_other_namespaces_are_others() {
    let umem = Umem::new(4096, 2048).unwrap();
    let here = |umem: Arc<Umem>, tag: u32, meet: Arc<std::sync::Barrier>, indexes: mpsc::Sender<u32>| {
        move || {
            make_port(0, 1);
            indexes.send(ifindex("p0")).unwrap();
            let port = Port::attach("p0");
            let (mut queue, sender) = open(&umem, &port, wanted("p0", 0, SMALL), &[0]);
            meet.wait();
            // After both have the first socket: the second of each finds its own.
            queue.add_path(1).unwrap();
            port.redirect(&queue, 1);
            let mut io = Io::new(&umem, 64).unwrap();
            io.add_queue(queue);
            io.add_output(sender, 0).unwrap();
            let wire = Wire::open("q0");
            for path in [0, 1] {
                (0..40).for_each(|n| wire.send(&frame(path, tag + n, 60)));
                let mut packets = receive(&mut io, path.into(), 40);
                assert_eq!(
                    numbers(&packets),
                    (tag..tag + 40).collect::<Vec<_>>(),
                    "its own, and all of them"
                );
                io.send(0, &mut packets).unwrap();
                let expected: Vec<_> = (tag..tag + 40).map(|n| frame(path, n, 60)).collect();
                assert_eq!(out_of(&wire, 40), expected);
            }
            meet.wait();
            drop(io);
        }
    };
    let (indexes, are) = mpsc::channel();
    let meet = Arc::new(std::sync::Barrier::new(2));
    let other = thread::spawn({
        let body = here(umem.clone(), 1000, meet.clone(), indexes.clone());
        move || in_new_namespace(body)
    });
    in_new_namespace(here(umem.clone(), 2000, meet, indexes));
    other.join().unwrap();
    let are: Vec<u32> = are.iter().collect();
    assert_eq!(are[0], are[1], "indexes repeat");
    whole(&umem);
}

#[test]
#[ignore = "needs root"]
fn what_cannot_be_opened_says_why() {
    in_new_namespace(|| {
        make_port(0, 1);
        let few = Umem::new(300, 2048).unwrap();
        let error = |result: Result<_, OpenError>| result.err().unwrap().to_string();
        let wanted = wanted("p0", 0, SMALL);
        let (mut queue, _sender) = Queue::open(&few, wanted).unwrap();
        assert_eq!(
            error(queue.add_path(0)),
            "a path's RX ring may hold 64 frames; of 300, 256 are promised to others"
        );
        assert_eq!(
            error(Io::new(&few, 10).map(drop)),
            "a worker's pool may hold 266 frames; of 300, 256 are promised to others"
        );
        let umem = Umem::new(4096, 2048).unwrap();
        let open = |wanted| error(Queue::open(&umem, wanted).map(drop));
        assert_eq!(open(wanted), format!("queue 0 of device {}: binding", wanted.ifindex), "somebody has it");
        assert!(open(Wanted { queue: 1, ..wanted }).starts_with("queue 1"), "there is none");
        assert!(open(Wanted { ifindex: 999, ..wanted }).starts_with("queue 0 of device 999"));
        let rings = Rings { receive: 100, ..SMALL };
        assert!(open(Wanted { rings, ..wanted }).starts_with("a ring of 100 entries"));
        drop((queue, _sender));
        whole(&few);
        whole(&umem);
        assert!(umem.promised_frames() == 0);
    });
}
