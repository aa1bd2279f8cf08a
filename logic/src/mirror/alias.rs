//! The routes of one prefix, in the order in which Linux tries them (`struct fib_alias`, `struct fib6_info`).

use super::{
    intern::Id,
    path::{Path, same_hop},
    paths::Paths,
};
use crate::observe::{Change, Next, NextHop, RouteKind};
use std::cmp::Reverse;

/// One route of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alias {
    pub metric: u32,
    /// Holds a reference to the path.
    pub path: Id,
    pub tos: u8,
    /// The route is of table local, otherwise of table main.
    pub local: bool,
    /// It holds only for some sources.
    pub for_sources: bool,
}

impl Alias {
    /// fib_find_alias() (net/ipv4/fib_trie.c): the higher table comes first (local 255, main 254), then the higher TOS,
    /// then the lower metric. IPv6 asks table local first, too, and sorts by metric (fib6_add_rt2node()).
    fn order(&self) -> (bool, Reverse<u8>, u32) {
        (!self.local, Reverse(self.tos), self.metric)
    }

    fn equals(&self, other: &Alias) -> bool {
        self.order() == other.order()
    }
}

/// All routes of a prefix. Nearly every prefix has one route, which then needs no memory of its own.
#[derive(Debug, Default)]
#[allow(clippy::box_collection, reason = "a thin pointer keeps the common case at 16 bytes")]
pub(super) enum Aliases {
    #[default]
    None,
    One(Alias),
    Many(Box<Vec<Alias>>),
}

impl Aliases {
    pub fn as_slice(&self) -> &[Alias] {
        match self {
            Aliases::None => &[],
            Aliases::One(alias) => std::slice::from_ref(alias),
            Aliases::Many(list) => list,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    fn edit(&mut self, change: impl FnOnce(&mut Vec<Alias>)) {
        let mut list = match std::mem::take(self) {
            Aliases::None => Vec::new(),
            Aliases::One(alias) => vec![alias],
            Aliases::Many(list) => *list,
        };
        change(&mut list);
        *self = match list[..] {
            [] => Aliases::None,
            [alias] => Aliases::One(alias),
            _ => Aliases::Many(Box::new(list)),
        };
    }

    fn remove(&mut self, at: usize, paths: &mut Paths) {
        self.edit(|list| paths.release(list.remove(at).path));
    }

    fn position(&self, wanted: impl FnMut(&Alias) -> bool) -> Option<usize> {
        self.as_slice().iter().position(wanted)
    }

    /// Removes all routes.
    pub fn clear(&mut self, paths: &mut Paths) {
        for alias in std::mem::take(self).as_slice() {
            paths.release(alias.path);
        }
    }

    /// Adds a route after its equals: the order of a dump, and of `NLM_F_APPEND`.
    pub fn append(&mut self, alias: Alias) {
        if let Aliases::None = self {
            *self = Aliases::One(alias);
            return;
        }
        self.edit(|list| list.insert(list.partition_point(|a| a.order() <= alias.order()), alias));
    }

    /// fib_table_insert(). A message about a route that already exists adds none (`EEXIST`). Either a dump has
    /// overtaken the message, or the nexthop object of the route was replaced (fib_info_notify_update(), with
    /// `NLM_F_REPLACE`).
    ///
    /// Returns false if only the kernel knows which routes exist now.
    #[must_use]
    pub fn add4(&mut self, alias: Alias, change: Change, paths: &mut Paths) -> bool {
        let replaces = matches!(change, Change::Replace | Change::ReplaceLate);
        if let Some(at) = self.find(&alias, paths) {
            // A blackhole may also be a separate route, beside a normal route of the same object.
            let is_one = replaces || paths.get(self.as_slice()[at].path).kind == paths.get(alias.path).kind;
            self.put(at, alias, paths);
            return is_one;
        }
        if let Some(at) = self.position(|a| a.equals(&alias)).filter(|_| replaces) {
            self.put(at, alias, paths);
            return change == Change::Replace;
        }
        if change == Change::Append {
            self.append(alias);
        } else {
            self.edit(|list| list.insert(list.partition_point(|a| a.order() < alias.order()), alias));
        }
        true
    }

    /// fib_table_delete(). The route may be missing already, if a dump has overtaken the message.
    pub fn delete4(&mut self, alias: &Alias, paths: &mut Paths) {
        if let Some(at) = self.find(alias, paths) {
            self.remove(at, paths);
        }
    }

    fn put(&mut self, at: usize, alias: Alias, paths: &mut Paths) {
        self.edit(|list| paths.release(std::mem::replace(&mut list[at], alias).path));
    }

    fn find(&self, alias: &Alias, paths: &Paths) -> Option<usize> {
        let path = paths.get(alias.path);
        self.position(|a| a.equals(alias) && path.same_route(paths.get(a.path)))
    }

    /// fib6_add_rt2node(). Routes with gateways and equal metric are siblings of one multipath route. A message about
    /// any of them lists all. Others with equal metric are separate routes (the same prefix on two devices, routes from
    /// router advertisements).
    ///
    /// If a nexthop object is replaced, its routes are also announced with `NLM_F_REPLACE` (fib6_rt_update()), in their
    /// place.
    ///
    /// Returns false if only the kernel knows which routes exist now.
    #[must_use]
    pub fn add6(&mut self, mut alias: Alias, change: Change, paths: &mut Paths) -> bool {
        let path = paths.get(alias.path).clone();
        if matches!(change, Change::Replace | Change::ReplaceLate) {
            let equals = |a: &Alias| a.equals(&alias) && paths.get(a.path).rest == path.rest;
            let siblings =
                |a: &Alias| equals(a) && can_be_sibling(paths.get(a.path)) == can_be_sibling(&path);
            let place = self.position(siblings).or_else(|| self.position(equals));
            let known = self.position(|a| equals(a) && same_set(paths.get(a.path), &path));
            if let Some(at) = place {
                // Linux may have replaced a route that a dump hides among the next hops of this group (fib6_dump_node()).
                let replaced = paths.get(self.as_slice()[at].path);
                let may_hide = replaced.is_group() && replaced.complex;
                // The message replaced an equal route, or announced one in its place. Both leave a known route.
                self.put(at, alias, paths);
                return known == Some(at) || known.is_none() && change == Change::Replace && !may_hide;
            }
        }
        let (mut before, mut plain) = (Vec::new(), path.is_plain());
        let mut at = 0;
        while at < self.as_slice().len() {
            let old = self.as_slice()[at];
            if old.equals(&alias) && is_part(paths.get(old.path), &path) {
                before.extend_from_slice(paths.get(old.path).hops());
                plain &= paths.get(old.path).is_plain();
                self.remove(at, paths);
            } else {
                at += 1;
            }
        }
        let known = before.is_empty() || plain && says_all(&path, &before);
        let joined = Path { complex: path.complex || !known && path.is_group(), ..in_order(&path, &before) };
        let sure = joined.complex == path.complex;
        if joined != path {
            let joined = paths.acquire(joined);
            paths.release(std::mem::replace(&mut alias.path, joined));
        }
        self.append(alias);
        // If the message's own next hop is not plain, the others do not matter.
        sure || !path.is_plain()
    }

    /// fib6_del(). The message names one next hop, or all siblings.
    ///
    /// Returns false if only the kernel knows whether the remaining route is plain.
    #[must_use]
    pub fn delete6(&mut self, alias: &Alias, paths: &mut Paths) -> bool {
        let path = paths.get(alias.path).clone();
        if let Some(at) = self.position(|a| a.equals(alias) && same_set(paths.get(a.path), &path)) {
            self.remove(at, paths);
        } else {
            self.delete_siblings(alias, &path, paths);
        }
        !self.as_slice().iter().any(|a| paths.get(a.path).complex)
    }

    fn delete_siblings(&mut self, alias: &Alias, path: &Path, paths: &mut Paths) {
        let gone = path.hops();
        let mut at = 0;
        while at < self.as_slice().len() {
            let old = self.as_slice()[at];
            let tree = old.equals(alias) && paths.get(old.path).rest == path.rest;
            let Some(left) = without(paths.get(old.path), gone).filter(|_| tree) else {
                at += 1;
                continue;
            };
            if let Some(left) = left {
                let path = paths.acquire(left);
                self.edit(|list| list[at].path = path);
                paths.release(old.path);
                at += 1;
            } else {
                self.remove(at, paths);
            }
        }
    }
}

/// rt6_qualify_for_ecmp(), as far as a message shows it.
fn can_be_sibling(path: &Path) -> bool {
    path.kind == RouteKind::Unicast
        && !path.hops().is_empty()
        && path.hops().iter().all(|h| h.gateway.is_some())
}

fn contains(hops: &[NextHop], hop: &NextHop) -> bool {
    hops.iter().any(|h| same_hop(h, hop))
}

/// Whether `new` repeats `old`, or is a more complete version of it.
fn is_part(old: &Path, new: &Path) -> bool {
    match &new.next {
        _ if old.rest != new.rest => false,
        Next::Many(hops) => {
            old.kind == new.kind && !old.hops().is_empty() && old.hops().iter().all(|h| contains(hops, h))
        }
        _ => old.same_next(new),
    }
}

/// The path with its next hops in the order in which Linux tries them: earlier ones first, then new ones. A message
/// begins with the sibling that it is about (inet6_rt_notify()), but Linux puts new siblings last.
fn in_order(path: &Path, before: &[NextHop]) -> Path {
    let Next::Many(hops) = &path.next else { return path.clone() };
    let mut ordered = hops.to_vec();
    ordered.sort_by_cached_key(|hop| before.iter().position(|b| same_hop(b, hop)).unwrap_or(before.len()));
    Path { next: Next::Many(ordered.into()), ..path.clone() }
}

/// Whether the message holds the metrics of all next hops that are new. It holds those of its first next hop. A message
/// about several new ones begins with an old one (ip6_route_mpath_notify()).
fn says_all(path: &Path, before: &[NextHop]) -> bool {
    path.hops().iter().skip(1).all(|hop| contains(before, hop))
}

fn same_set(a: &Path, b: &Path) -> bool {
    let (x, y) = (a.hops(), b.hops());
    if a.rest != b.rest {
        return false;
    }
    if x.is_empty() || y.is_empty() {
        return a.same_next(b);
    }
    a.kind == b.kind && x.len() == y.len() && x.iter().all(|hop| contains(y, hop))
}

/// `path` without the next hops `gone`. `None` if it has none of them, `Some(None)` if nothing is left.
fn without(path: &Path, gone: &[NextHop]) -> Option<Option<Path>> {
    let hops = path.hops();
    let mut left: Vec<NextHop> = hops.iter().filter(|hop| !contains(gone, hop)).cloned().collect();
    if left.len() == hops.len() {
        return None;
    }
    let next = match left.len() {
        0 => return Some(None),
        1 => Next::One(left.remove(0)),
        _ => Next::Many(left.into()),
    };
    Some(Some(Path { next, complex: !path.is_plain(), ..path.clone() }))
}

#[cfg(test)]
mod tests {
    use super::{Change::*, *};

    /// Next hops by the last digit of their gateway. 0: on the link.
    fn hops(gateways: &[u8]) -> Vec<NextHop> {
        let hop = |&last: &u8| {
            let gateway = (last > 0).then(|| [10, 0, 0, last].into());
            NextHop { ifindex: 1, gateway, weight: 1, dead: false, linkdown: false, complex: false }
        };
        gateways.iter().map(hop).collect()
    }

    fn path(gateways: &[u8]) -> Path {
        let next = match &hops(gateways)[..] {
            [] => Next::None,
            [only] => Next::One(only.clone()),
            many => Next::Many(many.into()),
        };
        Path { kind: RouteKind::Unicast, next, mtu: None, complex: false, expires: None, rest: 0 }
    }

    fn object(id: u32) -> Path {
        Path { next: Next::Object(id), ..path(&[]) }
    }

    fn blackhole(rest: u64) -> Path {
        Path { kind: RouteKind::Blackhole, rest, ..path(&[]) }
    }

    fn complex(gateways: &[u8]) -> Path {
        Path { complex: true, ..path(gateways) }
    }

    fn with_mtu(gateways: &[u8]) -> Path {
        Path { mtu: Some(1400), ..path(gateways) }
    }

    /// The routes after these messages, and whether the last message leaves no doubt.
    fn after(messages: Vec<(Change, u32, Path)>) -> (Vec<(u32, Path)>, bool) {
        let (mut paths, mut aliases, mut is_sure) = (Paths::default(), Aliases::default(), true);
        for (change, metric, path) in messages {
            let path = paths.acquire(path);
            let alias = Alias { metric, path, tos: 0, local: false, for_sources: false };
            is_sure = if change == Delete {
                let is_sure = aliases.delete6(&alias, &mut paths);
                paths.release(path);
                is_sure
            } else {
                aliases.add6(alias, change, &mut paths)
            };
        }
        let routes = aliases.as_slice().iter().map(|alias| (alias.metric, paths.get(alias.path).clone()));
        let routes: Vec<_> = routes.collect();
        let mut held = std::collections::BTreeMap::new();
        aliases.as_slice().iter().for_each(|alias| *held.entry(alias.path).or_default() += 1);
        paths.check(&held, Default::default());
        (routes, is_sure)
    }

    /// Routes of metric 1, one message about each.
    fn there(paths: &[Path]) -> Vec<(Change, u32, Path)> {
        paths.iter().map(|path| (Append, 1, path.clone())).collect()
    }

    #[test]
    fn ipv6_messages_about_a_set_join_its_parts_and_no_others() {
        let local = || Path { kind: RouteKind::Local, ..path(&[1]) };
        let of_sources = || Path { rest: 1, ..path(&[1]) };
        // The routes before, the message, the routes after, and whether these are known.
        let rows: Vec<(Vec<Path>, Path, Vec<Path>, bool)> = vec![
            (vec![path(&[1])], path(&[2]), vec![path(&[1]), path(&[2])], true),
            (vec![path(&[1])], path(&[1]), vec![path(&[1])], true),
            (vec![with_mtu(&[1])], with_mtu(&[1]), vec![with_mtu(&[1])], true),
            (vec![path(&[1])], path(&[2, 1]), vec![path(&[1, 2])], true),
            (vec![path(&[1]), path(&[2])], path(&[2, 1]), vec![path(&[1, 2])], true),
            (vec![path(&[1, 2])], path(&[3, 1, 2]), vec![path(&[1, 2, 3])], true),
            // The metrics of the third one are in no message.
            (vec![path(&[1, 2])], path(&[1, 2, 3]), vec![complex(&[1, 2, 3])], false),
            (vec![path(&[3]), path(&[1])], path(&[2, 1]), vec![path(&[3]), path(&[1, 2])], true),
            (vec![object(5)], path(&[2, 1]), vec![object(5), path(&[2, 1])], true),
            (vec![object(5)], object(6), vec![object(5), object(6)], true),
            (vec![local()], path(&[2, 1]), vec![local(), path(&[2, 1])], true),
            (vec![of_sources()], path(&[2, 1]), vec![of_sources(), path(&[2, 1])], true),
            (vec![of_sources()], path(&[1]), vec![of_sources(), path(&[1])], true),
        ];
        for (before, message, expected, is_sure) in rows {
            let (routes, sure) = after([there(&before), vec![(Append, 1, message.clone())]].concat());
            let expected: Vec<_> = expected.into_iter().map(|path| (1, path)).collect();
            assert_eq!((routes, sure), (expected, is_sure), "{before:?}, {message:?}");
        }
        let (routes, _) = after(vec![(Append, 2, path(&[1])), (Append, 1, path(&[2, 1]))]);
        assert_eq!(routes, [(1, path(&[2, 1])), (2, path(&[1]))], "another metric");
    }

    #[test]
    fn ipv6_replaces_the_first_equal_that_can_have_siblings_like_the_new_one() {
        let unreachable = || Path { kind: RouteKind::Unreachable, ..path(&[1]) };
        let rows: Vec<(Vec<Path>, Path, Vec<Path>)> = vec![
            (vec![path(&[1])], path(&[2]), vec![path(&[2])]),
            (vec![path(&[0]), path(&[1])], path(&[2]), vec![path(&[0]), path(&[2])]),
            (vec![path(&[1]), path(&[0])], object(5), vec![path(&[1]), object(5)]),
            (vec![path(&[0])], path(&[2]), vec![path(&[2])]),
            (vec![path(&[0, 1]), path(&[1])], path(&[2]), vec![path(&[0, 1]), path(&[2])]),
            (vec![unreachable(), path(&[1])], path(&[2]), vec![unreachable(), path(&[2])]),
            (vec![blackhole(1)], blackhole(2), vec![blackhole(1), blackhole(2)]),
            (vec![complex(&[1])], path(&[2]), vec![path(&[2])]),
        ];
        for (before, message, expected) in rows {
            let (routes, sure) = after([there(&before), vec![(Replace, 1, message.clone())]].concat());
            let expected: Vec<_> = expected.into_iter().map(|path| (1, path)).collect();
            assert_eq!((routes, sure), (expected, true), "{before:?}, {message:?}");
        }
        let (routes, sure) = after(vec![(Append, 2, path(&[1])), (Replace, 1, path(&[2]))]);
        assert_eq!((routes, sure), (vec![(1, path(&[2])), (2, path(&[1]))], true), "another metric");
        let hiding = [there(&[complex(&[1, 2])]), vec![(Replace, 1, path(&[3]))]].concat();
        assert_eq!(after(hiding), (vec![(1, path(&[3]))], false));
    }

    /// A dump may hold the result of a late message.
    #[test]
    fn a_late_replacement_is_known_only_if_it_changes_nothing() {
        let unreachable = || Path { kind: RouteKind::Unreachable, ..path(&[1]) };
        let rows: [(Path, Path, bool); 9] = [
            (path(&[1]), path(&[1]), true),
            (path(&[1]), path(&[2]), false),
            (path(&[1, 2]), path(&[2, 1]), true),
            (path(&[1, 2]), path(&[1, 3]), false),
            (path(&[1]), path(&[1, 2]), false),
            (path(&[1, 2]), path(&[1]), false),
            (path(&[1]), unreachable(), false),
            (object(5), object(5), true),
            (object(5), object(6), false),
        ];
        for (before, message, is_sure) in rows {
            let messages = vec![(Append, 1, before.clone()), (ReplaceLate, 1, message.clone())];
            assert_eq!(after(messages), (vec![(1, message)], is_sure), "{before:?}");
        }
    }

    #[test]
    fn ipv6_deletions_name_one_next_hop_or_all() {
        let of_sources = || Path { rest: 1, ..path(&[1, 2]) };
        let rows: Vec<(Vec<Path>, Path, Vec<Path>, bool)> = vec![
            (vec![path(&[1]), path(&[2])], path(&[1]), vec![path(&[2])], true),
            (vec![path(&[1])], path(&[2]), vec![path(&[1])], true),
            (vec![with_mtu(&[1])], path(&[2]), vec![with_mtu(&[1])], true),
            (vec![path(&[1, 2, 3])], path(&[2]), vec![path(&[1, 3])], true),
            (vec![path(&[1, 2])], path(&[1]), vec![path(&[2])], true),
            (
                vec![path(&[0]), path(&[3]), path(&[1, 2])],
                path(&[1]),
                vec![path(&[0]), path(&[3]), path(&[2])],
                true,
            ),
            (vec![path(&[1, 2])], path(&[2, 1]), vec![], true),
            (vec![path(&[1]), path(&[2])], path(&[1, 2]), vec![], true),
            (vec![object(5), object(6)], object(6), vec![object(5)], true),
            (vec![blackhole(0), path(&[1])], blackhole(0), vec![path(&[1])], true),
            (vec![of_sources()], path(&[1, 2]), vec![of_sources()], true),
            // The other next hop may have other metrics.
            (vec![with_mtu(&[1, 2])], path(&[1]), vec![Path { complex: true, ..with_mtu(&[2]) }], false),
        ];
        for (before, message, expected, is_sure) in rows {
            let (routes, sure) = after([there(&before), vec![(Delete, 1, message.clone())]].concat());
            let expected: Vec<_> = expected.into_iter().map(|path| (1, path)).collect();
            assert_eq!((routes, sure), (expected, is_sure), "{before:?}, {message:?}");
        }
        let (routes, _) = after(vec![(Append, 2, path(&[1, 2])), (Delete, 1, path(&[1]))]);
        assert_eq!(routes, [(2, path(&[1, 2]))], "another metric");
        let (routes, _) = after(vec![(Append, 2, path(&[1])), (Delete, 1, path(&[1]))]);
        assert_eq!(routes, [(2, path(&[1]))], "another metric");
    }
}
