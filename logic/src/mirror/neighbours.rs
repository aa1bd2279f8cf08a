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
        // NUD_NOARP entries of devices without addresses, and entries of groups, cannot be sent to.
        let mac = neighbour.mac.filter(|mac| !mac.is_zero() && !mac.is_group());
        // Most of these are addresses that nobody has.
        if mac.is_none() && !self.links.get(&ifindex).is_some_and(|link| link.contains_key(&address)) {
            return;
        }
        let entry = self.links.entry(ifindex).or_default().entry(address).or_default();
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

    /// Link, address and MAC address of each neighbour, in this order, and whether the kernel calls it stale.
    pub fn all(&self) -> Vec<(u32, IpAddr, Mac, bool)> {
        let of_link = |(ifindex, link): (&u32, &FxHashMap<IpAddr, Entry>)| {
            let known = link.iter().filter_map(|(address, entry)| Some((*address, entry.mac?)));
            let known = known
                .map(|(address, mac)| (*ifindex, address, mac, self.stale.contains(&(*ifindex, address))));
            known.collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.links.iter().flat_map(of_link).collect();
        all.sort_unstable();
        all
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

#[cfg(test)]
impl Neighbours {
    /// Only neighbours that have a MAC address or wait for a plan are kept.
    pub fn check(&self) {
        let entries = self.links.iter().flat_map(|(ifindex, link)| {
            assert!(!link.is_empty(), "link {ifindex}");
            link.iter().map(|(address, entry)| ((*ifindex, *address), entry))
        });
        let (mut waiting, mut listed) = (Vec::new(), self.dirty.clone());
        for (at, entry) in entries {
            assert!(entry.dirty || entry.mac.is_some(), "{at:?}");
            waiting.extend(entry.dirty.then_some(at));
        }
        waiting.sort_unstable();
        listed.sort_unstable();
        assert_eq!(waiting, listed);
        assert!(self.stale.iter().all(|(ifindex, address)| self.links[ifindex][address].mac.is_some()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const BLUE: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn at(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn of(ifindex: u32, last: u8, mac: impl Into<Option<Mac>>) -> Neighbour {
        Neighbour { ifindex, address: at(last), mac: mac.into(), stale: last >= 200 }
    }

    /// Links 1 and 2 are interfaces 11 and 12.
    fn plan(neighbours: &mut Neighbours) -> Vec<(InterfaceId, u8, Option<Mac>)> {
        let ops = neighbours.plan(|ifindex| (ifindex < 3).then_some(10 + ifindex as InterfaceId));
        neighbours.check();
        ops.into_iter()
            .map(|op| match op {
                Op::Neighbour(id, IpAddr::V4(address), mac) => (id, address.octets()[3], mac),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn a_plan_has_the_differences_from_the_last_one_in_order() {
        let mut all = Neighbours::default();
        [of(2, 1, RED), of(1, 9, RED), of(1, 2, BLUE), of(3, 1, RED)].iter().for_each(|n| all.observe(n));
        assert_eq!(plan(&mut all), [(11, 2, Some(BLUE)), (11, 9, Some(RED)), (12, 1, Some(RED))]);
        assert_eq!(plan(&mut all), []);
        // One changes back in time, one ends, one was never known.
        [of(1, 9, BLUE), of(1, 9, RED), of(1, 2, None), of(1, 3, None), of(4, 3, None)]
            .iter()
            .for_each(|n| all.observe(n));
        assert_eq!(plan(&mut all), [(11, 2, None)]);
        // Packets cannot be sent to these.
        [of(1, 9, Mac::default()), of(2, 1, Mac([1, 0, 0x5e, 0, 0, 1]))].iter().for_each(|n| all.observe(n));
        assert_eq!(plan(&mut all), [(11, 9, None), (12, 1, None)]);
    }

    #[test]
    fn a_dump_replaces_everything() {
        let mut all = Neighbours::default();
        all.load(&[of(1, 1, RED), of(1, 200, RED), of(2, 201, RED)]);
        assert_eq!(Vec::from_iter(all.stale().clone()), [(1, at(200)), (2, at(201))]);
        assert_eq!(plan(&mut all).len(), 3);
        all.load(&[of(1, 1, RED), of(1, 200, BLUE)]);
        assert_eq!(plan(&mut all), [(11, 200, Some(BLUE)), (12, 201, None)]);
        assert_eq!(Vec::from_iter(all.stale().clone()), [(1, at(200))]);
        let fresh = Neighbour { stale: false, ..of(1, 200, BLUE) };
        all.observe(&fresh);
        assert!(all.stale().is_empty() && plan(&mut all).is_empty());
    }

    #[test]
    fn neighbours_end_with_their_link() {
        let mut all = Neighbours::default();
        all.load(&[of(1, 200, RED), of(2, 201, RED)]);
        plan(&mut all);
        all.link_gone(1);
        assert_eq!(plan(&mut all), [(11, 200, None)]);
        assert_eq!(Vec::from_iter(all.stale().clone()), [(2, at(201))]);
        assert!(!all.links.contains_key(&1));
    }

    #[test]
    fn a_new_interface_gets_the_neighbours_of_its_link() {
        let mut all = Neighbours::default();
        all.load(&[of(1, 1, RED), of(2, 2, RED)]);
        plan(&mut all);
        all.renew(1);
        assert_eq!(plan(&mut all), [(11, 1, Some(RED))]);
        all.renew(1);
        all.observe(&of(1, 1, None));
        assert_eq!(plan(&mut all), []);
    }
}
