//! Rows of RX queues (Q3, Q4): the result of a lookup for destinations whose flows a NIC's classifier steers to a
//! queue.
//!
//! A row is always equal to a lookup. A change of the tables that changes a lookup rewrites the row within the same
//! [`Tables::apply`], so before anything that the row leads to may be reused. An empty row costs a lookup and nothing
//! else.

use super::{
    Tables,
    answer::{find_interface, only_next_hop},
    links::interface_words,
    nexthops::address_bytes,
};
use crate::{
    memory::{Memory, words},
    plan::{InterfaceId, Op, PortId, RouterId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering::Release},
};

/// The number of a port's RX queues that can have rows.
pub const MAX_QUEUES: usize = 64;
/// The number of rows of a queue.
pub const QUEUE_WAYS: usize = 8;
/// The number of rows of a queue for one address family.
pub const FAMILY_WAYS: usize = 4;

/// The number of rows for this many ports, for [`crate::memory::HeapMemory::with_queue_rows`] and the map.
pub const fn queue_rows(ports: usize) -> usize {
    ports * MAX_QUEUES * QUEUE_WAYS
}

/// Packets to a destination that a classifier steers to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Steered {
    /// The port where they arrive.
    pub port: PortId,
    /// The RX queue to which they are steered. A queue that cannot have rows is allowed.
    pub queue: u8,
    /// The interface to which they belong.
    pub interface: InterfaceId,
    /// Their destination address.
    pub destination: IpAddr,
}

impl Steered {
    /// The number of the row that may hold it. If two need the same row, the first one gets it.
    pub fn row(&self) -> Option<usize> {
        let queue = usize::from(self.queue);
        let family = if self.destination.is_ipv4() { 0 } else { FAMILY_WAYS };
        let way = family + usize::from(last_byte(self.destination)) % FAMILY_WAYS;
        (queue < MAX_QUEUES).then(|| (usize::from(self.port) * MAX_QUEUES + queue) * QUEUE_WAYS + way)
    }
}

/// The last byte of an address. `queue_way` of `bpf/queues.h` uses its lowest bits.
fn last_byte(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(a) => a.octets()[3],
        IpAddr::V6(a) => a.octets()[15],
    }
}

/// `struct queue_row` without its version: the interface's slot, destination, next hop and MTU.
type Content = [u64; 5];

struct Row {
    steered: Steered,
    router: RouterId,
    /// `None`: packets need a lookup.
    content: Option<Content>,
}

/// The rows that are in use.
#[derive(Default)]
pub(super) struct Queues {
    rows: BTreeMap<usize, Row>,
    /// The last version that was used.
    version: u64,
}

impl<M: Memory> Tables<M> {
    /// Sets which rows exist from now on.
    pub fn set_steered(&mut self, wanted: &BTreeSet<Steered>) {
        let gone = self.queues.rows.iter().filter(|(_, row)| !wanted.contains(&row.steered));
        for at in gone.map(|(at, _)| *at).collect::<Vec<_>>() {
            self.queues.rows.remove(&at);
            self.write_queue_row(at, None);
        }
        for steered in wanted {
            let Some(at) = steered.row().filter(|at| !self.queues.rows.contains_key(at)) else { continue };
            let row = Row { steered: *steered, router: 0, content: None };
            self.queues.rows.insert(at, row);
            self.settle_queue_row(at);
        }
    }

    /// The id of the next hop that a row for this would hold.
    pub fn row_next_hop(&self, steered: &Steered) -> Option<u32> {
        self.queue_row_content(steered).map(|content| content[4] as u32)
    }

    /// Those that have a row with content now.
    pub fn steered(&self) -> impl Iterator<Item = &Steered> {
        self.queues.rows.values().filter(|row| row.content.is_some()).map(|row| &row.steered)
    }

    /// Updates the rows after `op`. `all`: every row, not only those that `op` can change.
    pub(super) fn settle_queues(&mut self, op: &Op, all: bool) {
        if self.queues.rows.is_empty() {
            return;
        }
        let touches = |row: &Row| match (op, row.steered.destination) {
            _ if all => true,
            (Op::Route4(router, prefix, _), IpAddr::V4(to)) => {
                row.router == *router && prefix.contains(to.to_bits())
            }
            (Op::Route6(router, prefix, _), IpAddr::V6(to)) => {
                row.router == *router && prefix.contains(to.to_bits())
            }
            (Op::Route4(..) | Op::Route6(..), _) => false,
            // A gateway's MAC address changes in the next hop itself.
            (Op::Neighbour(_, address, _), to) => *address == to,
            _ => true,
        };
        let touched = self.queues.rows.iter().filter(|(_, row)| touches(row)).map(|(at, _)| *at);
        touched.collect::<Vec<_>>().into_iter().for_each(|at| self.settle_queue_row(at));
    }

    pub(super) fn settle_all_queues(&mut self) {
        let all: Vec<_> = self.queues.rows.keys().copied().collect();
        all.into_iter().for_each(|at| self.settle_queue_row(at));
    }

    fn settle_queue_row(&mut self, at: usize) {
        let Some(steered) = self.queues.rows.get(&at).map(|row| row.steered) else { return };
        let interface = self.interfaces.get(&steered.interface);
        let router = interface.map_or(0, |i| i.router);
        let content = self.queue_row_content(&steered);
        let Some(row) = self.queues.rows.get_mut(&at) else { return };
        row.router = router;
        if row.content != content {
            row.content = content;
            self.write_queue_row(at, content);
        }
    }

    /// The result of a lookup.
    fn queue_row_content(&self, steered: &Steered) -> Option<Content> {
        let interface = self.interfaces.get(&steered.interface).filter(|i| i.port == steered.port)?;
        let [first, second] = interface_words(steered.interface, interface);
        find_interface(&self.memory, first, second as u32).filter(|found| *found == second)?;
        let (nexthop, mtu) = only_next_hop(&self.memory, interface.router, steered.destination)?;
        let address = address_bytes(steered.destination);
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| address[at + i]));
        Some([first, second, word(0), word(8), u64::from(nexthop) | u64::from(mtu) << 32])
    }

    /// Writes a row. The version is 0 while the other words change, and each content gets a new version.
    fn write_queue_row(&mut self, at: usize, content: Option<Content>) {
        let from = at * words::QUEUE_ROW;
        let Some(row) = self.memory.queues().get(from..from + words::QUEUE_ROW) else { return };
        row[0].store(0, Release);
        let Some(content) = content else { return };
        store_all(&row[1..], content);
        self.queues.version += 1;
        row[0].store(self.queues.version, Release);
    }
}

/// Stores each word with release order, so no reader sees one of them before it sees version 0.
fn store_all(words: &[AtomicU64], values: Content) {
    words.iter().zip(values).for_each(|(word, value)| word.store(value, Release));
}

#[cfg(test)]
mod tests {
    use super::{super::tests::plain_interface, *};
    use crate::{
        memory::{Capacity, HeapMemory},
        net::Mac,
        plan::{Hop, Interface, MultipathHash, Target},
    };
    use std::sync::atomic::Ordering::Relaxed;

    const CAPACITY: Capacity = Capacity {
        fib_blocks: 100,
        fib_tails: 100,
        nexthops: 100,
        neighbour_buckets: 4,
        interface_buckets: 4,
        routers: 3,
    };

    fn tables() -> Tables<HeapMemory> {
        let mut tables = Tables::new(HeapMemory::with_queue_rows(CAPACITY, queue_rows(1)));
        let hop = |gateway: Option<&str>, mtu| {
            let gateway = gateway.map(|g| g.parse().unwrap());
            Some(Target::Hop(Hop { interface: 2, gateway, mtu }))
        };
        for op in [
            Op::Router { router: 0, multipath: MultipathHash::default() },
            Op::Interface(1, inside()),
            Op::Interface(2, plain_interface(2)),
            Op::Route4(0, "10.0.2.0/24".parse().unwrap(), hop(None, 1400)),
            Op::Route4(0, "10.8.0.0/16".parse().unwrap(), hop(Some("10.0.2.9"), 1300)),
            Op::Neighbour(2, "10.0.2.9".parse().unwrap(), Some(Mac([2, 0, 0, 0, 0, 9]))),
        ] {
            tables.apply(&op).unwrap();
        }
        tables
    }

    fn inside() -> Interface {
        Interface { port: 0, ..plain_interface(1) }
    }

    fn steered(queue: u8, destination: &str) -> Steered {
        Steered { port: 0, queue, interface: 1, destination: destination.parse().unwrap() }
    }

    fn row(tables: &Tables<HeapMemory>, steered: &Steered) -> [u64; words::QUEUE_ROW] {
        let at = steered.row().unwrap() * words::QUEUE_ROW;
        std::array::from_fn(|i| tables.memory.queues()[at + i].load(Relaxed))
    }

    /// The words are those of `struct queue_row` in bpf/abi.h.
    #[test]
    fn rows_are_those_of_the_abi() {
        let mut tables = tables();
        let (far, near) = (steered(3, "10.8.1.2"), steered(63, "10.0.2.9"));
        tables.set_steered(&[far, near].into());
        let interface = interface_words(1, &inside());
        let id = |to: &str| tables.lookup(0, to.parse().unwrap())[0].nexthop;
        let [version, first, second, lo, hi, next, ..] = row(&tables, &far);
        assert_ne!(version, 0);
        assert_eq!([first, second, lo, hi], [interface[0], interface[1], u64::from(0x0201_080a_u32), 0]);
        assert_eq!(next, u64::from(id("10.8.1.2")) | u64::from(u32::MAX) << 32);
        assert_eq!(tables.row_next_hop(&far), Some(id("10.8.1.2")));
        assert_eq!(tables.row_next_hop(&steered(3, "10.9.0.1")), None);
        assert_eq!(tables.steered().collect::<Vec<_>>(), [&far, &near]);
        let [other, .., next, _, _] = row(&tables, &near);
        assert_ne!(other, version, "no version is used twice");
        assert_eq!(next, u64::from(id("10.0.2.9")) | 1400 << 32, "the MTU of a connected route");
        let used = tables.memory.queues().chunks(words::QUEUE_ROW).filter(|r| r[0].load(Relaxed) != 0);
        assert_eq!(used.count(), 2);
    }

    #[test]
    fn a_row_goes_with_what_it_says_and_comes_back() {
        let mut tables = tables();
        let wanted = steered(3, "10.8.1.2");
        tables.set_steered(&[wanted].into());
        let before = row(&tables, &wanted);
        let route = |prefix: &str, target| Op::Route4(0, prefix.parse().unwrap(), target);
        let local = Target::Pass { reason: crate::reason::Reason::Local, unicast: false };
        tables.apply(&route("10.8.1.2/32", Some(local))).unwrap();
        assert_eq!(
            (row(&tables, &wanted)[0], tables.steered().count()),
            (0, 0),
            "packets go to the kernel now"
        );
        tables.apply(&route("10.8.1.2/32", None)).unwrap();
        let after = row(&tables, &wanted);
        assert_eq!(before[1..], after[1..]);
        assert!(after[0] > before[0]);
        tables.apply(&route("10.9.0.0/16", None)).unwrap();
        assert_eq!(row(&tables, &wanted), after, "another route does not change the row");
        tables.apply(&Op::InterfaceGone(1)).unwrap();
        assert_eq!(row(&tables, &wanted)[0], 0, "packets for the interface go to the kernel");
        tables.apply(&Op::Interface(1, inside())).unwrap();
        assert_ne!(row(&tables, &wanted)[0], 0);
        tables.set_steered(&BTreeSet::new());
        assert_eq!((row(&tables, &wanted)[0], tables.queues.rows.len()), (0, 0));
    }

    #[test]
    fn each_queue_has_four_rows_for_each_family() {
        let row = |port, queue, destination: &str| Steered { port, ..steered(queue, destination) }.row();
        assert_eq!([0, 3, 6].map(|last| row(0, 0, &format!("10.0.1.{last}"))), [Some(0), Some(3), Some(2)]);
        assert_eq!([0, 3, 6].map(|last| row(0, 0, &format!("fd00::1:{last}"))), [Some(4), Some(7), Some(6)]);
        assert_eq!((row(0, 1, "10.0.1.4"), row(0, 63, "fd00::103")), (Some(8), Some(63 * 8 + 7)));
        assert_eq!((row(2, 5, "10.0.1.1"), row(0, 64, "10.0.1.1")), (Some((2 * 64 + 5) * 8 + 1), None));
    }

    #[test]
    fn a_queue_that_has_no_rows_gets_none() {
        let mut tables = tables();
        tables.set_steered(&[steered(64, "10.8.1.2"), Steered { port: 5, ..steered(3, "10.8.1.2") }].into());
        assert!(tables.memory.queues().iter().all(|word| word.load(Relaxed) == 0));
    }
}
