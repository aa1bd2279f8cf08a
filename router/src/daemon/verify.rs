//! `millrace routes --verify`: does the fast table send packets where Linux does?
//!
//! | file | holds |
//! |---|---|
//! | `verify.rs` | when each namespace is compared, and when its comparison ends; in the control thread |
//! | `comparison.rs` | one look at the tables and at Linux, in a thread of its own |
//! | `changes.rs` | the changes that the control thread takes in meanwhile |
//!
//! Each namespace has a result of its own. A namespace that changes all the time, or about which the kernel answers
//! slowly, delays the others by a bounded time and does not affect their results.
//!
//! Routes change meanwhile. A difference therefore counts only if it is seen [`CONFIRMATIONS`] times, with the same
//! answers of Linux and of the table each time. Between these times, the loop has applied everything that Linux had
//! reported of the namespace, and none of it concerned this address.

mod changes;
mod comparison;

use super::{
    Control,
    api::Answer as Reply,
    seam::{FastPath, Kernel, Observe, Standing},
};
use crate::api::{ApiError, status::VerifyResult};
use changes::{Changed, Changes};
use comparison::{Case, Comparison};
use logic::{observe::Event, plan::RouterId};
use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, TryRecvError, sync_channel},
    thread,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// The number of times that a difference must be seen.
const CONFIRMATIONS: u8 = 3;
/// After this many looks, a namespace counts as changing all the time.
const LOOKS: u32 = 20;
/// The pause before the second look; before the third it is twice as long, and so on.
const PAUSE: Duration = Duration::from_millis(10);
/// The time for the first look at all namespaces. Clients wait for 65 s.
const FIRST_LOOKS: Duration = Duration::from_secs(40);
/// The time for all later looks at all namespaces.
const LATER_LOOKS: Duration = Duration::from_secs(15);
const CHANGING: &str = "it changed all the time";

/// A comparison under way.
pub(super) struct Verifying {
    reply: oneshot::Sender<Reply>,
    stage: Stage,
    /// The changes in each namespace since the last look at it began.
    changes: Changes,
    /// The end of all later looks; `None`: the first look is not over.
    ends: Option<Duration>,
}

enum Stage {
    Looking(Receiver<Comparison>),
    /// The loop takes in what Linux had reported when it was queried.
    CatchingUp {
        comparison: Box<Comparison>,
        /// The next time to try namespaces again.
        next_try: Duration,
    },
}

impl Verifying {
    /// Notes an event before it is applied.
    pub(super) fn observe(&mut self, event: &Event) {
        self.changes.observe(event);
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Begins to compare every router. The answer is sent when the comparison is done.
    pub(super) fn begin_verify(&mut self, reply: oneshot::Sender<Reply>) {
        if self.verifying.is_some() {
            let _ = reply.send(Err(ApiError::busy("a comparison is already running; try again later")));
            return;
        }
        let comparison = self.comparison();
        let changes = Changes::of(comparison.open().map(|case| case.view.namespace));
        match self.look(comparison, FIRST_LOOKS) {
            Ok(stage) => self.verifying = Some(Verifying { reply, stage, changes, ends: None }),
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Continues the comparison, if there is one.
    pub(super) fn follow_verify(&mut self, now: Duration) {
        let Some(mut verifying) = self.verifying.take() else { return };
        let next = match verifying.stage {
            Stage::Looking(worker) => match worker.try_recv() {
                Err(TryRecvError::Empty) => Ok(Stage::Looking(worker)),
                Err(TryRecvError::Disconnected) => Err(Err(ApiError::failed("the comparison failed"))),
                Ok(comparison) if comparison.open().next().is_none() => Err(Ok(comparison)),
                Ok(mut comparison) => {
                    comparison.open_mut().for_each(|case| case.looked = now);
                    verifying.ends.get_or_insert(now + LATER_LOOKS);
                    Ok(Stage::CatchingUp { comparison: Box::new(comparison), next_try: now })
                }
            },
            Stage::CatchingUp { mut comparison, mut next_try } => {
                let ends = verifying.ends.unwrap_or(now);
                // The look ended in an earlier round, so the events of this one were read after the queries to Linux.
                if now >= next_try {
                    next_try = now + PAUSE;
                    self.get_ready(&mut comparison, &mut verifying.changes, now);
                }
                if now >= ends {
                    self.settle_all(&mut comparison, &mut verifying.changes);
                }
                if comparison.open().next().is_none() {
                    Err(Ok(*comparison))
                } else if comparison.open().any(|case| case.changed.is_some()) {
                    self.look(*comparison, ends - now).map_err(Err)
                } else {
                    Ok(Stage::CatchingUp { comparison, next_try })
                }
            }
        };
        match next {
            Ok(stage) => self.verifying = Some(Verifying { stage, ..verifying }),
            Err(comparison) => {
                let answer = comparison.and_then(|comparison| {
                    serde_json::to_value(comparison.report()).map_err(|e| ApiError::failed(e.to_string()))
                });
                let _ = verifying.reply.send(answer);
            }
        }
    }

    /// Prepares each namespace that can be looked at again, with its changes since the last look. Settles those that
    /// ended.
    fn get_ready(&self, comparison: &mut Comparison, changes: &mut Changes, now: Duration) {
        let numbers: BTreeMap<_, _> =
            self.world.mirror.routers().map(|view| (view.namespace, view.router)).collect();
        for case in comparison.open_mut() {
            let namespace = case.view.namespace;
            let standing = self.observer.standing(namespace);
            if numbers.get(&namespace) != Some(&case.view.router) || standing == Standing::Gone {
                case.settle(VerifyResult::Changing, "its router began or ended meanwhile");
                continue;
            }
            match standing {
                Standing::OverLimits(why) => case.settle(VerifyResult::OverLimits, &why),
                Standing::Current if self.may_look_at(case, now) => {
                    case.changed = Some(changes.take(namespace))
                }
                _ => {}
            }
        }
        comparison.numbers = self.interface_numbers();
    }

    /// Settles the namespaces for which the time was too short.
    fn settle_all(&self, comparison: &mut Comparison, changes: &mut Changes) {
        for case in comparison.open_mut() {
            let namespace = case.view.namespace;
            let has_changed = case.changed.take().unwrap_or_default() != Changed::default()
                || changes.take(namespace) != Changed::default();
            match (self.confirming.unread(), self.observer.standing(namespace)) {
                (Some(why), _) => case.settle(VerifyResult::Unread, why),
                (None, Standing::OverLimits(why)) => case.settle(VerifyResult::OverLimits, &why),
                (None, Standing::Behind) => case.settle(VerifyResult::Changing, CHANGING),
                (None, _) if has_changed => case.settle(VerifyResult::Changing, CHANGING),
                _ => case.settle(VerifyResult::Unread, "there was not enough time to look again"),
            }
        }
    }

    /// Has the loop applied everything that Linux has reported of a namespace, and is it time for another look?
    fn may_look_at(&self, case: &Case, now: Duration) -> bool {
        self.confirming.unread().is_none()
            && !self.world.mirror.is_behind_of(case.view.namespace)
            && now >= case.looked + PAUSE * case.looks
    }

    fn comparison(&mut self) -> Comparison {
        let linux = self.observer.questions();
        let mirror = &self.world.mirror;
        let accelerated = |v6: bool| {
            let here = mirror.interfaces().filter(|i| if v6 { i.ipv6 } else { i.ipv4 });
            let mut by_router: BTreeMap<_, Vec<u32>> = BTreeMap::new();
            here.for_each(|i| by_router.entry(i.namespace).or_default().push(i.ifindex));
            by_router
        };
        let [mut ways4, mut ways6] = [accelerated(false), accelerated(true)];
        let cases = self.routers_and_obstacles().map(|view| {
            let ways = [&mut ways4, &mut ways6].map(|ways| ways.remove(&view.namespace).unwrap_or_default());
            let size = |id: RouterId| self.generation.tables.route_counts(id);
            let (v4, v6, _) = view.router.map_or((0, 0, false), size);
            let mut case = Case::new(view, ways, v4 + v6);
            match self.observer.standing(case.view.namespace) {
                Standing::OverLimits(why) => case.settle(VerifyResult::OverLimits, &why),
                _ if case.view.router.is_none() => case.settle(VerifyResult::NotUsed, ""),
                _ => {}
            }
            case
        });
        Comparison { linux, numbers: self.interface_numbers(), cases: cases.collect() }
    }

    /// The namespace and device of each interface.
    fn interface_numbers(&self) -> comparison::Numbers {
        let interfaces = self.world.mirror.interfaces();
        interfaces.filter_map(|i| Some((i.interface?, (i.namespace, i.ifindex)))).collect()
    }

    /// Starts a thread that looks once.
    fn look(&self, mut comparison: Comparison, longest: Duration) -> Result<Stage, ApiError> {
        let memory = self.generation.plane.memory();
        let (to, worker) = sync_channel(1);
        let run = move || {
            comparison.look(&memory, Instant::now() + longest);
            let _ = to.send(comparison);
        };
        let spawned = thread::Builder::new().name("verify".into()).spawn(run);
        let spawned = spawned.map_err(|e| ApiError::failed(format!("cannot start a thread: {e}")));
        spawned.map(|_| Stage::Looking(worker))
    }
}
