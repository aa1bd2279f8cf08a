//! The switch's side of OpenFlow: [`Agent`]. Bytes of connections, packets and the passing of time come in; what is to be
//! done comes out as [`Effect`]s, in order. It owns the flow tables.
//!
//! | file | holds |
//! |---|---|
//! | this one | what comes in, batches and barriers, fail modes |
//! | `connection` | one connection: bytes to messages, what is not sent yet |
//! | `session` | hello, echo, features, settings, roles, what a controller wants to be told |
//! | `requests` | each request and its answer or error |
//! | `statistics` | statistics, in pieces where they are long |
//! | `ports` | ports, their settings and what is told of them |
//! | `packets` | packet-in and packet-out |
//! | `machine` | our extension: what subscribers are told of cores and workloads |
//! | `core_table` | our extension: rules that say which core goes on with a packet |
//!
//! # Order
//!
//! Messages of a connection are taken one after the other, each with its replies and errors, so these come in the order of
//! the requests. A barrier is answered when the batch is over that holds all changes made before it, whoever made them;
//! until then nothing more of that connection is looked at.
//!
//! # Bounds
//!
//! Of each connection at most [`UNREAD`] bytes and what one [`Effect::Read`] brings wait to be looked at. While about
//! [`UNSENT`] bytes of it are unsent nothing more is answered, and packet-ins are dropped and counted. What else is told
//! waits as notices that connections share; a connection that lets too much of it wait is closed. Of cores only the newest
//! state waits.

mod connection;
mod core_table;
mod machine;
mod packets;
mod ports;
mod requests;
mod session;
mod statistics;
#[cfg(test)]
mod tests;

pub use core_table::{CoreRule, ProxiedCount};
pub use machine::WORKLOADS;
pub use packets::PacketInsLost;
pub use ports::{PathInfo, PortFlags, PortInfo};
pub use session::Version;

use super::{
    extension::CoreStats,
    message::{Description, Fragments, PortStats, Role},
};
use crate::flow::{
    Action, Dialect, FlowMod, Instructions, Refused, RulePort, flows::Flows, kernel::FlowMemory,
};
use connection::Connection;
use machine::Machine;
use packets::TokenBucket;
use ports::Ports;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Bytes of a connection that wait: with fewer, more are asked for. One message always fits.
pub const UNREAD: usize = 64 << 10;
/// Bytes given to a connection and not written: with more, only what cannot wait is added.
pub const UNSENT: usize = 1 << 20;

/// A connection, as who makes them numbers it. No number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write; [`Agent::written`] tells how far it came.
    Send { connection: ConnectionId, bytes: Vec<u8> },
    /// Let the next bytes come to [`Agent::received`], once.
    Read(ConnectionId),
    /// Write what was sent before, and close. The agent has forgotten the connection.
    Close { connection: ConnectionId, why: String },
    /// Send a frame out of a real port.
    Transmit { port: RulePort, queue: Option<u32>, frame: Vec<u8> },
    /// Let the routers have a frame, as if it had come in by `in_port` and no rule were there. Of a packet that a controller
    /// sends `in_port` may be CONTROLLER, LOCAL or NONE.
    Normal { in_port: RulePort, frame: Vec<u8> },
    /// Give a frame to the kernel stack of `in_port`'s namespace; `in_port` as above.
    Local { in_port: RulePort, frame: Vec<u8> },
    /// Set a port administratively up or down.
    ConfigurePort { port: RulePort, up: bool },
}

/// What is known outside, and asked only when a controller asks.
pub trait Outside {
    /// Counters of all ports, logical ones too.
    fn port_stats(&self) -> Vec<PortStats>;
    /// What was done on all cores.
    fn core_stats(&self) -> Vec<CoreStats>;
}

/// What becomes of the rules while no controller that we connect to is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailMode {
    /// Packets are forwarded as if there were no rules.
    Standalone,
    /// Rules apply, from the start.
    Secure,
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Spoken versions, at least one.
    pub versions: Vec<Version>,
    pub datapath_id: u64,
    pub description: Description,
    /// How many rules all tables have room for.
    pub max_rules: u32,
    /// What table 0 does with packets that no rule matches.
    pub miss: Instructions,
    pub fail: FailMode,
    /// There are controllers that we connect to: without them [`FailMode`] means nothing, and rules always apply.
    pub controllers: bool,
    /// After so much silence the peer is asked whether it is there, and after as much again it is taken for gone.
    pub echo_interval_ms: u64,
    /// Packet-ins per second, all together; bursts of a quarter of that.
    pub packet_in_pps: u32,
    /// Ports where frames with [`PROXY_ETHER_TYPE`](super::extension::PROXY_ETHER_TYPE) may change the core table: nobody can
    /// tell who sent such a frame, so each is a port whose every sender is trusted.
    pub proxy_ports: BTreeSet<RulePort>,
}

/// A connection for people to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionReport {
    pub connection: ConnectionId,
    pub peer: String,
    /// `None`: there was no hello yet.
    pub version: Option<Version>,
    pub role: Role,
    /// Messages that came.
    pub messages: u64,
    pub packet_ins: u64,
    /// Because the peer does not read fast enough.
    pub packet_ins_dropped: u64,
    /// Rules, groups and notices that its version has no words for.
    pub unsaid: u64,
    pub unsent_bytes: usize,
    /// Came, and were not looked at yet.
    pub unread_bytes: usize,
}

/// The switch.
pub struct Agent<M> {
    flows: Flows<M>,
    settings: Settings,
    connections: BTreeMap<ConnectionId, Connection>,
    ports: Ports,
    machine: Machine,
    proxied: ProxiedCount,
    effects: Vec<Effect>,
    /// Batches that were sealed, and that are over.
    sealed: u64,
    finished: u64,
    /// The last generation of masters.
    generation: Option<u64>,
    /// What a controller has set for all of them.
    fragments: Fragments,
    packet_ins: TokenBucket,
    packet_ins_lost: PacketInsLost,
    /// Packets for user space of which not all came.
    packets_cut: u64,
}

impl<M: FlowMemory> Agent<M> {
    /// No ports, no connections.
    pub fn new(mut flows: Flows<M>, settings: Settings) -> Self {
        flows.set_miss(&settings.miss);
        Self {
            machine: Machine::default(),
            proxied: ProxiedCount::default(),
            packet_ins: TokenBucket::new(settings.packet_in_pps),
            flows,
            settings,
            connections: BTreeMap::new(),
            ports: Ports::default(),
            effects: Vec::new(),
            sealed: 0,
            finished: 0,
            generation: None,
            fragments: Fragments::Normal,
            packet_ins_lost: PacketInsLost::default(),
            packets_cut: 0,
        }
    }

    /// A connection is there; `controller`: it is one of those that we connect to ([`Settings::controllers`]).
    pub fn connected(&mut self, id: ConnectionId, peer: &str, controller: bool, now_ms: u64) {
        self.connections.insert(id, Connection::new(peer, controller, now_ms));
        self.say_hello(id);
        self.ask_for_more(id);
    }

    /// Bytes that an [`Effect::Read`] asked for.
    pub fn received(&mut self, id: ConnectionId, bytes: &[u8], now_ms: u64, outside: &dyn Outside) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.receive(bytes, now_ms);
        self.work(id, now_ms, outside);
    }

    /// So many bytes more were written.
    pub fn written(&mut self, id: ConnectionId, bytes: usize, now_ms: u64, outside: &dyn Outside) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.written(bytes, now_ms);
        self.work(id, now_ms, outside);
    }

    /// The peer is gone.
    pub fn closed(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
    }

    /// What happens by itself, each second: rules end, loads are told, silent peers are asked.
    pub fn tick(&mut self, now_ms: u64) {
        self.flows.expire(now_ms);
        self.tell_cores(now_ms);
        self.ask_who_is_there(now_ms);
    }

    /// A change that is no controller's, as OpenFlow 1.3 has it.
    ///
    /// # Errors
    /// Refused: nothing has changed.
    pub fn change(&mut self, change: &FlowMod, now_ms: u64) -> Result<(), Refused> {
        self.flows.apply(change, Dialect::OpenFlow13, now_ms)
    }

    /// The flow tables, to be asked what is in them.
    pub fn flows(&mut self) -> &mut Flows<M> {
        &mut self.flows
    }

    /// Begins a batch of the changes made so far. True: wait for a grace period, then [`void`](Agent::void), another, then
    /// [`finish`](Agent::finish). False: nothing was changed, or the batch before is not over.
    pub fn seal(&mut self) -> bool {
        let begins = self.sealed == self.finished && self.flows.has_changes();
        if begins {
            self.flows.seal();
            self.sealed += 1;
        }
        begins
    }

    /// The first grace period is over.
    pub fn void(&mut self) {
        self.flows.void();
    }

    /// The second is over, packets obey: controllers are told of rules that ended, barriers are answered.
    pub fn finish(&mut self, now_ms: u64, outside: &dyn Outside) {
        let ended: Arc<[_]> = self.flows.finish().into();
        self.finished = self.sealed;
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            self.tell_ended(id, &ended);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.pass_barrier(self.finished);
            }
            self.work(id, now_ms, outside);
        }
    }

    /// What is to be done since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Should packets be decided by rules?
    pub fn wants_rules(&self) -> bool {
        self.has_rules() && !self.stands_alone()
    }

    /// Are packets treated in another way by rules, or by what becomes of those that no rule matches, than without them?
    pub fn has_rules(&self) -> bool {
        let normal = Instructions::apply([Action::output(RulePort::NORMAL)]);
        self.settings.miss != normal || !self.flows.tables().is_empty()
    }

    /// Do packets not go by rules because no controller that we connect to has said hello, as [`Settings::fail`] wants?
    pub fn stands_alone(&self) -> bool {
        let connected = || self.connections.values().any(|c| c.controller && c.version.is_some());
        self.settings.controllers && self.settings.fail == FailMode::Standalone && !connected()
    }

    /// What a controller has set of a port.
    pub fn port_flags(&self, port: RulePort) -> PortFlags {
        self.ports.flags(port)
    }

    /// Packets for controllers that none got.
    pub fn packet_ins_lost(&self) -> PacketInsLost {
        self.packet_ins_lost
    }

    /// Has anybody said hello, dialled or not?
    pub fn has_peer(&self) -> bool {
        self.connections.values().any(|c| c.version.is_some())
    }

    /// Packets for user space that it could do nothing with: not all of them came.
    pub fn packets_cut(&self) -> u64 {
        self.packets_cut
    }

    /// All connections.
    pub fn report(&self) -> Vec<ConnectionReport> {
        self.connections.iter().map(|(&id, connection)| connection.report(id)).collect()
    }
}
