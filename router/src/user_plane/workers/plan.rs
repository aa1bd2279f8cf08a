//! The plan of workers, and the traits through which they use the XDP program and the tables.

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

/// The whole plan. Workers, ports and paths that it lacks end.
#[derive(Clone, Debug, Default)]
pub struct WorkersPlan {
    /// Each of these has a worker.
    pub cores: Vec<Core>,
    /// Weights of routers; other routers have 1.
    pub routers: BTreeMap<RouterId, u16>,
    pub ports: BTreeMap<PortId, PortPlan>,
    pub paths: BTreeMap<PathId, PathPlan>,
    /// Bytes that all workers together can receive and send in a second.
    pub io: Capacity,
}

/// Frames that a plan may need at a time ([`WorkersSettings::frames`]): each holder of frames is promised the most that it
/// may hold. While a path's ring is replaced by one of another size, the larger of the two is needed in addition.
pub fn frames_needed(plan: &WorkersPlan, settings: &WorkersSettings) -> u32 {
    let wide = |frames: usize| u64::try_from(frames).unwrap_or(u64::MAX);
    let workers = wide(plan.cores.len());
    let pool = wide(settings.in_hand).saturating_add(wide(POOL_FRAMES));
    let pools = workers.saturating_mul(pool);
    let port = |port: &PortPlan| {
        let Rings { fill, completion, transmit, .. } = port.rings;
        let [fill, completion, transmit] = [fill, completion, transmit].map(u64::from);
        // Each queue has a TX ring. A worker that sends by another worker's queue has a TX ring of its own there.
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

/// A port that paths receive from or send to.
#[derive(Clone, Debug)]
pub struct PortPlan {
    pub name: String,
    pub ifindex: u32,
    /// The namespace of the port.
    pub namespace: Arc<File>,
    /// The router of packets that are for no interface; `None`: they belong to no router.
    pub router: Option<RouterId>,
    pub queues: u32,
    /// Zero copy is tried first.
    pub zero_copy: bool,
    pub polling: Polling,
    /// Sizes of its rings. The fill ring must be at least twice as large as any path's ring. While a worker makes no
    /// progress, or a path moves to another worker, a quarter of it may be missing, and packets that come then must still
    /// find frames.
    pub rings: Rings,
}

/// A path of the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PathPlan {
    pub name: String,
    pub router: RouterId,
    /// Its weight within its router, at least 1.
    pub weight: u16,
    pub chain: Vec<ElementSettings>,
    /// The ports that its packets come in by.
    pub ports: BTreeSet<PortId>,
    /// Packets that can wait on each queue: a power of two, at least 64.
    pub ring: u32,
    /// The cores that it may run on; `None`: all cores of the plan.
    pub cores: Option<BTreeSet<CoreId>>,
}

impl PathPlan {
    pub fn may_be_on(&self, core: CoreId) -> bool {
        self.cores.as_ref().is_none_or(|cores| cores.contains(&core))
    }
}

/// The XDP program's slots for sockets. A socket in a slot gets the path's packets of that queue.
pub trait Slots: Send {
    /// # Errors
    /// The slot stays as it is, and packets go on as before.
    fn put(&self, port: PortId, queue: u32, path: PathId, fd: BorrowedFd<'_>) -> Result<()>;
    /// # Errors
    /// The path may still get packets.
    fn take(&self, port: PortId, queue: u32, path: PathId) -> Result<()>;
    /// Returns when no packet on its way follows what the slots said before the call: packets that came are in their rings.
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

/// The tables that both planes read, and the chains that use them. Workers call this too, when they make a chain again.
pub trait Tables: Send + Sync {
    fn memory(&self) -> &dyn Memory;
    /// Makes the chain of a path. Packets that it sends to a missing port are dropped (`no_port`).
    ///
    /// # Errors
    /// The elements do not form a chain.
    fn chain(&self, path: &PathPlan, ports: &BTreeMap<String, PortId>) -> Result<Chain>;
}

/// The number of a port that never exists.
const NOWHERE: PortId = PortId::MAX;

/// Tables in memory that can be shared, such as `Arc<MappedMemory>`, together with SAs and capture files.
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
        let pools = 2 * (1000 + 256);
        assert_eq!(frames_needed(&plan, &settings), pools);
        plan.ports = BTreeMap::from([(0, port.clone()), (1, port)]);
        let ports = 2 * (4 * (2048 + 512 + 256) + 2 * (100 + 256));
        assert_eq!(frames_needed(&plan, &settings), pools + ports);
        plan.paths = BTreeMap::from([(0, path.clone()), (5, path)]);
        assert_eq!(frames_needed(&plan, &settings), pools + ports + 2 * 4 * 64, "a missing port needs none");
        let settings = WorkersSettings { in_hand: usize::MAX, ..settings };
        assert_eq!(frames_needed(&plan, &settings), u32::MAX);
    }
}
