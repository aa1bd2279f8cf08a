//! Next hops: their words, their ids, and the number of references to them.

use crate::{
    fib::{Epoch, Extents, Full, Limbo, Occupancy, Region},
    memory::{Memory, words},
    net::{Mac, Vlan},
    plan::{InterfaceId, PortId},
    reason::Reason,
};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::atomic::Ordering::{Relaxed, Release},
};

/// `enum nexthop_kind`.
pub const KIND_PASS: u8 = 0;
pub const KIND_ONLINK: u8 = 1;
pub const KIND_VIA: u8 = 2;

/// `enum nexthop_flags`.
pub const FLAG_UNICAST: u8 = 1;
pub const FLAG_FRAGS: u8 = 2;
pub const FLAG_LOCAL: u8 = 4;

/// The word of `struct nexthop` that holds `used`.
pub(super) const USED_WORD: usize = 6;

/// Next hop 0: no route.
pub(super) const NO_ROUTE: u32 = 0;
/// Next hop 1: the target of entries that found no room. Sources behind them are not known to be reachable, so it has
/// no flags.
pub(super) const MAP_FULL: u32 = 1;

/// The MTU of next hops to which the neighbour index leads. It limits nothing. Connected routes of one interface may
/// have different MTUs, and the program checks that of the on-link next hop before it looks for the neighbour.
pub(super) const MTU_OF_ON_LINK: u32 = u32::MAX;

/// The key of a next hop. Equal keys mean the same next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Key {
    Pass { reason: Reason, unicast: bool },
    OnLink { interface: InterfaceId, mtu: u32 },
    Via { interface: InterfaceId, address: IpAddr, mtu: u32 },
}

/// How a packet leaves through an interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Egress {
    pub source: Mac,
    pub port: PortId,
    pub vlan: Vlan,
    pub frags: bool,
}

/// A neighbour as the program needs it: the word of its MAC address, or 0 and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub word: u64,
    pub reason: Reason,
}

impl Link {
    pub(super) fn to(mac: Mac) -> Link {
        Link { word: mac_word(mac), reason: Reason::Unresolved }
    }
    pub(super) fn none(reason: Reason) -> Link {
        Link { word: 0, reason }
    }
}

/// A MAC address in the low six bytes, in memory order.
pub(super) fn mac_word(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// An address as in the ABI: network byte order, IPv4 in the first four bytes.
pub(super) fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(a) => {
            let [a, b, c, d] = a.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(a) => a.octets(),
    }
}

/// Word 3 of `struct nexthop`: interface, kind, reason, flags, family.
///
/// This is the only word, besides `link` and `used`, that changes while readers may see it. It changes in one store,
/// and only in `reason` (of a next hop without link) or in the flag FRAGS.
fn state_word(key: Key, reason: Reason, frags: bool) -> u64 {
    let (interface, kind, mut flags, family) = match key {
        Key::Pass { reason, unicast } => {
            let own = matches!(reason, Reason::Local | Reason::LocalPrefix | Reason::Broadcast);
            let local = if own { FLAG_LOCAL } else { 0 };
            (0, KIND_PASS, local | if unicast { FLAG_UNICAST } else { 0 }, 0)
        }
        Key::OnLink { interface, .. } => (interface, KIND_ONLINK, FLAG_UNICAST, 0),
        Key::Via { interface, address, .. } => {
            (interface, KIND_VIA, FLAG_UNICAST, if address.is_ipv4() { 4 } else { 6 })
        }
    };
    if frags {
        flags |= FLAG_FRAGS;
    }
    u64::from(interface)
        | u64::from(kind) << 16
        | u64::from(reason as u8) << 24
        | u64::from(flags) << 32
        | u64::from(family as u8) << 40
}

/// `struct nexthop`.
pub(super) fn encode(key: Key, egress: Option<Egress>, link: Link) -> [u64; words::NEXTHOP] {
    let (mtu, address, reason) = match key {
        Key::Pass { reason, .. } => (0, [0; 16], reason),
        Key::OnLink { mtu, .. } => (mtu, [0; 16], Reason::Unresolved),
        Key::Via { mtu, address, .. } => (mtu, address_bytes(address), link.reason),
    };
    let (source, port, vlan) =
        egress.map_or((0, 0, 0), |e| (mac_word(e.source), u64::from(e.port), e.vlan.key()));
    let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| address[at + i]));
    [
        link.word,
        source | port << 48,
        u64::from(vlan) | u64::from(mtu) << 32,
        state_word(key, reason, egress.is_some_and(|e| e.frags)),
        half(0),
        half(8),
        0,
        0,
    ]
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    /// The number of routes, group members and index entries that lead here. Next hops 0 and 1 always exist and are not
    /// counted.
    refs: u32,
}

/// All next hops.
pub(super) struct Nexthops {
    entries: Vec<Option<Entry>>,
    by_key: BTreeMap<Key, u32>,
    ids: Extents,
    limbo: Limbo<u32>,
}

impl Nexthops {
    pub(super) fn new(memory: &impl Memory) -> Self {
        let ids = Extents::new(memory.nexthops().len() / words::NEXTHOP, 2);
        let mut this = Self { entries: vec![None; 2], by_key: BTreeMap::new(), ids, limbo: Limbo::default() };
        for (id, reason) in [(NO_ROUTE, Reason::NoRoute), (MAP_FULL, Reason::MapFull)] {
            let key = Key::Pass { reason, unicast: false };
            write(memory, id, encode(key, None, Link::none(reason)));
            this.entries[id as usize] = Some(Entry { key, refs: 0 });
            this.by_key.insert(key, id);
        }
        this
    }

    pub(super) fn find(&self, key: Key) -> Option<u32> {
        self.by_key.get(&key).copied()
    }

    pub(super) fn key(&self, id: u32) -> Option<Key> {
        self.entries.get(id as usize)?.map(|e| e.key)
    }

    /// The number of references to it.
    pub(super) fn refs(&self, id: u32) -> u32 {
        self.entries.get(id as usize).copied().flatten().map_or(0, |e| e.refs)
    }

    /// Adds a reference to the next hop of `key`. A new one is made with `content`.
    pub(super) fn acquire(
        &mut self,
        memory: &impl Memory,
        key: Key,
        content: [u64; words::NEXTHOP],
    ) -> Result<u32, Full> {
        let id = match self.find(key) {
            Some(id) => id,
            None => self.create(memory, key, content)?,
        };
        self.add_refs(id, 1);
        Ok(id)
    }

    /// Makes a new id for `key`, which replaces any that it has. Nothing leads to it yet.
    pub(super) fn create(
        &mut self,
        memory: &impl Memory,
        key: Key,
        content: [u64; words::NEXTHOP],
    ) -> Result<u32, Full> {
        let id = self.ids.take(1).ok_or(Full { region: Region::Nexthops, rows: 1 })?;
        write(memory, id, content);
        if self.entries.len() <= id as usize {
            self.entries.resize(id as usize + 1, None);
        }
        self.entries[id as usize] = Some(Entry { key, refs: 0 });
        self.by_key.insert(key, id);
        Ok(id)
    }

    pub(super) fn add_refs(&mut self, id: u32, refs: u32) {
        if let Some(Some(entry)) = self.entries.get_mut(id as usize) {
            entry.refs += refs;
        }
    }

    /// Removes this many references. Returns the key if none is left.
    pub(super) fn release(&mut self, id: u32, refs: u32) -> Option<Key> {
        let slot = self.entries.get_mut(id as usize)?;
        let entry = slot.as_mut()?;
        entry.refs = entry.refs.saturating_sub(refs);
        if id <= MAP_FULL || entry.refs > 0 {
            return None;
        }
        let key = entry.key;
        *slot = None;
        if self.by_key.get(&key) == Some(&id) {
            self.by_key.remove(&key);
        }
        self.limbo.retire(id);
        Some(key)
    }

    /// The ids of the next hops to the neighbour, one for each MTU.
    pub(super) fn to(&self, interface: InterfaceId, address: IpAddr) -> impl Iterator<Item = u32> + '_ {
        let key = |mtu| Key::Via { interface, address, mtu };
        self.by_key.range(key(0)..=key(u32::MAX)).map(|(_, id)| *id)
    }

    /// The keys and ids of all next hops through the interface.
    pub(super) fn through(&self, interface: InterfaceId) -> Vec<(Key, u32)> {
        let on_link = |mtu| Key::OnLink { interface, mtu };
        let first = IpAddr::V4(0.into());
        let via = Key::Via { interface, address: first, mtu: 0 };
        let vias = self
            .by_key
            .range(via..)
            .take_while(|(key, _)| matches!(key, Key::Via { interface: i, .. } if *i == interface));
        let all = self.by_key.range(on_link(0)..=on_link(u32::MAX)).chain(vias);
        all.map(|(key, id)| (*key, *id)).collect()
    }

    /// Whether there are connected routes through the interface.
    pub(super) fn has_on_link(&self, interface: InterfaceId) -> bool {
        let key = |mtu| Key::OnLink { interface, mtu };
        self.by_key.range(key(0)..=key(u32::MAX)).next().is_some()
    }

    /// Stores a changed link or reason. Between the two stores a packet that goes to the kernel may be counted under
    /// the earlier reason. Packets go nowhere else.
    pub(super) fn set_link(&self, memory: &impl Memory, id: u32, link: Link, frags: bool) {
        let Some(key) = self.key(id) else { return };
        let at = id as usize * words::NEXTHOP;
        let Some(row) = memory.nexthops().get(at..at + words::NEXTHOP) else { return };
        let reason = match key {
            Key::Pass { reason, .. } => reason,
            Key::OnLink { .. } => Reason::Unresolved,
            Key::Via { .. } => link.reason,
        };
        if link.word == 0 {
            row[0].store(0, Release);
        }
        row[3].store(state_word(key, reason, frags), Release);
        row[0].store(link.word, Release);
    }

    /// The neighbours to which the program has sent packets since the last call.
    pub(super) fn take_used(&self, memory: &impl Memory) -> Vec<(InterfaceId, IpAddr)> {
        let mut used = Vec::new();
        for (id, entry) in self.entries.iter().enumerate() {
            let Some(Entry { key: Key::Via { interface, address, .. }, .. }) = entry else { continue };
            let Some(word) = memory.nexthops().get(id * words::NEXTHOP + USED_WORD) else { continue };
            if word.load(Relaxed) != 0 {
                word.store(0, Relaxed);
                used.push((*interface, *address));
            }
        }
        used.sort_unstable();
        used.dedup();
        used
    }

    /// Whether the program has sent packets to this neighbour since the last call for it or for all.
    pub(super) fn take_use_of(&self, memory: &impl Memory, interface: InterfaceId, address: IpAddr) -> bool {
        self.to(interface, address).fold(false, |used, id| {
            let word = memory.nexthops().get(id as usize * words::NEXTHOP + USED_WORD);
            let this = word.is_some_and(|word| word.load(Relaxed) != 0);
            if let Some(word) = word.filter(|_| this) {
                word.store(0, Relaxed);
            }
            used | this
        })
    }

    pub(super) fn seal(&mut self) -> Epoch {
        self.limbo.seal()
    }

    pub(super) fn reclaim(&mut self, epoch: Epoch) {
        while let Some(id) = self.limbo.next(epoch) {
            self.ids.give(id, 1);
        }
    }

    pub(super) fn occupancy(&self) -> Occupancy {
        self.ids.occupancy()
    }
}

fn write(memory: &impl Memory, id: u32, content: [u64; words::NEXTHOP]) {
    let at = id as usize * words::NEXTHOP;
    if let Some(row) = memory.nexthops().get(at..at + words::NEXTHOP) {
        for (word, value) in row.iter().zip(content) {
            word.store(value, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: [u64; 8]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    /// The bytes are those of `struct nexthop` in bpf/abi.h.
    #[test]
    fn bytes_are_those_of_the_abi() {
        let vlan = Vlan::NONE.push(crate::net::Tag { vid: 100, service: false }).unwrap();
        let egress = Egress { source: Mac([2, 0, 0, 0, 0, 9]), port: 3, vlan, frags: true };
        let address = "192.0.2.1".parse().unwrap();
        let key = Key::Via { interface: 0x0102, address, mtu: 1500 };
        let link = Link::to(Mac([0xa, 0xb, 0xc, 0xd, 0xe, 0xf]));
        let mut expected = vec![0xa, 0xb, 0xc, 0xd, 0xe, 0xf, 0, 0];
        expected.extend([2, 0, 0, 0, 0, 9, 3, 0]);
        expected.extend([100, 0x20, 0, 0, 0xdc, 5, 0, 0]);
        expected.extend([2, 1, KIND_VIA, Reason::Unresolved as u8, FLAG_UNICAST | FLAG_FRAGS, 4, 0, 0]);
        expected.extend([192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([0; 16]);
        assert_eq!(bytes(encode(key, Some(egress), link)), expected);

        let key = Key::Via { interface: 0x0102, address: [9; 16].into(), mtu: 1500 };
        assert_eq!(
            bytes(encode(key, Some(egress), link))[28..48],
            [&[1 | 2, 6, 0, 0][..], &[9; 16]].concat()
        );

        for reason in [Reason::Local, Reason::LocalPrefix, Reason::Broadcast] {
            let local = Key::Pass { reason, unicast: false };
            let mut expected = vec![0; 64];
            (expected[27], expected[28]) = (reason as u8, FLAG_LOCAL);
            assert_eq!(bytes(encode(local, None, Link::none(reason))), expected);
        }
    }
}
