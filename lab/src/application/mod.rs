//! Applications on the box that also forwards: what they achieve while packets pass (Q9, figs. 6 to 8; O fig. 2).
//!
//! | file | holds |
//! |---|---|
//! | `benchmark` | the benchmarks: a small description of each, and the meaning of its output |
//! | `process` | one running program: pinned, and ended with its owner |
//! | this file | a benchmark put on cores, its scores, and the index |
//!
//! Priorities. In the papers' router, softirqs forward packets and run before every application. Here NAPI threads
//! forward, so that their time can be told apart. The testbed gives them a real-time priority
//! ([`crate::testbed::Testbed::for_rates`]). Benchmarks and servers run at nice 0, the default. They get the core
//! whenever forwarding leaves it, and in any case about a twentieth of it, which the kernel keeps for normal threads.
//! With NAPI threads at nice 0, the scheduler would give each half of a saturated core. Forwarding would then lose
//! packets that the papers' router forwards.
//!
//! Clients on the lab's core reach servers through the loopback of the box. So the core's time is compared, and not
//! whether requests find room in the ring of a saturated port. Clients run before the generator there, because the
//! generator never sleeps. Packets that it then cannot send are missing in `offered_pps`.

mod benchmark;
mod process;

use std::{
    fs::File,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

pub use benchmark::{BENCHMARKS, Benchmark, NAMES, by_name};
use process::Process;

use crate::{
    namespace::{APPLICATIONS, Namespace, unique_run_name},
    sys,
    testbed::Testbed,
};

/// Time limit. A core that forwards all it can leaves an application one or two hundredths, so starting and ending take
/// long.
const PATIENCE: Duration = Duration::from_secs(60);
const SERVER_START_LIMIT: Duration = Duration::from_secs(10);

/// What one core achieved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Score {
    /// In the benchmark's unit.
    pub per_s: f64,
    /// Connections and requests of a server that failed, or had no answer in 2 s.
    pub errors: u64,
    /// Median latency of a server that answers requests. The client sends the next request after the answer (closed
    /// loop). So requests that would have come and waited meanwhile are not included.
    pub p50_us: Option<f64>,
    /// The same: 99th percentile.
    pub p99_us: Option<f64>,
}

/// Q9: N = sum(B_i) / sum(Z_i), where B_i is the score of core i under traffic, and Z_i without. `None` if the divisor
/// is 0.
pub fn index(under_traffic: &[Score], without_traffic: &[Score]) -> Option<f64> {
    let sum = |scores: &[Score]| scores.iter().map(|score| score.per_s).sum::<f64>();
    let without = sum(without_traffic);
    (without > 0.0).then(|| sum(under_traffic) / without)
}

/// A benchmark on some cores of the box, with its servers running. Dropping it ends them.
pub struct Deployment {
    benchmark: &'static Benchmark,
    cores: Vec<usize>,
    client_core: usize,
    namespace: File,
    // Servers end before their directory is removed.
    _servers: Vec<Process>,
    directory: Directory,
}

impl Deployment {
    /// Starts what the benchmark needs on each of the topology's cores for applications. Fails if one of its programs is not installed.
    pub fn start(benchmark: &'static Benchmark, testbed: &Testbed) -> Result<Self> {
        let cores = &testbed.topology.cores;
        benchmark.programs().try_for_each(must_be_installed)?;
        let mut deployment = Self {
            benchmark,
            cores: cores.applications.clone(),
            client_core: cores.generator,
            namespace: testbed.box_namespace.handle()?,
            _servers: Vec::new(),
            directory: Directory::create()?,
        };
        for &core in &cores.applications {
            if let Some(server) = &benchmark.server {
                (server.prepare)(&deployment.directory.0, core)?;
                let mut command = deployment.command(server.program, (server.arguments)(core), core, false);
                let log = deployment.directory.0.join(format!("server-{core}.out"));
                let mut process = Process::serve(&mut command, &log)?;
                wait_for_listener(&testbed.box_namespace, server.port(core), &mut process)?;
                deployment._servers.push(process);
            }
        }
        Ok(deployment)
    }

    /// Runs the benchmark on all cores at once for `seconds` seconds, by its own clock, and returns the scores of the
    /// cores.
    pub fn run(&self, seconds: u16) -> Result<Vec<Score>> {
        let start = |&core: &usize| {
            let client = self.benchmark.server.is_some();
            let at = if client { self.client_core } else { core };
            let arguments = (self.benchmark.arguments)(core, seconds);
            Process::start(&mut self.command(self.benchmark.program, arguments, at, client))
        };
        let running: Vec<Process> = self.cores.iter().map(start).collect::<Result<_>>()?;
        let limit = Duration::from_secs(seconds.into()) + PATIENCE;
        running.into_iter().map(|process| self.score(&process.finish(limit)?)).collect()
    }

    fn score(&self, output: &str) -> Result<Score> {
        let Benchmark { name, program, parse, .. } = self.benchmark;
        parse(output).with_context(|| format!("{name}: no score in what {program} printed: {output}"))
    }

    /// A command in the box, on a core. With `first` it runs before the generator.
    fn command(&self, program: &str, arguments: String, core: usize, first: bool) -> Command {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string()]);
        if first {
            command.args(["chrt", "--rr", "2"]);
        }
        command.arg(program).args(arguments.split_whitespace()).current_dir(&self.directory.0);
        sys::start_in_network_namespace(&mut command, self.namespace.as_fd());
        command
    }
}

fn must_be_installed(program: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    ensure!(found, "{program} is not on the PATH: install Debian's package {program}");
    Ok(())
}

fn wait_for_listener(namespace: &Namespace, port: u16, process: &mut Process) -> Result<()> {
    let end = Instant::now() + SERVER_START_LIMIT;
    while !listens(&namespace.read("/proc/net/tcp")?, port) {
        process.must_run()?;
        ensure!(Instant::now() < end, "{} does not listen on port {port}", process.name());
        sys::sleep(Duration::from_millis(10))?;
    }
    Ok(())
}

/// Does /proc/net/tcp show a socket that listens on this port?
fn listens(sockets: &str, port: u16) -> bool {
    let local = format!(":{port:04X}");
    sockets.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|address| address.ends_with(&local)) && fields.nth(1) == Some("0A")
    })
}

/// A new directory below the temporary one. Dropping it removes it.
struct Directory(PathBuf);

impl Directory {
    fn create() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("{APPLICATIONS}{}", unique_run_name()));
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let path: &Path = &self.0;
        if let Err(error) = std::fs::remove_dir_all(path) {
            eprintln!("cannot remove {}: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(per_s: &[f64]) -> Vec<Score> {
        per_s.iter().map(|&per_s| Score { per_s, errors: 0, p50_us: None, p99_us: None }).collect()
    }

    #[test]
    fn index_is_a_ratio_of_sums() {
        assert_eq!(index(&scores(&[1.0, 3.0]), &scores(&[4.0, 4.0])), Some(0.5));
        assert_eq!(index(&scores(&[0.0]), &scores(&[4.0])), Some(0.0));
        assert_eq!(index(&scores(&[1.0]), &scores(&[0.0])), None);
        assert_eq!(index(&[], &[]), None);
    }

    #[test]
    fn a_listener_is_seen_by_its_port_and_state() {
        let sockets = "  sl  local_address rem_address   st tx_queue rx_queue\n\
            \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1\n\
            \x20  1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000 0 0 2\n";
        assert!(listens(sockets, 8080));
        assert!(!listens(sockets, 8081), "a connection is no listener");
        assert!(!listens(sockets, 80));
    }
}
