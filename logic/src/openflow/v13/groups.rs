//! Changes and descriptions of groups (sections 7.3.4.2 and 7.3.5.10).

use super::{
    actions::{self, Known},
    list, ports, structure, unless,
};
use crate::{
    flow::{Group, GroupKind, GroupMod, Refused, RulePort, rule::Bucket},
    openflow::{
        BadMessage, CannotSay,
        wire::{Reader, Write},
    },
};

/// OFPG_MAX: the last number that a group may have.
const MAX: u32 = 0xffff_ff00;
/// OFPG_ALL.
pub(super) const ALL: u32 = 0xffff_fffc;
/// OFPG_ANY.
pub(super) const ANY: u32 = u32::MAX;

/// OFPGC: commands.
const ADD: u16 = 0;
const MODIFY: u16 = 1;
const DELETE: u16 = 2;

/// Section 7.3.4.2. In a delete, only the number matters.
pub(super) fn read_mod(r: &mut Reader<'_>) -> Result<GroupMod, BadMessage> {
    match r.u16()? {
        ADD => Ok(GroupMod::Add(read_group(r)?)),
        MODIFY => Ok(GroupMod::Modify(read_group(r)?)),
        DELETE => {
            r.skip(2)?;
            let id = unless(r.u32()?, ALL);
            r.skip(r.rest().len())?;
            id.map_or(Ok(None), |id| check_id(id).map(Some)).map(GroupMod::Delete)
        }
        _ => Err(Refused::BadCommand.into()),
    }
}

pub(super) fn write_mod(change: &GroupMod, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    match change {
        GroupMod::Add(group) => {
            out.u16(ADD);
            write_group(group, out)
        }
        GroupMod::Modify(group) => {
            out.u16(MODIFY);
            write_group(group, out)
        }
        GroupMod::Delete(id) => {
            out.u16(DELETE);
            out.zeros(2);
            out.u32(id.unwrap_or(ALL));
            Ok(())
        }
    }
}

/// Reads a group after its length or command.
fn read_group(r: &mut Reader<'_>) -> Result<Group, BadMessage> {
    let kind = match r.u8()? {
        0 => GroupKind::All,
        1 => GroupKind::Select,
        2 => GroupKind::Indirect,
        3 => GroupKind::FastFailover,
        _ => return Err(BadMessage::GroupType),
    };
    r.skip(1)?;
    Ok(Group { id: check_id(r.u32()?)?, kind, buckets: list(r, read_bucket)? })
}

fn write_group(group: &Group, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    out.u8(match group.kind {
        GroupKind::All => 0,
        GroupKind::Select => 1,
        GroupKind::Indirect => 2,
        GroupKind::FastFailover => 3,
    });
    out.zeros(1);
    out.u32(group.id);
    group.buckets.iter().try_for_each(|bucket| write_bucket(bucket, out))
}

fn check_id(id: u32) -> Result<u32, BadMessage> {
    if id <= MAX { Ok(id) } else { Err(Refused::InvalidGroup.into()) }
}

/// Reads a group's description (section 7.3.5.10).
pub(super) fn read_description(r: &mut Reader<'_>) -> Result<Group, BadMessage> {
    let mut r = structure(r, 0, BadMessage::Length)?;
    r.skip(2)?;
    read_group(&mut r)
}

pub(super) fn write_description(group: &Group, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let from = out.len();
    out.zeros(2);
    write_group(group, out)?;
    out.patch_length(from, from);
    Ok(())
}

fn read_bucket(r: &mut Reader<'_>) -> Result<Bucket, BadMessage> {
    let mut r = structure(r, 0, BadMessage::Bucket)?;
    r.skip(2)?;
    let weight = r.u16()?;
    let watch_port = ports::from_wire(r.u32()?).ok_or(Refused::BadWatch)?;
    let watch_group = unless(r.u32()?, ANY);
    r.skip(4)?;
    let actions = actions::read_list(&mut r.part(r.rest().len(), BadMessage::ActionLength)?)?;
    Ok(Bucket { weight, watch_port: unless(watch_port, RulePort::NONE), watch_group, actions })
}

fn write_bucket(bucket: &Bucket, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let from = out.len();
    out.zeros(2);
    out.u16(bucket.weight);
    out.u32(ports::to_wire(bucket.watch_port.unwrap_or(RulePort::NONE))?);
    out.u32(bucket.watch_group.unwrap_or(ANY));
    out.zeros(4);
    actions::write_list(&bucket.actions, Known::default(), out)?;
    out.patch_length(from, from);
    Ok(())
}
