//! The allowed cores and the scheduling of threads, by system calls. Asking takes a third of a microsecond; reading
//! /proc/PID/status takes a hundred times as long.

use super::CoreId;
use crate::base::priority::Urgency;
use logic::cpus::MOST_CORES;
use std::{collections::BTreeSet, io};

const WORDS: usize = MOST_CORES as usize / 64;

/// A set of cores, in the kernel's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreMask([u64; WORDS]);

impl CoreMask {
    /// The number of cores in the set.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The cores that are in both sets.
    pub fn and(&self, other: &CoreMask) -> CoreMask {
        CoreMask(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// The cores of the set, ascending.
    pub fn cores(&self) -> impl Iterator<Item = CoreId> {
        (0..MOST_CORES).filter(|&core| self.0[usize::from(core / 64)] >> (core % 64) & 1 != 0)
    }
}

impl<'a> FromIterator<&'a CoreId> for CoreMask {
    /// Ignores cores from [`MOST_CORES`] on.
    fn from_iter<I: IntoIterator<Item = &'a CoreId>>(cores: I) -> CoreMask {
        let mut mask = CoreMask([0; WORDS]);
        for core in cores {
            if let Some(word) = mask.0.get_mut(usize::from(core / 64)) {
                *word |= 1 << (core % 64);
            }
        }
        mask
    }
}

/// Reads and sets where threads may run.
pub trait Affinity {
    /// The online cores that a thread may run on; `ESRCH` if it is gone.
    fn allowed(&self, thread: u32) -> io::Result<CoreMask>;

    /// Lets a thread run on these cores only; `ESRCH` if it is gone.
    fn allow(&self, thread: u32, cores: &BTreeSet<CoreId>) -> io::Result<()>;
}

/// Reads and sets where threads may run, and their scheduling policy and priority.
pub trait Scheduling: Affinity {
    /// Reads the scheduling of a thread; `ESRCH` if it is gone.
    fn urgency(&self, thread: u32) -> io::Result<Urgency>;

    /// Sets the scheduling of a thread; `ESRCH` if it is gone.
    fn set_urgency(&self, thread: u32, urgency: Urgency) -> io::Result<()>;

    /// Sets the `nice` of a thread, and nothing else; `ESRCH` if it is gone. Unlike [`Scheduling::set_urgency`] it never
    /// waits (`__sched_setscheduler` of Linux 5.3 to 6.4 waits while cpusets change).
    fn renice(&self, thread: u32, nice: i8) -> io::Result<()>;
}

/// The kernel of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

impl Affinity for Kernel {
    fn allowed(&self, thread: u32) -> io::Result<CoreMask> {
        let mut mask = CoreMask([0; WORDS]);
        // SAFETY: the length is that of the mask, and any bits in it are valid.
        let result = unsafe {
            libc::sched_getaffinity(pid(thread)?, size_of_val(&mask.0), mask.0.as_mut_ptr().cast())
        };
        if result == 0 { Ok(mask) } else { Err(io::Error::last_os_error()) }
    }

    fn allow(&self, thread: u32, cores: &BTreeSet<CoreId>) -> io::Result<()> {
        let mask: CoreMask = cores.iter().collect();
        // SAFETY: the length is that of the mask, and the kernel only reads it.
        let result =
            unsafe { libc::sched_setaffinity(pid(thread)?, size_of_val(&mask.0), mask.0.as_ptr().cast()) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Scheduling for Kernel {
    fn urgency(&self, thread: u32) -> io::Result<Urgency> {
        Urgency::of(pid(thread)?)
    }

    fn set_urgency(&self, thread: u32, urgency: Urgency) -> io::Result<()> {
        urgency.set(pid(thread)?)
    }

    fn renice(&self, thread: u32, nice: i8) -> io::Result<()> {
        let thread = rustix::process::Pid::from_raw(pid(thread)?);
        Ok(rustix::process::setpriority_process(thread, nice.into())?)
    }
}

/// Refuses 0, which would be the calling thread.
fn pid(thread: u32) -> io::Result<libc::pid_t> {
    let found = libc::pid_t::try_from(thread).ok().filter(|pid| *pid > 0);
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_a_set() {
        let mask = |cores: &[u16]| cores.iter().collect::<CoreMask>();
        let some = mask(&[0, 63, 64, 8191, 8192]);
        assert_eq!((some.len(), Vec::from_iter(some.cores())), (4, vec![0, 63, 64, 8191]));
        assert_eq!(some.and(&mask(&[1, 64])), mask(&[64]));
        assert!(mask(&[]).is_empty() && !some.is_empty());
    }

    #[test]
    fn a_thread_is_where_it_was_put() {
        std::thread::spawn(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let first = Kernel.allowed(thread).unwrap().cores().next().unwrap();
            Kernel.allow(thread, &[first].into()).unwrap();
            assert_eq!(Vec::from_iter(Kernel.allowed(thread).unwrap().cores()), [first]);
            assert_eq!(Kernel.allow(thread, &[8191].into()).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        })
        .join()
        .unwrap();
        assert_eq!(Kernel.allowed(0).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(Kernel.allowed(u32::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn a_thread_has_the_scheduling_that_was_set() {
        std::thread::spawn(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let before = Kernel.urgency(thread).unwrap();
            assert!(before.priority == 0, "the test runs in a real-time thread: {before:?}");
            Kernel.set_urgency(thread, Urgency::usual(19)).unwrap();
            assert_eq!(Kernel.urgency(thread).unwrap(), Urgency::usual(19));
            Kernel.renice(thread, 7).unwrap();
            assert_eq!(Kernel.urgency(thread).unwrap(), Urgency::usual(7));
            assert_eq!(Kernel.urgency(u32::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        })
        .join()
        .unwrap();
    }
}
