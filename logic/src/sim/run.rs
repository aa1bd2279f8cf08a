//! A run, slice by slice. The allocator decides at the end of every control period.

use super::{
    PERIOD, SLICE_NS,
    core::{Core, Task},
    place::Queue,
    reaction::Reaction,
    results::Results,
    ring::Leaving,
    scenario::{Application, BadScenario, Placement, Scenario, Sharing},
    traffic::Traffic,
};
use crate::cores::{Allocator, CoreId, Policy, QueueId, Settings};
use std::{ops::Range, time::Duration};

/// A machine in the middle of a run.
pub(super) struct Run<'a> {
    pub scenario: &'a Scenario,
    pub settings: Settings,
    pub cores: Vec<Core>,
    pub queues: Vec<Queue>,
    /// The tasks of homes, by the number of their queue. After them, the tasks of other cores for split queues.
    pub tasks: Vec<Task>,
    pub reaction: Reaction,
    pub results: Results,
    /// Packets on their way to the cores that share their queues: tasks, and when the packets arrived.
    handed_on: Vec<(usize, Leaving)>,
}

impl Scenario {
    /// Simulates the scenario. The same scenario always gives the same results.
    pub fn run(&self, placement: &Placement) -> Result<Results, BadScenario> {
        self.check()?;
        let (policy, ports) = match placement {
            Placement::Allocator(policy) => {
                (Some(policy), self.ports.iter().map(|port| port.queues).collect())
            }
            Placement::RssHash => {
                let cores = (0..self.machine.cores).filter(|&core| self.settings.allows(core)).count();
                (None, vec![cores as u16; self.ports.len()])
            }
        };
        let mut run = Run::new(self, policy, &ports);
        let mut traffic = Traffic::new(&self.sources, &ranges(&ports), self.seed);
        let mut allocator = policy.map(|_| Allocator::default());
        let mut came = vec![0; run.queues.len()];
        let slices_of = |time: Duration| time.as_nanos().div_ceil(SLICE_NS.into()) as u64;
        let first = slices_of(self.settle);
        for now in 0..first + slices_of(self.duration) {
            if now == first {
                run.results = Results { carried: run.waiting(), ..Results::default() };
                run.reaction = Reaction::new(self.machine.cores);
            }
            traffic.slice(now, &mut came);
            run.slice(now, &came);
            let end = Duration::from_nanos((now + 1) * SLICE_NS);
            if end.as_nanos().is_multiple_of(PERIOD.as_nanos()) {
                run.end_period(end, allocator.as_mut());
            }
        }
        Ok(run.finish())
    }
}

/// The range of queue numbers of each port.
fn ranges(ports: &[u16]) -> Vec<Range<usize>> {
    let mut next = 0;
    let range = |&queues: &u16| {
        let first = next;
        next += usize::from(queues);
        first..next
    };
    ports.iter().map(range).collect()
}

impl<'a> Run<'a> {
    pub fn new(scenario: &'a Scenario, policy: Option<&Policy>, ports: &[u16]) -> Self {
        let machine = &scenario.machine;
        let settings = Settings { policy: policy.cloned().unwrap_or_default(), ..scenario.settings.clone() };
        let allowed: Vec<CoreId> = (0..machine.cores).filter(|&core| settings.allows(core)).collect();
        let mut run = Self {
            scenario,
            settings,
            cores: (0..machine.cores).map(|core| applications(core, &scenario.applications)).collect(),
            queues: Vec::new(),
            tasks: Vec::new(),
            reaction: Reaction::new(machine.cores),
            results: Results::default(),
            handed_on: Vec::new(),
        };
        for (port, &queues) in ports.iter().enumerate() {
            for index in 0..queues {
                // Round robin, for each port from the first core on. This is how NIC drivers distribute the queues of a
                // port.
                let core = allowed[usize::from(index) % allowed.len()];
                let queue = run.queues.len();
                let Scenario { ports, cost, .. } = scenario;
                run.tasks.push(Task::new(queue, core, cost.ns_per_packet, ports[port].ring));
                run.queues.push(Queue::new(QueueId { port: port as u8, index }, ports[port].node));
            }
        }
        run.list_tasks();
        run
    }

    /// Updates the list of tasks of each core.
    pub fn list_tasks(&mut self) {
        self.cores.iter_mut().for_each(|core| core.tasks.clear());
        for (number, task) in self.tasks.iter().enumerate() {
            self.cores[usize::from(task.core)].tasks.push(number);
        }
    }

    pub fn waiting(&self) -> u64 {
        self.tasks.iter().map(|task| task.ring.waiting()).sum()
    }

    pub fn slice(&mut self, now: u64, came: &[u64]) {
        for (queue, &packets) in came.iter().enumerate() {
            self.tasks[queue].arrive(now, packets);
            self.queues[queue].came += packets;
            self.results.sent += packets;
        }
        let before: Vec<u64> = self.cores.iter().map(|core| core.busy_ns).collect();
        let mut alone_ns = 0;
        for core in 0..self.cores.len() {
            let sibling = self.scenario.machine.sibling(core as CoreId);
            let sibling_busy_ns = sibling.map_or(0, |sibling| before[usize::from(sibling)]);
            self.slice_of(core, now, self.time_ns(sibling_busy_ns));
            let beside_ns = sibling.map_or(0, |sibling| self.cores[usize::from(sibling)].wanted_ns());
            alone_ns += self.cores[core].wanted_ns() * self.time_ns(beside_ns) / SLICE_NS;
        }
        self.results.applications_alone += Duration::from_nanos(alone_ns);
        for task in &mut self.tasks {
            let dropped = task.ring.drop_excess();
            task.came = 0;
            if dropped > 0 {
                self.results.dropped += dropped;
                *self.results.dropped_of.entry(self.queues[task.queue].id).or_default() += dropped;
            }
        }
        for (task, leaving) in self.handed_on.drain(..) {
            self.tasks[task].arrive(leaving.slice, leaving.packets);
        }
    }

    /// The time that a core can work in a slice if its sibling works for this long.
    fn time_ns(&self, sibling_busy_ns: u64) -> u64 {
        SLICE_NS - sibling_busy_ns * u64::from(1000 - self.scenario.machine.sibling_speed) / 1000
    }

    fn slice_of(&mut self, core: usize, now: u64, time_ns: u64) {
        let Self { scenario, cores, tasks, queues, results, handed_on, .. } = self;
        let got_ns = cores[core].slice(now, time_ns, tasks, &scenario.cost, |task, leaving| {
            let queue = &mut queues[task.queue];
            let here = match task.is_home {
                true => queue.keep(task.core, leaving, handed_on),
                false => leaving.packets,
            };
            results.forwarded += here;
            results.latency.count(leaving.waited_ns, here);
        });
        results.applications += Duration::from_nanos(got_ns);
    }

    pub fn end_period(&mut self, now: Duration, allocator: Option<&mut Allocator>) {
        let forwarding = self.cores.iter().filter(|core| core.forwarded_ns > 0).count();
        self.results.cores.count(forwarding as u16);
        self.results.forwarding +=
            self.cores.iter().map(|core| Duration::from_nanos(core.forwarded_ns)).sum();
        let period_ns = PERIOD.as_nanos() as u64;
        for (id, core) in self.cores.iter().enumerate() {
            let left_ns: u64 = core.tasks.iter().map(|&number| self.tasks[number].packets_ns()).sum();
            let wanted = (core.forwarded_ns + left_ns) as f64 / period_ns as f64;
            self.reaction.note(id as CoreId, now - PERIOD, wanted > self.settings.high);
        }
        if let Some(allocator) = allocator {
            let decision = allocator.decide(now, &self.view(), &self.settings);
            self.apply(now, &decision.plan);
        }
        for core in &mut self.cores {
            (core.forwarded_ns, core.other_ns) = (0, 0);
        }
        for task in &mut self.tasks {
            (task.ran_ns, task.waited_ns, task.done, task.waking_ns) = (0, 0, 0, 0);
        }
        self.queues.iter_mut().for_each(|queue| queue.came = 0);
    }

    pub fn finish(mut self) -> Results {
        let rest_ns: u64 = self.cores.iter().map(|core| core.forwarded_ns).sum();
        self.results.forwarding += Duration::from_nanos(rest_ns);
        let waiting = self.waiting();
        Results { waiting, reaction: self.reaction.longest, ..self.results }
    }
}

/// A core with its instances of applications.
fn applications(core: CoreId, applications: &[Application]) -> Core {
    let mut with = Core::default();
    for application in applications.iter().filter(|application| application.runs_on(core)) {
        let wants_ns = u64::from(application.wants) * SLICE_NS / 1000;
        match application.sharing {
            Sharing::Rest => with.rest_ns.push(wants_ns),
            Sharing::Fair => with.fair_ns.push(wants_ns),
        }
    }
    with
}

impl Application {
    pub(super) fn runs_on(&self, core: CoreId) -> bool {
        self.cores.as_ref().is_none_or(|cores| cores.contains(&core))
    }
}
