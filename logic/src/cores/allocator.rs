//! The state of an allocator, and the parts that all policies share.

use super::{
    CoreId, Decision, Event, Plan, Policy, Queue, QueueId, Settings, View, Why,
    board::{Board, Item, Spot},
    cost::{Cost, Costs, Doubt},
    history::History,
    measure::{self, Want},
    release,
};
use crate::plan::PortId;
use std::{
    collections::{BTreeMap, BTreeSet},
    mem::{Discriminant, discriminant},
    time::Duration,
};

/// After this time, all flows of a joined queue are back on its home.
const SETTLES: Duration = Duration::from_millis(150);

/// Decides period by period, and keeps the history that it needs: for each queue two periods, and nine moments of the
/// hold time.
#[derive(Debug, Default)]
pub struct Allocator {
    pub(super) queues: BTreeMap<QueueId, QueueState>,
    pub(super) history: History,
    pub(super) costs: Costs,
    doubt: Doubt,
    /// No core is given back before this time.
    pub(super) quiet_until: Duration,
    /// When a core was last given back.
    released: Option<Duration>,
    /// All queues are not placed again before this time.
    pub(super) repack_after: Duration,
    /// Cores that had workloads in the last period.
    burdened: BTreeSet<CoreId>,
    policy: Policy,
}

/// The state of a queue.
#[derive(Debug)]
pub(super) struct QueueState {
    pub spot: Spot,
    movable: bool,
    node: Option<u16>,
    /// Its wants in the last two periods, the older first. It wanted nothing before it was there.
    pub recent: [Want; 2],
    pub moved: Option<Duration>,
    /// Its core has shared its flows with helpers before the allocator decided.
    pub is_spilled: bool,
    /// Whether, without help, its core would have had too much to do in some period since the help began.
    pub needed_help: bool,
    /// When needless help was last taken back, or `patience` was last halved.
    pub taken_back: Option<Duration>,
    /// The factor by which its next help is delayed. It doubles when help was needless.
    pub patience: u32,
    /// The last period in which several cores shared it.
    last_shared: Option<Duration>,
    /// About the least that a packet was seen to cost while the queue was whole.
    pub packet_ns: Option<f64>,
    /// The last reported reason to stay, and when it last held.
    told: Option<(Discriminant<Why>, Duration)>,
}

/// A decision in the making.
pub(super) struct Step<'a> {
    pub now: Duration,
    pub settings: &'a Settings,
    pub board: Board,
    pub events: Vec<Event>,
}

impl Step<'_> {
    /// Places a queue, unless it is already there.
    pub fn go(&mut self, id: QueueId, spot: Spot, why: Why) {
        let Some(item) = self.board.items().get(&id).filter(|item| item.spot != spot) else { return };
        self.events.push(Event { queue: id, from: named(&item.spot), to: named(&spot), why });
        self.board.place(id, spot);
    }
}

pub(super) fn named(spot: &Spot) -> Vec<CoreId> {
    if spot.shares.is_empty() { vec![spot.home] } else { spot.shares.clone() }
}

impl Allocator {
    /// Where queues should be after the control period that ends at `now`, a time that does not go back.
    pub fn decide(&mut self, now: Duration, view: &View, settings: &Settings) -> Decision {
        if self.policy != settings.policy {
            self.policy = settings.policy.clone();
            self.queues.values_mut().for_each(|state| state.told = None);
        }
        let events = self.note_spills(now, view, settings);
        let (seventh_began, strangers) = self.observe(now, view, settings);
        let mut step = Step { now, settings, board: self.present(view, settings), events };
        match &settings.policy {
            Policy::Pack => {
                self.forget_told(&step);
                let spilled = self.join_spilled(&mut step);
                self.evacuate(&mut step);
                self.avoid_workloads(&mut step, &strangers);
                self.grow(&mut step);
                self.take_back(&mut step, view, spilled);
            }
            Policy::Spread => {
                spread(&mut step, view);
                self.evacuate(&mut step);
            }
            Policy::Fixed(homes) => {
                self.fix(&mut step, homes);
                self.evacuate(&mut step);
            }
        }
        self.adopt(&step);
        let mut events = step.events;
        if events.iter().any(|event| matches!(event.why, Why::Overload { .. } | Why::NoRoom { .. })) {
            self.doubt.misses(now, settings.hold);
        }
        if settings.policy == Policy::Pack && seventh_began && now >= self.quiet_until {
            events.append(&mut self.release(now, view, settings));
        }
        self.burdened = burdened(view);
        let help = if self.may_spill(settings) { self.help(view, settings) } else { BTreeMap::new() };
        Decision { plan: self.plan(), events, help }
    }

    /// Joins queues and gives cores back. Returns the events.
    fn release(&mut self, now: Duration, view: &View, settings: &Settings) -> Vec<Event> {
        let mut step =
            Step { now, settings, board: self.past(view, settings, Want::not_alone), events: Vec::new() };
        let given_back = release::release(&mut step);
        self.adopt(&step);
        let measured = self.past(view, settings, |want| want);
        if given_back {
            if measured.forwarding().any(|core| !measured.is_below(core, settings.low)) {
                self.doubt.relies(now);
            }
        } else {
            let mut others = Step { now, settings, board: measured, events: Vec::new() };
            release::reorder(&mut others);
            self.adopt(&others);
            step.events.append(&mut others.events);
        }
        if !step.events.is_empty() {
            self.released = Some(now);
        }
        step.events
    }

    /// The board of the last two periods.
    pub(super) fn present(&self, view: &View, settings: &Settings) -> Board {
        self.board(view, settings, 2, |state, _| state.recent.to_vec())
    }

    /// The board of the last hold time.
    fn past(&self, view: &View, settings: &Settings, wants: impl Fn(Want) -> Want) -> Board {
        let of = |_: &_, id| self.history.of(id).into_iter().map(&wants).collect();
        self.board(view, settings, self.history.len(), of)
    }

    /// The cost of packets of a port. `None`: the measurements do not show it.
    pub fn cost(&self, port: PortId) -> Option<Cost> {
        self.costs.of(port)
    }

    /// The fraction of a core that a queue would want beside others, as last measured. `None`: no such queue.
    pub fn beside_others(&self, queue: QueueId) -> Option<f64> {
        self.queues.get(&queue).map(|state| state.recent[1].beside_others)
    }

    /// Updates the state with measurements. Returns whether a seventh of the hold time began, and which queues are new.
    fn observe(&mut self, now: Duration, view: &View, settings: &Settings) -> (bool, BTreeSet<QueueId>) {
        let shares = |id| self.queues.get(&id).is_none_or(|s| s.spot.shares.contains(&s.spot.home));
        let mut wants = measure::wants(view, shares);
        let is_whole = |queue: &&Queue| self.queues.get(&queue.id).is_none_or(|state| state.is_whole(now));
        self.costs.note(now, view.queues.iter().filter(is_whole));
        if self.doubt.trusts(now) {
            self.costs.apply(&mut wants, view, settings);
        }
        self.queues.retain(|id, _| wants.contains_key(id));
        let mut strangers = BTreeSet::new();
        for queue in &view.queues {
            let state = self.queues.entry(queue.id).or_insert_with(|| {
                strangers.insert(queue.id);
                QueueState::new(queue)
            });
            state.observe(now, queue, wants[&queue.id]);
        }
        if !strangers.is_empty() {
            self.quiet_until = self.quiet_until.max(now.saturating_add(settings.hold));
        }
        // A single noisy period counts half.
        let calm = self.queues.iter().map(|(id, state)| (*id, Want::mean(state.recent[0], state.recent[1])));
        (self.history.note(now, settings.hold, calm.collect()), strangers)
    }

    /// The queues where they are planned to be, with their wants at some moments.
    fn board(
        &self,
        view: &View,
        settings: &Settings,
        moments: usize,
        wants: impl Fn(&QueueState, QueueId) -> Vec<Want>,
    ) -> Board {
        let mut board = Board::new(view, settings, moments);
        for (id, state) in &self.queues {
            let wants = wants(state, *id);
            board
                .put(*id, Item { spot: state.spot.clone(), movable: state.movable, node: state.node, wants });
        }
        board
    }

    /// Makes a step's board the plan.
    fn adopt(&mut self, step: &Step) {
        let mut moved = false;
        for (id, item) in step.board.items() {
            let Some(state) = self.queues.get_mut(id).filter(|state| state.spot != item.spot) else {
                continue;
            };
            state.spot = item.spot.clone();
            state.moved = Some(step.now);
            state.is_spilled = false;
            moved = true;
        }
        if moved {
            let hold = step.settings.hold;
            let quiet = step.now.saturating_add(hold);
            // A core was missed soon after it was given back. The next one waits twice as long, so that on average
            // nothing moves more than once per hold time.
            let missed = self.released.is_some_and(|at| step.now.saturating_sub(at) < hold);
            self.quiet_until = self.quiet_until.max(if missed { quiet.saturating_add(hold) } else { quiet });
        }
    }

    fn plan(&self) -> Plan {
        let split = self.queues.iter().filter(|(_, state)| !state.spot.shares.is_empty());
        Plan {
            home: self.queues.iter().map(|(id, state)| (*id, state.spot.home)).collect(),
            split: split.map(|(id, state)| (*id, state.spot.shares.clone())).collect(),
        }
    }

    /// Reports, once, that a queue stays although it should not.
    pub(super) fn tell(&mut self, step: &mut Step, id: QueueId, why: Why) {
        let (Some(state), Some(item)) = (self.queues.get_mut(&id), step.board.items().get(&id)) else {
            return;
        };
        let before = state.told.replace((discriminant(&why), step.now));
        if before.is_some_and(|(told, _)| told == discriminant(&why)) {
            return;
        }
        let at = named(&item.spot);
        step.events.push(Event { queue: id, from: at.clone(), to: at, why });
    }

    /// Allows the same reason to be reported again after everything was well for a hold time.
    fn forget_told(&mut self, step: &Step) {
        for state in self.queues.values_mut() {
            let Some((_, last)) = &mut state.told else { continue };
            let home = state.spot.home;
            let calm = step.board.peak(home) <= step.settings.low && step.board.workloads(home) == 0;
            if !(calm && step.board.is_allowed(home)) {
                *last = step.now;
            } else if step.now.saturating_sub(*last) >= step.settings.hold {
                state.told = None;
            }
        }
    }

    /// Makes queues leave cores that are offline or may not forward, whatever that does to others.
    fn evacuate(&mut self, step: &mut Step) {
        let ids: Vec<QueueId> = step.board.items().keys().copied().collect();
        for id in ids {
            let item = step.board.items()[&id].clone();
            let can_leave = |core: &CoreId| item.movable || *core != item.spot.home;
            let gone = item.spot.cores().filter(can_leave).find(|&core| !step.board.is_allowed(core));
            let Some(core) = gone else { continue };
            let online = step.board.is_online(core);
            let why = if online { Why::Forbidden { core } } else { Why::Offline { core } };
            let Settings { low, high, .. } = *step.settings;
            let home = if step.board.is_allowed(item.spot.home) || !item.movable {
                Some(item.spot.home)
            } else {
                let target = |goal| step.board.target(&item, goal, |_, _| true);
                target(low).or_else(|| target(high)).or_else(|| step.board.idlest())
            };
            let Some(home) = home else {
                self.tell(step, id, Why::NoCore);
                continue;
            };
            let kept = item.spot.shares.iter().copied().filter(|&core| step.board.is_allowed(core));
            let spot = Spot { home, shares: kept.collect() }.tidy();
            step.go(id, spot, why);
        }
    }

    /// Makes queues leave cores that got a workload, if others have room. The same holds for new queues.
    fn avoid_workloads(&mut self, step: &mut Step, strangers: &BTreeSet<QueueId>) {
        let ids: Vec<QueueId> = step.board.items().keys().copied().collect();
        for id in ids {
            let item = step.board.items()[&id].clone();
            let free = |board: &Board, core| board.workloads(core) == 0;
            let is_new = |core| !self.burdened.contains(&core) || strangers.contains(&id);
            let burden = item.spot.cores().find(|&core| !free(&step.board, core) && is_new(core));
            let Some(core) = burden else { continue };
            let Settings { low, high, .. } = *step.settings;
            let spot = if item.spot.shares.is_empty() {
                let target = |goal| step.board.target(&item, goal, free).filter(|_| item.movable);
                target(low).or_else(|| target(high)).map(Spot::at)
            } else {
                // The home stays. Packets that arrive there are handed on elsewhere.
                step.board.take(id);
                let shares = step.board.shares(&item, 2, high, |core| free(&step.board, core));
                step.board.put(id, item.clone());
                shares.map(|shares| Spot { home: item.spot.home, shares }).filter(|spot| *spot != item.spot)
            };
            match spot {
                Some(spot) => step.go(id, spot, Why::Workload { core }),
                None => self.tell(step, id, Why::WorkloadStays { core }),
            }
        }
    }

    /// Places queues as the policy says.
    fn fix(&mut self, step: &mut Step, homes: &BTreeMap<QueueId, CoreId>) {
        let ids: Vec<(QueueId, Spot, bool)> =
            step.board.items().iter().map(|(id, item)| (*id, item.spot.clone(), item.movable)).collect();
        for (id, spot, movable) in ids {
            match homes.get(&id) {
                Some(&core) if !step.board.is_allowed(core) => self.tell(step, id, Why::Refused { core }),
                Some(&core) if movable => step.go(id, Spot::at(core), Why::Policy),
                _ => step.go(id, Spot::at(spot.home), Why::Policy),
            }
        }
    }
}

impl QueueState {
    /// A new queue begins where it is.
    fn new(queue: &Queue) -> Self {
        let mut shares: Vec<CoreId> = queue.parts.iter().map(|part| part.core).collect();
        if !shares.is_empty() {
            shares.push(queue.core);
        }
        shares.sort_unstable();
        shares.dedup();
        let spot = Spot { home: queue.core, shares }.tidy();
        Self {
            spot,
            movable: true,
            node: None,
            recent: [Want::default(); 2],
            moved: None,
            is_spilled: false,
            needed_help: false,
            taken_back: None,
            patience: 1,
            last_shared: None,
            packet_ns: None,
            told: None,
        }
    }

    /// Whether its core has done all of its work for [`SETTLES`]. The flows of a joined queue come back slowly.
    fn is_whole(&self, now: Duration) -> bool {
        let is_settled = |at| now.saturating_sub(at) > SETTLES;
        self.spot.shares.is_empty() && self.last_shared.is_none_or(is_settled)
    }

    fn observe(&mut self, now: Duration, queue: &Queue, want: Want) {
        (self.movable, self.node) = (queue.movable, queue.node);
        self.recent = [self.recent[1], want];
        if self.is_whole(now) {
            self.note_cost(queue);
        }
        if !self.spot.shares.is_empty() {
            self.last_shared = Some(now);
        }
        if !queue.movable && self.spot.home != queue.core {
            self.spot = Spot { home: queue.core, shares: std::mem::take(&mut self.spot.shares) }.tidy();
        }
    }
}

/// Round robin over all allowed cores.
fn spread(step: &mut Step, view: &View) {
    let cores: Vec<CoreId> = view.cores.iter().map(|c| c.id).filter(|&c| step.board.is_allowed(c)).collect();
    for (queue, &core) in view.queues.iter().zip(cores.iter().cycle()) {
        let home = if queue.movable { core } else { queue.core };
        step.go(queue.id, Spot::at(home), Why::Policy);
    }
}

fn burdened(view: &View) -> BTreeSet<CoreId> {
    view.cores.iter().filter(|core| core.workloads > 0).map(|core| core.id).collect()
}
