//! What a worker's thread has, and its loop: the path whose turn it is runs; without packets it spins for a while, then sleeps.
//!
//! ```text
//!            ┌► between two runs: an epoch passes, commands are done
//!            │  every us: paths that sleep and have packets wake
//!            │  every 20 us: fill rings, completions, auxiliary queues
//!            │     │
//!            │  Worker::turn ── a path ran ──► its packets are sent; it sleeps if its rings are empty ─┐
//!            │     │ all sleep                                                                         │
//!            │  spin, as long as there was work a moment ago                                           │
//!            │     │                                                                                   │
//!            │  Io::sleep: until a packet comes, or the bell rings; a timer only if something waits    │
//!            └─────┴───────────────────────────────────────────────────────────────────────────────────┘
//! ```

use super::{
    epochs::Epoch,
    exchange::{Arrived, Desk, Fates, Hands, PortNames},
    held::{HeldPath, Holds, Made},
    plan::{PathPlan, Tables},
};
use crate::af_xdp::{Closed, Io, MOST_PATHS, Mark, Queue, Receiver, Sender};
use anyhow::{Context, Result};
use logic::{
    cores::CoreId,
    elements::Chain,
    paths::{Cost, Path, PathId},
    plan::PortId,
    worker::Worker,
};
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

/// A path that sleeps is looked at so often.
const LOOKS_FOR_PACKETS: Duration = Duration::from_micros(1);
/// Rings are looked at so often, and what waits for a TX ring is flushed.
const LOOKS_AFTER_RINGS: Duration = Duration::from_micros(20);
/// A sleeping worker wakes so often as long as something waits for a TX ring.
const FLUSHES: Duration = Duration::from_millis(1);
/// So many panics in so long stop a path.
const MOST_PANICS: usize = 3;
const PANICS_WITHIN: Duration = Duration::from_secs(10);
/// Packets of a stopped path that are dropped at a time.
const DROPPED: usize = 64;

/// What it counts of itself, in cycles.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub begun: u64,
    /// In turns that had packets.
    pub busy: u64,
    pub slept: u64,
    pub sleeps: u64,
    /// Panics in no path's turn.
    pub panics: u64,
}

/// A path as its worker has it.
pub(super) struct Lane {
    pub plan: PathPlan,
    made: Made,
    /// When its chain panicked, the last times.
    panics: Vec<u64>,
    panicked: u64,
}

impl Lane {
    pub fn new(plan: PathPlan, made: Made) -> Lane {
        Lane { plan, made, panics: Vec::new(), panicked: 0 }
    }
}

/// A path that goes from one worker to another, with all it has.
pub(super) struct Moving {
    pub path: PathId,
    pub lane: Lane,
    pub chain: Chain,
    pub cost: Cost,
    pub receivers: Vec<Receiver>,
    pub fates: Fates,
    /// Its chain is not to run.
    pub stopped: bool,
    /// What it sent where it was, by port.
    pub marks: Vec<(PortId, Mark)>,
}

impl Moving {
    /// As it will be there.
    pub fn held(&self, core: CoreId) -> HeldPath {
        HeldPath {
            core,
            plan: self.lane.plan.clone(),
            made: self.lane.made.clone(),
            is_stopped: self.stopped,
            packets: self.fates.packets,
            cycles: self.fates.cycles_before,
            cost: self.cost,
        }
    }
}

/// See the head of this file.
pub(super) struct Inner {
    pub worker: Worker<Arrived>,
    pub desk: Desk,
    pub io: Io,
    lanes: BTreeMap<PathId, Lane>,
    pub names: PortNames,
    pub times: Times,
    /// Bit p: the path sleeps; it is stopped.
    sleeping: u64,
    stopped: u64,
    /// Whose turn it is.
    current: Option<PathId>,
    auxiliary: usize,
    /// Cycles: how long, how often.
    spins: u64,
    looks_for_packets: u64,
    looks_after_rings: u64,
    /// Cycles: when what was done last.
    woke: u64,
    looked: u64,
    worked: u64,
    /// Tells of paths that are stopped.
    tell: Box<dyn Fn(PathId)>,
    /// Chains that panicked: who asks what is here takes them.
    broken: Vec<Chain>,
}

const fn bit(path: PathId) -> u64 {
    1 << (path as u64 % MOST_PATHS as u64)
}

/// The numbers of the bits that are set.
fn bits(mut of: u64) -> impl Iterator<Item = PathId> {
    std::iter::from_fn(move || {
        let n = (of != 0).then(|| of.trailing_zeros() as PathId);
        of &= of.wrapping_sub(1);
        n
    })
}

impl Inner {
    /// It spins for so long after it had work; so many packets may wait for each TX ring.
    pub fn new(
        worker: Worker<Arrived>,
        desk: Desk,
        io: Io,
        spin: Duration,
        auxiliary: usize,
        tell: Box<dyn Fn(PathId)>,
    ) -> Inner {
        let now = desk.clock.cycles();
        Inner {
            spins: desk.clock.cycles_of(spin),
            looks_for_packets: desk.clock.cycles_of(LOOKS_FOR_PACKETS),
            looks_after_rings: desk.clock.cycles_of(LOOKS_AFTER_RINGS),
            worker,
            desk,
            io,
            lanes: BTreeMap::new(),
            names: PortNames::default(),
            times: Times { begun: now, ..Times::default() },
            sleeping: 0,
            stopped: 0,
            current: None,
            auxiliary,
            woke: now,
            looked: now,
            worked: now,
            tell,
            broken: Vec::new(),
        }
    }

    /// One round of the loop.
    #[inline]
    pub fn round(&mut self, epoch: &Epoch) {
        let clock = self.desk.clock;
        let now = clock.cycles();
        if now.saturating_sub(self.woke) > self.looks_for_packets {
            self.woke = now;
            self.wake();
        }
        if now.saturating_sub(self.looked) > self.looks_after_rings {
            self.looked = now;
            self.io.look();
            self.io.flush();
        }
        let Inner { worker, desk, io, current, .. } = &mut *self;
        let mut hands = Hands { io: &mut *io, desk: &mut *desk };
        match worker.turn_of(&mut hands, || clock.cycles(), |path| *current = Some(path)) {
            Some(turn) => {
                desk.send(io);
                if turn.packets > 0 {
                    self.worked = clock.cycles();
                    self.times.busy += self.worked - now;
                }
                self.current = None;
                if !self.io.has_packets(turn.path.into()) {
                    self.sleeping |= bit(turn.path);
                    self.worker.sleep(turn.path);
                }
            }
            None => self.idle(now, epoch),
        }
    }

    /// Paths that have packets.
    fn wake(&mut self) {
        for path in bits(self.sleeping) {
            if self.io.has_packets(path.into()) {
                self.sleeping &= !bit(path);
                self.worker.wake(path);
            }
        }
        for path in bits(self.stopped) {
            self.drop_packets(path);
        }
    }

    /// Nobody has packets.
    fn idle(&mut self, now: u64, epoch: &Epoch) {
        self.io.poll();
        self.wake();
        if self.has_awake() {
            return;
        }
        if now.saturating_sub(self.worked) < self.spins {
            std::hint::spin_loop();
            return;
        }
        self.io.look();
        self.io.flush();
        let longest = self.io.has_waiting().then_some(FLUSHES);
        epoch.turn_over();
        // If the kernel cannot sleep on the rings, the worker goes on without: it is only dearer.
        let slept = self.io.sleep(longest);
        epoch.turn_over();
        self.io.hear();
        if slept.is_err() {
            std::thread::sleep(FLUSHES);
        }
        let woke = self.desk.clock.cycles();
        self.times.slept += woke.saturating_sub(now);
        self.times.sleeps += 1;
        (self.woke, self.looked) = (woke, woke);
        self.io.look();
        self.wake();
        if self.has_awake() {
            self.worked = woke;
        }
    }

    fn has_awake(&self) -> bool {
        self.lanes.keys().any(|path| (self.sleeping | self.stopped) & bit(*path) == 0)
    }

    /// The thread's last turn ended by a panic: what was in hand is lost, and nothing else.
    pub fn recover(&mut self) {
        let lost = std::mem::take(&mut self.desk.in_hand);
        let Some(path) = self.current.take() else {
            self.times.panics += 1;
            std::thread::sleep(FLUSHES);
            return;
        };
        self.worker.recover(path);
        if let Some(fates) = self.desk.fates.get_mut(usize::from(path)) {
            fates.worker_panicked += lost;
        }
        self.desk.send(&mut self.io);
        let (now, within) = (self.desk.clock.cycles(), self.desk.clock.cycles_of(PANICS_WITHIN));
        let Some(lane) = self.lanes.get_mut(&path) else { return };
        lane.panicked += 1;
        lane.panics.retain(|before| now.saturating_sub(*before) < within);
        lane.panics.push(now);
        let is_too_much = lane.panics.len() >= MOST_PANICS;
        let made = catch_unwind(AssertUnwindSafe(|| self.desk.tables.chain(&lane.plan, &self.names)));
        match made {
            Ok(Ok(chain)) if !is_too_much => self.broken.extend(self.worker.replace(path, chain)),
            _ => self.stop(path),
        }
    }

    /// Its packets are dropped until it has another chain, or its slots are empty.
    fn stop(&mut self, path: PathId) {
        self.worker.sleep(path);
        self.sleeping &= !bit(path);
        self.stopped |= bit(path);
        (self.tell)(path);
    }

    fn drop_packets(&mut self, path: PathId) {
        let mut packets = Vec::new();
        while self.io.receive(path.into(), DROPPED, &mut packets) > 0 {
            if let Some(fates) = self.desk.fates.get_mut(usize::from(path)) {
                fates.packets += packets.len() as u64;
                fates.stopped += packets.len() as u64;
            }
            packets.clear();
        }
    }

    pub fn is_stopped(&self, path: PathId) -> bool {
        self.stopped & bit(path) != 0
    }

    pub fn panicked(&self, path: PathId) -> u64 {
        self.lanes.get(&path).map_or(0, |lane| lane.panicked)
    }

    pub fn name(&self, path: PathId) -> String {
        self.lanes.get(&path).map(|lane| lane.plan.name.clone()).unwrap_or_default()
    }

    /// What it has.
    pub fn holds(&mut self, core: CoreId) -> Holds {
        let outputs = self.desk.outputs().filter_map(|(port, at)| {
            let output = self.io.outputs().get(at)?;
            Some((port, output.sender().queue()))
        });
        let rings = (0..MOST_PATHS)
            .flat_map(|path| self.io.receivers(path).map(move |ring| (path as PathId, ring.wanted())));
        let accounts: BTreeMap<_, _> =
            self.worker.accounts().map(|account| (account.path.id, account)).collect();
        let path = |(path, lane): (&PathId, &Lane)| {
            let (fates, account) = (self.desk.fates.get(usize::from(*path))?, accounts.get(path)?);
            let held = HeldPath {
                core,
                plan: lane.plan.clone(),
                made: lane.made.clone(),
                is_stopped: self.is_stopped(*path),
                packets: fates.packets,
                cycles: fates.cycles_before + account.cycles,
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
        }
    }

    // Commands, between two runs.

    /// Takes a path that is new, or was another worker's.
    pub fn take_in(&mut self, moving: Moving) -> Result<()> {
        let Moving { path, lane, chain, cost, receivers, fates, stopped, marks: _ } = moving;
        let of = Path { id: path, router: lane.plan.router, weight: lane.plan.weight };
        self.worker.insert(of, chain, cost).with_context(|| format!("path {}", lane.plan.name))?;
        if let Some(place) = self.desk.fates.get_mut(usize::from(path)) {
            *place = fates;
        }
        self.lanes.insert(path, lane);
        receivers.into_iter().for_each(|receiver| self.io.add_receiver(receiver));
        if stopped {
            self.stopped |= bit(path);
            self.worker.sleep(path);
        }
        Ok(())
    }

    /// Gives a path away.
    pub fn give_up(&mut self, path: PathId) -> Option<Moving> {
        let lane = self.lanes.remove(&path)?;
        let account = self.worker.accounts().find(|account| account.path.id == path);
        let (chain, cost) = self.worker.remove(path)?;
        let stopped = self.is_stopped(path);
        self.sleeping &= !bit(path);
        self.stopped &= !bit(path);
        let mut fates = self.desk.fates.get_mut(usize::from(path)).map(std::mem::take).unwrap_or_default();
        if let Some(account) = account {
            fates.cycles_before += account.cycles;
            fates.runs_before += account.runs - account.empty_runs;
        }
        let receivers = self.io.take_path(path.into());
        // By other ports it never sent.
        let sent = (0..).zip(&fates.out).filter(|(_, packets)| **packets > 0);
        let marks = self.marks(sent.map(|(port, _)| port));
        Some(Moving { path, lane, chain, cost, receivers, fates, stopped, marks })
    }

    /// Another weight, or another chain from the next run on; the one until now. A path that was stopped goes on if other elements are planned.
    pub fn change(&mut self, path: PathId, plan: PathPlan, chain: Option<(Chain, Made)>) -> Option<Chain> {
        self.worker.set_weight(path, plan.weight);
        let lane = self.lanes.get_mut(&path)?;
        let is_other = lane.plan.chain != plan.chain;
        lane.plan = plan;
        let (chain, made) = chain?;
        lane.made = made;
        if is_other {
            lane.panics.clear();
            self.stopped &= !bit(path);
            // Awake it finds out whether it has packets.
            self.sleeping &= !bit(path);
            self.worker.wake(path);
        }
        self.worker.replace(path, chain)
    }

    /// Reads these tables from the next run on, with chains made over them; the ones until now.
    pub fn set_tables(&mut self, made: Made, chains: Vec<(PathId, Chain)>) -> (Arc<dyn Tables>, Vec<Chain>) {
        let mut before = Vec::new();
        for (path, chain) in chains {
            if let Some(lane) = self.lanes.get_mut(&path) {
                lane.made = made.clone();
                before.extend(self.worker.replace(path, chain));
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

    /// What the path's slot is to have.
    pub fn socket_of(&self, path: PathId, port: PortId, queue: u32) -> Option<OwnedFd> {
        self.ring(path, port, queue)?.as_fd().try_clone_to_owned().ok()
    }

    /// An RX ring of the path was closed.
    pub fn count_closed(&mut self, path: PathId, ring_full: u64, left: u64) {
        if let Some(fates) = self.desk.fates.get_mut(usize::from(path)) {
            fates.left += left;
            fates.ring_full_before += ring_full;
        }
    }

    pub fn take_queue(&mut self, port: PortId, queue: u32) -> Option<Queue> {
        let is_it = |q: &Queue| (q.wanted().port, q.wanted().queue) == (port, queue);
        let at = self.io.queues().iter().position(is_it)?;
        Some(self.io.take_queue(at))
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

    /// All that was sent by these ports until now.
    pub fn marks(&self, ports: impl IntoIterator<Item = PortId>) -> Vec<(PortId, Mark)> {
        let mark = |port: PortId| Some((port, self.io.outputs().get(self.desk.output(port)?)?.mark()));
        ports.into_iter().filter_map(mark).collect()
    }

    /// Those that have not left, and will.
    pub fn have_not_left(&mut self, mut marks: Vec<(PortId, Mark)>) -> Vec<(PortId, Mark)> {
        self.io.flush();
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
