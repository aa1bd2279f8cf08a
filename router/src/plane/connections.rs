//! Connections that the kernel plane forwards past the rules (`bpf/connection.h`): their maps, which outlive generations,
//! and the side of them that the daemon's thread has. [`logic::tables::connections`] writes the rows.

use super::{MAX_ROUTERS, Mapping, Words64};
use crate::abi::{self, types};
use anyhow::{Context, Result};
use libbpf_rs::{MapHandle, MapType, RingBuffer, RingBufferBuilder, libbpf_sys};
use logic::{
    connections::note::ConnectionNote,
    memory::words,
    plan::RouterId,
    tables::connections::{ConnectionMemory, ConnectionTable, rows_for},
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// The most connections of all routers, by default. One of IPv6 counts as two.
pub const DEFAULT_PAIRS: usize = 65_536;
/// The most notes of a router between two calls of [`Connections::begin_again`].
pub const CONNECTION_NOTES: u64 = 256;
/// The same for notes of packets to addresses of the router.
pub const LOCAL_NOTES: u64 = 16;
/// Rows of `connection_counts`.
const COUNTS: usize = 2 * MAX_ROUTERS;
/// The fewest rows of `candidates` for each CPU. Connections that share a row take turns.
const LEAST_CANDIDATES: usize = 16_384;
/// More rows for each CPU, for packets to addresses of the router.
pub(crate) const LOCAL_CANDIDATES: usize = 2048;
/// `CONNECTION_RING_BYTES`
const RING_BYTES: u32 = 1 << 20;

/// The maps, which all programs of all generations share.
pub struct ConnectionMaps {
    rows: MapHandle,
    counts: MapHandle,
    candidates: MapHandle,
    candidates_of_a_cpu: u32,
    notes: MapHandle,
    pairs: usize,
    seed: u64,
}

impl ConnectionMaps {
    /// Makes the maps for so many connections. They hold none. The hash gets a random seed.
    ///
    /// # Errors
    /// The kernel lacks memory or capabilities.
    pub fn new(pairs: usize) -> Result<ConnectionMaps> {
        let cpus = libbpf_rs::num_possible_cpus().context("counting CPUs")?;
        let mut seed = [0; 8];
        let filled = getrandom(&mut seed, GetRandomFlags::empty()).context("random numbers")?;
        anyhow::ensure!(filled == seed.len(), "the kernel gave {filled} random bytes in place of 8");
        let array = |name, bytes: usize, rows: usize, flags| {
            let rows = u32::try_from(rows).context("a map of more than 2^32 rows")?;
            make(MapType::Array, name, (4, bytes as u32), rows, flags)
        };
        let mapped = libbpf_sys::BPF_F_MMAPABLE;
        let candidates = candidates_for(pairs, cpus);
        Ok(ConnectionMaps {
            rows: array("connections", size_of::<types::connection>(), rows_for(pairs), mapped)?,
            counts: array("connection_counts", 8, COUNTS, mapped)?,
            candidates: array("candidates", 8, cpus * (candidates + LOCAL_CANDIDATES), 0)?,
            candidates_of_a_cpu: candidates as u32,
            notes: make(MapType::RingBuf, "connection_notes", (0, 0), RING_BYTES, 0)?,
            pairs,
            seed: u64::from_ne_bytes(seed),
        })
    }

    /// # Errors
    /// There is no descriptor left.
    pub fn try_clone(&self) -> libbpf_rs::Result<ConnectionMaps> {
        Ok(ConnectionMaps {
            rows: MapHandle::try_from(&self.rows)?,
            counts: MapHandle::try_from(&self.counts)?,
            candidates: MapHandle::try_from(&self.candidates)?,
            candidates_of_a_cpu: self.candidates_of_a_cpu,
            notes: MapHandle::try_from(&self.notes)?,
            pairs: self.pairs,
            seed: self.seed,
        })
    }

    /// Makes the programs of a plane that is being loaded use these maps.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn share(&self, open: &mut abi::OpenMillraceSkel<'_>) -> libbpf_rs::Result<()> {
        let maps = &mut open.maps;
        maps.connections.reuse_fd(self.rows.as_fd())?;
        maps.connection_counts.reuse_fd(self.counts.as_fd())?;
        maps.candidates.reuse_fd(self.candidates.as_fd())?;
        maps.connection_notes.reuse_fd(self.notes.as_fd())?;
        if let Some(constants) = maps.rodata_data.as_deref_mut() {
            constants.connection_mask = (rows_for(self.pairs) / words::CONNECTION_WAYS) as u32 - 1;
            constants.candidate_mask = self.candidates_of_a_cpu - 1;
            constants.connection_seed = self.seed;
        }
        Ok(())
    }
}

/// Rows of `candidates` for each CPU: twice as many as its equal part of the connections.
fn candidates_for(pairs: usize, cpus: usize) -> usize {
    (2 * pairs / cpus).next_power_of_two().max(LEAST_CANDIDATES)
}

pub(super) fn make(
    kind: MapType,
    name: &str,
    (key, value): (u32, u32),
    rows: u32,
    flags: u32,
) -> Result<MapHandle> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: flags,
        ..Default::default()
    };
    // The kernel takes the first 15 characters of a name.
    let short = &name[..name.len().min(15)];
    MapHandle::create(kind, Some(short), key, value, rows, &options)
        .with_context(|| format!("making the map {name}"))
}

/// The rows, mapped.
pub struct MappedConnections(Words64);

impl ConnectionMemory for MappedConnections {
    fn rows(&self) -> &[AtomicU64] {
        self.0.as_slice()
    }
}

/// The daemon's side of the maps: one thread has it.
pub struct Connections {
    memory: Arc<MappedConnections>,
    seed: u64,
    ring: RingBuffer<'static>,
    noted: Arc<Mutex<Vec<ConnectionNote>>>,
    counts: Words64,
}

impl Connections {
    /// # Errors
    /// There is no descriptor or memory left.
    pub fn open(maps: &ConnectionMaps) -> Result<Connections> {
        let noted: Arc<Mutex<Vec<ConnectionNote>>> = Arc::default();
        let mut ring = RingBufferBuilder::new();
        let notes = noted.clone();
        ring.add(&maps.notes, move |record| {
            notes.lock().unwrap_or_else(PoisonError::into_inner).extend(ConnectionNote::from_bytes(record));
            0
        })?;
        let rows = Mapping::new(maps.rows.as_fd(), size_of::<types::connection>(), rows_for(maps.pairs))?;
        Ok(Connections {
            memory: Arc::new(MappedConnections(rows.into())),
            seed: maps.seed,
            ring: ring.build().context("reading notes of connections")?,
            noted,
            counts: Mapping::new(maps.counts.as_fd(), 8, COUNTS)?.into(),
        })
    }

    /// The memory that [`logic::tables::connections::find_row`] reads, with [`Connections::seed`].
    pub fn memory(&self) -> &Arc<MappedConnections> {
        &self.memory
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The writer of the rows. It empties the table, so call this once.
    pub fn table(&self) -> ConnectionTable<Arc<MappedConnections>> {
        ConnectionTable::new(self.memory.clone(), self.seed)
    }

    /// Becomes readable when there are notes, for a thread that waits for other things as well.
    pub fn readable(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has its descriptor for as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }

    /// Notes of connections that may become fast. Waits for the first one for up to this time.
    ///
    /// # Errors
    /// The ring cannot be read.
    pub fn notes(&mut self, longest: Duration) -> Result<Vec<ConnectionNote>> {
        let read = self.ring.poll_raw(longest);
        if read < 0 && read != -libc::EINTR {
            return Err(std::io::Error::from_raw_os_error(-read)).context("reading notes of connections");
        }
        Ok(std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Gives room for [`CONNECTION_NOTES`] and [`LOCAL_NOTES`] more notes to each router that is not `behind`. Call
    /// this after [`Connections::notes`], and not too often: this limits the work that packets can cause.
    pub fn begin_again(&self, behind: impl Fn(RouterId) -> bool) {
        for (row, count) in self.counts.as_slice().iter().enumerate() {
            if count.load(Relaxed) > 0 && !behind((row % MAX_ROUTERS) as RouterId) {
                count.store(0, Relaxed);
            }
        }
    }
}
