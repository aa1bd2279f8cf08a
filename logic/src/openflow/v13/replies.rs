//! Bodies of multipart replies (section 7.3.5).

use super::{flows, groups, instructions, list, meters, oxm, ports, session, structure, table_features};
use crate::openflow::{
    BadMessage, CannotSay,
    message::{
        Description, FlowStats, GroupFeatures, GroupStats, MeterFeatures, MeterStats, PortStats, QueueStats,
        StatsReply, TableStats,
    },
    wire::{Reader, Write},
};

/// The widths of a description's texts and of its serial number (section 7.3.5.1).
const TEXT: usize = 256;
const SERIAL: usize = 32;

/// Takes the parts of a reply. A part must be in one message: each item of a list, or the whole body.
pub(super) trait Parts {
    fn part(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), CannotSay>) -> Result<(), CannotSay>;
}

/// Puts all parts into one message.
impl Parts for Vec<u8> {
    fn part(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), CannotSay>) -> Result<(), CannotSay> {
        write(self)
    }
}

pub(super) fn write(reply: &StatsReply, parts: &mut impl Parts) -> Result<(), CannotSay> {
    /// A writer for items that can always be expressed.
    fn sure<'a, T>(
        write: impl Fn(&T, &mut Vec<u8>) + 'a,
        of: &'a T,
    ) -> impl FnOnce(&mut Vec<u8>) -> Result<(), CannotSay> + 'a {
        move |out| {
            write(of, out);
            Ok(())
        }
    }
    match reply {
        StatsReply::Description(d) => parts.part(sure(write_description, d)),
        StatsReply::Flow(flows) => flows.iter().try_for_each(|f| parts.part(|out| write_flow(f, out))),
        StatsReply::Aggregate { packets, bytes, flows } => parts.part(|out| {
            out.u64(*packets);
            out.u64(*bytes);
            out.u32(*flows);
            out.zeros(4);
            Ok(())
        }),
        StatsReply::Table(tables) => tables.iter().try_for_each(|t| parts.part(sure(write_table, t))),
        StatsReply::Port(ports) => ports.iter().try_for_each(|p| parts.part(|out| write_port(p, out))),
        StatsReply::Queue(queues) => queues.iter().try_for_each(|q| parts.part(|out| write_queue(q, out))),
        StatsReply::Group(groups) => groups.iter().try_for_each(|g| parts.part(sure(write_group, g))),
        StatsReply::GroupDescription(groups) => {
            groups.iter().try_for_each(|g| parts.part(|out| groups::write_description(g, out)))
        }
        StatsReply::GroupFeatures(features) => parts.part(sure(write_group_features, features)),
        StatsReply::Meter(meters) => meters.iter().try_for_each(|m| parts.part(sure(write_meter, m))),
        StatsReply::MeterConfig(meters) => {
            meters.iter().try_for_each(|m| parts.part(sure(meters::write_description, m)))
        }
        StatsReply::MeterFeatures(features) => parts.part(sure(write_meter_features, features)),
        StatsReply::TableFeatures(tables) => {
            tables.iter().try_for_each(|t| parts.part(sure(table_features::write, t)))
        }
        StatsReply::PortDescription(ports) => {
            ports.iter().try_for_each(|p| parts.part(|out| ports::write_description(p, out)))
        }
        StatsReply::Experimenter(e) => parts.part(sure(session::write_experimenter, e)),
    }
}

pub(super) fn read_description(r: &mut Reader<'_>) -> Result<Description, BadMessage> {
    Ok(Description {
        manufacturer: r.text(TEXT)?,
        hardware: r.text(TEXT)?,
        software: r.text(TEXT)?,
        serial: r.text(SERIAL)?,
        datapath: r.text(TEXT)?,
    })
}

fn write_description(d: &Description, out: &mut Vec<u8>) {
    out.text(&d.manufacturer, TEXT);
    out.text(&d.hardware, TEXT);
    out.text(&d.software, TEXT);
    out.text(&d.serial, SERIAL);
    out.text(&d.datapath, TEXT);
}

/// Section 7.3.5.2.
pub(super) fn read_flow(r: &mut Reader<'_>) -> Result<FlowStats, BadMessage> {
    let mut r = structure(r, 0, BadMessage::Length)?;
    r.skip(2)?;
    let table = r.u8()?;
    r.skip(1)?;
    let (duration_sec, duration_nsec, priority) = (r.u32()?, r.u32()?, r.u16()?);
    let (idle_timeout, hard_timeout, flags) = (r.u16()?, r.u16()?, flows::read_flags(r.u16()?)?);
    r.skip(4)?;
    let (cookie, packets, bytes) = (r.u64()?, r.u64()?, r.u64()?);
    Ok(FlowStats {
        table,
        matching: oxm::read_match(&mut r)?,
        duration_sec,
        duration_nsec,
        priority,
        idle_timeout,
        hard_timeout,
        flags,
        cookie,
        packets,
        bytes,
        instructions: instructions::read(&mut r)?,
    })
}

fn write_flow(flow: &FlowStats, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let from = out.len();
    out.u16(0);
    out.u8(flow.table);
    out.zeros(1);
    out.u32(flow.duration_sec);
    out.u32(flow.duration_nsec);
    out.u16(flow.priority);
    out.u16(flow.idle_timeout);
    out.u16(flow.hard_timeout);
    out.u16(flows::write_flags(flow.flags)?);
    out.zeros(4);
    out.u64(flow.cookie);
    out.u64(flow.packets);
    out.u64(flow.bytes);
    oxm::write_match(&flow.matching, out)?;
    instructions::write(&flow.instructions, &flow.matching, out)?;
    out.patch_length(from, from);
    Ok(())
}

/// Section 7.3.5.3.
pub(super) fn read_aggregate(r: &mut Reader<'_>) -> Result<StatsReply, BadMessage> {
    let (packets, bytes, flows) = (r.u64()?, r.u64()?, r.u32()?);
    r.skip(4)?;
    Ok(StatsReply::Aggregate { packets, bytes, flows })
}

/// Section 7.3.5.4. Name, wildcards and room are not here; they are among a table's features.
pub(super) fn read_table(r: &mut Reader<'_>) -> Result<TableStats, BadMessage> {
    let table = r.u8()?;
    r.skip(3)?;
    let (active, lookups, matched) = (r.u32()?, r.u64()?, r.u64()?);
    Ok(TableStats { table, name: Vec::new(), wildcards: 0, max_entries: 0, active, lookups, matched })
}

fn write_table(table: &TableStats, out: &mut Vec<u8>) {
    out.u8(table.table);
    out.zeros(3);
    out.u32(table.active);
    out.u64(table.lookups);
    out.u64(table.matched);
}

/// Section 7.3.5.6.
pub(super) fn read_port(r: &mut Reader<'_>) -> Result<PortStats, BadMessage> {
    Ok(PortStats {
        port: ports::read_padded(r)?,
        rx_packets: r.u64()?,
        tx_packets: r.u64()?,
        rx_bytes: r.u64()?,
        tx_bytes: r.u64()?,
        rx_dropped: r.u64()?,
        tx_dropped: r.u64()?,
        rx_errors: r.u64()?,
        tx_errors: r.u64()?,
        rx_frame_errors: r.u64()?,
        rx_over_errors: r.u64()?,
        rx_crc_errors: r.u64()?,
        collisions: r.u64()?,
        duration_sec: r.u32()?,
        duration_nsec: r.u32()?,
    })
}

fn write_port(port: &PortStats, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    ports::write_padded(port.port, out)?;
    for counter in [
        port.rx_packets,
        port.tx_packets,
        port.rx_bytes,
        port.tx_bytes,
        port.rx_dropped,
        port.tx_dropped,
        port.rx_errors,
        port.tx_errors,
        port.rx_frame_errors,
        port.rx_over_errors,
        port.rx_crc_errors,
        port.collisions,
    ] {
        out.u64(counter);
    }
    out.u32(port.duration_sec);
    out.u32(port.duration_nsec);
    Ok(())
}

/// Section 7.3.5.8.
pub(super) fn read_queue(r: &mut Reader<'_>) -> Result<QueueStats, BadMessage> {
    Ok(QueueStats {
        port: ports::read(r)?,
        queue: r.u32()?,
        tx_bytes: r.u64()?,
        tx_packets: r.u64()?,
        tx_errors: r.u64()?,
        duration_sec: r.u32()?,
        duration_nsec: r.u32()?,
    })
}

fn write_queue(queue: &QueueStats, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    out.u32(ports::to_wire(queue.port)?);
    out.u32(queue.queue);
    out.u64(queue.tx_bytes);
    out.u64(queue.tx_packets);
    out.u64(queue.tx_errors);
    out.u32(queue.duration_sec);
    out.u32(queue.duration_nsec);
    Ok(())
}

/// Section 7.3.5.9.
pub(super) fn read_group(r: &mut Reader<'_>) -> Result<GroupStats, BadMessage> {
    let mut r = structure(r, 0, BadMessage::Length)?;
    r.skip(4)?;
    let (id, references) = (r.u32()?, r.u32()?);
    r.skip(4)?;
    Ok(GroupStats {
        id,
        references,
        packets: r.u64()?,
        bytes: r.u64()?,
        duration_sec: r.u32()?,
        duration_nsec: r.u32()?,
        buckets: read_counters(&mut r)?,
    })
}

fn write_group(group: &GroupStats, out: &mut Vec<u8>) {
    let from = out.len();
    out.zeros(4);
    out.u32(group.id);
    out.u32(group.references);
    out.zeros(4);
    out.u64(group.packets);
    out.u64(group.bytes);
    out.u32(group.duration_sec);
    out.u32(group.duration_nsec);
    write_counters(&group.buckets, out);
    out.patch_length(from, from);
}

/// Reads the packets and bytes of each bucket or band.
fn read_counters(r: &mut Reader<'_>) -> Result<Vec<(u64, u64)>, BadMessage> {
    list(r, |r| Ok((r.u64()?, r.u64()?)))
}

fn write_counters(counters: &[(u64, u64)], out: &mut Vec<u8>) {
    for &(packets, bytes) in counters {
        out.u64(packets);
        out.u64(bytes);
    }
}

/// Section 7.3.5.11.
pub(super) fn read_group_features(r: &mut Reader<'_>) -> Result<GroupFeatures, BadMessage> {
    let four =
        |r: &mut Reader<'_>| -> Result<[u32; 4], BadMessage> { Ok([r.u32()?, r.u32()?, r.u32()?, r.u32()?]) };
    Ok(GroupFeatures { types: r.u32()?, capabilities: r.u32()?, max_groups: four(r)?, actions: four(r)? })
}

fn write_group_features(features: &GroupFeatures, out: &mut Vec<u8>) {
    out.u32(features.types);
    out.u32(features.capabilities);
    features.max_groups.iter().chain(&features.actions).for_each(|&word| out.u32(word));
}

/// Section 7.3.5.12.
pub(super) fn read_meter(r: &mut Reader<'_>) -> Result<MeterStats, BadMessage> {
    let mut r = structure(r, 4, BadMessage::Length)?;
    let id = r.u32()?;
    r.skip(8)?;
    Ok(MeterStats {
        id,
        flows: r.u32()?,
        packets: r.u64()?,
        bytes: r.u64()?,
        duration_sec: r.u32()?,
        duration_nsec: r.u32()?,
        bands: read_counters(&mut r)?,
    })
}

fn write_meter(meter: &MeterStats, out: &mut Vec<u8>) {
    let from = out.len();
    out.u32(meter.id);
    out.zeros(8);
    out.u32(meter.flows);
    out.u64(meter.packets);
    out.u64(meter.bytes);
    out.u32(meter.duration_sec);
    out.u32(meter.duration_nsec);
    write_counters(&meter.bands, out);
    out.patch_length(from + 4, from);
}

/// Section 7.3.5.14.
pub(super) fn read_meter_features(r: &mut Reader<'_>) -> Result<MeterFeatures, BadMessage> {
    let (max_meters, band_types, capabilities) = (r.u32()?, r.u32()?, r.u32()?);
    let (max_bands, max_color) = (r.u8()?, r.u8()?);
    r.skip(2)?;
    Ok(MeterFeatures { max_meters, band_types, capabilities, max_bands, max_color })
}

fn write_meter_features(features: &MeterFeatures, out: &mut Vec<u8>) {
    out.u32(features.max_meters);
    out.u32(features.band_types);
    out.u32(features.capabilities);
    out.u8(features.max_bands);
    out.u8(features.max_color);
    out.zeros(2);
}
