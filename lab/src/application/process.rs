//! One running program of an application.

use std::{
    io::Read,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::sys;

/// A program in a process group of its own. Dropped, it is killed with all that it started; killed too when we are.
pub(super) struct Process {
    child: Child,
    shown: String,
}

impl Process {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let shown = format!("{command:?}").replace('"', "");
        sys::end_with_parent(command);
        // What they print fits a pipe.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start `{shown}`"))?;
        Ok(Self { child, shown })
    }

    /// The command line.
    pub(super) fn name(&self) -> &str {
        &self.shown
    }

    /// Fails if it has ended.
    pub(super) fn must_run(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let messages = self.messages();
        bail!("`{}` ended at once ({status}): {messages}", self.shown)
    }

    /// Waits for its end; what it printed.
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

    /// Of a program that has ended: iperf3 puts its errors into its output.
    fn messages(&mut self) -> String {
        (text(self.child.stderr.take()) + &text(self.child.stdout.take())).trim().to_owned()
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
