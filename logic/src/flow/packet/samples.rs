//! Frames for tests, and their checksums as etherparse computes them.

use crate::flow::checksum::crc32c;
use etherparse::{
    IpDscp, IpEcn, IpHeaders, Ipv4Header, Ipv4Options, Ipv6Extensions, Ipv6FlowLabel, Ipv6Header,
    Ipv6RawExtHeader, NetSlice, PacketBuilder, SlicedPacket, TransportSlice, ip_number,
};
use proptest::prelude::*;

pub const DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 0xd];
pub const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 5];

/// The parts of a frame.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Priority and id.
    pub tags: Vec<(u8, u16)>,
    pub v6: bool,
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub tos: u8,
    pub label: u32,
    pub ttl: u8,
    /// Words of IPv4 options.
    pub options: usize,
    /// Bits: hop-by-hop options, destination options.
    pub extensions: u8,
    pub transport: Transport,
    /// Ports, or type and code.
    pub ports: (u16, u16),
    pub payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
    Icmp,
}

impl Default for Recipe {
    fn default() -> Self {
        Recipe {
            tags: Vec::new(),
            v6: false,
            source: [10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            destination: [10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
            tos: 0xb9,
            label: 0x12345,
            ttl: 64,
            options: 0,
            extensions: 0,
            transport: Transport::Udp,
            ports: (1000, 2000),
            payload: b"hello".to_vec(),
        }
    }
}

impl Recipe {
    pub fn frame(&self) -> Vec<u8> {
        let step =
            PacketBuilder::ethernet2(SOURCE, DESTINATION).ip(if self.v6 { self.ipv6() } else { self.ipv4() });
        let mut frame = Vec::new();
        let (a, b) = self.ports;
        match (self.transport, self.v6) {
            (Transport::Tcp, _) => step.tcp(a, b, 7, 1024).write(&mut frame, &self.payload),
            (Transport::Udp, _) => step.udp(a, b).write(&mut frame, &self.payload),
            (Transport::Icmp, false) => {
                step.icmpv4_raw(a as u8, b as u8, [0; 4]).write(&mut frame, &self.payload)
            }
            (Transport::Icmp, true) => {
                step.icmpv6_raw(a as u8, b as u8, [0; 4]).write(&mut frame, &self.payload)
            }
        }
        .unwrap();
        for &(pcp, vid) in self.tags.iter().rev() {
            let tci = (u16::from(pcp) << 13 | vid).to_be_bytes();
            frame.splice(12..12, [0x81, 0, tci[0], tci[1]]);
        }
        frame
    }

    fn ipv4(&self) -> IpHeaders {
        let mut header = Ipv4Header::new(0, self.ttl, ip_number::UDP, [0; 4], [0; 4]).unwrap();
        header.source.copy_from_slice(&self.source[..4]);
        header.destination.copy_from_slice(&self.destination[..4]);
        header.dscp = IpDscp::try_new(self.tos >> 2).unwrap();
        header.ecn = IpEcn::try_new(self.tos & 3).unwrap();
        header.options = Ipv4Options::try_from(&[1; 40][..4 * self.options]).unwrap();
        IpHeaders::Ipv4(header, Default::default())
    }

    fn ipv6(&self) -> IpHeaders {
        let header = Ipv6Header {
            traffic_class: self.tos,
            flow_label: Ipv6FlowLabel::try_new(self.label).unwrap(),
            payload_length: 0,
            next_header: ip_number::UDP,
            hop_limit: self.ttl,
            source: self.source,
            destination: self.destination,
        };
        let padding = |bytes| Some(Ipv6RawExtHeader::new_raw(ip_number::UDP, &vec![0; bytes]).unwrap());
        let mut extensions = Ipv6Extensions::default();
        if self.extensions & 1 != 0 {
            extensions.hop_by_hop_options = padding(6);
        }
        if self.extensions & 2 != 0 {
            extensions.destination_options = padding(14);
        }
        IpHeaders::Ipv6(header, extensions)
    }
}

pub fn any_recipe() -> impl Strategy<Value = Recipe> {
    let link = (prop::collection::vec((0..8_u8, 0..4096_u16), 0..=2), any::<bool>());
    let ip = (
        any::<[u8; 16]>(),
        any::<[u8; 16]>(),
        any::<u8>(),
        0..1_u32 << 20,
        any::<u8>(),
        0..=10_usize,
        0..4_u8,
    );
    let transport = prop_oneof![Just(Transport::Tcp), Just(Transport::Udp), Just(Transport::Icmp)];
    let rest = (transport, any::<(u16, u16)>(), prop::collection::vec(any::<u8>(), 0..40));
    (link, ip, rest).prop_map(|((tags, v6), ip, (transport, mut ports, payload))| {
        let (source, destination, tos, label, ttl, options, extensions) = ip;
        // ICMP timestamps have a fixed length, which etherparse requires.
        if transport == Transport::Icmp && [13, 14].contains(&(ports.0 as u8)) {
            ports.0 = 8;
        }
        Recipe {
            tags,
            v6,
            source,
            destination,
            tos,
            label,
            ttl,
            options,
            extensions,
            transport,
            ports,
            payload,
        }
    })
}

/// An ARP request for 10.0.0.2.
pub fn arp() -> Vec<u8> {
    let mut frame =
        [&[0xff; 6][..], &SOURCE, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &SOURCE, &[10, 0, 0, 1]].concat();
    frame.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    frame
}

/// A neighbour solicitation (135) or advertisement (136) for fe80::2 with a nonce and a link-layer address option.
pub fn neighbour_discovery(kind: u8) -> Vec<u8> {
    let mut payload = [&[0xfe, 0x80][..], &[0; 13], &[2], &[14, 1, 1, 2, 3, 4, 5, 6]].concat();
    payload.extend([kind - 134, 1, 2, 0, 0, 0, 0, 9]);
    Recipe { v6: true, transport: Transport::Icmp, ports: (kind.into(), 0), payload, ..Recipe::default() }
        .frame()
}

/// SCTP over IPv4. The checksum differs from the right one by `wrong`.
pub fn sctp(wrong: u32) -> Vec<u8> {
    let mut frame = Recipe { payload: b"chunks and more".to_vec(), ..Recipe::default() }.frame();
    frame[23] = 132;
    // Overwrite UDP's length and checksum. SCTP has ports, verification tag, checksum, chunks.
    frame[38..42].copy_from_slice(&[9, 9, 9, 9]);
    frame[42..46].fill(0);
    let crc = crc32c(&frame[34..]) ^ wrong;
    frame[42..46].copy_from_slice(&crc.to_le_bytes());
    repair(&mut frame);
    frame
}

/// Every IPv4, TCP, UDP (except 0), ICMP and ICMPv6 checksum of a frame: its offset, and the right value.
pub fn checksums(frame: &[u8]) -> Vec<(usize, u16)> {
    let mut from = 12;
    while [[0x81, 0], [0x88, 0xa8]].contains(&[frame[from], frame[from + 1]]) {
        from += 4;
    }
    let ether_type = etherparse::EtherType(u16::from_be_bytes([frame[from], frame[from + 1]]));
    let packet = SlicedPacket::from_ether_type(ether_type, &frame[from + 2..]).unwrap();
    let at = |slice: &[u8]| slice.as_ptr() as usize - frame.as_ptr() as usize;
    let mut found = Vec::new();
    let (mut v4, mut v6) = (([0; 4], [0; 4]), ([0; 16], [0; 16]));
    match &packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            found.push((at(header.slice()) + 10, header.to_header().calc_header_checksum()));
            v4 = (header.source(), header.destination());
        }
        Some(NetSlice::Ipv6(ip)) => v6 = (ip.header().source(), ip.header().destination()),
        _ => {}
    }
    let is_v4 = matches!(packet.net, Some(NetSlice::Ipv4(_)));
    match packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let right =
                if is_v4 { tcp.calc_checksum_ipv4(v4.0, v4.1) } else { tcp.calc_checksum_ipv6(v6.0, v6.1) };
            found.push((at(tcp.slice()) + 16, right.unwrap()));
        }
        Some(TransportSlice::Udp(udp)) if udp.checksum() != 0 => {
            let (header, payload) = (udp.to_header(), udp.payload());
            let right = if is_v4 {
                header.calc_checksum_ipv4_raw(v4.0, v4.1, payload)
            } else {
                header.calc_checksum_ipv6_raw(v6.0, v6.1, payload)
            };
            found.push((at(udp.slice()) + 6, right.unwrap()));
        }
        Some(TransportSlice::Icmpv4(icmp)) => {
            found.push((at(icmp.slice()) + 2, icmp.icmp_type().calc_checksum(icmp.payload())));
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            let right = icmp.icmp_type().calc_checksum(v6.0, v6.1, icmp.payload());
            found.push((at(icmp.slice()) + 2, right.unwrap()));
        }
        _ => {}
    }
    found
}

/// The difference of each checksum from the right one, in ones' complement.
pub fn errors(frame: &[u8]) -> Vec<u32> {
    let is = |at| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    checksums(frame).into_iter().map(|(at, right)| (is(at) + 0xffff - u32::from(right)) % 0xffff).collect()
}

/// Corrects every checksum.
pub fn repair(frame: &mut [u8]) {
    for (at, right) in checksums(frame) {
        frame[at..at + 2].copy_from_slice(&right.to_be_bytes());
    }
}
