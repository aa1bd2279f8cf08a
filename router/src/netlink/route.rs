//! `RTM_NEWROUTE`: one route, IPv4 or IPv6.
//!
//! Kernel source: `fib_dump_info` (`net/ipv4/fib_semantics.c`), `rt6_fill_node` (`net/ipv6/route.c`), `struct rtmsg`,
//! `struct rtnexthop`.

use super::{INET, INET6, rtm, wire};
use logic::{
    net::{Address, Prefix},
    observe::{Change, Next, NextHop, Route, RouteKind},
};
use std::net::IpAddr;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTA_NEWDST: u16 = 19;
const RTA_PREF: u16 = 20;
const RTA_ENCAP_TYPE: u16 = 21;
const RTA_ENCAP: u16 = 22;
const RTA_NH_ID: u16 = 30;
const RTAX_MTU: u16 = 2;

/// `RTNH_F_DEAD`.
pub const DEAD: u8 = 1;
/// `RTNH_F_LINKDOWN`.
pub const LINKDOWN: u8 = 16;
const RTM_F_CLONED: u32 = 0x200;

const HEADER: usize = 12;
const NEXTHOP_HEADER: usize = 8;

/// A route of either family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    V4(Route<u32>),
    V6(Route<u128>),
}

/// A dump of all tables of a family.
pub fn dump(family: u8) -> wire::Request {
    let mut header = [0; HEADER];
    header[0] = family;
    wire::Request::new(rtm::GETROUTE, wire::DUMP, &header)
}

/// What an event does to the table.
pub fn change(message: wire::Message<'_>) -> Change {
    match message.kind {
        rtm::DELROUTE => Change::Delete,
        _ if message.flags & wire::REPLACE != 0 => Change::Replace,
        _ if message.flags & wire::APPEND != 0 => Change::Append,
        _ => Change::Add,
    }
}

/// A route message; `None`: malformed, another family, or a cached exception (`RTM_F_CLONED`).
pub fn parse(message: wire::Message<'_>) -> Option<Parsed> {
    match *message.payload.first()? {
        INET => parse4(message).map(Parsed::V4),
        INET6 => parse6(message).map(Parsed::V6),
        _ => None,
    }
}

/// An IPv4 route message.
pub fn parse4(message: wire::Message<'_>) -> Option<Route<u32>> {
    is_route(message, INET).then(|| parse_route(message.payload, |d| wire::be32_at(d, 0))).flatten()
}

/// An IPv6 route message.
pub fn parse6(message: wire::Message<'_>) -> Option<Route<u128>> {
    is_route(message, INET6)
        .then(|| parse_route(message.payload, |d| Some(u128::from_be_bytes(*d.first_chunk()?))))
        .flatten()
}

fn is_route(message: wire::Message<'_>, family: u8) -> bool {
    matches!(message.kind, rtm::NEWROUTE | rtm::DELROUTE)
        && message.payload.len() >= HEADER
        && message.payload[0] == family
        && wire::u32_at(message.payload, 8).is_some_and(|flags| flags & RTM_F_CLONED == 0)
}

fn parse_route<A: Address + Default>(
    payload: &[u8],
    address: impl Fn(&[u8]) -> Option<A>,
) -> Option<Route<A>> {
    let (length, source_length, tos, kind) = (payload[1], payload[2], payload[3], route_kind(payload[7]));
    let flags = wire::u32_at(payload, 8)?;
    let mut destination = A::default();
    let mut table = u32::from(payload[4]);
    let (mut metric, mut mtu, mut object, mut several) = (0, None, None, None);
    let mut complex = (source_length != 0).then_some("source prefix");
    let mut hop = Hop::new(flags as u8, 0);
    for (kind, value) in wire::attributes(&payload[HEADER..]) {
        match kind {
            RTA_DST => destination = address(value)?,
            RTA_PRIORITY => metric = wire::u32_at(value, 0)?,
            RTA_TABLE => table = wire::u32_at(value, 0)?,
            RTA_METRICS => mtu = wire::attribute(value, RTAX_MTU).and_then(|m| wire::u32_at(m, 0)),
            RTA_NH_ID => object = wire::u32_at(value, 0),
            RTA_MULTIPATH => several = Some(parse_multipath(value)),
            // ICMPV6_ROUTER_PREF_MEDIUM is 0; other preferences change which of two equal routes is taken (RFC 4191).
            RTA_PREF if value.first().is_some_and(|p| *p != 0) => complex = Some("router preference"),
            _ => hop.attribute(kind, value),
        }
    }
    if hop.encapsulates {
        complex = Some("encapsulation");
    }
    let special = matches!(
        kind,
        RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Prohibit | RouteKind::Throw
    );
    let next = match (object, several) {
        _ if special => Next::None,
        (Some(id), _) => Next::Object(id),
        (None, Some(hops)) if !hops.is_empty() => Next::Many(hops.into()),
        _ if hop.inner.ifindex != 0 => Next::One(hop.inner),
        _ => Next::None,
    };
    if next == Next::None && kind == RouteKind::Unicast {
        complex = Some("no next hop that is understood");
    }
    Some(Route { prefix: Prefix::new(destination, length)?, table, metric, tos, kind, next, mtu, complex })
}

/// A next hop while its attributes are read.
struct Hop {
    inner: NextHop,
    encapsulates: bool,
}

impl Hop {
    fn new(flags: u8, weight_less_one: u8) -> Hop {
        let (dead, linkdown) = (flags & DEAD != 0, flags & LINKDOWN != 0);
        let weight = u16::from(weight_less_one) + 1;
        let inner = NextHop { ifindex: 0, gateway: None, weight, dead, linkdown, complex: false };
        Hop { inner, encapsulates: false }
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        match kind {
            RTA_OIF => self.inner.ifindex = wire::u32_at(value, 0).unwrap_or(0),
            RTA_GATEWAY => self.gateway(wire::address(value)),
            // struct rtvia: the family as u16, then the address.
            RTA_VIA => self.gateway(value.get(2..).and_then(wire::address)),
            RTA_ENCAP | RTA_ENCAP_TYPE | RTA_NEWDST => {
                self.encapsulates = true;
                self.inner.complex = true;
            }
            _ => (),
        }
    }

    fn gateway(&mut self, gateway: Option<IpAddr>) {
        self.inner.complex |= gateway.is_none();
        // IPv6 reports an unspecified gateway for none.
        self.inner.gateway = gateway.filter(|g| !g.is_unspecified());
    }
}

fn parse_multipath(mut bytes: &[u8]) -> Vec<NextHop> {
    let mut hops = Vec::new();
    while let (Some(length), Some(ifindex)) = (wire::u16_at(bytes, 0), wire::u32_at(bytes, 4)) {
        let Some(rest) = bytes.get(NEXTHOP_HEADER..usize::from(length)) else { break };
        let mut hop = Hop::new(bytes[2], bytes[3]);
        hop.inner.ifindex = ifindex;
        for (kind, value) in wire::attributes(rest) {
            hop.attribute(kind, value);
        }
        hops.push(hop.inner);
        bytes = bytes.get(wire::align(length.into())..).unwrap_or_default();
    }
    hops
}

fn route_kind(number: u8) -> RouteKind {
    match number {
        1 => RouteKind::Unicast,
        2 => RouteKind::Local,
        3 => RouteKind::Broadcast,
        4 => RouteKind::Anycast,
        5 => RouteKind::Multicast,
        6 => RouteKind::Blackhole,
        7 => RouteKind::Unreachable,
        8 => RouteKind::Prohibit,
        9 => RouteKind::Throw,
        other => RouteKind::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::{Message, Request};

    fn header(family: u8, length: u8, kind: u8, flags: u32) -> [u8; 12] {
        let [a, b, c, d] = flags.to_ne_bytes();
        [family, length, 0, 0, 254, 0, 0, kind, a, b, c, d]
    }

    fn parsed(request: Request) -> Option<Parsed> {
        let mut request = request;
        wire::messages(request.bytes(1)).next().and_then(parse)
    }

    #[test]
    fn one_gateway() {
        let got = parsed(
            Request::new(rtm::NEWROUTE, 0, &header(INET, 24, 1, 16))
                .with(RTA_DST, &[10, 1, 2, 0])
                .with(RTA_OIF, &5u32.to_ne_bytes())
                .with(RTA_GATEWAY, &[192, 0, 2, 1])
                .with(RTA_PRIORITY, &7u32.to_ne_bytes())
                .with(RTA_TABLE, &1000u32.to_ne_bytes())
                .with(RTA_METRICS, &[8, 0, 2, 0, 0xdc, 5, 0, 0]),
        );
        let Some(Parsed::V4(route)) = got else { panic!("{got:?}") };
        assert_eq!(route.prefix.to_string(), "10.1.2.0/24");
        assert_eq!((route.table, route.metric, route.mtu), (1000, 7, Some(1500)));
        assert_eq!(
            route.next,
            Next::One(NextHop {
                ifindex: 5,
                gateway: Some([192, 0, 2, 1].into()),
                weight: 1,
                dead: false,
                linkdown: true,
                complex: false
            })
        );
    }

    #[test]
    fn several_hops_with_weights_and_encapsulation() {
        let mut hops = vec![16, 0, 1, 2, 5, 0, 0, 0, 8, 0, 5, 0, 192, 0, 2, 1];
        hops.extend([16, 0, 0, 255, 6, 0, 0, 0, 6, 0, 21, 0, 1, 0, 0, 0]);
        let got = parsed(Request::new(rtm::NEWROUTE, 0, &header(INET, 0, 1, 0)).with(RTA_MULTIPATH, &hops))
            .unwrap();
        let Parsed::V4(Route { next: Next::Many(hops), complex: None, .. }) = got else { panic!("{got:?}") };
        assert_eq!((hops[0].weight, hops[0].dead, hops[0].complex), (3, true, false));
        assert_eq!((hops[1].weight, hops[1].ifindex, hops[1].complex), (256, 6, true));
    }

    #[test]
    fn special_cloned_and_sourced() {
        let blackhole = Request::new(rtm::NEWROUTE, 0, &header(INET6, 0, 6, 0)).with(RTA_OIF, &[1, 0, 0, 0]);
        assert!(matches!(parsed(blackhole), Some(Parsed::V6(Route { next: Next::None, complex: None, .. }))));
        assert_eq!(parsed(Request::new(rtm::NEWROUTE, 0, &header(INET6, 0, 1, RTM_F_CLONED))), None);
        let mut sourced = header(INET6, 0, 1, 0);
        sourced[2] = 64;
        let sourced = Request::new(rtm::NEWROUTE, 0, &sourced).with(RTA_OIF, &[1, 0, 0, 0]);
        assert!(matches!(parsed(sourced), Some(Parsed::V6(Route { complex: Some("source prefix"), .. }))));
        assert_eq!(parsed(Request::new(rtm::NEWROUTE, 0, &header(INET, 33, 1, 0))), None);
    }

    #[test]
    fn a_route_of_an_object_leads_to_it() {
        let request = Request::new(rtm::NEWROUTE, wire::REPLACE, &header(INET, 8, 1, 0))
            .with(RTA_NH_ID, &9u32.to_ne_bytes())
            .with(RTA_OIF, &5u32.to_ne_bytes());
        assert!(matches!(parsed(request), Some(Parsed::V4(Route { next: Next::Object(9), .. }))));
    }

    proptest! {
        #[test]
        fn never_panics(
            v6 in any::<bool>(),
            head in prop::array::uniform11(any::<u8>()),
            parts in prop::collection::vec((0u16..32, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
            cut in 0usize..300,
        ) {
            let mut fixed = vec![if v6 { INET6 } else { INET }];
            fixed.extend(head);
            let mut request = parts.iter().fold(Request::new(rtm::NEWROUTE, 0, &fixed), |r, (k, v)| r.with(*k, v));
            let bytes = &request.bytes(1)[16..];
            let payload = &bytes[..cut.min(bytes.len())];
            let _ = parse(Message { kind: rtm::NEWROUTE, flags: 0, sequence: 0, payload });
        }
    }
}
