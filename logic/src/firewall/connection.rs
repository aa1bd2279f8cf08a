//! Connections: decides which of those that conntrack tracks can bypass the rules.
//!
//! Rules of a stateful firewall accept the later packets of a connection, and NAT has its translation once and for all. So
//! if the rules provably accept all later packets of both directions, the kernel plane can forward them, NAT included. The
//! first packets, and all with SYN, FIN or RST, stay with Linux.

use super::traffic::{TCP, Tuple, UDP, Version};
use crate::plan::{InterfaceId, RouterId};
use std::net::IpAddr;

/// A connection as conntrack has it (`ctnetlink`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// The packets as they arrive: those of the original direction, then the replies.
    pub tuples: [Tuple; 2],
    /// IP protocol.
    pub protocol: u8,
    /// `IPS_*`
    pub status: u32,
    /// `TCP_CONNTRACK_*`; `None`: not TCP.
    pub tcp_state: Option<u8>,
    /// Seconds until Linux forgets it, rounded down.
    pub expires_s: u32,
    /// What Linux does to its packets that Millrace cannot do; empty: nothing.
    pub special: Option<Special>,
}

/// Properties of connections that only Linux can handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A helper reads its packets (`CTA_HELP`).
    Helper,
    /// Sequence numbers are shifted (`CTA_SEQ_ADJ_ORIG`, `CTA_SEQ_ADJ_REPLY`).
    SequenceShift,
    /// `CTA_SYNPROXY`
    SynProxy,
    /// `CTA_ZONE`, other than 0, also of one direction only.
    Zone,
}

/// Can connections of this protocol be fast?
pub fn is_supported(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP)
}

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
    pub egress: InterfaceId,
}

impl ConnectionNote {
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
