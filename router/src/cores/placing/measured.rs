//! The queues and cores as they are measured in each control period.

use super::{
    super::{
        load::{CoreTimes, Others},
        machine::Machine,
        splitting::Parts,
    },
    *,
};
use logic::cores::{Core, Queue};

/// Reads the times of queues and cores, and keeps the last ones.
pub struct Measured {
    pub queues: BTreeMap<QueueId, Watched>,
    pub parts: Parts,
    core_times: CoreTimes,
    pub others: Others,
    /// The time that queues ran since the start, by the core that they ran on.
    pub forwarding_ns: BTreeMap<CoreId, u64>,
    /// The number of workloads pinned to each core that has any.
    pub pinned: BTreeMap<CoreId, u16>,
    /// The counters of packets and polls.
    pub polls: Option<Polls>,
}

impl Measured {
    /// Knows no queues yet.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn open(roots: &Roots) -> io::Result<Measured> {
        Ok(Measured {
            queues: BTreeMap::new(),
            parts: Parts::default(),
            core_times: CoreTimes::open(roots)?,
            others: Others::default(),
            forwarding_ns: BTreeMap::new(),
            pinned: BTreeMap::new(),
            polls: None,
        })
    }

    /// Counts packets and polls of the present queues.
    pub fn watch_polls(&mut self) {
        if let Some(polls) = &mut self.polls {
            polls.watch(&self.queues.values().filter_map(|queue| queue.source.napi).collect());
        }
    }

    /// Divides the softirq time of each core among the queues with interrupts there.
    pub fn share_softirqs(&mut self) {
        let mut on: BTreeMap<CoreId, u16> = BTreeMap::new();
        let estimated = self.queues.values().filter(|queue| queue.is_estimate());
        estimated.filter_map(|queue| queue.source.core).for_each(|core| *on.entry(core).or_default() += 1);
        for queue in self.queues.values_mut() {
            queue.shares(|core| on.get(&core).copied().unwrap_or(1), self.core_times.last());
        }
    }

    /// Reads the times of queues and, if it is due, of cores. `shared`: the split and spilled queues.
    /// Inserts the problems, as sentences. Returns whether a thread is gone.
    pub fn read(
        &mut self,
        now: Duration,
        shared: &Shared,
        named: impl Fn(QueueId) -> String,
        conditions: &mut BTreeSet<String>,
    ) -> bool {
        let due = self.others.is_due(now);
        let cores = if due { self.core_times.read() } else { Ok(&[][..]) };
        let cores = cores.unwrap_or_else(|error| {
            conditions.insert(format!("the times of cores cannot be read: {error}"));
            &[]
        });
        let mut is_gone = false;
        for (id, queue) in &mut self.queues {
            let napi = queue.source.napi.filter(|_| queue.leader == *id);
            let polled = self.polls.as_ref().zip(napi).and_then(|(polls, napi)| polls.of(napi));
            queue.traffic.read(now, polled);
            // The kernel counts softirqs in steps that are longer than a period.
            if queue.is_estimate() && !due {
                continue;
            }
            match queue.read(now, cores) {
                Ok(Some(ran_ns)) => {
                    let core = queue.source.core.unwrap_or_default();
                    *self.forwarding_ns.entry(core).or_default() += ran_ns;
                }
                Ok(None) => is_gone = true,
                Err(error) => {
                    conditions.insert(format!("the time of {} cannot be read: {error}", named(*id)));
                }
            }
        }
        let active = shared.queues.values().flatten().copied().collect();
        self.parts.read(now, &active, &mut self.forwarding_ns);
        if due && !cores.is_empty() {
            self.others.update(now, cores, &self.forwarding_ns);
        }
        is_gone
    }

    /// The measurements for the allocator. The lowest of the queues that move together stands for all of them.
    pub fn view(
        &self,
        now: Duration,
        machine: &Machine,
        shared: &Shared,
        spilled: &BTreeMap<QueueId, Vec<CoreId>>,
    ) -> View {
        let core = |site: &CoreSite| Core {
            id: site.id,
            node: site.node,
            physical: site.physical,
            workloads: self.pinned.get(&site.id).copied().unwrap_or(0),
            other: self.others.of(site.id).unwrap_or(0.0),
        };
        let packets = |id: QueueId| Some(self.queues.get(&id)?.counted()?.packets_per_s);
        let queue = |(&id, watched): (&QueueId, &Watched)| {
            let core = watched.source.core.filter(|_| watched.is_measured())?;
            let parts = self.parts.of(id, core, shared, packets);
            Some(Queue {
                id,
                node: watched.node,
                core,
                movable: watched.is_movable(now),
                ran: watched.load.ran,
                waited: watched.load.waited,
                counted: watched.counted(),
                is_partial: parts.is_none(),
                parts: parts.unwrap_or_default(),
                spilled: spilled.get(&id).cloned().unwrap_or_default(),
            })
        };
        View {
            cores: machine.cores.iter().map(core).collect(),
            queues: self.queues.iter().filter_map(queue).collect(),
        }
    }

    /// Whether no queue took any time in the last period, and none was polled since.
    pub fn is_still(&self, polls: &Polls) -> bool {
        let is_still =
            |queue: &Watched| queue.leader != queue.source.id || queue.is_still(|napi| polls.of(napi));
        self.queues.values().all(is_still)
    }

    /// Sleeps while nothing is polled, for this time at most.
    pub fn sleep(&self, longest: Duration, waker: Option<&Waker>) -> anyhow::Result<Slept> {
        let Some(polls) = self.polls.as_ref().filter(|polls| self.is_still(polls)) else {
            return Ok(Slept::No);
        };
        polls.sleep(longest, waker, |polls| self.is_still(polls))
    }
}
