//! Router rows, routes and groups.

use super::{
    Tables,
    groups::{GROUP_MEMBERS, Group, layout},
    nexthops::{Key, MAP_FULL, encode},
};
use crate::{
    fib::{Full, Kind, Region, Slot, Space, Table},
    memory::{Memory, words},
    multipath::MultipathHash,
    net::{Address, Prefix, Prefix4, Prefix6},
    plan::{RouterId, Target},
    reason::Reason,
};
use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::atomic::{AtomicU64, Ordering::Release},
};

/// Words of `struct router`: where the flags, `multipath_key` and `local4` begin.
pub(super) const FLAGS_WORD: usize = 2;
pub(super) const KEY_WORD: usize = 3;
pub(super) const FILTER_WORD: usize = 8;

/// The tables of one router.
#[derive(Default)]
pub(super) struct Router {
    table4: Table<u32>,
    table6: Table<u128>,
}

/// The most routes per family that one [`Tables::reclaim`] tries again, because its caller has other work.
const RETRIES: usize = 4096;

/// Routes that found no room for their leaf, or lost part of what it leads to.
#[derive(Default)]
pub(super) struct Pending {
    routes4: Waiting<u32>,
    routes6: Waiting<u128>,
}

impl Pending {
    pub(super) fn is_untried(&self) -> bool {
        self.routes4.left > 0 || self.routes6.left > 0
    }

    /// There may be room now. Schedules one more try for each.
    pub(super) fn try_all(&mut self) {
        self.routes4.left = self.routes4.routes.len();
        self.routes6.left = self.routes6.routes.len();
    }
}

#[cfg(test)]
impl Pending {
    /// Nothing waits, not even for a change.
    pub(super) fn is_empty(&self) -> bool {
        self.routes4.routes.is_empty() && self.routes6.routes.is_empty()
    }
}

pub(super) struct Waiting<A> {
    routes: BTreeMap<(RouterId, Prefix<A>), Target>,
    /// The last route that was tried again. The next one to try comes after it, or is the first.
    tried: Option<(RouterId, Prefix<A>)>,
    /// The number of routes that are still to be tried.
    left: usize,
}

impl<A> Default for Waiting<A> {
    fn default() -> Self {
        Self { routes: BTreeMap::new(), tried: None, left: 0 }
    }
}

/// The properties of an address family.
pub(super) trait Family: Address {
    /// The word of `struct router` that holds the root.
    const ROOT_WORD: usize;
    fn table(router: &Router) -> &Table<Self>;
    fn table_mut(router: &mut Router) -> &mut Table<Self>;
    fn waiting(pending: &mut Pending) -> &mut Waiting<Self>;
    /// Destinations to which Linux never forwards, whatever its routes (`ip_route_input_slow`, `ip6_input`): address,
    /// length, reason.
    const GUARDS: &'static [(Self, u8, Reason)];
}

impl Family for u32 {
    const ROOT_WORD: usize = 0;
    fn table(router: &Router) -> &Table<Self> {
        &router.table4
    }
    fn table_mut(router: &mut Router) -> &mut Table<Self> {
        &mut router.table4
    }
    fn waiting(pending: &mut Pending) -> &mut Waiting<u32> {
        &mut pending.routes4
    }
    const GUARDS: &'static [(u32, u8, Reason)] = &[
        (0, 8, Reason::Broadcast),
        (0x7f00_0000, 8, Reason::Broadcast),
        (0xe000_0000, 4, Reason::Broadcast),
        (0xffff_ffff, 32, Reason::Broadcast),
    ];
}

impl Family for u128 {
    const ROOT_WORD: usize = 1;
    fn table(router: &Router) -> &Table<Self> {
        &router.table6
    }
    fn table_mut(router: &mut Router) -> &mut Table<Self> {
        &mut router.table6
    }
    fn waiting(pending: &mut Pending) -> &mut Waiting<u128> {
        &mut pending.routes6
    }
    // ::/127 holds :: and ::1. It costs one tail, where two /128 would cost a chain of blocks.
    const GUARDS: &'static [(u128, u8, Reason)] =
        &[(0, 127, Reason::Local), (0xfe80 << 112, 10, Reason::Local), (0xff << 120, 8, Reason::Broadcast)];
}

fn guards<A: Family>() -> impl Iterator<Item = (Prefix<A>, Reason)> {
    A::GUARDS.iter().filter_map(|(address, length, reason)| Some((Prefix::new(*address, *length)?, *reason)))
}

fn is_guarded<A: Family>(prefix: Prefix<A>) -> bool {
    guards::<A>().any(|(guard, _)| guard.covers(prefix))
}

/// Whether the tables hold this route. They do not if Linux never forwards there, whatever its routes.
pub fn holds4(prefix: Prefix4) -> bool {
    !is_guarded(prefix)
}

/// The same for IPv6.
pub fn holds6(prefix: Prefix6) -> bool {
    !is_guarded(prefix)
}

const FULL: Slot = Slot(MAP_FULL);

impl<M: Memory> Tables<M> {
    pub(super) fn row(&self, router: RouterId) -> Option<&[AtomicU64]> {
        let at = usize::from(router) * words::ROUTER;
        self.memory.routers().get(at..at + words::ROUTER)
    }

    pub(super) fn has_row(&mut self, router: RouterId) -> Result<(), Full> {
        self.row(router).ok_or(Full { region: Region::Routers, rows: 1 })?;
        self.routers.entry(router).or_default();
        Ok(())
    }

    pub(super) fn set_router(&mut self, router: RouterId, multipath: MultipathHash) -> Result<(), Full> {
        self.has_row(router)?;
        if let Some(row) = self.row(router) {
            let flags = u64::from(multipath.l4[0]) | u64::from(multipath.l4[1]) << 1;
            let others = row[FLAGS_WORD].load(std::sync::atomic::Ordering::Relaxed) & !3;
            row[FLAGS_WORD].store(others | flags, Release);
            for (word, half) in row[KEY_WORD..].iter().zip(multipath.key) {
                word.store(half, Release);
            }
        }
        Ok(())
    }

    /// Stores each word once, and only if it differs. So readers never see a bit clear that stays set.
    pub(super) fn set_local_addresses(&mut self, router: RouterId, addresses: &[u32]) -> Result<(), Full> {
        self.has_row(router)?;
        let mut filter = [0u64; words::ROUTER - FILTER_WORD];
        for address in addresses {
            let bit = local_filter_bit(*address);
            filter[bit / 64] |= 1 << (bit % 64);
        }
        if let Some(row) = self.row(router) {
            for (word, value) in row[FILTER_WORD..].iter().zip(filter) {
                if word.load(std::sync::atomic::Ordering::Relaxed) != value {
                    word.store(value, Release);
                }
            }
        }
        Ok(())
    }

    pub(super) fn router_gone(&mut self, router: RouterId) -> Result<(), Full> {
        let owned = self.interfaces.iter().filter(|(_, i)| i.router == router);
        let owned: Vec<_> = owned.map(|(id, _)| *id).collect();
        for id in &owned {
            self.unindex_interface(*id);
        }
        self.clear_routes::<u32>(router);
        self.clear_routes::<u128>(router);
        let mut result = Ok(());
        for id in owned {
            result = result.and(self.interface_gone(id));
        }
        if self.routers.remove(&router).is_some()
            && let Some(row) = self.row(router)
        {
            row[FLAGS_WORD..].iter().for_each(|word| word.store(0, Release));
            self.rules_gone(router);
        }
        result
    }

    /// Calls `f` with the router's table and its place. `f` must not need anything else of `self`.
    fn with_table<A: Family, R>(
        &mut self,
        router: RouterId,
        f: impl FnOnce(&mut Table<A>, &mut Space<'_, M>) -> R,
    ) -> Option<R> {
        let table = A::table_mut(self.routers.get_mut(&router)?);
        let at = usize::from(router) * words::ROUTER + A::ROOT_WORD;
        let root = self.memory.routers().get(at)?;
        let mut space = Space { memory: &self.memory, pool: &mut self.pool, root, full: FULL };
        Some(f(table, &mut space))
    }

    fn clear_routes<A: Family>(&mut self, router: RouterId) {
        let Some(table) = self.routers.get(&router).map(A::table) else { return };
        let leaves: Vec<Slot> = table.routes().map(|(_, leaf)| leaf).collect();
        self.with_table::<A, _>(router, |table, space| table.clear(space));
        A::waiting(&mut self.pending).routes.retain(|(r, _), _| *r != router);
        for leaf in leaves {
            self.release_leaf(leaf);
        }
    }

    pub(super) fn set_route<A: Family>(
        &mut self,
        router: RouterId,
        prefix: Prefix<A>,
        target: Option<&Target>,
    ) -> Result<(), Full> {
        if is_guarded(prefix) { Ok(()) } else { self.place_route(router, prefix, target) }
    }

    fn place_route<A: Family>(
        &mut self,
        router: RouterId,
        prefix: Prefix<A>,
        target: Option<&Target>,
    ) -> Result<(), Full> {
        A::waiting(&mut self.pending).routes.remove(&(router, prefix));
        let Some(target) = target else {
            self.remove_route(router, prefix);
            return Ok(());
        };
        self.has_row(router)?;
        let is_first = self.routers.get(&router).is_some_and(|r| A::table(r).is_empty());
        let guarded = if is_first { self.set_guards::<A>(router) } else { Ok(()) };
        let (leaf, found) = self.acquire_leaf(target);
        if found.is_err() {
            let target = self.as_it_stands(target);
            A::waiting(&mut self.pending).routes.insert((router, prefix), target);
        }
        guarded.and(found).and(self.put_route(router, prefix, leaf))
    }

    /// Stores a leaf that has been acquired, and releases the previous one.
    fn put_route<A: Family>(&mut self, router: RouterId, prefix: Prefix<A>, leaf: Slot) -> Result<(), Full> {
        let (old, result) = self
            .with_table(router, |table: &mut Table<A>, space| {
                (table.get(prefix), table.insert(space, prefix, leaf))
            })
            .unwrap_or((None, Ok(())));
        if let Some(old) = old {
            self.release_leaf(old);
        }
        result
    }

    fn remove_route<A: Family>(&mut self, router: RouterId, prefix: Prefix<A>) {
        let removed = self.with_table(router, |table: &mut Table<A>, space| {
            table.remove(space, prefix).map(|leaf| (leaf, table.len()))
        });
        let Some(Some((leaf, left))) = removed else { return };
        self.release_leaf(leaf);
        if left == A::GUARDS.len() {
            self.clear_routes::<A>(router);
        }
    }

    /// Sets the guards. They come before the first route, so that not even a default route takes effect for them.
    fn set_guards<A: Family>(&mut self, router: RouterId) -> Result<(), Full> {
        self.with_table(router, |table: &mut Table<A>, _| table.set_guards(A::GUARDS.len()));
        let mut result = Ok(());
        for (prefix, reason) in guards::<A>() {
            let target = Target::Pass { reason, unicast: false };
            let (leaf, found) = self.acquire_leaf(&target);
            if found.is_err() {
                A::waiting(&mut self.pending).routes.insert((router, prefix), target);
            }
            result = result.and(found).and(self.put_route(router, prefix, leaf));
        }
        result
    }

    fn key_of(&self, target: &Target) -> Key {
        match target {
            Target::Pass { reason, unicast } => Key::Pass { reason: *reason, unicast: *unicast },
            Target::Hop(hop) if !self.interfaces.contains_key(&hop.interface) => {
                Key::Pass { reason: Reason::EgressNotAPort, unicast: true }
            }
            Target::Hop(hop) => match hop.gateway {
                Some(address) => Key::Via { interface: hop.interface, address, mtu: hop.mtu },
                None => Key::OnLink { interface: hop.interface, mtu: hop.mtu },
            },
            // A group within a group, or no members: the kernel decides.
            Target::Multi(_) => Key::Pass { reason: Reason::ComplexRoute, unicast: true },
        }
    }

    /// The target with the current state of missing interfaces, which is to the kernel. Such an interface may come back
    /// with another router.
    fn as_it_stands(&self, target: &Target) -> Target {
        match target {
            Target::Multi(members) => Target::Multi(
                members.iter().map(|(member, weight)| (self.as_it_stands(member), *weight)).collect(),
            ),
            Target::Hop(_) => target_of(self.key_of(target)),
            Target::Pass { .. } => target.clone(),
        }
    }

    /// Routes that wait for room do not wait for an interface that is gone.
    pub(super) fn settle_waiting(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        let (v4, v6) = (pending.routes4.routes.values_mut(), pending.routes6.routes.values_mut());
        v4.chain(v6)
            .filter(|target| !self.stands(target))
            .for_each(|target| *target = self.as_it_stands(target));
        self.pending = pending;
    }

    fn stands(&self, target: &Target) -> bool {
        match target {
            Target::Multi(members) => members.iter().all(|(member, _)| self.stands(member)),
            Target::Hop(hop) => self.interfaces.contains_key(&hop.interface),
            Target::Pass { .. } => true,
        }
    }

    /// The leaf of a target, with a reference. If there is an error, the leaf leads to the kernel.
    fn acquire_leaf(&mut self, target: &Target) -> (Slot, Result<(), Full>) {
        let found = match target {
            Target::Multi(members) => self.acquire_group(members),
            _ => self.acquire(self.key_of(target)).map(Slot::nexthop),
        };
        match found {
            Ok(leaf) => (leaf, Ok(())),
            Err(full) => (FULL, Err(full)),
        }
    }

    /// The id of a next hop, with a reference.
    pub(super) fn acquire(&mut self, key: Key) -> Result<u32, Full> {
        let is_new = self.nexthops.find(key).is_none();
        let content = encode(key, self.egress(key), self.link(key));
        let id = self.nexthops.acquire(&self.memory, key, content)?;
        if let (true, Key::OnLink { interface, .. }) = (is_new, key) {
            // A neighbour without a place in the index is not forwarded to. That is no reason to refuse the route.
            let _ = self.index_neighbours_of(interface);
        }
        Ok(id)
    }

    pub(super) fn release(&mut self, id: u32, refs: u32) {
        if let Some(Key::OnLink { interface, .. }) = self.nexthops.release(id, refs) {
            let _ = self.index_neighbours_of(interface);
        }
    }

    fn release_leaf(&mut self, leaf: Slot) {
        if leaf.kind() == Kind::Nexthop {
            return self.release(leaf.index(), 1);
        }
        let block = leaf.index();
        let Some(group) = self.groups.by_block.get_mut(&block) else { return };
        group.refs -= 1;
        if group.refs > 0 {
            return;
        }
        let Some(group) = self.groups.by_block.remove(&block) else { return };
        if self.groups.by_key.get(&group.key) == Some(&block) {
            self.groups.by_key.remove(&group.key);
        }
        self.pool.retire_group(block);
        for (id, _) in group.members {
            self.release(id, 1);
        }
    }

    fn acquire_group(&mut self, targets: &[(Target, u16)]) -> Result<Slot, Full> {
        let mut key: Vec<(Key, u32)> = Vec::with_capacity(targets.len());
        for (target, weight) in targets.iter().filter(|(_, weight)| *weight > 0) {
            let member = self.key_of(target);
            // Linux's order matters, so only adjacent members are merged.
            match key.last_mut().filter(|(k, _)| *k == member) {
                Some((_, sum)) => *sum += u32::from(*weight),
                None => key.push((member, u32::from(*weight))),
            }
        }
        match key[..] {
            [(only, _)] => return self.acquire(only).map(Slot::nexthop),
            [] => return self.acquire(self.key_of(&Target::Multi([].into()))).map(Slot::nexthop),
            _ if key.len() > GROUP_MEMBERS => {
                return self.acquire(self.key_of(&Target::Multi([].into()))).map(Slot::nexthop);
            }
            _ => {}
        }
        if let Some(block) = self.groups.by_key.get(&key).copied()
            && let Some(group) = self.groups.by_block.get_mut(&block)
        {
            group.refs += 1;
            return Ok(Slot::group(block));
        }
        let mut members = Vec::with_capacity(key.len());
        for (member, weight) in &key {
            match self.acquire(*member) {
                Ok(id) => members.push((id, *weight)),
                Err(full) => return self.abandon(&members, full),
            }
        }
        match self.pool.group(&self.memory, &layout(&members)) {
            Ok(block) => {
                self.groups.by_key.insert(key.clone(), block);
                self.groups.by_block.insert(block, Group { members, refs: 1, key });
                Ok(Slot::group(block))
            }
            Err(full) => self.abandon(&members, full),
        }
    }

    fn abandon(&mut self, members: &[(u32, u32)], full: Full) -> Result<Slot, Full> {
        for (id, _) in members {
            self.release(*id, 1);
        }
        Err(full)
    }

    /// Changes every group slot and route that leads to next hop `old` to lead to `new`, and moves the references.
    /// Routes of `first` are searched before those of other routers.
    pub(super) fn redirect(&mut self, changes: &BTreeMap<u32, u32>, first: RouterId) {
        let blocks: Vec<u32> = self.groups.by_block.keys().copied().collect();
        let mut starved = BTreeMap::new();
        for block in blocks {
            let before =
                self.groups.by_block.get(&block).filter(|group| group.loses(changes)).map(target_of_group);
            starved.extend(before.map(|target| (block, target)));
            self.redirect_group(block, changes);
        }
        if !starved.is_empty() {
            self.remember::<u32>(&starved);
            self.remember::<u128>(&starved);
        }
        let others = self.routers.keys().copied().filter(|r| *r != first);
        let routers: Vec<_> = std::iter::once(first).chain(others).collect();
        for router in routers {
            if changes.keys().all(|old| self.nexthops.refs(*old) == 0) {
                return;
            }
            self.redirect_routes::<u32>(router, changes);
            self.redirect_routes::<u128>(router, changes);
        }
    }

    /// Notes the routes that lead to one of these groups. They wait to get the group's former target back.
    fn remember<A: Family>(&mut self, starved: &BTreeMap<u32, Target>) {
        for (id, router) in &self.routers {
            for (prefix, leaf) in A::table(router).routes().filter(|(_, leaf)| leaf.kind() == Kind::Group) {
                if let Some(target) = starved.get(&leaf.index()) {
                    let waiting = A::waiting(&mut self.pending);
                    waiting.routes.entry((*id, prefix)).or_insert_with(|| target.clone());
                }
            }
        }
    }

    fn redirect_routes<A: Family>(&mut self, router: RouterId, changes: &BTreeMap<u32, u32>) {
        let Some(table) = self.routers.get(&router).map(A::table) else { return };
        let new = |leaf: Slot| (leaf.kind() == Kind::Nexthop).then(|| changes.get(&leaf.index())).flatten();
        let moved: Vec<_> = table.routes().filter_map(|(p, leaf)| Some((p, *new(leaf)?))).collect();
        for (prefix, id) in moved {
            if id == MAP_FULL
                && let Some(old) = self.routers.get(&router).and_then(|r| A::table(r).get(prefix))
            {
                let target = self.target(old);
                A::waiting(&mut self.pending).routes.insert((router, prefix), target);
            }
            self.nexthops.add_refs(id, 1);
            // The route has a place already, so no new memory is needed.
            let _ = self.put_route(router, prefix, Slot::nexthop(id));
        }
    }

    fn redirect_group(&mut self, block: u32, changes: &BTreeMap<u32, u32>) {
        let Some(mut group) = self.groups.by_block.remove(&block) else { return };
        let mut old = Vec::new();
        for (id, _) in &mut group.members {
            if let Some(new) = changes.get(id) {
                old.push(std::mem::replace(id, *new));
                self.nexthops.add_refs(*new, 1);
            }
        }
        if !old.is_empty() {
            let base = block as usize * words::FIB_BLOCK;
            let slots = self.memory.fib().iter().skip(base);
            for (word, slot) in slots.zip(layout(&group.members)) {
                word.store(slot.0, Release);
            }
            if self.groups.by_key.get(&group.key) == Some(&block) {
                self.groups.by_key.remove(&group.key);
            }
            for ((key, _), (id, _)) in group.key.iter_mut().zip(&group.members) {
                *key = self.nexthops.key(*id).unwrap_or(*key);
            }
            self.groups.by_key.entry(group.key.clone()).or_insert(block);
        }
        self.groups.by_block.insert(block, group);
        for id in old {
            self.release(id, 1);
        }
    }

    /// Tries again everything that found no room.
    pub(super) fn retry(&mut self) -> Result<(), Full> {
        let mut result = self.retry_routes::<u32>().and(self.retry_routes::<u128>());
        for (interface, address) in std::mem::take(&mut self.starved) {
            result = result.and(self.index_neighbour(interface, address));
        }
        result.and(self.heal::<u32>()).and(self.heal::<u128>())
    }

    fn retry_routes<A: Family>(&mut self) -> Result<(), Full> {
        let waiting = A::waiting(&mut self.pending);
        waiting.left = waiting.left.min(waiting.routes.len());
        let from = waiting.tried.map_or(Bound::Unbounded, Bound::Excluded);
        let round = waiting.routes.range((from, Bound::Unbounded)).chain(&waiting.routes);
        let next = round.take(waiting.left.min(RETRIES));
        let next: Vec<_> = next.map(|(key, target)| (*key, target.clone())).collect();
        waiting.tried = next.last().map_or(waiting.tried, |(key, _)| Some(*key));
        waiting.left -= next.len();
        let mut result = Ok(());
        for ((router, prefix), target) in next {
            result = result.and(self.place_route(router, prefix, Some(&target)));
        }
        result
    }

    fn heal<A: Family>(&mut self) -> Result<(), Full> {
        let degraded = self.routers.iter().filter(|(_, r)| A::table(r).is_degraded());
        let degraded: Vec<_> = degraded.map(|(id, _)| *id).collect();
        let mut result = Ok(());
        for router in degraded {
            let healed = self.with_table(router, |table: &mut Table<A>, space| table.heal(space));
            result = result.and(healed.unwrap_or(Ok(())));
        }
        result
    }
}

/// The bit of the router's filter that one of its own addresses sets (Knuth's multiplicative hash, top 11 bits).
pub fn local_filter_bit(address: u32) -> usize {
    (address.wrapping_mul(0x9e37_79b1) >> 21) as usize
}

/// The routes, as targets of a plan. Guards are left out.
impl<M: Memory> Tables<M> {
    /// The IPv4 routes of a router.
    pub fn routes4(&self, router: RouterId) -> impl Iterator<Item = (Prefix4, Target)> + '_ {
        self.routes(router)
    }

    /// The IPv6 routes of a router.
    pub fn routes6(&self, router: RouterId) -> impl Iterator<Item = (Prefix6, Target)> + '_ {
        self.routes(router)
    }

    /// The numbers of IPv4 and IPv6 routes of a router, and whether some lead to the kernel because there is no room.
    pub fn route_counts(&self, router: RouterId) -> (usize, usize, bool) {
        let Some(r) = self.routers.get(&router) else { return (0, 0, false) };
        let count = |routes: usize, guards: usize| routes.saturating_sub(guards);
        (
            count(r.table4.len(), <u32 as Family>::GUARDS.len()),
            count(r.table6.len(), <u128 as Family>::GUARDS.len()),
            r.table4.is_degraded() || r.table6.is_degraded(),
        )
    }

    fn routes<A: Family>(&self, router: RouterId) -> impl Iterator<Item = (Prefix<A>, Target)> + '_ {
        let table = self.routers.get(&router).map(A::table);
        let routes = table.into_iter().flat_map(|t| t.routes());
        routes.filter(|(p, _)| !is_guarded(*p)).map(|(p, leaf)| (p, self.target(leaf)))
    }

    fn target(&self, leaf: Slot) -> Target {
        match self.groups.by_block.get(&leaf.index()).filter(|_| leaf.kind() == Kind::Group) {
            Some(group) => target_of_group(group),
            None => {
                let lost = Key::Pass { reason: Reason::NoRoute, unicast: false };
                target_of(self.nexthops.key(leaf.index()).unwrap_or(lost))
            }
        }
    }
}

fn target_of_group(group: &Group) -> Target {
    let weight = |w: u32| u16::try_from(w).unwrap_or(u16::MAX);
    Target::Multi(group.key.iter().map(|(key, w)| (target_of(*key), weight(*w))).collect())
}

fn target_of(key: Key) -> Target {
    let hop = |interface, gateway, mtu| Target::Hop(crate::plan::Hop { interface, gateway, mtu });
    match key {
        Key::Pass { reason, unicast } => Target::Pass { reason, unicast },
        Key::OnLink { interface, mtu } => hop(interface, None, mtu),
        Key::Via { interface, address, mtu } => hop(interface, Some(address), mtu),
    }
}
