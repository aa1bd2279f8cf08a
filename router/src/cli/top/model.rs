//! Computes rows from two readings. A rate is what was counted between them, divided by the time between them. `None` means that
//! a rate is not known: the thing did not exist before, or its counter began again.

use super::{
    reading::{Daemon, Reading},
    ticks::Ticks,
};
use crate::{
    api::{
        cores::{CoreReport, EventReport, QueueReport},
        flows::{FlowReport, FlowsStatus},
        status::{
            ConnectionReport, InterfaceReport, PathReport, PortReport, ReasonCount, RouterReport, Status,
        },
        summary,
    },
    cli::flows,
};
use logic::cores::CoreId;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// The most reasons that are shown with a router or a path.
const TOP_REASONS: usize = 3;
/// The most rules that are shown, and the most connections.
const TOP_RULES: usize = 40;

/// Everything that is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Known without a daemon, too.
    pub cores: Vec<CoreRow>,
    /// What the daemon reported, or why it did not answer.
    pub daemon: Result<DaemonView, String>,
}

/// What the daemon reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DaemonView {
    pub head: Head,
    pub queues: Vec<QueueRow>,
    pub ports: Vec<PortRow>,
    pub routers: Vec<RouterRow>,
    /// `None`: not listed.
    pub interfaces: Option<Vec<InterfaceRow>>,
    pub rules: Rules,
    /// The connections with the most bits per second; `None`: not listed.
    pub talkers: Option<Vec<TalkerRow>>,
    pub paths: Vec<PathRow>,
    /// The newest first.
    pub events: Vec<EventReport>,
}

/// The overall state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Head {
    pub version: String,
    pub instance: Option<String>,
    pub uptime_s: u64,
    pub policy: String,
    /// Problems, the worst first.
    pub problems: Vec<String>,
    pub forwarded_pps: Option<f64>,
    pub forwarded_bps: Option<f64>,
    pub passed_pps: Option<f64>,
    pub dropped_pps: Option<f64>,
    pub lost_pps: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoreRow {
    pub core: CoreId,
    pub role: String,
    pub shares: Option<Shares>,
    /// `eth1/0`.
    pub queues: Vec<String>,
    pub workloads: Vec<String>,
}

/// Fractions of a core's time; the rest is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Queues whose time is known.
    pub forwarding: f64,
    /// The rest of the kernel, with queues whose time is not known.
    pub kernel: f64,
    pub applications: f64,
    /// Time that the hypervisor gave to others.
    pub stolen: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct QueueRow {
    pub port: String,
    pub queue: u16,
    pub core: Option<CoreId>,
    /// Fraction of a core.
    pub load: Option<f64>,
    pub is_estimate: bool,
    /// Known only if the port has one queue.
    pub pps: Option<f64>,
    pub wakeups_per_s: Option<f64>,
    /// The thread or interrupt that moves it, or why nothing does.
    pub moved_by: Result<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortRow {
    pub port: String,
    pub mode: String,
    pub rx_pps: Option<f64>,
    pub rx_bps: Option<f64>,
    pub tx_pps: Option<f64>,
    pub tx_bps: Option<f64>,
    pub lost_pps: Option<f64>,
    pub problems: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct InterfaceRow {
    pub router: String,
    pub interface: String,
    /// `fast` or `kernel`.
    pub ipv4: &'static str,
    pub ipv6: &'static str,
    pub rx_pps: Option<f64>,
    pub rx_bps: Option<f64>,
    pub tx_pps: Option<f64>,
    pub tx_bps: Option<f64>,
    /// Received packets that the fast path did not forward.
    pub other_pps: Option<f64>,
}

/// A connection that bypasses firewall rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TalkerRow {
    pub router: String,
    /// `tcp 10.0.0.2:5 > 192.0.2.9:80`
    pub connection: String,
    /// Both directions together.
    pub pps: Option<f64>,
    pub bps: Option<f64>,
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouterRow {
    pub router: String,
    /// `fast`, `partly` or `kernel`.
    pub ipv4: &'static str,
    pub ipv6: &'static str,
    pub forwarded_pps: Option<f64>,
    pub forwarded_bps: Option<f64>,
    pub passed_pps: Option<f64>,
    pub dropped_pps: Option<f64>,
    pub ns_per_packet: Option<f64>,
    /// Reasons why packets were not forwarded, with packets per second; the most frequent first.
    pub reasons: Vec<(String, f64)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    pub status: FlowsStatus,
    /// The fraction of packets whose decision was cached.
    pub hit_rate: Option<f64>,
    pub hits_pps: Option<f64>,
    pub misses_pps: Option<f64>,
    pub slow_pps: Option<f64>,
    pub slow_lost_pps: Option<f64>,
    /// The busiest first; `None`: not listed.
    pub busiest: Option<Vec<RuleRow>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleRow {
    pub pps: Option<f64>,
    pub bps: Option<f64>,
    pub packets: u64,
    /// `kernel` or `user`.
    pub by: &'static str,
    pub rule: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathRow {
    pub path: String,
    /// The core of its worker.
    pub core: Option<CoreId>,
    /// Fraction of that core's cycles, or of the resource `shares`.
    pub share: Option<f64>,
    /// The resource that the worker's paths share, if it is not cycles.
    pub shares: Option<String>,
    /// Packets given to it, and their bits.
    pub pps: Option<f64>,
    pub bps: Option<f64>,
    pub lost_pps: Option<f64>,
    /// Reasons for lost packets, with packets per second; the most frequent first.
    pub lost: Vec<(String, f64)>,
    /// Why it has no packets.
    pub why_not: Option<String>,
}

impl Model {
    /// Compares a reading with the one before it.
    pub fn new(before: Option<&Reading>, now: &Reading) -> Model {
        let ticks = before.map_or(&[][..], |before| &before.ticks);
        let told = match &now.daemon {
            Ok(told) => told,
            Err(error) => {
                return Model {
                    cores: cores(&[], &[], ticks, now, Seconds(0.0)),
                    daemon: Err(error.clone()),
                };
            }
        };
        let nothing = Daemon::default();
        let same = |old: &&Daemon| old.status.pid == told.status.pid;
        let (old, seconds) = match before.and_then(|before| before.daemon.as_ref().ok().filter(same)) {
            Some(old) => (old, Seconds::between(old.at, told.at)),
            // There are no rates: this is the first reading, or another daemon counts.
            None => (&nothing, Seconds(0.0)),
        };
        let ports = ports(&old.status, &told.status, seconds);
        // The daemon measured cores some time before it answered.
        let measured = Seconds(if seconds.0 > 0.0 { told.cores.at_s - old.cores.at_s } else { 0.0 });
        let mut cores = cores(&old.cores.cores, &told.cores.cores, ticks, now, measured);
        for row in &mut cores {
            let here = told.cores.queues.iter().filter(|queue| queue.core == Some(row.core));
            row.queues = here.map(|queue| format!("{}/{}", queue.port, queue.queue)).collect();
        }
        let told = DaemonView {
            head: head(old, told, seconds),
            queues: queues(old, told, &ports, measured),
            ports,
            routers: routers(&old.status.routers, &told.status.routers, seconds),
            interfaces: told.interfaces.as_ref().map(|now| interfaces(old, now, told.listed_at)),
            talkers: told.connections.as_ref().map(|now| talkers(old, now, told.listed_at)),
            rules: rules(old, told, seconds),
            paths: paths(&old.status.paths, &told.status, seconds),
            events: told.events.iter().rev().cloned().collect(),
        };
        Model { cores, daemon: Ok(told) }
    }
}

/// Time between two readings.
#[derive(Clone, Copy)]
struct Seconds(f64);

impl Seconds {
    fn between(before: Duration, now: Duration) -> Seconds {
        Seconds(now.saturating_sub(before).as_secs_f64())
    }

    fn rate(self, before: Option<u64>, now: u64) -> Option<f64> {
        let counted = now.checked_sub(before?)?;
        (self.0 > 0.0).then(|| counted as f64 / self.0)
    }

    fn bits(self, before: Option<u64>, now: u64) -> Option<f64> {
        self.rate(before, now).map(|bytes| 8.0 * bytes)
    }

    /// The fraction of one core, from nanoseconds that were spent.
    fn fraction(self, before: Option<u64>, now: u64) -> Option<f64> {
        self.rate(before, now).map(|ns_per_s| (ns_per_s / 1e9).min(1.0))
    }
}

fn head(old: &Daemon, told: &Daemon, seconds: Seconds) -> Head {
    let (was, is) = (&old.status, &told.status);
    let problems = is.problem.iter().map(|why| why.text.clone());
    let conditions = is
        .conditions
        .iter()
        .filter(|condition| !condition.is_note)
        .map(|condition| condition.sentence.clone());
    Head {
        version: is.version.clone(),
        instance: is.instance.clone(),
        uptime_s: is.uptime_s,
        policy: told.cores.policy.clone(),
        problems: problems.chain(conditions).collect(),
        forwarded_pps: seconds.rate(Some(was.packets.forwarded), is.packets.forwarded),
        forwarded_bps: seconds
            .rate(Some(was.packets.forwarded_bytes), is.packets.forwarded_bytes)
            .map(|bytes| 8.0 * bytes),
        passed_pps: seconds.rate(Some(was.packets.passed), is.packets.passed),
        dropped_pps: seconds.rate(Some(was.packets.dropped), is.packets.dropped),
        lost_pps: seconds.rate(Some(was.lost), is.lost),
    }
}

/// All cores that the daemon or the kernel names.
fn cores(
    was: &[CoreReport],
    is: &[CoreReport],
    ticks: &[Ticks],
    now: &Reading,
    seconds: Seconds,
) -> Vec<CoreRow> {
    let mut rows: BTreeMap<CoreId, CoreRow> = BTreeMap::new();
    let was: HashMap<_, _> = was.iter().map(|core| (core.core, core.forwarding_ns)).collect();
    let mut forwarding: HashMap<CoreId, f64> = HashMap::new();
    for core in is {
        let role =
            if core.may_forward { core.role.clone() } else { format!("{}, may not forward", core.role) };
        let workloads = core.workloads.clone();
        rows.insert(core.core, CoreRow { core: core.core, role, workloads, ..CoreRow::default() });
        if let Some(fraction) = seconds.fraction(was.get(&core.core).copied(), core.forwarding_ns) {
            forwarding.insert(core.core, fraction);
        }
    }
    let before: HashMap<_, _> = ticks.iter().map(|ticks| (ticks.core, ticks)).collect();
    for ticks in &now.ticks {
        let row =
            rows.entry(ticks.core).or_insert_with(|| CoreRow { core: ticks.core, ..CoreRow::default() });
        let forwarding = forwarding.get(&ticks.core).copied().unwrap_or(0.0);
        row.shares = before.get(&ticks.core).and_then(|before| shares(before, ticks, forwarding));
    }
    rows.into_values().collect()
}

/// The time for forwarding is known more exactly than ticks are, so the rest is fitted to it.
fn shares(before: &Ticks, now: &Ticks, forwarding: f64) -> Option<Shares> {
    let all = now.sum().checked_sub(before.sum()).filter(|ticks| *ticks > 0)? as f64;
    let part = |before: u64, now: u64| now.saturating_sub(before) as f64 / all;
    let forwarding = forwarding.clamp(0.0, 1.0);
    let applications = part(before.applications, now.applications).min(1.0 - forwarding);
    let stolen = part(before.stolen, now.stolen).min(1.0 - forwarding - applications);
    let kernel = part(before.kernel, now.kernel) - forwarding;
    let kernel = kernel.clamp(0.0, (1.0 - forwarding - applications - stolen).max(0.0));
    Some(Shares { forwarding, kernel, applications, stolen })
}

fn queues(old: &Daemon, told: &Daemon, ports: &[PortRow], seconds: Seconds) -> Vec<QueueRow> {
    let name = |queue: &QueueReport| (queue.port.clone(), queue.queue);
    let was: HashMap<_, _> = old.cores.queues.iter().map(|queue| (name(queue), queue)).collect();
    let mut of_port: HashMap<&str, usize> = HashMap::new();
    told.cores.queues.iter().for_each(|queue| *of_port.entry(&queue.port).or_default() += 1);
    let row = |queue: &QueueReport| {
        let was = was.get(&name(queue));
        let is_measured = queue.core.is_some() && (queue.moved_by.is_some() || queue.is_estimate);
        let is_measured = is_measured && queue.moved_with.is_none();
        let load = seconds.fraction(was.map(|was| was.ran_ns), queue.ran_ns);
        let wakeups_per_s = seconds.rate(was.map(|was| was.wakeups), queue.wakeups);
        let port = ports.iter().find(|port| port.port == queue.port);
        QueueRow {
            port: queue.port.clone(),
            queue: queue.queue,
            core: queue.core,
            load: load.filter(|_| is_measured),
            is_estimate: queue.is_estimate,
            pps: port.filter(|_| of_port[&*queue.port] == 1).and_then(|port| port.rx_pps),
            wakeups_per_s: wakeups_per_s.filter(|_| is_measured),
            moved_by: match (&queue.moved_by, &queue.moved_with) {
                (Some(_), Some(leader)) => Ok(format!("with {leader}")),
                (Some(by), None) => Ok(by.clone()),
                (None, _) => Err(queue.why_not.as_ref().map_or_else(String::new, |why| why.text.clone())),
            },
        }
    };
    told.cores.queues.iter().map(row).collect()
}

fn ports(was: &Status, is: &Status, seconds: Seconds) -> Vec<PortRow> {
    let was: HashMap<_, _> = was.ports.iter().map(|port| (&port.port, port)).collect();
    let lost = |port: &PortReport| port.lost.iter().fold(0_u64, |sum, lost| sum.saturating_add(lost.packets));
    let row = |port: &PortReport| {
        let was = was.get(&port.port);
        PortRow {
            port: port.port.clone(),
            mode: port.mode.clone(),
            rx_pps: seconds.rate(was.map(|was| was.rx_packets), port.rx_packets),
            rx_bps: seconds.bits(was.map(|was| was.rx_bytes), port.rx_bytes),
            tx_pps: seconds.rate(was.map(|was| was.tx_packets), port.tx_packets),
            tx_bps: seconds.bits(was.map(|was| was.tx_bytes), port.tx_bytes),
            lost_pps: seconds.rate(was.map(|was| lost(was)), lost(port)),
            problems: port.problems.iter().map(|why| why.text.clone()).collect(),
        }
    };
    is.ports.iter().map(row).collect()
}

fn routers(was: &[RouterReport], is: &[RouterReport], seconds: Seconds) -> Vec<RouterRow> {
    let was: HashMap<_, _> = was.iter().map(|router| (&router.router, router)).collect();
    let row = |router: &RouterReport| {
        let was = was.get(&router.router);
        let how = summary::how_much(router);
        let rate = |field: fn(&RouterReport) -> u64| seconds.rate(was.map(|was| field(was)), field(router));
        RouterRow {
            router: router.router.clone(),
            ipv4: how.ipv4,
            ipv6: how.ipv6,
            forwarded_pps: rate(|router| router.packets.forwarded),
            forwarded_bps: rate(|router| router.packets.forwarded_bytes).map(|bytes| 8.0 * bytes),
            passed_pps: rate(|router| router.packets.passed),
            dropped_pps: rate(|router| router.packets.dropped),
            ns_per_packet: router.ns_per_packet,
            reasons: was.map_or_else(Vec::new, |was| reasons(&was.reasons, &router.reasons, seconds)),
        }
    };
    is.iter().map(row).collect()
}

/// The time since an earlier list. Without one, there are no rates.
fn since(old: &Daemon, was_listed: bool, now: Duration) -> Seconds {
    if was_listed { Seconds::between(old.listed_at, now) } else { Seconds(0.0) }
}

fn interfaces(old: &Daemon, is: &[InterfaceReport], now: Duration) -> Vec<InterfaceRow> {
    let seconds = since(old, old.interfaces.is_some(), now);
    let was = old.interfaces.iter().flatten().map(|was| ((&was.router, &was.interface), was));
    let was: HashMap<_, _> = was.collect();
    let how = |accelerated| if accelerated { "fast" } else { "kernel" };
    let row = |is: &InterfaceReport| {
        let was = was.get(&(&is.router, &is.interface));
        let rate = |field: fn(&InterfaceReport) -> u64| seconds.rate(was.map(|was| field(was)), field(is));
        InterfaceRow {
            router: is.router.clone(),
            interface: is.interface.clone(),
            ipv4: how(is.accelerated.ipv4),
            ipv6: how(is.accelerated.ipv6),
            rx_pps: rate(|i| i.rx_packets),
            rx_bps: rate(|i| i.rx_bytes).map(|bytes| 8.0 * bytes),
            tx_pps: rate(|i| i.tx_packets),
            tx_bps: rate(|i| i.tx_bytes).map(|bytes| 8.0 * bytes),
            other_pps: rate(|i| i.not_forwarded_packets),
        }
    };
    is.iter().map(row).collect()
}

fn talkers(old: &Daemon, is: &[ConnectionReport], now: Duration) -> Vec<TalkerRow> {
    fn name(c: &ConnectionReport) -> [&str; 4] {
        [&c.router, &c.protocol, &c.source, &c.destination]
    }
    let seconds = since(old, old.connections.is_some(), now);
    let was: HashMap<_, _> = old.connections.iter().flatten().map(|was| (name(was), was)).collect();
    let row = |is: &ConnectionReport| {
        let was = was.get(&name(is));
        let rate = |field: fn(&ConnectionReport) -> u64| seconds.rate(was.map(|was| field(was)), field(is));
        TalkerRow {
            router: is.router.clone(),
            connection: format!("{} {} > {}", is.protocol, is.source, is.destination),
            pps: rate(|c| c.packets.saturating_add(c.reply_packets)),
            bps: rate(|c| c.bytes.saturating_add(c.reply_bytes)).map(|bytes| 8.0 * bytes),
            bytes: is.bytes.saturating_add(is.reply_bytes),
        }
    };
    let mut rows: Vec<TalkerRow> = is.iter().map(row).collect();
    let bps = |row: &TalkerRow| row.bps.unwrap_or(0.0);
    rows.sort_by(|a, b| bps(b).total_cmp(&bps(a)).then(b.bytes.cmp(&a.bytes)));
    rows.truncate(TOP_RULES);
    rows
}

/// The reasons with packets between the two readings.
fn reasons(was: &[ReasonCount], is: &[ReasonCount], seconds: Seconds) -> Vec<(String, f64)> {
    let before = |reason: &str| was.iter().find(|was| was.reason == reason).map_or(0, |was| was.packets);
    let rate = |now: &ReasonCount| seconds.rate(Some(before(&now.reason)), now.packets);
    let mut rates: Vec<_> = is.iter().filter_map(|now| Some((now.reason.clone(), rate(now)?))).collect();
    rates.retain(|(_, pps)| *pps > 0.0);
    rates.sort_by(|a, b| b.1.total_cmp(&a.1));
    rates.truncate(TOP_REASONS);
    rates
}

fn paths(was: &[PathReport], is: &Status, seconds: Seconds) -> Vec<PathRow> {
    // Workers whose paths share another resource than cycles.
    let others = is.workers.workers.iter().filter(|worker| !["", "CPU cycles"].contains(&&*worker.share));
    let shared: HashMap<_, _> = others.map(|worker| (worker.core, worker.share.as_str())).collect();
    let was: HashMap<_, _> = was.iter().map(|path| (&path.path, path)).collect();
    let row = |path: &PathReport| {
        let (was, run) = (was.get(&path.path), path.run.as_ref());
        // Without a run in both readings there is no rate of its counters.
        let has_run = run.is_some() && was.is_some_and(|was| was.run.is_some());
        let (now, before) = (lost(path, has_run), was.map(|was| lost(was, has_run)));
        let sum = |counts: &[ReasonCount]| {
            counts.iter().fold(0_u64, |sum, count| sum.saturating_add(count.packets))
        };
        PathRow {
            path: path.path.clone(),
            core: run.map(|run| run.worker),
            share: run.map(|run| run.share),
            shares: run.and_then(|run| shared.get(&run.worker)).map(|share| (*share).to_owned()),
            pps: seconds.rate(was.map(|was| was.packets), path.packets),
            bps: seconds.bits(was.map(|was| was.bytes), path.bytes),
            lost_pps: seconds.rate(before.as_ref().map(|before| sum(before)), sum(&now)),
            lost: before.map_or_else(Vec::new, |before| reasons(&before, &now, seconds)),
            why_not: {
                let why = path.why_not.as_ref().map(|why| why.text.clone());
                why.or_else(|| run.and_then(|run| run.stopped.clone()))
            },
        }
    };
    is.paths.iter().map(row).collect()
}

/// Packets that a path lost: on the way to its worker, or instead of going there. With `with_run`, also those that its chain
/// dropped and those lost with the worker.
fn lost(path: &PathReport, with_run: bool) -> Vec<ReasonCount> {
    let named =
        |reason: &str, packets| ReasonCount { reason: reason.into(), packets, ..ReasonCount::default() };
    let run = path.run.as_ref().filter(|_| with_run);
    let by_chain = run.iter().flat_map(|run| run.dropped.iter().map(|(reason, n)| named(reason, *n)));
    let with_worker = run.iter().flat_map(|run| {
        let of = [
            ("worker_panicked", run.worker_panicked),
            ("path_stopped", run.stopped_packets),
            ("ring_closed", run.ring_closed),
        ];
        of.map(|(reason, packets)| named(reason, packets))
    });
    path.lost.iter().chain(&path.dropped).cloned().chain(by_chain).chain(with_worker).collect()
}

fn rules(old: &Daemon, told: &Daemon, seconds: Seconds) -> Rules {
    let (was, is) = (&old.status.flows, &told.status.flows);
    let rate = |field: fn(&FlowsStatus) -> u64| seconds.rate(Some(field(was)), field(is));
    let (hits_pps, misses_pps) = (rate(|flows| flows.cache_hits), rate(|flows| flows.cache_misses));
    let hit_rate = hits_pps.zip(misses_pps).map(|(hits, misses)| hits / (hits + misses));
    let listed = Seconds::between(old.listed_at, told.listed_at);
    Rules {
        status: is.clone(),
        // Not a number: there were no packets.
        hit_rate: hit_rate.filter(|rate| rate.is_finite()),
        hits_pps,
        misses_pps,
        slow_pps: rate(|flows| flows.slow_done),
        slow_lost_pps: rate(|flows| flows.slow_lost),
        busiest: told.rules.as_ref().map(|now| busiest(old.rules.as_deref(), now, listed)),
    }
}

fn busiest(was: Option<&[FlowReport]>, is: &[FlowReport], seconds: Seconds) -> Vec<RuleRow> {
    fn name(rule: &FlowReport) -> (u8, u16, &str) {
        (rule.table, rule.priority, &rule.matching)
    }
    let was: HashMap<_, _> = was.into_iter().flatten().map(|rule| (name(rule), rule)).collect();
    let row = |rule: &FlowReport| {
        let was = was.get(&name(rule));
        RuleRow {
            pps: seconds.rate(was.map(|was| was.packets), rule.packets),
            bps: seconds.bits(was.map(|was| was.bytes), rule.bytes),
            packets: rule.packets,
            by: flows::by(rule),
            rule: flows::rule(rule),
        }
    };
    let mut rows: Vec<RuleRow> = is.iter().map(row).collect();
    let pps = |row: &RuleRow| row.pps.unwrap_or(0.0);
    rows.sort_by(|a, b| pps(b).total_cmp(&pps(a)).then(b.packets.cmp(&a.packets)));
    rows.truncate(TOP_RULES);
    rows
}

#[cfg(test)]
pub mod tests;
