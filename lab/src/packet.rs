//! Test packets: what the generator writes, and what a correct router makes of them.

use std::net::IpAddr;

use crate::{
    addresses::{GENERATOR_MAC, GENERATOR4, GENERATOR6, Mac},
    bpf::generator::types,
};

/// Frame check sequence: counted in the frame sizes of RFC 2544, not in ours.
pub const FCS_BYTES: u16 = 4;
/// Shortest frames without FCS: 64 bytes on the wire for IPv4; IPv6 and UDP headers alone take 62 (66 on the wire).
pub const MIN_FRAME4: u16 = 60;
/// See [`MIN_FRAME4`].
pub const MIN_FRAME6: u16 = 62;

const ETHERNET: usize = 14;
const UDP: usize = 8;
const TTL: u8 = 64;
/// UDP destination port of every test packet: discard (RFC 863), `TEST_UDP_PORT` in lab.h.
const UDP_PORT: u16 = 9;

/// Where a packet goes, and through which router. Each target is one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Destination address.
    pub destination: IpAddr,
    /// Destination MAC: the router's.
    pub router_mac: Mac,
    /// UDP source port.
    pub source_port: u16,
}

impl Target {
    /// The shortest frame that holds a test packet to this target.
    pub fn min_frame(&self) -> u16 {
        if self.destination.is_ipv4() { MIN_FRAME4 } else { MIN_FRAME6 }
    }

    /// As the generator's map holds it.
    pub fn value(&self, frame_bytes: u16) -> types::target {
        let mut value = types::target {
            dmac: self.router_mac,
            source_port: self.source_port.to_be(),
            protocol: self.ether_type().to_be(),
            ..Default::default()
        };
        match self.destination {
            IpAddr::V4(destination) => {
                value.destination[..4].copy_from_slice(&destination.octets());
                let header: [u8; 20] = ipv4_header(destination.octets(), frame_bytes, TTL);
                value.ip_check = u16::from_ne_bytes([header[10], header[11]]);
            }
            IpAddr::V6(destination) => value.destination = destination.octets(),
        }
        value
    }

    /// The frame the generator sends as number `sequence`.
    pub fn frame(&self, frame_bytes: u16, sequence: u64) -> Vec<u8> {
        self.build(self.router_mac, GENERATOR_MAC, TTL, frame_bytes, sequence)
    }

    /// What must come out of a router: TTL decremented, checksum right, MACs those of the next hop and of the router.
    pub fn forwarded(&self, next_hop: Mac, source: Mac, frame_bytes: u16, sequence: u64) -> Vec<u8> {
        self.build(next_hop, source, TTL - 1, frame_bytes, sequence)
    }

    fn ether_type(&self) -> u16 {
        if self.destination.is_ipv4() { 0x0800 } else { 0x86dd }
    }

    fn build(&self, to: Mac, from: Mac, ttl: u8, frame_bytes: u16, sequence: u64) -> Vec<u8> {
        let mut frame = [&to[..], &from, &self.ether_type().to_be_bytes()].concat();
        match self.destination {
            IpAddr::V4(destination) => {
                frame.extend(ipv4_header(destination.octets(), frame_bytes, ttl));
            }
            IpAddr::V6(destination) => {
                frame.extend([0x60, 0, 0, 0]);
                frame.extend((frame_bytes - ETHERNET as u16 - 40).to_be_bytes());
                frame.extend([17, ttl]);
                frame.extend(GENERATOR6.octets());
                frame.extend(destination.octets());
            }
        }
        let udp_bytes = frame_bytes - frame.len() as u16;
        for field in [self.source_port, UDP_PORT, udp_bytes, 0] {
            frame.extend(field.to_be_bytes());
        }
        if usize::from(frame_bytes) >= frame.len() + size_of_val(&sequence) {
            frame.extend(sequence.to_be_bytes());
        }
        frame.resize(frame_bytes.into(), 0);
        debug_assert!(usize::from(frame_bytes) >= ETHERNET + 20 + UDP);
        frame
    }
}

fn ipv4_header(destination: [u8; 4], frame_bytes: u16, ttl: u8) -> [u8; 20] {
    let length = (frame_bytes - ETHERNET as u16).to_be_bytes();
    let mut header = [0x45, 0, length[0], length[1], 0, 0, 0x40, 0, ttl, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header[12..16].copy_from_slice(&GENERATOR4.octets());
    header[16..].copy_from_slice(&destination);
    let check = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&check);
    header
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
pub fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    fn target(destination: &str) -> Target {
        Target {
            destination: destination.parse().unwrap(),
            router_mac: crate::addresses::ingress_mac(0),
            source_port: 1024,
        }
    }

    #[test]
    fn frames_are_what_another_parser_expects() {
        for (destination, bytes) in
            [("198.18.0.7", 60), ("198.18.0.7", 1514), ("2001:2::7", 62), ("2001:2::7", 70)]
        {
            let frame = target(destination).frame(bytes, 0x0102_0304);
            assert_eq!(frame.len(), usize::from(bytes));
            let parsed = SlicedPacket::from_ethernet(&frame).unwrap();
            match parsed.net.unwrap() {
                NetSlice::Ipv4(ip) => {
                    assert_eq!(ip.header().destination_addr().to_string(), destination);
                    assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
                    assert_eq!(usize::from(ip.header().total_len()), frame.len() - 14);
                }
                NetSlice::Ipv6(ip) => {
                    assert_eq!(ip.header().destination_addr().to_string(), destination);
                    assert_eq!(usize::from(ip.header().payload_length()), frame.len() - 54);
                }
                other => panic!("{other:?}"),
            }
            let Some(TransportSlice::Udp(udp)) = parsed.transport else { panic!("not UDP") };
            assert_eq!((udp.source_port(), udp.destination_port()), (1024, 9));
            if udp.payload().len() >= 8 {
                assert_eq!(udp.payload()[..8], 0x0102_0304u64.to_be_bytes());
            }
        }
    }

    #[test]
    fn forwarding_changes_macs_ttl_and_checksum_only() {
        let target = target("198.18.0.7");
        let (before, after) = (target.frame(60, 5), target.forwarded([1; 6], [2; 6], 60, 5));
        assert_eq!((&after[..6], &after[6..12]), (&[1; 6][..], &[2; 6][..]));
        assert_eq!(after[22] + 1, before[22]);
        assert_eq!(checksum(&after[14..34]), 0);
        assert_eq!((&before[12..22], &before[26..]), (&after[12..22], &after[26..]));
    }
}
