//! Whether each CPU keeps up with its queues (`bpf/backlog.h`): one map for the machine. The program that counts polls
//! writes it. Every generation of the kernel plane reads it before it drops a packet that Linux would forward. A second
//! map holds the program that shares the queues of a CPU that falls behind (`bpf/spill.h`).

use super::{Mapping, Words64};
use crate::abi::types;
use anyhow::{Context, Result};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, MapType, libbpf_sys};
use logic::cores::CoreId;
use std::{
    mem::offset_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::OnceLock,
};

/// Words of a row, and the word that says when others help.
const ROW: usize = size_of::<types::backlog>() / 8;
const HELP_AFTER: usize = offset_of!(types::backlog, help_after) / 8;

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

/// The map of the program that shares queues, made by the first call.
///
/// # Errors
/// The kernel refuses to make it.
pub(super) fn helpers() -> Result<BorrowedFd<'static>> {
    Ok(helper_map()?.as_fd())
}

fn helper_map() -> Result<&'static MapHandle> {
    static MAP: OnceLock<MapHandle> = OnceLock::new();
    if let Some(map) = MAP.get() {
        return Ok(map);
    }
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let made = MapHandle::create(MapType::ProgArray, Some("helpers"), 4, 4, 1, &options)
        .context("making the map of the program that shares queues")?;
    Ok(MAP.get_or_init(|| made))
}

/// From now on this program shares the queues of CPUs that fall behind.
///
/// # Errors
/// The kernel refuses.
pub(super) fn help_by(program: BorrowedFd<'_>) -> Result<()> {
    let fd = program.as_raw_fd().to_ne_bytes();
    let done = helper_map()?.update(&0_u32.to_ne_bytes(), &fd, MapFlags::ANY);
    done.context("putting the program that shares queues in force")
}

/// From now on no program shares the queues of CPUs that fall behind. One that runs goes on to its end.
///
/// # Errors
/// The kernel refuses.
pub(super) fn help_by_nobody() -> Result<()> {
    match helper_map()?.delete(&0_u32.to_ne_bytes()) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).context("removing the program that shares queues")
        }
        _ => Ok(()),
    }
}

/// The rows of all CPUs.
pub struct Backlogs(Words64);

impl Backlogs {
    /// # Errors
    /// The kernel refuses to make the map.
    pub fn open() -> Result<Backlogs> {
        let cpus = libbpf_rs::num_possible_cpus()?;
        Ok(Backlogs(Mapping::new(map()?, size_of::<types::backlog>(), cpus)?.into()))
    }

    /// Other cores help this CPU after this many full polls. 0: never.
    pub(super) fn help_after(&self, cpu: CoreId, full_polls: u32) {
        if let Some(word) = self.0.as_slice().get(usize::from(cpu) * ROW + HELP_AFTER) {
            word.store(full_polls.into(), std::sync::atomic::Ordering::Release);
        }
    }

    /// For tests: sets on every CPU the number of full polls in a row, and the jiffies at which the last one ended.
    #[doc(hidden)]
    pub fn set(&self, full_polls: u64, jiffies: u64) {
        for row in 0..self.0.len() / ROW {
            self.0.store(ROW * row, full_polls);
            self.0.store(ROW * row + 1, jiffies);
        }
    }
}
