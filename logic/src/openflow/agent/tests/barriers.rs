use super::*;
use crate::flow::Removed;

fn barrier(n: u32, xid: u32) -> Did {
    Said(n, xid, Message::BarrierReply)
}

fn echo(n: u32, xid: u32) -> Did {
    Said(n, xid, Message::EchoReply(vec![]))
}

#[test]
fn a_barrier_waits_for_the_batch_with_all_earlier_changes() {
    let mut b = bench(settings());
    b.open(1, OpenFlow10);
    b.open(2, OpenFlow13);
    b.say(1, 1, &Message::BarrierRequest);
    assert_eq!(b.done(), [barrier(1, 1)], "nothing to wait for");
    b.say(1, 2, &add("in_port=1,actions=output:2"));
    b.say(1, 3, &Message::BarrierRequest);
    b.say(1, 4, &Message::EchoRequest(vec![]));
    // Another connection's barrier covers the same tables.
    b.say(2, 5, &Message::BarrierRequest);
    b.say(2, 6, &Message::EchoRequest(vec![]));
    assert_eq!(b.done(), []);
    assert!(b.agent.seal() && !b.agent.seal());
    // Changes made now belong to the next batch.
    b.open(3, OpenFlow13);
    b.say(3, 7, &add("in_port=2,actions=output:1"));
    b.say(3, 8, &Message::BarrierRequest);
    b.agent.void();
    assert_eq!(b.done(), []);
    b.agent.finish(b.now_ms, &Counters);
    assert_eq!(b.done(), [barrier(1, 3), echo(1, 4), barrier(2, 5), echo(2, 6)]);
    assert!(b.settle() && !b.settle());
    assert_eq!(b.done(), [barrier(3, 8)]);
}

#[test]
fn a_barrier_without_changes_of_its_own_waits_for_the_batch_under_way() {
    let mut b = bench(settings());
    b.open(1, OpenFlow13);
    b.say(1, 1, &add("in_port=1,actions=output:2"));
    assert!(b.agent.seal());
    b.say(1, 2, &Message::BarrierRequest);
    assert_eq!(b.done(), []);
    b.agent.void();
    b.agent.finish(b.now_ms, &Counters);
    assert_eq!(b.done(), [barrier(1, 2)]);
}

#[test]
fn while_a_barrier_waits_nothing_is_read() {
    let mut b = bench(settings());
    b.open(1, OpenFlow13);
    let [change, wait, echoes] = [
        encoded(OpenFlow13, 1, &add("in_port=1,actions=drop")),
        encoded(OpenFlow13, 2, &Message::BarrierRequest),
        encoded(OpenFlow13, 3, &Message::EchoRequest(vec![])),
    ];
    b.bytes(1, &[change, wait, echoes.clone(), echoes].concat());
    assert_eq!(b.agent.take_effects(), []);
    b.agent.tick(b.now_ms + 10 * ECHO_MS);
    assert_eq!(b.agent.take_effects(), [], "the switch itself causes the silence");
    b.settle();
    let effects = b.agent.take_effects();
    assert!(matches!(&effects[..], [Effect::Send { .. }, Effect::Read(ConnectionId(1))]), "{effects:?}");
}

#[test]
fn notices_of_rules_that_ended_come_before_the_barriers_reply() {
    let mut b = bench(settings());
    b.open(1, OpenFlow10);
    b.open(2, OpenFlow13);
    b.say(2, 1, &add("in_port=1,cookie=7,send_flow_rem,actions=output:2"));
    b.say(2, 2, &add("table=3,in_port=2,send_flow_rem,actions=output:2"));
    b.settle();
    assert_eq!(b.done(), []);
    b.now_ms += 2_500;
    b.say(2, 3, &delete(""));
    b.say(2, 4, &Message::BarrierRequest);
    b.settle();
    let told: Vec<_> = b
        .done()
        .into_iter()
        .map(|did| match did {
            Said(n, _, Message::FlowRemoved(f)) => (n, f.table, f.cookie, f.duration_sec, f.reason),
            Said(2, 4, Message::BarrierReply) => (2, 99, 0, 0, Removed::Delete),
            other => panic!("{other:?}"),
        })
        .collect();
    let gone = |n, table, cookie| (n, table, cookie, 2, Removed::Delete);
    let expected =
        [gone(1, 0, 7), gone(1, 0, 0), gone(2, 0, 7), gone(2, 3, 0), (2, 99, 0, 0, Removed::Delete)];
    assert_eq!(told, expected);
}

#[test]
fn rules_time_out() {
    let mut b = bench(settings());
    b.open(1, OpenFlow13);
    b.say(1, 1, &add("in_port=1,hard_timeout=2,send_flow_rem,actions=output:2"));
    b.settle();
    b.agent.tick(b.now_ms + 1_999);
    assert!(!b.settle());
    b.agent.tick(b.now_ms + 2_000);
    assert!(b.settle());
    let did = b.done();
    assert!(
        matches!(&did[..], [Said(1, 0, Message::FlowRemoved(f))] if f.reason == Removed::HardTimeout),
        "{did:?}"
    );
}
