//! Changes and descriptions of meters (sections 7.3.4.4 and 7.3.5.13).

use crate::{
    flow::{
        Meter, MeterMod, Refused,
        rule::{Band, BandKind, MeterUnit},
    },
    openflow::{
        BadMessage, CannotSay,
        format::{Choice, Except, Format, Layout, List, Sized, Skip, U32, choice},
        wire::{Reader, Write},
    },
};

/// OFPM_MAX: the last number that a meter may have. The first is 1.
const MAX: u32 = 0xffff_0000;
/// OFPM_ALL.
pub(super) const ALL: u32 = u32::MAX;

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
const BAND_BYTES: u16 = 16;

choice! {
    /// OFPMC: commands (section 7.3.4.4).
    Command: u16 => MeterMod else Refused::BadCommand;
    ADD => Add(meter: METER),
    MODIFY => Modify(meter: METER),
    DELETE => Delete(id: METER_TO_DELETE),
}
const ADD: u16 = 0;
const MODIFY: u16 = 1;
const DELETE: u16 = 2;

pub(super) const METER_MOD: Layout<MeterMod> = Layout(
    |r| Command::read(r.u16()?, r),
    |change, out| {
        out.u16(Command::number(change)?);
        Command::write(change, out)
    },
);

/// In a delete, only the number matters.
const METER_TO_DELETE: Layout<Option<u32>> = Layout(
    |r| {
        let id = Skip(2, Except(U32, ALL)).read(r)?;
        r.skip(r.rest().len())?;
        id.map_or(Ok(None), |id| check_id(id).map(Some))
    },
    |id, out| Skip(2, Except(U32, ALL)).write(id, out),
);

/// A meter's settings (section 7.3.5.13).
pub(super) const DESCRIPTION: Sized<Skip<Layout<Meter>>> = Sized(0, BadMessage::Length, Skip(2, METER));

/// A meter after its length or command. If the flags name no unit, the unit is kbit/s.
const METER: Layout<Meter> = Layout(
    |r| {
        let flags = r.u16()?;
        let known = flags & !(KBPS | PKTPS | BURST | STATS) == 0;
        let unit = match flags & (KBPS | PKTPS) {
            0 | KBPS if known => MeterUnit::Kbps,
            PKTPS if known => MeterUnit::Pps,
            _ => return Err(BadMessage::Flags),
        };
        let id = check_id(r.u32()?)?;
        let (burst, stats) = (flags & BURST != 0, flags & STATS != 0);
        Ok(Meter { id, unit, burst, stats, bands: List(BAND).read(r)? })
    },
    |meter, out| {
        let unit = match meter.unit {
            MeterUnit::Kbps => KBPS,
            MeterUnit::Pps => PKTPS,
        };
        let burst = if meter.burst { BURST } else { 0 };
        let stats = if meter.stats { STATS } else { 0 };
        out.u16(unit | burst | stats);
        out.u32(meter.id);
        List(BAND).write(&meter.bands, out)
    },
);

fn check_id(id: u32) -> Result<u32, BadMessage> {
    if (1..=MAX).contains(&id) { Ok(id) } else { Err(Refused::InvalidMeter.into()) }
}

const BAND: Layout<Band> = Layout(
    |r| {
        let mut r = r.structure(2, BadMessage::Length)?;
        let (kind, length, rate, burst) = (r.u16()?, r.u16()?, r.u32()?, r.u32()?);
        let word = r.u32()?;
        let kind = match kind {
            DROP => BandKind::Drop,
            DSCP_REMARK => BandKind::DscpRemark { levels: (word >> 24) as u8 },
            EXPERIMENTER => return Ok(Band { rate, burst, kind: BandKind::Experimenter(word) }),
            _ => return Err(Refused::BadBand.into()),
        };
        if length == BAND_BYTES { Ok(Band { rate, burst, kind }) } else { Err(BadMessage::Length) }
    },
    |band, out| {
        let (kind, word) = match band.kind {
            BandKind::Drop => (DROP, 0),
            BandKind::DscpRemark { levels } => (DSCP_REMARK, u32::from(levels) << 24),
            BandKind::Experimenter(id) => (EXPERIMENTER, id),
        };
        out.u16(kind);
        out.u16(BAND_BYTES);
        out.u32(band.rate);
        out.u32(band.burst);
        out.u32(word);
        Ok(())
    },
);
