//! Queues whose flows are shared among cores (`bpf/split.h`). Each generation has a CPU map. A core that is ready
//! to share queues has an entry there, which is a queue and a kernel thread. A row of `split_queues` says on which
//! core each bucket of flows is.

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

/// Rows of `split_queues`: the most queues that can be split at a time.
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

/// The split queues of one generation.
pub struct Splits {
    map: MapHandle,
    /// `millrace_core`.
    program: OwnedFd,
    /// The program that counts polls; `None`: this kernel does not report them.
    polls: Option<OwnedFd>,
    index: Words64,
    buckets: Words64,
    core_queues: Words64,
    ports: Words64,
    /// The first row of `core_queues` of this map.
    first_row: usize,
    /// The kernel reports the packets that other cores have done.
    counted: bool,
    state: Mutex<SplitQueues>,
}

#[derive(Default)]
struct SplitQueues {
    /// Polls are counted while this is open.
    counting: Option<OwnedFd>,
    made: BTreeSet<CoreId>,
    rows: BTreeMap<QueueId, usize>,
    /// Queues that were joined, but whose packets may still wait on other cores: each place, and since when it has
    /// its value.
    joining: BTreeMap<QueueId, [(u64, Duration); BUCKETS]>,
}

impl SplitQueues {
    fn splits(&self, port: PortId) -> bool {
        self.rows.keys().any(|queue| queue.port == port)
    }
}

/// The split queues of the generation in charge, for the thread that splits queues.
#[derive(Clone, Default)]
pub struct SplitSeat(Arc<Mutex<Option<Arc<Splits>>>>);

impl SplitSeat {
    pub fn set(&self, splits: Arc<Splits>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(splits);
    }

    /// `None`: no port has been attached yet.
    pub fn get(&self) -> Option<Arc<Splits>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
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

    /// The kernel's id of the map, which is in the names of its threads.
    pub fn map(&self) -> Result<u32> {
        Ok(self.map.info().context("asking for the map of cores that share queues")?.info.id)
    }

    /// Can queues of this port be split? No, if it is not attached, or in generic mode. Also no, if the kernel does not
    /// report the packets that other cores have done: then no flow can move with its packets in order.
    pub fn may_split(&self, port: PortId) -> bool {
        let hands_over = |at| self.ports.load(at) >> 48 & PORT_HANDS_OVER != 0;
        self.counts_all() && self.word_of(port).is_some_and(hands_over)
    }

    /// Calls `change`, with whether a queue of this port is split, while no other thread changes the port's word.
    pub(super) fn with_port<T>(&self, port: PortId, change: impl FnOnce(bool) -> T) -> T {
        let state = self.state();
        change(state.splits(port))
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

    /// From now on these cores share a queue's flows evenly. `home` polls the queue. It gets an entry in the CPU
    /// map, too, because packets may have to go through that to keep their order after the RX queue has moved. May
    /// be repeated.
    ///
    /// # Errors
    /// The port cannot hand packets over, a core cannot be made ready, or too many queues are split; nothing has
    /// changed.
    pub fn share(&self, queue: QueueId, home: CoreId, cores: &[CoreId]) -> Result<()> {
        let mut state = self.state();
        let (at, row) = self.room(&state, queue)?;
        self.make_all(&mut state, cores.iter().chain([&home]).copied())?;
        if !state.rows.contains_key(&queue) {
            // All buckets stay, until each knows of all its packets that are under way.
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

    /// Splits the queues that are split in the generation before, from this generation's first packet on. Call this
    /// before this generation is put in charge.
    ///
    /// # Errors
    /// As [`Splits::share`]. The queues after the failed one are not split.
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
                // As if the bucket had been on that core for long.
                let is_home = before.place(from, bucket).load(Acquire) & HANDED == 0;
                self.place(row, bucket).store(if is_home { 0 } else { to | HANDED }, Release);
            }
            self.begin(&mut state, queue, at, row);
        }
        Ok(())
    }

    /// The word of the queue's port, and the queue's row or a free one.
    fn room(&self, state: &SplitQueues, queue: QueueId) -> Result<(usize, usize)> {
        ensure!(self.counts_all(), "this kernel does not report the packets that other cores have done");
        let at = self.word_of(queue.port).filter(|_| self.may_split(queue.port));
        let at =
            at.context("its port is not attached, or in generic mode, which cannot hand packets over")?;
        ensure!(usize::from(queue.index) < MAX_QUEUES, "it is queue {MAX_QUEUES} or a later one");
        let free = (0..QUEUES).find(|row| !state.rows.values().any(|taken| taken == row));
        let row = state.rows.get(&queue).copied().or(free).context("too many queues are split")?;
        Ok((at, row))
    }

    /// Makes these cores ready, and begins to count polls.
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

    /// Puts a complete row in force.
    fn begin(&self, state: &mut SplitQueues, queue: QueueId, at: usize, row: usize) {
        state.rows.insert(queue, row);
        self.index.store(index_of(queue), row as u64 + 1);
        self.ports.as_slice()[at].fetch_or(PORT_SPLITS << 48, AcqRel);
    }

    /// Forgets the threads of cores that are offline: such a thread may run on any core from then on. The core gets
    /// a new one when it shares again.
    pub fn keep(&self, is_online: impl Fn(CoreId) -> bool) {
        self.state().made.retain(|core| is_online(*core));
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

    /// Is a queue still being joined?
    pub fn is_tidying(&self) -> bool {
        !self.state().joining.is_empty()
    }

    /// Frees the rows of queues that were joined, once none of their packets can wait any more. `now`: CLOCK_MONOTONIC.
    pub fn tidy(&self, now: Duration) {
        let mut state = self.state();
        for (queue, mut seen) in state.joining.clone() {
            let Some(&row) = state.rows.get(&queue) else { continue };
            let homes =
                seen.iter_mut().enumerate().map(|(bucket, seen)| self.is_home(row, bucket, seen, now));
            // `count` goes through all buckets, so each place is looked at now.
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
        &self.buckets.as_slice()[row * ROW + BUCKET * bucket]
    }

    fn to(&self, row: usize, bucket: usize) -> &AtomicU64 {
        &self.buckets.as_slice()[row * ROW + BUCKET * bucket + TO]
    }

    /// The counts of packets that were handed to this core.
    pub fn handed(&self, core: CoreId) -> cores::Handed {
        cores::handed(&self.core_queues, self.first_row + usize::from(core))
    }
}

/// Attaches a loaded program to its tracepoint, until the descriptor is closed.
fn listen(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no name for a program that was loaded with its tracepoint.
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
