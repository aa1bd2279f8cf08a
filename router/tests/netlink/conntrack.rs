//! Requests about connections, and their ends, against a real conntrack.
//!
//! `left` - `router` - `right`. The router masquerades what leaves to `right`.

use crate::bed::*;
use logic::{
    connections::tracked::{Refresh, Special, TCP_ESTABLISHED, Tracked},
    firewall::traffic::{ASSURED, SEEN_REPLY, SRC_NAT, TCP, Tuple, UDP},
};
use router::linux::{
    conntrack::{
        ends::{Ends, Waiting},
        message::Destroyed,
        settings::SettingFiles,
        tracker::{Answer, Tracker},
    },
    netlink::{
        socket::Socket,
        wire::{self, Request},
    },
    netns,
};
use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

const RULES: &str = "table inet nat {
    chain post { type nat hook postrouting priority 100; oifname right masquerade; }
}";

struct Net {
    router: File,
    left: File,
    right: File,
    name: String,
}

impl Net {
    fn new(bed: &Bed, rules: &str) -> Net {
        let [router, left, right] = ["router", "left", "right"].map(|name| bed.namespace(name));
        for (name, number) in [(&left, 1), (&right, 2)] {
            let device = if number == 1 { "left" } else { "right" };
            sh(&format!(
                "ip -n {router} link add {device} type veth peer name e netns {name}
                ip -n {router} link set {device} up; ip -n {name} link set e up; ip -n {name} link set lo up
                ip -n {router} addr add 10.{number}.0.1/24 dev {device}
                ip -n {router} addr add fd0{number}::1/64 dev {device} nodad
                ip -n {name} addr add 10.{number}.0.2/24 dev e
                ip -n {name} addr add fd0{number}::2/64 dev e nodad
                ip -n {name} route add default via 10.{number}.0.1
                ip -n {name} route add default via fd0{number}::1"
            ));
        }
        sh(&format!(
            "ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
            ip netns exec {router} nft '{rules}'"
        ));
        let open = |name: &str| File::open(format!("/run/netns/{name}")).unwrap();
        Net { router: open(&router), left: open(&left), right: open(&right), name: router }
    }

    fn tracker(&self) -> Tracker {
        netns::inside(&self.router, Tracker::open).unwrap().unwrap()
    }

    fn ends(&self) -> Ends {
        Ends::of(&self.router, 1 << 20).unwrap()
    }

    fn raw(&self) -> Socket {
        netns::inside(&self.router, || Socket::requests(libc::NETLINK_NETFILTER)).unwrap().unwrap()
    }

    fn run(&self, command: &str) -> String {
        let arguments = ["netns", "exec", &self.name, "sh", "-ec", command];
        let output = std::process::Command::new("ip").args(arguments).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn count(&self) -> u32 {
        self.run("cat /proc/sys/net/netfilter/nf_conntrack_count").trim().parse().unwrap()
    }

    /// An exchange in both directions, with this server.
    fn udp(&self, server: &str) -> (UdpSocket, UdpSocket) {
        let right = netns::inside(&self.right, || UdpSocket::bind(server)).unwrap().unwrap();
        let left = netns::inside(&self.left, || UdpSocket::bind((any_address(server), 0))).unwrap().unwrap();
        left.connect(right.local_addr().unwrap()).unwrap();
        for socket in [&left, &right] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        left.send(b"to").unwrap();
        let (_, from) = right.recv_from(&mut [0; 9]).unwrap();
        right.send_to(b"back", from).unwrap();
        left.recv(&mut [0; 9]).unwrap();
        (left, right)
    }

    fn tcp(&self, server: &str) -> (TcpStream, TcpStream) {
        let listener = netns::inside(&self.right, || TcpListener::bind(server)).unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let mut left = netns::inside(&self.left, || TcpStream::connect(to)).unwrap().unwrap();
        let mut right = listener.accept().unwrap().0;
        left.write_all(b"to").unwrap();
        right.read_exact(&mut [0; 2]).unwrap();
        right.write_all(b"back").unwrap();
        left.read_exact(&mut [0; 4]).unwrap();
        (left, right)
    }
}

fn any_address(server: &str) -> IpAddr {
    let server: SocketAddr = server.parse().unwrap();
    if server.is_ipv4() { [0; 4].into() } else { [0; 16].into() }
}

fn tuple(source: SocketAddr, destination: SocketAddr) -> Tuple {
    Tuple {
        source: source.ip(),
        destination: destination.ip(),
        source_port: source.port(),
        destination_port: destination.port(),
    }
}

/// The tuples of a connection as its two ends see it.
fn tuples(left: [SocketAddr; 2], right: [SocketAddr; 2]) -> [Tuple; 2] {
    [tuple(left[0], left[1]), tuple(right[0], right[1])]
}

fn tcp_tuples((left, right): &(TcpStream, TcpStream)) -> [Tuple; 2] {
    let ends = |s: &TcpStream| [s.local_addr().unwrap(), s.peer_addr().unwrap()];
    tuples(ends(left), ends(right))
}

fn udp_tuple(left: &UdpSocket) -> Tuple {
    tuple(left.local_addr().unwrap(), left.peer_addr().unwrap())
}

fn tracked(answer: Answer) -> Tracked {
    match answer {
        Answer::Tracked(tracked) => tracked,
        other => panic!("the connection is not tracked: {other:?}"),
    }
}

/// Waits for the end of a connection.
fn wait_for_end(ends: &mut Ends, protocol: u8, tuples: [Tuple; 2]) {
    let (end, mut found) = (Instant::now() + PATIENCE, false);
    while !found {
        assert!(Instant::now() < end, "no report of the end of {tuples:?}");
        let waiting = ends.destroyed(|one| found |= one == Destroyed { protocol, tuples }).unwrap();
        assert_eq!(waiting, Waiting::Nothing);
        std::thread::sleep(Duration::from_millis(5));
    }
}

const NEW: u16 = 0x100;
const GET: u16 = 0x101;
const DELETE: u16 = 0x102;
const NESTED: u16 = 0x8000;
const CREATE: u16 = 0x400;

fn nested(parts: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    parts.iter().for_each(|(kind, value)| wire::push(&mut bytes, *kind, value));
    bytes
}

/// `CTA_TUPLE_*` of IPv4.
fn tuple_bytes(protocol: u8, tuple: &Tuple) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (tuple.source, tuple.destination) else {
        panic!("it is not of IPv4")
    };
    let ip = nested(&[(1, &source.octets()), (2, &destination.octets())]);
    let (from, to) = (tuple.source_port.to_be_bytes(), tuple.destination_port.to_be_bytes());
    nested(&[(NESTED | 1, &ip), (NESTED | 2, &nested(&[(1, &[protocol]), (2, &from), (3, &to)]))])
}

fn request(kind: u16, flags: u16, protocol: u8, tuple: &Tuple) -> Request {
    Request::new(kind, wire::ACK | flags, &[2, 0, 0, 0]).with(NESTED | 1, &tuple_bytes(protocol, tuple))
}

/// `CTA_PROTOINFO_TCP_FLAGS_ORIGINAL` and `_REPLY`.
fn flags(socket: &mut Socket, tuple: &Tuple) -> [u8; 2] {
    let parse = |message: wire::Message<'_>| {
        let info = wire::attribute(wire::attribute(message.payload.get(4..)?, 4)?, 1)?;
        Some([wire::attribute(info, 4)?[0], wire::attribute(info, 5)?[0]])
    };
    socket.ask(request(GET, 0, TCP, tuple), parse).unwrap().unwrap()
}

#[test]
#[ignore = "needs root"]
fn a_namespace_without_rules_tracks_nothing() {
    with_bed(|_| {
        let mut tracker = Tracker::open().unwrap();
        let tuple = tuple("10.1.0.2:1".parse().unwrap(), "10.2.0.2:2".parse().unwrap());
        assert_eq!(tracker.look(UDP, &tuple).unwrap(), Answer::Gone);
        assert_eq!(tracker.make_liberal(&tuple).unwrap(), Answer::Gone);
        let files = SettingFiles::open().unwrap();
        sh("sysctl -qw net.netfilter.nf_conntrack_udp_timeout_stream=77 \
            net.netfilter.nf_conntrack_tcp_timeout_established=88");
        // The files belong to this namespace, wherever they are read.
        let settings = std::thread::spawn(move || files.read().unwrap()).join().unwrap();
        assert_eq!((settings.udp_stream_s, settings.tcp_established_s), (77, 88));
    });
}

#[test]
#[ignore = "needs root"]
fn a_connection_is_found_by_either_tuple_as_the_hosts_see_it() {
    with_bed(|bed| {
        let net = Net::new(bed, RULES);
        let (_ends, mut tracker) = (net.ends(), net.tracker());
        for server in ["10.2.0.2:80", "[fd02::2]:80"] {
            let pair = net.tcp(server);
            let tuples = tcp_tuples(&pair);
            assert_ne!(tuples[0].source, tuples[1].destination, "the router does not translate");
            let found = tuples.map(|tuple| tracked(tracker.look(TCP, &tuple).unwrap()));
            assert_eq!((found[0].tuples, found[1].tuples), (tuples, tuples));
            let found = &found[0];
            assert_eq!((found.protocol, found.tcp_state, found.special), (TCP, Some(TCP_ESTABLISHED), None));
            assert_eq!(found.status & (ASSURED | SRC_NAT), ASSURED | SRC_NAT);
            assert!((431_900..=432_000).contains(&found.expires_s), "{found:?}");
            assert_eq!(tracker.look(UDP, &tuples[0]).unwrap(), Answer::Gone);

            let (left, right) = net.udp(server);
            let found = tracked(tracker.look(UDP, &udp_tuple(&left)).unwrap());
            assert_eq!(found.tuples[0], udp_tuple(&left));
            assert_eq!(found.tuples[1].source, right.local_addr().unwrap().ip());
            assert_eq!((found.protocol, found.tcp_state, found.special), (UDP, None, None));
            assert_ne!(found.status & SEEN_REPLY, 0);
        }
    });
}

#[test]
#[ignore = "needs root"]
fn answers_about_many_connections_are_in_order() {
    with_bed(|bed| {
        let net = Net::new(bed, RULES);
        let unwatched = net.udp("10.2.0.2:79");
        let (_ends, mut tracker, mut raw) = (net.ends(), net.tracker(), net.raw());
        let (stream, udp, udp6) = (net.tcp("10.2.0.2:80"), net.udp("10.2.0.2:81"), net.udp("[fd02::2]:82"));
        let [tcp, _] = tcp_tuples(&stream);
        let (one, other) = (udp_tuple(&udp.0), udp_tuple(&udp6.0));
        let gone = Tuple { source_port: one.source_port ^ 1, ..one };
        let asked =
            [(TCP, tcp), (UDP, gone), (UDP, one), (UDP, udp_tuple(&unwatched.0)), (UDP, other), (TCP, one)];
        // More than one batch
        let asked: Vec<_> = asked.into_iter().cycle().take(20 * asked.len()).collect();
        let answers = tracker.ask_again(&asked).unwrap();
        assert_eq!(answers.len(), asked.len());
        for ((protocol, tuple), answer) in asked.into_iter().zip(answers) {
            match answer {
                Answer::Tracked(found) => assert!(
                    found.protocol == protocol
                        && found.tuples[0] == tuple
                        && [tcp, one, other].contains(&tuple)
                ),
                Answer::Gone => assert!(tuple == gone || (protocol, tuple) == (TCP, one)),
                other => assert_eq!((other, tuple), (Answer::Unwatched, udp_tuple(&unwatched.0))),
            }
        }
        assert_eq!(flags(&mut raw, &tcp).map(|flags| flags & 0x38), [0x08; 2], "it is liberal");
    });
}

/// Numbers that are half of all numbers apart. Both windows begin at random numbers, so one is after and one before each.
const OUTSIDE: [u32; 2] = [0x7070_7070, 0xf070_7070];

/// Sends four segments with ACK over IPv4. All combinations of numbers that are after and before the windows occur.
fn send_outside_the_window(net: &Net, tuple: &Tuple) {
    let all = OUTSIDE.into_iter().flat_map(|sequence| OUTSIDE.map(|acknowledged| (sequence, acknowledged)));
    all.for_each(|(sequence, acknowledged)| send_segment(net, tuple, sequence, acknowledged));
}

fn send_segment(net: &Net, tuple: &Tuple, sequence: u32, acknowledged: u32) {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (tuple.source, tuple.destination) else {
        panic!("it is not of IPv4")
    };
    let (from, to) = (tuple.source_port.to_be_bytes(), tuple.destination_port.to_be_bytes());
    let mut segment = [
        &from[..],
        &to,
        &sequence.to_be_bytes(),
        &acknowledged.to_be_bytes(),
        &[0x50, 0x10, 1, 0, 0, 0, 0, 0],
        b"xx",
    ]
    .concat();
    let pseudo = [&source.octets()[..], &destination.octets(), &[0, TCP, 0, segment.len() as u8]].concat();
    let sum: u32 = [&pseudo[..], &segment]
        .concat()
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    netns::inside(&net.left, || {
        // SAFETY: all zeros is a value of this plain C struct; the pointers lead to live locals of the given lengths.
        unsafe {
            let socket = libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_TCP);
            assert!(socket >= 0);
            let mut to: libc::sockaddr_in = std::mem::zeroed();
            to.sin_family = libc::AF_INET as u16;
            to.sin_addr.s_addr = u32::from_ne_bytes(destination.octets());
            let sent = libc::sendto(
                socket,
                segment.as_ptr().cast(),
                segment.len(),
                0,
                (&raw const to).cast(),
                size_of_val(&to) as u32,
            );
            libc::close(socket);
            assert_eq!(sent, segment.len() as isize);
        }
    })
    .unwrap();
}

#[test]
#[ignore = "needs root"]
fn a_liberal_connection_has_no_window() {
    with_bed(|bed| {
        let counters = "table inet seen { chain forward { type filter hook forward priority 0;
            iifname left ct state invalid counter drop; ct state established tcp sequence { 0x70707070, 0xf0707070 } counter; }
        }";
        let net = Net::new(bed, &format!("{RULES}\n{counters}"));
        let (_ends, mut tracker, mut raw) = (net.ends(), net.tracker(), net.raw());
        let pair = net.tcp("10.2.0.2:80");
        let [tuple, reply] = tcp_tuples(&pair);
        let counted = || -> Vec<u32> {
            let rules = net.run("nft list table inet seen");
            let after = rules.split("packets ").skip(1);
            after.map(|text| text.split(' ').next().unwrap().parse().unwrap()).collect()
        };
        assert_eq!(flags(&mut raw, &tuple).map(|flags| flags & 0x28), [0x20; 2]);
        send_outside_the_window(&net, &tuple);
        // Linux calls segments after the window invalid, and ignores some before it.
        let before = counted();
        assert!(before[0] >= 2 && before[0] + before[1] == 4, "{before:?}");
        assert!(matches!(tracker.look(TCP, &tuple), Ok(Answer::Tracked(_))));
        assert_eq!(flags(&mut raw, &tuple).map(|flags| flags & 0x08), [0; 2], "a look changed the flags");

        let answer = tracked(tracker.make_liberal(&reply).unwrap());
        assert_eq!((answer.tuples, answer.tcp_state), ([tuple, reply], Some(TCP_ESTABLISHED)));
        assert_eq!(flags(&mut raw, &tuple).map(|flags| flags & 0x38), [0x08; 2]);
        send_outside_the_window(&net, &tuple);
        assert_eq!(counted(), [before[0], before[1] + 4]);
    });
}

#[test]
#[ignore = "needs root"]
fn only_an_established_connection_is_closed() {
    with_bed(|bed| {
        let net = Net::new(bed, RULES);
        let (_ends, mut tracker) = (net.ends(), net.tracker());
        let pair = net.tcp("10.2.0.2:80");
        let [tuple, reply] = tcp_tuples(&pair);
        let open = tracked(tracker.look(TCP, &tuple).unwrap());
        assert_eq!(open.tcp_state, Some(TCP_ESTABLISHED));
        tracker.close(&reply, open.expires_s - 2, 77).unwrap();
        assert_eq!(tracked(tracker.look(TCP, &tuple).unwrap()).tcp_state, Some(TCP_ESTABLISHED));
        tracker.close(&reply, open.expires_s, 77).unwrap();
        let closed = tracked(tracker.look(TCP, &tuple).unwrap());
        assert_eq!((closed.tuples, closed.tcp_state), ([tuple, reply], Some(8)));
        assert!((70..=77).contains(&closed.expires_s), "{closed:?}");
        // It is closed already, and the next one does not exist.
        tracker.close(&tuple, u32::MAX, 1000).unwrap();
        assert!(tracked(tracker.look(TCP, &tuple).unwrap()).expires_s <= 77);
        tracker.close(&Tuple { source_port: 9, ..tuple }, u32::MAX, 1000).unwrap();
    });
}

#[test]
#[ignore = "needs root"]
fn a_connection_without_events_is_unwatched() {
    with_bed(|bed| {
        let net = Net::new(bed, RULES);
        let (mut ends, mut tracker, mut raw) = (net.ends(), net.tracker(), net.raw());
        // The state of a connection that is older than the first listener of all namespaces.
        net.run("sysctl -qw net.netfilter.nf_conntrack_events=0");
        let (left, _right) = net.udp("10.2.0.2:53");
        let pair = net.tcp("10.2.0.2:80");
        net.run("sysctl -qw net.netfilter.nf_conntrack_events=2");
        assert_eq!(tracker.look(UDP, &udp_tuple(&left)).unwrap(), Answer::Unwatched);
        let tuple = tcp_tuples(&pair)[0];
        assert_eq!(tracker.look(TCP, &tuple).unwrap(), Answer::Unwatched);
        let refresh = Refresh { protocol: TCP, tuple, timeout_s: 1000 };
        assert_eq!(tracker.refresh(&[refresh]).unwrap(), [false]);
        raw.ask(request(DELETE, 0, UDP, &udp_tuple(&left)), |_| None::<()>).unwrap();
        let mut seen = 0;
        assert_eq!(ends.destroyed(|_| seen += 1).unwrap(), Waiting::Nothing);
        assert_eq!(seen, 0, "Linux reported the end of an unwatched connection");
    });
}

#[test]
#[ignore = "needs root"]
fn linux_counts_connections_that_began_while_it_was_set_to() {
    with_bed(|bed| {
        let net = Net::new(bed, RULES);
        let mut tracker = net.tracker();
        let mut pairs = Vec::new();
        for (port, acct) in [(80, 0), (81, 1), (82, 0)] {
            net.run(&format!("sysctl -qw net.netfilter.nf_conntrack_acct={acct}"));
            pairs.push((net.tcp(&format!("10.2.0.2:{port}")), net.udp(&format!("10.2.0.2:{port}"))));
            let counted = pairs.iter().flat_map(|(tcp, (left, _))| {
                let [original, reply] = tcp_tuples(tcp);
                [(TCP, original), (TCP, reply), (UDP, udp_tuple(left))]
            });
            let counted: Vec<_> = counted.map(|(p, tuple)| tracker.is_counted(p, &tuple).unwrap()).collect();
            let expected = [[false; 3], [true; 3], [false; 3]].concat();
            assert_eq!(counted, expected[..counted.len()]);
        }
        let absent = Tuple { source_port: 7, ..tcp_tuples(&pairs[1].0)[0] };
        assert!(!tracker.is_counted(TCP, &absent).unwrap());
    });
}

#[test]
#[ignore = "needs root"]
fn a_refresh_sets_timeouts_and_creates_nothing() {
    with_bed(|bed| {
        let net = Net::new(bed, RULES);
        let (_ends, mut tracker) = (net.ends(), net.tracker());
        let pair = net.tcp("10.2.0.2:80");
        let ending = net.tcp("10.2.0.2:81");
        ending.0.shutdown(std::net::Shutdown::Write).unwrap();
        let sockets: Vec<_> = (0..100).map(|i| net.udp(&format!("10.2.0.2:{}", 100 + i))).collect();
        let mut all: Vec<_> = sockets
            .iter()
            .map(|(left, _)| Refresh { protocol: UDP, tuple: udp_tuple(left), timeout_s: 500 })
            .collect();
        let absent = Tuple { source_port: 7, ..all[0].tuple };
        all.insert(70, Refresh { tuple: absent, ..all[0] });
        all.insert(0, Refresh { tuple: absent, ..all[0] });
        all.push(Refresh { protocol: TCP, tuple: tcp_tuples(&pair)[1], timeout_s: 600 });
        all.push(Refresh { protocol: TCP, tuple: tcp_tuples(&ending)[0], timeout_s: 700 });
        all.push(Refresh { protocol: TCP, tuple: absent, timeout_s: 700 });
        let before = net.count();
        let refreshed = tracker.refresh(&all).unwrap();
        assert_eq!(net.count(), before);
        let expected: Vec<_> = (0..all.len()).map(|at| ![0, 71, 103, 104].contains(&at)).collect();
        assert_eq!(refreshed, expected);
        let mut expires = |at: usize| match tracker.look(all[at].protocol, &all[at].tuple).unwrap() {
            Answer::Tracked(tracked) => tracked.expires_s,
            Answer::Gone => 0,
            other => panic!("{other:?}"),
        };
        for at in [1, 2, 64, 70, 72, 101] {
            assert!((490..=500).contains(&expires(at)), "{at}: {}", expires(at));
        }
        assert!((590..=600).contains(&expires(102)), "{}", expires(102));
        assert!((50..=60).contains(&expires(103)), "a connection that ends expires in {} s", expires(103));
        assert_eq!([expires(0), expires(71), expires(104)], [0; 3]);
    });
}

#[test]
#[ignore = "needs root"]
fn ends_are_reported() {
    with_bed(|bed| {
        let net = Net::new(bed, RULES);
        let (mut ends, mut tracker, mut raw) = (net.ends(), net.tracker(), net.raw());
        let mut here = netns::inside(&net.router, || Ends::here(1 << 20)).unwrap().unwrap();
        let (left, _right) = net.udp("10.2.0.2:53");
        let found = tracked(tracker.look(UDP, &udp_tuple(&left)).unwrap());
        assert_eq!(ends.destroyed(|one| panic!("{one:?} has not ended")).unwrap(), Waiting::Nothing);
        raw.ask(request(DELETE, 0, UDP, &udp_tuple(&left)), |_| None::<()>).unwrap();
        wait_for_end(&mut ends, UDP, found.tuples);
        wait_for_end(&mut here, UDP, found.tuples);
        assert_eq!(tracker.look(UDP, &udp_tuple(&left)).unwrap(), Answer::Gone);

        for (server, address) in [("10.2.0.2:80", "10.2.0.1/24"), ("[fd02::2]:80", "fd02::1/64")] {
            let pair = net.tcp(server);
            assert!(matches!(tracker.look(TCP, &tcp_tuples(&pair)[0]), Ok(Answer::Tracked(_))));
            net.run(&format!("ip addr del {address} dev right"));
            wait_for_end(&mut ends, TCP, tcp_tuples(&pair));
        }
        assert_eq!((ends.forged(), tracker.forged()), (0, 0));
    });
}

#[test]
#[ignore = "needs root"]
fn lost_ends_are_noticed() {
    with_bed(|bed| {
        let net = Net::new(bed, RULES);
        let mut ends = Ends::of(&net.router, 4096).unwrap();
        let _sockets: Vec<_> = (0..100).map(|i| net.udp(&format!("10.2.0.2:{}", 100 + i))).collect();
        let flush = Request::new(DELETE, wire::ACK, &[0; 4]);
        net.raw().ask(flush, |_| None::<()>).unwrap();
        assert_eq!(ends.destroyed(drop).unwrap(), Waiting::Lost);
        assert_eq!(ends.destroyed(drop).unwrap(), Waiting::Nothing);
    });
}

#[test]
#[ignore = "needs root"]
fn a_listener_keeps_no_other_namespace_alive() {
    with_bed(|bed| {
        let name = bed.namespace("short");
        sh(&format!("ip link add v0 type veth peer name v1 netns {name}"));
        let _ends = Ends::of(&File::open(format!("/run/netns/{name}")).unwrap(), 1 << 20).unwrap();
        sh(&format!("ip netns del {name}"));
        let end = Instant::now() + PATIENCE;
        while std::path::Path::new("/sys/class/net/v0").exists() || sh_succeeds("ip link show v0") {
            assert!(Instant::now() < end, "the namespace is still there");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

fn sh_succeeds(command: &str) -> bool {
    let command = format!("{command} >/dev/null 2>&1");
    std::process::Command::new("sh").args(["-c", &command]).status().unwrap().success()
}

#[test]
#[ignore = "needs root"]
fn zones_are_special() {
    with_bed(|bed| {
        let zones = "table inet zones { chain pre { type filter hook prerouting priority -300;
            iifname left udp dport 53 ct zone set 5; iifname left tcp dport 80 ct original zone set 5;
            iifname right udp sport 53 ct zone set 5; }
        }";
        let net = Net::new(bed, &format!("{RULES}\n{zones}"));
        let (_ends, mut tracker) = (net.ends(), net.tracker());
        let (left, _right) = net.udp("10.2.0.2:53");
        assert_eq!(tracker.look(UDP, &udp_tuple(&left)).unwrap(), Answer::Gone);
        let pair = net.tcp("10.2.0.2:80");
        let [original, reply] = tcp_tuples(&pair);
        assert_eq!(tracker.look(TCP, &original).unwrap(), Answer::Gone);
        let found = tracked(tracker.look(TCP, &reply).unwrap());
        assert_eq!((found.tuples, found.special), ([original, reply], Some(Special::Zone)));
    });
}

#[test]
#[ignore = "needs root"]
fn helpers_are_special() {
    with_bed(|bed| {
        let helper = "table inet help { ct helper ftp { type \"ftp\" protocol tcp; }
            chain pre { type filter hook prerouting priority 0; tcp dport 21 ct helper set \"ftp\"; }
        }";
        let net = Net::new(bed, &format!("{RULES}\n{helper}"));
        let (_ends, mut tracker) = (net.ends(), net.tracker());
        let pair = net.tcp("10.2.0.2:21");
        let found = tracked(tracker.look(TCP, &tcp_tuples(&pair)[0]).unwrap());
        assert_eq!(found.special, Some(Special::Helper));
    });
}

/// `cargo test --release --test netlink -- --ignored --nocapture conntrack::measure_costs`
#[test]
#[ignore = "a measurement"]
fn measure_costs() {
    const COUNT: u32 = 20_000;
    with_bed(|bed| {
        let net = Net::new(bed, RULES);
        let (_ends, mut tracker, mut raw) = (net.ends(), net.tracker(), net.raw());
        let tuple = |i: u32, protocol| Tuple {
            source: std::net::Ipv4Addr::from(0x0a01_0000 + i).into(),
            destination: [10, 2, 0, 2].into(),
            source_port: 1000,
            destination_port: u16::from(protocol),
        };
        for protocol in [TCP, UDP] {
            for i in 0..COUNT {
                let original = tuple(i, protocol);
                let reply = Tuple {
                    source: original.destination,
                    destination: original.source,
                    source_port: original.destination_port,
                    destination_port: original.source_port,
                };
                let info = nested(&[(NESTED | 1, &nested(&[(1, &[3])]))]);
                let mut create = request(NEW, CREATE, protocol, &original)
                    .with(NESTED | 2, &tuple_bytes(protocol, &reply))
                    .with(7, &1000_u32.to_be_bytes())
                    .with(3, &0xe_u32.to_be_bytes());
                if protocol == TCP {
                    create = create.with(NESTED | 4, &info);
                }
                raw.ask(create, |_| None::<()>).unwrap();
            }
        }
        let mut measure = |name: &str, task: &mut dyn FnMut(&mut Tracker)| {
            let best = (0..5)
                .map(|_| {
                    let started = Instant::now();
                    task(&mut tracker);
                    started.elapsed().as_secs_f64() * 1e6 / f64::from(COUNT)
                })
                .fold(f64::INFINITY, f64::min);
            println!("{name}: {best:.2} us each, best of 5 of {COUNT}");
        };
        for (name, protocol) in [("UDP", UDP), ("TCP", TCP)] {
            let all: Vec<_> = (0..COUNT).map(|i| tuple(i, protocol)).collect();
            measure(&format!("{name} look"), &mut |tracker| {
                for one in &all {
                    assert!(matches!(tracker.look(protocol, one), Ok(Answer::Tracked(_))));
                }
            });
            let refreshes: Vec<_> =
                all.iter().map(|tuple| Refresh { protocol, tuple: *tuple, timeout_s: 900 }).collect();
            measure(&format!("{name} refresh"), &mut |tracker| {
                assert!(tracker.refresh(&refreshes).unwrap().iter().all(|is| *is));
            });
            measure(&format!("{name} plain GET"), &mut |_| {
                for one in &all {
                    raw.ask(request(GET, 0, protocol, one), |m| Some(m.kind)).unwrap().unwrap();
                }
            });
            if protocol == TCP {
                measure("make_liberal", &mut |tracker| {
                    for one in &all {
                        assert!(matches!(tracker.make_liberal(one), Ok(Answer::Tracked(_))));
                    }
                });
            }
        }
    });
}
