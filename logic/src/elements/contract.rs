//! What elements need of each other, and which lists make a chain.

use super::Element;
use std::{fmt, ops::BitOr};

/// What is known of all packets that have no verdict; a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known(u8);

impl Known {
    /// Nothing.
    pub const NOTHING: Known = Known(0);
    /// Where the IP header is, and that it is right.
    pub const HEADERS: Known = Known(1);
    /// The next hop.
    pub const NEXT_HOP: Known = Known(2);
    /// The hop is counted: TTL or hop limit is one less than it was.
    pub const HOP_COUNTED: Known = Known(4);
    /// The frame is written to, so it may no longer go up.
    pub const WRITTEN: Known = Known(8);
    /// The port it leaves by, if it gets no other verdict.
    pub const EXIT: Known = Known(16);

    const NAMES: [(Known, &'static str); 5] = [
        (Known::HEADERS, "where the headers are (check)"),
        (Known::NEXT_HOP, "the next hop (route)"),
        (Known::HOP_COUNTED, "that the hop is counted (ttl)"),
        (Known::WRITTEN, "that it is written to"),
        (Known::EXIT, "an exit (rewrite, forward or discard)"),
    ];

    /// Is all of `other` in it?
    pub const fn has(self, other: Known) -> bool {
        self.0 & other.0 == other.0
    }
    /// Without `other`.
    pub const fn without(self, other: Known) -> Known {
        Known(self.0 & !other.0)
    }
    /// With `other`.
    pub const fn and(self, other: Known) -> Known {
        Known(self.0 | other.0)
    }
}

impl BitOr for Known {
    type Output = Known;
    fn bitor(self, other: Known) -> Known {
        self.and(other)
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (_, name) in Known::NAMES.iter().filter(|(known, _)| self.has(*known)) {
            write!(f, "{between}{name}")?;
            between = ", ";
        }
        Ok(())
    }
}

/// What an element needs, and leaves behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contract {
    /// Must be known before it.
    pub needs: Known,
    /// Is known after it.
    pub gives: Known,
    /// Is no longer known after it.
    pub forgets: Known,
    /// It may pass packets up: nothing may have been written to them.
    pub passes_up: bool,
    /// It encrypts: what an element in front of it passes up, the kernel would forward in clear (`clear`).
    pub encrypts: bool,
    /// No packet goes beyond it.
    pub ends: bool,
    /// What it does depends on the time ([`super::Now::ns`]).
    pub asks_when: bool,
    /// It is one of those that run as one where they follow one another.
    pub part: Option<Part>,
}

/// Of what a router is: these, in this order ([`super::Joined`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// [`super::Check`].
    Check,
    /// [`super::Route`], which does the work of all.
    Route,
    /// [`super::Ttl`].
    Ttl,
    /// [`super::Rewrite`].
    Rewrite,
}

impl Part {
    /// All, in order.
    pub const ALL: [Option<Part>; 4] =
        [Some(Part::Check), Some(Part::Route), Some(Part::Ttl), Some(Part::Rewrite)];
}

/// A list that is no chain. Elements are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChain {
    /// No element.
    #[error("a chain has at least one element")]
    Empty,
    /// Something must come before it.
    #[error("element {at}, {name}, needs to know of a packet: {missing}")]
    Needs {
        /// Which.
        at: usize,
        /// Its name.
        name: &'static str,
        /// What no element before it gives.
        missing: Known,
    },
    /// It passes up what must go up as it came.
    #[error(
        "element {at}, {name}, may pass packets to the kernel: it must come before those that write to them"
    )]
    TooLate {
        /// Which.
        at: usize,
        /// Its name.
        name: &'static str,
    },
    /// It would send packets elsewhere than an element before it, which has written to them for that.
    #[error("element {at}, {name}, says where packets leave, which one before it has said")]
    TwoExits {
        /// Which.
        at: usize,
        /// Its name.
        name: &'static str,
    },
    /// No packet comes to it.
    #[error("element {at}, {name}, gets no packet: the one before it drops all")]
    Behind {
        /// Which.
        at: usize,
        /// Its name.
        name: &'static str,
    },
    /// Nothing says where packets leave.
    #[error("no element says where packets leave: rewrite, forward or discard")]
    NoExit,
}

/// Is this list a chain?
pub(super) fn check(elements: &[Box<dyn Element>]) -> Result<(), BadChain> {
    if elements.is_empty() {
        return Err(BadChain::Empty);
    }
    let (mut known, mut ended) = (Known::NOTHING, false);
    for (at, element) in (1..).zip(elements) {
        let (contract, name) = (element.contract(), element.name());
        if ended {
            return Err(BadChain::Behind { at, name });
        }
        if !known.has(contract.needs) {
            return Err(BadChain::Needs { at, name, missing: contract.needs.without(known) });
        }
        if contract.passes_up && known.has(Known::WRITTEN) {
            return Err(BadChain::TooLate { at, name });
        }
        if known.has(Known::EXIT) && contract.gives.has(Known::EXIT) {
            return Err(BadChain::TwoExits { at, name });
        }
        known = known.without(contract.forgets) | contract.gives;
        ended = contract.ends;
    }
    if known.has(Known::EXIT) { Ok(()) } else { Err(BadChain::NoExit) }
}
