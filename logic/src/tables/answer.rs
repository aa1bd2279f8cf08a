//! Reads the tables back, in the same steps as the program.

use super::{
    Tables, groups,
    links::{IF_IPV4, IF_IPV6, SLOT_WORDS},
    nexthops::{
        FLAG_FRAGS, FLAG_LOCAL, FLAG_UNICAST, KIND_ONLINK, KIND_PASS, KIND_VIA, USED_WORD, address_bytes,
    },
    routes::{FILTER_WORD, FLAGS_WORD, Family, KEY_WORD, local_filter_bit},
    rules::ROUTER_RULES,
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

/// What happens to a packet for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Why the packet goes to the kernel. `None`: it is forwarded.
    pub reason: Option<Reason>,
    /// The egress interface, if there is one.
    pub interface: Option<InterfaceId>,
    /// The neighbour it would be sent to; for a connected route the destination itself.
    pub neighbour: Option<IpAddr>,
    /// The neighbour's MAC address.
    pub mac: Option<Mac>,
    /// The source MAC address, port and VLAN with which it leaves.
    pub source: Mac,
    pub port: PortId,
    pub vlan: Vlan,
    /// The longest IP packet in bytes; 0 without an interface.
    pub mtu: u32,
    /// A source behind this route counts as reachable.
    pub unicast: bool,
    /// The address belongs to the router itself.
    pub local: bool,
    /// Multi-buffer frames may leave here.
    pub frags: bool,
    /// The id of the next hop that was looked at last.
    pub nexthop: u32,
    /// The number of flow hashes out of 256 that get this answer, rounded.
    pub share: u16,
}

impl<M: Memory> Tables<M> {
    /// See [`lookup`].
    pub fn lookup(&self, router: RouterId, address: IpAddr) -> Vec<Answer> {
        lookup(&self.memory, router, address)
    }
}

/// Where a packet to `address` goes: one answer, or one for each member of a group. If the tables change during the
/// call, an answer is from before or after the change. It may be wrong while several words change.
pub fn lookup(memory: &(impl Memory + ?Sized), router: RouterId, address: IpAddr) -> Vec<Answer> {
    match address {
        IpAddr::V4(address) => lookup_in(memory, router, address.to_bits()),
        IpAddr::V6(address) => lookup_in(memory, router, address.to_bits()),
    }
}

fn leaf_of<A: Family>(memory: &(impl Memory + ?Sized), router: RouterId, address: A) -> Slot {
    fib::lookup(memory, RouterRow::of(memory, router).root::<A>(), address)
}

/// A router's row of `routers`. A router without room in the map has the row of a router without routes.
#[derive(Clone, Copy)]
pub(crate) struct RouterRow<'a>(&'a [AtomicU64; words::ROUTER]);

/// The row of no router. Its roots lead nowhere.
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

    /// How its packets are hashed.
    pub fn multipath(self) -> MultipathHash {
        let flags = self.0[FLAGS_WORD].load(Acquire);
        let key = [0, 1].map(|half| self.0[KEY_WORD + half].load(Acquire));
        MultipathHash { l4: [flags & 1 != 0, flags & 2 != 0], key }
    }

    /// The IP versions (`IF_IPV4`, `IF_IPV6`) for which rules of a firewall may affect some packets.
    #[inline]
    pub fn with_rules(self) -> u8 {
        let flags = self.0[FLAGS_WORD].load(Acquire);
        let of = |version: usize, flag| if flags & ROUTER_RULES[version] != 0 { flag } else { 0 };
        of(0, IF_IPV4) | of(1, IF_IPV6)
    }

    /// Whether this may be one of the router's own addresses. `false` is certain.
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

/// The next hop of packets to `address`. For a connected route also the longest IP packet in bytes, otherwise
/// `u32::MAX`. `None` if the kernel gets the packets, or if the next hop depends on more than the address.
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

/// One row of `nexthops`. The words that may change under a reader have been read once. The others are read on demand.
pub(crate) struct Nexthop<'a> {
    row: &'a [AtomicU64; words::NEXTHOP],
    state: u64,
    /// The neighbour's MAC address; 0 if it is unknown.
    pub link: u64,
}

pub(crate) fn nexthop(memory: &(impl Memory + ?Sized), id: u32) -> Option<Nexthop<'_>> {
    nexthop_of(nexthop_rows(memory), id)
}

/// All rows, for callers that look at many.
#[inline]
pub(crate) fn nexthop_rows(memory: &(impl Memory + ?Sized)) -> &[[AtomicU64; words::NEXTHOP]] {
    memory.nexthops().as_chunks().0
}

/// Like [`nexthop`].
#[inline]
pub(crate) fn nexthop_of(rows: &[[AtomicU64; words::NEXTHOP]], id: u32) -> Option<Nexthop<'_>> {
    let row = rows.get(id as usize)?;
    // Reads the state first, as the program does. If the link disappears in between, a packet may go up for the earlier
    // reason, but it goes to no wrong neighbour.
    let (state, link) = (row[3].load(Acquire), row[0].load(Acquire));
    Some(Nexthop { row, state, link })
}

impl Nexthop<'_> {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.row[at].load(Acquire)
    }
    /// The destination and source MAC addresses as they lie in memory: eight bytes, and four.
    #[inline]
    pub fn macs(&self) -> (u64, u32) {
        let source = self.word(1);
        (self.link & (u64::MAX >> 16) | source << 48, (source >> 16) as u32)
    }
    #[inline]
    pub fn port(&self) -> PortId {
        (self.word(1) >> 48) as PortId
    }
    /// The VLAN key, and the longest IP packet in bytes.
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
    /// Notes that a packet goes through it, so that its neighbour is kept alive.
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

/// The second word of the slot in the interface index with this first word and VLAN key. Looks in the home bucket, and
/// in the next one only if the first is full.
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

/// Finds a neighbour in the index. Looks in the home bucket, and in the next one only if the first is full.
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
