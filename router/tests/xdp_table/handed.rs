//! Packets of connections that another core finishes: their queue is split, or a rule names the core. These tests send
//! real frames on wires, because BPF_PROG_TEST_RUN cannot run the programs of other cores.

use super::{
    common::{
        frame::Frame,
        hogged, in_new_namespace,
        order::{send_while, split_and_join},
        run,
        wire::Wire,
    },
    connections::*,
    features::{Program, Router},
    world::*,
};
use logic::{
    cores::{CoreId, QueueId},
    firewall::traffic::Tuple,
    flow::{Action, CoreChoice, Match, RulePort},
    net::{Mac, Tag},
    reason::Reason,
    tables::connections::{Connection, PairId},
};
use router::plane::{Charge, Mode, PortLink, online_cpus};
use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

/// The packets of each direction.
const PACKETS: u8 = 16;
const PATIENCE: Duration = Duration::from_secs(5);
/// By direction: the MAC address of the router's ingress interface.
const MACS: [Mac; 2] = [A, B];

/// A router between two wires. It hands all packets that it forwards to another core, or none.
struct Lines {
    router: Router,
    wires: [Wire; 2],
    here: CoreId,
    other: CoreId,
    is_handing: bool,
    _links: [PortLink; 2],
}

impl Lines {
    /// Nothing is handed over yet. `None`: the machine has only one core.
    fn new(program: Program) -> Option<Lines> {
        run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        let router = Router::new(program);
        let here = rustix::thread::sched_getcpu();
        let other = online_cpus().unwrap().into_iter().find(|cpu| *cpu != here)?;
        for device in ["p0", "q0", "p1", "q1"] {
            run(&format!("ip link set {device} up"));
        }
        ["q0", "q1"].iter().for_each(|device| drop(run(&format!("ethtool -K {device} gro on"))));
        let plane = &router.bed.w.plane;
        let program = router.rules.as_ref().map_or_else(|| plane.program(), |rules| rules.plane.program());
        let links = router.bed.w.port.map(|port| PortLink::attach(program, port, Mode::Native).unwrap());
        // What the program may do with packets of a port depends on how it is attached.
        for (id, ifindex) in (0..).zip(router.bed.w.port) {
            plane.set_port(id, ifindex, true, true).unwrap();
        }
        let wires = ["q0", "q1"].map(|device| Wire::open(device).keep_tags());
        let (here, other) = (here as CoreId, other as CoreId);
        Some(Lines { router, wires, here, other, is_handing: false, _links: links })
    }

    /// From now on, the router hands all packets over, by a rule or because both queues are split.
    fn hand_over(&mut self) {
        self.is_handing = true;
        if let Some(rules) = &mut self.router.rules {
            rules.tables.set_cores(Some([self.here, self.other].into()));
            rules.plane.maps().memory().make_ready(self.other).unwrap();
            let actions = [Action::SetCore(CoreChoice::This(self.other)), Action::output(RulePort::NORMAL)];
            self.router.rule(Match::ANY, actions);
        } else {
            crate::common::count_polls();
            let splits = self.router.bed.w.plane.splits();
            for port in 0..2 {
                splits.share(QueueId { port, index: 0 }, self.here, &[self.other]).unwrap();
            }
        }
    }

    fn handed(&self) -> u64 {
        let splits = || self.router.bed.w.plane.splits().handed(self.other).packets;
        self.router.rules.as_ref().map_or_else(splits, |rules| {
            rules.plane.maps().memory().handed().get(&self.other).map_or(0, |handed| handed.packets)
        })
    }

    /// Packets of the router that were not forwarded.
    fn charged(&self) -> BTreeMap<Reason, u64> {
        let charges = self.router.bed.w.plane.counters().unwrap().charges;
        let ours = |((charge, reason), packets)| (charge == Charge::Router(0)).then_some((reason, packets));
        charges.into_iter().filter_map(ours).filter(|(_, packets)| *packets > 0).collect()
    }

    /// Sends a packet that goes up, and waits until it was charged.
    #[track_caller]
    fn goes_up(&self, name: &str, way: usize, frame: &[u8], reason: Reason) {
        let mut expected = self.charged();
        *expected.entry(reason).or_default() += 1;
        self.wires[way].send(frame);
        let began = Instant::now();
        while self.charged() != expected && began.elapsed() < PATIENCE {
            thread::yield_now();
        }
        assert_eq!(self.charged(), expected, "{name}: charged");
    }

    /// Receives so many packets that have left in this direction. Returns them in hex.
    fn receive(&self, way: usize, packets: usize) -> Vec<String> {
        let (mut left, began) = (Vec::new(), Instant::now());
        while left.len() < packets && began.elapsed() < PATIENCE {
            match self.wires[1 - way].receive() {
                Some(frame) if frame[6..12] == MACS[1 - way].0 => left.push(hex(&frame)),
                _ => thread::yield_now(),
            }
        }
        left
    }

    /// Sends packets of a direction until one is handed over.
    #[track_caller]
    fn warm_up(&self, name: &str, talk: &Talk, way: usize) {
        let (before, began) = (self.handed(), Instant::now());
        while self.is_handing && self.handed() == before {
            self.wires[way].send(&talk.frame(way, ACK, 0));
            assert_eq!(self.receive(way, 1), [talk.left(way, 0)], "{name}: direction {way}");
            assert!(began.elapsed() < PATIENCE, "{name}: direction {way} is not handed over");
        }
    }
}

/// A connection's packets.
struct Talk {
    connection: Connection,
    /// By direction: the VLAN tags of arriving packets. Packets leave with the tags of the other direction.
    tags: [&'static [Tag]; 2],
}

impl Talk {
    fn new(protocol: u8, arrives: Tuple, leaves: Tuple, tags: &'static [Tag], egress: u16) -> Talk {
        Talk { connection: connection(protocol, arrives, leaves, egress), tags: [&[], tags] }
    }

    fn with(&self, way: usize, tuple: &Tuple, flags: u8, number: u8) -> Frame {
        frame_of(MACS[way], self.connection.protocol, tuple, flags, &[number; 18])
    }

    fn frame(&self, way: usize, flags: u8, number: u8) -> Vec<u8> {
        let arrives = &self.connection.ways[way].arrives;
        self.with(way, arrives, flags, number).tagged(self.tags[way]).bytes()
    }

    /// The packet as it leaves, in hex.
    fn left(&self, way: usize, number: u8) -> String {
        let frame = self.with(way, &self.connection.ways[way].leaves, ACK, number);
        hex(&frame.routed(FRIEND, MACS[1 - way], self.tags[1 - way]))
    }

    fn why_up(&self, way: usize) -> Reason {
        why_up(&self.connection.ways[way].arrives)
    }
}

/// Both directions are fast, in order and counted. All their packets are handed over, or none.
#[track_caller]
fn expect_fast(lines: &Lines, name: &str, talk: &Talk, id: PairId) {
    (0..2).for_each(|way| lines.warm_up(name, talk, way));
    let (counts, handed, charged) = (lines.router.bed.table.counts(id), lines.handed(), lines.charged());
    for number in 0..PACKETS {
        (0..2).for_each(|way| lines.wires[way].send(&talk.frame(way, ACK, number)));
    }
    for way in 0..2 {
        let expected: Vec<_> = (0..PACKETS).map(|number| talk.left(way, number)).collect();
        assert_eq!(lines.receive(way, PACKETS.into()), expected, "{name}: direction {way}");
    }
    let packets = u64::from(PACKETS);
    let bytes = talk.with(0, &talk.connection.ways[0].arrives, ACK, 0).payload.len() as u64;
    let counted = counts.map(|(n, b)| (n + packets, b + packets * bytes));
    assert_eq!(lines.router.bed.table.counts(id), counted, "{name}");
    assert_eq!(lines.charged(), charged, "{name}");
    let all = if lines.is_handing { 2 * packets } else { 0 };
    assert_eq!(lines.handed() - handed, all, "{name}: packets handed over");
}

/// The last packet of this direction ends both directions. Later packets go to Linux, on the same core.
#[track_caller]
fn expect_end(lines: &Lines, name: &str, talk: &Talk, id: PairId, (way, flags): (usize, u8)) {
    let table = &lines.router.bed.table;
    let (counts, handed) = (table.counts(id), lines.handed());
    assert!(!table.ended(id), "{name}");
    lines.goes_up(name, way, &talk.frame(way, flags, 1), talk.why_up(way));
    assert!(table.ended(id), "{name}");
    assert_eq!(table.was_reset(id), flags & RST != 0, "{name}");
    for way in 0..2 {
        lines.goes_up(&format!("{name}, ended"), way, &talk.frame(way, ACK, 2), talk.why_up(way));
    }
    assert_eq!(table.counts(id), counts, "{name}");
    assert_eq!(lines.handed() - handed, if lines.is_handing { 3 } else { 0 }, "{name}: packets handed over");
}

fn expect_all_cases(lines: &mut Lines, program: Program) {
    for ((name, arrives, leaves, tags, egress), n) in cases().into_iter().zip(0..) {
        for protocol in [TCP, UDP] {
            let handing = lines.is_handing;
            let name = format!("{program:?}, handing over {handing}, {name}, protocol {protocol}");
            let talk = Talk::new(protocol, arrives, leaves, tags, egress);
            let id = lines.router.bed.insert(&talk.connection);
            expect_fast(lines, &name, &talk, id);
            if protocol == TCP {
                let last = [(0, FIN | ACK), (1, FIN | ACK), (0, RST), (1, RST | ACK)];
                expect_end(lines, &name, &talk, id, last[n % 4]);
            }
            lines.router.bed.remove(id);
        }
    }
}

/// All cases, before packets are handed over and while they are.
fn expect_all_cases_of(programs: &[Program]) {
    for program in programs.iter().copied() {
        in_new_namespace(move || {
            let Some(mut lines) = Lines::new(program) else { return };
            expect_all_cases(&mut lines, program);
            lines.hand_over();
            expect_all_cases(&mut lines, program);
        });
    }
}

#[test]
#[ignore = "needs root"]
fn a_core_that_shares_a_queue_translates_as_its_home_does() {
    expect_all_cases_of(&[Program::Plain, Program::Shared, Program::Paths]);
}

#[test]
#[ignore = "needs root"]
fn a_core_that_a_rule_names_translates_as_the_receiving_core_does() {
    expect_all_cases_of(&[Program::Rules, Program::RulesAndPaths]);
}

/// The last packet is handled after data that wait for the other core, although the receiving core is idle.
#[test]
#[ignore = "needs root"]
fn fin_and_rst_do_not_overtake_data_that_wait_for_another_core() {
    for program in [Program::Plain, Program::Rules] {
        in_new_namespace(move || {
            let Some(mut lines) = Lines::new(program) else { return };
            lines.hand_over();
            let v4 = (tuple("10.0.1.9:1000", "10.0.2.9:2000"), tuple("10.0.2.1:5000", "10.0.2.9:2000"));
            let v6 = (
                tuple("[2001:db8:1::9]:1000", "[2001:db8:2::9]:2000"),
                tuple("[2001:db8:2::1]:5000", "[2001:db8:2::9]:2000"),
            );
            for (arrives, leaves) in [v4, v6] {
                let talk = Talk::new(TCP, arrives, leaves, &[], 2);
                for (way, flags) in [(0, FIN | ACK), (1, FIN | ACK), (0, RST), (1, RST | ACK)] {
                    let name = format!("{program:?}, {arrives:?}, direction {way}, flags {flags}");
                    let id = lines.router.bed.insert(&talk.connection);
                    lines.warm_up(&name, &talk, way);
                    let (before, charged) = (lines.router.bed.table.counts(id)[way].0, lines.charged());
                    hogged(lines.other.into(), || {
                        (0..PACKETS).for_each(|n| lines.wires[way].send(&talk.frame(way, ACK, n)));
                        lines.wires[way].send(&talk.frame(way, flags, PACKETS));
                        assert_eq!(lines.charged(), charged, "{name}: passed up before the data");
                        assert!(!lines.router.bed.table.ended(id), "{name}: ended before the data");
                    });
                    let expected: Vec<_> = (0..PACKETS).map(|n| talk.left(way, n)).collect();
                    assert_eq!(lines.receive(way, PACKETS.into()), expected, "{name}");
                    let began = Instant::now();
                    while !lines.router.bed.table.ended(id) {
                        assert!(began.elapsed() < PATIENCE, "{name}: not ended");
                    }
                    let counted = lines.router.bed.table.counts(id)[way].0 - before;
                    assert_eq!(counted, u64::from(PACKETS), "{name}");
                    lines.router.bed.remove(id);
                }
            }
        });
    }
}

/// The frame of a numbered packet, with correct checksums.
fn numbered(way: usize, tuple: &Tuple, number: u32) -> Frame {
    frame_of(MACS[way], UDP, tuple, 0, &[[0x5a; 14].as_slice(), &number.to_be_bytes()].concat())
}

#[test]
#[ignore = "needs root"]
fn packets_behind_a_masquerade_stay_in_order_while_their_queue_is_split_and_joined() {
    const FLOWS: u16 = 64;
    const TURNS: usize = 60;
    in_new_namespace(|| {
        let Some(mut lines) = Lines::new(Program::Plain) else { return };
        let flows: Vec<_> = (0..FLOWS)
            .map(|flow| {
                let (arrives, leaves, _) = masqueraded(UDP);
                let arrives = Tuple { source_port: 1000 + flow, ..arrives };
                let leaves = Tuple { source_port: 5000 + flow, ..leaves };
                let connection = connection(UDP, arrives, leaves, 2);
                (connection, lines.router.bed.insert(&connection))
            })
            .collect();
        let of = |number: u32| &flows[(number % u32::from(FLOWS)) as usize].0;
        let splits = lines.router.bed.w.plane.splits();
        for way in 0..2 {
            let [from, to] = [&lines.wires[way], &lines.wires[1 - way]];
            let queue = QueueId { port: way as u8, index: 0 };
            let (mut wrong, before) = (0, lines.handed());
            let came = send_while(
                (from, to),
                FLOWS,
                |number| numbered(way, &of(number).ways[way].arrives, number).bytes(),
                |number, bytes| {
                    let left = numbered(way, &of(number).ways[way].leaves, number);
                    wrong += u32::from(bytes != left.routed(FRIEND, MACS[1 - way], &[]));
                },
                || {
                    split_and_join(splits, queue, [lines.here, lines.other], TURNS, |core| {
                        splits.handed(core).packets
                    })
                },
            );
            let handed = lines.handed() - before;
            eprintln!("direction {way}: {came:?}, {handed} handed over");
            assert_eq!((came.overtaken, came.received, wrong), (0, came.sent, 0), "direction {way}");
            assert!(handed > came.sent / 10, "direction {way}: {handed} of {came:?} handed over");
            let counted = flows.iter().map(|(_, id)| lines.router.bed.table.counts(*id)[way].0);
            assert_eq!(counted.sum::<u64>(), came.sent, "direction {way}: packets counted");
        }
        assert_eq!(lines.charged(), BTreeMap::new());
    });
}

/// While a connection is void, Linux gets its packets on the same core, so they stay in order. Packets for the router itself
/// stay on the receiving core, although the router has connections.
#[test]
#[ignore = "needs root"]
fn replies_to_a_translated_address_are_handed_over_and_packets_for_the_router_are_not() {
    in_new_namespace(|| {
        let Some(mut lines) = Lines::new(Program::Plain) else { return };
        lines.hand_over();
        let (arrives, leaves, _) = masqueraded(TCP);
        let talk = Talk::new(TCP, arrives, leaves, &[], 2);
        let id = lines.router.bed.insert(&talk.connection);
        lines.warm_up("valid", &talk, 1);
        let before = lines.handed();
        let goes_up = |lines: &Lines, name: &str, frame: &Frame| {
            lines.goes_up(name, 1, &frame.bytes(), Reason::Local);
            lines.handed() - before
        };
        let answer = talk.with(1, &talk.connection.ways[1].arrives, ACK, 3);
        let other = Tuple { destination_port: 5001, ..talk.connection.ways[1].arrives };
        assert_eq!(goes_up(&lines, "another port", &talk.with(1, &other, ACK, 3)), 0);
        let fragment = answer.clone().ip4(|ip| ip[6] = 0x20);
        assert_eq!(goes_up(&lines, "fragment", &fragment), 0);
        lines.router.bed.rules(8);
        assert_eq!(goes_up(&lines, "new rules", &answer), 1);
        assert_eq!(goes_up(&lines, "FIN under new rules", &talk.with(1, &back(leaves), FIN | ACK, 3)), 2);
        assert!(lines.router.bed.table.ended(id));
        lines.router.bed.remove(id);
        assert_eq!(goes_up(&lines, "removed", &answer), 2);
    });
}
