//! Tests of queue, sender and output in plain memory, with a simulated kernel on the other side of the rings.

use super::{
    fill::Fill,
    polls::Polls,
    ring::{Consumer, Producer},
    ring_memory::{RingMemory, tests::two_sides},
    sender::Slot,
    socket::Socket,
    *,
};
use proptest::prelude::*;
use std::{
    collections::VecDeque,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixDatagram,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

const RINGS: Rings = Rings { fill: 64, completion: 64, receive: 64, transmit: 64 };
const FRAME_BYTES: u64 = 2048;
/// Just before indexes wrap.
const LATE: u32 = u32::MAX - 100;

/// The other side of a queue's rings.
struct Device {
    fill: Consumer<1>,
    completion: Producer<1>,
    receive: Producer<2>,
    transmit: Consumer<2>,
}

/// A queue, the RX ring of path 0, a TX ring, and the other side of them.
fn fake(umem: &Arc<Umem>, zero_copy: bool) -> (Queue, Receiver, Sender, Device) {
    let pair = |words: u32| two_sides(words as usize, LATE);
    let ([fill, their_fill], [completion, their_completion]) = (pair(RINGS.fill), pair(RINGS.completion));
    let ([receive, their_receive], [transmit, their_transmit]) =
        (pair(2 * RINGS.receive), pair(2 * RINGS.transmit));
    let promise = umem.promise("a queue", RINGS.fill + RINGS.completion + RINGS.transmit).unwrap();
    let state = Fill::new(fill, RINGS);
    let completion = (Consumer::new(completion), RINGS.completion);
    let slot = Arc::new(Slot::fake(umem, Socket::fake(), zero_copy, state, completion, promise));
    let wanted = Wanted { rings: RINGS, ..Wanted::new(1, 0) };
    let queue = Queue::new(slot.clone(), wanted, None);
    let receiver = another_receiver(&queue, 0, receive, Socket::fake());
    let sender = Sender::new(slot, None, Producer::new(transmit), None);
    let device = Device {
        fill: Consumer::new(their_fill),
        completion: Producer::new(their_completion),
        receive: Producer::new(their_receive),
        transmit: Consumer::new(their_transmit),
    };
    (queue, receiver, sender, device)
}

/// An RX ring in this memory.
fn another_receiver(queue: &Queue, path: usize, ring: RingMemory, socket: Socket) -> Receiver {
    let promise = queue.slot().umem().promise("a path's RX ring", RINGS.receive).unwrap();
    Receiver::new(&queue.opener(), path, Consumer::new(ring), socket, promise)
}

/// A worker with such a queue, path 0 and an output with an auxiliary queue of this length, in a memory of its own.
fn worker(zero_copy: bool, auxiliary: usize) -> (Arc<Umem>, Io, Device) {
    let umem = Umem::new(1200, FRAME_BYTES as u32).unwrap();
    let (queue, receiver, sender, device) = fake(&umem, zero_copy);
    let mut io = Io::new(&umem, 64).unwrap();
    io.add_receiver(receiver);
    io.add_queue(queue);
    io.add_output(sender, auxiliary).unwrap();
    (umem, io, device)
}

/// Another TX ring on its queue, and the device's side of it.
fn another_sender(queue: &Queue) -> (Sender, Consumer<2>) {
    let [ours, theirs] = two_sides(2 * RINGS.transmit as usize, LATE);
    let slot = queue.slot().clone();
    let promise = slot.umem().promise("a TX ring", RINGS.transmit).unwrap();
    let sender = Sender::new(slot, Some(Socket::fake()), Producer::new(ours), Some(promise));
    (sender, Consumer::new(theirs))
}

/// Takes all rings as they are, so that another thread can go on with them.
fn dismantle(mut io: Io) -> (Vec<Sender>, Vec<Receiver>, Vec<Queue>) {
    let senders = (0..io.outputs().len()).map(|_| io.take_output(0).sender).collect();
    let receivers = (0..MOST_PATHS).flat_map(|path| io.take_path(path)).collect();
    let queues = (0..io.queues().len()).map(|_| io.take_queue(0)).collect();
    (senders, receivers, queues)
}

fn send_ten(io: &mut Io) {
    let mut packets: Vec<_> = (0..10).map(|_| io.pool().allocate().unwrap()).collect();
    for packet in &mut packets {
        assert!(packet.fill(&[0; 60]));
    }
    io.send(0, &mut packets).unwrap();
}

fn whole(umem: &Umem, retired: u32) {
    assert_eq!((umem.free_frames(), umem.retired_frames()), (umem.frames() - retired, retired));
    assert_eq!(umem.promised_frames(), 0);
}

/// The length of a packet, which shows its number.
fn length(number: u64) -> u64 {
    14 + number % 1500
}

/// The second word of a descriptor.
fn word(length: u64) -> u64 {
    let [a, b, c, d] = (length as u32).to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
}

impl Device {
    /// Delivers packets from `next` on, as many as there are frames and places for; returns the next.
    fn deliver(&mut self, frames: &mut VecDeque<u64>, mut next: u64, end: u64) -> u64 {
        while let Some([address]) = self.fill.pop() {
            frames.push_back(address);
        }
        self.fill.release();
        while next < end && self.receive.room(1) > 0 {
            let Some(address) = frames.pop_front() else { break };
            assert!(self.receive.push([address + 256, word(length(next))]));
            next += 1;
        }
        self.receive.publish();
        next
    }

    /// Sends the packets in the ring, which are those from `next` on, in order; returns the next.
    fn send(&mut self, mut next: u64) -> u64 {
        while self.completion.room(1) > 0
            && let Some([address, rest]) = self.transmit.pop()
        {
            assert_eq!(rest, word(length(next)), "in order");
            assert!(self.completion.push([address]));
            next += 1;
        }
        self.transmit.release();
        self.completion.publish();
        next
    }
}

#[test]
fn packets_go_round_in_order_and_no_frame_is_lost() {
    const COUNT: u64 = 300_000;
    let (umem, mut io, mut device) = worker(false, 64);
    let kernel = thread::spawn(move || {
        let (mut frames, mut delivered, mut sent) = (VecDeque::new(), 0, 0);
        while sent < COUNT {
            let before = (delivered, sent);
            delivered = device.deliver(&mut frames, delivered, COUNT);
            sent = device.send(sent);
            if before == (delivered, sent) {
                thread::yield_now();
            }
        }
    });
    let (mut packets, mut received) = (Vec::new(), 0);
    while !kernel.is_finished() {
        // No packet is dropped, but some are sent while others wait.
        if io.outputs()[0].waiting() <= 32 && io.receive(0, 32, &mut packets) > 0 {
            for packet in &packets {
                assert_eq!((packet.len() as u64, packet.head_room()), (length(received), 256));
                received += 1;
            }
            io.send(0, &mut packets).unwrap();
        } else {
            io.flush();
            thread::yield_now();
        }
    }
    kernel.join().unwrap();
    let counts = [io.queues()[0].counts(), io.receivers(0).next().unwrap().counts()];
    let all = QueueCounts { received_packets: COUNT, ..QueueCounts::default() };
    assert_eq!(counts, [QueueCounts::default(), all]);
    let out = io.outputs()[0].counts();
    assert_eq!((out.sent_packets, out.dropped_full), (COUNT, 0));
    drop(io);
    whole(&umem, 0);
}

#[test]
fn frames_that_the_kernel_did_not_have_are_refused() {
    let (umem, mut io, mut device) = worker(false, 0);
    let given: Vec<u64> = std::iter::from_fn(|| device.fill.pop()).map(|[a]| a).collect();
    assert_eq!(given.len(), 64);
    let mine = io.pool().allocate().unwrap();
    let first = given[0];
    let part = u64::from_ne_bytes([60, 0, 0, 0, 1, 0, 0, 0]);
    let not_given = 1199 * FRAME_BYTES;
    assert!(!given.contains(&not_given));
    for entry in [
        [first, 60],
        [first, 60],
        [not_given, 60],
        [1200 * FRAME_BYTES, 60],
        [given[1], 2049],
        // A packet in three frames, and one after it.
        [given[2], part],
        [given[3], part],
        [given[4], 60],
        [given[5], 60],
    ] {
        assert!(device.receive.push(entry));
    }
    device.receive.publish();
    for address in [first, not_given, u64::MAX] {
        assert!(device.completion.push([address]));
    }
    device.completion.publish();
    let mut packets = Vec::new();
    assert_eq!(io.receive(0, 32, &mut packets), 2, "the first, and the last");
    // Completions are read only after something was sent.
    let mut sent = vec![mine];
    assert!(sent[0].fill(&[0; 60]));
    io.send(0, &mut sent).unwrap();
    io.flush();
    let [completed, received] = [io.queues()[0].counts(), io.receivers(0).next().unwrap().counts()];
    assert_eq!((completed.refused, received.refused, received.multi_buffer), (3, 4, 1));
    packets.clear();
    drop(io);
    // The packet that was sent never came back.
    drop(device);
    whole(&umem, 0);
}

#[test]
fn frames_of_a_nic_are_not_used_again() {
    let (umem, mut io, mut device) = worker(true, 0);
    let mut frames = VecDeque::new();
    device.deliver(&mut frames, 0, 10);
    let mut packets = Vec::new();
    assert_eq!(io.receive(0, 4, &mut packets), 4);
    io.send(0, &mut packets).unwrap();
    // All frames that it had to receive into, and those to be sent.
    let its = io.queues()[0].given_frames() + 4;
    assert!(its > 64);
    drop(io);
    whole(&umem, its);
}

/// In zero-copy mode the rings do not show whether the kernel waits for a call, so each batch needs one; in copy mode they do.
#[test]
fn each_batch_in_zero_copy_mode_makes_a_call() {
    for zero_copy in [true, false] {
        let umem = Umem::new(1200, FRAME_BYTES as u32).unwrap();
        let (queue, receiver, sender, device) = fake(&umem, zero_copy);
        let (socket, other) = Socket::watched();
        let [ours, _theirs] = two_sides(2 * RINGS.transmit as usize, LATE);
        drop(sender);
        let mut io = Io::new(&umem, 64).unwrap();
        io.add_output(Sender::new(queue.slot().clone(), Some(socket), Producer::new(ours), None), 0).unwrap();
        for _ in 0..2 {
            send_ten(&mut io);
            let told = std::iter::from_fn(|| other.recv(&mut [0]).ok()).count();
            assert_eq!(told > 0, zero_copy);
        }
        drop((io, queue, receiver, device));
    }
}

/// A worker's RX rings on one queue with this polling, each for a path of its own, and the other ends of their sockets.
fn rings_on_a_queue(
    polling: Polling,
    paths: usize,
) -> (Arc<Slot>, Vec<Receiver>, Vec<Producer<2>>, Vec<UnixDatagram>) {
    let umem = Umem::new(1200, FRAME_BYTES as u32).unwrap();
    let wanted = Wanted { rings: RINGS, polling, ..Wanted::new(1, 0) };
    let ring = |words: u32| two_sides(words as usize, LATE).into_iter().next().unwrap();
    let (fill, completion) = (ring(RINGS.fill), Consumer::new(ring(RINGS.completion)));
    let (state, promise) = (Fill::new(fill, RINGS), umem.promise("a queue", 128).unwrap());
    let slot = Slot::fake(&umem, Socket::fake(), false, state, (completion, RINGS.completion), promise);
    let slot = Arc::new(slot);
    let queue = Queue::new(slot.clone(), wanted, None);
    let (mut receivers, mut theirs, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for path in 0..paths {
        let (socket, other) = Socket::watched();
        slot.polls.set(&socket, polling);
        let [ours, their] = two_sides(2 * RINGS.receive as usize, LATE);
        receivers.push(another_receiver(&queue, path, ours, socket));
        theirs.push(Producer::new(their));
        others.push(other);
    }
    (slot, receivers, theirs, others)
}

/// One ring polls for each NAPI instance, among the rings by which the kernel can poll.
#[test]
fn each_device_is_polled_once() {
    let polled = Polling::Busy { microseconds: 20, budget: 64 };
    let (_, mut receivers, _theirs, others) = rings_on_a_queue(polled, 5);
    let known = [Polls::By(7), Polls::By(7), Polls::By(8), Polls::Unknown { had_packets: true }, Polls::Not];
    receivers.iter_mut().zip(known).for_each(|(receiver, polls)| receiver.polls = polls);
    let sockets: Vec<_> = receivers.iter().map(|of| of.as_fd().try_clone_to_owned().unwrap()).collect();
    let mut io = Io::new(receivers[0].slot().umem(), 64).unwrap();
    receivers.into_iter().for_each(|receiver| io.add_receiver(receiver));
    // A socket that is asked takes a message.
    let asked = |io: &mut Io| {
        others.iter().for_each(|other| _ = other.send(&[0]).unwrap());
        let polls = io.poll();
        let took = |socket: &OwnedFd| {
            let socket = UnixDatagram::from(socket.try_clone().unwrap());
            socket.set_nonblocking(true).unwrap();
            let left = std::iter::from_fn(|| socket.recv(&mut [0]).ok()).count();
            1 - left
        };
        (polls, sockets.iter().map(took).collect::<Vec<_>>())
    };
    assert_eq!(asked(&mut io), (true, vec![1, 0, 1, 0, 0]));
    // Another worker has the path now.
    let taken = io.take_path(0);
    assert_eq!(asked(&mut io), (true, vec![0, 1, 1, 0, 0]));
    drop((taken, io.take_path(1), io.take_path(2)));
    assert_eq!(asked(&mut io), (false, vec![0; 5]));
}

/// These sockets have no NAPI instance, and never get one.
#[test]
fn the_kernel_is_asked_for_the_napi_instance_again_after_packets_came() {
    let (slot, receivers, ..) = rings_on_a_queue(Polling::Interrupts, 1);
    assert_eq!((receivers[0].polls, slot.polls.stand()), (Polls::Not, None));
    let polled = Polling::Busy { microseconds: 20, budget: 64 };
    let (slot, mut receivers, mut theirs, _others) = rings_on_a_queue(polled, 1);
    let umem = receivers[0].slot().umem().clone();
    let mut io = Io::new(&umem, 64).unwrap();
    io.add_receiver(receivers.remove(0));
    assert!(!io.poll());
    assert_eq!(slot.polls.stand(), Some(Err(NotPolled::NotYet)));
    let mut frames = Vec::new();
    umem.take(1, &mut frames);
    umem.give_to_receive(frames[0], slot.id());
    assert!(theirs[0].push([u64::from(frames[0]) * FRAME_BYTES + 256, word(60)]));
    theirs[0].publish();
    assert_eq!(io.receive(0, 4, &mut Vec::new()), 1);
    assert!(!io.poll());
    assert_eq!(slot.polls.stand(), Some(Err(NotPolled::UnknownNapi)));
}

/// Packets wait while the ring is full, and newer ones never overtake them.
#[test]
fn the_auxiliary_queue_keeps_order_and_is_bounded() {
    let (umem, mut io, mut device) = worker(false, 40);
    let send = |io: &mut Io, numbers: std::ops::Range<u64>| {
        let mut packets = Vec::new();
        for number in numbers {
            let mut packet = io.pool().allocate().unwrap();
            assert!(packet.fill(&vec![0; length(number) as usize]));
            packets.push(packet);
        }
        io.send(0, &mut packets).unwrap();
    };
    (0..10).for_each(|n| send(&mut io, n * 10..(n + 1) * 10));
    assert_eq!(io.outputs()[0].waiting(), 36);
    send(&mut io, 100..107);
    let counts = io.outputs()[0].counts();
    assert_eq!((counts.sent_packets, counts.delayed_packets, counts.dropped_full), (64, 40, 3));
    // The device takes some; new packets go behind those that wait.
    assert_eq!(device.send(0), 64);
    send(&mut io, 104..106);
    // More than half of the completion ring was full, so the sender took back sent frames.
    assert_eq!((io.outputs()[0].waiting(), device.send(64)), (0, 106));
    assert_eq!(io.outputs()[0].counts().sent_packets, 106);
    io.flush();
    assert_eq!(io.outputs()[0].sender().in_flight(), 0);
    drop(io);
    whole(&umem, 0);
}

#[test]
fn queues_give_equal_parts_and_use_what_others_leave() {
    let umem = Umem::new(4000, FRAME_BYTES as u32).unwrap();
    let mut io = Io::new(&umem, 300).unwrap();
    let mut devices = Vec::new();
    for _ in 0..3 {
        let (queue, receiver, _, device) = fake(&umem, false);
        io.add_receiver(receiver);
        io.add_queue(queue);
        devices.push((device, VecDeque::new()));
    }
    let deliver = |devices: &mut [(Device, VecDeque<u64>)], counts: [u64; 3]| {
        for ((device, frames), count) in devices.iter_mut().zip(counts) {
            assert_eq!(device.deliver(frames, 0, count), count);
        }
    };
    let counted = |io: &Io| [0, 1, 2].map(|n| io.receivers(0).nth(n).unwrap().counts().received_packets);
    deliver(&mut devices, [50, 50, 0]);
    let mut took = [50, 50, 0];
    for most in [30, 30, 30, 30] {
        let before = counted(&io);
        let got = io.receive(0, most, &mut Vec::new());
        let now = counted(&io);
        let part = [0, 1, 2].map(|n| now[n] - before[n]);
        assert_eq!(part.iter().sum::<u64>(), got as u64);
        assert!(part[0] >= 10.min(took[0]) && part[1] >= 10.min(took[1]), "{part:?}");
        assert_eq!(got, (took.iter().sum::<u64>() as usize).min(30), "as many as there are");
        (0..3).for_each(|n| took[n] -= part[n]);
    }
    assert_eq!(took, [0, 0, 0]);
    // Two queues always have packets, and one between them never has: both give the same, although 1 and 7 cannot be divided.
    for most in [1, 7] {
        let before = counted(&io);
        for _ in 0..30 {
            for n in [0, 2] {
                let (device, frames) = &mut devices[n];
                device.deliver(frames, 0, 7);
            }
            assert_eq!(io.receive(0, most, &mut Vec::new()), most);
        }
        let now = counted(&io);
        assert_eq!([0, 1, 2].map(|n| now[n] - before[n]), [15 * most as u64, 0, 15 * most as u64]);
        while io.receive(0, 100, &mut Vec::new()) > 0 {}
    }
    // No more packets in hand than were promised.
    deliver(&mut devices, [60, 60, 60]);
    deliver(&mut devices, [4, 4, 4]);
    let mut packets = Vec::new();
    let keep: Vec<_> = (0..200).map(|_| io.pool().allocate().unwrap()).collect();
    assert_eq!(io.receive(0, 1000, &mut packets), 100);
    drop((keep, packets, io));
    whole(&umem, 0);
}

proptest! {
    /// Whatever the rings contain: no panic, no frame twice, none missing.
    #[test]
    fn any_entries_leave_the_pool_whole(
        entries in prop::collection::vec((0_u64..1300, 0_u64..2048, 0_u32..2500, 0_u32..3), 0..200),
        raw in prop::collection::vec(any::<[u64; 2]>(), 0..20),
    ) {
        let umem = Umem::new(1200, FRAME_BYTES as u32).unwrap();
        let (queue, receiver, sender, mut device) = fake(&umem, false);
        let mut io = Io::new(&umem, 128).unwrap();
        io.add_receiver(receiver);
        io.add_queue(queue);
        io.add_output(sender, 8).unwrap();
        let entries = entries.into_iter().map(|(frame, start, length, options)| {
            let [a, b, c, d] = length.to_ne_bytes();
            let [e, f, g, h] = options.to_ne_bytes();
            // Mostly frames that the kernel has, which are the first ones.
            let frame = if frame < 1000 { frame % 80 } else { frame };
            [frame * FRAME_BYTES + start, u64::from_ne_bytes([a, b, c, d, e, f, g, h])]
        });
        let mut packets = Vec::new();
        for (n, entry) in entries.chain(raw).enumerate() {
            let _ = device.receive.push(entry) | device.completion.push([entry[0]]);
            device.receive.publish();
            device.completion.publish();
            if n % 7 == 0 {
                io.receive(0, 16, &mut packets);
                for (n, packet) in (0_u32..).zip(&mut packets) {
                    if packet.len() >= 4 {
                        packet.data_mut()[..4].copy_from_slice(&n.to_ne_bytes());
                    }
                }
                let marked = (0_u32..).zip(&packets).filter(|(_, packet)| packet.len() >= 4);
                for (n, packet) in marked {
                    prop_assert_eq!(&packet.data()[..4], &n.to_ne_bytes());
                }
                packets.truncate(20);
                if n % 3 == 0 {
                    io.send(0, &mut packets).unwrap();
                }
            }
        }
        drop((packets, io, device));
        whole(&umem, 0);
    }
}

/// One thread does both sides of the rings: `cargo test --release -p millrace --lib -- --ignored --nocapture rings_alone`.
#[test]
#[ignore = "a measurement"]
fn measure_rings_alone() {
    const PACKETS: u64 = 20_000_000;
    let umem = Umem::new(4096, FRAME_BYTES as u32).unwrap();
    let (queue, receiver, sender, mut device) = fake(&umem, false);
    let mut io = Io::new(&umem, 128).unwrap();
    io.add_receiver(receiver);
    io.add_queue(queue);
    io.add_output(sender, 64).unwrap();
    let (mut frames, mut packets, mut delivered, mut sent) = (VecDeque::new(), Vec::new(), 0, 0);
    for batch in [1, 16, 64, 1, 16, 64] {
        let (begun, end) = (std::time::Instant::now(), delivered + PACKETS);
        let mut both = std::time::Duration::ZERO;
        while sent < end {
            // The device's part is timed by itself, in steps of 64 packets.
            let device_begun = std::time::Instant::now();
            delivered = device.deliver(&mut frames, delivered, (sent + 64).min(end));
            both += device_begun.elapsed();
            while io.receive(0, batch, &mut packets) > 0 {
                io.send(0, &mut packets).unwrap();
            }
            let device_begun = std::time::Instant::now();
            sent = device.send(sent);
            both += device_begun.elapsed();
        }
        let ours = (begun.elapsed() - both).as_nanos() as f64 / PACKETS as f64;
        println!(
            "batch {batch:2}: rings, buffers and pool: {ours:.1} ns per packet; the device {:.1}",
            both.as_nanos() as f64 / PACKETS as f64
        );
    }
}

/// How often this thread has gone to sleep. A thread that waits for packets of a closing queue sleeps many times.
fn sleeps() -> i64 {
    // SAFETY: all bytes zero are a valid value; the kernel writes into it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a pointer to a valid value of this type.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
    usage.ru_nvcsw
}

/// A kernel may update a TX ring late (Linux 6.1). Then completions come when the sender is gone.
#[test]
fn frames_of_a_sender_that_is_gone_are_not_used_before_their_completions_can_come() {
    let (umem, mut io, mut device) = worker(false, 0);
    send_ten(&mut io);
    // The kernel took these without updating the ring.
    let taken: Vec<u64> = (0..4).map(|_| device.transmit.pop().unwrap()[0]).collect();
    let (senders, receivers, queues) = dismantle(io);
    let free = umem.free_frames();
    drop(senders);
    assert_eq!(umem.free_frames(), free);
    taken.iter().for_each(|address| assert!(device.completion.push([*address])));
    device.completion.publish();
    let mut io = Io::new(&umem, 64).unwrap();
    queues.into_iter().for_each(|queue| _ = io.add_queue(queue));
    io.flush();
    assert_eq!((io.queues()[0].counts().refused, io.queues()[0].slot().in_flight()), (0, 6));
    let slept = sleeps();
    drop((io, receivers));
    assert!(sleeps() - slept < 10, "nothing more is waited for");
    whole(&umem, 0);
}

/// Another worker's frames come back, and frames that the kernel has to receive into stay promised.
#[test]
fn a_sender_outlives_its_queue() {
    let (umem, io, mut device) = worker(false, 0);
    let (guest, transmit) = another_sender(&io.queues()[0]);
    device.transmit = transmit;
    let mut other = Io::new(&umem, 64).unwrap();
    other.add_output(guest, 0).unwrap();
    let pool = 256 + 64;
    let before = umem.promised_frames();
    let slept = sleeps();
    drop(io);
    assert!(sleeps() - slept < 10, "nothing is waited for");
    assert_eq!(umem.promised_frames(), before - pool);
    // More packets than the completion ring has entries, and than there are frames.
    for _ in 0..200 {
        send_ten(&mut other);
        while let Some([address, _]) = device.transmit.pop() {
            assert!(device.completion.push([address]), "room for completions");
        }
        device.transmit.release();
        device.completion.publish();
    }
    assert_eq!(other.outputs()[0].counts().sent_packets, 2000);
    other.flush();
    assert_eq!(other.outputs()[0].sender().in_flight(), 0);
    drop(other);
    whole(&umem, 0);
}

/// Dropping a [`Slot`] waits only a moment for frames in flight.
#[test]
fn a_closed_queue_waits_a_moment_for_packets_on_their_way() {
    let (umem, mut io, mut device) = worker(false, 0);
    send_ten(&mut io);
    // The device took four, and completes three of them, one a little later.
    let taken: Vec<u64> = (0..4).map(|_| device.transmit.pop().unwrap()[0]).collect();
    device.transmit.release();
    assert!(device.completion.push([taken[0]]) && device.completion.push([taken[1]]));
    device.completion.publish();
    let late = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(std::time::Duration::from_millis(20));
            assert!(device.completion.push([taken[2]]));
            device.completion.publish();
            late.store(true, Relaxed);
        });
        drop(io);
        assert!(late.load(Relaxed));
    });
    whole(&umem, 1);
}

/// The owner of the queue does nothing, and another worker takes far more packets than the fill ring has entries.
#[test]
fn a_worker_fills_the_fill_ring_of_a_queue_that_it_does_not_own() {
    let umem = Umem::new(2400, FRAME_BYTES as u32).unwrap();
    let (queue, receiver, sender, mut device) = fake(&umem, false);
    let mut owner = Io::new(&umem, 64).unwrap();
    owner.add_queue(queue);
    let mut reader = Io::new(&umem, 64).unwrap();
    reader.add_receiver(receiver);
    let mut frames = VecDeque::new();
    for _ in 0..100 {
        assert_eq!(device.deliver(&mut frames, 0, 30), 30);
        assert_eq!(reader.receive(0, 64, &mut Vec::new()), 30);
    }
    assert!((100..=128).contains(&owner.queues()[0].given_frames()), "no more than allowed");
    assert_eq!(owner.queues()[0].counts(), QueueCounts::default());
    drop((reader, owner, sender, device));
    whole(&umem, 0);
}

/// The same for a worker that sends: its packets complete in the owner's ring.
#[test]
fn a_worker_takes_back_sent_frames_from_a_queue_that_it_does_not_own() {
    let (umem, io, mut device) = worker(false, 0);
    let (guest, transmit) = another_sender(&io.queues()[0]);
    device.transmit = transmit;
    let mut other = Io::new(&umem, 64).unwrap();
    other.add_output(guest, 0).unwrap();
    for _ in 0..200 {
        send_ten(&mut other);
        while let Some([address, _]) = device.transmit.pop() {
            assert!(device.completion.push([address]), "room for completions");
        }
        device.transmit.release();
        device.completion.publish();
    }
    assert_eq!(other.outputs()[0].counts().sent_packets, 2000);
    drop((other, io));
    whole(&umem, 0);
}

/// Packets that others send by the same queue meanwhile do not count, nor do packets that the kernel has not taken.
#[test]
fn packets_have_left_when_as_many_are_completed_as_were_sent_until_then() {
    let (umem, mut io, mut device) = worker(false, 16);
    let (guest, mut others) = another_sender(&io.queues()[0]);
    let mut other = Io::new(&umem, 64).unwrap();
    other.add_output(guest, 0).unwrap();
    let take = |ring: &mut Consumer<2>, count: usize| -> Vec<u64> {
        let taken = (0..count).map(|_| ring.pop().unwrap()[0]).collect();
        ring.release();
        taken
    };
    let complete = |completion: &mut Producer<1>, frames: &[u64]| {
        frames.iter().for_each(|frame| assert!(completion.push([*frame])));
        completion.publish();
    };
    send_ten(&mut io);
    let mut mark = io.outputs()[0].mark();
    assert!(!io.has_left(0, &mut mark), "not taken");
    // Twenty packets of another worker leave and are completed.
    for _ in 0..2 {
        send_ten(&mut other);
        let theirs = take(&mut others, 10);
        complete(&mut device.completion, &theirs);
        assert!(!io.has_left(0, &mut mark), "only packets of the other worker have left");
    }
    let ours = take(&mut device.transmit, 10);
    assert!(!io.has_left(0, &mut mark), "on their way");
    complete(&mut device.completion, &ours[..9]);
    assert!(!io.has_left(0, &mut mark), "the last one is still on its way");
    // Packets that are sent later need not leave.
    send_ten(&mut io);
    complete(&mut device.completion, &ours[9..]);
    assert!(io.has_left(0, &mut mark) && io.outputs()[0].sender().in_flight() == 10);
}

/// As for a path that ends and comes back.
#[test]
fn a_retired_rx_ring_gives_back_all_frames() {
    let umem = Umem::new(1200, FRAME_BYTES as u32).unwrap();
    let (queue, receiver, sender, mut device) = fake(&umem, false);
    let mut io = Io::new(&umem, 64).unwrap();
    io.add_receiver(receiver);
    io.add_queue(queue);
    let before = umem.promised_frames();
    assert_eq!(device.deliver(&mut VecDeque::new(), 0, 30), 30);
    assert_eq!(io.receive(0, 10, &mut Vec::new()), 10);
    let [receiver]: [Receiver; 1] = io.take_path(0).try_into().ok().unwrap();
    assert!(receiver.has_packets());
    assert_eq!(receiver.retire(), 20, "packets that were in it");
    assert_eq!(umem.promised_frames(), before - RINGS.receive);
    assert_eq!((io.receivers(0).count(), io.has_packets(0)), (0, false));
    drop((io, sender));
    whole(&umem, 0);
}
