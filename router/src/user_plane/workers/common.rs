//! What all workers get with each plan.

use super::{
    exchange::PortsByNumber,
    held::Made,
    inner::Inner,
    plan::{Tables, WorkersPlan},
};
use logic::plan::RouterId;
use std::{collections::BTreeMap, mem, sync::Arc};

/// See the head of this file.
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

    /// Gives it to a worker; returns the worker's tables of before, which it should not drop.
    pub fn give_to(self, inner: &mut Inner) -> Arc<dyn Tables> {
        inner.names = self.made.names;
        inner.known_ports = self.known_ports;
        inner.turns.refresh();
        self.weights.into_iter().for_each(|(router, weight)| inner.turns.weigh(router, weight));
        // The worker has older ones if it did not answer when they were changed.
        mem::replace(&mut inner.desk.tables, self.made.tables)
    }
}
