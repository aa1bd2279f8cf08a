//! Paths of the user plane in the control loop: finds out which configured paths are active, and sets their classes
//! in the program and the work of workers.
//!
//! The configuration names ports and routers, which may come and go. A path whose port or router does not exist has
//! no class, and the other paths keep their order. The classes in the program are replaced whenever they change. The
//! program with paths is attached when there is a first class, and another one when the last class is gone. Workers
//! get the active paths, and the ports from which packets come.

use super::{
    Control,
    answers::reason_count,
    seam::{FastPath, Kernel, Observe},
    world::PortState,
};
use crate::{
    api::{
        status::{PathReport, ReasonCount},
        workers::WorkersReport,
    },
    config::DaemonPath,
    plane::{Mode, NOT_GIVEN, PathCounts},
    user_plane::{
        seam::{Device, UserPlane, Wanted},
        workers::PathPlan,
    },
};
use logic::{
    cause::{Code, joined},
    flow::RulePort,
    mirror::RouterView,
    paths::{
        PathId,
        rows::{MOST_PATHS, Otherwise, PathClass},
    },
    plan::{PortId, RouterId},
    reason::Reason,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How long the start waits for workers. Opening all queues of many ports takes seconds.
const FIRST_WORKERS: Duration = Duration::from_secs(5);

/// The settings of paths in the program.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    classes: Vec<PathClass>,
    /// The router of each port, for packets that are for no interface.
    own: BTreeMap<PortId, RouterId>,
}

/// The user plane, and what the control loop last set there.
pub(super) struct Following<P> {
    pub plane: P,
    known: Option<Known>,
    /// The revision of the mirror from which `known` was made.
    revision: Option<u64>,
    /// The revision of the mirror, and the usable ports, for which the work of workers was last set.
    wanted_at: Option<(u64, BTreeMap<PortId, u32>)>,
    /// Paths whose packets are dropped if no worker can take them. Those that are gone stay here: flow rules may still send
    /// packets to them.
    drops: BTreeSet<PathId>,
    /// Paths whose workers still run another chain than the configured one, with the numbers that stand for them meanwhile. No
    /// worker has these, so packets that must be encrypted are dropped and do not leave as the old chain sends them.
    changing: BTreeMap<PathId, PathId>,
    /// Why the settings in the program are out of date.
    pub condition: Option<String>,
}

impl<P> Following<P> {
    pub fn new(plane: P) -> Self {
        let (drops, changing) = (BTreeSet::new(), BTreeMap::new());
        Following { plane, known: None, revision: None, wanted_at: None, drops, changing, condition: None }
    }

    /// Drops what new paths must drop, before anything can send packets to them. [`Following::follow`] or
    /// [`Following::stay`] comes next.
    pub fn expect<M>(&self, paths: &[DaemonPath])
    where
        P: UserPlane<M>,
    {
        self.plane.set_drops(&self.drops.union(&dropping(paths)).copied().collect());
    }

    /// The paths stay as they are.
    pub fn stay<M>(&self)
    where
        P: UserPlane<M>,
    {
        self.plane.set_drops(&self.drops);
    }

    /// Follows other paths than `before`.
    pub fn follow<M>(&mut self, before: &[DaemonPath], paths: &[DaemonPath])
    where
        P: UserPlane<M>,
    {
        let is_other = |path: &&DaemonPath| {
            let has_changed = before.iter().any(|old| old.id == path.id && old.chain != path.chain);
            path.otherwise == Otherwise::Drop && (has_changed || self.changing.contains_key(&path.id))
        };
        let taken: BTreeSet<PathId> = before.iter().chain(paths).map(|path| path.id).collect();
        let mut free = (0..MOST_PATHS as PathId).rev().filter(|id| !taken.contains(id));
        // Without a free number, its packets go to the old chain until the worker has the new one.
        let changing = paths.iter().filter(is_other).filter_map(|path| Some((path.id, free.next()?)));
        let changing = changing.collect();
        self.changing = changing;
        self.drops.retain(|id| !paths.iter().any(|path| path.id == *id));
        self.drops.extend(dropping(paths));
        // Before their classes are set.
        self.plane.set_drops(&self.drops.iter().chain(self.changing.values()).copied().collect());
        (self.revision, self.wanted_at) = (None, None);
    }

    /// Gives packets to the workers again whose chains have changed, once they have.
    fn settle<M>(&mut self, longest: Duration)
    where
        P: UserPlane<M>,
    {
        // Not before workers have the order.
        if !self.changing.is_empty() && self.wanted_at.is_some() && self.plane.wait(longest) {
            self.changing.clear();
            self.revision = None;
        }
    }

    /// Does any path have a class now, or may a flow rule give packets to one?
    pub fn are_some(&self, rules: bool) -> bool {
        rules || self.known.as_ref().is_some_and(|known| !known.classes.is_empty())
    }
}

/// The paths whose packets are dropped if no worker can take them.
fn dropping(paths: &[DaemonPath]) -> BTreeSet<PathId> {
    paths.iter().filter(|path| path.otherwise == Otherwise::Drop).map(|path| path.id).collect()
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Waits a moment after a reload until workers run changed chains, and gives them packets again.
    pub(super) fn settle_paths(&mut self, longest: Duration) {
        if let Some(paths) = &mut self.paths {
            paths.settle(longest);
        }
        self.tell_paths();
    }

    /// Sets the classes of paths in the program, if they have changed.
    pub(super) fn tell_paths(&mut self) {
        let revision = self.world.mirror.revision();
        let Some(paths) = self.paths.as_ref() else { return };
        if paths.revision == Some(revision) && paths.condition.is_none() {
            return;
        }
        let known = self.known_paths();
        let Some(paths) = self.paths.as_mut() else { return };
        paths.revision = Some(revision);
        if paths.known.as_ref() == Some(&known) {
            paths.condition = None;
            return;
        }
        match paths.plane.set_classes(&known.classes, &known.own) {
            Ok(()) => (paths.known, paths.condition) = (Some(known), None),
            Err(error) => {
                paths.condition = Some(format!("cannot change the classes of paths: {error:#}"));
            }
        }
    }

    /// Sets the classes of paths. Attaches the program with paths when there is a first class, and the one without
    /// paths when the last class is gone.
    pub(super) fn follow_paths(&mut self) {
        self.settle_paths(Duration::ZERO);
        let rules = self.flows.rules.is_some();
        let Some(some) = self.paths.as_ref().map(|paths| paths.are_some(rules)) else { return };
        if !self.generation.plane.follow_paths(some) {
            return;
        }
        if let Err(error) = self.swap() {
            tracing::warn!("cannot switch to or from the program with paths: {error:#}");
            self.generation.plane.follow_paths(!some);
        }
    }

    /// Sets the work of workers again, because weights have changed.
    pub(super) fn want_paths_again(&mut self) {
        self.paths.iter_mut().for_each(|paths| paths.wanted_at = None);
    }

    /// Sets the work of workers, if it has changed.
    pub(super) fn want_paths(&mut self) {
        let Some(paths) = &self.paths else { return };
        let ports = || self.ports_of_workers();
        let at = (self.world.mirror.revision(), ports().map(|(id, _, ifindex)| (id, ifindex)).collect());
        if paths.wanted_at.as_ref() == Some(&at) {
            return;
        }
        let device = |(id, name, ifindex): (PortId, &str, u32)| (id, Device { name: name.into(), ifindex });
        let ports: BTreeMap<_, _> = ports().map(device).collect();
        let routers: Vec<_> = self.world.mirror.routers().collect();
        let host = routers.iter().find(|router| router.host).and_then(|router| router.router).unwrap_or(0);
        let plan = |path: &DaemonPath| {
            let (port, router) = self.places(path, &routers).ok()?;
            let plan = PathPlan {
                name: path.name.clone(),
                router: router.unwrap_or(host),
                weight: path.weight,
                chain: path.chain.clone(),
                ports: port.map_or_else(|| ports.keys().copied().collect(), |port| [port].into()),
                ring: path.ring as u32,
                cores: path.cores.as_ref().map(|cores| cores.0.clone()),
            };
            Some((path.id, plan))
        };
        let weight = |router: &RouterView| Some((router.router?, self.config.shares.weight(&router.name)));
        let place = |router: &RouterView| Some((router.router?, self.observer.place(router.namespace)?));
        let wanted = Wanted {
            owners: self.owners(&routers),
            routers: routers.iter().filter_map(weight).collect(),
            namespaces: routers.iter().filter_map(place).collect(),
            paths: self.config.paths.iter().filter_map(plan).collect(),
            mirrors: self.config.paths.iter().flat_map(DaemonPath::mirrors).cloned().collect(),
            longest_ring: self.config.paths.iter().map(|path| path.ring as u32).max().unwrap_or(0),
            ports,
        };
        paths.plane.want(wanted);
        if let Some(paths) = &mut self.paths {
            paths.wanted_at = Some(at);
        }
    }

    /// Waits at the start until paths have workers, so that they have them when the daemon is ready, where possible.
    pub(super) fn wait_for_paths(&self) {
        if let Some(paths) = &self.paths {
            let _ = paths.plane.wait(FIRST_WORKERS);
        }
    }

    /// The ports that workers can use, with name and device. Ports in generic mode are left out: there, a packet that
    /// a path passes up would reach the program again, and so the path.
    fn ports_of_workers(&self) -> impl Iterator<Item = (PortId, &str, u32)> {
        let native = self.world.ports.iter().filter(|(_, port)| port.mode == Some(Mode::Native));
        native.filter_map(|(id, port)| Some((*id, port.name.as_str(), port.attached?)))
    }

    fn known_paths(&self) -> Known {
        let routers: Vec<_> = self.world.mirror.routers().collect();
        let class = |path: &DaemonPath| {
            let (port, router) = self.places(path, &routers).ok()?;
            let changing = self.paths.as_ref().and_then(|paths| paths.changing.get(&path.id));
            let id = changing.copied().unwrap_or(path.id);
            Some(PathClass { path: id, class: path.class(port, router), otherwise: path.otherwise })
        };
        Known { classes: self.config.paths.iter().filter_map(class).collect(), own: self.owners(&routers) }
    }

    /// The router of each port, for packets that are for no interface. This is the router in whose namespace the port
    /// is.
    fn owners(&self, routers: &[RouterView]) -> BTreeMap<PortId, RouterId> {
        let owner = |(id, port): (&PortId, &PortState)| {
            let namespace = port.device.as_ref()?.namespace;
            Some((*id, routers.iter().find(|router| router.namespace == namespace)?.router?))
        };
        self.world.ports.iter().filter_map(owner).collect()
    }

    /// The numbers of a path's port and router, as far as it names them. `Err`: one does not exist.
    fn places(
        &self,
        path: &DaemonPath,
        routers: &[RouterView],
    ) -> Result<(Option<PortId>, Option<RouterId>), String> {
        let port = |name: &str| match self.world.ports.iter().find(|(_, port)| port.name == name) {
            None => Err(format!("its port {name} is not a port of Millrace (`ports`, --port)")),
            Some((_, port)) if port.device.is_none() => Err(format!("its port {name} is not there")),
            Some((id, _)) => Ok(*id),
        };
        let router = |name: &str| match routers.iter().find(|router| router.name == name) {
            None => Err(format!("its router {name} is not there (see `millrace routers`)")),
            Some(router) => router.router.ok_or_else(|| format!("its router {name} is not a router")),
        };
        let port = path.port.as_ref().map(|name| port(name.as_str())).transpose()?;
        Ok((port, path.router.as_deref().map(router).transpose()?))
    }

    /// Reports about all configured paths.
    pub(super) fn path_reports(&self) -> Vec<PathReport> {
        let Some(paths) = &self.paths else { return Vec::new() };
        let (counts, routers) = (paths.plane.counts(), Vec::from_iter(self.world.mirror.routers()));
        let stand = paths.plane.stand();
        let report = |(path, counts): (&DaemonPath, PathCounts)| PathReport {
            path: path.name.clone(),
            number: RulePort::of_path(path.id).map_or(0, |port| port.0),
            router: path.router.clone(),
            port: path.port.as_ref().map(|port| port.to_string()),
            why_not: self.places(path, &routers).err().map(|why| Code::PathPlace.cause(why).into()),
            otherwise: match path.otherwise {
                Otherwise::Up => "up".into(),
                Otherwise::Drop => "drop".into(),
            },
            packets: counts.packets,
            bytes: counts.bytes,
            lost: counted([(Reason::PathRingFull, counts.ring_full), (Reason::PathRefused, counts.refused)]),
            up: counted(NOT_GIVEN.into_iter().zip(counts.up)),
            dropped: counted(NOT_GIVEN.into_iter().zip(counts.dropped)),
            run: stand.workers.paths.iter().find(|run| run.id == path.id).cloned(),
        };
        let counts = |id: PathId| counts.get(usize::from(id)).copied().unwrap_or_default();
        self.config.paths.iter().map(|path| report((path, counts(path.id)))).collect()
    }

    /// Ports whose packets go past a path, as sentences: the program is not attached, or cannot give packets to
    /// workers.
    pub(super) fn past_paths(&self) -> Vec<String> {
        let past = |path: &DaemonPath, port: &PortState| {
            let is_its = path.port.as_ref().is_none_or(|name| name.as_str() == port.name);
            let (path_name, port_name) = (&path.name, &port.name);
            if !is_its || port.up != Some(true) {
                return None;
            }
            match (port.attached, port.mode, path.otherwise) {
                (None, _, Otherwise::Drop) => Some(format!(
                    "path {path_name}: packets from port {port_name} go to the kernel and are not dropped: {}",
                    joined(&port.obstacles())
                )),
                (Some(_), Some(Mode::Generic), otherwise) => Some(format!(
                    "path {path_name}: port {port_name} is in generic mode, so workers get no packets from it: they {}",
                    match otherwise {
                        Otherwise::Up => "continue as if there were no path",
                        Otherwise::Drop => "are dropped",
                    }
                )),
                _ => None,
            }
        };
        let of_path = |path| self.world.ports.values().filter_map(move |port| past(path, port));
        self.config.paths.iter().flat_map(of_path).collect()
    }

    /// The report about workers.
    pub(super) fn workers_report(&self) -> WorkersReport {
        let stand = self.paths.as_ref().map(|paths| paths.plane.stand());
        stand.map(|stand| WorkersReport { paths: Vec::new(), ..stand.workers.clone() }).unwrap_or_default()
    }

    pub(super) fn path_name(&self, path: PathId) -> String {
        let configured = self.config.paths.iter().find(|configured| configured.id == path);
        configured.map_or_else(|| format!("number {path}"), |path| path.name.clone())
    }
}

fn counted(counts: impl IntoIterator<Item = (Reason, u64)>) -> Vec<ReasonCount> {
    counts.into_iter().filter(|(_, n)| *n > 0).map(|(reason, n)| reason_count(reason, n)).collect()
}
