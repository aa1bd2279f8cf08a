//! Connections that bypass the rules of a firewall, in routers that also have flow rules, paths or shares.

use super::{
    common::{end_batch, frame::Frame, in_new_namespace, only_on},
    connections::*,
    out, up,
    world::*,
};
use logic::{
    firewall::traffic::Tuple,
    flow::{
        Action, Field, FlowCommand, FlowMod, Instructions, Match, RulePort,
        flows::Flows,
        kernel::{FlowCapacity, Seed},
        table::Dialect,
    },
    net::Tag,
    paths::{
        class::Class,
        rows::{Otherwise, PathClass},
    },
    plan::Op,
    reason::Reason,
    share::Grant,
    tables::connections::{Connection, OneWay, PairId},
};
use router::plane::{
    Charge, FlowMaps, FlowPlane, FlowSettings, Grace, MappedFlows, PathMaps, TestRun,
    connections::CONNECTION_NOTES,
};
use std::{net::IpAddr, sync::Arc, time::Duration};

pub const CAPACITY: FlowCapacity = FlowCapacity {
    rules: 64,
    buckets: 64,
    rest: 64,
    patches: 64,
    steps: 64,
    groups: 16,
    meters: 16,
    cache_sets: 64,
    port_sets: 16,
};
/// Packets of the world's port 0 come in by this port of flow rules, and those of port 1 by the next.
const PORTS: [RulePort; 2] = [RulePort(1), RulePort(2)];

/// The program with flow rules, and the rules. Packets that no rule matches go NORMAL.
pub struct Rules {
    pub plane: FlowPlane,
    pub tables: Flows<Arc<MappedFlows>>,
    grace: Grace,
}

impl Rules {
    fn new(w: &World) -> Rules {
        let seed = Seed::new([3, 5, 7, 11, 13]);
        let settings = FlowSettings { capacity: CAPACITY, seed };
        let maps = Arc::new(FlowMaps::new(settings).unwrap());
        let plane = FlowPlane::load(&w.plane, &maps).unwrap_or_else(|e| panic!("{e:#}"));
        let normal = Instructions::apply([Action::output(RulePort::NORMAL)]);
        let mut tables = Flows::new(maps.memory().clone(), seed, &normal);
        tables.set_ports(PORTS.map(|port| (port, true)));
        let ports = PORTS.into_iter().zip(w.port.map(|ifindex| (ifindex, true)));
        maps.memory().set_ports(ports.collect()).unwrap();
        Rules { plane, tables, grace: Grace::new().unwrap() }
    }

    fn change(&mut self, command: FlowCommand, matching: Match, instructions: Instructions) {
        let request = FlowMod::new(command, 9, matching, instructions);
        self.tables.apply(&request, Dialect::OpenFlow13, 0).unwrap();
        assert!(end_batch(&mut self.tables, &mut self.grace));
    }

    fn add(&mut self, matching: Match, actions: impl Into<Vec<Action>>) {
        self.change(FlowCommand::Add, matching, Instructions::apply(actions));
    }

    fn clear(&mut self) {
        self.change(FlowCommand::Delete { strict: false }, Match::ANY, Instructions::default());
    }
}

/// The programs, each with what it knows besides routes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Program {
    Plain,
    Shared,
    Paths,
    Rules,
    RulesAndPaths,
}

const PROGRAMS: [Program; 5] =
    [Program::Plain, Program::Shared, Program::Paths, Program::Rules, Program::RulesAndPaths];

/// A router with connections, by one of the programs.
pub struct Router {
    pub bed: Bed,
    paths: Option<Arc<PathMaps>>,
    pub rules: Option<Rules>,
}

impl Router {
    pub fn new(program: Program) -> Router {
        // Flow rules keep their notes on a packet per CPU.
        only_on([rustix::thread::sched_getcpu()]);
        let mut bed = Bed::new();
        bed.w.plane.set_shared(program == Program::Shared);
        let mut router = Router { bed, paths: None, rules: None };
        if matches!(program, Program::Paths | Program::RulesAndPaths) {
            let maps = Arc::new(PathMaps::new(1792).unwrap());
            router.bed.w.plane.set_paths(&maps).unwrap_or_else(|e| panic!("{e:#}"));
            router.bed.w.plane.set_with_paths(true);
            router.paths = Some(maps);
            // So the program looks at each packet, but takes none of these.
            router.classes(Class { protocol: Some(132), ..Class::default() }, Otherwise::Drop);
        }
        if matches!(program, Program::Rules | Program::RulesAndPaths) {
            router.rules = Some(Rules::new(&router.bed.w));
            // So the program looks for rules.
            router.rule(ipv4(132), [Action::output(PORTS[1])]);
        }
        router
    }

    fn classes(&self, class: Class, otherwise: Otherwise) {
        let class = PathClass { path: 3, class, otherwise };
        self.paths.as_ref().unwrap().set_classes(&[class], &[(0, 0), (1, 1)].into()).unwrap();
    }

    pub fn rule(&mut self, matching: Match, actions: impl Into<Vec<Action>>) {
        self.rules.as_mut().unwrap().add(matching, actions);
    }

    fn run(&mut self, port: usize, frame: &Frame) -> TestRun {
        let (ifindex, bytes) = (self.bed.w.port[port], frame.bytes());
        match &mut self.rules {
            Some(rules) => rules.plane.run(ifindex, &bytes).unwrap(),
            None => self.bed.w.plane.run(ifindex, &bytes).unwrap(),
        }
    }

    #[track_caller]
    fn expect(&mut self, name: &str, port: usize, frame: &Frame, expected: Expect) {
        let (ifindex, bytes) = (self.bed.w.port[port], frame.bytes());
        let rules = &mut self.rules;
        let outcome = self.bed.w.outcome_of(|plane| match rules {
            Some(rules) => rules.plane.run(ifindex, &bytes).unwrap(),
            None => plane.run(ifindex, &bytes).unwrap(),
        });
        outcome.assert(name, &bytes, expected);
    }

    /// Both directions of a connection are fast: bytes, the interface, and the connection's own counters.
    #[track_caller]
    fn expect_fast(&mut self, name: &str, c: &Connection, id: PairId, tags: &[Tag]) {
        let [there_way, back_way] = c.ways;
        let packet = there(c.protocol, &there_way.arrives);
        let answer = reply(c.protocol, &back_way.arrives, tags);
        let before = self.bed.table.counts(id);
        let left = there(c.protocol, &there_way.leaves).routed(FRIEND, B, tags);
        self.expect(name, 0, &packet, out(there_way.egress, left));
        let left = reply(c.protocol, &back_way.leaves, &[]).routed(FRIEND, A, &[]);
        self.expect(&format!("{name}, reply"), 1, &answer, out(1, left));
        let bytes = packet.payload.len() as u64;
        assert_eq!(self.bed.table.counts(id), before.map(|(n, b)| (n + 1, b + bytes)), "{name}");
    }
}

fn ipv4(protocol: u8) -> Match {
    Match::ANY.with(Field::EthType, 0x0800_u16).with(Field::IpProto, protocol)
}

/// Matches UDP of IPv4 with the addresses and ports of this tuple.
fn exactly(tuple: &Tuple) -> Match {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(_) => panic!("{address}"),
    };
    ipv4(UDP)
        .with(Field::Ipv4Src, bits(tuple.source))
        .with(Field::Ipv4Dst, bits(tuple.destination))
        .with(Field::UdpSrc, tuple.source_port)
        .with(Field::UdpDst, tuple.destination_port)
}

fn class_of(tuple: &Tuple) -> Class {
    Class { protocol: Some(UDP), destination_port: Some(tuple.destination_port), ..Class::default() }
}

fn goes_up(tuple: &Tuple) -> Expect {
    up(why_up(tuple))
}

#[test]
#[ignore = "needs root"]
fn every_program_translates_packets_of_connections_and_only_these() {
    for program in PROGRAMS {
        in_new_namespace(move || {
            let mut router = Router::new(program);
            for (name, arrives, leaves, tags, egress) in cases() {
                for protocol in [TCP, UDP] {
                    let name = format!("{program:?}, {name}, protocol {protocol}");
                    let c = connection(protocol, arrives, leaves, egress);
                    let back_way = c.ways[1];
                    let other = Tuple { source_port: 1777, ..arrives };
                    router.expect(&name, 0, &there(protocol, &arrives), goes_up(&arrives));
                    let id = router.bed.insert(&c);
                    router.expect_fast(&name, &c, id, tags);
                    router.expect(&name, 0, &there(protocol, &other), goes_up(&other));
                    if protocol == TCP {
                        let fin = frame_of(A, TCP, &arrives, FIN | ACK, b"x");
                        router.expect(&format!("{name}, FIN"), 0, &fin, goes_up(&arrives));
                        assert!(router.bed.table.ended(id), "{name}");
                        let answer = reply(TCP, &back_way.arrives, tags);
                        router.expect(&format!("{name}, after FIN"), 1, &answer, goes_up(&back_way.arrives));
                    }
                    router.bed.remove(id);
                    router.expect(&name, 0, &there(protocol, &arrives), goes_up(&arrives));
                }
            }
        });
    }
}

/// Every program notes connections that Linux forwards, up to [`CONNECTION_NOTES`].
#[test]
#[ignore = "needs root"]
fn every_program_notes_connections() {
    for program in PROGRAMS {
        in_new_namespace(move || {
            let mut router = Router::new(program);
            let (arrives, ..) = masqueraded(UDP);
            for _ in 0..8 {
                router.expect(&format!("{program:?}"), 0, &there(UDP, &arrives), up(Reason::Rules));
            }
            let notes = router.bed.notes();
            assert!(
                notes.len() == 1 && notes[0].tuple == arrives && notes[0].egress == 2,
                "{program:?}: {notes:?}"
            );
            for round in 1..=2 {
                router.bed.connections.begin_again(|_| false);
                for n in 0..CONNECTION_NOTES as u16 + 4 {
                    let packet = there(UDP, &Tuple { source_port: 1000 * round + n, ..arrives });
                    (0..8).for_each(|_| drop(router.run(0, &packet)));
                }
                assert_eq!(router.bed.notes().len() as u64, CONNECTION_NOTES, "{program:?}, round {round}");
            }
        });
    }
}

/// A rule decides about a packet as it arrives, as if a switch stood before the router. What it does not send
/// NORMAL never reaches the router, and its connection does not count it.
#[test]
#[ignore = "needs root"]
fn flow_rules_come_before_connections() {
    for program in [Program::Rules, Program::RulesAndPaths] {
        in_new_namespace(move || {
            let mut router = Router::new(program);
            let (arrives, leaves, c) = masqueraded(UDP);
            let id = router.bed.insert(&c);
            let packet = there(UDP, &arrives);
            let none = |reason| Expect::Drop(Charge::Port(0), reason);
            let counted = |router: &Router| router.bed.table.counts(id).map(|(packets, _)| packets);

            router.expect_fast("no rule", &c, id, &[]);
            router.rule(exactly(&leaves), []);
            router.expect_fast("a rule about the packet as it leaves", &c, id, &[]);
            let before = counted(&router);
            router.rule(exactly(&arrives), []);
            router.expect("drop", 0, &packet, none(Reason::RuleDrop));
            assert_eq!(counted(&router), before);
            let answer = reply(UDP, &back(leaves), &[]);
            let left = reply(UDP, &back(arrives), &[]).routed(FRIEND, A, &[]);
            router.expect("the reply of a connection that a rule drops", 1, &answer, out(1, left));

            router.rule(exactly(&arrives), [Action::output(RulePort::LOCAL)]);
            router.expect("LOCAL", 0, &packet, Expect::Up(Charge::Port(0), Reason::RuleLocal));
            router.rule(exactly(&arrives), [Action::output(PORTS[1])]);
            let (ifindex, bytes) = (router.bed.w.port[0], packet.bytes());
            let sent = router.rules.as_mut().unwrap().plane.run(ifindex, &bytes).unwrap();
            assert_eq!((sent.action, hex(&sent.frame)), (XDP_REDIRECT, hex(&bytes)), "sent to a port");
            assert_eq!(counted(&router), [before[0], before[1] + 1]);

            // The router sees what the rule has written: the packet is of another connection, and of a third.
            let rewritten = Tuple { destination_port: 2001, ..arrives };
            let write = [Action::set(Field::UdpDst, 2001_u16), Action::output(RulePort::NORMAL)];
            router.rule(exactly(&arrives), write.clone());
            let seen = up_as(&mut router, &packet);
            assert_eq!(
                seen,
                hex(&there(UDP, &rewritten).bytes()),
                "Linux gets the packet as the rule made it"
            );
            let other = Tuple { destination_port: 2001, ..leaves };
            let second = router.bed.insert(&connection(UDP, rewritten, other, 2));
            let left = there(UDP, &other).routed(FRIEND, B, &[]);
            router.expect("written by a rule, then translated", 0, &packet, out(2, left));
            assert_eq!(router.bed.table.counts(second)[0].0, 1);
            assert_eq!(counted(&router)[0], before[0]);
        });
    }
}

/// Runs a packet that goes to Linux, and returns its bytes.
fn up_as(router: &mut Router, frame: &Frame) -> String {
    let ifindex = router.bed.w.port[0];
    let got = router.rules.as_mut().unwrap().plane.run(ifindex, &frame.bytes()).unwrap();
    assert_eq!(got.action, XDP_PASS);
    hex(&got.frame)
}

/// A FIN that a rule drops never reaches Linux, so its connection does not end.
#[test]
#[ignore = "needs root"]
fn only_what_the_router_gets_ends_a_connection() {
    in_new_namespace(|| {
        let mut router = Router::new(Program::Rules);
        let (arrives, _, c) = masqueraded(TCP);
        let id = router.bed.insert(&c);
        let fin = frame_of(A, TCP, &arrives, FIN | ACK, b"x");
        router.rule(ipv4(TCP), []);
        router.expect("FIN, dropped", 0, &fin, Expect::Drop(Charge::Port(0), Reason::RuleDrop));
        assert!(!router.bed.table.ended(id));
        router.rules.as_mut().unwrap().clear();
        router.expect_fast("the rule is gone", &c, id, &[]);
        router.expect("FIN", 0, &fin, up(Reason::Rules));
        assert!(router.bed.table.ended(id));
    });
}

/// Past their deadline, rules decide nothing. The connection has a deadline of its own, but Linux gets its packets.
#[test]
#[ignore = "needs root"]
fn connections_are_not_fast_where_the_mirror_is_not_confirmed() {
    for program in PROGRAMS {
        in_new_namespace(move || {
            let mut router = Router::new(program);
            let (arrives, _, c) = masqueraded(UDP);
            let id = router.bed.insert(&c);
            router.bed.w.plane.confirm_until(Duration::ZERO).unwrap();
            let up = Expect::Up(Charge::Port(0), Reason::Fallback);
            router.expect(&format!("{program:?}"), 0, &there(UDP, &arrives), up);
            router.bed.w.plane.confirm_until(Duration::from_secs(1 << 32)).unwrap();
            router.expect_fast(&format!("{program:?}, confirmed"), &c, id, &[]);
        });
    }
}

/// A path takes a packet as it arrives. Without a worker, the packet is routed or dropped as its path says.
#[test]
#[ignore = "needs root"]
fn paths_come_before_connections() {
    for program in [Program::Paths, Program::RulesAndPaths] {
        in_new_namespace(move || {
            let mut router = Router::new(program);
            let (arrives, leaves, c) = masqueraded(UDP);
            let id = router.bed.insert(&c);
            router.expect_fast("no class fits", &c, id, &[]);
            router.classes(class_of(&arrives), Otherwise::Up);
            router.expect_fast("no worker, so it is routed", &c, id, &[]);
            assert_eq!(router.paths.as_ref().unwrap().counts()[3].up.iter().sum::<u64>(), 1);
            let before = router.bed.table.counts(id);
            router.classes(class_of(&arrives), Otherwise::Drop);
            let dropped = Expect::Drop(Charge::Router(0), Reason::PathNoWorker);
            router.expect("no worker, so it is dropped", 0, &there(UDP, &arrives), dropped);
            assert_eq!(router.bed.table.counts(id), before);
            // Only the other direction has no class.
            let left = reply(UDP, &back(arrives), &[]).routed(FRIEND, A, &[]);
            router.expect("its reply", 1, &reply(UDP, &back(leaves), &[]), out(1, left));
        });
    }
}

/// A packet that is cut by a share is lost before its connection counts it. Replies to an address of the router do not
/// count as the router's own traffic if NAT forwards them. FIN is of the same kind as the data before it.
#[test]
#[ignore = "needs root"]
fn shares_cut_packets_of_connections() {
    for program in [Program::Shared, Program::Paths, Program::Rules, Program::RulesAndPaths] {
        in_new_namespace(move || {
            let mut router = Router::new(program);
            let cpu = rustix::thread::sched_getcpu() as u16;
            router.bed.w.plane.shares().in_force(Duration::from_secs(60)).unwrap();
            let (arrives, leaves, c) = masqueraded(TCP);
            let id = router.bed.insert(&c);
            let (packet, answer) = (there(TCP, &arrives), reply(TCP, &back(leaves), &[]));
            let fin = frame_of(B, TCP, &back(leaves), FIN | ACK, b"x");
            let own = reply(TCP, &Tuple { destination_port: 5001, ..back(leaves) }, &[]);
            let cut = Expect::Drop(Charge::Router(0), Reason::OverShare);
            let shares = |router: &Router, admit, own_admit| {
                router.bed.w.plane.shares().set(cpu, 0, Grant { admit, own_admit });
            };
            router.expect_fast(&format!("{program:?}, within its share"), &c, id, &[]);
            let before = router.bed.table.counts(id);
            shares(&router, 1, 0);
            router.expect(&format!("{program:?}, over its share"), 0, &packet, cut.clone());
            router.expect(&format!("{program:?}, reply over its share"), 1, &answer, cut.clone());
            router.expect(&format!("{program:?}, FIN over its share"), 1, &fin, cut.clone());
            router.expect(&format!("{program:?}, for the router"), 1, &own, up(Reason::Local));
            assert_eq!(router.bed.table.counts(id), before);
            assert!(!router.bed.table.ended(id));
            shares(&router, 0, 1);
            router.expect(&format!("{program:?}, for the router, over its share"), 1, &own, cut);
            router.expect_fast(&format!("{program:?}, not for the router"), &c, id, &[]);
            assert_eq!(router.bed.w.plane.shares().taken(cpu, 0).own_cut, 1, "{program:?}");
            shares(&router, 0, 0);
            router.expect_fast(&format!("{program:?}, within its share again"), &c, id, &[]);
        });
    }
}

/// Two tenants have the same addresses and ports, and a masquerade each. Each gets only its own packets.
#[test]
#[ignore = "needs root"]
fn connections_of_routers_with_the_same_addresses_do_not_meet() {
    for program in PROGRAMS {
        in_new_namespace(move || {
            let mut router = Router::new(program);
            // Router 1 has the addresses of router 0.
            router.bed.w.apply([
                route4(1, "10.0.1.0/24", onlink(5)),
                route4(1, "10.0.2.0/24", onlink(6)),
                neighbour(5, "10.0.1.9", GATEWAY),
                neighbour(6, "10.0.2.9", OTHER),
                Op::LocalAddresses { router: 1, addresses: addresses(&["10.0.1.1", "10.0.2.1"]) },
            ]);
            let linux = Some(Arc::new(logic::plan::PairTable::default()));
            router.bed.w.apply([Op::Rules { router: 1, tables: [linux.clone(), linux], generation: 7 }]);
            for protocol in [TCP, UDP] {
                let (arrives, leaves, c) = masqueraded(protocol);
                let way = |way: OneWay, ingress, egress| OneWay { ingress, egress, ..way };
                let [there_way, back_way] = c.ways;
                let theirs = Connection { router: 1, ways: [way(there_way, 5, 6), way(back_way, 6, 5)], ..c };
                let of = |mac, tuple: &Tuple| frame_of(mac, protocol, tuple, ACK, &[9; 20]);
                let name = format!("{program:?}, protocol {protocol}");
                let mine = [
                    (0, of(A, &arrives), out(2, of(A, &leaves).routed(FRIEND, B, &[]))),
                    (1, of(B, &back(leaves)), out(1, of(B, &back(arrives)).routed(FRIEND, A, &[]))),
                ];
                let other = [
                    (0, of(V, &arrives), out(6, of(V, &leaves).routed(OTHER, W, &[]))),
                    (1, of(W, &back(leaves)), out(5, of(W, &back(arrives)).routed(GATEWAY, V, &[]))),
                ];
                let id = router.bed.insert(&c);
                mine.iter().for_each(|(port, frame, fast)| router.expect(&name, *port, frame, fast.clone()));
                for (port, frame, _) in &other {
                    let outcome = run(&mut router, *port, frame);
                    assert_eq!(outcome.action, XDP_PASS, "{name}: the other tenant's row is not there yet");
                }
                let their_id = router.bed.insert(&theirs);
                for (port, frame, fast) in mine.iter().chain(&other) {
                    router.expect(&name, *port, frame, fast.clone());
                }
                assert_eq!(router.bed.table.counts(id).map(|(packets, _)| packets), [2, 2], "{name}");
                assert_eq!(router.bed.table.counts(their_id).map(|(packets, _)| packets), [1, 1], "{name}");
                // One tenant's connection ends.
                if protocol == TCP {
                    run(&mut router, 0, &frame_of(V, TCP, &arrives, FIN | ACK, b"x"));
                    assert!(router.bed.table.ended(their_id) && !router.bed.table.ended(id), "{name}");
                }
                router.bed.remove(their_id);
                mine.iter().for_each(|(port, frame, fast)| router.expect(&name, *port, frame, fast.clone()));
                router.bed.remove(id);
            }
        });
    }
}

fn run(router: &mut Router, port: usize, frame: &Frame) -> Outcome {
    let (ifindex, bytes) = (router.bed.w.port[port], frame.bytes());
    let rules = &mut router.rules;
    router.bed.w.outcome_of(|plane| match rules {
        Some(rules) => rules.plane.run(ifindex, &bytes).unwrap(),
        None => plane.run(ifindex, &bytes).unwrap(),
    })
}

/// A scan and a flood begin connections, and no packet of theirs makes the daemon ask Linux.
#[test]
#[ignore = "needs root"]
fn scans_and_floods_are_not_noted() {
    in_new_namespace(|| {
        let mut router = Router::new(Program::Plain);
        let port = router.bed.w.port[0];
        let mut send = |frame: Frame| drop(router.bed.w.plane.run(port, &frame.bytes()).unwrap());
        for n in 0..20_000_u16 {
            // SYNs to all ports of a host, SYNs of one connection, and a datagram to each port of each host.
            send(frame_of(A, TCP, &tuple("10.0.1.9:1000", &format!("10.0.2.9:{n}")), SYN, b""));
            send(frame_of(A, TCP, &tuple(&format!("10.0.1.{}:80", n % 250), "10.0.2.9:80"), SYN, b""));
            send(there(UDP, &tuple("10.0.1.9:1000", &format!("10.0.2.9:{n}"))));
        }
        // The answers of a host without these ports
        for n in 0..5_000_u16 {
            send(frame_of(A, TCP, &tuple(&format!("10.0.1.9:{n}"), "10.0.2.9:1000"), 4 | ACK, b""));
        }
        assert_eq!(router.bed.notes(), []);
    });
}
