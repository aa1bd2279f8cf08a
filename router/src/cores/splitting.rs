//! Queues whose flows are shared among cores: the thread that looks gives the kernel plane what was decided, and finds the threads
//! that do the shares; the one that places reads their time.

use super::{
    CoreId, QueueId, Roots,
    machine::Machine,
    queues::{Control, QueueSource},
    threads::{self, PartThread},
    watched::Watched,
};
use crate::{
    base::clock::monotonic,
    plane::{FlowMaps, SplitSeat},
};
use anyhow::Result;
use logic::{
    cores::{Part, Plan},
    plan::PortId,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
    time::Duration,
};

/// How often it is looked whether queues that were joined are whole, at most.
const JOINING: usize = 20;

/// Which cores share each queue that is split.
pub type SplitQueues = BTreeMap<QueueId, Split>;

/// A queue that is split: who polls it, and who shares its flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    pub home: CoreId,
    pub cores: Vec<CoreId>,
}

/// What a plan splits.
pub fn split_queues(plan: &Plan) -> SplitQueues {
    let split = |(queue, cores): (&QueueId, &Vec<CoreId>)| {
        Some((*queue, Split { home: *plan.home.get(queue)?, cores: cores.clone() }))
    };
    plan.split.iter().filter_map(split).collect()
}

/// For the thread that looks.
#[derive(Default)]
pub struct Splitter {
    seat: SplitSeat,
    /// Flow rules hand packets over by a map of their own.
    rules: Arc<OnceLock<Arc<FlowMaps>>>,
    wanted: SplitQueues,
}

impl Splitter {
    /// `seat`: where the tables in charge are told of.
    pub fn new(seat: SplitSeat, rules: Arc<OnceLock<Arc<FlowMaps>>>) -> Splitter {
        Splitter { seat, rules, wanted: SplitQueues::new() }
    }

    /// Can queues of all these ports be split?
    pub fn may_split(&self, mut ports: impl Iterator<Item = PortId>) -> bool {
        self.seat.get().is_some_and(|splits| ports.all(|port| splits.may_split(port)))
    }

    /// These cores are ready to share queues; what cannot be done, as a sentence.
    pub fn make_ready(&self, cores: &BTreeSet<CoreId>) -> Option<String> {
        let splits = self.seat.get()?;
        let ready = splits.make_ready(cores.iter().copied()).and_then(|()| self.make_rules_ready(cores));
        Some(format!("queues cannot be split: {:#}", ready.err()?))
    }

    /// While flow rules are in charge packets go by their map.
    fn make_rules_ready<'a>(&self, cores: impl IntoIterator<Item = &'a CoreId>) -> Result<()> {
        let Some(rules) = self.rules.get() else { return Ok(()) };
        cores.into_iter().try_for_each(|&core| rules.memory().make_ready(core))
    }

    /// What was decided anew.
    pub fn set(&mut self, wanted: SplitQueues) {
        self.wanted = wanted;
    }

    /// Makes it so, in the tables that are in charge at `now`; what cannot be done, as sentences.
    pub fn apply(&self, now: Duration, machine: &Machine) -> Vec<String> {
        let Some(splits) = self.seat.get() else { return Vec::new() };
        let is_online = |core| machine.cores.iter().any(|site| site.id == core);
        splits.keep(is_online);
        let mut troubles = Vec::new();
        // The next plan leaves a core that is offline.
        let can_be = |split: &Split| split.cores.iter().chain([&split.home]).all(|core| is_online(*core));
        for (&queue, Split { home, cores }) in self.wanted.iter().filter(|(_, split)| can_be(split)) {
            let ready = self.make_rules_ready(cores.iter().chain([home]));
            if let Err(error) = ready.and_then(|()| splits.share(queue, *home, cores)) {
                let QueueId { port, index } = queue;
                troubles.push(format!("queue {index} of port {port} is not shared among cores: {error:#}"));
            }
        }
        splits
            .queues()
            .into_iter()
            .filter(|queue| !self.wanted.contains_key(queue))
            .for_each(|queue| splits.join(queue));
        splits.tidy(now);
        troubles
    }

    /// Joins all, and waits until that is done: where nobody calls any more.
    pub fn end(&mut self) {
        self.wanted.clear();
        let Some(splits) = self.seat.get() else { return };
        splits.queues().into_iter().for_each(|queue| splits.join(queue));
        for _ in 0..JOINING {
            splits.tidy(monotonic());
            if !splits.is_tidying() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The threads that do shares, if queues are split, or were and packets may still wait.
    pub fn threads(&self, roots: &Roots) -> Vec<PartThread> {
        let splits = self.seat.get();
        if self.wanted.is_empty() && !splits.as_ref().is_some_and(|splits| splits.is_tidying()) {
            return Vec::new();
        }
        let maps = [
            splits.and_then(|splits| splits.map().ok()),
            self.rules.get().and_then(|rules| rules.memory().core_map()),
        ];
        threads::part_threads(roots).into_iter().filter(|thread| maps.contains(&Some(thread.map))).collect()
    }
}

/// Cores that do shares, for the thread that places.
#[derive(Default)]
pub struct Parts {
    threads: BTreeMap<PartThread, Watched>,
}

impl Parts {
    /// These are there now.
    pub fn take(&mut self, roots: &Roots, found: &[PartThread]) {
        let mut before = std::mem::take(&mut self.threads);
        for &thread in found {
            let known = before.remove(&thread).or_else(|| watched(roots, thread));
            self.threads.extend(known.map(|known| (thread, known)));
        }
    }

    /// Is nobody known who does shares?
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Reads their time; adds what each core spent to `spent_ns`.
    pub fn read(&mut self, now: Duration, spent_ns: &mut BTreeMap<CoreId, u64>) {
        self.threads.retain(|thread, watched| match watched.read(now, &[]) {
            Ok(Some(ran_ns)) => {
                *spent_ns.entry(thread.core).or_default() += ran_ns;
                true
            }
            // It is looked for again.
            Ok(None) | Err(_) => false,
        });
    }

    /// What other cores did for a queue that is split; nothing as long as that of one is not known. A core that shares several
    /// queues does as much for each, as far as is known.
    pub fn of(&self, queue: QueueId, home: CoreId, plan: &Plan) -> Vec<Part> {
        let Some(cores) = plan.split.get(&queue) else { return Vec::new() };
        let part = |&core: &CoreId| {
            let threads =
                || self.threads.iter().filter(|(thread, _)| thread.core == core).map(|(_, watched)| watched);
            let queues = plan.split.values().filter(|cores| cores.contains(&core)).count() as f64;
            let sum = |of: fn(&Watched) -> f64| threads().map(of).sum::<f64>() / queues;
            threads().next()?;
            Some(Part { core, ran: sum(|w| w.load.ran), waited: sum(|w| w.load.waited) })
        };
        let parts: Option<Vec<Part>> = cores.iter().filter(|core| **core != home).map(part).collect();
        parts.unwrap_or_default()
    }
}

fn watched(roots: &Roots, thread: PartThread) -> Option<Watched> {
    // No port has this number.
    let id = QueueId { port: PortId::MAX, index: thread.core };
    let control = Control::Thread { pid: thread.pid };
    let source = QueueSource { id, napi: None, control, core: Some(thread.core), confined: true };
    Watched::new(roots, source, None, id).ok()
}
