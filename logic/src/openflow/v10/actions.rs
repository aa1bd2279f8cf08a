//! Lists of actions (section 5.2.4).

use super::{BadMessage, CannotSay, Reader, Write, cannot};
use crate::{
    flow::{Action, Field, Refused, RulePort},
    openflow::{
        extension,
        format::{Format, Layout, List},
    },
};

/// OFPAT.
mod kind {
    pub const OUTPUT: u16 = 0;
    pub const SET_VLAN_VID: u16 = 1;
    pub const SET_VLAN_PCP: u16 = 2;
    pub const STRIP_VLAN: u16 = 3;
    pub const SET_DL_SRC: u16 = 4;
    pub const SET_DL_DST: u16 = 5;
    pub const SET_NW_SRC: u16 = 6;
    pub const SET_NW_DST: u16 = 7;
    pub const SET_NW_TOS: u16 = 8;
    pub const SET_TP_SRC: u16 = 9;
    pub const SET_TP_DST: u16 = 10;
    pub const ENQUEUE: u16 = 11;
    pub const VENDOR: u16 = 0xffff;
}

/// The length of every action is a multiple of this, and at least this.
const UNIT: usize = 8;
const MAX_VID: u16 = 0xfff;
const MAX_PCP: u8 = 7;

/// Actions until the end.
pub const ACTIONS: Layout<Vec<Action>> = Layout(
    |r| List(ACTION).read(&mut r.part(r.rest().len(), BadMessage::ActionLength)?),
    |actions, out| List(ACTION).write(actions, out),
);
const ACTION: Layout<Action> = Layout(read, write);

fn read(list: &mut Reader<'_>) -> Result<Action, BadMessage> {
    let mut r = list.structure(2, BadMessage::ActionLength)?;
    let (kind, length) = (r.u16()?, usize::from(r.u16()?));
    if length < UNIT || length % UNIT != 0 {
        return Err(BadMessage::ActionLength);
    }
    let action = match kind {
        kind::OUTPUT => Action::Output { port: output_port(RulePort(r.u16()?))?, max_len: r.u16()? },
        kind::SET_VLAN_VID => Action::SetVlanVid(argument(r.u16()?, |vid| vid <= MAX_VID, &mut r, 2)?),
        kind::SET_VLAN_PCP => Action::SetVlanPcp(argument(r.u8()?, |pcp| pcp <= MAX_PCP, &mut r, 3)?),
        kind::STRIP_VLAN => r.skip(4).map(|()| Action::PopVlan)?,
        kind::SET_DL_SRC => mac(Field::EthSrc, &mut r)?,
        kind::SET_DL_DST => mac(Field::EthDst, &mut r)?,
        kind::SET_NW_SRC => Action::set(Field::Ipv4Src, r.u32()?),
        kind::SET_NW_DST => Action::set(Field::Ipv4Dst, r.u32()?),
        // The lower two bits do not belong to the DSCP.
        kind::SET_NW_TOS => {
            let tos = argument(r.u8()?, |tos| tos & 3 == 0, &mut r, 3)?;
            Action::set(Field::IpDscp, tos >> 2)
        }
        kind::SET_TP_SRC => Action::SetTpSrc(argument(r.u16()?, |_| true, &mut r, 2)?),
        kind::SET_TP_DST => Action::SetTpDst(argument(r.u16()?, |_| true, &mut r, 2)?),
        kind::ENQUEUE => {
            let port = queue_port(RulePort(r.u16()?))?;
            r.skip(6)?;
            Action::Enqueue { port, queue: r.u32()? }
        }
        kind::VENDOR => {
            let id = r.u32()?;
            extension::read_action(id, &mut r)?
        }
        _ => return Err(Refused::BadAction.into()),
    };
    if r.is_empty() { Ok(action) } else { Err(BadMessage::ActionLength) }
}

/// Skips the padding after an argument, and refuses the argument if it is not `valid`.
fn argument<T: Copy>(
    value: T,
    valid: impl Fn(T) -> bool,
    r: &mut Reader<'_>,
    padding: usize,
) -> Result<T, BadMessage> {
    r.skip(padding)?;
    if valid(value) { Ok(value) } else { Err(Refused::BadArgument.into()) }
}

fn mac(field: Field, r: &mut Reader<'_>) -> Result<Action, BadMessage> {
    let action = Action::set(field, r.uint(6)?);
    r.skip(6)?;
    Ok(action)
}

/// Refuses OFPP_NONE and numbers between the real and the reserved ports. The tables check whether a real port exists.
fn output_port(port: RulePort) -> Result<RulePort, BadMessage> {
    let valid = port <= RulePort::MAX || (RulePort::IN_PORT..RulePort::NONE).contains(&port);
    if valid { Ok(port) } else { Err(Refused::BadPort.into()) }
}

/// A port that can have queues (OFPAT_ENQUEUE).
fn queue_port(port: RulePort) -> Result<RulePort, BadMessage> {
    let valid = port <= RulePort::MAX || [RulePort::IN_PORT, RulePort::LOCAL].contains(&port);
    if valid { Ok(port) } else { Err(Refused::BadPort.into()) }
}

fn write(action: &Action, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    match *action {
        Action::Output { port, max_len } if output_port(port).is_ok() => {
            head(kind::OUTPUT, 8, out);
            out.u16(port.0);
            out.u16(max_len);
        }
        Action::Enqueue { port, queue } if queue_port(port).is_ok() => {
            head(kind::ENQUEUE, 16, out);
            out.u16(port.0);
            out.zeros(6);
            out.u32(queue);
        }
        Action::SetVlanVid(vid) if vid <= MAX_VID => short(kind::SET_VLAN_VID, vid.to_be_bytes(), out),
        Action::SetVlanPcp(pcp) if pcp <= MAX_PCP => short(kind::SET_VLAN_PCP, [pcp], out),
        Action::PopVlan => short(kind::STRIP_VLAN, [], out),
        Action::SetTpSrc(port) => short(kind::SET_TP_SRC, port.to_be_bytes(), out),
        Action::SetTpDst(port) => short(kind::SET_TP_DST, port.to_be_bytes(), out),
        Action::SetField { field, value, mask } if mask == field.all_bits() && value <= mask => {
            set_field(field, value, out)?;
        }
        Action::Output { .. } | Action::Enqueue { .. } => return Err(cannot("an output to this port")),
        Action::SetVlanVid(_) | Action::SetVlanPcp(_) => {
            return Err(cannot("this VLAN id or priority"));
        }
        Action::SetField { .. } => return Err(cannot("some bits of a field")),
        Action::SetQueue(_) => return Err(cannot("a queue for later outputs")),
        Action::PushVlan(_) => return Err(cannot("an action that pushes a VLAN tag")),
        Action::DecTtl | Action::SetTtl(_) => return Err(cannot("an action on the TTL")),
        Action::Group(_) => return Err(cannot("groups")),
        Action::EncapVxlan(_) | Action::DecapVxlan | Action::SetFcf { .. } | Action::SetCore(_) => {
            extension::write_action(action, out);
        }
    }
    Ok(())
}

fn set_field(field: Field, value: u128, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    match field {
        Field::EthSrc | Field::EthDst => {
            head(if field == Field::EthSrc { kind::SET_DL_SRC } else { kind::SET_DL_DST }, 16, out);
            out.uint(value, 6);
            out.zeros(6);
        }
        Field::Ipv4Src => short(kind::SET_NW_SRC, (value as u32).to_be_bytes(), out),
        Field::Ipv4Dst => short(kind::SET_NW_DST, (value as u32).to_be_bytes(), out),
        Field::IpDscp => short(kind::SET_NW_TOS, [(value as u8) << 2], out),
        other => return Err(cannot(other.spec().name)),
    }
    Ok(())
}

/// Writes an action of eight bytes.
fn short<const N: usize>(kind: u16, argument: [u8; N], out: &mut Vec<u8>) {
    head(kind, 8, out);
    out.extend_from_slice(&argument);
    out.zeros(4 - N);
}

fn head(kind: u16, length: u16, out: &mut Vec<u8>) {
    out.u16(kind);
    out.u16(length);
}
