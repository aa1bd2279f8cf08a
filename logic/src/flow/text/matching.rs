//! Matches under the names of Open vSwitch's fields.

use super::{BadText, FLOW_WORDS, Names, Word, none_of, value, value::ValueText, words};
use crate::flow::{
    Field::{self, *},
    Match,
    field::{FIELDS, Needs, VLAN_PRESENT, ether_type, ip_proto},
};
use std::fmt;

/// Names and the fields that they may mean: the first one for which the match has what the field needs. Each field also
/// has its name of OpenFlow 1.3. The first name of a field is the one that Open vSwitch uses in actions.
#[rustfmt::skip]
pub(super) const NAMES: &[(&str, &[Field])] = &[
    ("in_port", &[InPort]), ("metadata", &[Metadata]), ("tun_id", &[TunnelId]), ("tunnel_id", &[TunnelId]),
    ("eth_src", &[EthSrc]), ("dl_src", &[EthSrc]), ("eth_dst", &[EthDst]), ("dl_dst", &[EthDst]),
    ("eth_type", &[EthType]), ("dl_type", &[EthType]),
    ("vlan_vid", &[VlanVid]), ("vlan_pcp", &[VlanPcp]), ("dl_vlan_pcp", &[VlanPcp]),
    ("ip_dscp", &[IpDscp]), ("nw_ecn", &[IpEcn]), ("ip_ecn", &[IpEcn]),
    ("ip_proto", &[IpProto]), ("nw_proto", &[IpProto, ArpOp]),
    ("ip_src", &[Ipv4Src]), ("nw_src", &[Ipv4Src, ArpSpa]), ("ip_dst", &[Ipv4Dst]), ("nw_dst", &[Ipv4Dst, ArpTpa]),
    ("tcp_src", &[TcpSrc]), ("tcp_dst", &[TcpDst]), ("udp_src", &[UdpSrc]), ("udp_dst", &[UdpDst]),
    ("sctp_src", &[SctpSrc]), ("sctp_dst", &[SctpDst]),
    ("tp_src", &[TcpSrc, UdpSrc, SctpSrc, Icmpv4Type, Icmpv6Type]),
    ("tp_dst", &[TcpDst, UdpDst, SctpDst, Icmpv4Code, Icmpv6Code]),
    ("icmp_type", &[Icmpv4Type, Icmpv6Type]), ("icmp_code", &[Icmpv4Code, Icmpv6Code]),
    ("icmpv6_type", &[Icmpv6Type]), ("icmpv6_code", &[Icmpv6Code]),
    ("arp_op", &[ArpOp]), ("arp_spa", &[ArpSpa]), ("arp_tpa", &[ArpTpa]), ("arp_sha", &[ArpSha]), ("arp_tha", &[ArpTha]),
    ("ipv6_src", &[Ipv6Src]), ("ipv6_dst", &[Ipv6Dst]), ("ipv6_label", &[Ipv6Flabel]),
    ("nd_target", &[Ipv6NdTarget]), ("nd_sll", &[Ipv6NdSll]), ("nd_tll", &[Ipv6NdTll]),
];

/// Shorthands: EtherType and IP protocol.
pub(super) const SHORTHANDS: &[(&str, u16, Option<u8>)] = &[
    ("ip", ether_type::IPV4, None),
    ("icmp", ether_type::IPV4, Some(ip_proto::ICMP)),
    ("tcp", ether_type::IPV4, Some(ip_proto::TCP)),
    ("udp", ether_type::IPV4, Some(ip_proto::UDP)),
    ("sctp", ether_type::IPV4, Some(ip_proto::SCTP)),
    ("ipv6", ether_type::IPV6, None),
    ("icmp6", ether_type::IPV6, Some(ip_proto::ICMPV6)),
    ("tcp6", ether_type::IPV6, Some(ip_proto::TCP)),
    ("udp6", ether_type::IPV6, Some(ip_proto::UDP)),
    ("sctp6", ether_type::IPV6, Some(ip_proto::SCTP)),
    ("arp", ether_type::ARP, None),
    ("rarp", RARP, None),
];

const RARP: u16 = 0x8035;

/// Fields that Open vSwitch matches and Millrace does not: names, and beginnings of names.
const FOREIGN: &[&str] = &[
    "actset_output",
    "conj_id",
    "dl_vlan1",
    "dl_vlan_pcp1",
    "dp_hash",
    "igmp",
    "ip_frag",
    "nd_options_type",
    "nd_reserved",
    "nw_frag",
    "nw_ttl",
    "packet_type",
    "pkt_mark",
    "recirc_id",
    "skb_priority",
    "tcp_flags",
    "vlan_tci1",
];
const FOREIGN_FAMILIES: &[&str] = &["ct_", "mpls", "nsh", "reg", "tun_", "xreg", "xxreg"];

fn is_foreign(name: &str) -> bool {
    FOREIGN.contains(&name) || FOREIGN_FAMILIES.iter().any(|family| name.starts_with(family))
}

/// The fields that a name may mean. Empty if there is none.
fn candidates(name: &str) -> Vec<Field> {
    match NAMES.iter().find(|(n, _)| *n == name) {
        Some((_, fields)) => fields.to_vec(),
        None => FIELDS.iter().filter(|s| s.name == name).map(|s| s.field).collect(),
    }
}

/// The field that a name means in an action.
pub(super) fn field_of_action(name: &str) -> Result<Field, BadText> {
    match candidates(name).first() {
        Some(&field) if !name.starts_with("tp_") => Ok(field),
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> BadText {
    if is_foreign(name) {
        return BadText::new(name, "a field of Open vSwitch that is not supported here");
    }
    let short = SHORTHANDS.iter().map(|(name, ..)| *name);
    let all = short.chain(["dl_vlan", "vlan_tci", "nw_tos"]).chain(NAMES.iter().map(|(name, _)| *name));
    let inner = FIELDS
        .iter()
        .map(|spec| spec.name)
        .filter(|name| name.starts_with("inner_") || *name == Field::VxlanVni.spec().name);
    let of_flow = FLOW_WORDS.iter().map(|(name, _)| *name);
    BadText::new(name, none_of(name, "a field", all.chain(inner).chain(of_flow)))
}

/// Open vSwitch's name of a field in actions.
pub(super) fn name_in_actions(field: Field) -> &'static str {
    NAMES.iter().find(|(_, fields)| **fields == [field]).map_or(field.spec().name, |(name, _)| name)
}

/// Parses a match as in a flow, without priority.
pub fn parse_match(text: &str) -> Result<Match, BadText> {
    of_words(words(text, Names::default())?)
}

pub(super) fn of_words(mut words: Vec<Word<'_>>) -> Result<Match, BadText> {
    // Sort in the order of FIELDS, so that a field comes after those that it needs.
    words.sort_by_key(|word| match word.key {
        key if SHORTHANDS.iter().any(|(name, ..)| *name == key) => EthType,
        "dl_vlan" | "vlan_tci" => VlanVid,
        "nw_tos" => IpDscp,
        key => candidates(key).first().copied().unwrap_or(InPort),
    });
    words.into_iter().try_fold(Match::ANY, |mut matching, word| {
        add(&mut matching, word)?;
        Ok(matching)
    })
}

/// Adds to the match of a field. A contradiction is refused.
fn say(matching: &mut Match, word: Word<'_>, field: Field, value: u128, mask: u128) -> Result<(), BadText> {
    let (old, old_mask) = matching.get(field).unwrap_or_default();
    if (old ^ value) & old_mask & mask != 0 {
        return Err(word.bad(format!("contradicts an earlier value of {field}")));
    }
    matching.set(field, old | value & mask, old_mask | mask);
    Ok(())
}

fn add(matching: &mut Match, word: Word<'_>) -> Result<(), BadText> {
    if let Some(&(_, kind, proto)) = SHORTHANDS.iter().find(|(name, ..)| *name == word.key) {
        word.alone()?;
        say(matching, word, EthType, kind.into(), 0xffff)?;
        return proto.map_or(Ok(()), |proto| say(matching, word, IpProto, proto.into(), 0xff));
    }
    match word.key {
        "dl_vlan" => return dl_vlan(matching, word),
        "vlan_tci" => return vlan_tci(matching, word),
        "nw_tos" => {
            let tos = word.number::<u8>(255)?;
            if tos & 3 != 0 {
                return Err(word.bad("needs the ToS byte with its two lowest bits 0; nw_ecn matches these"));
            }
            allow(matching, word, &[IpDscp])?;
            return say(matching, word, IpDscp, (tos >> 2).into(), 0x3f);
        }
        _ => {}
    }
    let fields = candidates(word.key);
    if fields.is_empty() {
        return Err(unknown(word.key));
    }
    if fields == [VlanPcp] && matching.get(VlanVid).is_none() {
        matching.set(VlanVid, VLAN_PRESENT.into(), VLAN_PRESENT.into());
    }
    let field = allow(matching, word, &fields)?;
    let value = word.value()?;
    let (value, mask) =
        value::of_field(field, value, word.names).ok_or_else(|| match word.names.port(value) {
            Err(bad) if field == InPort => word.bad(bad.right),
            _ => word.bad(format!("needs {}", value::example(field))),
        })?;
    if mask.is_some() && !field.spec().maskable {
        return Err(word.bad(format!("{} cannot be matched with a mask", word.key)));
    }
    say(matching, word, field, value, mask.unwrap_or(field.all_bits()))
}

/// The first of the fields for which the match has what it needs.
fn allow(matching: &Match, word: Word<'_>, fields: &[Field]) -> Result<Field, BadText> {
    fields.iter().copied().find(|&field| matching.permits(field)).ok_or_else(|| {
        let needs: Vec<_> = fields.iter().map(|&field| needs(field)).collect();
        word.bad(format!("also needs {}", needs.join(" or ")))
    })
}

pub(super) fn needs(field: Field) -> String {
    let either = |numbers: &[u8]| numbers.iter().map(u8::to_string).collect::<Vec<_>>().join(" or ");
    let types = |types: &[u16]| {
        let name =
            |kind: &u16| SHORTHANDS.iter().find(|(_, k, _)| k == kind).map_or("dl_type", |(name, ..)| name);
        types.iter().map(name).collect::<Vec<_>>().join(" or ")
    };
    match field.spec().needs {
        Needs::Nothing => "nothing".into(),
        Needs::Vlan => "dl_vlan".into(),
        Needs::Type(kinds) => types(kinds),
        Needs::Proto(proto) => shorthand(None, proto),
        Needs::TypeProto(kind, proto) => shorthand(Some(kind), proto),
        Needs::Icmp6(kinds) => format!("icmp6,icmp_type={}", either(kinds)),
        Needs::InnerVlan => "inner_vlan_vid".into(),
        Needs::InnerType(kinds) => {
            let kinds: Vec<_> = kinds.iter().map(|kind| format!("inner_eth_type={kind:#x}")).collect();
            kinds.join(" or ")
        }
        Needs::InnerProto(protos) => format!("inner_ip_proto={}", either(protos)),
    }
}

fn shorthand(kind: Option<u16>, proto: u8) -> String {
    let fits = |&&(_, k, p): &&(&str, u16, Option<u8>)| p == Some(proto) && kind.is_none_or(|kind| k == kind);
    SHORTHANDS.iter().filter(fits).map(|(name, ..)| *name).collect::<Vec<_>>().join(" or ")
}

/// Parses a VLAN id, or 0xffff for no tag.
fn dl_vlan(matching: &mut Match, word: Word<'_>) -> Result<(), BadText> {
    match word.number::<u16>(0xffff)? {
        0xffff => say(matching, word, VlanVid, 0, VlanVid.all_bits()),
        vid @ 0..=0xfff => say(matching, word, VlanVid, (vid | VLAN_PRESENT).into(), VlanVid.all_bits()),
        _ => Err(word.bad("needs a VLAN id from 0 to 4095, or 0xffff for no tag")),
    }
}

/// Parses the tag as it is in the frame. Bit 12 is set if there is a tag; 0 is no tag.
fn vlan_tci(matching: &mut Match, word: Word<'_>) -> Result<(), BadText> {
    let (value, mask) = value::masked(word, 16)?;
    let mask = mask.unwrap_or(0xffff);
    let (vid, vid_mask) = (value & mask & VlanVid.all_bits(), mask & VlanVid.all_bits());
    say(matching, word, VlanVid, vid, vid_mask)?;
    match mask >> 13 {
        0 => Ok(()),
        7 if vid_mask == VlanVid.all_bits() && value & mask == 0 => Ok(()),
        7 if matching.permits(VlanPcp) => say(matching, word, VlanPcp, value >> 13, 7),
        _ => Err(word
            .bad("needs all three bits of the priority or none, and with them bit 0x1000 in value and mask")),
    }
}

/// A match as `ovs-ofctl` writes it. It is empty if it matches every packet.
pub struct MatchText<'a>(pub &'a Match);

impl fmt::Display for MatchText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&parts(self.0).join(","))
    }
}

/// The names under which fields are written, in the order of Open vSwitch's `match_format` (after type and protocol).
#[rustfmt::skip]
const WRITTEN: &[(Field, &str)] = &[
    (EthSrc, "dl_src"), (EthDst, "dl_dst"), (EthType, "dl_type"),
    (Ipv6Src, "ipv6_src"), (Ipv6Dst, "ipv6_dst"), (Ipv6Flabel, "ipv6_label"),
    (Ipv4Src, "nw_src"), (Ipv4Dst, "nw_dst"), (ArpSpa, "arp_spa"), (ArpTpa, "arp_tpa"),
    (IpProto, "nw_proto"), (ArpOp, "arp_op"), (ArpSha, "arp_sha"), (ArpTha, "arp_tha"),
    (IpDscp, "nw_tos"), (IpEcn, "nw_ecn"),
    (Icmpv4Type, "icmp_type"), (Icmpv4Code, "icmp_code"), (Icmpv6Type, "icmp_type"), (Icmpv6Code, "icmp_code"),
    (Ipv6NdTarget, "nd_target"), (Ipv6NdSll, "nd_sll"), (Ipv6NdTll, "nd_tll"),
    (TcpSrc, "tp_src"), (TcpDst, "tp_dst"), (UdpSrc, "tp_src"), (UdpDst, "tp_dst"), (SctpSrc, "tp_src"), (SctpDst, "tp_dst"),
];

fn parts(matching: &Match) -> Vec<String> {
    let fields: Vec<_> = matching.fields().collect();
    let get = |field| fields.iter().find(|(f, ..)| *f == field).map(|&(_, value, mask)| (value, mask));
    let mut parts = Vec::new();

    let kind = get(EthType).map(|(kind, _)| kind);
    let proto = get(IpProto).map(|(proto, _)| proto);
    let short = |proto: Option<u128>| {
        let fits = |&&(_, k, p): &&(&str, u16, Option<u8>)| {
            Some(u128::from(k)) == kind && p.map(u128::from) == proto
        };
        SHORTHANDS.iter().find(fits).map(|(name, ..)| *name)
    };
    let (whole, of_kind) = (short(proto), short(None));
    parts.extend(whole.or(of_kind).map(String::from));

    for (field, name) in [(TunnelId, "tun_id"), (Metadata, "metadata"), (InPort, "in_port")] {
        parts.extend(get(field).map(|(value, mask)| format!("{name}={}", ValueText(field, value, mask))));
    }
    parts.extend(vlan_parts(get(VlanVid), get(VlanPcp)));
    for &(field, name) in WRITTEN {
        let Some((value, mask)) = get(field) else { continue };
        match field {
            EthType if of_kind.is_some() => {}
            IpProto if whole.is_some() => {}
            EthType => parts.push(format!("dl_type={value:#06x}")),
            IpDscp => parts.push(format!("nw_tos={}", value << 2)),
            Ipv6Flabel if mask != field.all_bits() => parts.push(format!("{name}={value:#07x}/{mask:#07x}")),
            Ipv6Flabel => parts.push(format!("{name}={value:#07x}")),
            _ => parts.push(format!("{name}={}", ValueText(field, value, mask))),
        }
    }
    let inner = fields.iter().filter(|(field, ..)| *field >= InnerEthDst);
    parts.extend(inner.map(|&(field, value, mask)| format!("{field}={}", ValueText(field, value, mask))));
    parts
}

/// Id and priority if they express all of the match, otherwise the bits of the tag.
fn vlan_parts(vid: Option<(u128, u128)>, pcp: Option<(u128, u128)>) -> Vec<String> {
    let Some((value, mask)) = vid else { return Vec::new() };
    let present = u128::from(VLAN_PRESENT);
    let pcp_value = pcp.map(|(pcp, _)| pcp);
    if value & present != 0 && [0, 0xfff].contains(&(mask & 0xfff)) && (mask & 0xfff != 0 || pcp.is_some()) {
        let id = (mask & 0xfff != 0).then(|| format!("dl_vlan={}", value & 0xfff));
        return id.into_iter().chain(pcp_value.map(|pcp| format!("dl_vlan_pcp={pcp}"))).collect();
    }
    let (tci, tci_mask) =
        (pcp_value.unwrap_or(0) << 13 | value, if pcp.is_some() { 7 << 13 | mask } else { mask });
    // Without a tag there is no priority, so the bits of the priority need not be given.
    let exact = tci_mask == 0xffff || (tci, tci_mask) == (0, 0x1fff);
    vec![if exact { format!("vlan_tci={tci:#06x}") } else { format!("vlan_tci={tci:#06x}/{tci_mask:#06x}") }]
}
