//! Flow rules in the control loop: puts them in charge or takes them out on orders of the switch thread, and reports
//! ports and paths to it.

use super::{
    Control,
    seam::{FastPath, Kernel, Observe},
};
use crate::{
    plane::Mode,
    switch::seam::{SwitchMessage, SwitchPath, SwitchPort},
    user_plane::seam::UserPlane,
};
use anyhow::Result;
use logic::{net::Mac, paths::PathId};
use std::time::Duration;

/// The interval at which the switch thread gets the counters of paths.
const COUNTS: Duration = Duration::from_secs(1);

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Carries out the orders of the switch thread, and reports changes of ports and paths to it.
    pub(super) fn follow_switch(&mut self) {
        while let Ok(rules) = self.switch.orders.try_recv() {
            let done = self.put_in_charge(rules).map_err(|error| format!("{error:#}"));
            if let Err(why) = &done {
                tracing::warn!("cannot put flow rules in charge; the daemon tries again: {why}");
            }
            (self.switch.tell)(SwitchMessage::InCharge(done));
        }
        let ports = self.switch_ports();
        if self.told_ports.as_ref() != Some(&ports) {
            (self.switch.tell)(SwitchMessage::Ports(ports.clone()));
            self.told_ports = Some(ports);
        }
        self.tell_switch_of_paths();
    }

    fn tell_switch_of_paths(&mut self) {
        let Some(paths) = &self.paths else { return };
        let (now, stand) = (self.kernel.now(), paths.plane.stand());
        let runs =
            |id: PathId| stand.workers.paths.iter().any(|path| path.id == id && path.stopped.is_none());
        let running: Vec<bool> = (0..).zip(&self.config.paths).map(|(id, _)| runs(id)).collect();
        let is_new =
            self.told_paths.as_ref().is_none_or(|(at, told)| now >= *at + COUNTS || *told != running);
        if is_new {
            let paths = running.iter().zip(paths.plane.counts());
            let paths = paths.map(|(&has_worker, counts)| SwitchPath { has_worker, counts }).collect();
            (self.switch.tell)(SwitchMessage::Paths(paths));
            self.told_paths = Some((now, running));
        }
    }

    /// Puts these rules in charge, or none. Returns whether rules are in charge now.
    fn put_in_charge(&mut self, rules: Option<<K::Plane as FastPath>::Rules>) -> Result<bool> {
        self.generation.plane.set_rules(rules.as_ref())?;
        let before = std::mem::replace(&mut self.rules, rules);
        self.follow_paths_unattached();
        if let Err((_, error)) = self.attach() {
            // Every port runs the previous program again.
            self.rules = before;
            self.generation.plane.set_rules(self.rules.as_ref())?;
            self.follow_paths_unattached();
            return Err(error);
        }
        // A driver may still process a burst with the other program.
        (self.kernel.grace()?)()?;
        Ok(self.rules.is_some())
    }

    fn switch_ports(&self) -> Vec<SwitchPort> {
        let port = |(id, port): (&_, &super::world::PortState)| {
            let device = port.device.as_ref();
            let link = device.and_then(|d| self.world.mirror.link(d.namespace, d.ifindex));
            SwitchPort {
                id: *id,
                name: port.name.clone(),
                ifindex: port.attached.filter(|_| port.up.is_some()),
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
