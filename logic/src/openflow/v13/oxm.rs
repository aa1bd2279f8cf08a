//! Matches: OXM TLVs (section 7.2.3).
//!
//! Our own fields are in the experimenter class under [`EXPERIMENTER`]. Their number is the number of the [`Field`],
//! counted from [`Field::InnerEthDst`]. The four bytes of the id come before the value.

use super::{cannot, pad, padding, ports};
use crate::{
    flow::{
        Field, Match, Refused, RulePort,
        field::{FIELDS, VLAN_PRESENT},
    },
    openflow::{
        BadMessage, CannotSay, EXPERIMENTER,
        format::Layout,
        wire::{Reader, Write},
    },
};

/// OFPMT_OXM.
const OXM: u16 = 1;
/// OFPXMC_OPENFLOW_BASIC and OFPXMC_EXPERIMENTER.
const BASIC_CLASS: u16 = 0x8000;
const EXPERIMENTER_CLASS: u16 = 0xffff;
/// Bytes of the type and length of a match.
const HEAD: usize = 4;
/// Bytes of an experimenter's id.
const ID: usize = 4;

/// The content of one TLV.
#[derive(Clone, Copy, Debug)]
pub(super) struct Oxm {
    pub field: Field,
    pub value: u128,
    /// `None`: there is no mask. Bits beyond the field's width are 0 in every packet, so their mask has no effect.
    pub mask: Option<u128>,
}

/// A match and its padding (section 7.2.3.1).
pub(super) const MATCH: Layout<Match> = Layout(read_match, write_match);

fn read_match(r: &mut Reader<'_>) -> Result<Match, BadMessage> {
    let (kind, length) = (r.u16()?, usize::from(r.u16()?));
    if kind != OXM {
        return Err(BadMessage::MatchType);
    }
    let tlvs = length.checked_sub(HEAD).and_then(|tlvs| r.part(tlvs, BadMessage::MatchLength).ok());
    let mut tlvs = tlvs.ok_or(BadMessage::MatchLength)?;
    r.skip(padding(length)).map_err(|_| BadMessage::MatchLength)?;
    let (mut matching, mut seen) = (Match::ANY, 0_u64);
    while !tlvs.is_empty() {
        let Oxm { field, value, mask } = read(&mut tlvs)?;
        let bit = 1 << field as u8;
        if seen & bit != 0 {
            return Err(Refused::DuplicateField.into());
        }
        // A field must come after those that it needs (section 7.2.3.6).
        if !matching.permits(field) {
            return Err(Refused::Prerequisite.into());
        }
        seen |= bit;
        matching.set(field, value, mask.unwrap_or(field.all_bits()));
    }
    Ok(matching)
}

/// Writes the fields in an order in which each comes after those that it needs.
fn write_match(matching: &Match, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let from = out.len();
    out.u16(OXM);
    out.u16(0);
    let mut said = Match::ANY;
    for (field, value, mask) in matching.fields() {
        write(field, value, mask, out)?;
        said.set(field, value, mask);
    }
    if said != *matching {
        return Err(cannot("a field that is matched without what it needs"));
    }
    out.patch_length(from + 2, from);
    pad(out, from);
    Ok(())
}

/// Reads one TLV (section 7.2.3.2).
pub(super) fn read(r: &mut Reader<'_>) -> Result<Oxm, BadMessage> {
    let (field, has_mask, length) = read_header(r)?;
    let field = field.ok_or(Refused::BadField)?;
    let spec = field.spec();
    if has_mask && !spec.maskable {
        return Err(Refused::BadMask.into());
    }
    if length != payload(field, has_mask) {
        return Err(BadMessage::MatchLength);
    }
    let value = r.uint(spec.oxm_bytes)?;
    let mask = has_mask.then(|| r.uint(spec.oxm_bytes)).transpose()?;
    // Section 7.2.3.5.
    if mask.is_some_and(|mask| value & !mask != 0) {
        return Err(BadMessage::Wildcards);
    }
    let value = match field {
        Field::InPort => ports::from_wire(value as u32).map(|port| port.0.into()),
        _ => Some(value),
    };
    match value.filter(|&value| has_sense(field, value, mask.unwrap_or(field.all_bits()))) {
        Some(value) => Ok(Oxm { field, value, mask }),
        None => Err(Refused::BadValue.into()),
    }
}

pub(super) fn write(field: Field, value: u128, mask: u128, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let spec = field.spec();
    let has_mask = mask != field.all_bits();
    if has_mask && !spec.maskable {
        return Err(cannot("a mask on this field"));
    }
    if !has_sense(field, value, mask) || value & !(u128::MAX >> (128 - 8 * spec.oxm_bytes)) != 0 {
        return Err(cannot("this value of a field"));
    }
    let value = match field {
        Field::InPort => ports::to_wire(RulePort(value as u16))?.into(),
        _ => value,
    };
    write_header(field, has_mask, out);
    out.uint(value, spec.oxm_bytes);
    if has_mask {
        out.uint(mask, spec.oxm_bytes);
    }
    Ok(())
}

/// Does the field have these bits? A VLAN id must be 0 if OFPVID_PRESENT is not set (section 7.2.3.8).
fn has_sense(field: Field, value: u128, mask: u128) -> bool {
    let vlan = matches!(field, Field::VlanVid | Field::InnerVlanVid);
    let absent = vlan && mask & !value & u128::from(VLAN_PRESENT) != 0;
    value & !field.all_bits() == 0 && (!absent || value == 0)
}

/// The bytes after the first four of a TLV of this field.
fn payload(field: Field, has_mask: bool) -> usize {
    let spec = field.spec();
    let id = if spec.oxm.is_none() { ID } else { 0 };
    id + (spec.oxm_bytes << usize::from(has_mask))
}

/// Reads a TLV's header, with its experimenter id if it has one. Returns the field if it is known, whether it has a mask,
/// and the length.
pub(super) fn read_header(r: &mut Reader<'_>) -> Result<(Option<Field>, bool, usize), BadMessage> {
    let (class, number, length) = (r.u16()?, r.u8()?, r.u8()?.into());
    let (number, has_mask) = (number >> 1, number & 1 != 0);
    Ok(match class {
        BASIC_CLASS => (Field::from_oxm(number), has_mask, length),
        EXPERIMENTER_CLASS => {
            let own = usize::from(number) + Field::InnerEthDst as usize;
            let field = FIELDS.get(own).filter(|_| r.rest().starts_with(&EXPERIMENTER.to_be_bytes()));
            r.skip(ID)?;
            (field.map(|spec| spec.field), has_mask, length)
        }
        _ => (None, has_mask, length),
    })
}

pub(super) fn write_header(field: Field, has_mask: bool, out: &mut Vec<u8>) {
    let length = payload(field, has_mask) as u8;
    match field.spec().oxm {
        Some(number) => {
            out.u16(BASIC_CLASS);
            out.u8(number << 1 | u8::from(has_mask));
            out.u8(length);
        }
        None => {
            out.u16(EXPERIMENTER_CLASS);
            out.u8((field as u8 - Field::InnerEthDst as u8) << 1 | u8::from(has_mask));
            out.u8(length);
            out.u32(EXPERIMENTER);
        }
    }
}
