//! Hello, echo, features, settings, roles.

use super::{Agent, Connection, ConnectionId};
use crate::{
    flow::{Dialect, kernel::FlowMemory, rule::TABLES},
    openflow::{
        BadMessage, CannotSay, Message,
        message::{Config, ErrorMessage, Features, Fragments, Role, StatsReply},
        v10, v13,
        wire::Header,
    },
};

/// A supported version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    OpenFlow10,
    OpenFlow13,
}

/// OFPT_ERROR in both versions.
const ERROR: u8 = 1;
/// OFPT_FLOW_MOD in both versions.
pub(super) const FLOW_MOD: u8 = 14;

/// OFPC of 1.0: FLOW_STATS, TABLE_STATS, PORT_STATS, ARP_MATCH_IP.
const CAPABILITIES_10: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 7;
/// OFPC of 1.3: FLOW_STATS, TABLE_STATS, PORT_STATS, GROUP_STATS.
const CAPABILITIES_13: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 3;
/// OFPAT of 1.0: all twelve.
const ACTIONS_10: u32 = (1 << 12) - 1;

impl Version {
    /// The number in a header.
    pub fn number(self) -> u8 {
        match self {
            Version::OpenFlow10 => v10::VERSION,
            Version::OpenFlow13 => v13::VERSION,
        }
    }

    /// "1.0" or "1.3".
    pub fn name(self) -> &'static str {
        match self {
            Version::OpenFlow10 => "1.0",
            Version::OpenFlow13 => "1.3",
        }
    }

    pub(super) fn dialect(self) -> Dialect {
        match self {
            Version::OpenFlow10 => Dialect::OpenFlow10,
            Version::OpenFlow13 => Dialect::OpenFlow13,
        }
    }

    pub(super) fn decode(self, message: &[u8]) -> Result<Message, BadMessage> {
        let decoded = match self {
            Version::OpenFlow10 => v10::decode(message),
            Version::OpenFlow13 => v13::decode(message),
        };
        decoded.map(|(_, message)| message)
    }

    pub(super) fn encode(self, message: &Message, xid: u32, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        match self {
            Version::OpenFlow10 => v10::encode(message, xid, out),
            Version::OpenFlow13 => v13::encode(message, xid, out),
        }
    }

    /// Encodes a reply. Returns how many items of a list were left out.
    pub(super) fn encode_stats(
        self,
        reply: &StatsReply,
        more: bool,
        xid: u32,
        out: &mut Vec<u8>,
    ) -> Result<usize, CannotSay> {
        match self {
            Version::OpenFlow10 => v10::encode_stats(reply, more, xid, out),
            Version::OpenFlow13 => v13::encode_stats(reply, more, xid, out),
        }
    }

    pub(super) fn error(self, bad: BadMessage, offending: &[u8]) -> ErrorMessage {
        match self {
            Version::OpenFlow10 => v10::error(bad, offending),
            Version::OpenFlow13 => v13::error(bad, offending),
        }
    }
}

/// The version of a connection (1.3.5 section 6.3.1). If both peers sent a bitmap, it is the highest common version.
/// Otherwise it is the lower version of the two headers, if we support it. We send a bitmap if we support 1.3, which has it.
fn agree(ours: &[Version], theirs: u8, bitmap: Option<&[u8]>) -> Option<Version> {
    let highest = ours.iter().copied().max()?;
    match bitmap.filter(|_| highest == Version::OpenFlow13) {
        Some(bitmap) => ours.iter().copied().filter(|version| bitmap.contains(&version.number())).max(),
        None => ours.iter().copied().find(|version| version.number() == theirs.min(highest.number())),
    }
}

/// How many versions of a bitmap are named in a text.
const TOLD_VERSIONS: usize = 8;

/// The versions that a peer offers, in words. A bitmap names each version, and a header only the highest one.
fn offer(theirs: u8, bitmap: Option<&[u8]>) -> String {
    let name = |version: &u8| match version {
        1..=6 => format!("1.{}", version - 1),
        other => format!("of number {other}"),
    };
    match bitmap {
        Some([]) => "it offers none".into(),
        Some(all) => {
            let named: Vec<String> = all.iter().take(TOLD_VERSIONS).map(name).collect();
            let more = if all.len() > TOLD_VERSIONS { " and others" } else { "" };
            format!("it offers OpenFlow {}{more}", named.join(", "))
        }
        None => format!("it offers OpenFlow {} at most", name(&theirs)),
    }
}

impl<M: FlowMemory> Agent<M> {
    pub(super) fn say_hello(&mut self, id: ConnectionId) {
        let Some(highest) = self.settings.versions.iter().copied().max() else { return };
        let numbers = self.settings.versions.iter().map(|version| version.number()).collect();
        let versions = (highest == Version::OpenFlow13).then_some(numbers);
        let mut bytes = Vec::new();
        if highest.encode(&Message::Hello { versions }, 0, &mut bytes).is_ok() {
            self.send(id, bytes);
        }
    }

    /// Handles the next message of a connection.
    pub(super) fn message(
        &mut self,
        id: ConnectionId,
        header: Header,
        bytes: &[u8],
        now_ms: u64,
        outside: &dyn super::Outside,
    ) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.messages += 1;
        let Some(version) = connection.version else { return self.hello(id, header, bytes) };
        let answered = version
            .decode(bytes)
            .and_then(|message| self.request(id, version, header.xid, message, now_ms, outside));
        if let Err(bad) = answered
            && header.kind != ERROR
        {
            self.refuse(id, header.xid, bad, bytes);
        }
    }

    /// Handles the first message.
    fn hello(&mut self, id: ConnectionId, header: Header, bytes: &[u8]) {
        // A hello may be of any version. Hellos of older versions have no content that matters here.
        let versions = match v13::decode(bytes) {
            Ok((_, Message::Hello { versions })) => versions,
            _ if header.kind == ERROR => return self.close(id, "it refused our hello".into()),
            _ => return self.refuse_hello(id, header, "the first message is not a hello"),
        };
        let Some(version) = agree(&self.settings.versions, header.version, versions.as_deref()) else {
            let why = format!("no version in common: {}", offer(header.version, versions.as_deref()));
            return self.refuse_hello(id, header, &why);
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.version = Some(version);
        }
    }

    /// Sends OFPET_HELLO_FAILED, OFPHFC_INCOMPATIBLE, with a text, in a version that the peer can read.
    fn refuse_hello(&mut self, id: ConnectionId, header: Header, why: &str) {
        let spoken: Vec<&str> = self.settings.versions.iter().map(|version| version.name()).collect();
        let text = format!("{why}; this switch supports OpenFlow {}", spoken.join(" and "));
        let version = if header.version < v13::VERSION { Version::OpenFlow10 } else { Version::OpenFlow13 };
        let error = ErrorMessage { kind: 0, code: 0, data: text.clone().into_bytes() };
        let mut bytes = Vec::new();
        if version.encode(&Message::Error(error), header.xid, &mut bytes).is_ok() {
            self.send(id, bytes);
        }
        self.close(id, text);
    }

    /// Sends echo requests to peers that were silent for long, and closes connections to those that do not answer.
    pub(super) fn ask_who_is_there(&mut self, now_ms: u64) {
        let interval_ms = self.settings.echo_interval_ms;
        let silent = |since_ms: u64| now_ms.saturating_sub(since_ms) >= interval_ms;
        let mut gone = Vec::new();
        let mut ask = Vec::new();
        for (&id, connection) in self.connections.iter_mut().filter(|(_, c)| !c.waits_for_us()) {
            match connection.asked_ms {
                Some(asked_ms) if silent(asked_ms) => gone.push((id, "it does not answer")),
                None if silent(connection.heard_ms) && connection.version.is_none() => {
                    gone.push((id, "it does not say hello"));
                }
                None if silent(connection.heard_ms) => {
                    connection.asked_ms = Some(now_ms);
                    ask.push(id);
                }
                _ => {}
            }
        }
        gone.into_iter().for_each(|(id, why)| self.close(id, why.into()));
        ask.into_iter().for_each(|id| self.tell(id, 0, &Message::EchoRequest(Vec::new())));
    }

    /// The features. There are no buffers, so no packet is kept for a controller.
    pub(super) fn features(&self, version: Version) -> Features {
        let is_10 = version == Version::OpenFlow10;
        Features {
            datapath_id: self.settings.datapath_id,
            buffers: 0,
            tables: TABLES,
            auxiliary_id: 0,
            capabilities: if is_10 { CAPABILITIES_10 } else { CAPABILITIES_13 },
            actions: is_10.then_some(ACTIONS_10),
            ports: is_10.then(|| self.ports.descriptions().collect()),
        }
    }

    /// Changes the settings. The handling of fragments belongs to the whole switch, so a slave may not set it. Fragments are
    /// never reassembled: OFPC_IP_REASM is not among the capabilities. The length of packet-ins belongs to the connection.
    pub(super) fn set_config(&mut self, id: ConnectionId, config: Config) -> Result<(), BadMessage> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        if config.fragments == Fragments::Reassemble {
            return Err(BadMessage::SwitchConfig);
        }
        if config.fragments != self.fragments && connection.role == Role::Slave {
            return Err(BadMessage::IsSlave);
        }
        connection.miss_send_len = config.miss_send_len;
        self.fragments = config.fragments;
        self.flows.set_drop_fragments(config.fragments == Fragments::Drop);
        Ok(())
    }

    /// Changes the role (1.3.5 section 6.3.6). Returns the connection's role, and the last generation of masters.
    pub(super) fn set_role(
        &mut self,
        id: ConnectionId,
        role: Role,
        generation: u64,
    ) -> Result<Message, BadMessage> {
        if matches!(role, Role::Master | Role::Slave) {
            // The distance on a circle.
            let is_old = |last: u64| (generation.wrapping_sub(last) as i64) < 0;
            if self.generation.is_some_and(is_old) {
                return Err(BadMessage::RoleStale);
            }
            self.generation = Some(generation);
        }
        if role == Role::Master {
            let masters = self.connections.values_mut().filter(|c| c.role == Role::Master);
            masters.for_each(|other| other.role = Role::Slave);
        }
        let connection = self.connections.get_mut(&id);
        let now = connection.map_or(role, |c: &mut Connection| {
            if role != Role::NoChange {
                c.role = role;
            }
            c.role
        });
        Ok(Message::RoleReply { role: now, generation: self.generation.unwrap_or(u64::MAX) })
    }
}
