//! Parties, which share scarce numbers and work. A party is an owner of namespaces, or one
//! namespace that root made.

use crate::observe::{Namespace, NamespaceId, Owner};
use std::collections::BTreeMap;

/// `None`: the host, which has no limit.
pub(super) type Party = Option<(Owner, NamespaceId)>;

pub(super) fn party(namespace: NamespaceId, about: &Namespace) -> Party {
    match about.owner {
        _ if about.host => None,
        Owner::Machine => Some((Owner::Machine, namespace)),
        owner => Some((owner, NamespaceId::MAX)),
    }
}

/// Counts per party.
#[derive(Default)]
pub(super) struct Parties(BTreeMap<(Owner, NamespaceId), usize>);

impl Parties {
    pub fn add(&mut self, party: Party, more: usize) {
        if let Some(party) = party {
            *self.0.entry(party).or_default() += more;
        }
    }

    pub fn of(&self, party: Party) -> usize {
        party.and_then(|party| self.0.get(&party)).copied().unwrap_or(0)
    }

    /// The number of parties with a count.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}
