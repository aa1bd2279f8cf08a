//! A box between hosts with real stacks of their own. Nothing is prepared: no static neighbours, no filled caches.
//!
//! ```text
//!  client: eth0 ──veth── p1 :box: p2 ──veth── eth0 :server
//!           10.7.1.0/24   └ in ─ red ─ out ┘   10.7.2.0/24      by the virtual router `red` (.1)
//!           10.8.1.0/24  ───── box ─────       10.8.2.0/24      by the host router (.1)
//! ```
//!
//! The same in IPv6: fd07:1::/64 and so on. Hosts are .2, and have routes to the other side of each.

use std::{
    collections::BTreeSet,
    net::{IpAddr, UdpSocket},
    os::fd::FromRawFd,
    process::Command,
    time::{Duration, Instant},
};

use lab::{
    command,
    namespace::{Namespace, unique_run_name},
};

use crate::daemon::Daemon;

/// Transmit offloads are off, so that checksums are complete and tags are in the packet. NAPI lets redirected frames
/// arrive.
const HOST_OFFLOADS: &str = "-K eth0 tx off tso off gso off txvlan off tx-vlan-stag-hw-insert off gro on";

pub struct Bed {
    // Dropped in this order: children of the ports first.
    pub red: Namespace,
    pub client: Namespace,
    pub server: Namespace,
    pub the_box: Namespace,
    pub name: String,
}

impl Bed {
    pub fn new() -> Self {
        let name = unique_run_name();
        let create = |short: &str| Namespace::create(format!("{name}-{short}")).unwrap();
        let bed = Self {
            red: create("red"),
            client: create("client"),
            server: create("server"),
            the_box: create("box"),
            name: name.clone(),
        };
        for (port, host) in [("p1", &bed.client), ("p2", &bed.server)] {
            bed.the_box
                .ip_batch(&format!(
                    "link add {port} numtxqueues 1 numrxqueues 1 type veth peer name eth0 numtxqueues 1 numrxqueues 1 netns {}\n\
                     link set {port} up\n",
                    host.name()
                ))
                .unwrap();
            // Up first: a device that is down when GRO is turned on never tells its peer that it takes redirected
            // frames.
            host.ip_batch("link set eth0 up\n").unwrap();
            command::run(host.command("ethtool").args(HOST_OFFLOADS.split(' '))).unwrap();
            command::run(bed.the_box.command("ethtool").args(["-K", port, "gro", "on"])).unwrap();
        }
        bed.macvlan(&bed.red, "in", "p1");
        bed.macvlan(&bed.red, "out", "p2");
        be_router(&bed.red);
        be_router(&bed.the_box);
        addresses(&bed.red, 7, "in", "out");
        addresses(&bed.the_box, 8, "p1", "p2");
        for (host, near, far) in [(&bed.client, 1, 2), (&bed.server, 2, 1)] {
            let mut lines = String::new();
            for net in [7, 8] {
                lines += &format!(
                    "addr add 10.{net}.{near}.2/24 dev eth0\naddr add fd0{net}:{near}::2/64 dev eth0 nodad\n\
                     route add 10.{net}.{far}.0/24 via 10.{net}.{near}.1\nroute add fd0{net}:{far}::/64 via fd0{net}:{near}::1\n"
                );
            }
            host.ip_batch(&lines).unwrap();
        }
        bed
    }

    /// Adds a macvlan of a port to a router's namespace. It is not up yet.
    pub fn macvlan(&self, router: &Namespace, device: &str, port: &str) {
        let name = router.name();
        self.the_box
            .ip_batch(&format!("link add {device} link {port} netns {name} type macvlan mode bridge\n"))
            .unwrap();
    }

    /// Starts Millrace on both ports, and waits until `routers` routers are accelerated.
    pub fn start(&self, routers: usize, more: &[&str]) -> Daemon {
        let ports = ["--port", "p1", "--port", "p2"];
        let mut daemon = Daemon::start(&self.the_box, &self.name, &[&ports[..], more].concat());
        daemon.until_accelerated(routers);
        daemon
    }

    pub fn red_name(&self) -> &str {
        self.red.name()
    }
}

/// Turns forwarding on, and the reverse path filter and redirects off.
pub fn be_router(namespace: &Namespace) {
    namespace
        .sysctl(&[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
            ("net/ipv4/conf/all/send_redirects", "0"),
            // These limit packets that a test asks for many times.
            ("net/ipv4/icmp_ratelimit", "0"),
            ("net/ipv6/icmp/ratelimit", "0"),
        ])
        .unwrap();
}

/// Adds the addresses .1 on both sides of network `net`.
pub fn addresses(namespace: &Namespace, net: u8, near: &str, far: &str) {
    let mut lines = String::new();
    for (device, side) in [(near, 1), (far, 2)] {
        lines += &format!(
            "link set {device} up\naddr add 10.{net}.{side}.1/24 dev {device}\n\
             addr add fd0{net}:{side}::1/64 dev {device} nodad\n"
        );
        // `default` reaches only devices made later.
        namespace.sysctl(&[(&format!("net/ipv4/conf/{device}/rp_filter"), "0")]).unwrap();
    }
    namespace.ip_batch(&lines).unwrap();
}

/// Runs a command line, split at spaces, in a namespace. Returns its output, whatever its exit status.
pub fn output(namespace: &Namespace, line: &str) -> String {
    let mut words = line.split(' ');
    let mut command = namespace.command("timeout");
    let output = command.arg("60").arg(words.next().unwrap()).args(words).output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// As [`output`], but the command must succeed.
pub fn run(namespace: &Namespace, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    command::run(namespace.command(words[0]).args(&words[1..])).unwrap()
}

/// Each of `count` pings is answered once. Sends one every 10 ms, and waits 10 s for the last answer; ping(8) waits only for
/// as long as the answers before it took.
pub fn ping(from: &Namespace, to: &str, count: u32) {
    let address: IpAddr = to.parse().unwrap();
    let socket = from.enter(|| Ok(echo_socket(address)?)).unwrap();
    socket.connect((address, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let (request, reply) = if address.is_ipv4() { (8, 0) } else { (128, 129) };
    let (begun, mut sent, mut answered, mut bytes) = (Instant::now(), 0, BTreeSet::new(), [0; 128]);
    while answered.len() < count as usize {
        if sent < count {
            let mut echo = [0; 64];
            echo[0] = request;
            echo[6..8].copy_from_slice(&(sent as u16).to_be_bytes());
            // An error of an earlier packet, such as an address that is not resolved yet, is reported here.
            let _ = socket.send(&echo);
            sent += 1;
        }
        let late = begun.elapsed() > Duration::from_secs(10) + Duration::from_millis(10) * count;
        assert!(!late, "ping {to}: {sent} sent, answered: {answered:?}");
        while let Ok(length) = socket.recv(&mut bytes)
            && length >= 8
            && bytes[0] == reply
        {
            answered.insert(u16::from_be_bytes([bytes[6], bytes[7]]));
        }
    }
}

/// A socket for echo requests; the kernel writes their identifier and their checksum.
fn echo_socket(to: IpAddr) -> std::io::Result<UdpSocket> {
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0")?;
    let (family, protocol) = match to {
        IpAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_ICMP),
        IpAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
    };
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: just opened, and owned by nobody else.
    Ok(unsafe { UdpSocket::from_raw_fd(fd) })
}

/// A server that runs until dropped.
pub struct Background(pub std::process::Child);

impl Background {
    pub fn start(namespace: &Namespace, line: &str) -> Self {
        let mut words = line.split(' ');
        let mut command: Command = namespace.command(words.next().unwrap());
        lab::sys::end_with_parent(&mut command);
        let null = std::process::Stdio::null;
        Self(command.args(words).stdin(null()).stdout(null()).stderr(null()).spawn().unwrap())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
