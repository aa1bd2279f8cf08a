//! What workers are told to do.

use super::WorkersSettings;
use crate::{
    api::workers::Capacity,
    base::PortName,
    config::{Captures, ElementSettings},
    plane::PathMaps,
    user_plane::af_xdp::{POOL_FRAMES, Polling, Rings},
};
use anyhow::{Context, Result};
use logic::{
    cores::{Core, CoreId},
    elements::{Chain, MOST_PACKETS},
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
    /// Bytes that workers may take in and send in a second, all together.
    pub io: Capacity,
}

/// Frames that a plan may need at a time ([`WorkersSettings::frames`]): whatever may hold some is promised all it may hold. While the ring of
/// a path is changed the larger of both is needed once more.
pub fn frames_needed(plan: &WorkersPlan, settings: &WorkersSettings) -> u32 {
    let wide = |frames: usize| u64::try_from(frames).unwrap_or(u64::MAX);
    let workers = wide(plan.cores.len());
    let pool = wide(settings.in_hand).saturating_add(wide(POOL_FRAMES));
    // One thread of each worker that did not get on, and the pool of who takes over before that of the other is known to be less.
    let left = workers
        .saturating_mul(wide(POOL_FRAMES + MOST_PACKETS))
        .saturating_add(pool.saturating_mul(workers.min(1)));
    let pools = workers.saturating_mul(pool).saturating_add(left);
    let port = |port: &PortPlan| {
        let Rings { fill, completion, transmit, .. } = port.rings;
        let [fill, completion, transmit] = [fill, completion, transmit].map(u64::from);
        // A queue brings a TX ring; a worker that sends by another's queue has one of its own.
        let queues = u64::from(port.queues).saturating_mul(fill + completion + transmit);
        queues.saturating_add(workers.saturating_mul(wide(settings.auxiliary).saturating_add(transmit)))
    };
    let path = |path: &PathPlan| {
        let ports = path.ports.iter().filter_map(|port| plan.ports.get(port));
        ports.map(|port| u64::from(port.queues)).sum::<u64>().saturating_mul(path.ring.into())
    };
    let (ports, paths) = (plan.ports.values().map(port), plan.paths.values().map(path));
    let all = ports.chain(paths).fold(pools, u64::saturating_add);
    all.try_into().unwrap_or(u32::MAX)
}

/// A port whose packets go to paths, or that paths send by.
#[derive(Clone, Debug)]
pub struct PortPlan {
    pub name: String,
    pub ifindex: u32,
    /// The port's.
    pub namespace: Arc<File>,
    /// Whose packets are that are for no interface; `None`: nobody's.
    pub router: Option<RouterId>,
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

impl PathPlan {
    pub fn may_be_on(&self, core: CoreId) -> bool {
        self.cores.as_ref().is_none_or(|cores| cores.contains(&core))
    }
}

/// The XDP program's slots for sockets: what is put there gets the path's packets.
pub trait Slots: Send {
    /// # Errors
    /// The packets go on as with an empty slot.
    fn put(&self, port: PortId, queue: u32, path: PathId, fd: BorrowedFd<'_>) -> Result<()>;
    /// # Errors
    /// The path may get packets still.
    fn take(&self, port: PortId, queue: u32, path: PathId) -> Result<()>;
    /// Returns when no packet is on its way any more by what slots said at the call: what came is in its ring.
    ///
    /// # Errors
    /// The kernel cannot wait.
    fn settle(&self) -> Result<()>;
}

impl Slots for Arc<PathMaps> {
    fn put(&self, port: PortId, queue: u32, path: PathId, fd: BorrowedFd<'_>) -> Result<()> {
        PathMaps::put(self, port, queue, path, fd)
    }
    fn take(&self, port: PortId, queue: u32, path: PathId) -> Result<()> {
        PathMaps::take(self, port, queue, path)
    }
    fn settle(&self) -> Result<()> {
        PathMaps::settle(self)
    }
}

/// The tables that both planes read, and chains over them. Asked by workers too: whenever a chain is to be made anew.
pub trait Tables: Send + Sync {
    fn memory(&self) -> &dyn Memory;
    /// What goes to a port that is not there is dropped (`no_port`).
    ///
    /// # Errors
    /// It is no chain.
    fn chain(&self, path: &PathPlan, ports: &BTreeMap<String, PortId>) -> Result<Chain>;
}

/// A port that never is.
const NOWHERE: PortId = PortId::MAX;

/// Tables in memory that can be shared, such as `Arc<MappedMemory>`, SAs, and files to copy to.
pub struct Shared<M> {
    pub memory: M,
    pub sas: Arc<SaTable>,
    pub captures: Captures,
}

impl<M: Memory + Clone + Send + Sync + 'static> Tables for Shared<M> {
    fn memory(&self) -> &dyn Memory {
        &self.memory
    }

    fn chain(&self, path: &PathPlan, ports: &BTreeMap<String, PortId>) -> Result<Chain> {
        let port = |name: &PortName| ports.get(name.as_str()).copied().or(Some(NOWHERE));
        let element = |settings: &ElementSettings| {
            settings
                .element(&self.memory, &self.sas, &self.captures, port)
                .map_err(|name| anyhow::anyhow!("path {}: there is no port {}", path.name, name.as_str()))
        };
        let elements = path.chain.iter().map(element).collect::<Result<Vec<_>>>()?;
        Chain::new(elements).with_context(|| format!("path {}", path.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logic::cores::Core;

    #[test]
    fn all_that_may_hold_frames_is_counted() {
        let settings = WorkersSettings { in_hand: 1000, auxiliary: 100, ..WorkersSettings::default() };
        let core = |id| Core { id, node: 0, physical: id, workloads: 0, other: 0.0 };
        let port = PortPlan {
            name: "p".into(),
            ifindex: 1,
            namespace: Arc::new(File::open("/dev/null").unwrap()),
            router: Some(0),
            queues: 4,
            zero_copy: true,
            polling: Polling::Interrupts,
            rings: Rings { fill: 2048, completion: 512, receive: 7, transmit: 256 },
        };
        let path = PathPlan {
            name: "a".into(),
            router: 0,
            weight: 1,
            chain: Vec::new(),
            ports: BTreeSet::from([0, 9]),
            ring: 64,
            cores: None,
        };
        let mut plan = WorkersPlan { cores: vec![core(2), core(3)], ..WorkersPlan::default() };
        // Of each, what a thread that does not get on may hold; and the pool of another.
        let pools = 2 * (1000 + 256) + 2 * (256 + 256) + (1000 + 256);
        assert_eq!(frames_needed(&plan, &settings), pools);
        plan.ports = BTreeMap::from([(0, port.clone()), (1, port)]);
        let ports = 2 * (4 * (2048 + 512 + 256) + 2 * (100 + 256));
        assert_eq!(frames_needed(&plan, &settings), pools + ports);
        plan.paths = BTreeMap::from([(0, path.clone()), (5, path)]);
        assert_eq!(
            frames_needed(&plan, &settings),
            pools + ports + 2 * 4 * 64,
            "of a port there is not: none"
        );
        let settings = WorkersSettings { in_hand: usize::MAX, ..settings };
        assert_eq!(frames_needed(&plan, &settings), u32::MAX);
    }
}
