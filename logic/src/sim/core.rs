//! A core, which shares its time between queues and applications.

use super::{
    SLICE_NS,
    cost::Cost,
    ring::{Leaving, Ring},
};
use crate::cores::CoreId;

/// The work of one core for one queue.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub queue: usize,
    pub core: CoreId,
    /// It polls the queue. Otherwise it gets packets from the core that does.
    pub is_home: bool,
    pub ns_per_packet: u64,
    pub ring: Ring,
    /// Packets that arrived in this slice. They are in the ring.
    pub came: u64,
    /// Time spent on a packet that was not finished in the last slice.
    begun_ns: u64,
    /// Time in this control period, as the kernel counts it (schedstat).
    pub ran_ns: u64,
    pub waited_ns: u64,
    /// For this control period: the packets that it has finished, and the time that waking up took.
    pub done: u64,
    pub waking_ns: u64,
}

impl Task {
    pub fn new(queue: usize, core: CoreId, ns_per_packet: u64, ring: u32) -> Self {
        Self {
            queue,
            core,
            is_home: true,
            ns_per_packet,
            ring: Ring::new(ring),
            came: 0,
            begun_ns: 0,
            ran_ns: 0,
            waited_ns: 0,
            done: 0,
            waking_ns: 0,
        }
    }

    pub fn arrive(&mut self, slice: u64, packets: u64) {
        self.ring.push(slice, packets);
        self.came += packets;
    }

    /// The time for all packets that wait.
    pub fn packets_ns(&self) -> u64 {
        (self.ring.waiting() * self.ns_per_packet).saturating_sub(self.begun_ns)
    }
}

/// A core and the applications on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Core {
    /// The numbers of its tasks.
    pub tasks: Vec<usize>,
    /// What applications want of each slice, by the kind of sharing ([`super::Sharing`]).
    pub fair_ns: Vec<u64>,
    pub rest_ns: Vec<u64>,
    /// Time in the last slice.
    pub busy_ns: u64,
    /// Times in this control period.
    pub forwarded_ns: u64,
    pub other_ns: u64,
    wants: Vec<u64>,
    gets: Vec<u64>,
}

impl Core {
    /// What applications want of each slice.
    pub fn wanted_ns(&self) -> u64 {
        self.fair_ns.iter().chain(&self.rest_ns).sum::<u64>().min(SLICE_NS)
    }

    /// Runs one slice, of which the core can work for `time_ns`. It works more slowly while its sibling does. `left`
    /// gets the packets that tasks have finished. Returns the work that applications got done, in ns of a core at full
    /// speed.
    pub fn slice(
        &mut self,
        now: u64,
        time_ns: u64,
        tasks: &mut [Task],
        cost: &Cost,
        mut left: impl FnMut(&Task, Leaving),
    ) -> u64 {
        self.want(time_ns, tasks, cost);
        share(&self.wants, time_ns, &mut self.gets);
        let got_ns: u64 = self.gets.iter().sum();
        let competing = self.wants.iter().filter(|want| **want > 0).count() as u64;
        let wall_ns = |ns: u64| ns * SLICE_NS / time_ns;
        for (at, &number) in self.tasks.iter().enumerate() {
            let task = &mut tasks[number];
            let gets_ns = self.gets[at];
            if gets_ns == 0 {
                if task.ring.waiting() > 0 {
                    task.waited_ns += SLICE_NS;
                }
                continue;
            }
            // The least that it gets while others want something.
            let share_ns = (time_ns - (got_ns - gets_ns)).max(time_ns / competing.max(1)).max(1);
            let stretched = |ns: u64| ns * time_ns / share_ns;
            let is_done = task.work(now, gets_ns, |task, leaving, is_prompt| {
                let waited_ns = match is_prompt {
                    true => wall_ns(stretched(cost.wait_ns(task.came, task.ns_per_packet))),
                    false => leaving.waited_ns,
                };
                left(task, Leaving { waited_ns, ..leaving });
            });
            let ran_ns = wall_ns(gets_ns);
            let runnable_ns = if is_done { stretched(ran_ns).min(SLICE_NS) } else { SLICE_NS };
            task.ran_ns += ran_ns;
            task.waited_ns += runnable_ns.saturating_sub(ran_ns);
            self.forwarded_ns += ran_ns;
        }
        let fair_ns: u64 = self.gets[self.tasks.len()..].iter().sum();
        let rest_ns = self.rest_ns.iter().sum::<u64>().min(SLICE_NS) * time_ns / SLICE_NS;
        let rest_ns = rest_ns.min(time_ns - got_ns);
        self.other_ns += wall_ns(fair_ns + rest_ns);
        self.busy_ns = wall_ns(got_ns + rest_ns);
        fair_ns + rest_ns
    }

    /// The wants in a slice: tasks first, then applications that share fairly.
    fn want(&mut self, time_ns: u64, tasks: &mut [Task], cost: &Cost) {
        let of_tasks = || self.tasks.iter().map(|&number| &tasks[number]);
        let came: u64 = of_tasks().map(|task| task.came).sum();
        let packets_ns: u64 = of_tasks().map(Task::packets_ns).sum();
        let wakes_ns = cost.wakes_ns(came, packets_ns, time_ns);
        self.wants.clear();
        for &number in &self.tasks {
            let task = &mut tasks[number];
            let waking_ns = (wakes_ns * task.came).checked_div(came).unwrap_or(0);
            task.waking_ns += waking_ns;
            self.wants.push(task.packets_ns() + waking_ns);
        }
        self.wants.extend(self.fair_ns.iter().map(|ns| ns * time_ns / SLICE_NS));
    }
}

impl Task {
    /// Forwards as much as possible in its time. `left` gets packets with the former state of the task, and whether all
    /// waiting packets arrived in this slice and were finished in it. Returns whether nothing is left waiting.
    fn work(&mut self, now: u64, ns: u64, mut left: impl FnMut(&Task, Leaving, bool)) -> bool {
        let waiting = self.ring.waiting();
        let time_ns = self.begun_ns + ns;
        let done = (time_ns / self.ns_per_packet).min(waiting);
        self.done += done;
        let is_done = done == waiting;
        self.begun_ns = if is_done { 0 } else { time_ns - done * self.ns_per_packet };
        let is_prompt = is_done && waiting == self.came;
        let mut ring = std::mem::replace(&mut self.ring, Ring::new(0));
        ring.pop(now, done, |leaving| left(self, leaving, is_prompt && leaving.slice == now));
        self.ring = ring;
        is_done
    }
}

/// Max-min fair: nobody gets more than it wants, and one that wants more than it gets has at least as much as any
/// other.
fn share(wants: &[u64], time: u64, gets: &mut Vec<u64>) {
    gets.clear();
    if wants.iter().sum::<u64>() <= time {
        gets.extend(wants);
        return;
    }
    gets.resize(wants.len(), 0);
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|&i| wants[i]);
    let mut left = time;
    for (nth, &i) in order.iter().enumerate() {
        gets[i] = wants[i].min(left / (wants.len() - nth) as u64);
        left -= gets[i];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Cost = Cost { ns_per_packet: 1000, wake_ns: 0, hand_on_ns: 0 };

    fn shares(wants: &[u64], time: u64) -> Vec<u64> {
        let mut gets = vec![99];
        share(wants, time, &mut gets);
        gets
    }

    #[test]
    fn small_wants_are_met_and_the_others_get_equal_parts() {
        assert_eq!(shares(&[30, 70], 100), [30, 70]);
        assert_eq!(shares(&[90, 20, 90], 100), [40, 20, 40]);
        assert_eq!(shares(&[90, 80, 70], 100), [34, 33, 33]);
        assert_eq!(shares(&[], 100), [0; 0]);
    }

    struct Bench {
        core: Core,
        tasks: Vec<Task>,
        now: u64,
    }

    impl Bench {
        fn new(tasks: usize) -> Self {
            let tasks: Vec<_> =
                (0..tasks).map(|queue| Task::new(queue, 0, COST.ns_per_packet, 1000)).collect();
            let core = Core { tasks: (0..tasks.len()).collect(), ..Core::default() };
            Self { core, tasks, now: 0 }
        }

        /// Packets that leave each task, and the work of applications.
        fn slice(&mut self, time_ns: u64, came: &[u64]) -> (Vec<u64>, u64) {
            let mut gone = vec![0; came.len()];
            for (task, came) in self.tasks.iter_mut().zip(came) {
                task.arrive(self.now, *came);
            }
            let got = self.core.slice(self.now, time_ns, &mut self.tasks, &COST, |task, leaving| {
                gone[task.queue] += leaving.packets;
            });
            self.tasks.iter_mut().for_each(|task| task.came = 0);
            self.now += 1;
            (gone, got)
        }
    }

    #[test]
    fn applications_take_the_rest() {
        let mut bench = Bench::new(1);
        bench.core.rest_ns = vec![50_000, 40_000];
        assert_eq!(bench.slice(SLICE_NS, &[5]), (vec![5], 90_000));
        assert_eq!(bench.slice(SLICE_NS, &[30]), (vec![30], 70_000));
        assert_eq!(bench.slice(SLICE_NS, &[150]), (vec![100], 0));
        assert_eq!(bench.slice(SLICE_NS, &[0]), (vec![50], 50_000));
        assert_eq!((bench.core.forwarded_ns, bench.core.other_ns), (185_000, 210_000));
        let task = &bench.tasks[0];
        assert_eq!((task.ran_ns, task.waited_ns), (185_000, 0));
    }

    #[test]
    fn applications_share_fairly() {
        let mut bench = Bench::new(1);
        bench.core.fair_ns = vec![SLICE_NS];
        assert_eq!(bench.slice(SLICE_NS, &[30]), (vec![30], 70_000));
        // Half of it is its own, so it ran for 30 of 60 us.
        assert_eq!((bench.tasks[0].ran_ns, bench.tasks[0].waited_ns), (30_000, 30_000));
        assert_eq!(bench.slice(SLICE_NS, &[80]), (vec![50], 50_000));
        assert_eq!((bench.tasks[0].ran_ns, bench.tasks[0].waited_ns), (80_000, 80_000));
    }

    #[test]
    fn queues_share_a_core_and_wait_for_each_other() {
        let mut bench = Bench::new(3);
        assert_eq!(bench.slice(SLICE_NS, &[40, 40, 0]), (vec![40, 40, 0], 0));
        // 40 us of the 60 that the other leaves.
        assert_eq!(bench.tasks[1].ran_ns, 40_000);
        assert_eq!(bench.tasks[1].waited_ns, 26_666);
        assert_eq!(bench.slice(SLICE_NS, &[90, 90, 20]), (vec![40, 40, 20], 0));
        assert_eq!(bench.tasks[1].waited_ns, 26_666 + 60_000);
        assert_eq!(bench.tasks[2].waited_ns, 20_000 * 3 - 20_000);
    }

    #[test]
    fn a_packet_that_was_begun_is_finished() {
        let mut bench = Bench::new(1);
        let gone: Vec<u64> = (0..4).map(|_| bench.slice(33_700, &[100]).0[0]).collect();
        // 33,700, 67,400, 101,100, 134,800 ns.
        assert_eq!(gone, [33, 34, 34, 33]);
        // Its sibling works all the time, so it was busy all the time, too.
        assert_eq!((bench.core.busy_ns, bench.tasks[0].ran_ns), (SLICE_NS, 4 * SLICE_NS));
    }
}
