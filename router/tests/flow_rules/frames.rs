//! Random frames of every kind that rules can tell apart, whole and damaged.

use fastrand::Rng;

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

fn bytes(rng: &mut Rng, count: usize) -> Vec<u8> {
    (0..count).map(|_| rng.u8(..)).collect()
}

/// TCP, UDP, SCTP, ICMP or something else, with its protocol number.
fn transport(rng: &mut Rng, v6: bool) -> (u8, Vec<u8>) {
    let (protocol, header) = match rng.u8(0..8) {
        0 | 1 => (6, 20),
        2 | 3 => (17, 8),
        4 => (132, 12),
        5 => (if v6 { 58 } else { 1 }, 8),
        6 => (if v6 { 1 } else { 58 }, 8),
        _ => (rng.u8(..), 8),
    };
    let short = rng.u8(0..12) == 0;
    let length = if short { header - 1 } else { header + rng.usize(0..20) };
    let mut out = bytes(rng, length);
    if protocol == 58 && rng.u8(0..4) != 0 {
        return (58, nd(rng));
    }
    // Few ports, so that packets match rules. Some UDP checksums are zero, or nearly.
    for at in [0, 2] {
        out[at..at + 2].copy_from_slice(&[0, rng.u8(0..3)]);
    }
    if protocol == 17 && out.len() >= 8 && rng.u8(0..3) == 0 {
        let odd = [[0, 0], [0xff, 0xff], [0, 1]][rng.usize(0..3)];
        out[6..8].copy_from_slice(&odd);
    }
    (protocol, out)
}

/// Neighbour solicitation or advertisement, with options.
fn nd(rng: &mut Rng) -> Vec<u8> {
    let mut out = vec![135 + rng.u8(0..2), 0, 0, 0, 0, 0, 0, 0];
    out.extend(bytes(rng, 16));
    for _ in 0..rng.usize(0..3) {
        let units = rng.u8(0..3);
        out.extend([rng.u8(0..4), units]);
        out.extend(bytes(rng, (usize::from(units) * 8).saturating_sub(2)));
    }
    out
}

fn ipv4(rng: &mut Rng, payload: Option<(u8, Vec<u8>)>) -> Vec<u8> {
    let (protocol, payload) = payload.unwrap_or_else(|| transport(rng, false));
    let options = if rng.u8(0..6) == 0 { 4 * rng.usize(1..4) } else { 0 };
    let fragment: u16 = [0, 0, 0, 0, 0x2000, 0x2010, 0x0010, 0x4000][rng.usize(0..8)];
    let total = (20 + options + payload.len()) as u16;
    let mut out = vec![0x45 + (options / 4) as u8, rng.u8(..)];
    out.extend(total.to_be_bytes());
    out.extend(bytes(rng, 2));
    out.extend(fragment.to_be_bytes());
    out.extend([rng.u8(0..4), protocol, 0, 0]);
    out.extend([10, 0, 0, rng.u8(0..3), 10, 0, 1, rng.u8(0..3)]);
    out.extend(bytes(rng, options));
    let sum = checksum(&out);
    out[10..12].copy_from_slice(&sum.to_be_bytes());
    out.extend(payload);
    out
}

fn ipv6(rng: &mut Rng) -> Vec<u8> {
    let (mut next, mut payload) = transport(rng, true);
    for _ in 0..[0, 0, 0, 1, 2, 9][rng.usize(0..6)] {
        let kind = [0, 43, 44, 60][rng.usize(0..4)];
        let units = if kind == 44 { 0 } else { rng.u8(0..2) };
        let mut header = vec![next, units];
        header.extend(bytes(rng, 6 + 8 * usize::from(units)));
        if kind == 44 {
            header[2..4].copy_from_slice(&[[0, 0], [0, 1], [0, 8], [1, 1], [0, 6]][rng.usize(0..5)]);
        }
        header.extend(payload);
        (next, payload) = (kind, header);
    }
    let mut out = vec![0x60 | rng.u8(0..16), rng.u8(..), rng.u8(..), rng.u8(0..2)];
    out.extend((payload.len() as u16).to_be_bytes());
    out.extend([next, rng.u8(0..4)]);
    for _ in 0..2 {
        out.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, rng.u8(0..3)]);
    }
    out.extend(payload);
    out
}

fn arp(rng: &mut Rng) -> Vec<u8> {
    let mut out = vec![0, 1, 8, 0, 6, 4, 0, rng.u8(0..3)];
    out.extend(bytes(rng, 20));
    out
}

/// UDP to the port of VXLAN, with a frame inside.
fn vxlan(rng: &mut Rng) -> Vec<u8> {
    let inner = frame(rng);
    let mut udp = vec![0xc0, rng.u8(..), 0x12, 0xb5];
    udp.extend(((inner.len() + 16) as u16).to_be_bytes());
    udp.extend([0, 0, if rng.u8(0..5) == 0 { 0 } else { 8 }, 0, 0, 0, 0, 0, rng.u8(0..3), 0]);
    udp.extend(inner);
    ipv4(rng, Some((17, udp)))
}

/// A frame of at least 60 bytes.
pub fn frame(rng: &mut Rng) -> Vec<u8> {
    let (mut kind, payload) = match rng.u8(0..12) {
        0..=4 => (0x0800, ipv4(rng, None)),
        5..=7 => (0x86dd, ipv6(rng)),
        8 => (0x0806, arp(rng)),
        9 => (0x0800, vxlan(rng)),
        10 => (rng.u16(..), bytes(rng, 40)),
        _ => {
            let (ip, type_) = if rng.bool() { (ipv4(rng, None), [8, 0]) } else { (arp(rng), [8, 6]) };
            let organisation = [[0, 0, 0], [0, 0, 1]][rng.usize(0..2)];
            let snap = [0xaa, 0xaa, 3].into_iter().chain(organisation).chain(type_);
            (0x0100, snap.chain(ip).collect())
        }
    };
    if rng.u8(0..40) == 0 {
        kind = rng.u16(..);
    }
    let mut out = vec![2, 0, 0, 0, 0, rng.u8(0..3), 2, 0, 0, 0, 1, rng.u8(0..3)];
    for _ in 0..[0, 0, 0, 1, 2, 3][rng.usize(0..6)] {
        out.extend(if rng.bool() { [0x81, 0] } else { [0x88, 0xa8] });
        out.extend([rng.u8(..), rng.u8(0..3)]);
    }
    out.extend(kind.to_be_bytes());
    out.extend(payload);
    if rng.u8(0..4) == 0 {
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(12..out.len());
            out[at] = if rng.bool() { rng.u8(..) } else { out[at] ^ 1 << rng.u8(0..8) };
        }
    }
    if rng.u8(0..8) == 0 {
        out.truncate(rng.usize(60.min(out.len() - 1)..out.len()));
    }
    let padding = 60_usize.saturating_sub(out.len()) + if rng.u8(0..6) == 0 { rng.usize(0..8) } else { 0 };
    out.extend(bytes(rng, padding));
    out
}
