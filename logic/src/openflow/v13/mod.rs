//! OpenFlow 1.3.5 on the wire: version 4. Section numbers in this module refer to its specification (ONF TS-023).
//!
//! | file | holds |
//! |---|---|
//! | this file | the table of messages |
//! | `session` | hello, experimenter, features, role, asynchronous settings |
//! | `ports` | port numbers, port descriptions, port changes, queues of a port |
//! | `oxm` | matches |
//! | `actions`, `instructions` | the actions and instructions of a rule |
//! | `flows` | flow-mod, packet-in, packet-out, flow-removed |
//! | `groups`, `meters` | changes of groups and meters |
//! | `multipart`, `replies`, `table_features` | multipart requests and replies |
//! | `errors` | type and code of each error |

mod actions;
mod errors;
mod flows;
mod groups;
mod instructions;
mod meters;
mod multipart;
mod oxm;
mod ports;
mod replies;
mod session;
mod table_features;
#[cfg(test)]
mod tests;

pub use errors::error;
pub use multipart::encode_stats;

use super::{
    BadMessage, CannotSay, Message,
    common::{CONFIG, ERROR, PORT_REASON},
    format::{Choice, Except, Format, List, Pad, REST, U8, U32, U64, choice},
    wire::{HEADER, Header, Reader, Write, append},
};
use ports::PORT;

/// The version in the header.
pub const VERSION: u8 = 4;

/// OFPT: message types (section 7.1.1).
mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    pub const EXPERIMENTER: u8 = 4;
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
    pub const GROUP_MOD: u8 = 15;
    pub const PORT_MOD: u8 = 16;
    pub const TABLE_MOD: u8 = 17;
    pub const MULTIPART_REQUEST: u8 = 18;
    pub const MULTIPART_REPLY: u8 = 19;
    pub const BARRIER_REQUEST: u8 = 20;
    pub const BARRIER_REPLY: u8 = 21;
    pub const QUEUE_GET_CONFIG_REQUEST: u8 = 22;
    pub const QUEUE_GET_CONFIG_REPLY: u8 = 23;
    pub const ROLE_REQUEST: u8 = 24;
    pub const ROLE_REPLY: u8 = 25;
    pub const GET_ASYNC_REQUEST: u8 = 26;
    pub const GET_ASYNC_REPLY: u8 = 27;
    pub const SET_ASYNC: u8 = 28;
    pub const METER_MOD: u8 = 29;
}

/// A buffer, or OFP_NO_BUFFER.
const BUFFER: Except<U32, u32> = Except(U32, u32::MAX);
/// A table, or OFPTT_ALL.
const TABLE: Except<U8, u8> = Except(U8, u8::MAX);

/// Reads one whole message with its header, as [`split`](super::wire::split) returns it. A hello may be of any version, with
/// any body.
pub fn decode(message: &[u8]) -> Result<(Header, Message), BadMessage> {
    let header = Header::read(message).ok_or(BadMessage::Length)?;
    if header.version != VERSION && header.kind != kind::HELLO {
        return Err(BadMessage::Version);
    }
    let mut r = Reader::new(message, BadMessage::Length);
    r.skip(HEADER)?;
    let decoded = Body::read(header.kind, &mut r)?;
    let whole = r.is_empty() && usize::from(header.length) == message.len();
    if whole { Ok((header, decoded)) } else { Err(BadMessage::Length) }
}

/// Appends one message. If 1.3 cannot express it, `out` stays as it was.
pub fn encode(message: &Message, xid: u32, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    append::<Body>(VERSION, message, xid, cannot("a message of more than 65,535 bytes"), out)
}

choice! {
    Body: u8 => Message else BadMessage::Type;
    kind::HELLO => Hello { versions: session::HELLO },
    kind::ERROR => Error(error: ERROR),
    kind::ECHO_REQUEST => EchoRequest(data: REST),
    kind::ECHO_REPLY => EchoReply(data: REST),
    kind::EXPERIMENTER => Experimenter(experimenter: session::EXPERIMENTER),
    kind::FEATURES_REQUEST => FeaturesRequest,
    kind::FEATURES_REPLY => FeaturesReply(features: session::FEATURES),
    kind::GET_CONFIG_REQUEST => GetConfigRequest,
    kind::GET_CONFIG_REPLY => GetConfigReply(config: CONFIG),
    kind::SET_CONFIG => SetConfig(config: CONFIG),
    kind::PACKET_IN => PacketIn(packet: flows::PACKET_IN),
    kind::FLOW_REMOVED => FlowRemoved(removed: flows::FLOW_REMOVED),
    kind::PORT_STATUS => PortStatus { reason: PORT_REASON, port: ports::DESCRIPTION },
    kind::PACKET_OUT => PacketOut(packet: flows::PACKET_OUT),
    kind::FLOW_MOD => FlowMod(change: flows::FLOW_MOD),
    kind::GROUP_MOD => GroupMod(change: groups::GROUP_MOD),
    kind::PORT_MOD => PortMod(change: ports::PORT_MOD),
    kind::TABLE_MOD => TableMod { table: Pad(TABLE, 3), config: U32 },
    kind::MULTIPART_REQUEST => StatsRequest(request: multipart::REQUEST),
    kind::MULTIPART_REPLY => StatsReply by (multipart::read_reply, multipart::write_reply) of (reply, more),
    kind::BARRIER_REQUEST => BarrierRequest,
    kind::BARRIER_REPLY => BarrierReply,
    kind::QUEUE_GET_CONFIG_REQUEST => QueueConfigRequest { port: Pad(PORT, 4) },
    kind::QUEUE_GET_CONFIG_REPLY => QueueConfigReply { port: Pad(PORT, 4), queues: List(ports::QUEUE) },
    kind::ROLE_REQUEST => RoleRequest { role: Pad(session::ROLE, 4), generation: U64 },
    kind::ROLE_REPLY => RoleReply { role: Pad(session::ROLE, 4), generation: U64 },
    kind::GET_ASYNC_REQUEST => GetAsyncRequest,
    kind::GET_ASYNC_REPLY => GetAsyncReply(config: session::ASYNC),
    kind::SET_ASYNC => SetAsync(config: session::ASYNC),
    kind::METER_MOD => MeterMod(change: meters::METER_MOD),
}

const fn cannot(what: &'static str) -> CannotSay {
    CannotSay { version: "1.3", what }
}

/// The bytes from `length` to the next multiple of eight.
fn padding(length: usize) -> usize {
    length.wrapping_neg() % 8
}

/// Pads with zeros until the length from `from` on is a multiple of eight.
fn pad(out: &mut Vec<u8>, from: usize) {
    out.zeros(padding(out.len() - from));
}
