//! The parts of a route besides its prefix and its position among equals (the kernel's `struct fib_info`). Also where
//! such a path leads, given the links and nexthop objects of the namespace.

use crate::{
    net::Address,
    observe::{MultipathKey, Next, NextHop, NexthopObjectKind, Route, RouteKind},
    plan::{Hop, InterfaceId, Target},
    reason::Reason,
};
use rustc_hash::FxHashMap;
use std::{net::IpAddr, time::Duration};

/// A group of the forwarding table has no room for more members (`GROUP_MEMBERS`).
const MAX_MEMBERS: usize = 128;

/// A route leaves the fast path this long before it ends, because the message with the end may have waited.
pub(super) const ENDING: Duration = Duration::from_secs(2);

/// The part of a route that many routes share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Path {
    pub kind: RouteKind,
    pub next: Next,
    pub mtu: Option<u32>,
    pub complex: bool,
    /// Like [`Route::expires`].
    pub expires: Option<Duration>,
    /// Like [`Route::rest`].
    pub rest: u64,
}

impl Path {
    pub fn of<A: Address>(route: Route<A>) -> Path {
        Path {
            kind: route.kind,
            next: route.next,
            mtu: route.mtu.filter(|&mtu| mtu > 0),
            complex: route.complex.is_some(),
            expires: route.expires,
            rest: route.rest,
        }
    }

    /// Whether both have the same next hops in the same order, whatever their state and the route's metrics. A deletion
    /// names a route in this way.
    pub fn same_next(&self, other: &Path) -> bool {
        self.same_kind(other)
            && match (&self.next, &other.next) {
                (Next::One(a), Next::One(b)) => same_hop(a, b),
                (Next::Many(a), Next::Many(b)) => {
                    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_hop(a, b))
                }
                (a, b) => a == b,
            }
    }

    /// Whether both are of the same kind. A route of an object follows the object: it is a blackhole as long as the
    /// object is one.
    fn same_kind(&self, other: &Path) -> bool {
        let follows = |path: &Path| {
            matches!(path.next, Next::Object(_))
                && matches!(path.kind, RouteKind::Unicast | RouteKind::Blackhole)
        };
        self.kind == other.kind || follows(self) && follows(other)
    }

    /// Whether both are the same route, whatever the state of the next hops: fib_find_info()
    /// (net/ipv4/fib_semantics.c).
    pub fn same_route(&self, other: &Path) -> bool {
        let weights = |path: &Path| path.hops().iter().map(|hop| hop.weight).collect::<Vec<_>>();
        (self.rest, self.mtu, self.complex) == (other.rest, other.mtu, other.complex)
            && self.same_next(other)
            && weights(self) == weights(other)
    }

    /// Whether it has no property that could differ between its IPv6 next hops. Each IPv6 next hop is a route of its
    /// own, with its own metrics and end (`fib6_siblings`). A message has those of one next hop, and Linux changes
    /// their MTUs without a message (rt6_mtu_change_route()).
    pub fn is_plain(&self) -> bool {
        !self.complex && self.mtu.is_none() && self.expires.is_none()
    }

    /// Whether its properties (other than where it leads) may affect packets of other routes of the same object.
    ///
    /// Linux keeps its results for a route, including metrics, in the nexthop object, and uses them for all routes of
    /// the object (`nhc_rth_input`, `rt6i_pcpu`).
    pub fn rubs_off(&self) -> bool {
        matches!(self.next, Next::Object(_)) && !self.is_plain()
    }

    /// Whether it is a unicast route of an object.
    pub fn follows_object(&self) -> bool {
        self.kind == RouteKind::Unicast && matches!(self.next, Next::Object(_))
    }

    /// Whether it lists several next hops itself.
    pub fn is_group(&self) -> bool {
        matches!(self.next, Next::Many(_))
    }

    /// Its next hops, if it lists them itself.
    pub fn hops(&self) -> &[NextHop] {
        self.next.hops()
    }
}

/// Whether both are the same neighbour on the same device.
pub(super) fn same_hop(a: &NextHop, b: &NextHop) -> bool {
    (a.ifindex, a.gateway) == (b.ifindex, b.gateway)
}

/// The properties of a link that routes of its namespace need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Egress {
    /// Its number, if it is an interface.
    pub interface: Option<InterfaceId>,
    /// MTU for IPv4 and IPv6, in bytes.
    pub mtu: [u32; 2],
    /// `IFF_UP`.
    pub up: bool,
    /// Up, with a carrier, and not dormant.
    pub running: bool,
    /// Up, with a carrier, but dormant.
    pub dormant: bool,
    /// `ignore_routes_with_linkdown`, for IPv4 and IPv6.
    pub ignore_linkdown: [bool; 2],
    /// `disable_ipv6`: ip6_output() drops packets there.
    pub ipv6_disabled: bool,
}

/// The state of the namespace in which paths are resolved.
pub(super) struct Surroundings<'a> {
    pub links: &'a FxHashMap<u32, Egress>,
    pub objects: &'a FxHashMap<u32, NexthopObjectKind>,
    /// `fib_multipath_hash_policy`, for IPv4 and IPv6.
    pub multipath_policy: [u8; 2],
    pub multipath_key: MultipathKey,
    /// Linux already has a hash of packets that arrive at some port here.
    pub hashed: bool,
    /// CLOCK_MONOTONIC.
    pub now: Duration,
}

pub(super) fn pass(reason: Reason) -> Target {
    Target::Pass { reason, unicast: false }
}

/// The target of a unicast route that the fast path does not take.
pub(super) fn pass_unicast(reason: Reason) -> Target {
    Target::Pass { reason, unicast: true }
}

impl Surroundings<'_> {
    /// Where `path` leads. `None` if no next hop is usable, so that Linux tries the next route.
    ///
    /// IPv4: fib_table_lookup() (net/ipv4/fib_trie.c) skips dead next hops, and linkdown ones if the device is set so.
    /// Then it goes to the next alias. Types with an error (`fib_props`) end the lookup without looking at next hops.
    /// IPv6: find_match() (net/ipv6/route.c) does the same.
    pub fn resolve(&self, path: &Path, ipv6: bool) -> Option<Target> {
        Some(match path.kind {
            RouteKind::Local | RouteKind::Anycast => pass(Reason::Local),
            RouteKind::Broadcast | RouteKind::Multicast => pass(Reason::Broadcast),
            RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Prohibit | RouteKind::Throw => {
                pass(Reason::SpecialRoute)
            }
            RouteKind::Other(_) => pass(Reason::ComplexRoute),
            RouteKind::Unicast if path.complex || self.ends_soon(path) => pass_unicast(Reason::ComplexRoute),
            RouteKind::Unicast if ipv6 && path.is_group() && !path.is_plain() => {
                pass_unicast(Reason::ComplexRoute)
            }
            RouteKind::Unicast => return self.unicast(path, ipv6),
        })
    }

    /// find_match() skips an expired route, long before the kernel removes it and sends a message.
    fn ends_soon(&self, path: &Path) -> bool {
        path.expires.is_some_and(|end| end <= self.now + ENDING)
    }

    fn unicast(&self, path: &Path, ipv6: bool) -> Option<Target> {
        match &path.next {
            Next::None => Some(pass_unicast(Reason::ComplexRoute)),
            Next::One(hop) => self.multi(&[(hop, 1)], path.mtu, ipv6),
            Next::Many(hops) => {
                let members: Vec<_> = hops.iter().map(|hop| (hop, hop.weight)).collect();
                self.multi(&members, path.mtu, ipv6)
            }
            Next::Object(id) => match self.objects.get(id) {
                Some(NexthopObjectKind::Group(members)) => self.group(members, path.mtu, ipv6),
                Some(NexthopObjectKind::Single(hop)) => self.multi(&[(hop, 1)], path.mtu, ipv6),
                Some(NexthopObjectKind::Blackhole) => Some(pass(Reason::SpecialRoute)),
                Some(NexthopObjectKind::Unsupported(_)) => Some(pass_unicast(Reason::ComplexRoute)),
                None => Some(pass(Reason::ComplexRoute)),
            },
        }
    }

    /// The target of a group of nexthop objects. Groups cannot be nested (valid_group_nh(), net/ipv4/nexthop.c), and a
    /// blackhole can only be alone.
    fn group(&self, members: &[(u32, u16)], mtu: Option<u32>, ipv6: bool) -> Option<Target> {
        let mut hops = Vec::with_capacity(members.len());
        for (id, weight) in members {
            match self.objects.get(id) {
                Some(NexthopObjectKind::Single(hop)) => hops.push((hop, *weight)),
                Some(NexthopObjectKind::Blackhole) if members.len() == 1 => {
                    return Some(pass(Reason::SpecialRoute));
                }
                _ => return Some(pass(Reason::ComplexRoute)),
            }
        }
        self.multi(&hops, mtu, ipv6)
    }

    fn multi(&self, hops: &[(&NextHop, u16)], mtu: Option<u32>, ipv6: bool) -> Option<Target> {
        if hops.iter().any(|(hop, _)| self.outdated(hop, ipv6)) {
            return Some(pass(Reason::ComplexRoute));
        }
        // fib_rebalance() and rt6_multipath_rebalance() distribute the share of an ignored next hop, but not when the
        // setting changes. Only the kernel knows which next hops it left out.
        let is_up = |hop: &NextHop| self.links.get(&hop.ifindex).is_some_and(|link| link.up);
        if hops.len() > 1 && hops.iter().any(|(hop, _)| hop.linkdown && is_up(hop)) {
            return Some(pass_unicast(Reason::MemberUnsure));
        }
        let members: Vec<_> = hops
            .iter()
            .filter(|(hop, _)| !self.skipped(hop, ipv6))
            .map(|(hop, weight)| (self.hop(hop, mtu, ipv6), (*weight).clamp(1, 256)))
            .collect();
        match &members[..] {
            [] => None,
            [(only, _)] => Some(only.clone()),
            _ if self.chooses(&members, ipv6) => Some(Target::Multi(members.into())),
            _ => Some(pass_unicast(Reason::ComplexRoute)),
        }
    }

    /// Whether the fast path may choose among these members. Policy 1 may use a hash that the packet already has.
    /// Policies 2 and 3 hash inner headers or chosen fields. With a key of our own, no member may be the kernel's: the
    /// kernel would choose again for those packets, with its own key.
    fn chooses(&self, members: &[(Target, u16)], ipv6: bool) -> bool {
        let can = match self.multipath_key {
            MultipathKey::Unknown => false,
            MultipathKey::Linux(_) => true,
            MultipathKey::Own(_) => members.iter().all(|(member, _)| matches!(member, Target::Hop(_))),
        };
        let follows = match self.multipath_policy[usize::from(ipv6)] {
            0 => true,
            1 => !self.hashed,
            _ => false,
        };
        can && follows && members.len() <= MAX_MEMBERS
    }

    /// Whether Linux skips this next hop: fib_lookup_good_nhc(), fib6_ignore_linkdown().
    fn skipped(&self, hop: &NextHop, ipv6: bool) -> bool {
        let Some(link) = self.links.get(&hop.ifindex) else { return hop.dead };
        // A message also shows a next hop as dead if it is linkdown and ignored (fib_nexthop_info()). IPv4 leaves none
        // dead on a device that is up. IPv6 does until the device runs.
        let dead = hop.dead && (ipv6 || !hop.linkdown || !link.up);
        dead || hop.linkdown && link.ignore_linkdown[usize::from(ipv6)]
    }

    /// Whether its flags no longer fit its device. fib_sync_up(), fib_sync_down_dev() and the like in IPv6 change them
    /// without a message. Only the kernel knows them until the routes are read again.
    fn outdated(&self, hop: &NextHop, ipv6: bool) -> bool {
        let Some(link) = self.links.get(&hop.ifindex) else { return false };
        // rt6_disable_ip() marks the next hops of routes dead, but not those of objects.
        if ipv6 && link.ipv6_disabled {
            return !hop.dead;
        }
        let ignores = link.ignore_linkdown[usize::from(ipv6)];
        if link.running {
            return self.skipped(hop, ipv6);
        }
        let ignored_before = ipv6 && link.up && hop.dead && hop.linkdown;
        if ignores { link.dormant && !hop.linkdown && !hop.dead } else { ignored_before }
    }

    fn hop(&self, hop: &NextHop, route_mtu: Option<u32>, ipv6: bool) -> Target {
        // An IPv4 gateway cannot carry IPv6 traffic. The reverse is possible (RFC 5549).
        let strange = ipv6 && matches!(hop.gateway, Some(IpAddr::V4(_)));
        if hop.complex || strange {
            return pass_unicast(Reason::ComplexRoute);
        }
        let Some(link) = self.links.get(&hop.ifindex).filter(|l| !(ipv6 && l.ipv6_disabled)) else {
            return pass_unicast(Reason::EgressNotAPort);
        };
        let Some(interface) = link.interface else { return pass_unicast(Reason::EgressNotAPort) };
        // ip_dst_mtu_maybe_forward() uses the route's metric even above the device's MTU. The fast path uses the
        // smaller of the two and leaves packets in between to the kernel.
        let link_mtu = link.mtu[usize::from(ipv6)];
        let mtu = route_mtu.map_or(link_mtu, |mtu| mtu.min(link_mtu));
        Target::Hop(Hop { interface, gateway: hop.gateway, mtu })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(hops: &[(u32, u16)]) -> Path {
        let hop = |&(ifindex, weight): &(u32, u16)| NextHop {
            ifindex,
            gateway: None,
            weight,
            dead: false,
            linkdown: false,
            complex: false,
        };
        let next = Next::Many(hops.iter().map(hop).collect());
        Path { kind: RouteKind::Unicast, next, mtu: None, complex: false, expires: None, rest: 0 }
    }

    #[test]
    fn routes_are_the_same_whatever_the_state_of_their_next_hops() {
        let path = many(&[(1, 1), (2, 3)]);
        let Next::Many(hops) = &path.next else { panic!() };
        let down = hops.iter().map(|hop| NextHop { dead: true, linkdown: true, ..hop.clone() });
        let object = |kind| Path { kind, next: Next::Object(5), ..path.clone() };
        let (unicast, blackhole) = (object(RouteKind::Unicast), object(RouteKind::Blackhole));
        let one = |of: &Path| Path { next: Next::One(of.hops()[0].clone()), ..of.clone() };
        // Two paths, and whether they have the same next hops and are the same route.
        let rows = [
            (&path, path.clone(), [true, true]),
            (&path, Path { next: Next::Many(down.collect()), ..path.clone() }, [true, true]),
            (&path, Path { expires: Some(Duration::ZERO), ..path.clone() }, [true, true]),
            (&path, Path { mtu: Some(1400), ..path.clone() }, [true, false]),
            (&path, Path { complex: true, ..path.clone() }, [true, false]),
            (&path, Path { rest: 1, ..path.clone() }, [true, false]),
            (&path, many(&[(1, 1), (2, 4)]), [true, false]),
            (&path, many(&[(2, 3), (1, 1)]), [false, false]),
            (&path, many(&[(1, 1), (3, 3)]), [false, false]),
            (&path, many(&[(1, 1)]), [false, false]),
            (&path, many(&[(1, 1), (2, 3), (3, 1)]), [false, false]),
            (&path, one(&path), [false, false]),
            (&path, Path { kind: RouteKind::Blackhole, ..path.clone() }, [false, false]),
            (&one(&path), one(&many(&[(2, 1)])), [false, false]),
            (&unicast, blackhole.clone(), [true, true]),
            (&unicast, object(RouteKind::Local), [false, false]),
            (&unicast, Path { next: Next::Object(6), ..unicast.clone() }, [false, false]),
            (&path, blackhole, [false, false]),
        ];
        for (a, b, expected) in rows {
            assert_eq!([a.same_next(&b), a.same_route(&b)], expected, "{a:?}, {b:?}");
            assert_eq!([b.same_next(a), b.same_route(a)], expected, "{b:?}, {a:?}");
        }
    }
}
