//! Flow-mod (section 5.3.3) and flow-removed (section 5.4.2).
//!
//! Properties that are implicit in 1.0 are explicit in the common form: an add resets counters, and a delete applies to
//! all tables. `out_port` and `buffer` are left out where 1.0 ignores them.

use super::{
    super::message::FlowRemoved,
    BUFFER, BadMessage, CannotSay, PORT, Reader, UNKNOWN_REASON, Write,
    actions::ACTIONS,
    cannot,
    matching::{MATCH, WIRE, Wire},
};
use crate::{
    flow::{FlowCommand, FlowFlags, FlowMod, Instructions, Refused, Removed, RulePort, TableId},
    openflow::{
        common::COMMANDS,
        format::{Format, Layout, OneOf, Pad, U8, U16, U32, U64, layout},
    },
};

/// OFPFF.
mod flag {
    pub const SEND_FLOW_REM: u16 = 1 << 0;
    pub const CHECK_OVERLAP: u16 = 1 << 1;
    pub const EMERG: u16 = 1 << 2;
    pub const ALL: u16 = SEND_FLOW_REM | CHECK_OVERLAP | EMERG;
}

pub const FLOW_MOD: Layout<FlowMod> = Layout(read_mod, write_mod);

fn read_mod(r: &mut Reader<'_>) -> Result<FlowMod, BadMessage> {
    let wire = WIRE.read(r)?;
    let (cookie, command) = (r.u64()?, r.u16()?);
    let (idle_timeout, hard_timeout, priority) = (r.u16()?, r.u16()?, r.u16()?);
    let (buffer, out_port, flags) = (BUFFER.read(r)?, PORT.read(r)?, r.u16()?);
    let instructions = APPLIED.read(r)?;
    let command = *COMMANDS.get(usize::from(command)).ok_or(Refused::BadCommand)?;
    if flags & !flag::ALL != 0 {
        return Err(BadMessage::Flags);
    }
    let deletes = command.deletes();
    Ok(FlowMod {
        command,
        table: table_of(command),
        cookie,
        cookie_mask: 0,
        // Section 3.4: an exact match always has the highest priority.
        priority: if wire.is_exact() { u16::MAX } else { priority },
        matching: wire.matching(),
        instructions,
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
        buffer: buffer.filter(|_| !deletes),
    })
}

fn write_mod(change: &FlowMod, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let wire = Wire::of(&change.matching)?;
    let deletes = change.command.deletes();
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
    WIRE.write(&wire, out)?;
    out.u64(change.cookie);
    OneOf(U16, COMMANDS, Refused::BadCommand.into()).write(&change.command, out)?;
    out.u16(change.idle_timeout);
    out.u16(change.hard_timeout);
    out.u16(change.priority);
    BUFFER.write(&change.buffer, out)?;
    PORT.write(&change.out_port.unwrap_or(RulePort::NONE), out)?;
    let flags = [
        (change.flags.send_removed, flag::SEND_FLOW_REM),
        (change.flags.check_overlap, flag::CHECK_OVERLAP),
        (change.flags.emergency, flag::EMERG),
    ];
    out.u16(flags.into_iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum());
    APPLIED.write(&change.instructions, out)
}

pub const FLOW_REMOVED: Layout<FlowRemoved> = layout!(
    FlowRemoved {
        matching: MATCH,
        cookie: U64,
        priority: U16,
        reason: Pad(REASON, 1),
        duration_sec: U32,
        duration_nsec: U32,
        idle_timeout: Pad(U16, 2),
        packets: U64,
        bytes: U64,
    },
    absent { table: 0, hard_timeout: 0 }
);

/// OFPRR. 1.0 has no groups and meters, so a rule that ends with its group or meter is reported as deleted.
const REASON: OneOf<U8, Removed> =
    OneOf(U8, &[Removed::IdleTimeout, Removed::HardTimeout, Removed::Delete], UNKNOWN_REASON);

/// Instructions that contain nothing except actions to apply.
pub const APPLIED: Layout<Instructions> = Layout(
    |r| ACTIONS.read(r).map(Instructions::apply),
    |instructions, out| match instructions {
        Instructions { meter: None, apply, clear: false, write, metadata: None, goto_table: None }
            if write.is_empty() =>
        {
            ACTIONS.write(apply, out)
        }
        _ => Err(cannot("instructions other than to apply actions")),
    },
);

fn table_of(command: FlowCommand) -> Option<TableId> {
    (!command.deletes()).then_some(0)
}
