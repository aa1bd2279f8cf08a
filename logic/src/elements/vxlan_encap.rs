//! `vxlan_encap`: puts Ethernet frames into VXLAN packets (RFC 7348), to one other end.
//!
//! - **Input**: any frame.
//! - **Output**: a packet of ours around the whole frame, including padding: IPv4 or IPv6, UDP, and the VXLAN header
//!   with its VNI. The Ethernet header in front has the addresses of the frame until `rewrite` corrects it. The headers
//!   of the packet are known, and its TTL need not be decremented. Its next hop is not known (`route` may find it). If
//!   it goes up, it goes up in this form.
//! - **Dropped**: `truncated`: shorter than an Ethernet header. `no_room`: no head room for the headers. `over_mtu`:
//!   longer than `mtu` with everything around it. Nobody reports this to the sender. The headers have 50 bytes over
//!   IPv4 and 70 over IPv6, less 14 for the outer Ethernet header, which does not count. The maker of VXLAN packets
//!   must not fragment them (section 4.3), so inner devices need an MTU of 1450 or 1430 if `mtu` is 1500.
//!
//! The UDP source port is a hash, 49152 to 65535, so that flows spread and stay in order (section 5). The hash uses
//! addresses, protocol and ports of the inner IP packet, or else the inner Ethernet header. The UDP checksum is 0 over
//! IPv4. It is written over IPv6: RFC 6935 would allow 0, but Linux accepts that only if it is configured
//! (`udp6zerocsumrx`). DSCP is 0, as in Linux. ECN is that of the inner IP packet (RFC 6040 section 4.1).
//!
//! | parameter | meaning |
//! |---|---|
//! | `vni` | VXLAN network identifier, 24 bits |
//! | `local`, `remote` | addresses of our end and the other end |
//! | `udp_port` | destination port; by default 4789 |
//! | `mtu` | the longest IP packet that it makes; by default 1500 |
//! | `ttl` | TTL of the outer header; by default 64 |
//! | `df` | DF of the outer IPv4 header: `"clear"` (default, as in Linux) or `"set"` |

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

/// Lengths of a UDP header and of a VXLAN header, in bytes.
pub(super) const UDP: usize = 8;
pub(super) const VXLAN: usize = 8;
/// The I flag: the VNI is valid (section 5).
pub(super) const VALID: u8 = 0x08;
/// In the low bits of TOS and traffic class.
const ECN: u8 = 3;
/// IPv4: more fragments, or an offset.
const FRAGMENT: u16 = 0x3fff;
/// The number of bits in which source ports differ.
const PORT_BITS: u32 = 14;
const FIRST_PORT: u16 = 49152;

/// The properties of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// The VNI, 24 bits.
    pub vni: u32,
    /// Both addresses.
    pub ends: Ends,
    /// The UDP destination port.
    pub port: u16,
    /// The longest IP packet that it makes.
    pub mtu: u16,
    /// The TTL or hop limit.
    pub hops: u8,
    /// Whether DF is set.
    pub is_whole: bool,
}

/// See the head of this file.
#[derive(Debug)]
pub struct VxlanEncap {
    outer: Outer,
    header: [u8; VXLAN],
    mtu: usize,
    ends: Ends,
    /// The identification of the next IPv4 packet, which may be fragmented on its way.
    id: u16,
}

impl VxlanEncap {
    /// Makes packets for this tunnel.
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

/// A hash of the parts that packets of a flow share.
fn flow(frame: &[u8]) -> u32 {
    let word = |bytes: &[u8], at: usize| {
        let chunk = bytes.get(at..).and_then(|bytes| bytes.first_chunk::<8>());
        chunk.copied().map_or(0, u64::from_le_bytes)
    };
    // The ports of TCP and UDP.
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

/// ECN of the inner IP packet.
fn inner_ecn(frame: &[u8]) -> u8 {
    let ip = ethernet(frame).and_then(|(kind, at)| Some((kind, frame.get(at..)?.first_chunk::<2>()?)));
    match ip {
        Some((ether_type::IPV4, [_, tos])) => tos & ECN,
        Some((ether_type::IPV6, [_, class])) => class >> 4 & ECN,
        _ => 0,
    }
}
