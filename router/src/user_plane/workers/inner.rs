//! What a worker's thread has, and the commands that it executes between two runs. Its loop is in `rounds.rs`.

use super::{
    exchange::{Arrived, Bound, Desk, Fates, PortNames, PortsByNumber},
    held::{HeldPath, Holds, Made},
    plan::{PathPlan, Tables},
    rounds::Rounds,
    sleepers::Sleepers,
};
use crate::user_plane::af_xdp::{Closed, MOST_PATHS, Mark, Queue, Receiver, RingSet, Sender};
use anyhow::{Context, Result};
use logic::{
    cores::CoreId,
    elements::Chain,
    paths::{Cost, Path, PathId, Resource},
    plan::PortId,
    worker::{InHand, Turns},
};
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

/// What a worker measures of itself; times are in cycles.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub begun: u64,
    /// In turns that had packets.
    pub busy: u64,
    pub slept: u64,
    pub sleeps: u64,
    /// Panics outside of a path's turn.
    pub panics: u64,
}

/// A path as its worker has it.
pub(super) struct Lane {
    pub plan: PathPlan,
    made: Made,
    /// When its chain recently panicked.
    pub faults: Vec<u64>,
    pub panicked: u64,
}

impl Lane {
    pub fn new(plan: PathPlan, made: Made) -> Lane {
        Lane { plan, made, faults: Vec::new(), panicked: 0 }
    }
}

/// A path that moves from one worker to another, with everything it has.
pub(super) struct Moving {
    pub path: PathId,
    pub lane: Lane,
    /// `None`: the path is stopped and has no chain.
    pub chain: Option<Chain>,
    pub cost: Cost,
    pub receivers: Vec<Receiver>,
    pub fates: Fates,
    /// Its chain must not run.
    pub stopped: bool,
    /// What it sent on its old worker, by port.
    pub marks: Vec<(PortId, Mark)>,
}

impl Moving {
    /// The path as the worker of this core will report it.
    pub fn held(&self, core: CoreId) -> HeldPath {
        HeldPath {
            core,
            plan: self.lane.plan.clone(),
            made: self.lane.made.clone(),
            is_stopped: self.stopped,
            packets: self.fates.packets,
            cycles: self.fates.cycles_before,
            taken: self.fates.taken_before,
            cost: self.cost,
        }
    }
}

/// The state of a worker's thread.
pub(super) struct Inner {
    pub turns: Turns,
    pub desk: Desk,
    pub io: RingSet,
    pub lanes: BTreeMap<PathId, Lane>,
    pub names: PortNames,
    pub known_ports: PortsByNumber,
    pub times: Times,
    pub sleepers: Sleepers,
    /// Bit p: path p is here.
    pub there: u64,
    /// Bit p: path p is stopped.
    pub stopped: u64,
    pub rounds: Rounds,
    auxiliary: usize,
    /// Chains that panicked. [`Inner::holds`] hands them to the control.
    pub broken: Vec<Chain>,
    pub hand: InHand<Arrived>,
    pub bound: Bound,
    /// The path whose elements run now, for others to read; [`NO_PATH`]: none.
    pub running: Arc<AtomicU32>,
    /// Reports paths that are stopped.
    pub tell: Box<dyn Fn(PathId)>,
}

/// No elements run.
pub(super) const NO_PATH: u32 = u32::MAX;

pub(super) const fn bit(path: PathId) -> u64 {
    1 << (path as u64 % MOST_PATHS as u64)
}

/// The numbers of the bits that are set.
pub(super) fn bits(mut of: u64) -> impl Iterator<Item = PathId> {
    std::iter::from_fn(move || {
        let n = (of != 0).then(|| of.trailing_zeros() as PathId);
        of &= of.wrapping_sub(1);
        n
    })
}

impl Inner {
    /// `spin`: how long it spins after it had packets. `auxiliary`: how many packets may wait for each TX ring.
    #[expect(clippy::too_many_arguments, reason = "each is a part of its own")]
    pub fn new(
        turns: Turns,
        desk: Desk,
        io: RingSet,
        bound: Bound,
        spin: Duration,
        auxiliary: usize,
        running: Arc<AtomicU32>,
        tell: Box<dyn Fn(PathId)>,
    ) -> Inner {
        let rounds = Rounds::new(desk.clock, spin);
        Inner {
            times: Times { begun: desk.clock.cycles(), ..Times::default() },
            turns,
            desk,
            io,
            lanes: BTreeMap::new(),
            names: PortNames::default(),
            known_ports: PortsByNumber::default(),
            sleepers: Sleepers::default(),
            there: 0,
            stopped: 0,
            rounds,
            auxiliary,
            broken: Vec::new(),
            hand: InHand::default(),
            bound,
            running,
            tell,
        }
    }

    pub fn is_stopped(&self, path: PathId) -> bool {
        self.stopped & bit(path) != 0
    }

    /// How often the path's chain panicked.
    pub fn panics(&self, path: PathId) -> u64 {
        self.lanes.get(&path).map_or(0, |lane| lane.panicked)
    }

    pub fn name(&self, path: PathId) -> String {
        self.lanes.get(&path).map(|lane| lane.plan.name.clone()).unwrap_or_default()
    }

    /// What it has, for the control.
    pub fn holds(&mut self, core: CoreId) -> Holds {
        let outputs = self.desk.outputs().filter_map(|(port, at)| {
            let output = self.io.outputs().get(at)?;
            Some((port, output.sender().queue()))
        });
        let rings = (0..MOST_PATHS)
            .flat_map(|path| self.io.receivers(path).map(move |ring| (path as PathId, ring.wanted())));
        let accounts: BTreeMap<_, _> =
            self.turns.accounts().map(|account| (account.path.id, account)).collect();
        let path = |(path, lane): (&PathId, &Lane)| {
            let (fates, account) = (self.desk.fates.get(usize::from(*path))?, accounts.get(path)?);
            let held = HeldPath {
                core,
                plan: lane.plan.clone(),
                made: lane.made.clone(),
                is_stopped: self.is_stopped(*path),
                packets: fates.packets,
                cycles: fates.cycles_before + account.cycles,
                taken: fates.taken_before.plus(&account.taken),
                cost: account.cost,
            };
            Some((*path, held))
        };
        Holds {
            queues: self.io.queues().iter().map(Queue::opener).collect(),
            rings: rings.collect(),
            outputs: outputs.collect(),
            paths: self.lanes.iter().filter_map(path).collect(),
            chains: std::mem::take(&mut self.broken),
            busy: self.times.busy,
        }
    }

    // Commands, between two runs.

    /// Takes a path that is new, or comes from another worker.
    pub fn take_in(&mut self, moving: Moving) -> Result<()> {
        let Moving { path, lane, chain, cost, receivers, fates, stopped, marks: _ } = moving;
        let of = Path { id: path, router: lane.plan.router, weight: lane.plan.weight };
        self.turns.insert(of, chain, cost).with_context(|| format!("path {}", lane.plan.name))?;
        if let Some(place) = self.desk.fates.get_mut(usize::from(path)) {
            *place = fates;
        }
        self.lanes.insert(path, lane);
        self.there |= bit(path);
        receivers.into_iter().for_each(|receiver| self.io.add_receiver(receiver));
        if stopped {
            self.stopped |= bit(path);
            self.turns.sleep(path);
        }
        Ok(())
    }

    /// Gives a path away.
    pub fn give_up(&mut self, path: PathId) -> Option<Moving> {
        self.release_all(Some(path));
        let lane = self.lanes.remove(&path)?;
        let account = self.turns.accounts().find(|account| account.path.id == path);
        let (chain, cost) = self.turns.remove(path)?;
        let stopped = self.is_stopped(path);
        self.sleepers.remove(path);
        self.stopped &= !bit(path);
        self.there &= !bit(path);
        let mut fates = self.desk.fates.get_mut(usize::from(path)).map(std::mem::take).unwrap_or_default();
        if let Some(account) = account {
            fates.cycles_before += account.cycles;
            fates.taken_before = fates.taken_before.plus(&account.taken);
            fates.runs_before += account.runs - account.empty_runs;
        }
        let receivers = self.io.take_path(path.into());
        // It never sent by other ports.
        let sent = (0..).zip(&fates.out).filter(|(_, packets)| **packets > 0);
        let marks = self.marks(sent.map(|(port, _)| port));
        Some(Moving { path, lane, chain, cost, receivers, fates, stopped, marks })
    }

    /// Changes the weight, and the chain from the next run on; returns the old chain. If other elements are planned, a
    /// stopped path runs again and counters of elements begin at 0. Otherwise elements keep their counters.
    pub fn change(&mut self, path: PathId, plan: PathPlan, chain: Option<(Chain, Made)>) -> Option<Chain> {
        self.turns.set_weight(path, plan.weight);
        let lane = self.lanes.get_mut(&path)?;
        let is_other = lane.plan.chain != plan.chain;
        lane.plan = plan;
        let (chain, made) = chain?;
        lane.made = made;
        if !is_other {
            return self.turns.renew(path, chain);
        }
        lane.faults.clear();
        self.stopped &= !bit(path);
        // Once awake, the path finds out whether it has packets.
        self.sleepers.remove(path);
        self.turns.wake(path);
        self.turns.replace(path, chain)
    }

    /// Reads these tables from the next run on, with chains made for them; returns the old tables and chains.
    pub fn set_tables(&mut self, made: Made, chains: Vec<(PathId, Chain)>) -> (Arc<dyn Tables>, Vec<Chain>) {
        let mut before = Vec::new();
        for (path, chain) in chains {
            if let Some(lane) = self.lanes.get_mut(&path) {
                lane.made = made.clone();
                before.extend(self.turns.renew(path, chain));
            }
        }
        (std::mem::replace(&mut self.desk.tables, made.tables), before)
    }

    pub fn has_packets_of(&self, path: PathId, port: PortId, queue: u32) -> bool {
        self.ring(path, port, queue).is_some_and(Receiver::has_packets)
    }

    fn ring(&self, path: PathId, port: PortId, queue: u32) -> Option<&Receiver> {
        self.io.receivers(path.into()).find(|ring| (ring.wanted().port, ring.wanted().queue) == (port, queue))
    }

    /// The socket for the path's slot.
    pub fn socket_of(&self, path: PathId, port: PortId, queue: u32) -> Option<OwnedFd> {
        self.ring(path, port, queue)?.as_fd().try_clone_to_owned().ok()
    }

    /// Counts packets of an RX ring of the path that was closed.
    pub fn count_closed(&mut self, path: PathId, ring_full: u64, left: u64) {
        if let Some(fates) = self.desk.fates.get_mut(usize::from(path)) {
            fates.left += left;
            fates.ring_full_before += ring_full;
        }
    }

    pub fn add_output(&mut self, port: PortId, sender: Sender) -> Result<()> {
        let output = self.io.add_output(sender, self.auxiliary)?;
        self.desk.add_output(port, output);
        Ok(())
    }

    pub fn take_output(&mut self, port: PortId) -> Option<Closed> {
        let at = self.desk.take_output(port)?;
        Some(self.io.take_output(at))
    }

    /// Marks everything that was sent by these ports until now.
    pub fn marks(&self, ports: impl IntoIterator<Item = PortId>) -> Vec<(PortId, Mark)> {
        let mark = |port: PortId| Some((port, self.io.outputs().get(self.desk.output(port)?)?.mark()));
        ports.into_iter().filter_map(mark).collect()
    }

    /// Shares this resource from the next run on, and counts bytes or not. If it is not known yet how much of the resource
    /// packets use, cycles are shared.
    pub fn share(&mut self, resource: Resource, counts_io: bool) {
        let counted = self.bound.counted();
        let counted = if counts_io { counted.with(Resource::Io) } else { counted };
        self.turns.count(counted);
        if self.turns.share(resource).is_err() {
            let _ = self.turns.share(Resource::Cycles);
        }
    }

    pub fn add_queue(&mut self, queue: Queue) {
        self.io.add_queue(&self.bound.pool, queue);
    }

    pub fn take_queue(&mut self, port: PortId, queue: u32) -> Option<Queue> {
        let is_it = |q: &Queue| (q.wanted().port, q.wanted().queue) == (port, queue);
        let at = self.io.queues().iter().position(is_it)?;
        Some(self.io.take_queue(&self.bound.pool, at))
    }

    /// The marks whose packets have not left but can.
    pub fn have_not_left(&mut self, mut marks: Vec<(PortId, Mark)>) -> Vec<(PortId, Mark)> {
        self.io.flush(&self.bound.pool);
        marks.retain_mut(|(port, mark)| {
            self.desk.output(*port).is_some_and(|output| !self.io.has_left(output, mark))
        });
        marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_paths() {
        assert_eq!(bits(0b1010_0001).collect::<Vec<_>>(), [0, 5, 7]);
        assert_eq!(bits(bit(63)).collect::<Vec<_>>(), [63]);
        assert_eq!(bits(0).next(), None);
    }
}
