//! The forwarding table: a leaf-pushed multibit trie with 8-bit strides in `Memory::fib()`, for IPv4 and IPv6. All
//! routers share the memory. The layout is in `bpf/abi.h`. The program in `bpf/` and [`lookup`] walk it in the same
//! steps.
//!
//! There is one writer (a [`Table`] through its [`Space`]) and any number of readers. A published slot, a root word,
//! and the two slots of a tail are each one aligned word, stored with release order. What a slot leads to is complete
//! before the slot is stored. So a reader sees the answer from before or after a change, never a hole. Rows without
//! references are reused only after a grace period ([`Pool::seal`], [`Pool::reclaim`]).
//!
//! # Why this shape
//!
//! Measured with `cargo bench -p millrace-logic --bench fib -- table` on one core of an Intel Xeon (2 MiB L2), in CPU
//! time. The tables hold 901,899 IPv4 and 160,147 IPv6 real prefixes, and destinations are drawn from them. Updates are
//! removals and insertions of random routes.
//!
//! | IPv4 | load | blocks | tails | bytes/route | updates | ns per lookup: 1 | 4,096 | 100,000 | 1,000,000 destinations |
//! |---|---|---|---|---|---|---|---|---|---|
//! | 8-bit root | 0.12 s | 23,751 | 2,309 | 27 | 0.57 M/s | 5 | 8 | 14 | 23 |
//! | 16-bit root | 0.13 s | 23,794 | 2,308 | 27 | 0.56 M/s | 4 | 6 | 14 | 22 |
//! | **24-bit root** (DIR-24-8) | 0.15 s | 65,660 | 328 | 75 | 0.81 M/s | 2 | 4 | 10 | 15 |
//! | 24-bit root, no tails | 0.16 s | 65,988 | 0 | 75 | 0.74 M/s | 3 | 4 | 7 | 14 |
//!
//! | IPv6 | load | blocks | tails | bytes/route | updates | 1 | 4,096 | 100,000 | 1,000,000 destinations |
//! |---|---|---|---|---|---|---|---|---|---|
//! | 8-bit root | 0.09 s | 20,975 | 14,043 | 137 | 0.68 M/s | 10 | 22 | 44 | 57 |
//! | **16-bit root** | 0.08 s | 21,224 | 14,043 | 139 | 0.71 M/s | 8 | 17 | 34 | 46 |
//! | 24-bit root | 0.09 s | 86,448 | 14,043 | 556 | 0.71 M/s | 7 | 14 | 31 | 41 |
//! | 16-bit root, no tails | 0.07 s | 38,412 | 0 | 246 | 0.69 M/s | 8 | 22 | 34 | 49 |
//! | hash per length (Waldvogel 1997), static | 0.24 s | | | 74 | | 25 | 66 | 115 | 134 |
//! | 4,096 interfaces: a /64, `::`, `::1`, two hosts each | 0.03 s | 4,370 | 4,097 | 225 | 1.92 M/s | 15 | 17 | 26 | 28 |
//! | the same without tails | 0.03 s | 33,046 | 0 | 1,652 | 0.58 M/s | 30 | 150 | 177 | 177 |
//!
//! | few IPv4 routes | 8-bit root: KiB | ns (4,096 destinations) | 16-bit: KiB | ns | 24-bit: KiB | ns |
//! |---|---|---|---|---|---|---|
//! | 64 | 6 | 4 | 259 | 3 | 65,537 | 2 |
//! | 256 | 70 | 5 | 265 | 3 | 65,537 | 2 |
//! | 1,024 | 208 | 5 | 288 | 4 | 65,537 | 3 |
//! | 16,384 | 4,019 | 8 | 4,068 | 5 | 65,538 | 4 |
//! | 65,536 | 10,880 | 8 | 10,941 | 6 | 65,542 | 4 |
//!
//! The conclusions: the root has 8 bits up to 256 routes. From there on, a 16-bit root costs no more memory than the
//! blocks that it replaces. IPv4 gets 24 bits above 65,536 routes, where traffic to many destinations begins to gain
//! (7 ns instead of 10 ns at 100,000) and 64 MiB are in proportion. IPv6 stays at 16 bits. Tails reduce the memory of
//! IPv6 to little more than half, with many interfaces to a seventh, and cost IPv4 nothing. Blocks are also better than
//! hashing for updates, because a marker scheme must recompute markers below a changed route.

#[cfg(test)]
pub(crate) mod grace;
mod pool;
mod table;
#[cfg(test)]
mod tests;
mod writer;

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

/// A slot of a block, as in the ABI: the target of an address range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// The kind of target of a [`Slot`] (`enum fib_kind`).
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
    /// The kind of its target.
    pub fn kind(self) -> Kind {
        match self.0 >> KIND_SHIFT {
            0 => Kind::Nexthop,
            1 => Kind::Group,
            2 => Kind::Child,
            _ => Kind::Tail,
        }
    }
    /// Whether it is a next hop or a group.
    pub fn is_leaf(self) -> bool {
        self.0 >> (KIND_SHIFT + 1) == 0
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

/// The leaf (next hop or group) of the longest prefix that holds `address`, in the table with this root word.
///
/// Any contents of memory are safe: an invalid slot means "no route".
pub fn lookup<A: Address>(memory: &(impl Memory + ?Sized), root: u64, address: A) -> Slot {
    let mut walk = Walk::new(root, address);
    loop {
        match walk.leaf() {
            Some(leaf) => return leaf,
            None => walk = walk.step(memory, address),
        }
    }
}

/// An IPv4 root word in parts, for many lookups that take their first step together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root4 {
    /// The number of slots before it.
    base: usize,
    /// The number of address bits after that step.
    behind: u8,
}

impl Root4 {
    /// Takes a root word apart. An invalid word leads nowhere.
    #[inline]
    pub fn new(root: u64) -> Root4 {
        let (first, shift) = (root as u32 & MAX_INDEX, ((root >> 32) as u8).min(32));
        match shift.checked_sub(8) {
            Some(behind) => Root4 { base: first as usize * words::FIB_BLOCK, behind },
            None => Root4 { base: usize::MAX >> 1, behind: 0 },
        }
    }

    /// The index in `fib` of the first step. It may be outside of `fib`.
    #[inline]
    pub fn place(self, address: u32) -> usize {
        self.base + (address >> (self.behind % 32)) as usize
    }

    /// The number of address bits up to the end of that step.
    #[inline]
    pub fn bits(self) -> u8 {
        32 - self.behind
    }
}

/// The state of a lookup. Each step waits for memory once, so many lookups that take their steps in turn wait together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    slot: Slot,
    /// The number of address bits that have been used.
    bits: u8,
}

impl Walk {
    const NOWHERE: Walk = Walk { slot: Slot::NO_ROUTE, bits: 0 };

    /// A walk at the root's block for the address.
    #[inline]
    pub fn new<A: Address>(root: u64, address: A) -> Walk {
        let (first, shift) = (root as u32, ((root >> 32) as u8).min(A::BITS));
        Walk { slot: Slot::child(first.wrapping_add(address.head(shift))), bits: A::BITS - shift }
    }

    /// A walk after a first step that was taken elsewhere and found `slot` after `bits` bits of the address.
    #[inline]
    pub fn after(bits: u8, slot: Slot) -> Walk {
        Walk { slot, bits }
    }

    /// The answer, if it has been found.
    #[inline]
    pub fn leaf(self) -> Option<Slot> {
        self.slot.is_leaf().then_some(self.slot)
    }

    /// Takes one step. After the last bit of an address there is always a leaf, whatever the memory holds.
    #[inline]
    pub fn step<A: Address>(self, memory: &(impl Memory + ?Sized), address: A) -> Walk {
        match self.slot.kind() {
            Kind::Nexthop | Kind::Group => self,
            Kind::Child if self.bits <= A::BITS - 8 => {
                let at =
                    self.slot.index() as usize * words::FIB_BLOCK + usize::from(address.octet(self.bits));
                let Some(word) = memory.fib().get(at) else { return Walk::NOWHERE };
                Walk { slot: Slot(word.load(Acquire)), bits: self.bits + 8 }
            }
            Kind::Child => Walk::NOWHERE,
            Kind::Tail => {
                let (slot, bits) = lookup_tail(memory, self.slot.index(), address);
                match slot.kind() {
                    Kind::Nexthop | Kind::Group => Walk { slot, bits },
                    Kind::Child if bits >= self.bits => Walk { slot, bits },
                    Kind::Child | Kind::Tail => Walk::NOWHERE,
                }
            }
        }
    }
}

/// The slot to which the tail leads, and the length of its prefix.
fn lookup_tail<A: Address>(memory: &(impl Memory + ?Sized), tail: u32, address: A) -> (Slot, u8) {
    let at = tail as usize * words::FIB_TAIL;
    let Some([hi, lo, slots, length]) = memory.fib_tails().get(at..at + words::FIB_TAIL) else {
        return (Slot::NO_ROUTE, 0);
    };
    let prefix = u128::from(hi.load(Acquire)) << 64 | u128::from(lo.load(Acquire));
    let length = length.load(Acquire) as u32;
    let slots = slots.load(Acquire);
    let differ = prefix ^ address.left_aligned();
    let matches = differ.leading_zeros() >= length;
    (Slot(if matches { slots as u32 } else { (slots >> 32) as u32 }), length as u8)
}
