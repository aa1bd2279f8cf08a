//! Faults on a fake machine: somebody else moves queues, or cores go offline.

use super::{super::queues::NetdevQueues, tests::World, *};

const FIXED: &str = "policy = \"fixed\"\nfixed = { eth0 = [2, 3] }";

/// Somebody moves a thread. Then a second passes.
fn strays(world: &mut World, pid: u32, core: CoreId) -> String {
    world.fake.get().of.insert(pid, [core].into());
    world.periods(101, &[(70, 1, 0), (71, 1, 0)])
}

#[test]
fn a_queue_that_somebody_moves_again_and_again_is_reported_and_left_alone() {
    let mut world = World::new(FIXED);
    world.periods(100, &[]);
    let told = strays(&mut world, 70, 1);
    assert!(
        told.contains("queue 0 [2] -> [1]: moved by somebody else, 1 times so far; it is moved back"),
        "{told}"
    );
    assert_eq!((world.cores(70), world.cores(71)), (vec![2], vec![3]));
    let condition = &world.conditions()[0];
    assert!(
        condition
            .starts_with("queue 0 of eth0 is moved by somebody else, 1 times so far, and was moved back: ")
    );
    assert!(condition.contains("set policy = \"off\" in [cores]"), "{condition}");
    strays(&mut world, 70, 1);
    let told = strays(&mut world, 70, 1);
    assert!(told.contains("3 times so far; it is left alone for 30 s"), "{told}");
    // For half a minute Millrace does nothing, wherever the queue goes.
    for core in [1, 0] {
        assert_eq!(strays(&mut world, 70, core), "");
        assert_eq!(world.cores(70), [core]);
        let now = world.placing.snapshot(world.now).unwrap();
        let queue = now.queues[0];
        let place = (queue.source.core, queue.source.confined, queue.refused);
        assert_eq!(place, (Some(core), true, Some(crate::cores::queues::Obstacle::Contested)));
        assert_eq!(now.view.queues[0].core, core, "it counts where it is");
        assert!(
            now.conditions[0].contains("3 times so far, and is left alone for 30 s at a time"),
            "{now:?}"
        );
    }
    // Then it is placed again.
    world.now += Duration::from_secs(30);
    world.periods(2, &[(70, 1, 0)]);
    assert_eq!((world.cores(70), world.cores(71)), (vec![2], vec![3]));
    let told = strays(&mut world, 70, 1);
    assert!(told.contains("4 times so far; it is left alone for 60 s"), "{told}");
}

#[test]
fn irqbalance_is_named_for_interrupts() {
    let mut world = World::new(FIXED);
    world.tree.write("sys/class/net/eth0/threaded", "0\n");
    world.tree.hardware("eth0", "", 0, &[38, 39]);
    world.tree.irq(38, "eth0-TxRx-0", "0", "0");
    world.tree.irq(39, "eth0-TxRx-1", "1", "1");
    world.tree.thread(812, 812, "irqbalance", false, "0-3", 0);
    world.netlink.tell(NetdevQueues::default());
    world.periods(100, &[]);
    let places = |world: &World| {
        [38, 39].map(|irq| world.tree.read(&format!("proc/irq/{irq}/smp_affinity_list")).trim().to_owned())
    };
    assert_eq!(places(&world), ["2", "3"]);
    assert!(
        world.conditions()[0]
            .starts_with("irqbalance (process 812) moves interrupts of queues, too: start it")
    );
    // The interrupt still fires on its old core, and will fire on the new one. That is no move by somebody else.
    assert_eq!(world.periods(300, &[]), "");
    world.tree.write("proc/irq/38/smp_affinity_list", "0-1\n");
    let told = world.periods(101, &[]);
    assert!(
        told.contains("queue 0 [2] -> [0]: moved by somebody else, probably irqbalance (process 812), 1"),
        "{told}"
    );
    assert!(
        world.conditions().iter().any(|condition| condition.contains("with --banirq=38 (")),
        "{:?}",
        world.conditions()
    );
    assert_eq!(places(&world), ["2", "3"]);
}

#[test]
fn a_core_that_goes_offline_is_left_and_is_no_move_by_somebody_else() {
    let mut world = World::new(FIXED);
    world.periods(100, &[]);
    world.tree.write("sys/devices/system/cpu/online", "0-1,3\n");
    world.tree.write("proc/stat", "cpu0 0 0 0 1\ncpu1 0 0 0 1\ncpu3 0 0 0 1\nintr 0\n");
    // The kernel lets the threads of this core run anywhere.
    world.thread(70, "0-3");
    let told = world.periods(101, &[(71, 1, 0)]);
    assert!(told.contains("queue 0 [2] -> [3]: core 2 is offline") && !told.contains("somebody"), "{told}");
    assert_eq!((world.cores(70), world.cores(71), world.conditions()), (vec![3], vec![3], vec![]));
    // When the core is back, the queue returns to it, as configured.
    world.tree.write("sys/devices/system/cpu/online", "0-3\n");
    world.periods(101, &[]);
    assert_eq!(world.cores(70), [2]);
}

#[test]
fn a_move_to_a_core_that_just_went_offline_asks_for_a_look() {
    let mut world = World::new(FIXED);
    world.fake.get().refuses = libc::EINVAL;
    let told = world.periods(1, &[]);
    assert!(told.contains("is not moved to core 2: core 2 is offline, or not allowed"), "{told}");
    world.fake.get().refuses = 0;
    world.tree.write("sys/devices/system/cpu/online", "0-1,3\n");
    // The next look comes at once, not after a second.
    world.periods(1, &[]);
    assert_eq!(world.placing.snapshot(world.now).unwrap().found.machine.cores.len(), 3);
}

#[test]
fn without_a_core_that_may_forward_nothing_moves_and_an_event_reports_it() {
    let mut world = World::new("allowed = \"2\"");
    world.periods(3, &[(70, 1, 0), (71, 1, 0)]);
    assert_eq!((world.cores(70), world.cores(71)), (vec![2], vec![2]));
    world.tree.write("sys/devices/system/cpu/online", "0-1\n");
    let told = world.periods(100, &[(70, 1, 0), (71, 1, 0)]);
    assert_eq!(told.matches("no core that may forward is online").count(), 2, "{told}");
    assert_eq!((world.cores(70), world.cores(71)), (vec![2], vec![2]));
}

#[test]
fn a_managed_interrupt_is_measured_where_it_is() {
    use std::os::unix::fs::PermissionsExt;
    let mut world = World::new("");
    world.tree.write("sys/class/net/eth0/threaded", "0\n");
    world.tree.hardware("eth0", "", 0, &[38, 39]);
    world.tree.irq(38, "eth0-TxRx-0", "1", "1");
    // The core of this interrupt is unknown at first.
    world.tree.irq(39, "eth0-TxRx-1", "0-3", "0-3");
    for irq in [38, 39] {
        let file = world.tree.path(&format!("proc/irq/{irq}/smp_affinity_list"));
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o444)).unwrap();
    }
    world.netlink.tell(NetdevQueues::default());
    let ticks = |softirqs: u64| format!("cpu1 0 0 0 1 0 0 {softirqs}\ncpu2 0 0 0 1 0 0 0\nintr 0\n");
    world.tree.write("proc/stat", &ticks(0));
    world.periods(50, &[]);
    let known = |world: &World| -> Vec<(u16, bool)> {
        let view = world.placing.snapshot(world.now).unwrap().view;
        view.queues.iter().map(|queue| (queue.id.index, queue.movable)).collect()
    };
    assert_eq!(known(&world), [(0, false)]);
    world.tree.write("proc/irq/39/effective_affinity_list", "2\n");
    world.periods(101, &[]);
    assert_eq!(known(&world), [(0, false), (1, false)]);
    // Half of core 1's time goes to softirqs, and receiving is among them.
    world.tree.write("proc/stat", &ticks(10));
    world.tree.write("proc/softirqs", " CPU0 CPU1 CPU2 CPU3\nNET_RX: 0 9 0 0\nBLOCK:\n");
    world.periods(20, &[]);
    let ran = world.placing.snapshot(world.now).unwrap().view.queues[0].ran;
    assert!((ran - 0.5).abs() < 0.05, "{ran}");
}
