//! Finds IPv6 groups whose next hops have metrics, or rival routes, that a dump does not show.
//!
//! Each next hop of an IPv6 route is a route of its own (`fib6_siblings`), with its own metrics and its own end. A dump
//! reports all of them in one message, with the metrics of the first (rt6_fill_node()). `RTM_GETROUTE` with
//! `RTM_F_FIB_MATCH` does so too, but begins with the next hop that the packet in question would take. So Linux is
//! asked about packets until each next hop in use has been the first once.
//!
//! A dump also leaves out routes between the next hops of a group in the kernel's list (fib6_dump_node()). Examples are
//! a route without a gateway, or an unreachable one, with the same metric. Linux prefers the route whose device is the
//! ingress device of the packet (rt6_check_dev()). So it is asked about every device, including `lo`.
//!
//! A group stays with the kernel unless each next hop is known to be plain: without an MTU, an end, or unknown
//! attributes. Linux changes MTUs of next hops without a message when their devices change (rt6_mtu_change_route()).

use crate::{
    base::clock::monotonic,
    linux::netlink::{INET6, route, rtm, socket::Socket, wire},
};
use logic::{
    net::Prefix6,
    observe::{Next, NextHop, Route, RouteKind},
};
use std::{collections::BTreeSet, io, net::IpAddr};

/// The most questions of one reading, about ten microseconds each. Groups beyond that stay with the kernel. 10,000
/// groups of two take 0.43 s in a debug build (`ten_thousand_ipv6_routes_with_two_next_hops`).
const QUESTIONS: u32 = 1 << 17;
/// The number of addresses to try until one takes this route, and not one with a longer prefix.
const ADDRESSES: u32 = 8;
/// Questions for one group: this many for each share of the least weight, and at most [`MOST_DRAWS`].
const DRAWS_PER_SHARE: u32 = 16;
const MOST_DRAWS: u32 = 1024;
const RTM_F_FIB_MATCH: u32 = 0x2000;
const TABLES: std::ops::RangeInclusive<u32> = 254..=255;

/// Marks the groups whose next hops are not all known to be plain.
pub fn look_at(socket: &mut Socket, routes: &mut [Route<u128>]) {
    let mut left = QUESTIONS;
    let devices: BTreeSet<u32> =
        routes.iter().flat_map(|route| route.next.hops()).map(|hop| hop.ifindex).collect();
    for route in routes.iter_mut().filter(|route| is_open(route)) {
        let mut question = Question { socket, devices: &devices, left: &mut left };
        route.complex = question.find_out(route);
    }
}

/// Would the fast path take this group if all its next hops had the metrics of the first?
fn is_open(route: &Route<u128>) -> bool {
    TABLES.contains(&route.table)
        && route.kind == RouteKind::Unicast
        && matches!(route.next, Next::Many(_))
        && is_plain(route)
}

fn is_plain(route: &Route<u128>) -> bool {
    route.complex.is_none() && route.mtu.is_none() && route.expires.is_none()
}

struct Question<'a> {
    socket: &'a mut Socket,
    /// The devices of all routes.
    devices: &'a BTreeSet<u32>,
    left: &'a mut u32,
}

impl Question<'_> {
    /// Why the group stays with the kernel; `None`: all next hops in use are plain.
    fn find_out(&mut self, route: &Route<u128>) -> Option<&'static str> {
        const UNKNOWN: Option<&str> = Some("next hops with unknown metrics");
        let mut unseen: Vec<&NextHop> = route.next.hops().iter().filter(|hop| !hop.dead).collect();
        if unseen.is_empty() {
            return None;
        }
        let Some(address) = (0..ADDRESSES)
            .map(|n| address(route.prefix, n))
            .find(|address| self.ask(*address, None, 1).is_some_and(|answer| is_same(&answer, route)))
        else {
            return UNKNOWN;
        };
        let devices: BTreeSet<u32> = unseen.iter().map(|hop| hop.ifindex).collect();
        for other in self.devices.difference(&devices) {
            // With a source, Linux only prefers the device. Without one, it takes only routes by this device.
            if !self.ask(address, Some(*other), 1).is_some_and(|answer| is_same(&answer, route)) {
                return UNKNOWN;
            }
        }
        // With a device in the question, Linux nearly always begins with a next hop on it.
        let by_device = devices.into_iter().map(|device| (Some(device), 0));
        let by_source = (1..=draws(&unseen)).map(|source| (None, source));
        for (device, source) in by_device.chain(by_source) {
            if unseen.is_empty() {
                return None;
            }
            let Some(answer) = self.ask(address, device, source) else { continue };
            if !is_same(&answer, route) {
                return UNKNOWN;
            }
            if !is_plain(&answer) {
                return Some("a next hop with metrics of its own");
            }
            let first = &answer.next.hops()[0];
            unseen.retain(|hop| !same(hop, first));
        }
        if unseen.is_empty() { None } else { UNKNOWN }
    }

    /// Asks for the route of a packet. The answer begins with the next hop that the packet would take. `source` 0: the
    /// packet has no source address.
    fn ask(&mut self, to: u128, device: Option<u32>, source: u32) -> Option<Route<u128>> {
        *self.left = self.left.checked_sub(1)?;
        let mut header = [INET6, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header[8..].copy_from_slice(&RTM_F_FIB_MATCH.to_ne_bytes());
        if source > 0 {
            header[2] = 128;
        }
        let mut request = wire::Request::new(rtm::GETROUTE, wire::ACK, &header).with(1, &to.to_be_bytes());
        if source > 0 {
            request = request.with(2, &(0x2001_0db8_u128 << 96 | u128::from(source)).to_be_bytes());
        }
        if let Some(device) = device {
            request = request.with(4, &device.to_ne_bytes());
        }
        match self.socket.ask(request, |message| route::parse6(message, monotonic())) {
            Ok(answer) => answer,
            Err(error) => {
                if error.kind() == io::ErrorKind::TimedOut {
                    *self.left = 0;
                }
                None
            }
        }
    }
}

/// Is it the same route with the same next hops, in any order?
fn is_same(answer: &Route<u128>, route: &Route<u128>) -> bool {
    let (ours, theirs) = (route.next.hops(), answer.next.hops());
    let key = |route: &Route<u128>| (route.prefix, route.table, route.metric, route.kind, route.rest);
    key(answer) == key(route)
        && ours.len() == theirs.len()
        && ours.iter().all(|hop| theirs.iter().any(|other| same(hop, other)))
}

fn same(a: &NextHop, b: &NextHop) -> bool {
    let key = |hop: &NextHop| -> (u32, Option<IpAddr>) { (hop.ifindex, hop.gateway) };
    key(a) == key(b)
}

/// The number of packets to ask about, so that each next hop is likely to be taken by one.
fn draws(hops: &[&NextHop]) -> u32 {
    let weights = || hops.iter().map(|hop| u32::from(hop.weight.max(1)));
    let shares = weights().sum::<u32>().div_ceil(weights().min().unwrap_or(1));
    (shares * DRAWS_PER_SHARE).min(MOST_DRAWS)
}

/// Addresses of the prefix, spread over it. For a default route, unicast addresses (2000::/3).
fn address(prefix: Prefix6, n: u32) -> u128 {
    const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let (first, length) = (prefix.address(), prefix.length());
    let (first, length) = if length < 3 && first == 0 { (1 << 125, 3) } else { (first, length) };
    let host = u128::MAX.checked_shr(length.into()).unwrap_or(0);
    first | (SPREAD.wrapping_mul(u128::from(n) + 1) & host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lie_in_their_prefix_and_those_of_a_default_route_are_unicast() {
        for text in ["2001:db8::/32", "2001:db8:f1f0::/64", "2001:db8::7/128", "::/0", "::/1"] {
            let prefix: Prefix6 = text.parse().unwrap();
            for n in 0..ADDRESSES {
                let address = address(prefix, n);
                assert_eq!(Prefix6::new(address, prefix.length()).unwrap(), prefix, "{text} {n}");
                assert_eq!(address >> 125, 1, "{text} {n}");
            }
        }
        let distinct: BTreeSet<u128> = (0..ADDRESSES).map(|n| address("::/0".parse().unwrap(), n)).collect();
        assert_eq!(distinct.len(), ADDRESSES as usize);
    }

    #[test]
    fn rare_members_take_more_questions() {
        let hop = |weight| NextHop {
            ifindex: 1,
            gateway: None,
            weight,
            dead: false,
            linkdown: false,
            complex: false,
        };
        let (one, many) = (hop(1), hop(256));
        assert_eq!(draws(&[&one, &one]), 2 * DRAWS_PER_SHARE);
        assert_eq!(draws(&[&one, &many]), MOST_DRAWS);
        assert_eq!(draws(&[]), 0);
    }
}
