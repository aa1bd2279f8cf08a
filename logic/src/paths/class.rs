//! Which packets belong to a path (P4), as far as a frame shows it before any work is spent on it.
//!
//! Headers are those of [`crate::flow::packet`]: after up to two VLAN tags and after IPv6 extension headers. An
//! incomplete header counts as missing, and a class with a condition on it does not match. A class with a condition on
//! ports or a TCP flag does not match fragments, not even the first. So all fragments of a packet are in one class,
//! with two exceptions. They differ in `bytes`. And a protocol may have an extension header between itself and the
//! fragment header: later fragments show the number of that header.

use crate::{
    flow::{
        field::{ether_type, ip_proto},
        packet::{Fragment, Headers, Network},
    },
    net::{Addresses, Mac},
    paths::PathId,
    plan::{PortId, RouterId},
    tables::Ingress,
};

/// The last byte at which a class may look.
pub const DEPTH: u8 = 64;
const ETHERNET: usize = 14;

/// All packets that meet every condition here. Without conditions: all packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// It arrived at this port.
    pub port: Option<PortId>,
    /// The port where it arrived belongs to this router.
    pub router: Option<RouterId>,
    /// Its destination MAC address.
    pub destination_mac: Option<Mac>,
    /// Its EtherType, after VLAN tags.
    pub ether_type: Option<u16>,
    /// Its IP source is in this prefix.
    pub source: Option<Addresses>,
    /// Its IP destination is in this prefix.
    pub destination: Option<Addresses>,
    /// Its IP protocol.
    pub protocol: Option<u8>,
    /// Its TCP, UDP or SCTP source port.
    pub source_port: Option<u16>,
    /// Its TCP, UDP or SCTP destination port.
    pub destination_port: Option<u16>,
    /// It opens a TCP connection: SYN without ACK.
    pub tcp_syn: bool,
    /// Two bytes of the frame.
    pub bytes: Option<TwoBytes>,
    /// The class matches no packets itself: flow rules choose the path's packets. The only other condition allowed is
    /// the router that owns the path.
    pub flow_rules: bool,
}

/// Two bytes of the first [`DEPTH`], as they are in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoBytes {
    /// The position of the first byte, counted from the destination MAC address.
    pub offset: u8,
    /// The bits that are compared.
    pub mask: u16,
    /// Their value.
    pub value: u16,
}

/// Why no packet can match a class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// Two conditions that exclude each other.
    #[error("no packet has both {0} and {1}")]
    Both(String, String),
    /// Flow rules choose the packets.
    #[error("flow_rules = true allows no other condition: flow rules choose the packets")]
    ByRules,
    /// The bytes are beyond the first 64.
    #[error("bytes at {0} are not among the first {DEPTH}: the offset is 0 to {last}", last = DEPTH - 2)]
    TooDeep(u8),
    /// The value has bits that the mask cuts off.
    #[error("bytes with mask {mask:#06x} never have the value {value:#06x}")]
    Masked {
        /// The mask.
        mask: u16,
        /// The value.
        value: u16,
    },
}

impl Addresses {
    fn has(self, frame: &[u8], network: Network, side: Side) -> bool {
        let second = matches!(side, Side::Destination);
        match (self, network) {
            (Addresses::V4(prefix), Network::Ipv4(ip)) => {
                let at = ip + if second { 16 } else { 12 };
                let address = frame.get(at..).and_then(|bytes| bytes.first_chunk());
                address.is_some_and(|address| prefix.contains(u32::from_be_bytes(*address)))
            }
            (Addresses::V6(prefix), Network::Ipv6(ip)) => {
                let at = ip + if second { 24 } else { 8 };
                let address = frame.get(at..).and_then(|bytes| bytes.first_chunk());
                address.is_some_and(|address| prefix.contains(u128::from_be_bytes(*address)))
            }
            _ => false,
        }
    }

    fn covers(self, other: Addresses) -> bool {
        match (self, other) {
            (Addresses::V4(mine), Addresses::V4(other)) => mine.covers(other),
            (Addresses::V6(mine), Addresses::V6(other)) => mine.covers(other),
            _ => false,
        }
    }

    /// The EtherType of packets with such addresses.
    pub fn ether_type(self) -> u16 {
        match self {
            Addresses::V4(_) => ether_type::IPV4,
            Addresses::V6(_) => ether_type::IPV6,
        }
    }
}

/// A frame, parsed once for all classes.
pub struct ParsedFrame<'a> {
    frame: &'a [u8],
    ingress: Ingress,
    headers: Option<Headers>,
}

impl<'a> ParsedFrame<'a> {
    /// Parses a frame that arrived at `ingress`.
    pub fn new(frame: &'a [u8], ingress: Ingress) -> Self {
        ParsedFrame { frame, ingress, headers: Headers::of(frame, 0, None) }
    }

    fn two(&self, at: usize) -> Option<u16> {
        self.frame.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
    }

    /// The header of TCP, UDP or SCTP, with ports.
    fn transport(&self) -> Option<(u8, usize)> {
        let headers = self.headers.filter(|headers| headers.fragment == Fragment::Whole)?;
        has_ports(headers.proto).then_some((headers.proto, headers.transport?))
    }
}

impl Class {
    /// Whether the packet is in this class.
    pub fn has(&self, seen: &ParsedFrame<'_>) -> bool {
        let ParsedFrame { frame, ingress, .. } = seen;
        !self.flow_rules
            && self.port.is_none_or(|port| port == ingress.port)
            && self.router.is_none_or(|router| router == ingress.router)
            && self.destination_mac.is_none_or(|mac| frame.len() >= ETHERNET && frame.starts_with(&mac.0))
            && self.bytes.is_none_or(|bytes| bytes.are_in(seen))
            && self.has_headers(seen)
            && self.has_transport(seen)
    }

    fn has_headers(&self, seen: &ParsedFrame<'_>) -> bool {
        let Class { ether_type, source, destination, protocol, .. } = self;
        if ether_type.is_none() && source.is_none() && destination.is_none() && protocol.is_none() {
            return true;
        }
        let Some(headers) = &seen.headers else { return false };
        let is_ip = matches!(headers.network, Network::Ipv4(_) | Network::Ipv6(_));
        ether_type.is_none_or(|kind| kind == headers.ether_type)
            && protocol.is_none_or(|protocol| is_ip && protocol == headers.proto)
            && source.is_none_or(|source| source.has(seen.frame, headers.network, Side::Source))
            && destination.is_none_or(|to| to.has(seen.frame, headers.network, Side::Destination))
    }

    fn has_transport(&self, seen: &ParsedFrame<'_>) -> bool {
        if self.source_port.is_none() && self.destination_port.is_none() && !self.tcp_syn {
            return true;
        }
        let Some((protocol, at)) = seen.transport() else { return false };
        self.source_port.is_none_or(|port| seen.two(at) == Some(port))
            && self.destination_port.is_none_or(|port| seen.two(at + 2) == Some(port))
            && (!self.tcp_syn || protocol == ip_proto::TCP && seen.two(at + 12).is_some_and(opens))
    }

    /// Checks whether such a packet can exist, as far as that is obvious.
    pub fn check(&self) -> Result<(), Impossible> {
        let both = |one: &str, other: &str| Err(Impossible::Both(one.into(), other.into()));
        if self.flow_rules {
            let alone = Class { flow_rules: true, router: self.router, ..Class::default() };
            return if *self == alone { Ok(()) } else { Err(Impossible::ByRules) };
        }
        if let Some(TwoBytes { offset, mask, value }) = self.bytes {
            if offset > DEPTH - 2 {
                return Err(Impossible::TooDeep(offset));
            }
            if value & !mask != 0 {
                return Err(Impossible::Masked { mask, value });
            }
        }
        let with_ports = self.source_port.is_some() || self.destination_port.is_some();
        if let Some(protocol) = self.protocol {
            if self.tcp_syn && protocol != ip_proto::TCP {
                return both("tcp_syn", &format!("protocol {protocol}"));
            }
            if with_ports && !has_ports(protocol) {
                return both("a source or destination port", &format!("protocol {protocol}"));
            }
        }
        if let (Some(from), Some(to)) = (self.source, self.destination)
            && from.ether_type() != to.ether_type()
        {
            return both(&format!("source {from}"), &format!("destination {to}"));
        }
        if let Some(kind) = self.ether_type {
            let named = format!("ether_type {kind:#06x}");
            let addresses = [("source", self.source), ("destination", self.destination)];
            for (side, addresses) in addresses {
                if let Some(addresses) = addresses.filter(|addresses| addresses.ether_type() != kind) {
                    return both(&named, &format!("{side} {addresses}"));
                }
            }
            let is_ip = [ether_type::IPV4, ether_type::IPV6].contains(&kind);
            if !is_ip && (self.protocol.is_some() || with_ports || self.tcp_syn) {
                return both(&named, "a protocol of IP");
            }
        }
        match (self.bytes, self.destination_mac) {
            (Some(bytes), Some(mac)) if bytes.contradicts(mac) => {
                both(&format!("destination_mac {mac}"), &format!("other bytes at {}", bytes.offset))
            }
            _ => Ok(()),
        }
    }

    /// Whether it matches every packet that `other` matches, as far as that is obvious.
    pub fn covers(&self, other: &Class) -> bool {
        fn all_in<T: Copy>(mine: Option<T>, others: Option<T>, covers: impl Fn(T, T) -> bool) -> bool {
            mine.is_none_or(|mine| others.is_some_and(|other| covers(mine, other)))
        }
        let family = other.source.or(other.destination).map(Addresses::ether_type);
        let protocol = other.protocol.or(other.tcp_syn.then_some(ip_proto::TCP));
        !(self.flow_rules || other.flow_rules)
            && all_in(self.port, other.port, |a, b| a == b)
            && all_in(self.router, other.router, |a, b| a == b)
            && all_in(self.destination_mac, other.destination_mac, |a, b| a == b)
            && all_in(self.ether_type, other.ether_type.or(family), |a, b| a == b)
            && all_in(self.source, other.source, Addresses::covers)
            && all_in(self.destination, other.destination, Addresses::covers)
            && all_in(self.protocol, protocol, |a, b| a == b)
            && all_in(self.source_port, other.source_port, |a, b| a == b)
            && all_in(self.destination_port, other.destination_port, |a, b| a == b)
            && (!self.tcp_syn || other.tcp_syn)
            && all_in(self.bytes, other.bytes, TwoBytes::covers)
    }
}

fn has_ports(protocol: u8) -> bool {
    [ip_proto::TCP, ip_proto::UDP, ip_proto::SCTP].contains(&protocol)
}

/// Data offset and flags of TCP (RFC 9293 section 3.1): SYN, but not ACK.
fn opens(word: u16) -> bool {
    const SYN: u16 = 0x02;
    const ACK: u16 = 0x10;
    word & (SYN | ACK) == SYN
}

#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

impl TwoBytes {
    fn are_in(self, seen: &ParsedFrame<'_>) -> bool {
        seen.two(self.offset.into()).is_some_and(|word| word & self.mask == self.value)
    }

    fn covers(self, other: TwoBytes) -> bool {
        self.offset == other.offset
            && self.mask & other.mask == self.mask
            && other.value & self.mask == self.value
    }

    /// No frame to this address has these bytes.
    fn contradicts(self, mac: Mac) -> bool {
        let (mask, value) = (self.mask.to_be_bytes(), self.value.to_be_bytes());
        let bytes = mac.0.into_iter().skip(self.offset.into()).zip(mask).zip(value);
        bytes.into_iter().any(|((byte, mask), value)| byte & mask != value)
    }
}

/// The classes of all paths, in order. The first class that matches a packet gets it.
#[derive(Clone, Debug, Default)]
pub struct Classifier {
    classes: Vec<Class>,
}

impl Classifier {
    /// The number of a path is the position of its class.
    pub fn new(classes: Vec<Class>) -> Self {
        Classifier { classes }
    }

    /// The path of this packet; `None` if no class matches.
    pub fn path_of(&self, frame: &[u8], ingress: Ingress) -> Option<PathId> {
        let seen = ParsedFrame::new(frame, ingress);
        (0..).zip(&self.classes).find(|(_, class)| class.has(&seen)).map(|(path, _)| path)
    }
}

#[cfg(test)]
pub(super) mod tests;
