//! The changes that the control thread takes in while namespaces are compared.

use logic::{
    net::Prefix,
    observe::{Event, NamespaceId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// The most prefixes and neighbours that are noted for one namespace. With more, everything counts as changed.
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
            // Any namespace may have interfaces on the port.
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
            | Event::Settings(id, _)
            | Event::Learned(id, _) => id,
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
            // These are all destinations that are bound now. Those that no longer are follow their routes again, and
            // are compared like any other destination.
            Event::Learned(_, bound) => bound.iter().for_each(|destination| match destination {
                IpAddr::V4(address) => _ = changed.prefixes4.insert((address.to_bits(), 32)),
                IpAddr::V6(address) => _ = changed.prefixes6.insert((address.to_bits(), 128)),
            }),
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

    /// Can these changes have affected packets to this address, or to one of these neighbours?
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

#[cfg(test)]
mod tests {
    use super::*;
    use logic::{
        net::Mac,
        observe::{Change, Neighbour, Next, Route, RouteKind},
    };

    fn route<A: logic::net::Address>(prefix: Prefix<A>) -> Route<A> {
        Route {
            prefix,
            table: 254,
            metric: 0,
            tos: 0,
            kind: RouteKind::Blackhole,
            next: Next::None,
            mtu: None,
            for_sources: false,
            expires: None,
            rest: 0,
            complex: None,
        }
    }

    fn seen(events: &[Event]) -> Changed {
        let mut changes = Changes::of([1].into_iter());
        events.iter().for_each(|event| changes.observe(event));
        let changed = changes.take(1);
        assert_eq!(changes.take(1), Changed::default(), "taken once");
        changed
    }

    fn concerns(changed: &Changed, address: &str, neighbour: &str) -> bool {
        changed.concerns(address.parse().unwrap(), [neighbour.parse().unwrap()].into_iter())
    }

    #[test]
    fn a_route_concerns_the_addresses_of_its_prefix() {
        let v4 = |prefix: &str| Event::Route4(1, Change::Add, route(prefix.parse().unwrap()));
        let v6 = |prefix: &str| Event::Route6(1, Change::Delete, route(prefix.parse().unwrap()));
        let changed = seen(&[v4("10.1.0.0/16"), v6("2001:db8::/33"), v4("192.0.2.7/32")]);
        for (address, expected) in [
            ("10.1.255.255", true),
            ("10.2.0.0", false),
            ("192.0.2.7", true),
            ("192.0.2.6", false),
            ("2001:db8:7fff::1", true),
            ("2001:db8:8000::1", false),
        ] {
            assert_eq!(concerns(&changed, address, "10.9.9.9"), expected, "{address}");
        }
        for default in [v4("0.0.0.0/0"), v6("::/0")] {
            let changed = seen(&[default]);
            assert!(concerns(&changed, "8.8.8.8", "::1") || concerns(&changed, "2001:db8::1", "::1"));
        }
    }

    #[test]
    fn a_neighbour_concerns_packets_sent_to_it_and_other_events_concern_all() {
        let address = "10.0.0.9".parse().unwrap();
        let neighbour = Neighbour { ifindex: 2, address, mac: Some(Mac([2; 6])), stale: false };
        let changed = seen(&[Event::Neighbour(1, neighbour)]);
        assert!(concerns(&changed, "8.8.8.8", "10.0.0.9") && !concerns(&changed, "8.8.8.8", "10.0.0.8"));
        for event in [Event::LinkGone(1, 2), Event::NexthopGone(1, 2), Event::PortGone(0)] {
            assert!(concerns(&seen(&[event]), "8.8.8.8", "10.0.0.8"));
        }
        assert!(!concerns(&seen(&[Event::LinkGone(2, 2)]), "8.8.8.8", "10.0.0.8"), "another namespace");
    }

    #[test]
    fn a_storm_takes_little_memory() {
        let one = |n: u32| Event::Route4(1, Change::Add, route(Prefix::new(n << 8, 24).unwrap()));
        let changed = seen(&(0..10_000).map(one).collect::<Vec<_>>());
        assert!(changed.everything && changed.count() == 0);
    }
}
