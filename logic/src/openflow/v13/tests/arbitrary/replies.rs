//! Random multipart replies.

use super::*;

fn flow() -> impl Strategy<Value = FlowStats> {
    let numbers = any::<(u8, u32, u32, u16, u16, u16, u64, u64, u64)>();
    (matching(), numbers, flags(), instructions()).prop_map(|(matching, n, flags, instructions)| {
        let (
            table,
            duration_sec,
            duration_nsec,
            priority,
            idle_timeout,
            hard_timeout,
            cookie,
            packets,
            bytes,
        ) = n;
        FlowStats {
            table,
            matching,
            duration_sec,
            duration_nsec,
            priority,
            idle_timeout,
            hard_timeout,
            flags,
            cookie,
            packets,
            bytes,
            instructions,
        }
    })
}

fn table() -> impl Strategy<Value = TableStats> {
    any::<(u8, u32, u64, u64)>().prop_map(|(table, active, lookups, matched)| TableStats {
        table,
        name: Vec::new(),
        wildcards: 0,
        max_entries: 0,
        active,
        lookups,
        matched,
    })
}

fn port_stats() -> impl Strategy<Value = PortStats> {
    (port(), any::<[u64; 12]>(), any::<(u32, u32)>()).prop_map(|(port, n, (duration_sec, duration_nsec))| {
        PortStats {
            port,
            rx_packets: n[0],
            tx_packets: n[1],
            rx_bytes: n[2],
            tx_bytes: n[3],
            rx_dropped: n[4],
            tx_dropped: n[5],
            rx_errors: n[6],
            tx_errors: n[7],
            rx_frame_errors: n[8],
            rx_over_errors: n[9],
            rx_crc_errors: n[10],
            collisions: n[11],
            duration_sec,
            duration_nsec,
        }
    })
}

fn queue_stats() -> impl Strategy<Value = QueueStats> {
    (port(), any::<(u32, u64, u64, u64, u32, u32)>()).prop_map(|(port, n)| {
        let (queue, tx_bytes, tx_packets, tx_errors, duration_sec, duration_nsec) = n;
        QueueStats { port, queue, tx_bytes, tx_packets, tx_errors, duration_sec, duration_nsec }
    })
}

/// Packets and bytes of each bucket or band.
fn counters() -> impl Strategy<Value = Vec<(u64, u64)>> {
    vec(any::<(u64, u64)>(), 0..4)
}

fn features() -> impl Strategy<Value = TableFeatures> {
    let fields = || {
        vec(any::<bool>(), FIELDS.len()).prop_map(|given| {
            FIELDS
                .iter()
                .zip(given)
                .filter(|(_, given)| *given)
                .map(|(spec, _)| spec.field)
                .collect::<Vec<_>>()
        })
    };
    let numbers = any::<(u8, u64, u64, u32, u32, u32)>();
    (text(32), numbers, blob(), fields(), fields()).prop_map(|(name, n, next_tables, matches, set_fields)| {
        let (table, metadata_match, metadata_write, max_entries, instructions, actions) = n;
        TableFeatures {
            table,
            name,
            metadata_match,
            metadata_write,
            max_entries,
            instructions,
            next_tables,
            actions,
            matches,
            set_fields,
        }
    })
}

/// Any reply that fits into one message.
pub fn reply() -> impl Strategy<Value = StatsReply> {
    let description = (text(256), text(256), text(256), text(32), text(256)).prop_map(
        |(manufacturer, hardware, software, serial, datapath)| {
            StatsReply::Description(Description { manufacturer, hardware, software, serial, datapath })
        },
    );
    let numbers = any::<(u32, u32, u64, u64, u32, u32)>;
    let group = (numbers(), counters()).prop_map(|(n, buckets)| {
        let (id, references, packets, bytes, duration_sec, duration_nsec) = n;
        GroupStats { id, references, packets, bytes, duration_sec, duration_nsec, buckets }
    });
    let meter_stats = (numbers(), counters()).prop_map(|(n, bands)| {
        let (id, flows, packets, bytes, duration_sec, duration_nsec) = n;
        MeterStats { id, flows, packets, bytes, duration_sec, duration_nsec, bands }
    });
    Union::new([
        description.boxed(),
        vec(flow(), 0..4).prop_map(StatsReply::Flow).boxed(),
        any::<(u64, u64, u32)>()
            .prop_map(|(packets, bytes, flows)| StatsReply::Aggregate { packets, bytes, flows })
            .boxed(),
        vec(table(), 0..4).prop_map(StatsReply::Table).boxed(),
        vec(port_stats(), 0..4).prop_map(StatsReply::Port).boxed(),
        vec(queue_stats(), 0..4).prop_map(StatsReply::Queue).boxed(),
        vec(group, 0..4).prop_map(StatsReply::Group).boxed(),
        vec(super::group(), 0..4).prop_map(StatsReply::GroupDescription).boxed(),
        any::<(u32, u32, [u32; 4], [u32; 4])>()
            .prop_map(|(types, capabilities, max_groups, actions)| {
                StatsReply::GroupFeatures(GroupFeatures { types, capabilities, max_groups, actions })
            })
            .boxed(),
        vec(meter_stats, 0..4).prop_map(StatsReply::Meter).boxed(),
        vec(meter(), 0..4).prop_map(StatsReply::MeterConfig).boxed(),
        any::<(u32, u32, u32, u8, u8)>()
            .prop_map(|(max_meters, band_types, capabilities, max_bands, max_color)| {
                let f = MeterFeatures { max_meters, band_types, capabilities, max_bands, max_color };
                StatsReply::MeterFeatures(f)
            })
            .boxed(),
        vec(features(), 0..3).prop_map(StatsReply::TableFeatures).boxed(),
        vec(port_description(), 0..4).prop_map(StatsReply::PortDescription).boxed(),
        experimenter().prop_map(StatsReply::Experimenter).boxed(),
    ])
}
