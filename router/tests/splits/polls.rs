//! Packets that a poll has redirected leave when it is over. Until then a flow stays at home. Polls are made
//! long here, by packets that the stack handles slowly. In between, the flow is sent to another core, which
//! other packets have woken.

use super::{FLOWS, frame, polling_threads, world};
use crate::common::{be_urgent, frame::HOST, in_new_namespace, only_on, wire::Wire};
use logic::cores::{CoreId, QueueId};
use router::{
    base::clock::monotonic,
    cores::affinity::{Affinity, Kernel},
    plane::Splits,
};
use std::{
    sync::{OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

/// The flow's queue, and the queue of packets that are always handed over.
const QUEUES: [QueueId; 2] = [QueueId { port: 0, index: 0 }, QueueId { port: 0, index: 1 }];
/// The stack gets packets that are passed up when there are eight, or the poll is over (`gro_normal_batch`,
/// net/core/gro.c).
const TOGETHER: usize = 8;
/// This many packets wait in a poll. With the next one, another core can see them (`CPU_MAP_BULK_SIZE`,
/// kernel/bpf/cpumap.c).
const HANDED_TOGETHER: u32 = 8;
/// Divisions for each slow packet, by each socket that looks at it.
const DIVISIONS: u16 = 4000;
/// The length of a poll with two batches of slow packets. A queue that is split again waits longer than this.
const SLOW: Duration = Duration::from_millis(4);
const ROUNDS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends packets on one core, where the queues are polled.
struct Sender {
    from: Wire,
    to: Wire,
    /// Two flows, one for each queue.
    flows: [u16; 2],
    number: u32,
    /// Packets of the first flow that a later one has overtaken.
    overtaken: u64,
}

impl Sender {
    fn send(&mut self, flow: u16) {
        self.from.send(&frame(self.number * u32::from(FLOWS) + u32::from(flow)));
        self.number += 1;
    }

    /// Waits until this many packets have come.
    fn receive(&mut self, packets: u32) {
        let (began, mut came, mut last) = (Instant::now(), 0, None);
        while came < packets {
            assert!(began.elapsed() < PATIENCE, "only {came} of {packets} packets have come");
            let Some(bytes) = self.to.receive().filter(|bytes| bytes[12..14] == [8, 0]) else {
                thread::sleep(Duration::from_micros(100));
                continue;
            };
            let number = u32::from_be_bytes(*bytes.last_chunk().unwrap());
            came += 1;
            if number % u32::from(FLOWS) == u32::from(self.flows[0]) {
                self.overtaken += u64::from(Some(number) < last);
                last = last.max(Some(number));
            }
        }
    }

    /// Sends the packets of one poll: a packet, which may wait until the poll's end, and then more than
    /// enough for another core to see them. Slow packets follow each of the two. `released` is called when
    /// the queue's thread may run; before, this thread keeps the core.
    fn poll(&mut self, released: impl FnOnce()) {
        // These have the same hash, and so the same queue, but are for another host.
        let mut slow = frame(self.flows[0].into());
        slow[..6].copy_from_slice(&HOST.0);
        for packets in [1, HANDED_TOGETHER + 1] {
            (0..packets).for_each(|_| self.send(self.flows[0]));
            (0..TOGETHER).for_each(|_| self.from.send(&slow));
        }
        released();
    }

    /// Runs a poll that takes `took`, with `change` in its first batch. Returns whether the change came
    /// before the end. The other core's thread is awake, but kept from running until the second batch; then
    /// it handles the packets that it was handed.
    fn poll_while(&mut self, other: CoreId, took: Duration, change: impl FnOnce() + Send) -> bool {
        let released = OnceLock::<Instant>::new();
        thread::scope(|scope| {
            let (ready, is_ready) = mpsc::channel();
            let released = &released;
            let changing = scope.spawn(move || {
                only_on([other.into()]);
                be_urgent();
                ready.send(()).unwrap();
                let began = loop {
                    if let Some(at) = released.get() {
                        break *at;
                    }
                };
                while began.elapsed() < took / 4 {}
                let changed = Instant::now();
                change();
                while began.elapsed() < took / 4 * 3 {}
                changed
            });
            is_ready.recv().unwrap();
            self.send(self.flows[1]);
            // The packet is handed over now.
            thread::sleep(Duration::from_micros(500));
            self.poll(|| released.set(Instant::now()).unwrap());
            self.receive(HANDED_TOGETHER + 3);
            let ended = Instant::now();
            changing.join().unwrap() < ended
        })
    }
}

/// Makes the first queue's flow leave in the middle of a poll, again and again. Returns in how many polls it
/// left, and how many packets were overtaken. `leave` sends the flow to another core, `home` brings it back.
fn in_polls(
    leave: impl Fn(&Splits, CoreId, CoreId) + Sync,
    home: impl Fn(&Splits, CoreId),
) -> Option<(usize, u64)> {
    let (world, here, other) = world(2)?;
    for thread in polling_threads() {
        Kernel.allow(thread, &[here].into()).unwrap();
    }
    be_urgent();
    let splits: &Splits = world.plane.splits();
    splits.share(QUEUES[1], here, &[other]).unwrap();
    let (from, to) = (Wire::open("q0"), Wire::open("q1"));
    let mut sender = Sender { from, to, flows: [0; 2], number: 0, overtaken: 0 };
    sender.flows = flows_of_queues(&mut sender, splits, other);
    home(splits, here);
    let (took, _deaf) = slow_down(&mut sender);
    let mut hits = 0;
    for _ in 0..ROUNDS {
        let is_in_poll = sender.poll_while(other, took, || leave(splits, here, other));
        let left = handed(&mut sender, splits, other);
        hits += usize::from(is_in_poll && left);
        home(splits, here);
        // Flows return home with their first packet in a tick.
        thread::sleep(Duration::from_millis(15));
        assert!(!handed(&mut sender, splits, other), "the flow has not returned home");
    }
    eprintln!("polls of {took:?}, left in {hits} of {ROUNDS}, {} packets overtaken", sender.overtaken);
    Some((hits, sender.overtaken))
}

/// Whether a packet of the first flow is handed over.
fn handed(sender: &mut Sender, splits: &Splits, other: CoreId) -> bool {
    let before = splits.handed(other).packets;
    sender.send(sender.flows[0]);
    sender.receive(1);
    splits.handed(other).packets > before
}

/// Finds a flow that is not handed over, and one that is.
fn flows_of_queues(sender: &mut Sender, splits: &Splits, other: CoreId) -> [u16; 2] {
    let mut flows = [None; 2];
    for flow in 0..FLOWS {
        sender.flows[0] = flow;
        // The very first packet may not leave, as no poll has ended before.
        handed(sender, splits, other);
        let queue = usize::from(handed(sender, splits, other));
        flows[queue].get_or_insert(flow);
    }
    flows.map(Option::unwrap)
}

/// Opens as many slow sockets as make polls last longer than [`SLOW`]. Returns the length of a poll, and the
/// sockets.
fn slow_down(sender: &mut Sender) -> (Duration, Vec<Wire>) {
    let mut deaf = Vec::new();
    loop {
        let mut began = Instant::now();
        sender.poll(|| began = Instant::now());
        sender.receive(HANDED_TOGETHER + 2);
        if began.elapsed() > SLOW {
            return (began.elapsed(), deaf);
        }
        let wire = Wire::open("p0");
        wire.refuse_slowly(DIVISIONS);
        deaf.push(wire);
    }
}

#[test]
#[ignore = "needs root"]
fn a_flow_leaves_its_home_with_the_first_packet_of_a_poll() {
    in_new_namespace(|| {
        let leave = |splits: &Splits, here, other| splits.share(QUEUES[0], here, &[other]).unwrap();
        let home = |splits: &Splits, here| splits.share(QUEUES[0], here, &[here]).unwrap();
        let Some((hits, overtaken)) = in_polls(leave, home) else { return };
        assert!(hits > ROUNDS / 2, "the flow left in only {hits} of {ROUNDS} polls");
        assert_eq!(overtaken, 0, "packets overtaken");
    });
}

/// No bucket knows of packets that were polled before the queue is split.
#[test]
#[ignore = "needs root"]
fn flows_of_a_queue_that_is_split_again_leave_when_a_poll_is_over() {
    in_new_namespace(|| {
        let leave = |splits: &Splits, here, other| splits.share(QUEUES[0], here, &[other]).unwrap();
        let home = |splits: &Splits, _| {
            splits.join(QUEUES[0]);
            let start = Instant::now();
            while splits.is_tidying() {
                thread::sleep(Duration::from_millis(1));
                splits.tidy(monotonic());
                assert!(start.elapsed() < PATIENCE, "the queue is not tidied");
            }
        };
        let Some((hits, overtaken)) = in_polls(leave, home) else { return };
        assert!(hits > ROUNDS / 2, "the flow left in only {hits} of {ROUNDS} polls");
        assert_eq!(overtaken, 0, "packets overtaken");
    });
}
