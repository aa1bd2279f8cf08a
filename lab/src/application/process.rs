//! One running program of an application.

use std::{
    fs::File,
    io::Read,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::sys;

/// A program in a process group of its own. Dropping it kills the group. The program is also killed when the lab is.
pub(super) struct Process {
    child: Child,
    shown: String,
    log: Option<PathBuf>,
}

impl Process {
    /// Starts a program that ends on its own, and prints no more than fits into a pipe.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::spawn(command, None)
    }

    /// Starts a program that runs until it is dropped. Its output goes to a file; a pipe that nobody reads would stop
    /// it.
    pub(super) fn serve(command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| log.display().to_string())?;
        command.stdout(file.try_clone()?).stderr(file);
        Self::spawn(command, Some(log.into()))
    }

    fn spawn(command: &mut Command, log: Option<PathBuf>) -> Result<Self> {
        let shown = format!("{command:?}").replace('"', "");
        sys::end_with_parent(command);
        let child = command.stdin(Stdio::null()).process_group(0).spawn();
        let child = child.with_context(|| format!("cannot start `{shown}`"))?;
        Ok(Self { child, shown, log })
    }

    /// The command line.
    pub(super) fn name(&self) -> &str {
        &self.shown
    }

    /// Fails if the program has ended.
    pub(super) fn must_run(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let messages = self.messages();
        bail!("`{}` ended at once ({status}): {messages}", self.shown)
    }

    /// Waits for the program to end, and returns what it printed.
    pub(super) fn finish(mut self, limit: Duration) -> Result<String> {
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > end {
                bail!("`{}` took longer than {} s and was killed", self.shown, limit.as_secs());
            }
            sys::sleep(Duration::from_millis(20))?;
        };
        if !status.success() {
            let messages = self.messages();
            bail!("`{}` failed ({status}): {messages}", self.shown);
        }
        Ok(text(self.child.stdout.take()))
    }

    /// Messages of a program that has ended. Its output is part of them, because iperf3 prints its errors there.
    fn messages(&mut self) -> String {
        let log = self.log.as_ref().and_then(|log| File::open(log).ok());
        (text(self.child.stderr.take()) + &text(self.child.stdout.take()) + &text(log)).trim().to_owned()
    }
}

fn text(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    let _ = from.map(|mut from| from.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            sys::kill_group(self.child.id() as i32);
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_prints_much_keeps_running_and_its_end_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 300000 /dev/zero | tr '\\0' x; echo; echo no more room >&2; exit 3"]);
        let mut server = Process::serve(&mut command, &directory.path().join("log")).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        let error = loop {
            match server.must_run() {
                Err(error) => break error.to_string(),
                Ok(()) => assert!(Instant::now() < end, "it waits for a reader"),
            }
            sys::sleep(Duration::from_millis(10)).unwrap();
        };
        assert!(error.contains("exit status: 3") && error.ends_with("no more room"), "{}", error.len());
    }
}
