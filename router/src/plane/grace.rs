//! Waiting until no running program can still see an unpublished entry.

use crate::base::priority::set_policy;
use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys::bpf_map_create_opts};
use logic::cpus::parse_list;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

/// Waits for the programs that run now.
///
/// An XDP program runs with softirqs disabled for its whole burst of packets, and no thread can run on its CPU
/// meanwhile. So once the calling thread has run on each CPU, all those programs have ended. This takes a context
/// switch for each CPU, some ten microseconds. At the highest real-time priority the thread waits for one burst at
/// most, but it waits for ever behind a thread of that priority that never sleeps. The same holds for the thread of
/// a core that packets are handed to, while it runs the program (`cpu_map_bpf_prog_run`, kernel/bpf/cpumap.c).
/// Packets that wait in the core's queue are not decided yet; the program will use the tables as they are then.
///
/// RCU would also do. It takes from eight milliseconds on an idle machine (HZ = 250) to hundreds on one that
/// forwards without a pause. It is used if threads run in the middle of softirqs (`PREEMPT_RT`), and if this
/// process may not run on a CPU (cpusets, a CPU that goes offline).
pub struct Grace {
    preemptible: bool,
    outer: MapHandle,
    inner: MapHandle,
}

impl Grace {
    /// Makes the two one-slot maps that it needs to wait for RCU.
    pub fn new() -> Result<Grace> {
        let mut opts =
            bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
        let inner = MapHandle::create(MapType::Array, Some("grace_inner"), 4, 4, 1, &opts)
            .context("creating a map to wait on")?;
        opts.inner_map_fd = inner.as_fd().as_raw_fd() as u32;
        let outer = MapHandle::create(MapType::ArrayOfMaps, Some("grace_outer"), 4, 4, 1, &opts)
            .context("creating a map of maps to wait on")?;
        let preemptible = rustix::system::uname().version().to_string_lossy().contains("PREEMPT_RT");
        Ok(Grace { preemptible, outer, inner })
    }

    /// Returns when every program that was running at the call has ended.
    ///
    /// # Errors
    /// The kernel cannot wait.
    pub fn wait(&self) -> Result<()> {
        if !self.preemptible {
            match visit_all_cpus() {
                Ok(()) => return Ok(()),
                Err(error) => tracing::debug!("cannot visit all CPUs, so this waits for RCU: {error}"),
            }
        }
        self.wait_for_rcu()
    }

    /// Updates a map of maps. The kernel then waits for RCU readers (`maybe_wait_bpf_programs`,
    /// kernel/bpf/syscall.c, since 4.12), in every configuration. `membarrier` would do the same, but fails on
    /// machines with `nohz_full`.
    fn wait_for_rcu(&self) -> Result<()> {
        let inner = self.inner.as_fd().as_raw_fd().to_ne_bytes();
        self.outer.update(&[0; 4], &inner, MapFlags::ANY).context("waiting for running programs")
    }
}

/// Returns when the calling thread has run on each CPU that is online.
fn visit_all_cpus() -> io::Result<()> {
    let online = online_cpus()?;
    let _before = Scheduling::hurry()?;
    for cpu in online {
        let mut only = CpuSet::new();
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::other(format!("CPU {cpu} is beyond {}", CpuSet::MAX_CPU)));
        }
        only.set(cpu);
        sched_setaffinity(None, &only)?;
        if sched_getcpu() != cpu {
            return Err(io::Error::other(format!("CPU {cpu} was not visited")));
        }
    }
    Ok(())
}

/// The CPUs that are online, ascending.
pub fn online_cpus() -> io::Result<Vec<usize>> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    let cpus = parse_list(&online).filter(|cpus| !cpus.is_empty());
    let cpus = cpus.ok_or_else(|| io::Error::other(format!("CPUs online: {online}")))?;
    Ok(cpus.into_iter().map(usize::from).collect())
}

/// The affinity and the scheduling policy of the calling thread, restored on drop.
struct Scheduling {
    cpus: CpuSet,
    policy: libc::c_int,
    priority: libc::c_int,
}

impl Scheduling {
    /// Sets real-time priority, if the kernel allows that. Otherwise a busy CPU takes longer to run the thread.
    fn hurry() -> io::Result<Scheduling> {
        let cpus = sched_getaffinity(None)?;
        let mut parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: of the calling thread, into a struct of ours.
        let policy = unsafe {
            libc::sched_getparam(0, &raw mut parameters);
            libc::sched_getscheduler(0)
        };
        if policy < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: asks for a constant of the kernel's.
        let highest = unsafe { libc::sched_get_priority_max(libc::SCHED_FIFO) };
        let _ = set_policy(libc::SCHED_FIFO, highest);
        Ok(Scheduling { cpus, policy, priority: parameters.sched_priority })
    }
}

impl Drop for Scheduling {
    fn drop(&mut self) {
        if let Err(error) = sched_setaffinity(None, &self.cpus) {
            tracing::warn!("a thread stays on the CPU that it visited: {error}");
        }
        // If the kernel does not allow it, the policy stays.
        let _ = set_policy(self.policy, self.priority);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_thread_that_has_visited_all_cpus_runs_where_and_as_it_did_before() {
        let here = sched_getcpu();
        let mut only = CpuSet::new();
        only.set(here);
        sched_setaffinity(None, &only).unwrap();
        let started = Instant::now();
        visit_all_cpus().unwrap();
        println!("visited in {:?}", started.elapsed());
        assert_eq!(sched_getaffinity(None).unwrap(), only);
        // SAFETY: asks about the calling thread.
        assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_OTHER);
        assert_eq!(sched_getcpu(), here);
    }
}
