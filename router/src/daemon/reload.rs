//! Follows another configuration without a restart. Either all of its changes come into force, or none.

use super::{
    Control,
    confirming::Confirming,
    seam::{Beside, FastPath, Kernel, Observe},
    start,
};
use crate::{
    api::{ApiError, status::ReloadReport},
    config::{
        Changes, Config,
        ports::{self, NumberedPorts},
    },
};
use logic::plan::PortId;

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Follows `new`.
    ///
    /// # Errors
    /// A key needs a restart, or something cannot be used now: everything is as before. Or another generation could not be
    /// put in charge, which the text says.
    pub(super) fn reload(&mut self, new: Config, beside: &mut dyn Beside) -> Result<ReloadReport, ApiError> {
        let changes = self.config.changes(&new);
        if !changes.restart.is_empty() {
            return Err(ApiError::bad(format!(
                "nothing is changed, because a running daemon cannot change {}; restart it (forwarding goes on meanwhile)",
                changes.restart.join(", ")
            )));
        }
        // What can fail comes first.
        start::check_ports(&new).map_err(|error| unusable(&error))?;
        for router in new.routers.iter().filter(|router| !self.config.routers.contains(router)) {
            router.key().map_err(|error| {
                ApiError::bad(format!("nothing is changed, because there is no router {router}: {error}"))
            })?;
        }
        let generation = changes.touch(&["policing."]).then(|| self.next_generation(&new)).transpose();
        let generation = generation.map_err(|error| unusable(&error))?;
        let confirming = changes.touch(&["heartbeat"]).then(|| Confirming::start(&new)).transpose();
        let confirming = confirming.map_err(|error| unusable(&error))?;
        let taken: Vec<PortId> = self.world.ports.keys().copied().collect();
        let ports = ports::number(&new.ports, &self.world.numbered_ports(), &taken);
        beside.reload(&changes, &new, &ports).map_err(|error| unusable(&error))?;
        self.config = new;
        if let Some(confirming) = confirming {
            self.confirming.take_heartbeat(confirming, self.generation.plane.heart());
        }
        if let Some(generation) = generation {
            self.replace(generation).map_err(|error| ApiError::failed(format!("policing: {error:#}")))?;
        }
        self.follow_config(&changes, &ports).map_err(|error| ApiError::failed(format!("{error:#}")))?;
        match changes.now.is_empty() {
            true => tracing::info!("configuration read again: nothing has changed"),
            false => tracing::info!("configuration read again: {} changed", changes.now.join(", ")),
        }
        Ok(ReloadReport { changed: changes.now.iter().map(|key| String::from(*key)).collect() })
    }

    fn follow_config(&mut self, changes: &Changes, ports: &NumberedPorts) -> anyhow::Result<()> {
        if changes.touch(&["ports", "routers", "limits."]) {
            self.world.set_ports(ports);
            self.observer.follow(&self.config, ports);
            // There may be room for larger tables now.
            self.generation.stuck = None;
        }
        if changes.touch(&["shares."]) {
            self.weigh();
            self.want_paths_again();
        }
        if changes.touch(&["firewall."]) {
            self.connections.follow_consent(self.config.firewall.established);
        }
        if changes.touch(&["openflow."]) {
            // What rules do without a daemon depends on these keys.
            self.generation.plane.set_rules(self.flows.rules.as_ref())?;
        }
        Ok(())
    }
}

fn unusable(error: &anyhow::Error) -> ApiError {
    ApiError::bad(format!("nothing is changed: {error:#}"))
}
