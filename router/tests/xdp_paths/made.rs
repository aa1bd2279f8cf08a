//! Random frames and classes, made so that they often match: with tags, extension headers, fragments, and
//! frames cut short.

use super::world::{A, AD200, B, OTHER, Q7, Q100, V};
use crate::common::frame::{Frame, fix_checksum};
use fastrand::Rng;
use logic::{
    net::{Addresses, Mac},
    paths::class::{Class, TwoBytes},
};

fn one<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    rng.choice(of).unwrap().clone()
}

fn transport(rng: &mut Rng, protocol: u8) -> Vec<u8> {
    let mut header = vec![0; 30];
    rng.fill(&mut header);
    for at in [0, 2] {
        let port: u16 = one(rng, &[80, 443, 4500, 53, 0x5050]);
        header[at..at + 2].copy_from_slice(&port.to_be_bytes());
    }
    if protocol == 6 {
        header[12] = 0x50;
        header[13] = one(rng, &[0x02, 0x12, 0x10, 0x22, 0x01]);
    }
    header
}

fn protocol(rng: &mut Rng) -> u8 {
    one(rng, &[6, 6, 17, 17, 132, 1, 58, 50, 0, 44])
}

fn ipv4(rng: &mut Rng) -> Frame {
    let (from, to) = (format!("10.{}.1.5", rng.u8(0..3)), format!("10.{}.2.9", rng.u8(0..3)));
    let protocol = protocol(rng);
    let payload = transport(rng, protocol);
    let options = rng.usize(0..2) * rng.usize(0..11) * 4;
    Frame::udp4(A, &from, &to).with(|ip| {
        ip[9] = protocol;
        ip.truncate(20);
        ip.extend(vec![1; options]);
        ip[0] = 0x45 + (options / 4) as u8;
        ip.extend(payload);
        let length = ip.len() as u16;
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        let fragment: u16 = one(rng, &[0, 0, 0, 0x4000, 0x2000, 0x2008, 8, 0x8000]);
        ip[6..8].copy_from_slice(&fragment.to_be_bytes());
        fix_checksum(ip);
    })
}

fn ipv6(rng: &mut Rng) -> Frame {
    let from = format!("2001:db8:{}::5", rng.u8(0..3));
    let to = format!("2001:db8:{}::{}", rng.u8(0..3), rng.u8(1..4));
    let protocol = protocol(rng);
    let mut next = protocol;
    let mut behind = transport(rng, protocol);
    for _ in 0..one(rng, &[0, 0, 0, 1, 2, 3, 7, 8, 9]) {
        let kind = one(rng, &[0, 43, 60, 44, 44, 60]);
        let mut header = vec![0; 8];
        header[0] = next;
        if kind == 44 {
            let field: u16 = one(rng, &[0, 0, 1, 8, 9]);
            header[2..4].copy_from_slice(&field.to_be_bytes());
        } else {
            // Sometimes further than the program looks.
            header[1] = one(rng, &[0, 0, 0, 1, 2, 255]) * u8::from(rng.u8(0..4) > 0);
            header.resize(8 * (usize::from(header[1]) + 1), 0);
        }
        header.extend(behind);
        (behind, next) = (header, kind);
    }
    Frame::udp6(A, &from, &to).with(|ip| {
        ip.truncate(40);
        ip[6] = next;
        ip.extend(behind);
        let length = (ip.len() - 40) as u16;
        ip[4..6].copy_from_slice(&length.to_be_bytes());
    })
}

/// A frame that is mostly valid, and sometimes changed or cut anywhere.
pub fn frame(rng: &mut Rng) -> Vec<u8> {
    let mut frame = match rng.u8(0..9) {
        0..4 => ipv4(rng),
        4..8 => ipv6(rng),
        _ => {
            let mut bytes = vec![0; 60];
            rng.fill(&mut bytes);
            Frame::new(A, one(rng, &[0x0806, 0x88cc, 40]), bytes)
        }
    };
    if rng.u8(0..12) == 0 {
        // 802.3 with a SNAP header (RFC 1042).
        let [high, low] = frame.ether_type.to_be_bytes();
        frame.payload.splice(0..0, [0xaa, 0xaa, 3, 0, 0, one(rng, &[0, 0, 1]), high, low]);
        frame.ether_type = 0x100;
    }
    frame.destination = one(rng, &[A, A, A, B, V, OTHER, Mac([0xff; 6])]);
    frame.tags = one(rng, &[&[][..], &[], &[], &[Q100], &[AD200, Q7], &[Q7, Q7]]).to_vec();
    frame.padding = rng.usize(0..2) * rng.usize(0..20);
    let mut bytes = frame.bytes();
    for _ in 0..one(rng, &[0, 0, 0, 1, 2]) {
        let at = rng.usize(12..bytes.len().min(90));
        match rng.u8(0..4) {
            0 => bytes[at] ^= 1 << rng.u8(0..8),
            1 => bytes[at] = rng.u8(..),
            2 => bytes.truncate(at.max(14)),
            _ => bytes.insert(at, rng.u8(..)),
        }
    }
    bytes
}

fn maybe<T>(rng: &mut Rng, most: u8, what: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    (rng.u8(..) < most).then(|| what(rng))
}

fn addresses(rng: &mut Rng) -> Addresses {
    let prefix = match rng.bool() {
        true => format!("10.{}.{}.0/{}", rng.u8(0..3), one(rng, &[0, 1, 2]), one(rng, &[0, 8, 15, 16, 24])),
        false => format!("2001:db8:{}::/{}", rng.u8(0..3), one(rng, &[0, 32, 47, 48, 64])),
    };
    let (address, length) = prefix.split_once('/').unwrap();
    let length: u8 = length.parse().unwrap();
    // Bits after the prefix are 0.
    match address.parse().unwrap() {
        std::net::IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            Addresses::V4(logic::net::Prefix4::new(a.to_bits() & mask, length).unwrap())
        }
        std::net::IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            Addresses::V6(logic::net::Prefix6::new(a.to_bits() & mask, length).unwrap())
        }
    }
}

/// A class that some packet can match. `frames`: those that two bytes are taken from.
pub fn class(rng: &mut Rng, frames: &[Vec<u8>]) -> Class {
    loop {
        let ports = |rng: &mut Rng| one(rng, &[80_u16, 443, 4500, 53, 7]);
        let class = Class {
            port: maybe(rng, 60, |rng| rng.u8(0..2)),
            router: maybe(rng, 60, |rng| rng.u8(0..3)),
            destination_mac: maybe(rng, 40, |rng| one(rng, &[A, B, V])),
            ether_type: maybe(rng, 50, |rng| one(rng, &[0x0800, 0x86dd, 0x0806, 0x05ff, 0x8100, 0x88cc])),
            source: maybe(rng, 50, addresses),
            destination: maybe(rng, 50, addresses),
            protocol: maybe(rng, 70, protocol),
            source_port: maybe(rng, 30, ports),
            destination_port: maybe(rng, 50, ports),
            tcp_syn: rng.u8(0..8) == 0,
            bytes: maybe(rng, 40, |rng| {
                let frame = one(rng, frames);
                let offset = rng.usize(0..63.min(frame.len() - 1));
                let mask = one(rng, &[0xffff_u16, 0xff00, 0x00ff, 0x0101, 0]);
                let value = u16::from_be_bytes([frame[offset], frame[offset + 1]]) & mask;
                TwoBytes { offset: offset as u8, mask, value }
            }),
            flow_rules: false,
        };
        if class.check().is_ok() {
            return class;
        }
    }
}
