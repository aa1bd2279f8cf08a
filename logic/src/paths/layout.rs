//! Which worker has which paths, queues of ports, and TX rings.
//!
//! * A path runs on one worker, because its elements have state of their own. Its packets arrive by every queue of its
//!   ports, so it has an RX ring on each, whichever worker owns the queue.
//! * A queue's fill and completion rings have one owner. The owner stays as long as that worker exists, because another
//!   one would have to take over during traffic, for little gain. A new queue goes to the worker that reads most paths
//!   of the port, because those need no bell then. Among equals it goes to the one with the fewest queues.
//! * Every worker has a TX ring on every port (P1): on the first queue of the port that it owns, or else on one in
//!   turn.

use super::slot::PathId;
use crate::{cores::CoreId, plan::PortId};
use std::collections::{BTreeMap, BTreeSet};

/// A queue of a port.
pub type PortQueue = (PortId, u32);

/// The parts to lay out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The cores that have a worker.
    pub workers: BTreeSet<CoreId>,
    pub queues: BTreeSet<PortQueue>,
    /// The core of each path, which has a worker, and the ports of its packets.
    pub paths: BTreeMap<PathId, (CoreId, BTreeSet<PortId>)>,
}

/// The assignment of queues and rings to workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub owner: BTreeMap<PortQueue, CoreId>,
    /// The RX rings, and the worker that reads each.
    pub rings: BTreeMap<(PortQueue, PathId), CoreId>,
    /// The queue of a port on which each worker sends.
    pub outputs: BTreeMap<(CoreId, PortId), u32>,
}

/// Assigns the parts. `now` is the present layout. The result is the same for the same arguments, and empty without
/// workers.
pub fn lay_out(parts: &Parts, now: &Layout) -> Layout {
    let mut owner: BTreeMap<PortQueue, CoreId> = now
        .owner
        .iter()
        .filter(|(queue, core)| parts.queues.contains(queue) && parts.workers.contains(core))
        .map(|(queue, core)| (*queue, *core))
        .collect();
    for queue in &parts.queues {
        if owner.contains_key(queue) {
            continue;
        }
        let reads =
            |core: CoreId| parts.paths.values().filter(|(c, p)| *c == core && p.contains(&queue.0)).count();
        let owns = |core: CoreId| owner.values().filter(|other| **other == core).count();
        let best =
            parts.workers.iter().copied().min_by_key(|core| (std::cmp::Reverse(reads(*core)), owns(*core)));
        if let Some(best) = best {
            owner.insert(*queue, best);
        }
    }
    let rings = parts.paths.iter().flat_map(|(path, (core, ports))| {
        let of_path = owner.keys().filter(|queue| ports.contains(&queue.0));
        of_path.map(|queue| ((*queue, *path), *core))
    });
    let rings = rings.collect();
    let mut outputs = BTreeMap::new();
    for (turn, core) in parts.workers.iter().enumerate() {
        let ports: BTreeSet<PortId> = owner.keys().map(|queue| queue.0).collect();
        for port in ports {
            let queues: Vec<(u32, CoreId)> = owner
                .iter()
                .filter(|(queue, _)| queue.0 == port)
                .map(|(queue, core)| (queue.1, *core))
                .collect();
            let own = queues.iter().find(|(_, owner)| owner == core);
            let before =
                now.outputs.get(&(*core, port)).filter(|before| queues.iter().any(|(q, _)| q == *before));
            let by_turns = queues.get(turn % queues.len().max(1));
            if let Some(queue) = before.or(own.map(|(q, _)| q)).or(by_turns.map(|(q, _)| q)) {
                outputs.insert((*core, port), *queue);
            }
        }
    }
    Layout { owner, rings, outputs }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(workers: &[CoreId], queues: &[PortQueue], paths: &[(PathId, CoreId, &[PortId])]) -> Parts {
        Parts {
            workers: workers.iter().copied().collect(),
            queues: queues.iter().copied().collect(),
            paths: paths
                .iter()
                .map(|(id, core, ports)| (*id, (*core, ports.iter().copied().collect())))
                .collect(),
        }
    }

    #[test]
    fn one_worker_has_all() {
        let parts = parts(&[3], &[(0, 0), (0, 1), (1, 0)], &[(0, 3, &[0, 1]), (5, 3, &[1])]);
        let layout = lay_out(&parts, &Layout::default());
        assert!(layout.owner.values().all(|core| *core == 3) && layout.owner.len() == 3);
        let rings: Vec<_> = layout.rings.keys().copied().collect();
        assert_eq!(rings, [((0, 0), 0), ((0, 1), 0), ((1, 0), 0), ((1, 0), 5)]);
        assert_eq!(layout.outputs, BTreeMap::from([((3, 0), 0), ((3, 1), 0)]));
    }

    #[test]
    fn queues_are_owned_by_their_readers_and_evenly() {
        let two = [(0, 0), (0, 1), (1, 0), (1, 1)];
        // Worker 1 reads only port 0, worker 2 only port 1.
        let layout = lay_out(&parts(&[1, 2], &two, &[(0, 1, &[0]), (1, 2, &[1])]), &Layout::default());
        assert_eq!(layout.owner, BTreeMap::from([((0, 0), 1), ((0, 1), 1), ((1, 0), 2), ((1, 1), 2)]));
        // Each sends by a queue of its own if it has one, or else by one in turn.
        assert_eq!(layout.outputs, BTreeMap::from([((1, 0), 0), ((1, 1), 0), ((2, 0), 1), ((2, 1), 0)]));
        // Both read both.
        let layout = lay_out(&parts(&[1, 2], &two, &[(0, 1, &[0, 1]), (1, 2, &[0, 1])]), &Layout::default());
        assert_eq!(layout.owner, BTreeMap::from([((0, 0), 1), ((0, 1), 2), ((1, 0), 1), ((1, 1), 2)]));
        assert_eq!(layout.rings.len(), 8);
    }

    #[test]
    fn a_path_that_moves_takes_its_rings_and_nothing_else() {
        let queues = [(0, 0), (1, 0)];
        let before = lay_out(&parts(&[1, 2], &queues, &[(0, 1, &[0]), (1, 2, &[0, 1])]), &Layout::default());
        let after = lay_out(&parts(&[1, 2], &queues, &[(0, 1, &[0]), (1, 1, &[0, 1])]), &before);
        assert_eq!((&after.owner, &after.outputs), (&before.owner, &before.outputs));
        assert_eq!(after.rings[&((0, 0), 1)], 1);
        assert_eq!(before.rings[&((0, 0), 1)], 2);
    }

    #[test]
    fn parts_of_an_ended_worker_go_to_the_remaining_ones() {
        let queues = [(0, 0), (0, 1)];
        let paths: [(PathId, CoreId, &[PortId]); 2] = [(0, 1, &[0]), (1, 2, &[0])];
        let before = lay_out(&parts(&[1, 2], &queues, &paths), &Layout::default());
        assert_eq!(before.owner, BTreeMap::from([((0, 0), 1), ((0, 1), 2)]));
        let after = lay_out(&parts(&[2], &queues, &[(0, 2, &[0]), (1, 2, &[0])]), &before);
        assert!(after.owner.values().chain(after.rings.values()).all(|core| *core == 2));
        assert_eq!(after.outputs, BTreeMap::from([((2, 0), 1)]));
        assert_eq!(lay_out(&parts(&[], &queues, &[]), &before), Layout::default());
        // A port that is gone.
        let gone = lay_out(&parts(&[1, 2], &[(0, 1)], &paths), &before);
        assert_eq!(gone.owner, BTreeMap::from([((0, 1), 2)]));
        assert_eq!(gone.outputs, BTreeMap::from([((1, 0), 1), ((2, 0), 1)]));
    }
}
