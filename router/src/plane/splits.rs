//! Queues whose flows are shared among cores (`bpf/split.h`). Each generation has a CPU map. A core that is ready
//! to share queues has an entry there, which is a queue and a kernel thread. A row of `split_queues` says on which
//! core each bucket of flows is.
//!
//! A row may also be prepared for a queue that is whole. If the queue's core falls behind, the kernel plane puts the row
//! in force by itself (`bpf/spill.h`). The queue is then *spilled*, until [`Splits::adopt_spilled`] makes it a split
//! queue like any other.

use super::{
    MAX_PORTS, Mapping, PORT_HANDS_OVER, PORT_SPLITS, Words64,
    backlog::{self, Backlogs},
    cores,
    polls::Polls,
};
use crate::{
    abi::{self, types},
    base::{
        clock::monotonic,
        guard::{locked, try_locked},
    },
};
use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapHandle};
use logic::{
    cores::{
        CoreId, Help, QueueId,
        split::{BUCKETS, buckets},
    },
    plan::PortId,
    tables::encoding::MAX_QUEUES,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem::offset_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    time::Duration,
};

/// Rows of `split_queues`: the most queues that can be split at a time.
pub(crate) const QUEUES: usize = 64;
/// Words of a row, and of each of its buckets.
const ROW: usize = size_of::<types::split_queue>() / 8;
const BUCKET: usize = size_of::<types::split_bucket>() / 8;
const TO: usize = offset_of!(types::split_bucket, to) / 8;
const POLL_WORD: usize = offset_of!(types::split_bucket, poll) / 8;
/// Words of a row that are about help.
const PORT: usize = offset_of!(types::split_queue, port) / 8;
const STEPS: usize = offset_of!(types::split_queue, steps) / 8;
const STEP: usize = offset_of!(types::split_queue, step) / 8;
const AFTER: usize = offset_of!(types::split_queue, after) / 8;
const STEP_TO: usize = offset_of!(types::split_queue, to) / 8;
/// As in `bpf/abi.h`.
const CORE: u64 = 0xffff;
const HANDED: u64 = 0x20000;
const POLL_UNKNOWN: u64 = u64::MAX;
const JIFFIES_SHIFT: u32 = 32;
/// The most rows that are prepared. The others are kept for queues that need more than one core for long.
pub const PREPARED: usize = QUEUES / 2;
/// More than a tick of the slowest clock.
const TICKS: Duration = Duration::from_millis(50);
/// Longer than the kernel plane takes to read `helped_napis` and to share a queue's flows.
const STEP_TAKES: Duration = Duration::from_millis(5);
/// Longer than a poll of 64 packets takes.
const POLL: Duration = Duration::from_millis(20);

/// The split queues of one generation.
pub struct Splits {
    map: MapHandle,
    /// `millrace_core`.
    program: OwnedFd,
    /// `share_queues`; `None`: cores that fall behind get no help.
    helper: Option<OwnedFd>,
    backlogs: Backlogs,
    index: Words64,
    buckets: Words64,
    helped: Words64,
    core_queues: Words64,
    ports: Words64,
    /// The first row of `core_queues` of this map.
    first_row: usize,
    /// The kernel reports the packets that other cores have done.
    counted: bool,
    /// The kernel's id of the map of flow rules' cores, which hands packets over while flow rules are in charge; 0: they
    /// are not.
    map_of_rules: AtomicU32,
    state: Mutex<SplitQueues>,
}

#[derive(Default)]
struct SplitQueues {
    made: BTreeSet<CoreId>,
    rows: BTreeMap<QueueId, usize>,
    /// Queues that were joined, but whose packets may still wait on other cores: each place, and since when it has
    /// its value.
    joining: BTreeMap<QueueId, [(u64, Duration); BUCKETS]>,
    /// Queues whose cores may be helped.
    prepared: BTreeMap<QueueId, Prepared>,
    /// When help ended, for each queue that became a split queue. At that moment the kernel plane may have been
    /// taking a step.
    ended: BTreeMap<QueueId, Duration>,
}

/// A row that is ready for a queue whose core may fall behind.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Prepared {
    row: usize,
    who: Helped,
    /// Each time that help is prepared has another number.
    number: u64,
    /// Since when it is no longer wanted. The kernel plane may still be using it.
    ended: Option<Duration>,
}

/// A queue, and who helps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helped {
    /// The core that polls it.
    pub home: CoreId,
    /// Its NAPI instance.
    pub napi: u32,
    pub help: Help,
}

/// A spilled queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spilled {
    /// The cores that have begun to help, in order.
    pub cores: Vec<CoreId>,
    /// The number of the preparation. It differs from those of earlier and later help for the same queue.
    pub number: u64,
}

impl SplitQueues {
    fn splits(&self, port: PortId) -> bool {
        self.rows.keys().any(|queue| queue.port == port)
    }

    fn free_row(&self) -> Option<usize> {
        let is_taken = |row: &usize| {
            self.rows.values().chain(self.prepared.values().map(|it| &it.row)).any(|taken| taken == row)
        };
        (0..QUEUES).find(|row| !is_taken(row))
    }
}

/// The split queues of the generation in charge, for the thread that splits queues.
#[derive(Clone, Default)]
pub struct SplitSeat(Arc<Mutex<Option<Arc<Splits>>>>);

impl SplitSeat {
    pub fn set(&self, splits: Arc<Splits>) {
        splits.begin_to_help();
        *locked(&self.0) = Some(splits);
    }

    /// The generation in charge stays, although another one had begun to take over ([`Splits::take_over`]).
    pub fn keep(&self) {
        self.get().inspect(|splits| splits.begin_to_help());
    }

    /// `None`: no port has been attached yet.
    pub fn get(&self) -> Option<Arc<Splits>> {
        locked(&self.0).clone()
    }

    /// Like [`SplitSeat::get`], but returns `None` instead of waiting for another thread.
    pub fn try_get(&self) -> Option<Arc<Splits>> {
        try_locked(&self.0)?.clone()
    }
}

impl Splits {
    /// `counted`: the kernel reports the packets that other cores have done.
    pub(super) fn new(skel: &abi::MillraceSkel<'_>, cpus: usize, counted: bool) -> Result<Splits> {
        let (maps, progs) = (&skel.maps, &skel.progs);
        let keep = |program: BorrowedFd<'_>| program.try_clone_to_owned().context("keeping a program");
        let words = |fd, row: usize, rows: usize| Mapping::new(fd, row, rows).map(Words64::from);
        Ok(Splits {
            map: MapHandle::try_from(&maps.split_cores).context("keeping the map of cores")?,
            program: keep(progs.millrace_core.as_fd())?,
            helper: progs.share_queues.autoload().then(|| keep(progs.share_queues.as_fd())).transpose()?,
            backlogs: Backlogs::open()?,
            index: words(maps.split_index.as_fd(), 8, MAX_PORTS * MAX_QUEUES)?,
            buckets: words(maps.split_queues.as_fd(), ROW * 8, QUEUES)?,
            helped: words(maps.helped_napis.as_fd(), 8, QUEUES)?,
            core_queues: words(maps.core_queues.as_fd(), cores::QUEUE * 8, 2 * cpus)?,
            ports: words(
                maps.port_index.as_fd(),
                size_of::<types::port>(),
                maps.port_index.max_entries() as usize,
            )?,
            first_row: cpus,
            counted,
            map_of_rules: AtomicU32::new(0),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, SplitQueues> {
        locked(&self.state)
    }

    fn counts_all(&self) -> bool {
        self.counted && Polls::are_counted()
    }

    /// The kernel's id of the map, which is in the names of its threads.
    pub fn map(&self) -> Result<u32> {
        Ok(self.map.info().context("asking for the map of cores that share queues")?.info.id)
    }

    /// From now on flow rules hand packets over, by this map; `None`: they do not.
    pub(super) fn set_map_of_rules(&self, map: Option<u32>) {
        self.map_of_rules.store(map.unwrap_or(0), Release);
    }

    /// The kernel's id of the map that hands packets over.
    pub fn map_in_force(&self) -> Option<u32> {
        match self.map_of_rules.load(Acquire) {
            0 => self.map().ok(),
            map => Some(map),
        }
    }

    /// Can queues of this port be split? No, if it is not attached, or in generic mode. Also no, if the kernel does not
    /// report the packets that other cores have done: then no flow can move with its packets in order.
    pub fn may_split(&self, port: PortId) -> bool {
        let hands_over = |at| self.ports.load(at) >> 48 & PORT_HANDS_OVER != 0;
        self.counts_all() && self.word_of(port).is_some_and(hands_over)
    }

    /// Calls `change` with whether a queue of this port is split or spilled. No other thread changes the port's word
    /// meanwhile.
    pub(super) fn with_port<T>(&self, port: PortId, change: impl FnOnce(bool) -> T) -> T {
        let state = self.state();
        change(self.has_shared(&state, port))
    }

    fn word_of(&self, port: PortId) -> Option<usize> {
        let is = |word: u64| word as u32 != 0 && (word >> 32) as u16 == u16::from(port);
        self.ports.as_slice().iter().position(|word| is(word.load(Acquire)))
    }

    /// Makes these cores ready to share queues: each gets a kernel thread, which sleeps until then. To start a
    /// thread takes long on a busy core, because other threads have to sleep first.
    ///
    /// # Errors
    /// A core cannot be made ready.
    pub fn make_ready(&self, cores: impl Iterator<Item = CoreId>) -> Result<()> {
        self.make(&mut self.state(), cores)
    }

    /// The cores that are ready to share queues.
    pub(super) fn ready(&self) -> BTreeSet<CoreId> {
        self.state().made.clone()
    }

    /// From now on these cores share a queue's flows: evenly, unless exactly these cores share them already. `home`
    /// polls the queue. It gets an entry in the CPU
    /// map, too, because packets may have to go through that to keep their order after the RX queue has moved. May
    /// be repeated.
    ///
    /// # Errors
    /// The port cannot hand packets over, a core cannot be made ready, or too many queues are split. The flows stay
    /// where they are.
    pub fn share(&self, queue: QueueId, home: CoreId, cores: &[CoreId]) -> Result<()> {
        let mut state = self.state();
        self.adopt(&mut state, queue);
        let (at, row) = self.room(&state, queue)?;
        self.make(&mut state, cores.iter().chain([&home]).copied())?;
        // If it is prepared and whole, it keeps its row.
        let was_prepared = state.prepared.remove(&queue).is_some();
        if was_prepared {
            self.helped.store(row, 0);
            state.ended.insert(queue, monotonic());
        }
        if state.rows.contains_key(&queue) && !state.joining.contains_key(&queue) && self.is_on(row, cores) {
            return Ok(());
        }
        if state.rows.insert(queue, row).is_none() || was_prepared {
            // All buckets stay where they are until each knows of all its packets that are under way. The kernel
            // plane may also be taking a step.
            (0..BUCKETS).for_each(|bucket| self.to(row, bucket).store(0, Release));
            self.put_in_force(queue, at, row);
            drop(state);
            std::thread::sleep(POLL);
            state = self.state();
        }
        state.joining.remove(&queue);
        let before =
            std::array::from_fn(|bucket| (self.to(row, bucket).load(Acquire) as u16).wrapping_sub(1));
        let after: [CoreId; BUCKETS] = buckets(&before, cores);
        for (bucket, core) in after.into_iter().enumerate() {
            self.to(row, bucket).store(u64::from(core) + 1, Release);
        }
        Ok(())
    }

    /// Prepares help for these queues, and for no others, at most [`PREPARED`]. Queues that are split or spilled are left as
    /// they are, unless they are being joined. `is_news`: this was just decided. Otherwise help that
    /// [`Splits::end_help_of`] ended stays ended.
    ///
    /// # Errors
    /// A core cannot be made ready. Some queues have no help then.
    pub fn prepare(&self, wanted: &BTreeMap<QueueId, Helped>, now: Duration, is_news: bool) -> Result<()> {
        let mut state = self.state();
        let gone: Vec<QueueId> =
            state.prepared.keys().filter(|queue| !wanted.contains_key(queue)).copied().collect();
        gone.into_iter().for_each(|queue| self.disarm(&mut state, queue, now));
        let mut done = Ok(());
        for (&queue, who) in wanted {
            done = done.and(self.prepare_one(&mut state, queue, who, now, is_news));
        }
        self.set_help_after(&state);
        done
    }

    /// Ends the help for a queue. The kernel plane may be taking a step at this moment.
    fn disarm(&self, state: &mut SplitQueues, queue: QueueId, now: Duration) {
        if let Some(it) = state.prepared.get_mut(&queue).filter(|it| it.ended.is_none()) {
            it.ended = Some(now);
            self.helped.store(it.row, 0);
        }
    }

    /// Ends the help for a queue without waiting, before the queue moves to another core. [`Splits::prepare`] prepares
    /// new help.
    pub fn end_help_of(&self, queue: QueueId) {
        let row = self.index.as_slice().get(index_of(queue)).map_or(0, |row| row.load(Acquire));
        if let Some(row) = row.checked_sub(1) {
            self.helped.store(row as usize, 0);
        }
    }

    fn prepare_one(
        &self,
        state: &mut SplitQueues,
        queue: QueueId,
        who: &Helped,
        now: Duration,
        is_news: bool,
    ) -> Result<()> {
        // While flows come home, others may help again: the row is in force anyway.
        let joining = state.rows.get(&queue).copied().filter(|_| state.joining.contains_key(&queue));
        if self.helper.is_none() || (state.rows.contains_key(&queue) && joining.is_none()) {
            return Ok(());
        }
        // The next call tries again.
        if joining.is_some() && state.ended.get(&queue).is_some_and(|at| now.saturating_sub(*at) < STEP_TAKES)
        {
            return Ok(());
        }
        let is_over = |it: &Prepared| is_news && self.helped.load(it.row) == 0;
        let is_same = |it: &Prepared| it.ended.is_none() && it.who == *who && !is_over(it);
        let known = state.prepared.get(&queue).map(|it| (it.row, is_same(it)));
        if known.is_some_and(|(row, is_same)| is_same || self.steps_of(row) > 0) {
            return Ok(());
        }
        let is_full = known.is_none() && state.prepared.len() >= PREPARED;
        if is_full || !self.may_split(queue.port) || usize::from(queue.index) >= MAX_QUEUES {
            return Ok(());
        }
        let row = known.map(|(row, _)| row).or(joining).or_else(|| state.free_row());
        let Some((row, at)) = row.zip(self.word_of(queue.port)) else { return Ok(()) };
        self.disarm(state, queue, now);
        self.make(state, who.help.cores.iter().copied().chain([who.home]))?;
        // The kernel plane may have taken a step of the old help. The queue is then spilled to the old helpers.
        if known.is_some() && self.steps_of(row) > 0 {
            return Ok(());
        }
        if known.is_none() {
            (0..BUCKETS).for_each(|bucket| self.to(row, bucket).store(0, Release));
            self.help_word(row, STEP).store(0, Release);
            self.index.store(index_of(queue), row as u64 + 1);
        }
        let mut buckets = [who.home; BUCKETS];
        for step in 0..who.help.cores.len() {
            buckets = who.help.buckets(&buckets, who.home, step + 1);
            for (word, four) in buckets.chunks_exact(4).enumerate() {
                let at = |index: usize| (u64::from(four[index]) + 1) << (16 * index);
                let word = STEP_TO + step * BUCKETS / 4 + word;
                self.help_word(row, word).store((0..4).map(at).sum(), Release);
            }
        }
        self.help_word(row, PORT).store(at as u64 | u64::from(queue.port) << 32, Release);
        self.help_word(row, AFTER).store(who.help.full_polls.into(), Release);
        self.help_word(row, STEPS).store(who.help.cores.len() as u64, Release);
        self.helped.store(row, u64::from(who.napi) | (u64::from(who.home) + 1) << 32);
        // Counts the preparations in all generations of tables.
        static PREPARATIONS: AtomicU64 = AtomicU64::new(0);
        let number = PREPARATIONS.fetch_add(1, AcqRel);
        state.prepared.insert(queue, Prepared { row, who: who.clone(), number, ended: None });
        Ok(())
    }

    /// Sets after how many full polls each core gets help: the fewest that one of its queues waits for.
    fn set_help_after(&self, state: &SplitQueues) {
        let mut after: BTreeMap<CoreId, u32> = state.made.iter().map(|core| (*core, 0)).collect();
        for it in state.prepared.values().filter(|it| it.ended.is_none()) {
            let polls = after.entry(it.who.home).or_default();
            *polls = if *polls == 0 { it.who.help.full_polls } else { (*polls).min(it.who.help.full_polls) };
        }
        after.into_iter().for_each(|(core, polls)| self.backlogs.help_after(core, polls));
    }

    /// The spilled queues. If another thread is changing queues, returns `None` instead of waiting.
    pub fn spilled(&self) -> Option<BTreeMap<QueueId, Spilled>> {
        let state = try_locked(&self.state)?;
        let helped = |(queue, it): (&QueueId, &Prepared)| {
            let steps = self.steps_of(it.row);
            let cores = it.who.help.cores.iter().copied().take(steps);
            (steps > 0).then(|| (*queue, Spilled { cores: cores.collect(), number: it.number }))
        };
        Some(state.prepared.iter().filter_map(helped).collect())
    }

    /// The whole queues that would be shared at once if their core fell behind, each with the cores that would help. If
    /// another thread is changing queues, returns `None` instead of waiting.
    pub fn helped(&self) -> Option<BTreeMap<QueueId, Vec<CoreId>>> {
        let state = try_locked(&self.state)?;
        let is_ready = |it: &&Prepared| self.helped.load(it.row) != 0 && self.steps_of(it.row) == 0;
        let ready = state.prepared.iter().filter(|(_, it)| is_ready(it));
        Some(ready.map(|(queue, it)| (*queue, it.who.help.cores.clone())).collect())
    }

    /// Turns these queues into split queues, if they are spilled. `None`: all spilled queues.
    pub fn adopt_spilled(&self, queues: Option<&BTreeSet<QueueId>>) {
        let mut state = self.state();
        let is_asked = |queue: &QueueId| queues.is_none_or(|queues| queues.contains(queue));
        let asked: Vec<QueueId> = state.prepared.keys().copied().filter(is_asked).collect();
        asked.into_iter().for_each(|queue| self.adopt(&mut state, queue));
    }

    /// Turns a queue into a split queue, if it is spilled.
    fn adopt(&self, state: &mut SplitQueues, queue: QueueId) {
        let Some(row) = state.prepared.get(&queue).map(|it| it.row) else { return };
        if self.steps_of(row) == 0 {
            return;
        }
        self.helped.store(row, 0);
        state.ended.insert(queue, monotonic());
        state.prepared.remove(&queue);
        state.joining.remove(&queue);
        state.rows.insert(queue, row);
        self.set_splits(queue.port);
    }

    /// Lets packets of a port look for split queues, if it may hand them over.
    fn set_splits(&self, port: PortId) {
        if let Some(at) = self.word_of(port).filter(|at| self.ports.load(*at) >> 48 & PORT_HANDS_OVER != 0) {
            self.ports.as_slice()[at].fetch_or(PORT_SPLITS << 48, AcqRel);
        }
    }

    /// Is a queue of this port split or spilled?
    fn has_shared(&self, state: &SplitQueues, port: PortId) -> bool {
        let is_spilled = |(queue, it): (&QueueId, &Prepared)| queue.port == port && self.steps_of(it.row) > 0;
        state.splits(port) || state.prepared.iter().any(is_spilled)
    }

    /// Should the buckets of a row be on all of these cores, and on no others?
    fn is_on(&self, row: usize, cores: &[CoreId]) -> bool {
        let on: BTreeSet<u64> = (0..BUCKETS).map(|bucket| self.to(row, bucket).load(Acquire)).collect();
        on == cores.iter().map(|core| u64::from(*core) + 1).collect()
    }

    fn help_word(&self, row: usize, word: usize) -> &AtomicU64 {
        &self.buckets.as_slice()[row * ROW + word]
    }

    fn steps_of(&self, row: usize) -> usize {
        self.help_word(row, STEP).load(Acquire) as usize
    }

    /// From now on this generation helps cores that fall behind.
    fn begin_to_help(&self) {
        let Some(helper) = &self.helper else { return };
        if let Err(error) = backlog::help_by(helper.as_fd()) {
            tracing::warn!("cores that fall behind get no help: {error:#}");
        }
    }

    /// From now on nobody helps cores that fall behind. If help is prepared, waits until no step is under way.
    fn end_help(&self) -> Result<()> {
        if self.helper.is_some() {
            backlog::help_by_nobody()?;
        }
        let is_armed = self.state().prepared.values().any(|it| it.ended.is_none());
        if is_armed {
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Takes over the split and spilled queues of the generation before, and prepares the same help. Call this before
    /// this generation is put in charge. No core begins to help until [`SplitSeat::set`] or [`SplitSeat::keep`]. A flow
    /// that changes its core at that moment may be reordered once.
    ///
    /// # Errors
    /// The first error of all queues, as in [`Splits::share`], or the kernel does not end the help of the generation
    /// before. The queues that failed are not split.
    pub fn take_over(&self, before: &Splits) -> Result<()> {
        if std::ptr::eq(self, before) {
            return Ok(());
        }
        let mut done = before.end_help();
        let theirs = before.state();
        let mut state = self.state();
        // An earlier attempt to put this generation in charge may have prepared them.
        let prepared: Vec<QueueId> = state.prepared.keys().copied().collect();
        prepared.into_iter().for_each(|queue| self.disarm(&mut state, queue, monotonic()));
        let is_here = |queue: &QueueId| self.word_of(queue.port).is_some();
        let is_split = |queue: &QueueId| is_here(queue) && !theirs.joining.contains_key(queue);
        for (&queue, &from) in theirs.rows.iter().filter(|(queue, _)| is_split(queue)) {
            if !state.rows.contains_key(&queue) {
                let copied = self.copy(&mut state, queue, (before, from), &theirs.made);
                done = done.and(copied.map(|row| _ = state.rows.insert(queue, row)));
            }
        }
        for (&queue, it) in theirs.prepared.iter().filter(|(queue, _)| is_here(queue)) {
            match before.steps_of(it.row) {
                0 if it.ended.is_some() || before.helped.load(it.row) == 0 => {}
                // The next look prepares it again, and reports failures.
                0 => _ = self.prepare_one(&mut state, queue, &it.who, monotonic(), true),
                steps => {
                    let copied = self.copy(&mut state, queue, (before, it.row), &theirs.made);
                    done = done.and(copied.map(|row| {
                        self.help_word(row, STEP).store(steps as u64, Release);
                        state.prepared.insert(queue, Prepared { row, ..it.clone() });
                    }));
                }
            }
        }
        done
    }

    /// Puts a row in force as it is in the generation before. `made`: the cores that may share it.
    fn copy(
        &self,
        state: &mut SplitQueues,
        queue: QueueId,
        (before, from): (&Splits, usize),
        made: &BTreeSet<CoreId>,
    ) -> Result<usize> {
        let (at, row) = self.room(state, queue)?;
        self.make(state, made.iter().copied())?;
        state.prepared.remove(&queue);
        self.helped.store(row, 0);
        for bucket in 0..BUCKETS {
            let to = before.to(from, bucket).load(Acquire);
            self.to(row, bucket).store(to, Release);
            // As if the bucket had been on that core for long. At home, packets of the poll may not have left.
            let is_home = before.place(from, bucket).load(Acquire) & HANDED == 0;
            self.place(row, bucket).store(if is_home { 0 } else { to | HANDED }, Release);
            self.bucket_word(row, bucket, POLL_WORD).store(POLL_UNKNOWN, Release);
        }
        self.put_in_force(queue, at, row);
        Ok(row)
    }

    /// The word of the queue's port, and the queue's row or a free one.
    fn room(&self, state: &SplitQueues, queue: QueueId) -> Result<(usize, usize)> {
        ensure!(self.counts_all(), "this kernel does not report the packets that other cores have done");
        let at = self.word_of(queue.port).filter(|_| self.may_split(queue.port));
        let at =
            at.context("its port is not attached, or in generic mode, which cannot hand packets over")?;
        ensure!(usize::from(queue.index) < MAX_QUEUES, "it is queue {MAX_QUEUES} or a later one");
        let known = || state.rows.get(&queue).copied().or(state.prepared.get(&queue).map(|it| it.row));
        let row = known().or_else(|| state.free_row());
        let row = row.context("too many queues are split")?;
        Ok((at, row))
    }

    fn make(&self, state: &mut SplitQueues, cores: impl Iterator<Item = CoreId>) -> Result<()> {
        for core in cores {
            if !state.made.contains(&core) {
                cores::make(&self.map, self.program.as_raw_fd(), core)?;
                state.made.insert(core);
            }
        }
        Ok(())
    }

    /// Puts a complete row in force. `at`: the word of its port.
    fn put_in_force(&self, queue: QueueId, at: usize, row: usize) {
        self.index.store(index_of(queue), row as u64 + 1);
        self.ports.as_slice()[at].fetch_or(PORT_SPLITS << 48, AcqRel);
    }

    /// Forgets the threads of cores that are offline: such a thread may run on any core from then on. The core gets
    /// a new one when it shares again.
    pub fn keep(&self, is_online: impl Fn(CoreId) -> bool, now: Duration) {
        let mut state = self.state();
        state.made.retain(|core| is_online(*core));
        let names_gone =
            |it: &Prepared| !it.who.help.cores.iter().chain([&it.who.home]).all(|core| is_online(*core));
        let gone: Vec<QueueId> =
            state.prepared.iter().filter(|(_, it)| names_gone(it)).map(|(queue, _)| *queue).collect();
        gone.into_iter().for_each(|queue| self.disarm(&mut state, queue, now));
    }

    /// Joins a queue: from now on its flows go back to the core that receives it.
    pub fn join(&self, queue: QueueId) {
        let mut state = self.state();
        if let Some(&row) = state.rows.get(&queue) {
            (0..BUCKETS).for_each(|bucket| self.to(row, bucket).store(0, Release));
            state.joining.entry(queue).or_insert([(0, Duration::ZERO); BUCKETS]);
        }
    }

    /// The queues that are split and are not being joined.
    pub fn queues(&self) -> Vec<QueueId> {
        let state = self.state();
        state.rows.keys().filter(|queue| !state.joining.contains_key(queue)).copied().collect()
    }

    /// Is a queue still being joined, or is help ending?
    pub fn is_tidying(&self) -> bool {
        let state = self.state();
        !state.joining.is_empty() || state.prepared.values().any(|it| it.ended.is_some())
    }

    /// Frees the rows of queues that were joined, once none of their packets can wait any more. `now`: CLOCK_MONOTONIC.
    pub fn tidy(&self, now: Duration) {
        let mut state = self.state();
        self.forget_ended(&mut state, now);
        for (queue, mut seen) in state.joining.clone() {
            let Some(&row) = state.rows.get(&queue) else { continue };
            if state.prepared.contains_key(&queue) && self.steps_of(row) > 0 {
                // It is spilled again.
                continue;
            }
            // The kernel plane may have taken a step at the moment when the help ended, and so set these words again.
            if !state.prepared.contains_key(&queue) {
                (0..BUCKETS).for_each(|bucket| self.to(row, bucket).store(0, Release));
            }
            let homes =
                seen.iter_mut().enumerate().map(|(bucket, seen)| self.is_home(row, bucket, seen, now));
            // `count` goes through all buckets, so each place is looked at now.
            if homes.filter(|is_home| !is_home).count() > 0 {
                state.joining.insert(queue, seen);
                continue;
            }
            state.rows.remove(&queue);
            state.joining.remove(&queue);
            state.ended.remove(&queue);
            if !state.prepared.contains_key(&queue) {
                self.index.store(index_of(queue), 0);
            }
            if let Some(at) = self.word_of(queue.port).filter(|_| !self.has_shared(&state, queue.port)) {
                self.ports.as_slice()[at].fetch_and(!(PORT_SPLITS << 48), AcqRel);
                // A queue may just have been spilled.
                if self.has_shared(&state, queue.port) {
                    self.set_splits(queue.port);
                }
            }
        }
    }

    /// Frees prepared rows that have not been wanted for [`TICKS`]: the kernel plane no longer uses them.
    fn forget_ended(&self, state: &mut SplitQueues, now: Duration) {
        let is_over = |it: &Prepared| it.ended.is_some_and(|at| now.saturating_sub(at) >= TICKS);
        let over: Vec<(QueueId, usize)> =
            state.prepared.iter().filter(|(_, it)| is_over(it)).map(|(queue, it)| (*queue, it.row)).collect();
        for (queue, row) in over {
            if self.steps_of(row) > 0 {
                // The kernel plane took a step as the help ended.
                self.adopt(state, queue);
                continue;
            }
            state.prepared.remove(&queue);
            if state.rows.contains_key(&queue) {
                continue;
            }
            self.index.store(index_of(queue), 0);
            debug_assert!((0..BUCKETS).all(|bucket| self.place(row, bucket).load(Acquire) == 0));
        }
    }

    /// Ends the bucket's place, if none of its packets can wait any more. Returns whether it did. Only for queues
    /// that are being joined. A place with [`HANDED`] does not change with each packet of a tick. One may still
    /// come after this has looked at the place, so the place must be older than a tick.
    fn is_home(&self, row: usize, bucket: usize, seen: &mut (u64, Duration), now: Duration) -> bool {
        let place = self.place(row, bucket);
        let word = place.load(Acquire);
        if seen.0 != word {
            *seen = (word, now);
        }
        let may_wait = |core: u64| {
            // With flow rules in charge, packets wait in the queue of `rule_cores`.
            let rows = [core as usize, self.first_row + core as usize];
            let is_past = |row: usize| cores::is_past(&self.core_queues, row, (word >> JIFFIES_SHIFT) as u32);
            now.saturating_sub(seen.1) < TICKS || !rows.into_iter().all(is_past)
        };
        let waits = (word & CORE).checked_sub(1).filter(|_| word & HANDED != 0).is_some_and(may_wait);
        !waits && (word == 0 || place.compare_exchange(word, 0, AcqRel, Acquire).is_ok())
    }

    fn place(&self, row: usize, bucket: usize) -> &AtomicU64 {
        self.bucket_word(row, bucket, 0)
    }

    fn to(&self, row: usize, bucket: usize) -> &AtomicU64 {
        self.bucket_word(row, bucket, TO)
    }

    fn bucket_word(&self, row: usize, bucket: usize, word: usize) -> &AtomicU64 {
        &self.buckets.as_slice()[row * ROW + BUCKET * bucket + word]
    }

    /// The counts of packets that were handed to this core.
    pub fn handed(&self, core: CoreId) -> cores::Handed {
        cores::handed(&self.core_queues, self.first_row + usize::from(core))
    }
}

fn index_of(queue: QueueId) -> usize {
    usize::from(queue.port) * MAX_QUEUES + usize::from(queue.index)
}
