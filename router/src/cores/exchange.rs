//! What the threads of placing hand to each other and to clients.
//!
//! | what | from | to |
//! |---|---|---|
//! | [`CoresSnapshot`] | the thread that looks | the one that places |
//! | [`Snapshot`], [`Happened`] | the one that places | clients, and the one that looks, which writes the log |
//! | what it has noticed, as [`Happened`] | the thread that looks | clients |
//! | queues that are split | the one that places | the one that looks, which tells the kernel plane |
//! | which cores forward | the one that places | the one that looks, which lets no other sleep less deep |
//! | over how many queues packets shall be spread | the one that places | the one that looks, which tells NICs |
//! | moved queues | the one that places | the one that looks: transmission follows |
//! | that a thread failed | whoever sees it | clients |
//!
//! The thread that places is urgent, all others are not: on a busy core it would wait long for one of them that has a lock. So it
//! never waits for any ([`Mutex::try_lock`]): what it cannot get or tell now, it does in the next round.

use super::{
    CoreId, QueueId,
    drain::Drained,
    load::{Load, Times},
    look::CoresSnapshot,
    placing::Happened,
    queues::{Obstacle, QueueSource},
    splitting::SplitQueues,
    traffic::TrafficMeter,
};
use crate::linux::observer::Waker;
use logic::cores::{Cost, Plan, View, in_use::Resize};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// Decisions that are remembered.
const MOST_EVENTS: usize = 1024;
/// Of failures: they come once.
const MOST_FAILURES: usize = 8;

/// Everything as it was at the end of one control period.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When that was, since boot.
    pub at: Duration,
    pub period: Duration,
    pub found: Arc<CoresSnapshot>,
    pub view: View,
    pub plan: Plan,
    /// By ascending id.
    pub queues: Vec<QueueNow>,
    /// What other work takes, as a fraction of each core; none of those of which it is not known yet.
    pub others: BTreeMap<CoreId, f64>,
    /// Time that queues ran since the beginning, by the core that they ran on.
    pub forwarding_ns: BTreeMap<CoreId, u64>,
    /// `None`: moves wait for nothing.
    pub drained: Option<Drained>,
    /// What cannot be read or done, as sentences.
    pub troubles: Vec<String>,
}

/// A queue at that time.
#[derive(Clone, Copy, Debug)]
pub struct QueueNow {
    pub source: QueueSource,
    /// The lowest of the queues that are moved with it; itself, if it is that.
    pub leader: QueueId,
    pub load: Load,
    pub traffic: TrafficMeter,
    /// As the allocator sees it; `None`: it is not placed, or costs are not known.
    pub beside_others: Option<f64>,
    pub cost: Option<Cost>,
    pub times: Times,
    pub is_estimate: bool,
    /// Why it is not moved now, although something could.
    pub refused: Option<Obstacle>,
}

/// What a round has done.
#[derive(Debug, Default)]
pub struct News {
    pub events: Vec<Happened>,
    /// Queues and where they are now.
    pub moved: Vec<(QueueId, CoreId)>,
    /// What is split now, if that has changed.
    pub splits: Option<SplitQueues>,
    /// Which cores shall wake up quickly now, if that has changed.
    pub awake: Option<BTreeSet<CoreId>>,
    /// When it was decided over how many queues ports spread packets.
    pub resizes: Vec<(Duration, Resize)>,
}

impl News {
    pub fn is_empty(&self) -> bool {
        let Self { events, moved, splits, awake, resizes } = self;
        events.is_empty() && moved.is_empty() && splits.is_none() && awake.is_none() && resizes.is_empty()
    }
}

#[derive(Default)]
struct Published {
    snapshot: Option<Arc<Snapshot>>,
    events: VecDeque<Happened>,
    /// The number of the last event.
    number: u64,
    moved: Vec<(QueueId, CoreId)>,
    splits: Option<SplitQueues>,
    awake: Option<BTreeSet<CoreId>>,
    resizes: Vec<(Duration, Resize)>,
}

impl Published {
    fn tell(&mut self, events: impl Iterator<Item = Happened>) {
        for happened in events {
            self.number += 1;
            self.events.push_back(Happened { number: self.number, ..happened });
        }
        let forgotten = self.events.len().saturating_sub(MOST_EVENTS);
        self.events.drain(..forgotten);
    }
}

/// See the head of the file.
pub struct Exchange {
    /// Of the thread that places, where it sleeps as nothing is polled; `None`: there was no descriptor for one, and things wait.
    pub waker: Option<Waker>,
    found: Mutex<Option<Arc<CoresSnapshot>>>,
    published: Mutex<Published>,
    failures: Mutex<Vec<String>>,
    is_look_wanted: AtomicBool,
    is_ending: AtomicBool,
}

impl Default for Exchange {
    fn default() -> Exchange {
        Exchange {
            waker: Waker::new().ok(),
            found: Mutex::default(),
            published: Mutex::default(),
            failures: Mutex::default(),
            is_look_wanted: AtomicBool::default(),
            is_ending: AtomicBool::default(),
        }
    }
}

impl Exchange {
    /// From the thread that looks; what was not taken yet is out of date.
    pub fn found(&self, found: Arc<CoresSnapshot>) {
        *lock(&self.found) = Some(found);
        self.wake();
    }

    fn wake(&self) {
        self.waker.iter().for_each(Waker::wake);
    }

    /// To the thread that places.
    pub fn take_found(&self) -> Option<Arc<CoresSnapshot>> {
        try_lock(&self.found)?.take()
    }

    /// From the thread that places; what was told is taken away. Has the other thread something to do?
    pub fn publish(&self, snapshot: Option<Arc<Snapshot>>, news: &mut News) -> bool {
        let Some(mut published) = try_lock(&self.published) else { return false };
        if snapshot.is_some() {
            published.snapshot = snapshot;
        }
        if news.is_empty() {
            return false;
        }
        published.tell(news.events.drain(..));
        published.moved.append(&mut news.moved);
        published.resizes.append(&mut news.resizes);
        published.splits = news.splits.take().or(published.splits.take());
        published.awake = news.awake.take().or(published.awake.take());
        true
    }

    /// From the thread that looks: what it has noticed.
    pub fn tell(&self, noticed: Vec<Happened>) {
        lock(&self.published).tell(noticed.into_iter());
    }

    /// The last one; none before the first round.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        lock(&self.published).snapshot.clone()
    }

    /// Decisions with higher numbers than this, in order; of those, the ones that are still remembered.
    pub fn events(&self, after: u64) -> Vec<Happened> {
        lock(&self.published).events.iter().filter(|happened| happened.number > after).cloned().collect()
    }

    /// Queues that were moved since the last call, each with where it is now.
    pub fn take_moved(&self) -> BTreeMap<QueueId, CoreId> {
        std::mem::take(&mut lock(&self.published).moved).into_iter().collect()
    }

    /// What is split now, if that has changed since the last call.
    pub fn take_splits(&self) -> Option<SplitQueues> {
        lock(&self.published).splits.take()
    }

    /// Which cores shall wake up quickly, if that has changed since the last call.
    pub fn take_awake(&self) -> Option<BTreeSet<CoreId>> {
        lock(&self.published).awake.take()
    }

    /// Over how many queues ports shall spread packets, in the order in which it was decided, since the last call.
    pub fn take_resizes(&self) -> Vec<(Duration, Resize)> {
        std::mem::take(&mut lock(&self.published).resizes)
    }

    /// Something was missed: ports are looked at again, thoroughly.
    pub fn want_look(&self) {
        self.is_look_wanted.store(true, Relaxed);
    }

    pub fn take_look_wanted(&self) -> bool {
        self.is_look_wanted.swap(false, Relaxed)
    }

    /// Both threads shall end.
    pub fn end(&self) {
        self.is_ending.store(true, Relaxed);
        self.wake();
    }

    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Relaxed)
    }

    /// Placing has failed, as a whole or in part, for good; not for the thread that places.
    pub fn fail(&self, failure: String) {
        let mut failures = lock(&self.failures);
        if failures.len() < MOST_FAILURES {
            failures.push(failure);
        }
    }

    /// What has failed for good, as sentences.
    pub fn failures(&self) -> Vec<String> {
        lock(&self.failures).clone()
    }
}

/// What is kept here is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever holds a lock here, the thread that places goes on, and tells later.
    #[test]
    fn nobody_makes_the_thread_that_places_wait() {
        let exchange = Exchange::default();
        let queue = QueueId { port: 0, index: 0 };
        let happened = Happened { queue: Some(queue), ..Happened::default() };
        let mut news =
            News { events: vec![happened.clone()], moved: vec![(queue, 1), (queue, 2)], ..News::default() };
        let held = (exchange.published.lock().unwrap(), exchange.found.lock().unwrap());
        assert!(exchange.take_found().is_none());
        assert!(!exchange.publish(None, &mut news));
        assert_eq!((news.events.len(), news.moved.len()), (1, 2));
        drop(held);
        assert!(exchange.publish(None, &mut news) && news.is_empty());
        assert!(!exchange.publish(None, &mut news), "nothing new");
        exchange.tell(vec![happened.clone()]);
        let numbered = |number| Happened { number, ..happened.clone() };
        assert_eq!(exchange.events(0), [numbered(1), numbered(2)]);
        assert_eq!(exchange.events(1), [numbered(2)]);
        assert_eq!((exchange.take_moved(), exchange.take_moved()), ([(queue, 2)].into(), [].into()));
    }

    #[test]
    fn events_are_remembered_up_to_a_number() {
        let exchange = Exchange::default();
        (0..MOST_EVENTS + 5).for_each(|_| exchange.tell(vec![Happened::default()]));
        let events = exchange.events(0);
        assert_eq!((events.len(), events[0].number), (MOST_EVENTS, 6));
    }
}
