//! Statistics: requests, and long replies in pieces.

use super::{Agent, ConnectionId, Outside, connection::Work, session::Version};
use crate::{
    flow::{
        Field, FlowFilter, GroupKind, Refused, RuleId, RulePort,
        field::FIELDS,
        kernel::FlowMemory,
        rule::{TABLES, TableId},
        table::{BANDS, GROUPS, METERS, settable},
    },
    openflow::{
        BadMessage, EXPERIMENTER,
        message::{GroupFeatures, MeterFeatures, StatsReply, StatsRequest, TableFeatures, TableStats},
    },
};

/// OFPFW_ALL of 1.0: every field may be left out.
const WILDCARDS: u32 = (1 << 22) - 1;
/// OFPIT: goto-table, write-metadata, write-, apply-, clear-actions, meter.
const INSTRUCTIONS: u32 = 0b111_1110;
const GOTO_TABLE: u32 = 1 << 1;
/// OFPAT of 1.3: output, push and pop VLAN, set queue, group, set and decrement TTL, set field.
const ACTIONS: u32 = 1 | 1 << 17 | 1 << 18 | 1 << 21 | 1 << 22 | 1 << 23 | 1 << 24 | 1 << 25;
/// OFPGFC: select by weight and by liveness; chains, which are checked.
const GROUP_CAPABILITIES: u32 = 0b1111;
/// OFPMBT_DROP.
const BANDS_DROP: u32 = 1 << 1;
/// OFPMF: kbit/s, packets/s, bursts, counters.
const METER_CAPABILITIES: u32 = 0b1111;

/// A reply with many items, some of which may be written already.
pub(super) struct Listing {
    xid: u32,
    what: What,
    /// Rows of rules, or ids of groups or meters.
    ids: Vec<u32>,
    next: usize,
}

enum What {
    Rules(Box<FlowFilter>),
    Groups,
    GroupDescriptions,
    Meters,
    MeterConfigs,
}

impl What {
    /// How many items make a piece. A piece has at most 512 KiB.
    fn piece(&self) -> usize {
        match self {
            What::Rules(_) | What::Groups | What::Meters | What::MeterConfigs => 256,
            What::GroupDescriptions => 8,
        }
    }
}

impl<M: FlowMemory> Agent<M> {
    /// Answers a statistics or multipart request.
    pub(super) fn statistics(
        &mut self,
        id: ConnectionId,
        version: Version,
        xid: u32,
        request: StatsRequest,
        now_ms: u64,
        outside: &dyn Outside,
    ) -> Result<(), BadMessage> {
        let reply = match request {
            StatsRequest::Description => StatsReply::Description(self.settings.description.clone()),
            StatsRequest::Flow(filter) => {
                check_table(version, &filter)?;
                let ids = self.flows.meant(&filter).into_iter().map(|RuleId(id)| id).collect();
                return self.list(id, xid, What::Rules(Box::new(filter)), ids);
            }
            StatsRequest::Aggregate(filter) => {
                check_table(version, &filter)?;
                let sum = self.flows.aggregate(&filter, now_ms);
                StatsReply::Aggregate { packets: sum.packets, bytes: sum.bytes, flows: sum.rules }
            }
            StatsRequest::Table => StatsReply::Table(self.table_stats()),
            StatsRequest::Port(port) => StatsReply::Port(self.port_stats(port, outside)?),
            StatsRequest::Queue { port, queue } => self.queue_stats(port, queue)?,
            StatsRequest::Group(one) => return self.list(id, xid, What::Groups, self.groups(one)),
            StatsRequest::GroupDescription => {
                return self.list(id, xid, What::GroupDescriptions, self.groups(None));
            }
            StatsRequest::GroupFeatures => StatsReply::GroupFeatures(group_features()),
            StatsRequest::Meter(one) => return self.list(id, xid, What::Meters, self.meters(one)?),
            StatsRequest::MeterConfig(one) => {
                return self.list(id, xid, What::MeterConfigs, self.meters(one)?);
            }
            StatsRequest::MeterFeatures => StatsReply::MeterFeatures(MeterFeatures {
                max_meters: METERS as u32,
                band_types: BANDS_DROP,
                capabilities: METER_CAPABILITIES,
                max_bands: BANDS as u8,
                max_color: 0,
            }),
            StatsRequest::TableFeatures { sets: true } => return Err(BadMessage::TableFeatures),
            StatsRequest::TableFeatures { sets: false } => StatsReply::TableFeatures(
                (0..TABLES).map(|table| table_features(table, self.settings.max_rules)).collect(),
            ),
            StatsRequest::PortDescription => StatsReply::PortDescription(self.ports.descriptions().collect()),
            StatsRequest::Experimenter(message) if message.id == EXPERIMENTER => {
                return Err(BadMessage::ExperimenterType);
            }
            StatsRequest::Experimenter(_) => return Err(BadMessage::Experimenter),
        };
        self.tell_stats(id, xid, &reply, false);
        Ok(())
    }

    fn list(&mut self, id: ConnectionId, xid: u32, what: What, ids: Vec<u32>) -> Result<(), BadMessage> {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.push(Work::Listing(Box::new(Listing { xid, what, ids, next: 0 })));
        }
        Ok(())
    }

    /// Writes the next piece of a long reply. Items that no longer exist are left out.
    pub(super) fn write_piece(&mut self, id: ConnectionId, mut listing: Box<Listing>, now_ms: u64) {
        let end = listing.ids.len().min(listing.next + listing.what.piece());
        let ids = listing.ids[listing.next..end].iter().copied();
        let reply = match &listing.what {
            What::Rules(filter) => StatsReply::Flow(
                ids.filter_map(|id| self.flows.flow_if_meant(RuleId(id), filter, now_ms)).collect(),
            ),
            What::Groups => {
                StatsReply::Group(ids.flat_map(|id| self.flows.group_stats(Some(id), now_ms)).collect())
            }
            What::GroupDescriptions => StatsReply::GroupDescription(
                ids.filter_map(|id| self.flows.tables().group(id).cloned()).collect(),
            ),
            What::Meters => {
                StatsReply::Meter(ids.flat_map(|id| self.flows.meter_stats(Some(id), now_ms)).collect())
            }
            What::MeterConfigs => {
                StatsReply::MeterConfig(ids.filter_map(|id| self.flows.tables().meter(id).cloned()).collect())
            }
        };
        let more = end < listing.ids.len();
        self.tell_stats(id, listing.xid, &reply, more);
        listing.next = end;
        if more && let Some(connection) = self.connections.get_mut(&id) {
            connection.push_rest(Work::Listing(listing));
        }
    }

    /// Sends statistics. Items that the connection's version cannot express are left out and counted.
    fn tell_stats(&mut self, id: ConnectionId, xid: u32, reply: &StatsReply, more: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(version) = connection.version else { return };
        let mut bytes = Vec::new();
        connection.unsaid += version.encode_stats(reply, more, xid, &mut bytes).unwrap_or(1) as u64;
        self.send(id, bytes);
    }

    /// A port has no queues except the default one, which is not listed.
    fn queue_stats(&self, port: RulePort, queue: Option<u32>) -> Result<StatsReply, BadMessage> {
        if ![RulePort::ALL, RulePort::NONE].contains(&port) && !self.ports.are_told(port) {
            return Err(BadMessage::Port);
        }
        match queue {
            None => Ok(StatsReply::Queue(Vec::new())),
            Some(_) => Err(Refused::BadQueue.into()),
        }
    }

    /// An unknown group is no error: 1.3.5 has one only for changes of groups (section 7.4.4.6).
    fn groups(&self, one: Option<u32>) -> Vec<u32> {
        let tables = self.flows.tables();
        match one {
            None => tables.groups().map(|group| group.id).collect(),
            Some(id) => tables.group(id).map(|group| group.id).into_iter().collect(),
        }
    }

    fn meters(&self, one: Option<u32>) -> Result<Vec<u32>, BadMessage> {
        let tables = self.flows.tables();
        match one {
            None => Ok(tables.meters().map(|meter| meter.id).collect()),
            Some(id) if tables.meter(id).is_some() => Ok(vec![id]),
            Some(_) => Err(Refused::UnknownMeter.into()),
        }
    }
}

/// 1.0 has no error for a missing table. One such number is that of the emergency table, which has no rules.
fn check_table(version: Version, filter: &FlowFilter) -> Result<(), BadMessage> {
    let missing = filter.table.is_some_and(|table| table >= TABLES);
    if missing && version == Version::OpenFlow13 { Err(BadMessage::Table) } else { Ok(()) }
}

fn table_name(table: TableId) -> Vec<u8> {
    format!("table{table}").into_bytes()
}

impl<M: FlowMemory> Agent<M> {
    fn table_stats(&self) -> Vec<TableStats> {
        let counts = self.flows.table_counts();
        let stats = |(table, active): (TableId, u32)| TableStats {
            table,
            name: table_name(table),
            wildcards: WILDCARDS,
            max_entries: self.settings.max_rules,
            active,
            lookups: counts[usize::from(table)].lookups,
            matched: counts[usize::from(table)].matched,
        };
        self.flows.tables().tables().map(stats).collect()
    }
}

fn table_features(table: TableId, max_rules: u32) -> TableFeatures {
    let next_tables: Vec<TableId> = (table + 1..TABLES).collect();
    TableFeatures {
        table,
        name: table_name(table),
        metadata_match: u64::MAX,
        metadata_write: u64::MAX,
        max_entries: max_rules,
        instructions: if next_tables.is_empty() { INSTRUCTIONS & !GOTO_TABLE } else { INSTRUCTIONS },
        next_tables,
        actions: ACTIONS,
        matches: FIELDS.iter().map(|spec| spec.field).collect(),
        set_fields: FIELDS.iter().map(|spec| spec.field).filter(|&field: &Field| settable(field)).collect(),
    }
}

fn group_features() -> GroupFeatures {
    let kinds = [GroupKind::All, GroupKind::Select, GroupKind::Indirect, GroupKind::FastFailover];
    GroupFeatures {
        types: kinds.iter().fold(0, |types, &kind| types | 1 << kind as u32),
        capabilities: GROUP_CAPABILITIES,
        max_groups: [GROUPS as u32; 4],
        actions: [ACTIONS; 4],
    }
}
