//! A random box: three ports, a host router, a tenant router of macvlans in an unnamed namespace, random routes.
//!
//! Everything lives in this thread's throwaway namespace except the tenant's, which a sleeping child holds. The outside
//! ends of the veths stay in the same namespace but have no addresses and no IP: they are wires.

use crate::common::{ifindex, run, wire::Wire};
use fastrand::Rng;
use logic::net::Mac;
use std::{
    collections::BTreeSet,
    fmt::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    process::{Child, Command},
    time::{Duration, Instant},
};

pub const PORTS: usize = 3;

pub struct Port {
    pub name: String,
    pub ifindex: u32,
}

/// A network a host sits on: through which port it is reached, and by which MAC the router is known there.
#[derive(Clone, Debug)]
pub struct Side {
    pub port: usize,
    pub router_mac: Mac,
    pub router4: Ipv4Addr,
    pub router6: Ipv6Addr,
    /// Third octet, and fourth group, of its prefixes.
    pub net: u8,
    pub tenant: bool,
}

impl Side {
    fn device(&self) -> String {
        if self.tenant { format!("m{}", self.net) } else { format!("p{}", self.port) }
    }

    pub fn host4(&self, n: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, if self.tenant { 1 } else { 0 }, self.net, n)
    }
    pub fn host6(&self, n: u8) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, self.tenant.into(), self.net.into(), 0, 0, 0, n.into())
    }
}

/// Neighbours on every side that have an address and a MAC. Many, because the kernel limits some ICMP errors for each
/// destination of them.
pub const HOSTS: std::ops::Range<u8> = 10..234;

pub fn host_mac(side: &Side, n: u8) -> Mac {
    Mac([2, 0x10, side.tenant.into(), side.port as u8, side.net, n])
}

/// A process that holds the tenant's namespace open.
pub struct Tenant(Child);

impl Tenant {
    fn new() -> Tenant {
        let child = Command::new("unshare").args(["-n", "sleep", "600"]).spawn().expect("unshare");
        let ours = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        while std::fs::read_link(format!("/proc/{}/ns/net", child.id())).is_ok_and(|n| n == ours) {
            assert!(Instant::now() < until, "unshare did not");
            std::thread::sleep(Duration::from_millis(2));
        }
        Tenant(child)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    fn run(&self, line: &str) -> String {
        run(&format!("nsenter -t {} -n {line}", self.pid()))
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Topology {
    pub ports: Vec<Port>,
    pub sides: Vec<Side>,
    pub tenant: Tenant,
    /// Destinations worth trying: inside and at the edges of every route.
    pub targets4: Vec<Ipv4Addr>,
    pub targets6: Vec<Ipv6Addr>,
    own: BTreeSet<IpAddr>,
    script: Vec<String>,
}

impl Topology {
    pub fn build(rng: &mut Rng) -> Topology {
        let tenant = Tenant::new();
        tenant.run("ip link set lo up");
        let mut t = Topology {
            ports: Vec::new(),
            sides: Vec::new(),
            tenant,
            targets4: Vec::new(),
            targets6: Vec::new(),
            own: BTreeSet::new(),
            script: Vec::new(),
        };
        for i in 0..PORTS {
            t.add_port(i);
        }
        for (port, net) in [(0, 0), (1, 1), (2, 2)] {
            t.add_side(port, net, false);
        }
        for (port, net) in [(0, 0), (1, 1)] {
            t.add_side(port, net, true);
        }
        t.settings(rng);
        for tenant in [false, true] {
            t.routes(rng, tenant);
        }
        t
    }

    /// Makes a change while packets come in. What becomes of them is not compared.
    pub fn in_the_middle_of(&mut self, frames: &[(usize, Vec<u8>)], tenant: bool, lines: &[String]) {
        let wires: Vec<_> = self.outside().map(|device| Wire::open(&device)).collect();
        let send =
            |frames: &[(usize, Vec<u8>)]| frames.iter().for_each(|(port, frame)| wires[*port].send(frame));
        send(&frames[..frames.len() / 4]);
        for line in lines {
            self.inside(tenant, line.clone());
            send(&frames[frames.len() / 2..frames.len() / 2 + 32]);
        }
    }

    /// Makes a change, or undoes it.
    pub fn change(&mut self, tenant: bool, lines: &[String]) {
        for line in lines {
            self.inside(tenant, line.clone());
        }
    }

    fn host(&mut self, line: String) {
        run(&line);
        self.script.push(line);
    }

    fn inside(&mut self, tenant: bool, line: String) {
        if tenant {
            self.tenant.run(&line);
            self.script.push(format!("tenant: {line}"));
        } else {
            self.host(line);
        }
    }

    fn add_port(&mut self, i: usize) {
        let (name, outside) = (format!("p{i}"), format!("o{i}"));
        self.host(format!("ip link add {name} type veth peer name {outside}"));
        for device in [&name, &outside] {
            run(&format!("sysctl -qw net.ipv6.conf.{device}.accept_dad=0"));
            run(&format!(
                "ethtool -K {device} tx off tso off gso off gro off txvlan off tx-vlan-stag-hw-insert off"
            ));
        }
        run(&format!("sysctl -qw net.ipv6.conf.{outside}.disable_ipv6=1"));
        // Redirecting into a veth needs NAPI on its peer.
        run(&format!("ethtool -K {outside} gro on"));
        run(&format!("ip link set {outside} mtu 9000 up arp off"));
        run(&format!("ip link set {name} mtu {} up", if i == 2 { 1400 } else { 1500 }));
        self.ports.push(Port { ifindex: ifindex(&name), name });
    }

    fn add_side(&mut self, port: usize, net: u8, tenant: bool) {
        let router_mac = Mac([2, 0x20, tenant.into(), port as u8, net, 1]);
        let mut side = Side {
            port,
            router_mac,
            router4: Ipv4Addr::UNSPECIFIED,
            router6: Ipv6Addr::UNSPECIFIED,
            net,
            tenant,
        };
        let device = side.device();
        (side.router4, side.router6) = (side.host4(1), side.host6(1));
        if tenant {
            let pid = self.tenant.pid();
            self.host(format!("ip link add {device} link p{port} netns {pid} type macvlan mode bridge"));
            self.tenant.run(&format!("sysctl -qw net.ipv6.conf.{device}.accept_dad=0"));
        }
        self.inside(tenant, format!("ip link set {device} address {router_mac} up"));
        self.inside(tenant, format!("ip addr add {}/24 dev {device}", side.router4));
        self.inside(tenant, format!("ip addr add {}/64 dev {device} nodad", side.router6));
        self.own.extend([IpAddr::V4(side.router4), IpAddr::V6(side.router6)]);
        let mut neighbours = String::new();
        for n in HOSTS {
            let mac = host_mac(&side, n);
            for address in [side.host4(n).to_string(), side.host6(n).to_string()] {
                writeln!(neighbours, "neigh add {address} lladdr {mac} dev {device} nud permanent").unwrap();
            }
        }
        let batch = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&batch, neighbours).unwrap();
        self.inside(tenant, format!("ip -batch {}", batch.path().display()));
        self.targets4.extend([0, 1, 10, 11, 17, 255].map(|n| side.host4(n)));
        self.targets6.extend([0, 1, 10, 11, 17].map(|n| side.host6(n)));
        self.sides.push(side);
    }

    fn settings(&mut self, rng: &mut Rng) {
        let rp_filter = rng.choice([0, 0, 1, 2]).unwrap();
        let redirects = rng.u8(0..2);
        let accept_local = rng.choice([0, 0, 1]).unwrap();
        for tenant in [false, true] {
            for (key, value) in [
                ("net.ipv4.ip_forward", 1),
                ("net.ipv6.conf.all.forwarding", 1),
                ("net.ipv4.icmp_ratemask", 0),
                ("net.ipv6.icmp.ratelimit", 0),
                ("net.ipv4.icmp_echo_ignore_broadcasts", 1),
                ("net.ipv4.conf.all.send_redirects", redirects),
                ("net.ipv4.conf.default.send_redirects", redirects),
                ("net.ipv4.conf.all.rp_filter", rp_filter),
                ("net.ipv4.conf.all.accept_local", accept_local),
                ("net.ipv4.fib_multipath_hash_policy", rng.u8(0..2)),
                ("net.ipv6.fib_multipath_hash_policy", rng.u8(0..2)),
            ] {
                self.inside(tenant, format!("sysctl -qw {key}={value}"));
            }
            // Linux 6.11 and later.
            let seed = "net.ipv4.fib_multipath_hash_seed";
            if rng.bool() && Path::new("/proc/sys").join(seed.replace('.', "/")).exists() {
                self.inside(tenant, format!("sysctl -qw {seed}={}", rng.u16(..)));
            }
        }
        // These two belong to the machine's first namespace on older kernels; there they stay as they are.
        for key in ["net.ipv4.icmp_msgs_per_sec=1000000", "net.ipv4.icmp_msgs_burst=100000"] {
            for pid in [None, Some(self.tenant.pid())] {
                let enter = pid.map_or(String::new(), |p| format!("nsenter -t {p} -n "));
                let line = format!("{enter}sysctl -qw {key}");
                let mut words = line.split(' ');
                let _ = Command::new(words.next().unwrap()).args(words).output();
            }
        }
        for i in 0..PORTS {
            self.host(format!("sysctl -qw net.ipv4.conf.p{i}.send_redirects={redirects}"));
        }
        if rng.u8(0..4) == 0 {
            self.host("sysctl -qw net.ipv4.conf.p2.forwarding=0".into());
        }
    }

    fn routes(&mut self, rng: &mut Rng, tenant: bool) {
        let sides: Vec<Side> = self.sides.iter().filter(|s| s.tenant == tenant).cloned().collect();
        let mut has_default4 = false;
        for _ in 0..rng.usize(10..40) {
            let v6 = rng.bool();
            let prefix = if v6 { self.prefix6(rng) } else { self.prefix4(rng) };
            let words = random_route(rng, &sides, &prefix, v6);
            // Of several IPv4 defaults the kernel picks one for what it sends itself by how its gateways feel
            // (fib_select_default).
            if !v6 && prefix == "default" && std::mem::replace(&mut has_default4, true) {
                continue;
            }
            self.add_route(tenant, v6, &words);
        }
    }

    /// Equal prefixes and gateways are refused by ip; that is part of being random.
    fn add_route(&mut self, tenant: bool, v6: bool, words: &str) {
        let family = if v6 { "-6" } else { "-4" };
        let pid = self.tenant.pid();
        let enter = if tenant { format!("nsenter -t {pid} -n ") } else { String::new() };
        let line = format!("{enter}ip {family} route append {words}");
        let mut words = line.split(' ');
        let done = Command::new(words.next().unwrap()).args(words).output().unwrap();
        self.script.push(format!("{line}{}", if done.status.success() { "" } else { "   # refused" }));
    }

    /// 172.16.0.0/12 in small: prefixes that nest and touch.
    fn prefix4(&mut self, rng: &mut Rng) -> String {
        if rng.u8(0..20) == 0 {
            self.targets4.push(Ipv4Addr::new(192, 0, 2, rng.u8(..)));
            return "default".into();
        }
        let length = rng.choice([8, 12, 16, 20, 23, 24, 24, 25, 28, 30, 31, 32]).unwrap();
        let address = u32::from_be_bytes([172, 16 + rng.u8(0..2), rng.u8(0..3), rng.u8(..)]);
        let mask = u32::MAX << (32 - length);
        let (low, high) = (address & mask, address | !mask);
        for a in [low, high, address, low.wrapping_sub(1), high.wrapping_add(1)] {
            self.targets4.push(Ipv4Addr::from_bits(a));
        }
        format!("{}/{length}", Ipv4Addr::from_bits(low))
    }

    fn prefix6(&mut self, rng: &mut Rng) -> String {
        if rng.u8(0..20) == 0 {
            self.targets6.push("2001:db8:ffff::1".parse().unwrap());
            return "default".into();
        }
        let length = rng.choice([16, 28, 32, 40, 44, 47, 48, 56, 64, 64, 65, 96, 127, 128]).unwrap();
        let address = u128::from(Ipv6Addr::new(
            0x2400,
            rng.u16(0..2),
            rng.u16(0..4) << 12,
            rng.u16(0..3),
            0,
            0,
            0,
            rng.u16(0..9),
        ));
        let mask = u128::MAX << (128 - length);
        let (low, high) = (address & mask, address | !mask);
        for a in [low, high, address, low.wrapping_sub(1), high.wrapping_add(1)] {
            self.targets6.push(Ipv6Addr::from_bits(a));
        }
        format!("{}/{length}", Ipv6Addr::from_bits(low))
    }

    /// The devices of the wires, by port.
    pub fn outside(&self) -> impl Iterator<Item = String> {
        (0..self.ports.len()).map(|i| format!("o{i}"))
    }

    /// A frame as it is compared; `None`: not compared.
    pub fn normalise(&self, port: usize, mut frame: Vec<u8>) -> Option<(String, Vec<u8>)> {
        let ip = 14;
        match frame.get(12..14)? {
            [0x08, 0x06] => None,
            [0x08, 0x00] if frame.len() >= ip + 20 => {
                let address =
                    |at: usize| -> Ipv4Addr { <[u8; 4]>::try_from(&frame[at..at + 4]).unwrap().into() };
                let source = address(ip + 12);
                let behind = ip + usize::from(frame[ip] & 15) * 4;
                let icmp =
                    (frame[ip + 9] == 1).then(|| frame.get(behind).zip(frame.get(behind + 1))).flatten();
                if matches!(icmp, Some((5, _) | (3, 0 | 1 | 13))) {
                    return None;
                }
                if self.is_own(source) {
                    frame[ip + 4..ip + 6].fill(0);
                    frame[ip + 10..ip + 12].fill(0);
                }
                Some((format!("port {port}"), frame))
            }
            [0x86, 0xdd] if frame.len() >= ip + 40 => {
                let source = Ipv6Addr::from(<[u8; 16]>::try_from(&frame[ip + 8..ip + 24]).unwrap());
                let icmp = frame[ip + 6] == 58;
                let kind = frame.get(ip + 40).copied().unwrap_or(0);
                let chatter = icmp && ((133..=137).contains(&kind) || kind == 143);
                if chatter || frame[ip + 6] == 0 && source.is_unicast_link_local() {
                    return None;
                }
                Some((format!("port {port}"), frame))
            }
            _ => Some((format!("port {port}"), frame)),
        }
    }

    /// Is it an address of the box, maybe in a local prefix of some change? The box counts its own packets as the kernel likes.
    fn is_own(&self, source: Ipv4Addr) -> bool {
        let local = matches!(source.octets(), [172, 16..20, ..] | [10, 0, 1, 128..192]);
        self.own.contains(&IpAddr::V4(source)) || local
    }

    pub fn describe(&self) -> String {
        self.script.join("\n")
    }
}

/// What `ip route append` is told.
fn random_route(rng: &mut Rng, sides: &[Side], prefix: &str, v6: bool) -> String {
    let hop = |rng: &mut Rng| {
        let side = &sides[rng.usize(..sides.len())];
        let n = rng.u8(HOSTS);
        let gateway = if v6 { side.host6(n).to_string() } else { side.host4(n).to_string() };
        format!("via {gateway} dev {}", side.device())
    };
    let kind = rng.u8(0..24);
    if let Some(special) = ["blackhole", "unreachable", "prohibit", "throw"].get(usize::from(kind)) {
        return format!("{special} {prefix}");
    }
    if let 4..8 = kind {
        let mut words = prefix.to_string();
        for _ in 0..rng.usize(2..5) {
            write!(words, " nexthop {} weight {}", hop(rng), rng.u8(1..5)).unwrap();
        }
        return words;
    }
    let via = hop(rng);
    let more = match kind {
        8 => format!(" mtu {}", rng.u16(1280..1500)),
        9 => format!(" metric {}", rng.u32(1..2000)),
        10 if !v6 => " tos 0x10".into(),
        _ => String::new(),
    };
    format!("{prefix} {via}{more}")
}
