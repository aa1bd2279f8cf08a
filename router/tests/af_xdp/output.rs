//! Sending: packets that find a ring full, packets that are not sent, and several workers.

use super::*;
use router::user_plane::af_xdp::Fault;

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

/// Packets that are sent while the port is down fill the TX ring and the auxiliary queue; later ones are
/// lost. Those that wait leave first.
#[test]
#[ignore = "needs root"]
fn packets_that_find_the_ring_full_wait_in_order() {
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
        // A newer packet goes last.
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

/// If nobody took back the frames that were sent, they would fill the completion ring, and the kernel would
/// send no more.
#[test]
#[ignore = "needs root"]
fn no_packet_is_lost_while_completions_wait() {
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
        // Nobody received or flushed: the sender itself takes frames back when they fill half of the
        // completion ring.
        let out = &world.io.outputs()[OUT];
        assert_eq!((out.waiting(), out.counts().sent_packets), (0, 300));
        assert!(out.sender().in_flight() <= 64, "{} frames in flight", out.sender().in_flight());
        let out: Vec<u32> = out_of(&to, 300).iter().map(|frame| number(frame)).collect();
        assert_eq!(out, (0..300).collect::<Vec<_>>());
        world.end();
    });
}

/// Sends one packet of a path, with a number, by the first output, and waits until it has left.
fn send_one(io: &mut Io, path: u8, n: u32) {
    let mut packet = io.pool().allocate().expect("no frame came back through the depot");
    assert!(packet.fill(&frame(path, n, 60)));
    io.send(0, &mut vec![packet]).unwrap();
    until("room", || {
        io.flush();
        !io.has_waiting()
    });
}

#[test]
#[ignore = "needs root"]
fn a_worker_sends_on_when_the_owner_of_its_queue_is_gone() {
    in_new_namespace(|| {
        make_port(0, 1);
        let umem = Umem::new(1024, 2048).unwrap();
        let to = Wire::open("q0");
        let parts = Queue::open(&umem, wanted("p0", 0, SMALL)).unwrap();
        let mut io = Io::new(&umem, 64).unwrap();
        io.add_output(parts.0.another_sender().unwrap(), 10).unwrap();
        drop(parts);
        // More frames than the memory has.
        (0..3000).for_each(|n| send_one(&mut io, 0, n));
        let out: Vec<u32> = out_of(&to, 3000).iter().map(|frame| number(frame)).collect();
        assert_eq!(out, (0..3000).collect::<Vec<_>>());
        drop(io);
        whole(&umem);
        assert_eq!(umem.promised_frames(), 0);
    });
}

/// Two workers send by one queue. The second has a TX ring of its own, and the first takes back the frames of
/// both.
#[test]
#[ignore = "needs root"]
fn two_workers_send_by_one_queue() {
    in_new_namespace(|| {
        make_port(0, 1);
        let umem = Umem::new(4096, 2048).unwrap();
        let to = Wire::open("q0");
        let (queue, sender) = Queue::open(&umem, wanted("p0", 0, SMALL)).unwrap();
        let guest = queue.another_sender().unwrap();
        let mut io = Io::new(&umem, 64).unwrap();
        io.add_queue(queue);
        io.add_output(sender, 10).unwrap();
        thread::scope(|scope| {
            let umem = umem.clone();
            let other = scope.spawn(move || {
                let mut io = Io::new(&umem, 64).unwrap();
                io.add_output(guest, 10).unwrap();
                // Far more frames than the memory has.
                (0..6000).for_each(|n| send_one(&mut io, 1, n));
            });
            (0..3000).for_each(|n| send_one(&mut io, 0, n));
            while !other.is_finished() {
                io.flush();
                thread::yield_now();
            }
        });
        let out = out_of(&to, 9000);
        for (path, count) in [(0, 3000), (1, 6000)] {
            let numbers = out.iter().filter(|f| f[14] == path).map(|f| number(f)).collect::<Vec<_>>();
            assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "packets of path {path}, in order");
        }
        assert_eq!(io.queues()[0].counts().refused, 0);
        drop(io);
        whole(&umem);
    });
}
