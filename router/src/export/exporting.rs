//! What the thread does: it reads samples, and sends datagrams.

use super::{
    Shared,
    collectors::Sending,
    counters,
    flows::FlowCache,
    ipfix::{Ipfix, Now},
    sample::Sample,
    sflow::Sflow,
};
use crate::{
    api::export::{ExportReport, Protocol},
    base::{clock::monotonic, guard::locked},
    config::{Collector, ExportSettings},
    linux::ethtool::Ethtool,
    plane::capture::CaptureMaps,
};
use anyhow::Result;
use logic::{capture::record::Record, plan::PortId};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, SystemTime},
};

/// How long samples may wait in the ring.
const READ_EVERY: Duration = Duration::from_millis(20);
/// The most samples that are read before datagrams are sent: samples may come as fast as they are read.
const MOST_SAMPLES: u32 = 4096;
/// How long flows are collected before IPFIX reports them.
const FLOWS_EVERY: Duration = Duration::from_secs(1);

/// The thread's state.
pub struct Exporting {
    shared: Arc<Shared>,
    started: Duration,
    agent: Option<IpAddr>,
    counters_every: Duration,
    /// Collectors, in the order of the report.
    sflow_to: Vec<Sending>,
    ipfix_to: Vec<Sending>,
    every: u32,
    /// `None`: the agent's address is not known yet.
    sflow: Option<Sflow>,
    ipfix: Ipfix,
    flows: FlowCache,
    /// When flows and counters are reported next.
    flows_due: Duration,
    counters_due: Duration,
    ifindexes: BTreeMap<PortId, u32>,
    /// Samples that may be read before datagrams are sent.
    room: u32,
    samples: u64,
    lost_before: Option<u64>,
}

impl Exporting {
    pub(super) fn new(settings: &ExportSettings, now: Duration, shared: Arc<Shared>) -> Exporting {
        let reports = ExportReport::new(settings).collectors;
        let to = |protocol: Protocol, all: &[Collector]| -> Vec<Sending> {
            let reports = reports.iter().filter(|report| report.protocol == protocol);
            all.iter().zip(reports).map(|(to, report)| Sending::new(*to, report.clone())).collect()
        };
        Exporting {
            shared,
            started: now,
            agent: settings.agent.map(|agent| agent.0),
            counters_every: settings.counters.0,
            sflow_to: to(Protocol::Sflow, &settings.sflow),
            ipfix_to: to(Protocol::Ipfix, &settings.ipfix),
            every: settings.every.0,
            sflow: None,
            ipfix: Ipfix::new(settings.every.0),
            flows: FlowCache::default(),
            flows_due: now + FLOWS_EVERY,
            counters_due: now,
            ifindexes: BTreeMap::new(),
            room: 0,
            samples: 0,
            lost_before: None,
        }
    }

    /// Exports until the other end of `end` is dropped.
    ///
    /// # Errors
    /// The ring cannot be mapped.
    pub(super) fn run(self, maps: &CaptureMaps, end: &Receiver<()>) -> Result<()> {
        let ethtool = Ethtool::open()?;
        let this = RefCell::new(self);
        maps.follow_samples(
            |record| this.borrow_mut().take(record),
            |read| {
                let mut pause = READ_EVERY;
                while end.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    this.borrow_mut().begin(maps.samples_lost());
                    read();
                    let is_full = this.borrow_mut().finish(&ethtool, monotonic());
                    pause = if is_full { Duration::ZERO } else { READ_EVERY };
                }
                // What has come until now.
                this.borrow_mut().begin(maps.samples_lost());
                read();
                this.borrow_mut().flows_due = Duration::ZERO;
                this.borrow_mut().finish(&ethtool, monotonic());
                Ok(())
            },
        )
    }

    /// Before samples are read. `lost`: those that were lost since the maps were made.
    fn begin(&mut self, lost: u64) {
        self.room = MOST_SAMPLES;
        let devices = locked(&self.shared.devices);
        self.ifindexes = devices.iter().map(|(port, (ifindex, _))| (*port, *ifindex)).collect();
        drop(devices);
        let lost = lost - *self.lost_before.get_or_insert(lost);
        locked(&self.shared.report).lost = lost;
        let now = monotonic();
        if self.sflow.is_none() {
            let agent = self.agent.or_else(|| self.sflow_to.iter_mut().find_map(|to| to.source(now)));
            self.sflow = agent.map(|agent| Sflow::new(agent, self.every));
        }
        if let Some(sflow) = &mut self.sflow {
            sflow.set(now.saturating_sub(self.started).as_millis() as u32, lost as u32);
            sflow.keep(|ifindex| self.ifindexes.values().any(|there| *there == ifindex));
        }
    }

    /// Returns false if no more samples may be read now.
    fn take(&mut self, record: &Record<'_>) -> bool {
        self.room = self.room.saturating_sub(1);
        // Earlier ones are those of another exporter.
        if u128::from(record.time_ns) >= self.started.as_nanos()
            && let Some(sample) = Sample::of(record, |port| self.ifindexes.get(&port).copied())
        {
            self.samples += 1;
            self.add(&sample);
        }
        self.room > 0
    }

    fn add(&mut self, sample: &Sample<'_>) {
        if let Some(sflow) = self.sflow.as_mut().filter(|_| !self.sflow_to.is_empty()) {
            sflow.add(sample);
        }
        if !self.ipfix_to.is_empty()
            && let Some(flows) = self.flows.add(sample)
        {
            self.send_flows(&flows);
        }
    }

    /// After samples were read: sends what is due, and reports. Returns whether more samples may wait.
    fn finish(&mut self, ethtool: &Ethtool, now: Duration) -> bool {
        if now >= self.counters_due && self.sflow.is_some() {
            self.counters_due = now + self.counters_every;
            self.add_counters(ethtool);
        }
        if let Some(sflow) = &mut self.sflow {
            for datagram in sflow.take() {
                self.sflow_to.iter_mut().for_each(|to| to.send(&datagram, now));
            }
        }
        if now >= self.flows_due {
            self.flows_due = now + FLOWS_EVERY;
            let flows = self.flows.take();
            self.send_flows(&flows);
        }
        let mut report = locked(&self.shared.report);
        (report.samples, report.not_ip) = (self.samples, self.flows.not_ip);
        let all = self.sflow_to.iter().chain(&self.ipfix_to);
        report.collectors = all.map(|to| to.report.clone()).collect();
        self.room == 0
    }

    fn add_counters(&mut self, ethtool: &Ethtool) {
        let Some(sflow) = self.sflow.as_mut().filter(|_| !self.sflow_to.is_empty()) else { return };
        let devices: Vec<_> = locked(&self.shared.devices).values().cloned().collect();
        match counters::read(ethtool, &devices) {
            Ok(all) => all.iter().for_each(|counters| sflow.add_counters(counters)),
            Err(error) => tracing::warn!("the counters of ports cannot be exported: {error}"),
        }
    }

    fn send_flows(&mut self, flows: &[(super::flows::Key, super::flows::Flow)]) {
        let monotonic = monotonic();
        let real = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for message in self.ipfix.messages(flows, Now { monotonic, real }) {
            self.ipfix_to.iter_mut().for_each(|to| to.send(&message, monotonic));
        }
    }
}
