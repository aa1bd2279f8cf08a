//! Follows another configuration without a restart. Either all of its changes come into force, or none. Only if no
//! generation can be put in charge does the daemon end.

use super::{
    Control,
    confirming::Confirming,
    generation::Generation,
    seam::{Beside, FastPath, Kernel, Observe},
    start,
};
use crate::{
    api::{ApiError, status::ReloadReport},
    config::{Changes, Config, ports::NumberedPorts},
};

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Follows `new`.
    ///
    /// # Errors
    /// The outer error: no generation is in charge any more, so the loop must end. The inner error: a key needs a restart
    /// or cannot be used now, and nothing has changed.
    pub(super) fn reload(
        &mut self,
        new: Config,
        beside: &mut dyn Beside,
    ) -> anyhow::Result<Result<ReloadReport, ApiError>> {
        let prepared = match self.prepare(&new, beside) {
            Ok(prepared) => prepared,
            Err(error) => return Ok(Err(error)),
        };
        self.config = new;
        let changes = self.follow(prepared)?;
        match changes.now.is_empty() {
            true => tracing::info!("configuration reloaded: no key has changed"),
            false => tracing::info!("configuration reloaded; changed: {}", changes.now.join(", ")),
        }
        Ok(Ok(ReloadReport { changed: changes.now.iter().map(|key| String::from(*key)).collect() }))
    }

    /// Takes every step that can fail. If one fails, nothing has changed, neither here nor in the threads beside the loop.
    fn prepare(&mut self, new: &Config, beside: &mut dyn Beside) -> Result<Prepared<K::Plane>, ApiError> {
        let changes = self.config.changes(new);
        if !changes.restart.is_empty() {
            return Err(ApiError::bad(format!(
                "nothing was changed, because a running daemon cannot change {}; restart the daemon or undo this",
                changes.restart.join(", ")
            )));
        }
        start::check(new).map_err(|error| unusable(&error))?;
        for router in new.routers.iter().filter(|router| !self.config.routers.contains(router)) {
            router.key().map_err(|error| {
                ApiError::bad(format!(
                    "nothing was changed: router {router}: no such network namespace: {error}"
                ))
            })?;
        }
        let capacity = self.generation.capacity;
        let generation =
            changes.touch(&["policing."]).then(|| self.next_generation(new, capacity)).transpose();
        let generation = generation.map_err(|error| unusable(&error))?;
        let confirming = changes.touch(&["heartbeat"]).then(|| Confirming::start(new)).transpose();
        let confirming = confirming.map_err(|error| unusable(&error))?;
        let ports = self.world.number(&new.ports).map_err(|port| {
            ApiError::bad(format!(
                "nothing was changed: no port number is free for {port} until removed ports are detached; remove ports in one \
                 reload, and add {port} in the next"
            ))
        })?;
        beside.reload(&changes, new, &ports).map_err(|error| unusable(&error))?;
        Ok(Prepared { changes, ports, generation, confirming })
    }

    fn follow(&mut self, prepared: Prepared<K::Plane>) -> anyhow::Result<Changes> {
        let Prepared { changes, ports, generation, confirming } = prepared;
        if let Some(confirming) = confirming {
            self.confirming.take_heartbeat(confirming, self.generation.plane.heart());
            self.confirming.confirm(self.kernel.now(), &self.generation.plane);
        }
        if changes.touch(&["ports"]) {
            start::name_missing(&self.config).iter().for_each(|text| tracing::warn!("{text}"));
        }
        if changes.touch(&["ports", "routers", "limits."]) {
            self.world.set_ports(&ports);
            self.observer.follow(&self.config, &ports);
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
        if let Some(generation) = generation {
            self.replace(generation)?;
        }
        // Rules that did not exist before are in charge before the answer.
        self.follow_switch();
        Ok(changes)
    }
}

/// What has been prepared for another configuration.
struct Prepared<P: FastPath> {
    changes: Changes,
    ports: NumberedPorts,
    generation: Option<Generation<P>>,
    /// With another heartbeat.
    confirming: Option<Confirming>,
}

fn unusable(error: &anyhow::Error) -> ApiError {
    ApiError::bad(format!("nothing was changed: {error:#}"))
}
