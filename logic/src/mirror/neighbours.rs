//! The neighbours of one namespace. They are kept for all its links, so a link that becomes an interface later has its
//! neighbours at once.

use crate::{
    net::Mac,
    observe::Neighbour,
    plan::{InterfaceId, Op},
};
use rustc_hash::FxHashMap;
use std::{collections::BTreeSet, net::IpAddr};

#[derive(Default)]
pub(super) struct Neighbours {
    links: FxHashMap<u32, FxHashMap<IpAddr, Entry>>,
    dirty: Vec<(u32, IpAddr)>,
    /// The neighbours that the kernel calls stale.
    stale: BTreeSet<(u32, IpAddr)>,
}

#[derive(Default)]
struct Entry {
    mac: Option<Mac>,
    /// The MAC address in the plan.
    shown: Option<Mac>,
    dirty: bool,
}

impl Neighbours {
    /// Handles one message.
    pub fn observe(&mut self, neighbour: &Neighbour) {
        let Neighbour { ifindex, address, .. } = *neighbour;
        let link = self.links.entry(ifindex).or_default();
        // NUD_NOARP entries of devices without addresses, and entries of groups, cannot be sent to.
        let mac = neighbour.mac.filter(|mac| !mac.is_zero() && !mac.is_group());
        if mac.is_none() && !link.contains_key(&address) {
            return;
        }
        let entry = link.entry(address).or_default();
        entry.mac = mac;
        if mac.is_some() && neighbour.stale {
            self.stale.insert((ifindex, address));
        } else {
            self.stale.remove(&(ifindex, address));
        }
        if entry.mac != entry.shown || mac.is_none() {
            mark(&mut self.dirty, entry, ifindex, address);
        }
    }

    /// Handles a dump of all neighbours.
    pub fn load(&mut self, neighbours: &[Neighbour]) {
        for entry in self.links.values_mut().flat_map(FxHashMap::values_mut) {
            entry.mac = None;
        }
        self.stale.clear();
        neighbours.iter().for_each(|n| self.observe(n));
        for (ifindex, link) in &mut self.links {
            for (address, entry) in link.iter_mut().filter(|(_, entry)| entry.mac.is_none()) {
                mark(&mut self.dirty, entry, *ifindex, *address);
            }
        }
    }

    /// The link is gone, and so are its neighbours.
    pub fn link_gone(&mut self, ifindex: u32) {
        for (address, entry) in self.links.get_mut(&ifindex).into_iter().flatten() {
            self.stale.remove(&(ifindex, *address));
            entry.mac = None;
            mark(&mut self.dirty, entry, ifindex, *address);
        }
    }

    /// The link has become an interface, or another one. The former plan is void, so all its neighbours are planned
    /// again.
    pub fn renew(&mut self, ifindex: u32) {
        for (address, entry) in self.links.get_mut(&ifindex).into_iter().flatten() {
            entry.shown = None;
            mark(&mut self.dirty, entry, ifindex, *address);
        }
    }

    /// The differences from the last plan.
    pub fn plan(&mut self, interface: impl Fn(u32) -> Option<InterfaceId>) -> Vec<Op> {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.sort_unstable();
        let mut ops = Vec::new();
        for (ifindex, address) in dirty {
            let Some(link) = self.links.get_mut(&ifindex) else { continue };
            let Some(entry) = link.get_mut(&address) else { continue };
            entry.dirty = false;
            match interface(ifindex) {
                Some(id) if entry.mac != entry.shown => {
                    entry.shown = entry.mac;
                    ops.push(Op::Neighbour(id, address, entry.mac));
                }
                Some(_) => {}
                None => entry.shown = None,
            }
            if entry.mac.is_none() {
                link.remove(&address);
                if link.is_empty() {
                    self.links.remove(&ifindex);
                }
            }
        }
        ops
    }

    /// The neighbours that the kernel calls stale, by link and address.
    pub fn stale(&self) -> &BTreeSet<(u32, IpAddr)> {
        &self.stale
    }
}

fn mark(dirty: &mut Vec<(u32, IpAddr)>, entry: &mut Entry, ifindex: u32, address: IpAddr) {
    if !std::mem::replace(&mut entry.dirty, true) {
        dirty.push((ifindex, address));
    }
}
