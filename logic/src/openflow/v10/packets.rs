//! Packet-in (section 5.4.1) and packet-out (section 5.3.6).

use super::{
    super::message::{PacketIn, PacketInReason, PacketOut},
    BadMessage, CannotSay, NO_BUFFER, Reader, UNKNOWN_REASON, Write, actions, cannot, flows, rest,
};
use crate::flow::{Field, Match, RulePort};

pub fn read_in(r: &mut Reader<'_>) -> Result<PacketIn, BadMessage> {
    let (buffer, total_len, in_port) = (r.u32()?, r.u16()?, r.u16()?);
    let reason = match r.u8()? {
        0 => PacketInReason::NoMatch,
        1 => PacketInReason::Action,
        _ => return Err(UNKNOWN_REASON),
    };
    r.skip(1)?;
    Ok(PacketIn {
        buffer: (buffer != NO_BUFFER).then_some(buffer),
        total_len,
        reason,
        table: 0,
        cookie: 0,
        matching: Match::ANY.with(Field::InPort, in_port),
        data: rest(r)?,
    })
}

pub fn write_in(packet: &PacketIn, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let in_port = packet.matching.exact(Field::InPort).ok_or(cannot("a packet from no port"))?;
    out.u32(flows::buffer(packet.buffer)?);
    out.u16(packet.total_len);
    out.u16(in_port as u16);
    out.u8(match packet.reason {
        PacketInReason::NoMatch => 0,
        // 1.0 has no reason for a TTL that is used up. The rule's action sends the packet.
        PacketInReason::Action | PacketInReason::InvalidTtl => 1,
    });
    out.zeros(1);
    out.extend_from_slice(&packet.data);
    Ok(())
}

/// If the packet is buffered, data is ignored.
pub fn read_out(r: &mut Reader<'_>) -> Result<PacketOut, BadMessage> {
    let (buffer, in_port, length) = (r.u32()?, RulePort(r.u16()?), r.u16()?);
    let actions = actions::read_list(r.take(length.into())?)?;
    if !can_come_from(in_port) {
        return Err(BadMessage::Port);
    }
    let buffer = (buffer != NO_BUFFER).then_some(buffer);
    let data = rest(r)?;
    Ok(PacketOut { buffer, in_port, actions, data: if buffer.is_none() { data } else { Vec::new() } })
}

pub fn write_out(packet: &PacketOut, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    if !can_come_from(packet.in_port) {
        return Err(cannot("a packet from this port"));
    }
    if packet.buffer.is_some() && !packet.data.is_empty() {
        return Err(cannot("a packet with both a buffer and data"));
    }
    out.u32(flows::buffer(packet.buffer)?);
    out.u16(packet.in_port.0);
    let length = out.len();
    out.zeros(2);
    actions::write_list(&packet.actions, out)?;
    out.patch_length(length, length + 2);
    out.extend_from_slice(&packet.data);
    Ok(())
}

/// May a controller's packet have this port as its ingress port?
fn can_come_from(port: RulePort) -> bool {
    port <= RulePort::MAX || [RulePort::CONTROLLER, RulePort::LOCAL, RulePort::NONE].contains(&port)
}
