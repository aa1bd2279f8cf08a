//! Test packets: what the generator writes, and what a correct router makes of them.
//!
//! Every packet carries a [`Stamp`] (lab.h describes where), except UDP in the shortest frames. IPv6 and UDP headers
//! alone make 62 bytes. So UDP packets over IPv6 in less than 74 bytes (78 with FCS) are counted, but cannot be told
//! apart ([`Target::min_stamped`]).

use std::net::{IpAddr, Ipv4Addr};

use crate::{
    addresses::{Mac, nexthop_mac_of, nexthop4_of, nexthop6_of},
    bpf::generator::types,
};

/// Frame check sequence: included in the frame sizes of RFC 2544, not in ours.
pub const FCS_BYTES: u16 = 4;
/// Shortest Ethernet frame without FCS.
pub const MIN_FRAME: u16 = 60;

/// MTU of the cables.
pub const STANDARD_MTU: u16 = 1500;

/// Length of an Ethernet header without tags.
pub const ETHERNET_BYTES: u16 = 14;

const TAG: usize = 4;
const TTL: u8 = 64;
/// Destination port of every test packet: discard (RFC 863), `TEST_PORT` in lab.h.
const TEST_PORT: u16 = 9;
/// `TEST_MARK` in lab.h.
const TEST_MARK: u16 = 0x6d6c;
/// `IP_AT` in generator.bpf.c.
const IP_AT: usize = 24;
const DONT_FRAGMENT: u16 = 0x4000;
const TCP_ACK: u8 = 0x10;

/// What follows the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// UDP without checksum (over IPv6 that is RFC 6935).
    Udp,
    /// TCP segments with the ACK flag.
    Tcp,
    /// ICMP or ICMPv6 echo requests.
    Echo,
}

/// VLAN tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tags {
    /// None.
    #[default]
    None,
    /// 802.1Q, with this VLAN.
    Vlan(u16),
    /// 802.1ad around 802.1Q.
    Stacked {
        /// Service VLAN.
        outer: u16,
        /// Customer VLAN.
        inner: u16,
    },
}

/// Where a packet goes, and through which router. Each target is one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Number of the router's port that the packet goes to. The source is next hop 1 behind that port.
    pub port: u8,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination MAC: the router's.
    pub router_mac: Mac,
    /// Source port of UDP and TCP, identifier of an echo request.
    pub source_port: u16,
    /// What follows the IP header.
    pub protocol: Protocol,
    /// VLAN tags.
    pub tags: Tags,
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// See [`flow`].
    pub flow: u32,
    /// Number within the flow, from 0.
    pub sequence: u32,
    /// CLOCK_MONOTONIC when it was written, nanoseconds, low 32 bits.
    pub time_ns: u32,
}

/// Number of the flow from a stream to its target number `target`.
pub fn flow(stream: usize, target: usize) -> u32 {
    ((stream as u32) << 24) | target as u32
}

/// The headers that many targets share: a template of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Headers {
    port: u8,
    ipv6: bool,
    protocol: Protocol,
    tags: Tags,
}

impl Target {
    /// UDP to the first port, without tags.
    pub fn udp(destination: IpAddr, router_mac: Mac, source_port: u16) -> Self {
        Self { port: 0, destination, router_mac, source_port, protocol: Protocol::Udp, tags: Tags::None }
    }

    /// The shortest frame that holds a test packet to this target.
    pub fn min_frame(&self) -> u16 {
        match self.protocol {
            Protocol::Udp => MIN_FRAME.max(self.headers().bytes()),
            Protocol::Tcp | Protocol::Echo => self.min_stamped(),
        }
    }

    /// The shortest frame that carries a stamp.
    pub fn min_stamped(&self) -> u16 {
        MIN_FRAME.max(self.headers().stamped_bytes())
    }

    /// The headers that it shares with other targets.
    pub fn headers(&self) -> Headers {
        Headers {
            port: self.port,
            ipv6: self.destination.is_ipv6(),
            protocol: self.protocol,
            tags: self.tags,
        }
    }

    /// Value for the generator's map.
    pub fn value(&self, template: u16) -> types::target {
        let mut value = types::target {
            router_mac: self.router_mac,
            template,
            source_port: self.source_port.to_be(),
            port: self.port.into(),
            ..Default::default()
        };
        let address = octets(self.destination);
        value.destination[..address.len()].copy_from_slice(&address);
        value
    }

    /// The frame the generator sends.
    pub fn frame(&self, frame_bytes: u16, stamp: Stamp) -> Vec<u8> {
        self.build(self.router_mac, nexthop_mac_of(self.port, 1), TTL, frame_bytes, stamp)
    }

    /// The frame that a router must send: TTL decremented, checksum right, MACs of the next hop and of the router.
    pub fn forwarded(&self, next_hop: Mac, source: Mac, frame_bytes: u16, stamp: Stamp) -> Vec<u8> {
        self.build(next_hop, source, TTL - 1, frame_bytes, stamp)
    }

    fn build(&self, to: Mac, from: Mac, ttl: u8, frame_bytes: u16, stamp: Stamp) -> Vec<u8> {
        let headers = self.headers();
        let (ip_at, transport_at) = (headers.l2_bytes(), headers.l2_bytes() + headers.ip_bytes());
        let mut frame = headers.constant();
        frame.resize(frame_bytes.into(), 0);
        let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &to);
        put(6, &from);
        let ip_bytes = (frame_bytes - ip_at as u16).to_be_bytes();
        let transport_bytes = (frame_bytes - transport_at as u16).to_be_bytes();
        let (length_at, ttl_at, destination_at) = if headers.ipv6 { (4, 7, 24) } else { (2, 8, 16) };
        put(ip_at + length_at, if headers.ipv6 { &transport_bytes } else { &ip_bytes });
        put(ip_at + ttl_at, &[ttl]);
        put(ip_at + destination_at, &octets(self.destination));
        let port_at = if self.protocol == Protocol::Echo { 4 } else { 0 };
        put(transport_at + port_at, &self.source_port.to_be_bytes());
        if self.protocol == Protocol::Udp {
            put(transport_at + 4, &transport_bytes);
        }
        if frame_bytes >= self.min_stamped() {
            let places = headers.stamp_places();
            for (place, word) in places.into_iter().zip([stamp.flow, stamp.sequence, stamp.time_ns]) {
                put(transport_at + place, &word.to_be_bytes());
            }
        }
        if !headers.ipv6 {
            let check = checksum(&frame[ip_at..transport_at]);
            frame[ip_at + 10..ip_at + 12].copy_from_slice(&check.to_be_bytes());
        }
        if let Some(place) = headers.checksum_place() {
            let pseudo = headers.pseudo_header(self.destination, transport_bytes);
            let check = checksum(&[&pseudo, &frame[transport_at..]].concat());
            frame[transport_at + place..][..2].copy_from_slice(&check.to_be_bytes());
        }
        frame
    }
}

impl Stamp {
    /// Reads the stamp of a received packet to a target with these headers.
    pub fn of(headers: Headers, frame: &[u8]) -> Option<Self> {
        let transport_at = headers.l2_bytes() + headers.ip_bytes();
        let [flow, sequence, time_ns] = headers.stamp_places().map(|place| {
            let at = transport_at + place;
            Some(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?))
        });
        Some(Self { flow: flow?, sequence: sequence?, time_ns: time_ns? })
    }
}

impl Headers {
    /// Length without a stamp.
    pub fn bytes(&self) -> u16 {
        (self.l2_bytes() + self.ip_bytes() + self.transport_bytes()) as u16
    }

    /// Length with the stamp.
    pub fn stamped_bytes(&self) -> u16 {
        let [.., last] = self.stamp_places();
        (self.l2_bytes() + self.ip_bytes() + last + 4) as u16
    }

    fn l2_bytes(&self) -> usize {
        usize::from(ETHERNET_BYTES)
            + match self.tags {
                Tags::None => 0,
                Tags::Vlan(_) => TAG,
                Tags::Stacked { .. } => 2 * TAG,
            }
    }

    fn ip_bytes(&self) -> usize {
        if self.ipv6 { 40 } else { 20 }
    }

    fn transport_bytes(&self) -> usize {
        if self.protocol == Protocol::Tcp { 20 } else { 8 }
    }

    /// Offsets of flow, sequence and time from the start of the transport header.
    fn stamp_places(&self) -> [usize; 3] {
        if self.protocol == Protocol::Tcp { [8, 4, 20] } else { [8, 12, 16] }
    }

    fn checksum_place(&self) -> Option<usize> {
        match self.protocol {
            Protocol::Udp => None,
            Protocol::Tcp => Some(16),
            Protocol::Echo => Some(2),
        }
    }

    fn ip_protocol(&self) -> u8 {
        match (self.protocol, self.ipv6) {
            (Protocol::Udp, _) => 17,
            (Protocol::Tcp, _) => 6,
            (Protocol::Echo, false) => 1,
            (Protocol::Echo, true) => 58,
        }
    }

    /// The headers, with zeros where packets differ: destinations, source port, lengths, checksums, stamp.
    fn constant(&self) -> Vec<u8> {
        let mut bytes = [&[0; 6][..], &nexthop_mac_of(self.port, 1)].concat();
        let mut push = |words: &[u16]| bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        match self.tags {
            Tags::None => {}
            Tags::Vlan(vlan) => push(&[0x8100, vlan]),
            Tags::Stacked { outer, inner } => push(&[0x88a8, outer, 0x8100, inner]),
        }
        let ttl_and_protocol = u16::from_be_bytes([TTL, self.ip_protocol()]);
        if self.ipv6 {
            push(&[0x86dd, 0x6000, TEST_MARK, 0, ttl_and_protocol.swap_bytes()]);
            push(&nexthop6_of(self.port, 0, 1).segments());
            push(&[0; 8]);
        } else {
            push(&[0x0800, 0x4500, 0, TEST_MARK, DONT_FRAGMENT, ttl_and_protocol, 0]);
            let [a, b, c, d] = nexthop4_of(self.port, 0, 1).octets();
            push(&[u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]), 0, 0]);
        }
        match self.protocol {
            Protocol::Udp => push(&[0, TEST_PORT, 0, 0]),
            Protocol::Tcp => {
                push(&[0, TEST_PORT, 0, 0, 0, 0, u16::from_be_bytes([0x50, TCP_ACK]), u16::MAX, 0, 0])
            }
            Protocol::Echo => push(&[if self.ipv6 { 128 << 8 } else { 8 << 8 }, 0, 0, 0]),
        }
        bytes
    }

    /// The pseudo-header, which the transport's checksum also covers (RFC 9293 3.1, RFC 8200 8.1).
    fn pseudo_header(&self, destination: IpAddr, transport_bytes: [u8; 2]) -> Vec<u8> {
        let source: IpAddr =
            if self.ipv6 { nexthop6_of(self.port, 0, 1).into() } else { nexthop4_of(self.port, 0, 1).into() };
        match (self.protocol, self.ipv6) {
            (Protocol::Echo, false) => Vec::new(),
            _ => [&octets(source)[..], &octets(destination), &[0, self.ip_protocol()], &transport_bytes]
                .concat(),
        }
    }

    /// Value for the generator's map. Words are summed as they lie in memory; the checksum allows any byte order (RFC
    /// 1071).
    pub fn template(&self, stamped: bool) -> types::template {
        let constant = self.constant();
        let transport_at = self.l2_bytes() + self.ip_bytes();
        let nowhere: IpAddr = if self.ipv6 { [0u8; 16].into() } else { [0u8; 4].into() };
        let pseudo = self.pseudo_header(nowhere, [0; 2]);
        let mut value = types::template {
            ip_sum: memory_sum(&constant[self.l2_bytes()..transport_at]),
            transport_sum: memory_sum(&pseudo) + memory_sum(&constant[transport_at..]),
            start: (IP_AT - self.l2_bytes()) as u8,
            protocol: self.ip_protocol(),
            ipv6: self.ipv6.into(),
            stamped: stamped.into(),
            ..Default::default()
        };
        value.headers[IP_AT - self.l2_bytes()..][..constant.len()].copy_from_slice(&constant);
        value
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn memory_sum(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_ne_bytes([pair[0], pair[1]]))).sum()
}

/// An IPv4 frame without tags, with another source address. UDP without a checksum needs no other change.
pub fn with_source(mut frame: Vec<u8>, source: Ipv4Addr) -> Vec<u8> {
    frame[26..30].copy_from_slice(&source.octets());
    frame[24..26].fill(0);
    let check = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame
}

/// What a host sends back when it gets this IPv4 frame without tags: the ends change places, and so checksums stay.
pub fn answer(mut frame: Vec<u8>) -> Vec<u8> {
    for (at, bytes) in [(0, 6), (26, 4), (34, 2)] {
        frame[at..at + 2 * bytes].rotate_left(bytes);
    }
    frame
}

/// The Internet checksum (RFC 1071).
pub fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    const STAMP: Stamp = Stamp { flow: 0x0203_0405, sequence: 0xa1b2_c3d4, time_ns: 0xffee_ddcc };

    fn targets() -> Vec<Target> {
        let mut targets = Vec::new();
        for destination in ["198.18.0.7", "2001:2::7"] {
            for protocol in [Protocol::Udp, Protocol::Tcp, Protocol::Echo] {
                for tags in [Tags::None, Tags::Vlan(7), Tags::Stacked { outer: 4094, inner: 8 }] {
                    let router_mac = crate::addresses::ingress_mac(0);
                    let destination = destination.parse().unwrap();
                    targets.push(Target {
                        port: 3,
                        destination,
                        router_mac,
                        source_port: 1024,
                        protocol,
                        tags,
                    });
                }
            }
        }
        targets
    }

    #[test]
    fn frames_are_what_another_parser_expects() {
        for target in targets() {
            for bytes in [target.min_frame(), target.min_stamped(), 101, 1514, 9000] {
                if bytes < target.min_frame() {
                    continue;
                }
                let frame = target.frame(bytes, STAMP);
                assert_eq!(frame.len(), usize::from(bytes));
                let parsed = SlicedPacket::from_ethernet(&frame).unwrap();
                let vlans: Vec<u16> = parsed.vlan_ids().iter().map(|id| id.value()).collect();
                match target.tags {
                    Tags::None => assert!(vlans.is_empty()),
                    Tags::Vlan(vlan) => assert_eq!(vlans, [vlan]),
                    Tags::Stacked { outer, inner } => assert_eq!(vlans, [outer, inner]),
                }
                match parsed.net.as_ref().unwrap() {
                    NetSlice::Ipv4(ip) => {
                        assert_eq!(ip.header().destination_addr(), target.destination);
                        assert_eq!(
                            ip.header().header_checksum(),
                            ip.header().to_header().calc_header_checksum()
                        );
                    }
                    NetSlice::Ipv6(ip) => assert_eq!(ip.header().destination_addr(), target.destination),
                    other => panic!("{other:?}"),
                }
                check_transport(&target, &parsed, bytes >= target.min_stamped());
                if bytes >= target.min_stamped() {
                    assert_eq!(Stamp::of(target.headers(), &frame), Some(STAMP));
                }
            }
        }
    }

    fn check_transport(target: &Target, parsed: &SlicedPacket<'_>, stamped: bool) {
        let words = [STAMP.flow, STAMP.sequence, STAMP.time_ns].map(u32::to_be_bytes).concat();
        let net = parsed.net.as_ref().unwrap();
        let payload = match parsed.transport.as_ref().unwrap() {
            TransportSlice::Udp(udp) => {
                assert_eq!((udp.source_port(), udp.destination_port(), udp.checksum()), (1024, 9, 0));
                udp.payload()
            }
            TransportSlice::Tcp(tcp) => {
                assert_eq!((tcp.source_port(), tcp.destination_port(), tcp.ack()), (1024, 9, true));
                assert_eq!(
                    (tcp.sequence_number(), tcp.acknowledgment_number()),
                    (STAMP.sequence, STAMP.flow)
                );
                let header = tcp.to_header();
                let right = match net {
                    NetSlice::Ipv4(ip) => {
                        header.calc_checksum_ipv4(&ip.header().to_header(), tcp.payload()).unwrap()
                    }
                    NetSlice::Ipv6(ip) => {
                        header.calc_checksum_ipv6(&ip.header().to_header(), tcp.payload()).unwrap()
                    }
                    other => panic!("{other:?}"),
                };
                assert_eq!(tcp.checksum(), right);
                assert_eq!(tcp.payload()[..4], STAMP.time_ns.to_be_bytes());
                return;
            }
            TransportSlice::Icmpv4(icmp) => {
                assert_eq!(icmp.header().icmp_type.calc_checksum(icmp.payload()), icmp.header().checksum);
                icmp.payload()
            }
            TransportSlice::Icmpv6(icmp) => {
                let NetSlice::Ipv6(ip) = net else { panic!("ICMPv6 over {net:?}") };
                let (source, destination) = (ip.header().source(), ip.header().destination());
                let right = icmp.icmp_type().calc_checksum(source, destination, icmp.payload()).unwrap();
                assert_eq!(icmp.header().checksum, right);
                icmp.payload()
            }
            other => panic!("{other:?}"),
        };
        assert!(matches!(target.protocol, Protocol::Udp | Protocol::Echo));
        if stamped {
            assert_eq!(payload[..12], words);
        } else {
            assert!(payload.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn the_smallest_frames_are_known() {
        let sizes: Vec<_> = targets().iter().map(|t| (t.min_frame(), t.min_stamped())).collect();
        let v4 = [(60, 60), (60, 60), (60, 62), (60, 60), (62, 62), (66, 66), (60, 60), (60, 60), (62, 62)];
        let v6 = [(62, 74), (66, 78), (70, 82), (78, 78), (82, 82), (86, 86), (74, 74), (78, 78), (82, 82)];
        assert_eq!(sizes, [v4, v6].concat());
    }

    #[test]
    fn forwarding_changes_macs_ttl_and_checksum_only() {
        let target = Target::udp("198.18.0.7".parse().unwrap(), [9; 6], 1024);
        let (before, after) = (target.frame(60, STAMP), target.forwarded([1; 6], [2; 6], 60, STAMP));
        assert_eq!((&after[..6], &after[6..12]), (&[1; 6][..], &[2; 6][..]));
        assert_eq!(after[22] + 1, before[22]);
        assert_eq!(checksum(&after[14..34]), 0);
        assert_eq!((&before[12..22], &before[26..]), (&after[12..22], &after[26..]));
    }

    #[test]
    fn an_answer_to_a_translated_packet_goes_back_to_the_new_source() {
        let target = Target::udp("198.18.0.7".parse().unwrap(), [9; 6], 1024);
        let before = target.forwarded([1; 6], [2; 6], 60, STAMP);
        let translated = with_source(before.clone(), Ipv4Addr::new(10, 2, 0, 1));
        assert_eq!((checksum(&translated[14..34]), &translated[26..30]), (0, &[10, 2, 0, 1][..]));
        assert_eq!((&before[..24], &before[30..]), (&translated[..24], &translated[30..]));
        let frame = answer(translated);
        let parsed = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(NetSlice::Ipv4(ip)) = &parsed.net else { panic!("{parsed:?}") };
        assert_eq!(ip.header().source(), [198, 18, 0, 7]);
        assert_eq!(ip.header().destination(), [10, 2, 0, 1]);
        assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
        let Some(TransportSlice::Udp(udp)) = &parsed.transport else { panic!("{parsed:?}") };
        assert_eq!((udp.source_port(), udp.destination_port()), (9, 1024));
        assert_eq!((&frame[..6], &frame[6..12]), (&[2; 6][..], &[1; 6][..]));
    }
}
