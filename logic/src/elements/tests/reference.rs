//! A slow reference for a router: one check after another, in the order of `bpf/`, on copies of the
//! packet.

use super::{
    ways::{Egress, Way},
    *,
};
use crate::flow::checksum;

/// The possible verdicts, each with the packet's bytes. There are several only for ECMP groups.
pub fn route(world: &World, now: &Now, frame: &[u8], ingress: Ingress) -> Vec<(Verdict, Vec<u8>)> {
    let up = |reason| vec![(Verdict::Up(reason), frame.to_vec())];
    let (kind, at) = match ethernet(frame) {
        Some(found) => found,
        None => return up(Reason::Malformed),
    };
    let ip = &frame[at..];
    if ingress.interface == 0 {
        return up(unclassified(frame, kind, at));
    }
    let (checked, address) = match kind {
        0x0800 if ingress.flags & IF_IPV4 != 0 => (check4(ip), 12),
        0x86dd if ingress.flags & IF_IPV6 != 0 => (check6(ip), 8),
        0x0800 | 0x86dd => return up(Reason::RouterNotAccelerated),
        0x0806 => return up(Reason::Arp),
        _ => return up(Reason::NotIp),
    };
    let length = match checked {
        Ok(length) => length,
        Err(reason) => return up(reason),
    };
    let addresses = |at: usize| -> IpAddr {
        if kind == 0x0800 {
            IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap())
        } else {
            IpAddr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap())
        }
    };
    let width = if kind == 0x0800 { 4 } else { 16 };
    let (source, destination) = (addresses(address), addresses(address + width));
    let one = |way: &Way| match leave(world, now, ip, length, source, way, ingress) {
        Ok(egress) => (Verdict::To(egress.interface.port), rewritten(&ip[..length], egress)),
        Err(reason) => (Verdict::Up(reason), frame.to_vec()),
    };
    ways::to(&world.plan, destination).iter().map(one).collect()
}

/// The EtherType and where the header ends.
fn ethernet(frame: &[u8]) -> Option<(u16, usize)> {
    let kind = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let is_tag = |kind: u16| kind == 0x8100 || kind == 0x88a8;
    match kind(12)? {
        first if is_tag(first) => {
            frame.get(21)?;
            let second = kind(16)?;
            Some(if is_tag(second) { (kind(20)?, 22) } else { (second, 18) })
        }
        first => Some((first, 14)),
    }
}

/// The reason for a packet of no interface: `unclassified()` and `neighbour_discovery()` of
/// `bpf/millrace.bpf.c`.
fn unclassified(frame: &[u8], kind: u16, ip: usize) -> Reason {
    if kind == 0x0806 {
        return Reason::Arp;
    }
    let types = 133..=137;
    if kind == 0x86dd && frame.len() >= ip + 41 && frame[ip + 6] == 58 && types.contains(&frame[ip + 40]) {
        return Reason::NeighbourDiscovery;
    }
    if frame[0] % 2 == 1 { Reason::Broadcast } else { Reason::NotOurMac }
}

fn check4(ip: &[u8]) -> Result<usize, Reason> {
    if ip.len() < 20 {
        return Err(Reason::Ipv4BadHeader);
    }
    let length = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    match (ip[0] >> 4, ip[0] & 15) {
        (4, 6..) => Err(Reason::Ipv4Options),
        (4, 5) if length >= 20 && length <= ip.len() && checksum::sum(&ip[..20]) == 0xffff => Ok(length),
        _ => Err(Reason::Ipv4BadHeader),
    }
}

fn check6(ip: &[u8]) -> Result<usize, Reason> {
    if ip.len() < 40 || ip[0] >> 4 != 6 {
        return Err(Reason::Ipv6BadHeader);
    }
    match 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])) {
        length if length > ip.len() => Err(Reason::Ipv6BadHeader),
        _ if ip[6] == 0 => Err(Reason::Ipv6Extension),
        length => Ok(length),
    }
}

fn over_mtu(ip: &[u8]) -> Reason {
    if ip[0] >> 4 == 4 && ip[6] & 0x40 == 0 { Reason::Fragmented } else { Reason::OverMtu }
}

fn leave<'a>(
    world: &World,
    now: &Now,
    ip: &[u8],
    length: usize,
    source: IpAddr,
    way: &'a Way,
    ingress: Ingress,
) -> Result<&'a Egress, Reason> {
    let too_long = |egress: &Egress| length > egress.mtu as usize;
    if way.egress.as_ref().is_some_and(|egress| egress.connected && too_long(egress)) {
        return Err(over_mtu(ip));
    }
    if let Some(reason) = way.reason {
        let discovery = ip[0] >> 4 == 6 && ip[6] == 58 && matches!(ip.get(40), Some(133..=137));
        return Err(if matches!(reason, Reason::Local | Reason::LocalPrefix) && discovery {
            Reason::NeighbourDiscovery
        } else {
            reason
        });
    }
    let egress = way.egress.as_ref().expect("a way without a reason has an egress");
    let (hops, redirects) = match source {
        IpAddr::V4(address) => {
            let martian = address.octets()[0] == 0
                || address.is_loopback()
                || address.is_multicast()
                || address.is_broadcast();
            if martian {
                return Err(Reason::BadSource);
            }
            reverse_path(world, source, ingress)?;
            (ip[8], ingress.flags & IF_REDIRECTS != 0)
        }
        IpAddr::V6(address) => {
            let link_local = address.segments()[0] & 0xffc0 == 0xfe80;
            if address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local {
                return Err(Reason::BadSource);
            }
            (ip[7], true)
        }
    };
    match () {
        _ if hops <= 1 => Err(Reason::TtlExceeded),
        _ if redirects && egress.id == ingress.interface => Err(Reason::SameInterface),
        _ if too_long(egress) => Err(over_mtu(ip)),
        _ if !now.can_send(egress.interface.port) => Err(Reason::TxNotReady),
        _ => Ok(egress),
    }
}

fn reverse_path(world: &World, source: IpAddr, ingress: Ingress) -> Result<(), Reason> {
    let back = ways::to(&world.plan, source);
    let (loose, strict) = (ingress.flags & IF_RPF_LOOSE != 0, ingress.flags & IF_RPF_STRICT != 0);
    let first = &back[0];
    match first.reason {
        Some(Reason::Broadcast) if first.local && !loose && !strict => {
            // Checked only if it is an address of the router.
            let own = source == IpAddr::from([10, 9, 0, 255]);
            if own { Err(Reason::SourceUnsure) } else { Ok(()) }
        }
        Some(Reason::LocalPrefix) => {
            let looked_at = loose || strict || ingress.flags & IF_LOOK_AT_SOURCES != 0;
            if looked_at { Err(Reason::SourceUnsure) } else { Ok(()) }
        }
        _ if first.local && ingress.flags & IF_ACCEPT_LOCAL != 0 => Err(Reason::SourceUnsure),
        _ if first.local => Err(Reason::BadSource),
        _ if !loose && !strict => Ok(()),
        Some(Reason::ComplexRoute | Reason::LearnedPath) => Err(Reason::SourceUnsure),
        _ if strict && back.len() > 1 => Err(Reason::SourceUnsure),
        _ if !first.unicast => Err(Reason::ReversePath),
        _ if strict && first.egress.as_ref().is_none_or(|egress| egress.id != ingress.interface) => {
            Err(Reason::ReversePath)
        }
        _ => Ok(()),
    }
}

/// The IP packet one hop further, after the Ethernet header with which it leaves. etherparse writes it
/// and computes the checksum.
pub fn rewritten(ip: &[u8], egress: &Egress) -> Vec<u8> {
    let vlan = egress.interface.vlan.key();
    let mut out = [egress.mac.unwrap().0, egress.interface.mac.0].concat();
    for word in [vlan, vlan >> 16].into_iter().filter(|word| word & 0x2000 != 0) {
        out.extend(if word & 0x1000 != 0 { [0x88, 0xa8] } else { [0x81, 0x00] });
        out.extend((word as u16 & 0xfff).to_be_bytes());
    }
    if ip[0] >> 4 == 4 {
        let (mut header, rest) = etherparse::Ipv4Header::from_slice(ip).unwrap();
        // etherparse writes the reserved bit of the flags as 0.
        let reserved = ip[6] & 0x80;
        header.time_to_live -= 1;
        let mut bytes = header.to_bytes().to_vec();
        bytes[6] |= reserved;
        bytes[10..12].fill(0);
        let sum = !checksum::sum(&bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        out.extend([0x08, 0x00]);
        out.extend(bytes);
        out.extend(rest);
    } else {
        let (mut header, rest) = etherparse::Ipv6Header::from_slice(ip).unwrap();
        header.hop_limit -= 1;
        out.extend([0x86, 0xdd]);
        out.extend(header.to_bytes());
        out.extend(rest);
    }
    out
}
