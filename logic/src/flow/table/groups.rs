//! Groups (OpenFlow 1.3.5 sections 5.6 and 6.5).

use super::{Change, Count, Tables, check::demand, duration};
use crate::flow::{Action, Group, GroupKind, GroupMod, GroupStats, Refused, Removed, RulePort, rule::Bucket};
use std::collections::{BTreeMap, BTreeSet};

/// The most groups.
pub const GROUPS: usize = 4096;
/// The most buckets of a group.
pub const BUCKETS: usize = 64;
/// The most groups that may lead from one to the next.
pub const GROUP_CHAIN: usize = 4;

/// Ids from here on are reserved (OFPG_MAX).
const RESERVED: u32 = 0xffff_ff01;

struct Entry {
    group: Group,
    created_ms: u64,
    /// How many rules and groups lead to this group.
    references: u32,
    count: Count,
    buckets: Vec<Count>,
}

#[derive(Default)]
pub(super) struct Groups(BTreeMap<u32, Entry>);

impl Groups {
    pub fn contains(&self, id: u32) -> bool {
        self.0.contains_key(&id)
    }

    pub fn refer(&mut self, id: u32) {
        if let Some(entry) = self.0.get_mut(&id) {
            entry.references += 1;
        }
    }

    pub fn unrefer(&mut self, id: u32) {
        if let Some(entry) = self.0.get_mut(&id) {
            entry.references -= 1;
        }
    }

    /// How many groups the longest way from `id` passes, including `id` itself. `new` is the group to be added or
    /// changed.
    fn height(
        &self,
        id: u32,
        new: &Group,
        known: &mut BTreeMap<u32, Option<usize>>,
    ) -> Result<usize, Refused> {
        match known.get(&id) {
            Some(Some(height)) => return Ok(*height),
            // The way leads back to a group on it.
            Some(None) => return Err(Refused::GroupLoop),
            None => {}
        }
        let Some(group) = (if id == new.id { Some(new) } else { self.0.get(&id).map(|e| &e.group) }) else {
            return Ok(0);
        };
        known.insert(id, None);
        let below = needs(group).into_iter().map(|next| self.height(next, new, known));
        let height = 1 + below.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(0);
        known.insert(id, Some(height));
        demand(height <= GROUP_CHAIN, Refused::GroupChain)?;
        Ok(height)
    }
}

/// The groups that actions lead to.
pub(super) fn used<'a>(actions: impl IntoIterator<Item = &'a Action>) -> BTreeSet<u32> {
    let group = |action: &Action| match action {
        Action::Group(id) => Some(*id),
        _ => None,
    };
    actions.into_iter().filter_map(group).collect()
}

/// The groups that a group's buckets lead to.
fn leads_to(group: &Group) -> BTreeSet<u32> {
    used(group.buckets.iter().flat_map(|bucket| &bucket.actions))
}

/// The groups that a group needs: those it leads to or watches.
fn needs(group: &Group) -> BTreeSet<u32> {
    let watched = group.buckets.iter().filter_map(|bucket| bucket.watch_group);
    leads_to(group).into_iter().chain(watched).collect()
}

impl Tables {
    pub fn group(&self, id: u32) -> Option<&Group> {
        self.groups.0.get(&id).map(|entry| &entry.group)
    }

    /// All groups by id.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.0.values().map(|entry| &entry.group)
    }

    /// Adds, modifies or deletes groups. Rules that lead to a deleted group end.
    pub fn apply_group(&mut self, request: &GroupMod, now_ms: u64) -> Result<Vec<Change>, Refused> {
        match request {
            GroupMod::Add(group) => {
                demand(!self.groups.contains(group.id), Refused::GroupExists)?;
                demand(self.groups.0.len() < GROUPS, Refused::TooManyGroups)?;
                self.check_group(group)?;
                Ok(self.put_group(group, now_ms))
            }
            GroupMod::Modify(group) => {
                demand(self.groups.contains(group.id), Refused::UnknownGroup)?;
                self.check_group(group)?;
                Ok(self.put_group(group, now_ms))
            }
            GroupMod::Delete(Some(id)) => {
                demand(!self.groups().any(|group| needs(group).contains(id)), Refused::ChainedGroup)?;
                Ok(self.remove_groups(&[*id], now_ms))
            }
            GroupMod::Delete(None) => {
                let ids: Vec<u32> = self.groups.0.keys().copied().collect();
                Ok(self.remove_groups(&ids, now_ms))
            }
        }
    }

    /// Sets the packets counted for a group since it was added, and for each bucket since it was last changed.
    pub fn count_group(&mut self, id: u32, count: Count, buckets: &[Count]) {
        if let Some(entry) = self.groups.0.get_mut(&id) {
            entry.count = count;
            entry.buckets.iter_mut().zip(buckets).for_each(|(to, from)| *to = *from);
        }
    }

    /// Counts a packet that user space sent through a bucket. `first`: it has not been counted for the group itself
    /// yet.
    pub fn count_bucket(&mut self, id: u32, bucket: usize, bytes: usize, first: bool) {
        let Some(entry) = self.groups.0.get_mut(&id) else { return };
        if first {
            entry.count.add(bytes);
        }
        if let Some(count) = entry.buckets.get_mut(bucket) {
            count.add(bytes);
        }
    }

    /// Statistics of one group or of all, by id.
    pub fn group_stats(&self, id: Option<u32>, now_ms: u64) -> impl Iterator<Item = GroupStats> + '_ {
        let wanted = id.map_or(0..=u32::MAX, |id| id..=id);
        self.groups.0.range(wanted).map(move |(&id, entry)| {
            let (duration_sec, duration_nsec) = duration(entry.created_ms, now_ms);
            GroupStats {
                id,
                references: entry.references,
                packets: entry.count.packets,
                bytes: entry.count.bytes,
                duration_sec,
                duration_nsec,
                buckets: entry.buckets.iter().map(|count| (count.packets, count.bytes)).collect(),
            }
        })
    }

    /// The index of the first live bucket of a group, to which fast failover sends packets.
    pub fn live_bucket(&self, id: u32) -> Option<usize> {
        self.first_live(id, &mut BTreeMap::new())
    }

    /// The live buckets of a group: bit i is set if bucket i is live.
    pub fn live_buckets(&self, id: u32) -> u64 {
        let mut known = BTreeMap::new();
        self.group(id).map_or(0, |group| self.live_bits(group, &mut known))
    }

    fn live_bits(&self, group: &Group, known: &mut BTreeMap<u32, Option<usize>>) -> u64 {
        let buckets = group.buckets.iter().enumerate();
        buckets.fold(0, |bits, (i, bucket)| bits | u64::from(self.is_live(bucket, known)) << i)
    }

    /// The buckets that packets of a group may take, for groups where this depends on ports that are up.
    pub(super) fn usable_buckets(&self) -> BTreeMap<u32, u64> {
        let mut known = BTreeMap::new();
        let mut usable = |group: &Group| match group.kind {
            GroupKind::FastFailover => Some(self.first_live(group.id, &mut known).map_or(0, |i| 1 << i)),
            GroupKind::Select => Some(self.live_bits(group, &mut known)),
            GroupKind::All | GroupKind::Indirect => None,
        };
        self.groups().filter_map(|group| Some((group.id, usable(group)?))).collect()
    }

    /// `known`: the results of groups that were already looked at.
    fn first_live(&self, id: u32, known: &mut BTreeMap<u32, Option<usize>>) -> Option<usize> {
        if let Some(first) = known.get(&id) {
            return *first;
        }
        let first = self.group(id)?.buckets.iter().position(|bucket| self.is_live(bucket, known));
        known.insert(id, first);
        first
    }

    /// A bucket is live while its port is up or its group has a live bucket. A bucket that watches nothing is always
    /// live (section 6.5).
    fn is_live(&self, bucket: &Bucket, known: &mut BTreeMap<u32, Option<usize>>) -> bool {
        let up = |port| self.ports.get(&port).copied().unwrap_or(port == RulePort::LOCAL);
        match (bucket.watch_port, bucket.watch_group) {
            (None, None) => true,
            (port, group) => {
                port.is_some_and(up) || group.is_some_and(|id| self.first_live(id, known).is_some())
            }
        }
    }

    fn check_group(&self, group: &Group) -> Result<(), Refused> {
        demand(group.id < RESERVED, Refused::InvalidGroup)?;
        demand(group.buckets.len() <= BUCKETS, Refused::TooManyBuckets)?;
        demand(group.kind != GroupKind::Indirect || group.buckets.len() == 1, Refused::InvalidGroup)?;
        demand(!needs(group).contains(&group.id), Refused::GroupLoop)?;
        for bucket in &group.buckets {
            demand(group.kind == GroupKind::Select || bucket.weight == 0, Refused::InvalidGroup)?;
            let watches = bucket.watch_port.is_some() || bucket.watch_group.is_some();
            demand(group.kind != GroupKind::FastFailover || watches, Refused::BadWatch)?;
            let port_there = |port| port == RulePort::LOCAL || self.ports.contains_key(&port);
            demand(bucket.watch_port.is_none_or(port_there), Refused::BadWatch)?;
            demand(bucket.watch_group.is_none_or(|id| self.groups.contains(id)), Refused::BadWatch)?;
            self.check_action_set(&bucket.actions, &mut None)?;
        }
        // No group leads to an added group yet. The longest way through a changed group may begin at any group.
        let changed = self.groups.contains(group.id);
        let others = changed.then(|| self.groups.0.keys().copied()).into_iter().flatten();
        let mut known = BTreeMap::new();
        [group.id]
            .into_iter()
            .chain(others)
            .try_for_each(|id| self.groups.height(id, group, &mut known).map(|_| ()))
    }

    /// Adds a group, or changes its buckets. The counters of a changed group go on, and those of its buckets start
    /// again (6.5).
    fn put_group(&mut self, group: &Group, now_ms: u64) -> Vec<Change> {
        let buckets = vec![Count::default(); group.buckets.len()];
        leads_to(group).into_iter().for_each(|next| self.groups.refer(next));
        if !self.groups.contains(group.id) {
            let (count, group) = (Count::default(), group.clone());
            let entry = Entry { created_ms: now_ms, references: 0, count, buckets, group };
            let id = entry.group.id;
            self.groups.0.insert(id, entry);
            return vec![Change::Group(id)];
        }
        let before = self.usable_buckets();
        if let Some(entry) = self.groups.0.get_mut(&group.id) {
            let old = std::mem::replace(&mut entry.group, group.clone());
            entry.buckets = buckets;
            leads_to(&old).into_iter().for_each(|next| self.groups.unrefer(next));
        }
        // Other groups may watch this one.
        let after = self.usable_buckets();
        let moved = after.iter().filter(|(id, live)| before.get(*id).is_some_and(|old| old != *live));
        let others = moved.map(|(&id, _)| id).filter(|&id| id != group.id);
        [group.id].into_iter().chain(others).map(Change::Group).collect()
    }

    /// Removes groups; the rules that use them end first.
    fn remove_groups(&mut self, ids: &[u32], now_ms: u64) -> Vec<Change> {
        let ids: BTreeSet<u32> = ids.iter().copied().filter(|&id| self.groups.contains(id)).collect();
        let mut changes = Vec::new();
        if ids.iter().any(|id| self.groups.0[id].references > 0) {
            let leads = |row: &super::Row| !used(row.instructions.actions()).is_disjoint(&ids);
            changes = self.remove_where(leads, Removed::GroupDelete, now_ms);
        }
        for id in ids {
            if let Some(entry) = self.groups.0.remove(&id) {
                leads_to(&entry.group).into_iter().for_each(|next| self.groups.unrefer(next));
            }
            changes.push(Change::GroupRemoved(id));
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            ACTIONS,
            Dialect::OpenFlow13,
            RuleId,
            tests::{add, everything, out, tables},
        },
        *,
    };
    use crate::flow::{Field, FlowMod, Instructions, Match};
    use GroupKind::*;

    fn bucket(actions: impl Into<Vec<Action>>) -> Bucket {
        Bucket { actions: actions.into(), ..Bucket::default() }
    }

    fn group(id: u32, kind: GroupKind, buckets: impl Into<Vec<Bucket>>) -> Group {
        Group { id, kind, buckets: buckets.into() }
    }

    /// A group with one bucket that leads to the next group.
    fn link(id: u32, next: u32) -> Group {
        group(id, Indirect, [bucket([Action::Group(next)])])
    }

    fn watching(port: Option<u16>, watch_group: Option<u32>) -> Bucket {
        Bucket { watch_port: port.map(RulePort), watch_group, ..bucket([out(1)]) }
    }

    #[test]
    fn invalid_groups_are_refused() {
        use Refused::*;
        let weighted = Bucket { weight: 3, ..bucket([out(1)]) };
        for (request, expected) in [
            (GroupMod::Add(group(1, All, [])), Ok(())),
            (GroupMod::Add(group(0, Select, [weighted.clone(), bucket([out(2)])])), Ok(())),
            (GroupMod::Add(group(0, Select, [bucket([Action::set(Field::Ipv4Dst, 1_u32)])])), Ok(())),
            (GroupMod::Add(group(9, All, [])), Err(GroupExists)),
            (GroupMod::Modify(group(8, All, [])), Err(UnknownGroup)),
            (GroupMod::Delete(Some(8)), Ok(())),
            (GroupMod::Add(group(0xffff_ff00, All, [])), Ok(())),
            (GroupMod::Add(group(0xffff_ff01, All, [])), Err(InvalidGroup)),
            (GroupMod::Add(group(1, Indirect, [])), Err(InvalidGroup)),
            (GroupMod::Add(group(1, Indirect, [bucket([]), bucket([])])), Err(InvalidGroup)),
            (GroupMod::Add(group(1, All, [weighted])), Err(InvalidGroup)),
            (GroupMod::Add(group(1, All, vec![bucket([]); BUCKETS])), Ok(())),
            (GroupMod::Add(group(1, All, vec![bucket([]); BUCKETS + 1])), Err(TooManyBuckets)),
            (GroupMod::Add(group(1, All, [bucket([out(4)])])), Err(BadPort)),
            (GroupMod::Add(group(1, All, [bucket([Action::DecapVxlan])])), Err(UnsupportedOrder)),
            (GroupMod::Add(group(1, All, [bucket(vec![out(1); ACTIONS + 1])])), Err(TooManyActions)),
            (GroupMod::Add(group(1, FastFailover, [bucket([out(1)])])), Err(BadWatch)),
            (GroupMod::Add(group(1, FastFailover, [watching(Some(4), None)])), Err(BadWatch)),
            (GroupMod::Add(group(1, FastFailover, [watching(None, Some(4))])), Err(BadWatch)),
            (GroupMod::Add(group(1, FastFailover, [watching(Some(1), Some(9))])), Ok(())),
            (GroupMod::Add(group(1, FastFailover, [watching(None, Some(1))])), Err(GroupLoop)),
            (GroupMod::Add(link(1, 4)), Err(BadGroup)),
            (GroupMod::Add(link(1, 1)), Err(GroupLoop)),
            (GroupMod::Add(link(1, 9)), Ok(())),
        ] {
            let mut t = tables();
            t.apply_group(&GroupMod::Add(group(9, All, [])), 0).expect("good");
            assert_eq!(t.apply_group(&request, 0).map(|_| ()), expected, "{request:?}");
        }
        let mut t = tables();
        for id in 0..GROUPS as u32 {
            t.apply_group(&GroupMod::Add(group(id, All, [])), 0).expect("good");
        }
        let more = GroupMod::Add(group(GROUPS as u32, All, []));
        assert_eq!(t.apply_group(&more, 0), Err(TooManyGroups));
    }

    #[test]
    fn groups_may_form_short_chains_but_no_loops() {
        let mut t = tables();
        t.apply_group(&GroupMod::Add(group(1, All, [])), 0).expect("good");
        for id in 2..=4 {
            t.apply_group(&GroupMod::Add(link(id, id - 1)), 0).expect("good");
        }
        assert_eq!(t.apply_group(&GroupMod::Add(link(5, 4)), 0), Err(Refused::GroupChain));
        t.apply_group(&GroupMod::Add(group(6, All, [])), 0).expect("good");
        assert_eq!(t.apply_group(&GroupMod::Modify(link(1, 6)), 0), Err(Refused::GroupChain));
        assert_eq!(t.apply_group(&GroupMod::Modify(link(1, 4)), 0), Err(Refused::GroupLoop));
        assert_eq!(t.group(1), Some(&group(1, All, [])), "a refused change does nothing");
        t.apply_group(&GroupMod::Modify(link(2, 6)), 0).expect("good");
        t.apply_group(&GroupMod::Modify(link(1, 4)), 0).expect_err("too long");
        t.apply_group(&GroupMod::Modify(link(1, 3)), 0).expect("good");
        let references: Vec<_> = t.group_stats(None, 0).map(|g| (g.id, g.references)).collect();
        assert_eq!(references, [(1, 0), (2, 1), (3, 2), (4, 0), (6, 1)]);
        assert_eq!(t.apply_group(&GroupMod::Delete(Some(3)), 0), Err(Refused::ChainedGroup));
        let all = t.apply_group(&GroupMod::Delete(None), 0);
        assert_eq!(all, Ok([1, 2, 3, 4, 6].map(Change::GroupRemoved).to_vec()));
    }

    #[test]
    fn deleting_a_group_ends_the_rules_that_use_it() {
        let mut t = tables();
        for id in [7, 8] {
            t.apply_group(&GroupMod::Add(group(id, All, [bucket([out(1)])])), 500).expect("good");
        }
        let write = Instructions { write: vec![Action::Group(7)], ..Instructions::default() };
        let mut with = |priority, instructions| {
            let request = FlowMod { instructions, ..add(priority, Match::ANY, []) };
            t.apply(&request, OpenFlow13, 0).expect("good");
        };
        with(1, Instructions::apply([Action::Group(7), Action::Group(7)]));
        with(2, write);
        with(3, Instructions::apply([Action::Group(8)]));
        t.count_group(7, Count { packets: 5, bytes: 300 }, &[Count { packets: 5, bytes: 300 }]);
        let two = group(7, All, [bucket([out(1)]), bucket([out(2)])]);
        assert_eq!(t.apply_group(&GroupMod::Modify(two), 600), Ok(vec![Change::Group(7)]));
        let stats = GroupStats {
            id: 7,
            references: 2,
            packets: 5,
            bytes: 300,
            duration_sec: 1,
            duration_nsec: 500_000_000,
            buckets: vec![(0, 0); 2],
        };
        assert_eq!(t.group_stats(Some(7), 2_000).collect::<Vec<_>>(), [stats]);
        let gone = |id, next| Change::Removed { id: RuleId(id), next, notice: None };
        assert_eq!(
            t.apply_group(&GroupMod::Delete(Some(7)), 0),
            Ok(vec![gone(0, None), gone(1, None), Change::GroupRemoved(7)])
        );
        assert_eq!(t.aggregate(&everything()).rules, 1);
        assert_eq!(t.apply_group(&GroupMod::Delete(Some(7)), 0), Ok(vec![]));
    }

    #[test]
    fn fast_failover_follows_the_ports() {
        let mut t = tables();
        let first = group(1, FastFailover, [watching(Some(1), None), watching(Some(2), None)]);
        let second = group(2, FastFailover, [watching(None, Some(1)), watching(Some(3), None)]);
        assert_eq!(t.apply_group(&GroupMod::Add(first.clone()), 0), Ok(vec![Change::Group(1)]));
        assert_eq!(t.apply_group(&GroupMod::Add(second), 0), Ok(vec![Change::Group(2)]));
        let mut ports = |up: [bool; 3]| {
            let changes = t.set_ports((1..).map(RulePort).zip(up));
            (changes, t.live_bucket(1), t.live_bucket(2))
        };
        let changed = |ids: &[u32]| ids.iter().map(|&id| Change::Group(id)).collect::<Vec<_>>();
        assert_eq!(ports([true, true, true]), (changed(&[]), Some(0), Some(0)));
        assert_eq!(ports([false, true, true]), (changed(&[1]), Some(1), Some(0)));
        assert_eq!(ports([false, false, true]), (changed(&[1, 2]), None, Some(1)));
        assert_eq!(ports([false, false, false]), (changed(&[2]), None, None));
        assert_eq!(ports([true, false, false]), (changed(&[1, 2]), Some(0), Some(0)));
        t.set_ports([(RulePort(3), true)]);
        assert_eq!((t.live_bucket(1), t.live_bucket(2), t.live_bucket(9)), (None, Some(1), None));
        let local = Bucket { watch_port: Some(RulePort::LOCAL), ..bucket([]) };
        let modified = group(1, FastFailover, [local]);
        let changes = t.apply_group(&GroupMod::Modify(modified), 0);
        assert_eq!((changes, t.live_bucket(2)), (Ok(changed(&[1, 2])), Some(0)));
    }
}
