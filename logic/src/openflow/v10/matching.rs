//! `struct ofp_match` (section 5.2.3): twelve fields, each matched or wildcarded; addresses have a prefix length.

use super::{CannotSay, Write, cannot};
use crate::{
    flow::{
        Field, Match,
        field::{VLAN_PRESENT, ether_type, ip_proto},
    },
    openflow::format::{Format, Layout, Pad, U8, U16, U32, layout},
};

/// `dl_vlan` of a packet without a tag (OFP_VLAN_NONE).
const VLAN_NONE: u16 = 0xffff;

/// OFPFW: a bit for each field that is not matched. For each IPv4 address, the number of bits at its end that are not
/// matched.
mod wild {
    pub const IN_PORT: u32 = 1 << 0;
    pub const DL_VLAN: u32 = 1 << 1;
    pub const DL_SRC: u32 = 1 << 2;
    pub const DL_DST: u32 = 1 << 3;
    pub const DL_TYPE: u32 = 1 << 4;
    pub const NW_PROTO: u32 = 1 << 5;
    pub const TP_SRC: u32 = 1 << 6;
    pub const TP_DST: u32 = 1 << 7;
    pub const NW_SRC_SHIFT: u32 = 8;
    pub const NW_DST_SHIFT: u32 = 14;
    pub const NW_BITS: u32 = 0x3f;
    pub const DL_VLAN_PCP: u32 = 1 << 20;
    pub const NW_TOS: u32 = 1 << 21;
    pub const ALL: u32 = (1 << 22) - 1;
    /// Matches everything. For each address, 32 bits are not matched. More would mean the same; Open vSwitch writes 32.
    pub const EVERYTHING: u32 =
        ALL & !(NW_BITS << NW_SRC_SHIFT | NW_BITS << NW_DST_SHIFT) | 32 << NW_SRC_SHIFT | 32 << NW_DST_SHIFT;
}

/// A match as it is on the wire.
#[derive(Debug, Default)]
pub struct Wire {
    wildcards: u32,
    in_port: u16,
    dl_src: u64,
    dl_dst: u64,
    dl_vlan: u16,
    dl_vlan_pcp: u8,
    dl_type: u16,
    nw_tos: u8,
    nw_proto: u8,
    nw_src: u32,
    nw_dst: u32,
    tp_src: u16,
    tp_dst: u16,
}

pub const MATCH: Layout<Match> = Layout(
    |r| WIRE.read(r).map(|wire| wire.matching()),
    |matching, out| WIRE.write(&Wire::of(matching)?, out),
);

pub const WIRE: Layout<Wire> = layout!(Wire {
    wildcards: U32,
    in_port: U16,
    dl_src: MAC_NUMBER,
    dl_dst: MAC_NUMBER,
    dl_vlan: U16,
    dl_vlan_pcp: Pad(U8, 1),
    dl_type: U16,
    nw_tos: U8,
    nw_proto: Pad(U8, 2),
    nw_src: U32,
    nw_dst: U32,
    tp_src: U16,
    tp_dst: U16,
});

/// A MAC address as an integer.
const MAC_NUMBER: Layout<u64> = Layout(
    |r| Ok(r.uint(6)? as u64),
    |mac, out| {
        out.uint((*mac).into(), 6);
        Ok(())
    },
);

impl Wire {
    /// Does it have no wildcard? Such a rule always has the highest priority (section 3.4).
    pub fn is_exact(&self) -> bool {
        self.wildcards & wild::ALL == 0
    }

    /// The match. Fields without the fields that they need are ignored (section 3.4).
    pub fn matching(&self) -> Match {
        let mut m = Match::ANY;
        self.exactly(wild::IN_PORT, Field::InPort, self.in_port, &mut m);
        self.exactly(wild::DL_SRC, Field::EthSrc, self.dl_src, &mut m);
        self.exactly(wild::DL_DST, Field::EthDst, self.dl_dst, &mut m);
        self.exactly(wild::DL_TYPE, Field::EthType, self.dl_type, &mut m);
        self.vlan(&mut m);
        match self.dl_type {
            _ if !self.has(wild::DL_TYPE) => {}
            ether_type::IPV4 => {
                self.addresses(Field::Ipv4Src, Field::Ipv4Dst, &mut m);
                self.ip((ip_proto::ICMP, Field::Icmpv4Type, Field::Icmpv4Code), &mut m);
            }
            // The specification does not mention IPv6; Open vSwitch and controllers use it. There is no place for its
            // addresses.
            ether_type::IPV6 => self.ip((ip_proto::ICMPV6, Field::Icmpv6Type, Field::Icmpv6Code), &mut m),
            ether_type::ARP => self.arp(&mut m),
            _ => {}
        }
        m
    }

    fn has(&self, bit: u32) -> bool {
        self.wildcards & bit == 0
    }

    fn exactly(&self, bit: u32, field: Field, value: impl Into<u128>, m: &mut Match) {
        if self.has(bit) {
            m.set(field, value.into(), field.all_bits());
        }
    }

    /// A priority without an id matches any tag with that priority, as in Open vSwitch.
    fn vlan(&self, m: &mut Match) {
        let tagged = u128::from(VLAN_PRESENT);
        let vid = u128::from(self.dl_vlan & (VLAN_PRESENT - 1));
        let all = Field::VlanVid.all_bits();
        match (self.has(wild::DL_VLAN), self.has(wild::DL_VLAN_PCP)) {
            (true, _) if self.dl_vlan == VLAN_NONE => return m.set(Field::VlanVid, 0, all),
            (true, _) => m.set(Field::VlanVid, tagged | vid, all),
            (false, true) => m.set(Field::VlanVid, tagged, tagged),
            (false, false) => return,
        }
        self.exactly(wild::DL_VLAN_PCP, Field::VlanPcp, self.dl_vlan_pcp, m);
    }

    /// `icmp`: the protocol number of ICMP, and the fields of its type and code.
    fn ip(&self, icmp: (u8, Field, Field), m: &mut Match) {
        self.exactly(wild::NW_TOS, Field::IpDscp, self.nw_tos >> 2, m);
        self.exactly(wild::NW_PROTO, Field::IpProto, self.nw_proto, m);
        let (src, dst) = match self.nw_proto {
            _ if !self.has(wild::NW_PROTO) => return,
            ip_proto::TCP => (Field::TcpSrc, Field::TcpDst),
            ip_proto::UDP => (Field::UdpSrc, Field::UdpDst),
            proto if proto == icmp.0 => (icmp.1, icmp.2),
            _ => return,
        };
        self.exactly(wild::TP_SRC, src, self.tp_src, m);
        self.exactly(wild::TP_DST, dst, self.tp_dst, m);
    }

    fn arp(&self, m: &mut Match) {
        if self.has(wild::NW_PROTO) {
            // The lower byte of the operation (section 3.4). The upper byte is 0 in all existing operations.
            m.set(Field::ArpOp, self.nw_proto.into(), Field::ArpOp.all_bits());
        }
        self.addresses(Field::ArpSpa, Field::ArpTpa, m);
    }

    fn addresses(&self, src: Field, dst: Field, m: &mut Match) {
        let mask = |shift: u32| u32::MAX.checked_shl(self.wildcards >> shift & wild::NW_BITS).unwrap_or(0);
        m.set(src, self.nw_src.into(), mask(wild::NW_SRC_SHIFT).into());
        m.set(dst, self.nw_dst.into(), mask(wild::NW_DST_SHIFT).into());
    }

    /// The inverse of [`matching`](Wire::matching).
    pub fn of(matching: &Match) -> Result<Wire, CannotSay> {
        let mut wire = Wire { wildcards: wild::EVERYTHING, ..Wire::default() };
        for (field, value, mask) in matching.fields() {
            wire.place(field, value, mask)?;
        }
        // Parts that cannot be expressed, such as some masks, are not read back.
        if wire.matching() == *matching {
            Ok(wire)
        } else {
            Err(cannot("these fields with these masks in one match"))
        }
    }

    fn place(&mut self, field: Field, value: u128, mask: u128) -> Result<(), CannotSay> {
        let address =
            |shift: u32| (value as u32, wild::NW_BITS << shift, (mask as u32).trailing_zeros() << shift);
        let (mut clear, mut set) = (0, 0);
        match field {
            Field::InPort => (self.in_port, clear) = (value as u16, wild::IN_PORT),
            Field::EthSrc => (self.dl_src, clear) = (value as u64, wild::DL_SRC),
            Field::EthDst => (self.dl_dst, clear) = (value as u64, wild::DL_DST),
            Field::EthType => (self.dl_type, clear) = (value as u16, wild::DL_TYPE),
            Field::VlanVid if mask == u128::from(VLAN_PRESENT) => {} // A tag is matched by its priority.
            Field::VlanVid if value == 0 => (self.dl_vlan, clear) = (VLAN_NONE, wild::DL_VLAN),
            Field::VlanVid => (self.dl_vlan, clear) = (value as u16 & (VLAN_PRESENT - 1), wild::DL_VLAN),
            Field::VlanPcp => (self.dl_vlan_pcp, clear) = (value as u8, wild::DL_VLAN_PCP),
            Field::IpDscp => (self.nw_tos, clear) = ((value as u8) << 2, wild::NW_TOS),
            Field::IpProto | Field::ArpOp => (self.nw_proto, clear) = (value as u8, wild::NW_PROTO),
            Field::Ipv4Src | Field::ArpSpa => (self.nw_src, clear, set) = address(wild::NW_SRC_SHIFT),
            Field::Ipv4Dst | Field::ArpTpa => (self.nw_dst, clear, set) = address(wild::NW_DST_SHIFT),
            Field::TcpSrc | Field::UdpSrc | Field::Icmpv4Type | Field::Icmpv6Type => {
                (self.tp_src, clear) = (value as u16, wild::TP_SRC);
            }
            Field::TcpDst | Field::UdpDst | Field::Icmpv4Code | Field::Icmpv6Code => {
                (self.tp_dst, clear) = (value as u16, wild::TP_DST);
            }
            other => return Err(cannot(other.spec().name)),
        }
        self.wildcards = self.wildcards & !clear | set;
        Ok(())
    }
}
