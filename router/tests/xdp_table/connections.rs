//! Connections that bypass the rules, NAT included.

use super::{
    common::{frame::Frame, in_new_namespace, only_on},
    out, up,
    world::*,
};
use etherparse::PacketBuilder;
use logic::{
    connections::note::ConnectionNote,
    firewall::traffic::{Tuple, Version},
    memory::Memory,
    net::{Mac, Tag},
    plan::{Interface, Op, PairTable, Target},
    reason::Reason,
    tables::{
        Steered,
        connections::{Connection, ConnectionTable, OneWay, PairId},
        encoding::GENERATION,
    },
};
use router::plane::{
    Settings, Step,
    connections::{CONNECTION_NOTES, ConnectionMaps, Connections, LOCAL_NOTES, MappedConnections},
};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
const PSH: u8 = 8;
pub const ACK: u8 = 16;
const HOUR: Duration = Duration::from_secs(3600);

pub struct Bed {
    pub w: World,
    pub connections: Connections,
    pub table: ConnectionTable<Arc<MappedConnections>>,
}

impl Bed {
    /// Jiffies after this time from now.
    fn jiffies_after(&self, time: Duration) -> u64 {
        let (_, jiffies, hz) = self.w.plane.heart().jiffies().unwrap();
        jiffies + (time.as_secs_f64() * hz) as u64
    }

    /// Rules decide about everything that is of no connection.
    pub fn new() -> Bed {
        Bed::with(settings())
    }

    pub fn with(settings: Settings) -> Bed {
        let maps = ConnectionMaps::new(128).unwrap();
        let mut w = World::with_connections(settings, &maps);
        w.apply([
            Op::Interface(1, Interface { group: 1, ..interface(0, 0, A, &[]) }),
            Op::Interface(2, Interface { group: 2, ..interface(0, 1, B, &[]) }),
            Op::Interface(3, Interface { group: 2, ..interface(0, 1, B, &[Q100]) }),
            neighbour(1, "2001:db8:1::9", FRIEND),
            route6(0, "2001:db8:1::1/128", pass(Reason::Local, false)),
            route6(0, "2001:db8:3::1/128", pass(Reason::Local, false)),
        ]);
        let connections = Connections::open(&maps).unwrap();
        let table = connections.table();
        let mut bed = Bed { w, connections, table };
        bed.rules(7);
        let heart = bed.w.plane.heart();
        heart.extend_connections(heart.jiffies().unwrap(), HOUR);
        bed
    }

    pub fn rules(&mut self, generation: u32) {
        let linux = Some(Arc::new(PairTable::default()));
        self.w.apply([Op::Rules { router: 0, tables: [linux.clone(), linux], generation }]);
    }

    pub fn insert(&mut self, connection: &Connection) -> PairId {
        self.table.insert(connection).unwrap()
    }

    pub fn remove(&mut self, id: PairId) {
        assert!(self.table.remove(id));
        let epoch = self.table.seal();
        self.table.reuse(epoch);
    }

    pub fn notes(&mut self) -> Vec<ConnectionNote> {
        self.connections.notes(Duration::ZERO).unwrap()
    }

    fn expect_reply(&mut self, name: &str, frame: &Frame, expected: Expect) {
        self.w.expect_from(name, 1, &frame.bytes(), expected);
    }
}

pub fn tuple(source: &str, destination: &str) -> Tuple {
    let [source, destination]: [SocketAddr; 2] = [source, destination].map(|end| end.parse().unwrap());
    Tuple {
        source: source.ip(),
        destination: destination.ip(),
        source_port: source.port(),
        destination_port: destination.port(),
    }
}

pub fn back(tuple: Tuple) -> Tuple {
    Tuple {
        source: tuple.destination,
        destination: tuple.source,
        source_port: tuple.destination_port,
        destination_port: tuple.source_port,
    }
}

/// From interface 1 to this one, and back.
pub fn connection(protocol: u8, arrives: Tuple, leaves: Tuple, egress: u16) -> Connection {
    let there = OneWay { arrives, leaves, ingress: 1, egress };
    let reply = OneWay { arrives: back(leaves), leaves: back(arrives), ingress: egress, egress: 1 };
    Connection { router: 0, protocol, generation: 7, until: u64::MAX, ways: [there, reply] }
}

/// A frame with right checksums.
pub fn frame_of(mac: Mac, protocol: u8, tuple: &Tuple, flags: u8, data: &[u8]) -> Frame {
    let (builder, ether_type) = match (tuple.source, tuple.destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => (PacketBuilder::ipv4(s.octets(), d.octets(), 64), 0x0800),
        (IpAddr::V6(s), IpAddr::V6(d)) => (PacketBuilder::ipv6(s.octets(), d.octets(), 64), 0x86dd),
        _ => panic!("{tuple:?}"),
    };
    let mut payload = Vec::new();
    if protocol == UDP {
        let builder = builder.udp(tuple.source_port, tuple.destination_port);
        builder.write(&mut payload, data).unwrap();
    } else {
        let mut builder = builder.tcp(tuple.source_port, tuple.destination_port, 77, 1000);
        for (flag, set) in [FIN, SYN, RST, PSH].into_iter().zip(0..) {
            builder = match set {
                _ if flags & flag == 0 => builder,
                0 => builder.fin(),
                1 => builder.syn(),
                2 => builder.rst(),
                _ => builder.psh(),
            };
        }
        if flags & ACK != 0 {
            builder = builder.ack(5);
        }
        builder.write(&mut payload, data).unwrap();
    }
    Frame::new(mac, ether_type, payload)
}

pub fn there(protocol: u8, tuple: &Tuple) -> Frame {
    frame_of(A, protocol, tuple, ACK, &[0x5a; 18])
}

pub fn reply(protocol: u8, tuple: &Tuple, tags: &[Tag]) -> Frame {
    frame_of(B, protocol, tuple, ACK, &[0xa5; 18]).tagged(tags)
}

fn transport(frame: &Frame) -> usize {
    if frame.ether_type == 0x0800 { 20 } else { 40 }
}

/// The checksum of TCP or UDP.
fn checksum(frame: &mut Frame, protocol: u8) -> &mut [u8] {
    let at = transport(frame) + if protocol == UDP { 6 } else { 16 };
    &mut frame.payload[at..at + 2]
}

/// A name, the packets as they arrive and leave, and the tags and interface by which they leave.
pub type Case = (String, Tuple, Tuple, &'static [Tag], u16);

/// Every kind of NAT, with both versions and both ways out.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (net, tags, egress) in [(2, &[][..], 2), (3, &[Q100][..], 3)] {
        for six in [false, true] {
            let at = |net: u16, host: u16, port: u16| match six {
                false => format!("10.0.{net}.{host}:{port}"),
                true => format!("[2001:db8:{net}::{host}]:{port}"),
            };
            let (client, server) = (at(1, 9, 1000), at(net, 9, 2000));
            let (outside, inside) = (at(net, 1, 5000), at(1, 1, 80));
            for (kind, arrives, leaves) in [
                ("no NAT", tuple(&client, &server), tuple(&client, &server)),
                ("SNAT", tuple(&client, &server), tuple(&outside, &server)),
                ("port of the source", tuple(&client, &server), tuple(&at(1, 9, 1001), &server)),
                ("DNAT", tuple(&client, &inside), tuple(&client, &server)),
                ("port of the destination", tuple(&client, &at(net, 9, 80)), tuple(&client, &server)),
                ("SNAT and DNAT", tuple(&client, &inside), tuple(&outside, &server)),
            ] {
                cases.push((format!("{kind}, IPv6 {six}, by {egress}"), arrives, leaves, tags, egress));
            }
        }
    }
    cases
}

/// The reason why a packet without a connection goes to Linux.
pub fn why_up(tuple: &Tuple) -> Reason {
    let text = tuple.destination.to_string();
    if text.ends_with(".1") || text.ends_with("::1") { Reason::Local } else { Reason::Rules }
}

#[test]
#[ignore = "needs root"]
fn packets_of_connections_are_translated() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        for shared in [false, true] {
            bed.w.plane.set_shared(shared);
            for (name, arrives, leaves, tags, egress) in cases() {
                for protocol in [TCP, UDP] {
                    let name = format!("{name}, protocol {protocol}, shared {shared}");
                    let c = connection(protocol, arrives, leaves, egress);
                    let [one, other] = c.ways;
                    let (packet, answer) = (there(protocol, &arrives), reply(protocol, &other.arrives, tags));
                    bed.w.expect(&format!("{name}, before"), &packet, up(why_up(&arrives)));
                    bed.expect_reply(&format!("{name}, reply before"), &answer, up(why_up(&other.arrives)));

                    let id = bed.insert(&c);
                    let left = frame_of(A, protocol, &one.leaves, ACK, &[0x5a; 18]).routed(FRIEND, B, tags);
                    bed.w.expect(&name, &packet, out(egress, left.clone()));
                    bed.w.expect(&format!("{name}, padded"), &packet.clone().padded(6), out(egress, left));
                    let left = frame_of(B, protocol, &other.leaves, ACK, &[0xa5; 18]).routed(FRIEND, A, &[]);
                    bed.expect_reply(&format!("{name}, reply"), &answer, out(1, left));
                    let bytes = packet.payload.len() as u64;
                    assert_eq!(bed.table.counts(id), [(2, 2 * bytes), (1, bytes)], "{name}");
                    assert!(!bed.table.ended(id));

                    bed.remove(id);
                    bed.w.expect(&format!("{name}, after"), &packet, up(why_up(&arrives)));
                    bed.expect_reply(&format!("{name}, reply after"), &answer, up(why_up(&other.arrives)));
                }
            }
        }
    });
}

/// The checksum of the new packet is as if computed from scratch, also where it has two forms of 0.
#[test]
#[ignore = "needs root"]
fn checksums_are_those_of_the_new_packet() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        for (name, arrives, leaves, tags, egress) in cases() {
            for protocol in [TCP, UDP] {
                let id = bed.insert(&connection(protocol, arrives, leaves, egress));
                let made = |tuple: &Tuple, data: u16| frame_of(A, protocol, tuple, ACK, &data.to_be_bytes());
                // With this data the checksum is 0: that of the packet as it arrives, and as it leaves.
                let zeros = [arrives, leaves].map(|tuple| {
                    let mut frame = made(&tuple, 0);
                    u16::from_be_bytes(checksum(&mut frame, protocol).try_into().unwrap())
                });
                for data in (0..=u16::MAX).step_by(1999).chain([1, 0xfffe, u16::MAX]).chain(zeros) {
                    let (mut packet, mut left) = (made(&arrives, data), made(&leaves, data));
                    for frame in [&mut packet, &mut left] {
                        if frame.ether_type == 0x0800 {
                            // The checksum of the header varies, too.
                            *frame = frame.clone().ip4(|ip| ip[4..6].copy_from_slice(&data.to_be_bytes()));
                        }
                    }
                    let expected = out(egress, left.routed(FRIEND, B, tags));
                    bed.w.expect(&format!("{name} {protocol} {data}"), &packet, expected);
                    if protocol == UDP {
                        checksum(&mut packet, UDP).fill(0);
                        checksum(&mut left, UDP).fill(0);
                        let expected = out(egress, left.routed(FRIEND, B, tags));
                        bed.w.expect(&format!("{name} {data} without a checksum"), &packet, expected);
                    }
                }
                let mut left = made(&leaves, zeros[1]);
                let zero = if protocol == UDP { [0xff; 2] } else { [0; 2] };
                assert_eq!(checksum(&mut left, protocol), zero, "{name}: the case of 0 is tested");
                bed.remove(id);
            }
        }
    });
}

/// Random tuples of a packet before and after SNAT and DNAT. Many of their 16-bit words are 0 or 0xffff.
fn random_tuples(rng: &mut fastrand::Rng, six: bool) -> [Tuple; 2] {
    let word = |rng: &mut fastrand::Rng| *rng.choice(&[0, 0xffff, rng.clone().u16(..)]).unwrap();
    let mut address = |net: u8| match six {
        false => {
            let [a, b] = word(rng).to_be_bytes();
            IpAddr::from([net, rng.u8(..), a, b])
        }
        true => {
            let mut words = [0; 8].map(|_: u16| word(rng));
            words[0] = 0x2000 | u16::from(net);
            IpAddr::from(words)
        }
    };
    let (source, destination, new_source) = (address(11), address(12), address(13));
    let server: IpAddr = if six { "2001:db8:2::9" } else { "10.0.2.9" }.parse().unwrap();
    let mut port = || word(rng).max(1);
    let arrives = Tuple { source, destination, source_port: port(), destination_port: port() };
    [
        arrives,
        Tuple { source: new_source, destination: server, source_port: port(), destination_port: port() },
    ]
}

/// The checksum is also right for random addresses and ports.
#[test]
#[ignore = "needs root"]
fn checksums_are_those_of_the_new_packet_for_random_addresses() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        let seed = fastrand::u64(..);
        let mut rng = fastrand::Rng::with_seed(seed);
        for round in 0..400 {
            let (six, protocol) = (rng.bool(), if rng.bool() { TCP } else { UDP });
            let [arrives, leaves] = random_tuples(&mut rng, six);
            let id = bed.insert(&connection(protocol, arrives, leaves, 2));
            let data = [rng.u8(..), *rng.choice(&[0, 0xff]).unwrap()];
            let made = |tuple: &Tuple| frame_of(A, protocol, tuple, ACK, &data);
            let expected = out(2, made(&leaves).routed(FRIEND, B, &[]));
            bed.w.expect(&format!("seed {seed}, round {round}"), &made(&arrives), expected);
            bed.remove(id);
        }
    });
}

pub fn masqueraded(protocol: u8) -> (Tuple, Tuple, Connection) {
    let (arrives, leaves) =
        (tuple("10.0.1.9:1000", "10.0.2.9:2000"), tuple("10.0.2.1:5000", "10.0.2.9:2000"));
    (arrives, leaves, connection(protocol, arrives, leaves, 2))
}

pub fn forwarded(protocol: u8, leaves: &Tuple) -> Expect {
    out(2, there(protocol, leaves).routed(FRIEND, B, &[]))
}

#[test]
#[ignore = "needs root"]
fn packets_that_change_the_state_end_both_directions() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        let (arrives, leaves, c) = masqueraded(TCP);
        for (flags, ends) in [
            (FIN | ACK, true),
            (SYN, true),
            (SYN | ACK, true),
            (RST, true),
            (RST | ACK, true),
            (FIN, true),
            (0, false),
            (PSH, false),
            (PSH | ACK, false),
        ] {
            for by_reply in [false, true] {
                let name = format!("flags {flags:#x}, by the reply {by_reply}");
                let id = bed.insert(&c);
                let last = frame_of(
                    if by_reply { B } else { A },
                    TCP,
                    &c.ways[usize::from(by_reply)].arrives,
                    flags,
                    b"x",
                );
                match (flags & ACK != 0 && !ends, by_reply) {
                    (true, false) => {
                        let left = frame_of(A, TCP, &leaves, flags, b"x").routed(FRIEND, B, &[]);
                        bed.w.expect(&name, &last, out(2, left));
                    }
                    (true, true) => {
                        let left = frame_of(B, TCP, &back(arrives), flags, b"x").routed(FRIEND, A, &[]);
                        bed.expect_reply(&name, &last, out(1, left));
                    }
                    (false, false) => bed.w.expect(&name, &last, up(Reason::Rules)),
                    (false, true) => bed.expect_reply(&name, &last, up(Reason::Local)),
                }
                assert_eq!(bed.table.ended(id), ends, "{name}");
                assert_eq!(bed.table.was_reset(id), flags & (SYN | RST) == RST, "{name}");
                let answer = reply(TCP, &back(leaves), &[]);
                if ends {
                    bed.w.expect(&name, &there(TCP, &arrives), up(Reason::Rules));
                    bed.expect_reply(&name, &answer, up(Reason::Local));
                } else {
                    bed.w.expect(&name, &there(TCP, &arrives), forwarded(TCP, &leaves));
                    let left = reply(TCP, &back(arrives), &[]).routed(FRIEND, A, &[]);
                    bed.expect_reply(&name, &answer, out(1, left));
                }
                bed.remove(id);
            }
        }
        // Conntrack does not ask where a packet comes from.
        let id = bed.insert(&Connection { ways: c.ways.map(|way| OneWay { ingress: 3, ..way }), ..c });
        bed.w.expect("FIN by another way", &frame_of(A, TCP, &arrives, FIN | ACK, b"x"), up(Reason::Rules));
        assert!(bed.table.ended(id));
    });
}

#[test]
#[ignore = "needs root"]
fn void_rows_are_not_used() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        let (arrives, leaves, c) = masqueraded(UDP);
        let packet = there(UDP, &arrives);
        let ways = |change: fn(OneWay) -> OneWay| Connection { ways: c.ways.map(change), ..c };
        for (name, void) in [
            ("another ingress", ways(|way| OneWay { ingress: 3, ..way })),
            ("another egress", ways(|way| OneWay { egress: 3, ..way })),
            ("expired", Connection { until: 1, ..c }),
            ("another generation", Connection { generation: 8, ..c }),
            ("no generation", Connection { generation: 0, ..c }),
            ("another router", Connection { router: 1, ..c }),
            ("another protocol", Connection { protocol: TCP, ..c }),
        ] {
            let id = bed.insert(&void);
            bed.w.expect(name, &packet, up(Reason::Rules));
            assert_eq!(bed.table.counts(id), [(0, 0); 2], "{name}");
            bed.remove(id);
        }
        for other in [
            tuple("10.0.1.9:1001", "10.0.2.9:2000"),
            tuple("10.0.1.9:1000", "10.0.2.9:2001"),
            tuple("10.0.1.8:1000", "10.0.2.9:2000"),
            tuple("10.0.1.9:1000", "10.0.2.8:2000"),
        ] {
            let id = bed.insert(&connection(UDP, other, leaves, 2));
            bed.w.expect(&format!("{other:?}"), &packet, up(Reason::Rules));
            bed.remove(id);
        }

        let id = bed.insert(&c);
        let left = forwarded(UDP, &leaves);
        bed.w.expect("valid", &packet, left.clone());
        let jiffies = bed.jiffies_after(Duration::ZERO);
        bed.table.set_until(id, jiffies);
        bed.w.expect("expired by now", &packet, up(Reason::Rules));
        bed.table.set_until(id, bed.jiffies_after(HOUR));
        bed.w.expect("used again", &packet, left.clone());

        let heart = bed.w.plane.heart().clone();
        heart.extend_connections(heart.jiffies().unwrap(), Duration::ZERO);
        bed.w.expect("no connection is valid", &packet, up(Reason::Rules));
        heart.extend_connections(heart.jiffies().unwrap(), Duration::from_millis(1));
        std::thread::sleep(Duration::from_millis(40));
        bed.w.expect("past the deadline", &packet, up(Reason::Rules));
        heart.extend_connections(heart.jiffies().unwrap(), HOUR);
        bed.w.expect("extended", &packet, left.clone());

        bed.rules(8);
        bed.w.expect("new rules", &packet, up(Reason::Rules));
        bed.rules(0);
        bed.w.expect("no connections", &packet, up(Reason::Rules));
        // Only the flag is missing now.
        let memory = bed.w.plane.memory();
        memory.firewalls()[GENERATION].store(7, Relaxed);
        bed.w.expect("without the flag", &packet, up(Reason::Rules));
        memory.firewalls()[GENERATION].store(0, Relaxed);
        bed.rules(7);
        bed.w.expect("the rules of the proof", &packet, left);
    });
}

/// Packets also find keys whose own block was full, in the block beside it.
#[test]
#[ignore = "needs root"]
fn every_row_is_found() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        let nth = |n: u16| {
            let arrives = tuple(&format!("10.0.1.9:{n}"), "10.0.2.9:2000");
            (arrives, Tuple { source: "10.0.2.1".parse().unwrap(), ..arrives })
        };
        let seed = bed.connections.seed();
        let home = |n: u16| {
            let word = |bytes| [u64::from(u32::from_le_bytes(bytes)), 0];
            let ports = u32::from(n.swap_bytes()) | u32::from(2000_u16.swap_bytes()) << 16;
            logic::hash::connection(seed, word([10, 0, 1, 9]), word([10, 0, 2, 9]), ports, UDP.into()) >> 32
                & 63
        };
        let mut placed = Vec::new();
        for n in (1..20_000).filter(|n| home(*n) == 5).take(14) {
            let (arrives, leaves) = nth(n);
            placed.extend(bed.table.insert(&connection(UDP, arrives, leaves, 2)).map(|_| n));
        }
        assert!(placed.len() > 9, "more than a block holds: {}", placed.len());
        for n in placed {
            let (arrives, leaves) = nth(n);
            bed.w.expect(&format!("port {n}"), &there(UDP, &arrives), forwarded(UDP, &leaves));
            let left = reply(UDP, &back(arrives), &[]).routed(FRIEND, A, &[]);
            bed.expect_reply(&format!("reply to port {n}"), &reply(UDP, &back(leaves), &[]), out(1, left));
        }
    });
}

#[test]
#[ignore = "needs root"]
fn packets_that_need_linux_go_up_untouched() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        for protocol in [TCP, UDP] {
            let (arrives, leaves, c) = masqueraded(protocol);
            let id = bed.insert(&c);
            let packet = there(protocol, &arrives);
            let sized = |bytes: usize| {
                packet.clone().ip4(|ip| {
                    ip.resize(bytes, 0);
                    ip[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
                    if protocol == UDP && bytes >= 28 {
                        ip[24..26].copy_from_slice(&(bytes as u16 - 20).to_be_bytes());
                    }
                })
            };
            let udp_length =
                |length: u16| packet.clone().with(|ip| ip[24..26].copy_from_slice(&length.to_be_bytes()));
            let mut cases = vec![
                ("first fragment", packet.clone().ip4(|ip| ip[6] = 0x20), Reason::Rules),
                ("last fragment", packet.clone().ip4(|ip| ip[7] = 2), Reason::Rules),
                ("TTL 1", packet.clone().ip4(|ip| ip[8] = 1), Reason::TtlExceeded),
                ("too long", sized(1501), Reason::OverMtu),
                ("another protocol", packet.clone().ip4(|ip| ip[9] = 132), Reason::Rules),
            ];
            cases.push(("options", super::options(packet.clone()), Reason::Ipv4Options));
            if protocol == TCP {
                cases.extend([
                    ("cut header", sized(39), Reason::Rules),
                    ("cut options", packet.clone().with(|ip| ip[32] = 0xf0), Reason::Rules),
                    ("short header", packet.clone().with(|ip| ip[32] = 0x40), Reason::Rules),
                ]);
            } else {
                cases.extend([
                    ("cut header", sized(27), Reason::Rules),
                    ("UDP length over the packet", udp_length(27), Reason::Rules),
                    ("UDP length below the header", udp_length(7), Reason::Rules),
                    ("bytes behind UDP", udp_length(25), Reason::Rules),
                ]);
            }
            for (name, frame, reason) in cases {
                bed.w.expect(&format!("{name} {protocol}"), &frame, up(reason));
            }
            assert_eq!(bed.table.counts(id), [(0, 0); 2]);
            bed.w.expect("the packet itself", &packet, forwarded(protocol, &leaves));
            bed.remove(id);
        }

        let arrives = tuple("[2001:db8:1::9]:1000", "[2001:db8:2::9]:2000");
        let leaves = Tuple { source: "2001:db8:2::1".parse().unwrap(), ..arrives };
        let id = bed.insert(&connection(UDP, arrives, leaves, 2));
        let packet = there(UDP, &arrives);
        // An extension header of 8 bytes in front of UDP.
        let extended = |kind: u8| {
            packet.clone().with(|ip| {
                ip[6] = kind;
                ip[5] += 8;
                ip.splice(40..40, [UDP, 0, 0, 0, 0, 0, 0, 0]);
            })
        };
        for (name, frame, reason) in [
            ("hop limit 1", packet.clone().with(|ip| ip[7] = 1), Reason::TtlExceeded),
            ("fragment header", extended(44), Reason::Rules),
            ("destination options", extended(60), Reason::Rules),
            ("routing header", extended(43), Reason::Rules),
            ("hop-by-hop options", extended(0), Reason::Ipv6Extension),
        ] {
            bed.w.expect(name, &frame, up(reason));
        }
        assert_eq!(bed.table.counts(id), [(0, 0); 2]);
        bed.w.expect("the packet itself", &packet, forwarded(UDP, &leaves));

        // A port that the packet cannot leave by, or a neighbour that is gone.
        bed.w.plane.set_port(1, bed.w.port[1], true, false).unwrap();
        bed.w.expect("port not ready", &packet, up(Reason::TxNotReady));
        bed.w.plane.set_port(1, bed.w.port[1], true, true).unwrap();
        bed.w.apply([Op::Neighbour(2, "2001:db8:2::9".parse().unwrap(), None)]);
        bed.w.expect("no neighbour", &packet, up(Reason::Unresolved));
        assert_eq!(bed.table.counts(id)[0].0, 1);
    });
}

/// Linux hashes the packet after DNAT and before SNAT.
#[test]
#[ignore = "needs root"]
fn members_are_those_of_the_packet_after_dnat() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        let members = [(via(2, "10.0.2.254"), 1), (via(2, "10.0.2.9"), 1)];
        bed.w.apply([route4(0, "10.30.0.0/16", Target::Multi(members.clone().into()))]);
        let six = [(via(2, "2001:db8:2::9"), 1), (via(2, "fe80::254"), 1)];
        bed.w.apply([route6(0, "2001:db8:30::/48", Target::Multi(six.into()))]);
        let mut macs = std::collections::BTreeSet::new();
        for n in 0..20 {
            for (arrives, source) in [
                (tuple(&format!("10.0.1.9:{n}"), "10.30.0.1:2000"), "10.0.2.1"),
                (tuple(&format!("[2001:db8:1::9]:{n}"), "[2001:db8:30::1]:2000"), "2001:db8:2::1"),
            ] {
                let leaves = Tuple { source: source.parse().unwrap(), ..arrives };
                bed.w.apply([Op::Rules { router: 0, tables: [None, None], generation: 0 }]);
                let plain = bed.w.outcome(0, 0, &there(UDP, &arrives).bytes());
                bed.rules(7);
                let id = bed.insert(&connection(UDP, arrives, leaves, 2));
                let translated = bed.w.outcome(0, 0, &there(UDP, &arrives).bytes());
                assert_eq!(plain.frame[..12], translated.frame[..12], "port {n}");
                assert_ne!(plain.frame, translated.frame);
                macs.insert(translated.frame[..12].to_owned());
                bed.remove(id);
                for destination in [1, 2].map(|end| match source {
                    "10.0.2.1" => tuple("10.0.1.9:9", &format!("10.30.0.{end}:2000")),
                    _ => tuple("[2001:db8:1::9]:9", &format!("[2001:db8:30::{end}]:2000")),
                }) {
                    let before = Tuple { destination_port: 80, ..destination };
                    let id = bed.insert(&connection(UDP, before, destination, 2));
                    bed.w.expect("DNAT", &there(UDP, &before), up(Reason::MemberUnsure));
                    bed.remove(id);
                }
            }
        }
        assert_eq!(macs.len(), 2);
    });
}

/// A row of an RX queue holds the next hop of the old destination.
#[test]
#[ignore = "needs root"]
fn a_translated_destination_is_looked_up() {
    in_new_namespace(|| {
        let mut bed = Bed::with(Settings { queue_rows: true, ..settings() });
        let arrives = tuple("10.0.1.9:1000", "10.11.0.1:2000");
        let leaves = tuple("10.0.1.9:1000", "10.0.2.9:2000");
        let steered = Steered { port: 0, queue: 0, interface: 1, destination: "10.11.0.1".parse().unwrap() };
        bed.w.tables.set_steered(&[steered].into());
        let long = |tuple: &Tuple| frame_of(A, UDP, tuple, 0, &[7; 200]);
        let id = bed.insert(&connection(UDP, arrives, arrives, 2));
        bed.w.expect(
            "by the row",
            &there(UDP, &arrives),
            out(2, there(UDP, &arrives).routed(GATEWAY, B, &[])),
        );
        bed.w.expect("its MTU", &long(&arrives), up(Reason::OverMtu));
        bed.remove(id);
        bed.insert(&connection(UDP, arrives, leaves, 2));
        bed.w.expect("to another", &there(UDP, &arrives), forwarded(UDP, &leaves));
        bed.w.expect("and its MTU", &long(&arrives), out(2, long(&leaves).routed(FRIEND, B, &[])));
    });
}

fn send(bed: &mut Bed, frame: &Frame, times: usize) {
    for _ in 0..times {
        bed.w.plane.run(bed.w.port[0], &frame.bytes()).unwrap();
    }
}

#[test]
#[ignore = "needs root"]
fn connections_are_noted_after_some_packets() {
    in_new_namespace(|| {
        // Packets are counted by CPU.
        only_on([0]);
        let mut bed = Bed::new();
        let arrives = tuple("10.0.1.9:1000", "10.0.2.9:2000");
        let six = tuple("[2001:db8:1::9]:1000", "[2001:db8:3::9]:2000");
        for (tuple, version, protocol, egress) in [
            (arrives, Version::V4, UDP, 2),
            (arrives, Version::V4, TCP, 2),
            (six, Version::V6, UDP, 3),
            (six, Version::V6, TCP, 3),
        ] {
            let packet = there(protocol, &tuple);
            send(&mut bed, &packet, 7);
            assert_eq!(bed.notes(), []);
            send(&mut bed, &packet, 1);
            let note = ConnectionNote { router: 0, version, protocol, tuple, ingress: 1, egress };
            assert_eq!(bed.notes(), [note]);
            send(&mut bed, &packet, 7);
            assert_eq!(bed.notes(), []);
            send(&mut bed, &packet, 49);
            assert_eq!(bed.notes(), [note; 7]);
            send(&mut bed, &packet, 4095 - 64);
            assert_eq!(bed.notes(), []);
            send(&mut bed, &packet, 1);
            assert_eq!(bed.notes(), [note]);
        }
        bed.connections.begin_again(|_| false);

        // Packets that cannot be of a fast connection.
        let tcp = |flags| frame_of(A, TCP, &tuple("10.0.1.9:1", "10.0.2.9:1"), flags, b"x");
        for flags in [SYN, SYN | ACK, FIN | ACK, RST, RST | ACK, PSH] {
            send(&mut bed, &tcp(flags), 8);
        }
        send(&mut bed, &there(UDP, &arrives).ip4(|ip| ip[6] = 0x20), 8);
        send(&mut bed, &there(UDP, &arrives).ip4(|ip| ip[9] = 132), 8);
        assert_eq!(bed.notes(), []);
        // Explaining counts nothing.
        for _ in 0..8 {
            bed.w.plane.explain(bed.w.port[0], &tcp(ACK).bytes()).unwrap();
        }
        assert_eq!(bed.notes(), []);

        // New rules, new notes: of packets that the old ones counted, none counts.
        send(&mut bed, &tcp(ACK), 7);
        bed.rules(8);
        send(&mut bed, &tcp(ACK), 7);
        assert_eq!(bed.notes(), []);
        send(&mut bed, &tcp(ACK), 1);
        assert_eq!(bed.notes().len(), 1);

        // Packets that leave by another interface are counted from 1 again: a masquerade may choose another address.
        send(&mut bed, &tcp(ACK), 7);
        bed.w.apply([route4(0, "10.0.2.9/32", via(3, "10.0.3.254"))]);
        send(&mut bed, &tcp(ACK), 7);
        assert_eq!(bed.notes(), []);
        send(&mut bed, &tcp(ACK), 1);
        assert_eq!(bed.notes().iter().map(|note| note.egress).collect::<Vec<_>>(), [3]);
        bed.w.apply([Op::Route4(0, "10.0.2.9/32".parse().unwrap(), None)]);
        bed.connections.begin_again(|_| false);

        // A router sends no more notes than this.
        let many = |bed: &mut Bed| {
            for n in 0..CONNECTION_NOTES + 36 {
                send(bed, &there(UDP, &tuple(&format!("10.0.1.9:{}", 3000 + n), "10.0.2.9:2000")), 8);
            }
            bed.notes().len() as u64
        };
        assert_eq!(many(&mut bed), CONNECTION_NOTES);
        assert_eq!(many(&mut bed), 0);
        bed.connections.begin_again(|_| false);
        assert_eq!(many(&mut bed), CONNECTION_NOTES);

        // A connection that takes another way is noted with it. One that had no room for its note keeps its row for a second
        // or two, and this one may share it.
        std::thread::sleep(Duration::from_secs(3));
        bed.connections.begin_again(|_| false);
        bed.rules(9);
        let id = bed.insert(&Connection { generation: 9, ..connection(UDP, arrives, arrives, 3) });
        send(&mut bed, &there(UDP, &arrives), 8);
        assert_eq!(bed.notes().iter().map(|note| note.egress).collect::<Vec<_>>(), [2]);
        bed.remove(id);

        // Without connections, nothing is noted.
        bed.rules(0);
        send(&mut bed, &there(UDP, &arrives), 16);
        assert_eq!(bed.notes(), []);
    });
}

/// NAT may translate their destination, so they may be of a connection that the router forwards.
#[test]
#[ignore = "needs root"]
fn packets_to_the_router_are_noted_without_an_egress() {
    in_new_namespace(|| {
        only_on([0]);
        let mut bed = Bed::new();
        bed.w.apply([route4(0, "10.40.0.0/16", pass(Reason::LocalPrefix, false))]);
        for (tuple, version) in [
            (tuple("10.0.1.9:1000", "10.0.2.1:2000"), Version::V4),
            (tuple("10.0.1.9:1000", "10.40.0.1:2000"), Version::V4),
            (tuple("[2001:db8:1::9]:1000", "[2001:db8:3::1]:2000"), Version::V6),
        ] {
            for protocol in [TCP, UDP] {
                send(&mut bed, &there(protocol, &tuple), 7);
                assert_eq!(bed.notes(), []);
                send(&mut bed, &there(protocol, &tuple), 1);
                let note = ConnectionNote { router: 0, version, protocol, tuple, ingress: 1, egress: 0 };
                assert_eq!(bed.notes(), [note]);
            }
        }
        // Explaining counts nothing.
        let own = |n: u16| there(UDP, &tuple(&format!("10.0.1.9:{n}"), "10.0.2.1:53"));
        for _ in 0..8 {
            bed.w.plane.explain(bed.w.port[0], &own(1).bytes()).unwrap();
        }
        // Nor do packets that go up for another reason.
        send(&mut bed, &there(UDP, &tuple("10.0.1.9:1", "10.0.2.77:1")), 8);
        assert_eq!(bed.notes(), []);

        // They have notes of their own.
        let others = |n: u16| there(UDP, &tuple(&format!("10.0.1.9:{n}"), "10.0.2.9:2000"));
        bed.connections.begin_again(|_| false);
        (0..300).for_each(|n| send(&mut bed, &others(n), 8));
        (0..100).for_each(|n| send(&mut bed, &own(n), 8));
        let (local, other): (Vec<_>, Vec<_>) = bed.notes().into_iter().partition(ConnectionNote::is_local);
        assert_eq!((local.len() as u64, other.len() as u64), (LOCAL_NOTES, CONNECTION_NOTES));
        // The other connections are noted, too: otherwise they would keep their rows of `candidates` for a second or
        // two.
        bed.connections.begin_again(|_| false);
        let noted: BTreeSet<u16> = other.iter().map(|note| note.tuple.source_port).collect();
        for n in (0..300).filter(|n| !noted.contains(n)) {
            let mut is_noted = || {
                send(&mut bed, &others(n), 1);
                !bed.notes().is_empty()
            };
            // Two connections may share a row.
            assert!((0..8).any(|_| is_noted()), "{n}");
        }
        // Without connections, nothing is noted.
        bed.rules(0);
        bed.connections.begin_again(|_| false);
        send(&mut bed, &own(1), 16);
        assert_eq!(bed.notes(), []);
        // And rows, so they keep no other packets from being counted.
        bed.rules(8);
        bed.connections.begin_again(|_| false);
        (0..6000).for_each(|n| send(&mut bed, &own(n), 1));
        (0..CONNECTION_NOTES).for_each(|n| send(&mut bed, &others(1000 + n as u16), 8));
        assert_eq!(bed.notes().len() as u64, CONNECTION_NOTES);
    });
}

/// Some of so many share a row of `candidates`. They take turns, though their packets alternate.
#[test]
#[ignore = "needs root"]
fn connections_that_alternate_are_all_noted() {
    in_new_namespace(|| {
        only_on([0]);
        let mut bed = Bed::new();
        let tuples: BTreeSet<Tuple> =
            (1000..2000).map(|port| tuple(&format!("10.0.1.9:{port}"), "10.0.2.9:2000")).collect();
        let frames: Vec<_> = tuples.iter().map(|tuple| there(UDP, tuple).bytes()).collect();
        let mut noted = BTreeSet::new();
        for _ in 0..40 {
            for part in frames.chunks(CONNECTION_NOTES as usize) {
                bed.connections.begin_again(|_| false);
                part.iter().for_each(|frame| _ = bed.w.plane.run(bed.w.port[0], frame).unwrap());
                noted.extend(bed.notes().into_iter().map(|note| note.tuple));
            }
        }
        assert_eq!(noted, tuples);
    });
}

#[test]
#[ignore = "needs root"]
fn explaining_changes_nothing() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        let (arrives, leaves, c) = masqueraded(TCP);
        let packet = there(TCP, &arrives);
        let steps = |bed: &Bed, frame: &Frame| bed.w.plane.explain(bed.w.port[0], &frame.bytes()).unwrap();
        let (_, before) = steps(&bed, &packet);
        assert!(before.contains(&Step::Connection { row: None }), "{before:?}");
        let id = bed.insert(&c);
        let (result, with) = steps(&bed, &packet);
        assert!(with.iter().any(|step| matches!(step, Step::Connection { row: Some(_) })), "{with:?}");
        assert_eq!(result.frame, there(TCP, &leaves).routed(FRIEND, B, &[]));
        let (_, fin) = steps(&bed, &frame_of(A, TCP, &arrives, FIN | ACK, b"x"));
        assert!(fin.contains(&Step::Connection { row: None }), "{fin:?}");
        assert!(!bed.table.ended(id));
        assert_eq!(bed.table.counts(id), [(0, 0); 2]);
        bed.rules(0);
        let (_, without) = steps(&bed, &packet);
        assert!(!without.iter().any(|step| matches!(step, Step::Connection { .. })), "{without:?}");
    });
}
