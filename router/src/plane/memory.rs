//! BPF array maps mapped into this process, as slices of atomic words.
//!
//! The kernel plane reads (and, for counters, writes) the same memory at the same time, so every word is an atomic.
//! `unsafe` is needed to turn a mapping into a slice; bounds and alignment are checked once, here.
//!
//! Readers in the kernel use no barriers (`bpf/tables.h`). They rely on a machine that does not reorder loads. x86-64
//! does not; this file does not compile for other machines.

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "the kernel plane reads its tables without barriers, so it needs a machine that does loads and stores in order: x86-64"
);

use super::Settings;
use crate::abi::{self, types};
use anyhow::{Context, Result};
use logic::memory::{Memory, words};
use memmap2::{MmapOptions, MmapRaw};
use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

/// A mapped array map.
pub struct Mapping {
    map: MmapRaw,
    bytes: usize,
}

impl Mapping {
    /// Maps `rows` rows of `row_bytes` (a multiple of 8, as the kernel pads rows to).
    pub fn new(fd: BorrowedFd<'_>, row_bytes: usize, rows: usize) -> Result<Mapping> {
        let bytes = row_bytes.next_multiple_of(8) * rows;
        let map = MmapOptions::new()
            .len(bytes)
            .map_raw(fd.as_raw_fd())
            .with_context(|| format!("mapping {bytes} bytes of a BPF map"))?;
        Ok(Mapping { map, bytes })
    }

    /// Memory without a map, all zero.
    pub fn anonymous(bytes: usize) -> Result<Mapping> {
        let map = MmapOptions::new().len(bytes).map_anon().context("mapping memory")?;
        Ok(Mapping { map: map.into(), bytes })
    }

    pub(super) fn words<T>(&self) -> &[T] {
        const { assert!(size_of::<T>() == 4 || size_of::<T>() == 8) };
        // SAFETY: the mapping is page-aligned, at least `bytes` long, readable and writable, and lives as long as
        // `self`; T is AtomicU32 or AtomicU64 (the only uses), valid for any bits and for concurrent writers.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.bytes / size_of::<T>()) }
    }
}

/// A mapping seen as u64 words.
pub struct Words64(Mapping);

impl From<Mapping> for Words64 {
    fn from(mapping: Mapping) -> Self {
        Words64(mapping)
    }
}

impl Words64 {
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }
    pub fn load(&self, at: usize) -> u64 {
        self.as_slice()[at].load(Ordering::Acquire)
    }
    pub fn store(&self, at: usize, value: u64) {
        self.as_slice()[at].store(value, Ordering::Release);
    }
    pub fn as_slice(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

/// [`Memory`] over the maps of one generation.
pub struct MappedMemory {
    fib: Mapping,
    fib_tails: Words64,
    nexthops: Words64,
    neighbour_index: Words64,
    interface_index: Words64,
    routers: Words64,
    firewalls: Words64,
    interface_groups: Words64,
    queues: Option<Words64>,
    policy: Words64,
}

impl MappedMemory {
    pub(super) fn new(skel: &abi::MillraceSkel<'_>, settings: &Settings) -> Result<MappedMemory> {
        let (maps, capacity) = (&skel.maps, &settings.capacity);
        let words64 = |fd: BorrowedFd<'_>, row: usize, rows: usize| Mapping::new(fd, row, rows).map(Words64);
        Ok(MappedMemory {
            fib: Mapping::new(maps.fib.as_fd(), size_of::<types::fib_block>(), capacity.fib_blocks)?,
            fib_tails: words64(maps.fib_tails.as_fd(), size_of::<types::fib_tail>(), capacity.fib_tails)?,
            nexthops: words64(maps.nexthops.as_fd(), size_of::<types::nexthop>(), capacity.nexthops)?,
            neighbour_index: words64(
                maps.neighbour_index.as_fd(),
                size_of::<types::neighbour_bucket>(),
                capacity.neighbour_buckets,
            )?,
            interface_index: words64(
                maps.interface_index.as_fd(),
                size_of::<types::interface_bucket>(),
                capacity.interface_buckets,
            )?,
            routers: words64(maps.routers.as_fd(), size_of::<types::router>(), super::MAX_ROUTERS)?,
            firewalls: words64(maps.firewalls.as_fd(), size_of::<types::firewall>(), super::MAX_ROUTERS)?,
            interface_groups: words64(maps.interface_groups.as_fd(), 8, settings.interface_rows as usize)?,
            policy: words64(maps.policy.as_fd(), 8, super::MAX_ROUTERS)?,
            queues: settings
                .queue_rows
                .then(|| {
                    let rows = logic::tables::queue_rows(super::MAX_PORTS);
                    words64(maps.queues.as_fd(), size_of::<types::queue_row>(), rows)
                })
                .transpose()?,
        })
    }
}

const _: () = {
    assert!(size_of::<types::fib_block>() == words::FIB_BLOCK * 4);
    assert!(size_of::<types::fib_tail>() == words::FIB_TAIL * 8);
    assert!(size_of::<types::nexthop>() == words::NEXTHOP * 8);
    assert!(size_of::<types::neighbour_bucket>() == words::NEIGHBOUR_BUCKET * 8);
    assert!(size_of::<types::interface_bucket>() == words::INTERFACE_BUCKET * 8);
    assert!(size_of::<types::router>() == words::ROUTER * 8);
    assert!(size_of::<types::queue_row>() == words::QUEUE_ROW * 8);
    assert!(size_of::<types::firewall>() == words::FIREWALL * 8);
};

impl Memory for MappedMemory {
    fn fib(&self) -> &[AtomicU32] {
        self.fib.words()
    }
    fn fib_tails(&self) -> &[AtomicU64] {
        self.fib_tails.as_slice()
    }
    fn nexthops(&self) -> &[AtomicU64] {
        self.nexthops.as_slice()
    }
    fn neighbour_index(&self) -> &[AtomicU64] {
        self.neighbour_index.as_slice()
    }
    fn interface_index(&self) -> &[AtomicU64] {
        self.interface_index.as_slice()
    }
    fn routers(&self) -> &[AtomicU64] {
        self.routers.as_slice()
    }
    fn firewalls(&self) -> &[AtomicU64] {
        self.firewalls.as_slice()
    }
    fn interface_groups(&self) -> &[AtomicU64] {
        self.interface_groups.as_slice()
    }
    fn policy(&self) -> &[AtomicU64] {
        self.policy.as_slice()
    }
    fn queues(&self) -> &[AtomicU64] {
        self.queues.as_ref().map(Words64::as_slice).unwrap_or_default()
    }
}
