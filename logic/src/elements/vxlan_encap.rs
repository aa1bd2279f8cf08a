//! `vxlan_encap`: Ethernet frames into VXLAN (RFC 7348), to one other end.
//!
//! Comes in: any frame. Goes on: a packet of ours around the whole of it, padding too: IPv4 or IPv6, UDP, the VXLAN header with its VNI; behind an Ethernet header with the addresses of the
//! frame, which `rewrite` makes right. Its headers are known, and its TTL needs no counting; its next hop is not known (`route` may find it), and if it goes up
//! it goes up so. The UDP source port is from a hash of what is inside, 49152 to 65535, so that flows spread and stay in order (section 5): addresses, protocol and ports of IP, else
//! the Ethernet header. The UDP checksum is 0 over IPv4. Over IPv6 it is written: RFC 6935 would let it be 0, but Linux refuses that unless it is told (`udp6zerocsumrx`). DSCP is 0, as
//! of Linux; ECN is that of IP inside (RFC 6040 section 4.1).
//!
//! Dropped: `truncated`, shorter than an Ethernet header; `over_mtu`, longer than `mtu` with all that is around it, which nobody tells the sender: 50 bytes over IPv4, 70 over IPv6, less the 14 of the
//! outer Ethernet header, which are not counted. VXLAN packets are not fragmented by who makes them (section 4.3), so devices inside need an MTU of 1450, or 1430, where `mtu` is 1500. `no_room`, without head room for that.
//!
//! | parameter | meaning |
//! |---|---|
//! | `vni` | VXLAN network identifier, 24 bits |
//! | `local`, `remote` | addresses of the two ends, ours first |
//! | `udp_port` | destination port; default 4789 |
//! | `mtu` | the longest IP packet that it makes; default 1500 |
//! | `ttl` | of the outer header; default 64 |
//! | `df` | DF of the outer IPv4 header: `"clear"` (default, as of Linux) or `"set"` |

use super::{
    Batch, Contract, Counters, Element, Known, Now,
    check::{ETHERNET, IPV4, IPV6, ethernet},
    packet::{Family, Headers, Loss, Packet, Verdict},
};
use crate::{
    esp::{self, Dont, Ends, Outer, Udp},
    flow::field::{ether_type, ip_proto},
    hash,
};
use std::any::Any;

/// Bytes of a UDP and of a VXLAN header.
pub(super) const UDP: usize = 8;
pub(super) const VXLAN: usize = 8;
/// The I flag: the VNI is valid (section 5).
pub(super) const VALID: u8 = 0x08;
/// In the low bits of TOS and traffic class.
const ECN: u8 = 3;
/// IPv4: more fragments, and an offset.
const FRAGMENT: u16 = 0x3fff;
/// Source ports have so many bits that differ.
const PORT_BITS: u32 = 14;
const FIRST_PORT: u16 = 49152;

/// Where a tunnel begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// 24 bits.
    pub vni: u32,
    /// Both addresses.
    pub ends: Ends,
    /// Of UDP.
    pub port: u16,
    /// The longest IP packet it makes.
    pub mtu: u16,
    /// TTL or hop limit.
    pub hops: u8,
    /// DF is set.
    pub is_whole: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub struct VxlanEncap {
    outer: Outer,
    header: [u8; VXLAN],
    mtu: usize,
    ends: Ends,
    /// Of the next IPv4 packet, which may be fragmented on its way.
    id: u16,
}

impl VxlanEncap {
    /// From one end to the other.
    pub fn new(vxlan: Vxlan) -> Self {
        let Vxlan { vni, ends, port, mtu, hops, is_whole } = vxlan;
        let dont = if is_whole { Dont::Set } else { Dont::Clear };
        let outer = Outer::new(ends, Some(Udp { local: FIRST_PORT, remote: port }), dont, hops);
        let header = (u64::from(VALID) << 56 | u64::from(vni & 0xff_ffff) << 8).to_be_bytes();
        VxlanEncap { outer, header, mtu: mtu.into(), ends, id: 0 }
    }

    fn wrap(&mut self, packet: &mut Packet<'_>) -> Result<(), Loss> {
        let frame = packet.data();
        let macs = *frame.first_chunk::<12>().filter(|_| frame.len() >= ETHERNET).ok_or(Loss::Truncated)?;
        let (port, ecn) = (source_port(frame), inner_ecn(frame));
        let total = self.outer.bytes + VXLAN + frame.len();
        if total > self.mtu {
            return Err(Loss::OverMtu);
        }
        if !packet.push(ETHERNET + self.outer.bytes + VXLAN) {
            return Err(Loss::NoRoom);
        }
        let ip = (packet.head_room() + ETHERNET) as u16;
        let (outer, data) = (&self.outer, packet.data_mut());
        let (ethernet, rest) = data.split_at_mut_checked(ETHERNET).ok_or(Loss::NoRoom)?;
        ethernet[..12].copy_from_slice(&macs);
        ethernet[12..].copy_from_slice(&outer.kind);
        let (headers, rest) = rest.split_at_mut_checked(outer.bytes).ok_or(Loss::NoRoom)?;
        if !outer.write(headers, total as u16, ecn, false, self.id) {
            return Err(Loss::NoRoom);
        }
        if let Some(udp) = headers.last_chunk_mut::<UDP>() {
            udp[..2].copy_from_slice(&port.to_be_bytes());
        }
        *rest.first_chunk_mut().ok_or(Loss::NoRoom)? = self.header;
        self.id = self.id.wrapping_add(1);
        let (family, destination) = match self.ends {
            Ends::V4 { remote, .. } => (Family::V4, remote.to_bits()),
            Ends::V6 { .. } => (Family::V6, 0),
        };
        packet.renew(Headers { family, ip, bytes: total as u16, destination, is_ours: true });
        if family == Family::V6 {
            esp::udp6_checksum(packet.ip_mut());
        }
        Ok(())
    }
}

impl Element for VxlanEncap {
    fn name(&self) -> &'static str {
        "vxlan_encap"
    }

    fn contract(&self) -> Contract {
        let gives = Known::HEADERS | Known::HOP_COUNTED;
        Contract { gives, forgets: Known::NEXT_HOP | Known::WRITTEN, ..Contract::default() }
    }

    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        batch.each(counters, |packet| self.wrap(packet).err().map(Verdict::Drop));
    }

    fn kept(&self) -> Option<&dyn Any> {
        Some(&self.id)
    }

    fn go_on_from(&mut self, kept: &dyn Any) {
        self.id = kept.downcast_ref().copied().unwrap_or(self.id);
    }
}

fn source_port(frame: &[u8]) -> u16 {
    FIRST_PORT | (flow(frame) >> (u32::BITS - PORT_BITS)) as u16
}

/// A hash of what packets of a flow have in common.
fn flow(frame: &[u8]) -> u32 {
    let word = |bytes: &[u8], at: usize| {
        let chunk = bytes.get(at..).and_then(|bytes| bytes.first_chunk::<8>());
        chunk.copied().map_or(0, u64::from_le_bytes)
    };
    // Those of TCP and UDP.
    let ports = |proto: u8, behind: &[u8]| {
        let has = matches!(proto, ip_proto::TCP | ip_proto::UDP);
        behind.first_chunk::<4>().filter(|_| has).copied().map_or(0, u32::from_le_bytes)
    };
    let kind = ethernet(frame).and_then(|(kind, at)| Some((kind, frame.get(at..)?)));
    match kind {
        Some((ether_type::IPV4, ip)) if ip.len() >= IPV4 => {
            let is_whole = u16::from_be_bytes([ip[6], ip[7]]) & FRAGMENT == 0;
            let behind = ip.get(usize::from(ip[0] & 15) * 4..).filter(|_| is_whole).unwrap_or_default();
            hash::flow([word(ip, 12), u64::from(ip[9]) << 32 | u64::from(ports(ip[9], behind))])
        }
        Some((ether_type::IPV6, ip)) if ip.len() >= IPV6 => {
            let rest = u64::from(ip[6]) << 32 | u64::from(ports(ip[6], ip.get(IPV6..).unwrap_or_default()));
            hash::flow([word(ip, 8), word(ip, 16), word(ip, 24), word(ip, 32), rest])
        }
        _ => hash::flow([word(frame, 0), word(frame, 6)]),
    }
}

/// ECN of IP inside.
fn inner_ecn(frame: &[u8]) -> u8 {
    let ip = ethernet(frame).and_then(|(kind, at)| Some((kind, frame.get(at..)?.first_chunk::<2>()?)));
    match ip {
        Some((ether_type::IPV4, [_, tos])) => tos & ECN,
        Some((ether_type::IPV6, [_, class])) => class >> 4 & ECN,
        _ => 0,
    }
}
