//! Start, growth, restart and end: generations, and what outlives them.

use super::*;
use crate::api::status::ReasonCount;

#[test]
fn nothing_is_attached_before_the_tables_are_filled_and_confirmed() {
    let case = start();
    let expected = Attachment {
        devices: vec!["eth1".into(), "eth2".into()],
        deadline: Duration::from_secs(1003),
        filled: true,
        slots: vec![],
        rules: None,
        paths: None,
    };
    assert_eq!(*case.linux.0.attached.borrow(), [expected]);
}

#[test]
fn the_heartbeat_stops_while_the_kernel_cannot_be_read() {
    let mut case = start();
    let deadline = |case: &Case| case.linux.0.deadline.get().as_secs();
    case.round(Ok(vec![]), 1.0);
    assert_eq!(deadline(&case), 1004);
    for _ in 0..3 {
        case.round(Err(anyhow!("no buffer")), 10.0);
    }
    assert_eq!(deadline(&case), 1004, "not confirmed");
    let status = case.status();
    assert!(!status.ready && status.problem.as_ref().is_some_and(|p| p.contains("no buffer")), "{status:?}");
    case.round(Ok(vec![]), 1.0);
    assert_eq!(deadline(&case), 1035);
    assert!(case.status().ready);
}

#[test]
fn a_full_table_moves_everything_to_larger_ones() {
    let mut case = start();
    case.round(Ok(many_neighbours(20_000)), 0.1);
    let status = case.status();
    assert_eq!((status.generation, conditions(&status).len()), (2, 0));
    let nexthops = status.tables.iter().find(|t| t.table == "nexthops").unwrap();
    assert!(nexthops.capacity > 1 << 14 && nexthops.used > 20_000, "{nexthops:?}");
    {
        let attached = case.linux.0.attached.borrow();
        assert_eq!(attached.len(), 2, "swapped once");
        assert_eq!(
            attached[1].slots,
            [0, 1],
            "the links stay, and packets find their port after the swap as before"
        );
    }
    for address in ["10.0.3.0", "10.0.38.0", "10.0.81.31"] {
        assert_eq!(case.route(address).hops[0].action, "forward", "{address}");
    }
    assert_eq!(case.route("10.9.1.1").hops[0].action, "forward", "earlier routes are still there");
}

#[test]
fn at_the_limit_the_rest_is_left_to_the_kernel_until_it_fits_again() {
    let config = Config {
        limits: crate::config::Limits { memory_mib: MemoryMib(16), ..Default::default() },
        ..config()
    };
    let mut case = start_with(config, linux()).unwrap();
    case.round(Ok(many_neighbours(20_000)), 0.1);
    case.round(Ok(vec![]), 0.1);
    let status = case.status();
    assert_eq!((status.generation, status.ready), (1, true));
    assert!(conditions(&status)[0].contains("limits.memory_mib is 16"), "{:?}", conditions(&status));
    let gone = many_neighbours(20_000).into_iter().filter_map(|event| match event {
        Event::Neighbour(space, one) => Some(Event::Neighbour(space, Neighbour { mac: None, ..one })),
        _ => None,
    });
    case.round(Ok(gone.collect()), 0.1);
    for _ in 0..10_000 {
        case.round(Ok(vec![]), 0.001);
        if case.conditions().is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{:?}", case.status());
}

/// More routes wait for room than the tables try at a time.
#[test]
fn at_the_limit_every_route_that_waits_gets_its_turn() {
    let config = Config {
        limits: crate::config::Limits { memory_mib: MemoryMib(16), ..Default::default() },
        ..config()
    };
    let mut case = start_with(config, linux()).unwrap();
    let routes = |change, numbers: std::ops::Range<u32>| -> Vec<Event> {
        let one = |i: u32| {
            let prefix = format!("{}/32", Ipv4Addr::from_bits(0x0b00_0000 + i));
            let gateway = Ipv4Addr::from_bits(0x0a00_0300 + i).to_string();
            Event::Route4(0, change, route(&prefix, 2, Some(&gateway)))
        };
        numbers.map(one).collect()
    };
    case.round(Ok(routes(Change::Add, 0..40_000)), 0.1);
    case.round(Ok(vec![]), 0.1);
    assert!(!case.conditions().is_empty());
    case.round(Ok(routes(Change::Delete, 0..28_000)), 0.1);
    for _ in 0..200 {
        case.round(Ok(vec![]), 0.1);
        std::thread::sleep(Duration::from_millis(1));
    }
    for i in (28_000..40_000).step_by(500).chain([39_999]) {
        let address = Ipv4Addr::from_bits(0x0b00_0000 + i).to_string();
        let reason = case.route(&address).hops[0].reason.clone().unwrap_or_default();
        assert!(!reason.contains("map was full"), "route {i}: {reason}");
    }
    assert_eq!(case.conditions(), [""; 0]);
}

#[test]
fn a_failure_to_grow_is_reported_and_tried_again() {
    let mut case = start();
    case.linux.0.unloadable.set(true);
    case.round(Ok(many_neighbours(20_000)), 0.1);
    let status = case.status();
    assert_eq!(status.generation, 1);
    assert!(conditions(&status)[0].contains("out of memory"), "{:?}", conditions(&status));
    case.linux.0.unloadable.set(false);
    case.round(Ok(vec![]), 29.0);
    assert_eq!(case.status().generation, 1, "not in every round");
    case.round(Ok(vec![]), 2.0);
    case.round(Ok(vec![]), 0.1);
    let status = case.status();
    assert_eq!((status.generation, conditions(&status).len()), (2, 0), "{:?}", conditions(&status));
}

#[test]
fn a_start_that_fails_after_attaching_leaves_what_it_found() {
    let linux = linux();
    linux.0.unpublishable.set(true);
    start_with(config(), linux.clone()).err().expect("not published");
    assert!(linux.0.removed.get(), "nothing was attached before");

    let again = self::linux();
    again.0.unpublishable.set(true);
    *again.0.running.borrow_mut() = [("eth1".into(), (1, Mode::Native))].into();
    start_with(config(), again.clone()).err().expect("not published");
    assert!(!again.0.removed.get(), "an earlier daemon's port goes on forwarding");
}

#[test]
fn counters_go_on_after_a_restart_and_a_growth() {
    let count = InterfaceCount { forwarded_packets: 5, tx_packets: 4, ..InterfaceCount::default() };
    let counted = Counters {
        packets: 9,
        interfaces: [(1, count)].into(),
        charges: [
            ((Charge::Router(0), Reason::TtlExceeded), 4),
            ((Charge::Port(1), Reason::TxRingFull), 3),
            ((Charge::Port(1), Reason::NotOurMac), 1),
        ]
        .into(),
    };
    let mut case = start();
    *case.linux.0.counters.borrow_mut() = counted.clone();
    case.round(Ok(vec![]), 2.0);
    assert_eq!(case.status().packets.forwarded, 5);
    let again = linux();
    *again.0.previous.borrow_mut() = [(1, counted.clone())].into();
    *again.0.counters.borrow_mut() = counted;
    let mut second = case.killed_and_restarted(again);
    let status = second.status();
    assert_eq!((status.packets.forwarded, status.packets.passed, status.generation), (10, 10, 2));
    assert_eq!(status.reasons[0].reason, "ttl_exceeded");
    assert_eq!(status.routers[0].packets.forwarded, 10);
    // Packets lost after the redirect are neither passed up nor dropped, and are reported for their egress port.
    assert_eq!((status.lost, status.packets.dropped), (6, 0));
    let counts =
        |list: &[ReasonCount]| list.iter().map(|r| (r.reason.clone(), r.packets)).collect::<Vec<_>>();
    assert_eq!(counts(&status.ports[1].lost), [("tx_ring_full".into(), 6)]);
    assert_eq!(counts(&status.ports[1].unclassified), [("not_our_mac".into(), 2)]);
    assert_eq!(counts(&status.ports[0].lost), []);
    let counts = status.ports.iter().map(|port| (port.rx_packets, port.tx_packets));
    assert_eq!(counts.collect::<Vec<_>>(), [(10, 8), (2, 0)], "of its interfaces, and of none");
}

#[test]
fn after_a_kill_right_after_growth_the_next_daemon_continues_the_counts() {
    let counted = |packets| Counters { packets, ..Counters::default() };
    let mut case = start();
    *case.linux.0.counters.borrow_mut() = counted(1000);
    case.round(Ok(many_neighbours(20_000)), 0.001);
    assert_eq!(case.status().generation, 2);
    assert_eq!(*case.linux.0.published.borrow(), [2].into());
    // The base has the counts of the old generation. The new one has counted 5 since.
    let again = linux();
    *again.0.previous.borrow_mut() = [(2, counted(5))].into();
    let second = case.killed_and_restarted(again);
    assert_eq!(second.control.totals.of(&counted(0)).packets, 1005);
}

#[test]
fn after_a_kill_before_the_state_is_written_counts_of_the_right_generation_are_used() {
    let counted = |packets| Counters { packets, ..Counters::default() };
    let case = start();
    let again = linux();
    // The dead daemon had published its second generation, but not yet written the state file.
    *again.0.previous.borrow_mut() = [(1, counted(1000)), (2, counted(5))].into();
    let second = case.killed_and_restarted(again);
    assert_eq!(second.control.totals.of(&counted(0)).packets, 1000);
}

#[test]
fn the_last_changes_are_written_before_leaving() {
    let Case { linux, mut control, orders, _directory } = start();
    let instance = control.instance.clone();
    let known = |instance| SavedTotals::read(instance).unwrap().names.interfaces.len();
    let before = known(&instance);
    let kind = LinkKind::Macvlan(MacvlanMode::Bridge);
    let macvlan = Link { kind, below: Some((0, 2)), ..link(3, "m0") };
    linux.0.polls.borrow_mut().push_back(Ok(vec![Event::Link(0, macvlan)]));
    // The file was written a moment ago, so it is not due.
    control.totals.saved = linux.0.now.get();
    let case = Case { linux, control, orders, _directory: tempfile::tempdir().unwrap() };
    run(case, vec![Query::Leave]);
    assert_eq!(known(&instance), before + 1);
}

#[test]
fn stop_removes_everything_and_leave_removes_nothing() {
    let (ended, answers, linux) = run(start(), vec![Query::Ports, Query::Stop]);
    assert_eq!((ended, answers.len(), linux.0.removed.get()), (Ended::Stopped, 2, true));
    assert_eq!(answers[1], Ok(serde_json::json!({"done": ["gone"]})));
    let (ended, _, linux) = run(start(), vec![Query::Leave]);
    assert_eq!((ended, linux.0.removed.get()), (Ended::Left { forwarding: true }, false));
}

#[test]
fn a_start_fails_if_the_kernel_cannot_be_read() {
    let linux = linux();
    linux.0.polls.borrow_mut().clear();
    linux.0.polls.borrow_mut().push_back((|| bail!("denied"))());
    let error = format!("{:#}", start_with(config(), linux).err().unwrap());
    assert_eq!(error, "reading the kernel's state: denied");
}
