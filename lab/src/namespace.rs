//! Network namespaces that are deleted with their owner. The next run deletes those of a process that was killed.

use std::{
    collections::HashSet,
    fs::File,
    os::{fd::AsFd, unix::fs::MetadataExt},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{command, sys};

const PREFIX: &str = "mlr-";
const DIRECTORY: &str = "/run/netns";
/// Start of the names of servers' directories, below the temporary directory. The name of the run follows.
pub const APPLICATIONS: &str = "millrace-apps-";

/// A name no other testbed uses: `mlr-PID`, then `mlr-PID_N` for further testbeds of this process.
pub fn unique_run_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    match COUNT.fetch_add(1, Ordering::Relaxed) {
        0 => format!("{PREFIX}{}", std::process::id()),
        n => format!("{PREFIX}{}_{n}", std::process::id()),
    }
}

/// The process that owns a name made by [`unique_run_name`]; anything may follow the name after a `-`.
fn owner(name: &str) -> Option<i32> {
    let rest = name.strip_prefix(PREFIX)?;
    rest.split(['.', '-', '_']).next()?.parse().ok().filter(|&pid| pid > 0)
}

/// A named network namespace. Dropping it deletes it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    /// Creates it, with its loopback up and IPv6 duplicate address detection off.
    pub fn create(name: String) -> Result<Self> {
        command::ip(&format!("netns add {name}"))?;
        let file = File::open(format!("{DIRECTORY}/{name}")).with_context(|| format!("namespace {name}"));
        let namespace = match file {
            Ok(file) => Self { name, file },
            Err(error) => {
                let _ = command::ip(&format!("netns del {name}"));
                return Err(error);
            }
        };
        namespace.sysctl(&[
            ("net/ipv6/conf/default/accept_dad", "0"),
            ("net/ipv6/conf/all/accept_dad", "0"),
            ("net/ipv6/conf/default/accept_ra", "0"),
            // MLD reports that are sent during a measurement could be counted as lost packets.
            ("net/ipv6/conf/default/mldv2_unsolicited_report_interval", "1"),
        ])?;
        command::ip(&format!("-netns {} link set lo up", namespace.name))?;
        Ok(namespace)
    }

    /// Its name for `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` inside: the calling thread enters and comes back. Sockets and BPF links made inside stay there.
    pub fn enter<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let home = Home(File::open("/proc/thread-self/ns/net").context("own network namespace")?);
        self.enter_for_good()?;
        let result = work();
        drop(home);
        result
    }

    /// Moves the calling thread into the namespace for good.
    pub fn enter_for_good(&self) -> Result<()> {
        sys::enter_network_namespace(self.file.as_fd()).with_context(|| format!("cannot enter {}", self.name))
    }

    /// The number by which the kernel distinguishes namespaces.
    pub fn inode(&self) -> Result<u32> {
        Ok(self.file.metadata()?.ino() as u32)
    }

    /// A second handle, for a thread of its own. It does not delete the namespace.
    pub fn handle(&self) -> Result<File> {
        Ok(self.file.try_clone()?)
    }

    /// Index of a device inside.
    pub fn interface_index(&self, device: &str) -> Result<u32> {
        self.enter(|| {
            sys::interface_index(device).with_context(|| format!("no device {device} in {}", self.name))
        })
    }

    /// A command that will run inside, with the mounts of the machine. Spawn it while `self` lives.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        sys::start_in_network_namespace(&mut command, self.file.as_fd());
        command
    }

    /// Runs several `ip` commands, one per line.
    pub fn ip_batch(&self, lines: &str) -> Result<()> {
        command::ip_batch(&self.name, lines)
    }

    /// Sets network sysctls, given as (path below /proc/sys, value). /proc/sys/net belongs to the thread that opens it.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.enter(|| {
            for (path, value) in settings {
                std::fs::write(format!("/proc/sys/{path}"), value)
                    .with_context(|| format!("sysctl {path} = {value}"))?;
            }
            Ok(())
        })
    }

    /// A file below /proc/net or /proc/sys/net as seen inside.
    pub fn read(&self, path: &str) -> Result<String> {
        let path = path.replace("/proc/net/", "/proc/thread-self/net/");
        self.enter(|| std::fs::read_to_string(&path).with_context(|| path.clone()))
    }
}

/// Brings the thread back to its namespace, also when the work panics.
struct Home(File);

impl Drop for Home {
    fn drop(&mut self) {
        // Continuing in the wrong namespace could change devices that are not ours.
        if let Err(error) = sys::enter_network_namespace(self.0.as_fd()) {
            eprintln!("cannot return to the original network namespace: {error}");
            std::process::abort();
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = command::ip(&format!("netns del {}", self.name)) {
            eprintln!("cannot delete namespace {}: {error:#}", self.name);
        }
    }
}

/// Deletes what testbeds of processes that no longer exist have left: namespaces, processes inside them, daemons' pins
/// and sockets, servers' files. Keeps everything of living processes, and every name not made by [`unique_run_name`].
pub fn clean_stale() {
    let stale = |name: &str| owner(name).is_some_and(|pid| !sys::process_exists(pid));
    for name in names_in(DIRECTORY).into_iter().filter(|name| stale(name)) {
        eprintln!("cleaning up namespace {name}, left by a run that crashed");
        let pids = command::ip(&format!("netns pids {name}")).unwrap_or_default();
        pids.split_whitespace().filter_map(|pid| pid.parse().ok()).for_each(sys::terminate);
        let _ = command::ip(&format!("netns del {name}"));
    }
    remove_instances(stale);
    let directory = std::env::temp_dir();
    for name in names_in(&directory.to_string_lossy()) {
        if name.strip_prefix(APPLICATIONS).is_some_and(stale) {
            let _ = std::fs::remove_dir_all(directory.join(name));
        }
    }
}

/// Removes what daemons that were not stopped have left: pins and sockets of the instances that `named` accepts.
pub fn remove_instances(named: impl Fn(&str) -> bool) {
    let ours = |name: &String| {
        name.strip_prefix("millrace-").is_some_and(|name| named(name.split('.').next().unwrap_or(name)))
    };
    for name in names_in("/sys/fs/bpf").into_iter().filter(ours) {
        let _ = std::fs::remove_dir_all(format!("/sys/fs/bpf/{name}"));
    }
    // Programs of the lab leave memory in /dev/shm.
    for directory in ["/run", "/dev/shm"] {
        for name in names_in(directory).into_iter().filter(ours) {
            let path = format!("{directory}/{name}");
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
        }
    }
}

/// Ends the processes in these namespaces: asks them to end, and kills the rest after a second.
pub fn end_processes<'a>(namespaces: impl Iterator<Item = &'a Namespace>) {
    let inodes: HashSet<u64> = namespaces.filter_map(|n| Some(n.file.metadata().ok()?.ino())).collect();
    let inside = || {
        names_in("/proc").into_iter().filter_map(|name| name.parse::<i32>().ok()).filter(|pid| {
            std::fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|m| inodes.contains(&m.ino()))
        })
    };
    inside().for_each(sys::terminate);
    let end = Instant::now() + Duration::from_secs(1);
    while inside().next().is_some() && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
    inside().for_each(sys::kill);
}

fn names_in(directory: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_read_from_our_names_only() {
        assert_eq!(owner("mlr-12-gen"), Some(12));
        assert_eq!(owner("mlr-12_3-r7"), Some(12));
        assert_eq!(owner("mlr-12.sock"), Some(12));
        assert_eq!(owner("mlr--1-gen"), None);
        assert_eq!(owner("mlr-x-gen"), None);
        assert_eq!(owner("other-12-gen"), None);
    }

    #[test]
    fn run_names_differ_and_name_their_owner() {
        let (a, b) = (unique_run_name(), unique_run_name());
        assert_ne!(a, b);
        assert_eq!(owner(&format!("{b}-gen")), Some(std::process::id() as i32));
    }
}
