//! Compares the table with a linear search, through growth, collapse and exhaustion, with readers that race with the
//! writer.

use super::*;
use crate::{
    memory::{Capacity, HeapMemory},
    net::{Prefix, Prefix4, Prefix6},
};
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

const FULL: Slot = Slot(999);
/// Small thresholds, so that short tests see roots grow and shrink.
const SMALL: Policy = Policy { routes_16: 12, routes_24: usize::MAX, tails: true };

struct Bed<A> {
    memory: HeapMemory,
    pool: Pool,
    root: AtomicU64,
    table: Table<A>,
    oracle: BTreeMap<Prefix<A>, Slot>,
}

impl<A: Address> Bed<A> {
    fn new(blocks: usize, tails: usize, policy: Policy) -> Self {
        let memory = HeapMemory::new(Capacity {
            fib_blocks: blocks,
            fib_tails: tails,
            nexthops: 0,
            neighbour_buckets: 0,
            interface_buckets: 0,
            routers: 0,
        });
        let (pool, root) = (Pool::new(&memory), AtomicU64::new(empty_root::<A>()));
        Self { memory, pool, root, table: Table::with_policy(policy), oracle: BTreeMap::new() }
    }

    fn set(&mut self, prefix: Prefix<A>, leaf: Option<Slot>) -> Result<(), Full> {
        let mut space = Space { memory: &self.memory, pool: &mut self.pool, root: &self.root, full: FULL };
        match leaf {
            Some(leaf) => {
                self.oracle.insert(prefix, leaf);
                self.table.insert(&mut space, prefix, leaf)
            }
            None => {
                let (had, has) = (self.oracle.remove(&prefix), self.table.remove(&mut space, prefix));
                assert_eq!(had, has);
                Ok(())
            }
        }
    }

    fn heal(&mut self) -> Result<(), Full> {
        let mut space = Space { memory: &self.memory, pool: &mut self.pool, root: &self.root, full: FULL };
        self.table.heal(&mut space)
    }

    fn grace_period(&mut self) {
        let epoch = self.pool.seal();
        self.pool.reclaim(epoch);
    }

    fn lookup(&self, address: A) -> Slot {
        lookup(&self.memory, self.root.load(Relaxed), address)
    }

    fn linear(&self, address: A) -> Slot {
        let covering = self.oracle.iter().filter(|(p, _)| p.contains(address));
        covering.max_by_key(|(p, _)| p.length()).map_or(Slot::NO_ROUTE, |(_, leaf)| *leaf)
    }

    /// The numbers of blocks and tails in use.
    fn live(&self) -> (usize, usize) {
        let (blocks, tails) = self.pool.retired();
        (self.pool.blocks_used().used - 1 - blocks, self.pool.tails_used().used - tails)
    }
}

/// An address with few different bytes, so that prefixes nest and share blocks.
fn clustered(bytes: usize) -> impl Strategy<Value = u128> {
    let byte = prop_oneof![Just(0u8), Just(1), Just(10), Just(127), Just(128), Just(255)];
    prop::collection::vec(byte, bytes).prop_map(|b| b.iter().fold(0, |a, b| a << 8 | u128::from(*b)))
}

fn prefix4() -> impl Strategy<Value = Prefix4> {
    let length = prop_oneof![0u8..=32, Just(24u8), Just(32)];
    (clustered(4), length).prop_map(|(a, l)| Prefix::new(a as u32, l).unwrap())
}

fn prefix6() -> impl Strategy<Value = Prefix6> {
    let length = prop_oneof![0u8..=128, Just(48u8), Just(64), Just(128)];
    let address = prop_oneof![clustered(16), clustered(2).prop_map(|a| 0x2001_0db8 << 96 | a << 60)];
    let anywhere = (address, length).prop_map(|(a, l)| Prefix::new(a, l).unwrap());
    prop_oneof![anywhere, on_links()]
}

/// The routes of a few interfaces: a /64, addresses in it, and sometimes something in between.
fn on_links() -> impl Strategy<Value = Prefix6> {
    let length =
        prop_oneof![2 => Just(64u8), 4 => Just(128), 1 => Just(120), 1 => Just(112), 1 => 56u8..=128];
    let host =
        prop_oneof![4 => 0u128..4, 1 => Just(0x109), 1 => Just(0xff_fe00_0001), 1 => Just(1u128 << 63)];
    let net = prop::sample::select(vec![0u128, 1, 0x100, 0x1_0000]);
    (net, host, length).prop_map(|(n, h, l)| Prefix::new((0x2001_0db8u128 << 96) | (n << 64) | h, l).unwrap())
}

/// (which of the drawn prefixes; its new leaf, or `None` for removal)
type Step = (prop::sample::Index, Option<u32>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let leaf = prop_oneof![2 => (1u32..9).prop_map(Some), 1 => Just(None)];
    prop::collection::vec((any::<prop::sample::Index>(), leaf), 1..120)
}

fn slot(leaf: u32) -> Slot {
    if leaf.is_multiple_of(2) { Slot::group(leaf) } else { Slot::nexthop(leaf) }
}

/// The first and last address of each prefix, and their neighbours outside.
fn edges<A: Address>(prefixes: &[Prefix<A>], from_bits: impl Fn(u128) -> A) -> Vec<A> {
    let mask = u128::MAX >> (128 - u32::from(A::BITS));
    let mut all = Vec::new();
    for p in prefixes {
        let first = p.address().left_aligned() >> (128 - u32::from(A::BITS));
        let last = first | mask.checked_shr(p.length().into()).unwrap_or(0);
        let around = [first, last, first.wrapping_sub(1), last.wrapping_add(1)];
        all.extend(around.map(|a| from_bits(a & mask)));
    }
    all
}

fn matches_oracle<A: Address>(prefixes: &[Prefix<A>], steps: &[Step], from_bits: fn(u128) -> A) {
    let mut bed = Bed::<A>::new(2048, 512, SMALL);
    let addresses = edges(prefixes, from_bits);
    for (i, (which, leaf)) in steps.iter().enumerate() {
        let changed = *which.get(prefixes);
        bed.set(changed, leaf.map(slot)).unwrap();
        let all = i % 8 == 0 || i + 1 == steps.len();
        if all {
            bed.grace_period();
        }
        let near = if all { addresses.clone() } else { edges(&[changed], from_bits) };
        for a in near {
            assert_eq!(bed.lookup(a), bed.linear(a), "{} with {:?}", a.ip(), bed.oracle);
        }
    }
    // The structure is a function of the routes. If it is rebuilt with the same root, it takes the same memory.
    let bits = bed.table.root_bits();
    let routes_16 = if bits == 16 { 0 } else { usize::MAX };
    let mut fresh = Bed::<A>::new(1024, 256, Policy { routes_16, ..SMALL });
    for (p, leaf) in bed.oracle.clone() {
        fresh.set(p, Some(leaf)).unwrap();
    }
    assert_eq!(bed.live(), fresh.live());
    for p in bed.oracle.clone().into_keys() {
        bed.set(p, None).unwrap();
    }
    bed.grace_period();
    assert_eq!((bed.pool.blocks_used().used, bed.pool.tails_used().used), (1, 0));
    assert!(addresses.iter().all(|a| bed.lookup(*a) == Slot::NO_ROUTE));
}

fn exhaustion_is_safe<A: Address>(
    prefixes: &[Prefix<A>],
    steps: &[Step],
    (blocks, tails): (usize, usize),
    from_bits: fn(u128) -> A,
) {
    let mut bed = Bed::<A>::new(blocks, tails, Policy { routes_16: usize::MAX, ..SMALL });
    let addresses = edges(prefixes, from_bits);
    for (which, leaf) in steps {
        let result = bed.set(*which.get(prefixes), leaf.map(slot));
        assert!(result.is_ok() || bed.table.is_degraded());
        let degraded: Vec<_> = bed.table.poisoned().collect();
        for a in &addresses {
            let (got, linear) = (bed.lookup(*a), bed.linear(*a));
            let poisoned = degraded.iter().any(|p| p.contains(*a));
            let expected = if poisoned { FULL } else { linear };
            assert!(
                got == expected || (bed.table.root_bits() == 0 && got == Slot::NO_ROUTE),
                "{} leads to {got:?}, not {expected:?}",
                a.ip()
            );
        }
        if which.index(3) == 0 {
            bed.grace_period();
            let healed = bed.heal();
            assert_eq!(healed.is_ok(), !bed.table.is_degraded());
        }
    }
    for p in bed.oracle.clone().into_keys() {
        bed.set(p, None).unwrap();
    }
    bed.grace_period();
    assert_eq!((bed.pool.blocks_used().used, bed.pool.tails_used().used), (1, 0));
}

proptest! {
    #![proptest_config(crate::cases(64))]

    #[test]
    fn ipv4_matches_linear_search(
        prefixes in prop::collection::vec(prefix4(), 1..40), steps in steps()
    ) {
        matches_oracle(&prefixes, &steps, |a| a as u32);
    }

    #[test]
    fn ipv6_matches_linear_search(
        prefixes in prop::collection::vec(prefix6(), 1..40), steps in steps()
    ) {
        matches_oracle(&prefixes, &steps, |a| a);
    }

    #[test]
    fn exhaustion_leads_to_the_kernel(
        prefixes in prop::collection::vec(prefix4(), 1..30), steps in steps(),
        rows in (1usize..8, 0usize..6)
    ) {
        exhaustion_is_safe(&prefixes, &steps, rows, |a| a as u32);
    }

    #[test]
    fn exhaustion_leads_to_the_kernel_for_ipv6(
        prefixes in prop::collection::vec(prefix6(), 1..30), steps in steps(),
        rows in (1usize..20, 0usize..6)
    ) {
        exhaustion_is_safe(&prefixes, &steps, rows, |a| a);
    }

    #[test]
    fn without_tails_the_answers_are_the_same(
        prefixes in prop::collection::vec(prefix4(), 1..30), steps in steps()
    ) {
        let mut bed = Bed::<u32>::new(2048, 0, Policy { tails: false, ..SMALL });
        for (which, leaf) in &steps {
            bed.set(*which.get(&prefixes), leaf.map(slot)).unwrap();
        }
        for a in edges(&prefixes, |a| a as u32) {
            prop_assert_eq!(bed.lookup(a), bed.linear(a));
        }
    }
}

#[test]
fn a_root_of_24_bits_comes_and_goes() {
    let policy = Policy { routes_16: 4, routes_24: 8, tails: true };
    let mut bed = Bed::<u32>::new(2 * 65_536 + 600, 64, policy);
    let prefixes: Vec<Prefix4> = ["0.0.0.0/0", "10.0.0.0/8", "10.1.2.0/24", "10.1.2.3/32", "10.1.2.4/32"]
        .map(|p| p.parse().unwrap())
        .into_iter()
        .chain((0..8).map(|i| Prefix::new(0xc000_0000 + (i << 12), 20).unwrap()))
        .collect();
    let mut bits = Vec::new();
    let addresses = edges(&prefixes, |a| a as u32);
    let check = |bed: &Bed<u32>| {
        for a in &addresses {
            assert_eq!(bed.lookup(*a), bed.linear(*a));
        }
    };
    for (i, p) in prefixes.iter().enumerate() {
        bed.set(*p, Some(Slot(i as u32 + 1))).unwrap();
        bits.push(bed.table.root_bits());
        check(&bed);
    }
    assert_eq!(bits, [8, 8, 8, 8, 16, 16, 16, 16, 24, 24, 24, 24, 24]);
    bits.clear();
    for p in &prefixes {
        bed.set(*p, None).unwrap();
        bed.grace_period();
        bits.push(bed.table.root_bits());
        check(&bed);
    }
    assert_eq!(bits, [24, 24, 24, 24, 24, 24, 24, 24, 16, 16, 8, 8, 0]);
}

#[test]
fn a_root_that_finds_no_room_to_grow_stays() {
    let mut bed = Bed::<u32>::new(200, 64, SMALL);
    for i in 0..40 {
        bed.set(Prefix::new(i << 24, 8).unwrap(), Some(Slot(i + 1))).unwrap();
    }
    assert_eq!(bed.table.root_bits(), 8);
    assert_eq!(bed.lookup(39 << 24 | 7), Slot(40));
}

#[test]
fn a_bigger_root_is_tried_again_after_a_quarter_more_routes() {
    let mut bed = Bed::<u32>::new(300, 64, SMALL);
    let taken = bed.pool.blocks(&bed.memory, 100, Slot::NO_ROUTE, 0).unwrap();
    let set = |bed: &mut Bed<u32>, i: u32| {
        bed.set(Prefix::new(i << 24, 8).unwrap(), Some(Slot(i + 1))).unwrap();
        bed.table.root_bits()
    };
    (0..13).for_each(|i| assert_eq!(set(&mut bed, i), 8));
    bed.pool.retire_blocks(taken, 100);
    bed.grace_period();
    assert_eq!([13, 14, 15, 16, 17].map(|i| set(&mut bed, i)), [8, 8, 8, 16, 16]);
    // All is forgotten with the routes.
    let taken = bed.pool.blocks(&bed.memory, 20, Slot::NO_ROUTE, 0).unwrap();
    (0..18).for_each(|i| bed.set(Prefix::new(i << 24, 8).unwrap(), None).unwrap());
    bed.grace_period();
    let more = bed.pool.blocks(&bed.memory, 80, Slot::NO_ROUTE, 0).unwrap();
    (0..13).for_each(|i| assert_eq!(set(&mut bed, i), 8));
    let mut space = Space { memory: &bed.memory, pool: &mut bed.pool, root: &bed.root, full: FULL };
    bed.table.clear(&mut space);
    for (first, rows) in [(taken, 20), (more, 80)] {
        bed.pool.retire_blocks(first, rows);
    }
    bed.grace_period();
    assert_eq!(
        [0, 11, 12].map(|last| (0..=last).map(|i| set(&mut bed, i)).last()),
        [Some(8), Some(8), Some(16)]
    );
}

/// The old root keeps its tails until the new one is complete.
#[test]
fn a_root_that_finds_no_room_for_its_tails_stays() {
    let mut bed = Bed::<u32>::new(600, 20, SMALL);
    let prefixes: Vec<Prefix4> = (0..14).map(|i| Prefix::new(i << 24 | 0x1_0200, 24).unwrap()).collect();
    for (i, prefix) in (1..).zip(&prefixes) {
        // The tails of the new root are free again after a grace period.
        assert_eq!(bed.set(*prefix, Some(Slot(i))).is_err(), i > 12);
    }
    bed.grace_period();
    bed.heal().unwrap();
    assert_eq!((bed.table.root_bits(), bed.table.is_degraded(), bed.live()), (8, false, (1, 14)));
    for address in edges(&prefixes, |a| a as u32) {
        assert_eq!(bed.lookup(address), bed.linear(address));
    }
    bed.grace_period();
    assert_eq!((bed.pool.blocks_used().used, bed.pool.tails_used().used), (2, 14));
}

#[test]
fn tables_have_the_measured_shape() {
    assert_eq!(Policy::of::<u32>(), Policy { routes_16: 256, routes_24: 65_536, tails: true });
    assert_eq!(Policy::of::<u128>(), Policy { routes_16: 256, routes_24: usize::MAX, tails: true });
    let mut bed = Bed::<u32>::new(2, 1, SMALL);
    assert!(bed.table.is_empty());
    bed.set("10.0.0.0/8".parse().unwrap(), Some(Slot(1))).unwrap();
    assert!(!bed.table.is_empty());
}

#[test]
fn an_isolated_host_route_costs_one_tail() {
    let mut bed = Bed::<u128>::new(16, 16, Policy::of::<u128>());
    bed.set("2001:db8::/32".parse().unwrap(), Some(Slot(1))).unwrap();
    assert_eq!(bed.live(), (1, 1));
    bed.set("fd00::7/128".parse().unwrap(), Some(Slot(2))).unwrap();
    assert_eq!(bed.live(), (1, 2));
}

/// The routes that every IPv6 interface has cost a block for the addresses, however far they are from the /64.
#[test]
fn addresses_on_a_link_cost_one_tail_and_one_block() {
    let mut bed = Bed::<u128>::new(64, 64, Policy::of::<u128>());
    let routes = |net: u32| {
        [("", 64), ("", 128), ("1", 128)]
            .map(|(h, l)| format!("2001:db8:0:{net:x}::{h}/{l}").parse().unwrap())
    };
    for (i, p) in routes(0).into_iter().enumerate() {
        bed.set(p, Some(Slot(i as u32 + 1))).unwrap();
    }
    // The blocks are the root, the block with the /64, and the block of addresses. Tails lead to the last two.
    assert_eq!(bed.live(), (3, 2));
    for p in routes(1) {
        bed.set(p, Some(Slot(4))).unwrap();
    }
    assert_eq!(bed.live(), (4, 3));
    assert_eq!(bed.lookup("2001:db8::9".parse::<std::net::Ipv6Addr>().unwrap().to_bits()), Slot(1));
    for p in routes(0) {
        bed.set(p, None).unwrap();
    }
    assert_eq!(bed.live(), (3, 2));
    for p in routes(1).into_iter().take(2) {
        bed.set(p, None).unwrap();
    }
    assert_eq!(bed.live(), (1, 1));
}

#[test]
fn invalid_memory_means_no_route() {
    let bed = Bed::<u32>::new(2, 1, SMALL);
    assert_eq!(lookup(&bed.memory, u64::MAX, 1u32), Slot::NO_ROUTE);
    bed.memory.fib()[0].store(Slot::child(0).0, Relaxed);
    assert_eq!(lookup(&bed.memory, empty_root::<u32>(), 0u32), Slot::NO_ROUTE);
    bed.memory.fib()[0].store(Slot::tail(5).0, Relaxed);
    assert_eq!(lookup(&bed.memory, empty_root::<u32>(), 0u32), Slot::NO_ROUTE);
}

proptest! {
    /// The result is the same for any root word and memory.
    #[test]
    fn a_first_step_taken_elsewhere_leads_to_the_same(
        first in prop_oneof![0..4u32, any::<u32>()],
        shift in 0..40u8,
        slots in prop::collection::vec((0..4u32, 0..4u32), 1024),
        addresses in prop::collection::vec(prop_oneof![any::<u32>(), 0..1024u32], 64),
    ) {
        let bed = Bed::<u32>::new(4, 4, SMALL);
        for (word, (kind, index)) in bed.memory.fib().iter().zip(slots) {
            word.store(kind << KIND_SHIFT | index, Relaxed);
        }
        let root = u64::from(shift) << 32 | u64::from(first);
        for address in addresses {
            let apart = Root4::new(root);
            let slot = bed.memory.fib().get(apart.place(address)).map_or(Slot::NO_ROUTE, |word| Slot(word.load(Relaxed)));
            let mut walk = Walk::after(apart.bits(), slot);
            while walk.leaf().is_none() {
                walk = walk.step(&bed.memory, address);
            }
            prop_assert_eq!(walk.leaf(), Some(lookup(&bed.memory, root, address)));
        }
    }
}

/// Readers look up addresses that a stable route always covers. The answer may be that route's leaf, or one of the
/// leaves that come and go inside it, but never another.
fn readers_race<A: Address>(
    covers: &[Prefix<A>],
    inner: impl Fn(&mut synthetic::Random, usize) -> Prefix<A> + Sync,
) {
    let policy = Policy { routes_16: 24, routes_24: usize::MAX, tails: true };
    let mut bed = Bed::<A>::new(4096, 512, policy);
    for (i, p) in covers.iter().enumerate() {
        bed.set(*p, Some(Slot(100 * (i as u32 + 1)))).unwrap();
    }
    let count = covers.len() as u32;
    let readers = grace::Readers::default();
    let mut random = synthetic::Random(3);
    let Bed { memory, pool, root, table, .. } = &mut bed;
    let (memory, root) = (&*memory, &*root);
    let read = |random: &mut synthetic::Random| {
        let net = random.below(count) as usize;
        let address = inner(random, net).address();
        let leaf = lookup(memory, root.load(Acquire), address).0;
        assert_eq!(leaf / 100, net as u32 + 1, "{:?}", address.ip());
    };
    let write = || {
        for round in 0..10_000u32 {
            let mut space = Space { memory, pool: &mut *pool, root, full: FULL };
            let net = random.below(count);
            let prefix = inner(&mut random, net as usize);
            if random.below(2) == 0 && table.len() < 60 {
                table.insert(&mut space, prefix, Slot(100 * (net + 1) + 1 + round % 99)).unwrap();
            } else {
                let victim = table.routes().nth(random.below(table.len() as u32) as usize);
                if let Some((victim, _)) = victim.filter(|(p, _)| !covers.contains(p)) {
                    table.remove(&mut space, victim);
                }
            }
            if round % 32 == 0 {
                let epoch = pool.seal();
                readers.grace_period();
                pool.reclaim(epoch);
            }
        }
    };
    readers.race(|n| synthetic::Random(n as u64), read, write);
}

#[test]
fn readers_never_see_a_hole_or_a_foreign_leaf() {
    let covers: Vec<Prefix4> = (0..8).map(|i| Prefix::new(i << 24, 8).unwrap()).collect();
    readers_race(&covers, |random, net| {
        let address = (net as u32) << 24 | random.below(4) << 16 | random.below(300);
        Prefix::new(address, 9 + random.below(24) as u8).unwrap()
    });
}

#[test]
fn readers_never_see_a_hole_or_a_foreign_leaf_on_links() {
    let covers: Vec<Prefix6> =
        [0, 1, 0x100, 0x1_0000].map(|n| Prefix::new(0x2001_0db8u128 << 96 | n << 64, 64).unwrap()).into();
    readers_race(&covers, |random, net| {
        let host = u128::from(random.below(4)) << (56 * random.below(2)) | u128::from(random.below(300));
        let length = if random.below(4) == 0 { 65 + random.below(64) as u8 } else { 128 };
        Prefix::new(covers[net].address() | host, length).unwrap()
    });
}
