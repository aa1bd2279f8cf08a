//! Other programs (ip, ethtool, sysctl), always with a time limit.

use std::{
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

/// How long a configuration command may take.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Runs a program to its end and returns what it printed. Fails if the program cannot be started, takes longer than
/// [`LIMIT`], or exits with an error; the error then contains its messages.
pub fn run(command: &mut Command) -> Result<String> {
    run_with_input(command, "")
}

/// As [`run`], with `input` on its standard input.
pub fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let shown = format!("{command:?}").replace('"', "");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C is for the lab. It must not interrupt the programs that clean up.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let mut stdout = child.stdout.take().expect("stdout is piped");
    let mut stderr = child.stderr.take().expect("stderr is piped");
    let (status, out, err) = thread::scope(|scope| {
        // A program that ends early closes its input; its exit status shows that.
        scope.spawn(move || stdin.write_all(input.as_bytes()));
        let out = scope.spawn(move || read(&mut stdout));
        let err = scope.spawn(move || read(&mut stderr));
        let status = wait(&mut child, LIMIT);
        (status, out.join().unwrap_or_default(), err.join().unwrap_or_default())
    });
    match status.with_context(|| format!("`{shown}`"))? {
        Some(status) if status.success() => Ok(out),
        Some(status) => bail!("`{shown}` failed ({status}): {}", err.trim()),
        None => bail!("`{shown}` took longer than {} s and was killed", LIMIT.as_secs()),
    }
}

/// A child of ours that runs until it is asked to end.
#[derive(Clone, Debug)]
pub struct Running {
    /// Name for messages.
    pub name: String,
    /// Process id; the child has not been waited for.
    pub pid: i32,
}

impl Running {
    /// Fails if the child has ended.
    pub fn check(&self) -> Result<()> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // A child that has ended and was not waited for is a zombie.
        let runs = stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']));
        ensure!(runs, "{} (process {}) has ended in the middle of the run", self.name, self.pid);
        Ok(())
    }
}

fn read(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for a child. Kills it after `limit` and returns `None`.
pub fn wait(child: &mut Child, limit: Duration) -> Result<Option<std::process::ExitStatus>> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// `ip` with these arguments, separated by spaces.
pub fn ip(arguments: &str) -> Result<String> {
    run(Command::new("ip").args(arguments.split_whitespace()))
}

/// Runs many `ip` commands at once, one per line, in the namespace called `namespace`.
pub fn ip_batch(namespace: &str, lines: &str) -> Result<()> {
    run_with_input(Command::new("ip").args(["-netns", namespace, "-batch", "-"]), lines).map(drop)
}
