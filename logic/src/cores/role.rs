//! The roles of cores, as people see them.

use super::{Core, CoreId, Plan, View, measure::fraction};
use std::collections::BTreeMap;

/// Other work above this fraction of a core's time makes it serve. Less is normal for any kernel.
const SERVES: f64 = 0.05;

/// What a core does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Queues are placed on it.
    Forward,
    /// Workloads are pinned to it, or other work runs.
    Serve,
    Both,
    Idle,
}

impl Role {
    /// The role with this [`Role::name`].
    pub fn named(name: &str) -> Option<Role> {
        [Role::Forward, Role::Serve, Role::Both, Role::Idle].into_iter().find(|role| role.name() == name)
    }

    /// The name for people and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Role::Forward => "forward",
            Role::Serve => "serve",
            Role::Both => "both",
            Role::Idle => "idle",
        }
    }
}

/// The role of each online core in a plan.
pub fn roles(view: &View, plan: &Plan) -> BTreeMap<CoreId, Role> {
    let used = plan.cores();
    let role = |core: &Core| {
        let serves = core.workloads > 0 || fraction(core.other) > SERVES;
        match (used.contains(&core.id), serves) {
            (true, false) => Role::Forward,
            (false, true) => Role::Serve,
            (true, true) => Role::Both,
            (false, false) => Role::Idle,
        }
    };
    view.cores.iter().map(|core| (core.id, role(core))).collect()
}
