//! Paths of the user plane: which of those in the configuration are active, and what the program is told of them.
//!
//! Ports and routers are named, and come and go: a path whose port or router is not there has no class, and the others keep their order. The
//! program is told whenever that is another set than before; the first class brings the program with paths, the last one takes it away.

use super::{
    Control,
    answers::reason_count,
    report::{PathReport, ReasonCount},
    seam::{FastPath, Kernel, Observe, Paths},
};
use crate::{
    config::DaemonPath,
    plane::{NOT_GIVEN, PathCounts},
};
use logic::{
    mirror::RouterView,
    paths::{
        PathId,
        rows::{Otherwise, PathClass},
    },
    plan::{PortId, RouterId},
    reason::Reason,
};
use std::collections::BTreeMap;

/// What the program knows of paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    classes: Vec<PathClass>,
    /// Whose packets are that are for no interface of a port.
    own: BTreeMap<PortId, RouterId>,
}

/// Paths of the control loop.
pub(super) struct Following<P> {
    pub maps: P,
    known: Option<Known>,
    /// Of the mirror, when `known` was made.
    revision: Option<u64>,
    /// Why what the program knows is not what it should be.
    pub trouble: Option<String>,
}

impl<P: Paths> Following<P> {
    pub fn new(maps: P) -> Self {
        Following { maps, known: None, revision: None, trouble: None }
    }

    /// Has any path a class now?
    pub fn are_some(&self) -> bool {
        self.known.as_ref().is_some_and(|known| !known.classes.is_empty())
    }
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Tells the program which packets are whose, before it has to know: in the generation in charge from now on.
    pub(super) fn tell_paths(&mut self) {
        let revision = self.world.mirror.revision();
        let Some(paths) = self.paths.as_ref() else { return };
        if paths.revision == Some(revision) && paths.trouble.is_none() {
            return;
        }
        let known = self.known_paths();
        let Some(paths) = self.paths.as_mut() else { return };
        paths.revision = Some(revision);
        if paths.known.as_ref() == Some(&known) {
            paths.trouble = None;
            return;
        }
        match paths.maps.set_classes(&known.classes, &known.own) {
            Ok(()) => (paths.known, paths.trouble) = (Some(known), None),
            Err(error) => {
                let why = format!("packets of paths are told apart as before: {error:#}");
                if paths.trouble.as_ref() != Some(&why) {
                    tracing::warn!("{why}");
                }
                paths.trouble = Some(why);
            }
        }
    }

    /// The first path gets its class: the program with paths takes over; or the last one has lost it.
    pub(super) fn follow_paths(&mut self) {
        self.tell_paths();
        let Some(some) = self.paths.as_ref().map(Following::are_some) else { return };
        if !self.generation.plane.follow_paths(some) {
            return;
        }
        let (_, devices): (Vec<_>, Vec<_>) = self.world.devices().unzip();
        if let Err(error) = self.kernel.swap(&self.generation.plane, &devices) {
            tracing::warn!("the program with paths is not attached as it should be: {error:#}");
            self.generation.plane.follow_paths(!some);
        }
    }

    fn known_paths(&self) -> Known {
        let routers: Vec<_> = self.world.mirror.routers().collect();
        let class = |(path, configured): (PathId, &DaemonPath)| {
            let (port, router) = self.places(configured, &routers).ok()?;
            Some(PathClass { path, class: configured.class(port, router), otherwise: configured.otherwise })
        };
        let own = self.world.ports.iter().filter_map(|(id, port)| {
            let namespace = port.device.as_ref()?.namespace;
            Some((*id, routers.iter().find(|router| router.namespace == namespace)?.router?))
        });
        Known { classes: (0..).zip(&self.config.paths).filter_map(class).collect(), own: own.collect() }
    }

    /// Numbers of a path's port and router, as far as it names them. `Err`: one is not there.
    fn places(
        &self,
        path: &DaemonPath,
        routers: &[RouterView],
    ) -> Result<(Option<PortId>, Option<RouterId>), String> {
        let port = |name: &str| match self.world.ports.iter().find(|(_, port)| port.name == name) {
            None => Err(format!("its port {name} is no port of Millrace (`ports`, --port)")),
            Some((_, port)) if port.device.is_none() => Err(format!("its port {name} is not there")),
            Some((id, _)) => Ok(*id),
        };
        let router = |name: &str| match routers.iter().find(|router| router.name == name) {
            None => Err(format!("its router {name} is not there (see `millrace routers`)")),
            Some(router) => router.router.ok_or_else(|| format!("its router {name} is no router")),
        };
        let port = path.port.as_ref().map(|name| port(name.as_str())).transpose()?;
        Ok((port, path.router.as_deref().map(router).transpose()?))
    }

    /// All that are configured.
    pub(super) fn path_reports(&self) -> Vec<PathReport> {
        let Some(paths) = &self.paths else { return Vec::new() };
        let (counts, routers) = (paths.maps.counts(), Vec::from_iter(self.world.mirror.routers()));
        let report = |(path, counts): (&DaemonPath, PathCounts)| PathReport {
            path: path.name.clone(),
            router: path.router.clone(),
            port: path.port.as_ref().map(|port| port.to_string()),
            why_not: self.places(path, &routers).err(),
            otherwise: match path.otherwise {
                Otherwise::Up => "up".into(),
                Otherwise::Drop => "drop".into(),
            },
            packets: counts.packets,
            bytes: counts.bytes,
            lost: counted([(Reason::PathRingFull, counts.ring_full), (Reason::PathRefused, counts.refused)]),
            up: counted(NOT_GIVEN.into_iter().zip(counts.up)),
            dropped: counted(NOT_GIVEN.into_iter().zip(counts.dropped)),
        };
        self.config.paths.iter().zip(counts).map(report).collect()
    }

    pub(super) fn path_name(&self, path: PathId) -> String {
        let configured = self.config.paths.get(usize::from(path));
        configured.map_or_else(|| format!("number {path}"), |path| path.name.clone())
    }
}

fn counted(counts: impl IntoIterator<Item = (Reason, u64)>) -> Vec<ReasonCount> {
    counts.into_iter().filter(|(_, n)| *n > 0).map(|(reason, n)| reason_count(reason, n)).collect()
}
