//! Queues whose flows are shared among cores (`bpf/split.h`): a CPU map of each generation, with an entry, which is a queue and a
//! kernel thread, for each core that has shared one; and which bucket of flows of a queue is where.

use super::{MAX_PORTS, Mapping, PORT_HANDS_OVER, PORT_SPLITS, Words64, cores};
use crate::abi::{self, types};
use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapHandle, libbpf_sys};
use logic::{
    cores::{
        CoreId, QueueId,
        split::{BUCKETS, buckets},
    },
    plan::PortId,
    tables::encoding::MAX_QUEUES,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    mem::offset_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    time::Duration,
};

/// Rows of `split_queues`: queues that are split at a time.
pub(crate) const QUEUES: usize = 64;
/// Words of a row, and of each of its buckets.
const ROW: usize = size_of::<types::split_queue>() / 8;
const BUCKET: usize = size_of::<types::split_bucket>() / 8;
const TO: usize = offset_of!(types::split_bucket, to) / 8;
/// As in `bpf/abi.h`.
const CORE: u64 = 0xffff;
const HANDED: u64 = 0x20000;
const JIFFIES_SHIFT: u32 = 32;
/// More than a tick of the slowest clock.
const TICKS: Duration = Duration::from_millis(50);
/// Longer than a poll of 64 packets takes.
const POLL: Duration = Duration::from_millis(20);

/// Of one generation.
pub struct Splits {
    map: MapHandle,
    /// `millrace_core`.
    program: OwnedFd,
    /// The program that counts polls; `None`: this kernel does not tell of them.
    polls: Option<OwnedFd>,
    index: Words64,
    buckets: Words64,
    core_queues: Words64,
    ports: Words64,
    /// Rows of `core_queues` before those of this map.
    first_row: usize,
    /// It is known what other cores have done.
    counted: bool,
    state: Mutex<SplitQueues>,
}

#[derive(Default)]
struct SplitQueues {
    /// Polls are counted for as long as this is kept.
    counting: Option<OwnedFd>,
    made: BTreeSet<CoreId>,
    rows: BTreeMap<QueueId, usize>,
    /// Joined, but what was handed over may still wait: what its places said, and since when.
    joining: BTreeMap<QueueId, [(u64, Duration); BUCKETS]>,
}

impl SplitQueues {
    fn splits(&self, port: PortId) -> bool {
        self.rows.keys().any(|queue| queue.port == port)
    }
}

/// Where the generation in charge is told of, to those who split queues.
#[derive(Clone, Default)]
pub struct SplitSeat(Arc<Mutex<Option<Arc<Splits>>>>);

impl SplitSeat {
    pub fn set(&self, splits: Arc<Splits>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(splits);
    }

    /// `None`: no port was attached yet.
    pub fn get(&self) -> Option<Arc<Splits>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Splits {
    /// `counted`: the kernel tells what other cores have done.
    pub(super) fn new(skel: &abi::MillraceSkel<'_>, cpus: usize, counted: bool) -> Result<Splits> {
        let (maps, progs) = (&skel.maps, &skel.progs);
        let keep = |program: BorrowedFd<'_>| program.try_clone_to_owned().context("keeping a program");
        let words = |fd, row: usize, rows: usize| Mapping::new(fd, row, rows).map(Words64::from);
        Ok(Splits {
            map: MapHandle::try_from(&maps.split_cores).context("keeping the map of cores")?,
            program: keep(progs.millrace_core.as_fd())?,
            polls: progs.poll_ended.autoload().then(|| keep(progs.poll_ended.as_fd())).transpose()?,
            index: words(maps.split_index.as_fd(), 8, MAX_PORTS * MAX_QUEUES)?,
            buckets: words(maps.split_queues.as_fd(), ROW * 8, QUEUES)?,
            core_queues: words(maps.core_queues.as_fd(), cores::QUEUE * 8, 2 * cpus)?,
            ports: words(
                maps.port_index.as_fd(),
                size_of::<types::port>(),
                maps.port_index.max_entries() as usize,
            )?,
            first_row: cpus,
            counted,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, SplitQueues> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts_all(&self) -> bool {
        self.counted && self.polls.is_some()
    }

    /// The kernel's id of the map, by which its threads are named.
    pub fn map(&self) -> Result<u32> {
        Ok(self.map.info().context("asking for the map of cores that share queues")?.info.id)
    }

    /// Can queues of this port be split? Not if it is not attached, or in generic mode; nor where the kernel does not tell what
    /// other cores have done: no flow could be moved in order.
    pub fn may_split(&self, port: PortId) -> bool {
        let hands_over = |at| self.ports.load(at) >> 48 & PORT_HANDS_OVER != 0;
        self.counts_all() && self.word_of(port).is_some_and(hands_over)
    }

    /// Changes what the program knows of a port while nobody else does, and tells whether one of its queues is split.
    pub(super) fn with_port<T>(&self, port: PortId, change: impl FnOnce(bool) -> T) -> T {
        let state = self.state();
        change(state.splits(port))
    }

    fn word_of(&self, port: PortId) -> Option<usize> {
        let is = |word: u64| word as u32 != 0 && (word >> 32) as u16 == u16::from(port);
        self.ports.as_slice().iter().position(|word| is(word.load(Acquire)))
    }

    /// These cores can share queues from now on: each has a kernel thread, which sleeps until then. To begin one takes long where cores are
    /// busy, as others have to sleep first.
    ///
    /// # Errors
    /// One cannot be made ready.
    pub fn make_ready(&self, cores: impl Iterator<Item = CoreId>) -> Result<()> {
        self.make(&mut self.state(), cores)
    }

    /// From now on these cores share a queue's flows evenly. `home` polls it: through its own CPU map's queue goes what other cores
    /// do from then on. May be repeated.
    ///
    /// # Errors
    /// Its port cannot hand packets over, a core cannot be made ready, or too many are split: nothing has changed.
    pub fn share(&self, queue: QueueId, home: CoreId, cores: &[CoreId]) -> Result<()> {
        let mut state = self.state();
        let (at, row) = self.room(&state, queue)?;
        self.make_all(&mut state, cores.iter().chain([&home]).copied())?;
        if !state.rows.contains_key(&queue) {
            // All of it stays, until no packet can be under way of which its bucket does not know.
            (0..BUCKETS).for_each(|bucket| self.to(row, bucket).store(0, Release));
            self.begin(&mut state, queue, at, row);
            std::thread::sleep(POLL);
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

    /// To be called before this generation is put in charge: the queues that are split in the one before are split in this one, from
    /// their first packet on.
    ///
    /// # Errors
    /// As [`Splits::share`]: those after it are whole.
    pub fn take_over(&self, before: &Splits) -> Result<()> {
        if std::ptr::eq(self, before) {
            return Ok(());
        }
        let theirs = before.state();
        let mut state = self.state();
        for (&queue, &from) in theirs.rows.iter().filter(|(queue, _)| !theirs.joining.contains_key(queue)) {
            if state.rows.contains_key(&queue) {
                continue;
            }
            let (at, row) = self.room(&state, queue)?;
            self.make_all(&mut state, theirs.made.iter().copied())?;
            for bucket in 0..BUCKETS {
                let to = before.to(from, bucket).load(Acquire);
                self.to(row, bucket).store(to, Release);
                // As if it had been there long.
                let is_home = before.place(from, bucket).load(Acquire) & HANDED == 0;
                self.place(row, bucket).store(if is_home { 0 } else { to | HANDED }, Release);
            }
            self.begin(&mut state, queue, at, row);
        }
        Ok(())
    }

    /// Its port's word, and its row or a free one.
    fn room(&self, state: &SplitQueues, queue: QueueId) -> Result<(usize, usize)> {
        ensure!(self.counts_all(), "this kernel does not tell what other cores have done");
        let at = self.word_of(queue.port).filter(|_| self.may_split(queue.port));
        let at =
            at.context("its port is not attached, or in generic mode, whose packets stay where they are")?;
        ensure!(usize::from(queue.index) < MAX_QUEUES, "it is queue {MAX_QUEUES} or a later one");
        let free = (0..QUEUES).find(|row| !state.rows.values().any(|taken| taken == row));
        let row = state.rows.get(&queue).copied().or(free).context("too many queues are split")?;
        Ok((at, row))
    }

    /// Packets can be handed to these cores from now on.
    fn make_all(&self, state: &mut SplitQueues, cores: impl Iterator<Item = CoreId>) -> Result<()> {
        if let (None, Some(polls)) = (&state.counting, &self.polls) {
            state.counting = Some(listen(polls.as_fd()).context("counting polls")?);
        }
        self.make(state, cores)
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

    /// The row is complete: packets go by it.
    fn begin(&self, state: &mut SplitQueues, queue: QueueId, at: usize, row: usize) {
        state.rows.insert(queue, row);
        self.index.store(index_of(queue), row as u64 + 1);
        self.ports.as_slice()[at].fetch_or(PORT_SPLITS << 48, AcqRel);
    }

    /// The thread of a core that goes offline may run anywhere from then on: the core gets a new one when it shares again.
    pub fn keep(&self, is_online: impl Fn(CoreId) -> bool) {
        self.state().made.retain(|core| is_online(*core));
    }

    /// From now on a queue's flows go back to the core that receives it.
    pub fn join(&self, queue: QueueId) {
        let mut state = self.state();
        if let Some(&row) = state.rows.get(&queue) {
            (0..BUCKETS).for_each(|bucket| self.to(row, bucket).store(0, Release));
            state.joining.entry(queue).or_insert([(0, Duration::ZERO); BUCKETS]);
        }
    }

    /// The queues that are split, and not being joined.
    pub fn queues(&self) -> Vec<QueueId> {
        let state = self.state();
        state.rows.keys().filter(|queue| !state.joining.contains_key(queue)).copied().collect()
    }

    /// Is one still being joined?
    pub fn is_tidying(&self) -> bool {
        !self.state().joining.is_empty()
    }

    /// Gives up the rows of queues that were joined, once none of their packets can wait any more.
    /// `now`: CLOCK_MONOTONIC.
    pub fn tidy(&self, now: Duration) {
        let mut state = self.state();
        for (queue, mut seen) in state.joining.clone() {
            let Some(&row) = state.rows.get(&queue) else { continue };
            let homes =
                seen.iter_mut().enumerate().map(|(bucket, seen)| self.is_home(row, bucket, seen, now));
            // All of them: each is seen now.
            if homes.filter(|is_home| !is_home).count() > 0 {
                state.joining.insert(queue, seen);
                continue;
            }
            state.rows.remove(&queue);
            state.joining.remove(&queue);
            self.index.store(index_of(queue), 0);
            if let Some(at) = self.word_of(queue.port).filter(|_| !state.splits(queue.port)) {
                self.ports.as_slice()[at].fetch_and(!(PORT_SPLITS << 48), AcqRel);
            }
        }
        if state.rows.is_empty() {
            state.counting = None;
        }
    }

    /// Ends the bucket's place, if nothing of it can wait any more. Only while it is joined. A place that is handed says the same
    /// for all packets of a tick, so that one may come after it was looked at: it must be older than that.
    fn is_home(&self, row: usize, bucket: usize, seen: &mut (u64, Duration), now: Duration) -> bool {
        let place = self.place(row, bucket);
        let word = place.load(Acquire);
        if seen.0 != word {
            *seen = (word, now);
        }
        let may_wait = |core: u64| {
            // In the queue of flow rules, if these are in charge.
            let rows = [core as usize, self.first_row + core as usize];
            let is_past = |row: usize| cores::is_past(&self.core_queues, row, (word >> JIFFIES_SHIFT) as u32);
            now.saturating_sub(seen.1) < TICKS || !rows.into_iter().all(is_past)
        };
        let waits = (word & CORE).checked_sub(1).filter(|_| word & HANDED != 0).is_some_and(may_wait);
        !waits && (word == 0 || place.compare_exchange(word, 0, AcqRel, Acquire).is_ok())
    }

    fn place(&self, row: usize, bucket: usize) -> &AtomicU64 {
        &self.buckets.as_slice()[row * ROW + BUCKET * bucket]
    }

    fn to(&self, row: usize, bucket: usize) -> &AtomicU64 {
        &self.buckets.as_slice()[row * ROW + BUCKET * bucket + TO]
    }

    /// Packets that were handed over, and those of them that found a queue full.
    pub fn handed(&self, core: CoreId) -> cores::Handed {
        cores::handed(&self.core_queues, self.first_row + usize::from(core))
    }
}

/// Attaches a loaded program to the tracepoint it was written for, until the descriptor is closed.
fn listen(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: takes no name for such a program, which was loaded with its tracepoint.
    let fd = unsafe { libbpf_sys::bpf_raw_tracepoint_open(ptr::null(), program.as_raw_fd()) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn index_of(queue: QueueId) -> usize {
    usize::from(queue.port) * MAX_QUEUES + usize::from(queue.index)
}
