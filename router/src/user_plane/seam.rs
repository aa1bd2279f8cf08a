//! The user plane, as the control loop sees it: what it wants, and how that stands.

use crate::{
    api::workers::WorkersReport, linux::netns::NamespaceRef, plane::PathCounts, user_plane::workers::PathPlan,
};
use anyhow::Result;
use logic::{
    paths::{PathId, rows::PathClass},
    plan::{PortId, RouterId},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// A device to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub ifindex: u32,
}

/// The user plane, as the control loop sees it: what the program knows of paths, and the workers that run them.
pub trait UserPlane<M>: Clone {
    /// From now on these are the classes, in this order, of all packets at once. `own`: whose packets are that are for no interface of a port.
    fn set_classes(&self, classes: &[PathClass], own: &BTreeMap<PortId, RouterId>) -> Result<()>;
    /// By number.
    fn counts(&self) -> Vec<PathCounts>;
    /// These tables are kept equal to Linux from now on, and those before are not any more. Waits until workers read them, a second at most;
    /// if they do not by then, none has packets until they do.
    fn set_tables(&self, tables: M);
    /// What workers are to do from now on. It is done later.
    fn want(&self, wanted: Wanted);
    /// Waits until the last [`UserPlane::want`] is done, as far as possible, or for so long.
    fn wait(&self, _longest: Duration) {}
    /// How workers stood a moment ago.
    fn stand(&self) -> Arc<Stand> {
        Arc::default()
    }
}

/// What workers are to do, as far as the control loop knows. Numbers are those of the tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// Those that run the program.
    pub ports: BTreeMap<PortId, Device>,
    /// Whose packets of a port are that are for no interface.
    pub owners: BTreeMap<PortId, RouterId>,
    /// Weights of routers; others have 1.
    pub routers: BTreeMap<RouterId, u16>,
    /// Where routers are.
    pub namespaces: BTreeMap<RouterId, NamespaceRef>,
    /// Those whose ports and router are there.
    pub paths: BTreeMap<PathId, PathPlan>,
}

/// How the user plane stands.
#[derive(Clone, Debug, Default)]
pub struct Stand {
    pub workers: WorkersReport,
    /// What could not be done, or not be counted, as sentences.
    pub troubles: Vec<String>,
}
