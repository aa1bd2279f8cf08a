//! Changes and descriptions of meters (sections 7.3.4.4 and 7.3.5.13).

use super::{list, structure, unless};
use crate::{
    flow::{
        Meter, MeterMod, Refused,
        rule::{Band, BandKind, MeterUnit},
    },
    openflow::{
        BadMessage,
        wire::{Reader, Write},
    },
};

/// OFPM_MAX: the last number that a meter may have. The first is 1.
const MAX: u32 = 0xffff_0000;
/// OFPM_ALL.
pub(super) const ALL: u32 = u32::MAX;

/// OFPMC: commands.
const ADD: u16 = 0;
const MODIFY: u16 = 1;
const DELETE: u16 = 2;

/// OFPMF: flags.
const KBPS: u16 = 1 << 0;
const PKTPS: u16 = 1 << 1;
const BURST: u16 = 1 << 2;
const STATS: u16 = 1 << 3;

/// OFPMBT: band types.
const DROP: u16 = 1;
const DSCP_REMARK: u16 = 2;
const EXPERIMENTER: u16 = 0xffff;
/// Bytes of a band. Only a band of an experimenter may be longer.
const BAND: u16 = 16;

/// Section 7.3.4.4. In a delete, only the number matters.
pub(super) fn read_mod(r: &mut Reader<'_>) -> Result<MeterMod, BadMessage> {
    match r.u16()? {
        ADD => Ok(MeterMod::Add(read_meter(r)?)),
        MODIFY => Ok(MeterMod::Modify(read_meter(r)?)),
        DELETE => {
            r.skip(2)?;
            let id = unless(r.u32()?, ALL);
            r.skip(r.rest().len())?;
            id.map_or(Ok(None), |id| check_id(id).map(Some)).map(MeterMod::Delete)
        }
        _ => Err(Refused::BadCommand.into()),
    }
}

pub(super) fn write_mod(change: &MeterMod, out: &mut Vec<u8>) {
    match change {
        MeterMod::Add(meter) => {
            out.u16(ADD);
            write_meter(meter, out);
        }
        MeterMod::Modify(meter) => {
            out.u16(MODIFY);
            write_meter(meter, out);
        }
        MeterMod::Delete(id) => {
            out.u16(DELETE);
            out.zeros(2);
            out.u32(id.unwrap_or(ALL));
        }
    }
}

/// Reads a meter's settings (section 7.3.5.13).
pub(super) fn read_description(r: &mut Reader<'_>) -> Result<Meter, BadMessage> {
    let mut r = structure(r, 0, BadMessage::Length)?;
    r.skip(2)?;
    read_meter(&mut r)
}

pub(super) fn write_description(meter: &Meter, out: &mut Vec<u8>) {
    let from = out.len();
    out.zeros(2);
    write_meter(meter, out);
    out.patch_length(from, from);
}

/// Reads a meter after its length or command. If its flags name no unit, the unit is kbit/s.
fn read_meter(r: &mut Reader<'_>) -> Result<Meter, BadMessage> {
    let flags = r.u16()?;
    let known = flags & !(KBPS | PKTPS | BURST | STATS) == 0;
    let unit = match flags & (KBPS | PKTPS) {
        0 | KBPS if known => MeterUnit::Kbps,
        PKTPS if known => MeterUnit::Pps,
        _ => return Err(BadMessage::Flags),
    };
    let id = check_id(r.u32()?)?;
    let (burst, stats) = (flags & BURST != 0, flags & STATS != 0);
    Ok(Meter { id, unit, burst, stats, bands: list(r, read_band)? })
}

fn write_meter(meter: &Meter, out: &mut Vec<u8>) {
    let unit = match meter.unit {
        MeterUnit::Kbps => KBPS,
        MeterUnit::Pps => PKTPS,
    };
    let burst = if meter.burst { BURST } else { 0 };
    let stats = if meter.stats { STATS } else { 0 };
    out.u16(unit | burst | stats);
    out.u32(meter.id);
    meter.bands.iter().for_each(|band| write_band(*band, out));
}

fn check_id(id: u32) -> Result<u32, BadMessage> {
    if (1..=MAX).contains(&id) { Ok(id) } else { Err(Refused::InvalidMeter.into()) }
}

fn read_band(r: &mut Reader<'_>) -> Result<Band, BadMessage> {
    let mut r = structure(r, 2, BadMessage::Length)?;
    let (kind, length, rate, burst) = (r.u16()?, r.u16()?, r.u32()?, r.u32()?);
    let word = r.u32()?;
    let kind = match kind {
        DROP => BandKind::Drop,
        DSCP_REMARK => BandKind::DscpRemark { levels: (word >> 24) as u8 },
        EXPERIMENTER => return Ok(Band { rate, burst, kind: BandKind::Experimenter(word) }),
        _ => return Err(Refused::BadBand.into()),
    };
    if length == BAND { Ok(Band { rate, burst, kind }) } else { Err(BadMessage::Length) }
}

fn write_band(band: Band, out: &mut Vec<u8>) {
    let (kind, word) = match band.kind {
        BandKind::Drop => (DROP, 0),
        BandKind::DscpRemark { levels } => (DSCP_REMARK, u32::from(levels) << 24),
        BandKind::Experimenter(id) => (EXPERIMENTER, id),
    };
    out.u16(kind);
    out.u16(BAND);
    out.u32(band.rate);
    out.u32(band.burst);
    out.u32(word);
}
