//! The types of a plan: what the tables of the kernel plane should hold.
//!
//! [`crate::mirror`] writes [`Op`]s, and [`crate::tables`] turns them into memory. Operations are absolute ("this
//! prefix leads there"), so applying one twice is harmless. They are applied in order.

use crate::{
    net::{Mac, Prefix4, Prefix6, Vlan},
    reason::Reason,
};
use std::{net::IpAddr, sync::Arc};

pub use crate::{firewall::pairs::PairTable, multipath::MultipathHash};

/// A router's number, its row in the `routers` map; at most 256 exist.
pub type RouterId = u8;
/// An interface's number, 1..; never 0.
pub type InterfaceId = u16;
/// A port's number, its slot in the transmit map; at most 64 exist.
pub type PortId = u8;

/// How sources are validated on an interface (RFC 3704, Linux `rp_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReversePath {
    /// Only the checks Linux always makes.
    #[default]
    Off,
    /// The source must be reachable by some unicast route.
    Loose,
    /// The source must be reachable through this very interface.
    Strict,
}

/// How packets are classified to a router, and how they leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Owner.
    pub router: RouterId,
    /// Port it sits on.
    pub port: PortId,
    /// Its tags on that port.
    pub vlan: Vlan,
    /// Its MAC address.
    pub mac: Mac,
    /// Whether IPv4 packets that arrive here are taken. If not, they go to the kernel.
    pub ipv4: bool,
    /// Whether IPv6 packets that arrive here are taken.
    pub ipv6: bool,
    /// Whether packets may be sent out here. False while the device or its port is down: its next hops then go to the
    /// kernel.
    pub transmit: bool,
    /// Source validation.
    pub reverse_path: ReversePath,
    /// Linux may send IPv4 redirects here.
    pub redirects: bool,
    /// `accept_local`: the kernel decides about sources that are the router's own addresses.
    pub accept_local: bool,
    /// The interface is untagged, and frames with the tag of VLAN 0 count as untagged.
    pub priority_tags: bool,
    /// The router has local prefixes, so any source may be one of its own addresses.
    pub look_at_sources: bool,
    /// Its group in the [`PairTable`]s of the router.
    pub group: u8,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// To the kernel, with a reason.
    Pass {
        /// The reason that the counters show.
        reason: Reason,
        /// The kernel has a unicast route here, so a source behind it counts as reachable.
        unicast: bool,
    },
    /// One next hop.
    Hop(Hop),
    /// ECMP: next hops with their weights, in the order of Linux. Members may pass to the kernel.
    Multi(Arc<[(Target, u16)]>),
}

/// A next hop that leaves through an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// Egress interface.
    pub interface: InterfaceId,
    /// The neighbour to send to. `None`: the destination itself is a neighbour there (a connected route).
    pub gateway: Option<IpAddr>,
    /// The longest IP packet in bytes: the route's locked or set MTU metric, or else the device's MTU.
    pub mtu: u32,
}

/// One absolute change of the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The port exists. This comes before its interfaces.
    Port {
        /// Which.
        port: PortId,
        /// Multi-buffer frames may be redirected to it.
        frags: bool,
    },
    /// The router exists, with these settings.
    Router {
        /// Which.
        router: RouterId,
        /// How packets are hashed if a route has several next hops.
        multipath: MultipathHash,
    },
    /// The router, its routes, interfaces and neighbours are gone.
    RouterGone(RouterId),
    /// Rules of the router's firewall may affect some packets. `None`: they affect none.
    Rules {
        /// Which.
        router: RouterId,
        /// For IPv4 and IPv6.
        tables: [Option<Arc<PairTable>>; 2],
        /// Of the proofs about connections ([`crate::tables::connections`]): those of another generation are void.
        /// 0: there are none.
        generation: u32,
    },
    /// All IPv4 addresses of the router itself, and the broadcast addresses of its subnets. Sources in this list need a
    /// second look.
    LocalAddresses {
        /// Which router.
        router: RouterId,
        /// Its addresses, host byte order.
        addresses: Arc<[u32]>,
    },
    /// The interface exists and looks like this.
    Interface(InterfaceId, Interface),
    /// All other addresses of this box: those of links that could be interfaces and have no number. A packet to one of
    /// them is never put on the wire.
    OtherAddresses(Arc<[(PortId, Vlan, Mac)]>),
    /// The interface and its neighbours are gone. Routes that used it lead to the kernel until they are rewritten.
    InterfaceGone(InterfaceId),
    /// An IPv4 prefix leads there. `None`: there is no route any more.
    Route4(RouterId, Prefix4, Option<Target>),
    /// An IPv6 prefix leads there. `None`: there is no route any more.
    Route6(RouterId, Prefix6, Option<Target>),
    /// The neighbour's MAC address. `None`: not resolved.
    Neighbour(InterfaceId, IpAddr, Option<Mac>),
}
