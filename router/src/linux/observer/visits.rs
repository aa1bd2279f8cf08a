//! Other threads visit namespaces and look through them: how many at a time, in which order, and their results.

use super::{
    DISCOVERY_DEBOUNCE, DISCOVERY_PAUSE, DISCOVERY_SHARE, HOST, Observer,
    discovery::{Look, Looked},
    survey::{self, SurveyResult, Wanted},
};
use crate::linux::netns::NamespaceRef;
use logic::observe::{NamespaceId, Owner};
use std::time::{Duration, Instant};

/// Namespaces visited at the same time, besides the host. A slow namespace occupies one visit for only a part of the
/// time (`space::LONG_VISITS_SHARE`), so only many more slow namespaces than this can delay another.
const VISITS: usize = 32;
/// The same for one owner of namespaces, and for all owners but root.
const VISITS_OF_AN_OWNER: usize = 8;
const VISITS_OF_OWNERS: usize = 24;

/// The result of another thread.
pub(super) enum Done {
    Visited(NamespaceId, Owner, Box<SurveyResult>),
    Looked(Box<Looked>),
}

impl Done {
    pub fn routes(&self) -> usize {
        match self {
            Done::Visited(_, _, found) => found.route_count(),
            Done::Looked(_) => 0,
        }
    }
}

impl Observer {
    pub(super) fn may_visit(&self, id: NamespaceId) -> bool {
        let Some(owner) = self.spaces.get(&id).map(|space| space.namespace.owner) else { return false };
        let of = |owner| self.visits.get(&owner).copied().unwrap_or(0);
        let all: usize = self.visits.values().sum();
        let of_owners = all - of(Owner::Machine);
        let has_turn =
            owner == Owner::Machine || of(owner) < VISITS_OF_AN_OWNER && of_owners < VISITS_OF_OWNERS;
        id == HOST || all < VISITS && has_turn
    }

    /// Counts one more visit to a namespace of this owner, or one less.
    fn count_visit(&mut self, owner: Owner, more: bool) {
        let visits = self.visits.entry(owner).or_default();
        *visits = if more { *visits + 1 } else { visits.saturating_sub(1) };
        if *visits == 0 {
            self.visits.remove(&owner);
        }
    }

    /// Starts visits to namespaces for which a reading is due.
    pub(super) fn begin_visits(&mut self, now: Instant) {
        let last = self.visited;
        let later = self.spaces.range(last + 1..).map(|(id, _)| *id);
        let ids: Vec<NamespaceId> = [HOST]
            .into_iter()
            .chain(later)
            .chain(self.spaces.range(HOST + 1..=last.max(HOST + 1)).map(|(id, _)| *id))
            .collect();
        for id in ids {
            if !self.may_visit(id) {
                continue;
            }
            let Some(space) = self.spaces.get_mut(&id) else { continue };
            let was_quiet = space.is_quiet();
            let wanted = space.begin_visit(&self.peers, now);
            let (place, owner, listens) = (space.place.clone(), space.namespace.owner, space.listens());
            if was_quiet || wanted.is_some() {
                self.listen(id, listens);
            }
            let Some(wanted) = wanted else { continue };
            if id != HOST {
                self.count_visit(owner, true);
                self.visited = id;
            }
            self.begin_visit(id, owner, place, wanted);
        }
    }

    fn begin_visit(&mut self, id: NamespaceId, owner: Owner, place: NamespaceRef, wanted: Wanted) {
        let (peers, quota) = (self.peers.clone(), self.config.quota.of(id));
        let task =
            move || Done::Visited(id, owner, Box::new(survey::visit(&place, &wanted, id, &peers, &quota)));
        self.in_a_thread("survey", task, move || Done::Visited(id, owner, Box::new(SurveyResult::nothing())));
    }

    pub(super) fn begin_look(&mut self, look: Look) {
        (self.looking, self.look_began) = (true, Instant::now());
        let nothing = || Done::Looked(Box::default());
        self.in_a_thread("look", move || Done::Looked(Box::new(look.look())), nothing);
    }

    /// `otherwise` gives the result if no thread can be started, or if it panics.
    fn in_a_thread(
        &mut self,
        name: &str,
        task: impl FnOnce() -> Done + Send + 'static,
        otherwise: impl FnOnce() -> Done + Send + Clone + 'static,
    ) {
        let (to, waker, spare) = (self.done.0.clone(), self.done_waker.clone(), otherwise.clone());
        let run = move || {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
            let _ = to.send(done.unwrap_or_else(|_| otherwise()));
            waker.wake();
        };
        if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(run) {
            tracing::warn!(%error, "cannot start a thread that reads Linux");
            let _ = self.done.0.send(spare());
            self.done_waker.wake();
        }
    }

    pub(super) fn take_done(&mut self, done: Done, now: Instant) {
        match done {
            Done::Looked(looked) => {
                self.looking = false;
                self.end_look(*looked);
                // A thousand devices created one by one must not keep us busy with looks.
                // Nor must many namespaces that answer slowly.
                let took = now.saturating_duration_since(self.look_began);
                self.discover_not_before = Instant::now() + took.max(DISCOVERY_DEBOUNCE * 3);
                self.discover_idly_at = now + pause_after(took);
            }
            Done::Visited(id, owner, found) => {
                if id != HOST {
                    self.count_visit(owner, false);
                }
                let Some(space) = self.spaces.get_mut(&id) else { return };
                space.end_visit(*found, &mut self.out, now);
                let (listens, must_catch_up) = (space.listens(), space.must_catch_up());
                if listens {
                    self.listen(id, true);
                }
                match must_catch_up {
                    true => self.hear(id, now),
                    false => self.follow(id, now),
                }
            }
        }
    }
}

/// The time from the beginning of one look through the namespaces, which took `took`, to the next.
pub(super) fn pause_after(took: Duration) -> Duration {
    (took * DISCOVERY_SHARE).min(DISCOVERY_PAUSE)
}
