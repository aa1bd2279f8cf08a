//! Compares classes with the description of a packet, and with `flow`'s key for any bytes.

use super::*;
use crate::flow::{
    Key, Match, RulePort,
    field::Field::{self, *},
    packet::VXLAN_PORT,
};
use crate::net::{Prefix4, Prefix6};
use etherparse::{PacketBuilder, TransportHeader};
use proptest::prelude::*;
use std::net::IpAddr;

/// The description of a packet. The oracle uses it instead of the bytes.
#[derive(Clone, Debug)]
pub struct Made {
    pub ingress: Ingress,
    mac: Mac,
    /// The number of VLAN tags, up to two.
    tags: usize,
    source: IpAddr,
    destination: IpAddr,
    part: Part,
    /// For IPv6: extension headers before the position of a fragment header, and after it.
    before: Vec<Extension>,
    behind: Option<Extension>,
    /// For IPv6: with a fragment header although it is whole (RFC 6946).
    atomic: bool,
    transport: Transport,
}

/// Which fragment it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    First,
    Later,
}

#[derive(Clone, Copy, Debug)]
enum Extension {
    /// Hop-by-hop or destination options: the number of the header, and how many times 8 bytes it has besides the
    /// first.
    Options { number: u8, more: u8 },
    /// The offset in units of 8 bytes, three bits to the left of "more fragments".
    Fragment(u16),
}

impl Extension {
    fn number(self) -> u8 {
        match self {
            Extension::Options { number, .. } => number,
            Extension::Fragment(_) => 44,
        }
    }
}

impl Transport {
    fn protocol(self) -> u8 {
        match self {
            Transport::Tcp { .. } => 6,
            Transport::Udp { .. } => 17,
            Transport::Other(protocol) => protocol,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Transport {
    Tcp { ports: [u16; 2], syn: bool, ack: bool },
    Udp { ports: [u16; 2] },
    Other(u8),
}

impl Made {
    pub fn frame(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        let ethernet = PacketBuilder::ethernet2([2; 6], self.mac.0);
        let mut write = |builder: etherparse::PacketBuilderStep<etherparse::IpHeaders>| match self.transport {
            Transport::Tcp { ports: [from, to], syn, ack } => {
                let mut tcp = etherparse::TcpHeader::new(from, to, 7, 100);
                (tcp.syn, tcp.ack) = (syn, ack);
                let builder = builder.tcp_header(tcp);
                builder.write(&mut frame, &[1, 2, 3]).unwrap();
            }
            Transport::Udp { ports: [from, to] } => {
                builder.udp(from, to).write(&mut frame, &[9; 30]).unwrap()
            }
            Transport::Other(protocol) => {
                builder.write(&mut frame, protocol.into(), &[5; 40]).unwrap();
            }
        };
        let headers = match (self.source, self.destination) {
            (IpAddr::V4(from), IpAddr::V4(to)) => etherparse::IpHeaders::Ipv4(
                etherparse::Ipv4Header::new(0, 64, 0.into(), from.octets(), to.octets()).unwrap(),
                Default::default(),
            ),
            (IpAddr::V6(from), IpAddr::V6(to)) => etherparse::IpHeaders::Ipv6(
                etherparse::Ipv6Header {
                    source: from.octets(),
                    destination: to.octets(),
                    hop_limit: 64,
                    ..Default::default()
                },
                Default::default(),
            ),
            _ => unreachable!("both have the same version"),
        };
        write(ethernet.ip(headers));
        self.fragment_and_extend(&mut frame);
        self.tag(&mut frame);
        frame
    }

    /// The fragment fields of IPv4 (RFC 791 section 3.1), or the headers between the IPv6 header and its payload (RFC
    /// 8200 section 4).
    fn fragment_and_extend(&self, frame: &mut Vec<u8>) {
        if self.source.is_ipv4() {
            let field = match self.part {
                Part::Whole => 0x4000,
                Part::First => 0x2000,
                Part::Later => 185,
            };
            frame[20..22].copy_from_slice(&u16::to_be_bytes(field));
            return;
        }
        // From the last to the first, because each names the next one.
        let mut next = self.transport.protocol();
        for extension in self.extensions().into_iter().rev() {
            let header = match extension {
                Extension::Options { more, .. } => {
                    let mut header = vec![0; 8 * (usize::from(more) + 1)];
                    (header[0], header[1]) = (next, more);
                    header
                }
                Extension::Fragment(offset_and_more) => {
                    let [high, low] = offset_and_more.to_be_bytes();
                    vec![next, 0, high, low, 0, 0, 0, 1]
                }
            };
            frame.splice(54..54, header);
            next = extension.number();
        }
        frame[20] = next;
        let length = frame.len() as u16 - 54;
        frame[18..20].copy_from_slice(&length.to_be_bytes());
    }

    fn tag(&self, frame: &mut Vec<u8>) {
        let outer = [0x88, 0xa8, 0, 5];
        let inner = [0x81, 0x00, 0xe0, 7];
        let tags = [outer, inner];
        frame.splice(12..12, tags[2 - self.tags..].concat());
    }

    fn extensions(&self) -> Vec<Extension> {
        if self.source.is_ipv4() {
            return Vec::new();
        }
        let mut extensions = self.before.clone();
        match self.part {
            Part::Whole if self.atomic => extensions.push(Extension::Fragment(0)),
            Part::Whole => {}
            Part::First => extensions.push(Extension::Fragment(1)),
            Part::Later => extensions.push(Extension::Fragment(185 << 3)),
        }
        extensions.extend(self.behind);
        extensions
    }

    /// The protocol after all extension headers. For a later fragment, the number in its fragment header.
    fn protocol(&self) -> u8 {
        match self.behind {
            Some(behind) if self.part == Part::Later && self.source.is_ipv6() => behind.number(),
            _ => self.transport.protocol(),
        }
    }

    /// Whether the packet is in the class, from the promise of a class alone.
    fn is_of(&self, class: &Class) -> bool {
        let within = |addresses: Addresses, address: IpAddr| match (addresses, address) {
            (Addresses::V4(prefix), IpAddr::V4(address)) => {
                let cut = |address: u32| u64::from(address) >> (32 - prefix.length());
                cut(address.to_bits()) == cut(prefix.address())
            }
            (Addresses::V6(prefix), IpAddr::V6(address)) => {
                let bits = |address: u128| format!("{address:0128b}")[..prefix.length().into()].to_string();
                bits(address.to_bits()) == bits(prefix.address())
            }
            _ => false,
        };
        let kind = if self.source.is_ipv4() { 0x0800 } else { 0x86dd };
        let (ports, syn) = match self.transport {
            Transport::Tcp { ports, syn, ack } => (Some(ports), syn && !ack),
            Transport::Udp { ports } => (Some(ports), false),
            Transport::Other(_) => (None, false),
        };
        let ports = ports.filter(|_| self.part == Part::Whole);
        let syn = syn && self.part == Part::Whole;
        let frame = self.frame();
        let bytes = |bytes: TwoBytes| {
            let at = usize::from(bytes.offset);
            at + 1 < frame.len()
                && (u16::from(frame[at]) << 8 | u16::from(frame[at + 1])) & bytes.mask == bytes.value
        };
        let said = [
            class.port.map(|port| port == self.ingress.port),
            class.router.map(|router| router == self.ingress.router),
            class.destination_mac.map(|mac| mac == self.mac),
            class.ether_type.map(|ether_type| ether_type == kind),
            class.source.map(|source| within(source, self.source)),
            class.destination.map(|destination| within(destination, self.destination)),
            class.protocol.map(|protocol| protocol == self.protocol()),
            class.source_port.map(|port| ports.is_some_and(|[from, _]| from == port)),
            class.destination_port.map(|port| ports.is_some_and(|[_, to]| to == port)),
            class.tcp_syn.then_some(syn),
            class.bytes.map(bytes),
        ];
        said.into_iter().all(|said| said != Some(false))
    }
}

fn few() -> impl Strategy<Value = u16> {
    prop_oneof![Just(80), Just(443), Just(0), any::<u16>()]
}

fn address4() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0u8..3, any::<u8>()).prop_map(|(a, b)| IpAddr::from([10, a, 0, b])),
        any::<[u8; 4]>().prop_map(IpAddr::from)
    ]
}

fn address6() -> impl Strategy<Value = IpAddr> {
    let near = (0u16..3, any::<u16>()).prop_map(|(a, b)| IpAddr::from([0x2001, 0xdb8, a, 0, 0, 0, 0, b]));
    prop_oneof![near, any::<[u8; 16]>().prop_map(IpAddr::from)]
}

fn mac() -> impl Strategy<Value = Mac> {
    prop_oneof![Just(Mac([2, 0, 0, 0, 0, 1])), Just(Mac([2, 0, 0, 0, 0, 2])), any::<[u8; 6]>().prop_map(Mac)]
}

pub fn made() -> impl Strategy<Value = Made> {
    let ports = || [few(), few()];
    let transport = prop_oneof![
        (ports(), any::<bool>(), any::<bool>()).prop_map(|(ports, syn, ack)| Transport::Tcp {
            ports,
            syn,
            ack
        }),
        ports().prop_map(|ports| Transport::Udp { ports }),
        prop_oneof![Just(47u8), Just(50), Just(89)].prop_map(Transport::Other),
    ];
    let addresses = prop_oneof![(address4(), address4()), (address6(), address6())];
    let part = prop_oneof![3 => Just(Part::Whole), 1 => Just(Part::First), 1 => Just(Part::Later)];
    let options = |number| (0u8..3).prop_map(move |more| Extension::Options { number, more });
    let before = (prop::option::of(options(0)), prop::option::of(options(60)))
        .prop_map(|(hop_by_hop, destination)| hop_by_hop.into_iter().chain(destination).collect());
    let extensions = (part, before, prop::option::of(options(60)), any::<bool>());
    (0u8..3, 0u8..2, mac(), 0usize..3, addresses, extensions, transport).prop_map(
        |(port, router, mac, tags, (source, destination), (part, before, behind, atomic), transport)| Made {
            ingress: Ingress { port, router, ..Ingress::default() },
            mac,
            tags,
            source,
            destination,
            part,
            before,
            behind,
            atomic,
            transport,
        },
    )
}

fn addresses() -> impl Strategy<Value = Addresses> {
    let of = |(address, length): (IpAddr, u8)| match address {
        IpAddr::V4(address) => Addresses::V4(Prefix4::new(address.to_bits(), length % 33).unwrap()),
        IpAddr::V6(address) => Addresses::V6(Prefix6::new(address.to_bits(), length % 129).unwrap()),
    };
    (prop_oneof![address4(), address6()], any::<u8>()).prop_map(of)
}

/// Mostly nothing, so that packets match.
fn maybe<T: Clone + std::fmt::Debug>(what: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    prop::option::weighted(0.25, what)
}

prop_compose! {
    pub fn class()(
        (port, router) in (maybe(0u8..3), maybe(0u8..2)),
        destination_mac in maybe(mac()),
        ether_type in maybe(prop_oneof![Just(0x0800u16), Just(0x86dd), Just(0x0806)]),
        (source, destination) in (maybe(addresses()), maybe(addresses())),
        protocol in maybe(prop_oneof![Just(6u8), Just(17), Just(50)]),
        (source_port, destination_port) in (maybe(few()), maybe(few())),
        tcp_syn in prop::bool::weighted(0.2),
        bytes in maybe((0u8..63, prop_oneof![Just(0u16), Just(0xff00), Just(0xffff), Just(1)], any::<u16>())),
    ) -> Class {
        let bytes = bytes.map(|(offset, mask, value)| TwoBytes { offset, mask, value: value & mask });
        Class {
            port, router, destination_mac, ether_type, source, destination, protocol, source_port, destination_port,
            tcp_syn, bytes, flow_rules: false,
        }
    }
}

/// A class that mostly describes the packet.
pub fn like(made: Made) -> impl Strategy<Value = (Made, Class)> {
    let (kind, protocol, frame) =
        (if made.source.is_ipv4() { 0x0800 } else { 0x86dd }, made.protocol(), made.frame());
    let prefix = move |address: IpAddr, length: u8| match address {
        IpAddr::V4(address) => Addresses::V4(Prefix4::new(address.to_bits(), length % 33).unwrap()),
        IpAddr::V6(address) => Addresses::V6(Prefix6::new(address.to_bits(), length % 129).unwrap()),
    };
    (class(), any::<[u8; 2]>(), any::<u16>(), any::<prop::sample::Index>()).prop_map(
        move |(class, [a, b], keep, at)| {
            let keeps = |bit: u16| keep >> bit & 1 != 0;
            let mut class = class;
            let ports = match made.transport {
                Transport::Tcp { ports, .. } | Transport::Udp { ports } => ports,
                Transport::Other(_) => [80; 2],
            };
            class.port = class.port.map(|port| if keeps(0) { made.ingress.port } else { port });
            class.router = class.router.map(|router| if keeps(1) { made.ingress.router } else { router });
            class.destination_mac = class.destination_mac.map(|mac| if keeps(2) { made.mac } else { mac });
            class.ether_type = class.ether_type.map(|other| if keeps(3) { kind } else { other });
            class.source = class.source.map(|other| if keeps(4) { prefix(made.source, a) } else { other });
            class.destination =
                class.destination.map(|other| if keeps(5) { prefix(made.destination, b) } else { other });
            class.protocol = class.protocol.map(|other| if keeps(6) { protocol } else { other });
            class.source_port = class.source_port.map(|port| if keeps(7) { ports[0] } else { port });
            class.destination_port =
                class.destination_port.map(|port| if keeps(8) { ports[1] } else { port });
            if let Some(bytes) = class.bytes.as_mut().filter(|_| keeps(9)) {
                let offset = at.index(frame.len().min(64) - 1);
                let word = u16::from_be_bytes([frame[offset], frame[offset + 1]]);
                *bytes = TwoBytes { offset: offset as u8, mask: bytes.mask, value: word & bytes.mask };
            }
            (made.clone(), class)
        },
    )
}

/// The class as a match of `flow`.
fn as_match(class: &Class) -> Match {
    let mut of = Match::ANY;
    let mut set = |field: Field, value: Option<u128>| {
        if let Some(value) = value {
            of.set(field, value, field.all_bits());
        }
    };
    set(InPort, class.port.map(u128::from));
    set(EthType, class.ether_type.map(u128::from));
    set(IpProto, class.protocol.map(u128::from));
    set(
        EthDst,
        class.destination_mac.map(|mac| mac.0.iter().fold(0, |all, byte| all << 8 | u128::from(*byte))),
    );
    let mut prefix = |addresses: Option<Addresses>, four: Field, six: Field| match addresses {
        Some(Addresses::V4(prefix)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.length())).unwrap_or(0);
            of.set(EthType, 0x0800, 0xffff);
            of.set(four, prefix.address().into(), mask.into());
        }
        Some(Addresses::V6(prefix)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.length())).unwrap_or(0);
            of.set(EthType, 0x86dd, 0xffff);
            of.set(six, prefix.address(), mask);
        }
        None => {}
    };
    prefix(class.source, Ipv4Src, Ipv6Src);
    prefix(class.destination, Ipv4Dst, Ipv6Dst);
    of
}

proptest! {
    #![proptest_config(crate::cases(2000))]
    #[test]
    fn a_class_has_the_packets_it_describes((made, class) in made().prop_flat_map(like)) {
        let frame = made.frame();
        let expected = made.is_of(&class);
        prop_assert_eq!(class.has(&ParsedFrame::new(&frame, made.ingress)), expected, "{:02x?}", frame);
        if expected {
            prop_assert_eq!(class.check(), Ok(()));
        }
    }

    #[test]
    fn the_first_class_gets_the_packet(made in made(), classes in prop::collection::vec(class(), 0..8)) {
        let expected = (0u16..).zip(&classes).find(|(_, class)| made.is_of(class)).map(|(path, _)| path);
        prop_assert_eq!(Classifier::new(classes).path_of(&made.frame(), made.ingress), expected);
    }

    /// A covered class gets nothing for itself.
    #[test]
    fn covered_classes_get_nothing((made, one) in made().prop_flat_map(like), other in class(), cut in any::<u16>()) {
        // A class like the other with fewer conditions, which covers it.
        let mut wider = one.clone();
        if cut & 1 != 0 { wider.port = None }
        if cut & 2 != 0 { wider.source = None }
        if cut & 4 != 0 { wider.ether_type = None }
        if cut & 8 != 0 { wider.tcp_syn = false }
        if cut & 16 != 0 { wider.bytes = None }
        prop_assert!(wider.covers(&one));
        let seen = made.frame();
        let seen = ParsedFrame::new(&seen, made.ingress);
        for (mine, others) in [(&wider, &one), (&other, &one), (&one, &other)] {
            if mine.covers(others) && others.has(&seen) {
                prop_assert!(mine.has(&seen), "{mine:?} {others:?}");
            }
        }
    }

    /// Any bytes, with the reference of flow rules. Its keys cannot distinguish packets without an IP header from
    /// protocol 0 or address 0.
    #[test]
    fn any_bytes_are_classed_as_flow_rules_match_them(
        (made, mut class) in made().prop_flat_map(like),
        broken in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        (class.router, class.source_port, class.destination_port, class.tcp_syn, class.bytes) = (None, None, None, false, None);
        let mut frame = made.frame();
        let length = frame.len();
        broken.into_iter().for_each(|(at, value)| frame[at.index(length)] = value);
        frame.truncate(cut.index(length + 1));
        let key = Key::of(&frame, RulePort(made.ingress.port.into()), VXLAN_PORT);
        let seen = ParsedFrame::new(&frame, made.ingress);
        let is_ip = seen.headers.is_some_and(|headers| headers.network != Network::Other);
        let asks_ip = class.source.is_some() || class.destination.is_some() || class.protocol.is_some();
        let versions = class.source.is_some_and(|a| class.destination.is_some_and(|b| a.ether_type() != b.ether_type()));
        let other_kind = class.ether_type.is_some_and(|kind| {
            [class.source, class.destination].into_iter().flatten().any(|a| a.ether_type() != kind)
        });
        let expected = as_match(&class).matches(&key) && (is_ip || !asks_ip) && !versions && !other_kind;
        prop_assert_eq!(class.has(&seen), expected, "{:02x?}", frame);
    }
}

fn tcp(flags: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    builder.tcp(1000, 80, 1, 1).write(&mut frame, &[]).unwrap();
    frame[47] = flags;
    frame
}

#[test]
fn only_the_first_segment_of_a_connection_is_a_syn() {
    let class = Class { tcp_syn: true, ..Class::default() };
    let has = |frame: &[u8]| class.has(&ParsedFrame::new(frame, Ingress::default()));
    // SYN; SYN with ECN's bits; SYN and ACK; ACK; RST.
    assert_eq!(
        [0x02, 0xc2, 0x12, 0x10, 0x04].map(|flags| has(&tcp(flags))),
        [true, true, false, false, false]
    );
    let mut fragment = tcp(0x02);
    fragment[20] = 0x20;
    assert!(!has(&fragment));
    let (whole, _) = etherparse::TcpHeader::from_slice(&tcp(0x02)[34..]).unwrap();
    assert!(matches!(TransportHeader::Tcp(whole), TransportHeader::Tcp(tcp) if tcp.syn));
}

#[test]
fn impossible_classes_are_reported() {
    let prefix = |text: &str| Some(text.parse().unwrap());
    let bytes = |offset, mask, value| Some(TwoBytes { offset, mask, value });
    let none = Class::default;
    let cases = [
        (Class { tcp_syn: true, protocol: Some(17), ..none() }, "no packet has both tcp_syn and protocol 17"),
        (
            Class { source_port: Some(1), protocol: Some(1), ..none() },
            "no packet has both a source or destination port and protocol 1",
        ),
        (
            Class { source: prefix("10.0.0.0/8"), destination: prefix("::/0"), ..none() },
            "no packet has both source 10.0.0.0/8 and destination ::/0",
        ),
        (
            Class { ether_type: Some(0x86dd), destination: prefix("10.0.0.0/8"), ..none() },
            "no packet has both ether_type 0x86dd and destination 10.0.0.0/8",
        ),
        (
            Class { ether_type: Some(0x0806), tcp_syn: true, ..none() },
            "no packet has both ether_type 0x0806 and a protocol of IP",
        ),
        (
            Class { bytes: bytes(63, 1, 1), ..none() },
            "bytes at 63 are not among the first 64: the offset is 0 to 62",
        ),
        (
            Class { bytes: bytes(0, 0xff00, 1), ..none() },
            "bytes with mask 0xff00 never have the value 0x0001",
        ),
        (
            Class {
                destination_mac: Some(Mac([2, 0, 0, 0, 0, 1])),
                bytes: bytes(5, 0xffff, 0x0200),
                ..none()
            },
            "no packet has both destination_mac 02:00:00:00:00:01 and other bytes at 5",
        ),
    ];
    for (class, expected) in cases {
        assert_eq!(class.check().unwrap_err().to_string(), expected, "{class:?}");
    }
    let fine =
        Class { destination_mac: Some(Mac([2, 0, 0, 0, 0, 1])), bytes: bytes(5, 0xffff, 0x01ff), ..none() };
    assert_eq!(fine.check(), Ok(()));
    assert_eq!(Class { bytes: bytes(62, 0xffff, 1), ..none() }.check(), Ok(()));
}

#[test]
fn bytes_cover_those_with_more_conditions() {
    let class = |mask, value| Class { bytes: Some(TwoBytes { offset: 12, mask, value }), ..Class::default() };
    let (wide, narrow) = (class(0xff00, 0x0800), class(0xffff, 0x0806));
    assert!(wide.covers(&narrow) && wide.covers(&wide) && !narrow.covers(&wide));
    // It matches 0x0800 to 0x08ff, and the other only 0x0800.
    assert!(!class(0xffff, 0x0800).covers(&wide) && !class(0xff00, 0x0900).covers(&narrow));
    let elsewhere =
        Class { bytes: Some(TwoBytes { offset: 14, mask: 0xffff, value: 0x0806 }), ..Class::default() };
    assert!(!wide.covers(&elsewhere) && Class::default().covers(&wide) && !wide.covers(&Class::default()));
}

/// Its packets are those that rules give it. It matches none itself, takes none from others, and has no impossible
/// condition.
#[test]
fn a_class_by_flow_rules_has_no_packet() {
    let by_rules = Class { flow_rules: true, ..Class::default() };
    let frame = [0; 60];
    let seen = ParsedFrame::new(&frame, Ingress { port: 0, router: 0, interface: 0, flags: 0 });
    assert!(Class::default().has(&seen) && !by_rules.has(&seen));
    assert!(
        !by_rules.covers(&by_rules)
            && !by_rules.covers(&Class::default())
            && !Class::default().covers(&by_rules)
    );
    assert_eq!(by_rules.check(), Ok(()));
    assert_eq!(Class { router: Some(1), ..by_rules.clone() }.check(), Ok(()));
    assert_eq!(Class { port: Some(1), ..by_rules.clone() }.check(), Err(Impossible::ByRules));
    assert_eq!(Class { tcp_syn: true, ..by_rules }.check(), Err(Impossible::ByRules));
}
