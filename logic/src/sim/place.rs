//! The position of queues: what the allocator sees of a run, and what it changes.

use super::{PERIOD, core::Task, random::stream, results::Move, run::Run};
use crate::{
    cores::{
        self, CoreId, Counted, Decision, Help, Part, QueueId, View,
        split::{BUCKETS, buckets},
    },
    fib::synthetic::Random,
};
use std::time::Duration;

/// An RX queue.
pub(super) struct Queue {
    pub id: QueueId,
    node: Option<u16>,
    /// The core of each bucket of flows.
    buckets: [CoreId; BUCKETS],
    /// The cores that share its flows, as in [`cores::Plan::split`], each with its task. Empty: it is not split.
    shares: Vec<Share>,
    /// Draws the bucket of each packet.
    random: Random,
    help: Option<Help>,
    /// [`Core::polls`](super::core::Core::polls) of its home when a helper last began.
    stepped: u64,
    last_split: Option<Duration>,
    /// The cores that have taken flows since the allocator last saw it.
    spilled: Vec<CoreId>,
    /// When its core last kept up. It is set from the first spill until a helper forwards a packet.
    behind_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    core: CoreId,
    task: usize,
}

/// A joined queue can be helped again after about this time. Until then, its packets may still wait on other cores of
/// the kernel plane.
const REARMS: Duration = Duration::from_millis(100);

impl Queue {
    pub fn new(id: QueueId, node: Option<u16>, home: CoreId, seed: u64) -> Self {
        let number = u64::from(id.port) << 16 | u64::from(id.index);
        Self {
            id,
            node,
            buckets: [home; BUCKETS],
            shares: Vec::new(),
            random: stream(seed, 3 << 32 | number),
            help: None,
            stepped: 0,
            last_split: None,
            spilled: Vec::new(),
            behind_ns: None,
        }
    }

    pub fn is_split(&self) -> bool {
        !self.shares.is_empty()
    }

    /// May its core hand packets on before the allocator decides again?
    pub fn may_hand_on(&self) -> bool {
        self.is_split() || self.help.is_some()
    }

    /// The task of the next packet's flow.
    pub fn next_task(&mut self) -> usize {
        let core = self.buckets[self.random.below(BUCKETS as u32) as usize];
        let share = self.shares.iter().find(|share| share.core == core);
        share.unwrap_or(&self.shares[0]).task
    }

    /// The time since its core last kept up, if a helper now forwards its first packet.
    pub fn first_help(&mut self, now_ns: u64) -> Option<Duration> {
        Some(Duration::from_nanos(now_ns.saturating_sub(self.behind_ns.take()?)))
    }
}

impl Run<'_> {
    /// The measurements that the router would have made in this control period.
    pub fn view(&self) -> View {
        let machine = &self.scenario.machine;
        let period_ns = PERIOD.as_nanos() as f64;
        let fraction = |ns: u64| ns as f64 / period_ns;
        let core = |id: CoreId| cores::Core {
            id,
            node: machine.node(id),
            physical: machine.physical(id),
            workloads: self.workloads(id),
            other: fraction(self.cores[usize::from(id)].other_ns),
        };
        let queue = |(queue, home): (&Queue, &Task)| cores::Queue {
            id: queue.id,
            node: queue.node,
            core: home.core,
            movable: true,
            ran: fraction(home.ran_ns),
            waited: fraction(home.waited_ns),
            counted: Some(self.counted(home)),
            parts: self.parts(queue, home.core, fraction),
            is_partial: false,
            spilled: queue.spilled.clone(),
        };
        View {
            cores: (0..machine.cores).map(core).collect(),
            queues: self.queues.iter().zip(&self.tasks).map(queue).collect(),
        }
    }

    fn counted(&self, home: &Task) -> Counted {
        let per_s = |count: u64| count as f64 / PERIOD.as_secs_f64();
        Counted { packets_per_s: per_s(home.done), wakeups_per_s: per_s(home.wakeups) }
    }

    fn parts(&self, queue: &Queue, home: CoreId, fraction: impl Fn(u64) -> f64) -> Vec<Part> {
        let others = queue.shares.iter().filter(|share| share.core != home);
        let part = |share: &Share| {
            let task = &self.tasks[share.task];
            Part { core: share.core, ran: fraction(task.ran_ns), waited: fraction(task.waited_ns) }
        };
        others.map(part).collect()
    }

    fn workloads(&self, core: CoreId) -> u16 {
        let applications = self.scenario.applications.iter();
        applications.filter(|application| application.pinned && application.runs_on(core)).count() as u16
    }

    /// Called after a full poll. Other cores help this core's queues once it is behind by the fewest full polls that
    /// one of the queues waits for (falls_behind in bpf/polls.bpf.c).
    pub fn falls_behind(&mut self, id: usize) {
        let core = &self.cores[id];
        let homes: Vec<usize> = core.tasks.iter().copied().filter(|&task| self.tasks[task].is_home).collect();
        let help = homes.iter().filter_map(|&queue| self.queues[queue].help.as_ref());
        if help.map(|help| help.full_polls).min().is_some_and(|polls| core.behind >= polls) {
            homes.into_iter().for_each(|queue| self.spill(queue));
            self.list_tasks();
        }
    }

    /// One more core shares the flows of a queue, if help is prepared and due (take_step in bpf/spill.h).
    fn spill(&mut self, queue: usize) {
        let home = self.tasks[queue].core;
        let core = &self.cores[usize::from(home)];
        let it = &mut self.queues[queue];
        let helping = it.shares.iter().filter(|share| share.core != home).count();
        let Some((help, &other)) = it.help.as_ref().and_then(|help| Some((help, help.cores.get(helping)?)))
        else {
            return;
        };
        let polls = if helping > 0 { core.polls - it.stepped } else { core.behind.into() };
        if polls < help.full_polls.into() {
            return;
        }
        let buckets = help.buckets(&it.buckets, home, helping + 1);
        it.stepped = core.polls;
        it.spilled.push(other);
        if helping == 0 {
            it.behind_ns = Some(core.kept_up_ns);
        }
        self.results.spills += 1;
        let mut shares = buckets.to_vec();
        shares.sort_unstable();
        shares.dedup();
        self.divide(queue, home, &shares);
        self.queues[queue].buckets = buckets;
    }

    /// Moves queues at once, with the packets in their rings. Packets that wait at cores that no longer share a queue
    /// are forwarded there.
    pub fn apply(&mut self, now: Duration, Decision { plan, help, .. }: &Decision) {
        let mut forwards = vec![false; self.cores.len()];
        for task in &self.tasks {
            forwards[usize::from(task.core)] |= task.ran_ns > 0;
        }
        let mut has_changed = false;
        for queue in 0..self.queues.len() {
            let id = self.queues[queue].id;
            let from = self.tasks[queue].core;
            let exists = |core: &&CoreId| **core < self.scenario.machine.cores;
            let to = plan.home.get(&id).filter(exists).copied().unwrap_or(from);
            let split = plan.split.get(&id).into_iter().flatten().filter(exists).copied().collect::<Vec<_>>();
            let was: Vec<CoreId> = self.queues[queue].shares.iter().map(|share| share.core).collect();
            let it = &mut self.queues[queue];
            if it.is_split() {
                it.last_split = Some(now);
            }
            let is_whole = it.last_split.is_none_or(|at| now.saturating_sub(at) >= REARMS);
            it.help = help.get(&id).filter(|_| is_whole).cloned();
            it.spilled.clear();
            if from == to && was == split {
                continue;
            }
            has_changed = true;
            if from != to {
                self.results.moves.push(Move { at: now, queue: id, from, to });
            }
            self.results.splits += u64::from(was != split);
            if std::iter::once(&to).chain(&split).any(|&core| !forwards[usize::from(core)]) {
                self.reaction.helped(from, now);
            }
            self.move_home(queue, to);
            self.divide(queue, to, &split);
        }
        if has_changed || self.tasks.len() > self.queues.len() {
            self.drop_finished_tasks();
            self.list_tasks();
        }
    }

    /// Moves a queue, and ends the poll that has begun there.
    fn move_home(&mut self, queue: usize, to: CoreId) {
        let from = std::mem::replace(&mut self.tasks[queue].core, to);
        if from != to {
            // The clocks of cores differ.
            self.tasks[queue].turn_ns = 0;
            self.tasks[queue].full_polls = 0;
        }
        let core = &mut self.cores[usize::from(from)];
        if from != to && core.poll.is_some_and(|poll| poll.task == queue) {
            core.poll = None;
            self.flush(usize::from(from), queue);
            self.deliver();
        }
    }

    /// Splits a queue's flows over these cores. Without cores, its home does everything.
    fn divide(&mut self, queue: usize, home: CoreId, split: &[CoreId]) {
        let ring = self.scenario.ports[usize::from(self.queues[queue].id.port)].ring;
        let homes = self.queues.len();
        let shares = split.iter().map(|&core| {
            if core == home {
                return Share { core, task: queue };
            }
            let is_its = |task: &Task| task.queue == queue && task.core == core;
            let task =
                self.tasks[homes..].iter().position(is_its).map(|at| homes + at).unwrap_or_else(|| {
                    self.tasks.push(Task::new(queue, core, false, ring));
                    self.tasks.len() - 1
                });
            Share { core, task }
        });
        let shares = shares.collect();
        let queue = &mut self.queues[queue];
        queue.shares = shares;
        queue.behind_ns = queue.behind_ns.filter(|_| !split.is_empty());
        queue.buckets =
            buckets(&queue.buckets, if split.is_empty() { std::slice::from_ref(&home) } else { split });
    }

    /// Removes tasks that have no packets and get no more.
    fn drop_finished_tasks(&mut self) {
        let Self { cores, queues, tasks, .. } = self;
        cores.iter_mut().for_each(|core| core.bulks.retain(|(_, bulk)| !bulk.is_empty()));
        let has_bulk = |number| cores.iter().any(|core| core.bulks.iter().any(|(task, _)| *task == number));
        let is_needed = |number: usize, task: &Task| {
            let shares = &queues[task.queue].shares;
            let is_shared = shares.iter().any(|share| share.task == number);
            task.is_home || is_shared || task.ring.held() > 0 || has_bulk(number)
        };
        let needed: Vec<bool> =
            tasks.iter().enumerate().map(|(number, task)| is_needed(number, task)).collect();
        let mut next = 0;
        let renumbered: Vec<usize> = needed
            .iter()
            .map(|&is_needed| {
                next += usize::from(is_needed);
                next - usize::from(is_needed)
            })
            .collect();
        let mut needed = needed.into_iter();
        tasks.retain(|_| needed.next().unwrap_or(true));
        for share in queues.iter_mut().flat_map(|queue| &mut queue.shares) {
            share.task = renumbered[share.task];
        }
        for core in cores {
            core.bulks.iter_mut().for_each(|(task, _)| *task = renumbered[*task]);
            core.poll.iter_mut().for_each(|poll| poll.task = renumbered[poll.task]);
        }
    }
}
