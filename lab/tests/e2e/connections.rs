//! Connections that bypass the rules of a firewall and NAT.

use crate::{
    bed::{Bed, ping, run},
    daemon::{Daemon, Leftovers, eventually, eventually_true, router},
    firewall::{SERVER, SERVER6, nft},
};
use serde_json::Value;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

/// A home router: clients may begin connections, and are masqueraded. The server may begin some to a forwarded port.
pub const HOME: &str = "
    table inet filter {
        chain forward {
            type filter hook forward priority 0; policy drop;
            ct state established,related accept
            ct status dnat accept
            iifname in accept
        }
    }
    table inet nat {
        chain pre { type nat hook prerouting priority -100; iifname out udp dport 7000 dnat ip to 10.7.1.2:7001; }
        chain post { type nat hook postrouting priority 100; oifname out masquerade; }
    }";
/// Accepts TCP, too.
pub const FAST: &str = "[firewall]\nestablished = \"fast\"\n";
const PATIENCE: Duration = Duration::from_secs(10);

pub fn start(bed: &Bed, config: &str) -> (Daemon, tempfile::NamedTempFile) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(format!("ports = [\"p1\", \"p2\"]\n{config}").as_bytes()).unwrap();
    let daemon = Daemon::start(&bed.the_box, &bed.name, &["--config", file.path().to_str().unwrap()]);
    (daemon, file)
}

pub fn until_ruled(daemon: &mut Daemon, bed: &Bed) {
    daemon.until("rules to be read", |status| {
        let red = router(status, bed.red_name());
        red["ruled"]["ipv4"] == true && red["why_not"]["ipv4"] == serde_json::json!([])
    });
    // Once the thread of connections has answered, it knows the rules and listens to conntrack. It leaves connections that
    // began earlier to Linux.
    connections(daemon, &[]);
}

pub fn udp(namespace: &lab::namespace::Namespace, address: &str) -> UdpSocket {
    let socket = namespace.enter(|| Ok(UdpSocket::bind(address)?)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends a packet there, and an answer back. Returns the sender that the other end sees.
pub fn exchange(from: &UdpSocket, to: &str, other: &UdpSocket) -> SocketAddr {
    let mut buffer = [0; 64];
    from.send_to(b"ask", to).unwrap();
    let (bytes, sender) = other.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"ask");
    other.send_to(b"answer", sender).unwrap();
    let (bytes, answered) = from.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..bytes], b"answer");
    assert_eq!(answered, to.parse().unwrap());
    sender
}

pub fn connections(daemon: &Daemon, words: &[&str]) -> Vec<Value> {
    daemon.ask(&[&["connections"], words].concat()).as_array().unwrap().clone()
}

/// Repeats `exchange` until a connection of this address, or `:PORT`, is fast, and returns it.
pub fn until_fast(daemon: &Daemon, address: &str, mut exchange: impl FnMut()) -> Value {
    eventually(&format!("a fast connection of {address}"), || {
        (0..20).for_each(|_| exchange());
        let all = match address.starts_with(':') {
            true => connections(daemon, &[]),
            false => connections(daemon, &["--address", address]),
        };
        let has = |c: &&Value| {
            [&c["source"], &c["destination"]].iter().any(|e| e.as_str().unwrap().ends_with(address))
        };
        let fast =
            all.iter().find(|c| c["state"] == "fast" && (!address.starts_with(':') || has(c))).cloned();
        fast.ok_or_else(|| format!("{all:#?}\n{}", daemon.log()))
    })
}

fn count(connection: &Value) -> [u64; 2] {
    [&connection["packets"], &connection["reply_packets"]].map(|n| n.as_u64().unwrap())
}

pub fn passed(daemon: &Daemon, bed: &Bed) -> u64 {
    daemon.router(bed.red_name())["packets"]["passed"].as_u64().unwrap()
}

#[test]
#[ignore = "needs root"]
fn udp_behind_nat_becomes_fast_and_linux_sees_it_alive() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(&bed, HOME);
    // Linux forgets a connection of two directions soon.
    bed.red.sysctl(&[("net/netfilter/nf_conntrack_udp_timeout_stream", "6")]).unwrap();
    let (mut daemon, _file) = start(&bed, "");
    until_ruled(&mut daemon, &bed);
    let (client, server) = (udp(&bed.client, "10.7.1.2:4000"), udp(&bed.server, "0.0.0.0:5000"));
    let to = format!("{SERVER}:5000");
    let seen = exchange(&client, &to, &server);
    assert_eq!(seen.ip().to_string(), "10.7.2.1");
    std::thread::sleep(Duration::from_secs(3));
    let fast = until_fast(&daemon, "10.7.1.2", || assert_eq!(exchange(&client, &to, &server), seen));
    assert_eq!(fast["router"], bed.red_name());
    assert_eq!(fast["protocol"], "udp");

    // Both directions, packet by packet.
    let before = (count(&fast), passed(&daemon, &bed));
    (0..100).for_each(|_| assert_eq!(exchange(&client, &to, &server), seen));
    let after = &connections(&daemon, &["--address", "10.7.1.2", "--state", "fast"])[0];
    assert_eq!(count(after), before.0.map(|n| n + 100), "{after}");
    assert_eq!(passed(&daemon, &bed), before.1, "Linux has forwarded some");

    // Linux keeps it as long as it is used, far longer than its timeout, and then forgets it.
    for _ in 0..100 {
        assert_eq!(exchange(&client, &to, &server), seen);
        std::thread::sleep(Duration::from_millis(100));
    }
    let tracked = || run(&bed.red, "conntrack -L -p udp --orig-src 10.7.1.2");
    assert!(tracked().contains("[ASSURED]"), "{}", tracked());
    eventually_true("Linux to forget it", || !tracked().contains("10.7.1.2"));
    eventually_true("Millrace to forget it", || {
        connections(&daemon, &["--address", "10.7.1.2", "--state", "fast"]).is_empty()
    });

    // From outside, to a forwarded port.
    let (outside, inside) = (udp(&bed.server, "10.7.2.2:6000"), udp(&bed.client, "10.7.1.2:7001"));
    let to = "10.7.2.1:7000";
    assert_eq!(exchange(&outside, to, &inside).to_string(), "10.7.2.2:6000");
    std::thread::sleep(Duration::from_secs(3));
    let fast = until_fast(&daemon, "10.7.2.2", || _ = exchange(&outside, to, &inside));
    let before = (count(&fast), passed(&daemon, &bed));
    (0..50).for_each(|_| _ = exchange(&outside, to, &inside));
    let after = &connections(&daemon, &["--address", "10.7.2.2", "--state", "fast"])[0];
    assert_eq!(count(after), before.0.map(|n| n + 50), "{after}");
    assert_eq!(passed(&daemon, &bed), before.1, "Linux has forwarded some");

    // The first packet after a new rule obeys it.
    daemon.pause(true);
    nft(&bed, "insert rule inet filter forward udp dport 7001 drop");
    outside.send_to(b"ask", to).unwrap();
    inside.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let got = inside.recv_from(&mut [0; 64]);
    daemon.pause(false);
    assert!(got.is_err(), "{got:?}");
    eventually_true("no connection to be fast", || {
        connections(&daemon, &["--address", "10.7.2.2", "--state", "fast"]).is_empty()
    });
    daemon.stop();
}

/// Neither side sees an address of the other, so packets of both directions arrive with an address of the router.
#[test]
#[ignore = "needs root"]
fn a_forwarded_port_behind_a_masquerade_is_fast_both_ways() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(&bed, HOME);
    nft(&bed, "add rule inet nat post oifname in masquerade");
    nft(&bed, "add rule inet nat pre iifname in udp dport 7000 dnat ip to 10.7.1.2:7001");
    bed.red
        .sysctl(&[("net/ipv4/conf/all/send_redirects", "0"), ("net/ipv4/conf/in/send_redirects", "0")])
        .unwrap();
    let (mut daemon, _file) = start(&bed, "");
    until_ruled(&mut daemon, &bed);
    let inside = udp(&bed.client, "10.7.1.2:7001");
    let to = "10.7.2.1:7000";
    // From outside, and from the inside by the outside address (hairpin NAT).
    for (namespace, address, port) in [(&bed.server, "10.7.2.2", ":6000"), (&bed.client, "10.7.1.2", ":6001")]
    {
        let from = udp(namespace, &format!("{address}{port}"));
        assert_eq!(exchange(&from, to, &inside).to_string(), format!("10.7.1.1{port}"));
        std::thread::sleep(Duration::from_secs(3));
        // NAT keeps the port, so both directions have it.
        let fast = || until_fast(&daemon, port, || _ = exchange(&from, to, &inside));
        fast();
        let before = (count(&fast()), passed(&daemon, &bed));
        (0..50).for_each(|_| _ = exchange(&from, to, &inside));
        // This makes 20 more exchanges.
        assert_eq!(count(&fast()), before.0.map(|n| n + 70), "{address}");
        assert_eq!(passed(&daemon, &bed), before.1, "{address}: Linux has forwarded some");
    }

    // A connection to the router itself stays with Linux, and is not listed.
    let (from, own) = (udp(&bed.server, "10.7.2.2:6002"), udp(&bed.red, "10.7.2.1:6003"));
    (0..100).for_each(|_| _ = exchange(&from, "10.7.2.1:6003", &own));
    let all = connections(&daemon, &[]);
    assert!(!all.iter().any(|c| c.to_string().contains(":6003")), "{all:#?}");
    daemon.stop();
}

/// Sends so many bytes both ways at once, and compares them.
pub fn transfer(client: &mut TcpStream, server: &mut TcpStream, bytes: usize) {
    let send = |mut stream: TcpStream, seed: u8| {
        std::thread::spawn(move || {
            let chunk: Vec<u8> = (0..1 << 16).map(|i: u32| (i % 251) as u8 ^ seed).collect();
            for _ in 0..bytes / chunk.len() {
                stream.write_all(&chunk).unwrap();
            }
        })
    };
    let receive = |stream: &mut TcpStream, seed: u8| {
        let mut chunk = vec![0; 1 << 16];
        for _ in 0..bytes / chunk.len() {
            stream.read_exact(&mut chunk).unwrap();
            assert!(chunk.iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8 ^ seed));
        }
    };
    let senders = [send(client.try_clone().unwrap(), 1), send(server.try_clone().unwrap(), 2)];
    std::thread::scope(|scope| {
        scope.spawn(|| receive(server, 1));
        receive(client, 2);
    });
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

pub fn connect(bed: &Bed, address: &str) -> (TcpStream, TcpStream) {
    let listener = bed.server.enter(|| Ok(TcpListener::bind(address)?)).unwrap();
    let client = bed.client.enter(|| Ok(TcpStream::connect(address)?)).unwrap();
    let server = listener.accept().unwrap().0;
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (client, server)
}

/// The state of the only connection of TCP that Linux tracks.
pub fn tcp_state(bed: &Bed) -> String {
    let all = run(&bed.red, "conntrack -L -p tcp");
    all.split_whitespace().nth(3).unwrap_or_default().to_owned()
}

#[test]
#[ignore = "needs root"]
fn tcp_behind_nat_is_whole_and_ends_as_linux_ends_it() {
    for (version, address) in [("IPv4", format!("{SERVER}:5000")), ("IPv6", format!("[{SERVER6}]:5000"))] {
        let bed = Bed::new();
        let _leftovers = Leftovers(bed.name.clone());
        nft(&bed, HOME);
        let (mut daemon, _file) = start(&bed, FAST);
        until_ruled(&mut daemon, &bed);
        let (mut client, mut server) = connect(&bed, &address);
        let peer = server.peer_addr().unwrap().ip().to_string();
        assert!(["10.7.2.1", "fd07:2::1"].contains(&peer.as_str()), "{version}: {peer}");
        let fast = until_fast(&daemon, &client.local_addr().unwrap().ip().to_string(), || {
            transfer(&mut client, &mut server, 1 << 18);
        });
        let before = (count(&fast), passed(&daemon, &bed));
        transfer(&mut client, &mut server, 8 << 20);
        let all = connections(&daemon, &["--state", "fast"]);
        assert_eq!(all.len(), 1, "{version}: {all:?}");
        assert!(count(&all[0]).iter().zip(before.0).all(|(after, before)| after - before > 500), "{all:?}");
        assert!(passed(&daemon, &bed) - before.1 < 20, "{version}: Linux has forwarded some");
        assert_eq!(tcp_state(&bed), "ESTABLISHED", "{version}");

        // A change of rules gives it back to Linux in the middle, and to Millrace again.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..5 {
                    std::thread::sleep(Duration::from_millis(100));
                    nft(&bed, &format!("add rule inet filter forward udp dport {} accept", 100 + n));
                }
            });
            transfer(&mut client, &mut server, 16 << 20);
        });
        until_fast(&daemon, &client.local_addr().unwrap().ip().to_string(), || {
            transfer(&mut client, &mut server, 1 << 18);
        });

        drop(client);
        assert_eq!(server.read(&mut [0; 8]).unwrap(), 0, "{version}: the end arrives");
        drop(server);
        eventually_true("Linux to see the end", || tcp_state(&bed) == "TIME_WAIT");
        eventually("Millrace to see the end", || {
            let fast = connections(&daemon, &["--state", "fast"]);
            if fast.is_empty() { Ok(()) } else { Err(format!("{fast:#?}")) }
        });
        daemon.stop();
    }
}

#[test]
#[ignore = "needs root"]
fn a_connection_says_why_it_stays_with_linux() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(&bed, HOME);
    let (mut daemon, _file) = start(&bed, "");
    until_ruled(&mut daemon, &bed);
    ping(&bed.client, SERVER, 1);
    let (mut client, mut server) = connect(&bed, &format!("{SERVER}:5000"));
    let why = |daemon: &Daemon, wanted: &str, exchange: &mut dyn FnMut()| {
        eventually(&format!("a connection to say {wanted}"), || {
            exchange();
            let all = connections(daemon, &["--router", bed.red_name(), "--state", "linux"]);
            let has = |c: &Value| c["why_not"]["text"].as_str().unwrap().contains(wanted);
            if all.iter().any(has) { Ok(()) } else { Err(format!("{all:#?}")) }
        });
    };
    why(&daemon, "TCP needs consent", &mut || transfer(&mut client, &mut server, 1 << 18));
    // A rule that looks at each packet of a connection
    nft(&bed, "insert rule inet filter forward limit rate 1000000/second accept");
    let (from, to) = (udp(&bed.client, "10.7.1.2:4000"), udp(&bed.server, "0.0.0.0:5000"));
    let mut exchange = || (0..10).for_each(|_| _ = exchange(&from, &format!("{SERVER}:5000"), &to));
    why(&daemon, "of nftables chain inet filter forward may apply \"limit\"", &mut exchange);
    assert!(connections(&daemon, &["--state", "fast"]).is_empty());
    let text = String::from_utf8(daemon.millrace(&["connections"]).stdout).unwrap();
    assert!(text.contains(", with Linux:\n") && text.contains("10.7.1.2:4000"), "{text}");
    daemon.stop();
}

/// The number of an interface that is gone is given to another one. A row must not lead there.
#[test]
#[ignore = "needs root"]
fn a_connection_does_not_leave_by_an_interface_that_got_the_number_of_another() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(
        &bed,
        "table inet filter {
            chain forward {
                type filter hook forward priority 0; policy drop;
                oifname later drop
                ct state established,related accept
                iifname in accept
            }
        }",
    );
    let (mut daemon, _file) = start(&bed, "");
    until_ruled(&mut daemon, &bed);
    let (client, server) = (udp(&bed.client, "10.7.1.2:4000"), udp(&bed.server, "0.0.0.0:5000"));
    let to = format!("{SERVER}:5000");
    exchange(&client, &to, &server);
    std::thread::sleep(Duration::from_secs(3));
    until_fast(&daemon, "10.7.1.2", || _ = exchange(&client, &to, &server));
    let number = |device: &str| {
        let all = daemon.ask(&["interfaces"]);
        let found =
            all.as_array().unwrap().iter().find(|i| i["interface"] == device).map(|i| i["id"].clone());
        found.and_then(|id| id.as_u64())
    };
    let before = number("out");
    run(&bed.red, "ip link set out address 02:11:22:33:44:55");
    // Other devices come while the number rests.
    for n in 0..20 {
        run(&bed.red, &format!("ip link add dummy{n} type veth peer name other{n}"));
        std::thread::sleep(Duration::from_millis(50));
    }
    bed.macvlan(&bed.red, "later", "p2");
    bed.red.sysctl(&[("net/ipv4/conf/later/rp_filter", "0")]).unwrap();
    bed.red
        .ip_batch("link set later up\naddr add 10.7.9.1/24 dev later\nroute add 10.7.2.2/32 dev later\n")
        .unwrap();
    run(&bed.server, "ip addr add 10.7.9.2/24 dev eth0");
    eventually_true("the new interface to have the number", || number("later") == before && before.is_some());
    ping(&bed.red, "10.7.9.2", 1);
    server.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    for _ in 0..20 {
        client.send_to(b"ask", &to).unwrap();
        let got = server.recv_from(&mut [0; 64]);
        assert!(got.is_err(), "a packet left by the interface that rules forbid: {got:?}");
    }
    daemon.stop();
}

/// The seconds until Linux forgets the only connection of this protocol.
pub fn left_s(bed: &Bed, protocol: &str) -> u32 {
    let all = run(&bed.red, &format!("conntrack -L -p {protocol}"));
    all.split_whitespace().nth(2).and_then(|word| word.parse().ok()).unwrap_or_default()
}

#[test]
#[ignore = "needs root"]
fn linux_forgets_connections_when_it_would_without_millrace() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(&bed, HOME);
    bed.red
        .sysctl(&[
            ("net/netfilter/nf_conntrack_udp_timeout_stream", "100"),
            ("net/netfilter/nf_conntrack_tcp_timeout_unacknowledged", "10"),
        ])
        .unwrap();
    run(&bed.red, "ip link set out mtu 1400");
    let (mut daemon, _file) = start(&bed, FAST);
    until_ruled(&mut daemon, &bed);
    let (from, to) = (udp(&bed.client, "10.7.1.2:4000"), udp(&bed.server, "0.0.0.0:5000"));
    let address = format!("{SERVER}:5000");
    exchange(&from, &address, &to);
    std::thread::sleep(Duration::from_secs(3));
    until_fast(&daemon, "10.7.1.2", || _ = exchange(&from, &address, &to));
    // It is used for ten seconds more, and then quiet.
    for _ in 0..100 {
        exchange(&from, &address, &to);
        std::thread::sleep(Duration::from_millis(100));
    }
    let last = std::time::Instant::now();
    eventually("Linux to count from the last packet", || {
        let (left, quiet) = (left_s(&bed, "udp"), last.elapsed().as_secs() as u32);
        let counts = quiet >= 4 && (98..=101).contains(&(left + quiet));
        if counts { Ok(()) } else { Err(format!("{left} s are left after {quiet} s")) }
    });
    drop((from, to));

    // A segment that is too long for the way goes to Linux, which waits only 10 s for its acknowledgement.
    let (mut client, mut server) = connect(&bed, &format!("{SERVER}:5001"));
    client.set_nodelay(true).unwrap();
    let mut say = |bytes: &[u8]| {
        client.write_all(bytes).unwrap();
        server.read_exact(&mut vec![0; bytes.len()]).unwrap();
    };
    until_fast(&daemon, ":5001", || say(b"one"));
    say(&[7; 4000]);
    for _ in 0..150 {
        say(b"one");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(left_s(&bed, "tcp") > 1000, "Linux forgets a connection that is used");

    // The other end is gone. Linux waits for the acknowledgement as long as it would without Millrace.
    run(&bed.server, "nft add table inet t");
    run(&bed.server, "nft add chain inet t c { type filter hook prerouting priority -300; policy drop; }");
    client.write_all(b"anybody?").unwrap();
    eventually_true("Linux to forget the connection soon", || left_s(&bed, "tcp") <= 10);
    daemon.stop();
}
