//! Loads over time, and when the allocator reacts.

use super::*;

#[test]
fn a_spread_start_is_packed_when_it_was_seen_for_a_hold_time() {
    let mut machine = Machine::new(4, &[0, 1, 2, 3]);
    machine.wants = vec![0.2, 0.1, 0.1, 0.25];
    assert_eq!(machine.until(2000), [""; 0]);
    let told = machine.until(9000);
    assert_eq!(told.len(), 3, "{told:?}");
    for (queue, event) in (1..).zip(told) {
        let why = "is given back: for a hold time the others would have been below 70 %";
        let expected = format!("2040 ms: port 0 queue {queue}: core {queue} -> core 0: core {queue} {why}");
        assert_eq!(event, expected);
    }
}

#[test]
fn a_step_gets_its_second_core_in_two_periods_and_gives_it_back() {
    let mut machine = Machine::new(4, &[0, 0]);
    machine.wants = vec![0.3, 0.3];
    assert_eq!(machine.until(5000), [""; 0]);
    machine.wants = vec![0.6, 0.5];
    assert_eq!(
        machine.until(8000),
        ["5020 ms: port 0 queue 1: core 0 -> core 1: core 0 had 125 % to forward, above 85 %"]
    );
    machine.wants = vec![0.3, 0.3];
    let told = machine.until(20000);
    assert_eq!(told.len(), 1);
    let at: u64 = told[0].split(' ').next().unwrap().parse().unwrap();
    assert!((10000..=10000 + 2 * 286).contains(&at), "{told:?}");
    assert!(told[0].ends_with(
        "core 1 -> core 0: core 1 is given back: for a hold time the others would have been below 70 %"
    ));
}

#[test]
fn the_smallest_queue_that_suffices_goes_to_a_core_that_forwards_if_it_has_room() {
    let table: [(&[CoreId], &[f64], &[CoreId]); 6] = [
        (&[0, 0, 0, 1], &[0.4, 0.3, 0.2, 0.3], &[0, 0, 1, 1]),
        // 0.2 more on core 1 would be above the low mark, so core 2 is added.
        (&[0, 0, 0, 1], &[0.4, 0.3, 0.2, 0.6], &[0, 0, 2, 1]),
        // No single queue suffices: the largest, then the smallest that does.
        (&[0, 0, 0, 0], &[0.25, 0.26, 0.27, 0.28], &[1, 0, 0, 1]),
        (&[0; 6], &[0.15; 6], &[1, 0, 0, 0, 0, 1]),
        // The small one leaves a big one alone.
        (&[0, 0], &[0.8, 0.1], &[0, 1]),
        (&[0, 0, 1, 1], &[0.5, 0.45, 0.5, 0.45], &[0, 2, 1, 3]),
    ];
    for (homes, wants, expected) in table {
        let mut machine = Machine::new(4, homes);
        machine.wants = wants.to_vec();
        assert_eq!(machine.until(10), [""; 0], "one period is not enough");
        machine.until(100);
        assert_eq!(machine.homes(), expected, "{homes:?} {wants:?}");
    }
}

#[test]
fn one_noisy_period_moves_nothing() {
    let mut machine = Machine::new(4, &[0, 0]);
    for _ in 0..300 {
        machine.wants = vec![0.3, 0.3];
        for _ in 0..3 {
            assert_eq!(machine.period(), []);
        }
        machine.wants = vec![0.9, 0.3];
        assert_eq!(machine.period(), []);
    }
}

/// The load is above the mark for two periods every 400 ms, and the queues move once.
#[test]
fn a_fluctuation_around_the_mark_moves_a_queue_once() {
    let mut machine = Machine::new(4, &[0, 0, 0]);
    let mut events = Vec::new();
    for period in 0..3000 {
        machine.wants = if period % 40 < 2 { vec![0.3; 3] } else { vec![0.26; 3] };
        events.extend(machine.period());
    }
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(machine.homes(), [1, 0, 0]);
}

/// The load is low just long enough for a core to be given back, then high again: the worst fluctuation.
#[test]
fn a_core_that_is_missed_after_it_was_given_back_is_kept_twice_as_long() {
    let mut machine = Machine::new(4, &[0, 0]);
    let mut moves = Vec::new();
    let mut high_until = Duration::from_millis(2500);
    while machine.now < Duration::from_secs(60) {
        machine.wants = vec![if machine.now < high_until { 0.5 } else { 0.3 }; 2];
        for event in machine.period() {
            moves.push(machine.now);
            if matches!(event.why, Why::Release { .. }) {
                high_until = machine.now + Duration::from_millis(50);
            }
        }
    }
    assert!(moves.len() > 20, "{moves:?}");
    assert!(moves.windows(3).all(|m| m[2] - m[0] >= machine.settings.hold), "{moves:?}");
    assert!(moves[3..].chunks_exact(2).is_sorted(), "{moves:?}");
    assert!(moves.len() <= 1 + 60 / 2, "{moves:?}");
}

#[test]
fn the_best_core_is_added() {
    let plain = |id| core(id);
    let table: [(&str, [Core; 4], CoreId); 7] = [
        ("the first", [0, 1, 2, 3].map(plain), 1),
        ("no workload", [plain(0), Core { workloads: 1, ..core(1) }, plain(2), plain(3)], 2),
        ("no sibling", [plain(0), Core { physical: 0, ..core(1) }, plain(2), plain(3)], 2),
        (
            "a sibling rather than a workload",
            [
                plain(0),
                Core { workloads: 1, ..core(1) },
                Core { physical: 0, ..core(2) },
                Core { workloads: 2, ..core(3) },
            ],
            2,
        ),
        ("the port's node", [plain(0), Core { node: 1, ..core(1) }, plain(2), plain(3)], 2),
        (
            "the port's node even if busier",
            [
                plain(0),
                Core { node: 1, ..core(1) },
                Core { other: 0.5, ..core(2) },
                Core { other: 0.3, ..core(3) },
            ],
            3,
        ),
        (
            "another node rather than a sibling",
            [
                plain(0),
                Core { physical: 0, ..core(1) },
                Core { node: 1, other: 0.5, ..core(2) },
                Core { node: 1, other: 0.52, ..core(3) },
            ],
            2,
        ),
    ];
    for (what, cores, expected) in table {
        let mut machine = Machine::new(0, &[0, 0]);
        machine.cores = cores.to_vec();
        machine.queues.iter_mut().for_each(|queue| queue.node = Some(0));
        machine.wants = vec![0.5, 0.5];
        machine.until(50);
        assert_eq!(machine.homes(), [expected, 0], "{what}");
    }
}

#[test]
fn a_hot_queue_is_split_and_joined() {
    let mut machine = Machine::new(4, &[0]);
    machine.wants = vec![0.5];
    assert_eq!(machine.until(3000), [""; 0]);
    machine.wants = vec![0.9];
    assert_eq!(
        machine.until(3500),
        ["3020 ms: port 0 queue 0: core 0 -> cores 0+1: it alone wants 90 % of a core, above 85 %"]
    );
    machine.wants = vec![1.5];
    let told = machine.until(6000);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("3520 ms: port 0 queue 0: cores 0+1 -> cores 0+1+2: "), "{told:?}");
    assert_eq!(
        machine.loads().into_values().map(|load| (load * 10.0).round()).collect::<Vec<_>>(),
        [8.0, 5.0, 5.0]
    );
    machine.wants = vec![0.6];
    let told = machine.until(12000);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].ends_with("cores 0+1+2 -> core 0: for a hold time fewer cores would have been below 70 %")
    );
}

#[test]
fn a_hot_queue_stays_whole_where_flows_cannot_be_shared() {
    let mut machine = Machine::new(4, &[0, 0]);
    machine.settings.splits = false;
    machine.wants = vec![0.95, 0.2];
    assert_eq!(
        machine.until(3000),
        [
            "20 ms: port 0 queue 1: core 0 -> core 1: core 0 had 122 % to forward, above 85 %",
            "30 ms: port 0 queue 0: core 0: stays, it alone wants 95 % of a core, and its flows are not shared",
        ]
    );
}

#[test]
fn a_split_queue_is_joined_where_there_is_room() {
    let mut machine = Machine::new(2, &[0, 0]);
    machine.queues[1].movable = false;
    machine.wants = vec![0.9, 0.0];
    machine.until(1000);
    assert_eq!(machine.plan.split[&machine.queues[0].id], [0, 1]);
    machine.wants = vec![0.45, 0.5];
    let told = machine.until(6000);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("port 0 queue 0: cores 0+1 -> core 1: for a hold time fewer"), "{told:?}");
}

/// The home cannot even hand on and keep a share, so others do all the work.
#[test]
fn a_home_that_is_full_of_handing_on_keeps_no_share() {
    let mut machine = Machine::new(4, &[0]);
    machine.wants = vec![2.4];
    machine.until(1000);
    assert_eq!(machine.plan.split[&machine.queues[0].id], [1, 2, 3]);
    assert!(machine.loads().into_values().all(|load| load < 0.85));
}

#[test]
fn a_hot_queue_is_left_alone_before_it_is_split() {
    let mut machine = Machine::new(4, &[0, 0]);
    machine.wants = vec![0.95, 0.2];
    let told = machine.until(200);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("20 ms: port 0 queue 1: core 0 -> core 1: "), "{told:?}");
    assert!(told[1].starts_with("30 ms: port 0 queue 0: core 0 -> cores 0+1: "), "{told:?}");
}

#[test]
fn a_core_that_goes_offline_or_is_forbidden_is_left_at_once() {
    let mut machine = Machine::new(3, &[0, 0, 1]);
    machine.queues[2].movable = false;
    machine.wants = vec![0.4, 0.3, 0.3];
    assert_eq!(machine.until(1000), [""; 0]);
    machine.cores.remove(0);
    assert_eq!(
        machine.until(1500),
        [
            "1010 ms: port 0 queue 0: core 0 -> core 1: core 0 is offline",
            "1010 ms: port 0 queue 1: core 0 -> core 2: core 0 is offline",
        ]
    );
    machine.settings.allowed = Some([2, 5].into());
    assert_eq!(machine.until(2000), ["1510 ms: port 0 queue 0: core 1 -> core 2: core 1 may not forward"]);
    assert_eq!(machine.homes(), [2, 2, 1], "one cannot be moved");
    machine.settings.allowed = Some([5].into());
    assert_eq!(
        machine.until(3000),
        [
            "2010 ms: port 0 queue 0: core 2: stays, no core that may forward is online",
            "2010 ms: port 0 queue 1: core 2: stays, no core that may forward is online",
        ]
    );
}

#[test]
fn a_split_queue_leaves_a_core_that_is_gone() {
    let mut machine = Machine::new(4, &[0]);
    machine.wants = vec![1.5];
    machine.until(1000);
    assert_eq!(machine.plan.split[&machine.queues[0].id], [0, 1, 2]);
    machine.cores.remove(1);
    assert_eq!(
        machine.until(1500),
        [
            "1010 ms: port 0 queue 0: cores 0+1+2 -> cores 0+2: core 1 is offline",
            "1010 ms: port 0 queue 0: cores 0+2 -> cores 0+2+3: it alone wants 150 % of a core, above 85 %",
        ]
    );
    assert_eq!(machine.plan.split[&machine.queues[0].id], [0, 2, 3]);
}

#[test]
fn queues_leave_a_core_that_gets_a_workload_if_others_have_room() {
    let mut machine = Machine::new(3, &[0, 0, 1]);
    machine.wants = vec![0.3, 0.3, 0.3];
    machine.until(1000);
    machine.cores[0].workloads = 1;
    assert_eq!(
        machine.until(1500),
        [
            "1010 ms: port 0 queue 0: core 0 -> core 1: a workload is pinned to core 0",
            "1010 ms: port 0 queue 1: core 0 -> core 2: a workload is pinned to core 0",
        ]
    );
    machine.cores[0].workloads = 0;
    machine.cores[1].workloads = 1;
    machine.settings.allowed = Some([1, 2].into());
    machine.wants = vec![0.3, 0.6, 0.3];
    assert_eq!(
        machine.until(3000),
        [
            "1510 ms: port 0 queue 0: core 1: stays, a workload is pinned to core 1, and no other has room",
            "1510 ms: port 0 queue 2: core 1: stays, a workload is pinned to core 1, and no other has room",
        ]
    );
    // There is room now. They leave after a hold time, although as many cores are needed.
    machine.settings.allowed = None;
    machine.until(6000);
    assert_eq!(machine.homes(), [0, 2, 0]);
}

#[test]
fn queues_begin_off_cores_with_workloads() {
    let mut machine = Machine::new(3, &[0, 2]);
    machine.cores[0].workloads = 1;
    machine.wants = vec![0.3, 0.3];
    assert_eq!(
        machine.until(10),
        ["10 ms: port 0 queue 0: core 0 -> core 2: a workload is pinned to core 0"]
    );
}

#[test]
fn a_lack_of_room_is_reported_once() {
    let mut machine = Machine::new(2, &[0, 0, 1, 1]);
    machine.wants = vec![0.5; 4];
    assert_eq!(
        machine.until(5000),
        [
            "20 ms: port 0 queue 1: core 0: stays, core 0 has 100 % to forward, and no other has room",
            "20 ms: port 0 queue 3: core 1: stays, core 1 has 100 % to forward, and no other has room",
        ]
    );
}

#[test]
fn when_all_is_too_much_the_cores_are_evened_out() {
    let mut machine = Machine::new(2, &[0, 0, 0, 1]);
    machine.wants = vec![0.6; 4];
    machine.until(1000);
    assert_eq!(machine.homes(), [1, 0, 0, 1]);
    // 0.42 on the other core would win little, and would soon move again.
    let mut machine = Machine::new(2, &[0, 0, 1]);
    machine.wants = vec![0.5, 0.42, 0.45];
    assert_eq!(
        machine.until(5000),
        ["20 ms: port 0 queue 0: core 0: stays, core 0 has 92 % to forward, and no other has room"]
    );
}

/// No single queue finds room, but all do in another order.
#[test]
fn queues_change_places_if_only_that_helps() {
    let mut machine = Machine::new(2, &[0, 0, 0, 1, 1]);
    machine.wants = vec![0.42, 0.25, 0.25, 0.42, 0.33];
    machine.until(100);
    assert_eq!(machine.homes(), [0, 1, 1, 0, 1]);
    assert!(machine.loads().into_values().all(|load| load <= 0.85));
}

#[test]
fn a_core_that_other_work_took_is_left() {
    let mut machine = Machine::new(2, &[0]);
    machine.wants = vec![0.4];
    machine.until(100);
    // It still runs for at most 0.02 of the time.
    machine.cores[0].other = 0.98;
    let told = machine.until(200);
    assert!(told[0].starts_with("120 ms: port 0 queue 0: core 0 -> "), "{told:?}");
}

#[test]
fn spread_and_fixed_place_queues_as_configured() {
    let mut machine = Machine::new(4, &[0, 0, 0, 0, 0]);
    machine.queues[1].movable = false;
    machine.wants = vec![0.1; 5];
    machine.settings.policy = Policy::Spread;
    machine.settings.allowed = Some([1, 2, 3].into());
    machine.until(3000);
    assert_eq!(machine.homes(), [1, 0, 3, 1, 2]);
    let id = |index| QueueId { port: 0, index };
    machine.settings.policy = Policy::Fixed([(id(0), 3), (id(2), 0), (id(9), 1)].into());
    assert_eq!(
        machine.until(6000),
        [
            "3010 ms: port 0 queue 0: core 1 -> core 3: the policy places it there",
            "3010 ms: port 0 queue 2: core 3: stays, core 0, which the policy names, is offline or may not forward",
        ]
    );
    assert_eq!(machine.homes(), [3, 0, 3, 1, 2]);
    machine.cores.remove(2);
    machine.until(7000);
    assert_eq!(machine.homes(), [3, 0, 3, 1, 1], "the policy does not name it");
}

#[test]
fn roles_follow_from_the_view_and_the_plan() {
    let cores = [core(0), Core { workloads: 1, ..core(1) }, Core { other: 0.2, ..core(2) }, core(3), core(4)];
    let view = View { cores: cores.to_vec(), queues: vec![] };
    let id = QueueId { port: 0, index: 0 };
    let plan = Plan { home: [(id, 0)].into(), split: [(id, vec![2, 4])].into() };
    let roles: Vec<_> = roles(&view, &plan).into_iter().map(|(core, role)| (core, role.name())).collect();
    assert_eq!(roles, [(0, "forward"), (1, "serve"), (2, "both"), (3, "idle"), (4, "forward")]);
}

/// A queue with almost no load is not worth a move. It would move back and forth between cores that each have a queue
/// too large for the mark.
#[test]
fn queues_without_load_do_not_move_back_and_forth() {
    let mut machine = Machine::new(2, &[0, 1, 0, 0]);
    (machine.settings.low, machine.settings.high) = (0.2, 0.4);
    (machine.wants[2], machine.wants[3]) = (0.001, 0.0);
    for round in 0..50 {
        // Alternately.
        let (more, less) = (round % 2, 1 - round % 2);
        (machine.wants[more], machine.wants[less]) = (0.5, 0.3);
        machine.until(100 * (round as u64 + 1));
        assert_eq!(machine.homes(), [0, 1, 0, 0], "{round}");
    }
}

/// A core that only such queues use is given back, whatever the others have. But they go where there is room, if there
/// is any.
#[test]
fn queues_without_load_keep_no_core() {
    let mut machine = Machine::new(3, &[0, 1, 2]);
    machine.settings.splits = false;
    machine.wants = vec![1.0, 0.1, 0.002];
    machine.until(10_000);
    assert_eq!(machine.homes(), [0, 1, 1]);
    let mut machine = Machine::new(2, &[0, 1]);
    machine.settings.splits = false;
    machine.wants = vec![0.95, 0.002];
    machine.until(10_000);
    assert_eq!(machine.homes(), [0, 0]);
}
