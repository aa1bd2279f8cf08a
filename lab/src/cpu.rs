//! CPU time of kernel threads, exactly: on-CPU nanoseconds from /proc/TID/schedstat. Tick-based accounting is too coarse,
//! and wall-clock time counts other people's work on a shared machine.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::sys;

/// Kernel threads whose time is added up.
#[derive(Clone, Debug)]
pub struct Threads(pub Vec<i32>);

impl Threads {
    /// Nanoseconds they have run since they exist. While one runs, up to a scheduler tick is missing.
    pub fn on_cpu_ns(&self) -> Result<u64> {
        self.0.iter().map(|id| on_cpu_ns(*id)).sum()
    }
}

/// A process that uses what a core has left, and nothing anybody else wants: its time is what applications could have (Q8).
/// Dropped, it ends.
pub struct Spinner(Child);

impl Spinner {
    /// Name of the hidden subcommand that is one ([`spin`]).
    pub const COMMAND: &str = "spin";

    /// Starts one on a core.
    pub fn start(core: usize) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([Self::COMMAND, &core.to_string()]).stdin(Stdio::null());
        sys::end_with_parent(&mut command);
        Ok(Self(command.spawn().context("starting a spinner")?))
    }

    /// Nanoseconds it has run.
    pub fn on_cpu_ns(&self) -> Result<u64> {
        on_cpu_ns(self.0.id() as i32)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the process of a [`Spinner`] does.
pub fn spin(core: usize) -> Result<()> {
    sys::set_affinity(0, &[core])?;
    sys::become_last().context("idle priority")?;
    loop {
        std::hint::spin_loop();
    }
}

fn on_cpu_ns(thread_id: i32) -> Result<u64> {
    let path = format!("/proc/{thread_id}/schedstat");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let first = text.split_whitespace().next().and_then(|field| field.parse().ok());
    first.with_context(|| format!("{path} begins with no number"))
}

/// Number of cores that are online.
pub fn online() -> Result<usize> {
    let text = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    Ok(text.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count())
}
