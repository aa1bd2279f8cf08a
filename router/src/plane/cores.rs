//! Cores that flow rules hand packets to (SET_CORE): a CPU map of each generation of the program, with an entry, which is a
//! queue and a kernel thread, for each core that some rule has named since the daemon began. Without such a rule there are none.

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::{
    collections::BTreeSet,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Mutex, Weak},
};

/// Packets that may wait for a core, 16 KiB: one to two milliseconds of what a core carries. That is how long another thread
/// may keep the core from its own; what would wait longer is better dropped.
const QUEUE_PACKETS: u32 = 2048;

/// The cores of one generation.
pub(super) struct CoreMap {
    pub map: MapHandle,
    /// `millrace_flow_core` of the same generation.
    pub program: OwnedFd,
}

impl CoreMap {
    /// Packets can be handed to this core from now on.
    fn make(&self, core: u16) -> Result<()> {
        // `struct bpf_cpumap_val`: length of the queue, descriptor of the program.
        let [queue, program] = [QUEUE_PACKETS, self.program.as_raw_fd() as u32].map(u32::to_ne_bytes);
        self.map
            .update(&u32::from(core).to_ne_bytes(), &[queue, program].concat(), MapFlags::ANY)
            .with_context(|| format!("making core {core} ready for packets of flow rules"))
    }
}

/// All cores that were ever named, in the maps of all generations that are there.
#[derive(Default)]
pub(super) struct NamedCores(Mutex<State>);

#[derive(Default)]
struct State {
    named: BTreeSet<u16>,
    maps: Vec<Weak<CoreMap>>,
}

impl NamedCores {
    /// A rule names a core.
    ///
    /// # Errors
    /// There is no such core, or no memory.
    pub fn name(&self, core: u16) -> Result<()> {
        let mut state = self.0.lock().unwrap_or_else(|e| e.into_inner());
        if state.named.contains(&core) {
            return Ok(());
        }
        state.maps.iter().filter_map(Weak::upgrade).try_for_each(|map| map.make(core))?;
        state.named.insert(core);
        Ok(())
    }

    /// A new generation.
    ///
    /// # Errors
    /// One of the cores that are named cannot be had any more.
    pub fn add(&self, map: &Arc<CoreMap>) -> Result<()> {
        let mut state = self.0.lock().unwrap_or_else(|e| e.into_inner());
        state.named.iter().try_for_each(|&core| map.make(core))?;
        state.maps.retain(|map| map.strong_count() > 0);
        state.maps.push(Arc::downgrade(map));
        Ok(())
    }
}
