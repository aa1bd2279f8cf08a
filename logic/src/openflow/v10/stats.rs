//! Statistics (section 5.3.5): requests, replies, and how a long reply is divided.

use super::{
    super::message::{
        Description, FlowFilter, FlowStats, PortStats, QueueStats, StatsReply, StatsRequest, TableStats,
    },
    BadMessage, CannotSay, HEADER, LONGEST, Reader, Write, actions, cannot, flows, framed,
    kind::STATS_REPLY,
    matching, read_vendor, write_vendor,
};
use crate::flow::{FlowFlags, Instructions, RulePort};

/// OFPST.
mod kind {
    pub const DESC: u16 = 0;
    pub const FLOW: u16 = 1;
    pub const AGGREGATE: u16 = 2;
    pub const TABLE: u16 = 3;
    pub const PORT: u16 = 4;
    pub const QUEUE: u16 = 5;
    pub const VENDOR: u16 = 0xffff;
}

/// OFPSF_REPLY_MORE, and the offset of the flags in a message.
const MORE: u16 = 1;
const FLAGS_AT: usize = HEADER + 2;

/// `table_id` for all tables, and `queue_id` for all queues (OFPQ_ALL).
const ALL_TABLES: u8 = 0xff;
const ALL_QUEUES: u32 = u32::MAX;

const TEXT_BYTES: usize = 256;
const SHORT_TEXT_BYTES: usize = 32;

/// Reads a request. No flags are defined for requests, so they are ignored.
pub fn read_request(r: &mut Reader<'_>) -> Result<StatsRequest, BadMessage> {
    let kind = r.u16()?;
    r.skip(2)?;
    Ok(match kind {
        kind::DESC => StatsRequest::Description,
        kind::FLOW => StatsRequest::Flow(read_filter(r)?),
        kind::AGGREGATE => StatsRequest::Aggregate(read_filter(r)?),
        kind::TABLE => StatsRequest::Table,
        kind::PORT => {
            let port = RulePort(r.u16()?);
            r.skip(6)?;
            StatsRequest::Port(port)
        }
        kind::QUEUE => {
            let port = RulePort(r.u16()?);
            r.skip(2)?;
            let queue = r.u32()?;
            StatsRequest::Queue { port, queue: (queue != ALL_QUEUES).then_some(queue) }
        }
        kind::VENDOR => StatsRequest::Experimenter(read_vendor(r)?),
        _ => return Err(BadMessage::StatsType),
    })
}

pub fn write_request(request: &StatsRequest, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let head = |kind: u16, out: &mut Vec<u8>| {
        out.u16(kind);
        out.zeros(2);
    };
    match request {
        StatsRequest::Description => head(kind::DESC, out),
        StatsRequest::Flow(filter) => {
            head(kind::FLOW, out);
            write_filter(filter, out)?;
        }
        StatsRequest::Aggregate(filter) => {
            head(kind::AGGREGATE, out);
            write_filter(filter, out)?;
        }
        StatsRequest::Table => head(kind::TABLE, out),
        StatsRequest::Port(port) => {
            head(kind::PORT, out);
            out.u16(port.0);
            out.zeros(6);
        }
        StatsRequest::Queue { queue: Some(ALL_QUEUES), .. } => return Err(cannot("a queue of this number")),
        StatsRequest::Queue { port, queue } => {
            head(kind::QUEUE, out);
            out.u16(port.0);
            out.zeros(2);
            out.u32(queue.unwrap_or(ALL_QUEUES));
        }
        StatsRequest::Experimenter(vendor) => {
            head(kind::VENDOR, out);
            write_vendor(vendor, out);
        }
        StatsRequest::Group(_) | StatsRequest::GroupDescription | StatsRequest::GroupFeatures => {
            return Err(cannot("groups"));
        }
        StatsRequest::Meter(_) | StatsRequest::MeterConfig(_) | StatsRequest::MeterFeatures => {
            return Err(cannot("meters"));
        }
        StatsRequest::TableFeatures { .. } => return Err(cannot("table features")),
        StatsRequest::PortDescription => return Err(cannot("port descriptions as statistics")),
    }
    Ok(())
}

fn read_filter(r: &mut Reader<'_>) -> Result<FlowFilter, BadMessage> {
    let (matching, table) = (matching::read(r)?, r.u8()?);
    r.skip(1)?;
    let out_port = RulePort(r.u16()?);
    Ok(FlowFilter {
        table: (table != ALL_TABLES).then_some(table),
        matching,
        out_port: (out_port != RulePort::NONE).then_some(out_port),
        out_group: None,
        cookie: 0,
        cookie_mask: 0,
    })
}

fn write_filter(filter: &FlowFilter, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    if filter.out_group.is_some() {
        return Err(cannot("groups"));
    }
    if (filter.cookie, filter.cookie_mask) != (0, 0) {
        return Err(cannot("a selection by cookie"));
    }
    if filter.table == Some(ALL_TABLES) {
        return Err(cannot("a table of this number"));
    }
    matching::write(&filter.matching, out)?;
    out.u8(filter.table.unwrap_or(ALL_TABLES));
    out.zeros(1);
    out.u16(filter.out_port.unwrap_or(RulePort::NONE).0);
    Ok(())
}

/// Reads a reply. The flag says whether another one follows.
pub fn read_reply(r: &mut Reader<'_>) -> Result<(StatsReply, bool), BadMessage> {
    let (kind, flags) = (r.u16()?, r.u16()?);
    let reply = match kind {
        kind::DESC => StatsReply::Description(Description {
            manufacturer: r.text(TEXT_BYTES)?,
            hardware: r.text(TEXT_BYTES)?,
            software: r.text(TEXT_BYTES)?,
            serial: r.text(SHORT_TEXT_BYTES)?,
            datapath: r.text(TEXT_BYTES)?,
        }),
        kind::FLOW => StatsReply::Flow(list(r, read_flow)?),
        kind::AGGREGATE => {
            let (packets, bytes, flows) = (r.u64()?, r.u64()?, r.u32()?);
            r.skip(4)?;
            StatsReply::Aggregate { packets, bytes, flows }
        }
        kind::TABLE => StatsReply::Table(list(r, read_table)?),
        kind::PORT => StatsReply::Port(list(r, read_port)?),
        kind::QUEUE => StatsReply::Queue(list(r, read_queue)?),
        kind::VENDOR => StatsReply::Experimenter(read_vendor(r)?),
        _ => return Err(BadMessage::StatsType),
    };
    Ok((reply, flags & MORE != 0))
}

/// Writes the body of one message that holds the whole reply.
pub fn write_reply(reply: &StatsReply, more: bool, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    out.u16(number(reply)?);
    out.u16(if more { MORE } else { 0 });
    (0..entries(reply)).try_for_each(|at| write_entry(reply, at, out))
}

/// Appends as many messages as the reply needs. Each has OFPSF_REPLY_MORE, except the last one, which has it only if `more`
/// is set. Items of a list that 1.0 cannot express are left out; their number is returned. On error, `out` stays as it was.
pub fn encode_stats(reply: &StatsReply, more: bool, xid: u32, out: &mut Vec<u8>) -> Result<usize, CannotSay> {
    let from = out.len();
    let (mut next, mut left_out) = (0, 0);
    loop {
        let message = out.len();
        let part = framed(xid, out, |out| {
            out.u16(number(reply)?);
            out.u16(0);
            let mut empty = true;
            while next < entries(reply) {
                let entry = out.len();
                let written = write_entry(reply, next, out);
                let fits = out.len() - message <= LONGEST;
                if written.is_ok() && !fits && !empty {
                    // This entry begins the next message.
                    out.truncate(entry);
                    break;
                }
                next += 1;
                if is_list(reply) && (written.is_err() || !fits) {
                    out.truncate(entry);
                    left_out += 1;
                    continue;
                }
                written?;
                empty = false;
            }
            Ok(STATS_REPLY)
        });
        if let Err(error) = part {
            out.truncate(from);
            return Err(error);
        }
        let last = next == entries(reply);
        if more || !last {
            out[message + FLAGS_AT..message + FLAGS_AT + 2].copy_from_slice(&MORE.to_be_bytes());
        }
        if last {
            return Ok(left_out);
        }
    }
}

fn number(reply: &StatsReply) -> Result<u16, CannotSay> {
    Ok(match reply {
        StatsReply::Description(_) => kind::DESC,
        StatsReply::Flow(_) => kind::FLOW,
        StatsReply::Aggregate { .. } => kind::AGGREGATE,
        StatsReply::Table(_) => kind::TABLE,
        StatsReply::Port(_) => kind::PORT,
        StatsReply::Queue(_) => kind::QUEUE,
        StatsReply::Experimenter(_) => kind::VENDOR,
        StatsReply::Group(_) | StatsReply::GroupDescription(_) | StatsReply::GroupFeatures(_) => {
            return Err(cannot("groups"));
        }
        StatsReply::Meter(_) | StatsReply::MeterConfig(_) | StatsReply::MeterFeatures(_) => {
            return Err(cannot("meters"));
        }
        StatsReply::TableFeatures(_) => return Err(cannot("table features")),
        StatsReply::PortDescription(_) => return Err(cannot("port descriptions as statistics")),
    })
}

/// The number of parts of a reply that may be in different messages.
fn entries(reply: &StatsReply) -> usize {
    match reply {
        StatsReply::Flow(list) => list.len(),
        StatsReply::Table(list) => list.len(),
        StatsReply::Port(list) => list.len(),
        StatsReply::Queue(list) => list.len(),
        _ => 1,
    }
}

fn is_list(reply: &StatsReply) -> bool {
    matches!(reply, StatsReply::Flow(_) | StatsReply::Table(_) | StatsReply::Port(_) | StatsReply::Queue(_))
}

fn write_entry(reply: &StatsReply, at: usize, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    match reply {
        StatsReply::Description(description) => {
            out.text(&description.manufacturer, TEXT_BYTES);
            out.text(&description.hardware, TEXT_BYTES);
            out.text(&description.software, TEXT_BYTES);
            out.text(&description.serial, SHORT_TEXT_BYTES);
            out.text(&description.datapath, TEXT_BYTES);
        }
        StatsReply::Flow(list) => write_flow(&list[at], out)?,
        StatsReply::Aggregate { packets, bytes, flows } => {
            out.u64(*packets);
            out.u64(*bytes);
            out.u32(*flows);
            out.zeros(4);
        }
        StatsReply::Table(list) => write_table(&list[at], out),
        StatsReply::Port(list) => write_port(&list[at], out),
        StatsReply::Queue(list) => write_queue(&list[at], out),
        StatsReply::Experimenter(vendor) => write_vendor(vendor, out),
        other => return number(other).map(drop),
    }
    Ok(())
}

fn list<T>(
    r: &mut Reader<'_>,
    read: impl Fn(&mut Reader<'_>) -> Result<T, BadMessage>,
) -> Result<Vec<T>, BadMessage> {
    let mut all = Vec::new();
    while !r.is_empty() {
        all.push(read(r)?);
    }
    Ok(all)
}

/// Reads `struct ofp_flow_stats`. The length includes itself.
fn read_flow(r: &mut Reader<'_>) -> Result<FlowStats, BadMessage> {
    let length = usize::from(r.u16()?).checked_sub(2).ok_or(BadMessage::Length)?;
    let mut r = r.part(length, BadMessage::Length)?;
    let table = r.u8()?;
    r.skip(1)?;
    let matching = matching::read(&mut r)?;
    let (duration_sec, duration_nsec) = (r.u32()?, r.u32()?);
    let (priority, idle_timeout, hard_timeout) = (r.u16()?, r.u16()?, r.u16()?);
    r.skip(6)?;
    let (cookie, packets, bytes) = (r.u64()?, r.u64()?, r.u64()?);
    Ok(FlowStats {
        table,
        matching,
        duration_sec,
        duration_nsec,
        priority,
        idle_timeout,
        hard_timeout,
        flags: FlowFlags::default(),
        cookie,
        packets,
        bytes,
        instructions: Instructions::apply(actions::read_list(r.rest())?),
    })
}

fn write_flow(flow: &FlowStats, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let from = out.len();
    out.zeros(2);
    out.u8(flow.table);
    out.zeros(1);
    matching::write(&flow.matching, out)?;
    out.u32(flow.duration_sec);
    out.u32(flow.duration_nsec);
    out.u16(flow.priority);
    out.u16(flow.idle_timeout);
    out.u16(flow.hard_timeout);
    out.zeros(6);
    out.u64(flow.cookie);
    out.u64(flow.packets);
    out.u64(flow.bytes);
    actions::write_list(flows::only_actions(&flow.instructions)?, out)?;
    out.patch_length(from, from);
    Ok(())
}

fn read_table(r: &mut Reader<'_>) -> Result<TableStats, BadMessage> {
    let table = r.u8()?;
    r.skip(3)?;
    Ok(TableStats {
        table,
        name: r.text(SHORT_TEXT_BYTES)?,
        wildcards: r.u32()?,
        max_entries: r.u32()?,
        active: r.u32()?,
        lookups: r.u64()?,
        matched: r.u64()?,
    })
}

fn write_table(table: &TableStats, out: &mut Vec<u8>) {
    out.u8(table.table);
    out.zeros(3);
    out.text(&table.name, SHORT_TEXT_BYTES);
    out.u32(table.wildcards);
    out.u32(table.max_entries);
    out.u32(table.active);
    out.u64(table.lookups);
    out.u64(table.matched);
}

fn read_port(r: &mut Reader<'_>) -> Result<PortStats, BadMessage> {
    let port = RulePort(r.u16()?);
    r.skip(6)?;
    Ok(PortStats {
        port,
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
        duration_sec: 0,
        duration_nsec: 0,
    })
}

fn write_port(port: &PortStats, out: &mut Vec<u8>) {
    out.u16(port.port.0);
    out.zeros(6);
    let counters = [
        [port.rx_packets, port.tx_packets, port.rx_bytes, port.tx_bytes],
        [port.rx_dropped, port.tx_dropped, port.rx_errors, port.tx_errors],
        [port.rx_frame_errors, port.rx_over_errors, port.rx_crc_errors, port.collisions],
    ];
    counters.iter().flatten().for_each(|&counter| out.u64(counter));
}

fn read_queue(r: &mut Reader<'_>) -> Result<QueueStats, BadMessage> {
    let port = RulePort(r.u16()?);
    r.skip(2)?;
    Ok(QueueStats {
        port,
        queue: r.u32()?,
        tx_bytes: r.u64()?,
        tx_packets: r.u64()?,
        tx_errors: r.u64()?,
        duration_sec: 0,
        duration_nsec: 0,
    })
}

fn write_queue(queue: &QueueStats, out: &mut Vec<u8>) {
    out.u16(queue.port.0);
    out.zeros(2);
    out.u32(queue.queue);
    out.u64(queue.tx_bytes);
    out.u64(queue.tx_packets);
    out.u64(queue.tx_errors);
}
