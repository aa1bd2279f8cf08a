//! Connections through the router, and packets of them as their ends send them.

use super::router::{Device, Rules};
use crate::common::frame::fix_checksum;
use fastrand::Rng;
use std::net::{IpAddr, SocketAddr};

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;

/// One direction: source and destination of its packets.
#[derive(Clone, Debug)]
pub struct Way {
    pub arrives: [SocketAddr; 2],
    pub leaves: [SocketAddr; 2],
    pub ingress: Device,
    pub egress: Device,
}

#[derive(Clone, Debug)]
pub struct Connection {
    pub name: &'static str,
    pub number: usize,
    pub protocol: u8,
    /// First the direction in which it begins.
    pub ways: [Way; 2],
    /// Does Millrace forward its packets without rules now?
    pub is_fast: bool,
    /// The next sequence number of each direction (TCP).
    pub sequence: [u32; 2],
}

/// A frame to be sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub ingress: Device,
    pub packet: Vec<u8>,
    /// The connection that counts it, if Millrace forwards it without rules.
    pub counted: Option<usize>,
    pub label: String,
}

/// What a packet is like, apart from its connection.
#[derive(Clone, Debug)]
pub struct Spec {
    pub payload: Vec<u8>,
    /// DSCP and ECN.
    pub class: u8,
    pub ttl: u8,
    pub id: u16,
    pub may_be_fragmented: bool,
    /// ACK, and URG, PSH, ECE and CWR.
    pub flags: u8,
    pub tcp_options: Vec<u8>,
    /// IPv4 options or an extension header.
    pub options: bool,
    /// Bytes behind UDP in the IP packet.
    pub tail: usize,
    pub checksum: Checksum,
    /// Is added to the checksum.
    pub wrong: u16,
    pub sequence_shift: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    Computed,
    /// UDP without a checksum.
    None,
    /// The payload makes it 0 (UDP sends 0xffff), as it arrives.
    Zero,
    /// The same, written as 0xffff by TCP, too.
    Ones,
    /// The payload makes it 0 as it leaves.
    ZeroLater,
}

impl Spec {
    pub fn small(rng: &mut Rng) -> Spec {
        Spec {
            payload: (0..rng.usize(0..40)).map(|_| rng.u8(..)).collect(),
            class: 0,
            ttl: 64,
            id: rng.u16(1..),
            may_be_fragmented: false,
            flags: ACK,
            tcp_options: Vec::new(),
            options: false,
            tail: 0,
            checksum: Checksum::Computed,
            wrong: 0,
            sequence_shift: 0,
        }
    }
}

/// Adds 16-bit words with end-around carry.
fn ones_sum(bytes: &[u8]) -> u16 {
    let word = |w: &[u8]| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The checksum of UDP, TCP or ICMPv6, whose field in `body` is 0.
pub fn checksum(protocol: u8, ends: [IpAddr; 2], body: &[u8]) -> u16 {
    let addresses = ends.map(octets).concat();
    let length = (body.len() as u32).to_be_bytes();
    !ones_sum(&[&addresses[..], &length, &[0, 0, 0, protocol], body].concat())
}

/// An IP packet.
pub fn ip(ends: [IpAddr; 2], protocol: u8, spec: &Spec, body: &[u8]) -> Vec<u8> {
    if ends[0].is_ipv4() {
        // Router alert has a meaning for Linux, so these are no-operations.
        let options: &[u8] = if spec.options { &[1, 1, 1, 0] } else { &[] };
        let header = 20 + options.len();
        let mut packet = vec![0x40 | (header / 4) as u8, spec.class];
        packet.extend(((header + body.len()) as u16).to_be_bytes());
        packet.extend(spec.id.to_be_bytes());
        packet.extend([if spec.may_be_fragmented { 0 } else { 0x40 }, 0, spec.ttl, protocol, 0, 0]);
        packet.extend(ends.map(octets).concat());
        packet.extend(options);
        fix_checksum(&mut packet);
        packet.extend(body);
        packet
    } else {
        let destination_options = [protocol, 0, 1, 4, 0, 0, 0, 0];
        let extension: &[u8] = if spec.options { &destination_options } else { &[] };
        let next = if spec.options { 60 } else { protocol };
        let mut packet = vec![0x60 | spec.class >> 4, spec.class << 4 | (spec.id >> 12) as u8];
        packet.extend(spec.id.to_be_bytes());
        packet.extend(((extension.len() + body.len()) as u16).to_be_bytes());
        packet.extend([next, spec.ttl]);
        packet.extend(ends.map(octets).concat());
        packet.extend(extension);
        packet.extend(body);
        packet
    }
}

/// The bytes of headers in front of the payload.
pub fn header_bytes(connection: &Connection, spec: &Spec) -> usize {
    let ip = if connection.is_ipv4() { 20 } else { 40 };
    ip + if connection.protocol == TCP { 20 + spec.tcp_options.len() } else { 8 }
}

impl Connection {
    /// A connection that nothing translates, if the packets of `ways` leave as they arrive.
    pub fn new(name: &'static str, number: usize, protocol: u8, ways: [Way; 2]) -> Connection {
        Connection { name, number, protocol, ways, is_fast: false, sequence: [0; 2] }
    }

    pub fn is_ipv4(&self) -> bool {
        self.ways[0].arrives[0].is_ipv4()
    }

    pub fn protocol_name(&self) -> &'static str {
        if self.protocol == TCP { "tcp" } else { "udp" }
    }

    fn body(&self, way: usize, spec: &Spec, flags: u8) -> Vec<u8> {
        let Way { arrives: [source, destination], leaves, .. } = &self.ways[way];
        let ports = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
        let (field, mut body) = if self.protocol == UDP {
            let length = (8 + spec.payload.len()) as u16;
            (6, [&ports[..], &length.to_be_bytes(), &[0, 0]].concat())
        } else {
            let ack = if flags & ACK == 0 { 0 } else { self.sequence[1 - way] };
            let sequence = self.sequence[way].wrapping_add(spec.sequence_shift);
            let offset = (((20 + spec.tcp_options.len()) / 4) << 4) as u8;
            let words = [sequence.to_be_bytes(), ack.to_be_bytes(), [offset, flags, 0xff, 0xff], [0; 4]];
            (16, [&ports[..], &words.concat(), &spec.tcp_options].concat())
        };
        body.extend(&spec.payload);
        let of = |ends: &[SocketAddr; 2], body: &[u8]| {
            let mut body = body.to_vec();
            body[..2].copy_from_slice(&ends[0].port().to_be_bytes());
            body[2..4].copy_from_slice(&ends[1].port().to_be_bytes());
            checksum(self.protocol, ends.map(|end| end.ip()), &body)
        };
        // The last word of the payload brings the sum to 0xffff.
        let at = body.len().saturating_sub(2) & !1;
        let has_room = spec.payload.len() >= 4;
        if has_room && matches!(spec.checksum, Checksum::Zero | Checksum::Ones | Checksum::ZeroLater) {
            body[at..at + 2].fill(0);
            let ends = if spec.checksum == Checksum::ZeroLater { leaves } else { &self.ways[way].arrives };
            let word = of(ends, &body);
            body[at..at + 2].copy_from_slice(&word.to_be_bytes());
            assert_eq!(of(ends, &body), 0);
        }
        let right = of(&self.ways[way].arrives, &body);
        let mut written = if right == 0 && (self.protocol == UDP || spec.checksum == Checksum::Ones) {
            0xffff
        } else {
            right
        };
        if spec.checksum == Checksum::None {
            written = 0;
        }
        written = written.wrapping_add(spec.wrong);
        if spec.wrong != 0 && self.protocol == UDP && written == 0 {
            written = 1;
        }
        body[field..field + 2].copy_from_slice(&written.to_be_bytes());
        body.extend(std::iter::repeat_n(0xa5, spec.tail));
        body
    }

    fn addresses(&self, way: usize) -> [IpAddr; 2] {
        self.ways[way].arrives.map(|end| end.ip())
    }

    fn sent(&self, way: usize, packet: Vec<u8>, label: String, plain: bool) -> Sent {
        let mtu = self.ways[way].egress.mtu();
        let counted = (plain && self.is_fast && packet.len() <= mtu).then_some(self.number);
        let label = format!("{} {} way {way}: {label}", self.name, self.protocol_name());
        Sent { ingress: self.ways[way].ingress, packet, counted, label }
    }

    /// A packet with data.
    pub fn data(&mut self, way: usize, spec: &Spec) -> Sent {
        let packet = ip(self.addresses(way), self.protocol, spec, &self.body(way, spec, spec.flags));
        let plain = spec.ttl > 1 && !spec.options && spec.tail == 0;
        if spec.wrong == 0 && spec.sequence_shift == 0 {
            self.sequence[way] = self.sequence[way].wrapping_add(spec.payload.len() as u32);
        }
        let mut shown = spec.clone();
        shown.payload.truncate(4);
        self.sent(way, packet, format!("{} bytes of data, {shown:?}", spec.payload.len()), plain)
    }

    /// A packet in two fragments.
    pub fn fragments(&mut self, way: usize, spec: &Spec, rng: &mut Rng) -> Vec<Sent> {
        let body = self.body(way, spec, spec.flags);
        self.sequence[way] = self.sequence[way].wrapping_add(spec.payload.len() as u32);
        // Linux does not track IPv6 packets whose first fragment lacks a part of the header of TCP.
        let least = if self.is_ipv4() || self.protocol == UDP {
            1
        } else {
            (20 + spec.tcp_options.len()).div_ceil(8)
        };
        let cut = rng.usize(least..body.len().div_ceil(8).max(least + 1)) * 8;
        let cut = cut.min(body.len() / 8 * 8);
        let ends = self.addresses(way);
        let part = |offset: usize, bytes: &[u8], more: bool| {
            let packet = if self.is_ipv4() {
                let mut packet =
                    ip(ends, self.protocol, &Spec { may_be_fragmented: true, ..spec.clone() }, bytes);
                let field = (offset / 8) as u16 | u16::from(more) << 13;
                packet[6..8].copy_from_slice(&field.to_be_bytes());
                fix_checksum(&mut packet);
                packet
            } else {
                let [high, low] = (offset as u16 | u16::from(more)).to_be_bytes();
                let [a, b] = spec.id.to_be_bytes();
                let header = [self.protocol, 0, high, low, 0, 0, a, b];
                ip(ends, 44, spec, &[&header, bytes].concat())
            };
            self.sent(way, packet, format!("a fragment at {offset} of {} bytes", body.len()), false)
        };
        vec![part(0, &body[..cut], true), part(cut, &body[cut..], false)]
    }

    /// An ICMP error of the receiver about a packet of this direction.
    pub fn error(&mut self, way: usize, rng: &mut Rng) -> Sent {
        let spec = Spec { payload: vec![7; 24], ..Spec::small(rng) };
        let arrives = std::mem::replace(&mut self.ways[way].arrives, self.ways[way].leaves);
        let about = ip(self.addresses(way), self.protocol, &spec, &self.body(way, &spec, ACK));
        self.ways[way].arrives = arrives;
        let [source, destination] = self.ways[way].leaves.map(|end| end.ip());
        let back = [destination, source];
        let (protocol, header): (u8, [u8; 8]) = if self.is_ipv4() {
            (
                1,
                rng.choice([[3, 3, 0, 0, 0, 0, 0, 0], [3, 4, 0, 0, 0, 0, 5, 0], [11, 0, 0, 0, 0, 0, 0, 0]])
                    .unwrap(),
            )
        } else {
            (
                58,
                rng.choice([[1, 4, 0, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 5, 0], [3, 0, 0, 0, 0, 0, 0, 0]])
                    .unwrap(),
            )
        };
        let mut body = [&header[..], &about].concat();
        let sum = if protocol == 58 { checksum(58, back, &body) } else { !ones_sum(&body) };
        body[2..4].copy_from_slice(&sum.to_be_bytes());
        let spec = Spec { options: false, ..Spec::small(rng) };
        let packet = ip(back, protocol, &spec, &body);
        let label =
            format!("{} {}: an ICMP error {header:?} about way {way}", self.name, self.protocol_name());
        Sent { ingress: self.ways[way].egress, packet, counted: None, label }
    }

    /// A segment of TCP that changes the state of the connection. SYN and FIN take a sequence number.
    pub fn segment(&mut self, way: usize, flags: u8, rng: &mut Rng) -> Sent {
        let spec = Spec { payload: Vec::new(), ..Spec::small(rng) };
        let packet = ip(self.addresses(way), TCP, &spec, &self.body(way, &spec, flags));
        let takes = u32::from(flags & (SYN | FIN) != 0);
        self.sequence[way] = self.sequence[way].wrapping_add(takes);
        self.sent(way, packet, format!("TCP flags {flags:#x}"), false)
    }

    /// The packet that begins the connection.
    pub fn first(&mut self, rng: &mut Rng) -> Sent {
        if self.protocol == UDP { self.data(0, &Spec::small(rng)) } else { self.segment(0, SYN, rng) }
    }

    pub fn handshake(&mut self, rng: &mut Rng) -> Vec<Sent> {
        if self.protocol == UDP {
            return vec![self.data(0, &Spec::small(rng)), self.data(1, &Spec::small(rng))];
        }
        self.sequence = [rng.u32(..), rng.u32(..)];
        vec![self.segment(0, SYN, rng), self.segment(1, SYN | ACK, rng), self.segment(0, ACK, rng)]
    }

    pub fn fins(&mut self, way: usize, rng: &mut Rng) -> Vec<Sent> {
        let ends = [(way, FIN | ACK), (1 - way, ACK), (1 - way, FIN | ACK), (way, ACK)];
        ends.map(|(way, flags)| self.segment(way, flags, rng)).to_vec()
    }

    /// RST with the sequence number that the other end expects. With another one, Linux alone waits for what the other end
    /// says, and with Millrace it forgets the connection soon.
    pub fn reset(&mut self, way: usize, rng: &mut Rng) -> Vec<Sent> {
        vec![self.segment(1 - way, ACK, rng), self.segment(way, RST | ACK, rng)]
    }

    /// An acknowledgement that comes after the end.
    pub fn late(&mut self, way: usize, rng: &mut Rng) -> Sent {
        self.segment(way, ACK, rng)
    }
}

/// A direction, and that of the answers.
pub fn both_ways(there: Way) -> [Way; 2] {
    let back = |[source, destination]: [SocketAddr; 2]| [destination, source];
    let answers = Way {
        arrives: back(there.leaves),
        leaves: back(there.arrives),
        ingress: there.egress,
        egress: there.ingress,
    };
    [there, answers]
}

/// A connection of an address of `10.` or its counterpart of IPv6.
struct Sketch {
    name: &'static str,
    ingress: Device,
    egress: Device,
    /// The first direction as it arrives and as it leaves.
    arrives: [&'static str; 2],
    leaves: [&'static str; 2],
}

const NAT: [Sketch; 6] = [
    Sketch {
        name: "masquerade",
        ingress: Device::Lan,
        egress: Device::Wan,
        arrives: ["1.2:4002", "9.1:5002"],
        leaves: ["2.1:4002", "9.1:5002"],
    },
    Sketch {
        name: "fixed",
        ingress: Device::Lan,
        egress: Device::Wan,
        arrives: ["1.4:4004", "9.1:5004"],
        leaves: ["2.77:5555", "9.1:5004"],
    },
    Sketch {
        name: "dnat",
        ingress: Device::Wan,
        egress: Device::Lan,
        arrives: ["9.2:6006", "2.1:8080"],
        leaves: ["9.2:6006", "1.2:80"],
    },
    Sketch {
        name: "both",
        ingress: Device::Lan,
        egress: Device::Dmz,
        arrives: ["1.5:4010", "6.1:8081"],
        leaves: ["3.1:4010", "3.2:81"],
    },
    Sketch {
        name: "own addresses",
        ingress: Device::Lan,
        egress: Device::Dmz,
        arrives: ["1.5:4011", "2.1:8082"],
        leaves: ["3.1:4011", "3.2:82"],
    },
    Sketch {
        name: "plain",
        ingress: Device::Lan,
        egress: Device::Wan,
        arrives: ["1.6:4006", "9.1:5006"],
        leaves: ["1.6:4006", "9.1:5006"],
    },
];

/// `N.H:PORT` is host H of network N.
fn end(text: &str, ipv4: bool) -> SocketAddr {
    let (network, rest) = text.split_once('.').unwrap();
    let (host, port) = rest.split_once(':').unwrap();
    if ipv4 { format!("10.{network}.0.{host}:{port}") } else { format!("[fd00:{network}::{host}]:{port}") }
        .parse()
        .unwrap()
}

pub fn all(rules: Rules) -> Vec<Connection> {
    let mut all = Vec::new();
    // Without NAT nothing is sent to the router's own address.
    for sketch in NAT
        .iter()
        .filter(|sketch| rules != Rules::Filter || ["masquerade", "fixed", "plain"].contains(&sketch.name))
    {
        for (protocol, ipv4) in [(UDP, true), (TCP, true), (UDP, false), (TCP, false)] {
            let arrives = sketch.arrives.map(|text| end(text, ipv4));
            let leaves =
                if rules != Rules::Filter { sketch.leaves.map(|text| end(text, ipv4)) } else { arrives };
            let ways = both_ways(Way { arrives, leaves, ingress: sketch.ingress, egress: sketch.egress });
            all.push(Connection::new(sketch.name, all.len(), protocol, ways));
        }
    }
    all
}
