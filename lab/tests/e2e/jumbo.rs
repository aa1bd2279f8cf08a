//! Frames of 9000 bytes, which XDP sees in several buffers, arrive as plain Linux sends them.

use std::{
    net::UdpSocket,
    process::{Command, Stdio},
};

use lab::namespace::Namespace;

use crate::{
    bed::{Bed, output, ping},
    daemon::{PATIENCE, eventually_true},
    paths::wait_for_line,
};

const MTU: usize = 9000;
/// Below, at and above the size that fits into one buffer, and the largest.
const PAYLOADS: [usize; 6] = [100, 1472, 3500, 4096, 8000, MTU - 28];

/// Sends datagrams, and returns the frames that arrive at `to`, as tcpdump prints them. Their checksums are right,
/// because the datagrams reach a socket.
fn arriving(from: (&Namespace, &str), to: (&Namespace, &str)) -> Vec<String> {
    let bind =
        |(host, address): (&Namespace, &str)| host.enter(|| Ok(UdpSocket::bind((address, 4000))?)).unwrap();
    let (sender, receiver) = (bind(from), bind(to));
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut watch: Command = to.0.command("timeout");
    let line = format!("60 tcpdump -tnlxx -i eth0 -Q in -c {} udp port 4000", PAYLOADS.len());
    let watch = watch.args(line.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watch = watch.spawn().unwrap();
    wait_for_line(&mut watch, "listening");
    for length in PAYLOADS {
        let payload: Vec<u8> = (0..length).map(|i| (i * 7 + length) as u8).collect();
        sender.send_to(&payload, (to.1, 4000)).unwrap();
        let mut received = vec![0; MTU];
        let n = receiver.recv(&mut received).unwrap_or_else(|e| panic!("{length} bytes: {e}"));
        assert!(received[..n] == payload, "{length} bytes arrived as {n} others");
    }
    let text = String::from_utf8(watch.wait_with_output().unwrap().stdout).unwrap();
    text.lines().map(without_identification).collect()
}

/// The sender numbers its packets. So the identification and the header's checksum, in the second line of a dump,
/// differ each time.
fn without_identification(line: &str) -> String {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    if words[0] == "0x0010:" {
        (words[2], words[5]) = ("id", "checksum");
    }
    words.join(" ")
}

/// Frames both ways through the host router, and the error for a frame that is too large for `out` of the other router.
fn observed(bed: &Bed) -> [Vec<String>; 3] {
    let (client, server) = ((&bed.client, "10.8.1.2"), (&bed.server, "10.8.2.2"));
    let refusal = output(&bed.client, "ping -n -c 1 -W 5 -M do -s 7972 10.7.2.2");
    output(&bed.client, "ip route flush cache");
    let refusal = refusal.lines().filter(|line| line.contains("Frag needed")).map(String::from).collect();
    [arriving(client, server), arriving(server, client), refusal]
}

#[test]
#[ignore = "needs root"]
fn jumbo_frames_arrive_as_plain_linux_forwards_them() {
    let bed = Bed::new();
    let large = |device: &str| format!("link set {device} mtu {MTU}\n");
    bed.client.ip_batch(&large("eth0")).unwrap();
    bed.server.ip_batch(&large("eth0")).unwrap();
    bed.the_box.ip_batch(&[large("p1"), large("p2")].concat()).unwrap();
    bed.red.ip_batch(&[large("in"), "link set out mtu 4000\n".into()].concat()).unwrap();
    ping(&bed.client, "10.8.2.2", 3);
    let linux = observed(&bed);
    assert!(linux[2].len() == 1 && linux[2][0].contains("mtu = 4000"), "{:?}", linux[2]);

    let daemon = bed.start(2, &[]);
    eventually_true("the fast path takes over", || {
        let before = daemon.forwarded();
        ping(&bed.client, "10.8.2.2", 20);
        daemon.forwarded() - before == 40
    });
    let before = daemon.forwarded();
    let fast = observed(&bed);
    assert_eq!(daemon.forwarded() - before, 2 * PAYLOADS.len() as u64, "forwarded by the kernel");
    for (fast, linux) in fast.iter().zip(&linux) {
        assert_eq!(fast.len(), linux.len());
        let differing = fast.iter().zip(linux).find(|(fast, linux)| fast != linux);
        assert_eq!(differing, None, "Millrace's, Linux's");
    }
}
