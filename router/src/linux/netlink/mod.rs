//! Netlink: framing, sockets, and one file for each message that is read.
//!
//! | file | holds |
//! |---|---|
//! | [`wire`] | framing: messages, attributes, requests |
//! | [`socket`] | sockets: dumps, requests, subscriptions |
//! | [`attributes`] | the meaning of every attribute and flag for Millrace |
//! | [`link`] | `RTM_NEWLINK`: devices and their settings; `RTM_NEWADDR` |
//! | [`netconf`] | `RTM_NEWNETCONF`: changes of settings |
//! | [`route`] | `RTM_NEWROUTE` |
//! | [`learned`] | `RTM_GETROUTE`: routes that Linux has learned, each to one destination |
//! | [`nexthop`] | `RTM_NEWNEXTHOP` |
//! | [`neighbour`] | `RTM_NEWNEIGH`, and requests to probe a neighbour |
//! | [`nsid`] | `RTM_GETNSID`: the number by which one namespace knows another |
//! | [`netdev`] | queues, NAPI instances and XDP features of devices (generic netlink) |
//!
//! The parsers are written by hand. netlink-packet-route has no nexthop objects and no netconf. It rejects a whole
//! message if a newer kernel has changed the length of one attribute. It also allocates memory for each attribute,
//! which is slow with a million routes. The parsers here take what they need, ignore the rest, and never panic.

pub mod attributes;
pub mod learned;
pub mod link;
pub mod neighbour;
pub mod netconf;
pub mod netdev;
pub mod nexthop;
pub mod nsid;
pub mod route;
pub mod socket;
pub mod wire;

/// `RTM_*` (`include/uapi/linux/rtnetlink.h`).
pub mod rtm {
    /// `RTN_UNICAST`, a type of routes and neighbours: packets are sent to a gateway or a neighbour.
    pub const UNICAST: u8 = 1;

    pub const NEWLINK: u16 = 16;
    pub const DELLINK: u16 = 17;
    pub const GETLINK: u16 = 18;
    pub const NEWADDR: u16 = 20;
    pub const DELADDR: u16 = 21;
    pub const GETADDR: u16 = 22;
    pub const NEWROUTE: u16 = 24;
    pub const DELROUTE: u16 = 25;
    pub const GETROUTE: u16 = 26;
    pub const NEWNEIGH: u16 = 28;
    pub const DELNEIGH: u16 = 29;
    pub const GETNEIGH: u16 = 30;
    pub const NEWRULE: u16 = 32;
    pub const DELRULE: u16 = 33;
    pub const GETRULE: u16 = 34;
    pub const NEWQDISC: u16 = 36;
    pub const GETQDISC: u16 = 38;
    pub const DELTCLASS: u16 = 41;
    pub const NEWTFILTER: u16 = 44;
    pub const GETTFILTER: u16 = 46;
    pub const DELCHAIN: u16 = 101;
    pub const NEWNETCONF: u16 = 80;
    pub const NEWNSID: u16 = 88;
    pub const DELNSID: u16 = 89;
    pub const GETNSID: u16 = 90;
    pub const NEWNEXTHOP: u16 = 104;
    pub const DELNEXTHOP: u16 = 105;
    pub const GETNEXTHOP: u16 = 106;
}

/// `RTNLGRP_*` that the observer listens to.
pub const GROUPS: &[u32] = &[
    1,  // LINK
    3,  // NEIGH
    4,  // TC
    5,  // IPV4_IFADDR
    7,  // IPV4_ROUTE
    8,  // IPV4_RULE
    11, // IPV6_ROUTE
    12, // IPV6_IFINFO
    19, // IPV6_RULE
    24, // IPV4_NETCONF
    25, // IPV6_NETCONF
    28, // NSID
    32, // NEXTHOP
];

/// `AF_INET` as a family byte.
pub const INET: u8 = libc::AF_INET as u8;
/// `AF_INET6` as a family byte.
pub const INET6: u8 = libc::AF_INET6 as u8;

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Request;

    /// The header of a request with this type and these flags, under number 9, and the rest of its bytes.
    fn bytes(kind: u16, flags: u16, rest: &[&[u8]]) -> Vec<u8> {
        let rest = rest.concat();
        let (length, flags) = (16 + rest.len() as u32, flags | wire::REQUEST);
        let (length, kind, flags) = (length.to_ne_bytes(), kind.to_ne_bytes(), flags.to_ne_bytes());
        [&length[..], &kind, &flags, &[9, 0, 0, 0], &[0; 4], &rest].concat()
    }

    #[test]
    fn requests_have_the_bytes_that_linux_reads() {
        let (to4, to6) = ([192, 0, 2, 1], [0xfd; 16]);
        let device = 0x0102_0304_u32;
        let index = device.to_ne_bytes();
        let filter: &[u8] = &[8, 0, 29, 0, 8, 0, 0, 0];
        let (dst4, dst6): (&[u8], &[u8]) = (&[8, 0, 1, 0, 192, 0, 2, 1], &[20, 0, 1, 0]);
        let unicast: &[u8] = &[INET, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let table: [(Request, Vec<u8>); 13] = [
            (link::dump(), bytes(rtm::GETLINK, wire::DUMP, &[&[0; 16], filter])),
            (link::get(device), bytes(rtm::GETLINK, wire::ACK, &[&[0; 4], &index, &[0; 8], filter])),
            (link::dump_addresses(INET), bytes(rtm::GETADDR, wire::DUMP, &[&[INET], &[0; 7]])),
            (neighbour::dump(INET6), bytes(rtm::GETNEIGH, wire::DUMP, &[&[INET6], &[0; 11]])),
            (
                neighbour::touch(device, to4.into()),
                bytes(rtm::NEWNEIGH, wire::ACK, &[&[INET, 0, 0, 0], &index, &[0, 0, 1, 0], dst4]),
            ),
            (
                neighbour::touch(device, to6.into()),
                bytes(rtm::NEWNEIGH, wire::ACK, &[&[INET6, 0, 0, 0], &index, &[0, 0, 1, 0], dst6, &to6]),
            ),
            (nexthop::dump(), bytes(rtm::GETNEXTHOP, wire::DUMP, &[&[0; 8]])),
            (route::dump(INET), bytes(rtm::GETROUTE, wire::DUMP, &[&[INET], &[0; 11]])),
            (
                learned::dump(INET6),
                bytes(rtm::GETROUTE, wire::DUMP, &[&[INET6], &[0; 7], &0x200_u32.to_ne_bytes()]),
            ),
            (learned::to(to4.into(), None), bytes(rtm::GETROUTE, wire::ACK, &[unicast, dst4])),
            (
                learned::to(to4.into(), Some(device)),
                bytes(rtm::GETROUTE, wire::ACK, &[unicast, dst4, &[8, 0, 4, 0], &index]),
            ),
            (
                learned::route_to(to4.into()),
                bytes(rtm::GETROUTE, wire::ACK, &[&unicast[..8], &0x2000_u32.to_ne_bytes(), dst4]),
            ),
            (
                Request::new(40, 0, &[5; 5]).with(1, b"abcde"),
                bytes(40, 0, &[&[5; 5], &[0; 3], &[9, 0, 1, 0], b"abcde", &[0; 3]]),
            ),
        ];
        for (at, (mut request, expected)) in table.into_iter().enumerate() {
            assert_eq!(request.bytes(9), expected, "request {at}");
        }
    }
}
