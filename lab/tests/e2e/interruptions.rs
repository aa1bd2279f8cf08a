//! Fast connections while the daemon is silent, killed or stopped, or has missed reports.

use crate::{
    bed::{Bed, run},
    connections::{
        FAST, HOME, connect, connections, exchange, start, tcp_state, transfer, udp, until_fast, until_ruled,
    },
    daemon::{Leftovers, eventually_true},
    firewall::{SERVER, nft},
};
use lab::namespace::Namespace;
use std::{
    io::Read,
    net::{Ipv4Addr, TcpStream},
    sync::atomic::{
        AtomicBool, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};

/// Longer than rows are valid without the daemon.
const SILENCE: Duration = Duration::from_millis(3500);

/// Sends bytes both ways and compares them, until `events` is over. It gets a function that waits until more has arrived.
fn stream_during<T>(
    client: &mut TcpStream,
    server: &mut TcpStream,
    events: impl FnOnce(&dyn Fn(&str)) -> T,
) -> T {
    let (rounds, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                transfer(client, server, 1 << 18);
                rounds.fetch_add(1, Relaxed);
            }
        });
        // The stream must end if `events` panics.
        let over = Over(&is_over);
        let result = events(&|what| {
            let before = rounds.load(Relaxed);
            eventually_true(what, || rounds.load(Relaxed) >= before + 3);
        });
        drop(over);
        result
    })
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
#[ignore = "needs root"]
fn a_stream_goes_on_whatever_happens_to_the_daemon() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(&bed, HOME);
    let (mut daemon, mut _file) = start(&bed, FAST);
    until_ruled(&mut daemon, &bed);
    let (mut client, mut server) = connect(&bed, &format!("{SERVER}:5000"));
    until_fast(&daemon, "10.7.1.2", || transfer(&mut client, &mut server, 1 << 18));
    for event in ["silent", "killed", "stopped"] {
        (daemon, _file) = stream_during(&mut client, &mut server, |goes_on| match event {
            "silent" => {
                daemon.pause(true);
                std::thread::sleep(SILENCE);
                goes_on("the stream to go on by Linux");
                daemon.pause(false);
                goes_on("the stream to go on with the daemon");
                (daemon, _file)
            }
            _ => {
                if event == "killed" {
                    daemon.kill()
                } else {
                    daemon.stop()
                }
                goes_on("the stream to go on at once");
                std::thread::sleep(SILENCE);
                goes_on("the stream to go on by Linux");
                let another = start(&bed, FAST);
                goes_on("the stream to go on with another daemon");
                another
            }
        });
        until_ruled(&mut daemon, &bed);
        until_fast(&daemon, "10.7.1.2", || transfer(&mut client, &mut server, 1 << 18));
    }
    drop(client);
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0, "the end arrives");
    drop(server);
    eventually_true("Linux to see the end", || tcp_state(&bed) == "TIME_WAIT");
    daemon.stop();
}

/// The retransmission timeouts in this namespace so far. A stream that stalls adds to them.
fn stalls(namespace: &Namespace) -> u64 {
    let text = namespace.read("/proc/net/netstat").unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut columns = names.split_whitespace().zip(values.split_whitespace());
    columns.find(|(name, _)| *name == "TCPTimeouts").unwrap().1.parse().unwrap()
}

/// Each daemon begins as soon as the one before has ended, with a table of connections of another size.
#[test]
#[ignore = "needs root"]
fn a_stream_goes_on_while_daemons_and_tables_are_replaced() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(&bed, HOME);
    let config = |most: u32| format!("{FAST}connections = {most}\n[limits]\nroutes_per_namespace = 262144\n");
    let (mut daemon, mut _file) = start(&bed, &config(1000));
    until_ruled(&mut daemon, &bed);
    let (mut client, mut server) = connect(&bed, &format!("{SERVER}:5000"));
    let before = [&bed.client, &bed.server].map(stalls);
    for event in ["upgraded", "killed", "larger tables", "upgraded"] {
        until_fast(&daemon, "10.7.1.2", || transfer(&mut client, &mut server, 1 << 18));
        (daemon, _file) = stream_during(&mut client, &mut server, |goes_on| {
            if event == "larger tables" {
                let generation = daemon.ask(&["status"])["generation"].clone();
                let routes = (0..100_000).map(|n| Ipv4Addr::from(0x0b00_0080 + (n << 8)));
                let lines = routes.map(|to| format!("route add {to}/25 via 10.7.2.2\n")).collect::<String>();
                bed.red.ip_batch(&lines).unwrap();
                // A busy daemon may not answer in time.
                daemon.until("larger tables", |status| status["generation"] != generation);
                goes_on("the stream to go on with larger tables");
                return (daemon, _file);
            }
            if event == "killed" {
                daemon.kill()
            } else {
                daemon.leave()
            }
            let another = start(&bed, &config(if event == "killed" { 1000 } else { 100_000 }));
            goes_on("the stream to go on with another daemon");
            another
        });
        until_ruled(&mut daemon, &bed);
    }
    until_fast(&daemon, "10.7.1.2", || transfer(&mut client, &mut server, 1 << 18));
    assert_eq!([&bed.client, &bed.server].map(stalls), before, "the stream has stalled");
    drop(client);
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 0, "the end arrives");
    drop(server);
    eventually_true("Linux to see the end", || tcp_state(&bed) == "TIME_WAIT");
    daemon.stop();
}

/// The daemon misses the end of a connection. Another one takes the same port of NAT.
#[test]
#[ignore = "needs root"]
fn a_missed_end_leads_no_packet_to_the_wrong_host() {
    const MANY: u16 = 6000;
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(&bed, HOME);
    bed.client.ip_batch("addr add 10.7.1.3/24 dev eth0\n").unwrap();
    let (mut daemon, _file) = start(&bed, "");
    until_ruled(&mut daemon, &bed);
    let [old, new] = ["10.7.1.2:4000", "10.7.1.3:4000"].map(|address| udp(&bed.client, address));
    let server = udp(&bed.server, "0.0.0.0:5000");
    let to = format!("{SERVER}:5000");
    let seen = exchange(&old, &to, &server);
    std::thread::sleep(Duration::from_secs(3));
    until_fast(&daemon, "10.7.1.2", || _ = exchange(&old, &to, &server));
    // Connections whose ends fill the daemon's buffer.
    for n in 0..MANY {
        udp(&bed.client, "10.7.1.2:0").send_to(b"once", format!("{SERVER}:{}", 20_000 + n)).unwrap();
    }
    daemon.pause(true);
    run(&bed.red, "conntrack -F");
    std::thread::sleep(SILENCE);
    assert_eq!(exchange(&new, &to, &server), seen, "the same port of NAT");
    old.set_nonblocking(true).unwrap();
    daemon.pause(false);
    for _ in 0..2000 {
        exchange(&new, &to, &server);
        let wrong = old.recv_from(&mut [0; 64]);
        assert!(wrong.is_err(), "an answer went to the old host");
    }
    let fast = connections(&daemon, &["--address", "10.7.1.2", "--state", "fast"]);
    assert!(fast.is_empty(), "{fast:#?}");
    daemon.stop();
}
