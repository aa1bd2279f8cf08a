//! A switch with three connections. The input is a list of events: a byte that selects the event, and its parameters.
//!
//! | byte % 16 | what happens |
//! |---|---|
//! | 0 to 3 | a connection sends an OpenFlow message: which connection, the number of pieces, then the message |
//! | 4 | a connection reads so many KiB of what it was sent |
//! | 5 | a connection ends, and another takes its place |
//! | 6 | so many seconds pass |
//! | 7, 8, 9 | a batch is sealed, void, finished |
//! | 10 | the kernel plane hands over a frame: row, reason, length, then the frame |
//! | 11 | the ports change: which exist, which are up |
//! | 12 | the load of the only core changes |
//! | 13 | so many workloads of a tenant run |
//! | 14 | an OpenFlow message arrives through another switch |
//! | 15 | a frame looks up rules, and its result is cached as late as possible: length, then the frame |
//!
//! The target checks that only whole messages are sent, that answers come in the order of the requests, and that everything
//! is bounded. When all batches are over, every barrier has its answer, and the program finds what the tables say.

use super::rules::{flows, look, run};
use logic::{
    flow::{
        Action, Instructions, RulePort,
        kernel::{HeapFlows, Notice, NoticeReason, answer::Looked},
        pipeline::MOST_OUTPUTS,
    },
    net::Mac,
    openflow::{
        Message,
        agent::{
            Agent, ConnectionId, Effect, FailMode, Outside, PortInfo, Settings, UNREAD, UNSENT, Version,
        },
        extension::{Core, CoreStats, Cores, Features, PROXY_ETHER_TYPE, Workload},
        message::{Description, PortStats},
        v10, v13,
        wire::{HEADER, Split, split},
    },
};
use std::{collections::VecDeque, mem};

/// The most events of an input.
const MOST_EVENTS: usize = 256;
/// Rounds of reading and batches after which no peer may wait. Each message of an input may be a barrier.
const ROUNDS: usize = 2 * MOST_EVENTS;
/// The most frames that have looked up rules and not cached the result yet.
const MOST_LOOKED: usize = 16;

struct Nothing;

impl Outside for Nothing {
    fn port_stats(&self) -> Vec<PortStats> {
        Vec::new()
    }
    fn core_stats(&self) -> Vec<CoreStats> {
        Vec::new()
    }
}

#[derive(Default)]
struct Peer {
    id: u32,
    /// Sent, but not yet received by the switch.
    bytes: VecDeque<u8>,
    asked: bool,
    unread: usize,
    /// Received by the switch; not a whole message yet.
    came: Vec<u8>,
    /// Transaction ids of requests that may still be answered, and of the messages inside them.
    xids: VecDeque<u32>,
    /// Barriers without an answer or an error.
    barriers: i32,
}

/// Version, type and length of a barrier request.
fn is_barrier(message: &[u8]) -> bool {
    matches!(message, [1, 18, 0, 8, ..] | [4, 20, 0, 8, ..])
}

impl Peer {
    /// The peer reads bytes: whole messages, in the order of the requests that they answer.
    fn reads(&mut self, mut bytes: &[u8]) {
        assert!(!bytes.is_empty());
        self.unread += bytes.len();
        while !bytes.is_empty() {
            let Split::Message(header, message) = split(bytes) else { panic!("no message: {bytes:02x?}") };
            let decode = if header.version == v10::VERSION { v10::decode } else { v13::decode };
            match decode(message) {
                Ok((_, Message::BarrierReply)) => self.barriers -= 1,
                Ok((_, Message::Error(error))) if is_barrier(&error.data) => self.barriers -= 1,
                Ok(_) => {}
                Err(bad) => panic!("{bad:?}: {message:02x?}"),
            }
            bytes = &bytes[message.len()..];
            // A message that answers no request has the id 0.
            if header.xid != 0 {
                let at = self.xids.iter().position(|&xid| xid == header.xid);
                drop(self.xids.drain(..at.expect("an answer out of order")));
            }
        }
    }
}

struct World {
    agent: Agent<HeapFlows>,
    peers: [Peer; 3],
    ids: u32,
    now_ms: u64,
    /// `Some`: a batch is in progress; true: its first grace period is over.
    batch: Option<bool>,
    looked: Vec<Looked>,
    frames: Vec<Vec<u8>>,
}

/// The rest of the input. Bytes past its end are 0.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn take(&mut self, bytes: usize) -> &'a [u8] {
        self.0.split_off(..bytes.min(self.0.len())).unwrap_or_default()
    }

    /// A message, as long as its header says.
    fn message(&mut self) -> &'a [u8] {
        let length = self.0.get(2..4).map_or(0, |two| usize::from(two[0]) << 8 | usize::from(two[1]));
        self.take(length.max(HEADER))
    }
}

pub fn agent(bytes: &[u8]) {
    let mut world = World::new();
    let mut input = Input(bytes);
    for _ in 0..MOST_EVENTS {
        if input.0.is_empty() {
            break;
        }
        let kind = input.byte() % 16;
        world.happen(kind, &mut input);
        world.look();
    }
    world.end();
}

impl World {
    fn new() -> World {
        let miss = Instructions::apply([Action::output(RulePort::NORMAL)]);
        let settings = Settings {
            versions: vec![Version::OpenFlow10, Version::OpenFlow13],
            datapath_id: 1,
            description: Description::default(),
            max_rules: 64,
            miss: miss.clone(),
            fail: FailMode::Secure,
            controllers: true,
            echo_interval_ms: 15_000,
            packet_in_pps: 1000,
            proxy_ports: [RulePort(1)].into(),
        };
        let agent = Agent::new(flows(&miss), settings);
        let peers = Default::default();
        let mut world = World {
            agent,
            peers,
            ids: 0,
            now_ms: 1000,
            batch: None,
            looked: Vec::new(),
            frames: vec![vec![0; 60]],
        };
        world.set_ports(0b0011_0111);
        world.seal();
        world.void();
        world.finish();
        (0..3).for_each(|place| world.connect(place));
        world.look();
        world
    }

    fn happen(&mut self, kind: u8, input: &mut Input<'_>) {
        match kind {
            0..=3 => {
                let how = input.byte();
                let message = input.message();
                let pieces = if how & 0x80 == 0 { message.len() } else { usize::from(how >> 2 & 31) + 1 };
                for piece in message.chunks(pieces.max(1)) {
                    self.comes(usize::from(how & 3).min(2), piece);
                    self.look();
                }
            }
            4 => {
                let peer = &mut self.peers[usize::from(input.byte()) % 3];
                let bytes = peer.unread.min(usize::from(input.byte()) << 10);
                peer.unread -= bytes;
                self.agent.written(ConnectionId(peer.id), bytes, self.now_ms, &Nothing);
            }
            5 => {
                let place = usize::from(input.byte()) % 3;
                self.agent.closed(ConnectionId(self.peers[place].id));
                self.connect(place);
            }
            6 => {
                self.now_ms += 1000 * u64::from(input.byte());
                self.agent.tick(self.now_ms);
            }
            7 => self.seal(),
            8 => self.void(),
            9 => self.finish(),
            10 => self.handed(input),
            11 => {
                let ports = input.byte();
                self.set_ports(ports);
            }
            12 => {
                let core = Core { number: 1, load: Some(u16::from(input.byte()) * 4), workloads: 0 };
                let features = Features { core_redirect: true, ..Features::default() };
                self.agent.set_cores(Cores { features, cores: vec![core] }, self.now_ms);
            }
            13 => {
                let (count, tenant) = (input.byte().into(), input.byte());
                let workload = |id| Workload { id, tenant: tenant.into(), cores: vec![1] };
                self.agent.set_workloads((0..count).map(workload).collect(), self.now_ms);
            }
            14 => {
                let mut frame = vec![2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
                frame.extend(PROXY_ETHER_TYPE.to_be_bytes());
                frame.extend(input.message());
                self.agent.proxied(RulePort(1), &frame, self.now_ms);
            }
            _ => {
                let length = input.byte().into();
                let frame = input.take(length).to_vec();
                self.looked.push(look(self.agent.flows(), &frame, RulePort(1)));
                self.looked.truncate(MOST_LOOKED);
                self.frames.push(frame);
                self.frames.truncate(MOST_LOOKED);
            }
        }
    }

    /// The kernel plane hands over a packet.
    fn handed(&mut self, input: &mut Input<'_>) {
        let (rule, how, length) = (input.byte().into(), input.byte(), input.byte().into());
        let reasons = [NoticeReason::Action, NoticeReason::Ttl, NoticeReason::Slow];
        let reason = reasons[usize::from(how) % 3];
        let frame = input.take(length);
        let cut = u32::from(how >> 6);
        let notice = Notice {
            rule,
            port: RulePort(1),
            reason,
            frame_bytes: frame.len() as u32 + cut,
            metadata: u64::from_ne_bytes([how; 8]),
            tunnel_id: u64::from_ne_bytes([!how; 8]),
        };
        self.agent.notice(notice, frame, 1_000_000 * self.now_ms);
        let effects = self.agent.take_effects();
        assert!(effects.len() <= MOST_OUTPUTS + self.peers.len(), "{} effects", effects.len());
        self.carry_out(effects);
    }

    /// Adds bytes of a peer. The switch receives what waits, if it has asked for it.
    fn comes(&mut self, place: usize, bytes: &[u8]) {
        let peer = &mut self.peers[place];
        peer.bytes.extend(bytes);
        if mem::take(&mut peer.asked) {
            let bytes: Vec<u8> = peer.bytes.drain(..).collect();
            peer.came.extend(&bytes);
            while let Split::Message(header, message) = split(&peer.came) {
                peer.xids.push_back(header.xid);
                peer.barriers += i32::from(is_barrier(message));
                // A message inside this one (`logic::openflow::extension`) is answered by its own id.
                if let Some(inner) = message.get(20..24) {
                    peer.xids.extend(inner.first_chunk().map(|xid| u32::from_be_bytes(*xid)));
                }
                peer.came.drain(..usize::from(header.length));
            }
            if let Split::Broken(header) = split(&peer.came) {
                peer.xids.push_back(header.xid);
            }
            self.agent.received(ConnectionId(peer.id), &bytes, self.now_ms, &Nothing);
        }
    }

    fn connect(&mut self, place: usize) {
        self.ids += 1;
        self.peers[place] = Peer { id: self.ids, ..Peer::default() };
        self.agent.connected(ConnectionId(self.ids), "peer", true, self.now_ms);
    }

    /// Sets four ports: bits 0 to 3 say which exist, bits 4 to 7 which have a link.
    fn set_ports(&mut self, bits: u8) {
        let port = |n: u16| PortInfo {
            port: RulePort(n),
            name: format!("p{n}"),
            mac: Mac([2, 0, 0, 0, 0, n as u8]),
            link_up: bits >> (n + 3) & 1 != 0,
            admin_up: true,
            transmits: bits & 1 == 0 || bits >> (n + 3) & 1 != 0,
            speed_mbps: None,
        };
        self.agent.set_ports((1..=4).filter(|n| bits >> (n - 1) & 1 != 0).map(port).collect());
    }

    fn seal(&mut self) {
        if self.agent.seal() {
            assert_eq!(self.batch.replace(false), None);
        }
    }

    fn void(&mut self) {
        if let Some(void) = self.batch.as_mut().filter(|void| !**void) {
            *void = true;
            let reader = self.agent.flows().reader();
            self.looked.drain(..).for_each(|looked| reader.cache(&looked));
            self.agent.void();
        }
    }

    fn finish(&mut self) {
        if self.batch.take_if(|void| *void).is_some() {
            self.agent.finish(self.now_ms, &Nothing);
        }
    }

    fn look(&mut self) {
        loop {
            let effects = self.agent.take_effects();
            if effects.is_empty() {
                break;
            }
            self.carry_out(effects);
        }
        for report in self.agent.report() {
            assert!(report.unsent_bytes <= 2 * UNSENT && report.unread_bytes <= 2 * UNREAD, "{report:?}");
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { connection, bytes } => {
                    let peer = self.peers.iter_mut().find(|peer| peer.id == connection.0);
                    peer.expect("a peer that is written to exists").reads(&bytes);
                }
                Effect::Read(connection) => {
                    let peer = self.peers.iter_mut().find(|peer| peer.id == connection.0);
                    let peer = peer.expect("a peer that is read from exists");
                    assert!(!mem::replace(&mut peer.asked, true), "asked for twice");
                }
                Effect::Close { connection, .. } => {
                    let place = self.peers.iter().position(|peer| peer.id == connection.0);
                    self.connect(place.expect("a peer that is closed existed"));
                }
                _ => {}
            }
        }
    }

    /// No batch is in progress, and no peer has anything to send, to read or to wait for.
    fn is_quiet(&mut self) -> bool {
        let quiet = |peer: &Peer| peer.asked && peer.bytes.is_empty() && peer.unread == 0;
        self.batch.is_none() && !self.agent.flows().has_changes() && self.peers.iter().all(quiet)
    }

    /// Finishes all batches and reads everything. Then no peer may wait, and the program must find what the tables say.
    fn end(mut self) {
        let mut rounds = 0;
        while !self.is_quiet() {
            rounds += 1;
            assert!(rounds <= ROUNDS, "a peer waits");
            for place in 0..3 {
                self.comes(place, &[]);
                self.look();
                let peer = &mut self.peers[place];
                let (id, unread) = (ConnectionId(peer.id), mem::take(&mut peer.unread));
                self.agent.written(id, unread, self.now_ms, &Nothing);
                self.look();
            }
            self.void();
            self.finish();
            self.seal();
            self.look();
        }
        assert!(self.peers.iter().all(|peer| peer.barriers <= 0), "a barrier is forgotten");
        let now_ns = 1_000_000 * self.now_ms;
        let flows = self.agent.flows();
        for frame in &self.frames {
            run(flows, frame, RulePort(1), now_ns);
        }
    }
}
