//! What changed in a plan, in words for people.

use super::{CoreId, QueueId};
use std::fmt;

/// One change of a queue's placement.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub queue: QueueId,
    /// The cores that it was on: its home; or those that shared it.
    pub from: Vec<CoreId>,
    /// The cores that it is on from now on. As before: it stays, although there is a reason to move it.
    pub to: Vec<CoreId>,
    pub why: Why,
}

/// Why a queue moves, is split, is joined or stays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// Its core is not online.
    Offline,
    /// Its core may not forward.
    Forbidden,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Offline => f.write_str("its core is not online"),
            Why::Forbidden => f.write_str("its core may not forward"),
        }
    }
}
