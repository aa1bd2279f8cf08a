//! Exact CPU time of kernel threads: on-CPU nanoseconds from /proc/TID/schedstat. Tick-based accounting is too coarse,
//! and wall-clock time counts other work on a shared machine. Also what is left of a core ([`Spinner`]), and how often
//! a core is taken ([`Activity`]).

mod activity;
mod spinner;

use std::io::ErrorKind;

use anyhow::{Context, Result, bail};

use crate::sys;

pub use activity::{Activity, Rates};
pub use spinner::{Spinner, Spinners, spin};

/// Kernel threads whose time is added up.
#[derive(Clone, Debug)]
pub struct Threads(pub Vec<i32>);

impl Threads {
    /// Their times so far, in the same order; 0 for a thread that has ended.
    pub fn times(&self) -> Result<Vec<Time>> {
        self.0.iter().map(|id| time(*id)).collect()
    }
}

/// Time of a thread so far, in nanoseconds. While the thread runs, up to a scheduler tick is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Time that it ran.
    pub busy_ns: u64,
    /// Time that it could have run, while another thread had the core.
    pub waited_ns: u64,
}

impl Time {
    /// Time since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            busy_ns: self.busy_ns.saturating_sub(before.busy_ns),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
        }
    }
}

/// The least time for which something else had a core that one of these threads of a router wanted. While a thread
/// waits for another of them, nothing is taken from the router.
pub fn stolen_ns(times: &[Time]) -> u64 {
    let busy_ns: u64 = times.iter().map(|time| time.busy_ns).sum();
    let stolen = |time: &Time| time.waited_ns.saturating_sub(busy_ns - time.busy_ns);
    times.iter().map(stolen).max().unwrap_or(0)
}

fn time(thread_id: i32) -> Result<Time> {
    let path = format!("/proc/{thread_id}/schedstat");
    let Some(text) = read_of_thread(&path)? else { return Ok(Time::default()) };
    let mut fields = text.split_whitespace().map(str::parse);
    match (fields.next(), fields.next()) {
        (Some(Ok(busy_ns)), Some(Ok(waited_ns))) => Ok(Time { busy_ns, waited_ns }),
        _ => bail!("{path} does not begin with two numbers: {text}"),
    }
}

/// Reads a file of a thread. None if the thread has ended: threads of CPU maps are those of the whole machine, and end
/// with their map.
fn read_of_thread(path: &str) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| path.to_owned()),
    }
}

/// Threads that run softirqs of these cores when there are too many for the thread that raised them: ksoftirqd, and the
/// backlog thread where the kernel was started with `thread_backlog_napi`. They receive a part of the packets that veth
/// without NAPI queues to the backlog. The thread that raised the softirq receives the rest, as it does the sink's
/// part.
pub fn softirq_threads(cores: &[usize]) -> Result<Vec<i32>> {
    let names = |core| [format!("ksoftirqd/{core}"), format!("backlog_napi/{core}")];
    let names: Vec<String> = cores.iter().flat_map(names).collect();
    threads_called(|name| names.iter().any(|wanted| wanted == name))
}

/// Threads of the cores to which CPU maps hand packets.
pub fn cpu_map_threads() -> Result<Vec<i32>> {
    threads_called(|name| name.starts_with("cpumap/"))
}

/// Sets the priority of threads of CPU maps. Returns those that still exist: other daemons may have ended.
pub fn urge_cpu_map_threads(ids: Vec<i32>, level: Option<i32>) -> Result<Vec<i32>> {
    let mut there = Vec::new();
    for id in ids {
        match sys::set_realtime(id, level) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
            set => set.context("priority of a CPU map's thread")?,
        }
        there.push(id);
    }
    Ok(there)
}

fn threads_called(wanted: impl Fn(&str) -> bool) -> Result<Vec<i32>> {
    let processes = std::fs::read_dir("/proc").context("/proc")?.flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let called =
        |id: &i32| wanted(std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default().trim_end());
    Ok(ids.filter(called).collect())
}

/// Number of cores that are online.
pub fn online() -> Result<usize> {
    let text = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    Ok(text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_others_had_is_stolen() {
        let time = |busy_ns, waited_ns| Time { busy_ns, waited_ns };
        // Two threads of one router take turns, and something else had the core for 5.
        assert_eq!(stolen_ns(&[time(40, 60), time(55, 45)]), 5);
        assert_eq!(stolen_ns(&[time(40, 55), time(55, 40)]), 0);
        assert_eq!(stolen_ns(&[time(70, 30), time(0, 0)]), 30);
        assert_eq!(stolen_ns(&[]), 0);
    }
}
