//! Whether each CPU keeps up with its queues (`bpf/backlog.h`): one map for the machine. The program that counts polls
//! writes it, and every generation of the kernel plane reads it before it drops a packet that Linux would forward.

use super::{Mapping, Words64};
use crate::abi::types;
use anyhow::{Context, Result};
use libbpf_rs::{MapHandle, MapType, libbpf_sys};
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::OnceLock,
};

/// The map, made by the first call.
///
/// # Errors
/// The kernel refuses to make it.
pub(super) fn map() -> Result<BorrowedFd<'static>> {
    static MAP: OnceLock<MapHandle> = OnceLock::new();
    if let Some(map) = MAP.get() {
        return Ok(map.as_fd());
    }
    let cpus = u32::try_from(libbpf_rs::num_possible_cpus().context("counting CPUs")?)?;
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    let bytes = size_of::<types::backlog>() as u32;
    let made = MapHandle::create(MapType::Array, Some("backlogs"), 4, bytes, cpus, &options)
        .context("making the map of backlogs")?;
    // If two threads made a map, the first one stays and the other is closed.
    Ok(MAP.get_or_init(|| made).as_fd())
}

/// The rows, for tests that set them.
#[doc(hidden)]
pub struct Backlogs(Words64);

impl Backlogs {
    #[doc(hidden)]
    pub fn open() -> Result<Backlogs> {
        let cpus = libbpf_rs::num_possible_cpus()?;
        Ok(Backlogs(Mapping::new(map()?, size_of::<types::backlog>(), cpus)?.into()))
    }

    /// Sets on every CPU the number of full polls in a row, and the jiffies at which the last one ended.
    #[doc(hidden)]
    pub fn set(&self, full_polls: u64, jiffies: u64) {
        for row in 0..self.0.len() / 2 {
            self.0.store(2 * row, full_polls);
            self.0.store(2 * row + 1, jiffies);
        }
    }
}
