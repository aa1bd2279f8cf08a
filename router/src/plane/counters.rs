//! The counters of the kernel plane, summed over CPUs.

use super::{MAX_PORTS, MAX_ROUTERS, Words64, memory::Mapping};
use crate::abi::types;
use anyhow::Result;
use libbpf_rs::{MapCore, MapHandle};
use logic::{
    plan::{InterfaceId, PortId, RouterId},
    reason::Reason,
};
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

/// Rows of `charges` per CPU: routers, ports, and one for devices that are not ports.
pub const CHARGE_ROWS: usize = MAX_ROUTERS + MAX_PORTS + 1;

const REASON_WORDS: usize = size_of::<types::charges>() / 8;
const COUNTER_WORDS: usize = size_of::<types::interface_counters>() / 8;

const _: () = assert!(Reason::COUNT <= REASON_WORDS);

/// Counters of one interface, or of all packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCount {
    /// Packets classified to it and not forwarded.
    pub other_packets: u64,
    pub other_bytes: u64,
    /// Packets forwarded out through it.
    pub tx_packets: u64,
    pub tx_bytes: u64,
    /// Packets that were timed, and the time that they took from entry to verdict, transmit excluded.
    pub samples: u64,
    pub sample_ns: u64,
    /// Received packets that were forwarded.
    pub forwarded_packets: u64,
    pub forwarded_bytes: u64,
}

impl InterfaceCount {
    /// All of them, in the order of `struct interface_counters`.
    pub(crate) fn fields(&mut self) -> [&mut u64; COUNTER_WORDS] {
        [
            &mut self.other_packets,
            &mut self.other_bytes,
            &mut self.tx_packets,
            &mut self.tx_bytes,
            &mut self.samples,
            &mut self.sample_ns,
            &mut self.forwarded_packets,
            &mut self.forwarded_bytes,
        ]
    }

    /// Packets classified to it, forwarded or not.
    pub fn rx_packets(&self) -> u64 {
        self.forwarded_packets.wrapping_add(self.other_packets)
    }

    /// Their bytes.
    pub fn rx_bytes(&self) -> u64 {
        self.forwarded_bytes.wrapping_add(self.other_bytes)
    }

    /// Adds another's counts, wrapping.
    pub fn add(&mut self, mut other: InterfaceCount) {
        for (mine, theirs) in self.fields().into_iter().zip(other.fields()) {
            *mine = mine.wrapping_add(*theirs);
        }
    }
}

/// The payer of a packet that was not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Charge {
    /// The router it was classified to.
    Router(RouterId),
    /// The port it came in by, when no interface matched.
    Port(PortId),
    /// A device that is not a port.
    Other,
}

/// Everything counted so far by one generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets the program saw.
    pub packets: u64,
    /// By interface id; interfaces with no packets are left out.
    pub interfaces: BTreeMap<InterfaceId, InterfaceCount>,
    /// Packets not forwarded, by payer and reason; zeroes are left out.
    pub charges: BTreeMap<(Charge, Reason), u64>,
}

impl Counters {
    /// The counters of a generation that is pinned in `directory`; `None` if it is not pinned there, or if its
    /// version has another layout.
    pub fn pinned(directory: &Path, generation: u64) -> Option<Counters> {
        let open = |name: &str, words: usize| {
            let map = MapHandle::from_pinned_path(directory.join(format!("{name}-{generation}"))).ok()?;
            (map.value_size() as usize == words * 8).then_some(map)
        };
        let (counters, charges) = (open("counters", COUNTER_WORDS)?, open("charges", REASON_WORDS)?);
        let cpus = libbpf_rs::num_possible_cpus().ok()?;
        let rows = counters.max_entries() as usize / cpus;
        let fits = rows * cpus == counters.max_entries() as usize;
        let fits = fits && charges.max_entries() as usize == cpus * CHARGE_ROWS;
        fits.then(|| read(counters.as_fd(), charges.as_fd(), cpus, rows as u32).ok()).flatten()
    }
}

pub(super) fn read(
    counters: BorrowedFd<'_>,
    charges: BorrowedFd<'_>,
    cpus: usize,
    rows: u32,
) -> Result<Counters> {
    let rows = rows as usize;
    let counters: Words64 = Mapping::new(counters, COUNTER_WORDS * 8, cpus * rows)?.into();
    let charges: Words64 = Mapping::new(charges, REASON_WORDS * 8, cpus * CHARGE_ROWS)?.into();
    let mut sum = Counters::default();
    for cpu in 0..cpus {
        sum.packets += counters.load(cpu * rows * COUNTER_WORDS);
        for row in 1..rows {
            let at = (cpu * rows + row) * COUNTER_WORDS;
            let mut count = InterfaceCount::default();
            for (i, field) in count.fields().into_iter().enumerate() {
                *field = counters.load(at + i);
            }
            if count != InterfaceCount::default() {
                sum.interfaces.entry(row as InterfaceId).or_default().add(count);
            }
        }
        for row in 0..CHARGE_ROWS {
            for reason in Reason::all() {
                let packets = charges.load((cpu * CHARGE_ROWS + row) * REASON_WORDS + reason as usize);
                if packets != 0 {
                    *sum.charges.entry((charge(row), reason)).or_default() += packets;
                }
            }
        }
    }
    Ok(sum)
}

/// Packets charged to all ports for one reason. It costs less than [`read`].
pub(super) fn charged_to_ports(charges: BorrowedFd<'_>, cpus: usize, reason: Reason) -> Result<u64> {
    let charges: Words64 = Mapping::new(charges, REASON_WORDS * 8, cpus * CHARGE_ROWS)?.into();
    let ports = |cpu| (0..MAX_PORTS).map(move |port| cpu * CHARGE_ROWS + MAX_ROUTERS + port);
    let rows = (0..cpus).flat_map(ports);
    Ok(rows.map(|row| charges.load(row * REASON_WORDS + reason as usize)).sum())
}

fn charge(row: usize) -> Charge {
    match row {
        r if r < MAX_ROUTERS => Charge::Router(r as RouterId),
        r if r < MAX_ROUTERS + MAX_PORTS => Charge::Port((r - MAX_ROUTERS) as PortId),
        _ => Charge::Other,
    }
}

pub(super) fn reset(counters: BorrowedFd<'_>, cpus: usize, rows: u32, interface: InterfaceId) -> Result<()> {
    let counters: Words64 = Mapping::new(counters, COUNTER_WORDS * 8, cpus * rows as usize)?.into();
    for cpu in 0..cpus {
        let at = (cpu * rows as usize + usize::from(interface)) * COUNTER_WORDS;
        (at..at + COUNTER_WORDS).for_each(|i| counters.store(i, 0));
    }
    Ok(())
}
