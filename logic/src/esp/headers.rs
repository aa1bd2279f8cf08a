//! Headers in front of ESP: the outer IP header of tunnel mode (RFC 4301 section 5.1.2), and UDP (RFC 3948). Also the
//! outer headers of VXLAN.

use super::{PROTO_ESP, UDP};
use crate::flow::{checksum::fold, field::ip_proto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// TTL and hop limit of packets that are made here.
pub(crate) const HOPS: u8 = 64;
const DONT_FRAGMENT: u16 = 0x4000;
const IPV4: usize = 20;
const IPV6: usize = 40;

/// The two ends of an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// IPv4.
    V4 {
        /// Ours.
        local: Ipv4Addr,
        /// The peer's.
        remote: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Ours.
        local: Ipv6Addr,
        /// The peer's.
        remote: Ipv6Addr,
    },
}

impl Ends {
    /// `None`: the addresses are of different versions.
    pub fn new(local: IpAddr, remote: IpAddr) -> Option<Ends> {
        match (local, remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => Some(Ends::V4 { local, remote }),
            (IpAddr::V6(local), IpAddr::V6(remote)) => Some(Ends::V6 { local, remote }),
            _ => None,
        }
    }

    /// Whether both are unicast addresses that are valid everywhere: no loopback and no IPv6 link-local addresses.
    pub fn are_hosts(&self) -> bool {
        [self.local(), self.remote()].into_iter().all(|end| match end {
            IpAddr::V4(ip) => {
                !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() || ip.is_loopback())
            }
            IpAddr::V6(ip) => {
                !(ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || ip.is_unicast_link_local())
            }
        })
    }

    /// Our address.
    pub fn local(&self) -> IpAddr {
        match *self {
            Ends::V4 { local, .. } => local.into(),
            Ends::V6 { local, .. } => local.into(),
        }
    }

    /// The peer's address.
    pub fn remote(&self) -> IpAddr {
        match *self {
            Ends::V4 { remote, .. } => remote.into(),
            Ends::V6 { remote, .. } => remote.into(),
        }
    }
}

/// Ports of ESP in UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Ours.
    pub local: u16,
    /// The peer's, as we see it.
    pub remote: u16,
}

/// The DF bit of an outer IPv4 header (RFC 4301 section 8.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dont {
    /// Copied from the inner header. Set if that is IPv6, which no router fragments.
    #[default]
    Copy,
    /// Set.
    Set,
    /// Not set.
    Clear,
}

/// The headers in front of ESP, without lengths and similar fields.
#[derive(Debug)]
pub(crate) struct Outer {
    /// The IP header, if one is added, and the UDP header.
    template: [u8; IPV6 + UDP],
    pub(crate) bytes: usize,
    /// The length of the IP header.
    ip_bytes: usize,
    /// The sum of the template of an IPv4 header.
    sum: u32,
    pub(crate) dont: Dont,
    /// EtherType.
    pub(crate) kind: [u8; 2],
}

impl Outer {
    pub(crate) fn new(ends: Ends, udp: Option<Udp>, dont: Dont, hops: u8) -> Outer {
        let mut template = [0; IPV6 + UDP];
        let proto = if udp.is_some() { ip_proto::UDP } else { PROTO_ESP };
        let (ip_bytes, kind) = match ends {
            Ends::V4 { local, remote } => {
                template[0] = 0x45;
                template[8..10].copy_from_slice(&[hops, proto]);
                template[12..16].copy_from_slice(&local.octets());
                template[16..20].copy_from_slice(&remote.octets());
                (IPV4, [0x08, 0x00])
            }
            Ends::V6 { local, remote } => {
                template[0] = 0x60;
                template[6..8].copy_from_slice(&[proto, hops]);
                template[8..24].copy_from_slice(&local.octets());
                template[24..40].copy_from_slice(&remote.octets());
                (IPV6, [0x86, 0xdd])
            }
        };
        let mut bytes = ip_bytes;
        if let Some(Udp { local, remote }) = udp {
            template[bytes..bytes + 2].copy_from_slice(&local.to_be_bytes());
            template[bytes + 2..bytes + 4].copy_from_slice(&remote.to_be_bytes());
            bytes += UDP;
        }
        let sum = sum(&template[..IPV4]) as u32;
        Outer { template, bytes, ip_bytes, sum, dont, kind }
    }

    /// An IPv4 header without the fields that differ. `None`: there is another header or none.
    pub(crate) fn ipv4(&self) -> Option<&[u8; IPV4]> {
        self.template.first_chunk().filter(|_| self.ip_bytes == IPV4)
    }

    /// Writes the headers into exactly [`Outer::bytes`]. The packet has `total` bytes from there on. `tos`: DSCP and
    /// ECN of the inner packet, which are copied (RFC 4301 section 5.1.2, RFC 6040 section 4.1). `dont`: its DF bit.
    /// Returns false if `into` has another length.
    #[inline]
    pub(crate) fn write(&self, into: &mut [u8], total: u16, tos: u8, dont: bool, id: u16) -> bool {
        if into.len() != self.bytes {
            return false;
        }
        if self.ip_bytes == IPV4 {
            let Some((ip, behind)) = into.split_first_chunk_mut::<IPV4>() else { return false };
            let Some(template) = self.template.first_chunk::<IPV4>() else { return false };
            *ip = *template;
            let dont = match self.dont {
                Dont::Copy => dont,
                Dont::Set => true,
                Dont::Clear => false,
            };
            let flags = if dont { DONT_FRAGMENT } else { 0 };
            ip[1] = tos;
            [ip[2], ip[3]] = total.to_be_bytes();
            [ip[4], ip[5]] = id.to_be_bytes();
            [ip[6], ip[7]] = flags.to_be_bytes();
            let sum = self.sum + u32::from(tos) + u32::from(total) + u32::from(id) + u32::from(flags);
            [ip[10], ip[11]] = (!fold(sum.into())).to_be_bytes();
            self.write_udp(behind, total - IPV4 as u16)
        } else {
            let Some((ip, behind)) = into.split_first_chunk_mut::<IPV6>() else { return false };
            let Some(template) = self.template.first_chunk::<IPV6>() else { return false };
            *ip = *template;
            let length = total - IPV6 as u16;
            ip[0] |= tos >> 4;
            ip[1] = tos << 4;
            [ip[4], ip[5]] = length.to_be_bytes();
            self.write_udp(behind, length)
        }
    }

    /// The checksum is 0 (RFC 3948 section 2.1). With IPv6 it is written after everything else ([`udp6_checksum`]).
    #[inline]
    pub(crate) fn write_udp(&self, into: &mut [u8], length: u16) -> bool {
        let Some((udp, _)) = into.split_first_chunk_mut::<UDP>() else { return into.is_empty() };
        let ports = self.template.get(self.ip_bytes..).and_then(|ports| ports.first_chunk::<4>());
        let Some(ports) = ports else { return false };
        udp[..4].copy_from_slice(ports);
        udp[4..6].copy_from_slice(&length.to_be_bytes());
        udp[6..].fill(0);
        true
    }
}

/// The ones' complement sum of 16-bit words in network byte order (RFC 1071). An odd byte is the first of its word.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let sum = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>();
    sum + rest.first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// The checksum of an IPv4 header whose checksum field is 0.
pub(crate) fn checksum(header: &[u8]) -> u16 {
    !fold(sum(header))
}

/// Whether the checksum of this UDP header and payload is right. It must not be 0. `ip` begins with the IP header.
pub(crate) fn udp_checksum_is_right(ip: &[u8], segment: &[u8]) -> bool {
    let addresses = match ip.first().map(|first| first >> 4) {
        Some(4) => ip.get(12..IPV4),
        _ => ip.get(8..IPV6),
    };
    let pseudo = sum(addresses.unwrap_or_default()) + segment.len() as u64 + u64::from(ip_proto::UDP);
    fold(pseudo + sum(segment)) == 0xffff
}

/// Writes the checksum of UDP over IPv6, which may not be 0 (RFC 8200 section 8.1). `ip` is a whole packet without
/// extension headers.
pub(crate) fn udp6_checksum(ip: &mut [u8]) {
    let Some((header, udp)) = ip.split_first_chunk_mut::<IPV6>() else { return };
    let pseudo = sum(&header[8..]) + udp.len() as u64 + u64::from(ip_proto::UDP);
    let Some(field) = udp.get_mut(6..8) else { return };
    field.fill(0);
    let checksum = match !fold(pseudo + sum(udp)) {
        0 => 0xffff,
        checksum => checksum,
    };
    if let Some(field) = udp.get_mut(6..8) {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}
