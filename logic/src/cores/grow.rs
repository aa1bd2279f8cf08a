//! A core that has too much to forward gives queues away, or shares one.

use super::{
    CoreId, QueueId, Settings, Why,
    allocator::{Allocator, Step},
    board::{Board, Item, Spot},
    history::MOMENTS,
};
use std::{borrow::Cow, time::Duration};

impl Allocator {
    /// Relieves cores that were above the high mark in both of the last two periods. A single one may be noise.
    pub(super) fn grow(&mut self, step: &mut Step) {
        for core in step.board.forwarding().collect::<Vec<_>>() {
            if step.board.least(core) > step.settings.high {
                self.relieve(step, core);
            }
        }
    }

    fn relieve(&mut self, step: &mut Step, core: CoreId) {
        let Settings { low, high, .. } = *step.settings;
        let load = step.board.least(core);
        let why = Why::Overload { core, load, high };
        let users = step.board.users(core).map(|(id, item)| (id, item.size()));
        let Some((id, size)) = users.max_by(|a, b| a.1.total_cmp(&b.1)) else { return };
        let is_alone = step.board.has_one(core, high);
        if !is_alone && let Some(moves) = self.moves(step, core) {
            moves.into_iter().for_each(|(id, spot)| step.go(id, spot, why));
        } else if size > high
            && step.settings.splits
            && let Some(spot) = split(&mut step.board, id, high)
        {
            step.go(id, spot, Why::Hot { load: size, high });
        } else if step
            .board
            .users(core)
            .any(|(id, _)| self.queues.get(&id).is_some_and(|state| state.is_spilled))
            && let Some(board) = level(&step.board, high - low)
        {
            // These cores have no time left for handing packets on, so queues are whole again.
            let moves = board.items().iter().map(|(id, item)| (*id, item.spot.clone()));
            moves.for_each(|(id, spot)| step.go(id, spot, why));
        } else if let Some((id, to)) = even_out(&step.board, core, high - low) {
            step.go(id, Spot::at(to), why);
        } else {
            let whole = is_alone && !step.settings.splits;
            self.tell(step, id, if whole { Why::Whole { load } } else { Why::NoRoom { core, load } });
        }
    }

    /// Queues that move to cores below the low mark stay there although the load fluctuates. Only if no core can be
    /// found for that are cores filled to the high mark, and then nothing moves twice in a hold time.
    fn moves(&mut self, step: &Step, core: CoreId) -> Option<Vec<(QueueId, Spot)>> {
        let Settings { low, high, hold, .. } = *step.settings;
        let lately = |at: Option<Duration>| at.is_some_and(|at| step.now.saturating_sub(at) < hold);
        let rested = |id| !self.queues.get(&id).is_some_and(|state| lately(state.moved));
        let moves = shed(&step.board, core, low, |_| true).or_else(|| shed(&step.board, core, high, rested));
        if moves.is_some() || step.now < self.repack_after {
            return moves;
        }
        let board = repack(&step.board, high);
        let pause = if board.is_some() { hold } else { hold / MOMENTS };
        self.repack_after = step.now.saturating_add(pause);
        Some(board?.items().iter().map(|(id, item)| (*id, item.spot.clone())).collect())
    }
}

/// Moves of the fewest queues, small ones first, that bring a core below `goal` and no other above it. `None`: there
/// are none. One core can do no better for a queue that is left alone on it.
fn shed(
    board: &Board,
    core: CoreId,
    goal: f64,
    may: impl Fn(QueueId) -> bool,
) -> Option<Vec<(QueueId, Spot)>> {
    let mut board = Cow::Borrowed(board);
    let mut moves = Vec::new();
    while !board.is_below(core, goal) {
        let loose = board.users(core).filter(|(id, item)| item.is_loose() && may(*id));
        let mut loose: Vec<(QueueId, &Item)> = loose.collect();
        loose.sort_by(|a, b| a.1.size().total_cmp(&b.1.size()));
        let (enough, less): (Vec<_>, Vec<_>) =
            loose.into_iter().partition(|user| board.is_below_without(core, *user, goal));
        let target =
            |(id, item): (QueueId, &Item)| Some((id, board.target(item, goal, |_, other| other != core)?));
        let (id, to) = enough.into_iter().chain(less.into_iter().rev()).find_map(target)?;
        board.to_mut().place(id, Spot::at(to));
        moves.push((id, Spot::at(to)));
    }
    (!moves.is_empty()).then_some(moves)
}

/// Places all queues again, the largest first, each on the first core with room (first-fit decreasing). `None`: some
/// core would be above `goal`.
pub(super) fn repack(board: &Board, goal: f64) -> Option<Board> {
    let mut board = board.clone();
    let loose = board.items().iter().filter(|(_, item)| item.is_loose());
    let mut ids: Vec<(QueueId, f64)> = loose.map(|(id, item)| (*id, item.size())).collect();
    ids.sort_by(|a, b| b.1.total_cmp(&a.1));
    let items: Vec<(QueueId, Item)> =
        ids.iter().filter_map(|(id, _)| Some((*id, board.take(*id)?))).collect();
    for (id, item) in items {
        let home = board.target(&item, goal, |_, _| true)?;
        board.put(id, Item { spot: Spot::at(home), ..item });
    }
    let fits = board.forwarding().all(|core| board.is_below(core, goal));
    fits.then_some(board)
}

/// Places all queues again, the largest first, each on the core with the least load. `None`: the fullest core would
/// have no less load.
fn level(board: &Board, gain: f64) -> Option<Board> {
    let mut after = board.clone();
    let loose = board.items().iter().filter(|(_, item)| item.is_loose());
    let mut items: Vec<(QueueId, Item)> = loose.filter_map(|(id, _)| Some((*id, after.take(*id)?))).collect();
    items.sort_by(|a, b| b.1.size().total_cmp(&a.1.size()));
    for (id, item) in items {
        let load = |core: &CoreId| (after.workloads(*core), after.peak(*core));
        let by_load = |a: &CoreId, b: &CoreId| {
            let (a, b) = (load(a), load(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        };
        let home = after.allowed().min_by(by_load)?;
        after.put(id, Item { spot: Spot::at(home), ..item });
    }
    let fullest = |board: &Board| board.allowed().map(|core| board.peak(core)).fold(0.0, f64::max);
    (fullest(&after) <= fullest(board) - gain).then_some(after)
}

/// The queue shared by the fewest possible cores, at least as many as now.
fn split(board: &mut Board, id: QueueId, goal: f64) -> Option<Spot> {
    let item = board.take(id)?;
    let shares = board.shares(&item, item.spot.cores().count(), goal, |_| true);
    let home = item.spot.home;
    board.put(id, item);
    Some(Spot { home, shares: shares? })
}

/// The move that most lowers the higher of two cores, by at least `gain`. So it is not taken back soon.
fn even_out(board: &Board, core: CoreId, gain: f64) -> Option<(QueueId, CoreId)> {
    let load = board.peak(core);
    let loose = board.users(core).filter(|(_, item)| item.is_loose());
    let moves = loose.flat_map(|(id, item)| {
        let size = item.size();
        let others = board.allowed().filter(|&to| to != core);
        others.map(move |to| (id, to, (load - size).max(board.peak(to) + size)))
    });
    let best = moves.min_by(|a, b| a.2.total_cmp(&b.2)).filter(|(.., higher)| *higher <= load - gain);
    best.map(|(id, to, _)| (id, to))
}
