//! A run, slice by slice. The allocator decides at the end of every control period.

use super::{
    PERIOD, ROUND_NS, SLICE_NS,
    core::{BUDGET, BULK, Core, Next, Poll, Task},
    oracle::Oracle,
    place::Queue,
    reaction::Reaction,
    results::Results,
    ring::Packet,
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
    /// Packets on their way to the cores that share their queues, with their tasks.
    handed_on: Vec<(usize, Packet)>,
}

impl Scenario {
    /// Simulates the scenario. The same scenario always gives the same results.
    pub fn run(&self, placement: &Placement) -> Result<Results, BadScenario> {
        self.check()?;
        let policy = if let Placement::Allocator(policy) = placement { Some(policy) } else { None };
        let ports: Vec<u16> = match placement {
            Placement::Allocator(_) | Placement::Oracle => {
                self.ports.iter().map(|port| port.queues).collect()
            }
            Placement::RssHash => {
                let cores = (0..self.machine.cores).filter(|&core| self.settings.allows(core)).count();
                vec![cores as u16; self.ports.len()]
            }
        };
        let mut run = Run::new(self, policy, &ports);
        let traffic = || Traffic::new(&self.sources, &ranges(&ports), self.seed);
        let mut decider = match placement {
            Placement::Allocator(_) => Decider::Allocator(Allocator::default()),
            Placement::Oracle => Decider::Oracle(Oracle::new(traffic(), run.queues.len())),
            Placement::RssHash => Decider::Nobody,
        };
        run.decide(Duration::ZERO, &mut decider);
        let mut traffic = traffic();
        let slices_of = |time: Duration| time.as_nanos().div_ceil(SLICE_NS.into()) as u64;
        let first = slices_of(self.settle);
        for now in 0..first + slices_of(self.duration) {
            if now == first {
                run.results = Results { carried: run.held(), ..Results::default() };
                run.reaction = Reaction::new(self.machine.cores);
            }
            traffic.slice(now, |queue, times| run.arrive(queue, times));
            run.slice(now);
            let end = Duration::from_nanos((now + 1) * SLICE_NS);
            if end.as_nanos().is_multiple_of(PERIOD.as_nanos()) {
                run.end_period(end, &mut decider);
            }
        }
        Ok(run.finish())
    }
}

/// The decider that places queues.
pub(super) enum Decider {
    Allocator(Allocator),
    Oracle(Oracle),
    Nobody,
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
                let port_of = &scenario.ports[port];
                run.tasks.push(Task::new(queue, core, true, port_of.ring));
                run.queues.push(Queue::new(
                    QueueId { port: port as u8, index },
                    port_of.node,
                    core,
                    scenario.seed,
                ));
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

    /// The number of packets that are in rings, on their way to rings, or kept for other cores.
    pub fn held(&self) -> u64 {
        let bulks = self.cores.iter().flat_map(|core| &core.bulks);
        self.tasks.iter().map(|task| task.ring.held()).sum::<u64>()
            + bulks.map(|(_, bulk)| bulk.len() as u64).sum::<u64>()
    }

    /// Packets arrive at a queue at these times.
    pub fn arrive(&mut self, queue: usize, times: &[u64]) {
        self.tasks[queue].ring.expect(times.iter().map(|&at_ns| Packet::new(at_ns)));
        self.results.sent += times.len() as u64;
    }

    pub fn slice(&mut self, now: u64) {
        let before: Vec<u64> = self.cores.iter().map(|core| core.busy_ns).collect();
        let start_ns = now * SLICE_NS;
        for (id, core) in self.cores.iter_mut().enumerate() {
            let sibling = self.scenario.machine.sibling(id as CoreId);
            let busy_ns = sibling.map_or(0, |sibling| before[usize::from(sibling)]);
            core.begin_slice(time_ns(self.scenario, busy_ns));
        }
        // Cores depend on each other while they hand packets on.
        let rounds = if self.queues.iter().any(Queue::may_hand_on) { SLICE_NS / ROUND_NS } else { 1 };
        for round in 1..=rounds {
            let end_ns = start_ns + SLICE_NS * round / rounds;
            (0..self.cores.len()).for_each(|core| self.run_core(core, end_ns));
            self.deliver();
        }
        let mut alone_ns = 0;
        for id in 0..self.cores.len() {
            self.results.applications += Duration::from_nanos(self.cores[id].end_slice(start_ns + SLICE_NS));
            let sibling = self.scenario.machine.sibling(id as CoreId);
            let beside_ns = sibling.map_or(0, |sibling| self.cores[usize::from(sibling)].wanted_ns());
            alone_ns += self.cores[id].wanted_ns() * time_ns(self.scenario, beside_ns) / SLICE_NS;
        }
        self.results.applications_alone += Duration::from_nanos(alone_ns);
        for task in &mut self.tasks {
            task.ring.admit(start_ns + SLICE_NS);
            let dropped = task.ring.take_dropped();
            if dropped > 0 {
                self.results.dropped += dropped;
                *self.results.dropped_of.entry(self.queues[task.queue].id).or_default() += dropped;
            }
        }
    }

    /// Packets that were handed on reach the rings of other cores.
    pub fn deliver(&mut self) {
        self.handed_on.sort_by_key(|(task, packet)| (*task, packet.at_ns));
        for (task, packet) in self.handed_on.drain(..) {
            self.tasks[task].ring.expect_late(packet);
        }
    }

    /// Simulates a core until `end_ns`.
    fn run_core(&mut self, id: usize, end_ns: u64) {
        let wake_ns = self.scenario.cost.wake_ns;
        while self.cores[id].now_ns < end_ns {
            let core = &mut self.cores[id];
            if let Some(poll) = core.poll.take() {
                self.poll(id, poll, end_ns);
                continue;
            }
            match core.next(&self.tasks, end_ns) {
                Next::Poll(number) => core.begin_poll(number, &mut self.tasks[number], wake_ns),
                Next::Application(at, until_ns) => core.run_application(at, until_ns),
                Next::Sleep(until_ns) => {
                    core.sleep(until_ns);
                    core.keeps_up();
                }
            }
        }
    }

    /// Continues a poll until it ends, or until `end_ns`.
    fn poll(&mut self, id: usize, mut poll: Poll, end_ns: u64) {
        let task = &self.tasks[poll.task];
        if !task.is_home || !self.queues[task.queue].is_split() {
            self.forward(id, &mut poll, end_ns);
        } else {
            self.divide_packets(id, &mut poll, end_ns);
        }
        let core = &mut self.cores[id];
        let is_full = poll.done == BUDGET;
        let ring = &self.tasks[poll.task].ring;
        if !is_full && ring.ready_ns().is_some_and(|at_ns| at_ns <= core.now_ns) {
            core.poll = Some(poll);
            return;
        }
        self.flush(id, poll.task);
        // No NAPI instance polls packets that other cores hand on.
        if self.tasks[poll.task].is_home {
            self.end_poll(id, poll.task, is_full);
        }
    }

    /// Ends a poll of a queue, as falls_behind in bpf/polls.bpf.c does.
    fn end_poll(&mut self, id: usize, number: usize, is_full: bool) {
        let (core, task) = (&mut self.cores[id], &mut self.tasks[number]);
        let before = task.full_polls;
        task.full_polls = if is_full { before + 1 } else { 0 };
        core.polls += 1;
        if is_full {
            core.behind = task.full_polls.max(core.behind + 1);
            self.falls_behind(id);
            if self.tasks[number].ring.held() == 0 {
                // The kernel polls once more, and finds nothing.
                self.tasks[number].full_polls = 0;
                self.cores[id].keeps_up();
            }
        } else if before > 0 || core.behind == 0 {
            // A queue with few packets says nothing about the others.
            core.keeps_up();
        }
    }

    /// Forwards packets on the core of the task.
    fn forward(&mut self, id: usize, poll: &mut Poll, end_ns: u64) {
        let Self { scenario, cores, tasks, results, queues, .. } = self;
        let (core, task) = (&mut cores[id], &mut tasks[poll.task]);
        let more_ns = if task.is_home { 0 } else { scenario.cost.take_ns };
        let each_ns = core.takes_ns(scenario.cost.ns_per_packet + more_ns);
        let (began_ns, begun) = (core.now_ns, poll.done);
        let mut now_ns = began_ns;
        while poll.done < BUDGET && now_ns < end_ns {
            task.ring.admit(now_ns);
            let Some(packet) = task.ring.take() else { break };
            now_ns += each_ns;
            poll.done += 1;
            results.latency.count(now_ns - packet.came_ns, 1);
        }
        let done = u64::from(poll.done - begun);
        results.forwarded += done;
        task.done += done;
        if done > 0 && !task.is_home {
            results.helped.extend(queues[task.queue].first_help(began_ns + each_ns));
        }
        core.work(now_ns - began_ns, task);
        task.ring.admit(now_ns);
    }

    /// Forwards the home's share of packets, and hands the others on.
    fn divide_packets(&mut self, id: usize, poll: &mut Poll, end_ns: u64) {
        while poll.done < BUDGET && self.cores[id].now_ns < end_ns {
            let Self { scenario, cores, tasks, results, queues, .. } = self;
            let (core, task) = (&mut cores[id], &mut tasks[poll.task]);
            task.ring.admit(core.now_ns);
            let Some(packet) = task.ring.take() else { break };
            poll.done += 1;
            task.done += 1;
            match queues[task.queue].next_task() {
                to if to == poll.task => {
                    core.work(core.takes_ns(scenario.cost.ns_per_packet), task);
                    results.forwarded += 1;
                    results.latency.count(core.now_ns - packet.came_ns, 1);
                }
                to => {
                    core.work(core.takes_ns(scenario.cost.hand_on_ns), task);
                    if core.hand_on(to, packet) == BULK {
                        self.send(id, poll.task, to);
                    }
                }
            }
        }
        let now_ns = self.cores[id].now_ns;
        self.tasks[poll.task].ring.admit(now_ns);
    }

    /// Sends all packets that were handed on, at the end of a poll.
    pub fn flush(&mut self, id: usize, home: usize) {
        for at in 0..self.cores[id].bulks.len() {
            let (to, bulk) = &self.cores[id].bulks[at];
            if !bulk.is_empty() {
                self.send(id, home, *to);
            }
        }
    }

    /// Sends the packets that a core has for a task of another core. Wakes that core if it sleeps.
    fn send(&mut self, id: usize, home: usize, to: usize) {
        let cost = &self.scenario.cost;
        let now_ns = self.cores[id].now_ns;
        let other = &mut self.cores[usize::from(self.tasks[to].core)];
        // It may have been woken just now.
        let sleeps = !other.is_awake && other.starts_ns <= now_ns;
        if sleeps {
            other.starts_ns = now_ns + cost.rouse_ns + cost.start_ns;
        }
        let starts_ns = if other.is_awake { 0 } else { other.starts_ns };
        let core = &mut self.cores[id];
        if sleeps {
            core.work(core.takes_ns(cost.rouse_ns), &mut self.tasks[home]);
        }
        let at_ns = core.now_ns.max(starts_ns);
        let bulk = core.bulks.iter_mut().find(|(task, _)| *task == to);
        let packets = bulk.into_iter().flat_map(|(_, bulk)| bulk.drain(..));
        self.handed_on.extend(packets.map(|packet| (to, Packet { at_ns, ..packet })));
    }

    pub fn end_period(&mut self, now: Duration, decider: &mut Decider) {
        let forwarding = self.cores.iter().filter(|core| core.forwarded_ns > 0).count();
        self.results.cores.count(forwarding as u16);
        self.results.forwarding +=
            self.cores.iter().map(|core| Duration::from_nanos(core.forwarded_ns)).sum();
        let period_ns = PERIOD.as_nanos() as u64;
        for (id, core) in self.cores.iter().enumerate() {
            core.note_waiting(&mut self.tasks);
            let left: u64 = core.tasks.iter().map(|&number| self.tasks[number].ring.held()).sum();
            let left_ns = left * self.scenario.cost.ns_per_packet;
            let wanted = (core.forwarded_ns + left_ns) as f64 / period_ns as f64;
            self.reaction.note(id as CoreId, now - PERIOD, wanted > self.settings.high);
        }
        self.decide(now, decider);
        for core in &mut self.cores {
            (core.forwarded_ns, core.other_ns) = (0, 0);
        }
        for task in &mut self.tasks {
            (task.ran_ns, task.waited_ns, task.done, task.wakeups) = (0, 0, 0, 0);
        }
    }

    fn decide(&mut self, now: Duration, decider: &mut Decider) {
        let decision = match decider {
            // Before the first period, the allocator has seen nothing.
            Decider::Allocator(_) if now.is_zero() => return,
            Decider::Allocator(allocator) => allocator.decide(now, &self.view(), &self.settings),
            Decider::Oracle(oracle) => oracle.decide(self.scenario, self.queues.iter().map(|queue| queue.id)),
            Decider::Nobody => return,
        };
        self.apply(now, &decision);
    }

    pub fn finish(mut self) -> Results {
        let rest_ns: u64 = self.cores.iter().map(|core| core.forwarded_ns).sum();
        self.results.forwarding += Duration::from_nanos(rest_ns);
        let waiting = self.held();
        Results { waiting, reaction: self.reaction.longest, ..self.results }
    }
}

/// The time that a core can work in a slice if its sibling works for this long.
fn time_ns(scenario: &Scenario, sibling_busy_ns: u64) -> u64 {
    SLICE_NS - sibling_busy_ns * u64::from(1000 - scenario.machine.sibling_speed) / 1000
}

/// A core with its instances of applications.
fn applications(core: CoreId, applications: &[Application]) -> Core {
    let here = || applications.iter().filter(|application| application.runs_on(core));
    let of = |sharing| {
        let wants = here().filter(move |application| application.sharing == sharing);
        wants.map(|application| u64::from(application.wants) * SLICE_NS / 1000)
    };
    Core::new(&of(Sharing::Fair).collect::<Vec<_>>(), of(Sharing::Rest).sum())
}

impl Application {
    pub(super) fn runs_on(&self, core: CoreId) -> bool {
        self.cores.as_ref().is_none_or(|cores| cores.contains(&core))
    }
}
