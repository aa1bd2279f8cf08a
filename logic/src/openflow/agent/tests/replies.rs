use super::*;
use crate::{
    flow::{Field, FlowFilter, Match},
    openflow::message::FlowStats,
};

const MANY: u32 = 100_000;

/// A switch with [`MANY`] rules, all of which ask for a notice when they end.
fn full() -> Bench {
    let capacity = FlowCapacity { rules: MANY as usize + 100, buckets: 1 << 17, ..CAPACITY };
    let mut b = sized(settings(), capacity);
    let mut rule = flow_mod(FlowCommand::Add, "ip,nw_dst=10.0.0.0,send_flow_rem,actions=output:2");
    for n in 0..MANY {
        rule.matching = Match::ANY.with(Field::EthType, 0x0800_u16).with(Field::Ipv4Dst, 0x0a00_0000 + n);
        b.agent.change(&rule, b.now_ms).unwrap();
    }
    b.settle();
    b
}

/// Lets a connection read what was sent to it until there is no more.
fn read_slowly(b: &mut Bench, mut each: impl FnMut(u32, Message)) {
    let mut pieces = 0;
    loop {
        let unsent = b.report(1).unsent_bytes;
        assert!(unsent <= UNSENT + (128 << 10), "{unsent} bytes are unsent");
        let effects = b.agent.take_effects();
        let sent: Vec<Vec<u8>> = effects
            .into_iter()
            .filter_map(|effect| match effect {
                Effect::Send { bytes, .. } => Some(bytes),
                Effect::Read(_) => None,
                other => panic!("{other:?}"),
            })
            .collect();
        if sent.is_empty() {
            assert!(pieces > 5);
            return;
        }
        sent.iter().flat_map(|bytes| messages(bytes)).for_each(|(xid, message)| each(xid, message));
        b.agent.written(ConnectionId(1), sent.iter().map(Vec::len).sum(), b.now_ms, &Counters);
        pieces += 1;
    }
}

#[test]
fn a_long_reply_and_many_notices_go_out_as_the_connection_takes_them() {
    let mut b = full();
    b.open(1, OpenFlow13);
    b.reads = false;
    b.say(1, 5, &Message::StatsRequest(StatsRequest::Flow(FlowFilter::EVERYTHING)));
    b.say(1, 6, &Message::EchoRequest(vec![7]));
    let (mut seen, mut ended) = (vec![false; MANY as usize], Vec::new());
    read_slowly(&mut b, |xid, message| match message {
        Message::StatsReply { reply: StatsReply::Flow(flows), more } => {
            assert_eq!((xid, &ended[..]), (5, &[][..]));
            if !more {
                ended.push(Message::BarrierReply);
            }
            flows.iter().for_each(|flow: &FlowStats| {
                let at = flow.matching.exact(Field::Ipv4Dst).unwrap() - 0x0a00_0000;
                assert!(!std::mem::replace(&mut seen[at as usize], true));
            });
        }
        other => ended.push(other),
    });
    assert_eq!(ended, [Message::BarrierReply, Message::EchoReply(vec![7])]);
    assert!(seen.iter().all(|&seen| seen));

    b.say(1, 7, &delete(""));
    b.say(1, 8, &Message::BarrierRequest);
    b.settle();
    let (mut notices, mut after) = (0, Vec::new());
    read_slowly(&mut b, |xid, message| match message {
        Message::FlowRemoved(_) => {
            assert_eq!(after, []);
            notices += 1;
        }
        other => after.push((xid, other)),
    });
    assert_eq!((notices, after), (MANY, vec![(8, Message::BarrierReply)]));
}

#[test]
fn rules_may_come_and_go_while_a_reply_is_written() {
    let mut b = full();
    b.open(1, OpenFlow10);
    b.reads = false;
    b.say(1, 5, &Message::StatsRequest(StatsRequest::Flow(FlowFilter::EVERYTHING)));
    let FlowMod { matching, .. } = flow_mod(FlowCommand::Delete { strict: false }, "ip,nw_dst=10.0.0.0/8");
    let all = FlowMod { matching, ..flow_mod(FlowCommand::Delete { strict: false }, "") };
    b.agent.change(&all, b.now_ms).unwrap();
    b.settle();
    assert_eq!(b.rules(), 0);
    let (mut rules, mut last) = (0, false);
    read_slowly(&mut b, |_, message| match message {
        Message::StatsReply { reply: StatsReply::Flow(flows), more } => {
            rules += flows.len();
            last |= !more;
        }
        Message::FlowRemoved(_) => assert!(last),
        other => panic!("{other:?}"),
    });
    assert!(last && rules < 20_000, "{rules}");
}

#[test]
fn a_peer_that_does_not_read_is_not_answered() {
    let mut b = bench(settings());
    b.open(1, OpenFlow13);
    b.reads = false;
    let echo = encoded(OpenFlow13, 1, &Message::EchoRequest(vec![0; 1000]));
    let mut rounds = 0;
    loop {
        b.bytes(1, &echo.repeat(50));
        rounds += 1;
        let effects = b.agent.take_effects();
        let report = b.report(1);
        assert!(report.unsent_bytes <= UNSENT + echo.len(), "{report:?}");
        assert!(report.unread_bytes < UNREAD + 50 * echo.len(), "{report:?}");
        if !effects.contains(&Effect::Read(ConnectionId(1))) {
            break;
        }
    }
    assert_eq!(rounds, (UNSENT + UNREAD) / (50 * echo.len()) + 1);
    b.agent.written(ConnectionId(1), 100_000, b.now_ms, &Counters);
    let effects = b.agent.take_effects();
    assert!(matches!(&effects[..], [Effect::Send { .. }, Effect::Read(_)]), "{effects:?}");
}

#[test]
fn a_peer_that_does_not_read_at_all_is_closed() {
    let mut b = bench(settings());
    b.open(1, OpenFlow13);
    b.reads = false;
    let closed = (0..200_000).find_map(|n| {
        let flapping = PortInfo { link_up: n % 2 == 1, ..port(1) };
        b.agent.set_ports(vec![flapping]);
        let closed = b.done().into_iter().find(|did| matches!(did, Closed(..)));
        closed.map(|closed| (n, closed))
    });
    // 80 bytes for each change. At first two ports are removed.
    let expected = ((8 << 20) / 80 - 2, Closed(1, "it does not read what was sent to it".into()));
    assert_eq!(closed, Some(expected));
}
