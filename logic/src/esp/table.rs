//! Security associations by name, changed while workers run.
//!
//! Who writes: whoever calls [`SaTable::change`], one at a time; it puts a new list in place, then counts `generation` up. Who reads: each element has
//! a [`View`] of its own and asks once a run whether the generation is the one that it has seen; only if not it waits for the lock, and takes the SAs that
//! it uses. So a run sees one list from its first packet to its last, and a replaced SA lives until the last run that had it is over, or, where no packets
//! come, until the element is asked to look ([`crate::elements::Chain::refresh`]).
//!
//! Rekey without loss: add the new inbound SA beside the old one; have the peer send by it; replace the outbound SA; remove the old inbound
//! SA when what was under way has come.

use super::sa::{Inbound, Outbound};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// All of them, at one time.
#[derive(Clone, Default)]
pub struct Sas {
    outbound: BTreeMap<String, Arc<Outbound>>,
    /// Several of one name: old and new, while keys change.
    inbound: BTreeMap<String, Vec<Arc<Inbound>>>,
}

/// See the head of this file.
#[derive(Default)]
pub struct SaTable {
    sas: Mutex<Arc<Sas>>,
    generation: AtomicU64,
}

impl SaTable {
    fn change<T>(&self, change: impl FnOnce(&mut Sas) -> T) -> T {
        let mut sas = self.sas.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(Arc::make_mut(&mut sas));
        self.generation.fetch_add(1, Ordering::Release);
        changed
    }

    /// Packets of this name go by this SA from the next run on; what it replaces is returned.
    pub fn set_outbound(&self, name: &str, sa: Arc<Outbound>) -> Option<Arc<Outbound>> {
        self.change(|sas| sas.outbound.insert(name.into(), sa))
    }

    /// Packets of this name are dropped from the next run on.
    pub fn remove_outbound(&self, name: &str) -> Option<Arc<Outbound>> {
        self.change(|sas| sas.outbound.remove(name))
    }

    /// One more of this name. False, and nothing is changed: there is one with its SPI, of any name.
    #[must_use]
    pub fn add_inbound(&self, name: &str, sa: Arc<Inbound>) -> bool {
        self.change(|sas| {
            let is_taken = sas.inbound.values().flatten().any(|other| other.spi == sa.spi);
            if !is_taken {
                sas.inbound.entry(name.into()).or_default().push(sa);
            }
            !is_taken
        })
    }

    /// The one with this SPI; what comes for it goes up from the next run on.
    pub fn remove_inbound(&self, spi: u32) -> Option<Arc<Inbound>> {
        self.change(|sas| {
            let (name, at) = sas.inbound.iter().find_map(|(name, sas)| {
                sas.iter().position(|sa| sa.spi == spi).map(|at| (name.clone(), at))
            })?;
            let removed = sas.inbound.get_mut(&name).map(|sas| sas.remove(at));
            sas.inbound.retain(|_, sas| !sas.is_empty());
            removed
        })
    }

    /// All that send, by name.
    pub fn outbound(&self) -> Vec<(String, Arc<Outbound>)> {
        let sas = self.sas.lock().unwrap_or_else(PoisonError::into_inner);
        sas.outbound.iter().map(|(name, sa)| (name.clone(), sa.clone())).collect()
    }
}

/// What an element has seen of a table.
pub struct View {
    table: Arc<SaTable>,
    generation: Option<u64>,
}

impl View {
    /// Of nothing yet.
    pub fn new(table: Arc<SaTable>) -> Self {
        View { table, generation: None }
    }

    /// The list, if it is another than before. Who keeps it keeps all of its SAs.
    #[inline]
    pub(crate) fn renew(&mut self) -> Option<Arc<Sas>> {
        // Acquire: a list is in place before its generation is. Read before the list, it is that of an older one at worst, and the next run looks again.
        let generation = Some(self.table.generation.load(Ordering::Acquire));
        if self.generation == generation {
            return None;
        }
        self.generation = generation;
        Some(self.table.sas.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Sas {
    pub(crate) fn outbound(&self, name: &str) -> Option<&Arc<Outbound>> {
        self.outbound.get(name)
    }

    pub(crate) fn inbound(&self, name: &str) -> &[Arc<Inbound>] {
        self.inbound.get(name).map(Vec::as_slice).unwrap_or_default()
    }
}
