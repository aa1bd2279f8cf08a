//! Follows another configuration without a restart. Either all of its changes come into force, or none. Only if no
//! generation can be put in charge does the daemon end.

use super::{
    Control,
    confirming::Confirming,
    generation::Generation,
    paths::Following,
    seam::{Beside, FastPath, Kernel, Observe},
    start,
};
use crate::{
    api::{ApiError, status::ReloadReport},
    config::{Changes, Config, DaemonPath, PathNumbers, ports::NumberedPorts},
};
use logic::paths::rows::MOST_PATHS;
use std::time::Duration;

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Follows `new`.
    ///
    /// # Errors
    /// The outer error: no generation is in charge any more, so the loop must end. The inner error: a key needs a restart
    /// or cannot be used now, and nothing has changed.
    pub(super) fn reload(
        &mut self,
        mut new: Config,
        beside: &mut dyn Beside,
    ) -> anyhow::Result<Result<ReloadReport, ApiError>> {
        let prepared = match self.prepare(&mut new, beside) {
            Ok(prepared) => prepared,
            Err(error) => {
                self.paths.iter().for_each(Following::stay);
                return Ok(Err(error));
            }
        };
        let before = std::mem::replace(&mut self.config, new);
        let changes = self.follow(prepared, &before.paths)?;
        match changes.now.is_empty() {
            true => tracing::info!("configuration reloaded: no key has changed"),
            false => tracing::info!("configuration reloaded; changed: {}", changes.now.join(", ")),
        }
        Ok(Ok(ReloadReport { changed: changes.now.iter().map(|key| String::from(*key)).collect() }))
    }

    /// Takes every step that can fail. If one fails, nothing has changed, neither here nor in the threads beside the loop.
    fn prepare(&mut self, new: &mut Config, beside: &mut dyn Beside) -> Result<Prepared<K::Plane>, ApiError> {
        let mut path_numbers = self.path_numbers.clone();
        path_numbers.number(&mut new.paths).map_err(|path| {
            ApiError::bad(format!(
                "nothing was changed: no number is free for path {path}: a daemon can have only {MOST_PATHS} different \
                 paths until it is restarted; restart the daemon"
            ))
        })?;
        let new = &*new;
        let changes = self.config.changes(new, self.paths.is_some());
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
        self.check_captures(new)?;
        let first_paths = self.paths.is_none() && !new.paths.is_empty();
        let user_plane = first_paths.then(|| self.kernel.user_plane(new)).transpose();
        let user_plane = user_plane.map_err(|error| unusable(&error))?;
        let of_workers = user_plane.as_ref().or(self.paths.as_ref().map(|paths| &paths.plane)).cloned();
        let capacity = self.generation.capacity;
        let is_other = changes.touch(&["policing."]) || first_paths;
        let generation =
            is_other.then(|| self.next_generation(new, of_workers.as_ref(), capacity)).transpose();
        let generation = generation.map_err(|error| unusable(&error))?;
        let confirming = changes.touch(&["heartbeat"]).then(|| Confirming::start(new)).transpose();
        let confirming = confirming.map_err(|error| unusable(&error))?;
        let ports = self.world.number(&new.ports).map_err(|port| {
            ApiError::bad(format!(
                "nothing was changed: no port number is free for {port} until removed ports are detached; remove ports in one \
                 reload, and add {port} in the next"
            ))
        })?;
        // From here on, flow rules may send packets to new paths.
        self.paths.iter().for_each(|paths| paths.expect(&new.paths));
        beside.reload(&changes, new, &ports).map_err(|error| unusable(&error))?;
        Ok(Prepared { changes, ports, path_numbers, user_plane, generation, confirming })
    }

    /// Checks that no capture changes while its file stays the same.
    fn check_captures(&self, new: &Config) -> Result<(), ApiError> {
        let mut old = self.config.paths.iter().flat_map(DaemonPath::mirrors);
        let changed = old.find(|old| {
            let mut new = new.paths.iter().flat_map(DaemonPath::mirrors);
            new.any(|new| new.file == old.file && new != *old)
        });
        changed.map_or(Ok(()), |mirror| {
            let file = mirror.file.display();
            Err(ApiError::bad(format!(
                "nothing was changed: mirror {file}: its settings cannot change while its file stays the same; name another file as well"
            )))
        })
    }

    fn follow(&mut self, prepared: Prepared<K::Plane>, before: &[DaemonPath]) -> anyhow::Result<Changes> {
        let Prepared { changes, ports, path_numbers, user_plane, generation, confirming } = prepared;
        self.path_numbers = path_numbers;
        if let Some(plane) = user_plane {
            self.paths = Some(Following::new(plane));
        }
        if changes.touch(&["path"])
            && let Some(paths) = &mut self.paths
        {
            paths.follow(before, &self.config.paths);
            match &generation {
                // The program that knows paths comes with it.
                Some(_) => self.tell_paths(),
                None => self.follow_paths(),
            }
        }
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
        if let Some(generation) = generation {
            self.replace(generation)?;
        }
        if changes.touch(&["openflow."]) {
            // What rules do without a daemon depends on these keys.
            self.generation.plane.set_rules(self.flows.rules.as_ref())?;
        }
        if changes.touch(&["export."]) || self.exports.has_failed() {
            self.follow_export();
        }
        self.want_paths();
        self.settle_paths(CHANGED_CHAINS);
        // Rules that did not exist before are in charge before the answer.
        self.follow_switch();
        Ok(changes)
    }
}

/// How long a reload waits until workers run changed chains. Later rounds look again.
const CHANGED_CHAINS: Duration = Duration::from_secs(2);

/// What has been prepared for another configuration.
struct Prepared<P: FastPath> {
    changes: Changes,
    ports: NumberedPorts,
    path_numbers: PathNumbers,
    /// With the first paths.
    user_plane: Option<P::UserPlane>,
    generation: Option<Generation<P>>,
    /// With another heartbeat.
    confirming: Option<Confirming>,
}

fn unusable(error: &anyhow::Error) -> ApiError {
    ApiError::bad(format!("nothing was changed: {error:#}"))
}
