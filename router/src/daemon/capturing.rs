//! Begins and ends captures and exports: the program that captures and samples on the ports.

use super::{
    Control,
    seam::{FastPath, Kernel, Observe},
    world::PortState,
};
use crate::{
    api::{ApiError, capture::CaptureRequest, export::CollectorReport},
    capture::{Captures, Names, Started},
    export::{Devices, Exporter},
    plane::capture::Wanted,
};
use logic::{
    capture::filter::{self, Classic},
    reason::Reason,
};

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Serves the captures that are claimed here.
    pub(super) fn with_captures(self, captures: Captures) -> Self {
        Control { captures, ..self }
    }

    /// Attaches the program with a capture. Somebody has claimed it.
    ///
    /// # Errors
    /// Nothing is captured.
    pub(super) fn begin_capture(&mut self, request: &CaptureRequest) -> Result<Started, ApiError> {
        if !self.captures.is_claimed() {
            return Err(ApiError::busy("the client has left"));
        }
        let wanted = self.wanted_capture(request)?;
        let kernel = &mut self.kernel;
        let maps = self.captures.maps(|| kernel.capture_maps());
        let maps = maps.map_err(|e| ApiError::failed(format!("captures cannot be used: {e:#}")))?.clone();
        maps.want(Some(&wanted));
        self.capturing = true;
        let attached = self.generation.plane.set_capture(Some(&maps)).and_then(|()| self.swap());
        if let Err(error) = attached {
            maps.forget_filter();
            self.end_capture();
            let why = format!("the kernel does not load the program with this capture: {error:#}");
            // Only filters come from outside.
            return Err(if wanted.filter.is_empty() { ApiError::failed(why) } else { ApiError::bad(why) });
        }
        let since_ns = self.captures.begin();
        maps.begin();
        let routers =
            self.world.mirror.routers().filter_map(|router| Some((router.router?, router.name.clone())));
        let names = Names {
            only: wanted.ports,
            ports: self.world.ports.iter().map(|(id, port)| (*id, port.name.clone())).collect(),
            routers: routers.collect(),
        };
        Ok(Started { since_ns, names })
    }

    fn wanted_capture(&self, request: &CaptureRequest) -> Result<Wanted, ApiError> {
        let CaptureRequest { filter, ports, reasons, snaplen, rate, .. } = request;
        let classic: Vec<_> =
            filter.iter().map(|(code, jt, jf, k)| Classic { code: *code, jt: *jt, jf: *jf, k: *k }).collect();
        let filter = match classic.is_empty() {
            true => Vec::new(),
            false => filter::compile(&classic).map_err(|e| ApiError::bad(e.to_string()))?,
        };
        let port = |name: &String| {
            let found = self.world.ports.iter().find(|(_, port)| port.name == *name);
            found.map(|(id, _)| *id).ok_or_else(|| ApiError::unknown(format!("there is no port {name}")))
        };
        let reason = |name: &String| {
            let found = Reason::all().find(|reason| reason.name() == name);
            found.ok_or_else(|| ApiError::unknown(format!("there is no reason {name}")))
        };
        let router = |name: &String| {
            let found = self.world.mirror.routers().find(|router| router.name == *name);
            found
                .and_then(|router| router.router)
                .ok_or_else(|| ApiError::unknown(format!("there is no router {name}")))
        };
        Ok(Wanted {
            filter,
            ports: ports.iter().map(port).collect::<Result<_, _>>()?,
            router: request.router.as_ref().map(router).transpose()?,
            reasons: reasons.iter().map(reason).collect::<Result<_, _>>()?,
            most_bytes: *snaplen,
            pps: *rate,
        })
    }

    /// Ends a capture whose claim was dropped.
    pub(super) fn follow_capture(&mut self) {
        if self.capturing && !self.captures.is_claimed() {
            self.end_capture();
        }
    }

    /// Ends the capture and exports, if there are any.
    pub(super) fn leave_capture(&mut self) {
        let exports = self.exporter.take().is_some();
        if self.capturing || exports {
            self.end_capture();
        }
    }

    fn end_capture(&mut self) {
        self.capturing = false;
        if let Some(maps) = self.captures.made() {
            maps.want(None);
        }
        self.choose_program();
    }

    /// Chooses the program without captures, unless packets are captured or sampled.
    fn choose_program(&mut self) {
        let maps = self.captures.made().filter(|_| self.capturing || self.exporter.is_some());
        let attached = self.generation.plane.set_capture(maps).and_then(|()| self.swap());
        if let Err(error) = attached {
            tracing::warn!(
                "the program that captures and samples stays attached, and does neither: {error:#}"
            );
        }
    }

    /// Follows `[export]`. What cannot be exported is a condition: forwarding does not depend on it.
    pub(super) fn follow_export(&mut self) {
        // Two threads must not read one ring.
        self.exporter = None;
        self.export_fails = None;
        if let Some(maps) = self.captures.made() {
            maps.sample(0);
        }
        if self.config.export.is_on()
            && let Err(error) = self.start_export()
        {
            self.exporter = None;
            self.export_fails = Some(format!("no samples are exported: {error:#}"));
        }
        if self.captures.made().is_some() {
            self.choose_program();
        }
    }

    fn start_export(&mut self) -> anyhow::Result<()> {
        let kernel = &mut self.kernel;
        let maps = self.captures.maps(|| kernel.capture_maps())?.clone();
        self.generation.plane.set_capture(Some(&maps))?;
        maps.sample(self.config.export.every.0);
        self.export_devices = self.devices_of_ports();
        self.exporter = Some(Exporter::start(&self.config.export, maps, self.export_devices.clone())?);
        Ok(())
    }

    fn devices_of_ports(&self) -> Devices {
        let device =
            |(id, port): (&u8, &PortState)| Some((*id, (port.device.as_ref()?.ifindex, port.name.clone())));
        self.world.ports.iter().filter_map(device).collect()
    }

    /// Gives the exporter the devices of ports, if they have changed.
    pub(super) fn follow_export_devices(&mut self) {
        let Some(exporter) = &self.exporter else { return };
        let devices = self.devices_of_ports();
        if devices != self.export_devices {
            exporter.set_devices(devices.clone());
            self.export_devices = devices;
        }
    }

    /// What does not work of exports.
    pub(super) fn export_conditions(&self) -> Vec<String> {
        let report = self.exporter.as_ref().map(Exporter::report).unwrap_or_default();
        let of = |to: &CollectorReport| {
            let error = to.error.as_ref()?;
            Some(format!(
                "{} collector {} does not get all datagrams: {error}",
                to.protocol.name(),
                to.address
            ))
        };
        self.export_fails.iter().cloned().chain(report.collectors.iter().filter_map(of)).collect()
    }

    /// Loads the program that captures and samples, if it is wanted, before a program is attached. If it cannot be loaded, captures
    /// and exports end.
    pub(super) fn load_capture(&mut self) {
        let Some(maps) = self.captures.made().filter(|_| self.capturing || self.exporter.is_some()) else {
            return;
        };
        if let Err(error) = self.generation.plane.set_capture(Some(maps)) {
            maps.want(None);
            maps.sample(0);
            let why = format!("its program cannot be loaded: {error:#}");
            if std::mem::take(&mut self.capturing) {
                self.captures.end();
                tracing::warn!("the capture ends, because {why}");
            }
            if self.exporter.take().is_some() {
                self.export_fails = Some(format!("no samples are exported any more: {why}"));
            }
        }
    }

    /// Makes the ports run the program that is wanted now.
    pub(super) fn swap(&mut self) -> anyhow::Result<()> {
        self.load_capture();
        let (_, devices): (Vec<_>, Vec<_>) = self.world.devices().unzip();
        self.kernel.swap(&self.generation.plane, &devices)
    }
}
