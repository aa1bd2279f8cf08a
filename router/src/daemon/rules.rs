//! Flow rules in the control loop: put in charge and taken out as the switch thread wants it, and the ports it is told of.

use super::{
    Control,
    seam::{FastPath, Kernel, Observe, SwitchPort, Told},
};
use anyhow::Result;

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Does what the switch thread has asked for, and tells it what is new about ports.
    pub(super) fn follow_switch(&mut self) {
        while let Ok(rules) = self.switch.orders.try_recv() {
            let done = self.put_in_charge(rules).map_err(|error| format!("{error:#}"));
            if let Err(why) = &done {
                tracing::warn!("flow rules cannot be put in charge, and are tried again: {why}");
            }
            (self.switch.tell)(Told::InCharge(done));
        }
        let ports = self.switch_ports();
        if self.told_ports.as_ref() != Some(&ports) {
            (self.switch.tell)(Told::Ports(ports.clone()));
            self.told_ports = Some(ports);
        }
    }

    /// Whether rules are in charge now.
    fn put_in_charge(&mut self, rules: Option<<K::Plane as FastPath>::Rules>) -> Result<bool> {
        self.generation.plane.set_rules(rules.as_ref())?;
        self.rules = rules;
        self.attach_what_goes()?;
        Ok(self.rules.is_some())
    }

    fn switch_ports(&self) -> Vec<SwitchPort> {
        let port = |(id, port): (&_, &super::world::PortState)| SwitchPort {
            id: *id,
            name: port.name.clone(),
            ifindex: port.attached.filter(|_| port.up.is_some()),
            up: port.up == Some(true),
            transmits: port.transmits,
        };
        self.world.ports.iter().map(port).collect()
    }
}
