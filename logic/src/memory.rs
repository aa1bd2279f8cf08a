//! The memory that the kernel plane reads, as slices of atomic words.
//!
//! `router` implements [`Memory`] over mapped BPF maps. Tests and the user plane implement it over the heap.
//! The layout is in `bpf/abi.h`. Every store that publishes something is a release store of one aligned word.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64},
};

/// The number of words in one row of each region.
pub mod words {
    /// `struct fib_block`, in u32 words.
    pub const FIB_BLOCK: usize = 256;
    /// `struct fib_tail`, in u64 words.
    pub const FIB_TAIL: usize = 4;
    /// `struct nexthop`.
    pub const NEXTHOP: usize = 8;
    /// `struct neighbour_bucket`.
    pub const NEIGHBOUR_BUCKET: usize = 8;
    /// `struct interface_bucket`.
    pub const INTERFACE_BUCKET: usize = 8;
    /// `struct router`.
    pub const ROUTER: usize = 40;
    /// `struct queue_row`.
    pub const QUEUE_ROW: usize = 8;
    /// `struct firewall`.
    pub const FIREWALL: usize = 168;
    /// `struct connection`.
    pub const CONNECTION: usize = 8;
    /// Rows of a block of `struct connection`.
    pub const CONNECTION_WAYS: usize = 8;
}

/// The regions; their lengths are the capacities (a multiple of the row size in [`words`]).
pub trait Memory {
    /// `fib` map.
    fn fib(&self) -> &[AtomicU32];
    /// `fib_tails` map.
    fn fib_tails(&self) -> &[AtomicU64];
    /// `nexthops` map.
    fn nexthops(&self) -> &[AtomicU64];
    /// `neighbour_index` map; a power of two of buckets.
    fn neighbour_index(&self) -> &[AtomicU64];
    /// `interface_index` map; a power of two of buckets.
    fn interface_index(&self) -> &[AtomicU64];
    /// `routers` map.
    fn routers(&self) -> &[AtomicU64];
    /// `firewalls` map, by router.
    fn firewalls(&self) -> &[AtomicU64];
    /// `interface_groups` map, by interface.
    fn interface_groups(&self) -> &[AtomicU64];
    /// The `queues` map; empty if no port has a classifier.
    fn queues(&self) -> &[AtomicU64] {
        &[]
    }
    /// The `policy` map, by router: changes of its policy that the daemon has not read yet; empty if changes
    /// cannot be watched.
    fn policy(&self) -> &[AtomicU64] {
        &[]
    }
}

/// Rows of `interface_groups` on the heap.
const INTERFACES: usize = 8192;

/// How many rows each region has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub fib_blocks: usize,
    pub fib_tails: usize,
    pub nexthops: usize,
    pub neighbour_buckets: usize,
    pub interface_buckets: usize,
    pub routers: usize,
}

impl Capacity {
    /// Room for a test's few routes.
    #[doc(hidden)]
    pub const SMALL: Capacity = Capacity {
        fib_blocks: 1024,
        fib_tails: 64,
        nexthops: 64,
        neighbour_buckets: 64,
        interface_buckets: 64,
        routers: 256,
    };
}

/// [`Memory`] on the heap.
pub struct HeapMemory {
    fib: Box<[AtomicU32]>,
    fib_tails: Box<[AtomicU64]>,
    nexthops: Box<[AtomicU64]>,
    neighbour_index: Box<[AtomicU64]>,
    interface_index: Box<[AtomicU64]>,
    routers: Box<[AtomicU64]>,
    firewalls: Box<[AtomicU64]>,
    interface_groups: Box<[AtomicU64]>,
    queues: Box<[AtomicU64]>,
    policy: Box<[AtomicU64]>,
}

impl HeapMemory {
    /// All zero, without rows for queues.
    pub fn new(capacity: Capacity) -> Self {
        Self::with_queue_rows(capacity, 0)
    }

    /// All zero.
    pub fn with_queue_rows(capacity: Capacity, queue_rows: usize) -> Self {
        let zeroed = |rows: usize, row: usize| (0..rows * row).map(|_| AtomicU64::new(0)).collect();
        Self {
            fib: (0..capacity.fib_blocks * words::FIB_BLOCK).map(|_| AtomicU32::new(0)).collect(),
            fib_tails: zeroed(capacity.fib_tails, words::FIB_TAIL),
            nexthops: zeroed(capacity.nexthops, words::NEXTHOP),
            neighbour_index: zeroed(capacity.neighbour_buckets, words::NEIGHBOUR_BUCKET),
            interface_index: zeroed(capacity.interface_buckets, words::INTERFACE_BUCKET),
            routers: zeroed(capacity.routers, words::ROUTER),
            firewalls: zeroed(capacity.routers, words::FIREWALL),
            interface_groups: zeroed(INTERFACES, 1),
            queues: zeroed(queue_rows, words::QUEUE_ROW),
            policy: zeroed(capacity.routers, 1),
        }
    }
}

impl Memory for HeapMemory {
    fn fib(&self) -> &[AtomicU32] {
        &self.fib
    }
    fn fib_tails(&self) -> &[AtomicU64] {
        &self.fib_tails
    }
    fn nexthops(&self) -> &[AtomicU64] {
        &self.nexthops
    }
    fn neighbour_index(&self) -> &[AtomicU64] {
        &self.neighbour_index
    }
    fn interface_index(&self) -> &[AtomicU64] {
        &self.interface_index
    }
    fn routers(&self) -> &[AtomicU64] {
        &self.routers
    }
    fn firewalls(&self) -> &[AtomicU64] {
        &self.firewalls
    }
    fn interface_groups(&self) -> &[AtomicU64] {
        &self.interface_groups
    }
    fn queues(&self) -> &[AtomicU64] {
        &self.queues
    }
    fn policy(&self) -> &[AtomicU64] {
        &self.policy
    }
}

impl<M: Memory + ?Sized> Memory for Arc<M> {
    fn fib(&self) -> &[AtomicU32] {
        M::fib(self)
    }
    fn fib_tails(&self) -> &[AtomicU64] {
        M::fib_tails(self)
    }
    fn nexthops(&self) -> &[AtomicU64] {
        M::nexthops(self)
    }
    fn neighbour_index(&self) -> &[AtomicU64] {
        M::neighbour_index(self)
    }
    fn interface_index(&self) -> &[AtomicU64] {
        M::interface_index(self)
    }
    fn routers(&self) -> &[AtomicU64] {
        M::routers(self)
    }
    fn firewalls(&self) -> &[AtomicU64] {
        M::firewalls(self)
    }
    fn interface_groups(&self) -> &[AtomicU64] {
        M::interface_groups(self)
    }
    fn queues(&self) -> &[AtomicU64] {
        M::queues(self)
    }
    fn policy(&self) -> &[AtomicU64] {
        M::policy(self)
    }
}
