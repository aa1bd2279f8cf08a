//! Notices of cores and workloads for subscribers: our extension (V5, `docs/reference/openflow-extension.md`).

use super::{Agent, ConnectionId, connection::Work};
use crate::{
    flow::kernel::FlowMemory,
    openflow::{
        Message,
        extension::{Core, Cores, Extension, Workload},
    },
};
use std::{collections::BTreeMap, sync::Arc};

/// How many workloads are known at most. Further ones are left out.
pub const WORKLOADS: usize = 4096;

/// How many starts and stops may wait for a connection. A new subscriber gets a start of each workload. Meanwhile each may
/// stop and another one start. The rest of the room is spare.
const MOST_NOTICES: usize = 4 * WORKLOADS;
/// How many notices are written at a time: at most 512 KiB.
const PIECE: usize = 64;

/// If only loads have changed, a notice is sent after this time, and only if the load of some core changed by `LOAD_STEP`
/// thousandths.
const LOADS_MS: u64 = 1000;
const LOAD_STEP: u16 = 50;

/// What a connection subscribed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Subscription {
    pub cores: bool,
    pub workloads: bool,
}

/// The cores and workloads of the machine.
#[derive(Default)]
pub(super) struct Machine {
    cores: Cores,
    /// The cores as last sent to subscribers, and when.
    told: Cores,
    told_ms: u64,
    workloads: BTreeMap<u32, Arc<Workload>>,
    left_out: usize,
}

#[derive(Clone, Debug)]
enum WorkloadNotice {
    Start(Arc<Workload>),
    Stop { id: u32, tenant: u32 },
}

/// Notices that connections share, and how many of them are already written.
pub(super) struct WorkloadNotices {
    xid: u32,
    all: Arc<[WorkloadNotice]>,
    from: usize,
}

impl WorkloadNotice {
    fn message(&self) -> Message {
        let extension = match self {
            WorkloadNotice::Start(workload) => Extension::WorkloadStart(Workload::clone(workload)),
            WorkloadNotice::Stop { id, tenant } => Extension::WorkloadStop { id: *id, tenant: *tenant },
        };
        Message::Experimenter(extension.encode())
    }
}

impl Machine {
    /// Can packets be handed to other cores?
    pub fn hands_over(&self) -> bool {
        self.cores.features.core_redirect
    }

    /// Should subscribers get the cores now?
    fn has_news(&self, now_ms: u64) -> bool {
        let (now, told) = (&self.cores, &self.told);
        let same = |(a, b): (&Core, &Core)| (a.number, a.workloads) == (b.number, b.workloads);
        let pairs = || now.cores.iter().zip(&told.cores);
        if now.features != told.features || now.cores.len() != told.cores.len() || !pairs().all(same) {
            return true;
        }
        let moved = |(a, b): (&Core, &Core)| match (a.load, b.load) {
            (Some(a), Some(b)) => a.abs_diff(b) >= LOAD_STEP,
            (a, b) => a != b,
        };
        now_ms.saturating_sub(self.told_ms) >= LOADS_MS && pairs().any(moved)
    }

    /// Replaces the running workloads. Returns notices of those that stopped, then of those that started, each by id.
    fn replace_workloads(&mut self, workloads: Vec<Workload>) -> Vec<WorkloadNotice> {
        let mut now: BTreeMap<u32, Workload> =
            workloads.into_iter().map(|workload| (workload.id, normalised(workload))).collect();
        let named = now.len();
        // Known workloads are not displaced by new ones.
        let mut room = WORKLOADS - now.keys().filter(|id| self.workloads.contains_key(id)).count();
        now.retain(|id, _| {
            let known = self.workloads.contains_key(id);
            let fits = known || room > 0;
            room -= usize::from(fits && !known);
            fits
        });
        self.left_out = named - now.len();
        let mut notices = Vec::new();
        for old in self.workloads.values() {
            if now.get(&old.id).is_none_or(|workload| workload.tenant != old.tenant) {
                notices.push(WorkloadNotice::Stop { id: old.id, tenant: old.tenant });
            }
        }
        let mut before = std::mem::take(&mut self.workloads);
        for (id, workload) in now {
            let same = before.remove(&id).filter(|old| **old == workload);
            let workload = same.unwrap_or_else(|| {
                let new = Arc::new(workload);
                notices.push(WorkloadNotice::Start(new.clone()));
                new
            });
            self.workloads.insert(id, workload);
        }
        notices
    }
}

/// The workload with each core once, in ascending order.
fn normalised(mut workload: Workload) -> Workload {
    workload.cores.sort_unstable();
    workload.cores.dedup();
    workload
}

impl<M: FlowMemory> Agent<M> {
    /// Sets the cores of this machine and how packets can be steered to them. Subscribers get a notice at once if cores were
    /// added or removed, or pinned workloads changed. If only loads changed, they get one at most once a second, and only
    /// for a change of 5 % of a core or more. Without `core_redirect`, packets cannot be handed to another core, and
    /// SET_CORE and CORE_FLOW_MOD are refused.
    pub fn set_cores(&mut self, cores: Cores, now_ms: u64) {
        let numbers = || cores.cores.iter().map(|core| core.number).collect();
        self.flows.set_cores(cores.features.core_redirect.then(numbers));
        self.machine.cores = cores;
        self.tell_cores(now_ms);
    }

    /// Sets the workloads that run now, at most [`WORKLOADS`]. Of two with the same id the last one counts. Subscribers get
    /// notices of workloads that stopped, then of those that are new, have another tenant or are pinned to other cores.
    pub fn set_workloads(&mut self, workloads: Vec<Workload>, now_ms: u64) {
        let all: Arc<[_]> = self.machine.replace_workloads(workloads).into();
        for id in self.subscribers(|wants| wants.workloads) {
            self.tell_workloads(id, 0, &all);
            self.write_due(id, now_ms);
        }
    }

    /// How many workloads of the last [`set_workloads`](Agent::set_workloads) were left out because there are too many.
    pub fn workloads_left_out(&self) -> usize {
        self.machine.left_out
    }

    /// Replaces the subscription of a connection, and sends it the current state.
    pub(super) fn subscribe(&mut self, id: ConnectionId, xid: u32, wants: Subscription) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.subscription = wants;
        if wants.cores {
            connection.cores_wait = true;
            connection.push(Work::Cores { xid });
        }
        if wants.workloads {
            let all = self.machine.workloads.values().cloned().map(WorkloadNotice::Start).collect();
            self.tell_workloads(id, xid, &all);
        }
    }

    /// Sends subscribers the cores, if there is news.
    pub(super) fn tell_cores(&mut self, now_ms: u64) {
        if !self.machine.has_news(now_ms) {
            return;
        }
        self.machine.told = self.machine.cores.clone();
        self.machine.told_ms = now_ms;
        for id in self.subscribers(|wants| wants.cores) {
            if let Some(connection) = self.connections.get_mut(&id)
                && !std::mem::replace(&mut connection.cores_wait, true)
            {
                connection.push(Work::Cores { xid: 0 });
            }
            self.write_due(id, now_ms);
        }
    }

    fn subscribers(&self, wants: impl Fn(Subscription) -> bool) -> Vec<ConnectionId> {
        self.connections.iter().filter(|(_, c)| wants(c.subscription)).map(|(&id, _)| id).collect()
    }

    fn tell_workloads(&mut self, id: ConnectionId, xid: u32, all: &Arc<[WorkloadNotice]>) {
        let Some(connection) = self.connections.get_mut(&id).filter(|_| !all.is_empty()) else { return };
        connection.workload_notices += all.len();
        connection.push(Work::Workloads(WorkloadNotices { xid, all: all.clone(), from: 0 }));
        if connection.workload_notices > MOST_NOTICES {
            self.close(id, "it does not read the notices that it asked for".into());
        }
    }

    pub(super) fn write_cores(&mut self, id: ConnectionId, xid: u32) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.cores_wait = false;
            let cores = Extension::Cores(self.machine.cores.clone());
            self.tell(id, xid, &Message::Experimenter(cores.encode()));
        }
    }

    /// Writes the next piece of the notices.
    pub(super) fn write_workloads(&mut self, id: ConnectionId, notices: WorkloadNotices) {
        let WorkloadNotices { xid, all, from } = notices;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let to = all.len().min(from + PIECE);
        connection.workload_notices -= to - from;
        if to < all.len() {
            connection.push_rest(Work::Workloads(WorkloadNotices { xid, all: all.clone(), from: to }));
        }
        all[from..to].iter().for_each(|notice| self.tell(id, xid, &notice.message()));
    }
}
