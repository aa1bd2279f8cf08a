//! Flow-mod (section 5.3.3) and flow-removed (section 5.4.2).
//!
//! Properties that are implicit in 1.0 are explicit in the common form: an add resets counters, and a delete applies to
//! all tables. `out_port` and `buffer` are left out where 1.0 ignores them.

use super::{
    super::message::FlowRemoved,
    BadMessage, CannotSay, NO_BUFFER, Reader, UNKNOWN_REASON, Write, actions, cannot,
    matching::{self, Wire},
};
use crate::flow::{
    Action, FlowCommand, FlowFlags, FlowMod, Instructions, Match, Refused, Removed, RulePort, TableId,
};

/// OFPFF.
mod flag {
    pub const SEND_FLOW_REM: u16 = 1 << 0;
    pub const CHECK_OVERLAP: u16 = 1 << 1;
    pub const EMERG: u16 = 1 << 2;
    pub const ALL: u16 = SEND_FLOW_REM | CHECK_OVERLAP | EMERG;
}

/// OFPFC, in the order of its numbers.
const COMMANDS: [FlowCommand; 5] = [
    FlowCommand::Add,
    FlowCommand::Modify { strict: false },
    FlowCommand::Modify { strict: true },
    FlowCommand::Delete { strict: false },
    FlowCommand::Delete { strict: true },
];

/// OFPRR, in the order of its numbers.
const REASONS: [Removed; 3] = [Removed::IdleTimeout, Removed::HardTimeout, Removed::Delete];

pub fn read_mod(r: &mut Reader<'_>) -> Result<FlowMod, BadMessage> {
    let wire = Wire::read(r)?;
    let (cookie, command) = (r.u64()?, r.u16()?);
    let (idle_timeout, hard_timeout, priority) = (r.u16()?, r.u16()?, r.u16()?);
    let (buffer, out_port, flags) = (r.u32()?, RulePort(r.u16()?), r.u16()?);
    let actions = actions::read_list(r.take(r.rest().len())?)?;
    let command = *COMMANDS.get(usize::from(command)).ok_or(Refused::BadCommand)?;
    if flags & !flag::ALL != 0 {
        return Err(BadMessage::Flags);
    }
    let deletes = is_delete(command);
    Ok(FlowMod {
        command,
        table: table_of(command),
        cookie,
        cookie_mask: 0,
        // Section 3.4: an exact match always has the highest priority.
        priority: if wire.is_exact() { u16::MAX } else { priority },
        matching: wire.matching(),
        instructions: Instructions::apply(actions),
        idle_timeout,
        hard_timeout,
        out_port: (deletes && out_port != RulePort::NONE).then_some(out_port),
        out_group: None,
        flags: FlowFlags {
            send_removed: flags & flag::SEND_FLOW_REM != 0,
            check_overlap: flags & flag::CHECK_OVERLAP != 0,
            emergency: flags & flag::EMERG != 0,
            reset_counts: command == FlowCommand::Add,
            ..FlowFlags::default()
        },
        buffer: (!deletes && buffer != NO_BUFFER).then_some(buffer),
    })
}

pub fn write_mod(change: &FlowMod, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let wire = Wire::of(&change.matching)?;
    let deletes = is_delete(change.command);
    let foreign = [
        (change.table != table_of(change.command), "this table to change"),
        (change.cookie_mask != 0, "a selection by cookie"),
        (change.out_group.is_some(), "groups"),
        (!deletes && change.out_port.is_some(), "a selection by output, except in a delete"),
        (deletes && change.buffer.is_some(), "a buffered packet with a delete"),
        (change.flags.no_packet_counts || change.flags.no_byte_counts, "a rule without counters"),
        (change.flags.reset_counts != (change.command == FlowCommand::Add), "this flag to reset counters"),
        (wire.is_exact() && change.priority != u16::MAX, "an exact match of a lower priority"),
    ];
    if let Some((_, what)) = foreign.into_iter().find(|(is, _)| *is) {
        return Err(cannot(what));
    }
    wire.write(out);
    out.u64(change.cookie);
    out.u16(number(&COMMANDS, change.command).ok_or(cannot("this command"))?);
    out.u16(change.idle_timeout);
    out.u16(change.hard_timeout);
    out.u16(change.priority);
    out.u32(buffer(change.buffer)?);
    out.u16(change.out_port.unwrap_or(RulePort::NONE).0);
    let flags = [
        (change.flags.send_removed, flag::SEND_FLOW_REM),
        (change.flags.check_overlap, flag::CHECK_OVERLAP),
        (change.flags.emergency, flag::EMERG),
    ];
    out.u16(flags.into_iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum());
    actions::write_list(only_actions(&change.instructions)?, out)
}

pub fn read_removed(r: &mut Reader<'_>) -> Result<FlowRemoved, BadMessage> {
    let matching: Match = matching::read(r)?;
    let (cookie, priority, reason) = (r.u64()?, r.u16()?, r.u8()?);
    r.skip(1)?;
    let (duration_sec, duration_nsec, idle_timeout) = (r.u32()?, r.u32()?, r.u16()?);
    r.skip(2)?;
    Ok(FlowRemoved {
        matching,
        cookie,
        priority,
        reason: *REASONS.get(usize::from(reason)).ok_or(UNKNOWN_REASON)?,
        table: 0,
        duration_sec,
        duration_nsec,
        idle_timeout,
        hard_timeout: 0,
        packets: r.u64()?,
        bytes: r.u64()?,
    })
}

pub fn write_removed(removed: &FlowRemoved, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    matching::write(&removed.matching, out)?;
    out.u64(removed.cookie);
    out.u16(removed.priority);
    // 1.0 has no groups and meters, so a rule that ends with its group or meter is reported as deleted.
    out.u8(number(&REASONS, removed.reason).unwrap_or(2) as u8);
    out.zeros(1);
    out.u32(removed.duration_sec);
    out.u32(removed.duration_nsec);
    out.u16(removed.idle_timeout);
    out.zeros(2);
    out.u64(removed.packets);
    out.u64(removed.bytes);
    Ok(())
}

/// The actions, if the instructions contain nothing else.
pub fn only_actions(instructions: &Instructions) -> Result<&[Action], CannotSay> {
    match instructions {
        Instructions { meter: None, apply, clear: false, write, metadata: None, goto_table: None }
            if write.is_empty() =>
        {
            Ok(apply)
        }
        _ => Err(cannot("instructions other than to apply actions")),
    }
}

/// `buffer_id` on the wire.
pub fn buffer(id: Option<u32>) -> Result<u32, CannotSay> {
    match id {
        Some(NO_BUFFER) => Err(cannot("a buffer of this number")),
        id => Ok(id.unwrap_or(NO_BUFFER)),
    }
}

fn is_delete(command: FlowCommand) -> bool {
    matches!(command, FlowCommand::Delete { .. })
}

fn table_of(command: FlowCommand) -> Option<TableId> {
    (!is_delete(command)).then_some(0)
}

fn number<T: PartialEq>(list: &[T], one: T) -> Option<u16> {
    list.iter().position(|x| *x == one).map(|at| at as u16)
}
