//! OpenFlow 1.0.2 on the wire: version 1. Section numbers in this module refer to its specification.
//!
//! | file | holds |
//! |---|---|
//! | this file | dispatch by type, and short messages |
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
    message::{Config, ErrorMessage, Experimenter, Fragments, PortReason},
    wire::{HEADER, Header, LONGEST, Reader, Write},
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
    let decoded = read(header.kind, &mut r)?;
    if r.is_empty() { Ok((header, decoded)) } else { Err(BadMessage::Length) }
}

/// Appends one message. On error, `out` stays as it was.
pub fn encode(message: &Message, xid: u32, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    framed(xid, out, |out| write(message, out))
}

/// Appends a message. `write` appends the body and returns the type. On error, `out` stays as it was.
fn framed(
    xid: u32,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<u8, CannotSay>,
) -> Result<(), CannotSay> {
    let from = out.len();
    out.u8(VERSION);
    out.zeros(3);
    out.u32(xid);
    let written = match write(out) {
        Ok(_) if out.len() - from > LONGEST => Err(cannot("a message of this length")),
        written => written,
    };
    match written {
        Ok(kind) => {
            out[from + 1] = kind;
            out.patch_length(from + 2, from);
            Ok(())
        }
        Err(error) => {
            out.truncate(from);
            Err(error)
        }
    }
}

fn read(kind: u8, r: &mut Reader<'_>) -> Result<Message, BadMessage> {
    Ok(match kind {
        // Section 5.5.1: no body is defined, and a body is ignored.
        kind::HELLO => rest(r).map(|_| Message::Hello { versions: None })?,
        kind::ERROR => Message::Error(ErrorMessage { kind: r.u16()?, code: r.u16()?, data: rest(r)? }),
        kind::ECHO_REQUEST => Message::EchoRequest(rest(r)?),
        kind::ECHO_REPLY => Message::EchoReply(rest(r)?),
        kind::VENDOR => Message::Experimenter(read_vendor(r)?),
        kind::FEATURES_REQUEST => Message::FeaturesRequest,
        kind::FEATURES_REPLY => Message::FeaturesReply(ports::read_features(r)?),
        kind::GET_CONFIG_REQUEST => Message::GetConfigRequest,
        kind::GET_CONFIG_REPLY => Message::GetConfigReply(read_config(r)?),
        kind::SET_CONFIG => Message::SetConfig(read_config(r)?),
        kind::PACKET_IN => Message::PacketIn(packets::read_in(r)?),
        kind::FLOW_REMOVED => Message::FlowRemoved(flows::read_removed(r)?),
        kind::PORT_STATUS => {
            let reason = read_port_reason(r)?;
            Message::PortStatus { reason, port: ports::read_description(r)? }
        }
        kind::PACKET_OUT => Message::PacketOut(packets::read_out(r)?),
        kind::FLOW_MOD => Message::FlowMod(flows::read_mod(r)?),
        kind::PORT_MOD => Message::PortMod(ports::read_mod(r)?),
        kind::STATS_REQUEST => Message::StatsRequest(stats::read_request(r)?),
        kind::STATS_REPLY => {
            let (reply, more) = stats::read_reply(r)?;
            Message::StatsReply { reply, more }
        }
        kind::BARRIER_REQUEST => Message::BarrierRequest,
        kind::BARRIER_REPLY => Message::BarrierReply,
        kind::QUEUE_GET_CONFIG_REQUEST => {
            let port = RulePort(r.u16()?);
            r.skip(2)?;
            Message::QueueConfigRequest { port }
        }
        kind::QUEUE_GET_CONFIG_REPLY => {
            let (port, queues) = ports::read_queues(r)?;
            Message::QueueConfigReply { port, queues }
        }
        _ => return Err(BadMessage::Type),
    })
}

/// Writes the body of a message and returns its type.
fn write(message: &Message, out: &mut Vec<u8>) -> Result<u8, CannotSay> {
    Ok(match message {
        Message::Hello { versions: None } => kind::HELLO,
        Message::Hello { versions: Some(_) } => return Err(cannot("a bitmap of versions")),
        Message::Error(error) => {
            out.u16(error.kind);
            out.u16(error.code);
            append(kind::ERROR, &error.data, out)
        }
        Message::EchoRequest(data) => append(kind::ECHO_REQUEST, data, out),
        Message::EchoReply(data) => append(kind::ECHO_REPLY, data, out),
        Message::Experimenter(vendor) => {
            write_vendor(vendor, out);
            kind::VENDOR
        }
        Message::FeaturesRequest => kind::FEATURES_REQUEST,
        Message::FeaturesReply(features) => {
            ports::write_features(features, out).map(|()| kind::FEATURES_REPLY)?
        }
        Message::GetConfigRequest => kind::GET_CONFIG_REQUEST,
        Message::GetConfigReply(config) => write_config(kind::GET_CONFIG_REPLY, config, out),
        Message::SetConfig(config) => write_config(kind::SET_CONFIG, config, out),
        Message::PacketIn(packet) => packets::write_in(packet, out).map(|()| kind::PACKET_IN)?,
        Message::FlowRemoved(removed) => flows::write_removed(removed, out).map(|()| kind::FLOW_REMOVED)?,
        Message::PortStatus { reason, port } => {
            write_port_reason(*reason, out);
            ports::write_description(port, out);
            kind::PORT_STATUS
        }
        Message::PacketOut(packet) => packets::write_out(packet, out).map(|()| kind::PACKET_OUT)?,
        Message::FlowMod(change) => flows::write_mod(change, out).map(|()| kind::FLOW_MOD)?,
        Message::PortMod(change) => ports::write_mod(change, out).map(|()| kind::PORT_MOD)?,
        Message::StatsRequest(request) => stats::write_request(request, out).map(|()| kind::STATS_REQUEST)?,
        Message::StatsReply { reply, more } => {
            stats::write_reply(reply, *more, out).map(|()| kind::STATS_REPLY)?
        }
        Message::BarrierRequest => kind::BARRIER_REQUEST,
        Message::BarrierReply => kind::BARRIER_REPLY,
        Message::QueueConfigRequest { port } => {
            out.u16(port.0);
            out.zeros(2);
            kind::QUEUE_GET_CONFIG_REQUEST
        }
        Message::QueueConfigReply { port, queues } => {
            ports::write_queues(*port, queues, out).map(|()| kind::QUEUE_GET_CONFIG_REPLY)?
        }
        Message::GroupMod(_) => return Err(cannot("groups")),
        Message::MeterMod(_) => return Err(cannot("meters")),
        Message::TableMod { .. } => return Err(cannot("table settings")),
        Message::RoleRequest { .. } | Message::RoleReply { .. } => return Err(cannot("roles")),
        Message::GetAsyncRequest | Message::GetAsyncReply(_) | Message::SetAsync(_) => {
            return Err(cannot("which messages a controller wants"));
        }
    })
}

/// Takes all bytes that were not read yet.
fn rest(r: &mut Reader<'_>) -> Result<Vec<u8>, BadMessage> {
    r.take(r.rest().len()).map(<[u8]>::to_vec)
}

fn append(kind: u8, data: &[u8], out: &mut Vec<u8>) -> u8 {
    out.extend_from_slice(data);
    kind
}

/// Sections 5.5.4 and 5.3.5, OFPST_VENDOR: a vendor id and any data. All vendors known here put a subtype first. If the
/// message is too short for one, the vendor is treated as unknown.
fn read_vendor(r: &mut Reader<'_>) -> Result<Experimenter, BadMessage> {
    let id = r.u32()?;
    let subtype = r.u32().map_err(|_| BadMessage::Experimenter)?;
    Ok(Experimenter { id, subtype, body: rest(r)? })
}

fn write_vendor(vendor: &Experimenter, out: &mut Vec<u8>) {
    out.u32(vendor.id);
    out.u32(vendor.subtype);
    out.extend_from_slice(&vendor.body);
}

/// Section 5.3.2.
fn read_config(r: &mut Reader<'_>) -> Result<Config, BadMessage> {
    let (flags, miss_send_len) = (r.u16()?, r.u16()?);
    let fragments = match flags {
        0 => Fragments::Normal,
        1 => Fragments::Drop,
        2 => Fragments::Reassemble,
        _ => return Err(BadMessage::SwitchConfig),
    };
    Ok(Config { fragments, miss_send_len })
}

fn write_config(kind: u8, config: &Config, out: &mut Vec<u8>) -> u8 {
    out.u16(match config.fragments {
        Fragments::Normal => 0,
        Fragments::Drop => 1,
        Fragments::Reassemble => 2,
    });
    out.u16(config.miss_send_len);
    kind
}

/// Section 5.4.3.
fn read_port_reason(r: &mut Reader<'_>) -> Result<PortReason, BadMessage> {
    let reason = match r.u8()? {
        0 => PortReason::Add,
        1 => PortReason::Delete,
        2 => PortReason::Modify,
        _ => return Err(UNKNOWN_REASON),
    };
    r.skip(7)?;
    Ok(reason)
}

fn write_port_reason(reason: PortReason, out: &mut Vec<u8>) {
    out.u8(match reason {
        PortReason::Add => 0,
        PortReason::Delete => 1,
        PortReason::Modify => 2,
    });
    out.zeros(7);
}
