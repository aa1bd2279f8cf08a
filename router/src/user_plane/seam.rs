//! The interface between the control loop and the user plane.

use crate::{
    api::workers::WorkersReport, config::MirrorSettings, linux::netns::NamespaceRef, plane::PathCounts,
    user_plane::workers::PathPlan,
};
use anyhow::Result;
use logic::{
    paths::{PathId, rows::PathClass},
    plan::{PortId, RouterId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// A device to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub ifindex: u32,
}

/// The user plane, as the control loop sees it: the classes of paths in the program, and the workers that run paths.
pub trait UserPlane<M>: Clone {
    /// Replaces the classes of all paths at once; their order counts. `own` has the router of each port, for packets that are for no
    /// interface.
    fn set_classes(&self, classes: &[PathClass], own: &BTreeMap<PortId, RouterId>) -> Result<()>;
    /// Sets the paths whose packets are dropped if no worker can take them. It counts from the next packet on.
    fn set_drops(&self, paths: &BTreeSet<PathId>);
    /// The counters of paths, by number.
    fn counts(&self) -> Vec<PathCounts>;
    /// Replaces the tables: from now on, only these are kept equal to Linux. Waits until workers read them, at most a second. If they
    /// do not by then, no worker gets packets until they do.
    fn set_tables(&self, tables: M);
    /// Sets what workers shall do from now on. It is done later.
    fn want(&self, wanted: Wanted);
    /// Waits until the last [`UserPlane::want`] is done, as far as possible, but not longer than this. Returns whether it is.
    fn wait(&self, _longest: Duration) -> bool {
        true
    }
    /// The state of workers a moment ago.
    fn stand(&self) -> Arc<Stand> {
        Arc::default()
    }
}

/// What workers shall do, as far as the control loop knows. Numbers are those of the tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// The ports that run the program.
    pub ports: BTreeMap<PortId, Device>,
    /// The router of each port, for packets that are for no interface.
    pub owners: BTreeMap<PortId, RouterId>,
    /// Weights of routers; others have 1.
    pub routers: BTreeMap<RouterId, u16>,
    /// The namespaces of routers.
    pub namespaces: BTreeMap<RouterId, NamespaceRef>,
    /// The paths whose ports and router exist.
    pub paths: BTreeMap<PathId, PathPlan>,
    /// The captures of all configured paths.
    pub mirrors: Vec<MirrorSettings>,
    /// The longest ring of all configured paths.
    pub longest_ring: u32,
}

/// The state of the user plane.
#[derive(Clone, Debug, Default)]
pub struct Stand {
    pub workers: WorkersReport,
    /// What could not be done, or not be counted, as sentences.
    pub conditions: Vec<String>,
}
