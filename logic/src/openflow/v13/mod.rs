//! OpenFlow 1.3.5 on the wire: version 4. Section numbers in this module refer to its specification (ONF TS-023).
//!
//! | file | holds |
//! |---|---|
//! | `session` | hello, error, experimenter, features, switch settings, role, asynchronous settings |
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
    wire::{HEADER, Header, LONGEST, Reader, Write},
};

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

/// OFP_NO_BUFFER.
const NO_BUFFER: u32 = u32::MAX;
/// OFPTT_ALL.
const ALL_TABLES: u8 = u8::MAX;

/// Reads one whole message with its header, as [`split`](super::wire::split) returns it. A hello may be of any version, with
/// any body.
pub fn decode(message: &[u8]) -> Result<(Header, Message), BadMessage> {
    let header = Header::read(message).ok_or(BadMessage::Length)?;
    if header.version != VERSION && header.kind != kind::HELLO {
        return Err(BadMessage::Version);
    }
    let mut r = Reader::new(message, BadMessage::Length);
    r.skip(HEADER)?;
    let decoded = read_body(header.kind, &mut r)?;
    let whole = r.is_empty() && usize::from(header.length) == message.len();
    if whole { Ok((header, decoded)) } else { Err(BadMessage::Length) }
}

/// Appends one message. If 1.3 cannot express it, `out` stays as it was.
pub fn encode(message: &Message, xid: u32, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let from = out.len();
    begin(kind_of(message), xid, out);
    let written = write_body(message, out).and_then(|()| finish(from, out));
    if written.is_err() {
        out.truncate(from);
    }
    written
}

fn read_body(kind: u8, r: &mut Reader<'_>) -> Result<Message, BadMessage> {
    Ok(match kind {
        kind::HELLO => Message::Hello { versions: session::read_hello(&rest(r)?) },
        kind::ERROR => Message::Error(session::read_error(r)?),
        kind::ECHO_REQUEST => Message::EchoRequest(rest(r)?),
        kind::ECHO_REPLY => Message::EchoReply(rest(r)?),
        kind::EXPERIMENTER => Message::Experimenter(session::read_experimenter(r)?),
        kind::FEATURES_REQUEST => Message::FeaturesRequest,
        kind::FEATURES_REPLY => Message::FeaturesReply(session::read_features(r)?),
        kind::GET_CONFIG_REQUEST => Message::GetConfigRequest,
        kind::GET_CONFIG_REPLY => Message::GetConfigReply(session::read_config(r)?),
        kind::SET_CONFIG => Message::SetConfig(session::read_config(r)?),
        kind::PACKET_IN => Message::PacketIn(flows::read_packet_in(r)?),
        kind::FLOW_REMOVED => Message::FlowRemoved(flows::read_removed(r)?),
        kind::PORT_STATUS => ports::read_status(r)?,
        kind::PACKET_OUT => Message::PacketOut(flows::read_packet_out(r)?),
        kind::FLOW_MOD => Message::FlowMod(flows::read_mod(r)?),
        kind::GROUP_MOD => Message::GroupMod(groups::read_mod(r)?),
        kind::PORT_MOD => Message::PortMod(ports::read_mod(r)?),
        kind::TABLE_MOD => session::read_table_mod(r)?,
        kind::MULTIPART_REQUEST => Message::StatsRequest(multipart::read_request(r)?),
        kind::MULTIPART_REPLY => multipart::read_reply(r)?,
        kind::BARRIER_REQUEST => Message::BarrierRequest,
        kind::BARRIER_REPLY => Message::BarrierReply,
        kind::QUEUE_GET_CONFIG_REQUEST => Message::QueueConfigRequest { port: ports::read_padded(r)? },
        kind::QUEUE_GET_CONFIG_REPLY => ports::read_queues(r)?,
        kind::ROLE_REQUEST => {
            let (role, generation) = session::read_role(r)?;
            Message::RoleRequest { role, generation }
        }
        kind::ROLE_REPLY => {
            let (role, generation) = session::read_role(r)?;
            Message::RoleReply { role, generation }
        }
        kind::GET_ASYNC_REQUEST => Message::GetAsyncRequest,
        kind::GET_ASYNC_REPLY => Message::GetAsyncReply(session::read_async(r)?),
        kind::SET_ASYNC => Message::SetAsync(session::read_async(r)?),
        kind::METER_MOD => Message::MeterMod(meters::read_mod(r)?),
        _ => return Err(BadMessage::Type),
    })
}

fn kind_of(message: &Message) -> u8 {
    match message {
        Message::Hello { .. } => kind::HELLO,
        Message::Error(_) => kind::ERROR,
        Message::EchoRequest(_) => kind::ECHO_REQUEST,
        Message::EchoReply(_) => kind::ECHO_REPLY,
        Message::Experimenter(_) => kind::EXPERIMENTER,
        Message::FeaturesRequest => kind::FEATURES_REQUEST,
        Message::FeaturesReply(_) => kind::FEATURES_REPLY,
        Message::GetConfigRequest => kind::GET_CONFIG_REQUEST,
        Message::GetConfigReply(_) => kind::GET_CONFIG_REPLY,
        Message::SetConfig(_) => kind::SET_CONFIG,
        Message::PacketIn(_) => kind::PACKET_IN,
        Message::FlowRemoved(_) => kind::FLOW_REMOVED,
        Message::PortStatus { .. } => kind::PORT_STATUS,
        Message::PacketOut(_) => kind::PACKET_OUT,
        Message::FlowMod(_) => kind::FLOW_MOD,
        Message::GroupMod(_) => kind::GROUP_MOD,
        Message::PortMod(_) => kind::PORT_MOD,
        Message::TableMod { .. } => kind::TABLE_MOD,
        Message::StatsRequest(_) => kind::MULTIPART_REQUEST,
        Message::StatsReply { .. } => kind::MULTIPART_REPLY,
        Message::BarrierRequest => kind::BARRIER_REQUEST,
        Message::BarrierReply => kind::BARRIER_REPLY,
        Message::QueueConfigRequest { .. } => kind::QUEUE_GET_CONFIG_REQUEST,
        Message::QueueConfigReply { .. } => kind::QUEUE_GET_CONFIG_REPLY,
        Message::RoleRequest { .. } => kind::ROLE_REQUEST,
        Message::RoleReply { .. } => kind::ROLE_REPLY,
        Message::GetAsyncRequest => kind::GET_ASYNC_REQUEST,
        Message::GetAsyncReply(_) => kind::GET_ASYNC_REPLY,
        Message::SetAsync(_) => kind::SET_ASYNC,
        Message::MeterMod(_) => kind::METER_MOD,
    }
}

fn write_body(message: &Message, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    match message {
        Message::FeaturesRequest
        | Message::GetConfigRequest
        | Message::BarrierRequest
        | Message::BarrierReply
        | Message::GetAsyncRequest => {}
        Message::Hello { versions } => session::write_hello(versions.as_deref(), out),
        Message::Error(e) => session::write_error(e, out),
        Message::EchoRequest(data) | Message::EchoReply(data) => out.extend_from_slice(data),
        Message::Experimenter(e) => session::write_experimenter(e, out),
        Message::GetConfigReply(c) | Message::SetConfig(c) => session::write_config(*c, out),
        Message::TableMod { table, config } => session::write_table_mod(*table, *config, out),
        Message::RoleRequest { role, generation } | Message::RoleReply { role, generation } => {
            session::write_role(*role, *generation, out);
        }
        Message::GetAsyncReply(a) | Message::SetAsync(a) => session::write_async(a, out),
        Message::MeterMod(m) => meters::write_mod(m, out),
        Message::FeaturesReply(f) => return session::write_features(f, out),
        Message::PacketIn(p) => return flows::write_packet_in(p, out),
        Message::FlowRemoved(f) => return flows::write_removed(f, out),
        Message::PortStatus { reason, port } => return ports::write_status(*reason, port, out),
        Message::PacketOut(p) => return flows::write_packet_out(p, out),
        Message::FlowMod(m) => return flows::write_mod(m, out),
        Message::GroupMod(m) => return groups::write_mod(m, out),
        Message::PortMod(m) => return ports::write_mod(m, out),
        Message::StatsRequest(request) => return multipart::write_request(request, out),
        Message::StatsReply { reply, more } => return multipart::write_reply(reply, *more, out),
        Message::QueueConfigRequest { port } => return ports::write_padded(*port, out),
        Message::QueueConfigReply { port, queues } => return ports::write_queues(*port, queues, out),
    }
    Ok(())
}

/// Begins a message: writes the header with a length of 0.
fn begin(kind: u8, xid: u32, out: &mut Vec<u8>) {
    out.u8(VERSION);
    out.u8(kind);
    out.u16(0);
    out.u32(xid);
}

/// Writes the length of the message that begins at `from`.
fn finish(from: usize, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    if out.len() - from > LONGEST {
        return Err(cannot("a message of more than 65,535 bytes"));
    }
    out.patch_length(from + 2, from);
    Ok(())
}

fn cannot(what: &'static str) -> CannotSay {
    CannotSay { version: "1.3", what }
}

/// Takes all bytes that were not read yet.
fn rest(r: &mut Reader<'_>) -> Result<Vec<u8>, BadMessage> {
    r.take(r.rest().len()).map(<[u8]>::to_vec)
}

/// Reads items until the end. `item` must read at least one byte.
fn list<'a, T>(
    r: &mut Reader<'a>,
    item: impl Fn(&mut Reader<'a>) -> Result<T, BadMessage>,
) -> Result<Vec<T>, BadMessage> {
    let mut items = Vec::new();
    while !r.is_empty() {
        items.push(item(r)?);
    }
    Ok(items)
}

/// Takes the next structure. Its length is `at` bytes after its beginning and covers all of it.
fn structure<'a>(r: &mut Reader<'a>, at: usize, bad: BadMessage) -> Result<Reader<'a>, BadMessage> {
    let length = r.rest().get(at..at + 2).map(|l| u16::from_be_bytes([l[0], l[1]])).ok_or(bad)?;
    r.part(length.into(), bad).map_err(|_| bad)
}

/// The bytes from `length` to the next multiple of eight.
fn padding(length: usize) -> usize {
    length.wrapping_neg() % 8
}

/// Pads with zeros until the length from `from` on is a multiple of eight.
fn pad(out: &mut Vec<u8>, from: usize) {
    out.zeros(padding(out.len() - from));
}

/// `None` if the value is the one that stands for none, any or all.
fn unless<T: PartialEq>(value: T, none: T) -> Option<T> {
    (value != none).then_some(value)
}
