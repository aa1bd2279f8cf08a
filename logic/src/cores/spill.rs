//! Help within microseconds for queues that fall behind.
//!
//! If the load jumps above what a core carries, a control period is too long: a ring of 256 packets of 1 us fills in
//! a fraction of a millisecond. So the allocator chooses the helpers of each queue in advance, in every period
//! ([`Help`]). The queue's core counts its full polls. After [`Help::full_polls`] of them it shares the flows at once.

use super::{
    CoreId, Event, Policy, Queue, QueueId, Settings, View, Why,
    allocator::{Allocator, QueueState, Step, named},
    board::{Board, Spot},
    measure::fraction,
    split::{BUCKETS, by_quota},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// The most packets of a poll (NAPI_POLL_WEIGHT).
const POLL: f64 = 64.0;
/// A core that took only full polls for about this long has fallen behind.
const BEHIND_NS: f64 = 100_000.0;
/// This many full polls take a whole control period even with cheap packets. Later help would be useless.
const MOST_POLLS: u32 = 256;
/// Cheaper packets are not worth handing on.
const WORTH_NS: f64 = 600.0;
/// A queue that ran for less of a period says little about its packets.
const SAMPLE: f64 = 0.02;
/// The part of a higher cost that one period adds.
const BELIEF: f64 = 1.0 / 64.0;
/// The most cores that help a queue.
pub const HELPERS: usize = 3;
/// A helper must have room for this much of a core.
const ROOM: f64 = 0.5;

/// The cores that help a queue that falls behind, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Help {
    /// One to [`HELPERS`] cores. Each time the queue falls behind, the next one begins to share its flows.
    pub cores: Vec<CoreId>,
    /// The first one helps when the queue's core has taken this many full polls since it last kept up. The next one
    /// helps after at least as many further polls of that core.
    pub full_polls: u32,
}

impl Help {
    /// The core of each bucket when this many helpers share the queue. Each helper halves what the home keeps. With
    /// three helpers, the home keeps nothing.
    pub fn buckets(&self, before: &[CoreId; BUCKETS], home: CoreId, helpers: usize) -> [CoreId; BUCKETS] {
        let helpers = helpers.min(self.cores.len());
        let kept = BUCKETS >> helpers & !(BUCKETS >> HELPERS);
        let cores = self.cores.iter().take(helpers).enumerate();
        let (each, more) = ((BUCKETS - kept) / helpers.max(1), (BUCKETS - kept) % helpers.max(1));
        let others = cores.map(|(at, core)| (*core, each + usize::from(at < more)));
        by_quota(before, &std::iter::once((home, kept)).chain(others).collect::<Vec<_>>())
    }
}

impl Allocator {
    pub(super) fn may_spill(&self, settings: &Settings) -> bool {
        settings.splits && settings.policy == Policy::Pack
    }

    /// The help for each whole queue. A queue has none if no other core has room, or if its packets are cheap or of
    /// unknown cost.
    pub(super) fn help(&self, view: &View, settings: &Settings) -> BTreeMap<QueueId, Help> {
        let board = self.present(view, settings);
        let mut ranks: BTreeMap<CoreId, usize> = BTreeMap::new();
        let mut help = BTreeMap::new();
        for queue in &view.queues {
            let Some(state) = self.queues.get(&queue.id) else { continue };
            let is_worth = self.packet_ns(queue.id).filter(|ns| *ns >= WORTH_NS);
            let Some(packet_ns) = is_worth.filter(|_| state.spot.shares.is_empty()) else { continue };
            // Queues of one core get different helpers, because they fall behind together.
            let rank = ranks.entry(state.spot.home).or_default();
            let cores = helpers(&board, state.spot.home, settings, *rank);
            *rank += 1;
            let first = (BEHIND_NS / (POLL * packet_ns)).ceil().max(1.0) as u32;
            if !cores.is_empty() {
                let full_polls = first.saturating_mul(state.patience).min(MOST_POLLS);
                help.insert(queue.id, Help { cores, full_polls });
            }
        }
        help
    }

    /// The cost of a queue's packets on a busy core, as far as it is known.
    fn packet_ns(&self, queue: QueueId) -> Option<f64> {
        let known = self.costs.of(queue.port).map(|cost| cost.packet_ns);
        known.or_else(|| self.queues.get(&queue)?.packet_ns)
    }

    /// Records which queues were spilled. Returns an event for each change.
    pub(super) fn note_spills(&mut self, now: Duration, view: &View, settings: &Settings) -> Vec<Event> {
        for state in self.queues.values_mut() {
            if state.taken_back.is_some_and(|at| now.saturating_sub(at) >= settings.hold) {
                state.patience = (state.patience / 2).max(1);
                state.taken_back = Some(now).filter(|_| state.patience > 1);
            }
        }
        let mut events = Vec::new();
        for queue in view.queues.iter().filter(|queue| !queue.spilled.is_empty()) {
            let Some(state) = self.queues.get_mut(&queue.id) else { continue };
            if !state.is_spilled && !state.spot.shares.is_empty() {
                continue;
            }
            let home = state.spot.home;
            let mut shares: Vec<CoreId> = state.spot.cores().chain(queue.spilled.iter().copied()).collect();
            shares.sort_unstable();
            shares.dedup();
            // As [`Help::buckets`].
            if shares.len() > HELPERS {
                shares.retain(|core| *core != home);
            }
            let spot = Spot { home, shares }.tidy();
            if spot != state.spot {
                let (from, to) = (named(&state.spot), named(&spot));
                events.push(Event { queue: queue.id, from, to, why: Why::Spilled { core: home } });
                state.needed_help &= state.is_spilled;
                (state.spot, state.is_spilled) = (spot, true);
            }
        }
        events
    }

    /// Puts spilled queues on the board as if they were whole, and records which of them needed help. Returns them.
    pub(super) fn join_spilled(&mut self, step: &mut Step) -> BTreeSet<QueueId> {
        for (id, state) in self.queues.iter().filter(|(_, state)| state.is_spilled) {
            step.board.place(*id, Spot::at(state.spot.home));
        }
        let mut spilled = BTreeSet::new();
        for (id, state) in self.queues.iter_mut().filter(|(_, state)| state.is_spilled) {
            state.needed_help |= step.board.peak(state.spot.home) > step.settings.low;
            spilled.insert(*id);
        }
        spilled
    }

    /// Takes back the flows of spilled queues that fit their home again. The other spilled queues stay shared, unless
    /// they have moved.
    pub(super) fn take_back(&mut self, step: &mut Step, view: &View, spilled: BTreeSet<QueueId>) {
        let high = step.settings.high;
        let is_move = |event: &&Event| event.from != event.to && !matches!(event.why, Why::Spilled { .. });
        let moved: BTreeSet<QueueId> = step.events.iter().filter(is_move).map(|event| event.queue).collect();
        // Homes that a spilled queue has just left. Their other spilled queues become whole again, too, except those that
        // alone are too much for a core.
        let left: BTreeSet<CoreId> =
            spilled.iter().filter(|id| moved.contains(id)).map(|id| self.queues[id].spot.home).collect();
        let peaks: BTreeMap<CoreId, f64> =
            self.queues.values().map(|state| (state.spot.home, step.board.peak(state.spot.home))).collect();
        // What the queues of these homes want is not known yet. It is after a whole period.
        let unknown: BTreeSet<CoreId> = view
            .queues
            .iter()
            .filter(|queue| queue.is_partial || !queue.spilled.is_empty())
            .filter_map(|queue| self.queues.get(&queue.id))
            .map(|state| state.spot.home)
            .collect();
        for id in spilled {
            let Some(state) = self.queues.get_mut(&id) else { continue };
            if moved.contains(&id) {
                // It may have got the cores that it had already.
                (state.is_spilled, state.moved) = (false, Some(step.now));
                continue;
            }
            let home = state.spot.home;
            let is_full = unknown.contains(&home) || peaks.get(&home).is_some_and(|peak| *peak > high);
            let may_stay = state.spot.cores().all(|core| step.board.is_allowed(core));
            let is_too_much = state.recent.iter().any(|want| want.work > high);
            if is_full && may_stay && (is_too_much || !left.contains(&home)) {
                step.board.place(id, state.spot.clone());
                continue;
            }
            let (from, to) = (named(&state.spot), vec![home]);
            step.events.push(Event { queue: id, from, to, why: Why::TakenBack });
            // This does not count as a move, so no hold time follows.
            (state.spot, state.is_spilled) = (Spot::at(home), false);
            if !state.needed_help {
                state.patience = state.patience.saturating_mul(2).min(MOST_POLLS);
                state.taken_back = Some(step.now);
            }
        }
    }
}

impl QueueState {
    /// Notes what a packet costs. A cost that has grown is believed slowly, because packets that wake their core cost more.
    pub(super) fn note_cost(&mut self, queue: &Queue) {
        let Some(counted) = queue.counted.filter(|counted| counted.packets_per_s >= 1.0) else { return };
        let ran = fraction(queue.ran);
        if ran < SAMPLE || !queue.parts.is_empty() || queue.is_partial || !queue.spilled.is_empty() {
            return;
        }
        let ns = ran * 1e9 / counted.packets_per_s;
        let known = self.packet_ns.unwrap_or(ns);
        self.packet_ns = Some(if ns <= known { ns } else { known + (ns - known) * BELIEF });
    }
}

/// The cores with room that help a queue, in order of use. Each queue of a core starts at a different one (`rank`).
fn helpers(board: &Board, home: CoreId, settings: &Settings, rank: usize) -> Vec<CoreId> {
    let has_room = |core: &CoreId| {
        *core != home && board.workloads(*core) == 0 && board.has_room(*core, |_| ROOM, settings.high)
    };
    let mut cores: Vec<CoreId> = board.preferred(|core| has_room(&core));
    let count = cores.len();
    if count > 0 {
        cores.rotate_left(rank % count);
    }
    cores.truncate(HELPERS);
    cores
}
