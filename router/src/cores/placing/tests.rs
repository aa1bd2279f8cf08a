//! Control periods on a fake machine: files in a directory, affinities in memory.

use super::super::{
    drain::Look,
    fake::{Fake, Netlink},
    look::{LOOK, Looker},
    queues::NetdevQueues,
    threads::PartThread,
    tree::Tree,
};
use super::*;
use crate::{
    base::priority::Urgency,
    config::{Config, Experimental},
    linux::netlink::netdev::{Napi, RxQueue},
    plane::{Polled, Transmit},
};
use logic::cores::{Counted, Ring};
use std::fmt::Write as _;

const MS: Duration = Duration::from_millis(1);

/// Cores 0..4; eth0 with two queues, whose threads 70 and 71 are on cores 0 and 1.
pub struct World {
    pub tree: Tree,
    pub fake: Fake,
    pub looker: Looker<Fake>,
    pub placing: Placing<Fake>,
    looked: Duration,
    pub now: Duration,
    /// By thread: the times that it ran and waited, ns.
    times: BTreeMap<u32, (u64, u64)>,
    pub netlink: Netlink,
}

impl World {
    pub fn new(settings: &str) -> World {
        let tree = Tree::new();
        tree.write("sys/devices/system/cpu/online", "0-3\n");
        tree.write("proc/stat", "cpu0 0 0 0 1\ncpu1 0 0 0 1\ncpu2 0 0 0 1\ncpu3 0 0 0 1\nintr 0\n");
        tree.write("proc/softirqs", " CPU0 CPU1 CPU2 CPU3\nNET_RX: 0 0 0 0\nBLOCK:\n");
        tree.device("eth0", 2, true);
        let groups = tree.path("groups");
        tree.write("groups/cgroup.procs", "");
        tree.write(
            "proc/self/mountinfo",
            &format!("36 35 0:30 / {} rw - cgroup2 none rw\n", groups.display()),
        );
        let fake = Fake::default();
        let netlink = Netlink::default();
        netlink.threads(&[70, 71]);
        let file = std::path::Path::new("m.toml");
        let config = Config::parse(file, &format!("[cores]\n{settings}")).unwrap();
        let (experimental, wanted, ports) =
            (config.experimental, Arc::new(config.cores), ["eth7", "eth0"].map(str::to_owned));
        let (state, ask) = (tree.path("m.cores"), Box::new(netlink.clone()));
        let looker =
            Looker::new(tree.roots(), fake.clone(), ask, wanted.clone(), experimental, &ports, state)
                .unwrap();
        let placing = Placing::new(tree.roots(), fake.clone(), &wanted, ports.into()).unwrap();
        let (looked, now) = (Duration::ZERO, 1000 * MS);
        let mut world = World { tree, fake, looker, placing, looked, now, times: BTreeMap::new(), netlink };
        world.thread(70, "0");
        world.thread(71, "1");
        world
    }

    pub fn thread(&mut self, pid: u32, cores: &str) {
        let name = format!("napi/eth0-{}", 500 + pid);
        self.tree.thread(pid, pid, &name, true, cores, cores[..1].parse().unwrap());
        self.fake.get().of.insert(pid, logic::cpus::parse_list(cores).unwrap());
        self.times.insert(pid, (0, 0));
    }

    /// Runs this number of periods. In each, the threads run and wait for these milliseconds of ten. Returns the events.
    pub fn periods(&mut self, count: u32, loads: &[(u32, u64, u64)]) -> String {
        let mut told = String::new();
        for _ in 0..count {
            self.now += PERIOD;
            for &(pid, ran_ms, waited_ms) in loads {
                let (ran, waited) = self.times.get_mut(&pid).unwrap();
                (*ran, *waited) = (*ran + ran_ms * 1_000_000, *waited + waited_ms * 1_000_000);
                self.tree.write(&format!("proc/{pid}/schedstat"), &format!("{ran} {waited} 1\n"));
            }
            let missed = self.placing.take_look_wanted();
            if missed || self.now - self.looked >= LOOK {
                self.looked = self.now;
                self.placing.take(Arc::new(self.looker.look(self.now, missed)));
            }
            self.placing.round(self.now);
            for (at, resize) in std::mem::take(&mut self.placing.news.resizes) {
                let told = self.looker.ports.resize(at, &resize);
                self.placing.news.events.extend(told);
                self.placing.take(Arc::new(self.looker.look(self.now, false)));
            }
            for happened in self.placing.news.events.drain(..) {
                let at = (happened.at - 1000 * MS).as_millis();
                let about = happened.queue.map_or(String::new(), |id| format!("queue {} ", id.index));
                let Happened { from, to, why, .. } = happened;
                writeln!(told, "{at} ms: {about}{from:?} -> {to:?}: {why}").unwrap();
            }
            // The files of the threads also list their allowed cores.
            for (pid, cores) in &self.fake.get().of {
                let cores = cores.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
                let status = format!("proc/{pid}/status");
                if self.tree.path(&status).exists() {
                    self.tree.write(&status, &format!("Cpus_allowed_list:\t{cores}\n"));
                }
            }
        }
        told
    }

    pub fn conditions(&self) -> Vec<String> {
        self.placing.snapshot(self.now).unwrap().conditions
    }

    pub fn cores(&self, pid: u32) -> Vec<CoreId> {
        self.fake.cores(pid)
    }
}

#[test]
fn queues_are_packed_spread_on_overload_and_restored() {
    let mut world = World::new("");
    assert_eq!(world.periods(199, &[(70, 2, 0), (71, 1, 0)]), "");
    let packed = world.periods(10, &[(70, 2, 0), (71, 1, 0)]);
    assert_eq!(packed.lines().count(), 1, "{packed}");
    assert!(packed.contains("queue 1 [1] -> [0]: core 1 is given back"), "{packed}");
    assert_eq!((world.cores(70), world.cores(71)), (vec![0], vec![0]));
    // A step: both queues want six tenths of a core, and get half of it.
    let step = world.periods(4, &[(70, 5, 4), (71, 5, 4)]);
    let at: u64 = step.split(' ').next().unwrap().parse().unwrap();
    assert!(at <= 2090 + 30 && step.contains("core 0 had"), "{step}");
    assert_ne!(world.cores(70), world.cores(71));
    assert_eq!(world.looker.put_back(), Vec::<String>::new());
    assert_eq!((world.cores(70), world.cores(71)), (vec![0], vec![1]));
    assert!(!world.tree.path("m.cores").exists());
}

#[test]
fn queues_leave_a_core_that_a_control_group_keeps_and_may_use_it_again_later() {
    let mut world = World::new("allowed = \"0-1\"");
    let light = [(70, 2, 0), (71, 1, 0)];
    let keeps = |world: &World, partition: &str| {
        world.tree.write("groups/pods/cpuset.cpus", "1\n");
        world.tree.write("groups/pods/cpuset.cpus.effective", "1\n");
        world.tree.write("groups/pods/cpuset.cpus.partition", &format!("{partition}\n"));
    };
    world.periods(3, &light);
    keeps(&world, "isolated");
    let told = world.periods(101, &light);
    assert!(told.contains("queue 1 [1] -> [0]: core 1 may not forward"), "{told}");
    // It stays away, although the other core is full.
    let full = world.periods(101, &[(70, 5, 4), (71, 5, 4)]);
    assert_eq!((world.cores(70), world.cores(71)), (vec![0], vec![0]), "{full}");
    // If no other core may forward, none counts as kept.
    world.tree.write("groups/pods/cpuset.cpus.effective", "0-1\n");
    let told = world.periods(101, &[(70, 5, 4), (71, 5, 4)]);
    assert_ne!(world.cores(70), world.cores(71), "{told}");
    let kept_all =
        |world: &World| world.conditions().iter().any(|it| it.starts_with("control groups keep all cores"));
    assert!(kept_all(&world));
    keeps(&world, "isolated");
    world.periods(101, &[(70, 2, 0), (71, 1, 0)]);
    assert_eq!((world.cores(70), world.cores(71), kept_all(&world)), (vec![0], vec![0], false));
    keeps(&world, "member");
    let told = world.periods(101, &[(70, 5, 4), (71, 5, 4)]);
    assert_ne!(world.cores(70), world.cores(71), "{told}");
}

/// From packets and wake-ups the allocator computes what queues would want together. It needs both, and only threads have
/// exact wake-ups.
#[test]
fn packets_and_wakeups_are_counted_where_both_are_known() {
    let mut world = World::new("");
    world.periods(3, &[(70, 3, 0), (71, 1, 0)]);
    let counted = |world: &World| -> Vec<_> {
        world
            .placing
            .view(world.now, &Shared::default(), &BTreeMap::new())
            .queues
            .iter()
            .map(|queue| queue.counted)
            .collect()
    };
    assert_eq!(counted(&world), [None, None], "nothing counts packets");
    let queue = world.placing.measured.queues.values_mut().next().unwrap();
    for (at, packets) in [(10, 100), (20, 600)] {
        queue.traffic.read(at * MS, Some(Polled { polls: 0, packets }));
    }
    queue.load.wakeups_per_s = 7000.0;
    let expected = Counted { packets_per_s: 50_000.0, wakeups_per_s: 7000.0 };
    assert_eq!(counted(&world), [Some(expected), None]);
}

#[test]
fn a_thread_that_may_run_anywhere_is_confined_where_it_is() {
    let mut world = World::new("policy = \"fixed\"\nfixed = { eth0 = [0, 3] }");
    world.thread(70, "0-3");
    world.periods(1, &[(70, 1, 0), (71, 1, 0)]);
    assert_eq!((world.cores(70), world.cores(71)), (vec![0], vec![3]));
    world.looker.put_back();
    assert_eq!((world.cores(70), world.cores(71)), (vec![0, 1, 2, 3], vec![1]));
}

#[test]
fn a_queue_stays_where_somebody_has_put_it_since() {
    let mut world = World::new("policy = \"fixed\"\nfixed = { eth0 = [2, 3] }");
    world.periods(1, &[]);
    let moved = std::mem::take(&mut world.placing.news.moved);
    moved.into_iter().for_each(|(queue, core)| world.looker.moved(queue, core));
    world.fake.get().of.insert(70, [1].into());
    assert_eq!(world.looker.put_back(), Vec::<String>::new());
    assert_eq!((world.cores(70), world.cores(71)), (vec![1], vec![1]));
}

#[test]
fn the_successor_of_a_thread_is_found() {
    let mut world = World::new("policy = \"fixed\"\nfixed = { eth0 = [2, 3] }");
    world.periods(2, &[(70, 1, 0), (71, 1, 0)]);
    // The device was taken down and up.
    world.tree.remove("proc/71");
    world.fake.get().of.remove(&71);
    world.thread(99, "0");
    world.netlink.threads(&[70, 99]);
    world.periods(120, &[(70, 1, 0), (99, 3, 0)]);
    assert_eq!((world.cores(70), world.cores(99)), (vec![2], vec![3]));
    let queue = QueueId { port: 1, index: 1 };
    assert_eq!(world.placing.measured.queues[&queue].load.ran, 0.3);
    // The port is gone, and the thread with it.
    world.tree.remove("sys/class/net/eth0");
    world.periods(120, &[]);
    assert!(
        world.placing.measured.queues.is_empty() && world.conditions().is_empty(),
        "{:?}",
        world.conditions()
    );
}

#[test]
fn a_refused_move_is_reported_and_tried_again() {
    let mut world = World::new("policy = \"fixed\"\nfixed = { eth0 = [2, 1] }");
    world.fake.get().refuses = libc::EPERM;
    let told = world.periods(5, &[(70, 1, 0)]);
    assert_eq!(told.lines().count(), 1, "not one event: {told}");
    assert!(told.starts_with("10 ms: queue 0 [0] -> [0]: is not moved to core 2: "), "{told}");
    assert_eq!(world.cores(70), [0]);
    let conditions = world.conditions();
    assert!(conditions[0].starts_with("queue 0 of eth0 is not moved to core 2: "), "{conditions:?}");
    world.fake.get().refuses = 0;
    world.periods(110, &[(70, 1, 0)]);
    assert_eq!((world.cores(70), world.conditions().len()), (vec![2], 0));
}

#[test]
fn policy_off_only_measures() {
    let mut world = World::new("policy = \"off\"");
    assert_eq!(world.periods(300, &[(70, 10, 0), (71, 10, 0)]), "");
    assert_eq!((world.cores(70), world.cores(71)), (vec![0], vec![1]));
    assert_eq!(world.placing.measured.queues[&QueueId { port: 1, index: 0 }].load.ran, 1.0);
    assert_eq!(world.placing.period(), LOOKING_PERIOD);
}

/// Both threads together leave an application 40 %. Their original scheduling is restored.
#[test]
fn threads_are_as_nice_as_the_floor_asks() {
    let mut world = World::new("floor = 40\nallowed = \"0\"");
    let before = Urgency { policy: libc::SCHED_RR, priority: 50, nice: 0 };
    world.fake.set_urgency(70, before).unwrap();
    world.periods(300, &[(70, 3, 7), (71, 3, 7)]);
    let urgency = |world: &World| [70, 71].map(|pid| world.fake.urgency(pid).unwrap());
    assert_eq!(urgency(&world), [Urgency::usual(1); 2]);
    assert!(world.conditions().is_empty(), "{:?}", world.conditions());
    world.looker.put_back();
    assert_eq!(urgency(&world), [before, Urgency::usual(0)]);
}

#[test]
fn a_floor_needs_threads() {
    let mut world = World::new("floor = 40");
    world.tree.write("sys/class/net/eth0/threaded", "0\n");
    world.netlink.tell(NetdevQueues::default());
    world.periods(1, &[]);
    assert!(world.conditions()[0].starts_with("applications have no floor beside queues of eth0"));
}

/// A daemon without a floor restores what an earlier daemon with a floor has left.
#[test]
fn a_floor_that_is_no_longer_configured_is_undone() {
    let mut world = World::new("floor = 90\nallowed = \"0\"");
    world.periods(2, &[(70, 3, 7)]);
    assert!(world.fake.urgency(70).unwrap().nice > 5);
    let (wanted, ask) = (Arc::default(), Box::new(world.netlink.clone()));
    let (fake, file) = (world.fake.clone(), world.tree.path("m.cores"));
    Looker::new(world.tree.roots(), fake, ask, wanted, Experimental::default(), &["eth0".into()], file)
        .unwrap();
    assert_eq!(world.fake.urgency(70).unwrap(), Urgency::usual(0));
}

#[test]
fn declared_workloads_are_avoided() {
    let mut world = World::new("workloads = [{ name = \"db\", cores = \"0\" }]");
    world.periods(230, &[(70, 2, 0), (71, 1, 0)]);
    assert_eq!((world.cores(70), world.cores(71)), (vec![1], vec![1]));
}

/// Two queues of one NAPI instance have one thread. Its time is counted once, and it has one place.
#[test]
fn queues_of_one_instance_are_placed_together() {
    for policy in ["policy = \"spread\"", "policy = \"fixed\"\nfixed = { eth0 = [2, 3] }"] {
        let mut world = World::new(policy);
        world.thread(70, "1");
        let queue = |index| RxQueue { index, napi: Some(570) };
        let napi = Napi { id: 570, irq: None, pid: Some(70), threaded: Some(true), defers: false };
        let queues = Some(vec![queue(0), queue(1)]);
        world.netlink.tell(NetdevQueues { queues, napis: Some(vec![napi]), ..NetdevQueues::default() });
        let told = world.periods(1, &[]);
        assert_eq!(told.lines().count(), 1, "{told}");
        let core = world.cores(70);
        assert_eq!(core.len(), 1);
        // The plan for the second queue has no effect, so nothing moves back and forth.
        assert_eq!(world.periods(350, &[(70, 4, 0)]), "", "{policy}");
        assert_eq!(world.cores(70), core, "{policy}");
        let now = world.placing.snapshot(world.now).unwrap();
        assert_eq!(now.view.queues.iter().map(|queue| queue.ran).collect::<Vec<_>>(), [0.4]);
        let places: Vec<_> = now.queues.iter().map(|queue| (queue.source.core, queue.leader.index)).collect();
        assert_eq!(places, [(Some(core[0]), 0), (Some(core[0]), 0)]);
        let moved = std::mem::take(&mut world.placing.news.moved);
        let expected = [0, 1].map(|index| (QueueId { port: 1, index }, core[0]));
        assert_eq!(moved, expected.into(), "not both TX queues follow");
    }
}

/// A look takes time. A place that it saw before Millrace moved the queue is not mistaken for somebody else's move.
#[test]
fn a_look_that_began_before_a_move_is_out_of_date() {
    let mut world = World::new("policy = \"fixed\"\nfixed = { eth0 = [2, 3] }");
    // The second look begins while the round lasts, and before the queues are moved.
    let before = [Duration::ZERO, PERIOD + 10 * MS].map(|later| world.looker.look(world.now + later, true));
    world.fake.get().takes = 20 * MS;
    world.periods(1, &[]);
    assert_eq!(world.cores(70), [2]);
    before.into_iter().for_each(|look| world.placing.take(look.into()));
    let places =
        |world: &World| world.placing.measured.queues.values().map(|q| q.source.core).collect::<Vec<_>>();
    assert_eq!(places(&world), [Some(2), Some(3)]);
    // A look that began after the move counts.
    world.fake.get().of.insert(70, [1].into());
    let after = Arc::new(world.looker.look(world.now + Duration::from_secs(10), false));
    world.placing.take(after);
    assert_eq!(places(&world), [Some(1), Some(3)]);
}

/// While nothing is polled, rounds would find nothing, so there are none. The load after that is not averaged over the
/// pause.
#[test]
fn it_may_sleep_while_nothing_is_polled() {
    let mut world = World::new("resume_latency = \"any\"");
    world.placing.count(Polls::fake());
    world.periods(3, &[(70, 0, 0), (71, 0, 0)]);
    let napi = world.placing.measured.queues.values().map(|queue| queue.source.napi.unwrap()).next().unwrap();
    let loads = |world: &World| {
        world.placing.measured.queues.values().map(|queue| queue.load.ran).collect::<Vec<_>>()
    };
    let may_sleep = |world: &World| {
        let placing = &world.placing;
        placing.may_rest() && placing.measured.is_still(placing.measured.polls.as_ref().unwrap())
    };
    assert!(may_sleep(&world));
    world.now += 150 * MS;
    world.placing.measured.polls.as_ref().unwrap().count(napi, 1);
    assert!(!may_sleep(&world), "something was polled");
    world.placing.rest(world.now);
    world.periods(1, &[(70, 9, 0)]);
    assert_eq!(loads(&world), [0.9, 0.0], "the load is not that of the last period");
    assert!(!may_sleep(&world), "it was busy in the last period");
    world.periods(1, &[(70, 0, 0)]);
    assert!(may_sleep(&world));
    let queue = world.placing.measured.queues.values().map(|queue| queue.source.id).next().unwrap();
    world.placing.last.plan.split.insert(queue, vec![0, 1]);
    assert!(!may_sleep(&world), "it is split");
    world.placing.last.plan.split.clear();
    assert!(may_sleep(&world));
    let other = PartThread { pid: 70, core: 2, map: 9 };
    world.placing.measured.parts.take(&world.tree.roots(), &[other]);
    assert!(!may_sleep(&world), "packets may wait for another core");
    world.placing.measured.parts = crate::cores::splitting::Parts::default();
    world.placing.news.moved.insert(queue, 1);
    assert!(!may_sleep(&world), "there is news");
}

#[test]
fn it_does_not_sleep_before_cores_that_forwarded_may() {
    // The same holds if queues are only measured.
    for settings in ["", "policy = \"off\"\n"] {
        let mut world = World::new(&format!("{settings}resume_latency = \"0us\""));
        world.periods(20, &[(70, 0, 0), (71, 0, 0)]);
        assert_eq!((world.placing.news.awake.take(), world.placing.may_rest()), (None, true));
        world.periods(50, &[(70, 3, 0)]);
        assert_eq!(world.placing.news.awake.take(), Some([0].into()));
        assert!(!world.placing.may_rest(), "nobody would let the core sleep");
        world.periods(200, &[]);
        assert_eq!(world.placing.news.awake.take(), None);
        world.periods(200, &[]);
        assert_eq!(world.placing.news.awake, Some([].into()));
        assert!(!world.placing.may_rest(), "there is news");
        world.placing.news = News::default();
        assert!(world.placing.may_rest());
    }
    for (settings, told) in
        [("", Some([0].into())), ("policy = \"off\"", None), ("resume_latency = \"any\"", None)]
    {
        let mut world = World::new(settings);
        world.periods(50, &[(70, 3, 0)]);
        assert_eq!(world.placing.news.awake, told, "{settings}");
    }
}

/// Each core has one of two rings. Packets stay in it (`stuck`), or leave it at once.
struct Rings {
    stuck: bool,
}

impl Look for Rings {
    fn look(&self, ifindex: u32, core: CoreId) -> io::Result<Option<Transmit>> {
        assert_eq!((ifindex, core < 4), (8, true));
        let ring = Ring { size: 256, head: 7, tail: 9, is_empty: false, is_taking: false };
        let left = Ring { head: 9, is_empty: true, ..ring };
        let ring = if self.stuck { ring } else { left };
        Ok(Some(Transmit { rings: 2, ring: Some(ring), taker: None }))
    }
}

#[test]
fn a_queue_that_is_moved_waits_until_its_packets_have_left() {
    let moved = |stuck, urgency| {
        let mut world = World::new("");
        world.placing.drains = Some(Drains::new(Some(Box::new(Rings { stuck }))));
        let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        world.fake.get().of.insert(me, [0, 1, 2, 3].into());
        world.fake.set_urgency(71, urgency).unwrap();
        let told = world.periods(209, &[(70, 2, 0), (71, 1, 0)]);
        assert_eq!((world.cores(70), world.cores(71)), (vec![0], vec![0]));
        assert_eq!(world.cores(me), [0, 1, 2, 3]);
        let drained = world.placing.snapshot(world.now).unwrap().drained.unwrap();
        (told, drained.left, drained.remained)
    };
    let usual = Urgency::usual(0);
    let (told, left, remained) = moved(false, usual);
    // Both queues are confined to their cores, and one moves.
    assert_eq!((told.lines().count(), left, remained), (1, 1, 0), "{told}");
    let (told, left, remained) = moved(true, usual);
    assert!(told.contains("queue 1 [0] -> [0]: moved before all its packets had left"), "{told}");
    assert_eq!((told.lines().count(), left, remained), (2, 0, 1), "{told}");
    // A thread with a higher priority cannot be held up.
    let above = Urgency { policy: libc::SCHED_FIFO, priority: 50, nice: 0 };
    assert_eq!(moved(true, above).1, 0);
}
