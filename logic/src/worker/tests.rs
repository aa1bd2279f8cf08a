//! Workers over frames in memory.

use super::*;
use crate::{
    elements::{CrcAppend, Element, Forward, Police, Rate},
    paths::{Bursts, Counters, class::Class},
};
use std::collections::BTreeMap;

/// A packet with its time of arrival and its number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    memory: Vec<u8>,
    data: Range<usize>,
    port: u8,
    ns: u64,
    number: u32,
}

impl Packet {
    fn new(port: u8, ns: u64, number: u32) -> Self {
        Packet { memory: vec![number as u8; 100], data: 10..70, port, ns, number }
    }
}

impl Frame for Packet {
    fn data(&self) -> &[u8] {
        &self.memory[self.data.clone()]
    }
    fn parts_mut(&mut self) -> (&mut [u8], Range<usize>) {
        (&mut self.memory, self.data.clone())
    }
    fn set_range(&mut self, data: Range<usize>) {
        self.data = data;
    }
    fn ingress(&self) -> Ingress {
        Ingress { port: self.port, ..Ingress::default() }
    }
    fn came_ns(&self) -> u64 {
        self.ns
    }
}

struct Memory {
    rings: Rings<Packet>,
    settled: Vec<(PathId, Packet, Verdict)>,
}

impl Exchange for Memory {
    type Frame = Packet;
    fn ports(&self) -> u64 {
        0b1111
    }
    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Packet>) {
        self.rings.receive(path, most, to);
    }
    fn settle(&mut self, path: PathId, frame: Packet, verdict: Verdict) {
        self.settled.push((path, frame, verdict));
    }
}

fn settings(most: u32) -> Settings {
    let bursts = Bursts { longest_cycles: 100_000, switch_cycles: 0, most };
    Settings { bursts, sample_every: 20, counted: Counters::CYCLES }
}

/// One path for each port, with the port's number, and with these chains.
fn world(most: u32, room: usize, chains: Vec<Vec<Box<dyn Element>>>) -> (Worker<Packet>, Memory) {
    let mut worker = Worker::new(settings(most)).unwrap();
    let class = |port| (Class { port: Some(port), ..Class::default() }, room);
    let rings = Rings::new((0..chains.len() as u8).map(class));
    for chain in chains {
        worker.add(0, 1, Chain::new(chain).unwrap()).unwrap();
    }
    (worker, Memory { rings, settled: Vec::new() })
}

fn forward(port: u8) -> Box<dyn Element> {
    Box::new(Forward::new(port))
}

fn no_meter() -> u64 {
    0
}

#[test]
fn paths_share_io_by_the_bytes_of_their_packets_where_it_is_counted() {
    let settings = |counted| Settings { counted, ..settings(1) };
    let mut worker = Worker::new(settings(Counters::CYCLES)).unwrap();
    assert_eq!(worker.share(Resource::Io), Err(NotCounted { resource: Resource::Io }));
    worker = Worker::new(settings(Counters::CYCLES.with(Resource::Io))).unwrap();
    let classes = (0..2).map(|port| (Class { port: Some(port), ..Class::default() }, 4000));
    let mut memory = Memory { rings: Rings::new(classes), settled: Vec::new() };
    for chain in [vec![forward(3)], vec![forward(3)]] {
        worker.add(0, 1, Chain::new(chain).unwrap()).unwrap();
    }
    for number in 0..4000 {
        memory.rings.offer(Packet::new(0, 0, number)).unwrap();
        // A third of the bytes.
        memory.rings.offer(Packet { data: 10..30, ..Packet::new(1, 0, number) }).unwrap();
    }
    let mut cycles = 0;
    let mut meter = || {
        cycles += 1000;
        cycles
    };
    for (resource, first) in [(Resource::Cycles, 1000), (Resource::Io, 500)] {
        worker.share(resource).unwrap();
        for _ in 0..2000 {
            worker.turn(&mut memory, &mut meter);
        }
        let of_first = memory.settled.drain(..).filter(|settled| settled.0 == 0).count();
        assert!((first - 2..=first + 2).contains(&of_first), "{resource}: {of_first}");
    }
    let io: Vec<_> = worker.accounts().map(|account| account.cost.of(Resource::Io)).collect();
    // Received and sent.
    assert_eq!(io, [Some(120), Some(40)]);
}

/// If nobody shares I/O, the use per packet is known roughly, and the total use is not.
#[test]
fn io_that_is_not_counted_is_measured_now_and_then() {
    let settings = Settings { sample_every: 1, ..settings(1) };
    let mut worker = Worker::new(settings).unwrap();
    let rings = Rings::new([(Class::default(), 4000)]);
    let mut memory = Memory { rings, settled: Vec::new() };
    worker.add(0, 1, Chain::new(vec![forward(3)]).unwrap()).unwrap();
    let mut io = Vec::new();
    for number in 0..34 {
        let data = if number == 0 { 10..70 } else { 10..30 };
        memory.rings.offer(Packet { data, ..Packet::new(0, 0, number) }).unwrap();
        worker.turn(&mut memory, || 0);
        io.push(worker.accounts().next().unwrap().cost.of(Resource::Io));
    }
    let expected: Vec<_> = [[120; 16], [100; 16]].concat().into_iter().chain([85, 85]).map(Some).collect();
    assert_eq!(io, expected);
    assert_eq!(worker.accounts().next().unwrap().taken, Used::default());
    // Counted from now on, in every run.
    worker.count(Counters::CYCLES.with(Resource::Io));
    for number in 0..3 {
        memory.rings.offer(Packet::new(0, 0, number)).unwrap();
        worker.turn(&mut memory, || 0);
    }
    let taken = worker.accounts().next().unwrap().taken;
    assert_eq!(taken, Used::default().with(Resource::Io, 360));
    assert_eq!((worker.share(Resource::Io), worker.shared()), (Ok(()), Resource::Io));
    worker.count(Counters::CYCLES);
    assert_eq!(worker.shared(), Resource::Cycles);
}

/// Counters besides the clock, which increase with each packet.
struct Counting(Memory, u64);

impl Exchange for Counting {
    type Frame = Packet;
    fn ports(&self) -> u64 {
        self.0.ports()
    }
    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Packet>) {
        self.0.receive(path, most, to);
        self.1 += to.len() as u64 * if path == 0 { 7 } else { 21 };
    }
    fn settle(&mut self, path: PathId, frame: Packet, verdict: Verdict) {
        self.0.settle(path, frame, verdict);
    }
    fn read_counters(&mut self) -> Used {
        Used::default().with(Resource::CacheMisses, self.1)
    }
}

#[test]
fn counter_readings_become_the_cost_of_packets() {
    let (_, memory) = world(4, 100, vec![vec![forward(3)], vec![forward(2)]]);
    let counted = Counters::CYCLES.with(Resource::CacheMisses);
    let mut worker = Worker::new(Settings { counted, ..settings(4) }).unwrap();
    let mut counting = Counting(memory, 1_000_000);
    for port in 0..2 {
        worker.add(0, 1, Chain::new(vec![forward(3)]).unwrap()).unwrap();
        for number in 0..50 {
            counting.0.rings.offer(Packet::new(port, 0, number)).unwrap();
        }
    }
    while let Some(turn) = worker.turn(&mut counting, no_meter) {
        if counting.0.rings.waiting(turn.path) == 0 {
            worker.sleep(turn.path);
        }
    }
    let misses: Vec<_> = worker.accounts().map(|account| account.cost.of(Resource::CacheMisses)).collect();
    assert_eq!(misses, [Some(7), Some(21)]);
    assert!(worker.accounts().all(|account| account.cost.of(Resource::Memory).is_none()));
}

/// Turns until all rings are empty.
fn drain(worker: &mut Worker<Packet>, memory: &mut Memory) {
    while let Some(turn) = worker.turn(memory, no_meter) {
        if memory.rings.waiting(turn.path) == 0 {
            worker.sleep(turn.path);
        }
    }
}

#[test]
fn packets_leave_as_their_chain_says_in_order() {
    let (mut worker, mut memory) =
        world(4, 100, vec![vec![forward(3)], vec![Box::new(CrcAppend), forward(2)]]);
    for number in 0..50 {
        let port = (number % 3 == 0).into();
        assert_eq!(memory.rings.offer(Packet::new(port, 0, number)), Ok(port.into()));
    }
    drain(&mut worker, &mut memory);
    assert_eq!(memory.settled.len(), 50);
    for (path, to, length) in [(0, 3, 60), (1, 2, 64)] {
        let of_path: Vec<_> = memory.settled.iter().filter(|settled| settled.0 == path).collect();
        assert!(of_path.iter().all(|(_, packet, verdict)| {
            *verdict == Verdict::To(to)
                && packet.data().len() == length
                && packet.data()[0] == packet.number as u8
        }));
        assert!(of_path.is_sorted_by_key(|(_, packet, _)| packet.number));
        assert_eq!(worker.chain(path).unwrap().whole().packets, of_path.len() as u64);
    }
}

/// P4: a path that gets too many packets loses only its own.
#[test]
fn a_full_ring_is_its_paths_own() {
    let (mut worker, mut memory) = world(4, 16, vec![vec![forward(3)], vec![forward(2)]]);
    let mut refused = BTreeMap::<u16, u32>::new();
    for number in 0..100 {
        let port = u8::from(number % 10 == 0);
        if let Err(NotTaken::Full(path, packet)) = memory.rings.offer(Packet::new(port, 0, number)) {
            assert_eq!((path, packet.number), (port.into(), number));
            *refused.entry(path).or_default() += 1;
        }
    }
    assert_eq!(refused, BTreeMap::from([(0, 90 - 16)]));
    let stranger = Packet::new(7, 0, 0);
    assert_eq!(memory.rings.offer(stranger.clone()), Err(NotTaken::NoPath(stranger)));
    drain(&mut worker, &mut memory);
    assert_eq!(memory.settled.iter().filter(|settled| settled.0 == 1).count(), 10);
    assert_eq!(memory.settled.len(), 26);
}

/// Two packets at once, then one per millisecond: the same pass, whatever the bursts.
#[test]
fn times_are_those_of_packets_however_they_are_run() {
    let passed = |most| {
        let police = Police::new(Rate::Packets { per_second: 1000, burst: 2 });
        let (mut worker, mut memory) = world(most, 1000, vec![vec![Box::new(police), forward(1)]]);
        for number in 0..40 {
            memory.rings.offer(Packet::new(0, u64::from(number / 4) * 1_000_000, number)).unwrap();
        }
        drain(&mut worker, &mut memory);
        let passed = memory.settled.into_iter().filter(|(.., verdict)| *verdict == Verdict::To(1));
        passed.map(|(_, packet, _)| packet.number).collect::<Vec<_>>()
    };
    // The first two of the first four, then one of each four.
    let expected: Vec<u32> = [0, 1].into_iter().chain((1..10).map(|tick| tick * 4)).collect();
    for most in [1, 3, 8, 256] {
        assert_eq!(passed(most), expected, "bursts of {most}");
    }
}

/// Packets of equal cost by the meter: weights are shares.
#[test]
fn turns_follow_what_runs_cost() {
    let mut worker = Worker::new(settings(8)).unwrap();
    for weight in [3, 1] {
        worker.add(0, weight, Chain::new(vec![forward(1)]).unwrap()).unwrap();
    }
    let classes = [0, 1].map(|port| (Class { port: Some(port), ..Class::default() }, 5000));
    let mut memory = Memory { rings: Rings::new(classes), settled: Vec::new() };
    for number in 0..10_000 {
        memory.rings.offer(Packet::new(number as u8 % 2, 0, number)).unwrap();
    }
    let mut cycles = 0;
    let mut packets = [0, 0];
    for _ in 0..400 {
        // Two readings per run: it took 800 cycles.
        let turn = worker.turn(&mut memory, || {
            cycles += 800;
            cycles
        });
        let turn = turn.unwrap();
        packets[usize::from(turn.path)] += turn.packets;
    }
    assert_eq!(packets, [2400, 800]);
    assert!(worker.accounts().all(|account| account.cost.of(crate::paths::Resource::Cycles) == Some(100)));
}

/// Time passes when it sends.
struct Sends<'a>(Memory, &'a std::cell::Cell<u64>);

impl Exchange for Sends<'_> {
    type Frame = Packet;
    fn ports(&self) -> u64 {
        self.0.ports()
    }
    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Packet>) {
        self.0.receive(path, most, to);
    }
    fn settle(&mut self, path: PathId, frame: Packet, verdict: Verdict) {
        self.0.settle(path, frame, verdict);
    }
    fn leave(&mut self) {
        self.1.set(self.1.get() + 700);
    }
}

#[test]
fn a_run_is_charged_from_the_end_of_the_one_before_and_with_what_it_sends() {
    let (mut worker, memory) = world(1, 100, vec![vec![forward(1)]]);
    let clock = std::cell::Cell::new(0);
    let mut exchange = Sends(memory, &clock);
    for number in 0..10 {
        exchange.0.rings.offer(Packet::new(0, 0, number)).unwrap();
    }
    let pass = |cycles: u64| clock.set(clock.get() + cycles);
    let mut charged = 0;
    let mut turn = |worker: &mut Worker<Packet>| {
        worker.turn(&mut exchange, || clock.get()).unwrap();
        let all = worker.accounts().next().unwrap().cycles;
        all - std::mem::replace(&mut charged, all)
    };
    pass(5000);
    assert_eq!(turn(&mut worker), 700, "no run came before it");
    pass(30);
    assert_eq!(turn(&mut worker), 730);
    pass(1000);
    worker.pause();
    pass(20);
    assert_eq!(turn(&mut worker), 700, "the time in between was no path's");
    // All sleep: that time belongs to no path either.
    worker.sleep(0);
    assert_eq!(worker.turn(&mut Sends(world(1, 1, vec![]).1, &clock), || clock.get()), None);
    pass(9000);
    worker.wake(0);
    assert_eq!(turn(&mut worker), 700);
}

/// A frame that cannot be lent is dropped, and its neighbours are not.
#[test]
fn a_frame_that_is_too_long_is_dropped() {
    let (mut worker, mut memory) = world(8, 100, vec![vec![forward(1)]]);
    for number in 0..3 {
        let mut packet = Packet::new(0, 0, number);
        if number == 1 {
            packet.memory = vec![0; 70_000];
        }
        memory.rings.offer(packet).unwrap();
    }
    drain(&mut worker, &mut memory);
    let verdicts: Vec<_> = memory.settled.iter().map(|settled| settled.2).collect();
    assert_eq!(verdicts, [Verdict::To(1), Verdict::Drop(Loss::NoRoom), Verdict::To(1)]);
}

/// Panics at the packet with this number.
struct Trap(u8);

impl Element for Trap {
    fn name(&self) -> &'static str {
        "trap"
    }
    fn contract(&self) -> crate::elements::Contract {
        crate::elements::Contract::default()
    }
    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, _: &mut crate::elements::Counters) {
        assert!(batch.packets().iter().all(|packet| packet.data()[0] != self.0), "the trap");
    }
}

#[test]
fn a_panic_costs_what_was_in_hand_and_no_other_path() {
    let (mut worker, mut memory) = world(4, 100, vec![vec![Box::new(Trap(9)), forward(3)], vec![forward(2)]]);
    for number in 0..40 {
        let _ = memory.rings.offer(Packet::new((number % 2 == 0).into(), 0, number));
    }
    let turn = |worker: &mut Worker<Packet>, memory: &mut Memory| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.turn(memory, no_meter)))
    };
    let mut lost = 0;
    loop {
        match turn(&mut worker, &mut memory) {
            Ok(None) => break,
            Ok(Some(turn)) if memory.rings.waiting(turn.path) == 0 => worker.sleep(turn.path),
            Ok(Some(_)) => {}
            Err(_) => {
                lost += 1;
                worker.recover(0);
                let fresh = Chain::new(vec![forward(3)]).unwrap();
                assert_eq!(worker.replace(0, fresh).map(|old| old.whole().packets), Some(8), "4 before");
            }
        }
    }
    // Packets 1, 3, 5, 7 left before; 9, 11, 13, 15 were in hand.
    let numbers = |path| {
        let of = memory.settled.iter().filter(move |settled| settled.0 == path);
        of.map(|(_, packet, _)| packet.number).collect::<Vec<_>>()
    };
    assert_eq!((lost, numbers(0)), (1, vec![1, 3, 5, 7, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39]));
    assert_eq!(numbers(1), (0..20).map(|n| n * 2).collect::<Vec<_>>());
}

#[test]
fn paths_come_and_go_by_number() {
    let (mut worker, mut memory) = world(4, 100, vec![vec![forward(3)], vec![forward(2)]]);
    let (chain, cost) = worker.remove(0).unwrap();
    assert!(worker.remove(0).is_none() && worker.chain(0).is_none());
    for number in 0..8 {
        let _ = memory.rings.offer(Packet::new((number % 2) as u8, 0, number));
    }
    drain_of(&mut worker, &mut memory, 1);
    worker.insert(Path { id: 0, router: 5, weight: 2 }, chain, cost).unwrap();
    assert!(
        worker.insert(Path { id: 0, router: 0, weight: 1 }, Chain::new(vec![forward(1)]).ok(), cost).is_err()
    );
    worker.set_weight(0, 7);
    assert_eq!(worker.accounts().find(|account| account.path.id == 0).unwrap().path.weight, 7);
    drain(&mut worker, &mut memory);
    let paths: Vec<_> = memory.settled.iter().map(|settled| settled.0).collect();
    assert_eq!(paths, [1, 1, 1, 1, 0, 0, 0, 0]);
}

/// Turns until the ring of this path, which is the only one, is empty.
fn drain_of(worker: &mut Worker<Packet>, memory: &mut Memory, path: PathId) {
    while memory.rings.waiting(path) > 0 {
        assert_eq!(worker.turn(memory, no_meter).map(|turn| turn.path), Some(path));
    }
}

/// In the middle of a run another thread continues with the turns, and leaves the hands. The path goes on with another
/// chain, and others with their own.
#[test]
fn turns_go_on_without_the_hands_of_a_run() {
    let chains = (0..2).map(|_| vec![forward(3)]).collect();
    let (mut worker, mut memory) = world(4, 100, chains);
    for number in 0..10 {
        memory.rings.offer(Packet::new(0, 0, number)).unwrap();
        memory.rings.offer(Packet::new(1, 0, number)).unwrap();
    }
    worker.turn(&mut memory, no_meter);
    worker.turn(&mut memory, no_meter);
    let Worker { mut turns, mut hand } = worker;
    let mut whose = None;
    turns.begin(&mut hand, &mut memory, no_meter, |path| whose = Some(path)).unwrap();
    let path = whose.unwrap();
    assert_eq!(
        (hand.packets(), turns.chain(path).is_none(), turns.chain(1 - path).is_some()),
        (4, true, true)
    );
    let had = memory.settled.len();
    turns.is_lost(path);
    assert!(turns.replace(path, Chain::new(vec![forward(2)]).unwrap()).is_none(), "the first is in hand");
    // The thread with the hands finds no turns, and drops what is in them.
    hand.run(0b1111);
    assert_eq!(hand.empty().map(|chain| chain.whole().packets), Some(8));
    let mut worker = Worker { turns, hand: InHand::default() };
    (0..6).for_each(|_| _ = worker.turn(&mut memory, no_meter));
    let of = |path| memory.settled.iter().filter(move |of| of.0 == path).map(|of| (of.1.number, of.2));
    let others: Vec<_> = (0..10).map(|number| (number, Verdict::To(3))).collect();
    assert_eq!(of(1 - path).collect::<Vec<_>>(), others);
    let to = |port| move |number| (number, Verdict::To(port));
    let expected: Vec<_> = (0..4).map(to(3)).chain((8..10).map(to(2))).collect();
    assert_eq!(of(path).collect::<Vec<_>>(), expected, "four are lost");
    assert_eq!((had, worker.chain(1 - path).map(|chain| chain.whole().packets)), (8, Some(10)));
}
