//! Counts what paths use besides cycles (P7). Bytes of packets can always be counted. Misses of the last-level cache are
//! counted by the CPU, if perf_event_open(2) offers its counter; virtual machines often have none. A resource that is not
//! counted is not shared, and reports say how it is estimated. (`unsafe` lives here, for that system call.)

use crate::api::workers::ResourceStand;
use anyhow::{Result, anyhow};
use libbpf_sys::perf_event_attr;
use logic::paths::{Counters, NotCounted, RESOURCES, Resource, Share, Used};
use std::{
    fs::File,
    io::{self, Read},
    os::fd::FromRawFd,
};

/// include/uapi/linux/perf_event.h: PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES, PERF_FLAG_FD_CLOEXEC.
const HARDWARE: u32 = 0;
const CACHE_MISSES: u64 = 3;
const CLOSE_ON_EXEC: u64 = 8;
/// The cache line of all CPUs that we run on.
const LINE_BYTES: u64 = 64;

/// A counter of the thread that opened it. It counts while the thread runs in user space.
pub struct Counter(File);

impl Counter {
    /// Misses of the last-level cache.
    pub fn cache_misses() -> io::Result<Counter> {
        Counter::open(HARDWARE, CACHE_MISSES)
    }

    fn open(kind: u32, config: u64) -> io::Result<Counter> {
        let mut attributes = perf_event_attr { type_: kind, config, ..perf_event_attr::default() };
        attributes.size = size_of::<perf_event_attr>() as u32;
        // Otherwise, the counter needs the privilege to watch the kernel.
        attributes.set_exclude_kernel(1);
        // The counter is always on the CPU. If there are too few counters for all programs, reading it returns nothing. A
        // counter that takes turns with others would count too little.
        attributes.set_pinned(1);
        attributes.set_exclude_hv(1);
        let (this_thread, any_cpu, no_group) = (0, -1, -1);
        // SAFETY: the kernel reads `size` bytes of the attributes, which are that long, and keeps no reference to them.
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
        // SAFETY: the descriptor is new, and nothing else owns it.
        let counter = Counter(unsafe { File::from_raw_fd(fd) });
        counter.read()?;
        Ok(counter)
    }

    /// The count since the counter was opened.
    fn read(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        let taken = |_| io::Error::other("the CPU has too few counters for all programs that want one");
        (&self.0).read_exact(&mut bytes).map_err(taken)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// The count, as use of resources; unknown if it cannot be read.
    pub fn used(&self) -> Used {
        let Ok(misses) = self.read() else { return Used::default() };
        let memory = misses.saturating_mul(LINE_BYTES);
        Used::default().with(Resource::CacheMisses, misses).with(Resource::Memory, memory)
    }
}

/// What a worker of this thread counts if it shares this resource: cycles and I/O always, and cache misses if it shares what
/// they measure.
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

/// The CPU's counter for this thread. It is needed if paths share what it measures, or if the capacity of memory bandwidth
/// is known, so that memory may be scarce.
///
/// # Errors
/// Paths cannot share this on this machine.
pub(super) fn counter(share: Share, knows_memory: bool) -> Result<Option<Counter>> {
    match share {
        Share::Always(resource) => counters(resource).map(|(_, counter)| counter),
        // [`counts_misses`] reports why there is none; memory is never found scarce then.
        Share::Scarce => Ok(Counter::cache_misses().ok().filter(|_| knows_memory)),
    }
}

/// Checks that paths can share this.
///
/// # Errors
/// Paths cannot share this on this machine.
pub fn check(share: Share) -> Result<()> {
    counter(share, false).map(drop)
}

fn refused(resource: Resource, error: &io::Error) -> anyhow::Error {
    anyhow!("{} ({})", NotCounted { resource }, no_counter(error))
}

fn no_counter(error: &io::Error) -> String {
    let way_out = match error.kind() {
        io::ErrorKind::PermissionDenied => " (needs CAP_PERFMON, or kernel.perf_event_paranoid of 2 at most)",
        _ => "",
    };
    format!("the CPU has no counter of cache misses that we may use: perf_event_open: {error}{way_out}")
}

/// Workers of this machine read the CPU's counter; `Err`: why they do not.
pub(super) fn counts_misses(share: Share, knows_memory: bool) -> Result<(), String> {
    match share {
        Share::Always(Resource::Memory | Resource::CacheMisses) => {}
        Share::Always(_) => return Err("counted only if paths share memory bandwidth or cache misses".into()),
        Share::Scarce if knows_memory => {}
        Share::Scarce => {
            return Err("counted only if the capacity of memory is known (`millrace calibrate`)".into());
        }
    }
    Counter::cache_misses().map(drop).map_err(|error| no_counter(&error))
}

/// All resources, if paths always share cycles.
pub fn resources() -> Vec<ResourceStand> {
    let share = Share::Always(Resource::Cycles);
    let io = Err("paths share cycles".to_owned());
    RESOURCES.map(|resource| stand(resource, &counts_misses(share, false), &io)).to_vec()
}

/// The report of one resource. `misses` and `io` are errors if these are not counted, and say why.
pub(super) fn stand(
    resource: Resource,
    misses: &Result<(), String>,
    io: &Result<(), String>,
) -> ResourceStand {
    let (counted, basis) = match (resource, misses, io) {
        (Resource::Cycles, _, _) => (true, "the clock, around every run".into()),
        (Resource::Io, _, Ok(())) => (true, "bytes of packets: received, and given to a port".into()),
        (Resource::Io, _, Err(why)) => (false, format!("measured in a few runs only, not counted: {why}")),
        (Resource::CacheMisses, Ok(()), _) => {
            (true, "the CPU's counter of last-level cache misses, around measured runs".into())
        }
        (Resource::Memory, Ok(()), _) => {
            (true, "cache misses, 64 bytes each; data that is written back is not included".into())
        }
        (Resource::CacheMisses, Err(why), _) => (false, format!("not known: {why}")),
        (Resource::Memory, Err(why), _) => {
            (false, format!("estimated by the bytes of I/O, as if only packets went through memory: {why}"))
        }
    };
    ResourceStand { resource: resource.to_string(), counted, basis, ..ResourceStand::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS: an event of every kernel.
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
        // Pages may be larger.
        assert!((1..=2 * pages as u64).contains(&faults), "{faults} {}", memory[4096]);
        let quiet = counter.used();
        assert_eq!(counter.used().since(&quiet).get(Resource::Memory), Some(0));
    }

    #[test]
    fn an_event_that_the_kernel_lacks_is_an_error() {
        let error = Counter::open(SOFTWARE, 4711).err().expect("no such event").to_string();
        assert!(error.contains("No such file") || error.contains("Invalid argument"), "{error}");
    }

    #[test]
    fn a_resource_that_is_not_counted_is_reported_with_its_estimate_and_refused() {
        let told = |counter: Result<(), String>| {
            let stands = RESOURCES.map(|resource| stand(resource, &counter, &Ok(())));
            stands.map(|stand| (stand.resource, stand.counted, stand.basis)).to_vec()
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
             (the CPU has no counter of cache misses that we may use: perf_event_open: No such file or directory (os error 2))"
        );
    }

    #[test]
    fn a_counter_that_is_not_read_is_not_reported_as_counted() {
        let counted: Vec<_> = resources().into_iter().map(|stand| stand.counted).collect();
        assert_eq!(counted, [true, false, false, false]);
        for (share, knows_memory, why) in [
            (Share::Always(Resource::Io), true, "counted only if paths share"),
            (Share::Scarce, false, "(`millrace calibrate`)"),
        ] {
            assert!(counts_misses(share, knows_memory).unwrap_err().contains(why));
            assert!(counter(share, false).unwrap().is_none());
        }
        let has_one = Counter::cache_misses().is_ok();
        assert_eq!(counts_misses(Share::Scarce, true).is_ok(), has_one);
        assert_eq!(counter(Share::Scarce, true).unwrap().is_some(), has_one);
        let denied = no_counter(&io::Error::from_raw_os_error(libc::EACCES));
        assert!(denied.ends_with("perf_event_paranoid of 2 at most)"), "{denied}");
    }

    #[test]
    fn cycles_and_io_are_always_shared() {
        for share in [Share::Scarce, Share::Always(Resource::Cycles), Share::Always(Resource::Io)] {
            check(share).unwrap();
        }
        // This depends on the machine.
        for resource in [Resource::Memory, Resource::CacheMisses] {
            assert_eq!(check(Share::Always(resource)).is_ok(), Counter::cache_misses().is_ok());
        }
    }
}
