//! Cores, and the queues placed on them: finds both, measures how busy they are, and moves queues. `logic` decides
//! what to move.
//!
//! | file | holds |
//! |---|---|
//! | [`machine`] | cores: NUMA nodes, sockets, hyper-threads, shared caches |
//! | [`queues`] | RX queues of a port: what polls each, on which core, and what can move it |
//! | [`irqs`] | interrupts: the queue of each, and the core where it fires |
//! | [`threads`] | threads as /proc shows them: kernel threads by name, allowed cores |
//! | [`workloads`] | other processes that are pinned to few cores (V2) |
//! | `cpusets` | control groups that keep cores for themselves, and processes of groups that change |
//! | [`affinity`] | reads and sets the allowed cores of threads |
//! | [`load`] | turns growing counters into fractions of a control period |
//! | [`traffic`] | packets and polls of a queue |
//! | [`apply`] | moves a queue |
//! | [`knob`], [`knobs`] | a setting of the kernel; sets these and restores them |
//! | [`drain`] | lets packets that a queue sent before a move leave first |
//! | [`look`], [`ports`], [`surroundings`] | finds queues, cores and workloads, once a second |
//! | [`balancer`], [`contest`] | irqbalance, and the reaction to other programs that move queues |
//! | [`notices`] | changes between two looks, as events |
//! | `newcomers` | pinned workloads that come and go, as events |
//! | [`watched`] | a queue and its measured time |
//! | [`splitting`] | queues whose flows are shared among cores |
//! | [`spreads`] | over how many queues a NIC spreads packets |
//! | [`placing`] | one control period: measures, asks `logic`'s allocator, moves |
//! | [`serve`] | gives applications the cores that do not forward |
//! | [`local`] | moves local delivery to the core of the application |
//! | [`moderation`] | holds interrupts back, so that several packets share one |
//! | [`polled`] | the ports that workers poll, whose interrupts are kept off |
//! | [`resume`] | limits how long forwarding cores may take to wake up |
//! | [`shares`] | limits what routers may take of full cores |
//! | [`running`], [`exchange`] | the two threads that do all this, and the data that they exchange |
//! | [`handle`] | answers to clients, in the types of [`crate::api::cores`] |
//!
//! Files are read below two [`Roots`], so that tests can provide a machine of their own.

pub mod affinity;
pub mod apply;
pub mod balancer;
mod contest;
mod cpusets;
pub mod drain;
mod exchange;
#[cfg(test)]
mod fake;
pub mod handle;
pub mod irqs;
pub mod knob;
pub mod knobs;
pub mod load;
pub mod local;
pub mod look;
pub mod machine;
pub mod moderation;
mod newcomers;
pub mod notices;
pub mod placing;
pub mod polled;
pub mod ports;
pub mod queues;
pub mod resume;
pub mod running;
pub mod serve;
pub mod shares;
pub mod splitting;
pub mod spreads;
mod surroundings;
pub mod threads;
pub mod traffic;
#[cfg(test)]
pub(crate) mod tree;
pub mod watched;
pub mod workloads;

use logic::cpus;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::{
    collections::BTreeSet,
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    str::FromStr,
};

pub use logic::cores::{CoreId, QueueId, Ring};

/// The directories of the kernel's files: /proc, and the /sys of one network namespace.
#[derive(Debug)]
pub struct Roots {
    proc: PathBuf,
    sys: PathBuf,
    /// Keeps `sys` valid.
    _mount: Option<OwnedFd>,
}

impl Roots {
    /// For the devices of the calling thread's network namespace. A sysfs shows the devices of the namespace in which it
    /// was mounted. So this opens a sysfs of its own, without a mount point, which needs `CAP_SYS_ADMIN`.
    pub fn here() -> io::Result<Roots> {
        let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let sys = format!("/proc/self/fd/{}", mount.as_raw_fd()).into();
        Ok(Roots { proc: "/proc".into(), sys, _mount: Some(mount) })
    }

    /// Uses these two directories.
    pub fn at(proc: impl Into<PathBuf>, sys: impl Into<PathBuf>) -> Roots {
        Roots { proc: proc.into(), sys: sys.into(), _mount: None }
    }

    fn proc(&self, path: impl AsRef<Path>) -> PathBuf {
        self.proc.join(path)
    }

    fn sys(&self, path: impl AsRef<Path>) -> PathBuf {
        self.sys.join(path)
    }

    /// The directory of a device.
    pub fn device(&self, name: &str) -> PathBuf {
        self.sys.join("class/net").join(name)
    }

    /// The numbers of a device's RX queues, ascending; empty if there is no such device.
    pub fn rx_queues(&self, device: &str) -> Vec<u16> {
        let queues = numbered(&self.device(device).join("queues"), "rx-").into_iter();
        queues.filter_map(|queue| u16::try_from(queue).ok()).collect()
    }
}

/// The number that a file holds; `None` if there is no such file, or no number in it.
fn number<T: FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The cores that a file lists; `None` if there is no such file, or no list in it.
fn cores(path: &Path) -> Option<BTreeSet<CoreId>> {
    cpus::parse_list(&fs::read_to_string(path).ok()?)
}

/// The numbers N of all directory entries named `prefix`N, ascending; empty if there is no such directory.
fn numbered(directory: &Path, prefix: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix(prefix)?.parse().ok();
    let mut numbers: Vec<u32> = entries.filter_map(|entry| number(entry.file_name().to_str()?)).collect();
    numbers.sort_unstable();
    numbers
}

/// Threads, processes and devices can vanish at any time, so this turns such an error into `None`.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT | libc::ENODEV))
}
