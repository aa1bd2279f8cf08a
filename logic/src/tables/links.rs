//! Ports, interfaces and neighbours.

use super::{
    Tables,
    buckets::Write,
    nexthops::{Egress, Key, Link, MAP_FULL, MTU_OF_ON_LINK, address_bytes, encode, mac_word},
};
use crate::{
    fib::{Full, Region},
    firewall::pairs::UNPROVEN,
    hash,
    memory::{Memory, words},
    net::{Mac, Vlan},
    plan::{Interface, InterfaceId, PortId, ReversePath},
    reason::Reason,
};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Release},
};

/// `INTERFACE_WAYS`, and u64 words of `struct interface_slot`.
pub const INTERFACE_WAYS: usize = 4;
pub(super) const SLOT_WORDS: usize = words::INTERFACE_BUCKET / INTERFACE_WAYS;

/// `enum interface_flags`.
pub const IF_IPV4: u8 = 1;
pub const IF_IPV6: u8 = 2;
pub const IF_RPF_LOOSE: u8 = 4;
pub const IF_RPF_STRICT: u8 = 8;
pub const IF_REDIRECTS: u8 = 16;
pub const IF_ACCEPT_LOCAL: u8 = 32;
pub const IF_PRIORITY_TAGS: u8 = 64;
pub const IF_LOOK_AT_SOURCES: u8 = 128;

/// A neighbour whose MAC address is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbour {
    mac: Mac,
    /// The next hop id that its slot of the index holds, or will hold after it gets a slot.
    indexed: Option<u32>,
}

type NeighbourKey = (InterfaceId, IpAddr);

/// `struct interface_slot` as two words.
pub(super) fn interface_words(id: InterfaceId, interface: &Interface) -> [u64; SLOT_WORDS] {
    let mut flags = match interface.reverse_path {
        ReversePath::Off => 0,
        ReversePath::Loose => IF_RPF_LOOSE,
        ReversePath::Strict => IF_RPF_STRICT,
    };
    let mut set = |on: bool, flag: u8| flags |= if on { flag } else { 0 };
    set(interface.ipv4, IF_IPV4);
    set(interface.ipv6, IF_IPV6);
    set(interface.redirects, IF_REDIRECTS);
    set(interface.accept_local, IF_ACCEPT_LOCAL);
    set(interface.priority_tags, IF_PRIORITY_TAGS);
    set(interface.look_at_sources, IF_LOOK_AT_SOURCES);
    [
        mac_word(interface.mac) | u64::from(interface.port) << 48,
        u64::from(interface.vlan.key())
            | u64::from(id) << 32
            | u64::from(interface.router) << 48
            | u64::from(flags) << 56,
    ]
}

fn address(interface: &Interface) -> (PortId, Vlan, Mac) {
    (interface.port, interface.vlan, interface.mac)
}

impl<M: Memory> Tables<M> {
    pub(super) fn set_port(&mut self, port: PortId, frags: bool) -> Result<(), Full> {
        if self.ports.insert(port, frags) != Some(frags) {
            let on_port = self.interfaces.iter().filter(|(_, i)| i.port == port);
            for id in on_port.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.update_links(id);
            }
        }
        Ok(())
    }

    pub(super) fn set_interface(&mut self, id: InterfaceId, new: &Interface) -> Result<(), Full> {
        if id == 0 {
            return Ok(());
        }
        let mut result = Ok(());
        if self.interfaces.get(&id).is_some_and(|old| old.router != new.router) {
            result = self.interface_gone(id);
        }
        self.set_group(id, new.group);
        let Some(old) = self.interfaces.insert(id, new.clone()) else {
            self.count_box(address(new), true);
            return result.and(self.index_interface(id, new));
        };
        if (old.port, old.vlan, old.mac) == (new.port, new.vlan, new.mac) {
            result = result.and(self.index_interface(id, new));
            if old.transmit != new.transmit {
                self.update_links(id);
            }
            return result;
        }
        self.count_box(address(new), true);
        self.count_box(address(&old), false);
        result = result.and(self.renew(id, new.router));
        // The index has one place for the interface, so its packets go to the kernel for a moment.
        self.unindex_interface(id);
        result.and(self.index_interface(id, new))
    }

    pub(super) fn interface_gone(&mut self, id: InterfaceId) -> Result<(), Full> {
        let Some(old) = self.interfaces.get(&id).cloned() else { return Ok(()) };
        self.unindex_interface(id);
        self.set_group(id, UNPROVEN);
        let result = self.divert(id, old.router);
        self.interfaces.remove(&id);
        self.settle_waiting();
        for (interface, address) in self.neighbours_of(id) {
            self.drop_neighbour(interface, address);
        }
        self.count_box(address(&old), false);
        result
    }

    fn neighbours_of(&self, id: InterfaceId) -> Vec<NeighbourKey> {
        let all = self.neighbours.range((id, IpAddr::V4(0.into()))..);
        all.map(|(key, _)| *key).take_while(|(i, _)| *i == id).collect()
    }

    fn interface_home(&self, interface: &Interface) -> u32 {
        let mask = self.interface_index.mask();
        hash::interface_bucket(interface.mac.0, interface.port.into(), interface.vlan.key(), mask)
    }

    fn index_interface(&mut self, id: InterfaceId, interface: &Interface) -> Result<(), Full> {
        let home = self.interface_home(interface);
        match self.interface_index.insert(id, home) {
            Some(at) => self.write_interface(at, interface_words(id, interface)),
            None => return Err(Full { region: Region::InterfaceIndex, rows: 1 }),
        }
        Ok(())
    }

    /// Removes the interface from the index. Packets that arrive for it then go to the kernel.
    pub(super) fn unindex_interface(&mut self, id: InterfaceId) {
        for write in self.interface_index.remove(id) {
            let (at, content) = match write {
                Write::Clear(at) => (at, None),
                Write::Set(at, key) => (at, self.interfaces.get(&key).map(|i| interface_words(key, i))),
            };
            self.write_interface(at, content.unwrap_or_default());
        }
    }

    /// The second word decides whether the slot is used. It is zero while the first one changes.
    fn write_interface(&self, at: usize, [first, second]: [u64; SLOT_WORDS]) {
        let at = at * SLOT_WORDS;
        let Some([a, b]) = self.memory.interface_index().get(at..at + SLOT_WORDS) else { return };
        if a.load(std::sync::atomic::Ordering::Relaxed) != first {
            b.store(0, Release);
            a.store(first, Release);
        }
        b.store(second, Release);
    }

    /// Replaces the other addresses. Those in both lists are known all the time.
    pub(super) fn set_others(&mut self, addresses: &Arc<[(PortId, Vlan, Mac)]>) {
        let old = std::mem::replace(&mut self.others, addresses.clone());
        addresses.iter().for_each(|key| self.count_box(*key, true));
        old.iter().for_each(|key| self.count_box(*key, false));
    }

    /// Counts that one link more (or fewer) has this MAC address on its port and VLAN.
    fn count_box(&mut self, key: (PortId, Vlan, Mac), more: bool) {
        let mac = key.2;
        let count = self.boxes.entry(key).or_default();
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.boxes.remove(&key);
        }
        let first = (mac, 0, IpAddr::V4(0.into()));
        let same = self.by_mac.range(first..).take_while(|(other, _, _)| *other == mac);
        for (_, id, address) in same.copied().collect::<Vec<_>>() {
            self.update_link(id, address);
        }
    }

    pub(super) fn egress(&self, key: Key) -> Option<Egress> {
        let (Key::OnLink { interface, .. } | Key::Via { interface, .. }) = key else { return None };
        let interface = self.interfaces.get(&interface)?;
        let frags = self.ports.get(&interface.port).copied().unwrap_or(false);
        Some(Egress { source: interface.mac, port: interface.port, vlan: interface.vlan, frags })
    }

    pub(super) fn link(&self, key: Key) -> Link {
        let Key::Via { interface: id, address, .. } = key else { return Link::none(Reason::Unresolved) };
        let unresolved = Link::none(Reason::Unresolved);
        let Some(interface) = self.interfaces.get(&id) else { return unresolved };
        match self.neighbours.get(&(id, address)) {
            Some(Neighbour { mac, .. })
                if self.boxes.contains_key(&(interface.port, interface.vlan, *mac)) =>
            {
                Link::none(Reason::SameBox)
            }
            Some(Neighbour { mac, .. }) if interface.transmit => Link::to(*mac),
            Some(_) => Link::none(Reason::TxNotReady),
            None => unresolved,
        }
    }

    fn update_link(&mut self, interface: InterfaceId, address: IpAddr) {
        for id in self.nexthops.to(interface, address).collect::<Vec<_>>() {
            self.update(id);
        }
    }

    fn update_links(&mut self, interface: InterfaceId) {
        for (_, id) in self.nexthops.through(interface) {
            self.update(id);
        }
    }

    fn update(&self, id: u32) {
        let Some(key) = self.nexthops.key(id) else { return };
        let frags = self.egress(key).is_some_and(|e| e.frags);
        self.nexthops.set_link(&self.memory, id, self.link(key), frags);
    }

    /// Makes new next hops with the interface's new words, and redirects everything that leads
    /// through the interface to them.
    fn renew(&mut self, id: InterfaceId, router: crate::plan::RouterId) -> Result<(), Full> {
        let mut changes = BTreeMap::new();
        let mut result = Ok(());
        for (key, old) in self.nexthops.through(id) {
            let content = encode(key, self.egress(key), self.link(key));
            match self.nexthops.create(&self.memory, key, content) {
                Ok(new) => _ = changes.insert(old, new),
                Err(full) => {
                    changes.insert(old, MAP_FULL);
                    result = Err(full);
                }
            }
        }
        let all_renewed = result.is_ok();
        for (interface, address) in self.neighbours_of(id) {
            if all_renewed {
                result = result.and(self.index_neighbour(interface, address));
            } else {
                // Its next hop may still be the old one.
                self.unindex_neighbour(interface, address);
                self.starved.insert((interface, address));
            }
        }
        self.redirect(&changes, router);
        result
    }

    /// Redirects everything that leads through the interface to the kernel.
    fn divert(&mut self, id: InterfaceId, router: crate::plan::RouterId) -> Result<(), Full> {
        let through = self.nexthops.through(id);
        if through.is_empty() {
            return Ok(());
        }
        let gone = self.acquire(Key::Pass { reason: Reason::EgressNotAPort, unicast: true });
        let to = *gone.as_ref().unwrap_or(&MAP_FULL);
        for (interface, address) in self.neighbours_of(id) {
            self.unindex_neighbour(interface, address);
        }
        let changes = through.into_iter().map(|(_, old)| (old, to)).collect();
        self.redirect(&changes, router);
        self.release(to, 1);
        gone.map(|_| ())
    }

    pub(super) fn set_neighbour(
        &mut self,
        interface: InterfaceId,
        address: IpAddr,
        mac: Option<Mac>,
    ) -> Result<(), Full> {
        let mac = mac.filter(|m| !m.is_group() && !m.is_zero());
        let (Some(mac), true) = (mac, self.interfaces.contains_key(&interface)) else {
            self.drop_neighbour(interface, address);
            return Ok(());
        };
        let indexed = match self.neighbours.get(&(interface, address)) {
            Some(old) => {
                self.by_mac.remove(&(old.mac, interface, address));
                old.indexed
            }
            None => None,
        };
        self.neighbours.insert((interface, address), Neighbour { mac, indexed });
        self.by_mac.insert((mac, interface, address));
        self.update_link(interface, address);
        self.index_neighbour(interface, address)
    }

    fn drop_neighbour(&mut self, interface: InterfaceId, address: IpAddr) {
        self.unindex_neighbour(interface, address);
        self.starved.remove(&(interface, address));
        if let Some(old) = self.neighbours.remove(&(interface, address)) {
            self.by_mac.remove(&(old.mac, interface, address));
            self.update_link(interface, address);
        }
    }

    /// Puts the interface's neighbours into the index or takes them out, after it got its first
    /// connected route or lost the last.
    pub(super) fn index_neighbours_of(&mut self, id: InterfaceId) -> Result<(), Full> {
        let mut result = Ok(());
        for (interface, address) in self.neighbours_of(id) {
            result = result.and(self.index_neighbour(interface, address));
        }
        result
    }

    /// Puts the neighbour into the index or takes it out, as it should be. Neighbours are in the
    /// index only while their interface has connected routes.
    pub(super) fn index_neighbour(&mut self, interface: InterfaceId, address: IpAddr) -> Result<(), Full> {
        let key = (interface, address);
        let Some(neighbour) = self.neighbours.get(&key).copied() else { return Ok(()) };
        if !self.nexthops.has_on_link(interface) {
            self.unindex_neighbour(interface, address);
            return Ok(());
        }
        let wanted = Key::Via { interface, address, mtu: MTU_OF_ON_LINK };
        if neighbour.indexed.is_some() && neighbour.indexed == self.nexthops.find(wanted) {
            return Ok(());
        }
        let id = match self.acquire(wanted) {
            Ok(id) => id,
            Err(full) => {
                self.unindex_neighbour(interface, address);
                self.starved.insert(key);
                return Err(full);
            }
        };
        if let Some(n) = self.neighbours.get_mut(&key) {
            n.indexed = Some(id);
        }
        let (home, _) = self.neighbour_hash(key);
        let at = self.neighbour_index.insert(key, home);
        if let Some(at) = at {
            self.write_neighbour(at, Some(key));
        }
        if let Some(old) = neighbour.indexed {
            self.release(old, 1);
        }
        at.map(|_| ()).ok_or(Full { region: Region::NeighbourIndex, rows: 1 })
    }

    fn unindex_neighbour(&mut self, interface: InterfaceId, address: IpAddr) {
        for write in self.neighbour_index.remove((interface, address)) {
            match write {
                Write::Set(at, key) => self.write_neighbour(at, Some(key)),
                Write::Clear(at) => self.write_neighbour(at, None),
            }
        }
        let neighbour = self.neighbours.get_mut(&(interface, address));
        if let Some(id) = neighbour.and_then(|n| n.indexed.take()) {
            self.release(id, 1);
        }
    }

    fn neighbour_hash(&self, (interface, address): NeighbourKey) -> (u32, u32) {
        hash::neighbour_bucket(interface, address_bytes(address), self.neighbour_index.mask())
    }

    fn write_neighbour(&self, at: usize, key: Option<NeighbourKey>) {
        let id = key.and_then(|k| self.neighbours.get(&k)?.indexed);
        let word = match (key, id) {
            (Some(key), Some(id)) => u64::from(id) | u64::from(self.neighbour_hash(key).1) << 32,
            _ => 0,
        };
        if let Some(slot) = self.memory.neighbour_index().get(at) {
            slot.store(word, Release);
        }
    }
}
