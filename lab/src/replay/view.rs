//! A frame in words, and the parts of it that comparisons use.

use std::net::IpAddr;

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};

/// A packet in one line.
pub fn describe(frame: &[u8]) -> String {
    let Ok(parsed) = LaxSlicedPacket::from_ethernet(frame) else {
        return format!("{} bytes, no Ethernet frame", frame.len());
    };
    let bytes = frame.len();
    let Some((source, destination, protocol, hops)) = addresses(&parsed) else {
        let ether_type = frame.get(12..14).map_or(0, |two| u16::from_be_bytes([two[0], two[1]]));
        return format!("EtherType {ether_type:#06x}, {bytes} bytes");
    };
    let (protocol, ports) = match &parsed.transport {
        Some(TransportSlice::Udp(udp)) => ("udp".into(), Some((udp.source_port(), udp.destination_port()))),
        Some(TransportSlice::Tcp(tcp)) => ("tcp".into(), Some((tcp.source_port(), tcp.destination_port()))),
        Some(TransportSlice::Icmpv4(icmp)) => (format!("icmp {}/{}", icmp.type_u8(), icmp.code_u8()), None),
        Some(TransportSlice::Icmpv6(icmp)) => (format!("icmp6 {}/{}", icmp.type_u8(), icmp.code_u8()), None),
        _ => (format!("protocol {protocol}"), None),
    };
    let end = |address: IpAddr, port: Option<u16>| match (address, port) {
        (IpAddr::V6(address), Some(port)) => format!("[{address}]:{port}"),
        (address, Some(port)) => format!("{address}:{port}"),
        (address, None) => address.to_string(),
    };
    let (from, to) = (end(source, ports.map(|ports| ports.0)), end(destination, ports.map(|ports| ports.1)));
    format!("{protocol} {from} -> {to}, ttl {hops}, {bytes} bytes")
}

/// Source and destination, as far as they can be read.
pub fn ends(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let (source, destination, ..) = addresses(&LaxSlicedPacket::from_ethernet(frame).ok()?)?;
    Some((source, destination))
}

/// A key that is equal for packets of the same flow, whose order routers keep. Fragments are a flow of their own.
pub fn flow(frame: &[u8]) -> Vec<u8> {
    let Ok(parsed) = LaxSlicedPacket::from_ethernet(frame) else { return Vec::new() };
    let Some((source, destination, protocol, _)) = addresses(&parsed) else {
        return frame.get(12..14).unwrap_or_default().to_vec();
    };
    let mut key = format!("{source} {destination} {protocol}").into_bytes();
    match &parsed.transport {
        Some(TransportSlice::Udp(udp)) => key.extend(&udp.slice()[..4]),
        Some(TransportSlice::Tcp(tcp)) => key.extend(&tcp.slice()[..4]),
        _ => {}
    }
    key
}

/// The part of a frame that routers may not change. For IP: everything except the TTL, the header checksum and padding.
/// For other frames: everything except the MAC addresses.
pub fn unchanged(frame: &[u8]) -> Vec<u8> {
    unchanged_ip(frame).unwrap_or_else(|| frame.get(12..).unwrap_or_default().to_vec())
}

fn unchanged_ip(frame: &[u8]) -> Option<Vec<u8>> {
    const IP: usize = 14;
    let word = |at: usize| Some(usize::from(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?])));
    let (bytes, blank) = match word(12)? {
        0x0800 => (word(IP + 2)?, &[IP + 8, IP + 10, IP + 11][..]),
        0x86dd => (40 + word(IP + 4)?, &[IP + 7][..]),
        _ => return None,
    };
    let mut rest = frame[..frame.len().min(IP + bytes)].to_vec();
    for &at in blank {
        *rest.get_mut(at)? = 0;
    }
    rest.drain(..12);
    Some(rest)
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Source, destination, protocol (for IPv6 the one after known extension headers), TTL or hop limit.
fn addresses(parsed: &LaxSlicedPacket<'_>) -> Option<(IpAddr, IpAddr, u8, u8)> {
    match parsed.net.as_ref()? {
        LaxNetSlice::Ipv4(ip) => {
            let header = ip.header();
            Some((
                header.source_addr().into(),
                header.destination_addr().into(),
                header.protocol().0,
                header.ttl(),
            ))
        }
        LaxNetSlice::Ipv6(ip) => {
            let header = ip.header();
            Some((
                header.source_addr().into(),
                header.destination_addr().into(),
                ip.payload().ip_number.0,
                header.hop_limit(),
            ))
        }
        _ => None,
    }
}
