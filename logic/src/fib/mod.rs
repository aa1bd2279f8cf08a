//! The forwarding table: a leaf-pushed multibit trie of 8-bit strides over `Memory::fib()`, for IPv4 and IPv6, shared
//! by all routers. `bpf/abi.h` has the layout, the program in `bpf/` and [`lookup`] walk it in the same steps.
//!
//! Who writes what: one writer (a [`Table`] through its [`Space`]) and any number of readers. A published slot, root
//! word and the leaves of a tail are each one aligned word, stored with release order, and what a slot leads to is
//! complete before the slot is stored. So a reader sees the answer from before or after a change, never a hole. Rows
//! that are no longer led to are reused only after a grace period ([`Pool::seal`], [`Pool::reclaim`]).

mod pool;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use pool::Extents;
pub(crate) use pool::Limbo;
pub use pool::{Epoch, Full, Occupancy, Pool, Region};
pub use table::{Policy, Space, Table};

use crate::{
    memory::{Memory, words},
    net::Address,
};
use std::sync::atomic::Ordering::Acquire;

pub mod synthetic;

const KIND_SHIFT: u32 = 30;
/// The largest index a slot can hold.
pub const MAX_INDEX: u32 = (1 << KIND_SHIFT) - 1;

/// A slot of a block, as the ABI has it: what an address range leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// What a [`Slot`] leads to (`enum fib_kind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nexthop,
    Group,
    Child,
    Tail,
}

impl Slot {
    /// Next hop 0.
    pub const NO_ROUTE: Slot = Slot(0);

    /// Leaf: a next hop.
    pub fn nexthop(id: u32) -> Slot {
        Slot(id & MAX_INDEX)
    }
    /// Leaf: a block of next hops chosen by flow hash.
    pub fn group(block: u32) -> Slot {
        Slot(block & MAX_INDEX | 1 << KIND_SHIFT)
    }
    fn child(block: u32) -> Slot {
        Slot(block & MAX_INDEX | 2 << KIND_SHIFT)
    }
    fn tail(tail: u32) -> Slot {
        Slot(tail & MAX_INDEX | 3 << KIND_SHIFT)
    }
    /// What it leads to.
    pub fn kind(self) -> Kind {
        match self.0 >> KIND_SHIFT {
            0 => Kind::Nexthop,
            1 => Kind::Group,
            2 => Kind::Child,
            _ => Kind::Tail,
        }
    }
    /// Its row in the region of its kind.
    pub fn index(self) -> u32 {
        self.0 & MAX_INDEX
    }
}

/// Root word of a table without routes: block 0, which is always empty.
pub fn empty_root<A: Address>() -> u64 {
    u64::from(A::BITS) << 32
}

/// Where `address` leads: the leaf (next hop or group) of its longest prefix in the table with this root word.
///
/// Safe on any contents of memory: what does not lead anywhere is "no route".
pub fn lookup<A: Address>(memory: &(impl Memory + ?Sized), root: u64, address: A) -> Slot {
    let (first, shift) = (root as u32, ((root >> 32) as u8).min(A::BITS));
    let mut block = first.wrapping_add(address.head(shift)) as usize;
    let mut offset = A::BITS - shift;
    while offset <= A::BITS - 8 {
        let at = block * words::FIB_BLOCK + usize::from(address.octet(offset));
        let Some(slot) = memory.fib().get(at).map(|word| Slot(word.load(Acquire))) else {
            return Slot::NO_ROUTE;
        };
        match slot.kind() {
            Kind::Nexthop | Kind::Group => return slot,
            Kind::Tail => return lookup_tail(memory, slot.index(), address),
            Kind::Child => (block, offset) = (slot.index() as usize, offset + 8),
        }
    }
    Slot::NO_ROUTE
}

fn lookup_tail<A: Address>(memory: &(impl Memory + ?Sized), tail: u32, address: A) -> Slot {
    let at = tail as usize * words::FIB_TAIL;
    let Some([hi, lo, leaves, length]) = memory.fib_tails().get(at..at + words::FIB_TAIL) else {
        return Slot::NO_ROUTE;
    };
    let prefix = u128::from(hi.load(Acquire)) << 64 | u128::from(lo.load(Acquire));
    let length = length.load(Acquire) as u32;
    let leaves = leaves.load(Acquire);
    let differ = prefix ^ address.left_aligned();
    Slot(if differ.leading_zeros() >= length { leaves as u32 } else { (leaves >> 32) as u32 })
}
