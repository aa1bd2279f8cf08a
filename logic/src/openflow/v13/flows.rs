//! Flow-mod, packet-in, packet-out and flow-removed.

use super::{
    BUFFER, TABLE,
    actions::{ACTIONS, Known},
    cannot, groups,
    instructions::InstructionsWith,
    oxm::MATCH,
    ports::PORT,
};
use crate::{
    flow::{FlowCommand, FlowFlags, FlowMod, Refused, Removed, RulePort},
    openflow::{
        BadMessage, CannotSay,
        common::COMMANDS,
        format::{
            Check, Counted, Except, Format, Layout, OneOf, OnlyIf, Pad, REST, U8, U16, U32, U64, layout,
        },
        message::{FlowRemoved, PacketIn, PacketInReason, PacketOut},
    },
};

/// Section 7.3.4.1. The output by which a command selects matters only for a delete.
pub(super) const FLOW_MOD: Layout<FlowMod> = layout!(FlowMod {
    cookie: U64,
    cookie_mask: U64,
    table: TABLE,
    command: Check(
        OneOf(U8, COMMANDS, BadMessage::Refused(Refused::BadCommand)),
        |command: &FlowCommand| match command.deletes() || table.is_some() {
            true => Ok(()),
            false => Err(Refused::BadTable.into()),
        },
        |command: &FlowCommand| match command.deletes() || table.is_some() {
            true => Ok(()),
            false => Err(cannot("to add or modify in all tables")),
        },
    ),
    idle_timeout: U16,
    hard_timeout: U16,
    priority: U16,
    buffer: BUFFER,
    out_port: OnlyIf(command.deletes(), OUT_PORT, 4),
    out_group: OnlyIf(command.deletes(), OUT_GROUP, 4),
    flags: Pad(FLAGS, 2),
    matching: MATCH,
    instructions: InstructionsWith(Known::of(&matching)),
});

/// The output port and the group by which a delete or a request selects. `None`: any.
pub(super) const OUT_PORT: Except<Layout<RulePort>, RulePort> = Except(PORT, RulePort::NONE);
pub(super) const OUT_GROUP: Except<U32, u32> = Except(U32, groups::ANY);

/// OFPFF.
pub(super) const FLAGS: Layout<FlowFlags> =
    Layout(|r| read_flags(r.u16()?), |flags, out| U16.write(&flags_bits(*flags)?, out));

fn read_flags(flags: u16) -> Result<FlowFlags, BadMessage> {
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

fn flags_bits(flags: FlowFlags) -> Result<u16, CannotSay> {
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
pub(super) const PACKET_IN: Layout<PacketIn> = layout!(PacketIn {
    buffer: BUFFER,
    total_len: U16,
    reason: OneOf(U8, PACKET_IN_REASONS, BadMessage::Type),
    table: U8,
    cookie: U64,
    matching: Pad(MATCH, 2),
    data: REST,
});

/// OFPR.
const PACKET_IN_REASONS: &[PacketInReason] =
    &[PacketInReason::NoMatch, PacketInReason::Action, PacketInReason::InvalidTtl];

/// Section 7.3.7. With a buffer there is no packet, and bytes after the actions are ignored.
pub(super) const PACKET_OUT: Layout<PacketOut> = Layout(
    |r| PACKET_OUT_FIELDS.read(r).map(PacketOut::without_ignored_data),
    |packet, out| {
        if packet.has_ignored_data() {
            return Err(cannot("a packet with both a buffer and data"));
        }
        PACKET_OUT_FIELDS.write(packet, out)
    },
);
const PACKET_OUT_FIELDS: Layout<PacketOut> = layout!(PacketOut {
    buffer: BUFFER,
    in_port: PORT,
    actions: Counted(6, BadMessage::ActionLength, ACTIONS),
    data: REST,
});

/// Section 7.4.2.
pub(super) const FLOW_REMOVED: Layout<FlowRemoved> = layout!(FlowRemoved {
    cookie: U64,
    priority: U16,
    reason: OneOf(U8, REMOVED, BadMessage::Type),
    table: U8,
    duration_sec: U32,
    duration_nsec: U32,
    idle_timeout: U16,
    hard_timeout: U16,
    packets: U64,
    bytes: U64,
    matching: MATCH,
});

/// OFPRR.
const REMOVED: &[Removed] = &[
    Removed::IdleTimeout,
    Removed::HardTimeout,
    Removed::Delete,
    Removed::GroupDelete,
    Removed::MeterDelete,
];
