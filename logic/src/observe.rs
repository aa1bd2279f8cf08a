//! The types in which `router` reports the state of Linux: netlink, sysctls and hazards of every namespace involved.
//!
//! Kernel names are kept where a reader would look them up (`RTN_*`, `NUD_*`, `rp_filter`). Interface indexes are
//! unique only within a namespace, so the key of everything is ([`NamespaceId`], ifindex).

use crate::{
    cause::Cause,
    firewall::ruleset::Firewall,
    net::{Address, Mac, Prefix, Tag},
    plan::{PortId, ReversePath},
};
use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

/// Our own handle of a network namespace; never reused within a run.
pub type NamespaceId = u32;

/// One thing seen, in the order the kernel reported it.
#[derive(Clone, Debug)]
pub enum Event {
    /// A port exists (or has new properties).
    Port(PortId, AttachedPort),
    /// A port is gone.
    PortGone(PortId),
    /// A namespace to mirror; its first [`Event::Dump`] follows.
    Namespace(NamespaceId, Namespace),
    /// The namespace is gone, or no longer of interest.
    NamespaceGone(NamespaceId),
    /// The whole state of a namespace. It replaces everything known about the namespace.
    Dump(NamespaceId, Box<Dump>),
    /// A link is new or changed.
    Link(NamespaceId, Link),
    /// A link is gone (or moved to another namespace).
    LinkGone(NamespaceId, u32),
    /// An IPv4 route changed.
    Route4(NamespaceId, Change, Route<u32>),
    /// An IPv6 route changed.
    Route6(NamespaceId, Change, Route<u128>),
    /// All routes of a namespace, read again after events that the kernel does not report (link down, lost messages).
    Routes(NamespaceId, Vec<Route<u32>>, Vec<Route<u128>>),
    /// A neighbour is new or changed. `mac` is `None` if it is gone or not valid.
    Neighbour(NamespaceId, Neighbour),
    /// A nexthop object is new or replaced.
    Nexthop(NamespaceId, NexthopObject),
    /// A nexthop object is gone.
    NexthopGone(NamespaceId, u32),
    /// The settings of the namespace, and the hazards in it that the fast path would bypass.
    Settings(NamespaceId, Settings),
    /// All destinations for which Linux has learned a path MTU or gateway that it applies to forwarded packets.
    Learned(NamespaceId, BTreeSet<IpAddr>),
}

/// A network device Millrace is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedPort {
    /// Where the device lives.
    pub namespace: NamespaceId,
    /// Its index there.
    pub ifindex: u32,
    /// The device transmits multi-buffer frames that are redirected to it.
    pub frags: bool,
    /// Linux has a hash of the port's packets before it routes them (from the NIC or from receive packet steering), and
    /// uses it if `fib_multipath_hash_policy` is 1.
    pub hashes: bool,
}

/// A namespace that may hold a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// `host`, the name under /run/netns, `pid:1234`, or `netns:<inode>`.
    pub name: String,
    /// It holds the ports themselves.
    pub host: bool,
    /// The configuration names it. If not, Millrace discovered it.
    pub configured: bool,
    pub owner: Owner,
}

/// The owner of a namespace. A tenant with a user namespace can make as many network namespaces as it likes, so limits
/// on their number apply to an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// It belongs to the machine's own user namespace. A tenant inside it needs a user namespace of its own
    /// to make another network namespace.
    Machine,
    /// It belongs to a user namespace that this user made, or to one inside it.
    User(u32),
    /// It belongs to the user namespace with this inode number, or to one inside it. The machine's root made that user
    /// namespace, as for a container.
    UserNamespace(u64),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::Machine => f.write_str("root"),
            Owner::User(uid) => write!(f, "the user with number {uid}"),
            Owner::UserNamespace(inode) => write!(f, "the user namespace user:[{inode}]"),
        }
    }
}

/// Everything about one namespace.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    pub links: Vec<Link>,
    pub routes4: Vec<Route<u32>>,
    pub routes6: Vec<Route<u128>>,
    pub nexthops: Vec<NexthopObject>,
    pub neighbours: Vec<Neighbour>,
    pub settings: Settings,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub ifindex: u32,
    pub name: String,
    pub mac: Mac,
    pub mtu: u32,
    /// `IFF_UP`.
    pub up: bool,
    /// `IFF_LOWER_UP`.
    pub carrier: bool,
    /// `IFF_RUNNING`: its operational state (RFC 2863) is up or unknown, not dormant, testing or down.
    pub running: bool,
    pub kind: LinkKind,
    /// The device below (`IFLA_LINK`), with its namespace (`IFLA_LINK_NETNSID` resolved); `None` if there is none or its
    /// namespace is unknown.
    pub below: Option<(NamespaceId, u32)>,
    /// `IFLA_MASTER`: enslaved to a bridge, bond or VRF.
    pub master: Option<u32>,
    pub ipv4: LinkConf4,
    pub ipv6: LinkConf6,
    /// Hazards on this device that the fast path would bypass, as sentences: qdisc, tc filter, tcx program. Also
    /// properties of the device that are not known to be harmless.
    pub hazards: Vec<Cause>,
    /// A sentence if an XDP program runs here. It is a hazard, unless the device is a port.
    pub xdp: Option<Cause>,
}

/// `IFLA_INFO_KIND` as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// No kind: a hardware NIC, or a driver that sets none.
    Physical,
    Loopback,
    Vlan(Tag),
    Macvlan(MacvlanMode),
    /// A macvlan whose packets go to the program that has it open.
    Macvtap(MacvlanMode),
    /// `veth`, `tun`, `bridge`, `vrf`, `bond`, ...
    Other(String),
}

/// Kinds known to take no packets of the device below (`IFLA_LINK`). That device is the other end of a pair, or the one
/// where a tunnel's packets leave. Packets for the tunnel itself arrive at an address of the box.
const STANDALONE: [&str; 34] = [
    "amt",
    "bareudp",
    "can",
    "dummy",
    "erspan",
    "geneve",
    "gre",
    "gretap",
    "gtp",
    "ifb",
    "ip6erspan",
    "ip6gre",
    "ip6gretap",
    "ip6tnl",
    "ipip",
    "netdevsim",
    "netkit",
    "nlmon",
    "ovpn",
    "pfcp",
    "ppp",
    "sit",
    "slcan",
    "tun",
    "vcan",
    "veth",
    "vsockmon",
    "vti",
    "vti6",
    "vxcan",
    "vxlan",
    "wireguard",
    "wwan",
    "xfrm",
];

/// Kinds that take packets only of devices that name them (`IFLA_MASTER`).
const MASTERS: [&str; 6] = ["batadv", "bond", "bridge", "openvswitch", "team", "vrf"];

/// The packets that a device may take before IP sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// None, except those of devices that name it as their master.
    Nothing,
    /// Those of its own MAC address and VLAN.
    Own,
    /// All that the device below passes to its `rx_handler`: those that are left after VLAN tags are handled.
    Untagged,
    /// Maybe all that the device below receives, because the kind is unknown.
    Below,
    /// Maybe those of any device in its namespace, because the kind is unknown and names no device below.
    Any,
}

impl LinkKind {
    /// Whether it may use packets of the device below, wherever that is.
    pub fn sits_on_another(&self) -> bool {
        !matches!(self.takes(true), Takes::Nothing)
    }

    /// The packets that it takes. `below`: it names a device below. An unknown kind is assumed to take as many as it
    /// can.
    pub fn takes(&self, below: bool) -> Takes {
        use MacvlanMode::{Bridge, Passthru, Private, Source, Vepa};
        match self {
            LinkKind::Loopback => Takes::Nothing,
            LinkKind::Physical if !below => Takes::Nothing,
            LinkKind::Physical => Takes::Below,
            LinkKind::Vlan(_) => Takes::Own,
            LinkKind::Macvlan(Private | Vepa | Bridge) | LinkKind::Macvtap(Private | Vepa | Bridge) => {
                Takes::Own
            }
            LinkKind::Macvlan(Passthru | Source) | LinkKind::Macvtap(Passthru | Source) => Takes::Untagged,
            LinkKind::Other(kind) => match kind.as_str() {
                kind if STANDALONE.contains(&kind) || MASTERS.contains(&kind) => Takes::Nothing,
                "ipvlan" | "ipvtap" | "macsec" => Takes::Untagged,
                _ if below => Takes::Below,
                _ => Takes::Any,
            },
        }
    }

    /// Whether a device of this kind can be a port like any NIC. Devices of a VRF use route tables that are not
    /// mirrored. Open vSwitch handles the packets of its devices itself.
    pub fn can_be_a_port(&self) -> bool {
        match self {
            LinkKind::Other(kind) => {
                !matches!(kind.as_str(), "vrf" | "openvswitch") && matches!(self.takes(true), Takes::Nothing)
            }
            _ => true,
        }
    }
}

/// `IFLA_MACVLAN_MODE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MacvlanMode {
    Private,
    Vepa,
    Bridge,
    Passthru,
    Source,
}

/// Effective IPv4 settings of a device. `conf/all` is already combined with them as the kernel does it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConf4 {
    pub forwarding: bool,
    pub rp_filter: ReversePath,
    pub send_redirects: bool,
    /// `accept_local`: sources that are the router's own may pass, as `fib_validate_source()` decides.
    pub accept_local: bool,
    /// Names of settings (`route_localnet`, `src_valid_mark`, ...) that are on and change the validation of sources or
    /// destinations in ways that the fast path does not follow.
    pub unusual: Vec<String>,
    pub ignore_routes_with_linkdown: bool,
    /// It has at least one IPv4 address.
    pub has_address: bool,
}

/// Effective IPv6 settings of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConf6 {
    pub forwarding: bool,
    pub disabled: bool,
    pub ignore_routes_with_linkdown: bool,
    /// `net.ipv6.conf.DEV.mtu`, the MTU for forwarding IPv6. 0: the link's own MTU.
    pub mtu: u32,
    /// Names of settings that are on and matter, such as `seg6_enabled`, `ioam6_enabled`, `rpl_seg_enabled`,
    /// `proxy_ndp`.
    pub unusual: Vec<String>,
}

/// What a route message does to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `RTM_NEWROUTE` without flags that matter. IPv4 puts the route before its equals.
    Add,
    /// `NLM_F_APPEND`: the route goes after its equals. An IPv6 message holds the complete multipath set.
    Append,
    /// `NLM_F_REPLACE`: the route replaces its first equal.
    Replace,
    /// The same, in a message that may be older than the last dump.
    ReplaceLate,
    /// `RTM_DELROUTE`.
    Delete,
}

/// One route as the kernel holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route<A: Address> {
    pub prefix: Prefix<A>,
    /// `RTA_TABLE`.
    pub table: u32,
    /// `RTA_PRIORITY`: the metric; lower wins.
    pub metric: u32,
    /// `rtm_tos`, 0 for any.
    pub tos: u8,
    /// `rtm_type`.
    pub kind: RouteKind,
    pub next: Next,
    /// The metric `RTAX_MTU`, if Linux applies it to forwarded packets.
    pub mtu: Option<u32>,
    /// It holds only for sources in `RTA_SRC` (IPv6).
    pub for_sources: bool,
    /// When the route ends (`RTA_CACHEINFO`), in CLOCK_MONOTONIC.
    pub expires: Option<Duration>,
    /// Hash of everything else that distinguishes it from other routes of its prefix: preferred source, protocol,
    /// scope, ...
    pub rest: u64,
    /// A word for people, if the route has something that is not understood or not accelerated.
    pub complex: Option<&'static str>,
}

/// `RTN_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    Unicast,
    Local,
    Broadcast,
    Anycast,
    Multicast,
    Blackhole,
    Unreachable,
    Prohibit,
    Throw,
    Other(u8),
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// Nowhere (special routes).
    None,
    /// `RTA_OIF`, `RTA_GATEWAY` or `RTA_VIA`.
    One(NextHop),
    /// `RTA_MULTIPATH`.
    Many(Box<[NextHop]>),
    /// `RTA_NH_ID`.
    Object(u32),
}

impl Next {
    /// The next hops listed here.
    pub fn hops(&self) -> &[NextHop] {
        match self {
            Next::One(hop) => std::slice::from_ref(hop),
            Next::Many(hops) => hops,
            Next::None | Next::Object(_) => &[],
        }
    }
}

/// One next hop of a route or nexthop object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NextHop {
    pub ifindex: u32,
    /// `None`: on-link.
    pub gateway: Option<IpAddr>,
    /// 1..=256.
    pub weight: u16,
    /// `RTNH_F_DEAD`.
    pub dead: bool,
    /// `RTNH_F_LINKDOWN`.
    pub linkdown: bool,
    /// It has `RTA_ENCAP`, or another attribute that is not understood.
    pub complex: bool,
}

/// `RTM_NEWNEXTHOP`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NexthopObject {
    pub id: u32,
    pub kind: NexthopObjectKind,
}

/// What a nexthop object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NexthopObjectKind {
    Single(NextHop),
    /// `NHA_GROUP`: (id, weight 1..=256).
    Group(Vec<(u32, u16)>),
    Blackhole,
    /// FDB, resilient or encapsulating: not accelerated.
    Unsupported(&'static str),
}

/// A neighbour entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub ifindex: u32,
    pub address: IpAddr,
    /// `Some` in the states of `NUD_VALID`.
    pub mac: Option<Mac>,
    /// `NUD_STALE`: someone must use it soon or the kernel forgets it.
    pub stale: bool,
}

/// Per-namespace settings and hazards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Hazards that the fast path would bypass for IPv4, as sentences: netfilter hooks, policy rules, XFRM policies,
    /// ...
    pub hazards4: Vec<Cause>,
    /// The same for IPv6.
    pub hazards6: Vec<Cause>,
    pub firewall: Arc<Firewall>,
    /// `fib_multipath_hash_policy` of IPv4 and of IPv6.
    pub multipath_policy: [u8; 2],
    pub multipath_key: MultipathKey,
}

/// The key for hashing packets if a route has several next hops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MultipathKey {
    /// The key is unknown, so only the kernel chooses.
    #[default]
    Unknown,
    /// Linux's own key. The fast path chooses the same member as Linux.
    Linux([u64; 2]),
    /// A key of our own, because Linux's cannot be read.
    Own([u64; 2]),
}

impl MultipathKey {
    /// The words of the key; zero if there is none.
    pub fn words(self) -> [u64; 2] {
        match self {
            MultipathKey::Unknown => [0; 2],
            MultipathKey::Linux(words) | MultipathKey::Own(words) => words,
        }
    }
}
