//! Frames that nobody thought of: mutated ones, checked by what must hold for any frame.

use super::*;
use common::frame::fix_checksum;
use fastrand::Rng;

const FRAMES: u64 = 20_000;

/// The EtherType after Ethernet and at most two tags, and what follows it.
fn network(frame: &[u8]) -> Option<(u16, &[u8])> {
    let mut at = 12;
    for _ in 0..3 {
        let ether_type = u16::from_be_bytes(*frame.get(at..)?.first_chunk()?);
        if !matches!(ether_type, 0x8100 | 0x88a8) {
            return Some((ether_type, &frame[at + 2..]));
        }
        at += 4;
    }
    None
}

/// A frame that would be forwarded, then changed anywhere in its headers. In half of them, the IPv4 checksum
/// is right again.
pub fn frame(rng: &mut Rng) -> Vec<u8> {
    let mac = *rng.choice(&[A, A, A, A, A, A, B, V, Mac([255; 6])]).unwrap();
    let mut frame = if rng.bool() {
        let to =
            *rng.choice(&["10.0.2.9", "10.0.3.9", "192.0.2.1", "10.11.0.1", "10.0.2.1", "10.9.0.1"]).unwrap();
        Frame::udp4(mac, "10.0.1.5", to)
    } else {
        let to = *rng.choice(&["2001:db8:2::9", "2001:db8:3::9", "2001:db8:9::1", "2001:db8:2::1"]).unwrap();
        Frame::udp6(mac, "2001:db8:1::5", to)
    };
    frame.tags = rng.choice(&[&[][..], &[], &[], &[], &[AD200, Q7], &[Q100]]).unwrap().to_vec();
    // These bytes belong to the IP packet and count in its length. Bytes that are added later are padding.
    let longer = rng.usize(0..2) * rng.usize(0..300);
    frame.payload.resize(frame.payload.len() + longer, 1);
    let (ttl, length, without) = if frame.ether_type == 0x0800 { (8, 2, 0) } else { (7, 4, 40) };
    let bytes = (frame.payload.len() - without) as u16;
    frame.payload[length..length + 2].copy_from_slice(&bytes.to_be_bytes());
    frame.payload[ttl] = *rng.choice(&[0, 1, 2, 64, 64, 64, 64, 64, 255]).unwrap();
    frame.padding = rng.usize(0..2) * rng.usize(0..20);
    let right = rng.bool();
    if right {
        change(&mut frame.payload, rng);
    }
    if frame.ether_type == 0x0800 {
        fix_checksum_of_any(&mut frame.payload);
    }
    let mut bytes = frame.bytes();
    if !right {
        change(&mut bytes, rng);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..*rng.choice(&[0, 0, 1, 1, 2, 4]).unwrap() {
        let at = rng.usize(0..bytes.len().min(64));
        match rng.u8(0..8) {
            0 => bytes.truncate(at.max(20)),
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, rng.u8(..)),
            3..6 => bytes[at] ^= 1 << rng.u8(0..8),
            _ => bytes[at] = rng.u8(..),
        }
    }
}

fn fix_checksum_of_any(ip: &mut [u8]) {
    if ip.len() >= usize::from(ip[0] & 15).max(5) * 4 && ip[0] & 15 >= 5 {
        fix_checksum(ip);
    }
}

/// Asserts that the IP packet is the one that came in, one hop later, without what followed it.
#[track_caller]
fn check_forwarded(before: &[u8], after: &[u8]) {
    let name = hex(before);
    let mac = |at: usize| Mac::from_slice(&after[at..at + 6]).unwrap();
    assert!([FRIEND, GATEWAY, OTHER].contains(&mac(0)), "{name}: to {}", mac(0));
    assert!([A, B, V, W].contains(&mac(6)), "{name}: from {}", mac(6));
    let (came, ip) = network(before).unwrap_or_else(|| panic!("{name}: forwarded without an EtherType"));
    let (left, out) = network(after).unwrap_or_else(|| panic!("{name}: left without an EtherType"));
    assert_eq!(came, left, "{name}: EtherType");
    let word = |at: usize| usize::from(u16::from_be_bytes([ip[at], ip[at + 1]]));
    let (ttl, length) = match left {
        0x0800 => (8, word(2)),
        0x86dd => (7, 40 + word(4)),
        other => panic!("{name}: EtherType {other:04x} was forwarded"),
    };
    let mut expected = ip[..length].to_vec();
    assert!(expected[ttl] > 1, "{name}: TTL {}", expected[ttl]);
    if left == 0x0800 {
        fix_checksum(&mut expected);
        assert_eq!(hex(&expected), hex(&ip[..length]), "a wrong checksum was forwarded");
    }
    expected[ttl] -= 1;
    if left == 0x0800 {
        fix_checksum(&mut expected);
    }
    assert_eq!(hex(out), hex(&expected), "{name}: not the packet one hop later");
}

#[test]
#[ignore = "needs root"]
fn any_frame_goes_up_as_it_came_or_out_one_hop_later() {
    in_new_namespace(|| {
        let mut w = World::new();
        let mut rng = Rng::with_seed(1);
        let before = w.plane.counters().unwrap();
        let mut verdicts = [0_u64; 5];
        for _ in 0..FRAMES {
            let bytes = frame(&mut rng);
            let port = w.port[rng.usize(0..8) / 7];
            let explained = w.plane.explain(port, &bytes).unwrap().0;
            let got = w.plane.run(port, &bytes).unwrap();
            assert_eq!(got, explained, "{}: the explanation differs", hex(&bytes));
            verdicts[got.action as usize] += 1;
            match got.action {
                XDP_PASS => assert_eq!(hex(&got.frame), hex(&bytes), "changed on its way up"),
                XDP_REDIRECT => check_forwarded(&bytes, &got.frame),
                other => panic!("{}: action {other}, although nothing is policed", hex(&bytes)),
            }
        }
        let after = w.plane.counters().unwrap();
        let counted = |c: &router::plane::Counters| {
            let sent: u64 = c.interfaces.values().map(|i| i.tx_packets).sum();
            sent + c.charges.values().sum::<u64>()
        };
        assert_eq!(counted(&after) - counted(&before), FRAMES, "frames counted");
        assert!(
            verdicts[XDP_PASS as usize].min(verdicts[XDP_REDIRECT as usize]) > FRAMES / 10,
            "too few passed up or redirected, by action: {verdicts:?}"
        );
    });
}
