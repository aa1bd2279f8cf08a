//! `RTM_NEWLINK`: a device, with the per-device settings in its `IFLA_AF_SPEC`. Also `RTM_NEWADDR`, as far as it
//! matters.
//!
//! Kernel source: `rtnl_fill_ifinfo` in `net/core/rtnetlink.c`, `struct ifinfomsg`. The fields mean:
//!
//! | field | meaning |
//! |---|---|
//! | `ifi_type` | Ethernet or loopback; packets of other devices stay with the kernel |
//! | IFF_UP, IFF_LOWER_UP, IFF_RUNNING | heeded: a device sends only with all three |
//! | IFF_LOOPBACK | heeded: the kind of the device |
//! | IFF_NOARP, IFF_POINTOPOINT, IFF_SLAVE | stay with the kernel: next hops work differently, or another device has the packets |
//! | IFF_DORMANT | irrelevant: a dormant device is not IFF_RUNNING |
//! | IFF_PROMISC, IFF_ALLMULTI | irrelevant: frames for other addresses go to the kernel in any case |
//! | IFF_BROADCAST, IFF_MULTICAST | irrelevant: all packets except unicast go to the kernel |
//! | IFF_DEBUG, IFF_NOTRAILERS, IFF_MASTER, IFF_PORTSEL, IFF_AUTOMEDIA, IFF_DYNAMIC, IFF_ECHO | irrelevant: no effect on IP |
//! | any other flag | stays with the kernel |
//! | IFLA_IFNAME, ADDRESS, MTU, LINK, LINK_NETNSID, MASTER, QDISC, XDP, LINKINFO, AF_SPEC | heeded |
//! | IFLA_OPERSTATE, LINKMODE, CARRIER, PROTO_DOWN | irrelevant: the flags show their effect |
//! | IFLA_PROMISCUITY, ALLMULTI, GROUP, TXQLEN, NUM_*_QUEUES, IFALIAS, *_ID, ALT_IFNAME, statistics | irrelevant: no effect on IP |
//! | IFLA_GSO_*, GRO_*, TSO_* | irrelevant: XDP sees no merged packets (`ethtool` module) |
//! | attributes of later kernels | irrelevant: each release adds some; instead, kinds of devices are an allow-list |
//!
//! [`LinkKind::takes`] describes the kinds (`IFLA_INFO_KIND`).
//!
//! Only the existence of IPv4 addresses matters here, for `rp_filter`. The other effects of addresses, their flags and
//! their lifetimes are in the routes that the kernel adds and removes with them.

use super::{INET, INET6, attributes, rtm, wire};
use logic::{
    net::{Mac, Tag},
    observe::{LinkKind, MacvlanMode},
};

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_QDISC: u16 = 6;
const IFLA_MASTER: u16 = 10;
const IFLA_PROTINFO: u16 = 12;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_EGRESS_QOS: u16 = 3;
const IFLA_VLAN_PROTOCOL: u16 = 5;
const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_CONF: u16 = 2;
const RTEXT_FILTER_SKIP_STATS: u32 = 8;
const ETH_P_8021AD: [u8; 2] = [0x88, 0xa8];

const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

const IFF_UP: u32 = 1;
const IFF_LOOPBACK: u32 = 8;
const IFF_RUNNING: u32 = 1 << 6;
const IFF_LOWER_UP: u32 = 1 << 16;
/// Flags of devices that stay with the kernel, each with the rest of a sentence about the device.
const ODD: [(u32, &str); 3] = [
    (1 << 4, "is a point-to-point device (IFF_POINTOPOINT)"),
    (1 << 7, "does not resolve addresses (IFF_NOARP)"),
    (1 << 11, "belongs to another device (IFF_SLAVE)"),
];
/// All known flags: bits 0 to 18 of `enum net_device_flags`.
const KNOWN_FLAGS: u32 = (1 << 19) - 1;

const HEADER: usize = 16;

/// A device as one message describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawLink {
    pub ifindex: u32,
    pub name: String,
    pub mac: Mac,
    pub mtu: u32,
    /// `IFF_UP`.
    pub up: bool,
    /// `IFF_LOWER_UP`.
    pub carrier: bool,
    /// `IFF_RUNNING`.
    pub running: bool,
    /// Properties that leave its packets to the kernel, regardless of the devices on it. Each is the rest of a
    /// sentence.
    pub oddities: Vec<&'static str>,
    pub kind: LinkKind,
    /// `IFLA_LINK`; `None`: it has none, or it is the device itself.
    pub below: Option<u32>,
    /// `IFLA_LINK_NETNSID`: the namespace of `below`; `None`: the same namespace.
    pub below_nsid: Option<i32>,
    pub master: Option<u32>,
    /// `IFLA_QDISC`: the kind of the root qdisc.
    pub qdisc: String,
    /// An XDP program of any mode is attached.
    pub xdp: bool,
    /// It is a VLAN device that maps priorities to PCP bits on egress.
    pub egress_priority_map: bool,
    /// `IFLA_INET_CONF`: `IPV4_DEVCONF_*` values; `None`: the message has none (IPv4 is off).
    pub conf4: Option<Box<[u32]>>,
    /// `IFLA_INET6_CONF`.
    pub conf6: Option<Box<[u32]>>,
}

/// The content of a message about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkMessage {
    New(Box<RawLink>),
    /// The device is gone, or moved to another namespace.
    Gone {
        ifindex: u32,
    },
    /// `IFLA_INET6_CONF` of a device, from IPv6 (`inet6_fill_ifinfo` in `net/ipv6/addrconf.c`).
    Settings6 {
        ifindex: u32,
        conf6: Box<[u32]>,
    },
}

/// A dump of all devices, without statistics.
pub fn dump() -> wire::Request {
    wire::Request::new(rtm::GETLINK, wire::DUMP, &[0; HEADER])
        .with(IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes())
}

/// A request for one device, with an acknowledgement.
pub fn get(ifindex: u32) -> wire::Request {
    let mut header = [0; HEADER];
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    wire::Request::new(rtm::GETLINK, wire::ACK, &header)
        .with(IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes())
}

/// A dump of all addresses of a family.
pub fn dump_addresses(family: u8) -> wire::Request {
    wire::Request::new(rtm::GETADDR, wire::DUMP, &[family, 0, 0, 0, 0, 0, 0, 0])
}

/// Parses `RTM_NEWLINK` or `RTM_DELLINK`. Returns `None` for messages of a bridge about its ports, and for the message
/// of IPv6 about the end of a device.
pub fn parse(message: wire::Message<'_>) -> Option<LinkMessage> {
    let payload = message.payload;
    let ifindex = wire::u32_at(payload, 4)?;
    match *payload.first()? {
        0 => (),
        INET6 if message.kind == rtm::NEWLINK => {
            let of_ipv6 = wire::attributes_after(payload, HEADER).find(|a| a.0 == IFLA_PROTINFO)?.1;
            let conf6 = words(wire::attribute(of_ipv6, IFLA_INET6_CONF)?);
            return Some(LinkMessage::Settings6 { ifindex, conf6 });
        }
        _ => return None,
    }
    match message.kind {
        rtm::NEWLINK => Some(LinkMessage::New(Box::new(parse_link(payload, ifindex)?))),
        rtm::DELLINK => Some(LinkMessage::Gone { ifindex }),
        _ => None,
    }
}

fn parse_link(payload: &[u8], ifindex: u32) -> Option<RawLink> {
    let flags = wire::u32_at(payload, 8)?;
    let mut link = RawLink {
        ifindex,
        name: String::new(),
        mac: Mac::default(),
        mtu: 0,
        up: flags & IFF_UP != 0,
        carrier: flags & IFF_LOWER_UP != 0,
        running: flags & IFF_RUNNING != 0,
        oddities: oddities(wire::u16_at(payload, 2)?, flags),
        kind: if flags & IFF_LOOPBACK != 0 { LinkKind::Loopback } else { LinkKind::Physical },
        below: None,
        below_nsid: None,
        master: None,
        qdisc: String::new(),
        xdp: false,
        egress_priority_map: false,
        conf4: None,
        conf6: None,
    };
    for (kind, value) in wire::attributes_after(payload, HEADER) {
        match kind {
            IFLA_ADDRESS => link.mac = Mac::from_slice(value).unwrap_or_default(),
            IFLA_IFNAME => link.name = wire::text(value),
            IFLA_MTU => link.mtu = wire::u32_at(value, 0)?,
            IFLA_LINK => link.below = wire::u32_at(value, 0).filter(|i| *i != 0),
            IFLA_LINK_NETNSID => link.below_nsid = wire::u32_at(value, 0).map(|i| i as i32),
            IFLA_MASTER => link.master = wire::u32_at(value, 0).filter(|i| *i != 0),
            IFLA_QDISC => link.qdisc = wire::text(value),
            IFLA_XDP => {
                link.xdp = wire::attribute(value, IFLA_XDP_ATTACHED).is_some_and(|v| v.first() > Some(&0))
            }
            IFLA_LINKINFO => parse_kind(value, &mut link),
            IFLA_AF_SPEC => parse_settings(value, &mut link),
            _ => (),
        }
    }
    if link.below_nsid.is_none() && link.below == Some(ifindex) {
        link.below = None;
    }
    // Wireless extensions send an RTM_NEWLINK that does not describe the device.
    (!link.name.is_empty()).then_some(link)
}

fn oddities(hardware: u16, flags: u32) -> Vec<&'static str> {
    let not_ethernet = !matches!(hardware, ARPHRD_ETHER | ARPHRD_LOOPBACK);
    let unknown = flags & !KNOWN_FLAGS != 0;
    let odd = ODD.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, what)| *what);
    odd.chain(not_ethernet.then_some("is not an Ethernet device"))
        .chain(unknown.then_some("has unknown flags"))
        .collect()
}

fn parse_kind(info: &[u8], link: &mut RawLink) {
    let Some(kind) = wire::attribute(info, IFLA_INFO_KIND).map(wire::text) else { return };
    let data = wire::attribute(info, IFLA_INFO_DATA).unwrap_or_default();
    let known = match kind.as_str() {
        "vlan" => parse_vlan(data),
        "macvlan" => macvlan_mode(data).map(LinkKind::Macvlan),
        "macvtap" => macvlan_mode(data).map(LinkKind::Macvtap),
        _ => None,
    };
    link.egress_priority_map =
        kind == "vlan" && wire::attribute(data, IFLA_VLAN_EGRESS_QOS).is_some_and(|map| !map.is_empty());
    link.kind = known.unwrap_or(LinkKind::Other(kind));
}

fn parse_vlan(data: &[u8]) -> Option<LinkKind> {
    let vid = wire::u16_at(wire::attribute(data, IFLA_VLAN_ID)?, 0)?;
    let service = wire::attribute(data, IFLA_VLAN_PROTOCOL) == Some(&ETH_P_8021AD[..]);
    (vid < 4095).then_some(LinkKind::Vlan(Tag { vid, service }))
}

fn macvlan_mode(data: &[u8]) -> Option<MacvlanMode> {
    Some(match wire::u32_at(wire::attribute(data, IFLA_MACVLAN_MODE)?, 0)? {
        1 => MacvlanMode::Private,
        2 => MacvlanMode::Vepa,
        4 => MacvlanMode::Bridge,
        8 => MacvlanMode::Passthru,
        16 => MacvlanMode::Source,
        _ => return None,
    })
}

fn words(value: &[u8]) -> Box<[u32]> {
    value.chunks_exact(4).filter_map(|w| wire::u32_at(w, 0)).collect()
}

fn parse_settings(specific: &[u8], link: &mut RawLink) {
    for (family, value) in wire::attributes(specific) {
        if family == u16::from(INET) {
            link.conf4 = wire::attribute(value, IFLA_INET_CONF).map(words);
        } else if family == u16::from(INET6) {
            link.conf6 = wire::attribute(value, IFLA_INET6_CONF).map(words);
        }
    }
}

/// An IPv4 address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address4 {
    pub ifindex: u32,
    /// (address, prefix length, peer's address), which identify it.
    pub key: (u32, u8, u32),
    /// All its attributes are known.
    pub understood: bool,
}

/// Parses an `RTM_NEWADDR` or `RTM_DELADDR` of IPv4.
pub fn parse_address4(payload: &[u8]) -> Option<Address4> {
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    const IFA_TARGET_NETNSID: u16 = 10;
    const IRRELEVANT: u64 = attributes::ADDRESS.irrelevant();
    if *payload.first()? != INET {
        return None;
    }
    let ifindex = wire::u32_at(payload, 4)?;
    let (mut address, mut local, mut understood) = (0, 0, true);
    for (kind, value) in wire::attributes_after(payload, 8) {
        match kind {
            IFA_ADDRESS => address = wire::be32_at(value, 0)?,
            IFA_LOCAL => local = wire::be32_at(value, 0)?,
            IFA_TARGET_NETNSID => return None,
            _ => understood &= attributes::has(IRRELEVANT, kind),
        }
    }
    Some(Address4 { ifindex, key: (local, payload[1], address), understood })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::Request;

    fn built(request: Request) -> Vec<u8> {
        let mut request = request;
        request.bytes(1).to_vec()
    }

    fn nested(parts: &[(u16, &[u8])]) -> Vec<u8> {
        let request = parts.iter().fold(Request::new(0, 0, &[]), |r, (kind, value)| r.with(*kind, value));
        built(request)[16..].to_vec()
    }

    #[test]
    fn settings_are_read_from_messages_of_ipv6() {
        let protocol = nested(&[(IFLA_INET6_CONF, &[1, 0, 0, 0, 64, 0, 0, 0, 0, 5, 0, 0])]);
        let mut header = [0; 16];
        (header[0], header[4]) = (INET6, 7);
        let message = |kind| {
            let request = Request::new(kind, 0, &header).with(IFLA_IFNAME, b"x\0");
            built(request.with(IFLA_PROTINFO | 0x8000, &protocol))
        };
        let parsed = wire::messages(&message(rtm::NEWLINK)).next().and_then(parse);
        assert_eq!(parsed, Some(LinkMessage::Settings6 { ifindex: 7, conf6: [1, 64, 1280].into() }));
        assert_eq!(wire::messages(&message(rtm::DELLINK)).next().and_then(parse), None);
    }

    #[test]
    fn a_vlan_device_is_read_with_its_settings() {
        let data = nested(&[(1, &[100, 0]), (5, &[0x88, 0xa8]), (3, &[])]);
        let info = nested(&[(1, b"vlan\0"), (2, &data)]);
        let conf: Vec<u8> = (0u32..40).flat_map(u32::to_ne_bytes).collect();
        let specific = nested(&[(2, &nested(&[(1, &conf)])), (10, &nested(&[(2, &conf[..8])]))]);
        let mut header = [0; 16];
        header[4] = 7;
        header[8..12].copy_from_slice(&(IFF_UP | IFF_LOWER_UP).to_ne_bytes());
        let bytes = built(
            Request::new(rtm::NEWLINK, 0, &header)
                .with(IFLA_IFNAME, b"eth0.100\0")
                .with(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1])
                .with(IFLA_MTU, &1500u32.to_ne_bytes())
                .with(IFLA_LINK, &3u32.to_ne_bytes())
                .with(IFLA_LINK_NETNSID, &0u32.to_ne_bytes())
                .with(IFLA_LINKINFO, &info)
                .with(IFLA_AF_SPEC | 0x8000, &specific),
        );
        let Some(LinkMessage::New(link)) = wire::messages(&bytes).next().and_then(parse) else { panic!() };
        assert_eq!((link.ifindex, link.name.as_str(), link.mtu), (7, "eth0.100", 1500));
        assert_eq!(link.kind, LinkKind::Vlan(Tag { vid: 100, service: true }));
        assert_eq!((link.below, link.below_nsid), (Some(3), Some(0)));
        assert!(link.up && link.carrier && !link.egress_priority_map);
        assert_eq!(link.conf4.as_deref().map(|c| (c.len(), c[8])), Some((40, 8)));
        assert_eq!(link.conf6.as_deref(), Some(&[0, 1][..]));
    }

    /// The device of a message with these flags and attributes, in addition to a name.
    fn device(flags: u32, attributes: &[(u16, &[u8])]) -> RawLink {
        let mut header = [0; HEADER];
        (header[2], header[4]) = (1, 7);
        header[8..12].copy_from_slice(&flags.to_ne_bytes());
        let request = Request::new(rtm::NEWLINK, 0, &header).with(IFLA_IFNAME, b"x\0");
        let bytes = built(attributes.iter().fold(request, |r, (kind, value)| r.with(*kind, value)));
        match wire::messages(&bytes).next().and_then(parse) {
            Some(LinkMessage::New(link)) => *link,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_flag_and_attribute_has_its_field_and_no_other() {
        let plain = RawLink {
            ifindex: 7,
            name: "x".into(),
            mac: Mac::default(),
            mtu: 0,
            up: false,
            carrier: false,
            running: false,
            oddities: vec![],
            kind: LinkKind::Physical,
            below: None,
            below_nsid: None,
            master: None,
            qdisc: String::new(),
            xdp: false,
            egress_priority_map: false,
            conf4: None,
            conf6: None,
        };
        let with = |change: fn(&mut RawLink)| {
            let mut link = plain.clone();
            change(&mut link);
            link
        };
        assert_eq!(device(0, &[]), plain);
        assert_eq!(device(1, &[]), with(|link| link.up = true));
        assert_eq!(device(1 << 3, &[]), with(|link| link.kind = LinkKind::Loopback));
        assert_eq!(device(1 << 6, &[]), with(|link| link.running = true));
        assert_eq!(device(1 << 16, &[]), with(|link| link.carrier = true));
        let mac = [2, 0, 0, 0, 0, 9];
        let [xdp, no_xdp] = [1, 0].map(|mode| nested(&[(1, &[9, 9]), (IFLA_XDP_ATTACHED, &[mode, 0])]));
        let conf = nested(&[(1, &[5, 0, 0, 0])]);
        let conf = nested(&[(17, &conf), (2, &conf), (10, &nested(&[(2, &[6, 0, 0, 0])])), (28, &[])]);
        let attributes: [(u16, &[u8], RawLink); 14] = [
            (IFLA_ADDRESS, &mac, with(|link| link.mac = Mac([2, 0, 0, 0, 0, 9]))),
            (IFLA_ADDRESS, &mac[..4], plain.clone()),
            (IFLA_MTU, &[0, 5, 0, 0], with(|link| link.mtu = 1280)),
            (IFLA_LINK, &[0, 1, 0, 0], with(|link| link.below = Some(256))),
            (IFLA_LINK, &[1, 0, 0, 0], with(|link| link.below = Some(1))),
            (IFLA_LINK, &[0; 4], plain.clone()),
            (IFLA_LINK, &[7, 0, 0, 0], plain.clone()),
            (IFLA_LINK_NETNSID, &[3, 0, 0, 0], with(|link| link.below_nsid = Some(3))),
            (IFLA_MASTER, &[1, 0, 0, 0], with(|link| link.master = Some(1))),
            (IFLA_MASTER, &[0; 4], plain.clone()),
            (IFLA_QDISC, b"noqueue\0", with(|link| link.qdisc = "noqueue".into())),
            (IFLA_XDP, &xdp, with(|link| link.xdp = true)),
            (IFLA_XDP, &no_xdp, plain.clone()),
            (
                IFLA_AF_SPEC,
                &conf,
                with(|link| (link.conf4, link.conf6) = (Some([5].into()), Some([6].into()))),
            ),
        ];
        for (kind, value, expected) in attributes {
            assert_eq!(device(0, &[(kind, value)]), expected, "{kind} {value:?}");
        }
        let elsewhere: [(u16, &[u8]); 2] = [(IFLA_LINK, &[7, 0, 0, 0]), (IFLA_LINK_NETNSID, &[0; 4])];
        let same_number = with(|link| (link.below, link.below_nsid) = (Some(7), Some(0)));
        assert_eq!(device(0, &elsewhere), same_number, "a device of another namespace");
    }

    #[test]
    fn kinds_of_devices_are_read_with_their_data() {
        let read = |kind: &[u8], data: &[(u16, &[u8])]| {
            let info = nested(&[(IFLA_INFO_KIND, kind), (IFLA_INFO_DATA, &nested(data))]);
            let link = device(0, &[(IFLA_LINKINFO, &info)]);
            (link.kind, link.egress_priority_map)
        };
        let vlan = |vid| (LinkKind::Vlan(Tag { vid, service: false }), false);
        assert_eq!(read(b"vlan\0", &[(1, &[0, 0])]), vlan(0));
        assert_eq!(read(b"vlan\0", &[(1, &4094u16.to_ne_bytes()), (5, &[0x81, 0])]), vlan(4094));
        let other = |kind: &str| (LinkKind::Other(kind.into()), false);
        assert_eq!(read(b"vlan\0", &[(1, &4095u16.to_ne_bytes())]), other("vlan"));
        let map: (u16, &[u8]) = (IFLA_VLAN_EGRESS_QOS, &[12, 0, 1, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
        assert!(read(b"vlan\0", &[(1, &[9, 0]), map]).1);
        assert_eq!(read(b"veth\0", &[map]), other("veth"));
        for (number, mode) in [
            (1u32, Some(MacvlanMode::Private)),
            (2, Some(MacvlanMode::Vepa)),
            (4, Some(MacvlanMode::Bridge)),
            (8, Some(MacvlanMode::Passthru)),
            (16, Some(MacvlanMode::Source)),
            (32, None),
        ] {
            let kind = mode.map_or(other("macvlan").0, LinkKind::Macvlan);
            assert_eq!(read(b"macvlan\0", &[(IFLA_MACVLAN_MODE, &number.to_ne_bytes())]), (kind, false));
        }
    }

    #[test]
    fn devices_end_and_messages_without_a_name_are_ignored() {
        let read = |kind, request: fn(Request) -> Request| {
            let bytes =
                built(request(Request::new(kind, 0, &[0, 0, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])));
            wire::messages(&bytes).next().and_then(parse)
        };
        assert_eq!(read(rtm::DELLINK, |r| r), Some(LinkMessage::Gone { ifindex: 7 }));
        assert_eq!(read(rtm::GETLINK, |r| r.with(IFLA_IFNAME, b"x\0")), None);
        assert_eq!(read(rtm::NEWLINK, |r| r), None, "wireless extensions");
    }

    #[test]
    fn only_ethernet_devices_with_harmless_flags_are_plain() {
        let odd = |hardware: u16, flags: u32| {
            let mut header = [0; HEADER];
            header[2..4].copy_from_slice(&hardware.to_ne_bytes());
            header[8..12].copy_from_slice(&flags.to_ne_bytes());
            let bytes = built(Request::new(rtm::NEWLINK, 0, &header).with(IFLA_IFNAME, b"x\0"));
            let Some(LinkMessage::New(link)) = wire::messages(&bytes).next().and_then(parse) else {
                panic!()
            };
            (link.oddities.len(), link.running)
        };
        // A virtio-net device as it usually is; dormant (802.1X); promiscuous with all multicast groups.
        assert_eq!(odd(ARPHRD_ETHER, 0x11043), (0, true));
        assert_eq!(odd(ARPHRD_ETHER, 0x31003), (0, false));
        assert_eq!(odd(ARPHRD_ETHER, 0x11343), (0, true));
        assert_eq!(odd(ARPHRD_LOOPBACK, 0x10049), (0, true));
        for flag in 0..32 {
            let expected = usize::from([4, 7, 11].contains(&flag) || flag > 18);
            assert_eq!(odd(ARPHRD_ETHER, 1 << flag).0, expected, "flag {flag}");
        }
        for hardware in [0, 24, 32, 512, 774, 778, 801, 803, 0xfffe] {
            assert_eq!(odd(hardware, 1).0, 1, "type {hardware}");
        }
    }

    #[test]
    fn a_macvtap_has_the_mode_of_a_macvlan() {
        let data = nested(&[(1, &4u32.to_ne_bytes())]);
        for (kind, expected) in [
            (&b"macvlan\0"[..], LinkKind::Macvlan(MacvlanMode::Bridge)),
            (b"macvtap\0", LinkKind::Macvtap(MacvlanMode::Bridge)),
        ] {
            let info = nested(&[(1, kind), (2, &data)]);
            let request = Request::new(rtm::NEWLINK, 0, &[0; HEADER]).with(IFLA_IFNAME, b"t0\0");
            let bytes = built(request.with(IFLA_LINKINFO, &info));
            let Some(LinkMessage::New(link)) = wire::messages(&bytes).next().and_then(parse) else {
                panic!()
            };
            assert_eq!(link.kind, expected);
        }
    }

    #[test]
    fn every_attribute_of_an_address_does_what_its_class_says() {
        let parsed = |number: u16, value: &[u8]| {
            let request = Request::new(rtm::NEWADDR, 0, &[INET, 24, 0, 0, 7, 0, 0, 0]);
            parse_address4(&built(request.with(2, &[192, 0, 2, 1]).with(number, value))[16..])
        };
        let plain = parsed(3, b"x\0");
        assert!(plain.is_some_and(|address| address.understood));
        for number in 0..=63 {
            for value in [&[][..], &[1], &[9; 4], &[7; 16]] {
                match attributes::ADDRESS.class(number) {
                    Some(attributes::Class::Irrelevant(_)) => assert_eq!(parsed(number, value), plain),
                    Some(attributes::Class::Heeded(_)) => {}
                    _ => assert!(parsed(number, value).is_some_and(|address| !address.understood)),
                }
            }
        }
        assert_eq!(parsed(10, &[0; 4]), None, "of another namespace");
        let key = (0xc000_0201, 24, 0xc633_6401);
        assert_eq!(parsed(1, &[198, 51, 100, 1]), Some(Address4 { ifindex: 7, key, understood: true }));
        // A peer's address alone.
        let bytes = built(Request::new(rtm::NEWADDR, 0, &[INET, 24, 0, 0, 7, 1, 0, 0]));
        let none = Address4 { ifindex: 263, key: (0, 24, 0), understood: true };
        assert_eq!(parse_address4(&bytes[16..]), Some(none));
        assert_eq!(parse_address4(&[INET6, 24, 0, 0, 7, 1, 0, 0]), None);
    }

    #[test]
    fn a_bridge_port_message_is_not_a_link() {
        let mut header = [0; 16];
        header[0] = libc::AF_BRIDGE as u8;
        let bytes = built(Request::new(rtm::DELLINK, 0, &header));
        assert_eq!(wire::messages(&bytes).next().and_then(parse), None);
    }

    proptest! {
        #[test]
        fn never_panics(kind in 16u16..22, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(wire::Message { kind, flags: 0, sequence: 0, payload: &bytes });
            let _ = parse_address4(&bytes);
        }

        #[test]
        fn never_panics_on_odd_attributes(
            parts in prop::collection::vec((0u16..60, prop::collection::vec(any::<u8>(), 0..40)), 0..8)
        ) {
            let mut payload = vec![0; HEADER];
            payload.extend(nested(&parts.iter().map(|p| (p.0, &p.1[..])).collect::<Vec<_>>()));
            let _ = parse(wire::Message { kind: rtm::NEWLINK, flags: 0, sequence: 0, payload: &payload });
        }
    }
}
