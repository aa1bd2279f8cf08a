//! Connections: decides which of those that conntrack tracks can bypass the rules.
//!
//! Rules of a stateful firewall accept the later packets of a connection, and NAT has its translation once and for all. So
//! if the rules provably accept all later packets of both directions, the kernel plane can forward them, NAT included. The
//! first packets, and all with SYN, FIN or RST, stay with Linux.

use super::traffic::{TCP, Tuple, UDP};

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
