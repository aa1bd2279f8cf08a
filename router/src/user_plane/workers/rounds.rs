//! A worker's loop: it runs the path whose turn it is. Without packets, it spins for a while and then sleeps.
//!
//! ```text
//!            ┌► between two runs: an epoch passes, commands are done
//!            │  every us: paths that sleep and have packets wake (`sleepers.rs`)
//!            │  every 20 us: fill rings, completions, auxiliary queues, packets of stopped paths
//!            │     │
//!            │  a path's turn ── receive ─► elements run ─► send; it sleeps if its rings are empty ─┐
//!            │     │ all sleep                                                                      │
//!            │  spin, as long as there was work a moment ago                                        │
//!            │     │                                                                                │
//!            │  RingSet::sleep: until a packet comes, or the bell rings; a timer only if something waits
//!            └─────┴────────────────────────────────────────────────────────────────────────────────┘
//! ```

use super::{
    clock::Clock,
    epochs::Epoch,
    exchange::Hands,
    inner::{Inner, Lane, NO_PATH, bit, bits},
};
use logic::{
    paths::PathId,
    worker::{Begun, Turn},
};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};

/// How often sleeping paths are looked at.
const LOOKS_FOR_PACKETS: Duration = Duration::from_micros(1);
/// How often rings are looked at, and packets that wait for a TX ring are sent.
const LOOKS_AFTER_RINGS: Duration = Duration::from_micros(20);
/// A sleeping worker wakes after this time if packets wait. If they wait only for a TX ring, the time doubles, up to the
/// second value, each time that nothing has left. When a port is up again, a command wakes the worker anyway.
const FLUSHES: Duration = Duration::from_millis(1);
const FLUSHES_AT_LEAST: Duration = Duration::from_secs(1);
/// This many panics within this time stop a path.
const MOST_FAULTS: usize = 3;
const FAULTS_WITHIN: Duration = Duration::from_secs(10);
/// Packets of a stopped path that are dropped at a time.
const DROPPED: usize = 64;

/// The state of the loop.
pub(super) struct Rounds {
    /// The path whose turn it is.
    current: Option<PathId>,
    /// In cycles: how long it spins, and how often it looks.
    spins: u64,
    looks_for_packets: u64,
    looks_after_rings: u64,
    /// In cycles: when it last looked for packets of sleeping paths, looked at rings, and had packets.
    woke: u64,
    looked: u64,
    worked: u64,
    /// How long it sleeps the next time that packets wait for a TX ring.
    flushes: Duration,
}

impl Rounds {
    /// `spin`: how long it spins after it had packets.
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
    /// One round of the loop.
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
        let Some(begun) = self.begin_run(clock) else { return self.idle(now, epoch) };
        self.run();
        let turn = self.end_run(clock, begun);
        if turn.packets > 0 {
            self.has_worked(clock.cycles());
            self.times.busy += self.rounds.worked - now;
        }
        self.rounds.current = None;
        if !self.io.has_packets(turn.path.into()) {
            self.sleepers.add(turn.path);
            self.turns.sleep(turn.path);
        }
    }

    #[inline]
    fn begin_run(&mut self, clock: Clock) -> Option<Begun> {
        let Inner { turns, desk, io, rounds, hand, bound, .. } = self;
        let mut hands = Hands { io, desk, bound };
        turns.begin(hand, &mut hands, || clock.cycles(), |path| rounds.current = Some(path))
    }

    /// Runs the elements. Meanwhile `running` holds their path, so that a hang can be reported with its name.
    #[inline]
    fn run(&mut self) {
        if self.hand.packets() == 0 {
            return;
        }
        self.running.store(self.rounds.current.map_or(NO_PATH, u32::from), Relaxed);
        self.hand.run(self.desk.ports());
        self.running.store(NO_PATH, Relaxed);
    }

    #[inline]
    fn end_run(&mut self, clock: Clock, begun: Begun) -> Turn {
        let Inner { turns, desk, io, hand, bound, .. } = self;
        turns.end(hand, begun, &mut Hands { io, desk, bound }, || clock.cycles())
    }

    fn has_worked(&mut self, now: u64) {
        self.rounds.worked = now;
        self.rounds.flushes = FLUSHES;
    }

    /// A command was executed: there may be packets, and a port may be up again.
    pub fn is_told(&mut self) {
        self.rounds.flushes = FLUSHES;
        self.turns.pause();
        bits(self.sleepers.all()).for_each(|path| self.sleepers.add(path));
    }

    #[inline]
    fn wake_if_it_has_packets(&mut self, path: PathId) {
        if self.io.has_packets(path.into()) {
            self.sleepers.remove(path);
            self.turns.wake(path);
        }
    }

    fn look_after_rings(&mut self, now: u64) {
        self.rounds.looked = now;
        // Also while a path always has packets; otherwise, those of others would wait at the device.
        self.io.poll();
        self.io.look(&self.bound.pool);
        self.release();
        self.io.flush(&self.bound.pool);
        bits(self.stopped).for_each(|path| self.drop_packets(path));
    }

    /// Sends packets that need not wait for earlier ones any more.
    fn release(&mut self) {
        let Inner { desk, io, bound, .. } = self;
        if bound.has_behind() {
            bound.release(desk);
            bound.send(desk, io);
        }
    }

    /// Sends the path's packets that wait for earlier ones, or those of all paths.
    pub fn release_all(&mut self, path: Option<PathId>) {
        let Inner { desk, io, bound, .. } = self;
        if bound.has_behind() {
            bound.release_all(desk, path);
            bound.send(desk, io);
        }
    }

    /// No path had packets, so there is time to look at all of them.
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
        let longest = match self.bound.has_behind() {
            true => Some(FLUSHES),
            false => self.io.has_waiting().then_some(self.rounds.flushes),
        };
        epoch.turn_over();
        // If the kernel cannot sleep on the rings, the worker sleeps for a fixed time. That only costs more.
        let slept = self.io.sleep(longest);
        epoch.turn_over();
        self.io.hear();
        match slept {
            Ok(false) if self.bound.has_behind() => {}
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

    /// Continues after a panic. The packets in hand are lost, and nothing else. Making a chain may panic, too: see
    /// [`Inner::give_up_on_it`].
    pub fn recover(&mut self) {
        self.running.store(NO_PATH, Relaxed);
        let Inner { turns, desk, io, lanes, rounds, times, names, hand, bound, broken, .. } = self;
        let lost = std::mem::take(&mut desk.in_hand);
        let Some(path) = rounds.current else {
            times.panics += 1;
            return std::thread::sleep(FLUSHES);
        };
        turns.recover(path, hand);
        if let Some(fates) = desk.fates.get_mut(usize::from(path)) {
            fates.worker_panicked += lost;
        }
        bound.send(desk, io);
        let clock = desk.clock;
        if let Some(lane) = lanes.get_mut(&path) {
            let is_too_much = lane.is_too_much(clock.cycles(), clock.cycles_of(FAULTS_WITHIN));
            match desk.tables.chain(&lane.plan, names) {
                Ok(chain) if !is_too_much => broken.extend(turns.replace(path, chain)),
                _ => self.stop(path),
            }
        }
        self.rounds.current = None;
    }

    /// `recover` panicked, too: stops the path.
    pub fn give_up_on_it(&mut self) {
        match self.rounds.current.take() {
            Some(path) => self.stop(path),
            None => self.times.panics += 1,
        }
    }

    /// Stops a path. Its packets are dropped until it has another chain, or its slots are empty.
    fn stop(&mut self, path: PathId) {
        self.turns.sleep(path);
        self.sleepers.remove(path);
        self.stopped |= bit(path);
        (self.tell)(path);
    }

    fn drop_packets(&mut self, path: PathId) {
        loop {
            let Inner { io, bound, .. } = self;
            let dropped = io.receive_from(&bound.pool, path.into(), DROPPED, |_, packet| drop(packet)) as u64;
            if let Some(fates) = self.desk.fates.get_mut(usize::from(path)) {
                fates.packets += dropped;
                fates.stopped += dropped;
            }
            if dropped == 0 {
                return;
            }
        }
    }
}

impl Lane {
    /// Counts a panic; returns whether the path must stop.
    fn is_too_much(&mut self, now: u64, within: u64) -> bool {
        self.panicked += 1;
        self.faults.retain(|before| now.saturating_sub(*before) < within);
        self.faults.push(now);
        self.faults.len() >= MOST_FAULTS
    }
}
