//! The real daemon, in the calling thread's namespace.

use crate::{
    bed::{Bed, ends_with_us},
    sides::PORTS,
};
use serde_json::Value;
use std::{
    io::Read,
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// The number of the next daemon of this process.
static STARTED: AtomicU32 = AtomicU32::new(0);
/// The longest time a start may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Daemon {
    child: Child,
    instance: String,
}

impl Daemon {
    /// The reason why it does not become ready.
    pub fn start(bed: &Bed) -> Result<Daemon, String> {
        let instance = format!("diff-{}-{}", std::process::id(), STARTED.fetch_add(1, Relaxed));
        let config = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&config, "[policing]\nexception_pps = 0\ncontrol_pps = 0\n").unwrap();
        let mut run = Command::new(env!("CARGO_BIN_EXE_millrace"));
        run.args(["run", "--instance", &instance, "--config", config.path().to_str().unwrap()]);
        for port in 0..PORTS {
            run.args(["--port", &format!("p{port}")]);
        }
        run.args(["--router", &format!("pid:{}", bed.tenant_pid())]);
        let child = ends_with_us(run.stderr(Stdio::piped())).spawn().expect("starting millrace");
        let mut daemon = Daemon { child, instance };
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = self.status().unwrap_or_default();
            let ports = status["ports"].as_array();
            if status["ready"] == true && ports.is_some_and(|ports| ports.iter().all(port_in_use)) {
                return Ok(());
            }
            if self.child.try_wait().unwrap().is_some() || Instant::now() > until {
                let _ = self.child.kill();
                let mut log = String::new();
                let _ = self.child.stderr.take().map(|mut e| e.read_to_string(&mut log));
                return Err(format!("millrace did not become ready:\n{log}\n{status:#}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn status(&self) -> Option<Value> {
        let output = self.cli(&["status", "--json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    fn cli(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_millrace"))
            .args(words)
            .args(["--instance", &self.instance])
            .output()
            .unwrap()
    }

    /// Waits until the reports of routers and interfaces contain a text, or no longer do.
    ///
    /// The reports at the end of the wait.
    pub fn wait_for(&self, text: &str, expected: bool, patience: Duration) -> Result<(), String> {
        let until = Instant::now() + patience;
        loop {
            let reports =
                [["routers", "--json"], ["interfaces", "--json"]].map(|words| self.cli(&words).stdout);
            let reports = String::from_utf8_lossy(&reports.concat()).into_owned();
            if reports.contains(text) == expected {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("{text:?} is shown: {}, expected: {expected}\n{reports}", !expected));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The prefixes for which the fast table still does not send packets as Linux would.
    pub fn verify(&self, patience: Duration) -> Result<(), String> {
        let until = Instant::now() + patience;
        loop {
            let verify = self.cli(&["routes", "--verify"]);
            if verify.status.success() {
                return Ok(());
            }
            if Instant::now() > until {
                let [out, errors] =
                    [&verify.stdout, &verify.stderr].map(|text| String::from_utf8_lossy(text));
                return Err(format!("routes --verify:\n{out}{errors}"));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Stops the daemon, and returns its last status.
    ///
    /// The reason why it does not stop, or what it leaves behind.
    pub fn stop(mut self) -> Result<Value, String> {
        let status = self.status().ok_or("no status before the end")?;
        let stop = self.cli(&["stop"]);
        if !stop.status.success() {
            return Err(format!("stop: {}", String::from_utf8_lossy(&stop.stderr)));
        }
        self.child.wait().unwrap();
        let pins = format!("/sys/fs/bpf/millrace-{}", self.instance);
        if Path::new(&pins).exists() {
            return Err(format!("{pins} is left behind"));
        }
        Ok(status)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.try_wait().ok().flatten().is_none() {
            let _ = self.cli(&["stop"]);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Whether the port is attached and trusted.
fn port_in_use(port: &Value) -> bool {
    port["problems"].as_array().is_some_and(Vec::is_empty)
}
