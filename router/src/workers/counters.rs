//! What paths use beside cycles (P7), and how this machine tells: bytes of packets are counted always, misses of the last cache by the CPU's
//! counter, if perf_event_open(2) has it: virtual machines often have none. What is not counted is not shared, and it is said what stands in its
//! place. (`unsafe` lives here, for that system call.)

use anyhow::{Result, anyhow};
use libbpf_sys::perf_event_attr;
use logic::paths::{Counters, NotCounted, RESOURCES, Resource, Used};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, Read},
    os::fd::FromRawFd,
};

/// include/uapi/linux/perf_event.h: PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES, PERF_FLAG_FD_CLOEXEC.
const HARDWARE: u32 = 0;
const CACHE_MISSES: u64 = 3;
const CLOSE_ON_EXEC: u64 = 8;
/// Of all CPUs that we run on.
const LINE_BYTES: u64 = 64;

/// A resource, and what is known of it here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceStand {
    pub resource: String,
    /// Can paths share it fairly?
    pub counted: bool,
    /// How it is counted; or why it is not, and what is estimated in its place.
    pub basis: String,
}

/// A counter of the thread that opened it, while that runs in user space.
pub struct Counter(File);

impl Counter {
    /// Misses of the last cache.
    pub fn cache_misses() -> io::Result<Counter> {
        Counter::open(HARDWARE, CACHE_MISSES)
    }

    fn open(kind: u32, config: u64) -> io::Result<Counter> {
        let mut attributes = perf_event_attr { type_: kind, config, ..perf_event_attr::default() };
        attributes.size = size_of::<perf_event_attr>() as u32;
        // Without it the counter may be had only by those who may watch the kernel.
        attributes.set_exclude_kernel(1);
        attributes.set_exclude_hv(1);
        let (this_thread, any_cpu, no_group) = (0, -1, -1);
        // SAFETY: the kernel reads `size` bytes of the attributes, which are that long, and keeps nothing of them.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                this_thread,
                any_cpu,
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is new, and nobody else's.
        Ok(Counter(unsafe { File::from_raw_fd(fd) }))
    }

    /// Since it was opened.
    fn read(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        (&self.0).read_exact(&mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// The same as what was used.
    pub fn used(&self) -> Used {
        let Ok(misses) = self.read() else { return Used::default() };
        let memory = misses.saturating_mul(LINE_BYTES);
        Used::default().with(Resource::CacheMisses, misses).with(Resource::Memory, memory)
    }
}

/// What a worker of this thread counts: what it shares by, and what always is. A counter of the CPU is read only where that is shared.
///
/// # Errors
/// Paths cannot share this on this machine.
pub fn counters(share: Resource) -> Result<(Counters, Option<Counter>)> {
    let always = Counters::CYCLES.with(Resource::Io);
    if always.has(share) {
        return Ok((always, None));
    }
    let counter = Counter::cache_misses().map_err(|error| refused(share, &error))?;
    Ok((always.with(Resource::CacheMisses).with(Resource::Memory), Some(counter)))
}

/// # Errors
/// Paths cannot share this on this machine.
pub fn check(share: Resource) -> Result<()> {
    counters(share).map(drop)
}

fn refused(resource: Resource, error: &io::Error) -> anyhow::Error {
    anyhow!("{} ({})", NotCounted { resource }, no_counter(error))
}

fn no_counter(error: &io::Error) -> String {
    let way_out = match error.kind() {
        io::ErrorKind::PermissionDenied => " (needs CAP_PERFMON, or kernel.perf_event_paranoid of 2 at most)",
        _ => "",
    };
    format!("its CPU has no counter of cache misses for us: perf_event_open: {error}{way_out}")
}

/// All of them, on this machine, where paths share this one: a counter of the CPU is read only for that.
pub fn resources(share: Resource) -> Vec<ResourceStand> {
    stands(&match share {
        Resource::Memory | Resource::CacheMisses => {
            Counter::cache_misses().map(drop).map_err(|error| no_counter(&error))
        }
        Resource::Cycles | Resource::Io => Err("counted only where paths share it, or cache misses".into()),
    })
}

fn stands(counter: &Result<(), String>) -> Vec<ResourceStand> {
    let of = |resource: Resource| {
        let (counted, basis) = match (resource, counter) {
            (Resource::Cycles, _) => (true, "the clock, around every run".into()),
            (Resource::Io, _) => (true, "bytes of packets, as they came and as they left by a port".into()),
            (Resource::CacheMisses, Ok(())) => {
                (true, "the CPU's counter of last-level cache misses, around runs that are measured".into())
            }
            (Resource::Memory, Ok(())) => {
                (true, "cache misses, 64 bytes each; what is written back is not in it".into())
            }
            (Resource::CacheMisses, Err(why)) => (false, format!("not known: {why}")),
            (Resource::Memory, Err(why)) => (
                false,
                format!(
                    "estimated by the bytes of I/O, as if nothing but packets went through memory: {why}"
                ),
            ),
        };
        ResourceStand { resource: resource.to_string(), counted, basis }
    };
    RESOURCES.map(of).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS: what every kernel has.
    const SOFTWARE: u32 = 1;
    const PAGE_FAULTS: u64 = 2;

    #[test]
    fn a_counter_counts_what_its_thread_does() {
        let counter = Counter::open(SOFTWARE, PAGE_FAULTS).unwrap();
        let before = counter.used();
        let pages = 500;
        let mut memory = memmap2::MmapMut::map_anon(pages * 4096).unwrap();
        memory.chunks_mut(4096).for_each(|page| page[0] = 1);
        let faults = counter.used().since(&before).get(Resource::CacheMisses).unwrap();
        // Pages may be larger ones.
        assert!((1..=2 * pages as u64).contains(&faults), "{faults} {}", memory[4096]);
        let quiet = counter.used();
        assert_eq!(counter.used().since(&quiet).get(Resource::Memory), Some(0));
    }

    #[test]
    fn what_the_kernel_has_not_is_an_error() {
        let error = Counter::open(SOFTWARE, 4711).err().expect("no such event").to_string();
        assert!(error.contains("No such file") || error.contains("Invalid argument"), "{error}");
    }

    #[test]
    fn what_is_not_counted_is_told_with_what_stands_in_its_place_and_refused() {
        let told = |counter: Result<(), String>| {
            stands(&counter)
                .into_iter()
                .map(|stand| (stand.resource, stand.counted, stand.basis))
                .collect::<Vec<_>>()
        };
        let with = told(Ok(()));
        assert!(with.iter().all(|(_, counted, _)| *counted), "{with:?}");
        let without = told(Err(no_counter(&io::Error::from_raw_os_error(libc::ENOENT))));
        let counted: Vec<_> =
            without.iter().map(|(resource, counted, _)| (resource.as_str(), *counted)).collect();
        let expected = [
            ("CPU cycles", true),
            ("memory bandwidth", false),
            ("I/O bandwidth", true),
            ("cache misses", false),
        ];
        assert_eq!(counted, expected);
        assert!(
            without[1].2.starts_with("estimated by the bytes of I/O")
                && without[1].2.contains("No such file")
        );
        assert_eq!(
            refused(Resource::Memory, &io::Error::from_raw_os_error(libc::ENOENT)).to_string(),
            "paths cannot share memory bandwidth fairly: this machine does not count what each of them uses of it \
             (its CPU has no counter of cache misses for us: perf_event_open: No such file or directory (os error 2))"
        );
    }

    #[test]
    fn what_is_not_read_is_not_called_counted() {
        let counted: Vec<_> = resources(Resource::Io).into_iter().map(|stand| stand.counted).collect();
        assert_eq!(counted, [true, false, true, false]);
        let denied = no_counter(&io::Error::from_raw_os_error(libc::EACCES));
        assert!(denied.ends_with("perf_event_paranoid of 2 at most)"), "{denied}");
    }

    #[test]
    fn cycles_and_io_are_always_shared() {
        for resource in [Resource::Cycles, Resource::Io] {
            check(resource).unwrap();
        }
        // As this machine has it.
        for resource in [Resource::Memory, Resource::CacheMisses] {
            assert_eq!(check(resource).is_ok(), Counter::cache_misses().is_ok());
        }
    }
}
