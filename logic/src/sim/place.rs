//! The position of queues: what the allocator sees of a run, and what it changes.

use super::{PERIOD, core::Task, results::Move, ring::Leaving, run::Run};
use crate::cores::{self, CoreId, Counted, Part, Plan, QueueId, View};
use std::time::Duration;

/// An RX queue.
pub(super) struct Queue {
    pub id: QueueId,
    node: Option<u16>,
    /// Packets that arrived in this control period.
    pub came: u64,
    /// The cores that share its flows, as in [`Plan::split`], each with its task. Empty: it is not split.
    shares: Vec<Share>,
    /// The core whose turn it is to get a packet that cannot be divided.
    turn: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    core: CoreId,
    task: usize,
}

impl Queue {
    pub fn new(id: QueueId, node: Option<u16>) -> Self {
        Self { id, node, came: 0, shares: Vec::new(), turn: 0 }
    }

    /// How many of the packets that its home has finished are forwarded there. The others are handed on, evenly.
    pub fn keep(&mut self, home: CoreId, leaving: Leaving, handed_on: &mut Vec<(usize, Leaving)>) -> u64 {
        let count = self.shares.len() as u64;
        let Some(each) = leaving.packets.checked_div(count) else { return leaving.packets };
        let more = (leaving.packets % count) as usize;
        let mut kept = 0;
        for (at, share) in self.shares.iter().enumerate() {
            let is_next = (at + self.shares.len() - self.turn) % self.shares.len() < more;
            let packets = each + u64::from(is_next);
            if share.core == home {
                kept += packets;
            } else if packets > 0 {
                handed_on.push((share.task, Leaving { packets, ..leaving }));
            }
        }
        self.turn = (self.turn + more) % self.shares.len();
        kept
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
        };
        View {
            cores: (0..machine.cores).map(core).collect(),
            queues: self.queues.iter().zip(&self.tasks).map(queue).collect(),
        }
    }

    fn counted(&self, home: &Task) -> Counted {
        let per_s = |count: f64| count / PERIOD.as_secs_f64();
        let wakeups = home.waking_ns as f64 / self.scenario.cost.wake_ns.max(1) as f64;
        Counted { packets_per_s: per_s(home.done as f64), wakeups_per_s: per_s(wakeups) }
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

    /// Moves queues at once, with the packets in their rings. Packets that wait at cores that no longer share a queue
    /// are forwarded there.
    pub fn apply(&mut self, now: Duration, plan: &Plan) {
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
            self.tasks[queue].core = to;
            self.divide(queue, to, &split);
        }
        if has_changed || self.tasks.len() > self.queues.len() {
            self.drop_finished_tasks();
            self.list_tasks();
        }
    }

    /// Splits a queue's flows over these cores. Without cores, its home does everything.
    fn divide(&mut self, queue: usize, home: CoreId, split: &[CoreId]) {
        let cost = &self.scenario.cost;
        let cores = split.len() as u64;
        let at_home = split.iter().filter(|&&core| core == home).count() as u64;
        let at_home_ns = at_home * cost.ns_per_packet + (cores - at_home) * cost.hand_on_ns;
        self.tasks[queue].ns_per_packet = at_home_ns.checked_div(cores).unwrap_or(cost.ns_per_packet).max(1);
        let ring = self.scenario.ports[usize::from(self.queues[queue].id.port)].ring;
        let homes = self.queues.len();
        let shares = split.iter().map(|&core| {
            if core == home {
                return Share { core, task: queue };
            }
            let is_its = |task: &Task| task.queue == queue && task.core == core;
            let task =
                self.tasks[homes..].iter().position(is_its).map(|at| homes + at).unwrap_or_else(|| {
                    let mut task = Task::new(queue, core, cost.ns_per_packet, ring);
                    task.is_home = false;
                    self.tasks.push(task);
                    self.tasks.len() - 1
                });
            Share { core, task }
        });
        self.queues[queue].shares = shares.collect();
        self.queues[queue].turn = 0;
    }

    /// Removes tasks that have no packets and get no more.
    fn drop_finished_tasks(&mut self) {
        let queues = &self.queues;
        let is_needed = |number: usize, task: &Task| {
            let shares = &queues[task.queue].shares;
            task.is_home || task.ring.waiting() > 0 || shares.iter().any(|share| share.task == number)
        };
        let needed: Vec<bool> =
            self.tasks.iter().enumerate().map(|(number, task)| is_needed(number, task)).collect();
        let mut next = 0;
        let renumbered: Vec<usize> = needed
            .iter()
            .map(|&is_needed| {
                next += usize::from(is_needed);
                next - usize::from(is_needed)
            })
            .collect();
        let mut needed = needed.into_iter();
        self.tasks.retain(|_| needed.next().unwrap_or(true));
        for share in self.queues.iter_mut().flat_map(|queue| &mut queue.shares) {
            share.task = renumbered[share.task];
        }
    }
}
