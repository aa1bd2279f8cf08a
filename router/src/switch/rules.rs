//! Rules and their maps, from the first rule on; batches of changes.

use super::{agent::Agent, batches::Batches, slow::Exits};
use crate::{
    config,
    daemon::{
        kernel::monotonic,
        seam::{Gauge, SwitchPort},
    },
    plane::{FlowMaps, FlowSettings, MappedFlows},
};
use anyhow::{Context, Result};
use logic::flow::{
    Action, Instructions, Port,
    flows::Flows,
    kernel::{FlowCapacity, Notice, NoticeReason, Seed},
    rule::TABLES,
    table::{GROUPS, METERS},
};
use std::{
    fs::File,
    io::Read,
    sync::{Arc, atomic::Ordering::Relaxed},
};

/// Rules over the maps that packets see.
pub struct Rules {
    pub agent: Agent<Arc<MappedFlows>>,
    maps: Arc<FlowMaps>,
    batches: Batches,
    exits: Exits,
    gauge: Arc<Gauge>,
    phase: Phase,
    /// Batches begun, and ended.
    sealed: u64,
    finished: u64,
}

/// What a batch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// The first grace period.
    Sealed,
    /// The second.
    Void,
}

/// Sizes for so many rules. All are taken with the first one: for 65,536 rules 24 MiB and 7 MiB for each CPU; for 1,010,000
/// rules 312 MiB and 64 MiB for each CPU.
pub fn capacity(rules: usize) -> FlowCapacity {
    let power = |rows: usize, least: usize, most: usize| rows.clamp(least, most).next_power_of_two();
    // Rows of rules that are gone are used again only after their batch.
    let rows = (rules + rules / 16 + 1024 + 1 + usize::from(TABLES)).next_multiple_of(4);
    FlowCapacity {
        rules: rows,
        buckets: power(rules / 2, 1 << 12, 1 << 19),
        rest: rows,
        patches: (rules / 16).max(1024),
        steps: (rules * 4).max(1 << 14),
        groups: GROUPS + 1,
        meters: METERS + 1,
        cache_sets: power(rules / 4, 1 << 12, 1 << 17),
        port_sets: 1024,
    }
}

impl Rules {
    /// Makes the maps, with no rules.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn new(config: &config::Flows, batches: Batches, gauge: Arc<Gauge>) -> Result<Rules> {
        let mut random = [0; 40];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .context("/dev/urandom")?;
        let (words, _) = random.as_chunks::<8>();
        let seed = Seed::new(std::array::from_fn(|i| u64::from_ne_bytes(words[i])));
        let capacity = capacity(config.rules.0 as usize);
        let maps = Arc::new(FlowMaps::new(FlowSettings { capacity, seed, outlast_daemon: false })?);
        let miss = match config.miss {
            config::Miss::Normal => Instructions::apply([Action::output(Port::NORMAL)]),
            config::Miss::Controller => Instructions::apply([Action::output(Port::CONTROLLER)]),
            config::Miss::Drop => Instructions::default(),
        };
        let flows = Flows::new(maps.memory().clone(), seed, &miss);
        Ok(Rules {
            agent: Agent::new(flows, config.miss == config::Miss::Normal),
            exits: Exits::new(maps.clone(), gauge.clone()),
            maps,
            batches,
            gauge,
            phase: Phase::Idle,
            sealed: 0,
            finished: 0,
        })
    }

    /// What packets see.
    pub fn maps(&self) -> &Arc<FlowMaps> {
        &self.maps
    }

    /// The ports of the box.
    pub fn set_ports(&mut self, ports: &[SwitchPort]) {
        let there = || ports.iter().filter_map(|port| Some((number(port), port, port.ifindex?)));
        let targets = there().filter(|(_, port, _)| port.transmits);
        let targets = targets.map(|(number, _, ifindex)| (number, (ifindex, true))).collect();
        if let Err(error) = self.maps.memory().set_ports(targets) {
            tracing::warn!("a port of flow rules: {error:#}");
        }
        self.exits.set_ports(ports);
        self.agent.set_ports(there().map(|(number, port, _)| (number, port.up)));
    }

    /// A packet that the kernel plane hands over.
    pub fn notice(&mut self, notice: Notice, frame: Vec<u8>) {
        // Others are for controllers, and there are none.
        if notice.reason != NoticeReason::Slow {
            return;
        }
        let now_ns = u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX);
        let count = if self.agent.notice(notice, frame, now_ns) {
            &self.gauge.slow_done
        } else {
            &self.gauge.slow_lost
        };
        count.fetch_add(1, Relaxed);
        self.agent.take_effects().iter().for_each(|effect| self.exits.leave(effect));
    }

    /// The batch that a change made now is in.
    pub fn next_batch(&self) -> u64 {
        self.sealed + 1
    }

    /// Packets obey all batches up to this one.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Begins a batch of what was changed, if none is under way.
    pub fn settle(&mut self) {
        if self.phase != Phase::Idle {
            return;
        }
        self.sealed += 1;
        if self.agent.seal() {
            self.phase = Phase::Sealed;
            self.batches.begin();
        } else {
            self.finished = self.sealed;
        }
    }

    /// A grace period has passed. If it could not be waited for, it is tried again: nothing is answered meanwhile.
    pub fn passed(&mut self, done: Result<()>) {
        if let Err(error) = done {
            tracing::warn!("waiting for running programs failed, changes of flow rules wait: {error:#}");
            std::thread::sleep(std::time::Duration::from_millis(100));
            self.batches.begin();
            return;
        }
        match self.phase {
            Phase::Sealed => {
                self.agent.void();
                self.phase = Phase::Void;
                self.batches.begin();
            }
            Phase::Void => {
                self.agent.finish();
                self.finished = self.sealed;
                self.phase = Phase::Idle;
            }
            Phase::Idle => {}
        }
    }
}

/// A port's number in rules.
pub(super) fn number(port: &SwitchPort) -> Port {
    Port(u16::from(port.id) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use logic::flow::kernel::{CACHE_WAYS, words};

    /// MiB that all CPUs share, and that each has.
    fn mib(c: &FlowCapacity) -> (usize, usize) {
        let shared = [
            (c.buckets, words::BUCKET),
            (c.rules, words::RULE),
            (c.rest, words::REST),
            (c.patches, words::PATCH),
            (c.steps, words::STEP),
            (c.groups, words::GROUP),
            (c.meters, words::METER),
        ];
        let own = [(c.cache_sets * CACHE_WAYS, words::CACHED + words::REST), (c.rules, words::COUNT)];
        let sum = |rows: &[(usize, usize)]| rows.iter().map(|(rows, words)| rows * words * 8).sum::<usize>();
        (sum(&shared) >> 20, sum(&own) >> 20)
    }

    #[test]
    fn memory_is_as_told() {
        assert_eq!(mib(&capacity(65_536)), (24, 7));
        assert_eq!(mib(&capacity(1_010_000)), (312, 64));
        let least = capacity(1);
        assert!(least.rules > 1000 && least.buckets.is_power_of_two() && least.cache_sets.is_power_of_two());
    }
}
