use super::*;
use crate::openflow::message::{AsyncConfig, PacketOut};

fn role(role: Role, generation: u64) -> Message {
    Message::RoleRequest { role, generation }
}

fn is(n: u32, xid: u32, role: Role, generation: u64) -> Did {
    Said(n, xid, Message::RoleReply { role, generation })
}

#[test]
fn there_is_one_master_of_the_newest_generation() {
    use Role::*;
    let mut b = bench(settings());
    for n in 1..=3 {
        b.open(n, OpenFlow13);
    }
    for (n, asks, generation, becomes, last, roles) in [
        (1, NoChange, 9, Some(Equal), u64::MAX, [Equal, Equal, Equal]),
        (1, Master, 5, Some(Master), 5, [Master, Equal, Equal]),
        (2, Master, 5, Some(Master), 5, [Slave, Master, Equal]),
        (3, Slave, 4, None, 5, [Slave, Master, Equal]),
        (3, Slave, 6, Some(Slave), 6, [Slave, Master, Slave]),
        (1, Master, 5, None, 6, [Slave, Master, Slave]),
        (2, Equal, 0, Some(Equal), 6, [Slave, Equal, Slave]),
        (1, Master, u64::MAX, None, 6, [Slave, Equal, Slave]),
        (1, Master, 6 + (1 << 62), Some(Master), 6 + (1 << 62), [Master, Equal, Slave]),
        (1, Master, 1 << 63, Some(Master), 1 << 63, [Master, Equal, Slave]),
        (3, Master, u64::MAX, Some(Master), u64::MAX, [Slave, Equal, Master]),
        (1, Master, 3, Some(Master), 3, [Master, Equal, Slave]),
    ] {
        let request = role(asks, generation);
        b.say(n, 7, &request);
        let expected = match becomes {
            Some(becomes) => is(n, 7, becomes, last),
            None => Said(n, 7, error(11, 0, &encoded(OpenFlow13, 7, &request))),
        };
        assert_eq!(b.done(), [expected], "{n} {asks:?} {generation}");
        assert_eq!([1, 2, 3].map(|n| b.report(n).role), roles, "{n} {asks:?} {generation}");
    }
}

#[test]
fn a_slave_may_read_and_gets_port_changes() {
    let mut b = bench(settings());
    b.open(1, OpenFlow13);
    b.open(2, OpenFlow13);
    b.say(1, 0, &role(Role::Slave, 1));
    assert_eq!(b.done(), [is(1, 0, Role::Slave, 1)]);
    let out = PacketOut { buffer: None, in_port: RulePort::NONE, actions: vec![], data: vec![0; 60] };
    let features = raw(OpenFlow13, 18, 3, "000c 0000 00000000 00");
    for bytes in [
        encoded(OpenFlow13, 3, &add("in_port=1,actions=drop")),
        encoded(OpenFlow13, 3, &Message::PacketOut(out)),
        encoded(OpenFlow13, 3, &Message::TableMod { table: None, config: 0 }),
        raw(OpenFlow13, 15, 3, "0002 0000 fffffffc"),
        raw(OpenFlow13, 29, 3, "0002 0000 ffffffff"),
        raw(OpenFlow13, 16, 3, "00000002 00000000 020000000002 0000 00000001 00000001 00000000 00000000"),
        features,
    ] {
        b.bytes(1, &bytes);
        assert_eq!(b.done(), [Said(1, 3, error(1, 10, &bytes))]);
    }
    b.say(1, 4, &Message::StatsRequest(StatsRequest::Port(RulePort(1))));
    assert_eq!(b.done().len(), 1);
    // A rule ends and a port changes. Only one of the two connections gets the notice of the rule.
    b.say(2, 0, &add("in_port=1,hard_timeout=1,send_flow_rem,actions=drop"));
    b.settle();
    b.agent.tick(b.now_ms + 1000);
    b.settle();
    assert!(matches!(&b.done()[..], [Said(2, 0, Message::FlowRemoved(_))]));
    b.agent.set_ports(vec![port(1), port(2)]);
    let told = b.done();
    assert!(matches!(&told[..], [Said(1, 0, Message::PortStatus { .. }), Said(2, 0, _)]), "{told:?}");
    // The slave may ask for more, and the other one for less.
    let wants = AsyncConfig { packet_in: [0, 0], port_status: [0, 0], flow_removed: [0, 0b10] };
    for n in [1, 2] {
        b.say(n, 0, &Message::SetAsync(wants));
    }
    b.say(2, 0, &add("in_port=1,hard_timeout=1,send_flow_rem,actions=drop"));
    b.agent.tick(b.now_ms + 2000);
    b.settle();
    b.agent.set_ports(vec![port(1)]);
    assert!(matches!(&b.done()[..], [Said(1, 0, Message::FlowRemoved(_))]));
}

#[test]
fn without_controllers_rules_apply_as_the_fail_mode_says() {
    for (controllers, fail, expected) in [
        // Before any connection; connected without a hello; after the hello; closed; connected again.
        (false, FailMode::Standalone, [true, true, true, true, true]),
        (true, FailMode::Standalone, [false, false, true, false, true]),
        (true, FailMode::Secure, [true, true, true, true, true]),
    ] {
        let mut b = bench(Settings { controllers, fail, ..settings() });
        assert!(!b.agent.wants_rules(), "no rules");
        b.agent.change(&flow_mod(FlowCommand::Add, "in_port=1,actions=drop"), 0).unwrap();
        let mut wants = vec![b.agent.wants_rules()];
        b.connect(1, true);
        wants.push(b.agent.wants_rules());
        b.bytes(1, &raw(OpenFlow10, 0, 0, ""));
        wants.push(b.agent.wants_rules());
        b.done();
        // A connection that was not opened by us is not one of our controllers.
        b.connect(2, false);
        b.bytes(2, &raw(OpenFlow10, 0, 0, ""));
        b.agent.closed(ConnectionId(1));
        wants.push(b.agent.wants_rules());
        b.done();
        b.open(3, OpenFlow13);
        wants.push(b.agent.wants_rules());
        assert_eq!(wants, expected, "{controllers} {fail:?}");
        b.say(3, 0, &delete(""));
        assert!(!b.agent.wants_rules());
    }
    for (controllers, fail, expected) in [
        (false, FailMode::Standalone, true),
        (true, FailMode::Standalone, false),
        (true, FailMode::Secure, true),
    ] {
        let drops = bench(Settings { miss: Instructions::default(), controllers, fail, ..settings() });
        assert_eq!(drops.agent.wants_rules(), expected, "{controllers} {fail:?}");
    }
}
