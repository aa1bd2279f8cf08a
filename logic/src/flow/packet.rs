//! From a packet's bytes to its [`Key`], and where fields are in a frame.
//!
//! This is the reference: slow and obvious. The parser of the kernel plane is compared with it. It defines for rules and for
//! actions when a packet has a field:
//!
//! * A header that is not completely there is treated as missing; its fields are 0. An IP packet ends with the frame or with
//!   its own length, whichever comes first, so padding is never read as a header.
//! * The parser skips up to [`MOST_TAGS`] VLAN tags. The outermost is matched, and the EtherType is the one after the tags.
//! * An 802.3 frame has the type of its SNAP header if the organisation is 0, otherwise [`ether_type::NONE`].
//! * In a fragment, also the first, ports and ICMP type and code are 0 and cannot be matched (OFPC_FRAG_NORMAL), so that all
//!   fragments of a packet take one path. Actions can still write those of a first fragment.
//! * The protocol is the one behind the IPv6 extension headers (hop-by-hop, routing, destination options, fragment; at most
//!   [`MOST_EXTENSIONS`]). If the parser cannot read them to their end, the protocol is the number of the header where it
//!   stopped.
//! * A packet to the UDP port of VXLAN (RFC 7348) with the I flag is VXLAN.

use super::{
    action::RulePort,
    field::{
        FIELDS,
        Field::{self, *},
        VLAN_PRESENT, ether_type, ip_proto,
    },
    key::Key,
};

/// UDP destination port of VXLAN (RFC 7348 section 5).
pub const VXLAN_PORT: u16 = 4789;
/// How many VLAN tags the parser skips.
pub const MOST_TAGS: usize = 2;
/// How many IPv6 extension headers the parser skips.
pub const MOST_EXTENSIONS: usize = 8;
/// How many options of a neighbour discovery message the parser reads.
pub const MOST_ND_OPTIONS: usize = 8;

/// The header after the Ethernet header and its tags, and its offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    #[default]
    Other,
    Arp(usize),
    Ipv4(usize),
    Ipv6(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragment {
    /// Not a fragment.
    #[default]
    Whole,
    First,
    Later,
}

/// Where the headers of a frame are. Offsets count from the beginning of the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// The Ethernet header. Its tags begin 12 bytes later.
    pub start: usize,
    /// How many VLAN tags are there, at most [`MOST_TAGS`].
    pub tags: usize,
    pub ether_type: u16,
    pub network: Network,
    /// IP protocol.
    pub proto: u8,
    pub fragment: Fragment,
    /// An IPv6 routing header has segments left, so the destination is not the one that checksums cover (RFC 8200 section
    /// 8.1).
    pub routed: bool,
    /// The header of TCP, UDP, SCTP, ICMP or ICMPv6.
    pub transport: Option<usize>,
    /// The VXLAN header.
    pub vxlan: Option<usize>,
    /// Where the packet ends; padding may follow.
    pub end: usize,
    /// The frame holds the whole packet.
    pub complete: bool,
}

/// Bits in a frame. They are in the big-endian integer of `bytes` bytes at `at`: `bits` bits, above the lowest `shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldBits {
    pub at: usize,
    pub bytes: usize,
    pub shift: u32,
    pub bits: u32,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

impl Headers {
    /// Finds the headers of the Ethernet frame that begins at `start`. `vxlan_port` is the port of VXLAN; without it VXLAN
    /// is not looked for. `None` if the bytes are fewer than an Ethernet header.
    pub fn of(bytes: &[u8], start: usize, vxlan_port: Option<u16>) -> Option<Headers> {
        let mut at = start + 12;
        let mut kind = be16(bytes, at)?;
        let mut tags = 0;
        while tags < MOST_TAGS && [ether_type::VLAN, ether_type::SERVICE_VLAN].contains(&kind) {
            let Some(next) = be16(bytes, at + 4) else { break };
            (at, kind, tags) = (at + 4, next, tags + 1);
        }
        at += 2;
        if kind < 0x600 {
            kind = ether_type::NONE;
            if let Some([0xaa, 0xaa, 3, 0, 0, 0, high, low]) = array(bytes, at)
                && u16::from_be_bytes([high, low]) >= 0x600
            {
                (at, kind) = (at + 8, u16::from_be_bytes([high, low]));
            }
        }
        let mut headers =
            Headers { start, tags, ether_type: kind, end: bytes.len(), complete: true, ..Headers::default() };
        match kind {
            // ARP for Ethernet and IPv4 (RFC 826).
            ether_type::ARP if array(bytes, at) == Some([0, 1, 8, 0, 6, 4]) && bytes.len() >= at + 28 => {
                headers.network = Network::Arp(at);
            }
            ether_type::IPV4 => headers.ipv4(bytes, at),
            ether_type::IPV6 => headers.ipv6(bytes, at),
            _ => {}
        }
        headers.find_vxlan(bytes, vxlan_port);
        Some(headers)
    }

    /// RFC 791 section 3.1.
    fn ipv4(&mut self, bytes: &[u8], at: usize) {
        let Some(header) = array::<20>(bytes, at) else { return };
        let length = 4 * usize::from(header[0] & 15);
        if header[0] >> 4 != 4 || length < 20 || bytes.len() < at + length {
            return;
        }
        self.network = Network::Ipv4(at);
        self.proto = header[9];
        self.set_end(bytes, at + usize::from(u16::from_be_bytes([header[2], header[3]])));
        self.fragment = match u16::from_be_bytes([header[6], header[7]]) & 0x3fff {
            0 => Fragment::Whole,
            0x2000 => Fragment::First,
            _ => Fragment::Later,
        };
        self.transport(at + length);
    }

    /// RFC 8200 sections 3 and 4.
    fn ipv6(&mut self, bytes: &[u8], at: usize) {
        let Some(header) = array::<40>(bytes, at) else { return };
        if header[0] >> 4 != 6 {
            return;
        }
        self.network = Network::Ipv6(at);
        self.proto = header[6];
        self.set_end(bytes, at + 40 + usize::from(u16::from_be_bytes([header[4], header[5]])));
        let mut at = at + 40;
        for _ in 0..MOST_EXTENSIONS {
            let Some([next, length, high, low]) = array(&bytes[..self.end], at) else { break };
            let length = match self.proto {
                0 | 43 | 60 => 8 * (usize::from(length) + 1),
                44 => 8,
                _ => break,
            };
            if at + length > self.end {
                return;
            }
            match (self.proto, u16::from_be_bytes([high, low]) & 0xfff9) {
                // Segments left.
                (43, _) => self.routed |= low != 0,
                // A fragment header with offset 0 and no more fragments is not a fragment (RFC 6946).
                (44, 0) => {}
                (44, 1) => self.fragment = Fragment::First,
                (44, _) => self.fragment = Fragment::Later,
                _ => {}
            }
            (self.proto, at) = (next, at + length);
            if self.fragment == Fragment::Later {
                return;
            }
        }
        self.transport(at);
    }

    fn set_end(&mut self, bytes: &[u8], end: usize) {
        (self.end, self.complete) = (bytes.len().min(end), end <= bytes.len());
    }

    fn transport(&mut self, at: usize) {
        let fixed = match (self.proto, self.network) {
            (ip_proto::TCP, _) => 20,
            (ip_proto::UDP, _) => 8,
            (ip_proto::SCTP, _) => 12,
            (ip_proto::ICMP, Network::Ipv4(_)) | (ip_proto::ICMPV6, Network::Ipv6(_)) => 8,
            _ => return,
        };
        if self.fragment != Fragment::Later && at + fixed <= self.end {
            self.transport = Some(at);
        }
    }

    /// RFC 7348 section 5.
    fn find_vxlan(&mut self, bytes: &[u8], port: Option<u16>) {
        let Some(udp) = self.transport.filter(|_| self.proto == ip_proto::UDP) else { return };
        if self.fragment == Fragment::Whole
            && port.is_some_and(|port| be16(bytes, udp + 2) == Some(port))
            && array::<8>(&bytes[..self.end], udp + 8).is_some_and(|vxlan| vxlan[0] & 8 != 0)
        {
            self.vxlan = Some(udp + 8);
        }
    }

    /// Where `field` is, if this packet holds it as bits. Receiving port, metadata, tunnel id, EtherType, IP protocol and
    /// fields of an inner frame have no such place.
    pub fn place(&self, bytes: &[u8], field: Field) -> Option<FieldBits> {
        let bits = |at, bytes, shift, bits| Some(FieldBits { at, bytes, shift, bits });
        let whole = |at, bytes| bits(at, bytes, 0, 8 * bytes as u32);
        match (field, self.network) {
            (EthDst, _) => whole(self.start, 6),
            (EthSrc, _) => whole(self.start + 6, 6),
            (VlanVid, _) if self.tags > 0 => bits(self.start + 14, 2, 0, 12),
            (VlanPcp, _) if self.tags > 0 => bits(self.start + 14, 2, 13, 3),
            (VxlanVni, _) => whole(self.vxlan? + 4, 3),
            (ArpOp, Network::Arp(arp)) => whole(arp + 6, 2),
            (ArpSha, Network::Arp(arp)) => whole(arp + 8, 6),
            (ArpSpa, Network::Arp(arp)) => whole(arp + 14, 4),
            (ArpTha, Network::Arp(arp)) => whole(arp + 18, 6),
            (ArpTpa, Network::Arp(arp)) => whole(arp + 24, 4),
            (IpDscp, Network::Ipv4(ip)) => bits(ip + 1, 1, 2, 6),
            (IpEcn, Network::Ipv4(ip)) => bits(ip + 1, 1, 0, 2),
            (Ipv4Src, Network::Ipv4(ip)) => whole(ip + 12, 4),
            (Ipv4Dst, Network::Ipv4(ip)) => whole(ip + 16, 4),
            (IpDscp, Network::Ipv6(ip)) => bits(ip, 2, 6, 6),
            (IpEcn, Network::Ipv6(ip)) => bits(ip, 2, 4, 2),
            (Ipv6Flabel, Network::Ipv6(ip)) => bits(ip, 4, 0, 20),
            (Ipv6Src, Network::Ipv6(ip)) => whole(ip + 8, 16),
            (Ipv6Dst, Network::Ipv6(ip)) => whole(ip + 24, 16),
            _ => self.transport_place(&bytes[..self.end], field),
        }
    }

    fn transport_place(&self, packet: &[u8], field: Field) -> Option<FieldBits> {
        let at = self.transport?;
        let whole = |at, bytes| Some(FieldBits { at, bytes, shift: 0, bits: 8 * bytes as u32 });
        let is_nd = |kinds: &[u8]| packet.get(at).is_some_and(|kind| kinds.contains(kind));
        match (field, self.proto) {
            (TcpSrc, ip_proto::TCP) | (UdpSrc, ip_proto::UDP) | (SctpSrc, ip_proto::SCTP) => whole(at, 2),
            (TcpDst, ip_proto::TCP) | (UdpDst, ip_proto::UDP) | (SctpDst, ip_proto::SCTP) => whole(at + 2, 2),
            (Icmpv4Type, ip_proto::ICMP) | (Icmpv6Type, ip_proto::ICMPV6) => whole(at, 1),
            (Icmpv4Code, ip_proto::ICMP) | (Icmpv6Code, ip_proto::ICMPV6) => whole(at + 1, 1),
            (Ipv6NdTarget, ip_proto::ICMPV6) if is_nd(&[135, 136]) && packet.len() >= at + 24 => {
                whole(at + 8, 16)
            }
            (Ipv6NdSll, ip_proto::ICMPV6) if is_nd(&[135]) => whole(nd_address(packet, at + 24, 1)?, 6),
            (Ipv6NdTll, ip_proto::ICMPV6) if is_nd(&[136]) => whole(nd_address(packet, at + 24, 2)?, 6),
            _ => None,
        }
    }

    /// Writes the fields of this frame into `key`. `names` maps a field to its name in the key.
    fn fill(mut self, key: &mut Key, bytes: &[u8], names: impl Fn(Field) -> Option<Field>) {
        if self.fragment != Fragment::Whole {
            self.transport = None;
        }
        let mut set = |field, value: u128| {
            if let Some(name) = names(field) {
                key.set(name, value);
            }
        };
        set(EthType, self.ether_type.into());
        set(IpProto, self.proto.into());
        for field in FIELDS.iter().map(|s| s.field) {
            if let Some(place) = self.place(bytes, field) {
                let present = if field == VlanVid { VLAN_PRESENT } else { 0 };
                set(field, place.read(bytes) | u128::from(present));
            }
        }
    }
}

/// The link-layer address of the first option of this kind (RFC 4861 section 4.6.1).
fn nd_address(packet: &[u8], mut at: usize, kind: u8) -> Option<usize> {
    for _ in 0..MOST_ND_OPTIONS {
        match array(packet, at)? {
            [_, 0] => return None,
            [k, _] if k == kind => return (packet.len() >= at + 8).then_some(at + 2),
            [_, length] => at += 8 * usize::from(length),
        }
    }
    None
}

impl FieldBits {
    /// The bits, right-aligned. `bytes` must contain the place.
    pub fn read(self, bytes: &[u8]) -> u128 {
        let raw = bytes[self.at..self.at + self.bytes].iter().fold(0, |raw, &b| raw << 8 | u128::from(b));
        raw >> self.shift & u128::MAX >> (128 - self.bits)
    }
}

/// The name of a field in the frame inside VXLAN. `None` if it cannot be matched.
fn inner_name(field: Field) -> Option<Field> {
    Some(match field {
        EthDst => InnerEthDst,
        EthSrc => InnerEthSrc,
        EthType => InnerEthType,
        VlanVid => InnerVlanVid,
        VlanPcp => InnerVlanPcp,
        IpDscp => InnerIpDscp,
        IpEcn => InnerIpEcn,
        IpProto => InnerIpProto,
        Ipv4Src => InnerIpv4Src,
        Ipv4Dst => InnerIpv4Dst,
        TcpSrc | UdpSrc | SctpSrc | Icmpv4Type => InnerTpSrc,
        TcpDst | UdpDst | SctpDst | Icmpv4Code => InnerTpDst,
        _ => return None,
    })
}

impl Key {
    /// The key of a frame that came in by `in_port`; metadata and tunnel id are 0. `vxlan_port` is [`VXLAN_PORT`] unless
    /// configured otherwise.
    pub fn of(frame: &[u8], in_port: RulePort, vxlan_port: u16) -> Key {
        let mut key = Key::ZERO;
        key.set(InPort, in_port.0.into());
        let Some(headers) = Headers::of(frame, 0, Some(vxlan_port)) else { return key };
        headers.fill(&mut key, frame, Some);
        let packet = &frame[..headers.end];
        if let Some(inner) = headers.vxlan.and_then(|vxlan| Headers::of(packet, vxlan + 8, None)) {
            inner.fill(&mut key, packet, inner_name);
        }
        key
    }
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
