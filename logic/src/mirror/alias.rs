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
    /// Holds a reference.
    pub path: Id,
    pub tos: u8,
    /// Of table local, else of table main.
    pub local: bool,
    /// It holds for some sources only.
    pub for_sources: bool,
}

impl Alias {
    /// fib_find_alias() (net/ipv4/fib_trie.c): higher table first (local 255, main 254), then higher TOS, then lower
    /// metric. IPv6 asks table local first, too, and sorts by metric (fib6_add_rt2node()).
    fn order(&self) -> (bool, Reverse<u8>, u32) {
        (!self.local, Reverse(self.tos), self.metric)
    }

    fn equals(&self, other: &Alias) -> bool {
        self.order() == other.order()
    }
}

/// All routes of a prefix. Nearly every prefix has one, which then takes no memory of its own.
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

    /// No routes any more.
    pub fn clear(&mut self, paths: &mut Paths) {
        for alias in std::mem::take(self).as_slice() {
            paths.release(alias.path);
        }
    }

    /// After its equals: the order of a dump, and of `NLM_F_APPEND`.
    pub fn append(&mut self, alias: Alias) {
        if let Aliases::None = self {
            *self = Aliases::One(alias);
            return;
        }
        self.edit(|list| list.insert(list.partition_point(|a| a.order() <= alias.order()), alias));
    }

    /// fib_table_insert(). A message about a route that is there already adds none (`EEXIST`): a dump has overtaken it, or
    /// the nexthop object of the route was replaced (fib_info_notify_update(), with `NLM_F_REPLACE`).
    ///
    /// False: only the kernel knows which routes there are now.
    #[must_use]
    pub fn add4(&mut self, alias: Alias, change: Change, paths: &mut Paths) -> bool {
        let replaces = matches!(change, Change::Replace | Change::ReplaceLate);
        if let Some(at) = self.find(&alias, paths) {
            // A blackhole may also be of its own, beside a route of the same object that is none.
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

    /// fib_table_delete(). What is not there is not missed: a dump overtook the message.
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

    /// fib6_add_rt2node(). Routes with gateways and equal metric are siblings of one multipath route, and a message
    /// about any of them lists all; others with equal metric stand side by side (the same prefix on two devices,
    /// routes from router advertisements).
    ///
    /// A replaced nexthop object also has its routes announced with `NLM_F_REPLACE` (fib6_rt_update()), in their place.
    ///
    /// False: only the kernel knows which routes there are now.
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
                // Replaced by its like, or announced where it stood: both leave a route that is known.
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

    /// fib6_del(): the message names one next hop, or all siblings.
    ///
    /// False: only the kernel knows whether what is left is plain.
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

/// rt6_qualify_for_ecmp(), as far as a message tells.
fn can_be_sibling(path: &Path) -> bool {
    path.kind == RouteKind::Unicast
        && !path.hops().is_empty()
        && path.hops().iter().all(|h| h.gateway.is_some())
}

fn contains(hops: &[NextHop], hop: &NextHop) -> bool {
    hops.iter().any(|h| same_hop(h, hop))
}

/// Is `old` what `new` says again, or says more completely?
fn is_part(old: &Path, new: &Path) -> bool {
    match &new.next {
        _ if old.rest != new.rest => false,
        Next::Many(hops) => {
            old.kind == new.kind && !old.hops().is_empty() && old.hops().iter().all(|h| contains(hops, h))
        }
        _ => old.same_next(new),
    }
}

/// The path with its next hops in the order in which Linux tries them: those from before first, then the new ones. A message
/// begins with the sibling that it is about (inet6_rt_notify()), but Linux puts new siblings last.
fn in_order(path: &Path, before: &[NextHop]) -> Path {
    let Next::Many(hops) = &path.next else { return path.clone() };
    let mut ordered = hops.to_vec();
    ordered.sort_by_cached_key(|hop| before.iter().position(|b| same_hop(b, hop)).unwrap_or(before.len()));
    Path { next: Next::Many(ordered.into()), ..path.clone() }
}

/// Does the message hold the metrics of all next hops that are new? It has those of its first. A message about several new
/// ones begins with an old one (ip6_route_mpath_notify()).
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

/// `path` without the next hops `gone`: `None` if it has none of them, `Some(None)` if nothing is left.
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
