//! SET_CORE in the program, with a core and with "choose", and with rings that the test sets: which core a
//! flow gets, that it stays there, and that a move reorders nothing.

use crate::{
    common::{
        frame::Frame,
        in_new_namespace, only_on,
        order::{numbered, send_while},
        run,
        wire::Wire,
    },
    enough,
    world::FlowWorld,
};
use logic::{
    cores::{
        CoreId,
        choice::{Choices, Leave},
    },
    flow::{
        Action, CoreChoice, Field, FlowCommand, Instructions, Match, RulePort,
        kernel::{self, FlowMemory},
    },
    net::Mac,
};
use router::plane::{MappedFlows, online_cpus};
use rustix::thread::sched_getcpu;
use std::{
    collections::BTreeMap,
    sync::atomic::Ordering::Acquire,
    thread,
    time::{Duration, Instant},
};

/// A frame of this flow, with a number in it.
fn frame(flow: u16, tos: u8, number: u32) -> Vec<u8> {
    let frame = Frame::udp4(Mac([2, 0, 0, 0, 1, 0]), "10.0.0.1", "10.0.0.2");
    numbered(frame.ip4(|ip| ip[1] = tos), flow, number)
}

/// A world whose ports are up, with one rule: SET_CORE with this choice, then out of the second port.
fn world(choice: CoreChoice) -> FlowWorld {
    let mut w = FlowWorld::new();
    for device in ["p0", "q0", "p1", "q1"] {
        // The kernel may send from any core, and the veth would then poll our packets there. So it gets no
        // addresses to send from.
        run(&format!("ip link set {device} addrgenmode none"));
        run(&format!("ip link set {device} up"));
    }
    run("ethtool -K q1 gro on");
    w.control.rules.set_cores(Some(online_cpus().unwrap().into_iter().map(|cpu| cpu as u16).collect()));
    let ip = Match::ANY.with(Field::EthType, 0x0800_u16);
    let actions = [Action::SetCore(choice), Action::output(RulePort(2))];
    w.change(FlowCommand::Add, 0, 1, ip, Instructions::apply(actions));
    w.finish();
    w
}

/// The core that this thread sends from, and another; `None` if there is no other.
fn two_cores() -> Option<(CoreId, CoreId)> {
    let here = sched_getcpu();
    let other = online_cpus().unwrap().into_iter().find(|cpu| *cpu != here)?;
    Some((here as CoreId, other as CoreId))
}

fn rings(ring: &[CoreId], first: &[CoreId]) -> Choices {
    Choices { ring: ring.into(), ring_first: first.into(), leave: BTreeMap::new() }
}

/// Sends frames one by one, and finds the core that handled each.
struct Sender<'a> {
    w: &'a FlowWorld,
    wire: Wire,
}

impl Sender<'_> {
    fn counted(&self) -> Vec<u64> {
        let row = kernel::row(self.w.control.rules.tables().ids().next().unwrap());
        let counters = self.w.memory.counters();
        self.w.memory.counters_of(row).map(|at| counters[at].load(Acquire)).collect()
    }

    #[track_caller]
    fn core_of(&self, flow: u16, tos: u8) -> CoreId {
        let before = self.counted();
        self.wire.send(&frame(flow, tos, 0));
        let start = Instant::now();
        loop {
            let now = self.counted();
            if let Some(core) = now.iter().zip(&before).position(|(now, before)| now > before) {
                return core as CoreId;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "flow {flow}: no core counted its packet");
            thread::sleep(Duration::from_micros(100));
        }
    }
}

#[test]
#[ignore = "needs root"]
fn flows_get_the_cores_of_a_ring_in_turn_and_stay() {
    in_new_namespace(|| {
        let w = world(CoreChoice::Choose);
        let Some((here, other)) = two_cores() else { return };
        let _link = w.attach(0);
        let memory = &w.memory;
        let s = Sender { w: &w, wire: Wire::open("q0") };
        assert!(memory.chooses());

        // No core has room: the flows stay, and get a core when there is one.
        assert_eq!([s.core_of(1, 0), s.core_of(1, 4)], [here; 2]);
        memory.choose(&rings(&[other, here], &[here]), &BTreeMap::new()).unwrap();
        let flows: Vec<CoreId> = (1..33).map(|flow| s.core_of(flow, 0)).collect();
        assert_eq!(flows, [other, here].repeat(16));

        // Other cores join the ring, or the ring is empty. Flows that have a core keep it. Priority flows, by
        // the lowest bit of DSCP, have a ring of their own.
        memory.choose(&rings(&[here], &[other, here]), &BTreeMap::new()).unwrap();
        assert_eq!([100, 101].map(|flow| s.core_of(flow, 0)), [here; 2]);
        assert_eq!([200, 201, 202].map(|flow| s.core_of(flow, 4 | 8)), [other, here, other]);
        memory.choose(&rings(&[], &[]), &BTreeMap::new()).unwrap();
        for _ in 0..3 {
            let again: Vec<CoreId> = (1..33).map(|flow| s.core_of(flow, 0)).collect();
            assert_eq!(again, flows);
            assert_eq!([200, 201, 202].map(|flow| s.core_of(flow, 4 | 8)), [other, here, other]);
        }
        let now = Duration::from_secs(1000);
        let count = |now| memory.chosen_flows(now).into_iter().map(|(core, on)| (core, on.others, on.first));
        let mut expected = vec![(here, 18, 1), (other, 16, 2)];
        expected.sort_unstable();
        assert_eq!(count(now).collect::<Vec<_>>(), expected);
        let handed = memory.handed();
        assert_eq!((handed[&other].flows, handed[&other].first, handed[&other].dropped), (16, 2, 0));
        assert_eq!(handed[&other].packets, 16 * 4 + 2 * 4);
        assert_eq!((handed[&here].flows, handed[&here].first, handed[&here].packets), (18, 1, 0));

        // A flow without packets for ten seconds is new. The time of the last packet is known to a tick, and
        // a flow may get the tick of this one.
        thread::sleep(Duration::from_millis(20));
        s.core_of(1, 0);
        assert_eq!(count(now + Duration::from_secs(9)).count(), 2);
        assert_eq!(count(now + Duration::from_secs(11)).collect::<Vec<_>>(), [(other, 1, 0)]);
        memory.choose(&rings(&[other], &[]), &BTreeMap::new()).unwrap();
        assert_eq!([2, 1].map(|flow| s.core_of(flow, 0)), [other; 2]);
    });
}

#[test]
#[ignore = "needs root"]
fn a_rule_may_say_that_its_flows_come_first() {
    in_new_namespace(|| {
        let w = world(CoreChoice::ChooseFirst);
        let Some((here, other)) = two_cores() else { return };
        let _link = w.attach(0);
        let s = Sender { w: &w, wire: Wire::open("q0") };
        w.memory.choose(&rings(&[here], &[other]), &BTreeMap::new()).unwrap();
        assert_eq!([1, 2, 1].map(|flow| s.core_of(flow, 0)), [other; 3]);
    });
}

/// As many flows leave as allowed, and no others.
#[test]
#[ignore = "needs root"]
fn no_more_flows_leave_a_core_than_allowed() {
    in_new_namespace(|| {
        let w = world(CoreChoice::Choose);
        let Some((here, other)) = two_cores() else { return };
        let _link = w.attach(0);
        let s = Sender { w: &w, wire: Wire::open("q0") };
        let cores = |flows: std::ops::Range<u16>, tos| {
            // Each flow has its first packet of a tick.
            thread::sleep(Duration::from_millis(20));
            flows.map(|flow| s.core_of(flow, tos)).collect::<Vec<_>>()
        };
        w.memory.choose(&rings(&[other], &[other]), &BTreeMap::new()).unwrap();
        assert_eq!([cores(1..9, 0), cores(21..25, 4)].concat(), [other; 12]);
        let leave = BTreeMap::from([(other, Leave { others: 3, first: 1 })]);
        w.memory.choose(&rings(&[here], &[here]), &leave).unwrap();
        let expected = [&[here; 3][..], &[other; 5]].concat();
        for _ in 0..2 {
            assert_eq!(cores(1..9, 0), expected);
            assert_eq!(cores(21..25, 4), [here, other, other, other]);
        }
        // The permission is withdrawn before flows can leave.
        w.memory
            .choose(&rings(&[here], &[]), &BTreeMap::from([(other, Leave { others: 9, first: 9 })]))
            .unwrap();
        w.memory.choose(&rings(&[here], &[]), &BTreeMap::from([(other, Leave::default())])).unwrap();
        assert_eq!(cores(1..9, 0), expected);
    });
}

const FLOWS: u16 = 16;

/// Moves all flows from one core to the other, again and again.
fn shift(memory: &MappedFlows, (here, other): (CoreId, CoreId)) {
    let all = Leave { others: FLOWS.into(), first: 0 };
    for (from, to) in [(here, other), (other, here)].into_iter().cycle().take(200) {
        memory.choose(&rings(&[to], &[]), &BTreeMap::from([(from, all)])).unwrap();
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "needs root"]
fn flows_that_change_their_core_keep_their_order() {
    in_new_namespace(|| {
        let w = world(CoreChoice::Choose);
        let Some((here, other)) = two_cores() else { return };
        let _link = w.attach(0);
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        let came = send_while(
            (&from, &to),
            FLOWS,
            |number| frame(1 + number as u16 % FLOWS, 0, number),
            |_, _| (),
            || shift(&w.memory, (here, other)),
        );
        let handed = w.memory.handed();
        let changes: u64 = handed.values().map(|handed| handed.flows).sum::<u64>() - u64::from(FLOWS);
        eprintln!("{changes} changes, {} packets handed over", handed[&other].packets);
        assert_eq!((came.overtaken, came.received), (0, came.sent));
        assert!(changes > 200, "only {changes} changes of core");
        assert!(
            handed[&other].packets as usize > enough(1000)
                && handed.values().all(|handed| handed.dropped == 0)
        );
    });
}

/// A packet received on the core that the rule names does not overtake packets that another core handed to it
/// before.
#[test]
#[ignore = "needs root"]
fn packets_keep_their_order_when_their_queue_comes_to_the_core_that_a_rule_names() {
    in_new_namespace(|| {
        let Some((here, other)) = two_cores() else { return };
        let w = world(CoreChoice::This(other));
        let _link = w.attach(0);
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        // A veth is polled on the core that sends to it.
        let frame = |number: u32| {
            if number.is_multiple_of(100) {
                only_on([[here, other][number as usize / 100 % 2].into()]);
            }
            frame(1 + number as u16 % FLOWS, 0, number)
        };
        let came =
            send_while((&from, &to), FLOWS, frame, |_, _| (), || thread::sleep(Duration::from_secs(3)));
        let handed = w.memory.handed()[&other];
        eprintln!("{} of {} packets handed over", handed.packets, came.sent);
        assert_eq!((came.overtaken, came.received, handed.dropped), (0, came.sent, 0));
        assert!(came.sent as usize > enough(10_000), "too few packets: {came:?}");
        // Most packets that come in on that core are handled there.
        assert!(
            (came.sent / 3..came.sent * 9 / 10).contains(&handed.packets),
            "too few or too many handed over: {handed:?} {came:?}"
        );
    });
}
