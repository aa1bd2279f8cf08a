//! Rules of firewalls: `struct firewall` of `bpf/abi.h`, and the groups of interfaces.

use super::{Tables, routes::FLAGS_WORD};
use crate::{
    fib::Full,
    firewall::{
        pairs::{GROUPS, MOST_EXCEPTIONS, PairTable},
        prove::Exception,
    },
    memory::{Memory, words},
    plan::{InterfaceId, RouterId},
};
use std::sync::{
    Arc,
    atomic::{
        AtomicU64,
        Ordering::{Relaxed, Release, SeqCst},
        fence,
    },
};

/// Bits of a router's flags: rules may affect some packets of IPv4, and of IPv6.
pub const ROUTER_RULES: [u64; 2] = [1 << 2, 1 << 3];
/// A bit of a router's flags: it may have connections.
pub const ROUTER_CONNECTIONS: u64 = 1 << 4;

/// Words of `struct firewall`: the rows of pairs of each version come first, then the ranges of each version, then a
/// word for each version that says which ranges are in use, a count of changes, and the generation.
pub const RANGES: usize = 2 * GROUPS;
const RANGE_WORDS: usize = 4;
pub const RANGES_USED: usize = RANGES + 2 * MOST_EXCEPTIONS * RANGE_WORDS;

/// Counts up before and after each change of the other words.
pub const CHANGES: usize = RANGES_USED + 2;
/// Connections of another generation are void; 0: all are.
pub const GENERATION: usize = CHANGES + 1;

const _: () = assert!(GENERATION < words::FIREWALL && words::FIREWALL.is_multiple_of(8));

impl<M: Memory> Tables<M> {
    /// Sets the router's flags before the tables, so the program consults them at once. The generation is 0 while the
    /// rest changes. So a packet that begins after this uses no connection of another generation.
    pub(super) fn set_rules(
        &mut self,
        router: RouterId,
        tables: &[Option<Arc<PairTable>>; 2],
        generation: u32,
    ) -> Result<(), Full> {
        self.has_row(router)?;
        let connections = if generation == 0 { 0 } else { ROUTER_CONNECTIONS };
        let asked =
            (0..2).filter(|i| tables[*i].is_some()).fold(connections, |flags, i| flags | ROUTER_RULES[i]);
        if let (Some(row), Some(firewall)) = (self.row(router), self.firewall(router)) {
            firewall[GENERATION].store(0, Release);
            fence(SeqCst);
            let flags = &row[FLAGS_WORD];
            let others = flags.load(Relaxed) & !(ROUTER_RULES[0] | ROUTER_RULES[1] | ROUTER_CONNECTIONS);
            flags.store(others | asked, Release);
            for (version, table) in tables.iter().enumerate() {
                write(firewall, version, table.as_deref().unwrap_or(&PairTable::default()));
            }
            firewall[GENERATION].store(generation.into(), Release);
        }
        Ok(())
    }

    fn firewall(&self, router: RouterId) -> Option<&[AtomicU64]> {
        let at = usize::from(router) * words::FIREWALL;
        self.memory.firewalls().get(at..at + words::FIREWALL)
    }

    pub(super) fn rules_gone(&self, router: RouterId) {
        self.firewall(router).into_iter().flatten().for_each(|word| word.store(0, Release));
    }

    pub(super) fn set_group(&self, interface: InterfaceId, group: u8) {
        if let Some(word) = self.memory.interface_groups().get(usize::from(interface)) {
            word.store(group.into(), Release);
        }
    }
}

/// A reader discards what it has read if the count of changes is odd, or if it changed during the read.
fn write(firewall: &[AtomicU64], version: usize, table: &PairTable) {
    let changes = &firewall[CHANGES];
    let before = changes.load(Relaxed);
    changes.store(before + 1, Release);
    fence(SeqCst);
    let mut used = 0;
    for (i, exception) in table.exceptions.iter().take(MOST_EXCEPTIONS).enumerate() {
        let at = RANGES + (version * MOST_EXCEPTIONS + i) * RANGE_WORDS;
        for (word, value) in firewall[at..at + RANGE_WORDS].iter().zip(range(exception)) {
            word.store(value, Release);
        }
        used |= 1 << i;
    }
    firewall[RANGES_USED + version].store(used, Release);
    for (row, pairs) in firewall[version * GROUPS..(version + 1) * GROUPS].iter().zip(table.pairs) {
        row.store(pairs, Release);
    }
    changes.store(before + 2, Release);
}

/// Lowest and highest address, each as its high half and its low half. An IPv4 address is in the low half.
fn range(exception: &Exception) -> [u64; RANGE_WORDS] {
    let number = |bytes: &[u8]| bytes.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    let [low, high] = [&exception.low, &exception.high].map(|bytes| number(bytes));
    [(low >> 64) as u64, low as u64, (high >> 64) as u64, high as u64]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        memory::{Capacity, HeapMemory},
        plan::{MultipathHash, Op},
    };
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire};

    fn tables() -> Tables<Arc<HeapMemory>> {
        let capacity = Capacity {
            fib_blocks: 8,
            fib_tails: 8,
            nexthops: 8,
            neighbour_buckets: 1,
            interface_buckets: 1,
            routers: 2,
        };
        let mut tables = Tables::new(Arc::new(HeapMemory::new(capacity)));
        tables.apply(&Op::Router { router: 1, multipath: MultipathHash::default() }).unwrap();
        tables
    }

    /// Rules whose pairs show the generation.
    fn rules(generation: u32) -> Op {
        let table = PairTable { pairs: [generation.into(); GROUPS], ..PairTable::default() };
        Op::Rules { router: 1, tables: [Some(Arc::new(table)), None], generation }
    }

    #[test]
    fn connections_follow_the_generation_of_the_rules() {
        let mut tables = tables();
        let state = |tables: &Tables<Arc<HeapMemory>>| {
            let flags = tables.row(1).unwrap()[FLAGS_WORD].load(Relaxed);
            (flags & ROUTER_CONNECTIONS != 0, tables.firewall(1).unwrap()[GENERATION].load(Relaxed))
        };
        assert_eq!(state(&tables), (false, 0));
        tables.apply(&rules(7)).unwrap();
        assert_eq!(state(&tables), (true, 7));
        // Other operations keep the flag.
        tables.apply(&Op::Router { router: 1, multipath: MultipathHash::default() }).unwrap();
        assert_eq!(state(&tables), (true, 7));
        tables.apply(&rules(0)).unwrap();
        assert_eq!(state(&tables), (false, 0));
        tables.apply(&rules(8)).unwrap();
        tables.apply(&Op::RouterGone(1)).unwrap();
        assert_eq!(state(&tables), (false, 0));
    }

    /// A generation is in force only together with its tables.
    #[test]
    fn the_generation_is_0_while_tables_change() {
        let mut tables = tables();
        let memory = tables.memory().clone();
        let (ended, seen) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let firewall = &memory.firewalls()[words::FIREWALL..];
                while !ended.load(Relaxed) {
                    let before = firewall[GENERATION].load(Acquire);
                    let pairs = [0, GROUPS - 1].map(|row| firewall[row].load(Acquire));
                    if before != 0 && firewall[GENERATION].load(Acquire) == before {
                        if pairs != [before; 2] {
                            // The other thread must not wait for ever. Otherwise nothing is stored: `false` could
                            // replace that thread's `true`.
                            ended.store(true, Relaxed);
                            panic!("generation {before} with tables {pairs:?}");
                        }
                        seen.fetch_add(1, Relaxed);
                    }
                }
            });
            let mut generation = 1;
            while !ended.load(Relaxed) && (generation < 20_000 || seen.load(Relaxed) < 100) {
                tables.apply(&rules(generation)).unwrap();
                generation += 1;
            }
            ended.store(true, Relaxed);
        });
    }
}
