//! What a poll has redirected leaves when it is over: until then a flow stays at home. Polls are made long here, by packets that the
//! stack takes long for. Between them the flow is sent elsewhere, where other packets have woken the core that goes on with it.

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

/// The flow's queue, and that of packets that are handed over all the time.
const QUEUES: [QueueId; 2] = [QueueId { port: 0, index: 0 }, QueueId { port: 0, index: 1 }];
/// The stack is given packets that are passed up when it is the eighth of them, or the poll is over (`gro_normal_batch`,
/// net/core/gro.c).
const TOGETHER: usize = 8;
/// As many wait in a poll until another core can see them, with the next one (`CPU_MAP_BULK_SIZE`, kernel/bpf/cpumap.c).
const HANDED_TOGETHER: u32 = 8;
/// For each slow packet, by each who looks at it.
const DIVISIONS: u16 = 4000;
/// A poll: two batches of slow packets, and less than a queue that is split anew waits for.
const SLOW: Duration = Duration::from_millis(4);
const ROUNDS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends on one core what the queues there poll.
struct Sender {
    from: Wire,
    to: Wire,
    /// Two flows, one of each queue.
    flows: [u16; 2],
    number: u32,
    /// Packets of the first that a later one has overtaken.
    overtaken: u64,
}

impl Sender {
    fn send(&mut self, flow: u16) {
        self.from.send(&frame(self.number * u32::from(FLOWS) + u32::from(flow)));
        self.number += 1;
    }

    /// Goes on when these have come.
    fn receive(&mut self, packets: u32) {
        let (began, mut came, mut last) = (Instant::now(), 0, None);
        while came < packets {
            assert!(began.elapsed() < PATIENCE, "{came} of {packets} packets have come");
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

    /// One poll: a packet, which may wait until its end, and more than enough for another core to see those behind it; before each
    /// slow ones. `released`: told when the queue's thread may run, which this one has kept from it.
    fn poll(&mut self, released: impl FnOnce()) {
        // Of the same flow by its hash, and so in the same queue, but for another host.
        let mut slow = frame(self.flows[0].into());
        slow[..6].copy_from_slice(&HOST.0);
        for packets in [1, HANDED_TOGETHER + 1] {
            (0..packets).for_each(|_| self.send(self.flows[0]));
            (0..TOGETHER).for_each(|_| self.from.send(&slow));
        }
        released();
    }

    /// A poll that takes so long, in whose first batch something is changed; whether it was. Another core, whose thread is awake but
    /// kept from running, goes on with what it has been handed in the second one.
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
            // It is handed over.
            thread::sleep(Duration::from_micros(500));
            self.poll(|| released.set(Instant::now()).unwrap());
            self.receive(HANDED_TOGETHER + 3);
            let ended = Instant::now();
            changing.join().unwrap() < ended
        })
    }
}

/// Sends the first queue's flow elsewhere in the middle of a poll, again and again: in how many polls it was, and packets that were
/// overtaken. `leave` does it, `home` brings it back.
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
        // Flows come home with their first packet in a tick.
        thread::sleep(Duration::from_millis(15));
        assert!(!handed(&mut sender, splits, other));
    }
    eprintln!("polls of {took:?}, left in {hits} of {ROUNDS}, {} packets overtaken", sender.overtaken);
    Some((hits, sender.overtaken))
}

/// Is a packet of the first flow handed over?
fn handed(sender: &mut Sender, splits: &Splits, other: CoreId) -> bool {
    let before = splits.handed(other).packets;
    sender.send(sender.flows[0]);
    sender.receive(1);
    splits.handed(other).packets > before
}

/// One that is not handed over, and one that is.
fn flows_of_queues(sender: &mut Sender, splits: &Splits, other: CoreId) -> [u16; 2] {
    let mut flows = [None; 2];
    for flow in 0..FLOWS {
        sender.flows[0] = flow;
        // The first one of all may not leave, as no poll has ended before.
        handed(sender, splits, other);
        let queue = usize::from(handed(sender, splits, other));
        flows[queue].get_or_insert(flow);
    }
    flows.map(Option::unwrap)
}

/// As many take part in what is slow as make polls last that long; how long that is.
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
        assert!(hits > ROUNDS / 2, "{hits}");
        assert_eq!(overtaken, 0);
    });
}

/// Of what was polled before the queue is split no bucket knows.
#[test]
#[ignore = "needs root"]
fn flows_of_a_queue_that_is_split_anew_leave_when_a_poll_is_over() {
    in_new_namespace(|| {
        let leave = |splits: &Splits, here, other| splits.share(QUEUES[0], here, &[other]).unwrap();
        let home = |splits: &Splits, _| {
            splits.join(QUEUES[0]);
            let start = Instant::now();
            while splits.is_tidying() {
                thread::sleep(Duration::from_millis(1));
                splits.tidy(monotonic());
                assert!(start.elapsed() < PATIENCE);
            }
        };
        let Some((hits, overtaken)) = in_polls(leave, home) else { return };
        assert!(hits > ROUNDS / 2, "{hits}");
        assert_eq!(overtaken, 0);
    });
}
