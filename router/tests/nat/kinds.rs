//! Kinds of packets, chosen at random.

use super::connection::{ACK, Checksum, Connection, PSH, Sent, Spec, TCP, UDP, header_bytes};
use fastrand::Rng;

/// The MTU of `lan`, and so the longest packet that a router may have to shorten.
const LONGEST: usize = 1500;

/// A packet of a direction of the connection, maybe in parts.
pub fn random(connection: &mut Connection, way: usize, rng: &mut Rng) -> Vec<Sent> {
    let mut spec = random_spec(connection, rng);
    let (ingress, egress) = (connection.ways[way].ingress.mtu(), connection.ways[way].egress.mtu());
    let most = ingress.min(egress) - header_bytes(connection, &spec);
    let bytes = match rng.u8(0..8) {
        0 => 0,
        1 => most,
        2 => most - 1,
        _ => rng.usize(0..=most),
    };
    spec.payload = (0..bytes).map(|_| rng.u8(..)).collect();
    match rng.u8(0..20) {
        0 => spec.ttl = 1,
        1 => spec.ttl = 2,
        2 => return vec![connection.error(way, rng)],
        3 if bytes > 32 && bytes < most - 64 => return connection.fragments(way, &spec, rng),
        4 if bytes < most - 8 => spec.options = true,
        5 if ingress > egress => {
            let longer = rng.usize(egress + 1..=LONGEST) - header_bytes(connection, &spec);
            spec.payload = vec![rng.u8(..); longer];
            spec.may_be_fragmented = rng.bool();
        }
        6 if connection.protocol == UDP && bytes < most - 16 => spec.tail = rng.usize(1..16),
        7 if connection.protocol == UDP => spec.checksum = Checksum::None,
        8..=11 if bytes >= 4 => {
            spec.checksum = rng.choice([Checksum::Zero, Checksum::Ones, Checksum::ZeroLater]).unwrap();
        }
        _ => (),
    }
    vec![connection.data(way, &spec)]
}

fn random_spec(connection: &Connection, rng: &mut Rng) -> Spec {
    let mut spec = Spec::small(rng);
    spec.class = rng.u8(..);
    spec.may_be_fragmented = rng.bool();
    if connection.protocol == TCP {
        // URG, ECE, CWR
        spec.flags = ACK | rng.choice([0, PSH, 0x20, 0x40, 0x80, 0xe8]).unwrap();
        if rng.bool() {
            let stamp: [u8; 8] = std::array::from_fn(|_| rng.u8(..));
            spec.tcp_options = [&[1, 1, 8, 10][..], &stamp].concat();
        }
    }
    spec
}
