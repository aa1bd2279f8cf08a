//! Random messages that 1.3 can express and that make sense.

use super::*;
use crate::{
    flow::{
        FlowCommand, FlowFlags, FlowMod, Group, GroupKind, GroupMod, Instructions, Meter, MeterMod, Removed,
        field::FIELDS,
        rule::{Band, BandKind, Bucket, MeterUnit},
    },
    net::Mac,
    openflow::message::*,
};
use proptest::{collection::vec, option, prelude::*, sample::select, strategy::Union};

fn port() -> impl Strategy<Value = RulePort> {
    prop_oneof![0..=0xff00_u16, 0xfff8..=0xffff_u16].prop_map(RulePort)
}

/// A number except the one that stands for none, any or all.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0..10_u32, 0..=0xffff_0000_u32]
}

fn blob() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn text(field: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(1..=u8::MAX, 0..field)
}

/// A sensible value of a field, which is likely to be one that other fields need.
fn value_of(field: Field, draw: u128) -> u128 {
    let pick = |values: &[u128]| values[draw as usize % values.len()];
    match field {
        Field::InPort => pick(&[0, 1, 0xff00, 0xfffd, 0xfffe]),
        Field::EthType | Field::InnerEthType => pick(&[0x0800, 0x0806, 0x86dd, 0x88cc]),
        Field::IpProto | Field::InnerIpProto => pick(&[1, 6, 17, 58, 132, 47]),
        Field::Icmpv6Type => pick(&[135, 136, 1]),
        Field::Icmpv4Type | Field::Icmpv4Code | Field::Icmpv6Code => draw & 0xff,
        Field::VlanVid | Field::InnerVlanVid => 0x1000 | draw & 0xfff,
        _ => draw & field.all_bits(),
    }
}

fn matching() -> impl Strategy<Value = Match> {
    vec((any::<u8>(), any::<u128>(), any::<u128>()), FIELDS.len()).prop_map(|draws| {
        let mut matching = Match::ANY;
        for (spec, (how, value, mask)) in FIELDS.iter().zip(draws) {
            let field = spec.field;
            if how % 4 == 0 || !matching.permits(field) {
                continue;
            }
            let (value, mask) = (value_of(field, value), mask & field.all_bits());
            match (field, how % 8) {
                (Field::VlanVid | Field::InnerVlanVid, 1) => matching.set(field, 0, field.all_bits()),
                (Field::VlanVid | Field::InnerVlanVid, 2) => matching.set(field, value, 0x1000 | mask),
                (_, 1 | 2) if spec.maskable => matching.set(field, value, mask),
                _ => matching.set(field, value, field.all_bits()),
            }
        }
        matching
    })
}

fn action() -> impl Strategy<Value = Action> {
    let set_field = (select(FIELDS), any::<u128>())
        .prop_filter("can be set", |(spec, _)| !matches!(spec.field, Field::InPort | Field::Metadata))
        .prop_map(|(spec, draw)| Action::set(spec.field, value_of(spec.field, draw)));
    prop_oneof![
        (port(), any::<u16>()).prop_map(|(port, max_len)| Action::Output { port, max_len }),
        any::<u32>().prop_map(Action::SetQueue),
        any::<u32>().prop_map(Action::Group),
        any::<u8>().prop_map(Action::SetTtl),
        select(vec![Action::DecTtl, Action::PopVlan, Action::PushVlan(0x8100), Action::PushVlan(0x88a8)]),
        set_field,
    ]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    vec(action(), 0..4)
}

fn instructions() -> impl Strategy<Value = Instructions> {
    let metadata = option::of(any::<(u64, u64)>());
    (option::of(any::<u32>()), actions(), any::<bool>(), actions(), metadata, option::of(any::<u8>()))
        .prop_map(|(meter, apply, clear, write, metadata, goto_table)| Instructions {
            meter,
            apply,
            clear,
            write,
            metadata,
            goto_table,
        })
}

fn flags() -> impl Strategy<Value = FlowFlags> {
    (0..32_u16).prop_map(|flags| {
        let bytes = flags.to_be_bytes();
        super::super::flows::FLAGS.read(&mut Reader::new(&bytes, BadMessage::Length)).unwrap()
    })
}

fn flow_mod() -> impl Strategy<Value = FlowMod> {
    let command = select(vec![
        FlowCommand::Add,
        FlowCommand::Modify { strict: false },
        FlowCommand::Modify { strict: true },
        FlowCommand::Delete { strict: false },
        FlowCommand::Delete { strict: true },
    ]);
    let filter = (0..=0xff00_u16, number(), any::<[bool; 3]>());
    let numbers = any::<(u64, u64, u16, u16, u16)>();
    (command, 0..255_u8, filter, numbers, matching(), instructions(), flags(), option::of(number())).prop_map(
        |(command, table, (port, group, given), numbers, matching, instructions, flags, buffer)| {
            let deletes = matches!(command, FlowCommand::Delete { .. });
            let (cookie, cookie_mask, priority, idle_timeout, hard_timeout) = numbers;
            FlowMod {
                command,
                table: (!deletes || given[0]).then_some(table),
                out_port: (deletes && given[1]).then_some(RulePort(port)),
                out_group: (deletes && given[2]).then_some(group),
                cookie,
                cookie_mask,
                priority,
                idle_timeout,
                hard_timeout,
                matching,
                instructions,
                flags,
                buffer,
            }
        },
    )
}

fn packets() -> impl Strategy<Value = Message> {
    let reason = select(vec![PacketInReason::NoMatch, PacketInReason::Action, PacketInReason::InvalidTtl]);
    let came_in = (option::of(number()), any::<(u16, u8, u64)>(), reason, matching(), blob()).prop_map(
        |(buffer, (total_len, table, cookie), reason, matching, data)| {
            Message::PacketIn(PacketIn { buffer, total_len, reason, table, cookie, matching, data })
        },
    );
    let goes_out =
        (option::of(number()), port(), actions(), blob()).prop_map(|(buffer, in_port, actions, data)| {
            let data = if buffer.is_none() { data } else { Vec::new() };
            Message::PacketOut(PacketOut { buffer, in_port, actions, data })
        });
    prop_oneof![came_in, goes_out]
}

fn flow_removed() -> impl Strategy<Value = FlowRemoved> {
    let reason = select(vec![
        Removed::IdleTimeout,
        Removed::HardTimeout,
        Removed::Delete,
        Removed::GroupDelete,
        Removed::MeterDelete,
    ]);
    (matching(), reason, any::<(u64, u16, u8, u32, u32, u16, u16, u64, u64)>()).prop_map(
        |(matching, reason, n)| {
            let (
                cookie,
                priority,
                table,
                duration_sec,
                duration_nsec,
                idle_timeout,
                hard_timeout,
                packets,
                bytes,
            ) = n;
            FlowRemoved {
                matching,
                cookie,
                priority,
                reason,
                table,
                duration_sec,
                duration_nsec,
                idle_timeout,
                hard_timeout,
                packets,
                bytes,
            }
        },
    )
}

fn group() -> impl Strategy<Value = Group> {
    let kinds = [GroupKind::All, GroupKind::Select, GroupKind::Indirect, GroupKind::FastFailover];
    let bucket =
        (any::<u16>(), option::of((0..=0xff00_u16).prop_map(RulePort)), option::of(number()), actions());
    let bucket = bucket.prop_map(|(weight, watch_port, watch_group, actions)| Bucket {
        weight,
        watch_port,
        watch_group,
        actions,
    });
    (number(), select(kinds.to_vec()), vec(bucket, 0..4)).prop_map(|(id, kind, buckets)| Group {
        id,
        kind,
        buckets,
    })
}

fn meter() -> impl Strategy<Value = Meter> {
    let kind = prop_oneof![
        Just(BandKind::Drop),
        any::<u8>().prop_map(|levels| BandKind::DscpRemark { levels }),
        any::<u32>().prop_map(BandKind::Experimenter),
    ];
    let band = (any::<u32>(), any::<u32>(), kind).prop_map(|(rate, burst, kind)| Band { rate, burst, kind });
    let unit = select(vec![MeterUnit::Kbps, MeterUnit::Pps]);
    (1..1000_u32, unit, any::<bool>(), any::<bool>(), vec(band, 0..4))
        .prop_map(|(id, unit, burst, stats, bands)| Meter { id, unit, burst, stats, bands })
}

fn changes() -> impl Strategy<Value = Message> {
    prop_oneof![
        flow_mod().prop_map(Message::FlowMod),
        group().prop_map(|group| Message::GroupMod(GroupMod::Add(group))),
        group().prop_map(|group| Message::GroupMod(GroupMod::Modify(group))),
        option::of(number()).prop_map(|id| Message::GroupMod(GroupMod::Delete(id))),
        meter().prop_map(|meter| Message::MeterMod(MeterMod::Add(meter))),
        meter().prop_map(|meter| Message::MeterMod(MeterMod::Modify(meter))),
        option::of(1..1000_u32).prop_map(|id| Message::MeterMod(MeterMod::Delete(id))),
        (port(), any::<[u8; 6]>(), any::<[u32; 3]>()).prop_map(|(port, mac, [config, mask, advertise])| {
            Message::PortMod(PortMod {
                port,
                mac: Mac(mac),
                config: PortConfig(config & 0x65),
                mask: PortConfig(mask & 0x65),
                advertise: PortFeatures(advertise),
            })
        }),
        (option::of(0..255_u8), any::<u32>()).prop_map(|(table, config)| Message::TableMod { table, config }),
    ]
}

fn port_description() -> impl Strategy<Value = PortDescription> {
    let words = any::<[u32; 7]>();
    (port(), any::<[u8; 6]>(), text(16), any::<[bool; 3]>(), words).prop_map(|(port, mac, name, state, n)| {
        PortDescription {
            port,
            mac: Mac(mac),
            name,
            config: PortConfig(n[0] & 0x65),
            state: PortState { link_down: state[0], blocked: state[1], live: state[2], stp: 0 },
            current: PortFeatures(n[1]),
            advertised: PortFeatures(n[2]),
            supported: PortFeatures(n[3]),
            peer: PortFeatures(n[4]),
            current_speed: n[5],
            max_speed: n[6],
        }
    })
}

fn experimenter() -> impl Strategy<Value = Experimenter> {
    (any::<u32>(), any::<u32>(), blob()).prop_map(|(id, subtype, body)| Experimenter { id, subtype, body })
}

fn queue_description() -> impl Strategy<Value = QueueDescription> {
    (any::<u32>(), port(), option::of(0..=1000_u16), option::of(0..=1000_u16))
        .prop_map(|(queue, port, min_rate, max_rate)| QueueDescription { queue, port, min_rate, max_rate })
}

fn session() -> impl Strategy<Value = Message> {
    let role = || select(vec![Role::NoChange, Role::Equal, Role::Master, Role::Slave]);
    let versions = proptest::collection::btree_set(any::<u8>(), 0..5)
        .prop_map(|set| set.into_iter().collect::<Vec<u8>>());
    let fragments = select(vec![Fragments::Normal, Fragments::Drop, Fragments::Reassemble]);
    let config =
        (fragments, any::<u16>()).prop_map(|(fragments, miss_send_len)| Config { fragments, miss_send_len });
    let masks = any::<[[u32; 2]; 3]>().prop_map(|[packet_in, port_status, flow_removed]| AsyncConfig {
        packet_in,
        port_status,
        flow_removed,
    });
    let reason = select(vec![PortReason::Add, PortReason::Delete, PortReason::Modify]);
    let bare = [
        Message::FeaturesRequest,
        Message::GetConfigRequest,
        Message::BarrierRequest,
        Message::BarrierReply,
        Message::GetAsyncRequest,
    ];
    Union::new([
        option::of(versions).prop_map(|versions| Message::Hello { versions }).boxed(),
        (any::<u16>(), any::<u16>(), blob())
            .prop_map(|(kind, code, data)| Message::Error(ErrorMessage { kind, code, data }))
            .boxed(),
        blob().prop_map(Message::EchoRequest).boxed(),
        blob().prop_map(Message::EchoReply).boxed(),
        experimenter().prop_map(Message::Experimenter).boxed(),
        select(bare.to_vec()).boxed(),
        any::<(u64, u32, u8, u8, u32)>()
            .prop_map(|(datapath_id, buffers, tables, auxiliary_id, capabilities)| {
                let (actions, ports) = (None, None);
                let f = Features { datapath_id, buffers, tables, auxiliary_id, capabilities, actions, ports };
                Message::FeaturesReply(f)
            })
            .boxed(),
        config.clone().prop_map(Message::GetConfigReply).boxed(),
        config.prop_map(Message::SetConfig).boxed(),
        (reason, port_description()).prop_map(|(reason, port)| Message::PortStatus { reason, port }).boxed(),
        port().prop_map(|port| Message::QueueConfigRequest { port }).boxed(),
        (port(), vec(queue_description(), 0..4))
            .prop_map(|(port, queues)| Message::QueueConfigReply { port, queues })
            .boxed(),
        (role(), any::<u64>())
            .prop_map(|(role, generation)| Message::RoleRequest { role, generation })
            .boxed(),
        (role(), any::<u64>()).prop_map(|(role, generation)| Message::RoleReply { role, generation }).boxed(),
        masks.clone().prop_map(Message::GetAsyncReply).boxed(),
        masks.prop_map(Message::SetAsync).boxed(),
    ])
}

fn request() -> impl Strategy<Value = StatsRequest> {
    let filter = || {
        let ports = option::of((0..=0xff00_u16).prop_map(RulePort));
        (option::of(0..255_u8), matching(), ports, option::of(number()), any::<(u64, u64)>()).prop_map(
            |(table, matching, out_port, out_group, (cookie, cookie_mask))| FlowFilter {
                table,
                matching,
                out_port,
                out_group,
                cookie,
                cookie_mask,
            },
        )
    };
    let bare = [
        StatsRequest::Description,
        StatsRequest::Table,
        StatsRequest::GroupDescription,
        StatsRequest::GroupFeatures,
        StatsRequest::MeterFeatures,
        StatsRequest::TableFeatures { sets: false },
        StatsRequest::PortDescription,
    ];
    prop_oneof![
        select(bare.to_vec()),
        filter().prop_map(StatsRequest::Flow),
        filter().prop_map(StatsRequest::Aggregate),
        port().prop_map(StatsRequest::Port),
        (port(), option::of(number())).prop_map(|(port, queue)| StatsRequest::Queue { port, queue }),
        option::of(number()).prop_map(StatsRequest::Group),
        option::of(number()).prop_map(StatsRequest::Meter),
        option::of(number()).prop_map(StatsRequest::MeterConfig),
        experimenter().prop_map(StatsRequest::Experimenter),
    ]
}

/// Any message.
pub fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        3 => session(),
        3 => changes(),
        1 => packets(),
        1 => flow_removed().prop_map(Message::FlowRemoved),
        1 => request().prop_map(Message::StatsRequest),
        3 => (replies::reply(), any::<bool>()).prop_map(|(reply, more)| Message::StatsReply { reply, more }),
    ]
}

mod replies;
