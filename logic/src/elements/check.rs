//! `check`: checks Ethernet, VLAN tags and the IP header.
//!
//! - **Input**: any frame.
//! - **Output**: a whole IPv4 packet without options, or a whole IPv6 packet without hop-by-hop options, on an
//!   interface whose IPv4 or IPv6 is accelerated. The position of its header is known from here on. Nothing is written.
//! - **Parameters**: none.
//!
//! It passes packets up in this order, as in `bpf/packet.h`, `bpf/millrace.bpf.c`, `bpf/ipv4.h` and `bpf/ipv6.h`:
//!
//! - `malformed`: shorter than an Ethernet header, or than two tags if there is one
//! - for no interface: `arp`, `neighbour_discovery`, `broadcast` (a group address) or `not_our_mac`
//! - for an interface: `arp`, `not_ip` (also with three tags), `router_not_accelerated`
//! - `ipv4_options`, `ipv4_bad_header` (version, header length, total length, checksum: RFC 791 section 3.1, RFC 1812
//!   section 5.2.2)
//! - `ipv6_bad_header`, `ipv6_extension` (RFC 8200 sections 3 and 4.3)
//!
//! Before an element that encrypts, `check`, `route` and `ttl` pass up only packets that Linux never forwards. They
//! drop all others (`in_clear`; `clear.rs`).

use super::{
    Batch, Contract, Counters, Element, Known, Now, Part,
    packet::{Family, Headers, Packet, Verdict},
};
use crate::{
    flow::{
        checksum::fold,
        field::{ether_type, ip_proto},
    },
    plan::InterfaceId,
    reason::Reason,
    tables::encoding::{IF_IPV4, IF_IPV6},
};

/// Length of an Ethernet header in bytes.
pub(super) const ETHERNET: usize = 14;
/// Length of a VLAN tag in bytes.
pub(super) const TAG: usize = 4;
/// Lengths of IP headers in bytes.
pub(super) const IPV4: usize = 20;
pub(super) const IPV6: usize = 40;

/// Version 4, and a header of five words.
const IPV4_PLAIN: u8 = 0x45;
/// Interfaces are numbered from 1. A packet for no interface has no flags.
const NO_INTERFACE: InterfaceId = 0;
/// ICMPv6 types of neighbour discovery (RFC 4861 section 4).
const ROUTER_SOLICITATION: u8 = 133;
const REDIRECT: u8 = 137;
/// Hop-by-hop options: the only extension header that a router reads.
const HOP_BY_HOP: u8 = 0;

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Check;

impl Element for Check {
    fn name(&self) -> &'static str {
        "check"
    }

    fn contract(&self) -> Contract {
        Contract { gives: Known::HEADERS, passes_up: true, part: Some(Part::Check), ..Contract::default() }
    }

    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        batch.each(counters, |packet| look(packet).err().map(Verdict::Up));
    }
}

#[inline]
pub(super) fn look(packet: &mut Packet<'_>) -> Result<(), Reason> {
    if packet.ingress.flags & IF_IPV4 != 0
        && let Some((bytes, destination)) = usual(packet.data())
    {
        let ip = (packet.head_room() + ETHERNET) as u16;
        packet.headers =
            Headers { family: Family::V4, ip, bytes, destination, is_ours: packet.headers.is_ours };
        return Ok(());
    }
    look_closely(packet)
}

/// The length and destination of a valid IPv4 packet after an Ethernet header without tags. This is the short way for
/// nearly all packets.
#[inline]
fn usual(data: &[u8]) -> Option<(u16, u32)> {
    let header = data.first_chunk::<{ ETHERNET + IPV4 }>()?;
    let (ethernet, ip) = header.split_first_chunk::<ETHERNET>()?;
    let [.., 0x08, 0x00] = ethernet else { return None };
    let ip = ip.first_chunk::<IPV4>()?;
    let bytes = u16::from_be_bytes([ip[2], ip[3]]);
    let is_right = ip[0] == IPV4_PLAIN
        && (IPV4..=data.len() - ETHERNET).contains(&bytes.into())
        && checksum_is_right(ip);
    is_right.then_some((bytes, u32::from_be_bytes([ip[16], ip[17], ip[18], ip[19]])))
}

#[inline(never)]
fn look_closely(packet: &mut Packet<'_>) -> Result<(), Reason> {
    let (data, flags, is_ours) = (packet.data(), packet.ingress.flags, packet.headers.is_ours);
    let (kind, offset) = ethernet(data).ok_or(Reason::Malformed)?;
    let at = (packet.head_room() + offset) as u16;
    let ip = data.get(offset..).ok_or(Reason::Malformed)?;
    match kind {
        ether_type::IPV4 if flags & IF_IPV4 != 0 => {
            let (bytes, destination) = ipv4(ip)?;
            packet.headers = Headers { family: Family::V4, ip: at, bytes, destination, is_ours };
        }
        ether_type::IPV6 if flags & IF_IPV6 != 0 => {
            let bytes = ipv6(ip)?;
            packet.headers = Headers { family: Family::V6, ip: at, bytes, destination: 0, is_ours };
        }
        _ if packet.ingress.interface == NO_INTERFACE => return Err(unclassified(data, kind, ip)),
        ether_type::IPV4 | ether_type::IPV6 => return Err(Reason::RouterNotAccelerated),
        ether_type::ARP => return Err(Reason::Arp),
        _ => return Err(Reason::NotIp),
    }
    Ok(())
}

/// The best reason for a packet that belongs to no interface: `unclassified()` of `bpf/millrace.bpf.c`.
#[cold]
fn unclassified(data: &[u8], kind: u16, ip: &[u8]) -> Reason {
    let is_group = data.first().is_some_and(|first| first & 1 != 0);
    match kind {
        ether_type::ARP => Reason::Arp,
        ether_type::IPV6 if is_neighbour_discovery(ip) => Reason::NeighbourDiscovery,
        _ if is_group => Reason::Broadcast,
        _ => Reason::NotOurMac,
    }
}

/// Whether this packet with EtherType IPv6 is neighbour discovery, as in `neighbour_discovery()` there.
pub(super) fn is_neighbour_discovery(ip: &[u8]) -> bool {
    let Some((header, [kind, ..])) = ip.split_first_chunk::<IPV6>() else { return false };
    header[6] == ip_proto::ICMPV6 && (ROUTER_SOLICITATION..=REDIRECT).contains(kind)
}

/// The EtherType, and the length of everything before the IP header. `None`: it is incomplete.
#[inline]
pub(super) fn ethernet(data: &[u8]) -> Option<(u16, usize)> {
    let header = data.first_chunk::<ETHERNET>()?;
    let kind = u16::from_be_bytes([header[12], header[13]]);
    if kind == ether_type::IPV4 || !is_tag(kind) {
        return Some((kind, ETHERNET));
    }
    let tags = data[ETHERNET..].first_chunk::<{ 2 * TAG }>()?;
    let kind = u16::from_be_bytes([tags[2], tags[3]]);
    if !is_tag(kind) {
        return Some((kind, ETHERNET + TAG));
    }
    Some((u16::from_be_bytes([tags[6], tags[7]]), ETHERNET + 2 * TAG))
}

pub(super) fn is_tag(kind: u16) -> bool {
    matches!(kind, ether_type::VLAN | ether_type::SERVICE_VLAN)
}

/// The length and the destination of the packet.
#[inline]
fn ipv4(ip: &[u8]) -> Result<(u16, u32), Reason> {
    let header = ip.first_chunk::<IPV4>().ok_or(Reason::Ipv4BadHeader)?;
    if header[0] != IPV4_PLAIN {
        let options = header[0] >> 4 == 4 && header[0] & 15 > 5;
        return Err(if options { Reason::Ipv4Options } else { Reason::Ipv4BadHeader });
    }
    let bytes = u16::from_be_bytes([header[2], header[3]]);
    if usize::from(bytes) < IPV4 || usize::from(bytes) > ip.len() || !checksum_is_right(header) {
        return Err(Reason::Ipv4BadHeader);
    }
    Ok((bytes, u32::from_be_bytes([header[16], header[17], header[18], header[19]])))
}

/// The ones' complement sum of a valid header has only one bits, in any byte order and with words of any length (RFC
/// 1071 section 2 B and C).
#[inline]
fn checksum_is_right(header: &[u8; IPV4]) -> bool {
    let (words, rest) = header.as_chunks();
    let [first, second] = [0, 1].map(|n| words.get(n).map_or(0, |word| u64::from_ne_bytes(*word)));
    let third = rest.first_chunk().map_or(0, |word| u64::from(u32::from_ne_bytes(*word)));
    let (sum, carry) = first.overflowing_add(second);
    let (sum, again) = sum.overflowing_add(third + u64::from(carry));
    let sum = sum.wrapping_add(again.into());
    fold(sum) == 0xffff
}

/// The length of the packet.
#[inline]
fn ipv6(ip: &[u8]) -> Result<u16, Reason> {
    let header = ip.first_chunk::<IPV6>().ok_or(Reason::Ipv6BadHeader)?;
    let bytes = IPV6 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[0] >> 4 != 6 || bytes > ip.len() {
        return Err(Reason::Ipv6BadHeader);
    }
    if header[6] == HOP_BY_HOP {
        return Err(Reason::Ipv6Extension);
    }
    Ok(bytes as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 section 1, word by word.
    fn sum_of_ones(header: &[u8; IPV4]) -> u16 {
        let words = header.as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
        words.fold(0, |sum, word| {
            let sum = sum + word;
            (sum & 0xffff) + (sum >> 16)
        }) as u16
    }

    proptest! {
        /// Bytes of all ones and zeros, which carry most.
        #[test]
        fn a_checksum_is_right_if_the_sum_of_its_words_is_all_ones(
            bytes in prop::collection::vec(prop_oneof![4 => Just(0xff), 2 => Just(0), 1 => Just(0xfe), 1 => Just(1), 1 => any::<u8>()], IPV4),
            at in 0..IPV4 / 2,
            right in any::<bool>(),
        ) {
            let mut header: [u8; IPV4] = bytes.try_into().unwrap();
            if right {
                header[2 * at..2 * at + 2].fill(0);
                let missing = 0xffff - sum_of_ones(&header);
                header[2 * at..2 * at + 2].copy_from_slice(&missing.to_be_bytes());
            }
            prop_assert_eq!(checksum_is_right(&header), sum_of_ones(&header) == 0xffff);
        }
    }

    #[test]
    fn a_carry_in_the_last_step_is_added() {
        // Sixteen bytes that produce a carry and only ones, and four that carry again.
        let mut header = [0xff; IPV4];
        header[15] = 0xfe;
        header[16..].copy_from_slice(&[0, 0, 0, 2]);
        assert_eq!(checksum_is_right(&header), sum_of_ones(&header) == 0xffff);
        for last in 0..=u8::MAX {
            header[19] = last;
            assert_eq!(checksum_is_right(&header), sum_of_ones(&header) == 0xffff, "{last}");
        }
    }
}
