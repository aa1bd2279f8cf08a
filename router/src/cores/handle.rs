//! Reports for clients, made from the snapshots of the placing thread.

use super::{
    CoreId,
    drain::Drained,
    exchange::{Exchange, QueueNow, Snapshot},
    local::Following,
    machine::CoreSite,
    moderation::Moderated,
    placing::Happened,
    queues::Control,
    workloads::Workload,
};
use crate::{
    api::cores::{
        CoreReport, CoresReport, DrainsReport, EventReport, LocalReport, ModerationReport, QueueReport,
        ServeReport, SpreadReport, WorkloadReport,
    },
    api::status::{ConditionReport, Why},
    base::{
        clock::monotonic,
        conditions::{Condition, ConditionKind, Conditions},
        guard::locked,
    },
    config::{CoresSettings, Experimental, LocalDelivery, PlacementPolicy},
    linux::spreading::Spreads,
};
use logic::{
    cores::{QueueId, Role, in_use::Spread, roles},
    plan::PortId,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Makes reports about the running threads. Clones stay valid when the threads are started again.
#[derive(Clone)]
pub struct CoresHandle(Arc<Mutex<Handle>>);

impl CoresHandle {
    pub(super) fn new(handle: Handle) -> CoresHandle {
        CoresHandle(Arc::new(Mutex::new(handle)))
    }

    pub(super) fn set(&self, handle: Handle) {
        *locked(&self.0) = handle;
    }

    fn now(&self) -> Handle {
        locked(&self.0).clone()
    }

    /// The state in a control period of the last 100 ms, or of the last 200 ms while nothing is polled.
    pub fn cores(&self) -> CoresReport {
        self.now().cores()
    }

    /// The kept events with higher numbers than `after`, in order.
    pub fn events(&self, after: u64) -> Vec<EventReport> {
        self.now().events(after)
    }

    /// What the configuration says now.
    pub fn wanted(&self) -> Arc<CoresSettings> {
        self.now().wanted
    }
}

/// Makes reports for clients. No control period waits for it. Can be cloned.
#[derive(Clone)]
pub struct Handle {
    pub(super) exchange: Arc<Exchange>,
    pub(super) wanted: Arc<CoresSettings>,
    pub(super) experimental: Experimental,
    pub(super) conditions: Conditions,
    /// The names of ports, by number. An empty name: no port has this number.
    pub(super) names: Arc<[String]>,
}

impl Handle {
    /// The state in a control period of the last 100 ms, or of the last 200 ms while nothing is polled.
    pub fn cores(&self) -> CoresReport {
        let (wanted, hold) = (&self.wanted, self.wanted.hold.0);
        let report = CoresReport {
            policy: wanted.policy.name().into(),
            allowed: wanted.allowed.as_ref().map(|cores| cores.0.iter().copied().collect()),
            high: wanted.high.0,
            low: wanted.low.0,
            hold_s: hold.as_secs_f64(),
            floor: wanted.floor.map(|floor| floor.0),
            serve: wanted
                .serve
                .as_ref()
                .map(|directory| ServeReport { directory: directory.display().to_string(), cores: None }),
            local: (self.experimental.local == LocalDelivery::Follow).then(LocalReport::default),
            conditions: self.condition_reports(),
            ..CoresReport::default()
        };
        let Some(now) = self.exchange.snapshot() else {
            return report;
        };
        let given = now.found.served.as_ref().map(|cores| cores.iter().copied().collect());
        let roles = roles(&now.view, &now.plan);
        CoresReport {
            serve: report.serve.clone().map(|serve| ServeReport { cores: given, ..serve }),
            local: now.found.following.map(local),
            at_s: now.at.as_secs_f64(),
            period_ms: now.period.as_millis() as u64,
            drains: now.drained.map(drains),
            cores: now.found.machine.cores.iter().map(|site| self.core(&now, &roles, site)).collect(),
            queues: now.queues.iter().map(|queue| self.queue(&now, queue)).collect(),
            spreads: now.found.spreads.iter().map(|(port, spreads)| self.spread(*port, spreads)).collect(),
            moderations: now.found.moderated.iter().map(moderation).collect(),
            workloads: now.found.workloads.iter().map(workload).collect(),
            ..report
        }
    }

    /// Sets the conditions that hold now.
    pub(super) fn follow_conditions(&self) {
        let now = self.exchange.snapshot().into_iter().flat_map(|now| now.conditions.clone());
        let texts = self.exchange.failures().into_iter().chain(now);
        self.conditions
            .set(&[ConditionKind::Core], texts.map(|text| Condition::new(ConditionKind::Core, text)));
    }

    fn condition_reports(&self) -> Vec<ConditionReport> {
        let all = self.conditions.of(|kind| kind == ConditionKind::Core).into_iter();
        all.map(|(condition, since)| ConditionReport::new(condition, since)).collect()
    }

    /// The kept events with higher numbers than `after`, in order.
    pub fn events(&self, after: u64) -> Vec<EventReport> {
        let now_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = monotonic();
        let unix_s = |at: Duration| now_unix.saturating_sub(now.saturating_sub(at)).as_secs_f64();
        let report = |Happened { number, at, queue, from, to, why }: Happened| EventReport {
            number,
            unix_s: unix_s(at),
            port: queue.map_or(String::new(), |queue| self.name(queue.port).into()),
            queue: queue.map_or(0, |queue| queue.index),
            from,
            to,
            why,
        };
        self.exchange.events(after).into_iter().map(report).collect()
    }

    /// An event as a line of the log.
    pub(super) fn line(&self, Happened { queue, from, to, why, .. }: &Happened) -> String {
        let Some(id) = queue else { return why.clone() };
        let cores = |cores: &[CoreId]| cores.iter().map(CoreId::to_string).collect::<Vec<_>>().join("+");
        let change = match from == to {
            true => format!("core {}", cores(from)),
            false => format!("core {} -> core {}", cores(from), cores(to)),
        };
        format!("queue {} of {}: {change}: {why}", id.index, self.name(id.port))
    }

    fn core(&self, now: &Snapshot, roles: &BTreeMap<CoreId, Role>, site: &CoreSite) -> CoreReport {
        let here = now.view.queues.iter().filter(|queue| queue.core == site.id);
        let shares =
            now.view.queues.iter().flat_map(|queue| &queue.parts).filter(|part| part.core == site.id);
        let shares = shares.map(|part| part.ran);
        let held = now.found.awake.get(&site.id);
        let kept_by = now.found.kept.get(&site.id).cloned();
        let pinned = now.found.workloads.iter().filter(|workload| workload.cores.contains(&site.id));
        CoreReport {
            core: site.id,
            node: site.node,
            socket: site.socket,
            physical: site.physical,
            role: roles.get(&site.id).map_or("idle", |role| role.name()).into(),
            may_forward: kept_by.is_none()
                && self.wanted.allowed.as_ref().is_none_or(|allowed| allowed.0.contains(&site.id)),
            kept_by,
            forwarding_ns: now.forwarding_ns.get(&site.id).copied().unwrap_or(0),
            forwarding: here.map(|queue| queue.ran).chain(shares).sum(),
            other: now.others.get(&site.id).copied(),
            workloads: pinned.map(|workload| workload.name.clone()).collect(),
            resume_us: held.map(|held| held.us),
            deepest_idle: held.and_then(|held| held.deepest.clone()),
            ..CoreReport::default()
        }
    }

    fn queue(&self, now: &Snapshot, queue: &QueueNow) -> QueueReport {
        let QueueNow { source, load, leader, times, .. } = queue;
        let (moved_by, why_not) = match (queue.refused, source.control) {
            (Some(why), _) | (None, Control::None { why }) => {
                (None, Some(Why::from(why.code().cause(why.to_string()))))
            }
            (None, Control::Thread { pid }) => (Some(format!("thread {pid}")), None),
            (None, Control::Interrupt { irq }) => (Some(format!("interrupt {irq}")), None),
        };
        QueueReport {
            port: self.name(source.id.port).into(),
            queue: source.id.index,
            core: source.core,
            moved_by,
            why_not,
            moved_with: (*leader != source.id).then(|| self.queue_name(*leader)),
            ran: load.ran,
            waited: load.waited,
            wakeups_per_s: load.wakeups_per_s,
            ran_ns: times.ran_ns,
            wakeups: times.wakeups,
            packets_per_s: queue.traffic.traffic.map(|traffic| traffic.packets_per_s),
            polls_per_s: queue.traffic.traffic.map(|traffic| traffic.polls_per_s),
            packets: queue.traffic.total.packets,
            polls: queue.traffic.total.polls,
            is_estimate: queue.is_estimate,
            beside_others: queue.beside_others,
            packet_ns: queue.cost.map(|cost| cost.packet_ns),
            wake_ns: queue.cost.map(|cost| cost.wake_ns),
            shared: now.plan.split.get(&source.id).cloned().unwrap_or_default(),
            helpers: now.helped.get(&source.id).cloned().unwrap_or_default(),
        }
    }

    fn spread(&self, port: PortId, spreads: &Spreads) -> SpreadReport {
        let (used, of, why_not) = match *spreads {
            Spreads::Over(Spread { used, all }) => (used, all, None),
            Spreads::LeftAlone(queues, why) => (queues, queues, Some(why.to_owned())),
        };
        SpreadReport { port: self.name(port).into(), used, of, why_not }
    }

    /// The name of a queue, as in the tables of the command line.
    fn queue_name(&self, id: QueueId) -> String {
        format!("{}/{}", self.name(id.port), id.index)
    }

    /// The device name of a port.
    fn name(&self, port: PortId) -> &str {
        self.names.get(usize::from(port)).filter(|name| !name.is_empty()).map_or("?", String::as_str)
    }

    pub(super) fn is_off(&self) -> bool {
        self.wanted.policy == PlacementPolicy::Off
    }
}

fn drains(drained: Drained) -> DrainsReport {
    DrainsReport {
        left: drained.left,
        longest_us: drained.longest.as_micros() as u64,
        remained: drained.remained,
    }
}

fn local(Following { sockets, queues, follow }: Following) -> LocalReport {
    LocalReport { queues: queues as u32, follow: follow as u32, sockets }
}

fn moderation((port, moderated): (&String, &Moderated)) -> ModerationReport {
    let report = ModerationReport { port: port.clone(), ..ModerationReport::default() };
    match moderated {
        Moderated::By(set) => ModerationReport { by: Some(set.by().into()), us: Some(set.us()), ..report },
        Moderated::Not(why) => ModerationReport { why_not: Some(why.clone()), ..report },
    }
}

fn workload(workload: &Workload) -> WorkloadReport {
    WorkloadReport {
        id: workload.id,
        name: workload.name.clone(),
        kind: workload.kind.to_string(),
        cores: workload.cores.iter().copied().collect(),
    }
}
