//! Statistics (section 5.3.5): requests, replies, and how a long reply is divided.

use super::{
    super::message::{FlowFilter, FlowStats, PortStats, QueueStats, StatsReply, StatsRequest, TableStats},
    BadMessage, CannotSay, PORT, Reader, VENDOR, VERSION, Write, cannot, except,
    flows::APPLIED,
    kind::STATS_REPLY,
    matching::MATCH,
};
use crate::{
    flow::{FlowFlags, RulePort},
    openflow::{
        common::{DESCRIPTION, TABLE_NAME},
        format::{Choice, Except, Format, Layout, List, Pad, Sized, Skip, U8, U16, U32, U64, choice, layout},
        wire::{MORE, begin, divide},
    },
};

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

/// `table_id` for all tables, and `queue_id` for all queues (OFPQ_ALL).
const ALL_TABLES: u8 = 0xff;
const ALL_QUEUES: u32 = u32::MAX;

/// No flags are defined for requests, so they are ignored.
pub const REQUEST: Layout<StatsRequest> = Layout(
    |r| Request::read(Pad(U16, 2).read(r)?, r),
    |request, out| {
        Pad(U16, 2).write(&Request::number(request)?, out)?;
        Request::write(request, out)
    },
);

choice! {
    Request: u16 => StatsRequest else BadMessage::StatsType;
    kind::DESC => Description,
    kind::FLOW => Flow(filter: FILTER),
    kind::AGGREGATE => Aggregate(filter: FILTER),
    kind::TABLE => Table,
    kind::PORT => Port(port: Pad(PORT, 6)),
    kind::QUEUE => Queue { port: Pad(PORT, 2), queue: except(U32, ALL_QUEUES, "a queue of this number") },
    kind::VENDOR => Experimenter(vendor: VENDOR);
    never
    StatsRequest::Group(_) | StatsRequest::GroupDescription | StatsRequest::GroupFeatures => cannot("groups"),
    StatsRequest::Meter(_) | StatsRequest::MeterConfig(_) | StatsRequest::MeterFeatures => cannot("meters"),
    StatsRequest::TableFeatures { .. } => cannot("table features"),
    StatsRequest::PortDescription => cannot("port descriptions as statistics"),
}

const FILTER: Layout<FlowFilter> = Layout(
    |r| FILTER_FIELDS.read(r),
    |filter, out| {
        if filter.out_group.is_some() {
            return Err(cannot("groups"));
        }
        if (filter.cookie, filter.cookie_mask) != (0, 0) {
            return Err(cannot("a selection by cookie"));
        }
        FILTER_FIELDS.write(filter, out)
    },
);
const FILTER_FIELDS: Layout<FlowFilter> = layout!(
    FlowFilter {
        matching: MATCH,
        table: Pad(except(U8, ALL_TABLES, "a table of this number"), 1),
        out_port: Except(PORT, RulePort::NONE),
    },
    absent { out_group: None, cookie: 0, cookie_mask: 0 }
);

/// Reads a reply. The flag says whether another one follows.
pub fn read_reply(r: &mut Reader<'_>) -> Result<(StatsReply, bool), BadMessage> {
    let (kind, flags) = (r.u16()?, r.u16()?);
    Ok((Reply::read(kind, r)?, flags & MORE != 0))
}

/// Writes the body of one message that holds the whole reply.
pub fn write_reply(reply: &StatsReply, more: &bool, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    out.u16(Reply::number(reply)?);
    out.u16(if *more { MORE } else { 0 });
    Reply::write(reply, out)
}

/// Appends as many messages as the reply needs. Each has OFPSF_REPLY_MORE, except the last one, which has it only if `more`
/// is set. Items of a list that 1.0 cannot express are left out; their number is returned. On error, `out` stays as it was.
pub fn encode_stats(reply: &StatsReply, more: bool, xid: u32, out: &mut Vec<u8>) -> Result<usize, CannotSay> {
    let kind = Reply::number(reply)?;
    let head = |out: &mut Vec<u8>| {
        begin(VERSION, STATS_REPLY, xid, out);
        out.u16(kind);
        out.u16(0);
    };
    divide::<Reply>(reply, more, head, cannot("a message of this length"), out)
}

choice! {
    Reply: u16 => StatsReply else BadMessage::StatsType;
    kind::DESC => Description(description: DESCRIPTION),
    kind::FLOW => Flow(flows: List(Sized(0, BadMessage::Length, FLOW))),
    kind::AGGREGATE => Aggregate { packets: U64, bytes: U64, flows: Pad(U32, 4) },
    kind::TABLE => Table(tables: List(TABLE)),
    kind::PORT => Port(ports: List(PORT_STATS)),
    kind::QUEUE => Queue(queues: List(QUEUE)),
    kind::VENDOR => Experimenter(vendor: VENDOR);
    never
    StatsReply::Group(_) | StatsReply::GroupDescription(_) | StatsReply::GroupFeatures(_) => cannot("groups"),
    StatsReply::Meter(_) | StatsReply::MeterConfig(_) | StatsReply::MeterFeatures(_) => cannot("meters"),
    StatsReply::TableFeatures(_) => cannot("table features"),
    StatsReply::PortDescription(_) => cannot("port descriptions as statistics"),
}

/// `struct ofp_flow_stats`, with the length before it.
const FLOW: Layout<FlowStats> = layout!(
    FlowStats {
        table: Skip(2, Pad(U8, 1)),
        matching: MATCH,
        duration_sec: U32,
        duration_nsec: U32,
        priority: U16,
        idle_timeout: U16,
        hard_timeout: Pad(U16, 6),
        cookie: U64,
        packets: U64,
        bytes: U64,
        instructions: APPLIED,
    },
    absent { flags: FlowFlags::default() }
);

const TABLE: Layout<TableStats> = layout!(TableStats {
    table: Pad(U8, 3),
    name: TABLE_NAME,
    wildcards: U32,
    max_entries: U32,
    active: U32,
    lookups: U64,
    matched: U64,
});

const PORT_STATS: Layout<PortStats> = layout!(
    PortStats {
        port: Pad(PORT, 6),
        rx_packets: U64,
        tx_packets: U64,
        rx_bytes: U64,
        tx_bytes: U64,
        rx_dropped: U64,
        tx_dropped: U64,
        rx_errors: U64,
        tx_errors: U64,
        rx_frame_errors: U64,
        rx_over_errors: U64,
        rx_crc_errors: U64,
        collisions: U64,
    },
    absent { duration_sec: 0, duration_nsec: 0 }
);

const QUEUE: Layout<QueueStats> = layout!(
    QueueStats { port: Pad(PORT, 2), queue: U32, tx_bytes: U64, tx_packets: U64, tx_errors: U64 },
    absent { duration_sec: 0, duration_nsec: 0 }
);
