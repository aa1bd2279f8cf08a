//! A packet through the tables, as OpenFlow 1.3.5 section 5 says it: what user space does with it.

/// Why a packet goes to the controllers (OFPR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketInReason {
    NoMatch,
    Action,
    InvalidTtl,
}
