//! Groups as rows of `flow_groups`, and the rules that use them.
//!
//! A row has a list of steps for each value of the top byte of `spread`, and changes slot by slot. A packet takes an old
//! bucket or a new one. If user space has to do a bucket of a group, the group has no row, and rules that use it are slow.

use super::{FlowMemory, Writer, memory::words, rule_of, steps, steps::Rows};
use crate::flow::{
    Group, GroupKind, Instructions, RulePort,
    action::Action,
    group::{SLOTS, select_slots},
    program::{Ports, Program, Step, compile, compile_bucket},
    table::{Count, RuleId, Tables},
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::atomic::Ordering::Release,
};

#[derive(Default)]
pub(super) struct Groups {
    /// The groups that the kernel plane does.
    fast: HashMap<u32, Fast>,
    free: Vec<u32>,
    /// The first row that was never used.
    fresh: u32,
    /// The rows of rules that use a group. The count is what the rule had counted when it began to use the group.
    users: HashMap<u32, HashMap<u32, Count>>,
    /// The groups that a row's rule uses.
    used: HashMap<u32, BTreeSet<u32>>,
    /// What rules counted for a group while they used it, of rules that no longer use it.
    left: HashMap<u32, Count>,
}

struct Fast {
    row: u32,
    /// The row of each bucket's steps; 0: the bucket drops.
    steps: Vec<u32>,
}

impl Groups {
    pub fn row(&self, id: u32) -> Option<u32> {
        self.fast.get(&id).map(|group| group.row)
    }

    pub fn free(&mut self, row: u32) {
        self.free.push(row);
    }
}

/// The bucket of each slot.
fn slots(tables: &Tables, group: &Group) -> [Option<u8>; SLOTS] {
    match group.kind {
        GroupKind::Select => {
            let live = tables.live_buckets(group.id);
            select_slots(group, &|bucket| live >> bucket & 1 != 0)
        }
        GroupKind::FastFailover => {
            [tables.live_bucket(group.id).and_then(|bucket| u8::try_from(bucket).ok()); SLOTS]
        }
        GroupKind::Indirect | GroupKind::All => [Some(0); SLOTS],
    }
}

impl<M: FlowMemory> Writer<M> {
    /// Updates a group that is new or was changed, or whose live buckets changed.
    pub(super) fn set_group(&mut self, tables: &Tables, id: u32) {
        let Some(group) = tables.group(id) else { return };
        let before = self.groups.row(id);
        let Some(new) = self.write_group(tables, group) else {
            self.drop_group(id);
            return if before.is_some() {
                self.decide_users(tables, id)
            };
        };
        let old = self.groups.fast.insert(id, new);
        old.into_iter()
            .flat_map(|old| old.steps)
            .for_each(|row| self.batch.steps.extend(self.steps.put(row)));
        if before.is_none() {
            self.decide_users(tables, id);
        }
    }

    /// Removes a group. Rules that still lead to it drop their packets.
    pub(super) fn remove_group(&mut self, tables: &Tables, id: u32) {
        self.drop_group(id);
        self.decide_users(tables, id);
        self.groups.left.remove(&id);
    }

    /// The packets that a group got since it was added, as its rules counted them. `None`: the kernel plane does not do the
    /// group, and user space counts.
    pub fn group_count(&self, id: u32) -> Option<Count> {
        self.groups.row(id)?;
        let mut sum = self.groups.left.get(&id).copied().unwrap_or_default();
        for (row, base) in self.groups.users.get(&id).into_iter().flatten() {
            sum = sum.plus(self.counted(*row).since(*base));
        }
        Some(sum)
    }

    /// The rules that use a group; with `None`, those that use any group.
    pub fn users_of_group(&self, id: Option<u32>) -> BTreeSet<RuleId> {
        let rules = |users: &HashMap<u32, Count>| users.keys().filter_map(|&row| rule_of(row)).collect();
        match id {
            Some(id) => self.groups.users.get(&id).map_or_else(BTreeSet::new, rules),
            None => self.groups.used.keys().filter_map(|&row| rule_of(row)).collect(),
        }
    }

    /// Compiles instructions for the kernel plane.
    pub(super) fn program(&self, instructions: &Instructions) -> Program {
        compile(instructions, &|id| self.groups.fast.contains_key(&id))
    }

    /// Notes which groups the rule in a row uses from now on. The current counters are the starting point.
    pub(super) fn note_groups(&mut self, row: u32, instructions: Option<&Instructions>) {
        let group = |action: &Action| match action {
            Action::Group(id) => Some(*id),
            _ => None,
        };
        let new: BTreeSet<u32> =
            instructions.into_iter().flat_map(Instructions::actions).filter_map(group).collect();
        let old = self.groups.used.remove(&row).unwrap_or_default();
        for id in old.difference(&new) {
            let Some(users) = self.groups.users.get_mut(id) else { continue };
            let Some(base) = users.remove(&row) else { continue };
            if users.is_empty() {
                self.groups.users.remove(id);
            }
            let since = self.counted(row).since(base);
            let left = self.groups.left.entry(*id).or_default();
            *left = left.plus(since);
        }
        for id in new.difference(&old) {
            let count = self.counted(row);
            self.groups.users.entry(*id).or_default().insert(row, count);
        }
        if !new.is_empty() {
            self.groups.used.insert(row, new);
        }
    }

    /// Writes the steps and slots of a group. `None`: user space has to do it, and no rows were taken.
    fn write_group(&mut self, tables: &Tables, group: &Group) -> Option<Fast> {
        if group.kind == GroupKind::All {
            return None;
        }
        let buckets: Vec<_> =
            group.buckets.iter().map(|b| compile_bucket(&b.actions)).collect::<Option<_>>()?;
        let mut rows = Vec::with_capacity(buckets.len());
        for bucket in &buckets {
            let Some(row) = self.write_bucket(bucket) else {
                self.unwrite(rows);
                return None;
            };
            rows.push(row);
        }
        let Some(row) = self.groups.row(group.id).or_else(|| self.new_group_row()) else {
            self.unwrite(rows);
            return None;
        };
        let slots = slots(tables, group);
        let steps =
            |slot: usize| slots[slot].and_then(|bucket| rows.get(usize::from(bucket))).copied().unwrap_or(0);
        let words = &self.memory.groups()[row as usize * words::GROUP..][..words::GROUP];
        for (i, word) in words.iter().enumerate() {
            word.store(u64::from(steps(2 * i)) | u64::from(steps(2 * i + 1)) << 32, Release);
        }
        Some(Fast { row, steps: rows })
    }

    /// Writes the steps of a bucket. Row 0 is a bucket without steps, which drops packets.
    fn write_bucket(&mut self, bucket: &[Step]) -> Option<u32> {
        if bucket.is_empty() {
            return Some(0);
        }
        let list = steps::encode(bucket, &mut NoRows { deaf: &self.deaf })?;
        self.write_steps(Some(list))
    }

    /// Frees steps that no packet has seen.
    fn unwrite(&mut self, rows: Vec<u32>) {
        for row in rows {
            self.steps.put(row).into_iter().for_each(|(row, length)| self.steps.free(row, length));
        }
    }

    fn new_group_row(&mut self) -> Option<u32> {
        let groups = &mut self.groups;
        if let Some(row) = groups.free.pop() {
            return Some(row);
        }
        let room = (groups.fresh as usize) < self.memory.groups().len() / words::GROUP;
        room.then(|| {
            groups.fresh += 1;
            groups.fresh - 1
        })
    }

    /// Gives up the row and steps of a group. They are kept until the batch is over, for packets under way.
    fn drop_group(&mut self, id: u32) {
        let Some(old) = self.groups.fast.remove(&id) else { return };
        self.batch.groups.push(old.row);
        old.steps.into_iter().for_each(|row| self.batch.steps.extend(self.steps.put(row)));
    }

    /// Decides the rules that use a group again, because the kernel plane can do it now, or no longer can.
    fn decide_users(&mut self, tables: &Tables, id: u32) {
        let rows: Vec<u32> =
            self.groups.users.get(&id).into_iter().flat_map(|users| users.keys().copied()).collect();
        rows.into_iter().for_each(|row| self.decide_again(tables, row));
    }
}

/// For the steps of a bucket, which name no rows: a bucket has no meter, leads to no group and sends to no set of ports.
struct NoRows<'a> {
    deaf: &'a BTreeSet<RulePort>,
}

impl Rows for NoRows<'_> {
    fn set(&mut self, _: &Ports) -> Option<u16> {
        None
    }
    fn meter(&mut self, _: u32) -> Option<u32> {
        None
    }
    fn group(&mut self, _: u32) -> Option<u32> {
        None
    }
    fn deaf(&self) -> &BTreeSet<RulePort> {
        self.deaf
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{
        FlowCommand, GroupMod, RulePort,
        flows::Flows,
        kernel::{HeapFlows, Seed, miss, row, rule_word, tests::SMALL, verdict},
        rule::Bucket,
        table::Dialect,
        text::{parse_actions, parse_flow, parse_instructions},
    };
    use std::sync::atomic::Ordering::Acquire;

    fn group(id: u32, kind: GroupKind, buckets: &[(&str, u16)]) -> Group {
        let bucket = |&(actions, watched): &(&str, u16)| Bucket {
            weight: u16::from(kind == GroupKind::Select),
            watch_port: (watched != 0).then_some(RulePort(watched)),
            watch_group: None,
            actions: parse_actions(actions).unwrap(),
        };
        Group { id, kind, buckets: buckets.iter().map(bucket).collect() }
    }

    struct World(Flows<HeapFlows>);

    impl World {
        fn new() -> World {
            let mut flows = Flows::new(HeapFlows::new(SMALL, 2), Seed::default(), &Instructions::default());
            flows.set_ports((1..=4).map(|port| (RulePort(port), true)));
            World(flows)
        }
        fn rule(&mut self, text: &str) -> u32 {
            let request = parse_flow(text, FlowCommand::Add).unwrap();
            self.0.apply(&request, Dialect::OpenFlow13, 0).unwrap();
            row(self.0.tables().ids().last().unwrap())
        }
        fn settle(&mut self) {
            self.0.seal();
            self.0.void();
            self.0.finish();
        }
        fn decision(&self, row: u32) -> u64 {
            self.0.writer().rule(row)[rule_word::DECISION].load(Acquire)
        }
        fn is_slow(&self, row: u32) -> bool {
            self.decision(row) as u8 == verdict::SLOW
        }
        fn step(&self, row: u32) -> [u64; 2] {
            std::array::from_fn(|i| {
                self.0.writer().memory.steps()[row as usize * words::STEP + i].load(Acquire)
            })
        }
        /// The number of the port to which each slot sends; 0: none. `rule`: a rule whose only step is the group.
        fn slots(&self, rule: u32) -> Vec<u64> {
            let group = (self.step((self.decision(rule) >> 32) as u32)[0] >> 32) as usize;
            let words = &self.0.writer().memory.groups()[group * words::GROUP..][..words::GROUP];
            let rows =
                words.iter().flat_map(|word| [word.load(Acquire) as u32, (word.load(Acquire) >> 32) as u32]);
            rows.map(|row| if row == 0 { 0 } else { (self.step(row)[0] >> 16 & 0xffff) + 1 }).collect()
        }
    }

    #[test]
    fn each_slot_has_the_steps_of_its_bucket_as_ports_go_and_buckets_change() {
        let mut w = World::new();
        let select = |ports: &[u16]| {
            let buckets: Vec<_> = ports
                .iter()
                .map(|p| (["output:1", "output:2", "output:3"][usize::from(*p) - 1], *p))
                .collect();
            group(1, GroupKind::Select, &buckets)
        };
        w.0.apply_group(&GroupMod::Add(select(&[1, 2, 3])), 0).unwrap();
        let rule = w.rule("in_port=1,actions=group:1");
        w.settle();
        let expected = |w: &World| -> Vec<u64> {
            let group = w.0.tables().group(1).unwrap();
            let live = w.0.tables().live_buckets(1);
            let bucket =
                |slot: Option<u8>| slot.map_or(0, |i| group.buckets[usize::from(i)].watch_port.unwrap().0);
            select_slots(group, &|i| live >> i & 1 != 0).map(bucket).map(u64::from).to_vec()
        };
        assert_eq!(w.slots(rule), expected(&w));
        let before = w.decision(rule);
        w.0.set_ports([(RulePort(1), true), (RulePort(2), false), (RulePort(3), true)]);
        assert!(!w.slots(rule).contains(&2));
        assert_eq!(w.slots(rule), expected(&w));
        w.0.apply_group(&GroupMod::Modify(select(&[2, 3])), 0).unwrap();
        assert_eq!(w.slots(rule), vec![3; SLOTS]);
        w.0.set_ports([(RulePort(1), true), (RulePort(2), false), (RulePort(3), false)]);
        assert_eq!(w.slots(rule), vec![0; SLOTS]);
        let failover = group(1, GroupKind::FastFailover, &[("output:2", 2), ("output:1", 1)]);
        w.0.apply_group(&GroupMod::Modify(failover), 0).unwrap();
        assert_eq!(w.slots(rule), vec![1; SLOTS]);
        w.0.set_ports([(RulePort(1), true), (RulePort(2), true), (RulePort(3), false)]);
        assert_eq!(w.slots(rule), vec![2; SLOTS]);
        w.0.apply_group(&GroupMod::Modify(group(1, GroupKind::Indirect, &[("drop", 0)])), 0).unwrap();
        assert_eq!(w.slots(rule), vec![0; SLOTS]);
        assert_eq!(w.decision(rule), before, "the rule itself stays as it is");
    }

    #[test]
    fn rules_are_slow_only_while_their_own_groups_are() {
        let mut w = World::new();
        let fast = |id| group(id, GroupKind::Indirect, &[("dec_ttl,output:2", 0)]);
        for id in [1, 2] {
            w.0.apply_group(&GroupMod::Add(fast(id)), 0).unwrap();
        }
        let rules = [
            "in_port=1,actions=group:1",
            "in_port=2,actions=group:2",
            "in_port=3,actions=write_actions(group:1)",
        ]
        .map(|text| w.rule(text));
        w.0.set_miss(&parse_instructions("group:1").unwrap());
        w.settle();
        let slow = |w: &World| [rules[0], rules[1], rules[2], miss(0)].map(|row| w.is_slow(row));
        assert_eq!(slow(&w), [false; 4]);
        for buckets in [&[("flood", 0)][..], &[("group:2", 0)]] {
            w.0.apply_group(&GroupMod::Modify(group(1, GroupKind::Indirect, buckets)), 0).unwrap();
            assert_eq!(slow(&w), [true, false, true, true], "{buckets:?}");
            w.settle();
            assert_eq!(slow(&w), [true, false, true, true], "{buckets:?}");
            w.0.apply_group(&GroupMod::Modify(fast(1)), 0).unwrap();
            w.settle();
            assert_eq!(slow(&w), [false; 4]);
        }
        // Deleting a group deletes its rules. The miss is no rule; it stays and has no group to lead to.
        w.0.apply_group(&GroupMod::Delete(Some(1)), 0).unwrap();
        w.settle();
        assert_eq!((w.0.tables().ids().count(), w.is_slow(miss(0))), (1, true));
        for _ in 0..3 * SMALL.groups {
            w.0.apply_group(&GroupMod::Add(fast(1)), 0).unwrap();
            w.settle();
            assert!(!w.is_slow(miss(0)));
            w.0.apply_group(&GroupMod::Delete(Some(1)), 0).unwrap();
            w.settle();
        }
    }

    #[test]
    fn rules_and_groups_to_a_port_without_redirection_are_slow() {
        let mut w = World::new();
        let to = |port| group(port, GroupKind::Indirect, &[(["output:1", "output:2"][port as usize - 1], 0)]);
        for id in [1, 2] {
            w.0.apply_group(&GroupMod::Add(to(id)), 0).unwrap();
        }
        let rules = [
            "in_port=1,actions=output:2",
            "in_port=2,actions=dec_ttl,output:1",
            "in_port=3,actions=write_actions(output:2)",
            "in_port=4,actions=output:1,output:2",
            "udp,actions=flood",
            "tcp,actions=in_port",
            "sctp,actions=group:1",
            "icmp,actions=group:2",
            "arp,actions=normal",
        ]
        .map(|text| w.rule(text));
        w.0.set_miss(&parse_instructions("output:2").unwrap());
        w.settle();
        let slow = |w: &World| rules.map(|row| u8::from(w.is_slow(row)));
        for (deaf, expected) in [
            (&[][..], [0; 9]),
            (&[2], [1, 0, 1, 1, 1, 1, 0, 1, 0]),
            (&[1, 2], [1, 1, 1, 1, 1, 1, 1, 1, 0]),
            (&[1], [0, 1, 0, 1, 1, 1, 1, 0, 0]),
            (&[3], [0, 0, 0, 0, 1, 1, 0, 0, 0]),
            (&[], [0; 9]),
        ] {
            w.0.set_deaf(deaf.iter().copied().map(RulePort).collect());
            w.settle();
            assert_eq!((slow(&w), w.is_slow(miss(0))), (expected, deaf.contains(&2)), "{deaf:?}");
        }
    }

    #[test]
    fn rows_that_packets_still_see_are_not_used_again() {
        let mut w = World::new();
        let to = |port: u16| {
            group(1, GroupKind::Indirect, &[(["output:1", "output:2", "output:3"][usize::from(port) - 1], 0)])
        };
        w.0.apply_group(&GroupMod::Add(to(1)), 0).unwrap();
        w.rule("in_port=1,actions=group:1");
        w.settle();
        let slot = |w: &World| w.0.writer().memory.groups()[0].load(Acquire) as u32;
        let (old, step) = (slot(&w), w.step(slot(&w)));
        w.0.apply_group(&GroupMod::Modify(to(2)), 0).unwrap();
        w.0.apply_group(&GroupMod::Modify(to(3)), 0).unwrap();
        assert_eq!(w.step(old), step);
        assert_ne!(slot(&w), old);
        w.settle();
        w.0.apply_group(&GroupMod::Modify(to(2)), 0).unwrap();
        for i in 0..SMALL.steps as u16 {
            w.settle();
            w.0.apply_group(&GroupMod::Modify(to(1 + i % 3)), 0).unwrap();
            assert_ne!(slot(&w), 0, "free rows are used again");
        }
    }

    #[test]
    fn a_group_counts_the_packets_of_its_rules_while_they_use_it() {
        let mut w = World::new();
        w.0.apply_group(&GroupMod::Add(group(1, GroupKind::Indirect, &[("output:2", 0)])), 0).unwrap();
        let rule = w.rule("in_port=1,actions=output:3");
        w.settle();
        let packet =
            |w: &World| w.0.writer().memory.counters()[rule as usize * words::COUNT].fetch_add(1, Release);
        let count = |w: &mut World| w.0.group_stats(Some(1), 0)[0].packets;
        packet(&w);
        w.rule("in_port=1,actions=group:1");
        assert_eq!(count(&mut w), 0);
        packet(&w);
        packet(&w);
        assert_eq!(count(&mut w), 2);
        w.rule("in_port=1,actions=dec_ttl,group:1");
        packet(&w);
        assert_eq!(count(&mut w), 3);
        w.rule("in_port=1,actions=output:1");
        packet(&w);
        assert_eq!(count(&mut w), 3);
        assert_eq!(w.0.group_stats(None, 0)[0].buckets, [(u64::MAX, u64::MAX)]);
        assert!(w.0.writer().groups.users.is_empty() && w.0.writer().groups.used.is_empty());
    }
}
