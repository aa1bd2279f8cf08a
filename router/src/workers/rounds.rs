//! A worker's loop: the path whose turn it is runs; without packets it spins for a while, then sleeps.
//!
//! ```text
//!            ┌► between two runs: an epoch passes, commands are done
//!            │  every us: paths that sleep and have packets wake (`sleepers.rs`)
//!            │  every 20 us: fill rings, completions, auxiliary queues, packets of stopped paths
//!            │     │
//!            │  Worker::turn ── a path ran ──► its packets are sent; it sleeps if its rings are empty ─┐
//!            │     │ all sleep                                                                         │
//!            │  spin, as long as there was work a moment ago                                           │
//!            │     │                                                                                   │
//!            │  Io::sleep: until a packet comes, or the bell rings; a timer only if something waits    │
//!            └─────┴───────────────────────────────────────────────────────────────────────────────────┘
//! ```

use super::{
    clock::Clock,
    epochs::Epoch,
    exchange::Hands,
    inner::{Inner, bit, bits},
};
use logic::paths::PathId;
use std::time::Duration;

/// Paths that sleep are looked at so often.
const LOOKS_FOR_PACKETS: Duration = Duration::from_micros(1);
/// Rings are looked at so often, and what waits for a TX ring is flushed.
const LOOKS_AFTER_RINGS: Duration = Duration::from_micros(20);
/// A sleeping worker wakes so soon if something waits for a TX ring, and twice as late each time that it does not leave: a port that is up again is
/// told by a command anyhow.
const FLUSHES: Duration = Duration::from_millis(1);
const FLUSHES_AT_LEAST: Duration = Duration::from_secs(1);
/// So many panics in so long stop a path.
const MOST_PANICS: usize = 3;
const PANICS_WITHIN: Duration = Duration::from_secs(10);
/// Packets of a stopped path that are dropped at a time.
const DROPPED: usize = 64;

/// Where the loop is.
pub(super) struct Rounds {
    /// Whose turn it is.
    current: Option<PathId>,
    /// Cycles: how long, how often.
    spins: u64,
    looks_for_packets: u64,
    looks_after_rings: u64,
    /// Cycles: when what was done last.
    woke: u64,
    looked: u64,
    worked: u64,
    /// The next time it sleeps with something that waits.
    flushes: Duration,
}

impl Rounds {
    /// It spins for so long after it had work.
    pub fn new(clock: Clock, spin: Duration) -> Rounds {
        let now = clock.cycles();
        Rounds {
            current: None,
            spins: clock.cycles_of(spin),
            looks_for_packets: clock.cycles_of(LOOKS_FOR_PACKETS),
            looks_after_rings: clock.cycles_of(LOOKS_AFTER_RINGS),
            woke: now,
            looked: now,
            worked: now,
            flushes: FLUSHES,
        }
    }
}

impl Inner {
    /// One of them.
    #[inline]
    pub fn round(&mut self, epoch: &Epoch) {
        let clock = self.desk.clock;
        let now = clock.cycles();
        if now.saturating_sub(self.rounds.woke) > self.rounds.looks_for_packets {
            self.rounds.woke = now;
            for path in self.sleepers.next() {
                self.wake_if_it_has_packets(path);
            }
        }
        if now.saturating_sub(self.rounds.looked) > self.rounds.looks_after_rings {
            self.look_after_rings(now);
        }
        let Inner { worker, desk, io, rounds, .. } = &mut *self;
        let mut hands = Hands { io, desk };
        match worker.turn_of(&mut hands, || clock.cycles(), |path| rounds.current = Some(path)) {
            Some(turn) => {
                if turn.packets > 0 {
                    self.has_worked(clock.cycles());
                    self.times.busy += self.rounds.worked - now;
                }
                self.rounds.current = None;
                if !self.io.has_packets(turn.path.into()) {
                    self.sleepers.add(turn.path);
                    self.worker.sleep(turn.path);
                }
            }
            None => self.idle(now, epoch),
        }
    }

    fn has_worked(&mut self, now: u64) {
        self.rounds.worked = now;
        self.rounds.flushes = FLUSHES;
    }

    /// It did as it was told: there may be packets, and a port may be up again.
    pub fn is_told(&mut self) {
        self.rounds.flushes = FLUSHES;
        self.worker.pause();
        bits(self.sleepers.all()).for_each(|path| self.sleepers.add(path));
    }

    #[inline]
    fn wake_if_it_has_packets(&mut self, path: PathId) {
        if self.io.has_packets(path.into()) {
            self.sleepers.remove(path);
            self.worker.wake(path);
        }
    }

    fn look_after_rings(&mut self, now: u64) {
        self.rounds.looked = now;
        // Also while a path has packets always: others' would wait at the device.
        self.io.poll();
        self.io.look();
        self.io.flush();
        bits(self.stopped).for_each(|path| self.drop_packets(path));
    }

    /// Nobody had packets; it has nothing better to do than to look at all.
    fn wake(&mut self) {
        bits(self.sleepers.all()).for_each(|path| self.wake_if_it_has_packets(path));
    }

    fn has_awake(&self) -> bool {
        self.there & !(self.sleepers.all() | self.stopped) != 0
    }

    fn idle(&mut self, now: u64, epoch: &Epoch) {
        self.io.poll();
        self.wake();
        if self.has_awake() {
            return;
        }
        if now.saturating_sub(self.rounds.worked) < self.rounds.spins {
            std::hint::spin_loop();
            return;
        }
        self.look_after_rings(now);
        let longest = self.io.has_waiting().then_some(self.rounds.flushes);
        epoch.turn_over();
        // If the kernel cannot sleep on the rings, the worker goes on without: it is only dearer.
        let slept = self.io.sleep(longest);
        epoch.turn_over();
        self.io.hear();
        match slept {
            Ok(false) => self.rounds.flushes = (self.rounds.flushes * 2).min(FLUSHES_AT_LEAST),
            Ok(true) => {}
            Err(_) => std::thread::sleep(FLUSHES),
        }
        let woke = self.desk.clock.cycles();
        self.times.slept += woke.saturating_sub(now);
        self.times.sleeps += 1;
        self.rounds.woke = woke;
        self.look_after_rings(woke);
        self.wake();
        if self.has_awake() {
            self.has_worked(woke);
        }
    }

    /// The thread's last turn ended by a panic: what was in hand is lost, and nothing else. To make a chain may panic, too: see [`Inner::give_up_on_it`].
    pub fn recover(&mut self) {
        let lost = std::mem::take(&mut self.desk.in_hand);
        let Some(path) = self.rounds.current else {
            self.times.panics += 1;
            return std::thread::sleep(FLUSHES);
        };
        self.worker.recover(path);
        if let Some(fates) = self.desk.fates.get_mut(usize::from(path)) {
            fates.worker_panicked += lost;
        }
        self.desk.send(&mut self.io);
        let (now, within) = (self.desk.clock.cycles(), self.desk.clock.cycles_of(PANICS_WITHIN));
        if let Some(lane) = self.lanes.get_mut(&path) {
            lane.panicked += 1;
            lane.panics.retain(|before| now.saturating_sub(*before) < within);
            lane.panics.push(now);
            let is_too_much = lane.panics.len() >= MOST_PANICS;
            match self.desk.tables.chain(&lane.plan, &self.names) {
                Ok(chain) if !is_too_much => self.broken.extend(self.worker.replace(path, chain)),
                _ => self.stop(path),
            }
        }
        self.rounds.current = None;
    }

    /// To recover panicked as well.
    pub fn give_up_on_it(&mut self) {
        match self.rounds.current.take() {
            Some(path) => self.stop(path),
            None => self.times.panics += 1,
        }
    }

    /// Its packets are dropped until it has another chain, or its slots are empty.
    fn stop(&mut self, path: PathId) {
        self.worker.sleep(path);
        self.sleepers.remove(path);
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
}
