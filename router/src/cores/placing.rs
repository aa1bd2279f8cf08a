//! One control period: what queues and cores did, where queues shall be, moving them.

use super::{
    CoreId, QueueId, Roots,
    affinity::Affinity,
    apply::{self, MoveError},
    load::{CoreTimes, Others},
    machine::Machine,
    originals::Originals,
    queues::{PortQueues, QueueSource, Told},
    watched::Watched,
    workloads::{self, Scanner, Workload, WorkloadKind},
};
use crate::config::{CoresSettings, PlacementPolicy};
use logic::{
    cores::{Allocator, Core, Event, Plan, Policy, Queue, Settings, View},
    plan::PortId,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    path::PathBuf,
    time::Duration,
};

/// How often queues are placed.
const PERIOD: Duration = Duration::from_millis(10);
/// The same while there is next to nothing to forward: a step is still answered within 50 ms.
const IDLE_PERIOD: Duration = Duration::from_millis(20);
/// Of one core.
const IDLE_LOAD: f64 = 0.05;
/// The same where queues are only looked at.
const LOOKING_PERIOD: Duration = Duration::from_millis(100);
/// How often ports, queues and cores are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Decisions that are remembered.
const MOST_EVENTS: usize = 1024;

/// What the kernel tells of a device in the daemon's namespace; an error of the kind `NotFound`: there is none.
pub type Ask = Box<dyn Fn(&str) -> io::Result<Told> + Send>;

/// Queues of some ports, placed on cores.
pub struct Placing<A> {
    roots: Roots,
    affinity: A,
    ask: Ask,
    pub(super) wanted: CoresSettings,
    /// Names, by [`QueueId::port`].
    pub(super) ports: Vec<String>,
    pub(super) machine: Machine,
    pub(super) queues: BTreeMap<QueueId, Watched>,
    scanner: Scanner<A>,
    pub(super) workloads: Vec<Workload>,
    core_times: CoreTimes,
    pub(super) others: Others,
    /// Time that queues ran since the beginning, by the core that they ran on.
    forwarding_ns: BTreeMap<CoreId, u64>,
    settings: Settings,
    allocator: Allocator,
    pub(super) view: View,
    pub(super) plan: Plan,
    pub(super) events: VecDeque<Happened>,
    looked: Option<Duration>,
    originals: Originals,
    /// What failed since the last look, as sentences.
    pub(super) troubles: BTreeSet<String>,
}

/// A decision, and when it was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Happened {
    /// Counts up from 1.
    pub number: u64,
    pub at: Duration,
    pub event: Event,
}

impl<A: Affinity + Clone> Placing<A> {
    /// Of these ports; `file` is where is written down what was changed. Nothing is looked at yet.
    ///
    /// # Errors
    /// /proc or /sys cannot be read.
    pub fn new(
        roots: Roots,
        affinity: A,
        ask: Ask,
        wanted: CoresSettings,
        ports: Vec<String>,
        file: PathBuf,
    ) -> io::Result<Placing<A>> {
        let mut placing = Placing {
            machine: Machine::observe(&roots)?,
            core_times: CoreTimes::open(&roots)?,
            scanner: Scanner::new(affinity.clone(), std::process::id()),
            roots,
            affinity,
            ask,
            wanted,
            ports,
            queues: BTreeMap::new(),
            workloads: Vec::new(),
            others: Others::default(),
            forwarding_ns: BTreeMap::new(),
            settings: Settings::default(),
            allocator: Allocator::default(),
            view: View::default(),
            plan: Plan::default(),
            events: VecDeque::new(),
            looked: None,
            originals: Originals::read(file),
            troubles: BTreeSet::new(),
        };
        placing.settings = placing.settings();
        placing.find_workloads();
        Ok(placing)
    }

    /// Time between two rounds.
    pub fn period(&self) -> Duration {
        let load: f64 = self.view.queues.iter().map(|queue| queue.ran + queue.waited).sum();
        match load {
            _ if self.is_off() => LOOKING_PERIOD,
            ..IDLE_LOAD => IDLE_PERIOD,
            _ => PERIOD,
        }
    }

    fn is_off(&self) -> bool {
        self.wanted.policy == PlacementPolicy::Off
    }

    /// Is it time to look for what there is?
    pub fn is_look_due(&self, now: Duration) -> bool {
        self.looked.is_none_or(|looked| now.saturating_sub(looked) >= LOOK)
    }

    /// Looks for cores, queues and workloads. Takes milliseconds, and on large machines more.
    pub fn look(&mut self, now: Duration) {
        self.looked = Some(now);
        self.troubles.clear();
        self.find_queues(now);
        let online = self.machine.online();
        if self.scanner.scan(&self.roots, &online, now) {
            self.find_workloads();
        }
    }

    /// Observes, decides, applies; `now` as read just before. Returns what was decided anew, and done.
    pub fn round(&mut self, now: Duration) -> Vec<Happened> {
        self.measure(now);
        self.view = self.view();
        if self.is_off() {
            return Vec::new();
        }
        let decision = self.allocator.decide(now, &self.view, &self.settings);
        self.plan = decision.plan;
        let refused = self.apply(now);
        let done = decision.events.into_iter().filter(|event| !refused.contains(&event.queue));
        let first = self.events.back().map_or(1, |last| last.number + 1);
        let happened = (first..).zip(done).map(|(number, event)| Happened { number, at: now, event });
        let happened: Vec<Happened> = happened.collect();
        self.events.extend(happened.iter().cloned());
        self.events.drain(..self.events.len().saturating_sub(MOST_EVENTS));
        happened
    }

    /// Everything that was changed is as it was; nothing is placed any more. Says what could not be put back.
    pub fn end(&mut self) -> Vec<String> {
        self.wanted.policy = PlacementPolicy::Off;
        self.originals.put_back(&self.roots, &self.affinity)
    }

    /// Cores, and the queues of each port; those that are as they were keep their measurements.
    fn find_queues(&mut self, now: Duration) {
        match Machine::observe(&self.roots) {
            Ok(machine) => self.machine = machine,
            Err(error) => self.fail(format!("cores: {error}")),
        }
        let mut before = std::mem::take(&mut self.queues);
        for (port, device) in (0..).zip(self.ports.clone()) {
            let found =
                (self.ask)(&device).and_then(|told| PortQueues::observe(&self.roots, port, &device, &told));
            match found {
                Ok(found) => self.take(found, &mut before, now),
                // A port may come later.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.fail(format!("queues of {device}: {error}"));
                    let (kept, others) =
                        std::mem::take(&mut before).into_iter().partition(|(id, _)| id.port == port);
                    before = others;
                    self.queues.extend::<BTreeMap<_, _>>(kept);
                }
            }
        }
        self.share_softirqs();
    }

    fn take(&mut self, found: PortQueues, before: &mut BTreeMap<QueueId, Watched>, now: Duration) {
        for source in found.queues {
            let id = source.id;
            let known = before.remove(&id).filter(|known| known.is_polled_as(&source));
            let watched = match known {
                Some(known) => Ok(known.seen_again(source, now)),
                None => Watched::new(&self.roots, source, found.node),
            };
            match watched {
                Ok(watched) => {
                    self.queues.insert(id, watched);
                }
                Err(error) => self.fail(format!("queue {} of {}: {error}", id.index, self.name(id.port))),
            }
        }
    }

    /// Queues of interrupts on one core share what its softirqs took.
    fn share_softirqs(&mut self) {
        let mut on: BTreeMap<CoreId, u16> = BTreeMap::new();
        let estimated = self.queues.values().filter(|queue| queue.is_estimate());
        estimated.filter_map(|queue| queue.source.core).for_each(|core| *on.entry(core).or_default() += 1);
        for queue in self.queues.values_mut() {
            queue.shares(|core| on.get(&core).copied().unwrap_or(1), self.core_times.last());
        }
    }

    fn settings(&self) -> Settings {
        let wanted = &self.wanted;
        let queues_of = |(port, cores): (&crate::config::PortName, &Vec<CoreId>)| {
            let port = self.ports.iter().position(|name| name == port.as_str());
            let port = port.and_then(|port| PortId::try_from(port).ok());
            let queues = (0..).zip(cores.clone());
            port.into_iter()
                .flat_map(move |port| {
                    queues.clone().map(move |(index, core)| (QueueId { port, index }, core))
                })
                .collect::<Vec<_>>()
        };
        Settings {
            policy: match wanted.policy {
                PlacementPolicy::Spread => Policy::Spread,
                PlacementPolicy::Fixed => Policy::Fixed(wanted.fixed.iter().flat_map(queues_of).collect()),
                PlacementPolicy::Pack | PlacementPolicy::Off => Policy::Pack,
            },
            allowed: wanted.allowed.as_ref().map(|allowed| allowed.0.clone()),
            high: wanted.high.fraction(),
            low: wanted.low.fraction(),
            hold: wanted.hold.0,
            splits: false,
        }
    }

    fn find_workloads(&mut self) {
        // Numbers that no process has.
        let declared = (0..).zip(&self.wanted.workloads).map(|(nth, declared)| Workload {
            id: u32::MAX - nth,
            name: declared.name.clone(),
            kind: WorkloadKind::Declared,
            cores: declared.cores.0.clone(),
        });
        self.workloads = workloads::merge(self.scanner.workloads(), &declared.collect::<Vec<_>>());
    }

    /// Reads the time of queues and, when it is due, of cores.
    fn measure(&mut self, now: Duration) {
        let due = self.others.is_due(now);
        let cores = if due { self.core_times.read() } else { Ok(&[][..]) };
        let cores = match cores {
            Ok(cores) => cores,
            Err(error) => {
                self.troubles.insert(format!("time of cores: {error}"));
                &[]
            }
        };
        for (id, queue) in &mut self.queues {
            // Softirqs are counted in steps that are longer than a period.
            if queue.is_estimate() && !due {
                continue;
            }
            match queue.read(now, cores) {
                Ok(Some(ran_ns)) => {
                    let core = queue.source.core.unwrap_or_default();
                    *self.forwarding_ns.entry(core).or_default() += ran_ns;
                }
                // Its successor is looked for in the next round.
                Ok(None) => self.looked = None,
                Err(error) => {
                    let port = &self.ports[usize::from(id.port)];
                    self.troubles.insert(format!("time of queue {} of {port}: {error}", id.index));
                }
            }
        }
        if due && !cores.is_empty() {
            self.others.update(now, cores, &self.forwarding_ns);
        }
    }

    fn view(&self) -> View {
        let pinned = workloads::per_core(&self.workloads);
        let core = |site: &super::machine::CoreSite| Core {
            id: site.id,
            node: site.node,
            physical: site.physical,
            workloads: pinned.get(&site.id).copied().unwrap_or(0),
            other: self.others.of(site.id).unwrap_or(0.0),
        };
        let queue = |(&id, watched): (&QueueId, &Watched)| {
            Some(Queue {
                id,
                node: watched.node,
                core: watched.source.core.filter(|_| watched.is_measured())?,
                movable: watched.is_movable(),
                ran: watched.load.ran,
                waited: watched.load.waited,
                parts: Vec::new(),
            })
        };
        View {
            cores: self.machine.cores.iter().map(core).collect(),
            queues: self.queues.iter().filter_map(queue).collect(),
        }
    }

    /// Moves what is not where the plan has it, or may run elsewhere too; which were not moved.
    fn apply(&mut self, now: Duration) -> BTreeSet<QueueId> {
        let mut refused = BTreeSet::new();
        for (id, core) in self.plan.home.clone() {
            let Some(queue) = self.queues.get(&id).filter(|queue| queue.is_movable()) else { continue };
            if queue.source.core == Some(core) && queue.source.confined {
                continue;
            }
            let device = self.name(id.port).to_owned();
            let source = queue.source.clone();
            match self.move_queue(&device, &source, core) {
                Ok(()) => {
                    if let Some(queue) = self.queues.get_mut(&id) {
                        queue.is_now_on(core);
                    }
                    self.share_softirqs();
                }
                Err(error) => {
                    refused.insert(id);
                    if matches!(error, MoveError::Gone) {
                        self.looked = None;
                        continue;
                    }
                    self.fail(format!("queue {} of {device} is not moved to core {core}: {error}", id.index));
                    if let Some(queue) = self.queues.get_mut(&id) {
                        queue.is_refused(now);
                    }
                }
            }
        }
        refused
    }

    fn move_queue(&mut self, device: &str, source: &QueueSource, core: CoreId) -> Result<(), MoveError> {
        self.originals
            .note(&self.roots, &self.affinity, device, source.id.index, &source.control)
            .map_err(MoveError::Io)?;
        apply::move_queue(&self.roots, &self.affinity, device, source, core).map(drop)
    }

    /// The device of a port.
    pub(super) fn name(&self, port: PortId) -> &str {
        self.ports.get(usize::from(port)).map_or("?", String::as_str)
    }

    fn fail(&mut self, trouble: String) {
        if self.troubles.insert(trouble.clone()) {
            tracing::debug!("{trouble}");
        }
    }
}

#[cfg(test)]
mod tests;
