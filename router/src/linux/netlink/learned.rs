//! `RTM_GETROUTE` for routes that Linux has learned from ICMP errors, each to one destination.
//!
//! Kernel source: `rt_fill_info`, `fnhe_dump_bucket` (`net/ipv4/route.c`), `ip_dst_mtu_maybe_forward` (`include/net/ip.h`);
//! `rt6_fill_node`, `rt6_nh_dump_exceptions` (`net/ipv6/route.c`).

use super::{
    INET, INET6,
    route::{
        HEADER, RTA_CACHEINFO, RTA_DST, RTA_METRICS, RTA_MULTIPATH, RTA_OIF, RTAX_LOCK, RTAX_MTU,
        RTM_F_CLONED, end, parse_multipath,
    },
    rtm, wire,
};
use std::{
    collections::BTreeSet,
    hash::DefaultHasher,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

/// `RTCF_REDIRECTED` of `include/uapi/linux/in_route.h`: the gateway comes from an ICMP redirect.
const REDIRECTED: u32 = 0x4_0000;

/// Of `include/uapi/linux/rtnetlink.h`: requests the whole route, not only the next hop that Linux chooses.
const RTM_F_FIB_MATCH: u32 = 0x2000;

/// The offset of `rtm_type`.
const KIND: usize = 7;

/// Longer than the time for which any answer is trusted.
const ENDLESS: Duration = Duration::from_secs(3600);

/// A learned route to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedRoute {
    pub destination: IpAddr,
    /// Until then (CLOCK_MONOTONIC), forwarded packets follow the learned route. IPv4 follows only locked MTUs and
    /// other gateways, IPv6 everything. `None`: packets follow the normal routes.
    pub binds_until: Option<Duration>,
}

/// A request for the route to one IPv4 destination, by any device or by `device`.
pub fn to(destination: Ipv4Addr, device: Option<u32>) -> wire::Request {
    let request = ask(destination, 0);
    match device {
        Some(device) => request.with(RTA_OIF, &device.to_ne_bytes()),
        None => request,
    }
}

/// A request for the whole route to an IPv4 destination. [`devices`] parses the answer.
pub fn route_to(destination: Ipv4Addr) -> wire::Request {
    ask(destination, RTM_F_FIB_MATCH)
}

fn ask(destination: Ipv4Addr, flags: u32) -> wire::Request {
    let mut header = [0; HEADER];
    (header[0], header[1]) = (INET, 32);
    header[8..].copy_from_slice(&flags.to_ne_bytes());
    wire::Request::new(rtm::GETROUTE, wire::ACK, &header).with(RTA_DST, &destination.octets())
}

/// The devices of the next hops of a multipath route; `None`: it is not a multipath route.
pub fn devices(message: wire::Message<'_>) -> Option<BTreeSet<u32>> {
    if message.kind != rtm::NEWROUTE {
        return None;
    }
    let members = wire::attribute(message.payload.get(HEADER..)?, RTA_MULTIPATH)?;
    let hops = parse_multipath(members, &mut DefaultHasher::new());
    Some(hops.into_iter().map(|hop| hop.ifindex).collect())
}

/// A dump of all learned routes. For IPv4, the kernel lists only those that were used since they were learned.
pub fn dump(family: u8) -> wire::Request {
    let mut header = [0; HEADER];
    header[0] = family;
    header[8..].copy_from_slice(&RTM_F_CLONED.to_ne_bytes());
    wire::Request::new(rtm::GETROUTE, wire::DUMP, &header)
}

/// Parses an answer to [`to`] or [`dump`], read at `now`.
pub fn parse(message: wire::Message<'_>, now: Duration) -> Option<LearnedRoute> {
    let payload = message.payload;
    let flags = wire::u32_at(payload, 8)?;
    // Packets for an address of this machine are not forwarded, and the route to it must stay local.
    let is_unicast = *payload.get(KIND)? == rtm::UNICAST;
    let is_one = matches!(payload[..2], [INET, 32] | [INET6, 128]) && flags & RTM_F_CLONED != 0 && is_unicast;
    let v6 = payload[0] == INET6;
    let (mut destination, mut binds, mut until) = (None, v6 || flags & REDIRECTED != 0, None);
    for (kind, value) in wire::attributes_after(payload, HEADER) {
        match kind {
            RTA_DST => destination = wire::address(value),
            RTA_METRICS => {
                let lock = wire::attribute(value, RTAX_LOCK).and_then(|lock| wire::u32_at(lock, 0));
                binds |= lock.is_some_and(|bits| bits >> RTAX_MTU & 1 == 1);
            }
            RTA_CACHEINFO => until = end(value, now),
            _ => (),
        }
    }
    let destination =
        destination.filter(|to| is_one && message.kind == rtm::NEWROUTE && to.is_ipv6() == v6)?;
    // Learned routes of IPv4 have an end. Learned gateways of IPv6 have none.
    let until = until.or(v6.then_some(now + ENDLESS));
    Some(LearnedRoute { destination, binds_until: until.filter(|_| binds) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::{Message, Request};

    const NOW: Duration = Duration::from_secs(1000);

    #[test]
    fn each_device_of_a_multipath_route_is_returned_once() {
        let hop = |device: u8| [8, 0, 0, 0, device, 0, 0, 0];
        let devices_of = |request: Request| {
            let mut request = request;
            wire::messages(request.bytes(1)).next().and_then(devices)
        };
        let route = |flags| Request::new(rtm::NEWROUTE, 0, &[INET, 16, 0, 0, 254, 0, 0, 1, 0, flags, 0, 0]);
        let hops = [hop(5), hop(7), hop(5)].concat();
        assert_eq!(devices_of(route(0).with(RTA_MULTIPATH, &hops)), Some([5, 7].into()));
        assert_eq!(devices_of(route(0).with(RTA_OIF, &[5, 0, 0, 0])), None, "one next hop");
        assert_eq!(devices_of(route(0).with(RTA_MULTIPATH, &[4, 0, 0, 0, 5, 0, 0, 0])), Some([].into()));
        let ended = Request::new(rtm::DELROUTE, 0, &[0; HEADER]).with(RTA_MULTIPATH, &hops);
        assert_eq!(devices_of(ended), None);
    }

    #[test]
    fn a_learned_route_binds_if_it_ends_and_is_locked_or_redirected_or_ipv6() {
        let destination = IpAddr::from([10, 9, 0, 1]);
        let learned = |flags: u32, lock: u32, hundredths: u32| {
            let metrics = [[8, 0, 1, 0], lock.to_ne_bytes(), [8, 0, 2, 0], 552_u32.to_ne_bytes()].concat();
            let mut header = [INET, 32, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
            header[8..].copy_from_slice(&flags.to_ne_bytes());
            let mut cacheinfo = [0; 32];
            cacheinfo[8..12].copy_from_slice(&hundredths.to_ne_bytes());
            let mut message = Request::new(rtm::NEWROUTE, 0, &header)
                .with(RTA_DST, &[10, 9, 0, 1])
                .with(RTA_METRICS, &metrics)
                .with(RTA_CACHEINFO, &cacheinfo);
            wire::messages(message.bytes(1)).next().and_then(|m| parse(m, NOW))
        };
        let binds = |binds_until| Some(LearnedRoute { destination, binds_until });
        let end = Some(NOW + Duration::from_secs(600));
        assert_eq!(learned(RTM_F_CLONED, 1 << 2, 60_000), binds(end), "a locked MTU");
        assert_eq!(learned(RTM_F_CLONED | REDIRECTED, 0, 60_000), binds(end), "a gateway");
        for other in [1 << 1, 1 << 3] {
            assert_eq!(learned(RTM_F_CLONED, other, 60_000), binds(None), "an MTU that is not locked");
        }
        assert_eq!(learned(RTM_F_CLONED, 1 << 2, 0), binds(None), "the route's own MTU");
        assert_eq!(learned(0, 1 << 2, 60_000), None, "a route");
        let mut local = Request::new(rtm::NEWROUTE, 0, &[INET, 32, 0, 0, 255, 0, 0, 2, 0, 2, 0, 0])
            .with(RTA_DST, &[10, 9, 0, 1]);
        let local = wire::messages(local.bytes(1)).next().and_then(|m| parse(m, NOW));
        assert_eq!(local, None, "an address of this machine");

        let six = |flags: u32, cacheinfo: &[u8]| {
            let mut header = [INET6, 128, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
            header[8..].copy_from_slice(&flags.to_ne_bytes());
            let message = Request::new(rtm::NEWROUTE, 0, &header).with(RTA_DST, &[0xfd; 16]);
            let mut message = message.with(RTA_CACHEINFO, cacheinfo);
            wire::messages(message.bytes(1)).next().and_then(|m| parse(m, NOW))
        };
        let binds = |end| Some(LearnedRoute { destination: [0xfd; 16].into(), binds_until: Some(end) });
        let mut cacheinfo = [0; 32];
        assert_eq!(six(RTM_F_CLONED, &cacheinfo), binds(NOW + ENDLESS), "a gateway");
        cacheinfo[8..12].copy_from_slice(&60_000_u32.to_ne_bytes());
        assert_eq!(six(RTM_F_CLONED, &cacheinfo), binds(NOW + Duration::from_secs(600)), "an MTU");
        assert_eq!(six(0, &cacheinfo), None, "a route");
    }

    #[test]
    fn only_an_answer_about_one_destination_of_its_family_is_a_learned_route() {
        let read = |kind, family, length, destination: &[u8]| {
            let header = [family, length, 0, 0, 254, 0, 0, 1, 0, 2, 0, 0];
            let mut message = Request::new(kind, 0, &header).with(RTA_DST, destination);
            wire::messages(message.bytes(1)).next().and_then(|m| parse(m, NOW)).is_some()
        };
        assert!(read(rtm::NEWROUTE, INET, 32, &[9; 4]) && read(rtm::NEWROUTE, INET6, 128, &[9; 16]));
        assert!(!read(rtm::DELROUTE, INET, 32, &[9; 4]));
        assert!(!read(rtm::NEWROUTE, INET, 31, &[9; 4]) && !read(rtm::NEWROUTE, INET6, 127, &[9; 16]));
        assert!(!read(rtm::NEWROUTE, INET, 32, &[9; 16]) && !read(rtm::NEWROUTE, INET6, 128, &[9; 4]));
    }

    proptest! {
        #[test]
        fn never_panics(kind in 20u16..30, payload in prop::collection::vec(any::<u8>(), 0..200)) {
            let message = Message { kind, flags: 0, sequence: 0, payload: &payload };
            let _ = (parse(message, NOW), devices(message));
        }
    }
}
