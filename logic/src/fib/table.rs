//! One router's table for one address family: its routes, and how they become slots.
//!
//! Canonical form: below a root of 8, 16 or 24 bits, a slot leads to a block if two or more routes lie strictly inside
//! its range, to a tail if one does, else to the leaf of the longest route that covers it. Each slot's *depth* (length
//! of the route its leaf, or its tail's miss, comes from) is kept aside, so a change touches just the slots it owns.
//!
//! When memory runs out the slot that could not be built is *poisoned*: it leads to [`Space::full`] as a whole, until
//! [`Table::heal`] or a change inside its range finds room.

use super::{Full, Kind, Pool, Slot, empty_root, pool::POISONED};
use crate::{
    memory::{Memory, words},
    net::{Address, Prefix},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{
        Bound::{Excluded, Unbounded},
        Range, RangeInclusive,
    },
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, Release},
    },
};

/// Where a table lives.
pub struct Space<'a, M: ?Sized> {
    /// Shared memory.
    pub memory: &'a M,
    /// Its free rows.
    pub pool: &'a mut Pool,
    /// The router's word that holds the root.
    pub root: &'a AtomicU64,
    /// The leaf of what found no room: to the kernel.
    pub full: Slot,
}

/// How a table is shaped; the default is chosen by measurement (see [`super`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// More routes than this: a 16-bit root of 256 blocks. Below half of it: an 8-bit root of one block again.
    pub routes_16: usize,
    /// More routes than this: a 24-bit root of 65,536 blocks (DIR-24-8). Below half of it: 16 bits again.
    pub routes_24: usize,
    /// Path compression. Without it every route deeper than its block costs blocks; for comparison only.
    pub tails: bool,
}

impl Policy {
    /// For addresses of this width.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Root {
    first: u32,
    bits: u8,
}

impl Root {
    fn blocks(self) -> u32 {
        1 << (self.bits - 8)
    }
    fn word<A: Address>(self) -> u64 {
        u64::from(self.first) | u64::from(A::BITS - (self.bits - 8)) << 32
    }
    /// Its slots are one range, as its blocks are adjacent.
    fn node(self) -> Node {
        Node { base: self.first as usize * words::FIB_BLOCK, offset: 0, bits: self.bits }
    }
}

/// A block, or the root: `2^bits` slots that branch on the address bits after `offset`.
#[derive(Clone, Copy)]
struct Node {
    base: usize,
    offset: u8,
    bits: u8,
}

impl Node {
    fn child(block: u32, offset: u8) -> Node {
        Node { base: block as usize * words::FIB_BLOCK, offset, bits: 8 }
    }
    fn end(self) -> u8 {
        self.offset + self.bits
    }
    fn slot<A: Address>(self, address: A) -> usize {
        let index = if self.offset == 0 {
            address.head(A::BITS - self.bits) as usize
        } else {
            usize::from(address.octet(self.offset))
        };
        self.base + index
    }
    /// The slots of a prefix that ends in this node.
    fn slots<A: Address>(self, prefix: Prefix<A>) -> Range<usize> {
        let first = self.slot(prefix.address());
        first..first + (1 << (self.end() - prefix.length()))
    }
}

type Rib<A> = BTreeMap<Prefix<A>, Slot>;

/// The routes of one router and address family.
pub struct Table<A> {
    rib: Rib<A>,
    root: Option<Root>,
    poisoned: BTreeSet<Prefix<A>>,
    policy: Policy,
    /// Routes that do not count for the size of the root.
    guards: usize,
    /// A bigger root found no room: try again at this many routes.
    retry_routes: usize,
}

impl<A: Address> Default for Table<A> {
    fn default() -> Self {
        Self::with_policy(Policy::of::<A>())
    }
}

impl<A: Address> Table<A> {
    /// Empty, and of this shape.
    pub fn with_policy(policy: Policy) -> Self {
        let (rib, poisoned) = (BTreeMap::new(), BTreeSet::new());
        Self { rib, root: None, poisoned, policy, guards: 0, retry_routes: 0 }
    }

    /// This many of the routes do not count when the size of the root is chosen.
    pub fn set_guards(&mut self, guards: usize) {
        self.guards = guards;
    }

    /// Routes, guards included.
    pub fn len(&self) -> usize {
        self.rib.len()
    }

    /// No routes at all.
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

    /// Bits of the root, 0 without one.
    pub fn root_bits(&self) -> u8 {
        self.root.map_or(0, |r| r.bits)
    }

    /// Ranges that lead to the kernel for want of room.
    pub fn poisoned(&self) -> impl Iterator<Item = Prefix<A>> + '_ {
        self.poisoned.iter().copied()
    }

    /// Is part of the table missing for want of room?
    pub fn is_degraded(&self) -> bool {
        !self.poisoned.is_empty() || (self.root.is_none() && !self.rib.is_empty())
    }

    /// `prefix` leads to `leaf` from now on. The route is noted even if there is no room for it in shared memory: then
    /// at least its addresses lead to the kernel.
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

    /// `prefix` is no route any more. Returns the leaf it had.
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

    /// No routes at all any more.
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

    /// Tries again what found no room before; call it when room may have been reclaimed.
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

    /// Gives the table the root its size asks for. True: a new root was built from all routes and published.
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

/// The longest route of at most `length` bits that covers `address`.
///
/// The greatest key not above `address/length` either covers it, or differs from it after some bits in common; every
/// route that covers both has at most as many bits.
fn covering<A: Address>(rib: &Rib<A>, address: A, length: u8) -> Option<(Prefix<A>, Slot)> {
    let mut key = Prefix::new(address, length)?;
    loop {
        let (candidate, leaf) = rib.range(..=key).next_back()?;
        if candidate.covers(key) {
            return Some((*candidate, *leaf));
        }
        let differ = candidate.address().left_aligned() ^ key.address().left_aligned();
        key = Prefix::new(address, differ.leading_zeros() as u8)?;
    }
}

/// The routes strictly inside `region`, in order.
fn inside<A: Address>(rib: &Rib<A>, region: Prefix<A>) -> impl Iterator<Item = (Prefix<A>, Slot)> + '_ {
    let after = rib.range((Excluded(region), Unbounded));
    after.take_while(move |(p, _)| region.covers(**p)).map(|(p, s)| (*p, *s))
}

/// Writes slots, in blocks that readers may be walking or in blocks not published yet: the same stores do for both.
struct Writer<'a, A, M: ?Sized> {
    memory: &'a M,
    pool: &'a mut Pool,
    full: Slot,
    rib: &'a Rib<A>,
    poisoned: &'a mut BTreeSet<Prefix<A>>,
    tails: bool,
    missing: Option<Full>,
}

impl<'a, A: Address, M: Memory + ?Sized> Writer<'a, A, M> {
    fn new(
        space: &'a mut Space<'_, M>,
        rib: &'a Rib<A>,
        poisoned: &'a mut BTreeSet<Prefix<A>>,
        tails: bool,
    ) -> Self {
        let (memory, full) = (space.memory, space.full);
        Self { memory, pool: space.pool, full, rib, poisoned, tails, missing: None }
    }

    /// What found no room may have found some on the way, by another shape: only what is poisoned now counts.
    fn outcome(&self) -> Result<(), Full> {
        self.missing.filter(|_| !self.poisoned.is_empty()).map_or(Ok(()), Err)
    }

    fn load(&self, at: usize) -> Slot {
        self.memory.fib().get(at).map_or(Slot::NO_ROUTE, |word| Slot(word.load(Relaxed)))
    }

    fn store(&mut self, at: usize, slot: Slot, depth: u8) {
        if let Some(word) = self.memory.fib().get(at) {
            word.store(slot.0, Release);
            self.pool.set_depth(at, depth);
        }
    }

    /// `prefix` (longer than `node.offset`) leads to `leaf`.
    fn place(&mut self, mut node: Node, prefix: Prefix<A>, leaf: Slot) {
        while prefix.length() > node.end() {
            let at = node.slot(prefix.address());
            let slot = self.load(at);
            match slot.kind() {
                Kind::Child => node = Node::child(slot.index(), node.end()),
                Kind::Tail => return self.place_beside_tail(at, node.end(), slot.index(), prefix, leaf),
                Kind::Nexthop | Kind::Group if self.pool.depth(at) == POISONED => {
                    return self.rebuild_slot(at, prefix, node.end());
                }
                Kind::Nexthop | Kind::Group => {
                    return self.publish_routes(at, node.end(), slot, &[(prefix, leaf)]);
                }
            }
        }
        self.fill(node.slots(prefix), 0..=prefix.length(), leaf, prefix.length());
    }

    fn place_beside_tail(&mut self, at: usize, end: u8, tail: u32, prefix: Prefix<A>, leaf: Slot) {
        let (other, matched, miss) = self.tail(tail);
        if other == prefix.address().left_aligned() && self.tail_length(tail) == prefix.length() {
            return self.set_tail_leaves(tail, leaf, miss);
        }
        // The tail's prefix as a route: in this slot it is the only one, or the only one but `prefix`.
        let region = Prefix::new(prefix.address(), end);
        let length = self.tail_length(tail);
        let found = region.and_then(|r| {
            inside(self.rib, r).find(|(p, _)| p.length() == length && p.address().left_aligned() == other)
        });
        match found {
            Some((other, _)) => self.publish_routes(at, end, miss, &[(other, matched), (prefix, leaf)]),
            None => self.rebuild_slot(at, prefix, end),
        }
        self.pool.retire_tail(tail);
    }

    /// Makes the slot `at`, whose range ends at bit `end`, lead to `routes` and else to `miss`. The slot's depth is
    /// that of `miss` and stays.
    fn publish_routes(&mut self, at: usize, end: u8, miss: Slot, routes: &[(Prefix<A>, Slot)]) {
        let depth = self.pool.depth(at);
        let built = match routes {
            [] => Ok(miss),
            [(prefix, leaf)] if self.tails => self.new_tail(*prefix, *leaf, miss),
            _ => self.pool.blocks(self.memory, 1, miss, depth).map(|block| {
                for (prefix, leaf) in routes {
                    self.place(Node::child(block, end), *prefix, *leaf);
                }
                Slot::child(block)
            }),
        };
        match built {
            Ok(slot) => self.store(at, slot, depth),
            Err(full) => {
                self.missing = Some(full);
                self.store(at, self.full, POISONED);
                if let Some(region) = routes.first().and_then(|(p, _)| Prefix::new(p.address(), end)) {
                    self.poisoned.insert(region);
                }
            }
        }
    }

    /// Makes the slot `at`, which holds `inner` and whose range ends at bit `end`, what the routes say. Whatever the
    /// slot led to is the caller's to retire.
    fn rebuild_slot(&mut self, at: usize, inner: Prefix<A>, end: u8) {
        let Some(region) = Prefix::new(inner.address(), end) else { return };
        self.poisoned.remove(&region);
        let (miss, depth) = self.inherited(region);
        // Readers go on seeing what the slot holds until publish_routes stores it.
        self.pool.set_depth(at, depth);
        let routes: Vec<_> = inside(self.rib, region).collect();
        self.publish_routes(at, end, miss, &routes);
    }

    fn inherited(&self, region: Prefix<A>) -> (Slot, u8) {
        let found = covering(self.rib, region.address(), region.length());
        found.map_or((Slot::NO_ROUTE, 0), |(p, leaf)| (leaf, p.length()))
    }

    /// All slots in the range, and below them, whose leaf comes from a route of `depths` bits lead to `leaf`.
    fn fill(&mut self, range: Range<usize>, depths: RangeInclusive<u8>, leaf: Slot, depth: u8) {
        for at in range {
            let slot = self.load(at);
            if slot.kind() == Kind::Child {
                let block = slot.index() as usize * words::FIB_BLOCK;
                self.fill(block..block + words::FIB_BLOCK, depths.clone(), leaf, depth);
            } else if depths.contains(&self.pool.depth(at)) {
                if slot.kind() == Kind::Tail {
                    let (_, matched, _) = self.tail(slot.index());
                    self.set_tail_leaves(slot.index(), matched, leaf);
                    self.pool.set_depth(at, depth);
                } else {
                    self.store(at, leaf, depth);
                }
            }
        }
    }

    /// `prefix` is no longer among the routes.
    fn erase(&mut self, mut node: Node, prefix: Prefix<A>) {
        // Slots that lead to the blocks on the way down, with the end of their range.
        let mut path: Vec<(usize, u8, u32)> = Vec::new();
        loop {
            if prefix.length() <= node.end() {
                let length = prefix.length();
                let parent = length.checked_sub(1).and_then(|l| covering(self.rib, prefix.address(), l));
                let (leaf, depth) = parent.map_or((Slot::NO_ROUTE, 0), |(p, leaf)| (leaf, p.length()));
                self.fill(node.slots(prefix), length..=length, leaf, depth);
                break;
            }
            let at = node.slot(prefix.address());
            let slot = self.load(at);
            match slot.kind() {
                Kind::Child => {
                    path.push((at, node.end(), slot.index()));
                    node = Node::child(slot.index(), node.end());
                    continue;
                }
                Kind::Tail => {
                    let (_, _, miss) = self.tail(slot.index());
                    self.store(at, miss, self.pool.depth(at));
                    self.pool.retire_tail(slot.index());
                }
                Kind::Nexthop | Kind::Group => self.rebuild_slot(at, prefix, node.end()),
            }
            break;
        }
        self.collapse(&path, prefix);
    }

    /// Blocks on the path to `prefix` that hold fewer than two routes now become tails or leaves.
    fn collapse(&mut self, path: &[(usize, u8, u32)], prefix: Prefix<A>) {
        let enough = if self.tails { 2 } else { 1 };
        let mut top = None;
        for &(at, end, block) in path.iter().rev() {
            let Some(region) = Prefix::new(prefix.address(), end) else { return };
            if inside(self.rib, region).take(enough).count() >= enough {
                break;
            }
            top = Some((at, end, block, region));
        }
        let Some((at, end, block, region)) = top else { return };
        let (miss, depth) = self.inherited(region);
        let slot = match inside(self.rib, region).next() {
            None => miss,
            Some((prefix, leaf)) => match self.new_tail(prefix, leaf, miss) {
                Ok(slot) => slot,
                Err(_) => return,
            },
        };
        self.store(at, slot, depth);
        debug_assert_eq!(region.length(), end);
        self.retire_block(block);
        let gone: Vec<_> =
            self.poisoned.range(region..).take_while(|p| region.covers(**p)).copied().collect();
        for poisoned in gone {
            self.poisoned.remove(&poisoned);
        }
    }

    fn heal(&mut self, mut node: Node, region: Prefix<A>) {
        while region.length() > node.end() {
            let slot = self.load(node.slot(region.address()));
            if slot.kind() != Kind::Child {
                return;
            }
            node = Node::child(slot.index(), node.end());
        }
        let at = node.slot(region.address());
        if self.pool.depth(at) == POISONED {
            self.rebuild_slot(at, region, region.length());
        }
    }

    fn retire_root(&mut self, root: Root) {
        let base = root.node().base;
        self.retire_below(base..base + root.blocks() as usize * words::FIB_BLOCK);
        self.pool.retire_blocks(root.first, root.blocks());
    }

    fn retire_block(&mut self, block: u32) {
        let base = block as usize * words::FIB_BLOCK;
        self.retire_below(base..base + words::FIB_BLOCK);
        self.pool.retire_blocks(block, 1);
    }

    fn retire_below(&mut self, range: Range<usize>) {
        for at in range {
            let slot = self.load(at);
            match slot.kind() {
                Kind::Child => self.retire_block(slot.index()),
                Kind::Tail => self.pool.retire_tail(slot.index()),
                Kind::Nexthop | Kind::Group => {}
            }
        }
    }

    fn tail_words(&self, tail: u32) -> &'a [AtomicU64] {
        let at = tail as usize * words::FIB_TAIL;
        self.memory.fib_tails().get(at..at + words::FIB_TAIL).unwrap_or(&[])
    }

    /// Prefix (left-aligned), match and miss.
    fn tail(&self, tail: u32) -> (u128, Slot, Slot) {
        let [hi, lo, leaves, _] = self.tail_words(tail) else { return Default::default() };
        let leaves = leaves.load(Relaxed);
        let prefix = u128::from(hi.load(Relaxed)) << 64 | u128::from(lo.load(Relaxed));
        (prefix, Slot(leaves as u32), Slot((leaves >> 32) as u32))
    }

    fn tail_length(&self, tail: u32) -> u8 {
        self.tail_words(tail).last().map_or(0, |word| word.load(Relaxed) as u8)
    }

    fn set_tail_leaves(&mut self, tail: u32, matched: Slot, miss: Slot) {
        if let [_, _, leaves, _] = self.tail_words(tail) {
            leaves.store(u64::from(matched.0) | u64::from(miss.0) << 32, Release);
        }
    }

    fn new_tail(&mut self, prefix: Prefix<A>, matched: Slot, miss: Slot) -> Result<Slot, Full> {
        let tail = self.pool.tail()?;
        if let [hi, lo, _, length] = self.tail_words(tail) {
            let address = prefix.address().left_aligned();
            hi.store((address >> 64) as u64, Relaxed);
            lo.store(address as u64, Relaxed);
            length.store(prefix.length().into(), Relaxed);
        }
        self.set_tail_leaves(tail, matched, miss);
        Ok(Slot::tail(tail))
    }
}
