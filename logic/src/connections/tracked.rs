//! Connections as conntrack tracks them.

use crate::firewall::traffic::{TCP, Tuple, UDP};

/// `TCP_CONNTRACK_ESTABLISHED` (`nf_conntrack_tcp.h`)
pub const TCP_ESTABLISHED: u8 = 3;

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
    /// What only Linux can do with its packets; `None`: nothing.
    pub special: Option<Special>,
}

/// A connection whose timeout Linux is to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// IP protocol.
    pub protocol: u8,
    /// The packets of either direction, as they arrive.
    pub tuple: Tuple,
    /// Seconds from now.
    pub timeout_s: u32,
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

/// The two directions of a connection that can be fast: first that of the packet that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways(pub [Way; 2]);

/// One direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub arrives: Tuple,
    pub leaves: Tuple,
}

impl Tuple {
    /// The tuple of answers.
    pub fn reversed(self) -> Tuple {
        Tuple {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

impl Tracked {
    /// How packets of both directions are forwarded, first those like `seen`; `None`: it is another connection's packet.
    pub fn ways(&self, seen: &Tuple) -> Option<Ways> {
        let way = |arrives: Tuple, back: Tuple| Way { arrives, leaves: back.reversed() };
        let [original, reply] = self.tuples;
        let ways = [way(original, reply), way(reply, original)];
        match (original == *seen, reply == *seen) {
            (true, _) => Some(Ways(ways)),
            (_, true) => Some(Ways([ways[1], ways[0]])),
            _ => None,
        }
    }
}

/// Can connections of this protocol be fast?
pub fn is_supported(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP)
}
