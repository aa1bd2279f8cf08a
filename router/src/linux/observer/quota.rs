//! Limits of namespaces and of their owners.

use super::HOST;
use crate::linux::netlink::{route, socket::Most};
use logic::observe::NamespaceId;

/// Limits for a namespace other than the host's. Root in it is not trusted: without limits, it could use up memory and
/// the time of the control thread. Over them, the namespace is left to the kernel, and `status` reports this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// As many as a large provider edge router has. Each takes a row in several tables, and reading 4,096 takes 50 ms.
    pub interfaces: usize,
    /// IPv4 and IPv6 together. The control thread takes in this many in less than 20 ms. A full table of the Internet
    /// is larger; a namespace with one needs a higher limit.
    pub routes: usize,
    /// IPv4 and IPv6 together: a /18 with every address in use.
    pub neighbours: usize,
    /// Kernel messages. A routing daemon that loads a table sends more for some seconds; the namespace is then read as
    /// a whole.
    pub events_per_second: usize,
    /// The number of messages allowed in a burst.
    pub events_at_once: usize,
    /// The number of watched namespaces of one owner. Namespaces of root and configured ones are not limited.
    pub namespaces: usize,
}

impl Default for Quota {
    fn default() -> Self {
        Quota {
            interfaces: 4096,
            routes: 24 << 10,
            neighbours: 1 << 14,
            events_per_second: 20_000,
            events_at_once: 50_000,
            namespaces: 16,
        }
    }
}

impl Quota {
    const NONE: Quota = Quota {
        interfaces: usize::MAX,
        routes: usize::MAX,
        neighbours: usize::MAX,
        events_per_second: usize::MAX,
        events_at_once: usize::MAX,
        namespaces: usize::MAX,
    };

    /// The quota of a namespace: the host has none.
    pub(super) fn of(self, id: NamespaceId) -> Quota {
        if id == HOST { Quota::NONE } else { self }
    }
    pub(super) fn interfaces(&self) -> Most {
        Most::new(self.interfaces, "network devices")
    }
    /// A device can have several.
    pub(super) fn addresses(&self) -> Most {
        Most::new(self.interfaces.saturating_mul(16), "addresses")
    }
    pub(super) fn routes(&self) -> Most {
        Most::new(self.routes, "routes").weighed(route::weight)
    }
    pub(super) fn neighbours(&self) -> Most {
        Most::new(self.neighbours, "neighbours")
    }
}
