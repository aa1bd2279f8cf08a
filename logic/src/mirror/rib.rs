//! The routes of one family in one namespace: those that Linux holds, those that the tables should hold, and the
//! difference from the last plan.
//!
//! Without policy rules, Linux looks up tables local and main as one. IPv4 merges them into one trie (fib_trie_table(),
//! fib4_rules_init()) until the first rule is added (fib_unmerge()). IPv6 searches table local first
//! (fib6_rule_lookup()). Both give the same result as long as table local holds only host routes. A prefix of table
//! local can hide routes of main within it (`ip addr add 192.0.2.0/24 dev lo`), so these lead to the kernel.

use super::{
    alias::{Alias, Aliases},
    intern::Id,
    path::{Path, Surroundings},
    paths::Paths,
};
use crate::{
    cause::{Cause, Code},
    net::{Address, Prefix},
    observe::{Change, Route, RouteKind},
    plan::Target,
};
use rustc_hash::FxHashMap;
use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

const TABLE_DEFAULT: u32 = 253;
const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;

pub(super) struct Rib<A: Address> {
    entries: FxHashMap<Prefix<A>, Entry>,
    paths: Paths,
    /// Prefixes whose entry may lead to another target than planned.
    dirty: Vec<Prefix<A>>,
    /// Prefixes being planned; the next one is last. Each gets the route that it had when the batch began. A prefix
    /// that has changed since then passes to the kernel until the next batch. So no route is in force before the
    /// exceptions to it.
    batch: Vec<Prefix<A>>,
    /// Flips when a batch begins.
    turn: bool,
    /// Prefixes of the batch that may no longer have a route. They keep the old one until all others of the batch have
    /// theirs.
    leaving: Vec<Prefix<A>>,
    batches_ended: u64,
    /// Flips with every [`Rib::load`].
    round: bool,
    marked: Marked<A>,
    /// At least one entry is unsure.
    unsure: bool,
    /// Routes of table default (IPv4 only), which Linux consults last.
    default_table: FxHashMap<(Prefix<A>, u8, u32), u32>,
    /// Destinations for which Linux has learned more than its routes.
    learned: BTreeSet<A>,
}

#[derive(Default)]
struct Entry {
    aliases: Aliases,
    /// The planned target. Holds a reference.
    shown: Option<Id>,
    round: bool,
    waits: Waits,
    /// Only the kernel knows the routes, until the next dump.
    unsure: bool,
}

/// Whether a prefix waits to be planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Waits {
    #[default]
    No,
    /// The batch of this turn plans the prefix: it is in [`Rib::dirty`] or [`Rib::batch`].
    ForBatch(bool),
    /// The prefix is in [`Rib::batch`], and has changed since the batch began.
    Changed,
}

impl Entry {
    /// Notes a change. Returns true if the caller must add the prefix to [`Rib::dirty`]. `turn` is that of the running
    /// batch.
    #[must_use]
    fn touch(&mut self, turn: bool) -> bool {
        let waited = self.waits;
        if waited == Waits::No {
            self.waits = Waits::ForBatch(!turn);
        } else if waited == Waits::ForBatch(turn) {
            self.waits = Waits::Changed;
        }
        waited == Waits::No
    }

    /// Whether nothing is known about the prefix and nothing is planned.
    fn is_empty(&self) -> bool {
        self.aliases.is_empty() && !self.unsure && self.shown.is_none()
    }
}

/// Prefixes with a meaning beyond their route.
struct Marked<A: Address> {
    addresses: BTreeSet<A>,
    /// Prefixes of more than one address, in table local or of kind local.
    local_prefixes: BTreeSet<Prefix<A>>,
    /// Prefixes added or removed since the last plan.
    local_prefixes_changed: BTreeSet<Prefix<A>>,
    addresses_changed: bool,
    doubts_changed: bool,
}

/// The differences of one table. Apply `set` first and then `gone`, so that no address is without a route in between.
pub(super) struct Difference<A: Address> {
    /// Longest prefixes first, so a route is never in force before the exceptions to it.
    pub set: Vec<(Prefix<A>, Target)>,
    /// Shortest prefixes first, for the same reason.
    pub gone: Vec<Prefix<A>>,
}

impl<A: Address> Default for Rib<A> {
    fn default() -> Self {
        let marked = Marked {
            addresses: BTreeSet::new(),
            local_prefixes: BTreeSet::new(),
            local_prefixes_changed: BTreeSet::new(),
            addresses_changed: false,
            doubts_changed: false,
        };
        Self {
            entries: FxHashMap::default(),
            paths: Paths::default(),
            dirty: Vec::new(),
            batch: Vec::new(),
            turn: false,
            leaving: Vec::new(),
            batches_ended: 0,
            round: false,
            marked,
            unsure: false,
            default_table: FxHashMap::default(),
            learned: BTreeSet::new(),
        }
    }
}

impl<A: Address> Rib<A> {
    const IPV6: bool = A::BITS == 128;

    /// Handles one message.
    pub fn change(&mut self, change: Change, route: Route<A>) {
        if route.table == TABLE_DEFAULT && !Self::IPV6 {
            return self.change_default(change, &route);
        }
        let Some((prefix, alias)) = self.take_in(route) else { return };
        self.update(prefix, |aliases, paths| match (change, Self::IPV6) {
            (Change::Delete, v6) => {
                let sure = if v6 {
                    aliases.delete6(&alias, paths)
                } else {
                    aliases.delete4(&alias, paths);
                    true
                };
                paths.release(alias.path);
                sure
            }
            (_, false) => aliases.add4(alias, change, paths),
            (_, true) => aliases.add6(alias, change, paths),
        });
    }

    /// Counts routes of table default. A count that is too high keeps packets with the kernel until the next dump.
    fn change_default(&mut self, change: Change, route: &Route<A>) {
        let key = (route.prefix, route.tos, route.metric);
        let count = self.default_table.entry(key).or_default();
        match change {
            Change::Delete => *count = count.saturating_sub(1),
            Change::Replace | Change::ReplaceLate => *count = (*count).max(1),
            Change::Add | Change::Append => *count += 1,
        }
        if *count == 0 {
            self.default_table.remove(&key);
        }
        self.marked.doubts_changed = true;
    }

    /// Handles a dump of all routes of all tables.
    pub fn load(&mut self, routes: Vec<Route<A>>) {
        self.round = !self.round;
        self.settle_unsure();
        self.default_table.clear();
        self.marked.doubts_changed = true;
        self.entries.reserve(routes.len().saturating_sub(self.entries.len()));
        for route in routes {
            if route.table == TABLE_DEFAULT && !Self::IPV6 {
                self.change_default(Change::Add, &route);
            } else {
                self.load_one(route);
            }
        }
        let gone = self.entries.iter().filter(|(_, e)| e.round != self.round && !e.aliases.is_empty());
        for prefix in gone.map(|(prefix, _)| *prefix).collect::<Vec<_>>() {
            self.update(prefix, |aliases, paths| {
                aliases.clear(paths);
                true
            });
        }
    }

    /// Makes packets to these destinations go to the kernel, and those to earlier destinations no longer.
    pub fn leave_to_kernel(&mut self, destinations: BTreeSet<A>) {
        let changed: Vec<A> = self.learned.symmetric_difference(&destinations).copied().collect();
        self.learned = destinations;
        changed.into_iter().for_each(|destination| self.touch_one(Prefix::one(destination)));
    }

    /// Notes a change that concerns a prefix but not its routes.
    fn touch_one(&mut self, prefix: Prefix<A>) {
        let round = self.round;
        let entry = self.entries.entry(prefix).or_insert_with(|| Entry { round, ..Entry::default() });
        if entry.touch(self.turn) {
            self.dirty.push(prefix);
        }
    }

    fn settle_unsure(&mut self) {
        if !std::mem::take(&mut self.unsure) {
            return;
        }
        for (prefix, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.unsure) {
            entry.unsure = false;
            if entry.touch(self.turn) {
                self.dirty.push(*prefix);
            }
        }
    }

    fn load_one(&mut self, route: Route<A>) {
        let Some((prefix, alias)) = self.take_in(route) else { return };
        let round = self.round;
        let entry = self.entries.entry(prefix).or_default();
        let first = std::mem::replace(&mut entry.round, round) != round || entry.aliases.is_empty();
        if first && matches!(&entry.aliases, Aliases::One(old) if *old == alias) {
            return self.paths.release(alias.path);
        }
        self.update(prefix, |aliases, paths| {
            if first {
                aliases.clear(paths);
            }
            aliases.append(alias);
            true
        });
    }

    fn take_in(&mut self, route: Route<A>) -> Option<(Prefix<A>, Alias)> {
        let local = match route.table {
            TABLE_LOCAL => true,
            TABLE_MAIN => false,
            _ => return None,
        };
        let (prefix, metric, tos, for_sources) = (route.prefix, route.metric, route.tos, route.for_sources);
        let path = self.paths.acquire(Path::of(route));
        Some((prefix, Alias { metric, tos, local, path, for_sources }))
    }

    fn update(&mut self, prefix: Prefix<A>, change: impl FnOnce(&mut Aliases, &mut Paths) -> bool) {
        let round = self.round;
        let entry = self.entries.entry(prefix).or_insert_with(|| Entry { round, ..Entry::default() });
        entry.round = round;
        if !change(&mut entry.aliases, &mut self.paths) {
            (entry.unsure, self.unsure) = (true, true);
        }
        self.marked.note(prefix, entry.aliases.as_slice(), &self.paths);
        if entry.touch(self.turn) {
            self.dirty.push(prefix);
        }
    }

    /// The changes that make the tables match Linux. `refresh`: the surroundings have changed.
    ///
    /// One call plans at most `most` prefixes. Later calls plan the rest, in the same order ([`Rib::batches_left`]).
    pub fn plan(&mut self, around: &Surroundings<'_>, refresh: bool, most: usize) -> Difference<A> {
        let refresh = refresh | self.paths.take_turned();
        if refresh && (self.paths.refresh(around, Self::IPV6) || !self.batch.is_empty()) {
            let running = Waits::ForBatch(self.turn);
            self.touch_if(|_, paths, entry| {
                // It is unknown where an unresolved path led when the batch began.
                let moved = |path| paths.changed(path) || entry.waits == running && !paths.is_resolved(path);
                entry.aliases.as_slice().iter().any(|alias| moved(alias.path))
            });
        }
        let changed = std::mem::take(&mut self.marked.local_prefixes_changed);
        if !changed.is_empty() {
            // The routes of these prefixes have changed, so they wait already.
            self.touch_if(|prefix, _, _| is_within(*prefix, &changed));
        }
        if self.batch.is_empty() {
            self.turn = !self.turn;
            self.batch = std::mem::take(&mut self.dirty);
            self.batch.sort_unstable_by_key(|prefix| (prefix.length(), Reverse(prefix.address())));
        }
        let rest = self.batch.len().saturating_sub(most);
        let mut difference = Difference { set: Vec::new(), gone: Vec::new() };
        for prefix in self.batch.split_off(rest).into_iter().rev() {
            difference.set.extend(self.plan_one(prefix, around));
        }
        if self.batch.is_empty() {
            self.batches_ended += 1;
            for prefix in std::mem::take(&mut self.leaving).into_iter().rev() {
                self.leave(prefix, &mut difference);
            }
        }
        difference
    }

    /// The prefix's route, if it differs from the plan.
    fn plan_one(&mut self, prefix: Prefix<A>, around: &Surroundings<'_>) -> Option<(Prefix<A>, Target)> {
        let entry = self.entries.get_mut(&prefix)?;
        let changed = std::mem::take(&mut entry.waits) == Waits::Changed;
        if changed && entry.touch(self.turn) {
            self.dirty.push(prefix);
        }
        let aliases = entry.aliases.as_slice();
        let is_unicast = |alias: &Alias| self.paths.get(alias.path).kind == RouteKind::Unicast;
        let learned = prefix.length() == A::BITS && self.learned.contains(&prefix.address());
        let new = if changed || entry.unsure {
            Some(self.paths.undecided())
        } else {
            let place = LocalPosition::of(prefix, &self.marked.local_prefixes);
            match learned && aliases.iter().all(is_unicast) && !place.local && !place.within {
                true => Some(self.paths.learned()),
                false => decide(aliases, place, &mut self.paths, around, Self::IPV6),
            }
        };
        if new.is_none() {
            if entry.shown.is_some() {
                self.leaving.push(prefix);
            } else if entry.is_empty() {
                self.entries.remove(&prefix);
            }
            return None;
        }
        self.show(prefix, new)
    }

    /// Takes over the reference to the target. Returns the prefix and the target if the planned target was another one.
    fn show(&mut self, prefix: Prefix<A>, new: Option<Id>) -> Option<(Prefix<A>, Target)> {
        let old = std::mem::replace(&mut self.entries.get_mut(&prefix)?.shown, new);
        let set = (new != old).then(|| new.map(|id| (prefix, self.paths.target(id).clone())));
        self.paths.release_target(old);
        set.flatten()
    }

    /// Ends a prefix of the batch. If it has changed again, its packets go to the kernel until the next batch.
    fn leave(&mut self, prefix: Prefix<A>, difference: &mut Difference<A>) {
        let Some(entry) = self.entries.get_mut(&prefix) else { return };
        if entry.waits != Waits::No {
            let undecided = self.paths.undecided();
            return difference.set.extend(self.show(prefix, Some(undecided)));
        }
        self.paths.release_target(entry.shown.take());
        if entry.is_empty() {
            self.entries.remove(&prefix);
        }
        difference.gone.push(prefix);
    }

    /// The number of batches that must end until all waiting prefixes are planned, at most two.
    pub fn batches_left(&self) -> u64 {
        u64::from(!self.batch.is_empty()) + u64::from(!self.dirty.is_empty())
    }

    /// The number of batches that have ended.
    pub fn batches_ended(&self) -> u64 {
        self.batches_ended
    }

    fn touch_if(&mut self, wanted: impl Fn(&Prefix<A>, &Paths, &Entry) -> bool) {
        for (prefix, entry) in &mut self.entries {
            if wanted(prefix, &self.paths, entry) && entry.touch(self.turn) {
                self.dirty.push(*prefix);
            }
        }
    }

    /// Whether there is a route whose existence only the kernel knows.
    pub fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// See [`Paths::any_ends`].
    pub fn any_ends(&self, before: Duration, now: Duration) -> bool {
        self.paths.any_ends(before, now)
    }

    /// See [`Paths::next_end`].
    pub fn next_end(&self, now: Duration) -> Option<Duration> {
        self.paths.next_end(now)
    }

    /// No router uses this table any more, so the plan is void.
    pub fn withdraw(&mut self) {
        for list in [&mut self.dirty, &mut self.batch, &mut self.leaving] {
            list.clear();
        }
        let paths = &mut self.paths;
        self.entries.retain(|_, entry| {
            paths.release_target(entry.shown.take());
            entry.waits = Waits::No;
            !entry.is_empty()
        });
    }

    /// Makes the next plan start from an empty table.
    pub fn renew(&mut self) {
        self.touch_if(|_, _, _| true);
        self.learned.clone().into_iter().for_each(|destination| self.touch_one(Prefix::one(destination)));
        self.marked.addresses_changed = !self.marked.addresses.is_empty();
    }

    /// Forgets the differences without planning them. Call it only after [`Rib::withdraw`].
    pub fn settle(&mut self) {
        self.marked.local_prefixes_changed.clear();
        for prefix in std::mem::take(&mut self.dirty) {
            if let Some(entry) = self.entries.get_mut(&prefix) {
                entry.waits = Waits::No;
                if entry.is_empty() {
                    self.entries.remove(&prefix);
                }
            }
        }
    }

    /// The routes that the tables should hold after the last plan.
    pub fn expected(&self) -> impl Iterator<Item = (Prefix<A>, &Target)> {
        self.entries.iter().filter_map(|(prefix, e)| Some((*prefix, self.paths.target(e.shown?))))
    }

    /// The planned target of exactly this prefix.
    pub fn exact(&self, prefix: Prefix<A>) -> Option<&Target> {
        Some(self.paths.target(self.entries.get(&prefix)?.shown?))
    }

    /// The longest planned prefix that holds the address, and its target.
    pub fn longest(&self, address: A) -> Option<(Prefix<A>, &Target)> {
        (0..=A::BITS).rev().find_map(|length| {
            let prefix = Prefix::new(address, length)?;
            Some((prefix, self.exact(prefix)?))
        })
    }

    /// Host routes of kind local or broadcast: sources that fib_validate_source() may refuse.
    pub fn addresses(&self) -> &BTreeSet<A> {
        &self.marked.addresses
    }

    /// Whether they have changed since the last call.
    pub fn take_addresses_changed(&mut self) -> bool {
        std::mem::take(&mut self.marked.addresses_changed)
    }

    /// Whether there are local prefixes of more than one address. Then [`Rib::addresses`] does not hold all of the
    /// router's own addresses.
    pub fn has_local_prefixes(&self) -> bool {
        !self.marked.local_prefixes.is_empty()
    }

    /// The reason why the table may differ from Linux, as a sentence.
    pub fn doubt(&self) -> Option<Cause> {
        (!self.default_table.is_empty()).then(|| Code::DefaultTable.cause("table default (253) holds routes"))
    }

    /// Whether the result of [`Rib::doubt`] or of [`Rib::has_local_prefixes`] has changed since the last call.
    pub fn take_doubts_changed(&mut self) -> bool {
        std::mem::take(&mut self.marked.doubts_changed)
    }
}

/// The position of a prefix among the local ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LocalPosition {
    /// The prefix is local.
    local: bool,
    /// A shorter local prefix holds it.
    within: bool,
}

impl LocalPosition {
    fn of<A: Address>(prefix: Prefix<A>, local_prefixes: &BTreeSet<Prefix<A>>) -> LocalPosition {
        LocalPosition { local: local_prefixes.contains(&prefix), within: is_within(prefix, local_prefixes) }
    }
}

/// Whether a shorter prefix in the set holds this one.
fn is_within<A: Address>(prefix: Prefix<A>, others: &BTreeSet<Prefix<A>>) -> bool {
    let shorter = |length| Prefix::new(prefix.address(), length).is_some_and(|other| others.contains(&other));
    !others.is_empty() && (0..prefix.length()).any(shorter)
}

/// The target of the first usable route, with a reference.
fn decide(
    aliases: &[Alias],
    place: LocalPosition,
    paths: &mut Paths,
    around: &Surroundings<'_>,
    ipv6: bool,
) -> Option<Id> {
    // The best alias depends on the packet: fib_table_lookup() compares `fa_dscp`, and fib6_node_lookup_1() searches
    // the subtree of sources before it looks at metrics.
    if aliases.iter().any(|alias| alias.tos != 0 || alias.for_sources) {
        return Some(paths.undecided());
    }
    let (at, target) =
        aliases.iter().enumerate().find_map(|(i, a)| Some((i, paths.resolve(a.path, around, ipv6)?)))?;
    // If Linux searches table local first, that table hides routes of main within its prefixes.
    let own = paths.get(aliases[at].path).kind == RouteKind::Local;
    if place.within && !aliases[at].local || place.local && own {
        return Some(paths.local_prefix());
    }
    if ipv6 {
        // Among several routes with equal metric, rt6_select() takes the one with the best score.
        let rivals = aliases[at + 1..].iter();
        for rival in rivals.take_while(|a| (a.local, a.metric) == (aliases[at].local, aliases[at].metric)) {
            if paths.resolve(rival.path, around, ipv6).is_some_and(|other| other != target) {
                return Some(paths.undecided());
            }
        }
    }
    paths.retain_target(Some(target));
    Some(target)
}

impl<A: Address> Marked<A> {
    fn note(&mut self, prefix: Prefix<A>, aliases: &[Alias], paths: &Paths) {
        let kind = |alias: &Alias| paths.get(alias.path).kind;
        let own = aliases.iter().any(|a| kind(a) == RouteKind::Local);
        let suspect = own || aliases.iter().any(|a| kind(a) == RouteKind::Broadcast);
        let host = prefix.length() == A::BITS;
        if host && suspect != self.addresses.contains(&prefix.address()) {
            set_member(&mut self.addresses, prefix.address(), suspect);
            self.addresses_changed = true;
        }
        let local_prefix = !host && !is_ordinary(prefix) && (own || aliases.iter().any(|a| a.local));
        if local_prefix != self.local_prefixes.contains(&prefix) {
            self.doubts_changed = true;
            set_member(&mut self.local_prefixes, prefix, local_prefix);
            // The prefix was added and removed, so nothing has changed.
            let known = self.local_prefixes_changed.contains(&prefix);
            set_member(&mut self.local_prefixes_changed, prefix, !known);
        }
    }
}

fn set_member<T: Ord>(set: &mut BTreeSet<T>, item: T, member: bool) {
    if member {
        set.insert(item);
    } else {
        set.remove(&item);
    }
}

/// Every table local has these: 127.0.0.0/8, and ff00::/8 for each device (of kind unicast in older kernels).
fn is_ordinary<A: Address>(prefix: Prefix<A>) -> bool {
    let first = prefix.address().left_aligned() >> 120;
    prefix.length() >= 8 && first == if A::BITS == 32 { 127 } else { 0xff }
}

#[cfg(test)]
impl<A: Address> Rib<A> {
    /// Every prefix waits in exactly one place, and nothing is held that no route needs.
    pub fn check(&self) {
        use std::collections::BTreeMap;
        let (mut held, mut shown) = (BTreeMap::new(), BTreeMap::new());
        for (prefix, entry) in &self.entries {
            assert!(entry.waits != Waits::No || !entry.is_empty(), "{prefix} is forgotten");
            entry.aliases.as_slice().iter().for_each(|alias| *held.entry(alias.path).or_default() += 1);
            entry.shown.into_iter().for_each(|id| *shown.entry(id).or_default() += 1);
        }
        self.paths.check(&held, shown);
        let sorted = |mut list: Vec<Prefix<A>>| {
            list.sort_unstable();
            list
        };
        let waiting = self.entries.iter().filter(|(_, entry)| entry.waits != Waits::No);
        let waiting = sorted(waiting.map(|(prefix, _)| *prefix).collect());
        assert_eq!(sorted([&self.dirty[..], &self.batch].concat()), waiting);
        assert!(!self.batch.is_empty() || self.leaving.is_empty());
    }

    /// The memory of the table of prefixes: hashbrown keeps one control byte per slot, and fills at most 7/8.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() / 7 * 8 * (size_of::<(Prefix<A>, Entry)>() + 1)
    }
}
