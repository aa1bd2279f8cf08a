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
    plan::PathPlan,
};
use crate::af_xdp::{Closed, Io, MOST_PATHS, Mark, Queue, Receiver, Sender};
use anyhow::{Context, Result};
use logic::{
    elements::Chain,
    paths::{Cost, Path, PathId},
    plan::PortId,
    worker::Worker,
};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
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
struct Lane {
    plan: PathPlan,
    /// When its chain panicked, the last times.
    panics: Vec<u64>,
    panicked: u64,
}

/// A path that goes from one worker to another, with all it has.
pub(super) struct Moving {
    pub path: PathId,
    pub plan: PathPlan,
    pub chain: Chain,
    pub cost: Cost,
    pub receivers: Vec<Receiver>,
    pub fates: Fates,
    /// Its chain is not to run.
    pub stopped: bool,
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
            Ok(Ok(chain)) if !is_too_much => drop(self.worker.replace(path, chain)),
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

    // Commands, between two runs.

    /// Takes a path that is new, or was another worker's.
    pub fn take_in(&mut self, moving: Moving) -> Result<()> {
        let Moving { path, plan, chain, cost, receivers, fates, stopped } = moving;
        let of = Path { id: path, router: plan.router, weight: plan.weight };
        self.worker.insert(of, chain, cost).with_context(|| format!("path {}", plan.name))?;
        if let Some(place) = self.desk.fates.get_mut(usize::from(path)) {
            *place = fates;
        }
        self.lanes.insert(path, Lane { plan, panics: Vec::new(), panicked: 0 });
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
        Some(Moving { path, plan: lane.plan, chain, cost, receivers, fates, stopped })
    }

    /// Another chain or weight from the next run on. One that was stopped goes on.
    pub fn change(&mut self, path: PathId, plan: PathPlan, chain: Option<Chain>) {
        self.worker.set_weight(path, plan.weight);
        if let Some(chain) = chain {
            self.worker.replace(path, chain);
            self.stopped &= !bit(path);
            // Awake it finds out whether it has packets.
            self.sleeping &= !bit(path);
            self.worker.wake(path);
        }
        if let Some(lane) = self.lanes.get_mut(&path) {
            lane.plan = plan;
            lane.panics.clear();
        }
    }

    pub fn has_packets_of(&self, path: PathId, port: PortId) -> bool {
        self.io.receivers(path.into()).any(|ring| ring.wanted().port == port && ring.has_packets())
    }

    /// Closes an RX ring of a path, which gets no packets any more.
    pub fn close_receiver(&mut self, path: PathId, port: PortId, queue: u32) {
        let Some(ring) = self.io.take_receiver(path.into(), port, queue) else { return };
        let ring_full = ring.statistics().map_or(0, |statistics| statistics.receive_ring_full);
        let left = ring.retire();
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

    /// Has all that was sent before left?
    pub fn has_left(&mut self, marks: &[Mark]) -> bool {
        self.io.flush();
        marks.iter().all(|mark| self.io.has_left(*mark))
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
