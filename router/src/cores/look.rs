//! Looks for cores, the queues of ports, and workloads. This may take long, so it has a thread of its own.
//!
//! Things that seldom change are read seldom. Cores are read when the list of online ones changes. A port is read
//! completely, with what polls each queue, when its number, its mode or the number of its queues has changed, and every
//! [`THOROUGH`]. Each second, only the place of each queue is read. Before a queue is passed on, its original settings
//! are saved (see [`super::originals`]).

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

/// The time between two looks.
pub const LOOK: Duration = Duration::from_secs(1);
/// How often a port is read completely if nothing seems to have changed.
const THOROUGH: Duration = Duration::from_secs(10);
/// How often irqbalance is searched for.
const BALANCER: Duration = Duration::from_secs(60);

/// Asks the kernel about devices in the daemon's network namespace.
pub trait Ask: Send {
    /// The number of a device; an error of the kind `NotFound`: there is no device of this name.
    fn ifindex(&self, device: &str) -> io::Result<u32>;

    /// The kernel's reports about a device's queues.
    fn told(&self, ifindex: u32, device: &str) -> io::Result<NetdevQueues>;
}

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
    pub troubles: Vec<String>,
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
    roots: Roots,
    affinity: A,
    ask: Box<dyn Ask>,
    wanted: Arc<CoresSettings>,
    experimental: Experimental,
    ports: Vec<ObservedPort>,
    /// The list of online cores when the machine was last read.
    online: String,
    machine: Arc<Machine>,
    scanner: Scanner<A>,
    workloads: Arc<Vec<Workload>>,
    /// When irqbalance was last searched for, and the result.
    balancer: (Option<Duration>, Option<Arc<Balancer>>),
    originals: Originals,
    /// The control group of applications, if configured.
    serve: Option<Serve>,
    /// Lets local delivery follow, if configured.
    local: Option<Local>,
    /// Holds interrupts back, if configured.
    moderation: Option<Moderation>,
    /// Keeps interrupts off while workers poll, if configured.
    pub(super) deferring: Option<Deferring>,
    /// Lets forwarding cores wake up quickly, if configured.
    resume: Option<Resume>,
    /// The settings of an earlier daemon that could not be restored, as sentences.
    leftovers: Vec<String>,
    pub(super) splitter: Splitter,
    pub(super) spreader: Spreader,
}

/// A port, by its name, and what is known about it.
struct ObservedPort {
    name: String,
    known: Option<Known>,
}

struct Known {
    shape: Shape,
    queues: PortQueues,
    /// When everything was read.
    asked: Duration,
    /// The problems at that time, as sentences.
    troubles: Vec<String>,
    spreads: Option<Spreads>,
    /// Why its indirection table could not be read, as a sentence. The next look tries again.
    untold: Option<String>,
    moderated: Option<Moderated>,
    /// Whether workers poll it.
    polled: bool,
}

/// The properties of a device that change when its queues change.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    ifindex: u32,
    threaded: Option<u8>,
    queues: usize,
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

    /// Looks at everything. `thoroughly`: reads everything again, because something was missed. Takes milliseconds, and more
    /// on large machines.
    pub fn look(&mut self, now: Duration, thoroughly: bool) -> CoresSnapshot {
        let mut troubles = self.leftovers.clone();
        if thoroughly && let Err(error) = self.originals.forget_gone(&self.roots, &self.affinity) {
            troubles.push(format!("the original settings of queues cannot be saved: {error}"));
        }
        if let Err(error) = self.find_cores() {
            troubles.push(format!("cores cannot be read: {error}"));
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

    /// Lets local delivery follow, if configured.
    fn follow(&mut self, troubles: &mut Vec<String>) -> Option<Following> {
        let there = self.ports.iter().filter(|port| port.known.is_some()).map(|port| port.name.as_str());
        let (following, new) = self.local.as_mut()?.look(&self.roots, &mut self.originals, there);
        troubles.extend(new);
        Some(following)
    }

    /// Splits queues as decided. Returns the failures, as sentences.
    pub fn split(&self, now: Duration) -> Vec<String> {
        self.splitter.apply(now, &self.machine)
    }

    /// Spreads packets of a port over the number of queues that was decided at `at`. Returns an event, if there is one.
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

    /// Gives applications the cores that a plan does not use.
    pub fn serve(&mut self, view: &View, plan: &Plan) {
        let Some(serve) = &mut self.serve else { return };
        if let Some(may) = serve.may() {
            serve.give(serving(view, plan, may));
        }
    }

    /// Lets these cores wake up quickly, and no others. Returns the limits that could not be restored, as sentences.
    pub fn keep_awake(&mut self, cores: &BTreeSet<CoreId>) -> Vec<String> {
        let Some(resume) = &mut self.resume else { return Vec::new() };
        resume.set(&self.roots, &self.affinity, &mut self.originals, cores)
    }

    /// Lets only this core use the TX queue with the number of an RX queue that has moved there.
    pub fn transmit_from(&self, queue: QueueId, core: CoreId) {
        if let Some(port) = self.ports.get(usize::from(queue.port)) {
            apply::transmit_from(&self.roots, &port.name, queue.index, core);
        }
    }

    /// Restores the timers of ports that workers polled. Returns the failures, as sentences.
    pub fn end_deferring(&mut self) -> Vec<String> {
        let Looker { roots, affinity, originals, deferring, .. } = self;
        deferring.as_mut().map(|deferring| deferring.end(roots, affinity, originals)).unwrap_or_default()
    }

    /// Restores everything that was changed. Returns the failures, as sentences.
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

    /// Reads a port. If it cannot be read, it keeps its known queues. If it does not exist, it may appear later.
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
            // The device may vanish during a look.
            Err(error) if super::is_gone(&error) || error.kind() == io::ErrorKind::NotFound => {
                if let Some(known) = known {
                    let ifindex = known.shape.ifindex;
                    self.spreader.let_go(&name, ifindex);
                    // A device that exists, but does not answer now, keeps its state.
                    if self.ask.ifindex(&name).ok() != Some(ifindex) {
                        self.moderation.iter_mut().for_each(|moderation| moderation.forget(ifindex));
                        self.deferring.iter_mut().for_each(|deferring| deferring.forget(ifindex));
                    }
                }
                None
            }
            Err(error) => {
                troubles.push(format!("the queues of {name} cannot be read: {error}"));
                known
            }
        };
    }

    /// How a port spreads packets, and the problem if that cannot be read now. Then the last known value is returned.
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

    /// The same queues, with their present places; `None`: a thread or an interrupt is gone.
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

    /// Saves the original settings of all queues that can be moved. Marks the queues for which that fails as immovable, and
    /// returns the reasons.
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
                    "queue {index} of {device} is not moved: its original settings cannot be saved: {error}"
                ));
                queue.control = Control::None { why: Obstacle::Unnoted };
            } else if floor && let Err(error) = self.make_usual(queue.control) {
                troubles
                    .push(format!("applications have no floor beside queue {index} of {device}: {error}"));
            }
        }
        troubles
    }

    /// Makes a real-time thread a normal one, because `nice` has no effect on a real-time thread.
    fn make_usual(&self, control: Control) -> io::Result<()> {
        let Control::Thread { pid } = control else { return Ok(()) };
        match self.affinity.urgency(pid)? {
            Urgency { policy: libc::SCHED_OTHER, .. } => Ok(()),
            Urgency { nice, .. } => self.affinity.set_urgency(pid, Urgency::usual(nice)),
        }
    }

    /// The problem, as a sentence, if a port has queues beside which applications can have no floor.
    fn no_floor(&self, device: &str, queues: &[QueueSource]) -> Option<String> {
        let has_none = queues.iter().any(|queue| !matches!(queue.control, Control::Thread { .. }));
        (self.wanted.floor.is_some() && has_none).then(|| {
            format!(
                "applications have no floor beside queues of {device}: softirqs poll them, and come before all threads; turn on \
                 threaded NAPI (echo 1 > /sys/class/net/{device}/threaded)"
            )
        })
    }

    /// Searches for irqbalance, if it could move interrupts that Millrace places.
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
        // Declared workloads get ids that no process has.
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

/// The list of online cores, as the kernel writes it.
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
        world.looker.affinity.get().of.insert(71, [5].into());
        assert_eq!(places(world.look(1).1), [(Some(1), false), (Some(5), true)]);
        // A thread has ended, so its successor is searched for at once.
        world.looker.affinity.get().of.remove(&70);
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
        assert_eq!((found.machine.cores.len(), found.troubles.len()), (4, 1), "{:?}", found.troubles);
    }

    #[test]
    fn irqbalance_is_reported_if_queues_have_interrupts() {
        let mut world = World::new("m.cores");
        world.tree.thread(812, 812, "irqbalance", false, "0-7", 0);
        let (_, found) = world.look(0);
        assert_eq!((found.balancer, found.troubles), (None, vec![]), "irqbalance moves no threads");
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
    fn a_queue_whose_original_settings_cannot_be_saved_is_not_moved() {
        let mut world = World::new("nowhere/m.cores");
        for second in 0..2 {
            let found = world.look(second).1;
            let unnoted = Control::None { why: Obstacle::Unnoted };
            assert!(found.queues.iter().all(|queue| queue.source.control == unnoted), "{found:?}");
            assert_eq!(found.troubles.len(), 2);
            assert!(
                found.troubles[0]
                    .starts_with("queue 0 of eth0 is not moved: its original settings cannot be")
            );
        }
    }
}
