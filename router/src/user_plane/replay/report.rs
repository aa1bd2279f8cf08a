//! The report of a run.

use crate::{
    api::{
        sas::{CryptoReport, SaReport},
        workers::{Counts, ElementReport, ResourceStand},
    },
    config::PathsConfig,
};
use logic::{
    elements::Verdict,
    paths::{PathId, Resource},
    worker::{Turns, Worker},
};
use serde::Serialize;

/// `millrace paths run --json`. Every packet is in exactly one of `out`, `up` and `dropped`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PathsReport {
    /// Packets of the files.
    pub packets: u64,
    /// Packets that left by a port.
    pub out: u64,
    /// Packets that the kernel would get.
    pub up: u64,
    pub dropped: u64,
    /// Packets in `up` that no class has.
    pub no_path: u64,
    /// Packets in `dropped` whose end was not captured.
    pub truncated: u64,
    /// Packets in `dropped` that are longer than a frame.
    pub too_long: u64,
    pub paths: Vec<PathReport>,
    /// Packets that are older than one before them. For the paths they came at the time of that one.
    pub out_of_order: u64,
    /// The library that encrypts, if there are SAs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crypto: Option<CryptoReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sas: Vec<SaReport>,
    /// One packet in so many was measured (P6).
    pub sample_every: u16,
    /// The longest run of a path (P8).
    pub longest_run_us: u32,
    /// Each resource of this machine.
    pub resources: Vec<ResourceStand>,
    /// Why files were not read or written to their end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

/// A path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PathReport {
    pub path: String,
    pub router: String,
    pub packets: u64,
    /// Packets that left, by port.
    pub out: Counts,
    /// Packets for the kernel, by reason.
    pub up: Counts,
    /// Dropped packets, by reason.
    pub dropped: Counts,
    /// Runs that had packets.
    pub runs: u64,
    /// Sampled; absent: nothing was measured.
    pub ns_per_packet: Option<u64>,
    /// Bytes received and bytes sent by a port, sampled.
    pub io_bytes_per_packet: Option<u64>,
    /// Bytes of memory bandwidth: counted, or estimated as [`PathsReport::resources`] says.
    pub memory_bytes_per_packet: Option<u64>,
    pub elements: Vec<ElementReport>,
}

impl PathReport {
    /// Counts a packet of the path that has its verdict.
    pub fn count(&mut self, config: &PathsConfig, verdict: Verdict) {
        let (counts, name) = match verdict {
            Verdict::To(port) => {
                (&mut self.out, config.ports.get(usize::from(port)).map(|port| port.name.as_str()))
            }
            Verdict::Up(reason) | Verdict::Own(reason) => (&mut self.up, Some(reason.name())),
            Verdict::Drop(loss) => (&mut self.dropped, Some(loss.name())),
        };
        let name = name.unwrap_or("unknown");
        match counts.get_mut(name) {
            Some(count) => *count += 1,
            None => drop(counts.insert(name.into(), 1)),
        }
        self.packets += 1;
    }
}

impl PathsReport {
    /// A report of the configured paths, with all counters 0.
    pub fn new(config: &PathsConfig) -> Self {
        let router =
            |id: u8| config.routers.get(usize::from(id)).map(|router| router.0.clone()).unwrap_or_default();
        let path = |path: &crate::config::PathConfig| PathReport {
            path: path.name.clone(),
            router: router(path.router),
            ..PathReport::default()
        };
        PathsReport {
            paths: config.paths.iter().map(path).collect(),
            sample_every: config.runs.sample_every.packets(),
            longest_run_us: config.runs.longest_run.0,
            ..PathsReport::default()
        }
    }

    /// Adds the worker's counters, and computes the sums.
    pub fn finish<F: logic::worker::Frame>(&mut self, worker: &Worker<F>) {
        for account in worker.accounts() {
            if let Some(path) = self.paths.get_mut(usize::from(account.path.id)) {
                path.runs = account.runs - account.empty_runs;
                path.ns_per_packet = account.cost.of(Resource::Cycles);
                path.io_bytes_per_packet = account.cost.of(Resource::Io);
                path.memory_bytes_per_packet =
                    account.cost.of(Resource::Memory).or(account.cost.of(Resource::Io));
            }
        }
        let sum = |counts: &Counts| counts.values().sum::<u64>();
        for (id, path) in (0..).zip(&mut self.paths) {
            path.elements = elements(worker, id);
            self.out += sum(&path.out);
            self.up += sum(&path.up);
            self.dropped += sum(&path.dropped);
        }
        self.up += self.no_path;
        self.dropped += self.truncated + self.too_long;
    }
}

pub(crate) fn elements(worker: &Turns, path: PathId) -> Vec<ElementReport> {
    let Some(chain) = worker.chain(path) else { return Vec::new() };
    let report = |(element, counters, counted): (&str, &logic::elements::Counters, Vec<_>)| {
        let mut report = ElementReport {
            element: element.into(),
            packets: counters.packets(),
            counted: counted.into_iter().map(|(what, n): (&str, u64)| (what.into(), n)).collect(),
            ..ElementReport::default()
        };
        for (verdict, packets) in counters.lost() {
            match verdict {
                Verdict::Up(reason) | Verdict::Own(reason) => report.up.insert(reason.name().into(), packets),
                Verdict::Drop(loss) => report.dropped.insert(loss.name().into(), packets),
                Verdict::To(_) => None,
            };
        }
        report
    };
    chain.counters().map(report).collect()
}
