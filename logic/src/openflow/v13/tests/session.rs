use super::*;
use crate::{
    net::Mac,
    openflow::message::{
        AsyncConfig, Config, ErrorMessage, Experimenter, Features, Fragments, PortConfig, PortDescription,
        PortFeatures, PortMod, PortReason, PortState, QueueDescription, Role,
    },
};

#[test]
fn hello() {
    both(Message::Hello { versions: None }, 0, "");
    both(Message::Hello { versions: Some(vec![1, 4]) }, 0, "0001 0008 00000012");
    both(Message::Hello { versions: Some(vec![4, 33]) }, 0, "0001 000c 00000010 00000002 00000000");
}

#[test]
fn a_hello_of_any_version_with_any_body_is_read() {
    let mut old = whole(0, &[]);
    old[0] = 1;
    assert_eq!(decode(&old).unwrap().1, Message::Hello { versions: None });
    read_as(0, "0007 0005 ff 000000 0001 0008 00000010", Message::Hello { versions: Some(vec![4]) });
    for broken in ["00", "0001", "0001 0000", "0001 0003 00000010", "0001 0100 00000010", "0007 0005 ff"] {
        read_as(0, broken, Message::Hello { versions: None });
    }
}

#[test]
fn errors_and_echoes() {
    let error = ErrorMessage { kind: 1, code: 6, data: vec![4, 5] };
    both(Message::Error(error), 1, "0001 0006 0405");
    // OFPET_EXPERIMENTER: exp_type, experimenter, data.
    let error = ErrorMessage { kind: 0xffff, code: 9, data: vec![0, 0, 0x23, 0x20, 1] };
    both(Message::Error(error), 1, "ffff 0009 00002320 01");
    both(Message::EchoRequest(vec![1, 2, 3]), 2, "010203");
    both(Message::EchoReply(Vec::new()), 3, "");
}

#[test]
fn experimenter() {
    let message = Experimenter { id: 0x2320, subtype: 5, body: vec![0xab] };
    both(Message::Experimenter(message), 4, "00002320 00000005 ab");
}

#[test]
fn features() {
    both(Message::FeaturesRequest, 5, "");
    let features = Features {
        datapath_id: 0x0a0b,
        buffers: 256,
        tables: 8,
        auxiliary_id: 1,
        capabilities: 0x4f,
        actions: None,
        ports: None,
    };
    let body = "0000000000000a0b 00000100 08 01 0000 0000004f 00000000";
    both(Message::FeaturesReply(features.clone()), 6, body);
    let of_1_0 = Features { actions: Some(1), ..features };
    unsaid(Message::FeaturesReply(of_1_0), "actions or ports among a switch's features");
}

#[test]
fn switch_settings() {
    both(Message::GetConfigRequest, 7, "");
    let config = |fragments| Config { fragments, miss_send_len: 128 };
    both(Message::GetConfigReply(config(Fragments::Normal)), 8, "0000 0080");
    both(Message::SetConfig(config(Fragments::Drop)), 9, "0001 0080");
    both(Message::SetConfig(config(Fragments::Reassemble)), 9, "0002 0080");
}

#[test]
fn port_status() {
    let port = PortDescription {
        port: RulePort(2),
        mac: Mac([2, 0, 0, 0, 0, 7]),
        name: b"eth1".to_vec(),
        config: PortConfig(PortConfig::DOWN | PortConfig::NO_FWD),
        state: PortState { link_down: true, blocked: false, live: true, stp: 0 },
        current: PortFeatures(0x840),
        advertised: PortFeatures(1),
        supported: PortFeatures(2),
        peer: PortFeatures(3),
        current_speed: 10_000_000,
        max_speed: 40_000_000,
    };
    let body = "02 00000000000000
        00000002 00000000 020000000007 0000
        65746831 00000000 00000000 00000000
        00000021 00000005 00000840 00000001 00000002 00000003 00989680 02625a00";
    both(Message::PortStatus { reason: PortReason::Modify, port: port.clone() }, 12, body);
    // A description is written without the parts that only 1.0 has.
    let of_1_0 = PortDescription {
        config: PortConfig(port.config.0 | PortConfig::NO_FLOOD),
        state: PortState { stp: 0x100, ..port.state },
        ..port
    };
    let mut out = Vec::new();
    encode(&Message::PortStatus { reason: PortReason::Modify, port: of_1_0 }, XID, &mut out).unwrap();
    assert_eq!(out[8..], bytes(body));
}

#[test]
fn port_mod() {
    let change = PortMod {
        port: RulePort::LOCAL,
        mac: Mac([2, 0, 0, 0, 0, 7]),
        config: PortConfig(PortConfig::NO_RECV),
        mask: PortConfig(PortConfig::NO_RECV | PortConfig::NO_PACKET_IN),
        advertise: PortFeatures(0x20),
    };
    let body = "fffffffe 00000000 020000000007 0000 00000004 00000044 00000020 00000000";
    both(Message::PortMod(change.clone()), 16, body);
    let of_1_0 = PortMod { mask: PortConfig(PortConfig::NO_FLOOD), ..change };
    unsaid(Message::PortMod(of_1_0), "these settings of a port");
}

#[test]
fn table_mod_and_barriers() {
    both(Message::TableMod { table: Some(3), config: 0 }, 17, "03 000000 00000000");
    both(Message::TableMod { table: None, config: 3 }, 17, "ff 000000 00000003");
    both(Message::BarrierRequest, 20, "");
    both(Message::BarrierReply, 21, "");
}

#[test]
fn queues_of_a_port() {
    both(Message::QueueConfigRequest { port: RulePort(3) }, 22, "00000003 00000000");
    both(Message::QueueConfigRequest { port: RulePort::NONE }, 22, "ffffffff 00000000");
    let queue = |queue, min_rate, max_rate| QueueDescription { queue, port: RulePort(3), min_rate, max_rate };
    let queues = vec![queue(1, Some(250), Some(1000)), queue(2, None, None)];
    let body = "00000003 00000000
        00000001 00000003 0030 000000000000
            0001 0010 00000000 00fa 000000000000
            0002 0010 00000000 03e8 000000000000
        00000002 00000003 0010 000000000000";
    both(Message::QueueConfigReply { port: RulePort(3), queues }, 23, body);
    let none = "00000003 00000000
        00000002 00000003 0030 000000000000
            0001 0010 00000000 ffff 000000000000
            ffff 0010 00000000 00002320 00000000";
    let queues = vec![queue(2, None, None)];
    read_as(23, none, Message::QueueConfigReply { port: RulePort(3), queues });
}

#[test]
fn roles() {
    let generation = 0x0102_0304_0506_0708;
    let request = |role| Message::RoleRequest { role, generation };
    both(request(Role::NoChange), 24, "00000000 00000000 0102030405060708");
    both(request(Role::Equal), 24, "00000001 00000000 0102030405060708");
    both(request(Role::Master), 24, "00000002 00000000 0102030405060708");
    both(Message::RoleReply { role: Role::Slave, generation: 1 }, 25, "00000003 00000000 0000000000000001");
}

#[test]
fn asynchronous_settings() {
    both(Message::GetAsyncRequest, 26, "");
    let masks = AsyncConfig { packet_in: [7, 1], port_status: [2, 6], flow_removed: [15, 0] };
    let body = "00000007 00000001 00000002 00000006 0000000f 00000000";
    both(Message::GetAsyncReply(masks), 27, body);
    both(Message::SetAsync(masks), 28, body);
}
