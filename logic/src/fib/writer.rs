//! Turns routes into slots, in blocks that readers may be walking or in blocks that are not published yet.

use super::{Full, Kind, Pool, Slot, Space, pool::POISONED};
use crate::{
    memory::{Memory, words},
    net::{Address, Prefix},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{
        Bound::{Excluded, Included, Unbounded},
        Range, RangeInclusive,
    },
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, Release},
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) first: u32,
    pub(super) bits: u8,
}

impl Root {
    fn blocks(self) -> u32 {
        1 << (self.bits - 8)
    }
    pub(super) fn word<A: Address>(self) -> u64 {
        u64::from(self.first) | u64::from(A::BITS - (self.bits - 8)) << 32
    }
    /// The root as a node. Its slots are one range, because its blocks are adjacent.
    pub(super) fn node(self) -> Node {
        Node { base: self.first as usize * words::FIB_BLOCK, offset: 0, bits: self.bits }
    }
}

/// A block, or the root: `2^bits` slots that branch on the address bits after `offset`.
#[derive(Clone, Copy)]
pub(super) struct Node {
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

pub(super) type Rib<A> = BTreeMap<Prefix<A>, Slot>;

/// The longest route of at most `length` bits that covers `address`.
///
/// The greatest key that is not above `address/length` either covers it, or differs from it after some common bits. In
/// the second case, every route that covers both has at most as many bits.
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
fn inside<A: Address>(
    rib: &Rib<A>,
    region: Prefix<A>,
) -> impl DoubleEndedIterator<Item = (Prefix<A>, Slot)> + '_ {
    let host_bits = u128::MAX.checked_shr(region.length().into()).unwrap_or(0);
    let last = A::from_left_aligned(region.address().left_aligned() | host_bits);
    let to = Prefix::new(last, A::BITS).map_or(Unbounded, Included);
    rib.range((Excluded(region), to)).map(|(p, s)| (*p, *s))
}

/// The last octet boundary up to which all of these routes agree and none ends. They are in order, and all are strictly
/// inside the range that ends at bit `end`.
fn branching<A: Address>(routes: &[(Prefix<A>, Slot)], end: u8) -> u8 {
    let (Some((first, _)), Some((last, _))) = (routes.first(), routes.last()) else { return end };
    let shortest = routes.iter().map(|(p, _)| p.length()).min().unwrap_or(0);
    octets_before(*first, *last, shortest).max(end)
}

/// The last octet boundary up to which both agree and that is below `length`.
fn octets_before<A: Address>(one: Prefix<A>, other: Prefix<A>, length: u8) -> u8 {
    let differ = one.address().left_aligned() ^ other.address().left_aligned();
    (differ.leading_zeros() as u8).min(length.saturating_sub(1)) & !7
}

/// A `struct fib_tail`: its prefix leads to a leaf, or to a block that branches after it.
struct Tail<A> {
    prefix: Prefix<A>,
    matched: Slot,
    miss: Slot,
}

impl<A: Address> Tail<A> {
    fn child(&self) -> Option<Node> {
        let matched = Some(self.matched).filter(|s| s.kind() == Kind::Child)?;
        Some(Node::child(matched.index(), self.prefix.length()))
    }
    /// Whether it is strictly inside the tail's prefix.
    fn holds(&self, prefix: Prefix<A>) -> bool {
        self.prefix.covers(prefix) && self.prefix != prefix
    }
}

/// Writes slots, in blocks that readers may be walking or in blocks not published yet. The same stores work for both.
pub(super) struct Writer<'a, A, M: ?Sized> {
    memory: &'a M,
    pool: &'a mut Pool,
    full: Slot,
    rib: &'a Rib<A>,
    poisoned: &'a mut BTreeSet<Prefix<A>>,
    tails: bool,
    missing: Option<Full>,
}

impl<'a, A: Address, M: Memory + ?Sized> Writer<'a, A, M> {
    pub(super) fn new(
        space: &'a mut Space<'_, M>,
        rib: &'a Rib<A>,
        poisoned: &'a mut BTreeSet<Prefix<A>>,
        tails: bool,
    ) -> Self {
        let (memory, full) = (space.memory, space.full);
        Self { memory, pool: space.pool, full, rib, poisoned, tails, missing: None }
    }

    /// A part that found no room may have found some later, with another shape. So only the parts that are poisoned now
    /// count.
    pub(super) fn outcome(&self) -> Result<(), Full> {
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

    /// Makes `prefix` (longer than `node.offset`) lead to `leaf`.
    pub(super) fn place(&mut self, mut node: Node, prefix: Prefix<A>, leaf: Slot) {
        while prefix.length() > node.end() {
            let at = node.slot(prefix.address());
            let slot = self.load(at);
            match slot.kind() {
                Kind::Child => node = Node::child(slot.index(), node.end()),
                Kind::Tail => {
                    let tail = self.tail(slot.index());
                    match tail.child() {
                        Some(child) if tail.holds(prefix) => node = child,
                        Some(_) => return self.split(at, node.end(), slot.index(), (prefix, leaf)),
                        None => return self.place_beside_tail(at, node.end(), slot.index(), (prefix, leaf)),
                    }
                }
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

    fn place_beside_tail(&mut self, at: usize, end: u8, index: u32, route: (Prefix<A>, Slot)) {
        let tail = self.tail(index);
        if tail.prefix == route.0 {
            return self.set_tail_slots(index, route.1, tail.miss);
        }
        let mut routes = [(tail.prefix, tail.matched), route];
        routes.sort_unstable();
        self.publish_routes(at, end, tail.miss, &routes);
        self.pool.retire_tail(index);
    }

    /// The tail at `at` leads to a block, but `route` is not inside its prefix. They separate in a new block before
    /// that one, which stays as it is. The new tail is a new record, because its miss differs from the old one's.
    fn split(&mut self, at: usize, end: u8, index: u32, (prefix, leaf): (Prefix<A>, Slot)) {
        let tail = self.tail(index);
        let (depth, length) = (self.pool.depth(at), tail.prefix.length());
        let offset = octets_before(tail.prefix, prefix, prefix.length().min(length)).max(end);
        let parting = Prefix::new(prefix.address(), offset).unwrap_or(prefix);
        let built = self.new_child(parting, end, tail.miss, depth).and_then(|(slot, block)| {
            let node = Node::child(block, offset);
            let beside = match self.lead_to(tail.prefix, node.end(), tail.matched, tail.miss) {
                Ok(beside) => beside,
                Err(full) => {
                    self.retire(slot);
                    return Err(full);
                }
            };
            self.store(node.slot(tail.prefix.address()), beside, depth);
            self.place(node, prefix, leaf);
            Ok(slot)
        });
        match built {
            Ok(slot) => {
                self.store(at, slot, depth);
                self.pool.retire_tail(index);
            }
            Err(full) => {
                self.poison(at, Prefix::new(prefix.address(), end), full);
                self.retire(Slot::tail(index));
            }
        }
    }

    /// Makes the slot `at`, whose range ends at bit `end`, lead to `routes`, which are in order, and otherwise to
    /// `miss`. The slot's depth is that of `miss` and does not change.
    fn publish_routes(&mut self, at: usize, end: u8, miss: Slot, routes: &[(Prefix<A>, Slot)]) {
        let depth = self.pool.depth(at);
        let built = match routes {
            [] => Ok(miss),
            [(prefix, leaf)] if self.tails => self.new_tail(*prefix, *leaf, miss),
            [(first, _), ..] => {
                let offset = if self.tails { branching(routes, end) } else { end };
                let common = Prefix::new(first.address(), offset).unwrap_or(*first);
                self.new_child(common, end, miss, depth).map(|(slot, block)| {
                    for (prefix, leaf) in routes {
                        self.place(Node::child(block, offset), *prefix, *leaf);
                    }
                    slot
                })
            }
        };
        match built {
            Ok(slot) => self.store(at, slot, depth),
            Err(full) => {
                let region = routes.first().and_then(|(p, _)| Prefix::new(p.address(), end));
                self.poison(at, region, full);
            }
        }
    }

    /// Makes the slot `at` lead to the kernel, with its whole range.
    fn poison(&mut self, at: usize, region: Option<Prefix<A>>, full: Full) {
        self.missing = Some(full);
        self.store(at, self.full, POISONED);
        if let Some(region) = region {
            self.forget_poisoned(region);
            self.poisoned.insert(region);
        }
    }

    fn forget_poisoned(&mut self, region: Prefix<A>) {
        let gone: Vec<_> =
            self.poisoned.range(region..).take_while(|p| region.covers(**p)).copied().collect();
        for poisoned in gone {
            self.poisoned.remove(&poisoned);
        }
    }

    /// Makes a new block that branches after `prefix`. Returns the block, and the slot that leads to it from a slot
    /// whose range ends at bit `end`.
    fn new_child(&mut self, prefix: Prefix<A>, end: u8, miss: Slot, depth: u8) -> Result<(Slot, u32), Full> {
        let block = self.pool.blocks(self.memory, 1, miss, depth)?;
        match self.lead_to(prefix, end, Slot::child(block), miss) {
            Ok(slot) => Ok((slot, block)),
            Err(full) => {
                self.pool.retire_blocks(block, 1);
                Err(full)
            }
        }
    }

    /// The slot that leads to `child`, which branches after `prefix`, from a slot whose range ends at bit `end`.
    fn lead_to(&mut self, prefix: Prefix<A>, end: u8, child: Slot, miss: Slot) -> Result<Slot, Full> {
        if prefix.length() == end { Ok(child) } else { self.new_tail(prefix, child, miss) }
    }

    /// Builds the slot `at`, which holds `inner` and whose range ends at bit `end`, from the routes. The caller must
    /// retire what the slot led to.
    fn rebuild_slot(&mut self, at: usize, inner: Prefix<A>, end: u8) {
        let Some(region) = Prefix::new(inner.address(), end) else { return };
        self.poisoned.remove(&region);
        let (miss, depth) = self.inherited(region);
        // Readers still see the old contents of the slot until publish_routes stores new ones.
        self.pool.set_depth(at, depth);
        let routes: Vec<_> = inside(self.rib, region).collect();
        self.publish_routes(at, end, miss, &routes);
    }

    fn inherited(&self, region: Prefix<A>) -> (Slot, u8) {
        let found = covering(self.rib, region.address(), region.length());
        found.map_or((Slot::NO_ROUTE, 0), |(p, leaf)| (leaf, p.length()))
    }

    /// Makes all slots in the range, and below them, lead to `leaf` if their leaf comes from a route of `depths` bits.
    fn fill(&mut self, range: Range<usize>, depths: RangeInclusive<u8>, leaf: Slot, depth: u8) {
        for at in range {
            let slot = self.load(at);
            if let Some(block) = self.block_below(slot) {
                let base = block as usize * words::FIB_BLOCK;
                self.fill(base..base + words::FIB_BLOCK, depths.clone(), leaf, depth);
            }
            if slot.kind() == Kind::Child || !depths.contains(&self.pool.depth(at)) {
                continue;
            }
            if slot.kind() == Kind::Tail {
                let matched = self.tail(slot.index()).matched;
                self.set_tail_slots(slot.index(), matched, leaf);
                self.pool.set_depth(at, depth);
            } else {
                self.store(at, leaf, depth);
            }
        }
    }

    /// Updates the slots after `prefix` was removed from the routes.
    pub(super) fn erase(&mut self, mut node: Node, prefix: Prefix<A>) {
        // The blocks on the way down, each with the slot that leads to it and the end of that slot's range.
        let mut path: Vec<(usize, u8, Node)> = Vec::new();
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
            if let Some(child) = self.child_towards(slot, node.end(), prefix) {
                path.push((at, node.end(), child));
                node = child;
                continue;
            }
            match slot.kind() {
                Kind::Child => {}
                Kind::Tail => {
                    let tail = self.tail(slot.index());
                    if tail.prefix == prefix && tail.child().is_none() {
                        self.store(at, tail.miss, self.pool.depth(at));
                        self.pool.retire_tail(slot.index());
                    }
                }
                Kind::Nexthop | Kind::Group => self.rebuild_slot(at, prefix, node.end()),
            }
            break;
        }
        while let Some((at, end, block)) = path.pop() {
            if !self.collapse(at, end, block, prefix) {
                break;
            }
        }
    }

    /// The slot `at`, whose range ends at bit `end` and holds `prefix`, leads to the block `node`. If that block has
    /// nothing to branch any more, the slot is changed to bypass it. Returns whether that happened.
    fn collapse(&mut self, at: usize, end: u8, node: Node, prefix: Prefix<A>) -> bool {
        let Some(region) = Prefix::new(prefix.address(), end) else { return false };
        let old = self.load(at);
        let (miss, depth) = self.inherited(region);
        let mut routes = inside(self.rib, region);
        let new = match (routes.next(), routes.next_back()) {
            (None, _) => Ok(miss),
            (Some(_), _) if !self.tails => return false,
            (Some((prefix, leaf)), None) => self.new_tail(prefix, leaf, miss),
            (Some((first, _)), Some((last, _))) => {
                // A route that covers the part with the first one would come before it.
                let part = Prefix::new(first.address(), node.end());
                if !part.is_some_and(|p| first.length() > p.length() && p.covers(last)) {
                    return false;
                }
                return self.skip_block(at, (miss, depth), node, first);
            }
        };
        let Ok(new) = new else { return false };
        self.store(at, new, depth);
        self.retire(old);
        self.forget_poisoned(region);
        true
    }

    /// All routes below the block `node` are below its slot towards `inner`. Makes the slot `at`, which leads to the
    /// block, lead to what is below that slot instead.
    fn skip_block(&mut self, at: usize, (miss, depth): (Slot, u8), node: Node, inner: Prefix<A>) -> bool {
        let (old, only) = (self.load(at), self.load(node.slot(inner.address())));
        let new = match (only.kind(), Prefix::new(inner.address(), node.end())) {
            // No route lies in between, so the miss is the same for the wider range.
            (Kind::Tail, _) => Ok(only),
            (Kind::Child, Some(prefix)) => self.new_tail(prefix, only, miss),
            _ => return false,
        };
        let Ok(new) = new else { return false };
        self.store(at, new, depth);
        if old.kind() == Kind::Tail {
            self.pool.retire_tail(old.index());
        }
        self.pool.retire_blocks((node.base / words::FIB_BLOCK) as u32, 1);
        true
    }

    pub(super) fn heal(&mut self, mut node: Node, region: Prefix<A>) {
        while region.length() > node.end() {
            let slot = self.load(node.slot(region.address()));
            match self.child_towards(slot, node.end(), region) {
                Some(child) => node = child,
                None => return,
            }
        }
        let at = node.slot(region.address());
        if self.pool.depth(at) == POISONED {
            self.rebuild_slot(at, region, region.length());
        }
    }

    pub(super) fn retire_root(&mut self, root: Root) {
        let base = root.node().base;
        self.retire_below(base..base + root.blocks() as usize * words::FIB_BLOCK);
        self.pool.retire_blocks(root.first, root.blocks());
    }

    fn retire_below(&mut self, range: Range<usize>) {
        for at in range {
            self.retire(self.load(at));
        }
    }

    /// Retires this slot's tail and block, and everything below. Nothing leads there any more.
    fn retire(&mut self, slot: Slot) {
        if let Some(block) = self.block_below(slot) {
            let base = block as usize * words::FIB_BLOCK;
            self.retire_below(base..base + words::FIB_BLOCK);
            self.pool.retire_blocks(block, 1);
        }
        if slot.kind() == Kind::Tail {
            self.pool.retire_tail(slot.index());
        }
    }

    /// The block to which a slot leads, directly or through a tail.
    fn block_below(&self, slot: Slot) -> Option<u32> {
        match slot.kind() {
            Kind::Child => Some(slot.index()),
            Kind::Tail => {
                Some(self.tail(slot.index()).matched).filter(|s| s.kind() == Kind::Child).map(Slot::index)
            }
            Kind::Nexthop | Kind::Group => None,
        }
    }

    /// The block towards `prefix`, from a slot whose range ends at bit `end`.
    fn child_towards(&self, slot: Slot, end: u8, prefix: Prefix<A>) -> Option<Node> {
        match slot.kind() {
            Kind::Child => Some(Node::child(slot.index(), end)),
            Kind::Tail => Some(self.tail(slot.index())).filter(|t| t.holds(prefix))?.child(),
            Kind::Nexthop | Kind::Group => None,
        }
    }

    fn tail_words(&self, tail: u32) -> &'a [AtomicU64] {
        let at = tail as usize * words::FIB_TAIL;
        self.memory.fib_tails().get(at..at + words::FIB_TAIL).unwrap_or(&[])
    }

    fn tail(&self, tail: u32) -> Tail<A> {
        let none = Prefix::everything();
        let [hi, lo, slots, length] = self.tail_words(tail) else {
            return Tail { prefix: none, matched: Slot::NO_ROUTE, miss: Slot::NO_ROUTE };
        };
        let slots = slots.load(Relaxed);
        let address = u128::from(hi.load(Relaxed)) << 64 | u128::from(lo.load(Relaxed));
        Tail {
            prefix: Prefix::new(A::from_left_aligned(address), length.load(Relaxed) as u8).unwrap_or(none),
            matched: Slot(slots as u32),
            miss: Slot((slots >> 32) as u32),
        }
    }

    fn set_tail_slots(&mut self, tail: u32, matched: Slot, miss: Slot) {
        if let [_, _, slots, _] = self.tail_words(tail) {
            slots.store(u64::from(matched.0) | u64::from(miss.0) << 32, Release);
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
        self.set_tail_slots(tail, matched, miss);
        Ok(Slot::tail(tail))
    }
}
