//! Compares the memory with the flow tables. Rules are added and removed, and programs may read before a change and write
//! to the cache after it. Packets must still find what the tables say.

use super::{answer::Reader, *};
use crate::flow::{
    Action, CoreChoice, Field, FlowCommand, FlowMod, Instructions, Key, Match, RulePort,
    field::{ether_type, ip_proto},
    rule::CORE_TABLE,
    table::Dialect,
};
use proptest::prelude::*;

pub(in crate::flow) const SMALL: FlowCapacity = FlowCapacity {
    rules: 200,
    buckets: 256,
    rest: 64,
    patches: 64,
    steps: 64,
    groups: 4,
    meters: 4,
    cache_sets: 8,
    port_sets: 8,
};

struct World {
    tables: Tables,
    writer: Writer<HeapFlows>,
    now_ms: u64,
}

impl World {
    fn new() -> World {
        World::with(SMALL)
    }

    fn with(capacity: FlowCapacity) -> World {
        let mut tables = Tables::new();
        tables.set_ports((1..=4).map(|port| (RulePort(port), true)));
        tables.set_cores(Some((0..4).collect()));
        World { tables, writer: Writer::new(HeapFlows::new(capacity, 2), Seed::default()), now_ms: 0 }
    }

    fn change(
        &mut self,
        command: FlowCommand,
        table: u8,
        priority: u16,
        matching: Match,
        does: Instructions,
    ) {
        let request = FlowMod { table: Some(table), ..FlowMod::new(command, priority, matching, does) };
        self.now_ms += 1;
        let changes = match table {
            CORE_TABLE => self.tables.apply_core(&request, Dialect::OpenFlow13, self.now_ms),
            _ => self.tables.apply(&request, Dialect::OpenFlow13, self.now_ms),
        };
        for change in changes.unwrap() {
            self.writer.apply(&self.tables, &change).unwrap();
        }
    }

    fn reader(&self) -> Reader<'_, HeapFlows> {
        self.writer.reader()
    }

    /// The result of the tables, as rows.
    fn truth(&self, key: &Key) -> Vec<u32> {
        let (mut rows, mut table, mut seen) = (Vec::new(), 0, *key);
        rows.extend(self.tables.lookup(CORE_TABLE, key).map(row));
        loop {
            let Some(id) = self.tables.lookup(table, &seen) else {
                rows.push(miss(table));
                return rows;
            };
            rows.push(row(id));
            let rule = self.tables.rule(id).unwrap();
            let Some(next) = rule.instructions.goto_table else { return rows };
            if let Some((value, mask)) = rule.instructions.metadata {
                let old = seen.get(Field::Metadata) as u64;
                seen.set(Field::Metadata, u128::from(old & !mask | value & mask));
            }
            table = next;
        }
    }

    /// The rows that a packet finds, without the core table's miss, because it does not matter whether the packet came
    /// there.
    fn found(rows: Vec<u32>) -> Vec<u32> {
        rows.into_iter().filter(|&row| row != miss(CORE_TABLE)).collect()
    }

    fn finish(&mut self) {
        let mut batch = self.writer.seal();
        self.writer.void(&mut batch);
        self.writer.reclaim(batch).into_iter().for_each(|id| self.tables.release(id));
    }
}

/// A small universe: two receiving ports, two protocols, four destinations and four transport ports.
fn key(bits: u16) -> Key {
    let mut key = Key::ZERO;
    key.set(Field::InPort, u128::from(1 + (bits & 1)));
    key.set(Field::EthType, ether_type::IPV4.into());
    key.set(Field::IpProto, if bits & 2 == 0 { ip_proto::TCP } else { ip_proto::UDP }.into());
    key.set(Field::Ipv4Dst, u128::from(0x0a00_0000 | u32::from(bits >> 2 & 3)));
    key.set(Field::TcpDst, u128::from(80 + (bits >> 4 & 3)));
    key
}

/// Any of the fields of such a key, all bits or half of them.
fn matching() -> impl Strategy<Value = Match> {
    (0_u16..64, 0_u8..32, any::<bool>()).prop_map(|(bits, fields, half)| {
        let key = key(bits);
        let mut m = Match::ANY;
        let all = [Field::InPort, Field::EthType, Field::IpProto, Field::Ipv4Dst, Field::TcpDst];
        for (i, field) in all.into_iter().enumerate() {
            let needed = fields >> 2 != 0 && i == 1 || fields >> 4 != 0 && i == 2;
            if fields >> i & 1 != 0 || needed {
                let mask = if half && field == Field::Ipv4Dst { 0xffff_fffe } else { field.all_bits() };
                m.set(field, key.get(field), mask);
            }
        }
        if m.exact(Field::IpProto) == Some(ip_proto::UDP.into()) { m } else { m.normalised() }
    })
}

#[derive(Clone, Debug)]
enum Act {
    Add {
        table: u8,
        priority: u16,
        matching: Match,
        port: u16,
        goto: bool,
    },
    Remove {
        table: u8,
        priority: u16,
        matching: Match,
    },
    /// Gives an added rule other instructions. If it no longer exists, it is added again.
    Change {
        which: prop::sample::Index,
        port: u16,
        goto: bool,
    },
    RemoveAll {
        matching: Match,
    },
    Look(u16),
    Batch,
}

fn act() -> impl Strategy<Value = Act> {
    let table = || prop::sample::select(vec![0, 1, CORE_TABLE]);
    let place = move || (table(), 1_u16..4, matching());
    prop_oneof![
        4 => (place(), 1_u16..4, any::<bool>()).prop_map(|((table, priority, matching), port, goto)| Act::Add {
            table, priority, matching, port, goto
        }),
        2 => place().prop_map(|(table, priority, matching)| Act::Remove { table, priority, matching }),
        3 => (any::<prop::sample::Index>(), 1_u16..4, any::<bool>())
            .prop_map(|(which, port, goto)| Act::Change { which, port, goto }),
        1 => matching().prop_map(|matching| Act::RemoveAll { matching }),
        6 => (0_u16..64).prop_map(Act::Look),
        2 => Just(Act::Batch),
    ]
}

fn does(table: u8, port: u16, goto: bool) -> Instructions {
    if table == CORE_TABLE {
        Instructions::apply([Action::SetCore(CoreChoice::This(port))])
    } else if goto && table == 0 {
        Instructions { goto_table: Some(1), metadata: Some((port.into(), 3)), ..Instructions::default() }
    } else {
        Instructions::apply([Action::output(RulePort(port))])
    }
}

proptest! {
    #![proptest_config(crate::cases(256))]
    #[test]
    fn packets_find_what_the_tables_say_and_the_cache_agrees_after_a_batch(
        acts in prop::collection::vec(act(), 1..60),
    ) {
        let mut world = World::new();
        // Packets that looked before and write to the cache as late as they can: just before the first grace period ends.
        let mut under_way = Vec::new();
        let mut added = Vec::new();
        for act in acts {
            match act {
                Act::Add { table, priority, matching, port, goto } => {
                    world.change(FlowCommand::Add, table, priority, matching, does(table, port, goto));
                    added.push((table, priority, matching));
                }
                Act::Change { which, port, goto } if !added.is_empty() => {
                    let (table, priority, matching) = *which.get(&added);
                    world.change(FlowCommand::Add, table, priority, matching, does(table, port, goto));
                }
                Act::Change { .. } => {}
                Act::Remove { table, priority, matching } => {
                    world.change(FlowCommand::Delete { strict: true }, table, priority, matching, Instructions::default());
                }
                Act::RemoveAll { matching } => {
                    world.change(FlowCommand::Delete { strict: false }, 0, 0, matching, Instructions::default());
                }
                Act::Look(bits) => {
                    let looked = world.reader().look(&key(bits));
                    under_way.push(looked);
                }
                Act::Batch => {
                    for looked in under_way.drain(..) {
                        world.reader().cache(&looked);
                    }
                    world.finish();
                }
            }
            if world.writer.batch.is_empty() {
                for bits in 0..64 {
                    let truth = world.truth(&key(bits));
                    prop_assert_eq!(World::found(world.reader().look(&key(bits)).rows()), truth.clone());
                    if let Some(cached) = world.reader().cached(&key(bits)) {
                        prop_assert_eq!(World::found(cached), truth);
                    }
                }
            }
        }
    }
}

/// Numbers that look random, the same each time.
fn numbers() -> impl FnMut(u32) -> u32 {
    let mut state = 1_u64;
    move |below| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((state >> 33) % u64::from(below)) as u32
    }
}

/// A rule of an access list: two prefixes of random length. They are from few networks, so many rules overlap.
fn pair_of_prefixes(number: &mut impl FnMut(u32) -> u32) -> Match {
    let mut m = Match::ANY.with(Field::EthType, ether_type::IPV4);
    for field in [Field::Ipv4Src, Field::Ipv4Dst] {
        let mask = u32::MAX << number(25);
        m.set(field, u128::from(address(number) & mask), mask.into());
    }
    m.normalised()
}

fn address(number: &mut impl FnMut(u32) -> u32) -> u32 {
    number(3) << 24 | number(2) << 20 | number(4) << 12 | number(4) << 6 | number(4)
}

/// The rules have as many masks as those of an access list. These share the buckets of a few masks. Lookups agree with the
/// tables after rules are added and removed.
#[test]
fn many_masks_share_buckets() {
    let capacity = FlowCapacity { rules: 8000, buckets: 1 << 13, ..SMALL };
    let mut world = World::with(capacity);
    let (mut number, mut there) = (numbers(), Vec::new());
    for round in 0..3 {
        for _ in 0..1500 {
            let (matching, priority) = (pair_of_prefixes(&mut number), 1 + number(1000) as u16);
            world.change(FlowCommand::Add, 0, priority, matching, does(0, 1, false));
            there.push((matching, priority));
        }
        world.finish();
        let masks: std::collections::BTreeSet<Key> = there.iter().map(|(m, _)| *m.mask()).collect();
        let searched = world.writer.masks.holders(0).len();
        eprintln!("round {round}: {} rules, {} masks, {searched} are searched", there.len(), masks.len());
        assert!(masks.len() > 400 && searched < masks.len() / 8, "{searched} of {} masks", masks.len());
        for _ in 0..2000 {
            let mut packet = key(0);
            packet.set(Field::Ipv4Src, address(&mut number).into());
            packet.set(Field::Ipv4Dst, address(&mut number).into());
            let (found, truth) = (World::found(world.reader().look(&packet).rows()), world.truth(&packet));
            assert_eq!(found, truth, "{packet:?}");
        }
        for _ in 0..1000 {
            let (matching, priority) = there.swap_remove(number(there.len() as u32) as usize);
            let delete = FlowCommand::Delete { strict: true };
            world.change(delete, 0, priority, matching, Instructions::default());
            there.retain(|other| *other != (matching, priority));
        }
        world.finish();
    }
    world.change(FlowCommand::Delete { strict: false }, 0, 0, Match::ANY, Instructions::default());
    world.finish();
    assert!(world.writer.masks.holders(0).is_empty() && world.writer.masks.are_all_free());
    assert_eq!(*world.writer.masks.union(), Key::ZERO);
}

/// All masks are removed and added again in one batch. The old rows are free only later, but the new masks share
/// buckets, too.
#[test]
fn masks_that_replace_others_share_buckets() {
    let mut world = World::with(FlowCapacity { rules: 8000, buckets: 1 << 13, ..SMALL });
    let mask = |n: u32| {
        let mut m = Match::ANY.with(Field::EthType, ether_type::IPV4).with(Field::IpProto, 17_u8);
        for (field, bits) in [(Field::Ipv4Src, n % 33), (Field::Ipv4Dst, n / 33 % 33)] {
            m.set(field, 0, u32::MAX.checked_shl(32 - bits).unwrap_or(0).into());
        }
        if n >= 33 * 33 { m.with(Field::UdpDst, 1_u16) } else { m }.normalised()
    };
    let mut searched = Vec::new();
    for command in [FlowCommand::Add, FlowCommand::Delete { strict: true }, FlowCommand::Add] {
        (0..1400).for_each(|n| world.change(command, 0, 7, mask(n), does(0, 1, false)));
        searched.push(world.writer.masks.holders(0).len());
    }
    assert!(searched[1] == 0 && searched[2] <= searched[0] + 8, "{searched:?}");
}

/// One rule is left in the buckets of each mask that held many. Other masks can use the rest of these buckets.
#[test]
fn a_mask_with_few_rules_left_gives_buckets_back() {
    let mut world = World::with(FlowCapacity { rules: 8000, buckets: 1 << 11, ..SMALL });
    for bits in 1..=8_u32 {
        let matching = |n: u32| {
            let mut m = Match::ANY.with(Field::EthType, ether_type::IPV4).with(Field::Ipv4Dst, n);
            m.set(Field::Ipv4Src, 0, (u32::MAX << (32 - bits)).into());
            m
        };
        (0..1500).for_each(|n| world.change(FlowCommand::Add, 0, 7, matching(n), does(0, 1, false)));
        world.finish();
        let delete = FlowCommand::Delete { strict: true };
        (1..1500).for_each(|n| world.change(delete, 0, 7, matching(n), Instructions::default()));
        world.finish();
        let found = World::found(world.reader().look(matching(0).key()).rows());
        assert_eq!(found, world.truth(matching(0).key()), "{bits} bits");
    }
}

/// A reader goes through the order of masks while one batch ends. The next batch, still open, moves a mask towards the
/// front again.
#[test]
fn a_reader_meets_every_mask_although_one_moves_up_again_and_again() {
    let mask = |field| Match::ANY.with(field, 1_u8);
    let moving = |value: u8| Match::ANY.with(Field::IpDscp, value).with(Field::EthType, ether_type::IPV4);
    for passed in 0..5 {
        let mut world = World::new();
        let add = |world: &mut World, priority, matching: Match| {
            world.change(FlowCommand::Add, 0, priority, matching, does(0, 1, false));
        };
        for (priority, field) in [(100, Field::EthDst), (50, Field::EthSrc), (40, Field::Metadata)] {
            add(&mut world, priority, mask(field));
        }
        add(&mut world, 10, moving(1));
        world.finish();
        let row = world.writer.mask_of(row(world.tables.lookup(0, &moving(1).key().clone()).unwrap()));
        let entries = |world: &World, range: std::ops::Range<usize>| {
            let order = order::Order::of(&world.writer.memory, 0);
            range.filter(|at| *at < order.length()).any(|at| order::row_of(order.get(at)) == row)
        };
        add(&mut world, 45, moving(2));
        let mut batch = world.writer.seal();
        let seen = entries(&world, 0..passed);
        add(&mut world, 60, moving(3));
        world.writer.void(&mut batch);
        assert!(seen || entries(&world, passed..ORDER), "after {passed} entries");
    }
}

#[test]
fn exact_rules_come_and_go_and_others_stay_cached() {
    let mut world = World::new();
    let exact = |bits| {
        let fields = [Field::InPort, Field::EthType, Field::IpProto, Field::Ipv4Dst, Field::TcpDst];
        fields.into_iter().fold(Match::ANY, |m, field| m.with(field, key(bits).get(field)))
    };
    let out = || Instructions::apply([Action::output(RulePort(1))]);
    world.change(FlowCommand::Add, 0, 5, exact(0), out());
    world.finish();
    for bits in [0, 1] {
        world.reader().cache(&world.reader().look(&key(bits)));
        assert!(world.reader().cached(&key(bits)).is_some(), "{bits}");
    }
    world.change(FlowCommand::Add, 0, 5, exact(2), out());
    world.change(FlowCommand::Delete { strict: true }, 0, 5, exact(2), out());
    world.finish();
    assert!(world.reader().cached(&key(0)).is_some() && world.reader().cached(&key(1)).is_some());
    world.change(FlowCommand::Add, 0, 5, exact(1), out());
    assert_eq!(world.reader().cached(&key(1)), Some(vec![miss(0)]));
    world.finish();
    assert!(world.reader().cached(&key(0)).is_some());
    assert_eq!(world.reader().cached(&key(1)), None);
}

/// The core of a rule is part of its decision. In the core table it is one word, which changes in place.
#[test]
fn cores_are_words_of_rules() {
    let mut world = World::new();
    let to = |core| Instructions::apply([Action::SetCore(CoreChoice::This(core))]);
    let word = |world: &World, id: RuleId, at: usize| world.writer.rule(row(id))[at].load(Acquire);
    world.change(FlowCommand::Add, CORE_TABLE, 5, Match::ANY, to(3));
    let id = world.tables.ids().next().unwrap();
    let decision = |core: u64| u64::from(verdict::CORE) | (core + 1) << 16;
    assert_eq!((word(&world, id, rule_word::DECISION), word(&world, id, rule_word::SET)), (decision(3), 0));
    world.finish();
    world.change(FlowCommand::Add, CORE_TABLE, 5, Match::ANY, to(0));
    assert_eq!(word(&world, id, rule_word::DECISION), decision(0));

    let listed = Instructions::apply([Action::SetCore(CoreChoice::This(2)), Action::output(RulePort(4))]);
    world.change(FlowCommand::Add, 0, 5, Match::ANY, listed);
    let id = world.tables.ids().last().unwrap();
    let flags = FLAG_SENDS | 3 << CORE_SHIFT;
    assert_eq!(word(&world, id, rule_word::SET), flags << 48);
    let written = Instructions { write: vec![Action::SetCore(CoreChoice::This(1))], ..to(0) };
    world.change(FlowCommand::Add, 0, 5, Match::ANY, written);
    assert!(world.writer.is_slow(id), "several words");
    world.finish();
    assert_eq!(word(&world, id, rule_word::SET), (FLAG_CORE_OF_SET | 2 << CORE_SHIFT) << 48);
}

/// The union covers all masks whose rules may be cached, not only those that still have rules.
#[test]
fn the_fields_of_a_removed_rule_stay_in_the_union_until_its_batch_is_over() {
    let mut world = World::new();
    let untagged = key(0);
    let mut tagged = untagged;
    tagged.set(Field::VlanVid, 0x1005_u128);
    let other = Match::ANY.with(Field::EthDst, 1_u64);
    let without_tag = Match::ANY.with(Field::VlanVid, 0_u16);
    let out = || Instructions::apply([Action::output(RulePort(1))]);
    let delete = FlowCommand::Delete { strict: true };
    world.change(FlowCommand::Add, 0, 5, other, out());
    world.change(FlowCommand::Add, 0, 5, without_tag, out());
    world.finish();
    let looked = world.reader().look(&untagged);
    world.reader().cache(&looked);
    world.change(delete, 0, 5, other, Instructions::default());
    let mut batch = world.writer.seal();
    world.change(delete, 0, 5, without_tag, Instructions::default());
    world.writer.void(&mut batch);
    world.writer.reclaim(batch).into_iter().for_each(|id| world.tables.release(id));
    assert_eq!(world.reader().cached(&untagged), Some(looked.rows()));
    assert_eq!(world.reader().cached(&tagged), None);
    world.finish();
    assert_eq!(world.reader().cached(&untagged), None);
    assert_eq!(*world.writer.masks.union(), Key::ZERO);
}

#[test]
fn sets_of_ports_are_used_again_when_no_rule_names_them() {
    let mut world = World::new();
    let sets: Vec<Vec<Action>> = (0_u16..16)
        .map(|bits| (1..=4).filter(move |port| bits >> (port - 1) & 1 != 0))
        .map(|ports| ports.map(|port| Action::output(RulePort(port))).collect())
        .filter(|outputs: &Vec<Action>| outputs.len() > 1)
        .collect();
    assert!(sets.len() > SMALL.port_sets);
    let rules = [(1, Match::ANY), (2, Match::ANY.with(Field::InPort, 1_u32))];
    for outputs in sets.iter().chain(&sets) {
        let rewritten = [&[Action::DecTtl], &outputs[..]].concat();
        let written =
            Instructions { write: vec![Action::output(RulePort::FLOOD)], ..Instructions::default() };
        for does in [Instructions::apply(outputs.clone()), Instructions::apply(rewritten), written] {
            for (priority, matching) in rules {
                world.change(FlowCommand::Add, 0, priority, matching, does.clone());
            }
            world.finish();
            for id in world.tables.ids() {
                assert!(!world.writer.is_slow(id), "{does:?}");
            }
        }
    }
}
