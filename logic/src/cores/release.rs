//! Gives cores back after the others could have carried everything for a hold time.

use super::{
    CoreId, QueueId, Why,
    allocator::Step,
    board::{Board, Item, NEXT_TO_NOTHING, Spot},
    grow::repack,
};
use std::borrow::Cow;

/// Joins queues and gives back as many cores as possible. Returns whether there were any. The step's board has the
/// wants that queues would have had beside others at the moments of the last hold time.
pub(super) fn release(step: &mut Step) -> bool {
    join(step);
    let low = step.settings.low;
    let mut fewest = step.board.clone();
    while let Some(board) = emptied(&fewest, low) {
        fewest = board;
    }
    take_over(step, &fewest, |core| Why::Release { core, low })
}

/// Places all queues again if that takes fewer cores. It moves many queues, so the step's board has the real wants.
pub(super) fn reorder(step: &mut Step) {
    let (low, before) = (step.settings.low, step.board.forwarding().count());
    if step.board.may_be_fewer(low)
        && let Some(board) = repack(&step.board, low)
        && board.forwarding().count() < before
    {
        take_over(step, &board, |_| Why::Repack { low });
    }
}

/// Puts split queues on fewer cores.
fn join(step: &mut Step) {
    let low = step.settings.low;
    let split = step.board.items().iter().filter(|(_, item)| !item.spot.shares.is_empty());
    for id in split.map(|(id, _)| *id).collect::<Vec<_>>() {
        let Some(item) = step.board.take(id) else { continue };
        let home = item.spot.home;
        let used: Vec<CoreId> = item.spot.cores().collect();
        let carries = |core: CoreId| {
            (item.movable || core == home) && step.board.has_room(core, |moment| item.wants[moment].work, low)
        };
        let fewer = || step.board.shares(&item, 2, low, |core| used.contains(&core));
        let alone = used.iter().copied().find(|&core| carries(core)).map(Spot::at);
        let spot = alone.or_else(|| Some(Spot { home, shares: fewer()? }));
        step.board.put(id, item);
        if let Some(spot) = spot.filter(|spot| spot.cores().count() < used.len()) {
            step.go(id, spot, Why::Calm { low });
        }
    }
}

/// The board without an unneeded core: the least preferred forwarding core that can be emptied.
fn emptied(board: &Board, goal: f64) -> Option<Board> {
    let mut cores: Vec<CoreId> = board.forwarding().collect();
    let fewer = board.may_be_fewer(goal);
    let may = |core| fewer || board.workloads(core) > 0 || board.peak(core) <= NEXT_TO_NOTHING;
    cores.retain(|&core| may(core));
    cores.sort_by(|&a, &b| {
        let wanted = board.workloads(b).cmp(&board.workloads(a));
        wanted.then(board.peak(a).total_cmp(&board.peak(b))).then(b.cmp(&a))
    });
    cores.into_iter().find_map(|core| without(board, core, goal))
}

/// The board with a core's queues on others, the largest first.
fn without(board: &Board, core: CoreId, goal: f64) -> Option<Board> {
    let burden = board.workloads(core);
    // A core is added only to leave one with workloads.
    let may = |board: &Board, other: CoreId| {
        let workloads = board.workloads(other);
        other != core && (board.forwards(other) && workloads <= burden || workloads == 0 && burden > 0)
    };
    let mut users: Vec<(QueueId, &Item)> = board.users(core).collect();
    users.sort_by(|a, b| b.1.size().total_cmp(&a.1.size()));
    let mut next = Cow::Borrowed(board);
    for (id, item) in users {
        if !item.is_loose() {
            return None;
        }
        let to = next.target(item, goal, may)?;
        next.to_mut().place(id, Spot::at(to));
    }
    Some(next.into_owned())
}

/// Makes the step's board equal to this one. Returns whether that moved anything.
fn take_over(step: &mut Step, board: &Board, why: impl Fn(CoreId) -> Why) -> bool {
    let before = step.events.len();
    for (id, item) in board.items() {
        let Some(home) = step.board.items().get(id).map(|item| item.spot.home) else { continue };
        step.go(*id, item.spot.clone(), why(home));
    }
    step.events.len() > before
}
