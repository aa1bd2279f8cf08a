//! Moves queues to their cores, after the packets that they sent before have left.

use super::{
    super::{
        drain::{Leaving, MOST, Outcome},
        running::PRIORITY,
    },
    *,
};
use logic::cores::drain::patience;

/// A queue, its new core, and the result of the move.
type Moved = (QueueId, CoreId, Result<(), MoveError>);

impl<A: Scheduling> Placing<A> {
    /// Moves queues to cores. Returns the results. Queues that the round has no more time to wait for are left out.
    pub(super) fn go(&mut self, moves: &BTreeMap<CoreId, Vec<QueueId>>, now: Duration) -> Vec<Moved> {
        let mut drains = self.drains.take();
        let mut moved = Vec::new();
        if let Some(drains) = &mut drains {
            drains.begin_round();
        }
        for (&core, queues) in moves {
            match &mut drains {
                None => moved.extend(self.go_to(core, queues)),
                Some(drains) if drains.has_time() => moved.extend(self.drained(drains, core, queues, now)),
                Some(_) => break,
            }
        }
        self.drains = drains;
        moved
    }

    /// Moves queues to a core at once.
    pub(super) fn go_to(&self, core: CoreId, queues: &[QueueId]) -> Vec<Moved> {
        let go = |id: &QueueId| {
            let control = self.measured.queues.get(id)?.source.control;
            // The old core must add no more helpers. The other thread prepares help for the new core.
            self.seat.try_get().inspect(|splits| splits.end_help_of(*id));
            Some((*id, core, apply::move_queue(&self.roots, &self.affinity, control, core)))
        };
        queues.iter().filter_map(go).collect()
    }

    /// Moves queues to a core, and waits until earlier packets have left.
    fn drained(
        &mut self,
        drains: &mut Drains,
        core: CoreId,
        queues: &[QueueId],
        now: Duration,
    ) -> Vec<Moved> {
        let found = self.found.iter().flat_map(|found| &found.queues);
        let entries: BTreeMap<QueueId, u32> =
            found.filter_map(|queue| Some((queue.source.id, queue.entries?))).collect();
        let leaving = self.leaving(core, queues);
        let patience = |on| patience(&self.last.view, on, queues, &entries, MOST);
        let (moved, outcome) = drains.around(&self.affinity, &leaving, patience, || self.go_to(core, queues));
        if let Outcome::Remains(why) = outcome {
            let why = format!(
                "moved before all its packets had left its old TX queue, so flows may have been reordered: {why}"
            );
            let told = moved.iter().filter(|(_, _, result)| result.is_ok());
            self.news.events.extend(
                told.map(|(id, core, _)| Happened::to(*id, now, [vec![*core], vec![*core]], why.clone())),
            );
        }
        moved
    }

    /// The queues that can be held up. Only threads with a lower priority than the calling thread can.
    fn leaving(&self, to: CoreId, queues: &[QueueId]) -> Leaving {
        let mut leaving = Leaving { threads: Vec::new(), from: BTreeSet::new(), to, confined: true };
        for queue in queues.iter().filter_map(|id| self.measured.queues.get(id)) {
            if let Some(thread) = queue.thread()
                && self.affinity.urgency(thread).is_ok_and(|urgency| urgency.priority < PRIORITY)
                && let Some(core) = queue.source.core
            {
                leaving.threads.push(thread);
                leaving.from.insert(core);
                leaving.confined &= queue.source.confined;
            }
        }
        leaving
    }
}
