//! Multipart requests, and how replies are divided into messages (section 7.3.5).

use super::{
    ALL_TABLES, begin, cannot, finish, flows, groups, kind, list, meters, oxm, ports,
    replies::{self, Parts},
    rest, session, table_features, unless,
};
use crate::openflow::{
    BadMessage, CannotSay, Message,
    message::{FlowFilter, StatsReply, StatsRequest},
    wire::{HEADER, LONGEST, Reader, Write},
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

/// OFPMPF_REQ_MORE and OFPMPF_REPLY_MORE.
const MORE: u16 = 1;
/// The offset of the flags in a message, and the bytes before its body.
const FLAGS_AT: usize = HEADER + 2;
const FIXED: usize = HEADER + 8;
/// OFPQ_ALL.
const ALL_QUEUES: u32 = u32::MAX;

/// Reads kind and flags, and skips the padding.
fn read_head(r: &mut Reader<'_>) -> Result<(u16, u16), BadMessage> {
    let head = (r.u16()?, r.u16()?);
    r.skip(4)?;
    Ok(head)
}

fn write_head(kind: u16, more: bool, out: &mut Vec<u8>) {
    out.u16(kind);
    out.u16(if more { MORE } else { 0 });
    out.zeros(4);
}

/// Reads a request. Only requests that set features may consist of several messages; others are not reassembled.
pub(super) fn read_request(r: &mut Reader<'_>) -> Result<StatsRequest, BadMessage> {
    let (kind, flags) = read_head(r)?;
    let more = flags & MORE != 0;
    if more && kind != part::TABLE_FEATURES {
        return Err(BadMessage::TooBig);
    }
    Ok(match kind {
        part::DESC => StatsRequest::Description,
        part::FLOW => StatsRequest::Flow(read_filter(r)?),
        part::AGGREGATE => StatsRequest::Aggregate(read_filter(r)?),
        part::TABLE => StatsRequest::Table,
        part::PORT_STATS => StatsRequest::Port(ports::read_padded(r)?),
        part::QUEUE => StatsRequest::Queue { port: ports::read(r)?, queue: unless(r.u32()?, ALL_QUEUES) },
        part::GROUP => StatsRequest::Group(read_id(groups::ALL, r)?),
        part::GROUP_DESC => StatsRequest::GroupDescription,
        part::GROUP_FEATURES => StatsRequest::GroupFeatures,
        part::METER => StatsRequest::Meter(read_id(meters::ALL, r)?),
        part::METER_CONFIG => StatsRequest::MeterConfig(read_id(meters::ALL, r)?),
        part::METER_FEATURES => StatsRequest::MeterFeatures,
        part::TABLE_FEATURES => StatsRequest::TableFeatures { sets: !rest(r)?.is_empty() || more },
        part::PORT_DESC => StatsRequest::PortDescription,
        part::EXPERIMENTER => StatsRequest::Experimenter(session::read_experimenter(r)?),
        _ => return Err(BadMessage::StatsType),
    })
}

fn kind_of_request(request: &StatsRequest) -> u16 {
    match request {
        StatsRequest::Description => part::DESC,
        StatsRequest::Flow(_) => part::FLOW,
        StatsRequest::Aggregate(_) => part::AGGREGATE,
        StatsRequest::Table => part::TABLE,
        StatsRequest::Port(_) => part::PORT_STATS,
        StatsRequest::Queue { .. } => part::QUEUE,
        StatsRequest::Group(_) => part::GROUP,
        StatsRequest::GroupDescription => part::GROUP_DESC,
        StatsRequest::GroupFeatures => part::GROUP_FEATURES,
        StatsRequest::Meter(_) => part::METER,
        StatsRequest::MeterConfig(_) => part::METER_CONFIG,
        StatsRequest::MeterFeatures => part::METER_FEATURES,
        StatsRequest::TableFeatures { .. } => part::TABLE_FEATURES,
        StatsRequest::PortDescription => part::PORT_DESC,
        StatsRequest::Experimenter(_) => part::EXPERIMENTER,
    }
}

pub(super) fn write_request(request: &StatsRequest, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    write_head(kind_of_request(request), false, out);
    match request {
        StatsRequest::Description
        | StatsRequest::Table
        | StatsRequest::GroupDescription
        | StatsRequest::GroupFeatures
        | StatsRequest::MeterFeatures
        | StatsRequest::TableFeatures { sets: false }
        | StatsRequest::PortDescription => {}
        StatsRequest::TableFeatures { sets: true } => {
            return Err(cannot("to set features of tables"));
        }
        StatsRequest::Flow(filter) | StatsRequest::Aggregate(filter) => return write_filter(filter, out),
        StatsRequest::Port(port) => return ports::write_padded(*port, out),
        StatsRequest::Queue { port, queue } => {
            out.u32(ports::to_wire(*port)?);
            out.u32(queue.unwrap_or(ALL_QUEUES));
        }
        StatsRequest::Group(id) => write_id(id.unwrap_or(groups::ALL), out),
        StatsRequest::Meter(id) | StatsRequest::MeterConfig(id) => {
            write_id(id.unwrap_or(meters::ALL), out);
        }
        StatsRequest::Experimenter(e) => session::write_experimenter(e, out),
    }
    Ok(())
}

/// Sections 7.3.5.2 and 7.3.5.3.
fn read_filter(r: &mut Reader<'_>) -> Result<FlowFilter, BadMessage> {
    let table = unless(r.u8()?, ALL_TABLES);
    r.skip(3)?;
    let (out_port, out_group) = (flows::read_out_port(r.u32()?)?, unless(r.u32()?, groups::ANY));
    r.skip(4)?;
    let (cookie, cookie_mask, matching) = (r.u64()?, r.u64()?, oxm::read_match(r)?);
    Ok(FlowFilter { table, matching, out_port, out_group, cookie, cookie_mask })
}

fn write_filter(filter: &FlowFilter, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    out.u8(filter.table.unwrap_or(ALL_TABLES));
    out.zeros(3);
    flows::write_out(filter.out_port, filter.out_group, out)?;
    out.zeros(4);
    out.u64(filter.cookie);
    out.u64(filter.cookie_mask);
    oxm::write_match(&filter.matching, out)
}

/// Reads the number of a group or meter, and skips the padding.
fn read_id(all: u32, r: &mut Reader<'_>) -> Result<Option<u32>, BadMessage> {
    let id = unless(r.u32()?, all);
    r.skip(4)?;
    Ok(id)
}

fn write_id(id: u32, out: &mut Vec<u8>) {
    out.u32(id);
    out.zeros(4);
}

pub(super) fn read_reply(r: &mut Reader<'_>) -> Result<Message, BadMessage> {
    let (kind, flags) = read_head(r)?;
    let reply = match kind {
        part::DESC => StatsReply::Description(replies::read_description(r)?),
        part::FLOW => StatsReply::Flow(list(r, replies::read_flow)?),
        part::AGGREGATE => replies::read_aggregate(r)?,
        part::TABLE => StatsReply::Table(list(r, replies::read_table)?),
        part::PORT_STATS => StatsReply::Port(list(r, replies::read_port)?),
        part::QUEUE => StatsReply::Queue(list(r, replies::read_queue)?),
        part::GROUP => StatsReply::Group(list(r, replies::read_group)?),
        part::GROUP_DESC => StatsReply::GroupDescription(list(r, groups::read_description)?),
        part::GROUP_FEATURES => StatsReply::GroupFeatures(replies::read_group_features(r)?),
        part::METER => StatsReply::Meter(list(r, replies::read_meter)?),
        part::METER_CONFIG => StatsReply::MeterConfig(list(r, meters::read_description)?),
        part::METER_FEATURES => StatsReply::MeterFeatures(replies::read_meter_features(r)?),
        part::TABLE_FEATURES => StatsReply::TableFeatures(list(r, table_features::read)?),
        part::PORT_DESC => StatsReply::PortDescription(list(r, ports::read_description)?),
        part::EXPERIMENTER => StatsReply::Experimenter(session::read_experimenter(r)?),
        _ => return Err(BadMessage::StatsType),
    };
    Ok(Message::StatsReply { reply, more: flags & MORE != 0 })
}

fn kind_of_reply(reply: &StatsReply) -> u16 {
    match reply {
        StatsReply::Description(_) => part::DESC,
        StatsReply::Flow(_) => part::FLOW,
        StatsReply::Aggregate { .. } => part::AGGREGATE,
        StatsReply::Table(_) => part::TABLE,
        StatsReply::Port(_) => part::PORT_STATS,
        StatsReply::Queue(_) => part::QUEUE,
        StatsReply::Group(_) => part::GROUP,
        StatsReply::GroupDescription(_) => part::GROUP_DESC,
        StatsReply::GroupFeatures(_) => part::GROUP_FEATURES,
        StatsReply::Meter(_) => part::METER,
        StatsReply::MeterConfig(_) => part::METER_CONFIG,
        StatsReply::MeterFeatures(_) => part::METER_FEATURES,
        StatsReply::TableFeatures(_) => part::TABLE_FEATURES,
        StatsReply::PortDescription(_) => part::PORT_DESC,
        StatsReply::Experimenter(_) => part::EXPERIMENTER,
    }
}

/// Writes the body of one message.
pub(super) fn write_reply(reply: &StatsReply, more: bool, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    write_head(kind_of_reply(reply), more, out);
    replies::write(reply, out)
}

/// Appends as many messages as the reply needs. Each has OFPMPF_REPLY_MORE, except the last one, which has it only if `more`
/// is set. Items of a list that 1.3 cannot express are left out; their number is returned. On error, `out` stays as it was.
pub fn encode_stats(reply: &StatsReply, more: bool, xid: u32, out: &mut Vec<u8>) -> Result<usize, CannotSay> {
    let before = out.len();
    let mut messages =
        Messages { out, from: before, kind: kind_of_reply(reply), xid, left_out: 0, refused: None };
    messages.begin();
    let written = replies::write(reply, &mut messages).and_then(|()| messages.finish());
    let (from, left_out, refused) = (messages.from, messages.left_out, messages.refused);
    let written = written.and(refused.filter(|_| !is_list(reply)).map_or(Ok(left_out), Err));
    match written {
        Ok(_) if more => out[from + FLAGS_AT + 1] = MORE as u8,
        Ok(_) => {}
        Err(_) => out.truncate(before),
    }
    written
}

fn is_list(reply: &StatsReply) -> bool {
    !matches!(
        reply,
        StatsReply::Description(_)
            | StatsReply::Aggregate { .. }
            | StatsReply::GroupFeatures(_)
            | StatsReply::MeterFeatures(_)
            | StatsReply::Experimenter(_)
    )
}

/// The messages of one reply.
struct Messages<'a> {
    out: &'a mut Vec<u8>,
    /// Where the last message begins.
    from: usize,
    kind: u16,
    xid: u32,
    /// How many parts were not written, and why the last of them was not.
    left_out: usize,
    refused: Option<CannotSay>,
}

impl Messages<'_> {
    fn begin(&mut self) {
        self.from = self.out.len();
        begin(kind::MULTIPART_REPLY, self.xid, self.out);
        write_head(self.kind, false, self.out);
    }
    fn finish(&mut self) -> Result<(), CannotSay> {
        finish(self.from, self.out)
    }
}

impl Parts for Messages<'_> {
    /// A part that does not fit into the message begins the next one. A part that fits into no message is left out.
    fn part(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), CannotSay>) -> Result<(), CannotSay> {
        let from = self.out.len();
        let longest = LONGEST - FIXED;
        let written = write(self.out).and_then(|()| {
            if self.out.len() - from > longest { Err(cannot("a message of this length")) } else { Ok(()) }
        });
        if let Err(refused) = written {
            self.out.truncate(from);
            self.left_out += 1;
            self.refused = Some(refused);
        } else if self.out.len() - self.from > LONGEST {
            let part = self.out.split_off(from);
            self.finish()?;
            self.out[self.from + FLAGS_AT + 1] = MORE as u8;
            self.begin();
            self.out.extend_from_slice(&part);
        }
        Ok(())
    }
}
