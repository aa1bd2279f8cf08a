//! Queues that are opened and closed, workers that end, ports that vanish.

use super::*;
use router::user_plane::af_xdp::{Fault, OpenError, Wanted};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

#[test]
#[ignore = "needs root"]
fn a_dropped_worker_returns_all_its_frames() {
    in_new_namespace(|| {
        let World { umem, io, port } = World::new(&[0, 1], SMALL, 100);
        let mut io = io;
        let mut generator = Generator::new("q0", 1);
        run("ip link set p1 down");
        // Frames are in hand, in RX rings, in a TX ring and in the auxiliary queue.
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
        assert_eq!(
            numbers(&in_hand),
            (0..20).collect::<Vec<_>>(),
            "numbers of buffers that outlive their worker"
        );
        drop(in_hand);
        whole(&umem);
        // We can open the queue again at once.
        let (queue, _sender) = open(&umem, &port, wanted("p0", 0, SMALL), &[0]);
        let mut io = Io::new(&umem, 64).unwrap();
        queue.add_to(&mut io);
        generator.send(0, [frame(0, 77, 60)]);
        assert_eq!(numbers(&receive(&mut io, 0, 1)), [77]);
        generator.end();
        drop((io, _sender));
        whole(&umem);
    });
}

#[test]
#[ignore = "needs root"]
fn another_thread_continues_after_a_panic() {
    in_new_namespace(|| {
        make_port(0, 1);
        let (umem, port) = (Umem::new(2048, 2048).unwrap(), XdpPort::attach("p0"));
        let (queue, sender) = open(&umem, &port, wanted("p0", 0, SMALL), &[0]);
        // The first worker fills the fill ring; it ends before it can do more.
        let mut io = Io::new(&umem, 256).unwrap();
        queue.add_to(&mut io);
        io.add_output(sender, 10).unwrap();
        let parts = dismantle(io);
        let mut generator = Generator::new("q0", 1);
        generator.send(0, (0..30).map(|n| frame(0, n, 60)));
        let work =
            |umem: Arc<Umem>, (senders, receivers, queues): (Vec<_>, Vec<_>, Vec<Queue>), panics: bool| {
                thread::spawn(move || {
                    let mut io = Io::new(&umem, 256).unwrap();
                    for queue in queues {
                        io.add_queue(queue);
                    }
                    for receiver in receivers {
                        io.add_receiver(receiver);
                    }
                    for sender in senders {
                        io.add_output(sender, 10).unwrap();
                    }
                    let result = catch_unwind(AssertUnwindSafe(|| {
                        let packets = receive(&mut io, 0, 10);
                        assert!(!panics, "panics as the test asks, with {} packets", packets.len());
                        numbers(&packets)
                    }));
                    (dismantle(io), result.ok())
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
            "only the packets that the other thread held are lost"
        );
        generator.send(0, (30..40).map(|n| frame(0, n, 60)));
        let (parts, result) = work(umem.clone(), parts, false);
        assert_eq!(result, Some((20..30).collect::<Vec<_>>()));
        generator.end();
        drop(parts);
        whole(&umem);
    });
}

#[test]
#[ignore = "needs root"]
fn a_deleted_port_is_reported() {
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
                io.sleep(Some(Duration::from_millis(20))).unwrap();
                io.receive(0, 32, &mut packets);
                let count = packets.len();
                (count, io.send(OUT, &mut packets))
            };
            until("the carrier to be reported", || io.faults().chain(io.output_faults()).next().is_none());
            until("traffic", || matches!(forward(&mut io), (10.., Ok(()))));
            run("ip link del p1");
            until("an error of the output", || forward(&mut io).1 == Err(Fault::Gone));
            assert_eq!(io.faults().collect::<Vec<_>>(), [(1, Fault::Gone)]);
            until("packets that are dropped", || {
                let _ = forward(&mut io);
                io.outputs()[OUT].counts().dropped_gone > 0
            });
            // Its TX ring may still hold packets that nobody will take.
            assert!(!io.has_waiting(), "packets still wait at a port that is gone");
            assert_eq!(io.output_faults().collect::<Vec<_>>(), [(OUT, Fault::Gone)]);
            drop(stop);
        });
        run("ip link set p0 down");
        assert_eq!(io.faults().collect::<Vec<_>>(), [(0, Fault::Down), (1, Fault::Gone)]);
        run("ip link del p0");
        assert_eq!(io.faults().collect::<Vec<_>>(), [(0, Fault::Gone), (1, Fault::Gone)]);
        let begun = Instant::now();
        assert_eq!(io.sleep(Some(Duration::from_millis(50))).ok(), Some(false));
        drop(io);
        assert!(begun.elapsed() < Duration::from_secs(1), "the end took {:?}", begun.elapsed());
        whole(&umem);
        // The memory can be used again after all sockets that registered it are gone.
        make_port(0, 1);
        let port = XdpPort::attach("p0");
        let (queue, _sender) = open(&umem, &port, wanted("p0", 0, SMALL), &[0]);
        let mut io = Io::new(&umem, 64).unwrap();
        queue.add_to(&mut io);
        let wire = Wire::open("q0");
        wire.send(&frame(0, 3, 60));
        assert_eq!(numbers(&receive(&mut io, 0, 1)), [3]);
    });
}

#[test]
#[ignore = "needs root"]
fn a_missing_carrier_is_reported() {
    in_new_namespace(|| {
        let mut world = World::new(&[0], SMALL, 100);
        let faults = |io: &Io| (io.faults().collect::<Vec<_>>(), io.output_faults().collect::<Vec<_>>());
        until("the carrier to be reported", || faults(&world.io) == (vec![], vec![]));
        run("ip link set q1 down");
        let lost = (vec![(1, Fault::NoCarrier)], vec![(OUT, Fault::NoCarrier)]);
        until("the missing carrier to be reported", || faults(&world.io) == lost);
        run("ip link set q1 up");
        until("the carrier to be reported", || faults(&world.io) == (vec![], vec![]));
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        from.send(&frame(0, 4, 60));
        let mut packets = receive(&mut world.io, 0, 1);
        world.io.send(OUT, &mut packets).unwrap();
        assert_eq!(out_of(&to, 1), [frame(0, 4, 60)]);
        world.end();
    });
}

/// The device has more RX queues than TX queues. The kernel takes nothing from a TX ring on a queue without a
/// TX queue, and reports no error.
#[test]
#[ignore = "needs root"]
fn a_queue_that_cannot_send_is_reported() {
    in_new_namespace(|| {
        run("ip link add p0 numrxqueues 2 numtxqueues 1 type veth peer name q0 numrxqueues 1 numtxqueues 2");
        for device in ["p0", "q0"] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1").unwrap();
            run(&format!("ip link set {device} up"));
        }
        let (umem, port) = (Umem::new(4096, 2048).unwrap(), XdpPort::attach("p0"));
        let mut io = Io::new(&umem, 64).unwrap();
        for n in 0..2 {
            let (queue, sender) = open(&umem, &port, wanted("p0", n, SMALL), &[0]);
            queue.add_to(&mut io);
            io.add_output(sender, 10).unwrap();
        }
        until("the carrier to be reported", || io.faults().next().is_none());
        assert_eq!(io.output_faults().collect::<Vec<_>>(), [(1, Fault::NoTransmitQueue)]);
        let to = Wire::open("q0");
        let mut send = |output, n| {
            let mut packet = io.pool().allocate().unwrap();
            assert!(packet.fill(&frame(0, n, 60)));
            let result = io.send(output, &mut vec![packet]);
            (result, io.has_waiting())
        };
        assert_eq!(send(1, 1), (Err(Fault::NoTransmitQueue), false));
        assert_eq!(send(0, 2), (Ok(()), false));
        assert_eq!(out_of(&to, 1), [frame(0, 2, 60)]);
        assert_eq!(io.outputs()[1].counts(), OutputCounts { dropped_no_queue: 1, ..OutputCounts::default() });
        drop(io);
        whole(&umem);
    });
}

/// The device whose socket registered the memory is deleted. Other sockets continue, and new ones can be
/// opened.
#[test]
#[ignore = "needs root"]
fn the_memory_outlives_the_port_that_registered_it() {
    in_new_namespace(|| {
        let mut world = World::new(&[0], SMALL, 0);
        run("ip link del p0");
        make_port(2, 1);
        let port = XdpPort::attach("p2");
        // This uses the socket of p1, as that of p0 cannot be shared any more.
        let (queue, _sender) = open(&world.umem, &port, wanted("p2", 0, SMALL), &[0]);
        queue.add_to(&mut world.io);
        let (from, to) = (Wire::open("q2"), Wire::open("q1"));
        from.send(&frame(0, 4, 60));
        let mut packets = receive(&mut world.io, 0, 1);
        world.io.send(OUT, &mut packets).unwrap();
        assert_eq!(out_of(&to, 1), [frame(0, 4, 60)]);
        drop(_sender);
        world.end();
    });
}

/// The open waits for the queue, and then fails. A busy queue is no reason to copy.
#[test]
#[ignore = "needs root"]
fn a_busy_queue_is_not_opened_in_copy_mode() {
    in_new_namespace(|| {
        make_port(0, 1);
        let [theirs, ours] = [(); 2].map(|()| Umem::new(1024, 2048).unwrap());
        let wanted = wanted("p0", 0, SMALL);
        let open_while_held = |ms| {
            let held = Queue::open(&theirs, wanted).unwrap();
            thread::scope(|scope| {
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(ms));
                    drop(held);
                });
                Queue::open(&ours, wanted)
            })
        };
        let error_of = |error: &std::io::Error| error.raw_os_error().unwrap();
        let (queue, _sender) = open_while_held(250).unwrap();
        assert_eq!(queue.copies_because().map(error_of), Some(libc::EOPNOTSUPP), "a veth copies");
        drop((queue, _sender));
        match open_while_held(750).map(drop) {
            Err(OpenError::Kernel { source, .. }) => assert_eq!(error_of(&source), libc::EBUSY),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
#[ignore = "needs root"]
fn a_failed_open_says_why() {
    in_new_namespace(|| {
        make_port(0, 1);
        let few = Umem::new(300, 2048).unwrap();
        let error = |result: Result<_, OpenError>| result.err().unwrap().to_string();
        let wanted = wanted("p0", 0, SMALL);
        let (queue, _sender) = Queue::open(&few, wanted).unwrap();
        assert_eq!(
            error(queue.opener().receiver(0).map(drop)),
            "a path's RX ring needs 64 frames; of 300, 256 are promised to others and 0 retired"
        );
        assert_eq!(
            error(Io::new(&few, 10).map(drop)),
            "a worker's pool needs 266 frames; of 300, 256 are promised to others and 0 retired"
        );
        let umem = Umem::new(4096, 2048).unwrap();
        let open = |wanted| error(Queue::open(&umem, wanted).map(drop));
        assert_eq!(
            open(wanted),
            format!("queue 0 of device {}: binding", wanted.ifindex),
            "another socket has the queue"
        );
        assert!(open(Wanted { queue: 1, ..wanted }).starts_with("queue 1"), "a queue that the device lacks");
        assert!(open(Wanted { ifindex: 999, ..wanted }).starts_with("queue 0 of device 999"));
        let rings = Rings { receive: 100, ..SMALL };
        assert!(open(Wanted { rings, ..wanted }).starts_with("a ring of 100 entries"));
        drop((queue, _sender));
        whole(&few);
        whole(&umem);
        assert!(umem.promised_frames() == 0);
    });
}
