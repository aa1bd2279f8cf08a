//! Random packets: valid, odd and broken.

use crate::{
    common::frame::{Frame, fix_checksum},
    draft::Draft,
    sides::{HOSTS, Sent, Side, other_mac},
};
use fastrand::Rng;
use logic::net::{Mac, Tag};
use std::net::{Ipv4Addr, Ipv6Addr};

/// `count` frames, with the port that each is sent into. A quarter of them belong to the flow of an earlier
/// frame.
pub fn generate(draft: &mut Draft<'_>, count: usize) -> Vec<Sent> {
    let mut frames: Vec<(usize, Side, Frame)> = Vec::new();
    for number in 0..count {
        let (side, frame) = match frames.len() {
            before @ 1.. if draft.one_in(4) => {
                let (_, side, frame) = frames[draft.rng.usize(..before)].clone();
                (side, frame)
            }
            _ => {
                let side = draft.sides[draft.rng.usize(..draft.sides.len())].clone();
                let frame = if draft.rng.bool() { ipv4(draft, &side) } else { ipv6(draft, &side) };
                (side, frame)
            }
        };
        frames.push((side.port, side, number_it(frame, number)));
    }
    frames.into_iter().map(|(port, side, frame)| (port, ethernet(&mut draft.rng, &side, frame))).collect()
}

/// Writes a number into the last bytes of the payload. It keeps packets apart, and makes every expected frame
/// unique.
fn number_it(mut frame: Frame, number: usize) -> Frame {
    let end = frame.payload.len();
    if let Some(tail) = frame.payload.get_mut(end.saturating_sub(4)..).filter(|t| t.len() == 4) {
        tail.copy_from_slice(&(number as u32).to_be_bytes());
    }
    frame
}

fn ipv4(draft: &mut Draft<'_>, side: &Side) -> Frame {
    let Draft { rng, sides, targets4, .. } = draft;
    let source = match rng.u8(0..30) {
        0 => rng
            .choice(["0.0.0.0", "127.0.0.1", "224.0.0.9", "255.255.255.255", "240.0.0.7"])
            .unwrap()
            .parse()
            .unwrap(),
        1 => sides[rng.usize(..sides.len())].host4(1),
        2 => targets4[rng.usize(..targets4.len())],
        _ => side.host4(rng.u8(HOSTS)),
    };
    let destination = match rng.u8(0..30) {
        0 => rng
            .choice(["0.0.0.1", "127.0.0.1", "224.0.0.5", "255.255.255.255", "240.0.0.1"])
            .unwrap()
            .parse()
            .unwrap(),
        1 => Ipv4Addr::from_bits(rng.u32(..)),
        _ => targets4[rng.usize(..targets4.len())],
    };
    let mut frame = Frame::udp4(side.router_mac, &source.to_string(), &destination.to_string());
    let tos = rng.choice([0, 0, 0x10, 0x2e, 0xff]).unwrap();
    let length = match rng.u8(0..20) {
        0 => 1400 + rng.usize(0..102),
        1..4 => rng.usize(50..1200),
        4 => rng.usize(28..46).max(32),
        _ => 46,
    };
    frame = frame.ip4(|ip| {
        ip.resize(length, 0xa5);
        ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        let udp = (length as u16 - 20).to_be_bytes();
        ip[24..26].copy_from_slice(&udp);
        ip[26..28].fill(0);
        let random = rng.u32(..).to_be_bytes();
        ip[20..24].copy_from_slice(&random);
        ip[4..6].copy_from_slice(&random[..2]);
        ip[8] = rng.choice([0, 1, 2, 3, 64, 64, 64, 64, 255]).unwrap();
        ip[1] = tos;
        if length > 1300 {
            ip[6] = rng.choice([0, 0x40]).unwrap();
        }
    });
    match rng.u8(0..24) {
        0 => frame.ip4(|ip| ip[6..8].copy_from_slice(&rng.u16(..).to_be_bytes())),
        1 => frame.ip4(|ip| ip[9] = rng.u8(..)),
        2 => frame.with(|ip| ip[10] ^= 1 << rng.u8(0..8)),
        3 => frame.ip4(|ip| ip[2..4].copy_from_slice(&rng.u16(..64).to_be_bytes())),
        4 => frame.with(|ip| ip[0] = rng.u8(..)),
        5 => with_options(rng, frame),
        6 => frame.with(|ip| (0..rng.usize(1..4)).for_each(|_| ip[rng.usize(..20)] ^= 1 << rng.u8(0..8))),
        7 => frame.with(|ip| ip.truncate(rng.usize(1..ip.len()))),
        8 => icmp_echo(frame),
        9 => icmp_error(frame),
        10..13 => frame.ip4(|ip| ip[9] = rng.choice([6, 50, 132]).unwrap()),
        13 => frame.ip4(|ip| ip[6..8].copy_from_slice(&[0x20, rng.u8(0..3)])),
        _ => frame,
    }
}

fn with_options(rng: &mut Rng, frame: Frame) -> Frame {
    let options: [u8; 4] =
        rng.choice([[0, 0, 0, 0], [1, 1, 1, 0], [0x94, 4, 0, 0], [0x44, 4, 5, 0], [7, 3, 4, 0]]).unwrap();
    frame.ip4(|ip| {
        ip.splice(20..20, options).for_each(drop);
        ip[0] = 0x46;
        let length = (ip.len() as u16).to_be_bytes();
        ip[2..4].copy_from_slice(&length);
    })
}

fn icmp_echo(frame: Frame) -> Frame {
    frame.ip4(|ip| {
        ip[9] = 1;
        ip[20..24].copy_from_slice(&[8, 0, 0, 0]);
    })
}

/// An error about a packet of the opposite direction. Linux chooses a next hop by that packet.
fn icmp_error(frame: Frame) -> Frame {
    frame.ip4(|ip| {
        let (source, destination) = ([ip[12], ip[13], ip[14], ip[15]], [ip[16], ip[17], ip[18], ip[19]]);
        ip.truncate(20);
        ip.extend([3, 3, 0, 0, 0, 0, 0, 0]);
        ip.extend([0x45, 0, 0, 40, 0, 1, 0, 0, 64, 17, 0, 0]);
        ip.extend(destination);
        ip.extend(source);
        ip.extend([0x07, 0xd0, 0x03, 0xe8, 0, 20, 0, 0, 0, 0, 0, 0]);
        let length = (ip.len() as u16).to_be_bytes();
        ip[2..4].copy_from_slice(&length);
        ip[9] = 1;
    })
}

fn ipv6(draft: &mut Draft<'_>, side: &Side) -> Frame {
    let Draft { rng, sides, targets6, .. } = draft;
    let source: Ipv6Addr = match rng.u8(0..30) {
        0 => rng.choice(["::", "::1", "ff02::1", "fe80::5", "::ffff:10.0.0.1"]).unwrap().parse().unwrap(),
        1 => sides[rng.usize(..sides.len())].host6(1),
        _ => side.host6(rng.u8(HOSTS)),
    };
    let destination: Ipv6Addr = match rng.u8(0..30) {
        0 => rng.choice(["::1", "ff02::5", "ff05::2", "fe80::9", "::"]).unwrap().parse().unwrap(),
        1 => Ipv6Addr::from_bits(rng.u128(..)),
        _ => targets6[rng.usize(..targets6.len())],
    };
    let mut frame = Frame::udp6(side.router_mac, &source.to_string(), &destination.to_string());
    let length = match rng.u8(0..20) {
        0 => 1400 + rng.usize(0..102),
        1..4 => rng.usize(60..1200),
        _ => 66,
    };
    frame = frame.with(|ip| {
        ip.resize(length, 0xa5);
        ip[4..6].copy_from_slice(&(length as u16 - 40).to_be_bytes());
        ip[44..46].copy_from_slice(&(length as u16 - 40).to_be_bytes());
        ip[40..44].copy_from_slice(&rng.u32(..).to_be_bytes());
        ip[7] = rng.choice([0, 1, 2, 64, 64, 64, 255]).unwrap();
        ip[1] = rng.u8(..);
    });
    match rng.u8(0..24) {
        0 => frame.with(|ip| ip[6] = rng.choice([0, 43, 44, 51, 59, 60, 135]).unwrap()),
        1 => frame.with(|ip| ip[6] = rng.u8(..)),
        2 => frame.with(|ip| ip[4..6].copy_from_slice(&rng.u16(..64).to_be_bytes())),
        3 => frame.with(|ip| ip[0] = rng.u8(..)),
        4 => frame.with(|ip| (0..rng.usize(1..4)).for_each(|_| ip[rng.usize(..40)] ^= 1 << rng.u8(0..8))),
        5 => frame.with(|ip| ip.truncate(rng.usize(1..ip.len()))),
        6..9 => frame.with(|ip| ip[6] = rng.choice([6, 50, 132]).unwrap()),
        9 => frame.with(|ip| {
            ip[6] = 58;
            ip[40..44].copy_from_slice(&[rng.choice([1, 2, 3, 128, 129, 135]).unwrap(), 0, 0, 0]);
        }),
        _ => frame,
    }
}

fn ethernet(rng: &mut Rng, side: &Side, mut frame: Frame) -> Vec<u8> {
    frame.source = side.host_mac(rng.u8(HOSTS));
    match rng.u8(0..40) {
        0 => frame.destination = Mac([2, 9, 9, 9, 9, 9]),
        1 => {
            frame.destination = rng
                .choice([Mac([0xff; 6]), Mac([1, 0, 0x5e, 0, 0, 5]), Mac([0x33, 0x33, 0, 0, 0, 5])])
                .unwrap()
        }
        2 => frame.ether_type = rng.u16(..),
        3 => frame.tags = vec![Tag { vid: rng.u16(0..4096), service: rng.bool() }],
        4 => frame.padding = rng.usize(1..40),
        8..10 => frame.destination = other_mac(side.port),
        10 => frame.tags = vec![Tag { vid: 7, service: false }],
        // A priority tag, which is VLAN 0 with a priority.
        5..8 => {
            frame.tags = vec![Tag { vid: rng.u16(0..16) << 12, service: rng.u8(0..4) == 0 }];
            if rng.u8(0..8) == 0 {
                frame.tags.push(Tag { vid: rng.u16(0..4), service: false });
            }
        }
        _ => {}
    }
    let mut bytes = frame.bytes();
    bytes.resize(bytes.len().max(15), 0);
    bytes
}

#[test]
fn numbering_keeps_the_header_checksum() {
    let frame = number_it(Frame::udp4(Mac([2; 6]), "10.0.0.1", "10.0.0.2"), 7);
    let mut again = frame.payload.clone();
    fix_checksum(&mut again);
    assert_eq!(again, frame.payload);
}
