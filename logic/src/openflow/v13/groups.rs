//! Changes and descriptions of groups (sections 7.3.4.2 and 7.3.5.10).

use super::{actions::ACTIONS, flows::OUT_PORT, ports};
use crate::{
    flow::{Group, GroupKind, GroupMod, Refused, RulePort, rule::Bucket},
    openflow::{
        BadMessage, CannotSay,
        format::{
            Choice, Except, Format, Layout, List, OneOf, Pad, Sized, Skip, U8, U16, U32, choice, layout,
        },
        wire::{Reader, Write},
    },
};

/// OFPG_MAX: the last number that a group may have.
const MAX: u32 = 0xffff_ff00;
/// OFPG_ALL.
pub(super) const ALL: u32 = 0xffff_fffc;
/// OFPG_ANY.
pub(super) const ANY: u32 = u32::MAX;

choice! {
    /// OFPGC: commands (section 7.3.4.2).
    Command: u16 => GroupMod else Refused::BadCommand;
    ADD => Add(group: GROUP),
    MODIFY => Modify(group: GROUP),
    DELETE => Delete(id: GROUP_TO_DELETE),
}
const ADD: u16 = 0;
const MODIFY: u16 = 1;
const DELETE: u16 = 2;

pub(super) const GROUP_MOD: Layout<GroupMod> = Layout(
    |r| Command::read(r.u16()?, r),
    |change, out| {
        out.u16(Command::number(change)?);
        Command::write(change, out)
    },
);

/// In a delete, only the number matters.
const GROUP_TO_DELETE: Layout<Option<u32>> = Layout(
    |r| {
        let id = Skip(2, Except(U32, ALL)).read(r)?;
        r.skip(r.rest().len())?;
        id.map_or(Ok(None), |id| check_id(id).map(Some))
    },
    |id, out| Skip(2, Except(U32, ALL)).write(id, out),
);

/// A group after its length or command.
const GROUP: Layout<Group> = layout!(Group {
    kind: Pad(OneOf(U8, KINDS, BadMessage::GroupType), 1),
    id: ID,
    buckets: List(Sized(0, BadMessage::Bucket, BUCKET)),
});

/// OFPGT.
const KINDS: &[GroupKind] =
    &[GroupKind::All, GroupKind::Select, GroupKind::Indirect, GroupKind::FastFailover];

const ID: Layout<u32> = Layout(|r| check_id(r.u32()?), |id, out| U32.write(id, out));

fn check_id(id: u32) -> Result<u32, BadMessage> {
    if id <= MAX { Ok(id) } else { Err(Refused::InvalidGroup.into()) }
}

/// A group's description (section 7.3.5.10).
pub(super) const DESCRIPTION: Sized<Skip<Layout<Group>>> = Sized(0, BadMessage::Length, Skip(2, GROUP));

/// A bucket, with the length before it.
const BUCKET: Layout<Bucket> = layout!(Bucket {
    weight: Skip(2, U16),
    watch_port: WATCH_PORT,
    watch_group: Pad(Except(U32, ANY), 4),
    actions: ACTIONS,
});

const WATCH_PORT: Layout<Option<RulePort>> = Layout(
    |r| {
        let port = ports::from_wire(r.u32()?).ok_or(Refused::BadWatch)?;
        Ok((port != RulePort::NONE).then_some(port))
    },
    |port, out| OUT_PORT.write(port, out),
);
