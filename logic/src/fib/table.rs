//! One router's table for one address family: its routes, and the slots for them.
//!
//! The form is canonical. Below a root of 8, 16 or 24 bits, a slot leads to a block if two or more routes lie strictly
//! inside its range. It leads to a tail if one route does, and otherwise to the leaf of the longest route that covers
//! it. The block branches at the last octet boundary strictly inside of which all those routes are. A tail leads to it
//! if bits are skipped. The *depth* of a slot is the length of the route that its leaf, or its tail's miss, comes from.
//! Depths are kept separately, so a change touches only the slots that it owns.
//!
//! If memory runs out, the slot that could not be built is *poisoned*. Its whole range leads to [`Space::full`] until
//! [`Table::heal`] or a change inside the range finds room.

use super::{
    Full, Pool, Slot, empty_root,
    writer::{Rib, Root, Writer},
};
use crate::{
    memory::Memory,
    net::{Address, Prefix},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering::Release},
};

/// The place of a table.
pub struct Space<'a, M: ?Sized> {
    /// Shared memory.
    pub memory: &'a M,
    /// Its free rows.
    pub pool: &'a mut Pool,
    /// The router's word that holds the root.
    pub root: &'a AtomicU64,
    /// The leaf for parts that found no room. It leads to the kernel.
    pub full: Slot,
}

/// The shape of a table. The default was chosen by measurement (see [`super`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// With more routes than this: a 16-bit root of 256 blocks. Below half of it: an 8-bit root of one block again.
    pub routes_16: usize,
    /// With more routes than this: a 24-bit root of 65,536 blocks (DIR-24-8). Below half of it: 16 bits again.
    pub routes_24: usize,
    /// Path compression. Without it every route deeper than its block costs blocks. It is off only for comparison.
    pub tails: bool,
}

impl Policy {
    /// The policy for addresses of this width.
    pub fn of<A: Address>() -> Policy {
        let routes_24 = if A::BITS == 32 { 65_536 } else { usize::MAX };
        Policy { routes_16: 256, routes_24, tails: true }
    }

    fn root_bits(&self, routes: usize, now: u8) -> u8 {
        let wanted = |routes: usize| match routes {
            n if n > self.routes_24 => 24,
            n if n > self.routes_16 => 16,
            _ => 8,
        };
        let (grown, shrunk) = (wanted(routes), wanted(routes.saturating_mul(2)));
        if grown > now {
            grown
        } else if shrunk < now {
            shrunk
        } else {
            now
        }
    }
}

/// The routes of one router and address family.
pub struct Table<A> {
    rib: Rib<A>,
    root: Option<Root>,
    poisoned: BTreeSet<Prefix<A>>,
    policy: Policy,
    /// The number of routes that do not count for the size of the root.
    guards: usize,
    /// A bigger root found no room. It is tried again at this many routes.
    retry_routes: usize,
}

impl<A: Address> Default for Table<A> {
    fn default() -> Self {
        Self::with_policy(Policy::of::<A>())
    }
}

impl<A: Address> Table<A> {
    /// An empty table of this shape.
    pub fn with_policy(policy: Policy) -> Self {
        let (rib, poisoned) = (BTreeMap::new(), BTreeSet::new());
        Self { rib, root: None, poisoned, policy, guards: 0, retry_routes: 0 }
    }

    /// Sets how many of the routes do not count for the size of the root.
    pub fn set_guards(&mut self, guards: usize) {
        self.guards = guards;
    }

    /// The number of routes, including guards.
    pub fn len(&self) -> usize {
        self.rib.len()
    }

    /// Whether there are no routes.
    pub fn is_empty(&self) -> bool {
        self.rib.is_empty()
    }

    /// All routes with their leaves, in order.
    pub fn routes(&self) -> impl Iterator<Item = (Prefix<A>, Slot)> + '_ {
        self.rib.iter().map(|(p, s)| (*p, *s))
    }

    /// The leaf of exactly this prefix.
    pub fn get(&self, prefix: Prefix<A>) -> Option<Slot> {
        self.rib.get(&prefix).copied()
    }

    /// The bits of the root; 0 if there is none.
    pub fn root_bits(&self) -> u8 {
        self.root.map_or(0, |r| r.bits)
    }

    /// The ranges that lead to the kernel because there is no room.
    pub fn poisoned(&self) -> impl Iterator<Item = Prefix<A>> + '_ {
        self.poisoned.iter().copied()
    }

    /// Whether part of the table is missing because there is no room.
    pub fn is_degraded(&self) -> bool {
        !self.poisoned.is_empty() || (self.root.is_none() && !self.rib.is_empty())
    }

    /// Makes `prefix` lead to `leaf`. The route is noted even if there is no room for it in shared memory. Its
    /// addresses then lead to the kernel.
    pub fn insert<M: Memory + ?Sized>(
        &mut self,
        space: &mut Space<'_, M>,
        prefix: Prefix<A>,
        leaf: Slot,
    ) -> Result<(), Full> {
        if self.rib.insert(prefix, leaf) == Some(leaf) {
            return Ok(());
        }
        if self.resize(space)? {
            return Ok(());
        }
        let Some(root) = self.root else { return Ok(()) };
        let mut writer = Writer::new(space, &self.rib, &mut self.poisoned, self.policy.tails);
        writer.place(root.node(), prefix, leaf);
        writer.outcome()
    }

    /// Removes the route of `prefix`. Returns the leaf that it had.
    pub fn remove<M: Memory + ?Sized>(
        &mut self,
        space: &mut Space<'_, M>,
        prefix: Prefix<A>,
    ) -> Option<Slot> {
        let leaf = self.rib.remove(&prefix)?;
        if self.rib.is_empty() {
            self.clear(space);
        } else if !self.resize(space).unwrap_or(false)
            && let Some(root) = self.root
        {
            Writer::new(space, &self.rib, &mut self.poisoned, self.policy.tails).erase(root.node(), prefix);
        }
        Some(leaf)
    }

    /// Removes all routes.
    pub fn clear<M: Memory + ?Sized>(&mut self, space: &mut Space<'_, M>) {
        self.rib.clear();
        space.root.store(empty_root::<A>(), Release);
        if let Some(root) = self.root.take() {
            let mut writer = Writer::new(space, &self.rib, &mut self.poisoned, self.policy.tails);
            writer.retire_root(root);
        }
        self.poisoned.clear();
        self.retry_routes = 0;
    }

    /// Tries again the parts that found no room. Call it after room may have been reclaimed.
    pub fn heal<M: Memory + ?Sized>(&mut self, space: &mut Space<'_, M>) -> Result<(), Full> {
        if self.root.is_none() {
            return self.resize(space).map(|_| ());
        }
        let Some(root) = self.root else { return Ok(()) };
        for region in self.poisoned.clone() {
            let mut writer = Writer::new(space, &self.rib, &mut self.poisoned, self.policy.tails);
            writer.heal(root.node(), region);
            writer.outcome()?;
        }
        Ok(())
    }

    /// Gives the table a root for its size. Returns true if a new root was built from all routes and published.
    fn resize<M: Memory + ?Sized>(&mut self, space: &mut Space<'_, M>) -> Result<bool, Full> {
        let routes = self.rib.len().saturating_sub(self.guards);
        let now = self.root_bits();
        let bits = self.policy.root_bits(routes, now);
        if self.rib.is_empty() || bits == now || (self.root.is_some() && routes < self.retry_routes) {
            return Ok(false);
        }
        let had_root = self.root.is_some();
        match self.rebuild(space, bits) {
            Err(_) if had_root => {
                self.retry_routes = routes + routes / 4 + 1;
                Ok(false)
            }
            built => built.map(|()| true),
        }
    }

    fn rebuild<M: Memory + ?Sized>(&mut self, space: &mut Space<'_, M>, bits: u8) -> Result<(), Full> {
        let everything = self.rib.first_key_value().filter(|(p, _)| p.length() == 0);
        let leaf = everything.map_or(Slot::NO_ROUTE, |(_, s)| *s);
        let first = space.pool.blocks(space.memory, 1 << (bits - 8), leaf, 0)?;
        let root = Root { first, bits };
        let mut poisoned = BTreeSet::new();
        let mut writer = Writer::new(space, &self.rib, &mut poisoned, self.policy.tails);
        for (prefix, leaf) in self.rib.iter().skip(usize::from(everything.is_some())) {
            writer.place(root.node(), *prefix, *leaf);
        }
        let outcome = writer.outcome();
        if outcome.is_err() && self.root.is_some() {
            writer.retire_root(root);
            return outcome;
        }
        space.root.store(root.word::<A>(), Release);
        let old = self.root.replace(root);
        self.poisoned = poisoned;
        self.retry_routes = 0;
        if let Some(old) = old {
            let mut none = BTreeSet::new();
            Writer::new(space, &self.rib, &mut none, self.policy.tails).retire_root(old);
        }
        outcome
    }
}
