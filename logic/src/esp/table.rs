//! Security associations by name, changed while workers run.
//!
//! Writers call [`SaTable::change`], one at a time. It replaces the list and then increments `generation`. Each element
//! reads through a [`View`] of its own. Once per run it checks whether the generation is the one that it has seen. Only
//! if not, it waits for the lock and takes the SAs that it uses. So a run sees one list from its first packet to its
//! last. A replaced SA lives until the last run that had it ends. If no packets arrive, it lives until the element is
//! asked to look ([`crate::elements::Chain::refresh`]).
//!
//! To change a key without loss: add the new inbound SA beside the old one; let the peer send with it; replace the
//! outbound SA; remove the old inbound SA after the packets on their way have arrived.

use super::sa::{Inbound, Outbound};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// All SAs at one time.
#[derive(Clone, Default)]
pub struct Sas {
    outbound: BTreeMap<String, Arc<Outbound>>,
    /// There are two of one name while keys change.
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

    /// Sends packets of this name with this SA from the next run on. Returns the SA that it replaces.
    pub fn set_outbound(&self, name: &str, sa: Arc<Outbound>) -> Option<Arc<Outbound>> {
        self.change(|sas| sas.outbound.insert(name.into(), sa))
    }

    /// Removes an SA. Packets of this name are dropped from the next run on.
    pub fn remove_outbound(&self, name: &str) -> Option<Arc<Outbound>> {
        self.change(|sas| sas.outbound.remove(name))
    }

    /// Adds an SA under this name. Returns false and changes nothing if an SA of any name has its SPI.
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

    /// Removes the SA with this SPI. Packets for it go up from the next run on.
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

    /// All outbound SAs, with their names.
    pub fn outbound(&self) -> Vec<(String, Arc<Outbound>)> {
        let sas = self.sas.lock().unwrap_or_else(PoisonError::into_inner);
        sas.outbound.iter().map(|(name, sa)| (name.clone(), sa.clone())).collect()
    }
}

/// An element's view of a table.
pub struct View {
    table: Arc<SaTable>,
    generation: Option<u64>,
}

impl View {
    /// A view that has seen nothing yet.
    pub fn new(table: Arc<SaTable>) -> Self {
        View { table, generation: None }
    }

    /// The list, if it has changed. Whoever keeps it keeps all of its SAs.
    #[inline]
    pub(crate) fn renew(&mut self) -> Option<Arc<Sas>> {
        // Acquire: a list is in place before its generation. The generation is read before the list, so it may be older
        // than the list. Then the next run looks again.
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
