//! The changes that the control thread takes in while namespaces are compared.

use logic::{
    net::Prefix,
    observe::{Event, NamespaceId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// Prefixes and neighbours of one namespace; with more, everything counts as changed.
const MOST: usize = 4096;

/// Changes in the namespaces that are being compared.
pub(super) struct Changes(BTreeMap<NamespaceId, Changed>);

/// Changes in one namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Changed {
    everything: bool,
    prefixes4: BTreeSet<(u32, u8)>,
    prefixes6: BTreeSet<(u128, u8)>,
    neighbours: BTreeSet<IpAddr>,
}

impl Changes {
    pub fn of(namespaces: impl Iterator<Item = NamespaceId>) -> Changes {
        Changes(namespaces.map(|namespace| (namespace, Changed::default())).collect())
    }

    /// The changes since the last call.
    pub fn take(&mut self, namespace: NamespaceId) -> Changed {
        self.0.get_mut(&namespace).map(std::mem::take).unwrap_or_default()
    }

    pub fn observe(&mut self, event: &Event) {
        let namespace = match event {
            // Interfaces of any namespace may be on it.
            Event::Port(..) | Event::PortGone(_) => {
                self.0.values_mut().for_each(|changed| changed.everything = true);
                return;
            }
            Event::Namespace(id, _)
            | Event::NamespaceGone(id)
            | Event::Dump(id, _)
            | Event::Link(id, _)
            | Event::LinkGone(id, _)
            | Event::Route4(id, ..)
            | Event::Route6(id, ..)
            | Event::Routes(id, ..)
            | Event::Neighbour(id, _)
            | Event::Nexthop(id, _)
            | Event::NexthopGone(id, _)
            | Event::Settings(id, _) => id,
        };
        let Some(changed) = self.0.get_mut(namespace) else { return };
        match event {
            Event::Route4(_, _, route) => {
                changed.prefixes4.insert((route.prefix.address(), route.prefix.length()));
            }
            Event::Route6(_, _, route) => {
                changed.prefixes6.insert((route.prefix.address(), route.prefix.length()));
            }
            Event::Neighbour(_, neighbour) => {
                changed.neighbours.insert(neighbour.address);
            }
            _ => changed.everything = true,
        }
        if changed.everything || changed.count() > MOST {
            *changed = Changed { everything: true, ..Changed::default() };
        }
    }
}

impl Changed {
    fn count(&self) -> usize {
        self.prefixes4.len() + self.prefixes6.len() + self.neighbours.len()
    }

    /// May a packet to this address, sent to one of these neighbours, go another way since?
    pub fn concerns(&self, address: IpAddr, mut neighbours: impl Iterator<Item = IpAddr>) -> bool {
        self.everything
            || match address {
                IpAddr::V4(a) => (0..=32).any(|length| {
                    let prefix = Prefix::new(
                        u32::MAX.checked_shl(32 - length).unwrap_or(0) & a.to_bits(),
                        length as u8,
                    );
                    prefix.is_some_and(|p| self.prefixes4.contains(&(p.address(), p.length())))
                }),
                IpAddr::V6(a) => (0..=128).any(|length| {
                    let prefix = Prefix::new(
                        u128::MAX.checked_shl(128 - length).unwrap_or(0) & a.to_bits(),
                        length as u8,
                    );
                    prefix.is_some_and(|p| self.prefixes6.contains(&(p.address(), p.length())))
                }),
            }
            || neighbours.any(|neighbour| self.neighbours.contains(&neighbour))
    }
}
