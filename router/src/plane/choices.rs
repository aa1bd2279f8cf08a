//! Flows whose rule lets the switch choose their core: the rings from which the program takes cores, and the slots
//! in which it notes the core of each flow (`bpf/flow_choice.h`).

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

/// `CHOICE_SLOTS` and `CHOICE_RING` of `bpf/flow_abi.h`.
pub(crate) const SLOTS: usize = 4096;
pub(crate) const RING: usize = 64;
/// `PLACE_JIFFIES_SHIFT`, `PLACE_CORE` and `PLACE_FIRST` of `bpf/abi.h`.
pub(crate) const JIFFIES_SHIFT: u32 = 32;
const CORE: u64 = 0xffff;
const FIRST: u64 = 0x10000;
/// The ageing timer (V4): a flow that has no packets for this time counts as new when its next packet comes.
const AGE: Duration = Duration::from_secs(10);

/// Words of `struct core_ring`: count, turn, then four cores each.
const ROW: usize = size_of::<types::core_ring>() / 8;
const TURN: usize = offset_of!(types::core_ring, turn) / 8;
const CORES: usize = offset_of!(types::core_ring, core) / 8;

/// The number of flows that were put on a core by choice: priority flows (`first`) and others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChosenFlows {
    pub others: u32,
    pub first: u32,
}

/// The maps of choices, which the program and user space share.
pub(super) struct ChoiceMaps {
    slots: Words64,
    rings: Words64,
    /// The last value of each slot, and since when it has it.
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

    /// From now on new flows get these cores in turn, from the first on. During the call a flow may still get a
    /// core of the old ring.
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

    /// Returns the number of flows on each core. Ends flows without packets for [`AGE`], if none of their packets
    /// can wait any more. `is_past`: has a core done all packets that were handed to it before this time in
    /// jiffies?
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
