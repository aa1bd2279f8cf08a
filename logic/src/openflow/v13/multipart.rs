//! Multipart requests, and how replies are divided into messages (section 7.3.5).

use super::{
    TABLE, VERSION, cannot, flows, groups, kind, meters, oxm::MATCH, ports, replies::Reply, session,
};
use crate::openflow::{
    BadMessage, CannotSay,
    format::{Choice, Except, Format, Layout, Pad, U32, U64, choice, layout},
    message::{FlowFilter, StatsReply, StatsRequest},
    wire::{MORE, Reader, Write, begin, divide},
};

/// OFPMP: kinds of multipart messages.
pub(super) mod part {
    pub const DESC: u16 = 0;
    pub const FLOW: u16 = 1;
    pub const AGGREGATE: u16 = 2;
    pub const TABLE: u16 = 3;
    pub const PORT_STATS: u16 = 4;
    pub const QUEUE: u16 = 5;
    pub const GROUP: u16 = 6;
    pub const GROUP_DESC: u16 = 7;
    pub const GROUP_FEATURES: u16 = 8;
    pub const METER: u16 = 9;
    pub const METER_CONFIG: u16 = 10;
    pub const METER_FEATURES: u16 = 11;
    pub const TABLE_FEATURES: u16 = 12;
    pub const PORT_DESC: u16 = 13;
    pub const EXPERIMENTER: u16 = 0xffff;
}

/// OFPQ_ALL.
const ALL_QUEUES: u32 = u32::MAX;

/// Reads kind and flags, and skips the padding.
fn read_head(r: &mut Reader<'_>) -> Result<(u16, bool), BadMessage> {
    let (kind, flags) = (r.u16()?, r.u16()?);
    r.skip(4)?;
    Ok((kind, flags & MORE != 0))
}

fn write_head(kind: u16, more: bool, out: &mut Vec<u8>) {
    out.u16(kind);
    out.u16(if more { MORE } else { 0 });
    out.zeros(4);
}

/// Only requests that set features may consist of several messages; others are not reassembled.
pub(super) const REQUEST: Layout<StatsRequest> = Layout(
    |r| {
        let (kind, more) = read_head(r)?;
        if more && kind != part::TABLE_FEATURES {
            return Err(BadMessage::TooBig);
        }
        let mut request = Request::read(kind, r)?;
        if let StatsRequest::TableFeatures { sets } = &mut request {
            *sets |= more;
        }
        Ok(request)
    },
    |request, out| {
        write_head(Request::number(request)?, false, out);
        Request::write(request, out)
    },
);

choice! {
    Request: u16 => StatsRequest else BadMessage::StatsType;
    part::DESC => Description,
    part::FLOW => Flow(filter: FILTER),
    part::AGGREGATE => Aggregate(filter: FILTER),
    part::TABLE => Table,
    part::PORT_STATS => Port(port: Pad(ports::PORT, 4)),
    part::QUEUE => Queue { port: ports::PORT, queue: Except(U32, ALL_QUEUES) },
    part::GROUP => Group(id: Pad(Except(U32, groups::ALL), 4)),
    part::GROUP_DESC => GroupDescription,
    part::GROUP_FEATURES => GroupFeatures,
    part::METER => Meter(id: Pad(Except(U32, meters::ALL), 4)),
    part::METER_CONFIG => MeterConfig(id: Pad(Except(U32, meters::ALL), 4)),
    part::METER_FEATURES => MeterFeatures,
    part::TABLE_FEATURES => TableFeatures { sets: FEATURES_TO_SET },
    part::PORT_DESC => PortDescription,
    part::EXPERIMENTER => Experimenter(experimenter: session::EXPERIMENTER),
}

/// Are there features to set? They are not kept.
const FEATURES_TO_SET: Layout<bool> = Layout(
    |r| {
        let sets = !r.is_empty();
        r.skip(r.rest().len())?;
        Ok(sets)
    },
    |sets, _| if *sets { Err(cannot("to set features of tables")) } else { Ok(()) },
);

/// Sections 7.3.5.2 and 7.3.5.3.
const FILTER: Layout<FlowFilter> = layout!(FlowFilter {
    table: Pad(TABLE, 3),
    out_port: flows::OUT_PORT,
    out_group: Pad(flows::OUT_GROUP, 4),
    cookie: U64,
    cookie_mask: U64,
    matching: MATCH,
});

pub(super) fn read_reply(r: &mut Reader<'_>) -> Result<(StatsReply, bool), BadMessage> {
    let (kind, more) = read_head(r)?;
    Ok((Reply::read(kind, r)?, more))
}

/// Writes the body of one message.
pub(super) fn write_reply(reply: &StatsReply, more: &bool, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    write_head(Reply::number(reply)?, *more, out);
    Reply::write(reply, out)
}

/// Appends as many messages as the reply needs. Each has OFPMPF_REPLY_MORE, except the last one, which has it only if `more`
/// is set. Items of a list that 1.3 cannot express are left out; their number is returned. On error, `out` stays as it was.
pub fn encode_stats(reply: &StatsReply, more: bool, xid: u32, out: &mut Vec<u8>) -> Result<usize, CannotSay> {
    let kind = Reply::number(reply)?;
    let head = |out: &mut Vec<u8>| {
        begin(VERSION, kind::MULTIPART_REPLY, xid, out);
        write_head(kind, false, out);
    };
    divide::<Reply>(reply, more, head, cannot("a message of this length"), out)
}
