//! What subjects that are other people's programs have in common.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    command::{self, Running},
    sys,
    testbed::{PORT_IN, PORT_OUT, Testbed},
};

const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Threads of a process whose names begin with `prefix`.
pub(super) fn threads(pid: u32, prefix: &str) -> Vec<i32> {
    let task = format!("/proc/{pid}/task");
    let entries = std::fs::read_dir(&task).into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let named = |id: &i32| {
        std::fs::read_to_string(format!("{task}/{id}/comm")).is_ok_and(|name| name.starts_with(prefix))
    };
    ids.filter(named).collect()
}

/// The program of this name on PATH. `how` explains how to get it.
pub(super) fn on_path(name: &str, how: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("there is no {name} on PATH: {how}"))
}

/// The program at the path in an environment variable, or else the one on PATH.
pub(super) fn given_or_on_path(variable: &str, name: &str) -> Result<PathBuf> {
    let Some(path) = std::env::var_os(variable).map(PathBuf::from) else {
        return on_path(name, &format!("install it, or say where it is with {variable}=/path/to/{name}"));
    };
    ensure!(path.is_file(), "{variable} is {}, which is not a file", path.display());
    Ok(path)
}

/// A directory for sockets, data and logs; removed when dropped.
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn create(testbed: &Testbed, subject: &str) -> Result<Self> {
        // `namespace::clean_stale` knows the name.
        let path = PathBuf::from(format!("/run/millrace-{}-{subject}", testbed.name));
        std::fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// A program that runs until it is dropped.
pub(super) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts it on all cores, in a session of its own. Its output goes to `log`; its input stays open.
    pub(super) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let file = std::fs::File::create(log).with_context(|| log.display().to_string())?;
        sys::end_with_parent(&mut command);
        sys::start_on_all_cores(&mut command);
        sys::start_in_own_session(&mut command);
        command.stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { child, name, log: log.into() })
    }

    /// Waits until `ready` is true. Fails with the end of the log if the program ends or takes longer than `limit`.
    pub(super) fn wait_until(&mut self, limit: Duration, ready: impl Fn(&Self) -> bool) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at once ({status}): {}", self.name, self.last_lines());
            }
            if ready(self) {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("{} is not ready after {} s: {}", self.name, limit.as_secs(), self.last_lines());
            }
            sys::sleep(Duration::from_millis(20))?;
        }
    }

    /// Its first thread.
    pub(super) fn main_thread(&self) -> i32 {
        self.child.id() as i32
    }

    /// The program.
    pub(super) fn running(&self) -> Running {
        Running { name: self.name.clone(), pid: self.main_thread() }
    }

    /// Its threads whose names begin with `prefix`.
    pub(super) fn threads(&self, prefix: &str) -> Vec<i32> {
        threads(self.child.id(), prefix)
    }

    /// Does it have such threads, and do all of them poll, and not wait?
    pub(super) fn polls(&self, prefix: &str) -> bool {
        let threads = self.threads(prefix);
        let runs = |id: &i32| {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('R'))
        };
        !threads.is_empty() && threads.iter().all(runs)
    }

    /// Waits until it ends.
    pub(super) fn end(&mut self) -> Result<()> {
        let ended = command::wait(&mut self.child, STOP_LIMIT)?;
        ended.map(drop).with_context(|| format!("{} did not stop when asked to and was killed", self.name))
    }

    /// Its output so far, except what is still in its buffers.
    pub(super) fn printed(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of its output.
    pub(super) fn last_lines(&self) -> String {
        let text = self.printed();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        sys::terminate(self.child.id() as i32);
        if !matches!(command::wait(&mut self.child, STOP_LIMIT), Ok(Some(_))) {
            eprintln!("{} did not stop in {} s and was killed", self.name, STOP_LIMIT.as_secs());
        }
    }
}

/// Keeps packets of the ports from the box's own stack. This is for subjects that read from packet sockets, which get
/// only copies. Dropping it ends this.
pub(super) struct DeafStack {
    box_name: String,
}

impl DeafStack {
    const TABLE: &str = "netdev millrace_lab";

    pub(super) fn new(testbed: &Testbed) -> Result<Self> {
        on_path("nft", "install the package nftables")?;
        let chain = |port| {
            format!("chain {port} {{ type filter hook ingress device {port} priority 0; policy drop; }};")
        };
        let rules = format!("table {} {{ {} {} }}\n", Self::TABLE, chain(PORT_IN), chain(PORT_OUT));
        let mut nft = testbed.box_namespace.command("nft");
        command::run_with_input(nft.args(["-f", "-"]), &rules).context("keeping packets from the stack")?;
        Ok(Self { box_name: testbed.box_namespace.name().into() })
    }
}

impl Drop for DeafStack {
    fn drop(&mut self) {
        let arguments = format!("netns exec {} nft delete table {}", self.box_name, Self::TABLE);
        if let Err(error) = command::ip(&arguments) {
            eprintln!("{error:#}");
        }
    }
}

/// The ports, for subjects that attach XDP programs to them, make them promiscuous or set their MAC addresses. Even if
/// the MAC address stays the same, Linux forgets permanent neighbours. Dropping this restores the ports, however the
/// subject ended.
pub(super) struct Ports {
    box_name: String,
    neighbours: String,
}

impl Ports {
    pub(super) fn new(testbed: &Testbed) -> Result<Self> {
        let box_name = testbed.box_namespace.name().to_string();
        // Lines that end in the state, PERMANENT.
        let shown = command::ip(&format!("-netns {box_name} neigh show nud permanent"))?;
        let lines = shown.lines().filter_map(|line| line.trim_end().strip_suffix("PERMANENT"));
        let neighbours = lines.map(|line| format!("neigh replace {line} nud permanent\n")).collect();
        Ok(Self { box_name, neighbours })
    }

    /// Packets that the program of the port towards the generator has redirected so far. These did not go through
    /// Linux.
    pub(super) fn redirected(&self) -> Result<u64> {
        let text = command::ip(&format!("netns exec {} ethtool -S {PORT_IN}", self.box_name))?;
        let counters = text.lines().filter_map(|line| line.trim().rsplit_once(": "));
        let redirects = counters.filter(|(name, _)| name.ends_with("_xdp_redirect"));
        Ok(redirects.filter_map(|(_, count)| count.parse::<u64>().ok()).sum())
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        let plain = |port| format!("link set {port} promisc off xdp off\n");
        let lines = self.neighbours.clone() + &plain(PORT_IN) + &plain(PORT_OUT);
        if let Err(error) = command::ip_batch(&self.box_name, &lines) {
            eprintln!("{error:#}");
        }
    }
}
