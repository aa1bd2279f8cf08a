//! Flow-mod, packet-in, packet-out and flow-removed.

use super::{
    ALL_TABLES, NO_BUFFER,
    actions::{self, Known},
    cannot, groups, instructions, oxm, ports, rest, unless,
};
use crate::{
    flow::{FlowCommand, FlowFlags, FlowMod, Refused, Removed, RulePort},
    openflow::{
        BadMessage, CannotSay,
        message::{FlowRemoved, PacketIn, PacketInReason, PacketOut},
        wire::{Reader, Write},
    },
};

/// Section 7.3.4.1.
pub(super) fn read_mod(r: &mut Reader<'_>) -> Result<FlowMod, BadMessage> {
    let (cookie, cookie_mask, table, command) = (r.u64()?, r.u64()?, r.u8()?, r.u8()?);
    let command = match command {
        0 => FlowCommand::Add,
        1 => FlowCommand::Modify { strict: false },
        2 => FlowCommand::Modify { strict: true },
        3 => FlowCommand::Delete { strict: false },
        4 => FlowCommand::Delete { strict: true },
        _ => return Err(Refused::BadCommand.into()),
    };
    let deletes = matches!(command, FlowCommand::Delete { .. });
    let table = unless(table, ALL_TABLES);
    if table.is_none() && !deletes {
        return Err(Refused::BadTable.into());
    }
    let (idle_timeout, hard_timeout, priority) = (r.u16()?, r.u16()?, r.u16()?);
    let buffer = unless(r.u32()?, NO_BUFFER);
    // The filter by output matters only for a delete. Other commands may have any value there.
    let (out_port, out_group) = (r.u32()?, unless(r.u32()?, groups::ANY).filter(|_| deletes));
    let out_port = if deletes { read_out_port(out_port)? } else { None };
    let flags = read_flags(r.u16()?)?;
    r.skip(2)?;
    let matching = oxm::read_match(r)?;
    Ok(FlowMod {
        command,
        table,
        cookie,
        cookie_mask,
        priority,
        matching,
        instructions: instructions::read(r)?,
        idle_timeout,
        hard_timeout,
        out_port,
        out_group,
        flags,
        buffer,
    })
}

pub(super) fn write_mod(change: &FlowMod, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let deletes = matches!(change.command, FlowCommand::Delete { .. });
    if change.table.is_none() && !deletes {
        return Err(cannot("to add or modify in all tables"));
    }
    out.u64(change.cookie);
    out.u64(change.cookie_mask);
    out.u8(change.table.unwrap_or(ALL_TABLES));
    out.u8(match change.command {
        FlowCommand::Add => 0,
        FlowCommand::Modify { strict: false } => 1,
        FlowCommand::Modify { strict: true } => 2,
        FlowCommand::Delete { strict: false } => 3,
        FlowCommand::Delete { strict: true } => 4,
    });
    out.u16(change.idle_timeout);
    out.u16(change.hard_timeout);
    out.u16(change.priority);
    out.u32(change.buffer.unwrap_or(NO_BUFFER));
    write_out(change.out_port, change.out_group, out)?;
    out.u16(write_flags(change.flags)?);
    out.zeros(2);
    oxm::write_match(&change.matching, out)?;
    instructions::write(&change.instructions, &change.matching, out)
}

/// The output port by which a delete or a request filters. `None`: any port.
pub(super) fn read_out_port(number: u32) -> Result<Option<RulePort>, BadMessage> {
    let port = ports::from_wire(number).ok_or(BadMessage::Port)?;
    Ok(unless(port, RulePort::NONE))
}

/// Writes the output port and the group by which a delete or a request filters.
pub(super) fn write_out(
    port: Option<RulePort>,
    group: Option<u32>,
    out: &mut Vec<u8>,
) -> Result<(), CannotSay> {
    out.u32(ports::to_wire(port.unwrap_or(RulePort::NONE))?);
    out.u32(group.unwrap_or(groups::ANY));
    Ok(())
}

/// OFPFF.
pub(super) fn read_flags(flags: u16) -> Result<FlowFlags, BadMessage> {
    let flag = |bit: u32| flags >> bit & 1 == 1;
    if flags >> 5 != 0 {
        return Err(BadMessage::Flags);
    }
    Ok(FlowFlags {
        send_removed: flag(0),
        check_overlap: flag(1),
        reset_counts: flag(2),
        no_packet_counts: flag(3),
        no_byte_counts: flag(4),
        emergency: false,
    })
}

pub(super) fn write_flags(flags: FlowFlags) -> Result<u16, CannotSay> {
    if flags.emergency {
        return Err(cannot("a rule of the emergency table"));
    }
    let bits = [
        flags.send_removed,
        flags.check_overlap,
        flags.reset_counts,
        flags.no_packet_counts,
        flags.no_byte_counts,
    ];
    Ok(bits.iter().rev().fold(0, |flags, &bit| flags << 1 | u16::from(bit)))
}

/// Section 7.4.1.
pub(super) fn read_packet_in(r: &mut Reader<'_>) -> Result<PacketIn, BadMessage> {
    let (buffer, total_len) = (unless(r.u32()?, NO_BUFFER), r.u16()?);
    let reason = match r.u8()? {
        0 => PacketInReason::NoMatch,
        1 => PacketInReason::Action,
        2 => PacketInReason::InvalidTtl,
        _ => return Err(BadMessage::Type),
    };
    let (table, cookie, matching) = (r.u8()?, r.u64()?, oxm::read_match(r)?);
    r.skip(2)?;
    Ok(PacketIn { buffer, total_len, reason, table, cookie, matching, data: rest(r)? })
}

pub(super) fn write_packet_in(packet: &PacketIn, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    out.u32(packet.buffer.unwrap_or(NO_BUFFER));
    out.u16(packet.total_len);
    out.u8(match packet.reason {
        PacketInReason::NoMatch => 0,
        PacketInReason::Action => 1,
        PacketInReason::InvalidTtl => 2,
    });
    out.u8(packet.table);
    out.u64(packet.cookie);
    oxm::write_match(&packet.matching, out)?;
    out.zeros(2);
    out.extend_from_slice(&packet.data);
    Ok(())
}

/// Section 7.3.7. With a buffer there is no packet, and bytes after the actions are ignored.
pub(super) fn read_packet_out(r: &mut Reader<'_>) -> Result<PacketOut, BadMessage> {
    let (buffer, in_port, actions) = (unless(r.u32()?, NO_BUFFER), ports::read(r)?, r.u16()?);
    r.skip(6)?;
    let actions = actions::read_list(&mut r.part(actions.into(), BadMessage::ActionLength)?)?;
    let data = rest(r)?;
    Ok(PacketOut { buffer, in_port, actions, data: if buffer.is_none() { data } else { Vec::new() } })
}

pub(super) fn write_packet_out(packet: &PacketOut, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    if packet.buffer.is_some() && !packet.data.is_empty() {
        return Err(cannot("a packet with both a buffer and data"));
    }
    out.u32(packet.buffer.unwrap_or(NO_BUFFER));
    out.u32(ports::to_wire(packet.in_port)?);
    let length = out.len();
    out.zeros(8);
    actions::write_list(&packet.actions, Known::default(), out)?;
    out.patch_length(length, length + 8);
    out.extend_from_slice(&packet.data);
    Ok(())
}

/// Section 7.4.2.
pub(super) fn read_removed(r: &mut Reader<'_>) -> Result<FlowRemoved, BadMessage> {
    let (cookie, priority) = (r.u64()?, r.u16()?);
    let reason = match r.u8()? {
        0 => Removed::IdleTimeout,
        1 => Removed::HardTimeout,
        2 => Removed::Delete,
        3 => Removed::GroupDelete,
        4 => Removed::MeterDelete,
        _ => return Err(BadMessage::Type),
    };
    Ok(FlowRemoved {
        cookie,
        priority,
        reason,
        table: r.u8()?,
        duration_sec: r.u32()?,
        duration_nsec: r.u32()?,
        idle_timeout: r.u16()?,
        hard_timeout: r.u16()?,
        packets: r.u64()?,
        bytes: r.u64()?,
        matching: oxm::read_match(r)?,
    })
}

pub(super) fn write_removed(removed: &FlowRemoved, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    out.u64(removed.cookie);
    out.u16(removed.priority);
    out.u8(match removed.reason {
        Removed::IdleTimeout => 0,
        Removed::HardTimeout => 1,
        Removed::Delete => 2,
        Removed::GroupDelete => 3,
        Removed::MeterDelete => 4,
    });
    out.u8(removed.table);
    out.u32(removed.duration_sec);
    out.u32(removed.duration_nsec);
    out.u16(removed.idle_timeout);
    out.u16(removed.hard_timeout);
    out.u64(removed.packets);
    out.u64(removed.bytes);
    oxm::write_match(&removed.matching, out)
}
