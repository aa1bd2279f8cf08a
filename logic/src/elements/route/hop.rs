//! Finds the next hop of a leaf of the forwarding table, or the reason why the packet goes up: `resolve` and `transmit`
//! of `bpf/egress.h`, `forward_ipv4` and `forward_ipv6`.

use super::{
    super::{
        Now,
        check::{ETHERNET, IPV4, IPV6, TAG, is_neighbour_discovery},
        packet::{Family, Packet},
    },
    destination6, source,
};
use crate::{
    fib::{Kind, Slot},
    memory::{Memory, words},
    multipath::{self, MultipathHash},
    net::Vlan,
    reason::Reason,
    tables::{
        Nexthop, RouterRow, choose,
        encoding::{IF_REDIRECTS, KIND_ONLINK, KIND_VIA},
        find_neighbour, nexthop_of,
    },
};
use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::atomic::AtomicU64,
};

/// A bit in the byte of flags.
const DONT_FRAGMENT: u8 = 0x40;

type Rows<'m> = &'m [[AtomicU64; words::NEXTHOP]];

/// The input of a decision, besides the packet and its leaf.
pub(super) struct Given<'m, M> {
    pub memory: &'m M,
    pub rows: Rows<'m>,
    /// The router of the packet.
    pub router: RouterRow<'m>,
    pub now: &'m Now,
}

impl<'m, M: Memory> Given<'m, M> {
    /// Finds the packet's next hop, which is known from here on.
    #[inline]
    pub fn decide(&self, packet: &mut Packet<'_>, leaf: Slot) -> Result<(), Reason> {
        let leaf = if leaf.kind() == Kind::Group { self.member(packet, leaf)? } else { leaf };
        let hop = if packet.headers.family == Family::V4 {
            self.decide4(packet, leaf)?
        } else {
            self.decide6(packet, leaf)?
        };
        self.send(packet, &hop)?;
        hop.mark_used();
        Ok(())
    }

    #[inline]
    fn decide4(&self, packet: &Packet<'_>, leaf: Slot) -> Result<Nexthop<'m>, Reason> {
        let ip = packet.header::<IPV4>().ok_or(Reason::Ipv4BadHeader)?;
        let hop = self.resolve(packet, leaf)?;
        // A packet made here has our own source, and Linux sends no redirects for it.
        if packet.headers.is_ours {
            return Ok(hop);
        }
        source::check4(self.memory, self.router, packet, source::of(ip))?;
        if ip[8] <= 1 {
            return Err(Reason::TtlExceeded);
        }
        if hop.interface() == packet.ingress.interface && packet.ingress.flags & IF_REDIRECTS != 0 {
            return Err(Reason::SameInterface);
        }
        Ok(hop)
    }

    #[inline(never)]
    fn decide6(&self, packet: &Packet<'_>, leaf: Slot) -> Result<Nexthop<'m>, Reason> {
        if packet.headers.family != Family::V6 {
            return Err(Reason::NotIp);
        }
        let ip = packet.header::<IPV6>().ok_or(Reason::Ipv6BadHeader)?;
        let hop = self.resolve(packet, leaf)?;
        if packet.headers.is_ours {
            return Ok(hop);
        }
        source::check6(u128::from_be_bytes(std::array::from_fn(|i| ip[8 + i])))?;
        if ip[7] <= 1 {
            return Err(Reason::TtlExceeded);
        }
        // Linux may have to send a redirect (RFC 4861 section 8.2). No setting turns that off.
        if hop.interface() == packet.ingress.interface {
            return Err(Reason::SameInterface);
        }
        Ok(hop)
    }

    /// The next hop of a leaf, if packets can be sent to it.
    #[inline]
    fn resolve(&self, packet: &Packet<'_>, leaf: Slot) -> Result<Nexthop<'m>, Reason> {
        let mut hop = nexthop_of(self.rows, leaf.index()).ok_or(Reason::NoRoute)?;
        if hop.kind() == KIND_ONLINK {
            hop = self.neighbour(packet, &hop)?;
        }
        if hop.kind() == KIND_VIA && hop.link != 0 { Ok(hop) } else { Err(reason(packet, &hop)) }
    }

    /// A connected route leads first to an on-link next hop, and then to the next hop of the destination among the
    /// neighbours.
    #[inline(never)]
    fn neighbour(&self, packet: &Packet<'_>, on_link: &Nexthop<'_>) -> Result<Nexthop<'m>, Reason> {
        if u32::from(packet.headers.bytes) > on_link.mtu() {
            return Err(over_mtu(packet));
        }
        let destination = match packet.headers.family {
            Family::V4 => Ipv4Addr::from_bits(packet.headers.destination).into(),
            _ => Ipv6Addr::from_bits(destination6(packet).ok_or(Reason::Ipv6BadHeader)?).into(),
        };
        let found = find_neighbour(self.memory, on_link.interface(), destination);
        found.map(|(_, hop)| hop).ok_or(Reason::Unresolved)
    }

    /// Stores how the packet leaves, if nothing prevents it.
    #[inline]
    fn send(&self, packet: &mut Packet<'_>, hop: &Nexthop<'_>) -> Result<(), Reason> {
        let (vlan, mtu) = hop.vlan_and_mtu();
        if u32::from(packet.headers.bytes) > mtu {
            return Err(over_mtu(packet));
        }
        if !self.now.can_send(hop.port()) {
            return Err(Reason::TxNotReady);
        }
        if vlan != 0 && ETHERNET + TAG * Vlan::from_key(vlan).tags() > packet.headers.ip.into() {
            return Err(Reason::NoHeadroom);
        }
        // Stored field by field, as `rewrite` reads it. One load of bytes that several stores have just written would
        // wait for them (no store forwarding).
        (packet.hop.macs, packet.hop.macs_end) = hop.macs();
        packet.hop.vlan = vlan;
        packet.hop_port = hop.port();
        Ok(())
    }

    /// One member of an ECMP group.
    #[cold]
    fn member(&self, packet: &Packet<'_>, group: Slot) -> Result<Slot, Reason> {
        let MultipathHash { l4, key } = self.router.multipath();
        let ip = packet.ip();
        let ip = ip.get(..packet.headers.bytes.into()).unwrap_or(ip);
        let (hash, lives) = match packet.headers.family {
            Family::V4 => (multipath::hash4(ip, l4[0], key), ip.get(8)),
            _ => (multipath::hash6(ip, l4[1], key), ip.get(7)),
        };
        let unsure = if lives.is_some_and(|n| *n > 1) { Reason::MemberUnsure } else { Reason::TtlExceeded };
        let block = self.memory.fib().get(group.index() as usize * words::FIB_BLOCK..);
        Ok(choose(block.unwrap_or_default(), hash.ok_or(unsure)?))
    }
}

/// Linux fragments the packet if that is allowed, and otherwise answers with an ICMP error (`ip_forward`,
/// `ip6_forward`).
#[cold]
fn over_mtu(packet: &Packet<'_>) -> Reason {
    let may = packet.headers.family == Family::V4
        && packet.header::<IPV4>().is_some_and(|ip| ip[6] & DONT_FRAGMENT == 0);
    if may { Reason::Fragmented } else { Reason::OverMtu }
}

/// Why the next hop cannot be sent to. Neighbour discovery has a reserve of its own among packets that go up.
#[cold]
fn reason(packet: &Packet<'_>, hop: &Nexthop<'_>) -> Reason {
    let local = matches!(hop.reason(), Reason::Local | Reason::LocalPrefix);
    let is_ipv6 = packet.headers.family == Family::V6;
    if local && is_ipv6 && is_neighbour_discovery(packet.ip()) {
        return Reason::NeighbourDiscovery;
    }
    hop.reason()
}
