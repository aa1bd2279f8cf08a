//! Begins and ends captures: the program that captures and samples on the ports.

use super::{
    Control,
    seam::{FastPath, Kernel, Observe},
};
use crate::{
    api::{ApiError, capture::CaptureRequest},
    capture::{Captures, Names, Started},
    plane::capture::Wanted,
};
use logic::{
    capture::{
        filter::{self, Classic},
        routed,
    },
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
            filter_once: !routed::can_match_later(&classic),
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
        let exports = self.exports.is_on();
        self.stop_export();
        if self.capturing || exports {
            self.end_capture();
        }
    }

    fn end_capture(&mut self) {
        self.capturing = false;
        if let Some(maps) = self.captures.made() {
            maps.want(None);
        }
        if let Err(error) = self.choose_program() {
            tracing::warn!("cannot change the program that captures and samples: {error:#}");
        }
    }

    /// Attaches the program without captures, unless packets are captured or sampled.
    pub(super) fn choose_program(&mut self) -> anyhow::Result<()> {
        let maps = self.captures.made().filter(|_| self.capturing || self.exports.is_on());
        self.generation.plane.set_capture(maps)?;
        self.swap()
    }

    /// Loads the program that captures and samples, if it is wanted, before a program is attached. If it cannot be loaded, the
    /// capture ends. If it cannot be loaded without the capture's filter either, exports end, too.
    pub(super) fn load_capture(&mut self) {
        let Some(maps) = self.captures.made().filter(|_| self.capturing || self.exports.is_on()) else {
            return;
        };
        let Err(error) = self.generation.plane.set_capture(Some(maps)) else { return };
        maps.want(None);
        maps.forget_filter();
        if std::mem::take(&mut self.capturing) {
            self.captures.end();
            tracing::warn!("the capture ends, because its program cannot be loaded: {error:#}");
        }
        if self.exports.is_on()
            && let Err(error) = self.generation.plane.set_capture(Some(maps))
        {
            maps.sample(0);
            self.exports
                .fail(format!("exports have ended: the program that samples cannot be loaded: {error:#}"));
        }
    }

    /// Makes the ports run the program that is wanted now.
    pub(super) fn swap(&mut self) -> anyhow::Result<()> {
        self.load_capture();
        let (_, devices): (Vec<_>, Vec<_>) = self.world.devices().unzip();
        self.kernel.swap(&self.generation.plane, &devices)
    }
}
