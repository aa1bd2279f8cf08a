//! What Linux learns from ICMP errors about destinations, and packets to these: the same frames leave with
//! Millrace and without. Needs root: the tests have namespaces of their own.
//!
//! ```text
//! near (q0) ── p0 router p1 ── far (q1): gateway 10.0.2.9, and 10.9.0.0/16 behind it
//! ```

mod common;

use common::{
    frame::{Frame, fix_checksum},
    in_new_namespace, run,
    wire::Wire,
};
use logic::net::Mac;
use std::{
    fs,
    net::{Ipv4Addr, Ipv6Addr, UdpSocket},
    process::{Child, Command, Stdio, id},
    sync::{
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");
const ROUTER: [Mac; 3] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 3])];
/// The UDP port of a socket of the router.
const PORT: u16 = 5300;
/// The number of the next bed of this process.
static MADE: AtomicU32 = AtomicU32::new(0);
/// Longer than the daemon may take to see any change.
const SEEN: Duration = Duration::from_secs(60);

/// How many times slower than a real machine this one may be. `make test-vm` emulates one.
fn slower() -> u32 {
    if common::is_emulated() { 12 } else { 1 }
}

/// The longest time that frames take to come out.
fn on_their_way() -> Duration {
    slower() * Duration::from_millis(30)
}

/// A router between two wires: this thread's namespace, or a namespace of its own, with macvlans.
struct Bed {
    tenant: Option<String>,
    near: Wire,
    far: Wire,
    /// The wire of a third port, if there is one.
    beside: Option<Wire>,
    ports: Vec<&'static str>,
    /// The daemon's configuration, apart from the ports.
    config: String,
    config_file: tempfile::NamedTempFile,
    daemon: Option<Child>,
    instance: String,
    log: tempfile::NamedTempFile,
    _socket: UdpSocket,
}

impl Bed {
    fn new(tenant: bool) -> Bed {
        let number = MADE.fetch_add(1, Relaxed);
        let tenant = tenant.then(|| format!("path-mtu{}-{number}", id()));
        tenant.iter().for_each(|name| _ = run(&format!("ip netns add {name}")));
        let bed = |near, far| Bed {
            tenant,
            near,
            far,
            beside: None,
            ports: vec!["p0", "p1"],
            config: String::new(),
            config_file: tempfile::NamedTempFile::new().unwrap(),
            daemon: None,
            instance: format!("path-mtu-{}-{number}", id()),
            log: tempfile::NamedTempFile::new().unwrap(),
            _socket: UdpSocket::bind(("0.0.0.0", PORT)).unwrap(),
        };
        for n in 0..2 {
            run(&format!("ip link add p{n} type veth peer name q{n}"));
            run(&format!("sysctl -qw net.ipv6.conf.q{n}.disable_ipv6=1"));
            run(&format!("ethtool -K q{n} tx off txvlan off tx-vlan-stag-hw-insert off gro on"));
            run(&format!("ip link set q{n} up"));
            run(&format!("ip link set p{n} up"));
        }
        let bed = bed(Wire::open("q0"), Wire::open("q1"));
        for (n, mac) in ROUTER.iter().enumerate().take(2) {
            let device = match &bed.tenant {
                Some(name) => {
                    run(&format!("ip link add link p{n} name m{n} netns {name} type macvlan mode bridge"));
                    format!("m{n}")
                }
                None => format!("p{n}"),
            };
            bed.run(&format!("ip link set {device} address {mac} up"));
            bed.run(&format!("ip addr add 10.0.{}.1/24 dev {device}", n + 1));
            bed.run(&format!("ip neigh replace 10.0.{}.9 lladdr 02:00:00:00:07:0{n} dev {device}", n + 1));
            bed.run(&format!("sysctl -qw net.ipv4.conf.{device}.rp_filter=0"));
            bed.run(&format!("ip addr add fd00:{}::1/64 dev {device} nodad", n + 1));
            for host in [format!("fd00:{}::9", n + 1), "fe80::8".into()] {
                let last = if host == "fe80::8" { 8 } else { n };
                bed.run(&format!("ip neigh replace {host} lladdr 02:00:00:00:07:0{last} dev {device}"));
            }
        }
        bed.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.icmp_ratelimit=0");
        bed.run("sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv6.icmp.ratelimit=0");
        bed.run("ip route add 10.9.0.0/16 via 10.0.2.9");
        bed.run("ip route add fd00:9::/64 via fd00:2::9");
        bed
    }

    /// Runs a command line in the router's namespace.
    fn run(&self, line: &str) -> String {
        match &self.tenant {
            Some(name) => run(&format!("ip netns exec {name} {line}")),
            None => run(line),
        }
    }

    /// Adds the port p2. Packets to 10.8.0.0/16 leave by p1 and by p2.
    fn add_port(&mut self) {
        run("ip link add p2 type veth peer name q2");
        run("sysctl -qw net.ipv6.conf.q2.disable_ipv6=1 net.ipv4.conf.p2.rp_filter=0");
        run("ethtool -K q2 tx off txvlan off tx-vlan-stag-hw-insert off gro on");
        run("ip link set q2 up");
        run(&format!("ip link set p2 address {} up", ROUTER[2]));
        run("ip addr add 10.0.3.1/24 dev p2");
        run("ip neigh replace 10.0.3.9 lladdr 02:00:00:00:07:02 dev p2");
        run("ip route add 10.8.0.0/16 nexthop via 10.0.2.9 dev p1 nexthop via 10.0.3.9 dev p2");
        self.ports.push("p2");
        self.beside = Some(Wire::open("q2"));
    }

    fn start(&mut self) {
        let text = format!("ports = {:?}\n{}", self.ports, self.config);
        fs::write(self.config_file.path(), text).unwrap();
        let file = self.config_file.path().to_str().unwrap();
        let words = ["run", "--config", file, "--instance", &self.instance];
        let log = self.log.reopen().unwrap();
        let child = Command::new(MILLRACE).args(words).stdout(Stdio::null()).stderr(log).spawn();
        self.daemon = Some(child.unwrap());
        self.until("the fast path to forward", || self.by_linux(|| drop(self.out("10.9.0.200"))) == 0);
    }

    /// Makes Linux forget what it has learned, and waits until the daemon has noticed.
    fn flush(&self, command: &str, destination: &str) {
        self.run(command);
        if self.daemon.is_some() {
            self.until("the fast path to forward after the flush", || {
                self.by_linux(|| drop(self.out(destination))) == 0
            });
        }
    }

    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + SEEN;
        while !done() {
            assert!(
                Instant::now() < end,
                "timed out waiting for {what}: {}",
                fs::read_to_string(self.log.path()).unwrap()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The number of packets that Linux forwarded while `body` ran.
    fn by_linux(&self, body: impl FnOnce()) -> u64 {
        let read = || {
            let all = self.run("cat /proc/thread-self/net/snmp");
            let mut ip = all.lines().filter(|line| line.starts_with("Ip:")).map(|line| line.split(' '));
            let (names, values) = (ip.next().unwrap(), ip.next().unwrap());
            let v4 = names.zip(values).find(|(name, _)| *name == "ForwDatagrams").unwrap().1;
            let all = self.run("cat /proc/thread-self/net/snmp6");
            let v6 = all.lines().find_map(|line| line.strip_prefix("Ip6OutForwDatagrams")).unwrap();
            v4.parse::<u64>().unwrap() + v6.trim().parse::<u64>().unwrap()
        };
        let before = read();
        body();
        read() - before
    }

    /// The frames that leave the router, on either side, for packets to this destination. For IPv4 these are
    /// a long one that may be fragmented, one that must not be, and a short one.
    fn out(&self, destination: &str) -> [Vec<Vec<u8>>; 2] {
        if destination.contains(':') {
            for length in [1450, 100] {
                self.near.send(&udp6(destination, length).bytes());
            }
        } else {
            for (length, fragment) in [(1000, 0), (1000, 0x40), (100, 0x40)] {
                self.near.send(&udp(destination, length, fragment).bytes());
            }
        }
        thread::sleep(on_their_way());
        let out = |wire: &Wire| {
            std::iter::from_fn(|| wire.receive()).filter(|frame| is_of_interest(frame)).map(bare).collect()
        };
        let mut far: Vec<_> = out(&self.far);
        far.extend(self.beside.iter().flat_map(|wire| -> Vec<_> { out(wire) }));
        [out(&self.near), far]
    }

    /// The gateway sends an ICMP error: packets of the router to this destination must be shorter.
    fn teach(&self, destination: &str, mtu: u16, about: About) {
        self.far.send(&Bed::error(destination, mtu, about).bytes());
    }

    /// Waits until Linux forwards no packets to the destinations of the multipath route.
    fn fast_to_all(&self) {
        let all = multipath_destinations();
        let slow = || all.iter().any(|to| self.by_linux(|| drop(self.out(to))) > 0);
        self.until("the fast path to forward by each next hop", || !slow());
    }

    /// The gateway redirects packets to these destinations to 10.0.2.8.
    fn redirect<'a>(&self, destinations: impl IntoIterator<Item = &'a str>) {
        // Linux believes a redirect only while the device does not forward.
        run("sysctl -qw net.ipv4.conf.p1.accept_redirects=1 net.ipv4.conf.p1.forwarding=0");
        for destination in destinations {
            self.far.send(&redirect(destination, [10, 0, 2, 8]).bytes());
        }
        thread::sleep(slower() * Duration::from_millis(50));
        run("sysctl -qw net.ipv4.conf.p1.accept_redirects=0 net.ipv4.conf.p1.forwarding=1");
    }

    /// An error about a packet to `destination`, sent to this MAC address of the router.
    fn error_to(mac: Mac, destination: &str) -> Frame {
        let frame = Bed::error(destination, 500, About::EchoReply);
        Frame { destination: mac, ..frame }
    }

    fn error(destination: &str, mtu: u16, about: About) -> Frame {
        match destination.contains(':') {
            true => error6([2, 0, 0, 0, 0, 0, (mtu >> 8) as u8, mtu as u8], &inner6(destination)),
            false => too_long(destination, mtu, about),
        }
    }
}

/// Makes Linux accept no redirects. As soon as p1 accepts them again, Linux believes those to 10.0.2.8.
fn refuse_redirects() {
    run("ip neigh replace 10.0.2.8 lladdr 02:00:00:00:07:08 dev p1");
    run("sysctl -qw net.ipv4.conf.p1.secure_redirects=0 net.ipv4.conf.all.secure_redirects=0");
    run("sysctl -qw net.ipv4.conf.all.accept_redirects=0 net.ipv4.conf.p0.accept_redirects=0");
    run("sysctl -qw net.ipv4.conf.p1.accept_redirects=0");
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = (daemon.kill(), daemon.wait());
        }
        let _ = Command::new(MILLRACE).args(["stop", "--instance", &self.instance]).output();
        if let Some(name) = &self.tenant {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

fn udp(destination: &str, length: u16, fragment: u8) -> Frame {
    Frame::udp4(ROUTER[0], "10.0.1.9", destination).with(|ip| {
        ip.resize(length.into(), 0x5a);
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        ip[4..8].copy_from_slice(&[0x12, 0x34, fragment, 0]);
        ip[24..28].copy_from_slice(&[(length - 20).to_be_bytes(), [0; 2]].concat());
        fix_checksum(ip);
    })
}

fn udp6(destination: &str, length: u16) -> Frame {
    Frame::udp6(ROUTER[0], "fd00:1::9", destination).with(|ip| {
        ip.resize(length.into(), 0x5a);
        ip[4..6].copy_from_slice(&(length - 40).to_be_bytes());
        ip[44..46].copy_from_slice(&(length - 40).to_be_bytes());
    })
}

/// An answer of the router, fd00:2::1, to a ping from this destination.
fn inner6(destination: &str) -> Vec<u8> {
    let addresses = ["fd00:2::1", destination].map(|a| a.parse::<Ipv6Addr>().unwrap().octets());
    [&[0x60, 0, 0, 0, 0, 8, 58, 64][..], &addresses.concat(), &[129, 0, 0, 0, 0, 1, 0, 1]].concat()
}

/// An ICMPv6 error of the gateway, with this header.
fn error6(header: [u8; 8], body: &[u8]) -> Frame {
    let source = if header[0] == 137 { "fe80::9" } else { "fd00:2::9" };
    let addresses = [source, "fd00:2::1"].map(|a| a.parse::<Ipv6Addr>().unwrap().octets()).concat();
    let mut icmp = [&header, body].concat();
    let pseudo = [&addresses[..], &[0, 0, 0, icmp.len() as u8, 0, 0, 0, 58], &icmp].concat();
    let sum: u32 = pseudo.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let ip = [&[0x60, 0, 0, 0, 0, icmp.len() as u8, 58, 255][..], &addresses, &icmp].concat();
    Frame::new(ROUTER[1], 0x86dd, ip)
}

/// IPv4, UDP over IPv6, and ICMPv6 errors. The rest is neighbour discovery.
fn is_of_interest(frame: &[u8]) -> bool {
    let next_header = frame.get(20).copied().unwrap_or_default();
    let error = frame.get(54).is_some_and(|kind| *kind < 128);
    frame[12..14] == [8, 0]
        || frame[12..14] == [0x86, 0xdd] && (next_header == 17 || next_header == 58 && error)
}

/// Which packet of the router an ICMP error is about.
#[derive(Clone, Copy)]
enum About {
    /// An answer to a ping. Linux asks no socket.
    EchoReply,
    Udp,
}

fn too_long(destination: &str, mtu: u16, about: About) -> Frame {
    let [high, low] = mtu.to_be_bytes();
    error(destination, [3, 4, 0, 0, 0, 0, high, low], about)
}

fn redirect(destination: &str, gateway: [u8; 4]) -> Frame {
    let [a, b, c, d] = gateway;
    error(destination, [5, 1, 0, 0, a, b, c, d], About::EchoReply)
}

/// An ICMP error of the gateway with this header.
fn error(destination: &str, header: [u8; 8], about: About) -> Frame {
    let destination: Ipv4Addr = destination.parse().unwrap();
    let mut inner = vec![0x45, 0, 0, 28, 0, 1, 0x40, 0, 64, 0, 0, 0, 10, 0, 2, 1];
    inner.extend(destination.octets());
    let [high, low] = PORT.to_be_bytes();
    match about {
        About::EchoReply => inner.extend([0, 0, 0, 0, 0, 1, 0, 1]),
        About::Udp => inner.extend([high, low, 0, 9, 0, 8, 0, 0]),
    }
    inner[9] = if matches!(about, About::Udp) { 17 } else { 1 };
    fix_checksum(&mut inner);
    let mut icmp = header.to_vec();
    icmp.extend(inner);
    let sum: u32 = icmp.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut ip = vec![0x45, 0, 0, 20 + icmp.len() as u8, 0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 2, 9, 10, 0, 2, 1];
    fix_checksum(&mut ip);
    ip.extend(icmp);
    Frame::new(ROUTER[1], 0x0800, ip)
}

/// The frame without the identifier of the router's own packets, which differs each time.
fn bare(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[26..30] == [10, 0, 1, 1] {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
    }
    frame
}

/// The lengths of the IP packets that leave by p1, and the MTUs of ICMP errors that leave by p0.
type Lengths = (Vec<u16>, Vec<u16>);

fn summary([near, far]: &[Vec<Vec<u8>>; 2]) -> Lengths {
    let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let length = |frame: &Vec<u8>| if frame[12] == 8 { word(frame, 16) } else { 40 + word(frame, 18) };
    let error = |frame: &Vec<u8>| match frame[12] {
        8 => (frame[34..36] == [3, 4]).then(|| word(frame, 40)),
        _ => (frame[54] == 2).then(|| word(frame, 60)),
    };
    (far.iter().map(length).collect(), near.iter().filter_map(error).collect())
}

/// All packets are forwarded as they came.
fn whole() -> Lengths {
    (vec![1000, 1000, 100], vec![])
}

/// Packets are forwarded with a path MTU of 552 bytes.
fn narrow() -> Lengths {
    (vec![548, 472, 100], vec![552])
}

/// The same for IPv6: the first packet is too long for 1,400 bytes.
fn whole6() -> Lengths {
    (vec![1450, 100], vec![])
}

fn narrow6() -> Lengths {
    (vec![100], vec![1400])
}

/// The frames that left a router at each step, and how many packets Linux forwarded.
type Story = Vec<(&'static str, [Vec<Vec<u8>>; 2], u64)>;

/// Changes the bed, and records the router's work under a name, with packets to a destination.
type Steps = fn(&Bed, &mut dyn FnMut(&'static str, &str));

/// The result of `body` on a new bed, in a new namespace.
fn on_bed<T: Send + 'static>(tenant: bool, body: impl FnOnce(&mut Bed) -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    in_new_namespace(move || done.send(body(&mut Bed::new(tenant))).unwrap());
    result.recv().unwrap()
}

/// The results without Millrace and with it, which are found at the same time: most of it is waiting.
fn without_and_with<T: Send>(of: impl Fn(bool) -> T + Sync) -> [T; 2] {
    thread::scope(|scope| {
        let linux = scope.spawn(|| of(false));
        let millrace = of(true);
        [linux.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), millrace]
    })
}

/// What the router did in `steps`, with or without Millrace.
fn story(millrace: bool, tenant: bool, steps: Steps) -> Story {
    on_bed(tenant, move |bed| {
        if millrace {
            bed.start();
        }
        let mut story = Story::new();
        steps(bed, &mut |what, destination| {
            let mut out = Default::default();
            let by_linux = bed.by_linux(|| out = bed.out(destination));
            story.push((what, out, by_linux));
        });
        story
    })
}

/// Asserts that the same frames leave with and without Millrace, with these lengths, and that the fast path
/// forwarded where expected.
fn same(tenant: bool, expected: &[(&str, Lengths, bool)], steps: Steps) {
    let [linux, millrace] = without_and_with(|millrace| story(millrace, tenant, steps));
    assert_eq!(linux.len(), expected.len());
    for (((what, lengths, fast), linux), millrace) in expected.iter().zip(&linux).zip(&millrace) {
        assert_eq!((linux.0, millrace.0), (*what, *what));
        assert_eq!(summary(&linux.1), *lengths, "{what}: Linux");
        assert_eq!(summary(&millrace.1), *lengths, "{what}: Millrace");
        assert_eq!(millrace.1, linux.1, "{what}: frames with Millrace, and without");
        assert_eq!(millrace.2 == 0, *fast, "{what}: Linux forwarded {} packets", millrace.2);
    }
}

/// Waits until the kernel plane has seen the message, and the daemon has read what it changed.
fn settle() {
    thread::sleep(Duration::from_millis(700) + 3 * on_their_way());
}

#[test]
#[ignore = "needs root"]
fn a_locked_path_mtu_applies_to_forwarded_packets_until_it_is_flushed() {
    let expected = [
        ("before", whole(), true),
        ("an error about an answer to a ping", narrow(), false),
        ("another destination", whole(), true),
        ("an error about a packet of a socket", narrow(), false),
        ("an MTU that is not locked", whole(), true),
        ("flushed", whole(), true),
    ];
    same(false, &expected, |bed, out| {
        out("before", "10.9.0.1");
        bed.teach("10.9.0.1", 500, About::EchoReply);
        settle();
        out("an error about an answer to a ping", "10.9.0.1");
        out("another destination", "10.9.0.2");
        bed.teach("10.0.2.9", 500, About::Udp);
        settle();
        out("an error about a packet of a socket", "10.0.2.9");
        bed.teach("10.9.0.3", 1000, About::EchoReply);
        settle();
        out("an MTU that is not locked", "10.9.0.3");
        bed.flush("ip route flush cache", "10.9.0.1");
        out("flushed", "10.9.0.1");
    });
}

#[test]
#[ignore = "needs root"]
fn a_locked_path_mtu_expires_and_can_be_learned_again() {
    let expected = [
        ("learned", narrow(), false),
        ("expired: a second error prolongs nothing", whole(), true),
        ("learned again", narrow(), false),
    ];
    same(false, &expected, |bed, out| {
        bed.run(&format!("sysctl -qw net.ipv4.route.mtu_expires={}", 4 * slower()));
        bed.teach("10.9.0.1", 500, About::EchoReply);
        settle();
        out("learned", "10.9.0.1");
        thread::sleep(slower() * Duration::from_millis(1800));
        bed.teach("10.9.0.1", 500, About::EchoReply);
        thread::sleep(slower() * Duration::from_secs(3));
        out("expired: a second error prolongs nothing", "10.9.0.1");
        bed.teach("10.9.0.1", 500, About::EchoReply);
        settle();
        out("learned again", "10.9.0.1");
    });
}

#[test]
#[ignore = "needs root"]
fn a_tenant_obeys_what_its_own_namespace_learned() {
    let expected =
        [("learned", narrow(), false), ("another destination", whole(), true), ("flushed", whole(), true)];
    same(true, &expected, |bed, out| {
        bed.teach("10.9.0.1", 500, About::EchoReply);
        settle();
        out("learned", "10.9.0.1");
        out("another destination", "10.9.0.2");
        bed.flush("ip route flush cache", "10.9.0.1");
        out("flushed", "10.9.0.1");
    });
}

/// Linux applies every path MTU that it has learned to forwarded IPv6 packets.
#[test]
#[ignore = "needs root"]
fn every_path_mtu_of_ipv6_applies_to_forwarded_packets_until_it_is_flushed() {
    let expected = [
        ("before", whole6(), true),
        ("learned", narrow6(), false),
        ("another destination", whole6(), true),
        ("flushed", whole6(), true),
        ("learned for a while", narrow6(), false),
        ("expired", whole6(), true),
    ];
    let steps: Steps = |bed, out| {
        out("before", "fd00:9::1");
        bed.teach("fd00:9::1", 1400, About::EchoReply);
        settle();
        out("learned", "fd00:9::1");
        out("another destination", "fd00:9::2");
        bed.flush("ip -6 route flush cache", "fd00:9::1");
        out("flushed", "fd00:9::1");
        bed.run(&format!("sysctl -qw net.ipv6.route.mtu_expires={}", 4 * slower()));
        bed.teach("fd00:9::3", 1400, About::EchoReply);
        settle();
        out("learned for a while", "fd00:9::3");
        thread::sleep(slower() * Duration::from_secs(5));
        out("expired", "fd00:9::3");
    };
    same(false, &expected, steps);
}

/// Gateways learned from redirects still apply after the device stops accepting redirects.
#[test]
#[ignore = "needs root"]
fn a_gateway_learned_from_a_redirect_applies_to_forwarded_packets() {
    in_new_namespace(|| {
        let mut bed = Bed::new(false);
        refuse_redirects();
        let redirected = |bed: &Bed, destination: &str| bed.redirect([destination]);
        let gateways = |bed: &Bed, destination: &str| -> Vec<u8> {
            bed.out(destination)[1].iter().map(|frame| frame[5]).collect()
        };
        redirected(&bed, "10.9.0.1");
        assert_eq!(gateways(&bed, "10.9.0.1"), [8; 3], "Linux");
        bed.start();
        assert_eq!(gateways(&bed, "10.9.0.1"), [8; 3], "before the daemon");
        redirected(&bed, "10.9.0.3");
        bed.until("the fast path to forward again", || bed.by_linux(|| drop(bed.out("10.9.0.2"))) == 0);
        assert_eq!(gateways(&bed, "10.9.0.3"), [8; 3], "while the daemon ran");
        assert_eq!(gateways(&bed, "10.9.0.2"), [1; 3]);
    });
}

/// Sixteen destinations of a multipath route. Packets to about half of them leave by each device.
fn multipath_destinations() -> [String; 16] {
    std::array::from_fn(|n| format!("10.8.0.{n}"))
}

/// Before 6.13, Linux records an error for one next hop only. A request about another next hop does not show
/// it.
#[test]
#[ignore = "needs root"]
fn a_path_mtu_of_a_multipath_route_applies_to_forwarded_packets() {
    let out = |millrace: bool| {
        on_bed(false, move |bed| {
            bed.add_port();
            if millrace {
                bed.start();
                bed.fast_to_all();
            }
            for to in multipath_destinations() {
                bed.teach(&to, 500, About::EchoReply);
            }
            settle();
            multipath_destinations().map(|to| summary(&bed.out(&to)))
        })
    };
    let [linux, millrace] = without_and_with(out);
    assert!(linux.contains(&narrow()), "no destination has the smaller MTU: {linux:?}");
    assert_eq!(millrace, linux);
}

/// Linux records a redirect for one next hop, since 6.12 at the latest for that of the device by which it
/// came.
#[test]
#[ignore = "needs root"]
fn a_redirect_on_a_multipath_route_applies_to_packets_that_leave_by_that_device() {
    let out = |millrace: bool| {
        on_bed(false, move |bed| {
            bed.add_port();
            refuse_redirects();
            if millrace {
                bed.start();
                bed.fast_to_all();
            }
            bed.redirect(multipath_destinations().iter().map(String::as_str));
            if millrace {
                bed.until("the fast path to forward again", || {
                    bed.by_linux(|| drop(bed.out("10.9.0.2"))) == 0
                });
            }
            settle();
            multipath_destinations()
                .map(|to| -> Vec<u8> { bed.out(&to)[1].iter().map(|frame| frame[5]).collect() })
        })
    };
    let [linux, millrace] = without_and_with(out);
    if fs::exists("/proc/sys/net/ipv4/fib_multipath_hash_seed").unwrap() {
        assert!(
            linux.contains(&vec![8; 3]) && linux.contains(&vec![2; 3]),
            "not both gateways are used: {linux:?}"
        );
    }
    // Linux 6.1 may record it for the device by which it did not come. The new gateway does not answer there.
    let redirected = |gateways: &[Vec<u8>; 16]| {
        gateways.each_ref().map(|all| (all.is_empty() || *all == [8; 3]).then(|| all.clone()))
    };
    assert!(redirected(&linux).iter().any(Option::is_some), "no destination is redirected: {linux:?}");
    assert!(redirected(&linux).contains(&None), "all destinations are redirected: {linux:?}");
    // Before Linux 6.11 there is no seed to set, and Millrace makes its own choice between the other two.
    assert_eq!(
        redirected(&millrace),
        redirected(&linux),
        "gateways with Millrace {millrace:?}, without {linux:?}"
    );
}

/// A worker takes the error, and passes it up.
#[test]
#[ignore = "needs root"]
fn an_error_that_a_path_of_a_tenant_takes_is_heeded() {
    in_new_namespace(|| {
        let mut bed = Bed::new(true);
        let name = bed.tenant.clone().unwrap();
        bed.config = format!(
            "[workers]\ncores = \"0\"\n[[path]]\nname = \"icmp\"\nrouter = \"{name}\"\n\
             class = {{ protocol = \"icmp\" }}\nchain = [\"check\", \"route\", \"ttl\", \"rewrite\"]\n"
        );
        bed.start();
        let packets = || {
            let status =
                Command::new(MILLRACE).args(["status", "--json", "--instance", &bed.instance]).output();
            let status: serde_json::Value = serde_json::from_slice(&status.unwrap().stdout).unwrap();
            status["paths"][0]["packets"].as_u64()
        };
        // Sends errors about another destination until the worker takes them.
        bed.until("the worker to take ICMP", || {
            bed.teach("10.9.0.3", 1000, About::EchoReply);
            packets() > Some(0)
        });
        let before = packets();
        bed.teach("10.9.0.1", 500, About::EchoReply);
        settle();
        assert_eq!(summary(&bed.out("10.9.0.1")), narrow());
        assert_eq!(
            bed.by_linux(|| drop(bed.out("10.9.0.2"))),
            0,
            "packets to another destination that Linux forwarded"
        );
        assert!(packets() > before, "the error did not reach the worker");
    });
}

/// Each router has room for errors of its own.
#[test]
#[ignore = "needs root"]
fn a_flood_of_errors_to_one_router_hides_none_of_another() {
    in_new_namespace(|| {
        let mut bed = Bed::new(true);
        run(&format!("ip link set p1 address {}", ROUTER[2]));
        run("ip addr add 10.0.3.1/24 dev p1");
        run("sysctl -qw net.ipv4.ip_forward=1");
        bed.start();
        let flood = || {
            for n in 0..2000_u16 {
                let [high, low] = n.to_be_bytes();
                bed.far.send(&Bed::error_to(ROUTER[2], &format!("10.7.{high}.{low}")).bytes());
            }
        };
        flood();
        bed.teach("10.9.0.1", 500, About::EchoReply);
        flood();
        settle();
        assert_eq!(summary(&bed.out("10.9.0.1")), narrow());
    });
}

#[test]
#[ignore = "needs root"]
fn a_daemon_reads_what_linux_learned_before() {
    in_new_namespace(|| {
        let mut bed = Bed::new(false);
        bed.teach("10.9.0.1", 500, About::EchoReply);
        bed.teach("fd00:9::1", 1400, About::EchoReply);
        let learned = |bed: &Bed| ["10.9.0.1", "fd00:9::1"].map(|to| summary(&bed.out(to)));
        assert_eq!(learned(&bed), [narrow(), narrow6()]);
        bed.start();
        // Linux 6.1 forgets the IPv6 entries when a program is attached to the port.
        let has_six = run("ip -6 route show cache").contains("fd00:9::1");
        assert_eq!(learned(&bed), [narrow(), if has_six { narrow6() } else { whole6() }]);
        assert_eq!(summary(&bed.out("10.9.0.2")), whole());
        let verified = Command::new(MILLRACE)
            .args(["routes", "--verify", "--instance", &bed.instance])
            .output()
            .unwrap();
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    });
}

/// Somebody forges errors as fast as one thread can, each about another destination. Prints what that costs
/// the daemon, and asserts that other destinations stay fast.
///
/// ```text
/// cargo test -p millrace --test path_mtu -- --ignored --nocapture --test-threads=1 measure
/// ```
#[test]
#[ignore = "measures; needs root"]
fn measure_a_flood_of_forged_errors() {
    in_new_namespace(|| {
        let mut bed = Bed::new(false);
        bed.start();
        let daemon = bed.daemon.as_ref().unwrap().id();
        let (idle, before) = (Instant::now(), cpu_time(daemon));
        thread::sleep(Duration::from_secs(5));
        let percent = |began: Instant, before| {
            (cpu_time(daemon) - before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0
        };
        println!("idle: daemon {:.1} % of a core", percent(idle, before));
        for (family, destination) in [("IPv4", "10.9.250.1"), ("IPv6", "fd00:9::ffff:1")] {
            let (began, before, mut sent) = (Instant::now(), cpu_time(daemon), 0_u16);
            let mut bound_late = 0;
            let mut count = 0_u64;
            while began.elapsed() < Duration::from_secs(10) {
                let [high, low] = sent.to_be_bytes();
                match family {
                    "IPv4" => bed.teach(&format!("10.9.{}.{low}", high % 200), 500, About::EchoReply),
                    _ => bed.teach(&format!("fd00:9::{high:x}:{low:x}"), 1400, About::EchoReply),
                }
                (sent, count) = (sent.wrapping_add(1), count + 1);
                if count.is_multiple_of(10_000) {
                    bound_late += bed.by_linux(|| drop(bed.out(destination)));
                }
            }
            let elapsed = began.elapsed().as_secs_f64();
            println!(
                "{family}: {:.0} errors/s, daemon {:.1} % of a core, {bound_late} packets to another destination by Linux",
                count as f64 / elapsed,
                percent(began, before)
            );
            assert_eq!(bound_late, 0, "{family} packets to another destination that Linux forwarded");
        }
    });
}

/// CPU time of a process on all cores.
fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let mut fields = stat.rsplit(')').next().unwrap().split_whitespace().skip(11);
    let ticks: u64 = (0..2).map(|_| fields.next().unwrap().parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}
