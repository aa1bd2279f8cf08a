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
    pub copies: Copies,
}

/// How many routes of the kernel an alias may stand for. Two IPv4 routes may differ in nothing we know (protocol,
/// preferred source); a message about one that is known may be about the other, or may have been overtaken by a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Copies {
    #[default]
    One,
    /// Added when it was there already.
    OneOrTwo,
    /// And then deleted once: only the kernel knows whether there is such a route.
    NoneOrOne,
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

    /// fib_table_insert(). A route that is there already is one the kernel does not add again (`EEXIST`): a dump has
    /// overtaken the message, or this is a route that differs in what we do not see ([`Copies`]).
    pub fn add4(&mut self, mut alias: Alias, change: Change, paths: &mut Paths) {
        if change == Change::Replace {
            if let Some(at) = self.position(|a| a.equals(&alias)) {
                self.edit(|list| paths.release(std::mem::replace(&mut list[at], alias).path));
                return;
            }
        } else if let Some(at) = self.find(&alias, paths, true) {
            self.remove(at, paths);
            alias.copies = Copies::OneOrTwo;
        }
        if change == Change::Append {
            self.append(alias);
        } else {
            self.edit(|list| list.insert(list.partition_point(|a| a.order() < alias.order()), alias));
        }
    }

    /// fib_table_delete(). What is not there is not missed: a dump overtook the message.
    pub fn delete4(&mut self, alias: &Alias, paths: &mut Paths) {
        let found = self.find(alias, paths, true).or_else(|| self.find(alias, paths, false));
        let Some(at) = found else { return };
        if self.as_slice()[at].copies == Copies::OneOrTwo {
            self.edit(|list| list[at].copies = Copies::NoneOrOne);
        } else {
            self.remove(at, paths);
        }
    }

    fn find(&self, alias: &Alias, paths: &Paths, same_mtu: bool) -> Option<usize> {
        let path = paths.get(alias.path);
        self.position(|a| {
            let other = paths.get(a.path);
            a.equals(alias) && path.same_next(other) && (!same_mtu || path.mtu == other.mtu)
        })
    }

    /// fib6_add_rt2node(). Routes with gateways and equal metric are siblings of one multipath route, and a message
    /// about any of them lists all; others with equal metric stand side by side (the same prefix on two devices,
    /// routes from router advertisements).
    pub fn add6(&mut self, mut alias: Alias, change: Change, paths: &mut Paths) {
        let path = paths.get(alias.path).clone();
        if change == Change::Replace {
            let siblings =
                |a: &Alias| a.equals(&alias) && can_be_sibling(paths.get(a.path)) == can_be_sibling(&path);
            if let Some(at) = self.position(siblings).or_else(|| self.position(|a| a.equals(&alias))) {
                self.edit(|list| paths.release(std::mem::replace(&mut list[at], alias).path));
                return;
            }
        }
        let mut before = Vec::new();
        let mut at = 0;
        while at < self.as_slice().len() {
            let old = self.as_slice()[at];
            if old.equals(&alias) && is_part(paths.get(old.path), &path) {
                before.extend_from_slice(paths.get(old.path).hops());
                self.remove(at, paths);
            } else {
                at += 1;
            }
        }
        if let Some(ordered) = in_order(&path, &before) {
            let ordered = paths.acquire(ordered);
            paths.release(std::mem::replace(&mut alias.path, ordered));
        }
        self.append(alias);
    }

    /// fib6_del(): the message names one next hop, or all siblings.
    pub fn delete6(&mut self, alias: &Alias, paths: &mut Paths) {
        let path = paths.get(alias.path).clone();
        if let Some(at) = self.position(|a| a.equals(alias) && same_set(paths.get(a.path), &path)) {
            return self.remove(at, paths);
        }
        let gone = path.hops();
        let mut at = 0;
        while at < self.as_slice().len() {
            let old = self.as_slice()[at];
            let Some(left) = without(paths.get(old.path), gone).filter(|_| old.equals(alias)) else {
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
        Next::Many(hops) => {
            old.kind == new.kind && !old.hops().is_empty() && old.hops().iter().all(|h| contains(hops, h))
        }
        _ => old.same_next(new),
    }
}

/// The path with its next hops in the order in which Linux tries them, if that is another: those from before first, then the
/// new ones. A message begins with the sibling that it is about (inet6_rt_notify()), but Linux puts new siblings last.
fn in_order(path: &Path, before: &[NextHop]) -> Option<Path> {
    let Next::Many(hops) = &path.next else { return None };
    let mut ordered = hops.to_vec();
    ordered.sort_by_cached_key(|hop| before.iter().position(|b| same_hop(b, hop)).unwrap_or(before.len()));
    (ordered[..] != hops[..]).then(|| Path { next: Next::Many(ordered.into()), ..path.clone() })
}

fn same_set(a: &Path, b: &Path) -> bool {
    let (x, y) = (a.hops(), b.hops());
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
    Some(Some(Path { next, ..path.clone() }))
}
