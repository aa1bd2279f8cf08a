//! Turns a plan into words of memory: next hops, neighbours, the interface index, router rows and their tables.
//!
//! There is one writer and any number of readers (the program in `bpf/`, the user plane). A reader goes from the
//! interface index to the router row, the forwarding table, the next hop and the neighbour index. Everything that it
//! can reach is complete. An entry is written before the one word that leads to it, and reused only after a grace
//! period ([`Tables::seal`], [`Tables::reclaim`]).
//!
//! The following may change in an entry that readers can see, each in one aligned store:
//! - next hop: `link`; the word of `reason` and `flags` (only the reason of a next hop without link, and FRAGS);
//! - a slot of a forwarding block, of a group, of the neighbour index; both leaves of a tail (one word);
//! - the second word of an interface slot (zero first when the slot gets another key);
//! - router row: a root, the flags, each word of the multipath key, each word of the local address filter;
//! - a row of an RX queue, behind its version.
//!
//! Anything else about a next hop (the interface's MAC address, port or VLAN) changes by making a new next hop and
//! rewriting every slot that led to the old one.
//!
//! | file | holds |
//! |---|---|
//! | `routes` | router rows, routes, ECMP groups, the guards for martian destinations |
//! | `links` | ports, interfaces, neighbours |
//! | `rules` | rules of firewalls: pairs of interfaces, exceptions |
//! | `connections` | connections that rules accept; they are not part of [`Tables`] |
//! | `queues` | rows of RX queues: what a lookup finds for destinations that a classifier steers there |
//! | `nexthops`, `groups`, `buckets` | ids and words; the choice within a group; places of index keys |
//! | `answer` | reads the tables back as the program does |
//! | `ingress` | finds the interface of a frame |

mod answer;
mod buckets;
pub mod connections;
mod groups;
mod ingress;
mod links;
mod nexthops;
mod queues;
#[cfg(test)]
mod race;
mod routes;
mod rules;
#[cfg(test)]
mod tests;

/// Constants for the words of the tables. `router::abi` compares them with the program's header.
pub mod encoding {
    pub use super::{
        links::{
            IF_ACCEPT_LOCAL, IF_IPV4, IF_IPV6, IF_LOOK_AT_SOURCES, IF_PRIORITY_TAGS, IF_REDIRECTS,
            IF_RPF_LOOSE, IF_RPF_STRICT, INTERFACE_WAYS,
        },
        nexthops::{FLAG_FRAGS, FLAG_LOCAL, FLAG_UNICAST, KIND_ONLINK, KIND_PASS, KIND_VIA},
        queues::{FAMILY_WAYS, MAX_QUEUES, QUEUE_WAYS},
        rules::{CHANGES, GENERATION, RANGES, RANGES_USED, ROUTER_CONNECTIONS, ROUTER_RULES},
    };
}

pub use crate::fib::{Epoch, Full, Occupancy, Region};
pub use answer::{Answer, lookup};
pub(crate) use answer::{Nexthop, RouterRow, find_neighbour, nexthop, nexthop_of, nexthop_rows};
pub(crate) use groups::choose;
pub use ingress::{Arrivals, Ingress};
pub use queues::{MAX_QUEUES, Steered, queue_rows};
pub use routes::{holds4, holds6};

use crate::{
    fib::{Pool, empty_root},
    memory::{Memory, words},
    net::{Mac, Vlan},
    plan::{InterfaceId, Op, PortId, RouterId},
};
use buckets::Buckets;
use groups::Groups;
use links::Neighbour;
use nexthops::Nexthops;
use queues::Queues;
use routes::{Pending, Router};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Release},
};

/// The tables of the kernel plane, in memory that both share.
pub struct Tables<M> {
    memory: M,
    pool: Pool,
    nexthops: Nexthops,
    groups: Groups,
    routers: BTreeMap<RouterId, Router>,
    /// Whether each port transmits multi-buffer frames.
    ports: BTreeMap<PortId, bool>,
    interfaces: BTreeMap<InterfaceId, crate::plan::Interface>,
    interface_index: Buckets<InterfaceId>,
    neighbours: BTreeMap<(InterfaceId, IpAddr), Neighbour>,
    neighbour_index: Buckets<(InterfaceId, IpAddr)>,
    /// Neighbours that should be in the index, but got no next hop id.
    starved: BTreeSet<(InterfaceId, IpAddr)>,
    /// The neighbours that have each MAC address.
    by_mac: BTreeSet<(Mac, InterfaceId, IpAddr)>,
    /// The number of interfaces and other links of this box that have this MAC address on this port and VLAN.
    boxes: HashMap<(PortId, Vlan, Mac), u32>,
    others: Arc<[(PortId, Vlan, Mac)]>,
    /// Routes that lead to the kernel because there was no next hop id or group block for them.
    pending: Pending,
    queues: Queues,
    /// Something was applied since the last [`Tables::seal`].
    changed: bool,
    freed: bool,
}

impl<M: Memory> Tables<M> {
    /// Takes over `memory`, which nobody reads yet, and initializes it without routers. Both indexes must have a power
    /// of two of buckets.
    pub fn new(memory: M) -> Self {
        let zero = |region: &[std::sync::atomic::AtomicU64]| {
            region.iter().for_each(|word| word.store(0, Release));
            region.len()
        };
        memory.fib().iter().take(words::FIB_BLOCK).for_each(|slot| slot.store(0, Release));
        let neighbour_buckets = zero(memory.neighbour_index()) / words::NEIGHBOUR_BUCKET;
        let interface_buckets = zero(memory.interface_index()) / words::INTERFACE_BUCKET;
        zero(memory.routers());
        zero(memory.queues());
        zero(memory.firewalls());
        zero(memory.interface_groups());
        for row in memory.routers().chunks_exact(words::ROUTER) {
            row[0].store(empty_root::<u32>(), Release);
            row[1].store(empty_root::<u128>(), Release);
        }
        Self {
            pool: Pool::new(&memory),
            nexthops: Nexthops::new(&memory),
            groups: Groups::default(),
            routers: BTreeMap::new(),
            ports: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            interface_index: Buckets::new(interface_buckets, links::INTERFACE_WAYS),
            neighbours: BTreeMap::new(),
            neighbour_index: Buckets::new(neighbour_buckets, words::NEIGHBOUR_BUCKET),
            starved: BTreeSet::new(),
            by_mac: BTreeSet::new(),
            boxes: HashMap::new(),
            others: Arc::default(),
            pending: Pending::default(),
            queues: Queues::default(),
            changed: false,
            freed: false,
            memory,
        }
    }

    /// The shared memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Carries out one change. `Err` means that a map was full. The change is noted, and the part that found no room
    /// leads to the kernel until [`Tables::reclaim`] has made room for it.
    pub fn apply(&mut self, op: &Op) -> Result<(), Full> {
        self.changed = true;
        let done = self.carry_out(op);
        self.settle_queues(op, done.is_err());
        done
    }

    fn carry_out(&mut self, op: &Op) -> Result<(), Full> {
        match op {
            Op::Port { port, frags } => self.set_port(*port, *frags),
            Op::Router { router, multipath } => self.set_router(*router, *multipath),
            Op::Rules { router, tables, generation } => self.set_rules(*router, tables, *generation),
            Op::RouterGone(router) => self.router_gone(*router),
            Op::LocalAddresses { router, addresses } => self.set_local_addresses(*router, addresses),
            Op::Interface(id, interface) => self.set_interface(*id, interface),
            Op::OtherAddresses(addresses) => {
                self.set_others(addresses);
                Ok(())
            }
            Op::InterfaceGone(id) => self.interface_gone(*id),
            Op::Route4(router, prefix, target) => self.set_route(*router, *prefix, target.as_ref()),
            Op::Route6(router, prefix, target) => self.set_route(*router, *prefix, target.as_ref()),
            Op::Neighbour(interface, address, mac) => self.set_neighbour(*interface, *address, *mac),
        }
    }

    /// Ends the current epoch. Call [`Tables::reclaim`] with it after a grace period from now, when every packet that
    /// is now on its way has left all planes.
    pub fn seal(&mut self) -> Epoch {
        self.freed |= std::mem::take(&mut self.changed);
        self.nexthops.seal();
        self.pool.seal()
    }

    /// No reader is left from before `epoch` was sealed, so everything unpublished until then may be reused. Also tries
    /// again what found no room. Returns `Err` if some of it still finds none.
    pub fn reclaim(&mut self, epoch: Epoch) -> Result<(), Full> {
        self.nexthops.reclaim(epoch);
        self.pool.reclaim(epoch);
        if std::mem::take(&mut self.freed) {
            self.pending.try_all();
        }
        let retried = self.retry();
        self.settle_all_queues();
        retried
    }

    /// Whether some entries that found no room are still untried. [`Tables::reclaim`] tries a limited number at a time.
    pub fn has_untried(&self) -> bool {
        self.pending.is_untried()
    }

    /// How full each map is, in rows (in slots for the indexes).
    pub fn occupancy(&self) -> [(Region, Occupancy); 6] {
        let index = |(used, _): (usize, usize), capacity| Occupancy { used, capacity };
        let memory = &self.memory;
        [
            (Region::FibBlocks, self.pool.blocks_used()),
            (Region::FibTails, self.pool.tails_used()),
            (Region::Nexthops, self.nexthops.occupancy()),
            (Region::NeighbourIndex, index(self.neighbour_index.counts(), memory.neighbour_index().len())),
            (
                Region::InterfaceIndex,
                index(self.interface_index.counts(), memory.interface_index().len() / links::SLOT_WORDS),
            ),
            (
                Region::Routers,
                Occupancy { used: self.routers.len(), capacity: memory.routers().len() / words::ROUTER },
            ),
        ]
    }

    /// The numbers of neighbours and interfaces that are not accelerated because both their buckets are full.
    pub fn unplaced(&self) -> (usize, usize) {
        (self.neighbour_index.counts().1, self.interface_index.counts().1)
    }

    /// The neighbours to which the program has sent packets since the last call. They are to be kept alive.
    pub fn take_used(&mut self) -> Vec<(InterfaceId, IpAddr)> {
        self.nexthops.take_used(&self.memory)
    }

    /// Whether the program has sent packets to this neighbour since the last call for it or for all.
    pub fn take_use_of(&mut self, interface: InterfaceId, address: IpAddr) -> bool {
        self.nexthops.take_use_of(&self.memory, interface, address)
    }
}
