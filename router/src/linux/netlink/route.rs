//! `RTM_NEWROUTE`: one route, IPv4 or IPv6.
//!
//! Kernel source: `fib_dump_info` (`net/ipv4/fib_semantics.c`), `rt6_fill_node` (`net/ipv6/route.c`), `struct rtmsg`,
//! `struct rtnexthop`.

use super::{
    INET, INET6,
    attributes::{self, has},
    rtm, wire,
};
use logic::{
    net::{Address, Prefix},
    observe::{Change, Next, NextHop, Route, RouteKind},
};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    time::Duration,
};

pub(super) const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
pub(super) const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
pub(super) const RTA_METRICS: u16 = 8;
pub(super) const RTA_MULTIPATH: u16 = 9;
pub(super) const RTA_CACHEINFO: u16 = 12;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTA_PREF: u16 = 20;
const RTA_NH_ID: u16 = 30;
pub(super) const RTAX_LOCK: u16 = 1;
pub(super) const RTAX_MTU: u16 = 2;
const RTAX_FEATURES: u16 = 12;
/// `RTAX_FEATURE_ECN`, `_SACK`, `_TIMESTAMP`, `_TCP_USEC_TS`.
const FEATURES_OF_TCP: u32 = 1 | 2 | 4 | 16;
/// `rta_expires` of `struct rta_cacheinfo`, in hundredths of a second (`USER_HZ`).
const CACHEINFO_EXPIRES: usize = 8;

/// `RTNH_F_DEAD`.
pub const DEAD: u8 = 1;
/// `RTNH_F_LINKDOWN`.
pub const LINKDOWN: u8 = 16;
pub(super) const RTM_F_CLONED: u32 = 0x200;

const KNOWN_FLAGS: u64 = attributes::ROUTE_FLAG.known();
const IRRELEVANT: u64 = attributes::ROUTE.irrelevant();
const IRRELEVANT_METRICS: u64 = attributes::METRIC.irrelevant();
/// `RTNH_COMPARE_MASK`, and flags that follow from it. They describe the state of a route and do not identify it.
const STATE_FLAGS: u32 = 1 | 8 | 16 | 64 | 0x4000 | 0x8000 | 0x2000_0000;

pub(super) const HEADER: usize = 12;
const NEXTHOP_HEADER: usize = 8;

/// The number of routes that a message counts as: one for each started 256 bytes. A plain route has about 130 bytes,
/// and each further next hop adds 8 to 28. So a route with very many next hops counts as more than one.
pub fn weight(message: &wire::Message<'_>) -> usize {
    const BYTES: usize = 256;
    message.payload.len().div_ceil(BYTES).max(1)
}

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

/// The change that a message makes to the table.
pub fn change(message: wire::Message<'_>) -> Change {
    match message.kind {
        rtm::DELROUTE => Change::Delete,
        _ if message.flags & wire::REPLACE != 0 => Change::Replace,
        _ if message.flags & wire::APPEND != 0 => Change::Append,
        _ => Change::Add,
    }
}

/// Parses a route message, read at `now` (CLOCK_MONOTONIC). Returns `None` if it is malformed, of another family, or a
/// cached exception (`RTM_F_CLONED`).
pub fn parse(message: wire::Message<'_>, now: Duration) -> Option<Parsed> {
    match *message.payload.first()? {
        INET => parse4(message, now).map(Parsed::V4),
        INET6 => parse6(message, now).map(Parsed::V6),
        _ => None,
    }
}

/// Parses an IPv4 route message.
pub fn parse4(message: wire::Message<'_>, now: Duration) -> Option<Route<u32>> {
    is_route(message, INET).then(|| parse_route(message.payload, now, |d| wire::be32_at(d, 0))).flatten()
}

/// Parses an IPv6 route message.
pub fn parse6(message: wire::Message<'_>, now: Duration) -> Option<Route<u128>> {
    is_route(message, INET6)
        .then(|| parse_route(message.payload, now, |d| Some(u128::from_be_bytes(*d.first_chunk()?))))
        .flatten()
}

fn is_route(message: wire::Message<'_>, family: u8) -> bool {
    matches!(message.kind, rtm::NEWROUTE | rtm::DELROUTE)
        && message.payload.first() == Some(&family)
        && wire::u32_at(message.payload, 8).is_some_and(|flags| flags & RTM_F_CLONED == 0)
}

fn parse_route<A: Address + Default>(
    payload: &[u8],
    now: Duration,
    address: impl Fn(&[u8]) -> Option<A>,
) -> Option<Route<A>> {
    let (length, source_length, tos) = (payload[1], payload[2], payload[3]);
    let (protocol, scope, kind) = (payload[5], payload[6], route_kind(payload[7]));
    let flags = wire::u32_at(payload, 8)?;
    let mut destination = A::default();
    let mut table = u32::from(payload[4]);
    let (mut metric, mut object, mut several, mut expires) = (0, None, None, None);
    let (mut metrics, mut source) = (Metrics::default(), &[][..]);
    let mut complex = None;
    let mut hop = hop(flags as u8, 0);
    // Everything else that distinguishes two IPv4 routes (fib_find_info()). For IPv6 it is only the source (fib6_add()).
    let mut rest = DefaultHasher::new();
    (protocol, scope, flags & !STATE_FLAGS).hash(&mut rest);
    for (kind, value) in wire::attributes(&payload[HEADER..]) {
        match kind {
            RTA_DST => destination = address(value)?,
            RTA_SRC => source = value,
            RTA_PRIORITY => metric = wire::u32_at(value, 0)?,
            RTA_TABLE => table = wire::u32_at(value, 0)?,
            RTA_METRICS => metrics = Metrics::parse(value),
            RTA_NH_ID => object = wire::u32_at(value, 0),
            RTA_MULTIPATH => several = Some(parse_multipath(value, &mut rest)),
            RTA_CACHEINFO => expires = end(value, now),
            // ICMPV6_ROUTER_PREF_MEDIUM is 0. Other preferences decide between two equal routes (RFC 4191).
            RTA_PREF if value == [0] => (),
            RTA_PREF => complex = Some("router preference"),
            _ if attribute_of_hop(&mut hop, kind, value) || has(IRRELEVANT, kind) => (),
            _ => complex = Some("an unknown attribute"),
        }
        if kind == RTA_METRICS || has(IRRELEVANT, kind) {
            (kind, value).hash(&mut rest);
        }
    }
    complex = complex.or(metrics.complex).or(hop.complex.then_some("an unknown part of a next hop"));
    let for_sources = source_length != 0 || !source.is_empty();
    if A::BITS == 128 {
        rest = DefaultHasher::new();
        (source_length, source).hash(&mut rest);
    } else if for_sources {
        complex = Some("source prefix");
    }
    if !(0..32).all(|bit| flags >> bit & 1 == 0 || has(KNOWN_FLAGS, bit)) {
        complex = Some("an unknown flag");
    }
    let special = matches!(
        kind,
        RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Prohibit | RouteKind::Throw
    );
    let next = match (object, several) {
        // Linux reports the route of a blackhole object as a blackhole (fib_dump_info(), rt6_fill_node()).
        (Some(id), _) => Next::Object(id),
        _ if special => Next::None,
        (None, Some(hops)) if !hops.is_empty() => Next::Many(hops.into()),
        _ if hop.ifindex != 0 => Next::One(hop),
        _ => Next::None,
    };
    if next == Next::None && kind == RouteKind::Unicast {
        complex = Some("no usable next hop");
    }
    Some(Route {
        prefix: Prefix::new(destination, length)?,
        table,
        metric,
        tos,
        kind,
        next,
        mtu: metrics.mtu,
        for_sources,
        expires,
        rest: rest.finish(),
        complex,
    })
}

/// The time when a route ends; `None`: it does not end. A route whose end cannot be read ends at once.
pub(super) fn end(cacheinfo: &[u8], now: Duration) -> Option<Duration> {
    match wire::u32_at(cacheinfo, CACHEINFO_EXPIRES).map(|hundredths| hundredths as i32) {
        Some(0) => None,
        Some(hundredths) => Some(now + Duration::from_millis(10) * hundredths.max(0) as u32),
        None => Some(now),
    }
}

/// The parts of `RTA_METRICS` that matter.
#[derive(Default)]
struct Metrics {
    mtu: Option<u32>,
    complex: Option<&'static str>,
}

impl Metrics {
    fn parse(value: &[u8]) -> Metrics {
        let (mut metrics, mut locked) = (Metrics::default(), false);
        for (kind, value) in wire::attributes(value) {
            match (kind, wire::u32_at(value, 0)) {
                (RTAX_MTU, Some(mtu)) => metrics.mtu = Some(mtu).filter(|mtu| *mtu > 0),
                (RTAX_LOCK, Some(bits)) => locked = bits >> RTAX_MTU & 1 == 1,
                (RTAX_FEATURES, Some(bits)) if bits & !FEATURES_OF_TCP == 0 => (),
                _ if has(IRRELEVANT_METRICS, kind) => (),
                _ => metrics.complex = Some("an unknown metric"),
            }
        }
        if locked && metrics.mtu.is_none() {
            // ip_dst_mtu_maybe_forward(): 576 bytes through a gateway.
            metrics.complex = Some("a locked MTU without a value");
        }
        metrics
    }
}

/// A next hop without attributes.
fn hop(flags: u8, weight_less_one: u8) -> NextHop {
    let complex = (0..8).any(|bit| flags >> bit & 1 == 1 && !has(KNOWN_FLAGS, bit));
    let (dead, linkdown) = (flags & DEAD != 0, flags & LINKDOWN != 0);
    NextHop { ifindex: 0, gateway: None, weight: u16::from(weight_less_one) + 1, dead, linkdown, complex }
}

/// Stores an attribute of a next hop. Returns false if it is not one.
fn attribute_of_hop(hop: &mut NextHop, kind: u16, value: &[u8]) -> bool {
    let gateway = match kind {
        RTA_OIF => {
            hop.ifindex = wire::u32_at(value, 0).unwrap_or(0);
            return true;
        }
        RTA_GATEWAY => wire::address(value),
        // struct rtvia: the family as u16, then the address.
        RTA_VIA => value.get(2..).and_then(wire::address),
        _ => return false,
    };
    hop.complex |= gateway.is_none();
    // IPv6 reports a missing gateway as the unspecified address.
    hop.gateway = gateway.filter(|g: &IpAddr| !g.is_unspecified());
    true
}

pub(super) fn parse_multipath(mut bytes: &[u8], rest_of_route: &mut impl Hasher) -> Vec<NextHop> {
    let mut hops = Vec::new();
    while let (Some(length), Some(ifindex)) = (wire::u16_at(bytes, 0), wire::u32_at(bytes, 4)) {
        let Some(rest) = bytes.get(NEXTHOP_HEADER..usize::from(length)) else { break };
        let mut hop = NextHop { ifindex, ..hop(bytes[2], bytes[3]) };
        for (kind, value) in wire::attributes(rest) {
            if !attribute_of_hop(&mut hop, kind, value) {
                hop.complex |= !has(IRRELEVANT, kind);
                (kind, value).hash(rest_of_route);
            }
        }
        hops.push(hop);
        bytes = bytes.get(wire::align(length.into())..).unwrap_or_default();
    }
    hops
}

fn route_kind(number: u8) -> RouteKind {
    match number {
        rtm::UNICAST => RouteKind::Unicast,
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
    use super::{super::attributes::Class, *};
    use proptest::prelude::*;
    use wire::{Message, Request};

    fn header(family: u8, length: u8, kind: u8, flags: u32) -> [u8; 12] {
        let [a, b, c, d] = flags.to_ne_bytes();
        [family, length, 0, 0, 254, 0, 0, kind, a, b, c, d]
    }

    fn parsed(request: Request) -> Option<Parsed> {
        let mut request = request;
        wire::messages(request.bytes(1)).next().and_then(|m| parse(m, NOW))
    }

    const NOW: Duration = Duration::from_secs(1000);

    fn soup(number: u16, value: &[u8]) -> Option<Parsed> {
        let base = Request::new(rtm::NEWROUTE, 0, &header(INET6, 64, 1, 0)).with(RTA_OIF, &[5, 0, 0, 0]);
        parsed(base.with(number, value))
    }

    /// Are the two equal, except for `rest`, which only identifies a route?
    fn same(a: &Option<Parsed>, b: &Option<Parsed>) -> bool {
        let bare = |p: &Option<Parsed>| match p.clone() {
            Some(Parsed::V4(route)) => Some(Parsed::V4(Route { rest: 0, ..route })),
            Some(Parsed::V6(route)) => Some(Parsed::V6(Route { rest: 0, ..route })),
            None => None,
        };
        bare(a) == bare(b)
    }

    fn is_complex(parsed: &Option<Parsed>) -> bool {
        match parsed {
            Some(Parsed::V4(route)) => route.complex.is_some(),
            Some(Parsed::V6(route)) => route.complex.is_some(),
            None => false,
        }
    }

    #[test]
    fn every_attribute_does_what_its_class_says() {
        let plain = soup(24, &[]);
        assert!(plain.is_some() && !is_complex(&plain));
        for number in 0..=63 {
            for value in [vec![], vec![1], vec![0xfe; 4], vec![1, 0, 0, 0], vec![0x5a; 16], vec![7; 37]] {
                let got = soup(number, &value);
                match attributes::ROUTE.class(number) {
                    Some(Class::Irrelevant(_)) => assert!(same(&got, &plain), "{number} {value:?}: {got:?}"),
                    Some(Class::Heeded(_)) => {}
                    Some(Class::Kernel(_)) | None => {
                        assert!(is_complex(&got), "{number} {value:?}: {got:?}");
                    }
                }
            }
        }
        let heeded = |number: u16, value: &[u8]| !same(&soup(number, value), &plain);
        for (number, value) in [
            (RTA_DST, &[0x20; 16][..]),
            (RTA_SRC, &[0x20; 16]),
            (RTA_OIF, &[6, 0, 0, 0]),
            (RTA_GATEWAY, &[0x20; 16]),
            (RTA_PRIORITY, &[6, 0, 0, 0]),
            (RTA_METRICS, &[8, 0, 2, 0, 0xdc, 5, 0, 0]),
            (RTA_MULTIPATH, &[8, 0, 0, 0, 5, 0, 0, 0]),
            (RTA_CACHEINFO, &[1; 32]),
            (RTA_TABLE, &[6, 0, 0, 0]),
            (RTA_VIA, &[2, 0, 192, 0, 2, 1]),
            (RTA_PREF, &[1]),
            (RTA_NH_ID, &[6, 0, 0, 0]),
        ] {
            assert!(matches!(attributes::ROUTE.class(number), Some(Class::Heeded(_))), "{number}");
            assert!(heeded(number, value), "{number}");
        }
    }

    #[test]
    fn every_metric_does_what_its_class_says() {
        let metric = |number: u16, value: [u8; 4]| {
            let [low, high] = number.to_ne_bytes();
            soup(RTA_METRICS, &[8, 0, low, high, value[0], value[1], value[2], value[3]])
        };
        let plain = soup(RTA_METRICS, &[]);
        for number in 0..=63 {
            for value in [[0; 4], [1, 0, 0, 0], [0, 5, 0, 0], [0xff; 4]] {
                let got = metric(number, value);
                match attributes::METRIC.class(number) {
                    Some(Class::Irrelevant(_)) => assert!(same(&got, &plain), "{number} {value:?}: {got:?}"),
                    Some(Class::Heeded(_)) => {}
                    Some(Class::Kernel(_)) | None => assert!(is_complex(&got), "{number} {value:?}: {got:?}"),
                }
            }
        }
        assert!(!is_complex(&metric(RTAX_FEATURES, [1, 0, 0, 0])), "ECN");
        assert!(is_complex(&metric(RTAX_FEATURES, [8, 0, 0, 0])), "fragment everything");
        assert!(is_complex(&metric(RTAX_LOCK, [4, 0, 0, 0])), "mtu lock 0");
        for other in [2, 8] {
            assert!(!is_complex(&metric(RTAX_LOCK, [other, 0, 0, 0])), "a lock of another metric");
        }
        for (value, mtu) in [(0, None), (1, Some(1))] {
            let got = metric(RTAX_MTU, [value, 0, 0, 0]);
            assert!(matches!(got, Some(Parsed::V6(route)) if (route.mtu, route.complex) == (mtu, None)));
        }
        let both = [8, 0, 1, 0, 4, 0, 0, 0, 8, 0, 2, 0, 0x14, 5, 0, 0];
        assert!(
            matches!(soup(RTA_METRICS, &both), Some(Parsed::V6(r)) if (r.mtu, r.complex) == (Some(1300), None))
        );
    }

    #[test]
    fn every_flag_does_what_its_class_says() {
        let with = |flags: u32| {
            parsed(Request::new(rtm::NEWROUTE, 0, &header(INET, 8, 1, flags)).with(RTA_OIF, &[5, 0, 0, 0]))
        };
        for bit in 0..32 {
            let got = with(1 << bit);
            match attributes::ROUTE_FLAG.class(bit) {
                Some(Class::Irrelevant(_)) => assert!(same(&got, &with(0)), "{bit}: {got:?}"),
                Some(Class::Heeded(_)) => assert!(!same(&got, &with(0)), "{bit}"),
                Some(Class::Kernel(_)) | None => assert!(is_complex(&got), "{bit}: {got:?}"),
            }
        }
    }

    #[test]
    fn rest_distinguishes_ipv4_routes_by_what_no_other_field_holds() {
        let rest = |protocol: u8, scope: u8, flags: u32, attributes: &[(u16, &[u8])]| {
            let mut header = header(INET, 8, 1, flags);
            (header[5], header[6]) = (protocol, scope);
            let request = Request::new(rtm::NEWROUTE, 0, &header);
            match parsed(attributes.iter().fold(request, |r, (kind, value)| r.with(*kind, value))) {
                Some(Parsed::V4(route)) => route.rest,
                other => panic!("{other:?}"),
            }
        };
        let device: (u16, &[u8]) = (RTA_OIF, &[5, 0, 0, 0]);
        let plain = rest(4, 0, 0, &[device]);
        assert_eq!(
            rest(4, 0, 0x4000 | 16 | 1, &[device]),
            plain,
            "the state of a route does not identify it"
        );
        let place: [(u16, &[u8]); 4] =
            [(RTA_OIF, &[6, 0, 0, 0]), (RTA_PRIORITY, &[1; 4]), (RTA_GATEWAY, &[9; 4]), (RTA_TABLE, &[1; 4])];
        assert_eq!(rest(4, 0, 0, &place), plain, "other fields hold these");
        let hops = |realm: u8| [16, 0, 0, 0, 5, 0, 0, 0, 8, 0, 11, 0, realm, 0, 0, 0];
        let all = [
            plain,
            rest(3, 0, 0, &[device]),
            rest(4, 1, 0, &[device]),
            rest(4, 0, 4, &[device]),
            rest(4, 0, 0, &[device, (7, &[192, 0, 2, 1])]),
            rest(4, 0, 0, &[device, (7, &[192, 0, 2, 2])]),
            rest(4, 0, 0, &[device, (RTA_METRICS, &[8, 0, 8, 0, 1, 0, 0, 0])]),
            rest(4, 0, 0, &[device, (RTA_METRICS, &[8, 0, 8, 0, 2, 0, 0, 0])]),
            rest(4, 0, 0, &[(RTA_MULTIPATH, &hops(1))]),
            rest(4, 0, 0, &[(RTA_MULTIPATH, &hops(2))]),
        ];
        assert_eq!(std::collections::BTreeSet::from(all).len(), all.len());
    }

    #[test]
    fn rest_distinguishes_ipv6_routes_only_by_their_sources() {
        let rest = |protocol: u8, length: u8, source: u8| {
            let mut header = header(INET6, 64, 1, 0);
            (header[2], header[5]) = (length, protocol);
            let request = Request::new(rtm::NEWROUTE, 0, &header).with(RTA_OIF, &[5, 0, 0, 0]);
            let request = if length == 0 { request } else { request.with(RTA_SRC, &[source; 16]) };
            match parsed(request) {
                Some(Parsed::V6(route)) => {
                    assert_eq!((route.for_sources, route.complex), (length > 0, None));
                    route.rest
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(rest(4, 0, 0), rest(3, 0, 0));
        let all = [rest(4, 0, 0), rest(4, 64, 1), rest(4, 64, 2), rest(4, 65, 1)];
        assert_eq!(std::collections::BTreeSet::from(all).len(), all.len());
    }

    #[test]
    fn every_field_of_the_header_is_read() {
        let read = |kind, header: &[u8]| {
            let request = Request::new(kind, 0, header).with(RTA_DST, &[10, 1, 2, 0]);
            parsed(request.with(RTA_OIF, &[0, 1, 0, 0]))
        };
        let header = [INET, 24, 0, 8, 9, 3, 2, 1, 0, 0, 0, 0];
        let Some(Parsed::V4(route)) = read(rtm::NEWROUTE, &header) else { panic!("no route") };
        let hop =
            NextHop { ifindex: 256, gateway: None, weight: 1, dead: false, linkdown: false, complex: false };
        let expected = Route {
            prefix: Prefix::new(0x0a01_0200, 24).unwrap(),
            table: 9,
            metric: 0,
            tos: 8,
            kind: RouteKind::Unicast,
            next: Next::One(hop),
            mtu: None,
            for_sources: false,
            expires: None,
            rest: route.rest,
            complex: None,
        };
        assert_eq!(route, expected);
        assert_eq!(read(rtm::DELROUTE, &header), Some(Parsed::V4(route)));
        assert_eq!(read(rtm::GETROUTE, &header), None);
        let kinds: Vec<RouteKind> = (1..=12)
            .map(|kind| match read(rtm::NEWROUTE, &[INET, 24, 0, 0, 254, 0, 0, kind, 0, 0, 0, 0]) {
                Some(Parsed::V4(route)) => route.kind,
                other => panic!("{other:?}"),
            })
            .collect();
        use RouteKind::*;
        let named = [Unicast, Local, Broadcast, Anycast, Multicast, Blackhole, Unreachable, Prohibit, Throw];
        assert_eq!(kinds, [&named[..], &[Other(10), Other(11), Other(12)]].concat());
    }

    #[test]
    fn a_parser_reads_only_its_family_and_whole_headers() {
        let message = |payload| Message { kind: rtm::NEWROUTE, flags: 0, sequence: 0, payload };
        let (v4, v6) = (header(INET, 0, 1, 0), header(INET6, 0, 1, 0));
        for cut in 0..12 {
            assert_eq!(parse4(message(&v4[..cut]), NOW), None);
            assert_eq!(parse6(message(&v6[..cut]), NOW), None);
        }
        assert!(parse4(message(&v4), NOW).is_some() && parse6(message(&v6), NOW).is_some());
        assert!(parse4(message(&v6), NOW).is_none() && parse6(message(&v4), NOW).is_none());
    }

    #[test]
    fn a_message_adds_appends_replaces_or_deletes() {
        let read = |kind, flags| change(Message { kind, flags, sequence: 0, payload: &[] });
        assert_eq!(read(rtm::NEWROUTE, 0x600), Change::Add);
        assert_eq!(read(rtm::NEWROUTE, wire::APPEND), Change::Append);
        assert_eq!(read(rtm::NEWROUTE, wire::REPLACE), Change::Replace);
        assert_eq!(read(rtm::DELROUTE, wire::REPLACE), Change::Delete);
    }

    #[test]
    fn each_started_256_bytes_count_as_a_route() {
        let payload = [0; 513];
        let of = |bytes| weight(&Message { kind: 0, flags: 0, sequence: 0, payload: &payload[..bytes] });
        assert_eq!([0, 1, 256, 257, 512, 513].map(of), [1, 1, 1, 2, 2, 3]);
    }

    #[test]
    fn routes_that_cannot_be_followed_stay_with_the_kernel() {
        let read = |attributes: &[(u16, &[u8])]| {
            let request = Request::new(rtm::NEWROUTE, 0, &header(INET, 8, 1, 0));
            match parsed(attributes.iter().fold(request, |r, (kind, value)| r.with(*kind, value))) {
                Some(Parsed::V4(route)) => (route.next, route.complex),
                other => panic!("{other:?}"),
            }
        };
        let device: (u16, &[u8]) = (RTA_OIF, &[5, 0, 0, 0]);
        let hop =
            NextHop { ifindex: 5, gateway: None, weight: 1, dead: false, linkdown: false, complex: false };
        let one = |gateway: &[u8]| Next::One(NextHop { gateway: wire::address(gateway), ..hop.clone() });
        assert_eq!(read(&[device, (RTA_GATEWAY, &[0; 4])]), (one(&[]), None));
        assert_eq!(read(&[device, (RTA_VIA, &[10, 0, 9, 9, 9, 9])]), (one(&[9; 4]), None));
        assert_eq!(read(&[device, (RTA_PREF, &[0])]), (one(&[]), None));
        let odd = Next::One(NextHop { complex: true, ..hop.clone() });
        for malformed in [(RTA_GATEWAY, &[9; 5][..]), (RTA_VIA, &[10, 0, 9, 9, 9]), (RTA_VIA, &[])] {
            assert_eq!(
                read(&[device, malformed]),
                (odd.clone(), Some("an unknown part of a next hop")),
                "{malformed:?}"
            );
        }
        let nowhere: [&[(u16, &[u8])]; 4] =
            [&[], &[(RTA_OIF, &[0; 4])], &[(RTA_OIF, &[5])], &[(RTA_MULTIPATH, &[])]];
        for attributes in nowhere {
            assert_eq!(read(attributes), (Next::None, Some("no usable next hop")), "{attributes:?}");
        }
        assert_eq!(read(&[device, (RTA_SRC, &[9; 4])]).1, Some("source prefix"));
        assert_eq!(read(&[device, (RTA_PREF, &[1])]).1, Some("router preference"));
        for bit in 0..8 {
            let hop = [8, 0, 1 << bit, 0, 5, 0, 0, 0];
            let (Next::Many(hops), None) = read(&[(RTA_MULTIPATH, &hop)]) else { panic!("{bit}") };
            let known = [true, true, true, true, true, false, true, false][bit];
            assert_eq!((hops[0].dead, hops[0].linkdown, hops[0].complex), (bit == 0, bit == 4, !known));
        }
    }

    #[test]
    fn a_route_ends_at_the_time_that_the_kernel_reports() {
        let ends = |hundredths: i32| {
            let mut info = [0; 32];
            info[8..12].copy_from_slice(&hundredths.to_ne_bytes());
            match soup(RTA_CACHEINFO, &info) {
                Some(Parsed::V6(route)) => route.expires,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(ends(0), None);
        assert_eq!(ends(3050), Some(NOW + Duration::from_millis(30_500)));
        assert_eq!(ends(-5), Some(NOW), "it has ended, but still exists");
    }

    #[test]
    fn a_route_with_one_gateway_is_read() {
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
    fn next_hops_have_weights_and_encapsulation_makes_them_complex() {
        let mut hops = vec![16, 0, 1, 2, 5, 0, 0, 0, 8, 0, 5, 0, 192, 0, 2, 1];
        hops.extend([16, 0, 0, 255, 6, 0, 0, 0, 6, 0, 21, 0, 1, 0, 0, 0]);
        let got = parsed(Request::new(rtm::NEWROUTE, 0, &header(INET, 0, 1, 0)).with(RTA_MULTIPATH, &hops))
            .unwrap();
        let Parsed::V4(Route { next: Next::Many(hops), complex: None, .. }) = got else { panic!("{got:?}") };
        assert_eq!((hops[0].weight, hops[0].dead, hops[0].complex), (3, true, false));
        assert_eq!((hops[1].weight, hops[1].ifindex, hops[1].complex), (256, 6, true));
    }

    #[test]
    fn blackholes_cloned_and_source_routes_are_recognised() {
        let blackhole = Request::new(rtm::NEWROUTE, 0, &header(INET6, 0, 6, 0)).with(RTA_OIF, &[1, 0, 0, 0]);
        assert!(matches!(parsed(blackhole), Some(Parsed::V6(Route { next: Next::None, complex: None, .. }))));
        assert_eq!(parsed(Request::new(rtm::NEWROUTE, 0, &header(INET6, 0, 1, RTM_F_CLONED))), None);
        let mut sourced = header(INET6, 0, 1, 0);
        sourced[2] = 64;
        let sourced = Request::new(rtm::NEWROUTE, 0, &sourced).with(RTA_OIF, &[1, 0, 0, 0]);
        assert!(matches!(parsed(sourced), Some(Parsed::V6(Route { for_sources: true, complex: None, .. }))));
        assert_eq!(parsed(Request::new(rtm::NEWROUTE, 0, &header(INET, 33, 1, 0))), None);
    }

    #[test]
    fn a_route_with_a_nexthop_object_refers_to_it() {
        let request = Request::new(rtm::NEWROUTE, wire::REPLACE, &header(INET, 8, 1, 0))
            .with(RTA_NH_ID, &9u32.to_ne_bytes())
            .with(RTA_OIF, &5u32.to_ne_bytes());
        assert!(matches!(parsed(request), Some(Parsed::V4(Route { next: Next::Object(9), .. }))));
        let blackhole = Request::new(rtm::NEWROUTE, wire::REPLACE, &header(INET, 8, 6, 0))
            .with(RTA_NH_ID, &9u32.to_ne_bytes());
        let Some(Parsed::V4(route)) = parsed(blackhole) else { panic!("no route") };
        assert_eq!((route.kind, route.next, route.complex), (RouteKind::Blackhole, Next::Object(9), None));
    }

    proptest! {
        #[test]
        fn never_panics(
            v6 in any::<bool>(),
            head in prop::array::uniform11(any::<u8>()),
            parts in prop::collection::vec((0u16..64, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
            cut in 0usize..300,
        ) {
            let mut fixed = vec![if v6 { INET6 } else { INET }];
            fixed.extend(head);
            let mut request = parts.iter().fold(Request::new(rtm::NEWROUTE, 0, &fixed), |r, (k, v)| r.with(*k, v));
            let bytes = &request.bytes(1)[16..];
            let payload = &bytes[..cut.min(bytes.len())];
            let _ = parse(Message { kind: rtm::NEWROUTE, flags: 0, sequence: 0, payload }, NOW);
        }
    }
}
