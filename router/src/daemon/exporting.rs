//! Begins and ends exports of samples. What cannot be exported is a condition: forwarding does not depend on it.

use super::{
    Control,
    seam::{Kernel, Observe},
    world::PortState,
};
use crate::{
    api::export::{CollectorReport, ExportReport},
    export::{Devices, Exporter},
};

/// The exports of the daemon.
#[derive(Debug, Default)]
pub struct Exports {
    /// `None`: no samples are exported.
    exporter: Option<Exporter>,
    /// Why no samples are exported, although they should be.
    why_not: Option<String>,
}

impl Exports {
    pub fn is_on(&self) -> bool {
        self.exporter.is_some()
    }

    pub fn has_failed(&self) -> bool {
        self.why_not.is_some()
    }

    /// Ends exports.
    pub fn fail(&mut self, why: String) {
        (self.exporter, self.why_not) = (None, Some(why));
    }

    pub fn report(&self) -> Option<ExportReport> {
        self.exporter.as_ref().map(Exporter::report)
    }

    /// Problems of exports.
    pub fn conditions(&self) -> Vec<String> {
        let of = |to: &CollectorReport| {
            let error = to.error.as_ref()?;
            let (protocol, address) = (to.protocol.name(), &to.address);
            Some(format!("some datagrams to the {protocol} collector {address} cannot be sent: {error}"))
        };
        let report = self.report().unwrap_or_default();
        let ended = self.exporter.as_ref().and_then(Exporter::why_ended);
        self.why_not.iter().cloned().chain(ended).chain(report.collectors.iter().filter_map(of)).collect()
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Follows `[export]`.
    pub(super) fn follow_export(&mut self) {
        self.stop_export();
        self.exports.why_not = None;
        let started = if self.config.export.is_on() { self.start_export() } else { Ok(()) };
        let chosen = started.and_then(|()| match self.captures.made() {
            Some(_) => self.choose_program(),
            None => Ok(()),
        });
        if let Err(error) = chosen {
            self.stop_export();
            self.exports.fail(format!("no samples are exported: {error:#}"));
        }
    }

    /// Ends sampling, and then the thread, which reads what has been sampled. Two threads must not read one ring.
    pub(super) fn stop_export(&mut self) {
        if let Some(maps) = self.captures.made() {
            maps.sample(0);
        }
        self.exports.exporter = None;
    }

    fn start_export(&mut self) -> anyhow::Result<()> {
        let kernel = &mut self.kernel;
        let maps = self.captures.maps(|| kernel.capture_maps())?.clone();
        let exporter = Exporter::start(&self.config.export, maps.clone(), self.devices_of_ports())?;
        self.exports.exporter = Some(exporter);
        maps.sample(self.config.export.every.0);
        Ok(())
    }

    fn devices_of_ports(&self) -> Devices {
        let device =
            |(id, port): (&u8, &PortState)| Some((*id, (port.device.as_ref()?.ifindex, port.name.clone())));
        self.world.ports.iter().filter_map(device).collect()
    }

    /// Gives the exporter the devices of ports.
    pub(super) fn follow_export_devices(&mut self) {
        if let Some(exporter) = &self.exports.exporter {
            exporter.set_devices(self.devices_of_ports());
        }
    }
}
