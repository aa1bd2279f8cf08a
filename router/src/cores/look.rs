//! Looking for what there is to place: cores, the queues of ports, workloads. It may take long, and has a thread of its own.
//!
//! What seldom changes is looked at seldom: which cores there are when the list of those online changes; a port's queues, and what
//! polls each, when its number, its mode or the number of its queues has changed, and every [`THOROUGH`]. Each second it is only
//! asked where each queue may be polled. Before anybody else hears of a queue, what it had is written down (see
//! [`super::originals`]).

use super::{
    CoreId, QueueId, Roots, apply,
    balancer::Balancer,
    drain::Exit,
    irqs,
    local::{Following, Local},
    machine::Machine,
    moderation::{Asked, Moderated, Moderation, overflows},
    number, numbered,
    originals::{Originals, System},
    placing::Happened,
    polled::Deferring,
    queues::{Control, NetdevQueues, Obstacle, PortQueues, QueueSource},
    resume::{Held, Resume},
    serve::{self, Serve},
    splitting::Splitter,
    spreads::Spreader,
    threads::{self, PartThread},
    workloads::{self, Scanner, Workload, WorkloadKind},
};
use crate::{
    base::priority::Urgency,
    config::{CoresSettings, Experimental, LocalDelivery, PlacementPolicy},
    linux::spreading::Spreads,
};
use logic::{
    cores::{Plan, View, in_use::Resize, serving},
    plan::PortId,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// Time between two looks.
pub const LOOK: Duration = Duration::from_secs(1);
/// How often a port is asked everything, although nothing seems to have changed.
const THOROUGH: Duration = Duration::from_secs(10);
/// How often it is looked whether irqbalance runs.
const BALANCER: Duration = Duration::from_secs(60);

/// What the kernel tells of devices in the daemon's namespace.
pub trait Ask: Send {
    /// The number of a device; an error of the kind `NotFound`: there is none of this name.
    fn ifindex(&self, device: &str) -> io::Result<u32>;

    /// What it tells of its queues.
    fn told(&self, ifindex: u32, device: &str) -> io::Result<NetdevQueues>;
}

/// What there was when it was looked at.
#[derive(Clone, Debug)]
pub struct CoresSnapshot {
    /// When the look began: what was moved since is elsewhere by now.
    pub began: Duration,
    pub machine: Arc<Machine>,
    /// By ascending id.
    pub queues: Vec<FoundQueue>,
    /// The ports that are there.
    pub exits: Vec<Exit>,
    pub workloads: Arc<Vec<Workload>>,
    /// The cores that were given to applications.
    pub served: Option<BTreeSet<CoreId>>,
    /// How far local delivery follows; `None`: it shall not.
    pub following: Option<Following>,
    /// Where interrupts are placed: irqbalance, if it runs.
    pub balancer: Option<Arc<Balancer>>,
    /// Threads that do shares of queues that are split.
    pub parts: Vec<PartThread>,
    /// Can queues be split?
    pub may_split: bool,
    /// Of ports that spread packets over their queues, where that is ours to change.
    pub spreads: BTreeMap<PortId, Spreads>,
    /// Whether wake-ups of ports are held back, by name, if they shall be.
    pub moderated: BTreeMap<String, Moderated>,
    /// Cores that are to wake up quickly, as they forward.
    pub awake: BTreeMap<CoreId, Held>,
    /// What could not be looked at, as sentences.
    pub troubles: Vec<String>,
}

/// A queue, the NUMA node of its port, and its entries, if the driver tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundQueue {
    pub source: QueueSource,
    pub node: Option<u16>,
    pub entries: Option<u32>,
}

/// Looks.
pub struct Looker<A> {
    /// From one look for ports to the next, if nothing asks for one earlier.
    pub(super) every: Duration,
    roots: Roots,
    affinity: A,
    ask: Box<dyn Ask>,
    wanted: Arc<CoresSettings>,
    experimental: Experimental,
    ports: Vec<ObservedPort>,
    /// As read when the machine was looked at.
    online: String,
    machine: Arc<Machine>,
    scanner: Scanner<A>,
    workloads: Arc<Vec<Workload>>,
    /// When it was looked for, and what was found.
    balancer: (Option<Duration>, Option<Arc<Balancer>>),
    originals: Originals,
    /// Applications whose cores follow.
    serve: Option<Serve>,
    /// Where local delivery follows.
    local: Option<Local>,
    /// Holds wake-ups back, if they shall be.
    moderation: Option<Moderation>,
    /// Keeps interrupts off where workers poll, if they shall.
    pub(super) deferring: Option<Deferring>,
    /// Lets cores that forward wake up quickly, if they shall.
    resume: Option<Resume>,
    /// What ports of before keep, as sentences.
    leftovers: Vec<String>,
    pub(super) splitter: Splitter,
    pub(super) spreader: Spreader,
}

/// A port, by its name, and what is known of it.
struct ObservedPort {
    name: String,
    known: Option<Known>,
}

struct Known {
    shape: Shape,
    queues: PortQueues,
    /// When everything was asked.
    asked: Duration,
    /// What was wrong then, as sentences.
    troubles: Vec<String>,
    spreads: Option<Spreads>,
    /// Why it is to be asked again over which queues packets are spread, as a sentence.
    untold: Option<String>,
    moderated: Option<Moderated>,
    /// By a worker.
    polled: bool,
}

/// What is told of a device when its queues change.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    ifindex: u32,
    threaded: Option<u8>,
    queues: usize,
}

impl<A: System + Clone> Looker<A> {
    /// For these ports; `file` is where is written down what queues had. What a daemon before changed of others is put back.
    ///
    /// # Errors
    /// /sys cannot be read.
    pub fn new(
        roots: Roots,
        affinity: A,
        ask: Box<dyn Ask>,
        wanted: Arc<CoresSettings>,
        experimental: Experimental,
        ports: &[String],
        file: PathBuf,
    ) -> io::Result<Looker<A>> {
        let port = |name: &String| ObservedPort { name: name.clone(), known: None };
        let mut looker = Looker {
            every: LOOK,
            online: online(&roots)?,
            machine: Arc::new(Machine::observe(&roots)?),
            scanner: Scanner::new(
                affinity.clone(),
                std::process::id(),
                wanted.serve.as_deref().and_then(|directory| serve::path(&roots, directory)),
            ),
            roots,
            affinity,
            ask,
            ports: ports.iter().map(port).collect(),
            workloads: Arc::default(),
            balancer: (None, None),
            originals: Originals::read(file),
            serve: wanted.serve.as_deref().map(Serve::new),
            local: (experimental.local == LocalDelivery::Follow).then(Local::default),
            moderation: experimental.moderation.map(|longest| Moderation::new(longest.0)),
            deferring: None,
            resume: wanted.resume_us().map(Resume::new),
            splitter: Splitter::default(),
            spreader: Spreader::default(),
            wanted,
            experimental,
            leftovers: Vec::new(),
        };
        looker.find_workloads();
        let (roots, affinity) = (&looker.roots, &looker.affinity);
        looker.leftovers =
            looker.originals.put_back_unwanted(roots, affinity, ports, &looker.wanted, experimental);
        Ok(looker)
    }

    /// Looks at everything; `thoroughly`: somebody has missed something. Takes milliseconds, and on large machines more.
    pub fn look(&mut self, now: Duration, thoroughly: bool) -> CoresSnapshot {
        let mut troubles = self.leftovers.clone();
        if thoroughly && let Err(error) = self.originals.forget_gone(&self.roots, &self.affinity) {
            troubles.push(format!("what queues had cannot be written down: {error}"));
        }
        if let Err(error) = self.find_cores() {
            troubles.push(format!("cores: {error}"));
        }
        let (mut queues, mut exits) = (Vec::new(), Vec::new());
        let (mut spreads, mut moderated) = (BTreeMap::new(), BTreeMap::new());
        for port in 0..self.ports.len() {
            self.find_queues(port, now, thoroughly, &mut troubles);
            let Some(known) = &self.ports[port].known else { continue };
            let PortQueues { node, entries, several_tx, .. } = known.queues;
            exits.push(Exit { ifindex: known.shape.ifindex, several: several_tx });
            let found = |&source: &QueueSource| FoundQueue { source, node, entries };
            queues.extend(known.queues.queues.iter().map(found));
            troubles.extend(known.troubles.iter().chain(&known.untold).cloned());
            known.spreads.into_iter().for_each(|found| _ = spreads.insert(port as PortId, found));
            let name = &self.ports[port].name;
            known.moderated.iter().for_each(|found| _ = moderated.insert(name.clone(), found.clone()));
        }
        troubles.extend(self.spreader.troubles(now));
        if let Some(serve) = &mut self.serve {
            troubles.extend(serve.look(&self.roots, &mut self.originals));
        }
        if let Some(resume) = &mut self.resume {
            troubles.extend(resume.look(&self.roots, &mut self.originals));
        }
        if self.wanted.resume_latency.is_some() {
            troubles.extend(self.resume.iter().filter_map(Resume::useless));
        }
        let following = self.follow(&mut troubles);
        if self.scanner.scan(&self.roots, &self.machine.online(), now) {
            self.find_workloads();
        }
        let balancer = self.find_balancer(&queues, now, thoroughly, &mut troubles);
        let (machine, workloads) = (self.machine.clone(), self.workloads.clone());
        let served = self.serve.as_ref().and_then(Serve::set).cloned();
        troubles.extend(self.split(now));
        let ports = (0..).zip(&self.ports).filter(|(_, port)| port.known.is_some());
        let may_split = self.experimental.split && self.splitter.may_split(ports.map(|(id, _)| id));
        if may_split {
            let mut cores = self.machine.online();
            if let Some(allowed) = &self.wanted.allowed {
                cores.retain(|core| allowed.0.contains(core));
            }
            troubles.extend(self.splitter.make_ready(&cores));
        }
        let parts = self.splitter.threads(&self.roots);
        CoresSnapshot {
            began: now,
            machine,
            queues,
            exits,
            workloads,
            served,
            following,
            balancer,
            parts,
            may_split,
            spreads,
            moderated,
            awake: self.resume.as_ref().map(Resume::held).unwrap_or_default(),
            troubles,
        }
    }

    /// Lets local delivery follow, if it shall.
    fn follow(&mut self, troubles: &mut Vec<String>) -> Option<Following> {
        let there = self.ports.iter().filter(|port| port.known.is_some()).map(|port| port.name.as_str());
        let (following, new) = self.local.as_mut()?.look(&self.roots, &mut self.originals, there);
        troubles.extend(new);
        Some(following)
    }

    /// Queues are split as was decided; what cannot be done, as sentences.
    pub fn split(&self, now: Duration) -> Vec<String> {
        self.splitter.apply(now, &self.machine)
    }

    /// Spreads packets of a port over as many queues as was decided at this time; says what came of it.
    pub fn resize(&mut self, at: Duration, resize: &Resize) -> Option<Happened> {
        let ObservedPort { name, known } = self.ports.get_mut(usize::from(resize.port))?;
        let known = known.as_mut()?;
        let ifindex = known.shape.ifindex;
        let told = self.spreader.resize(name, ifindex, at, resize);
        if let Ok(spreads) = self.spreader.look(name, ifindex) {
            known.spreads = spreads;
        }
        told
    }

    /// Gives applications the cores that a plan leaves.
    pub fn serve(&mut self, view: &View, plan: &Plan) {
        let Some(serve) = &mut self.serve else { return };
        if let Some(may) = serve.may() {
            serve.give(serving(view, plan, may));
        }
    }

    /// Lets these cores wake up quickly, and no others; what could not be put back, as sentences.
    pub fn keep_awake(&mut self, cores: &BTreeSet<CoreId>) -> Vec<String> {
        let Some(resume) = &mut self.resume else { return Vec::new() };
        resume.set(&self.roots, &self.affinity, &mut self.originals, cores)
    }

    /// Lets what is sent on the TX queue of a queue's number follow it to a core.
    pub fn transmit_from(&self, queue: QueueId, core: CoreId) {
        if let Some(port) = self.ports.get(usize::from(queue.port)) {
            apply::transmit_from(&self.roots, &port.name, queue.index, core);
        }
    }

    /// Nobody polls ports any more. Says what could not be put back.
    pub fn end_deferring(&mut self) -> Vec<String> {
        let Looker { roots, affinity, originals, deferring, .. } = self;
        deferring.as_mut().map(|deferring| deferring.end(roots, affinity, originals)).unwrap_or_default()
    }

    /// Everything that was changed is as it was. Says what could not be put back.
    pub fn put_back(&mut self) -> Vec<String> {
        let mut troubles = self.originals.put_back(&self.roots, &self.affinity);
        troubles.extend(self.spreader.end());
        troubles
    }

    fn find_cores(&mut self) -> io::Result<()> {
        let online = online(&self.roots)?;
        if online != self.online {
            self.machine = Arc::new(Machine::observe(&self.roots)?);
            self.online = online;
        }
        Ok(())
    }

    /// A port that cannot be read keeps the queues that it had; one that is not there may come later.
    fn find_queues(&mut self, port: usize, now: Duration, thoroughly: bool, troubles: &mut Vec<String>) {
        let known = self.ports[port].known.take();
        let name = self.ports[port].name.clone();
        let found = self.shape(&name).and_then(|shape| {
            let polled = self.deferring.as_ref().is_some_and(|deferring| deferring.has(shape.ifindex));
            let fresh = known.as_ref().filter(|known| {
                let is_recent = now.saturating_sub(known.asked) < THOROUGH && !known.queues.is_incomplete();
                known.shape == shape && known.polled == polled && !thoroughly && is_recent
            });
            if let Some(known) = fresh
                && let Some(sources) = self.places(&known.queues.queues)?
            {
                let queues = PortQueues { queues: sources, ..known.queues.clone() };
                let (mut spreads, mut untold) = (known.spreads, known.untold.clone());
                if untold.is_some() {
                    (spreads, untold) = self.spreads(&name, shape.ifindex, Some(known));
                }
                let (troubles, moderated) = (known.troubles.clone(), known.moderated.clone());
                return Ok(Known { queues, troubles, spreads, untold, moderated, ..*known });
            }
            let told = self.ask.told(shape.ifindex, &name)?;
            let mut queues = PortQueues::observe(&self.roots, port as PortId, &name, &told)?;
            let mut troubles = self.note(&name, &mut queues.queues);
            troubles.extend(self.no_floor(&name, &queues.queues));
            let (spreads, untold) = self.spreads(&name, shape.ifindex, known.as_ref());
            let moderated = self.moderate(&name, shape.ifindex, &told);
            if let Some(Moderated::By(set)) = moderated {
                troubles.extend(overflows(&self.roots, &name, told.entries, set));
            }
            Ok(Known { shape, queues, asked: now, troubles, spreads, untold, moderated, polled })
        });
        self.ports[port].known = match found {
            Ok(found) => Some(found),
            // It may go in the middle of a look.
            Err(error) if super::is_gone(&error) || error.kind() == io::ErrorKind::NotFound => {
                if let Some(known) = known {
                    let ifindex = known.shape.ifindex;
                    self.spreader.let_go(&name, ifindex);
                    // One that is there, but answers nothing now, has what it had.
                    if self.ask.ifindex(&name).ok() != Some(ifindex) {
                        self.moderation.iter_mut().for_each(|moderation| moderation.forget(ifindex));
                        self.deferring.iter_mut().for_each(|deferring| deferring.forget(ifindex));
                    }
                }
                None
            }
            Err(error) => {
                troubles.push(format!("queues of {name}: {error}"));
                known
            }
        };
    }

    /// How a port spreads packets: as far as is known; and why it is not known better.
    fn spreads(
        &mut self,
        name: &str,
        ifindex: u32,
        known: Option<&Known>,
    ) -> (Option<Spreads>, Option<String>) {
        match self.spreader.look(name, ifindex) {
            Ok(spreads) => (spreads, None),
            Err(why) => {
                let before = known.filter(|known| known.shape.ifindex == ifindex);
                (before.and_then(|known| known.spreads), Some(why))
            }
        }
    }

    fn moderate(&mut self, device: &str, ifindex: u32, told: &NetdevQueues) -> Option<Moderated> {
        let port = Asked { device, ifindex, told };
        let Looker { roots, affinity, originals, moderation, deferring, .. } = self;
        match moderation {
            Some(moderation) => Some(moderation.look(roots, affinity, originals, &port)),
            None => deferring.as_mut()?.look(roots, affinity, originals, &port),
        }
    }

    fn shape(&self, device: &str) -> io::Result<Shape> {
        let directory = self.roots.device(device);
        let ifindex = self.ask.ifindex(device)?;
        let queues = numbered(&directory.join("queues"), "rx-").len();
        Ok(Shape { ifindex, threaded: number(&directory.join("threaded")), queues })
    }

    /// The same queues, where they are now; `None`: something is not there any more.
    fn places(&self, queues: &[QueueSource]) -> io::Result<Option<Vec<QueueSource>>> {
        queues.iter().map(|queue| self.place(queue)).collect()
    }

    fn place(&self, queue: &QueueSource) -> io::Result<Option<QueueSource>> {
        let (core, confined) = match queue.control {
            Control::Thread { pid } => {
                let Some(allowed) = super::unless_gone(self.affinity.allowed(pid))? else { return Ok(None) };
                match (allowed.len(), allowed.cores().next()) {
                    (1, only) => (only, true),
                    _ => (threads::stat(&self.roots, pid)?.map(|stat| stat.last_core), false),
                }
            }
            Control::Interrupt { irq } | Control::None { why: Obstacle::InterruptManaged { irq } } => {
                let Some(place) = irqs::place(&self.roots, irq) else { return Ok(None) };
                (place.core, place.allowed.len() == 1)
            }
            Control::None { .. } => (queue.core, queue.confined),
        };
        Ok(Some(QueueSource { core, confined, ..*queue }))
    }

    /// Writes down what queues have that may be moved. Those for which that fails may not be, for the reasons returned.
    fn note(&mut self, device: &str, queues: &mut [QueueSource]) -> Vec<String> {
        let mut troubles = Vec::new();
        if self.wanted.policy == PlacementPolicy::Off {
            return troubles;
        }
        let floor = self.wanted.floor.is_some();
        for queue in queues.iter_mut().filter(|queue| !matches!(queue.control, Control::None { .. })) {
            let index = queue.id.index;
            let noted = self.originals.note(&self.roots, &self.affinity, device, index, queue.control, floor);
            if let Err(error) = noted {
                troubles.push(format!(
                    "queue {index} of {device} is not moved: what it has cannot be written down: {error}"
                ));
                queue.control = Control::None { why: Obstacle::Unnoted };
            } else if floor && let Err(error) = self.make_usual(queue.control) {
                troubles
                    .push(format!("applications have no floor beside queue {index} of {device}: {error}"));
            }
        }
        troubles
    }

    /// A real-time thread leaves applications nothing, whatever its `nice`.
    fn make_usual(&self, control: Control) -> io::Result<()> {
        let Control::Thread { pid } = control else { return Ok(()) };
        match self.affinity.urgency(pid)? {
            Urgency { policy: libc::SCHED_OTHER, .. } => Ok(()),
            Urgency { nice, .. } => self.affinity.set_urgency(pid, Urgency::usual(nice)),
        }
    }

    /// Says where applications can be left no floor.
    fn no_floor(&self, device: &str, queues: &[QueueSource]) -> Option<String> {
        let has_none = queues.iter().any(|queue| !matches!(queue.control, Control::Thread { .. }));
        (self.wanted.floor.is_some() && has_none).then(|| {
            format!(
                "applications have no floor beside queues of {device}: softirqs poll them, which go before all threads \
                 (echo 1 > /sys/class/net/{device}/threaded)"
            )
        })
    }

    /// Looks for irqbalance, where it could move what we place.
    fn find_balancer(
        &mut self,
        queues: &[FoundQueue],
        now: Duration,
        thoroughly: bool,
        troubles: &mut Vec<String>,
    ) -> Option<Arc<Balancer>> {
        let irq = |queue: &FoundQueue| match queue.source.control {
            Control::Interrupt { irq } => Some(irq),
            _ => None,
        };
        let mut irqs = queues.iter().filter_map(irq).peekable();
        if irqs.peek().is_none() || self.wanted.policy == PlacementPolicy::Off {
            return None;
        }
        let (looked, found) = &mut self.balancer;
        if thoroughly || looked.is_none_or(|looked| now.saturating_sub(looked) >= BALANCER) {
            (*looked, *found) = (Some(now), Balancer::find(&self.roots).map(Arc::new));
        }
        let found = found.clone()?;
        troubles.extend(found.trouble(irqs));
        Some(found)
    }

    fn find_workloads(&mut self) {
        // Numbers that no process has.
        let declared = (0..).zip(&self.wanted.workloads).map(|(nth, declared)| Workload {
            id: u32::MAX - nth,
            name: declared.name.clone(),
            kind: WorkloadKind::Declared,
            cores: declared.cores.0.clone(),
        });
        let all = workloads::merge(self.scanner.workloads(), &declared.collect::<Vec<_>>());
        self.workloads = Arc::new(all);
    }
}

/// The list of cores online, as the kernel writes it.
fn online(roots: &Roots) -> io::Result<String> {
    fs::read_to_string(roots.sys("devices/system/cpu/online"))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{fake::Fake, tree::Tree},
        *,
    };
    use std::sync::{
        Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    };

    /// Counts how often it is asked for everything.
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
            let looker =
                Looker::new(tree.roots(), fake, ask, wanted, Experimental::default(), &["eth0".into()], file)
                    .unwrap();
            World { tree, looker, asked, ifindex }
        }

        /// How often everything was asked in a look after so many seconds.
        fn look(&mut self, second: u64) -> (u32, CoresSnapshot) {
            let before = self.asked.load(Relaxed);
            let found = self.looker.look(Duration::from_secs(second), false);
            (self.asked.load(Relaxed) - before, found)
        }
    }

    #[test]
    fn everything_is_asked_when_something_has_changed_and_each_ten_seconds() {
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
    fn where_queues_are_is_asked_each_time() {
        let mut world = World::new("m.cores");
        let places = |found: CoresSnapshot| -> Vec<(Option<CoreId>, bool)> {
            found.queues.iter().map(|queue| (queue.source.core, queue.source.confined)).collect()
        };
        assert_eq!(places(world.look(0).1), [(Some(1), false); 2]);
        world.looker.affinity.get().of.insert(71, [5].into());
        assert_eq!(places(world.look(1).1), [(Some(1), false), (Some(5), true)]);
        // A thread has ended: its successor is asked for at once.
        world.looker.affinity.get().of.remove(&70);
        world.tree.remove("proc/70");
        let (asked, found) = world.look(2);
        assert_eq!(asked, 1);
        assert!(matches!(found.queues[0].source.control, Control::None { .. }), "{found:?}");
    }

    #[test]
    fn cores_are_looked_at_when_others_are_online() {
        let mut world = World::new("m.cores");
        let first = world.look(0).1.machine;
        assert!(Arc::ptr_eq(&first, &world.look(1).1.machine));
        world.tree.write("sys/devices/system/cpu/online", "0-3\n");
        assert_eq!(world.look(2).1.machine.online(), [0, 1, 2, 3].into());
        world.tree.remove("sys/devices/system/cpu");
        let (_, found) = world.look(3);
        assert_eq!((found.machine.cores.len(), found.troubles.len()), (4, 1), "{:?}", found.troubles);
    }

    #[test]
    fn irqbalance_is_warned_of_where_queues_have_interrupts() {
        let mut world = World::new("m.cores");
        world.tree.thread(812, 812, "irqbalance", false, "0-7", 0);
        let (_, found) = world.look(0);
        assert_eq!((found.balancer, found.troubles), (None, vec![]), "it moves no threads");
        world.tree.write("sys/class/net/eth0/threaded", "0\n");
        world.tree.hardware("eth0", "", 0, &[38, 39]);
        world.tree.irq(38, "eth0-TxRx-0", "0-7", "5");
        world.tree.irq(39, "eth0-TxRx-1", "0-7", "5");
        world.tree.write("proc/812/cmdline", "irqbalance\0--banirq=39\0");
        let (_, found) = world.look(1);
        assert!(found.troubles[0].starts_with("irqbalance (process 812) moves interrupts of queues"));
        assert!(found.troubles[0].contains("--banirq=38 ("), "{:?}", found.troubles);
        world.tree.write("proc/812/cmdline", "irqbalance\0--banirq=39\0-i38\0");
        assert_eq!(world.looker.look(Duration::from_secs(2), true).troubles, Vec::<String>::new());
    }

    #[test]
    fn what_cannot_be_written_down_is_not_moved() {
        let mut world = World::new("nowhere/m.cores");
        for second in 0..2 {
            let found = world.look(second).1;
            let unnoted = Control::None { why: Obstacle::Unnoted };
            assert!(found.queues.iter().all(|queue| queue.source.control == unnoted), "{found:?}");
            assert_eq!(found.troubles.len(), 2);
            assert!(
                found.troubles[0].starts_with("queue 0 of eth0 is not moved: what it has cannot be written")
            );
        }
    }
}
