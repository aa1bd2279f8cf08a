//! Frames for tests, which a test can change, and the frame that a correct router makes of them, computed the
//! slow way.

use etherparse::PacketBuilder;
use logic::net::{Mac, Tag, Vlan};
use std::net::{Ipv4Addr, Ipv6Addr};

/// A frame in parts.
#[derive(Clone, Debug)]
pub struct Frame {
    pub destination: Mac,
    pub source: Mac,
    pub tags: Vec<Tag>,
    pub ether_type: u16,
    /// What follows Ethernet and tags.
    pub payload: Vec<u8>,
    /// Ethernet padding behind it.
    pub padding: usize,
}

pub const HOST: Mac = Mac([2, 0, 0, 0, 9, 9]);

impl Frame {
    pub fn new(destination: Mac, ether_type: u16, payload: Vec<u8>) -> Frame {
        Frame { destination, source: HOST, tags: Vec::new(), ether_type, payload, padding: 0 }
    }

    /// UDP over IPv4, 18 bytes of data: a 60-byte frame.
    pub fn udp4(destination_mac: Mac, source: &str, destination: &str) -> Frame {
        let (s, d): (Ipv4Addr, Ipv4Addr) = (source.parse().unwrap(), destination.parse().unwrap());
        let mut payload = Vec::new();
        PacketBuilder::ipv4(s.octets(), d.octets(), 64)
            .udp(1000, 2000)
            .write(&mut payload, &[0x5a; 18])
            .unwrap();
        Frame::new(destination_mac, 0x0800, payload)
    }

    /// UDP over IPv6, 18 bytes of data.
    pub fn udp6(destination_mac: Mac, source: &str, destination: &str) -> Frame {
        let (s, d): (Ipv6Addr, Ipv6Addr) = (source.parse().unwrap(), destination.parse().unwrap());
        let mut payload = Vec::new();
        PacketBuilder::ipv6(s.octets(), d.octets(), 64)
            .udp(1000, 2000)
            .write(&mut payload, &[0x5a; 18])
            .unwrap();
        Frame::new(destination_mac, 0x86dd, payload)
    }

    pub fn tagged(mut self, tags: &[Tag]) -> Frame {
        self.tags = tags.to_vec();
        self
    }

    pub fn padded(mut self, bytes: usize) -> Frame {
        self.padding = bytes;
        self
    }

    /// Changes payload bytes. Everything else, including checksums, stays as it was.
    pub fn with(mut self, change: impl FnOnce(&mut Vec<u8>)) -> Frame {
        change(&mut self.payload);
        self
    }

    /// Changes the IPv4 header and makes its checksum right again.
    pub fn ip4(mut self, change: impl FnOnce(&mut Vec<u8>)) -> Frame {
        change(&mut self.payload);
        fix_checksum(&mut self.payload);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.destination.0);
        out.extend(self.source.0);
        for tag in &self.tags {
            out.extend(if tag.service { [0x88, 0xa8] } else { [0x81, 0x00] });
            out.extend(tag.vid.to_be_bytes());
        }
        out.extend(self.ether_type.to_be_bytes());
        out.extend(&self.payload);
        out.extend(std::iter::repeat_n(0, self.padding));
        out
    }

    /// The frame after one hop: new Ethernet header and tags, TTL or hop limit one less, checksum computed from
    /// scratch, padding cut.
    pub fn routed(&self, destination: Mac, source: Mac, tags: &[Tag]) -> Vec<u8> {
        let mut next = Frame { destination, source, padding: 0, ..self.clone() }.tagged(tags);
        if self.ether_type == 0x0800 {
            next.payload[8] -= 1;
            fix_checksum(&mut next.payload);
        } else {
            next.payload[7] -= 1;
        }
        next.bytes()
    }
}

/// RFC 791 checksum over the header as its IHL says.
pub fn fix_checksum(ip: &mut [u8]) {
    let length = usize::from(ip[0] & 15) * 4;
    ip[10..12].fill(0);
    let mut sum: u32 = ip[..length].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let checksum = !(sum as u16);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// The VLAN key of these tags.
pub fn vlan(tags: &[Tag]) -> Vlan {
    tags.iter().fold(Vlan::NONE, |v, t| v.push(*t).unwrap())
}
