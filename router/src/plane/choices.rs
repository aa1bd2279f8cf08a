//! Flows whose rule lets the switch choose their core: the rings that the program takes cores from, and the slots in which it
//! notes which flow is where (`bpf/flow_choice.h`).

use super::{Mapping, Words64};
use crate::abi::{self, types};
use anyhow::Result;
use logic::cores::CoreId;
use std::{
    collections::BTreeMap,
    mem::offset_of,
    os::fd::AsFd,
    sync::{
        Mutex, PoisonError,
        atomic::Ordering::{AcqRel, Relaxed},
    },
    time::Duration,
};

/// `CHOICE_SLOTS` and others of `bpf/flow_abi.h`.
pub(crate) const SLOTS: usize = 4096;
pub(crate) const RING: usize = 64;
pub(crate) const JIFFIES_SHIFT: u32 = 32;
const CORE: u64 = 0xffff;
const FIRST: u64 = 0x10000;
/// The ageing timer (V4): a flow of which nothing came for so long is new when it comes again.
const AGE: Duration = Duration::from_secs(10);

/// Words of `struct core_ring`: count, turn, then four cores each.
const ROW: usize = size_of::<types::core_ring>() / 8;
const TURN: usize = offset_of!(types::core_ring, turn) / 8;
const CORES: usize = offset_of!(types::core_ring, core) / 8;

/// Flows that are on a core by choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChosenFlows {
    pub others: u32,
    pub first: u32,
}

/// What the program and user space share.
pub(super) struct ChoiceMaps {
    slots: Words64,
    rings: Words64,
    /// What slots said, and since when.
    seen: Mutex<Vec<(u64, Duration)>>,
}

impl ChoiceMaps {
    pub fn new(maps: &abi::MillraceMaps<'_>) -> Result<ChoiceMaps> {
        Ok(ChoiceMaps {
            slots: Mapping::new(maps.flow_choices.as_fd(), 8, SLOTS)?.into(),
            rings: Mapping::new(maps.core_rings.as_fd(), ROW * 8, 2)?.into(),
            seen: Mutex::new(vec![(0, Duration::ZERO); SLOTS]),
        })
    }

    /// From now on flows that are new get these cores in turn, from the first on. While it is written one may get a core of the
    /// ring before.
    pub fn write_ring(&self, first: bool, cores: &[CoreId]) {
        let row = usize::from(first) * ROW;
        let cores: Vec<u16> = cores.iter().take(RING).map(|core| core + 1).collect();
        for (at, four) in cores.chunks(4).enumerate() {
            let word = (0..).zip(four).fold(0, |word, (i, core)| word | u64::from(*core) << (16 * i));
            self.rings.store(row + CORES + at, word);
        }
        self.rings.store(row, cores.len() as u64);
        self.rings.store(row + TURN, 0);
    }

    /// How many flows are on each core. Ends those of which nothing came for [`AGE`], if nothing of them can wait any more:
    /// `is_past` says so of a core and a time in jiffies.
    pub fn look(
        &self,
        now: Duration,
        is_past: impl Fn(CoreId, u32) -> bool,
    ) -> BTreeMap<CoreId, ChosenFlows> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut flows: BTreeMap<CoreId, ChosenFlows> = BTreeMap::new();
        for (slot, seen) in self.slots.as_slice().iter().zip(seen.iter_mut()) {
            let word = slot.load(Relaxed);
            let Some(core) = ((word & CORE) as CoreId).checked_sub(1) else { continue };
            if seen.0 != word {
                *seen = (word, now);
            }
            let is_old = now.saturating_sub(seen.1) >= AGE && is_past(core, (word >> JIFFIES_SHIFT) as u32);
            if is_old && slot.compare_exchange(word, 0, AcqRel, Relaxed).is_ok() {
                continue;
            }
            let on = flows.entry(core).or_default();
            *(if word & FIRST == 0 { &mut on.others } else { &mut on.first }) += 1;
        }
        flows
    }
}
