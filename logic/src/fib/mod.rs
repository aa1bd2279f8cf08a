//! The forwarding table: a leaf-pushed multibit trie of 8-bit strides over `Memory::fib()`, for IPv4 and IPv6, shared
//! by all routers. `bpf/abi.h` has the layout, the program in `bpf/` and [`lookup`] walk it in the same steps.
//!
//! Who writes what: one writer (a [`Table`] through its [`Space`]) and any number of readers. A published slot, root
//! word and the two slots of a tail are each one aligned word, stored with release order, and what a slot leads to is
//! complete before the slot is stored. So a reader sees the answer from before or after a change, never a hole. Rows
//! that are no longer led to are reused only after a grace period ([`Pool::seal`], [`Pool::reclaim`]).
//!
//! # Why this shape
//!
//! `cargo bench -p millrace-logic --bench fib -- table`, one core of an Intel Xeon (2 MiB L2), 901,899 IPv4 and 160,147
//! IPv6 real prefixes, destinations drawn from them, CPU time. Updates are removals and insertions of random routes.
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
//! So: 8 bits up to 256 routes, where the 16-bit root begins to cost no more memory than the blocks it replaces; for
//! IPv4 24 bits above 65,536, where many destinations begin to gain (10 against 7 ns at 100,000) and 64 MiB are in
//! proportion; IPv6 stays at 16. Tails make the memory of IPv6 little more than half, with many interfaces a seventh, and
//! cost IPv4 nothing. Blocks are also chosen over hashing for their updates: a marker scheme must recompute markers below
//! a changed route.

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
    /// A next hop or a group.
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

/// Where `address` leads: the leaf (next hop or group) of its longest prefix in the table with this root word.
///
/// Safe on any contents of memory: what does not lead anywhere is "no route".
pub fn lookup<A: Address>(memory: &(impl Memory + ?Sized), root: u64, address: A) -> Slot {
    let mut walk = Walk::new(root, address);
    loop {
        match walk.leaf() {
            Some(leaf) => return leaf,
            None => walk = walk.step(memory, address),
        }
    }
}

/// A root word of IPv4, taken apart for many lookups that take their first step together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root4 {
    /// Slots before it.
    base: usize,
    /// Bits of an address behind that step.
    behind: u8,
}

impl Root4 {
    /// Of this word. One that is none leads nowhere.
    #[inline]
    pub fn new(root: u64) -> Root4 {
        let (first, shift) = (root as u32 & MAX_INDEX, ((root >> 32) as u8).min(32));
        match shift.checked_sub(8) {
            Some(behind) => Root4 { base: first as usize * words::FIB_BLOCK, behind },
            None => Root4 { base: usize::MAX >> 1, behind: 0 },
        }
    }

    /// Where the first step looks in `fib`, or nowhere.
    #[inline]
    pub fn place(self, address: u32) -> usize {
        self.base + (address >> (self.behind % 32)) as usize
    }

    /// Bits of an address up to the end of that step.
    #[inline]
    pub fn bits(self) -> u8 {
        32 - self.behind
    }
}

/// How far a lookup has come. Each step waits for memory once, so many lookups that take their steps in turn wait together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    slot: Slot,
    /// Of the address, so many bits are behind it.
    bits: u8,
}

impl Walk {
    const NOWHERE: Walk = Walk { slot: Slot::NO_ROUTE, bits: 0 };

    /// At the block of the root that the address is in.
    #[inline]
    pub fn new<A: Address>(root: u64, address: A) -> Walk {
        let (first, shift) = (root as u32, ((root >> 32) as u8).min(A::BITS));
        Walk { slot: Slot::child(first.wrapping_add(address.head(shift))), bits: A::BITS - shift }
    }

    /// After a first step taken elsewhere, which found this behind so many bits of the address.
    #[inline]
    pub fn after(bits: u8, slot: Slot) -> Walk {
        Walk { slot, bits }
    }

    /// The answer, once it is found.
    #[inline]
    pub fn leaf(self) -> Option<Slot> {
        self.slot.is_leaf().then_some(self.slot)
    }

    /// One step further; after the last of an address, which no memory can put off, there is a leaf.
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

/// The slot the tail leads to, and the bit after its prefix.
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
