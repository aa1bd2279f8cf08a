//! The words in which `router` reports what Linux looks like: netlink, sysctls and hazards of every namespace involved.
//!
//! Kernel names are kept where a reader would look them up (`RTN_*`, `NUD_*`, `rp_filter`). Interface indexes are only
//! unique within a namespace, so everything is keyed by ([`NamespaceId`], ifindex).

use crate::{
    net::{Address, Mac, Prefix, Tag},
    plan::{PortId, ReversePath},
};
use std::{collections::BTreeSet, net::IpAddr, time::Duration};

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
    /// The whole state of a namespace: replaces everything known of it.
    Dump(NamespaceId, Box<Dump>),
    /// A link is new or changed.
    Link(NamespaceId, Link),
    /// A link is gone (or moved to another namespace).
    LinkGone(NamespaceId, u32),
    /// An IPv4 route changed.
    Route4(NamespaceId, Change, Route<u32>),
    /// An IPv6 route changed.
    Route6(NamespaceId, Change, Route<u128>),
    /// All routes of a namespace, read again (after events the kernel does not report: link down, lost messages).
    Routes(NamespaceId, Vec<Route<u32>>, Vec<Route<u128>>),
    /// A neighbour is new or changed; `mac` is `None` when it is gone or not valid.
    Neighbour(NamespaceId, Neighbour),
    /// A nexthop object is new or replaced.
    Nexthop(NamespaceId, NexthopObject),
    /// A nexthop object is gone.
    NexthopGone(NamespaceId, u32),
    /// What in the namespace the fast path would bypass, and its settings.
    Settings(NamespaceId, Settings),
    /// All destinations for which Linux has learned a path MTU or gateway that binds forwarded packets.
    Learned(NamespaceId, BTreeSet<IpAddr>),
}

/// A network device Millrace is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedPort {
    /// Where the device lives.
    pub namespace: NamespaceId,
    /// Its index there.
    pub ifindex: u32,
    /// It transmits multi-buffer frames redirected to it.
    pub frags: bool,
    /// Linux has a hash of its packets before it routes them (the NIC's, or that of receive packet steering), and
    /// `fib_multipath_hash_policy` 1 takes that.
    pub hashes: bool,
}

/// A namespace that may hold a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// `host`, the name under /run/netns, `pid:1234`, or `netns:<inode>`.
    pub name: String,
    /// It holds the ports themselves.
    pub host: bool,
    /// Named in the configuration; else found by itself.
    pub configured: bool,
    pub owner: Owner,
}

/// Whose namespace it is. A tenant with a user namespace can make as many network namespaces as it likes, so limits on
/// their number are limits of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// It belongs to the machine's own user namespace. A tenant inside it needs a user namespace of its own
    /// to make another network namespace.
    Machine,
    /// It belongs to a user namespace that this user made, or to one inside it.
    User(u32),
    /// It belongs to the user namespace with this inode number, or to one inside it. Root of the machine made that, as for
    /// a container.
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
    /// What sits on this device that the fast path would bypass, as sentences: qdisc, tc filter, tcx program; and what
    /// about the device itself is not known to be harmless.
    pub hazards: Vec<String>,
    /// That an XDP program runs here, as a sentence: a hazard too, unless the device is a port.
    pub xdp: Option<String>,
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

/// Kinds known to take no packets of the device below (`IFLA_LINK`). It is the other end of a pair, or where a tunnel's
/// packets leave; the tunnel's own packets arrive by an address of the box.
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

/// Whose packets a device may take before IP sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nobody's, except of devices that name it as their master.
    Nothing,
    /// Those of its own MAC address and VLAN.
    Own,
    /// All that the device below hands to its `rx_handler`: what is left when VLAN tags have been looked at.
    Untagged,
    /// Maybe all that the device below receives. The kind is not known.
    Below,
    /// Maybe those of any device of its namespace. The kind is not known, and names no device below.
    Any,
}

impl LinkKind {
    /// May it use packets of the device below, wherever that is?
    pub fn sits_on_another(&self) -> bool {
        !matches!(self.takes(true), Takes::Nothing)
    }

    /// What it takes; `below`: it names a device below. Everything that is not known takes as much as it can.
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

    /// Is a device of this kind a port as any NIC is? Devices of a VRF are looked up in tables that are not mirrored, those of
    /// Open vSwitch are its own.
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

/// Effective IPv4 settings of a device (`conf/all` already folded in as the kernel folds it).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkConf4 {
    pub forwarding: bool,
    pub rp_filter: ReversePath,
    pub send_redirects: bool,
    /// Sources that are the router's own may pass, as `fib_validate_source()` decides.
    pub accept_local: bool,
    /// `route_localnet`, `src_valid_mark`, ... : names of settings that are on and change source or destination
    /// validation in ways the fast path does not follow.
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
    /// `net.ipv6.conf.DEV.mtu`, by which IPv6 is forwarded; 0: the link's own.
    pub mtu: u32,
    /// Settings such as `seg6_enabled`, `ioam6_enabled`, `rpl_seg_enabled`, `proxy_ndp` that are on and matter.
    pub unusual: Vec<String>,
}

/// What a route message does to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `RTM_NEWROUTE` without flags that matter: IPv4 puts it before equals.
    Add,
    /// `NLM_F_APPEND`: after equals. An IPv6 message holds the complete multipath set.
    Append,
    /// `NLM_F_REPLACE`: in place of the first equal.
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
    /// `RTAX_MTU` metric, if Linux heeds it for forwarded packets.
    pub mtu: Option<u32>,
    /// It holds only for sources in `RTA_SRC` (IPv6).
    pub for_sources: bool,
    /// When it ends (`RTA_CACHEINFO`), CLOCK_MONOTONIC.
    pub expires: Option<Duration>,
    /// Whatever else tells it from the other routes of its prefix, as a hash: preferred source, protocol, scope, ...
    pub rest: u64,
    /// Present and not understood or not accelerated, as a word for people.
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
    /// It has `RTA_ENCAP`, or something else not understood.
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
    /// What the fast path would bypass for IPv4, as sentences: netfilter hooks, policy rules, XFRM policies, ...
    pub hazards4: Vec<String>,
    /// The same for IPv6.
    pub hazards6: Vec<String>,
    /// `fib_multipath_hash_policy`, IPv4 and IPv6.
    pub multipath_policy: [u8; 2],
    pub multipath_key: MultipathKey,
}

/// By which key packets are hashed where a route has several next hops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MultipathKey {
    /// Nobody chooses but the kernel.
    #[default]
    Unknown,
    /// Linux's own: the member is the one that Linux chooses.
    Linux([u64; 2]),
    /// Ours, where Linux's own cannot be read.
    Own([u64; 2]),
}

impl MultipathKey {
    /// All zero if there is none.
    pub fn words(self) -> [u64; 2] {
        match self {
            MultipathKey::Unknown => [0; 2],
            MultipathKey::Linux(words) | MultipathKey::Own(words) => words,
        }
    }
}
