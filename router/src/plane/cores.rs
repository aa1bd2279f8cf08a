//! Cores that flow rules hand packets to (SET_CORE). Each generation of the program has a CPU map. Its entry for a
//! core is a queue and a kernel thread. Each core that a rule has named, or that was chosen, since the daemon began
//! has an entry. `core_queues`, which belongs to the map, counts the packets of each queue.

use super::Words64;
use crate::abi::types;
use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use logic::cores::{CoreId, choice::Leave};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem::offset_of,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::Ordering::AcqRel},
};

/// Packets that may wait for a core, 16 KiB: a core's work for one to two milliseconds. For so long another thread
/// may keep the core from its own thread. Packets that would wait longer are better dropped.
pub(crate) const QUEUE_PACKETS: u32 = 2048;

/// Words of `struct core_queue`.
pub(super) const QUEUE: usize = size_of::<types::core_queue>() / 8;
const HANDED: usize = offset_of!(types::core_queue, handed) / 8;
const DROPPED: usize = offset_of!(types::core_queue, dropped) / 8;
const GIVEN: usize = offset_of!(types::core_queue, given) / 8;
const GIVEN_FIRST: usize = offset_of!(types::core_queue, given_first) / 8;
const DONE: usize = offset_of!(types::core_queue, done) / 8;
const DRAINED: usize = offset_of!(types::core_queue, drained_jiffies) / 8;
const LEAVE: usize = offset_of!(types::core_queue, leave) / 8;
const LEAVE_FIRST: usize = offset_of!(types::core_queue, leave_first) / 8;

/// Packets and flows that were handed to a core, since the daemon began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    pub packets: u64,
    /// Packets that its queue did not take.
    pub dropped: u64,
    /// Flows that were given to it by choice, except priority flows.
    pub flows: u64,
    /// Priority flows that were given to it by choice.
    pub first: u64,
}

impl Handed {
    fn add(&mut self, other: Handed) {
        self.packets += other.packets;
        self.dropped += other.dropped;
        self.flows += other.flows;
        self.first += other.first;
    }
}

/// The cores of one generation.
pub(super) struct CoreMap {
    pub map: MapHandle,
    /// `millrace_flow_core` of the same generation.
    pub program: OwnedFd,
    /// Rows of `core_queues`.
    pub queues: Words64,
    /// Its counts are added here when it ends.
    pub past: Past,
}

/// Counts of generations that are gone.
pub(super) type Past = Arc<Mutex<BTreeMap<CoreId, Handed>>>;

impl CoreMap {
    /// Makes this core ready: packets can be handed to it from now on.
    fn make(&self, core: CoreId) -> Result<()> {
        make(&self.map, self.program.as_raw_fd(), core)
    }

    fn cores(&self) -> impl Iterator<Item = CoreId> {
        (0..self.queues.len() / QUEUE).filter_map(|core| core.try_into().ok())
    }

    fn handed(&self, core: CoreId) -> Handed {
        handed(&self.queues, usize::from(core))
    }

    fn is_past(&self, core: CoreId, jiffies: u32) -> bool {
        is_past(&self.queues, usize::from(core), jiffies)
    }
}

/// Makes this core ready: packets can be handed to it from now on.
pub(super) fn make(map: &MapHandle, program: RawFd, core: CoreId) -> Result<()> {
    // `struct bpf_cpumap_val`: the length of the queue, and the descriptor of the program.
    let [queue, program] = [QUEUE_PACKETS, program as u32].map(u32::to_ne_bytes);
    map.update(&u32::from(core).to_ne_bytes(), &[queue, program].concat(), MapFlags::ANY)
        .with_context(|| format!("making core {core} ready for packets of other cores"))
}

/// The counts of a row of `core_queues`.
pub(super) fn handed(queues: &Words64, row: usize) -> Handed {
    let word = |word| queues.load(row * QUEUE + word);
    Handed { packets: word(HANDED), dropped: word(DROPPED), flows: word(GIVEN), first: word(GIVEN_FIRST) }
}

/// Has the core done all packets that were handed to it before this time? As `queue_is_past` of `bpf/hand_over.h`.
pub(super) fn is_past(queues: &Words64, row: usize, jiffies: u32) -> bool {
    let word = |word| queues.load(row * QUEUE + word);
    let drained = word(DRAINED);
    word(DONE) + word(DROPPED) == word(HANDED)
        || drained != 0 && (drained as u32).wrapping_sub(jiffies) as i32 > 0
}

impl Drop for CoreMap {
    fn drop(&mut self) {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        self.cores().for_each(|core| past.entry(core).or_default().add(self.handed(core)));
    }
}

/// All cores that were ever named or chosen, in the maps of all present generations.
#[derive(Default)]
pub(super) struct NamedCores {
    state: Mutex<CoreNames>,
    past: Past,
}

#[derive(Default)]
struct CoreNames {
    named: BTreeSet<CoreId>,
    maps: Vec<Weak<CoreMap>>,
}

impl CoreNames {
    fn maps(&self) -> impl Iterator<Item = Arc<CoreMap>> {
        self.maps.iter().filter_map(Weak::upgrade)
    }
}

impl NamedCores {
    fn state(&self) -> MutexGuard<'_, CoreNames> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts of maps that have ended.
    pub fn past(&self) -> Past {
        self.past.clone()
    }

    /// Makes a core ready that a rule names, or that may be chosen.
    ///
    /// # Errors
    /// There is no such core, or no memory.
    pub fn name(&self, core: CoreId) -> Result<()> {
        let mut state = self.state();
        if state.named.contains(&core) {
            return Ok(());
        }
        state.maps().try_for_each(|map| map.make(core))?;
        state.named.insert(core);
        Ok(())
    }

    /// Adds the map of a new generation, with all named cores.
    ///
    /// # Errors
    /// One of these cores cannot be made ready any more.
    pub fn add(&self, map: &Arc<CoreMap>) -> Result<()> {
        let mut state = self.state();
        state.named.iter().try_for_each(|&core| map.make(core))?;
        state.maps.retain(|map| map.strong_count() > 0);
        state.maps.push(Arc::downgrade(map));
        Ok(())
    }

    /// The kernel's id of the newest map.
    pub fn map(&self) -> Option<u32> {
        Some(self.state().maps().last()?.map.info().ok()?.info.id)
    }

    /// Packets and flows that were handed to each core that was ever named or chosen.
    pub fn handed(&self) -> BTreeMap<CoreId, Handed> {
        let state = self.state();
        let maps: Vec<_> = state.maps().collect();
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let all = |core: &CoreId| {
            let mut sum = past.get(core).copied().unwrap_or_default();
            maps.iter().for_each(|map| sum.add(map.handed(*core)));
            (*core, sum)
        };
        state.named.iter().map(all).collect()
    }

    /// Lets so many flows leave this core.
    pub fn let_leave(&self, core: CoreId, leave: Leave) {
        for map in self.state().maps() {
            for (word, flows) in [(LEAVE, leave.others), (LEAVE_FIRST, leave.first)] {
                let at = usize::from(core) * QUEUE + word;
                if let Some(word) = map.queues.as_slice().get(at) {
                    word.swap(flows.into(), AcqRel);
                }
            }
        }
    }

    /// Has this core done all packets that were handed to it before this time in jiffies?
    pub fn is_past(&self, core: CoreId, jiffies: u32) -> bool {
        self.state().maps().all(|map| map.is_past(core, jiffies))
    }
}
