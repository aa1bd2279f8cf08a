//! OpenFlow 1.0.2 on the wire: version 1. Section numbers in this module refer to its specification.
//!
//! | file | holds |
//! |---|---|
//! | this file | the table of messages, and formats that several of them have |
//! | `matching` | the 40 bytes of a match |
//! | `actions` | lists of actions |
//! | `flows` | flow-mod and flow-removed |
//! | `packets` | packet-in and packet-out |
//! | `ports` | ports and queues: features reply, port status, port-mod, queue configuration |
//! | `stats` | statistics, and how a long reply is divided |
//! | `errors` | type and code of every error |
//!
//! Requests, and messages that name a rule, are encoded exactly or refused. Messages that only report (packet-in, port
//! descriptions, counters) are encoded without parts that 1.0 has no place for: a table, a speed, how long a port has been
//! up.

mod actions;
mod errors;
mod flows;
mod matching;
mod packets;
mod ports;
mod stats;
#[cfg(test)]
mod tests;

pub use errors::error;
pub use stats::encode_stats;

use super::{
    BadMessage, CannotSay, Message,
    common::{CONFIG, ERROR, PORT_REASON},
    format::{Check, Choice, Except, Format, Layout, Pad, REST, U16, U32, choice, layout},
    message::Experimenter,
    wire::{HEADER, Header, Reader, Write, append},
};
use crate::flow::RulePort;

/// The version in the header.
pub const VERSION: u8 = 1;

/// Message types: OFPT (section 5.1).
mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    pub const VENDOR: u8 = 4;
    pub const FEATURES_REQUEST: u8 = 5;
    pub const FEATURES_REPLY: u8 = 6;
    pub const GET_CONFIG_REQUEST: u8 = 7;
    pub const GET_CONFIG_REPLY: u8 = 8;
    pub const SET_CONFIG: u8 = 9;
    pub const PACKET_IN: u8 = 10;
    pub const FLOW_REMOVED: u8 = 11;
    pub const PORT_STATUS: u8 = 12;
    pub const PACKET_OUT: u8 = 13;
    pub const FLOW_MOD: u8 = 14;
    pub const PORT_MOD: u8 = 15;
    pub const STATS_REQUEST: u8 = 16;
    pub const STATS_REPLY: u8 = 17;
    pub const BARRIER_REQUEST: u8 = 18;
    pub const BARRIER_REPLY: u8 = 19;
    pub const QUEUE_GET_CONFIG_REQUEST: u8 = 20;
    pub const QUEUE_GET_CONFIG_REPLY: u8 = 21;
}

/// `buffer_id` of a packet that is not buffered.
const NO_BUFFER: u32 = u32::MAX;

/// The error for a reason that 1.0 does not have. Only a switch sends reasons, so the specification has no error for it.
const UNKNOWN_REASON: BadMessage = BadMessage::Type;

const fn cannot(what: &'static str) -> CannotSay {
    CannotSay { version: "1.0", what }
}

/// Reads one whole message with its header, as [`split`](super::wire::split) returns it. A hello may be of any version.
pub fn decode(message: &[u8]) -> Result<(Header, Message), BadMessage> {
    let header = Header::read(message).ok_or(BadMessage::Length)?;
    if header.version != VERSION && header.kind != kind::HELLO {
        return Err(BadMessage::Version);
    }
    if usize::from(header.length) != message.len() {
        return Err(BadMessage::Length);
    }
    let mut r = Reader::new(&message[HEADER..], BadMessage::Length);
    let decoded = Body::read(header.kind, &mut r)?;
    if r.is_empty() { Ok((header, decoded)) } else { Err(BadMessage::Length) }
}

/// Appends one message. On error, `out` stays as it was.
pub fn encode(message: &Message, xid: u32, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    append::<Body>(VERSION, message, xid, cannot("a message of this length"), out)
}

choice! {
    Body: u8 => Message else BadMessage::Type;
    kind::HELLO => Hello { versions: HELLO },
    kind::ERROR => Error(error: ERROR),
    kind::ECHO_REQUEST => EchoRequest(data: REST),
    kind::ECHO_REPLY => EchoReply(data: REST),
    kind::VENDOR => Experimenter(vendor: VENDOR),
    kind::FEATURES_REQUEST => FeaturesRequest,
    kind::FEATURES_REPLY => FeaturesReply(features: ports::FEATURES),
    kind::GET_CONFIG_REQUEST => GetConfigRequest,
    kind::GET_CONFIG_REPLY => GetConfigReply(config: CONFIG),
    kind::SET_CONFIG => SetConfig(config: CONFIG),
    kind::PACKET_IN => PacketIn(packet: packets::PACKET_IN),
    kind::FLOW_REMOVED => FlowRemoved(removed: flows::FLOW_REMOVED),
    kind::PORT_STATUS => PortStatus { reason: PORT_REASON, port: ports::DESCRIPTION },
    kind::PACKET_OUT => PacketOut(packet: packets::PACKET_OUT),
    kind::FLOW_MOD => FlowMod(change: flows::FLOW_MOD),
    kind::PORT_MOD => PortMod(change: ports::PORT_MOD),
    kind::STATS_REQUEST => StatsRequest(request: stats::REQUEST),
    kind::STATS_REPLY => StatsReply by (stats::read_reply, stats::write_reply) of (reply, more),
    kind::BARRIER_REQUEST => BarrierRequest,
    kind::BARRIER_REPLY => BarrierReply,
    kind::QUEUE_GET_CONFIG_REQUEST => QueueConfigRequest { port: Pad(PORT, 2) },
    kind::QUEUE_GET_CONFIG_REPLY => QueueConfigReply by (ports::read_queues, ports::write_queues) of (port, queues);
    never
    Message::GroupMod(_) => cannot("groups"),
    Message::MeterMod(_) => cannot("meters"),
    Message::TableMod { .. } => cannot("table settings"),
    Message::RoleRequest { .. } | Message::RoleReply { .. } => cannot("roles"),
    Message::GetAsyncRequest | Message::GetAsyncReply(_) | Message::SetAsync(_) =>
        cannot("which messages a controller wants"),
}

/// Section 5.5.1: no body is defined, and a body is ignored.
const HELLO: Layout<Option<Vec<u8>>> = Layout(
    |r| REST.read(r).map(|_| None),
    |versions, _| if versions.is_some() { Err(cannot("a bitmap of versions")) } else { Ok(()) },
);

const PORT: Layout<RulePort> = Layout(|r| r.u16().map(RulePort), |port, out| U16.write(&port.0, out));

/// A buffer, or the number of a packet that is not buffered.
const BUFFER: Layout<Option<u32>> = Layout(
    |r| Except(U32, NO_BUFFER).read(r),
    |buffer, out| except(U32, NO_BUFFER, "a buffer of this number").write(buffer, out),
);

/// An optional value. The value `none` stands for its absence, so it cannot be expressed itself.
fn except<T: Copy + PartialEq>(
    format: impl Format<Value = T>,
    none: T,
    what: &'static str,
) -> impl Format<Value = Option<T>> {
    let is_other = move |value: &Option<T>| if *value == Some(none) { Err(cannot(what)) } else { Ok(()) };
    Check(Except(format, none), |_: &Option<T>| Ok(()), is_other)
}

/// Sections 5.5.4 and 5.3.5, OFPST_VENDOR: a vendor id and any data. All vendors known here put a subtype first. If the
/// message is too short for one, the vendor is treated as unknown.
const VENDOR: Layout<Experimenter> = layout!(Experimenter { id: U32, subtype: SUBTYPE, body: REST });
const SUBTYPE: Layout<u32> =
    Layout(|r| r.u32().map_err(|_| BadMessage::Experimenter), |subtype, out| U32.write(subtype, out));
