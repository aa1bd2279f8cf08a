//! Who helps which queue, as handed over to the thread that prepares it.

use super::QueueId;
use crate::plane::{Helped, PREPARED};
use std::{collections::BTreeMap, time::Duration};

/// New helpers are handed over at most this often, because the cores with room change often. A queue that is new, has
/// moved, or has lost its help does not wait.
const PREPARE: Duration = Duration::from_millis(100);

/// What was handed over last, and when.
#[derive(Default)]
pub struct Helping {
    last: BTreeMap<QueueId, Helped>,
    at: Duration,
}

impl Helping {
    /// Returns the help to hand over, if there is any news: for at most [`PREPARED`] queues, those that have help first,
    /// then the busiest. `wanted`: the help for each queue, with the fraction of the period that the queue ran.
    pub fn update(
        &mut self,
        now: Duration,
        mut wanted: BTreeMap<QueueId, (f64, Helped)>,
    ) -> Option<BTreeMap<QueueId, Helped>> {
        let has_moved = |(id, who): (&QueueId, &Helped)| {
            wanted.get(id).is_none_or(|(_, new)| (new.home, new.napi) != (who.home, who.napi))
        };
        let is_new = self.last.len() < wanted.len().min(PREPARED);
        let is_due = is_new || self.last.iter().any(has_moved) || now.saturating_sub(self.at) >= PREPARE;
        if !is_due {
            return None;
        }
        if wanted.len() > PREPARED {
            // Those that are prepared stay, so that few change.
            let mut order: Vec<(bool, f64, QueueId)> =
                wanted.iter().map(|(id, (ran, _))| (self.last.contains_key(id), *ran, *id)).collect();
            order.sort_by(|a, b| b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)));
            order.drain(PREPARED..).for_each(|(.., id)| drop(wanted.remove(&id)));
        }
        let wanted = wanted.into_iter().map(|(id, (_, who))| (id, who)).collect();
        if wanted == self.last {
            return None;
        }
        (self.last, self.at) = (wanted, now);
        Some(self.last.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logic::cores::Help;

    const MS: Duration = Duration::from_millis(1);

    fn id(index: u16) -> QueueId {
        QueueId { port: 0, index }
    }

    fn who(home: u16, by: u16) -> Helped {
        Helped { home, napi: 500, help: Help { cores: vec![by], full_polls: 1 } }
    }

    fn wanted(queues: &[(u16, f64, Helped)]) -> BTreeMap<QueueId, (f64, Helped)> {
        queues.iter().map(|(index, ran, who)| (id(*index), (*ran, who.clone()))).collect()
    }

    #[test]
    fn changed_helpers_wait_but_queues_that_come_move_or_go_do_not() {
        let mut helping = Helping::default();
        let mut at = |ms: u32, queues: &[(u16, Helped)]| {
            let queues: Vec<_> = queues.iter().map(|(index, who)| (*index, 0.5, who.clone())).collect();
            helping.update(1000 * MS + ms * MS, wanted(&queues)).map(|new| new.len())
        };
        assert_eq!(at(0, &[(0, who(0, 1))]), Some(1));
        assert_eq!(at(10, &[(0, who(0, 2))]), None);
        assert_eq!(at(99, &[(0, who(0, 2))]), None);
        assert_eq!(at(100, &[(0, who(0, 2))]), Some(1));
        assert_eq!(at(210, &[(0, who(0, 2))]), None, "nothing has changed");
        assert_eq!(at(220, &[(0, who(1, 2)), (1, who(0, 1))]), Some(2), "a new queue");
        assert_eq!(at(230, &[(0, who(3, 2)), (1, who(0, 1))]), Some(2), "another home");
        assert_eq!(at(240, &[(1, who(0, 1))]), Some(1), "a queue without help");
        assert_eq!(at(250, &[(1, Helped { napi: 501, ..who(0, 1) })]), Some(1), "another instance");
    }

    #[test]
    fn the_busiest_queues_get_help_and_keep_it() {
        let count = PREPARED as u16;
        let queues = |busiest: u16| -> Vec<_> {
            (0..=count).map(|index| (index, if index == busiest { 0.9 } else { 0.1 }, who(0, 1))).collect()
        };
        let mut helping = Helping::default();
        let first = helping.update(1000 * MS, wanted(&queues(count))).unwrap();
        assert_eq!((first.len(), first.contains_key(&id(count))), (PREPARED, true));
        let left_out = (0..=count).find(|index| !first.contains_key(&id(*index))).unwrap();
        assert_eq!(helping.update(2000 * MS, wanted(&queues(left_out))), None);
        // One of the others goes, so there is room.
        let fewer: Vec<_> = queues(left_out).into_iter().filter(|(index, ..)| *index != count).collect();
        assert!(helping.update(2010 * MS, wanted(&fewer)).unwrap().contains_key(&id(left_out)));
    }
}
