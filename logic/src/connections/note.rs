//! Notes of the kernel plane.

use crate::{
    firewall::traffic::{Tuple, Version},
    plan::{InterfaceId, RouterId},
};
use std::net::IpAddr;

/// A connection whose packets go to the kernel because of rules, as the kernel plane notes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionNote {
    pub router: RouterId,
    pub version: Version,
    /// IP protocol.
    pub protocol: u8,
    /// Of the packets that were seen, as they arrive. They are of either direction.
    pub tuple: Tuple,
    pub ingress: InterfaceId,
    /// 0: not known. The destination is an address of the router, which NAT may translate.
    pub egress: InterfaceId,
}

impl ConnectionNote {
    /// Does it lack the egress interface?
    pub fn is_local(&self) -> bool {
        self.egress == 0
    }

    /// `struct connection_note` of `bpf/abi.h`.
    pub const BYTES: usize = 48;

    /// Reads a record of the ring.
    pub fn from_bytes(record: &[u8]) -> Option<ConnectionNote> {
        let record: &[u8; Self::BYTES] = record.get(..Self::BYTES)?.try_into().ok()?;
        let version = match record[38] {
            0 => Version::V4,
            1 => Version::V6,
            _ => return None,
        };
        let address = |at: usize| match version {
            Version::V4 => IpAddr::from(std::array::from_fn::<u8, 4, _>(|i| record[at + i])),
            Version::V6 => IpAddr::from(std::array::from_fn::<u8, 16, _>(|i| record[at + i])),
        };
        let port = |at: usize| u16::from_be_bytes([record[at], record[at + 1]]);
        let interface = |at: usize| InterfaceId::from_ne_bytes([record[at], record[at + 1]]);
        Some(ConnectionNote {
            router: record[37],
            version,
            protocol: record[36],
            tuple: Tuple {
                source: address(0),
                destination: address(16),
                source_port: port(32),
                destination_port: port(34),
            },
            ingress: interface(40),
            egress: interface(42),
        })
    }
}
