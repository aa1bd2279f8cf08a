//! VXLAN with Linux's own vxlan device as the other end. Linux takes out and delivers the frames that the
//! elements send, and the elements take out those that Linux sends, byte for byte, over IPv4 and IPv6. Needs
//! root: a namespace of its own.

mod common;

use common::{in_new_namespace, run, wire::Wire};
use logic::{
    elements::{Batch, Chain, Check, Element, Forward, Now, Verdict, Vxlan, VxlanDecap, VxlanEncap},
    esp::Ends,
    tables::{
        Ingress,
        encoding::{IF_IPV4, IF_IPV6},
    },
};
use std::{
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

/// Addresses of the two ends, ours first.
const ENDS: [[&str; 2]; 2] = [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]];
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const ROOM: usize = 256;

/// Runs a chain over one frame.
fn one(elements: Vec<Box<dyn Element>>, frame: &[u8]) -> (Verdict, Vec<u8>) {
    let mut chain = Chain::new(elements).unwrap();
    let mut lent = [&[0; ROOM], frame, &[0; ROOM]].concat();
    let ingress = Ingress { port: 1, router: 0, interface: 1, flags: IF_IPV4 | IF_IPV6 };
    let mut batch = Batch::default();
    batch.push(&mut lent, ROOM, frame.len(), ingress).unwrap();
    chain.run(&Now { ns: 0, ports: u64::MAX }, &mut batch);
    let packet = &batch.packets()[0];
    (packet.verdict(), packet.data().to_vec())
}

/// The next frame that is wanted. Others, such as router solicitations, are discarded.
fn wait(wire: &Wire, wanted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        match wire.receive() {
            Some(frame) if wanted(&frame) => return Some(frame),
            Some(_) => {}
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

/// Frames to send inside: a UDP packet, ARP to all, and a frame of a protocol that Linux does not know.
fn frames() -> Vec<Vec<u8>> {
    let mut udp = Vec::new();
    let build = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 7, 7], [2, 0, 0, 0, 8, 8]);
    build.ipv4([10, 7, 0, 1], [10, 7, 0, 2], 64).udp(7, 8).write(&mut udp, &[5; 1200]).unwrap();
    let other = |to: [u8; 6], kind: [u8; 2]| [&to[..], &[2, 0, 0, 0, 7, 7], &kind, &[3; 46]].concat();
    vec![udp, other([0xff; 6], [0x08, 0x06]), other([2, 0, 0, 0, 8, 8], [0x88, 0xb5])]
}

fn device(is_v6: bool, more: &str) {
    let [local, remote] = ENDS[usize::from(is_v6)];
    run(&format!(
        "ip link add x0 type vxlan id 4660 local {remote} remote {local} dstport 4789 dev peer nolearning {more}"
    ));
    run("ip link set x0 address 02:00:00:00:08:08 mtu 1400 up");
}

#[test]
#[ignore = "needs root"]
fn linux_is_the_other_end() {
    in_new_namespace(|| {
        run("ip link add wire type veth peer name peer");
        run("ip link set wire address 02:00:00:00:00:01 up");
        // On a veth, checksums would be left to a device that does not exist.
        run("ethtool -K peer tx off");
        run("ip link set peer address 02:00:00:00:00:02 up");
        run("ip address add 192.0.2.2/24 dev peer");
        run("ip -6 address add 2001:db8::2/64 dev peer nodad");
        run("ip neighbour add 192.0.2.1 lladdr 02:00:00:00:00:01 dev peer");
        run("ip neighbour add 2001:db8::1 lladdr 02:00:00:00:00:01 dev peer");
        let wire = Wire::open("wire");
        for is_v6 in [false, true] {
            // By default, Linux writes UDP checksums, and requires them over IPv6.
            device(is_v6, if is_v6 { "" } else { "noudpcsum" });
            let inside = Wire::open("x0");
            let [local, remote]: [IpAddr; 2] = ENDS[usize::from(is_v6)].map(|end| end.parse().unwrap());
            let ends = Ends::new(local, remote).unwrap();
            let vxlan = Vxlan { vni: 4660, ends, port: 4789, mtu: 1500, hops: 64, is_whole: false };
            for frame in frames() {
                let encap: Vec<Box<dyn Element>> =
                    vec![Box::new(VxlanEncap::new(vxlan)), Box::new(Forward::new(0))];
                let (verdict, mut sent) = one(encap, &frame);
                assert_eq!(verdict, Verdict::To(0));
                // The element `rewrite` would set these addresses.
                sent[..6].copy_from_slice(&PEER_MAC);
                sent[6..12].copy_from_slice(&MAC);
                wire.send(&sent);
                let came = wait(&inside, |came| came == frame);
                assert!(came.is_some(), "Linux did not deliver {} bytes, IPv6 {is_v6}", frame.len());
                // The way back.
                inside.send(&frame);
                let is_vxlan = |sent: &[u8]| sent[..6] == MAC && sent.ends_with(&frame);
                let linux = wait(&wire, is_vxlan).expect("Linux did not send the frame");
                let decap = VxlanDecap::new(4660, local, Some(remote), 4789);
                let decap: Vec<Box<dyn Element>> =
                    vec![Box::new(Check), Box::new(decap), Box::new(Forward::new(0))];
                assert_eq!(one(decap, &linux), (Verdict::To(0), frame.clone()), "IPv6 {is_v6}");
                same_outer(is_v6, &sent, &linux);
            }
            drop(inside);
            run("ip link del x0");
        }
    });
}

/// Asserts that our outer headers equal Linux's, except for addresses, which are swapped, the source port,
/// the identification, the flow label, and checksums.
fn same_outer(is_v6: bool, ours: &[u8], linux: &[u8]) {
    let fields = |packet: &[u8]| {
        let mut ip = packet[14..].to_vec();
        let udp = if is_v6 {
            ip[8..40].fill(0);
            // Linux sets a flow label.
            ip[1] &= 0xf0;
            ip[2..4].fill(0);
            40
        } else {
            ip[4..6].fill(0);
            ip[10..20].fill(0);
            20
        };
        assert!(u16::from_be_bytes([ip[udp], ip[udp + 1]]) >= 32768);
        assert_eq!(ip[udp + 6..udp + 8] != [0, 0], is_v6);
        ip[udp..udp + 2].fill(0);
        ip[udp + 6..udp + 8].fill(0);
        ip
    };
    assert_eq!(fields(ours), fields(linux));
}
