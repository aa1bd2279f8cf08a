//! Packets that Linux never forwards, so that elements before one that encrypts may pass them up
//! (`logic/src/elements/clear.rs`), and some that it forwards. Needs root: the test has a namespace of its
//! own.

mod common;

use common::{frame::fix_checksum, in_new_namespace, run, wire::Wire};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn udp(mac: [u8; 6], to: &str, hops: u8) -> Vec<u8> {
    let build = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 7, 7], mac);
    let mut frame = Vec::new();
    match to.parse().unwrap() {
        std::net::IpAddr::V4(to) => {
            build.ipv4([10, 0, 0, 9], to.octets(), hops).udp(7, 8).write(&mut frame, b"a mark").unwrap();
            fix_checksum(&mut frame[14..]);
        }
        std::net::IpAddr::V6(to) => {
            let from: std::net::Ipv6Addr = "2001:db8:a::9".parse().unwrap();
            build.ipv6(from.octets(), to.octets(), hops).udp(7, 8).write(&mut frame, b"a mark").unwrap();
        }
    }
    frame
}

/// Whether the frame comes out on the other side, before another one that is always forwarded.
fn is_forwarded(inside: &Wire, outside: &Wire, frame: &[u8]) -> bool {
    while outside.receive().is_some() {}
    inside.send(frame);
    inside.send(&udp(MAC, "10.1.0.8", 64));
    let end = Instant::now() + Duration::from_secs(3);
    let mut forwarded = false;
    while Instant::now() < end {
        match outside.receive() {
            Some(came) if came.ends_with(b"a mark") && came[30..34] == [10, 1, 0, 8] => return forwarded,
            Some(came) => forwarded |= came.ends_with(b"a mark"),
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("Linux did not forward the frame that it always forwards");
}

#[test]
#[ignore = "needs root"]
fn linux_never_forwards_packets_that_may_go_up_before_encryption() {
    in_new_namespace(|| {
        for (device, number) in [("a", 1), ("b", 2)] {
            run(&format!("ip link add v{device} type veth peer name {device}p"));
            run(&format!("ip link set v{device} address 02:00:00:00:00:0{number} up"));
            run(&format!("ip link set {device}p up"));
            run(&format!("ip address add 10.{}.0.1/24 dev v{device}", number - 1));
            run(&format!("ip -6 address add 2001:db8:{device}::1/64 dev v{device} nodad"));
        }
        for last in [8, 9] {
            run(&format!("ip neighbour add 10.1.0.{last} lladdr 02:00:00:00:09:0{last} dev vb"));
            run(&format!("ip neighbour add 2001:db8:b::{last} lladdr 02:00:00:00:09:0{last} dev vb"));
        }
        let settings = [
            "ipv4/ip_forward",
            "ipv6/conf/all/forwarding",
            "ipv4/conf/all/bc_forwarding",
            "ipv4/conf/va/bc_forwarding",
        ];
        for setting in settings {
            fs::write(format!("/proc/sys/net/{setting}"), "1").unwrap();
        }
        let (inside, outside) = (Wire::open("ap"), Wire::open("bp"));
        let group = [1, 0, 0x5e, 0, 0, 1];
        let cases = [
            ("unicast", udp(MAC, "10.1.0.9", 64), true),
            ("IPv6 unicast", udp(MAC, "2001:db8:b::9", 64), true),
            ("a broadcast of another network, to our MAC (bc_forwarding)", udp(MAC, "10.1.0.255", 64), true),
            ("such a broadcast, to the broadcast MAC", udp([0xff; 6], "10.1.0.255", 64), false),
            ("unicast to a group MAC", udp(group, "10.1.0.9", 64), false),
            ("unicast to the broadcast MAC", udp([0xff; 6], "10.1.0.9", 64), false),
            ("IPv6 unicast to a group MAC", udp([0x33, 0x33, 0, 0, 0, 1], "2001:db8:b::9", 64), false),
            ("limited broadcast", udp(MAC, "255.255.255.255", 64), false),
            ("OSPF", udp(MAC, "224.0.0.5", 64), false),
            ("OSPFv3", udp(MAC, "ff02::5", 64), false),
            ("for the machine", udp(MAC, "10.1.0.1", 64), false),
            ("TTL 1", udp(MAC, "10.1.0.9", 1), false),
            ("hop limit 1", udp(MAC, "2001:db8:b::9", 1), false),
        ];
        for (name, frame, expected) in cases {
            assert_eq!(is_forwarded(&inside, &outside, &frame), expected, "is it forwarded: {name}");
        }
    });
}
