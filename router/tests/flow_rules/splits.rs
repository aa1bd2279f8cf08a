//! A queue whose flows are shared among cores while flow rules are in charge. Every packet obeys the rules
//! that the reference names, is counted by them once, and leaves in the order of its flow, however often the
//! queue is split and joined.

use crate::{
    common::{
        frame::Frame,
        in_new_namespace, only_on,
        order::{Came, numbered, send_while, split_and_join},
        run,
        wire::Wire,
    },
    world::FlowWorld,
};
use logic::{
    cores::{CoreId, QueueId},
    flow::{
        Action, CoreChoice, Field, FlowCommand, Instructions, Match, RulePort, kernel::FlowMemory,
        table::Count,
    },
    net::Mac,
    reason::Reason,
};
use router::{base::clock::monotonic, plane::online_cpus};
use rustix::thread::sched_getcpu;
use std::{
    sync::atomic::Ordering::Acquire,
    thread,
    time::{Duration, Instant},
};

const QUEUE: QueueId = QueueId { port: 0, index: 0 };
const FLOWS: u16 = 64;
/// How often the split changes under traffic.
const TURNS: usize = 100;
/// Classes of flows that rules distinguish. Flows belong to them in turn.
const CLASSES: u8 = 4;
const PLAIN: u8 = 0;
const REWRITTEN: u8 = 1;
const THERE: u8 = 2;
const HERE: u8 = 3;

fn frame(number: u32) -> Vec<u8> {
    let frame = Frame::udp4(Mac([2, 0, 0, 0, 1, 0]), "10.0.0.1", "10.0.0.2");
    let class = number as u8 % CLASSES;
    numbered(frame.ip4(|ip| ip[1] = class << 2), number as u16 % FLOWS, number)
}

/// A world with port p0, and q1 behind p1. Each class of flows has a rule: sent on, rewritten by two tables,
/// and on this core and another that rules name.
fn world(here: CoreId, other: CoreId) -> FlowWorld {
    // The kernel's own packets would be polled on any core, and ours with them.
    run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
    let mut w = FlowWorld::new();
    for device in ["p0", "q0", "p1", "q1"] {
        run(&format!("ip link set {device} up"));
    }
    run("ethtool -K q1 gro on");
    w.control.rules.set_cores(Some([here, other].into()));
    let of = |class: u8| Match::ANY.with(Field::EthType, 0x0800_u16).with(Field::IpDscp, class);
    let on =
        |core| Instructions::apply([Action::SetCore(CoreChoice::This(core)), Action::output(RulePort(2))]);
    let rewritten = Instructions {
        apply: vec![Action::set(Field::Ipv4Dst, 0x0a00_0909_u32)],
        goto_table: Some(1),
        ..Instructions::default()
    };
    let last = [Action::set(Field::EthDst, 0x0200_0000_0909_u64), Action::output(RulePort(2))];
    for (table, class, does) in [
        (0, PLAIN, Instructions::apply([Action::output(RulePort(2))])),
        (0, REWRITTEN, rewritten),
        (1, REWRITTEN, Instructions::apply(last)),
        (0, THERE, on(other)),
        (0, HERE, on(here)),
    ] {
        w.change(FlowCommand::Add, table, 1, of(class), does);
    }
    w.finish();
    w
}

/// Packets that each core counted for these rules.
fn counted(w: &FlowWorld, rows: &[u32]) -> Vec<u64> {
    let counters = w.memory.counters();
    let of = |row: u32| w.memory.counters_of(row).map(|at| counters[at].load(Acquire)).collect::<Vec<_>>();
    rows.iter().map(|row| of(*row)).reduce(|a, b| a.iter().zip(b).map(|(a, b)| a + b).collect()).unwrap()
}

#[test]
#[ignore = "needs root"]
fn a_queue_that_is_split_and_joined_obeys_rules_in_order() {
    in_new_namespace(|| {
        let here = sched_getcpu();
        only_on([here]);
        let Some(other) = online_cpus().unwrap().into_iter().find(|cpu| *cpu != here) else { return };
        let (here, other) = (here as CoreId, other as CoreId);
        let w = world(here, other);
        let _link = w.attach(0);
        let splits = w.splits();
        assert!(splits.may_split(0));
        [here, other].iter().for_each(|core| w.memory.make_ready(*core).unwrap());
        let expected: Vec<Vec<u8>> = (0..FLOWS.into())
            .map(|flow| {
                let done = w.reference(RulePort(1), &frame(flow));
                done.outputs[0].frame.clone()
            })
            .collect();
        let rows: Vec<Vec<u32>> =
            (0..CLASSES).map(|class| w.reference(RulePort(1), &frame(class.into())).rows).collect();
        assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 1, 1]);
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        let mut wrong = 0;
        let came = send_while(
            (&from, &to),
            FLOWS,
            frame,
            |number, bytes| {
                let mut expected = expected[(number % u32::from(FLOWS)) as usize].clone();
                *expected.last_chunk_mut().unwrap() = number.to_be_bytes();
                wrong += u64::from(bytes != expected);
            },
            || split_and_join(splits, QUEUE, [here, other], TURNS, |core| w.memory.handed()[&core].packets),
        );
        let why = [Reason::SplitLeaves, Reason::RuleSlow].map(|reason| w.charged(reason));
        assert_eq!(
            (came.overtaken, came.received, wrong),
            (0, came.sent, 0),
            "(overtaken, received, wrong); (split_leaves, rule_slow) packets: {why:?}"
        );
        counts(&w, &rows, came);
        let by = |class: u8| counted(&w, &rows[usize::from(class)]);
        let shares = [PLAIN, REWRITTEN].map(|class| [here, other].map(|core| by(class)[usize::from(core)]));
        eprintln!("{came:?}: {shares:?} by the two cores");
        assert!(
            shares.as_flattened().iter().all(|packets| *packets > came.sent / 100),
            "a core got too few packets: {shares:?}"
        );
        // The core that a rule names overrides the split.
        assert_eq!([by(THERE)[usize::from(here)], by(HERE)[usize::from(other)]], [0, 0]);

        // The queue is whole again. Only packets whose rule names a core are handed over.
        splits.join(QUEUE);
        let start = Instant::now();
        while splits.is_tidying() {
            splits.tidy(monotonic());
            assert!(start.elapsed() < Duration::from_secs(5), "the queue is not tidied after 5 s");
        }
        let handed = || w.memory.handed().values().map(|handed| handed.packets).sum::<u64>();
        let before = handed();
        let again =
            send_while((&from, &to), FLOWS, frame, |_, _| (), || thread::sleep(Duration::from_millis(50)));
        assert_eq!((again.overtaken, again.received), (0, again.sent));
        assert_eq!(handed() - before, of_class(THERE, again));
        assert!(w.memory.handed().values().all(|handed| handed.dropped == 0));
    });
}

/// How many of the packets sent were of a class.
fn of_class(class: u8, came: Came) -> u64 {
    (came.sent + u64::from(CLASSES - 1 - class)) / u64::from(CLASSES)
}

/// Asserts that every rule counted each of its packets, and its bytes, once.
fn counts(w: &FlowWorld, rows: &[Vec<u32>], came: Came) {
    for (class, rows) in (0..).zip(rows) {
        let packets = of_class(class, came);
        let all = Count { packets, bytes: packets * frame(0).len() as u64 };
        assert_eq!(w.counted(rows), vec![all; rows.len()], "class {class}");
    }
}
