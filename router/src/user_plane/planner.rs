//! Makes plans for workers of what the control loop wants, and of what it does not know: the cores of the machine and
//! the other work on them, the queues of ports, and the I/O bandwidth.

use super::{
    other_work::OtherWork,
    seam::{Device, Wanted},
    workers::{PortPlan, WorkersPlan},
};
use crate::{
    api::workers::Capacity,
    config::{Config, PollingMode},
    cores::{
        CoreId, Roots,
        machine::{CoreSite, Machine},
    },
    linux::ethtool::Ethtool,
    user_plane::af_xdp::{Polling, Rings},
};
use anyhow::{Context, Result};
use logic::{
    cores::Core,
    plan::{PortId, RouterId},
    tables::encoding::MAX_QUEUES,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    sync::Arc,
};

/// A socket that does not block polls once, whatever the time is, unless it is 0. The budget is that of NAPI itself.
const BUSY: Polling = Polling::Busy { microseconds: 20, budget: 64 };

/// See the head of this file.
pub(super) struct Planner {
    /// As configured.
    cores: BTreeSet<CoreId>,
    roots: Roots,
    ethtool: Ethtool,
    /// The namespace of all ports.
    namespace: Arc<File>,
    wants_zero_copy: bool,
    polling: Polling,
    /// As configured.
    io_mbps: Option<u32>,
}

impl Planner {
    /// A planner of workers on these cores.
    pub fn new(config: &Config, cores: BTreeSet<CoreId>, roots: Roots) -> Result<Planner> {
        Ok(Planner {
            cores,
            roots,
            ethtool: Ethtool::open().context("opening a socket to ask for devices")?,
            namespace: Arc::new(
                File::open("/proc/thread-self/ns/net").context("opening this network namespace")?,
            ),
            wants_zero_copy: config.workers.zero_copy,
            polling: match config.experimental.polling {
                PollingMode::Interrupts => Polling::Interrupts,
                PollingMode::Busy => BUSY,
            },
            io_mbps: config.experimental.io_mbps.map(|rate| rate.0),
        })
    }

    /// Returns the plan, and what it leaves out, as sentences.
    pub fn plan(&self, wanted: &Wanted, other_work: &OtherWork) -> Result<(WorkersPlan, Vec<String>)> {
        let Wanted { ports, owners, routers, paths, .. } = wanted;
        let mut conditions = Vec::new();
        let owner = |port: &PortId| owners.get(port).copied();
        let mut port = |id, device| self.port(device, owner(id), wanted.longest_ring, &mut conditions);
        let planned = ports.iter().map(|(id, device)| (*id, port(id, device))).collect();
        let plan = WorkersPlan {
            cores: self.cores(other_work, &mut conditions)?,
            routers: routers.clone(),
            ports: planned,
            paths: paths.clone(),
            io: self.io(ports),
        };
        Ok((plan, conditions))
    }

    /// The I/O bandwidth. It is looked up each time, because links come up with other speeds.
    fn io(&self, ports: &BTreeMap<PortId, Device>) -> Capacity {
        let detected = || {
            let name = |port: &Device| self.name_now(port).unwrap_or_else(|| port.name.clone());
            let names: Vec<String> = ports.values().map(name).collect();
            Capacity::of_io(&self.roots, names.iter().map(String::as_str))
        };
        self.io_mbps.map_or_else(detected, Capacity::of_io_stated)
    }

    /// The present name of a device, which may have been renamed; `None`: it is gone.
    fn name_now(&self, device: &Device) -> Option<String> {
        self.ethtool.name(device.ifindex).ok().flatten()
    }

    fn port(
        &self,
        device: &Device,
        router: Option<RouterId>,
        longest_ring: u32,
        conditions: &mut Vec<String>,
    ) -> PortPlan {
        let Device { name, ifindex } = device;
        let there_are = self.name_now(device).map_or(0, |name| self.roots.rx_queues(&name).len());
        if there_are > MAX_QUEUES {
            conditions.push(format!(
                "port {name}: only the first {MAX_QUEUES} of its {there_are} RX queues can have paths"
            ));
        }
        let usual = Rings::default();
        PortPlan {
            name: name.clone(),
            ifindex: *ifindex,
            namespace: self.namespace.clone(),
            router,
            queues: there_are.min(MAX_QUEUES) as u32,
            zero_copy: self.wants_zero_copy,
            polling: self.polling,
            // At least twice the longest ring of a path (`PortPlan::rings`).
            rings: Rings { fill: usual.fill.max(2 * longest_ring), ..usual },
        }
    }

    /// The configured cores that are online.
    fn cores(&self, other_work: &OtherWork, conditions: &mut Vec<String>) -> Result<Vec<Core>> {
        let machine = Machine::observe(&self.roots).context("reading which cores there are")?;
        let missing: Vec<CoreId> = self.cores.difference(&machine.online()).copied().collect();
        if !missing.is_empty() {
            let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
            conditions.push(format!("workers.cores: core {} is not online", missing.join(", ")));
        }
        let wanted = machine.cores.iter().filter(|core| self.cores.contains(&core.id));
        let core = |site: &CoreSite| Core {
            id: site.id,
            node: site.node,
            physical: site.physical,
            workloads: 0,
            other: other_work.of(site.id).unwrap_or(0.0),
        };
        Ok(wanted.map(core).collect())
    }
}
