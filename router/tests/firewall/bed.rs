//! A router with two devices, `lan` and `wan`. The test holds the other ends of their wires. Linux translates the
//! sources of a few hosts in `lan`, and forwards a port of the router to one of them.

use super::{
    common::{frame::fix_checksum, ifindex, only_on, run, wire::Wire},
    random,
};
use etherparse::PacketBuilder;
use fastrand::Rng;
use logic::firewall::{
    ruleset::Ruleset,
    traffic::{ASSURED, CONFIRMED, DST_NAT, Direction, SEEN_REPLY, SRC_NAT, TCP, Tuple, UDP, Version},
};
use router::linux::{netlink::socket::Socket, nftables, xtables};
use std::{
    io::Write as _,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const LAN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const WAN: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// All hosts behind a device have one MAC address.
const BEHIND_LAN: [u8; 6] = [2, 0, 0, 0, 1, 1];
const BEHIND_WAN: [u8; 6] = [2, 0, 0, 0, 2, 1];
/// `IPS_SRC_NAT_DONE`, `IPS_DST_NAT_DONE`: set once NAT has seen the first packet.
const NAT_DONE: u32 = 1 << 7 | 1 << 8;
/// A TCP segment with data: ACK and PSH.
const DATA: u8 = 0x18;

const TRANSLATION: &str = "
table ip base {
    chain destination {
        type nat hook prerouting priority -100;
        ip daddr 10.2.0.1 meta l4proto { tcp, udp } th dport 8080 dnat to 10.1.0.2:80
    }
    chain source {
        type nat hook postrouting priority 100;
        oifname wan ip saddr 10.1.0.0/28 masquerade
    }
    chain tracked { type filter hook forward priority 0; ct state established accept; }
}
";

/// Rules in the language of a tool.
#[derive(Debug)]
pub enum Rules {
    Nft(String),
    /// For iptables-nft-restore.
    Iptables(String),
    /// For iptables-legacy-restore.
    Legacy(String),
}

impl Rules {
    pub fn text(&self) -> &str {
        let (Rules::Nft(text) | Rules::Iptables(text) | Rules::Legacy(text)) = self;
        text
    }
}

pub struct Bed {
    lan: Wire,
    wan: Wire,
    socket: Socket,
}

/// A connection as the ends see it. The host in `lan` is the source of both tuples.
#[derive(Clone, Debug)]
pub struct Connection {
    pub protocol: u8,
    inside: Tuple,
    outside: Tuple,
    by_wan: bool,
}

fn tuple(source: &str, destination: &str) -> Tuple {
    let (source, destination): (SocketAddr, SocketAddr) =
        (source.parse().unwrap(), destination.parse().unwrap());
    Tuple {
        source: source.ip(),
        destination: destination.ip(),
        source_port: source.port(),
        destination_port: destination.port(),
    }
}

fn back(tuple: Tuple) -> Tuple {
    Tuple {
        source: tuple.destination,
        destination: tuple.source,
        source_port: tuple.destination_port,
        destination_port: tuple.source_port,
    }
}

fn octets(address: IpAddr) -> [u8; 4] {
    let IpAddr::V4(address) = address else { unreachable!() };
    address.octets()
}

/// What differs among the packets of a connection.
struct Variant {
    tcp_flags: u8,
    ttl: u8,
    tos: u8,
    data: Vec<u8>,
}

impl Variant {
    fn random(rng: &mut Rng) -> Variant {
        let mut data = vec![0; rng.usize(0..64)];
        rng.fill(&mut data);
        let tos = *rng.choice([0, 0x10, 0xb8].iter()).unwrap();
        Variant { tcp_flags: if data.is_empty() { 0x10 } else { DATA }, ttl: rng.u8(2..=255), tos, data }
    }

    fn flags(tcp_flags: u8) -> Variant {
        Variant { tcp_flags, ttl: 64, tos: 0, data: Vec::new() }
    }
}

fn packet(protocol: u8, tuple: Tuple, v: &Variant, by_client: bool, hops: u8) -> Vec<u8> {
    let (source, destination) = (octets(tuple.source), octets(tuple.destination));
    let ip = PacketBuilder::ipv4(source, destination, v.ttl - hops);
    let mut bytes = Vec::new();
    if protocol == TCP {
        // After the handshake both sides always send their first segment.
        let first = u32::from(v.tcp_flags & 2 == 0);
        let (own, other) = if by_client { (1000, 5000) } else { (5000, 1000) };
        let mut tcp = ip.tcp(tuple.source_port, tuple.destination_port, own + first, 1024);
        if v.tcp_flags & 2 != 0 {
            tcp = tcp.syn();
        }
        if v.tcp_flags & 8 != 0 {
            tcp = tcp.psh();
        }
        if v.tcp_flags & 0x10 != 0 {
            tcp = tcp.ack(other + 1);
        }
        tcp.write(&mut bytes, &v.data).unwrap();
    } else {
        ip.udp(tuple.source_port, tuple.destination_port).write(&mut bytes, &v.data).unwrap();
    }
    bytes[1] = v.tos;
    fix_checksum(&mut bytes);
    bytes
}

/// The frame that arrives, and the one that leaves.
fn frames(towards_lan: bool, arrives: &[u8], leaves: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let ethernet = |to: [u8; 6], from: [u8; 6], ip: &[u8]| [&to[..], &from, &[8, 0], ip].concat();
    match towards_lan {
        false => (ethernet(LAN, BEHIND_LAN, arrives), ethernet(BEHIND_WAN, WAN, leaves)),
        true => (ethernet(WAN, BEHIND_WAN, arrives), ethernet(BEHIND_LAN, LAN, leaves)),
    }
}

impl Connection {
    fn new(protocol: u8, inside: Tuple, outside: Tuple, by_wan: bool) -> Connection {
        Connection { protocol, inside, outside, by_wan }
    }

    /// What conntrack knows of one direction. `towards_lan`: from `wan` to `lan`.
    pub fn direction(&self, towards_lan: bool) -> Direction {
        let tuples = match self.by_wan {
            false => [self.inside, back(self.outside)],
            true => [back(self.outside), self.inside],
        };
        let translated = match (self.inside == self.outside, self.by_wan) {
            (true, _) => 0,
            (_, false) => SRC_NAT,
            (_, true) => DST_NAT,
        };
        Direction {
            protocol: self.protocol,
            reply: towards_lan != self.by_wan,
            tuples,
            status: SEEN_REPLY | ASSURED | CONFIRMED | NAT_DONE | translated,
        }
    }

    /// A random packet of the established connection.
    pub fn frame(&self, towards_lan: bool, rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
        self.variant(towards_lan, &Variant::random(rng))
    }

    fn variant(&self, towards_lan: bool, v: &Variant) -> (Vec<u8>, Vec<u8>) {
        let [arrives, leaves] = match towards_lan {
            false => [self.inside, self.outside],
            true => [back(self.outside), back(self.inside)],
        };
        let by_client = towards_lan == self.by_wan;
        let [arrives, leaves] =
            [(arrives, 0), (leaves, 1)].map(|(tuple, hops)| packet(self.protocol, tuple, v, by_client, hops));
        frames(towards_lan, &arrives, &leaves)
    }
}

impl Bed {
    pub fn new() -> Bed {
        // Everything that the test's frames cause then runs on one core, in order.
        only_on([0]);
        for (name, mac, address) in [("lan", LAN, "10.1.0.1/24"), ("wan", WAN, "10.2.0.1/24")] {
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            run(&format!("ip link add {name} address {mac} type veth peer name {name}_end"));
            for device in [name, &format!("{name}_end")] {
                std::fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1").unwrap();
                run(&format!("ip link set {device} up"));
            }
            run(&format!("ip address add {address} dev {name}"));
        }
        std::fs::write("/proc/sys/net/ipv4/conf/all/forwarding", "1").unwrap();
        run("ip route add 192.0.2.0/24 via 10.2.0.2");
        let hosts = (2..8).map(|n| (n, "lan", "10.1.0")).chain([(2, "wan", "10.2.0")]);
        for (n, device, network) in hosts.chain((16..32).map(|n| (n, "lan", "10.1.0"))) {
            let mac = if device == "lan" { "02:00:00:00:01:01" } else { "02:00:00:00:02:01" };
            run(&format!("ip neigh add {network}.{n} lladdr {mac} dev {device} nud permanent"));
        }
        let bed = Bed {
            lan: Wire::open("lan_end"),
            wan: Wire::open("wan_end"),
            socket: Socket::requests(libc::NETLINK_NETFILTER).unwrap(),
        };
        nft(TRANSLATION).unwrap();
        bed
    }

    /// Connections whose packets Linux calls established.
    pub fn connect(&mut self) -> Vec<Connection> {
        let mut all = Vec::new();
        for protocol in [TCP, UDP] {
            for (host, port) in [("10.1.0.2:2000", 80), ("10.1.0.3:1053", 53), ("10.1.0.3:40000", 443)] {
                let outside = host.replace("10.1.0.2", "10.2.0.1").replace("10.1.0.3", "10.2.0.1");
                let server = format!("192.0.2.7:{port}");
                all.push(Connection::new(protocol, tuple(host, &server), tuple(&outside, &server), false));
            }
            let direct = tuple("10.1.0.20:1500", "10.2.0.2:443");
            all.push(Connection::new(protocol, direct, direct, false));
            let forwarded = ["10.1.0.2:80", "10.2.0.1:8080"].map(|host| tuple(host, "10.2.0.2:3000"));
            all.push(Connection::new(protocol, forwarded[0], forwarded[1], true));
            let server = tuple("10.1.0.21:22", "192.0.2.9:5022");
            all.push(Connection::new(protocol, server, server, true));
        }
        for connection in &all {
            let flags = if connection.protocol == TCP { [2, 0x12, 0x10] } else { [0; 3] };
            for (i, flags) in flags.into_iter().enumerate() {
                let towards_lan = connection.by_wan != (i == 1);
                let (frame, out) = connection.variant(towards_lan, &Variant::flags(flags));
                assert!(self.passes(towards_lan, &frame, &out), "{connection:?}, packet {i}");
            }
        }
        // Linux calls a connection of UDP assured once it is older than two seconds (nf_conntrack_udp_packet).
        thread::sleep(Duration::from_millis(2100));
        for connection in &all {
            let (frame, out) = connection.variant(connection.by_wan, &Variant::flags(0x10));
            assert!(self.passes(connection.by_wan, &frame, &out), "{connection:?}");
        }
        all
    }

    /// A random packet of no connection, to hosts that are not translated.
    pub fn stray(&mut self, towards_lan: bool, rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
        let host = format!("10.1.0.{}", rng.u8(16..32));
        let far = *rng.choice(["10.2.0.2", "192.0.2.7", "192.0.2.200"].iter()).unwrap();
        let [source, destination] = if towards_lan { [far, &host] } else { [&host, far] };
        let [source, destination] =
            [source, destination].map(|text| text.parse::<Ipv4Addr>().unwrap().octets());
        let mut bytes = Vec::new();
        let mut data = vec![0; rng.usize(20..64)];
        rng.fill(&mut data);
        let ttl = rng.u8(2..=255);
        let ip = PacketBuilder::ipv4(source, destination, ttl);
        match rng.u8(0..4) {
            0 => ip.udp(rng.u16(1..2100), rng.u16(1..2100)).write(&mut bytes, &data),
            1 => ip.tcp(rng.u16(1..2100), rng.u16(1..2100), rng.u32(..), 1000).syn().write(&mut bytes, &data),
            2 => {
                ip.tcp(rng.u16(1..2100), rng.u16(1..2100), rng.u32(..), 1000).ack(5).write(&mut bytes, &data)
            }
            _ => ip.icmpv4_echo_request(rng.u16(..), 1).write(&mut bytes, &data),
        }
        .unwrap();
        let mut leaves = bytes.clone();
        leaves[8] -= 1;
        fix_checksum(&mut leaves);
        frames(towards_lan, &bytes, &leaves)
    }

    /// Does this frame come out for that one?
    pub fn passes(&mut self, towards_lan: bool, frame: &[u8], out: &[u8]) -> bool {
        let (from, to) = if towards_lan { (&self.wan, &self.lan) } else { (&self.lan, &self.wan) };
        while from.receive().is_some() {}
        while to.receive().is_some() {}
        from.send(frame);
        // An answer to this question comes after everything that the frame has caused.
        let (mac, network) = if towards_lan { (BEHIND_WAN, 2) } else { (BEHIND_LAN, 1) };
        let question = [
            &[0xff; 6][..],
            &mac,
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
            &mac,
            &[10, network, 0, 2],
            &[0; 6],
            &[10, network, 0, 1],
        ]
        .concat();
        from.send(&question);
        let end = Instant::now() + Duration::from_secs(10);
        let is_answer = |frame: &Vec<u8>| frame.get(12..22) == Some(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        while !std::iter::from_fn(|| from.receive()).any(|frame| is_answer(&frame)) {
            assert!(Instant::now() < end, "Linux does not answer");
            thread::yield_now();
        }
        std::iter::from_fn(|| to.receive()).any(|frame| frame == out)
    }

    /// Replaces the random rules. The error is that of the tool.
    pub fn load(&mut self, rules: &Rules) -> Result<(), String> {
        let tables = ["inet t", "ip t4", "ip filter", "ip mangle", "ip raw"];
        let gone: String = tables.iter().map(|t| format!("add table {t}\ndelete table {t}\n")).collect();
        let empty: String = random::IPTABLES
            .iter()
            .map(|(table, chains)| {
                let chains: String = chains.iter().map(|chain| format!(":{chain} ACCEPT\n")).collect();
                format!("*{table}\n{chains}COMMIT\n")
            })
            .collect();
        fed("iptables-legacy-restore", &[], &empty)?;
        match rules {
            Rules::Nft(text) => nft(&format!("{gone}{text}")),
            Rules::Iptables(text) => nft(&gone).and_then(|()| fed("iptables-nft-restore", &[], text)),
            Rules::Legacy(text) => nft(&gone).and_then(|()| fed("iptables-legacy-restore", &[], text)),
        }
    }

    /// The rules as Linux has them.
    pub fn ruleset(&mut self) -> Ruleset {
        let mut ruleset = nftables::read(&mut self.socket).unwrap();
        ruleset.tables.extend(xtables::read(Version::V4).unwrap().into_iter().map(std::sync::Arc::new));
        ruleset
    }

    pub fn ifindex(&self, device: &str) -> u32 {
        ifindex(device)
    }
}

fn nft(commands: &str) -> Result<(), String> {
    fed("nft", &["-f", "-"], commands)
}

/// Runs a tool that reads this.
pub fn fed(tool: &str, arguments: &[&str], input: &str) -> Result<(), String> {
    let mut child = Command::new(tool)
        .args(arguments)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{tool}: {e}"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
