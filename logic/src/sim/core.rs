//! A core, which shares its time between queues and applications.

use super::{
    SLICE_NS,
    ring::{Packet, Ring},
};
use crate::cores::CoreId;

/// The most packets of a poll (NAPI_POLL_WEIGHT).
pub(super) const BUDGET: u32 = 64;
/// The most packets that are handed to another core together (CPU_MAP_BULK_SIZE, kernel/bpf/cpumap.c).
pub(super) const BULK: usize = 8;
/// The longest turn of an application that shares its core fairly.
const TURN_NS: u64 = 10_000;

/// The work of one core for one queue.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub queue: usize,
    pub core: CoreId,
    /// It polls the queue. Otherwise it gets packets from the core that does.
    pub is_home: bool,
    pub ring: Ring,
    /// Full polls in a row.
    pub full_polls: u32,
    /// Virtual run time. The ready task or application with the least on its core runs next.
    pub turn_ns: u64,
    /// `ran_ns` and `waited_ns` are counted up to this time.
    noted_ns: u64,
    /// Time in this control period, as the kernel counts it (schedstat).
    pub ran_ns: u64,
    pub waited_ns: u64,
    /// For this control period.
    pub done: u64,
    pub wakeups: u64,
}

impl Task {
    pub fn new(queue: usize, core: CoreId, is_home: bool, ring: u32) -> Self {
        Self {
            queue,
            core,
            is_home,
            ring: Ring::new(ring),
            full_polls: 0,
            turn_ns: 0,
            noted_ns: 0,
            ran_ns: 0,
            waited_ns: 0,
            done: 0,
            wakeups: 0,
        }
    }

    /// Counts the time until now in which the task could have run but something else ran.
    fn note_waiting(&mut self, now_ns: u64) {
        let Some(ready_ns) = self.ring.ready_ns() else { return };
        self.waited_ns += now_ns.saturating_sub(ready_ns.max(self.noted_ns));
        self.noted_ns = self.noted_ns.max(now_ns);
    }

    /// Counts time that it has run, until now.
    pub fn note_run(&mut self, ns: u64, now_ns: u64) {
        self.ran_ns += ns;
        self.turn_ns += ns;
        self.noted_ns = now_ns;
    }
}

/// A poll that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poll {
    /// The number of its task.
    pub task: usize,
    pub done: u32,
}

/// An instance of an application that shares its core fairly.
#[derive(Clone, Copy, Debug)]
struct Fair {
    /// What it wants of each slice.
    wants_ns: u64,
    /// Its time in this slice.
    used_ns: u64,
    /// As [`Task::turn_ns`].
    turn_ns: u64,
}

/// A core and the applications on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Core {
    /// The numbers of its tasks.
    pub tasks: Vec<usize>,
    fair: Vec<Fair>,
    /// The part of each slice that applications want that get the rest.
    rest_ns: u64,
    /// The core is simulated up to this time.
    pub now_ns: u64,
    /// Virtual run time at the start of the last turn. A task or application that slept continues from here.
    turn_ns: u64,
    pub poll: Option<Poll>,
    /// Packets for other cores that have not left yet, by task.
    pub bulks: Vec<(usize, Vec<Packet>)>,
    /// It polls. A task that gets work now needs no wake-up.
    pub is_awake: bool,
    /// The number of polls that have ended.
    pub polls: u64,
    /// Full polls since it last kept up, and when that was.
    pub behind: u32,
    pub kept_up_ns: u64,
    /// The time that it can work in this slice, which is less while its sibling works.
    time_ns: u64,
    /// When it begins to work after it was woken for packets of another core.
    pub starts_ns: u64,
    /// Times in this slice, and what was done of the next one.
    forwarded_now_ns: u64,
    ahead_ns: u64,
    /// Time in the last slice.
    pub busy_ns: u64,
    /// Times in this control period.
    pub forwarded_ns: u64,
    pub other_ns: u64,
}

/// What a core does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Poll(usize),
    /// An application (by number) runs until this time.
    Application(usize, u64),
    /// The core does nothing until this time.
    Sleep(u64),
}

impl Core {
    /// `fair_ns`: what each application that shares fairly wants of a slice. `rest_ns`: what all applications that get the
    /// rest want together.
    pub fn new(fair_ns: &[u64], rest_ns: u64) -> Self {
        let fair = fair_ns.iter().map(|&wants_ns| Fair { wants_ns, used_ns: 0, turn_ns: 0 }).collect();
        Self { fair, rest_ns: rest_ns.min(SLICE_NS), time_ns: SLICE_NS, ..Self::default() }
    }

    /// What applications want of each slice.
    pub fn wanted_ns(&self) -> u64 {
        (self.fair.iter().map(|fair| fair.wants_ns).sum::<u64>() + self.rest_ns).min(SLICE_NS)
    }

    /// The time that it takes for work, given in ns of a core at full speed.
    #[inline]
    pub fn takes_ns(&self, work_ns: u64) -> u64 {
        if self.time_ns == SLICE_NS { work_ns } else { work_ns * SLICE_NS / self.time_ns }
    }

    /// Begins a slice, of which it can work for `time_ns`.
    pub fn begin_slice(&mut self, time_ns: u64) {
        self.time_ns = time_ns;
        self.forwarded_now_ns = std::mem::take(&mut self.ahead_ns);
        self.fair.iter_mut().for_each(|fair| fair.used_ns = 0);
    }

    /// Ends a slice at `end_ns`: gives applications the rest. Returns the work that all applications got done, in ns of a
    /// core at full speed.
    pub fn end_slice(&mut self, end_ns: u64) -> u64 {
        self.ahead_ns = self.now_ns.saturating_sub(end_ns).min(self.forwarded_now_ns);
        self.forwarded_now_ns -= self.ahead_ns;
        let fair_ns: u64 = self.fair.iter().map(|fair| fair.used_ns).sum();
        let used_ns = (self.forwarded_now_ns + fair_ns).min(SLICE_NS);
        let others_ns = fair_ns + self.rest_ns.min(SLICE_NS - used_ns);
        self.other_ns += others_ns;
        self.busy_ns = (self.forwarded_now_ns + others_ns).min(SLICE_NS);
        others_ns * self.time_ns / SLICE_NS
    }

    /// What it does next, before `end_ns`.
    pub fn next(&self, tasks: &[Task], end_ns: u64) -> Next {
        let (mut first, mut least_ns, mut coming_ns) = (None, u64::MAX, end_ns);
        for &number in &self.tasks {
            let task = &tasks[number];
            let turn_ns = task.turn_ns.max(self.turn_ns);
            match task.ring.ready_ns() {
                Some(at_ns) if at_ns > self.now_ns => coming_ns = coming_ns.min(at_ns),
                Some(_) if turn_ns < least_ns => (first, least_ns) = (Some(number), turn_ns),
                _ => {}
            }
        }
        let unserved = self.fair.iter().enumerate().filter(|(_, fair)| fair.used_ns < fair.wants_ns);
        let next = unserved.min_by_key(|(_, fair)| fair.turn_ns);
        if let Some((at, fair)) = next.filter(|(_, fair)| fair.turn_ns.max(self.turn_ns) < least_ns) {
            let turn_ns = (fair.wants_ns - fair.used_ns).min(TURN_NS);
            let until_ns = if first.is_some() { end_ns } else { coming_ns };
            return Next::Application(at, until_ns.min(self.now_ns + turn_ns));
        }
        first.map_or(Next::Sleep(coming_ns), Next::Poll)
    }

    /// Runs an application until `until_ns`.
    pub fn run_application(&mut self, at: usize, until_ns: u64) {
        let ns = until_ns - self.now_ns;
        let fair = &mut self.fair[at];
        self.turn_ns = self.turn_ns.max(fair.turn_ns);
        (fair.used_ns, fair.turn_ns) = (fair.used_ns + ns, self.turn_ns + ns);
        self.sleep(until_ns);
    }

    /// Polls nothing until `until_ns`.
    pub fn sleep(&mut self, until_ns: u64) {
        (self.now_ns, self.is_awake) = (until_ns, false);
    }

    /// It has no packets left, of a queue at least that had too many.
    pub fn keeps_up(&mut self) {
        (self.behind, self.kept_up_ns) = (0, self.now_ns);
    }

    /// Begins to poll a task, with a wake-up if necessary.
    pub fn begin_poll(&mut self, number: usize, task: &mut Task, wake_ns: u64) {
        task.note_waiting(self.now_ns);
        self.turn_ns = self.turn_ns.max(task.turn_ns);
        task.turn_ns = self.turn_ns;
        if !self.is_awake {
            self.work(self.takes_ns(wake_ns), task);
            task.wakeups += 1;
            self.is_awake = true;
        }
        self.poll = Some(Poll { task: number, done: 0 });
    }

    /// Keeps a packet for a task of another core. Returns how many packets it now keeps for that task.
    pub fn hand_on(&mut self, task: usize, packet: Packet) -> usize {
        let at = self.bulks.iter().position(|(to, _)| *to == task).unwrap_or_else(|| {
            self.bulks.push((task, Vec::with_capacity(BULK)));
            self.bulks.len() - 1
        });
        self.bulks[at].1.push(packet);
        self.bulks[at].1.len()
    }

    /// Works for a task.
    pub fn work(&mut self, ns: u64, task: &mut Task) {
        self.now_ns += ns;
        self.forwarded_now_ns += ns;
        self.forwarded_ns += ns;
        task.note_run(ns, self.now_ns);
    }

    /// Notes at the end of a control period how long tasks have waited.
    pub fn note_waiting(&self, tasks: &mut [Task]) {
        let polled = self.poll.map(|poll| poll.task);
        let waiting = self.tasks.iter().filter(|number| Some(**number) != polled);
        waiting.for_each(|&number| tasks[number].note_waiting(self.now_ns));
    }
}
