//! The fields of a packet that a rule can match; each is a few bits of the [`Key`](super::Key).
//!
//! One table serves the matcher, both codecs, the text syntax and the kernel plane. It has each field's place in the key,
//! its width, its number in OpenFlow 1.3 (OXM, class 0x8000, section 7.2.3.7), and the fields that must be matched with it
//! (7.2.3.8). Fields that can never be in one packet share a place. For example, an ARP operation has the place of a source
//! port.

use std::fmt;

/// EtherTypes that rules know.
pub mod ether_type {
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const VLAN: u16 = 0x8100;
    pub const SERVICE_VLAN: u16 = 0x88a8;
    pub const IPV6: u16 = 0x86dd;
    /// The type that OpenFlow 1.0 (section 3.4) gives an 802.3 frame without a SNAP header.
    pub const NONE: u16 = 0x05ff;
}

/// IP protocols that rules know.
pub mod ip_proto {
    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ICMPV6: u8 = 58;
    pub const SCTP: u8 = 132;
}

/// The bit of [`Field::VlanVid`] that is set if there is a tag (OFPVID_PRESENT).
pub const VLAN_PRESENT: u16 = 0x1000;

/// A field, named as in OpenFlow 1.3. `Inner...`: a field of the frame inside VXLAN (V1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Field {
    InPort,
    Metadata,
    /// Data that accompanies the packet, like the metadata. It is 0 at first, set-field writes it, and it is not in the
    /// frame.
    TunnelId,
    EthDst,
    EthSrc,
    EthType,
    VlanVid,
    VlanPcp,
    IpDscp,
    IpEcn,
    IpProto,
    Ipv4Src,
    Ipv4Dst,
    TcpSrc,
    TcpDst,
    UdpSrc,
    UdpDst,
    SctpSrc,
    SctpDst,
    Icmpv4Type,
    Icmpv4Code,
    ArpOp,
    ArpSpa,
    ArpTpa,
    ArpSha,
    ArpTha,
    Ipv6Src,
    Ipv6Dst,
    Ipv6Flabel,
    Icmpv6Type,
    Icmpv6Code,
    Ipv6NdTarget,
    Ipv6NdSll,
    Ipv6NdTll,
    InnerEthDst,
    InnerEthSrc,
    InnerEthType,
    InnerVlanVid,
    InnerVlanPcp,
    InnerIpDscp,
    InnerIpEcn,
    InnerIpProto,
    InnerIpv4Src,
    InnerIpv4Dst,
    InnerTpSrc,
    InnerTpDst,
    /// The network identifier in the header of a VXLAN packet. This field is ours; [`Field::TunnelId`] is a field of the
    /// pipeline.
    VxlanVni,
}

/// What must also be matched, exactly, to make a field meaningful. Of several values any one will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// A VLAN tag is present.
    Vlan,
    /// One of these EtherTypes.
    Type(&'static [u16]),
    /// The EtherType is IPv4 or IPv6, and this is the protocol.
    Proto(u8),
    /// This EtherType and this protocol.
    TypeProto(u16, u8),
    /// ICMPv6 over IPv6, of one of these types.
    Icmp6(&'static [u8]),
    /// One of these EtherTypes, in the frame inside VXLAN.
    InnerType(&'static [u16]),
    /// The inner frame has a VLAN tag.
    InnerVlan,
    /// The inner protocol is one of these.
    InnerProto(&'static [u8]),
}

/// The place of a field in the key, and how it is written.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub field: Field,
    /// Name in OpenFlow 1.3 without its prefix, lower case.
    pub name: &'static str,
    /// Offset of its first byte in the key.
    pub offset: usize,
    /// How many bytes of the key it occupies, at least in part.
    pub bytes: usize,
    /// How many bits are to the right of it in those bytes (big-endian).
    pub shift: u32,
    pub bits: u32,
    /// OXM: how many bytes its value has. Bits beyond `bits` are zero.
    pub oxm_bytes: usize,
    /// OXM number in class 0x8000; `None`: ours, in the experimenter class.
    pub oxm: Option<u8>,
    /// May OpenFlow 1.3 mask it (7.2.3.7)?
    pub maskable: bool,
    pub needs: Needs,
}

use Field::*;
use Needs::*;

const IP: &[u16] = &[ether_type::IPV4, ether_type::IPV6];
const IPV4: &[u16] = &[ether_type::IPV4];
const IPV6: &[u16] = &[ether_type::IPV6];
const ARP: &[u16] = &[ether_type::ARP];
const ND: &[u8] = &[135, 136];

#[rustfmt::skip]
const fn spec(field: Field, name: &'static str, place: (usize, usize, u32, u32), oxm: (Option<u8>, usize), maskable: bool, needs: Needs) -> Spec {
    let (offset, bytes, shift, bits) = place;
    Spec { field, name, offset, bytes, shift, bits, oxm_bytes: oxm.1, oxm: oxm.0, maskable, needs }
}

/// Every field, in the order of [`Field`]. Places follow `struct flow_key` of `bpf/flow_abi.h`: (offset, bytes, shift,
/// bits).
#[rustfmt::skip]
pub const FIELDS: &[Spec] = &[
    spec(InPort,       "in_port",        (0, 2, 0, 16),    (Some(0), 4),   false, Nothing),
    spec(Metadata,     "metadata",       (32, 8, 0, 64),   (Some(2), 8),   true,  Nothing),
    spec(TunnelId,     "tunnel_id",      (144, 8, 0, 64),  (Some(38), 8),  true,  Nothing),
    spec(EthDst,       "eth_dst",        (8, 6, 0, 48),    (Some(3), 6),   true,  Nothing),
    spec(EthSrc,       "eth_src",        (16, 6, 0, 48),   (Some(4), 6),   true,  Nothing),
    spec(EthType,      "eth_type",       (2, 2, 0, 16),    (Some(5), 2),   false, Nothing),
    spec(VlanVid,      "vlan_vid",       (4, 2, 0, 13),    (Some(6), 2),   true,  Nothing),
    spec(VlanPcp,      "vlan_pcp",       (4, 2, 13, 3),    (Some(7), 1),   false, Vlan),
    spec(IpDscp,       "ip_dscp",        (7, 1, 2, 6),     (Some(8), 1),   false, Type(IP)),
    spec(IpEcn,        "ip_ecn",         (7, 1, 0, 2),     (Some(9), 1),   false, Type(IP)),
    spec(IpProto,      "ip_proto",       (6, 1, 0, 8),     (Some(10), 1),  false, Type(IP)),
    spec(Ipv4Src,      "ipv4_src",       (24, 4, 0, 32),   (Some(11), 4),  true,  Type(IPV4)),
    spec(Ipv4Dst,      "ipv4_dst",       (28, 4, 0, 32),   (Some(12), 4),  true,  Type(IPV4)),
    spec(TcpSrc,       "tcp_src",        (14, 2, 0, 16),   (Some(13), 2),  false, Proto(ip_proto::TCP)),
    spec(TcpDst,       "tcp_dst",        (22, 2, 0, 16),   (Some(14), 2),  false, Proto(ip_proto::TCP)),
    spec(UdpSrc,       "udp_src",        (14, 2, 0, 16),   (Some(15), 2),  false, Proto(ip_proto::UDP)),
    spec(UdpDst,       "udp_dst",        (22, 2, 0, 16),   (Some(16), 2),  false, Proto(ip_proto::UDP)),
    spec(SctpSrc,      "sctp_src",       (14, 2, 0, 16),   (Some(17), 2),  false, Proto(ip_proto::SCTP)),
    spec(SctpDst,      "sctp_dst",       (22, 2, 0, 16),   (Some(18), 2),  false, Proto(ip_proto::SCTP)),
    spec(Icmpv4Type,   "icmpv4_type",    (14, 2, 0, 16),   (Some(19), 1),  false, TypeProto(ether_type::IPV4, ip_proto::ICMP)),
    spec(Icmpv4Code,   "icmpv4_code",    (22, 2, 0, 16),   (Some(20), 1),  false, TypeProto(ether_type::IPV4, ip_proto::ICMP)),
    spec(ArpOp,        "arp_op",         (14, 2, 0, 16),   (Some(21), 2),  false, Type(ARP)),
    spec(ArpSpa,       "arp_spa",        (24, 4, 0, 32),   (Some(22), 4),  true,  Type(ARP)),
    spec(ArpTpa,       "arp_tpa",        (28, 4, 0, 32),   (Some(23), 4),  true,  Type(ARP)),
    spec(ArpSha,       "arp_sha",        (96, 6, 0, 48),   (Some(24), 6),  true,  Type(ARP)),
    spec(ArpTha,       "arp_tha",        (104, 6, 0, 48),  (Some(25), 6),  true,  Type(ARP)),
    spec(Ipv6Src,      "ipv6_src",       (48, 16, 0, 128), (Some(26), 16), true,  Type(IPV6)),
    spec(Ipv6Dst,      "ipv6_dst",       (64, 16, 0, 128), (Some(27), 16), true,  Type(IPV6)),
    spec(Ipv6Flabel,   "ipv6_flabel",    (44, 4, 0, 20),   (Some(28), 4),  true,  Type(IPV6)),
    spec(Icmpv6Type,   "icmpv6_type",    (14, 2, 0, 16),   (Some(29), 1),  false, TypeProto(ether_type::IPV6, ip_proto::ICMPV6)),
    spec(Icmpv6Code,   "icmpv6_code",    (22, 2, 0, 16),   (Some(30), 1),  false, TypeProto(ether_type::IPV6, ip_proto::ICMPV6)),
    spec(Ipv6NdTarget, "ipv6_nd_target", (80, 16, 0, 128), (Some(31), 16), false, Icmp6(ND)),
    spec(Ipv6NdSll,    "ipv6_nd_sll",    (96, 6, 0, 48),   (Some(32), 6),  false, Icmp6(&[135])),
    spec(Ipv6NdTll,    "ipv6_nd_tll",    (104, 6, 0, 48),  (Some(33), 6),  false, Icmp6(&[136])),
    spec(InnerEthDst,  "inner_eth_dst",  (120, 6, 0, 48),  (None, 6),      true,  Nothing),
    spec(InnerEthSrc,  "inner_eth_src",  (128, 6, 0, 48),  (None, 6),      true,  Nothing),
    spec(InnerEthType, "inner_eth_type", (112, 2, 0, 16),  (None, 2),      false, Nothing),
    spec(InnerVlanVid, "inner_vlan_vid", (114, 2, 0, 13),  (None, 2),      true,  Nothing),
    spec(InnerVlanPcp, "inner_vlan_pcp", (114, 2, 13, 3),  (None, 1),      false, InnerVlan),
    spec(InnerIpDscp,  "inner_ip_dscp",  (117, 1, 2, 6),   (None, 1),      false, InnerType(IP)),
    spec(InnerIpEcn,   "inner_ip_ecn",   (117, 1, 0, 2),   (None, 1),      false, InnerType(IP)),
    spec(InnerIpProto, "inner_ip_proto", (116, 1, 0, 8),   (None, 1),      false, InnerType(IP)),
    spec(InnerIpv4Src, "inner_ipv4_src", (136, 4, 0, 32),  (None, 4),      true,  InnerType(IPV4)),
    spec(InnerIpv4Dst, "inner_ipv4_dst", (140, 4, 0, 32),  (None, 4),      true,  InnerType(IPV4)),
    spec(InnerTpSrc,   "inner_tp_src",   (126, 2, 0, 16),  (None, 2),      false, InnerProto(&[1, 6, 17, 132])),
    spec(InnerTpDst,   "inner_tp_dst",   (134, 2, 0, 16),  (None, 2),      false, InnerProto(&[1, 6, 17, 132])),
    spec(VxlanVni,     "vxlan_vni",      (40, 4, 0, 24),   (None, 4),      true,  Nothing),
];

impl Field {
    /// Its row in [`FIELDS`].
    pub const fn spec(self) -> &'static Spec {
        &FIELDS[self as usize]
    }
    /// All its bits.
    pub const fn all_bits(self) -> u128 {
        u128::MAX >> (128 - self.spec().bits)
    }
    /// The field with this OXM number in class 0x8000.
    pub fn from_oxm(number: u8) -> Option<Field> {
        FIELDS.iter().find(|s| s.oxm == Some(number)).map(|s| s.field)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.spec().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Key;

    #[test]
    fn the_table_is_in_the_order_of_the_fields_and_stays_in_the_key() {
        for (i, s) in FIELDS.iter().enumerate() {
            assert_eq!(s.field as usize, i, "{}", s.name);
            assert!(s.offset + s.bytes <= Key::BYTES, "{}", s.name);
            assert!(s.shift + s.bits <= 8 * s.bytes as u32, "{}", s.name);
            assert!(s.bits as usize <= 8 * s.oxm_bytes || s.oxm_bytes == 1, "{}", s.name);
        }
    }

    #[test]
    fn fields_share_a_place_only_if_no_packet_has_both() {
        let exclusive = |a: &Spec, b: &Spec| match (a.needs, b.needs) {
            (Proto(x), Proto(y)) => x != y,
            (TypeProto(_, x), Proto(y)) | (Proto(x), TypeProto(_, y)) => x != y,
            (TypeProto(x, _), TypeProto(y, _)) => x != y,
            (Type(x), Type(y)) => x.iter().all(|x| !y.contains(x)),
            (Type(ARP), Proto(_) | TypeProto(..) | Icmp6(_)) => true,
            (Proto(_) | TypeProto(..) | Icmp6(_), Type(ARP)) => true,
            _ => false,
        };
        for (i, a) in FIELDS.iter().enumerate() {
            for b in &FIELDS[i + 1..] {
                let bits = |s: &Spec| (8 * s.offset as u32 + 8 * s.bytes as u32 - s.shift - s.bits, s.bits);
                let ((a0, an), (b0, bn)) = (bits(a), bits(b));
                assert!(a0 + an <= b0 || b0 + bn <= a0 || exclusive(a, b), "{} and {}", a.name, b.name);
            }
        }
    }
}
