//! A namespace with fast connections ends, and another one takes its name, MAC and IP addresses.

use crate::{
    bed::{Bed, addresses, be_router, ping, run},
    connections::{
        FAST, HOME, connect, connections, exchange, start, transfer, udp, until_fast, until_ruled,
    },
    daemon::{Daemon, Leftovers, eventually, eventually_true, router},
    firewall::{SERVER, nft},
};
use lab::namespace::Namespace;
use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

const DEVICES: [&str; 2] = ["in", "out"];
/// The smallest table. It has room for four connections; a round makes two.
const PAIRS: &str = "connections = 2\n";
const ROUNDS: u16 = 4;

/// The MAC addresses of the router's interfaces.
fn macs(bed: &Bed) -> [String; 2] {
    DEVICES.map(|device| {
        let line = run(&bed.red, &format!("ip -o link show {device}"));
        line.split_once("link/ether ").unwrap().1.split(' ').next().unwrap().to_owned()
    })
}

/// Makes a router with this name and these MAC addresses.
fn make(bed: &mut Bed, name: &str, macs: &[String; 2]) {
    bed.red = Namespace::create(name.into()).unwrap();
    // Without the rule that accepts new connections, it forwards nothing.
    nft(bed, &HOME.replace("iifname in accept", ""));
    for ((device, port), mac) in DEVICES.into_iter().zip(["p1", "p2"]).zip(macs) {
        bed.macvlan(&bed.red, device, port);
        // Two macvlans of a port cannot have one address. The kernel removes the devices of a namespace after its name.
        eventually("the address to be free", || {
            let set = bed.red.ip_batch(&format!("link set {device} address {mac}\n"));
            set.map_err(|error| format!("{error:#}"))
        });
    }
    be_router(&bed.red);
    addresses(&bed.red, 7, "in", "out");
}

/// A connection whose packets must not arrive, in either direction.
struct Ended {
    client: UdpSocket,
    server: UdpSocket,
    to: String,
}

impl Ended {
    fn assert_forwarded_by_nobody(&self, what: &str) {
        for _ in 0..20 {
            self.client.send_to(b"after the end", &self.to).unwrap();
            self.server.send_to(b"after the end", "10.7.2.1:4000").unwrap();
            for socket in [&self.client, &self.server] {
                socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
                let got = socket.recv_from(&mut [0; 64]);
                assert!(got.is_err(), "{what}: {got:?}");
            }
        }
    }
}

fn open_files(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

#[test]
#[ignore = "needs root"]
fn a_namespace_leaves_no_fast_connection_to_its_successor() {
    let mut bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let (name, macs) = (bed.red_name().to_owned(), macs(&bed));
    for (host, near, mac) in [(&bed.client, 1, &macs[0]), (&bed.server, 2, &macs[1])] {
        run(host, &format!("ip neigh replace 10.7.{near}.1 lladdr {mac} dev eth0 nud permanent"));
    }
    nft(&bed, HOME);
    let (mut daemon, _file) = start(&bed, &format!("{FAST}{PAIRS}"));
    let to = format!("{SERVER}:5000");
    let mut files = None;
    for round in 0..ROUNDS {
        until_ruled(&mut daemon, &bed);
        let (client, server) = (udp(&bed.client, "10.7.1.2:4000"), udp(&bed.server, "0.0.0.0:5000"));
        exchange(&client, &to, &server);
        let (mut tcp_client, mut tcp_server) = connect(&bed, &format!("{SERVER}:5001"));
        std::thread::sleep(Duration::from_secs(3));
        until_fast(&daemon, ":5000", || _ = exchange(&client, &to, &server));
        until_fast(&daemon, ":5001", || transfer(&mut tcp_client, &mut tcp_server, 1 << 18));
        // Commands hold descriptors for a moment. A leak would add some in each round.
        let first = *files.get_or_insert_with(|| open_files(&daemon));
        eventually("no more descriptors than in the first round", || match open_files(&daemon) {
            now if now <= first => Ok(()),
            now => Err(format!("{now}, and {first} before")),
        });

        let ended = Ended { client, server, to: to.clone() };
        let other = Namespace::create(format!("{}-other", bed.name)).unwrap();
        drop(std::mem::replace(&mut bed.red, other));
        if round % 2 == 0 {
            daemon.until("the router to be gone", |status| router(status, &name).is_null());
            // Linux removes the rules first, and forwards without them until it has removed the devices.
            eventually_true("the devices to be gone", || {
                let all = ["p1", "p2"].map(|port| run(&bed.the_box, &format!("bridge fdb show dev {port}")));
                macs.iter().all(|mac| !all.concat().contains(mac.as_str()))
            });
            ended.assert_forwarded_by_nobody("without a successor");
        }
        make(&mut bed, &name, &macs);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(1) {
            ended.assert_forwarded_by_nobody("by the successor");
        }
        until_ruled(&mut daemon, &bed);
        ended.assert_forwarded_by_nobody("by the fast path of the successor");
        let all = connections(&daemon, &["--state", "fast"]);
        assert!(all.is_empty(), "{all:#?}");
        ping(&bed.client, "10.8.2.2", 10);
        nft(&bed, "add rule inet filter forward iifname in accept");
    }
    daemon.stop();
}
