//! Messages that 1.0 can express come back unchanged. No bytes make the decoder panic, and every decoded
//! message can be encoded.

use super::{super::super::message::*, *};
use crate::{
    flow::{
        Removed,
        field::{ether_type, ip_proto},
    },
    net::Mac,
};
use proptest::{collection::vec, option, prelude::*, sample::select};

/// An optional field, of which `mask` is matched.
fn maybe(
    field: Field,
    value: impl Strategy<Value = u128>,
) -> impl Strategy<Value = Vec<(Field, u128, u128)>> {
    option::of(value).prop_map(move |value| value.map(|v| (field, v, field.all_bits())).into_iter().collect())
}

fn bits(bits: u32) -> impl Strategy<Value = u128> {
    0..1_u128 << bits
}

fn prefix(field: Field) -> impl Strategy<Value = Vec<(Field, u128, u128)>> {
    (any::<u32>(), 0..=32_u32).prop_map(move |(address, length)| {
        let mask = u128::from(u32::MAX) << (32 - length) & u128::from(u32::MAX);
        if length == 0 { vec![] } else { vec![(field, address.into(), mask)] }
    })
}

fn layers() -> impl Strategy<Value = Vec<(Field, u128, u128)>> {
    let kind = |kind: u16| (Field::EthType, u128::from(kind), 0xffff);
    let ports = |proto: u8, src, dst| {
        (maybe(src, bits(16)), maybe(dst, bits(16)))
            .prop_map(move |(src, dst)| [vec![(Field::IpProto, u128::from(proto), 0xff)], src, dst].concat())
    };
    let transport = prop_oneof![
        ports(ip_proto::TCP, Field::TcpSrc, Field::TcpDst),
        ports(ip_proto::UDP, Field::UdpSrc, Field::UdpDst),
        ports(ip_proto::ICMP, Field::Icmpv4Type, Field::Icmpv4Code),
        maybe(Field::IpProto, bits(8)),
    ];
    let ipv4 = (prefix(Field::Ipv4Src), prefix(Field::Ipv4Dst), maybe(Field::IpDscp, bits(6)), transport)
        .prop_map(move |(src, dst, dscp, rest)| {
            [vec![kind(ether_type::IPV4)], src, dst, dscp, rest].concat()
        });
    let op = option::of(any::<u8>())
        .prop_map(|op| op.map(|op| (Field::ArpOp, u128::from(op), 0xffff)).into_iter().collect::<Vec<_>>());
    let arp = (prefix(Field::ArpSpa), prefix(Field::ArpTpa), op)
        .prop_map(move |(spa, tpa, op)| [vec![kind(ether_type::ARP)], spa, tpa, op].concat());
    prop_oneof![ipv4, arp, maybe(Field::EthType, bits(16))]
}

fn matching() -> impl Strategy<Value = Match> {
    let pcp = || maybe(Field::VlanPcp, bits(3));
    let vlan = prop_oneof![
        Just(vec![]),
        Just(vec![(Field::VlanVid, 0, 0x1fff)]),
        (0x1000..0x2000_u128, pcp())
            .prop_map(|(vid, pcp)| [vec![(Field::VlanVid, vid, 0x1fff)], pcp].concat()),
        bits(3).prop_map(|pcp| vec![(Field::VlanVid, 0x1000, 0x1000), (Field::VlanPcp, pcp, 7)]),
    ];
    let frame = (
        maybe(Field::InPort, bits(16)),
        maybe(Field::EthSrc, bits(48)),
        maybe(Field::EthDst, bits(48)),
        vlan,
        layers(),
    );
    frame.prop_map(|(port, src, dst, vlan, layers)| {
        let mut m = Match::ANY;
        for (field, value, mask) in [port, src, dst, vlan, layers].concat() {
            m.set(field, value, mask);
        }
        m
    })
}

fn action() -> impl Strategy<Value = Action> {
    let real = (0..=RulePort::MAX.0).prop_map(RulePort);
    let output = prop_oneof![real.clone(), (RulePort::IN_PORT.0..RulePort::NONE.0).prop_map(RulePort)];
    let queued = prop_oneof![real, select(vec![RulePort::IN_PORT, RulePort::LOCAL])];
    prop_oneof![
        (output, any::<u16>()).prop_map(|(port, max_len)| Action::Output { port, max_len }),
        (queued, any::<u32>()).prop_map(|(port, queue)| Action::Enqueue { port, queue }),
        (0..0x1000_u16).prop_map(Action::SetVlanVid),
        (0..8_u8).prop_map(Action::SetVlanPcp),
        Just(Action::PopVlan),
        bits(48).prop_map(|mac| Action::set(Field::EthSrc, mac)),
        bits(48).prop_map(|mac| Action::set(Field::EthDst, mac)),
        any::<u32>().prop_map(|address| Action::set(Field::Ipv4Src, address)),
        any::<u32>().prop_map(|address| Action::set(Field::Ipv4Dst, address)),
        bits(6).prop_map(|dscp| Action::set(Field::IpDscp, dscp)),
        any::<u16>().prop_map(Action::SetTpSrc),
        any::<u16>().prop_map(Action::SetTpDst),
    ]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    vec(action(), 0..6)
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn text(longest: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(1..=255_u8, 0..=longest)
}

fn a_port() -> impl Strategy<Value = RulePort> {
    any::<u16>().prop_map(RulePort)
}

/// Any number except the one that stands for no buffer.
fn buffer() -> impl Strategy<Value = Option<u32>> {
    option::of(0..u32::MAX)
}

fn flow_mod() -> impl Strategy<Value = FlowMod> {
    let command = select(vec![
        FlowCommand::Add,
        FlowCommand::Modify { strict: false },
        FlowCommand::Modify { strict: true },
        FlowCommand::Delete { strict: false },
        FlowCommand::Delete { strict: true },
    ]);
    let out_port = option::of((0..u16::MAX).prop_map(RulePort));
    (command, matching(), actions(), any::<(u64, u16, u16, u16)>(), buffer(), out_port, any::<[bool; 3]>())
        .prop_map(|(command, matching, actions, (cookie, priority, idle, hard), buffer, out_port, flags)| {
            let deletes = matches!(command, FlowCommand::Delete { .. });
            let exact = matching::Wire::of(&matching).unwrap().is_exact();
            FlowMod {
                command,
                table: if deletes { None } else { Some(0) },
                cookie,
                priority: if exact { u16::MAX } else { priority },
                matching,
                idle_timeout: idle,
                hard_timeout: hard,
                out_port: out_port.filter(|_| deletes),
                buffer: buffer.filter(|_| !deletes),
                flags: FlowFlags {
                    send_removed: flags[0],
                    check_overlap: flags[1],
                    emergency: flags[2],
                    reset_counts: command == FlowCommand::Add,
                    ..FlowFlags::default()
                },
                ..add(actions)
            }
        })
}

fn flow_removed() -> impl Strategy<Value = FlowRemoved> {
    let reason = select(vec![Removed::IdleTimeout, Removed::HardTimeout, Removed::Delete]);
    (matching(), reason, any::<(u64, u16, u32, u32, u16, u64, u64)>()).prop_map(
        |(
            matching,
            reason,
            (cookie, priority, duration_sec, duration_nsec, idle_timeout, packets, bytes),
        )| {
            FlowRemoved {
                matching,
                cookie,
                priority,
                reason,
                table: 0,
                duration_sec,
                duration_nsec,
                idle_timeout,
                hard_timeout: 0,
                packets,
                bytes,
            }
        },
    )
}

fn description() -> impl Strategy<Value = PortDescription> {
    let features = || any::<u16>().prop_map(|bits| PortFeatures(u32::from(bits) & 0xf87f));
    let state = (any::<bool>(), 0..4_u32);
    (
        a_port(),
        any::<[u8; 6]>(),
        text(15),
        any::<u32>(),
        state,
        features(),
        features(),
        features(),
        features(),
    )
        .prop_map(|(port, mac, name, config, (link_down, stp), current, advertised, supported, peer)| {
            PortDescription {
                port,
                mac: Mac(mac),
                name,
                config: PortConfig(config),
                state: PortState { link_down, stp: stp << 8, ..PortState::default() },
                current,
                advertised,
                supported,
                peer,
                current_speed: 0,
                max_speed: 0,
            }
        })
}

fn flow_stats() -> impl Strategy<Value = FlowStats> {
    let numbers = any::<(u8, u32, u32, u16, u16, u16, u64, u64, u64)>();
    (matching(), actions(), numbers).prop_map(|(matching, actions, n)| FlowStats {
        table: n.0,
        matching,
        duration_sec: n.1,
        duration_nsec: n.2,
        priority: n.3,
        idle_timeout: n.4,
        hard_timeout: n.5,
        flags: FlowFlags::default(),
        cookie: n.6,
        packets: n.7,
        bytes: n.8,
        instructions: Instructions::apply(actions),
    })
}

fn vendor() -> impl Strategy<Value = Experimenter> {
    (any::<u32>(), any::<u32>(), data()).prop_map(|(id, subtype, body)| Experimenter { id, subtype, body })
}

fn stats_reply() -> impl Strategy<Value = StatsReply> {
    let table = (any::<(u8, u32, u32, u32, u64, u64)>(), text(31)).prop_map(|(n, name)| TableStats {
        table: n.0,
        name,
        wildcards: n.1,
        max_entries: n.2,
        active: n.3,
        lookups: n.4,
        matched: n.5,
    });
    let queue = (a_port(), any::<(u32, u64, u64, u64)>()).prop_map(|(port, n)| QueueStats {
        port,
        queue: n.0,
        tx_bytes: n.1,
        tx_packets: n.2,
        tx_errors: n.3,
        duration_sec: 0,
        duration_nsec: 0,
    });
    let description = (text(255), text(255), text(255), text(31), text(255)).prop_map(
        |(manufacturer, hardware, software, serial, datapath)| Description {
            manufacturer,
            hardware,
            software,
            serial,
            datapath,
        },
    );
    prop_oneof![
        description.prop_map(StatsReply::Description),
        vec(flow_stats(), 0..4).prop_map(StatsReply::Flow),
        any::<(u64, u64, u32)>().prop_map(|(packets, bytes, flows)| StatsReply::Aggregate {
            packets,
            bytes,
            flows
        }),
        vec(table, 0..4).prop_map(StatsReply::Table),
        vec(queue, 0..4).prop_map(StatsReply::Queue),
        vendor().prop_map(StatsReply::Experimenter),
    ]
}

fn stats_request() -> impl Strategy<Value = StatsRequest> {
    let filter =
        || {
            let out_port = option::of((0..u16::MAX).prop_map(RulePort));
            (option::of(0..0xff_u8), matching(), out_port).prop_map(|(table, matching, out_port)| {
                FlowFilter { table, matching, out_port, out_group: None, cookie: 0, cookie_mask: 0 }
            })
        };
    prop_oneof![
        filter().prop_map(StatsRequest::Flow),
        filter().prop_map(StatsRequest::Aggregate),
        a_port().prop_map(StatsRequest::Port),
        (a_port(), option::of(0..u32::MAX)).prop_map(|(port, queue)| StatsRequest::Queue { port, queue }),
        vendor().prop_map(StatsRequest::Experimenter),
    ]
}

fn packet_out() -> impl Strategy<Value = PacketOut> {
    let in_port = prop_oneof![
        0..=RulePort::MAX.0,
        select(vec![RulePort::CONTROLLER.0, RulePort::LOCAL.0, RulePort::NONE.0])
    ];
    (buffer(), in_port, actions(), data()).prop_map(|(buffer, in_port, actions, data)| PacketOut {
        buffer,
        in_port: RulePort(in_port),
        actions,
        data: if buffer.is_some() { vec![] } else { data },
    })
}

fn packet_in() -> impl Strategy<Value = PacketIn> {
    let reason = select(vec![PacketInReason::NoMatch, PacketInReason::Action]);
    (buffer(), any::<u16>(), reason, any::<u16>(), data()).prop_map(
        |(buffer, total_len, reason, in_port, data)| PacketIn {
            buffer,
            total_len,
            reason,
            table: 0,
            cookie: 0,
            matching: only(Field::InPort, in_port.into()),
            data,
        },
    )
}

fn features() -> impl Strategy<Value = Features> {
    (any::<(u64, u32, u8, u32, u32)>(), vec(description(), 0..4)).prop_map(|(n, ports)| Features {
        datapath_id: n.0,
        buffers: n.1,
        tables: n.2,
        auxiliary_id: 0,
        capabilities: n.3,
        actions: Some(n.4),
        ports: Some(ports),
    })
}

fn queues() -> impl Strategy<Value = Message> {
    (a_port(), vec((any::<u32>(), option::of(any::<u16>())), 0..4)).prop_map(|(port, queues)| {
        let queue = |(queue, min_rate)| QueueDescription { queue, port, min_rate, max_rate: None };
        Message::QueueConfigReply { port, queues: queues.into_iter().map(queue).collect() }
    })
}

fn any_message() -> impl Strategy<Value = Message> {
    let reason = select(vec![PortReason::Add, PortReason::Delete, PortReason::Modify]);
    prop_oneof![
        data().prop_map(Message::EchoRequest),
        (any::<(u16, u16)>(), data()).prop_map(|((kind, code), data)| Message::Error(ErrorMessage {
            kind,
            code,
            data
        })),
        vendor().prop_map(Message::Experimenter),
        features().prop_map(Message::FeaturesReply),
        packet_in().prop_map(Message::PacketIn),
        flow_removed().prop_map(Message::FlowRemoved),
        (reason, description()).prop_map(|(reason, port)| Message::PortStatus { reason, port }),
        packet_out().prop_map(Message::PacketOut),
        flow_mod().prop_map(Message::FlowMod),
        stats_request().prop_map(Message::StatsRequest),
        (stats_reply(), any::<bool>()).prop_map(|(reply, more)| Message::StatsReply { reply, more }),
        queues(),
    ]
}

/// Checks that a decoded message can be encoded, and is decoded as the same.
fn stable(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(message) = decoded(bytes) {
        prop_assert_eq!(decoded(&encoded(&message)), Ok(message));
    }
    Ok(())
}

/// `bytes` as a message of version 1 with its actual length.
fn framed_as(kind: u8, mut bytes: Vec<u8>) -> Vec<u8> {
    let length = bytes.len() as u16;
    bytes[..2].copy_from_slice(&[1, kind]);
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

proptest! {
    #[test]
    fn a_written_message_is_read_back(message in any_message()) {
        prop_assert_eq!(decoded(&encoded(&message)), Ok(message));
    }

    #[test]
    fn any_bytes(kind in 0..24_u8, bytes in vec(any::<u8>(), 8..300)) {
        stable(&bytes)?;
        stable(&framed_as(kind, bytes))?;
    }

    #[test]
    fn messages_with_some_bytes_changed(
        message in any_message(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in 0..16_usize,
    ) {
        let mut bytes = encoded(&message);
        let kind = bytes[1];
        for (at, byte) in changes {
            *at.get_mut(&mut bytes) = byte;
        }
        stable(&framed_as(kind, bytes.clone()))?;
        bytes.truncate((bytes.len() - cut.min(bytes.len())).max(8));
        stable(&framed_as(kind, bytes))?;
    }

    #[test]
    fn any_match(
        mut bytes: [u8; 40],
        kind in select(vec![ether_type::IPV4, ether_type::ARP, ether_type::IPV6, 0x88b5]),
        proto in select(vec![ip_proto::TCP, ip_proto::UDP, ip_proto::ICMP, ip_proto::SCTP]),
    ) {
        bytes[22..24].copy_from_slice(&kind.to_be_bytes());
        bytes[25] = proto;
        let wire = matching::WIRE.read(&mut Reader::new(&bytes, BadMessage::Length)).unwrap();
        let neutral = wire.matching();
        prop_assert_eq!(neutral.normalised(), neutral);
        prop_assert_eq!(matching::Wire::of(&neutral).unwrap().matching(), neutral);
    }
}
