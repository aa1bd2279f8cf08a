//! Fast connections: a thread asks Linux about connections that the kernel plane notes, and makes those fast that rules
//! provably accept ([`logic::connections`] decides).
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`FastConnections`]: the loop's handle |
//! | `thread.rs` | the thread: waits for notes, reports of ended connections and orders |
//! | `place.rs` | conntrack of one namespace |

mod place;
mod thread;

use crate::{
    base::guard::locked,
    linux::{netns::NamespaceRef, observer::Waker},
    plane::{Heart, connections::ConnectionMaps},
};
use anyhow::{Context, Result};
use logic::{
    connections::{admission::Consent, kept::View},
    mirror::ConnectionRules,
    plan::RouterId,
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        mpsc::{SyncSender, sync_channel},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

/// The most callers that wait for a report.
const MOST_WAITING: usize = 4;
/// How long a report may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// A function that returns after a grace period.
pub type WaitForGrace = Box<dyn FnMut() -> Result<()> + Send>;

/// A router whose connections may be fast, and its namespace.
#[derive(Clone, Debug)]
pub struct RouterRules {
    pub rules: ConnectionRules,
    pub place: NamespaceRef,
}

/// What the thread has to do besides its own work.
#[derive(Default)]
struct Orders {
    /// `None`: as before.
    routers: Option<Vec<RouterRules>>,
    /// `None`: as before.
    consent: Option<Consent>,
    /// The heart of the generation in charge.
    heart: Option<Arc<Heart>>,
    /// Who waits for a report.
    reports: Vec<SyncSender<Vec<View>>>,
    ended: bool,
}

/// The thread. It ends when this is dropped.
pub struct FastConnections {
    orders: Arc<Mutex<Orders>>,
    counts: Counts,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// The number of fast connections of each router.
type Counts = Arc<Mutex<BTreeMap<RouterId, u64>>>;

impl FastConnections {
    /// Starts the thread. No connection is fast before it knows routers and a heart.
    ///
    /// # Errors
    /// There is no memory, descriptor or thread left.
    pub fn start(maps: ConnectionMaps, consent: Consent, grace: WaitForGrace) -> Result<FastConnections> {
        let (orders, waker) = (Arc::<Mutex<Orders>>::default(), Waker::new().context("making an eventfd")?);
        let (theirs, woken, counts) = (orders.clone(), waker.clone(), Counts::default());
        let counted = counts.clone();
        let run = move || {
            if let Err(error) = thread::run(&maps, consent, grace, &theirs, &woken, &counted) {
                tracing::error!(
                    "the thread that makes connections fast failed: {error:#}; Linux forwards them; restart the daemon"
                );
            }
        };
        let thread = Builder::new()
            .name("connections".into())
            .spawn(run)
            .context("starting the thread of connections")?;
        Ok(FastConnections { orders, counts, waker, thread: Some(thread) })
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut locked(&self.orders));
        self.waker.wake();
    }

    /// Sets the routers whose connections may be fast.
    pub fn follow(&self, routers: Vec<RouterRules>) {
        self.order(|orders| orders.routers = Some(routers));
    }

    /// Sets which connections may be fast. All fast connections go to Linux. Those that are allowed may become fast again.
    pub fn consent(&self, consent: Consent) {
        self.order(|orders| orders.consent = Some(consent));
    }

    /// Sets the generation in charge.
    pub fn follow_heart(&self, heart: Option<Arc<Heart>>) {
        self.order(|orders| orders.heart = heart);
    }

    /// The number of fast connections of a router, half a second ago at most.
    pub fn count(&self, router: RouterId) -> u64 {
        locked(&self.counts).get(&router).copied().unwrap_or_default()
    }

    /// Why no connection is fast, as a sentence; `None`: nothing is wrong.
    pub fn condition(&self) -> Option<String> {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        ended.then(|| {
            "the thread that makes connections fast has ended, so all stay with Linux (see the log); restart the daemon".into()
        })
    }

    /// Fast connections, and those that were refused lately. `None`: the thread does not answer.
    pub fn views(&self) -> Option<Vec<View>> {
        if self.condition().is_some() {
            return None;
        }
        let (to, report) = sync_channel(1);
        self.order(|orders| {
            orders.reports.truncate(MOST_WAITING - 1);
            orders.reports.push(to);
        });
        report.recv_timeout(PATIENCE).ok()
    }
}

impl Drop for FastConnections {
    fn drop(&mut self) {
        self.order(|orders| orders.ended = true);
        self.thread.take().map(JoinHandle::join);
    }
}
