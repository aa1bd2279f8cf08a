//! One control period: measures queues and cores, lets the allocator decide, and moves queues.

use super::{
    CoreId, QueueId, Roots,
    affinity::Scheduling,
    apply::{self, MoveError},
    drain::Drains,
    exchange::{News, QueueNow, Snapshot},
    load::{CoreTimes, Others},
    look::CoresSnapshot,
    machine::CoreSite,
    queues::Control,
    shares::Sharing,
    splitting::{Parts, SplitQueues, split_queues},
    watched::Watched,
    workloads,
};
use crate::{
    base::priority::Urgency,
    config::{CoresSettings, PlacementPolicy},
    linux::{observer::Waker, spreading::Spreads},
    plane::{Polls, Slept},
};
use logic::{
    cores::{
        Allocator, Awake, Core, Event, Floor, Plan, Policy, Queue, Settings, View,
        in_use::{self, InUse},
    },
    plan::PortId,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::Duration,
};

/// The time between two rounds.
pub(super) const PERIOD: Duration = Duration::from_millis(10);
/// The same while there is almost nothing to forward. A step is still answered within 50 ms.
const IDLE_PERIOD: Duration = Duration::from_millis(20);
/// The load below which there is almost nothing to forward, of one core.
const IDLE_LOAD: f64 = 0.05;
/// The time between two rounds while nothing is polled at all.
const RESTING: Duration = Duration::from_millis(200);
/// The time between two rounds if queues are only measured.
const LOOKING_PERIOD: Duration = Duration::from_millis(100);

/// The most unused queues that one round moves, so that the round does not take longer.
const MOST_IDLE: usize = 8;

/// Places the queues of ports on cores.
pub struct Placing<A> {
    roots: Roots,
    affinity: A,
    /// Names, by [`QueueId::port`].
    ports: Arc<[String]>,
    settings: Settings,
    is_off: bool,
    /// The last look.
    found: Option<Arc<CoresSnapshot>>,
    /// The number of workloads pinned to each core that has any.
    pinned: BTreeMap<CoreId, u16>,
    queues: BTreeMap<QueueId, Watched>,
    core_times: CoreTimes,
    others: Others,
    /// The time that queues ran since the start, by the core that they ran on.
    forwarding_ns: BTreeMap<CoreId, u64>,
    /// The counters of packets and polls.
    polls: Option<Polls>,
    /// Why packets and polls are not counted, as a sentence.
    uncounted: Option<String>,
    allocator: Allocator,
    parts: Parts,
    /// The split queues as last handed over.
    splits: SplitQueues,
    in_use: InUse,
    /// Decides which cores should wake up quickly, if configured.
    awake: Option<Awake>,
    /// These cores as last handed over.
    kept_awake: BTreeSet<CoreId>,
    /// Unused queues, each with the queue that has its packets.
    goes_with: BTreeMap<QueueId, QueueId>,
    /// `None`: moves wait for nothing.
    pub(super) drains: Option<Drains>,
    floor: Option<Floor>,
    view: View,
    plan: Plan,
    pub(super) news: News,
    /// Shares full cores.
    pub(super) sharing: Sharing,
    /// A thread or an interrupt is gone, or somebody else has moved it, so a thorough look is needed.
    is_something_missed: bool,
    /// The problems since the last look, as sentences.
    troubles: BTreeSet<String>,
}

/// An event: a decision, or something that was noticed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Happened {
    /// Counts up from 1; 0 before it is published.
    pub number: u64,
    pub at: Duration,
    /// The queue that it is about; `None`: no single queue.
    pub queue: Option<QueueId>,
    /// The cores before it, if it is about cores.
    pub from: Vec<CoreId>,
    /// The cores after it.
    pub to: Vec<CoreId>,
    pub why: String,
}

impl Happened {
    fn decided(at: Duration, Event { queue, from, to, why }: Event) -> Happened {
        Happened { number: 0, at, queue: Some(queue), from, to, why: why.to_string() }
    }
}

impl<A: Scheduling> Placing<A> {
    /// Prepares to place the queues of these ports. They are unknown until [`Placing::take`].
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn new(
        roots: Roots,
        affinity: A,
        wanted: &CoresSettings,
        ports: Arc<[String]>,
    ) -> io::Result<Placing<A>> {
        Ok(Placing {
            core_times: CoreTimes::open(&roots)?,
            settings: settings(wanted, &ports),
            is_off: wanted.policy == PlacementPolicy::Off,
            roots,
            affinity,
            ports,
            found: None,
            pinned: BTreeMap::new(),
            queues: BTreeMap::new(),
            others: Others::default(),
            forwarding_ns: BTreeMap::new(),
            polls: None,
            uncounted: None,
            allocator: Allocator::default(),
            parts: Parts::default(),
            splits: SplitQueues::new(),
            in_use: InUse::default(),
            awake: wanted.resume_us().map(|_| Awake::default()),
            kept_awake: BTreeSet::new(),
            goes_with: BTreeMap::new(),
            drains: None,
            floor: wanted.floor.map(|floor| Floor::new(floor.fraction())),
            view: View::default(),
            plan: Plan::default(),
            news: News::default(),
            sharing: Sharing::default(),
            is_something_missed: false,
            troubles: BTreeSet::new(),
        })
    }

    /// Counts packets and polls from now on.
    pub fn count(&mut self, polls: anyhow::Result<Polls>) {
        match polls {
            Ok(polls) => self.polls = Some(polls),
            Err(error) => self.uncounted = Some(format!("packets of queues are not counted: {error:#}")),
        }
    }

    /// The time between two rounds.
    pub fn period(&self) -> Duration {
        let load: f64 = self.view.queues.iter().map(|queue| queue.ran + queue.waited).sum();
        match load {
            _ if self.sharing.is_counting() => PERIOD,
            _ if self.is_off && !self.sharing.is_enforced() => LOOKING_PERIOD,
            ..IDLE_LOAD => IDLE_PERIOD,
            _ => PERIOD,
        }
    }

    /// Whether there is news to hand over at once.
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Whether something was missed since the last call, so that a look is needed.
    pub fn take_look_wanted(&mut self) -> bool {
        std::mem::take(&mut self.is_something_missed)
    }

    /// Takes over the result of a look. Unchanged queues keep their measurements.
    pub fn take(&mut self, found: Arc<CoresSnapshot>) {
        self.troubles.clear();
        let mut before = std::mem::take(&mut self.queues);
        let mut leaders: BTreeMap<Control, QueueId> = BTreeMap::new();
        for queue in &found.queues {
            let source = queue.source;
            let leader = match source.control {
                Control::None { .. } => source.id,
                control => *leaders.entry(control).or_insert(source.id),
            };
            let known = before.remove(&source.id).filter(|known| known.is_polled_as(&source, leader));
            let watched = match known {
                Some(mut known) => {
                    let strayed = known.seen_again(source, found.began);
                    let online = |core: &CoreId| found.machine.cores.iter().any(|site| site.id == *core);
                    // If the core is offline, the kernel has moved the queue, and not somebody else.
                    if let Some(core) = strayed.filter(online).filter(|_| leader == source.id) {
                        self.strays(&mut known, core, &found);
                    }
                    Ok(known)
                }
                None => Watched::new(&self.roots, source, queue.node, leader),
            };
            match watched {
                Ok(watched) => {
                    self.queues.insert(source.id, watched);
                }
                Err(error) => {
                    let trouble = format!("{}: {error}", self.named(source.id));
                    self.troubles.insert(trouble);
                }
            }
        }
        self.pinned = workloads::per_core(&found.workloads);
        self.parts.take(&self.roots, &found.parts);
        self.settings.splits = found.may_split;
        if let Some(drains) = &mut self.drains {
            drains.leave_by(found.exits.clone());
        }
        self.found = Some(found);
        self.share_softirqs();
        if let Some(polls) = &mut self.polls {
            polls.watch(&self.queues.values().filter_map(|queue| queue.source.napi).collect());
        }
    }

    /// Records that a queue was found on another core than Millrace had moved it to.
    fn strays(&mut self, queue: &mut Watched, core: CoreId, found: &CoresSnapshot) {
        let why = queue.strays(found.began, found.balancer.as_deref());
        // The other program may have been started since the last thorough look.
        self.is_something_missed = true;
        let (from, to) = (vec![core], Vec::from_iter(queue.source.core));
        let queue = Some(queue.source.id);
        self.news.events.push(Happened { number: 0, at: found.began, queue, from, to, why });
    }

    /// Sleeps while nothing is polled, for [`RESTING`] at most, because rounds would find nothing new.
    pub fn sleep(&mut self, waker: Option<&Waker>) -> Slept {
        let may_rest = |polls: &&Polls| self.may_rest() && self.is_still(polls);
        let Some(polls) = self.polls.as_ref().filter(may_rest) else { return Slept::No };
        polls.sleep(RESTING, waker, |polls| self.is_still(polls)).unwrap_or_else(|error| {
            self.troubles.insert(format!("{error:#}"));
            Slept::No
        })
    }

    /// Replaces a measurement after a sleep. Nothing was polled until now, so nothing needs to be read.
    pub fn rest(&mut self, now: Duration) {
        self.queues.values_mut().for_each(|queue| queue.rest(now));
    }

    /// Whether rounds may pause while nothing is polled. They may not while news waits to be handed over, cores have wake-up
    /// limits, or routers are counted. They may not while queues are split, because other cores may have much left to do for
    /// a queue that is no longer polled.
    fn may_rest(&self) -> bool {
        self.found.is_some()
            && self.news.is_empty()
            && self.plan.split.is_empty()
            && self.parts.is_empty()
            && self.kept_awake.is_empty()
            && !self.sharing.is_counting()
    }

    /// Whether no queue took any time in the last period, and none was polled since.
    fn is_still(&self, polls: &Polls) -> bool {
        let is_still =
            |queue: &Watched| queue.leader != queue.source.id || queue.is_still(|napi| polls.of(napi));
        self.queues.values().all(is_still)
    }

    /// Measures, decides and applies. `now`: the present time. The results are in `news`.
    pub fn round(&mut self, now: Duration) {
        self.measure(now);
        self.view = self.view(now);
        self.goes_with = self.goes_with(now);
        in_use::merge(&mut self.view, &self.goes_with);
        self.share(now);
        self.keep_awake(now);
        if self.is_off {
            return;
        }
        let decision = self.allocator.decide(now, &self.view, &self.settings);
        self.plan = decision.plan;
        in_use::go_along(&mut self.plan, &self.goes_with);
        self.split();
        self.resize(now);
        let refused = self.apply(now);
        self.leave_floor(now);
        let done = decision.events.into_iter().filter(|event| !refused.contains(&event.queue));
        self.news.events.extend(done.map(|event| Happened::decided(now, event)));
    }

    /// The unused queues, which get no packets because the NIC spreads them over fewer queues. Each goes with the queue that
    /// has its packets. Queues that cannot be moved are left out.
    fn goes_with(&self, now: Duration) -> BTreeMap<QueueId, QueueId> {
        let Some(found) = &self.found else { return BTreeMap::new() };
        let with = |(&id, queue): (&QueueId, &Watched)| {
            let Some(Spreads::Over(spread)) = found.spreads.get(&id.port) else { return None };
            let owner = self.queues.get(&QueueId { index: spread.owner(id.index)?, ..id })?;
            let with = self.queues.get(&owner.leader).filter(|with| with.is_measured())?.source.id;
            let is_alone = with != id && with.port == id.port && queue.leader == id;
            (is_alone && queue.is_movable(now)).then_some((id, with))
        };
        self.queues.iter().filter_map(with).collect()
    }

    /// Decides which cores should wake up quickly.
    fn keep_awake(&mut self, now: Duration) {
        let Some(awake) = &mut self.awake else { return };
        let cores = awake.decide(now, &self.view, self.settings.hold);
        if cores != self.kept_awake {
            self.news.awake = Some(cores.clone());
            self.kept_awake = cores;
        }
    }

    /// Decides over how many queues ports should spread their packets.
    fn resize(&mut self, now: Duration) {
        let Some(found) = &self.found else { return };
        let ours = |(port, spreads): (&PortId, &Spreads)| match spreads {
            Spreads::Over(spread) => Some((*port, *spread)),
            Spreads::LeftAlone(..) => None,
        };
        let ports = found.spreads.iter().filter_map(ours).collect();
        let resizes = self.in_use.decide(now, &self.view, &self.plan, &ports, &self.settings);
        self.news.resizes.extend(resizes.into_iter().map(|resize| (now, resize)));
    }

    /// Hands over which queues to split. Queues that move together are split together.
    fn split(&mut self) {
        let of_leader = split_queues(&self.plan);
        let of = |(id, queue): (&QueueId, &Watched)| Some((*id, of_leader.get(&queue.leader)?.clone()));
        let splits: SplitQueues = self.queues.iter().filter_map(of).collect();
        if splits != self.splits {
            self.news.splits = Some(splits.clone());
            self.splits = splits;
        }
    }

    /// Shares full cores among routers. The packets that are cut there wanted time, so the queues of these cores count as
    /// if they had waited for all the time that they did not get.
    fn share(&mut self, now: Duration) {
        let is_estimate = |id| self.queues.get(&id).is_some_and(Watched::is_estimate);
        let is_usual =
            |thread| self.affinity.urgency(thread).is_ok_and(|urgency| urgency == Urgency::usual(0));
        let takes_turns = |id| self.queues.get(&id).and_then(Watched::thread).is_some_and(is_usual);
        if let Err(error) = self.sharing.round(now, &self.view, is_estimate, takes_turns) {
            self.troubles.insert(format!("full cores cannot be shared: {error:#}"));
        }
        for queue in self.view.queues.iter_mut().filter(|queue| self.sharing.is_cutting(queue.core)) {
            queue.waited = queue.waited.max(1.0 - queue.ran);
        }
    }

    /// The present state; `None` before the first look.
    pub fn snapshot(&self, now: Duration) -> Option<Snapshot> {
        let found = self.found.clone()?;
        let queue = |queue: &Watched| QueueNow {
            source: queue.source,
            leader: queue.leader,
            load: queue.load,
            traffic: queue.traffic,
            beside_others: self.allocator.beside_others(queue.source.id),
            cost: self.allocator.cost(queue.source.id.port),
            times: queue.times,
            is_estimate: queue.is_estimate(),
            refused: queue.refused(now),
        };
        let other = |site: &CoreSite| Some((site.id, self.others.of(site.id)?));
        let balancer = found.balancer.as_deref();
        let beyond = self.sharing.beyond.iter().map(|core| {
            format!(
                "core {core} receives more packets than it can even drop: routers on it lose packets whatever their shares"
            )
        });
        let troubles = self.troubles.iter().chain(&found.troubles).chain(&self.uncounted).cloned();
        let of_queue = |(&id, queue): (&QueueId, &Watched)| queue.trouble(&self.named(id), now, balancer);
        let troubles = troubles.chain(self.queues.iter().filter_map(of_queue));
        Some(Snapshot {
            at: now,
            period: self.period(),
            view: self.view.clone(),
            plan: self.plan.clone(),
            queues: self.queues.values().map(queue).collect(),
            others: found.machine.cores.iter().filter_map(other).collect(),
            forwarding_ns: self.forwarding_ns.clone(),
            drained: self.drains.as_ref().map(|drains| drains.told),
            troubles: troubles.chain(beyond).collect(),
            found,
        })
    }

    /// Divides the softirq time of each core among the queues with interrupts there.
    fn share_softirqs(&mut self) {
        let mut on: BTreeMap<CoreId, u16> = BTreeMap::new();
        let estimated = self.queues.values().filter(|queue| queue.is_estimate());
        estimated.filter_map(|queue| queue.source.core).for_each(|core| *on.entry(core).or_default() += 1);
        for queue in self.queues.values_mut() {
            queue.shares(|core| on.get(&core).copied().unwrap_or(1), self.core_times.last());
        }
    }

    /// Reads the times of queues and, if it is due, of cores.
    fn measure(&mut self, now: Duration) {
        let due = self.others.is_due(now);
        let cores = if due { self.core_times.read() } else { Ok(&[][..]) };
        let cores = match cores {
            Ok(cores) => cores,
            Err(error) => {
                self.troubles.insert(format!("the times of cores cannot be read: {error}"));
                &[]
            }
        };
        for (id, queue) in &mut self.queues {
            let napi = queue.source.napi.filter(|_| queue.leader == *id);
            let polled = self.polls.as_ref().zip(napi).and_then(|(polls, napi)| polls.of(napi));
            queue.traffic.read(now, polled);
            // The kernel counts softirqs in steps that are longer than a period.
            if queue.is_estimate() && !due {
                continue;
            }
            match queue.read(now, cores) {
                Ok(Some(ran_ns)) => {
                    let core = queue.source.core.unwrap_or_default();
                    *self.forwarding_ns.entry(core).or_default() += ran_ns;
                }
                Ok(None) => self.is_something_missed = true,
                Err(error) => {
                    let port = &self.ports[usize::from(id.port)];
                    self.troubles
                        .insert(format!("the time of queue {} of {port} cannot be read: {error}", id.index));
                }
            }
        }
        self.parts.read(now, &mut self.forwarding_ns);
        if due && !cores.is_empty() {
            self.others.update(now, cores, &self.forwarding_ns);
        }
    }

    /// The measurements for the allocator. The lowest of the queues that move together stands for all of them.
    fn view(&self, now: Duration) -> View {
        let Some(found) = &self.found else { return View::default() };
        let core = |site: &CoreSite| Core {
            id: site.id,
            node: site.node,
            physical: site.physical,
            workloads: self.pinned.get(&site.id).copied().unwrap_or(0),
            other: self.others.of(site.id).unwrap_or(0.0),
        };
        let queue = |(&id, watched): (&QueueId, &Watched)| {
            let core = watched.source.core.filter(|_| watched.is_measured())?;
            Some(Queue {
                id,
                node: watched.node,
                core,
                movable: watched.is_movable(now),
                ran: watched.load.ran,
                waited: watched.load.waited,
                counted: watched.counted(),
                parts: self.parts.of(id, core, &self.plan),
            })
        };
        View {
            cores: found.machine.cores.iter().map(core).collect(),
            queues: self.queues.iter().filter_map(queue).collect(),
        }
    }

    /// Moves queues that are not where the plan wants them, or that may also run elsewhere. Returns those that the kernel did
    /// not move.
    fn apply(&mut self, now: Duration) -> BTreeSet<QueueId> {
        let is_elsewhere = |(id, core): (&QueueId, &CoreId)| {
            let queue = self.queues.get(id).filter(|queue| queue.is_movable(now))?;
            let is_there = queue.source.core == Some(*core) && queue.source.confined;
            (!is_there).then_some((*id, *core))
        };
        // An unused queue may get packets all the same, from rules that somebody has set on the NIC.
        let is_idle = |(id, _): &(QueueId, CoreId)| {
            self.goes_with.contains_key(id) && self.queues.get(id).is_some_and(|queue| queue.load.ran == 0.0)
        };
        let moves = self.plan.home.iter().filter_map(is_elsewhere);
        let (idle, moves): (Vec<_>, Vec<_>) = moves.partition(is_idle);
        let (mut refused, moved) = (BTreeSet::new(), !moves.is_empty() || !idle.is_empty());
        let mut done = self.go(&by_core(moves), now);
        // Idle queues send nothing, so their moves wait for nothing.
        by_core(idle.into_iter().take(MOST_IDLE))
            .iter()
            .for_each(|(core, queues)| done.extend(self.go_to(*core, queues)));
        for (id, core, result) in done {
            match result {
                Ok(()) => self.is_now_on(id, core, now),
                Err(error) => {
                    refused.insert(id);
                    // The core may just have gone offline.
                    self.is_something_missed |= matches!(error, MoveError::Gone | MoveError::Core { .. });
                    if !matches!(error, MoveError::Gone) {
                        self.is_refused(id, core, now, &error);
                    }
                }
            }
        }
        if moved {
            self.share_softirqs();
        }
        refused
    }

    /// Records that a queue was moved, together with those that move with it.
    fn is_now_on(&mut self, leader: QueueId, core: CoreId, now: Duration) {
        for (id, queue) in self.queues.iter_mut().filter(|(_, queue)| queue.leader == leader) {
            queue.is_now_on(core, now);
            self.news.moved.push((*id, core));
        }
    }

    /// Gives NAPI threads the `nice` that leaves applications their floor.
    fn leave_floor(&mut self, now: Duration) {
        let Some(floor) = &mut self.floor else { return };
        let threads = self.queues.iter().filter(|(_, queue)| queue.thread().is_some()).map(|(id, _)| *id);
        let mut gone = false;
        for (id, nice) in floor.decide(now, &self.view, &threads.collect()) {
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            match queue.renice(&self.affinity, nice) {
                Ok(()) => {}
                Err(error) if super::is_gone(&error) => gone = true,
                Err(error) => {
                    let port = &self.ports[usize::from(id.port)];
                    self.troubles.insert(format!(
                        "applications may get less than their floor beside queue {} of {port}: {error}",
                        id.index
                    ));
                }
            }
        }
        self.is_something_missed |= gone;
    }

    /// Records that the kernel did not move a queue.
    fn is_refused(&mut self, id: QueueId, core: CoreId, now: Duration, error: &MoveError) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let why = format!("is not moved to core {core}: {error}");
        let at = Vec::from_iter(queue.source.core);
        queue.is_refused(now, why.clone());
        self.news.events.push(Happened {
            number: 0,
            at: now,
            queue: Some(id),
            from: at.clone(),
            to: at,
            why,
        });
    }

    fn named(&self, id: QueueId) -> String {
        format!("queue {} of {}", id.index, self.ports.get(usize::from(id.port)).map_or("?", String::as_str))
    }
}

fn by_core(moves: impl IntoIterator<Item = (QueueId, CoreId)>) -> BTreeMap<CoreId, Vec<QueueId>> {
    let mut all: BTreeMap<CoreId, Vec<QueueId>> = BTreeMap::new();
    moves.into_iter().for_each(|(id, core)| all.entry(core).or_default().push(id));
    all
}

/// The settings of the allocator, from the configuration.
fn settings(wanted: &CoresSettings, ports: &[String]) -> Settings {
    let queues_of = |(port, cores): (&crate::base::PortName, &Vec<CoreId>)| {
        let port = ports.iter().position(|name| name == port.as_str());
        let port = port.and_then(|port| PortId::try_from(port).ok());
        let queues = (0..).zip(cores.clone());
        port.into_iter()
            .flat_map(move |port| queues.clone().map(move |(index, core)| (QueueId { port, index }, core)))
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

#[cfg(test)]
mod faults;
mod moves;
#[cfg(test)]
mod rss;
#[cfg(test)]
mod tests;
