//! Exports of sampled packets to collectors: sFlow version 5 and IPFIX.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | the thread that exports, and its report |
//! | `exporting.rs` | what the thread does: reads samples, sends datagrams |
//! | `collectors.rs` | the sockets of collectors |
//! | `sample.rs` | a sampled packet, in the terms of a collector |
//! | `sflow.rs` | datagrams of sFlow |
//! | `flows.rs` | the flows of sampled packets |
//! | `ipfix.rs` | messages of IPFIX |
//! | `counters.rs` | the kernel's counters of ports, for sFlow |
//!
//! The program that samples is the one with captures ([`crate::plane::capture`]), and the control loop attaches it. Samples have a
//! ring of their own. If the thread is late, samples are lost and counted. Forwarding never waits.

mod collectors;
mod counters;
mod exporting;
pub(crate) mod flows;
mod ipfix;
pub(crate) mod sample;
pub(crate) mod sflow;

use crate::{
    api::export::ExportReport,
    base::{clock::monotonic, guard::locked, privileges},
    config::ExportSettings,
    plane::capture::CaptureMaps,
};
use exporting::Exporting;
use logic::plan::PortId;
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex,
        mpsc::{Sender, channel},
    },
    thread::{self, JoinHandle},
};

/// The devices of ports, by port: index and name.
pub type Devices = BTreeMap<PortId, (u32, String)>;

/// The thread that exports. Dropping it ends the thread.
#[derive(Debug)]
pub struct Exporter {
    /// Dropped first, which ends the thread.
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

/// What the thread and the control loop share.
#[derive(Debug, Default)]
struct Shared {
    devices: Mutex<Devices>,
    report: Mutex<ExportReport>,
    /// Why the thread has ended by itself.
    ended: Mutex<Option<String>>,
}

impl Exporter {
    /// Exports the samples that come into the ring of these maps from now on.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(
        settings: &ExportSettings,
        maps: Arc<CaptureMaps>,
        devices: Devices,
    ) -> io::Result<Exporter> {
        let report = Mutex::new(ExportReport::new(settings));
        let shared = Arc::new(Shared { devices: Mutex::new(devices), report, ended: Mutex::default() });
        let (ends, end) = channel();
        let exporting = Exporting::new(settings, monotonic(), shared.clone());
        let of_thread = shared.clone();
        let thread = thread::Builder::new().name("export".into()).spawn(move || {
            privileges::serve_with_nothing("export");
            if let Err(error) = exporting.run(&maps, &end) {
                *locked(&of_thread.ended) = Some(format!("exports have ended: {error:#}"));
            }
        })?;
        Ok(Exporter { ends: Some(ends), thread: Some(thread), shared })
    }

    /// From now on, ports have these devices.
    pub fn set_devices(&self, devices: Devices) {
        *locked(&self.shared.devices) = devices;
    }

    /// Why the thread has ended by itself; `None`: it runs.
    pub fn why_ended(&self) -> Option<String> {
        let why = locked(&self.shared.ended).clone();
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        why.or_else(|| has_ended.then(|| "exports have ended: their thread has panicked".into()))
    }

    /// What was exported since the start.
    pub fn report(&self) -> ExportReport {
        locked(&self.shared.report).clone()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // The next thread reads the same ring, so this one has to end first. It waits for nothing but this, and reads a bounded
        // number of samples.
        self.ends = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
