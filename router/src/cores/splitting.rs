//! Queues whose flows are shared among cores. The thread that looks applies the decisions to the kernel plane, and finds
//! the threads that do the shares. The thread that places reads their time.

use super::{
    CoreId, QueueId, Roots,
    machine::Machine,
    queues::{Control, QueueSource},
    threads::{self, PartThread},
    watched::Watched,
};
use crate::{
    base::clock::monotonic,
    plane::{FlowMaps, Helped, SplitSeat},
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

/// How many times the end waits 50 ms for joined queues to be whole, at most.
const JOINING: usize = 20;

/// The cores of each split queue.
pub type SplitQueues = BTreeMap<QueueId, Split>;

/// A split queue: the core that polls it, and the cores that share its flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    pub home: CoreId,
    pub cores: Vec<CoreId>,
}

/// The queues that a plan splits.
pub fn split_queues(plan: &Plan) -> SplitQueues {
    let split = |(queue, cores): (&QueueId, &Vec<CoreId>)| {
        Some((*queue, Split { home: *plan.home.get(queue)?, cores: cores.clone() }))
    };
    plan.split.iter().filter_map(split).collect()
}

/// Splits queues; used by the thread that looks.
#[derive(Default)]
pub struct Splitter {
    seat: SplitSeat,
    /// The maps of flow rules, which hand packets over by a CPU map of their own.
    rules: Arc<OnceLock<Arc<FlowMaps>>>,
    wanted: SplitQueues,
    /// The spilled queues that `wanted` takes into account, until it is applied.
    spilled: BTreeSet<QueueId>,
    help: BTreeMap<QueueId, Helped>,
    /// The cores that were online at the last look.
    online: BTreeSet<CoreId>,
}

static EMPTY: BTreeMap<QueueId, Helped> = BTreeMap::new();

impl Splitter {
    /// `seat`: holds the tables in charge.
    pub fn new(seat: SplitSeat, rules: Arc<OnceLock<Arc<FlowMaps>>>) -> Splitter {
        Splitter { seat, rules, ..Splitter::default() }
    }

    /// Whether queues of all these ports can be split.
    pub fn may_split(&self, mut ports: impl Iterator<Item = PortId>) -> bool {
        self.seat.get().is_some_and(|splits| ports.all(|port| splits.may_split(port)))
    }

    /// Prepares these cores for sharing queues. Returns a failure as a sentence.
    pub fn make_ready(&self, cores: &BTreeSet<CoreId>) -> Option<String> {
        let splits = self.seat.get()?;
        let ready = splits.make_ready(cores.iter().copied()).and_then(|()| self.make_rules_ready(cores));
        Some(format!("queues cannot be split: {:#}", ready.err()?))
    }

    /// Prepares cores in the map of flow rules, which hands packets over while flow rules are in charge.
    fn make_rules_ready<'a>(&self, cores: impl IntoIterator<Item = &'a CoreId>) -> Result<()> {
        let Some(rules) = self.rules.get() else { return Ok(()) };
        cores.into_iter().try_for_each(|&core| rules.memory().make_ready(core))
    }

    /// Sets the queues to split, with the spilled queues that this takes into account. [`Splitter::apply`] applies them.
    pub fn set(&mut self, wanted: SplitQueues, spilled: BTreeSet<QueueId>) {
        self.wanted = wanted;
        self.spilled.extend(spilled);
    }

    /// Whether queues are being joined, or help is ending.
    pub fn is_tidying(&self) -> bool {
        self.seat.get().is_some_and(|splits| splits.is_tidying())
    }

    /// Sets who helps which queue. [`Splitter::prepare`] applies it.
    pub fn help(&mut self, help: BTreeMap<QueueId, Helped>) {
        self.help = help;
    }

    /// Prepares help in the tables that are in charge; `is_news`: it was just decided. Returns the failures, as sentences.
    pub fn prepare(&self, now: Duration, is_news: bool) -> Vec<String> {
        let Some(splits) = self.seat.get() else { return Vec::new() };
        // The next plan will not use offline cores.
        let is_online =
            |who: &Helped| who.help.cores.iter().chain([&who.home]).all(|core| self.online.contains(core));
        let help: BTreeMap<QueueId, Helped> =
            self.help.iter().filter(|(_, who)| is_online(who)).map(|(id, who)| (*id, who.clone())).collect();
        let cores = help.values().flat_map(|who| who.help.cores.iter().chain([&who.home]));
        let ready = self.make_rules_ready(cores);
        // If one core cannot be made ready for flow rules, no core helps.
        let prepared = splits.prepare(if ready.is_ok() { &help } else { &EMPTY }, now, is_news).and(ready);
        prepared
            .err()
            .map(|error| format!("cores that fall behind may get no help: {error:#}"))
            .into_iter()
            .collect()
    }

    /// Splits and joins queues in the tables that are in charge at `now`. Returns the failures, as sentences.
    pub fn apply(&mut self, now: Duration, machine: &Machine) -> Vec<String> {
        let Some(splits) = self.seat.get() else { return Vec::new() };
        self.online = machine.online();
        let is_online = |core| machine.cores.iter().any(|site| site.id == core);
        splits.keep(is_online, now);
        splits.adopt_spilled(Some(&std::mem::take(&mut self.spilled)));
        let mut conditions = Vec::new();
        // The next plan will not use offline cores.
        let can_be = |split: &Split| split.cores.iter().chain([&split.home]).all(|core| is_online(*core));
        for (&queue, Split { home, cores }) in self.wanted.iter().filter(|(_, split)| can_be(split)) {
            let ready = self.make_rules_ready(cores.iter().chain([home]));
            if let Err(error) = ready.and_then(|()| splits.share(queue, *home, cores)) {
                let QueueId { port, index } = queue;
                conditions.push(format!("queue {index} of port {port} is not shared among cores: {error:#}"));
            }
        }
        splits
            .queues()
            .into_iter()
            .filter(|queue| !self.wanted.contains_key(queue))
            .for_each(|queue| splits.join(queue));
        // Sharing a queue may have taken longer than a tick, so `now` may be too old here.
        splits.tidy(monotonic());
        conditions.extend(self.prepare(now, false));
        conditions
    }

    /// Joins all queues, and waits until that is done, because nobody calls [`Splitter::apply`] later.
    pub fn end(&mut self) {
        self.wanted.clear();
        self.help.clear();
        let Some(splits) = self.seat.get() else { return };
        self.prepare(monotonic(), true);
        for _ in 0..JOINING {
            splits.adopt_spilled(None);
            splits.queues().into_iter().for_each(|queue| splits.join(queue));
            splits.tidy(monotonic());
            if !splits.is_tidying() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The threads that do shares. Empty if no queue is split, is being joined, or may get help.
    pub fn threads(&self, roots: &Roots) -> Vec<PartThread> {
        let splits = self.seat.get();
        let is_whole = self.wanted.is_empty() && self.help.is_empty();
        if is_whole && !splits.as_ref().is_some_and(|splits| splits.is_tidying()) {
            return Vec::new();
        }
        let maps = [
            splits.and_then(|splits| splits.map().ok()),
            self.rules.get().and_then(|rules| rules.memory().core_map()),
        ];
        threads::part_threads(roots).into_iter().filter(|thread| maps.contains(&Some(thread.map))).collect()
    }
}

/// The queues that are shared among cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// The cores of each.
    pub queues: BTreeMap<QueueId, Vec<CoreId>>,
    /// The kernel's id of the CPU map that hands packets over; `None`: nothing is attached.
    pub map: Option<u32>,
}

/// The threads that do shares of split queues; used by the thread that places.
#[derive(Default)]
pub struct Parts {
    threads: BTreeMap<PartThread, Watched>,
}

impl Parts {
    /// Takes over the threads that exist now.
    pub fn take(&mut self, roots: &Roots, found: &[PartThread]) {
        let mut before = std::mem::take(&mut self.threads);
        for &thread in found {
            let known = before.remove(&thread).or_else(|| watched(roots, thread));
            self.threads.extend(known.map(|known| (thread, known)));
        }
    }

    /// Replaces a measurement after a sleep, as [`Watched::rest`].
    pub fn rest(&mut self, now: Duration) {
        self.threads.values_mut().filter(|watched| watched.was_read()).for_each(|watched| watched.rest(now));
    }

    /// Whether no thread has work of split queues.
    pub fn are_idle(&self) -> bool {
        let is_idle = |watched: &Watched| watched.load.ran == 0.0 && watched.load.waited == 0.0;
        self.threads.values().all(|watched| watched.has_load() && is_idle(watched))
    }

    /// Reads the time of the threads that may have work, and adds it to `spent_ns` by core. `active`: the cores that
    /// share queues. Idle threads of other cores sleep, so they are not read.
    pub fn read(&mut self, now: Duration, active: &BTreeSet<CoreId>, spent_ns: &mut BTreeMap<CoreId, u64>) {
        self.threads.retain(|thread, watched| {
            let is_idle = watched.load.ran == 0.0 && watched.load.waited == 0.0;
            if is_idle && watched.was_read() && !active.contains(&thread.core) {
                watched.rest(now);
                return true;
            }
            match watched.read(now, &[]) {
                Ok(Some(ran_ns)) => {
                    *spent_ns.entry(thread.core).or_default() += ran_ns;
                    true
                }
                // The next look searches for it again.
                Ok(None) | Err(_) => false,
            }
        });
    }

    /// The work of other cores for a shared queue. `None`: the work of at least one of them is not known yet. If a core
    /// shares several queues, its time is divided among them by their packets. `packets`: how many came to a queue, or `None`
    /// if they are not counted.
    pub fn of(
        &self,
        queue: QueueId,
        home: CoreId,
        Shared { queues: shared, map }: &Shared,
        packets: impl Fn(QueueId) -> Option<f64>,
    ) -> Option<Vec<Part>> {
        // The home of a spilled queue is not among its cores.
        let packets = |id: QueueId| Some(packets(id)? / shared.get(&id)?.len().max(2) as f64);
        let part = |&core: &CoreId| {
            let is_its = |thread: &PartThread| thread.core == core && Some(thread.map) == *map;
            let threads =
                || self.threads.iter().filter(|(thread, _)| is_its(thread)).map(|(_, watched)| watched);
            threads().next().filter(|_| threads().all(Watched::has_load))?;
            let queues = shared.iter().filter(|(_, cores)| cores.contains(&core));
            let portion = portion(packets(queue), queues.map(|(id, _)| packets(*id)));
            let sum = |of: fn(&Watched) -> f64| threads().map(of).sum::<f64>() * portion;
            Some(Part { core, ran: sum(|w| w.load.ran), waited: sum(|w| w.load.waited) })
        };
        let cores = shared.get(&queue).into_iter().flatten();
        cores.filter(|core| **core != home).map(part).collect()
    }
}

/// A queue's portion of a core's time, by the packets of all queues that share the core. All queues
/// have the same portion if the packets of one of them are not counted, or if no packets came.
fn portion(own: Option<f64>, all: impl Iterator<Item = Option<f64>>) -> f64 {
    let all: Vec<Option<f64>> = all.collect();
    let sum = all.iter().copied().sum::<Option<f64>>().filter(|sum| *sum > 0.0);
    own.zip(sum).map_or_else(|| 1.0 / all.len().max(1) as f64, |(own, sum)| own / sum)
}

fn watched(roots: &Roots, thread: PartThread) -> Option<Watched> {
    // No port has this number.
    let id = QueueId { port: PortId::MAX, index: thread.core };
    let control = Control::Thread { pid: thread.pid };
    let source = QueueSource { id, napi: None, control, core: Some(thread.core), confined: true };
    Watched::new(roots, source, None, id).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_core_is_divided_by_packets_if_all_are_counted() {
        let of = |own, all: &[Option<f64>]| portion(own, all.iter().copied());
        assert_eq!(of(Some(300.0), &[Some(300.0), Some(100.0)]), 0.75);
        assert_eq!(of(Some(0.0), &[Some(300.0), Some(0.0)]), 0.0);
        assert_eq!(of(Some(300.0), &[Some(300.0), None]), 0.5);
        assert_eq!(of(None, &[Some(300.0), None, None]), 1.0 / 3.0);
        assert_eq!(of(Some(0.0), &[Some(0.0), Some(0.0)]), 0.5);
    }
}
