//! Queues that others have helped within a control period.

use super::*;

/// Packets of 2 us, so that they are worth handing on.
const PACKET: f64 = 2e-6;

/// Sets a queue's load to this fraction of a core, with packets of 2 us.
fn load(machine: &mut Machine, index: usize, load: f64) {
    machine.wants[index] = load;
    let counted = Counted { packets_per_s: load / PACKET, wakeups_per_s: 0.0 };
    machine.queues[index].counted = Some(counted);
}

fn decide(machine: &mut Machine) -> Decision {
    let view = machine.view();
    machine.now += PERIOD;
    let decision = machine.allocator.decide(machine.now, &view, &machine.settings);
    machine.plan = decision.plan.clone();
    machine.queues.iter_mut().for_each(|queue| queue.spilled.clear());
    decision
}

/// The home of a queue shares it with core `to`. The allocator sees this at its next decision.
fn spill(machine: &mut Machine, index: usize, to: CoreId) {
    let id = machine.queues[index].id;
    machine.queues[index].spilled.push(to);
    let home = machine.plan.home[&id];
    let mut shares = machine.plan.split.remove(&id).unwrap_or_else(|| vec![home]);
    shares.push(to);
    machine.plan.split.insert(id, shares);
}

/// Four light queues of core 0 that want this much at once, and are shared with core 1.
fn surge(cores: u16, wants: f64) -> Machine {
    let mut machine = Machine::new(cores, &[0; 4]);
    (0..4).for_each(|index| load(&mut machine, index, 0.1));
    decide(&mut machine);
    for index in 0..4 {
        load(&mut machine, index, wants);
        spill(&mut machine, index, 1);
    }
    machine
}

fn lines(decision: &Decision) -> Vec<String> {
    decision.events.iter().map(Event::to_string).collect()
}

#[test]
fn queues_of_a_core_get_different_helpers() {
    let mut machine = Machine::new(4, &[0, 0, 1]);
    machine.cores[3].workloads = 1;
    (0..3).for_each(|index| load(&mut machine, index, 0.2));
    let Decision { help, .. } = decide(&mut machine);
    let of =
        |index: usize| help.get(&machine.queues[index].id).map(|help| (help.cores.clone(), help.full_polls));
    // Core 1 forwards already, so it comes first. A core with a workload helps nobody.
    assert_eq!(of(0), Some((vec![1, 2], 1)));
    assert_eq!(of(1), Some((vec![2, 1], 1)));
    assert_eq!(of(2), Some((vec![2], 1)), "core 0 has no room for half a core more");
}

#[test]
fn queues_get_no_help_without_room_or_with_cheap_packets_or_without_sharing() {
    let help = |change: fn(&mut Machine)| {
        let mut machine = Machine::new(2, &[0, 1]);
        (0..2).for_each(|index| load(&mut machine, index, 0.3));
        change(&mut machine);
        decide(&mut machine);
        let Decision { help, .. } = decide(&mut machine);
        help.keys().map(|id| id.index).collect::<Vec<_>>()
    };
    assert_eq!(help(|_| ()), [0, 1]);
    assert_eq!(help(|machine| load(machine, 1, 0.4)), [1], "0.4 and half a core are above the high mark");
    assert_eq!(help(|machine| machine.queues[0].counted = None), [1], "the cost is not known");
    const CHEAP: Counted = Counted { packets_per_s: 1e6, wakeups_per_s: 0.0 };
    assert_eq!(help(|machine| machine.queues[1].counted = Some(CHEAP)), [0]);
    assert_eq!(help(|machine| machine.settings.splits = false), [0; 0]);
    assert_eq!(help(|machine| machine.settings.policy = Policy::Spread), [0; 0]);
    assert_eq!(help(|machine| machine.settings.allowed = Some([0].into())), [0; 0]);
}

#[test]
fn needless_help_is_taken_back_after_a_whole_period_and_comes_later_next_time() {
    let mut machine = Machine::new(2, &[0]);
    load(&mut machine, 0, 0.5);
    let id = machine.queues[0].id;
    for polls in [1, 2, 4, 8] {
        let before = decide(&mut machine);
        assert_eq!(before.help[&id].full_polls, polls);
        spill(&mut machine, 0, 1);
        let first = decide(&mut machine);
        let why = "core 0 fell behind within a control period and shared the queue at once";
        assert_eq!(lines(&first), [format!("port 0 queue 0: core 0 -> cores 0+1: {why}")]);
        assert_eq!(first.plan.split[&id], [0, 1], "what it wants is not known yet");
        let second = decide(&mut machine);
        assert_eq!(lines(&second), ["port 0 queue 0: cores 0+1 -> core 0: it is whole again on its core"]);
        assert!(second.plan.split.is_empty());
    }
    // Each hold time without help halves the delay.
    let mut polls = Vec::new();
    for _ in 0..1000 {
        polls.push(decide(&mut machine).help[&id].full_polls);
    }
    polls.dedup();
    assert_eq!(polls, [16, 8, 4, 2, 1]);
}

#[test]
fn help_during_a_short_burst_was_needed_although_the_load_is_low_again() {
    let mut machine = Machine::new(2, &[0]);
    load(&mut machine, 0, 0.3);
    let id = machine.queues[0].id;
    for _ in 0..3 {
        assert_eq!(decide(&mut machine).help[&id].full_polls, 1);
        load(&mut machine, 0, 1.4);
        spill(&mut machine, 0, 1);
        // The burst lasts for two periods. After two calm ones the queue is whole again.
        decide(&mut machine);
        decide(&mut machine);
        load(&mut machine, 0, 0.3);
        assert!(!decide(&mut machine).plan.split.is_empty());
        assert!(decide(&mut machine).plan.split.is_empty());
    }
    // Another burst, without work for others. Its help was needless.
    spill(&mut machine, 0, 1);
    (0..2).for_each(|_| drop(decide(&mut machine)));
    assert_eq!(decide(&mut machine).help[&id].full_polls, 2);
}

#[test]
fn help_stays_while_the_work_of_others_is_not_known() {
    let mut machine = Machine::new(2, &[0]);
    load(&mut machine, 0, 0.5);
    decide(&mut machine);
    spill(&mut machine, 0, 1);
    decide(&mut machine);
    for _ in 0..20 {
        let mut view = machine.view();
        (view.queues[0].is_partial, view.queues[0].parts) = (true, vec![]);
        machine.now += PERIOD;
        let decision = machine.allocator.decide(machine.now, &view, &machine.settings);
        assert_eq!(lines(&decision), [""; 0]);
        assert_eq!(decision.plan.split.len(), 1);
    }
    assert!(lines(&decide(&mut machine))[0].ends_with("it is whole again on its core"));
}

#[test]
fn no_queue_is_taken_back_to_a_home_that_has_another_one_with_unknown_work() {
    let mut machine = Machine::new(3, &[0, 0]);
    for index in 0..2 {
        load(&mut machine, index, 0.2);
    }
    decide(&mut machine);
    (0..2).for_each(|index| spill(&mut machine, index, 1));
    decide(&mut machine);
    let mut view = machine.view();
    (view.queues[0].is_partial, view.queues[0].parts) = (true, vec![]);
    machine.now += PERIOD;
    assert_eq!(machine.allocator.decide(machine.now, &view, &machine.settings).plan.split.len(), 2);
    assert!(decide(&mut machine).plan.split.is_empty());
}

/// While flows come back, the home polls packets that others forward. That costs less than forwarding them.
#[test]
fn packets_do_not_become_cheap_because_others_still_forward_them() {
    let mut machine = Machine::new(2, &[0]);
    load(&mut machine, 0, 0.5);
    let id = machine.queues[0].id;
    decide(&mut machine);
    spill(&mut machine, 0, 1);
    decide(&mut machine);
    let whole = decide(&mut machine);
    assert!(whole.plan.split.is_empty());
    let at = |machine: &mut Machine| {
        let mut view = machine.view();
        view.queues[0].ran *= 0.2;
        machine.now += PERIOD;
        machine.allocator.decide(machine.now, &view, &machine.settings).help.contains_key(&id)
    };
    assert!((0..10).all(|_| at(&mut machine)));
    // Later, the low cost is believed.
    assert!((0..30).any(|_| !at(&mut machine)));
}

#[test]
fn a_spill_late_in_a_period_is_not_mistaken_for_a_light_load() {
    let mut machine = Machine::new(2, &[0]);
    load(&mut machine, 0, 0.5);
    decide(&mut machine);
    // For a millisecond, both cores were full.
    let mut view = machine.view();
    view.queues[0].ran = 0.55;
    (view.queues[0].parts, view.queues[0].spilled) =
        (vec![Part { core: 1, ran: 0.09, waited: 0.0 }], vec![1]);
    let mut at = |view: &View| {
        machine.now += PERIOD;
        machine.allocator.decide(machine.now, view, &machine.settings)
    };
    assert_eq!(at(&view).plan.split.len(), 1);
    view.queues[0].spilled.clear();
    (view.queues[0].ran, view.queues[0].parts[0].ran) = (0.96, 0.85);
    let ids: Vec<_> = (0..20).map(|_| at(&view)).collect();
    assert!(ids.iter().all(|decision| decision.plan.split.len() == 1), "{:?}", ids[0].events);
}

#[test]
fn a_spilled_queue_leaves_cores_that_are_gone_or_get_a_workload() {
    let spilled = || {
        let mut machine = Machine::new(3, &[0]);
        load(&mut machine, 0, 0.5);
        decide(&mut machine);
        spill(&mut machine, 0, 1);
        machine
    };
    let id = spilled().queues[0].id;
    for gone in [0, 1] {
        let mut machine = spilled();
        machine.cores.retain(|core| core.id != gone);
        let Decision { plan, .. } = decide(&mut machine);
        assert!(!plan.cores().contains(&gone), "{plan:?}");
        decide(&mut machine);
        assert!(!machine.plan.cores().contains(&gone));
    }
    let mut machine = spilled();
    decide(&mut machine);
    machine.cores[0].workloads = 1;
    (0..5).for_each(|_| drop(decide(&mut machine)));
    assert_ne!(machine.plan.home[&id], 0);
    assert!(machine.plan.split.is_empty());
}

#[test]
fn queues_that_outgrow_their_core_are_placed_whole_once_their_wants_are_known() {
    let mut machine = surge(4, 0.33);
    let first = decide(&mut machine);
    assert_eq!(first.events.len(), 4, "{:?}", lines(&first));
    assert_eq!(first.plan.split.len(), 4, "one period may be noise");
    let second = decide(&mut machine);
    assert!(second.plan.split.is_empty(), "{:?}", lines(&second));
    let mut homes = machine.homes();
    homes.sort_unstable();
    assert_eq!(homes, [0, 0, 1, 1]);
    assert!(lines(&second).iter().any(|line| line.ends_with("core 0 had 132 % to forward, above 85 %")));
    assert_eq!(decide(&mut machine).help.len(), 4);
}

#[test]
fn a_queue_that_alone_is_too_much_stays_split() {
    let mut machine = Machine::new(4, &[0]);
    load(&mut machine, 0, 0.3);
    decide(&mut machine);
    load(&mut machine, 0, 1.4);
    spill(&mut machine, 0, 1);
    let mut told = Vec::new();
    for _ in 0..100 {
        let decision = decide(&mut machine);
        assert!(decision.plan.split[&machine.queues[0].id].len() >= 2, "{decision:?}");
        told.extend(lines(&decision));
    }
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[1].ends_with("it alone wants 147 % of a core, above 85 %"), "{told:?}");
}

#[test]
fn a_queue_that_alone_is_too_much_stays_shared_when_its_neighbour_leaves() {
    let mut machine = Machine::new(4, &[0, 0]);
    load(&mut machine, 0, 0.3);
    load(&mut machine, 1, 0.1);
    decide(&mut machine);
    load(&mut machine, 0, 1.4);
    (0..2).for_each(|index| spill(&mut machine, index, 1));
    let id = machine.queues[0].id;
    for _ in 0..20 {
        let decision = decide(&mut machine);
        assert!(decision.plan.split.contains_key(&id), "{:?}", lines(&decision));
    }
    assert_eq!(machine.plan.split.len(), 1);
}

#[test]
fn whole_queues_are_spread_evenly_if_all_cores_are_overloaded() {
    let mut machine = surge(2, 0.45);
    (0..3).for_each(|_| drop(decide(&mut machine)));
    assert!(machine.plan.split.is_empty());
    let mut homes = machine.homes();
    homes.sort_unstable();
    assert_eq!(homes, [0, 0, 1, 1]);
}

#[test]
fn helpers_get_more_of_a_queue_step_by_step() {
    let help = Help { cores: vec![1, 2, 3], full_polls: 1 };
    let mut buckets = [0; split::BUCKETS];
    let mut counts = Vec::new();
    for helpers in 1..=3 {
        let after = help.buckets(&buckets, 0, helpers);
        let came_home =
            buckets.iter().zip(&after).filter(|(before, after)| before != after && **after == 0).count();
        assert_eq!(came_home, 0);
        buckets = after;
        counts.push([0, 1, 2, 3].map(|core| buckets.iter().filter(|it| **it == core).count()));
    }
    assert_eq!(counts, [[32, 32, 0, 0], [16, 24, 24, 0], [0, 22, 21, 21]]);
    // No more helpers than there are.
    let one = Help { cores: vec![5], full_polls: 1 };
    assert_eq!(one.buckets(&[0; split::BUCKETS], 0, 3).iter().filter(|core| **core == 5).count(), 32);
}
