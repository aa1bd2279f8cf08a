//! ICMP errors from which Linux may learn about a destination ([`logic::learned`]), as the kernel plane notes them
//! (`bpf/learned.h`).

use super::{MAX_ROUTERS, Mapping, Words64, policy::PlaneMaps};
use crate::linux::netlink::wire;
use anyhow::{Context, Result};
use libbpf_rs::{MapHandle, RingBufferBuilder};
use logic::plan::RouterId;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
};

/// The most errors of a router that the kernel plane notes between two looks.
pub const LEARNED_NOTES: u64 = 16;
/// The most destinations of a router that wait for the daemon.
const MOST_NOTED: usize = 64;

/// The errors of one router.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RouterErrors {
    pub destinations: BTreeSet<IpAddr>,
    /// Errors that were over a limit.
    pub lost: u64,
}

/// Errors that the daemon has not taken yet, by router.
#[derive(Clone, Default)]
pub struct ErrorNotes(Arc<Mutex<BTreeMap<RouterId, RouterErrors>>>);

impl ErrorNotes {
    fn with(&self, router: RouterId, change: impl FnOnce(&mut RouterErrors)) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(notes.entry(router).or_default());
    }

    fn add(&self, router: RouterId, destination: IpAddr) {
        self.with(router, |errors| {
            if errors.destinations.len() < MOST_NOTED || errors.destinations.contains(&destination) {
                errors.destinations.insert(destination);
            } else {
                errors.lost += 1;
            }
        });
    }

    /// Takes in a record of the ring.
    fn add_record(&self, record: &[u8]) {
        let word = |at| wire::u32_at(record, at);
        let (Some(router), Some(family)) = (word(0), word(4)) else { return };
        let (Ok(router), Some(address)) = (RouterId::try_from(router), record.get(8..24)) else { return };
        let address = if family == 4 { &address[..4] } else { address };
        wire::address(address).into_iter().for_each(|destination| self.add(router, destination));
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub fn take(&self) -> BTreeMap<RouterId, RouterErrors> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The notes of the kernel plane, and the place where they go.
pub struct IcmpErrors {
    ring: MapHandle,
    counts: Words64,
    notes: ErrorNotes,
}

impl IcmpErrors {
    /// # Errors
    /// There is no descriptor or memory left.
    pub fn open(maps: &PlaneMaps, notes: ErrorNotes) -> Result<IcmpErrors> {
        Ok(IcmpErrors {
            ring: MapHandle::try_from(&maps.learned)?,
            counts: Mapping::new(maps.learned_counts.as_fd(), 8, MAX_ROUTERS)?.into(),
            notes,
        })
    }

    /// Calls `run` with a function that takes in the errors since its last call.
    ///
    /// # Errors
    /// The ring cannot be read, or an error of `run`.
    pub fn follow<T>(&self, run: impl FnOnce(&mut dyn FnMut()) -> Result<T>) -> Result<T> {
        let mut ring = RingBufferBuilder::new();
        ring.add(&self.ring, |record| {
            self.notes.add_record(record);
            0
        })?;
        let ring = ring.build().context("reading notes of ICMP errors")?;
        run(&mut || {
            // The counts limit the notes in the ring, so this ends.
            ring.consume_raw();
            self.begin_again();
        })
    }

    /// Gives each router room for more notes.
    fn begin_again(&self) {
        for (router, count) in (0..=RouterId::MAX).zip(self.counts.as_slice()) {
            if count.load(Relaxed) > 0 {
                let lost = count.swap(0, Relaxed).saturating_sub(LEARNED_NOTES);
                if lost > 0 {
                    self.notes.with(router, |errors| errors.lost += lost);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(router: u32, n: u8) -> Vec<u8> {
        [&router.to_ne_bytes()[..], &4_u32.to_ne_bytes(), &[10, 0, 0, n], &[0; 12]].concat()
    }

    #[test]
    fn a_router_has_room_for_its_own_errors_only() {
        let notes = ErrorNotes::default();
        for n in 0..200 {
            notes.add_record(&record(1, n));
            // Repeated errors need no further room.
            notes.add_record(&record(1, 0));
        }
        notes.add_record(&record(2, 7));
        notes.add_record(&record(MAX_ROUTERS as u32, 7));
        let mut taken = notes.take();
        let flooded = taken.remove(&1).unwrap();
        assert_eq!((flooded.destinations.len(), flooded.lost), (MOST_NOTED, 200 - MOST_NOTED as u64));
        let other = RouterErrors { destinations: [IpAddr::from([10, 0, 0, 7])].into(), lost: 0 };
        assert_eq!(taken, [(2, other)].into());
        assert!(notes.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn never_panics(record in proptest::collection::vec(proptest::num::u8::ANY, 0..40)) {
            ErrorNotes::default().add_record(&record);
        }
    }
}
