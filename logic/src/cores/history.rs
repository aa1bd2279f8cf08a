//! What queues wanted over the last hold time, in bounded memory.

use super::{QueueId, measure::Want};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// Parts of a hold time of which one moment each is kept.
const MOMENTS: u32 = 7;

/// The moment when all queues together wanted most, for each seventh of the hold time: at most nine, however long it is.
/// Queues that want much at different times may share a core, so their peaks are not added up.
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
    /// Notes what is wanted now. Returns whether a seventh has just begun.
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
        let total = wants.values().map(|want| want.work).sum();
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

    /// What a queue wanted at each moment; nothing where it was not there.
    pub fn of(&self, queue: QueueId) -> Vec<Want> {
        self.moments.iter().map(|moment| moment.wants.get(&queue).copied().unwrap_or_default()).collect()
    }

    /// How many moments there are.
    pub fn len(&self) -> usize {
        self.moments.len()
    }
}
