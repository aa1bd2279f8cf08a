//! Fast connections while conntrack counts packets, gets other timeouts, or has no room.

use crate::{
    bed::{Bed, run},
    connections::{
        FAST, HOME, connect, connections, exchange, left_s, passed, start, transfer, udp, until_fast,
        until_ruled,
    },
    daemon::{Leftovers, eventually},
    firewall::{SERVER, nft},
};
use router::linux::netlink::{
    socket::{Answer, LARGEST_BATCH, Socket},
    wire::{self, Request},
};
use std::{
    io::{self, Read as _, Write as _},
    net::SocketAddr,
    time::{Duration, Instant},
};

/// Connections to this port of the server, as Linux tracks them.
fn tracked(bed: &Bed, protocol: &str, port: u16) -> String {
    run(&bed.red, &format!("conntrack -L -p {protocol} --orig-port-dst {port}"))
}

/// Sets a mark. If Linux forgets the connection and begins another in its place, that one has no mark.
fn mark(bed: &Bed, protocol: u8, source: SocketAddr, port: u16) {
    let SocketAddr::V4(source) = source else { panic!("it is not of IPv4") };
    let tuple = tuple(protocol, (source.ip().octets(), source.port()), ([10, 7, 2, 2], port));
    let request =
        Request::new(NEW, wire::ACK, &[2, 0, 0, 0]).with(NESTED | 1, &tuple).with(8, &7_u32.to_be_bytes());
    socket(bed).ask(request, |_| None::<()>).unwrap();
}

fn assert_marked(bed: &Bed, (protocol, port): (&str, u16)) {
    let all = tracked(bed, protocol, port);
    assert!(all.contains("mark=7"), "Linux has forgotten it: {all}");
}

/// The bytes of both directions that Linux has counted; empty if it does not count.
fn bytes(bed: &Bed, port: u16) -> Vec<u64> {
    let all = tracked(bed, "tcp", port);
    all.split_whitespace().filter_map(|word| word.strip_prefix("bytes=")?.parse().ok()).collect()
}

fn set(bed: &Bed, setting: &str, value: &str) {
    bed.red.sysctl(&[(&format!("net/netfilter/nf_conntrack_{setting}"), value)]).unwrap();
}

/// Linux counts packets of connections that begin while `nf_conntrack_acct` is 1, also after it is 0 again.
#[test]
#[ignore = "needs root"]
fn conntrack_counts_all_packets_of_the_connections_that_it_counts() {
    const BYTES: usize = 4 << 20;
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(&bed, HOME);
    let (mut daemon, _file) = start(&bed, FAST);
    until_ruled(&mut daemon, &bed);
    let open = |port: u16| connect(&bed, &format!("{SERVER}:{port}"));
    let counted = |port| bytes(&bed, port);
    let (mut client, mut server) = open(5000);
    until_fast(&daemon, ":5000", || transfer(&mut client, &mut server, 1 << 18));

    set(&bed, "acct", "1");
    let (mut client_1, mut server_1) = open(5001);
    let (mut client_2, mut server_2) = open(5002);
    transfer(&mut client_1, &mut server_1, BYTES);
    assert!(counted(5001).iter().all(|bytes| *bytes > BYTES as u64), "{:?}", counted(5001));
    assert_eq!(counted(5001).len(), 2);
    // Linux does not count a connection that began before.
    transfer(&mut client, &mut server, BYTES);
    assert_eq!(counted(5000), [0; 0]);

    set(&bed, "acct", "0");
    let (mut client_3, mut server_3) = open(5003);
    until_fast(&daemon, ":5003", || transfer(&mut client_3, &mut server_3, 1 << 18));
    transfer(&mut client_2, &mut server_2, BYTES);
    assert!(counted(5002).iter().all(|bytes| *bytes > BYTES as u64), "{:?}", counted(5002));
    assert_eq!(counted(5002).len(), 2);
    assert_eq!(counted(5003), [0; 0]);
    let linux = connections(&daemon, &["--state", "linux"]);
    for port in [":5001", ":5002"] {
        let is = |c: &&serde_json::Value| {
            [&c["source"], &c["destination"]].iter().any(|e| e.as_str().unwrap().ends_with(port))
        };
        let why = &linux.iter().find(is).unwrap()["why_not"]["text"];
        assert!(why.as_str().unwrap().contains("nf_conntrack_acct"), "{port}: {why}");
    }
    daemon.stop();
}

/// A packet that goes to Linux gives the connection a short timeout. Linux must not forget a connection in use.
#[test]
#[ignore = "needs root"]
fn a_used_connection_outlives_a_timeout_that_was_shortened() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(&bed, HOME);
    run(&bed.red, "ip link set out mtu 1400");
    let (mut daemon, _file) = start(&bed, FAST);
    until_ruled(&mut daemon, &bed);
    let (from, to) = (udp(&bed.client, "10.7.1.2:4000"), udp(&bed.server, "0.0.0.0:5000"));
    let address = format!("{SERVER}:5000");
    let (mut client, mut server) = connect(&bed, &format!("{SERVER}:5001"));
    let tcp_source = client.local_addr().unwrap();
    client.set_nodelay(true).unwrap();
    exchange(&from, &address, &to);
    std::thread::sleep(Duration::from_secs(3));
    let mut say = |bytes: &[u8]| {
        client.write_all(bytes).unwrap();
        server.read_exact(&mut vec![0; bytes.len()]).unwrap();
    };
    let mut both = || {
        exchange(&from, &address, &to);
        say(b"one");
    };
    for timeout in [10, 100] {
        for setting in ["udp_timeout_stream", "tcp_timeout_established"] {
            set(&bed, setting, &timeout.to_string());
        }
        for port in [":5000", ":5001"] {
            eventually("the timeout to be known", || {
                let fast = until_fast(&daemon, port, &mut both);
                let expires_s = fast["expires_s"].as_f64().unwrap();
                let is_new = (expires_s - f64::from(timeout)).abs() < 5.0;
                if is_new { Ok(()) } else { Err(format!("{fast:#}")) }
            });
        }
    }
    let all = [("udp", 5000), ("tcp", 5001)];
    mark(&bed, UDP, from.local_addr().unwrap(), 5000);
    mark(&bed, TCP, tcp_source, 5001);
    set(&bed, "udp_timeout_stream", "3");
    set(&bed, "tcp_timeout_established", "3");
    // Fragments go to Linux, and so do segments that are longer than the MTU.
    from.send_to(&[7; 4000], &address).unwrap();
    assert_eq!(to.recv_from(&mut [0; 5000]).unwrap().0, 4000);
    say(&[7; 4000]);
    for _ in 0..100 {
        exchange(&from, &address, &to);
        say(b"one");
        all.iter().for_each(|one| assert_marked(&bed, *one));
        std::thread::sleep(Duration::from_millis(60));
    }
    let fast = connections(&daemon, &["--state", "fast"]);
    assert!(fast.is_empty(), "a row outlives the timeout: {fast:#?}");
    daemon.stop();
}

/// Linux has not seen the last packets, but must count the timeout from them, as without Millrace.
#[test]
#[ignore = "needs root"]
fn linux_counts_from_the_last_packet_when_connections_stop_being_fast() {
    for event in ["another timeout", "the daemon ends"] {
        let bed = Bed::new();
        let _leftovers = Leftovers(bed.name.clone());
        nft(&bed, HOME);
        // The daemon renews this timeout only every 50 s.
        set(&bed, "udp_timeout_stream", "200");
        let (mut daemon, _file) = start(&bed, "");
        until_ruled(&mut daemon, &bed);
        let (from, to) = (udp(&bed.client, "10.7.1.2:4000"), udp(&bed.server, "0.0.0.0:5000"));
        let address = format!("{SERVER}:5000");
        exchange(&from, &address, &to);
        std::thread::sleep(Duration::from_secs(3));
        until_fast(&daemon, ":5000", || _ = exchange(&from, &address, &to));
        for _ in 0..100 {
            exchange(&from, &address, &to);
            std::thread::sleep(Duration::from_millis(100));
        }
        let last = Instant::now();
        let daemon = match event {
            "another timeout" => {
                set(&bed, "udp_timeout_stream", "190");
                Some(daemon)
            }
            _ => {
                daemon.leave();
                None
            }
        };
        eventually(event, || {
            let (left, quiet) = (left_s(&bed, "udp"), last.elapsed().as_secs() as u32);
            let counts = (197..=201).contains(&(left + quiet));
            if counts { Ok(()) } else { Err(format!("{left} s are left after {quiet} s")) }
        });
        drop(daemon);
    }
}

const NEW: u16 = 0x100;
const DELETE: u16 = 0x102;
const NESTED: u16 = 0x8000;
const UDP: u8 = 17;
const TCP: u8 = 6;

fn socket(bed: &Bed) -> Socket {
    bed.red.enter(|| Ok(Socket::requests(libc::NETLINK_NETFILTER)?)).unwrap()
}

fn nested(parts: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    parts.iter().for_each(|(kind, value)| wire::push(&mut bytes, *kind, value));
    bytes
}

/// `CTA_TUPLE_*` of IPv4.
fn tuple(protocol: u8, from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
    let ports = [from.1, to.1].map(u16::to_be_bytes);
    let ports = nested(&[(1, &[protocol]), (2, &ports[0]), (3, &ports[1])]);
    nested(&[(NESTED | 1, &nested(&[(1, &from.0), (2, &to.0)])), (NESTED | 2, &ports)])
}

/// Creates or deletes UDP connections from 10.100.0.0/14, until conntrack has no room. New ones are assured, with a
/// timeout of an hour. Returns the number of connections that were created or deleted.
fn change(socket: &mut Socket, kind: u16, numbers: &mut dyn Iterator<Item = u32>) -> io::Result<u32> {
    const CREATE: u16 = 0x400;
    /// Confirmed, assured, with an answer.
    const STATUS: u32 = 0xe;
    let one = |number: u32| {
        let (near, far) = (((0x0a64_0000 + number).to_be_bytes(), 9), ([10, 7, 2, 2], 9));
        let request = Request::new(kind, wire::ACK | if kind == NEW { CREATE } else { 0 }, &[2, 0, 0, 0])
            .with(NESTED | 1, &tuple(UDP, near, far));
        if kind != NEW {
            return request;
        }
        request
            .with(NESTED | 2, &tuple(UDP, far, near))
            .with(7, &3600_u32.to_be_bytes())
            .with(3, &STATUS.to_be_bytes())
    };
    let mut changed = 0;
    loop {
        let mut batch: Vec<_> = numbers.take(LARGEST_BATCH).map(one).collect();
        if batch.is_empty() {
            return Ok(changed);
        }
        let mut result = Ok(());
        socket.batch(&mut batch, |answer| match answer {
            Answer::End(_, Ok(())) => changed += 1,
            Answer::End(_, Err(error)) => result = Err(error),
            Answer::Echo(_) => (),
        })?;
        match result {
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => return Ok(changed),
            other => other?,
        }
    }
}

/// All namespaces have the same limit, but each counts only its own connections. So this test fills one namespace.
#[test]
#[ignore = "needs root"]
fn fast_connections_go_on_while_conntrack_has_no_room_for_new_ones() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(&bed, HOME);
    set(&bed, "udp_timeout_stream", "8");
    let (mut daemon, _file) = start(&bed, FAST);
    until_ruled(&mut daemon, &bed);
    let (from, to) = (udp(&bed.client, "10.7.1.2:4000"), udp(&bed.server, "0.0.0.0:5000"));
    let address = format!("{SERVER}:5000");
    exchange(&from, &address, &to);
    let (mut client, mut server) = connect(&bed, &format!("{SERVER}:5001"));
    let tcp_source = client.local_addr().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    until_fast(&daemon, ":5000", || _ = exchange(&from, &address, &to));
    until_fast(&daemon, ":5001", || transfer(&mut client, &mut server, 1 << 18));

    let mut socket = socket(&bed);
    const PART: u32 = 10_000;
    let (mut filled, mut numbers) = (0, 0..);
    loop {
        let more = change(&mut socket, NEW, &mut numbers.by_ref().take(PART as usize)).unwrap();
        filled += more;
        // Filling may take longer than Linux keeps this connection without packets.
        exchange(&from, &address, &to);
        if more < PART {
            break;
        }
    }
    let most: u32 = run(&bed.red, "cat /proc/sys/net/netfilter/nf_conntrack_max").trim().parse().unwrap();
    assert!(filled > most * 9 / 10, "{filled} of {most}");

    // Linux has no room for this connection.
    let late = udp(&bed.client, "10.7.1.2:4001");
    for _ in 0..20 {
        late.send_to(b"ask", &address).unwrap();
    }
    let all = [("udp", 5000), ("tcp", 5001)];
    mark(&bed, UDP, from.local_addr().unwrap(), 5000);
    mark(&bed, TCP, tcp_source, 5001);
    let by_linux = passed(&daemon, &bed);
    // Longer than Linux keeps a connection whose packets it does not see.
    for _ in 0..150 {
        exchange(&from, &address, &to);
        transfer(&mut client, &mut server, 1 << 16);
        std::thread::sleep(Duration::from_millis(100));
    }
    all.iter().for_each(|one| assert_marked(&bed, *one));
    assert!(passed(&daemon, &bed) < by_linux + 50, "Linux forwards them");

    // After a change of rules they become fast again, although conntrack is full.
    nft(&bed, "add rule inet filter forward udp dport 100 accept");
    until_fast(&daemon, ":5000", || _ = exchange(&from, &address, &to));
    until_fast(&daemon, ":5001", || transfer(&mut client, &mut server, 1 << 18));

    let removed = change(&mut socket, DELETE, &mut (0..100)).unwrap();
    assert_eq!(removed, 100);
    exchange(&late, &address, &to);
    std::thread::sleep(Duration::from_secs(3));
    until_fast(&daemon, ":4001", || _ = exchange(&late, &address, &to));
    daemon.stop();
}
