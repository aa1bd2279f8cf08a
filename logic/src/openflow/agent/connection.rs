//! One connection: bytes to messages, and unsent work.

use super::{
    Agent, ConnectionId, ConnectionReport, Effect, Outside, UNREAD, UNSENT,
    machine::{Subscription, WorkloadNotices},
    session::Version,
    statistics::Listing,
};
use crate::{
    flow::{FlowRemoved, kernel::FlowMemory, table::RULES},
    openflow::{
        BadMessage, Message,
        message::{AsyncConfig, Role},
        wire::{Split, split},
    },
};
use std::{collections::VecDeque, mem, sync::Arc};

/// A connection with more unsent bytes is closed. Only port changes and echoes are added beyond [`UNSENT`].
const MOST_UNSENT: usize = 8 << 20;
/// How many notices may wait: those of all rules at once.
const MOST_NOTICES: usize = RULES;
/// How many notices are written at a time.
const NOTICES: usize = 256;

/// OFPP_DEFAULT_MISS_SEND_LEN.
const MISS_SEND_LEN: u16 = 128;

pub(super) struct Connection {
    peer: String,
    /// It is one of those that we connect to.
    pub controller: bool,
    /// `None`: there was no hello yet.
    pub version: Option<Version>,
    pub role: Role,
    pub wants: AsyncConfig,
    /// Only stored and reported: packet-ins always have the whole packet.
    pub miss_send_len: u16,
    pub subscription: Subscription,
    /// Bytes that were received but not handled.
    input: Vec<u8>,
    /// More bytes have been asked for.
    asked: bool,
    unsent: usize,
    /// Work to be written when there is room, before another message is handled.
    outbox: VecDeque<Work>,
    notices: usize,
    /// [`Work::Cores`] is in the outbox.
    pub cores_wait: bool,
    /// How many workload notices wait in the outbox.
    pub workload_notices: usize,
    /// A waiting barrier: its transaction id, and the batch that must be over.
    barrier: Option<(u32, u64)>,
    /// The time of the last progress: something was received or written.
    pub heard_ms: u64,
    /// When an echo request was sent, since the last progress.
    pub asked_ms: Option<u64>,
    pub messages: u64,
    pub packet_ins: u64,
    pub packet_ins_dropped: u64,
    pub unsaid: u64,
}

/// Work to be written.
pub(super) enum Work {
    BarrierReply {
        xid: u32,
    },
    /// Notices, and how many of them are already written.
    Ended(Arc<[FlowRemoved]>, usize),
    Listing(Box<Listing>),
    /// The state of cores at the time of writing.
    Cores {
        xid: u32,
    },
    Workloads(WorkloadNotices),
}

impl Connection {
    pub fn new(peer: &str, controller: bool, now_ms: u64) -> Self {
        Self {
            peer: peer.into(),
            controller,
            version: None,
            role: Role::Equal,
            // 1.3.5 section 7.3.10: everything except invalid TTLs; a slave gets only port changes.
            wants: AsyncConfig {
                packet_in: [0b011, 0],
                port_status: [0b111; 2],
                flow_removed: [0b1_1111, 0],
            },
            miss_send_len: MISS_SEND_LEN,
            subscription: Subscription::default(),
            input: Vec::new(),
            asked: false,
            unsent: 0,
            outbox: VecDeque::new(),
            notices: 0,
            cores_wait: false,
            workload_notices: 0,
            barrier: None,
            heard_ms: now_ms,
            asked_ms: None,
            messages: 0,
            packet_ins: 0,
            packet_ins_dropped: 0,
            unsaid: 0,
        }
    }

    pub fn receive(&mut self, bytes: &[u8], now_ms: u64) {
        self.asked = false;
        self.input.extend_from_slice(bytes);
        self.came_on(now_ms);
    }

    pub fn written(&mut self, bytes: usize, now_ms: u64) {
        self.unsent = self.unsent.saturating_sub(bytes);
        self.came_on(now_ms);
    }

    fn came_on(&mut self, now_ms: u64) {
        (self.heard_ms, self.asked_ms) = (now_ms, None);
    }

    /// Are fewer than [`UNSENT`] bytes unsent?
    pub fn has_room(&self) -> bool {
        self.unsent < UNSENT
    }

    /// Is the peer waiting for us?
    pub fn waits_for_us(&self) -> bool {
        self.barrier.is_some()
    }

    /// Is this reason wanted? `reasons` has the bits for a master or equal, and those for a slave.
    pub fn wants(&self, reasons: [u32; 2], reason: u32) -> bool {
        self.version.is_some() && reasons[usize::from(self.role == Role::Slave)] >> reason & 1 == 1
    }

    /// Answers the waiting barrier, if this batch was the one it waited for.
    pub fn pass_barrier(&mut self, finished: u64) {
        if let Some((xid, _)) = self.barrier.take_if(|(_, batch)| *batch <= finished) {
            self.outbox.push_back(Work::BarrierReply { xid });
        }
    }

    pub fn push(&mut self, work: Work) {
        self.outbox.push_back(work);
    }

    /// Puts unfinished work back to the front.
    pub fn push_rest(&mut self, work: Work) {
        self.outbox.push_front(work);
    }

    pub fn report(&self, connection: ConnectionId) -> ConnectionReport {
        ConnectionReport {
            connection,
            peer: self.peer.clone(),
            version: self.version,
            role: self.role,
            messages: self.messages,
            packet_ins: self.packet_ins,
            packet_ins_dropped: self.packet_ins_dropped,
            unsaid: self.unsaid,
            unsent_bytes: self.unsent,
            unread_bytes: self.input.len(),
        }
    }
}

impl<M: FlowMemory> Agent<M> {
    /// Writes waiting work and handles received messages, as long as the connection has room for the answers.
    pub(super) fn work(&mut self, id: ConnectionId, now_ms: u64, outside: &dyn Outside) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut input = mem::take(&mut connection.input);
        let mut at = 0;
        while self.write_due(id, now_ms) {
            match split(&input[at..]) {
                Split::Wait => break,
                Split::Message(header, message) => {
                    at += message.len();
                    self.message(id, header, message, now_ms, outside);
                }
                Split::Broken(header) => {
                    self.refuse(id, header.xid, BadMessage::Length, &input[at..]);
                    self.close(id, "a message is shorter than its header".into());
                    return;
                }
            }
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            input.drain(..at);
            connection.input = input;
            self.ask_for_more(id);
        }
    }

    pub(super) fn ask_for_more(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !connection.asked && connection.barrier.is_none() && connection.input.len() < UNREAD {
            connection.asked = true;
            self.effects.push(Effect::Read(id));
        }
    }

    /// Writes waiting work while there is room. Returns true if the next message may be handled.
    pub(super) fn write_due(&mut self, id: ConnectionId, now_ms: u64) -> bool {
        loop {
            let Some(connection) = self.connections.get_mut(&id).filter(|c| c.has_room()) else {
                return false;
            };
            match connection.outbox.pop_front() {
                None => return connection.barrier.is_none(),
                Some(Work::BarrierReply { xid }) => self.tell(id, xid, &Message::BarrierReply),
                Some(Work::Listing(listing)) => self.write_piece(id, listing, now_ms),
                Some(Work::Cores { xid }) => self.write_cores(id, xid),
                Some(Work::Workloads(notices)) => self.write_workloads(id, notices),
                Some(Work::Ended(ended, from)) => {
                    let to = ended.len().min(from + NOTICES);
                    connection.notices -= to - from;
                    if to < ended.len() {
                        connection.push_rest(Work::Ended(ended.clone(), to));
                    }
                    for notice in &ended[from..to] {
                        self.tell_one_ended(id, notice);
                    }
                }
            }
        }
    }

    /// Queues the notices of rules that ended and asked for one.
    pub(super) fn tell_ended(&mut self, id: ConnectionId, ended: &Arc<[FlowRemoved]>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if ended.is_empty() || (0..5).all(|reason| !connection.wants(connection.wants.flow_removed, reason)) {
            return;
        }
        connection.notices += ended.len();
        connection.push(Work::Ended(ended.clone(), 0));
        if connection.notices > MOST_NOTICES {
            self.close(id, "it does not read the notices that it asked for".into());
        }
    }

    fn tell_one_ended(&mut self, id: ConnectionId, notice: &FlowRemoved) {
        let wants = |c: &Connection| c.wants(c.wants.flow_removed, notice.reason as u32);
        if self.connections.get(&id).is_some_and(wants) {
            self.tell(id, 0, &Message::FlowRemoved(notice.clone()));
        }
    }

    /// Handles a barrier request. It is answered when packets follow all changes made so far.
    pub(super) fn barrier(&mut self, id: ConnectionId, xid: u32) {
        let batch = self.sealed + u64::from(self.flows.has_changes());
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.barrier = Some((xid, batch));
            connection.pass_barrier(self.finished);
        }
    }

    /// Sends a message. A message that the connection's version cannot express is counted.
    pub(super) fn tell(&mut self, id: ConnectionId, xid: u32, message: &Message) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut bytes = Vec::new();
        match connection.version.map(|version| version.encode(message, xid, &mut bytes)) {
            Some(Ok(())) => self.send(id, bytes),
            Some(Err(_)) => connection.unsaid += 1,
            None => {}
        }
    }

    /// Answers a message with an error.
    pub(super) fn refuse(&mut self, id: ConnectionId, xid: u32, bad: BadMessage, offending: &[u8]) {
        let version = self.connections.get(&id).and_then(|connection| connection.version);
        if let Some(version) = version {
            self.tell(id, xid, &Message::Error(version.error(bad, offending)));
        }
    }

    pub(super) fn send(&mut self, id: ConnectionId, bytes: Vec<u8>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.unsent += bytes.len();
        if connection.unsent > MOST_UNSENT {
            self.close(id, "it does not read what was sent to it".into());
            return;
        }
        match self.effects.last_mut() {
            Some(Effect::Send { connection, bytes: before }) if *connection == id => {
                before.extend_from_slice(&bytes);
            }
            _ => self.effects.push(Effect::Send { connection: id, bytes }),
        }
    }

    pub(super) fn close(&mut self, id: ConnectionId, why: String) {
        if self.connections.remove(&id).is_some() {
            self.effects.push(Effect::Close { connection: id, why });
        }
    }
}
