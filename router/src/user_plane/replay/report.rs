//! What became of the packets.

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
    /// That came.
    pub packets: u64,
    pub out: u64,
    /// That the kernel would get.
    pub up: u64,
    pub dropped: u64,
    /// Up: of no path's class.
    pub no_path: u64,
    /// Dropped: their end was not captured.
    pub truncated: u64,
    /// Dropped: longer than a frame.
    pub too_long: u64,
    pub paths: Vec<PathReport>,
    /// That were captured before another in front of them: for the paths they came with that one.
    pub out_of_order: u64,
    /// Which library encrypts, where there are SAs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crypto: Option<CryptoReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sas: Vec<SaReport>,
    /// One packet in so many was measured (P6).
    pub sample_every: u16,
    /// The longest run of a path (P8).
    pub longest_run_us: u32,
    /// What is known of what paths use on this machine.
    pub resources: Vec<ResourceStand>,
    /// Why files were not read or not written to their end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

/// A path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PathReport {
    pub path: String,
    pub router: String,
    pub packets: u64,
    /// By port.
    pub out: Counts,
    /// By reason.
    pub up: Counts,
    /// By reason.
    pub dropped: Counts,
    /// In which it had packets.
    pub runs: u64,
    /// Sampled; absent: nothing was measured.
    pub ns_per_packet: Option<u64>,
    /// Sampled: as it came, and as it left by a port.
    pub io_bytes_per_packet: Option<u64>,
    /// Of memory bandwidth: counted, or estimated as [`PathsReport::resources`] says.
    pub memory_bytes_per_packet: Option<u64>,
    pub elements: Vec<ElementReport>,
}

impl PathReport {
    /// A packet of the path is through.
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
    /// Of the paths of the file, nothing counted.
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

    /// Adds it up, with what the worker knows.
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
