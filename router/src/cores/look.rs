//! Looks for cores, the queues of ports, and workloads. This may take long, so it has a thread of its own.
//!
//! Things that seldom change are read seldom: see [`super::ports`] and [`super::surroundings`].

use super::{
    CoreId, QueueId, Roots,
    balancer::Balancer,
    drain::Exit,
    knob::System,
    knobs::Knobs,
    local::{Following, Local},
    machine::Machine,
    moderation::{Moderated, Moderation},
    ports::{Ask, Ports},
    queues::QueueSource,
    resume::{Held, Resume},
    serve::Serve,
    splitting::Splitter,
    surroundings::Surroundings,
    threads::PartThread,
    workloads::Workload,
};
use crate::{
    config::{CoresSettings, Experimental, LocalDelivery, PlacementPolicy},
    linux::spreading::Spreads,
};
use logic::{
    cores::{Plan, View, serving},
    plan::PortId,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::BorrowedFd,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// The time between two looks.
pub const LOOK: Duration = Duration::from_secs(1);

/// The result of a look.
#[derive(Clone, Debug)]
pub struct CoresSnapshot {
    /// When the look began. Queues that were moved since then may be elsewhere.
    pub began: Duration,
    pub machine: Arc<Machine>,
    /// By ascending id.
    pub queues: Vec<FoundQueue>,
    /// The ports that exist now.
    pub exits: Vec<Exit>,
    pub workloads: Arc<Vec<Workload>>,
    /// Cores that control groups keep for themselves, each with the path of the group.
    pub kept: Arc<BTreeMap<CoreId, String>>,
    /// The cores that were given to applications.
    pub served: Option<BTreeSet<CoreId>>,
    /// How far local delivery follows; `None`: the configuration does not ask for it.
    pub following: Option<Following>,
    /// The running irqbalance, if interrupts are placed.
    pub balancer: Option<Arc<Balancer>>,
    /// The threads that do shares of split queues.
    pub parts: Vec<PartThread>,
    /// Whether queues can be split.
    pub may_split: bool,
    /// How ports spread packets over their queues, if the configuration asks for changes.
    pub spreads: BTreeMap<PortId, Spreads>,
    /// Whether interrupts of ports are held back, by name, if the configuration asks for it.
    pub moderated: BTreeMap<String, Moderated>,
    /// The forwarding cores that have a wake-up limit.
    pub awake: BTreeMap<CoreId, Held>,
    /// The problems, as sentences.
    pub conditions: Vec<String>,
}

/// A queue, the NUMA node of its port, and its entries, if the driver reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundQueue {
    pub source: QueueSource,
    pub node: Option<u16>,
    pub entries: Option<u32>,
}

/// Looks, and applies what may take long.
pub struct Looker<A> {
    /// The time from one look to the next, if nothing asks for one earlier.
    pub(super) every: Duration,
    pub(super) knobs: Knobs,
    pub(super) ports: Ports,
    around: Surroundings<A>,
    wanted: Arc<CoresSettings>,
    /// Whether queues may be split.
    splits: bool,
    /// The control group of applications, if configured.
    serve: Option<Serve>,
    /// Lets local delivery follow, if configured.
    local: Option<Local>,
    /// Lets forwarding cores wake up quickly, if configured.
    resume: Option<Resume>,
    pub(super) splitter: Splitter,
    /// The settings of an earlier daemon that could not be restored, as sentences.
    leftovers: Vec<String>,
}

impl<A: System + Clone> Looker<A> {
    /// Prepares to look at these ports. Original settings are saved in `file`. Restores what an earlier daemon has changed
    /// and this one does not use.
    ///
    /// # Errors
    /// /sys cannot be read.
    pub fn new(
        roots: Roots,
        affinity: A,
        ask: Box<dyn Ask>,
        wanted: Arc<CoresSettings>,
        experimental: Experimental,
        names: &[String],
        file: PathBuf,
    ) -> io::Result<Looker<A>> {
        let around = Surroundings::new(&roots, affinity.clone(), &wanted)?;
        let mut knobs = Knobs::open(file, roots, affinity);
        let leftovers = knobs.put_back_unwanted(names, &wanted, experimental);
        let mut ports = Ports::new(ask, &wanted, names);
        ports.moderation = experimental.moderation.map(|longest| Moderation::new(longest.0));
        Ok(Looker {
            every: LOOK,
            knobs,
            ports,
            around,
            splits: experimental.split,
            serve: wanted.serve.as_deref().map(Serve::new),
            local: (experimental.local == LocalDelivery::Follow).then(Local::default),
            resume: wanted.resume_us().map(Resume::new),
            splitter: Splitter::default(),
            wanted,
            leftovers,
        })
    }

    /// Looks at everything. `thoroughly`: reads everything again, because something was missed. Takes milliseconds, and more
    /// on large machines.
    pub fn look(&mut self, now: Duration, thoroughly: bool) -> CoresSnapshot {
        let Looker { knobs, ports, around, wanted, .. } = self;
        let mut conditions = self.leftovers.clone();
        if thoroughly && let Err(error) = knobs.forget_gone() {
            conditions.push(format!("the original settings of queues cannot be saved: {error}"));
        }
        if let Err(error) = around.find_cores(&knobs.roots) {
            conditions.push(format!("cores cannot be read: {error}"));
        }
        conditions.extend(ports.look(knobs, now, thoroughly));
        conditions.extend(ports.known().flat_map(|(.., known)| known.conditions.clone()));
        conditions.extend(ports.spreader.conditions(now));
        if let Some(serve) = &mut self.serve {
            conditions.extend(serve.look(knobs));
        }
        if let Some(resume) = &mut self.resume {
            conditions.extend(resume.look(knobs));
            conditions.extend(resume.useless().filter(|_| wanted.resume_latency.is_some()));
        }
        let following = self.local.as_mut().map(|local| {
            let (following, new) = local.look(knobs, ports.known().map(|(_, name, _)| name));
            conditions.extend(new);
            following
        });
        conditions.extend(around.find_kept(now, wanted.allowed.as_ref().map(|allowed| &allowed.0)));
        conditions.extend(around.cpusets.condition());
        around.find_workloads(&knobs.roots, now);
        let queues: Vec<FoundQueue> = ports.known().flat_map(|(.., known)| known.queues()).collect();
        let placed = queues.iter().filter(|_| wanted.policy != PlacementPolicy::Off);
        let controls = placed.map(|queue| queue.source.control);
        let (balancer, condition) = around.find_balancer(&knobs.roots, controls, now, thoroughly);
        conditions.extend(condition);
        conditions.extend(self.splitter.apply(now, &around.machine));
        let may_split = self.splits && self.splitter.may_split(ports.known().map(|(id, ..)| id));
        if may_split {
            let mut cores = around.machine.online();
            cores.retain(|core| !around.kept.contains_key(core));
            if let Some(allowed) = &wanted.allowed {
                cores.retain(|core| allowed.0.contains(core));
            }
            conditions.extend(self.splitter.make_ready(&cores));
        }
        let moderated =
            ports.known().filter_map(|(_, name, known)| Some((name.to_owned(), known.moderated.clone()?)));
        CoresSnapshot {
            began: now,
            machine: around.machine.clone(),
            queues,
            exits: ports.known().map(|(.., known)| known.exit()).collect(),
            workloads: around.workloads.clone(),
            kept: around.kept.clone(),
            served: self.serve.as_ref().and_then(Serve::set).cloned(),
            following,
            balancer,
            parts: self.splitter.threads(&knobs.roots),
            may_split,
            spreads: ports.known().filter_map(|(id, _, known)| Some((id, known.spreads?))).collect(),
            moderated: moderated.collect(),
            awake: self.resume.as_ref().map(Resume::held).unwrap_or_default(),
            conditions,
        }
    }

    /// Readable when control groups may have changed; `None`: nothing reports that.
    pub fn group_changes(&self) -> Option<BorrowedFd<'_>> {
        self.around.cpusets.changes()
    }

    /// Takes in the reported changes of control groups. Returns whether any of them concerns cores.
    pub fn have_groups_changed(&mut self) -> bool {
        self.around.cpusets.have_changed()
    }

    /// Splits queues as decided. Returns the failures, as sentences.
    pub fn split(&mut self, now: Duration) -> Vec<String> {
        self.splitter.apply(now, &self.around.machine)
    }

    /// Prepares help that was just decided. Returns the failures, as sentences.
    pub fn prepare(&self, now: Duration) -> Vec<String> {
        self.splitter.prepare(now, true)
    }

    /// Gives applications the cores that a plan does not use.
    pub fn serve(&mut self, view: &View, plan: &Plan) {
        let Some(serve) = &mut self.serve else { return };
        if let Some(may) = serve.may() {
            serve.give(&mut self.knobs, serving(view, plan, may));
        }
    }

    /// Takes in that a queue was moved to a core. Lets the TX queue of the same number follow.
    pub fn moved(&mut self, queue: QueueId, core: CoreId) {
        let Looker { ports, knobs, .. } = self;
        ports.moved(knobs, queue, core);
    }

    /// Lets these cores wake up quickly, and no others. Returns the limits that could not be restored, as sentences.
    pub fn keep_awake(&mut self, cores: &BTreeSet<CoreId>) -> Vec<String> {
        let Looker { resume, knobs, .. } = self;
        resume.as_mut().map(|resume| resume.set(knobs, cores)).unwrap_or_default()
    }

    /// Restores wake-up limits and the timers of polled ports, which serve no purpose once the daemon has ended.
    /// Returns the failures, as sentences.
    pub fn end(&mut self) -> Vec<String> {
        let mut conditions = self.keep_awake(&BTreeSet::new());
        let Looker { ports, knobs, .. } = self;
        conditions.extend(ports.moderation.iter_mut().flat_map(|moderation| moderation.end(knobs)));
        conditions
    }

    /// Restores everything that was changed. Returns the failures, as sentences.
    pub fn put_back(&mut self) -> Vec<String> {
        let mut conditions = self.knobs.put_back();
        conditions.extend(self.ports.spreader.end());
        conditions
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            fake::Fake,
            queues::{Control, NetdevQueues, Obstacle},
            tree::Tree,
        },
        *,
    };
    use std::sync::{
        Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    };

    /// Counts the questions about a device's queues.
    struct Counting(Arc<AtomicU32>, Arc<Mutex<u32>>);

    impl Ask for Counting {
        fn ifindex(&self, _: &str) -> io::Result<u32> {
            Ok(*self.1.lock().unwrap())
        }

        fn told(&self, _: u32, _: &str) -> io::Result<NetdevQueues> {
            self.0.fetch_add(1, Relaxed);
            Ok(NetdevQueues::default())
        }
    }

    struct World {
        tree: Tree,
        fake: Fake,
        looker: Looker<Fake>,
        asked: Arc<AtomicU32>,
        ifindex: Arc<Mutex<u32>>,
    }

    impl World {
        /// eth0 with two queues, whose threads are 70 and 71.
        fn new(file: &str) -> World {
            let (tree, fake) = (Tree::two_sockets(), Fake::default());
            tree.device("eth0", 2, true);
            for pid in [70, 71] {
                tree.thread(pid, pid, &format!("napi/eth0-{pid}"), true, "0-1", 1);
                fake.get().of.insert(pid, [0, 1].into());
            }
            let (asked, ifindex) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(8)));
            let ask = Box::new(Counting(asked.clone(), ifindex.clone()));
            let (wanted, file) = (Arc::default(), tree.path(file));
            let looker = Looker::new(
                tree.roots(),
                fake.clone(),
                ask,
                wanted,
                Experimental::default(),
                &["eth0".into()],
                file,
            )
            .unwrap();
            World { tree, fake, looker, asked, ifindex }
        }

        /// Looks at this second. Returns the number of questions about the queues, and the result.
        fn look(&mut self, second: u64) -> (u32, CoresSnapshot) {
            let before = self.asked.load(Relaxed);
            let found = self.looker.look(Duration::from_secs(second), false);
            (self.asked.load(Relaxed) - before, found)
        }
    }

    #[test]
    fn a_port_is_read_completely_when_it_has_changed_and_every_ten_seconds() {
        let mut world = World::new("m.cores");
        let asked: Vec<u32> = (0..21).map(|second| world.look(second).0).collect();
        let expected: Vec<u32> = (0..21).map(|second| u32::from(second % 10 == 0)).collect();
        assert_eq!(asked, expected);
        world.tree.write("sys/class/net/eth0/queues/rx-2/rps_cpus", "0\n");
        assert_eq!((world.look(21).0, world.look(22).0), (1, 0));
        *world.ifindex.lock().unwrap() = 9;
        assert_eq!((world.look(23).0, world.look(24).0), (1, 0));
        world.tree.write("sys/class/net/eth0/threaded", "0\n");
        assert_eq!((world.look(25).0, world.look(26).0), (1, 0));
        assert_eq!(world.asked.load(Relaxed), 6);
    }

    #[test]
    fn the_places_of_queues_are_read_at_each_look() {
        let mut world = World::new("m.cores");
        let places = |found: CoresSnapshot| -> Vec<(Option<CoreId>, bool)> {
            found.queues.iter().map(|queue| (queue.source.core, queue.source.confined)).collect()
        };
        assert_eq!(places(world.look(0).1), [(Some(1), false); 2]);
        world.fake.get().of.insert(71, [5].into());
        assert_eq!(places(world.look(1).1), [(Some(1), false), (Some(5), true)]);
        // A thread has ended, so its successor is searched for at once.
        world.fake.get().of.remove(&70);
        world.tree.remove("proc/70");
        let (asked, found) = world.look(2);
        assert_eq!(asked, 1);
        assert!(matches!(found.queues[0].source.control, Control::None { .. }), "{found:?}");
    }

    #[test]
    fn cores_are_read_again_when_the_list_of_online_ones_changes() {
        let mut world = World::new("m.cores");
        let first = world.look(0).1.machine;
        assert!(Arc::ptr_eq(&first, &world.look(1).1.machine));
        world.tree.write("sys/devices/system/cpu/online", "0-3\n");
        assert_eq!(world.look(2).1.machine.online(), [0, 1, 2, 3].into());
        world.tree.remove("sys/devices/system/cpu");
        let (_, found) = world.look(3);
        assert_eq!((found.machine.cores.len(), found.conditions.len()), (4, 1), "{:?}", found.conditions);
    }

    #[test]
    fn irqbalance_is_reported_if_queues_have_interrupts() {
        let mut world = World::new("m.cores");
        world.tree.thread(812, 812, "irqbalance", false, "0-7", 0);
        let (_, found) = world.look(0);
        assert_eq!((found.balancer, found.conditions), (None, vec![]), "irqbalance moves no threads");
        world.tree.write("sys/class/net/eth0/threaded", "0\n");
        world.tree.hardware("eth0", "", 0, &[38, 39]);
        world.tree.irq(38, "eth0-TxRx-0", "0-7", "5");
        world.tree.irq(39, "eth0-TxRx-1", "0-7", "5");
        world.tree.write("proc/812/cmdline", "irqbalance\0--banirq=39\0");
        let (_, found) = world.look(1);
        assert!(found.conditions[0].starts_with("irqbalance (process 812) moves interrupts of queues"));
        assert!(found.conditions[0].contains("--banirq=38 ("), "{:?}", found.conditions);
        world.tree.write("proc/812/cmdline", "irqbalance\0--banirq=39\0-i38\0");
        assert_eq!(world.looker.look(Duration::from_secs(2), true).conditions, Vec::<String>::new());
    }

    #[test]
    fn a_queue_whose_original_settings_cannot_be_saved_is_not_moved() {
        let mut world = World::new("nowhere/m.cores");
        for second in 0..2 {
            let found = world.look(second).1;
            let unnoted = Control::None { why: Obstacle::Unnoted };
            assert!(found.queues.iter().all(|queue| queue.source.control == unnoted), "{found:?}");
            assert_eq!(found.conditions.len(), 2);
            assert!(
                found.conditions[0]
                    .starts_with("queue 0 of eth0 is not moved: its original settings cannot be")
            );
        }
    }
}
