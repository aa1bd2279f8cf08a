//! The data that the two threads (`placing`, which places queues, and `cores`, which looks) hand to each other and to
//! clients.
//!
//! | data | from | to |
//! |---|---|---|
//! | [`CoresSnapshot`] | `cores` | `placing` |
//! | [`Snapshot`], [`Happened`] | `placing` | clients, and `cores`, which writes the log |
//! | changes of the machine, as [`Happened`] | `cores` | clients |
//! | split queues, and who helps whole ones | `placing` | `cores`, which sets up the kernel plane |
//! | the cores that forward | `placing` | `cores`, which limits how deep these sleep |
//! | the numbers of queues to spread packets over | `placing` | `cores`, which sets the tables of NICs |
//! | moved queues | `placing` | `cores`, which lets TX queues follow |
//! | failures of a thread | any thread | clients |
//!
//! `placing` has a real-time priority, and all other threads have not. On a busy core it would wait long for another
//! thread that holds a lock. So it never waits for a lock ([`try_locked`]). It hands over in the next round what it
//! cannot hand over now.

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
use crate::{
    base::guard::{locked, try_locked},
    linux::observer::Waker,
    plane::Helped,
};
use logic::cores::{Cost, Plan, View, in_use::Resize};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// The number of events that are kept.
const MOST_EVENTS: usize = 1024;
/// The number of failures that are kept. Each occurs only once.
const MOST_FAILURES: usize = 8;

/// The state at the end of one control period.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The end of the period, since boot.
    pub at: Duration,
    pub period: Duration,
    pub found: Arc<CoresSnapshot>,
    pub view: View,
    pub plan: Plan,
    /// By ascending id.
    pub queues: Vec<QueueNow>,
    /// For each queue, the cores that would help it at once. Empty if the tables were just changing.
    pub helped: BTreeMap<QueueId, Vec<CoreId>>,
    /// The fraction of each core's time that other work takes; cores for which it is not known yet are left out.
    pub others: BTreeMap<CoreId, f64>,
    /// The time that queues ran since the start, by the core that they ran on.
    pub forwarding_ns: BTreeMap<CoreId, u64>,
    /// `None`: moves wait for nothing.
    pub drained: Option<Drained>,
    /// Problems that hold now, as sentences.
    pub conditions: Vec<String>,
}

/// A queue in a [`Snapshot`].
#[derive(Clone, Copy, Debug)]
pub struct QueueNow {
    pub source: QueueSource,
    /// The lowest of the queues that are moved together with this one, itself included.
    pub leader: QueueId,
    pub load: Load,
    pub traffic: TrafficMeter,
    /// From the allocator; `None`: the queue is not placed, or costs are not known.
    pub beside_others: Option<f64>,
    pub cost: Option<Cost>,
    pub times: Times,
    pub is_estimate: bool,
    /// Why it is not moved now, although its thread or interrupt is known.
    pub refused: Option<Obstacle>,
}

/// The results of a round.
#[derive(Debug, Default, PartialEq)]
pub struct News {
    pub events: Vec<Happened>,
    /// Moved queues and their new cores.
    pub moved: BTreeMap<QueueId, CoreId>,
    /// The split queues, if they have changed, or if queues were spilled.
    pub splits: Option<SplitQueues>,
    /// The spilled queues that these decisions take into account.
    pub spilled: BTreeSet<QueueId>,
    /// Who helps which queue, if that has changed.
    pub help: Option<BTreeMap<QueueId, Helped>>,
    /// The cores that should wake up quickly, if they have changed.
    pub awake: Option<BTreeSet<CoreId>>,
    /// New numbers of queues for ports to spread packets over, each with the time of the decision.
    pub resizes: Vec<(Duration, Resize)>,
}

impl News {
    pub fn is_empty(&self) -> bool {
        *self == News::default()
    }
}

#[derive(Default)]
struct Published {
    snapshot: Option<Arc<Snapshot>>,
    events: VecDeque<Happened>,
    /// The number of the last event.
    number: u64,
    /// Without events.
    news: News,
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

/// See the head of this file.
#[derive(Default)]
pub struct Exchange {
    /// Wakes the thread that places, which sleeps while nothing is polled; `None`: no descriptor was available, so news
    /// waits until it wakes up.
    pub waker: Option<Waker>,
    /// Wakes the thread that looks; `None`: no descriptor was available, so news waits until it wakes up.
    pub looker: Option<Waker>,
    found: Mutex<Option<Arc<CoresSnapshot>>>,
    published: Mutex<Published>,
    failures: Mutex<Vec<String>>,
    is_look_wanted: AtomicBool,
    is_ending: AtomicBool,
}

impl Exchange {
    pub fn new() -> Exchange {
        Exchange { waker: Waker::new().ok(), looker: Waker::new().ok(), ..Exchange::default() }
    }

    /// An exchange for the threads that replace those of `earlier`. It begins with their events.
    pub fn after(earlier: &Exchange) -> Exchange {
        let Published { events, number, .. } = &*locked(&earlier.published);
        let published = Published { events: events.clone(), number: *number, ..Published::default() };
        Exchange { published: Mutex::new(published), ..Exchange::new() }
    }

    /// For the thread that looks: replaces the last snapshot, even if it has not been taken.
    pub fn found(&self, found: Arc<CoresSnapshot>) {
        *locked(&self.found) = Some(found);
        self.wake();
    }

    fn wake(&self) {
        self.waker.iter().for_each(Waker::wake);
    }

    /// Wakes the thread that looks.
    pub fn wake_looker(&self) {
        self.looker.iter().for_each(Waker::wake);
    }

    /// For the thread that places.
    pub fn take_found(&self) -> Option<Arc<CoresSnapshot>> {
        try_locked(&self.found)?.take()
    }

    /// For the thread that places: hands over a snapshot, and takes the news. Does nothing if the lock is held. Returns
    /// whether the other thread has something to do.
    pub fn publish(&self, snapshot: Option<Arc<Snapshot>>, news: &mut News) -> bool {
        let Some(mut published) = try_locked(&self.published) else { return false };
        if snapshot.is_some() {
            published.snapshot = snapshot;
        }
        if news.is_empty() {
            return false;
        }
        let News { events, moved, splits, spilled, help, awake, resizes } = std::mem::take(news);
        published.tell(events.into_iter());
        let before = &mut published.news;
        before.moved.extend(moved);
        before.resizes.extend(resizes);
        before.spilled.extend(spilled);
        before.splits = splits.or(before.splits.take());
        before.help = help.or(before.help.take());
        before.awake = awake.or(before.awake.take());
        true
    }

    /// For the thread that looks: adds events.
    pub fn tell(&self, noticed: Vec<Happened>) {
        locked(&self.published).tell(noticed.into_iter());
    }

    /// The last snapshot; `None` before the first round.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        locked(&self.published).snapshot.clone()
    }

    /// The kept events with higher numbers than `after`, in order.
    pub fn events(&self, after: u64) -> Vec<Happened> {
        locked(&self.published).events.iter().filter(|happened| happened.number > after).cloned().collect()
    }

    /// The number of the last event; 0: there was none.
    pub fn last_number(&self) -> u64 {
        locked(&self.published).number
    }

    /// The news since the last call, except events.
    pub fn take_news(&self) -> News {
        std::mem::take(&mut locked(&self.published).news)
    }

    /// Asks for a thorough look at all ports, because something was missed.
    pub fn want_look(&self) {
        self.is_look_wanted.store(true, Relaxed);
    }

    pub fn take_look_wanted(&self) -> bool {
        self.is_look_wanted.swap(false, Relaxed)
    }

    /// Ends both threads.
    pub fn end(&self) {
        self.is_ending.store(true, Relaxed);
        self.wake();
        self.wake_looker();
    }

    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Relaxed)
    }

    /// Adds a permanent failure of placing, or of a part of it. The thread that places must not call this, because it waits
    /// for a lock.
    pub fn fail(&self, failure: String) {
        let mut failures = locked(&self.failures);
        if failures.len() < MOST_FAILURES {
            failures.push(failure);
        } else {
            tracing::error!("{failure}");
        }
    }

    /// The permanent failures, as sentences.
    pub fn failures(&self) -> Vec<String> {
        locked(&self.failures).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While another thread holds a lock, the thread that places goes on, and hands its news over later.
    #[test]
    fn a_held_lock_does_not_stop_the_thread_that_places() {
        let exchange = Exchange::new();
        let queue = QueueId { port: 0, index: 0 };
        let happened = Happened { queue: Some(queue), ..Happened::default() };
        let other = QueueId { port: 0, index: 1 };
        let moved = |core| [(queue, core), (other, 3)].into();
        let mut news = News { events: vec![happened.clone()], moved: moved(1), ..News::default() };
        let held = (exchange.published.lock().unwrap(), exchange.found.lock().unwrap());
        assert!(exchange.take_found().is_none());
        assert!(!exchange.publish(None, &mut news));
        assert_eq!((news.events.len(), news.moved.len()), (1, 2));
        drop(held);
        assert!(exchange.publish(None, &mut news) && news.is_empty());
        assert!(exchange.publish(None, &mut News { moved: [(queue, 2)].into(), ..News::default() }));
        assert!(!exchange.publish(None, &mut news), "nothing new");
        exchange.tell(vec![happened.clone()]);
        let numbered = |number| Happened { number, ..happened.clone() };
        assert_eq!(exchange.events(0), [numbered(1), numbered(2)]);
        assert_eq!(exchange.events(1), [numbered(2)]);
        assert_eq!((exchange.take_news().moved, exchange.take_news().moved), (moved(2), [].into()));
    }

    #[test]
    fn events_outlive_the_threads() {
        let before = Exchange::new();
        before.tell(vec![Happened::default(); 2]);
        before.end();
        let after = Exchange::after(&before);
        after.tell(vec![Happened::default()]);
        let numbers = |exchange: &Exchange| exchange.events(1).iter().map(|e| e.number).collect::<Vec<_>>();
        assert_eq!((numbers(&after), after.is_ending()), (vec![2, 3], false));
    }

    #[test]
    fn only_the_newest_events_are_kept() {
        let exchange = Exchange::new();
        (0..MOST_EVENTS + 5).for_each(|_| exchange.tell(vec![Happened::default()]));
        let events = exchange.events(0);
        assert_eq!((events.len(), events[0].number), (MOST_EVENTS, 6));
    }
}
