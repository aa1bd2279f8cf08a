//! CPU time of kernel threads, exactly: on-CPU nanoseconds from /proc/TID/schedstat. Tick-based accounting is too coarse,
//! and wall-clock time counts other people's work on a shared machine. Beside it what is left of a core ([`Spinner`]), and
//! how often a core is taken ([`Activity`]).

mod activity;
mod spinner;

use anyhow::{Context, Result};

pub use activity::{Activity, Rates};
pub use spinner::{Spinner, Spinners, spin};

/// Kernel threads whose time is added up.
#[derive(Clone, Debug)]
pub struct Threads(pub Vec<i32>);

impl Threads {
    /// Nanoseconds they have run since they exist. While one runs, up to a scheduler tick is missing.
    pub fn on_cpu_ns(&self) -> Result<u64> {
        self.0.iter().map(|id| on_cpu_ns(*id)).sum()
    }
}

fn on_cpu_ns(thread_id: i32) -> Result<u64> {
    let path = format!("/proc/{thread_id}/schedstat");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let first = text.split_whitespace().next().and_then(|field| field.parse().ok());
    first.with_context(|| format!("{path} begins with no number"))
}

/// Threads that run cores' softirqs when they are too many for whoever raised them: ksoftirqd, and the thread of the backlog
/// where the kernel was started with `thread_backlog_napi`. What veth without NAPI queues to the backlog is received there,
/// in part; the rest, as the sink's part, in the thread that raised it.
pub fn softirq_threads(cores: &[usize]) -> Result<Vec<i32>> {
    let names = |core| [format!("ksoftirqd/{core}"), format!("backlog_napi/{core}")];
    let names: Vec<String> = cores.iter().flat_map(names).collect();
    let processes = std::fs::read_dir("/proc").context("/proc")?.flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let wanted = |id: &i32| {
        let name = std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        names.iter().any(|wanted| *wanted == name.trim_end())
    };
    Ok(ids.filter(wanted).collect())
}

/// Number of cores that are online.
pub fn online() -> Result<usize> {
    let text = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    Ok(text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count())
}
