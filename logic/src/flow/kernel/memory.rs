//! The memory of flow rules, as slices of atomic words. `bpf/flow_abi.h` defines the layout.

use crate::flow::{CoreChoice, Key, program::Ports, rule::CORE_TABLE};
use std::sync::{Arc, Mutex, atomic::AtomicU64};

/// The number of words in one row of each region.
pub mod words {
    use super::Key;
    /// `struct flow_mask`.
    pub const MASK: usize = 24;
    /// `struct flow_table`.
    pub const TABLE: usize = 1 + super::ORDER;
    /// `struct flow_bucket`.
    pub const BUCKET: usize = 8;
    /// `struct flow_rule`.
    pub const RULE: usize = 8;
    /// `struct flow_rest`.
    pub const REST: usize = 16;
    /// `struct flow_patch`.
    pub const PATCH: usize = 2 * Key::WORDS + 2;
    /// `struct flow_step`.
    pub const STEP: usize = 2;
    /// `struct flow_group`: 256 slots of 32 bits.
    pub const GROUP: usize = 128;
    /// `struct flow_meter`.
    pub const METER: usize = 48;
    /// `struct flow_cached`.
    pub const CACHED: usize = 8;
    /// `struct flow_count`.
    pub const COUNT: usize = 2;
}

/// Rows of `flow_masks`; row 0 is the union.
pub const MASKS: usize = 4096;
/// Spare entries of a table's order, for masks that have two entries while they move.
pub const SPARE: usize = 256;
/// Entries of a table's order.
pub const ORDER: usize = MASKS - 1 + SPARE;
/// Bits of an entry below the rank of its mask.
pub const ORDER_RANK_SHIFT: u32 = 12;
const _: () = assert!(MASKS <= 1 << ORDER_RANK_SHIFT);
/// Rows of `flow_tables`. The core table is the last.
pub const TABLE_ROWS: usize = CORE_TABLE as usize + 1;
/// How many words of a key are in the rule and in the cache.
pub const FRONT: usize = 4;
/// How many flows one set of the cache has.
pub const CACHE_WAYS: usize = 2;

/// The regions of memory. Their lengths are the capacities, each a multiple of the row size in [`words`].
pub trait FlowMemory {
    fn masks(&self) -> &[AtomicU64];
    fn tables(&self) -> &[AtomicU64];
    /// The number of buckets is a power of two.
    fn index(&self) -> &[AtomicU64];
    fn rules(&self) -> &[AtomicU64];
    fn rest(&self) -> &[AtomicU64];
    fn patches(&self) -> &[AtomicU64];
    fn steps(&self) -> &[AtomicU64];
    fn groups(&self) -> &[AtomicU64];
    fn meters(&self) -> &[AtomicU64];
    /// The caches of all CPUs, one after another. Each has a power of two of sets of [`CACHE_WAYS`] flows.
    fn cache(&self) -> &[AtomicU64];
    /// The counters of all CPUs, one after another, and then those of user space.
    fn counters(&self) -> &[AtomicU64];
    fn cpus(&self) -> usize;
    /// The indices of a row's counters, one for each CPU and the last for user space.
    fn counters_of(&self, row: u32) -> impl DoubleEndedIterator<Item = usize> {
        let lots = self.cpus() + 1;
        let words = self.counters().len() / lots;
        (0..lots).map(move |lot| lot * words + row as usize * words::COUNT)
    }
    /// How many rows `flow_sets` has.
    fn sets(&self) -> usize;
    /// Writes these ports to a row of `flow_sets`, before a rule names it. Returns false if that fails.
    fn write_set(&self, row: u32, ports: &Ports) -> bool;
    /// No rule names the row any more, so it may be written again.
    fn forget_set(&self, row: u32);
    /// Makes a core ready to take packets before a rule names it. For a choice, makes the choosing of cores ready. Returns
    /// false if packets cannot be handed to the core.
    fn write_core(&self, choice: CoreChoice) -> bool;
}

impl<T: FlowMemory> FlowMemory for Arc<T> {
    fn masks(&self) -> &[AtomicU64] {
        (**self).masks()
    }
    fn tables(&self) -> &[AtomicU64] {
        (**self).tables()
    }
    fn index(&self) -> &[AtomicU64] {
        (**self).index()
    }
    fn rules(&self) -> &[AtomicU64] {
        (**self).rules()
    }
    fn rest(&self) -> &[AtomicU64] {
        (**self).rest()
    }
    fn patches(&self) -> &[AtomicU64] {
        (**self).patches()
    }
    fn steps(&self) -> &[AtomicU64] {
        (**self).steps()
    }
    fn groups(&self) -> &[AtomicU64] {
        (**self).groups()
    }
    fn meters(&self) -> &[AtomicU64] {
        (**self).meters()
    }
    fn cache(&self) -> &[AtomicU64] {
        (**self).cache()
    }
    fn counters(&self) -> &[AtomicU64] {
        (**self).counters()
    }
    fn cpus(&self) -> usize {
        (**self).cpus()
    }
    fn sets(&self) -> usize {
        (**self).sets()
    }
    fn write_set(&self, row: u32, ports: &Ports) -> bool {
        (**self).write_set(row, ports)
    }
    fn forget_set(&self, row: u32) {
        (**self).forget_set(row);
    }
    fn write_core(&self, choice: CoreChoice) -> bool {
        (**self).write_core(choice)
    }
}

/// How many rows each region has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowCapacity {
    /// Rules, including the rows of tables' misses.
    pub rules: usize,
    /// A power of two.
    pub buckets: usize,
    pub rest: usize,
    pub patches: usize,
    pub steps: usize,
    pub groups: usize,
    pub meters: usize,
    /// Sets of each CPU's cache; a power of two.
    pub cache_sets: usize,
    /// Sets of ports.
    pub port_sets: usize,
}

/// [`FlowMemory`] on the heap.
pub struct HeapFlows {
    regions: [Box<[AtomicU64]>; 11],
    cpus: usize,
    sets: Mutex<Vec<Option<Ports>>>,
}

impl HeapFlows {
    /// All zero.
    pub fn new(capacity: FlowCapacity, cpus: usize) -> Self {
        let c = capacity;
        let rows = [
            (MASKS, words::MASK),
            (TABLE_ROWS, words::TABLE),
            (c.buckets, words::BUCKET),
            (c.rules, words::RULE),
            (c.rest, words::REST),
            (c.patches, words::PATCH),
            (c.steps, words::STEP),
            (c.groups, words::GROUP),
            (c.meters, words::METER),
            (cpus * c.cache_sets * CACHE_WAYS, words::CACHED),
            ((cpus + 1) * c.rules, words::COUNT),
        ];
        Self {
            regions: rows.map(|(rows, row)| (0..rows * row).map(|_| AtomicU64::new(0)).collect()),
            cpus,
            sets: Mutex::new(vec![None; c.port_sets]),
        }
    }
}

macro_rules! regions {
    ($($name:ident $at:literal),*) => {
        $(fn $name(&self) -> &[AtomicU64] { &self.regions[$at] })*
    };
}

impl FlowMemory for HeapFlows {
    regions!(masks 0, tables 1, index 2, rules 3, rest 4, patches 5, steps 6, groups 7, meters 8, cache 9, counters 10);
    fn cpus(&self) -> usize {
        self.cpus
    }
    fn sets(&self) -> usize {
        self.sets.lock().map_or(0, |sets| sets.len())
    }
    fn write_set(&self, row: u32, ports: &Ports) -> bool {
        let Ok(mut sets) = self.sets.lock() else { return false };
        sets.get_mut(row as usize).map(|set| *set = Some(ports.clone())).is_some()
    }
    fn forget_set(&self, row: u32) {
        if let Ok(mut sets) = self.sets.lock()
            && let Some(set) = sets.get_mut(row as usize)
        {
            *set = None;
        }
    }
    fn write_core(&self, choice: CoreChoice) -> bool {
        !matches!(choice, CoreChoice::This(core) if usize::from(core) >= self.cpus)
    }
}
