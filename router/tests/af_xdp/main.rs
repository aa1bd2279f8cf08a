//! AF_XDP between veths, in namespaces of their own: the frames that come out, what is counted, and that no
//! frame is missing at the end.

mod bed;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod flood;
mod measure;
mod output;

use bed::*;
use common::{ifindex, in_new_namespace, run, wire::Wire};
use router::user_plane::af_xdp::{Io, MOST_PATHS, OutputCounts, Queue, Rings, Umem};
use std::{
    sync::{Arc, mpsc},
    thread,
};

/// A worker with one queue of p0, which has these paths, and one queue of p1 to send by.
struct World {
    umem: Arc<Umem>,
    port: XdpPort,
    io: Io,
}

/// The output to p1.
const OUT: usize = 0;

impl World {
    fn new(paths: &[usize], rings: Rings, auxiliary: usize) -> World {
        make_port(0, 1);
        make_port(1, 1);
        let (umem, port) = (Umem::new(4096, 2048).unwrap(), XdpPort::attach("p0"));
        let mut io = Io::new(&umem, 512).unwrap();
        open(&umem, &port, wanted("p0", 0, rings), paths).0.add_to(&mut io);
        let (queue, sender) = Queue::open(&umem, wanted("p1", 0, rings)).unwrap();
        io.add_queue(queue);
        io.add_output(sender, auxiliary).unwrap();
        World { umem, port, io }
    }

    /// Closes everything, and asserts that no frame is missing.
    #[track_caller]
    fn end(self) {
        for queue in self.io.queues() {
            assert_eq!((queue.counts().refused, queue.counts().starved), (0, 0));
        }
        drop(self.io);
        whole(&self.umem);
    }
}

/// The next `count` frames of ours that come out of a wire.
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
        assert!(
            !queue.is_zero_copy() && queue.copies_because().is_some(),
            "a queue of a veth does not say why it copies"
        );
        // Frames of many lengths, and more than any ring holds.
        let frames: Vec<_> = (0..750).map(|n| frame(0, n, 60 + n as usize * 97 % 1455)).collect();
        for some in frames.chunks(50) {
            some.iter().for_each(|frame| from.send(frame));
            let mut packets = receive(&mut world.io, 0, some.len());
            for packet in &packets {
                assert_eq!(packet.head_room(), 256);
            }
            world.io.send(OUT, &mut packets).unwrap();
            assert!(packets.is_empty());
            assert!(
                out_of(&to, some.len()) == some,
                "the frames that came out differ from those sent, or in order"
            );
            world.io.flush();
        }
        let counts = world.io.outputs()[OUT].counts();
        assert_eq!(counts, OutputCounts { sent_packets: 750, ..OutputCounts::default() });
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
        let ports = [XdpPort::attach("p0"), XdpPort::attach("p1")];
        let mut io = Io::new(&umem, 512).unwrap();
        for (device, port) in ["p0", "p1"].into_iter().zip(&ports) {
            for queue in 0..4 {
                open(&umem, port, wanted(device, queue, SMALL), &[2]).0.add_to(&mut io);
            }
        }
        let mut generators = [Generator::new("q0", 4), Generator::new("q1", 4)];
        // 40 frames wait in each ring of port and queue, but 20 in the last.
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
                assert_eq!(number as usize % 1000, expected[ring], "the next number of ring {ring}");
                expected[ring] += 1;
                of_ring[ring] += 1;
            }
            took.push(of_ring);
        }
        // The last ring is empty then. The others share what it leaves, and three of them get the rest.
        assert_eq!(took, [[10; 8], [10; 8], [12, 12, 12, 11, 11, 11, 11, 0]]);
        assert_eq!(receive(&mut io, 2, 60).len(), 60, "the packets that were left");
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
        // Twenty times as many frames as a ring holds, for each path. Nobody reads path 1.
        for n in 0..40 {
            generator.send(0, (n * 32..(n + 1) * 32).flat_map(|n| [frame(0, n, 60), frame(1, n, 60)]));
            received.extend(numbers(&receive(&mut world.io, 0, 32)));
        }
        assert_eq!(received, (0..40 * 32).collect::<Vec<_>>());
        let statistics = |path| world.io.receivers(path).next().unwrap().statistics().unwrap();
        let [reading, stalled] = [0, 1].map(statistics);
        assert_eq!((reading.receive_ring_full, reading.received_dropped), (0, 0));
        assert_eq!((stalled.receive_ring_full, stalled.received_dropped), (40 * 32 - 64, 0));
        assert_eq!((stalled.fill_ring_empty, reading.fill_ring_empty), (0, 0));
        // The frames that the ring took are there, in order, and the path continues.
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
        // A path that is added later.
        let receiver = ring(&world.port, &world.io.queues()[0], 1);
        world.io.add_receiver(receiver);
        let no_path = world.io.queues()[0].opener().receiver(MOST_PATHS).err().unwrap();
        assert_eq!(no_path.to_string(), "path 64 is not possible: paths are numbered from 0 to 63");
        assert_eq!(world.io.receive(usize::MAX, 1, &mut Vec::new()), 0);
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
        assert_eq!(world.io.receivers(0).next().unwrap().statistics().unwrap().received_dropped, 1);
        drop(packets);
        world.end();
    });
}

#[test]
#[ignore = "needs root"]
fn devices_with_equal_indexes_in_two_namespaces_are_not_confused() {
    let umem = Umem::new(4096, 2048).unwrap();
    let here = |umem: Arc<Umem>, tag: u32, meet: Arc<std::sync::Barrier>, indexes: mpsc::Sender<u32>| {
        move || {
            make_port(0, 1);
            indexes.send(ifindex("p0")).unwrap();
            let port = XdpPort::attach("p0");
            let (opened, sender) = open(&umem, &port, wanted("p0", 0, SMALL), &[0]);
            meet.wait();
            // After each thread has its first socket, the second socket of each finds its own device.
            let second = ring(&port, &opened.queue, 1);
            let mut io = Io::new(&umem, 64).unwrap();
            opened.add_to(&mut io);
            io.add_receiver(second);
            io.add_output(sender, 0).unwrap();
            let wire = Wire::open("q0");
            for path in [0, 1] {
                (0..40).for_each(|n| wire.send(&frame(path, tag + n, 60)));
                let mut packets = receive(&mut io, path.into(), 40);
                assert_eq!(
                    numbers(&packets),
                    (tag..tag + 40).collect::<Vec<_>>(),
                    "the frames of path {path} in this namespace"
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
    assert_eq!(are[0], are[1], "the devices have different indexes, and the test shows nothing");
    whole(&umem);
}
