//! A machine in virtual time whose queues are placed by an allocator.

mod choice;
mod properties;
mod spilled;
mod stories;
mod waking;

use super::*;

pub const PERIOD: Duration = Duration::from_millis(10);
/// The work of a home for handing on a split queue's packets, as a fraction of the work.
pub const HANDING: f64 = 0.2;

pub fn core(id: CoreId) -> Core {
    Core { id, node: 0, physical: id, workloads: 0, other: 0.0 }
}

pub fn queue(index: u16, core: CoreId) -> Queue {
    let id = QueueId { port: 0, index };
    Queue {
        id,
        node: None,
        core,
        movable: true,
        ran: 0.0,
        waited: 0.0,
        counted: None,
        parts: vec![],
        is_partial: false,
        spilled: vec![],
    }
}

/// Applies plans at once. Cores divide their time evenly by what is wanted of them.
#[derive(Debug)]
pub struct Machine {
    pub cores: Vec<Core>,
    pub queues: Vec<Queue>,
    /// The want of each queue, in cores.
    pub wants: Vec<f64>,
    pub plan: Plan,
    pub allocator: Allocator,
    pub settings: Settings,
    /// The end of the last period.
    pub now: Duration,
}

impl Machine {
    /// A machine with this many cores, and queues on the given ones.
    pub fn new(cores: u16, homes: &[CoreId]) -> Self {
        let queues: Vec<Queue> = (0..).zip(homes).map(|(index, home)| queue(index, *home)).collect();
        let home = queues.iter().map(|queue| (queue.id, queue.core)).collect();
        Self {
            cores: (0..cores).map(core).collect(),
            wants: vec![0.0; queues.len()],
            queues,
            plan: Plan { home, split: BTreeMap::new() },
            allocator: Allocator::default(),
            settings: Settings::default(),
            now: Duration::ZERO,
        }
    }

    /// What each queue wants of each core, its home first.
    fn demands(&self) -> Vec<Vec<(CoreId, f64)>> {
        let of = |(queue, want): (&Queue, &f64)| {
            let home = self.plan.home[&queue.id];
            let Some(shares) = self.plan.split.get(&queue.id) else { return vec![(home, *want)] };
            let share = want / shares.len() as f64;
            let own = if shares.contains(&home) { share } else { 0.0 };
            let parts = shares.iter().filter(|core| **core != home).map(|core| (*core, share));
            std::iter::once((home, own + want * HANDING)).chain(parts).collect()
        };
        self.queues.iter().zip(&self.wants).map(of).collect()
    }

    pub fn view(&self) -> View {
        let demands = self.demands();
        let times = |core: CoreId, want: f64| {
            let total: f64 = demands.iter().flatten().filter(|(c, _)| *c == core).map(|(_, want)| want).sum();
            let other = self.cores.iter().find(|c| c.id == core).map_or(0.0, |c| c.other);
            if total + other <= 1.0 { (want, 0.0) } else { (want * (1.0 - other) / total, 1.0) }
        };
        let mut queues = self.queues.clone();
        for (queue, demands) in queues.iter_mut().zip(&demands) {
            let parts = demands.iter().map(|&(core, want)| {
                let (ran, wants_more) = times(core, want);
                Part { core, ran, waited: wants_more * (1.0 - ran) }
            });
            let mut parts: Vec<Part> = parts.collect();
            let home = parts.remove(0);
            (queue.core, queue.ran, queue.waited, queue.parts) = (home.core, home.ran, home.waited, parts);
        }
        View { cores: self.cores.clone(), queues }
    }

    /// One control period.
    pub fn period(&mut self) -> Vec<Event> {
        let view = self.view();
        self.now += PERIOD;
        let decision = self.allocator.decide(self.now, &view, &self.settings);
        self.plan = decision.plan;
        decision.events
    }

    /// Runs until `ms`, and returns the events with their times.
    pub fn until(&mut self, ms: u64) -> Vec<String> {
        let mut told = Vec::new();
        while self.now < Duration::from_millis(ms) {
            let events = self.period();
            let at = self.now.as_millis();
            told.extend(events.iter().map(|event| format!("{at} ms: {event}")));
        }
        told
    }

    pub fn homes(&self) -> Vec<CoreId> {
        self.plan.home.values().copied().collect()
    }

    /// The wants on each core with its queues.
    pub fn loads(&self) -> BTreeMap<CoreId, f64> {
        let mut loads = BTreeMap::new();
        self.demands().iter().flatten().for_each(|(core, want)| *loads.entry(*core).or_default() += want);
        loads
    }
}
