//! Actions (section 7.2.5).
//!
//! OpenFlow 1.0 has actions whose effect depends on the packet. Setting a VLAN id pushes a tag if there is none, and setting
//! a port changes TCP or UDP. 1.3 has no such actions. They are encoded if the match tells what they do ([`Known`]).

use super::{cannot, oxm, pad, ports};
use crate::{
    flow::{
        Action, Field, Match, Refused, RulePort,
        field::{VLAN_PRESENT, ether_type, ip_proto},
    },
    openflow::{
        BadMessage, CannotSay, extension,
        format::{Format, Layout, List},
        wire::{Reader, Write},
    },
};

/// OFPAT: action types.
const OUTPUT: u16 = 0;
const PUSH_VLAN: u16 = 17;
const POP_VLAN: u16 = 18;
const SET_QUEUE: u16 = 21;
const GROUP: u16 = 22;
const SET_NW_TTL: u16 = 23;
const DEC_NW_TTL: u16 = 24;
const SET_FIELD: u16 = 25;
const EXPERIMENTER: u16 = 0xffff;

/// Actions until the end, for packets of which nothing is known.
pub(super) const ACTIONS: Layout<Vec<Action>> = Layout(
    |r| List(ACTION).read(&mut r.part(r.rest().len(), BadMessage::ActionLength)?),
    |actions, out| write_list(actions, Known::default(), out),
);
/// An action that has the same effect on every packet.
const ACTION: Layout<Action> = Layout(read, write);

fn read(r: &mut Reader<'_>) -> Result<Action, BadMessage> {
    let mut r = r.structure(2, BadMessage::ActionLength)?;
    let (kind, length) = (r.u16()?, r.u16()?);
    if length % 8 != 0 {
        return Err(BadMessage::ActionLength);
    }
    let (action, padding) = match kind {
        OUTPUT => {
            let port = ports::from_wire(r.u32()?).ok_or(Refused::BadPort)?;
            (Action::Output { port, max_len: r.u16()? }, 6)
        }
        PUSH_VLAN => (push_vlan(r.u16()?)?, 2),
        POP_VLAN => (Action::PopVlan, 4),
        SET_QUEUE => (Action::SetQueue(r.u32()?), 0),
        GROUP => (Action::Group(r.u32()?), 0),
        SET_NW_TTL => (Action::SetTtl(r.u8()?), 3),
        DEC_NW_TTL => (Action::DecTtl, 4),
        SET_FIELD => (read_set_field(&mut r)?, r.rest().len() % 8),
        EXPERIMENTER => (extension::read_action(r.u32()?, &mut r)?, 0),
        _ => return Err(Refused::BadAction.into()),
    };
    r.skip(padding)?;
    if r.is_empty() { Ok(action) } else { Err(BadMessage::ActionLength) }
}

fn push_vlan(tag: u16) -> Result<Action, Refused> {
    let known = matches!(tag, ether_type::VLAN | ether_type::SERVICE_VLAN);
    if known { Ok(Action::PushVlan(tag)) } else { Err(Refused::BadArgument) }
}

/// Reads a set-field action after its header. Errors in its TLV have codes of their own.
fn read_set_field(r: &mut Reader<'_>) -> Result<Action, BadMessage> {
    let set = oxm::read(r).map_err(|bad| match bad {
        BadMessage::MatchLength => BadMessage::SetFieldLength,
        BadMessage::Wildcards | BadMessage::Refused(Refused::BadValue) => BadMessage::SetFieldValue,
        BadMessage::Refused(Refused::BadField | Refused::BadMask) => Refused::BadSetField.into(),
        bad => bad,
    })?;
    if !can_be_set(set.field) || set.mask.is_some() {
        return Err(Refused::BadSetField.into());
    }
    if !is_tag(set.field, set.value) {
        return Err(BadMessage::SetFieldValue);
    }
    Ok(Action::set(set.field, set.value))
}

/// Section 7.2.5: any field except the port and the metadata.
fn can_be_set(field: Field) -> bool {
    !matches!(field, Field::InPort | Field::Metadata)
}

/// A VLAN id to set must have the bit that says that there is a tag.
fn is_tag(field: Field, value: u128) -> bool {
    !matches!(field, Field::VlanVid | Field::InnerVlanVid) || value & u128::from(VLAN_PRESENT) != 0
}

/// What is known of the packets on which a list of actions works.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Do they have a VLAN tag?
    tagged: Option<bool>,
    /// The fields of source and destination port, if the packets are TCP or UDP.
    ports: Option<(Field, Field)>,
}

impl Known {
    /// What the match of a rule says about its packets.
    pub fn of(matching: &Match) -> Known {
        let present = u128::from(VLAN_PRESENT);
        let proto = matching.exact(Field::IpProto).filter(|_| matching.permits(Field::IpProto));
        Known {
            tagged: matching
                .get(Field::VlanVid)
                .filter(|(_, mask)| mask & present != 0)
                .map(|(vid, _)| vid & present != 0),
            ports: match proto.and_then(|proto| u8::try_from(proto).ok()) {
                Some(ip_proto::TCP) => Some((Field::TcpSrc, Field::TcpDst)),
                Some(ip_proto::UDP) => Some((Field::UdpSrc, Field::UdpDst)),
                _ => None,
            },
        }
    }

    /// Pushes a tag if there is none.
    fn tag(&mut self, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        match self.tagged.replace(true) {
            Some(true) => Ok(()),
            Some(false) => {
                write_word(PUSH_VLAN, u32::from(ether_type::VLAN) << 16, out);
                Ok(())
            }
            None => Err(cannot("a VLAN id or priority for packets with and without a tag")),
        }
    }
}

pub(super) fn write_list(actions: &[Action], mut known: Known, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let no_ports = || cannot("a port of TCP or UDP, whichever it is");
    for (i, action) in actions.iter().enumerate() {
        match *action {
            Action::SetVlanVid(vid) => {
                known.tag(out)?;
                write_set_field(Field::VlanVid, u128::from(VLAN_PRESENT) | u128::from(vid), out)?;
            }
            Action::SetVlanPcp(pcp) => {
                known.tag(out)?;
                write_set_field(Field::VlanPcp, pcp.into(), out)?;
            }
            Action::SetTpSrc(port) => {
                write_set_field(known.ports.ok_or_else(no_ports)?.0, port.into(), out)?;
            }
            Action::SetTpDst(port) => {
                write_set_field(known.ports.ok_or_else(no_ports)?.1, port.into(), out)?;
            }
            Action::Enqueue { port, queue } => {
                // The queue would also apply to later outputs.
                if actions[i + 1..].iter().take_while(|a| !matches!(a, Action::SetQueue(_))).any(leads_out) {
                    return Err(cannot("a queue for one output of several"));
                }
                write_word(SET_QUEUE, queue, out);
                write_output(port, 0, out)?;
            }
            ref action => write(action, out)?,
        }
        match action {
            Action::PushVlan(_) => known.tagged = Some(true),
            // There may be another tag below.
            Action::PopVlan if known.tagged == Some(true) => known.tagged = None,
            _ => {}
        }
    }
    Ok(())
}

/// Is it an output that uses the queue of an [`Action::SetQueue`]?
fn leads_out(action: &Action) -> bool {
    matches!(action, Action::Output { .. } | Action::Group(_))
}

fn write(action: &Action, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    match *action {
        Action::Output { port, max_len } => write_output(port, max_len, out)?,
        Action::SetQueue(queue) => write_word(SET_QUEUE, queue, out),
        Action::SetField { field, value, mask } if mask == field.all_bits() => {
            write_set_field(field, value, out)?;
        }
        Action::SetField { .. } => return Err(cannot("to set some bits of a field")),
        Action::PushVlan(tag) => write_word(PUSH_VLAN, u32::from(tag) << 16, out),
        Action::PopVlan => write_word(POP_VLAN, 0, out),
        Action::DecTtl => write_word(DEC_NW_TTL, 0, out),
        Action::SetTtl(ttl) => write_word(SET_NW_TTL, u32::from(ttl) << 24, out),
        Action::Group(id) => write_word(GROUP, id, out),
        Action::Enqueue { .. }
        | Action::SetVlanVid(_)
        | Action::SetVlanPcp(_)
        | Action::SetTpSrc(_)
        | Action::SetTpDst(_) => return Err(cannot("an action of OpenFlow 1.0")),
        Action::EncapVxlan(_) | Action::DecapVxlan | Action::SetFcf { .. } | Action::SetCore(_) => {
            extension::write_action(action, out);
        }
    }
    Ok(())
}

/// Writes an action of eight bytes.
fn write_word(kind: u16, word: u32, out: &mut Vec<u8>) {
    out.u16(kind);
    out.u16(8);
    out.u32(word);
}

fn write_output(port: RulePort, max_len: u16, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    out.u16(OUTPUT);
    out.u16(16);
    out.u32(ports::to_wire(port)?);
    out.u16(max_len);
    out.zeros(6);
    Ok(())
}

fn write_set_field(field: Field, value: u128, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    if !can_be_set(field) || !is_tag(field, value) {
        return Err(cannot("to set this field to this value"));
    }
    let from = out.len();
    out.u16(SET_FIELD);
    out.u16(0);
    oxm::write(field, value, field.all_bits(), out)?;
    pad(out, from);
    out.patch_length(from + 2, from);
    Ok(())
}
