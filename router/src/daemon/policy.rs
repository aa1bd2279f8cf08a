//! Handles changes of policy: chooses the namespaces to read again, and decides when a router is trusted again.
//!
//! ```text
//! a change ── marks the router ──► Linux forwards ── wakes the loop ──► begin: notes marks, takes pending changes,
//!      (inside its system call)                                                has the namespaces read again
//!                                                                         (rounds go by)
//!                                                                         read: a reading is done, the plan is applied
//!                                         the fast path forwards ◄── end: removes marks that are as noted
//! ```
//!
//! Other threads do the reading, at their own pace. The end of a round removes a mark on five conditions:
//! - Nothing was added to the mark since the round noted it.
//! - Changes of the router's own namespace and of the host's are watched.
//! - No change of the router's own namespace waits to be read or is being read.
//! - No route of the router waits for a later plan. Some settings act through routes.
//! - The last finished reading of the host's namespace began after the last change there that concerns all routers.
//!
//! Each change is pending, or counted as one that concerns all, before it is marked. A visit that begins later reads
//! it. So whatever made a mark has been read and applied when the fast path has the packets again.
//!
//! A namespace that changes constantly is read again and again, but only for [`SHARE`] of the time. Its own router
//! waits for that; others do not. This includes the host's namespace, as long as the changes do not concern all.

use super::{
    Control, POLL,
    seam::{Kernel, Observe, PolicyRead},
};
use crate::plane::{
    icmp_errors::RouterErrors,
    policy::{HOST, Policy, Slot, Watching},
};
use logic::{observe::NamespaceId, plan::RouterId};
use std::{collections::BTreeMap, time::Duration};

/// A change that was seen before it was made is read no earlier than this much later.
const SETTLED: Duration = Duration::from_millis(50);
/// The pause between two readings of a namespace.
const GAP: Duration = Duration::from_millis(5);
/// Reading one namespace takes at most one part in this many of the time.
const SHARE: u32 = 8;
/// The delay after a failure.
const AGAIN: Duration = Duration::from_millis(100);
/// The pause until a namespace that is not watched completely is watched again. It doubles after each failure.
const WATCH_AGAIN: Duration = Duration::from_secs(1);
const MOST_WATCH_AGAIN: Duration = Duration::from_secs(16);
/// The longest wait at the start for readings, because one namespace can be slow.
const FIRST: Duration = Duration::from_secs(2);

/// The watched namespaces, and their unread changes.
pub(super) struct Windows {
    policy: Policy,
    spaces: BTreeMap<Slot, Space>,
    /// The marks of routers, as this round noted them.
    noted: BTreeMap<RouterId, u64>,
    /// The revision of the mirror whose routers are watched.
    followed: Option<u64>,
    /// The host's namespace has been read since its chains of devices were looked for.
    host_was_read: bool,
}

#[derive(Clone, Copy, Debug)]
struct Space {
    namespace: NamespaceId,
    router: Option<RouterId>,
    watching: Watching,
    /// The time to watch it again, and the pause after that.
    watch_again: Option<(Duration, Duration)>,
    /// The time to read the namespace.
    due: Option<Duration>,
    /// A reading of it is under way. It began after this many changes that concern all.
    reading: Option<u64>,
    /// The same of the last finished reading.
    read: Option<u64>,
    not_before: Duration,
}

impl Space {
    /// Do changes of it wait to be read, or are there some that nobody sees?
    fn waits(&self) -> bool {
        self.due.is_some() || self.reading.is_some() || self.watching == Watching::Nothing
    }
}

impl Windows {
    pub fn new(policy: Policy) -> Windows {
        Windows {
            policy,
            spaces: BTreeMap::new(),
            noted: BTreeMap::new(),
            followed: None,
            host_was_read: false,
        }
    }

    /// Kinds of changes that are not seen inside the system call, as sentences.
    pub fn unseen(&self) -> Vec<String> {
        self.policy.unseen()
    }

    /// ICMP errors since the last call, by router.
    fn take_noted(&self) -> BTreeMap<RouterId, RouterErrors> {
        self.policy.take_noted()
    }

    /// The earliest time at which a reading or a watch is due. A namespace that is being read waits for the end of that
    /// reading.
    pub fn due(&self) -> Option<Duration> {
        let readings =
            self.spaces.values().filter(|space| space.reading.is_none()).filter_map(|space| space.due);
        readings.chain(self.watch_again()).min()
    }

    /// The times at which namespaces are watched again.
    fn watch_again(&self) -> impl Iterator<Item = Duration> {
        self.spaces.values().filter_map(|space| Some(space.watch_again?.0))
    }

    /// Is any namespace being read?
    fn is_reading(&self) -> bool {
        self.spaces.values().any(|space| space.reading.is_some())
    }

    /// Watches exactly these from now on: for each slot its namespace, and the router there.
    fn follow(
        &mut self,
        wanted: &BTreeMap<Slot, (NamespaceId, Option<RouterId>)>,
        now: Duration,
        mut watch: impl FnMut(&mut Policy, Slot, NamespaceId) -> Watching,
    ) {
        let is_wanted =
            |slot: &Slot, space: &Space| wanted.get(slot) == Some(&(space.namespace, space.router));
        let gone: Vec<_> = self
            .spaces
            .iter()
            .filter(|(slot, space)| !is_wanted(slot, space))
            .map(|(slot, _)| *slot)
            .collect();
        for slot in gone {
            self.spaces.remove(&slot);
            self.policy.forget(slot);
        }
        for (slot, (namespace, router)) in wanted {
            if self.spaces.contains_key(slot) {
                continue;
            }
            let watching = watch(&mut self.policy, *slot, *namespace);
            self.policy.bind(*slot, *router);
            let space = Space {
                namespace: *namespace,
                router: *router,
                watching,
                watch_again: (watching < Watching::All).then_some((now + WATCH_AGAIN, 2 * WATCH_AGAIN)),
                due: None,
                reading: None,
                read: None,
                not_before: Duration::ZERO,
            };
            self.spaces.insert(*slot, space);
        }
    }

    /// Tries again to watch namespaces that are not watched completely.
    fn follow_again(
        &mut self,
        now: Duration,
        mut watch: impl FnMut(&mut Policy, Slot, NamespaceId) -> Watching,
    ) {
        for (slot, space) in &mut self.spaces {
            let Some((_, pause)) = space.watch_again.filter(|(at, _)| *at <= now) else { continue };
            let before =
                std::mem::replace(&mut space.watching, watch(&mut self.policy, *slot, space.namespace));
            if space.watching > before {
                self.policy.bind(*slot, space.router);
            }
            let again = (now + pause, MOST_WATCH_AGAIN.min(2 * pause));
            space.watch_again = (space.watching < Watching::All).then_some(again);
        }
    }

    /// Notes the marks, and returns the namespaces to read now.
    fn begin(&mut self, now: Duration) -> Vec<NamespaceId> {
        let marks = |router: RouterId| (router, self.policy.marks(router));
        let routers = self.spaces.values().filter_map(|space| space.router);
        self.noted = routers.map(marks).filter(|(_, marks)| *marks > 0).collect();
        let mut ready = Vec::new();
        for (slot, space) in &mut self.spaces {
            if self.policy.take_pending(*slot) > 0 {
                let early = self.policy.seen_early(*slot);
                let settled = if early.is_zero() { early } else { early + SETTLED };
                let at = now.max(space.not_before).max(settled);
                space.due = Some(space.due.map_or(at, |due| due.max(at)));
            }
            if space.reading.is_none() && space.due.take_if(|due| *due <= now).is_some() {
                space.reading = Some(self.policy.changes_of_all());
                ready.push(space.namespace);
            }
        }
        ready
    }

    /// Takes note that the last requested reading has ended: after `took`, successfully if `done`.
    fn read(&mut self, namespace: NamespaceId, took: Duration, now: Duration, done: bool) {
        let is_read =
            |(_, space): &(&Slot, &mut Space)| space.namespace == namespace && space.reading.is_some();
        let Some((slot, space)) = self.spaces.iter_mut().find(is_read) else { return };
        self.host_was_read |= *slot == HOST;
        let began = space.reading.take();
        if done {
            space.read = began;
        }
        space.not_before = now + GAP.max(took * (SHARE - 1));
        let again = (!done).then_some(now + AGAIN);
        space.due = space.due.map(|due| due.max(space.not_before)).max(again);
    }

    /// Takes note whether a chain of the host may be bound to a device, if everything that concerns all has been read.
    fn note_device_chains(&mut self, may_be: impl Fn(NamespaceId) -> bool) {
        let of_all = self.policy.changes_of_all();
        if !std::mem::take(&mut self.host_was_read) {
            return;
        }
        if let Some(host) = self.spaces.get(&HOST).filter(|host| host.read == Some(of_all)) {
            self.policy.note_device_chains(may_be(host.namespace), of_all);
        }
    }

    /// Everything read by the beginning of this round has been applied, except waiting routes of namespaces that are
    /// behind: removes the marks.
    fn end(&mut self, is_behind: impl Fn(NamespaceId) -> bool) {
        let noted = std::mem::take(&mut self.noted);
        let of_all = self.policy.changes_of_all();
        let of_host = |host: &Space| host.read != Some(of_all) || host.watching == Watching::Nothing;
        if self.spaces.get(&HOST).is_some_and(of_host) {
            return;
        }
        for space in self.spaces.values().filter(|space| !space.waits()) {
            let Some(router) = space.router.filter(|_| !is_behind(space.namespace)) else { continue };
            if let Some(marks) = noted.get(&router) {
                self.policy.unmark(router, *marks);
            }
        }
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Watches the namespaces of all routers, before their packets are forwarded.
    pub(super) fn follow_policy(&mut self) {
        let now = self.kernel.now();
        let watch = |policy: &mut Policy, slot, namespace| {
            policy.watch(slot, self.observer.place(namespace).as_ref())
        };
        let revision = self.world.mirror.revision();
        if self.windows.followed == Some(revision) {
            self.windows.follow_again(now, watch);
            return;
        }
        self.windows.followed = Some(revision);
        let mut wanted = BTreeMap::new();
        for router in self.world.mirror.routers() {
            if router.host {
                wanted.insert(HOST, (router.namespace, router.router));
            } else if let Some(id) = router.router {
                wanted.insert(id.into(), (router.namespace, Some(id)));
            }
        }
        self.windows.follow(&wanted, now, watch);
        self.windows.follow_again(now, watch);
    }

    /// Requests readings of namespaces that have changed.
    pub(super) fn read_policy(&mut self) {
        for namespace in self.windows.begin(self.kernel.now()) {
            self.observer.read_policy(namespace);
        }
    }

    /// Asks Linux about the destinations of ICMP errors.
    pub(super) fn look_at_destinations(&mut self) {
        let noted = self.windows.take_noted();
        if noted.is_empty() {
            return;
        }
        let routers = self.world.mirror.routers();
        let namespaces: BTreeMap<_, _> =
            routers.filter_map(|view| Some((view.router?, view.namespace))).collect();
        for (router, RouterErrors { destinations, lost }) in noted {
            if let Some(namespace) = namespaces.get(&router) {
                self.observer.look_at_destinations(*namespace, &destinations, lost);
            }
        }
    }

    /// Does the same at the start, and waits: no mark remains then, unless it takes too long.
    pub(super) fn read_policy_first(&mut self) {
        let end = self.kernel.now() + FIRST;
        self.read_policy();
        self.take_policies();
        while self.windows.is_reading() && self.kernel.now() < end {
            self.observe(POLL);
        }
        self.read_policy();
    }

    /// Takes note of completed readings, whose events have been taken in.
    pub(super) fn take_policies(&mut self) {
        for PolicyRead { namespace, took, error } in self.observer.policies_read() {
            if let Some(error) = &error {
                tracing::warn!(
                    "cannot read the policies of a namespace, so its router is left to the kernel: {error}"
                );
            }
            self.windows.read(namespace, took, self.kernel.now(), error.is_none());
        }
    }

    /// The readings have been applied: their routers are trusted again.
    pub(super) fn settle_policy(&mut self) {
        if self.confirming.unread().is_none() {
            let mirror = &self.world.mirror;
            self.windows.note_device_chains(|namespace| mirror.may_have_device_chains(namespace));
            self.windows.end(|namespace| self.world.mirror.is_behind_of(namespace));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NOT_BEHIND: fn(NamespaceId) -> bool = |_| false;

    fn all(_: &mut Policy, _: Slot, _: NamespaceId) -> Watching {
        Watching::All
    }

    /// The host, whose router is 0, and routers 1 and 2. All earlier changes are read.
    fn windows() -> Windows {
        let mut windows = Windows::new(Policy::blind().unwrap());
        windows.follow(
            &[(HOST, (9, Some(0))), (1, (1, Some(1))), (2, (2, Some(2)))].into(),
            Duration::ZERO,
            all,
        );
        assert_eq!(marked(&windows), [true; 3], "earlier changes are not known");
        assert_eq!(windows.begin(Duration::ZERO), [1, 2, 9]);
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [true; 3], "nothing is read");
        [1, 2, 9].into_iter().for_each(|namespace| windows.read(namespace, MS, Duration::ZERO, true));
        assert!(windows.begin(Duration::ZERO).is_empty());
        assert_eq!(marked(&windows), [true; 3], "nothing is applied");
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [false; 3]);
        windows
    }

    fn marked(windows: &Windows) -> [bool; 3] {
        [0, 1, 2].map(|router| windows.policy.marks(router) > 0)
    }

    #[test]
    fn a_mark_goes_when_its_change_is_read_and_applied() {
        let mut windows = windows();
        windows.policy.change(1, None);
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [false, true, false], "made after the last reading began");
        assert_eq!(windows.begin(100 * MS), [1]);
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [false, true, false], "it is being read");
        windows.read(1, MS, 101 * MS, true);
        assert!(windows.begin(101 * MS).is_empty());
        // Another change arrives before the reading is applied.
        windows.policy.change(1, None);
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [false, true, false]);
        assert_eq!(windows.begin(200 * MS), [1]);
        windows.read(1, MS, 201 * MS, true);
        assert!(windows.begin(201 * MS).is_empty());
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [false; 3]);
        assert_eq!((windows.begin(300 * MS), windows.due()), (Vec::new(), None));
    }

    #[test]
    fn a_mark_stays_while_routes_wait_to_be_planned() {
        let mut windows = windows();
        windows.policy.change(1, None);
        windows.policy.change(2, None);
        assert_eq!(windows.begin(100 * MS), [1, 2]);
        [1, 2].into_iter().for_each(|namespace| windows.read(namespace, MS, 101 * MS, true));
        assert!(windows.begin(101 * MS).is_empty());
        windows.end(|namespace| namespace == 1);
        assert_eq!(marked(&windows), [false, true, false]);
        assert!(windows.begin(102 * MS).is_empty());
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [false; 3]);
    }

    #[test]
    fn a_change_that_came_while_its_namespace_was_read_is_read_by_another_visit() {
        let mut windows = windows();
        windows.policy.change(1, None);
        assert_eq!(windows.begin(100 * MS), [1]);
        windows.policy.change(1, None);
        // A slow reading causes no spinning and no second request.
        for now in 101..200 {
            assert_eq!((windows.begin(now * MS), windows.due()), (Vec::new(), None));
            windows.end(NOT_BEHIND);
        }
        windows.read(1, MS, 200 * MS, true);
        assert!(windows.begin(200 * MS).is_empty() && windows.due().is_some(), "not at once");
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [false, true, false], "the visit began before the change");
        assert_eq!(windows.begin(300 * MS), [1]);
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [false, true, false]);
        windows.read(1, MS, 301 * MS, true);
        windows.begin(301 * MS);
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [false; 3]);
    }

    #[test]
    fn a_change_that_is_yet_to_be_made_is_read_late() {
        let mut windows = windows();
        windows.policy.change(2, Some(1000 * MS));
        assert!(windows.begin(1000 * MS).is_empty());
        windows.end(NOT_BEHIND);
        assert_eq!((marked(&windows), windows.due()), ([false, false, true], Some(1000 * MS + SETTLED)));
        // The write is tried again, which moves the reading.
        windows.policy.change(2, Some(1040 * MS));
        assert!(windows.begin(1050 * MS).is_empty());
        windows.end(NOT_BEHIND);
        assert_eq!(windows.begin(1040 * MS + SETTLED), [2]);
        windows.read(2, MS, 1041 * MS + SETTLED, true);
        windows.begin(1041 * MS + SETTLED);
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [false; 3]);
    }

    #[test]
    fn a_namespace_that_storms_takes_its_share_and_delays_no_other() {
        let mut windows = windows();
        let (mut now, mut reading, mut reads) = (1000 * MS, Duration::ZERO, [0, 0]);
        let took = 4 * MS;
        while now < 3000 * MS {
            windows.policy.change(1, None);
            if reads[1] < now.as_millis() / 100 - 9 {
                windows.policy.change(2, None);
            }
            for namespace in windows.begin(now) {
                windows.read(namespace, took, now + took, true);
                (now, reading) = (now + took, reading + took);
                reads[namespace as usize - 1] += 1;
            }
            windows.end(NOT_BEHIND);
            assert!(!marked(&windows)[0] && !marked(&windows)[2], "{now:?}");
            now += MS;
        }
        assert_eq!(reads[1], 20);
        // Each of 2,000 ms has a change; readings take 4 ms of every 32.
        assert!((50..=70).contains(&reads[0]), "{reads:?}");
        assert!(reading < 400 * MS);
    }

    #[test]
    fn unread_changes_of_the_host_keep_all_marks_and_a_failed_reading_is_repeated() {
        let mut windows = windows();
        windows.policy.change_all();
        windows.policy.change(1, None);
        assert_eq!(windows.begin(1000 * MS), [1, 9]);
        windows.read(1, MS, 1001 * MS, true);
        windows.read(9, MS, 1002 * MS, false);
        windows.end(NOT_BEHIND);
        assert_eq!((marked(&windows), windows.due()), ([true; 3], Some(1002 * MS + AGAIN)));
        assert_eq!(windows.begin(1002 * MS + AGAIN), [9]);
        windows.read(9, Duration::ZERO, 1200 * MS, true);
        windows.begin(1200 * MS);
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [false; 3]);
    }

    #[test]
    fn a_namespace_that_is_not_watched_stays_marked_and_is_tried_again() {
        for (unwatched, expected) in [(1, [false, true, false]), (9, [true; 3])] {
            let mut windows = Windows::new(Policy::blind().unwrap());
            let wanted = [(HOST, (9, Some(0))), (1, (1, Some(1))), (2, (2, Some(2)))].into();
            let fails = |_: &mut Policy, _: Slot, namespace| {
                if namespace == unwatched { Watching::Nothing } else { Watching::All }
            };
            windows.follow(&wanted, Duration::ZERO, fails);
            let read = |windows: &mut Windows, now| {
                let read = windows.begin(now);
                read.iter().for_each(|namespace| windows.read(*namespace, MS, now, true));
                windows.end(NOT_BEHIND);
                read
            };
            assert_eq!(read(&mut windows, 100 * MS), [1, 2, 9]);
            assert_eq!((marked(&windows), windows.due()), (expected, Some(WATCH_AGAIN)));
            let mut tries = Vec::new();
            for now in (0..60_000).map(|ms| ms * MS) {
                windows.follow_again(now, |policy, slot, namespace| {
                    tries.push(now);
                    fails(policy, slot, namespace)
                });
            }
            assert_eq!(tries, [1, 3, 7, 15, 31, 47].map(Duration::from_secs));
            assert!(read(&mut windows, 61_000 * MS).is_empty());
            assert_eq!(marked(&windows), expected);
            // Some kinds are seen now: what came before is read, and others are tried again.
            windows.follow_again(63_000 * MS, |_, _, _| Watching::Some);
            assert_eq!(windows.due(), Some(79_000 * MS));
            assert_eq!(windows.begin(64_000 * MS), [unwatched]);
            windows.end(NOT_BEHIND);
            assert!(marked(&windows)[usize::from(unwatched == 1)]);
            windows.read(unwatched, MS, 64_000 * MS, true);
            assert!(read(&mut windows, 64_001 * MS).is_empty());
            assert_eq!(marked(&windows), [false; 3]);
            windows.follow_again(79_000 * MS, all);
            assert_eq!((read(&mut windows, 79_000 * MS), windows.due()), (vec![unwatched], None));
            assert_eq!(marked(&windows), [false; 3]);
        }
    }

    /// A reading ends in a later round than it began, so the host's namespace always waits or is being read.
    #[test]
    fn a_host_that_storms_delays_its_own_router_only() {
        let mut windows = windows();
        let mut reading = Vec::new();
        let mut since = [None; 3];
        let mut cleared = 0;
        for now in (1000..5000).map(|ms| ms * MS) {
            let read = std::mem::replace(&mut reading, windows.begin(now));
            windows.policy.change(HOST, None);
            read.into_iter().for_each(|namespace| windows.read(namespace, MS, now, true));
            // As another round does, whose reading has just been taken in.
            reading.extend(windows.begin(now));
            windows.end(NOT_BEHIND);
            for (router, marked) in marked(&windows).into_iter().enumerate().skip(1) {
                match since[router] {
                    Some(since) => assert!(!marked || now - since < 20 * MS, "{router} since {since:?}"),
                    None => assert!(!marked),
                }
                if !marked {
                    cleared += usize::from(since[router].take().is_some());
                }
            }
            if now.as_millis() % 100 == 0 {
                windows.policy.change(1, None);
                since[1] = Some(now);
            }
            if now.as_millis() % 100 == 50 {
                windows.policy.change_all();
                since = [Some(now); 3];
            }
        }
        assert_eq!(cleared, 3 * 40);
        assert!(marked(&windows)[0]);
    }

    #[test]
    fn a_change_of_all_that_came_while_the_host_was_read_keeps_all_marks() {
        let mut windows = windows();
        windows.policy.change(HOST, None);
        assert_eq!(windows.begin(1000 * MS), [9]);
        windows.policy.change_all();
        // No reading of router 1 is needed, and this one of the host is too old.
        windows.read(9, MS, 1001 * MS, true);
        for now in 1001..1008 {
            assert!(windows.begin(now * MS).is_empty());
            windows.end(NOT_BEHIND);
            assert_eq!(marked(&windows), [true; 3]);
        }
        assert_eq!(windows.begin(1008 * MS), [9]);
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [true; 3]);
        windows.read(9, MS, 1009 * MS, true);
        assert!(windows.begin(1009 * MS).is_empty());
        windows.end(NOT_BEHIND);
        assert_eq!(marked(&windows), [false; 3]);
    }

    #[test]
    fn a_number_that_goes_to_another_namespace_is_marked_and_the_old_one_marks_nobody() {
        let mut windows = windows();
        windows.follow(&[(HOST, (9, None)), (1, (7, Some(1)))].into(), Duration::ZERO, all);
        assert_eq!(marked(&windows)[1..], [true, false]);
        windows.policy.change(2, None);
        assert!(!marked(&windows)[2]);
        assert_eq!(windows.begin(1000 * MS), [7, 9], "the host concerns all, even without a router");
        windows.read(9, MS, 1001 * MS, true);
        windows.policy.change(HOST, None);
        assert!(!marked(&windows)[0]);
        windows.begin(1001 * MS);
        assert_eq!(windows.begin(1008 * MS), [9]);
    }
}
