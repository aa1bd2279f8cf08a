//! Changes in the middle of traffic. Each has commands that make it, and commands that undo it as far as that is
//! possible: both beds have the same past, so what remains is part of the next comparison.

mod addresses;
mod devices;
mod neighbours;
mod policy;
mod routes;
mod settings;

use crate::draft::Draft;

/// Begins a command of a host's change that runs in the tenant's namespace. `TENANT` in a command is a process there.
pub const IN_TENANT: &str = "in tenant: ";

/// A change, where it is made, and how it shows.
#[derive(Clone, Debug)]
pub struct Change {
    /// The kind. There is never more than one of a kind in force.
    pub name: &'static str,
    pub tenant: bool,
    pub make: Vec<String>,
    pub undo: Vec<String>,
    /// The text that `millrace routers` or `millrace interfaces` shows while the change is in force; `None`
    /// if neither shows it.
    pub shows: Option<&'static str>,
}

impl Change {
    fn new(name: &'static str, make: Vec<String>, undo: Vec<String>) -> Change {
        Change { name, tenant: false, make, undo, shows: None }
    }

    fn shows(self, text: &'static str) -> Change {
        Change { shows: Some(text), ..self }
    }

    fn of(self, tenant: bool) -> Change {
        Change { tenant, ..self }
    }
}

type Make = fn(&mut Draft<'_>) -> Change;

/// The kinds, and how often each is made compared with the others.
const KINDS: &[(u32, Make)] = &[
    (2, policy::qdisc),
    (2, policy::filter),
    (3, policy::chain),
    (3, policy::stateful_filter),
    (3, policy::rule),
    (1, policy::ipsec),
    (3, devices::master_or_taker),
    (2, devices::flags),
    (2, devices::mac),
    (3, devices::down),
    (1, devices::gone),
    (1, devices::vlan),
    (6, routes::some),
    (1, routes::encap),
    (4, routes::objects),
    (2, routes::resilient),
    (4, neighbours::neighbour),
    (2, addresses::local_prefix),
    (3, addresses::address),
    (8, settings::setting),
];

/// A change at random.
pub fn random(draft: &mut Draft<'_>) -> Change {
    let all: u32 = KINDS.iter().map(|kind| kind.0).sum();
    let mut at = draft.rng.u32(..all);
    for (weight, make) in KINDS {
        match at.checked_sub(*weight) {
            Some(rest) => at = rest,
            None => return make(draft),
        }
    }
    unreachable!("the weights add up")
}
