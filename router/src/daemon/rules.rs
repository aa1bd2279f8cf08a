//! Flow rules in the control loop: puts them in charge or takes them out on orders of the switch thread, and reports
//! ports and paths to it.

use super::{
    Control,
    seam::{FastPath, Kernel, Observe},
    world::PortState,
};
use crate::{
    config::DaemonPath,
    plane::Mode,
    switch::seam::{SwitchEnd, SwitchMessage, SwitchPath, SwitchPort},
    user_plane::seam::UserPlane,
};
use anyhow::{Result, anyhow};
use logic::{net::Mac, paths::PathId};
use std::{collections::BTreeMap, time::Duration};

/// The interval at which the switch thread gets the counters of paths.
const COUNTS: Duration = Duration::from_secs(1);

/// The switch thread, and what it last had of the control loop.
pub(super) struct Flows<R> {
    pub end: SwitchEnd<R>,
    /// The flow rules in charge of the ports; `None`: packets are routed.
    pub rules: Option<R>,
    ports: Option<Vec<SwitchPort>>,
    /// When it last got paths, and which of them had a worker.
    paths: Option<(Duration, BTreeMap<PathId, bool>)>,
}

impl<R> Flows<R> {
    pub fn new(end: SwitchEnd<R>) -> Self {
        Self { end, rules: None, ports: None, paths: None }
    }

    /// Reports the ports, if they have changed.
    fn report_ports(&mut self, ports: Vec<SwitchPort>) {
        if self.ports.as_ref() != Some(&ports) {
            (self.end.tell)(SwitchMessage::Ports(ports.clone()));
            self.ports = Some(ports);
        }
    }

    /// Reports so many paths, if others than before have a worker or it is time for their counters.
    fn report_paths<M>(&mut self, paths: &[DaemonPath], plane: &impl UserPlane<M>, now: Duration) {
        let stand = plane.stand();
        let runs =
            |id: PathId| stand.workers.paths.iter().any(|path| path.id == id && path.stopped.is_none());
        let running: BTreeMap<PathId, bool> = paths.iter().map(|path| (path.id, runs(path.id))).collect();
        if self.paths.as_ref().is_none_or(|(at, before)| now >= *at + COUNTS || *before != running) {
            let counts = plane.counts();
            let counts = |id: PathId| counts.get(usize::from(id)).copied().unwrap_or_default();
            let path = |(id, has_worker): (&PathId, &bool)| {
                (*id, SwitchPath { has_worker: *has_worker, counts: counts(*id) })
            };
            let paths = running.iter().map(path).collect();
            (self.end.tell)(SwitchMessage::Paths(paths));
            self.paths = Some((now, running));
        }
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Carries out the orders of the switch thread, and reports changes of ports and paths to it.
    pub(super) fn follow_switch(&mut self) {
        while let Ok(rules) = self.flows.end.orders.try_recv() {
            let done = self.put_in_charge(rules).map_err(|error| format!("{error:#}"));
            if let Err(why) = &done {
                tracing::warn!("cannot put flow rules in charge; the daemon tries again: {why}");
            }
            (self.flows.end.tell)(SwitchMessage::InCharge(done));
        }
        let ports = self.switch_ports(|port| port.attached);
        self.flows.report_ports(ports);
        if let Some(paths) = &self.paths {
            self.flows.report_paths(&self.config.paths, &paths.plane, self.kernel.now());
        }
    }

    /// Puts these rules in charge, or none. Returns whether rules are in charge now.
    fn put_in_charge(&mut self, rules: Option<<K::Plane as FastPath>::Rules>) -> Result<bool> {
        self.generation.plane.set_rules(rules.as_ref())?;
        let before = std::mem::replace(&mut self.flows.rules, rules);
        self.follow_paths_unattached();
        if let Err((_, error)) = self.attach() {
            // Every port runs the previous program again.
            self.flows.rules = before;
            self.generation.plane.set_rules(self.flows.rules.as_ref())?;
            self.follow_paths_unattached();
            return Err(error);
        }
        // A driver may still process a burst with the other program.
        (self.kernel.grace()?)()?;
        Ok(self.flows.rules.is_some())
    }

    /// Puts the rules of the configured file in charge of the program that is about to be attached. Call it when the ports are
    /// known, and attached ports have their transmit slots.
    ///
    /// # Errors
    /// A rule of the file cannot be used.
    pub(super) fn take_rules_of_file(&mut self) -> Result<()> {
        let Some(loaded) = self.flows.end.loaded.take() else { return Ok(()) };
        // Rules that send to a port must not lose packets in the moment after it is attached.
        let ports = self.switch_ports(PortState::wanted);
        self.flows.report_ports(ports);
        let ended = || anyhow!("the thread of flow rules has ended");
        self.flows.rules = loaded.recv().map_err(|_| ended())?.map_err(|why| anyhow!(why))?;
        self.generation.plane.set_rules(self.flows.rules.as_ref())
    }

    /// Reports to the switch thread that the rules of the configured file are in charge.
    pub(super) fn report_rules_of_file(&mut self) {
        if self.flows.rules.is_some() {
            (self.flows.end.tell)(SwitchMessage::InCharge(Ok(true)));
        }
        self.follow_switch();
    }

    /// `device`: the index of a port's device, if rules may send to it.
    fn switch_ports(&self, device: impl Fn(&PortState) -> Option<u32>) -> Vec<SwitchPort> {
        let port = |(id, port): (&_, &PortState)| {
            let link = port.device.as_ref().and_then(|d| self.world.mirror.link(d.namespace, d.ifindex));
            SwitchPort {
                id: *id,
                name: port.name.clone(),
                ifindex: device(port).filter(|_| port.up.is_some()),
                up: port.up == Some(true),
                carrier: link.is_some_and(|link| link.carrier),
                mac: link.map_or(Mac::default(), |link| link.mac),
                transmits: port.transmits,
                generic: port.mode == Some(Mode::Generic),
            }
        };
        self.world.ports.iter().map(port).collect()
    }
}
