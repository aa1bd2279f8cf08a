//! The switch's side of OpenFlow: [`Agent`]. Bytes of connections, packets and the time come in. [`Effect`]s come out, in
//! order. The agent owns the flow tables.
//!
//! | file | holds |
//! |---|---|
//! | this file | the interface; batches and barriers; fail modes |
//! | `connection` | one connection: bytes to messages, and unsent work |
//! | `session` | hello, echo, features, settings, roles, which asynchronous messages a controller wants |
//! | `requests` | each request and its answer or error |
//! | `statistics` | statistics; long ones are sent in pieces |
//! | `ports` | ports, their settings, and their messages to controllers |
//! | `packets` | packet-in and packet-out |
//! | `machine` | our extension: notices of cores and workloads for subscribers |
//! | `core_table` | our extension: rules that choose the core that continues with a packet |
//!
//! # Order
//!
//! Messages of a connection are handled one after the other, each with its replies and errors, so these come in the order of
//! the requests. A barrier is answered when the batch with all changes before it is over. That includes changes by other
//! connections. Until then, no further message of its connection is handled.
//!
//! # Bounds
//!
//! For each connection, at most [`UNREAD`] bytes and those of one [`Effect::Read`] wait to be handled. While about
//! [`UNSENT`] bytes are unsent, no request is answered, and packet-ins are dropped and counted. Other notices wait, and
//! connections share them. A connection with too many waiting notices is closed. For cores, only the newest state waits.

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

/// Unhandled bytes of a connection. If there are fewer, the agent asks for more. One message always fits.
pub const UNREAD: usize = 64 << 10;
/// Unsent bytes of a connection. If there are more, only messages that cannot wait are added.
pub const UNSENT: usize = 1 << 20;

/// The number of a connection, given by the caller. No number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// Work for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write these bytes, and report progress to [`Agent::written`].
    Send { connection: ConnectionId, bytes: Vec<u8> },
    /// Read more bytes and give them to [`Agent::received`], once.
    Read(ConnectionId),
    /// Write everything sent before, then close. The agent has forgotten the connection.
    Close { connection: ConnectionId, why: String },
    /// Send a frame out of a real port.
    Transmit { port: RulePort, queue: Option<u32>, frame: Vec<u8> },
    /// Give a frame to the routers, as if it had come in by `in_port` and there were no rules. For a packet that a
    /// controller sends, `in_port` may be CONTROLLER, LOCAL or NONE.
    Normal { in_port: RulePort, frame: Vec<u8> },
    /// Give a frame to the kernel stack of the namespace of `in_port`; `in_port` is as above.
    Local { in_port: RulePort, frame: Vec<u8> },
    /// Set a port administratively up or down.
    ConfigurePort { port: RulePort, up: bool },
}

/// Numbers that only the caller knows. The agent asks for them only when a controller does.
pub trait Outside {
    /// Counters of all ports, including logical ones.
    fn port_stats(&self) -> Vec<PortStats>;
    /// Counters of all cores.
    fn core_stats(&self) -> Vec<CoreStats>;
}

/// What happens to the rules while none of the controllers that we connect to is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailMode {
    /// Packets are forwarded as if there were no rules.
    Standalone,
    /// Rules apply, also before the first connection.
    Secure,
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Supported versions, at least one.
    pub versions: Vec<Version>,
    pub datapath_id: u64,
    pub description: Description,
    /// How many rules all tables have room for.
    pub max_rules: u32,
    /// What table 0 does with packets that no rule matches.
    pub miss: Instructions,
    pub fail: FailMode,
    /// There are controllers that we connect to. Without them, [`FailMode`] has no effect, and rules always apply.
    pub controllers: bool,
    /// After this time of silence the agent sends an echo request. After the same time again, it closes the connection.
    pub echo_interval_ms: u64,
    /// Packet-ins per second, of all connections together. Bursts may have a quarter of that.
    pub packet_in_pps: u32,
    /// Ports where frames with [`PROXY_ETHER_TYPE`](super::extension::PROXY_ETHER_TYPE) may change the core table. The
    /// switch cannot know who sent such a frame, so every sender behind these ports must be trusted.
    pub proxy_ports: BTreeSet<RulePort>,
}

/// The state of a connection, for the output of `millrace`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionReport {
    pub connection: ConnectionId,
    pub peer: String,
    /// `None`: there was no hello yet.
    pub version: Option<Version>,
    pub role: Role,
    /// Messages that were received.
    pub messages: u64,
    pub packet_ins: u64,
    /// Packet-ins dropped because the peer does not read fast enough.
    pub packet_ins_dropped: u64,
    /// Rules, groups and notices that its version cannot express.
    pub unsaid: u64,
    pub unsent_bytes: usize,
    /// Bytes that were received but not handled yet.
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
    /// How many batches were sealed, and how many are over.
    sealed: u64,
    finished: u64,
    /// The last generation of masters.
    generation: Option<u64>,
    /// The handling of fragments, as a controller set it for all connections.
    fragments: Fragments,
    packet_ins: TokenBucket,
    packet_ins_lost: PacketInsLost,
    /// Packets for user space that arrived incomplete.
    packets_cut: u64,
}

impl<M: FlowMemory> Agent<M> {
    /// An agent without ports and connections.
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

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets the ports by which flow-mods may come through another switch.
    pub fn set_proxy_ports(&mut self, ports: BTreeSet<RulePort>) {
        self.settings.proxy_ports = ports;
    }

    /// Follows other settings. Connections go on: `versions`, `datapath_id` and `description` are for new ones.
    pub fn follow(&mut self, settings: Settings) {
        if settings.miss != self.settings.miss {
            self.flows.set_miss(&settings.miss);
        }
        if settings.packet_in_pps != self.settings.packet_in_pps {
            self.packet_ins = TokenBucket::new(settings.packet_in_pps);
        }
        self.settings = settings;
    }

    /// Adds a connection. `controller`: it is one of those that we connect to ([`Settings::controllers`]).
    pub fn connected(&mut self, id: ConnectionId, peer: &str, controller: bool, now_ms: u64) {
        self.connections.insert(id, Connection::new(peer, controller, now_ms));
        self.say_hello(id);
        self.ask_for_more(id);
    }

    /// Takes the bytes that an [`Effect::Read`] asked for.
    pub fn received(&mut self, id: ConnectionId, bytes: &[u8], now_ms: u64, outside: &dyn Outside) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.receive(bytes, now_ms);
        self.work(id, now_ms, outside);
    }

    /// Notes that so many more bytes were written.
    pub fn written(&mut self, id: ConnectionId, bytes: usize, now_ms: u64, outside: &dyn Outside) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.written(bytes, now_ms);
        self.work(id, now_ms, outside);
    }

    /// Notes that the peer closed the connection.
    pub fn closed(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
    }

    /// Does periodic work; call it every second. Rules end, subscribers get loads, and silent peers get echo requests.
    pub fn tick(&mut self, now_ms: u64) {
        self.flows.expire(now_ms);
        self.tell_cores(now_ms);
        self.ask_who_is_there(now_ms);
    }

    /// Makes a change that does not come from a controller, with the rules of OpenFlow 1.3.
    ///
    /// # Errors
    /// If the change is refused, nothing has changed.
    pub fn change(&mut self, change: &FlowMod, now_ms: u64) -> Result<(), Refused> {
        self.flows.apply(change, Dialect::OpenFlow13, now_ms)
    }

    /// Adds a rule that was in force in another agent ([`Dialect::Kept`]).
    ///
    /// # Errors
    /// If the rule is refused, nothing has changed.
    pub fn restore(&mut self, rule: &FlowMod, now_ms: u64) -> Result<(), Refused> {
        self.flows.apply(rule, Dialect::Kept, now_ms)
    }

    /// The flow tables, for queries.
    pub fn flows(&mut self) -> &mut Flows<M> {
        &mut self.flows
    }

    /// Begins a batch with the changes made so far. If it returns true, wait for a grace period, then call
    /// [`void`](Agent::void), wait for another one, then call [`finish`](Agent::finish). It returns false if nothing was
    /// changed, or if the last batch is not over.
    pub fn seal(&mut self) -> bool {
        let begins = self.sealed == self.finished && self.flows.has_changes();
        if begins {
            self.flows.seal();
            self.sealed += 1;
        }
        begins
    }

    /// Call this after the first grace period.
    pub fn void(&mut self) {
        self.flows.void();
    }

    /// Call this after the second grace period, when packets follow the changes. Controllers get the notices of rules that
    /// ended, and barriers are answered.
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

    /// Returns the effects since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Should rules decide about packets?
    pub fn wants_rules(&self) -> bool {
        self.has_rules() && !self.stands_alone()
    }

    /// Do rules, or the treatment of packets without a match, make any difference?
    pub fn has_rules(&self) -> bool {
        let normal = Instructions::apply([Action::output(RulePort::NORMAL)]);
        self.settings.miss != normal || !self.flows.tables().is_empty()
    }

    /// Do packets bypass the rules because none of our controllers has said hello and [`Settings::fail`] says so?
    pub fn stands_alone(&self) -> bool {
        let connected = || self.connections.values().any(|c| c.controller && c.version.is_some());
        self.settings.controllers && self.settings.fail == FailMode::Standalone && !connected()
    }

    /// The settings of a port that a controller made.
    pub fn port_flags(&self, port: RulePort) -> PortFlags {
        self.ports.flags(port)
    }

    /// Packets for controllers that no controller got.
    pub fn packet_ins_lost(&self) -> PacketInsLost {
        self.packet_ins_lost
    }

    /// Has any peer said hello, whichever side opened the connection?
    pub fn has_peer(&self) -> bool {
        self.connections.values().any(|c| c.version.is_some())
    }

    /// Packets for user space that were dropped because they arrived incomplete.
    pub fn packets_cut(&self) -> u64 {
        self.packets_cut
    }

    /// The state of all connections.
    pub fn report(&self) -> Vec<ConnectionReport> {
        self.connections.iter().map(|(&id, connection)| connection.report(id)).collect()
    }
}
