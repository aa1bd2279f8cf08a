//! One control period: measures queues and cores, lets the allocator decide, and moves queues.

use super::{
    CoreId, QueueId, Roots,
    affinity::Scheduling,
    apply::{self, MoveError},
    drain::Drains,
    exchange::{News, QueueNow, Snapshot},
    look::CoresSnapshot,
    machine::CoreSite,
    queues::Control,
    shares::Sharing,
    splitting::{Shared, SplitQueues, split_queues},
    watched::Watched,
    workloads,
};
use crate::{
    base::{clock::monotonic, priority::Urgency},
    config::{CoresSettings, PlacementPolicy},
    linux::{observer::Waker, spreading::Spreads},
    plane::{Helped, Polls, Slept, Spilled, SplitSeat},
};
use helping::Helping;
use logic::{
    cores::{
        Allocator, Awake, Event, Floor, Help, Plan, Policy, Settings, View,
        in_use::{self, InUse},
    },
    plan::PortId,
};
use measured::Measured;
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
    /// Names, by [`QueueId::port`]. An empty name: no port has this number.
    ports: Arc<[String]>,
    is_off: bool,
    /// The last look.
    found: Option<Arc<CoresSnapshot>>,
    measured: Measured,
    deciding: Deciding,
    last: Round,
    /// `None`: moves wait for nothing.
    pub(super) drains: Option<Drains>,
    pub(super) news: News,
    /// Holds the tables that show which queues were spilled.
    pub(super) seat: SplitSeat,
    /// Shares full cores.
    pub(super) sharing: Sharing,
    /// A thread or an interrupt is gone, or somebody else has moved it, so a thorough look is needed.
    is_something_missed: bool,
    /// The problems since the last look, as sentences.
    conditions: BTreeSet<String>,
}

/// Decides. Remembers earlier decisions and measurements.
struct Deciding {
    settings: Settings,
    /// As configured; `None`: all cores.
    allowed: Option<BTreeSet<CoreId>>,
    allocator: Allocator,
    in_use: InUse,
    /// Decides which cores should wake up quickly, if configured.
    awake: Option<Awake>,
    floor: Option<Floor>,
}

/// The measurements and decisions of the last round.
#[derive(Default)]
struct Round {
    view: View,
    plan: Plan,
    /// Unused queues, each with the queue that has its packets.
    goes_with: BTreeMap<QueueId, QueueId>,
    /// The split queues as last handed over.
    splits: SplitQueues,
    /// The spilled queues that the allocator knows of.
    spilled: BTreeMap<QueueId, Spilled>,
    helping: Helping,
    /// The CPU map that hands packets over.
    map: Option<u32>,
    /// The cores that should wake up quickly, as last handed over.
    kept_awake: BTreeSet<CoreId>,
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
    /// An event of a queue.
    fn to(queue: QueueId, at: Duration, [from, to]: [Vec<CoreId>; 2], why: String) -> Happened {
        Happened { number: 0, at, queue: Some(queue), from, to, why }
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
        let deciding = Deciding {
            settings: settings(wanted, &ports),
            allowed: wanted.allowed.as_ref().map(|allowed| allowed.0.clone()),
            allocator: Allocator::default(),
            in_use: InUse::default(),
            awake: wanted.resume_us().map(|_| Awake::default()),
            floor: wanted.floor.map(|floor| Floor::new(floor.fraction())),
        };
        Ok(Placing {
            measured: Measured::open(&roots)?,
            roots,
            affinity,
            ports,
            is_off: wanted.policy == PlacementPolicy::Off,
            found: None,
            deciding,
            last: Round::default(),
            drains: None,
            news: News::default(),
            seat: SplitSeat::default(),
            sharing: Sharing::default(),
            is_something_missed: false,
            conditions: BTreeSet::new(),
        })
    }

    /// Counts packets and polls from now on.
    pub fn count(&mut self, polls: Polls) {
        self.measured.polls = Some(polls);
    }

    /// The time between two rounds.
    pub fn period(&self) -> Duration {
        let load: f64 = self.last.view.queues.iter().map(|queue| queue.ran + queue.waited).sum();
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
        self.conditions.clear();
        let mut before = std::mem::take(&mut self.measured.queues);
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
                    self.measured.queues.insert(source.id, watched);
                }
                Err(error) => {
                    let condition = format!("{}: {error}", named(&self.ports, source.id));
                    self.conditions.insert(condition);
                }
            }
        }
        self.measured.pinned = workloads::per_core(&found.workloads);
        self.measured.parts.take(&self.roots, &found.parts);
        self.deciding.settings.splits = found.may_split;
        self.deciding.settings.allowed = self.allowed(&found);
        if let Some(drains) = &mut self.drains {
            drains.leave_by(found.exits.clone());
        }
        self.found = Some(found);
        self.measured.share_softirqs();
        self.measured.watch_polls();
    }

    /// Records that a queue was found on another core than Millrace had moved it to.
    fn strays(&mut self, queue: &mut Watched, core: CoreId, found: &CoresSnapshot) {
        let why = queue.strays(found.began, found.balancer.as_deref());
        // The other program may have been started since the last thorough look.
        self.is_something_missed = true;
        let places = [vec![core], Vec::from_iter(queue.source.core)];
        self.news.events.push(Happened::to(queue.source.id, found.began, places, why));
    }

    /// Sleeps while nothing is polled, for [`RESTING`] at most, because rounds would find nothing new.
    pub fn sleep(&mut self, waker: Option<&Waker>) -> Slept {
        if !self.may_rest() {
            return Slept::No;
        }
        self.measured.sleep(RESTING, waker).unwrap_or_else(|error| {
            self.conditions.insert(format!("{error:#}"));
            Slept::No
        })
    }

    /// The cores that may forward now; `None`: all of them.
    fn allowed(&self, found: &CoresSnapshot) -> Option<BTreeSet<CoreId>> {
        let allowed = &self.deciding.allowed;
        if found.kept.is_empty() {
            return allowed.clone();
        }
        let mut cores = allowed.clone().unwrap_or_else(|| found.machine.online());
        cores.retain(|core| !found.kept.contains_key(core));
        Some(cores)
    }

    /// Replaces a measurement after a sleep. Nothing was polled until now, so nothing needs to be read.
    pub fn rest(&mut self, now: Duration) {
        self.measured.queues.values_mut().for_each(|queue| queue.rest(now));
        self.measured.parts.rest(now);
    }

    /// Whether rounds may pause while nothing is polled. They may not while news waits to be handed over, cores have wake-up
    /// limits, or routers are counted. They may not while queues are split, because other cores may have much left to do for
    /// a queue that is no longer polled.
    fn may_rest(&self) -> bool {
        self.found.is_some()
            && self.news.is_empty()
            && self.last.plan.split.is_empty()
            && self.last.spilled.is_empty()
            && self.measured.parts.are_idle()
            && self.last.kept_awake.is_empty()
            && !self.sharing.is_counting()
    }

    /// Measures, decides and applies. `now`: the present time. The results are in `news`.
    pub fn round(&mut self, now: Duration) {
        let began = monotonic();
        let new = self.spilled();
        let shared = self.shared();
        let named = |id| named(&self.ports, id);
        self.is_something_missed |= self.measured.read(now, &shared, named, &mut self.conditions);
        self.last.view = self.view(now, &shared, &new);
        self.last.goes_with = self.goes_with(now);
        in_use::merge(&mut self.last.view, &self.last.goes_with);
        self.share(now);
        self.keep_awake(now);
        if self.is_off {
            return;
        }
        let decision = self.deciding.allocator.decide(now, &self.last.view, &self.deciding.settings);
        self.last.plan = decision.plan;
        in_use::go_along(&mut self.last.plan, &self.last.goes_with);
        self.split(!new.is_empty());
        self.help(now, decision.help);
        self.resize(now);
        let refused = self.apply(now, began);
        self.leave_floor(now);
        let done = decision.events.into_iter().filter(|event| !refused.contains(&event.queue));
        self.news.events.extend(
            done.map(|Event { queue, from, to, why }| Happened::to(queue, now, [from, to], why.to_string())),
        );
    }

    /// The unused queues, which get no packets because the NIC spreads them over fewer queues. Each goes with the queue that
    /// has its packets. Queues that cannot be moved are left out.
    fn goes_with(&self, now: Duration) -> BTreeMap<QueueId, QueueId> {
        let Some(found) = &self.found else { return BTreeMap::new() };
        let with = |(&id, queue): (&QueueId, &Watched)| {
            let Some(Spreads::Over(spread)) = found.spreads.get(&id.port) else { return None };
            let owner = self.measured.queues.get(&QueueId { index: spread.owner(id.index)?, ..id })?;
            let with = self.measured.queues.get(&owner.leader).filter(|with| with.is_measured())?.source.id;
            let is_alone = with != id && with.port == id.port && queue.leader == id;
            (is_alone && queue.is_movable(now)).then_some((id, with))
        };
        self.measured.queues.iter().filter_map(with).collect()
    }

    /// Decides which cores should wake up quickly.
    fn keep_awake(&mut self, now: Duration) {
        let Some(awake) = &mut self.deciding.awake else { return };
        let cores = awake.decide(now, &self.last.view, self.deciding.settings.hold);
        if cores != self.last.kept_awake {
            self.news.awake = Some(cores.clone());
            self.last.kept_awake = cores;
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
        let resizes = self.deciding.in_use.decide(
            now,
            &self.last.view,
            &self.last.plan,
            &ports,
            &self.deciding.settings,
        );
        self.news.resizes.extend(resizes.into_iter().map(|resize| (now, resize)));
    }

    /// Records which queues were spilled. Returns, for each, the cores that began to help since the last round.
    fn spilled(&mut self) -> BTreeMap<QueueId, Vec<CoreId>> {
        let all = self.seat.try_get().and_then(|splits| splits.spilled());
        // If another thread is changing queues, the next round sees the new ones.
        let Some(all) = all else { return BTreeMap::new() };
        let known = std::mem::replace(&mut self.last.spilled, all.clone());
        let new = |(queue, Spilled { cores, number }): (QueueId, Spilled)| {
            let before = known.get(&queue).filter(|known| known.number == number);
            let before = before.map_or(0, |known| known.cores.len());
            (cores.len() > before).then(|| (queue, cores[before..].to_vec()))
        };
        all.into_iter().filter_map(new).collect()
    }

    /// The split and spilled queues.
    fn shared(&mut self) -> Shared {
        let mut queues = self.last.plan.split.clone();
        for (queue, spilled) in &self.last.spilled {
            queues.entry(*queue).or_default().extend(&spilled.cores);
        }
        queues.values_mut().for_each(|cores| {
            cores.sort_unstable();
            cores.dedup();
        });
        // While another thread has the tables, the map stays.
        let map = self.seat.try_get().map_or(self.last.map, |splits| splits.map_in_force());
        let before = std::mem::replace(&mut self.last.map, map);
        // The threads of another map are not known yet.
        self.is_something_missed |= before != map && !queues.is_empty();
        Shared { queues, map }
    }

    /// Hands over who helps which queue, if its core and its NAPI instance are known.
    fn help(&mut self, now: Duration, help: BTreeMap<QueueId, Help>) {
        let helped = |(id, help): (QueueId, Help)| {
            let watched = self.measured.queues.get(&id)?;
            let source = watched.source;
            let is_home = |core: &CoreId| source.confined && self.last.plan.home.get(&id) == Some(core);
            let helped = Helped { home: source.core.filter(is_home)?, napi: source.napi?, help };
            Some((id, (watched.load.ran, helped)))
        };
        let wanted = help.into_iter().filter_map(helped).collect();
        let new = self.last.helping.update(now, wanted);
        self.news.help = new.or(self.news.help.take());
    }

    /// Hands over which queues to split. Queues that move together are split together. `is_due`: queues were spilled, so
    /// hands over even if the decision is the same.
    fn split(&mut self, is_due: bool) {
        let is_wanted = |queue| self.last.plan.split.contains_key(queue);
        let is_due = is_due || !self.last.spilled.keys().all(is_wanted);
        let of_leader = split_queues(&self.last.plan);
        let of = |(id, queue): (&QueueId, &Watched)| Some((*id, of_leader.get(&queue.leader)?.clone()));
        let splits: SplitQueues = self.measured.queues.iter().filter_map(of).collect();
        if is_due || splits != self.last.splits {
            self.news.splits = Some(splits.clone());
            self.news.spilled.extend(self.last.spilled.keys());
            self.last.splits = splits;
        }
    }

    /// Shares full cores among routers. The packets that are cut there wanted time, so the queues of these cores count as
    /// if they had waited for all the time that they did not get.
    fn share(&mut self, now: Duration) {
        let is_estimate = |id| self.measured.queues.get(&id).is_some_and(Watched::is_estimate);
        let is_usual =
            |thread| self.affinity.urgency(thread).is_ok_and(|urgency| urgency == Urgency::usual(0));
        let takes_turns = |id| self.measured.queues.get(&id).and_then(Watched::thread).is_some_and(is_usual);
        if let Err(error) = self.sharing.round(now, &self.last.view, is_estimate, takes_turns) {
            self.conditions.insert(format!("full cores cannot be shared: {error:#}"));
        }
        for queue in self.last.view.queues.iter_mut().filter(|queue| self.sharing.is_cutting(queue.core)) {
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
            beside_others: self.deciding.allocator.beside_others(queue.source.id),
            cost: self.deciding.allocator.cost(queue.source.id.port),
            times: queue.times,
            is_estimate: queue.is_estimate(),
            refused: queue.refused(now),
        };
        let other = |site: &CoreSite| Some((site.id, self.measured.others.of(site.id)?));
        let balancer = found.balancer.as_deref();
        let beyond = self.sharing.beyond.iter().map(|core| {
            format!(
                "core {core} receives more packets than it can even drop: routers on it lose packets whatever their shares"
            )
        });
        let conditions = self.conditions.iter().chain(&found.conditions);
        let of_queue =
            |(&id, queue): (&QueueId, &Watched)| queue.condition(&named(&self.ports, id), now, balancer);
        let conditions = conditions.cloned().chain(self.measured.queues.iter().filter_map(of_queue));
        Some(Snapshot {
            at: now,
            period: self.period(),
            view: self.last.view.clone(),
            plan: self.last.plan.clone(),
            queues: self.measured.queues.values().map(queue).collect(),
            helped: self.seat.try_get().and_then(|splits| splits.helped()).unwrap_or_default(),
            others: found.machine.cores.iter().filter_map(other).collect(),
            forwarding_ns: self.measured.forwarding_ns.clone(),
            drained: self.drains.as_ref().map(|drains| drains.told),
            conditions: conditions.chain(beyond).collect(),
            found,
        })
    }

    fn view(&self, now: Duration, shared: &Shared, new: &BTreeMap<QueueId, Vec<CoreId>>) -> View {
        let Some(found) = &self.found else { return View::default() };
        self.measured.view(now, &found.machine, shared, new)
    }

    /// Moves queues that are not where the plan wants them, or that may also run elsewhere. Returns those that the kernel did
    /// not move. `began`: when the round began, by the clock; it may have taken long.
    fn apply(&mut self, now: Duration, began: Duration) -> BTreeSet<QueueId> {
        let is_elsewhere = |(id, core): (&QueueId, &CoreId)| {
            let queue = self.measured.queues.get(id).filter(|queue| queue.is_movable(now))?;
            let is_there = queue.source.core == Some(*core) && queue.source.confined;
            (!is_there).then_some((*id, *core))
        };
        // An unused queue may get packets all the same, from rules that somebody has set on the NIC.
        let is_idle = |(id, _): &(QueueId, CoreId)| {
            self.last.goes_with.contains_key(id)
                && self.measured.queues.get(id).is_some_and(|queue| queue.load.ran == 0.0)
        };
        let moves = self.last.plan.home.iter().filter_map(is_elsewhere);
        let (idle, moves): (Vec<_>, Vec<_>) = moves.partition(is_idle);
        let (mut refused, moved) = (BTreeSet::new(), !moves.is_empty() || !idle.is_empty());
        let mut done = self.go(&by_core(moves), now);
        // Idle queues send nothing, so their moves wait for nothing.
        by_core(idle.into_iter().take(MOST_IDLE))
            .iter()
            .for_each(|(core, queues)| done.extend(self.go_to(*core, queues)));
        let moved_at = now + monotonic().saturating_sub(began);
        for (id, core, result) in done {
            match result {
                Ok(()) => self.is_now_on(id, core, moved_at),
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
            self.measured.share_softirqs();
        }
        refused
    }

    /// Records that a queue was moved, together with those that move with it.
    fn is_now_on(&mut self, leader: QueueId, core: CoreId, now: Duration) {
        for (id, queue) in self.measured.queues.iter_mut().filter(|(_, queue)| queue.leader == leader) {
            queue.is_now_on(core, now);
            self.news.moved.insert(*id, core);
        }
    }

    /// Gives NAPI threads the `nice` that leaves applications their floor.
    fn leave_floor(&mut self, now: Duration) {
        let Some(floor) = &mut self.deciding.floor else { return };
        let threads =
            self.measured.queues.iter().filter(|(_, queue)| queue.thread().is_some()).map(|(id, _)| *id);
        let mut gone = false;
        for (id, nice) in floor.decide(now, &self.last.view, &threads.collect()) {
            let Some(queue) = self.measured.queues.get_mut(&id) else { continue };
            match queue.renice(&self.affinity, nice) {
                Ok(()) => {}
                Err(error) if super::is_gone(&error) => gone = true,
                Err(error) => {
                    let queue = named(&self.ports, id);
                    self.conditions.insert(format!(
                        "applications may get less than their floor beside {queue}: {error}"
                    ));
                }
            }
        }
        self.is_something_missed |= gone;
    }

    /// Records that the kernel did not move a queue.
    fn is_refused(&mut self, id: QueueId, core: CoreId, now: Duration, error: &MoveError) {
        let Some(queue) = self.measured.queues.get_mut(&id) else { return };
        let why = format!("is not moved to core {core}: {error}");
        let at = Vec::from_iter(queue.source.core);
        queue.is_refused(now, why.clone());
        self.news.events.push(Happened::to(id, now, [at.clone(), at], why));
    }
}

fn named(ports: &[String], id: QueueId) -> String {
    format!("queue {} of {}", id.index, ports.get(usize::from(id.port)).map_or("?", String::as_str))
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
        allowed: None,
        high: wanted.high.fraction(),
        low: wanted.low.fraction(),
        hold: wanted.hold.0,
        splits: false,
    }
}

#[cfg(test)]
mod faults;
mod helping;
mod measured;
mod moves;
#[cfg(test)]
mod rss;
#[cfg(test)]
mod tests;
