//! What workers are told to do.

use crate::{
    af_xdp::{Polling, Rings},
    config::{ElementSettings, PortName},
};
use anyhow::{Context, Result};
use logic::{
    cores::{Core, CoreId},
    elements::Chain,
    esp::SaTable,
    memory::Memory,
    paths::PathId,
    plan::{PortId, RouterId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::fd::BorrowedFd,
    sync::Arc,
};

/// All of it; what is not in it ends.
#[derive(Clone, Debug, Default)]
pub struct WorkersPlan {
    /// Each has a worker.
    pub cores: Vec<Core>,
    /// Weights of routers; others have 1.
    pub routers: BTreeMap<RouterId, u16>,
    pub ports: BTreeMap<PortId, PortPlan>,
    pub paths: BTreeMap<PathId, PathPlan>,
}

/// A port whose packets go to paths, or that paths send by.
#[derive(Clone, Debug)]
pub struct PortPlan {
    pub name: String,
    pub ifindex: u32,
    /// The port's.
    pub namespace: Arc<File>,
    pub queues: u32,
    /// Try it first.
    pub zero_copy: bool,
    pub polling: Polling,
    /// The fill ring at least twice as large as any path's ring: a quarter of it may be missing when a worker does not get on for a while, or
    /// while a path moves from worker to worker, and what then comes is to fit.
    pub rings: Rings,
}

/// A path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathPlan {
    pub name: String,
    pub router: RouterId,
    /// In its router, 1 or more.
    pub weight: u16,
    pub chain: Vec<ElementSettings>,
    /// Where its packets come in.
    pub ports: BTreeSet<PortId>,
    /// Packets that wait on each queue, a power of two from 64 on.
    pub ring: u32,
    /// Where it may run; `None`: on any of the cores.
    pub cores: Option<BTreeSet<CoreId>>,
}

/// The XDP program's slots for sockets: what is put there gets the path's packets.
pub trait Slots: Send {
    /// # Errors
    /// The packets go on as with an empty slot.
    fn put(&self, port: PortId, queue: u32, path: PathId, fd: BorrowedFd<'_>) -> Result<()>;
    /// # Errors
    /// The path may get packets still.
    fn take(&self, port: PortId, queue: u32, path: PathId) -> Result<()>;
}

/// The tables that both planes read, and chains over them. Asked by workers too: whenever a chain is to be made anew.
pub trait Tables: Send + Sync {
    fn memory(&self) -> &dyn Memory;
    /// # Errors
    /// It is no chain, or names a port that there is not.
    fn chain(&self, path: &PathPlan, ports: &BTreeMap<String, PortId>) -> Result<Chain>;
}

/// Tables in memory that can be shared, such as `Arc<MappedMemory>`, and SAs.
pub struct Shared<M> {
    pub memory: M,
    pub sas: Arc<SaTable>,
}

impl<M: Memory + Clone + Send + Sync + 'static> Tables for Shared<M> {
    fn memory(&self) -> &dyn Memory {
        &self.memory
    }

    fn chain(&self, path: &PathPlan, ports: &BTreeMap<String, PortId>) -> Result<Chain> {
        let port = |name: &PortName| ports.get(name.as_str()).copied();
        let element = |settings: &ElementSettings| {
            settings
                .element(&self.memory, &self.sas, port)
                .map_err(|name| anyhow::anyhow!("path {}: there is no port {}", path.name, name.as_str()))
        };
        let elements = path.chain.iter().map(element).collect::<Result<Vec<_>>>()?;
        Chain::new(elements).with_context(|| format!("path {}", path.name))
    }
}
