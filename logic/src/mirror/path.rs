//! What a route says apart from its prefix and its place among equals (the kernel's `struct fib_info`), and where that
//! leads, given the links and nexthop objects of the namespace.

use crate::{
    net::Address,
    observe::{MultipathKey, Next, NextHop, NexthopObjectKind, Route, RouteKind},
    plan::{Hop, InterfaceId, Target},
    reason::Reason,
};
use rustc_hash::FxHashMap;
use std::{net::IpAddr, time::Duration};

/// More members find no place in a group of the forwarding table (`GROUP_MEMBERS`).
const MAX_MEMBERS: usize = 128;

/// A route leaves the fast path so long before it ends: the message that says when may have waited.
pub(super) const ENDING: Duration = Duration::from_secs(2);

/// The part of a route that many routes share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Path {
    pub kind: RouteKind,
    pub next: Next,
    pub mtu: Option<u32>,
    pub complex: bool,
    /// As [`Route::expires`].
    pub expires: Option<Duration>,
    /// As [`Route::rest`].
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

    /// The same next hops in the same order, whatever their state and the route's metrics: what a deletion names.
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

    /// The kind of a route of an object follows the object: it is a blackhole as long as the object is one.
    fn same_kind(&self, other: &Path) -> bool {
        let follows = |path: &Path| {
            matches!(path.next, Next::Object(_))
                && matches!(path.kind, RouteKind::Unicast | RouteKind::Blackhole)
        };
        self.kind == other.kind || follows(self) && follows(other)
    }

    /// The same route, whatever the state of its next hops: fib_find_info() (net/ipv4/fib_semantics.c).
    pub fn same_route(&self, other: &Path) -> bool {
        let weights = |path: &Path| path.hops().iter().map(|hop| hop.weight).collect::<Vec<_>>();
        (self.rest, self.mtu, self.complex) == (other.rest, other.mtu, other.complex)
            && self.same_next(other)
            && weights(self) == weights(other)
    }

    /// Nothing in it could be another for another of its IPv6 next hops. Each of those is a route of its own with its own
    /// metrics and end (`fib6_siblings`), a message has those of one, and Linux changes their MTUs without a message
    /// (rt6_mtu_change_route()).
    pub fn is_plain(&self) -> bool {
        !self.complex && self.mtu.is_none() && self.expires.is_none()
    }

    /// Packets of other routes of the same object may be treated as this one says, where it says more than where they go.
    ///
    /// Linux keeps what it found out of a route, its metrics too, in the nexthop object, and uses it for all routes of the
    /// object (`nhc_rth_input`, `rt6i_pcpu`).
    pub fn rubs_off(&self) -> bool {
        matches!(self.next, Next::Object(_)) && !self.is_plain()
    }

    /// Leads by an object, wherever that is.
    pub fn follows_object(&self) -> bool {
        self.kind == RouteKind::Unicast && matches!(self.next, Next::Object(_))
    }

    /// It lists several next hops itself.
    pub fn is_group(&self) -> bool {
        matches!(self.next, Next::Many(_))
    }

    /// Its next hops, when it lists them itself.
    pub fn hops(&self) -> &[NextHop] {
        self.next.hops()
    }
}

/// The same neighbour on the same device.
pub(super) fn same_hop(a: &NextHop, b: &NextHop) -> bool {
    (a.ifindex, a.gateway) == (b.ifindex, b.gateway)
}

/// What routes need to know of a link of their own namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Egress {
    /// Its number, if it is an interface.
    pub interface: Option<InterfaceId>,
    /// For IPv4 and IPv6, in bytes.
    pub mtu: [u32; 2],
    /// `IFF_UP`.
    pub up: bool,
    /// Up, with a carrier, and not dormant.
    pub running: bool,
    /// Up, with a carrier, but dormant.
    pub dormant: bool,
    /// `ignore_routes_with_linkdown`, for IPv4 and IPv6.
    pub ignore_linkdown: [bool; 2],
    /// `disable_ipv6`: ip6_output() drops there.
    pub ipv6_disabled: bool,
}

/// The surroundings in which paths are resolved.
pub(super) struct Surroundings<'a> {
    pub links: &'a FxHashMap<u32, Egress>,
    pub objects: &'a FxHashMap<u32, NexthopObjectKind>,
    /// `fib_multipath_hash_policy`, for IPv4 and IPv6.
    pub multipath_policy: [u8; 2],
    pub multipath_key: MultipathKey,
    /// Linux has a hash of packets that come in by some port here.
    pub hashed: bool,
    /// CLOCK_MONOTONIC.
    pub now: Duration,
}

pub(super) fn pass(reason: Reason) -> Target {
    Target::Pass { reason, unicast: false }
}

/// A unicast route the fast path does not take.
pub(super) fn pass_unicast(reason: Reason) -> Target {
    Target::Pass { reason, unicast: true }
}

impl Surroundings<'_> {
    /// Where `path` leads; `None` if none of its next hops is usable, so that Linux looks further.
    ///
    /// IPv4: fib_table_lookup() (net/ipv4/fib_trie.c) skips dead next hops, and linkdown ones where the device says
    /// so, before it goes to the next alias; types with an error (`fib_props`) end the lookup without a look at next
    /// hops. IPv6: find_match() (net/ipv6/route.c) does the same.
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

    /// find_match() passes an expired route over, long before the kernel removes it and says so.
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

    /// A group of nexthop objects. Groups cannot be nested (valid_group_nh(), net/ipv4/nexthop.c), and a blackhole
    /// only stands alone.
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
        // fib_rebalance() and rt6_multipath_rebalance() share out what an ignored next hop had, but not when the setting
        // changes. Who has been left out only the kernel knows.
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

    /// May the fast path choose among these members? Policy 1 takes a hash that the packet has already; policies 2 and 3 hash
    /// inner headers or chosen fields. By a key of our own not if the kernel has some of the packets: it would choose for them
    /// once more, by its own.
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

    /// Would Linux pass this next hop over? fib_lookup_good_nhc(), fib6_ignore_linkdown().
    fn skipped(&self, hop: &NextHop, ipv6: bool) -> bool {
        let Some(link) = self.links.get(&hop.ifindex) else { return hop.dead };
        // A message also says dead of what is linkdown and ignored (fib_nexthop_info()). IPv4 leaves none dead on a device
        // that is up; IPv6 does until it runs.
        let dead = hop.dead && (ipv6 || !hop.linkdown || !link.up);
        dead || hop.linkdown && link.ignore_linkdown[usize::from(ipv6)]
    }

    /// Do its flags no longer fit its device? fib_sync_up(), fib_sync_down_dev() and their like in IPv6 change them
    /// without a message; until the routes are read again only the kernel knows.
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
        // An IPv4 gateway cannot carry IPv6 traffic; the other way round is RFC 5549.
        let strange = ipv6 && matches!(hop.gateway, Some(IpAddr::V4(_)));
        if hop.complex || strange {
            return pass_unicast(Reason::ComplexRoute);
        }
        let Some(link) = self.links.get(&hop.ifindex).filter(|l| !(ipv6 && l.ipv6_disabled)) else {
            return pass_unicast(Reason::EgressNotAPort);
        };
        let Some(interface) = link.interface else { return pass_unicast(Reason::EgressNotAPort) };
        // ip_dst_mtu_maybe_forward() honours the route's metric even above the device's MTU; what lies between
        // is for the kernel to refuse.
        let link_mtu = link.mtu[usize::from(ipv6)];
        let mtu = route_mtu.map_or(link_mtu, |mtu| mtu.min(link_mtu));
        Target::Hop(Hop { interface, gateway: hop.gateway, mtu })
    }
}
