//! Packets as people write them, for `millrace explain`: from text to a frame, and from a frame to the header fields that a
//! router changes.
//!
//! ```text
//! udp 10.0.0.1:1234 -> 10.1.0.1:80 ttl=1 vlan=10 len=1400
//! tcp [2001:db8::1]:1234 -> [2001:db8:1::1]:80
//! icmp 10.0.0.1 -> 10.1.0.1 dmac=02:00:00:00:00:01
//! ```

use etherparse::{IpHeaders, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, PacketBuilder};
use logic::net::{Mac, Tag, Vlan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, net::IpAddr, str::FromStr};

/// The port of the discard service (RFC 863).
pub const DISCARD: u16 = 9;

/// The longest IP packet that can be described, in bytes.
pub const MAX_LENGTH: u16 = 9000;

const FORM: &str = "PROTOCOL SOURCE[:PORT] -> DESTINATION[:PORT] [ttl=N] [tos=N] [len=N] [vlan=VID[.VID]] [dmac=MAC] \
                    [smac=MAC], PROTOCOL one of udp, tcp, icmp; IPv6 with a port as [ADDRESS]:PORT";

const MAC_FORM: &str = "six bytes such as 02:00:00:00:00:01";

/// The protocol of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Udp,
    Tcp,
    /// An echo request of ICMP, or of ICMPv6 between IPv6 addresses.
    Icmp,
}

/// A packet as described. The builder of the frame chooses fields that are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketText {
    pub protocol: Protocol,
    /// Of the same IP version as `destination`.
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Source and destination port, ignored for ICMP; `None`: not given, [`DISCARD`] is used.
    pub ports: [Option<u16>; 2],
    /// TTL or hop limit.
    pub ttl: u8,
    /// TOS or traffic class.
    pub tos: u8,
    /// Bytes of the IP packet; `None`: the shortest.
    pub length: Option<u16>,
    pub vlan: Option<Vlan>,
    pub destination_mac: Option<Mac>,
    pub source_mac: Option<Mac>,
}

/// Why a text is not a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPacket(pub String);

impl fmt::Display for BadPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; a packet is written as: {FORM}", self.0)
    }
}

impl std::error::Error for BadPacket {}

fn bad<T>(what: impl Into<String>) -> Result<T, BadPacket> {
    Err(BadPacket(what.into()))
}

impl FromStr for PacketText {
    type Err = BadPacket;

    fn from_str(text: &str) -> Result<Self, BadPacket> {
        let mut words = text.split_whitespace();
        let protocol = match words.next() {
            Some("udp") => Protocol::Udp,
            Some("tcp") => Protocol::Tcp,
            Some("icmp" | "icmp6" | "icmpv6") => Protocol::Icmp,
            other => return bad(format!("unknown protocol {:?}", other.unwrap_or_default())),
        };
        let (source, source_port) = endpoint(words.next().unwrap_or_default())?;
        if words.next() != Some("->") {
            return bad("no \"->\" between source and destination");
        }
        let (destination, destination_port) = endpoint(words.next().unwrap_or_default())?;
        if source.is_ipv4() != destination.is_ipv4() {
            return bad("source and destination are of different IP versions");
        }
        let mut packet = PacketText {
            protocol,
            source,
            destination,
            ports: [source_port, destination_port],
            ttl: 64,
            tos: 0,
            length: None,
            vlan: None,
            destination_mac: None,
            source_mac: None,
        };
        words.try_for_each(|word| packet.option(word))?;
        packet.check_length()?;
        Ok(packet)
    }
}

impl PacketText {
    fn option(&mut self, word: &str) -> Result<(), BadPacket> {
        let Some((key, value)) = word.split_once('=') else {
            return bad(format!("unknown word {word:?}"));
        };
        let number = || value.parse::<u16>().ok();
        let byte = || value.parse::<u8>().ok();
        let (done, allowed) = match key {
            "ttl" => (byte().map(|v| self.ttl = v), "0 to 255"),
            "tos" => (byte().map(|v| self.tos = v), "0 to 255"),
            "len" => (
                number().map(|v| self.length = Some(v)),
                "28 to 9000 for UDP, 40 to 9000 for TCP, IPv6 20 more",
            ),
            "vlan" => (vlan(value).map(|v| self.vlan = Some(v)), "1 to 4094, or two of them as OUTER.INNER"),
            "dmac" => (mac(value).map(|v| self.destination_mac = Some(v)), MAC_FORM),
            "smac" => (mac(value).map(|v| self.source_mac = Some(v)), MAC_FORM),
            _ => return bad(format!("unknown option {key:?}")),
        };
        done.ok_or_else(|| BadPacket(format!("{word:?} is not allowed: {allowed}")))
    }

    /// Bytes of all headers, from the IP header on.
    fn header_bytes(&self) -> u16 {
        let ip = if self.source.is_ipv4() { 20 } else { 40 };
        ip + if self.protocol == Protocol::Tcp { 20 } else { 8 }
    }

    fn check_length(&self) -> Result<(), BadPacket> {
        match self.length {
            Some(length) if length < self.header_bytes() || length > MAX_LENGTH => {
                bad(format!("len={length} is not allowed: {} to {MAX_LENGTH} here", self.header_bytes()))
            }
            _ => Ok(()),
        }
    }

    /// The frame with these addresses and tags, with correct checksums.
    pub fn frame(&self, destination: Mac, source: Mac, vlan: Vlan) -> Vec<u8> {
        let payload = vec![0; usize::from(self.length.unwrap_or(0).saturating_sub(self.header_bytes()))];
        let builder = PacketBuilder::ethernet2(source.0, destination.0).ip(self.ip_headers());
        let [from, to] = self.ports.map(|port| port.unwrap_or(DISCARD));
        let mut frame = Vec::new();
        // This cannot fail: it writes to memory, and the lengths were checked when the text was parsed.
        let _ = match (self.protocol, self.source.is_ipv4()) {
            (Protocol::Udp, _) => builder.udp(from, to).write(&mut frame, &payload),
            (Protocol::Tcp, _) => builder.tcp(from, to, 1, 64240).write(&mut frame, &payload),
            (Protocol::Icmp, true) => builder.icmpv4_echo_request(1, 1).write(&mut frame, &payload),
            (Protocol::Icmp, false) => builder.icmpv6_echo_request(1, 1).write(&mut frame, &payload),
        };
        frame.splice(12..12, tag_bytes(vlan));
        frame
    }

    fn ip_headers(&self) -> IpHeaders {
        // The builder fills in lengths, the next protocol and checksums.
        match (self.source, self.destination) {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = Ipv6Header {
                    traffic_class: self.tos,
                    flow_label: Ipv6FlowLabel::ZERO,
                    payload_length: 0,
                    next_header: IpNumber::UDP,
                    hop_limit: self.ttl,
                    source: source.octets(),
                    destination: destination.octets(),
                };
                IpHeaders::Ipv6(header, Default::default())
            }
            (source, destination) => {
                let octets = |a| if let IpAddr::V4(a) = a { a.octets() } else { [0; 4] };
                let mut header = Ipv4Header::default();
                (header.source, header.destination) = (octets(source), octets(destination));
                header.time_to_live = self.ttl;
                if let (Ok(dscp), Ok(ecn)) = ((self.tos >> 2).try_into(), (self.tos & 3).try_into()) {
                    (header.dscp, header.ecn) = (dscp, ecn);
                }
                IpHeaders::Ipv4(header, Default::default())
            }
        }
    }
}

/// The tags of a VLAN key as bytes on the wire, the outer one first.
fn tag_bytes(vlan: Vlan) -> Vec<u8> {
    let tag = |half: u32| {
        let tpid: u16 = if half & 0x1000 != 0 { 0x88a8 } else { 0x8100 };
        [tpid.to_be_bytes(), ((half & 0xfff) as u16).to_be_bytes()].concat()
    };
    let key = vlan.key();
    [key, key >> 16].into_iter().take(vlan.tags()).flat_map(tag).collect()
}

fn endpoint(text: &str) -> Result<(IpAddr, Option<u16>), BadPacket> {
    if let Ok(address) = text.parse::<std::net::SocketAddr>() {
        return Ok((address.ip(), Some(address.port())));
    }
    match text.trim_start_matches('[').trim_end_matches(']').parse() {
        Ok(address) => Ok((address, None)),
        Err(_) => bad(format!("{text:?} is not an address with or without a port")),
    }
}

/// Parses `10`, or `10.20`: outer and inner tag, both 802.1Q.
fn vlan(text: &str) -> Option<Vlan> {
    text.split('.').try_fold(Vlan::NONE, |vlan, vid| {
        let vid = vid.parse().ok().filter(|vid| (1..=4094).contains(vid))?;
        vlan.push(Tag { vid, service: false })
    })
}

/// Parses six bytes with two hexadecimal digits each.
pub(crate) fn mac(text: &str) -> Option<Mac> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next().filter(|p| p.len() == 2)?, 16).ok()?;
    }
    parts.next().is_none().then_some(Mac(bytes))
}

/// The header fields that a router reads or changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Headers {
    /// Destination MAC address.
    pub destination_mac: String,
    /// Source MAC address.
    pub source_mac: String,
    /// `100` or `100.7`; null: untagged.
    pub vlan: Option<String>,
    /// EtherType after the tags.
    pub ether_type: u16,
    /// Source IP address; null: not an IP packet.
    pub source: Option<IpAddr>,
    /// Destination IP address; null: not an IP packet.
    pub destination: Option<IpAddr>,
    /// TTL or hop limit.
    pub ttl: Option<u8>,
    /// IPv4 header checksum.
    pub checksum: Option<u16>,
    /// Bytes of the frame.
    pub length: usize,
}

/// The VLAN tags of a frame, the EtherType behind them, and the bytes behind that; `None`: it has no EtherType. Tags that
/// a [`Vlan`] cannot hold count as an EtherType.
pub fn behind_tags(frame: &[u8]) -> Option<(Vlan, u16, &[u8])> {
    let word = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let (mut vlan, mut at) = (Vlan::NONE, 12);
    let mut ether_type = word(at)?;
    while matches!(ether_type, 0x8100 | 0x88a8) {
        let (Some(tci), Some(next)) = (word(at + 2), word(at + 4)) else { break };
        let Some(pushed) = vlan.push(Tag { vid: tci & 0xfff, service: ether_type == 0x88a8 }) else {
            break;
        };
        (vlan, ether_type, at) = (pushed, next, at + 4);
    }
    Some((vlan, ether_type, frame.get(at + 2..).unwrap_or_default()))
}

impl Headers {
    /// Reads the headers of a frame; `None`: it has no whole Ethernet header.
    pub fn read(frame: &[u8]) -> Option<Headers> {
        let mac = |at: usize| Mac::from_slice(frame.get(at..at + 6)?).map(|m| m.to_string());
        let (vlan, ether_type, ip) = behind_tags(frame)?;
        let v4 = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
        let v6 = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?));
        let (source, destination, ttl) = match ether_type {
            0x0800 => (v4(12), v4(16), ip.get(8).copied()),
            0x86dd => (v6(8), v6(24), ip.get(7).copied()),
            _ => (None, None, None),
        };
        Some(Headers {
            destination_mac: mac(0)?,
            source_mac: mac(6)?,
            vlan: (vlan != Vlan::NONE).then(|| vlan.to_string()),
            ether_type,
            source,
            destination,
            ttl,
            checksum: (ether_type == 0x0800)
                .then(|| ip.get(10..12)?.try_into().ok())
                .flatten()
                .map(u16::from_be_bytes),
            length: frame.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::SlicedPacket;
    use proptest::prelude::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    /// Texts with fields of the frame, and texts with a part of the error.
    #[test]
    fn texts() {
        let good = [
            ("udp 10.0.0.1:1234 -> 10.1.0.1:80", (64, 42, "-")),
            ("tcp 10.0.0.1 -> 10.1.0.1 ttl=1 len=1500", (1, 1514, "-")),
            ("icmp 10.0.0.1 -> 10.1.0.1 vlan=10", (64, 46, "10")),
            ("udp [2001:db8::1]:1 -> [2001:db8::2]:2 ttl=255 vlan=10.20 tos=7", (255, 70, "10.20")),
            ("icmp 2001:db8::1 -> 2001:db8::2 len=9000", (64, 9014, "-")),
        ];
        for (text, (ttl, length, vlan)) in good {
            let packet: PacketText = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            let frame = packet.frame(A, B, packet.vlan.unwrap_or_default());
            let headers = Headers::read(&frame).unwrap();
            assert_eq!(
                (headers.ttl, headers.length, headers.vlan.as_deref().unwrap_or("-")),
                (Some(ttl), length, vlan),
                "{text}"
            );
            assert_eq!(
                (headers.source, headers.destination),
                (Some(packet.source), Some(packet.destination))
            );
            assert_eq!((headers.destination_mac, headers.source_mac), (A.to_string(), B.to_string()));
            SlicedPacket::from_ethernet(&frame).unwrap_or_else(|e| panic!("{text}: {e}"));
        }
        let wrong = [
            ("", "unknown protocol"),
            ("sctp 1.1.1.1 -> 2.2.2.2", "unknown protocol \"sctp\""),
            ("udp 1.1.1.1 2.2.2.2", "no \"->\""),
            ("udp 1.1.1.1:99999 -> 2.2.2.2", "\"1.1.1.1:99999\" is not an address"),
            ("udp 1.1.1.1 -> ::2", "different IP versions"),
            ("udp 1.1.1.1 -> 2.2.2.2 ttl=256", "\"ttl=256\" is not allowed: 0 to 255"),
            ("udp 1.1.1.1 -> 2.2.2.2 len=27", "28 to 9000"),
            ("udp 1.1.1.1 -> 2.2.2.2 vlan=1.2.3", "\"vlan=1.2.3\""),
            ("udp 1.1.1.1 -> 2.2.2.2 vlan=4095", "\"vlan=4095\" is not allowed: 1 to 4094"),
            ("udp 1.1.1.1 -> 2.2.2.2 dmac=1:2:3:4:5:6", "\"dmac="),
            ("udp 1.1.1.1 -> 2.2.2.2 dmac=02:00:00:00:00:01:02", "\"dmac="),
            ("udp 1.1.1.1 -> 2.2.2.2 fast", "unknown word \"fast\""),
            ("udp 1.1.1.1 -> 2.2.2.2 mark=1", "unknown option \"mark\""),
        ];
        for (text, part) in wrong {
            let error = text.parse::<PacketText>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("a packet is written as:"), "{text:?}: {error}");
        }
    }

    #[test]
    fn ipv4_header_checksum_is_right() {
        let packet: PacketText = "udp 10.0.0.1:1 -> 10.1.0.1:2 tos=184".parse().unwrap();
        let frame = packet.frame(A, B, Vlan::NONE);
        // RFC 1071: the ones' complement sum over a header with its checksum is all ones.
        let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(frame[15], 184);
    }

    proptest! {
        #[test]
        fn no_text_or_frame_panics(text in "\\PC{0,80}", frame in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = text.parse::<PacketText>();
            let _ = format!("udp {text} -> 1.1.1.1 {text}").parse::<PacketText>();
            let _ = Headers::read(&frame);
        }

        #[test]
        fn every_frame_reads_back(
            a: u32, b: u32, ports: [u16; 2], ttl: u8, tos: u8, length in 40u16..9000, v6: bool, which in 0..3usize,
        ) {
            let address = |v: u32| if v6 { IpAddr::from((v as u128).to_be_bytes()) } else { IpAddr::from(v.to_be_bytes()) };
            let (a, b) = (address(a), address(b));
            let name = ["udp", "tcp", "icmp"][which];
            let length = length + 20 * u16::from(v6);
            prop_assume!(length <= MAX_LENGTH);
            let text = format!("{name} {} -> {} ttl={ttl} tos={tos} len={length}",
                std::net::SocketAddr::new(a, ports[0]), std::net::SocketAddr::new(b, ports[1]));
            let packet: PacketText = text.parse().unwrap();
            prop_assert_eq!(packet.ports, ports.map(Some));
            let frame = packet.frame(A, B, Vlan::NONE);
            let headers = Headers::read(&frame).unwrap();
            prop_assert_eq!((headers.source, headers.destination, headers.ttl), (Some(a), Some(b), Some(ttl)));
            prop_assert_eq!(headers.length, usize::from(length) + 14);
        }
    }
}
