//! Bodies of multipart replies (section 7.3.5).

use super::{
    actions::Known, flows, groups, instructions::InstructionsWith, meters, multipart::part, oxm::MATCH,
    ports, session, table_features,
};
use crate::openflow::{
    BadMessage, CannotSay,
    common::DESCRIPTION,
    format::{Format, Layout, List, Pad, Sized, Skip, U8, U16, U32, U64, choice, layout, words},
    message::{
        FlowStats, GroupFeatures, GroupStats, MeterFeatures, MeterStats, PortStats, QueueStats, StatsReply,
        TableStats,
    },
    wire::Reader,
};

choice! {
    pub(super) Reply: u16 => StatsReply else BadMessage::StatsType;
    part::DESC => Description(description: DESCRIPTION),
    part::FLOW => Flow(flows: List(Sized(0, BadMessage::Length, FLOW))),
    part::AGGREGATE => Aggregate { packets: U64, bytes: U64, flows: Pad(U32, 4) },
    part::TABLE => Table(tables: List(TABLE)),
    part::PORT_STATS => Port(ports: List(PORT)),
    part::QUEUE => Queue(queues: List(QUEUE)),
    part::GROUP => Group(groups: List(Sized(0, BadMessage::Length, GROUP))),
    part::GROUP_DESC => GroupDescription(groups: List(groups::DESCRIPTION)),
    part::GROUP_FEATURES => GroupFeatures(features: GROUP_FEATURES),
    part::METER => Meter(meters: List(Sized(4, BadMessage::Length, METER))),
    part::METER_CONFIG => MeterConfig(meters: List(meters::DESCRIPTION)),
    part::METER_FEATURES => MeterFeatures(features: METER_FEATURES),
    part::TABLE_FEATURES => TableFeatures(tables: List(table_features::FEATURES)),
    part::PORT_DESC => PortDescription(ports: List(ports::DESCRIPTION)),
    part::EXPERIMENTER => Experimenter(experimenter: session::EXPERIMENTER),
}

/// Section 7.3.5.2, with the length before it.
const FLOW: Layout<FlowStats> = layout!(FlowStats {
    table: Skip(2, Pad(U8, 1)),
    duration_sec: U32,
    duration_nsec: U32,
    priority: U16,
    idle_timeout: U16,
    hard_timeout: U16,
    flags: Pad(flows::FLAGS, 4),
    cookie: U64,
    packets: U64,
    bytes: U64,
    matching: MATCH,
    instructions: InstructionsWith(Known::of(&matching)),
});

/// Section 7.3.5.4. Name, wildcards and room are not here; they are among a table's features.
const TABLE: Layout<TableStats> = layout!(
    TableStats { table: Pad(U8, 3), active: U32, lookups: U64, matched: U64 },
    absent { name: Vec::new(), wildcards: 0, max_entries: 0 }
);

/// Section 7.3.5.6.
const PORT: Layout<PortStats> = layout!(PortStats {
    port: Pad(ports::PORT, 4),
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
    duration_sec: U32,
    duration_nsec: U32,
});

/// Section 7.3.5.8.
const QUEUE: Layout<QueueStats> = layout!(QueueStats {
    port: ports::PORT,
    queue: U32,
    tx_bytes: U64,
    tx_packets: U64,
    tx_errors: U64,
    duration_sec: U32,
    duration_nsec: U32,
});

/// Section 7.3.5.9, with the length before it.
const GROUP: Layout<GroupStats> = layout!(GroupStats {
    id: Skip(4, U32),
    references: Pad(U32, 4),
    packets: U64,
    bytes: U64,
    duration_sec: U32,
    duration_nsec: U32,
    buckets: List(COUNTERS),
});

/// The packets and bytes of a bucket or band.
const COUNTERS: Layout<(u64, u64)> = Layout(
    |r| Ok((r.u64()?, r.u64()?)),
    |(packets, bytes), out| {
        U64.write(packets, out)?;
        U64.write(bytes, out)
    },
);

/// Section 7.3.5.11.
const GROUP_FEATURES: Layout<GroupFeatures> =
    layout!(GroupFeatures { types: U32, capabilities: U32, max_groups: words(), actions: words() });

/// Section 7.3.5.12. The padding begins with the length.
const METER: Layout<MeterStats> = layout!(MeterStats {
    id: Pad(U32, 8),
    flows: U32,
    packets: U64,
    bytes: U64,
    duration_sec: U32,
    duration_nsec: U32,
    bands: List(COUNTERS),
});

/// Section 7.3.5.14.
const METER_FEATURES: Layout<MeterFeatures> = layout!(MeterFeatures {
    max_meters: U32,
    band_types: U32,
    capabilities: U32,
    max_bands: U8,
    max_color: Pad(U8, 2),
});
