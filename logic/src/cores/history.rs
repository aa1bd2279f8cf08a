//! What queues wanted over the last hold time, in bounded memory.

use super::{QueueId, measure::Want};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// The number of parts of a hold time. One moment of each part is kept.
pub(super) const MOMENTS: u32 = 7;

/// For each seventh of the hold time, the moment when all queues together wanted most on cores that others keep busy.
/// There are at most nine moments, however long the hold time is. Queues that want much at different times may share a
/// core, so their peaks are not added up.
#[derive(Debug, Default)]
pub(super) struct History {
    moments: VecDeque<Moment>,
}

#[derive(Debug)]
struct Moment {
    /// When its seventh began.
    began: Duration,
    total: f64,
    wants: BTreeMap<QueueId, Want>,
}

impl History {
    /// Notes the present wants. Returns whether a seventh has just begun.
    pub fn note(&mut self, now: Duration, hold: Duration, wants: BTreeMap<QueueId, Want>) -> bool {
        let seventh = hold / MOMENTS;
        let ended = |moment: &Moment| moment.began.saturating_add(seventh) <= now;
        while self
            .moments
            .front()
            .is_some_and(|m| m.began.saturating_add(seventh).saturating_add(hold) <= now)
        {
            self.moments.pop_front();
        }
        let total = wants.values().map(|want| want.beside_others).sum();
        match self.moments.back_mut().filter(|moment| !ended(moment)) {
            Some(moment) => {
                if total > moment.total {
                    (moment.total, moment.wants) = (total, wants);
                }
                false
            }
            None => {
                self.moments.push_back(Moment { began: now, total, wants });
                true
            }
        }
    }

    /// The want of a queue at each moment; zero if it was not there.
    pub fn of(&self, queue: QueueId) -> Vec<Want> {
        self.moments.iter().map(|moment| moment.wants.get(&queue).copied().unwrap_or_default()).collect()
    }

    /// The number of moments.
    pub fn len(&self) -> usize {
        self.moments.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_millis(700);
    const QUEUES: [QueueId; 2] = [QueueId { port: 0, index: 0 }, QueueId { port: 0, index: 1 }];

    fn wants(works: [f64; 2]) -> BTreeMap<QueueId, Want> {
        let wants = works.map(|work| Want { work, beside_others: work, handing: 0.0 });
        QUEUES.into_iter().zip(wants).collect()
    }

    fn works(history: &History, queue: usize) -> Vec<f64> {
        history.of(QUEUES[queue]).iter().map(|want| want.work).collect()
    }

    #[test]
    fn each_seventh_keeps_its_worst_moment() {
        let mut history = History::default();
        let series =
            [(0, [0.1, 0.5]), (50, [0.6, 0.1]), (90, [0.0, 0.6]), (100, [0.3, 0.3]), (199, [0.2, 0.2])];
        let began = series.map(|(ms, works)| history.note(Duration::from_millis(ms), HOLD, wants(works)));
        assert_eq!(began, [true, false, false, true, false]);
        assert_eq!(works(&history, 0), [0.6, 0.3]);
        assert_eq!(works(&history, 1), [0.1, 0.3]);
    }

    /// A peak counts for the whole hold time after its seventh, and then no more.
    #[test]
    fn wants_older_than_the_hold_time_are_forgotten() {
        let mut history = History::default();
        for ms in (0..3000).step_by(10) {
            history.note(Duration::from_millis(ms), HOLD, wants([if ms == 1000 { 0.9 } else { 0.1 }, 0.0]));
            let expected = if (1000..1800).contains(&ms) { 0.9 } else { 0.1 };
            assert_eq!(works(&history, 0).into_iter().reduce(f64::max), Some(expected), "{ms}");
            assert!(history.len() <= 9);
        }
    }
}
