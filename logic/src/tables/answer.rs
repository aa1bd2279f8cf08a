//! Reading the tables back, step by step as the program does.

use super::{
    Tables, groups,
    links::SLOT_WORDS,
    nexthops::{
        FLAG_FRAGS, FLAG_LOCAL, FLAG_UNICAST, KIND_ONLINK, KIND_PASS, KIND_VIA, USED_WORD, address_bytes,
    },
    routes::{FILTER_WORD, FLAGS_WORD, Family, KEY_WORD, local_filter_bit},
};
use crate::{
    fib::{self, Kind, Slot},
    hash,
    memory::{Memory, words},
    multipath::MultipathHash,
    net::{Mac, Vlan},
    plan::{InterfaceId, PortId, RouterId},
    reason::Reason,
};
use std::{
    net::IpAddr,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed},
    },
};

/// What becomes of a packet to some address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// `None`: it is forwarded. Else it goes to the kernel.
    pub reason: Option<Reason>,
    /// Egress interface, where there is one.
    pub interface: Option<InterfaceId>,
    /// The neighbour it would be sent to; for a connected route the destination itself.
    pub neighbour: Option<IpAddr>,
    /// The neighbour's MAC address.
    pub mac: Option<Mac>,
    /// Source MAC, port and VLAN it leaves with.
    pub source: Mac,
    pub port: PortId,
    pub vlan: Vlan,
    /// Longest IP packet in bytes; 0 without an interface.
    pub mtu: u32,
    /// A source behind this route counts as reachable.
    pub unicast: bool,
    /// An address of the router itself.
    pub local: bool,
    /// Multi-buffer frames may leave here.
    pub frags: bool,
    /// Id of the next hop, the last one looked at.
    pub nexthop: u32,
    /// How many of 256 flow hashes take this answer, rounded.
    pub share: u16,
}

impl<M: Memory> Tables<M> {
    /// See [`lookup`].
    pub fn lookup(&self, router: RouterId, address: IpAddr) -> Vec<Answer> {
        lookup(&self.memory, router, address)
    }
}

/// Where a packet to `address` goes: one answer, or one for each member of a group. The tables may be changed meanwhile;
/// then an answer is that of before, of after, or, while several words change, wrong.
pub fn lookup(memory: &(impl Memory + ?Sized), router: RouterId, address: IpAddr) -> Vec<Answer> {
    match address {
        IpAddr::V4(address) => lookup_in(memory, router, address.to_bits()),
        IpAddr::V6(address) => lookup_in(memory, router, address.to_bits()),
    }
}

fn leaf_of<A: Family>(memory: &(impl Memory + ?Sized), router: RouterId, address: A) -> Slot {
    fib::lookup(memory, RouterRow::of(memory, router).root::<A>(), address)
}

/// A router's row of `routers`; that of one there is no room for is that of one without routes.
#[derive(Clone, Copy)]
pub(crate) struct RouterRow<'a>(&'a [AtomicU64; words::ROUTER]);

/// Its roots lead nowhere.
static NO_ROUTER: [AtomicU64; words::ROUTER] = [const { AtomicU64::new(0) }; words::ROUTER];

impl<'a> RouterRow<'a> {
    #[inline]
    pub fn of(memory: &'a (impl Memory + ?Sized), router: RouterId) -> Self {
        let (rows, _) = memory.routers().as_chunks();
        RouterRow(rows.get(usize::from(router)).unwrap_or(&NO_ROUTER))
    }

    #[inline]
    fn root<A: Family>(self) -> u64 {
        self.0.get(A::ROOT_WORD).map_or(0, |word| word.load(Acquire))
    }

    /// Root word of its IPv4 table.
    #[inline]
    pub fn root4(self) -> u64 {
        self.root::<u32>()
    }

    /// Root word of its IPv6 table.
    #[inline]
    pub fn root6(self) -> u64 {
        self.root::<u128>()
    }

    /// By what its packets are hashed.
    pub fn multipath(self) -> MultipathHash {
        let flags = self.0[FLAGS_WORD].load(Acquire);
        let key = [0, 1].map(|half| self.0[KEY_WORD + half].load(Acquire));
        MultipathHash { l4: [flags & 1 != 0, flags & 2 != 0], key }
    }

    /// This may be one of its own addresses; false: it is not.
    #[inline]
    pub fn maybe_local(self, address: u32) -> bool {
        let bit = local_filter_bit(address);
        self.0.get(FILTER_WORD + bit / 64).is_some_and(|word| word.load(Acquire) >> (bit % 64) & 1 != 0)
    }
}

fn lookup_in<A: Family>(memory: &(impl Memory + ?Sized), router: RouterId, address: A) -> Vec<Answer> {
    let leaf = leaf_of(memory, router, address);
    if leaf.kind() != Kind::Group {
        return vec![answer(memory, leaf, address.ip())];
    }
    let base = leaf.index() as usize * words::FIB_BLOCK;
    let mut answers: Vec<(Answer, f64)> = Vec::new();
    for (slot, share) in groups::members(memory.fib().get(base..).unwrap_or_default()) {
        let member = answer(memory, slot, address.ip());
        match answers.iter_mut().find(|(a, _)| *a == member) {
            Some((_, sum)) => *sum += share,
            None => answers.push((member, share)),
        }
    }
    answers.into_iter().map(|(a, share)| Answer { share: share.round() as u16, ..a }).collect()
}

/// The next hop that packets to `address` leave by and, of a connected route, the longest IP packet in bytes, else `u32::MAX`.
/// `None`: the kernel has them, or which next hop it is depends on more than the address.
pub(super) fn only_next_hop(
    memory: &(impl Memory + ?Sized),
    router: RouterId,
    address: IpAddr,
) -> Option<(u32, u32)> {
    let leaf = match address {
        IpAddr::V4(address) => leaf_of(memory, router, address.to_bits()),
        IpAddr::V6(address) => leaf_of(memory, router, address.to_bits()),
    };
    let found = nexthop(memory, leaf.index()).filter(|_| leaf.kind() == Kind::Nexthop)?;
    match found.kind() {
        KIND_VIA => Some((leaf.index(), u32::MAX)),
        KIND_ONLINK => Some((find_neighbour(memory, found.interface(), address)?.0, found.mtu())),
        _ => None,
    }
}

/// One row of `nexthops`. What may change under a reader has been read, once; the rest is read when asked for.
pub(crate) struct Nexthop<'a> {
    row: &'a [AtomicU64; words::NEXTHOP],
    state: u64,
    /// The neighbour's MAC address; 0: not known.
    pub link: u64,
}

pub(crate) fn nexthop(memory: &(impl Memory + ?Sized), id: u32) -> Option<Nexthop<'_>> {
    nexthop_of(nexthop_rows(memory), id)
}

/// All rows, for those who look at many.
#[inline]
pub(crate) fn nexthop_rows(memory: &(impl Memory + ?Sized)) -> &[[AtomicU64; words::NEXTHOP]] {
    memory.nexthops().as_chunks().0
}

/// As [`nexthop`].
#[inline]
pub(crate) fn nexthop_of(rows: &[[AtomicU64; words::NEXTHOP]], id: u32) -> Option<Nexthop<'_>> {
    let row = rows.get(id as usize)?;
    // State first, as the program does: with a link that goes meanwhile a packet may go up for the reason from before, but to no
    // wrong neighbour.
    let (state, link) = (row[3].load(Acquire), row[0].load(Acquire));
    Some(Nexthop { row, state, link })
}

impl Nexthop<'_> {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.row[at].load(Acquire)
    }
    /// Destination and source MAC address, one behind the other as in memory: eight bytes, and four.
    #[inline]
    pub fn macs(&self) -> (u64, u32) {
        let source = self.word(1);
        (self.link & (u64::MAX >> 16) | source << 48, (source >> 16) as u32)
    }
    #[inline]
    pub fn port(&self) -> PortId {
        (self.word(1) >> 48) as PortId
    }
    /// VLAN key, and the longest IP packet.
    #[inline]
    pub fn vlan_and_mtu(&self) -> (u32, u32) {
        let word = self.word(2);
        (word as u32, (word >> 32) as u32)
    }
    #[inline]
    pub fn mtu(&self) -> u32 {
        self.vlan_and_mtu().1
    }
    #[inline]
    pub fn interface(&self) -> u16 {
        self.state as u16
    }
    #[inline]
    pub fn kind(&self) -> u8 {
        (self.state >> 16) as u8
    }
    pub fn reason(&self) -> Reason {
        Reason::from_abi((self.state >> 24) as u32 & 0xff).unwrap_or(Reason::NoRoute)
    }
    #[inline]
    pub fn has(&self, flag: u8) -> bool {
        (self.state >> 32) as u8 & flag != 0
    }
    fn address(&self) -> [u8; 16] {
        (u128::from(self.word(4)) | u128::from(self.word(5)) << 64).to_le_bytes()
    }
    fn neighbour(&self) -> IpAddr {
        let [a, b, c, d, ..] = self.address();
        match (self.state >> 40) as u8 {
            4 => IpAddr::from([a, b, c, d]),
            _ => IpAddr::from(self.address()),
        }
    }
    /// A packet goes through it: its neighbour is to be kept alive.
    #[inline]
    pub fn mark_used(&self) {
        if self.row[USED_WORD].load(Relaxed) == 0 {
            self.row[USED_WORD].store(1, Relaxed);
        }
    }
}

fn mac(word: u64) -> Mac {
    let [a, b, c, d, e, f, ..] = word.to_le_bytes();
    Mac([a, b, c, d, e, f])
}

/// The answer of a next hop leaf for a packet to `destination`.
pub(super) fn answer(memory: &(impl Memory + ?Sized), leaf: Slot, destination: IpAddr) -> Answer {
    let mut answer = Answer {
        reason: Some(Reason::NoRoute),
        interface: None,
        neighbour: None,
        mac: None,
        source: Mac::default(),
        port: 0,
        vlan: Vlan::NONE,
        mtu: 0,
        unicast: false,
        local: false,
        frags: false,
        nexthop: leaf.index(),
        share: 256,
    };
    let Some(mut hop) = nexthop(memory, leaf.index()) else { return answer };
    (answer.unicast, answer.local) = (hop.has(FLAG_UNICAST), hop.has(FLAG_LOCAL));
    if hop.kind() == KIND_PASS {
        answer.reason = Some(hop.reason());
        return answer;
    }
    answer.mtu = hop.mtu();
    if hop.kind() == KIND_ONLINK {
        match find_neighbour(memory, hop.interface(), destination) {
            Some((id, neighbour)) => (answer.nexthop, hop) = (id, neighbour),
            None => answer.reason = Some(Reason::Unresolved),
        }
    }
    answer.interface = Some(hop.interface());
    answer.source = mac(hop.word(1));
    answer.port = hop.port();
    let (vlan, mtu) = hop.vlan_and_mtu();
    answer.vlan = Vlan::from_key(vlan);
    answer.mtu = answer.mtu.min(mtu);
    answer.frags = hop.has(FLAG_FRAGS);
    answer.neighbour = Some(destination);
    if hop.kind() == KIND_VIA {
        answer.neighbour = Some(hop.neighbour());
        answer.mac = (hop.link != 0).then(|| mac(hop.link));
        answer.reason = (hop.link == 0).then(|| hop.reason());
    }
    answer
}

/// The second word of the interface index's slot with this first word and VLAN key: the home bucket, and the next one only if
/// that is full.
pub(super) fn find_interface(memory: &(impl Memory + ?Sized), first: u64, vlan: u32) -> Option<u64> {
    let index = memory.interface_index();
    let mask = (index.len() / words::INTERFACE_BUCKET).checked_sub(1)?;
    let [a, b, c, d, e, f, low, high] = first.to_le_bytes();
    let port = u16::from_le_bytes([low, high]);
    let home = hash::interface_bucket([a, b, c, d, e, f], port, vlan, mask as u32) as usize;
    for bucket in [home, (home ^ 1) & mask] {
        let at = bucket * words::INTERFACE_BUCKET;
        let slots = index.get(at..at + words::INTERFACE_BUCKET)?.chunks_exact(SLOT_WORDS);
        let mut full = true;
        for slot in slots {
            let second = slot[1].load(Acquire);
            full &= second != 0;
            if second as u32 == vlan && second != 0 && slot[0].load(Acquire) == first {
                return Some(second);
            }
        }
        if !full {
            return None;
        }
    }
    None
}

/// The neighbour index: the home bucket, and the next one only if that is full.
pub(crate) fn find_neighbour(
    memory: &(impl Memory + ?Sized),
    interface: InterfaceId,
    address: IpAddr,
) -> Option<(u32, Nexthop<'_>)> {
    let index = memory.neighbour_index();
    let bytes = address_bytes(address);
    let mask = (index.len() / words::NEIGHBOUR_BUCKET).checked_sub(1)?;
    let (home, tag) = hash::neighbour_bucket(interface, bytes, mask as u32);
    for bucket in [home as usize, (home as usize ^ 1) & mask] {
        let at = bucket * words::NEIGHBOUR_BUCKET;
        let slots = index.get(at..at + words::NEIGHBOUR_BUCKET)?;
        let mut full = true;
        for slot in slots {
            let word = slot.load(Acquire);
            full &= word != 0;
            if word == 0 || (word >> 32) as u32 != tag {
                continue;
            }
            let found = nexthop(memory, word as u32)?;
            if found.interface() == interface && found.address() == bytes {
                return Some((word as u32, found));
            }
        }
        if !full {
            return None;
        }
    }
    None
}
