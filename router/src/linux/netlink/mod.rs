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
