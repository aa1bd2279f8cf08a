//! What elements need of each other, and which lists of elements are chains.

use super::Element;
use std::{fmt, ops::BitOr};

/// The set of properties that are known about all packets without a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known(u8);

impl Known {
    /// Nothing.
    pub const NOTHING: Known = Known(0);
    /// The position of the IP header. It was checked.
    pub const HEADERS: Known = Known(1);
    /// The next hop.
    pub const NEXT_HOP: Known = Known(2);
    /// The hop is counted: the TTL or hop limit has been decremented.
    pub const HOP_COUNTED: Known = Known(4);
    /// The frame has been written to, so it may no longer go up.
    pub const WRITTEN: Known = Known(8);
    /// The port by which the packet leaves, if it gets no other verdict.
    pub const EXIT: Known = Known(16);

    const NAMES: [(Known, &'static str); 5] = [
        (Known::HEADERS, "the position of the headers (check)"),
        (Known::NEXT_HOP, "the next hop (route)"),
        (Known::HOP_COUNTED, "that the hop is counted (ttl)"),
        (Known::WRITTEN, "that it is written to"),
        (Known::EXIT, "an exit (rewrite, forward or discard)"),
    ];

    /// Whether it contains all of `other`.
    pub const fn has(self, other: Known) -> bool {
        self.0 & other.0 == other.0
    }
    /// The set without `other`.
    pub const fn without(self, other: Known) -> Known {
        Known(self.0 & !other.0)
    }
    /// The set with `other`.
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

/// What an element needs and what it provides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contract {
    /// Must be known before it.
    pub needs: Known,
    /// Is known after it.
    pub gives: Known,
    /// Is no longer known after it.
    pub forgets: Known,
    /// It may pass packets up, so nothing may have been written to them.
    pub passes_up: bool,
    /// It encrypts. If an element before it passed packets up, the kernel would forward them unencrypted
    /// (`clear`).
    pub encrypts: bool,
    /// No packet goes on after it.
    pub ends: bool,
    /// Its work depends on the time ([`super::Now::ns`]).
    pub asks_when: bool,
    /// It is a part that runs together with the other parts, if they follow one another.
    pub part: Option<Part>,
}

/// The parts of a router, in this order ([`super::Joined`]).
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
    /// All parts, in order.
    pub const ALL: [Option<Part>; 4] =
        [Some(Part::Check), Some(Part::Route), Some(Part::Ttl), Some(Part::Rewrite)];
}

/// A list that is not a chain. Elements are counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChain {
    /// No element.
    #[error("a chain has at least one element")]
    Empty,
    /// It needs an element before it.
    #[error("element {at}, {name}, needs to know about a packet: {missing}")]
    Needs {
        /// The position of the element.
        at: usize,
        /// Its name.
        name: &'static str,
        /// What no element before it provides.
        missing: Known,
    },
    /// It passes packets up after an element has written to them.
    #[error(
        "element {at}, {name}, may pass packets to the kernel: it must come before those that write to them"
    )]
    TooLate {
        /// The position of the element.
        at: usize,
        /// Its name.
        name: &'static str,
    },
    /// It would send packets elsewhere than an earlier element, which has already written to them for its
    /// exit.
    #[error("element {at}, {name}, sets where packets leave, but an element before it has done so")]
    TwoExits {
        /// The position of the element.
        at: usize,
        /// Its name.
        name: &'static str,
    },
    /// No packet reaches it.
    #[error("element {at}, {name}, gets no packet: the one before it drops all")]
    Behind {
        /// The position of the element.
        at: usize,
        /// Its name.
        name: &'static str,
    },
    /// No element sets an exit.
    #[error("no element sets where packets leave: add rewrite, forward or discard")]
    NoExit,
}

/// Checks whether this list is a chain.
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
