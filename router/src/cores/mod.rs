//! Cores, and the queues placed on them: what there is, how busy it is, and moving queues. What to move is decided in `logic`.
//!
//! | file | what |
//! |---|---|
//! | [`machine`] | cores: NUMA nodes, sockets, hyper-threads, shared caches |
//! | [`queues`] | RX queues of a port: what polls each, where, and how it can be moved |
//! | [`irqs`] | interrupts: which queue one belongs to, where it fires |
//! | [`threads`] | threads as /proc shows them: kernel threads by name, where one may run |
//! | [`workloads`] | who else is pinned to few cores (V2) |
//! | [`affinity`] | where threads may run, asked and said |
//! | [`load`] | from counters that only grow to fractions of a control period |
//! | [`traffic`] | packets and polls of a queue |
//! | [`apply`], [`originals`] | moving a queue, and putting back what was |
//! | [`drain`] | what a queue sent before it is moved leaves first |
//! | [`look`] | what there is, found once a second |
//! | [`balancer`], [`contest`] | irqbalance; what is done about somebody else who moves queues |
//! | [`notices`] | what has changed between two looks, as events |
//! | [`watched`] | a queue and its time |
//! | [`splitting`] | queues whose flows are shared among cores |
//! | [`spreads`] | over how many queues a NIC spreads packets |
//! | [`placing`] | one control period around `logic`'s allocator: measured, decided, moved |
//! | [`serve`] | the cores of applications follow |
//! | [`local`] | local delivery follows the application |
//! | [`moderation`] | wake-ups that packets wait for together |
//! | [`polled`] | interrupts of devices that workers poll themselves |
//! | [`resume`] | how long cores that forward may take to wake up |
//! | [`shares`] | what routers may take of cores that are full |
//! | [`running`], [`exchange`] | the two threads that do this, and what they hand to each other |
//! | [`handle`] | answers to clients, in the words of [`crate::api::cores`] |
//!
//! Files are read below two [`Roots`], so that tests put a machine of their own there.

pub mod affinity;
pub mod apply;
pub mod balancer;
mod contest;
pub mod drain;
mod exchange;
#[cfg(test)]
mod fake;
pub mod handle;
pub mod irqs;
pub mod load;
pub mod local;
pub mod look;
pub mod machine;
pub mod moderation;
pub mod notices;
pub mod originals;
pub mod placing;
pub mod polled;
pub mod queues;
pub mod resume;
pub mod running;
pub mod serve;
pub mod shares;
pub mod splitting;
pub mod spreads;
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

/// Where the kernel's files are: those of processes, and those of devices in one network namespace.
#[derive(Debug)]
pub struct Roots {
    proc: PathBuf,
    sys: PathBuf,
    /// Keeps `sys` there.
    _mount: Option<OwnedFd>,
}

impl Roots {
    /// For the devices of the calling thread's namespace. /sys shows those of whoever mounted it, so a sysfs of our own is
    /// opened, and mounted nowhere; that takes `CAP_SYS_ADMIN`.
    pub fn here() -> io::Result<Roots> {
        let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let sys = format!("/proc/self/fd/{}", mount.as_raw_fd()).into();
        Ok(Roots { proc: "/proc".into(), sys, _mount: Some(mount) })
    }

    /// These two directories.
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

    /// The numbers of a device's RX queues, ascending; none of one that is not there.
    pub fn rx_queues(&self, device: &str) -> Vec<u16> {
        let queues = numbered(&self.device(device).join("queues"), "rx-").into_iter();
        queues.filter_map(|queue| u16::try_from(queue).ok()).collect()
    }
}

/// The number that a file holds; `None` if it is not there, or holds none.
fn number<T: FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The cores that a file lists; `None` if it is not there, or lists none.
fn cores(path: &Path) -> Option<BTreeSet<CoreId>> {
    cpus::parse_list(&fs::read_to_string(path).ok()?)
}

/// Numbers that names in a directory are made of, behind `prefix`, ascending; none of one that is not there.
fn numbered(directory: &Path, prefix: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix(prefix)?.parse().ok();
    let mut numbers: Vec<u32> = entries.filter_map(|entry| number(entry.file_name().to_str()?)).collect();
    numbers.sort_unstable();
    numbers
}

/// Threads, processes and devices end at any time: that is an answer, not an error.
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
