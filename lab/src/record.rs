//! Raw results as JSON lines: first what was run where, then one line for each measurement. Nothing is averaged away.

use std::{
    fs::File,
    io::Write,
    path::PathBuf,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{
    command, cpu,
    figure::{Figure, Published},
};

/// Where the results of a command go.
#[derive(Clone, Debug)]
pub struct Output {
    /// A file, or nowhere.
    pub path: Option<PathBuf>,
    /// The command line.
    pub command: Vec<String>,
}

impl Output {
    /// Lines, the first of which is that of [`run`].
    pub fn recorder(&self) -> Result<Recorder> {
        let Some(path) = &self.path else { return Ok(Recorder::none()) };
        let mut recorder = Recorder(Some(File::create(path).with_context(|| path.display().to_string())?));
        recorder.line(&run(&self.command)?)?;
        Ok(recorder)
    }

    /// One document, an object, to which [`run`] is added; replaces an earlier one.
    pub fn document(&self, mut document: Value) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        document["run"] = run(&self.command)?;
        let text = serde_json::to_string_pretty(&document)? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}

/// Writes results to a file, or nowhere.
pub struct Recorder(Option<File>);

impl Recorder {
    /// Keeps nothing.
    pub fn none() -> Self {
        Self(None)
    }

    /// Writes one line at once: what was measured stays when the run is interrupted.
    pub fn line(&mut self, value: &Value) -> Result<()> {
        if let Some(file) = &mut self.0 {
            writeln!(file, "{value}").context("writing results")?;
        }
        Ok(())
    }

    /// A picture that [`crate::report`] shall draw of lines of this file.
    pub fn figure(&mut self, figure: &Figure) -> Result<()> {
        self.line(&serde_json::to_value(figure)?)
    }

    /// What a paper says, to be drawn beside.
    pub fn published(&mut self, published: &Published) -> Result<()> {
        self.line(&serde_json::to_value(published)?)
    }
}

/// Machine, kernel, revision, command line and time of this run.
fn run(command: &[String]) -> Result<Value> {
    let read =
        |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Ok(json!({
        "record": "run",
        "unix_seconds": SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        "cpu": model.map(|(_, name)| name),
        "cores": cpu::online()?,
        "kernel": format!("{} {}", read("/proc/sys/kernel/osrelease"), read("/proc/sys/kernel/version")),
        "revision": revision(),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "command": command,
    }))
}

/// The commit, with `+` if the tree differs from it.
fn revision() -> String {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty=+", "--exclude=*"]);
    command::run(&mut git).map_or("unknown".into(), |text| text.trim().to_owned())
}
