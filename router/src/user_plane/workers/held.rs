//! What workers have, as they report it, and what they get.

use super::{
    exchange::{PortNames, PortsByNumber},
    inner::Inner,
    plan::{PathPlan, Tables, WorkersPlan},
};
use crate::{
    config::ElementSettings,
    user_plane::af_xdp::{Opener, Wanted},
};
use logic::{
    cores::CoreId,
    elements::Chain,
    paths::{
        Cost, PathId, Used,
        layout::{Layout, PortQueue},
    },
    plan::{PortId, RouterId},
};
use std::{collections::BTreeMap, mem, sync::Arc};

/// An RX ring: its queue and its path.
pub(super) type Ring = (PortQueue, PathId);

/// What a path's chain was made of, besides its plan.
#[derive(Clone)]
pub(super) struct Made {
    pub names: PortNames,
    pub tables: Arc<dyn Tables>,
}

impl Made {
    /// Whether a chain made of `today` would be the same.
    pub fn holds(&self, chain: &[ElementSettings], today: &Made) -> bool {
        let port_of =
            |names: &PortNames, element: &ElementSettings| names.get(element.port()?.as_str()).copied();
        let same = |element| port_of(&self.names, element) == port_of(&today.names, element);
        std::ptr::addr_eq(Arc::as_ptr(&self.tables), Arc::as_ptr(&today.tables)) && chain.iter().all(same)
    }
}

/// What all workers get with each plan.
#[derive(Clone)]
pub(super) struct Common {
    /// What chains are made of at present.
    pub made: Made,
    /// The names of all ports that were ever planned.
    pub known_ports: PortsByNumber,
    weights: BTreeMap<RouterId, u16>,
}

impl Common {
    pub fn new(tables: Arc<dyn Tables>) -> Common {
        let (names, known_ports, weights) = Default::default();
        Common { made: Made { names, tables }, known_ports, weights }
    }

    /// Takes in the ports and routers of a plan.
    pub fn follow(&mut self, plan: &WorkersPlan) {
        self.made.names = Arc::new(plan.ports.iter().map(|(id, port)| (port.name.clone(), *id)).collect());
        let names = plan.ports.iter().map(|(id, port)| (*id, port.name.clone()));
        Arc::make_mut(&mut self.known_ports).extend(names);
        let gone = mem::replace(&mut self.weights, plan.routers.clone());
        gone.into_keys().for_each(|router| _ = self.weights.entry(router).or_insert(1));
    }

    /// Hands these values to a worker. Returns the worker's previous tables, which the worker must not drop itself.
    pub fn give_to(self, inner: &mut Inner) -> Arc<dyn Tables> {
        inner.names = self.made.names;
        inner.known_ports = self.known_ports;
        inner.turns.refresh();
        self.weights.into_iter().for_each(|(router, weight)| inner.turns.weigh(router, weight));
        // The worker has older ones if it did not answer when they were changed.
        mem::replace(&mut inner.desk.tables, self.made.tables)
    }
}

/// A path, as its worker reports it.
#[derive(Clone)]
pub(super) struct HeldPath {
    pub core: CoreId,
    pub plan: PathPlan,
    pub made: Made,
    /// Its chain panicked too often.
    pub is_stopped: bool,
    /// Since the path was first planned.
    pub packets: u64,
    pub cycles: u64,
    /// The use of other resources, if they are counted.
    pub taken: Used,
    pub cost: Cost,
}

/// What one worker has.
pub(super) struct Holds {
    pub queues: Vec<Opener>,
    pub rings: Vec<(PathId, Wanted)>,
    /// Ports, each with the queue that the worker sends by.
    pub outputs: Vec<(PortId, u32)>,
    pub paths: Vec<(PathId, HeldPath)>,
    /// Chains that no longer run.
    pub chains: Vec<Chain>,
    /// Cycles of turns that had packets.
    pub busy: u64,
}

/// What all workers have. For a worker that does not answer, this is its last report.
#[derive(Default)]
pub(super) struct Held {
    /// Queues, with their owners.
    pub queues: BTreeMap<PortQueue, (CoreId, Opener)>,
    /// RX rings, with the worker that reads them, and their size in packets.
    pub rings: BTreeMap<Ring, (CoreId, u32)>,
    pub outputs: BTreeMap<(CoreId, PortId), u32>,
    pub paths: BTreeMap<PathId, HeldPath>,
    /// Cycles of workers in turns that had packets.
    pub busy: BTreeMap<CoreId, u64>,
}

impl Held {
    /// Takes in what a worker reports.
    pub fn take_in(&mut self, core: CoreId, holds: Holds) {
        self.forget(core);
        let place = |wanted: Wanted| (wanted.port, wanted.queue);
        let Holds { queues, rings, outputs, paths, chains, busy } = holds;
        drop(chains);
        let queues = queues.into_iter().map(|opener| (place(opener.wanted()), (core, opener)));
        self.queues.extend(queues);
        let ring = |(path, wanted): (PathId, Wanted)| ((place(wanted), path), (core, wanted.rings.receive));
        self.rings.extend(rings.into_iter().map(ring));
        self.outputs.extend(outputs.into_iter().map(|(port, queue)| ((core, port), queue)));
        self.paths.extend(paths);
        self.busy.insert(core, busy);
    }

    /// Forgets a worker that is gone.
    pub fn forget(&mut self, core: CoreId) {
        self.queues.retain(|_, (owner, _)| *owner != core);
        self.rings.retain(|_, (reader, _)| *reader != core);
        self.outputs.retain(|(worker, _), _| *worker != core);
        self.paths.retain(|_, path| path.core != core);
        self.busy.remove(&core);
    }

    /// Whether the worker has a queue or a path.
    pub fn needs(&self, core: CoreId) -> bool {
        self.queues.values().any(|(owner, _)| *owner == core)
            || self.paths.values().any(|path| path.core == core)
    }

    pub fn layout(&self) -> Layout {
        Layout {
            owner: self.queues.iter().map(|(queue, (owner, _))| (*queue, *owner)).collect(),
            rings: self.rings.iter().map(|(ring, (core, _))| (*ring, *core)).collect(),
            outputs: self.outputs.clone(),
        }
    }

    /// The rings of a path.
    pub fn rings_of(&self, path: PathId) -> Vec<Ring> {
        self.rings.keys().filter(|(_, of)| *of == path).copied().collect()
    }

    /// The rings that a worker reads.
    pub fn rings_on(&self, core: CoreId) -> Vec<Ring> {
        self.rings.iter().filter(|(_, (reader, _))| *reader == core).map(|(ring, _)| *ring).collect()
    }

    pub fn opener(&self, queue: PortQueue) -> Option<&Opener> {
        self.queues.get(&queue).map(|(_, opener)| opener)
    }
}
