//! What a core has left, by subtraction (Q8): a process uses all time that nothing else wants, and reports how much it
//! had.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};

use super::time;
use crate::sys;

/// A process of the lowest priority on one core. Its time is what applications could have. Dropping it ends it.
pub struct Spinner(Child);

impl Spinner {
    /// Name of the hidden subcommand that runs one ([`spin`]).
    pub const COMMAND: &str = "spin";

    /// Starts one on a core.
    pub fn start(core: usize) -> Result<Self> {
        let mut command = Command::new(binary()?);
        command.args([Self::COMMAND, &core.to_string()]).stdin(Stdio::null());
        sys::end_with_parent(&mut command);
        Ok(Self(command.spawn().context("starting a spinner")?))
    }

    /// Nanoseconds that it has run.
    pub fn on_cpu_ns(&self) -> Result<u64> {
        Ok(time(self.0.id() as i32)?.busy_ns)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A [`Spinner`] on each of some cores.
#[derive(Default)]
pub struct Spinners(BTreeMap<usize, Spinner>);

impl Spinners {
    /// Starts them.
    pub fn start(cores: &[usize]) -> Result<Self> {
        cores.iter().map(|&core| Ok((core, Spinner::start(core)?))).collect::<Result<_>>().map(Self)
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nanoseconds that each has run, by core.
    pub fn on_cpu_ns(&self) -> Result<BTreeMap<usize, u64>> {
        self.0.iter().map(|(&core, spinner)| Ok((core, spinner.on_cpu_ns()?))).collect()
    }
}

/// Work of a [`Spinner`]'s process.
pub fn spin(core: usize) -> Result<()> {
    sys::set_affinity(0, &[core])?;
    sys::become_last().context("idle priority")?;
    loop {
        std::hint::spin_loop();
    }
}

/// This program. In a test, the lab's binary that was built with it, one directory up.
fn binary() -> Result<PathBuf> {
    let own = std::env::current_exe().context("own path")?;
    let mut candidates = own.ancestors().skip(1).take(2).map(|directory| directory.join("millrace-lab"));
    let found = candidates.find(|path| path.is_file());
    found.with_context(|| format!("no millrace-lab beside {}: run `make build`", own.display()))
}
