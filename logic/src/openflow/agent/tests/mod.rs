//! | file | tests |
//! |---|---|
//! | this file | a switch with connections for the tests |
//! | `hello` | hello, echo, broken messages |
//! | `answers` | each request and its answer, in both versions |
//! | `conformance` | every field, action, instruction, group and band of 1.3.5: done, or refused with its error |
//! | `barriers` | batches, barriers, notices of rules that ended |
//! | `replies` | long replies in pieces, peers that do not read |
//! | `packets` | packet-in and packet-out |
//! | `paths` | paths of the user plane as logical ports |
//! | `roles` | roles, asynchronous settings, fail modes |
//! | `machine` | cores and workloads, and their subscribers |
//! | `core_table` | flow-mods for the core table, from controllers and through another switch |
//! | `random` | random bytes in random pieces |

mod answers;
mod barriers;
mod conformance;
mod core_table;
mod hello;
mod machine;
mod packets;
mod paths;
mod random;
mod replies;
mod roles;

use super::*;
use crate::{
    cores::Role as CoreRole,
    flow::{
        FlowCommand, FlowFlags,
        kernel::{FlowCapacity, HeapFlows, Seed},
        text::parse_flow,
    },
    net::Mac,
    openflow::{
        Message,
        message::{ErrorMessage, PortConfig, StatsReply, StatsRequest},
        v10, v13,
        wire::{Split, split},
    },
};
use Version::{OpenFlow10, OpenFlow13};

const CAPACITY: FlowCapacity = FlowCapacity {
    rules: 256,
    buckets: 256,
    rest: 64,
    patches: 8,
    steps: 64,
    groups: 4,
    meters: 4,
    cache_sets: 8,
    port_sets: 8,
};

const ECHO_MS: u64 = 15_000;

/// What the switch did.
#[allow(clippy::large_enum_variant, reason = "there are few of them")]
#[derive(Clone, Debug, PartialEq)]
enum Did {
    /// Connection, transaction id, message.
    Said(u32, u32, Message),
    Closed(u32, String),
    Other(Effect),
}
use Did::*;

fn settings() -> Settings {
    Settings {
        versions: vec![OpenFlow10, OpenFlow13],
        datapath_id: 0x42,
        max_rules: 1000,
        description: Description { manufacturer: b"Millrace".to_vec(), ..Description::default() },
        miss: Instructions::apply([Action::output(RulePort::NORMAL)]),
        fail: FailMode::Secure,
        controllers: false,
        echo_interval_ms: ECHO_MS,
        packet_in_pps: 1000,
        proxy_ports: BTreeSet::new(),
    }
}

/// Counters of the caller. Those of port n are n.
struct Counters;

impl Outside for Counters {
    fn port_stats(&self) -> Vec<PortStats> {
        (1..=4).chain([65024, 65025]).map(port_stats).collect()
    }
    fn core_stats(&self) -> Vec<CoreStats> {
        [0, 3].map(core_stats).to_vec()
    }
}

fn core_stats(number: u16) -> CoreStats {
    let packets = u64::from(number) + 10;
    let role = Some(CoreRole::Both);
    CoreStats { number, load: Some(500), role, workloads: 1, packets, dropped: 2, flows: 3, first: 1 }
}

fn port_stats(n: u16) -> PortStats {
    let c = u64::from(n);
    PortStats {
        port: RulePort(n),
        rx_packets: c,
        tx_packets: c,
        rx_bytes: c,
        tx_bytes: c,
        rx_dropped: c,
        tx_dropped: c,
        rx_errors: c,
        tx_errors: c,
        rx_frame_errors: c,
        rx_over_errors: c,
        rx_crc_errors: c,
        collisions: c,
        duration_sec: 0,
        duration_nsec: 0,
    }
}

fn port(n: u16) -> PortInfo {
    PortInfo {
        port: RulePort(n),
        name: format!("p{n}"),
        mac: Mac([2, 0, 0, 0, 0, n as u8]),
        link_up: true,
        admin_up: true,
        transmits: true,
        speed_mbps: Some(10_000),
    }
}

/// A switch with ports 1 to 3.
struct Bench {
    agent: Agent<HeapFlows>,
    now_ms: u64,
    /// Connections read what is sent to them.
    reads: bool,
    version: BTreeMap<u32, Version>,
}

fn bench(settings: Settings) -> Bench {
    sized(settings, CAPACITY)
}

fn sized(settings: Settings, capacity: FlowCapacity) -> Bench {
    let flows = Flows::new(HeapFlows::new(capacity, 4), Seed::default(), &settings.miss);
    let mut agent = Agent::new(flows, settings);
    agent.set_ports((1..=3).map(port).collect());
    let mut bench = Bench { agent, now_ms: 1_000, reads: true, version: BTreeMap::new() };
    bench.settle();
    assert_eq!(bench.done(), []);
    bench
}

impl Bench {
    /// Opens a connection that has not said anything. The switch's own hello is taken.
    fn connect(&mut self, n: u32, controller: bool) {
        self.agent.connected(ConnectionId(n), "peer", controller, self.now_ms);
        let effects = self.agent.take_effects();
        let read = Effect::Read(ConnectionId(n));
        let [Effect::Send { bytes, .. }, last] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(*last, read);
        self.agent.written(ConnectionId(n), bytes.len(), self.now_ms, &Counters);
    }

    /// Opens a connection and says hello.
    fn open(&mut self, n: u32, version: Version) {
        self.connect(n, true);
        self.version.insert(n, version);
        self.say(n, 0, &Message::Hello { versions: None });
        assert_eq!(self.done(), []);
    }

    fn bytes(&mut self, n: u32, bytes: &[u8]) {
        self.agent.received(ConnectionId(n), bytes, self.now_ms, &Counters);
    }

    /// The bytes sent since the last call, as they are on the wire. Nothing else was done. The connection reads
    /// them.
    #[track_caller]
    fn sent(&mut self, n: u32) -> Vec<u8> {
        let mut all = Vec::new();
        for effect in self.agent.take_effects() {
            match effect {
                Effect::Send { connection: ConnectionId(to), bytes } if to == n => all.extend(bytes),
                Effect::Read(_) => {}
                other => panic!("{other:?}"),
            }
        }
        self.agent.written(ConnectionId(n), all.len(), self.now_ms, &Counters);
        all
    }

    fn say(&mut self, n: u32, xid: u32, message: &Message) {
        let bytes = encoded(self.version[&n], xid, message);
        self.bytes(n, &bytes);
    }

    /// What was done since the last call, except reading.
    fn done(&mut self) -> Vec<Did> {
        let mut did = Vec::new();
        loop {
            let effects = self.agent.take_effects();
            if effects.is_empty() {
                return did;
            }
            for effect in effects {
                match effect {
                    Effect::Send { connection, bytes } => {
                        did.extend(messages(&bytes).map(|(xid, message)| Said(connection.0, xid, message)));
                        if self.reads {
                            self.agent.written(connection, bytes.len(), self.now_ms, &Counters);
                        }
                    }
                    Effect::Close { connection, why } => did.push(Closed(connection.0, why)),
                    Effect::Read(_) => {}
                    other => did.push(Other(other)),
                }
            }
        }
    }

    /// Runs a batch from beginning to end. Returns false if there was none.
    fn settle(&mut self) -> bool {
        let sealed = self.agent.seal();
        if sealed {
            self.agent.void();
            self.agent.finish(self.now_ms, &Counters);
        }
        sealed
    }

    fn report(&self, n: u32) -> ConnectionReport {
        self.agent.report().into_iter().find(|report| report.connection.0 == n).unwrap()
    }

    fn rules(&mut self) -> usize {
        self.agent.flows().tables().ids().count()
    }
}

/// Splits bytes into whole messages.
fn messages(bytes: &[u8]) -> impl Iterator<Item = (u32, Message)> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let Split::Message(header, message) = split(rest) else {
            assert!(rest.is_empty());
            return None;
        };
        rest = &rest[message.len()..];
        let decoded = if header.version == 1 { v10::decode(message) } else { v13::decode(message) };
        Some((header.xid, decoded.unwrap().1))
    })
}

#[track_caller]
fn encoded(version: Version, xid: u32, message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    version.encode(message, xid, &mut bytes).unwrap();
    bytes
}

/// A message of any type and body.
fn raw(version: Version, kind: u8, xid: u32, body: &str) -> Vec<u8> {
    let digits: Vec<u32> = body.chars().filter_map(|c| c.to_digit(16)).collect();
    let body: Vec<u8> = digits.chunks(2).map(|two| (two[0] << 4 | two[1]) as u8).collect();
    let mut bytes = vec![version.number(), kind];
    bytes.extend((8 + body.len() as u16).to_be_bytes());
    bytes.extend(xid.to_be_bytes());
    bytes.extend(body);
    bytes
}

/// The error that answers `offending`.
fn error(kind: u16, code: u16, offending: &[u8]) -> Message {
    let data = offending[..offending.len().min(64)].to_vec();
    Message::Error(ErrorMessage { kind, code, data })
}

fn flow_mod(command: FlowCommand, text: &str) -> FlowMod {
    // A modify of OpenFlow 1.0 may add a rule, so it may have words that the text syntax refuses.
    let flow = parse_flow(text, command).or_else(|_| parse_flow(text, FlowCommand::Add)).unwrap();
    let reset_counts = command == FlowCommand::Add;
    FlowMod { command, flags: FlowFlags { reset_counts, ..flow.flags }, ..flow }
}

fn add(text: &str) -> Message {
    Message::FlowMod(flow_mod(FlowCommand::Add, text))
}

fn delete(text: &str) -> Message {
    Message::FlowMod(flow_mod(FlowCommand::Delete { strict: false }, text))
}
