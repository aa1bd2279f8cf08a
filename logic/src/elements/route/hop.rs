//! From a leaf of the forwarding table to the next hop, or the reason why the packet goes up: `resolve` and `transmit` of
//! `bpf/egress.h`, `forward_ipv4` and `forward_ipv6`.

use super::{
    super::{
        Now,
        check::{ETHERNET, IPV4, IPV6, TAG, is_neighbour_discovery},
        packet::{Family, Hop, Packet},
    },
    destination6, source,
};
use crate::{
    fib::{Kind, Slot},
    flow::field::ip_proto,
    hash,
    memory::{Memory, words},
    net::Vlan,
    reason::Reason,
    tables::{
        Nexthop, RouterRow,
        encoding::{IF_REDIRECTS, KIND_ONLINK, KIND_VIA},
        find_neighbour, nexthop_of,
    },
};
use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::atomic::{AtomicU64, Ordering::Acquire},
};

/// More fragments, or an offset.
const FRAGMENT: u16 = 0x3fff;

type Rows<'m> = &'m [[AtomicU64; words::NEXTHOP]];

#[inline]
pub(super) fn decide(
    memory: &impl Memory,
    rows: Rows<'_>,
    router: RouterRow<'_>,
    now: &Now,
    packet: &Packet<'_>,
    leaf: Slot,
) -> Result<Hop, Reason> {
    let leaf = if leaf.kind() == Kind::Group { member(memory, router, packet, leaf) } else { leaf };
    let hop = if packet.headers.family == Family::V4 {
        decide4(memory, rows, router, packet, leaf)?
    } else {
        decide6(memory, rows, packet, leaf)?
    };
    let sent = send(now, packet, &hop)?;
    hop.mark_used();
    Ok(sent)
}

#[inline]
fn decide4<'m>(
    memory: &'m impl Memory,
    rows: Rows<'m>,
    router: RouterRow<'_>,
    packet: &Packet<'_>,
    leaf: Slot,
) -> Result<Nexthop<'m>, Reason> {
    let ip = packet.header::<IPV4>().ok_or(Reason::Ipv4BadHeader)?;
    let hop = resolve(memory, rows, packet, leaf)?;
    // What was made here has our own source, and Linux owes nobody a redirect for it.
    if packet.headers.is_ours {
        return Ok(hop);
    }
    source::check4(memory, router, packet, u32::from_be_bytes([ip[12], ip[13], ip[14], ip[15]]))?;
    if ip[8] <= 1 {
        return Err(Reason::TtlExceeded);
    }
    if hop.interface() == packet.ingress.interface && packet.ingress.flags & IF_REDIRECTS != 0 {
        return Err(Reason::SameInterface);
    }
    Ok(hop)
}

#[inline(never)]
fn decide6<'m>(
    memory: &'m impl Memory,
    rows: Rows<'m>,
    packet: &Packet<'_>,
    leaf: Slot,
) -> Result<Nexthop<'m>, Reason> {
    if packet.headers.family != Family::V6 {
        return Err(Reason::NotIp);
    }
    let ip = packet.header::<IPV6>().ok_or(Reason::Ipv6BadHeader)?;
    let hop = resolve(memory, rows, packet, leaf)?;
    if packet.headers.is_ours {
        return Ok(hop);
    }
    source::check6(u128::from_be_bytes(std::array::from_fn(|i| ip[8 + i])))?;
    if ip[7] <= 1 {
        return Err(Reason::TtlExceeded);
    }
    // Linux may owe a redirect (RFC 4861 section 8.2); no setting turns that off.
    if hop.interface() == packet.ingress.interface {
        return Err(Reason::SameInterface);
    }
    Ok(hop)
}

/// What a leaf leads to, if that can be sent to.
#[inline]
fn resolve<'m>(
    memory: &'m impl Memory,
    rows: Rows<'m>,
    packet: &Packet<'_>,
    leaf: Slot,
) -> Result<Nexthop<'m>, Reason> {
    let mut hop = nexthop_of(rows, leaf.index()).ok_or(Reason::NoRoute)?;
    if hop.kind() == KIND_ONLINK {
        hop = neighbour(memory, packet, &hop)?;
    }
    if hop.kind() == KIND_VIA && hop.link != 0 { Ok(hop) } else { Err(reason(packet, &hop)) }
}

/// A connected route leads to an on-link next hop first, then to the destination's own among the neighbours.
#[inline(never)]
fn neighbour<'m>(
    memory: &'m impl Memory,
    packet: &Packet<'_>,
    on_link: &Nexthop<'_>,
) -> Result<Nexthop<'m>, Reason> {
    if u32::from(packet.headers.bytes) > on_link.mtu() {
        return Err(Reason::OverMtu);
    }
    let destination = match packet.headers.family {
        Family::V4 => Ipv4Addr::from_bits(packet.headers.destination).into(),
        _ => Ipv6Addr::from_bits(destination6(packet).ok_or(Reason::Ipv6BadHeader)?).into(),
    };
    let found = find_neighbour(memory, on_link.interface(), destination);
    found.map(|(_, hop)| hop).ok_or(Reason::Unresolved)
}

/// Why it cannot be sent to: neighbour discovery has a reserve of its own among what goes up.
#[cold]
fn reason(packet: &Packet<'_>, hop: &Nexthop<'_>) -> Reason {
    let local = hop.reason() == Reason::Local;
    let is_ipv6 = packet.headers.family == Family::V6;
    if local && is_ipv6 && is_neighbour_discovery(packet.ip()) {
        return Reason::NeighbourDiscovery;
    }
    hop.reason()
}

/// How it leaves, if nothing is in the way.
#[inline]
fn send(now: &Now, packet: &Packet<'_>, hop: &Nexthop<'_>) -> Result<Hop, Reason> {
    let (vlan, mtu) = hop.vlan_and_mtu();
    if u32::from(packet.headers.bytes) > mtu {
        return Err(Reason::OverMtu);
    }
    let source_port = hop.source_port();
    let port = (source_port >> 48) as u8;
    if !now.can_send(port) {
        return Err(Reason::TxNotReady);
    }
    if vlan != 0 && ETHERNET + TAG * Vlan::from_key(vlan).tags() > packet.headers.ip.into() {
        return Err(Reason::NoHeadroom);
    }
    // Both addresses are in memory order from the low byte of their words on.
    let middle = (hop.link >> 32) as u32 & 0xffff | (source_port as u32) << 16;
    Ok(Hop { macs: [hop.link as u32, middle, (source_port >> 16) as u32], vlan, port })
}

/// One member of an ECMP group, by the top byte of the flow hash.
#[cold]
fn member(memory: &impl Memory, router: RouterRow<'_>, packet: &Packet<'_>, group: Slot) -> Slot {
    let at = group.index() as usize * words::FIB_BLOCK + (flow_hash(router, packet) >> 24) as usize;
    memory.fib().get(at).map_or(Slot::NO_ROUTE, |slot| Slot(slot.load(Acquire)))
}

fn flow_hash(router: RouterRow<'_>, packet: &Packet<'_>) -> u32 {
    let ports = |protocol: u8, behind: &[u8]| {
        let has = matches!(protocol, ip_proto::TCP | ip_proto::UDP);
        behind.first_chunk().copied().filter(|_| has).unwrap_or_default()
    };
    if packet.headers.family == Family::V4 {
        let Some((ip, behind)) = packet.ip().split_first_chunk::<IPV4>() else { return 0 };
        let whole = u16::from_be_bytes([ip[6], ip[7]]) & FRAGMENT == 0;
        let ports = if whole { ports(ip[9], behind) } else { [0; 4] };
        return hash::ipv4(ip, router.multipath_l4_ipv4(), ports);
    }
    let Some((ip, behind)) = packet.ip().split_first_chunk::<IPV6>() else { return 0 };
    hash::ipv6(ip, router.multipath_l4_ipv6(), ports(ip[6], behind))
}
